"""Options of `attnscope card`: keywords of `attnscope.card`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from attnscope.errors import OptionError
from attnscope.model_card.cache_dtype import BYTES, DTYPES
from attnscope.model_card.work import Device
from attnscope.options import option
from attnscope.text import shortened

K = 1024
TOKENS = {"": 1, "k": K, "m": K**2}
SIZES = {"": 1, "k": K, "m": K**2, "g": K**3, "t": K**4}
SIZES |= {f"{letter}b": 1000**n for n, letter in enumerate("kmgt", 1)} | {"b": 1}
SIZES |= {f"{letter}ib": K**n for n, letter in enumerate("kmgt", 1)}
RATES = {letter: 1000**n for n, letter in enumerate(("", "k", "m", "g", "t", "p"))}
MOST, MOST_FLOPS = 2**50, 10**20


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
        f"Dtype of the keys and values: {', '.join(DTYPES)}. The last six are llama.cpp's alone.",
        metavar="DTYPE",
        shown="that of the checkpoint",
        common=True,
        values=DTYPES,
    )
    dtype_k: str | None = option(
        "Dtype of the keys, where it is not that of the values.", metavar="DTYPE", values=DTYPES
    )
    dtype_v: str | None = option(
        "Dtype of the values, where it is not that of the keys.", metavar="DTYPE", values=DTYPES
    )
    memory: str | None = option(
        "What fits into a memory, weights included: 80G (G and GiB are 2^30 bytes, GB is 10^9).",
        metavar="SIZE",
        common=True,
    )
    cache_memory: str | None = option(
        "What fits into a memory that has only keys and values, without weights: 10G.", metavar="SIZE"
    )
    weights: str | None = option(
        "Size of all weights, where the files do not say it, or another: 15GiB.", metavar="SIZE"
    )
    weights_dtype: str | None = option(
        f"Dtype of all weights, where the files do not say it, or another: {', '.join(BYTES)}.",
        metavar="DTYPE",
        values=tuple(BYTES),
    )
    tensor_parallel: int = option(
        "Devices that share the heads: keys and values are those of one of them.",
        default=1,
        min=1,
    )
    engine_step: int | None = option(
        "Tokens that an engine processes at once, which it keeps beside a window: vLLM's"
        " --max-num-batched-tokens, llama.cpp's --ubatch-size.",
        min=1,
        metavar="N",
        shown="8,192 and 512",
    )
    flops: str | None = option(
        "What bounds a token: FLOPs that the device computes in a second, 989T (T is 10^12).",
        metavar="N",
    )
    bandwidth: str | None = option(
        "With --flops: bytes that the device reads from its memory in a second, 3.35TB.", metavar="SIZE"
    )
    source: int | None = option(
        "Tokens of the encoder, for each sequence of an encoder-decoder model.",
        min=1,
        shown="as many as --context",
    )
    like: str | None = option(
        "Model type by which config.json is read, where its own is not known: llama.",
        metavar="TYPE",
        values=("llama", "mistral", "qwen2", "deepseek_v3"),
    )
    verify: bool = option(
        "Compare the formula with transformers' own cache, in a small model of the same kind.",
        default=False,
        common=True,
    )


def tokens_of(text: str | int) -> int:
    """Return a number of tokens: `128k` is 131,072."""
    return _number("--context", text, TOKENS, "128k")


def bytes_of(text: str | int, flag: str = "--memory", example: str = "80G") -> int:
    """Return a number of bytes: `80G` is 80 × 2^30."""
    return _number(flag, text, SIZES, example)


def device_of(flops: str | int | None, bandwidth: str | int | None) -> Device | None:
    """Return the device that two options describe; None if neither is given."""
    if flops is None and bandwidth is None:
        return None
    if flops is None or bandwidth is None:
        raise OptionError(
            "what bounds a token needs both --flops and --bandwidth.",
            hint="--flops 989T --bandwidth 3.35TB",
        )
    return Device(
        _number("--flops", flops, RATES, "989T", MOST_FLOPS),
        _number("--bandwidth", bandwidth, SIZES, "3.35TB"),
    )


def _number(flag: str, text: str | int, units: dict[str, int], example: str, most: int = MOST) -> int:
    found = re.fullmatch(r"(\d{1,16})(?:\.(\d{1,9}))?\s*([a-z]*)", str(text).strip().lower())
    if found is None or found[3] not in units:
        raise OptionError(f"{flag} {shortened(str(text))!r} is not an amount.", hint=f"{flag} {example}")
    value = int(found[1]) * units[found[3]]
    if found[2]:
        value += int(found[2]) * units[found[3]] // 10 ** len(found[2])
    if not 1 <= value <= most:
        limit = "2^50" if most == MOST else "10^20"
        raise OptionError(
            f"{flag} {shortened(str(text))} must be from 1 to {limit}.", hint=f"{flag} {example}"
        )
    return value
