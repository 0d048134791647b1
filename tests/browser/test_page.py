"""The page in a browser: opening, clicking, typing and reading."""

import struct
import zlib

import numpy as np
import pytest

from attnscope.document.page.page import page_html
from attnscope.document.result import Check
from attnscope.model.maps.result import AttentionMap, AttentionMaps
from attnscope.model.run.tokens import Picture, Token

WORDS = ["[CLS]", " the", " cat", " sat", " on", " the", " mat"]
SENTENCE = [Token(word, special=word == "[CLS]") for word in WORDS]


def true_to(shown, weight):
    """Return whether all digits of a number are correct, the last one ±1."""
    if shown.startswith("< "):
        return weight < float(shown[2:])
    number, _, margin = shown.partition(" ± ")
    digits = len(number.partition(".")[2])
    return abs(float(number) - weight) <= (float(margin) if margin else 10**-digits) + 1e-9


def of(stack, layer, head):
    return next(m.attention for m in stack.maps if (m.layer, m.head) == (layer, head))


def png(width, height):
    """Return a picture whose columns go from black to white."""

    def chunk(kind, content):
        return (
            struct.pack(">I", len(content))
            + kind
            + content
            + struct.pack(">I", zlib.crc32(kind + content))
        )

    row = b"\0" + bytes(255 * x // width for x in range(width) for _ in range(3))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(row * height))
        + chunk(b"IEND", b"")
    )


@pytest.fixture
def sentence(make_stack):
    return make_stack(SENTENCE)


@pytest.fixture
def pair(make_stack):
    texts = ["[CLS]", " a", " b", "[SEP]", " c", " d", "[SEP]"]
    return make_stack(
        [Token(text, segment=int(i > 3), special=text[0] == "[") for i, text in enumerate(texts)]
    )


@pytest.fixture
def cross(make_stack):
    german = [
        Token("<pad>", special=True),
        Token(" Katze", generated=True),
        Token(" saß", generated=True),
    ]
    english = [" The", " cat", " sat", "."]
    return [
        make_stack(english, stack="encoder"),
        make_stack(german, stack="decoder"),
        make_stack(german, english, stack="cross", heads=4, n_kv_head=2),
    ]


@pytest.fixture
def pictured(make_stack):
    tokens = [Token("[CLS]", special=True)] + [
        Token(f"{row},{column}") for row in range(2) for column in range(3)
    ]
    first = np.full((7, 7), 0.02)
    first[0, 4] = 0.88
    first[4, 6] = 0.88
    return make_stack(tokens, given={(0, 0): first}, picture=Picture(2, 3, 1, png(90, 60)))


# ---- heads


@pytest.mark.sweep
def test_clicks_go_through_the_heads(open_page, sentence):
    opened = open_page(sentence)
    for layer, head in ((0, 0), (1, 2), (0, 1)):
        opened.head(layer, head).click()
        opened.wait_for(layer, head)
        assert opened.text("#heading") == f"Layer {layer}, head {head}"
        assert opened.head(layer, head).get_attribute("aria-selected") == "true"
        assert true_to(opened.hover(3, 2)[2], of(sentence, layer, head)[3, 2])


@pytest.mark.sweep
def test_arrows_go_through_the_heads_and_stop_at_the_edge(open_page, sentence):
    opened = open_page(sentence)
    opened.head(0, 0).focus()
    for key, layer, head in (
        ("ArrowRight", 0, 1),
        ("ArrowDown", 1, 1),
        ("ArrowDown", 1, 1),
        ("End", 1, 2),
        ("ArrowLeft", 1, 1),
        ("Home", 1, 0),
        ("ArrowUp", 0, 0),
    ):
        opened.page.keyboard.press(key)
        opened.wait_for(layer, head)
        assert (
            opened.see("document.activeElement.getAttribute('aria-label')")
            == f"Layer {layer}, head {head}"
        )
    stops = opened.page.locator('#heads [role="gridcell"][tabindex="0"]')
    assert stops.count() == 1, "the overview is one stop of the Tab key"


@pytest.mark.sweep
def test_some_heads_of_a_model_can_be_shown_without_the_others(open_page, sentence):
    sentence.maps = [m for m in sentence.maps if (m.layer, m.head) in {(0, 2), (1, 0), (1, 2)}]
    opened = open_page(sentence)
    opened.wait_for(0, 2)
    assert opened.page.locator('#heads [aria-disabled="true"]').count() == 1
    opened.page.keyboard.press("]")
    opened.wait_for(1, 0)


@pytest.mark.sweep
def test_small_maps_show_what_is_in_them(open_page, make_stack):
    previous = np.eye(60, k=-1)
    previous[0, 0] = 1
    opened = open_page(make_stack([str(i) for i in range(60)], given={(0, 1): previous}))
    small = """(() => { const c = cells.get('0 1').firstChild; return [c.width, c.height,
        ...[[12, 12], [12, 3]].map(([x, y]) => c.getContext('2d').getImageData(x, y, 1, 1).data[0])]; })()"""
    width, height, on, off = opened.see(small)
    assert (width, height) == (24, 24)
    assert on < off - 80, "dark on the diagonal, light beside it"


@pytest.mark.sweep
def test_small_maps_of_a_short_text_are_its_maps(open_page, make_stack):
    previous = np.eye(6, k=-1)
    previous[0, 0] = 1
    opened = open_page(make_stack([str(i) for i in range(6)], given={(0, 1): previous}))
    small = """(() => { const c = cells.get('0 1').firstChild; return [c.width, c.height,
        ...[[2, 3], [3, 3]].map(([x, y]) => c.getContext('2d').getImageData(x, y, 1, 1).data[0])]; })()"""
    width, height, on, off = opened.see(small)
    assert (width, height) == (6, 6)
    assert on < off - 80, "dark on the diagonal, light beside it"


