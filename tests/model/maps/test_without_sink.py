"""Views of maps whose colour scale leaves out the sink."""

import io

import numpy as np
import pytest
from rich.console import Console

from attnscope.document.grid.overview import print_overview
from attnscope.document.grid.pooling import Pooling, left_out_text, smaller_without
from attnscope.model.maps.drawing import print_maps
from attnscope.model.maps.result import AttentionMap, AttentionMaps
from attnscope.model.run.tokens import Picture, Token


def maps_of(attention, left_out, **more):
    tokens = [Token(f"t{i}") for i in range(attention.shape[1])]
    own = AttentionMap(0, 0, 0, attention.astype(np.float32))
    return AttentionMaps("m", "self", 1, 1, 1, tokens, tokens, [own], left_out=left_out, **more)


def drawn(draw, width=80, **more):
    out = io.StringIO()
    console = Console(
        file=out, width=width, force_terminal=True, color_system="truecolor", legacy_windows=False
    )
    draw(console)
    return out.getvalue()


SUNK = np.array([[0.9, 0.1, 0, 0], [0.8, 0.05, 0.15, 0], [0.9, 0, 0, 0.1], [0.7, 0.2, 0.05, 0.05]])


def test_a_sink_has_no_colour_and_no_part_in_the_scale():
    def heatmap(left_out):
        maps = maps_of(SUNK, left_out)
        return drawn(lambda console: print_maps(maps, console))

    with_, without = heatmap([]), heatmap([0])
    assert " 90 %\n" in with_
    assert " 20 %\n" in without, "the legend ends at the largest of the others"
    assert "\x1b[2m90" in without, "the weight of the sink is there, and grey"
    assert "columns of the sink are grey, and the scale leaves them out" in without


def test_the_legend_ends_at_the_largest_percentage():
    for weight, end in ((1.0, " 100 %"), (0.096, " 9.6 %"), (0.0031, " 0.31 %")):
        maps = maps_of(np.full((3, 3), weight), [])
        text = drawn(lambda console, maps=maps: print_maps(maps, console))
        assert f"{end}\n" in text


def test_cells_without_numbers_are_hatched_where_they_are_the_sink():
    attention = np.full((40, 40), 0.1 / 39)
    attention[:, 0] = 0.9
    maps = maps_of(attention, [0])
    text = drawn(lambda console: print_maps(maps, console))
    assert text.count("╱") == 40 + 1
    assert "columns of the sink are ╱," in text


def test_overviews_leave_the_sink_blank():
    text = drawn(lambda console: print_overview(maps_of(SUNK, [0]), {(0, 0): SUNK}, console))
    assert " 0.2\n" in text
    assert "columns of the sink" in text


def test_cells_of_several_keys_show_those_that_are_no_sink():
    rows, columns = [range(2), range(2, 4)], [range(2), range(2, 4)]
    cells, gone = smaller_without(maps_of(SUNK, [0]), SUNK, rows, columns)
    assert cells.tolist() == [[0.1, 0.15], [0.2, 0.1]]
    assert gone == [False, False]
    _, gone = smaller_without(maps_of(SUNK, [0, 1]), SUNK, rows, columns)
    assert gone == [True, False]


def test_a_cell_of_a_pooled_map_is_left_out_if_a_sink_is_in_it():
    pairs = [range(2), range(2, 4)]
    attention = np.array([[0.9, 0.1], [0.9, 0.2]])
    for shown in ("max", "mean"):
        maps = maps_of(attention, [0], pooling=Pooling(shown, pairs, pairs))
        maps.key_tokens = maps.query_tokens = [Token(f"t{i}") for i in range(4)]
        each = [range(1), range(1, 2)]
        assert smaller_without(maps, attention, each, each)[1] == [True, False]


def test_few_keys_of_a_sink_are_named():
    assert left_out_text(maps_of(np.eye(9), [])) == ""
    named = left_out_text(maps_of(np.eye(9), list(range(6))))
    assert named == "without the sink: 0 t0, 1 t1, 2 t2, 3 t3 and 2 more"


def test_patches_of_a_picture_are_scaled_without_the_sink():
    attention = np.full((7, 7), 0.05)
    attention[:, 1] = 0.7
    picture = Picture(2, 3, 1, b"")
    text = [
        drawn(lambda console, out=out: print_maps(maps_of(attention, out, picture=picture), console))
        for out in ([], [1])
    ]
    assert " 0.7\n" in text[0]
    assert " 0.05\n" in text[1]


@pytest.mark.parametrize("left_out", [[], [0]])
def test_plots_are_scaled_without_the_sink(tmp_path, left_out):
    pytest.importorskip("matplotlib")
    from attnscope.document.save import save

    save(maps_of(SUNK, left_out), tmp_path / "map.svg")
    text = (tmp_path / "map.svg").read_text(encoding="utf-8")
    assert ("without the sink: 0 t0 (grey)" in text) is bool(left_out)
    assert ("0.75</text>" in text) is not bool(left_out), "of the scale, beyond what is coloured"
