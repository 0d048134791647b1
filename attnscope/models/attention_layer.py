"""The attention module of one layer of a model, with the arguments that it receives for a text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attnscope.checkpoints.loaded import find_model
from attnscope.errors import ModelError
from attnscope.process.progress import Progress, silent, stage

TEXT = "The cat sat on the mat."
"""The text that a model reads if there is none."""


@dataclass(frozen=True)
class AttentionLayer:
    """The attention of one layer, and one call of it.

    Attributes:
        name: the model's name.
        path: the module's name in the model.
        module: the module, with its output projection, and its norm if it has one.
        args, kwargs: the arguments that it received.
        config: the model's configuration.
    """

    name: str
    path: str
    module: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    config: Any

    @property
    def dtype(self) -> str:
        """The dtype of its weights: `bfloat16`; `float32` if they are not floating-point numbers."""
        dtypes = (each.dtype for each in self.module.parameters() if each.is_floating_point())
        name = str(next(dtypes, "float32")).removeprefix("torch.")
        return name if name in ("float16", "bfloat16", "float64") else "float32"


def attention_layer(
    model: Any,
    layer: int,
    text: str | None = None,
    *,
    tokenizer: Any = None,
    progress: Progress = silent,
) -> AttentionLayer:
    """Run a model on a text, and return the attention of one layer with what it received.

    Args:
        model: as in `attention_maps`.
        layer: the layer's index, from 0.
        text: the text; None: a short sentence.
        tokenizer: that of a loaded model.
        progress: called with the progress of the work.

    Raises:
        ModelError: there is no such model or layer, or its attention is not called through
            transformers' registry.
    """
    import torch

    from attnscope.models.running.attention_hook import observing
    from attnscope.models.running.forward import run
    from attnscope.models.running.load import as_model_error, load_config, load_model
    from attnscope.models.running.tokenize import read_text
    from attnscope.process.verbosity import kept_verbosity

    checkpoint = find_model(model, tokenizer, None)
    with stage(progress, f"running {checkpoint.name} …"), kept_verbosity(), as_model_error(checkpoint):
        config = load_config(checkpoint)
        loaded = load_model(checkpoint, config)
        reading = read_text(checkpoint, config, TEXT if text is None else text)
        paths: list[str] = []
        with observing(loaded, lambda call: paths.append(call.path) if not call.cross else None):
            run(loaded, reading)
        if not 0 <= layer < len(paths):
            raise ModelError(
                f"{checkpoint.name} has {len(paths)} layers of attention, and no layer {layer}.",
                hint=f"--layer 0 to --layer {len(paths) - 1}" if paths else None,
            )
        path = _whole(loaded, paths[layer])
        module = loaded.get_submodule(path)
        received: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        hook = module.register_forward_pre_hook(
            lambda _, args, kwargs: received.append((args, kwargs)), with_kwargs=True
        )
        with torch.no_grad():
            run(loaded, reading)
        hook.remove()
    args, kwargs = received[0]
    return AttentionLayer(checkpoint.name, path, module, args, kwargs, loaded.config)


def _whole(model: Any, path: str) -> str:
    """Return the outermost module around an attention that is called an attention, too."""
    while "." in path:
        outer = path.rpartition(".")[0]
        if "Attention" not in type(model.get_submodule(outer)).__name__:
            break
        path = outer
    return path
