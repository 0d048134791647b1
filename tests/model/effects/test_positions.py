"""Effects at each position: in the terminal, in figures and pages, and a row for each in CSV and pandas."""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
import pytest

import attnscope
from attnscope.document.figure import signed_colours
from attnscope.model.effects.drawing import PositionGrid
from tests.model.effects.oracles import Oracle, question_of

IDS, CORRUPT = (5, 9, 3, 20, 31, 7, 44), (5, 9, 14, 20, 31, 27, 44)


@pytest.fixture(scope="module")
def of():
    return Oracle("gpt2")


@pytest.fixture(scope="module")
def table(of):
    return attnscope.effects(of.model, ids=IDS, answer=17, against=23, each_position=True)


def zero_at(of, head, place):
    """The effect of a head's output that is 0 at one position, by a hook on W_O."""
    question = question_of("gpt2", IDS)
    z = of.z(of.outputs(question)[0], head).clone()
    z[place] = 0
    return of.change(question, head, z)


@pytest.mark.sweep
def test_csv_and_pandas_have_a_row_for_each_position_of_each_head(of, table, tmp_path):
    frame = table.to_pandas()
    assert list(frame) == ["layer", "head", "position", "token", "zero", "direct", "first order"]
    assert len(frame) == 2 * 3 * len(IDS)
    for row in frame.itertuples():
        assert row.token == f"<{IDS[row.position]}>"
        expected = zero_at(of, ("self", row.layer, row.head), row.position)
        assert row.zero == pytest.approx(expected, abs=1e-6)
    table.save(tmp_path / "effects.csv")
    lines = (tmp_path / "effects.csv").read_text().split("\n")
    assert lines[0] == "layer,head,position,token,zero,direct,first order"
    assert len(lines) == 2 + len(frame)
    top = table.ranked("zero", top=2).to_pandas()
    assert len(top) == 2 * len(IDS)


def test_a_grid_has_the_strongest_head_of_each_layer(table):
    grid = PositionGrid.of(table, "zero")
    assert grid.numbers == [0, 1]
    for i in range(len(IDS)):
        for layer in range(2):
            effects = [table.at_places(table[layer, head], "zero")[i] for head in range(3)]
            strongest = int(np.abs(effects).argmax())
            if effects[strongest]:
                assert grid.heads[i][layer] == f"L{layer} H{strongest}"
            assert grid.values[i, layer] == effects[strongest]
    rows, values, _ = grid.pooled(3)
    assert [len(row) for row in rows] == [3, 3, 1]
    parts = [np.abs(grid.values[row.start : row.stop]).max(0) for row in rows]
    np.testing.assert_array_equal(np.abs(values), parts)


def test_of_one_layer_each_head_has_a_column(of):
    one = attnscope.effects(of.model, ids=IDS, answer=17, layers=1, each_position=True, at="2-4,6")
    grid = PositionGrid.of(one, "zero")
    assert (grid.of_heads, grid.numbers) == (True, [0, 1, 2])
    assert one.places == [2, 3, 4, 6]
    np.testing.assert_array_equal(grid.values.T, one.positions["zero"])
    assert one.to_pandas()["position"].tolist() == [2, 3, 4, 6] * 3


def test_a_figure_has_a_panel_for_each_column_with_the_tokens(table, tmp_path):
    table.save(tmp_path / "effects.svg")
    text = (tmp_path / "effects.svg").read_text()
    texts = ["".join(each.itertext()).strip() for each in ElementTree.fromstring(text).iter()]
    for expected in ("zero", "direct", "first order", "<31>", "position", "layer"):
        assert expected in texts, expected
    assert any(each.startswith("logit of the answer, minus that of the other") for each in texts)
    assert any("cells: the strongest head of each layer, at each position" in each for each in texts)


