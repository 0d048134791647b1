"""The names and layouts of attention matrices in each model family.

To add a family, add a row to `LAYOUTS`, and its sizes to `tests/model/run/families.py`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from attnscope.base.errors import ModelError
from attnscope.base.spelling import spelled
from attnscope.model.families.table import family_of
from attnscope.model.files.config import layer_kinds
from attnscope.model.files.indices import enumerated

PARTS = ("Q", "K", "V", "O")


class Packing(Enum):
    """The order of the heads' queries, keys and values along the output axis of the matrices.

    A slot is d_head wide. The examples have 4 query heads and 2 key/value heads:
    """

    APART = "three matrices: q0 q1 q2 q3 · k0 k1 · v0 v1"
    GATED = (
        "three matrices, each query head followed by its gate: q0 g0 q1 g1 q2 g2 q3 g3 · k0 k1 · v0 v1"
    )
    STACKED = "one matrix, first all queries, then keys, then values: q0 q1 q2 q3 k0 k1 v0 v1"
    LATENT = (
        "latent attention: q0 r0 q1 r1 … (r is rotated) from one latent · k0 v0 k1 v1 … from another"
    )
    GROUPED = "one matrix, grouped by key head: q0 q1 k0 v0 q2 q3 k1 v1"

    @property
    def fused(self) -> bool:
        """Whether Q, K and V are one matrix."""
        return self in (Packing.STACKED, Packing.GROUPED)

    def slots(self, part: str, n_head: int, n_kv_head: int) -> int:
        """Return the number of slots in the matrix that contains a part."""
        if part == "O":
            return n_head
        if self.fused:
            return n_head + 2 * n_kv_head
        if part == "Q":
            return 2 * n_head if self is Packing.GATED else n_head
        return n_kv_head

    def slot(self, part: str, head: int, n_head: int, n_kv_head: int) -> int:
        """Return the slot of a head's part, counted from 0.

        Args:
            part: one of `PARTS`; the slots of W_O lie along its input.
            head: a query head; it reads the key/value head `head // (n_head // n_kv_head)`.
        """
        group = n_head // n_kv_head
        kv_head, place = divmod(head, group)
        if part == "O":
            return head
        if self is Packing.GROUPED:
            return kv_head * (group + 2) + {"Q": place, "K": group, "V": group + 1}[part]
        if self is Packing.STACKED:
            return {"Q": head, "K": n_head + kv_head, "V": n_head + n_kv_head + kv_head}[part]
        if part == "Q":
            return 2 * head if self is Packing.GATED else head
        return kv_head


@dataclass(frozen=True)
class Layout:
    """The names of the modules in a family's attention layers, and the order of the heads in them.

    A tensor's name is, for example, `bert.encoder.` `layer.` `3` `.attention.` `self.query` `.weight`:
    the checkpoint's own prefix; `layers`; the number; `attention`; a module; `weight` or `bias`.
    """

    family: str
    layers: str  #: the part of the name before a layer's number
    attention: str  #: the part after it, up to the projections
    #: Those of W_Q, W_K, W_V and W_O, separated by spaces; if fused, the one of W_QKV and W_O.
    modules: str
    packing: Packing = Packing.APART  #: the order of the heads in them
    #: Weights are stored as `in out` (GPT-2's Conv1D), not as `out in` (a Linear).
    transposed: bool = False
    cross: bool = False  #: keys and values come from another stack
    shared: bool = False  #: several layers share weights; the number is that of their group (ALBERT)
    values_apart: bool = False  #: the input of W_V has a width of its own (MobileBERT)
    #: Whether it is only for the model types whose `Family.layout` names it, because other families use
    #: the same names with another meaning; such a row comes before theirs.
    reserved: bool = False

    def path(self, part: str) -> str:
        """Return the path from a layer's number to a part's module."""
        *inputs, output = self.modules.split()
        return self.attention + (output if part == "O" else inputs[PARTS.index(part) % len(inputs)])

    def suits(self, model_types: set[Any]) -> bool:
        """Check whether the row applies to a model with these `model_type`s in its config.json."""
        return not self.reserved or any(family_of(each).layout == self.family for each in model_types)


GATED, STACKED, GROUPED, LATENT = Packing.GATED, Packing.STACKED, Packing.GROUPED, Packing.LATENT

_BERT = "self.query self.key self.value output.dense"
_ALBERT = "query key value dense"
_DEBERTA = "self.query_proj self.key_proj self.value_proj output.dense"
_VIT = "attention.query attention.key attention.value output.dense"
_PROJ_O = "q_proj k_proj v_proj o_proj"
_PROJ_OUT = "q_proj k_proj v_proj out_proj"
_LATENT = "kv_b_proj kv_b_proj o_proj"
_LIN = "q_lin k_lin v_lin out_lin"

LAYOUTS = (
    Layout(
        "BERT: MobileBERT", "layer.", ".attention.", _BERT,
        values_apart=True, reserved=True,
    ),
    Layout("BERT, RoBERTa, ELECTRA, XLM-R, CamemBERT, ERNIE, RemBERT", "layer.", ".attention.", _BERT),
    Layout("BERT: in AltCLIP, as transformers 5 names it", "layers.", ".attention.", _BERT),
    Layout("BERT: cross", "layer.", ".crossattention.", _BERT, cross=True),
    Layout("ALBERT", "albert_layer_groups.", ".albert_layers.0.attention.", _ALBERT, shared=True),
    Layout("DistilBERT", "layer.", ".attention.", _LIN),
    Layout("XLM", "attentions.", ".", _LIN),
    Layout("MPNet", "layer.", ".attention.attn.", "q k v o"),
    Layout("DeBERTa-v2", "layer.", ".attention.", _DEBERTA),
    Layout("ModernBERT", "layers.", ".attn.", "Wqkv Wo", STACKED),
    Layout("GPT-BigCode", "h.", ".attn.", "c_attn c_proj", GROUPED, reserved=True),
    Layout("GPT-2", "h.", ".attn.", "c_attn c_proj", STACKED, transposed=True),
    Layout("GPT-J", "h.", ".attn.", _PROJ_OUT),
    Layout("GPT-Neo", "h.", ".attn.attention.", _PROJ_OUT),
    Layout("GPT-NeoX, Pythia", "layers.", ".attention.", "query_key_value dense", GROUPED),
    Layout("Bloom, Falcon", "h.", ".self_attention.", "query_key_value dense", GROUPED),
    Layout("MPT", "blocks.", ".attn.", "Wqkv out_proj", STACKED),
    Layout(
        "Qwen3-Next, Qwen3.5", "layers.", ".self_attn.", _PROJ_O, GATED,
        reserved=True,
    ),
    Layout("DeepSeek-V2 and V3, MiniCPM3", "layers.", ".self_attn.", f"q_b_proj {_LATENT}", LATENT),
    Layout("Kimi Linear, DeepSeek-V2-Lite", "layers.", ".self_attn.", f"q_proj {_LATENT}", LATENT),
    Layout(
        "NeoMME", "layers.", ".self_attn.", "q_proj k_proj v_proj output_projection.o_proj",
        reserved=True,
    ),
    Layout("Llama, Mistral, Qwen, Gemma, OLMo, gpt-oss, StableLM", "layers.", ".self_attn.", _PROJ_O),
    Layout("Phi, Phi-2", "layers.", ".self_attn.", "q_proj k_proj v_proj dense"),
    Layout("Phi-3", "layers.", ".self_attn.", "qkv_proj o_proj", STACKED),
    Layout("Persimmon", "layers.", ".self_attn.", "query_key_value dense", GROUPED),
    Layout("BART, Whisper, Marian, OPT, CLIP, SigLIP, LFM2", "layers.", ".self_attn.", _PROJ_OUT),
    Layout("CLIP: in AltCLIP, as transformers 5 saves it", "layer.", ".self_attn.", _PROJ_OUT),
    Layout("BART, Whisper, Marian: cross", "layers.", ".encoder_attn.", _PROJ_OUT, cross=True),
    Layout("T5", "block.", ".layer.0.SelfAttention.", "q k v o"),
    Layout("T5: cross", "block.", ".layer.1.EncDecAttention.", "q k v o", cross=True),
    Layout("ViT, DeiT, BEiT, DINOv2", "layer.", ".attention.", _VIT),
    Layout("ViT: as transformers 5 names it", "layers.", ".attention.", _PROJ_O),
    Layout("DINOv3", "layer.", ".attention.", _PROJ_O),
    Layout("BLIP", "layers.", ".self_attn.", "qkv projection", STACKED),
    Layout("Wav2Vec2, HuBERT", "layers.", ".attention.", _PROJ_OUT),
)  # fmt: skip
"""One row for each naming scheme. If several rows match a matrix, the first one takes it."""

GGUF = (
    Layout("GGUF", "blk.", ".attn_", "q k v output"),
    Layout("GGUF: one matrix", "blk.", ".attn_", "qkv output", STACKED),
)
"""The names in GGUF files: `gguf.constants.TENSOR_NAMES` of llama.cpp."""


STACKS = ("self", "text", "encoder", "decoder", "cross", "vision", "audio")
"""The names of stacks; the first one that a model has is the default."""

WORDS = {
    "vision": ("vision", "visual", "image"),
    "audio": ("audio", "speech"),
    "text": ("text", "language"),
    "encoder": ("encoder",),
    "decoder": ("decoder",),
}
"""Words in the names of modules that contain a stack, in the order in which they are searched for."""


@dataclass(frozen=True)
class Stack:
    """A stack of attention layers in one checkpoint."""

    #: `self` if there is one stack of self-attention, else one of `STACKS`; or the prefix of its layers,
    #: if that name is taken.
    name: str
    layout: Layout
    prefix: str  #: the part of tensors' names before a layer's number, such as `bert.encoder.layer.`
    n_layer: int  #: the number of layers, with or without attention
    #: For each layer with attention, the number in its tensors' names. Layers that share weights have
    #: the same number.
    numbers: dict[int, int]
    #: The kinds of the other layers, if known: `linear attention`, `conv`.
    others: dict[int, str] = field(default_factory=dict)

    @property
    def tower(self) -> str:
        """The part of the model that its modules' names indicate: `text`, `vision`; `self`: none."""
        return _name(self.prefix, self.layout)

    def prefix_of(self, layer: int) -> str:
        """Return the common prefix of the names in a layer's attention."""
        return f"{self.prefix}{self.numbers[layer]}{self.layout.attention}"

    def place(self, layer: int) -> str:
        """Return the same as the name of a module."""
        return self.prefix_of(layer).rstrip(".")

    def module(self, part: str, layer: int) -> str:
        """Return the name of the module that contains a part: W_Q, W_K, W_V or W_O."""
        return f"{self.prefix}{self.numbers[layer]}{self.layout.path(part)}"

    def tensor(self, part: str, layer: int, kind: str) -> str:
        """Return the name of a module's `weight` or `bias`."""
        return f"{self.module(part, layer)}.{kind}"


