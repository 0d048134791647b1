"""A head's map, letter by letter, never wider than the terminal."""

import io
from dataclasses import replace
from textwrap import dedent

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from attnscope.document.grid.axes import LEFT_TO_RIGHT_MARK
from attnscope.document.grid.colours import RAMP
from attnscope.model.maps.drawing import print_maps
from attnscope.model.maps.result import AttentionMap, AttentionMaps
from attnscope.model.run.tokens import Picture, Token
from tests.profiles import examples

CAUSAL = np.array([[1, 0, 0], [0.25, 0.75, 0], [0.004, 0.5, 0.496]], "float32")
WORDS = ["the", " cat", "日本語", "שלום", "👍🏽", "e\u0301a", "\n", "internationalization", "", "#"]


def maps_of(attention, queries=None, keys=None, picture=None):
    n_Q, n_K = attention.shape
    queries = queries or [Token(f"q{i}") for i in range(n_Q)]
    keys = keys or [Token(f"k{i}") for i in range(n_K)]
    return AttentionMaps(
        "tiny", "self", 1, 1, 1, queries, keys, [AttentionMap(0, 0, 0, attention)], picture
    )


def tokens(words, **options):
    return [Token(word, **options) for word in words.split()]


def random_weights(n_Q, n_K):
    return np.random.default_rng(0).dirichlet(np.full(n_K, 0.1), size=n_Q).astype("float32")


def printed(maps, width=80, *, query=None, terminal=True, colours=None, encoding="utf-8"):
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="\n")
    console = Console(file=file, width=width, force_terminal=terminal, color_system=colours)
    print_maps(replace(maps, query=query), console)
    file.flush()
    return file.buffer.getvalue().decode(encoding)


def test_wide_cells_hold_percents_with_nothing_for_0_and_a_dot_below_a_half():
    words = tokens("the cat sat")
    assert printed(maps_of(CAUSAL, words, words)) == dedent("""\
               0   1   2
              the cat sat
        0 the 100
        1 cat  25  75
        2 sat   ·  50  50

        rows are queries, columns keys; weights in %, · below 0.5, blank 0
        """)


def test_keys_without_room_stand_downwards():
    words = tokens("attention looks at every single word of it")
    head = printed(maps_of(np.eye(8, dtype="float32") / 2, words, words), 36).split("\n0 ")[0]
    position, *letters = [line.ljust(36) for line in head.split("\n")]
    first = position.index("0")
    written = ["".join(line[first + 3 * i] for line in letters).strip() for i in range(8)]
    assert written == [token.text for token in words]


def test_more_keys_are_shades_with_positions_above():
    weights = np.eye(40, dtype="float32")
    lines = printed(maps_of(weights), 60).splitlines()
    assert lines[0] == "       0    5    10   15   20   25   30   35"
    assert lines[38] == " 37 q37"[1:] + " " * 38 + "█"
    assert any(line.startswith("keys: 0 k0 1 k1 2 k2") for line in lines)


def test_numbers_stay_where_two_digits_fit():
    weights = np.zeros((20, 20), "float32")
    weights[3, 4:8] = 0.25, 0.05, 0.11, 0.34
    for colours, numbers in ((None, "▓▓░░░░██"), ("truecolor", "25 51134")):
        lines = printed(maps_of(weights), 47, colours=colours).splitlines()
        (row,) = (Text.from_ansi(line).plain for line in lines if " q3" in line)
        assert row.rstrip().endswith(numbers), row


def test_of_two_numbers_that_touch_one_is_bold():
    weights = np.zeros((20, 20), "float32")
    weights[3, 4:9] = 0.25, 0.15, 0.11, 0.05, 0.34
    lines = printed(maps_of(weights), 47, colours="truecolor").splitlines()
    (row,) = (text for line in lines if " q3" in (text := Text.from_ansi(line)).plain)
    bold = [row.plain[start:end] for start, end, style in row.spans if style.bold]
    assert bold == ["15", "34"]


def test_a_full_weight_has_a_mark_where_three_digits_do_not_fit():
    weights = np.eye(20, dtype="float32")
    assert "■" not in printed(maps_of(weights), 100, colours="truecolor")
    for width in (47, 70):
        text = printed(maps_of(weights), width, colours="truecolor")
        assert text.count("■") == 20 + 1
        assert "below 0.5, blank 0, ■ 100" in text
    assert "■" not in printed(maps_of(weights / 2), 47, colours="truecolor")


@pytest.mark.parametrize(("n", "width"), [(5, 60), (30, 60), (30, 80), (60, 100), (60, 200)])
def test_numbers_and_labels_by_size_and_width(n, width):
    text = printed(maps_of(random_weights(n, n), tokens("word " * n)), width, colours="256")
    assert ("weights in %" in text) == (2 * n <= width - len("11 word "))


def test_what_does_not_fit_is_pooled_and_said_so():
    text = printed(maps_of(random_weights(200, 300)), 80)
    assert "200 × 300 weights pooled to 50 × 50 cells: each shows the largest of 4 × 6" in text
    assert "196–199 q196 q197" in text


def test_a_lonely_weight_is_seen_however_much_is_pooled():
    weights = np.zeros((500, 500), "float32")
    weights[123, 456] = 0.3
    map_ = printed(maps_of(weights), 60).split("\n\n")[0]
    assert map_.count("█") == 1


