"""Results as JSON."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from math import isfinite, isnan
from typing import Any


def json_text(record: dict[str, Any]) -> str:
    """Return a JSON document, which cannot contain NaN or infinity."""
    return json.dumps(record, indent=2, allow_nan=False, ensure_ascii=False)


def plain(value: Any) -> Any:
    """Convert a result to dicts and lists, without fields that have `repr=False`, such as arrays."""
    if is_dataclass(value):
        return {
            f.metadata.get("key", f.name): plain(getattr(value, f.name)) for f in fields(value) if f.repr
        }
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return number(value) if isinstance(value, float) else value


def compact_json(record: dict[str, Any]) -> str:
    """Return a JSON document in which each row of numbers is on one line."""
    return _compact(record, "")


def _compact(value: Any, indent: str) -> str:
    """Format objects and lists on several lines, but lists of numbers and texts on one."""
    inner = indent + "  "
    if isinstance(value, dict) and value:
        lines = [f"{inner}{json.dumps(key)}: {_compact(each, inner)}" for key, each in value.items()]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(each, dict) for each in value):
        lines = [f"{inner}{_compact(each, inner)}" for each in value]
        return "[\n" + ",\n".join(lines) + f"\n{indent}]"
    if isinstance(value, list) and any(isinstance(each, list) for each in value):
        return "[\n" + ",\n".join(f"{inner}{_line(each)}" for each in value) + f"\n{indent}]"
    return _line(value)


def _line(value: Any) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False)


def number(value: float) -> float | str:
    """Return a number that JSON can represent: NaN and infinities become strings."""
    if isfinite(value):
        return value
    return "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"
