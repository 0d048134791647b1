"""A user's tensors are read exactly, or refused in one clear line; nothing in them is run."""

import io
import os
import pickle
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib import format as npy
from safetensors.torch import save_file

from attnscope.base.errors import FileError
from attnscope.base.tensor_files import open_tensor, open_tensors
from attnscope.base.text import printable

SUFFIXES = [".npy", ".npz", ".pt", ".pth", ".safetensors"]
NAMING = [".npz", ".pt", ".safetensors"]
DTYPES = "float64 float32 float16 bfloat16 bool int64 int32 int16 int8 uint8".split()
READ = "a tensor of bool, uint8, int8, int16, int32, int64, float16, bfloat16, float32, float64"
Q = torch.arange(12.0).reshape(3, 4)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> Path:
    """Change to a folder, because users name files relative to the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path: str | Path, tensors: dict[str, torch.Tensor]) -> Path:
    """Write a file with the format's own library."""
    path = Path(path)
    if path.suffix == ".npy":
        (tensor,) = tensors.values()
        np.save(path, tensor.numpy())
    elif path.suffix == ".npz":
        np.savez(path, **{name: tensor.numpy() for name, tensor in tensors.items()})
    elif path.suffix == ".safetensors":
        save_file(tensors, path)
    else:
        torch.save(tensors, path)
    return path


def refused(name: str, text: str) -> FileError:
    with pytest.raises(FileError) as caught:
        open_tensor(name, text)
    assert "\n" not in caught.value.message
    return caught.value


# What is read


@pytest.mark.pairwise
@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (2, 3, 4), (2, 1, 3, 4), (0, 3)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_the_library_wrote_is_read_to_the_bit(read_tensors, suffix, dtype, shape):
    if dtype == "bfloat16" and suffix in (".npy", ".npz"):
        return  # numpy has no bfloat16
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 3
    path = write(f"x{suffix}", {"Q": drawn.to(getattr(torch, dtype))})
    opened = open_tensor("W_Q", f"x{suffix}")
    member = None if suffix == ".npy" else "Q"
    assert (opened.name, opened.path, opened.member) == ("W_Q", path, member)
    assert (opened.shape, opened.dtype) == (shape, dtype)
    theirs = torch.from_numpy(np.load(path)) if suffix == ".npy" else read_tensors(path)["Q"]
    ours = opened.load()
    assert str(ours.dtype) == f"torch.{dtype}"
    assert ours.shape == shape
    assert torch.equal(ours, theirs)
    assert torch.equal(ours, drawn.to(getattr(torch, dtype)))


@given(
    arrays.arrays(
        st.one_of(
            arrays.floating_dtypes(sizes=(16, 32, 64)),
            arrays.integer_dtypes(),
            arrays.boolean_dtypes(),
            arrays.unsigned_integer_dtypes(sizes=8),
        ),
        arrays.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=4),
    ),
    st.sampled_from("CF"),
    st.sampled_from([(1, 0), (2, 0), (3, 0)]),
    st.sampled_from([".npy", ".npz"]),
)
def test_arrays_of_any_byte_order_axis_order_and_version_are_read(
    tmp_path_factory, array, order, version, suffix
):
    path = tmp_path_factory.mktemp("arrays") / f"x{suffix}"
    written = io.BytesIO()
    npy.write_array(written, np.asarray(array, order=order), version=version)
    if suffix == ".npy":
        path.write_bytes(written.getvalue())
    else:
        with ZipFile(path, "w", ZIP_DEFLATED) as archive:
            archive.writestr("x.npy", written.getvalue())
    opened = open_tensor("Q", str(path))
    ours = opened.load()
    assert (opened.shape, opened.dtype) == (array.shape, array.dtype.name)
    assert ours.is_contiguous()
    assert str(ours.dtype) == f"torch.{array.dtype.name}"
    np.testing.assert_array_equal(ours.numpy(), array)


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize(
    "whole",
    [
        pytest.param(Q, id="bare"),
        pytest.param(torch.nn.Parameter(Q.clone()), id="parameter"),
        pytest.param(Q.T.contiguous().T, id="transposed"),
        pytest.param(torch.cat([Q, Q])[3:], id="part of a storage"),
    ],
)
def test_a_bare_tensor_of_torch_is_read_plain(whole, legacy):
    torch.save(whole, "q.pt", _use_new_zipfile_serialization=not legacy)
    opened = open_tensor("Q", "q.pt")
    assert (str(opened), opened.member, opened.shape) == ("q.pt", None, (3, 4))
    ours = opened.load()
    assert torch.equal(ours, Q)
    assert type(ours) is torch.Tensor
    assert ours.is_contiguous()
    assert not ours.requires_grad


