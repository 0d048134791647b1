"""Metrics of heads in the page: in the overview, in the list beside it, in the table below it."""

import numpy as np
import pytest

from attnscope.model.heads.result import HeadRow

pytestmark = pytest.mark.sweep  # `test_page` stands for the browser by default

TOKENS = ["[CLS]", " the", " cat", " sat"]
EVIL = "</script><img src=x onerror=alert(1)>"


def row_of(table, layer, head, stack="self"):
    return next(r for r in table.rows if (r.stack, r.layer, r.head) == (stack, layer, head))


def patch(opened, layer, head):
    return opened.head(layer, head).locator(".value")


def colour_of(opened, layer, head):
    text = patch(opened, layer, head).evaluate("(patch) => getComputedStyle(patch).backgroundColor")
    return [int(part) for part in text.removeprefix("rgb(").removesuffix(")").split(",")]


def expected_colour(opened, table, layer, head, metric, dark=False):
    largest = max(r.values[metric] for r in table.rows if r.values[metric] is not None)
    shade = round(255 * row_of(table, layer, head).values[metric] / largest)
    return opened.see(f"palette({str(dark).lower()})[{shade}]")


def says(text, row, metric):
    """Return whether a text contains a value and its standard error, each rounded to its digits."""
    value, _, error = text.partition(" ± ")
    digits = len(value.partition(".")[2])
    return value == f"{row.values[metric]:.{digits}f}" and error == f"{row.errors[metric]:.{digits}f}"


def listed(opened):
    """Return the names and the numbers of the list."""
    rows = opened.page.locator("#values > div").all()
    return {each.locator("dt").inner_text(): each.locator("dd").first.inner_text() for each in rows}


def table_order(opened):
    return opened.page.locator("#all-values tbody tr th").all_inner_texts()


@pytest.fixture
def stack(make_stack):
    return make_stack(TOKENS)


# ---- the overview, with maps


@pytest.mark.parametrize("dark", [False, True])
def test_a_metric_colours_each_head_by_its_value(open_page, stack, make_table, dark):
    table = make_table()
    opened = open_page(stack, heads=table, dark=dark)
    for metric in ("entropy", "distance"):
        opened.page.select_option("#metric", metric)
        opened.wait_for_metrics(0, 0, metric)
        for row in table.rows:
            assert colour_of(opened, row.layer, row.head) == expected_colour(
                opened, table, row.layer, row.head, metric, dark
            )
        assert opened.text("#metric-meaning") == table.metrics[metric]
        largest = max(row.values[metric] for row in table.rows)
        assert float(opened.text("#metric-top")) == pytest.approx(largest, rel=0.01)
    assert not opened.page.locator("#heads canvas").first.is_visible()


def test_colours_follow_the_scheme(open_page, stack, make_table):
    table = make_table()
    opened = open_page(stack, heads=table)
    opened.page.click("#theme")
    assert colour_of(opened, 1, 1) == expected_colour(opened, table, 1, 1, "entropy", dark=True)


@pytest.mark.sweep
def test_the_metric_that_was_asked_for_is_shown_first_or_else_the_first(open_page, stack, make_table):
    opened = open_page(stack, heads=make_table(), metric="distance")
    assert opened.page.input_value("#metric") == "distance"
    opened = open_page(stack, heads=make_table())
    assert opened.page.input_value("#metric") == "entropy"
    assert opened.page.locator("#metric option").all_inner_texts() == [
        "map",
        "entropy",
        "previous",
        "distance",
    ]


def test_a_single_metric_is_named(open_page, make_table):
    opened = open_page(heads=make_table(metrics={"previous": "weight to the token before"}))
    assert opened.page.locator("#metric").is_visible()
    assert opened.page.input_value("#metric") == "previous"


def test_the_overview_goes_back_to_the_small_maps(open_page, stack, make_table):
    opened = open_page(stack, heads=make_table())
    opened.page.select_option("#metric", "map")
    opened.wait_for_metrics(0, 0, "map")
    assert opened.page.locator("#heads canvas").count() == 6
    assert opened.page.locator("#heads canvas").first.is_visible()
    assert not opened.page.locator("#heads .value").first.is_visible()
    assert not opened.page.locator("#metric-legend").is_visible()
    assert opened.text("#overview-note").endswith("The colours of small maps go from 0 to 1.")
    assert opened.head(1, 2).get_attribute("title") == "Layer 1, head 2"
    painted = "cells.get('1 2').firstChild.getContext('2d').getImageData(0, 0, 4, 4).data.join()"
    root = "palette(false)[data.stacks[0].heads[5].small.bytes[0]].join()"
    assert opened.see(painted).startswith(opened.see(root))
    opened.page.select_option("#metric", "entropy")
    opened.wait_for_metrics(0, 0, "entropy")
    assert opened.head(1, 2).get_attribute("title") is None, "its value is shown beside it"


