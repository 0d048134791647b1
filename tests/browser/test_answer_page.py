"""The page of an answer in a browser: words, patches, layers, sinks; with the mouse and with keys."""

import json
import re
from base64 import b64decode
from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

import attnscope.model.answers.page
from attnscope.base.errors import SizeError
from attnscope.model.answers.heat import density, segment_shares, shares
from attnscope.model.answers.page import answer_page
from tests.model.answers.audio.test_spectrum import recorded
from tests.model.answers.examples import (
    chat,
    long,
    one_picture,
    rows_of_segments,
    two_pictures,
    with_layers,
)


@pytest.fixture
def opened(chromium, tmp_path):
    """Return a function that writes the page of an answer and opens it; nothing may go wrong in it."""
    troubles, contexts = [], []

    def go(answer, *, width=1280, dark=False, address="", **options):
        path = tmp_path / "answer.html"
        path.write_text(answer_page(answer, **options), encoding="utf-8")
        context = chromium.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if dark else "light",
            offline=True,
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on(  # it is these tests that read the canvas so often
            "console",
            lambda message: "willReadFrequently" in message.text or troubles.append(message.text),
        )
        page.on("pageerror", lambda error: troubles.append(str(error)))
        context.on(
            "request",
            lambda request: request.url.startswith(("file:", "data:")) or troubles.append(request.url),
        )
        page.goto(path.as_uri() + address)
        page.wait_for_selector("body[data-shown]")
        return page

    yield go
    for context in contexts:
        context.close()
    assert troubles == []


def shown(page, row, key="none", layer="pooled"):
    """Wait until the page shows a row, a key and a layer."""
    page.wait_for_selector(f'body[data-shown="{row} {key} {layer}"]')


def heat_of(page, which, height, width):
    cells = page.evaluate(
        f"[...densityOf(data.pictures[{which}], shown.values, {height}, {width})]",
    )
    return np.array(cells).reshape(height, width)


def click_patch(page, which, picture, patch):
    box = page.locator(".picture").nth(which).bounding_box()
    left, top, right, bottom = patch.box
    x = box["x"] + (left + right) / 2 / picture.image.width * box["width"]
    y = box["y"] + (top + bottom) / 2 / picture.image.height * box["height"]
    page.mouse.click(x, y)


def shade(page, selector):
    return float(page.locator(selector).evaluate("each => each.style.getPropertyValue('--w')"))


@pytest.mark.sweep
def test_a_word_shows_where_it_looks(opened):
    answer = one_picture(12)
    picture = answer.pictures[0]
    page = opened(answer)
    assert page.locator("#look-heading").inner_text() == "Where it looks: all words, on average"
    np.testing.assert_allclose(
        heat_of(page, 0, 30, 40),
        density(picture, answer.weights.mean(0), 30, 40, left_out=set(answer.sinks)),
        atol=2e-4,
    )
    page.locator("#word-1").click()
    shown(page, 1)
    assert page.locator("#look-heading").inner_text() == "Where it looks: sun 154"
    np.testing.assert_allclose(
        heat_of(page, 0, 30, 40),
        density(picture, answer.weights[1], 30, 40, left_out=set(answer.sinks)),
        atol=2e-3,
    )
    assert page.locator("#word-1").get_attribute("aria-selected") == "true"
    page.locator("#word-1").click()
    shown(page, "all")


@pytest.mark.sweep
def test_the_picture_is_painted_where_the_weight_is(opened):
    """The canvas over the picture is opaque over the sun, and transparent over a dark corner."""
    page = opened(one_picture(12, query=1))
    alpha = """([x, y]) => { const c = document.querySelector(".picture canvas");
        return c.getContext("2d").getImageData(x * c.width, y * c.height, 1, 1).data[3]; }"""
    sun, corner = (page.evaluate(f"({alpha})([{x}, {y}])") for x, y in ((0.72, 0.31), (0.95, 0.95)))
    assert sun > 120
    assert corner < 20
    page.locator("#opacity").fill("0")
    assert page.evaluate(f"({alpha})([0.72, 0.31])") == 0


