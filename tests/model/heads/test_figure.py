"""Figures of metrics: a panel for each, with its title, its axes and a scale of its own."""

from functools import partial
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from attnscope.base.errors import FileError
from attnscope.document.save import save
from attnscope.model.heads.figure import draw_metrics
from tests.model.heads.head_tables import MEANINGS, head_table, of_values

ALL = list(MEANINGS)


def drawn(table, metrics):
    """Return the panels of a figure, each with the axes of its scale, or None."""
    figure = Figure()
    draw_metrics(figure, table, metrics)
    panels = [axes for axes in figure.axes if axes.get_ylabel() == "layer"]
    after = dict(zip(figure.axes, [*figure.axes[1:], None], strict=True))
    return [(axes, None if after[axes] in panels else after[axes]) for axes in panels]


def titles(panels):
    return [axes.get_title(loc="left") for axes, _ in panels]


def texts(path):
    return [element.text for element in ElementTree.parse(path).iter() if element.tag.endswith("text")]


def inches(axes):
    box, (width, height) = axes.get_position(), axes.figure.get_size_inches()
    return box.width * width, box.height * height


def test_each_metric_has_a_panel_with_its_values_and_its_scale():
    panels = drawn(head_table(), ALL)
    assert titles(panels) == ALL
    for (axes, scale), metric in zip(panels, ALL, strict=True):
        shown = axes.images[0].get_array()
        values = [row.values[metric] for row in head_table().rows]
        np.testing.assert_array_equal(shown, np.reshape(values, (6, 12)))
        assert scale.get_ylim() == pytest.approx((0, max(values)))
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("head", "layer")


@pytest.mark.sweep
def test_panels_and_scales_do_not_overlap():
    for size in [(6, 12), (30, 9), (80, 64), (1, 1)]:
        figure = Figure()
        draw_metrics(figure, head_table({"self": size}), ALL)
        boxes = [axes.get_position() for axes in figure.axes]
        pairs = [(one, other) for i, one in enumerate(boxes) for other in boxes[:i]]
        assert not [pair for pair in pairs if pair[0].overlaps(pair[1])]


@pytest.mark.sweep
def test_cells_are_square_and_a_single_metric_is_larger():
    for size in [(6, 12), (30, 9), (80, 64)]:
        (alone, _), (small, _) = (
            drawn(head_table({"self": size}), ["self"])[0],
            drawn(head_table({"self": size}), ALL)[0],
        )
        for axes in (alone, small):
            width, height = inches(axes)
            assert width / size[1] == pytest.approx(height / size[0])
        assert inches(alone)[0] > 2 * inches(small)[0]


def test_each_stack_begins_a_row():
    panels = drawn(head_table({"encoder": (6, 8), "cross": (4, 2)}), ["entropy", "first"])
    assert titles(panels) == ["encoder · entropy", "encoder · first", "cross · entropy", "cross · first"]
    tops = [round(axes.get_position().y1, 4) for axes, _ in panels]
    assert tops[0] == tops[1] > tops[2] == tops[3]


def test_where_no_query_counts_a_cell_is_grey_and_a_metric_says_so():
    table = head_table({"encoder": (2, 3), "cross": (2, 3)}, metrics=("self",))
    (_, _), (empty, scale) = drawn(table, ["self"])
    assert [text.get_text() for text in empty.texts] == ["no value"]
    assert scale is None
    (axes, _), *_ = drawn(of_values([[0.5, None]]), ["self"])
    assert np.ma.getmaskarray(np.ma.masked_invalid(axes.images[0].get_array())).tolist() == [
        [False, True]
    ]
    assert axes.get_facecolor()[:3] == (0.85, 0.85, 0.85)


def test_numbers_of_heads_and_layers_are_those_of_the_model():
    table = head_table({"self": (6, 12)}, metrics=("self",))
    table.rows = [row for row in table.rows if row.layer in (1, 5) and row.head in (2, 7, 11)]
    (axes, _), *_ = drawn(table, ["self"])
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["2", "7", "11"]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["1", "5"]


@pytest.mark.sweep
def test_where_there_are_many_heads_every_few_have_numbers():
    (axes, _), *_ = drawn(head_table({"self": (80, 64)}), ALL)
    assert [tick.get_text() for tick in axes.get_xticklabels()] == [
        "0",
        "10",
        "20",
        "30",
        "40",
        "50",
        "60",
    ]
    assert [tick.get_text() for tick in axes.get_yticklabels()][:3] == ["0", "5", "10"]


@pytest.mark.few(1)
@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_two_runs_give_the_same_bytes(tmp_path, suffix):
    for name in ("one", "two"):
        save(head_table(), tmp_path / f"{name}{suffix}", metrics=["self", "first"], dpi=50)
    one, two = ((tmp_path / f"{name}{suffix}").read_bytes() for name in ("one", "two"))
    assert one == two


@pytest.mark.sweep
def test_an_svg_has_the_model_s_name_and_every_title_as_text(tmp_path):
    table = head_table({"encoder": (2, 3), "cross": (2, 3)})
    table.model = "$x^2$"
    save(table, tmp_path / "x.svg", metrics=ALL)
    assert {"$x^2$", *(f"{stack} · {metric}" for stack in table.layers for metric in ALL)} <= set(
        texts(tmp_path / "x.svg")
    )


@pytest.mark.sweep
def test_an_svg_is_well_formed_whatever_a_model_is_called(tmp_path):
    table = of_values([[0.5]])
    table.model = "a\x1b[31m\x00]]>\ud800\ufffe\nb"
    for suffix in (".svg", ".pdf", ".png"):
        save(table, tmp_path / f"x{suffix}", metrics=["self"])
    assert r"a\x1b[31m\x00]]>\ud800\ufffe\nb" in texts(tmp_path / "x.svg")


@pytest.mark.parametrize("values", [[[0.0]], [[-1.0]]])
def test_a_scale_ends_at_1_where_nothing_is_above_0(values):
    (_, scale), *_ = drawn(of_values(values), ["self"])
    assert scale.get_ylim() == (0, 1)


@pytest.mark.parametrize("values", [[[None]], [[-1.0]], [[1e-12]], [[float("nan")]]])
def test_odd_values_are_drawn(tmp_path, values):
    save(of_values(values), tmp_path / "x.png", metrics=["self"], dpi=50)
    assert max(Image.open(tmp_path / "x.png").size) < 200


def test_a_file_is_replaced_only_by_force(tmp_path):
    write = partial(save, of_values([[0.5]]), tmp_path / "x.png", metrics=["self"])
    write(dpi=50)
    with pytest.raises(FileError, match="already exists"):
        write(dpi=100)
    small = Image.open(tmp_path / "x.png").size
    write(dpi=100, force=True)
    assert Image.open(tmp_path / "x.png").size > small
