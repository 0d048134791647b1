"""Writes a result into a file, of the kind that its suffix names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attnscope.errors import FileError, OptionError, first_line
from attnscope.files import write_file
from attnscope.render.files.map_tensors import map_metadata, map_tensors
from attnscope.render.files.tensor_file import WRITERS, Tensors
from attnscope.results.heads import HeadTable
from attnscope.results.maps import AttentionMaps
from attnscope.results.trace import Step, Trace
from attnscope.results.weights import HeadWeights

PICTURES = (".png", ".svg", ".pdf")
PAGES = (".html", ".htm")


def save(result: Any, path: Path, *, force: bool = False, **options: Any) -> int:
    """Write a result as `attnscope.results.common.Result.save` promises; how many bytes it has."""
    kind = path.suffix.lower()
    if kind in WRITERS and isinstance(result, (Trace, HeadWeights, AttentionMaps)):
        from attnscope.render.files import tensor_file

        metadata = map_metadata(result) if isinstance(result, AttentionMaps) else None
        tensors = tensors_of(result)
        return tensor_file.save(path, tensors, force=force, metadata=metadata, **options)
    if kind in PICTURES and isinstance(result, AttentionMaps):
        from attnscope.render.figures.plot import save_plot

        return save_plot(path, result, force=force, **{"query": result.query, **options})
    if kind in PICTURES and isinstance(result, HeadTable):
        from attnscope.render.figures.plot import save_heads_plot

        return save_heads_plot(path, result, force=force, **options)
    if kind in PAGES and isinstance(result, AttentionMaps):
        from attnscope.render.page.page import check_page, maps_page

        check_page(path, name="attention.html", force=force)
        content = maps_page(result, **options).encode()
    elif kind == ".json":
        from attnscope.render.records.records import json_text

        content = json_text(result.to_dict()).encode()
    else:
        name = type(result).__name__
        raise FileError(f"{path}: a {name} is not written as {kind or 'a file without a suffix'}.")
    write_file(path, content, force=force)
    return len(content)


def tensors_of(result: Trace | HeadWeights | AttentionMaps) -> Tensors:
    """A result's tensors by name, as a file holds them."""
    if isinstance(result, HeadWeights):
        return {each.name: (each.array, each.dtype) for each in result.weights}
    if isinstance(result, AttentionMaps):
        return map_tensors(result)
    kept = {step.name: stored(step) for step in result.steps if step.tensor is not None}
    if not kept:
        raise OptionError(f"the trace of {result.title} kept no tensors.", hint="keep=True")
    return kept


def stored(step: Step) -> Any:
    """A step's tensor as an array, and its dtype.

    Raises:
        OptionError: numpy has no such tensors (sparse, nested, quantized, on meta), or the tensor's own
            class does not give its values.
    """
    from attnscope.arrays import from_tensor

    if step.tensor is None:
        raise OptionError(f"the values of {step.name} cannot be read: its own class refuses it.")
    try:
        return from_tensor(step.tensor)
    except (NotImplementedError, RuntimeError, TypeError) as error:
        raise OptionError(
            f"the values of {step.name} cannot be read: {first_line(error).rstrip('.')}."
        ) from error
