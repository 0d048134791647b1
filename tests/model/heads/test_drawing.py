"""Heads on a console, and the same rows for programs."""

import csv
import json
from dataclasses import replace
from itertools import pairwise
from math import nan

import pytest
from rich.cells import cell_len

from attnscope.document.markdown import markdown_document
from attnscope.document.terminal import print_document
from attnscope.model.heads.document import heading
from attnscope.model.heads.ranking import ranked
from attnscope.model.heads.result import HeadTable
from tests.model.heads.head_tables import MEANINGS, head_table, of_values, printed


def heads(table, **options):
    order = {name: options.pop(name) for name in ("sort", "reverse", "top") if name in options}
    return printed(print_document, replace(table, **order).document(), **options)


def first_cells(lines):
    """Return layer and head of each row of the first table."""
    start = next(i for i, line in enumerate(lines) if line.startswith("─")) + 1
    rows = lines[start : lines.index("", start)] if "" in lines[start:] else lines[start:]
    return [tuple(map(int, row.split()[:2])) for row in rows]


def grid_titles(lines):
    """Return the metrics of the grids that have a line with their largest heads."""
    return [
        name
        for title, below in pairwise(lines)
        if below.startswith("largest ")
        for name in title.split()
        if name in MEANINGS
    ]


def test_the_heading_says_how_many_heads_read_how_much():
    assert heading(head_table(sequences=20, tokens=12345)).about == [
        "6 layers × 12 heads · 20 sequences · 12,345 tokens"
    ]
    assert heading(head_table({"self": (1, 1)}, tokens=2)).about == [
        "1 layer × 1 head · 1 sequence · 2 tokens"
    ]


def test_the_heading_names_each_stack_of_several():
    table = head_table({"encoder": (6, 8), "cross": (4, 2)})
    assert heading(table).about[0].startswith("encoder 6 layers × 8 heads · cross 4 layers × 2 heads · ")


def test_the_heading_says_what_is_missing():
    assert heading(head_table(partial=True, skipped=1234)).about[1:] == [
        "partial: the run ended before the end of the corpus",
        "skipped: 1,234 lines without text",
    ]


def test_without_an_order_every_metric_has_a_grid_and_a_row():
    lines = heads(head_table())
    assert grid_titles(lines) == list(MEANINGS)
    assert not [line for line in lines if line.startswith("layer  ")]
    start = lines.index(next(line for line in lines if line.startswith("metric")))
    rows = [line for line in lines[start + 2 :] if not line.startswith("  ")]
    assert [row.split()[0] for row in rows] == list(MEANINGS)
    assert [line.strip() for line in lines[start + 2 :] if line.startswith("  ")] == list(
        MEANINGS.values()
    )


@pytest.mark.parametrize("reverse", [False, True])
def test_sorted_there_is_a_table_of_them_and_a_grid_of_that_metric(reverse):
    table = head_table()
    lines = heads(table, width=120, sort="induction", reverse=reverse, top=5)
    expected = [(row.layer, row.head) for row in ranked(table, "induction", reverse=reverse, top=5)]
    assert first_cells(lines) == expected
    assert grid_titles(lines) == ["induction"]
    assert not [line for line in lines if line.startswith("metric")]
    where = "smallest" if reverse else "largest"
    assert lines[2] == f"5 of 72 heads by induction, the {where} at the top: {MEANINGS['induction']}"


def test_sorted_without_a_number_all_heads_are_there():
    lines = heads(head_table(), sort="self", width=120)
    assert lines[2] == "72 heads by self, the largest at the top: weight on the query's own token"
    assert len(first_cells(lines)) == 72


def test_the_first_heads_of_an_order_that_nobody_asked_for_have_no_grid():
    lines = heads(head_table(), top=3)
    assert lines[2] == "3 of 72 heads"
    assert first_cells(lines) == [(0, 0), (0, 1), (0, 2)]
    assert not grid_titles(lines)


@pytest.mark.parametrize(
    ("size", "few"), [((3, 4), True), ((13, 1), False), ((1, 40), True), ((2, 7), False), ((1, 1), True)]
)
def test_few_heads_and_those_of_one_layer_stand_in_a_table(size, few):
    table = head_table({"self": size})
    lines = heads(table)
    assert bool(grid_titles(lines)) is not few
    if few:
        assert first_cells(lines) == [(row.layer, row.head) for row in table.rows]
    assert grid_titles(heads(table, sort="self")) == ([] if few else ["self"])


def test_notices_come_last():
    for options in ({}, {"sort": "self", "top": 2}):
        lines = heads(head_table(notices=["one thing", "another"]), **options)
        assert lines[-2:] == ["one thing", "another"]


