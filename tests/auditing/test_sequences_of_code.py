"""Audits of the batch and of padding in code: their lines, their sides, and inputs of any shape."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import attnscope
from attnscope.base.errors import OptionError


class Mixed(nn.Module):
    """Keys are reshaped, where their axes should be exchanged twice."""

    def __init__(self, d: int, right: bool = False) -> None:
        super().__init__()
        self.right = right
        self.q, self.k, self.v = (nn.Linear(d, d) for _ in range(3))

    def forward(self, x):
        B, T, d = x.shape
        q, k, v = self.q(x), self.k(x), self.v(x)
        turned = k.transpose(0, 1) if self.right else k.reshape(T, B, d)
        k = turned.transpose(0, 1)
        weights = (q @ k.mT / d**0.5).softmax(-1)
        return weights @ v


def with_mean_of_the_batch(x):
    average = x.mean(0, keepdim=True)
    return x + average


def test_the_line_that_mixes_sequences_is_named():
    inputs = {"x": "B:2,T:7,d:24"}
    found = attnscope.audit(Mixed, init={"d": 24}, inputs=inputs, batch=True)["batch"]
    assert found.status == "broken"
    assert found.evidence.line.expression == "k.reshape(T, B, d)"
    right = attnscope.audit(Mixed, init={"d": 24, "right": True}, inputs=inputs, batch=True)
    assert right["batch"].status == "holds"
    found = attnscope.audit(with_mean_of_the_batch, inputs={"x": "B:3,T:7,8"}, batch=True)["batch"]
    assert found.evidence.line.expression == "x.mean(0, keepdim=True)"


def cross(q, k, v, mask=None):
    scores = q @ k.mT
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None], float("-inf"))
    weights = scores.softmax(-1)
    return weights @ v


def cross_without(q, k, v, mask=None):
    return cross(q, k, v)


CROSS = {"q": "B:2,n:5,d:8", "k": "B,m:9,d", "v": "B,m,d"}


@pytest.mark.few(1)
@pytest.mark.parametrize(("code", "status"), [(cross, "holds"), (cross_without, "broken")])
def test_padding_and_batch_need_no_equal_lengths(code, status):
    audit = attnscope.audit(code, inputs=CROSS | {"mask": "B,m@bool"}, padding=True, batch=True)
    assert audit["padding"].status == status
    assert audit["batch"].status == "holds"
    assert len(audit.influences[0].measured) == 5
    assert len(audit.influences[0].measured[0]) == 9


def test_what_a_query_may_see_needs_equal_lengths_and_the_hint_fits():
    with pytest.raises(OptionError, match="5 queries and 9 keys") as caught:
        attnscope.audit(cross, inputs=CROSS, causal=True)
    assert 'q": "B:2,n:9,d:8"' in caught.value.hint or "q=B:2,n:9,d:8" in caught.value.hint


class Triangle(nn.Module):
    """Attention of pairs of residues along rows, with a bias from pairs: its input is square."""

    def __init__(self, d: int = 6, h: int = 2) -> None:
        super().__init__()
        self.h, self.qkv, self.bias = h, nn.Linear(d, 3 * d), nn.Linear(d, h)

    def forward(self, z):
        B, n, _, d = z.shape
        split = (each.view(B, n, n, self.h, -1) for each in self.qkv(z).chunk(3, -1))
        q, k, v = (each.transpose(2, 3) for each in split)
        bias = self.bias(z).permute(0, 3, 1, 2)[:, None]
        return ((q @ k.mT + bias).softmax(-1) @ v).transpose(2, 3).reshape(B, n, n, d)


@pytest.mark.parametrize("size", ["2,7,7,6", "B:2,N:7,N,6"])
def test_an_input_of_pairs_is_audited(size):
    audit = attnscope.audit(Triangle, inputs={"z": size}, bidirectional=True)
    assert audit["bidirectional"].status == audit["batch"].status == "holds"


class Tied(nn.Module):
    """Attention whose weights all rows share, so that two axes mix: of rows and of columns."""

    def __init__(self, d: int = 6) -> None:
        super().__init__()
        self.qkv = nn.Linear(d, 3 * d)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        weights = torch.einsum("rcbd,rkbd->bck", q, k).softmax(-1)
        return torch.einsum("bck,rkbd->rcbd", weights, v)


def test_an_axis_that_is_called_batch_is_not_that_of_positions():
    audit = attnscope.audit(Tied, inputs={"x": "rows:3,cols:7,batch:2,6"}, bidirectional=True)
    assert audit.n_tokens == 7
    assert audit["batch"].status == "holds"


def test_every_axis_that_may_be_positions_is_named():
    with pytest.raises(OptionError, match="along axis 0, with 3, and along axis 1, with 7") as caught:
        attnscope.audit(Tied, inputs={"x": "3,7,2,6"}, bidirectional=True)
    assert "T:3,7,2,6" in caught.value.hint
    assert "3,T:7,2,6" in caught.value.hint


class Learned(nn.Module):
    """Attention with learned positions, counted from the first token on or from the first real one."""

    def __init__(self, d: int = 8, from_mask: bool = False) -> None:
        super().__init__()
        self.from_mask, self.positions = from_mask, nn.Parameter(torch.randn(32, d))

    def forward(self, x, mask):
        places = torch.arange(x.shape[1]).expand(mask.shape)
        if self.from_mask:
            places = (mask.long().cumsum(1) - 1).clamp(min=0)
        x = x + self.positions[places]
        return (x @ x.mT).masked_fill(~mask[:, None], float("-inf")).softmax(-1) @ x


PADDED = {"x": "B:2,T:9,d:8", "mask": "B,T@bool"}


def test_padding_that_shifts_positions_is_said():
    shifted = attnscope.audit(Learned, inputs=PADDED, padding=True)["padding"]
    assert shifted.status == "holds"
    assert "with padding on the left, real ones are not what they are without it" in shifted.found
    right = attnscope.audit(Learned, init={"from_mask": True}, inputs=PADDED, padding=True)["padding"]
    assert right.found.endswith("and real ones are what they are without padding")


def by_length(x, mask):
    length = mask.sum(1)
    real = torch.arange(x.shape[1]) < length[:, None]
    return (x @ x.mT).masked_fill(~real[:, None], float("-inf")).softmax(-1) @ x


def test_a_side_for_which_code_is_not_made_is_named():
    found = attnscope.audit(by_length, inputs=PADDED, padding=True)["padding"]
    assert found.status == "broken"
    assert found.found.startswith("padding on the left")
    assert found.found.endswith(
        "; on the right it holds, and the code may be made for padding there alone"
    )
    assert found.evidence.line.expression == "torch.arange(x.shape[1]) < length[:, None]"


def hides_queries(x, mask):
    scores = (x @ x.mT).masked_fill(~mask[:, :, None], float("-inf"))
    weights = scores.softmax(-1).nan_to_num()
    return weights @ x


def test_a_mask_of_queries_in_place_of_keys_has_no_wrong_line():
    found = attnscope.audit(hides_queries, inputs=PADDED, padding=True)["padding"]
    assert found.status == "broken"
    assert found.evidence.line is None


def read_earlier_sequences(x):
    return x + x.cumsum(0).mean(1, keepdim=True)


def masked_by_others(x, padding_mask):
    scores = (x @ x.mT).repeat_interleave(3, 0)
    hidden = padding_mask.repeat(3, 1)[:, None]  # of the wrong sequences
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    return (weights @ x.repeat_interleave(3, 0)).unflatten(0, (-1, 3)).mean(1)


def test_no_sequence_may_move_another_and_no_mask_of_another_may():
    later = attnscope.audit(read_earlier_sequences, inputs={"x": "B:2,T:7,d:8"}, batch=True)["batch"]
    assert (later.status, later.found) == ("broken", "exchanging sequence 0 moves sequence 1")
    inputs = {"x": "B:2,T:7,d:8", "padding_mask": "B,T@bool"}
    masked = attnscope.audit(masked_by_others, inputs=inputs, batch=True)["batch"]
    assert (masked.status, masked.found) == ("broken", "masking keys of sequence 1 moves sequence 0")
    assert masked.evidence.line is None  # not proved
