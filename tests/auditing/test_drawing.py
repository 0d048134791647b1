"""An audit in a terminal: the picture of what is broken, at every width."""

import io
import re

import pytest

from attnscope.document.console import Terminal
from attnscope.document.terminal import print_document
from tests.document.every_result import audit


def printed(result, width, *, terminal=True, colours=None, encoding="utf-8"):
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="replace")
    console = Terminal(
        file=file,
        width=width,
        force_terminal=terminal,
        color_system=colours,
        no_color=colours is None,
        legacy_windows=False,
    )
    print_document(result.document(), console)
    file.seek(0)
    return file.read()


def pictured(text):
    """Return the rows of a picture: each panel's characters."""
    rows = [line for line in text.splitlines() if re.match(r"^ +\d+ .*[■·✗○]", line)]
    return ["".join(re.findall("[■·✗○]", line)) for line in rows]


def test_what_was_measured_is_beside_the_mask():
    text = printed(audit(), 80)
    assert "left: influence in layer 1; right: the mask that reached the layer\n" in text
    assert "\n  2 word2 ■ ■ ■ ✗ · · ·    ■ ■ ■ · · · ·\n" in text
    assert "\n  5 word5 ■ ○ ■ ■ ■ ■ ·    ■ ○ ■ ■ ■ ■ ·\n" in text
    legend = "rows are outputs, columns inputs; ■ influence or visible; ✗ should not be; ○ is missing"
    assert legend in " ".join(text.split())
    assert pictured(text) == [
        "■······■······",
        "■■·····■■·····",
        "■■■✗···■■■····",
        "■■■■···■■■■···",
        "■■■■■··■■■■■··",
        "■○■■■■·■○■■■■·",
        "■■■■■■■■■■■■■■",
    ]


@pytest.mark.few(6)
@pytest.mark.parametrize("width", [20, 24, 30, 40, 60, 80, 120])
@pytest.mark.parametrize("n", [7, 61, 300])
def test_every_line_of_a_picture_fits(width, n):
    lines = printed(audit(n=n), width).splitlines()
    drawn = [line for line in lines if re.match(r"^ +\d+ .*[■·✗○]", line)]
    assert drawn
    assert max(map(len, drawn)) <= width
    assert len(drawn) <= 64


def test_a_narrow_terminal_has_panels_below_each_other():
    text = printed(audit(), 18)
    assert len(pictured(text)) == 14
    assert pictured(text)[2] == "■■■✗···"
    assert pictured(text)[9] == "■■■····"


def test_a_long_text_is_drawn_around_what_is_wrong():
    result = audit(n=61, tokens=False)
    influence = result.properties[0].evidence.influence
    influence.measured[50][54] = 0.3
    influence.measured[2][3] = 0.0
    text = printed(result, 80)
    assert "only positions 43–60 of 61; save(FILE.svg) draws all" in text
    rows = pictured(text)
    assert len(rows) == 18
    assert rows[7][11] == "✗"
    influence.measured[50][54] = 0.0
    influence.measured[5][1] = 0.01
    influence.measured[2][60] = 0.3
    text = printed(result, 80)
    assert "only outputs 0–17 and inputs 43–60 of 61; save(FILE.svg) draws all" in text
    assert pictured(text)[2][17] == "✗"


def test_a_pipe_gets_a_picture_of_all_positions():
    text = printed(audit(n=61), 80, terminal=False)
    assert len(pictured(text)) == 61
    assert "--plot" not in text


def test_colours_show_the_amount_of_influence():
    text = printed(audit(), 80, colours="truecolor")
    cells = re.findall(
        r"\x1b\[([0-9;]*)m([^\x1b]*)", next(line for line in text.splitlines() if "word2" in line)
    )
    backgrounds = [style for style, shown in cells if ";48;2;" in style]
    assert len(backgrounds) == 4  # two small amounts, the position itself, and what should not be
    assert backgrounds[0] == backgrounds[1] != backgrounds[2]
    assert [shown for style, shown in cells if ";48;2;" in style][3] == "✗ "
    assert "0.2, or more, of the largest output" in re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_an_encoding_without_these_characters_gets_others():
    text = printed(audit(tokens=False), 80, encoding="ascii")
    assert "\n  2 # # # X . . .    # # # . . . .\n" in text
    assert "\n  5 # o # # # # .    # o # # # # .\n" in text


def test_what_holds_has_no_picture():
    assert not pictured(printed(audit(broken=False), 80))
