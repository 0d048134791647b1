"""The one line by which Python shows a result."""

from dataclasses import replace

import pytest

import attnscope
from attnscope.document.result import Finding, Part, Stats
from attnscope.observe.trace import Crash, Step, Trace
from tests.document.every_result import every_part, every_result

EXPECTED = {
    "a trace": "Trace(sdpa: 6 tensors, largest out 144 B, no findings)",
    "a head": "HeadWeights(a model: layer 1, head 1, W_Q, W_K, d_feat 12, d_head 4)",
    "one map": "AttentionMaps(a model: layer 0, head 0, 5 queries × 5 keys)",
    "maps": "AttentionMaps(a model: 3 heads, 5 queries × 5 keys)",
    "metrics": "HeadTable(tiny: 72 heads, 6 metrics, 1 sequence, 1,313 tokens)",
    "effects": "HeadEffects(a model: 6 heads, logit of the answer, minus that of the other answer 1.25)",
    "differences": "HeadDifferences(a model → b: float32 → bfloat16, 2 of 6 heads differ)",
    "equal heads": "HeadDifferences(a model → b: float32 → bfloat16, 6 heads equal bit for bit)",
    "changed maps": "MapDifferences(a model: text A → text B: 5 tokens, 3 of 3 heads differ)",
    "equal maps": "MapDifferences(a model: text A → text B: 5 tokens, 3 maps equal bit for bit)",
    "an experiment": "Scaling(d_K 4, 16: with and without 1/√d_K, float32, seed 0)",
    "an example": "WorkedExample(rows, columns, query, 2 of 2 checks hold)",
    "a program": "ProgramRun(model.py:Attention: 1 of 1 call traced, exit status 0)",
    "a check of comments": "CommentReport(3 true, 1 not true)",
    "a diff": "SourceDiff(model.py: 1 changed line)",
    "a step": "Step(scores: n_batch n_Q n_K = 2×3×4, float32, 96 B, line 86)",
    "a check": "Check(F.sdpa: holds, largest difference 2.4e-07, tolerance 1e-05)",
    "a weight": "WeightSlice(W_Q: 4×12 of 12×12, float32)",
    "a circuit": "Circuit(QK: effective rank 2.1 of 3, norm 3.6)",
    "a map": "AttentionMap(layer 0, head 0: 5 × 5 weights)",
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_result_says_what_it_is(name):
    assert repr((every_result() | every_part())[name]) == EXPECTED[name]


@pytest.mark.parametrize("name", [*every_result(), *every_part()])
def test_it_is_one_line(name):
    line = repr((every_result() | every_part())[name])
    assert "\n" not in line
    assert len(line) < 160


def test_findings_and_failures_are_counted():
    trace = every_result()["a trace"]
    assert repr(replace(trace, findings=[Finding("x")])).endswith(", 1 finding)")
    assert repr(replace(trace, findings=None)) == "Trace(sdpa: 6 tensors, largest out 144 B)"
    crash = Crash("model.py", 7, "q @ k", [], None, "RuntimeError: sizes")
    assert repr(replace(trace, crash=crash)).endswith(", failed in line 7: RuntimeError: sizes)")
    crash = replace(crash, disagreement="d is 16 and 7")
    assert repr(replace(trace, crash=crash)).endswith(", failed in line 7: d is 16 and 7)")


def test_names_from_data_are_escaped_and_shortened():
    step = Step("x\x1b[31m\n" + "y" * 500, None, (2,), "float32", "f()", 8)
    assert "\x1b" not in repr(step)
    assert "\n" not in repr(step)
    assert len(repr(step)) < 160
    assert len(repr(Trace("t" * 5000))) < 160


def test_values_that_are_not_there_are_a_dash():
    assert repr(Stats(None, None, None, None, 3, 0)) == "Stats(min –, mean –, max –, std –, 3 NaN)"


def test_every_part_of_a_result_has_a_description():
    for name in attnscope.__all__:
        getattr(attnscope, name)
    without = {each for each in _below(Part) if each.summary is Part.summary}
    assert {each.__name__ for each in without if not each.__subclasses__()} <= {"Display"}


def _below(kind):
    """Yield all classes of a kind."""
    for each in kind.__subclasses__():
        yield each
        yield from _below(each)
