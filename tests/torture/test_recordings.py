"""Recordings with changed bytes, or cut: each is heard as it now is, or refused in one line."""

import io
import json
import struct

import numpy as np
import pytest
from scipy.io import wavfile

from tests.model.answers.audio.speakers import sound, whisper
from tests.torture.cases import seeded
from tests.torture.files import copy_links, flipped
from tests.torture.hostile_json import hostile

pytestmark = [pytest.mark.torture, pytest.mark.slow]


def written(dtype):
    samples = sound(0.3)
    values = (
        samples.astype(dtype) if dtype == "float32" else (samples * np.iinfo(dtype).max).astype(dtype)
    )
    content = io.BytesIO()
    wavfile.write(content, 16000, values)
    return content.getvalue()


@pytest.fixture(scope="module")
def listener(tmp_path_factory):
    """A tiny Whisper."""
    folder = tmp_path_factory.mktemp("saved") / "listener"
    for each in whisper():
        each.save_pretrained(folder)
    return folder


def changed(drawing):
    """A file of a kind, with its header changed, its fields of sizes replaced, or its end cut off."""
    whole = written(drawing.choice(["int16", "int32", "float32"]))
    kind = drawing.randrange(4)
    if kind == 0:
        return whole[: drawing.randrange(len(whole))]
    if kind == 1:
        return flipped(whole, drawing, list(range(60)))
    at = drawing.choice([4, 16, 20, 22, 24, 28, 32, 34, 40])
    number = drawing.choice([0, 1, 2, 3, 5, 255, 65535, 5_000_011, 2**31, 2**32 - 1])
    form = "<H" if at in (20, 22, 32, 34) else "<I"
    mask = 2 ** (8 * struct.calcsize(form)) - 1
    whole = whole[:at] + struct.pack(form, number & mask) + whole[at + struct.calcsize(form) :]
    return flipped(whole, drawing, list(range(60))) if kind == 3 else whole


@pytest.mark.parametrize("part", range(4))
def test_a_changed_recording_is_heard_or_refused(cases, listener, part):
    path = cases.folder / "a.wav"
    for number in range(100):
        drawing = seeded(f"recording {part} {number}")
        path.write_bytes(changed(drawing))
        options = drawing.choice([[], ["--truncate"]])
        line = ["model", listener, "--audio", path.name, "--generate", 2, *options, "--format", "json"]
        cases.run(*line, statuses=[0, 2], what=f"part {part}, recording {number}")


@pytest.mark.parametrize("name", ["preprocessor_config.json", "config.json"])
def test_changed_settings_of_a_listener_are_read_or_refused(cases, listener, name):
    whole = json.loads((listener / name).read_text())
    (cases.folder / "a.wav").write_bytes(written("int16"))
    folder = copy_links(listener, cases.folder / "model", but=name)
    for number in range(50):
        drawing = seeded(f"listener {name} {number}")
        (folder / name).write_text(hostile(whole, drawing), encoding="utf-8")
        line = ["model", folder, "--audio", "a.wav", "--generate", 2, "--format", "json"]
        cases.run(*line, statuses=[0, 2], what=f"{name}, change {number}")
