"""What notebooks show, in a browser: rows that open, themes, and the page in its frame."""

import pytest

from tests.document.every_result import every_result, maps

pytestmark = pytest.mark.sweep  # `test_page` stands for the browser by default

DARK, LIGHT = "rgb(22, 25, 29)", "rgb(252, 252, 250)"


@pytest.fixture
def shown(chromium, tmp_path):
    """Return a function that opens the HTML of results in a page like a notebook's."""
    troubles, contexts = [], []

    def opened(*results, body="", dark=False, width=900):
        html = "\n".join(result._repr_html_() for result in results)
        path = tmp_path / "notebook.html"
        path.write_text(f"<!doctype html><meta charset=utf-8><body {body}>{html}", encoding="utf-8")
        context = chromium.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if dark else "light",
            offline=True,
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        context.on(
            "request",
            lambda request: (
                request.url.startswith(("file:", "data:", "about:")) or troubles.append(request.url)
            ),
        )
        page.goto(path.as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert troubles == []


def style(locator, name):
    return locator.evaluate(f"element => getComputedStyle(element).{name}")


def test_a_row_opens_and_closes(shown):
    page = shown(every_result()["a trace"])
    expression = page.get_by_text("Q @ K.mT * scale", exact=True).last
    assert not expression.is_visible()
    page.locator("summary", has_text="scores").first.click()
    assert expression.is_visible()
    assert page.get_by_text("contiguous").nth(3).is_visible()
    page.keyboard.press("Enter")
    assert not expression.is_visible()


def test_columns_are_aligned_in_all_rows(shown):
    page = shown(every_result()["a trace"])
    places = "elements => elements.map(e => [...e.children].map(c => Math.round(c.getBoundingClientRect().x)))"
    rows = page.locator(".row").evaluate_all(places)
    assert len(rows) == 7
    assert all(row == rows[0] for row in rows)


@pytest.mark.few(6)
@pytest.mark.parametrize("name", [each for each in every_result() if "map" not in each])
def test_nothing_is_wider_than_a_narrow_notebook(shown, name):
    page = shown(every_result()[name], width=420)
    assert page.evaluate("document.documentElement.scrollWidth") <= 420


@pytest.mark.parametrize(
    ("body", "dark", "ground"),
    [
        ("", False, LIGHT),
        ("", True, DARK),
        ('data-jp-theme-light="true"', True, LIGHT),
        ('data-jp-theme-light="false"', False, DARK),
        ('class="vscode-dark"', False, DARK),
        ('class="vscode-light"', True, LIGHT),
    ],
)
def test_the_theme_is_that_of_the_notebook(shown, body, dark, ground):
    page = shown(every_result()["a trace"], maps(), body=body, dark=dark)
    assert style(page.locator(".attnscope").first, "backgroundColor") == ground
    frame = page.frame_locator("iframe")
    frame.locator("#plot[data-shown]").wait_for()
    assert style(frame.locator("#look"), "backgroundColor") == ground


def test_styles_apply_to_nothing_else(shown):
    page = shown(every_result()["a trace"])
    plain = "() => { const p = document.createElement('p'); p.className = 'bold row'; document.body.append(p); return getComputedStyle(p).fontWeight + getComputedStyle(p).display; }"
    assert page.evaluate(plain) == "400block"


def test_a_head_is_chosen_in_the_frame(shown):
    page = shown(maps())
    frame = page.frame_locator("iframe")
    frame.locator("#heads [role=gridcell]").nth(2).click()
    assert frame.locator("#heading").inner_text() == "Layer 0, head 2"
    frame.locator("#plot[data-shown='self 0 2 map']").wait_for()
    assert page.evaluate("history.length") == 2  # the frame adds nothing to it
    frame.locator("#help-button").click()
    assert not frame.locator("#help-address").is_visible()
    frame.locator("#help-close").click()
    assert not frame.locator("#help").is_visible()


def test_the_frame_cannot_reach_the_notebook(shown):
    page = shown(maps())
    page.frame_locator("iframe").locator("#plot[data-shown]").wait_for()
    [frame] = page.frames[1:]
    tried = "() => { try { return parent.document.title; } catch (error) { return error.name; } }"
    assert frame.evaluate(tried) == "SecurityError"
    assert frame.evaluate("() => self.origin") == "null"
    assert page.evaluate("Object.keys(window).filter(name => /attnscope/i.test(name))") == []


def test_tokens_stay_text_in_the_frame(shown):
    hostile = "'></iframe><script>document.title = 'changed'</script>&#39;"
    result = maps()
    result.query_tokens = result.key_tokens = [type(result.key_tokens[0])(hostile)] * 5
    page = shown(result)
    frame = page.frame_locator("iframe")
    frame.locator("#plot[data-shown]").wait_for()
    assert page.title() != "changed"
    assert hostile in frame.locator("#strongest").inner_text()


def test_in_a_narrow_notebook_expressions_give_way_to_axes(shown):
    for width, visible in ((1200, "visible"), (500, "hidden")):
        page = shown(every_result()["a trace"], width=width)
        assert style(page.get_by_text("softmax(scores, softmax_dtype)").first, "visibility") == visible
        last = page.locator("summary", has_text="scores").first.locator("span", has_text="n_K").first
        assert last.bounding_box()["x"] + last.bounding_box()["width"] < width