def test_what_was_saved_on_a_device_that_is_not_here_is_read_on_the_cpu():
    torch.save(Q, "q.pt", _use_new_zipfile_serialization=False)
    content = Path("q.pt").read_bytes()
    assert content.count(b"cpu") == 1
    Path("q.pt").write_bytes(content.replace(b"cpu", b"hpu"))
    with pytest.raises(RuntimeError):
        torch.load("q.pt", weights_only=True)
    assert torch.equal(open_tensor("Q", "q.pt").load(), Q)


def test_what_is_negated_when_it_is_looked_at_is_negated_when_it_is_read():
    torch.save(torch.complex(Q, Q).conj().imag, "q.pt")
    ours = open_tensor("Q", "q.pt").load()
    assert not ours.is_neg()
    assert torch.equal(ours, -Q)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_was_read_does_not_change_with_the_file(suffix):
    path = write(f"x{suffix}", {"Q": Q})
    ours = open_tensor("Q", f"x{suffix}").load()
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))
    assert torch.equal(ours, Q)


def test_a_state_dict_is_read():
    linear = torch.nn.Linear(4, 3)
    torch.save(linear.state_dict(), "linear.pt")
    assert isinstance(torch.load("linear.pt", weights_only=True), OrderedDict)
    opened = open_tensors(Path("linear.pt"))
    assert {n: (t.name, str(t), t.shape) for n, t in opened.items()} == {
        "weight": ("weight", "linear.pt:weight", (3, 4)),
        "bias": ("bias", "linear.pt:bias", (3,)),
    }
    assert torch.equal(opened["weight"].load(), linear.weight)


# Which tensor is meant


@pytest.mark.parametrize("suffix", NAMING)
def test_a_tensor_is_found_by_the_name_that_is_given(suffix):
    write(f"all{suffix}", {"Q": Q, "K": Q + 1, "a:b": Q + 2})
    for member, more in [("Q", 0), ("K", 1), ("a:b", 2)]:
        opened = open_tensor("Q", f"all{suffix}:{member}")
        assert (str(opened), opened.name) == (f"all{suffix}:{member}", "Q")
        assert torch.equal(opened.load(), Q + more)


@pytest.mark.parametrize("suffix", NAMING)
def test_without_a_name_it_is_the_one_that_is_called_so_or_the_only_one(suffix):
    write(f"all{suffix}", {"K": Q + 1, "Q": Q})
    assert [open_tensor(name, f"all{suffix}").member for name in "QK"] == ["Q", "K"]
    write(f"one{suffix}", {"K": Q + 1})
    assert torch.equal(open_tensor("Q", f"one{suffix}").load(), Q + 1)


def test_what_is_no_tensor_does_not_stand_in_the_way_of_the_only_one():
    torch.save({"epoch": 3, "weight": Q, 7: Q + 1}, "x.pt")
    assert open_tensor("Q", "x.pt").member == "weight"
    assert list(open_tensors(Path("x.pt"))) == ["weight"]


def test_other_files_in_an_archive_are_passed_over():
    write("x.npz", {"weight": Q})
    with ZipFile("x.npz", "a") as archive:
        archive.writestr("README", "weights")
    assert open_tensor("Q", "x.npz").member == "weight"
    assert list(open_tensors(Path("x.npz"))) == ["weight"]


@pytest.mark.parametrize("suffix", NAMING)
def test_all_tensors_of_a_file_are_had_by_name(read_tensors, suffix):
    path = write(f"all{suffix}", {"Q": Q, "K": Q[:2].half(), "V": Q[0] > 1})
    opened = open_tensors(path)
    theirs = read_tensors(path)
    assert set(opened) == set(theirs) == {"Q", "K", "V"}
    for name, tensor in theirs.items():
        assert (opened[name].name, opened[name].member) == (name, name)
        assert torch.equal(opened[name].load(), tensor)