@pytest.mark.parametrize("options", [{}, {"sort": "distance", "top": 4}, {"top": 2, "wide": True}])
@pytest.mark.parametrize(
    ("layers", "width"), [({"self": (30, 9)}, 60), ({"encoder": (3, 8), "cross": (3, 8)}, 80)]
)
def test_no_line_is_wider_than_the_terminal(layers, width, options):
    table = head_table(layers, sequences=20, tokens=13000, skipped=3, partial=True)
    lines = heads(table, width=width, **options)
    assert max(cell_len(line.rstrip()) for line in lines) <= width


def test_piped_the_table_has_every_metric():
    titles = heads(head_table(sequences=20), width=40, terminal=False, top=2)[4].split()
    assert titles == ["layer", "head", *MEANINGS]


def test_what_a_narrow_terminal_has_no_room_for_is_counted():
    lines = heads(head_table(sequences=20), width=60, sort="self", top=2)
    shown = next(line for line in lines if line.startswith("layer  ")).split()[2:]
    assert 1 < len(shown) < len(MEANINGS)
    assert f"{len(MEANINGS) - len(shown)} more columns: to_pandas()" in lines
    assert not any("--wide" in line for line in heads(head_table(), width=300, sort="self", top=2))


def test_with_wide_every_metric_is_there_in_a_narrow_terminal():
    lines = heads(head_table(sequences=20), width=60, sort="self", top=2, wide=True)
    assert not any("--wide" in line for line in lines)
    titles = [name for line in lines if line.startswith("layer  ") for name in line.split()]
    assert set(titles) == {"layer", "head", *MEANINGS}


def test_a_record_says_everything_and_can_be_written_as_json():
    table = of_values([[0.5, None]], sequences=2, errors=[[0.01, None]])
    table.notices.append("a notice")
    assert json.loads(table.to_json()) == {
        "schema": "attnscope.heads/1",
        "model": "tiny",
        "tokens": 90,
        "sequences": 2,
        "partial": False,
        "skipped": 0,
        "without_sink": False,
        "weigh": None,
        "stacks": {"self": {"n_layer": 1, "n_head": 2}},
        "metrics": {"self": "weight on the query's own token"},
        "heads": [
            {"stack": "self", "layer": 0, "head": 0, "self": 0.5, "errors": {"self": 0.01}},
            {"stack": "self", "layer": 0, "head": 1, "self": None, "errors": {"self": None}},
        ],
        "notices": ["a notice"],
    }


def test_no_nan_gets_into_json():
    assert json.loads(of_values([[nan]]).to_json())["heads"][0]["self"] == "NaN"


ORDERS = [{}, {"top": 3}, {"sort": "first"}, {"sort": "induction", "reverse": True, "top": 7}]


@pytest.mark.parametrize("order", ORDERS)
def test_all_formats_hold_the_same_rows_in_the_same_order(order):
    table = head_table({"encoder": (2, 4), "cross": (2, 3)}, sequences=20)
    expected = [
        (row.stack, row.layer, row.head)
        for row in ranked(
            table, order.get("sort"), reverse=order.get("reverse", False), top=order.get("top")
        )
    ]
    from_json = [
        (each["stack"], each["layer"], each["head"])
        for each in replace(table, **order).to_dict()["heads"]
    ]
    rows = list(csv.DictReader("".join(replace(table, **order).csv()).splitlines()))
    from_csv = [(row["stack"], int(row["layer"]), int(row["head"])) for row in rows]
    lines = [
        line
        for line in markdown_document(replace(table, **order).document()).splitlines()
        if line.startswith("| ")
    ][2:]
    cells = [[cell.strip() for cell in line.split("|")[1:4]] for line in lines]
    from_markdown = [(stack, int(layer), int(head)) for stack, layer, head in cells]
    assert from_json == from_csv == from_markdown == expected


def test_csv_holds_every_digit_and_nothing_for_no_value():
    table = of_values([[1 / 3, None]], sequences=2, errors=[[1 / 7, None]])
    assert "".join(table.csv()).splitlines() == [
        "layer,head,self,self_error",
        f"0,0,{1 / 3},{1 / 7}",
        "0,1,,",
    ]


def test_csv_of_one_sequence_has_no_errors_and_begins_with_the_metric_that_decides():
    table = head_table(metrics=("entropy", "self"))
    assert "".join(replace(table, sort="self", top=1).csv()).splitlines()[0] == "layer,head,self,entropy"


def test_markdown_says_what_was_read_and_what_metrics_mean():
    assert markdown_document(of_values([[0.5]], sequences=2, errors=[[0.01]]).document()) == (
        "**tiny**\n\n1 layer × 1 head · 2 sequences · 90 tokens\n\n"
        "| layer | head | self |\n| --: | --: | --: |\n| 0 | 0 | 0.500 ±0.010 |\n\n"
        "- self: weight on the query's own token"
    )


def test_a_table_that_is_ranked_is_not_changed():
    table = head_table()
    before = list(table.rows)
    heads(table, sort="self", top=3)
    assert table.rows == before
    assert isinstance(table, HeadTable)
