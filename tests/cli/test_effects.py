"""`attnscope effects` on the command line."""

import csv
import gzip
import io
import json
import signal
import sys

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

import attnscope as library
from attnscope.model.effects.job import EffectJob
from tests.model.run.readers import save_reader

TEXT = "the cat sat on the mat because it was"


@pytest.fixture(scope="module")
def writer(tmp_path_factory):
    """Return the folder of a small Llama, with six heads in each of two layers."""
    folder = tmp_path_factory.mktemp("writer")
    save_reader("llama", folder)
    return folder


@pytest.fixture
def record(attnscope, writer):
    """Return a function that returns the record of the small Llama's effects."""

    def run(*arguments, text=TEXT):
        r = attnscope("effects", writer, "--text", text, *arguments, "--format", "json")
        assert r.exit_status == 0, r.err
        return r.json

    return run


def values(record, column):
    return {(row["layer"], row["head"]): row[column] for row in record["heads"]}


def test_the_prediction_stands_before_the_heads(attnscope, writer):
    r = attnscope("effects", writer, "--text", TEXT, "--answer", " tired", "--against", " dog")
    model = AutoModelForCausalLM.from_pretrained(writer)
    tokenizer = AutoTokenizer.from_pretrained(writer)
    with torch.no_grad():
        logits = model(**tokenizer(TEXT, return_tensors="pt", return_token_type_ids=False)).logits[0, -1]
    tired, dog = tokenizer.convert_tokens_to_ids(["tired", "dog"])
    lines = r.out.splitlines()
    assert lines[1] == "2 layers × 6 heads · 11 tokens"
    value = float(logits[tired] - logits[dog])
    assert lines[2].startswith(
        "logit of the answer, minus that of the other answer: 'tired' against 'dog'"
    )
    assert float(lines[2].rpartition(" ")[2]) == pytest.approx(value, rel=1e-3)
    best, share = int(logits.argmax()), float(logits.softmax(0).max())
    assert lines[3].startswith(f"the model's likeliest answers: '<{best}>' {share:.1%}, ")


def test_an_answer_is_tokenized_as_it_continues_the_text(record):
    assert record("--answer", " tired")["answer"].strip() == "tired"
    assert record("--answer", "tired")["baseline"] == record("--answer", " tired")["baseline"]


def test_several_tokens_of_an_answer_are_said(attnscope, writer):
    r = attnscope("effects", writer, "--text", TEXT, "--answer", " tired .")
    assert "--answer is 2 tokens: 'tired' '.'." in r.out
    assert "log-probability of the answer, in nats" in r.out


def test_every_format_has_every_head(attnscope, writer):
    options = ("effects", writer, "--text", TEXT, "--answer", "tired", "--columns", "zero,first-order")
    rows = list(csv.DictReader(io.StringIO(attnscope(*options, "--format", "csv").out)))
    assert list(rows[0]) == ["layer", "head", "zero", "first order"]
    assert len(rows) == 12
    markdown = attnscope(*options, "--format", "markdown").out
    assert markdown.count("\n| ") >= 12
    assert "- zero: the metric's change when the head's output before W_O is 0" in markdown
    assert "zero" in attnscope(*options).out


def test_columns_layers_and_heads_are_selected(record):
    some = record("--answer", "tired", "--columns", "mean", "--layers", "1", "--heads", "2-3")
    assert list(some["metrics"]) == ["mean"]
    everything = values(record("--answer", "tired"), "mean")
    same = {place: everything[place] for place in ((1, 2), (1, 3))}
    assert values(some, "mean") == pytest.approx(same, abs=1e-6)  # in other batches


def test_heads_are_ranked_by_the_size_of_an_effect(record):
    ranked = record("--answer", "tired", "--sort", "zero", "--top", "4")["heads"]
    sizes = [abs(row["zero"]) for row in ranked]
    everything = sorted(map(abs, values(record("--answer", "tired"), "zero").values()))
    assert sizes == everything[::-1][:4]
    weakest = record("--answer", "tired", "--sort", "zero", "--reverse", "--top", "1")["heads"]
    assert abs(weakest[0]["zero"]) == everything[0]


def test_top_alone_ranks_by_the_first_column(record):
    top = record("--answer", "tired", "--top", "3")["heads"]
    assert top == record("--answer", "tired", "--sort", "zero", "--top", "3")["heads"]


