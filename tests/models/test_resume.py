"""A run on disk is the run itself: to the last bit, or it is told that it is not."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from attnscope.errors import FileError, OptionError
from attnscope.models.resume import Progress, load_progress, save_progress
from attnscope.models.tally import Tally

SETTINGS = {
    "model": "minilm",
    "dtype": "torch.float32",
    "metrics": ["entropy", "self"],
    "corpus": {"name": "x.txt", "bytes": 12},
    "max_length": None,
    "special": True,
    "layers": [0, 3],
}


def of_run(seed: int = 0) -> Progress:
    """A run over some of a corpus: two stacks, three layers."""
    drawing = np.random.default_rng(seed)
    sums = {
        key: drawing.normal(size=(2, 3, 6)) for key in (("encoder", 0), ("encoder", 11), ("cross", 2))
    }
    tally = Tally(sums, {"encoder": (12, 2), "cross": (3, 2)}, dict.fromkeys(sums, 2), 40, 512, 3)
    return Progress(tally, 57, 2**40 + 1, 2, (7, "is no text"), 0.1 + 0.2)


def told(progress: Progress) -> dict[str, Any]:
    """All of it, and sums as their bytes."""
    told = {**vars(progress), **vars(progress.tally)}
    del told["tally"]
    told["sums"] = {
        key: (sums.shape, sums.dtype, sums.tobytes()) for key, sums in progress.tally.sums.items()
    }
    return told


@given(
    sums=arrays_of.arrays(np.float64, (2, 3, 6)),
    counts=st.tuples(*[st.integers(0, 2**53)] * 5),
    share=st.none() | st.floats(0, 1),
    first=st.none() | st.tuples(st.integers(1, 2**53), st.text()),
    done=st.booleans(),
)
def test_what_is_loaded_is_what_was_saved_to_the_last_bit(
    tmp_path_factory, sums, counts, share, first, done
):
    path = tmp_path_factory.getbasetemp() / "run.npz"
    sequences, tokens, lines, offset, skipped = counts
    tally = Tally({("self", 3): sums}, {"self": (4, 2)}, {("self", 3): 2}, sequences, tokens, 1)
    progress = Progress(tally, lines, offset, skipped, first, share, done)
    save_progress(path, progress, SETTINGS)
    assert told(load_progress(path, SETTINGS)) == told(progress)


def test_layers_and_stacks_keep_their_order(tmp_path):
    save_progress(tmp_path / "run.npz", of_run(), SETTINGS)
    loaded = load_progress(tmp_path / "run.npz", SETTINGS).tally
    assert list(loaded.layers) == ["encoder", "cross"]
    assert loaded.sums.keys() == {("encoder", 0), ("encoder", 11), ("cross", 2)}
    assert all(isinstance(key, tuple) for key in loaded.heads)


def test_a_run_that_has_not_begun_is_kept_too(tmp_path):
    save_progress(tmp_path / "run.npz", Progress(Tally()), SETTINGS)
    assert told(load_progress(tmp_path / "run.npz", SETTINGS)) == told(Progress(Tally()))


@pytest.mark.parametrize("name", SETTINGS)
def test_a_run_with_other_settings_is_refused(tmp_path, name):
    path = tmp_path / "run.npz"
    save_progress(path, of_run(), SETTINGS)
    other = {"metrics": ["self", "entropy"], "layers": None, "max_length": 512, "special": False}
    changed = {**SETTINGS, name: other.get(name, "another")}
    with pytest.raises(OptionError, match=f"is of a run with {name} .*, and this one has") as raised:
        load_progress(path, changed)
    assert raised.value.hint == "the same options, or another name for --checkpoint"


def test_both_settings_are_said_and_long_ones_are_cut(tmp_path):
    path = tmp_path / "run.npz"
    save_progress(path, of_run(), SETTINGS)
    with pytest.raises(OptionError) as raised:
        load_progress(path, {**SETTINGS, "metrics": ["entropy"] * 20})
    assert str(raised.value).startswith(
        f"{path} is of a run with metrics entropy, self, and this one has entropy, "
    )
    assert str(raised.value).endswith("….")


def test_a_setting_that_is_new_is_another(tmp_path):
    path = tmp_path / "run.npz"
    save_progress(path, of_run(), SETTINGS)
    with pytest.raises(OptionError, match="is of a run with seed None, and this one has 3"):
        load_progress(path, {**SETTINGS, "seed": 3})


def test_nothing_but_arrays_is_given_to_savez(tmp_path, monkeypatch):
    """numpy 1.26 takes whatever has a name for an array, and saves it as one."""
    given, own = {}, np.savez
    monkeypatch.setattr(np, "savez", lambda file, **arrays: (given.update(arrays), own(file, **arrays)))
    save_progress(tmp_path / "run.npz", of_run(), SETTINGS)
    assert set(given) == {"about", "encoder 0", "encoder 11", "cross 2"}


def test_damage_is_told_or_does_no_harm(tmp_path):
    """Any byte may be another one: what is loaded is what was saved, or an error is."""
    path = tmp_path / "run.npz"
    save_progress(path, of_run(), SETTINGS)
    data = path.read_bytes()
    near_the_end = range(len(data) - 300, len(data))  # where it is said what is in the file
    failures = []
    for i in [*range(0, len(data), 7), *near_the_end]:
        for flipped in (1, 0x80, 0xFF):
            damaged = bytearray(data)
            damaged[i] ^= flipped
            path.write_bytes(damaged)
            try:
                if told(load_progress(path, SETTINGS)) != told(of_run()):
                    failures.append((i - len(data), flipped, "was loaded as something else"))
            except FileError:
                pass
            except Exception as error:
                failures.append((i - len(data), flipped, repr(error)))
    assert failures == []


@pytest.mark.parametrize("share", [0, 0.01, 0.3, 0.9, 0.999])
def test_a_file_that_ends_too_soon_is_told(tmp_path, share):
    path = tmp_path / "run.npz"
    save_progress(path, of_run(), SETTINGS)
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(FileError, match="is no run that attnscope has saved, or is damaged") as raised:
        load_progress(path, SETTINGS)
    assert raised.value.hint == "another name for --checkpoint"


def write_array(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.zeros(3))


def write_pickle(path: Path) -> None:
    np.savez(path, about=np.array([{"schema": "attnscope.run/1"}], dtype=object))


def write_about(about: str) -> Any:
    return lambda path: np.savez(path, about=np.array(about))


@pytest.mark.parametrize(
    "write",
    [
        lambda path: path.write_text("the cat sat on the mat\n"),
        lambda path: np.savez(path, Q=np.zeros(3)),
        lambda path: path.mkdir(),
        write_array,
        write_pickle,
        write_about("no JSON"),
        write_about("[]"),
        write_about("null"),
        write_about('{"schema": "attnscope.run/1"}'),
    ],
    ids=["text", "tensors", "folder", "npy", "pickle", "no json", "list", "null", "lacking"],
)
def test_another_file_is_told(tmp_path, write):
    path = tmp_path / "run.npz"
    write(path)
    with pytest.raises(FileError, match="is no run that attnscope has saved, or is damaged"):
        load_progress(path, SETTINGS)


def test_a_run_of_another_version_is_told(tmp_path):
    path = tmp_path / "run.npz"
    save_progress(path, of_run(), SETTINGS)
    with np.load(path) as stored:
        arrays = dict(stored)
    about = {**json.loads(str(arrays["about"])), "schema": "attnscope.run/2"}
    np.savez(path, **{**arrays, "about": np.array(json.dumps(about))})
    with pytest.raises(FileError, match=r"is of another version: attnscope\.run/2"):
        load_progress(path, SETTINGS)


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_what_is_interrupted_leaves_the_file_as_it_was(tmp_path, monkeypatch, failure):
    path = tmp_path / "run.npz"
    save_progress(path, of_run(0), SETTINGS)

    def half(file, **arrays):
        file.write(b"PK half of it")
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr(np, "savez", half)
        told_as = FileError if isinstance(failure, OSError) else KeyboardInterrupt
        with pytest.raises(told_as, match="No space left" if told_as is FileError else None):
            save_progress(path, of_run(1), SETTINGS)
    assert told(load_progress(path, SETTINGS)) == told(of_run(0))
    assert [each.name for each in tmp_path.iterdir()] == ["run.npz"]
    save_progress(path, of_run(1), SETTINGS)
    assert told(load_progress(path, SETTINGS)) == told(of_run(1))


def test_a_folder_that_is_not_there_is_told(tmp_path):
    with pytest.raises(FileError, match=r"cannot write .*no folder"):
        save_progress(tmp_path / "no folder" / "run.npz", of_run(), SETTINGS)


@dataclass
class Part:
    """A window of a corpus."""

    lines: int
    offset: int
    skipped: int = 0
    first_skipped: tuple[int, str] | None = None
    share: float | None = None


def test_a_window_more_is_added_to_what_was_read():
    progress = Progress(Tally(sequences=1))
    windows = [
        Part(10, 100, share=0.1),
        Part(20, 300, 2, (13, "is no JSON"), 0.3),
        Part(30, 900, 1, (29, "has no text"), 1.0),
    ]
    for window in windows:
        progress = progress.after(window, Tally(sequences=4, tokens=9))
    assert replace(progress, tally=Tally()) == Progress(Tally(), 30, 900, 3, (13, "is no JSON"), 1.0)
    assert (progress.tally.sequences, progress.tally.tokens) == (13, 27)
    assert not progress.done


def test_what_was_read_before_stays_as_it_was():
    before = of_run()
    then = told(before)
    after = before.after(Part(60, 2**41), of_run(1).tally)
    assert told(before) == then
    assert after.tally.sequences == 80
    for key, sums in after.tally.sums.items():
        assert np.array_equal(sums, before.tally.sums[key] + of_run(1).tally.sums[key])
