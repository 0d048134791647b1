"""What a user wants to see of a model, and whether it can be seen together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from attnscope.checkpoints.indices import parse_indices
from attnscope.cli.options import Format
from attnscope.cli.output import Output, refuse_in_csv
from attnscope.errors import OptionError, warn_idle

READS = ("text", "file", "ids", "tokens", "image")
"""The options that give a model something to look at: one of them at a time."""


@dataclass(frozen=True)
class Request:
    """The options of `attnscope model`."""

    model: str | None
    layer: str | None
    head: str | None
    stack: str | None
    text: str | None
    file: Path | None
    ids: str | None
    tokens: str | None
    pair: str | None
    target: str | None
    image: Path | None
    generate: int | None
    truncate: bool
    query: int | None
    top: int | None
    without_sink: bool
    pool: str | None
    steps: bool
    circuits: bool
    verify: bool
    plot: Path | None
    page: Path | None
    dtype: str | None
    device: str
    memory: str | None
    show: list[str] | None
    stats: bool
    save: Path | None
    force: bool
    format: Format
    wide: bool

    @property
    def reads(self) -> bool:
        """Whether the model is given something to look at."""
        return any(getattr(self, name) is not None for name in READS)

    @property
    def decodes(self) -> bool:
        """Whether a decoder is given something, or writes it."""
        return self.target is not None or self.generate is not None

    @property
    def pools(self) -> bool:
        """Whether pooled maps are asked for, of texts of any length."""
        return self.pool in ("max", "mean")

    @property
    def saves_whole(self) -> bool:
        """Whether whole maps are saved: a file's tensors have another shape only on request."""
        return self.save is not None and not self.pools

    @property
    def layers(self) -> list[int] | None:
        """The layers that are asked for; None: all; the first, where none is named."""
        return parse_indices("--layer", self.layer or "0")

    @property
    def heads(self) -> list[int] | None:
        """The heads that are asked for; None: all."""
        return parse_indices("--head", self.head or "0")

    @property
    def one_layer(self) -> bool:
        """Whether a single layer is asked for."""
        return len(self.layers or ()) == 1

    @property
    def one_head(self) -> bool:
        """Whether a single head is asked for."""
        return self.one_layer and len(self.heads or ()) == 1

    @property
    def output(self) -> Output:
        """How results are printed."""
        return Output(
            self.format, self.wide, self.show or (), self.save, self.force and self.save is not None
        )

    def check(self) -> None:
        """Raise an OptionError for options that say nothing together, or nothing at all."""
        from attnscope.process.budget import parse_size

        if self.memory is not None:
            parse_size(self.memory)
        conflicts = _of_reading(self) if self.reads else _of_weights(self)
        for given, message, hint in conflicts:
            if given:
                raise OptionError(message, hint=hint)
        refuse_in_csv(self.format, {"--verify": self.verify})
        warn_idle(_idle(self))


def _of_weights(request: Request) -> Iterator[tuple[object, str, str | None]]:
    """What says nothing of weights: whether it is given, why it cannot be, and what can."""
    about_attention = {
        "--pair": request.pair,
        "--target": request.target,
        "--generate": request.generate,
        "--query": request.query is not None,
        "--top": request.top,
        "--steps": request.steps,
        "--plot": request.plot,
        "--page": request.page,
    }
    for option, given in about_attention.items():
        message = f"{option} is about attention in a text, and there is none."
        yield given is not None and given is not False, message, f'--text "…" {option} …'
    several = f"weights are shown of one head: {_named(request)} are several."
    yield not request.one_head, several, "--layer 0 --head 0; or a --text to look at"


def _of_reading(request: Request) -> Iterator[tuple[object, str, str | None]]:
    """The same for attention in a text or a picture."""
    message = "--circuits is about a head's weights, and --text about its attention."
    yield request.circuits, message, "one of the two"
    read = [name for name in READS if getattr(request, name) is not None]
    message = f"--{' and --'.join(read)} are each something to look at: one at a time."
    yield len(read) > 1, message, " or ".join(f"--{name}" for name in read)
    about_text = {
        "--pair": request.pair is not None,
        "--target": request.target is not None,
        "--generate": request.generate,
    }
    for option, given in about_text.items():
        yield (
            request.image is not None and given,
            f"{option} is about a text, and --image is a picture.",
            f'--text "…" {option} …',
        )
    ids = next((name for name in ("ids", "tokens") if getattr(request, name) is not None), None)
    message = f"--pair is the second of two texts, and --{ids} is read as it is."
    yield ids and request.pair is not None, message, '--text "…" --pair "…"'
    message = "--target is what the decoder reads, and --generate lets it write that itself."
    yield request.generate and request.target is not None, message, "one of the two"
    message = "--stats is for the steps of a layer."
    yield request.stats and not request.steps, message, "--steps --stats"
    message = "--steps shows whole tensors, and --pool maps of few cells."
    yield request.steps and request.pools, message, "one of the two"
    message = "--steps shows whole tensors, and --without-sink leaves out keys."
    yield request.steps and request.without_sink, message, "one of the two"
    message = f"--steps are those of one layer, and --layer is {request.layer}."
    yield request.steps and not request.one_layer, message, "--steps --layer 0"
    about_a_head = {
        "--top": request.top,
        "--query": request.query is not None,
        "--show": bool(request.show) and not request.steps,
    }
    heads = f"{_named(request)} are several"
    for option, given in about_a_head.items():
        message = f"{option} is for one head, and {heads}."
        yield given and not request.one_head, message, f"--layer 0 --head 0 {option} …"
    message = "--top lists every query's strongest keys: it goes with neither --query nor --steps."
    yield request.top and (request.query is not None or request.steps), message, None
    message = "--steps are those of all heads of a layer."
    yield request.steps and request.head is not None, message, '--steps --show "attention[0,3]"'
    message = "--steps shows whole tensors, and --query one row of a map."
    yield request.steps and request.query is not None, message, '--steps --show "scores[0,0,3]"'
    message = "--device meta computes no values, and attention maps are values."
    yield request.device.startswith("meta"), message, "--device cpu"


def _idle(request: Request) -> Iterator[tuple[object, str, str]]:
    """What has no effect: whether it is given, the option, and why."""
    written = request.save or request.plot or request.page
    yield request.force and not written, "--force", "no file is written"
    of_texts = {
        "--truncate": request.truncate,
        "--pool": request.pool,
        "--memory": request.memory,
    }
    if request.reads:
        for option, given in of_texts.items():
            yield given and request.image is not None, option, "a picture is no text"
        columns = request.top or request.steps or request.verify
        map_alone = request.format in (Format.TABLE, Format.MARKDOWN) and not columns
        yield request.wide and map_alone, "--wide", "a map has no columns"
        return
    of_attention = of_texts | {"--without-sink": request.without_sink, "--dtype": request.dtype}
    for option, given in of_attention.items():
        yield given, option, 'there is no text to attend in (--text "…")'
    yield request.device != "cpu", "--device", "weights are read, and no model runs"
    yield request.stats, "--stats", "weights are shown with theirs"


def _named(request: Request) -> str:
    """The layers and heads, as they were asked for."""
    return f"--layer {request.layer or 0} --head {request.head or 0}"
