"""Corpora of every kind, drawn whole: files of lines and of objects, and what Python has in memory.

The oracle is what is documented: blank lines are left out and counted, a line that is no text is skipped or ends the
run with its number, and the tokens of the texts that are read are those of the tokenizer.
"""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest

import attnscope
from attnscope.base.errors import AttnscopeError
from tests.torture.cases import seeded
from tests.torture.test_methods import HOSTILE, end_of

pytestmark = [pytest.mark.torture, pytest.mark.slow]

CASES, TESTS = 500, 5
SEED = 9_113_077

TEXTS = ["the cat sat", "a dog ran", "it was tired .", "the", "un chat", "the " * 40, "\tthe", "cat\x0bsat", "the\u2028cat", "\u202ethe", "the \x1b[31m cat", "👩\u200d👩"]  # fmt: skip
LINES: list[bytes] = [
    b"", b" ", b"\t", b"\xef\xbb\xbfthe", b"\xff\xfe", b"\x00", b"the\x00cat", b"\xed\xa0\x80", b"\r", b"the\rcat", b"{", b"[]", b'"the"', b"null", b"3",
    b"{}", b'{"text": null}', b'{"text": 3}', b'{"text": ["the"]}', b'{"text": "the", "text": "cat"}', b'{"text": "\\ud800"}', b'{"text": "\\u0000"}', b'{"text": ""}',
    b'{"text": NaN}', b'{"a": ' * 2000, b"9" * 6000, b'{"text": ' + b"9" * 6000 + b"}", b"the " * 3000, b'{"\\ud800": 1, "text": "the"}',
]  # fmt: skip
"""Lines that are no text, or a strange one."""

FIELDS = [None, None, None, "text", "n", "nope", "\x1b[31m", "\ud800", "x" * 3000]


def line_of(drawing: random.Random, objects: bool) -> bytes:
    """A line: mostly a text."""
    if drawing.random() < 0.25:
        return drawing.choice(LINES)
    text = drawing.choice(TEXTS)
    record = {"text": text, "n": drawing.choice([1, None, text, [text]])}
    return json.dumps(record).encode() if objects else text.encode()


def content_of(drawing: random.Random, objects: bool) -> bytes:
    """A file's content: a few lines, with any ends."""
    lines = [line_of(drawing, objects) for _ in range(drawing.choice([0, 1, 2, 3, 5, 9]))]
    end = drawing.choice([b"\n", b"\n", b"\n", b"\r\n", b"\r", b"\n\n"])
    return end.join(lines) + drawing.choice([end, b"", b"\x1a"])


@pytest.mark.parametrize("part", range(TESTS))
def test_drawn_files_are_read_or_refused(cases, model_folder, part):
    drawing, model = seeded(SEED + part), model_folder("bert")
    for number in range(CASES // TESTS):
        suffix = drawing.choice(
            [".txt", ".jsonl", ".json", ".txt.gz", ".jsonl.gz", ".csv", "", ".TXT", ".gz"]
        )
        content = content_of(drawing, ".json" in suffix)
        if suffix.endswith("gz") and drawing.random() < 0.9:
            content = gzip.compress(content, mtime=0)
        (cases.folder / f"c{suffix}").write_bytes(content)
        line = ["heads", model, "--corpus", f"c{suffix}"]
        line += (
            ["--field", field]
            if (field := drawing.choice(FIELDS)) is not None and "\ud800" not in field
            else []
        )
        line += drawing.choice(
            [[], [], ["--max-length", "4"], ["--batch-tokens", "16"], ["--limit", "2"], ["--skip"]]
        )
        cases.run(*line, "--format", "json", what=f"{part}.{number} {content[:80]!r}")
        (cases.folder / f"c{suffix}").unlink()


class Broken:
    """An iterable whose iteration fails."""

    def __iter__(self) -> Any:
        yield "the cat"
        raise OSError("the disk is gone")


def item_of(drawing: random.Random) -> Any:
    """What a corpus in memory has: mostly a text, or an object with one."""
    if drawing.random() < 0.2:
        return drawing.choice(HOSTILE)
    text = drawing.choice(TEXTS)
    return drawing.choice(
        [text, text, {"text": text}, {"text": None}, {"n": text}, {1: text}, "", "\ud800", "a\0b"]
    )


def test_corpora_in_memory_are_read_or_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    drawing, faults, accepted = seeded(SEED + 100), [], 0
    for number in range(CASES // 5):
        items = [item_of(drawing) for _ in range(drawing.choice([0, 1, 2, 3, 6]))]
        kind = drawing.choice([list, tuple, iter, lambda each: (one for one in each)])
        field = drawing.choice(FIELDS)
        end = end_of(
            lambda i=items, k=kind, f=field: attnscope.measure_heads("minilm", k(i), field=f, layers=0)
        )
        accepted += end == "accepted"
        if end not in ("refused", "accepted"):
            faults.append(f"{number} {items!r:.200} field={field!r:.40}: {end}")
    assert not faults, "\n".join(faults[:40])
    assert accepted > 5


@pytest.mark.parametrize(
    "texts",
    [*HOSTILE, Path("missing.txt"), Path("."), [[]], [b"the"]],
    ids=lambda each: type(each).__name__,
)
def test_what_is_no_corpus_is_refused(texts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert end_of(lambda: attnscope.measure_heads("minilm", texts, layers=0)) in ("refused", "accepted")


def test_an_error_while_a_corpus_is_iterated_is_that_of_its_owner():
    with pytest.raises(OSError, match="the disk is gone") as caught:
        attnscope.measure_heads("minilm", Broken(), layers=0)
    assert not isinstance(caught.value, AttnscopeError)