@pytest.mark.sweep
def test_parts_of_two_pictures_are_chosen(opened):
    answer = two_pictures(query=2)
    picture = answer.pictures[0]
    page = opened(answer)
    for part in ("whole", "tiles", "all"):
        page.locator(f'#parts input[value="{part}"]').check(force=True)
        kept = [p for p in picture.patches if part == "all" or (p.part == "whole") == (part == "whole")]
        expected = density(replace(picture, patches=tuple(kept)), answer.weights[2], 12, 24)
        np.testing.assert_allclose(heat_of(page, 0, 12, 24), expected, atol=2e-3)
    assert re.match(r"picture 2 6\.3 % of the weight", page.locator("figcaption").nth(1).inner_text())


@pytest.mark.sweep
def test_a_patch_shows_which_words_read_it(opened):
    answer = one_picture(6)
    picture = answer.pictures[0]
    patch = picture.patches[int(answer.weights[1, 5:41].argmax())]
    page = opened(answer)
    click_patch(page, 0, picture, patch)
    shown(page, "all", patch.position)
    column = answer.weights[:, patch.position]
    assert page.locator("#detail-heading").inner_text().startswith("Which words read x 128–160, y 24–48")
    first = page.locator("#strongest tbody tr").first
    assert first.locator("button").inner_text() == "sun 46"
    assert float(first.locator("td").nth(1).inner_text()) == pytest.approx(column[1], rel=1e-2)
    for row in range(12):
        assert shade(page, f"#word-{row}") == pytest.approx(50 * column[row] / column.max(), abs=0.2)
    first.locator("button").click()
    shown(page, 1, patch.position)
    page.locator("#let-go").click()
    shown(page, 1)
    assert shade(page, "#word-1") == 0


@pytest.mark.sweep
def test_the_smallest_patch_under_the_pointer_is_chosen(opened):
    answer = two_pictures()
    picture = answer.pictures[0]
    page = opened(answer)
    click_patch(page, 0, picture, picture.patches[40])  # of a tile; the whole's patch is twice as wide
    shown(page, "all", picture.patches[40].position)


@pytest.mark.sweep
def test_words_of_the_prompt_are_shaded_and_chosen(opened):
    answer = chat()
    page = opened(answer)
    page.locator("#word-3").click()
    shown(page, 3)
    row = answer.weights[3].copy()
    row[0] = 0  # the sink
    for key in (1, 22, 24, 50):
        assert shade(page, f"#key-{key}") == pytest.approx(50 * row[key] / row.max(), abs=0.3)
    page.locator("#key-24").click()
    shown(page, 3, 24)
    best = int(answer.weights[:, 24].argmax())
    assert shade(page, f"#word-{best}") == 50
    texts = page.locator("#segments summary .share").all_inner_texts()
    assert [float(text.strip("<% ")) for text in texts] == pytest.approx(
        (100 * shares(answer)[3]).tolist(), abs=0.06
    )


@pytest.mark.sweep
def test_sinks_are_left_out_until_they_are_asked_for(opened):
    answer = one_picture(6, query=0)
    picture = answer.pictures[0]
    page = opened(answer)
    assert "sink" in page.locator("#key-0").get_attribute("class")
    without = heat_of(page, 0, 6, 6)
    page.locator("#sinks").check()
    page.wait_for_selector("#key-0:not(.sink)")
    np.testing.assert_allclose(
        heat_of(page, 0, 6, 6), density(picture, answer.weights[0], 6, 6), atol=2e-3
    )
    sinks = [sink - 5 for sink in answer.sinks[1:]]
    assert without.reshape(-1)[sinks].max() == 0
    page.locator("#words").focus()
    page.keyboard.press("s")
    page.wait_for_selector("#key-0.sink")


@pytest.mark.sweep
def test_a_layer_is_chosen(opened):
    answer = with_layers(one_picture(6))
    page = opened(answer)
    page.locator("#layer").select_option(label="layer 2")
    shown(page, "all", layer=2)
    np.testing.assert_allclose(
        page.evaluate("[...shown.values]"), answer.of_layers[2].mean(0), atol=1e-4
    )
    assert page.url.endswith("#layer=2")


