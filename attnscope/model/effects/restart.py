"""Run a model again without computing what a change leaves as it is: earlier layers, or a prefix.

A change inside a layer changes nothing that ran before the layer. So its effect needs only the layers
from there on. Layers are found without knowing the model's class: they are the members of the outermost
`ModuleList`s, whose order is the order in which they finished.

In a causal model, what is changed from position p on changes nothing before p. So further runs read the
keys and values of the prefix from a cache, and compute the positions from p on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from functools import partial
from typing import Any

import torch

from attnscope.model.effects.metric import Inputs
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

        def keep(name: str, module: Any, arguments: Any, output: Any) -> None:
            self.repeats |= name in self.outputs
            self.outputs[name] = mapped(output, torch.Tensor, torch.Tensor.detach)

        with ExitStack() as hooks:
            for name, layer in self.layers.items():
                hooks.enter_context(layer.register_forward_hook(partial(keep, name)))
            yield

    @contextmanager
    def replayed(self, path: str, n_row: int, first: int = 0) -> Iterator[None]:
        """Let all layers that finished before the one with a module return what they returned."""
        names = list(self.outputs)
        own = next((i for i, name in enumerate(names) if path.startswith(f"{name}.")), 0)
        earlier = [] if self.repeats else names[:own]
        with ExitStack() as restored:
            for name in earlier:
                layer, last = self.layers[name], name == earlier[-1]
                output = _repeated(self.outputs[name], n_row, first, copy=last)
                layer.forward = partial(_returned, output)
                restored.callback(layer.__dict__.pop, "forward")
            yield

    @property
    def n_bytes(self) -> int:
        """The bytes of all outputs."""
        return sum(each.nbytes for output in self.outputs.values() for each in tensors_in(output))


def _returned(output: Any, *arguments: Any, **options: Any) -> Any:
    """Return an output whatever the layer is called with."""
    return output


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


class PrefixCache:
    """The keys and values of all positions but the last."""

    def __init__(self, model: Any, inputs: Inputs) -> None:
        self.inputs, self.n = inputs, inputs["input_ids"].shape[1]
        before = {name: each[:, : self.n - 1] for name, each in inputs.items()}
        with torch.no_grad():
            output = model(**before, use_cache=True, return_dict=True)
        self.cache = output.past_key_values

    def inputs_from(self, first: int, n_row: int) -> dict[str, Any]:
        """Return the arguments of a run of several sequences from a position on.

        Some cache cannot be cut there, as one of a sliding window, and raises an exception of its own.
        """
        cache = deepcopy(self.cache)
        if first < self.n - 1:
            cache.crop(first - (self.n - 1))  # so many are removed
        cache.batch_repeat_interleave(n_row)
        inputs: dict[str, Any] = {
            name: (each if name == "attention_mask" else each[:, first:]).expand(n_row, -1)
            for name, each in self.inputs.items()
        }
        return inputs | {"past_key_values": cache, "use_cache": True}

    @property
    def n_bytes(self) -> int:
        """The bytes of the keys and values."""
        layers = getattr(self.cache, "layers", [])
        tensors = [getattr(layer, name, None) for layer in layers for name in ("keys", "values")]
        return sum(each.nbytes for each in tensors if isinstance(each, torch.Tensor))
