"""Each mistake is named, whichever side has it; and what is computed in other steps is equal."""

import pytest
import torch

from tests.code.compare.both_orders import causes, compared
from tests.code.compare.code import forms, normalisers, rotations, terms

SOURCE, TARGET = torch.tensor([[0, 1, 2, 3, 4, 5, 0, 2, 4, 1, 3], [1, 1, 0, 2, 3, 3, 5, 4, 4, 0, 2]])


def inputs_of(module, name):
    """The inputs of a class: nodes and edges, tokens and context, or tokens of its width."""
    if module is forms:
        edges = torch.randn(6, 24), SOURCE, TARGET
        return edges if name.startswith("Edges") else (torch.randn(2, 9, 40), torch.randn(2, 7, 40))
    width = 96 if module is rotations and not name.startswith("Latent") else 40
    return (torch.randn(2, 7 if module is terms else 9, width),)  # the biases of `terms` are 7 × 7


NAMED = {
    rotations: [
        ("Usual", "Linear", "Q K", "rotary frequencies (linear)"),
        ("Usual", "Yarn", "Q K", "rotary frequencies (YaRN)"),
        ("Usual", "Llama3", "Q K", "rotary frequencies (llama3)"),
        ("Usual", "Ntk", "Q K", "rotary base"),
        ("Usual", "Magnitude", "scores", "rotary magnitude"),
        ("First", "FirstWithMagnitude", "Q K", "rotary magnitude"),
        ("First", "Last", "Q K", "rotary features"),
        ("Usual", "Permuted", "Q_feat K_feat", "rows permuted"),
        ("Latent", "LatentOfNeighbours", "Q K", "rotary interleaved", "rotary half-split"),
        ("Latent", "LatentKeysOfNeighbours", "K", "rotary interleaved", "rotary half-split"),
        ("Latent", "LatentKeysNotRotated", "K", "rotary positions missing", "rotary positions added"),
        ("Latent", "LatentFirst", "Q K", "rotary features"),
    ],
    normalisers: [
        ("Plain", "OverHeads", "attention", "normalised over several axes"),
        ("Sink", "Plain", "attention", "sink missing", "sink added"),
        ("SinkOutside", "Plain", "attention_drop", "sink missing", "sink added"),
        ("Sink", "SinkOutside", "attention", "sink in another place"),
        ("SinkInTheSum", "SinkNotReduced", "attention", "sink in another place"),
        ("NormOfHeads", "NormOfAll", "Q K", "norm over other features"),
        ("NormOfHeadsByHand", "NormOfAll", "Q K", "norm over other features"),
        ("NormOfAll", "Plain", "Q K", "norm missing", "norm added"),
        ("Summaries", "SummariesFromTheirStart", "scores_masked", "another mask of blocks"),
        ("Blocks", "BlocksOfFour", "scores_masked", "another mask of blocks"),
        ("Blocks", "OwnBlock", "scores_masked", "another mask of blocks"),
    ],
    forms: [
        ("Linear", "SummedOverHeads", "denominator", "normaliser summed over heads"),
        ("LinearOfThree", "SummedOverHeads", "denominator", "normaliser summed over heads"),
        ("Linear", "SummedOverHeadsOfThree", "denominator", "normaliser summed over heads"),
        ("Linear", "StateScaled", "state", "division added", "division missing"),
        ("Linear", "NotDivided", "x_raw", "division missing", "division added"),
        ("Efficient", "EfficientOverFeatures", "K", "another argument"),
        ("Edges", "EdgesBySource", "edge_attention", "softmax over other groups"),
        ("EdgesByScatter", "EdgesBySource", "edge_attention", "softmax over other groups"),
        ("Edges", "EdgesNotScaled", "edge_scores", "another scale"),
        ("EdgesByScatter", "EdgesNotScaled", "edge_scores", "another scale"),
    ],
    terms: [
        ("Gated", "Plain", "x_merged", "gate missing", "gate added"),
        ("GatedWhenMerged", "Plain", "x_merged", "factor missing", "factor added"),
        ("Gated", "GatedBySilu", "x_merged", "another function"),
        ("Biased", "Plain", "scores_masked", "position bias missing", "position bias added"),
        ("Biased", "BiasedBeforeTheScale", "scores_masked", "position bias in another place"),
        ("Difference", "OneMap", "attention_drop", "second map missing", "second map added"),
        ("DifferenceInOne", "OneMap", "attention_drop", "second map missing", "second map added"),
        ("Difference", "SumOfMaps", "attention_drop", "another function"),
        ("Difference", "SecondMapMasked", "attention_drop", "mask added", "mask missing"),
    ],
}
"""For each module what is right, what is wrong, the tensors that differ first, and the cause; in reverse, if it is
called otherwise there."""
SAME = {
    rotations: ["Usual ComplexNumbers", "Usual PermutedAndRotatedSo", "Latent LatentInTwoProducts"],
    normalisers: [
        *("Plain SoftmaxInLogarithms", "Sink SinkInTheSum", "NormOfHeads NormOfHeadsByHand"),
        "Summaries SummariesOfLoops",
    ],
    terms: ["Gated GatedWhenMerged", "Biased BiasedInOneStep", "Difference DifferenceInOne"],
}


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("module", "row"), [(module, row) for module, rows in NAMED.items() for row in rows]
)
def test_a_mistake_is_named_in_both_orders(module, row):
    right, wrong, roles, cause = row[:4]
    inputs = inputs_of(module, right)
    pair = getattr(module, right), getattr(module, wrong)
    assert causes(compared(*pair, *inputs)) == [(role, cause) for role in roles.split()]
    assert causes(compared(*pair[::-1], *inputs)) == [(role, row[-1]) for role in roles.split()]


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("module", "names"), [(module, names) for module, pairs in SAME.items() for names in pairs]
)
def test_the_same_in_other_steps_has_no_cause(module, names):
    pair, inputs = [getattr(module, name) for name in names.split()], inputs_of(module, names)
    assert causes(compared(*pair, *inputs)) == causes(compared(*pair[::-1], *inputs)) == []