@pytest.mark.sweep
def test_keys_lead_from_word_to_word_and_from_patch_to_patch(opened):
    answer = one_picture(6)
    page = opened(answer)
    page.locator("#words").focus()
    for key, row in (("ArrowRight", 0), ("ArrowRight", 1), ("End", 11), ("ArrowLeft", 10), ("[", 9)):
        page.keyboard.press(key)
        shown(page, row)
    assert page.locator("#words").get_attribute("aria-activedescendant") == "word-9"
    page.locator(".picture").focus()
    page.keyboard.press("ArrowRight")  # the strongest patch first
    page.wait_for_selector("#let-go:not([hidden])")
    page.evaluate("go({ key: 5 + 7 })")  # the second row, the second column
    for key, patch in (("ArrowRight", 8), ("ArrowDown", 14), ("ArrowLeft", 13), ("ArrowUp", 7)):
        page.keyboard.press(key)
        shown(page, 9, 5 + patch)
    for _ in range(8):
        page.keyboard.press("ArrowLeft")
    shown(page, 9, 5 + 6)
    page.keyboard.press("Escape")
    shown(page, 9)
    page.keyboard.press("Escape")
    shown(page, "all")
    page.keyboard.press("?")
    assert page.locator("#help").is_visible()


@pytest.mark.sweep
def test_what_is_chosen_is_announced(opened):
    page = opened(one_picture(6))
    page.locator("#words").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_timeout(300)
    assert re.fullmatch(r"The 45: picture 1 [\d.]+ %", page.locator("#said").text_content())


@pytest.mark.sweep
def test_the_address_opens_the_same_view(opened):
    page = opened(with_layers(chat()), address="#word=54&key=24&layer=1&sinks=on")
    shown(page, 3, 24, 1)
    assert page.locator("#sinks").is_checked()
    page.locator("#all").click()
    shown(page, "all", 24, 1)
    page.go_back()
    shown(page, 3, 24, 1)


@pytest.mark.sweep
def test_bars_and_segments_are_the_shares(opened):
    answer = chat()
    page = opened(answer)
    widths = page.evaluate(
        """[...document.querySelectorAll("#bars .stack")].map((stack) =>
        [...stack.children].map((part) => part.getBoundingClientRect().width / stack.clientWidth))"""
    )
    for own, expected in zip(widths, shares(answer), strict=True):
        assert own == pytest.approx(expected[expected > 0].tolist(), abs=0.003)
    page.locator("#bars button").nth(2).click()
    shown(page, 2)
    cells = page.locator("#shares tbody tr").nth(3).locator("td").all_inner_texts()
    assert cells[0] == "18"
    assert float(cells[2].split()[0]) == pytest.approx(100 * shares(answer)[2, 3], abs=0.06)
    assert "document 2 76.8 %" in page.locator("#bars button").nth(2).get_attribute("aria-label")


@pytest.mark.sweep
def test_bars_of_segments_are_the_shares_of_segments(opened):
    answer = rows_of_segments()
    page = opened(answer, width=390)
    bars = page.locator("#segment-bars li")
    assert bars.locator(".label").all_inner_texts() == [segment.name for segment in answer.segments]
    widths = page.evaluate(
        """[...document.querySelectorAll("#segment-bars .stack")].map((stack) =>
        [...stack.children].map((part) => part.getBoundingClientRect().width / stack.clientWidth))"""
    )
    share = segment_shares(answer)
    for own, expected in zip(widths, share, strict=True):
        assert own == pytest.approx(expected[expected > 0].tolist(), abs=0.01)
    said = bars.nth(2).locator(".unseen").text_content()
    assert f"system {100 * share[2, 1]:.1f} %" in said
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert opened(chat()).locator("#between").count() == 0


@pytest.mark.few(1)
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_fits_and_is_legible(opened, width, dark):
    page = opened(with_layers(two_pictures(query=2)), width=width, dark=dark)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for box in page.locator(".picture").all():
        image, canvas = (
            box.locator(name).evaluate("e => e.getBoundingClientRect().height")
            for name in ("img", "canvas")
        )
        assert image == pytest.approx(canvas, abs=3)
        assert box.bounding_box()["width"] <= width - 20
    ink = page.evaluate("getComputedStyle(document.querySelector('#look h2')).color")
    assert max(map(int, re.findall(r"\d+", ink)[:3])) > 200 if dark else ink == "rgb(22, 24, 27)"
    page.locator("#theme").click()
    assert page.evaluate("getComputedStyle(document.querySelector('#look h2')).color") != ink


@pytest.mark.sweep
def test_a_long_prompt_opens_some_segments(opened):
    answer = long(4000, 20)
    page = opened(answer)
    closed = page.locator("#segments details:not([open])")
    assert closed.count() > 10
    hidden = closed.first.evaluate("each => each.querySelectorAll('.word').length")
    assert hidden == 0
    index = closed.first.evaluate("each => [...each.parentElement.children].indexOf(each)")
    first = answer.segments[index].spans[0][0]
    closed.first.locator("summary").click()
    page.wait_for_selector(f'#segments details[open] [data-key="{first}"]')


