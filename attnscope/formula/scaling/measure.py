"""Measure why scores are divided by √d_K, by their softmax with and without that scale."""

from __future__ import annotations

import re
from math import isfinite

from attnscope.base.errors import OptionError
from attnscope.base.options import Distribution, with_keywords
from attnscope.base.process.progress import Progress, silent, stage
from attnscope.base.spelling import spelled
from attnscope.document.result import Finding
from attnscope.formula.options import Experiment, Widths
from attnscope.formula.scaling.result import MEASURES, Scaling, ScalingRow
from attnscope.observe import contracts

HARD = 0.9
"""The softmax is called nearly one-hot if the largest weight, a mean over rows, is at least this."""
NEARLY_NONE = 0.1
"""Nearly no gradient passes if it is at most this fraction of the gradient with the scale."""
ALIKE = 0.25
"""The relative difference up to which numbers are called much the same."""


@with_keywords
def measure_scaling(compared: Widths, *, experiment: Experiment, progress: Progress = silent) -> Scaling:
    """Measure the effect of the scale 1/√d_K on scores, on their softmax, and on its gradient.

    At each width, queries (`n_batch n_Q d_K`) and keys (`n_batch n_K d_K`) are drawn. Torch's own random
    state does not change.

    Args:
        progress: receives reports of the progress.

    Raises:
        SizeError: sizes are impossible for attention, or do not fit into memory.
        OptionError: a width is not a number, the dtype or distribution is unknown, or the seed exceeds
            64 bits.

    >>> scaling = measure_scaling([1, 1024])
    >>> scaling[1024, False].largest_weight > 0.9 > 0.2 > scaling[1024, True].largest_weight
    True
    """
    from attnscope.base.process.devices import check_memory, check_seed
    from attnscope.base.process.memory import check_imports

    sizes = {"n_batch": experiment.batch, "n_Q": experiment.nq, "n_K": experiment.nk}
    dtype, seed = str(experiment.dtype).removeprefix("torch."), experiment.seed or 0
    distribution = Distribution(experiment.draw or "normal")
    widths = compared.widths
    widths = parse_widths(widths) if isinstance(widths, str) else list(widths)
    if not widths:
        raise OptionError("there is no width to measure at.", hint=spelled(widths=[1, 16, 256]))
    check_seed(seed)
    needed = max(
        contracts.bytes_needed(contracts.sdpa({**sizes, "d_K": d_K, "d_V": 1}, dtype=dtype))
        for d_K in widths
    )  # a lower bound: that of attention with narrow values
    check_memory(
        needed,
        "cpu",
        hint=f"a smaller {spelled('widths')}, {spelled('batch')}, {spelled('nq')} or {spelled('nk')}",
    )
    check_imports()
    with stage(progress, "measuring scores …"):
        rows = {d_K: _measured(sizes, d_K, dtype, seed, distribution) for d_K in dict.fromkeys(widths)}
    result = Scaling(
        sizes, dtype, seed, [row for d_K in widths for row in rows[d_K]], draw=str(distribution)
    )
    result.findings = findings_of(result)
    return result


WIDTHS = r"[1-9][0-9]{0,17}(,[1-9][0-9]{0,17})*"
"""What `--dk` takes."""


def parse_widths(text: str) -> list[int]:
    """Parse a list of widths: `1, 16` becomes `[1, 16]`.

    Raises:
        OptionError: the text is not a list of whole numbers.
    """
    parts = [part.strip() for part in text.split(",")]
    separated = re.sub(r"\s*[\s,;/]\s*", ",", text.strip())
    for part in parts:
        if not re.fullmatch(r"-?[0-9]{1,18}", part):
            raise OptionError(
                f"{part!r} is not a width: {spelled('widths')} takes whole numbers of at most 18 digits,"
                " and commas.",
                hint=spelled(widths=separated if re.fullmatch(WIDTHS, separated) else "1,16,256"),
            )
    return [int(part) for part in parts]


