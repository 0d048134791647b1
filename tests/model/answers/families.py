"""A tiny model, with a processor, of each family that reads pictures: built once, from fixed seeds.

torchvision, which processors of videos need, may be missing, as in the default run. Then processors have
pillow's code for pictures and no part for videos, and `family` leaves out what only transformers' own
loader would need. CI runs the tests of pictures with torchvision, too, and those with the mark `videos`.
"""

from __future__ import annotations

import atexit
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock
from zlib import crc32

import numpy as np
import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast, ProcessorMixin
from transformers.utils import logging

logging.set_verbosity_error()
logging.disable_progress_bar()

HAS_VIDEOS = find_spec("torchvision") is not None and find_spec("num2words") is not None
"""Whether the packages are installed that processors of videos need."""

SPECIAL = [
    *("<pad>", "<s>", "</s>", "<unk>", "<image>", "<video>", "<|image_pad|>", "<|video_pad|>"),
    *("<begin_of_image>", "<audio>", "<|image>", "<|image|>", "<image|>"),
    *("<|vision_start|>", "<|vision_end|>", "<start_of_image>", "<end_of_image>", "<image_soft_token>"),
    *("<fake_token_around_image>", "<global-img>", "<end_of_utterance>", "<img>", "</img>"),
    *("<IMG_CONTEXT>", "[IMG]", "[IMG_BREAK]", "[IMG_END]", "<|im_start|>", "<|im_end|>"),
    *("<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>"),
    *("<|START_OF_IMG|>", "<|END_OF_IMG|>", "<|IMG_PATCH|>", "TILE_GLOBAL"),
    *(f"TILE_{number}" for number in range(1, 5)),
    *(f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)),
]

TEXT: dict[str, Any] = {
    "vocab_size": 400,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
VISION: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "image_size": 32,
    "patch_size": 8,
}
OF_CLIP = {"vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
"""Settings of processors for features of CLIP, without its first one."""

CHAT = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}IMAGE{% elif part.type == 'video' %}VIDEO"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""A chat template with pictures, as Qwen2-VL's is written."""


