"""Options of `attnscope card`: keywords of `attnscope.card`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from attnscope.cost.kv_cache import BYTES
from attnscope.errors import OptionError
from attnscope.options import option
from attnscope.text import shortened

K = 1024
TOKENS = {"": 1, "k": K, "m": K**2}
SIZES = {"": 1, "k": K, "m": K**2, "g": K**3, "t": K**4}
SIZES |= {f"{letter}b": 1000**n for n, letter in enumerate("kmgt", 1)} | {"b": 1}
SIZES |= {f"{letter}ib": K**n for n, letter in enumerate("kmgt", 1)}
MOST = 2**50


@dataclass(frozen=True)
class CostOptions:
    """What the cost is computed for."""

    context: str | None = option(
        "Tokens of each sequence: 4096, 128k (k is 1024).",
        metavar="N",
        shown="the longest that the model was made for",
        common=True,
    )
    batch: int = option("Sequences.", default=1, min=1, common=True)
    dtype: str | None = option(
        f"Dtype of the keys and values: {', '.join(BYTES)}.",
        metavar="DTYPE",
        shown="that of config.json",
        common=True,
        values=tuple(BYTES),
    )
    memory: str | None = option(
        "What fits into a memory, weights included: 80G (G and GiB are 2^30 bytes, GB is 10^9).",
        metavar="SIZE",
        common=True,
    )
    source: int | None = option(
        "Tokens of the encoder, for each sequence of an encoder-decoder model.",
        min=1,
        shown="as many as --context",
    )


def tokens_of(text: str | int) -> int:
    """Return a number of tokens: `128k` is 131,072."""
    return _number("--context", text, TOKENS, "128k")


def bytes_of(text: str | int) -> int:
    """Return a number of bytes: `80G` is 80 × 2^30."""
    return _number("--memory", text, SIZES, "80G")


def _number(flag: str, text: str | int, units: dict[str, int], example: str) -> int:
    found = re.fullmatch(r"(\d{1,16})(?:\.(\d{1,9}))?\s*([a-z]*)", str(text).strip().lower())
    if found is None or found[3] not in units:
        raise OptionError(f"{flag} {shortened(str(text))!r} is not an amount.", hint=f"{flag} {example}")
    value = int(found[1]) * units[found[3]]
    if found[2]:
        value += int(found[2]) * units[found[3]] // 10 ** len(found[2])
    if not 1 <= value <= MOST:
        raise OptionError(
            f"{flag} {shortened(str(text))} must be from 1 to 2^50.", hint=f"{flag} {example}"
        )
    return value
