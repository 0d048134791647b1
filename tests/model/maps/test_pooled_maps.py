"""Pooled maps in every view: their cells have the positions of their tokens."""

import io
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from rich.console import Console

from attnscope.document.grid.overview import print_overview
from attnscope.document.grid.pooling import Pooling, of_cells, row_of, smaller
from attnscope.document.markdown import markdown_document
from attnscope.document.page.page import page_html
from attnscope.document.save import save
from attnscope.model.maps.drawing import print_maps
from attnscope.model.maps.record import heading, of_query, strongest
from attnscope.model.maps.result import AttentionMap, AttentionMaps
from attnscope.model.run.tokens import Token

MEAN = np.array([[0.1, 0.2, 0.0], [0.0, 0.25, 0.5]], "float32")
MAX = np.array([[0.5, 0.75, 0.0], [0.0, 1.0, 0.5]], "float32")
ROW = np.array([0, 0, 0, 0.25, 0.75, 0, 0], "float32")


def maps_of(shown, *, heads=1):
    """Return maps of queries 3 to 5 and keys 0 to 6, two and three per cell."""
    keys = [Token("[CLS]", special=True), *(Token(word) for word in " the cat sat on a mat".split())]
    pooling = Pooling(shown, [range(3, 5), range(5, 6)], [range(3), range(3, 6), range(6, 7)])
    top = np.array([[4, 0]] * 3), np.array([[1.0, 0.5]] * 3, "float32")
    maps = [
        AttentionMap(0, head, 0, MEAN if shown == "mean" else MAX, MEAN, MAX, ROW, top)
        for head in range(heads)
    ]
    return AttentionMaps("tiny", "self", 2, 3, 1, keys[3:6], keys, maps, first_query=3, pooling=pooling)


def printed(view, *of):
    file = io.StringIO()
    view(*of, Console(file=file, width=100, force_terminal=True, color_system=None))
    return file.getvalue()


def overview(maps, console):
    print_overview(maps, {(each.layer, each.head): each.attention for each in maps.maps}, console)


def test_rows_and_columns_have_the_positions_of_their_tokens():
    maps = maps_of("max")
    lines = printed(print_maps, maps).splitlines()
    assert [line.split() for line in lines[:4]] == [
        ["0", "3", "6"],
        ["[CLS]", "sat", "mat"],
        ["3–4", "sat", "on", "50", "75"],
        ["5", "a", "100", "50"],
    ]
    assert lines[-1] == "3 × 7 weights pooled to 2 × 3 cells: each shows the largest of 2 × 3"


def test_a_mean_is_told_from_the_largest():
    maps = maps_of("mean")
    assert heading(maps)[1] == "3 queries · 7 keys · 2 × 3 cells: the mean of 2 × 3 weights each"
    text = printed(print_maps, maps)
    sentence = "each shows the mean of 2 × 3; masked weights count as 0"
    assert sentence in " ".join(text.split())
    assert text.splitlines()[2].split()[3:] == ["10", "20"]


@pytest.mark.parametrize("sizes", [([2, 2, 1], [3, 1]), ([1, 1], [4, 4, 4, 2])])
def test_means_are_pooled_by_how_many_weights_they_are_of(sizes):
    random = np.random.default_rng(0)
    rows, columns = ([range(sum(of[:i]), sum(of[: i + 1])) for i in range(len(of))] for of in sizes)
    weights = random.random((sum(sizes[0]), sum(sizes[1])))
    means = np.array(
        [[weights[r.start : r.stop, c.start : c.stop].mean() for c in columns] for r in rows]
    )
    tokens = [Token("x")] * 20
    maps = AttentionMaps(
        "m", "self", 1, 1, 1, tokens, tokens, [], pooling=Pooling("mean", rows, columns)
    )
    whole = [range(len(rows))], [range(1), range(1, len(columns))]
    expected = [weights[:, : columns[0].stop].mean(), weights[:, columns[0].stop :].mean()]
    assert smaller(maps, means, *whole) == pytest.approx(np.array([expected]))


def test_the_scale_of_small_maps_is_that_of_their_means():
    maps = maps_of("mean")
    maps.pooling = Pooling(
        "mean", [range(i, i + 1) for i in range(300)], [range(i, i + 1) for i in range(300)]
    )
    maps.maps[0].attention = np.kron(np.eye(150, dtype="float32"), np.ones((2, 1), "float32")).repeat(
        2, 1
    )
    maps.maps[0].attention[1::2, ::2] = 0
    text = printed(overview, maps)
    assert "each spot is the mean of" in text
    assert "█" in text


