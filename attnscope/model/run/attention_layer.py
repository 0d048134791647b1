"""The attention module of one layer of a model, with the arguments that it receives for a text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from attnscope.base.dtypes import FLOATS
from attnscope.base.errors import ModelError
from attnscope.base.process.progress import Progress, silent, stage
from attnscope.base.spelling import spelled
from attnscope.model.files.loaded import find_model

TEXT = "The cat sat on the mat."
"""The text that a model reads if there is none."""


@dataclass(frozen=True)
class AttentionLayer:
    """The attention of one layer, and one call of it."""

    name: str
    path: str
    #: the module, with its output projection, and its norm if it has one.
    module: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    config: Any
    index: int = 0
    #: the modules around the attention that ran with arguments, such as the whole layer, the innermost
    #: first.
    around: tuple[AttentionLayer, ...] = ()

    @property
    def dtype(self) -> str:
        """The dtype of its weights: `bfloat16`; `float32` if they are not floating-point numbers."""
        dtypes = (each.dtype for each in self.module.parameters() if each.is_floating_point())
        name = str(next(dtypes, "float32")).removeprefix("torch.")
        return name if name in FLOATS else "float32"


def attention_layer(
    model: Any,
    layer: int,
    text: str | None = None,
    *,
    ids: Any = None,
    tokens: str | Sequence[str] | None = None,
    tokenizer: Any = None,
    progress: Progress = silent,
) -> AttentionLayer:
    """Run a model on a text, and return the attention of one layer with what it received.

    Args:
        text: the text; None: a short sentence.
        ids, tokens: token ids, or entries of the vocabulary, to read instead of a text.
    """
    import torch

    from attnscope.base.process.devices import kept_random_state
    from attnscope.base.process.verbosity import kept_verbosity
    from attnscope.model.run.forward import run
    from attnscope.model.run.load import as_model_error, load_config, load_model
    from attnscope.model.run.read_inputs import read_ids
    from attnscope.model.run.tokenize import read_text

    checkpoint = find_model(model, tokenizer, None)
    running = stage(progress, f"running {checkpoint.name} …")
    with running, kept_verbosity(), kept_random_state("cpu"), as_model_error(checkpoint):
        config = load_config(checkpoint)
        loaded = load_model(checkpoint, config)
        if ids is None and tokens is None:
            reading = read_text(checkpoint, config, TEXT if text is None else text)
        else:
            reading = read_ids(checkpoint, config, ids, tokens)
        paths = _paths(loaded, lambda: run(loaded, reading))
        if not 0 <= layer < len(paths):
            raise ModelError(
                f"{checkpoint.name} has {len(paths)} layers of attention, and no layer {layer}.",
                hint=f"{spelled(layers=0)} to {spelled(layers=len(paths) - 1)}" if paths else None,
            )
        outer = accumulate(paths[layer].split("."), lambda path, part: f"{path}.{part}")
        received: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        with ExitStack() as stack:
            for path in outer:
                stack.enter_context(_received(loaded.get_submodule(path), path, received))
            with torch.no_grad():
                run(loaded, reading)
    found = [
        AttentionLayer(checkpoint.name, path, loaded.get_submodule(path), *each, loaded.config, layer)
        for path, each in received.items()
    ]
    return replace(found[-1], around=tuple(found[-2::-1]))


@contextmanager
def _received(module: Any, path: str, received: dict[str, Any]) -> Iterator[None]:
    """Keep the arguments of a module's first call, by its path."""

    def keep(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        received.setdefault(path, (args, kwargs))

    hook = module.register_forward_pre_hook(keep, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()


def _paths(model: Any, run: Callable[[], Any]) -> list[str]:
    """Run a model, and return the names of its modules of self-attention, as they run.

    These are the modules that call attention through transformers' registry; or if there are none, as in
    BLOOM, the outermost ones that are called an attention, and get nothing from an encoder.
    """
    from attnscope.model.run.attention_hook import observing

    registered: list[str] = []
    outermost = outermost_attentions(model)
    received: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}
    with ExitStack() as stack:
        for name in outermost:
            stack.enter_context(_received(model.get_submodule(name), name, received))
        stack.enter_context(
            observing(model, lambda call: registered.append(call.path) if not call.cross else None)
        )
        run()
    if registered:
        return [_whole(model, path) for path in registered]
    crossing = ("encoder_hidden_states", "key_value_states")
    return [
        path
        for path, (_, kwargs) in received.items()
        if all(kwargs.get(name) is None for name in crossing)
    ]


def outermost_attentions(model: Any) -> list[str]:
    """Return the names of the outermost modules that are called an attention."""
    named = [name for name, each in model.named_modules() if _is_attention(each)]
    return [name for name in named if name == _whole(model, name)]


def _is_attention(module: Any) -> bool:
    return "Attention" in type(module).__name__


def _whole(model: Any, path: str) -> str:
    """Return the outermost module around an attention that is called an attention, too."""
    while "." in path:
        outer = path.rpartition(".")[0]
        if not _is_attention(model.get_submodule(outer)):
            break
        path = outer
    return path
