"""What `sdpa` and `mha` do once they know their inputs: plan, run, check, prove, show."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Any

from attnscope import contracts
from attnscope.cli.options import Format
from attnscope.cli.output import NOT_DRAWN, Output, progress, refuse_in_csv, written_first
from attnscope.cli.variants import findings
from attnscope.errors import OptionError, warn_idle
from attnscope.process.progress import without_garbage_collection
from attnscope.render.files.save import stored
from attnscope.results.trace import Source, Step, Trace
from attnscope.textbook.inputs.mask_options import Masks

if TYPE_CHECKING:
    import torch

    from attnscope.render.values import Shown


@dataclass(frozen=True)
class Call:
    """One call of the textbook.

    Attributes:
        target: the function or the module.
        tensors: its inputs by name, which come after what the call before it returned.
        options: what else it is told.
    """

    target: Callable[..., Any]
    tensors: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Request:
    """What is to be done with a run, and where.

    Attributes:
        output: what the user wants to get.
        dry_run: show the plan alone.
        stats: compute each tensor's six numbers.
        verify: compare with references.
        explain: say what each row is.
        source: show the code.
        numbers: show every tensor's values.
        device, seed: where to run, and what is drawn with; a seed of None where nothing is.
        seed_given: whether the user said it.
    """

    output: Output
    dry_run: bool = False
    stats: bool = False
    verify: bool = False
    explain: bool = False
    source: bool = False
    numbers: bool = False
    device: str = "cpu"
    seed: int | None = 0
    seed_given: bool = False

    def check(self, dtype: str) -> None:
        """Raise an AttnscopeError for what cannot be done, before anything is."""
        from attnscope.process.devices import check_device_name, check_seed

        check_device_name(self.device)
        check_seed(self.seed or 0)
        without = "a dry run" if self.dry_run else self.device
        asked = {"--stats": self.stats, "--show": bool(self.output.show)}
        asked |= {
            "--save": self.output.save is not None,
            "--verify": self.verify,
            "--numbers": self.numbers,
        }
        wanted = [option for option, given in asked.items() if given]
        if wanted and without in ("a dry run", "meta"):
            raise OptionError(
                f"{wanted[0]} needs values, and {without} has none.",
                hint=f"leave out {wanted[0]}, or "
                + ("--dry-run" if without == "a dry run" else "choose --device cpu"),
            )
        more = {"--verify": self.verify, "--source": self.source, "--numbers": self.numbers}
        refuse_in_csv(self.output.format, more)
        self.output.check([dtype])
        nothing = self.seed is None or self.dry_run
        warn_idle(
            [
                (self.seed_given and nothing, "--seed", NOT_DRAWN),
                (self.dry_run and self.device != "cpu", "--device", "nothing is computed in a dry run"),
            ]
        )


def present(
    plan: Trace,
    prepare: Callable[[], list[Call]],
    request: Request,
    *,
    masks: Masks,
    code: list[tuple[str, str]],
    weight_bytes: int = 0,
    weights: Callable[[], dict[str, torch.Tensor]] | None = None,
) -> int:
    """Show a plan, or run it, check the run against it, and show that.

    Args:
        plan: what the contract says.
        prepare: makes the inputs; returns the calls that are to be traced, one after the other.
        request: what is wanted.
        masks: the masks of the run.
        code: the functions that are called: modules and qualified names.
        weight_bytes: what the weights take, beside the plan's steps.
        weights: a module's weights, once it is made.

    Returns:
        The exit status: 1 if a check does not hold.
    """
    from attnscope.process.devices import check_device, check_memory
    from attnscope.process.memory import check_imports, return_what_is_freed

    output, device = request.output, request.device
    shapes = {step.name: (step.shape, step.dims) for step in plan.steps}
    output.check_selections(shapes, f"the steps of {plan.title}")
    if not request.explain:
        for step in plan.steps:
            step.why = None
    rows = prod(size for axis, size in plan.sizes.items() if axis in ("n_batch", "n_head", "n_Q"))
    query = plan.options.get("query")
    if query is not None:
        rows //= plan.sizes["n_Q"]
    blind = masks.rows_without_keys(plan.sizes, query) if masks else None
    plan.findings = [*(plan.findings or []), *(findings(masks, blind, rows) if masks else [])]
    plan.source = [_source(*function) for function in code] if request.source else []
    if request.dry_run:
        for source in plan.source:
            _place(plan, source)
        output.print_run(plan, source=request.source)
        return 0
    check_imports()
    needed = contracts.bytes_needed(plan, _uses(plan, request)) + weight_bytes
    if device == "cpu":  # can be told before torch is imported
        check_memory(needed, device)
    with progress(f"running {plan.title} on {device} …"):
        _import_torch()
        return_what_is_freed()
        check_device(device)
        if device != "cpu":
            check_memory(needed, device)
        keep = {name for name, _ in output.selections}
        keep |= {"mask", "mask_q"} if masks.files else set()
        if request.verify:
            keep |= set(shapes) - contracts.UNUSED_BY_PROOF
        everything = bool(output.save) or request.numbers
        steps = run(plan, prepare, keep=everything or keep, stats=request.stats)
    result = replace(plan, steps=steps, device=device, seed=request.seed)
    if masks.files and device != "meta":
        result.findings = [*(result.findings or []), *_hidden_by_file(masks, result, rows)]
    if request.verify:
        from attnscope.textbook.reference import verify

        with progress("comparing with references …"):
            result.checks = verify(result, weights() if weights else None)
    tensors = {step.name: stored(step) for step in result.steps} if output.save else {}
    numbers = values_of(result) if request.numbers else None
    with written_first(lambda: output.write(tensors)):
        output.print_run(result, output.shown_of(result), source=request.source, numbers=numbers)
    return 1 if any(check.ok is False for check in result.checks) else 0


def _uses(plan: Trace, request: Request) -> contracts.Uses:
    """What is done with the values of a run, for its estimate of memory."""
    output = request.output
    values = [(step.name, prod(step.shape)) for step in plan.steps] if request.numbers else []
    if output.show:
        from attnscope.render.values import size_of_selection

        for name, index in output.selections:
            values.append((name, size_of_selection(index, plan[name].shape)))
    return contracts.Uses(
        stats=request.stats,
        verify=request.verify,
        numbers=request.numbers,
        values=tuple(values),
        json=output.format is Format.JSON,
        save=output.save is not None,
    )


def _import_torch() -> None:
    """Import torch, most of the waiting."""
    with without_garbage_collection():
        import torch  # noqa: F401


def run(
    plan: Trace,
    prepare: Callable[[], list[Call]],
    *,
    keep: bool | Collection[str] = False,
    stats: bool = False,
) -> list[Step]:
    """Make the calls, and check that the steps are those of the plan.

    Args:
        plan: what the contract says.
        prepare: as in `present`.
        keep: names whose tensors are kept, or True for all.
        stats: whether to compute each tensor's six numbers.
    """
    _import_torch()
    import torch

    from attnscope.tracing.calls import trace

    steps: list[Step] = []
    with torch.no_grad():
        result: tuple[Any, ...] = ()
        for call in prepare():
            with trace(call.target, stats=stats, keep=keep, findings=False) as traced:
                result = call.target(*result, **call.tensors, **call.options)
            known = {step.name for step in steps}
            steps += [step for step in traced.steps if step.name not in known]
    said = {step.name: step for step in plan.steps}
    for step in steps:
        if step.name in said:
            step.dims, step.why = said[step.name].dims, said[step.name].why
    contracts.check(Trace(plan.title, steps=steps), plan)
    return steps


def _hidden_by_file(masks: Masks, result: Trace, rows: int) -> list[Any]:
    """Findings about rows that see no key, counted in the mask itself."""
    from attnscope.attention.masks import hidden

    upright = "query" in result.options or "layout" in result.options
    mask = result["mask_q" if "query" in result.options else "mask"].tensor
    dim = -2 if upright else -1
    blind = hidden(mask).all(dim=dim)
    count = int(blind.sum()) * (rows // blind.numel())
    if count and masks.style == "additive":
        masks.fill = float(mask.amax(dim=dim)[blind].max())
    return findings(masks, count, rows)


def _source(module: str, function: str) -> Source:
    """The source of a function of attnscope's, read without importing its module."""
    import ast
    from importlib.util import find_spec
    from pathlib import Path

    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    text = Path(spec.origin).read_text(encoding="utf-8")
    node: Any = ast.parse(text)
    for name in function.split("."):
        node = next(child for child in node.body if getattr(child, "name", None) == name)
    lines = text.splitlines()[node.lineno - 1 : node.end_lineno]
    return Source(f"{module}.{function}", node.lineno, "\n".join(lines))


def _place(plan: Trace, source: Source) -> None:
    """Find the line of each step in the code: where its name is bound."""
    import ast
    import textwrap

    tree: Any = ast.parse(textwrap.dedent(source.text)).body[0]
    bound = {argument.arg: tree.lineno for argument in tree.args.args}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound[node.id] = node.lineno
    for step in plan.steps:
        if step.line is None and step.name in bound:
            step.line = bound[step.name] + source.line - 1


def values_of(trace: Trace) -> dict[str, Shown]:
    """The values of every step whose tensor was kept."""
    from attnscope.arrays import numbers
    from attnscope.render.values import select

    shown = {}
    for step in trace.steps:
        array, dtype = stored(step)
        shown[step.name] = select(step.name, (), numbers(array, dtype), dtype, step.dims)
    return shown
