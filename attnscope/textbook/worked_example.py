"""The worked example: its numbers, its three forms, and their comparison."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from attnscope.arrays import largest_difference
from attnscope.options import one_of
from attnscope.process.progress import Progress, silent, stage, without_garbage_collection
from attnscope.results.common import Check
from attnscope.results.example import WorkedExample
from attnscope.results.trace import Trace
from attnscope.tensor_files import TensorFile, TensorInMemory
from attnscope.textbook.computation import run
from attnscope.textbook.forms import check_query, form_computation
from attnscope.textbook.inputs.resolve import inputs_of_sdpa
from attnscope.textbook.options import Masking, Scale, Stages, VectorLayout
from attnscope.textbook.variants import variants_of

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
    "rows": "by rows: softmax(Q·Kᵀ/√d_K)·V",
    "columns": "by columns: V·softmax(Kᵀ·Q/√d_K), everything transposed",
    "query": "query {} as vectors: Σ_j softmax_j(k_j·q/√d_K) v_j, term by term",
}
TOLERANCE = 1e-12
"""All forms run in float64; they add in different orders, so their last bits may differ."""


def worked_example(
    layout: str | None = None,
    query: int | None = None,
    *,
    explain: bool = True,
    progress: Progress = silent,
) -> WorkedExample:
    """Work out the formula with small whole numbers: by rows, by columns, and as vectors.

    Args:
        layout: `rows` or `columns`: only this form.
        query: the index of a query to show as vectors; only this form, unless `layout` is set too.
        explain: explain each step, with one of its numbers worked out (`step.why`).
        progress: receives reports of the progress.

    Returns:
        The traces of the forms, with every tensor: X is `n_Q d_feat`, the weights are `d_feat d_K` and
        `d_feat d_V`, the scores `n_Q n_K`, the result `n_Q d_V`; by columns, all are transposed.

    Raises:
        SizeError: there is no such query.
        OptionError: there is no such layout.

    >>> worked_example()["rows"]["Q"].tensor.tolist()[0]
    [2.0, 1.0, 3.0]
    """
    from attnscope.process.memory import check_imports

    only = one_of(VectorLayout, "--layout", layout)
    check_query(query, len(EXAMPLE["X"]))
    everything = only is None and query is None
    shown = ["rows"] if everything or only is VectorLayout.ROWS else []
    shown += ["columns"] if everything or only is VectorLayout.COLUMNS else []
    shown += ["query"] if everything or query is not None else []

    check_imports()
    with stage(progress, "working it out …"):
        with without_garbage_collection():
            import torch  # noqa: F401
        traces = {form: _worked_out(form, query or 0, explain) for form in FORMS}
        _compare(traces, query or 0)
    return WorkedExample({form: traces[form] for form in shown})


def _worked_out(form: str, query: int, explain: bool) -> Trace:
    """Return the example in one form, with the tensor of every step."""
    import numpy as np

    files: dict[str, TensorFile] = {}
    for name, rows in EXAMPLE.items():
        value = np.array(rows, dtype=np.float64)
        value = value.T if form == "columns" else value
        files[name] = TensorInMemory(
            name, Path(name), None, value.shape, "float64", value, source="the example"
        )
    axes = ("n_batch", "n_head", "n_kv_head", "n_Q", "n_new", "n_past", "d_K", "d_V")
    inputs = inputs_of_sdpa(dict.fromkeys(axes), files, [], None, columns=form == "columns")
    variants = variants_of(Masking(), Scale(), Stages())
    computation = form_computation(
        FORMS[form], inputs, variants, variants.masks, query=query if form == "query" else None
    )
    trace = computation.plan
    trace.title = TITLES[form].format(query)
    if not explain:
        for step in trace.steps:
            step.why = None
    trace.steps = run(trace, computation.calls("cpu"), keep=True)
    trace.device = "cpu"
    if explain:
        _explain_numbers(trace, form, query)
    return trace


def _explain_numbers(trace: Trace, form: str, query: int) -> None:
    """Add to each step's explanation the calculation of one number, to check by hand."""
    vectors = {name: trace[name].tensor for name in ("Q", "K", "V")}
    if form == "columns":
        vectors = {name: tensor.mT for name, tensor in vectors.items()}
    q, k = vectors["Q"][query].tolist(), vectors["K"][0].tolist()
    values = vectors["V"][:, 0].tolist()
    place = {"rows": (query,), "columns": (..., query), "query": (..., 0)}[form]
    scores, weights = (trace[name].tensor[place].tolist() for name in ("scores", "attention"))
    products = " + ".join(f"{a:g}·{b:g}" for a, b in zip(q, k, strict=True))
    product = sum(a * b for a, b in zip(q, k, strict=True))
    powers = " + ".join(f"e^{score:.4f}" for score in scores)
    terms = " + ".join(f"{weight:.4f}·{value:g}" for weight, value in zip(weights, values, strict=True))
    out = sum(weight * value for weight, value in zip(weights, values, strict=True))
    by_hand = {
        "scores": f"q{query} and k0: {products} = {product:g},"
        f" and {product:g} / √{len(k)} = {scores[0]:.4f}",
        "attention": f"q{query} and k0: e^{scores[0]:.4f} / ({powers}) = {weights[0]:.4f}",
        "out": f"The first number of q{query}: {terms} = {out:.4f}",
    }
    for name, sentence in by_hand.items():
        trace[name].why = f"{trace[name].why}. {sentence}"


def _compare(traces: Mapping[str, Trace], query: int) -> None:
    """Compare the result of each form with that by rows."""
    rows, columns, one = (traces[form]["out"].tensor for form in FORMS)
    pairs = {
        "columns": ("out, transposed, is out by rows", columns.mT, rows),
        "query": (f"out is row {query} of out by rows", one, rows[query]),
    }
    for form, (name, actual, expected) in pairs.items():
        traces[form].checks = [Check.within(name, largest_difference(actual, expected), TOLERANCE)]
