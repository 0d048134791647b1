"""What attnscope finds out, as plain data: names, numbers and strings.

Everything that makes results and everything that shows them meets here, and nowhere else.
Tensors may ride along (`Step.tensor`, `WeightSlice.array`) where a caller asked to keep them;
no view looks at them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Stats:
    """The values of a tensor in six numbers.

    `min`, `mean`, `max` and `std` (the population's: divided by n) are those of the finite
    values, and None where there is none; `nan` and `inf` count the others.
    """

    min: float | None
    mean: float | None
    max: float | None
    std: float | None
    nan: int
    inf: int


@dataclass(frozen=True)
class Check:
    """One comparison with a reference that attnscope did not write.

    `max_abs_diff` is the largest absolute difference between the two, and the check is `ok`
    when it is at most `tolerance`. Where the reference has no way to say what was computed,
    all three are None, and `note` says why. Where a difference may be rounding alone, `ok` is None.
    """

    name: str
    max_abs_diff: float | None
    tolerance: float | None
    ok: bool | None
    note: str = ""


@dataclass(frozen=True)
class Finding:
    """Something worth knowing, such as what looks wrong; and the line of the source, if one does it."""

    message: str
    line: int | None = None


@dataclass(frozen=True)
class Operand:
    """What went into an expression that failed: its text, and its axes' names and sizes."""

    text: str
    dims: tuple[str, ...] | None
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Crash:
    """Where and why the traced code raised an exception.

    Attributes:
        file, line: where the expression stands that failed.
        expression: its text, on one line.
        operands: the tensors in it.
        disagreement: which axes of them do not fit together, if that is why.
        error: the last line of the traceback.
    """

    file: str
    line: int
    expression: str
    operands: list[Operand]
    disagreement: str | None
    error: str


@dataclass
class Source:
    """The source of a function that a trace ran: its name, the number of its first line, its text.

    `file` is where it stands, if that is not the file of what was traced.
    """

    function: str
    line: int
    text: str
    file: str | None = None


@dataclass
class Step:
    """One named tensor of a trace, in the order in which it was made.

    Attributes:
        name: the name that the code gave it.
        dims: its axes' names, or None where nobody knows them.
        shape: its axes' sizes.
        dtype: such as `float32`.
        how: the expression that made it, or `input`.
        bytes: its elements × their size, whether or not the memory is its own.
        flops: floating-point operations of the matrix products that made it (a multiply
            and an add are two, as `torch.utils.flop_counter` counts); element-wise work
            is not counted.
        contiguous: whether its elements lie in memory in the order of its axes.
        strides: how many elements apart the neighbours along each axis lie, if it is not contiguous.
        view_of: the first step that owns the memory this one looks at, if it is not its own.
        same_as: the earlier step that is this very tensor under another name.
        fresh_bytes: bytes allocated while it was made, hidden copies included; None in a dry run.
        line: the line of the source that made it; None in a dry run.
        file: the file of that line, if it is not the file of what was traced.
        times: how often a loop made the same again; `flops` and `bytes` are those of one time.
        depth: how many traced calls deep it was made: 0 in the target itself.
        why: what it is, and why its shape is so, in a sentence; where asked for.
        stats: its values in six numbers, where asked for.
        tensor: the tensor itself, where asked for.
    """

    name: str
    dims: tuple[str, ...] | None
    shape: tuple[int, ...]
    dtype: str
    how: str
    bytes: int
    flops: int = 0
    contiguous: bool = True
    strides: tuple[int, ...] | None = None
    view_of: str | None = None
    same_as: str | None = None
    fresh_bytes: int | None = None
    line: int | None = None
    file: str | None = None
    times: int = 1
    depth: int = 0
    why: str | None = None
    stats: Stats | None = None
    tensor: Any = field(default=None, repr=False, compare=False)


@dataclass
class Trace:
    """Every named tensor of one call of attention.

    Attributes:
        title: what was called, such as `sdpa`.
        sizes: what each axis name stands for, such as `{"n_batch": 3}`.
        options: what else decided the numbers, such as `{"scale": 0.0884}`.
        device: where it ran; None in a dry run.
        dtype: the inputs' dtype.
        seed: what random inputs and weights were drawn with; None where nothing was drawn.
        steps: the tensors, in the order in which they were made.
        checks: comparisons with references.
        findings: what looks wrong.
        notices: what else a reader of this trace should know.
        crash: where the code raised an exception, if it did.
        source: the code that ran, where asked for.
        file: the file of the code that was traced, if it is the user's own.
    """

    title: str
    sizes: dict[str, int] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    device: str | None = None
    dtype: str | None = None
    seed: int | None = None
    steps: list[Step] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    crash: Crash | None = None
    source: list[Source] = field(default_factory=list)
    file: str | None = None

    def __getitem__(self, name: str) -> Step:
        """The last step of that name.

        Raises:
            KeyError: no step has it.
        """
        for step in reversed(self.steps):
            if step.name == name:
                return step
        raise KeyError(name)


@dataclass
class WeightSlice:
    """What one head owns of one weight matrix or bias in a checkpoint.

    Attributes:
        name: `W_Q`, `W_K`, `W_V`, `W_O`, or `b_Q` … `b_O`; of latent attention, those of its paper.
        tensor: its name in the checkpoint.
        shape: the whole tensor's shape, as stored.
        axis: the axis that is cut, or None where the heads share all of it.
        start, stop: the head's part of that axis, `start` ≤ i < `stop`.
        head_shape: the shape of the head's part.
        dtype: as stored.
        stats: the head's part in six numbers.
        transposed: whether the file stores a weight as `in out`, as GPT-2's Conv1D does: `shape`,
            `axis`, `start` and `stop` are the file's, `head_shape` and `array` are turned to `out in`.
        array: the head's part (numpy; bfloat16 as its 16 raw bits).
        shared: whether it is the same for all heads.
    """

    name: str
    tensor: str
    shape: tuple[int, ...]
    axis: int | None
    start: int
    stop: int
    head_shape: tuple[int, ...]
    dtype: str
    stats: Stats
    transposed: bool = False
    array: Any = field(default=None, repr=False, compare=False)
    shared: bool = False


@dataclass(frozen=True)
class Latent:
    """The sizes of multi-head latent attention.

    Attributes:
        d_nope, d_rope: the width of what is not turned of a head's query and key, and of what is.
        d_V: the width of a head's value.
        d_CQ: the width of the queries' latent; None: they have none.
        d_CKV: the width of the keys' and values' latent.
    """

    d_nope: int
    d_rope: int
    d_V: int  # noqa: N815 - the field's name
    d_CQ: int | None  # noqa: N815
    d_CKV: int  # noqa: N815


@dataclass
class HeadWeights:
    """The weights of one attention head of a checkpoint.

    `n_layer`, `n_head`, `n_kv_head`, `d_feat` and `d_head` are those of the `stack`: `self` where the
    model has one; else `encoder`, `decoder` or `cross`, `text` or `vision`. `head` is a query head; its
    W_K and W_V are those of the key head that it reads. `circuits` are its products, where asked for.
    `latent` is there where attention is latent; `d_head` is then the width of a query.
    """

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
    checks: list[Check] = field(default_factory=list)
    circuits: list[Circuit] = field(default_factory=list)
    latent: Latent | None = None


@dataclass(frozen=True)
class ScalingRow:
    """What is measured of scores and of their softmax at one width, with the scale or without it.

    Attributes:
        d_K: the width of queries and keys.
        scaled: whether the scores were multiplied by 1/√d_K.
        variance: of all the scores (the population's: divided by n).
        entropy: of a row of weights, in nats; the mean over rows.
        largest_weight: of a row; the mean over rows.
        gradient_norm: the Frobenius norm of ∂attention/∂scores, of a row; the median over rows.
        gradient_norm_mean: the same; the mean over rows.
    """

    d_K: int  # noqa: N815 - the field's name
    scaled: bool
    variance: float
    entropy: float
    largest_weight: float
    gradient_norm: float
    gradient_norm_mean: float


@dataclass
class Scaling:
    """What the scale does to attention, at several widths.

    Attributes:
        sizes: how many queries and keys there were: `{"n_batch": 64, "n_Q": 64, "n_K": 64}`.
        dtype: what scores and weights were computed in; they were measured in float64.
        seed: what queries and keys were drawn with, at each width anew.
        rows: two for each width, in the order asked for: without the scale, and with it.
        findings: what these numbers say.
    """

    sizes: dict[str, int]
    dtype: str
    seed: int
    rows: list[ScalingRow]
    findings: list[Finding] = field(default_factory=list)


@dataclass(frozen=True)
class Token:
    """One position of a sequence that attends or is attended to.

    Attributes:
        text: as the tokenizer decodes it, a leading space included; `##` where a word goes on in
            BERT's way; of a patch of a picture its row and column.
        segment: 0; in a pair of texts, 1 for those of the second.
        special: whether the tokenizer, or the model, added it: `[CLS]`, `</s>`.
        generated: whether the model wrote it.
    """

    text: str
    segment: int = 0
    special: bool = False
    generated: bool = False


@dataclass(frozen=True)
class Picture:
    """What a vision model looked at.

    Attributes:
        rows, columns: how many patches; they are tokens in the order in which one reads.
        first: how many tokens come before them, such as `[CLS]`.
        png: the picture as the model got it, cut and scaled, as the bytes of a PNG file.
    """

    rows: int
    columns: int
    first: int
    png: bytes = field(repr=False)


@dataclass(frozen=True)
class Pooling:
    """How the maps of a long text are pooled: neighbours share a cell.

    Attributes:
        shown: `max` or `mean`: which of a cell's weights a map's `attention` is.
        queries, keys: the positions that share each row of cells, and each column.
    """

    shown: str
    queries: list[range]
    keys: list[range]


@dataclass
class AttentionMap:
    """What one head looks at: the weights that each query gives to each key.

    Attributes:
        layer, head: counted from 0; `head` is a query head.
        kv_head: the head of K and V that it reads: another number where they are shared.
        attention: the weights after the softmax, `n_Q n_K`, numpy float32. Rows sum to 1,
            or to less where a sink takes a part. Of a pooled map, a number for each cell.
        mean, max: of a pooled map, the mean and the largest of each cell's weights; what a query
            cannot see is 0 there, and counts.
        row: of a pooled map, the weights of the one query that was asked for, `n_K`.
        top: of a pooled map, the keys that each query looks at most, and their weights, `n_Q k`
            each; those that were asked for.
    """

    layer: int
    head: int
    kv_head: int
    attention: Any = field(repr=False, compare=False)
    mean: Any = field(default=None, repr=False, compare=False)
    max: Any = field(default=None, repr=False, compare=False)
    row: Any = field(default=None, repr=False, compare=False)
    top: tuple[Any, Any] | None = field(default=None, repr=False, compare=False)


@dataclass
class AttentionMaps:
    """What several heads of one stack of a model look at, in one text or picture.

    Attributes:
        model: what the user called it.
        stack: whose layers they are: `self` where a model has one stack; else `encoder`,
            `decoder` or `cross` (the decoder's queries, the encoder's keys), `text` or `vision`.
        n_layer, n_head, n_kv_head: how many the stack has.
        query_tokens, key_tokens: who looks, and who is looked at: the axes of every map.
        maps: those that were asked for, by layer and then by head.
        picture: what a vision model looked at.
        first_query: the position of the first query in its sequence: the queries may be the last of it.
        pooling: which tokens share the cells of every map; None: each has cells of its own.
        left_out: the positions of the keys that lists of the strongest keys and scales of colours leave
            out, where that was asked for: those of the sink.
        checks: comparisons with the model's own maps.
        notices: what else a reader should know: sentences.
    """

    model: str
    stack: str
    n_layer: int
    n_head: int
    n_kv_head: int
    query_tokens: list[Token]
    key_tokens: list[Token]
    maps: list[AttentionMap]
    picture: Picture | None = None
    first_query: int = 0
    pooling: Pooling | None = None
    left_out: list[int] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Circuit:
    """One product of a head's weights, as its singular values tell it.

    Attributes:
        name: `QK`: W_Qᵀ·W_K, which decides what a head looks at; `OV`: W_O·W_V, which decides
            what it carries.
        singular_values: those that can differ from 0, the largest first: at most d_head.
        effective_rank: exp of the entropy of the singular values' shares (Roy and Vetterli 2007).
        norm: Frobenius, √Σσ².
        spectral_norm: the largest singular value.
    """

    name: str
    singular_values: list[float]
    effective_rank: float
    norm: float
    spectral_norm: float


@dataclass(frozen=True)
class HeadRow:
    """How one head attends, in numbers.

    Attributes:
        stack: whose layer it is in, as in `AttentionMaps`.
        layer, head: counted from 0; `head` is a query head.
        values: the mean of each metric over all queries that count for it, by the metric's name; None
            where no query does.
        errors: its standard error, with every sequence a cluster of queries; None for one sequence.
    """

    stack: str
    layer: int
    head: int
    values: dict[str, float | None]
    errors: dict[str, float | None]


@dataclass
class HeadTable:
    """How the heads of a model attend, over one text or many.

    Attributes:
        model: what the user called it.
        metrics: what was measured: name and meaning, in order; see `attnscope.models.heads.metrics`.
        sequences, tokens: how many were read, padding not counted.
        layers: how many layers each stack has, and how many heads: by the stack's name.
        rows: the heads that were asked for, by stack, layer and head.
        partial: whether the run ended before the corpus did.
        skipped: how many lines were no text.
        without_sink: whether the weights are those to other keys than sinks, which then sum to 1.
        notices: what else a reader should know: sentences.
    """

    model: str
    metrics: dict[str, str]
    sequences: int
    tokens: int
    layers: dict[str, tuple[int, int]]
    rows: list[HeadRow]
    partial: bool = False
    skipped: int = 0
    without_sink: bool = False
    notices: list[str] = field(default_factory=list)
