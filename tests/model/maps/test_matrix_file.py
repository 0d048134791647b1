"""Files of matrices that are written a few rows at a time."""

import resource

import numpy as np
import pytest

from attnscope.base.errors import FileError
from attnscope.model.maps.matrix_file import matrix_file

SUFFIXES = [".safetensors", ".npz", ".pt"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_rows_may_come_in_any_order(tmp_path, read_tensors, suffix):
    wanted = {name: np.random.default_rng(i).random((5, 3), np.float32) for i, name in enumerate("ab")}
    path = tmp_path / f"maps{suffix}"
    with matrix_file(path) as file:
        file.begin(list(wanted), (5, 3))
        for start, stop in ((3, 5), (0, 3)):
            for name in ("b", "a"):
                file.write(name, start, wanted[name][start:stop])
    read = read_tensors(path)
    assert list(read) == ["a", "b"]
    for name, array in wanted.items():
        assert np.array_equal(read[name], array)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_fails_leaves_no_file(tmp_path, suffix):
    def fail():
        with matrix_file(tmp_path / f"maps{suffix}") as file:
            file.begin(["a"], (5, 3))
            file.write("a", 0, np.zeros((2, 3), np.float32))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_a_matrix_that_lacks_rows_is_a_bug(tmp_path):
    def forget():
        with matrix_file(tmp_path / "a.npz") as file:
            file.begin(["a"], (5, 3))
            file.write("a", 0, np.zeros((2, 3), np.float32))

    with pytest.raises(AssertionError, match="a has 2 of 5 rows"):
        forget()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there_is_kept(tmp_path):
    path = tmp_path / "maps.npz"
    path.write_text("mine")
    with pytest.raises(FileError, match="already exists"), matrix_file(path):
        pass
    assert path.read_text() == "mine"


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
def test_a_file_takes_much_less_memory_than_it_holds(tmp_path, suffix):
    rows = np.ones((16, 2048), np.float32)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with matrix_file(tmp_path / f"maps{suffix}") as file:
        names = [f"layer{i}" for i in range(12)]  # 192 MiB
        file.begin(names, (2048, 2048))
        for start in range(0, 2048, 16):
            for name in names:
                file.write(name, start, rows)
    taken = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert taken <= 96 * 1024, f"{taken} KiB"
