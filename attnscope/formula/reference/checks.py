"""The checks of a run: its difference from each reference, and the tolerance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from attnscope.document.result import Check
from attnscope.formula.reference import references
from attnscope.formula.reference.naive import attended, final_of, inputs_of, merged
from attnscope.formula.reference.rounding import Errors, Tolerances, tolerance_of_sums
from attnscope.formula.reference.run import VerifiedRun
from attnscope.observe.trace import Trace

if TYPE_CHECKING:
    import numpy as np
    import torch

SDPA = "F.scaled_dot_product_attention"
MODULE = "nn.MultiheadAttention"
NAIVE = "naive loop"
SUMS = "rows of attention"


def verify(trace: Trace, weights: Mapping[str, torch.Tensor] | None = None) -> list[Check]:
    """Compare a run of the textbook with three references, and its weights with 1.

    Args:
        trace: of `sdpa`, in any form, or of `mha`; its steps have their tensors, and its title,
            sizes and options say what was run. Not of the device meta.
        weights: the module's `state_dict`, for mha.

    Returns:
        Four checks, in this order:

        - `F.scaled_dot_product_attention` of what enters the product, in the run's dtype and on
          its device, against the weighted values. Both sides round.
        - `nn.MultiheadAttention` with weights set to the run's, in float64; for mha from the
          inputs to the end result, for sdpa from what enters the product.
        - a loop over all queries, in float64, from the inputs to the end result.
        - the sums of the rows of attention, against 1.

        What a reference cannot express has no numbers, and a note says why.
    """
    import numpy as np
    import torch

    run = VerifiedRun(trace, dict(weights or {}))
    with torch.no_grad(), np.errstate(all="ignore"):  # a run may have NaN, and then its references do
        naive, tolerances = _naive(run)
        return [
            _check_sdpa(run, naive, tolerances),
            _check_module(run, naive, tolerances),
            _check_naive(run, naive, tolerances),
            _check_sums(run, naive),
        ]


@dataclass(frozen=True)
class Naive:
    """The results of the naive loop for a run's inputs.

    Attributes:
        weighted: the weighted values: `n_batch n_head n_Q d_V`.
        final: the end result: `weighted` itself, or with heads merged `n_batch n_Q …`.
        without_numbers: True for rows of weights that contain NaN, `n_batch n_head n_Q`.
        to_hidden: the weight that each query gives to hidden keys, `n_batch n_head n_Q`.
    """

    weighted: np.ndarray
    final: np.ndarray
    without_numbers: np.ndarray
    to_hidden: np.ndarray


def _naive(run: VerifiedRun) -> tuple[Naive, Tolerances]:
    """Recompute a run with the naive loop; collect what the checks need before weights are freed."""
    import numpy as np

    inputs = inputs_of(run)
    errors = Errors(run, inputs)
    n_batch, n_head, n_Q, _ = inputs.Q.shape
    weighted = np.empty((n_batch, n_head, n_Q, inputs.V.shape[3]))
    without_numbers = np.empty((n_batch, n_head, n_Q), dtype=bool)
    to_hidden = np.zeros((n_batch, n_head, n_Q))
    for rows in attended(run, inputs):
        weighted[rows.place] = rows.weighted
        without_numbers[rows.place] = np.isnan(rows.weights).any(axis=-1)
        mask = run.mask_of(*rows.place)
        if run.leaks and mask is not None:
            to_hidden[rows.place] = (rows.weights * ~mask).sum(axis=-1)
        errors.add(rows)
    final = final_of(run, weighted)
    return Naive(weighted, final, without_numbers, to_hidden), errors.tolerances(weighted, final)


def _check_sdpa(run: VerifiedRun, naive: Naive, tolerances: Tolerances) -> Check:
    if why_not := references.why_not_fused(run):
        return _inexpressible(SDPA, why_not)
    return _compared(
        run,
        SDPA,
        run.result(run.weighted),
        references.sdpa(run),
        2 * tolerances.weighted,  # both round, each in its own way
        without=[
            _fully_masked(run.fully_masked & ~run.zeroed, "it returns zeros for them"),
            _leaking(run, naive),
        ],
        part=_part_of(run, run.weighted),
    )


def _check_module(run: VerifiedRun, naive: Naive, tolerances: Tolerances) -> Check:
    if why_not := references.why_not_module(run):
        return _inexpressible(MODULE, why_not)
    return _compared(
        run,
        MODULE,
        run.result(run.final),
        references.module(run),
        _both(run) * (tolerances.final if run.is_mha else merged(run, tolerances.weighted)),
        without=[_fully_masked(run.fully_masked, "it returns NaN for them"), _leaking(run, naive)],
        part="" if run.is_mha else _part_of(run, run.final),
    )


def _check_naive(run: VerifiedRun, naive: Naive, tolerances: Tolerances) -> Check:
    lost = _fully_masked(run.rounded_away, "the mask is so large that rounding decides their weights")
    tolerance = _both(run) * tolerances.final
    return _compared(run, NAIVE, run.result(run.final), naive.final, tolerance, without=[lost])


def _check_sums(run: VerifiedRun, naive: Naive) -> Check:
    import numpy as np

    sums = run.sums
    no_numbers = np.isnan(sums[..., 0])
    what, why = "NaN in the loop too", "their inputs are not finite"
    without = [
        _fully_masked(run.fully_masked & no_numbers, "their weights are NaN"),
        _Without(
            no_numbers & naive.without_numbers,
            f"row that is {what}",
            f"rows that are {what}",
            why,
        ),
    ]
    tolerances = np.full_like(sums, tolerance_of_sums(run))
    return _compared(run, SUMS, sums, np.ones_like(sums), tolerances, without=without)


def _both(run: VerifiedRun) -> int:
    """Return 2 if the run rounds like the references in float64, whose error then adds up; else 1."""
    import torch

    return 2 if run.dtype == torch.float64 else 1


@dataclass(frozen=True)
class _Without:
    """Rows that are not compared, because a reference rightly computes something else.

    Attributes:
        rows: True for these rows, `n_batch n_head n_Q`.
        one, several: their description in singular and plural.
        why: the reason.
    """

    rows: np.ndarray
    one: str
    several: str
    why: str


def _fully_masked(rows: np.ndarray, why: str) -> _Without:
    return _Without(rows, "row that sees no key", "rows that see no key", why)


def _leaking(run: VerifiedRun, naive: Naive) -> _Without:
    """Exclude queries that give weight to hidden keys although they see others: the fill is too high."""
    import numpy as np
    import torch

    rows = np.zeros_like(run.fully_masked)
    if run.leaks:
        rows = ~run.fully_masked & (naive.to_hidden > torch.finfo(run.dtype).eps / 32)
    what = "where hidden keys have weight"
    return _Without(
        rows, f"row {what}", f"rows {what}", f"it hides them, but a fill of {run.fill:g} does not"
    )


def _part_of(run: VerifiedRun, end: str) -> str:
    """Describe the part of a run that is compared; empty if it is the whole run."""
    Q, K, V = run.multiplied
    if (Q, K, V, end) == ("Q", "K", "V", run.final) and not run.projects:
        return ""
    return f"from {Q}, {K} and {V} to {end}"


def _inexpressible(name: str, what: str) -> Check:
    return Check(name, None, None, None, note=f"cannot express {what}")


def _compared(
    run: VerifiedRun,
    name: str,
    actual: np.ndarray,
    expected: np.ndarray,
    tolerances: np.ndarray,
    *,
    without: list[_Without],
    part: str = "",
) -> Check:
    """Compare a result, `n_batch n_head n_Q …`, or `n_batch n_Q …` where heads are merged.

    Args:
        run: the run.
        name: the name of the check.
        actual, expected: the result of the run and of the reference.
        tolerances: the tolerated error of each number; the largest of these is the tolerance.
        without: rows to leave out.
        part: the part of the run that is compared.
    """
    import numpy as np
    import torch

    notes = [part] if part else []
    rows = np.zeros(actual.shape[:-1], dtype=bool)
    for some in without:
        left_out = (some.rows.any(axis=1) if actual.ndim == 3 else some.rows) & ~rows
        rows |= left_out
        if rows.all():
            return _inexpressible(name, f"{some.several}: {some.why}")
        if count := int(left_out.sum()):
            notes.append(f"without {count} {some.one if count == 1 else some.several}")
    actual, expected, tolerances = actual[~rows], expected[~rows], tolerances[~rows]
    finite = np.isfinite(actual) & np.isfinite(expected)
    apart = ~finite & (actual != expected) & ~(np.isnan(actual) & np.isnan(expected))
    if wrong := int((apart & ~np.isfinite(actual)).sum()):
        notes.append(f"{wrong} of {actual.size} numbers are NaN or infinite, but should not be")
    if missing := int((apart & np.isfinite(actual)).sum()):
        notes.append(f"{missing} of {actual.size} numbers should be NaN or infinite, but are not")
    difference = inf if apart.any() else float(np.abs(actual - expected).max(where=finite, initial=0))
    tolerance = float(tolerances.max(where=np.isfinite(tolerances), initial=0))
    ok = difference <= tolerance
    narrow_run = torch.float16 in (run.dtype, run.softmax_dtype)
    if not ok and (run.overflows or (wrong and narrow_run)):
        narrow = min(run.dtype, run.softmax_dtype, key=lambda dtype: torch.finfo(dtype).max)
        notes.append(
            f"{str(narrow).removeprefix('torch.')} overflows above {torch.finfo(narrow).max:.6g}"
        )
    return Check(name, difference, tolerance, ok, note="; ".join(notes))
