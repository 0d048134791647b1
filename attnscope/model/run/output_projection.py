"""Find the output projections of a model's attention, W_O, without knowing its class.

The model runs once in which the heads of each layer put out NaN. The first module with a matrix that
reads NaN is the layer's output projection, since everything between is computed from what the heads put
out: a gate or a norm, if any. It returns zeros in this run, so that NaN spreads no further.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnscope.model.run.attention_hook import AttentionCall, is_cross, observing
from attnscope.model.run.attention_layer import outermost_attentions
from attnscope.model.run.load import switched_attention

if TYPE_CHECKING:
    import torch

ROUNDING, ROUNDING_16 = 1e-3, 5e-2
"""The largest relative difference that rounding explains: in 32 bits or more, and in 16."""


@dataclass(frozen=True)
class OutputProjection:
    """The output projection of a layer's attention."""

    name: str
    #: n_head, d_V: the sizes of its input: the heads' outputs, side by side.
    n_head: int
    d_V: int  # noqa: N815 - the field's name


@dataclass(frozen=True)
class CalledLayer:
    """A layer that attended in a run."""

    path: str
    #: whether keys and queries come from different sequences.
    cross: bool
    #: the number of query heads.
    n_head: int


def output_projections(
    model: Any, run: Callable[[], Any]
) -> tuple[list[CalledLayer], dict[str, OutputProjection]]:
    """Find the layers that attend, in order, and their output projections by the layer's path.

    A layer has none if no module multiplies its heads' outputs by a matrix, if several do, or if what
    the matrix reads is not as wide as the heads' outputs.
    """
    names = {id(module): name for name, module in model.named_modules()}
    calls: list[CalledLayer] = []
    sizes: list[tuple[int, int]] = []  # of the latest call
    readers: dict[str, list[str]] = {}  # by path: the modules that read what the heads put out
    found: dict[str, OutputProjection] = {}

    def put_out_nan(call: AttentionCall) -> torch.Tensor:
        calls.append(CalledLayer(call.path, call.cross, call.n_head))
        sizes[:] = [(call.output.shape[-2], call.output.shape[-1])]
        readers.setdefault(call.path, [])
        return call.output.new_full(call.output.shape, float("nan"))

    def before(module: Any, arguments: tuple[Any, ...]) -> None:
        x: Any = arguments[0] if arguments else None
        if not calls or not hasattr(x, "isnan") or not bool(x.isnan().any()):
            return
        path, name = calls[-1].path, names[id(module)]
        [(n_head, d_V)] = sizes
        if name not in readers[path]:
            readers[path].append(name)
        if x.shape[-1] == n_head * d_V:
            found[path] = OutputProjection(name, n_head, d_V)

    def after(module: Any, arguments: tuple[Any, ...], output: Any) -> Any:
        return output.nan_to_num(0.0) if hasattr(output, "nan_to_num") else None

    with ExitStack() as hooks:
        for module in model.modules():
            if any(each.dim() > 1 for each in module.parameters(recurse=False)):
                hooks.callback(module.register_forward_pre_hook(before).remove)
                hooks.callback(module.register_forward_hook(after).remove)
        hooks.enter_context(observing(model, put_out_nan))
        run()
    projections = {
        path: projection for path, projection in found.items() if readers[path] == [projection.name]
    }
    return calls, projections


class UnknownHeadsError(Exception):
    """It is unknown which part of a matrix's input is which head's output; the text is the reason."""


