"""The overview of all heads: each at its place, as large as the available room."""

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from attnscope.document.grid.overview import print_overview
from attnscope.model.maps.result import AttentionMap, AttentionMaps
from attnscope.model.run.tokens import Token
from tests.profiles import examples


def maps_of(places, n_Q=6, n_K=6, attention=None):
    weights = np.eye(n_Q, n_K, dtype="float32") if attention is None else attention
    queries, keys = ([Token(f"t{i}") for i in range(size)] for size in (n_Q, n_K))
    maps = [AttentionMap(layer, head, head, weights) for layer, head in places]
    return AttentionMaps("tiny", "self", 4, 16, 16, queries, keys, maps)


def printed(maps, width=80, colours=None, encoding="utf-8"):
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="\n")
    of_heads = {(each.layer, each.head): each.attention for each in maps.maps}
    print_overview(
        maps, of_heads, Console(file=file, width=width, force_terminal=True, color_system=colours)
    )
    file.flush()
    return file.buffer.getvalue().decode(encoding).splitlines()


def test_heads_stand_above_and_layers_at_the_left():
    lines = printed(maps_of([(layer, head) for layer in range(2) for head in range(3)]), 26)
    assert lines[0] == "head 0      1      2"
    assert lines[1] == "0    ██     ██     ██"
    assert [line.split()[0] for line in lines if line[:1].isdigit()][:2] == ["0", "1"]


def test_heads_that_were_not_asked_for_leave_their_place_empty():
    lines = printed(maps_of([(1, 4), (3, 9)]), 22)
    assert lines[0].split() == ["head", "4", "9"]
    one, other = (next(line for line in lines if line.startswith(layer)) for layer in "13")
    assert one.index("█") < lines[0].index("9") <= other.index("█")


def test_many_heads_go_on_below_in_equal_parts():
    lines = printed(maps_of([(0, head) for head in range(16)]), 80)
    heads = [line.split()[1:] for line in lines if line.startswith("head")]
    assert heads == [[str(i) for i in range(8)], [str(i) for i in range(8, 16)]]


def test_two_rows_share_a_line_where_there_are_colours():
    out = "\n".join(printed(maps_of([(0, 0)], 2, 2), 30, "truecolor"))
    assert "▀" in out or "▄" in out


def test_a_lonely_weight_is_seen():
    weights = np.zeros((300, 300), "float32")
    weights[200, 100] = 0.2
    lines = printed(maps_of([(0, 0)], 300, 300, weights), 40)
    assert sum(line.count("█") for line in lines if not line.startswith("0  ░")) == 1
    assert any("the largest of" in line for line in lines)


@pytest.mark.parametrize("colours", [None, "truecolor"])
def test_ascii_is_enough(colours):
    assert printed(maps_of([(0, 0), (0, 1)], 90, 90), 30, colours, "ascii")


@examples(8, 40)
@given(
    n_Q=st.integers(1, 90),
    n_K=st.integers(1, 90),
    n_head=st.integers(1, 20),
    width=st.integers(20, 250),
    colours=st.sampled_from([None, "standard", "truecolor"]),
)
def test_no_line_is_wider_than_the_terminal(n_Q, n_K, n_head, width, colours):
    maps = maps_of([(11, head) for head in range(n_head)], n_Q, n_K)
    assert max(Text.from_ansi(line).cell_len for line in printed(maps, width, colours)) <= width
