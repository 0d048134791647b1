"""Which tokens move when pixels change: the proof that a token covers what it claims.

The outputs of attention in the vision model are zero, so that no patch tells another anything. Then an
image token is a function of the pixels that it covers, and of no others.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from functools import cache
from typing import Any

import numpy as np
import torch
from PIL import Image

from attnscope.model.answers.prompt import Patch, Prompt, Segment
from attnscope.model.answers.segments.of_pictures import read_pictures_and_text
from attnscope.model.files.loaded import find_model
from tests.model.answers.families import loaded

OUTPUTS = ("out_proj", "attn.proj", "o_proj", "projection_layer")
"""What the output projection of attention is called in vision models."""


class EmbeddedError(Exception):
    """The language model was called, which need not run."""


@cache
def blind(name: str) -> Any:
    """The model of a family, whose patches do not attend to each other."""
    model = deepcopy(loaded(name)[0])
    silent = 0
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            is_vision = "vision" in parameter_name or "visual" in parameter_name
            if is_vision and "att" in parameter_name and any(out in parameter_name for out in OUTPUTS):
                parameter.zero_()
                silent += 1
    assert silent >= 2  # layers
    return model


def read(name: str, pictures: Sequence[Any], videos: Sequence[Any] = (), **options: Any) -> Prompt:
    """The prompt with some pictures and a question."""
    model, processor = loaded(name)
    checkpoint = find_model(model, processor=processor)
    return read_pictures_and_text(
        checkpoint, model.config, pictures, "what is?", videos=videos, **options
    )


def of_pictures(prompt: Prompt) -> list[Segment]:
    """The segments that are pictures or videos."""
    return [each for each in prompt.segments if each.name.startswith(("picture ", "video "))]


def embeddings(name: str, prompt: Prompt) -> torch.Tensor:
    """What the language model reads at each position, `n_token d_feat`."""
    found: list[torch.Tensor] = []

    def keep(module: Any, arguments: Any, keywords: dict[str, Any]) -> None:
        found.append(keywords["inputs_embeds"][0])
        raise EmbeddedError

    model = blind(name)
    of_text = getattr(model.model, "language_model", None) or model.model.text_model
    hook = of_text.register_forward_pre_hook(keep, with_kwargs=True)
    try:
        with torch.no_grad():
            model(**prompt.inputs)
    except EmbeddedError:
        pass
    finally:
        hook.remove()
    return found[0]


def changed(picture: Image.Image, box: Sequence[int]) -> Image.Image:
    """A picture in which the colours within a box are inverted."""
    left, top, right, bottom = box
    pixels = np.array(picture)
    pixels[top:bottom, left:right] = 255 - pixels[top:bottom, left:right]
    return Image.fromarray(pixels)


LAST: list[Any] = [None, None]
"""The prompt before a change, and what it embeds: several changes follow it."""


def moves(name: str, before: Prompt, after: Prompt) -> np.ndarray:
    """How far each position moved between two prompts, as a share of the farthest."""
    if LAST[0] is not before:
        LAST[:] = before, embeddings(name, before)
    distances = (embeddings(name, after) - LAST[1]).abs().amax(-1).numpy()
    return distances / distances.max()


def overlaps(patch: Patch, box: Sequence[float], margin: float = 0.0) -> bool:
    """Whether a patch, enlarged on all sides, covers some of a box."""
    left, top, right, bottom = patch.box
    return (
        left - margin < box[2]
        and box[0] < right + margin
        and top - margin < box[3]
        and box[1] < bottom + margin
    )