def tokenizer(**tokens: str) -> PreTrainedTokenizerFast:
    """A tokenizer of bytes and a few words, with names for some of its special tokens."""
    made = Tokenizer(models.BPE(unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    made.train_from_iterator(["what is in the picture ?"] * 4, trainer)
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        extra_special_tokens=tokens,
    )


def id_of(token: str) -> int:
    return SPECIAL.index(token)


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """A picture of noise, so that no two of its parts are alike."""
    noise = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(noise)


Made = tuple[Any, Any]
FAMILIES: dict[str, Callable[[], Made]] = {}
"""For each family, a function that builds its configuration and processor, small or as it is published."""


def a_family(build: Callable[..., Made]) -> Callable[..., Made]:
    FAMILIES[build.__name__] = build
    return build


def vision(side: int, patch: int, **more: Any) -> dict[str, Any]:
    """The sizes of a vision model for pictures of so many pixels."""
    return {**VISION, "image_size": side, "patch_size": patch, **more}


def square(side: int) -> dict[str, int]:
    return {"height": side, "width": side}


def processor_with(kind: str, images: Any, text: Any, **settings: Any) -> Any:
    """A processor of a class; where torchvision is missing, one that reads no videos."""
    if kind == "PixtralProcessor" and not HAS_VIDEOS:
        made = _pixtral_without_torchvision()
    else:
        made = getattr(transformers, kind)
    videos = {"Qwen2_5_VL": "Qwen2VL"}
    videos |= {name: name for name in "Qwen2VL Qwen3VL Glm4v Glm46V Gemma4".split()}
    videos |= {name: name for name in "LlavaOnevision SmolVLM InternVL".split()}
    of_videos = videos.get(kind.removesuffix("Processor"))
    if of_videos is None:
        return made(image_processor=images, tokenizer=text, **settings)
    if HAS_VIDEOS:
        of_videos = getattr(transformers, f"{of_videos}VideoProcessor")
        sizes = {"patch_size": 8, "merge_size": 2, "temporal_patch_size": 2}
        if kind.startswith(("Qwen", "Glm")):
            frames = of_videos(**sizes, size={"shortest_edge": 256, "longest_edge": 4096})
        elif kind == "Gemma4Processor":
            frames = of_videos(patch_size=4, max_soft_tokens=70, pooling_kernel_size=2)
        elif kind.startswith("SmolVLM"):
            frames = of_videos(size={"longest_edge": 64}, max_image_size={"longest_edge": 32})
        else:
            frames = of_videos(size={"height": 32, "width": 32})
        return made(image_processor=images, tokenizer=text, video_processor=frames, **settings)
    from transformers.models.smolvlm import processing_smolvlm

    unchecked = mock.patch.object(ProcessorMixin, "check_argument_for_proper_class")
    with unchecked, mock.patch.object(processing_smolvlm, "num2words", str):
        return made(
            image_processor=images, tokenizer=text, video_processor=SimpleNamespace(), **settings
        )


def _pixtral_without_torchvision() -> Any:
    """The class of Pixtral's processor, whose module imports torchvision's code for a function."""
    name = "transformers.models.pixtral.image_processing_pixtral"
    with mock.patch.dict(
        sys.modules, {name: import_module(name.replace("processing", "processing_pil"))}
    ):
        return import_module("transformers.models.pixtral.processing_pixtral").PixtralProcessor


@a_family
def llava(side: int = 32, patch: int = 8) -> Made:
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**vision(side, patch)),
        text_config=transformers.LlamaConfig(**TEXT),
        image_token_index=id_of("<image>"),
    )
    images = transformers.CLIPImageProcessor(size={"shortest_edge": side}, crop_size=square(side))
    words = tokenizer(image_token="<image>")
    return config, processor_with("LlavaProcessor", images, words, patch_size=patch, **OF_CLIP)


@a_family
def deepseek_vl() -> Made:
    config = transformers.DeepseekVLConfig(
        vision_config=transformers.SiglipVisionConfig(**VISION),
        text_config=transformers.LlamaConfig(**TEXT),
        image_token_id=id_of("<image>"),
        tie_word_embeddings=False,
    )
    images = transformers.DeepseekVLImageProcessor(size=square(32), min_size=1)
    words = tokenizer(image_token="<image>")
    return config, processor_with("DeepseekVLProcessor", images, words, num_image_tokens=16)


@a_family
def janus() -> Made:
    of_vision = {**VISION, "num_image_tokens": 16, "projection_dim": 64, "mlp_ratio": 2.0}
    codes = {"embed_dim": 8, "num_embeddings": 16, "base_channels": 32, "channel_multiplier": [1, 1]}
    config = transformers.JanusConfig(
        vision_config=transformers.JanusVisionConfig(**of_vision),
        vq_config=transformers.JanusVQVAEConfig(**codes, latent_channels=8, image_token_embed_dim=64),
        text_config=transformers.LlamaConfig(**TEXT),
        image_token_id=id_of("<image>"),
        tie_word_embeddings=False,
    )
    images = transformers.JanusImageProcessor(size=square(32), min_size=1)
    names = {"boi_token": "<begin_of_image>", "eoi_token": "<end_of_image>"}
    words = tokenizer(image_token="<image>", **names)
    return config, processor_with("JanusProcessor", images, words, num_image_tokens=16)


def pinpoints(side: int) -> list[list[int]]:
    """Arrangements of tiles."""
    return [[side * rows, side * columns] for rows, columns in [(1, 2), (2, 1), (2, 2), (1, 3), (3, 1)]]


