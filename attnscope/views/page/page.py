"""The page: what the weights, the tokens, the style and the script become one text of.

No part of it asks the network for anything. Its Content-Security-Policy forbids all requests, and
allows one script and one style by their hashes (W3C, Content Security Policy Level 3, § 2.3.1), so
that nothing in a token, a name or a notice can run or reach out.
"""

from __future__ import annotations

import json
from base64 import b64encode
from hashlib import sha256
from importlib.resources import files
from typing import Any

from attnscope.results import AttentionMap, AttentionMaps, Picture, Token
from attnscope.views.page import packing
from attnscope.views.tokens import label

SCRIPTS = ("weights.js", "drawing.js", "page.js")
"""They are one script in the page, in this order."""


def page_html(
    stacks: list[AttentionMaps], *, layer: int, head: int, query: int | None = None, title: str
) -> str:
    """One HTML document that shows attention in a browser, by itself.

    Args:
        stacks: what it shows; those without maps are left out.
        layer, head: what it shows first, in the first stack that has it.
        query: the query that is chosen at first, if one is.
        title: its heading, and its title.

    Raises:
        ModelError: a weight is not between 0 and 1. Those that are not a number are shown as such.
    """
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    stacks = [stack for stack in stacks if stack.maps]
    fine = sum(each.attention.size for stack in stacks for each in stack.maps) <= packing.FINE_TO
    packed = [packing.pack(stack.maps, fine=fine) for stack in stacks]
    script, style = "\n".join(map(_own, SCRIPTS)), _own("page.css")
    data = {
        "coding": {
            "cells": packing.CELLS,
            "notANumber": packing.NOT_A_NUMBER,
            "lowFrom": 1 if fine else packing.COARSE_TO,
        },
        "first": {"layer": layer, "head": head, "query": query},
        "stacks": [_stack_data(*each) for each in zip(stacks, packed, strict=True)],
    }
    template = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    html = template.from_string(_own("page.html.j2")).render(
        title=title,
        stacks=stacks,
        weights=[[Markup(head.text) for head in heads] for heads in packed],
        largest_error=max((head.largest_error for heads in packed for head in heads), default=0.0),
        data=Markup(_json_in_html(data)),
        script=Markup(script),
        style=Markup(style),
        script_hash=_hash(script),
        style_hash=_hash(style),
    )
    return html.encode("utf-8", "replace").decode("utf-8")  # a path's undecodable bytes have no UTF-8


def _stack_data(stack: AttentionMaps, packed: list[packing.PackedHead]) -> dict[str, Any]:
    """What the script knows of a stack besides its weights."""
    same_axis = stack.key_tokens == stack.query_tokens
    return {
        "name": stack.stack,
        "shared": stack.n_kv_head != stack.n_head,
        "queries": [_token_data(each) for each in stack.query_tokens],
        "keys": None if same_axis else [_token_data(each) for each in stack.key_tokens],
        "heads": [_head_data(*each) for each in zip(stack.maps, packed, strict=True)],
        "picture": None if stack.picture is None else _picture_data(stack.picture),
    }


def _token_data(token: Token) -> dict[str, Any]:
    data: dict[str, Any] = {"text": label(token.text)}
    if token.segment:
        data["segment"] = token.segment
    if token.special:
        data["special"] = True
    if token.generated:
        data["generated"] = True
    return data


def _head_data(each: AttentionMap, packed: packing.PackedHead) -> dict[str, Any]:
    small = packed.thumbnail
    return {
        "layer": each.layer,
        "head": each.head,
        "kvHead": each.kv_head,
        "small": {"rows": small.shape[0], "columns": small.shape[1], "roots": _base64(small.tobytes())},
    }


def _picture_data(picture: Picture) -> dict[str, Any]:
    return {
        "rows": picture.rows,
        "columns": picture.columns,
        "first": picture.first,
        "url": f"data:image/png;base64,{_base64(picture.png)}",
    }


def _json_in_html(data: Any) -> str:
    """JSON that ends no script element and begins no comment (HTML Standard, § 4.12.1.3)."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def _hash(text: str) -> str:
    """How a policy names a script or a style that may be used."""
    return f"sha256-{_base64(sha256(text.encode()).digest())}"


def _base64(content: bytes) -> str:
    return b64encode(content).decode("ascii")


def _own(name: str) -> str:
    """The text of a file that lies beside this one."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
