"""What belongs to a picture or a video, and what to the text around it."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import pytest

from attnscope.model.answers.pictures.videos import Video
from attnscope.model.answers.prompt import Prompt
from attnscope.model.answers.segments.of_messages import read_messages
from attnscope.model.answers.segments.of_pictures import read_pictures_and_text
from attnscope.model.files.loaded import find_model
from tests.model.answers.families import VIDEO_NAMES, loaded, picture

pytestmark = pytest.mark.videos

FRAMES = [picture(48, 40, seed=i) for i in range(4)]
FILM = Video(FRAMES, fps=1.0)

SMOLVLM = (
    "You are provided the following series of four frames from a 0:00:04 [H:MM:SS] video.\n"
    + "".join(
        f"\nFrame from 00:0{i}:<fake_token_around_image><global-img>·<fake_token_around_image>"
        for i in range(4)
    )
    + "\n\n"
)
QWEN_3 = "<0.5 seconds><|vision_start|>·<|vision_end|><2.5 seconds><|vision_start|>·<|vision_end|>"
INTERNVL = "\n".join(f"Frame{i + 1}: <img>·</img>" for i in range(4))
WRITTEN = {
    "llava_onevision": "·",
    "qwen2_vl": "<|vision_start|>·<|vision_end|>",
    "qwen2_5_vl": "<|vision_start|>·<|vision_end|>",
    **dict.fromkeys(["qwen3_vl", "qwen3_5"], f"<|vision_start|>{QWEN_3}<|vision_end|>"),
    "smolvlm": SMOLVLM,
    "internvl": INTERNVL,
}
"""What the processors write in place of a video: time stamps are in the middle of two frames in Qwen3-VL."""


def read(name: str, text: str, *videos: Any) -> Prompt:
    model, processor = loaded(name)
    checkpoint = find_model(model, processor=processor)
    return read_pictures_and_text(checkpoint, model.config, [], text, None, videos=videos)


def spelled(prompt: Prompt, segment: str) -> str:
    """The text of a segment, with one dot for the patches that follow each other."""
    [positions] = [each.positions for each in prompt.segments if each.name == segment]
    texts = [prompt.tokens[position].text for position in positions]
    runs = groupby(texts, lambda text: text.startswith("video "))
    return "".join("·" if is_patch else "".join(run) for is_patch, run in runs)


@pytest.mark.parametrize("name", VIDEO_NAMES)
def test_time_stamps_and_introductions_belong_to_the_video(name):
    prompt = read(name, "what is?", FILM)
    assert spelled(prompt, "video 1") == WRITTEN[name]
    assert spelled(prompt, "text") == "what is?"
    patches = {patch.position for each in prompt.pictures for patch in each.patches}
    assert patches <= set(prompt.segments[1].positions)
    assert all(prompt.tokens[position].text.startswith("video 1, frame") for position in patches)


@pytest.mark.parametrize(("name", "written"), [("qwen3_vl", QWEN_3), ("internvl", INTERNVL)])
def test_videos_that_follow_each_other_have_their_own_time_stamps(name, written):
    mark = loaded(name)[1].video_token
    prompt = read(name, f"{mark}{mark}what is?", FILM, FILM)
    assert [spelled(prompt, f"video {number}") for number in (1, 2)] == [written] * 2
    assert spelled(prompt, "text") == "what is?"


@pytest.mark.parametrize("name", ["qwen3_vl", "smolvlm", "internvl"])
def test_in_a_chat_they_belong_to_the_video_too(name, tmp_path):
    path = tmp_path / "film.png"
    FRAMES[0].save(path, save_all=True, append_images=FRAMES[1:], duration=1000)
    content = [{"type": "video", "path": str(path)}, {"type": "text", "text": "what is?"}]
    model, processor = loaded(name)
    checkpoint = find_model(model, processor=processor)
    prompt = read_messages(checkpoint, model.config, [{"role": "user", "content": content}])
    assert spelled(prompt, "video 1") == WRITTEN[name]
    assert spelled(prompt, "user").strip() == "what is?"


def test_time_stamps_of_frames_without_times_are_named():
    assert read("qwen3_vl", "what is?", FRAMES).notices == [
        "video 1 does not say how many frames a second has: its processor takes 24."
    ]
    assert read("qwen3_vl", "what is?", FILM).notices == []
    assert read("qwen2_vl", "what is?", FRAMES).notices == []