def own_projections(
    model: Any, run: Callable[..., Any]
) -> tuple[list[CalledLayer], dict[str, OutputProjection]]:
    """Find the output projections of a model that computes attention by itself, such as BLOOM.

    W_O is the last module with a matrix that runs in an attention. The model runs once with eager
    attention, which returns its weights. Of what enters W_O, head h's output is the part that depends on
    the weights of head h, and on no other head's, according to gradients.

    Args:
        run: runs the model on any input, with further arguments.
    """
    import torch

    calls: list[CalledLayer] = []
    found: dict[str, OutputProjection] = {}
    latest: dict[str, tuple[str, torch.Tensor]] = {}  # by path: the latest matrix, and what entered it
    attentions = outermost_attentions(model)

    def begin(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Begin a graph at what enters an attention, since parameters may need no gradient."""
        places: list[tuple[Any, Any]] = [*enumerate(args), *kwargs.items()]
        name, states = next((name, x) for name, x in places if _is_floating(x))
        leaf = states.detach().clone().requires_grad_()
        if isinstance(name, int):
            return (*args[:name], leaf, *args[name + 1 :]), kwargs
        return args, kwargs | {name: leaf}

    def enter(path: str, name: str) -> Any:
        def hook(module: Any, arguments: tuple[Any, ...]) -> None:
            if arguments and _is_floating(arguments[0]):
                latest[path] = name, arguments[0]

        return hook

    def end(path: str) -> Any:
        def hook(module: Any, arguments: Any, output: Any) -> None:
            if path not in latest:
                raise UnknownHeadsError(f"{path} has no matrix behind its heads")
            name, x = latest.pop(path)
            n_head = _heads_side_by_side(path, x, output)
            calls.append(CalledLayer(path, is_cross(path, module), n_head))
            found[path] = OutputProjection(name, n_head, x.shape[-1] // n_head)

        return hook

    with ExitStack() as hooks, torch.enable_grad():
        for path in attentions:
            attention = model.get_submodule(path)
            for name, module in attention.named_modules(prefix=path):
                if any(each.dim() > 1 for each in module.parameters(recurse=False)):
                    hooks.callback(module.register_forward_pre_hook(enter(path, name)).remove)
            hooks.callback(attention.register_forward_pre_hook(begin, with_kwargs=True).remove)
            hooks.callback(attention.register_forward_hook(end(path)).remove)
        hooks.enter_context(switched_attention(model, "eager"))
        run(output_attentions=True)
    return calls, found


def _heads_side_by_side(path: str, x: torch.Tensor, output: Any) -> int:
    """Return the number of heads whose outputs stand side by side in a tensor, in their order.

    Args:
        x: what enters its last matrix, `… n_head·d_V`.
    """
    import torch

    weights = next((each for each in _tensors(output) if _are_weights(each)), None)
    if weights is None:
        raise UnknownHeadsError(f"{path} returns no weights of its heads")
    n_head = weights.shape[1]
    unknown = UnknownHeadsError(f"in {path}, what enters the last matrix is not its heads side by side")
    if weights.shape[2] not in x.shape[:-1]:  # such as those of Longformer, of the keys in each window
        axes = "×".join(map(str, weights.shape))
        unknown = UnknownHeadsError(f"{path} returns weights of {axes}, and not a map of each head")
    if x.shape[-1] % n_head:
        raise unknown
    drawn = torch.randn(x.shape[-1], generator=torch.Generator().manual_seed(0)).to(x)
    factors = torch.arange(1.0, n_head + 1).to(x)
    once = x * drawn
    by_head = once.unflatten(-1, (n_head, -1)) * factors[:, None]
    plain, scaled = (
        torch.autograd.grad(each.sum(), weights, retain_graph=True, allow_unused=True)[0]
        for each in (once, by_head)
    )
    if plain is None or scaled is None or not bool((plain.abs().amax((0, 2, 3)) > 0).all()):
        raise unknown
    rounding = _rounding(weights)
    difference = (scaled - plain * factors[:, None, None]).abs().amax((0, 2, 3))
    if not bool((difference <= rounding * (plain.abs().amax((0, 2, 3)) * factors)).all()):
        raise unknown
    return n_head


def _are_weights(x: torch.Tensor) -> bool:
    """Check that a tensor is `n_batch n_head n_Q n_K`, with rows that sum to 1, and has a gradient."""
    if x.dim() != 4 or not x.requires_grad:
        return False
    return bool(((x.detach().double().sum(-1) - 1).abs() < _rounding(x)).all())


def _rounding(x: torch.Tensor) -> float:
    """Return the largest relative difference that rounding explains in a tensor's dtype."""
    return ROUNDING if x.element_size() > 2 else ROUNDING_16


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield the floating-point tensors in nested tuples and lists."""
    if isinstance(value, tuple | list):
        for each in value:
            yield from _tensors(each)
    elif _is_floating(value):
        yield value


def _is_floating(value: Any) -> bool:
    return hasattr(value, "is_floating_point") and value.is_floating_point()
