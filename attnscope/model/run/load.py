"""Load a model, its tokenizer and its image processor with transformers.

For a model that the user has loaded (`LoadedModel`), a copy that shares its weights is run. All changes
are made to the copy, so that the user's model stays as it is, also after an exception.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from attnscope.base.dtypes import FLOATS
from attnscope.base.errors import ModelError, OptionError, dtype_hint, first_line, is_out_of_memory
from attnscope.base.process.verbosity import silence_transformers
from attnscope.base.text import described, shortened
from attnscope.model.files import tensors as weights
from attnscope.model.files.checkpoint import Checkpoint
from attnscope.model.files.config import read_json
from attnscope.model.files.loaded import LoadedModel
from attnscope.model.run.weights_fit import check_shapes

TOKENIZER = (
    *("tokenizer.json", "vocab.txt", "vocab.json", "tokenizer.model", "spiece.model", "spm.model"),
    *("sentencepiece.bpe.model", "source.spm", "tokenizer_config.json"),
)
IMAGES = ("preprocessor_config.json", "processor_config.json")
"""The names of files with a model's tokenizer, and with its image processor: one of each suffices."""

PACKAGES = {"torchvision": "torchvision", "num2words": "num2words", "pillow": "PIL"}
"""What processors need beside torch: names to install, and to import."""


NARROW = ("bfloat16", "float16")
"""The dtypes of 16 bits."""


def load_config(checkpoint: Checkpoint) -> Any:
    """Load the model's configuration with transformers."""
    if isinstance(checkpoint, LoadedModel):
        silence_transformers()
        config = deepcopy(checkpoint.module.config)
        config.dtype = checkpoint.module.dtype
        return config
    stored = checkpoint.config()  # raises a clearer error if there is no checkpoint
    if "auto_map" in stored:
        from transformers import CONFIG_MAPPING

        if stored.get("model_type") not in CONFIG_MAPPING:
            raise ModelError(
                f"{checkpoint.name} ({stored.get('model_type')}) requires custom code, which attnscope"
                " does not run: transformers has no such model.",
                hint="without a text: its weights may be readable",
            )
    silence_transformers()
    from transformers import AutoConfig, PreTrainedConfig

    with as_model_error(checkpoint, "config.json"):
        config = _from_cache_or_hub(AutoConfig.from_pretrained, checkpoint, ("config.json",))
    if not isinstance(of_text := config.get_text_config(), PreTrainedConfig):
        raise ModelError(
            f"the config.json of {checkpoint.name} is damaged: instead of the configuration of its"
            f" text model, it has {shortened(repr(of_text))}."
        )
    return config


def narrow_dtype(checkpoint: Checkpoint, config: Any) -> str | None:
    """Return the dtype of 16 bits in which a model's weights are stored or loaded; None: another.

    Args:
        checkpoint: the model. One that is quantised has None: its weights have a format of their own.
    """
    if getattr(config, "quantization_config", None) is not None:
        return None
    if isinstance(checkpoint, LoadedModel):
        dtypes = {str(each.dtype).removeprefix("torch.") for each in checkpoint.module.parameters()}
        return next((name for name in NARROW if name in dtypes), None)
    stored = str(config.dtype).removeprefix("torch.")
    if config.dtype is None:  # transformers takes the dtype of the weights, too
        stored = weights.stored_dtype(checkpoint) or ""
    return stored if stored in NARROW else None


