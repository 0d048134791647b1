"""Restart a model at a layer: the layers before it return what they returned in an earlier run.

A change inside a layer changes nothing that ran before the layer. So its effect needs only the layers
from there on. Layers are found without knowing the model's class: they are the members of the outermost
`ModuleList`s, whose order is the order in which they finished.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch


def layers_of(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Return the members of the outermost lists of modules, by their names in the model."""
    layers: dict[str, torch.nn.Module] = {}
    lists: list[str] = []
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.ModuleList) and not any(
            name.startswith(f"{outer}.") for outer in lists
        ):
            lists.append(name)
            layers |= {f"{name}.{index}".lstrip("."): layer for index, layer in enumerate(module)}
    return layers


class LayerOutputs:
    """What each layer of a model returned in a run of one sequence.

    Attributes:
        outputs: by the layer's name, in the order in which layers finished.
        repeats: whether a layer ran more than once, so that no run can restart.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.layers = layers_of(model)
        self.outputs: dict[str, Any] = {}
        self.repeats = False

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Record what each layer returns within the block."""

        def record(name: str) -> Any:
            def keep(module: Any, arguments: Any, output: Any) -> None:
                self.repeats |= name in self.outputs
                self.outputs[name] = _detached(output)

            return keep

        with ExitStack() as hooks:
            for name, layer in self.layers.items():
                handle = layer.register_forward_hook(record(name))
                hooks.callback(handle.remove)
            yield

    @contextmanager
    def replayed(self, path: str, n_row: int, first: int = 0) -> Iterator[None]:
        """Let all layers that finished before the one that contains a module return what they returned.

        Args:
            path: the module's name in the model.
            n_row: the number of sequences of the new run, all of which are equal up to that layer.
            first: the first position of the new run.
        """
        names = list(self.outputs)
        own = next((i for i, name in enumerate(names) if path.startswith(f"{name}.")), 0)
        earlier = [] if self.repeats else names[:own]
        with ExitStack() as restored:
            for name in earlier:
                layer, last = self.layers[name], name == earlier[-1]
                output = _repeated(self.outputs[name], n_row, first, copy=last)
                layer.forward = _returning(output)
                restored.callback(layer.__dict__.pop, "forward")
            yield

    @property
    def n_bytes(self) -> int:
        """The bytes of all outputs."""
        return sum(each.nbytes for output in self.outputs.values() for each in _tensors(output))


def _returning(output: Any) -> Any:
    """Return a function that returns the same output whatever it is called with."""
    return lambda *arguments, **options: output


def _repeated(output: Any, n_row: int, first: int, *, copy: bool) -> Any:
    """Repeat the tensors of an output, `1 n_Q …`, for each sequence, from a position on.

    Copies may be overwritten.
    """
    if isinstance(output, torch.Tensor) and output.dim() and output.shape[0] == 1:
        output = output[:, first:] if first and output.dim() == 3 else output
        repeated = output.expand(n_row, *output.shape[1:])
        return repeated.clone() if copy else repeated
    if isinstance(output, (tuple, list)) and not hasattr(output, "_fields"):
        return type(output)(_repeated(each, n_row, first, copy=copy) for each in output)
    return output


def _detached(output: Any) -> Any:
    """Return an output without what its gradient needs."""
    if isinstance(output, torch.Tensor):
        return output.detach()
    if isinstance(output, (tuple, list)) and not hasattr(output, "_fields"):
        return type(output)(map(_detached, output))
    return output


def _tensors(output: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of an output."""
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, (tuple, list)):
        for each in output:
            yield from _tensors(each)
