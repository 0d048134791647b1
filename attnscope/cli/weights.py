"""What `model` and `bert` do without a text: show one head's weights, or its circuits."""

from __future__ import annotations

from attnscope.cli.output import progress, written_first
from attnscope.cli.request import Request
from attnscope.errors import ModelError
from attnscope.results.weights import HeadWeights, WeightSlice


def show_weights(request: Request) -> int:
    """Read one head's weights and show them; the exit status: 1 if a check does not hold."""
    from attnscope.checkpoints.find import find_checkpoint
    from attnscope.checkpoints.head import read_head

    output = request.output
    output.check([])
    checkpoint = find_checkpoint(request.model)
    [head] = request.heads or []
    layer = None if request.layer is None else (request.layers or [])[0]
    result = read_head(checkpoint, layer=layer, head=head, stack=request.stack)
    slices = {slice_.name: slice_ for slice_ in result.weights}
    dims = {name: _dims(each, result) for name, each in slices.items()}
    shapes = {name: (each.head_shape, dims[name]) for name, each in slices.items()}
    output.check_selections(shapes, "this head")
    shown = output.shown(lambda name: (slices[name].array, slices[name].dtype, dims[name]))
    if request.circuits and result.latent is not None:
        raise ModelError(
            f"layer {result.layer} of {checkpoint.name} has latent attention: a norm stands between the"
            " latents and what is made of them, so that QK and OV are no products of weights."
        )
    if request.verify:
        from attnscope.models.verify_weights import verify_head
        from attnscope.process.memory import check_imports

        check_imports(transformers=True)
        with progress(f"running {checkpoint.name} with transformers …"):
            result.checks = verify_head(checkpoint, result)
    if request.circuits:
        from attnscope.checkpoints.circuits import circuits

        result.circuits = circuits(result)
    tensors = {name: (each.array, each.dtype) for name, each in slices.items()}
    with written_first(lambda: output.write(tensors)):
        output.print(result, shown)
    return 1 if any(check.ok is False for check in result.checks) else 0


def _dims(slice_: WeightSlice, head: HeadWeights) -> tuple[str, ...]:
    """The axes of a head's part of a weight or a bias; keys and values may be made of what is wider."""
    from attnscope.checkpoints.latent import axes_of

    d_feat = head.d_feat
    if head.latent is not None:
        return axes_of(slice_.name, head.latent)
    if slice_.name in ("W_O", "b_O"):
        dims: tuple[str, ...] = ("d_feat", "d_head")
    else:
        taken_in = slice_.head_shape[-1] if len(slice_.head_shape) == 2 else d_feat
        other = "d_context" if head.stack == "cross" else "d_in"
        dims = ("d_head", "d_feat" if taken_in == d_feat else other)
    return dims[: len(slice_.head_shape)]
