"""What two sides are paired by: the options, and which parameters and weights of both are the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attnscope.base.errors import OptionError
from attnscope.base.options import Texts
from attnscope.base.spelling import spelled


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


PADDING = ("key_padding_mask", "padding_mask")
"""Names of masks that are True where a key is hidden."""

WORDS = {
    "Q": ("q", "query", "queries", "xq", "x_q", "q_in", "q_input", "query_states"),
    "K": ("k", "key", "keys", "xk", "x_k", "k_in", "k_input", "key_states"),
    "V": ("v", "value", "values", "xv", "x_v", "v_in", "v_input", "value_states"),
    "x": ("x", "hidden_states", "hidden", "input", "inputs", "inp", "src", "tokens", "embeddings", "h"),
    "context": (
        "context", "xa", "memory", "kv", "x_kv", "key_value", "key_value_states",
        "encoder_hidden_states", "encoder_output", "enc_output", "encoder_out",
    ),
    "mask": ("mask", "attn_mask", "attention_mask", "attn_bias", "bias", "m", *PADDING),
}  # fmt: skip
"""The names that parameters usually have, in lower case; `context` is what K and V come from."""


INSTEAD = {
    "Q": ("x",),
    "K": ("context", "x"),
    "V": ("context", "x"),
    "x": ("Q",),
    "context": ("K",),
}
"""The roles that another side's parameter may have instead."""


def role_of(name: str) -> str | None:
    """Return `Q`, `K`, `V`, `x`, `context` or `mask` for a parameter of attention; None for another.

    >>> role_of("query"), role_of("attn_mask"), role_of("rate")
    ('Q', 'mask', None)
    """
    return next((role for role, words in WORDS.items() if name.lower() in words), None)


def matched(
    needed: Sequence[str], offered: Sequence[str], same: Mapping[str, str], title: str
) -> dict[str, str]:
    """Return for each parameter of one side the one of the other that gives its value.

    `same` has the pairs that the user states, and `title` is the side of the parameters that are needed.
    """
    result: dict[str, str] = {}
    for name, other in same.items():
        if name in needed and other in offered:
            result[name] = other
        elif other in needed and name in offered:
            result[other] = name
        else:
            raise OptionError(
                f"{spelled('same', f'{name}={other}')}: {title} has the parameters"
                f" {', '.join(needed)}; the other side gives {', '.join(offered)}."
            )
    lower = {each.lower(): each for each in offered}
    roles = {role: each for each in reversed(offered) if (role := role_of(each)) is not None}
    for name in needed:
        role = role_of(name)
        found = name if name in offered else lower.get(name.lower())
        if found is None and role is not None:
            found = next((roles[each] for each in (role, *INSTEAD.get(role, ())) if each in roles), None)
        if name not in result and found is not None:
            result[name] = found
    return result


@dataclass(frozen=True)
class WeightCopy:
    """Weights that both sides have: one side's were copied to the other.

    Attributes:
        role: `W_Q`, `b_Q` and so on; None if they were copied by name or shape.
        a, a_part: the parameter of a, and which part of it.
        b, b_part: the parameter of b, and which part of it.
        shape: the shape of the part.
        a_elements, b_elements: the flat index of its elements in both; None: all.
    """

    role: str | None
    a: str
    a_part: str
    b: str
    b_part: str
    shape: tuple[int, ...]
    a_elements: Any = field(default=None, repr=False, compare=False)
    b_elements: Any = field(default=None, repr=False, compare=False)

    def reversed(self) -> WeightCopy:
        """Return the same weights with a and b exchanged."""
        a, b = (self.a, self.a_part), (self.b, self.b_part)
        return WeightCopy(self.role, *b, *a, self.shape, self.b_elements, self.a_elements)
