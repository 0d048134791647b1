"""`attnscope heads` over a corpus, on the command line: alone, interrupted, and among several processes."""

import csv
import gzip
import io
import json
import os
import pty
import random
import re
import select
import signal
import socket
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from shutil import copy

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from attnscope.base.errors import FileError, ModelError
from attnscope.model.heads import corpus as corpora
from attnscope.model.heads import corpus_run
from attnscope.model.heads.measurer import HeadMeasurer
from attnscope.model.heads.metrics import CROSS, METRICS
from attnscope.model.heads.resume import load_state, save_state
from tests.cli.processes import Hold, command, environment, heads, running
from tests.model.run.naive_metrics import naive_mean, naive_metrics
from tests.model.run.readers import WORDS, changed_weights, save_reader
from tests.sweeps import swept

TEXTS = [
    "the cat sat on the mat because it was tired .",
    "a dog ran . the dog sat . the dog ran",
    "the cat",
    ". . a mat",
    "it was the dog . it was tired",
]
TARGETS = ["a dog ran on the mat .", "the cat . the cat", "it was", "a", "tired . tired . tired"]
FORMATS = ["table", "json", "csv", "markdown"]
CSV = ["--format", "csv"]
WATCHED = Path(__file__).parents[2] / "cli" / "watched.py"


def drawn(n, seed=0, longest=30):
    """Texts of the words that small models know."""
    generator = random.Random(seed)
    return [" ".join(generator.choices(WORDS[5:], k=generator.randint(1, longest))) for _ in range(n)]


@pytest.fixture
def bert(saved):
    """A BERT that takes 64 tokens."""
    return saved("bert", max_position_embeddings=64)


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes lines into a file of the folder that the command runs in."""
    monkeypatch.chdir(tmp_path)

    def write(name, lines):
        lines = [line if isinstance(line, bytes) else line.encode() for line in lines]
        content = b"".join(line + b"\n" for line in lines)
        Path(name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return name

    return write


@pytest.fixture
def small_windows(monkeypatch):
    """Windows of some ten texts."""
    monkeypatch.setattr(corpora, "WINDOW", 600)


@pytest.fixture
def piped(monkeypatch):
    """Makes bytes the standard input."""

    def pipe(content):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))

    return pipe


def objects(texts, targets=None, **fields):
    """A line of JSON for each text."""
    targets = targets or [None] * len(texts)
    return [
        json.dumps({"n": i, "text": text, "to": target, **fields})
        for i, (text, target) in enumerate(zip(texts, targets, strict=True))
    ]


def rows_of(out):
    return list(csv.DictReader(io.StringIO(out)))


def are_equal(out, other, tolerance=1e-6):
    """Whether two CSVs hold the same heads, with the same numbers within a tolerance."""
    ours, theirs = rows_of(out), rows_of(other)
    assert len(ours) == len(theirs) > 0
    for row, of_other in zip(ours, theirs, strict=True):
        assert list(row) == list(of_other)
        for name, value in row.items():
            if name == "stack" or value == "":
                assert value == of_other[name]
            else:
                assert float(value) == pytest.approx(float(of_other[name]), abs=tolerance, rel=tolerance)
    return True


def naive_rows(folder, texts, *, longest=64, special=True):
    """What a loop over transformers' own eager maps finds: mean and error by head and metric."""
    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    known = {"separators": [tokenizer.sep_token_id], "punctuation": [WORDS.index(".")]}
    sequences = {}
    for text in texts:
        given = tokenizer(text, return_tensors="pt", truncation=True, max_length=longest)
        with torch.no_grad():
            maps = model(**given, output_attentions=True).attentions
        ids = given["input_ids"][0].tolist()
        for layer, heads_of_layer in enumerate(maps):
            for head, weights in enumerate(heads_of_layer[0].double().tolist()):
                found = naive_metrics(weights, ids, ids, lambda i, j: True, **known)
                for name, numbers in found.items():
                    own = numbers if special else numbers[1:-1]
                    sequences.setdefault((layer, head, name), []).append(own)
    return {place: naive_mean(of_place) for place, of_place in sequences.items()}


def assert_is(record, expected):
    assert len(record["heads"]) * len(METRICS) == len(expected)
    for row in record["heads"]:
        for name in METRICS:
            mean, error = expected[row["layer"], row["head"], name]
            place = row["layer"], row["head"], name
            assert row[name] == pytest.approx(mean, abs=2e-5, rel=2e-5), place
            assert row["errors"][name] == pytest.approx(error, abs=2e-5, rel=1e-3)


# What is measured


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ["c.txt", "c.jsonl.gz", "-", "- of objects"])
def test_a_corpus_is_what_a_loop_over_its_texts_finds(attnscope, bert, write, piped, name):
    plain = TEXTS if "jsonl" not in name and "objects" not in name else objects(TEXTS)
    options = ["--field", "text"] if "objects" in name else []
    if name.startswith("-"):
        piped("\n".join(plain).encode())
        name = "-"
    else:
        write(name, plain)
    r = attnscope("heads", bert, "--corpus", name, *options, "-f", "json")
    assert r.exit_status == 0, r.err
    assert (r.json["sequences"], r.json["tokens"]) == (5, sum(len(t.split()) + 2 for t in TEXTS))
    assert (r.json["partial"], r.json["skipped"], r.json["notices"]) == (False, 0, [])
    assert_is(r.json, naive_rows(bert, TEXTS))


