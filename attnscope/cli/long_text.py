"""What `model` and `bert` do with a text that is too long for whole maps: they are pooled on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnscope.cli.given import memory_for
from attnscope.cli.output import tell
from attnscope.cli.request import Request
from attnscope.errors import OptionError
from attnscope.units import bytes_text

if TYPE_CHECKING:
    from attnscope.models.checkpoint import Checkpoint
    from attnscope.models.gallery import Wanted
    from attnscope.models.long_text import Pooled
    from attnscope.models.reading import Reading

WHOLE = 2**28
"""Maps that take less than 256 MiB together are held whole, as long as nobody asks for others."""


def pools(request: Request, config: Any, reading: Reading, wanted: Wanted) -> bool:
    """Whether maps are pooled on the way: because whole ones are too large, or on request.

    Raises:
        OptionError: whole ones are too large, and what is asked for takes them.
    """
    from attnscope.models.maps import bytes_of_maps
    from attnscope.models.plan import bytes_of

    whole = bytes_of_maps(config, reading, wanted)
    most = min(WHOLE, bytes_of(request.memory)) if request.memory else WHOLE
    if request.image is not None or whole < most:
        return request.pool is not None
    for option, given, why in (
        ("--steps", request.steps, "shows whole tensors of queries and keys"),
        ("--verify", request.verify, "compares with whole maps of the model's own eager attention"),
    ):
        if given:
            raise OptionError(
                f"{option} {why}, and these maps take {bytes_text(whole)}.",
                hint="a shorter text, or fewer heads",
            )
    if request.pool is None:
        tell(f"whole maps would take {bytes_text(whole)}: they are pooled")
    return True


def plan(
    request: Request, checkpoint: Checkpoint, model: Any, reading: Reading, wanted: Wanted, stack: str
) -> Pooled:
    """Divide the memory up, and say how.

    Raises:
        OptionError: `--memory` is no size.
        SizeError: there is too little.
    """
    from attnscope.models.cells import MOST
    from attnscope.models.gallery import Wanted
    from attnscope.models.long_text import Pooled
    from attnscope.models.maps import number_of_maps
    from attnscope.models.plan import plan_run

    n = max(len(reading.source), len(reading.labels)) + (request.generate or 0)
    kept = 2 * 4 * min(n, MOST) ** 2 * number_of_maps(model.config, reading, wanted)
    kept += 12 * n * (request.top or 0)
    memory = memory_for(request.memory, request.device)
    planned = plan_run(
        checkpoint.name,
        model.config,
        model.dtype.itemsize,
        *(1, n, memory, request.device),
        kept=kept,
        pairs=0,
        hint="a shorter text; or more --memory, if there is",
    )
    tell(f"{planned}")
    head = None
    if request.query is not None or request.top:
        layers = "first" if request.layer is None else request.layers
        head = Wanted(stack, layers, request.heads)  # type: ignore[arg-type]
    shown = request.pool or "max"
    return Pooled(shown, planned.block, request.query, request.top, head)