@pytest.mark.sweep
@pytest.mark.parametrize("way", ["click", "keys"])
def test_a_coloured_head_leads_to_its_map(open_page, stack, make_table, way):
    table = make_table()
    opened = open_page(stack, heads=table)
    opened.wait_for(0, 0)
    if way == "click":
        opened.head(1, 2).click()
    else:
        opened.head(0, 0).focus()
        for key in ("ArrowDown", "End", "Enter"):
            opened.page.keyboard.press(key)
    opened.wait_for(1, 2)
    assert opened.text("#heading") == "Layer 1, head 2"
    assert opened.see("[...scene.weights.values]") == pytest.approx(
        stack.maps[5].attention.ravel().tolist(), abs=1e-4
    )
    assert listed(opened).keys() == table.metrics.keys()
    assert all(says(text, row_of(table, 1, 2), name) for name, text in listed(opened).items())


@pytest.mark.sweep
def test_values_stand_in_cells_that_have_room_and_can_be_read(open_page, stack, make_table):
    def contrast(one, other):
        def luminance(colour):
            sRGB = np.array(colour) / 255
            linear = np.where(sRGB <= 0.04045, sRGB / 12.92, ((sRGB + 0.055) / 1.055) ** 2.4)
            return linear @ [0.2126, 0.7152, 0.0722]

        low, high = sorted((luminance(one), luminance(other)))
        return (high + 0.05) / (low + 0.05)

    table = make_table()
    opened = open_page(stack, heads=table)
    for row in table.rows:
        written = patch(opened, row.layer, row.head).evaluate(
            "(patch) => getComputedStyle(patch, '::after').content"
        )
        assert written == f'"{row.values["entropy"]:.1f}"'
    for scheme in ("false", "true"):
        for colour in opened.see(f"palette({scheme})"):
            ink = opened.see(f"contrasting({colour})")
            assert contrast(colour, [0, 0, 0] if ink == "#000" else [255, 255, 255]) > 4.5


def test_small_cells_have_no_text(open_page, make_table):
    opened = open_page(heads=make_table({"self": (4, 24)}), width=400)
    assert (
        patch(opened, 0, 0).evaluate("(patch) => getComputedStyle(patch, '::after').content") == "none"
    )


@pytest.mark.sweep
@pytest.mark.parametrize("way", ["hover", "focus"])
def test_the_value_of_a_head_is_shown_beside_it(open_page, stack, make_table, way):
    table = make_table()
    opened = open_page(stack, heads=table)
    assert not opened.page.locator("#value-tip").is_visible()
    if way == "hover":
        opened.head(1, 1).hover()
    else:
        opened.page.focus("#metric")
        opened.page.keyboard.press("Tab")
        for key in ("ArrowRight", "ArrowDown"):
            opened.page.keyboard.press(key)
    assert opened.text("#value-head") == "Layer 1, head 1"
    assert says(opened.text("#value"), row_of(table, 1, 1), "entropy")
    assert opened.text("#value-metric") == "entropy: how spread it is, in nats"
    tip, cell = opened.page.locator("#value-tip").bounding_box(), opened.head(1, 1).bounding_box()
    assert tip["y"] >= cell["y"] + cell["height"] or tip["y"] + tip["height"] <= cell["y"]
    opened.page.keyboard.press("Escape")
    assert not opened.page.locator("#value-tip").is_visible()


def test_small_maps_have_no_value_beside_them(open_page, stack, make_table):
    opened = open_page(stack, heads=make_table(), fragment="layer=0&head=0&metric=map")
    opened.head(1, 1).hover()
    assert not opened.page.locator("#value-tip").is_visible()


@pytest.mark.sweep
def test_the_metric_stands_in_the_address(open_page, stack, make_table):
    opened = open_page(stack, heads=make_table())
    opened.page.select_option("#metric", "previous")
    opened.wait_for_metrics(0, 0, "previous")
    assert "metric=previous" in opened.page.url
    opened.page.go_back()
    opened.wait_for_metrics(0, 0, "entropy")
    assert opened.page.input_value("#metric") == "entropy"
    opened = open_page(stack, heads=make_table(), fragment="layer=1&head=2&metric=distance")
    opened.wait_for_metrics(1, 2, "distance")
    opened = open_page(stack, heads=make_table(), fragment="metric=nothing")
    opened.wait_for_metrics(0, 0, "entropy")


