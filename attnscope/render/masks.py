"""Parts common to all views of masks: the heading, the table, and the size of a picture's cells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from math import ceil
from typing import Any

from attnscope.render.columns import Column
from attnscope.render.styles import CYAN
from attnscope.results.maps import Token
from attnscope.results.masks import AttentionMask, AttentionMasks
from attnscope.results.planes import Plane
from attnscope.units import counted

NO_RULE = "no simple rule"
"""Stands for a mask whose pattern has no name."""

MOST_PLANES = 6
"""The most pictures of one mask, if sequences or heads see different keys."""


def heading(result: AttentionMasks) -> list[str]:
    """Return a title, and lines with the sizes and the blocks."""
    masks = result.masks
    blocks = masks[0].blocks
    block = f"blocks of {blocks.n_query:,} × {blocks.n_key:,}"
    if result.model is None:
        return [f"mask: {result.title}", f"{sizes_text(masks[0])} · {block}"]
    n_layer = sum(len(each.layers or ()) for each in masks)
    what = f"{counted(len(masks), 'mask')} in {counted(n_layer, 'layer')}"
    sizes = " · ".join(dict.fromkeys(map(sizes_text, masks)))
    return [f"{result.title}: {what}", f"{sizes} · {block}"]


def sizes_text(mask: AttentionMask) -> str:
    """Return the sizes of a mask; of sequences and heads only if there are several."""
    sizes = {"n_batch": mask.n_batch, "n_head": mask.n_head}
    shown = {axis: size for axis, size in sizes.items() if size > 1}
    shown |= {"n_Q": mask.n_Q, "n_K": mask.n_K}
    return " · ".join(f"{axis} {size:,}" for axis, size in shown.items())


def layers_text(mask: AttentionMask, *, several_stacks: bool = False) -> str:
    """Name the layers of a mask: `layers 0–4, 6`."""
    layers = mask.layers or []
    stack = f"{mask.stack} " if several_stacks else ""
    return f"{stack}layer{'' if len(layers) == 1 else 's'} {numbers_text(layers)}"


def mask_lines(result: AttentionMasks, mask: AttentionMask) -> list[str]:
    """Return the lines above the pictures of a mask: its layers and what they see; why they do.

    A mask by a rule needs none.
    """
    if result.model is None:
        return []
    kinds = f" ({'; '.join(mask.kinds)})" if mask.kinds else ""
    layers = layers_text(mask, several_stacks=several_stacks(result))
    return [f"{layers}{kinds}: {pattern_text(mask)}", f"{mask.kernel} received {mask.received}"]


def numbers_text(numbers: Iterable[int]) -> str:
    """Join numbers in ascending order, with neighbours as a range: `0–4, 6`."""
    ordered = sorted(set(numbers))
    parts = []
    for _, run in groupby(enumerate(ordered), key=lambda pair: pair[1] - pair[0]):
        members = [number for _, number in run]
        if len(members) < 3:
            parts += [str(number) for number in members]
        else:
            parts.append(f"{members[0]}–{members[-1]}")
    return ", ".join(parts)


def several_stacks(result: AttentionMasks) -> bool:
    """Return whether layers of several stacks have masks."""
    return len({each.stack for each in result.masks}) > 1


def columns(result: AttentionMasks) -> list[Column]:
    """Return a row for each mask."""
    masks, stacks = result.masks, several_stacks(result)

    def column(title: str, key: str, texts: Sequence[str], raw: Sequence[object], **more: Any) -> Column:
        style = CYAN if key == "pattern" else ""
        return Column(title, key, [[(text, style)] for text in texts], list(raw), **more)

    def number(title: str, key: str, values: Sequence[int], **more: Any) -> Column:
        return column(title, key, [f"{value:,}" for value in values], values, right=True, **more)

    def hidden(key: str, raw: Sequence[object]) -> Column:
        """Return a column for programs only: people read it elsewhere."""
        return Column(key, key, [], list(raw))

    found: list[Column] = []
    if result.model is not None:
        layers = [numbers_text(each.layers or []) for each in masks]
        plain = [text.replace("–", "-").replace(" ", "") for text in layers]  # as --layer takes them
        found.append(column("layers", "layers", layers, plain, essential=True))
        names = [each.stack or "" for each in masks]
        found.append(column("stack", "stack", names, names) if stacks else hidden("stack", names))
    patterns, shares = list(map(pattern_text, masks)), [each.n_visible / each.n_pairs for each in masks]
    saved = [each.blocks.saved for each in masks]
    found += [
        column("visible", "pattern", patterns, patterns, flexible=True),
        column(
            "pairs",
            "n_visible",
            [f"{each.n_visible:,} of {each.n_pairs:,}" for each in masks],
            [each.n_visible for each in masks],
            right=True,
        ),
        hidden("n_pairs", [each.n_pairs for each in masks]),
        column("share", "share", list(map(percent, shares)), shares, right=True),
        number("full", "full", [each.blocks.full for each in masks]),
        number("partial", "partial", [each.blocks.partial for each in masks]),
        number("empty", "empty", [each.blocks.empty for each in masks]),
        column("saved", "saved", list(map(percent, saved)), saved, right=True),
    ]
    blind, unseen = [each.n_blind for each in masks], [each.n_unseen for each in masks]
    found.append(number("blind queries", "n_blind", blind) if any(blind) else hidden("n_blind", blind))
    found.append(hidden("n_unseen", unseen))
    if result.model is not None:
        found.append(hidden("kinds", ["; ".join(each.kinds) for each in masks]))
        found.append(hidden("kernel", [each.kernel for each in masks]))
        found.append(hidden("received", [each.received for each in masks]))
    return found


def pattern_text(mask: AttentionMask) -> str:
    """Return the patterns of a mask; those of sequences and heads, if they differ."""
    patterns = list(dict.fromkeys(each or NO_RULE for each in mask.patterns))
    more = len(patterns) - 2
    return " or ".join(patterns[:2]) + (f" or {more} more" if more > 0 else "")


def percent(share: float) -> str:
    """Format a share: never 0 % or 100 % of what is neither."""
    number = 100 * share
    text = f"{number:.1f}"
    if text == "0.0" and share > 0:
        return "< 0.1 %"
    if text == "100.0" and share < 1:
        return "> 99.9 %"
    return f"{text} %"


def plane_title(mask: AttentionMask, plane: Plane) -> str:
    """Name the sequences and heads of a plane, and what they see; empty if it is the only one."""
    if len(mask.planes) == 1:
        return ""
    pattern = mask.patterns[[each is plane for each in mask.planes].index(True)]
    return f"{_places_text(mask, plane)}: {pattern or NO_RULE}"


def _places_text(mask: AttentionMask, plane: Plane) -> str:
    """Name the sequences and heads of a plane."""
    sequences = sorted({sequence for sequence, _ in plane.places})
    heads = sorted({head for _, head in plane.places})
    parts = []
    if mask.n_batch > 1:
        parts.append(f"sequence{'' if len(sequences) == 1 else 's'} {numbers_text(sequences)}")
    if mask.n_head > 1:
        parts.append(f"head{'' if len(heads) == 1 else 's'} {numbers_text(heads)}")
    if len(plane.places) != len(sequences) * len(heads):  # not all pairs of these
        return ", ".join(f"sequence {sequence} head {head}" for sequence, head in plane.places)
    return ", ".join(parts)


def more_planes(mask: AttentionMask) -> str:
    """Say how many pictures are left out; empty if there are none."""
    more = len(mask.planes) - MOST_PLANES
    return (
        f"… and {counted(more, 'more mask')} of sequences and heads: --format json" if more > 0 else ""
    )


def tokens_of(tokens: list[list[Token]] | None, plane: Plane) -> list[Token] | None:
    """Return the tokens of the first sequence of a plane; None if there are none."""
    return None if tokens is None else tokens[plane.places[0][0] % len(tokens)]


def cell_size(mask: AttentionMask, cell: int | None, most_rows: int, most_columns: int) -> int:
    """Return the queries and keys in a cell of a picture: 1, or a power of 2, or the size requested."""
    if cell is not None:
        return cell
    size = 1
    while ceil(mask.n_Q / size) > most_rows or ceil(mask.n_K / size) > most_columns:
        size *= 2
    return size
