"""Merge a LoRA adapter into a checkpoint's weights while they are read.

A module's weight W becomes W + s·B·A, with A `r d_in`, B `d_out r`, and s = α/r, or α/√r in
rank-stabilised LoRA. Only the rows or columns that are read are computed. Biases, and modules that were
trained as a whole, replace those of the checkpoint.

Sources: Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models", section 4.1; Kalajdzievski
2023, "A Rank Stabilization Scaling Factor for Fine-Tuning with LoRA"; the format is that of PEFT,
https://huggingface.co/docs/peft/developer_guides/checkpoint
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from attnscope.base.arrays import numbers
from attnscope.base.errors import ModelError
from attnscope.base.text import shortened
from attnscope.model.files.checkpoint import find_checkpoint
from attnscope.model.files.config import read_json
from attnscope.model.files.tensors import Weights, open_file

if TYPE_CHECKING:
    import numpy as np

FILES = ("adapter_model.safetensors", "adapter_model.bin")
WRAPPER = "base_model.model."
"""What precedes the names of modules in an adapter's tensors."""
FACTOR = re.compile(r"(.*)\.lora_([AB])(?:\.\w+)?\.(weight|bias)")

TABLE = re.compile(r"embed|\bwte\b|lm_head|\bshared\b")
"""The names of tables with a row for each word, which grow with a vocabulary."""

REFUSED = {
    "use_dora": "DoRA, which rescales the merged weight",
    "use_qalora": "QALoRA, which pools its input",
    "use_bdlora": "block-diagonal LoRA",
    "arrow_config": "Arrow, which chooses among adapters for each token",
    "kasa_config": "KaSA, which truncates the weight",
    "alora_invocation_tokens": "activated LoRA, which adapts only some tokens",
    "layer_replication": "replicated layers",
}
"""Settings of adapters whose effect is not a sum W + s·B·A for every token."""

