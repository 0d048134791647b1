"""Count the parameters of a model by its config.json, where there are no weights to read.

For each family, `SPECS` says what its layers consist of besides attention's matrices, whose sizes the
anatomy has. A test compares every family with transformers' own model on the meta device.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from attnscope.cost import tensor_parts as parts
from attnscope.cost.anatomy import Anatomy, LayerAnatomy
from attnscope.cost.fields import Fields, text_part
from attnscope.cost.weights import NAMES_OF_EXPERTS, active_parameters
from attnscope.errors import ModelError
from attnscope.results.weights_count import PartCount, WeightsCount
from attnscope.text import printable, shortened

BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
BYTES |= {"float8_e4m3fn": 1, "float8_e5m2": 1}


@dataclass(frozen=True)
class Experts:
    """The experts of a family. Fields are those of config.json.

    Attributes:
        width: the field with the width of one.
        shared: the field with the width of an expert for all tokens, or with the number of experts of
            that kind, each as wide as the others; empty: there is none.
        shared_gate: whether that expert has a gate.
        router: the vectors of the router for each expert besides its weights: biases, corrections.
        biases: whether experts have biases.
        dense: the field with the number of first layers that have no experts.
    """

    width: str = "moe_intermediate_size"
    shared: str = ""
    shared_gate: bool = False
    router: int = 0
    biases: bool = False
    dense: str = ""


@dataclass(frozen=True)
class Spec:
    """What the layers of a family consist of.

    Attributes:
        norms: the number of norms in a layer outside of attention.
        norm_size: the vectors of a norm: 1 weights, 2 weights and biases, 0 neither.
        head_norms: the widths of norms of queries and keys: a `head`, `all` heads; empty: no norms.
        qkv_bias, o_bias: whether the matrices of attention have biases; or the field that says so.
        sinks: whether each head has a sink.
        gated: whether the feed-forward network has a gate.
        mlp_bias: whether it has biases; or the field that says so.
        width: the field with its width; 4 · d_feat if that is missing and `four` is true.
        four: see `width`.
        tied: whether the output is the embedding, if config.json does not say it.
        positions: the field with the number of learned positions; empty: there are none.
        output_bias: whether the output has biases.
        experts: those of a mixture.
    """

    norms: int = 2
    norm_size: int = 1
    head_norms: str = ""
    qkv_bias: bool | str = False
    o_bias: bool | str = False
    sinks: bool = False
    gated: bool = True
    mlp_bias: bool | str = False
    width: str = "intermediate_size"
    four: bool = False
    tied: bool = False
    positions: str = ""
    output_bias: bool = False
    experts: Experts | None = field(default=None)


_LLAMA = Spec(qkv_bias="attention_bias", o_bias="attention_bias", mlp_bias="mlp_bias")
_GEMMA2 = Spec(norms=4, qkv_bias="attention_bias", o_bias="attention_bias", tied=True)
_GPT2 = Spec(
    norm_size=2, qkv_bias=True, o_bias=True, gated=False, mlp_bias=True, width="n_inner", four=True,
    tied=True, positions="n_positions",
)  # fmt: skip
_DEEPSEEK = Experts(shared="n_shared_experts", dense="first_k_dense_replace")

SPECS = {
    "llama": _LLAMA,
    "mistral": Spec(),
    "ministral3": Spec(),
    "granite": _LLAMA,
    "smollm3": _LLAMA,
    "arcee": Spec(qkv_bias="attention_bias", o_bias="attention_bias", gated=False, mlp_bias="mlp_bias"),
    "qwen2": Spec(qkv_bias=True),
    "qwen3": Spec(head_norms="head", qkv_bias="attention_bias", o_bias="attention_bias"),
    "gemma": Spec(qkv_bias="attention_bias", o_bias="attention_bias", tied=True),
    "gemma2": _GEMMA2,
    "gemma3_text": Spec(
        norms=4, head_norms="head", qkv_bias="attention_bias", o_bias="attention_bias", tied=True
    ),
    "phi3": Spec(),
    "olmo": Spec(norm_size=0, qkv_bias="attention_bias", o_bias="attention_bias"),
    "olmo2": Spec(head_norms="all", qkv_bias="attention_bias", o_bias="attention_bias"),
    "olmo3": Spec(head_norms="all", qkv_bias="attention_bias", o_bias="attention_bias"),
    "glm4": Spec(norms=4, qkv_bias="attention_bias"),
    "exaone4": Spec(head_norms="head"),
    "seed_oss": Spec(qkv_bias="attention_bias", o_bias="attention_out_bias", mlp_bias="mlp_bias"),
    "cohere2": Spec(norms=1, qkv_bias="attention_bias", o_bias="attention_bias", tied=True),
    "starcoder2": Spec(
        norm_size=2, qkv_bias="use_bias", o_bias="use_bias", gated=False, mlp_bias="use_bias", tied=True
    ),
    "gpt2": _GPT2,
    "gpt_neox": Spec(
        norm_size=2, qkv_bias="attention_bias", o_bias="attention_bias", gated=False, mlp_bias=True
    ),
    "mixtral": Spec(experts=Experts("intermediate_size")),
    "qwen2_moe": Spec(
        qkv_bias="qkv_bias",
        experts=Experts(shared="shared_expert_intermediate_size", shared_gate=True),
    ),
    "qwen3_moe": Spec(
        head_norms="head", qkv_bias="attention_bias", o_bias="attention_bias", experts=Experts()
    ),
    "olmoe": Spec(
        head_norms="all", qkv_bias="attention_bias", o_bias="attention_bias",
        experts=Experts("intermediate_size"),
    ),
    "gpt_oss": Spec(
        qkv_bias="attention_bias", o_bias="attention_bias", sinks=True,
        experts=Experts("intermediate_size", router=1, biases=True),
    ),
    "deepseek_v2": Spec(o_bias="attention_bias", mlp_bias="mlp_bias", experts=_DEEPSEEK),
    "deepseek_v3": Spec(o_bias="attention_bias", experts=_DEEPSEEK),
}  # fmt: skip
"""The families whose parameters are counted by their configuration."""


def count_parameters(config: dict[str, Any], anatomy: Anatomy) -> WeightsCount:
    """Count the parameters of a model by its config.json.

    Args:
        config: the content of config.json.
        anatomy: what it says about attention.

    Raises:
        ModelError: the family is not known, or a field is missing.
    """
    text = text_part(config)
    spec = SPECS.get(anatomy.model_type)
    why = None
    if spec is not None and text is not config:
        spec, why = None, "it has other parts beside the one for text"
    if spec is None or any(layer.kind not in ("full", "sliding", "latent") for layer in anatomy.layers):
        raise _unknown(anatomy.model_type, why)
    return _Counter(anatomy.model_type, spec, Fields(text).with_defaults(), anatomy).count()


def _unknown(model_type: str, why: str | None) -> ModelError:
    """Return the error that parameters are not counted, and why, if there is more to say."""
    because = "" if why is None else f": {why}"
    return ModelError(
        f"attnscope does not count the parameters of {printable(shortened(model_type))}"
        f" by config.json alone{because}.",
        hint="the folder or the name on the hub of the whole model, whose headers say them",
    )


class _Counter:
    """Counts the parameters of a model.

    Args:
        model_type: of the family.
        spec: what its layers consist of.
        config: the part of config.json for text, with the defaults of its class.
        anatomy: what it says about attention.
    """

    def __init__(self, model_type: str, spec: Spec, config: dict[str, Any], anatomy: Anatomy) -> None:
        self.model_type, self.spec, self.config, self.anatomy = model_type, spec, config, anatomy

    def count(self) -> WeightsCount:
        """Return the sizes of all parts."""
        attention: dict[str, int] = defaultdict(int)
        rest: dict[str, int] = defaultdict(int)
        for i, layer in enumerate(self.anatomy.layers):
            for part, size in self._attention(layer):
                attention[part] += size
            for part, size in self._rest_of_layer(i):
                rest[part] += size
        for part, size in self._rest_of_model():
            rest[part] += size
        total = sum(attention.values()) + sum(rest.values())
        dtype = self.anatomy.dtype or "unknown"
        return WeightsCount(
            attention=self._counts(attention, parts.ATTENTION),
            rest=self._counts(rest, parts.REST),
            dtypes=self._counts({dtype: total}, (dtype,)),
            source="configuration",
            n_active=active_parameters(sum(attention.values()), rest, self.config),
        )

    def _counts(self, sizes: dict[str, int], order: tuple[str, ...]) -> tuple[PartCount, ...]:
        n_bytes = (
            BYTES.get(self.anatomy.dtype or "") if "quantization_config" not in self.config else None
        )
        return tuple(
            PartCount(part, sizes[part], n_bytes * sizes[part] if n_bytes else None)
            for part in order
            if sizes.get(part)
        )

    def _size(self, name: str, default: int | None = None) -> int:
        value = self.config.get(name)
        value = default if value is None else value
        if type(value) is not int or value < 0:
            why = "it has no" if value is None else f"{printable(shortened(repr(value)))} is its"
            raise _unknown(self.model_type, f"{why} {name}")
        return value

    def _is_on(self, switch: bool | str) -> bool:
        if isinstance(switch, bool):
            return switch
        return bool(self.config.get(switch))

    def _attention(self, layer: LayerAnatomy) -> Iterator[tuple[str, int]]:
        """Yield the sizes of the parts of a layer's attention."""
        spec, d_feat = self.spec, self.anatomy.d_feat
        n_head, n_kv_head = layer.n_head or 0, layer.n_kv_head or 0
        d_K, d_V = layer.d_K or 0, layer.d_V or 0
        yield parts.O, n_head * d_V * d_feat
        yield parts.BIASES, d_feat if self._is_on(spec.o_bias) else 0
        yield parts.OTHER, n_head if spec.sinks else 0
        if layer.kind == "latent":
            yield from self._latents(n_head, d_K, d_V)
            return
        n_Q, n_K, n_V = n_head * d_K, n_kv_head * d_K, n_kv_head * d_V
        yield from zip(
            (parts.Q, parts.K, parts.V), (n_Q * d_feat, n_K * d_feat, n_V * d_feat), strict=True
        )
        yield parts.BIASES, n_Q + n_K + n_V if self._is_on(spec.qkv_bias) else 0
        yield parts.NORMS, {"": 0, "head": 2 * d_K, "all": n_Q + n_K}[spec.head_norms]

    def _latents(self, n_head: int, d_K: int, d_V: int) -> Iterator[tuple[str, int]]:
        """Yield the parts of latent attention: DeepSeek-V2 (arXiv:2405.04434), section 2.1.2."""
        d_feat, rank = self.anatomy.d_feat, self._size("kv_lora_rank")
        rotated = self._size("qk_rope_head_dim")
        has_bias = self._is_on("attention_bias")
        if self.config.get("q_lora_rank") is None:
            yield parts.Q, d_feat * n_head * d_K
        else:
            rank_Q = self._size("q_lora_rank")
            yield parts.LATENTS, d_feat * rank_Q + rank_Q * n_head * d_K
            yield parts.NORMS, rank_Q
            yield parts.BIASES, rank_Q if has_bias else 0
        yield parts.LATENTS, d_feat * (rank + rotated) + rank * n_head * (d_K - rotated + d_V)
        yield parts.NORMS, rank
        yield parts.BIASES, rank + rotated if has_bias else 0

    def _rest_of_layer(self, i: int) -> Iterator[tuple[str, int]]:
        """Yield the sizes of what a layer has besides attention."""
        spec, d_feat, experts = self.spec, self.anatomy.d_feat, self.spec.experts
        yield parts.OTHER, spec.norms * spec.norm_size * d_feat
        if experts is None or self._is_dense(i, experts):
            width = self._size(spec.width, 4 * d_feat if spec.four else None)
            yield parts.OTHER, self._feed_forward(width)
            return
        names = (name for name in NAMES_OF_EXPERTS if self.config.get(name) is not None)
        count, width = self._size(next(names, "number of experts")), self._size(experts.width)
        biases = 2 * width + d_feat if experts.biases else 0
        yield parts.EXPERTS, count * (3 * d_feat * width + biases)
        yield parts.OTHER, count * (d_feat + experts.router)
        if experts.shared:
            shared = self._size(experts.shared, 0)
            shared *= width if experts.shared.startswith("n_") else 1
            yield parts.OTHER, self._feed_forward(shared) + (d_feat if experts.shared_gate else 0)

    def _is_dense(self, i: int, experts: Experts) -> bool:
        """Return whether a layer of a mixture has no experts."""
        if experts.dense and i < self._size(experts.dense, 0):
            return True
        listed, step = self.config.get("mlp_only_layers"), self._size("decoder_sparse_step", 1)
        return (isinstance(listed, list) and i in listed) or (i + 1) % max(step, 1) != 0

    def _feed_forward(self, width: int) -> int:
        d_feat, n_in = self.anatomy.d_feat, 2 if self.spec.gated else 1
        biases = n_in * width + d_feat if self._is_on(self.spec.mlp_bias) else 0
        return (n_in + 1) * d_feat * width + biases

    def _rest_of_model(self) -> Iterator[tuple[str, int]]:
        """Yield the sizes of what belongs to no layer."""
        spec, d_feat, n_token = self.spec, self.anatomy.d_feat, self._size("vocab_size")
        yield parts.EMBEDDING, n_token * d_feat
        if spec.positions:
            yield parts.EMBEDDING, self._size(spec.positions) * d_feat
        yield parts.OTHER, spec.norm_size * d_feat
        if not self.config.get("tie_word_embeddings", spec.tied):
            yield parts.OUTPUT, n_token * d_feat + (n_token if spec.output_bias else 0)
