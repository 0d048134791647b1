"""The axes of compared tensors: named where it is known what they count, and those of the code."""

import pytest
import torch
from torch import nn

from attnscope import AttnscopeError, compare


class Attention(nn.Module):
    """`n_batch n d`."""

    factor = 1.0

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(24, 24) for _ in range(4))

    def attend(self, x):
        q, k, v = (lin(x).unflatten(-1, (3, -1)).transpose(-3, -2) for lin in (self.q, self.k, self.v))
        scores = self.factor * q @ k.mT / q.shape[-1] ** 0.5
        return (scores.softmax(-1) @ v).transpose(-3, -2).flatten(-2)

    def forward(self, x):
        return self.o(self.attend(x))


class FoldedHeads(Attention):
    def attend(self, x):
        q, k, v = (
            lin(x).unflatten(-1, (3, -1)).transpose(1, 2).flatten(0, 1)
            for lin in (self.q, self.k, self.v)
        )
        scores = torch.bmm(q, k.mT) / q.shape[-1] ** 0.5
        x_raw = torch.bmm(scores.softmax(-1), v)
        return x_raw.unflatten(0, (-1, 3)).transpose(1, 2).flatten(2)


class SquareWindows(Attention):
    """`n_batch height width d`, in windows of 4×4, as in Swin."""

    def forward(self, x):
        B, H, W, C = x.shape
        x = x.view(B, H // 4, 4, W // 4, 4, C).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, C)
        y = self.o(self.attend(x)).view(B, H // 4, W // 4, 4, 4, C)
        return y.permute(0, 1, 3, 2, 4, 5).reshape(B, H, W, C)


class Windows(Attention):
    """`n_batch n d`, in windows of 4."""

    def forward(self, x):
        return self.o(self.attend(x.unflatten(1, (-1, 4))).flatten(1, 2))


class SequenceFirst(Attention):
    def forward(self, x):
        return self.o(self.attend(x.transpose(0, 1)).transpose(0, 1))


class TransposedOutput(Attention):
    def forward(self, x):
        return super().forward(x).transpose(0, 1)


def with_itself_at_another_scale(cls, x):
    wrong = type(f"Wrong{cls.__name__}", (cls,), {"factor": 2.0})
    result = compare(cls(), wrong(), x, weights="same")
    assert [each.cause for each in result.divergences] == ["another scale"]
    return result


def axes(result, *roles):
    return [(result[role].dims, result[role].shape) for role in roles]


@pytest.mark.sweep
def test_an_axis_that_counts_windows_is_no_batch():
    result = with_itself_at_another_scale(SquareWindows, torch.randn(2, 8, 12, 24))
    assert "n_batch" not in result.sizes
    assert result.sizes["n_Q"] == 16
    assert axes(result, "Q", "x_merged") == [
        (("12", "n_head", "n_Q", "d_head"), (12, 3, 16, 8)),
        (("12", "n_Q", "d_feat"), (12, 16, 24)),
    ]
    assert list(result["scores"].index) == ["axis_0", "n_head", "n_Q", "n_K"]
    assert result["x_merged"].shape == result["x_merged"].a.shape


def test_an_axis_that_counts_the_sequences_of_the_input_is_the_batch():
    result = with_itself_at_another_scale(Attention, torch.randn(2, 5, 24))
    assert result.sizes["n_batch"] == 2
    assert axes(result, "Q", "x_merged") == [
        (("n_batch", "n_head", "n_Q", "d_head"), (2, 3, 5, 8)),
        (("n_batch", "n_Q", "d_feat"), (2, 5, 24)),
    ]
    assert list(result["scores"].index) == ["n_batch", "n_head", "n_Q", "n_K"]


def test_shapes_inside_and_outside_of_windows_are_those_of_their_lines():
    result = with_itself_at_another_scale(Windows, torch.randn(2, 12, 24))
    assert "n_batch" not in result.sizes
    assert axes(result, "Q_feat", "Q", "x_merged") == [
        (("2", "3", "n_Q", "d_feat"), (2, 3, 4, 24)),
        (("6", "n_head", "n_Q", "d_head"), (6, 3, 4, 8)),
        (("2", "12", "d_feat"), (2, 12, 24)),
    ]
    assert result["x_merged"].shape == result["x_merged"].a.shape


@pytest.mark.few(1)
@pytest.mark.parametrize("n", [5, 4])
@pytest.mark.parametrize("cls", [Attention, FoldedHeads])
def test_attention_along_the_batch_names_batch_first(cls, n):
    x = torch.randn(4, n, 24)
    batch_second, batch_first = (
        nn.MultiheadAttention(24, 3, batch_first=each) for each in (False, True)
    )
    along = rf"axis 0 of its inputs \(4 .*axis 1 \({n}\)"
    with pytest.raises(AttnscopeError, match=along) as failure:
        compare(cls(), batch_second, x, weights="same")
    assert failure.value.hint.startswith("batch_first=True where MultiheadAttention is built")
    assert compare(cls(), batch_first, x, weights="same").is_equal


@pytest.mark.sweep
def test_attention_along_the_first_axis_is_compared_with_its_like():
    x = torch.randn(4, 4, 24)
    assert compare(SequenceFirst(), nn.MultiheadAttention(24, 3), x, weights="same").is_equal
    with_itself_at_another_scale(SequenceFirst, x)


@pytest.mark.sweep
def test_an_output_with_other_axes_is_shown_where_only_that_differs():
    result = compare(Attention(), TransposedOutput(), torch.randn(4, 4, 24), weights="same")
    assert [each.role for each in result.divergences] == ["output"]
    assert result["output"].status == "different"
    assert compare(Attention(), Attention(), torch.randn(4, 4, 24), weights="same").is_equal