def _measured(
    sizes: dict[str, int], d_K: int, dtype: str, seed: int, distribution: str
) -> list[ScalingRow]:
    """Return the measurements at one width: without the scale, and with it."""
    from attnscope.attention.score_measurements import measure
    from attnscope.base.process.devices import draw, seeded

    n_batch, n_Q, n_K = sizes.values()
    shapes = (n_batch, n_Q, d_K), (n_batch, n_K, d_K)
    with seeded(seed, "cpu"):
        Q, K = (draw(shape, dtype=dtype, device="cpu", distribution=distribution) for shape in shapes)
    scales = {False: 1.0, True: d_K**-0.5}
    return [ScalingRow(d_K, scaled, *measure(Q, K, scale)) for scaled, scale in scales.items()]


def findings_of(result: Scaling) -> list[Finding]:
    """Return the conclusions about the scale that a run's numbers support."""
    rows, n_K = result.rows, result.sizes["n_K"]
    widest, narrowest = max(row.d_K for row in rows), min(row.d_K for row in rows)
    if not all(isfinite(getattr(row, measure)) for row in rows for measure in MEASURES):
        sentence = (
            f"Some scores exceed the range of {result.dtype}, so what is computed from them is NaN"
            " or infinite."
        )
    elif n_K == 1:
        sentence = (
            "There is only one key, so its weight is 1 whatever its score is. Use more keys, such as"
            f" {spelled('nk', 64)}, to see what the scale does."
        )
    elif widest == 1:
        sentence = (
            "At d_K 1 the scale is 1/√1 = 1 and changes nothing. Use wider keys, such as"
            f" {spelled('widths', [1, 64, 1024])}, to see what it does."
        )
    else:
        return _comparison(result, widest, narrowest)
    return [Finding(sentence)]


def _comparison(result: Scaling, widest: int, narrowest: int) -> list[Finding]:
    """Compare the widest keys without the scale, with it, and with the narrowest keys."""
    without, scaled = result[widest, False], result[widest, True]
    unscaled_sentence = (
        f"Without the scale, at d_K {widest}, the variance of the scores is"
        f" {without.text('variance')} and the largest weight {without.text('largest_weight')}:"
        f" {_choice(without)}, and {_gradient(without, scaled)}."
    )
    scaled_sentence = f"With the scale they are {_three(scaled)}"
    if narrowest < widest:
        least = result[narrowest, True]
        alike = all(_alike(row, least) for row in result.rows if row.scaled)
        scaled_sentence += f", {'much as' if alike else 'and'} at d_K {narrowest}"
        scaled_sentence += f" ({_three(least)})" if alike else f" {_three(least)}"
    return [Finding(unscaled_sentence), Finding(scaled_sentence + ".")]


def _choice(row: ScalingRow) -> str:
    """Describe how the softmax distributes the weight of a row."""
    if row.largest_weight >= HARD:
        return "the softmax is nearly one-hot"
    if row.largest_weight > 0.5:
        return "one key has most of a row's weight"
    return "several keys share a row's weight"


def _gradient(without: ScalingRow, scaled: ScalingRow) -> str:
    """Compare the gradient through the softmax with that of the scaled scores."""
    passed = without.text("gradient_norm")
    if without.gradient_norm == scaled.gradient_norm:
        return f"as much gradient passes through it as with the scale ({passed})"
    if without.gradient_norm <= NEARLY_NONE * scaled.gradient_norm:
        return f"almost no gradient passes through it ({passed})"
    much = "less" if without.gradient_norm < scaled.gradient_norm else "more"
    return f"{much} gradient passes through it than with the scale ({passed})"


def _alike(one: ScalingRow, other: ScalingRow) -> bool:
    keys = ("variance", "largest_weight", "gradient_norm")
    pairs = [(getattr(one, key), getattr(other, key)) for key in keys]
    return all(abs(a - b) <= ALIKE * max(a, b) for a, b in pairs)


def _three(row: ScalingRow) -> str:
    return f"{row.text('variance')}, {row.text('largest_weight')} and {row.text('gradient_norm')}"
