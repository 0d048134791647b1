"""Find when the frames that an encoder puts out are, in seconds of the recording."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from attnscope.base.errors import ModelError


@dataclass(frozen=True)
class FrameTimes:
    """When the frames of an encoder are, which are the keys of cross-attention."""

    step: float  #: the seconds from one frame to the next
    first: float  #: the second that the first frame is centred at
    n_frame: int  #: the number of frames, padding included
    n_sound: int  #: the number of those with sound; padding follows

    def seconds(self, frame: int) -> float:
        """The second that a frame is centred at."""
        return self.first + self.step * frame


def frame_times(
    name: str, model: Any, extractor: Any, inputs: dict[str, Any], n_frame: int, n_sample: int
) -> FrameTimes:
    """Find when the frames of a model's encoder are.

    The feature extractor moves by a number of samples from one of its frames to the next, which is
    measured; the convolutions before the encoder's layers move by their strides. The number of frames
    that the encoder puts out has to agree.

    Args:
        n_frame: the number of frames that its encoder puts out.
        n_sample: the number of samples without padding.
    """
    import torch

    main = inputs[model.main_input_name]
    hop = 1 if model.main_input_name == "input_values" else samples_per_feature(extractor)
    convolutions = [each for each in model.get_encoder().modules() if isinstance(each, torch.nn.Conv1d)]
    last = max((i for i, each in enumerate(convolutions) if each.stride[0] > 1), default=-1)
    stride, centre = 1, 0.0
    for each in convolutions[: last + 1]:
        padding = each.padding[0] if isinstance(each.padding, tuple) else 0
        centre += ((each.kernel_size[0] - 1) / 2 - padding) * stride
        stride *= each.stride[0]
    n_feature = prod(main.shape[1:])
    if model.main_input_name != "input_values":
        n_feature = _n_feature(main, extractor)
    if abs(n_frame - n_feature / stride) > 2 + centre / stride:
        raise ModelError(
            f"the encoder of {name} puts out {n_frame:,} frames for {n_feature:,} at its input, and its"
            f" convolutions explain {n_feature // stride:,}: which second a frame is of is not known."
        )
    rate = extractor.sampling_rate
    n_sound = min(n_frame, max(1, -(-n_sample // hop) // stride))
    return FrameTimes(hop * stride / rate, hop * centre / rate, n_frame, n_sound)


def samples_per_feature(extractor: Any) -> int:
    """Measure how many samples a feature extractor moves on from one frame to the next.

    Source: its lengths for one and for three seconds of noise, which the edges change equally.
    """
    import numpy as np

    rate = extractor.sampling_rate
    generator = np.random.default_rng(0)
    lengths = []
    for n_second in (1, 3):
        noise = generator.normal(0, 0.1, n_second * rate).astype(np.float32)
        options = {"padding": "do_not_pad", "truncation": False, "sampling_rate": rate}
        features = extractor(noise, **options, return_tensors="np")
        lengths.append(_n_feature(next(iter(features.values())), extractor))
    return round(2 * rate / (lengths[1] - lengths[0]))


def _n_feature(features: Any, extractor: Any) -> int:
    """Return the number of frames: of two axes, the one that is not that of the mel bands."""
    n_band = extractor.feature_size
    sizes = list(features.shape[1:])
    if n_band in sizes:
        sizes.reverse() if sizes[0] != n_band else None
        return int(sizes[1])
    raise ModelError(
        f"the features of a {type(extractor).__name__} are {' × '.join(map(str, sizes))}, and none of"
        f" these axes has its {n_band} bands."
    )
