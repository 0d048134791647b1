"""Causes of a difference: each is found where it is planted, in both directions, and none is guessed."""

import pytest
import torch
from torch import nn

from attnscope import AttnscopeError, compare
from tests.code.compare.code import places, splits

INPUTS = {"x": "B:2,T:7,width"}


def found(a, b, norm=nn.RMSNorm):
    result = compare(a, b, init={"width": 48, "h": 3, "norm": norm}, inputs=INPUTS)
    assert result.explained == all(each.cause for each in result.divergences)
    return [(each.role, each.cause) for each in result.divergences]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("wrong", "cause", "reversed_cause"),
    [
        ("NormAfter", "norm after the rotary positions", "norm before the rotary positions"),
        ("AlongHeads", "rotary positions along the heads", "rotary positions along the heads"),
        ("AlongSequences", "rotary positions along the sequences", "rotary positions along the sequences"),
        ("Interleaved", "rotary interleaved", "rotary half-split"),
    ],
)  # fmt: skip
def test_what_is_done_to_queries_and_keys_in_another_order_or_along_another_axis(
    wrong, cause, reversed_cause
):
    wrong = getattr(places, wrong)
    assert found(places.Right, places.Right) == []
    assert found(places.Right, wrong) == [("Q", cause), ("K", cause)]
    assert found(wrong, places.Right) == [("Q", reversed_cause), ("K", reversed_cause)]


@pytest.mark.sweep
def test_a_norm_with_a_mean_and_a_bias_after_the_rotary_positions():
    cause = "norm after the rotary positions"
    pair = places.Right, places.NormAfter
    assert found(*pair, norm=nn.LayerNorm) == [("Q", cause), ("K", cause)]


@pytest.mark.sweep
def test_dropout_that_the_kernel_applies_in_evaluation_mode():
    assert found(places.Right, places.Dropped) == [("x_raw", "dropout active")]
    assert found(places.Dropped, places.Right) == [("x_raw", "dropout active")]


@pytest.mark.sweep
def test_the_closest_cause_is_named_only_if_it_explains_half_of_the_difference():
    result = compare(places.Right, places.Squared, init={"width": 48, "h": 3}, inputs=INPUTS)
    [first, *_] = result.divergences
    assert (first.role, first.cause, first.explanation, first.rest) == ("Q", None, None, None)


@pytest.mark.sweep
def test_heads_that_are_rotated_one_by_one_are_not_said_to_be_rotated_together():
    cause = "rotary before the split"
    assert found(places.Doubled, places.Neighbours) == [("Q", None), ("K", None)]
    assert found(places.Neighbours, places.Doubled) == [("Q", None), ("K", None)]
    assert found(places.EachHead, places.Merged) == [("Q", cause), ("K", cause)]
    assert found(places.Merged, places.EachHead) == [("Q", cause), ("K", cause)]


@pytest.mark.sweep
def test_another_order_of_the_features_of_queries_and_keys_is_no_difference():
    init = {"width": 48, "h": 3}
    for pair in ((places.EvenThenOdd, places.Neighbours), (places.Neighbours, places.EvenThenOdd)):
        result = compare(*pair, init=init, inputs=INPUTS)
        assert (result.status, result.divergences) == ("equal", [])
        assert [each.role for each in result.tensors if each.status == "form"] == ["Q", "K"]
        assert any("Q, K differ" in each for each in result.notices)
    wrong = compare(places.EvenThenOdd, places.EachHead, init=init, inputs=INPUTS)
    assert wrong.status == "different"
    assert [each.role for each in wrong.divergences] == ["Q", "K"]


@pytest.mark.sweep
def test_shares_of_keys_and_elements_are_of_what_the_words_say():
    def biased(q, k, v, *, hidden):
        n = q.shape[-2]
        bias = q.new_zeros(n, n).masked_fill(hidden(n), -1e9)
        return (q @ k.mT / q.shape[-1] ** 0.5 + bias).softmax(-1) @ v

    def causal(q, k, v):
        return biased(q, k, v, hidden=lambda n: torch.ones(n, n).triu(1).bool())

    def window(q, k, v):
        return biased(q, k, v, hidden=lambda n: torch.ones(n, n).tril(-3) + torch.ones(n, n).triu(1) > 0)

    inputs = dict.fromkeys("qkv", "2,3,5,8")
    result = compare(causal, window, inputs=inputs)
    [each] = result.divergences
    assert "b hides 20% of the keys that a shows" in each.explanation  # 3 of 15
    assert result[each.role].share == 3 / 25
    assert result[each.role].largest == pytest.approx(1e9)  # all scores are finite
    assert compare(causal, causal, inputs=inputs).status == "equal"


@pytest.mark.sweep
def test_a_mask_after_the_softmax_is_not_said_to_be_missing():
    def late(q, k, v):
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        return weights.tril() @ v

    def never(q, k, v):
        return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v

    def early(q, k, v):
        hidden = torch.ones(q.shape[-2], k.shape[-2]).triu(1).bool()
        return (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf).softmax(-1) @ v

    inputs = {"q": "2,3,5,8", "k": "2,3,7,8", "v": "2,3,7,6"}
    for code, cause in ((late, "mask after the softmax"), (never, "mask missing")):
        [each] = compare(early, code, inputs=inputs).divergences
        assert (each.role, each.cause) == ("scores_masked", cause)
        assert ("no mask" in each.explanation) == (code is never)
    assert compare(early, early, inputs=inputs).status == "equal"


