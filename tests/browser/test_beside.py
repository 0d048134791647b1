"""Two models or texts on a page: the current head in both, and what differs, side by side."""

import numpy as np
import pytest

from attnscope.model.maps.changed_maps import SIDES, by_side
from tests.document.every_result import map_differences

pytestmark = pytest.mark.sweep  # `test_page` stands for the browser by default


@pytest.fixture
def opened(open_page):
    table = by_side(map_differences())
    page = open_page(*table.maps, heads=table, metric="change", beside=True)
    page.page.wait_for_selector("#beside[data-shown]")
    return page


def pictures(opened):
    """Return the pixels of the small maps, by their side: `n_Q n_K 4`."""
    found = {}
    for button in opened.page.locator("#beside button").all():
        pixels = button.locator("canvas").evaluate(
            """(canvas) => [canvas.height, canvas.width,
            [...canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data]]"""
        )
        rows, columns, values = pixels
        found[button.inner_text().strip()] = np.array(values).reshape(rows, columns, 4)
    return found


def shades(opened, attention):
    """Return the colours of weights: the palette follows the square root."""
    palette = np.array(opened.see("palette(false)"))
    return palette[np.rint(255 * np.sqrt(attention)).astype(int)]


def test_all_sides_of_the_current_head_are_shown(opened):
    table = by_side(map_differences())
    drawn = pictures(opened)
    assert list(drawn) == list(SIDES)
    for maps in table.maps:
        expected = shades(opened, maps.maps[0].attention)
        assert np.abs(drawn[maps.stack][..., :3] - expected).max() <= 3  # weights are packed


def test_another_head_is_followed(opened):
    before = pictures(opened)
    opened.page.locator("#heads [role=gridcell]").nth(1).click()
    opened.page.wait_for_selector('#beside[data-shown="A 0 1"]')
    after = pictures(opened)
    assert all((before[side] != after[side]).any() for side in SIDES)


def test_the_maps_have_the_colours_of_the_theme(opened):
    opened.page.click("#theme")
    opened.until("by('beside').dataset.dark === 'true'")
    a = by_side(map_differences()).maps[0].maps[0].attention
    palette = np.array(opened.see("palette(true)"))
    expected = palette[np.rint(255 * np.sqrt(a)).astype(int)]
    assert np.abs(pictures(opened)["A"][..., :3] - expected).max() <= 3


def test_a_click_goes_to_that_side_and_keeps_the_head(opened):
    opened.page.locator("#heads [role=gridcell]").nth(2).click()
    opened.page.wait_for_selector('#beside[data-shown="A 0 2"]')
    opened.page.locator("#beside button").nth(2).click()
    opened.page.wait_for_selector('#beside[data-shown="more in B 0 2"]')
    assert opened.page.locator('#beside [aria-pressed="true"]').inner_text().strip() == "more in B"
    assert opened.page.locator("input[name=stack]:checked").get_attribute("value") == "2"
    assert opened.see("[page.layer, page.head]") == [0, 2]
    assert not opened.troubles


def test_pages_without_two_sides_have_none_of_it(open_page, make_stack):
    opened = open_page(make_stack(["a", "b"]))
    assert opened.page.locator("#beside").count() == 0
    assert opened.see("typeof showBeside") == "undefined"
