"""A model to audit: run it, also in float64, record the output of every layer, and repeat a layer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch

from attnscope.auditing.measure.difference import FAILURES, influences
from attnscope.auditing.measure.leak import Cause, first_leak
from attnscope.auditing.result import Influence
from attnscope.base.process.default_dtype import default_dtype
from attnscope.base.process.random_state import seed_torch
from attnscope.code.pairs.rounding import EXACT
from attnscope.observe.operators.tape import Widened, tensors_in

INPUT, OUTPUT = "before the first layer", "output"
"""The first and the last stage of a model."""

BATCH_NORMS = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.SyncBatchNorm)
"""Modules whose training uses the statistics of all rows and positions."""


@dataclass
class ModelRun:
    """One run of a model."""

    #: the output of each layer by path, in the order in which they ran, and the model's output last;
    #: `n_batch n_position d`
    stages: dict[str, torch.Tensor]
    output: Any = field(repr=False)

    def rows(self, positions: slice = slice(None), row: int = 0) -> dict[str, torch.Tensor]:
        """Return the outputs of one sequence at some positions, by stage: `n_position d`."""
        return {stage: tensor[row, positions] for stage, tensor in self.stages.items()}


class AuditedModel:
    """A model to audit."""

    def __init__(self, name: str, module: Any, n_tokens: int) -> None:
        self.name = name
        self.module = module
        self.n_tokens = n_tokens
        #: how many times it ran on a text of `n_tokens`; rows of a batch run at once
        self.n_forward = 0.0
        self.config = module.config
        self.parameters = set(inspect.signature(module.forward).parameters)
        #: whether it has both; then the positions of the decoder are audited
        self.is_encoder_decoder = bool(getattr(module.config, "is_encoder_decoder", False))

    @cached_property
    def exact(self) -> Any:
        """A copy in float64."""
        copy = deepcopy(self.module).double()
        if hasattr(copy, "_can_set_experts_implementation") and copy._can_set_experts_implementation():
            copy.set_experts_implementation("eager")
        return copy

    @cached_property
    def layers(self) -> dict[str, int]:
        """The paths of the layers, with their indices: members of a list that is not in another layer.

        Of an encoder-decoder model, the decoder's.
        """
        found: dict[str, int] = {}
        model, prefix = self.module, ""
        if self.is_encoder_decoder:
            model = self.module.get_decoder()
            prefix = next(path for path, each in self.module.named_modules() if each is model) + "."
        for name, module in model.named_modules():
            path = prefix + name
            if isinstance(module, torch.nn.ModuleList | torch.nn.Sequential) and len(module) > 0:
                if any(path.startswith(f"{layer}.") for layer in found):
                    continue
                if isinstance(module, torch.nn.Sequential) and not any(
                    "attention" in type(each).__name__.lower() for each in module.modules()
                ):
                    continue
                found |= {f"{path}.{index}": int(index) for index in module._modules}
        return found

    def takes(self, name: str) -> bool:
        """Whether the model's forward has a parameter."""
        return name in self.parameters

    def run(self, *, exact: bool = False, **inputs: Any) -> ModelRun:
        """Run the model, and record the output of every layer."""
        module = self.exact if exact else self.module
        main = audited_ids(inputs)
        self.n_forward += main.shape[1] / self.n_tokens
        stages: dict[str, torch.Tensor] = {}
        seed_torch(0)
        with recorded(module, self.layers, stages), running(exact):
            output = module(**inputs, **({"return_dict": True} if self.takes("return_dict") else {}))
        stages[OUTPUT] = self.main_output(output)
        return ModelRun(self._aligned(stages, main.shape), output)

    @staticmethod
    def main_output(output: Any) -> torch.Tensor:
        """Return logits, or else the last hidden states."""
        for name in ("logits", "last_hidden_state"):
            if isinstance(output, Mapping) and isinstance(output.get(name), torch.Tensor):
                return output[name]
        return next(tensors_in(output))

    @staticmethod
    def _aligned(stages: Mapping[str, torch.Tensor], shape: torch.Size) -> dict[str, torch.Tensor]:
        """Return the stages whose tensors have the axes `n_batch n_position …`."""
        n_batch, n = shape
        aligned = {}
        for stage, tensor in stages.items():
            if tensor.dim() >= 3 and tensor.shape[:2] == (n_batch, n):
                aligned[stage] = tensor
            elif tensor.dim() >= 3 and tensor.shape[:2] == (n, n_batch):
                aligned[stage] = tensor.transpose(0, 1)
            elif tensor.dim() == 2 and tensor.shape[0] == n_batch * n:
                aligned[stage] = tensor.view(n_batch, n, -1)
        return aligned


