"""See attention. Generated from the declarations of options: `python -m tests.stub`."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from attnscope.attention.mha import MultiHeadAttention as MultiHeadAttention
from attnscope.attention.sdpa import sdpa as sdpa
from attnscope.auditing.result import Audit as Audit
from attnscope.base.errors import AttnscopeError as AttnscopeError
from attnscope.base.options import Inputs, Texts
from attnscope.base.process.progress import Progress
from attnscope.code.compare.result import Comparison as Comparison
from attnscope.code.trace.comments.trace_comments import annotate as annotate
from attnscope.code.trace.comments.trace_comments import check_comments as check_comments
from attnscope.code.trace.options import Dims
from attnscope.code.trace.result import ProgramRun
from attnscope.document.result import Check as Check
from attnscope.document.result import Stats as Stats
from attnscope.formula.compute import compute as compute
from attnscope.formula.compute import dry_run as dry_run
from attnscope.formula.compute import verify as verify
from attnscope.formula.example.result import WorkedExample as WorkedExample
from attnscope.formula.scaling.result import Scaling as Scaling
from attnscope.load import load as load
from attnscope.masks.result import AttentionMask as AttentionMask
from attnscope.masks.result import AttentionMasks as AttentionMasks
from attnscope.model.answers.result import Answer as Answer
from attnscope.model.card.cards import Cards as Cards
from attnscope.model.card.result import Card as Card
from attnscope.model.effects.options import Prompts
from attnscope.model.effects.result import HeadEffects as HeadEffects
from attnscope.model.files.indices import Indices
from attnscope.model.files.result import HeadWeights as HeadWeights
from attnscope.model.files.result import WeightSlice as WeightSlice
from attnscope.model.heads.measure_heads import Sources
from attnscope.model.heads.options import Needles
from attnscope.model.heads.result import HeadRow as HeadRow
from attnscope.model.heads.result import HeadTable as HeadTable
from attnscope.model.maps.differences import MapDifferences as MapDifferences
from attnscope.model.maps.result import AttentionMap as AttentionMap
from attnscope.model.maps.result import AttentionMaps as AttentionMaps
from attnscope.model.weights.differences import HeadDifferences as HeadDifferences
from attnscope.notebook import load_ipython_extension as load_ipython_extension
from attnscope.notebook import unload_ipython_extension as unload_ipython_extension
from attnscope.observe.calls import trace as trace
from attnscope.observe.calls import trace_call as trace_call
from attnscope.observe.trace import Step as Step
from attnscope.observe.trace import Trace as Trace

__version__: str

def answer(
    model: Any = ...,
    text: str | None = ...,
    *,
    file: str | Path | None = ...,
    image: Any = ...,
    generate: int | None = ...,
    truncate: bool = ...,
    messages: Any = ...,
    replay: Any = ...,
    choice: int | None = ...,
    audio: Any = ...,
    video: Any = ...,
    fps: float | None = ...,
    by: Literal["segment"] | None = ...,
    segments: str | dict[str, Any] | None = ...,
    rows: Literal["writing", "reading", "segments"] | None = ...,
    grid: str | None = ...,
    layers: Indices = ...,
    heads: Indices = ...,
    stack: Literal["self", "encoder", "decoder", "cross", "text", "vision", "audio"] | None = ...,
    pool: Literal["mean", "max"] | None = ...,
    query: int | str | None = ...,
    without_sink: bool = ...,
    verify: bool = ...,
    dtype: str | None = ...,
    device: str = ...,
    page: bool = ...,
    tokenizer: Any = ...,
    processor: Any = ...,
    progress: Progress = ...,
) -> Answer: ...
def audit(
    target: Any,
    *args: Any,
    text: str | None = ...,
    length: int | None = ...,
    tokenizer: Any = ...,
    causal: bool = ...,
    bidirectional: bool = ...,
    window: int | None = ...,
    chunk: int | None = ...,
    prefix: int | None = ...,
    sinks: int | None = ...,
    padding: bool = ...,
    packed: bool = ...,
    batch: bool = ...,
    cache: bool = ...,
    kernels: bool = ...,
    coverage: bool = ...,
    expect: Any = ...,
    init: Texts | None = ...,
    inputs: Inputs = ...,
    where: Sequence[str] | None = ...,
    call: str | None = ...,
    positions: str | None = ...,
    mask_input: Texts | str | None = ...,
    thorough: bool = ...,
    dtype: str | None = ...,
    device: str = ...,
    seed: int | None = ...,
    progress: Progress = ...,
) -> Audit: ...
def card(
    model: Any,
    *,
    context: str | int | None = ...,
    batch: int = ...,
    dtype: str | None = ...,
    dtype_k: str | None = ...,
    dtype_v: str | None = ...,
    memory: str | int | None = ...,
    cache_memory: str | int | None = ...,
    weights: str | int | None = ...,
    weights_dtype: str | None = ...,
    tensor_parallel: int = ...,
    engine_step: int | None = ...,
    flops: str | int | None = ...,
    bandwidth: str | int | None = ...,
    source: int | None = ...,
    like: str | None = ...,
    verify: bool = ...,
    progress: Progress = ...,
) -> Card: ...
def cards(
    *models: Any,
    context: str | int | None = ...,
    batch: int = ...,
    dtype: str | None = ...,
    dtype_k: str | None = ...,
    dtype_v: str | None = ...,
    memory: str | int | None = ...,
    cache_memory: str | int | None = ...,
    weights: str | int | None = ...,
    weights_dtype: str | None = ...,
    tensor_parallel: int = ...,
    engine_step: int | None = ...,
    flops: str | int | None = ...,
    bandwidth: str | int | None = ...,
    source: int | None = ...,
    like: str | None = ...,
    verify: bool = ...,
    progress: Progress = ...,
) -> Cards: ...
def compare(
    a: Any,
    b: Any = ...,
    *args: Any,
    init: Texts | None = ...,
    inputs: Inputs = ...,
    where: Sequence[str] | None = ...,
    call: str | None = ...,
    same: Sequence[str] | None = ...,
    map: Sequence[str] | None = ...,
    weights: str | None = ...,
    backward: bool = ...,
    causal: bool = ...,
    align: Literal["top-left", "bottom-right"] | None = ...,
    past: int | None = ...,
    layout: Literal["rows", "columns"] | None = ...,
    scale: float | None = ...,
    rope: bool = ...,
    rope_theta: float | None = ...,
    softcap: float | None = ...,
    layer: int | str | None = ...,
    head: int | str | None = ...,
    text: str | Sequence[str] | None = ...,
    ids: Any = ...,
    tokens: str | Sequence[str] | None = ...,
    adapter: Any = ...,
    sort: str | None = ...,
    reverse: bool = ...,
    top: int | None = ...,
    dtype: str | None = ...,
    seed: int | None = ...,
    draw: Literal["normal", "uniform"] | None = ...,
    progress: Progress = ...,
) -> Comparison | HeadDifferences | MapDifferences: ...
def compare_checkpoints(
    a: Any,
    b: Any = ...,
    *,
    adapter: str | Path | None = ...,
    stack: str | None = ...,
    layers: Indices = ...,
    heads: Indices = ...,
    sort: str | None = ...,
    reverse: bool = ...,
    top: int | None = ...,
    progress: Progress = ...,
) -> HeadDifferences: ...
def compare_maps(
    a: Any,
    b: Any = ...,
    text: str | None = ...,
    other_text: str | None = ...,
    *,
    adapter: str | Path | None = ...,
    ids: str | Sequence[int] | None = ...,
    pair: str | None = ...,
    target: str | None = ...,
    image: Any = ...,
    truncate: bool = ...,
    stack: Literal["self", "encoder", "decoder", "cross", "text", "vision", "audio"] | None = ...,
    layers: Indices = ...,
    heads: Indices = ...,
    sort: str | None = ...,
    reverse: bool = ...,
    top: int | None = ...,
    dtype: str | None = ...,
    device: str = ...,
    memory: str | int | None = ...,
    tokenizer: Any = ...,
    image_processor: Any = ...,
    progress: Progress = ...,
) -> MapDifferences: ...
def effects(
    model: Any,
    text: Prompts | None = ...,
    *,
    answer: str | int | Sequence[int] | None = ...,
    against: str | int | Sequence[int] | None = ...,
    metric: str | None = ...,
    position: str | int | None = ...,
    file: str | Path | None = ...,
    corpus: str | Path | None = ...,
    ids: str | Sequence[int] | None = ...,
    tokens: str | Sequence[str] | None = ...,
    target: str | None = ...,
    corrupt: str | Sequence[int] | None = ...,
    truncate: bool = ...,
    columns: str | Sequence[str] | None = ...,
    at: str | int | Sequence[int] | None = ...,
    each_position: bool = ...,
    block: str | None = ...,
    sort: str | None = ...,
    reverse: bool = ...,
    top: int | None = ...,
    stack: str | None = ...,
    layers: Indices = ...,
    heads: Indices = ...,
    dtype: str | None = ...,
    device: str = ...,
    memory: str | int | None = ...,
    tokenizer: Any = ...,
    page: bool = ...,
    progress: Progress = ...,
) -> HeadEffects: ...
def head_weights(
    model: Any = ...,
    layer: int | None = ...,
    head: int = ...,
    *,
    stack: str | None = ...,
    circuits: bool = ...,
    verify: bool = ...,
    progress: Progress = ...,
) -> HeadWeights: ...
def inspect(
    target: Any,
    *args: Any,
    init: Texts | None = ...,
    inputs: Texts | None = ...,
    where: Sequence[str] | None = ...,
    call: str | None = ...,
    follow: Sequence[str] | None = ...,
    depth: int | None = ...,
    subexpressions: bool = ...,
    source: bool = ...,
    dtype: str | None = ...,
    device: str | None = ...,
    seed: int | None = ...,
    draw: Literal["normal", "uniform"] | None = ...,
    train: bool | None = ...,
    search: bool = ...,
    memory: str | int | None = ...,
    axes: Mapping[str, str | Sequence[str]] | None = ...,
    stats: bool = ...,
    keep: bool | Collection[str] = ...,
    progress: Progress = ...,
    **kwargs: Any,
) -> Trace: ...
def mask(
    subject: Any,
    *args: Any,
    text: str | Sequence[str] | None = ...,
    packed: bool = ...,
    file: str | Path | None = ...,
    ids: str | Sequence[int] | None = ...,
    tokens: str | Sequence[str] | None = ...,
    pair: str | None = ...,
    target: str | None = ...,
    image: Any = ...,
    truncate: bool = ...,
    layer: Indices = ...,
    stack: Literal["self", "encoder", "decoder", "cross", "text", "vision", "audio"] | None = ...,
    kernel: str | None = ...,
    verify: bool = ...,
    dtype: str | None = ...,
    device: str = ...,
    tokenizer: Any = ...,
    image_processor: Any = ...,
    nq: int | None = ...,
    nk: int | None = ...,
    past: int | None = ...,
    batch: int | None = ...,
    heads: int | None = ...,
    window: int | None = ...,
    align: Literal["top-left", "bottom-right", "after-past", "lengths"] | None = ...,
    init: Texts | None = ...,
    hides: int | None = ...,
    inputs: Inputs = ...,
    call: str | None = ...,
    block: int | str | Sequence[int] | None = ...,
    cell: int | None = ...,
    progress: Progress = ...,
) -> AttentionMasks: ...
def measure_scaling(
    widths: str | Iterable[int] = ...,
    *,
    batch: int = ...,
    nq: int = ...,
    nk: int = ...,
    seed: int | None = ...,
    draw: Literal["normal", "uniform"] | None = ...,
    dtype: str = ...,
    progress: Progress = ...,
) -> Scaling: ...
def read_head(
    model: Any = ...,
    *,
    layer: int | None = ...,
    head: int = ...,
    stack: str | None = ...,
) -> HeadWeights: ...
def trace_script(
    script: str | Path | None,
    arguments: Sequence[str] = ...,
    *,
    watch: str,
    module: str | None = ...,
    calls: int = ...,
    from_call: int = ...,
    until_not_finite: bool = ...,
    dims: Dims | None = ...,
    follow: Sequence[str] | None = ...,
    depth: int | None = ...,
    subexpressions: bool = ...,
    source: bool = ...,
    stats: bool = ...,
    recorded: Callable[[list[Trace]], None] | None = ...,
    note: Callable[[str, str | None], None] | None = ...,
    restore: bool = ...,
) -> ProgramRun: ...
def worked_example(
    layout: Literal["rows", "columns"] | None = ...,
    query: int | None = ...,
    *,
    x: Any = ...,
    wq: Any = ...,
    wk: Any = ...,
    wv: Any = ...,
    q: Any = ...,
    k: Any = ...,
    v: Any = ...,
    mask: list[Any] | None = ...,
    scale: float | None = ...,
    explain: bool = ...,
    progress: Progress = ...,
) -> WorkedExample: ...
