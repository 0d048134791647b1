"""The options of `sdpa`, `mha` and `scaling`, for the library and for the command line.

Every command imports these classes, so their creation adds to its start-up time; they have no unused
methods, which would take a third of it.
"""

# ruff: noqa: RUF009 - options are declared by functions

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from attnscope.options import DRAW, Distribution, option

SIZES, TENSORS, VARIANT, RUN, OUTPUT = "Sizes", "Your own tensors", "Variants", "Run", "Output"
"""The headings of the help."""


class MaskStyle(StrEnum):
    """The meaning of a mask's values."""

    BOOL = "bool"
    ADDITIVE = "additive"


class VectorLayout(StrEnum):
    """The orientation of vectors."""

    ROWS = "rows"
    COLUMNS = "columns"


class Alignment(StrEnum):
    """The alignment of queries and keys."""

    TOP_LEFT = "top-left"
    BOTTOM_RIGHT = "bottom-right"


class MaskedRows(StrEnum):
    """The weights of queries that see no key."""

    NAN = "nan"
    UNIFORM = "uniform"
    ZERO = "zero"


class ScaleBy(StrEnum):
    """The width whose root divides the scores."""

    D_HEAD = "d_head"
    D_FEAT = "d_feat"


def _size(help: str, *names: str, shown: int | str | None = None) -> Any:
    """Declare a size; if it is not set, tensors determine it, else the shown default applies."""
    return option(help, *names, shown=None if shown is None else str(shown))


def _tensor(help: str) -> Any:
    """Declare a tensor: a numpy array, a torch tensor, or a file as `FILE` or `FILE:NAME`."""
    return option(help, metavar="FILE", parser=str)


def _matrix(help: str) -> Any:
    """Declare a small matrix: a tensor as above, or a text such as `[[1, 0], [0, 1]]`."""
    return option(help, metavar="MATRIX", parser=str)


def _kv_heads() -> Any:
    help = "n_kv_head: heads of K and V, shared by groups of query heads."
    return _size(help, shown="as many as heads")


def _past() -> Any:
    help = "n_past: keys and values of the past; those of --nk come after them."
    return _size(help, shown="none")


@dataclass(frozen=True, repr=False, eq=False)
class SdpaSizes:
    """The sizes of `sdpa`; None: not set."""

    PANEL = SIZES

    batch: int | None = _size("n_batch: sequences.", shown=3)
    nq: int | None = _size("n_Q: queries.", shown=30)
    nk: int | None = _size("n_K: keys.", shown=50)
    nv: int | None = _size("n_V: values; as many as keys.")
    dk: int | None = _size("d_K: width of a key, and of a query.", shown=128)
    dv: int | None = _size("d_V: width of a value.", shown=256)
    heads: int | None = _size(
        "n_head: a head axis after the batch; three axes of yours are split.", shown="none"
    )
    kv_heads: int | None = _kv_heads()
    past: int | None = _past()


@dataclass(frozen=True, repr=False, eq=False)
class MhaSizes:
    """The sizes of `mha`; None: not set."""

    PANEL = SIZES

    batch: int | None = _size("n_batch: sequences.", shown=128)
    nq: int | None = _size("n_Q: queries.", shown=32)
    nk: int | None = _size("n_K: keys, from a source of their own; without it Q attends to itself.")
    d_feat: int | None = _size("d_feat: the model's width.", shown=200)
    heads: int | None = _size("n_head: heads; must divide d_feat.", shown=5)
    kv_heads: int | None = _kv_heads()
    past: int | None = _past()
    d_value: int | None = _size("d_V: width of a head's value.", shown="d_head")
    d_context: int | None = _size("Width of what K and V come from, if not d_feat.", shown="d_feat")


PAST_K = "K_past: keys of the past, with their heads split."
PAST_V = "V_past: their values."


