"""Count the parameters of a model by its config.json, where there are no weights to read.

The table of families says what their layers consist of besides attention's matrices, whose sizes the
anatomy has. A test compares every family with transformers' own model on the meta device.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple, TypeVar

from attnscope.base.dtypes import DTYPES
from attnscope.base.errors import ModelError
from attnscope.base.text import printable, shortened
from attnscope.model.card import tensor_parts as parts
from attnscope.model.card.anatomy import LayerAnatomy, ModelAnatomy
from attnscope.model.card.quantisation import Quantisation
from attnscope.model.card.result import PartCount, WeightsCount
from attnscope.model.card.tensor_parts import NAMES_OF_EXPERTS, NOTHING, Size, active_parameters
from attnscope.model.families.family import DraftSpec, Spec
from attnscope.model.families.fields import Fields
from attnscope.model.families.table import family_of
from attnscope.model.files.config import text_part

Kind = TypeVar("Kind")


class TensorGroup(NamedTuple):
    """Tensors of a model that are alike."""

    part: str  #: one of `tensor_parts.ATTENTION` or of `tensor_parts.REST`
    name: str  #: of the module that has it; of experts, the name of one of them
    shape: tuple[int, ...]  #: of one: outputs and inputs of a matrix
    copies: int = 1


def count_parameters(
    config: dict[str, Any], anatomy: ModelAnatomy, quantisation: Quantisation | None = None
) -> WeightsCount:
    """Count the parameters of a model by its config.json.

    Args:
        quantisation: how weights are stored; None: as numbers of the dtype.
    """
    text = text_part(config)
    spec = family_of(anatomy.model_type).parameters
    why = None
    if spec is not None and text is not config:
        spec, why = None, "it has other parts beside the one for text"
    if spec is None or any(layer.kind not in ("full", "sliding", "latent") for layer in anatomy.layers):
        raise _unknown(anatomy.model_type, why)
    counter = _Counter(anatomy.model_type, spec, Fields(text).with_defaults(), anatomy)
    found = counter.count(quantisation)
    taken = [f"{name} {size:,}" for name, size in counter.read.items() if name not in text]
    if not taken:
        return found
    defaults = f"the weights are counted with defaults of {anatomy.model_type}: {', '.join(taken)}"
    return replace(found, uncertain=(*found.uncertain, defaults))


def count_draft(
    config: dict[str, Any],
    anatomy: ModelAnatomy,
    named: str | None,
    n_draft: int,
    quantisation: Quantisation | None = None,
) -> PartCount | None:
    """Count the parameters of draft layers; None: they are not known.

    Each has a layer like the last, a matrix that joins a hidden state and an embedding, norms, and
    perhaps copies of the embedding and the output.

    Args:
        named: the type that the file names, where it is read as another.
    """
    family = family_of(anatomy.model_type)
    own, spec = family_of(named).draft or family.draft, family.parameters
    if own is None or spec is None or text_part(config) is not config:
        return None
    fields = Fields(config).with_defaults()
    counter = _Counter(anatomy.model_type, spec, fields, anatomy)
    try:
        size = counter.draft(own, n_draft, quantisation)
    except ModelError:
        return None
    return PartCount(parts.DRAFT, *size)


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

    Attributes:
        read: the sizes that were read.
    """

    def __init__(
        self, model_type: str, spec: Spec, config: dict[str, Any], anatomy: ModelAnatomy
    ) -> None:
        self.model_type, self.spec, self.config, self.anatomy = model_type, spec, config, anatomy
        self.read: dict[str, int] = {}

    def count(self, quantisation: Quantisation | None = None) -> WeightsCount:
        """Return the sizes of all parts; `quantisation` as for `count_parameters`."""
        attention: dict[str, Size] = defaultdict(lambda: NOTHING)
        rest: dict[str, Size] = defaultdict(lambda: NOTHING)
        dtypes: dict[str, Size] = defaultdict(lambda: NOTHING)
        by_name = quantisation is not None
        tensors_of = ((attention, self._all_attention(by_name)), (rest, self._all_rest(by_name)))
        for sizes, tensors in tensors_of:
            for part, dtype, size in self._stored(tensors, quantisation):
                sizes[part] = sizes[part].plus(size)
                dtypes[dtype] = dtypes[dtype].plus(size)
        return WeightsCount(
            attention=_counts(attention, parts.ATTENTION),
            rest=_counts(rest, parts.REST),
            dtypes=_counts(dtypes, sorted(dtypes, key=lambda kind: -dtypes[kind].n_parameter)),
            source="configuration",
            n_active=active_parameters(attention, rest, self.config),
        )

    def draft(self, own: DraftSpec, n_draft: int, quantisation: Quantisation | None) -> Size:
        """Return the size of draft layers; `own` is what they have; others as for `count_draft`."""
        last, d_feat = len(self.anatomy.layers) - 1, self.anatomy.d_feat
        embedding = (self._size("vocab_size"), d_feat)
        tensors = [
            *(
                each._replace(name=f"self_attn.{each.name}")
                for each in self._attention(self.anatomy.layers[-1])
            ),
            *self._rest_of_layer(last),
            TensorGroup(parts.NORMS, "norms", (own.norms * d_feat,)),
            TensorGroup(parts.EMBEDDING, "embed_tokens", embedding, own.copies),
            TensorGroup(parts.EMBEDDING, "eh_proj", (d_feat, 2 * d_feat)),
        ]
        named = (each._replace(name=f"model.layers.{last + 1}.{each.name}") for each in tensors)
        total = NOTHING
        for _, _, size in self._stored(named, quantisation):
            total = total.plus(size)
        n_bytes = None if total.n_bytes is None else total.n_bytes * n_draft
        return Size(total.n_parameter * n_draft, n_bytes)

    def _stored(
        self, tensors: Iterable[TensorGroup], quantisation: Quantisation | None
    ) -> Iterator[tuple[str, str, Size]]:
        """Yield the part of each tensor, how it is stored, and its size."""
        dtype = self.anatomy.dtype or (quantisation.dtype if quantisation else None) or "unknown"
        itemsize = DTYPES[dtype].n_bytes if dtype in DTYPES else None
        for part, name, shape, copies in tensors:
            kind, n_bytes = None, prod(shape) * (itemsize or 0)
            if quantisation is not None:
                kind, n_bytes = quantisation.n_bytes(name, shape, part, itemsize or 0)
            unknown = itemsize is None and kind is None
            size = Size(prod(shape) * copies, None if unknown else n_bytes * copies)
            yield part, kind or dtype, size

    def _all_attention(self, by_name: bool) -> Iterator[TensorGroup]:
        for layer, numbers in _numbers_by_kind(self.anatomy.layers).items():
            own = [each._replace(name=f"self_attn.{each.name}") for each in self._attention(layer)]
            yield from _in_layers(numbers, own, by_name)

    def _all_rest(self, by_name: bool) -> Iterator[TensorGroup]:
        kinds = (self._is_dense(i) for i in range(len(self.anatomy.layers)))
        for numbers in _numbers_by_kind(kinds).values():
            yield from _in_layers(numbers, self._rest_of_layer(numbers[0]), by_name)
        yield from self._rest_of_model()

    def _size(self, name: str, default: int | None = None) -> int:
        value = self.config.get(name)
        if value is not None:
            self.read[name] = value
        value = default if value is None else value
        if type(value) is not int or value < 0:
            why = "it has no" if value is None else f"{printable(shortened(repr(value)))} is its"
            raise _unknown(self.model_type, f"{why} {name}")
        return value

    def _is_on(self, switch: bool | str) -> bool:
        return switch if isinstance(switch, bool) else bool(self.config.get(switch))

    def _attention(self, layer: LayerAnatomy) -> Iterator[TensorGroup]:
        """Yield the tensors of a layer's attention."""
        spec, d_feat = self.spec, self.anatomy.d_feat
        n_head, n_kv_head = layer.n_head or 0, layer.n_kv_head or 0
        d_K, d_V = layer.d_K or 0, layer.d_V or 0
        yield TensorGroup(parts.O, "o_proj", (d_feat, n_head * d_V))
        yield TensorGroup(parts.BIASES, "o_proj", (d_feat if self._is_on(spec.o_bias) else 0,))
        yield TensorGroup(parts.OTHER, "sinks", (n_head if spec.sinks else 0,))
        if layer.kind == "latent":
            yield from self._latents(n_head, d_K, d_V)
            return
        n_Q, n_K, n_V = n_head * d_K, n_kv_head * d_K, n_kv_head * d_V
        yield TensorGroup(parts.Q, "q_proj", (n_Q, d_feat))
        yield TensorGroup(parts.K, "k_proj", (n_K, d_feat))
        yield TensorGroup(parts.V, "v_proj", (n_V, d_feat))
        yield TensorGroup(
            parts.BIASES, "q_proj", (n_Q + n_K + n_V if self._is_on(spec.qkv_bias) else 0,)
        )
        widths = {"": 0, "head": 2 * d_K, "all": n_Q + n_K}
        is_normed = not spec.normed or self._is_on(spec.normed)
        yield TensorGroup(parts.NORMS, "q_norm", (widths[spec.head_norms] if is_normed else 0,))

    def _latents(self, n_head: int, d_K: int, d_V: int) -> Iterator[TensorGroup]:
        """Yield the tensors of latent attention: DeepSeek-V2 (arXiv:2405.04434), section 2.1.2."""
        d_feat, rank = self.anatomy.d_feat, self._size("kv_lora_rank")
        rotated = self._size("qk_rope_head_dim")
        has_bias = self._is_on("attention_bias")
        if self.config.get("q_lora_rank") is None:
            yield TensorGroup(parts.Q, "q_proj", (n_head * d_K, d_feat))
        else:
            rank_Q = self._size("q_lora_rank")
            yield TensorGroup(parts.LATENTS, "q_a_proj", (rank_Q, d_feat))
            yield TensorGroup(parts.LATENTS, "q_b_proj", (n_head * d_K, rank_Q))
            yield TensorGroup(parts.NORMS, "q_a_layernorm", (rank_Q,))
            yield TensorGroup(parts.BIASES, "q_a_proj", (rank_Q if has_bias else 0,))
        yield TensorGroup(parts.LATENTS, "kv_a_proj_with_mqa", (rank + rotated, d_feat))
        yield TensorGroup(parts.LATENTS, "kv_b_proj", (n_head * (d_K - rotated + d_V), rank))
        yield TensorGroup(parts.NORMS, "kv_a_layernorm", (rank,))
        yield TensorGroup(parts.BIASES, "kv_a_proj_with_mqa", (rank + rotated if has_bias else 0,))

    def _rest_of_layer(self, i: int) -> Iterator[TensorGroup]:
        """Yield the tensors that a layer has besides attention."""
        spec, d_feat, experts = self.spec, self.anatomy.d_feat, self.spec.experts
        yield TensorGroup(parts.OTHER, "input_layernorm", (spec.norms * spec.norm_size * d_feat,))
        if experts is None or self._is_dense(i):
            width = self._size(spec.width, 4 * d_feat if spec.four else None)
            yield from self._feed_forward("mlp", width)
            return
        names = (name for name in NAMES_OF_EXPERTS if self.config.get(name) is not None)
        count, width = self._size(next(names, "number of experts")), self._size(experts.width)
        for name in ("gate_proj", "up_proj"):
            yield TensorGroup(parts.EXPERTS, f"mlp.experts.0.{name}", (width, d_feat), count)
        yield TensorGroup(parts.EXPERTS, "mlp.experts.0.down_proj", (d_feat, width), count)
        biases = 2 * width + d_feat if experts.biases else 0
        yield TensorGroup(parts.EXPERTS, "mlp.experts.0.biases", (biases,), count)
        yield TensorGroup(parts.OTHER, "mlp.gate", (count, d_feat))
        yield TensorGroup(parts.OTHER, "mlp.gate", (count * experts.router,))
        if experts.shared:
            shared = self._size(experts.shared, 0)
            shared *= width if experts.shared.startswith("n_") else 1
            own = "mlp.shared_expert" + ("s" if experts.shared.startswith("n_") else "")
            yield from self._feed_forward(own, shared)
            yield TensorGroup(
                parts.OTHER, "mlp.shared_expert_gate", (1 if experts.shared_gate else 0, d_feat)
            )

    def _is_dense(self, i: int) -> bool:
        """Check whether a layer has no experts."""
        if (experts := self.spec.experts) is None:
            return True
        if experts.dense and i < self._size(experts.dense, 0):
            return True
        listed, step = self.config.get("mlp_only_layers"), self._size("decoder_sparse_step", 1)
        return (isinstance(listed, list) and i in listed) or (i + 1) % max(step, 1) != 0

    def _feed_forward(self, name: str, width: int) -> Iterator[TensorGroup]:
        d_feat, gated = self.anatomy.d_feat, self.spec.gated
        for each in ("gate_proj", "up_proj") if gated else ("up_proj",):
            yield TensorGroup(parts.OTHER, f"{name}.{each}", (width, d_feat))
        yield TensorGroup(parts.OTHER, f"{name}.down_proj", (d_feat, width))
        biases = (2 if gated else 1) * width + d_feat if self._is_on(self.spec.mlp_bias) else 0
        yield TensorGroup(parts.OTHER, f"{name}.down_proj", (biases,))

    def _rest_of_model(self) -> Iterator[TensorGroup]:
        """Yield the tensors that belong to no layer."""
        spec, d_feat, n_token = self.spec, self.anatomy.d_feat, self._size("vocab_size")
        yield TensorGroup(parts.EMBEDDING, "model.embed_tokens", (n_token, d_feat))
        if spec.positions:
            yield TensorGroup(parts.EMBEDDING, "model.positions", (self._size(spec.positions), d_feat))
        yield TensorGroup(parts.OTHER, "model.norm", (spec.norm_size * d_feat,))
        if not self.config.get("tie_word_embeddings", spec.tied):
            yield TensorGroup(parts.OUTPUT, "lm_head", (n_token, d_feat))


def _numbers_by_kind(kinds: Iterable[Kind]) -> dict[Kind, list[int]]:
    """Collect the numbers of the layers of each kind."""
    found: dict[Kind, list[int]] = {}
    for i, kind in enumerate(kinds):
        found.setdefault(kind, []).append(i)
    return found


def _in_layers(
    numbers: list[int], tensors: Iterable[TensorGroup], by_name: bool
) -> Iterator[TensorGroup]:
    """Yield the tensors of equal layers: together, or one by one, by the names that they have there."""
    for each in tensors:
        if by_name:
            yield from (each._replace(name=f"model.layers.{i}.{each.name}") for i in numbers)
        else:
            yield each._replace(copies=each.copies * len(numbers))


def _counts(sizes: dict[str, Size], order: Iterable[str]) -> tuple[PartCount, ...]:
    return tuple(
        PartCount(part, *sizes[part]) for part in order if part in sizes and sizes[part].n_parameter
    )
