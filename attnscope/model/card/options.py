"""Options of `attnscope card`: keywords of `attnscope.card`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from attnscope.base.errors import OptionError
from attnscope.base.options import option
from attnscope.base.spelling import spelled, spelled_any
from attnscope.base.text import shortened
from attnscope.base.units import BYTES_OF_UNITS, UNITS_OF_BYTES, parse_amount
from attnscope.model.card.cache_dtype import BYTES, DTYPES, CacheDtype
from attnscope.model.card.work import Device

TOKENS = {"": 1, "k": 1024, "m": 1024**2}
RATES = {letter: 1000**n for n, letter in enumerate(("", "k", "m", "g", "t", "p"))}
MAX_NUMBER, MAX_FLOPS = 2**50, 10**20

GROUPED = r"u?int[24]|[24][- ]?bits?|kivi\d*|quanti[sz]ed|quanto|hqq"
"""What users may call caches in which groups of numbers share a scale, beside those of llama.cpp."""


def _amount(help: str, metavar: str = "SIZE", **more: Any) -> Any:
    """Declare an option that takes a number, or a text of a number and its unit."""
    return option(help, metavar=metavar, type=str | None, **more)


@dataclass(frozen=True)
class CostOptions:
    """What the cost is computed for: as it was written, and by properties as numbers."""

    context: str | int | None = _amount(
        "Tokens of each sequence: 4096, 128k (k is 1024).",
        "N",
        shown="the longest that the model was made for",
        common=True,
    )
    batch: int = option("Number of sequences.", default=1, min=1, common=True)
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
    memory: str | int | None = _amount(
        f"What fits into a memory, weights included: 80G ({UNITS_OF_BYTES}).", common=True
    )
    cache_memory: str | int | None = _amount(
        "What fits into a memory without weights: 10G; it has keys and values alone."
    )
    weights: str | int | None = _amount(
        "Size of all weights: 15GiB; where the files do not say it, or another."
    )
    weights_dtype: str | None = option(
        f"Dtype of all weights: {', '.join(BYTES)}; where the files do not say it, or another.",
        metavar="DTYPE",
        values=tuple(BYTES),
    )
    tensor_parallel: int = option(
        "Devices that share the heads: keys and values are those of one of them.",
        default=1,
        min=1,
    )
    engine_step: int | None = option(
        "Tokens that an engine processes at once: vLLM's --max-num-batched-tokens, llama.cpp's"
        " --ubatch-size; they are kept beside a window.",
        min=1,
        metavar="N",
        shown="8,192 and 512",
    )
    flops: str | int | None = _amount(
        "What bounds a token: FLOPs that the device computes in a second, 989T (T is 10^12).", "N"
    )
    bandwidth: str | int | None = _amount(
        "With {flops}: bytes that the device reads from its memory in a second, 3.35TB."
    )
    source: int | None = option(
        "Tokens of the encoder, for each sequence of an encoder-decoder model.",
        min=1,
        shown="as many as {context}",
    )
    like: str | None = option(
        "Model type by which config.json is read: llama; where its own is not known.",
        metavar="TYPE",
        values=("llama", "mistral", "qwen2", "deepseek_v3"),
    )
    verify: bool = option(
        "Compare the formula with transformers' own cache; in a small model of the same kind.",
        default=False,
        common=True,
    )

    def check(self) -> None:
        """Raise an OptionError if an option is out of range, or two exclude each other."""
        if self.memory is not None and self.cache_memory is not None:
            raise OptionError(
                f"{spelled('memory')} has weights and caches, {spelled('cache_memory')} caches"
                " alone: they exclude each other.",
                hint="one of them",
            )
        if self.weights is not None and self.weights_dtype is not None:
            raise OptionError(
                f"{spelled('weights')} and {spelled('weights_dtype')} both say the size of the weights.",
                hint="one of them",
            )
        if self.device is not None and self.tensor_parallel > 1:
            raise OptionError(
                f"{spelled('flops')} and {spelled('bandwidth')} are those of one device that runs"
                f" the whole model, so {spelled('tensor_parallel')} does not apply.",
                hint="one of both",
            )
        for name in ("dtype", "dtype_k", "dtype_v", "weights_dtype"):
            of_weights = name == "weights_dtype"
            value, known = getattr(self, name), tuple(BYTES) if of_weights else DTYPES
            if value is not None and value not in known:
                what = "weights" if of_weights else "keys and values"
                if not of_weights and re.fullmatch(GROUPED, value.lower()):
                    raise OptionError(
                        f"{value!r} is not a dtype of keys and values: a cache such as KIVI's, or"
                        " transformers' QuantizedCache, also keeps scales of groups and recent tokens in"
                        " full precision, and the library that packs it decides its bytes.",
                        hint=f"{spelled(**{name: 'q4_0'})}, the fewest bits that are counted",
                    )
                raise OptionError(
                    f"{value!r} is not a dtype of {what}.", hint=spelled_any(name, known, ", ")
                )
        _ = self.n_tokens, self.cache_dtype  # each raises an error of its own
        _ = self.memory_bytes, self.cache_memory_bytes, self.weights_bytes

    @property
    def n_tokens(self) -> int | None:
        """Tokens of each sequence: `128k` is 131,072; None: the most that the model was made for."""
        return self._number("context", TOKENS, "128k")

    @property
    def cache_dtype(self) -> CacheDtype | None:
        """The dtype of keys and values; None: what the checkpoint says."""
        k, v = self.dtype_k or self.dtype, self.dtype_v or self.dtype
        if self.dtype is not None and self.dtype_k is not None and self.dtype_v is not None:
            raise OptionError(
                f"{spelled('dtype')} is idle beside {spelled('dtype_k')} and {spelled('dtype_v')}.",
                hint=spelled(dtype_k="q8_0", dtype_v="q4_0"),
            )
        if (k is None) != (v is None):
            known, other = ("dtype_v", "dtype_k") if k is None else ("dtype_k", "dtype_v")
            raise OptionError(
                f"{spelled(known)} needs {spelled(other)}, or {spelled('dtype')} for the other one.",
                hint=spelled(dtype_k="q8_0", dtype_v="q4_0"),
            )
        return None if k is None or v is None else CacheDtype(k, v)

    @property
    def memory_bytes(self) -> int | None:
        """The bytes that weights and caches must fit into: `80G` is 80 × 2^30; None: no limit."""
        return self._number("memory", BYTES_OF_UNITS, "80G")

    @property
    def cache_memory_bytes(self) -> int | None:
        """The bytes that caches alone must fit into; None: no limit."""
        return self._number("cache_memory", BYTES_OF_UNITS, "10G")

    @property
    def weights_bytes(self) -> int | None:
        """The bytes of all weights; None: those of the files."""
        return self._number("weights", BYTES_OF_UNITS, "15GiB")

    @property
    def device(self) -> Device | None:
        """What runs the model; None: it is not known.

        Raises:
            OptionError: only one of its two rates is given.
        """
        if (self.flops is None) != (self.bandwidth is None):
            raise OptionError(
                f"what bounds a token needs both {spelled('flops')} and {spelled('bandwidth')}.",
                hint=spelled(flops="989T", bandwidth="3.35TB"),
            )
        flops = self._number("flops", RATES, "989T", MAX_FLOPS)
        bandwidth = self._number("bandwidth", BYTES_OF_UNITS, "3.35TB")
        return None if flops is None or bandwidth is None else Device(flops, bandwidth)

    def _number(
        self, name: str, units: dict[str, int], example: str, most: int = MAX_NUMBER
    ) -> int | None:
        """Read the amount that an option has, such as `3.35TB`; None: it has none."""
        value = getattr(self, name)
        if value is None:
            return None
        text, n, hint = shortened(str(value)), parse_amount(value, units), spelled(**{name: example})
        if n is None:
            raise OptionError(f"{spelled(name, repr(text))} is not an amount.", hint=hint)
        if not 1 <= n <= most:
            limit = "2^50" if most == MAX_NUMBER else "10^20"
            raise OptionError(f"{spelled(name, text)} must be from 1 to {limit}.", hint=hint)
        return n