@a_family
def llava_next(side: int = 32, patch: int = 8) -> Made:
    tiles = {"image_grid_pinpoints": pinpoints(side)}
    config = transformers.LlavaNextConfig(
        vision_config=transformers.CLIPVisionConfig(**vision(side, patch)),
        text_config=transformers.LlamaConfig(**TEXT),
        image_token_index=id_of("<image>"),
        **tiles,
    )
    images = transformers.LlavaNextImageProcessor(
        size={"shortest_edge": side}, crop_size=square(side), **tiles
    )
    words = tokenizer(image_token="<image>")
    return config, processor_with("LlavaNextProcessor", images, words, patch_size=patch, **OF_CLIP)


@a_family
def llava_onevision(
    side: int = 32, patch: int = 8, limit: str | None = "anyres_max_2", n_token: int = 16
) -> Made:
    """With a limit of two tiles, so that three or four are interpolated; without one, as published."""
    tiles = {} if limit is None else {"image_grid_pinpoints": [[side, side], *pinpoints(side)]}
    at_most = {} if limit is None else {"vision_aspect_ratio": limit}
    config = transformers.LlavaOnevisionConfig(
        vision_config=transformers.SiglipVisionConfig(**vision(side, patch)),
        text_config=transformers.Qwen2Config(**TEXT),
        image_token_index=id_of("<image>"),
        video_token_index=id_of("<video>"),
        **tiles,
        **at_most,
    )
    images = transformers.LlavaOnevisionImageProcessor(size=square(side), **tiles)
    return config, processor_with(
        "LlavaOnevisionProcessor",
        images,
        tokenizer(image_token="<image>", video_token="<video>"),
        num_image_tokens=n_token,
        vision_feature_select_strategy="full",
        chat_template=CHAT.replace("IMAGE", "<image>\n").replace("VIDEO", "<video>\n"),
        **at_most,
    )


ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
OF_QWEN = {"image_token": "<|image_pad|>", "video_token": "<|video_pad|>"}
QWEN_IDS = {f"{name}_id": id_of(token) for name, token in OF_QWEN.items()}
QWEN_SIZE = {"shortest_edge": 256, "longest_edge": 4096}
QWEN3_VISION = {
    "out_hidden_size": 64,
    "intermediate_size": 128,
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [0],
}


def qwen(
    kind: str, text: dict[str, Any] | None = None, *, patch: int = 8, size: Any = QWEN_SIZE, **more: Any
) -> Made:
    """A model of Qwen: `Qwen2VL`, `Qwen2_5_VL`, `Qwen3VL`, `Qwen3_5` and those with experts."""
    merged = {"patch_size": patch, "spatial_merge_size": 2, "temporal_patch_size": 2}
    config = getattr(transformers, f"{kind}Config")(
        text_config={**TEXT, "rope_parameters": {**ROPE}, "head_dim": 16, **(text or {})},
        vision_config={"depth": 2, "hidden_size": 64, "num_heads": 4, **merged, **more},
        vision_start_token_id=id_of("<|vision_start|>"),
        vision_end_token_id=id_of("<|vision_end|>"),
        **QWEN_IDS,
    )
    images = transformers.Qwen2VLImageProcessor(
        patch_size=patch, merge_size=2, temporal_patch_size=2, size=size
    )
    chat = CHAT.replace("IMAGE", "<|vision_start|><|image_pad|><|vision_end|>")
    return config, processor_with(
        f"{kind if kind.startswith('Qwen2') else 'Qwen3VL'}Processor",
        images,
        tokenizer(**OF_QWEN),
        chat_template=chat.replace("VIDEO", "<|vision_start|><|video_pad|><|vision_end|>"),
    )


LINEAR = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


