"""Options of `attnscope.attention_maps`: what a model reads, which heads are shown, and how."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from attnscope.checkpoints.indices import parse_indices
from attnscope.models.running.options import StackName
from attnscope.options import option


class Pool(StrEnum):
    """How the weights of a cell are pooled; `none`: maps are not pooled."""

    MAX = "max"
    MEAN = "mean"
    NONE = "none"


@dataclass(frozen=True)
class ReadOptions:
    """The inputs of a model."""

    PANEL = "What it reads"

    text: str | None = option("A text to read: the attention in it is shown.")
    file: Path | None = option("A file to read as one text.", metavar="FILE")
    ids: str | None = option(
        "Token ids to read in place of a text, as they are: 101,2023,102.", metavar="N,…"
    )
    tokens: str | None = option(
        "Entries of the vocabulary to read in place of a text, as they are.", metavar="'A B C'"
    )
    pair: str | None = option("The second text of a pair.", metavar="TEXT")
    target: str | None = option("What the decoder beside an encoder reads.", metavar="TEXT")
    image: Path | None = option("A picture, for models that see.", metavar="FILE")
    generate: int | None = option(
        "Let the model write N tokens more, and show what these look at.", metavar="N", min=1
    )
    truncate: bool = option("Cut a text that is longer than the model takes.", default=False)

    @property
    def names(self) -> list[str]:
        """The names of the inputs that are set; more than one is an error."""
        names = ("text", "file", "ids", "tokens", "image")
        return [name for name in names if getattr(self, name) is not None]

    @property
    def decodes(self) -> bool:
        """Whether a decoder has a target, or generates one."""
        return self.target is not None or self.generate is not None


@dataclass(frozen=True)
class HeadOptions:
    """The heads that are shown; layers and heads are arguments of `parse_indices`."""

    layers: str | None = option(
        "Which layer, counted from 0; with a text also 0-3, 0,2 or all.",
        "--layer",
        metavar="N",
        shown="the first that attends",
    )
    heads: str | None = option(
        "Which head, counted from 0; with a text also 0-3, 0,2 or all.",
        "--head",
        metavar="N",
        shown="0",
    )
    stack: StackName | None = option(
        "Whose layers, in models that have several.", shown="encoder; cross, where a decoder reads"
    )

    @property
    def layer_numbers(self) -> list[int] | None:
        """The indices of layers, 0 by default; None: all."""
        return parse_indices("--layer", 0 if self.layers is None else self.layers)

    @property
    def head_numbers(self) -> list[int] | None:
        """The indices of heads, 0 by default; None: all."""
        return parse_indices("--head", 0 if self.heads is None else self.heads)

    @property
    def one_layer(self) -> bool:
        """Whether a single layer is selected."""
        return len(self.layer_numbers or ()) == 1

    @property
    def one_head(self) -> bool:
        """Whether a single head is selected."""
        return self.one_layer and len(self.head_numbers or ()) == 1

    def __str__(self) -> str:
        return f"--layer {self.layers or 0} --head {self.heads or 0}"


@dataclass(frozen=True)
class ShownOptions:
    """What is shown of the maps."""

    PANEL = "What is shown"

    query: int | None = option("Only what token I looks at, key by key.", metavar="I")
    top: int | None = option("List the K strongest keys of each query.", metavar="K", min=1)
    without_sink: bool = option(
        "Leave the first token and special ones out of the keys of --top, and of the scale of colours.",
        default=False,
    )
    pool: Pool | None = option(
        "Pool maps to at most 256 × 256 cells, which show their largest weight or the mean; or show and"
        " write whole maps, however large.",
        shown="max, where whole maps take 256 MiB; --save writes whole ones",
    )

    @property
    def pools(self) -> bool:
        """Whether pooled maps are requested for texts of any length."""
        return self.pool in ("max", "mean")


@dataclass(frozen=True)
class RunOptions:
    """The device, dtype and memory of a run."""

    PANEL = "Run"

    dtype: str | None = option(
        "What to load the model in: float32, bfloat16, float16, float64.", shown="as it is stored"
    )
    device: str = option("Where it runs: cpu, cuda, cuda:1, mps, xpu.", default="cpu")
    memory: str | None = option(
        "How much a run may take beside the model's weights: 2G, 500M.",
        metavar="SIZE",
        shown="80 % of what is free",
    )