def test_small_maps_tell_how_many_weights_a_spot_is_of():
    maps = maps_of("max", heads=2)
    assert "each spot is the largest of 2 × 3 weights" in printed(overview, maps)


def test_a_query_is_whole():
    one = of_query(maps_of("max"), 4)
    assert [token.text for token in one.query_tokens] == ["on"]
    assert one.maps[0].attention.tolist() == [ROW.tolist()]
    record = one.to_dict()
    assert record["pooling"] is None
    assert "mean" not in record
    assert "4 on" in printed(print_maps, replace(one, query=4))


def test_strongest_keys_are_those_that_were_kept():
    maps = maps_of("max")
    assert strongest(maps, maps.maps[0], 1) == [(3, [(4, 1.0)]), (4, [(4, 1.0)]), (5, [(4, 1.0)])]


def test_records_hold_both_and_how_many_tokens_share_a_cell():
    record = maps_of("mean").to_dict()
    assert record["attention"] == record["mean"] == [[0.1, 0.2, 0.0], [0.0, 0.25, 0.5]]
    assert record["max"] == MAX.tolist()
    assert record["pooling"] == {"shown": "mean", "queries": [2, 1], "keys": [3, 3, 1]}
    assert len(record["key_tokens"]) == 7
    several = maps_of("max", heads=2).to_dict()["maps"]
    assert [each["max"] for each in several] == [MAX.tolist()] * 2


def test_csv_has_a_line_for_each_cell():
    lines = list(maps_of("max").csv())
    assert lines[0] == "layer,head,query,query_token,queries,key,key_token,keys,attention,mean,max"
    assert lines[2] == "0,0,3,sat,2,3,sat,3,0.75,0.2,0.75"
    assert len(lines) == 1 + 6


def test_markdown_names_cells():
    maps = maps_of("max")
    lines = markdown_document(maps.document()).splitlines()
    assert lines[4] == "|  | 0–2 [CLS] the cat | 3–5 sat on a | 6 mat |"
    assert lines[6] == "| 3–4 sat on | 0.50 | 0.75 | 0.00 |"


def test_a_page_gets_cells_as_tokens():
    maps = maps_of("max")
    cells = of_cells(maps)
    assert [token.text for token in cells.key_tokens] == ["0–2 [CLS] the cat", "3–5 sat on a", "6 mat"]
    assert not cells.key_tokens[0].special  # its other tokens are not
    assert (cells.first_query, cells.pooling) == (0, None)
    assert cells.notices == ["pooled to 2 × 3 cells: the largest of 2 × 3 weights each."]
    assert [row_of(maps, query) for query in (3, 4, 5)] == [0, 0, 1]


def test_a_page_says_how_many_tokens_were_pooled():
    html = page_html([maps_of("max")], layer=0, head=0, query=1, title="tiny")
    assert "<span>3 queries, 7 keys</span>" in html
    assert "pooled to 2 × 3 cells: the largest of 2 × 3 weights each." in html


def test_a_figure_has_the_positions_of_cells(tmp_path):
    save(maps_of("mean"), tmp_path / "x.svg")
    texts = [each.text for each in ElementTree.parse(tmp_path / "x.svg").iter() if each.text]
    assert {"0 [CLS]", "3 sat", "5 a", "6 mat"} <= {" ".join(text.split()) for text in texts}
    assert "2 × 3 cells: the mean of 2 × 3 weights each" in texts
    save(maps_of("max", heads=2), tmp_path / "grid.svg")
    assert "2 × 3 cells: the largest of 2 × 3 weights each" in (tmp_path / "grid.svg").read_text()


@pytest.mark.sweep
def test_a_lonely_weight_is_seen_in_a_figure_of_a_long_row(tmp_path):
    from PIL import Image

    weights = np.zeros((1, 9001), "float32")
    weights[0, 6000] = 1
    tokens = [Token("x")] * 9001
    maps = AttentionMaps("m", "cross", 1, 1, 1, tokens[:1], tokens, [AttentionMap(0, 0, 0, weights)])
    save(maps, tmp_path / "x.png")
    pixels = np.asarray(Image.open(tmp_path / "x.png").convert("RGB")).astype(int)
    pixels = pixels[:, : int(0.9 * pixels.shape[1])]  # without the scale
    assert (abs(pixels - [127, 39, 4]).max(axis=-1) < 12).sum() > 30  # the colour of the largest