# ---- weights


@pytest.mark.sweep
def test_the_weight_under_the_pointer_is_that_of_its_query_and_key(open_page, sentence):
    opened = open_page(sentence)
    attention = of(sentence, 0, 0)
    for query, key in ((0, 0), (2, 5), (5, 2), (6, 0), (0, 6)):
        shown_query, shown_key, weight = opened.hover(query, key)
        assert (shown_query, shown_key) == (WORDS[query].strip(), WORDS[key].strip())
        assert true_to(weight, attention[query, key])
        assert len(weight) >= 6, "with as many digits as are true"


@pytest.mark.sweep
def test_queries_go_down_and_keys_across(open_page, make_stack):
    one = np.zeros((3, 5))
    one[[0, 1, 2], [3, 0, 0]] = 1
    opened = open_page(
        make_stack(["a", "b", "c"], ["p", "q", "r", "s", "t"], given={(0, 0): one}, stack="cross")
    )
    dark = [
        (row, column)
        for row in range(3)
        for column in range(5)
        if sum(opened.colour(*opened.cell(row, column))[:3]) < 384
    ]
    assert dark == [(0, 3), (1, 0), (2, 0)]


@pytest.mark.sweep
def test_stronger_is_darker_in_light_and_lighter_in_the_dark(open_page, make_stack):
    steps = np.array([[0, 0.1, 0.3, 0.6, 1.0]])
    stack = make_stack(["a"], ["p", "q", "r", "s", "t"], given={(0, 0): steps}, stack="cross")
    for dark in (False, True):
        opened = open_page(stack, dark=dark)
        brightness = [sum(opened.colour(*opened.cell(0, column))[:3]) for column in range(5)]
        assert brightness == sorted(brightness, reverse=not dark)
        assert len(set(brightness)) == 5


@pytest.mark.sweep
def test_colours_are_even_steps_of_lightness_in_both_schemes(open_page, sentence):
    opened = open_page(sentence)
    for scheme in ("true", "false"):
        # sRGB → relative luminance → CIE L*, which OKLCH's lightness follows closely
        colours = np.array(opened.see(f"palette({scheme})")) / 255
        linear = np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)
        luminance = linear @ [0.2126, 0.7152, 0.0722]
        lightness = 116 * np.cbrt(np.maximum(luminance, 0.008856)) - 16
        steps = np.abs(np.diff(lightness[::15]))
        assert steps.min() > 0.5 * steps.mean()
        assert steps.max() < 1.7 * steps.mean()


@pytest.mark.sweep
def test_many_tokens_are_stored_coarsely_and_said_truly(open_page, make_stack):
    opened = open_page(stack := make_stack([str(i) for i in range(600)], layers=2, heads=3))
    assert opened.see("data.coding.lowFrom") == 32
    shown = opened.see(
        "[...Array(600).keys()].map((i) => scene.weights.text(scene.weights.at(i, (7 * i) % 600)))"
    )
    attention = of(stack, 0, 0)
    assert all(true_to(text, attention[i, 7 * i % 600]) for i, text in enumerate(shown))
    assert any(" ± " in text for text in shown), "one digit alone says too little"


@pytest.mark.sweep
def test_what_is_not_a_number_is_said_to_be_none(open_page, make_stack):
    attention = np.full((3, 3), 1 / 3)
    attention[1] = np.nan
    opened = open_page(make_stack(["a", "b", "c"], given={(0, 0): attention}))
    assert opened.hover(1, 1)[2] == "not a number"
    assert opened.hover(0, 1)[2] == "0.3333"
    opened.click(1, 1)
    assert opened.text("#detail-note") == "Its weights are not numbers."
    assert opened.strongest() == []


@pytest.mark.sweep
def test_what_tokens_that_are_left_out_get_may_be_no_number(open_page, make_stack):
    attention = np.full((3, 3), 1 / 3)
    attention[1] = np.nan
    stack = make_stack([Token("[CLS]", special=True), "b", "c"], given={(0, 0): attention})
    opened = open_page(stack, fragment="layer=0&head=0&query=1&special=off")
    assert opened.text("#left-out") == "The weight of the tokens left out is not a number."


@pytest.mark.sweep
def test_zero_is_said_as_zero(open_page, make_stack):
    opened = open_page(make_stack(["a", "b"], given={(0, 0): np.array([[1.0, 0.0], [1e-9, 1.0]])}))
    assert opened.hover(0, 1)[2] == "0"
    assert opened.hover(1, 0)[2] == "< 0.000001"


@pytest.mark.sweep
def test_the_colour_scale_has_a_legend_and_four_ways(open_page, make_stack):
    quarter = np.array([[0.25, 0.0625]])
    opened = open_page(make_stack(["a"], ["p", "q"], given={(0, 0): quarter}, stack="cross"))
    assert opened.text("#top") == "0.2500"
    place = opened.cell(0, 1)
    seen = {}
    for scale in ("root", "linear"):
        for top in ("strongest", "one"):
            opened.page.locator(f'input[value="{scale}"]').check()
            opened.page.locator(f'input[value="{top}"]').check()
            opened.until(
                f"scene.root === {str(scale == 'root').lower()} && by('top').textContent.startsWith('{'1' if top == 'one' else '0'}')"
            )
            seen[scale, top] = opened.colour(*place)[:3]
            expected = 0.0625 if top == "one" else 0.25
            shade = round(255 * (expected**0.5 if scale == "root" else expected))
            assert list(seen[scale, top]) == opened.see(f"scene.palette[{shade}]")
    assert len(set(seen.values())) == 3


