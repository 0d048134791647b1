"""Direct logit attribution: what each part of a model adds to a logit through the residual stream alone.

The residual stream is a sum: the embeddings, and what each layer adds. With the scales of norms frozen,
the way from it to a logit is linear, so the logit is the sum of what the parts contribute. The model
runs once; what each layer computes from the stream counts as constant, and the gradient of the logit is
the linear map.

Source: nostalgebraist (2020), "interpreting GPT: the logit lens"; Elhage et al. (2021), "A Mathematical
Framework for Transformer Circuits"
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch

from attnscope.checkpoints.checkpoint import Checkpoint
from attnscope.head_effects.baseline import Baseline
from attnscope.head_effects.frozen_norm import frozen, is_norm
from attnscope.head_effects.head_outputs import AttendingLayer, Observer
from attnscope.head_effects.metric import predict
from attnscope.head_effects.options import Kind
from attnscope.head_effects.restart import layers_of
from attnscope.models.load import as_model_error

TOLERANCES = {torch.float16: 5e-3, torch.bfloat16: 3e-2}
"""The largest difference between a logit and the sum of all parts, relative to the size of the parts, if
the model rounds to 16 bits; otherwise, 1e-4."""

SOFTCAPS = ("final_logit_softcapping", "logits_soft_cap")
"""The names of the final soft cap in configurations."""

NOT_ALIGNED = 1e-3
"""The largest relative difference between gradients before and after a layer, if it only adds."""


class NotAdditiveError(Exception):
    """The model's logit is not a sum of what its parts contribute; the message says why."""


@dataclass
class DirectEffects:
    """What the parts of a model contribute to a logit.

    Attributes:
        heads: for each layer's attention, in order: `n_Q n_head`.
        parts: everything else by name: `embeddings`, `MLP 0` and so on, `biases`.
        total: the sum of everything.
        value: the logit, or difference of logits, before a final soft cap.
    """

    heads: list[torch.Tensor]
    parts: dict[str, float]
    total: float
    value: float


@dataclass
class _Stream:
    """The residual stream at one place.

    Attributes:
        state: its value, `n_batch n_Q d_feat`.
        leaf: zeros that were added to it.
    """

    state: torch.Tensor
    leaf: torch.Tensor


@dataclass
class _Recorded:
    """What is recorded while the model runs.

    Attributes:
        before, after: the stream before and after each layer, by the layer's name.
        heads: by the index of a layer that attends: the heads' outputs, and a leaf.
        projections: likewise, the output projection's bias, and a leaf of its output.
        norms: outside of layers: β, and the leaf of the output.
        unknown: norms that are not linear maps with a frozen scale: their name and a leaf.
        tail: the modules without parts that ran after the latest layer, by name.
    """

    before: dict[str, _Stream] = field(default_factory=dict)
    after: dict[str, _Stream] = field(default_factory=dict)
    heads: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    projections: dict[int, tuple[torch.Tensor | None, torch.Tensor]] = field(default_factory=dict)
    norms: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    unknown: list[tuple[str, torch.Tensor]] = field(default_factory=list)
    tail: dict[str, torch.nn.Module] = field(default_factory=dict)


def direct_effects(checkpoint: Checkpoint, model: Any, baseline: Baseline) -> DirectEffects:
    """Return what each head, and each other part, contributes to the logit that a metric reads.

    Args:
        checkpoint: the model's checkpoint, for errors.
        model: the model.
        baseline: its run.

    Raises:
        NotAdditiveError: the metric is neither a logit nor a difference of logits; or contributions do
            not add up to it, as with norms after each block.
    """
    if baseline.metric.kind is not Kind.LOGIT:
        raise NotAdditiveError(
            f"contributions sum to a logit, and the metric is a {baseline.metric.kind}"
        )
    for layer in baseline.layers:
        if layer.projection is None:
            raise NotAdditiveError(f"the output projection of {layer.path} was not found")
    recorded = _Recorded()
    config = model.config.get_text_config()
    softcap = any(getattr(config, name, None) is not None for name in SOFTCAPS)
    uncapped: list[torch.Tensor] = []
    with torch.enable_grad(), as_model_error(checkpoint), ExitStack() as hooks:
        _hook(model, baseline.layers, recorded, hooks)
        head = model.get_output_embeddings()
        if softcap and head is not None:
            handle = head.register_forward_hook(lambda *call: uncapped.append(call[2]))
            hooks.callback(handle.remove)
        hooks.enter_context(baseline.heads.observed(_add_heads(recorded), 1))
        prediction = predict(model, baseline.inputs, baseline.metric)
        value = baseline.metric.of(uncapped[-1] if uncapped else prediction)[0]
    return _collected(model, baseline, recorded, value)


