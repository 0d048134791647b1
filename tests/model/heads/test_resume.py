"""A run on disk is the run itself: to the last bit, or it is told that it is not."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from hashlib import sha256
from io import BytesIO
from itertools import cycle
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from attnscope.base.errors import FileError, OptionError
from attnscope.model.heads import resume
from attnscope.model.heads.resume import RunState, WindowProgress, load_state, save_state
from attnscope.model.heads.statistics import Accumulator

SETTINGS = {
    "model": "minilm",
    "dtype": "torch.float32",
    "metrics": ["entropy", "self", "largest"],
    "corpus": "x.txt",
    "size of the corpus": 12,
    "max_length": None,
    "special": True,
    "layers": [0, 2, 11],
}
DAMAGED = "is not a run saved by this version of attnscope, or is damaged"


def of_texts(seed: int, sequences: int = 40, tokens: int = 512) -> Accumulator:
    """What was measured of some texts: two stacks, three of their layers, and one that is not shown."""
    drawing = np.random.default_rng(seed)
    heads = {("encoder", 0): 2, ("encoder", 1): 2, ("encoder", 11): 2, ("cross", 2): 1}
    sums = {}
    for stack, layer in heads:
        if layer != 1:  # nothing has a query's own key in another sequence
            n_metric = 2 if stack == "cross" else 3
            sums[stack, layer] = drawing.uniform(1, sequences, (heads[stack, layer], n_metric, 6))
    return Accumulator(sums, {"encoder": (12, 2), "cross": (3, 1)}, heads, sequences, tokens, 3, 1)


def of_run(seed: int = 0) -> RunState:
    """A run over some of a corpus, in which two windows more were begun."""
    parts = {
        0: WindowProgress(3, of_texts(seed + 1, 9, 100)),
        2: WindowProgress(0, Accumulator(empty=2)),
    }
    return RunState(
        of_texts(seed), 57, 2**40 + 1, 2, (7, "is no text"), 0.1 + 0.2, False, "its own", parts
    )


def told(state: RunState | Accumulator) -> dict[str, Any]:
    """All of it, and sums as their bytes."""
    if isinstance(state, Accumulator):
        sums = state.sums.items()
        of_bytes = {key: (each.shape, each.dtype, each.tobytes()) for key, each in sums}
        return {**vars(state), "sums": of_bytes}
    parts = {place: (part.batches, told(part.accumulator)) for place, part in state.parts.items()}
    return {**vars(state), "accumulator": told(state.accumulator), "parts": parts}


def stored(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The record of a run's file, and its arrays."""
    with np.load(path) as file:
        arrays = dict(file)
    return json.loads(str(arrays.pop("about"))), arrays


@given(
    sums=arrays_of.arrays(np.float64, (2, 3, 6), elements=st.floats(0, 100)),
    counts=st.tuples(*[st.integers(100, 2**50)] * 4),
    share=st.none() | st.floats(0, 1),
    first=st.none() | st.tuples(st.integers(1, 100), st.text()),
    done=st.booleans(),
)
def test_what_is_loaded_is_what_was_saved_to_the_last_bit(
    tmp_path_factory, sums, counts, share, first, done
):
    path = tmp_path_factory.getbasetemp() / "run.npz"
    sequences, more, offset, skipped = counts
    skipped *= first is not None
    accumulator = Accumulator(
        {("self", 2): sums}, {"self": (4, 2)}, {("self", 2): 2}, sequences, sequences + more, 1
    )
    lines = sequences + skipped
    state = RunState(accumulator, lines, lines + offset, skipped, first, share, done)
    save_state(path, state, SETTINGS)
    assert told(load_state(path, SETTINGS)) == told(state)


def test_layers_and_stacks_keep_their_order(tmp_path):
    save_state(tmp_path / "run.npz", of_run(), SETTINGS)
    loaded = load_state(tmp_path / "run.npz", SETTINGS).accumulator
    assert list(loaded.layers) == ["encoder", "cross"]
    assert list(loaded.sums) == [("encoder", 0), ("encoder", 11), ("cross", 2)]
    assert all(isinstance(key, tuple) for key in loaded.heads)


