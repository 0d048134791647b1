"""Plan, compute and verify the textbook's attention."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Literal

from attnscope.base.errors import ArgumentError, OptionError, check_kept, warn_unused
from attnscope.base.options import Distribution
from attnscope.base.process.progress import Progress, silent, stage, without_garbage_collection
from attnscope.base.spelling import spelled
from attnscope.base.text import nearest
from attnscope.formula.computation import Computation, run
from attnscope.formula.inputs.fully_masked import findings_of
from attnscope.formula.options import OF_MHA, OF_SDPA, RunOptions
from attnscope.observe import contracts
from attnscope.observe.trace import Source, Trace

if TYPE_CHECKING:
    from attnscope.attention.mask_rules import Masks

Formula = Literal["sdpa", "mha"]

TITLES = ("sdpa", "sdpa by columns", "sdpa of one query", "mha")
"""The titles of the traces that `compute` returns."""

NOT_DRAWN = "no random values are drawn"
NO_INPUT_DRAWN = "no input is drawn"


def dry_run(formula: Formula, *, explain: bool = False, source: bool = False, **options: Any) -> Trace:
    """Plan every tensor of attention from sizes alone: at any size, immediately, without torch.

    Args:
        formula: `sdpa`, softmax(Q·Kᵀ/√d_K)·V, or `mha`, multi-head attention.
        explain: explain each step and its shape (`step.why`).
        source: include the code that would run (`trace.source`) and the line of each step.
        options: as in `compute`. Only the headers of tensors and files are read.

    Returns:
        The trace that `compute` would return, without device, seed, values and fresh bytes.

    Raises:
        SizeError: sizes are impossible for attention, or do not fit together.
        OptionError: an option has an invalid value.
        FileError: a file cannot be read.

    >>> dry_run("mha", nq=1_000_000, d_feat=8192, heads=64)["attention"].shape
    (128, 64, 1000000, 1000000)
    """
    computation, place = _planned(formula, options)
    plan = computation.plan
    device = place.device != "cpu"
    warn_unused(
        [
            (place.seed is not None, "seed", NOT_DRAWN),
            (place.draw is not None, "draw", NOT_DRAWN),
            (device, "device", "nothing is computed in a dry run"),
        ]
    )
    _complete(computation, explain=explain, source=source)
    for code in plan.source or []:
        add_lines(plan, code)
    return plan


def compute(
    formula: Formula,
    *,
    keep: bool | Collection[str] = False,
    stats: bool = False,
    verify: bool = False,
    explain: bool = False,
    source: bool = False,
    reserve: Callable[[Trace], int] | None = None,
    progress: Progress = silent,
    **options: Any,
) -> Trace:
    """Compute the textbook's attention, and record every tensor between Q, K, V and the result.

    Missing inputs are drawn: tensors from the distribution `draw` (`normal`, or `uniform` in [0, 1)),
    weights as `nn.Linear` initializes them. Torch's own random state does not change.

    Args:
        formula: `sdpa`, softmax(Q·Kᵀ/√d_K)·V, or `mha`, multi-head attention.
        keep: names of the steps whose tensors are kept (`trace["scores"].tensor`), or True for all.
        stats: compute each tensor's min, mean, max and std, and count its NaN and infinities.
        verify: compare the result with PyTorch's attention, and with a loop in float64.
        explain: explain each step and its shape (`step.why`).
        source: include the code that ran (`trace.source`).
        reserve: called with the plan, as `dry_run` returns it, before anything is computed; returns the
            number of bytes needed afterwards, in addition to the tensors that are kept.
        progress: receives reports of the progress.
        options: the flags of `attnscope sdpa` and `attnscope mha`, with underscores. Sizes: `batch`,
            `nq`, `nk`, `heads`, `kv_heads`, `past`, and `nv`, `dk`, `dv` of sdpa, `d_feat`, `d_head`,
            `d_value`, `d_context` of mha. Tensors, each a numpy array, a torch tensor or a file: `q`
            (sdpa: `n_batch n_head n_Q d_K`, where the first two may be missing; mha: `n_batch n_Q
            d_feat`), `k`, `v`, `past_k`, `past_v`, `x`, `wq`, `wk`, `wv`, and `wo`, `bq`, `bk`, `bv`,
            `bo` and `weights` (a file, or a `state_dict()`) of mha; with `layer` (and `stack`),
            `weights` is a model, by name or loaded, whose layer also implies sizes and variants that
            are not set. Variants: `mask` (one or several: "causal", "window:4", …, or arrays),
            `mask_style`, `mask_fill`, `align`, `masked_rows`, `scale`, `softcap`, `rope`,
            `rope_theta`, `softmax_dtype`, `layout` and `query` of sdpa, `scale_by`, `bias`, `dropout`
            and `train` of mha. And `seed`, `draw`, `dtype`, `device`.
            `attnscope.formula.options` describes each.

    Returns:
        A trace, whose `seed` is None if nothing was drawn.

    Raises:
        SizeError: sizes are impossible for attention, do not fit together, or do not fit into memory.
        OptionError: an option has an invalid value.
        FileError: a file cannot be read.
        OutOfMemoryError: memory ran out during the computation.

    >>> import numpy as np
    >>> Q, K, V = np.ones((2, 4)), np.ones((3, 4)), np.ones((3, 5))
    >>> trace = compute("sdpa", q=Q, k=K, v=V, mask="causal", keep=["attention"])
    >>> trace["attention"].tensor.tolist()
    [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]]
    """
    from attnscope.base.process.devices import check_device, check_memory
    from attnscope.base.process.memory import check_imports, return_freed_memory

    computation, place = _planned(formula, options)
    plan, device = computation.plan, place.device
    afterwards = reserve(plan) if reserve is not None else 0
    names = keep if isinstance(keep, bool) else {keep} if isinstance(keep, str) else set(keep)
    _check_values(device, keep=bool(names), stats=stats, verify=verify)
    check_kept(names, [step.name for step in plan.steps], plan.title)
    seed = (place.seed or 0) if computation.drawn else None
    if computation.drawn_inputs and place.draw == Distribution.UNIFORM:
        plan.options["draw"] = "uniform"
    warn_unused(
        [
            (place.seed is not None and seed is None, "seed", NOT_DRAWN),
            (place.draw is not None and not computation.drawn_inputs, "draw", NO_INPUT_DRAWN),
        ]
    )
    _complete(computation, explain=explain, source=source)

    check_imports()
    uses = contracts.Uses(names, stats, verify, afterwards)
    needed = contracts.bytes_needed(plan, uses) + computation.weight_bytes
    if device == "cpu":  # known before torch is imported
        check_memory(needed, device)
    with stage(progress, f"running {plan.title} on {device} …"):
        with without_garbage_collection():  # the import takes most of the time
            import torch  # noqa: F401
        return_freed_memory()
        check_device(device)
        if device != "cpu":
            check_memory(needed, device)
        trace = _run(computation, place, seed, names, stats=stats, verify=verify)
    if verify:
        _verify(trace, progress)
        _release(trace, names)
    return trace


def verify(trace: Trace, *, progress: Progress = silent) -> Trace:
    """Compare a computed trace with references that share no code with it.

    Args:
        trace: the result of `compute` with `keep=True`.
        progress: receives reports of the progress.

    Returns:
        The same trace with its `checks`, which compare with PyTorch's two attentions, with a loop over
        queries in float64, and with sums of 1 of the rows of attention. A check that a reference cannot
        express has no numbers, but a note.

    Raises:
        OptionError: the trace is not from `compute`, has no values, or did not keep its tensors.

    >>> trace = verify(compute("sdpa", nq=3, nk=4, keep=True))
    >>> all(check.ok for check in trace.checks)
    True
    """
    reason, hint = _why_not_verifiable(trace)
    if reason:
        raise OptionError(f"the trace of {trace.title} cannot be verified: {reason}.", hint=hint)
    _verify(trace, progress)
    return trace


def _planned(formula: Formula, options: dict[str, Any]) -> tuple[Computation, RunOptions]:
    """Return the computation that the options of a formula describe, and its device and seed."""
    from attnscope.base.process.devices import check_device_name, check_seed

    if formula not in ("sdpa", "mha"):
        raise OptionError(f"{formula!r} is not a formula.", hint="sdpa or mha")
    groups = OF_SDPA if formula == "sdpa" else OF_MHA
    known = {each.name for group in groups for each in fields(group)}
    for name in options:
        if name not in known:
            near = nearest(name, known)
            others = f"did you mean {near!r}?" if near else f"it has {', '.join(sorted(known))}"
            raise ArgumentError(f"{formula} has no option {name!r}: {others}")
    for name in ("dtype", "softmax_dtype", "device"):  # torch's own objects are replaced by their names
        if options.get(name) is not None:
            options = options | {name: str(options[name]).removeprefix("torch.")}
    parsed: Any = [
        group(**{each.name: options[each.name] for each in fields(group) if each.name in options})
        for group in groups
    ]
    place: RunOptions = parsed[-1]
    if formula == "sdpa":
        from attnscope.formula.forms import sdpa_computation

        computation = sdpa_computation(*parsed)
    else:
        from attnscope.formula.multihead import mha_computation

        computation = mha_computation(*parsed)
    check_device_name(place.device)
    check_seed(place.seed or 0)
    return computation, place


def _check_values(device: str, **needed: bool) -> None:
    """Raise an OptionError if an option needs values on the device meta, which has none."""
    if device != "meta":
        return
    for option, is_needed in needed.items():
        if is_needed:
            raise OptionError(
                f"{spelled(option)} needs values, and meta tensors have none.",
                hint=f"leave out {spelled(option)}, or {spelled(device='cpu')}",
            )


def _complete(computation: Computation, *, explain: bool, source: bool) -> None:
    """Add the requested explanations and source to a plan, and the findings about its masks."""
    plan, masks = computation.plan, computation.masks
    if not explain:
        for step in plan.steps:
            step.why = None
    plan.findings = plan.findings or []
    if masks:
        fully_masked = masks.rows_without_keys(plan.sizes, plan.options.get("query"))
        plan.findings += findings_of(_in_softmax(masks, plan), fully_masked, computation.rows)
    if source:
        plan.source = [source_of(*function) for function in computation.code]


def _run(
    computation: Computation,
    place: RunOptions,
    seed: int | None,
    names: bool | Collection[str],
    *,
    stats: bool,
    verify: bool,
) -> Trace:
    """Run a plan, and keep tensors; with `verify`, also those that the references need."""
    from attnscope.base.process.devices import seeded

    plan, masks = computation.plan, computation.masks
    keep = names
    if not isinstance(names, bool) or not names:
        keep = set(names or ()) | ({"mask", "mask_q"} if masks.files else set())
        if verify:
            keep |= {step.name for step in plan.steps} - contracts.UNUSED_BY_PROOF
    with seeded(place.seed or 0, place.device):
        calls = computation.calls(place.device)
        steps = run(plan, calls, keep=keep, stats=stats)
    trace = replace(plan, steps=steps, device=place.device, seed=seed)
    if plan.title == "mha" and (verify or keep is True):
        module: Any = calls[-1].target
        trace.weights = dict(module.state_dict())
    if masks.files and place.device != "meta":
        trace.findings = [
            *(trace.findings or []),
            *_fully_masked_by_file(masks, trace, computation.rows),
        ]
    if not verify:
        _release(trace, names)
    return trace


def _fully_masked_by_file(masks: Masks, trace: Trace, rows: int) -> list[Any]:
    """Return the findings about rows that see no key, counted in the mask itself."""
    from attnscope.attention.masks import hidden

    upright = "query" in trace.options or "layout" in trace.options
    mask = trace["mask_q" if "query" in trace.options else "mask"].tensor
    dim = -2 if upright else -1
    fully_masked = hidden(mask).all(dim=dim)
    count = int(fully_masked.sum()) * (rows // fully_masked.numel())
    if count and masks.style == "additive":
        masks = masks.filled_with(float(mask.amax(dim=dim)[fully_masked].max()))
    return findings_of(_in_softmax(masks, trace), count, rows)


def _in_softmax(masks: Masks, trace: Trace) -> Masks:
    """Return the masks of a run with the fill that its softmax receives."""
    dtype = trace.dtype or ""
    return masks.in_softmax(dtype, trace.options.get("softmax_dtype") or dtype)


def _verify(trace: Trace, progress: Progress) -> None:
    from attnscope.formula import reference

    with stage(progress, "comparing with references …"):
        trace.checks = reference.verify(trace, trace.weights)


def _release(trace: Trace, keep: bool | Collection[str]) -> None:
    """Release the tensors that were kept only for findings and references."""
    if keep is True:
        return
    trace.weights = None
    for step in trace.steps:
        if step.name not in (keep or ()):
            step.tensor = None


def _why_not_verifiable(trace: Trace) -> tuple[str, str]:
    """Explain why a trace cannot be compared with references, with a hint; both empty if it can."""
    again = f'compute("{"mha" if trace.title == "mha" else "sdpa"}", keep=True, …)'
    if trace.title not in TITLES or "scale" not in trace.options:
        return "attnscope.compute did not create it", again
    if trace.device is None:
        return "a dry run has no values", again
    if trace.device == "meta":
        return "meta tensors have no values", 'device="cpu"'
    needed = {step.name for step in trace.steps} - contracts.UNUSED_BY_PROOF
    missing = [step.name for step in trace.steps if step.name in needed and step.tensor is None]
    if missing:
        return f"it did not keep {', '.join(missing)}", again
    if trace.title == "mha" and trace.weights is None:
        return "it did not keep its weights", again
    return "", ""


# The source of the textbook, read without importing it.


def source_of(module: str, function: str) -> Source:
    """Return the source of one of attnscope's functions.

    Args:
        module: its module, such as `attnscope.attention.sdpa`.
        function: its qualified name in the module.
    """
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


def add_lines(plan: Trace, source: Source) -> None:
    """Set the source line of each step of a plan: the line that binds its name."""
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
