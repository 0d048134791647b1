"""`attnscope mha`: multi-head attention, of drawn tensors and weights or the user's own."""

from __future__ import annotations

from attnscope.cli import options
from attnscope.cli.sdpa import FormulaOutput, print_formula
from attnscope.formula.options import (
    Explanations,
    Masking,
    MhaScale,
    MhaSizes,
    MhaTensors,
    RunOptions,
    Stages,
    Training,
)

EXAMPLES = {
    "attnscope mha --d-feat 200 --heads 5": "every tensor, from the input through the heads",
    "attnscope mha --heads 8 --kv-heads 2 --d-feat 64 --rope": "grouped queries, rotary positions",
    "attnscope mha --nq 7 --batch 1 --verify": "compared with PyTorch's own module",
    "attnscope mha --dry-run --nq 100000": "the shapes and memory of any size, at once",
    "attnscope mha --weights mha.pt --heads 2 --x x.npy": "your own nn.MultiheadAttention",
    "attnscope mha --weights minilm --layer 0": "a layer of a trained model",
}


@options.expanded
def mha(
    sizes: MhaSizes,
    tensors: MhaTensors,
    masking: Masking,
    scaling: MhaScale,
    stages: Stages,
    training: Training,
    place: RunOptions,
    explanations: Explanations,
    output: FormulaOutput,
) -> int:
    """Run `attnscope mha` and return its exit status."""
    groups = (sizes, tensors, masking, scaling, stages, training, place)
    return print_formula("mha", groups, explanations, output)