@pytest.mark.parametrize("suffix", [".npy", ".pt"])
def test_the_only_tensor_of_a_file_without_names_is_had_by_the_files(suffix):
    path = Path(f"W_Q{suffix}")
    np.save(path, Q) if suffix == ".npy" else torch.save(Q, path)
    ((name, opened),) = open_tensors(path).items()
    assert (name, opened.name, opened.member, str(opened)) == ("W_Q", "W_Q", None, f"W_Q{suffix}")
    assert torch.equal(opened.load(), Q)


def test_a_file_whose_name_has_a_colon_is_that_file():
    write("all.npz", {"Q.npy": Q})
    assert open_tensor("Q", "all.npz:Q.npy").path == Path("all.npz")
    write("all.npz:Q.npy", {"Q": Q + 1})
    opened = open_tensor("Q", "all.npz:Q.npy")
    assert (opened.path, opened.member) == (Path("all.npz:Q.npy"), None)
    assert torch.equal(opened.load(), Q + 1)
    write("a:b.npz", {"Q": Q, "K": Q + 1})
    assert torch.equal(open_tensor("Q", "a:b.npz:K").load(), Q + 1)


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0/"), max_size=9))
def test_any_name_finds_its_tensor(tmp_path_factory, name):
    path = write(tmp_path_factory.mktemp("names") / "x.safetensors", {name: Q, "other": Q + 1})
    opened = open_tensor("Q", f"{path}:{name}")
    assert opened.member == name
    assert torch.equal(opened.load(), Q)
    assert printable(opened) == str(opened)


# What is refused


def several() -> None:
    write("all.npz", {"K": Q, "V": Q})


def eight() -> None:
    write("all.npz", {f"W_{n}": Q for n in range(8)})


def many() -> None:
    write("all.npz", {f"W_{n}": Q for n in range(12)})


def nothing() -> None:
    pass


def with_names() -> None:
    torch.save({"weight": Q, "epoch": 3, "state_dict": {"Q": Q}}, "x.pt")


FILES = "a file that ends in .npy, .npz, .pt, .pth, .safetensors"


@pytest.mark.parametrize(
    ("made", "text", "message", "hint"),
    [
        (nothing, "q.npy", "there is no file q.npy.", None),
        (
            lambda: Path("query.npy").touch(),
            "quary.npy",
            "there is no file quary.npy.",
            "query.npy, which exists",
        ),
        (nothing, "all.npz:Q", "there is no file all.npz.", None),
        (nothing, "C:\\q.npy", "there is no file C:\\q.npy.", None),
        (nothing, "q", "there is no file q.", None),
        (lambda: Path("x.npz").mkdir(), "x.npz", "x.npz is a folder.", FILES),
        (lambda: Path("x.npz").mkdir(), "x.npz:Q", "x.npz is a folder.", FILES),
        (nothing, "", ". is a folder.", FILES),
        (lambda: os.mkfifo("x.npy"), "x.npy", "x.npy is not a regular file.", FILES),
        (lambda: Path("q.npy").touch(), "q.npy/x", "cannot read q.npy/x: Not a directory.", None),
        *(
            (
                lambda name=name: Path(name).write_text("Q"),
                name,
                f"{name} ends in {ends}, which is not a format for tensors.",
                "a file that ends in .npy, .npz, .pt, .pth, .safetensors",
            )
            for name, ends in [("q.csv", ".csv"), ("q", "no suffix")]
        ),
        *(
            (lambda s=s: Path(f"x{s}").touch(), f"x{s}", f"x{s} is empty: 0 bytes long.", None)
            for s in SUFFIXES
        ),
        (several, "all.npz", "all.npz holds 2 tensors, and none is called Q: K, V.", "all.npz:NAME"),
        (
            eight,
            "all.npz:Q",
            "all.npz has no 'Q': it holds W_0, W_1, W_2, W_3, W_4, W_5, W_6, W_7.",
            "all.npz:NAME",
        ),
        (
            many,
            "all.npz",
            "all.npz holds 12 tensors, and none is called Q:"
            " W_0, W_1, W_2, W_3, W_4, W_5, W_6, W_7 and 4 more.",
            "all.npz:NAME",
        ),
        (several, "all.npz:Q", "all.npz has no 'Q': it holds K, V.", "all.npz:NAME"),
        (several, "all.npz:", "all.npz has no '': it holds K, V.", "all.npz:NAME"),
        (with_names, "x.pt:Q", "x.pt has no 'Q': it holds weight.", "x.pt:NAME"),
        (
            lambda: write("x.safetensors", {"a\n\x1b[31mb": Q}),
            "x.safetensors:Q",
            "x.safetensors has no 'Q': it holds a\\n\\x1b[31mb.",
            "x.safetensors:NAME",
        ),
        (lambda: np.savez("x.npz"), "x.npz", "x.npz holds no tensors.", None),
        (lambda: np.savez("x.npz"), "x.npz:Q", "x.npz has no 'Q': it holds no tensors.", "x.npz:NAME"),
        (
            lambda: np.save("q.npy", Q),
            "q.npy:Q",
            "q.npy has no named tensors, so no 'Q'.",
            "q.npy",
        ),
        (lambda: torch.save(Q, "q.pt"), "q.pt:Q", "q.pt has no named tensors, so no 'Q'.", "q.pt"),
        (with_names, "x.pt:epoch", "x.pt:epoch holds no tensor: its type is int.", READ),
        (with_names, "x.pt:state_dict", "x.pt:state_dict holds no tensor: its type is dict.", READ),
        (
            lambda: torch.save({"state_dict": {"Q": Q}}, "x.pt"),
            "x.pt",
            "x.pt:state_dict holds no tensor: its type is dict.",
            READ,
        ),
        (lambda: torch.save([Q], "x.pt"), "x.pt", "x.pt holds no tensor: its type is list.", READ),
    ],
)
def test_what_cannot_be_meant_is_refused(made, text, message, hint):
    made()
    error = refused("Q", text)
    assert (error.message, error.hint) == (message, hint)


