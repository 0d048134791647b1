"""Running error analysis: the deviation from the formula that rounding alone explains.

For each number that the naive loop computes, the rounding error of the run is estimated as a
standard deviation. Rounding a number x changes it by at most u·|x|, and typically by u/2·|x| or less,
where u is the dtype's unit roundoff. The error of a sum of n terms is about √n·u times the sum of
their magnitudes; where the terms are alike, so are their roundings, and it is about n·u times
the sum. Errors of different operations are independent, so their squares add up. Errors at different
keys are not where keys repeat, so their magnitudes add up. A tolerance is five standard deviations.

A simpler rule is common: at most twice the error of another implementation in the same dtype, where
both are compared with float64. Compared with `F.scaled_dot_product_attention`, which rounds fewer
stages, that rule rejects 2 % of 3,000 correct runs of `sdpa` of random sizes in float32, 41 % in
bfloat16 and 43 % in float16.

Source: Higham and Mary 2019, "A New Approach to Probabilistic Rounding Error Analysis", for √n in
the place of n; Higham 2002, "Accuracy and Stability of Numerical Algorithms", section 3.3, for
running error analysis; Blanchard, Higham and Higham 2021, "Accurately
Computing the Log-Sum-Exp and Softmax Functions", for the propagation of errors of scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from attnscope.formula.reference.naive import ProductInputs, QueryBlock, merged, projected, with_heads
from attnscope.formula.reference.run import VerifiedRun

if TYPE_CHECKING:
    import numpy as np

DEVIATIONS = 5.0
"""A tolerance in standard deviations: about the largest of a million normal errors."""

MAX_EXPONENT = 50.0
"""The upper bound of exponents, which avoids overflow."""


@dataclass(frozen=True)
class Tolerances:
    """The tolerated errors of a run's results, for each number.

    Attributes:
        weighted: of the weighted values, if the factors of the product are exact,
            `n_batch n_head n_Q d_V`.
        final: of the end result, if the inputs are exact.
    """

    weighted: np.ndarray
    final: np.ndarray


class Errors:
    """The errors of a run's weighted values, collected while the naive loop computes them.

    Args:
        run: the run, for its dtypes and options.
        inputs: the factors of the product.
    """

    def __init__(self, run: VerifiedRun, inputs: ProductInputs) -> None:
        import numpy as np

        self.run = run
        self.inputs = inputs
        self.entering = _of_entering(run, inputs)
        shape = (*inputs.Q.shape[:3], inputs.V.shape[3])
        self.exact = np.empty(shape)
        self.weighted = self.exact if self.entering is None else np.empty(shape)

    def add(self, rows: QueryBlock) -> None:
        """Compute the errors for a block of queries of one head."""
        b, h, some = rows.place
        run, inputs = self.run, self.inputs
        group = inputs.Q.shape[1] // inputs.K.shape[1]
        block = _Block(
            run,
            inputs.Q[b, h, some],
            inputs.K[b, h // group],
            inputs.V[b, h // group],
            rows.weights,
            rows.weighted,
            run.fully_masked[b, h, some],
            run.mask_of(b, h, some),
            run.kept(b, h, some),
            entering=None,
        )
        self.exact[rows.place] = block.error()
        if self.entering is not None:
            errors = {
                name: each[b, h, some] if name == "Q" else each[b, h // group]
                for name, each in self.entering.items()
            }
            self.weighted[rows.place] = replace(block, entering=errors).error()

    def tolerances(self, weighted: np.ndarray, final: np.ndarray) -> Tolerances:
        """Return the tolerated errors of a correct run.

        Args:
            weighted, final: the weighted values and the end result of the naive loop.
        """
        of_final = _of_final(self.run, weighted, final, self.weighted)
        return Tolerances(DEVIATIONS * self.exact, DEVIATIONS * of_final)


def tolerance_of_sums(run: VerifiedRun) -> float:
    """Return the tolerated deviation from 1 of the sum of a query's rounded weights."""
    r, n_K = _Roundoff.of(run), run.trace.sizes["n_K"]
    return DEVIATIONS * (r.rounding + r.softmax + r.softmax_sum(n_K) + r.tiny * n_K)


