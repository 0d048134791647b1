"""The options of `sdpa`, `mha` and `scaling`, for the library and for the command line.

Every command imports these classes, so their creation adds to its start-up time; they have no unused
methods, which would take a third of it.
"""

# ruff: noqa: RUF009 - options are declared by functions

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from attnscope.base.options import (
    DEVICES,
    DRAW,
    DTYPES,
    Alignment,
    Distribution,
    VectorLayout,
    alignment_of_queries,
    option,
)

SIZES, TENSORS, VARIANT, RUN, OUTPUT = "Sizes", "Your own tensors", "Variants", "Run", "Output"
"""The headings of the help."""


class MaskStyle(StrEnum):
    """The meaning of a mask's values."""

    BOOL = "bool"
    ADDITIVE = "additive"


class MaskedRows(StrEnum):
    """The weights of queries that see no key."""

    NAN = "nan"
    UNIFORM = "uniform"
    ZERO = "zero"


class ScaleBy(StrEnum):
    """The width whose root divides the scores."""

    D_HEAD = "d_head"
    D_FEAT = "d_feat"


def _size(help: str, *names: str, shown: int | str | None = None, **more: Any) -> Any:
    """Declare a size; if it is not set, tensors determine it, else the shown default applies."""
    return option(help, *names, shown=None if shown is None else str(shown), **more)


def _tensor(help: str, **more: Any) -> Any:
    """Declare a tensor: a numpy array, a torch tensor, or a file as `FILE` or `FILE:NAME`."""
    return option(help, metavar="FILE", parser=str, **more)


def _matrix(help: str) -> Any:
    """Declare a small matrix: a tensor as above, or a text such as `[[1, 0], [0, 1]]`."""
    return option(help, metavar="MATRIX", parser=str)


def _kv_heads() -> Any:
    help = "Heads of K and V (n_kv_head), each shared by a group of query heads."
    return _size(help, shown="as many as --heads", common=("mha",))


def _past() -> Any:
    return _size("Cached keys and values (n_past), before those of {nk}.")


@dataclass(frozen=True, repr=False, eq=False)
class SdpaSizes:
    """The sizes of `sdpa`; None: not set."""

    PANEL = SIZES

    batch: int | None = _size("Sequences (n_batch).", shown=3, common=True)
    nq: int | None = _size("Queries (n_Q).", shown=30, common=True)
    nk: int | None = _size("Keys (n_K).", shown=50, common=True)
    nv: int | None = _size("Values (n_V): as many as keys.")
    dk: int | None = _size("Width of a query and of a key (d_K).", shown=128, common=True)
    dv: int | None = _size("Width of a value (d_V).", shown=256, common=True)
    heads: int | None = _size("Heads (n_head): an axis after the batch; 3-D tensors are split.")
    kv_heads: int | None = _kv_heads()
    past: int | None = _past()


@dataclass(frozen=True, repr=False, eq=False)
class MhaSizes:
    """The sizes of `mha`; None: not set."""

    PANEL = SIZES

    batch: int | None = _size("Sequences (n_batch).", shown=128, common=True)
    nq: int | None = _size("Queries (n_Q).", shown=32, common=True)
    nk: int | None = _size("Keys (n_K) of cross-attention; without it, self-attention.", common=True)
    d_feat: int | None = _size(
        "Width of the model (d_feat).",
        shown=200,
        common=True,
    )
    heads: int | None = _size(
        "Heads (n_head); divides d_feat, except with {d_head}.", shown=5, common=True
    )
    kv_heads: int | None = _kv_heads()
    past: int | None = _past()
    d_head: int | None = _size("Width of a head's query and key (d_head).", shown="d_feat / heads")
    d_value: int | None = _size("Width of a head's value (d_V).", shown="d_head")
    d_context: int | None = _size("Width of the source of K and V.", shown="d_feat")


PAST_K = "Cached keys (K_past), split into heads."
PAST_V = "Cached values (V_past), split into heads."


@dataclass(frozen=True, repr=False, eq=False)
class SdpaTensors:
    """The tensors of `sdpa` that are not drawn: arrays, tensors, or names of files."""

    PANEL = TENSORS

    q: Any = _tensor(
        "Q, from .npy, .npz, .pt or .safetensors; FILE:NAME selects one of several.", common=True
    )
    k: Any = _tensor("K.", common=True)
    v: Any = _tensor("V.", common=True)
    past_k: Any = _tensor(PAST_K)
    past_v: Any = _tensor(PAST_V)
    x: Any = _tensor("Embeddings X, which are projected to Q, K and V.")
    wq: Any = _tensor("W_Q, d_feat × d_K: Q = X·W_Q.")
    wk: Any = _tensor("W_K, d_feat × d_K.")
    wv: Any = _tensor("W_V, d_feat × d_V.")


