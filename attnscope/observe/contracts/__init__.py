"""Contracts: the declared steps of the textbook, with their names, axes, expressions and cost.

A dry run prints every shape at any size from these alone, without torch. A real run is
checked against them step by step, and takes its axis names from them. `sdpa` and `mha`
declare the steps, with the `stages` that they share, for each form and variant; `plan` turns
them into a trace; `runs` compares a recorded trace; `memory` estimates the memory of a run.
"""

from attnscope.observe.contracts.memory import UNUSED_BY_PROOF, Uses, bytes_needed
from attnscope.observe.contracts.mha import mha
from attnscope.observe.contracts.plan import Variant, stages_of
from attnscope.observe.contracts.runs import check, has_contract, label, without_idle_stages
from attnscope.observe.contracts.sdpa import sdpa, sdpa_columns, sdpa_query

__all__ = [
    "UNUSED_BY_PROOF",
    "Uses",
    "Variant",
    "bytes_needed",
    "check",
    "has_contract",
    "label",
    "mha",
    "sdpa",
    "sdpa_columns",
    "sdpa_query",
    "stages_of",
    "without_idle_stages",
]
