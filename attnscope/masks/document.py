"""The document of masks: a table of them, and below it a picture of each with what it amounts to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from attnscope.base.units import counted, numbers_text, percent
from attnscope.document.blocks import Block, Heading, Notices, Plot, Sentence, Table
from attnscope.document.columns import Column, check_columns
from attnscope.document.styles import CYAN
from attnscope.masks.drawing import MaskDrawing, has_several_stacks, mask_lines
from attnscope.masks.figure import draw_masks
from attnscope.masks.result import AttentionMasks


def document(result: AttentionMasks) -> list[Block]:
    """Build the blocks: a table with a row for each mask, their pictures, and checks."""
    blocks: list[Block] = [_heading(result), Table(columns(result))]
    for mask in result.masks:
        lines = mask_lines(result, mask)
        for i, line in enumerate(lines):
            blocks.append(Sentence(line, "dim" if i else "bold", ": ", apart=not i))
        blocks.append(MaskDrawing(mask, result.cell, apart=not lines))
    if result.checks:
        blocks.append(Table(check_columns(result.checks)))
    return [*blocks, Notices(result.notices), Plot(partial(draw_masks, result=result))]


def _heading(result: AttentionMasks) -> Heading:
    """Build the title, and a line with the sizes and the blocks."""
    masks = result.masks
    block = [f"blocks of {masks[0].blocks.n_query:,} × {masks[0].blocks.n_key:,}"]
    block *= _has_blocks(result)
    number = counted(len(masks), "mask")
    sizes = dict.fromkeys(each.sizes_text for each in masks)
    if result.model is None:
        title = f"{'mask' if len(masks) == 1 else number}: {result.title}"
        return Heading(title, [" · ".join(["; ".join(sizes), *block])])
    n_layer = sum(len(each.layers or ()) for each in masks)
    title = f"{result.title}: {number} in {counted(n_layer, 'layer')}"
    return Heading(title, [" · ".join([*sizes, *block])])


def _has_blocks(result: AttentionMasks) -> bool:
    """Check whether any mask has several blocks: a kernel computes a single one whatever is in it."""
    return any(each.n_Q > each.blocks.n_query or each.n_K > each.blocks.n_key for each in result.masks)


def columns(result: AttentionMasks) -> list[Column]:
    """Build a row for each mask; columns without cells are for programs only."""
    masks = result.masks

    def column(title: str, key: str, texts: Sequence[str], raw: Sequence[object], **more: Any) -> Column:
        style = CYAN if key == "pattern" else ""
        return Column(title, key, [[(text, style)] for text in texts], list(raw), **more)

    def number(title: str, key: str, values: Sequence[int], **more: Any) -> Column:
        return column(title, key, [f"{value:,}" for value in values], values, right=True, **more)

    def share(key: str, values: Sequence[float]) -> Column:
        return column(key, key, list(map(percent, values)), values, right=True)

    def hidden(key: str, raw: Sequence[object]) -> Column:
        return Column(key, key, [], list(raw))

    found: list[Column] = []
    if result.model is not None:
        layers = [numbers_text(each.layers or []) for each in masks]
        plain = [text.replace("–", "-").replace(" ", "") for text in layers]  # as --layer takes them
        found.append(column("layers", "layers", layers, plain, essential=True))
        stacks = [each.stack or "" for each in masks]
        several = has_several_stacks(result)
        found.append(column("stack", "stack", stacks, stacks) if several else hidden("stack", stacks))
    elif any(each.name for each in masks):
        names = [each.name or "" for each in masks]
        found.append(column("attention", "name", names, names, essential=True))
    patterns = [each.pattern_text for each in masks]
    pairs = [f"{each.n_visible:,} of {each.n_pairs:,}" for each in masks]
    blind = [each.n_blind for each in masks]
    of_blocks = [
        *(number(kind, kind, [getattr(each.blocks, kind) for each in masks]) for kind in KINDS),
        share("saved", [each.blocks.saved for each in masks]),
    ]
    if not _has_blocks(result):
        of_blocks = [replace(each, cells=[]) for each in of_blocks]
    found += [
        column("visible", "pattern", patterns, patterns, flexible=True),
        column("pairs", "n_visible", pairs, [each.n_visible for each in masks], right=True),
        hidden("n_pairs", [each.n_pairs for each in masks]),
        share("share", [each.n_visible / each.n_pairs for each in masks]),
        *of_blocks,
        number("blind queries", "n_blind", blind) if any(blind) else hidden("n_blind", blind),
        hidden("n_unseen", [each.n_unseen for each in masks]),
    ]
    if result.model is not None:
        found.append(hidden("kinds", ["; ".join(each.kinds) for each in masks]))
        found.append(hidden("kernel", [each.kernel for each in masks]))
        found.append(hidden("received", [each.received for each in masks]))
    return found


KINDS = ("full", "partial", "empty")
"""The kinds of blocks."""
