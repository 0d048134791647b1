"""docs/records.md names the keys that records have, and no others."""

import re
from pathlib import Path

import pytest

from attnscope.model.answers.audio.alignment import AligningHead, SpeechAlignment, TimedWord
from attnscope.model.answers.replay.recorded import RecordedAnswer
from tests.document.every_result import every_result
from tests.model.answers.audio.test_spectrum import recorded
from tests.model.answers.examples import every_answer

TEXT = (Path(__file__).parents[1] / "docs" / "records.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## `attnscope\.(\w+)/1`[^\n]*\n(.*?)(?=^## )", TEXT, re.S | re.M))
SHOWN = {"shown", "shown_all", "values", "source", "function", "text", "why"}
"""Keys that options of the output add, which a result in Python does not have."""
OF_OPTIONS = {"map": {"strongest", "mean", "max"}}
"""Those of `--top` and `--pool`."""


def rows(body):
    """The keys of each row of a section's tables, and what is said of them."""
    for keys, value in re.findall(r"^\| ((?:… )?`[^|]*) \| (.*) \|$", body, re.M):
        yield re.findall(r"`(\w+)`", keys), value


def answers():
    heard = SpeechAlignment(
        [AligningHead(1, 2, 0.9, 0.8)],
        [(1, 2)],
        "measured",
        [0.1, 0.5, 0.5],
        [TimedWord(" a", (0, 1), 0.1, 0.5)],
    )
    written = RecordedAnswer("vLLM", "exact", [-0.5, -0.4, None], None, [], [-0.5] * 3, [0.1] * 3)
    return [*every_answer().values(), recorded(alignment=heard, recorded=written)]


def records():
    found = {}
    results = [each for each in every_result().values() if hasattr(each, "to_dict")]
    for record in [each.to_dict() for each in [*results, *answers()]]:
        found.setdefault(record["schema"].removeprefix("attnscope.").split("/")[0], []).append(record)
    return found


RECORDS = records()


def keys_in(node):
    """All keys of a record, in whatever it contains."""
    if isinstance(node, dict):
        return {*node}.union(*map(keys_in, node.values()))
    return set().union(*map(keys_in, node)) if isinstance(node, list) else set()


def test_every_kind_of_record_is_documented():
    assert {*RECORDS} - {"maps"} <= {*SECTIONS}


@pytest.mark.parametrize("kind", sorted(RECORDS.keys() & SECTIONS))
def test_each_documented_key_is_in_a_record(kind):
    documented = {key for keys, _ in rows(SECTIONS[kind]) for key in keys}
    assert documented - keys_in(RECORDS[kind]) - SHOWN - OF_OPTIONS.get(kind, set()) == set()


@pytest.mark.parametrize("kind", sorted(RECORDS.keys() & SECTIONS))
def test_each_key_of_a_record_is_documented(kind):
    named = {*re.findall(r"`(\w+)`", SECTIONS[kind])}
    assert {key for record in RECORDS[kind] for key in record} - named == {"schema"}


def test_the_parts_of_an_answer_have_the_keys_that_are_named():
    """Where the documentation says `a list: …`, each word is a key; words in brackets are values."""
    for [key, *_], value in rows(SECTIONS["answer"]):
        if key in ("written", "segments", "pictures", "times", "alignment", "segment_rows", "recorded"):
            without_values = re.sub(r"\([^)]*\)|`--[^`]*`", "", value)
            parts = keys_in([record[key] for record in RECORDS["answer"]])
            assert {*re.findall(r"`(\w+)`", without_values)} <= parts, key