def unread(stored: str) -> str:
    return f"is stored as {stored}, which attnscope does not read."


@pytest.mark.parametrize(
    ("array", "why"),
    [
        (np.ones(2, "c8"), unread("complex64")),
        (np.ones(2, ">c16"), unread("complex128")),
        (np.ones(2, "u2"), unread("uint16")),
        (np.ones(2, "u8"), unread("uint64")),
        (np.ones(2, np.longdouble), unread(np.dtype(np.longdouble).name)),
        (np.array(["ab"]), unread("str64")),
        (np.array([b"ab"]), unread("bytes16")),
        (np.zeros(2, "M8[s]"), unread("datetime64[s]")),
        (np.zeros(2, "V2"), unread("void16")),
        (np.zeros(2, "f4,i8"), unread("void96")),
        (np.zeros(2, [("é", "f4")]), unread("void32")),
        (np.array([None]), "holds pickled Python objects; nothing in it was run."),
        (
            np.zeros(2, [("a", "f4"), ("b", object)]),
            "holds pickled Python objects; nothing in it was run.",
        ),
    ],
    ids=lambda value: str(value.dtype) if isinstance(value, np.ndarray) else "",
)
def test_arrays_that_torch_has_no_dtype_for_are_refused(array, why):
    np.save("q.npy", array)
    np.savez("all.npz", Q=array, K=Q, V=Q)
    np.savez("one.npz", other=array)
    for text, called in [
        ("q.npy", "q.npy"),
        ("all.npz", "all.npz:Q"),
        ("all.npz:Q", "all.npz:Q"),
        ("one.npz", "one.npz:other"),
    ]:
        error = refused("Q", text)
        assert (error.message, error.hint) == (f"{called} {why}", READ)
    with pytest.raises(FileError) as caught:
        open_tensors(Path("one.npz"))
    assert caught.value.message == f"one.npz:other {why}"
    assert list(open_tensors(Path("all.npz"))) == ["K", "V"]


