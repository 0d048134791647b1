"""A recording is read as other programs read it, mixed to one channel and resampled."""

import struct
import wave

import numpy as np
import pytest
import torch
from scipy.io import wavfile

from attnscope.base.errors import AttnscopeError, FileError, OptionError
from attnscope.model.answers.audio import recording
from attnscope.model.answers.audio.recording import read_recording
from tests.model.answers.audio.speakers import sound


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


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_files_of_floats_are_read(tmp_path, dtype):
    wanted = np.stack([sound(0.1, seed) for seed in range(2)], 1).astype(dtype)
    read = read_recording(save(tmp_path / "a.wav", wanted), 16000)
    np.testing.assert_allclose(read.samples, wanted.mean(1), atol=1e-7)


def test_an_extensible_format_is_read(tmp_path):
    """As ffmpeg writes integers of 24 bits: the kind of samples stands in an identifier behind."""
    wanted = (sound(0.1) * 2**23).round().astype("<i4")
    content = wanted.view("u1").reshape(-1, 4)[:, :3].tobytes()
    of_pcm = bytes.fromhex("0100000000001000800000aa00389b71")
    form = struct.pack("<HHIIHHHHI", 0xFFFE, 1, 16000, 48000, 3, 24, 22, 24, 4) + of_pcm
    title = b"LIST\x05\0\0\0INFO!\0"  # of an odd length
    path = tmp_path / "a.wav"
    path.write_bytes(riff(b"fmt " + struct.pack("<I", len(form)) + form + title, content))
    np.testing.assert_allclose(read_recording(path, 16000).samples, wanted / 2**23, atol=1e-7)


def riff(head, content, n_stated=None):
    """A WAV file of a header and samples, whose number of bytes it states."""
    stated = struct.pack("<I", len(content) if n_stated is None else n_stated)
    body = b"WAVE" + head + b"data" + stated + content
    return b"RIFF" + struct.pack("<I", len(body)) + body


def of_bits(bits, rate=16000, n_channel=1, block=None, kind=1):
    block = bits // 8 * n_channel if block is None else block
    form = struct.pack("<HHIIHH", kind, n_channel, rate, rate * block, block, bits)
    return b"fmt " + struct.pack("<I", 16) + form


@pytest.mark.parametrize(
    ("n_stated", "states"),
    [
        (32000 * 2, "states 2.0 s, and 1.0 s are in the file"),
        (0, "states nothing"),
        (2**32 - 1, "states nothing"),
    ],
)
def test_of_an_interrupted_recording_what_is_there_is_read(tmp_path, n_stated, states):
    wanted = (sound(1.0) * 2**15).round().astype("<i2")
    path = tmp_path / "a.wav"
    path.write_bytes(riff(of_bits(16), wanted.tobytes() + b"!", n_stated))
    read = read_recording(path, 16000)
    np.testing.assert_array_equal(read.samples, wanted.astype("f4") / 2**15)
    [notice] = read.notices
    assert states in notice


@pytest.mark.parametrize(
    ("head", "error"),
    [
        (of_bits(40), "has integers of 40 bits: integers of 8, 16, 24 and 32 bits"),
        (of_bits(16, kind=2), "has samples of the format 2, which are compressed"),
        (
            of_bits(16, rate=0),
            "is damaged: it has 1 channels of 16 bits in blocks of 2 bytes, 0 a second",
        ),
        (of_bits(16, n_channel=0, block=2), "is damaged: it has 0 channels"),
        (of_bits(16, rate=5_000_011), "has 5,000,011 samples a second"),
        (b"", "does not say which samples it has"),
        (b"junk" * 3, "ends before its samples"),
    ],
)
def test_a_file_of_samples_that_are_not_read_is_refused(tmp_path, head, error):
    path = tmp_path / "a.wav"
    path.write_bytes(riff(head, bytes(160)))
    with pytest.raises(AttnscopeError, match=error):
        read_recording(path, 16000)


def test_a_recording_that_is_too_long_is_refused_before_it_is_read(tmp_path):
    """A file of 4 GiB of zeros that takes no room on the disk."""
    path = tmp_path / "a.wav"
    path.write_bytes(riff(of_bits(16), b"", 2**32 - 2))
    with path.open("r+b") as file:
        file.truncate(2**32)
    with pytest.raises(OptionError, match=r"is 134,217\.7 s long, and a model reads 30 s at once"):
        read_recording(path, 16000, most=480_000, model="a model")
    read = read_recording(path, 16000, most=480_000, truncate=True)
    assert len(read.samples) == 480_000
    assert "was cut to 30 s" in read.notices[-1]


def test_a_cut_recording_of_another_rate_is_the_beginning_of_the_whole():
    samples = sound(3.0, rate=22050)
    whole = read_recording((samples, 22050), 16000).samples
    cut = read_recording((samples, 22050), 16000, most=16000, truncate=True).samples
    np.testing.assert_allclose(cut, whole[:16000], atol=1e-6)


@pytest.mark.parametrize(
    "values",
    [
        torch.linspace(-1, 1, 9, dtype=torch.bfloat16),
        torch.linspace(-1, 1, 9).requires_grad_(),
        torch.linspace(-1, 1, 9).half(),
        np.linspace(-1, 1, 9).tolist(),
    ],
)
def test_samples_of_every_array_are_read(values):
    read = read_recording((values, np.int64(16000)), 16000)
    np.testing.assert_allclose(read.samples, np.linspace(-1, 1, 9), atol=1e-6)


def test_bytes_are_read_around_their_middle():
    """As in a WAV file of 8 bits, whose samples have no sign."""
    read = read_recording((np.array([0, 64, 128, 255], "u1"), 16000), 16000)
    np.testing.assert_allclose(read.samples, [-1, -0.5, 0, 127 / 128])


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
    path = tmp_path / "a.flac"
    path.write_bytes(b"fLaC")
    with pytest.raises(FileError, match="soundfile, which reads others, is not installed") as caught:
        read_recording(path, 16000)
    assert "pip install soundfile" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("audio", "error"),
    [
        ((np.zeros(0), 16000), "has no samples"),
        ((np.array([0.0, np.nan]), 16000), "not finite"),
        ((np.zeros(9), 16000.5), "rate of audio is 16000.5"),
        ((np.zeros(9), True), "rate of audio is True"),
        ((np.zeros(9), 5_000_011), "has 5,000,011 samples a second: rates from 1,000 to 384,000"),
        ((np.array([0.0, -9000.0]), 16000), "has floats up to 9,000, but sound is between −1 and 1"),
        ((np.array([1j]), 16000), "are complex128, but sound is floats"),
        ((np.array([True, False]), 16000), "are bool, but sound is floats"),
        ((np.zeros(3, [("a", "f4")]), 16000), "but sound is floats"),
        (([1, 2, 3], 16000), "are int64, but sound is floats"),
        ((torch.zeros(3, device="meta"), 16000), "a tensor without values"),
        ((torch.zeros(3, dtype=torch.complex64), 16000), "are complex64, but sound is floats"),
        (([[1.0], [1.0, 2.0]], 16000), "are not an array"),
        (np.zeros(9), "audio is a ndarray, but takes a file"),
    ],
)
def test_what_is_not_sound_is_refused(audio, error):
    with pytest.raises(OptionError, match=error):
        read_recording(audio, 16000)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileError, match=r"no file .*b\.wav"):
        read_recording(tmp_path / "b.wav", 16000)
