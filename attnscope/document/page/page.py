"""Combine weights, tokens, style and script into one HTML page.

The page makes no network requests. Its Content-Security-Policy forbids them, and allows one script and
one style by their hashes (W3C, Content Security Policy Level 3, § 2.3.1), so that nothing in a token,
a name or a notice can run code or send data.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from importlib.resources import files
from pathlib import Path, PurePath
from typing import Any

from attnscope.base.errors import SizeError
from attnscope.base.process.files import check_file
from attnscope.base.spelling import spelled
from attnscope.base.units import counted
from attnscope.document.grid.axes import AxisToken, label
from attnscope.document.grid.pooling import (
    SHOWN,
    of_cells,
    pooling_text,
    positions,
    tokens_of_cells,
)
from attnscope.document.grid.sinks import sink_keys
from attnscope.document.html import rendered
from attnscope.document.page import packing
from attnscope.document.page.heads import heads_data, metrics_data, with_measured
from attnscope.document.page.protocols import PageHead, PageMetrics, PagePicture, PageStack

SCRIPTS = ("weights.js", "drawing.js", "overview.js", "metrics.js", "beside.js", "page.js")
STYLES = ("page.css", "metrics.css", "beside.css")
"""The files that form the page's script and its style, in this order."""

OF_METRICS = {"metrics.js", "metrics.css"}
"""The files that a page without metrics does not need."""

OF_SIDES = {"beside.js", "beside.css"}
"""The files that a page needs only if its stacks are shown side by side."""


MAX_CANVAS = 16_384
"""The most queries or keys of a map on a page: every browser supports a canvas of that size. (The
packing allows up to 65,536 keys.)"""


def check_map_size(n: int) -> None:
    """Raise a SizeError if browsers cannot draw maps of this many queries or keys."""
    if n > MAX_CANVAS:
        raise SizeError(
            f"a page shows maps of at most {MAX_CANVAS:,} queries and keys, the largest that browsers"
            f" can draw, but these have {n:,}.",
            hint=f"{spelled(pool='max')}, or no {spelled('pool')}, for pooled maps",
        )


def check_page(path: Path, *, name: str, force: bool = False) -> None:
    """Check that a page can be written; `name` is suggested if the path is a folder."""
    inside = spelled(page=path / name)
    check_file(path, force=force, suffixes=(".html", ".htm"), kind="a page", inside=inside)


