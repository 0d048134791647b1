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
from functools import partial
from typing import Any

import torch

from attnscope.model.effects.baseline import Baseline, layers_of
from attnscope.model.effects.head_outputs import AttendingLayer
from attnscope.model.effects.metric import predict
from attnscope.model.effects.options import Kind
from attnscope.model.files.checkpoint import Checkpoint
from attnscope.model.run.load import as_model_error
from attnscope.model.run.value_norms import is_norm

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
    """What the parts of a model contribute to a logit."""

    heads: list[torch.Tensor]  #: for each layer's attention, in order: `n_Q n_head`
    parts: dict[str, float]  #: everything else by name: `embeddings`, `MLP 0` and so on, `biases`
    total: float
    value: float  #: the logit, or difference of logits, before a final soft cap
    capped: bool  #: whether there is such a cap


class _Term:
    """A term of the logit: a tensor, and zeros that were added where it was computed.

    The gradient of the zeros is the linear map from there to the logit.
    """

    def __init__(self, value: torch.Tensor, like: torch.Tensor | None = None) -> None:
        like = value if like is None else like
        self.value, self.leaf = value.detach(), torch.zeros_like(like, requires_grad=True)

    @property
    def contribution(self) -> float:
        grad = self.leaf.grad
        return 0.0 if grad is None else float((self.value.double() * grad.double()).sum())


@dataclass
class _Recorded:
    """What is recorded while the model runs; its methods are hooks."""

    #: before, after: the stream before and after each layer, by the layer's name
    before: dict[str, _Term] = field(default_factory=dict)
    after: dict[str, _Term] = field(default_factory=dict)
    heads: dict[int, _Term] = field(default_factory=dict)  #: by the index of a layer that attends
    projections: dict[int, _Term] = field(default_factory=dict)  #: likewise, the biases of W_O
    norms: list[_Term] = field(default_factory=list)  #: outside of layers: β
    #: norms that are not linear maps with a frozen scale: their name and their output
    unknown: list[tuple[str, _Term]] = field(default_factory=list)
    #: the modules without parts that ran after the latest layer, by name
    tail: dict[str, torch.nn.Module] = field(default_factory=dict)

    def add_heads(self, index: int, outputs: torch.Tensor) -> torch.Tensor:
        """Make heads' outputs the beginning of a gradient."""
        term = self.heads[index] = _Term(outputs)
        return term.value + term.leaf

    def add_before(self, name: str, module: Any, arguments: Any, options: dict[str, Any]) -> Any:
        """Make the stream before a layer the beginning of a gradient."""
        states = arguments[0] if arguments else None
        if isinstance(states, torch.Tensor):
            term = self.before[name] = _Term(states)
            return (states + term.leaf, *arguments[1:]), options
        states = options.get("hidden_states")
        if isinstance(states, torch.Tensor):
            term = self.before[name] = _Term(states)
            return arguments, options | {"hidden_states": states + term.leaf}
        return None

    def add_after(self, name: str, module: Any, arguments: Any, output: Any) -> Any:
        """Make the stream after a layer the beginning of a gradient."""
        states = output[0] if isinstance(output, tuple) else output
        if not isinstance(states, torch.Tensor) or not states.is_floating_point():
            return None
        self.tail.clear()
        term = self.after[name] = _Term(states)
        return _with_first(output, states + term.leaf)

    def add_tail(self, name: str, module: torch.nn.Module, arguments: Any, output: Any) -> None:
        """Record that a module ran."""
        self.tail[name] = module

    def add_projection(self, index: int, module: Any, arguments: Any, output: Any) -> Any:
        """Make the output of a layer's W_O the beginning of a gradient."""
        projected = output[0] if isinstance(output, tuple) else output
        bias = getattr(module, "bias", None)
        term = _Term(projected.new_zeros(()) if bias is None else bias, projected)
        self.projections[index] = term
        return _with_first(output, projected + term.leaf)

    def add_norm(
        self, name: str, inside: bool, module: Any, arguments: Any, options: dict[str, Any], output: Any
    ) -> Any:
        """Freeze the scale of a norm, which is inside a layer or not."""
        read = [each for each in (*arguments, *options.values()) if isinstance(each, torch.Tensor)]
        if not isinstance(output, torch.Tensor) or not any(each.requires_grad for each in read):
            return None
        x = read[0]
        norm = frozen(module, x.detach(), output.detach()) if len(read) == 1 else None
        if norm is None:
            term = _Term(output)
            self.unknown.append((name, term))
            return term.value + term.leaf
        if inside:
            return norm(x, output)
        self.norms.append(_Term(norm.bias, output))
        return norm(x, output) + self.norms[-1].leaf


