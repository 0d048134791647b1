"""Log-probabilities that an engine recorded, beside those of the model here."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

ROUNDINGS, ROUNDINGS_16 = 64, 8
"""How many roundings of the largest logit two runs in float32, or in 16 bits, may differ by.

A log-probability is a logit less the logarithm of a sum, which is at most the largest logit plus log n.
Each run rounds its logits by eps / 2 of their size; before that, the residual stream was rounded in each
layer, in another order by another kernel. In 16 bits, sums are kept in float32, and results are rounded
alone; in float32, each sum is rounded as it grows, so that there are more roundings. Of eps times the
largest logit, pairs of SDPA, eager attention, a cache and a batch differ by 17 at most in float32 and by
3.3 in 16 bits: SmolLM2-135M, and random LLaMAs, GPT-2s, Gemma2s and Qwen3s of up to 48 layers. The
bounds leave more than the double.
"""

FLOAT16, BFLOAT16 = 2**-10, 2**-7
"""The precision of float16; and that of bfloat16, the coarsest dtype that engines usually run in."""

ADDITION = 2**-24
"""How much of a sum in float32 one addition may lose.

llama.cpp adds the probabilities of its vocabulary one by one (`get_token_probabilities` in its
tools/server/server-common.cpp), and small ones are lost beside a large sum: of n, at most n · 2⁻²⁴ of it
[Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 4.2]. So its log-probabilities are
too large, in float32 by 2e-4 for the 49,152 tokens of SmolLM2.
"""


@dataclass
class RecordedAnswer:
    """What an engine recorded of an answer."""

    engine: str  #: whose format it is: `vLLM`, `llama.cpp` or `OpenAI-compatible`
    #: where the ids of the tokens are from: `exact` ones in the file; `pieces`, each of which is one
    #: token's; or `retokenised` text
    ids: str
    log_probabilities: list[float | None]  #: of each token, natural logarithm; None: not known
    #: the first token that is another than the file's, after the text was tokenized again
    drift: int | None = None
    causes: list[str] = field(default_factory=list)  #: why they may be others than the model's
    here: list[float] = field(default_factory=list)  #: those of the model here
    #: the difference that rounding explains, for each token
    tolerances: list[float] = field(default_factory=list)

    def of_rows(self, rows: slice) -> RecordedAnswer:
        """Return the numbers of some tokens alone."""
        return replace(
            self,
            log_probabilities=self.log_probabilities[rows],
            here=self.here[rows],
            tolerances=self.tolerances[rows],
        )

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
    recorded: RecordedAnswer, here: list[float], largest_logits: list[float], eps: float, n_vocab: int
) -> None:
    """Set the model's own log-probabilities, and what rounding explains for the largest logits."""
    lost = 0.0 if recorded.engine == "vLLM" else n_vocab * ADDITION

    def bounds(eps: float) -> list[float]:
        most = (ROUNDINGS if eps < FLOAT16 else ROUNDINGS_16) * eps
        return [most * max(1.0, largest) + lost for largest in largest_logits]

    recorded.here = list(here)
    recorded.tolerances = bounds(eps)
    coarser = replace(recorded, tolerances=bounds(BFLOAT16))
    if recorded.parts_at is not None and eps < BFLOAT16 and coarser.parts_at is None:
        recorded.causes.insert(
            0, "the engine computed in 16 bits or fewer, and rounding to bfloat16 explains it"
        )
