"""Turns a right JSON document into a wrong one: values of other types and sizes, at any place in it."""

from __future__ import annotations

import json
import random
from copy import deepcopy
from typing import Any

VALUES: list[Any] = [
    *(None, True, False, -1, 0, 1, 5, 10**9, 10**30, -(10**400), 10**400, 0.5, -0.5, 1e300, 1e-300),
    *(float("nan"), float("inf"), float("-inf")),
    *("", " ", "\n", "x", "\x1b[2J", "\u202e", "\ud800", "é🙂", "<s>", "<|im_end|>", "{{ x }}", "{% if"),
    *("a" * 3000, "\0", "data:", "/dev/zero", "http://x", "-", "[CLS]"),
    *([], {}, [[]], [None], [5], ["x"], {"x": 5}, [1.5], [True], {"type": "text", "text": "the cat"}),
]  # fmt: skip


def nested(n: int) -> Any:
    """Lists in each other."""
    value: Any = 5
    for _ in range(n):
        value = [value]
    return value


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where values are in a document, but for the depths of lists in each other."""
    found = [path] if path else []
    if len(path) > 20:
        return found
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        found += places(value, (*path, key))
    return found


def hostile(document: Any, drawing: random.Random) -> str:
    """The text of a document with one to three changes, or with bytes of its text changed."""
    changed = deepcopy(document)
    for _ in range(drawing.choice([1, 1, 1, 2, 3])):
        *path, key = drawing.choice(places(changed) or [("x",)])
        holder = changed
        for each in path:
            holder = holder[each]
        kind = drawing.randrange(10)
        if kind == 0 and isinstance(holder, dict):
            del holder[key]
        elif kind == 1:
            holder[key] = nested(drawing.choice([40, 300, 700]))
        elif kind == 2 and isinstance(holder, list):
            holder.extend(holder * drawing.choice([1, 40]))
        elif kind == 3 and isinstance(holder, dict):
            holder[drawing.choice(["x", "error", "echo", "index", "type", ""])] = deepcopy(
                drawing.choice(VALUES)
            )
        else:
            holder[key] = deepcopy(drawing.choice(VALUES))
    text = json.dumps(changed)
    if drawing.random() < 0.15:
        at = drawing.randrange(len(text))
        text = (
            text[:at]
            + drawing.choice(["", "{", '"', "\\", "5", "NaN"])
            + text[at + drawing.randrange(4) :]
        )
    return text