@pytest.mark.filterwarnings(
    "ignore:torch.quantize_per_tensor", "ignore:Sparse CSR", "ignore:The PyTorch API"
)
@pytest.mark.parametrize(
    ("made", "stored"),
    [
        (lambda: Q.to_sparse(), "sparse float32"),
        (lambda: Q.half().to_sparse_csr(), "sparse float16"),
        (lambda: Q.to("meta"), "meta float32"),
        (lambda: torch.nested.nested_tensor([Q, Q[:2]]), "nested float32"),
        (lambda: torch.nested.nested_tensor([Q, Q[:2]], layout=torch.jagged), "nested float32"),
        (lambda: torch.quantize_per_tensor(Q, 0.1, 0, torch.qint8), "qint8"),
        (lambda: torch.complex(Q, Q), "complex64"),
        (lambda: Q.to(torch.float8_e4m3fn), "float8_e4m3fn"),
        (lambda: Q.to(torch.uint16), "uint16"),
    ],
)
def test_tensors_of_torch_that_are_not_plain_numbers_are_refused(made, stored):
    torch.save({"Q": made(), "K": Q}, "all.pt")
    torch.save(made(), "q.pt")
    for text, called in [("all.pt", "all.pt:Q"), ("all.pt:Q", "all.pt:Q"), ("q.pt", "q.pt")]:
        error = refused("Q", text)
        assert (error.message, error.hint) == (f"{called} {unread(stored)}", READ)


@pytest.mark.parametrize(
    ("dtype", "stored"),
    [(torch.float8_e4m3fn, "F8_E4M3"), (torch.float8_e5m2, "F8_E5M2"), (torch.uint16, "U16")],
)
def test_safetensors_of_other_dtypes_are_refused(dtype, stored):
    write("all.safetensors", {"Q": Q.to(dtype), "K": Q})
    error = refused("Q", "all.safetensors")
    assert (error.message, error.hint) == (f"all.safetensors:Q {unread(stored)}", READ)


def test_a_file_that_may_not_be_read_is_refused(monkeypatch):
    np.save("q.npy", Q)

    def forbidden(path, *how):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", forbidden)
    error = refused("Q", "q.npy")
    assert (error.message, error.hint) == ("cannot read q.npy: Permission denied.", None)


# Damage


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict[str, bytes]:
    """Return complete files of each format, as bytes, by suffix."""
    folder = tmp_path_factory.mktemp("whole")
    whole = {suffix: write(folder / f"x{suffix}", {"Q": Q}).read_bytes() for suffix in SUFFIXES}
    torch.save(Q, folder / "old.pt", _use_new_zipfile_serialization=False)
    return {**whole, "old.pt": (folder / "old.pt").read_bytes()}


@given(st.data())
@pytest.mark.parametrize("kind", [*SUFFIXES, "old.pt"])
def test_a_file_that_was_cut_short_anywhere_is_refused_when_it_is_opened(
    tmp_path_factory, whole, kind, data
):
    path = tmp_path_factory.mktemp("cut") / f"x{kind}"
    length = data.draw(st.integers(1, len(whole[kind]) - 1))
    path.write_bytes(whole[kind])
    assert open_tensor("Q", str(path)).shape == (3, 4)
    path.write_bytes(whole[kind][:length])
    error = refused("Q", str(path))
    if kind == "old.pt" and "which is not a tensor" in error.message:
        return  # it was cut within the name of a class, and what is left is a name of none
    assert error.message.startswith(f"{path} is damaged, or not a {path.suffix} file: ")
    assert error.message.endswith(f" ({length} bytes long).")
    assert error.hint == "write it again: it may have been cut short"


@given(st.data())
@pytest.mark.parametrize("kind", [*SUFFIXES, "old.pt"])
def test_a_file_whose_bytes_were_changed_is_read_or_refused(tmp_path_factory, whole, kind, data):
    path = tmp_path_factory.mktemp("changed") / f"x{kind}"
    changed = bytearray(whole[kind])
    for place in data.draw(st.lists(st.integers(0, len(changed) - 1), min_size=1, max_size=3)):
        changed[place] = data.draw(st.integers(0, 255))
    path.write_bytes(changed)
    try:
        for opened in open_tensors(path).values():
            assert opened.load().shape == opened.shape
    except FileError as error:
        assert printable(error.message) == error.message  # noqa: PT017 - both ends are right


@pytest.mark.parametrize(
    ("suffix", "reason"),
    [
        (".npy", r"the magic string is not correct; expected b'\x93NUMPY', got b'versio'"),
        (".npz", "File is not a zip file"),
        (".pt", "Unsupported operand 118"),
        (".safetensors", "Error while deserializing header: header too large"),
    ],
)
def test_a_file_of_another_kind_is_refused(suffix, reason):
    Path(f"x{suffix}").write_text("version https://git-lfs.github.com/spec/v1\n" * 3)
    error = refused("Q", f"x{suffix}")
    assert error.message == f"x{suffix} is damaged, or not a {suffix} file: {reason} (129 bytes long)."


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"hello world", "KeyError"),  # of 101, torch says
        (
            b"PK\x03\x04" * 25,
            "PytorchStreamReader failed reading zip archive: failed finding central directory",
        ),
    ],
)
def test_of_what_a_library_says_one_sentence_is_told(content, reason):
    Path("x.pt").write_bytes(content)
    message = f"x.pt is damaged, or not a .pt file: {reason} ({len(content)} bytes long)."
    assert refused("Q", "x.pt").message == message