# ---- a query


@pytest.mark.sweep
def test_a_click_on_a_row_lists_its_strongest_keys(open_page, sentence):
    opened = open_page(sentence)
    opened.click(4, 1)
    opened.until("page.query === 4 && scene.chosen.query === 4")
    row = of(sentence, 0, 0)[4]
    assert opened.text("#detail-heading").split() == ["Query", "on", "4"]
    listed = opened.strongest()
    assert [token for token, _ in listed] == [f"{WORDS[key].strip()} {key}" for key in np.argsort(-row)]
    assert all(true_to(weight, each) for (_, weight), each in zip(listed, -np.sort(-row), strict=True))


@pytest.mark.sweep
def test_without_a_query_the_strongest_weights_of_the_head_are_listed(open_page, sentence):
    opened = open_page(sentence)
    attention = of(sentence, 0, 0)
    best = sorted(((attention[q, k], q, k) for q in range(7) for k in range(7)), reverse=True)[:10]
    assert [row[:2] for row in opened.strongest()] == [
        (f"{WORDS[q].strip()} {q}", f"{WORDS[k].strip()} {k}") for _, q, k in best
    ]


@pytest.mark.sweep
def test_a_strong_weight_in_the_list_leads_to_its_query(open_page, sentence):
    opened = open_page(sentence)
    query = opened.strongest()[2][0]
    opened.page.locator("#strongest tbody tr").nth(2).locator("button").first.click()
    opened.until("scene.chosen.query !== null")
    assert opened.text("#detail-heading").split() == ["Query", *query.split()]


@pytest.mark.sweep
def test_special_tokens_can_be_left_out(open_page, sentence):
    opened = open_page(sentence, fragment="layer=0&head=0&query=2")
    opened.page.locator("#special").uncheck()
    opened.until("scene.keys.length === 6 && scene.queries.length === 6")
    assert opened.hover(0, 1)[:2] == ("the", "cat")
    row = of(sentence, 0, 0)[2]
    assert opened.text("#left-out") == f"Tokens left out receive {row[0]:.2f} of this query's attention."
    assert "[CLS] 0" not in [token for token, _ in opened.strongest()]


# ---- queries that are the last of their sequence


@pytest.fixture
def generated(make_stack):
    """Return maps whose generated tokens, at positions 4, 5 and 6, attend to themselves and earlier ones."""
    tokens = [*SENTENCE[:4], *(Token(word, generated=True) for word in WORDS[4:])]
    own = np.full((3, 7), 0.02)
    own[[0, 1, 2], [4, 5, 6]] = 0.88
    return make_stack(tokens[4:], tokens, given={(0, 0): own}, first_query=4)


@pytest.mark.sweep
def test_a_query_is_numbered_by_its_position(open_page, generated):
    opened = open_page(generated)
    best = {row[:2] for row in opened.strongest()[:3]}
    assert best == {("• on 4", "• on 4"), ("• the 5", "• the 5"), ("• mat 6", "• mat 6")}
    opened.click(1, 2)
    opened.until("scene.chosen.query !== null")
    assert opened.text("#detail-heading").split() == ["Query", "•", "the", "5"]
    assert opened.strongest()[0][0] == "• the 5"
    assert "query=5" in opened.page.url


@pytest.mark.sweep
def test_a_link_names_a_query_by_its_position(open_page, generated):
    opened = open_page(generated, fragment="layer=0&head=0&query=6")
    assert opened.text("#detail-heading").split() == ["Query", "•", "mat", "6"]
    opened = open_page(generated, query=5)
    assert opened.text("#detail-heading").split() == ["Query", "•", "the", "5"]
    opened = open_page(generated, fragment="layer=0&head=0&query=2")
    assert opened.text("#detail-heading") == "Strongest weights", "position 2 is no query"


@pytest.mark.sweep
def test_lines_of_the_last_queries_lead_to_their_keys(open_page, generated):
    opened = open_page(generated, fragment="view=lines&query=6")
    lines = "looks.lines.linesAt(scene, looks.lines.focus(scene)).at(-1)"
    strongest = opened.see(lines)
    assert (strongest["query"], strongest["key"]) == (2, 6)


@pytest.mark.sweep
def test_a_search_finds_queries_and_what_stood_before_them(open_page, generated):
    opened = open_page(generated)
    opened.page.fill("#search", "the")
    opened.until("page.query === 1")
    assert opened.text("#found") == "1 of 2", "a query and its own key are one token"
    opened.page.press("#search", "Enter")
    assert opened.text("#found") == "2 of 2"
    assert opened.see("scene.cursor") == {"query": None, "key": 1}


# ---- lines


@pytest.mark.sweep
def test_lines_go_from_the_chosen_query_to_its_keys(open_page, make_stack):
    one = np.eye(7)
    one[2] = np.eye(7)[6]
    opened = open_page(make_stack(WORDS, given={(0, 0): one}), fragment="view=lines")
    lines = "looks.lines.lines.map((line) => [line.query, line.key])"
    assert sorted(opened.see(lines)) == [[i, 6 if i == 2 else i] for i in range(7)]
    box = opened.page.locator("#canvas").bounding_box()
    x, y = opened.see("[looks.lines.columns.left - 20, looks.lines.middleOf(2, windowNow())]")
    opened.page.mouse.click(box["x"] + x, box["y"] + y)
    opened.until("page.query === 2 && scene.chosen.query === 2")
    opened.page.mouse.move(5, 5)
    middle = opened.see("(looks.lines.columns.left + looks.lines.columns.right) / 2")
    drawn = [
        y
        for y in range(40, int(box["height"]) - 10)
        if opened.colour(box["x"] + middle, box["y"] + y)[2] < 150  # lines are orange
    ]
    between = opened.see(
        "(looks.lines.middleOf(2, windowNow()) + looks.lines.middleOf(6, windowNow())) / 2"
    )
    assert drawn, "no line is drawn"
    assert max(abs(y - between) for y in drawn) < 4, "one line alone, halfway between its ends"


