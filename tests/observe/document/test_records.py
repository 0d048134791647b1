"""JSON, CSV and Markdown have the same content as the table."""

import csv
import io
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnscope.document.csv import csv_value
from attnscope.document.json import json_text
from attnscope.document.markdown import markdown_document
from attnscope.document.result import Check, Stats
from attnscope.model.weights.head_weights import read_head
from attnscope.observe import contracts
from attnscope.observe.trace import Crash, Operand, Source, Step, Trace

SIZES = {"n_batch": 3, "n_Q": 30, "n_K": 50, "d_K": 128, "d_V": 256}


def csv_of(trace: Trace) -> str:
    return "\n".join(trace.csv())


def markdown_of(trace: Trace) -> str:
    return markdown_document(trace.document())


def plan() -> Trace:
    """Return a dry run without explanations."""
    trace = contracts.sdpa(SIZES)
    for step in trace.steps:
        step.why = None
    return trace


def test_the_json_of_a_trace_has_the_documented_keys():
    document = json.loads(json_text(plan().to_dict()))
    assert document["schema"] == "attnscope.trace/1"
    assert list(document) == [
        "schema", "title", "sizes", "guessed", "options", "device", "dtype", "seed", "steps", "conditions",
        "checks", "findings", "saw_softmax", "notices", "crash", "tracing_error", "source", "file",
    ]  # fmt: skip
    assert document["sizes"] == SIZES
    assert document["steps"][3] == {
        "name": "scores", "dims": ["n_batch", "n_Q", "n_K"], "shape": [3, 30, 50], "dtype": "float32",
        "how": "Q @ K.mT * scale", "bytes": 18000, "flops": 2 * 3 * 30 * 50 * 128, "contiguous": True,
        "strides": None, "view_of": None, "same_as": None, "members": None, "fresh_bytes": None,
        "line": None, "file": None, "times": 1, "depth": 0, "inside": None,
        "is_computed_beside": False, "why": None, "stats": None,
    }  # fmt: skip


def test_a_step_that_names_others_is_one_row_of_each_format():
    trace = plan()
    members = {"0": "scores", "weights": "attention", "cache.0": "K"}
    trace.steps.append(Step("return", None, (), "float32", "f(Q)", 0, members=members, line=9))
    (*_, step) = json.loads(json_text(trace.to_dict()))["steps"]
    assert (step["members"], step["dims"], step["shape"], step["bytes"]) == (members, None, [], 0)
    rows = list(csv.DictReader(io.StringIO(csv_of(trace))))
    assert rows[-1]["members"] == "scores, weights=attention, K"
    assert (rows[-1]["shape"], rows[-1]["dims"], rows[-1]["how"]) == ("", "", "f(Q)")
    assert {row["members"] for row in rows[:-1]} == {""}
    text = markdown_of(trace)
    assert "| return | scores, weights=attention, K |  | 3 tensors |" in text
    assert text.splitlines()[-1] == markdown_of(plan()).splitlines()[-1]  # it adds no memory
    assert "members" not in csv_of(plan())


def test_the_json_of_a_head_has_the_documented_keys():
    document = json.loads(json_text(read_head("minilm", layer=1, head=2).to_dict()))
    assert document["schema"] == "attnscope.head/1"
    assert list(document)[1:] == [
        "model", "layer", "head", "n_layer", "n_head", "n_kv_head", "d_feat", "d_head",
        "weights", "stack", "checks", "circuits", "latent", "notices",
    ]  # fmt: skip
    assert list(document["weights"][0]) == [
        "name", "tensor", "shape", "axis", "start", "stop", "head_shape", "dtype", "stats",
        "transposed", "shared", "quantised", "reordered",
    ]  # fmt: skip
    assert document["weights"][3]["name"] == "W_O"
    assert document["weights"][3]["head_shape"] == [384, 32]


def test_tensors_that_ride_along_stay_out():
    step = Step("x", None, (2,), "float32", "y", 8, tensor=object())
    assert "tensor" not in Trace("t", steps=[step]).to_dict()["steps"][0]


def test_csv_holds_every_column_in_plain_numbers():
    rows = list(csv.DictReader(io.StringIO(csv_of(plan()))))
    assert [row["name"] for row in rows] == ["Q", "K", "V", "scores", "attention", "out"]
    assert rows[3]["dims"] == "n_batch n_Q n_K"
    assert rows[3]["shape"] == "3 30 50"
    assert rows[3]["bytes"] == "18000"
    assert rows[3]["view_of"] == ""
    assert {"dtype", "flops", "contiguous", "same_as", "fresh_bytes", "line"} <= set(rows[0])


def test_markdown_is_a_table_with_what_was_run_above():
    lines = markdown_of(plan()).splitlines()
    assert lines[:3] == [
        "**sdpa  (dry run: nothing was computed)**",
        "",
        "n_batch 3 · n_Q 30 · n_K 50 · d_K 128 · d_V 256",
    ]
    table = [line for line in lines if line.startswith("|")]
    assert table[0] == "| name | how | dims | shape | memory | FLOPs |"
    assert table[5] == "| scores | Q @ K.mT * scale | n_batch n_Q n_K | 3×30×50 | 17.6 KiB | 1.15 M |"
    assert len(table) == 2 + 6


