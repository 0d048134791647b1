"""Where no tensor has a score for each query and key, what does exist is compared, by its own names."""

import pytest
import torch

from attnscope import AttnscopeError, compare
from tests.code.compare.both_orders import compared
from tests.code.compare.code import forms, latent

SOURCE, TARGET = torch.tensor([[0, 1, 2, 3, 4, 5, 0, 2, 4, 1, 3], [1, 1, 0, 2, 3, 3, 5, 4, 4, 0, 2]])
NODES = torch.randn(6, 24), SOURCE, TARGET
TOKENS = torch.randn(2, 9, 40), torch.randn(2, 7, 40)


def inputs_of(a):
    return NODES if issubclass(a, forms.Edges) else TOKENS


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("one", "other", "roles"),
    [
        ("Linear", "LinearOfThree", {"state", "denominator", "x_raw"}),
        ("Efficient", "Efficient", {"state", "x_raw"}),
        ("Edges", "EdgesByScatter", {"edge_scores", "edge_attention", "messages", "x_raw"}),
    ],
)
def test_the_same_in_other_steps_is_equal_in_each_of_its_tensors(one, other, roles):
    one, other = getattr(forms, one), getattr(forms, other)
    result = compared(one, other, *inputs_of(one))
    assert (result.status, result.divergences) == ("equal", [])
    assert roles <= {each.role for each in result.tensors if each.status == "equal"}


def test_the_tensors_of_a_linear_attention_are_those_of_its_definition():
    torch.manual_seed(0)
    module = forms.Linear()
    result = compare(module, forms.LinearOfThree(), *TOKENS, weights="same")
    shapes = {each.role: each.shape for each in result.tensors if not each.role.endswith("_split")}
    assert shapes == {
        "Q_feat": (2, 9, 24), "K_feat": (2, 7, 24), "V_feat": (2, 7, 20),
        "Q": (2, 4, 9, 6), "K": (2, 4, 7, 6), "V": (2, 4, 7, 5),
        "state": (2, 4, 5, 6), "denominator": (2, 4, 9), "x_raw": (2, 4, 9, 5),
        "x_merged": (2, 9, 20), "x": (2, 9, 40),
    }  # fmt: skip
    assert result["state"].dims == ("n_batch", "n_head", "d_V", "d_head")


def test_of_two_forms_the_outputs_are_compared():
    for a, b in ((forms.Edges, forms.EdgesInAMask), (forms.EdgesInAMask, forms.Edges)):
        result = compared(a, b, *NODES)
        assert (result.status, [each.role for each in result.tensors]) == ("equal", ["output"])
        assert "an attention with scores" in result.notices[-1]


def test_the_groups_of_a_softmax_over_edges_are_named():
    result = compared(forms.Edges, forms.EdgesBySource, *NODES)
    [each] = result.divergences
    words = "b's softmax runs over the edges of one source, a's over those of one target"
    assert each.explanation == words
    assert result.sizes == {"n_edge": 11, "n_node": 6}


def test_rows_that_are_tied_are_no_heads():
    inputs = {"x": "rows:3,cols:7,batch:2,48"}
    for a, b in (
        (forms.TiedRows, forms.TiedRowsScaledByOne),
        (forms.TiedRowsScaledByOne, forms.TiedRows),
    ):
        result = compare(a, b, inputs=inputs)
        assert result.sizes == {"n_batch": 2, "n_head": 4, "n_Q": 7, "n_K": 7, "d_head": 12, "rows": 3}
        [each] = result.divergences
        assert (each.role, each.cause, result.explained) == ("scores", "another scale", True)
        assert "√(d_head·rows) = √36" in each.explanation
        assert "√d_head = √12" in each.explanation
        assert result["scores"].shape == (2, 4, 7, 7)
        assert (result["Q"].dims[-1], result["Q"].shape) == ("rows·d_head", (2, 4, 7, 36))
        assert result["V"].shape == (6, 4, 7, 12)
        assert result["scores"].index["n_batch"] < 2


def test_windows_of_positions_are_no_heads():
    result = compare(forms.windows, forms.windows, inputs=dict.fromkeys("qkv", "2,3,20,12"))
    assert result.status == "equal"
    assert "n_head" not in result.sizes
    assert (result["scores"].dims, result["scores"].shape) == (("6", "5", "n_Q", "n_K"), (6, 5, 4, 4))


def test_a_function_without_windows_still_has_heads():
    def plain(q, k, v):
        return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v

    result = compare(plain, plain, inputs={"q": "2,3,5,8", "k": "2,3,7,8", "v": "2,3,7,6"})
    assert (result.sizes["n_batch"], result.sizes["n_head"]) == (2, 3)


LATENT_SIZES = {"width": 24, "h": 3, "d_latent": 10}


def test_what_is_between_the_projections_and_the_scores_has_no_counterpart():
    for pair in ((latent.Expanded, latent.Absorbed), (latent.Absorbed, latent.Expanded)):
        result = compare(*pair, init=LATENT_SIZES)
        assert result.status == "equal"
        equal = {each.role for each in result.tensors if each.status == "equal"}
        assert equal == {"scores", "attention", "output"}
        assert result.notices[-1].startswith("Q_feat, K_feat, V_feat, ")
        assert result.notices[-1].endswith("have other shapes on both sides, and were not compared")


def test_a_scale_by_the_width_of_the_latent_is_found():
    result = compare(latent.Expanded, latent.ScaledByTheLatent, init=LATENT_SIZES)
    [found] = result.divergences
    assert (found.role, found.cause, result.explained) == ("scores", "another scale", True)


def test_other_numbers_of_heads_are_still_not_comparable():
    other = {"width": 24, "d_latent": 10}

    class OtherHeads(latent.Expanded):
        def __init__(self, width, d_latent):
            super().__init__(width, 4, d_latent)

    with pytest.raises(AttnscopeError, match="they are not comparable"):
        compare(latent.Expanded, OtherHeads, init=other | {"h": 3})
