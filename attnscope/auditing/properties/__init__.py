"""The properties of models: in each file what to run, and what must be equal; here the list of all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache as cache_result

from attnscope.auditing.models.probe import Probe
from attnscope.auditing.properties.batch import batch
from attnscope.auditing.properties.cache import cache
from attnscope.auditing.properties.causal import causal
from attnscope.auditing.properties.kernels import kernels
from attnscope.auditing.properties.packed import packed
from attnscope.auditing.properties.padding import padding
from attnscope.auditing.properties.visible import bidirectional, coverage, window
from attnscope.auditing.result import HOLDS, Property


def tests_of(probe: Probe, requested: Mapping[str, bool]) -> dict[str, Callable[[], Property]]:
    """Return the test of each property by its name, in the order of the table."""
    of_batch = cache_result(lambda: batch(probe))
    return {
        "causal": lambda: causal(probe, lambda: of_batch().status == HOLDS),
        "bidirectional": lambda: bidirectional(probe),
        "window": lambda: window(probe),
        "coverage": lambda: coverage(probe),
        "padding": lambda: padding(probe),
        "packed": lambda: packed(probe, requested["packed"]),
        "batch": of_batch,
        "cache": lambda: cache(probe),
        "kernels": lambda: kernels(probe),
    }