BASE_CHANGED = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Ways to initialise an adapter that change the weights of the base, too."""


@dataclass
class Adapter:
    """A LoRA adapter."""

    name: str  #: the name that the user gave
    pairs: dict[str, dict[str, tuple[np.ndarray, str]]]  #: A and B of each module, by the module's name
    #: The tensors that replace those of the checkpoint, by name.
    others: dict[str, tuple[np.ndarray, str]]
    scales: dict[str, float]  #: s of each module
    transposed: bool  #: whether weights are `d_in d_out`, according to its settings (GPT-2's Conv1D)


def read_adapter(folder: str | Path) -> Adapter:
    """Read an adapter as PEFT saves it.

    Args:
        folder: a folder with `adapter_config.json` and `adapter_model.safetensors`, or a hub name.
    """
    checkpoint = find_checkpoint(folder)
    path, weights_path = checkpoint.file("adapter_config.json"), checkpoint.first_file(*FILES)
    if path is None or weights_path is None:
        missing = "adapter_config.json" if path is None else FILES[0]
        raise ModelError(
            f"{checkpoint.name} has no {missing}, so it is not an adapter.",
            hint="a folder in which PEFT has saved a LoRA adapter",
        )
    config = read_json(path)
    _check_kind(config, checkpoint.name)
    weights = open_file(weights_path)
    pairs: dict[str, dict[str, tuple[np.ndarray, str]]] = {}
    others = {}
    for tensor in weights.names:
        if "lora_embedding_" in tensor:
            continue  # of an embedding, which is no weight of attention
        own = tensor.removeprefix(WRAPPER)
        if match := FACTOR.fullmatch(own):
            module, factor, kind = match.groups()
            key = factor if kind == "weight" else f"{factor}.bias"
            pairs.setdefault(module, {})[key] = weights.read(tensor)
        else:
            others[re.sub(r"\.(base_layer|modules_to_save(\.\w+)?)\.", ".", own)] = weights.read(tensor)
    for module, pair in pairs.items():
        _check_pair(module, pair, checkpoint.name)
    name = checkpoint.name
    scales = {
        module: _scale(config, module, pair["A"][0].shape[0], name) for module, pair in pairs.items()
    }
    return Adapter(name, pairs, others, scales, bool(config.get("fan_in_fan_out")))


def _check_kind(config: dict[str, Any], name: str) -> None:
    """Raise a ModelError if an adapter cannot be merged as W + s·B·A."""
    kind = config.get("peft_type")
    if kind != "LORA":
        raise ModelError(f"{name} is an adapter of the kind {kind}, not LoRA.", hint="a LoRA adapter")
    hint = "the model after merge_and_unload(), saved by save_pretrained"
    for setting, what in REFUSED.items():
        if config.get(setting):
            raise ModelError(
                f"{name} uses {what} ({setting}), which attnscope does not merge.", hint=hint
            )
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(BASE_CHANGED):
        raise ModelError(
            f"{name} was initialised by {start}, which changes the weights of the base model, too.",
            hint=hint,
        )


def _check_pair(module: str, pair: dict[str, tuple[np.ndarray, str]], name: str) -> None:
    """Raise a ModelError unless A, B and the bias of B, if there is one, fit together."""
    if "A" not in pair or "B" not in pair:
        lacks = "lora_A" if "A" not in pair else "lora_B"
        raise ModelError(f"{name} is damaged: {module} has no {lacks}.")
    (A, _), (B, _) = pair["A"], pair["B"]
    if A.ndim != 2 or B.ndim != 2 or A.shape[0] != B.shape[1] or not A.shape[0]:
        raise ModelError(
            f"{name} is damaged: lora_A of {module} has the shape {A.shape}, lora_B {B.shape}."
        )
    if "B.bias" in pair and (shape := pair["B.bias"][0].shape) != B.shape[:1]:
        raise ModelError(
            f"{name} is damaged: lora_B.bias of {module} has {'×'.join(map(str, shape))} numbers, and"
            f" lora_B {B.shape[0]} rows."
        )


def _scale(config: dict[str, Any], module: str, r: int, name: str) -> float:
    """Return s of a module: α/r or α/√r, where α may depend on its name."""
    alpha, patterns = config.get("lora_alpha", 8), config.get("alpha_pattern") or {}
    try:
        for pattern, own in patterns.items():
            if re.match(rf"(.*\.)?({pattern})$", module):
                alpha = own
                break
    except (AttributeError, re.error) as error:
        raise ModelError(
            f"{name} is damaged: its alpha_pattern is {shortened(repr(patterns))}."
        ) from error
    if not isinstance(alpha, int | float) or isinstance(alpha, bool):
        raise ModelError(f"{name} is damaged: its lora_alpha is {shortened(repr(alpha))}.")
    return float(alpha / (sqrt(r) if config.get("use_rslora") else r))


@dataclass
class AdaptedWeights(Weights):
    """The tensors of a checkpoint with an adapter merged into them.

    A weight is computed in float32, or in float64 where it is stored so, and is not rounded to a
    narrower dtype.
    """

    base: Weights
    adapter: Adapter
    #: Whether the checkpoint may store weights as `d_in d_out`, also if the adapter does not say so.
    turns: bool = True
    #: By the name of a tensor, the module of the adapter that changes it.
    modules: dict[str, str] = field(init=False)
    #: By the name of a tensor, the tensor of the adapter that replaces it.
    replaced: dict[str, str] = field(init=False)
    transposed: bool = field(init=False)  #: whether weights are stored as `d_in d_out`
    #: The modules of the adapter that the checkpoint does not have.
    unused: list[str] = field(init=False)

    def __post_init__(self) -> None:
        adapter, names = self.adapter, self.base.names
        self.modules = _matched(adapter.pairs, names, ".weight", adapter.name)
        biases = {module for module, pair in adapter.pairs.items() if "B.bias" in pair}
        self.modules |= _matched(biases, names, ".bias", adapter.name)
        self.replaced = _matched(adapter.others, names, "", adapter.name)
        if not self.modules and not self.replaced:
            module = next(iter([*adapter.pairs, *adapter.others]), "nothing")
            raise ModelError(
                f"{adapter.name} does not belong to this checkpoint: it adapts {module}, which the"
                " checkpoint does not have.",
                hint="the adapter's base model",
            )
        for name, own in self.replaced.items():
            self._check_shape(name, tuple(adapter.others[own][0].shape), f"that of {own}")
        found = {*self.modules.values(), *self.replaced.values()}
        self.unused = [each for each in [*adapter.pairs, *adapter.others] if each not in found]
        weights = [(name, module) for name, module in self.modules.items() if name.endswith(".weight")]
        turned = [self._is_stored_transposed(name, module) for name, module in weights]
        self.transposed = any(turned) or adapter.transposed

    @property
    def names(self) -> list[str]:
        return self.base.names

    def read(self, name: str) -> tuple[np.ndarray, str]:
        """Return a tensor; a merged weight is computed when its rows or columns are taken."""
        import numpy as np

        if name in self.replaced:
            return self.adapter.others[self.replaced[name]]
        stored, dtype = self.base.read(name)
        if name not in self.modules:
            return stored, dtype
        module = self.modules[name]
        pair, scale = self.adapter.pairs[module], self.adapter.scales[module]
        merged = "float64" if dtype == "float64" else "float32"
        if name.endswith(".bias"):
            bias = numbers(stored, dtype).astype(merged)
            return bias + _float32(pair["B.bias"]) * scale, merged
        A, B = _float32(pair["A"]), _float32(pair["B"])
        weight = MergedWeight(stored, dtype, np.dtype(merged), A, B, scale, self.transposed)
        return cast("np.ndarray", weight), merged

    def _is_stored_transposed(self, name: str, module: str) -> bool:
        """Check whether a weight's shape shows that it is stored as `d_in d_out`."""
        pair = self.adapter.pairs[module]
        shape = (pair["B"][0].shape[0], pair["A"][0].shape[1])
        stored = tuple(self.base.read(name)[0].shape)
        may_turn = self.adapter.transposed or self.turns
        self._check_shape(
            name, shape[::-1] if may_turn and stored == shape[::-1] else shape, f"B·A of {module}"
        )
        return stored != shape

    def _check_shape(self, name: str, shape: tuple[int, ...], what: str) -> None:
        """Raise a ModelError unless a tensor has the shape of what changes or replaces it.

        A table of words may have become longer.
        """
        stored = tuple(self.base.read(name)[0].shape)
        is_longer_table = TABLE.search(name) is not None and stored[1:] == shape[1:]
        if stored != shape and not is_longer_table:
            raise ModelError(
                f"{self.adapter.name} does not fit this checkpoint: {name} has the shape {stored},"
                f" but {what} has {shape}.",
                hint="the adapter's base model",
            )


