"""A recording is read as other programs read it, mixed to one channel and resampled."""

import wave

import numpy as np
import pytest
from answers.audio.speakers import sound
from scipy.io import wavfile

from attnscope.answers.audio import recording
from attnscope.answers.audio.recording import read_recording
from attnscope.errors import FileError, OptionError


def save(path, samples, rate=16000):
    """A WAV file of these integers, by scipy."""
    wavfile.write(path, rate, samples)
    return path


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32"])
@pytest.mark.parametrize("n_channel", [1, 3])
def test_files_of_integers_are_read(tmp_path, dtype, n_channel):
    wanted = np.stack([sound(0.1, seed) for seed in range(n_channel)], 1)
    limits = np.iinfo(dtype)
    middle, half = (limits.max + limits.min + 1) // 2, (limits.max - limits.min + 1) / 2
    integers = (wanted * half + middle).round().astype(dtype)
    read = read_recording(save(tmp_path / "a.wav", integers), 16000)
    assert read.samples.dtype == np.float32
    np.testing.assert_allclose(read.samples, wanted.mean(1), atol=0.6 / half + 1e-7)
    assert read.notices == (["3 channels were mixed to one."] if n_channel == 3 else [])
    assert read.seconds == 0.1


def test_files_of_24_bits_are_read(tmp_path):
    wanted = sound(0.1)
    integers = (wanted * 2**23).round().astype("<i4")
    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(3)
        file.setframerate(16000)
        file.writeframes(integers.view("u1").reshape(-1, 4)[:, :3].tobytes())
    _, theirs = wavfile.read(tmp_path / "a.wav")
    read = read_recording(tmp_path / "a.wav", 16000)
    np.testing.assert_allclose(read.samples, theirs / 2**31)
    np.testing.assert_allclose(read.samples, wanted, atol=2**-23)


def test_samples_of_another_rate_are_resampled():
    """A tone of 440 Hz remains one: its samples are those of the same tone at the new rate."""
    before, after = (np.sin(2 * np.pi * 440 * np.arange(rate) / rate) for rate in (44100, 16000))
    read = read_recording((before, 44100), 16000)
    assert len(read.samples) == 16000
    np.testing.assert_allclose(read.samples[500:-500], after[500:-500], atol=2e-3)
    assert read.notices == ["the recording was resampled from 44,100 to 16,000 samples a second."]


def test_what_is_missing_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(recording, "find_spec", lambda name: None)
    with pytest.raises(OptionError, match="scipy, which resamples, is not installed"):
        read_recording((np.zeros(9), 8000), 16000)
    path = save(tmp_path / "floats.wav", sound(0.1))
    with pytest.raises(FileError, match="soundfile, which reads others, is not installed") as caught:
        read_recording(path, 16000)
    assert "pip install soundfile" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("audio", "error"),
    [
        ((np.zeros(0), 16000), "has no samples"),
        ((np.zeros((2, 2, 2)), 16000), "has no samples"),
        ((np.array([0.0, np.nan]), 16000), "not finite"),
        ((np.zeros(9), 16000.5), "rate of --audio is 16000.5"),
        (np.zeros(9), "audio is a ndarray, but takes a file"),
    ],
)
def test_what_is_not_sound_is_refused(audio, error):
    with pytest.raises(OptionError, match=error):
        read_recording(audio, 16000)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileError, match=r"no file .*b\.wav"):
        read_recording(tmp_path / "b.wav", 16000)
