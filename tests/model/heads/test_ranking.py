"""Heads ranked by a metric, and as columns."""

from math import nan

import pytest
from rich.cells import cell_len

from attnscope.document.terminal import print_columns
from attnscope.model.heads.ranking import head_columns, leader_columns, ranked
from tests.model.heads.head_tables import head_table, of_values, printed


def places(rows):
    return [(row.layer, row.head) for row in rows]


def columns_by_title(table, rows, sort=None):
    return {column.title: column.texts() for column in head_columns(table, rows, sort) if column.cells}


TIED = of_values([[0.5, None, 0.25], [0.75, 0.5, nan]])


def test_the_largest_come_first_and_of_equals_the_first_of_the_table():
    assert places(ranked(TIED, "self")) == [(1, 0), (0, 0), (1, 1), (0, 2), (0, 1), (1, 2)]


def test_in_reverse_equals_keep_their_order_and_what_has_no_value_stays_last():
    assert places(ranked(TIED, "self", reverse=True)) == [(0, 2), (0, 0), (1, 1), (1, 0), (0, 1), (1, 2)]


def test_without_a_metric_the_table_keeps_its_order():
    assert ranked(TIED, None, reverse=True) == TIED.rows
    assert places(ranked(TIED, None, top=2)) == [(0, 0), (0, 1)]


def test_top_takes_the_first_after_ranking_and_no_more_than_there_are():
    assert places(ranked(TIED, "self", top=2)) == [(1, 0), (0, 0)]
    assert len(ranked(TIED, "self", top=99)) == 6


def test_ranking_agrees_with_python_s_own_on_many_heads():
    table = head_table({"self": (30, 9)})
    values = [row.values["induction"] for row in ranked(table, "induction", top=20)]
    assert values == sorted((row.values["induction"] for row in table.rows), reverse=True)[:20]


def test_the_metric_that_decides_stands_first():
    table = head_table({"self": (1, 2)})
    titles = [column.title for column in head_columns(table, table.rows, "first") if column.cells]
    assert titles == ["layer", "head", "first", "entropy", "self", "induction", "distance", "effective"]


def test_the_stack_is_said_only_where_there_are_several():
    one, two = head_table({"self": (1, 2)}), head_table({"encoder": (1, 2), "cross": (1, 1)})
    assert "stack" not in columns_by_title(one, one.rows)
    assert columns_by_title(two, two.rows)["stack"] == ["encoder", "encoder", "cross"]


def test_values_of_a_column_have_as_many_decimals_as_three_digits_of_the_largest_need():
    for largest, text in [(0.51234, "0.512"), (5.1234, "5.12"), (51.234, "51.2"), (512.34, "512.3")]:
        table = of_values([[largest, 0.01]])
        assert columns_by_title(table, table.rows)["self"][0] == text
    tiny = of_values([[1e-9, 0.0]])
    assert columns_by_title(tiny, tiny.rows)["self"] == ["0.0000", "0.0000"]


def test_errors_stand_behind_their_values_with_their_decimals():
    table = of_values([[0.5, 0.25, None]], sequences=3, errors=[[0.0126, 0.2, None]])
    assert columns_by_title(table, table.rows)["self"] == ["0.500 ±0.013", "0.250 ±0.200", "–       "]


def test_a_dash_stands_for_no_value_and_nan_is_called_by_its_name():
    assert columns_by_title(TIED, TIED.rows)["self"] == ["0.500", "–", "0.250", "0.750", "0.500", "nan"]


def test_programs_get_errors_only_of_several_sequences():
    for sequences, keys in [(1, ["self"]), (2, ["self", "self_error"])]:
        table = of_values([[0.5]], sequences=sequences, errors=[[0.1]])
        assert [column.key for column in head_columns(table, table.rows)][2:] == keys


@pytest.mark.parametrize(("width", "sort"), [(60, "effective"), (80, "distance"), (160, "effective")])
def test_the_metric_that_decides_is_shown_however_narrow_the_terminal(width, sort):
    table = head_table({"encoder": (2, 8), "cross": (2, 8)}, sequences=20)
    columns = head_columns(table, ranked(table, sort), sort)
    lines = printed(lambda each, console: print_columns(each, console), columns, width=width)
    assert max(map(cell_len, lines)) <= width
    assert lines[1].split()[:4] == ["stack", "layer", "head", sort]


def test_all_columns_come_in_parts_that_each_say_which_head_it_is():
    table = head_table({"self": (1, 3)}, sequences=20)
    columns = head_columns(table, table.rows)
    lines = printed(lambda each, console: print_columns(each, console, wide=True), columns, width=60)
    headings = [line.split() for line in lines if line.lstrip().startswith("layer")]
    assert len(headings) > 1
    assert all(heading[:2] == ["layer", "head"] for heading in headings)
    assert [name for heading in headings for name in heading[2:]] == list(table.metrics)


def test_for_each_metric_three_heads_lead():
    table = of_values([[0.5, 0.25, 0.125], [0.75, 0.0, None]])
    metric, *leaders, meaning = leader_columns(table)
    assert (metric.texts(), meaning.texts()) == (["self"], ["weight on the query's own token"])
    assert [column.texts() for column in leaders] == [["L1 H0 0.750"], ["L0 H0 0.500"], ["L0 H1 0.250"]]


def test_where_fewer_heads_have_values_fewer_lead():
    assert [c.texts()[0].strip() for c in leader_columns(of_values([[0.5, None]]))[1:-1]] == [
        "L0 H0 0.500",
        "–",
    ]


def test_of_several_stacks_leaders_say_theirs():
    table = head_table({"encoder": (1, 2), "cross": (1, 2)}, metrics=("self", "entropy"))
    _, first, *_ = leader_columns(table)
    assert first.texts()[0].split()[0] == "encoder"