@dataclass(frozen=True, repr=False, eq=False)
class SdpaTensors:
    """The tensors of `sdpa` that are not drawn: arrays, tensors, or names of files."""

    PANEL = TENSORS

    q: Any = _tensor("Q: .npy, .npz, .pt or .safetensors; FILE:NAME for one of many.")
    k: Any = _tensor("K.")
    v: Any = _tensor("V.")
    past_k: Any = _tensor(PAST_K)
    past_v: Any = _tensor(PAST_V)
    x: Any = _tensor("Embeddings, which Q, K and V are projected from.")
    wq: Any = _tensor("W_Q, d_feat × d_K: Q is X·W_Q.")
    wk: Any = _tensor("W_K, d_feat × d_K.")
    wv: Any = _tensor("W_V, d_feat × d_V.")


@dataclass(frozen=True, repr=False, eq=False)
class MhaTensors:
    """The tensors of `mha` that are not drawn: arrays, tensors, or names of files.

    `weights` holds several by name: a file, or a mapping such as a module's `state_dict()`.
    """

    PANEL = TENSORS

    x: Any = _tensor("Q, K and V in one: n_batch n d_feat.")
    q: Any = _tensor(
        "Q, before its projection: n_batch n_Q d_feat. .npy, .npz, .pt, .safetensors; FILE:NAME."
    )
    k: Any = _tensor("K, before its projection; V too, without --v.")
    v: Any = _tensor("V, before its projection.")
    past_k: Any = _tensor(PAST_K)
    past_v: Any = _tensor(PAST_V)
    weights: Any = _tensor("All weights and biases: W_Q b_Q …, or as nn.MultiheadAttention names them.")
    wq: Any = _tensor("W_Q as nn.Linear has it, output × input; likewise:")
    wk: Any = _tensor("W_K.")
    wv: Any = _tensor("W_V.")
    wo: Any = _tensor("W_O.")
    bq: Any = _tensor("b_Q. Biases that are not given are 0 if any weight is.")
    bk: Any = _tensor("b_K.")
    bv: Any = _tensor("b_V.")
    bo: Any = _tensor("b_O.")


@dataclass(frozen=True, repr=False, eq=False)
class Masking:
    """Masks. In Python, `mask` takes one mask or several; each may be an array."""

    PANEL = VARIANT

    mask: list[Any] | None = option(
        "causal, window:W (keys up to W away), window:L,R, prefix:P, lengths:N,N,… (real keys of"
        " each"
        " sequence), or a FILE; again for several, which a query's keys must all pass.",
        metavar="MASK",
        parser=str,
    )
    mask_style: MaskStyle | None = option(
        "bool: True or non-zero may attend; additive: added to the scores. Else the file's own, or bool."
    )
    mask_fill: float | None = option(
        "The score of a hidden key: -inf, or a number such as -1e9.", shown="-inf"
    )
    align: Alignment | None = option(
        "Where the queries stand among the keys, if they are not as many.",
        shown="bottom-right with a past, else top-left",
    )
    masked_rows: MaskedRows | None = option(
        "What becomes of queries that see no key.", shown="what the fill makes of them"
    )


@dataclass(frozen=True, repr=False, eq=False)
class Scale:
    """The factor of the scores of `sdpa`."""

    PANEL = VARIANT

    scale: float | None = option("What the scores are multiplied with.", shown="1/√width")


@dataclass(frozen=True, repr=False, eq=False)
class MhaScale(Scale):
    """The factor of the scores of `mha`."""

    scale_by: ScaleBy | None = option(
        "Divide scores by √d_head (right) or √d_feat (a well-known slip).", shown="d_head"
    )


@dataclass(frozen=True, repr=False, eq=False)
class Stages:
    """Optional stages of attention, and the dtype of its softmax."""

    PANEL = VARIANT

    softcap: float | None = option("c: scores become c·tanh(s/c), before the mask.")
    rope: bool = option("Rotary positions, as in Llama.", default=False)
    rope_theta: float | None = option("Their base.", shown="10000")
    softmax_dtype: str | None = option("The precision of the softmax.", shown="that of the scores")


@dataclass(frozen=True, repr=False, eq=False)
class Form:
    """The form in which `sdpa` is computed: by rows, by columns, or one query alone."""

    PANEL = VARIANT

    layout: VectorLayout = option(
        "Each vector a row, or a column: then everything is transposed, in files and masks too.",
        default=VectorLayout.ROWS,
    )
    query: int | None = option(
        "One query alone, counted from 0: its scores, their softmax, the sum term by term."
    )


