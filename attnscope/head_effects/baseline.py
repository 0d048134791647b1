"""Run a model on a prompt, and run it again with other outputs of heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from attnscope.checkpoints.checkpoint import Checkpoint
from attnscope.errors import ModelError
from attnscope.head_effects.metric import PredictionMetric, predict
from attnscope.head_effects.restart import LayerOutputs
from attnscope.models.attention_hook import AttentionCall, observing
from attnscope.models.layers import layer_of, stack_of, why_repeated
from attnscope.models.load import as_model_error

Inputs = dict[str, torch.Tensor]


@dataclass(frozen=True)
class AttendingLayer:
    """The attention of one layer.

    Attributes:
        stack, number: its stack, and its index in the stack.
        n_layer: the number of layers of the stack.
        path: the name of the module that attends.
        turn: how often that module attended before it, if layers share a module.
        n_head: the number of query heads.
    """

    stack: str
    number: int
    n_layer: int
    path: str
    turn: int
    n_head: int


class Baseline:
    """A model's run on one prompt.

    Attributes:
        model: the model.
        inputs: its arguments, one sequence.
        metric: the metric of the prediction.
        layers: the layers whose attention was observed, in the order in which they ran.
        outputs: for each of them, the heads' outputs before the output projection, `n_Q n_head d_V`.
        prediction: the part of the prediction that the metric reads, of the only sequence.
        value: the metric.
        states: what each layer returned.
        restarts: whether further runs restart at a layer.
    """

    def __init__(
        self, checkpoint: Checkpoint, model: Any, inputs: Inputs, metric: PredictionMetric
    ) -> None:
        self.checkpoint, self.model, self.inputs, self.metric = checkpoint, model, inputs, metric
        self.layers: list[AttendingLayer] = []
        self.outputs: list[torch.Tensor] = []
        self.states = LayerOutputs(model)
        with (
            torch.no_grad(),
            as_model_error(checkpoint),
            self.states.recorded(),
            observing(model, self._record),
        ):
            self.prediction = predict(model, inputs, metric)
        self.value = float(metric.of(self.prediction)[0])
        if not self.layers:
            raise ModelError(
                f"{checkpoint.name} does not call attention through transformers' registry, so its"
                " heads cannot be changed one by one.",
            )
        self.restarts = not self.states.repeats and len(self.layers) > 1 and self._can_restart()

    def _record(self, call: AttentionCall) -> None:
        """Record the outputs of one layer's heads.

        Raises:
            ModelError: the layer attends more than once.
        """
        stack = stack_of(call.path, self.model.config, cross=call.cross)
        known = [(layer.stack, layer.number) for layer in self.layers]
        number, n_layer = layer_of(self.model, stack, call.path, known)
        if reason := why_repeated(stack, number, known):
            raise ModelError(f"in {self.checkpoint.name}, {reason}: its heads have no single output.")
        turn = sum(layer.path == call.path for layer in self.layers)
        self.layers.append(AttendingLayer(stack, number, n_layer, call.path, turn, call.n_head))
        self.outputs.append(call.output[0].detach().clone())

    def _can_restart(self) -> bool:
        """Check that a run which restarts at the last layer, or in the middle, predicts the same."""
        for index in {len(self.layers) // 2, len(self.layers) - 1}:
            try:
                again = self._run(index, 1, lambda output: output)
            except Exception:  # whatever a model does without its earlier layers
                return False
            scale = float(self.prediction.abs().max()) or 1.0
            limit = 1e-4 if self.prediction.dtype in (torch.float32, torch.float64) else 3e-2
            if not float((again - self.prediction).abs().max()) <= limit * scale:
                return False
        return True

    def run(self, index: int, replaced: torch.Tensor, heads: Sequence[int]) -> torch.Tensor:
        """Return the metric of several sequences, in each of which one head has another output.

        Args:
            index: the layer, as an index into `layers`.
            replaced: the heads' other outputs, `n_row n_Q d_V`.
            heads: for each row, the head.
        """
        rows = torch.arange(len(heads))

        def change(output: torch.Tensor) -> torch.Tensor:
            changed = output.clone()
            changed[rows, :, list(heads)] = replaced.to(output)
            return changed

        with as_model_error(self.checkpoint):
            return self.metric.of(self._run(index, len(heads), change, restart=self.restarts))

    def _run(
        self,
        index: int,
        n_row: int,
        change: Callable[[torch.Tensor], torch.Tensor],
        *,
        restart: bool = True,
    ) -> torch.Tensor:
        """Return the prediction of `n_row` equal sequences with a change in one layer.

        Args:
            index: the layer, as an index into `layers`.
            n_row: the number of sequences.
            change: returns other outputs of the layer's heads, `n_row n_Q n_head d_V`.
            restart: whether the layers before it return what they returned before.
        """
        layer, turns = self.layers[index], 0

        def replace(call: AttentionCall) -> torch.Tensor | None:
            nonlocal turns
            if call.path != layer.path:
                return None
            turns += 1
            return change(call.output) if turns - 1 == layer.turn else None

        repeated = {name: each.expand(n_row, *each.shape[1:]) for name, each in self.inputs.items()}
        path = layer.path if restart else ""
        with torch.no_grad(), self.states.replayed(path, n_row), observing(self.model, replace):
            return predict(self.model, repeated, self.metric)