def _with_first(output: Any, first: torch.Tensor) -> Any:
    """Return a module's output, a tensor or a tuple, with another first tensor."""
    return (first, *output[1:]) if isinstance(output, tuple) else first


def _detach(module: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Let nothing flow through a module with a matrix."""

    def detached(value: Any) -> Any:
        return value.detach() if isinstance(value, torch.Tensor) else value

    return tuple(map(detached, arguments)), {key: detached(each) for key, each in options.items()}


def direct_effects(checkpoint: Checkpoint, model: Any, baseline: Baseline) -> DirectEffects:
    """Return what each head, and each other part, contributes to the logit that a metric reads.

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
        for parameter in filter(lambda each: each.requires_grad, model.parameters()):
            parameter.requires_grad_(False)  # else a norm of the embeddings would count twice
            hooks.callback(parameter.requires_grad_, True)
        _hook(model, baseline.layers, recorded, hooks)
        head = model.get_output_embeddings()
        if softcap and head is not None:
            hooks.enter_context(head.register_forward_hook(lambda *call: uncapped.append(call[2])))
        hooks.enter_context(baseline.heads.observed(recorded.add_heads, 1))
        prediction = predict(model, baseline.inputs, baseline.metric)
        value = baseline.metric.of(uncapped[-1] if uncapped else prediction)[0]
    return _collected(model, baseline, recorded, value, capped=bool(uncapped))


def _hook(
    model: Any, attending: Sequence[AttendingLayer], recorded: _Recorded, hooks: ExitStack
) -> None:
    """Add the hooks that let the gradient flow along the residual stream alone."""
    layers = layers_of(model)
    projections = {
        layer.projection.name: index for index, layer in enumerate(attending) if layer.projection
    }
    add = hooks.enter_context
    for name, layer in layers.items():
        before, after = partial(recorded.add_before, name), partial(recorded.add_after, name)
        add(layer.register_forward_pre_hook(before, with_kwargs=True))
        add(layer.register_forward_hook(after))
    for name, module in model.named_modules():
        inside = any(name.startswith(f"{layer}.") for layer in layers)
        if not inside and next(module.children(), None) is None:
            add(module.register_forward_hook(partial(recorded.add_tail, name)))
        if is_norm(module):
            freeze = partial(recorded.add_norm, name, inside)
            add(module.register_forward_hook(freeze, with_kwargs=True))
        elif name in projections:
            add(module.register_forward_hook(partial(recorded.add_projection, projections[name])))
        elif inside and any(each.dim() > 1 for each in module.parameters(recurse=False)):
            add(module.register_forward_pre_hook(_detach, with_kwargs=True))


def _collected(
    model: Any, baseline: Baseline, recorded: _Recorded, value: torch.Tensor, *, capped: bool
) -> DirectEffects:
    """Multiply what was recorded by its gradient."""
    if not value.requires_grad:
        raise NotAdditiveError("no path leads from its layers to the prediction")
    value.backward()
    for name, term in recorded.unknown:
        if term.leaf.grad is not None and float(term.leaf.grad.abs().max()):
            raise NotAdditiveError(f"{name} does not scale each position by one number, as a norm does")
    on_path = [
        name
        for name in recorded.before
        if name in recorded.after and recorded.after[name].leaf.grad is not None
    ]
    if not on_path:
        raise NotAdditiveError("no layer adds to what the prediction reads")
    for name in on_path:
        _check_adds(model, name, recorded)
    heads = []
    for index in range(len(baseline.layers)):
        output, grad = recorded.heads[index].value[0], recorded.heads[index].leaf.grad
        grad = torch.zeros_like(output) if grad is None else grad[0]
        heads.append((output.double() * grad.double()).sum(-1))
    biases = sum(term.contribution for term in recorded.norms)
    parts = {"embeddings": recorded.before[on_path[0]].contribution}
    for name in on_path:
        rest = recorded.after[name].contribution - recorded.before[name].contribution
        for index, layer in enumerate(baseline.layers):
            if layer.path.startswith(f"{name}."):
                of_bias = recorded.projections[index].contribution
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
    return DirectEffects(heads, parts, total, logit, capped)


def _check_adds(model: Any, name: str, recorded: _Recorded) -> None:
    """Raise a NotAdditiveError unless a layer adds to the stream, or scales it."""
    before, after = recorded.before[name].leaf.grad, recorded.after[name].leaf.grad
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


# Norms with their scale frozen: linear maps that return what the norm returned.

LARGE = 1e4
"""The size of the inputs with which a norm is measured: their variance hides the norm's epsilon."""


@dataclass(frozen=True)
class FrozenNorm:
    """A norm as a linear map."""

    #: weight, bias: γ and β, `d_feat`
    weight: torch.Tensor
    bias: torch.Tensor
    scale: torch.Tensor  #: 1/σ of each position, `… 1`
    centred: bool  #: whether the mean is subtracted

    def __call__(self, x: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        """Return a norm's output, as a linear function of its input, `… d_feat`."""
        change = x - x.detach()
        if self.centred:
            change = change - change.mean(dim=-1, keepdim=True)
        return output.detach() + (change * self.scale * self.weight).to(output.dtype)


def frozen(module: Any, x: torch.Tensor, output: torch.Tensor) -> FrozenNorm | None:
    """Measure the linear map that a norm is at one input, `… d_feat`; None: it is not such a map.

    LayerNorm computes (x − mean(x))/σ ⊙ γ + β, and RMSNorm x/σ ⊙ γ. With σ frozen, both are linear in x.
    Source: Ba et al. (2016), arXiv:1607.06450; Zhang and Sennrich (2019), arXiv:1910.07467

    γ and β are measured too, since classes store them differently, such as γ − 1. The norm has no hooks.
    """
    n = x.shape[-1]
    with torch.no_grad():
        probe = torch.ones(n, dtype=x.dtype, device=x.device)
        probe[1::2] = -1
        if n % 2:  # three entries that sum to 0
            probe[-3:] = torch.tensor([1.0, 1.0, -2.0] if n % 4 == 3 else [-1.0, -1.0, 2.0])
        probe_scale = probe.double().square().mean().sqrt()
        bias = module.forward(torch.zeros_like(probe)[None])[0].double()
        weight = (module.forward((probe * LARGE)[None])[0].double() - bias) * probe_scale / probe
        inputs, outputs = x.double(), output.double() - bias
        limit = 1e-3 if x.dtype in (torch.float32, torch.float64) else 3e-2
        for centred in (False, True):
            base = inputs - inputs.mean(dim=-1, keepdim=True) if centred else inputs
            unscaled = base * weight
            size = unscaled.square().sum(dim=-1, keepdim=True)
            scale = (outputs * unscaled).sum(dim=-1, keepdim=True) / size.clamp_min(1e-300)
            error = (outputs - scale * unscaled).abs().max()
            if float(error) <= limit * float(outputs.abs().max()):
                precise = torch.promote_types(x.dtype, torch.float32)
                return FrozenNorm(weight.to(precise), bias.to(precise), scale.to(precise), centred)
    return None
