"""Headers of GGUF files, as llama.cpp's own package writes them, and as attackers do."""

import struct
import tracemalloc

import gguf
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType

from attnscope.base.errors import AttnscopeError, ModelError
from attnscope.model.files.gguf_header import LongValue, open_gguf
from attnscope.model.files.ranges import FileRanges, hub_ranges
from tests.model.run.hub import local_hub

QUERY, NAME = "blk.0.attn_q.weight", "someone/model"


def write(path, *, alignment=None, **options):
    """Write a file with the keys and types that models have; return the tensors' values by name."""
    writer = gguf.GGUFWriter(path, "llama", **options)
    if alignment:
        writer.add_custom_alignment(alignment)
    writer.add_block_count(2)
    writer.add_head_count(6)
    writer.add_head_count_kv([2, 3])
    writer.add_layer_norm_rms_eps(0.5)
    writer.add_bool("llama.flag", True)
    writer.add_name("ein Name: ü")
    writer.add_token_list([f"token {i}" for i in range(5000)])
    writer.add_token_scores([float(i) for i in range(5001)])
    values = np.random.default_rng(0).standard_normal((6, 64), dtype=np.float32)
    tensors = {QUERY: values, "blk.0.attn_k.weight": values[:2].astype(np.float16)}
    for name, each in tensors.items():
        writer.add_tensor(name, each)
    quantised = {"Q8_0": "blk.1.attn_q.weight", "Q4_0": "blk.1.attn_k.weight", "BF16": "norm.weight"}
    for name, tensor in quantised.items():
        kind = GGMLQuantizationType[name]
        tensors[tensor] = gguf.quants.quantize(values[:4], kind)
        writer.add_tensor(tensor, tensors[tensor], raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def refused(path, content=None) -> str:
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelError) as caught:
        open_gguf(path)
    assert len(caught.value.message.splitlines()) == 1
    return caught.value.message


def text(value) -> bytes:
    value = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(value)) + value


def header(*pairs, tensors=(), n_pair=None, n_tensor=None, version=3) -> bytes:
    counts = (len(tensors) if n_tensor is None else n_tensor, len(pairs) if n_pair is None else n_pair)
    return b"GGUF" + struct.pack("<IQQ", version, *counts) + b"".join(pairs) + b"".join(tensors)


def tensor(name=QUERY, sizes=(32, 2), kind=8, offset=0, n_dim=None) -> bytes:
    n_dim = len(sizes) if n_dim is None else n_dim
    return text(name) + struct.pack(f"<I{len(sizes)}QIQ", n_dim, *sizes, kind, offset)


def array(kind, length) -> bytes:
    return struct.pack("<IQ", kind, length)


@pytest.mark.few(2)
@pytest.mark.parametrize("alignment", [None, 64])
@pytest.mark.parametrize("version", [2, 3])
def test_a_header_is_read_as_the_gguf_package_reads_it(tmp_path, version, alignment):
    path = tmp_path / "x.gguf"
    written = write(path, alignment=alignment)
    content = path.read_bytes()
    path.write_bytes(content[:4] + struct.pack("<I", version) + content[8:])
    reference = gguf.GGUFReader(path)
    found = open_gguf(path)
    assert found.version == version
    assert [*found.tensors] == [each.name for each in reference.tensors] == [*written]
    for theirs in reference.tensors:
        ours = found.tensors[theirs.name]
        assert ours.shape == tuple(reversed(theirs.shape.tolist()))
        assert (ours.dtype, ours.offset) == (theirs.tensor_type.name, theirs.data_offset)
        assert ours.n_bytes == theirs.n_bytes
        assert ours.file.read(ours.offset, ours.n_bytes) == written[theirs.name].tobytes()
    fields = {name: each for name, each in reference.fields.items() if not name.startswith("GGUF.")}
    assert [*found.metadata] == [*fields]
    tokens, scores = "tokenizer.ggml.tokens", "tokenizer.ggml.scores"
    assert (found.metadata[tokens], found.metadata[scores]) == (
        LongValue("array", 5000),
        LongValue("array", 5001),
    )
    for name in fields.keys() - {tokens, scores}:
        assert found.metadata[name] == fields[name].contents(), name


