"""A text with pictures becomes a prompt: placeholders, segments, labels, and errors."""

from __future__ import annotations

import os
import subprocess
import sys
from copy import copy
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

import attnscope
from attnscope.base.errors import AttnscopeError, FileError, ModelError, OptionError
from attnscope.model.answers.pictures.read import check_family, encode
from attnscope.model.answers.pictures.videos import open_video
from attnscope.model.answers.segments.of_pictures import read_pictures_and_text
from attnscope.model.files.checkpoint import find_checkpoint
from attnscope.model.files.loaded import find_model
from attnscope.model.run.load import load_config
from tests.model.answers.families import (
    HAS_VIDEOS,
    NAMES,
    family,
    llava,
    loaded,
    picture,
)
from tests.model.answers.pictures.pixels import changed, embeddings, moves, of_pictures, overlaps, read
from tests.sweeps import swept

IMAGE = {name: loaded(name)[1].image_token for name in ("llava", "gemma3", "mistral3")}


def read_with(name: str, processor: Any, pictures: list[Any], text: str = "what is?", **options: Any):
    model = loaded(name)[0]
    return read_pictures_and_text(
        find_model(model, processor=processor), model.config, pictures, text, **options
    )


@pytest.mark.parametrize("name", swept(NAMES, default=[each for each in NAMES if "_moe" not in each]))
def test_the_prompt_is_what_the_processor_makes_of_its_own_placeholders(name):
    model, _ = loaded(name)
    images = [picture(50, 37), picture(64, 32, seed=1)]
    prompt = read(name, images)
    ids = prompt.inputs["input_ids"][0].tolist()
    image_id = getattr(model.config, "image_token_id", None) or model.config.image_token_index
    patches = {patch.position for each in prompt.pictures for patch in each.patches}
    assert patches <= {position for position, each in enumerate(ids) if each == image_id}
    assert len(prompt.tokens) == len(ids)
    assert [each.name for each in prompt.pictures] == ["picture 1", "picture 2"]
    assert [each.name for each in of_pictures(prompt)] == ["picture 1", "picture 2"]
    assert [each.image.size for each in prompt.pictures] == [(50, 37), (64, 32)]
    for segment, found in zip(of_pictures(prompt), prompt.pictures, strict=True):
        assert {patch.position for patch in found.patches} <= set(segment.positions)
    first, second = (set(segment.positions) for segment in of_pictures(prompt))
    assert not first & second
    assert "labels" not in prompt.inputs
    with torch.no_grad():
        assert model(**prompt.inputs).logits.shape[1] == len(ids)


@pytest.mark.parametrize(
    ("name", "first", "last"),
    [
        ("qwen2_vl", "<|vision_start|>", "<|vision_end|>"),
        ("gemma3", "<start_of_image>", "<end_of_image>"),
        ("gemma4", "<|image>", "<image|>"),
        ("glm4v", "<|begin_of_image|>", "<|end_of_image|>"),
        ("janus", "<begin_of_image>", "<end_of_image>"),
        ("aya_vision", "<|START_OF_IMG|>", "<|END_OF_IMG|>"),
        ("idefics3", "<fake_token_around_image>", "<fake_token_around_image>"),
        ("internvl", "<img>", "</img>"),
        ("mistral3", "picture 2: 1, 1", "[IMG_END]"),
        ("llava", "picture 2: 1, 1", "picture 2: 4, 4"),
        ("llava_next", "picture 2: 1, 1", "picture 2, tile 1: end of row"),
    ],
)
def test_a_segment_has_the_tokens_that_open_and_close_a_picture(name, first, last):
    prompt = read(name, [picture(64, 32), picture(64, 32)])
    positions = of_pictures(prompt)[1].positions
    assert prompt.tokens[positions[0]].text == first
    assert prompt.tokens[positions[-1]].text == last
    inside = {prompt.tokens[position].text for position in positions}
    assert "what" not in inside
    assert of_pictures(prompt)[0].n_token == of_pictures(prompt)[1].n_token


def test_labels_name_the_picture_its_part_row_and_column():
    prompt = read("idefics3", [picture(64, 32)])
    labels = [prompt.tokens[patch.position].text for patch in prompt.pictures[0].patches]
    assert labels[0] == "picture 1, tile 1, 1: 1, 1"
    assert labels[7] == "picture 1, tile 1, 2: 2, 2"
    assert labels[-1] == "picture 1: 2, 2"
    assert not any(prompt.tokens[patch.position].special for patch in prompt.pictures[0].patches)


