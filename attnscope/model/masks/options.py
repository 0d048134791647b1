"""Options of a run of a model whose masks are observed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from attnscope.base.options import option
from attnscope.model.files.indices import Indices
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
class ModelMaskOptions:
    """The input of a model, the layers to show, and how it runs."""

    PANEL = "Input of a model"
    FOR = ("models",)

    text: str | Sequence[str] | None = option(
        "A text; several are padded to a batch.", metavar="TEXT", type=list[str] | None, common=True
    )
    packed: bool = option("Put several texts into one row, without padding.", default=False, common=True)
    file: str | Path | None = option(
        "Use the content of a file as the text.", metavar="FILE", type=Path | None
    )
    ids: str | Sequence[int] | None = ids_option()
    tokens: str | Sequence[str] | None = tokens_option()
    pair: str | None = option("The second text of a pair.", metavar="TEXT")
    target: str | None = option("The decoder's text, for an encoder-decoder model.", metavar="TEXT")
    image: Any = option("An image, for a vision model.", metavar="FILE", type=Path | None)
    truncate: bool = truncate_option()
    layer: Indices = option(
        "Layer, counted from 0; 0-3, 0,2 or all.",
        metavar="N",
        shown="all",
        common=True,
        values="layers",
        type=str | None,
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
    tokenizer: Any = option("Tokenizer of a loaded model.", python_only=True)
    image_processor: Any = option("Image processor of a loaded model.", python_only=True)

    @property
    def texts(self) -> list[str]:
        """The texts; several are a batch."""
        return [self.text] if isinstance(self.text, str) else list(self.text or ())

    @property
    def names(self) -> list[str]:
        """The names of the inputs that are set; more than one is an error."""
        return self.single.names

    @property
    def several(self) -> list[str] | None:
        """Several texts; None: there is a single input."""
        return self.texts if len(self.texts) > 1 else None

    @property
    def single(self) -> ReadOptions:
        """The input, if it is a single one."""
        names = {each.name for each in fields(ReadOptions)} & vars(self).keys()
        inputs = {name: getattr(self, name) for name in names}
        inputs["text"] = " ".join(self.texts) if self.texts else None
        inputs["file"] = None if self.file is None else Path(self.file)
        inputs["image"] = None if self.image is None else [self.image]
        return ReadOptions(**inputs)