@dataclass(frozen=True)
class _Roundoff:
    """The relative errors of single operations in a run's dtypes.

    Attributes:
        rounding, softmax: of rounding a number to the run's dtype, and to the softmax's dtype.
        term, softmax_term: of each term of a sum; float16 and bfloat16 are summed in float32.
        tiny: the absolute error of subnormal numbers.
    """

    rounding: float
    softmax: float
    term: float
    softmax_term: float
    tiny: float

    @classmethod
    def of(cls, run: VerifiedRun) -> _Roundoff:
        import torch

        dtypes = [torch.finfo(dtype) for dtype in (run.dtype, run.softmax_dtype)]
        rounding, softmax = (dtype.eps / 4 for dtype in dtypes)  # u/2, and u is eps/2
        summed = torch.finfo(torch.float32).eps / 4
        term, softmax_term = min(rounding, summed), min(softmax, summed)
        tiny = max(dtype.smallest_normal * dtype.eps for dtype in dtypes) / 2
        return cls(rounding, softmax, term, max(term, softmax_term), tiny)

    def sum(self, n: int, magnitudes: np.ndarray, sums: np.ndarray) -> np.ndarray:
        """Return the error of sums of n terms; roundings of equal terms do not cancel.

        Args:
            n: the number of terms.
            magnitudes: the sums of their magnitudes.
            sums: the sums themselves.
        """
        return _together(self.term * (n**0.5 + 4) * magnitudes, self.term * (n / 4) * sums)

    def softmax_sum(self, n: int) -> float:
        """Return the error of weights from their n exponentials and the sum of these."""
        return self.softmax_term * (n / 4 + n**0.5 + 8)


def _of_entering(run: VerifiedRun, inputs: ProductInputs) -> dict[str, np.ndarray] | None:
    """Return the errors of the factors Q, K and V; None if they are neither projected nor rotated."""
    import numpy as np

    theta = run.option("rope_theta")
    if not run.projects and theta is None:
        return None
    errors = {name: _of_projection(run, inputs, name) for name in "QKV"}
    if theta is not None:
        for name, starts in run.starts.items():
            errors[name] = _of_rotation(run, inputs.unturned[name], errors[name], starts, theta)
    if "K_past" in run:
        for name in "KV":
            exact = np.zeros(run.heads(f"{name}_past").shape)
            errors[name] = np.concatenate((exact, errors[name]), axis=2)
    if run.query is not None:
        errors["Q"] = errors["Q"][:, :, run.query : run.query + 1]
    return errors


def _of_projection(run: VerifiedRun, inputs: ProductInputs, name: str) -> np.ndarray:
    """Return the error of Q, K or V before rotation, `n_batch n_head n d`; 0 if it is an input."""
    import numpy as np

    by = run.projection(name)
    if by is None:
        return np.zeros_like(inputs.unturned[name])
    r, (weight, bias) = _Roundoff.of(run), by
    magnitudes = projected(np.abs(run.source(name)), (np.abs(weight), np.abs(bias)))
    magnitudes = with_heads(run, name, magnitudes)
    values = inputs.unturned[name]
    return _together(r.rounding * values, r.sum(len(weight), magnitudes, values), r.tiny)


def _of_rotation(
    run: VerifiedRun, x: np.ndarray, error: np.ndarray, starts: Sequence[int], theta: float
) -> np.ndarray:
    """Return the error of rotated vectors, from the angles (float32 at least) and the rotation."""
    import numpy as np

    r = _Roundoff.of(run)
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    frequencies = theta ** (-np.arange(half) / half)
    positions = np.abs(np.reshape(starts, (-1, 1, 1, 1))) + np.arange(x.shape[-2])[:, None]
    angles = 2 * r.term * positions * frequencies * (2 + np.abs(np.log(frequencies)))
    rotation = (2 * r.rounding + angles) * np.hypot(first, second)
    both = _together(rotation, error[..., :half], error[..., half:])
    return np.concatenate((both, both), axis=-1)


