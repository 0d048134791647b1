"""Differences of heads, in every view."""

import io
import json

import pytest
from rich.console import Console

from attnscope.model.heads.ranking import head_columns, leader_columns, ranked
from attnscope.model.heads.result import HeadMetrics
from tests.document.every_result import differences


def texts(table: HeadMetrics, title: str) -> list[str]:
    return next(each.texts() for each in head_columns(table, table.rows) if each.title == title)


def printed(table, width=100) -> str:
    file = io.StringIO()
    Console(file=file, width=width).print(table)
    return file.getvalue()


def test_small_numbers_are_not_called_zero_and_zero_has_no_decimals():
    table = differences()
    assert texts(table, "W_Q") == ["0", "2.0e-07", "0", "0", "0", "0.250"]
    assert texts(table, "rank_W_Q") == ["0", "1", "0", "0", "0", "12"]


def test_an_infinite_change_comes_first_and_is_shown():
    table = differences()
    assert (ranked(table, "b_Q")[0].layer, ranked(table, "b_Q")[0].head) == (1, 2)
    assert texts(table, "b_Q")[-1] == "inf"
    _, first, second, *_ = leader_columns(table)
    assert [text.split() for text in first.texts()] == [
        ["L1", "H2", "0.250"],
        ["L1", "H2", "inf"],
        ["L1", "H2", "12"],
    ]
    assert [text.split() for text in second.texts()] == [
        ["L0", "H1", "2.0e-07"],
        [],
        ["L0", "H1", "1"],
    ]


def test_what_is_equal_in_every_head_is_named_once_and_kept_for_programs():
    table = differences()
    for row in table.rows:
        row.values["b_Q"] = 0
    lines = printed(table).splitlines()
    assert lines[:3] == [
        "a model → b",
        "2 layers × 3 heads · float32 → bfloat16 · 2 of 6 heads differ",
        "unchanged in every head: b_Q",
    ]
    assert not any("b_Q" in line for line in lines[3:])
    assert "b_Q" in table.ranked("b_Q").to_dict()["heads"][0]
    assert {each.key for each in head_columns(table, table.rows) if each.raw} >= {"b_Q", "W_Q"}


def test_equal_checkpoints_are_said_to_be_equal_and_nothing_else():
    assert printed(differences(equal=True)).splitlines() == [
        "a model → b",
        "2 layers × 3 heads · float32 → bfloat16 · 6 heads equal bit for bit",
        "a notice",
    ]
    assert "0 of" not in differences(equal=True)._repr_html_()


def test_the_record_has_names_dtypes_and_a_row_for_each_head():
    record = differences().ranked("W_Q", top=2).to_dict()
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    heads = record.pop("heads")
    assert record == {
        "schema": "attnscope.differences/1",
        "a": "a model",
        "b": "b",
        "adapter": None,
        "dtypes": ["float32", "bfloat16"],
        "changed": 2,
        "stacks": {"self": {"n_layer": 2, "n_head": 3}},
        "metrics": differences().metrics,
        "notices": ["a notice"],
    }
    first = {"stack": "self", "layer": 1, "head": 2, "W_Q": 0.25, "b_Q": "Infinity", "rank_W_Q": 12}
    assert heads == [first, {**first, "layer": 0, "head": 1, "W_Q": 2e-7, "b_Q": 0, "rank_W_Q": 1}]


def test_csv_and_pandas_have_a_row_for_each_head(tmp_path):
    differences().save(tmp_path / "x.csv")
    lines = (tmp_path / "x.csv").read_text().splitlines()
    assert (lines[0], lines[2], lines[6]) == (
        "layer,head,W_Q,b_Q,rank_W_Q",
        "0,1,2e-07,0,1",
        "1,2,0.25,inf,12",
    )
    frame = differences().to_pandas()
    assert (frame.shape, frame.W_Q.max()) == ((6, 5), 0.25)


@pytest.mark.parametrize("equal", [False, True])
def test_markdown_figure_page_and_notebook_show_both_names(tmp_path, equal):
    table = differences(equal)
    for suffix in (".md", ".svg", ".html"):
        table.save(tmp_path / f"x{suffix}")
    assert "**a model → b**" in (tmp_path / "x.md").read_text()
    assert "a model → b · heads" in (tmp_path / "x.html").read_text()
    assert "a model → b" in table._repr_html_()
    assert (tmp_path / "x.svg").stat().st_size > 1000


def test_a_page_names_models_without_their_folders(tmp_path):
    table = differences()
    table.a, table.b, table.adapter = "/home/me/base", "/home/me/runs/tuned", "/home/me/lora"
    table.save(tmp_path / "x.html")
    page = (tmp_path / "x.html").read_text()
    assert "base → tuned + lora · heads" in page
    assert "/home/me" not in page
