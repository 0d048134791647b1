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

from attnscope.observe.operators.tape import mapped, tensors_in


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
                self.outputs[name] = mapped(output, torch.Tensor, torch.Tensor.detach)

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
        return sum(each.nbytes for output in self.outputs.values() for each in tensors_in(output))


def _returning(output: Any) -> Any:
    """Return a function that returns the same output whatever it is called with."""
    return lambda *arguments, **options: output


def _repeated(output: Any, n_row: int, first: int, *, copy: bool) -> Any:
    """Repeat the tensors of an output, `1 n_Q …`, for each sequence, from a position on.

    Copies may be overwritten.
    """

    def repeat(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.dim() or tensor.shape[0] != 1:
            return tensor
        tensor = tensor[:, first:] if first and tensor.dim() == 3 else tensor
        repeated = tensor.expand(n_row, *tensor.shape[1:])
        return repeated.clone() if copy else repeated

    return mapped(output, torch.Tensor, repeat)