@pytest.mark.sweep
def test_names_of_cells_say_the_value_to_who_cannot_see(open_page, stack, make_table):
    table = make_table()
    opened = open_page(stack, heads=table)
    name, _, text = opened.head(1, 0).get_attribute("aria-label").partition(": entropy ")
    assert name == "Layer 1, head 0"
    assert says(text, row_of(table, 1, 0), "entropy")
    opened.head(0, 0).focus()
    opened.page.keyboard.press("ArrowDown")
    opened.until("by('said').textContent.startsWith('Layer 1, head 0: entropy ')")
    page = opened.page
    assert page.get_by_role("grid", name="All heads").count() == 1
    assert page.get_by_role("combobox", name="Show for each head").count() == 1
    assert page.get_by_role("region", name="Layer 1, head 0: metrics").count() == 1
    assert page.get_by_role("table", name="Heads by their metrics").count() == 1


# ---- values that there are not


def test_a_head_without_a_value_is_hatched_and_said_to_have_none(open_page, stack, make_table):
    table = make_table(without={("self", 0, 1, "previous"), ("self", 1, 1, "previous")})
    opened = open_page(stack, heads=table, metric="previous")
    image = patch(opened, 0, 1).evaluate("(patch) => getComputedStyle(patch).backgroundImage")
    assert "repeating-linear-gradient" in image
    assert patch(opened, 0, 0).evaluate("(patch) => getComputedStyle(patch).backgroundImage") == "none"
    assert opened.text("#metric-none").strip() == "no value"
    opened.head(0, 1).click()
    opened.wait_for(0, 1)
    assert opened.text("#value") == "no value"
    assert listed(opened)["previous"] == "no value"
    assert says(listed(opened)["entropy"], row_of(table, 0, 1), "entropy")
    opened.page.select_option("#metric", "entropy")
    assert not opened.page.locator("#metric-none").is_visible()


def test_a_metric_that_no_head_has_a_value_of_is_said_to_be_such(open_page, make_table):
    everywhere = {("self", layer, head, "entropy") for layer in range(2) for head in range(3)}
    opened = open_page(heads=make_table(without=everywhere))
    assert opened.text("#metric-none").strip() == "no head has a value"
    assert not opened.page.locator("#metric-legend").is_visible()


def test_values_that_are_all_zero_have_the_colour_of_nothing(open_page, make_table):
    table = make_table()
    for row in table.rows:
        row.values["entropy"], row.errors["entropy"] = 0.0, 0.0
    opened = open_page(heads=table)
    assert colour_of(opened, 1, 2) == opened.see("palette(false)[0]")
    assert listed(opened)["entropy"] == "0.000 ± 0"


@pytest.mark.sweep
@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (1.23456, 0.0123, "1.235 ± 0.012"),
        (1.23456, 0.000456, "1.23456 ± 0.00046"),
        (123.456, 17.2, "123 ± 17"),
        (1.23456, 1e-9, "1.234560 ± < 0.000001"),
        (1.23456, None, "1.235"),
        (0.0123456, None, "0.01235"),
        (float("nan"), float("nan"), "no value"),
    ],
)
def test_a_value_has_the_digits_that_its_error_leaves_it(open_page, make_table, value, error, text):
    table = make_table({"self": (1, 1)})
    table.rows = [HeadRow("self", 0, 0, {"entropy": value}, {"entropy": error})]
    opened = open_page(heads=table)
    assert listed(opened) == {"entropy": text, "previous": "no value", "distance": "no value"}


# ---- without maps, and with some


def test_without_maps_the_grid_stands_alone_and_a_click_lists_the_metrics_of_a_head(
    open_page, make_table
):
    table = make_table()
    opened = open_page(heads=table)
    for part in ("#look", "#detail"):
        assert not opened.page.locator(part).is_visible()
    assert opened.page.locator("#metric option").all_inner_texts() == list(table.metrics)
    for layer, head in ((1, 2), (0, 1)):
        opened.head(layer, head).click()
        opened.wait_for_metrics(layer, head, "entropy")
        assert opened.text("#measures-heading") == f"Layer {layer}, head {head}: metrics"
        assert all(says(text, row_of(table, layer, head), name) for name, text in listed(opened).items())
        assert opened.head(layer, head).get_attribute("aria-selected") == "true"
        assert opened.page.locator('#heads [aria-selected="true"]').count() == 1
    overview, list_ = (opened.page.locator(part).bounding_box() for part in ("#overview", "#measures"))
    assert list_["x"] >= overview["x"] + overview["width"], "beside the grid"
    assert list_["y"] == overview["y"]
    assert "no maps" in opened.text(".facts:visible >> nth=0")
    assert "Weights are stored" not in opened.text("footer")


