"""The views of a comparison in Python: one line, Rich, a notebook, records, tables, files."""

import io
import json

import pytest
from rich.console import Console

from attnscope import compare
from tests.code.compare.code.styles import written


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    folder = tmp_path_factory.mktemp("code")
    sides = (
        written(folder, "right", "einsum"),
        written(folder, "wrong", "heads first", "scale of d_feat"),
    )
    init = {"d_feat": 24, "n_head": 4, "n_kv_head": 2}
    return compare(*sides, init=init, inputs={"x": "2,5,24", "y": "2,7,24"}, backward=True)


@pytest.mark.sweep
def test_its_repr_is_one_line_with_the_verdict(result):
    assert repr(result).endswith("wrong.py:Attention: different, first in scores)")
    assert repr(result["scores"]).startswith("ComparedTensor(scores: different, largest difference ")
    assert repr(result.gradients[0]).startswith("ComparedGradient(x: different, largest difference ")
    assert "\n" not in repr(result)


def test_rich_prints_what_the_command_prints(result):
    file = io.StringIO()
    Console(file=file, width=100).print(result)
    assert "✗ scores: differs" in file.getvalue()
    assert "with this corrected, the outputs are equal" in file.getvalue()


def test_80_columns_have_room_for_both_sides(result):
    file = io.StringIO()
    Console(file=file, width=80, force_terminal=True, color_system=None).print(result)
    lines = file.getvalue().splitlines()
    [heading] = [each for each in lines if each.startswith("tensor")]
    assert heading.split() == ["tensor", "difference", "a", "b"]
    assert max(map(len, lines)) <= 80


def test_the_weights_that_are_the_same_have_their_rows(tmp_path):
    result = compare(
        "torch.nn:MultiheadAttention", "mha",
        init={"embed_dim": 12, "num_heads": 3, "batch_first": True},
        inputs=dict.fromkeys(("query", "key", "value"), "2,5,12"),
    )  # fmt: skip
    file = io.StringIO()
    Console(file=file, width=400).print(result)
    assert "W_K.weight = in_proj_weight, rows 12–23; W_K.bias = in_proj_bias, elements 12–23; " in (
        file.getvalue()
    )


def test_a_notebook_shows_the_table_and_the_cause(result):
    html = result._repr_html_()
    assert "√d_feat = √24" in html
    assert html.count("<table") == 3  # tensors, gradients, weights
    assert "<script" not in html


def test_its_record_is_plain_and_complete(result):
    record = json.loads(json.dumps(result.to_dict()))
    assert record["schema"] == "attnscope.comparison/1"
    assert {each["role"] for each in record["tensors"]} >= {"Q", "K", "V", "scores", "attention", "x"}
    assert record["divergences"][0]["role"] == "scores"
    assert record["explained"] is True
    assert record["weights"][0]["a"] == "W_Q.weight"
    assert "a_elements" not in record["weights"][0]


def test_pandas_has_a_row_for_each_tensor(result):
    frame = result.to_pandas()
    assert list(frame["role"])[:3] == ["Q_feat", "K_feat", "V_feat"]
    assert frame.set_index("role").loc["scores", "status"] == "different"


def test_a_tensor_is_found_by_its_role(result):
    assert result["scores"].factor == pytest.approx(0.5)
    with pytest.raises(KeyError):
        result["nothing"]
