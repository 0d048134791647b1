"""Which part of a model a tensor belongs to, by its name: attention's matrices, embeddings, experts, …

This reads names of any family: words that transformers, llama.cpp and the authors of models use. It
decides what is counted where; `checkpoints.layouts` decides which numbers a head's matrices are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any, NamedTuple

Q, K, V, O = "W_Q", "W_K", "W_V", "W_O"  # noqa: E741
FUSED, SHARED = "W_QKV", "W_KV"
LATENTS, INDEXER, NORMS, BIASES, GATES = "latents", "indexer", "norms", "biases", "gates"
OTHER = "other"
ATTENTION = (Q, K, V, O, FUSED, SHARED, LATENTS, INDEXER, NORMS, BIASES, GATES, OTHER)
"""The parts of attention."""

EMBEDDING, OUTPUT, EXPERTS, RECURRENCE = "embedding", "output", "experts", "recurrence"
TOWERS, DRAFT = "towers", "draft layers"
REST = (EMBEDDING, OUTPUT, EXPERTS, RECURRENCE, TOWERS, DRAFT, OTHER)
"""The parts of the rest: `towers` encode images or sound, `draft layers` predict several tokens."""

NAMES_OF_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
NAMES_OF_CHOSEN = ("num_experts_per_tok", "moe_topk", "moe_k", "top_k_experts", "num_experts_per_token")


class Size(NamedTuple):
    """Parameters, and the bytes that store them; None: not known."""

    n_parameter: int
    n_bytes: int | None

    def plus(self, other: Size) -> Size:
        """Return the size of both together."""
        unknown = self.n_bytes is None or other.n_bytes is None
        n_bytes = None if unknown else (self.n_bytes or 0) + (other.n_bytes or 0)
        return Size(self.n_parameter + other.n_parameter, n_bytes)


NOTHING = Size(0, 0)


def active_parameters(
    attention: Mapping[str, Size], others: Mapping[str, Size], config: dict[str, Any]
) -> int | None:
    """Return the number of parameters that one token of text is computed with; None: not known.

    Args:
        others: those of the other parts. Without an output, the embedding is the output, too.
    """
    idle = {TOWERS, DRAFT, EXPERTS}
    rest = {part: size.n_parameter for part, size in others.items()}
    if rest.get(OUTPUT):
        idle.add(EMBEDDING)
    active = sum(size.n_parameter for size in attention.values())
    active += sum(size for part, size in rest.items() if part not in idle)
    if not rest.get(EXPERTS):
        return active
    n_expert = next((config[name] for name in NAMES_OF_EXPERTS if type(config.get(name)) is int), 0)
    chosen = next((config[name] for name in NAMES_OF_CHOSEN if type(config.get(name)) is int), 0)
    if not 0 < chosen <= n_expert:
        return None
    return active + rest[EXPERTS] * chosen // n_expert


class ModelPart(NamedTuple):
    """What a tensor is a part of."""

    in_attention: bool
    part: str  #: one of `ATTENTION` or of `REST`
    #: The attention module, such as `model.layers.0.self_attn`; empty outside of attention.
    module: str = ""
    layer: int | None = None  #: the number of its layer; None if it belongs to none


def place_of(name: str, n_layer: int | None = None) -> ModelPart:
    """Find what a tensor is a part of, by its name.

    >>> place_of("model.layers.3.self_attn.q_proj.weight")
    ModelPart(in_attention=True, part='W_Q', module='model.layers.3.self_attn', layer=3)
    >>> place_of("blk.3.ffn_gate_exps.weight").part
    'experts'

    Args:
        n_layer: the number of layers by the configuration; those after them are draft layers.
    """
    number = _NUMBER.search(name)
    layer = int(number[0][:9]) if number else None
    place = _place_of_form(_NUMBER.sub("0", name))
    if place.part == TOWERS:
        return place._replace(layer=layer)
    if n_layer is not None and layer is not None and layer >= n_layer > 0:
        return ModelPart(False, DRAFT, layer=layer)
    if not place.module:
        return ModelPart(place.in_attention, place.part, "", layer)
    n_word = place.module.count(".") + 1  # as many as in the form
    return ModelPart(place.in_attention, place.part, ".".join(name.split(".", n_word)[:n_word]), layer)


_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
"""A word of a name that is a number."""


@lru_cache(maxsize=2**14)
def _place_of_form(name: str) -> ModelPart:
    """Return the place of all tensors whose names differ only in their numbers.

    Args:
        name: a name in which all numbers are 0: checkpoints have 100,000 names, but few forms of them.
    """
    words = name.split(".")
    numbered = [i for i, word in enumerate(words) if word.isdecimal()]
    first = numbered[0] if numbered else len(words)
    layer = 0 if numbered else None
    if any(_is_tower(word) for word in words[:first]):
        return ModelPart(False, TOWERS)
    if re.search(_DRAFT, name):
        return ModelPart(False, DRAFT)
    if words[0] in ("blk", "dec", "enc") and numbered:
        return _of_gguf(words)
    for i in range(len(words) - 1, -1, -1):
        if _is_attention(words[i]) and i + 1 < len(words):
            first = next((j for j in range(i + 1) if _is_attention(words[j])), i)
            inner = [word for word in words[first + 1 :] if not word.isdecimal()]
            return ModelPart(True, _part(tuple(inner)), ".".join(words[: first + 1]))
    if _is_bare_attention(words):
        return ModelPart(True, _part((words[-2], words[-1])), ".".join(words[:-2]))
    return ModelPart(False, _rest(name, layer))


_DRAFT = r"(^|\.)(mtp\w*|nextn\w*|eagle\w*|medusa\w*)\."
"""Modules of layers that predict further tokens: DeepSeek-V3's, EAGLE's, Medusa's."""


