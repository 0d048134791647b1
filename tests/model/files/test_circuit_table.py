"""The table of circuits in terminals of several widths, and piped."""

import io
from math import nan

import pytest
from rich.cells import cell_len
from rich.console import Console

from attnscope.document.csv import csv_table
from attnscope.document.markdown import markdown_table
from attnscope.model.files.circuit_table import CircuitTable, circuit_columns, sparkline
from attnscope.model.files.result import Circuit

QK = Circuit("QK", [4.0, 3.0, 2.0, 0.0], 2.8284, 5.38516, 4.0)
OV = Circuit("OV", [0.0, 0.0, 0.0, 0.0], 0.0, 0.0, 0.0)


def printed(circuits, d_head, *, width=80, terminal=True, encoding="utf-8"):
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="replace")
    console = Console(file=file, width=width, force_terminal=terminal, color_system=None)
    CircuitTable(circuits, d_head).print(console)
    file.seek(0)
    return [line.rstrip() for line in file.read().splitlines()]


def test_a_row_says_the_rank_the_norms_and_the_singular_values():
    assert printed([QK, OV], 4) == [
        "",
        "circuit  effective rank   norm  largest σ  singular values",
        "──────────────────────────────────────────────────────────",
        "QK             2.8 of 4  5.385          4  █▆▅▁",
        "OV             0.0 of 4      0          0  ▁▁▁▁",
    ]


@pytest.mark.parametrize("width", [60, 61, 75, 80, 120, 200])
def test_every_column_is_there_in_a_terminal_of_60_columns_and_more(width):
    wide = Circuit("QK", [float(i) for i in range(128, 0, -1)], 104.3, 838.4, 128.0)
    lines = printed([wide, wide], 128, width=width)
    assert all(cell_len(line) <= width for line in lines)
    assert "singular values" in lines[1]
    assert 15 <= len(lines[3].split()[-1]) <= 32
    assert len(lines[3].split()[-1]) == 32 or width < 80


def test_piped_it_is_whole():
    wide = Circuit("QK", [float(i) for i in range(128, 0, -1)], 104.3, 838.4, 128.0)
    assert len(printed([wide], 128, width=20, terminal=False)[3].split()[-1]) == 32


def test_a_console_without_bars_shows_them_in_ascii():
    for terminal in (True, False):
        assert printed([QK], 4, terminal=terminal, encoding="ascii")[3].endswith("  #+=_")


def test_neighbours_are_pooled_where_there_are_many():
    assert sparkline([8.0, 6.0, 4.0, 2.0, 0.0], room=2) == "█▃"  # 7 and 2
    assert len(sparkline([1.0] * 33)) == 32
    assert sparkline([5.0]) == "█"
    assert sparkline([]) == ""


def test_what_is_not_finite_has_no_line():
    broken = Circuit("QK", [nan, nan], nan, nan, nan)
    assert sparkline(broken.singular_values) == ""
    assert printed([broken], 2)[3].split() == ["QK", "nan", "of", "2", "nan", "nan"]


def test_programs_read_plain_numbers():
    lines = csv_table(circuit_columns([QK, OV], 4)).splitlines()
    assert lines[0] == "name,effective_rank,norm,spectral_norm,singular_values"
    assert lines[1] == "QK,2.8284,5.38516,4.0,4.0 3.0 2.0 0.0"


def test_markdown_has_the_rows_of_the_table():
    assert (
        markdown_table(circuit_columns([QK], 4)).splitlines()[2]
        == "| QK | 2.8 of 4 | 5.385 | 4 | █▆▅▁ |"
    )
