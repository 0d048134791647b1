"""Every block is shown by every renderer."""

import io
from typing import get_args

import pytest

from attnscope.document.blocks import (
    Block,
    Drawing,
    Findings,
    Heading,
    Notices,
    Only,
    Plot,
    Sentence,
    Strip,
    Table,
    Verdict,
)
from attnscope.document.columns import Column
from attnscope.document.console import Terminal
from attnscope.document.csv import csv_table, first_table, remarks
from attnscope.document.html import html_document
from attnscope.document.markdown import markdown_document
from attnscope.document.result import Finding
from attnscope.document.terminal import print_document

SIZES = Column("size", "size", [[("3×4", "")]], ["3 4"])
WIDE = Column("more", "more", [[("on request", "")]], ["raw"], wide=True)
BLOCKS = {
    Heading: (Heading("a title", ["a line"]), ["a title", "a line"]),
    Sentence: (Sentence("a sentence", "dim"), ["a sentence"]),
    Strip: (Strip("█▒█", "█ full, ▒ sliding"), ["█▒█", "▒ sliding"]),
    Table: (Table([SIZES, WIDE]), ["size", "3×4"]),
    Verdict: (Verdict(False, "it differs", ["line 7"]), ["it differs", "line 7"]),
    Findings: (Findings([Finding("a mistake", 7)]), ["line 7", "a mistake"]),
    Notices: (Notices(["a notice"]), ["a notice"]),
}


def on_terminal(blocks, **options):
    console = Terminal(file=io.StringIO(), width=80)
    print_document(blocks, console, **options)
    return console.file.getvalue()


def test_these_are_all_blocks():
    assert {*BLOCKS, Drawing, Plot, Only} == set(get_args(Block))


@pytest.mark.parametrize("render", [on_terminal, markdown_document, html_document])
@pytest.mark.parametrize("kind", BLOCKS, ids=lambda kind: kind.__name__)
def test_a_block_is_shown(kind, render):
    block, texts = BLOCKS[kind]
    shown = render([block])
    assert [text for text in texts if text not in shown] == []


@pytest.mark.parametrize("render", [on_terminal, markdown_document, html_document])
def test_a_figure_is_no_text(render):
    drawn = []
    assert render([Plot(drawn.append)]).strip() == ""
    assert drawn == []


@pytest.mark.parametrize("render", [on_terminal, markdown_document, html_document])
def test_some_blocks_are_in_html_alone_or_everywhere_else(render):
    blocks = [Only(Sentence("in HTML"), html=True), Only(Sentence("elsewhere"), html=False)]
    assert ("in HTML" in render(blocks), "elsewhere" in render(blocks)) == (
        (True, False) if render is html_document else (False, True)
    )


@pytest.mark.parametrize("render", [on_terminal, markdown_document])
def test_wide_shows_all_columns(render):
    assert "on request" not in render([Table([SIZES, WIDE])])
    assert "on request" in render([Table([SIZES, WIDE])], wide=True)


@pytest.mark.parametrize("render", [on_terminal, markdown_document])
def test_a_sentence_stands_for_a_table_unless_all_is_wanted(render):
    blocks = [Table([SIZES], instead="one row")]
    assert "one row" in render(blocks)
    assert "3×4" not in render(blocks)
    assert "one row" not in render(blocks, wide=True)
    assert "3×4" in render(blocks, wide=True)


def test_html_opens_the_table_that_a_sentence_stands_for():
    shown = html_document([Table([SIZES], instead="one row")])
    assert shown.index("<summary>one row</summary>") < shown.index("3×4") < shown.index("</details>")


def test_html_shows_some_columns_in_a_second_table_that_begins_with_the_first_column():
    name = Column("name", "name", [[("Q", "")]], ["Q"])
    assert html_document([Table([name, SIZES], second=frozenset({"size"}))]).count("<table>") == 2
    assert html_document([Table([name, SIZES])]).count("<table>") == 1


def test_csv_has_the_first_table_and_says_apart_what_it_has_no_room_for():
    blocks = [
        Heading("a title", []),
        Table([WIDE], instead="a sentence"),
        Table([SIZES, WIDE]),
        Table([WIDE]),
        Findings([Finding("a mistake", 7)]),
        Notices(["a notice"]),
    ]
    assert csv_table(first_table(blocks)) == "size,more\n3 4,raw"
    assert list(remarks(blocks)) == ["line 7: a mistake", "a notice"]


@pytest.mark.parametrize("render", [on_terminal, markdown_document, html_document])
def test_text_from_data_cannot_control_what_shows_it(render):
    shown = render([Heading("a\x1b[31m", ["\u202e"]), Sentence("\x07"), Notices(["<b>\x1b"])])
    assert not {"\x1b", "\u202e", "\x07"} & set(shown)


def test_html_escapes_text_from_data():
    shown = html_document([Heading("<b>", ["<i>"]), Sentence("<s>"), Verdict(True, "<u>", ["<q>"])])
    assert not [tag for tag in ("<b>", "<i>", "<s>", "<u>", "<q>") if tag in shown]
