"""Files are complete or absent, and contain the exact values."""

import numpy as np
import pytest
import torch

from attnscope.base.arrays import from_tensor
from attnscope.base.errors import FileError
from attnscope.document import tensor_file
from attnscope.document.tensor_file import check_target, save


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".pt"])
@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.bool]
)
def test_what_is_written_is_what_is_read(tmp_path, read_tensors, suffix, dtype):
    if (suffix, dtype) == (".npz", torch.bfloat16):
        return  # numpy has no bfloat16: refused, as another test shows
    path = tmp_path / f"tensors{suffix}"
    base = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    tensors = {"Q": base, "file": base.transpose(0, 2), "scalar": base[0, 0, 0], "same": base}
    save(path, {name: from_tensor(tensor) for name, tensor in tensors.items()})
    back = read_tensors(path)
    assert set(back) == set(tensors)
    for name, tensor in tensors.items():
        assert back[name].dtype == dtype
        assert torch.equal(back[name], tensor), name
    assert list(tmp_path.iterdir()) == [path]
    (tmp_path / "usual").touch()
    assert path.stat().st_mode == (tmp_path / "usual").stat().st_mode


@pytest.mark.parametrize("force", [False, True])
def test_a_file_that_is_there_is_replaced_only_by_force(tmp_path, read_tensors, force):
    path = tmp_path / "x.npz"
    path.write_text("precious")
    tensors = {"Q": (np.ones(3), "float64")}
    if force:
        save(path, tensors, force=True)
        assert read_tensors(path)["Q"].tolist() == [1, 1, 1]
    else:
        with pytest.raises(FileError, match="already exists"):
            save(path, tensors)
        assert path.read_text() == "precious"


def test_a_link_is_followed_and_rights_are_kept(tmp_path, read_tensors):
    real, link = tmp_path / "real.npz", tmp_path / "link.npz"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to(real)
    save(link, {"Q": (np.ones(3), "float64")}, force=True)
    assert link.is_symlink()
    assert read_tensors(real)["Q"].tolist() == [1, 1, 1]
    assert real.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".pt"])
def test_a_write_that_fails_leaves_what_was_there(tmp_path, suffix, monkeypatch):
    path = tmp_path / f"x{suffix}"
    path.write_text("precious")

    def full(unfinished, tensors, metadata):
        unfinished.write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setitem(tensor_file.WRITERS, suffix, full)
    with pytest.raises(FileError, match=r"cannot write .*: No space left on device\."):
        save(path, {"Q": (np.ones(3), "float64")}, force=True)
    assert path.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("x.foo", "ends in .foo, which is not a format for tensors."),
        ("x", "ends in no suffix, which is not a format for tensors."),
        ("nowhere/x.npz", "there is no folder"),
    ],
)
def test_what_cannot_be_written_is_refused_before_the_work(tmp_path, name, message):
    with pytest.raises(FileError) as caught:
        check_target(tmp_path / name, force=False, dtypes=["float32"])
    assert message in caught.value.message


def test_a_folder_is_no_file(tmp_path):
    (tmp_path / "x.npz").mkdir()
    with pytest.raises(FileError, match="is a folder"):
        check_target(tmp_path / "x.npz", force=True, dtypes=["float32"])


def test_a_folder_that_may_not_be_written_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(FileError, match="no permission to write into the folder"):
        check_target(tmp_path / "x.npz", force=False, dtypes=["float32"])


def test_npz_refuses_bfloat16(tmp_path):
    with pytest.raises(FileError, match="cannot hold bfloat16") as caught:
        check_target(tmp_path / "x.npz", force=False, dtypes=["bfloat16"])
    assert "x.safetensors" in caught.value.hint
