"""Figures of an answer: pictures under weights, and bars of segments."""

import re
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from attnscope.base.errors import AttnscopeError
from attnscope.model.answers.drawing import grey_picture, segment_order, veiled
from attnscope.model.answers.figure import draw
from attnscope.model.answers.heat import density, grid_size, shown_weights
from tests.model.answers.examples import chat, every_answer, long, one_picture, two_pictures


def drawn(answer):
    figure = Figure()
    draw(figure, answer)
    return figure


def pictures_of(figure):
    return [axes for axes in figure.axes if axes.images and axes.get_xlim()[1] > 2]


@pytest.mark.few(2)
@pytest.mark.parametrize("name", every_answer())
def test_every_answer_is_drawn(name, tmp_path):
    every_answer()[name].save(tmp_path / "answer.png", dpi=60)
    pixels = np.asarray(Image.open(tmp_path / "answer.png").convert("RGB"))
    assert min(pixels.shape[:2]) > 100
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 20


def test_one_word_is_the_picture_under_its_density():
    answer = one_picture(6, query=1)
    [axes] = pictures_of(drawn(answer))
    picture = answer.pictures[0]
    height, width = grid_size(picture, 1024)
    heat = density(picture, answer.weights[1], height, width, left_out=set(answer.sinks))
    expected = veiled(grey_picture(picture, height, width), heat / heat.max())
    np.testing.assert_allclose(axes.images[0].get_array(), expected, atol=1e-6)
    assert axes.images[0].get_extent() == [0, *picture.image.size, 0]


def test_patches_that_are_left_out_are_hatched():
    answer = one_picture(6, query=1)
    [axes] = pictures_of(drawn(answer))
    boxes = {patch.position: patch.box for patch in answer.pictures[0].patches}
    hatched = [each.get_bbox().extents.tolist() for each in axes.patches if each.get_hatch()]
    assert hatched == [pytest.approx(boxes[sink]) for sink in answer.sinks[1:]]


def test_every_word_has_a_panel_of_one_scale():
    answer = one_picture(6)
    figure = drawn(answer)
    panels = pictures_of(figure)
    assert len(panels) == 12
    titles = [text.get_text() for text in figure.texts]
    assert [each for each in titles if re.fullmatch(r"46 sun  [\d.]+ %", each)]
    picture = answer.pictures[0]
    size = grid_size(picture, 384)
    heats = [density(picture, row, *size, left_out=set(answer.sinks)) for row in answer.weights]
    top = max(heat.max() for heat in heats)
    for axes, heat in zip(panels, heats, strict=True):
        expected = veiled(grey_picture(picture, *size), heat / top)
        np.testing.assert_allclose(axes.images[0].get_array(), expected, atol=1e-6)


@pytest.mark.sweep
def test_of_many_words_the_mean_and_the_strongest_are_drawn():
    answer = one_picture(6)
    n = 30
    rng = np.random.default_rng(0)
    many = replace(
        answer,
        written=answer.written[:1] * n,
        weights=np.tile(answer.weights[:1], (n, 1)),
        queries=list(range(44, 44 + n)),
        log_probabilities=None,
    )
    patches = [patch.position for patch in answer.pictures[0].patches]
    many.weights[:, patches] *= rng.random((n, 1)).astype(np.float32)
    figure = drawn(many)
    texts = [text.get_text() for text in figure.texts]
    assert len(pictures_of(figure)) == 24
    assert any(text.startswith("mean of all 30 tokens") for text in texts)
    left_out = [i for i in patches if i not in answer.sinks]
    strongest = sorted(np.argsort(-many.weights[:, left_out].sum(1))[:23].tolist())
    assert [int(t.split()[0]) - many.first for t in texts if t[0].isdigit()] == strongest


def test_several_pictures_stand_side_by_side_with_their_shares():
    answer = two_pictures(query=6)
    figure = drawn(answer)
    axes = pictures_of(figure)
    share = shown_weights(answer)[112:137].sum()
    assert [each.get_xlabel() for each in axes] == [
        f"picture 1 {100 * shown_weights(answer)[2:110].sum():.1f} %",
        f"picture 2 {100 * share:.1f} %",
    ]
    left, right = (each.get_position() for each in axes)
    assert left.x1 < right.x0
    assert left.height == pytest.approx(right.height)


def test_bars_are_the_shares():
    answer = chat()
    [axes] = drawn(answer).axes
    names, of_rows = segment_order(answer)
    for name, container, shares in zip(names, axes.containers, of_rows.T, strict=True):
        assert container.get_label().startswith(name)
        np.testing.assert_allclose([bar.get_height() for bar in container], shares, atol=1e-9)
    tops = [bar.get_y() + bar.get_height() for bar in axes.containers[-1]]
    np.testing.assert_allclose(tops, 1, atol=1e-5)
    assert [each.get_text() for each in axes.get_xticklabels()][:3] == ["From", "ten", "to"]


def test_bars_of_one_word_and_of_many_words():
    [axes] = drawn(chat(query=3)).axes
    assert [len(each) for each in axes.containers] == [1] * 7
    [axes] = drawn(long(400, 120)).axes
    assert len(axes.containers) == 12
    assert len(axes.get_xticklabels()) < 120


@pytest.mark.parametrize("suffix", [".svg", ".pdf"])
def test_other_formats_are_written_and_files_are_not_replaced(suffix, tmp_path):
    path = tmp_path / f"answer{suffix}"
    two_pictures(query=2).save(path)
    assert path.read_bytes()[:5] in (b"<?xml", b"%PDF-")
    with pytest.raises(AttnscopeError, match="exists"):
        two_pictures(query=2).save(path)
