"""The settings that checkpoints are published with give the numbers of tokens that papers state.

No model is built: a configuration and a processor suffice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import transformers

from attnscope.model.answers.pictures.read import encode
from tests.model.answers.families import TEXT, id_of, picture, processor_with, tokenizer
from tests.sweeps import swept

LONG = {**TEXT, "max_position_embeddings": 2**17}


@dataclass(frozen=True)
class Published:
    """A checkpoint's configuration and processor, without its weights."""

    config: Any
    processor: Any

    def tokens(self, width: int, height: int) -> list[Any]:
        """The patches of a picture of a size, after their number was compared with the prompt's."""
        marks = (
            ("<|vision_start|>", "<|vision_end|>") if self.config.model_type[:4] == "qwen" else ("", "")
        )
        text = f"{marks[0]}{self.processor.image_token}{marks[1]}what is?"
        [found] = encode(self.processor, self.config, text, [picture(width, height)]).pictures
        return list(found.patches)


def llava_1_5() -> Published:
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(image_size=336, patch_size=14),
        text_config=transformers.LlamaConfig(**LONG),
        image_token_index=id_of("<image>"),
    )
    images = transformers.CLIPImageProcessor(
        size={"shortest_edge": 336}, crop_size={"height": 336, "width": 336}
    )
    return Published(
        config,
        processor_with(
            "LlavaProcessor",
            images,
            tokenizer(image_token="<image>"),
            patch_size=14,
            vision_feature_select_strategy="default",
            num_additional_image_tokens=1,
        ),
    )


def llava_1_6() -> Published:
    pinpoints = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
    config = transformers.LlavaNextConfig(
        vision_config=transformers.CLIPVisionConfig(image_size=336, patch_size=14),
        text_config=transformers.LlamaConfig(**LONG),
        image_token_index=id_of("<image>"),
        image_grid_pinpoints=pinpoints,
    )
    images = transformers.LlavaNextImageProcessor(
        size={"shortest_edge": 336},
        crop_size={"height": 336, "width": 336},
        image_grid_pinpoints=pinpoints,
    )
    return Published(
        config,
        processor_with(
            "LlavaNextProcessor",
            images,
            tokenizer(image_token="<image>"),
            patch_size=14,
            vision_feature_select_strategy="default",
            num_additional_image_tokens=1,
        ),
    )


def onevision() -> Published:
    config = transformers.LlavaOnevisionConfig(
        vision_config=transformers.SiglipVisionConfig(image_size=384, patch_size=14),
        text_config=transformers.Qwen2Config(**LONG),
        image_token_index=id_of("<image>"),
        video_token_index=id_of("<video>"),
    )
    images = transformers.LlavaOnevisionImageProcessor()
    return Published(
        config,
        processor_with(
            "LlavaOnevisionProcessor",
            images,
            tokenizer(image_token="<image>", video_token="<video>"),
            num_image_tokens=729,
            vision_feature_select_strategy="full",
        ),
    )


def qwen(kind: str, patch: int) -> Published:
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
    config = getattr(transformers, f"{kind}Config")(
        text_config={**LONG, "rope_parameters": rope, "head_dim": 16},
        vision_config={"patch_size": patch, "spatial_merge_size": 2, "temporal_patch_size": 2},
        image_token_id=id_of("<|image_pad|>"),
        video_token_id=id_of("<|video_pad|>"),
    )
    images = transformers.Qwen2VLImageProcessor(patch_size=patch, merge_size=2)
    text = tokenizer(image_token="<|image_pad|>", video_token="<|video_pad|>")
    return Published(config, processor_with(f"{kind}Processor", images, text))


def gemma_3() -> Published:
    config = transformers.Gemma3Config(
        text_config=transformers.Gemma3TextConfig(**LONG),
        vision_config=transformers.SiglipVisionConfig(image_size=896, patch_size=14),
        mm_tokens_per_image=256,
        image_token_index=id_of("<image_soft_token>"),
    )
    images = transformers.Gemma3ImageProcessor(size={"height": 896, "width": 896})
    names = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"}
    text = tokenizer(image_token="<image_soft_token>", **names)
    return Published(config, processor_with("Gemma3Processor", images, text, image_seq_length=256))


def paligemma(size: int, n_token: int) -> Published:
    config = transformers.PaliGemmaConfig(
        text_config=transformers.GemmaConfig(**LONG),
        vision_config=transformers.SiglipVisionConfig(image_size=size, patch_size=14),
        image_token_index=id_of("<image>"),
    )
    images = transformers.SiglipImageProcessor(size={"height": size, "width": size})
    vars(images)["image_seq_length"] = n_token
    return Published(
        config, processor_with("PaliGemmaProcessor", images, tokenizer(image_token="<image>"))
    )


def idefics(kind: str, tile: int, patch: int, merged: int, longest: int, n_token: int) -> Published:
    config = getattr(transformers, f"{kind}Config")(
        text_config=transformers.LlamaConfig(**LONG),
        vision_config={"image_size": tile, "patch_size": patch},
        scale_factor=merged,
        image_token_id=id_of("<image>"),
    )
    images = getattr(transformers, f"{kind}ImageProcessor")(
        size={"longest_edge": longest}, max_image_size={"longest_edge": tile}
    )
    names = {"image_token": "<image>", "fake_image_token": "<fake_token_around_image>"}
    text = tokenizer(**names, global_image_token="<global-img>")
    return Published(config, processor_with(f"{kind}Processor", images, text, image_seq_len=n_token))


