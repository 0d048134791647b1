"""Slices of tensors in GGUF files, against llama.cpp's own package, which dequantises whole tensors."""

import sys
from dataclasses import replace

import gguf
import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from attnscope import head_weights
from attnscope.base.errors import ModelError
from attnscope.model.files.gguf_header import open_gguf
from attnscope.model.files.gguf_values import GgufMatrix, read_vector
from attnscope.model.files.ranges import FileRanges, Ranges

KINDS = [each.name for each in gguf.quants._type_traits if each.name != "BF16"]
"""Every type that the package dequantises."""

NAME = "blk.0.attn_q.weight"


def write(path, kind, *, n_row=10, n_block=3):
    """Write a matrix of random blocks; return its bytes, `n_row n_byte`."""
    own = GGMLQuantizationType[kind]
    _, n_bytes = GGML_QUANT_SIZES[own]
    blocks = np.random.default_rng(own).integers(0, 256, (n_row, n_block * n_bytes), np.uint8)
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_tensor("first", np.arange(7, dtype=np.float32))
    writer.add_tensor(NAME, blocks, raw_dtype=own)
    writer.add_head_count(2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return blocks


class Remote(Ranges):
    """The bytes of a file as a server gives them, and the requests for them."""

    first = further = 0

    def __init__(self, path):
        self.file, self.requests = FileRanges(path), []

    @property
    def name(self):
        return "remote.gguf"

    @property
    def size(self):
        return self.file.size

    def read(self, start, length):
        self.requests.append((start, length))
        return self.file.read(start, length)

    def beside(self, filename):
        raise AssertionError(filename)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("remote", [False, True], ids=["here", "remote"])
@pytest.mark.parametrize("kind", KINDS)
def test_any_range_is_that_of_the_whole_dequantised_tensor(tmp_path, kind, remote):
    path = tmp_path / "x.gguf"
    blocks = write(path, kind)
    own = GGMLQuantizationType[kind]
    whole = gguf.quants.dequantize(blocks, own)
    tensor = open_gguf(path).tensors[NAME]
    if remote:
        tensor = replace(tensor, file=Remote(path))
    block = GGML_QUANT_SIZES[own][0]
    for reordered in (0, 2):  # heads of 2 rows: their order does not change
        matrix = GgufMatrix(tensor, reordered)
        assert matrix.shape == whole.shape
        for rows, columns in (
            (slice(2, 5), slice(None)),
            (slice(None), slice(block - 3, block + 1)),
            (slice(7, 10), slice(2 * block, 3 * block)),
            (slice(None), slice(None)),
        ):
            assert np.array_equal(matrix[rows, columns], whole[rows, columns], equal_nan=True)
        assert np.array_equal(matrix[2:5], whole[2:5], equal_nan=True)
        assert np.array_equal(np.asarray(matrix), whole, equal_nan=True)


def test_rows_of_heads_that_alternate_are_put_in_order(tmp_path):
    path = tmp_path / "x.gguf"
    whole = gguf.quants.dequantize(write(path, "Q8_0", n_row=12), GGMLQuantizationType.Q8_0)
    order = [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]  # 2 heads, first halves before second halves
    matrix = GgufMatrix(open_gguf(path).tensors[NAME], 6)
    with np.errstate(all="ignore"):
        for rows in (slice(0, 6), slice(6, 12), slice(4, 8), slice(None)):
            assert np.array_equal(matrix[rows], whole[order][rows], equal_nan=True)


def test_of_a_remote_file_only_rows_of_the_slice_are_requested(tmp_path):
    path = tmp_path / "x.gguf"
    blocks = write(path, "Q4_K", n_row=20)
    server = Remote(path)
    tensor = replace(open_gguf(path).tensors[NAME], file=server)
    matrix = GgufMatrix(tensor, 4)
    matrix[5:7], matrix[5:7]
    per_row = blocks.shape[1]
    assert server.requests == [(tensor.offset + 4 * per_row, 4 * per_row)]
    matrix[:, 3:9], matrix[:, 9:13]
    assert server.requests[1:] == [(tensor.offset, 20 * per_row)]


def test_a_vector_is_read_whole(tmp_path):
    path = tmp_path / "x.gguf"
    write(path, "Q8_0")
    assert read_vector(open_gguf(path).tensors["first"]).tolist() == [*range(7)]


@pytest.mark.parametrize("place", [FileRanges, Remote])
def test_a_file_that_shrinks_is_named(tmp_path, place):
    path = tmp_path / "x.gguf"
    write(path, "Q8_0")
    tensor = replace(open_gguf(path).tensors[NAME], file=place(path))
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ModelError, match=r"\.gguf ends within blk\.0\.attn_q\.weight"):
        GgufMatrix(tensor)[:]


@pytest.mark.parametrize("kind", ["I8", "Q8_1", "77"])
def test_types_without_values_are_named(tmp_path, kind):
    path = tmp_path / "x.gguf"
    write(path, "Q8_0" if kind == "77" else kind)
    tensor = replace(open_gguf(path).tensors[NAME], dtype=kind)
    with pytest.raises(ModelError, match=f"is stored as ggml's type {kind}"):
        GgufMatrix(tensor)[:]


def test_the_package_is_named_where_it_is_missing(tmp_path, monkeypatch):
    path = tmp_path / "x.gguf"
    write(path, "Q4_K")
    monkeypatch.setitem(sys.modules, "gguf.quants", None)
    with pytest.raises(ModelError, match="is stored as Q4_K, which only the package gguf") as caught:
        GgufMatrix(open_gguf(path).tensors[NAME])[:]
    assert caught.value.hint == "pip install 'attnscope[gguf]'"


def test_a_tensor_with_a_scale_of_its_own_is_refused(tmp_path):
    path = tmp_path / "x.gguf"
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_head_count(2)
    for part in ("q", "k", "v", "output"):
        writer.add_tensor(f"blk.0.attn_{part}.weight", np.ones((6, 6), np.float32))
    writer.add_tensor("blk.0.attn_q.scale", np.ones(1, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match=r"is multiplied by blk\.0\.attn_q\.scale"):
        head_weights(path)
