"""The console of all output."""

import io

import pytest
from rich.text import Text

from attnscope.document.console import Terminal


@pytest.mark.parametrize(
    ("encoding", "expected"), [("ascii", "2x3 . ---"), ("latin-1", "2×3 · ---"), ("utf-8", "2×3 · ───")]
)
def test_an_encoding_without_lines_gets_others_of_the_same_width(encoding, expected):
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    Terminal(file=file).print(Text("2×3 · ───"))
    file.flush()
    assert file.buffer.getvalue().decode(encoding) == f"{expected}\n"
