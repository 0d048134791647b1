"""The options of a comparison of code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from attnscope.base.options import Texts


@dataclass(frozen=True)
class Pairing:
    """The options of a comparison, as `compare` takes them."""

    #: The arguments of the code.
    init: Texts = ()
    inputs: Texts = ()
    where: list[str] = field(default_factory=list)
    call: str | None = None
    same: Mapping[str, str] = field(default_factory=dict)
    map: Mapping[str, str] = field(default_factory=dict)
    #: `own` or `same`, for modules that already exist; None: their own.
    weights: str | None = None
    #: Of the reference.
    options: dict[str, Any] = field(default_factory=dict)
    #: Whether gradients are compared, too.
    backward: bool = False
    #: Of the run; an empty dtype is not known yet.
    dtype: str = "float32"
    seed: int = 0
    #: The distribution of drawn inputs: `normal` (None) or `uniform`.
    draw: str | None = None


def by_name(texts: Texts) -> dict[str, Any]:
    """Return specifications by the name in each.

    >>> by_name(["d_model=60", "h = 5"])
    {'d_model': '60', 'h': ' 5'}
    """
    if isinstance(texts, Mapping):
        return dict(texts)
    parts = (text.partition("=") for text in texts)
    return {name.strip(): value for name, _, value in parts}
