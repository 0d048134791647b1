"""Figures are complete, legible and reproducible, and no token breaks them."""

import io
import os
import subprocess
import sys
import warnings
from dataclasses import replace
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from attnscope.base.errors import FileError, OptionError
from attnscope.document.figure import check_plot, drawable
from attnscope.document.save import save
from attnscope.model.maps.result import AttentionMap, AttentionMaps
from attnscope.model.run.tokens import Picture, Token

SUFFIXES = [".png", ".svg", ".pdf"]
NASTY = [
    "$x^2$",
    "$",
    "\\frac",
    "日本語",
    "שלום",
    "👍🏽",
    "\ufffe",
    "a\x00b",
    "<b>&",
    "_a_",
    "\n",
    "",
    "x" * 90,
]


def maps_of(words, places=((0, 0),), n_Q=None, picture=None):
    tokens = [
        Token(word, segment=i > 5, generated=i > 8, special=i == 0) for i, word in enumerate(words)
    ]
    n_Q = n_Q or len(tokens)
    random = np.random.default_rng(0)
    maps = [
        AttentionMap(*place, 0, random.dirichlet(np.ones(len(tokens)), size=n_Q).astype("float32"))
        for place in places
    ]
    return AttentionMaps("tiny", "self", 2, 3, 3, tokens[:n_Q], tokens, maps, picture)


@pytest.fixture
def vision():
    file = io.BytesIO()
    Image.fromarray(np.arange(48 * 32 * 3, dtype="uint8").reshape(48, 32, 3)).save(file, "PNG")
    patches = [f"{i // 2},{i % 2}" for i in range(6)]
    return maps_of(["[CLS]", *patches], [(0, 0), (1, 2)], picture=Picture(3, 2, 1, file.getvalue()))


def texts(path):
    return [element.text for element in ElementTree.parse(path).iter() if element.tag.endswith("text")]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_two_runs_give_the_same_bytes(tmp_path, suffix):
    for name in ("one", "two"):
        save(maps_of(["the", "cat"]), tmp_path / f"{name}{suffix}")
    one, two = ((tmp_path / f"{name}{suffix}").read_bytes() for name in ("one", "two"))
    assert one == two
    assert not [word for word in (b"CreationDate", b"dc:date") if word in one]


@pytest.mark.few(2)
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_no_token_breaks_a_figure_or_warns(tmp_path, suffix):
    path = tmp_path / f"x{suffix}"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save(maps_of(NASTY), path)
    if suffix == ".svg":
        assert {"$x^2$", "日本語", "<b>&", "⏎", "∅"} <= set(texts(path))


NAMES = {
    "escape sequence": "a\x1b[31m",
    "null": "a\x00b",
    "end of a section": "]]>",
    "markup": "<b>&\"'",
    "lone surrogate": "a\ud800",
    "noncharacters": "\ufffe\uffff\U0001fffe",
    "formula": "$\\\\foo$",
    "lines": "a\nb\x85c\u2028d",
}
"""Names of models and of tokens."""


@pytest.mark.few(2)
@pytest.mark.parametrize("name", NAMES.values(), ids=list(NAMES))
def test_an_svg_is_well_formed_whatever_a_model_and_tokens_are_called(tmp_path, vision, name):
    path = tmp_path / "x.svg"
    words = [name, f"a{name}", "cat"]
    for maps in (maps_of(words), maps_of(words, [(0, 0), (1, 1)]), vision):
        save(replace(maps, model=name, stack="text"), path, force=True)
        told = [text for text in texts(path) if text and text.endswith((" across", " layer 0 · head 0"))]
        told += [text for text in texts(path) if text and " · query " in text]
        assert len(told) == 1, "a title, on one line"


@pytest.mark.few(1)
@pytest.mark.parametrize("suffix", [".png", ".pdf"])
def test_no_name_of_a_model_breaks_a_figure(tmp_path, suffix):
    path = tmp_path / f"x{suffix}"
    for maps in (maps_of(["a"]), maps_of(["a", "b"], [(0, 0), (1, 1)])):
        save(replace(maps, model=" ".join(NAMES.values())), path, force=True)
        assert path.stat().st_size > 1000


@given(st.text(st.characters(exclude_categories=())))
def test_any_text_that_is_drawn_may_stand_in_xml(text):
    shown = drawable(text)
    element = ElementTree.Element("text")
    element.text = shown
    assert (ElementTree.fromstring(ElementTree.tostring(element, "utf-8")).text or "") == shown
    assert len(shown.splitlines()) <= 1


def test_letters_stay_letters(tmp_path):
    save(maps_of(["the", "cat"]), tmp_path / "x.pdf")
    assert b"/FontFile2" in (tmp_path / "x.pdf").read_bytes()  # TrueType, not Type 3