@pytest.mark.sweep
def test_a_corpus_is_the_mean_of_its_texts_by_the_number_of_queries(attnscope, write):
    """With the bundled model, and each text by itself through the same command."""
    texts = ["The cat sat on the mat.", "Why?", "It was tired, and so was the dog, who slept."]
    names = ["entropy", "largest", "distance", "self"]  # every query counts for these
    alone = [
        attnscope("heads", "minilm", "--text", text, "--metrics", ",".join(names), "-f", "json").json
        for text in texts
    ]
    command = ["heads", "minilm", "--corpus", write("c.txt", texts), "--metrics", ",".join(names)]
    together = attnscope(*command, "-f", "json").json
    n = np.array([each["tokens"] for each in alone])
    assert together["tokens"] == n.sum()
    for i, row in enumerate(together["heads"]):
        for name in names:
            values = np.array([each["heads"][i][name] for each in alone])
            mean = (n * values).sum() / n.sum()
            residuals = n * (values - mean)
            error = np.sqrt(3 / 2 * (residuals**2).sum()) / n.sum()
            assert row[name] == pytest.approx(mean, abs=1e-5)
            assert row["errors"][name] == pytest.approx(error, rel=1e-3, abs=1e-5)


def test_queries_that_the_tokenizer_added_can_be_left_out(attnscope, bert, write):
    command = ["heads", bert, "--corpus", write("c.txt", TEXTS), "--no-special", "-f", "json"]
    assert_is(attnscope(*command).json, naive_rows(bert, TEXTS, special=False))


@pytest.mark.sweep
@pytest.mark.parametrize("tokens", swept([1, 20, 100_000], [20]))
def test_how_many_are_read_at_once_does_not_matter(attnscope, bert, write, tokens):
    command = ["heads", bert, "--corpus", write("c.txt", drawn(40)), *CSV]
    assert are_equal(attnscope(*command, "--batch-tokens", tokens).out, attnscope(*command).out, 1e-5)


def test_texts_that_are_cut_are_counted(attnscope, bert, write):
    texts = [*TEXTS, "the dog ran . " * 30]
    command = ["heads", bert, "--corpus", write("c.txt", texts), "-f", "json"]
    cut = attnscope(*command, "--max-length", 9)
    assert cut.json["notices"] == ["4 of 6 texts were truncated to 9 tokens."]
    assert_is(cut.json, naive_rows(bert, texts, longest=9))
    whole = attnscope(*command)
    assert whole.json["notices"] == ["1 of 6 texts were truncated to 64 tokens."]
    assert_is(whole.json, naive_rows(bert, texts))


@pytest.mark.sweep
def test_a_decoder_reads_the_targets(attnscope, saved, write):
    folder = saved("bart")
    command = ["heads", folder, "--corpus", write("c.jsonl", objects(TEXTS, TARGETS)), "-f", "json"]
    names = ["entropy", "largest", "effective"]
    r = attnscope(*command, "--target-field", "to", "--metrics", ",".join([*names, "previous"]))
    assert r.exit_status == 0
    assert list(r.json["stacks"]) == ["encoder", "decoder", "cross"]
    alone = []
    for text, target in zip(TEXTS, TARGETS, strict=True):
        given = ["--text", text, "--target", target, "--metrics", ",".join(names), "-f", "json"]
        alone.append(attnscope("heads", folder, *given).json["heads"])
    of_text, of_target = ([len(t.split()) + 2 for t in texts] for texts in (TEXTS, TARGETS))
    assert r.json["tokens"] == sum(of_text) + sum(of_target)
    for i, row in enumerate(r.json["heads"]):
        n = np.array(of_text if row["stack"] == "encoder" else of_target)
        for name in names:
            values = np.array([each[i][name] for each in alone])
            assert row[name] == pytest.approx((n * values).sum() / n.sum(), abs=1e-5)
        assert (row["previous"] is None) == (row["stack"] == "cross")
    alone = attnscope(*command, "--target-field", "to", "--stack", "cross", "--layer", 2, "--head", 3)
    [only] = alone.json["heads"]
    assert (only["stack"], only["layer"], only["head"]) == ("cross", 2, 3)
    assert all((only[name] is None) == (name not in CROSS) for name in METRICS)


# What is no text


@pytest.mark.few(2)
@pytest.mark.parametrize("format", FORMATS)
def test_lines_that_are_no_text_are_skipped_counted_and_the_first_is_named(
    attnscope, bert, write, format
):
    lines = [TEXTS[0], "", b"\xff\xfe", TEXTS[1], "  ", b"a\0b", *TEXTS[2:]]
    r = attnscope("heads", bert, "--corpus", write("c.txt", lines), "-f", format)
    assert r.exit_status == 0
    told = " ".join((r.out + r.err).split())
    assert "line 3 of c.txt is not UTF-8." in told
    if format == "json":
        assert (r.json["skipped"], r.json["sequences"]) == (2, 5)
        assert_is(r.json, naive_rows(bert, TEXTS))
    elif format == "csv":
        assert r.out == attnscope("heads", bert, "--corpus", write("d.txt", TEXTS), *CSV).out
    else:
        assert "skipped: 2 lines without text" in told


