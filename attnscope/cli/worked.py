"""The worked example: its numbers, its runs in three forms, and their comparison."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.cli.forms import calls_of, plan_of
from attnscope.cli.textbook import run
from attnscope.cli.variants import Variants
from attnscope.results.common import Check
from attnscope.results.trace import Trace
from attnscope.tensor_files import TensorFile
from attnscope.textbook.inputs.resolve import given_to_sdpa

if TYPE_CHECKING:
    import torch

EXAMPLE = {
    "X": [[1, 1, 1, 0], [1, 2, 1, 0], [0, 1, 0, 1], [0, 1, 1, 0]],
    "W_Q": [[1, 0, 1], [1, 1, 1], [0, 0, 1], [1, 0, 0]],
    "W_K": [[1, 0, 0], [1, 1, 1], [1, 0, 1], [0, 1, 0]],
    "W_V": [[1, 2, 0], [1, 3, 1], [1, 0, 2], [1, 1, 0]],
}
"""Four embeddings, and what makes queries, keys and values of them."""

TITLES = {
    "sdpa": "by rows: softmax(Q·Kᵀ/√d_K)·V",
    "columns": "by columns: V·softmax(Kᵀ·Q/√d_K), everything transposed",
    "query": "query {} as vectors: Σ_j softmax_j(k_j·q/√d_K) v_j, term by term",
}
TOLERANCE = 1e-12
"""All is computed in float64; the forms add in another order, and so may differ in the last bits."""


@dataclass(frozen=True)
class Constant(TensorFile):
    """A tensor of the example, as if it came from a file."""

    rows: Any = None

    def __str__(self) -> str:
        return "the example"

    def load(self) -> torch.Tensor:
        import torch

        return torch.tensor(self.rows, dtype=torch.float64)


def worked(form: str, query: int, explain: bool) -> Trace:
    """The example in one form, with every step's tensor."""
    files: dict[str, TensorFile] = {
        name: Constant(name, Path(name), None, (len(rows), len(rows[0])), "float64", rows)
        for name, rows in EXAMPLE.items()
    }
    asked = Variants()
    unset = dict.fromkeys(("n_batch", "n_head", "n_kv_head", "n_Q", "n_new", "n_past", "d_K", "d_V"))
    given = given_to_sdpa(unset, files, [], None)
    plan = plan_of(form, given, asked, asked.masks)
    if form == "query":
        plan.options["query"] = query
    plan.title = TITLES[form].format(query)
    if not explain:
        for step in plan.steps:
            step.why = None
    steps = run(plan, lambda: calls_of(form, plan, given, asked, asked.masks, "cpu", 0), keep=True)
    plan.steps, plan.device = steps, "cpu"
    if explain:
        _work_out(plan, form, query)
    return plan


def _work_out(trace: Trace, form: str, query: int) -> None:
    """Add to the sentences how one number of each step is made, so that it can be checked by hand."""
    vectors = {name: trace[name].tensor for name in ("Q", "K", "V")}
    if form == "columns":
        vectors = {name: tensor.mT for name, tensor in vectors.items()}
    q, k = vectors["Q"][query].tolist(), vectors["K"][0].tolist()
    values = vectors["V"][:, 0].tolist()
    place = {"sdpa": (query,), "columns": (..., query), "query": (..., 0)}[form]
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


def compare(traces: dict[str, Trace], query: int) -> None:
    """Hold the result of each form against that by rows."""
    rows, columns, one = (traces[form]["out"].tensor for form in ("sdpa", "columns", "query"))
    pairs = {
        "columns": ("out, transposed, is out by rows", columns.mT, rows),
        "query": (f"out is row {query} of out by rows", one, rows[query]),
    }
    for form, (name, ours, theirs) in pairs.items():
        difference = float((ours - theirs).abs().max())
        traces[form].checks = [Check(name, difference, TOLERANCE, ok=difference <= TOLERANCE)]