def check_attends(model_type: Any, model: str) -> None:
    """Raise a ModelError if a model of this type has no attention.

    Args:
        model_type: from its config.json, of the whole model: a part may have none.
    """
    if not family_of(model_type).attends:
        raise ModelError(
            f"{model} ({model_type}) has no attention: none of its layers has queries, keys and a"
            " softmax.",
            hint="a model with attention",
        )


def find_stacks(names: Iterable[str], config: dict[str, Any], model: str) -> list[Stack]:
    """Identify a checkpoint's stacks of attention layers by the names of its tensors.

    Returns:
        At least one stack; the first is the default.
    """
    names = list(names)
    kinds = model_types(config)
    for kind in kinds:
        if why := family_of(kind).no_heads:
            raise ModelError(f"{model} ({kind}) {why}.", hint=f"{spelled(text='…')}: its maps")
    check_attends(config.get("model_type"), model)
    suitable = [layout for layout in (*LAYOUTS, *GGUF) if layout.suits(kinds)]
    endings, extents = _numbered(names)
    # A layer whose W_O is missing is better than none: the error can then name the missing tensor.
    found = _find_places(suitable, endings, complete=True) or _find_places(
        suitable, endings, complete=False
    )
    if not found:
        families = dict.fromkeys(re.split("[,:]", layout.family)[0] for layout in LAYOUTS)
        raise ModelError(
            f"{model} has no attention weights that attnscope recognizes among its {len(names)}"
            " tensors.",
            hint=f"a checkpoint of {', '.join(families)}",
        )
    recurrent = {match[1] for name in names if (match := RECURRENT.match(name))}
    stacks = [_stack(*each, extents[each[1]], config, recurrent) for each in found]
    with_attention = [stack for stack in stacks if stack.numbers]
    if not with_attention:
        others = enumerated(dict.fromkeys(kind for stack in stacks for kind in stack.others.values()))
        raise ModelError(
            f"{model} has no softmax attention: its layers are {others}.", hint="a model with attention"
        )
    return _with_unique_names(with_attention)