@pytest.mark.sweep
def test_a_long_stretch_without_a_text_is_passed_over(attnscope, bert, write):
    gap = ['{"no": "text"}'] * 80_000  # more than a mebibyte: a window without a text
    for lines in ([*gap, *objects(TEXTS)], [*objects(TEXTS), *gap], objects(TEXTS)):
        r = attnscope("heads", bert, "--corpus", write("c.jsonl", lines), "-f", "json")
        assert r.exit_status == 0, r.err
        assert r.json["skipped"] == len(lines) - len(TEXTS)
        assert_is(r.json, naive_rows(bert, TEXTS))


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("name", "lines", "options", "message"),
    [
        ("c.txt", ["", "  ", ""], [], "c.txt has no text that MODEL can read."),
        ("c.txt", [b"\xff", "", b"a\0"], [], "c.txt has no text that MODEL can read: line 1 is not UTF-8."),
        ("c.jsonl", objects(TEXTS), ["--field", "body"], "c.jsonl has no text that MODEL can read: line 1 has no field 'body'; it has 'n', 'text', 'to'."),
        ("c.txt", TEXTS, ["--field", "text"], "--field names a field of objects, and the lines of c.txt are plain text."),
        ("c.jsonl", objects(TEXTS, TEXTS), ["--target-field", "to"], "--target-field is for encoder-decoder models, and MODEL (bert)"),
        ("c.csv", TEXTS, [], "c.csv ends in .csv, which is not a format for texts."),
        ("c.txt", TEXTS, ["--memory", "1K"], "MODEL needs at least"),
        ("c.txt", TEXTS, ["--layer", 2], "there is no layer 2 in MODEL: it has layers 0 to 1."),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_told_and_nothing_is_written(attnscope, bert, write, name, lines, options, message):  # fmt: skip
    write(name, lines)
    before = set(Path().iterdir())
    command = ["heads", bert, "--corpus", name, "--page", "x.html", "--checkpoint", "run.npz"]
    r = attnscope(*command, *options)
    assert (r.exit_status, r.out) == (2, "")
    assert message.replace("MODEL", str(bert)) in r.err
    assert set(Path().iterdir()) == before


def test_what_to_do_against_too_little_memory_is_something_for_a_corpus(attnscope, bert, write):
    r = attnscope("heads", bert, "--corpus", write("c.txt", TEXTS), "--memory", "1K")
    assert "--truncate" not in r.err  # which is for one text
    assert "--batch-tokens" in r.err


def test_the_plan_is_told_before_anything_is_read(attnscope, bert, write, every_plan):
    r = attnscope("heads", bert, "--corpus", write("c.txt", TEXTS), "--batch-tokens", 200, *CSV)
    [line] = r.err.splitlines()
    assert re.match(r"attnscope: 4 × 64 tokens take [\d.]+ MiB: .* queries' weights at once", line)
    r = attnscope("heads", bert, "--corpus", "c.txt", "--batch-tokens", 20, *CSV)
    assert r.err.startswith("attnscope: 64 tokens take ")


def test_texts_without_a_token_of_their_own_are_counted(attnscope, bert, write):
    texts = [TEXTS[0], "[CLS]", TEXTS[1], "[SEP] [SEP]"]
    command = ["heads", bert, "--corpus", write("c.txt", texts), "-f", "json", "--checkpoint", "run.npz"]
    for _ in range(2):
        record = attnscope(*command).json
        assert (record["sequences"], record["skipped"]) == (2, 2)
        assert f"2 texts skipped: no tokens in {bert}." in record["notices"]


def test_a_metric_that_no_query_has_is_told_where_heads_are_sorted_by_it(attnscope, saved, write):
    command = ["heads", saved("llama"), "--corpus", write("c.txt", TEXTS)]
    told = "no query has a value for next: the heads are in the order of layers."
    assert told in attnscope(*command, "--sort", "next").out
    assert told not in attnscope(*command, "--sort", "previous").out


def test_a_page_and_a_plot_are_of_the_numbers(attnscope, bert, write):
    command = ["heads", bert, "--corpus", write("c.txt", TEXTS), "--sort", "self", "-f", "json"]
    r = attnscope(*command, "--page", "x.html", "--plot", "x.svg")
    assert r.exit_status == 0
    assert "; without maps: each text of a corpus has its own maps" in r.err
    data = json.loads(re.search(r'id="data">(.*?)</script>', Path("x.html").read_text(), re.S)[1])
    [stack] = data["stacks"]
    assert data["metric"] == "self"
    names = [metric["name"] for metric in data["metrics"]]
    found = {(row["layer"], row["head"]): row for row in r.json["heads"]}
    assert len(stack["heads"]) == 6
    for head in stack["heads"]:
        row = found[head["layer"], head["head"]]
        assert head["values"][names.index("self")] == pytest.approx(row["self"], rel=1e-5)
        assert head["errors"][names.index("self")] == pytest.approx(row["errors"]["self"], rel=1e-2)
        assert "weights" not in head
    assert ">self" in Path("x.svg").read_text()


# Checkpoints


@pytest.fixture
def stops(monkeypatch):
    """Lets something happen in place of the measurement of one batch, counted from 0."""
    measure = HeadMeasurer.measure

    def stop(at, what):
        seen = []

        def measured(self, batch):
            if len(seen) == at:
                monkeypatch.setattr(HeadMeasurer, "measure", measure)
                raise what
            seen.append(batch)
            return measure(self, batch)

        monkeypatch.setattr(HeadMeasurer, "measure", measured)

    return stop


@pytest.fixture
def clock(monkeypatch):
    """Makes each look at the clock take two seconds."""
    now = [0.0]

    def later():
        now[0] += 2.0
        return now[0]

    monkeypatch.setattr(corpus_run.time, "monotonic", later)
    return now


@pytest.mark.parametrize(
    ("at", "name"),
    swept([(1, "c.txt"), (9, "c.txt"), (2, "c.jsonl.gz"), (5, "c.jsonl.gz")], [(5, "c.jsonl.gz")]),
)
def test_a_run_that_is_interrupted_goes_on_to_the_same_bits(attnscope, bert, write, small_windows, stops, at, name):  # fmt: skip
    texts = drawn(150)
    write(name, texts if name == "c.txt" else objects(texts))
    command = ["heads", bert, "--corpus", name, "--batch-tokens", 300]
    whole = attnscope(*command, *CSV).out
    stops(at, KeyboardInterrupt)
    r = attnscope(*command, "--checkpoint", "run.npz", "-f", "json")
    assert r.exit_status == 130
    assert r.json["partial"] is True
    assert 0 < r.json["sequences"] < 150
    assert len(r.json["heads"]) == 6
    r = attnscope(*command, "--checkpoint", "run.npz", *CSV)
    assert r.exit_status == 0
    assert re.search(r"run\.npz has \d+ texts: continuing", r.err)
    assert r.out == whole


@pytest.mark.few(2)
@pytest.mark.parametrize("format", ["table", "json"])
def test_what_an_interrupted_run_has_is_shown_and_marked_partial(attnscope, bert, write, small_windows, stops, format):  # fmt: skip
    command = ["heads", bert, "--corpus", write("c.txt", drawn(150)), "--sort", "entropy", "-f", format]
    stops(5, KeyboardInterrupt)
    r = attnscope(*command)
    assert r.exit_status == 130
    assert "entropy" in r.out
    partial = {"json": '"partial": true'}.get(
        format, "partial: the run ended before the end of the corpus"
    )
    assert partial in r.out


def test_what_an_interrupted_run_shows_is_of_the_texts_that_it_has_read(attnscope, bert, write, small_windows, stops, monkeypatch):  # fmt: skip
    """Whole windows, and of the one that it was in the batches that were measured."""
    read, measure = [], HeadMeasurer.measure
    command = ["heads", bert, "--corpus", write("c.txt", drawn(90)), "--batch-tokens", 100, "-f", "json"]
    stops(7, KeyboardInterrupt)
    stopping = HeadMeasurer.measure

    def noting(self, batch):
        found = stopping(self, batch)
        read.extend(batch.texts)
        return found

    monkeypatch.setattr(HeadMeasurer, "measure", noting)
    r = attnscope(*command)
    monkeypatch.setattr(HeadMeasurer, "measure", measure)
    tokenizer = AutoTokenizer.from_pretrained(bert)
    texts = [tokenizer.decode(text.inputs["input_ids"][1:-1]) for text in read]
    assert r.json["sequences"] == len(texts) > 10
    assert_is(r.json, naive_rows(bert, texts))


@pytest.mark.sweep
@pytest.mark.parametrize("at", swept([1, 7], [7]))
def test_what_an_interrupted_run_shows_is_what_it_goes_on_from(attnscope, bert, write, stops, monkeypatch, at):  # fmt: skip
    """In the middle of the only window, whose batches are not measured twice."""
    command = ["heads", bert, "--corpus", write("c.txt", drawn(150)), "--batch-tokens", 300]
    whole = attnscope(*command, *CSV).out
    read, measure = [], HeadMeasurer.measure
    command += ["--checkpoint", "run.npz"]
    stops(at, KeyboardInterrupt)
    partial = attnscope(*command, "-f", "json").json
    assert 0 < partial["sequences"] < 150
    stops(2, KeyboardInterrupt)
    further = attnscope(*command, "-f", "json")
    assert f"run.npz has {partial['sequences']} texts: continuing" in further.err
    assert further.json["sequences"] > partial["sequences"]

    def noting(self, batch):
        read.extend(batch.texts)
        return measure(self, batch)

    monkeypatch.setattr(HeadMeasurer, "measure", noting)
    r = attnscope(*command, *CSV)
    assert f"run.npz has {further.json['sequences']} texts: continuing" in r.err
    assert len(read) == 150 - further.json["sequences"]
    assert r.out == whole


def test_an_interruption_before_anything_was_measured_shows_nothing(attnscope, bert, write, stops):
    write("c.txt", TEXTS)
    stops(0, KeyboardInterrupt)
    r = attnscope("heads", bert, "--corpus", "c.txt", "--checkpoint", "run.npz")
    assert (r.exit_status, r.out) == (130, "")
    again = attnscope("heads", bert, "--corpus", "c.txt", "--checkpoint", "run.npz", *CSV)
    assert again.exit_status == 0
    assert again.out == attnscope("heads", bert, "--corpus", "c.txt", *CSV).out


@pytest.mark.sweep
def test_an_error_leaves_a_run_to_go_on_with(attnscope, bert, write, small_windows, stops):
    command = ["heads", bert, "--corpus", write("c.txt", drawn(150))]
    whole = attnscope(*command, *CSV).out
    stops(6, ModelError("the machine is on fire."))
    r = attnscope(*command, "--checkpoint", "run.npz")
    assert (r.exit_status, r.out) == (2, "")
    assert attnscope(*command, "--checkpoint", "run.npz", *CSV).out == whole


@pytest.mark.few(1)
@pytest.mark.parametrize("window", [600, 2**16])
def test_a_run_is_kept_every_few_seconds(attnscope, bert, write, monkeypatch, clock, window):
    """However many windows the corpus has."""
    monkeypatch.setattr(corpora, "WINDOW", window)
    saved, save = [], corpus_run.save_state

    def noting(path, progress, settings, **options):
        saved.append((clock[0], progress.whole.sequences))
        save(path, progress, settings, **options)

    monkeypatch.setattr(corpus_run, "save_state", noting)
    command = ["heads", bert, "--corpus", write("c.txt", drawn(150)), "--batch-tokens", 200]
    assert attnscope(*command, "--checkpoint", "run.npz").exit_status == 0
    assert len(saved) > 3
    times, sequences = zip(*saved, strict=True)
    assert all(5 < after - before < 12 for before, after in pairwise(times[:-1]))
    assert list(sequences) == [*sorted(set(sequences[:-1])), 150]


def test_numbers_are_shown_even_if_a_run_cannot_be_saved(attnscope, bert, write, full_disk):
    command = ["heads", bert, "--corpus", write("c.txt", drawn(9)), "--batch-tokens", 50, *CSV]
    shown = attnscope(*command)
    there = os.listdir(full_disk)
    r = attnscope(*command, "--checkpoint", full_disk / "run.npz")
    assert (r.exit_status, r.out) == (2, shown.out)
    assert r.err.endswith("run.npz: No space left on device.\n")
    assert os.listdir(full_disk) == there


def test_a_file_that_another_program_makes_meanwhile_is_left_alone(attnscope, bert, write, monkeypatch):
    save = corpus_run.save_state

    def too_late(path, *run, **options):
        Path(path).write_text("another's")
        save(path, *run, **options)

    monkeypatch.setattr(corpus_run, "save_state", too_late)
    command = ["heads", bert, "--corpus", write("c.txt", drawn(9)), "--batch-tokens", 50, *CSV]
    shown = attnscope(*command)
    r = attnscope(*command, "--checkpoint", "run.npz")
    assert (r.exit_status, r.out) == (2, shown.out)
    assert r.err.splitlines()[-2:] == [
        "attnscope: error: another program created run.npz after this run had started; it was not overwritten.",
        "  try  move that file, or use another name for --checkpoint",
    ]
    assert Path("run.npz").read_text() == "another's"


def test_what_cannot_be_saved_for_a_while_is_saved_later(attnscope, bert, write, monkeypatch, clock):
    tries, save = [], corpus_run.save_state

    def full_at_first(path, *run, **options):
        tries.append(path)
        if len(tries) < 3:
            raise FileError(f"cannot write {path}: No space left on device.")
        save(path, *run, **options)

    monkeypatch.setattr(corpus_run, "save_state", full_at_first)
    command = ["heads", bert, "--corpus", write("c.txt", drawn(150)), "--batch-tokens", 200, *CSV]
    r = attnscope(*command, "--checkpoint", "run.npz")
    assert r.exit_status == 0
    assert r.err.count("No space left on device. The run continues and is saved as soon as") == 1
    assert attnscope(*command, "--checkpoint", "run.npz").out == r.out


@pytest.mark.sweep
@pytest.mark.parametrize("family", ["xlnet", "bart"])
def test_a_run_that_has_ended_is_shown_at_once(attnscope, saved, write, monkeypatch, family):
    folder = saved(family)
    lines = [*objects(TEXTS, TARGETS), "no JSON", *objects(["the cat sat on . " * 40], ["a"])]
    command = ["heads", folder, "--corpus", write("c.jsonl", lines), "--checkpoint", "run.npz"]
    command += ["--target-field", "to"] if family == "bart" else []
    first = {format: attnscope(*command, "-f", format) for format in FORMATS}
    assert first["table"].exit_status == 0
    content = Path("run.npz").read_bytes()
    monkeypatch.setattr(HeadMeasurer, "measure", lambda *_: pytest.fail("it is measured again"))
    for format in FORMATS:
        r = attnscope(*command, "-f", format)
        assert r.exit_status == 0
        assert "run.npz has 6 texts: the whole corpus" in r.err
        assert r.out == first[format].out
    assert Path("run.npz").read_bytes() == content


@pytest.mark.sweep
def test_what_does_not_decide_the_numbers_can_be_changed(attnscope, bert, write):
    command = ["heads", bert, "--corpus", write("c.txt", TEXTS)]
    attnscope(*command, "--checkpoint", "run.npz")
    shown = [["--sort", "self", "--reverse", "--top", 2], ["--head", "0,2"]]
    for options in (*shown, ["--memory", "100M"], ["--page", "x.html"]):
        kept = attnscope(*command, *options, *CSV, "--checkpoint", "run.npz")
        assert "the whole corpus" in kept.err
        options = [*options, "--force"] if "--page" in options else options
        assert kept.out == attnscope(*command, *options, *CSV).out


def test_what_the_model_lacks_is_told_of_a_run_that_has_ended_too(attnscope, bert, write):
    command = ["heads", bert, "--corpus", write("c.txt", TEXTS), "--checkpoint", "run.npz"]
    attnscope(*command)
    assert "there is no head 9 in" in attnscope(*command, "--head", 9).err


SETTINGS = [
    (["--metrics", "entropy,self"], "metrics"),
    (["--no-special"], "special"),
    (["--without-sink"], "without_sink"),
    (["--weigh", "value"], "weigh"),
    (["--layer", 1], "layer"),
    (["--stack", "self"], "stack"),
    (["--max-length", 9], "9"),
    (["--batch-tokens", 50], "50"),
    (["--dtype", "bfloat16"], "bfloat16"),
    (["--field", "to"], "to"),
]


@pytest.mark.sweep
def test_a_run_with_other_settings_is_refused_and_the_difference_named(attnscope, bert, write):
    command = ["heads", bert, "--corpus", write("c.jsonl", objects(TEXTS, TARGETS))]
    attnscope(*command, "--checkpoint", "run.npz")
    content = Path("run.npz").read_bytes()
    for options, named in SETTINGS:
        r = attnscope(*command, "--checkpoint", "run.npz", *options)
        assert (r.exit_status, r.out) == (2, ""), options
        [error] = [line for line in r.err.splitlines() if "error:" in line]
        assert "run.npz is from a run with " in error
        assert named in error
        assert "another name for --checkpoint" in r.err
        assert Path("run.npz").read_bytes() == content


@pytest.mark.parametrize("change", ["another name", "longer", "another beginning"])
def test_a_run_over_another_corpus_is_refused(attnscope, bert, write, change):
    attnscope("heads", bert, "--corpus", write("c.txt", TEXTS), "--checkpoint", "run.npz")
    name = "d.txt" if change == "another name" else "c.txt"
    texts = {"longer": [*TEXTS, "a"], "another beginning": [*TEXTS[::-1]]}.get(change, TEXTS)
    r = attnscope("heads", bert, "--corpus", write(name, texts), "--checkpoint", "run.npz")
    assert (r.exit_status, r.out) == (2, "")
    [error] = [line for line in r.err.splitlines() if "error:" in line]
    assert "corpus" in error
    assert "{" not in error  # in words


def test_a_run_of_a_model_that_has_other_weights_by_now_is_refused(attnscope, write, tmp_path):
    command = ["heads", "bert", "--corpus", write("c.txt", TEXTS), "--checkpoint", "run.npz"]
    save_reader("bert", tmp_path / "bert")
    assert attnscope(*command).exit_status == 0
    with changed_weights(tmp_path / "bert") as weights:
        weights["encoder.layer.1.attention.self.query.bias"][0] += 1
    r = attnscope(*command)
    assert (r.exit_status, r.out) == (2, "")
    assert "run.npz is from a run with weights " in r.err


def test_a_run_that_ended_before_it_was_told_so_knows_how_its_model_ran(attnscope, saved, write):
    command = ["heads", saved("deberta-v2"), "--corpus", write("c.txt", TEXTS)]
    command += ["--checkpoint", "run.npz"]
    whole = attnscope(*command, "-f", "json")
    with np.load("run.npz") as stored:
        settings = json.loads(str(stored["about"]))["settings"]
    path = Path("run.npz")
    save_state(path, replace(load_state(path, settings), done=False), settings)
    for _ in range(2):
        assert attnscope(*command, "-f", "json").out == whole.out
    assert "own eager attention" in whole.out


@pytest.mark.sweep
def test_a_run_over_standard_input_goes_on_where_it_was(
    attnscope, bert, write, piped, small_windows, stops
):
    content = "\n".join(drawn(150)).encode()
    command = ["heads", bert, "--corpus", "-", *CSV]
    piped(content)
    whole = attnscope(*command).out
    piped(content)
    stops(5, KeyboardInterrupt)
    assert attnscope(*command, "--checkpoint", "run.npz").exit_status == 130
    piped(content)
    assert attnscope(*command, "--checkpoint", "run.npz").out == whole
    Path("run.npz").unlink()
    piped(content)
    stops(5, KeyboardInterrupt)
    attnscope(*command, "--checkpoint", "run.npz")
    piped(content[:100])
    r = attnscope(*command, "--checkpoint", "run.npz")
    assert (r.exit_status, r.out) == (2, "")
    assert "before the position at which to resume." in r.err


# Processes

N_TEXTS = 5800


@pytest.fixture(scope="module")
def large(saved, tmp_path_factory):
    """A model, a corpus of several windows, and the table of it."""
    folder = saved("bert", max_position_embeddings=64)
    corpus = tmp_path_factory.mktemp("large") / "c.txt"
    corpus.write_text("\n".join(drawn(N_TEXTS, seed=1)) + "\n")
    assert 5 < corpus.stat().st_size / corpora.WINDOW < 6
    whole = heads(folder, "--corpus", corpus, *CSV)
    assert whole.exit_status == 0, whole.err
    assert len(rows_of(whole.out)) == 6
    return folder, corpus, whole.out


def of_json(out):
    record = json.loads(out)
    assert record["schema"] == "attnscope.heads/1"
    return record


@pytest.mark.sweep
@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 3])
def test_however_many_processes_there_are_the_table_is_the_same(large, ranks):
    folder, corpus, whole = large
    r = heads(folder, "--corpus", corpus, *CSV, ranks=ranks)
    assert r.exit_status == 0, r.err
    assert are_equal(r.out, whole)
    assert r.err == ""


