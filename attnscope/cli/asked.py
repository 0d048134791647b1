"""What a user wants to know of a model's heads, and whether it can be asked together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from attnscope.checkpoints.indices import parse_indices
from attnscope.cli.options import Format
from attnscope.errors import OptionError, warn_idle


@dataclass(frozen=True)
class Asked:
    """The options of `attnscope heads`."""

    model: str
    text: str | None
    file: Path | None
    ids: str | None
    tokens: str | None
    corpus: str | None
    field: str | None
    target: str | None
    target_field: str | None
    max_length: int | None
    truncate: bool
    special: bool
    without_sink: bool
    metrics: str | None
    sort: str | None
    reverse: bool
    top: int | None
    stack: str | None
    layer: str | None
    head: str | None
    dtype: str | None
    device: str
    device_map: str | None
    memory: str | None
    batch_tokens: int | None
    checkpoint: Path | None
    plot: Path | None
    page: Path | None
    force: bool
    format: Format
    wide: bool

    @property
    def source(self) -> str:
        """What one text is called."""
        if self.file is not None:
            return f"--file {self.file}"
        return next(
            (f"--{name}" for name in ("ids", "tokens") if getattr(self, name) is not None), "--text"
        )

    @property
    def reads_ids(self) -> bool:
        """Whether tokens or their ids are given in place of a text."""
        return self.ids is not None or self.tokens is not None

    @cached_property
    def layers(self) -> list[int] | None:
        """The layers that are asked for; None: all."""
        return parse_indices("--layer", "all" if self.layer is None else self.layer)

    @cached_property
    def heads(self) -> list[int] | None:
        """The heads that are asked for; None: all."""
        return parse_indices("--head", "all" if self.head is None else self.head)

    @cached_property
    def measured(self) -> list[str]:
        """The metrics that are asked for, in order.

        Raises:
            OptionError: there is no such metric.
        """
        from attnscope.models.heads.metrics import METRICS

        names = list(METRICS)
        if self.metrics is not None:
            names = [name.strip() for name in self.metrics.split(",")]
        for option, name in [*(("--metrics", name) for name in names), ("--sort", self.sort)]:
            if name is not None and name not in METRICS:
                raise OptionError(f"{option}: there is no metric {name!r}.", hint=", ".join(METRICS))
        if self.sort is not None and self.sort not in names:
            raise OptionError(
                f"--sort {self.sort} is not among --metrics {self.metrics}.",
                hint=f"--metrics {self.metrics},{self.sort}",
            )
        return list(dict.fromkeys(names))

    def check(self) -> None:
        """Raise an OptionError for options that say nothing together, or nothing at all."""
        self.measured, self.layers, self.heads  # noqa: B018 - a mistake is told first
        for given, message, hint in self._conflicts():
            if given:
                raise OptionError(message, hint=hint)
        warn_idle(self._idle())

    def _idle(self) -> Iterator[tuple[object, str, str]]:
        """What has no effect: whether it is given, the option, and why."""
        no_corpus = self.corpus is None
        yield self.field is not None and no_corpus, "--field", "there is no --corpus"
        yield self.batch_tokens is not None and no_corpus, "--batch-tokens", "there is no --corpus"
        yield self.truncate and not no_corpus, "--truncate", "the texts of a corpus are cut anyway"
        yield self.reverse and self.sort is None, "--reverse", "there is no --sort"
        all_columns = f"{self.format} has all columns anyway"
        yield self.wide and self.format is not Format.TABLE, "--wide", all_columns
        yield self.force and not (self.plot or self.page), "--force", "no file is written"

    def _conflicts(self) -> Iterator[tuple[object, str, str | None]]:
        """What says nothing: whether it is given, why it cannot be, and what can."""
        options = ("text", "file", "ids", "tokens", "corpus")
        read = [name for name in options if getattr(self, name) is not None]
        reads = '--text "…", --file FILE or --corpus FILE'
        yield not read, "there is nothing to read.", reads
        yield (
            len(read) > 1,
            f"--{' and --'.join(read)} are each something to read: one at a time.",
            reads,
        )
        of_corpus = {
            "--target-field": self.target_field,
            "--checkpoint": self.checkpoint,
        }
        for option, given in of_corpus.items():
            message = f"{option} is about a corpus, and there is none."
            yield given is not None and self.corpus is None, message, f"--corpus FILE {option} …"
        message = "--target is beside one text, and a corpus has many."
        yield self.target is not None and self.corpus, message, "--target-field NAME"
        message = "--max-length cuts a text only where --truncate says that it may be cut."
        cuts = self.corpus is not None or self.truncate
        yield self.max_length is not None and not cuts, message, "--truncate --max-length N"
        message = "--device and --device-map both say where the model runs."
        yield self.device_map and self.device != "cpu", message, "one of the two"
        message = "--device meta computes no values, and metrics are made of values."
        yield self.device.startswith("meta"), message, "--device cpu"