@dataclass(frozen=True, repr=False, eq=False)
class Training:
    """The biases, dropout and training mode of the module of `mha`."""

    PANEL = RUN

    bias: bool | None = option("Whether projections have biases.", "--bias/--no-bias", shown="bias")
    dropout: float | None = option("Share of attention weights zeroed in training.", shown="0.1")
    train: bool = option("Training, with dropout, or not.", "--train/--eval", default=False, shown=True)


SEED = "What random values are drawn with."


@dataclass(frozen=True, repr=False, eq=False)
class RunOptions:
    """The seed and distribution of drawn inputs, and the device and dtype of the computation."""

    PANEL = RUN

    seed: int | None = option(SEED, shown="0")
    draw: Distribution | None = option(DRAW, shown="normal")
    dtype: str | None = option("float64, float32, float16 or bfloat16.", shown="the files', or float32")
    device: str = option("cpu, cuda, cuda:1, mps, xpu, or meta (shapes without values).", default="cpu")


@dataclass(frozen=True, repr=False, eq=False)
class Explanations:
    """Output of a computation in addition to its tensors."""

    PANEL = OUTPUT

    verify: bool = option(
        "Compare with PyTorch's attention, and with a loop in float64; exit 1 if one differs.",
        default=False,
    )
    explain: bool = option("Say under each row what it is, and why its shape is so.", default=False)
    source: bool = option(
        "Show the code that runs, with the axes and the shape that each line makes.", default=False
    )


@dataclass(frozen=True, repr=False, eq=False)
class ExampleNumbers:
    """The matrices of the worked example: nested lists, arrays, tensors, files, or texts."""

    PANEL = "Your own numbers"

    x: Any = _matrix("X, the embeddings, n × d_feat: [[1,0],[0,1]], or a file as in sdpa.")
    wq: Any = _matrix("W_Q, d_feat × d_K: Q is X·W_Q.")
    wk: Any = _matrix("W_K, d_feat × d_K.")
    wv: Any = _matrix("W_V, d_feat × d_V.")
    q: Any = _matrix("Q, n_Q × d_K, in place of X and its projections; likewise:")
    k: Any = _matrix("K, n_K × d_K.")
    v: Any = _matrix("V, n_K × d_V.")
    mask: list[Any] | None = option(
        "causal, window:W, …, or n_Q × n_K: [[1,0],[1,1]]; again for several.",
        metavar="MASK",
        parser=str,
    )
    scale: float | None = option("What the scores are multiplied with.", shown="1/√d_K")


@dataclass(frozen=True, repr=False, eq=False)
class ExampleForms:
    """Selection of the forms of the worked example."""

    layout: VectorLayout | None = option(
        "This form alone, whole. By columns, your vectors are columns too.",
        shown="all forms, each number once",
        panel=VARIANT,
    )
    query: int | None = option(
        "One query as vectors, counted from 0; alone, unless --layout is given too.",
        shown="0, beside the other forms",
        panel=VARIANT,
    )
    explain: bool = option(
        "Say what each step is.", "--explain/--no-explain", default=True, panel=OUTPUT
    )


@dataclass(frozen=True, repr=False, eq=False)
class Experiment:
    """The sizes, seed, distribution and dtype of the experiment about the scale."""

    dk: str = option(
        "d_K: widths of a key, and of a query, to compare.",
        default="1,4,16,64,256,1024",
        metavar="N,N,…",
        panel=SIZES,
    )
    batch: int = option("n_batch: independent draws.", default=64, panel=SIZES)
    nq: int = option("n_Q: queries.", default=64, panel=SIZES)
    nk: int = option("n_K: keys.", default=64, panel=SIZES)
    seed: int | None = option(SEED, shown="0", panel=RUN)
    draw: Distribution | None = option(DRAW, shown="normal", panel=RUN)
    dtype: str = option(
        "float64, float32, float16 or bfloat16; measured in float64.", default="float32", panel=RUN
    )


OF_SDPA = (SdpaSizes, SdpaTensors, Masking, Scale, Stages, Form, RunOptions)
OF_MHA = (MhaSizes, MhaTensors, Masking, MhaScale, Stages, Training, RunOptions)
"""The groups of options of each formula."""