@pytest.mark.parametrize(("shape", "told", "there"), [("(3, 4)", 96, 40), ("(6,)", 48, 40)])
def test_an_array_that_is_not_as_its_header_says_is_refused_when_it_is_opened(shape, told, there):
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}}}".ljust(117) + "\n"
    content = npy.magic(1, 0) + (118).to_bytes(2, "little") + header.encode() + bytes(there)
    Path("q.npy").write_bytes(content)
    assert refused("Q", "q.npy").message == (
        f"q.npy is damaged, or not a .npy file: its header announces {told} bytes of values, but the file has {there} (168 bytes long)."
    )


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_python_2_wrote_arrays_too_and_nobody_is_warned(recwarn, suffix):
    header = "{'descr': '<f8', 'fortran_order': False, 'shape': (5L,)}".ljust(117) + "\n"
    content = npy.magic(1, 0) + (118).to_bytes(2, "little") + header.encode() + bytes(40)
    Path("q.npy").write_bytes(content)
    if suffix == ".npz":
        with ZipFile("q.npz", "w") as archive:
            archive.write("q.npy")
    assert open_tensor("Q", f"q{suffix}").load().tolist() == [0] * 5
    assert not recwarn.list


# Between opening and reading


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_that_is_gone_when_it_is_read_is_refused(suffix):
    path = write(f"x{suffix}", {"Q": Q})
    opened = open_tensor("Q", str(path))
    path.unlink()
    with pytest.raises(FileError) as caught:
        opened.load()
    assert caught.value.message == f"there is no file x{suffix}."


@pytest.mark.pairwise
@pytest.mark.parametrize("other", [Q[:2], Q.double(), Q > 1, Q.T.contiguous()])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_that_is_another_when_it_is_read_is_refused(suffix, other):
    opened = open_tensor("Q", str(write(f"x{suffix}", {"Q": Q})))
    write(f"x{suffix}", {"Q": other})
    with pytest.raises(FileError) as caught:
        opened.load()
    assert caught.value.message == (
        f"{opened} has changed: it was float32 of shape (3, 4) when it was opened."
    )
    assert caught.value.hint == "try again when nothing else writes to the file"


@pytest.mark.parametrize("suffix", NAMING)
def test_a_tensor_that_is_gone_when_it_is_read_is_refused(suffix):
    opened = open_tensor("Q", str(write(f"x{suffix}", {"Q": Q})))
    write(f"x{suffix}", {"K": Q})
    with pytest.raises(FileError, match=rf"^x{suffix}:Q has changed: it was float32 of shape \(3, 4\)"):
        opened.load()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_that_is_cut_short_when_it_is_read_is_refused(suffix):
    path = write(f"x{suffix}", {"Q": Q})
    opened = open_tensor("Q", str(path))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FileError, match=f"^x{suffix} is damaged, or not a {suffix} file: "):
        opened.load()


def test_values_that_do_not_fit_their_checksum_are_refused():
    path = write("x.npz", {"Q": Q})
    content = path.read_bytes()
    values = Q.numpy().tobytes()
    assert content.count(values) == 1
    path.write_bytes(content.replace(values, values[::-1]))
    with pytest.raises(FileError) as caught:
        open_tensor("Q", "x.npz").load()
    assert caught.value.message == (
        f"x.npz is damaged, or not a .npz file: Bad CRC-32 for file 'Q.npy' ({len(content)} bytes long)."
    )


# Malice


class Malice:
    """Writes a file when it is unpickled."""

    def __reduce__(self):
        return open, (os.path.abspath("struck"), "w")


def in_npy() -> Path:
    np.save("x.npy", np.array([Malice()], dtype=object), allow_pickle=True)
    return Path("x.npy")


def in_npz() -> Path:
    np.savez("x.npz", Q=np.array([Malice()], dtype=object), K=Q)
    return Path("x.npz")