def test_markdown_escapes_its_own_bars():
    trace = Trace("t", steps=[Step("x", None, (2,), "bool", "a | b", 2)])
    assert "| a \\| b |" in markdown_of(trace)


def test_sentences_are_a_last_column_where_there_are_any():
    rows = list(csv.DictReader(io.StringIO(csv_of(contracts.sdpa(SIZES)))))
    assert list(rows[0])[-1] == "why"
    assert rows[0]["why"] == "queries: 30 vectors of 128 numbers in each of 3 sequences"
    assert "why" not in csv_of(plan()).splitlines()[0]

    table = markdown_of(contracts.sdpa(SIZES)).splitlines()
    assert "| name | how | dims | shape | memory | FLOPs | why |" in table
    assert any(
        line.endswith("queries: 30 vectors of 128 numbers in each of 3 sequences |") for line in table
    )


def test_a_check_that_cannot_be_made_says_why():
    trace = plan()
    trace.checks = [
        Check("PyTorch", None, None, None, "it has no soft cap"),
        Check("loop", 0.0, 1.0, True),
    ]
    assert trace.to_dict()["checks"][0] == {
        "name": "PyTorch", "max_abs_diff": None, "tolerance": None, "ok": None,
        "note": "it has no soft cap",
    }  # fmt: skip
    table = markdown_of(trace).splitlines()
    assert "| check | largest difference | tolerance | verdict | note |" in table
    assert "| PyTorch | – | – | undecided | it has no soft cap |" in table
    assert "| loop | 0 | 1 | holds |  |" in table
    trace.checks.pop(0)  # no check has a note
    assert "| check | largest difference | tolerance | verdict |" in markdown_of(trace).splitlines()


def test_the_json_holds_the_source():
    trace = Trace("t", source=[Source("f", 7, "def f():\n    ...\n")])
    assert trace.to_dict()["source"] == [
        {"function": "f", "line": 7, "text": "def f():\n    ...\n", "file": None}
    ]


def test_why_code_failed_is_in_every_document_but_csv():
    operands = [Operand("Q", ("n_Q", "d"), (3, 4)), Operand("K", None, (5, 6))]
    trace = Trace("t", steps=[Step("Q", ("n_Q", "d"), (3, 4), "float32", "input", 48, line=2)])
    trace.crash = Crash("f.py", 7, "Q @ K", operands, "axis 1 and axis 0 disagree", "RuntimeError: no")
    assert trace.to_dict()["crash"] == {
        "file": "f.py", "line": 7, "expression": "Q @ K",
        "operands": [
            {"text": "Q", "dims": ["n_Q", "d"], "shape": [3, 4]},
            {"text": "K", "dims": None, "shape": [5, 6]},
        ],
        "disagreement": "axis 1 and axis 0 disagree", "error": "RuntimeError: no",
    }  # fmt: skip
    lines = markdown_of(trace).splitlines()
    start = lines.index("✗ line 7: Q @ K")
    assert [line.split() for line in lines[start + 1 : start + 3]] == [
        ["Q", "3×4", "n_Q", "d"],
        ["K", "5×6"],
    ]
    assert [line.strip() for line in lines[start + 3 : start + 5]] == [
        "axis 1 and axis 0 disagree", "RuntimeError: no",
    ]  # fmt: skip
    assert "RuntimeError" not in csv_of(trace)


@pytest.mark.parametrize("text", ["=1+1", "+cmd", "-x", "@SUM(A1)", "＝1", "=", "-", '=1","=2', "-1-1"])
def test_a_text_that_a_spreadsheet_would_run_has_a_quote_before_it(text):
    step = Step("-x", ("n",), (3,), "float32", text, 12)
    [row] = csv.DictReader(io.StringIO(csv_of(Trace("t", steps=[step]))))
    assert (row["name"], row["how"]) == ("'-x", f"'{text}")


@pytest.mark.parametrize("text", ["\t=1", "\r=1", "\n=1"])
def test_what_a_spreadsheet_skips_before_a_formula_is_escaped(text):
    assert csv_value(text) == repr(text)[1:-1]


@pytest.mark.parametrize(
    "value",
    [-0.5, -3, 0, True, "-0.5", "-1e-07", "+2", "-Infinity", "-inf", "NaN", "a=b", "x - y", "'a", ""],
)
def test_numbers_and_texts_that_are_no_formula_stay_as_they_are_in_csv(value):
    assert csv_value(value) == value


def test_csv_has_statistics_where_there_are_any_and_infinities_are_numbers():
    stats = dict(
        zip(("min", "mean", "max", "std", "nan", "inf"), (-math.inf, 0.5, 2.0, 1.0, 3, 4), strict=True)
    )
    step = Step("x", ("n",), (3,), "float32", "f(x)", 12, stats=Stats(**stats))
    [row] = csv.DictReader(io.StringIO(csv_of(Trace("t", steps=[step]))))
    assert {key: float(row[key]) for key in stats} == stats


@given(st.text(st.characters(exclude_categories=()) | st.sampled_from("=+-@\t\r\n' 1.e")))
def test_no_text_begins_as_a_formula_in_csv(text):
    value = csv_value(text)
    if value[:1] in tuple("=+-@\t\r\n＝＋－＠"):
        assert value in ("", text)
        assert value == "" or math.isfinite(float(value)) or "n" in value.lower()  # inf and nan
