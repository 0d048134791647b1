"""Readable amounts: bytes, counts and FLOPs with units."""

from __future__ import annotations


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