@pytest.mark.sweep
def test_every_token_of_a_short_text_and_some_of_a_long_one_are_named(tmp_path):
    save(maps_of([f"t{i}" for i in range(20)], n_Q=7), tmp_path / "short.svg")
    named = texts(tmp_path / "short.svg")
    assert [named.count(f"t{i}") for i in range(20)] == [2] * 7 + [1] * 13
    save(maps_of([f"t{i}" for i in range(300)], n_Q=7), tmp_path / "long.svg")
    named = texts(tmp_path / "long.svg")
    assert "0  t0" in named
    assert 30 < sum("  t" in text for text in named) < 100


def test_cells_of_a_short_text_are_square(tmp_path):
    save(maps_of(list("abcdefghijklmnopqrst"), n_Q=2), tmp_path / "wide.png", dpi=50)
    save(maps_of(list("abcdefghijklmnopqrst")), tmp_path / "high.png", dpi=50)
    wide, high = (Image.open(tmp_path / f"{name}.png").size for name in ("wide", "high"))
    assert abs(wide[0] - high[0]) < 10  # the scale's numbers differ
    assert wide[1] < high[1] - 100


def test_several_maps_are_a_grid_with_layers_and_heads(tmp_path):
    save(maps_of(list("abcd"), [(0, 5), (0, 7), (9, 5)]), tmp_path / "x.svg")
    named = texts(tmp_path / "x.svg")
    assert {"head", "layer", "5", "7", "9"} <= set(named)
    assert "tiny · 4 queries downwards, 4 keys across" in named


def test_one_query_is_a_row(tmp_path):
    save(maps_of(["the", "cat", "sat"]), tmp_path / "x.svg", query=1)
    named = texts(tmp_path / "x.svg")
    assert [named.count(word) for word in ("the", "cat", "sat")] == [1, 2, 1]


@pytest.mark.few(1)
@pytest.mark.parametrize("query", [None, 3])
def test_a_picture_lies_under_its_weights(tmp_path, vision, query):
    save(vision, tmp_path / "grid.svg", query=query)
    one = replace(vision, maps=vision.maps[1:])
    save(one, tmp_path / "one.svg", query=query)
    asked = "query 0 [CLS]" if query is None else "query 3 1,0"
    assert f"tiny · {asked}" in texts(tmp_path / "grid.svg")
    assert f"tiny · {asked} · layer 1 · head 2" in texts(tmp_path / "one.svg")


@pytest.mark.few(1)
@pytest.mark.parametrize(("n_Q", "n_K"), [(1, 1), (1, 50), (7, 300)])
def test_odd_sizes(tmp_path, n_Q, n_K):
    for places in ([(0, 0)], [(0, 0), (1, 1)]):
        save(maps_of(["t"] * n_K, places, n_Q), tmp_path / "x.png", dpi=40, force=True)
        width, height = Image.open(tmp_path / "x.png").size
        assert width < 700
        assert height < 700


def test_weights_that_are_no_number_or_all_nothing_are_drawn(tmp_path):
    maps = maps_of(["a", "b"])
    maps.maps[0].attention[:] = 0
    save(maps, tmp_path / "zero.png")
    maps.maps[0].attention[0] = np.nan
    save(maps, tmp_path / "nan.png")


def test_a_file_is_replaced_only_by_force(tmp_path):
    path = tmp_path / "x.png"
    path.write_text("precious")
    with pytest.raises(FileError, match="already exists") as caught:
        save(maps_of(["a"]), path)
    assert caught.value.hint == "another name, or force=True to replace it"
    assert path.read_text() == "precious"
    save(maps_of(["a"]), path, force=True)
    assert Image.open(path).format == "PNG"
    assert list(tmp_path.iterdir()) == [path]


def test_another_suffix_is_refused_by_those_there_are(tmp_path):
    with pytest.raises(FileError, match=r"ends in \.jpg, which is not a format for figures") as caught:
        check_plot(tmp_path / "x.jpg")
    assert caught.value.hint == "x.png, x.svg or x.pdf"


def test_without_matplotlib_one_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(OptionError) as caught:
        check_plot(tmp_path / "x.png")
    assert caught.value.hint == "pip install 'attnscope[plot]'"


def test_settings_are_neither_taken_nor_left(tmp_path):
    save(maps_of(["a", "b"]), tmp_path / "usual.svg")
    with matplotlib.rc_context({"font.size": 40, "axes.grid": True, "svg.fonttype": "path"}):
        before = dict(matplotlib.rcParams)
        save(maps_of(["a", "b"]), tmp_path / "other.svg")
        assert dict(matplotlib.rcParams) == before
    assert (tmp_path / "usual.svg").read_bytes() == (tmp_path / "other.svg").read_bytes()


@pytest.mark.sweep
def test_pyplot_stays_away(tmp_path):
    code = (
        "import sys; import numpy as np\n"
        "from attnscope.model.maps.result import *\n"
        "assert 'matplotlib' not in sys.modules\n"
        "t = [Token('a')]; m = [AttentionMap(0, 0, 0, np.ones((1, 1), 'float32'))]\n"
        "AttentionMaps('m', 'self', 1, 1, 1, t, t, m).save('x.png')\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    environment = {**os.environ, "MPLBACKEND": "tkagg"}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True)