def test_a_marked_cell_is_found_in_the_original_of_a_picture_that_is_resized_and_cropped():
    """200 × 100 pixels become 64 × 32, of which the 32 in the middle are read."""
    plain = Image.fromarray(np.full((100, 200, 3), 40, dtype=np.uint8))
    marked = changed(plain, (131, 56, 143, 69))
    before, after = read("llava", [plain]), read("llava", [marked])
    far = moves("llava", before, after)
    [found] = after.pictures
    [strongest] = [patch for patch in found.patches if far[patch.position] == 1]
    assert strongest.box == (125, 50, 150, 75)
    assert {position for position, share in enumerate(far) if share > 0.05} == {strongest.position}
    assert found.lost == 0.5
    unseen = changed(plain, (2, 2, 42, 98))  # 50 are cropped away; a filter reaches 2 · 200/64
    apart = embeddings("llava", read("llava", [unseen])) - embeddings("llava", before)
    assert apart.abs().max() == 0


def test_what_covers_nothing_but_padding_is_no_patch():
    """A picture of 64 × 8 fills one row of four in the two tiles; the rest is dropped or padded."""
    prompt = read("llava_next", [picture(96, 31)])
    [found] = prompt.pictures
    labels = [prompt.tokens[position].text for position in of_pictures(prompt)[0].positions]
    assert sum(label.endswith("end of row") for label in labels) == 4
    assert len(found.patches) == 16 + 4 * 12
    assert max(patch.box[3] for patch in found.patches) == 31
    assert found.lost == 0


def test_a_file_is_turned_as_its_camera_was_held(tmp_path):
    image = picture(40, 30)
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    image.save(tmp_path / "turned.png", exif=exif)
    [found] = read("qwen2_vl", [tmp_path / "turned.png"]).pictures
    assert found.image.size == (30, 40)
    assert found.image.tobytes() == image.transpose(Image.Transpose.ROTATE_270).tobytes()


def test_pictures_of_any_mode_are_read_in_rgb():
    found = read("llava", [picture(40, 30).convert(mode) for mode in ("L", "RGBA", "P", "1")]).pictures
    assert {each.image.mode for each in found} == {"RGB"}


def test_what_is_no_picture_is_refused(tmp_path):
    (tmp_path / "text.png").write_text("hello")
    for given, says in [
        (tmp_path / "missing.png", "No such file"),
        (tmp_path / "text.png", "is not a picture that pillow can read"),
        (np.zeros((3, 3, 3)), "a file or an image of pillow, but this is a ndarray"),
    ]:
        with pytest.raises(AttnscopeError, match=says):
            read("llava", [given])


def test_placeholders_of_the_user_stay_where_they_are():
    prompt = read_with("llava", loaded("llava")[1], [picture(40, 30)], "what <image> is?")
    assert [token.text for token in prompt.tokens][:2] == ["<s>", "what"]
    assert of_pictures(prompt)[0].spans[0][0] == 3


def test_as_many_placeholders_as_pictures_are_needed():
    text = "<image>" * 3 + "what?"
    with pytest.raises(OptionError, match=r"has 3 × <image>, .*, but there are 2 pictures"):
        read_with("llava", loaded("llava")[1], [picture(40, 30)] * 2, text)


def test_a_chat_template_writes_the_placeholders():
    text = "".join(token.text for token in read("qwen2_vl", [picture(40, 30)]).tokens)
    assert text.startswith("<s><|im_start|>user\n<|vision_start|>picture 1: 1, 1")
    assert text.endswith("<|vision_end|>what is?<|im_end|>\n<|im_start|>assistant\n")


def test_a_chat_template_without_pictures_leaves_them_before_the_text_and_says_so():
    processor = copy(loaded("llava")[1])
    processor.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"
    prompt = read_with("llava", processor, [picture(40, 30)])
    assert [token.text for token in prompt.tokens][:2] == ["<s>", "picture 1: 1, 1"]
    notice = (
        "the chat template of LlavaForConditionalGeneration writes no placeholders for pictures: they"
        " stand before the text, without the template."
    )
    assert prompt.notices == [notice]
    answer = attnscope.answer(
        loaded("llava")[0], "what?", image=picture(40, 30), processor=processor, generate=1
    )
    assert notice in answer.notices
    assert read("llava", [picture(40, 30)]).notices == []  # whose processor has no template
    assert read("qwen2_vl", [picture(40, 30)]).notices == []


