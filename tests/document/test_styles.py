"""Colours of text."""

import pytest
from rich.color import Color, ColorSystem

from attnscope.document import styles

COLOURS = {name: getattr(styles, name) for name in ("BLUE", "CYAN", "GREEN", "MAGENTA", "ORANGE", "RED")}


def luminance(red, green, blue):
    """Return the relative luminance of a colour, as WCAG 2 defines it."""
    parts = [each / 255 for each in (red, green, blue)]
    parts = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts]
    return sum(weight * each for weight, each in zip((0.2126, 0.7152, 0.0722), parts, strict=True))


@pytest.mark.parametrize("name", COLOURS)
@pytest.mark.parametrize(("system", "least"), [("TRUECOLOR", 4), ("EIGHT_BIT", 3.6)])
def test_text_is_legible_on_white_and_on_dark_grey(name, system, least):
    colour = Color.parse(COLOURS[name]).downgrade(ColorSystem[system])
    text = luminance(*colour.get_truecolor())
    assert 1.05 / (text + 0.05) >= least
    assert (text + 0.05) / (luminance(30, 30, 30) + 0.05) >= least


def test_they_differ_on_a_console_with_16_colours():
    numbers = {Color.parse(each).downgrade(ColorSystem.STANDARD).number for each in COLOURS.values()}
    assert len(numbers) == len(COLOURS)
