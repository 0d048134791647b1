"""A recording is shown with the seconds, the frequencies and the weights that it has."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from attnscope.model.answers.audio.alignment import SpeechAlignment
from attnscope.model.answers.audio.listen import FrameTimes
from attnscope.model.answers.audio.recording import Sound
from attnscope.model.answers.audio.shown import recording_picture, spectrum, ticks
from attnscope.model.answers.figure import draw
from attnscope.model.answers.prompt import Segment
from tests.model.answers.audio.speakers import sound
from tests.model.answers.examples import made, rows_of


def recorded(n_frame=100, n_sound=70, words=(" a", " b", " c"), **more):
    """An answer of three words to 1.4 s of sound in 2 s."""
    times = FrameTimes(0.02, 0.0, n_frame, n_sound)
    segments = [Segment("sound", ((0, n_sound),)), Segment("padding", ((n_sound, n_frame),))]
    tokens = [f"{times.seconds(i):.2f} s" for i in range(n_frame)]
    weights = rows_of(n_frame, len(words), crosses=True)
    heard = {"times": times, "recording": Sound("a.wav", sound(1.4), 16000), "sinks": []}
    return made(tokens, [*words], segments, weights, stack="cross", **(heard | more))


@pytest.mark.parametrize("rate", [16000, 44100])
def test_a_tone_is_at_its_frequency_while_it_sounds(rate):
    """440 Hz in the first half of 2 s, 6 kHz in the second: rows of 250 Hz, the lowest at the end."""
    t = np.arange(2 * rate) / rate
    tone = np.where(t < 1, np.sin(2 * np.pi * 440 * t), np.sin(2 * np.pi * 6000 * t))
    shown = spectrum(Sound("a", tone.astype("f4"), rate), 40, 32)
    assert shown.shape == (32, 40)
    loudest = 31 - shown.argmax(0)
    assert set(loudest[:19]) == {440 // 250}
    assert set(loudest[21:]) <= {6000 // 250 - 1, 6000 // 250}
    assert (shown.min(), shown.max()) == (0, 1)


def test_silence_has_a_spectrum():
    assert np.isfinite(spectrum(Sound("a", np.zeros(100, "f4"), 16000), 7, 5)).all()


def test_each_frame_has_the_seconds_around_it():
    answer = recorded()
    picture = recording_picture(answer.recording, answer.times, 1400, 10)
    assert picture.image.size == (1400, 10)
    assert [patch.position for patch in picture.patches] == list(range(70))
    edges = [(patch.box[0] / 1000, patch.box[2] / 1000) for patch in picture.patches]
    assert edges[0] == (0.0, pytest.approx(0.01))
    assert edges[33] == (pytest.approx(0.65), pytest.approx(0.67))


def test_an_axis_has_round_seconds():
    assert ticks(30, 12) == [0, 5, 10, 15, 20, 25, 30]
    assert len(ticks(0.05, 12)) == 1


@pytest.mark.parametrize("query", [None, 1])
def test_a_figure_has_a_row_of_seconds_for_each_token(query):
    said = SpeechAlignment([], [(0, 0)], "named", [0.1, 0.5, 0.5], [])
    answer = recorded(query=query, alignment=said)
    figure = Figure()
    draw(figure, answer)
    above, axes, _ = figure.axes
    rows = slice(None) if query is None else slice(query, query + 1)
    np.testing.assert_array_equal(axes.images[0].get_array(), answer.weights[rows, :70])
    left, right, bottom, _ = axes.images[0].get_extent()
    n_row = 3 if query is None else 1
    assert (left, right, bottom) == (pytest.approx(-0.01), pytest.approx(1.39), n_row - 0.5)
    assert axes.get_xlim() == above.get_xlim() == (0, 1.4)
    assert axes.get_xlabel() == "seconds"
    assert [text.get_text() for text in axes.get_yticklabels()] == ["a", "b", "c"][rows]
    marks = [each.get_segments()[0][0][0] for each in axes.collections]
    assert marks == ([0.1, 0.5] if query is None else [0.5])
    figure = Figure()
    draw(figure, recorded(by_segment=True))
    assert figure.axes[0].get_ylabel() == "share of the weight"