def page_html(
    stacks: Sequence[PageStack],
    *,
    layer: int,
    head: int,
    query: int | None = None,
    title: str,
    heads: PageMetrics | None = None,
    metric: str | None = None,
    without_sink: bool = False,
    beside: bool = False,
    further: str = "",
) -> str:
    """Return a self-contained HTML document that shows attention in a browser.

    Args:
        stacks: the maps to show; stacks without maps are left out.
        layer, head: the head shown at first, in the first stack that has it.
        query: the row selected at first, if any: a query's position, or a row of a pooled map.
        title: the heading and the title.
        heads: metrics that colour the overview, of these heads and of others.
        metric: the metric shown at first, or `map`; None: the first metric.
        without_sink: whether the switch that leaves the sink out is initially on.
        beside: whether to show small maps of the head in all stacks side by side.
        further: a drawing below the table of heads, as HTML without styles of its own.

    Raises:
        SizeError: a map is larger than browsers can draw.
        ModelError: a weight is not between 0 and 1, or the stack's `unit`. (NaN is shown as such.)
    """
    from markupsafe import Markup

    stacks = [stack for stack in stacks if stack.maps]
    sizes = [_size(stack) for stack in stacks]
    pooled = [_pooled_text(stack) for stack in stacks]
    details = [_details(stack) for stack in stacks]
    stacks = [of_cells(stack) for stack in stacks]
    for stack in stacks:
        check_map_size(max(len(stack.query_tokens), len(stack.key_tokens)))
    fine = sum(each.attention.size for stack in stacks for each in stack.maps) <= packing.FINE_TO
    packed = [packing.pack(stack.maps, fine=fine, unit=stack.unit or 1.0) for stack in stacks]
    if heads is not None:
        stacks = with_measured(stacks, heads)
        packed += [[] for _ in stacks[len(packed) :]]
        details += [_details(stack) for stack in stacks[len(details) :]]
        pooled += ["" for _ in stacks[len(pooled) :]]
        sizes += ["no maps" for _ in stacks[len(sizes) :]]
    script, style = (
        _joined(names, metrics=heads is not None, beside=beside) for names in (SCRIPTS, STYLES)
    )
    data = {
        "coding": {
            "cells": packing.CELLS,
            "notANumber": packing.NOT_A_NUMBER,
            "lowFrom": 1 if fine else packing.COARSE_TO,
        },
        "first": {"layer": layer, "head": head, "query": query, "sink": not without_sink},
        "metrics": metrics_data(heads),
        "metric": metric,
        "beside": beside,
        "powers": heads is not None and heads.powers,
        "signed": heads is not None and heads.signed,
        "what": "" if heads is None else heads.what,
        "without": "" if heads is None else heads.without,
        "stacks": [_stack_data(*each, heads) for each in zip(stacks, packed, details, strict=True)],
    }
    names = ([] if heads is None else heads.models) + [stack.model for stack in stacks]

    def without_folders(text: str) -> str:
        """Remove the folders from models' names in a text, since pages are passed on to others."""
        for name in names:
            text = text.replace(name, model_name(name))
        return text

    html = rendered(
        _own("page.html.j2"),
        title=without_folders(title),
        without_folders=without_folders,
        stacks=stacks,
        of_heads=all(stack.of_heads for stack in stacks),
        still=_still(stacks, layer, head),
        sizes=sizes,
        pooled=pooled,
        heads=heads,
        further=Markup(further),
        beside=beside,
        source=None if heads is None else heads.page_source,
        weights=[[Markup(each.text) for each in of_stack] for of_stack in packed],
        largest_error=max((each.largest_error for of_stack in packed for each in of_stack), default=0.0),
        data=Markup(json_in_html(data)),
        script=Markup(script),
        style=Markup(style),
        script_hash=policy_hash(script),
        style_hash=policy_hash(style),
    )
    return html.encode("utf-8", "replace").decode("utf-8")  # a path's undecodable bytes have no UTF-8


STILL = 32
"""The most queries and keys of the table that a page shows without JavaScript."""


def _still(stacks: list[PageStack], layer: int, head: int) -> dict[str, Any] | None:
    """Return a small map as a table of per cents; None if there is no such head, or it is too large."""
    for stack in stacks:
        for each in stack.maps:
            if (each.layer, each.head) == (layer, head) and max(each.attention.shape) <= STILL:
                of_one = 100 / (stack.unit or 1)
                rows = [[f"{of_one * weight:.0f}" for weight in row] for row in each.attention]
                queries, keys = (
                    [label(token.text) for token in axis]
                    for axis in (stack.query_tokens, stack.key_tokens)
                )
                return {
                    "layer": layer,
                    "head": head,
                    "unit": stack.unit,
                    "tokens": keys,
                    "rows": list(zip(queries, rows, strict=True)),
                }
    return None


def model_name(model: str) -> str:
    """Return a model's name without the folders that contain it.

    A possible name on the hub, `owner/name`, stays as it is.

    >>> model_name("google/vit-base"), model_name("/home/me/google/vit-base"), model_name("../vit/")
    ('google/vit-base', 'vit-base', 'vit')
    """
    of_hub = model.count("/") == 1 and model[0] not in "/.~"
    return model if of_hub else PurePath(model).name or model


def _size(stack: PageStack) -> str:
    """Describe the numbers of queries and keys of a stack."""
    n_Q, n_K = len(stack.query_tokens), len(stack.key_tokens)
    if stack.query_tokens == stack.key_tokens:
        return counted(n_Q, "token")
    return f"{n_Q:,} queries, {n_K:,} keys"


