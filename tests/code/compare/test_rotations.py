"""Frequencies, magnitudes and features of rotary positions: named in both orders, and not by rounding."""

import pytest
import torch

from tests.code.compare.both_orders import compared
from tests.code.compare.code import rotations

USUAL, LATENT = torch.randn(2, 9, 96), torch.randn(2, 9, 40)


@pytest.mark.few(1)
@pytest.mark.parametrize("wrong", [rotations.Yarn, rotations.Llama3])
def test_the_factor_and_the_band_of_pairs_are_named(wrong):
    speeds = rotations.speeds_of_transformers(wrong.kind, 32)[0].double()
    ratio = speeds / rotations.usual(32)
    factor = rotations.KINDS[wrong.kind]["factor"]
    kept, divided = (int(((ratio - each).abs() < 1e-5).sum()) for each in (1, 1 / factor))
    explanation = compared(rotations.Usual, wrong, USUAL).divergences[0].explanation
    assert 0 < kept < 16 - divided < 16
    band = f"by {factor:g} in the {divided} lowest of 16 pairs, and not in the {kept} highest"
    assert band in explanation


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (rotations.Linear, "b divides the rotary frequencies of a by 4, all alike (linear)"),
        (rotations.Ntk, "as in NTK for a factor of 4"),
        (
            rotations.Magnitude,
            "b multiplies the cosines and sines of Q by 1.27726; YaRN's magnitude for",
        ),
    ],
)
def test_the_factor_is_named(wrong, words):
    assert words in compared(rotations.Usual, wrong, USUAL).divergences[0].explanation


@pytest.mark.sweep
def test_less_exact_cosines_are_no_cause_of_a_large_difference():
    for a, b in (
        (rotations.Usual, rotations.Magnitude),
        (rotations.First, rotations.FirstWithMagnitude),
    ):
        for each in (*compared(a, b, USUAL).divergences, *compared(b, a, USUAL).divergences):
            assert each.largest > 0.1
            assert "exact" not in each.explanation
            assert each.rest < 1e-9