def glm(kind: str, **text: Any) -> Made:
    """A model of `Glm4v`, `Glm4vMoe` or `Glm46V`."""
    merged = {"patch_size": 8, "spatial_merge_size": 2, "temporal_patch_size": 2}
    of_vision = {"depth": 2, "hidden_size": 64, "num_heads": 4, "out_hidden_size": 64}
    config = getattr(transformers, f"{kind}Config")(
        text_config={**TEXT, "rope_parameters": {**ROPE}, "head_dim": 16, **text},
        vision_config={**of_vision, **merged, "intermediate_size": 128, "image_size": 32},
        **QWEN_IDS,
    )
    of_processor = "Glm46V" if kind == "Glm46V" else "Glm4v"
    size = {"shortest_edge": 256, "longest_edge": 8192}
    images = getattr(transformers, f"{of_processor}ImageProcessor")(
        patch_size=8, merge_size=2, temporal_patch_size=2, size=size
    )
    chat = CHAT.replace("IMAGE", "<|begin_of_image|><|image_pad|><|end_of_image|>")
    words = tokenizer(**OF_QWEN)
    return config, processor_with(f"{of_processor}Processor", images, words, chat_template=chat)


GLM_EXPERTS = {"n_routed_experts": 4, "moe_intermediate_size": 32, "num_experts_per_tok": 2}
WINDOWS = {
    "out_hidden_size": 64,
    "intermediate_size": 128,
    "window_size": 32,
    "fullatt_block_indexes": [1],
}
FAMILIES |= {
    "qwen2_vl": lambda: qwen("Qwen2VL", embed_dim=64, mlp_ratio=2),
    "qwen2_5_vl": lambda: qwen("Qwen2_5_VL", **WINDOWS),
    "qwen3_vl": lambda: qwen("Qwen3VL", **QWEN3_VISION),
    "qwen3_vl_moe": lambda: qwen(
        "Qwen3VLMoe", {"num_experts": 4, "moe_intermediate_size": 32}, **QWEN3_VISION
    ),
    "qwen3_5": lambda: qwen("Qwen3_5", LINEAR, **QWEN3_VISION),
    "qwen3_5_moe": lambda: qwen(
        "Qwen3_5Moe", {**LINEAR, **EXPERTS, "shared_expert_intermediate_size": 32}, **QWEN3_VISION
    ),
    "glm4v": lambda: glm("Glm4v"),
    "glm4v_moe": lambda: glm("Glm4vMoe", head_dim=32, **GLM_EXPERTS),
    "glm46v": lambda: glm("Glm46V"),
}


@a_family
def aya_vision() -> Made:
    config = transformers.AyaVisionConfig(
        vision_config=transformers.SiglipVisionConfig(**VISION),
        text_config=transformers.Cohere2Config(**{**TEXT, "sliding_window": 8}),
        image_token_index=id_of("<|IMG_PATCH|>"),
        downsample_factor=2,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
    )
    images = transformers.GotOcr2ImageProcessor(size=square(32), min_patches=1, max_patches=4)
    sizes = {"patch_size": 8, "downsample_factor": 2, "img_size": 32}
    chat = CHAT.replace("IMAGE", "<image>")
    return config, processor_with("AyaVisionProcessor", images, tokenizer(), **sizes, chat_template=chat)


SLIDING = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}


@a_family
def gemma3(side: int = 32, patch: int = 8, n_token: int = 4) -> Made:
    config = transformers.Gemma3Config(
        text_config=transformers.Gemma3TextConfig(**{**TEXT, "head_dim": 16, **SLIDING}),
        vision_config=transformers.SiglipVisionConfig(**vision(side, patch)),
        mm_tokens_per_image=n_token,
        boi_token_index=id_of("<start_of_image>"),
        eoi_token_index=id_of("<end_of_image>"),
        image_token_index=id_of("<image_soft_token>"),
    )
    images = transformers.Gemma3ImageProcessor(size=square(side))
    names = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"}
    words = tokenizer(image_token="<image_soft_token>", **names)
    chat = CHAT.replace("IMAGE", "<start_of_image>")
    settings = {"image_seq_length": n_token, "chat_template": chat}
    return config, processor_with("Gemma3Processor", images, words, **settings)


