"""The families of models whose image tokens are known to cover which pixels, and their placeholders."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attnscope.base.errors import ModelError, OptionError
from attnscope.base.units import counted
from attnscope.model.answers.pictures.grids import (
    ImageToken,
    deepseek_vl,
    gemma3,
    gemma4,
    llava,
    pixtral,
    qwen,
    qwen3_video,
    qwen_video,
)
from attnscope.model.answers.pictures.processed import Processed
from attnscope.model.answers.pictures.tiles import (
    aya_vision,
    idefics3,
    idefics3_video,
    internvl,
    internvl_video,
    llava_next,
    llava_onevision,
    llava_onevision_video,
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


def with_placeholders(
    model: str, processor: Any, config: Any, text: str, n_picture: int, n_video: int
) -> tuple[str, list[str]]:
    """Put placeholders into a text that has none; return it, and what to say of the chat template.

    A chat template with parts for pictures writes them into the user's message, and begins the answer.
    Without one, they come before the text.
    """
    numbers = {"picture": n_picture, "video": n_video}
    if order_of(processor, text):
        check_placeholders(model, processor, text, n_picture, n_video)
        return text, []
    placeholders = {kind: _placeholder(processor, kind) for kind, n in numbers.items() if n}
    for kind, placeholder in placeholders.items():
        if placeholder is None:
            raise ModelError(f"the processor of {model} has no placeholder for a {kind}.")
    templated = _templated(processor, text, n_picture, n_video)
    expected = ["picture"] * n_picture + ["video"] * n_video
    if templated is not None and sorted(order_of(processor, templated)) == sorted(expected):
        return templated, []
    family = picture_family(config)
    before, behind = family.around if family else ("", "")
    notices = []
    if getattr(processor, "chat_template", None):
        kinds = " and ".join(f"{kind}s" for kind, n in numbers.items() if n)
        notices.append(
            f"the chat template of {model} writes no placeholders for {kinds}: they stand before the"
            " text, without the template."
        )
    placed = "".join(f"{before}{placeholders[kind]}{behind}" for kind in expected)
    return placed + text, notices


def check_placeholders(model: str, processor: Any, text: str, n_picture: int, n_video: int) -> None:
    """Raise an OptionError if a text has not one placeholder for each picture and video."""
    order = order_of(processor, text)
    for kind, n in (("picture", n_picture), ("video", n_video)):
        if (there := order.count(kind)) != n:
            placeholder = _placeholder(processor, kind)
            raise OptionError(
                f"the text has {there} × {placeholder}, the placeholder of {model}, but there"
                f" {'is' if n == 1 else 'are'} {counted(n, kind)}.",
                hint=f"{n} × {placeholder}, or none",
            )


def order_of(processor: Any, text: str) -> list[str]:
    """Return which placeholders follow each other in a text: `picture` or `video`."""
    kinds = {kind: _placeholder(processor, kind) for kind in ("picture", "video")}
    patterns = [f"(?P<{kind}>{re.escape(token)})" for kind, token in kinds.items() if token]
    if not patterns:
        return []
    return [str(found.lastgroup) for found in re.finditer("|".join(patterns), text)]


def placeholders_of(processor: Any) -> list[str]:
    """Return the texts that stand for pictures and videos."""
    found = [_placeholder(processor, kind) for kind in ("picture", "video")]
    return [token for token in found if token]


def _placeholder(processor: Any, kind: str) -> str | None:
    """Return the text that stands for a picture or a video; None if the processor has none."""
    token = getattr(processor, "image_token" if kind == "picture" else "video_token", None)
    return None if token is None else str(token)


def _templated(processor: Any, text: str, n_picture: int, n_video: int) -> str | None:
    """Return the text as the message of a user, as the chat template writes it; None without one."""
    if not getattr(processor, "chat_template", None):
        return None
    parts = [{"type": "image"}] * n_picture + [{"type": "video"}] * n_video
    content = [*parts, {"type": "text", "text": text}]
    try:
        rendered = processor.apply_chat_template(
            [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
        )
    except Exception:  # one without parts, which fails in its own way: placeholders come first
        return None
    return str(rendered) if text in rendered else None
