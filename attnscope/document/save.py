"""Write a result to a file, in the format that its suffix names."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from attnscope.document.blocks import Plot
from attnscope.document.figure import METADATA, write_figure
from attnscope.document.markdown import markdown_document
from attnscope.document.result import Display, Result, TensorResult
from attnscope.document.tensor_file import WRITERS
from attnscope.errors import FileError
from attnscope.process.files import check_file, write_file
from attnscope.text import alternatives

PAGES = (".html", ".htm")


def save(result: Any, path: Path, *, force: bool = False, **options: Any) -> int:
    """Write a result as `attnscope.document.result.Result.save` promises; return the size in bytes."""
    kind = path.suffix.lower()
    if kind in _arrays_of(result):
        return result.save_tensors(path, force=force, **options)
    if kind in METADATA and (plot := plot_of(result)) is not None:
        return _save_picture(plot, path, force=force, **options)
    if kind not in (*PAGES, *_texts_of(result)) and not path.is_dir():
        known = (path.with_suffix(each).name for each in formats_of(result) if each != ".htm")
        raise FileError(
            f"{path}: {type(result).__name__} cannot be written as {kind or 'a file without a suffix'}.",
            hint=alternatives(known),
        )
    check_file(path, force=force, suffixes=None, kind="a result", inside=str(path / "result.json"))
    text = result.page(**options) if kind in PAGES else _text(result, kind, **options) + "\n"
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


def _save_picture(plot: Plot, path: Path, *, force: bool, dpi: int = 200, **options: Any) -> int:
    if plot.missing:
        raise FileError(f"{path} is not written: {plot.missing}.")
    return write_figure(path, partial(plot.draw, **options), dpi=dpi, force=force)


def _text(result: Result, kind: str) -> str:
    """Return a result as JSON, CSV or Markdown, as its command prints it."""
    if kind == ".json":
        return result.to_json()
    return "\n".join(result.csv()) if kind == ".csv" else markdown_document(result.document())
