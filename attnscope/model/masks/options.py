"""Options of a run of a model whose masks are observed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from attnscope.base.options import option
from attnscope.model.run.options import (
    STACK,
    ReadOptions,
    StackName,
    device_option,
    dtype_option,
    ids_option,
    tokens_option,
    truncate_option,
)


@dataclass(frozen=True)
class InputOptions:
    """The input of a model."""

    PANEL = "Input of a model"

    text: list[str] | None = option(
        "A text; several are padded to a batch.", metavar="TEXT", common=True
    )
    packed: bool = option("Put several texts into one row, without padding.", default=False, common=True)
    file: Path | None = option("Use the content of a file as the text.", metavar="FILE")
    ids: str | None = ids_option()
    tokens: str | None = tokens_option()
    pair: str | None = option("The second text of a pair.", metavar="TEXT")
    target: str | None = option("The decoder's text, for an encoder-decoder model.", metavar="TEXT")
    image: Path | None = option("An image, for a vision model.", metavar="FILE")
    truncate: bool = truncate_option()

    @property
    def names(self) -> list[str]:
        """The names of the inputs that are set; more than one is an error."""
        return self.single.names

    @property
    def several(self) -> list[str] | None:
        """Several texts; None: there is a single input."""
        return self.text if self.text is not None and len(self.text) > 1 else None

    @property
    def single(self) -> ReadOptions:
        """The input, if it is a single one."""
        return ReadOptions(
            text=" ".join(self.text) if self.text else None,
            file=self.file,
            ids=self.ids,
            tokens=self.tokens,
            pair=self.pair,
            target=self.target,
            image=None if self.image is None else [self.image],
            truncate=self.truncate,
        )


@dataclass(frozen=True)
class LayerOptions:
    """The layers of a model, and how it runs."""

    PANEL = "Input of a model"

    layer: str | None = option(
        "Layer, counted from 0; 0-3, 0,2 or all.",
        metavar="N",
        shown="all",
        common=True,
        values="layers",
    )
    stack: StackName | None = option(STACK, shown="all")
    kernel: str | None = option(
        "Kernel that masks are made for: eager, sdpa, flex_attention, flash_attention_2, …",
        shown="the model's default",
        common=True,
        values=("eager", "sdpa", "flex_attention", "flash_attention_2"),
    )
    verify: bool = option(
        "Compare with what each kernel does; exit with status 1 if they differ.",
        default=False,
        common=True,
    )
    dtype: str | None = dtype_option(common=False)
    device: str = device_option(common=False)