def internvl_3() -> Published:
    config = transformers.InternVLConfig(
        vision_config=transformers.InternVLVisionConfig(image_size=[448, 448], patch_size=[14, 14]),
        text_config=transformers.Qwen2Config(**LONG),
        image_token_id=id_of("<IMG_CONTEXT>"),
    )
    images = transformers.GotOcr2ImageProcessor(
        size={"height": 448, "width": 448}, crop_to_patches=True, min_patches=1, max_patches=12
    )
    names = {"start_image_token": "<img>", "end_image_token": "</img>", "video_token": "<video>"}
    text = tokenizer(context_image_token="<IMG_CONTEXT>", **names)
    return Published(config, processor_with("InternVLProcessor", images, text))


def pixtral(longest: int, patch: int, merged: int) -> Published:
    vision = transformers.PixtralVisionConfig(image_size=longest, patch_size=patch)
    text = transformers.MistralConfig(**LONG)
    if merged == 1:
        config: Any = transformers.LlavaConfig(
            vision_config=vision, text_config=text, image_token_index=id_of("[IMG]")
        )
    else:
        config = transformers.Mistral3Config(
            vision_config=vision,
            text_config=text,
            image_token_index=id_of("[IMG]"),
            spatial_merge_size=merged,
        )
    images = transformers.PixtralImageProcessor(size={"longest_edge": longest}, patch_size=patch)
    words = tokenizer(image_token="[IMG]")
    return Published(
        config,
        processor_with("PixtralProcessor", images, words, patch_size=patch, spatial_merge_size=merged),
    )


CASES = {
    # Liu et al. 2024, "Improved Baselines with Visual Instruction Tuning": 336 pixels, 576 tokens
    "llava 1.5": (llava_1_5, (640, 480), 576, (80, 0, 100, 20)),
    # 5 × 576 = 2880 without ends of rows, for 672 × 672
    "llava 1.6": (llava_1_6, (672, 672), 576 + 48 * 48, (0, 0, 14, 14)),
    "llava 1.6, wide": (llava_1_6, (640, 480), 576 + 36 * 48, None),
    # 729 tokens for the whole, and at most those of 9 tiles, `anyres_max_9`
    "onevision": (onevision, (2304, 2304), 729 * 10, (0, 0, 28, 28)),
    "onevision, small": (onevision, (384, 384), 2 * 729, (0, 0, 14, 14)),
    # Wang et al. 2024, "Qwen2-VL": 224 × 224 pixels are 66 tokens with both marks
    "qwen2-vl": (lambda: qwen("Qwen2VL", 14), (224, 224), 64, (0, 0, 28, 28)),
    "qwen2.5-vl": (lambda: qwen("Qwen2_5_VL", 14), (640, 480), 23 * 17, None),
    "qwen3-vl": (lambda: qwen("Qwen3VL", 16), (1024, 768), 32 * 24, (0, 0, 32, 32)),
    # Gemma Team 2025, "Gemma 3 Technical Report": 896 × 896 pixels, 256 tokens
    "gemma 3": (gemma_3, (640, 480), 256, (0, 0, 40, 30)),
    # Beyer et al. 2024, "PaliGemma": patches of 14 × 14 of 224, 448 and 896 pixels
    "paligemma 224": (lambda: paligemma(224, 256), (640, 480), 256, (0, 0, 40, 30)),
    "paligemma 448": (lambda: paligemma(448, 1024), (640, 480), 1024, (0, 0, 20, 15)),
    "paligemma 896": (lambda: paligemma(896, 4096), (640, 480), 4096, (0, 0, 10, 7.5)),
    # Idefics3 in transformers: tiles of 364 × 364 pixels, `image_seq_len` 169
    "idefics3": (
        lambda: idefics("Idefics3", 364, 14, 2, 4 * 364, 169),
        (1456, 1092),
        (4 * 3 + 1) * 169,
        (0, 0, 28, 28),
    ),
    # Marafioti et al. 2025, "SmolVLM": tiles of 384 pixels, 9 patches of 14 × 14 a token; SmolVLM 256M:
    # tiles of 512 pixels, 16 patches of 16 × 16
    "smolvlm 2b": (
        lambda: idefics("SmolVLM", 384, 14, 3, 4 * 384, 81),
        (1536, 1152),
        (4 * 3 + 1) * 81,
        (0, 0, 42, 42),
    ),
    "smolvlm 256m": (
        lambda: idefics("SmolVLM", 512, 16, 4, 4 * 512, 64),
        (640, 480),
        (4 * 3 + 1) * 64,
        (0, 0, 20, 20),
    ),
    # Chen et al. 2024, "How Far Are We to GPT-4V?": tiles of 448 × 448 pixels, 256 tokens each
    "internvl": (internvl_3, (896, 448), 3 * 256, (0, 0, 28, 28)),
    # Agrawal et al. 2024, "Pixtral 12B": patches of 16 × 16 pixels, up to 1024 × 1024
    "pixtral 12b": (lambda: pixtral(1024, 16, 1), (1024, 1024), 64 * 64, (0, 0, 16, 16)),
    "mistral small 3.1": (lambda: pixtral(1540, 14, 2), (1540, 1540), 55 * 55, (0, 0, 28, 28)),
}


@pytest.mark.parametrize("name", swept(CASES, ["llava 1.5", "qwen2-vl", "smolvlm 2b"]))
def test_published_settings_give_the_published_number_of_tokens(name):
    build, size, n_token, first = CASES[name]
    patches = build().tokens(*size)
    assert len(patches) == n_token
    if first is not None:
        finest = min(patches, key=lambda patch: (patch.box[2] - patch.box[0], patch.position))
        assert finest.box == pytest.approx(first)