def choose_stack(stacks: list[Stack], name: str | None, model: str) -> Stack:
    """Return the stack of that name; the first if the name is None."""
    for stack in stacks:
        if name in (None, stack.name):
            return stack
    known = [stack.name for stack in stacks]
    raise ModelError(
        f"there is no stack {name} in {model}: it has {enumerated(known)}.", hint=spelled(stack=known[0])
    )


def model_types(config: dict[str, Any]) -> set[Any]:
    """Return the `model_type`s in a config.json, of the model and of its parts."""
    parts = [config, *(part for part in config.values() if isinstance(part, dict))]
    return {part["model_type"] for part in parts if isinstance(part.get("model_type"), str)}


Endings = dict[tuple[str, str], list[tuple[str, int]]]


LONGEST_NUMBER = 9
"""The most digits of a layer's number; longer words are not numbers of layers."""


def _numbered(names: list[str]) -> tuple[Endings, dict[str, int]]:
    """Split tensors' names at the numbers in them.

    Returns:
        - the word before a number, and everything after the number → pairs of prefix and number;
        - the prefix → one more than the largest number that follows it.
    """
    endings: Endings = defaultdict(list)
    extents: dict[str, int] = defaultdict(int)
    for name in names:
        words = name.split(".")
        for i, word in enumerate(words[1:], 1):
            if word.isdecimal() and len(word) <= LONGEST_NUMBER:
                prefix, number = ".".join(words[:i]) + ".", int(word)
                endings[words[i - 1] + ".", "." + ".".join(words[i + 1 :])].append((prefix, number))
                extents[prefix] = max(extents[prefix], number + 1)
    return endings, extents