def _hook(
    model: Any, attending: Sequence[AttendingLayer], recorded: _Recorded, hooks: ExitStack
) -> None:
    """Add the hooks that let the gradient flow along the residual stream alone."""
    layers, handles = layers_of(model), []
    projections = {
        layer.projection.name: index for index, layer in enumerate(attending) if layer.projection
    }
    for name, layer in layers.items():
        handles.append(layer.register_forward_pre_hook(_before(recorded, name), with_kwargs=True))
        handles.append(layer.register_forward_hook(_after(recorded, name)))
    for name, module in model.named_modules():
        inside = any(name.startswith(f"{layer}.") for layer in layers)
        if not inside and next(module.children(), None) is None:
            handles.append(module.register_forward_hook(_tail(recorded, name)))
        if is_norm(module):
            freeze = _norm(recorded, name, inside=inside)
            handles.append(module.register_forward_hook(freeze, with_kwargs=True))
        elif name in projections:
            record = _projection(recorded, projections[name])
            handles.append(module.register_forward_hook(record))
        elif inside and any(each.dim() > 1 for each in module.parameters(recurse=False)):
            handles.append(module.register_forward_pre_hook(_detach, with_kwargs=True))
    for handle in handles:
        hooks.callback(handle.remove)


def _add_heads(recorded: _Recorded) -> Observer:
    """Return a function that makes heads' outputs the beginning of a gradient."""

    def add_leaf(index: int, outputs: torch.Tensor) -> torch.Tensor:
        leaf = torch.zeros_like(outputs, requires_grad=True)
        recorded.heads[index] = (outputs.detach()[0], leaf)
        return outputs.detach() + leaf

    return add_leaf


