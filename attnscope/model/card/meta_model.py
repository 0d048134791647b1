"""Transformers' model of a config.json in its own size, without values, on PyTorch's meta device.

It says how many parameters a model has whose weights are not at hand, for every family of transformers.
It takes seconds, most of them for imports, but no memory.
"""

from __future__ import annotations

from typing import Any

from attnscope.base.dtypes import DTYPES
from attnscope.base.errors import ModelError, first_line
from attnscope.base.process.verbosity import silent_transformers
from attnscope.model.card.checkpoint_tensors import count_weights
from attnscope.model.card.quantisation import Quantisation
from attnscope.model.card.result import WeightsCount
from attnscope.model.card.tensor_parts import place_of
from attnscope.model.card.tiny_config import class_and_config
from attnscope.model.files.config import Config, completed
from attnscope.model.files.headers import Headers
from attnscope.model.files.ranges import TensorHeader


def headers_without_values(
    config: Config, dtype: str | None = None, quantisation: Quantisation | None = None
) -> Headers:
    """Return the names and shapes of a model's parameters, as if they had been saved."""
    import torch

    stored = DTYPES.get(dtype or "")
    in_file = (stored and stored.safetensors) or "an unknown dtype"
    try:
        with silent_transformers(), torch.device("meta"):
            model_class, complete = _class_and_config_of_whole(config)
            model = model_class._from_config(complete)
    except Exception as error:  # what a class of models may raise
        raise ModelError(
            f"transformers cannot build it: {type(error).__name__}: {first_line(error)}"
        ) from error
    itemsize = stored.n_bytes if stored else 0
    tensors = []
    for name, each in model.named_parameters():
        kind, n_bytes = None, each.numel() * itemsize
        if quantisation is not None:
            module, part = name.removesuffix(".weight"), place_of(name).part
            kind, n_bytes = quantisation.n_bytes(module, tuple(each.shape), part, itemsize)
        known = n_bytes if kind or stored else None
        tensors.append(TensorHeader(name, tuple(each.shape), kind or in_file, known))
    return Headers(str(config.get("model_type")), "safetensors", tuple(tensors), 0)


def count_without_values(
    config: Config, dtype: str | None, quantisation: Quantisation | None = None
) -> WeightsCount:
    """Count the parameters of transformers' model of a config.json."""
    headers = headers_without_values(config, dtype, quantisation)
    return count_weights(headers, completed(config), source="transformers")


def _class_and_config_of_whole(config: Config) -> tuple[Any, Any]:
    """Return the class of a whole model, towers included, and its complete configuration.

    `architectures` names the class that was saved; without it, it is the one that writes text.
    """
    import transformers
    from transformers.models.auto import modeling_auto as auto

    whole = transformers.AutoConfig.for_model(**config)
    for name in whole.architectures or []:
        named = getattr(transformers, str(name), None)
        if isinstance(named, type) and getattr(named, "config_class", None) is type(whole):
            return named, whole
    for mapping in (auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING, auto.MODEL_FOR_MULTIMODAL_LM_MAPPING):
        if type(whole) in mapping:
            return mapping[type(whole)], whole
    return class_and_config(config)