@dataclass(frozen=True)
class _Block:
    """A block of queries of one head, all its keys and values, and the results: `n_Q …`, `n_K …`."""

    run: VerifiedRun
    Q: np.ndarray
    K: np.ndarray
    V: np.ndarray
    weights: np.ndarray
    out: np.ndarray
    fully_masked: np.ndarray
    mask: np.ndarray | None
    kept: np.ndarray | None
    entering: dict[str, np.ndarray] | None

    def error(self) -> np.ndarray:
        """Return the error of the weighted values, `n_Q d_V`, from scores, weights, values and sums."""
        import numpy as np

        run, r, n_K = self.run, _Roundoff.of(self.run), len(self.K)
        grown = 1.0 if self.kept is None else self.kept / ((1 - run.dropout) or np.inf)
        largest = np.max(grown)
        weights = self.weights * grown
        magnitudes = weights @ np.abs(self.V)
        roundings = 1 + (self.kept is not None) + (run.query is not None)
        of_weights = _together(roundings**0.5 * r.rounding, r.softmax, r.softmax_sum(n_K))
        terms = n_K if run.query is not None else 0  # only that form rounds each term
        most = largest * np.abs(self.V).max(axis=0) + np.abs(self.out)
        if run.is_mha:  # W_O sums the errors of all coordinates
            most *= DEVIATIONS
        return _together(
            np.minimum(self._by_scores(grown), most) / DEVIATIONS,
            of_weights * magnitudes,
            0.0 if self.entering is None else weights @ self.entering["V"],
            r.sum(n_K, magnitudes, self.out),
            r.rounding * self.out,
            r.tiny * (1 + terms + largest * np.abs(self.V).sum(axis=0)),
        )

    def _by_scores(self, grown: np.ndarray | float) -> np.ndarray:
        """Bound the change of the weighted values by errors of the scores, `n_Q d_V`.

        If score j has the error δ_j, the weights a become a·e^δ / Σ a·e^δ, and the weighted values
        change by Σ a·(e^δ - 1)·(g·V - out) / Σ a·e^δ, where g is the factor of dropout.
        The Cauchy–Schwarz inequality bounds that by an expression of matrix products only.
        """
        import numpy as np

        scores, errors = self._scores()
        errors = DEVIATIONS * errors
        top = scores.max(axis=1, keepdims=True)
        logs = scores - top - np.log(np.exp(scores - top).sum(axis=1, keepdims=True))
        changes = np.exp(np.minimum(logs + errors, MAX_EXPONENT)) * -np.expm1(-errors)
        least = np.exp(logs - errors).sum(axis=1, keepdims=True)
        total = changes.sum(axis=1, keepdims=True)
        squares = (changes * grown**2) @ self.V**2
        squares += total * self.out**2 - 2 * self.out * ((changes * grown) @ self.V)
        moved = np.sqrt(total * np.maximum(squares, 0)) / np.maximum(least, np.exp(-MAX_EXPONENT))
        return np.where(self.fully_masked[:, None], 0, moved)

    def _scores(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the scores that enter the softmax, and their errors, both `n_Q n_K`."""
        import numpy as np

        run, r = self.run, _Roundoff.of(self.run)
        scale, width = run.option("scale"), self.Q.shape[-1]
        scores = self.Q @ self.K.T * scale
        lengths = np.outer(np.linalg.norm(self.Q, axis=1), np.linalg.norm(self.K, axis=1))
        error = _together(
            1.5 * r.rounding * scores,  # rounded after the product, and again after scaling
            r.sum(width, scale * lengths, scores),
            r.tiny * scale,
            self._of_products(scores),
        )
        if (cap := run.option("softcap")) is not None:
            less = np.maximum(np.abs(scores) - error, -cap)
            scores = cap * np.tanh(scores / cap)
            error = _together(np.abs(scores) - cap * np.tanh(less / cap), 2 * r.rounding * scores)
        if self.mask is not None and self.mask.dtype == bool:
            scores, error = np.where(self.mask, scores, run.fill), np.where(self.mask, error, 0)
        elif self.mask is not None:
            scores = scores + self.mask
            error = _together(error, r.rounding * scores)
        if r.softmax > r.rounding:
            error = _together(error, r.softmax * scores)
        return scores, np.where(np.isinf(scores), 0, error)

    def _of_products(self, scores: np.ndarray) -> np.ndarray | float:
        """Return the errors of the scores that come from errors of queries and keys, `n_Q n_K`.

        Errors of different coordinates are usually independent; where all coordinates are alike,
        so are their errors, and the error of the score is proportional to it.
        """
        import numpy as np

        if self.entering is None:
            return 0.0
        run, r = self.run, _Roundoff.of(self.run)
        roundings = 1.5 * run.projects + 3 * (run.option("rope_theta") is not None)
        of_Q, of_K = self.entering["Q"], self.entering["K"]
        independent = np.sqrt(of_Q**2 @ (self.K**2).T + self.Q**2 @ (of_K**2).T)
        return _together(run.option("scale") * independent, roundings * r.rounding * scores)


def _of_final(
    run: VerifiedRun, weighted: np.ndarray, final: np.ndarray, error: np.ndarray
) -> np.ndarray:
    """Return the error of the end result: independent errors of the weighted values, through W_O."""
    import numpy as np

    error, by = merged(run, error), run.projection("O")
    if by is None:
        return error
    r, (weight, bias) = _Roundoff.of(run), by
    magnitudes = projected(np.abs(merged(run, weighted)), (np.abs(weight), np.abs(bias)))
    return _together(
        np.sqrt(projected(error**2, (weight**2, 0.0))),
        _together(r.rounding, r.softmax) * (final - bias),  # a weight's error is shared by all values
        r.rounding * final,
        r.sum(len(weight), magnitudes, final),
        r.tiny,
    )


def _together(*errors: np.ndarray | float) -> np.ndarray:
    """Combine independent errors: the root of the sum of their squares."""
    import numpy as np

    return np.sqrt(sum(np.square(error) for error in errors))
