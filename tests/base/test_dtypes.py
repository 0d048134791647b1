"""The sizes and names of dtypes, compared with those of torch, numpy and ggml."""

import numpy as np
import pytest
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from safetensors import SafetensorError, deserialize

from attnscope.base.dtypes import CASTS, DTYPES, FLOATS, GGML_BLOCKS, GGML_TYPES, SAFETENSORS


@pytest.mark.parametrize(
    "dtype", [each for each in DTYPES.values() if each.bits >= 8], ids=lambda d: d.name
)
def test_sizes_and_precisions_are_those_of_torch(dtype):
    theirs = getattr(torch, dtype.name)
    assert dtype.n_bytes == theirs.itemsize
    if dtype.numpy:
        assert 2.0**-dtype.precision == torch.finfo(theirs).eps / 2
        assert np.dtype(dtype.numpy).itemsize == dtype.n_bytes
        assert getattr(torch.nn.Linear(1, 1), CASTS.get(dtype.name, "float"))().weight.dtype == theirs


def test_sizes_in_safetensors_are_those_of_the_library():
    """It refuses every other number of bytes."""
    for name, dtype in SAFETENSORS.items():
        for n_byte in (dtype.bits * 3, dtype.bits * 3 + 1):
            header = f'{{"w":{{"dtype":"{name}","shape":[8,3],"data_offsets":[0,{n_byte}]}}}}'.encode()
            try:
                deserialize(len(header).to_bytes(8, "little") + header + b"\0" * n_byte)
                accepted = True
            except SafetensorError:
                accepted = False
            assert accepted == (n_byte == dtype.bits * 3), name


def test_the_types_of_gguf_are_those_of_its_package():
    theirs = {each.value: (each.name, *GGML_QUANT_SIZES[each]) for each in GGMLQuantizationType}
    assert {number: tuple(each) for number, each in GGML_TYPES.items()} == theirs
    assert all(
        GGML_BLOCKS[DTYPES[name].safetensors].n_bytes == n_byte for name, n_byte in FLOATS.items()
    )