@a_family
def gemma4() -> Made:
    config = transformers.Gemma4Config(
        text_config=transformers.Gemma4TextConfig(
            **{**TEXT, "head_dim": 16, "global_head_dim": 32, **SLIDING},
            hidden_size_per_layer_input=8,
            vocab_size_per_layer_input=TEXT["vocab_size"],
            num_kv_shared_layers=0,
        ),
        vision_config={
            **{name: VISION[name] for name in VISION if name != "image_size"},
            "num_key_value_heads": 4,
            "head_dim": 16,
            "patch_size": 4,
            "pooling_kernel_size": 2,
            "position_embedding_size": 128,
        },
        boi_token_id=id_of("<|image>"),
        eoi_token_id=id_of("<image|>"),
        image_token_id=id_of("<|image|>"),
        video_token_id=id_of("<video>"),
        audio_token_id=id_of("<audio>"),
    )
    images = transformers.Gemma4ImageProcessor(patch_size=4, max_soft_tokens=70, pooling_kernel_size=2)
    names = {"boi_token": "<|image>", "eoi_token": "<image|>"}
    names |= {"boa_token": "<audio>", "eoa_token": "<audio>", "audio_token": "<audio>"}
    return config, processor_with(
        "Gemma4Processor",
        images,
        tokenizer(image_token="<|image|>", **names),
        feature_extractor=transformers.Gemma4AudioFeatureExtractor(),
        chat_template=CHAT.replace("IMAGE", "<|image|>"),
    )


