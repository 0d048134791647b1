"""Write a result to a file, in the format that its suffix names."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from attnscope.auditing.result import Audit
from attnscope.checkpoints.result import HeadWeights
from attnscope.comparison.result import Comparison
from attnscope.document.blocks import Plot
from attnscope.document.figure import write_figure
from attnscope.document.result import Display, Result
from attnscope.document.tensor_file import WRITERS, Tensors
from attnscope.errors import FileError, OptionError
from attnscope.masks.files import NPY
from attnscope.masks.result import AttentionMasks
from attnscope.model_card.cards import Cards
from attnscope.model_card.result import Card
from attnscope.models.heads.result import HeadMetrics
from attnscope.models.maps.result import AttentionMaps
from attnscope.observe.trace import Trace
from attnscope.process.files import check_file, write_file
from attnscope.render.records.records import csv_text, has_document, markdown_text
from attnscope.render.values import stored
from attnscope.text import alternatives
from attnscope.textbook.example.result import WorkedExample
from attnscope.textbook.scaling.result import Scaling

PICTURES = (".png", ".svg", ".pdf")
PAGES = (".html", ".htm")
TABLES = (
    *(Trace, HeadWeights, AttentionMaps, Scaling, HeadMetrics, AttentionMasks),
    *(Audit, Comparison, Card, Cards),
)
"""The results that are tables, which CSV and Markdown hold."""

TENSORS = (Trace, HeadWeights, AttentionMaps, AttentionMasks)
"""The results that consist of tensors."""


def save(result: Any, path: Path, *, force: bool = False, **options: Any) -> int:
    """Write a result as `attnscope.document.result.Result.save` promises; return the size in bytes."""
    kind, formats = path.suffix.lower(), formats_of(result)
    if kind not in formats and not path.is_dir():
        known = alternatives(path.with_suffix(each).name for each in formats if each != ".htm")
        raise FileError(
            f"{path}: {type(result).__name__} cannot be written as {kind or 'a file without a suffix'}.",
            hint=known,
        )
    if kind in PICTURES and (plot := plot_of(result)) is not None:
        return _save_picture(plot, path, force=force, **options)
    if kind in (*WRITERS, NPY):
        return _save_tensors(result, path, force=force, **options)
    check_file(path, force=force, suffixes=None, kind="a result", inside=str(path / "result.json"))
    text = result.page(**options) if kind in PAGES else _text(result, kind, **options) + "\n"
    content = text.encode()
    write_file(path, content, force=force)
    return len(content)


def formats_of(result: Any) -> list[str]:
    """Return the suffixes of the files that a result can be written to."""
    is_table = isinstance(result, TABLES)
    kinds: dict[tuple[str, ...], bool] = {
        tuple(WRITERS): isinstance(result, TENSORS),
        (NPY,): isinstance(result, AttentionMasks),
        PICTURES: plot_of(result) is not None,
        PAGES: isinstance(result, Display),
        (".json",): isinstance(result, Result),
        (".csv",): is_table,
        (".md",): is_table or isinstance(result, WorkedExample),
    }
    return [suffix for suffixes, is_possible in kinds.items() if is_possible for suffix in suffixes]


def tensors_of(result: Trace | HeadWeights | AttentionMaps) -> Tensors:
    """Return a result's tensors by name, as stored in a file."""
    if isinstance(result, HeadWeights):
        return {each.name: (each.array, each.dtype) for each in result.weights}
    if isinstance(result, AttentionMaps):
        return result.tensors()
    kept = {step.name: stored(step) for step in result.steps if step.tensor is not None}
    if not kept:
        raise OptionError(f"the trace of {result.title} kept no tensors.", hint="keep=True")
    return kept


def plot_of(result: Any) -> Plot | None:
    """Return the figure of a result, if its document has one."""
    blocks = result.document() if has_document(result) else []
    return next((each for each in blocks if isinstance(each, Plot)), None)


def _save_tensors(result: Any, path: Path, *, force: bool, **options: Any) -> int:
    if isinstance(result, AttentionMasks):
        from attnscope.masks.files import save_masks

        return save_masks(result, path, force=force)
    from attnscope.document import tensor_file

    metadata = result.metadata() if isinstance(result, AttentionMaps) else None
    return tensor_file.save(path, tensors_of(result), force=force, metadata=metadata, **options)


def _save_picture(plot: Plot, path: Path, *, force: bool, dpi: int = 200, **options: Any) -> int:
    if plot.missing:
        raise FileError(f"{path} is not written: {plot.missing}.")
    return write_figure(path, partial(plot.draw, **options), dpi=dpi, force=force)


def _text(result: Any, kind: str) -> str:
    """Return a result as JSON, CSV or Markdown, as its command prints it."""
    if kind == ".json":
        return result.to_json()
    return csv_text(result) if kind == ".csv" else markdown_text(result)
