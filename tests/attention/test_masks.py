"""Masks on scores, by hand."""

import pytest
import torch

from attnscope.attention.masks import masked
from attnscope.errors import OptionError

SCORES = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])


def test_no_mask_returns_the_very_scores():
    assert masked(SCORES, None) is SCORES


def test_a_boolean_mask_puts_minus_infinity_where_it_is_false():
    allowed = torch.tensor([[True, False, True], [True, True, False]])
    assert masked(SCORES, allowed).tolist() == [[1, -torch.inf, 3], [4, 5, -torch.inf]]


def test_a_float_mask_is_added():
    assert masked(SCORES, torch.tensor([0.0, -1.0, 10.0])).tolist() == [[1, 1, 13], [4, 4, 16]]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64])
def test_a_mask_of_whole_numbers_is_refused_because_it_may_mean_either(dtype):
    with pytest.raises(
        OptionError, match=r"can mean either 'may attend' or 'add to the scores'"
    ) as caught:
        masked(SCORES, torch.ones(3, dtype=dtype))
    assert "mask.bool()" in caught.value.hint
