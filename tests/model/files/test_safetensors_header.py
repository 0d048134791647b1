"""Headers of safetensors files, as the library writes them, and as attackers do."""

import json
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save
from safetensors.torch import save_file

from attnscope.base.errors import ModelError
from attnscope.model.files.ranges import FileRanges
from attnscope.model.files.safetensors_header import read_safetensors_header

ENTRY = '"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}'


def write(path, header, n_data=24):
    header = header if isinstance(header, bytes) else header.encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with path.open("ab") as file:
        file.truncate(8 + len(header) + n_data)
    return path


def refused(path) -> str:
    with pytest.raises(ModelError) as caught:
        read_safetensors_header(FileRanges(path))
    assert len(caught.value.message.splitlines()) == 1
    assert len(caught.value.message) < 400
    assert caught.value.message.isprintable()
    return caught.value.message


def test_a_header_is_read_as_the_library_reads_it(tmp_path):
    path = tmp_path / "x.safetensors"
    dtypes = [torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn, torch.bool, torch.float64]
    tensors = {f"a.{i}.ü": torch.ones(2, 3 + i, 1).to(dtype) for i, dtype in enumerate(dtypes)}
    tensors |= {"one": torch.tensor(1.0), "empty": torch.ones(0, 3)}
    save_file(tensors, path, {"format": "pt", "notes": json.dumps({"a": {"b": ["\n", "ü", "}"]}})})
    content = path.read_bytes()
    found = {tensor.name: tensor for tensor in read_safetensors_header(FileRanges(path))}
    with safe_open(path, framework="pt") as reference:
        assert found.keys() == set(reference.keys())
        for name, tensor in found.items():
            theirs = reference.get_slice(name)
            assert (list(tensor.shape), tensor.dtype) == (theirs.get_shape(), theirs.get_dtype())
            stored = content[tensor.offset : tensor.offset + tensor.n_bytes]
            assert (
                stored == tensors[name].contiguous().view(torch.uint8).numpy().tobytes()
                if (tensors[name].dim() and tensors[name].numel())
                else tensor.n_bytes in (0, 4)
            )


@pytest.mark.sweep
@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8"), min_size=1, max_size=20),
        st.lists(st.integers(0, 5), max_size=4),
        max_size=4,
    )
)
def test_any_names_and_shapes_are_read(tmp_path_factory, shapes):
    shapes.pop("__metadata__", None)
    arrays = {name: np.ones(shape, "<i2") for name, shape in shapes.items()}
    path = tmp_path_factory.mktemp("any") / "x.safetensors"
    path.write_bytes(save(arrays))
    found = {tensor.name: tensor.shape for tensor in read_safetensors_header(FileRanges(path))}
    assert found == {name: tuple(shape) for name, shape in shapes.items()}


@pytest.mark.parametrize(
    "header",
    [
        "{" + ENTRY + "}",
        "{" + ENTRY + "}   ",
        "{" + ENTRY.replace(":", " : ").replace(",", " ,\n\t") + " }",
        '{"w":{"data_offsets":[0,24],"shape":[2,3],"dtype":"F32"}}',
        '{"__metadata__":{},' + ENTRY + "}",
        "{" + ENTRY + ',"__metadata__":{"a":"b","c":"\\"}"}}',
        '{"\\u0077":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}',
    ],
)
def test_json_may_be_written_in_any_way(tmp_path, header):
    (found,) = read_safetensors_header(FileRanges(write(tmp_path / "x", header)))
    assert (found.name, found.shape, found.dtype, found.n_bytes) == ("w", (2, 3), "F32", 24)


