"""A page ranks heads by the metrics of `heads`."""

import json

import pytest

from tests.model.run.readers import WORDS

TEXT = " ".join((WORDS[5:9] * 3)[:9])


def ranked(path):
    """Return the heads of a page, and the names of its metrics."""
    text = path.read_text(encoding="utf-8")
    start = text.index('<script type="application/json" id="data">')
    data = json.loads(text[text.index(">", start) + 1 : text.index("</script>", start)])
    names = [metric["name"] for metric in data["metrics"]]
    return {
        (stack["name"], each["layer"], each["head"]): dict(zip(names, each["values"], strict=True))
        for stack in data["stacks"]
        for each in stack["heads"]
    }


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("family", "more"),
    [
        ("bert", []),
        ("llama", []),
        ("llama", ["--pool", "max"]),
        ("gpt2", ["--pool", "mean"]),
        ("t5", ["--target", "a dog sat"]),
        ("t5", ["--target", "a dog sat", "--pool", "max"]),
    ],
)
def test_pages_have_the_numbers_of_heads(attnscope, saved, tmp_path, family, more):
    page, targets = tmp_path / "page.html", [each for each in more if each in ("--target", "a dog sat")]
    r = attnscope("model", saved(family), "--text", TEXT, *more, "--page", page)
    assert r.exit_status == 0, r.err
    measured = attnscope("heads", saved(family), "--text", TEXT, *targets, "-f", "json").json
    ours = ranked(page)
    theirs = {(each["stack"], each["layer"], each["head"]): each for each in measured["heads"]}
    assert ours.keys() == theirs.keys()
    for place, values in ours.items():
        for name, value in values.items():
            known = theirs[place].get("metrics", theirs[place])[name]
            known = known["mean"] if isinstance(known, dict) else known
            assert value == (None if known is None else pytest.approx(known, abs=2e-5)), (place, name)


def test_heads_are_measured_over_the_tokens_that_the_model_wrote(attnscope, saved, tmp_path):
    command = ["model", saved("llama"), "--text", TEXT, "--generate", 4]
    whole, pooled = tmp_path / "whole.html", tmp_path / "pooled.html"
    attnscope(*command, "--page", whole)
    attnscope(*command, "--pool", "max", "--page", pooled)
    record = attnscope(*command, "-f", "json").json
    rows, first = record["attention"], record["first_query"]
    ours = ranked(whole)["self", 0, 0]
    own = [row[first + i] for i, row in enumerate(rows)]
    before = [row[first + i - 1] for i, row in enumerate(rows)]
    assert ours["self"] == pytest.approx(sum(own) / len(own), abs=1e-5)
    assert ours["previous"] == pytest.approx(sum(before) / len(before), abs=1e-5)
    assert ours["first"] == pytest.approx(sum(row[0] for row in rows) / len(rows), abs=1e-5)
    for place, values in ranked(pooled).items():
        assert values == pytest.approx(ranked(whole)[place], abs=1e-5)


def test_pictures_have_the_metrics_that_make_sense_for_patches(attnscope, tmp_path):
    PIL = pytest.importorskip("PIL.Image")
    from tests.model.run.readers import save_seer

    save_seer("vit", tmp_path / "vit")
    PIL.new("RGB", (30, 30), "red").save(tmp_path / "red.png")
    page = tmp_path / "page.html"
    r = attnscope("model", tmp_path / "vit", "--image", tmp_path / "red.png", "--page", page)
    assert r.exit_status == 0, r.err
    assert list(ranked(page)["self", 0, 0]) == ["entropy", "largest", "first", "self"]


def test_a_page_of_a_sentence_and_all_heads_is_small(attnscope, tmp_path):
    page = tmp_path / "page.html"
    r = attnscope("bert", "--text", "The cat sat on the mat because it was tired.", "--page", page)
    assert r.exit_status == 0, r.err
    assert len(ranked(page)) == 72
    assert page.stat().st_size < 150 * 1024