def in_pt() -> Path:
    torch.save({"Q": Malice(), "K": Q}, "x.pt")
    return Path("x.pt")


def in_old_pt() -> Path:
    torch.save({"Q": Malice(), "K": Q}, "x.pt", _use_new_zipfile_serialization=False)
    return Path("x.pt")


def as_plain_pickle() -> Path:
    Path("x.pt").write_bytes(pickle.dumps({"Q": Malice()}, protocol=2))
    return Path("x.pt")


def as_pickle_called_npy() -> Path:
    Path("x.npy").write_bytes(pickle.dumps(Malice()))
    return Path("x.npy")


OPEN = r"(io|_io|builtins)\.open"


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (in_npy, r"x\.npy holds pickled Python objects; nothing in it was run\."),
        (in_npz, r"x\.npz:Q holds pickled Python objects; nothing in it was run\."),
        (in_pt, rf"x\.pt contains {OPEN}, which is not a tensor; nothing in it was run\."),
        (in_old_pt, rf"x\.pt contains {OPEN}, which is not a tensor; nothing in it was run\."),
        (as_plain_pickle, rf"x\.pt contains {OPEN}, which is not a tensor; nothing in it was run\."),
        (as_pickle_called_npy, r"x\.npy is damaged, or not a \.npy file: the magic string .*"),
    ],
)
def test_nothing_in_a_file_is_run(made, message):
    path = made()
    for text in [str(path), f"{path}:Q"][: 1 if path.suffix == ".npy" else 2]:
        with pytest.raises(FileError, match=f"^{message}(\n|$)"):
            open_tensor("Q", text)
    if path.suffix == ".npz":
        assert list(open_tensors(path)) == ["K"]
    else:
        with pytest.raises(FileError, match=f"^{message}(\n|$)"):
            open_tensors(path)
    assert not Path("struck").exists()


@pytest.mark.parametrize("made", [in_npy, in_npz, in_pt, in_old_pt, as_plain_pickle])
def test_nothing_is_run_in_a_file_that_was_another_when_it_was_opened(made):
    evil = made()
    path = write(evil.with_stem("safe"), {"Q": Q})
    opened = open_tensor("Q", str(path))
    evil.replace(path)
    with pytest.raises(FileError, match=r"has changed|nothing in it was run"):
        opened.load()
    assert not Path("struck").exists()


@pytest.mark.parametrize(
    "made", [in_npy, in_npz, in_pt, in_old_pt, as_plain_pickle, as_pickle_called_npy]
)
def test_and_it_would_have_been(made):
    """This shows that the tests above can fail."""
    path = made()
    try:
        if path.suffix == ".pt":
            torch.load(path, weights_only=False)
        else:
            whole = np.load(path, allow_pickle=True)
            _ = whole["Q"] if path.suffix == ".npz" else whole
    except (RuntimeError, TypeError):
        pass  # what is struck need not be a tensor
    assert Path("struck").exists()


def test_the_hint_for_a_pickle_says_what_can_be_read():
    in_pt()
    hint = "torch.save of a tensor, or of a flat dictionary of tensors by name"
    assert refused("Q", "x.pt").hint == hint


def test_a_whole_module_is_no_tensor():
    torch.save(torch.nn.Linear(2, 2), "x.pt")
    assert refused("Q", "x.pt").message == (
        "x.pt contains torch.nn.modules.linear.Linear, which is not a tensor; nothing in it was run."
    )


# What is loaded for it


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("suffix", "code", "expected"),
    [
        (".npy", "", False),
        (".npz", "", False),
        (".safetensors", "", False),
        (".pt", "", True),
        (".npy", ".load()", True),
        (".npz", ".load()", True),
        (".safetensors", ".load()", True),
    ],
)
def test_only_torchs_files_and_values_need_torch(suffix, code, expected):
    """The cases that need torch show that this test can fail."""
    write(f"x{suffix}", {"Q": Q})
    script = (
        "import sys; from attnscope.base.tensor_files import open_tensor;"
        f" open_tensor('Q', 'x{suffix}'){code}; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == f"{expected}\n"


def test_importing_the_module_imports_nothing_heavy():
    script = (
        "import sys; import attnscope.base.tensor_files;"
        " print({'torch', 'numpy', 'safetensors'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