def test_hovering_a_key_beside_a_query_says_their_weight(open_page, sentence):
    opened = open_page(sentence, fragment="view=lines&query=3")
    box = opened.page.locator("#canvas").bounding_box()
    x, y = opened.see("[looks.lines.columns.right + 10, looks.lines.middleOf(6, windowNow())]")
    opened.page.mouse.move(box["x"] + x, box["y"] + y)
    assert (opened.text("#tip-query"), opened.text("#tip-key")) == ("sat", "mat")
    assert true_to(opened.text("#tip-weight"), of(sentence, 0, 0)[3, 6])


# ---- search


@pytest.mark.sweep
def test_a_search_highlights_a_token_and_moves_to_it(open_page, sentence):
    opened = open_page(sentence)
    before = opened.colour(*opened.cell(3, 1))
    opened.page.fill("#search", "THE")
    opened.until("page.query === 1 && scene.chosen.query === 1")
    assert opened.text("#found") == "1 of 2"
    opened.page.wait_for_timeout(50)
    assert opened.colour(*opened.cell(3, 1)) != before, "its column is not marked"
    opened.page.press("#search", "Enter")
    opened.until("page.query === 5 && scene.chosen.query === 5")
    assert opened.text("#found") == "2 of 2"
    opened.page.press("#search", "Enter")
    opened.until("page.query === 1")
    opened.page.fill("#search", "dog")
    assert opened.text("#found") == "none"
    opened.page.press("#search", "Escape")
    assert opened.page.input_value("#search") == ""


@pytest.mark.sweep
def test_a_search_scrolls_to_what_it_finds(open_page, make_stack):
    opened = open_page(make_stack([f"word{i}" for i in range(300)]), fragment="view=lines")
    assert opened.see("by('plot').scrollTop") == 0
    opened.page.fill("#search", "word277")
    opened.until("by('plot').scrollTop > 2000")


@pytest.mark.sweep
def test_a_token_that_is_only_a_key_is_found_too(open_page, cross):
    opened = open_page(*cross, fragment="stack=cross")
    opened.page.fill("#search", "cat")
    assert opened.text("#found") == "1 of 1"
    assert opened.see("scene.cursor") == {"query": None, "key": 1}


# ---- blocks, stacks, pictures


@pytest.mark.sweep
@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("block", "queries", "keys"),
    [("A→A", "0123", "0123"), ("A→B", "0123", "456"), ("B→A", "456", "0123"), ("B→B", "456", "456")],
)
def test_blocks_show_one_text_looking_at_another(open_page, pair, block, queries, keys):
    opened = open_page(pair)
    assert opened.page.locator("#blocks label").all_inner_texts() == ["All", "A→A", "A→B", "B→A", "B→B"]
    opened.page.locator(f'input[value="{block}"]').check()
    opened.until(f"scene.queries.join('') === '{queries}' && scene.keys.join('') === '{keys}'")
    query, key = int(queries[2]), int(keys[1])
    texts = [token.text.strip() for token in pair.query_tokens]
    shown_query, shown_key, weight = opened.hover(2, 1)
    assert (shown_query, shown_key) == (texts[query], texts[key])
    assert true_to(weight, of(pair, 0, 0)[query, key])


@pytest.mark.sweep
def test_one_text_has_no_blocks(open_page, sentence):
    assert not open_page(sentence).page.locator("#blocks").is_visible()


@pytest.mark.sweep
def test_stacks_can_be_switched(open_page, cross):
    opened = open_page(*cross)
    assert opened.page.locator("#stacks label").all_inner_texts() == ["encoder", "decoder", "cross"]
    opened.wait_for(0, 0, stack="encoder")
    opened.page.locator("#stacks input").nth(2).check()
    opened.wait_for(0, 0, stack="cross")
    shown_query, shown_key, weight = opened.hover(1, 3)
    assert (shown_query, shown_key) == ("Katze", ".")
    assert true_to(weight, of(cross[2], 0, 0)[1, 3])
    assert "3 queries, 4 keys" in opened.text(".facts:visible")


@pytest.mark.sweep
def test_a_shared_head_of_K_and_V_is_named_beside_the_head(open_page, cross):
    opened = open_page(*cross, fragment="stack=cross&layer=1&head=3")
    opened.wait_for(1, 3, stack="cross")
    assert opened.text("#heading") == "Layer 1, head 3 · K,V head 1"
    opened.page.locator("#stacks input").nth(0).check()
    opened.wait_for(0, 0, stack="encoder")
    assert opened.text("#heading") == "Layer 0, head 0"


@pytest.mark.sweep
def test_generated_tokens_are_marked(open_page, cross):
    opened = open_page(*cross, fragment="stack=decoder&query=1")
    assert opened.page.locator("#mark-generated").is_visible()
    assert "• Katze" in opened.text("#detail-heading")
    opened.page.locator("#stacks input").nth(0).check()
    opened.wait_for(0, 0, stack="encoder")
    assert not opened.page.locator("#mark-generated").is_visible()


