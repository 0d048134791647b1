"""`attnscope weights`: one attention head of a checkpoint: its part of W_Q, W_K, W_V and W_O."""

from __future__ import annotations

from typing import Any

from attnscope.base.options import keywords
from attnscope.cli.options import ModelName, expanded
from attnscope.cli.output import TensorOutput, exit_status, refuse_in_csv, shown_progress, written_first
from attnscope.model.weights.options import HeadChecks, OneHead, OneStack

EXAMPLES = {
    "attnscope weights minilm": "the weights of head 0 of the first layer with attention",
    "attnscope weights minilm --layer 5 --head 1 --verify": "compared with what transformers loads",
    "attnscope weights minilm --head 3 --circuits": "the singular values of its QK and OV matrices",
    "attnscope weights minilm --save head.safetensors": "a file with every matrix",
}


@expanded
def weights(
    model: ModelName, head: OneHead, of: OneStack, checks: HeadChecks, output: TensorOutput
) -> int:
    """Run `attnscope weights` and return its exit status."""
    refuse_in_csv(output.format, {"verify": checks.verify})
    return print_weights(model, output, **keywords(head, of, checks))


def print_weights(model: str | None, output: TensorOutput, **options: Any) -> int:
    """Read one head's weights and print them; return the exit status: 1 if a check fails.

    Args:
        model: the model's name.
        output: the options of the output.
        options: those of `head_weights`.
    """
    from attnscope.model.weights.head_weights import head_weights

    output.check([])
    with shown_progress() as progress:
        result = head_weights(model, progress=progress, **options)
    shapes = {each.name: (each.head_shape, each.dims) for each in result.weights}
    output.check_selections(shapes, "this head")
    shown = output.shown(lambda name: (result[name].array, result[name].dtype, result[name].dims))
    tensors = {each.name: (each.array, each.dtype) for each in result.weights}
    with written_first(lambda: output.write(tensors)):
        output.print(result, shown)
    return exit_status(result.checks)