def load_model(
    checkpoint: Checkpoint,
    config: Any,
    *,
    dtype: str | None = None,
    device: str = "cpu",
    attention: str | None = None,
    generates: bool = False,
    device_map: str | None = None,
) -> Any:
    """Load the model with its weights, as the class that its checkpoint names, ready to run.

    Args:
        checkpoint: the model. For a loaded model, a copy is returned, which shares its weights unless
            they have to be converted.
        dtype: `float32` and the like; None: the dtype in which the weights are stored.
        attention: `eager` or `sdpa`; None: the model's default.
        device_map: `auto` and the like: how accelerate distributes it over devices, instead of `device`.
    """
    if dtype is not None and dtype not in FLOATS:
        raise OptionError(f"there is no dtype {dtype} for a model.", hint=dtype_hint(dtype, FLOATS))
    if device_map is not None and find_spec("accelerate") is None:
        raise OptionError(
            "accelerate, which divides models among devices, is not installed.",
            hint="pip install 'attnscope[accelerate]'",
        )
    if checkpoint.folder is not None:
        weights.open_weights(checkpoint)  # raises a clearer error if a file is damaged
    with as_model_error(checkpoint):
        loaded = checkpoint.module if isinstance(checkpoint, LoadedModel) else None
        model_class = class_of(config) if loaded is None else type(loaded)
        if generates and not model_class.can_generate():
            raise ModelError(
                f"{checkpoint.name} is a {model_class.__name__}, which does not generate text.",
                hint="a causal or sequence-to-sequence language model, such as gpt2 or t5-small",
            )
        if loaded is not None:
            return _ready_copy(loaded, dtype, device, attention)
        check_shapes(checkpoint, config, model_class)
        model, info = _from_cache_or_hub(
            model_class.from_pretrained,
            checkpoint,
            weights.FILES,
            dtype=dtype or "auto",
            attn_implementation=attention,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            **({} if device_map is None else {"device_map": device_map}),
        )
        _check_complete(model, info, checkpoint)
        return (model.to(device) if device_map is None else model).eval()


def load_eager(checkpoint: Checkpoint, model: Any, *, instead: bool = False) -> Any:
    """Load a model again, in the same dtype and on the same devices, with eager attention.

    Args:
        instead: whether that model is no longer needed, so that its weights are freed first.
    """
    if isinstance(checkpoint, LoadedModel):
        return _ready_copy(model, None, str(model.device), "eager")
    dtype, device = str(model.dtype).removeprefix("torch."), str(model.device)
    device_map = "auto" if hasattr(model, "hf_device_map") else None
    if instead:
        for parameter in model.parameters():
            parameter.data = parameter.data.new_empty(0)
    return load_model(
        checkpoint, model.config, dtype=dtype, device=device, attention="eager", device_map=device_map
    )


def _ready_copy(loaded: Any, dtype: str | None, device: str, attention: str | None) -> Any:
    """Return a copy of a loaded model, including its hooks, that is ready to run.

    Args:
        loaded: the model, which is not changed. The copy shares its weights unless they are converted.
        dtype, device, attention: as in `load_model`; None keeps them, except that kinds of attention
            that cannot be observed are replaced by torch's own.
    """
    import torch

    converted = dtype is not None and any(
        each.dtype != getattr(torch, dtype) for each in loaded.parameters() if each.is_floating_point()
    )
    moved = not hasattr(loaded, "hf_device_map") and torch.device(device) != loaded.device
    shared: dict[int, Any] = {}
    for module in loaded.modules():
        for name, value in vars(module).items():
            if isinstance(value, dict) and name.endswith("_hooks"):
                shared |= {id(hook): hook for hook in value.values()}
            elif not (converted or moved):
                tensors = value.values() if isinstance(value, dict) else [value]
                shared |= {id(each): each for each in tensors if isinstance(each, torch.Tensor)}
    copy = deepcopy(loaded, shared)
    if converted:
        copy = copy.to(getattr(torch, str(dtype)))
    if moved:
        copy = copy.to(device)
    if attention is None and loaded.config._attn_implementation not in ("sdpa", "eager"):
        attention = "sdpa" if getattr(loaded, "_supports_sdpa", False) else "eager"
    if attention is not None:
        set_attention(copy, attention)
    return copy.eval()


def set_attention(model: Any, implementation: str) -> list[tuple[Any, str | None]]:
    """Change a model's attention implementation; return its configurations with their own."""
    configs = [module.config for module in model.modules() if hasattr(module, "config")]
    before = [(config, getattr(config, "_attn_implementation", None)) for config in configs]
    for config in configs:
        config._attn_implementation = implementation
    return before