def test_keys_of_the_map_do_no_harm_where_there_is_none(open_page, make_table):
    opened = open_page(heads=make_table())
    opened.head(0, 0).focus()
    for key in "mlp/+-0]":
        opened.page.keyboard.press(key)
    opened.page.keyboard.press("Escape")
    opened.wait_for_metrics(0, 1, "entropy")


@pytest.mark.sweep
def test_a_head_without_a_map_among_those_that_have_one(open_page, stack, make_table):
    stack.maps = [each for each in stack.maps if (each.layer, each.head) in {(0, 0), (1, 1)}]
    table = make_table()
    opened = open_page(stack, heads=table)
    opened.wait_for(0, 0)
    opened.head(0, 2).click()
    opened.wait_for_metrics(0, 2, "entropy")
    assert opened.text("#no-map") == "This page has no map of this head."
    assert opened.text("#heading") == "Layer 0, head 2"
    for part in ("#frame", "#views", "#search", "#detail"):
        assert not opened.page.locator(part).is_visible()
    opened.head(1, 1).click()
    opened.wait_for(1, 1)
    assert not opened.page.locator("#no-map").is_visible()
    assert opened.see("[...scene.weights.values]") == pytest.approx(
        stack.maps[1].attention.ravel().tolist(), abs=1e-4
    )


@pytest.mark.sweep
def test_a_map_of_a_head_that_was_not_measured(open_page, stack, make_table):
    table = make_table()
    table.rows = [row for row in table.rows if (row.layer, row.head) != (1, 0)]
    opened = open_page(stack, heads=table)
    opened.head(1, 0).click()
    opened.wait_for(1, 0)
    assert set(listed(opened).values()) == {"not measured"}
    assert opened.text("#metric-none").strip() == "no value"
    assert "L1 H0" not in table_order(opened)


@pytest.mark.sweep
def test_the_chooser_of_stacks_chooses_whose_heads_are_seen(open_page, make_stack, make_table):
    encoder = make_stack(TOKENS, stack="encoder")
    table = make_table({"encoder": (2, 3), "decoder": (1, 2), "cross": (1, 2)})
    opened = open_page(encoder, heads=table)
    assert opened.page.locator("#stacks label").all_inner_texts() == ["encoder", "decoder", "cross"]
    opened.wait_for(0, 0, stack="encoder")
    for number, name in ((2, "cross"), (1, "decoder")):
        opened.page.locator("#stacks input").nth(number).check()
        opened.wait_for_metrics(0, 0, "entropy", stack=name)
        assert not opened.page.locator("#look").is_visible()
        assert opened.page.locator('#heads [role="gridcell"]').count() == 2
        assert says(listed(opened)["distance"], row_of(table, 0, 0, name), "distance")
        largest = max(r.values["entropy"] for r in table.rows if r.stack == name)
        assert float(opened.text("#metric-top")) == pytest.approx(largest, rel=0.01)
        assert len(table_order(opened)) == 2
    opened.page.locator("#stacks input").nth(0).check()
    opened.wait_for(0, 0, stack="encoder")
    assert len(table_order(opened)) == 6


def test_a_stack_that_was_not_measured_shows_its_maps(open_page, make_stack, make_table):
    encoder, cross = make_stack(TOKENS, stack="encoder"), make_stack(TOKENS, stack="cross")
    opened = open_page(encoder, cross, heads=make_table({"encoder": (2, 3)}), fragment="stack=cross")
    opened.wait_for(0, 0, stack="cross")
    assert opened.page.locator("#heads canvas").first.is_visible()
    assert not opened.page.locator("#metric").is_visible()
    assert not opened.page.locator("#ranking").is_visible()


# ---- the table


def test_a_click_on_a_metric_sorts_the_heads_and_another_turns_them_round(open_page, make_table):
    table = make_table(without={("self", 0, 2, "distance")})
    opened = open_page(heads=table)

    def places(metric, sign):
        known = [row for row in table.rows if row.values[metric] is not None]
        return [f"L{r.layer} H{r.head}" for r in sorted(known, key=lambda r: sign * r.values[metric])]

    assert table_order(opened) == places("entropy", -1), "by what the overview shows"
    title = opened.page.locator("#all-values thead th").nth(3)
    title.locator("button").click()
    assert table_order(opened) == [*places("distance", -1), "L0 H2"]
    assert title.get_attribute("aria-sort") == "descending"
    title.locator("button").click()
    assert table_order(opened) == [*places("distance", 1), "L0 H2"], "what has no value is last"
    assert title.get_attribute("aria-sort") == "ascending"
    assert opened.page.locator("#all-values [aria-sort]").count() == 1
    opened.page.locator("#all-values thead button").first.click()
    assert table_order(opened) == ["L0 H0", "L0 H1", "L0 H2", "L1 H0", "L1 H1", "L1 H2"]
    opened.page.select_option("#metric", "previous")
    opened.wait_for_metrics(0, 0, "previous")
    assert table_order(opened) == places("previous", -1)