@dataclass(frozen=True, repr=False, eq=False)
class MhaTensors:
    """The tensors of `mha` that are not drawn: arrays, tensors, or names of files.

    `weights` holds several by name: a file, or a mapping such as a module's `state_dict()`. With
    `layer` it is a model, whose layer also sets sizes, mask, rotary positions, scale and soft cap.
    """

    PANEL = TENSORS

    x: Any = _tensor(
        "Input of self-attention, n_batch × n × d_feat; from .npy, .npz, .pt or .safetensors;"
        " FILE:NAME selects one of several.",
        common=True,
    )
    q: Any = _tensor("Input that is projected to Q, n_batch × n_Q × d_feat.")
    k: Any = _tensor("Input that is projected to K, and to V without {v}.")
    v: Any = _tensor("Input that is projected to V.")
    past_k: Any = _tensor(PAST_K)
    past_v: Any = _tensor(PAST_V)
    weights: Any = option(
        "A file of all weights and biases, or with {layer} a model; in a file, they are named W_Q, b_Q,"
        " … or as in nn.MultiheadAttention; a model is minilm, a folder or a hub name.",
        metavar="FILE|MODEL",
        parser=str,
        common=True,
    )
    layer: int | None = option(
        "Layer of the model in {weights}, from 0; its sizes, weights, mask, positions and scale.",
        common=True,
    )
    stack: str | None = option(
        "Stack of the model's layers: encoder, decoder or cross, text or vision.",
        shown="the first",
        metavar="NAME",
    )
    wq: Any = _tensor("W_Q, output × input as in nn.Linear.")
    wk: Any = _tensor("W_K, as {wq}.")
    wv: Any = _tensor("W_V, as {wq}.")
    wo: Any = _tensor("W_O, as {wq}.")
    bq: Any = _tensor("b_Q. With weights from files, missing biases are 0.")
    bk: Any = _tensor("b_K.")
    bv: Any = _tensor("b_V.")
    bo: Any = _tensor("b_O.")


@dataclass(frozen=True, repr=False, eq=False)
class Masking:
    """Masks. In Python, `mask` takes one mask or several; each may be an array."""

    PANEL = VARIANT

    mask: list[Any] | None = option(
        "causal, window:W, window:L,R, chunk:C, prefix:P, lengths:N,N,…, none, or a file. A window has"
        " the keys at most that far away (L or R may be missing), lengths are the keys of each sequence."
        " Of several, a key must pass every mask.",
        metavar="MASK",
        parser=str,
        common=True,
        values=("causal", "window:", "chunk:", "prefix:", "lengths:", "none"),
    )
    mask_style: MaskStyle | None = option(
        "Meaning of a mask file. bool: True or non-zero may attend; additive: added to the scores.",
        shown="that of the file, or bool",
    )
    mask_fill: float | None = option(
        "Score of a masked key: -inf, or a number such as -1e9.", shown="-inf"
    )
    align: Alignment | None = alignment_of_queries()
    masked_rows: MaskedRows | None = option(
        "Weights of a query whose keys are all masked: nan, uniform or zero.",
        shown="according to --mask-fill",
    )


@dataclass(frozen=True, repr=False, eq=False)
class Scale:
    """The factor of the scores of `sdpa`."""

    PANEL = VARIANT

    scale: float | None = option("Factor of the scores.", shown="1/√d_head or 1/√d_K")


@dataclass(frozen=True, repr=False, eq=False)
class MhaScale(Scale):
    """The factor of the scores of `mha`."""

    scale_by: ScaleBy | None = option(
        "Divide the scores by √d_head, or by √d_feat (a common mistake).", shown="d_head"
    )


@dataclass(frozen=True, repr=False, eq=False)
class Stages:
    """Optional stages of attention, and the dtype of its softmax."""

    PANEL = VARIANT

    softcap: float | None = option(
        "Soft-cap c: scores s become c·tanh(s/c), before the mask; inf: none."
    )
    rope: bool | None = option(
        "Rotary position embedding (RoPE), as in Llama.",
        "--rope/--no-rope",
        shown="no-rope, or that of --layer",
        common=("mha",),
    )
    rope_theta: float | None = option("Base of the rotary frequencies.", shown="10000")
    softmax_dtype: str | None = option(
        "Dtype of the softmax: float32, float64, …", shown="that of the scores", values=DTYPES
    )


@dataclass(frozen=True, repr=False, eq=False)
class Form:
    """The form in which `sdpa` is computed: by rows, by columns, or one query alone."""

    PANEL = VARIANT

    layout: VectorLayout = option(
        "Vectors are rows or columns; with columns, every matrix is transposed, also in files.",
        default=VectorLayout.ROWS,
        common=True,
    )
    query: int | None = option(
        "Compute one query, counted from 0: its scores, softmax and weighted sum.",
        metavar="I",
        common=True,
    )