@pytest.mark.sweep
def test_weights_lie_over_the_patches_of_a_picture(open_page, pictured):
    opened = open_page(pictured, fragment="view=picture&query=0")
    patches = opened.see("scene.keys.slice(1).map((key) => looks.picture.boxOf(scene, key))")
    box = opened.page.locator("#canvas").bounding_box()
    middles = [
        (box["x"] + p["x"] + p["width"] / 2, box["y"] + p["y"] + p["height"] / 2) for p in patches
    ]

    def orangeness():
        colours = [opened.colour(*middle) for middle in middles]
        return [red - blue for red, _, blue, _ in colours]

    assert int(np.argmax(orangeness())) == 3, "[CLS] looks at patch 1,0, which is key 4"
    opened.page.mouse.click(*middles[3])
    opened.until("page.query === 4 && scene.chosen.query === 4")
    assert opened.text("#detail-heading").split() == ["Query", "1,0", "4"]
    opened.page.mouse.move(5, 5)
    opened.until("by('tip').hidden")
    assert int(np.argmax(orangeness())) == 5, "patch 1,0 looks at patch 1,2, which is key 6"


@pytest.mark.sweep
def test_a_picture_is_seen_under_the_weights(open_page, pictured):
    opened = open_page(pictured, fragment="view=picture&query=0")
    left, right = (opened.see(f"looks.picture.boxOf(scene, {key})") for key in (1, 3))
    box = opened.page.locator("#canvas").bounding_box()
    dark = opened.colour(box["x"] + left["x"] + 5, box["y"] + left["y"] + 20)
    light = opened.colour(box["x"] + right["x"] + right["width"] - 5, box["y"] + right["y"] + 20)
    assert light[0] - dark[0] > 100


@pytest.mark.sweep
def test_a_stack_without_a_picture_offers_none(open_page, pictured, make_stack):
    text = make_stack(["a", "b"], stack="text")
    pictured.stack = "vision"
    opened = open_page(pictured, text, fragment="stack=vision&view=picture")
    opened.wait_for(0, 0, view="picture", stack="vision")
    opened.page.locator("#stacks input").nth(1).check()
    opened.wait_for(0, 0, stack="text")
    assert not opened.page.locator("#picture-choice").is_visible()


# ---- the address


def test_a_link_leads_to_the_same_place(open_page, cross):
    opened = open_page(*cross, fragment="stack=cross&layer=1&head=2&view=lines&query=1")
    opened.wait_for(1, 2, view="lines", stack="cross")
    assert opened.text("#detail-heading").split()[:3] == ["Query", "•", "Katze"]


@pytest.mark.sweep
def test_the_address_says_what_is_looked_at(open_page, pair):
    opened = open_page(pair)
    opened.head(1, 2).click()
    opened.wait_for(1, 2)
    opened.page.locator('input[value="B→A"]').check()
    opened.click(1, 1)
    opened.until("page.query !== null")
    address = opened.page.url
    assert opened.see("Object.fromEntries(new URLSearchParams(location.hash.slice(1)))") == {
        "layer": "1",
        "head": "2",
        "query": "5",
        "texts": "B→A",
    }
    opened.page.goto("about:blank")
    opened.page.goto(address)
    opened.wait_for(1, 2)
    assert opened.see("[page.query, page.texts, scene.keys.join('')]") == [5, "B→A", "0123"]


@pytest.mark.sweep
def test_back_and_forward_go_through_the_heads(open_page, sentence):
    opened = open_page(sentence)
    opened.head(0, 1).click()
    opened.wait_for(0, 1)
    opened.head(1, 2).click()
    opened.wait_for(1, 2)
    opened.page.go_back()
    opened.wait_for(0, 1)
    assert opened.text("#heading") == "Layer 0, head 1"
    opened.page.go_back()
    opened.wait_for(0, 0)
    opened.page.go_forward()
    opened.wait_for(0, 1)


@pytest.mark.sweep
@pytest.mark.few(2)
@pytest.mark.parametrize(
    "fragment",
    ["layer=9&head=9&query=99&view=nothing&texts=C→D", "%%%", "layer=-1&query=1e3", "view=picture"],
)
def test_a_link_to_what_is_not_there_leads_to_what_is(open_page, sentence, fragment):
    opened = open_page(sentence, fragment=fragment)
    opened.wait_for(0, 0)
    assert opened.text("#detail-heading") == "Strongest weights"


@pytest.mark.sweep
def test_the_query_that_was_asked_for_is_chosen_at_first_and_can_be_let_go(open_page, sentence):
    opened = open_page(sentence, query=2)
    opened.wait_for(0, 0)
    chosen = opened.text("#detail-heading")
    assert chosen.startswith("Query ")
    assert sentence.query_tokens[2].text.strip() in chosen
    opened.page.keyboard.press("Escape")
    opened.page.locator("#let-go").click() if opened.page.locator("#let-go").is_visible() else None
    opened.page.wait_for_function(
        "() => document.querySelector('#detail-heading').textContent === 'Strongest weights'"
    )


@pytest.mark.sweep
def test_weights_that_could_not_be_unpacked_are_tried_again(open_page, sentence):
    opened = open_page(sentence)
    opened.see(
        "(() => { const all = by('weights-0-1'); window.whole = all.textContent; all.textContent = 'AAAA'; })()"
    )
    opened.head(0, 1).click()
    opened.until("!by('failure').hidden")
    assert "cannot decompress the weights" in opened.text("#failure")
    opened.head(0, 0).click()
    opened.wait_for(0, 0)
    assert not opened.page.locator("#failure").is_visible()
    opened.see("by('weights-0-1').textContent = whole")
    opened.head(0, 1).click()
    opened.wait_for(0, 1)
    assert not opened.page.locator("#failure").is_visible()
    assert len(opened.troubles) == 1
    opened.troubles.clear()


# ---- what tokens may be


