"""What `model` and `bert` do without a text: show one head's weights, or its circuits."""

from __future__ import annotations

from attnscope.cli.output import shown_progress, written_first
from attnscope.cli.request import Request


def show_weights(request: Request) -> int:
    """Read one head's weights and show them; the exit status: 1 if a check does not hold."""
    from attnscope.models.head_weights import head_weights

    output = request.output
    output.check([])
    [head] = request.heads or []
    layer = None if request.layer is None else (request.layers or [])[0]
    with shown_progress() as progress:
        result = head_weights(
            request.model,
            layer,
            head,
            stack=request.stack,
            circuits=request.circuits,
            verify=request.verify,
            progress=progress,
        )
    shapes = {each.name: (each.head_shape, each.dims) for each in result.weights}
    output.check_selections(shapes, "this head")
    shown = output.shown(lambda name: (result[name].array, result[name].dtype, result[name].dims))
    tensors = {each.name: (each.array, each.dtype) for each in result.weights}
    with written_first(lambda: output.write(tensors)):
        output.print(result, shown)
    return 1 if any(check.ok is False for check in result.checks or []) else 0