@pytest.mark.sweep
def test_positions_that_are_drawn_count_from_0_beside_a_reference():
    class Placed(places.EachHead):
        def forward(self, x, position_ids):
            self.position_ids = position_ids
            return super().forward(x)

        def placed(self, y):
            n_pair = y.shape[-1] // 2
            speed = 10000.0 ** -(torch.arange(n_pair).to(y) / n_pair)
            angle = self.position_ids[:, None, :, None].to(y) * speed
            first, second = y.chunk(2, -1)
            parts = (
                first * angle.cos() - second * angle.sin(),
                second * angle.cos() + first * angle.sin(),
            )
            return torch.cat(parts, -1)

    class Late(Placed):
        def forward(self, x, position_ids):
            return super().forward(x, position_ids + (position_ids > 3))

    options = {
        "init": {"width": 48, "h": 3},
        "inputs": {"x": "B:2,T:7,48", "position_ids": "B,T<100"},
        "causal": True,
        "rope": True,
    }
    right, wrong = (compare(each, "mha", **options) for each in (Placed, Late))
    assert right.status == "equal"
    assert "position_ids counts 0, 1, 2, …" in right.notices
    assert wrong.status == "different"


def test_outputs_that_alone_are_compared_have_a_row():
    def twice(q, k, v, scale=1.0):
        for _ in range(2):
            q = (q @ k.mT * scale).softmax(-1) @ v
        return q

    def doubled(q, k, v):
        return twice(q, k, v, scale=2.0)

    inputs = dict.fromkeys("qkv", "2,3,5,8")
    for code, status in ((doubled, "different"), (twice, "equal")):
        result = compare(twice, code, inputs=inputs)
        [row] = result.tensors
        assert (result.status, row.role, row.status, row.shape) == (
            status,
            "output",
            status,
            (2, 3, 5, 8),
        )
        assert (row.largest > 0.01) == (status == "different")


@pytest.mark.sweep
def test_an_error_names_no_line_of_the_program_that_runs_the_code():
    inputs = dict.fromkeys(("query", "key", "value"), "2,5,48")
    with pytest.raises(AttnscopeError) as caught:
        compare(lambda query, key, value: nn.functional.linear(query, key), "sdpa", inputs=inputs)
    with pytest.raises(AttnscopeError) as library:
        compare(
            places.EachHead, "torch.nn:MultiheadAttention",
            init={"width": 48, "h": 4, "embed_dim": 48, "num_heads": 4}, inputs={"x": "2,7,48"},
        )  # fmt: skip
    assert "tape.py" not in str(caught.value) + str(library.value)
    assert "line " in str(caught.value)


def split_otherwise(a, b):
    result = compare(a(), b(), torch.randn(2, 6, 24), weights="same")
    assert result.explained == all(each.cause for each in result.divergences)
    return result


def divergences_of(a, b):
    return [(each.role, each.cause) for each in split_otherwise(a, b).divergences]


@pytest.mark.sweep
def test_a_projection_whose_features_are_split_otherwise_is_blamed_on_the_line_of_each_split():
    three_heads, heads_three = (
        "y.unflatten(-1, (3, self.h, -1))",
        "y.unflatten(-1, (self.h, 3, -1))",
    )
    for a, b, in_a, in_b in (
        (splits.ThreeHeads, splits.HeadsThree, three_heads, heads_three),
        (splits.HeadsThree, splits.ThreeHeads, heads_three, three_heads),
    ):
        result = split_otherwise(a, b)
        assert {each.cause for each in result.divergences} == {"features split otherwise"}
        for role in ("Q_feat", "K_feat", "V_feat"):
            assert (result[role].a.expression, result[role].b.expression) == (in_a, in_b)
    assert "b takes 0–23 for Q, and a 0–7, 24–31, 48–55" in result.divergences[0].explanation
    assert divergences_of(splits.HeadsThree, splits.HeadsThree) == []


@pytest.mark.sweep
def test_values_that_are_one_position_late():
    cause = "V one position late"
    assert divergences_of(splits.ThreeHeads, splits.Late) == [("V", cause)]
    assert divergences_of(splits.Late, splits.ThreeHeads) == [("V", cause)]
    assert divergences_of(splits.ThreeHeads, splits.Around) == [("V_feat", cause)]
    assert divergences_of(splits.Around, splits.ThreeHeads) == [("V_feat", "V one position early")]
    assert divergences_of(splits.ThreeHeads, splits.Reversed) == [("V_feat", "tokens in another order")]
    assert divergences_of(splits.Late, splits.Late) == []


def test_heads_of_values_in_reversed_order():
    for a, b in [
        (splits.ThreeHeads, splits.HeadsReversed),
        (splits.HeadsReversed, splits.ThreeHeads),
    ]:
        result = split_otherwise(a, b)
        [found] = result.divergences
        assert (found.role, found.cause) == ("V", "heads mixed")
        assert "at head 0, b has what a has at head 2" in found.explanation
        assert result.explained


def test_values_times_another_number_are_not_called_rotated():
    cause = "another argument"
    assert divergences_of(splits.Doubled, splits.Tripled) == [("V", cause)]
    assert divergences_of(splits.Tripled, splits.Doubled) == [("V", cause)]


@pytest.mark.sweep
def test_rotated_pairs_that_are_joined_as_halves_in_keys_alone():
    cause = "pairs joined otherwise"
    assert divergences_of(splits.Interleaved, splits.KeysApart) == [("K", cause)]
    assert divergences_of(splits.KeysApart, splits.Interleaved) == [("K", cause)]
    assert divergences_of(splits.Interleaved, splits.BothApart) == []


@pytest.mark.sweep
def test_a_mask_that_is_multiplied_into_the_scores_in_either_direction():
    cause = "mask multiplied"
    assert divergences_of(splits.Masked, splits.MaskMultiplied) == [("scores_masked", cause)]
    assert divergences_of(splits.MaskMultiplied, splits.Masked) == [("scores_masked", cause)]
    assert divergences_of(splits.Masked, splits.MaskAdded) == []