@pytest.mark.few(1)
@pytest.mark.parametrize("view", ["map", "lines"])
def test_tokens_that_look_like_markup_are_text(open_page, make_stack, view):
    evil = [
        "</script><img src=x onerror=alert(1)>",
        "<!--<script>",
        "&amp;\"'",
        "שלום עולם",
        "__proto__",
    ]
    checks = [Check("<img src=x onerror=alert(2)>", None, None, None, "<b>")]
    stack = make_stack(evil, notices=["<script>alert(3)</script>"], checks=checks)
    opened = open_page(stack, title="<title>&", fragment=f"view={view}&query=0")
    assert opened.text("#detail-heading").startswith(f"Query {evil[0]}")
    listed = {token.rsplit(" ", 1)[0] for token, _ in opened.strongest()}
    assert listed == set(evil)
    assert opened.page.locator("img").count() == 0
    assert opened.text("h1") == "<title>&"
    assert opened.page.title() == "<title>&"
    assert opened.text(".notices:visible") == "<script>alert(3)</script>"
    if view == "map":
        assert opened.hover(0, 3)[:2] == (evil[0], evil[3])


def test_what_a_script_of_somebody_elses_would_do_is_forbidden(open_page, sentence, tmp_path):
    opened = open_page(sentence)
    opened.see(
        "window.violations = [], addEventListener('securitypolicyviolation', (e) => violations.push(e.effectiveDirective))"
    )
    opened.see(
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.ran = 1'}))"
    )
    opened.see("Object.assign(new Image(), {src: 'https://example.org/x.png'})")
    opened.see("fetch('https://example.org/').catch(() => 0)")
    opened.until("violations.length >= 3")
    assert sorted(set(opened.see("violations"))) == ["connect-src", "img-src", "script-src-elem"]
    assert opened.see("window.ran") is None
    assert len(opened.troubles) >= 3, "the browser's console tells of each"
    assert not [
        each
        for each in opened.troubles
        if "Content Security Policy" not in each and "example.org" not in each
    ]
    opened.troubles.clear()


# ---- schemes, sizes, keys


@pytest.mark.sweep
def test_light_and_dark_follow_the_reader_and_the_button(open_page, sentence, tmp_path):
    seen = {}
    for dark in (False, True):
        opened = open_page(sentence, dark=dark)
        ground = opened.see("getComputedStyle(document.body.parentElement).backgroundColor")
        seen[dark] = (
            ground,
            opened.colour(*opened.cell(6, 0)),
            opened.page.screenshot(path=tmp_path / f"{dark}.png"),
        )
    assert all(light != dark for light, dark in zip(seen[False], seen[True], strict=True))
    opened.page.click("#theme")
    assert opened.see("getComputedStyle(document.body.parentElement).backgroundColor") == seen[False][0]
    assert opened.colour(*opened.cell(6, 0)) == seen[False][1]


@pytest.mark.few(1)
@pytest.mark.parametrize("width", [400, 800, 2560])
@pytest.mark.parametrize("view", ["map", "lines", "picture"])
def test_the_page_is_as_wide_as_the_window(open_page, pictured, make_stack, width, view, tmp_path):
    long = make_stack(
        [f"averyveryverylongtoken{i}" for i in range(70)], heads=16, stack="text", notices=["n" * 300]
    )
    pictured.stack = "vision"
    opened = open_page(
        long,
        pictured,
        width=width,
        fragment=f"stack={'vision' if view == 'picture' else 'text'}&view={view}",
    )
    opened.page.screenshot(path=tmp_path / f"{width}-{view}.png", full_page=True)
    assert opened.see("document.documentElement.scrollWidth") <= width


@pytest.mark.sweep
def test_a_sharp_screen_gets_sharp_pixels(open_page, sentence):
    opened = open_page(sentence, density=2)
    assert opened.see("canvas.width / canvas.getBoundingClientRect().width") == pytest.approx(
        2, abs=0.01
    )
    assert opened.see("(looks.map.cell * 2) % 1") == 0, "a cell is made of whole pixels"
    assert true_to(opened.hover(5, 2)[2], of(sentence, 0, 0)[5, 2])


@pytest.mark.sweep
def test_a_large_map_can_be_enlarged_and_scrolled(open_page, make_stack):
    opened = open_page(stack := make_stack([str(i) for i in range(300)]))
    before = opened.see("looks.map.cell")
    for _ in range(6):
        opened.page.click("#larger")
    assert opened.see("looks.map.cell") > 4 * before
    opened.see("by('plot').scrollTo(1000, 500)")
    opened.page.wait_for_timeout(50)
    query, key = opened.see(
        "[Math.ceil(by('plot').scrollTop / looks.map.cell) + 9, Math.ceil(by('plot').scrollLeft / looks.map.cell) + 5]"
    )
    shown = opened.hover(query, key)
    assert shown[:2] == (str(query), str(key))
    assert true_to(shown[2], of(stack, 0, 0)[query, key])
    opened.page.click("#fit")
    assert opened.see("looks.map.cell") == before


@pytest.mark.sweep
def test_everything_can_be_done_with_the_keyboard(open_page, sentence):
    opened = open_page(sentence)
    press = opened.page.keyboard.press
    opened.page.focus("#plot")
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowDown", "ArrowDown"):
        press(key)
    assert (opened.text("#tip-query"), opened.text("#tip-key")) == ("sat", "the")
    assert true_to(opened.text("#tip-weight"), of(sentence, 0, 0)[3, 1])
    opened.until("by('said').textContent.startsWith('sat to the: 0.')")
    press("Enter")
    opened.until("page.query === 3 && scene.chosen.query === 3")
    press("Escape")
    opened.until("page.query === null")
    press("l")
    opened.wait_for(0, 0, view="lines")
    press("]")
    opened.wait_for(0, 1, view="lines")
    press("m")
    opened.wait_for(0, 1)
    press("/")
    assert opened.see("document.activeElement.id") == "search"
    press("Escape")
    press("?")
    assert opened.page.locator("#help").is_visible()
    press("Escape")
    assert not opened.page.locator("#help").is_visible()


