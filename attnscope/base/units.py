"""Readable amounts: bytes, counts, FLOPs, shares, shapes and lists; and the parser of amounts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import groupby

MISSING = "–"
"""Stands for a value that is not known."""

FEW = 4
"""The most items that `few` lists by name."""

BYTES_OF_UNITS = {"": 1, "b": 1}
BYTES_OF_UNITS |= {
    f"{letter}{rest}": 1024**n for n, letter in enumerate("kmgt", 1) for rest in ("", "ib")
}
BYTES_OF_UNITS |= {f"{letter}b": 1000**n for n, letter in enumerate("kmgt", 1)}
UNITS_OF_BYTES = "G and GiB are 2^30 bytes, GB is 10^9"
"""Those units in words, for the help of options."""


def parse_amount(text: str | int, units: Mapping[str, int] = BYTES_OF_UNITS) -> int | None:
    """Parse a number and its unit, rounded down to a whole number; None: it is not an amount.

    Args:
        units: the factor of each unit, in small letters; default: units of bytes.

    >>> parse_amount("1.5 GiB"), parse_amount("1GB"), parse_amount("2G"), parse_amount(100)
    (1610612736, 1000000000, 2147483648, 100)
    """
    found = re.fullmatch(r"(\d{1,19})(?:\.(\d{1,19}))?\s*([a-z]*)", str(text).strip().lower())
    if found is None or found[3] not in units:
        return None
    unit, fraction = units[found[3]], found[2] or "0"
    return int(found[1]) * unit + int(fraction) * unit // 10 ** len(fraction)


def bytes_text(count: int) -> str:
    """Format a number of bytes in binary units, with three or four digits: `18000` is `17.6 KiB`."""
    if count < 1024:
        return f"{count} B"
    size = float(count)
    for unit in ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"):
        size /= 1024
        if size < 999.95 or unit == "YiB":
            break
    return f"{size:.1f} {unit}"


def counted(count: int, what: str) -> str:
    """Format a count with its noun: `1 token`, `1,152 tokens`."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def flops_text(count: int) -> str:
    """Format a number of floating-point operations: `1152000` is `1.15 MFLOP`."""
    amount, _, unit = (count_text(count) or "0").partition(" ")
    return f"{amount} {unit}FLOP"


def seconds_text(seconds: float) -> str:
    """Format a duration with three digits: `0.0125` is `12.5 ms`."""
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "µs")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def count_text(count: int) -> str:
    """Format a count in decimal units: `1152000` is `1.15 M`; 0 is an empty string."""
    if count == 0:
        return ""
    if count < 1000:
        return str(count)
    size = float(count)
    for unit in ("K", "M", "G", "T", "P", "E", "Z", "Y"):
        size /= 1000
        if size < 999.5 or unit == "Y":
            break
    return f"{size:.3g} {unit}" if size < 999.5 else f"{size:.0f} {unit}"


def number_text(number: float | None) -> str:
    """Format a value with four significant digits."""
    return MISSING if number is None else f"{number:.4g}"


def shape_text(shape: tuple[int, ...]) -> str:
    """Format a shape: `3×30×128`, or `scalar`."""
    return "×".join(map(str, shape)) or "scalar"


def difference_text(value: float | None) -> str:
    """Return a difference in two digits."""
    if value is None:
        return MISSING
    return "0" if value == 0 else f"{value:.1e}"


def percent(share: float) -> str:
    """Format a share: never 0 % or 100 % of what is neither."""
    number = 100 * share
    text = f"{number:.1f}"
    if text == "0.0" and share > 0:
        return "< 0.1 %"
    if text == "100.0" and share < 1:
        return "> 99.9 %"
    return f"{text} %"


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


def listed(parts: Iterable[str]) -> str:
    """Join the parts that are not empty."""
    return ", ".join(filter(None, parts))


def few(names: list[str]) -> str:
    """List names; of many, the first and the number of the others."""
    if len(names) <= FEW + 1:
        return ", ".join(names)
    return f"{', '.join(names[:FEW])} and {len(names) - FEW} more"