@a_family
def paligemma(side: int = 32, patch: int = 8) -> Made:
    n_token = (side // patch) ** 2
    of_vision = vision(side, patch, projection_dim=64, num_image_tokens=n_token)
    config = transformers.PaliGemmaConfig(
        text_config=transformers.GemmaConfig(**{**TEXT, "vocab_size": 1600, "head_dim": 16}),
        vision_config=transformers.SiglipVisionConfig(**of_vision),
        image_token_index=id_of("<image>"),
        projection_dim=64,
    )
    images = transformers.SiglipImageProcessor(size=square(side))
    vars(images)["image_seq_length"] = n_token  # as its checkpoints have it
    return config, processor_with("PaliGemmaProcessor", images, tokenizer(image_token="<image>"))


def idefics(
    kind: str, tile: int = 32, patch: int = 8, merged: int = 2, longest: int = 64, n_token: int = 4
) -> Made:
    """A model of `Idefics3` or `SmolVLM`."""
    config = getattr(transformers, f"{kind}Config")(
        text_config=transformers.LlamaConfig(**TEXT),
        vision_config=vision(tile, patch),
        scale_factor=merged,
        image_token_id=id_of("<image>"),
        pad_token_id=0,
    )
    images = getattr(transformers, f"{kind}ImageProcessor")(
        size={"longest_edge": longest}, max_image_size={"longest_edge": tile}, do_image_splitting=True
    )
    words = tokenizer(
        image_token="<image>",
        fake_image_token="<fake_token_around_image>",
        end_of_utterance_token="<end_of_utterance>",
        global_image_token="<global-img>",
    )
    chat = CHAT.replace("IMAGE", "<image>").replace("VIDEO", "<video>")
    settings = {"image_seq_len": n_token, "chat_template": chat}
    return config, processor_with(f"{kind}Processor", images, words, **settings)


FAMILIES |= {"idefics3": lambda: idefics("Idefics3"), "smolvlm": lambda: idefics("SmolVLM")}


@a_family
def internvl(side: int = 32, patch: int = 8, most: int = 4, n_token: int = 4) -> Made:
    of_vision = {**VISION, "image_size": [side, side], "patch_size": [patch, patch]}
    config = transformers.InternVLConfig(
        vision_config=transformers.InternVLVisionConfig(**of_vision),
        text_config=transformers.Qwen2Config(**TEXT),
        image_token_id=id_of("<IMG_CONTEXT>"),
        image_seq_length=n_token,
        downsample_ratio=0.5,
    )
    images = transformers.GotOcr2ImageProcessor(
        size=square(side), crop_to_patches=True, min_patches=1, max_patches=most
    )
    names = {"start_image_token": "<img>", "end_image_token": "</img>", "video_token": "<video>"}
    words = tokenizer(context_image_token="<IMG_CONTEXT>", **names)
    chat = CHAT.replace("IMAGE", "<IMG_CONTEXT>\n").replace("VIDEO", "<video>\n")
    settings = {"image_seq_length": n_token, "chat_template": chat}
    return config, processor_with("InternVLProcessor", images, words, **settings)


def of_pixtral(kind: str, longest: int = 64, patch: int = 8, merged: int = 1, **more: Any) -> Made:
    """A model of `Llava` or `Mistral3` with Pixtral's vision model."""
    config = getattr(transformers, f"{kind}Config")(
        vision_config=transformers.PixtralVisionConfig(**vision(longest, patch, head_dim=16)),
        text_config=transformers.MistralConfig(**{**TEXT, "head_dim": 16}),
        image_token_index=id_of("[IMG]"),
        **more,
    )
    images = transformers.PixtralImageProcessor(size={"longest_edge": longest}, patch_size=square(patch))
    settings = {"patch_size": patch, "spatial_merge_size": merged}
    return config, processor_with("PixtralProcessor", images, tokenizer(image_token="[IMG]"), **settings)


@a_family
def mistral3(longest: int = 64, patch: int = 8) -> Made:
    return of_pixtral("Mistral3", longest, patch, 2, spatial_merge_size=2)


@a_family
def pixtral(longest: int = 64, patch: int = 8) -> Made:
    features = {"vision_feature_layer": -1, "vision_feature_select_strategy": "full"}
    return of_pixtral("Llava", longest, patch, **features)


NAMES = list(FAMILIES)
"""The families, by the names of `family`."""

VIDEO_NAMES = ["llava_onevision", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5", "smolvlm", "internvl"]
"""Those that read videos, too, without those with experts: only where `HAS_VIDEOS`."""


@cache
def loaded(name: str) -> tuple[Any, Any]:
    """The model of a family, ready to run with torch's attention, and its processor."""
    torch.manual_seed(crc32(name.encode()))
    config, processor = FAMILIES[name]()
    kind = type(config).__name__.removesuffix("Config")
    model = getattr(transformers, f"{kind}ForConditionalGeneration")(config)
    for parameter_name, parameter in model.named_parameters():
        if "mm_input_projection_weight" in parameter_name:  # Gemma 3 starts it with zeros
            torch.nn.init.normal_(parameter, std=0.1)
        if name == "gemma4" and "language_model" in parameter_name and "q_norm" in parameter_name:
            torch.nn.init.constant_(parameter, 0.25)  # whose scores are not divided by √d_head
    output = model.get_output_embeddings().weight
    if output is not model.get_input_embeddings().weight:
        torch.nn.init.zeros_(output[: len(SPECIAL)])  # so that it writes no image tokens
    model.config.architectures = [type(model).__name__]
    return model.eval(), processor


@cache
def family(name: str) -> Path:
    """The folder of a family's model: weights, tokenizer, and what its processor saves."""
    model, processor = loaded(name)
    folder = Path(_home().name) / name
    model.save_pretrained(folder)
    if isinstance(getattr(processor, "video_processor", None), SimpleNamespace):
        processor.image_processor.save_pretrained(folder)
        processor.tokenizer.save_pretrained(folder)
    else:
        processor.save_pretrained(folder)
    return folder


@cache
def _home() -> tempfile.TemporaryDirectory[str]:
    home = tempfile.TemporaryDirectory(prefix="families-")
    atexit.register(home.cleanup)
    return home