Place = tuple[Layout, str, tuple[int, ...]]


def _find_places(layouts: list[Layout], endings: Endings, *, complete: bool) -> list[Place]:
    """Find every W_Q (with its W_O, if `complete`): its layout, the prefix, and the layers' numbers."""
    found: list[Place] = []
    taken: set[tuple[str, int]] = set()
    for layout in layouts:
        outputs = set(endings.get((layout.layers, f"{layout.path('O')}.weight"), []))
        latent = set(endings.get((layout.layers, f"{layout.path('K')}.weight"), []))
        places: dict[str, list[int]] = defaultdict(list)
        for prefix, number in endings.get((layout.layers, f"{layout.path('Q')}.weight"), []):
            matrix = prefix + layout.path("Q"), number
            if layout.packing is LATENT and (prefix, number) not in latent:
                continue
            if matrix not in taken and (not complete or (prefix, number) in outputs):
                places[prefix].append(number)
                taken.add(matrix)
        found += [(layout, prefix, tuple(sorted(numbers))) for prefix, numbers in places.items()]
    return found


RECURRENT = re.compile(r"(.*)\.(?:A_log|dt_bias|conv1d|[qkv]_conv1d|forget_gate|slope_rate)(?:\.|$)")
"""Names of tensors that only a recurrence has: a decay, its step, a convolution before it. What precedes
them is the module that computes it, whatever the names of its projections."""


NO_SOFTMAX = re.compile(r"linear|mamba|conv|recurrent|lightning|kda|delta|ssm|rwkv|mlp|moe")
"""Words that configurations use for layers without softmax attention."""


def _stack(
    layout: Layout,
    prefix: str,
    numbers: tuple[int, ...],
    extent: int,
    config: dict[str, Any],
    recurrent: set[str],
) -> Stack:
    """Return the stack whose tensors have this layout, prefix and numbers.

    Args:
        extent: one more than the largest number with this prefix.
        recurrent: the modules that compute a recurrence.
    """
    name = _name(prefix, layout)
    kinds = layer_kinds(config, name) if name in ("self", "text") else {}
    others = {n: kind.replace("_", " ") for n, kind in kinds.items() if NO_SOFTMAX.search(kind)}
    module = layout.attention.rstrip(".")
    others |= {
        n: "linear attention"
        for n in range(extent)
        if f"{prefix}{n}{module}" in recurrent and n not in others
    }
    layers = {number: number for number in numbers if number not in others}
    if layout.shared:
        # Lan et al. 2020, "ALBERT"; transformers runs group int(i / (n_layer / n_group)) as layer i.
        configured = config.get("num_hidden_layers")
        n_layer = configured if type(configured) is int and configured > extent else extent
        extent, layers = n_layer, {layer: layer * extent // n_layer for layer in range(n_layer)}
    return Stack(name, layout, prefix, extent, layers, others)


def _name(prefix: str, layout: Layout) -> str:
    """Return the stack's name according to its prefix: the first module with a known word decides."""
    if layout.cross:
        return "cross"
    for module in prefix.split("."):
        for name, words in WORDS.items():
            if any(word in module for word in words):
                return name
    return "self"


def _with_unique_names(stacks: list[Stack]) -> list[Stack]:
    """Return the stacks in the order of `STACKS`, each with a name of its own."""
    self_attention = [stack for stack in stacks if not stack.layout.cross]
    towers = {stack.name for stack in self_attention} & {"vision", "audio"}
    named: dict[str, Stack] = {}
    for stack in sorted(stacks, key=lambda stack: -stack.n_layer):
        name = stack.name
        if stack in self_attention:
            name = "self" if len(self_attention) == 1 else "text" if name == "self" and towers else name
        if name in named:
            name = stack.prefix.rstrip(".")
        named[name] = replace(stack, name=name)
    place = {name: i for i, name in enumerate(STACKS)}
    return sorted(named.values(), key=lambda stack: place.get(stack.name, len(place)))