def test_a_position_may_be_a_number_a_range_the_last_or_a_token(record):
    options = ("--answer", "tired", "--columns", "zero", "--at")
    assert values(record(*options, "2"), "zero") == values(record(*options, "cat"), "zero")
    assert values(record(*options, "0-10"), "zero") == pytest.approx(
        values(record(*options[:-1]), "zero"), abs=1e-6
    )
    assert values(record(*options, "last"), "zero") == values(record(*options, "-1"), "zero")
    both = values(record(*options, "the"), "zero")
    assert both == values(record(*options, "1,5"), "zero")


def test_each_position_is_measured_and_drawn(attnscope, writer, record):
    options = ("--answer", "tired", "--columns", "zero", "--each-position")
    found = record(*options)
    assert found["places"] == list(range(11))
    for row in found["heads"]:
        assert row["zero"] == max(row["at"]["zero"], key=abs)
    alone = values(record("--answer", "tired", "--columns", "zero", "--at", "4"), "zero")
    at_4 = {(row["layer"], row["head"]): row["at"]["zero"][4] for row in found["heads"]}
    assert at_4 == pytest.approx(alone, abs=1e-6)
    r = attnscope("effects", writer, "--text", TEXT, *options)
    assert "zero  the strongest head of each layer, at each position" in r.out
    assert "\n2 cat" in r.out


def test_patched_heads_are_shares_of_the_difference(record):
    found = record("--answer", "tired", "--corrupt", "the dog sat on the mat because it was")
    assert list(found["metrics"]) == ["first order", "patched"]
    assert found["baseline"] != found["corrupted"]
    alone = record("--answer", "tired", text="the dog sat on the mat because it was")
    assert found["corrupted"] == pytest.approx(alone["baseline"], abs=1e-6)


def test_blocked_keys_are_hidden_in_one_head_or_in_all(record):
    found = record("--answer", "tired", "--block", "cat>last")
    assert list(found["metrics"]) == ["blocked"]
    one = record("--answer", "tired", "--block", "2>10", "--layer", "1", "--head", "3")
    assert one["blocked"] == pytest.approx(one["heads"][0]["blocked"], abs=1e-6)
    assert values(found, "blocked")[1, 3] == pytest.approx(one["blocked"], abs=1e-6)


def test_effects_of_a_file_are_those_of_its_text(attnscope, writer, record, tmp_path):
    path = tmp_path / "essay.txt"
    path.write_text(TEXT)
    r = attnscope("effects", writer, "--file", path, "--format", "json")
    assert r.json == record()
    assert r.json["metric"].startswith("loss")


@pytest.mark.parametrize("name", ["prompts.jsonl", "prompts.jsonl.gz", "-"])
def test_a_corpus_has_means_and_standard_errors(attnscope, writer, record, tmp_path, monkeypatch, name):
    texts = [TEXT, "a dog ran on the mat because the cat was"]
    lines = "".join(json.dumps({"text": text, "answer": " tired"}) + "\n" for text in texts) + "\n"
    if name == "-":
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
        path = "-"
    else:
        path = tmp_path / name
        path.write_bytes(gzip.compress(lines.encode()) if name.endswith("gz") else lines.encode())
    r = attnscope("effects", writer, "--corpus", path, "--columns", "zero,direct", "--format", "json")
    singles = [
        values(record("--answer", " tired", "--columns", "zero", text=text), "zero") for text in texts
    ]
    assert r.json["prompts"] == 2
    for row in r.json["heads"]:
        a, b = (each[row["layer"], row["head"]] for each in singles)
        assert row["zero"] == pytest.approx((a + b) / 2, abs=1e-6)
        assert row["errors"]["zero"] == pytest.approx(abs(a - b) / 2, abs=1e-6)


