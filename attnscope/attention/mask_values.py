"""What the numbers of a mask mean: which of them hide a key."""

from __future__ import annotations

from typing import NamedTuple

import torch

from attnscope.attention.mask_rules import HIDES
from attnscope.base.errors import OptionError
from attnscope.base.spelling import spelled


class MaskReading(NamedTuple):
    """What the numbers of a mask mean.

    Attributes:
        visible: True where a key is visible.
        hides: which of 0 and 1 hides; None: neither, as they are added to scores.
        why: why it is read so, if the numbers leave it open.
    """

    visible: torch.Tensor
    hides: int | None = None
    why: str = ""


def read_mask(mask: torch.Tensor, name: str, hides: int | None = None) -> MaskReading:
    """Find which keys a mask shows.

    Zeros and ones may mean both. If each query sees a key with one meaning, and some do not with the
    other, it is that one; else 1 is visible, as for torch.

    Args:
        mask: zeros and ones, or numbers that are added to scores, `… n_Q n_K`.
        name: what returned it.
        hides: which of 0 and 1 hides; None: not said.

    Raises:
        OptionError: it is neither.

    >>> read_mask(torch.ones(3, 3).triu(1), "future").visible[0].tolist()
    [True, False, False]
    """
    if hides not in (None, 0, 1):
        raise OptionError(
            f"{spelled('hides')} is {hides}.", hint=f"{spelled(hides=0)}, or {spelled(hides=1)}"
        )
    is_binary = bool(((mask == 0) | (mask == 1)).all())
    if not is_binary or (mask.is_floating_point() and not bool(mask.any())):
        hidden = mask <= HIDES
        if bool(mask.isnan().any()) or bool(((mask < 0) & ~hidden).any()):
            raise OptionError(
                f"{name} returns numbers that a mask does not have.",
                hint="zeros and ones, or numbers that are added to scores, of which -inf hides",
            )
        if hides is not None:
            raise OptionError(
                f"{spelled('hides')} is for zeros and ones, and {name} returns numbers to add."
            )
        return MaskReading(~hidden)
    if hides is not None:
        return MaskReading(mask != hides, hides)
    one = "True" if mask.dtype == torch.bool else "1"
    may_show, may_hide = (bool(shown.any(-1).all()) for shown in (mask == 1, mask == 0))
    if may_show == may_hide:
        return MaskReading(mask == 1, 0, f"that {one} is visible is a guess")
    meaning = "is visible" if may_show else "hides"
    why = f"{one} {meaning}, or else a query would see no key"
    return MaskReading(mask == 1, 0, why) if may_show else MaskReading(mask == 0, 1, why)
