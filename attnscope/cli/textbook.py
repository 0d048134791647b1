"""What `sdpa` and `mha` do once they know their sizes: plan, run, check, show."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnscope import contracts
from attnscope.cli.output import Output, progress
from attnscope.errors import OptionError
from attnscope.results import Step, Trace

if TYPE_CHECKING:
    from attnscope.views.values import Shown


def present(
    plan: Trace,
    prepare: Callable[[], tuple[Callable[..., Any], list[Any]]],
    *,
    output: Output,
    dry_run: bool,
    stats: bool,
    device: str,
    seed: int,
    weight_bytes: int = 0,
) -> None:
    """Show a plan, or run it, check the run against it, and show that.

    Args:
        plan: what the contract says.
        prepare: draws the inputs; returns what to call, and with what.
        output: what the user wants to get.
        dry_run: show the plan alone.
        stats: compute each tensor's six numbers.
        device, seed: where to run, and what `prepare` draws with.
        weight_bytes: what the weights take, beside the plan's steps.
    """
    from attnscope.inputs.drawn import check_device, check_device_name, check_memory, check_seed

    check_device_name(device)
    check_seed(seed)
    _check_needs_values(output, stats, "a dry run" if dry_run else device)
    output.check([plan.dtype or ""])
    shapes = {step.name: (step.shape, step.dims) for step in plan.steps}
    output.check_selection(shapes, f"the steps of {plan.title}")
    if dry_run:
        output.print(plan)
        return
    needed = contracts.bytes_needed(plan) + weight_bytes
    if device == "cpu":  # can be told before torch is imported
        check_memory(needed, device)
    with progress(f"running {plan.title} on {device} …"):
        _import_torch()
        check_device(device)
        if device != "cpu":
            check_memory(needed, device)
        trace = _run(plan, prepare, output, stats)
    result = replace(plan, steps=trace.steps, device=device, seed=seed)
    output.write({step.name: _stored(step) for step in result.steps} if output.save else {})
    output.print(result, _shown(result, output))


def _import_torch() -> None:
    """Import torch, most of the waiting, without the search for garbage that slows it by a tenth."""
    gc.disable()
    import torch  # noqa: F401

    gc.enable()


def _run(
    plan: Trace,
    prepare: Callable[[], tuple[Callable[..., Any], list[Any]]],
    output: Output,
    stats: bool,
) -> Trace:
    import torch

    from attnscope.tracing import trace_call

    shown = [] if output.show is None else [output.selection[0]]
    with torch.no_grad():
        target, inputs = prepare()
        trace = trace_call(target, *inputs, stats=stats, keep=bool(output.save) or shown)
    contracts.check(trace, plan)
    return trace


def _check_needs_values(output: Output, stats: bool, without: str) -> None:
    """Statistics, values and files of tensors need tensors that have values."""
    if without not in ("a dry run", "meta"):
        return
    asked = {"--stats": stats, "--show": output.show is not None, "--save": output.save is not None}
    wanted = [option for option, given in asked.items() if given]
    if wanted:
        raise OptionError(
            f"{wanted[0]} needs values, and {without} has none.",
            hint=f"leave out {wanted[0]}, or "
            + ("--dry-run" if without == "a dry run" else "choose --device cpu"),
        )


def _shown(trace: Trace, output: Output) -> Shown | None:
    if output.show is None:
        return None
    step = trace[output.selection[0]]
    stored, dtype = _stored(step)
    return output.shown(stored, dtype, step.dims)


def _stored(step: Step) -> Any:
    from attnscope.values import from_tensor

    return from_tensor(step.tensor)
