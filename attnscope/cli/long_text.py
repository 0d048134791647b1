"""What `model` and `bert` do with a text that is too long for whole maps: they are pooled on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnscope.cli.options import Format
from attnscope.cli.output import tell
from attnscope.cli.request import Request
from attnscope.errors import OptionError, SizeError
from attnscope.process.budget import memory_budget
from attnscope.units import bytes_text

if TYPE_CHECKING:
    import numpy as np

    from attnscope.checkpoints.find import Checkpoint
    from attnscope.models.maps.capture import Wanted
    from attnscope.models.maps.pooled import Pooled
    from attnscope.models.running.tokenize import Reading
    from attnscope.render.files.matrix_file import MatrixFile

WHOLE = 2**28
"""Maps that take less than 256 MiB together are held whole, as long as nobody asks for others."""


MEMORY_OF_A_FORMAT = {Format.TABLE: 1, Format.CSV: 1, Format.JSON: 20, Format.MARKDOWN: 60}
"""What printing whole maps takes, them included, in times of what they take themselves."""

MEMORY_OF_A_PICTURE = 10
"""The same of a page, and of a plot."""


def pools(request: Request, config: Any, reading: Reading, wanted: Wanted) -> bool:
    """Whether maps are pooled on the way: because whole ones are too large, or on request.

    With `--pool none` they are only if nothing but the file of `--save` needs them whole, and if they
    have no room in memory: then the terminal's picture is the only pooled thing.

    Raises:
        OptionError: whole ones are too large, and what is asked for takes them.
    """
    from attnscope.models.maps.collect import bytes_of_maps
    from attnscope.process.budget import parse_size

    whole = bytes_of_maps(config, reading, wanted)
    most = min(WHOLE, parse_size(request.memory)) if request.memory else WHOLE
    if request.image is not None:
        return False
    if whole < most:
        return request.pools
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
        saved = ", and whole in the file of --save" if request.save else ""
        tell(f"whole maps would take {bytes_text(whole)}: they are pooled{saved}")
        return True
    only_saved = request.format is Format.TABLE and not (request.page or request.plot or request.show)
    if request.pool == "none" and request.save and only_saved:
        return bytes_of_whole(request, config, reading, wanted) > memory_budget(request.memory, "cpu")
    return request.pools


SHORTER = "a shorter text; or more --memory, if there is"
"""What makes pooled maps fit."""


def bytes_of_whole(request: Request, config: Any, reading: Reading, wanted: Wanted) -> int:
    """What whole maps take, and what is made of them, in bytes."""
    from attnscope.models.maps.collect import bytes_of_maps, number_of_maps

    whole = bytes_of_maps(config, reading, wanted)
    one = whole // number_of_maps(config, reading, wanted)  # a copy of the one that is looked at
    drawn = request.page is not None or request.plot is not None
    times = max(MEMORY_OF_A_FORMAT[request.format], MEMORY_OF_A_PICTURE if drawn else 0)
    return times * whole + one


def check_room(request: Request, config: Any, reading: Reading, wanted: Wanted) -> None:
    """Raise a SizeError unless whole maps have room in memory."""
    from attnscope.process.budget import parse_size
    from attnscope.process.devices import check_memory

    needed = bytes_of_whole(request, config, reading, wanted)
    hint = "fewer of them: --layer 0-3 --head 0; or a shorter text"
    if request.pool == "none":
        hint += "; or, without --pool none, pooled maps"
    if request.pool == "none" and request.memory and needed > parse_size(request.memory):
        raise SizeError(
            f"whole maps, and what is made of them, take {bytes_text(needed)}, and --memory is"
            f" {request.memory}.",
            hint=hint,
        )
    check_memory(needed, "cpu", hint)


class HeadsFile:
    """Names whole maps, and hands them to a file while they are computed.

    Args:
        file: of matrices.
    """

    def __init__(self, file: MatrixFile) -> None:
        self.file = file
        self._one = False

    def begin(self, heads: Sequence[tuple[int, int]], shape: tuple[int, int]) -> None:
        """Get ready for the maps of these layers and heads, `n_Q n_K` each."""
        self._one = len(heads) == 1
        self.file.begin([self._name(*each) for each in heads], shape)

    def write(self, layer: int, head: int, row: int, rows: np.ndarray) -> None:
        """Write some rows of a map, from number `row` on."""
        self.file.write(self._name(layer, head), row, rows)

    def _name(self, layer: int, head: int) -> str:
        return name_of_map(layer, head, one=self._one)


def with_whole_maps(pooled: Pooled, request: Request, stack: str, file: MatrixFile) -> Pooled:
    """The same, and the whole maps of the heads that are asked for go into a file."""
    from attnscope.models.maps.capture import Wanted

    of_whole = Wanted(stack, _layers(request), request.heads)
    return replace(pooled, whole=HeadsFile(file), of_whole=of_whole)


def name_of_map(layer: int, head: int, *, one: bool) -> str:
    """What a head's map is called in a file: of `one` alone, `attention`."""
    return "attention" if one else f"layer{layer}.head{head}"


