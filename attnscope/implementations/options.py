"""The options of a comparison of code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from attnscope.user_code.subject import Texts


@dataclass(frozen=True)
class Pairing:
    """The options of a comparison, as `compare` takes them.

    Attributes:
        init, inputs, where, call: the arguments of the code.
        same: parameters that get the same value.
        map: weights that are the same.
        weights: `own` or `same`, for modules that already exist; None: their own.
        options: of the reference.
        backward: whether gradients are compared, too.
        dtype, seed: of the run; an empty dtype is not known yet.
    """

    init: Texts = ()
    inputs: Texts = ()
    where: list[str] = field(default_factory=list)
    call: str | None = None
    same: Mapping[str, str] = field(default_factory=dict)
    map: Mapping[str, str] = field(default_factory=dict)
    weights: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    backward: bool = False
    dtype: str = "float32"
    seed: int = 0


def by_name(texts: Texts) -> dict[str, Any]:
    """Return specifications by the name in each.

    >>> by_name(["d_model=60", "h = 5"])
    {'d_model': '60', 'h': ' 5'}
    """
    if isinstance(texts, Mapping):
        return dict(texts)
    parts = (text.partition("=") for text in texts)
    return {name.strip(): value for name, _, value in parts}
