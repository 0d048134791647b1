"""Kernels: eager, sdpa and flex attention compute the same, with the same masks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

from attnscope.auditing.measure.difference import Rows, RunDifference, difference_unless_it_raises
from attnscope.auditing.models.probe import Probe, PropertyTest, verdict
from attnscope.auditing.result import NOT_APPLICABLE, Evidence, Property
from attnscope.model.masks.model_masks import SUPPORTED
from attnscope.model.run.load import switched_attention

NAME = "kernels"


def kernels(probe: Probe) -> Property:
    """Run the model with each of its kernels."""
    names = supported(probe.subject.module)
    own = probe.subject.config._attn_implementation
    if len(names) < 2:
        why = f"{type(probe.subject.module).__name__} has only {', '.join(names) or own}"
        return Property(NAME, NOT_APPLICABLE, why, "")
    source = f"{type(probe.subject.module).__name__} has {', '.join(names)}"

    def weights(name: str) -> Callable[[Evidence], Evidence]:
        """Build the step that adds the keys with weight in a kernel, beside those in the model's own."""

        def add(evidence: Evidence) -> Evidence:
            before = {each.path: each.visible for each in probe.layer_masks}
            with _switched(probe.subject.module, name):
                return probe.with_weights(
                    evidence,
                    probe.inputs(),
                    f"with {name}; expected are those with {own}",
                    lambda mask: before[mask.path],
                )

        return add

    def variants() -> Iterator[PropertyTest]:
        for name in names:
            if name != own:
                found = _compared(probe, name)
                text = f"{name} and {own} differ at position {found.position}"
                yield PropertyTest(name, found, f"{name} instead of {own}", text, weights=weights(name))

    def agreement(others: list[str]) -> str:
        return f"{', '.join([own, *others])} agree"

    return verdict(probe, NAME, source, variants(), agreement)


def supported(model: Any) -> list[str]:
    """Return the kernels that a model can run with here."""
    return ["eager", *(name for name, flag in SUPPORTED.items() if getattr(model, flag, False))]


def _compared(probe: Probe, name: str) -> RunDifference:
    def runs(exact: bool) -> tuple[Rows, Rows]:
        own = probe.base(exact).rows()
        subject = probe.subject
        with _switched(subject.exact if exact else subject.module, name):
            return own, subject.run(exact=exact, **probe.inputs()).rows()

    return difference_unless_it_raises(runs, (Exception,))


@contextmanager
def _switched(model: Any, name: str) -> Iterator[None]:
    """Switch a model to another kernel; flex attention runs uncompiled, which takes no compiler."""
    from torch.nn.attention.flex_attention import flex_attention
    from transformers.integrations import flex_attention as integration

    with (
        switched_attention(model, name),
        patch.object(integration, "WrappedFlexAttention", lambda *_: lambda: flex_attention),
        torch.compiler.set_stance("force_eager"),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # flex attention's, that it is not compiled
        yield
