"""Run a model on a prompt, and run it again with other outputs of heads.

A change inside a layer changes nothing that ran before the layer, and in a causal model, what is changed
from position p on changes nothing before p. So further runs need only the layers from there on, and the
positions from p on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import torch

from attnscope.model.effects.head_outputs import HeadOutputs
from attnscope.model.effects.metric import Inputs, PredictionMetric, predict
from attnscope.model.files.checkpoint import Checkpoint
from attnscope.model.run.load import as_model_error
from attnscope.observe.operators.tape import mapped, tensors_in


class Baseline:
    """A model's run on one prompt.

    Attributes:
        heads, layers: its heads' outputs, and the layers that attend, in the order in which they run.
        outputs: for each layer, the heads' outputs before the output projection, `n_Q n_head d_V`.
        prediction: the part of the prediction that the metric reads, of the only sequence.
        states: what each layer returned.
        gradients: likewise, the metric's gradient in these outputs; empty, unless it was asked for.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        model: Any,
        heads: HeadOutputs,
        inputs: Inputs,
        metric: PredictionMetric,
        *,
        with_gradients: bool = False,
    ) -> None:
        self.checkpoint, self.model, self.inputs, self.metric = checkpoint, model, inputs, metric
        self.heads, self.layers = heads, heads.layers
        self.states = LayerOutputs(model)
        self._firsts: dict[int, bool] = {}  # whether runs may begin at a position
        found: dict[int, torch.Tensor] = {}
        leaves: dict[int, torch.Tensor] = {}

        def record(index: int, outputs: torch.Tensor) -> torch.Tensor | None:
            found[index] = outputs[0].detach().clone()
            if not with_gradients:
                return None
            leaves[index] = torch.zeros_like(outputs, requires_grad=True)
            return outputs + leaves[index]

        with (
            torch.set_grad_enabled(with_gradients),
            as_model_error(checkpoint),
            self.states.recorded(),
            heads.observed(record, 1),
        ):
            prediction = predict(model, inputs, metric)
            value = metric.of(prediction)[0]
            of_layers = [leaves[index] for index in sorted(leaves)]
            grads = torch.autograd.grad(value, of_layers, allow_unused=True) if of_layers else ()
        self.gradients = [
            (torch.zeros_like(leaf) if grad is None else grad)[0].detach()
            for leaf, grad in zip(of_layers, grads, strict=True)
        ]
        self.prediction, self.value = prediction.detach(), float(value.detach())
        self.outputs = [found[index] for index in range(len(self.layers))]

    @cached_property
    def restarts(self) -> bool:
        """Whether runs may restart: those at the last layer, and in the middle, predict the same."""
        if self.states.repeats or len(self.layers) < 2:
            return False
        return all(
            self._predicts_the_same(index) for index in (len(self.layers) // 2, len(self.layers) - 1)
        )

    @cached_property
    def prefix(self) -> PrefixCache | None:
        """The keys and values of the prefix, if the model takes such a cache."""
        config, positions = self.model.config, self.metric.positions
        if config.is_encoder_decoder or not positions or not self.model.can_generate():
            return None
        try:
            prefix = PrefixCache(self.model, self.inputs)
        except Exception:  # whatever a model does that takes no cache
            return None
        return prefix if prefix.n > 1 else None

    def _predicts_the_same(self, index: int, first: int = 0) -> bool:
        """Check that a run without a change, which restarts at a layer, predicts the same."""
        try:
            again = self._run(index, 1, lambda output: output, first=first, restart=not first)
        except Exception:  # whatever a model does without its earlier layers, or with a cache
            return False
        scale = float(self.prediction.abs().max()) or 1.0
        limit = 1e-4 if self.prediction.dtype in (torch.float32, torch.float64) else 3e-2
        return float((again - self.prediction).abs().max()) <= limit * scale

    def first_computed(self, positions: Sequence[int] | None) -> int:
        """Return the first position that has to be computed if some positions change.

        It is 0 if everything has to be: runs that read the prefix from a cache predict something else,
        as in a bidirectional model, or the cache cannot be cut there, as one of a sliding window.
        """
        first = 0 if positions is None else min(positions, default=0)
        if first == 0 or (self.metric.positions or [0])[0] < first or self.prefix is None:
            return 0
        if first not in self._firsts:
            self._firsts[first] = self._predicts_the_same(0, first=first)
        return first if self._firsts[first] else 0

    def run(
        self, index: int, replaced: torch.Tensor, heads: Sequence[int], first: int = 0
    ) -> torch.Tensor:
        """Return the metric of several sequences, in each of which one head has another output.

        What replaces them is `n_row n_Q d_V`, with a head for each row. Nothing changes before `first`.
        """
        rows = torch.arange(len(heads))

        def change(output: torch.Tensor) -> torch.Tensor:
            changed = output.clone()
            changed[rows, :, list(heads)] = replaced[:, first:].to(output)
            return changed

        with as_model_error(self.checkpoint):
            prediction = self._run(index, len(heads), change, restart=self.restarts, first=first)
        return self.metric.of(prediction)

    def _run(
        self,
        index: int,
        n_row: int,
        change: Callable[[torch.Tensor], torch.Tensor],
        *,
        restart: bool = True,
        first: int = 0,
    ) -> torch.Tensor:
        """Return the prediction of `n_row` equal sequences with a change in one layer.

        Args:
            change: returns other outputs of the layer's heads, `n_row n_Q n_head d_V`.
            restart: whether the layers before it return what they returned before.
            first: the first position that is computed; those before it are in the cache.
        """
        layer, metric = self.layers[index], self.metric

        def replace_heads(number: int, outputs: torch.Tensor) -> torch.Tensor | None:
            return change(outputs) if number == index else None

        inputs: dict[str, Any] = {
            name: each.expand(n_row, *each.shape[1:]) for name, each in self.inputs.items()
        }
        if first and self.prefix is not None:
            inputs = self.prefix.inputs_from(first, n_row)
            metric = replace(metric, positions=[each - first for each in metric.positions or []])
        path = layer.path if restart else ""
        with (
            torch.no_grad(),
            self.states.replayed(path, n_row, first),
            self.heads.observed(replace_heads, n_row),
        ):
            return predict(self.model, inputs, metric)


# What a change leaves as it is: earlier layers, or a prefix.


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
                layer.forward = lambda *_, output=output, **__: output
                restored.callback(layer.__dict__.pop, "forward")
            yield

    @property
    def n_bytes(self) -> int:
        """The bytes of all outputs."""
        return sum(each.nbytes for output in self.outputs.values() for each in tensors_in(output))


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