def _before(recorded: _Recorded, name: str) -> Any:
    """Return a hook that makes the stream before a layer the beginning of a gradient."""

    def hook(module: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if arguments and isinstance(arguments[0], torch.Tensor):
            stream = _stream(arguments[0])
            recorded.before[name] = stream
            return (arguments[0] + stream.leaf, *arguments[1:]), options
        if isinstance(options.get("hidden_states"), torch.Tensor):
            states = options["hidden_states"]
            stream = recorded.before[name] = _stream(states)
            return arguments, options | {"hidden_states": states + stream.leaf}
        return None

    return hook


def _after(recorded: _Recorded, name: str) -> Any:
    """Return a hook that makes the stream after a layer the beginning of a gradient."""

    def hook(module: Any, arguments: Any, output: Any) -> Any:
        states = output[0] if isinstance(output, tuple) else output
        if not isinstance(states, torch.Tensor) or not states.is_floating_point():
            return None
        recorded.tail.clear()
        stream = recorded.after[name] = _stream(states)
        changed = states + stream.leaf
        return (changed, *output[1:]) if isinstance(output, tuple) else changed

    return hook


def _tail(recorded: _Recorded, name: str) -> Any:
    """Return a hook that records that a module ran."""

    def hook(module: torch.nn.Module, arguments: Any, output: Any) -> None:
        recorded.tail[name] = module

    return hook


def _stream(states: torch.Tensor) -> _Stream:
    return _Stream(states.detach(), torch.zeros_like(states, requires_grad=True))


def _detach(module: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Let nothing flow through a module with a matrix."""
    return tuple(map(_detached, arguments)), {key: _detached(each) for key, each in options.items()}


def _projection(recorded: _Recorded, index: int) -> Any:
    """Return a hook that makes the output of a layer's W_O the beginning of a gradient."""

    def hook(module: Any, arguments: Any, output: torch.Tensor) -> torch.Tensor:
        leaf = torch.zeros_like(output, requires_grad=True)
        bias = getattr(module, "bias", None)
        recorded.projections[index] = (None if bias is None else bias.detach(), leaf)
        return output + leaf

    return hook


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value


def _norm(recorded: _Recorded, name: str, *, inside: bool) -> Any:
    """Return a hook that freezes the scale of a norm."""

    def hook(module: Any, arguments: tuple[Any, ...], options: dict[str, Any], output: Any) -> Any:
        read = [each for each in (*arguments, *options.values()) if isinstance(each, torch.Tensor)]
        if not isinstance(output, torch.Tensor) or not any(each.requires_grad for each in read):
            return None
        x = read[0]
        norm = frozen(module, x.detach(), output.detach()) if len(read) == 1 else None
        leaf = torch.zeros_like(output, requires_grad=True)
        if norm is None:
            recorded.unknown.append((name, leaf))
            return output.detach() + leaf
        if inside:
            return norm(x, output)
        recorded.norms.append((norm.bias, leaf))
        return norm(x, output) + leaf

    return hook


def _collected(
    model: Any, baseline: Baseline, recorded: _Recorded, value: torch.Tensor
) -> DirectEffects:
    """Multiply what was recorded by its gradient."""
    names = [name for name in recorded.before if name in recorded.after]
    leaves = [leaf for _, leaf in recorded.heads.values()]
    leaves += [recorded.before[name].leaf for name in names]
    leaves += [recorded.after[name].leaf for name in names]
    leaves += [leaf for _, leaf in recorded.projections.values()]
    leaves += [leaf for _, leaf in recorded.norms]
    leaves += [leaf for _, leaf in recorded.unknown]
    if not value.requires_grad:
        raise NotAdditiveError("no path leads from its layers to the prediction")
    found = torch.autograd.grad(value, leaves, allow_unused=True)
    gradient = {id(leaf): grad for leaf, grad in zip(leaves, found, strict=True) if grad is not None}
    for name, leaf in recorded.unknown:
        if id(leaf) in gradient and float(gradient[id(leaf)].abs().max()):
            raise NotAdditiveError(f"{name} does not scale each position by one number, as a norm does")
    on_path = [name for name in names if id(recorded.after[name].leaf) in gradient]
    if not on_path:
        raise NotAdditiveError("no layer adds to what the prediction reads")

    def contribution(state: torch.Tensor, leaf: torch.Tensor) -> float:
        grad = gradient.get(id(leaf))
        return 0.0 if grad is None else float((state.double() * grad.double()).sum())

    for name in on_path:
        _check_adds(model, name, gradient, recorded)
    heads = [
        (output.double() * gradient[id(leaf)][0].double()).sum(-1)
        if id(leaf) in gradient
        else torch.zeros(output.shape[:2], dtype=torch.float64, device=output.device)
        for output, leaf in (recorded.heads[index] for index in range(len(baseline.layers)))
    ]
    biases = sum(contribution(bias, leaf) for bias, leaf in recorded.norms)
    parts = {"embeddings": contribution(*vars(recorded.before[on_path[0]]).values())}
    for name in on_path:
        before, after = recorded.before[name], recorded.after[name]
        rest = contribution(after.state, after.leaf) - contribution(before.state, before.leaf)
        for index, layer in enumerate(baseline.layers):
            if layer.path.startswith(f"{name}."):
                bias, leaf_of_output = recorded.projections[index]
                of_bias = 0.0 if bias is None else contribution(bias, leaf_of_output)
                rest -= float(heads[index].sum()) + of_bias
                biases += of_bias
        parts[f"MLP {name.rpartition('.')[2]}"] = rest
    parts["biases"] = biases + _head_bias(model, baseline)
    logit = float(value.detach())
    total = sum(float(each.sum()) for each in heads) + sum(parts.values())
    terms = sum(abs(each) for each in parts.values()) + abs(logit)
    dtype = baseline.prediction.dtype
    if not abs(total - logit) <= TOLERANCES.get(dtype, 1e-4) * max(1.0, terms):
        why = "what follows the last layer is not linear"
        why += ", or float32 is needed" if dtype in TOLERANCES else ""
        raise NotAdditiveError(
            f"all contributions sum to {total:.4g}, and the logit is {logit:.4g}: {why}"
        )
    if dtype in TOLERANCES:
        _check_tail(model, recorded)
    return DirectEffects(heads, parts, total, logit)


def _check_adds(model: Any, name: str, gradient: dict[int, torch.Tensor], recorded: _Recorded) -> None:
    """Raise a NotAdditiveError unless a layer adds to the stream, or scales it."""
    before, after = (gradient.get(id(each[name].leaf)) for each in (recorded.before, recorded.after))
    kind = type(model.get_submodule(name)).__name__
    if before is None or after is None or before.shape != after.shape:
        raise NotAdditiveError(f"{name} ({kind}) does not add to a residual stream")
    before, after = before.double(), after.double()
    factor = float((before * after).sum() / after.square().sum())
    if float((before - factor * after).norm()) > NOT_ALIGNED * float(before.norm()):
        raise NotAdditiveError(
            f"{name} ({kind}) does not only add to the residual stream: a norm follows the sum, as in"
            " BERT, or another map"
        )


def _check_tail(model: Any, recorded: _Recorded) -> None:
    """Raise a NotAdditiveError if more than norms and the last matrix follow the last layer.

    Where a model rounds to 16 bits, the sum alone does not tell whether these are linear.
    """
    for name, module in recorded.tail.items():
        passes = isinstance(module, (torch.nn.Dropout, torch.nn.Identity))
        if not (passes or is_norm(module) or module is model.get_output_embeddings()):
            raise NotAdditiveError(
                f"{name} ({type(module).__name__}) follows the last layer, and 16 bits are too few to"
                " tell whether it is linear; float32 would tell"
            )


def _head_bias(model: Any, baseline: Baseline) -> float:
    """Return what the biases after the last layer add to the metric."""
    metric, total = baseline.metric, 0.0
    head = model.get_output_embeddings()
    for bias in (getattr(head, "bias", None), getattr(model, "final_logits_bias", None)):
        if bias is not None:
            values = bias.detach().flatten().double()
            total += float(values[metric.answer[0]])
            total -= 0.0 if metric.against is None else float(values[metric.against])
    return total
