"""`attnscope model` with a prompt that the model answers: pictures and texts, chats, segments."""

import csv
import io
import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.model.answers.families import family, picture
from tests.model.answers.writers import MESSAGES, writer
from tests.model.run.readers import save_reader, save_seer

TEXT = "the cat sat . [1] the dog ran [2] the mat"


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """The folder of a LLaMA with a chat template, and a chat beside it."""
    folder = tmp_path_factory.mktemp("llama")
    model, tokenizer = writer()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "chat.json").write_text(json.dumps(MESSAGES))
    return folder


@pytest.fixture(scope="module")
def photo(tmp_path_factory):
    path = tmp_path_factory.mktemp("photo") / "a.png"
    picture(50, 37).save(path)
    return path


@pytest.fixture
def of_text(attnscope, llama):
    """A command about the LLaMA's answer, by segment."""
    return lambda *more: attnscope(
        "model", llama, "--text", TEXT, "--generate", 4, "--by", "segment", *more
    )


@pytest.fixture
def of_picture(attnscope, photo):
    """A command about what LLaVA answers to a question about a picture."""
    command = ("model", family("llava"), "--image", photo, "--text", "what is?", "--generate", 4)
    return lambda *more: attnscope(*command, *more)


@pytest.fixture
def of_chat(attnscope, llama):
    """A command about the LLaMA's answer to a chat."""
    command = ("model", llama, "--messages", llama / "chat.json", "--generate", 4, "--by", "segment")
    return lambda *more: attnscope(*command, *more)


@pytest.mark.parametrize(
    ("command", "options", "shown"),
    [
        ("of_picture", (), ("mean over all 2 layers and 4 heads\n", "4 tokens written", "picture 1")),
        ("of_text", ("--segments", "docs=[1],[2]"), ("docs 1", "docs 2", "text", "answer")),
        ("of_chat", (), ("system", "user", "answer")),
    ],
)
def test_what_an_answer_reads_is_shown(command, options, shown, request):
    r = request.getfixturevalue(command)(*options)
    assert (r.exit_status, r.err) == (0, "")
    assert all(each in r.out for each in shown)


def test_json_has_what_the_python_function_returns(of_text, llama):
    import attnscope

    record = of_text("--format", "json").json
    answer = attnscope.answer(llama, TEXT, generate=4, by="segment")
    assert record["schema"] == "attnscope.answer/1"
    assert record == json.loads(json.dumps(answer.to_dict()))


@pytest.mark.parametrize("command", ["of_text", "of_picture"])
def test_csv_and_markdown_show_each_token(command, request):
    run = request.getfixturevalue(command)
    rows = [*csv.DictReader(io.StringIO(run("--format", "csv").out))]
    assert len({row["position"] for row in rows}) == 4
    assert sum(line.startswith("|") for line in run("--format", "markdown").out.splitlines()) > 4


@pytest.mark.few(1)
@pytest.mark.parametrize("command", ["of_text", "of_picture"])
def test_files_are_written(command, request, tmp_path):
    run = request.getfixturevalue(command)
    png, page, saved = tmp_path / "a.png", tmp_path / "a.html", tmp_path / "a.safetensors"
    r = run("--plot", png, "--page", page, "--save", saved)
    assert r.exit_status == 0, r.err
    assert png.read_bytes().startswith(b"\x89PNG")
    assert page.read_text().lstrip().lower().startswith("<!doctype html>")
    tensors = load_file(saved)
    assert tensors["weights"].shape[0] == 4
    np.testing.assert_allclose(tensors["weights"].sum(1), 1, atol=1e-5)
    assert tensors["sums"].shape[2] == 4
    again = run("--plot", png)
    assert again.exit_status == 2
    assert "--force" in again.err
    assert run("--plot", png, "--force").exit_status == 0


def test_values_are_printed(of_text):
    r = of_text("--show", "weights[0,:3]", "--show", "sums[0,1]")
    assert r.exit_status == 0, r.err
    assert "weights[0,:3]" in r.out
    assert "sums[0,1]" in r.out
    bad = of_text("--show", "attention")
    assert bad.exit_status == 2
    assert "weights" in bad.err


def test_one_token_is_shown_alone(of_text):
    record = of_text("--format", "json").json
    first = record["written"][0]["position"]
    assert of_text("--query", first + 1, "--format", "json").json["query"] == first + 1
    r = of_text("--query", 1)
    assert r.exit_status == 2
    assert f"its tokens are {first} to {first + 3}" in r.err
    r = of_text("--query", "zebra")
    assert f"--query {first}" in r.err
    assert "--top" not in r.err


def test_verify_has_an_exit_status(of_text, of_picture, monkeypatch):
    for run in (of_text, of_picture):
        r = run("--verify")
        assert r.exit_status == 0, r.err
        assert "eager" in r.out
    from attnscope.model.run import validate

    monkeypatch.setattr(validate, "EAGER", -1.0)
    assert of_text("--verify").exit_status == 1


@pytest.mark.parametrize(
    "option",
    [
        ("--top", 3),
        ("--weigh", "value"),
        ("--memory", "1GB"),
        ("--ids", "1,2"),
    ],
    ids=lambda option: option[0],
)
def test_options_of_maps_are_refused(of_text, option):
    r = of_text(*option)
    assert (r.exit_status, r.out) == (2, "")
    assert option[0] in r.err
    assert "is for the maps of single heads" in r.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--messages", "nowhere.json"), "nowhere.json"),
        (("--text", TEXT, "--by", "word"), "segment"),
        (("--text", TEXT, "--by", "segment", "--generate", 0), "--generate"),
        (("--text", TEXT, "--by", "segment", "--layer", 9), "layer 9"),
    ],
    ids=str,
)
def test_a_mistake_gets_one_line_and_a_hint(attnscope, llama, arguments, message):
    r = attnscope("model", llama, *arguments)
    assert (r.exit_status, r.out) == (2, "")
    assert message in r.err
    assert len(r.err.splitlines()) <= 5


@pytest.mark.parametrize("kind", ["vit", "bert"])
def test_a_model_that_does_not_read_both_or_does_not_write_is_refused(attnscope, tmp_path, photo, kind):
    (save_seer if kind == "vit" else save_reader)(kind, tmp_path / kind)
    r = attnscope("model", tmp_path / kind, "--image", photo, "--text", "what is?")
    assert (r.exit_status, r.out) == (2, "")
    assert f"{kind} ({kind}) does not read pictures beside a text." in " ".join(r.err.split())
    if kind == "bert":
        r = attnscope("model", tmp_path / kind, "--text", "the cat", "--by", "segment")
        assert (r.exit_status, r.out) == (2, "")
        assert "does not generate text" in r.err


def test_rows_of_segments_and_the_sink_are_options(of_text):
    r = of_text("--rows", "segments", "--without-sink", "--format", "json")
    assert (r.exit_status, r.err) == (0, "")
    names = [each["name"] for each in r.json["segments"]]
    assert names == ["sink", "text", "answer"]
    assert [round(sum(row), 4) for row in r.json["segment_shares"]] == [1, 1, 1]
    assert r.json["segment_shares"][0][0] == pytest.approx(1)
