"""Placeholders of pictures and videos in a text: one for each, where its tokens will be."""

from __future__ import annotations

import re
from typing import Any

from attnscope.base.errors import ModelError, OptionError
from attnscope.base.units import counted
from attnscope.model.answers.pictures.supported import picture_family


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
