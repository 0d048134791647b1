"""Safe display of text from data."""

import pytest

from attnscope.base.text import printable, printable_lines, shortened, without_long_echoes


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain [red]name[/red] ×√", "plain [red]name[/red] ×√"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("a\nb\r\tc", "a\\nb\\r\\tc"),
        ("\x00\x7f\x9b\x85", "\\x00\\x7f\\x9b\\x85"),
        ("\u202eabc\u2066\u200f", "\\u202eabc\\u2066\\u200f"),
        ("a\u2028b\u2029", "a\\u2028b\\u2029"),
        ("\udc80", "\\udc80"),
        ("\ufeff\u200b\u00ad", "\\ufeff\\u200b\\xad"),
        ("می\u200cخواهم 👩\u200d💻", "می\u200cخواهم 👩\u200d💻"),
    ],
)
def test_what_steers_a_terminal_is_escaped(text, shown):
    assert printable(text) == shown
    assert printable(shown) == shown


@pytest.mark.sweep
def test_no_control_character_of_unicode_is_left():
    shown = printable("".join(map(chr, range(0x110000))))
    assert shown.isprintable() or not set(shown) & {chr(n) for n in [*range(32), *range(127, 160)]}
    shown.encode()


def test_lines_stay_lines():
    assert printable_lines("a\x1b\n\n  b\tc\r\nd\re\u2028") == "a\\x1b\n\n  b     c\nd\\re\\u2028"


@pytest.mark.parametrize("length", [20, 21, 80])
def test_what_is_long_keeps_its_beginning_and_its_end(length):
    text = "/folder/" + "x" * 300 + "/model.safetensors"
    shown = shortened(text, length)
    assert len(shown) == length
    beginning, end = shown.split("…")
    assert text.startswith(beginning)
    assert text.endswith(end)
    assert shortened("short") == "short"


def test_a_message_repeats_no_long_argument_whole():
    text = "a text that somebody forgot to put behind --text " * 20
    message = without_long_echoes(f"there is no folder {text}, and no {'y' * 300}.", ["model", text])
    assert len(message) < 300
    assert message.startswith("there is no folder a text that somebody")
    short = f"there is no folder /{'x' * 150}."
    assert without_long_echoes(short, ["model", short]) == short


def test_a_long_part_of_an_argument_is_shortened_too():
    spec = "B:" + "9" * 300
    assert len(without_long_echoes(f"{spec[2:]} is no size.", ["--input", f"x={spec}"])) < 100