@pytest.mark.sweep
def test_a_query_that_is_chosen_in_the_list_keeps_the_focus_there(open_page, sentence):
    opened = open_page(sentence)
    focused = "(document.activeElement.closest('#strongest tr') ?? document.body).dataset"
    button = opened.page.locator("#strongest tbody tr").nth(3).locator("button").first
    button.focus()
    weight = opened.see(f"({{...{focused}}})")
    opened.page.keyboard.press("Enter")
    opened.until("scene.chosen.query !== null")
    assert opened.see(f"({{...{focused}}})") == weight, "the same weight, in the list of its query"
    opened.page.focus("#let-go")
    opened.page.keyboard.press("Enter")
    opened.until("scene.chosen.query === null")
    assert opened.see("document.activeElement.closest('tr').sectionRowIndex") == 0


@pytest.mark.sweep
def test_the_plot_takes_the_focus_of_a_list_that_is_empty(open_page, make_stack):
    nothing = np.full((3, 3), np.nan)
    opened = open_page(make_stack(["a", "b", "c"], given={(0, 0): nothing}), query=1)
    opened.page.focus("#let-go")
    opened.page.keyboard.press("Enter")
    opened.until("scene.chosen.query === null")
    assert opened.see("document.activeElement.id") == "plot"


@pytest.mark.sweep
def test_the_focus_goes_along_with_the_head(open_page, sentence):
    opened = open_page(sentence)
    focused = "[document.activeElement.getAttribute('aria-label'), document.activeElement.tabIndex]"
    opened.head(0, 0).focus()
    for key, layer, head in (("]", 0, 1), ("]", 0, 2), ("[", 0, 1)):
        opened.page.keyboard.press(key)
        opened.wait_for(layer, head)
        assert opened.see(focused) == [f"Layer {layer}, head {head}", 0]
    opened.page.focus("#plot")
    opened.page.keyboard.press("]")
    opened.wait_for(0, 2)
    assert opened.see("document.activeElement.id") == "plot"


@pytest.mark.sweep
@pytest.mark.few(2)
@pytest.mark.parametrize("control", ["#theme", "#special", 'input[value="root"]', "#strongest button"])
def test_characters_do_nothing_on_other_controls(open_page, sentence, control):
    opened = open_page(sentence)
    opened.page.locator(control).first.focus()
    before = opened.see("JSON.stringify([page, location.hash])")
    for key in "mlpt[]0+-/?":
        opened.page.keyboard.press(key)
    assert opened.see("JSON.stringify([page, location.hash])") == before
    assert not opened.page.locator("#help").is_visible()


@pytest.mark.sweep
def test_what_a_pointer_is_moved_over_is_not_said_and_what_it_chooses_is(open_page, sentence):
    opened = open_page(sentence)
    opened.hover(2, 3)
    opened.page.wait_for_timeout(300)
    assert opened.text("#said") == ""
    opened.click(2, 3)
    opened.until("by('said').textContent === 'Query cat 2'")


@pytest.mark.few(1)
@pytest.mark.parametrize("view", ["map", "lines", "picture"])
def test_another_head_is_said_by_its_name(open_page, pictured, view):
    opened = open_page(pictured, fragment=f"view={view}&query=2")
    opened.head(0, 0).focus()
    opened.page.keyboard.press("]")
    opened.wait_for(0, 1, view)
    opened.page.wait_for_timeout(300)
    assert opened.text("#said") == "Layer 0, head 1"


@pytest.mark.sweep
def test_large_steps_lead_to_the_ends_of_the_map(open_page, make_stack):
    opened = open_page(make_stack([str(i) for i in range(35)]))
    opened.page.focus("#plot")
    for key, query, at in (
        ("ArrowDown", 0, 0),
        ("PageDown", 10, 0),
        ("End", 10, 34),
        ("Control+End", 34, 34),
        ("PageUp", 24, 34),
        ("Home", 24, 0),
        ("Control+Home", 0, 0),
        ("PageUp", 0, 0),
    ):
        opened.page.keyboard.press(key)
        assert opened.see("scene.cursor") == {"query": query, "key": at}, key


@pytest.mark.sweep
def test_large_steps_in_the_lines_and_in_the_picture(open_page, make_stack, pictured):
    opened = open_page(make_stack([str(i) for i in range(35)]), fragment="view=lines")
    opened.page.focus("#plot")
    for key, query, at in (
        ("End", 34, None),
        ("PageUp", 24, None),
        ("Home", 0, None),
        ("ArrowRight", None, 0),
        ("PageDown", None, 10),
        ("End", None, 34),
    ):
        opened.page.keyboard.press(key)
        assert opened.see("scene.cursor") == {"query": query, "key": at}, key
    opened = open_page(pictured, fragment="view=picture&query=2")
    opened.page.focus("#plot")
    for key, at in (
        ("End", 3),
        ("PageDown", 6),
        ("Home", 4),
        ("ArrowDown", 4),
        ("PageUp", 1),
        ("ArrowLeft", 0),
        ("End", 6),
    ):
        opened.page.keyboard.press(key)
        assert opened.see("scene.cursor.key") == at, key


