"""Find the output projections of a model's attention, W_O, without knowing its class.

The model runs once in which the heads of each layer put out NaN. The first module with a matrix that
reads NaN is the layer's output projection, since everything between is computed from what the heads put
out: a gate or a norm, if any. It returns zeros in this run, so that NaN spreads no further.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnscope.models.attention_hook import AttentionCall, observing

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class OutputProjection:
    """The output projection of a layer's attention.

    Attributes:
        name: the module's name in the model.
        n_head, d_V: the sizes of its input: the heads' outputs, side by side.
    """

    name: str
    n_head: int
    d_V: int  # noqa: N815 - the field's name


@dataclass(frozen=True)
class CalledLayer:
    """A layer that attended in a run.

    Attributes:
        path: the name of the module that attends.
        cross: whether keys and queries come from different sequences.
        n_head: the number of query heads.
    """

    path: str
    cross: bool
    n_head: int


def output_projections(
    model: Any, run: Callable[[], Any]
) -> tuple[list[CalledLayer], dict[str, OutputProjection]]:
    """Find the layers that attend, in order, and their output projections by the layer's path.

    A layer has none if no module multiplies its heads' outputs by a matrix, if several do, or if what
    the matrix reads is not as wide as the heads' outputs.

    Args:
        model: as transformers loads it.
        run: runs the model on any input, without gradients.
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