def test_masked_tokens_classes_and_embeddings_are_measured(attnscope, tmp_path):
    save_reader("bert", tmp_path / "masked", AutoModelForMaskedLM)
    r = attnscope("effects", tmp_path / "masked", "--text", "the [MASK] sat .", "--answer", "cat")
    assert r.exit_status == 0, r.err
    assert "there are no direct effects" in r.out
    assert "a norm follows the sum" in " ".join(r.out.split())
    save_reader("bert", tmp_path / "classifier", AutoModelForSequenceClassification)
    r = attnscope("effects", tmp_path / "classifier", "--text", "the cat sat .", "--answer", "label_1")
    assert "logit of the answer: 'LABEL_1'" in r.out
    save_reader("bert", tmp_path / "bare")
    r = attnscope("effects", tmp_path / "bare", "--text", "the cat sat .", "--answer", "a dog ran .")
    assert "cosine of the embedding and that of the answer" in r.out
    r = attnscope("effects", tmp_path / "bare", "--text", "the cat sat .")
    assert "which predicts no tokens" in r.out


def test_an_encoder_decoder_has_heads_of_three_stacks(attnscope, tmp_path):
    save_reader("t5", tmp_path)
    r = attnscope("effects", tmp_path, "--text", TEXT, "--target", "a dog ran", "--format", "json")
    assert list(r.json["stacks"]) == ["encoder", "decoder", "cross"]
    assert r.json["metric"].startswith("loss")
    r = attnscope(
        *("effects", tmp_path, "--text", TEXT, "--target", "a dog", "--answer", "ran"),
        *("--at", "last", "--stack", "cross", "--format", "json"),
    )
    assert {row["stack"] for row in r.json["heads"]} == {"cross"}


def test_files_are_written_and_kept(attnscope, writer, tmp_path):
    options = ("effects", writer, "--text", TEXT, "--answer", "tired", "--columns", "zero")
    page, plot = tmp_path / "effects.html", tmp_path / "effects.svg"
    r = attnscope(*options, "--page", page, "--plot", plot)
    assert r.exit_status == 0, r.err
    assert "12 heads with their maps" in r.err
    text = page.read_text()
    assert '"signed":true' in text.replace(" ", "")
    assert "the model&#39;s likeliest answers" in text
    assert "<span>weights</span>" in text, "one may switch between both maps"
    assert "<span>value-weighted</span>" in text
    assert "<svg" in plot.read_text()
    r = attnscope(*options, "--page", page)
    assert (r.exit_status, r.out) == (2, "")
    assert "--force" in r.err


def test_a_record_is_read_back(attnscope, writer, tmp_path):
    table = library.effects(writer, TEXT, answer=" tired", each_position=True)
    table.save(tmp_path / "effects.json")
    loaded = library.load(tmp_path / "effects.json")
    assert loaded.to_dict() == table.to_dict()
    assert loaded._repr_html_() == table._repr_html_()


