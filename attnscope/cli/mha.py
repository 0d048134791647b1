"""`attnscope mha`: multi-head attention, of drawn tensors and weights or the user's own."""

from __future__ import annotations

from attnscope.cli import options
from attnscope.cli.options import Format
from attnscope.cli.sdpa import DryRun, Numbers, print_computed, print_dry_run
from attnscope.textbook.options import (
    Explanations,
    Masking,
    MhaScale,
    MhaSizes,
    MhaTensors,
    RunOptions,
    Stages,
    Training,
)


@options.expanded
def mha(
    sizes: MhaSizes,
    tensors: MhaTensors,
    masking: Masking,
    scaling: MhaScale,
    stages: Stages,
    training: Training,
    place: RunOptions,
    dry_run: DryRun = False,
    *,
    explanations: Explanations,
    numbers: Numbers = False,
    stats: options.Stats = False,
    show: options.Show = None,
    save: options.Save = None,
    force: options.Force = False,
    format: options.OutputFormat = Format.TABLE,
    wide: options.Wide = False,
) -> int:
    """Run `attnscope mha` and return its exit status."""
    from attnscope.cli.output import Output

    groups = (sizes, tensors, masking, scaling, stages, training, place)
    output = Output(format, wide, show or (), save, force)
    if dry_run:
        return print_dry_run("mha", groups, explanations, output, numbers=numbers, stats=stats)
    return print_computed("mha", groups, explanations, output, numbers=numbers, stats=stats)
