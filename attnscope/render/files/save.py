"""Write a result to a file, in the format that its suffix names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attnscope.errors import FileError, OptionError
from attnscope.files import write_file
from attnscope.render.files.map_tensors import map_metadata, map_tensors
from attnscope.render.files.tensor_file import WRITERS, Tensors
from attnscope.render.values import stored
from attnscope.results.audit import Audit
from attnscope.results.card import Card
from attnscope.results.cards import Cards
from attnscope.results.example import WorkedExample
from attnscope.results.heads import HeadMetrics
from attnscope.results.maps import AttentionMaps
from attnscope.results.masks import AttentionMasks
from attnscope.results.scaling import Scaling
from attnscope.results.trace import Trace
from attnscope.results.weights import HeadWeights

PICTURES = (".png", ".svg", ".pdf")
PAGES = (".html", ".htm")
TABLES = (Trace, HeadWeights, AttentionMaps, Scaling, HeadMetrics, AttentionMasks, Audit, Card, Cards)
TEXTS: dict[str, tuple[type, ...]] = {
    ".json": (object,),
    ".csv": TABLES,
    ".md": (*TABLES, WorkedExample),
}
"""The results that are written as JSON, CSV and Markdown."""


def save(result: Any, path: Path, *, force: bool = False, **options: Any) -> int:
    """Write a result as `attnscope.results.common.Result.save` promises; return the size in bytes."""
    kind = path.suffix.lower()
    if isinstance(result, AttentionMasks) and kind in (*WRITERS, ".npy", *PICTURES, *PAGES):
        from attnscope.render.files.mask_files import save_masks

        return save_masks(result, path, force=force, **options)
    if isinstance(result, Audit) and kind in PAGES:
        from attnscope.render.files.audit_files import save_page

        return save_page(result, path, force=force)
    if isinstance(result, Audit) and kind in PICTURES:
        from attnscope.render.figures.save_figure import save_audit_plot

        return save_audit_plot(path, result, force=force, **options)
    if kind in WRITERS and isinstance(result, (Trace, HeadWeights, AttentionMaps)):
        from attnscope.render.files import tensor_file

        metadata = map_metadata(result) if isinstance(result, AttentionMaps) else None
        tensors = tensors_of(result)
        return tensor_file.save(path, tensors, force=force, metadata=metadata, **options)
    if kind in PICTURES and isinstance(result, AttentionMaps):
        from attnscope.render.figures.save_figure import save_plot

        return save_plot(path, result, force=force, **{"query": result.query, **options})
    if kind in PICTURES and isinstance(result, HeadMetrics):
        from attnscope.render.figures.save_figure import save_heads_plot

        metrics = [result.sort] if result.sort else result.shown_metrics or list(result.metrics)
        return save_heads_plot(path, result, force=force, **{"metrics": metrics, **options})
    if kind in PICTURES and isinstance(result, (Card, Cards)):
        from attnscope.render.figures.save_figure import save_card_plot

        return save_card_plot(path, result, force=force, **options)
    if kind in PICTURES and isinstance(result, Scaling):
        from attnscope.render.figures.save_figure import save_scaling_plot

        return save_scaling_plot(path, result, force=force, **options)
    if kind in PAGES and isinstance(result, AttentionMaps):
        from attnscope.render.page.page import check_page, maps_page

        check_page(path, name="attention.html", force=force)
        content = maps_page(result, **options).encode()
    elif kind in PAGES and isinstance(result, HeadMetrics):
        from attnscope.render.page.page import check_page, heads_page

        check_page(path, name="heads.html", force=force)
        content = heads_page(result).encode()
    elif isinstance(result, TEXTS.get(kind, ())):
        content = (_text(result, kind) + "\n").encode()
    else:
        name = type(result).__name__
        raise FileError(f"{path}: {name} cannot be written as {kind or 'a file without a suffix'}.")
    write_file(path, content, force=force)
    return len(content)


def tensors_of(result: Trace | HeadWeights | AttentionMaps) -> Tensors:
    """Return a result's tensors by name, as stored in a file."""
    if isinstance(result, HeadWeights):
        return {each.name: (each.array, each.dtype) for each in result.weights}
    if isinstance(result, AttentionMaps):
        return map_tensors(result)
    kept = {step.name: stored(step) for step in result.steps if step.tensor is not None}
    if not kept:
        raise OptionError(f"the trace of {result.title} kept no tensors.", hint="keep=True")
    return kept


def _text(result: Any, kind: str) -> str:
    """Return a result as JSON, CSV or Markdown, as its command prints it."""
    from attnscope.render.records import records

    if kind == ".json" and isinstance(result, AttentionMaps):
        from attnscope.render.records.maps import maps_json

        return maps_json(result.to_dict())
    if kind == ".json" and isinstance(result, (AttentionMasks, Audit)):
        from attnscope.render.records.tables import compact_json

        return compact_json(result.to_dict())
    if kind == ".json":
        return records.json_text(result.to_dict())
    return records.csv_text(result) if kind == ".csv" else records.markdown_text(result)
