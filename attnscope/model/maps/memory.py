"""Decide whether maps are pooled, and check that they fit into memory, before a model runs."""

from __future__ import annotations

from typing import Any

from attnscope.base.errors import OptionError, SizeError
from attnscope.base.process.budget import memory_budget, parse_size
from attnscope.base.process.devices import check_memory
from attnscope.base.process.progress import notify
from attnscope.base.spelling import spelled
from attnscope.base.units import bytes_text
from attnscope.model.maps.capture import HeadSelection
from attnscope.model.maps.collect import bytes_of_maps, number_of_maps
from attnscope.model.maps.metrics import N_PAIRS
from attnscope.model.maps.pooled import MAX_CELLS
from attnscope.model.maps.request import MapRequest
from attnscope.model.run.memory_plan import MemoryPlan, Needs
from attnscope.model.run.open import OpenedModel
from attnscope.model.run.tokenize import Reading

WHOLE = 2**28
"""Maps that take less than 256 MiB together are not pooled unless requested."""


def is_pooled(request: MapRequest, config: Any, reading: Reading, selection: HeadSelection) -> bool:
    """Decide whether maps are pooled during the run: because whole ones are too large, or on request.

    With `pool="none"`, they are pooled only if whole ones are needed for nothing but a file, and do not
    fit into memory: then only the picture is pooled.
    """
    if request.inputs.image is not None or request.display.rollout:  # which multiplies whole maps
        return False
    whole = bytes_of_maps(config, reading, selection)
    most = min(WHOLE, parse_size(request.run.memory)) if request.run.memory else WHOLE
    if whole < most:
        return request.display.pools
    for needs_whole, what, hint in (
        (
            request.parts.steps,
            "the steps of a layer are whole tensors of queries and keys",
            "a shorter text",
        ),
        (
            request.parts.verify,
            f"{spelled('verify')} needs whole maps of the model's own eager attention",
            "a shorter text, or fewer heads",
        ),
    ):
        if needs_whole:
            raise OptionError(f"{what}, and these maps take {bytes_text(whole)}.", hint=hint)
    if request.display.pool is None:
        saved = f", and written whole by {spelled('save')}" if request.parts.save else ""
        notify(f"whole maps would take {bytes_text(whole)}: they are pooled{saved}", important=True)
        return True
    if request.display.pool == "none" and request.parts.save and request.parts.copies == 0:
        return bytes_of_whole(request, config, reading, selection) > memory_budget(
            request.run.memory, "cpu"
        )
    return request.display.pools


def bytes_of_whole(request: MapRequest, config: Any, reading: Reading, selection: HeadSelection) -> int:
    """Return the bytes of whole maps and of what is computed from them."""
    whole = bytes_of_maps(config, reading, selection) * (1 + request.keeps_weights)
    one = whole // number_of_maps(config, reading, selection)  # a copy of the one that is shown
    return max(request.parts.copies, 1) * whole + one


def check_fits(
    request: MapRequest, opened: OpenedModel, reading: Reading, selection: HeadSelection, *, pooled: bool
) -> None:
    """Raise a SizeError unless the model's weights and its maps fit into memory together."""
    if pooled:
        opened.check_fits(_needs(request, opened, reading, selection), "reading", _shorter())
        return
    if request.parts.page:
        from attnscope.document.page.page import check_map_size

        check_map_size(n_tokens(request, reading))
    needed = bytes_of_whole(request, opened.config, reading, selection)
    memory = request.run.memory
    hint = f"fewer maps: {spelled(layers='0-3', heads=0)}; or a shorter text"
    if request.display.pool == "none":
        hint += f"; or, without {spelled('pool', 'none')}, pooled maps"
    if request.display.pool == "none" and memory and needed > parse_size(memory):
        raise SizeError(
            f"whole maps and what is computed from them take {bytes_text(needed)}, but"
            f" {spelled('memory')} is {memory}.",
            hint=hint,
        )
    check_memory(needed, "cpu", hint)
    opened.check_weights_fit(needed if opened.device == "cpu" else 0)


def plan_pooling(
    request: MapRequest, opened: OpenedModel, reading: Reading, selection: HeadSelection
) -> MemoryPlan:
    """Divide the memory between a block of weights and the rest, and report how."""
    plan = opened.plan(_needs(request, opened, reading, selection), _shorter())
    plan.report()
    return plan


def n_tokens(request: MapRequest, reading: Reading) -> int:
    """Return the number of tokens of the longest input, including those to be generated."""
    return max(len(reading.source), len(reading.labels)) + (request.inputs.generate or 0)


def separators(reading: Reading) -> set[str]:
    """Return the special tokens that end a text, as the tokenizer writes them."""
    names = (getattr(reading.tokenizer, name, None) for name in ("sep_token", "eos_token"))
    return {name for name in names if isinstance(name, str)}


def _needs(
    request: MapRequest, opened: OpenedModel, reading: Reading, selection: HeadSelection
) -> Needs:
    """Return what a run needs that keeps pooled maps, and the values of each pair of tokens."""
    n = n_tokens(request, reading)
    kept = 2 * 4 * min(n, MAX_CELLS) ** 2 * number_of_maps(opened.config, reading, selection)
    kept *= 1 + request.keeps_weights
    kept += 12 * n * (request.display.top or 0)
    return opened.needs(1, n, kept=kept, pairs=N_PAIRS if request.parts.page else 0)


def _shorter() -> str:
    """Return the hint for pooled maps that do not fit into memory."""
    return f"a shorter text; or more {spelled('memory')}, if available"
