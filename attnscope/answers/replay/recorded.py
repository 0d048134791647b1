"""Log-probabilities that an engine recorded, beside those of the model here."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

ROUNDINGS = 16
"""How many roundings of the largest logit two runs in one dtype may differ by.

A log-probability is a logit less the logarithm of a sum, which is at most the largest logit plus log n.
Each run rounds its logits by eps / 2 of their size; before that, the residual stream was rounded in each
layer, in another order by another kernel. These errors are random, and grow like the root of their
number: 16 allows for 2 · 64 layers of two roundings each.
"""


BFLOAT16 = 2**-7
"""The precision of bfloat16, the coarsest dtype that engines usually run in."""


@dataclass
class RecordedAnswer:
    """What an engine recorded of an answer.

    Attributes:
        engine: whose format it is: `vLLM`, `llama.cpp` or `OpenAI-compatible`.
        ids: where the ids of the tokens are from: `exact` ones in the file; `pieces`, each of which is
            one token's; or `retokenised` text.
        log_probabilities: of each token, natural logarithm; None: not known.
        drift: the first token that is another than the file's, after the text was tokenized again.
        causes: why they may be others than the model's.
        here: those of the model here.
        tolerances: the difference that rounding explains, for each token.
    """

    engine: str
    ids: str
    log_probabilities: list[float | None]
    drift: int | None = None
    causes: list[str] = field(default_factory=list)
    here: list[float] = field(default_factory=list)
    tolerances: list[float] = field(default_factory=list)

    @property
    def parts_at(self) -> int | None:
        """The first token whose log-probabilities differ by more than rounding explains; None: none."""
        pairs = zip(self.log_probabilities, self.here, self.tolerances, strict=True)
        return next(
            (i for i, (there, here, most) in enumerate(pairs) if _differ(there, here, most)), None
        )


def _differ(there: float | None, here: float, most: float) -> bool:
    """Check whether two log-probabilities differ by more than rounding; NaN differs from all."""
    return there is not None and not abs(there - here) <= most


def compare(
    recorded: RecordedAnswer, here: list[float], largest_logits: list[float], eps: float
) -> None:
    """Set the model's own log-probabilities, and the differences that rounding explains.

    Args:
        recorded: what the engine recorded.
        here: the log-probabilities of the same tokens here.
        largest_logits: the largest size of a logit, for each of them.
        eps: the precision of the model's dtype, or of a coarser one in which the engine ran.
    """
    recorded.here = list(here)
    recorded.tolerances = [ROUNDINGS * eps * max(1.0, largest) for largest in largest_logits]
    if recorded.parts_at is not None and eps < BFLOAT16:
        wider = [most * BFLOAT16 / eps for most in recorded.tolerances]
        if replace(recorded, tolerances=wider).parts_at is None:
            recorded.causes.insert(
                0, "the engine ran in bfloat16 or float16, whose rounding explains it"
            )