@pytest.mark.few(6)
@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        ([], "there is no input.", '--text "…", --file FILE or --corpus FILE'),
        (["--text", "the cat", "--columns", "zer"], "--columns: there is no column 'zer'.", "zero"),
        (["--text", "the cat", "--columns", "zero", "--sort", "mean"],
         "--sort mean is not among --columns zero.", None),
        (["--text", "the cat", "--columns", "patched"], "patched needs a corrupted text.", '--corrupt "…"'),
        (["--text", "the cat", "--columns", "blocked"], "blocked needs keys to block.", "--block '0-3>last'"),
        (["--text", "the cat sat", "--corrupt", "the cat"],
         "--text is 5 tokens and --corrupt is 4: each head's output at a position is put into the other run,"
         " so both must be equally long.", "words of as many tokens"),
        (["--text", "the cat", "--corrupt", "the cat"], "--corrupt is the same tokens as --text.", "another text"),
        (["--text", "the cat", "--answer", "sat", "--against", "sat"],
         "--answer and --against are the same tokens.", "another --against"),
        (["--text", "the cat", "--answer", "sat on", "--metric", "logit"],
         "the logit is that of one token, and the answer is 2.", "--metric log-probability, which is summed over them"),
        (["--text", "the cat", "--metric", "accuracy"], "there is no metric 'accuracy'.",
         "logit, log-probability, loss, similarity, distance"),
        (["--text", "the cat", "--answer", "sat", "--metric", "loss"],
         "--metric loss is measured on the text itself, without --answer.", "--metric log-probability"),
        (["--text", "the cat", "--at", "9"], "--at: there is no position 9: the text has 4 tokens.", None),
        (["--text", "the cat", "--at", "dog"], "--at: 'dog' is not a token of the text, nor a position.",
         "--at 0-3, last, or a token"),
        (["--text", "the cat", "--block", "1"], "--block '1' has no >.", "--block 'KEYS>QUERIES'"),
        (["--text", "the cat", "--block", "0-3>last"], "--block leaves query 3 no key to read.",
         "fewer keys, or another query"),
        (["--text", "the cat", "--layer", "7"], "there is no layer 7 in", None),
        (["--text", "the cat", "--columns", "direct"], "has no direct effects: contributions sum to a logit", None),
        (["--text", "the cat", "--position", "1", "--answer", "sat on"],
         "the answer is 2 tokens, which follow the whole text only.", "an answer of one token, or no --position"),
        (["--text", "the cat", "--target", "a dog"], "--target is for encoder-decoder models",
         '--answer "…", which follows the text'),
        (["--text", "the cat", "--corrupt", ""], "--corrupt is empty:", None),
        (["--text", "the cat", "--memory", "1K"], "the gradient of", "--columns zero, which takes less; or a shorter text, or a higher --memory"),
        (["--text", "the cat", "--memory", "1K", "--columns", "zero"], "for 4 tokens besides its weights",
         "a shorter text; or more --memory, if available"),
    ],
)  # fmt: skip
def test_a_mistake_gets_a_clear_line(attnscope, writer, arguments, message, hint):
    r = attnscope("effects", writer, *arguments)
    assert (r.exit_status, r.out) == (2, "")
    assert message in r.err
    assert hint is None or f"  try  {hint}\n" in r.err


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("nonsense\n", "is not JSON: nonsense."),
        ('{"answer": "x"}\n', "has neither text nor ids."),
        ('{"text": "the cat", "ids": [1, 2]}\n', "has both text and ids."),
        ('7\n', "line 1 of {path} is 7, not an object."),
        ('{"text": "the cat", "agianst": " dog"}\n',
         "line 1 of {path} has a field 'agianst', which is none of text, ids, answer, against, corrupt, target."),
        ('{"text": "the cat", "answer": true}\n', "answer is true, not a text, a number or token ids."),
        ('{"text": "the cat", "answer": 700}\n', "line 1 of {path}: answer: there is no token 700"),
        ('{"text": "the cat", "corrupt": ""}\n', "line 1 of {path}: corrupt is empty:"),
        ("\n\n", "has no prompts."),
        ('{"text": "the cat", "answer": "sat"}\n{"text": "the cat", "answer": "sat on"}\n',
         "the metric of line 1 of {path} is a logit, and that of line 2 of {path} a log-probability"),
        ('{"text": "the cat", "answer": "sat", "against": "ran"}\n{"text": "the cat", "answer": "sat"}\n',
         "line 1 of {path} has against, and line 2 of {path} has not: their effects have no mean."),
        ('{"text": "the cat", "corrupt": "the dog"}\n{"text": "the cat"}\n',
         "line 1 of {path} has corrupt, and line 2 of {path} has not: their effects have no mean."),
    ],
)  # fmt: skip
def test_a_wrong_line_of_a_corpus_is_named(attnscope, writer, tmp_path, lines, message):
    path = tmp_path / "prompts.jsonl"
    path.write_text(lines)
    r = attnscope("effects", writer, "--corpus", path)
    assert (r.exit_status, r.out) == (2, "")
    assert message.replace("{path}", str(path)) in r.err


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_ctrl_c_keeps_what_is_done(attnscope, writer, tmp_path, monkeypatch, share):
    """The signal comes in the first of three prompts, or in the second."""
    path = tmp_path / "prompts.jsonl"
    path.write_text((json.dumps({"text": TEXT, "answer": " tired"}) + "\n") * 3)
    report = EffectJob._report

    def interrupted(self, done, n_changes):
        report(self, done, n_changes)
        if self._base + self._part * done / n_changes >= share and not self._interrupted:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(EffectJob, "_report", interrupted)
    r = attnscope("effects", writer, "--corpus", path, "--columns", "zero", "--format", "json")
    assert r.exit_status == 130
    assert (r.json["partial"], r.json["prompts"]) == (True, 1)
    known = [row["zero"] is not None for row in r.json["heads"]]
    assert any(known)
    assert all(known) == (share > 1 / 3)
