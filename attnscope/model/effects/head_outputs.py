"""Read and replace the outputs of heads where they enter the output projection W_O.

Between a layer's attention and W_O, some models have a gate or a norm. What enters W_O is the heads'
output all the same, so it is read and replaced there. If W_O is not found, that is what the attention
returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from attnscope.base.errors import ModelError
from attnscope.model.files.checkpoint import Checkpoint
from attnscope.model.run.attention_hook import AttentionCall, observing
from attnscope.model.run.layers import layer_of, stack_of, why_repeated
from attnscope.model.run.output_projection import (
    OutputProjection,
    UnknownHeadsError,
    output_projections,
    own_projections,
)

Observer = Callable[[int, torch.Tensor], torch.Tensor | None]
"""Called with a layer's index and its heads' outputs, `n_batch n_Q n_head d_V`; may replace them."""


@dataclass(frozen=True)
class AttendingLayer:
    """The attention of one layer."""

    #: stack, number: its stack, and its index in the stack
    stack: str
    number: int
    n_layer: int
    path: str  #: the name of the module that attends
    turn: int  #: how often that module attended before it, if layers share a module
    n_head: int
    projection: OutputProjection | None


class HeadOutputs:
    """The places of a model where heads' outputs can be read and replaced.

    Attributes:
        layers: the layers that attend, in the order in which they run.
        registered: whether the model calls attention through transformers' registry; if not, only what
            enters W_O is known.
    """

    def __init__(self, checkpoint: Checkpoint, model: Any, run: Callable[..., Any]) -> None:
        self.model = model
        with torch.no_grad():
            calls, projections = output_projections(model, run)
        self.registered = bool(calls)
        if not calls:
            try:
                calls, projections = own_projections(model, run)
            except UnknownHeadsError as error:
                raise ModelError(
                    f"{checkpoint.name} does not call attention through transformers' registry, and"
                    f" {error}: its heads cannot be changed one by one."
                ) from None
        self.layers: list[AttendingLayer] = []
        for call in calls:
            path, n_head = call.path, call.n_head
            stack = stack_of(path, model.config, cross=call.cross)
            known = [(layer.stack, layer.number) for layer in self.layers]
            number, n_layer = layer_of(model, stack, path, known)
            if reason := why_repeated(stack, number, known):
                raise ModelError(f"in {checkpoint.name}, {reason}: its heads have no single output.")
            turn = sum(layer.path == path for layer in self.layers)
            projection = projections.get(path)
            self.layers.append(AttendingLayer(stack, number, n_layer, path, turn, n_head, projection))
        if not self.layers:
            raise ModelError(f"no attention was found in {checkpoint.name}.")

    @contextmanager
    def observed(self, observer: Observer, n_batch: int) -> Iterator[None]:
        """Call a function with the heads' outputs of each layer that runs within the block."""
        index = {(layer.path, layer.turn): i for i, layer in enumerate(self.layers)}
        by_path = {layer.path: layer.projection for layer in self.layers}
        turns = dict.fromkeys(by_path, 0)

        def call_observer(path: str, outputs: torch.Tensor) -> torch.Tensor | None:
            turns[path] += 1
            place = index.get((path, turns[path] - 1))
            return None if place is None else observer(place, outputs)

        def hook(path: str, projection: OutputProjection) -> Any:
            def before(module: Any, arguments: tuple[Any, ...]) -> Any:
                x = arguments[0]
                outputs = x.reshape(n_batch, -1, projection.n_head, projection.d_V)
                replaced = call_observer(path, outputs)
                return None if replaced is None else (replaced.reshape(x.shape), *arguments[1:])

            return before

        def observe_call(call: AttentionCall) -> torch.Tensor | None:
            unknown = call.path in by_path and by_path[call.path] is None
            return call_observer(call.path, call.output) if unknown else None

        with ExitStack() as hooks:
            for path, projection in by_path.items():
                if projection is not None:
                    module = self.model.get_submodule(projection.name)
                    hooks.enter_context(module.register_forward_pre_hook(hook(path, projection)))
            if None in by_path.values():
                hooks.enter_context(observing(self.model, observe_call))
            yield
