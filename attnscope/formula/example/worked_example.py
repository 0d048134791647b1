"""The worked example: its numbers, its three forms, and their comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite, isinf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.base.arrays import largest_difference
from attnscope.base.errors import OptionError, SizeError
from attnscope.base.options import VectorLayout, with_keywords
from attnscope.base.process.progress import Progress, silent, stage, without_garbage_collection
from attnscope.base.sizes import called, shape_of
from attnscope.base.spelling import spelled
from attnscope.base.tensor_files import TensorFile, TensorInMemory
from attnscope.document.result import Check
from attnscope.formula.computation import run
from attnscope.formula.example.result import WorkedExample
from attnscope.formula.forms import check_query, form_computation
from attnscope.formula.inputs.resolve import NAMES, inputs_of_sdpa, open_tensors
from attnscope.formula.options import (
    ExampleForms,
    ExampleNumbers,
    ExampleText,
    Masking,
    Scale,
    Stages,
)
from attnscope.formula.variants import Variants, variants_of
from attnscope.observe.trace import Trace

if TYPE_CHECKING:
    import numpy as np

EXAMPLE = {
    "X": [[1, 1, 1, 0], [1, 2, 1, 0], [0, 1, 0, 1], [0, 1, 1, 0]],
    "W_Q": [[1, 0, 1], [1, 1, 1], [0, 0, 1], [1, 0, 0]],
    "W_K": [[1, 0, 0], [1, 1, 1], [1, 0, 1], [0, 1, 0]],
    "W_V": [[1, 2, 0], [1, 3, 1], [1, 0, 2], [1, 1, 0]],
}
"""Four embeddings, and the weights that project them to queries, keys and values."""

FORMS = {"rows": "sdpa", "columns": "columns", "query": "query"}
"""The forms of the example, and their names in the textbook."""

TITLES = {
    "rows": "by rows: softmax(Q·Kᵀ{scale})·V",
    "columns": "by columns: V·softmax(Kᵀ·Q{scale}), everything transposed",
    "query": "query {query} as vectors: Σ_j softmax_j(k_j·q{scale}) v_j, term by term",
}
TOLERANCE = 1e-12
"""All forms run in float64; they add in different orders, so their last bits may differ."""
MAX_SHOWN = 12
"""The largest number of rows, or of columns, that is shown whole."""
LARGEST = 1e6
"""The largest magnitude of a number that one would work with by hand."""

AXES = ("n_batch", "n_head", "n_kv_head", "n_Q", "n_new", "n_past", "d_K", "d_V")
"""The sizes of `sdpa` that options set, and that matrices determine here."""

Matrices = dict[str, TensorFile]
"""The inputs by name: X, W_Q, W_K and W_V, or Q, K and V."""


@with_keywords
def worked_example(
    forms: ExampleForms,
    *,
    numbers: ExampleNumbers,
    text: ExampleText,
    progress: Progress = silent,
) -> WorkedExample:
    """Work out the formula with a few numbers: by rows, by columns, and as vectors.

    Each matrix is a nested list, an array, a tensor, a file, or a text such as `"[[1, 0], [0, 1]]"`, of
    at most 12 rows and columns. Without `q`, `k` and `v`, those that are not set are the example's own.

    Args:
        progress: receives reports of the progress.

    Returns:
        The traces of the forms, with every tensor: X is `n_Q d_feat`, the weights are `d_feat d_K` and
        `d_feat d_V`, the scores `n_Q n_K`, the result `n_Q d_V`; by columns, all are transposed.

    Raises:
        SizeError: there is no such query; or matrices do not fit together, or are too large.
        OptionError: there is no such layout, or a matrix is none, or has no finite numbers.
        FileError: a file cannot be read.

    >>> worked_example()["rows"]["Q"].tensor.tolist()[0]
    [2.0, 1.0, 3.0]
    >>> worked_example(q=[[1, 0]], k=[[1, 0], [0, 1]], v=[[1], [0]])["rows"]["scores"].tensor.shape
    torch.Size([1, 2])
    """
    from attnscope.base.process.memory import check_imports

    only, query = forms.layout and VectorLayout(forms.layout), forms.query
    columns = only is VectorLayout.COLUMNS
    names = ("x", "q", "k", "v", "wq", "wk", "wv")
    matrices = _matrices({name: getattr(numbers, name) for name in names}, columns=columns)
    variants = variants_of(Masking(numbers.mask), Scale(numbers.scale), Stages())
    sizes = _sizes(matrices, variants, columns=columns)
    check_query(query, sizes["n_Q"])
    everything = only is None and query is None
    shown = ["rows"] if everything or only is VectorLayout.ROWS else []
    shown += ["columns"] if everything or columns else []
    shown += ["query"] if everything or query is not None else []

    check_imports()
    with stage(progress, "computing the example …"):
        with without_garbage_collection():
            import torch  # noqa: F401
        by_rows = {name: _numbers(file, columns=columns) for name, file in matrices.items()}
        traces = {form: _worked_out(form, by_rows, variants, query or 0, columns) for form in FORMS}
        for form, trace in traces.items():
            _explain_numbers(trace, form, query or 0) if text.explain else _drop_explanations(trace)
        _compare(traces, query or 0, _tolerance(by_rows, traces["rows"].options["scale"]))
    return WorkedExample({form: traces[form] for form in shown})


def _matrices(values: Mapping[str, Any], *, columns: bool) -> Matrices:
    """Return the inputs: the user's matrices, and the example's own in place of the others.

    Args:
        values: the user's matrices by option; None: not set.
        columns: whether their vectors are columns.
    """
    users = open_tensors(values)
    for file in users.values():
        _check_shape(file)
    if {"Q", "K", "V"} & set(users):
        missing = [name.lower() for name in "QKV" if name not in users]
        if missing and not set(users) - {"Q", "K", "V"}:
            raise OptionError(
                f"Q, K and V belong together, and there is no {' and no '.join(map(spelled, missing))}.",
                hint=spelled(**dict.fromkeys(missing, '"[[1,2],[3,4]]"')),
            )
        return users
    return _in_memory(EXAMPLE, columns=columns) | users


def _check_shape(file: TensorFile) -> None:
    """Raise a SizeError unless a matrix has two axes and can be shown whole."""
    if len(file.shape) != 2:
        raise SizeError(
            f"{called(file)} is {shape_of(file)}, and the example takes matrices.",
            hint="two axes, as [[1, 0], [0, 1]]",
        )
    if max(file.shape) > MAX_SHOWN:
        raise SizeError(
            f"{called(file)} is {shape_of(file)}, and the example shows every number: it takes at most"
            f" {MAX_SHOWN} rows and {MAX_SHOWN} columns.",
            hint=f"attnscope sdpa --{_option(file.name)} … --numbers",
        )


def _option(name: str) -> str:
    """Return the option of a matrix: `wq` for `W_Q`."""
    return next(option for option, of in NAMES.items() if of == name)


def _in_memory(matrices: Mapping[str, Sequence[Sequence[float]]], *, columns: bool) -> Matrices:
    """Return matrices by rows as inputs; with `columns`, transposed. Numpy is not imported."""
    files: Matrices = {}
    for name, rows in matrices.items():
        lines = list(zip(*rows, strict=True)) if columns else rows
        shape = len(lines), len(lines[0])
        files[name] = TensorInMemory(name, Path(), None, shape, "float64", lines, source="the example")
    return files


def _sizes(matrices: Matrices, variants: Variants, *, columns: bool) -> dict[str, int]:
    """Return the sizes of the example; raise an AttnscopeError if the inputs do not fit together."""
    try:
        inputs = inputs_of_sdpa(
            dict.fromkeys(AXES), matrices, variants.masks.files, "float64", columns=columns
        )
    except SizeError as error:
        own = [spelled(_option(name)) for name, file in matrices.items() if str(file) == "the example"]
        hint = f"{', '.join(own)} too: without them, the example's own are used" if own else error.hint
        raise SizeError(error.message, hint=hint) from error
    variants.masks_for(inputs.sizes, "float64", columns=columns).dims(inputs.sizes)
    return inputs.sizes


def _numbers(file: TensorFile, *, columns: bool) -> np.ndarray:
    """Return the numbers of a matrix in float64, by rows.

    Raises:
        OptionError: one is NaN, infinite, or too large to work with by hand.
    """
    import numpy as np

    array: np.ndarray = file.load().double().numpy()
    for (row, column), value in np.ndenumerate(array):
        if not abs(value) <= LARGEST:
            raise OptionError(
                f"{called(file)} has {value:g} in row {row}, column {column}, and the example takes"
                f" numbers from {-LARGEST:g} to {LARGEST:g}.",
                hint=f"attnscope sdpa --{_option(file.name)} … --numbers",
            )
    return array.T if columns else array


def _worked_out(
    form: str, by_rows: Mapping[str, np.ndarray], variants: Variants, query: int, columns: bool
) -> Trace:
    """Return the example in one form, with the tensor of every step.

    Args:
        form: one of `FORMS`.
        by_rows: the inputs, by rows.
        variants: the mask and the scale.
        query: the index of the query, for the form `query`.
        columns: whether a mask from a file has the queries as its columns.
    """
    upright = form == "columns"
    files = _in_memory({name: array.tolist() for name, array in by_rows.items()}, columns=upright)
    inputs = inputs_of_sdpa(dict.fromkeys(AXES), files, [], "float64", columns=upright)
    masks = variants.masks_for(inputs.sizes, "float64", columns=columns)
    computation = form_computation(
        FORMS[form], inputs, variants, masks, query=query if form == "query" else None
    )
    trace = computation.plan
    factor = "/√d_K" if variants.scale is None else "·scale"
    trace.title = TITLES[form].format(scale=factor, query=query)
    trace.steps = run(trace, computation.calls("cpu"), keep=True)
    trace.device = "cpu"
    return trace


def _drop_explanations(trace: Trace) -> None:
    for step in trace.steps:
        step.why = None


def _explain_numbers(trace: Trace, form: str, query: int) -> None:
    """Add to each step's explanation the calculation of one number, to check by hand."""
    vectors = {name: trace[name].tensor for name in ("Q", "K", "V")}
    if form == "columns":
        vectors = {name: tensor.mT for name, tensor in vectors.items()}
    q, k = vectors["Q"][query].tolist(), vectors["K"][0].tolist()
    values = vectors["V"][:, 0].tolist()
    place = {"rows": (query,), "columns": (..., query), "query": (..., 0)}[form]
    names = [step.name for step in trace.steps]
    entering = "scores_masked" if "scores_masked" in names else "scores"
    scores, masked, weights = (
        trace[name].tensor[place].tolist() for name in ("scores", entering, "attention")
    )
    products = " + ".join(f"{_factor(a)}·{_factor(b)}" for a, b in zip(q, k, strict=True))
    product = sum(a * b for a, b in zip(q, k, strict=True))
    by_d_K = "scale_by" in trace.options
    scaled = f"{product:g} / √{len(k)}" if by_d_K else f"{_factor(product)}·{trace.options['scale']:g}"
    by_hand = {"scores": f"q{query} and k0: {products} = {product:g}, and {scaled} = {scores[0]:.4f}"}
    seen = [score for score in masked if not isinf(score)]
    if seen and all(isfinite(weight) for weight in weights):
        powers = " + ".join(f"e^{score:.4f}" for score in seen)
        quotient = f"e^{masked[0]:.4f} / ({powers}) = {weights[0]:.4f}"
        by_hand["attention"] = f"q{query} and k0: {'hidden, so 0' if isinf(masked[0]) else quotient}"
        terms = " + ".join(f"{w:.4f}·{_factor(value)}" for w, value in zip(weights, values, strict=True))
        out = sum(weight * value for weight, value in zip(weights, values, strict=True))
        by_hand["out"] = f"The first number of q{query}: {terms} = {out:.4f}"
    for name, sentence in by_hand.items():
        trace[name].why = f"{trace[name].why}. {sentence}"


