"""Check the settings of a processor before it is built: some are sizes of what it then computes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from attnscope.base.errors import ModelError
from attnscope.base.text import described
from attnscope.model.files.checkpoint import Checkpoint
from attnscope.model.files.config import read_json

FILES = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")

LARGEST = {
    "sampling_rate": 384_000,
    "feature_size|num_mel_bins": 2**10,
    "hop_length|n_fft": 2**14,
    "chunk_length": 600,
    "n_samples": 600 * 48_000,
    "size|crop_size|pad_size|height|width|patch_size": 2**12,
    "merge_size|temporal_patch_size|pooling_kernel_size": 2**12,
    "max_num_patches": 2**16,
    "shortest_edge|longest_edge|min_pixels|max_pixels": 2**25,
    "image_seq_length|image_seq_len|num_image_tokens|max_image_tiles|max_patches|min_patches": 2**16,
}
"""The largest values of settings that count something, which exceed those of every real processor. Edges
may count pixels, as Qwen's do."""

PAIRS = "size|crop_size|pad_size|patch_size"
"""Sizes that may be one number, a pair of a height and a width, or an object."""

SIDES = "shortest_edge|longest_edge"
"""Edges that are sides of a picture, unless `PIXELS` says that they count its pixels."""

LONGEST_SIDE = 2**12
PIXELS = ("merge_size", "min_pixels", "max_pixels")


def check_processor_settings(checkpoint: Checkpoint) -> None:
    """Raise a ModelError for the first setting of a processor whose value is not a number, or too large.

    Args:
        checkpoint: the model; its files are looked for on this machine.
    """
    for name in FILES:
        path = checkpoint.file_here(name)
        if path is None:
            continue
        for field, value, most in _faults(read_json(path)):
            raise ModelError(
                f"the {name} of {checkpoint.name} is damaged: {field} is {described(value)}, but must be"
                f" a whole number from 1 to {most:,}.",
                hint=f"the {name} that the model was saved with",
            )


def _faults(
    settings: dict[str, Any], prefix: str = "", sides: bool = True
) -> Iterator[tuple[str, Any, int]]:
    """Yield each setting that is invalid: its name, its value, and its largest value."""
    sides = sides and not any(name in settings for name in PIXELS)
    for field, value in settings.items():
        if isinstance(value, dict):
            yield from _faults(value, f"{prefix}{field}.", sides)
            continue
        if isinstance(value, list) and re.fullmatch(PAIRS, field) and len(value) == 2:
            for name, each in zip(("height", "width"), value, strict=True):
                yield from _faults({name: each}, f"{prefix}{field}: ", sides)
            continue
        most = next((most for names, most in LARGEST.items() if re.fullmatch(names, field)), None)
        if most is None or value is None:
            continue
        if sides and re.fullmatch(SIDES, field):
            most = LONGEST_SIDE
        if type(value) is not int or not 1 <= value <= most:
            yield f"{prefix}{field}", value, most