def test_a_split_file_is_opened_by_any_of_its_parts(tmp_path):
    written = write(tmp_path / "x.gguf", split_max_tensors=2)
    parts = sorted(tmp_path.iterdir())
    assert len(parts) == 3
    for part in parts:
        found = open_gguf(part)
        assert found.metadata["llama.attention.head_count"] == 6
        assert [*found.tensors] == [*written]
        for name, each in found.tensors.items():
            assert each.file.read(each.offset, each.n_bytes) == written[name].tobytes()
    parts[1].unlink()
    with pytest.raises(AttnscopeError, match=r"there is no file .*00002-of-00003"):
        open_gguf(parts[0])
    parts[0].rename(tmp_path / "other.gguf")
    assert "is a part of 3 files, but its name does not say which" in refused(tmp_path / "other.gguf")


def test_parts_in_the_wrong_order_are_refused(tmp_path):
    write(tmp_path / "x.gguf", split_max_tensors=2)
    first, second, _ = sorted(tmp_path.iterdir())
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)
    assert "split.no is 1, not 0" in refused(first)


@pytest.fixture
def hub(monkeypatch, tmp_path_factory, tmp_path):
    """Serve the test's folder as a model."""
    with local_hub(monkeypatch, tmp_path_factory.mktemp("cache")) as hub:
        hub.folders[NAME] = tmp_path
        yield hub


def requests_of(hub):
    return [(sent.path.rpartition("/")[2], sent.n_bytes) for sent in hub.sent]


def test_a_remote_file_takes_one_request_and_none_for_its_tensors(tmp_path, hub):
    path = tmp_path / "x.gguf"
    written = write(path)
    with path.open("ab") as file:
        file.truncate(3 * 2**20)
    found = open_gguf(hub_ranges(NAME, "x.gguf"))
    assert requests_of(hub) == [("x.gguf", 2**20)]
    local = open_gguf(path)
    assert found.metadata == local.metadata
    for name, each in found.tensors.items():
        assert (each.shape, each.dtype, each.offset) == (
            *(local.tensors[name].shape, local.tensors[name].dtype),
            local.tensors[name].offset,
        )
        assert each.file.read(each.offset, each.n_bytes) == written[name].tobytes()


def test_each_part_of_a_remote_split_file_takes_one_request(tmp_path, hub):
    write(tmp_path / "x.gguf", split_max_tensors=1)
    found = open_gguf(hub_ranges(NAME, "x-00001-of-00005.gguf"))
    assert [*found.tensors] == [*open_gguf(min(tmp_path.iterdir())).tensors]
    requests = requests_of(hub)
    assert sorted(name for name, _ in requests) == sorted(path.name for path in tmp_path.iterdir())
    assert all(length <= 2**16 for name, length in requests if "00001" not in name)


def test_parts_of_a_split_file_have_one_limit(tmp_path):
    """Each part keeps 9 MiB, of 16 MiB that all of them may."""
    for part in range(3):
        numbers = (
            text("split.no") + struct.pack("<IH", 2, part),
            text("split.count") + struct.pack("<IH", 2, 3),
        )
        keys = (text(f"{i:065000}") + struct.pack("<IB", 0, 1) for i in range(140 if part else 0))
        (tmp_path / f"x-0000{part + 1}-of-00003.gguf").write_bytes(header(*numbers, *keys))
    assert "take more than 16 MiB" in refused(tmp_path / "x-00001-of-00003.gguf")


def test_a_large_remote_vocabulary_takes_two_requests(tmp_path, hub):
    tokens = text("tokens") + struct.pack("<I", 9) + array(8, 2**17) + text("a token") * 2**17
    content = header(tokens, text("last") + struct.pack("<II", 4, 5)) + b"\0" * 2**20
    (tmp_path / "x.gguf").write_bytes(content)
    found = open_gguf(hub_ranges(NAME, "x.gguf"))
    assert found.metadata == {"tokens": LongValue("array", 2**17), "last": 5}
    assert requests_of(hub)[0] == ("x.gguf", 2**20)
    assert len(hub.sent) == 2