def test_a_rendered_chat_does_not_get_a_second_token_of_its_beginning():
    model, processor = loaded("llava")
    prompt = encode(processor, model.config, "<s>hey <image> there", [picture(40, 30)])
    assert [token.text for token in prompt.tokens].count("<s>") == 1


def test_the_length_of_a_prompt_is_limited():
    model, processor = loaded("llava")
    with pytest.raises(OptionError, match=r"tokens long, but .* takes at most 2048"):
        encode(processor, model.config, "<image>" + "what is " * 2000, [picture(40, 30)])


@pytest.mark.parametrize("name", swept(["paligemma", "idefics3"], ["idefics3"]))
def test_a_folder_has_its_processor(name):
    checkpoint = find_checkpoint(family(name))
    config = load_config(checkpoint)
    prompt = read_pictures_and_text(checkpoint, config, [picture(40, 30)], "what is?")
    expected = read(name, [picture(40, 30)])
    assert prompt.inputs["input_ids"].equal(expected.inputs["input_ids"])
    assert prompt.inputs["pixel_values"].equal(expected.inputs["pixel_values"])


@pytest.mark.skipif(HAS_VIDEOS, reason="torchvision is installed")
def test_without_torchvision_a_processor_that_needs_it_says_so():
    checkpoint = find_checkpoint(family("smolvlm"))
    with pytest.raises(ModelError, match="needs torchvision, not installed") as error:
        read_pictures_and_text(checkpoint, load_config(checkpoint), [picture(40, 30)], "what is?")
    assert error.value.hint == "pip install torchvision"


@pytest.mark.sweep
def test_a_torchvision_that_was_built_for_another_torch_is_named(tmp_path):
    broken = tmp_path / "torchvision"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise RuntimeError('operator nms does not exist')")
    picture(40, 30).save(tmp_path / "picture.png")
    options = ["--image", str(tmp_path / "picture.png"), "--text", "what is?"]
    result = subprocess.run(
        [sys.executable, "-m", "attnscope", "model", str(family("qwen2_vl")), *options],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 2
    assert "needs torchvision, which cannot be imported beside torch 2." in result.stderr
    assert "operator nms does not exist" in result.stderr


def vip_llava() -> tuple[Any, Any]:
    """A model whose family is not known here, but whose tokens form one grid."""
    torch.manual_seed(0)
    of_llava, processor = llava()
    config = transformers.VipLlavaConfig(
        vision_config=of_llava.vision_config,
        text_config=of_llava.text_config,
        image_token_index=of_llava.image_token_index,
        vision_feature_layers=[-1, -2],
    )
    return transformers.VipLlavaForConditionalGeneration(config).eval(), processor


def test_an_unknown_family_is_refused_and_takes_a_grid():
    model, processor = vip_llava()
    checkpoint = find_model(model, processor=processor)
    images = [picture(50, 37), picture(20, 64)]
    with pytest.raises(ModelError, match=r"\(vipllava\) covers is not known") as error:
        read_pictures_and_text(checkpoint, model.config, images, "what?")
    assert error.value.hint is not None
    assert error.value.hint.startswith('grid="ROWSxCOLUMNS"')
    prompt = read_pictures_and_text(checkpoint, model.config, images, "what?", grid="4x4")
    known = read("llava", images)
    assert [each.patches for each in prompt.pictures] == [each.patches for each in known.pictures]
    with pytest.raises(ModelError, match="the prompt has 32 image tokens, but 40 by their geometry"):
        read_pictures_and_text(checkpoint, model.config, images, "what?", grid="4x5")
    with pytest.raises(OptionError, match="must be rows and columns"):
        read_pictures_and_text(checkpoint, model.config, images, "what?", grid="16")


@pytest.mark.parametrize("grid", [None, "4x4"])
@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("Mllama", "reads pictures by cross-attention, not as tokens of the prompt"),
        ("Idefics2", "a perceiver mixes all of the picture into each"),
        ("Blip2", "a Q-Former mixes all of the picture into each"),
        ("InstructBlip", "a Q-Former mixes all of the picture into each"),
        ("Kosmos2", "a resampler mixes all of the picture into each"),
    ],
)
def test_tokens_that_stand_for_no_part_of_a_picture_are_refused_with_a_grid_too(kind, why, grid):
    config = getattr(transformers, f"{kind}Config")()
    with pytest.raises(ModelError, match=f"no image token of tiny .*stands for a part.*{why}"):
        check_family("tiny", config, grid, [])