def test_texts_of_models_and_prompts_cannot_become_markup(opened):
    bad = '</script><img src=x onerror="alert(1)">'
    answer = two_pictures()
    answer = replace(
        answer,
        model=bad,
        notices=[bad],
        tokens=[replace(token, text=bad) for token in answer.tokens],
        written=[replace(token, text=bad) for token in answer.written],
        segments=[replace(each, name=bad + each.name) for each in answer.segments],
        pictures=[replace(each, name=bad + each.name) for each in answer.pictures],
    )
    page = opened(answer)
    assert page.locator("img").count() == 2
    assert page.locator("#word-0").inner_text() == bad


@pytest.mark.sweep
def test_layers_that_are_too_many_are_left_out_and_named(opened):
    answer = with_layers(one_picture(6))
    size = answer.weights.size
    page = opened(answer, most_of_layers=2 * size)
    assert page.locator("#layer option").all_inner_texts() == ["all, pooled", "layer 0", "layer 2"]
    notice = "Of single layers, this page has 2 of 3 layers: 0, 2."
    assert notice in page.locator("footer").inner_text()
    page = opened(answer, most_of_layers=size)
    assert page.locator("#layer").is_hidden()
    assert "not in this page, to keep it small" in page.locator("footer").inner_text()


def test_large_pictures_are_made_smaller(monkeypatch):
    answer = one_picture(6)
    picture = replace(answer.pictures[0], image=Image.new("RGB", (1500, 1000)))
    monkeypatch.setattr(attnscope.model.answers.page, "ALL_PIXELS", 1024 * 768)
    for n, side in ((1, 1024), (4, 543)):  # four pictures share as many pixels
        data = page_data(answer_page(replace(answer, pictures=[picture] * n)))
        content = b64decode(data["pictures"][0]["url"].partition(",")[2])
        assert max(Image.open(BytesIO(content)).size) == pytest.approx(side, abs=1)
        assert (data["pictures"][0]["width"], data["pictures"][0]["height"]) == (1500, 1000)


def page_data(html):
    """Return the data that the page's script reads."""
    return json.loads(re.search(r'id="data">(.*)</script>', html)[1])


def test_an_answer_of_too_many_keys_has_no_page():
    answer = chat()
    wide = np.zeros((10, 70_000), dtype=np.float32)
    with pytest.raises(SizeError, match="at most 65,536 keys"):
        answer_page(replace(answer, weights=wide))
    assert "at most 65,536 keys" in replace(answer, weights=wide)._repr_html_()


def test_a_notebook_shows_the_page_in_a_frame():
    html = one_picture(6)._repr_html_()
    assert html.count("<iframe") == 1
    assert 'sandbox="allow-scripts"' in html
    assert len(html) < 400_000


@pytest.mark.sweep
def test_a_recording_is_a_strip_of_seconds_to_scrub(opened):
    answer = recorded()
    page = opened(answer)
    shown(page, "all")
    strip = page.locator(".picture").bounding_box()
    seconds = [
        float(each.removesuffix(" s")) for each in page.locator(".seconds span").all_inner_texts()
    ]
    places = [each.bounding_box()["x"] for each in page.locator(".seconds span").all()]
    expected = [strip["x"] + strip["width"] * second / 1.4 for second in seconds]
    assert seconds[1] > 0
    np.testing.assert_allclose(places, expected, atol=3)
    at = [(strip["x"] + strip["width"] * second / 1.4, strip["y"] + 9) for second in (0.4, 0.66)]
    page.mouse.move(*at[0])
    page.mouse.down()
    shown(page, "all", 20)
    page.mouse.move(*at[1])
    shown(page, "all", 33)
    page.mouse.up()
    assert page.locator("#detail-heading").inner_text() == "Which words read 0.66 s"
    first = page.locator("#strongest tbody tr").first.inner_text()
    assert first.startswith(f"{'abc'[answer.weights[:, 33].argmax()]} ")
    page.keyboard.press("Escape")
    shown(page, "all")
    assert page.locator("#bars canvas").count() == 3
    assert page.locator("#segments .word").count() == 0  # no label for each of the frames
    assert page.locator("#ramp").bounding_box()["width"] >= 60