@pytest.mark.sweep
@pytest.mark.slow
@pytest.mark.parametrize("n_without_text", [0, 80_000])
def test_processes_find_the_same_in_fewer_windows_or_where_the_first_has_no_text(
    attnscope, saved, tmp_path, n_without_text
):
    """The second process measures before the first has seen a text; xlnet has to run eager."""
    lines = [*['{"no": "text"}'] * n_without_text, *objects(TEXTS)]
    (tmp_path / "c.jsonl").write_text("\n".join(lines))
    command = [saved("xlnet"), "--corpus", tmp_path / "c.jsonl", "--metrics", "entropy,same", *CSV]
    r = heads(*command, ranks=2 if n_without_text else 3)
    assert r.exit_status == 0, r.err
    assert are_equal(r.out, attnscope("heads", *command).out)


@pytest.mark.sweep
@pytest.mark.slow
def test_processes_tell_an_error_and_end(bert, tmp_path):
    (tmp_path / "c.txt").write_text("\n".join(TEXTS))
    r = heads(bert, "--corpus", tmp_path / "c.txt", "--layer", 9, ranks=2)
    assert r.exit_status != 0
    assert r.out == ""
    assert "there is no layer 9" in r.err
    assert "attnscope/cli" not in r.err  # torchrun's own traceback is there, and none of ours


