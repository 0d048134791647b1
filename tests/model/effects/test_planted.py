"""A GPT-2 built by hand, in which one head alone copies the answer to where it is predicted."""

from __future__ import annotations

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import attnscope
from tests.model.run.planted import quiet, signed

N_TOKEN, N_LAYER, N_HEAD = 10, 2, 4
HALF = 2 * N_TOKEN
"""Half of the residual stream: which token stands here, and which was copied; then the same negated."""

D_FEAT, D_HEAD = 2 * HALF, N_TOKEN
NAMES, ASKS = [1, 2], 8
"""What is copied, and the token at which a head asks for it."""

COPIES, LOOKS, READS_NOTHING = (1, 2), (1, 1), (0, 3)
"""The head that copies, one that looks at the name with values of 0, and one whose W_O is 0."""

SHARP, WRITTEN = 60.0, 0.05
"""The score of a name where it is asked for, and how much of the name is written, beside a token's 1."""

NORM = D_FEAT**0.5 / 2**0.5
"""By what a norm multiplies a token's code, which has two entries of ±1."""

STREAM = (NORM * WRITTEN) ** 2
"""The square of what is written, beside a token's 1."""

SHARES = {
    # Of 8 positions, the last reads the name, and the one before reads 7 tokens equally: 1/7 is kept.
    "mean": 6 / 7,
    # A logit a / √(1 + a²) has the slope 1 / (1 + a²)^1.5.
    "first order": 1 / (1 + STREAM),
}
"""Columns in which it is not the whole metric."""

TEXT, CORRUPT = [5, 6, 7, 5, 6, 7, 1, ASKS], [5, 6, 7, 5, 6, 7, 2, ASKS]
ASKED = {"ids": TEXT, "answer": 1, "against": 2}


@pytest.fixture(scope="module")
def model() -> GPT2LMHeadModel:
    config = GPT2Config(
        vocab_size=N_TOKEN,
        n_positions=16,
        n_embd=D_FEAT,
        n_layer=N_LAYER,
        n_head=N_HEAD,
        n_inner=8,
        tie_word_embeddings=False,
    )
    model = quiet(GPT2LMHeadModel(config)).double().eval()
    token = torch.eye(HALF, dtype=torch.float64)[:N_TOKEN]
    copied = torch.eye(HALF, dtype=torch.float64)[N_TOKEN:]
    model.transformer.wte.weight.copy_(signed(token))
    model.lm_head.weight.copy_(signed(copied))
    for layer, head in (COPIES, LOOKS, READS_NOTHING):
        block, own = model.transformer.h[layer].attn, slice(head * D_HEAD, (head + 1) * D_HEAD)
        W_Q, W_K, W_V = block.c_attn.weight.split(D_FEAT, dim=1)  # views, `d_feat n_head*d_head`
        W_Q[ASKS, own.start] = SHARP
        W_K[NAMES, own.start] = 1.0
        if (layer, head) != LOOKS:
            W_V[:N_TOKEN, own] = torch.eye(N_TOKEN, dtype=torch.float64)
        if (layer, head) != READS_NOTHING:
            block.c_proj.weight[own] = WRITTEN * signed(copied)
    return model


def heads() -> list[tuple[int, int]]:
    return [(layer, head) for layer in range(N_LAYER) for head in range(N_HEAD)]


def test_the_model_answers_with_the_name(model):
    logits = model(torch.tensor([TEXT])).logits[0, -1]
    assert logits.argmax() == 1
    assert logits[1] > logits[2] + 0.1


@pytest.mark.parametrize("column", ["zero", "mean", "direct", "first order"])
def test_the_head_that_copies_has_all_of_the_effect(model, column):
    table = attnscope.effects(model, **ASKED, columns=[column])
    sign = 1 if column == "direct" else -1
    share = sign * table[COPIES].values[column] / table.baseline
    assert share == pytest.approx(SHARES.get(column, 1.0), abs=5e-3)
    others = {head: table[head].values[column] for head in heads() if head != COPIES}
    assert others == pytest.approx(dict.fromkeys(others, 0.0), abs=1e-9)


def test_direct_effects_leave_nothing_to_other_parts(model):
    table = attnscope.effects(model, **ASKED, columns=["direct"])
    assert table.direct.heads == pytest.approx(table.baseline)
    assert table.direct.parts == pytest.approx(dict.fromkeys(table.direct.parts, 0.0), abs=1e-9)


def test_patching_the_head_that_copies_restores_the_answer(model):
    table = attnscope.effects(model, **ASKED, corrupt=CORRUPT, columns=["patched", "first order"])
    assert table.corrupted == pytest.approx(-table.baseline)
    assert table[COPIES].values["patched"] == pytest.approx(1.0)
    assert table[COPIES].values["first order"] == pytest.approx(1.0, abs=0.05)
    for head in heads():
        if head != COPIES:
            assert list(table[head].values.values()) == pytest.approx([0.0, 0.0], abs=1e-9)


def test_the_effect_is_at_the_last_position(model):
    table = attnscope.effects(model, **ASKED, columns=["zero"], each_position=True)
    row = [(row.layer, row.head) for row in table.rows].index(COPIES)
    at = table.positions["zero"][row]
    assert at[-1] == pytest.approx(-table.baseline)
    assert list(at[:-1]) == pytest.approx([0.0] * 7, abs=1e-9)


def test_a_head_that_may_not_read_the_name_loses_the_answer(model):
    table = attnscope.effects(model, **ASKED, block="6>last", columns=["blocked"])
    assert table[COPIES].values["blocked"] == pytest.approx(-table.baseline)
    assert table[LOOKS].values["blocked"] == pytest.approx(0.0, abs=1e-9)
    other = attnscope.effects(model, **ASKED, block="0-5>last", columns=["blocked"])
    assert other[COPIES].values["blocked"] == pytest.approx(0.0, abs=1e-6)


def test_a_head_looks_at_the_name_with_values_of_zero(model):
    maps = attnscope.attention_maps(model, ids=TEXT, layers="all", heads="all")
    weights = {(each.layer, each.head): each.attention for each in maps}
    assert weights[LOOKS][-1, 6] == pytest.approx(1.0, abs=1e-6)