@contextmanager
def switched_attention(model: Any, implementation: str) -> Iterator[None]:
    """Change a model's attention implementation, and restore it at the end."""
    before = set_attention(model, implementation)
    try:
        yield
    finally:
        for config, own in before:  # the whole before its parts, as modules are listed
            config._attn_implementation = own


def device_of(checkpoint: Checkpoint, device: str) -> str:
    """Return the device to run on: a loaded model stays on its own, unless `device` is not cpu."""
    if isinstance(checkpoint, LoadedModel) and device == "cpu":
        return str(checkpoint.module.device)
    return device


def disable_cache(model: Any) -> None:
    """Disable a model's key/value cache, which is useless without further tokens."""
    for config in (model.config, model.config.get_text_config()):
        config.use_cache = False


def load_tokenizer(checkpoint: Checkpoint) -> Any:
    """Load the model's tokenizer."""
    if isinstance(checkpoint, LoadedModel):
        if checkpoint.tokenizer is None:
            raise ModelError(
                f"{checkpoint.name} was given without a tokenizer, so texts cannot be tokenized.",
                hint="tokenizer=AutoTokenizer.from_pretrained(…); or ids=[…]",
            )
        return checkpoint.tokenizer
    from transformers import AutoTokenizer

    if checkpoint.folder and not checkpoint.has(*TOKENIZER):
        raise ModelError(
            f"{checkpoint.name} has no tokenizer ({', '.join(TOKENIZER[:2])}, …), so texts cannot"
            " be tokenized.",
            hint="AutoTokenizer.from_pretrained(…).save_pretrained(FOLDER) puts one beside the weights",
        )
    try:
        tokenizer = _from_cache_or_hub(AutoTokenizer.from_pretrained, checkpoint, TOKENIZER)
        _check_unknown(tokenizer)
        return tokenizer
    except Exception as error:
        if is_out_of_memory(error):
            raise
        unreadable = isinstance(error, UnicodeEncodeError) and not _is_utf_8(checkpoint.folder)
        raise ModelError(
            f"cannot load the tokenizer of {checkpoint.name}: {first_line(error).rstrip('.')}.",
            hint="a folder with a UTF-8 name: transformers cannot open others" if unreadable else None,
        ) from error


def tokenizer_of(checkpoint: Checkpoint) -> Any:
    """Load the model's tokenizer; return None if it has none."""
    if isinstance(checkpoint, LoadedModel):
        return checkpoint.tokenizer
    return load_tokenizer(checkpoint) if checkpoint.first_file(*TOKENIZER) else None


def _check_unknown(tokenizer: Any) -> None:
    """Raise a ValueError if the unknown token is not a token: transformers recurses without end."""
    try:
        tokenizer.unk_token_id  # noqa: B018 - a property, which searches for it
    except RecursionError:
        raise ValueError("its unk_token is not a token") from None


def _is_utf_8(path: object) -> bool:
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def load_processor(checkpoint: Checkpoint) -> Any:
    """Load the model's processor, which turns a text with pictures, or a recording, into inputs."""
    if isinstance(checkpoint, LoadedModel):
        if checkpoint.processor is None:
            raise ModelError(
                f"{checkpoint.name} was given without a processor, which prepares its inputs.",
                hint="processor=AutoProcessor.from_pretrained(…)",
            )
        return checkpoint.processor
    check_processor_settings(checkpoint)
    try:
        from transformers import AutoProcessor

        return _from_cache_or_hub(AutoProcessor.from_pretrained, checkpoint, IMAGES)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        _check_torchvision(checkpoint.name)
        said = str(error).lower()
        missing = [each for each in PACKAGES if each in said and find_spec(PACKAGES[each]) is None]
        if missing:
            packages = " ".join(missing)
            raise ModelError(
                f"the processor of {checkpoint.name} needs {packages}, not installed here.",
                hint=f"pip install {packages}",
            ) from error
        hint = "AutoProcessor.from_pretrained(…).save_pretrained(FOLDER) puts one beside the weights"
        raise ModelError(
            f"{checkpoint.name} has no processor that can be loaded (processor_config.json,"
            f" preprocessor_config.json): {first_line(error).rstrip('.')}.",
            hint=hint,
        ) from error


