"""Kernels: eager, sdpa and flex attention compute the same, with the same masks."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from attnscope.influence.measure.moved import Moved, Rows, moved
from attnscope.influence.models.probe import Probe
from attnscope.influence.properties.causal import equality
from attnscope.models.running.load import set_attention
from attnscope.results.audit import BROKEN, HOLDS, NOT_APPLICABLE, UNDECIDED, Evidence, Property

NAME = "kernels"


def kernels(probe: Probe, requested: bool) -> Property:
    """Run the model with each of its kernels."""
    names = supported(probe.subject.module)
    own = probe.subject.config._attn_implementation
    if len(names) < 2:
        why = f"{type(probe.subject.module).__name__} has only {', '.join(names) or own}"
        return Property(NAME, NOT_APPLICABLE, why, "", requested=requested)
    source = f"{type(probe.subject.module).__name__} has {', '.join(names)}"
    done, left_out, amounts = [], [], []
    for name in names:
        if name == own:
            continue
        found = _compared(probe, name)
        if found.status == "moved":
            index = probe.subject.layers.get(found.stage)
            evidence = Evidence(
                f"{name} instead of {own}",
                found.position,
                found.amount,
                found.rounding,
                index,
                found.stage,
            )
            text = f"{name} and {own} differ at position {found.position}"
            return Property(NAME, BROKEN, source, text, evidence, requested)
        if found.status == "undecided":
            left_out.append(f"{name}: {found.why}")
        else:
            done.append(name)
            amounts.append(found.amount)
    if not done:
        return Property(NAME, UNDECIDED, source, "; ".join(left_out), requested=requested)
    text = f"{', '.join([own, *done])} agree, {equality(max(amounts))}"
    if left_out:
        text += f"; undecided: {'; '.join(left_out)}"
    return Property(NAME, HOLDS, source, text, requested=requested)


def supported(model: Any) -> list[str]:
    """Return the kernels that a model can run with here."""
    names = []
    for name, flag in (
        ("eager", None),
        ("sdpa", "_supports_sdpa"),
        ("flex_attention", "_supports_flex_attn"),
    ):
        if flag is None or getattr(model, flag, False):
            names.append(name)
    return names


def _compared(probe: Probe, name: str) -> Moved:
    def runs(exact: bool) -> tuple[Rows, Rows]:
        own = probe.base(exact).rows()
        subject = probe.subject
        with _switched(subject.exact if exact else subject.module, name):
            return own, subject.run(exact=exact, **probe.inputs()).rows()

    try:
        return moved(runs)
    except Exception as error:
        lines = str(error).splitlines() or [""]
        return Moved("undecided", why=f"it raises {type(error).__name__}: {lines[0][:100]}")


@contextmanager
def _switched(model: Any, name: str) -> Iterator[None]:
    """Switch a model to another kernel; flex attention runs uncompiled, which takes no compiler."""
    import torch
    from torch.nn.attention.flex_attention import flex_attention
    from transformers.integrations import flex_attention as integration

    before = set_attention(model, name)
    try:
        with (
            patch.object(integration, "WrappedFlexAttention", lambda *_: lambda: flex_attention),
            torch.compiler.set_stance("force_eager"),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")  # flex attention's, that it is not compiled
            yield
    finally:
        for config, implementation in before:
            config._attn_implementation = implementation
