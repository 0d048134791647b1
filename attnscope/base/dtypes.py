"""The dtypes of numbers: their sizes, and their names in torch, numpy, safetensors and GGUF."""

from __future__ import annotations

from typing import NamedTuple


class Dtype(NamedTuple):
    """A dtype.

    Attributes:
        name: torch's, such as `bfloat16`; that of safetensors if torch has none.
        bits: the size of a number.
        safetensors: the name in files of safetensors, such as `BF16`; None: they have no such numbers.
        numpy: numpy's name of what is stored, such as `<f4`, if attention runs in it. numpy has no
            bfloat16, but its 16 bits.
        precision: the significant bits of such a number.
    """

    name: str
    bits: int
    safetensors: str | None
    numpy: str = ""
    precision: int = 0

    @property
    def n_bytes(self) -> int:
        """The bytes of a number of at least 8 bits."""
        return self.bits // 8


DTYPES = {
    each.name: each
    for each in (
        Dtype("float64", 64, "F64", "<f8", 53),
        Dtype("float32", 32, "F32", "<f4", 24),
        Dtype("float16", 16, "F16", "<f2", 11),
        Dtype("bfloat16", 16, "BF16", "<u2", 8),
        Dtype("float8_e4m3fn", 8, "F8_E4M3"),
        Dtype("float8_e5m2", 8, "F8_E5M2"),
        Dtype("float8_e8m0fnu", 8, "F8_E8M0"),
        Dtype("float8_e4m3fnuz", 8, "F8_E4M3FNUZ"),
        Dtype("float8_e5m2fnuz", 8, "F8_E5M2FNUZ"),
        Dtype("F6_E2M3", 6, "F6_E2M3"),
        Dtype("F6_E3M2", 6, "F6_E3M2"),
        Dtype("F4", 4, "F4"),
        Dtype("bool", 8, "BOOL"),
        Dtype("uint8", 8, "U8"),
        Dtype("uint16", 16, "U16"),
        Dtype("uint32", 32, "U32"),
        Dtype("uint64", 64, "U64"),
        Dtype("int8", 8, "I8"),
        Dtype("int16", 16, "I16"),
        Dtype("int32", 32, "I32"),
        Dtype("int64", 64, "I64"),
        Dtype("complex64", 64, "C64"),
        Dtype("complex128", 128, None),
    )
}
"""By name. The sizes in safetensors are `Dtype::bitsize` of its library."""

SAFETENSORS = {each.safetensors: each for each in DTYPES.values() if each.safetensors is not None}
"""By the name in files of safetensors."""

FLOATS = {name: each.n_bytes for name, each in DTYPES.items() if each.numpy}
"""The dtypes that attention runs in, with the bytes of a number."""

STORED = {name: each for name, each in SAFETENSORS.items() if each.name in FLOATS}
"""The same dtypes by their names in files, which safetensors and GGUF share."""

CASTS = {"float64": "double", "float16": "half", "bfloat16": "bfloat16"}
"""The methods of a module that cast its floating-point tensors, and leave the others unchanged; `float`
casts to float32."""


class TensorType(NamedTuple):
    """How the elements of a tensor in a GGUF file are stored.

    Attributes:
        name: ggml's name, such as `Q4_K`.
        block: the number of elements in a block, which lie in one row.
        n_bytes: the size of a block in bytes, scales included.
    """

    name: str
    block: int
    n_bytes: int


GGML_TYPES = {
    number: TensorType(*each)
    for number, each in {
        0: ("F32", 1, 4),
        1: ("F16", 1, 2),
        2: ("Q4_0", 32, 18),
        3: ("Q4_1", 32, 20),
        6: ("Q5_0", 32, 22),
        7: ("Q5_1", 32, 24),
        8: ("Q8_0", 32, 34),
        9: ("Q8_1", 32, 40),
        10: ("Q2_K", 256, 84),
        11: ("Q3_K", 256, 110),
        12: ("Q4_K", 256, 144),
        13: ("Q5_K", 256, 176),
        14: ("Q6_K", 256, 210),
        15: ("Q8_K", 256, 292),
        16: ("IQ2_XXS", 256, 66),
        17: ("IQ2_XS", 256, 74),
        18: ("IQ3_XXS", 256, 98),
        19: ("IQ1_S", 256, 50),
        20: ("IQ4_NL", 32, 18),
        21: ("IQ3_S", 256, 110),
        22: ("IQ2_S", 256, 82),
        23: ("IQ4_XS", 256, 136),
        24: ("I8", 1, 1),
        25: ("I16", 1, 2),
        26: ("I32", 1, 4),
        27: ("I64", 1, 8),
        28: ("F64", 1, 8),
        29: ("IQ1_M", 256, 56),
        30: ("BF16", 1, 2),
        34: ("TQ1_0", 256, 54),
        35: ("TQ2_0", 256, 66),
        39: ("MXFP4", 32, 17),
        40: ("NVFP4", 64, 36),
        41: ("Q1_0", 128, 18),
    }.items()
}
"""By ggml's number: `enum ggml_type` of ggml.h. The missing numbers were removed from the format."""

GGML_BLOCKS = {each.name: each for each in GGML_TYPES.values()}
"""By ggml's name."""
