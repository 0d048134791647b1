"""Measures why scores are divided by √d_K: what the softmax makes of them with and without it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import isfinite

from attnscope import contracts
from attnscope.errors import OptionError
from attnscope.process.progress import Progress, silent, stage
from attnscope.results.common import Finding
from attnscope.results.scaling import MEASURES, Scaling, ScalingRow

HARD = 0.9
"""From this largest weight on, a mean over rows, the softmax is called a hard choice."""
NEARLY_NONE = 0.1
"""Up to this share of the gradient that there is with the scale, hardly any comes through."""
ALIKE = 0.25
"""By this share numbers may differ that are called much the same."""


def measure_scaling(
    widths: str | Iterable[int] = (1, 4, 16, 64, 256, 1024),
    *,
    batch: int = 64,
    nq: int = 64,
    nk: int = 64,
    seed: int | None = None,
    dtype: str = "float32",
    progress: Progress = silent,
) -> Scaling:
    """Measure what the scale 1/√d_K does to scores, to their softmax, and to its gradient.

    At each width, queries (`n_batch n_Q d_K`) and keys (`n_batch n_K d_K`) are drawn from the standard
    normal distribution. Torch's own random state stays as it is.

    Args:
        widths: the widths of keys and queries to compare (d_K), as numbers, or as a text, "1,16,256".
        batch: n_batch, independent draws.
        nq: n_Q, queries.
        nk: n_K, keys.
        seed: what is drawn with, at each width anew; None: 0.
        dtype: what scores and weights are computed in; they are measured in float64.
        progress: told what is being done.

    Raises:
        SizeError: sizes that attention cannot have, or that do not fit into memory.
        OptionError: a width that is no number, an unknown dtype, or a seed beyond 64 bits.

    >>> scaling = measure_scaling([1, 1024])
    >>> scaling[1024, False].largest_weight > 0.9 > 0.2 > scaling[1024, True].largest_weight
    True
    """
    from attnscope.process.devices import check_memory, check_seed
    from attnscope.process.memory import check_imports

    sizes = {"n_batch": batch, "n_Q": nq, "n_K": nk}
    widths = parse_widths(widths) if isinstance(widths, str) else list(widths)
    if not widths:
        raise OptionError("there is no width to measure at.", hint="--dk 1,16,256")
    seed = seed or 0
    dtype = str(dtype).removeprefix("torch.")
    check_seed(seed)
    needed = max(
        contracts.bytes_needed(contracts.sdpa({**sizes, "d_K": d_K, "d_V": 1}, dtype=dtype))
        for d_K in widths
    )  # a lower bound: that of attention with narrow values
    check_memory(needed, "cpu", hint="a smaller --dk, --batch, --nq or --nk")
    check_imports()
    with stage(progress, "measuring scores …"):
        rows = {d_K: _measured(sizes, d_K, dtype, seed) for d_K in dict.fromkeys(widths)}
    result = Scaling(sizes, dtype, seed, [row for d_K in widths for row in rows[d_K]])
    result.findings = findings_of(result)
    return result


def parse_widths(text: str) -> list[int]:
    """The widths in a text: `1, 16` is `[1, 16]`.

    Raises:
        OptionError: it is not a list of whole numbers.
    """
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if not re.fullmatch(r"-?[0-9]{1,18}", part):
            raise OptionError(
                f"{part!r} is not a width: --dk takes whole numbers of at most 18 digits, and commas.",
                hint="--dk 1,16,256",
            )
    return [int(part) for part in parts]


def _measured(sizes: dict[str, int], d_K: int, dtype: str, seed: int) -> list[ScalingRow]:
    """What is measured at one width: without the scale, and with it."""
    from attnscope.attention.scaling import measure
    from attnscope.process.devices import draw

    n_batch, n_Q, n_K = sizes.values()
    shapes = (n_batch, n_Q, d_K), (n_batch, n_K, d_K)
    Q, K = draw(*shapes, dtype=dtype, device="cpu", seed=seed)
    scales = {False: 1.0, True: d_K**-0.5}
    return [ScalingRow(d_K, scaled, *measure(Q, K, scale)) for scaled, scale in scales.items()]


def findings_of(result: Scaling) -> list[Finding]:
    """What a run's numbers say of the scale, and nothing that they do not show."""
    rows, n_K = result.rows, result.sizes["n_K"]
    widest, narrowest = max(row.d_K for row in rows), min(row.d_K for row in rows)
    if not all(isfinite(getattr(row, measure)) for row in rows for measure in MEASURES):
        said = f"Some scores are beyond what {result.dtype} holds: what is made of them is no number."
    elif n_K == 1:
        said = (
            "There is one key, and its weight is 1 whatever its score is: it takes more, as with"
            " --nk 64, to see what the scale does."
        )
    elif widest == 1:
        said = (
            "At d_K 1 the scale is 1/√1 = 1 and changes nothing: it takes wider keys, as with"
            " --dk 1,64,1024, to see what it does."
        )
    else:
        return _comparison(result, widest, narrowest)
    return [Finding(said)]


def _comparison(result: Scaling, widest: int, narrowest: int) -> list[Finding]:
    """What the scale does at the widest keys, and beside the narrowest."""
    without, scaled = result[widest, False], result[widest, True]
    said = (
        f"Without the scale, at d_K {widest}, the variance of the scores is"
        f" {without.text('variance')} and the largest weight {without.text('largest_weight')}:"
        f" {_choice(without)}, and {_gradient(without, scaled)}."
    )
    then = f"With the scale they are {_three(scaled)}"
    if narrowest < widest:
        least = result[narrowest, True]
        alike = all(_alike(row, least) for row in result.rows if row.scaled)
        then += f", {'much as' if alike else 'and'} at d_K {narrowest}"
        then += f" ({_three(least)})" if alike else f" {_three(least)}"
    return [Finding(said), Finding(then + ".")]


def _choice(row: ScalingRow) -> str:
    """What a largest weight makes of the softmax."""
    if row.largest_weight >= HARD:
        return "the softmax is a hard choice"
    if row.largest_weight > 0.5:
        return "most of a row's weight is one key's"
    return "several keys share a row's weight"


def _gradient(without: ScalingRow, scaled: ScalingRow) -> str:
    """How much gradient comes through the softmax, beside what does with the scale."""
    passed = without.text("gradient_norm")
    if without.gradient_norm == scaled.gradient_norm:
        return f"as much gradient comes through it as with the scale ({passed})"
    if without.gradient_norm <= NEARLY_NONE * scaled.gradient_norm:
        return f"nearly no gradient comes through it ({passed})"
    much = "less" if without.gradient_norm < scaled.gradient_norm else "more"
    return f"{much} gradient comes through it than with the scale ({passed})"


def _alike(one: ScalingRow, other: ScalingRow) -> bool:
    keys = ("variance", "largest_weight", "gradient_norm")
    pairs = [(getattr(one, key), getattr(other, key)) for key in keys]
    return all(abs(a - b) <= ALIKE * max(a, b) for a, b in pairs)


def _three(row: ScalingRow) -> str:
    return f"{row.text('variance')}, {row.text('largest_weight')} and {row.text('gradient_norm')}"
