"""The figure of an audit: panels with tokens, and a mark for each pair that is wrong."""

import re

import numpy as np
import pytest
from PIL import Image

from attnscope.base.errors import FileError
from tests.document.every_result import audit


@pytest.mark.sweep
def test_a_figure_has_both_panels_tokens_and_marks(tmp_path):
    audit().save(tmp_path / "audit.svg")
    svg = (tmp_path / "audit.svg").read_text(encoding="utf-8")
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    assert {"influence in layer 1", "the mask that reached the layer"} <= set(texts)
    assert texts.count("word3") == 4  # along both axes of both panels
    assert any("causal: changing tokens moves position 2" in text for text in texts)
    assert not any("cache: parts differ" in text for text in texts)  # it has no picture


@pytest.mark.sweep
def test_marks_are_in_the_cells_that_are_wrong(tmp_path):
    result = audit()
    measured = result.properties[0].evidence.influence.measured
    measured[0][4] = measured[1][6] = 0.1
    result.save(tmp_path / "audit.svg")
    svg = (tmp_path / "audit.svg").read_text(encoding="utf-8")
    crosses = re.findall(r'<use [^>]*x="([\d.]+)" y="([\d.]+)" style="fill: #cb181d', svg)
    (x, y), *others = [(float(x), float(y)) for x, y in crosses]  # of 0 ← 4, 1 ← 6 and 2 ← 3
    cell = others[0][1] - y
    places = [((right - x) / cell, (down - y) / cell) for right, down in others]
    assert places == [pytest.approx((2, 1)), pytest.approx((-1, 2))]


@pytest.mark.few(1)
@pytest.mark.parametrize("suffix", ["png", "pdf"])
def test_figures_of_long_texts_show_what_is_wrong(tmp_path, suffix):
    path = tmp_path / f"audit.{suffix}"
    audit(n=300, tokens=False).save(path)
    if suffix == "png":
        pixels = np.asarray(Image.open(path).convert("RGB")).reshape(-1, 3)
        assert (pixels == (203, 24, 29)).all(1).any()


def test_what_holds_is_drawn_too_and_nothing_is_an_error(tmp_path):
    held = audit(broken=False)
    held.save(tmp_path / "held.svg")
    assert "influence in layer 1" in (tmp_path / "held.svg").read_text(encoding="utf-8")
    held.influences.clear()
    with pytest.raises(FileError, match="was not measured"):
        held.save(tmp_path / "none.svg")
    assert not (tmp_path / "none.svg").exists()