_TOWERS = r"vision|visual|image|img|sam_model|qformer|audio|speech(?!t5)"
"""Words in the names of modules that encode images or sound; SpeechT5 is a whole model."""


@cache
def _is_tower(word: str) -> bool:
    """Check whether a module encodes images or sound."""
    return re.search(_TOWERS, word) is not None


_MODULE = (
    r"(\w+_)?(self|cross|encdec|localself|transientglobalself)?(attn|attention|att)s?(_block|_layer)?"
)
"""The names of attention's modules: self_attn, SelfAttention, crossattention, linear_attn, …"""
_NO_MODULE = r"norm|(^|_)ln|residual|gate|hc_|sconv"
"""Words in names of modules beside attention: post_attention_layernorm, attn_norm, hc_attn, …"""


@cache
def _is_attention(word: str) -> bool:
    return re.fullmatch(_MODULE, word, re.I) is not None and re.search(_NO_MODULE, word, re.I) is None


def _is_bare_attention(words: list[str]) -> bool:
    """Check whether a tensor is one of attention's matrices, in a module with another name.

    Nemotron-H's layers are all called `mixer`, RecurrentGemma's `temporal_block`, XLM's
    `attentions.0.q_lin`, LFM2's operators `self_attn`.
    """
    if len(words) < 3:
        return False
    module = next((word for word in reversed(words[:-2]) if not word.isdecimal()), "")
    if module not in ("mixer", "temporal_block", "attentions"):
        return False
    return re.fullmatch(_PARTS[Q], words[-2], re.I) is not None or words[-2] in _OF_MIXERS


_OF_MIXERS = ("k_proj", "v_proj", "o_proj", "k_lin", "v_lin", "out_lin")

_PARTS = {
    INDEXER: r"indexer|compressor",
    NORMS: r"\w*norm\w*|ln|ln_\w+|\w*_ln|q_l2_clip",
    LATENTS: r"(w?q|w?kv|w?o|c_kv|f|g)_(a|b|du|ud|dv|down|up|lora)(_\w+)?|(q|kv|w?k|w?v)_(down|up)_proj",
    FUSED: r"w?g?qkvz?(_proj|_w)?|w_?pack|query_key_value|c_attn|in_proj_qkvz?|in_proj(_weight)?",
    SHARED: r"w?kv(_proj)?|to_kv|key_value(_proj)?|kv_linear",
    GATES: r"\w*gate\w*|g_proj|in_proj_z",
    Q: r"w?q|to_q|(project_)?q|q_(proj|lin|linear)|quer(y|ies)(_\w+)?|wq_\w+|query_proj",
    K: r"w?k|to_k|project_k|k_(proj|lin|linear)|key(_global|_proj)?|wk_\w+",
    V: r"w?v|to_v|project_v|v_(proj|lin|linear)|value(_global|_proj)?|wv_\w+",
    O: r"w?o|to_out|(o|out|c)_proj|out_lin|(linear_|attention_)?out(put)?|dense|proj(ection)?",
}
"""The names of modules inside attention; the first form that matches decides."""
_BIAS = r"bias|\w+_bias|b_[qkvo]"