def audited_ids(inputs: Mapping[str, Any]) -> torch.Tensor:
    """Return the ids whose positions are audited, `n_batch n`: those of the decoder, if there is one."""
    return inputs["decoder_input_ids" if "decoder_input_ids" in inputs else "input_ids"]


@contextmanager
def running(exact: bool) -> Iterator[None]:
    """Run without gradients; exactly: in float64, also where a model asks for float32."""
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        if exact:
            stack.enter_context(default_dtype(torch.float64))
            stack.enter_context(Widened())
        yield


@contextmanager
def recorded(
    module: torch.nn.Module, layers: Mapping[str, int], stages: dict[str, torch.Tensor]
) -> Iterator[None]:
    """Record the input of the first layer that runs, and the output of every layer."""

    def before(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not stages:
            found = next(tensors_in((args, kwargs)), None)
            if found is not None:
                stages[INPUT] = found.detach().clone()

    def after(path: str) -> Any:
        def record(_: Any, args: Any, output: Any) -> None:
            found = next(tensors_in(output), None)
            if found is not None:
                name = path
                while name in stages:  # a layer that runs more than once
                    name += "'"
                stages[name] = found.detach().clone()

        return record

    with ExitStack() as hooks:
        for path in layers:
            layer = module.get_submodule(path)
            hooks.enter_context(layer.register_forward_pre_hook(before, with_kwargs=True))
            hooks.enter_context(layer.register_forward_hook(after(path)))
        yield


class Texts:
    """Draw token ids that are words: neither padding nor special."""

    def __init__(self, config: Any, special: Iterable[int] = (), seed: int = 0) -> None:
        text = config.get_text_config()
        n_vocab = int(text.vocab_size)
        avoided = {int(each) for each in special if each is not None} | {0}
        for part in (config, text):
            for name, value in vars(part).items():
                if name.endswith(("_token_id", "_token_index")):
                    avoided |= set(value if isinstance(value, list) else [value]) - {None}
        pool = [each for each in range(n_vocab) if each not in avoided]
        self.pool = torch.tensor(pool or range(n_vocab))
        pads = [getattr(text, name, None) for name in ("pad_token_id", "eos_token_id")]
        self.pad = next((each for each in pads if isinstance(each, int) and 0 <= each < n_vocab), 0)
        self.generator = torch.Generator().manual_seed(seed)

    def drawn(self, n: int) -> torch.Tensor:
        """Return random ids: `1 n`."""
        return self.pool[torch.randint(len(self.pool), (1, n), generator=self.generator)]

    def changed(self, ids: torch.Tensor, positions: slice) -> torch.Tensor:
        """Return ids that differ at every one of some positions, and at no other."""
        result = ids.clone()
        old = result[:, positions]
        index = torch.randint(len(self.pool), old.shape, generator=self.generator)
        new = self.pool[index]
        result[:, positions] = torch.where(new == old, self.pool[(index + 1) % len(self.pool)], new)
        return result


def batch_norms_of(module: torch.nn.Module | None) -> list[torch.nn.Module]:
    """Return the batch norms among the modules of a module; None has none."""
    return [] if module is None else [each for each in module.modules() if isinstance(each, BATCH_NORMS)]


@contextmanager
def batch_statistics(norms: Sequence[torch.nn.Module]) -> Iterator[None]:
    """Let batch norms use the statistics of their input, as in training; then restore their own."""
    before = [deepcopy(norm.state_dict()) for norm in norms]
    for norm in norms:
        norm.train()
    try:
        yield
    finally:
        for norm, state in zip(norms, before, strict=True):
            norm.eval()
            norm.load_state_dict(state)


class ReplayedLayer:
    """A layer with the arguments that it received in a run in float64."""

    def __init__(self, subject: AuditedModel, path: str, inputs: dict[str, Any]) -> None:
        self.subject, self.path = subject, path
        self.module = subject.exact.get_submodule(path)
        self.n = audited_ids(inputs).shape[1]
        calls: list[tuple[tuple[Any, ...], dict[str, Any], Any]] = []
        with self.module.register_forward_hook(
            lambda _, args, kwargs, output: calls.append((args, kwargs, output)), with_kwargs=True
        ):
            subject.run(exact=True, **inputs)
        self.args, self.kwargs, output = calls[0]
        found = [
            each
            for each in tensors_in((self.args, self.kwargs))
            if each.is_floating_point() and each.dim() == 3 and each.shape[1] == self.n
        ]
        self.hidden = found[0] if found else None  #: its input, `1 n d`
        #: whether it computes the same again. If not, it depends on more than its arguments
        self.is_repeatable = (
            self.hidden is not None
            and len(calls) == 1
            and torch.equal(self.outputs(self.hidden), self._rows(output))
        )

    def outputs(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the layer's output for another input: `n d`."""
        self.subject.n_forward += 1 / max(len(self.subject.layers), 1) * self.n / self.subject.n_tokens
        return self._rows(self._repeated(hidden))

    @staticmethod
    def _rows(output: Any) -> torch.Tensor:
        return next(tensors_in(output))[0].detach().clone()

    def changed(self, positions: slice) -> torch.Tensor:
        """Return the layer's input with other values at some positions, as large as the old ones."""
        assert self.hidden is not None
        result = self.hidden.clone()
        old = result[:, positions]
        noise = torch.randn(old.shape, generator=torch.Generator().manual_seed(0), dtype=old.dtype)
        noise = noise.to(old.device)
        result[:, positions] = noise * old.norm(dim=-1, keepdim=True) / noise.norm(dim=-1, keepdim=True)
        return result

    def influence(self, of: str, **matrices: Any) -> Influence:
        """Measure how much each position changes each: one run of the layer for each position."""
        assert self.hidden is not None
        changed = (self.outputs(self.changed(slice(key, key + 1))) for key in range(self.n))
        amounts = influences(self.outputs(self.hidden), changed)
        return Influence(of, amounts.where(amounts > EXACT, 0.0).tolist(), **matrices)

    def leak(
        self,
        positions: slice,
        still: list[int],
        shorter: ReplayedLayer | None,
        visible: torch.Tensor | None,
    ) -> Cause:
        """Find the line whose correction keeps positions where they should be; see `first_leak`."""
        return first_leak(
            partial(self._repeated, self.hidden),
            [(partial(self._repeated, self.changed(positions)), still)],
            self.n,
            None if shorter is None else partial(shorter._repeated, shorter.hidden),
            visible=visible,
        )

    def _repeated(self, hidden: torch.Tensor | None) -> Any:
        def put(each: Any) -> Any:
            return hidden if each is self.hidden else each

        args = tuple(map(put, self.args))
        with running(exact=True):
            return self.module(*args, **{name: put(each) for name, each in self.kwargs.items()})


def layer_of(
    subject: AuditedModel, stage: str, inputs: Callable[[], dict[str, Any]]
) -> ReplayedLayer | None:
    """Return a layer to run again; None if the stage is not a layer, or it cannot be repeated."""
    path = stage.rstrip("'")
    if path not in subject.layers:
        return None
    try:
        layer = ReplayedLayer(subject, path, inputs())
    except FAILURES:
        return None
    return layer if layer.is_repeatable else None