DEEP = 10**6


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        ("", "its header should have 0 bytes"),
        ("[]", "its header is not JSON"),
        ("{]", "byte 9 of its header does not begin an entry"),
        ('{"w":1}', "byte 9 of its header does not begin an entry"),
        ("{" + ENTRY, "byte 9 of its header does not begin an entry"),
        ("{" + ENTRY + ",}", "does not begin an entry"),
        ("{" + ENTRY + "}{}", "something follows its header's last entry"),
        ("{" + ENTRY + "," + ENTRY + "}", "w occurs twice"),
        ("[" * DEEP, "is not a safetensors file"),
        ('{"w":' + "[" * DEEP, "does not begin an entry"),
        ('{"w":' + '{"w":' * DEEP, "does not begin an entry"),
        ('{"w":{"dtype":"F32","shape":' + "[" * 3000 + "}}", "w has no dtype, shape and offsets"),
        ('{"w":{"shape":[2,3],"data_offsets":[0,24]}}', "w has no dtype, shape and offsets"),
        ('{"w":{"shape":[-2],"dtype":"F32","data_offsets":[0,24]}}', "w has no dtype, shape and offset"),
        ('{"w":{"shape":[2.0],"dtype":"F32","data_offsets":[0,8]}}', "w has no dtype, shape and offset"),
        ('{"w":{"shape":[2],"dtype":["F32"],"data_offsets":[0,8]}}', "w has no dtype, shape and offset"),
        ('{"w":{"shape":[2],"dtype":"F32","data_offsets":[0]}}', "w has no dtype, shape and offsets"),
        (ENTRY.join("{}").replace("24", "23"), "w F32 (2, 3) has 23 bytes"),
        (ENTRY.join("{}").replace("24", "25"), "w (2, 3) ends at byte"),
        (ENTRY.join("{}").replace("2,3", f"{2**62},{2**62}"), "ends at byte"),
        (ENTRY.join("{}").replace("24", "9" * 5000), "does not begin an entry"),
        (ENTRY.join("{}").replace("2,3", "1," * 5000 + "6"), "does not begin an entry"),
        (ENTRY.join("{}").replace("2,3", "1," * 99 + "6"), "w has no dtype, shape and offsets"),
        (ENTRY.join("{}").replace("2,3", "2," + "9" * 4000), "ends at byte"),
        (ENTRY.join("{}").replace("2,3", "2,,3"), "w has no dtype, shape and offsets"),
        (ENTRY.join("{}").replace("0,24", "24,24"), "has 0 bytes"),
        (ENTRY.join("{}").replace("2,3", "2"), "w F32 (2,) has 24 bytes"),
        (ENTRY.join("{}").replace("w", "w" * 2000), "a name has 2000 bytes, more than 1024"),
        (ENTRY.join("{}").replace("w", "\\ud800"), r"a name is not valid: \ud800"),
        (ENTRY.join("{}").replace("w", "\\x"), r"a name is not valid: \x"),
        (ENTRY.join("{}").replace("w", "w\\u001b[2J\\n").replace("24", "23"), r"w\x1b[2J\n F32 (2, 3) has"),
        (ENTRY.join("{}").encode().replace(b"w", b"\xff"), "a name is not valid: \ufffd"),
        ('{"__metadata__":{"a":{}},' + ENTRY + "}", "does not begin an entry"),
    ],
)  # fmt: skip
def test_a_hostile_header_is_refused_in_one_line(tmp_path, header, problem):
    assert problem in refused(write(tmp_path / "x.safetensors", header))


def test_tensors_that_overlap_are_refused(tmp_path):
    """The library refuses them, too: two tensors have the same bytes, and nothing has the last ones."""
    entry = '"{}":{{"dtype":"F32","shape":[2],"data_offsets":[{},{}]}}'
    entries = [entry.format("a", 0, 8), entry.format("b", 4, 12), entry.format("c", 12, 20)]
    message = refused(write(tmp_path / "x.safetensors", "{" + ",".join(entries) + "}", 24))
    assert "b begins within another tensor" in message


def test_data_that_no_tensor_uses_or_that_is_cut_off_is_refused(tmp_path):
    path = tmp_path / "x.safetensors"
    assert "have 24 bytes, but 25 follow its header" in refused(write(path, ENTRY.join("{}"), 25))
    assert "w (2, 3) ends at byte" in refused(write(path, ENTRY.join("{}"), 23))
    content = write(path, ENTRY.join("{}")).read_bytes()
    for length in range(len(content) - 1):
        path.write_bytes(content[:length])
        assert f"({length} bytes long)" in refused(path)


@pytest.mark.parametrize("length", [2**64 - 1, 2**63, 10**8 + 1])
def test_a_length_that_lies_is_refused(tmp_path, length):
    path = tmp_path / "x.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + b"{}")
    assert f"its header should have {length} bytes" in refused(path)
    with path.open("ab") as file:
        file.truncate(2 * 10**8)
    assert f"its header should have {length} bytes" in refused(path)


@pytest.mark.few(12)
@pytest.mark.parametrize(
    "repeated",
    ["[", '{"":', '{},', '[],', '"a":1,', '"a' + "a" * 99, " ", '"a":{"dtype":"F32"},', "\\"],
)  # fmt: skip
@pytest.mark.parametrize("start", ["{", '{"w":', '{"__metadata__":{"w":', '{"w'])
def test_a_long_header_takes_bounded_memory_and_time(tmp_path, start, repeated):
    """The headers here have 3 MB; memory is measured in multiples of that."""
    n_bytes = 3 * 10**6
    text = start + repeated * (n_bytes // len(repeated))
    path = write(tmp_path / "x.safetensors", text)
    del text
    tracemalloc.start()
    try:
        refused(path)
        assert tracemalloc.get_traced_memory()[1] < 2.5 * n_bytes
    finally:
        tracemalloc.stop()


@pytest.mark.sweep
def test_too_many_tensors_are_refused(tmp_path):
    entries = (f'"{i}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}' for i in range(2**18 + 2))
    path = write(tmp_path / "x.safetensors", "{" + ",".join(entries) + "}", 0)
    assert "it should have more than 262144 tensors" in refused(path)
