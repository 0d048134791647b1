"""Check a model before its weights are loaded: they fit its config.json, and into memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import ModelError, SizeError, is_out_of_memory
from attnscope.base.spelling import spelled
from attnscope.base.units import bytes_text, counted

if TYPE_CHECKING:
    from attnscope.model.files.checkpoint import Checkpoint


MOST_LAYERS = 1000
"""With more layers than it has tensors, a model of so many is not built to see whether they fit."""

DEPTHS = ("num_hidden_layers", "encoder_layers", "decoder_layers", "num_layers", "n_layer", "depth")
"""The fields of a configuration with a number of layers."""

ALLOWED = 2**28
"""The bytes of weights that a checkpoint may lack before it is loaded; after it, none."""


def check_shapes(checkpoint: Checkpoint, config: Any, model_class: Any) -> None:
    """Raise a ModelError if a checkpoint's tensors have other shapes than its config.json requires.

    The model is built without values, so that no memory is taken for one that the tensors do not fill.
    Names are compared as transformers renames them while it loads.

    Args:
        checkpoint: the model; nothing is checked if its files are not safetensors on this machine, or
            quantized.
    """
    from attnscope.model.files.tensors import shapes_of_weights

    stored = shapes_of_weights(checkpoint)
    if not stored or getattr(config, "quantization_config", None) is not None:
        return
    _check_depth(checkpoint.name, config, len(stored))
    if (built := _built(config, model_class)) is None:
        return
    model, expected, rename = built
    found: set[str] = set()
    for name, shape in stored.items():
        target, is_converted = rename(name)
        found.add(target)
        if not is_converted and target in expected and tuple(expected[target].shape) != shape:
            raise ModelError(
                f"{checkpoint.name} has {name} of shape {shape}, but its config.json requires"
                f" {tuple(expected[target].shape)}.",
                hint="the config.json that the weights were saved with",
            )
    tied = {*(getattr(model, "all_tied_weights_keys", None) or {})}
    lacks = {name: each.nbytes for name, each in expected.items() if name not in found | tied}
    whole = sum(each.nbytes for each in expected.values())
    if sum(lacks.values()) > ALLOWED + whole // 2:
        raise ModelError(
            f"{checkpoint.name} lacks {len(lacks)} weights of a {type(model).__name__}, such as"
            f" {min(lacks)}: they would be random.",
            hint="a complete checkpoint, as written by save_pretrained",
        )


def _check_depth(name: str, config: Any, n_tensor: int) -> None:
    """Raise a ModelError if a configuration, or a part of it, has more layers than there are tensors."""
    for field, n_layer in _numbers(config.to_dict()):
        if field in DEPTHS and n_layer > max(n_tensor, MOST_LAYERS):
            raise ModelError(
                f"{name} has {counted(n_tensor, 'tensor')}, but its config.json has {field}"
                f" {n_layer:,}.",
                hint="the config.json that the weights were saved with",
            )


def _numbers(part: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield the names and values of all whole numbers in a configuration and in its parts."""
    for field, value in part.items():
        if isinstance(value, dict):
            yield from _numbers(value)
        elif type(value) is int:
            yield str(field), value


def _built(
    config: Any, model_class: Any
) -> tuple[Any, dict[str, Any], Callable[[str], tuple[str, bool]]] | None:
    """Build a model without values.

    Returns:
        The model; its tensors by name; and a function that returns the name of a stored tensor there,
        and whether its shape is converted. None: transformers cannot build it, which loading says why.
    """
    import torch
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key
    from transformers.initialization import no_init_weights

    try:
        with torch.device("meta"), no_init_weights():
            model = model_class._from_config(deepcopy(config))
        transforms = get_model_conversion_mapping(model)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        return None
    renamings = [each for each in transforms if isinstance(each, WeightRenaming)]
    converters = [each for each in transforms if isinstance(each, WeightConverter)]
    expected = model.state_dict()

    def rename(name: str) -> tuple[str, bool]:
        target, pattern = rename_source_key(
            name, renamings, converters, model.base_model_prefix, expected
        )
        return target, pattern is not None

    return model, expected, rename


def dtype_of(config: Any, dtype: str | None) -> str:
    """Return the dtype that a model runs in: the one requested, else that of its configuration."""
    return dtype or str(getattr(config, "dtype", None)).removeprefix("torch.")


def check_weights_fit(
    checkpoint: Checkpoint,
    config: Any,
    dtype: str | None,
    device: str,
    *,
    beside: int = 0,
    what: str = "maps",
    hint: str | None = None,
) -> None:
    """Raise a SizeError if a model's weights and what is computed do not fit together.

    The check runs before the weights are loaded.

    Args:
        checkpoint: the model; nothing is checked if its files are not downloaded yet. A loaded model is
            in memory already, but not its copy in another dtype.
        dtype: the dtype that it will run in; None: that of its configuration.
    """
    from attnscope.base.dtypes import FLOATS
    from attnscope.base.process.devices import free_memory
    from attnscope.model.files.loaded import LoadedModel
    from attnscope.model.files.tensors import bytes_of_weights

    runs_in = dtype_of(config, dtype)
    if isinstance(checkpoint, LoadedModel):
        needed = _bytes_of_copy(checkpoint.module, dtype)
    else:
        needed = bytes_of_weights(checkpoint, FLOATS.get(runs_in))
    free = free_memory(device)
    if needed is None or free is None or needed + beside <= free.n_bytes:
        return
    more = f" and {what} {bytes_text(beside)}" if beside else ""
    hints = ["a smaller model"]
    if runs_in not in ("bfloat16", "float16"):
        hints.append(spelled(dtype="bfloat16"))
    if hint is not None and needed <= free.n_bytes:
        hints = [hint]
    weights = f"the weights of {checkpoint.name} take {bytes_text(needed)}"
    raise SizeError(
        f"{weights}{more}, but {free.describe(device)}.",
        hint=", or ".join(hints),
    )


def _bytes_of_copy(module: Any, dtype: str | None) -> int | None:
    """Return the bytes of a loaded model's copy in a dtype; None: a copy shares its weights."""
    from attnscope.base.dtypes import FLOATS

    floats = [each for each in module.parameters() if each.is_floating_point()]
    if dtype is None or all(str(each.dtype) == f"torch.{dtype}" for each in floats):
        return None
    return sum(each.numel() for each in floats) * FLOATS.get(dtype, 4)