@cache
def _part(inner: tuple[str, ...]) -> str:
    """Return the part of attention that a tensor is.

    Args:
        inner: the words of its name after attention's module, without numbers: `("q_proj", "weight")`.
    """
    modules = [word for word in inner[:-1] if word not in _STORAGE] or [inner[-1]]
    for part in (INDEXER, NORMS):
        if any(re.fullmatch(_PARTS[part], word, re.I) for word in modules):
            return part
    if len(inner) > 1 and re.fullmatch(_BIAS, inner[-1]):
        return BIASES
    for part, form in _PARTS.items():
        if re.fullmatch(form, modules[-1], re.I):
            return part
    # A wrapper around a projection, such as `q_proj.linear` or `output.dense`
    for word in reversed(modules[:-1]):
        for part in (FUSED, Q, K, V, O):
            if re.fullmatch(_PARTS[part], word, re.I):
                return part
    return OTHER


_STORAGE = ("weight", "linear", "base_layer", "conv1d", "quant_state")
"""Words that only say how a matrix is wrapped or stored."""


def _rest(name: str, layer: int | None) -> str:
    """Return the part of the rest that a tensor is."""
    if re.search(r"(^|\.)experts\.|(^|\.)expert_\d|_exps\.", name):
        return EXPERTS
    if re.search(_RECURRENT, name):
        return RECURRENCE
    if layer is None and re.search(_OUTPUTS, name):
        return OUTPUT
    if layer is None and re.search(_EMBEDDINGS, name, re.I):
        return EMBEDDING
    return OTHER


_RECURRENT = (
    r"\.(mamba\w*|mixer|temporal_block|mlstm_layer|ssm\w*|rg_lru|time_mix\w*|shortconv|conv)[._]"
)
"""Modules of recurrences and convolutions: Mamba's, Griffin's, xLSTM's, RWKV's, LFM2's."""
_OUTPUTS = r"(^|\.)(lm_head|embed_out|unembed|output_projection|lm_loss|head|output)\."
_EMBEDDINGS = r"embed|(^|\.)(wte|wpe|shared|tok_embeddings|token_embd|position_embd|token_types|w)\."


def _of_gguf(words: list[str]) -> ModelPart:
    """Find what a tensor of a GGUF file's layer is: `gguf.constants.TENSOR_NAMES` lists all names."""
    module = ".".join(words[:-2])
    last = words[-1]
    word = words[-2] if len(words) > 3 else words[-1]
    if word.startswith("indexer") or "indexer" in words:
        return ModelPart(True, INDEXER, module)
    for names, part in _GGUF.items():
        if re.fullmatch(names, word):
            projection = part in (Q, K, V, O, FUSED)
            return ModelPart(True, BIASES if last == "bias" and projection else part, module)
    if "exps" in word and "shexp" not in word:
        return ModelPart(False, EXPERTS)
    recurrent = re.match("ssm_|time_mix_|shortconv", word)
    return ModelPart(False, RECURRENCE if recurrent else OTHER)


_GGUF = {
    r"(cross_)?attn_q": Q,
    r"(cross_)?attn_k": K,
    r"(cross_)?attn_v": V,
    r"(cross_)?attn_(o|out|output)": O,
    r"attn_qkv": FUSED,
    r"attn_(q_a|q_b|kv_a_mqa|kv_b|k_b|v_b)": LATENTS,
    r"attn_(q_norm|k_norm|q_a_norm|kv_a_norm|sub_norm)": NORMS,
    r"attn_gate": GATES,
    r"attn_(sinks|rel_b|rot_embd)": OTHER,
}