def test_piped_maps_have_every_query_and_whole_tokens():
    words = tokens("internationalization of attention " + "and so on " * 22)
    text = printed(maps_of(random_weights(69, 10), words, words[:10]), 80, terminal=False)
    assert "pooled" not in text
    assert text.splitlines()[1].split() == [token.text for token in words[:10]]
    assert len(text.splitlines()) == 2 + 69 + 2


def test_a_line_stands_between_two_texts_on_both_axes():
    words = [*tokens("how are you", segment=0), *tokens("fine", segment=1)]
    lines = printed(maps_of(np.full((4, 4), 0.25, "float32"), words, words)).splitlines()
    assert lines[1] == "       how are you │fine"
    assert lines[5] == "───────────────────┼─────"
    assert lines[6] == "3 fine  25  25  25 │ 25"


def test_strong_weights_have_a_strong_colour_and_weak_ones_none():
    out = printed(maps_of(CAUSAL), colours="truecolor")
    line = next(line for line in out.splitlines() if "q2" in line)
    text = Text.from_ansi(line)
    colours = {str(span.style.bgcolor.name) for span in text.spans if span.style.bgcolor}
    assert colours == {RAMP[3]}
    assert "·" in text.plain


def test_no_color_leaves_shades(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    assert "█" in printed(maps_of(random_weights(9, 50)), colours="truecolor")


@pytest.mark.parametrize(
    ("colours", "encoding"),
    [(None, "ascii"), ("standard", "cp1252"), ("256", "utf-8"), ("truecolor", "ascii")],
)
def test_every_encoding_can_be_written(colours, encoding):
    words = [Token(word, segment=i > 4) for i, word in enumerate(WORDS)]
    for width in (40, 120):
        maps = maps_of(random_weights(10, 10), words, words)
        assert printed(maps, width, colours=colours, encoding=encoding)
        assert printed(maps, width, colours=colours, encoding=encoding, query=3)


def test_words_from_the_right_do_not_turn_around_what_follows():
    words = [Token("שלום"), Token("עולם")]
    text = printed(maps_of(np.full((2, 2), 0.5, "float32"), words, words))
    assert text.count(LEFT_TO_RIGHT_MARK) == 4


def test_wide_letters_keep_columns_in_line():
    words = [Token("日本"), Token("a"), Token("👍🏽")]
    lines = printed(maps_of(np.eye(3, dtype="float32"), words, words), colours="256").splitlines()
    assert {Text.from_ansi(line).cell_len for line in lines[:5]} == {len("0 xxxx ") + 5 + 4 + 4}


def test_weights_that_are_no_number_are_question_marks():
    weights = np.array([[np.nan, np.nan], [0.5, 0.5]], "float32")
    assert printed(maps_of(weights)).splitlines()[2].split() == ["0", "q0", "?", "?"]


def test_one_query_is_a_list_of_bars():
    words = tokens("the cat sat")
    assert printed(maps_of(CAUSAL, words, words), 40, query=1) == dedent("""\
        query 1 cat
        0 the ████████▋                  0.2500
        1 cat ██████████████████████████ 0.7500
        2 sat                            0
        """)


def test_each_key_with_a_weight_has_its_line():
    lines = printed(maps_of(np.full((1, 6), 1 / 6, "float32")), query=0).splitlines()
    assert [line.split()[1] for line in lines[1:]] == [f"k{i}" for i in range(6)]


def test_keys_without_weight_share_a_line():
    weights = np.zeros((1, 90), "float32")
    weights[0, 7] = 1
    lines = printed(maps_of(weights), query=0).splitlines()
    assert lines[1] == "0–6: 0"
    assert lines[2].split()[:2] == ["7", "k7"]
    assert lines[3] == "8–89: 0"


@pytest.fixture
def vision():
    weights = np.zeros((8, 8), "float32")
    weights[0, 0], weights[0, 2], weights[3, 7] = 0.25, 0.75, 1
    patches = [
        Token("[CLS]", special=True),
        *(Token(f"{i // 3},{i % 3}") for i in range(6)),
        Token("[REG]"),
    ]
    return maps_of(weights, patches, patches, Picture(rows=2, columns=3, first=1, png=b""))


def test_a_picture_shows_the_patches_where_they_are(vision):
    lines = printed(vision, 15).splitlines()
    assert lines[:5] == ["query 0 [CLS]", "    ████", "    ████", "", ""]
    assert "2 × 3 patches 0.75, [CLS] 0.25, [REG] 0" in " ".join(printed(vision, 200).split())


def test_a_picture_without_a_first_token_is_the_mean_of_all_queries(vision):
    vision.picture = Picture(rows=2, columns=4, first=0, png=b"")
    assert printed(vision).startswith("all 8 queries on average\n")
    assert printed(vision, query=3).startswith("query 3 0,2\n")


@examples(8, 60)
@given(
    n_Q=st.integers(1, 130),
    n_K=st.integers(1, 520),
    width=st.integers(20, 250),
    second=st.integers(0, 520),
    words=st.lists(st.sampled_from(WORDS), min_size=1, max_size=5),
    colours=st.sampled_from([None, "standard", "256", "truecolor"]),
    query=st.sampled_from([None, 0]),
)
def test_no_line_is_wider_than_the_terminal(n_Q, n_K, width, second, words, colours, query):
    keys = [Token(words[i % len(words)], i >= second, i == 0, i > 40) for i in range(n_K)]
    queries = [Token(words[i % len(words)], i >= second, i == 0, i > 40) for i in range(n_Q)]
    out = printed(maps_of(random_weights(n_Q, n_K), queries, keys), width, colours=colours, query=query)
    assert max(Text.from_ansi(line).cell_len for line in out.split("\n")) <= width
