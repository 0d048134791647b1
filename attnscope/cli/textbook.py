"""What `sdpa` and `mha` do once they know their sizes: plan, run, check, show."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from attnscope import contracts
from attnscope.cli.output import Output, progress
from attnscope.errors import OptionError
from attnscope.results import Step, Trace


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
    selection = _check_selection(plan, output)
    if dry_run:
        output.print(plan)
        return
    if device.startswith("cpu"):
        check_memory(contracts.bytes_needed(plan) + weight_bytes, device)
    with progress(f"running {plan.title} on {device} …"):
        _import_torch()
        check_device(device)
        if not device.startswith("cpu"):
            check_memory(contracts.bytes_needed(plan) + weight_bytes, device)
        trace = _run(plan, prepare, output, stats)
    result = replace(plan, steps=trace.steps, device=device, seed=seed)
    output.write({step.name: _stored(step) for step in result.steps} if output.save else {})
    output.print(result, _shown(result, output, selection))


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
    from attnscope.views.values import parse_selection

    shown = [parse_selection(output.show)[0]] if output.show else []
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


def _check_selection(plan: Trace, output: Output) -> tuple[Any, ...]:
    if output.show is None:
        return ()
    from attnscope.views.values import check_index, check_name, parse_selection

    name, index = parse_selection(output.show)
    check_name(name, [step.name for step in plan.steps], f"the steps of {plan.title}")
    check_index(output.show, index, plan[name].shape, plan[name].dims)
    return index


def _shown(trace: Trace, output: Output, index: tuple[Any, ...]) -> Any:
    if output.show is None:
        return None
    from attnscope.values import numbers
    from attnscope.views.values import parse_selection, select

    step = trace[parse_selection(output.show)[0]]
    return select(output.show, index, numbers(*_stored(step)), step.dtype, step.dims)


def _stored(step: Step) -> Any:
    from attnscope.values import from_tensor

    return from_tensor(step.tensor)
