"""The page of an audit, in a browser: it says what is in the cell under the pointer."""

import pytest

from tests.document.every_result import audit


@pytest.fixture
def page(chromium, tmp_path):
    path, troubles = tmp_path / "audit.html", []
    audit().save(path)
    context = chromium.new_context(viewport={"width": 900, "height": 900}, offline=True)
    page = context.new_page()
    page.on("console", lambda message: troubles.append(message.text))
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.goto(path.as_uri())
    yield page
    context.close()
    assert troubles == []


def point_at(page, panel, row, column):
    """Move the pointer to the middle of a cell, found by the drawing of its row."""
    box = page.locator("svg.influence").nth(panel).locator("path.row").nth(row).bounding_box()
    page.mouse.move(box["x"] + box["width"] * (column + 0.5) / 7, box["y"] + box["height"] / 2)
    return page.locator("[role=status]").inner_text()


@pytest.mark.sweep
def test_the_pointer_names_both_positions_and_the_amount(page):
    assert point_at(page, 0, 2, 3) == (
        "changing input 3 (word3) moves output 2 (word2) by 0.2 of the largest output, and should not"
        " · the mask hides it"
    )
    assert point_at(page, 1, 5, 1) == (
        "changing input 1 (word1) does not move output 5 (word5), and should · the mask hides it"
    )
    spots = [each.bounding_box() for each in page.locator("svg.influence .spot").all()]
    assert len(spots) == 2  # the same cell in both panels
    assert spots[0]["y"] == spots[1]["y"]


def test_arrow_keys_lead_from_cell_to_cell(page):
    page.locator("svg.influence").first.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowUp", "ArrowLeft", "ArrowLeft"):
        page.keyboard.press(key)
    assert (
        page.locator("[role=status]")
        .inner_text()
        .startswith("changing input 0 (word0) does not move output 0")
        is False
    )
    assert (
        page.locator("[role=status]")
        .inner_text()
        .startswith("changing input 0 (word0) moves output 0 (word0) by 0.91")
    )
