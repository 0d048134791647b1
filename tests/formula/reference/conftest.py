"""Runs of the textbook to verify: traces, with the options that determine their numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from attnscope import trace_call
from attnscope.attention.columns import sdpa_columns
from attnscope.attention.mha import MultiHeadAttention
from attnscope.attention.one_query import sdpa_query
from attnscope.attention.projection import project, project_columns
from attnscope.attention.sdpa import sdpa
from attnscope.document.result import Check
from attnscope.formula.reference import verify
from attnscope.observe.trace import Trace

CODE = {"rows": sdpa, "columns": sdpa_columns, "query": sdpa_query}
LEAD = {"": (), "batch": (2,), "heads": (2, 4), "split": (2, 4)}
"""The leading axes of Q; `split` has the heads side by side at first."""


@dataclass
class Ran:
    """A finished run, its inputs, and the module's weights, for mha."""

    trace: Trace
    inputs: dict[str, torch.Tensor]
    weights: dict[str, torch.Tensor] = field(default_factory=dict)

    def checks(self) -> dict[str, Check]:
        """Return the checks by the first word of their names: `F`, `nn`, `naive` and `rows`."""
        checks = verify(self.trace, self.weights or None)
        assert [check.name for check in checks] == [
            "F.scaled_dot_product_attention",
            "nn.MultiheadAttention",
            "naive loop",
            "rows of attention",
        ]
        return {check.name.partition(" ")[0].partition(".")[0]: check for check in checks}

    def failed(self) -> set[str]:
        """Return the checks that fail."""
        return {name for name, check in self.checks().items() if check.ok is False}


def drawn_with(seed: int, dtype: torch.dtype, size: float) -> Callable[..., torch.Tensor]:
    """Return a function that draws tensors: standard normal, times `size`."""
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: (torch.randn(shape, generator=generator) * size).to(dtype)


@pytest.fixture(scope="session")
def run_sdpa() -> Callable[..., Ran]:
    """Return a function that runs `sdpa` in one of its forms: `run_sdpa("columns", n_past=3, softcap=2.0)`."""

    def run(
        form: str = "rows",
        *,
        lead: str = "heads",
        n_kv_head: int = 4,
        n_Q: int = 3,
        n_new: int = 5,
        n_past: int = 0,
        d_K: int = 6,
        d_V: int = 7,
        d_feat: int | None = None,
        mask: torch.Tensor | None = None,
        dtype: torch.dtype = torch.float64,
        seed: int = 0,
        size: float = 1.0,
        claims: dict[str, Any] | None = None,
        **options: Any,
    ) -> Ran:
        """Args: as the axes and options of the textbook; `d_feat`: Q, K and V are projections of X.

        `mask` is that of the rows' form. `claims` are options that the trace states otherwise.
        """
        draw = drawn_with(seed, dtype, size)
        of_Q = LEAD[lead]
        of_K = (*of_Q[:1], *((n_kv_head,) if len(of_Q) == 2 else ()))
        if d_feat is None:
            inputs = {
                "Q": draw(*of_Q, n_Q, d_K),
                "K": draw(*of_K, n_new, d_K),
                "V": draw(*of_K, n_new, d_V),
            }
            if lead == "split":
                inputs = {name: x.transpose(1, 2).flatten(2) for name, x in inputs.items()}
        else:
            heads = (
                {"Q": 4, "K": n_kv_head, "V": n_kv_head} if lead == "split" else dict.fromkeys("QKV", 1)
            )
            inputs = {"X": draw(*(of_Q[:1] if lead == "split" else of_Q), n_new, d_feat)}
            weights = {"Q": d_K, "K": d_K, "V": d_V}
            inputs |= {f"W_{name}": draw(d_feat, heads[name] * d) for name, d in weights.items()}
        if mask is not None:
            inputs["mask"] = mask
        if n_past:
            inputs |= {"K_past": draw(*of_K, n_past, d_K), "V_past": draw(*of_K, n_past, d_V)}
        given = inputs if form != "columns" else {name: x.mT for name, x in inputs.items()}
        told = dict(options)
        if lead == "split":
            told |= {"n_head": 4, "n_kv_head": n_kv_head}

        steps = []
        if d_feat is not None:
            first = {name: given[name] for name in ("X", "W_Q", "W_K", "W_V")}
            given = {name: x for name, x in given.items() if name not in first}
            steps = trace_call(
                project_columns if form == "columns" else project, **first, keep=True
            ).steps
            given |= {step.name: step.tensor for step in steps if step.name in "QKV"}
        trace = trace_call(CODE[form], **given, **told, keep=True)
        assert trace.sizes
        known = {step.name for step in steps}
        trace.steps = steps + [step for step in trace.steps if step.name not in known]
        stated = {"scale": d_K**-0.5, **options, **_stated(mask, dtype, options), **(claims or {})}
        trace.options = stated | ({"layout": "columns"} if form == "columns" else {})
        return Ran(trace, inputs)

    return run


@pytest.fixture(scope="session")
def run_mha() -> Callable[..., Ran]:
    """Return a function that runs multi-head attention: `run_mha(n_kv_head=2, bias=False)`."""

    def run(
        *,
        n_batch: int = 2,
        n_head: int = 4,
        n_kv_head: int = 4,
        n_Q: int = 3,
        n_new: int | None = None,
        n_past: int = 0,
        d_head: int = 6,
        d_V: int | None = None,
        d_context: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        mask: torch.Tensor | None = None,
        dtype: torch.dtype = torch.float64,
        seed: int = 0,
        size: float = 1.0,
        claims: dict[str, Any] | None = None,
        **options: Any,
    ) -> Ran:
        """Args: as of the textbook; without `n_new` it attends to itself. `dropout` is active."""
        torch.manual_seed(seed)
        draw = drawn_with(seed, dtype, size)
        widths = {"d_feat": n_head * d_head, "n_head": n_head, "n_kv_head": n_kv_head, "d_V": d_V}
        mha = MultiHeadAttention(
            **widths, d_context=d_context, bias=bias, dropout=dropout, dtype=dtype, **options
        )
        Q = draw(n_batch, n_Q, n_head * d_head)
        K = Q if n_new is None else draw(n_batch, n_new, d_context or n_head * d_head)
        inputs = {"Q": Q, "K": K, "V": K}
        if mask is not None:
            inputs["mask"] = mask
        if n_past:
            inputs["K_past"] = draw(n_batch, n_kv_head, n_past, d_head)
            inputs["V_past"] = draw(n_batch, n_kv_head, n_past, d_V or d_head)
        trace = trace_call(mha, **inputs, keep=True)
        assert trace.sizes
        stated = {**options, "scale": mha.scale, "dropout": dropout, "mode": "train", "bias": bias}
        trace.options = stated | _stated(mask, dtype, options) | (claims or {})
        return Ran(trace, inputs, {name: x.clone() for name, x in mha.state_dict().items()})

    return run


def _stated(mask: torch.Tensor | None, dtype: torch.dtype, options: dict[str, Any]) -> dict[str, Any]:
    """Return the trace's options of mask and softmax."""
    softmax = options.get("softmax_dtype", dtype)
    stated = {"softmax_dtype": str(softmax).removeprefix("torch.")}
    if mask is not None:
        stated |= {"mask_style": "bool" if mask.dtype == torch.bool else "additive"}
        stated |= {"mask_fill": options.get("mask_fill", float("-inf"))}
    return stated