@dataclass(frozen=True, repr=False, eq=False)
class Training:
    """The biases, dropout and training mode of the module of `mha`."""

    PANEL = RUN

    bias: bool | None = option("Projections with or without biases.", "--bias/--no-bias", shown="bias")
    dropout: float | None = option("Dropout of attention weights in training.", shown="0.1")
    train: bool = option(
        "Training mode, with dropout, or evaluation.", "--train/--eval", default=False, shown=True
    )


SEED = "Seed of the random values."


@dataclass(frozen=True, repr=False, eq=False)
class RunOptions:
    """The seed and distribution of drawn inputs, and the device and dtype of the computation."""

    PANEL = RUN

    seed: int | None = option(SEED, shown="0")
    draw: Distribution | None = option(DRAW, shown="normal")
    dtype: str | None = option(
        "float64, float32, float16 or bfloat16.",
        shown="that of the files, or float32",
        common=True,
        values=DTYPES,
    )
    device: str = option(
        "cpu, cuda, cuda:1, mps, xpu, or meta; meta: shapes without values.",
        default="cpu",
        common=True,
        values=(*DEVICES, "meta"),
    )


@dataclass(frozen=True, repr=False, eq=False)
class Explanations:
    """Output of a computation in addition to its tensors."""

    PANEL = OUTPUT

    verify: bool = option(
        "Compare with PyTorch and with a loop in float64; exit with status 1 if they differ.",
        default=False,
        common=True,
    )
    explain: bool = option("Explain each tensor and its shape.", default=False, common=True)
    source: bool = option(
        "Print the code that ran, with the axes and shape of each line's result.", default=False
    )


@dataclass(frozen=True, repr=False, eq=False)
class ExampleNumbers:
    """The matrices of the worked example: nested lists, arrays, tensors, files, or texts."""

    PANEL = "Your own numbers"

    x: Any = _matrix("Embeddings X, n × d_feat: [[1,0],[0,1]], or a file as in sdpa.")
    wq: Any = _matrix("W_Q, d_feat × d_K: Q = X·W_Q.")
    wk: Any = _matrix("W_K, d_feat × d_K.")
    wv: Any = _matrix("W_V, d_feat × d_V.")
    q: Any = _matrix("Q, n_Q × d_K, instead of X·W_Q.")
    k: Any = _matrix("K, n_K × d_K, instead of X·W_K.")
    v: Any = _matrix("V, n_K × d_V, instead of X·W_V.")
    mask: list[Any] | None = option(
        "causal, window:W, … or a matrix, n_Q × n_K: [[1,0],[1,1]].",
        metavar="MASK",
        parser=str,
    )
    scale: float | None = option("Factor of the scores.", shown="1/√d_K")


@dataclass(frozen=True, repr=False, eq=False)
class ExampleForms:
    """Selection of the forms of the worked example."""

    layout: VectorLayout | None = option(
        "Print only this form, rows or columns, in full; by columns, your matrices are transposed, too.",
        shown="all forms, each number once",
        panel=VARIANT,
    )
    query: int | None = option(
        "Show only one query, counted from 0, as vectors; with {layout}, in addition.",
        shown="0, with the other forms",
        metavar="I",
        panel=VARIANT,
    )


@dataclass(frozen=True, repr=False, eq=False)
class ExampleText:
    """The text beside the worked example."""

    explain: bool = option("Explain each step.", "--explain/--no-explain", default=True, panel=OUTPUT)


@dataclass(frozen=True, repr=False, eq=False)
class Widths:
    """The widths that the experiment about the scale compares."""

    widths: str | Iterable[int] = option(
        "Widths of a query and a key (d_K) to compare.",
        "--dk",
        default="1,4,16,64,256,1024",
        metavar="N,N,…",
        panel=SIZES,
        type=str,
    )


@dataclass(frozen=True, repr=False, eq=False)
class Experiment:
    """The sizes, seed, distribution and dtype of the experiment about the scale."""

    batch: int = option("Sequences (n_batch).", default=64, panel=SIZES)
    nq: int = option("Queries (n_Q).", default=64, panel=SIZES)
    nk: int = option("Keys (n_K).", default=64, panel=SIZES)
    seed: int | None = option(SEED, shown="0", panel=RUN)
    draw: Distribution | None = option(DRAW, shown="normal", panel=RUN)
    dtype: str = option(
        "Dtype of the scores: float64, float32, float16 or bfloat16.",
        default="float32",
        panel=RUN,
        values=DTYPES,
    )


OF_SDPA = (SdpaSizes, SdpaTensors, Masking, Scale, Stages, Form, RunOptions)
OF_MHA = (MhaSizes, MhaTensors, Masking, MhaScale, Stages, Training, RunOptions)
"""The groups of options of each formula."""