def test_every_truncation_is_refused(tmp_path):
    write(tmp_path / "x.gguf")
    content = (tmp_path / "x.gguf").read_bytes()
    for length in [*range(0, 300, 7), *range(300, len(content) - 1, 4999), len(content) - 33]:
        assert f"({length} bytes long)" in refused(tmp_path / "y.gguf", content[:length])


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "does not begin with GGUF"),
        (b"\x89PNG" * 9, "does not begin with GGUF"),
        (header(version=1), "is version 1 of GGUF"),
        (header(version=3 << 24), "for big-endian machines"),
        (header(n_tensor=2**63), f"it should have {2**63} tensors"),
        (header(n_pair=2**64 - 1), f"it should have {2**64 - 1} keys"),
        (header(n_tensor=1000), "it should have 1000 tensors"),
        (header(struct.pack("<Q", 2**63) + b"k"), f"a key should have {2**63} bytes"),
        (header(text("k") + struct.pack("<I", 99)), "k has a value of the type 99"),
        (header(text("k") + struct.pack("<IQ", 8, 2**64 - 1)), f"{2**64 - 1} bytes should follow"),
        (header(text("k") + struct.pack("<I", 9) + array(4, 2**62)), "bytes should follow byte"),
        (header(text("k") + struct.pack("<I", 9) + array(8, 2**61)), "bytes should follow byte"),
        (header(text("k") + struct.pack("<I", 9) + array(77, 1)), "elements of the type 77"),
        (
            header(text("k") + struct.pack("<I", 9) + array(9, 1) * 5000),
            "k has more than 8 arrays inside of each other",
        ),
        (header(*[text("k") + struct.pack("<IB", 0, 1)] * 2), "k occurs twice"),
        (header(text("general.alignment") + struct.pack("<II", 4, 0)), "general.alignment is 0"),
        (header(text("general.alignment") + struct.pack("<II", 4, 48)), "general.alignment is 48"),
        (header(text("split.count") + struct.pack("<Iq", 11, -1)), "split.count is -1"),
        (header(text("split.count") + struct.pack("<IQ", 10, 2**40)), f"split.count is {2**40}"),
        (header(tensors=[tensor()] * 2), f"{QUERY} occurs twice"),
        (header(tensors=[tensor(n_dim=2**32 - 1)]), f"has {2**32 - 1} axes"),
        (header(tensors=[tensor(sizes=(2**62, 2**62))]), "more elements than any file can have"),
        (header(tensors=[tensor(sizes=(33, 2))]), "has rows of 33, but Q8_0 has blocks of 32"),
        (header(tensors=[tensor(offset=7)]), "begins at 7, not a multiple of 32"),
        (header(tensors=[tensor(offset=2**63)]), "ends at byte"),
        (header(tensors=[tensor()]), "ends at byte"),
        (header(tensors=[tensor(name="n\x1b[2J\nx", offset=7)]), r"n\x1b[2J\nx begins at 7"),
        (header(tensors=[tensor(name="n" * 9999)]), "should have 9999 bytes, more than 1024"),
        (header(tensors=[tensor(name=b"\xff\xfe", offset=7)]), r"\xff\xfe begins at 7"),
    ],
)
def test_a_hostile_header_is_refused_in_one_line(tmp_path, content, problem):
    assert problem in refused(tmp_path / "x.gguf", content)


def sparse(path, start, size):
    """Write a file that ends in gigabytes of zeros, which take no space."""
    path.write_bytes(start)
    with path.open("ab") as file:
        file.truncate(size)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("start", "problem"),
    [
        (header(text("k") + struct.pack("<I", 9) + array(8, 2**28)), "more than 100 MiB"),
        (header(text("k") + struct.pack("<I", 9) + array(9, 2**22)), "take more than 16 MiB"),
        (header(text("k") + struct.pack("<IQ", 8, 2**31)), "more than 100 MiB"),
        (header(text("k") + struct.pack("<I", 9) + array(8, 4096) + text("t" * 2**19) * 99), "16 MiB"),
        (
            header(*(text(f"{i:065535}") + struct.pack("<IB", 0, 1) for i in range(300))),
            "take more than 16 MiB",
        ),
    ],
)
def test_a_huge_header_takes_bounded_memory(tmp_path, start, problem):
    sparse(tmp_path / "x.gguf", start, 2**32)
    del start
    tracemalloc.start()
    try:
        assert problem in refused(tmp_path / "x.gguf")
        assert tracemalloc.get_traced_memory()[1] < 64 * 2**20
    finally:
        tracemalloc.stop()


def test_names_and_texts_that_are_not_unicode_are_kept_as_escapes(tmp_path):
    content = header(text("k") + struct.pack("<I", 8) + text(b"\xff")) + b"\0" * 64
    (tmp_path / "x.gguf").write_bytes(content)
    assert open_gguf(tmp_path / "x.gguf").metadata == {"k": r"\xff"}


def test_a_type_that_is_not_known_has_no_size(tmp_path):
    (tmp_path / "x.gguf").write_bytes(header(tensors=[tensor(kind=250)]) + b"\0" * 64)
    found = open_gguf(FileRanges(tmp_path / "x.gguf")).tensors[QUERY]
    assert (found.dtype, found.n_bytes, found.shape) == ("250", None, (2, 32))
