"""The page without the sink, of pooled maps, and with an overview that scrolls: in a browser."""

import re

import numpy as np
import pytest

from attnscope.document.grid.pooling import Pooling
from attnscope.model.run.tokens import Token

pytestmark = pytest.mark.sweep  # `test_page` stands for the browser by default

WORDS = ["[CLS]", " the", " cat", " sat", "[SEP]"]


@pytest.fixture
def sunk(make_stack):
    """Return heads that attend most to the first and the last token."""
    attention = np.full((5, 5), 0.02)
    attention[:, 0], attention[:, 4] = 0.6, 0.3
    attention[2, 3] = 0.06
    return make_stack([Token(word, special=word[0] == "[") for word in WORDS], given={(0, 0): attention})


@pytest.fixture
def pooled(make_stack):
    """Return maps of twelve tokens in six cells."""
    words = ["[CLS]", *(f" word{i}" for i in range(10)), "[SEP]"]
    tokens = [Token(word, special=word[0] == "[") for word in words]
    cells = [range(i, i + 2) for i in range(0, 12, 2)]
    stack = make_stack([str(i) for i in range(6)])
    stack.query_tokens = stack.key_tokens = tokens
    stack.pooling = Pooling("max", cells, cells)
    return stack


# ---- the sink


def test_the_strongest_weights_leave_out_the_sink(open_page, sunk):
    opened = open_page(sunk)
    assert {key for _, key, _ in opened.strongest()} == {"[CLS] 0"} | {"[SEP] 4"}
    opened.page.get_by_label("Without the sink").check()
    opened.until("by('strongest').tBodies[0].rows[0].cells[1].innerText.startsWith('sat')")
    assert opened.strongest()[0][:2] == ("cat 2", "sat 3")
    assert not {key for _, key, _ in opened.strongest()} & {"[CLS] 0", "[SEP] 4"}
    assert opened.text("#sink-note") == "without the sink: [CLS] 0, [SEP] 4"
    assert opened.text("#top").startswith("0.06"), "full colour is the strongest of the others"
    opened.click(2, 3)
    opened.until("page.query === 2")
    assert opened.text("#detail-note") == "All keys, strongest first"
    assert len(opened.strongest()) == 3
    assert opened.text("#left-out") == "Tokens left out receive 0.90 of this query's attention."
    opened.page.get_by_label("Without the sink").uncheck()
    opened.until("by('strongest').tBodies[0].rows.length === 5")
    assert not opened.page.locator("#sink-note").is_visible()


def test_lines_leave_out_the_sink(open_page, sunk):
    opened = open_page(sunk, fragment="view=lines")
    opened.wait_for(0, 0, "lines")
    assert opened.see("looks.lines.lines.some((line) => line.key === 0)")
    opened.page.locator("#plot").focus()
    opened.page.keyboard.press("s")
    opened.until("by('sink').checked && scene.sinks.size === 2")
    assert opened.see("looks.lines.lines.length") == 5 * 3
    assert not opened.see("looks.lines.lines.some((line) => line.key === 0 || line.key === 4)")
    assert not opened.see(
        "looks.lines.linesAt(scene, { query: 1, key: null }).some((line) => line.key === 0)"
    )


@pytest.mark.sweep
@pytest.mark.parametrize("dark", [False, True])
def test_columns_of_the_sink_are_grey_and_keep_their_weights(open_page, sunk, dark):
    opened = open_page(sunk, dark=dark)
    before = opened.colour(*opened.cell(1, 0))
    opened.page.get_by_label("Without the sink").check()
    opened.until("scene.sinks.size === 2")
    grey = opened.colour(*opened.cell(1, 0))
    assert grey != before
    assert max(grey[:3]) - min(grey[:3]) < 20, "no colour"
    assert opened.colour(*opened.cell(3, 4)) == grey
    assert opened.colour(*opened.cell(2, 3)) != grey
    assert opened.hover(1, 0)[2].startswith("0.60")
    assert opened.page.locator("#mark-sink").is_visible()


@pytest.mark.sweep
def test_the_switch_stands_in_the_address_and_can_be_on_at_first(open_page, sunk):
    opened = open_page(sunk, without_sink=True)
    assert opened.page.get_by_label("Without the sink").is_checked()
    opened.head(1, 1).click()
    opened.wait_for(1, 1)
    assert opened.see("location.hash") == "#layer=1&head=1&sink=off"
    opened.page.get_by_label("Without the sink").uncheck()
    opened.until("location.hash === '#layer=1&head=1'")
    opened.page.reload()
    opened.wait_for(1, 1)
    assert not opened.page.get_by_label("Without the sink").is_checked()


# ---- pooled maps


@pytest.mark.sweep
@pytest.mark.parametrize("width", [420, 1280])
def test_a_pooled_page_says_so_in_its_header(open_page, pooled, sunk, width):
    opened = open_page(pooled, width=width)
    said = opened.page.locator("header .pooled")
    assert said.inner_text() == "pooled to 6 × 6 cells: the largest of 2 × 2 weights each"
    assert said.is_visible()
    assert open_page(sunk).page.locator("header .pooled").count() == 0


