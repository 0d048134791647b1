"""The weights of one attention head of a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import no_such_part
from attnscope.base.text import shortened
from attnscope.base.units import few, listed, number_text, shape_text
from attnscope.document.result import Check, Part, Stats, TensorResult, held_of, named, of_room

if TYPE_CHECKING:
    from attnscope.document.columns import Column
    from attnscope.document.tensor_file import Tensors


@dataclass(repr=False)
class WeightSlice(Part):
    """One head's slice of a weight matrix or bias in a checkpoint.

    Attributes:
        name: `W_Q`, `W_K`, `W_V`, `W_O`, or `b_Q` … `b_O`; for latent attention, the names of its paper.
        tensor: the tensor's name in the checkpoint.
        stored_shape: the whole tensor's shape, as stored; `shape` in records.
        axis: the axis that is sliced, or None if all heads share the whole tensor.
        start, stop: the head's range along that axis, `start` ≤ i < `stop`.
        head_shape: the shape of the head's slice.
        dtype: of `array`; as stored, unless it is quantised.
        stats: statistics of the values in the head's slice.
        transposed: whether the file stores a weight as `in out`, as GPT-2's Conv1D does: `stored_shape`,
            `axis`, `start` and `stop` are the file's, `head_shape` and `array` are those of `out in`.
        array: the head's slice (numpy; bfloat16 as its 16 raw bits).
        shared: whether it is the same for all heads.
        dims: the names of the axes of `array`, such as `d_head d_feat`.
        quantised: ggml's type of the tensor in a GGUF file, such as `Q4_K`, from which `array` was
            dequantised; None: it was not quantised.
        reordered: whether a GGUF file has the head's rows in llama.cpp's order; `array` has them in
            that of transformers.
    """

    name: str
    tensor: str
    stored_shape: tuple[int, ...] = field(metadata={"key": "shape"})
    axis: int | None
    start: int
    stop: int
    head_shape: tuple[int, ...]
    dtype: str
    stats: Stats
    transposed: bool = False
    array: Any = field(default=None, repr=False, compare=False)
    shared: bool = False
    dims: tuple[str, ...] = field(default=(), repr=False)
    quantised: str | None = None
    reordered: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the head's slice, which is that of `array`."""
        return self.head_shape

    @property
    def summary(self) -> str:
        """What it is, on one line, without its class."""
        of_head, whole = shape_text(self.head_shape), shape_text(self.stored_shape)
        parts = [" ".join(self.dims), of_head if self.axis is None else f"{of_head} of {whole}"]
        return f"{self.name}: {listed([*parts, self.stored_as])}"

    @property
    def stored_as(self) -> str:
        """How the file stores it: a dtype, or ggml's name of a quantised type."""
        return self.quantised or self.dtype


@dataclass(frozen=True)
class Latent:
    """The sizes of multi-head latent attention.

    Attributes:
        d_nope, d_rope: the widths of the parts of a head's query and key without and with rotary
            position embedding (RoPE).
        d_V: the width of a head's value.
        d_CQ: the width of the latent for queries; None: queries have no latent.
        d_CKV: the width of the latent for keys and values.
    """

    d_nope: int
    d_rope: int
    d_V: int  # noqa: N815 - the field's name
    d_CQ: int | None  # noqa: N815
    d_CKV: int  # noqa: N815


@dataclass(repr=False)
class HeadWeights(TensorResult):
    """The weights of one attention head of a checkpoint.

    `n_layer`, `n_head`, `n_kv_head`, `d_feat` and `d_head` are those of the `stack`: `self` if the model
    has only one; else `encoder`, `decoder` or `cross`, `text` or `vision`. `head` is a query head; its
    W_K and W_V are those of the key/value head that it reads. `checks` holds comparisons with the
    running model, `circuits` the QK and OV circuits; each is None unless requested. `latent` holds the
    sizes of latent attention, if the model uses it; `d_head` is then the width of a query. `notices` say
    what circuits leave out.
    """

    schema = "head"

    model: str
    layer: int
    head: int
    n_layer: int
    n_head: int
    n_kv_head: int
    d_feat: int
    d_head: int
    weights: list[WeightSlice]
    stack: str = "self"
    checks: list[Check] | None = None
    circuits: list[Circuit] | None = None
    latent: Latent | None = None
    notices: list[str] = field(default_factory=list)

    @property
    def summary(self) -> str:
        """What it is, on one line, without its class."""
        names = few([each.name for each in self.weights])
        place = f"layer {self.layer}, head {self.head}"
        widths = f"d_feat {self.d_feat}, d_head {self.d_head}"
        parts = [place, names, widths, *held_of(self.checks)]
        return f"{shortened(named(self.model, self.stack))}: {listed(parts)}"

    def to_dict(self) -> dict[str, Any]:
        """Return the record that `--format json` prints; what was not requested is an empty list."""
        record = super().to_dict()
        return record | {name: record[name] or [] for name in ("checks", "circuits")}

    def table(self) -> list[Column]:
        """Return a row for each circuit, if they were requested; else for each weight."""
        if self.circuits:
            return of_room(HeadWeights, "circuit_columns", "circuit_table")(self.circuits, self.d_head)
        return super().table()

    def tensors(self) -> Tensors:
        """Return its weights by name, as stored in a file."""
        return {each.name: (each.array, each.dtype) for each in self.weights}

    def __getitem__(self, name: str) -> WeightSlice:
        """Return the head's slice of a weight or a bias by its name: `head["W_Q"]`.

        Raises:
            KeyError: there is no such tensor.
        """
        for each in self.weights:
            if each.name == name:
                return each
        raise no_such_part(name, [each.name for each in self.weights], "this head")


@dataclass(frozen=True, repr=False)
class Circuit(Part):
    """A circuit of a head (a product of two of its weights), described by its singular values.

    Attributes:
        name: `QK`: W_Qᵀ·W_K, which determines what the head attends to, except for positions that rotate
            queries and keys; `OV`: W_O·W_V, which determines what it moves.
        singular_values: those that can be nonzero, the largest first: at most d_head.
        effective_rank: exp of the entropy of the singular values' shares (Roy and Vetterli 2007).
        norm: Frobenius, √Σσ².
        spectral_norm: the largest singular value.
    """

    name: str
    singular_values: list[float]
    effective_rank: float
    norm: float
    spectral_norm: float

    @property
    def summary(self) -> str:
        """What it is, on one line, without its class."""
        rank = f"effective rank {self.effective_rank:.1f} of {len(self.singular_values)}"
        return f"{self.name}: {rank}, norm {number_text(self.norm)}"
