"""What every step of the textbook is: its name, axes, expression, and what it takes.

From this alone a dry run prints every shape at any size, without torch. A real run is
checked against it, step by step, and gets its axes' names from it. `sdpa` and `mha`
declare the steps, with the `stages` that they share, for each form (`forms`) and variant
(`variants`); `plan` makes a trace of them; `runs` compares a recorded one; `memory` says what
it takes.
"""

from attnscope.contracts.memory import UNUSED_BY_PROOF, Uses, bytes_needed
from attnscope.contracts.mha import mha
from attnscope.contracts.plan import DTYPES, check_sizes
from attnscope.contracts.runs import check, label, without_idle_stages
from attnscope.contracts.sdpa import sdpa, sdpa_columns, sdpa_query
from attnscope.contracts.variants import Variant

__all__ = [
    "DTYPES",
    "UNUSED_BY_PROOF",
    "Uses",
    "Variant",
    "bytes_needed",
    "check",
    "check_sizes",
    "label",
    "mha",
    "sdpa",
    "sdpa_columns",
    "sdpa_query",
    "without_idle_stages",
]