@pytest.mark.sweep
@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_process_that_is_stopped_goes_on_to_the_same_bits(large, tmp_path, how):
    folder, corpus, whole = large
    hold, run = Hold(tmp_path, at=11), tmp_path / "run.npz"
    options = ["--corpus", corpus, "--checkpoint", run]
    with running(command(folder, *options, "-f", "json", hold=hold)) as process:
        hold.processes(1)
        process.process.send_signal(how)
        r = process.end()
    if how is signal.SIGINT:
        assert r.exit_status == 130
        partial = of_json(r.out)
        assert partial["partial"] is True
        assert 500 < partial["sequences"] < N_TEXTS
        assert "Traceback" not in r.err
    else:
        assert (r.exit_status, r.out) == (-signal.SIGKILL, "")
    again = heads(folder, *options, *CSV)
    assert again.exit_status == 0
    [told] = re.findall(r"run\.npz has ([\d,]+) texts: continuing", again.err)
    assert how is signal.SIGKILL or told == f"{partial['sequences']:,}"
    assert again.out == whole


@pytest.mark.sweep
@pytest.mark.slow
@pytest.mark.parametrize(("lost", "ranks", "then"), [(0, 2, 3), (2, 3, 2)])
def test_a_process_that_is_lost_ends_the_run_which_goes_on_to_the_same_table(large, tmp_path, lost, ranks, then):  # fmt: skip
    folder, corpus, whole = large
    hold, run = Hold(tmp_path, at=6), tmp_path / "run.npz"
    options = ["--corpus", corpus, "--checkpoint", run]
    with running(command(folder, *options, *CSV, hold=hold, ranks=ranks)) as process:
        ids = hold.processes(ranks)
        os.kill(ids[lost], signal.SIGKILL)
        r = process.end()
    assert r.exit_status not in (0, 130)
    assert r.out == ""
    again = heads(folder, *options, *CSV, ranks=then)
    assert again.exit_status == 0, again.err
    assert len(re.findall(r"run\.npz has [\d,]+ texts: continuing", again.err)) == 1
    assert are_equal(again.out, whole)


