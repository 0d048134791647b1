"""The families of models whose image tokens are known to cover which pixels, by `model_type`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attnscope.model.answers.pictures.image_tokens import ImageToken
from attnscope.model.answers.pictures.llava_next import (
    llava_next,
    llava_onevision,
    llava_onevision_video,
)
from attnscope.model.answers.pictures.one_grid import deepseek_vl, gemma3, llava
from attnscope.model.answers.pictures.own_ratio import gemma4, pixtral, qwen, qwen3_video, qwen_video
from attnscope.model.answers.pictures.processed import Processed
from attnscope.model.answers.pictures.tiles import (
    aya_vision,
    idefics3,
    idefics3_video,
    internvl,
    internvl_video,
)

Tokens = Callable[[Processed, int], list[list[ImageToken]]]
"""Returns the tokens of a picture or a video, given its index, as runs without other tokens inside."""


@dataclass(frozen=True)
class PictureFamily:
    """What is known of a family of models that read pictures."""

    picture: Tokens
    video: Tokens | None = None  #: its tokens of a video; None: it reads none
    #: the texts of tokens that stand directly before the tokens of a picture and belong to it, as
    #: patterns, the nearest first
    opening: tuple[str, ...] = ()
    closing: tuple[str, ...] = ()  #: those of tokens directly behind them
    around: tuple[str, str] = ("", "")  #: what stands before and behind a placeholder in a text


_FAKE = "<fake_token_around_image>"
_TILES: dict[str, Any] = {"opening": (r"<row_\d+_col_\d+>|<global-img>", _FAKE), "closing": (_FAKE,)}
_VISION = ("<|vision_start|>", "<|vision_end|>")
_QWEN: dict[str, Any] = {
    "opening": (r"<\|vision_start\|>",),
    "closing": (r"<\|vision_end\|>",),
    "around": _VISION,
}
_GLM: dict[str, Any] = {
    "opening": (r"<\|begin_of_image\|>",),
    "closing": (r"<\|end_of_image\|>",),
    "around": ("<|begin_of_image|>", "<|end_of_image|>"),
}
_AYA: dict[str, Any] = {
    "opening": (r"TILE_(\d+|GLOBAL)", r"<\|START_OF_IMG\|>"),
    "closing": (r"<\|END_OF_IMG\|>",),
}

FAMILIES: dict[str, PictureFamily] = {
    "llava": PictureFamily(llava),
    "deepseek_vl": PictureFamily(deepseek_vl),
    "janus": PictureFamily(deepseek_vl, opening=("<begin_of_image>",), closing=("<end_of_image>",)),
    "llava_next": PictureFamily(llava_next),
    "llava_onevision": PictureFamily(llava_onevision, llava_onevision_video),
    "paligemma": PictureFamily(llava),  # squeezed to a square
    "gemma3": PictureFamily(gemma3, opening=("<start_of_image>",), closing=("<end_of_image>",)),
    "gemma4": PictureFamily(gemma4, opening=(r"<\|image>",), closing=(r"<image\|>",)),
    "qwen2_vl": PictureFamily(qwen, qwen_video, **_QWEN),
    "qwen2_5_vl": PictureFamily(qwen, qwen_video, **_QWEN),
    "qwen3_vl": PictureFamily(qwen, qwen3_video, **_QWEN),
    "qwen3_vl_moe": PictureFamily(qwen, qwen3_video, **_QWEN),
    "qwen3_5": PictureFamily(qwen, qwen3_video, **_QWEN),
    "qwen3_5_moe": PictureFamily(qwen, qwen3_video, **_QWEN),
    "glm4v": PictureFamily(qwen, **_GLM),
    "glm4v_moe": PictureFamily(qwen, **_GLM),
    "glm46v": PictureFamily(qwen, **_GLM),
    "idefics3": PictureFamily(idefics3, **_TILES),
    "smolvlm": PictureFamily(idefics3, idefics3_video, **_TILES),
    "aya_vision": PictureFamily(aya_vision, **_AYA),
    "internvl": PictureFamily(internvl, internvl_video, opening=("<img>",), closing=("</img>",)),
    "mistral3": PictureFamily(pixtral, closing=(r"\[IMG_END\]",)),
}
"""The families; a LLaVA with Pixtral's vision model is Pixtral."""


_MIXED = "{} mixes all of the picture into each of its image tokens"
NO_PATCHES = {
    "mllama": "its language model reads pictures by cross-attention, not as tokens of the prompt",
    "idefics": "its language model reads pictures by cross-attention, not as tokens of the prompt",
    "idefics2": _MIXED.format("a perceiver"),
    "blip-2": _MIXED.format("a Q-Former"),
    "instructblip": _MIXED.format("a Q-Former"),
    "kosmos-2": _MIXED.format("a resampler"),
}
"""Families in which no token stands for a part of a picture, and the reason, by `model_type`."""


def picture_family(config: Any) -> PictureFamily | None:
    """Return what is known of a model's family; None if nothing is."""
    vision = getattr(getattr(config, "vision_config", None), "model_type", None)
    if config.model_type == "llava" and vision == "pixtral":
        return FAMILIES["mistral3"]
    return FAMILIES.get(config.model_type)
