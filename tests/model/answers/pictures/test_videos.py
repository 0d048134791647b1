"""Each token of a video covers a cell of certain frames, whether they are pictures or a decoded file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import copy
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from attnscope.base.errors import FileError, OptionError, SizeError
from attnscope.base.process import devices
from attnscope.base.process.memory import FreeMemory
from attnscope.cli.app import app
from attnscope.model.answers.pictures.read import encode
from attnscope.model.answers.pictures.videos import open_video
from tests.model.answers.families import VIDEO_NAMES, family, loaded, picture
from tests.model.answers.pictures.pixels import changed, embeddings, moves, of_pictures, read

pytestmark = pytest.mark.videos

FPS = 4


def frames_of(n: int) -> list[Image.Image]:
    return [picture(48, 40, seed=i) for i in range(n)]


def film(path: Path, frames: Sequence[Image.Image]) -> Path:
    """Encode frames without any loss: H.264 of RGB in .mp4; elsewhere FFV1."""
    import av

    is_mp4 = path.suffix == ".mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264rgb" if is_mp4 else "ffv1", rate=FPS)
        stream.width, stream.height = frames[0].size
        stream.pix_fmt = "rgb24" if is_mp4 else "bgr0"
        stream.options = {"qp": "0"} if is_mp4 else {}
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_image(frame)))
        container.mux(stream.encode())
    return path


def is_in_pairs(name: str) -> bool:
    """Whether a family reads two frames in one step."""
    return name.startswith("qwen")


@pytest.mark.parametrize("name", VIDEO_NAMES)
def test_a_pixel_of_a_frame_moves_the_tokens_of_its_step_and_cell(name):
    frames = frames_of(4)
    before = read(name, [], [frames])
    per_step = 2 if is_in_pairs(name) else 1
    names = [f"video 1, frame {i + 1}" for i in range(0, 4, per_step)]
    assert [each.name for each in before.pictures] == names
    assert [each.name for each in of_pictures(before)] == ["video 1"]
    for index in (0, 3):
        found = before.pictures[index // per_step]
        assert found.image.tobytes() == frames[index - index % per_step].tobytes()
        for patch in (found.patches[0], found.patches[-1]):
            left, top, right, bottom = map(round, patch.box)
            box = (left + 7, top + 7, right - 7, bottom - 7)
            other = [changed(each, box) if i == index else each for i, each in enumerate(frames)]
            far = moves(name, before, read(name, [], [other]))
            assert far[patch.position] == 1
            assert {i for i, share in enumerate(far) if share > 0.05} == {patch.position}


SAMPLED = {
    "llava_onevision": {"do_sample_frames": True, "num_frames": 3},
    "qwen2_vl": {"do_sample_frames": True, "fps": 2},
    "qwen2_5_vl": {"do_sample_frames": True, "num_frames": 6},
    "smolvlm": {"do_sample_frames": True, "fps": 2, "num_frames": 64},
    "internvl": {"do_sample_frames": True, "num_frames": 3},
}
"""Settings with which processors of videos leave frames out; those of Qwen3-VL do by default."""


@pytest.mark.parametrize("name", VIDEO_NAMES)
def test_a_pixel_of_a_frame_of_a_file_moves_the_tokens_that_name_the_frame(name, tmp_path):
    model, processor = loaded(name)
    processor = copy(processor)
    processor.video_processor = copy(processor.video_processor)
    vars(processor.video_processor).update(SAMPLED.get(name, {}))

    def read(frames):
        video = open_video(film(tmp_path / "film.mp4", frames))
        prompt = encode(processor, model.config, f"{processor.video_token}what is?", [], [video])
        return prompt, video.shown

    frames = frames_of(20)  # of 5 seconds
    before, shown = read(frames)
    assert 3 <= len(shown) <= 10
    steps = shown[::2] if is_in_pairs(name) else shown
    assert [each.name for each in before.pictures] == [f"video 1, frame {i + 1}" for i in steps]
    for found, index in zip(before.pictures, steps, strict=True):
        assert found.image.tobytes() == frames[index].tobytes()
    for nth in (0, len(shown) // 2, len(shown) - 1):
        found = before.pictures[nth // 2 if is_in_pairs(name) else nth]
        patch = found.patches[len(found.patches) // 2]
        left, top, right, bottom = map(round, patch.box)
        box = (left + 7, top + 7, right - 7, bottom - 7)
        other = [changed(each, box) if i == shown[nth] else each for i, each in enumerate(frames)]
        far = moves(name, before, read(other)[0])
        assert {i for i, share in enumerate(far) if share > 0.05} == {patch.position}
    unseen = [each if i in shown else picture(48, 40, seed=99) for i, each in enumerate(frames)]
    assert embeddings(name, read(unseen)[0]).equal(embeddings(name, before))


@pytest.mark.parametrize("name", ["film.mp4", "film.mkv", "film.avi"])
def test_a_file_is_decoded_whole_in_every_container(name, tmp_path):
    frames = frames_of(7)
    read = open_video(film(tmp_path / name, frames))
    assert read.fps == FPS
    assert [each.tobytes() for each in read.frames] == [each.tobytes() for each in frames]


def test_frames_are_those_that_transformers_decodes(tmp_path):
    from transformers.video_utils import load_video

    path = film(tmp_path / "film.mp4", frames_of(7))
    array, metadata = load_video(str(path))
    read = open_video(path)
    assert np.array_equal(np.stack([np.asarray(each) for each in read.frames]), array)
    assert read.fps == metadata.fps


def test_the_command_reads_a_file_of_a_video(tmp_path):
    path = film(tmp_path / "film.mp4", frames_of(4))
    options = ["--video", str(path), "--text", "what is?", "--generate", "3", "--format", "json"]
    result = CliRunner().invoke(app, ["model", str(family("qwen2_vl")), *options])
    assert result.exit_code == 0
    record = json.loads(result.stdout)
    assert [each["name"] for each in record["pictures"]] == ["video 1, frame 1", "video 1, frame 3"]


def test_frames_of_a_second_are_read_and_named_by_their_numbers(tmp_path):
    frames = frames_of(12)
    path = film(tmp_path / "film.mp4", frames)
    options = ["--video", str(path), "--fps", "1.5", "--generate", "3", "--format", "json"]
    result = CliRunner().invoke(app, ["model", str(family("qwen2_vl")), *options, "--text", "what?"])
    assert result.exit_code == 0
    record = json.loads(result.stdout)
    names = [each["name"] for each in record["pictures"]]
    assert names == ["video 1, frame 1", "video 1, frame 7", "video 1, frame 12"]


def test_a_video_that_is_too_long_says_how_many_tokens_it_has():
    with pytest.raises(OptionError, match=r"tokens long, but .* takes at most 2048") as error:
        read("internvl", [], [frames_of(400)])
    assert error.value.hint == "a video of fewer frames, or a shorter text"


def test_an_animated_picture_is_a_video(tmp_path):
    frames = frames_of(4)
    path = tmp_path / "frames.png"
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=500)
    prompt = read("qwen2_vl", [picture(32, 32)], [path])
    assert [each.name for each in prompt.pictures] == [
        "picture 1",
        "video 1, frame 1",
        "video 1, frame 3",
    ]
    assert prompt.pictures[2].image.tobytes() == frames[2].tobytes()


@pytest.mark.parametrize("name", ["film.mp4", "film.mkv"])  # the second does not count its frames
def test_frames_that_do_not_fit_into_the_memory_are_refused(name, tmp_path, monkeypatch):
    path = film(tmp_path / name, frames_of(8))
    needed = 8 * 48 * 40 * 7
    monkeypatch.setattr(devices, "free_memory", lambda device: FreeMemory(needed))
    assert len(open_video(path).frames) == 8
    monkeypatch.setattr(devices, "free_memory", lambda device: FreeMemory(needed - 1))
    with pytest.raises(SizeError, match=r"needs at least 105\.0 KiB, but cpu has") as error:
        open_video(path)
    assert error.value.hint == "a shorter video, or a smaller one; or fps=1"


def test_a_file_that_is_no_video_is_refused(tmp_path):
    import av

    (tmp_path / "film.mp4").write_bytes(b"not a film")
    with pytest.raises(FileError, match="cannot be decoded as a video"):
        open_video(tmp_path / "film.mp4")
    with av.open(str(tmp_path / "sound.wav"), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=8000)
        silence = av.AudioFrame.from_ndarray(np.zeros((1, 80), np.int16), layout="mono")
        silence.rate = 8000
        container.mux(stream.encode(silence))
    with pytest.raises(FileError, match="has no video in it"):
        open_video(tmp_path / "sound.wav")