def test_the_table_has_all_numbers_and_leads_to_the_heads(open_page, stack, make_table):
    table = make_table(without={("self", 1, 1, "previous")})
    opened = open_page(stack, heads=table, height=700)
    line = opened.page.locator('#all-values tr[data-place="1 1"]')
    entropy, previous, distance = line.locator("td").all_inner_texts()
    values = row_of(table, 1, 1).values
    assert (entropy, previous, distance) == (
        f"{values['entropy']:.2f}",
        "–",
        f"{values['distance']:.1f}",
    )
    top = "by('look').getBoundingClientRect().top"
    line.evaluate("(line) => line.scrollIntoView({ block: 'start' })")
    assert opened.see(top) < 0
    line.locator("button").click()
    opened.wait_for(1, 1)
    assert opened.see(top) > -1, "the map is in sight"
    assert opened.page.locator("#all-values tr.at").get_attribute("data-place") == "1 1"


# ---- sizes, schemes, texts


@pytest.mark.sweep
def test_many_heads_are_shown_a_part_of_the_table_at_a_time(open_page, make_table):
    opened = open_page(heads=make_table({"self": (80, 64)}))
    assert opened.page.locator('#heads [role="gridcell"]').count() == 5120
    assert len(table_order(opened)) == 100
    opened.page.click("#more")
    assert len(table_order(opened)) == 200
    opened.head(0, 63).click()
    opened.wait_for_metrics(0, 63, "entropy")
    opened.page.keyboard.press("ArrowDown")
    opened.wait_for_metrics(1, 63, "entropy")
    assert opened.see("document.activeElement === cells.get('1 63')")


@pytest.mark.few(3)
@pytest.mark.parametrize("width", [400, 800, 1200, 2560])
@pytest.mark.parametrize("with_maps", [True, False])
def test_the_page_with_metrics_is_as_wide_as_the_window(
    open_page, make_stack, make_table, width, with_maps, tmp_path
):
    stacks = [make_stack(TOKENS, heads=16)] if with_maps else []
    table = make_table({"self": (2, 16)}, notices=["n" * 300])
    opened = open_page(*stacks, heads=table, width=width)
    opened.head(1, 15).hover()
    opened.page.screenshot(path=tmp_path / f"{width}.png", full_page=True)
    assert opened.see("document.documentElement.scrollWidth") <= width
    assert opened.see("by('heads').scrollWidth <= by('heads').clientWidth")
    tip = opened.page.locator("#value-tip").bounding_box()
    assert tip["x"] >= 0
    assert tip["x"] + tip["width"] <= width


def test_colours_of_values_stay_in_the_readers_own_colours(open_page, make_table):
    table = make_table()
    opened = open_page(heads=table, forced=True)
    assert opened.see("matchMedia('(forced-colors: active)').matches")
    assert colour_of(opened, 1, 1) == expected_colour(opened, table, 1, 1, "entropy")


@pytest.mark.sweep
def test_names_and_meanings_that_look_like_markup_are_text(open_page, stack, make_table):
    table = make_table(metrics={EVIL: f"it means {EVIL}"}, notices=[EVIL])
    for stacks in ([stack], []):
        opened = open_page(*stacks, heads=table)
        opened.head(1, 1).hover()
        assert opened.page.locator("img").count() == 0
        assert list(listed(opened)) == [EVIL]
        assert opened.text("#metric-meaning") == f"it means {EVIL}"
        assert opened.text("#value-metric") == f"{EVIL}: it means {EVIL}"
        assert opened.text(".notices:visible") == EVIL
        assert opened.page.locator("#all-values thead button").nth(1).inner_text().startswith(EVIL)


def test_tab_reaches_the_controls_of_the_metrics(open_page, make_table):
    opened = open_page(heads=make_table())
    reached = set()
    for _ in range(20):
        opened.page.keyboard.press("Tab")
        active = "document.activeElement"
        reached.add(
            opened.see(
                f"{active}.id || {active}.getAttribute('role') || {active}.closest('th')?.scope || ''"
            )
        )
    assert reached >= {"metric", "gridcell", "col", "row", "group"}
