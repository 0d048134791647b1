"""What of many cases the default run takes; the others have the mark `sweep`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def swept(cases: Iterable[Any], default: Collection[Any]) -> list[Any]:
    """All cases, as parameters of a test: those that are not in `default` are left to the sweep.

    Tuples are taken apart, as `pytest.mark.parametrize` has them for several names.
    """
    cases = list(cases)
    unknown = [case for case in default if case not in cases]
    assert not unknown, f"no such cases: {unknown}"
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=() if case in default else pytest.mark.sweep,
        )
        for case in cases
    ]