def _check_torchvision(name: str) -> None:
    """Raise a ModelError if torchvision is installed, but was built for another torch."""
    if find_spec("torchvision") is None:
        return
    import torch

    try:
        import_module("torchvision")
    except Exception as error:
        raise ModelError(
            f"the processor of {name} needs torchvision, which cannot be imported beside torch"
            f" {torch.__version__}: {first_line(error).rstrip('.')}.",
            hint="the torchvision that was built for this torch",
        ) from error


def load_image_processor(checkpoint: Checkpoint) -> Any:
    """Load the model's image processor, which crops and resizes images."""
    if isinstance(checkpoint, LoadedModel):
        if checkpoint.image_processor is None:
            raise ModelError(
                f"{checkpoint.name} was given without an image processor, which prepares pictures"
                " for it.",
                hint="image_processor=AutoImageProcessor.from_pretrained(…)",
            )
        return checkpoint.image_processor
    check_processor_settings(checkpoint)
    try:
        from transformers import AutoImageProcessor

        return _from_cache_or_hub(AutoImageProcessor.from_pretrained, checkpoint, IMAGES)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise ModelError(
            f"{checkpoint.name} has no image processor (preprocessor_config.json):"
            f" {first_line(error).rstrip('.')}.",
            hint="a model that reads pictures, such as google/vit-base-patch16-224",
        ) from error


@contextmanager
def as_model_error(checkpoint: Checkpoint, file: str | None = None) -> Iterator[None]:
    """Turn exceptions of transformers into a ModelError about the checkpoint."""
    try:
        yield
    except (ModelError, OptionError):
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        does = f"read the {file} of" if file else "run"
        reason = first_line(error).rstrip(".")
        raise ModelError(f"transformers cannot {does} {checkpoint.name}: {reason}.") from error


def _from_cache_or_hub(
    load: Callable[..., Any], checkpoint: Checkpoint, files: tuple[str, ...], **options: Any
) -> Any:
    """Call a `from_pretrained`; if a file is in the hub's cache, first without any network request.

    Code that comes with a model is not run.
    """
    if checkpoint.folder is None and checkpoint.has(*files):
        try:
            return load(checkpoint.source, local_files_only=True, trust_remote_code=False, **options)
        except (OSError, ValueError):
            pass  # another file that it needs is not in the cache
    return load(checkpoint.source, trust_remote_code=False, **options)


def class_of(config: Any) -> Any:
    """Return the class that a checkpoint was saved from, or the base model if transformers lacks it."""
    import transformers

    classes = [
        getattr(transformers, name, None) for name in getattr(config, "architectures", None) or []
    ]
    models = [
        each
        for each in classes
        if isinstance(each, type) and issubclass(each, transformers.PreTrainedModel)
    ]
    if models:
        return models[0]
    if type(config) in transformers.AutoModel._model_mapping:
        return transformers.AutoModel._model_mapping[type(config)]
    raise ModelError(f"transformers has no model for a {type(config).__name__} without an architecture.")


def _check_complete(model: Any, info: dict[str, Any], checkpoint: Checkpoint) -> None:
    """Raise a ModelError if weights that attention depends on would be random."""
    of_base = "" if model.base_model is model else f"{model.base_model_prefix}."
    for name, stored, built in info["mismatched_keys"]:
        raise ModelError(
            f"{checkpoint.name} has {name} of shape {tuple(stored)}, but its config.json requires"
            f" {tuple(built)}.",
            hint="the config.json that the weights were saved with",
        )
    inner = [name for name in info["missing_keys"] if "pooler" not in name and name.startswith(of_base)]
    if inner:
        raise ModelError(
            f"{checkpoint.name} lacks {len(inner)} weights of a {type(model).__name__}, such as"
            f" {min(inner)}: they would be random.",
            hint="a complete checkpoint, as written by save_pretrained",
        )


# The settings of a processor, some of which are sizes of what it computes.

SETTINGS = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")

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
    for name in SETTINGS:
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