def test_a_model_inside_another_that_reads_pictures_is_named():
    says = r"\(qwen2_5_omni\) reads pictures in a model inside it \(thinker_config\)"
    with pytest.raises(ModelError, match=says):
        check_family("tiny", transformers.Qwen2_5OmniConfig(), None, [])


def test_a_grid_for_a_known_family_is_refused():
    with pytest.raises(OptionError, match="grid is not needed"):
        read("llava", [picture(40, 30)], grid="4x4")


class Mirrored(type(loaded("llava")[1].image_processor)):  # type: ignore[misc]
    """An image processor that does something which its settings do not say."""

    def __call__(self, images: Any, **settings: Any) -> Any:
        return super().__call__(
            [Image.fromarray(np.array(each)[:, ::-1]) for each in images], **settings
        )


class Shifted(type(loaded("llava")[1].image_processor)):  # type: ignore[misc]
    def __call__(self, images: Any, **settings: Any) -> Any:
        return super().__call__([each.crop((4, 0, *each.size)) for each in images], **settings)


@pytest.mark.parametrize("kind", [Mirrored, Shifted])
def test_an_image_processor_is_not_believed_but_measured(kind):
    processor = copy(loaded("llava")[1])
    processor.image_processor = kind(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    with pytest.raises(ModelError, match="does something else than its settings say"):
        read_with("llava", processor, [picture(64, 50)])


def test_a_picture_that_is_padded_to_a_square_keeps_its_place():
    processor = copy(loaded("llava")[1])
    processor.image_processor = transformers.LlavaImageProcessor(
        do_pad=True, size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}
    )
    image = picture(64, 24)
    before = read_with("llava", processor, [image])
    [found] = before.pictures
    assert len(found.patches) == 8
    assert found.patches[0].box == (0, 0, 16, 12)
    assert found.lost == 0
    for patch in found.patches:
        left, top, right, bottom = map(round, patch.box)
        inside = (left + 5, top + 4, right - 5, bottom - 4)
        far = moves("llava", before, read_with("llava", processor, [changed(image, inside)]))
        assert far[patch.position] == 1


@pytest.mark.parametrize(
    ("size", "n_crop"), swept([((150, 40), 4), ((41, 97), 2), ((40, 40), 0)], [((40, 40), 0)])
)
def test_gemma_pans_and_scans_a_long_picture(size, n_crop):
    processor = copy(loaded("gemma3")[1])
    processor.images_kwargs = {
        **type(processor).images_kwargs,
        "do_pan_and_scan": True,
        "pan_and_scan_min_crop_size": 16,
    }
    image, other = picture(*size), picture(40, 40, seed=1)
    before = read_with("gemma3", processor, [image, other])
    found, _ = before.pictures
    assert len(found.patches) == 4 * (1 + n_crop)
    assert {patch.part for patch in found.patches} == {
        "whole",
        *(f"crop {n + 1}" for n in range(n_crop)),
    }
    assert len(of_pictures(before)[0].positions) > 4 * (1 + n_crop)
    for patch in found.patches:
        left, top, right, bottom = patch.box
        middle = (round((left + right) / 2), round((top + bottom) / 2))
        box = (middle[0] - 1, middle[1] - 1, middle[0] + 1, middle[1] + 1)
        far = moves("gemma3", before, read_with("gemma3", processor, [changed(image, box), other]))
        moved = {position for position, share in enumerate(far) if share > 0.05}
        assert patch.position in moved
        reach = {each.position for each in found.patches if overlaps(each, box, 5)}
        assert moved <= reach


def test_all_of_clip_has_a_token_that_is_no_patch():
    model, processor = loaded("llava")
    config = copy(model.config)
    config.vision_feature_select_strategy = "full"
    whole = copy(processor)
    whole.vision_feature_select_strategy = "full"
    prompt = encode(whole, config, "<image>what is?", [picture(40, 30)])
    assert prompt.tokens[1].text == "picture 1: [CLS]"
    assert prompt.pictures[0].patches[0].position == 2
    assert len(prompt.pictures[0].patches) == 16


@pytest.mark.parametrize(
    ("name", "setting", "wrong", "says"),
    [
        ("llava", "patch_size", 16, "has 4 image tokens, but 16 by their geometry"),
        ("mistral3", "patch_size", 16, "do not divide into patches of 16|image tokens"),
        ("gemma3", "full_image_sequence", "<image_soft_token>" * 9, "has 9 image tokens, but 4"),
        ("idefics3", "image_seq_len", 5, "has 25 image tokens, but 20 by their geometry"),
        ("paligemma", "image_seq_length", 9, "has 9 image tokens, but 16 by their geometry"),
    ],
)
def test_a_number_of_image_tokens_that_geometry_does_not_predict_is_refused(name, setting, wrong, says):
    model, processor = loaded(name)
    other = copy(processor)
    setattr(other, setting, wrong)
    with pytest.raises(ModelError, match=says):
        encode(other, model.config, f"{other.image_token}what is?", [picture(50, 45)])