def test_a_figure_of_heads_says_metric_answers_baseline_and_columns(of, tmp_path):
    table = attnscope.effects(of.model, ids=IDS, answer=17, against=23, columns=["zero", "mean"])
    table.save(tmp_path / "effects.svg")
    root = ElementTree.fromstring((tmp_path / "effects.svg").read_text())
    texts = ["".join(each.itertext()) for each in root.iter("{http://www.w3.org/2000/svg}text")]
    text = " ".join(reversed(texts))  # lines are drawn upwards from the panels
    baseline = f"{of.metric(question_of('gpt2', IDS)):.4g}"
    assert (
        f"logit of the answer, minus that of the other answer: '<17>' against '<23>': {baseline}" in text
    )
    assert "zero: the metric's change when the head's output before W_O is 0" in text
    assert "mean: the metric's change when that output is its mean over positions" in text


def test_pages_and_notebooks_draw_the_same_cells(table):
    for html in (table.page(), table._repr_html_()):
        for layer in range(2):
            grid = PositionGrid.of(table, "zero")
            strongest = int(np.abs(grid.values[:, layer]).argmax())
            value = grid.values[strongest, layer]
            title = f"{strongest} &lt;{IDS[strongest]}&gt;, {grid.heads[strongest][layer]}: {value:.4g}"
            assert f"<title>{title}</title>" in html


def test_markdown_has_a_row_for_each_position(table, tmp_path):
    table.save(tmp_path / "effects.md")
    text = (tmp_path / "effects.md").read_text()
    assert "zero: the strongest head of each layer, at each position" in text
    grid = PositionGrid.of(table, "zero")
    for i, number in enumerate(IDS):
        cells = [f"{value:.4g}" for value in grid.values[i]]
        [line] = [
            each for each in text.split("\n") if f"{i} \\<{number}" in each or f"{i} <{number}>" in each
        ][:1]
        assert all(cell in line for cell in cells)


def test_what_a_column_is_says_that_positions_are_changed_one_at_a_time(table):
    assert all(
        "; one position at a time, of which this is the strongest" in each
        for each in table.metrics.values()
    )
    assert table.correlation == pytest.approx(
        np.corrcoef(table.positions["first order"].ravel(), table.positions["zero"].ravel())[0, 1]
    )


def test_the_tokens_of_an_answer_have_places_and_texts(of):
    table = attnscope.effects(
        of.model, ids=IDS, answer=[17, 8, 23], each_position=True, columns=["zero"]
    )
    assert [each.text for each in table.sequence] == [f"<{n}>" for n in (*IDS, 17, 8)]
    assert table.places == list(range(len(IDS) + 2))
    assert "" not in table.to_pandas()["token"].tolist()


def test_of_two_answers_only_the_positions_of_the_text_are_compared(of):
    """The answers have other tokens, and other numbers of them."""
    options = {"each_position": True, "columns": ["zero"]}
    table = attnscope.effects(of.model, ids=IDS, answer=[17, 8, 23], against=[4, 11], **options)
    a, b = (
        attnscope.effects(of.model, ids=IDS, answer=each, **options) for each in ([17, 8, 23], [4, 11])
    )
    n = len(IDS)
    assert table.places == list(range(n))
    expected = a.positions["zero"][:, :n] - b.positions["zero"][:, :n]
    np.testing.assert_allclose(table.positions["zero"], expected, atol=1e-6)


def test_positions_of_a_decoder_have_its_tokens():
    of = Oracle("t5")
    table = attnscope.effects(
        of.model,
        ids=[5, 9, 3],
        answer=[12, 33, 17],
        stack="decoder",
        each_position=True,
        columns=["zero"],
    )
    assert [each.text for each in table.sequence] == ["<0>", "<12>", "<33>"]
    assert len(table.places) == 3


def test_orange_is_above_0_and_blue_below():
    colours = signed_colours()
    (red, _, blue, _), (cold_red, _, cold_blue, _) = colours(0.8), colours(0.2)
    assert red > blue
    assert cold_blue > cold_red
    np.testing.assert_allclose(colours(0.5)[:3], [1, 1, 1], atol=0.02)


@pytest.mark.sweep
def test_a_text_too_long_for_a_picture_shares_cells():
    table = attnscope.effects(
        Oracle("gpt2").model, ids=IDS, answer=17, each_position=True, columns=["zero"]
    )
    table.positions = {"zero": np.tile(table.positions["zero"], 1200)}
    table.places = list(range(table.positions["zero"].shape[1]))
    html = table.further_html
    assert len(html) < 3e6
    assert 1_000 < html.count("<title>") <= 12_000