@dataclass(frozen=True)
class MergedWeight:
    """A stored weight plus s·B·A, of which a range of rows or of columns can be taken."""

    #: `stored`, `dtype`: the weight as stored.
    stored: np.ndarray
    dtype: str
    merged: np.dtype  #: the numpy dtype of the sum
    #: `A`, `B`, `scale`: A `r d_in`, B `d_out r`, s.
    A: np.ndarray
    B: np.ndarray
    scale: float
    transposed: bool  #: whether the weight is stored as `d_in d_out`

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the stored weight."""
        return self.stored.shape

    @property
    def ndim(self) -> int:
        """The number of its axes."""
        return self.stored.ndim

    def __getitem__(self, index: slice | tuple[slice, slice]) -> np.ndarray:
        """Return a range of rows, or of rows and columns, merged."""
        rows, columns = index if isinstance(index, tuple) else (index, slice(None))
        stored = numbers(self.stored[rows, columns], self.dtype).astype(self.merged)
        if self.transposed:
            rows, columns = columns, rows
        change = (self.B[rows] @ self.A[:, columns]) * self.scale
        return stored + (change.T if self.transposed else change)


def _float32(tensor: tuple[np.ndarray, str]) -> np.ndarray:
    """Convert a factor to float32, as PEFT does; float64 stays."""
    import numpy as np

    values = numbers(*tensor)
    return values if values.dtype == np.float64 else values.astype(np.float32)


def _matched(modules: Iterable[str], names: list[str], suffix: str, adapter: str) -> dict[str, str]:
    """Match names of an adapter with tensors of a checkpoint, whose names may have another prefix.

    Args:
        suffix: what follows a name of the adapter in that of a tensor.

    Returns:
        The adapter's names by the tensors' names; names without a counterpart are left out.
    """
    known = set(names)
    matched: dict[str, str] = {}
    for module in modules:
        tensor = module + suffix
        found = [tensor] if tensor in known else []
        if not found:
            words = tensor.split(".")
            shorter = (".".join(words[i:]) for i in range(1, len(words) - 1))
            found = next(([each] for each in shorter if each in known), [])
        if not found:
            found = [name for name in names if name.endswith(f".{tensor}")]
        if len(found) > 1:
            raise ModelError(f"{adapter} adapts {module}, but the checkpoint has {' and '.join(found)}.")
        matched |= dict.fromkeys(found, module)
    return matched
