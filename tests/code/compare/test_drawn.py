"""Weights that begin constant are drawn, so that what they hide shows; all others stay."""

import torch
from torch import nn

from attnscope.code.pairs.drawn import draw_constants


class Layer(nn.Module):
    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.proj, self.out = nn.Linear(5, 7), nn.Linear(7, 3, bias=False)
        self.norm, self.batch_norm = nn.LayerNorm(7), nn.BatchNorm1d(3, affine=False)
        self.gate, self.faint = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.full((4,), 1e-6))
        self.hidden = nn.Parameter(torch.full((6,), float("-inf")))
        self.scale = nn.Parameter(torch.tensor(8.0), requires_grad=False)
        self.register_buffer("mask", torch.ones(5, 5))
        self.again = self.norm.weight
        nn.init.zeros_(self.out.weight)
        self.to(dtype)


CONSTANT = {
    "out.weight",
    "norm.weight",
    "norm.bias",
    "gate",
    "faint",
    "batch_norm.running_mean",
    "batch_norm.running_var",
}


def drawn(seed=0, dtype=torch.float32):
    torch.manual_seed(3)
    module = Layer(dtype)
    before = {name: each.clone() for name, each in module.state_dict().items()}
    names = draw_constants(module, torch.Generator().manual_seed(seed))
    return before, module.state_dict(), names


def test_what_begins_constant_and_is_learned_is_drawn_and_nothing_else():
    before, after, names = drawn()
    assert sorted(names) == sorted(CONSTANT - {"norm.weight"} | {"again"})  # one weight, drawn once
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == CONSTANT | {"again"}


def test_gains_stay_positive_and_no_value_stays_where_it_was():
    before, after, _ = drawn()
    for name in ("norm.weight", "batch_norm.running_var"):
        assert bool(((after[name] >= 0.25) & (after[name] <= 1.75)).all())
    for name in CONSTANT:
        assert bool((after[name] != before[name]).all())
    assert bool((after["norm.bias"] > 0).any())
    assert bool((after["norm.bias"] < 0).any())
    assert float(after["faint"].abs().min()) >= 0.2  # one in a million hides what it multiplies
    assert float(after["out.weight"].abs().max()) <= 0.75 * 7**-0.5


def test_the_values_depend_on_the_seed_and_not_on_the_dtype():
    first, again, other = drawn()[1], drawn()[1], drawn(seed=1)[1]
    assert all(torch.equal(first[name], again[name]) for name in CONSTANT)
    assert not any(torch.equal(first[name], other[name]) for name in CONSTANT)
    wide = drawn(dtype=torch.float64)[1]
    assert all(torch.equal(first[name].double(), wide[name]) for name in CONSTANT)


def test_the_weights_of_a_frozen_module_are_drawn_too():
    module = nn.LayerNorm(7).requires_grad_(False)
    assert draw_constants(module, torch.Generator().manual_seed(0)) == ["weight", "bias"]


def test_weights_without_sizes_yet_are_left_to_their_module():
    assert draw_constants(nn.LazyLinear(3, bias=False), torch.Generator()) == []