@pytest.mark.parametrize(
    ("name", "other"),
    [("metrics", ["self", "entropy"]), ("layers", None), ("max_length", 512), ("model", "another")],
)
def test_a_run_with_other_settings_is_refused(tmp_path, name, other):
    path = tmp_path / "run.npz"
    save_state(path, of_run(), SETTINGS)
    changed = {**SETTINGS, name: other}
    with pytest.raises(OptionError, match=f"is from a run with {name} .*, but this run has") as raised:
        load_state(path, changed)
    assert raised.value.hint == "the same options, or another name for checkpoint"


def test_both_settings_are_said_and_long_ones_are_cut_and_new_ones_are_others(tmp_path):
    path = tmp_path / "run.npz"
    save_state(path, of_run(), SETTINGS)
    says = r"is from a run with metrics entropy, self, largest, but this run has entropy, .*…\."
    with pytest.raises(OptionError, match=says):
        load_state(path, {**SETTINGS, "metrics": ["entropy"] * 20})
    with pytest.raises(OptionError, match="is from a run with seed None, but this run has 3"):
        load_state(path, {**SETTINGS, "seed": 3})


def test_nothing_but_arrays_is_given_to_savez(tmp_path, monkeypatch):
    """numpy 1.26 takes whatever has a name for an array, and saves it as one."""
    given, own = {}, np.savez
    monkeypatch.setattr(np, "savez", lambda file, **arrays: (given.update(arrays), own(file, **arrays)))
    save_state(tmp_path / "run.npz", of_run(), SETTINGS)
    names = {"encoder 0", "encoder 11", "cross 2"}
    assert set(given) == {"about", *names, *(f"0 {name}" for name in names)}


def test_any_changed_byte_is_damage(tmp_path):
    path = tmp_path / "run.npz"
    save_state(path, of_run(), SETTINGS)
    data = path.read_bytes()
    near_the_end = range(len(data) - 300, len(data))  # where it is said what is in the file
    flips = cycle((1, 0x80, 0xFF))
    for i in [*range(0, len(data), 397), *near_the_end[::3]]:
        damaged = bytearray(data)
        damaged[i] ^= next(flips)
        path.write_bytes(damaged)
        with pytest.raises(FileError, match=DAMAGED):
            load_state(path, SETTINGS)


def archive(**arrays: Any) -> bytes:
    buffer = BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