def _factor(number: float) -> str:
    """Format a factor of a product: negative ones in parentheses."""
    return f"({number:g})" if number < 0 else f"{number:g}"


def _tolerance(by_rows: Mapping[str, np.ndarray], scale: float) -> float:
    """Return the largest difference of results that rounding in float64 explains.

    The error of a sum is at most its length times ε times the sum of the magnitudes, and softmax turns a
    difference of scores into a relative difference of weights.
    """
    import numpy as np

    sizes = {name: np.abs(array) for name, array in by_rows.items()}
    if "X" in sizes:
        sizes |= {name: sizes["X"] @ sizes[f"W_{name}"] for name in "QKV"}
    scores = (sizes["Q"] @ sizes["K"].T * abs(scale)).max()
    bound = 2 * MAX_SHOWN * np.finfo(np.float64).eps * (1 + scores) * sizes["V"].max()
    return max(TOLERANCE, float(bound))


def _compare(traces: Mapping[str, Trace], query: int, tolerance: float) -> None:
    """Compare the result of each form with that by rows."""
    rows, columns, one = (traces[form]["out"].tensor for form in FORMS)
    pairs = {
        "columns": ("out, transposed, equals out by rows", columns.mT, rows),
        "query": (f"out equals row {query} of out by rows", one, rows[query]),
    }
    for form, (name, actual, expected) in pairs.items():
        traces[form].checks = [Check.within(name, largest_difference(actual, expected), tolerance)]