def test_cells_of_one_token_are_not_called_pooled(open_page, make_stack):
    stack = make_stack(["a", "b"])
    stack.pooling = Pooling("max", [range(1), range(1, 2)], [range(1), range(1, 2)])
    assert open_page(stack).page.locator("header .pooled").count() == 0


def test_cells_are_named_by_positions_and_tokens(open_page, pooled):
    opened = open_page(pooled)
    assert opened.hover(2, 1)[:2] == ("4–5 word3 word4", "2–3 word1 word2")
    assert opened.see("data.stacks[0].queries[0].special ?? false") is False
    opened.click(2, 1)
    opened.until("page.query === 2")
    assert opened.text("#detail-heading") == "Query 4–5 word3 word4"


def test_long_cells_are_shortened_and_found_by_any_of_their_tokens(open_page, pooled):
    tokens = [Token(f" verylongword{i}") for i in range(60)]
    cells = [range(i, i + 10) for i in range(0, 60, 10)]
    pooled.query_tokens = pooled.key_tokens = tokens
    pooled.pooling = Pooling("mean", cells, cells)
    opened = open_page(pooled)
    assert "the mean of 10 × 10 weights" in opened.text("header .pooled")
    name = opened.see("data.stacks[0].queries[1].text")
    assert name == "10–19 verylongword10 verylongword11 verylongwor…"
    opened.page.get_by_label("Find a token").fill("word38")
    opened.until("by('found').textContent === '1 of 1'")
    opened.until("page.query === 3")


def test_a_cell_with_a_token_of_the_sink_is_left_out(open_page, pooled):
    opened = open_page(pooled, fragment="sink=off")
    assert opened.see("[...scene.sinks]") == [0, 5]
    assert opened.text("#sink-note") == "without the sink: 0–1 [CLS] word0, 10–11 word9 [SEP]"


# ---- the overview


@pytest.mark.sweep
def test_an_overview_that_scrolls_says_what_is_seen(open_page, make_stack):
    opened = open_page(make_stack(["a", "b", "c"], layers=40, heads=4), height=600)
    assert opened.page.locator("#heads-frame.more-below").count() == 1
    first, last = opened.see("by('cue-text').textContent.match(/layers (\\d+)–(\\d+) of 0–39/).slice(1)")
    assert (int(first), int(last) < 39) == (0, True)
    assert opened.page.get_by_role("button", name="Layers above").is_disabled()
    assert not opened.page.get_by_role("button", name="Next heads").is_visible()
    down = opened.page.get_by_role("button", name="Layers below")
    down.focus()
    opened.page.keyboard.press("Enter")
    opened.until(f"Number(by('cue-text').textContent.match(/\\d+/)[0]) > {first}")
    assert opened.page.locator("#heads-frame.more-above").count() == 1
    opened.until("by('said').textContent === by('cue-text').textContent")
    numbers = opened.page.locator('#heads [aria-label="head 0"]').bounding_box()
    heads = opened.page.locator("#heads").bounding_box()
    assert abs(numbers["y"] - heads["y"]) < 8, "the heads' numbers stay in sight"


@pytest.mark.sweep
def test_arrows_bring_a_layer_into_view(open_page, make_stack):
    opened = open_page(make_stack(["a", "b", "c"], layers=40, heads=4), height=600)
    opened.head(0, 0).focus()
    for _ in range(39):
        opened.page.keyboard.press("ArrowDown")
    opened.wait_for(39, 0)
    opened.until("!by('heads-frame').classList.contains('more-below')")
    assert opened.text("#cue-text").endswith("–39 of 0–39")


def test_many_heads_scroll_sideways(open_page, make_stack):
    opened = open_page(make_stack(["a", "b"], layers=2, heads=48), width=420)
    assert opened.page.locator("#heads-frame.more-right").count() == 1
    assert "heads 0–" in opened.text("#cue-text")
    opened.page.get_by_role("button", name="Next heads").click()
    opened.until("by('heads-frame').classList.contains('more-left')")


def test_an_overview_that_is_seen_whole_has_no_cue(open_page, sunk):
    assert not open_page(sunk).page.locator("#cue").is_visible()


def test_a_page_of_maps_ranks_its_heads(open_page, make_stack, make_table):
    opened = open_page(make_stack(["a", "b", "c"]), heads=make_table(), metric="map")
    assert opened.page.locator("#metric").input_value() == "map", "maps are what is seen first"
    opened.wait_for(0, 0)
    opened.page.locator("#all-values thead button", has_text="previous").click()
    values = opened.page.locator("#all-values tbody tr td:nth-child(3)").all_inner_texts()
    assert [float(each) for each in values] == sorted(map(float, values), reverse=True)
    row = opened.page.locator("#all-values tbody tr").nth(3)
    layer, head = re.findall(r"\d+", row.locator("button").inner_text())
    row.locator("button").click()
    opened.wait_for(int(layer), int(head))