def test_a_processor_of_qwen_that_merges_other_patches_than_the_model_is_refused():
    model, processor = loaded("qwen2_vl")
    other = copy(processor)
    other.image_processor = copy(processor.image_processor)
    other.image_processor.merge_size = 4
    with pytest.raises(ModelError, match="merged by 4 in its processor, are merged by 2 in the model"):
        encode(other, model.config, "<|image_pad|>what is?", [picture(64, 64)])


@pytest.mark.parametrize(
    ("name", "video", "says"),
    [
        ("llava", [picture(40, 30)], "reads no videos that attnscope knows"),
        ("qwen2_vl", [picture(40, 30), picture(50, 30)], "frames of several sizes: 40×30, 50×30"),
        ("qwen2_vl", picture(40, 30), "a list of frames, but this is a Image"),
    ],
)
def test_what_is_no_video_that_the_family_reads_is_refused(name, video, says):
    with pytest.raises(AttnscopeError, match=says):
        read(name, [], [video])


@pytest.mark.parametrize(
    ("fps", "numbers"),
    [
        (None, [1, 2, 3, 4, 5, 6, 7, 8, 9]),
        (4, [1, 2, 3, 4, 5, 6, 7, 8, 9]),
        (3, [1, 3, 4, 5, 7, 8, 9]),  # at 0, 2/4, 3/4, 4/4, 6/4, 7/4 and 8/4 of a second
        (2, [1, 3, 5, 7, 9]),
        (0.5, [1, 9]),
    ],
)
def test_the_first_frame_of_each_part_of_a_second_is_read(tmp_path, fps, numbers):
    frames = [picture(16, 12, seed=i) for i in range(9)]
    path = tmp_path / "frames.png"
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=250)
    read = open_video(path, fps)
    assert read.numbers == numbers
    assert [each.tobytes() for each in read.frames] == [frames[i - 1].tobytes() for i in numbers]
    assert read.fps == min(fps or 4, 4)


def test_frames_of_a_second_need_a_video_that_knows_its_seconds(tmp_path):
    path = tmp_path / "frames.png"
    frames = [picture(16, 12, seed=i) for i in range(3)]
    frames[0].save(path, save_all=True, append_images=frames[1:])
    for video in (frames, path):
        with pytest.raises(OptionError, match="does not say how many a second has"):
            open_video(video, 2)


def test_a_video_without_a_decoder_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    (tmp_path / "film.mp4").write_bytes(b"a film")
    with pytest.raises(
        FileError, match="needs PyAV, which decodes videos and is not installed"
    ) as error:
        read("qwen2_vl", [], [tmp_path / "film.mp4"])
    assert error.value.hint == "pip install 'attnscope[video]'; or a .gif file"


TILE = 38
"""Pixels, of which patches of 8 fill 32; in SmolVLM, patches of 14 fill 378 of 384."""


def test_pixels_behind_the_last_patch_of_a_tile_move_no_token_of_the_tile():
    model, processor = loaded("idefics3")
    other = copy(processor)
    other.image_processor = type(processor.image_processor)(
        size={"longest_edge": 2 * TILE}, max_image_size={"longest_edge": TILE}
    )
    image = picture(2 * TILE, TILE)

    def read(picture):
        return encode(other, model.config, "<image>what is?", [picture])

    before = read(image)
    [found] = before.pictures
    tiles = [patch for patch in found.patches if patch.part.startswith("tile")]
    assert {patch.box[2] for patch in tiles} == {16, 32, TILE + 16, TILE + 32}
    assert max(patch.box[3] for patch in tiles) == 32
    whole = {patch.position for patch in found.patches if patch.part == "whole"}
    for left, seen in ((31, 2), (32, 0)):  # a column of pixels of the upper left tile, 0 to 31 high
        far = moves("idefics3", before, read(changed(image, (left, 0, left + 1, 32))))
        moved = {position for position, share in enumerate(far) if share > 1e-4} - whole
        claims = {each.position for each in tiles if each.box[0] <= left < each.box[2]}
        assert moved == claims
        assert len(claims) == seen