def plan(
    request: Request,
    checkpoint: Checkpoint,
    model: Any,
    reading: Reading,
    wanted: Wanted,
    stack: str,
) -> Pooled:
    """Divide the memory up, and say how.

    Raises:
        OptionError: `--memory` is no size.
        SizeError: there is too little.
    """
    from attnscope.models.heads.memory_plan import plan_run
    from attnscope.models.maps.capture import Wanted
    from attnscope.models.maps.pooled import Pooled

    planned = plan_run(
        checkpoint.name,
        model.config,
        model.dtype.itemsize,
        *(1, _n_tokens(request, reading), memory_budget(request.memory, request.device), request.device),
        hint=SHORTER,
        **_kept(request, model.config, reading, wanted),
    )
    tell(f"{planned}")
    head = None
    if request.query is not None or request.top:
        head = Wanted(stack, _layers(request), request.heads)
    shown = str(request.pool) if request.pools else "max"
    return Pooled(
        shown,
        planned.block,
        request.query,
        request.top,
        head,
        request.without_sink,
        separators=separators(reading) if request.page else None,
    )


def beside_weights(request: Request, config: Any, reading: Reading, wanted: Wanted) -> dict[str, Any]:
    """What pooled maps need beside the weights at least: the arguments of `check_weights_fit`."""
    from attnscope.contracts import DTYPES
    from attnscope.models.heads.memory_plan import needs_of, tokens_text
    from attnscope.models.running.fit import dtype_of

    n = _n_tokens(request, reading)
    itemsize = DTYPES.get(dtype_of(config, request.dtype), 4)
    needs = needs_of(config, itemsize, 1, n, **_kept(request, config, reading, wanted))
    what = f"reading {tokens_text(1, n)} at least"
    return {"beside": needs.least, "what": what, "hint": SHORTER}


def _n_tokens(request: Request, reading: Reading) -> int:
    """How many tokens the longest side of a reading has, those included that are to be written."""
    return max(len(reading.source), len(reading.labels)) + (request.generate or 0)


def _kept(request: Request, config: Any, reading: Reading, wanted: Wanted) -> dict[str, Any]:
    """What is kept of pooled maps, in bytes, and how much is asked of pairs of tokens."""
    from attnscope.models.heads.page_metrics import PAIRS_ASKED
    from attnscope.models.maps.collect import number_of_maps
    from attnscope.models.maps.pool import MOST

    n = _n_tokens(request, reading)
    kept = 2 * 4 * min(n, MOST) ** 2 * number_of_maps(config, reading, wanted)
    kept += 12 * n * (request.top or 0)
    return {"kept": kept, "pairs": PAIRS_ASKED if request.page else 0}


def separators(reading: Reading) -> set[str]:
    """The special tokens that end a text, as the tokenizer writes them."""
    names = (getattr(reading.tokenizer, name, None) for name in ("sep_token", "eos_token"))
    return {name for name in names if isinstance(name, str)}


def _layers(request: Request) -> Any:
    """The layers whose maps are shown, as `Wanted` has them."""
    return "first" if request.layer is None else request.layers
