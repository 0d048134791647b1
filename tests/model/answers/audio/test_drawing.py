"""The lines of seconds show where weights are."""

import numpy as np
import pytest
from rich.console import Console

from attnscope.model.answers.answer import answer
from attnscope.model.answers.audio.shown import SecondsDrawing, axis, binned_weights
from tests.model.answers.audio.speakers import PLANTED, RATE, WIDTH, follower, sound


@pytest.mark.parametrize("n_column", [1, 7, 33, 60])
def test_a_column_has_the_mean_weight_of_its_frames(n_column):
    weights = np.random.default_rng(0).random((3, 70))
    binned = binned_weights(weights, 60, n_column)
    edges = [round(i * 60 / n_column) for i in range(n_column + 1)]
    for row in range(3):
        for column in range(n_column):
            frames = weights[row, edges[column] : edges[column + 1]]
            assert binned[row, column] == pytest.approx(frames.mean())


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_line_is_filled_where_the_planted_head_reads(width):
    model, extractor = follower()
    layer, head = PLANTED
    audio = (sound(1.92), RATE)  # 96 frames: 8 for each of 12 tokens
    result = answer(
        model, audio=audio, processor=extractor, generate=12, layers=layer, heads=head, rows="reading"
    )
    console = Console(width=width, record=True, force_terminal=False)
    SecondsDrawing(result, result.times).print(console)
    lines = console.export_text().splitlines()[1:]
    first = len("<0> ")
    n_column = min(96, width - first)
    for token, line in enumerate(lines[:12]):
        filled = [i - first for i in range(first, len(line)) if line[i] != " "]
        assert filled[0] * 96 / n_column == pytest.approx(WIDTH * token, abs=96 / n_column)
        assert filled[-1] * 96 / n_column == pytest.approx(WIDTH * (token + 1), abs=2 * 96 / n_column)
    assert lines[12].split()[0] == "0"
    assert lines[12].endswith("s")


def test_seconds_are_below_the_columns_that_they_begin_in():
    line = axis(2.0, 40)
    assert [line.index(text) for text in ("0.5", "1 ", "1.5", "s")] == [10, 20, 30, 39]
    assert axis(0.02, 1) == "s"
