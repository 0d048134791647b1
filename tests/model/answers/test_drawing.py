"""What a terminal shows of an answer."""

import io
import re
from dataclasses import replace

import numpy as np
import pytest
from rich.cells import cell_len

from attnscope.document.console import Terminal
from attnscope.document.terminal import print_document
from attnscope.model.answers.drawing import (
    VEIL_COLOUR,
    segment_order,
    segment_styles,
    sink_cells,
    veiled,
)
from attnscope.model.answers.heat import density, segment_shares
from tests.model.answers.examples import (
    chat,
    every_answer,
    long,
    one_picture,
    rows_of_segments,
    two_pictures,
)


def printed(answer, width=100, colours=None, *, height=50, no_color=False, wide=False):
    """Return what is printed on a terminal, or piped."""
    file = io.StringIO()
    console = Terminal(
        file=file,
        width=width,
        height=height,
        force_terminal=colours is not None,
        color_system=colours,
        no_color=no_color,
        legacy_windows=False,
    )
    print_document(answer.document(), console, wide=wide)
    return file.getvalue()


def plain(text):
    return re.sub(r"\x1b\[[\d;]*m", "", text)


@pytest.mark.pairwise
@pytest.mark.parametrize("colours", ["truecolor", "256", "standard"])
@pytest.mark.parametrize("width", [100, 60, 40])
@pytest.mark.parametrize("name", every_answer())
def test_every_line_fits(name, width, colours):
    for line in plain(printed(every_answer()[name], width, colours)).splitlines():
        assert cell_len(line) <= width, line


@pytest.mark.parametrize(
    ("colours", "no_color"), [("truecolor", True), ("standard", False), (None, False)]
)
def test_without_colours_weights_are_shades(colours, no_color):
    text = printed(one_picture(6, query=1), 60, colours, no_color=no_color)
    assert "█" in plain(text)
    assert "▀" not in text
    assert not re.search(r"\x1b\[[\d;]*[34]8;", text)


def test_the_shades_are_the_densities():
    answer = one_picture(6, query=1)
    lines = printed(answer, 50).splitlines()
    inside = [line[1:-1] for line in lines if line.startswith("│")]
    picture = answer.pictures[0]
    heat = density(picture, answer.weights[1], len(inside), len(inside[0]), left_out=set(answer.sinks))
    marked = sink_cells(picture, set(answer.sinks), *heat.shape)
    assert marked.any()
    for row, line in enumerate(inside):
        for column, mark in enumerate(line):
            level = round(4 * heat[row, column] / heat.max())
            assert mark == ("╱" if marked[row, column] else " ░▒▓█"[level])


def test_the_pixels_are_the_picture_under_the_weights():
    answer = replace(one_picture(6, query=1), sinks=[])
    text = printed(answer, 60, "truecolor")
    [*lines] = [line for line in text.splitlines() if line.count("▀") > 5]
    colours = [re.findall(r"38;2;(\d+);(\d+);(\d+);48;2;(\d+);(\d+);(\d+)m(▀+)", line) for line in lines]
    pixels = np.array(
        [
            [list(map(int, each[half])) for each in row for _ in each[6]]
            for row in colours
            for half in (slice(0, 3), slice(3, 6))
        ]
    )
    heat = density(answer.pictures[0], answer.weights[1], *pixels.shape[:2])
    hottest = np.unravel_index(heat.argmax(), heat.shape)
    expected = 0.85 * np.array(VEIL_COLOUR) + 0.15 * 255 * np.array([0.2, 0.8])[:, None]
    assert (pixels[hottest] >= expected[0] - 1).all()
    assert (pixels[hottest] <= expected[1] + 1).all()
    coldest = pixels[np.unravel_index(heat.argmin(), heat.shape)].astype(int)
    assert np.ptp(coldest) < 12  # nearly grey


