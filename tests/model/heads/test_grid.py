"""Grids of metrics: each head at its place, as large as the available room."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from attnscope.document.grid.colours import RAMP
from attnscope.model.heads.grid import Grid, print_grids
from attnscope.model.heads.result import HeadTable
from tests.model.heads.head_tables import MEANINGS, head_table, of_values, printed
from tests.profiles import examples

ALL = list(MEANINGS)


def grids(table, metrics, **options):
    return printed(print_grids, table, metrics, **options)


def backgrounds(line):
    """Return the background of each character of a styled line; None: no background."""
    text = Text.from_ansi(line)
    found = [None] * len(text.plain)
    for span in text.spans:
        if span.style.bgcolor is not None:
            found[span.start : span.end] = [span.style.bgcolor.name] * (span.end - span.start)
    return found


def test_a_large_grid_has_numbers_at_both_sides_and_values_in_its_cells():
    table = of_values([[0.5, 0.001, None], [0.25, 0.0, 0.04]])
    assert grids(table, ["self"], width=100) == [
        "",
        "self  0.00–0.50",
        "largest 0.50 in L0 H0",
        "head 0    1    2",
        "0    0.50    ·    –",
        "1    0.25    · 0.04",
        "",
        "layers 0–1 downwards, heads 0–2 across; L1 H2 is head 2 of layer 1; · is nearly 0; – has no value",
    ]


def test_where_there_is_less_room_zeros_before_the_point_go_first_and_then_the_values():
    table = head_table({"self": (2, 12)}, metrics=("self",))
    rows = {width: grids(table, ["self"], width=width)[4] for width in (65, 64, 53, 52, 29, 28)}
    assert "0.0" in rows[65]
    assert " .0" in rows[64]
    assert " .0" in rows[53]
    assert "." not in rows[52]
    assert [len(rows[width][5:].ljust(24)) for width in (52, 29)] == [24, 24]
    assert len(rows[28][5:]) <= 12


def test_each_head_s_number_stands_above_its_column_or_every_fifth():
    table = head_table({"self": (2, 12)}, metrics=("self",))
    every = "".join(str(i).ljust(5) for i in range(12)).rstrip()
    assert grids(table, ["self"], width=65)[3] == f"head {every}"
    assert grids(table, ["self"], width=28)[3] == "head 0    5    10"


def test_colours_go_from_nothing_to_the_strongest_of_the_ramp():
    lines = grids(of_values([[1.0, 0.5, 0.0]]), ["self"], colours="truecolor")
    cells = backgrounds(lines[4])[5:]
    assert [cells[0], cells[5], cells[10]] == [RAMP[-1], RAMP[3], None]


def test_the_scale_begins_at_0_whatever_the_smallest_value_is():
    lines = grids(of_values([[1.0, 0.9]]), ["self"], colours="truecolor")
    assert backgrounds(lines[4])[10] == RAMP[6]
    assert Text.from_ansi(lines[6]).plain.split() == ["0", "1"]


def test_a_value_below_0_is_shown_as_nothing():
    lines = grids(of_values([[1.0, -3.0]]), ["self"], colours="truecolor")
    assert backgrounds(lines[4])[10] is None
    assert Text.from_ansi(lines[1]).plain == "self  -3.0–1.0"


def test_nor_where_two_layers_share_a_line():
    table = of_values([[1.0, -3.0] * 30, [-3.0, 1.0] * 30])
    lines = grids(table, ["self"], colours="truecolor")
    assert Text.from_ansi(lines[4]).plain == "0    " + "▀▄" * 30
    assert set(backgrounds(lines[4])) == {None}


def test_too_many_heads_for_the_width_go_on_below():
    table = head_table({"self": (3, 64)}, metrics=("self",))
    heads = [line.split()[1:] for line in grids(table, ["self"], width=60) if line.startswith("head")]
    assert [(each[0], each[-1]) for each in heads] == [("0", "30"), ("32", "62")]


@pytest.mark.sweep
def test_with_colours_two_layers_share_a_line_where_a_head_has_one_character():
    table = head_table({"self": (80, 64)}, metrics=("self",))
    lines = [Text.from_ansi(line).plain for line in grids(table, ["self"], colours="truecolor")]
    layers = [line.split()[0] for line in lines[4:] if line[:1].isdigit()]
    assert layers[:40] == [str(layer) for layer in range(0, 80, 2)]
    plain = [line for line in grids(table, ["self"]) if line[:1].isdigit()]
    assert len(plain) == 80 + 1  # and the scale


@pytest.mark.parametrize(("n_layer", "lines"), [(60, 60), (61, 31)])
def test_layers_of_a_large_grid_share_lines_where_no_screen_has_as_many(n_layer, lines):
    table = head_table({"self": (n_layer, 20)}, metrics=("entropy",))
    assert grids(table, ["entropy"], width=49, colours="truecolor")[4:].index("") == lines


def test_small_grids_say_their_range_and_which_head_leads():
    table = of_values([[0.5, 0.0], [0.9, None]])
    table.metrics["distance"] = "in tokens"
    for row, distance in zip(table.rows, [30.0, 4.0, 5.0, 60.0], strict=True):
        row.values["distance"] = distance
    assert grids(table, ["self", "distance"], width=100) == [
        "",
        "self  0.00–0.90         distance  4–60",
        "largest 0.90 in L1 H0   largest 60 in L1 H1",
        "▒▒·                     ▒▒·",
        "██–                     · ██",
        "",
        "0   ░░▒▒▓▓██ the largest of its metric",
        "layers 0–1 downwards, heads 0–1 across; L1 H1 is head 1 of layer 1; · is nearly 0; – has no value",
    ]


def test_marks_are_explained_only_where_they_are():
    assert "nearly" not in grids(of_values([[0.5, 0.4]]), ["self"])[-1]
    assert "no value" not in grids(of_values([[0.5, 0.0]]), ["self"])[-1]


@pytest.mark.parametrize(("n_layer", "lines"), [(12, 12), (13, 7), (30, 15)])
def test_layers_of_small_grids_share_lines_where_they_are_many_and_there_are_colours(n_layer, lines):
    table = head_table({"self": (n_layer, 9)}, metrics=("entropy", "effective"))
    assert grids(table, ["entropy", "effective"], colours="truecolor").index("") == 0
    assert grids(table, ["entropy", "effective"], colours="truecolor")[3:].index("") == lines
    assert grids(table, ["entropy", "effective"])[3:].index("") == n_layer


@pytest.mark.parametrize(("width", "beside"), [(60, 2), (80, 3), (160, 6)])
def test_small_grids_stand_beside_each_other_as_the_width_allows(width, beside):
    lines = grids(head_table(), ALL, width=width)
    assert [name for name in lines[1].split() if name in ALL] == ALL[:beside]


def test_each_stack_has_its_own_grids_and_metrics_without_values_have_none():
    table = head_table({"encoder": (2, 8), "cross": (3, 4)})
    lines = grids(table, ALL, width=160)
    assert [line for line in lines if line.endswith(" attention")] == [
        "encoder attention",
        "cross attention",
    ]
    cross = lines[lines.index("cross attention") :]
    assert [name for name in cross[1].split() if name in ALL] == ["entropy", "first", "effective"]
    assert cross[-1] == "no head has a value: self, induction, distance"


def test_heads_that_are_not_there_leave_their_place_empty():
    whole = head_table(metrics=("self", "first"))
    some = [row for row in whole.rows if (row.layer, row.head) in {(1, 4), (3, 9)}]
    table = HeadTable("tiny", whole.metrics, 1, 90, whole.layers, some)
    grid = Grid.of(table, table.rows, "self")
    assert (grid.layers, grid.heads) == ([1, 3], [4, 9])
    assert np.isnan(grid.values).tolist() == [[False, True], [True, False]]
    assert any(
        "layers 1 3 downwards, heads 4 9 across" in line for line in grids(table, ["self", "first"])
    )


def test_nothing_but_zeros_is_drawn():
    assert grids(of_values([[0.0, 0.0]]), ["self"])[1:5] == [
        "self  0–0",
        "largest 0 in L0 H0",
        "head 0 1",
        "0    · ·",
    ]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("size", "metrics", "colours"),
    [((30, 9), ALL, None), ((6, 12), ["entropy"], "256"), ((80, 64), ALL, "truecolor")],
)
def test_ascii_is_enough(size, metrics, colours):
    assert grids(head_table({"self": size}), metrics, width=60, colours=colours, encoding="ascii")


@pytest.mark.parametrize("size", [(30, 9), (1, 1)])
def test_piped_there_are_no_colours_and_no_blanks_at_the_end(size):
    lines = grids(head_table({"self": size}), ["self"], terminal=False)
    assert not [line for line in lines if "\x1b" in line or line.endswith(" ")]


@pytest.mark.sweep
@examples(8, 60)
@given(
    n_layer=st.sampled_from([1, 2, 12, 13, 61]),
    n_head=st.integers(1, 130),
    width=st.integers(12, 250),
    n_metric=st.integers(1, len(ALL)),
    colours=st.sampled_from([None, "standard", "256", "truecolor"]),
)
def test_no_line_is_wider_than_the_terminal(n_layer, n_head, width, n_metric, colours):
    lines = grids(head_table({"self": (n_layer, n_head)}), ALL[:n_metric], width=width, colours=colours)
    assert max(Text.from_ansi(line).cell_len for line in lines) <= width
