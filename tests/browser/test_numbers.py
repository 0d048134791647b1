"""Pages of other numbers than weights: they say what these are, and switch to the weights themselves."""

from __future__ import annotations

import pytest

from attnscope import attention_maps
from tests.browser.conftest import Opened

SENTENCE = "The cat sat on the mat."


@pytest.fixture
def opened_html(chromium, tmp_path):
    """Return a function that opens a page in the browser; its script may not fail."""
    troubles, contexts = [], []

    def opened(html: str) -> Opened:
        (tmp_path / "page.html").write_text(html, encoding="utf-8")
        contexts.append(chromium.new_context(viewport={"width": 1300, "height": 900}, offline=True))
        page = contexts[-1].new_page()
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.goto((tmp_path / "page.html").as_uri())
        page.wait_for_selector("#plot[data-shown]")
        return Opened(page, troubles)

    yield opened
    for context in contexts:
        context.close()
    assert troubles == []


@pytest.fixture(scope="module")
def weighed():
    return attention_maps("minilm", SENTENCE, layers=5, heads=10, weigh="value", page=True)


@pytest.mark.sweep
def test_a_page_of_value_weighted_maps_switches_to_weights(opened_html, weighed):
    page = opened_html(weighed.page())
    largest = max(each.attention.max() for each in weighed.collected[0])
    assert page.text("#maps-top") == f"{largest:.3g}"
    assert float(page.text("#top")) == pytest.approx(weighed.one.attention.max(), rel=0.01)
    first = page.page.locator("#strongest tbody tr").first
    assert float(first.locator(".weight").inner_text()) == pytest.approx(
        weighed.one.attention.max(), rel=0.01
    )
    page.page.locator("#stacks label").nth(1).click()
    page.until("document.querySelector('#maps-top').textContent === '1'")
    weights = weighed.of_weights[0][5, 10].attention
    page.until(f"Math.abs(Number(document.querySelector('#top').textContent) - {weights.max()}) < 1e-3")


@pytest.mark.sweep
def test_a_page_of_rollouts_names_layers(opened_html):
    page = opened_html(attention_maps("minilm", SENTENCE, rollout=True, page=True).page())
    assert page.text("#heading") == "Layers 0 to 5"
    assert page.text("#overview-heading") == "All layers"
    page.page.locator('#heads [role="gridcell"]').first.click()
    page.until("document.querySelector('#heading').textContent === 'Layers 0 to 0'")
