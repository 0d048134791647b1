"""Decide whether maps are pooled, and check that they fit into memory, before a model runs."""

from __future__ import annotations

from typing import Any

from attnscope.checkpoints.checkpoint import Checkpoint
from attnscope.dtypes import FLOATS
from attnscope.errors import OptionError, SizeError
from attnscope.maps.metrics import N_PAIRS
from attnscope.maps.pool import MAX_CELLS
from attnscope.maps.pooled import Pooled
from attnscope.maps.request import MapRequest
from attnscope.models.maps.capture import HeadSelection
from attnscope.models.maps.collect import bytes_of_maps, number_of_maps
from attnscope.models.memory_plan import needs_of, plan_run, tokens_text
from attnscope.models.tokenize import Reading
from attnscope.models.weights_fit import dtype_of
from attnscope.process.budget import memory_budget, parse_size
from attnscope.process.devices import check_memory
from attnscope.process.progress import notify
from attnscope.units import bytes_text

WHOLE = 2**28
"""Maps that take less than 256 MiB together are not pooled unless requested."""

SHORTER = "a shorter text; or more --memory, if available"
"""The hint for pooled maps that do not fit into memory."""


def is_pooled(request: MapRequest, config: Any, reading: Reading, selection: HeadSelection) -> bool:
    """Decide whether maps are pooled during the run: because whole ones are too large, or on request.

    With `pool="none"`, they are pooled only if whole ones are needed for nothing but a file, and do not
    fit into memory: then only the picture is pooled.

    Raises:
        OptionError: whole ones are too large, but `steps` or `verify` needs them.
    """
    if request.inputs.image is not None or request.display.rollout:  # which multiplies whole maps
        return False
    whole = bytes_of_maps(config, reading, selection)
    most = min(WHOLE, parse_size(request.run.memory)) if request.run.memory else WHOLE
    if whole < most:
        return request.display.pools
    for option, needs_whole, why in (
        ("--steps", request.steps, "needs whole tensors of queries and keys"),
        ("--verify", request.verify, "needs whole maps of the model's own eager attention"),
    ):
        if needs_whole:
            raise OptionError(
                f"{option} {why}, and these maps take {bytes_text(whole)}.",
                hint="a shorter text, or fewer heads",
            )
    if request.display.pool is None:
        saved = ", and written whole by --save" if request.save else ""
        notify(f"whole maps would take {bytes_text(whole)}: they are pooled{saved}", important=True)
        return True
    if request.display.pool == "none" and request.save and request.copies == 0:
        return bytes_of_whole(request, config, reading, selection) > memory_budget(
            request.run.memory, "cpu"
        )
    return request.display.pools


def bytes_of_whole(request: MapRequest, config: Any, reading: Reading, selection: HeadSelection) -> int:
    """Return the bytes of whole maps and of what is computed from them."""
    whole = bytes_of_maps(config, reading, selection) * (1 + request.keeps_weights)
    one = whole // number_of_maps(config, reading, selection)  # a copy of the one that is shown
    return max(request.copies, 1) * whole + one


def check_whole_maps(
    request: MapRequest, config: Any, reading: Reading, selection: HeadSelection
) -> None:
    """Raise a SizeError unless whole maps fit into memory."""
    needed, memory = bytes_of_whole(request, config, reading, selection), request.run.memory
    hint = "fewer maps: --layer 0-3 --head 0; or a shorter text"
    if request.display.pool == "none":
        hint += "; or, without --pool none, pooled maps"
    if request.display.pool == "none" and memory and needed > parse_size(memory):
        raise SizeError(
            f"whole maps and what is computed from them take {bytes_text(needed)}, but --memory is"
            f" {memory}.",
            hint=hint,
        )
    check_memory(needed, "cpu", hint)


def plan_pooling(
    request: MapRequest,
    checkpoint: Checkpoint,
    model: Any,
    reading: Reading,
    selection: HeadSelection,
    stack: str,
    device: str,
) -> Pooled:
    """Divide the memory between a block of weights and the rest, and report how.

    Raises:
        OptionError: `memory` is not a size.
        SizeError: there is too little memory.
    """
    config, kept = model.config, _kept(request, model.config, reading, selection)
    needs = needs_of(config, model.dtype.itemsize, 1, n_tokens(request, reading), **kept)
    plan = plan_run(checkpoint.name, needs, memory_budget(request.run.memory, device), device, SHORTER)
    plan.report()
    display = request.display
    of_queries = display.query is not None or display.top
    return Pooled(
        str(display.pool) if display.pools else "max",
        plan.block,
        display.query,
        display.top,
        request.shown_selection(stack) if of_queries else None,
        display.without_sink,
        separators=separators(reading) if request.page else None,
    )


def least_beside_weights(
    request: MapRequest, config: Any, reading: Reading, selection: HeadSelection
) -> dict[str, Any]:
    """Return the least memory for pooled maps beside weights, as arguments of `check_weights_fit`."""
    n = n_tokens(request, reading)
    itemsize = FLOATS.get(dtype_of(config, request.run.dtype), 4)
    needs = needs_of(config, itemsize, 1, n, **_kept(request, config, reading, selection))
    use = f"reading {tokens_text(1, n)} at least"
    return {"beside": needs.least, "what": use, "hint": SHORTER}


def n_tokens(request: MapRequest, reading: Reading) -> int:
    """Return the number of tokens of the longest input, including those to be generated."""
    return max(len(reading.source), len(reading.labels)) + (request.inputs.generate or 0)


def separators(reading: Reading) -> set[str]:
    """Return the special tokens that end a text, as the tokenizer writes them."""
    names = (getattr(reading.tokenizer, name, None) for name in ("sep_token", "eos_token"))
    return {name for name in names if isinstance(name, str)}


def _kept(
    request: MapRequest, config: Any, reading: Reading, selection: HeadSelection
) -> dict[str, Any]:
    """Return the bytes kept of pooled maps, and the number of values for each pair of tokens."""
    n = n_tokens(request, reading)
    kept = 2 * 4 * min(n, MAX_CELLS) ** 2 * number_of_maps(config, reading, selection)
    kept *= 1 + request.keeps_weights
    kept += 12 * n * (request.display.top or 0)
    return {"kept": kept, "pairs": N_PAIRS if request.page else 0}