@pytest.mark.sweep
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_can_be_seen_in_the_readers_own_colours(open_page, make_stack, dark):
    def luminance(colour):
        sRGB = np.array(colour[:3]) / 255
        linear = np.where(sRGB <= 0.04045, sRGB / 12.92, ((sRGB + 0.055) / 1.055) ** 2.4)
        return linear @ [0.2126, 0.7152, 0.0722]

    def contrast(one, other):
        low, high = sorted((luminance(one), luminance(other)))
        return (high + 0.05) / (low + 0.05)

    weights = np.array([[0.1, 0.9], [0.5, 0.5]])
    opened = open_page(make_stack(["aaaaaa", "bbbbbb"], given={(0, 0): weights}), dark=dark, forced=True)
    assert opened.see("matchMedia('(forced-colors: active)').matches")
    assert contrast(opened.colour(*opened.cell(0, 0)), opened.colour(*opened.cell(0, 1))) > 3
    box = opened.page.locator("#canvas").bounding_box()
    left, (_, y) = opened.see("looks.map.left"), opened.cell(1, 0)
    ground = opened.colour(box["x"] + 2, box["y"] + 2)
    label = [opened.colour(box["x"] + left - 12 - i, y + j) for i in range(25) for j in range(-5, 6)]
    assert max(contrast(ground, colour) for colour in label) > 4.5, "labels are legible"
    ground = "getComputedStyle(document.querySelector('[name=scale]:{} + span')).backgroundColor"
    chosen, other = (opened.see(ground.format(state)) for state in ("checked", "not(:checked)"))
    assert chosen != other, "what is chosen looks like what is not"


@pytest.mark.sweep
def test_tab_reaches_every_control(open_page, pair):
    opened = open_page(pair)
    reached = set()
    for _ in range(40):
        opened.page.keyboard.press("Tab")
        reached.add(
            opened.see(
                "document.activeElement.id || document.activeElement.name || document.activeElement.getAttribute('role')"
            )
        )
    assert reached >= {
        "theme",
        "help-button",
        "gridcell",
        "view",
        "texts",
        "special",
        "search",
        "plot",
        "scale",
        "top",
        "smaller",
        "fit",
        "larger",
    }


@pytest.mark.sweep
def test_arrows_in_the_lines_and_in_the_picture_choose_what_enter_takes(open_page, pictured):
    opened = open_page(pictured, fragment="view=picture&query=1")
    opened.page.focus("#plot")
    for key in ("ArrowRight", "ArrowDown", "Enter"):
        opened.page.keyboard.press(key)
    opened.until("page.query === 5")
    opened.page.keyboard.press("l")
    opened.wait_for(0, 0, view="lines")
    for key in ("ArrowDown", "Enter"):
        opened.page.keyboard.press(key)
    opened.until("page.query === 6")


@pytest.mark.sweep
def test_names_and_roles_are_there_for_who_cannot_see(open_page, sentence):
    opened = open_page(sentence)
    page = opened.page
    assert page.get_by_role("grid", name="All heads").count() == 1
    assert page.get_by_role("gridcell", name="Layer 1, head 2", exact=True).count() == 1
    assert page.get_by_role("application", name="Layer 0, head 0").count() == 1
    assert page.get_by_role("table", name="Strongest weights").count() == 1
    assert page.get_by_role("group", name="View").get_by_role("radio").count() == 3 - 1
    assert opened.page.locator("#said").get_attribute("aria-live") == "polite"


# ---- a real model


def real_maps(folder, text):
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    encoded = tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        layers = model(**encoded, output_attentions=True).attentions
    ids = encoded.input_ids[0].tolist()
    tokens = [Token(tokenizer.decode([i]), special=i in tokenizer.all_special_ids) for i in ids]
    maps = [
        AttentionMap(layer, head, head, layers[layer][0, head].numpy())
        for layer in range(6)
        for head in range(12)
    ]
    return AttentionMaps("minilm", "self", 6, 12, 12, tokens, tokens, maps)


@pytest.mark.sweep
def test_every_weight_of_the_bundled_model_comes_through(open_page, minilm):
    real = real_maps(minilm, "The cat sat on the mat because it was tired.")
    opened = open_page(real)
    unpacked = opened.see("""Promise.all(data.stacks[0].heads.map((each) => weightsOf(data.stacks[0], each)))
        .then((all) => all.map((each) => [...each.values]))""")
    for values, each in zip(unpacked, real.maps, strict=True):
        assert np.abs(np.reshape(values, (13, 13)) - each.attention).max() < 2e-5
    opened.head(2, 5).click()
    opened.wait_for(2, 5)
    shown = opened.hover(3, 6)
    assert shown[:2] == ("sat", "mat")
    assert true_to(shown[2], of(real, 2, 5)[3, 6])


# Without JavaScript.


@pytest.mark.sweep
def test_without_javascript_one_head_is_a_table(chromium, make_stack, tmp_path):
    drawn = np.array([[1, 0], [0.25, 0.75]], "float32")
    path = tmp_path / "page.html"
    stack = make_stack([Token("[CLS]"), Token(" <b>")], given={(0, 0): drawn})
    path.write_text(page_html([stack], layer=0, head=0, title="t"), encoding="utf-8")
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(path.as_uri())
    texts = [row.locator("th, td").all_inner_texts() for row in page.locator("#still tr").all()]
    context.close()
    assert texts == [["", "[CLS]", "<b>"], ["[CLS]", "100", "0"], ["<b>", "25", "75"]]


@pytest.mark.sweep
def test_with_javascript_that_table_is_gone(open_page, make_stack):
    assert open_page(make_stack(SENTENCE)).page.locator("#still").count() == 0


@pytest.mark.sweep
def test_a_single_head_does_not_fill_a_narrow_page(open_page, make_stack):
    page = open_page(make_stack(SENTENCE, layers=1, heads=1), width=700).page
    assert page.locator("#heads [role=gridcell]").bounding_box()["width"] < 150