def _stack_data(
    stack: PageStack,
    packed: list[packing.PackedHead],
    details: dict[str, Any],
    heads: PageMetrics | None,
) -> dict[str, Any]:
    """Return the script's data of a stack, without its weights."""
    mapped = [_head_data(i, *each) for i, each in enumerate(zip(stack.maps, packed, strict=True))]
    n_Q, first = len(stack.query_tokens), stack.first_query
    same_axis = stack.key_tokens == stack.query_tokens
    own_keys = (
        not stack.stack.startswith("cross")
        and stack.key_tokens[first : first + n_Q] == stack.query_tokens
    )
    return {
        "name": stack.stack,
        "ofHeads": stack.of_heads,
        "label": stack.label,
        "shared": stack.n_kv_head != stack.n_head,
        "queries": [_token_data(each) for each in stack.query_tokens],
        "keys": None if same_axis else [_token_data(each) for each in stack.key_tokens],
        "unit": stack.unit,  # packed weights are shares of it; null: of 1
        "firstQuery": first,
        "ownKeys": own_keys,  # whether each query is a key, too: the one at its own position
        "heads": heads_data(mapped, heads, stack.stack),
        "picture": None if stack.picture is None else _picture_data(stack.picture),
        **details,
    }


def _pooled_text(stack: PageStack) -> str:
    """Describe how the maps of a stack are pooled; empty if no cell has several tokens."""
    if stack.pooling is None or all(len(cell) == 1 for axis in positions(stack) for cell in axis):
        return ""
    return pooling_text(stack)


def _details(stack: PageStack) -> dict[str, Any]:
    """Return the script's data of the tokens of a stack, whose cells are not yet replaced by tokens.

    `sinks` are the columns of its maps that contain a token of the sink. For pooled maps, `pooled` is
    the kind of pooling, and `words` are all tokens of each row and column, for the search.
    """
    is_sink = sink_keys(token.special for token in stack.key_tokens)
    columns = positions(stack)[1]
    details: dict[str, Any] = {
        "sinks": [i for i, cell in enumerate(columns) if any(is_sink[key] for key in cell)],
    }
    if stack.pooling is not None:
        words = [
            [" ".join(label(token.text) for token in tokens) for tokens in cells]
            for cells in tokens_of_cells(stack)
        ]
        details["pooled"] = SHOWN[stack.pooling.shown]
        details["words"] = {"queries": words[0], "keys": None if words[1] == words[0] else words[1]}
    return details


def _token_data(token: AxisToken) -> dict[str, Any]:
    data: dict[str, Any] = {"text": label(token.text)}
    if token.segment:
        data["segment"] = token.segment
    if token.special:
        data["special"] = True
    if token.generated:
        data["generated"] = True
    return data


def _head_data(number: int, each: PageHead, packed: packing.PackedHead) -> dict[str, Any]:
    """Return the script's data of a head with a map; `number` is the index of its packed weights."""
    data = {"layer": each.layer, "head": each.head, "kvHead": each.kv_head, "weights": number}
    small = packed.thumbnail
    if small is None:
        return data
    rows, columns = small.shape
    return data | {"small": {"rows": rows, "columns": columns, "roots": _base64(small.tobytes())}}


def _picture_data(picture: PagePicture) -> dict[str, Any]:
    return {
        "rows": picture.rows,
        "columns": picture.columns,
        "first": picture.first,
        "url": f"data:image/png;base64,{_base64(picture.png)}",
    }


def json_in_html(data: Any) -> str:
    """Return JSON that cannot end a script element or begin a comment (HTML Standard, § 4.12.1.3)."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def policy_hash(text: str) -> str:
    """Return the hash by which the policy allows a script or a style."""
    return f"sha256-{_base64(sha256(text.encode()).digest())}"


def _base64(content: bytes) -> str:
    return b64encode(content).decode("ascii")


def _joined(names: tuple[str, ...], *, metrics: bool, beside: bool) -> str:
    """Join the files that the page needs."""
    unneeded = (set() if metrics else OF_METRICS) | (set() if beside else OF_SIDES)
    return without_comments("\n".join(_own(name) for name in names if name not in unneeded))


def without_comments(code: str) -> str:
    """Return a script or a style without indentation and comments on lines of their own."""
    code = re.sub(r"^ *(//.*|/\*(?:[^*]|\*(?!/))*\*/)\n", "", code, flags=re.MULTILINE)
    return re.sub("^ +", "", code, flags=re.MULTILINE)


def file_of(package: str, name: str) -> str:
    """Read a script, a style or a template from a package."""
    return files(package).joinpath(name).read_text(encoding="utf-8")


def _own(name: str) -> str:
    return file_of(str(__package__), name)
