"""Audits of code: which positions influence which, and on which line that begins."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import attnscope
from attnscope.base.errors import OptionError, SourceError
from tests.auditing import code_under_audit as code

FILE = Path(code.__file__)


def line_of(text: str) -> int:
    lines = FILE.read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def test_causal_attention_holds():
    audit = attnscope.audit(f"{FILE}:Attention", init={"d_model": 64, "h": 8}, causal=True)
    assert audit["causal"].status == audit["coverage"].status == audit["batch"].status == "holds"


def test_a_mask_off_by_one_is_found_with_its_line():
    audit = attnscope.audit(code.Attention, init=["d_model=64", "h=8", "shift=1"], causal=True)
    evidence = audit["causal"].evidence
    assert evidence.influence.wrong == [(query, query + 1) for query in range(12)]
    assert evidence.line.line == line_of(".tril(self.shift)")


def test_what_mixes_positions_is_found_with_its_line():
    expression = "x.mean(1, keepdim=True)"
    found = attnscope.audit(f"{FILE}:mean", inputs={"x": "B:2,T:11,C:8"}, causal=True)["causal"]
    assert (found.status, found.evidence.line.expression) == ("broken", expression)
    assert found.evidence.line.line == line_of(expression)


def test_a_batch_norm_leaks_in_training():
    audit = attnscope.audit(code.Normed, init={"d_model": 8}, inputs={"x": "2,11,d_model"}, causal=True)
    assert audit["causal"].status == "broken"
    assert audit["causal"].found.startswith("in training")


def test_separate_queries_and_keys_are_changed_at_keys_alone():
    audit = attnscope.audit(code.sdpa, causal=True)
    assert audit["causal"].status == audit["coverage"].status == "holds"


@pytest.mark.parametrize(("window", "status"), [(4, "holds"), (3, "broken"), (5, "holds")])
def test_a_window_must_not_be_wider(window, status):
    init = {"d_model": 64, "h": 8, "window": 4}
    audit = attnscope.audit(code.Attention, init=init, causal=True, window=window)
    assert audit["window"].status == status
    assert audit["coverage"].status == ("broken" if window == 5 else "holds")


def test_a_window_reaches_further_through_layers():
    inputs = {"x": "2,11,d_model"}
    assert attnscope.audit(code.Stack, inputs=inputs, causal=True, window=3)["window"].status == "holds"
    assert attnscope.audit(code.Stack, inputs=inputs, causal=True, window=2)["window"].status == "broken"


def test_token_ids_are_changed_too():
    audit = attnscope.audit(code.Words, inputs={"ids": "2,11<n_vocab"}, causal=True)
    assert audit["causal"].status == "holds"


def test_rows_that_mix_are_found():
    audit = attnscope.audit(code.rows_mixed, inputs={"x": "B:2,T:11,8"}, causal=True)
    assert audit["causal"].status == "holds"
    assert audit["batch"].status == "broken"


@pytest.mark.parametrize(("name", "status"), [("masked", "holds"), ("mask_ignored", "broken")])
def test_padding_that_a_mask_hides_moves_nothing(name, status):
    mask = torch.ones(2, 11, dtype=torch.bool)
    audit = attnscope.audit(getattr(code, name), inputs={"x": "2,11,8", "mask": mask}, padding=True)
    assert audit["padding"].status == status


def shifted(after, before):
    """Return code of which each position moves some after and before it."""

    def code(x):
        i = torch.arange(x.shape[1])
        distance = i[:, None] - i
        seen = (distance <= after) & (distance >= -before)
        return seen.to(x) @ x

    return code


@pytest.mark.parametrize(
    ("after", "before", "words"),
    [
        (6, 0, "each position moves itself and later ones: causal"),
        (2, 0, "each position moves itself and the next 2: causal, a window of 3"),
        (0, 0, "each position moves itself alone"),
        (6, 6, "each position moves every one: bidirectional"),
        (0, 6, "each position moves itself and all before it"),
        (1, 2, "each position moves itself, the next 2 before it and the next 1 after it"),
        (-1, 6, "positions move earlier ones, in 21 pairs of 49"),
    ],
)
def test_without_an_expectation_it_is_said_what_moves_what(after, before, words):
    audit = attnscope.audit(shifted(after, before), torch.randn(2, 7, 8))
    assert audit["influence"].status == "measured"
    assert audit["influence"].found == audit.verdict == words
    assert not audit.broken
    assert not audit.undecided
    assert audit["batch"].status == "holds"


def test_without_an_expectation_each_output_is_described():
    audit = attnscope.audit(lambda x: {"a": x.cumsum(1), "b": x * 2}, torch.randn(2, 7, 8))
    assert audit.verdict == (
        'in output["a"], each position moves itself and later ones: causal;'
        ' in output["b"], each position moves itself alone'
    )


def test_another_number_of_keys_is_an_error():
    inputs = {"q": "2,5,8", "k": "2,7,8", "v": "2,7,8"}
    with pytest.raises((OptionError, SourceError), match="5 queries and 7 keys"):
        attnscope.audit(code.sdpa, inputs=inputs, causal=True)