def test_the_veil_is_as_opaque_as_the_share():
    np.testing.assert_allclose(veiled(np.array([0.5]), np.array([0.0])), [[0.5] * 3])
    full = veiled(np.array([0.0]), np.array([1.0]))
    np.testing.assert_allclose(full, [0.85 * np.array(VEIL_COLOUR) / 255])


def test_the_pictures_take_no_more_lines_than_they_may():
    for answer in (one_picture(6), two_pictures()):
        for width in (40, 100, 300):
            lines = plain(printed(answer, width, "truecolor")).splitlines()
            assert 4 < len([line for line in lines if "▀" in line]) <= 28
    low = plain(printed(one_picture(6), 100, "truecolor", height=24)).splitlines()
    assert len([line for line in low if "▀" in line]) <= 16


def test_the_row_that_is_shown_is_named():
    assert "46 sun · the row of query 45" in printed(one_picture(6, query=1))
    assert "all 12 tokens on average" in printed(one_picture(6))
    assert "picture 1 58.1 %" in printed(two_pictures())


def test_many_pictures_are_counted():
    answer = one_picture(6)
    names = [replace(answer.pictures[0], name=f"frame {i}") for i in range(9)]
    text = printed(replace(answer, pictures=names))
    assert "3 more pictures, which take less: save(FILE.html) shows them" in text


def test_bars_have_the_widths_of_the_shares():
    answer = chat()
    lines = [line for line in printed(answer, 200).splitlines() if " → " in line]
    names, of_rows = segment_order(answer)
    assert names == [segment.name for segment in answer.segments]
    for line, row in zip(lines, of_rows, strict=True):
        bar = line.rsplit(" ", 1)[1]
        assert len(bar) == 80
        starts = [re.search(letter, bar) for letter in "ABCDEFG"]
        ends = np.cumsum(row) * 80
        for found, start in zip(starts, [0, *ends], strict=False):
            assert found is None or abs(found.start() - start) <= 0.5


def test_bars_name_their_segments():
    text = plain(printed(chat(), 100, "truecolor"))
    assert "document 2 43.1 %" in text
    assert segment_styles(["other", "a", "b"])[0] == "#8a8f96"
    assert "D document 2 43.1 %" in printed(chat())


def test_of_many_segments_the_smallest_share_a_bar():
    answer = long(400, 6)
    names, of_rows = segment_order(answer)
    assert names[-1] == "11 more"
    assert len(names) == 12
    np.testing.assert_allclose(of_rows.sum(1), 1, atol=1e-5)
    assert "L  11 more" in plain(printed(answer, 100, "truecolor"))


def test_wide_bars_are_a_table_of_numbers():
    text = printed(chat(), wide=True)
    assert "A14" not in text
    assert "54.1 %" in text


def test_hostile_names_stay_text():
    answer = two_pictures()
    bad = "\x1b[31mred\u202e"
    names = [replace(segment, name=bad + segment.name) for segment in answer.segments]
    pictures = [replace(each, name=bad + each.name) for each in answer.pictures]
    for by_segment in (False, True):
        text = printed(replace(answer, segments=names, pictures=pictures, by_segment=by_segment))
        assert "\x1b" not in text
        assert "\u202e" not in text


def test_bars_of_segments_have_the_widths_of_their_shares():
    answer = rows_of_segments()
    text = plain(printed(answer, 120, "truecolor"))
    lines = [line for line in text.splitlines() if line.startswith(("document 1 ", "user "))]
    [of_document, of_user] = [line for line in lines if "×" not in line]
    share = segment_shares(answer)
    found = [int(number) for number in re.findall(r"\d+", of_document.removeprefix("document 1"))]
    assert found == [round(100 * each) for each in share[2, :3]]
    assert [int(number) for number in re.findall(r"\d+", of_user)] == [
        round(100 * x) for x in share[5, :6]
    ]


def test_the_legend_of_bars_of_segments_has_no_means():
    last = plain(printed(rows_of_segments(), 120, "truecolor")).rstrip().splitlines()[-1]
    assert "document 3" in last
    assert "%" not in last
