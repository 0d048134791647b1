"""The dtypes of keys and values, and which one a checkpoint asks for."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple

from attnscope.base.dtypes import FLOATS, GGML_BLOCKS
from attnscope.model.card.anatomy import LayerAnatomy
from attnscope.model.card.quantisation import settings_of

BYTES = {name: FLOATS[name] for name in ("float64", "float32", "bfloat16", "float16")}
BYTES |= {"fp8": 1, "int8": 1}
"""The bytes of a number of the cache."""

BLOCKS = {name: GGML_BLOCKS[name.upper()] for name in "q8_0 q5_1 q5_0 q4_1 q4_0 iq4_nl".split()}
"""The dtypes of llama.cpp's cache alone: `kv_cache_types` in its common/arg.cpp."""

DTYPES = (*BYTES, *BLOCKS)


class CacheDtype(NamedTuple):
    """The dtype of keys, and that of values."""

    k: str
    v: str

    @classmethod
    def both(cls, dtype: str) -> CacheDtype:
        """Return one dtype of keys and values."""
        return cls(dtype, dtype)

    @property
    def name(self) -> str:
        """Both, for people."""
        return self.k if self.k == self.v else f"{self.k} (K) and {self.v} (V)"

    @property
    def plain(self) -> str | None:
        """The one dtype of both, if every engine could have it; None: only llama.cpp has it."""
        return self.k if self.k == self.v and self.k in BYTES else None

    def itemsize(self, layer: LayerAnatomy) -> int | Fraction:
        """Return the bytes of a number of a layer's cache, on average of its keys and values.

        Latents are keys; values are read from them.
        """
        k, v = _bytes(self.k), _bytes(self.v)
        if k == v or layer.d_V_latent is not None or not layer.d_K or not layer.d_V:
            return k
        return Fraction(k * layer.d_K + v * layer.d_V) / (layer.d_K + layer.d_V)


def _bytes(dtype: str) -> int | Fraction:
    return BYTES[dtype] if dtype in BYTES else Fraction(BLOCKS[dtype].n_bytes, BLOCKS[dtype].block)


class CheckpointDtype(NamedTuple):
    """What a checkpoint says about the dtype of its cache."""

    dtype: str | None  #: one of `BYTES`; None: it is not among them
    field: str  #: the field that names it
    value: str  #: its content, as a message shows it


def checkpoint_dtype(config: dict[str, Any], beside: dict[str, Any] | None) -> CheckpointDtype | None:
    """Return the dtype of keys and values that a checkpoint names; None: it names none.

    Args:
        beside: that of hf_quant_config.json; None: there is none.
    """
    source, settings = settings_of(config, beside)
    for name in ("kv_cache_scheme", "kv_cache_quant_algo"):
        found = (settings or {}).get(name)
        if found is None:
            continue
        field = f"{name} in {source}" if source.endswith(".json") else f"{source}.{name}"
        if isinstance(found, dict):
            kinds = {("float", 8): "fp8", ("int", 8): "int8"}
            kind, bits = found.get("type"), found.get("num_bits")
            dtype = kinds.get((kind, bits)) if isinstance(kind, str) and type(bits) is int else None
            return CheckpointDtype(dtype, field, f"{kind} of {bits} bits")
        dtype = {"FP8": "fp8", "INT8": "int8"}.get(str(found).upper())
        return CheckpointDtype(dtype, field, str(found))
    return None