PICKLED = np.array([{"schema": "attnscope.run/2"}], dtype=object)
DAMAGE = {
    "empty": lambda data: b"",
    **{str(n): lambda data, n=n: data[: len(data) * n // 1000] for n in (10, 999)},
    "a byte more": lambda data: data + b"x",
    "text": lambda data: b"the cat sat on the mat\n",
    "hash": lambda data: b"sha256 " + b"0" * 64,
    "tensors": lambda data: archive(Q=np.zeros(3)),
    "pickle": lambda data: archive(about=PICKLED),
    "earlier version": lambda data: archive(about=np.array('{"schema": "attnscope.run/1"}')),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_file_that_is_damaged_or_another_is_told(tmp_path, how):
    path = tmp_path / "run.npz"
    save_state(path, of_run(), SETTINGS)
    path.write_bytes(DAMAGE[how](path.read_bytes()))
    with pytest.raises(FileError, match=DAMAGED) as raised:
        load_state(path, SETTINGS)
    assert raised.value.hint == "another name for checkpoint"


def test_a_run_of_another_version_is_told(tmp_path, monkeypatch):
    path = tmp_path / "run.npz"
    with monkeypatch.context() as patch:
        patch.setattr(resume, "VERSION", "attnscope.run/3")
        save_state(path, of_run(), SETTINGS)
    with pytest.raises(FileError, match=r"is from another version: attnscope\.run/3"):
        load_state(path, SETTINGS)


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_what_is_interrupted_leaves_the_file_as_it_was(tmp_path, monkeypatch, failure):
    path = tmp_path / "run.npz"
    save_state(path, of_run(0), SETTINGS)

    def half(file, content):
        with file.open("wb") as opened:
            opened.write(content[:100])
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", half)
        told_as = FileError if isinstance(failure, OSError) else KeyboardInterrupt
        with pytest.raises(told_as, match="No space left" if told_as is FileError else None):
            save_state(path, of_run(1), SETTINGS)
    assert told(load_state(path, SETTINGS)) == told(of_run(0))
    assert [each.name for each in tmp_path.iterdir()] == ["run.npz"]
    save_state(path, of_run(1), SETTINGS)
    assert told(load_state(path, SETTINGS)) == told(of_run(1))


@dataclass
class Stretch:
    """A window of a corpus."""

    lines: int
    offset: int
    skipped: int = 0
    first_skipped: tuple[int, str] | None = None
    share: float | None = None


def test_a_window_more_is_added_to_what_was_read():
    state = RunState(Accumulator(sequences=1))
    windows = [
        Stretch(10, 100, share=0.1),
        Stretch(20, 300, 2, (13, "is no JSON"), 0.3),
        Stretch(30, 900, 1, (29, "has no text"), 1.0),
    ]
    for window in windows:
        state = state.after(window, Accumulator(sequences=4, tokens=9))
    assert replace(state, accumulator=Accumulator()) == RunState(
        Accumulator(), 30, 900, 3, (13, "is no JSON"), 1.0
    )
    assert (state.accumulator.sequences, state.accumulator.tokens) == (13, 27)
    assert not state.done


def test_windows_that_were_begun_come_nearer_with_every_one_that_is_read():
    parts = {place: WindowProgress(n, Accumulator()) for place, n in ((0, 1), (1, 2), (4, 5))}
    state = replace(of_run(), parts=parts)
    after = state.after(Stretch(90, 2**42), Accumulator())
    assert after.parts == {0: WindowProgress(2, Accumulator()), 3: WindowProgress(5, Accumulator())}


def test_the_whole_is_all_that_was_measured():
    run, whole = of_run(), of_run().whole
    assert (whole.sequences, whole.tokens, whole.cut, whole.empty) == (49, 612, 6, 4)
    for key, sums in whole.sums.items():
        assert np.array_equal(sums, run.accumulator.sums[key] + run.parts[0].accumulator.sums[key])


# Damage


def test_a_number_that_someone_changed_is_damage(tmp_path):
    path = tmp_path / "run.npz"
    save_state(path, of_run(), SETTINGS)
    about, arrays = stored(path)
    for record, sums in (
        ({**about, "lines": 58}, arrays),
        (about, {**arrays, "0 cross 2": -arrays["0 cross 2"]}),
    ):
        np.savez(path, about=np.array(json.dumps(record)), **sums)
        with pytest.raises(FileError, match=DAMAGED):
            load_state(path, SETTINGS)


def test_a_run_is_an_archive_that_numpy_and_others_read(tmp_path):
    path = tmp_path / "run.npz"
    save_state(path, of_run(), SETTINGS)
    with ZipFile(path) as archive:
        assert archive.testzip() is None
        comment = archive.comment
    assert comment == b"sha256 " + sha256(path.read_bytes()[: -len(comment)]).hexdigest().encode()
    about, arrays = stored(path)
    assert about["schema"] == "attnscope.run/2"
    assert np.array_equal(arrays["encoder 0"], of_run().accumulator.sums["encoder", 0])


def test_what_was_read_before_stays_as_it_was():
    before = of_run()
    then = told(before)
    after = before.after(Stretch(60, 2**41), of_run(1).accumulator)
    assert told(before) == then
    assert after.accumulator.sequences == 80
    for key, sums in after.accumulator.sums.items():
        assert np.array_equal(sums, before.accumulator.sums[key] + of_run(1).accumulator.sums[key])