@pytest.mark.sweep
@pytest.mark.slow
def test_processes_that_are_interrupted_show_what_they_have(large, tmp_path):
    folder, corpus, whole = large
    hold, run = Hold(tmp_path, at=6), tmp_path / "run.npz"
    options = ["--corpus", corpus, "--checkpoint", run]
    with running(command(folder, *options, "-f", "json", hold=hold, ranks=2)) as process:
        hold.processes(2)
        process.interrupt()
        time.sleep(1)  # second: torchrun hands it on
        hold.go_on()
        r = process.end()
    assert r.exit_status != 0
    partial = of_json(r.out)
    assert partial["partial"] is True
    assert 500 < partial["sequences"] < N_TEXTS
    assert "attnscope: error" not in r.err
    again = heads(folder, *options, *CSV, ranks=2)
    assert f"run.npz has {partial['sequences']:,} texts: continuing" in again.err
    assert are_equal(again.out, whole)


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return str(listening.getsockname()[1])


def by_hand(rank, port):
    """What torchrun tells a process, of two."""
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return environment(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", **where)


@pytest.mark.sweep
@pytest.mark.slow
def test_a_process_that_is_lost_is_told_of_where_nobody_watches_over_them(large, tmp_path):
    """As under Slurm's srun."""
    folder, corpus, _ = large
    hold, port = Hold(tmp_path, at=6), free_port()
    line = command(folder, "--corpus", corpus, "--checkpoint", tmp_path / "run.npz", hold=hold)
    with ExitStack() as both:
        first, second = (both.enter_context(running(line, env=by_hand(rank, port))) for rank in range(2))
        ids = hold.processes(2)
        os.kill(ids[1], signal.SIGKILL)
        hold.go_on()
        r = first.end()
        second.end()
    assert (r.exit_status, r.out) == (2, "")
    assert "attnscope: error: another of the 2 processes is lost" in r.err
    assert "--checkpoint" in r.err
    assert "Traceback" not in r.err


def end_in_two_folders(line, folders):
    """What becomes of two processes that share a run, each in a folder of its own."""
    port = free_port()
    with ExitStack() as both:
        runs = [
            both.enter_context(running(line, env=by_hand(rank, port), cwd=folder))
            for rank, folder in enumerate(folders)
        ]
        return [run.end() for run in runs]


@pytest.mark.sweep
@pytest.mark.slow
@pytest.mark.parametrize("mistake", [False, True])
def test_no_process_takes_python_down_under_threads_that_may_abort_it(bert, write, mistake):
    corpus = write("c.txt", [] if mistake else TEXTS)
    line = [sys.executable, WATCHED, "heads", bert, "--corpus", corpus]
    for r in end_in_two_folders(line, [Path.cwd()] * 2):
        assert r.exit_status == (2 if mistake else 0), r.err


@pytest.mark.sweep
@pytest.mark.slow
@pytest.mark.parametrize("what", ["finds a different file at c.txt", "has different weights for bert"])
def test_processes_that_find_different_files_or_weights_are_told(tmp_path, what):
    folders, of_weights = [tmp_path / "here", tmp_path / "there"], "weights" in what
    for folder, texts in zip(folders, (TEXTS, TEXTS if of_weights else TEXTS[::-1]), strict=True):
        save_reader("bert", folder / "bert")
        (folder / "c.txt").write_text("\n".join(texts))
    if of_weights:
        with changed_weights(folders[1] / "bert") as weights:
            weights["encoder.layer.1.attention.self.query.bias"][0] += 1
    ended = end_in_two_folders(command("bert", "--corpus", "c.txt"), folders)
    for r in ended:
        assert (r.exit_status, r.out) == (2, "")
    assert any(f"process 1 {what} than process 0." in r.err for r in ended)


@pytest.mark.sweep
@pytest.mark.slow
def test_a_run_that_only_one_process_finds_goes_on_for_all(large, tmp_path):
    """Where machines share no folder, the first one has the checkpoint."""
    folder, corpus, whole = large
    folders = [tmp_path / "here", tmp_path / "there"]
    for each in folders:
        each.mkdir()
        copy(corpus, each / "c.txt")
    hold = Hold(tmp_path, at=11)
    options = ["--corpus", "c.txt", "--checkpoint", "run.npz"]
    with running(command(folder, *options, hold=hold), cwd=folders[0]) as run:
        hold.processes(1)
        run.process.kill()
        run.end()
    assert (folders[0] / "run.npz").exists()
    ended = end_in_two_folders(command(folder, *options, *CSV), folders)
    assert ended[0].exit_status == 0, ended[0].err
    assert are_equal(ended[0].out, whole)


# What is seen on a terminal


def told_on_a_terminal(line, until):
    """What a process tells on a terminal, up to the end or as soon as it has told something; and stdout."""
    shown, terminal = pty.openpty()
    told = ""
    try:
        with running(
            line, stderr=terminal, env=environment(TERM="xterm-256color", COLUMNS="100")
        ) as run:
            os.close(terminal)
            begun = time.monotonic()
            while time.monotonic() - begun < 100:
                if not select.select([shown], [], [], 1.0)[0]:
                    continue
                try:
                    told += os.read(shown, 10_000).decode(errors="replace")
                except OSError:  # how Linux says that nobody writes any more
                    break
                if until is not None and re.search(until, told):
                    run.interrupt()
                    until = None
            return run.end(), told
    finally:
        os.close(shown)


@pytest.mark.sweep
@pytest.mark.slow
def test_a_terminal_shows_how_far_a_run_is_and_stdout_the_table_alone(large):
    folder, corpus, whole = large
    r, told = told_on_a_terminal(command(folder, "--corpus", corpus, *CSV), until=None)
    assert r.exit_status == 0
    assert r.out == whole
    assert re.search(r"[\d,]+ texts · [\d,]+ tokens/s", told)
    shares = [int(share) for share in re.findall(r"(\d+)%", told)]
    assert shares == sorted(shares)
    assert len(set(shares)) > 2
    assert re.search(r"\d:\d\d:\d\d", told)  # the time that is left
    assert "\x1b[2K" in told[told.rindex("tokens/s") :]  # the line is empty again


@pytest.mark.sweep
def test_an_interruption_leaves_a_clean_terminal(large):
    folder, corpus, _ = large
    line = command(folder, "--corpus", corpus, "-f", "json")
    r, told = told_on_a_terminal(line, until=r"[1-9]\d* texts ·")
    assert r.exit_status == 130
    assert of_json(r.out)["partial"] is True
    assert "Traceback" not in told
    assert told.rfind("\x1b[?25h") > told.rfind("\x1b[?25l") > 0  # the cursor is there again
