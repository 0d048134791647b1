"""Write a result to a file, in the format that its suffix names."""

from __future__ import annotations

import os
from functools import partial
from inspect import signature
from operator import index
from pathlib import Path
from typing import Any

from attnscope.base.arguments import checked
from attnscope.base.errors import ArgumentError, FileError, OptionError
from attnscope.base.process.files import check_file, write_file
from attnscope.base.text import alternatives, described, shortened
from attnscope.document.blocks import Plot
from attnscope.document.figure import METADATA, write_figure
from attnscope.document.markdown import markdown_document
from attnscope.document.result import Display, Result, TensorResult
from attnscope.document.tensor_file import WRITERS

PAGES = (".html", ".htm")


def save(result: Any, path: Path, *, force: bool = False, **options: Any) -> int:
    """Write a result as `attnscope.document.result.Result.save` promises; return the size in bytes."""
    kind, name = path.suffix.lower(), shortened(str(path))
    plot = plot_of(result) if kind in METADATA else None
    if plot is not None:
        return _save_picture(plot, path, force=force, **options)
    if options:
        only = "a figure" if plot_of(result) is not None else "no file"
        raise ArgumentError(f"{name}: save has no argument {next(iter(options))!r} but for {only}.")
    if kind in _arrays_of(result):
        size: int = result.save_tensors(path, force=force)
        return size
    if kind not in (*PAGES, *_texts_of(result)) and not os.path.isdir(path):
        known = (shortened(path.with_suffix(each).name) for each in formats_of(result) if each != ".htm")
        raise FileError(
            f"{name}: {type(result).__name__} cannot be written as {kind or 'a file without a suffix'}.",
            hint=alternatives(known),
        )
    check_file(path, force=force, suffixes=None, kind="a result", inside=str(path / "result.json"))
    text = result.page() if kind in PAGES else _text(result, kind) + "\n"
    content = text.encode()
    write_file(path, content, force=force)
    return len(content)


def formats_of(result: Display) -> list[str]:
    """Return the suffixes of the files that a result can be written to."""
    pictures = METADATA if plot_of(result) is not None else ()
    return [*_arrays_of(result), *pictures, *PAGES, *_texts_of(result)]


def _arrays_of(result: Display) -> list[str]:
    """Return the suffixes of the files that hold a result's tensors."""
    return [*WRITERS, *result.more_arrays] if isinstance(result, TensorResult) else []


def _texts_of(result: Display) -> tuple[str, ...]:
    """Return the suffixes of the files that hold a result as text."""
    return result.texts if isinstance(result, Result) else ()


def plot_of(result: Display) -> Plot | None:
    """Return the figure of a result, if its document has one."""
    return next((each for each in result.document() if isinstance(each, Plot)), None)


LARGEST_DPI = 1000
"""Dots per inch: a figure of twelve inches then takes half a gigabyte."""


def _save_picture(plot: Plot, path: Path, *, force: bool, dpi: Any = 200, **options: Any) -> int:
    """Draw a figure, with the options that it has, and write it."""
    if plot.missing:
        raise FileError(f"{path} is not written: {plot.missing}.")
    if type(dpi) is bool or not hasattr(dpi, "__index__") or not 1 <= index(dpi) <= LARGEST_DPI:
        raise OptionError(
            f"dpi is {described(dpi)}, but takes whole numbers from 1 to {LARGEST_DPI:,}.",
            hint="dpi=200",
        )
    takes = [each for each in signature(plot.draw).parameters if each in FIGURE_OPTIONS]
    for unknown in options.keys() - {*takes}:
        raise ArgumentError(
            f"{path}: save has no argument {unknown!r}: it has {', '.join(['force', 'dpi', *takes])}"
        )
    draw = plot.draw
    if isinstance(draw, partial):
        draw = partial(checked(draw.func), *draw.args, **draw.keywords | options)
    return write_figure(path, draw, dpi=index(dpi), force=force)


FIGURE_OPTIONS = ("metrics", "query")
"""What a figure may be asked for: metrics of heads, and one query of maps."""


def _text(result: Result, kind: str) -> str:
    """Return a result as JSON, CSV or Markdown, as its command prints it."""
    if kind == ".json":
        return result.to_json()
    return "\n".join(result.csv()) if kind == ".csv" else markdown_document(result.document())
