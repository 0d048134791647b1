"""`attnscope heads` with one text, on the command line."""

import csv
import io
import json
import os
import re

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from attnscope.model.heads.metrics import METRICS
from tests.model.run.naive_metrics import naive_mean, naive_metrics
from tests.model.run.readers import changed_weights, save_reader, save_seer

TEXT = "The cat sat on the mat because it was tired."
SHORT = "the cat sat on the mat"
LONG = "the cat sat on . " * 40
FORMATS = ["table", "json", "csv", "markdown"]


@pytest.fixture
def measured(attnscope):
    """Return the heads' records, by stack, layer and head."""

    def measure(*arguments):
        r = attnscope("heads", *arguments, "--format", "json")
        assert r.exit_status == 0, r.err
        return {(row["stack"], row["layer"], row["head"]): row for row in r.json["heads"]}

    return measure


def eager(folder, text, **options):
    """Return a text's tokens, and the attention that transformers' eager implementation returns."""
    model = AutoModel.from_pretrained(folder, attn_implementation="eager", **options).eval()
    given = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")
    with torch.no_grad():
        return given["input_ids"][0].tolist(), model(**given, output_attentions=True).attentions


def lines_of(r):
    """Return the rows of the first table with a rule, as words."""
    lines = r.out.splitlines()
    start = next(i for i, line in enumerate(lines) if set(line) == {"─"})
    rows = []
    for line in lines[start + 1 :]:
        if not line.strip():
            break
        rows.append(line.split())
    return rows


def are_near(row, other):
    """Return whether two records are close: unmeasured layers run the model's own attention."""
    names = [name for name in METRICS if name in row]
    return names and all(row[name] == pytest.approx(other[name], abs=1e-6) for name in names)


def csv_rows(r):
    return list(csv.DictReader(io.StringIO(r.out)))


def order_of(r, format):
    """Return the layers and heads of a result, in its order."""
    if format == "json":
        return [(row["layer"], row["head"]) for row in r.json["heads"]]
    if format == "csv":
        return [(int(row["layer"]), int(row["head"])) for row in csv_rows(r)]
    if format == "markdown":
        rows = [line.split("|")[1:3] for line in r.out.splitlines() if re.match(r"\| +\d", line)]
        return [(int(layer), int(head)) for layer, head in rows]
    return [(int(row[0]), int(row[1])) for row in lines_of(r)]


def data_in(page):
    """Return the data of a page."""
    return json.loads(re.search(r'id="data">(.*?)</script>', page.read_text(), re.S)[1])


# What is measured


def test_every_metric_is_what_a_loop_over_the_models_own_maps_finds(measured, minilm):
    found = measured("minilm", "--text", TEXT)
    ids, maps = eager(minilm, TEXT)
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    known = {"separators": [tokenizer.sep_token_id], "punctuation": tokenizer(".")["input_ids"][1:2]}
    assert len(found) == 72
    for layer in (0, 3, 5):
        for head in (0, 7, 11):
            rows = maps[layer][0, head].double().tolist()
            naive = naive_metrics(rows, ids, ids, lambda i, j: True, **known)
            own = found["self", layer, head]
            for name in METRICS:
                mean, _ = naive_mean([naive[name]])
                assert own[name] == pytest.approx(mean, abs=2e-5, rel=1e-5), (layer, head, name)


@pytest.mark.sweep
def test_one_text_has_no_errors(attnscope):
    record = attnscope("heads", "minilm", "--text", TEXT, "-f", "json").json
    assert all(error is None for row in record["heads"] for error in row["errors"].values())
    assert (record["sequences"], record["tokens"], record["skipped"]) == (1, 13, 0)
    assert (record["partial"], record["notices"]) == (False, [])
    assert record["stacks"] == {"self": {"n_layer": 6, "n_head": 12}}


@pytest.mark.sweep
def test_a_file_is_one_text(attnscope, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("The cat sat on the mat\nbecause it was tired.\n", encoding="utf-8-sig")
    ours = attnscope("heads", "minilm", "--file", path, "-f", "csv")
    assert ours.exit_status == 0
    assert ours.out == attnscope("heads", "minilm", "--text", TEXT, "-f", "csv").out


@pytest.mark.sweep
def test_queries_that_the_tokenizer_added_can_be_left_out(measured, minilm):
    found = measured("minilm", "--text", TEXT, "--no-special", "--layer", 2)
    _, maps = eager(minilm, TEXT)
    for head in range(12):
        rows = maps[2][0, head, 1:-1].double()
        entropy = -(rows * rows.log()).sum(-1).mean()
        assert found["self", 2, head]["entropy"] == pytest.approx(float(entropy), abs=1e-5)
        assert found["self", 2, head]["first"] == pytest.approx(float(rows[:, 0].mean()), abs=1e-6)


def test_a_text_is_cut_where_that_is_asked_for(attnscope, measured, saved):
    folder = saved("bert")  # takes 16 tokens
    words = SHORT.split()
    cut = measured(folder, "--text", " ".join(words * 5), "--truncate", "--max-length", 8)
    whole = measured(folder, "--text", " ".join(words))  # 6 words, [CLS] and [SEP]
    assert cut == whole
    r = attnscope("heads", folder, "--text", " ".join(words * 5), "--truncate", "-f", "json")
    assert r.json["tokens"] == 16
    assert r.json["notices"] == ["--text was truncated from 32 tokens to 16."]


def test_a_decoder_reads_its_target(measured, saved):
    folder = saved("bart")
    found = measured(folder, "--text", SHORT, "--target", "a dog ran", "--metrics", "entropy,previous")
    assert {(stack, layer) for stack, layer, _ in found} == {
        *(("encoder", layer) for layer in range(2)),
        *(("decoder", layer) for layer in range(3)),
        *(("cross", layer) for layer in range(3)),
    }
    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    given = tokenizer(SHORT, return_tensors="pt")
    # its decoder begins with the token of its own that its configuration names
    ids = torch.tensor([[1, *tokenizer("a dog ran")["input_ids"][:-1]]])
    with torch.no_grad():
        output = model(**given, decoder_input_ids=ids, output_attentions=True)
    for stack, maps in {
        "encoder": output.encoder_attentions,
        "decoder": output.decoder_attentions,
        "cross": output.cross_attentions,
    }.items():
        for layer, heads in enumerate(maps):
            for head, weights in enumerate(heads[0].double()):
                entropy = -(weights * weights.clamp(min=1e-300).log()).sum(-1).mean()
                row = found[stack, layer, head]
                assert row["entropy"] == pytest.approx(float(entropy), abs=1e-5)
                if stack == "cross":
                    assert row["previous"] is None
                else:
                    previous = weights.diagonal(-1).mean()
                    assert row["previous"] == pytest.approx(float(previous), abs=1e-6)


@pytest.mark.parametrize(("family", "stack"), [("bart", "encoder"), ("clip", "text")])
def test_one_of_several_stacks_reads_alone(measured, saved, family, stack):
    assert {each for each, _, _ in measured(saved(family), "--text", SHORT)} == {stack}


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_other_dtypes_are_near_float32(measured, dtype):
    found, others = (
        measured("minilm", "--text", TEXT, "--dtype", name, "--metrics", "entropy,self,largest")
        for name in ("float32", dtype)
    )
    assert found != others
    near = 1e-5 if dtype == "float64" else 0.05
    for place, row in found.items():
        for name in ("entropy", "self", "largest"):
            assert others[place][name] == pytest.approx(row[name], abs=near)


@pytest.mark.sweep
def test_a_model_that_is_measured_eager_is_told_of(attnscope, saved):
    r = attnscope("heads", saved("xlnet"), "--text", SHORT)
    assert "These metrics are from its own eager attention." in " ".join(r.out.split())


def test_memory_decides_the_block_and_not_the_numbers(attnscope, saved, every_plan):
    command = ["heads", saved("bert", max_position_embeddings=512), "--text", LONG, "-f", "json"]
    whole, tight = attnscope(*command), attnscope(*command, "--memory", "700K")
    assert re.search(r"for 64 queries' weights at once", whole.err)
    rows = int(re.search(r"for (\d+) queries' weights at once", tight.err)[1])
    assert 1 <= rows < 64
    assert len(whole.json["heads"]) == 6
    for ours, theirs in zip(tight.json["heads"], whole.json["heads"], strict=True):
        for name in METRICS:
            assert ours[name] == pytest.approx(theirs[name], abs=1e-5, rel=1e-5)


def test_the_plan_is_told_on_stderr_with_its_bytes(attnscope, every_plan):
    r = attnscope("heads", "minilm", "--text", TEXT, "-f", "csv")
    [line] = r.err.splitlines()
    assert re.fullmatch(
        r"attnscope: 13 tokens take [\d.]+ [KM]iB: [\d.]+ [KM]iB for 13 queries' weights at once,"
        r" [\d.]+ [KM]iB for the layers' activations, [\d.]+ [KM]iB for masks of token pairs",
        line,
    )
    assert "tokens take" not in r.out


@pytest.mark.sweep
def test_what_does_not_fit_is_refused_before_it_starts(attnscope, monkeypatch):
    from attnscope.model.heads.measurer import HeadMeasurer

    monkeypatch.setattr(HeadMeasurer, "measure", lambda *_: pytest.fail("it started"))
    r = attnscope("heads", "minilm", "--text", TEXT, "--memory", "1K")
    assert (r.exit_status, r.out) == (2, "")
    assert re.search(
        r"minilm needs at least [\d.]+ [KM]iB for 13 tokens .* but its limit is 1\.0 KiB\.", r.err
    )
    r = attnscope("heads", "minilm", "--text", TEXT, "--memory", "1000000G")
    assert (r.exit_status, r.out) == (2, "")
    assert "--memory 1000000G is more than the free memory: cpu has" in r.err


# What is shown


@pytest.mark.few(2)
@pytest.mark.parametrize("format", FORMATS)
def test_the_formats_hold_the_same_heads_in_the_same_order(attnscope, format):
    command = ["heads", "minilm", "--text", TEXT, "--sort", "entropy", "--top", 7]
    ranked = order_of(attnscope(*command, "--format", "json"), "json")
    assert len(ranked) == 7
    assert order_of(attnscope(*command, "--format", format), format) == ranked
    turned = order_of(attnscope(*command, "--reverse", "--format", format), format)
    assert len(turned) == 7
    assert not set(turned) & set(ranked)


@pytest.mark.few(1)
@pytest.mark.parametrize("format", ["json", "csv"])
def test_the_formats_hold_the_same_numbers(measured, attnscope, format):
    command = ["minilm", "--text", TEXT, "--metrics", "entropy,induction", "--sort", "induction"]
    found = measured(*command)
    r = attnscope("heads", *command, "--format", format)
    rows = r.json["heads"] if format == "json" else csv_rows(r)
    values = [float(row["induction"]) for row in rows]
    assert values == sorted(values, reverse=True)
    for row in rows:
        own = found["self", int(row["layer"]), int(row["head"])]
        assert float(row["entropy"]) == own["entropy"]


@pytest.mark.sweep
def test_markdown_and_the_table_round_the_same_numbers(measured, attnscope):
    command = ["minilm", "--text", TEXT, "--metrics", "entropy,self", "--layer", 1, "--head", 3]
    row = measured(*command)["self", 1, 3]
    [[*_, entropy, own]] = lines_of(attnscope("heads", *command))
    assert float(entropy) == pytest.approx(row["entropy"], rel=5e-3)
    assert float(own) == pytest.approx(row["self"], rel=5e-3)
    markdown = attnscope("heads", *command, "-f", "markdown").out
    assert f"| {entropy} | {own} |" in markdown
    assert "- self: Attention to the token itself" in markdown
    assert markdown.startswith("**minilm**\n\n6 layers × 12 heads · 1 sequence · 13 tokens\n")


@pytest.mark.sweep
def test_layers_and_heads_can_be_chosen(attnscope, measured):
    whole = measured("minilm", "--text", TEXT, "--metrics", "entropy,next")
    some = measured(
        *("minilm", "--text", TEXT, "--metrics", "entropy,next"), "--layer", "0,3-4", "--head", "1,11"
    )
    assert set(some) == {("self", layer, head) for layer in (0, 3, 4) for head in (1, 11)}
    assert all(are_near(row, whole[place]) for place, row in some.items())
    everything = ["--layer", "all", "--head", "all"]
    assert measured("minilm", "--text", TEXT, "--metrics", "entropy,next", *everything) == whole


def test_only_the_metrics_that_are_asked_for_are_shown_in_their_order(attnscope):
    command = ["heads", "minilm", "--text", TEXT, "--layer", 0, "--top", 500, "-f", "csv"]
    header, *rows = attnscope(*command, "--metrics", " self , entropy,self").out.splitlines()
    assert header == "layer,head,self,entropy"
    assert len(rows) == 12


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("options", "places"),
    [
        (["--stack", "encoder", "--layer", 1], {("encoder", 1)}),
        (["--stack", "decoder", "--head", 3], {("decoder", layer) for layer in range(3)}),
        (["--layer", 2], {("decoder", 2), ("cross", 2)}),  # the encoder has two layers
        (["--head", 3], {(stack, layer) for stack in ("decoder", "cross") for layer in range(3)}),
    ],
)
def test_of_several_stacks_those_are_shown_that_have_what_is_asked_for(measured, saved, options, places):
    command = [saved("bart"), "--text", SHORT, "--target", "a dog", "--metrics", "entropy"]
    found = measured(*command, *options)
    assert {(stack, layer) for stack, layer, _ in found} == places
    whole = measured(*command)
    assert all(are_near(row, whole[place]) for place, row in found.items())
    if "--head" in options:
        assert {head for _, _, head in found} == {options[options.index("--head") + 1]}


@pytest.mark.few(1)
@pytest.mark.parametrize("format", FORMATS)
def test_stacks_are_named_where_there_are_several(attnscope, saved, format):
    command = [saved("bart"), "--text", SHORT, "--target", "a dog", "--sort", "entropy", "-f", format]
    r = attnscope("heads", *command)
    assert r.exit_status == 0
    assert all(stack in r.out for stack in ("encoder", "decoder", "cross"))
    if format == "csv":
        assert r.out.startswith("stack,layer,head,entropy")


@pytest.mark.few(1)
@pytest.mark.parametrize("options", [[], ["--stack", "cross"]])
def test_a_metric_that_a_stack_does_not_have_is_empty(attnscope, saved, options):
    command = [saved("bart"), "--text", SHORT, "--target", "a dog", "--metrics", "self", *options]
    rows = attnscope("heads", *command, "--sort", "self", "-f", "json").json["heads"]
    assert all((row["self"] is None) == (row["stack"] == "cross") for row in rows)


@pytest.mark.sweep
def test_the_glance_has_a_grid_and_the_leaders_of_each_metric(attnscope, measured):
    r = attnscope("heads", "minilm", "--text", TEXT)
    assert r.exit_status == 0
    found = measured("minilm", "--text", TEXT)
    leaders = {row[0]: row[1:3] for row in lines_of(r)}
    assert list(leaders) == list(METRICS)
    for name, place in leaders.items():
        _, layer, head = max(found, key=lambda key, name=name: found[key][name])
        assert place == [f"L{layer}", f"H{head}"]
    assert "▓" in r.out


@pytest.mark.sweep
def test_sorting_shows_one_grid_and_the_metrics_meaning(attnscope):
    r = attnscope("heads", "minilm", "--text", TEXT, "--sort", "previous", "--top", 3)
    assert "3 of 72 heads by previous, the largest at the top: Attention to the previous token" in r.out
    assert len(lines_of(r)) == 3
    assert "largest 1.00 in L0 H2" in r.out


def test_what_is_piped_is_never_cut(attnscope):
    r = attnscope("heads", "minilm", "--text", TEXT, "--sort", "entropy", "--top", 2)
    heading = next(line for line in r.out.splitlines() if line.startswith("layer"))
    assert heading.split() == ["layer", "head", *METRICS]
    assert len(heading) > 100


@pytest.mark.sweep
def test_wide_shows_every_column_on_a_narrow_terminal(attnscope, monkeypatch):
    from rich.console import Console

    monkeypatch.setattr(
        "attnscope.cli.output.stdout", lambda: Console(highlight=False, width=60, force_terminal=True)
    )
    command = ["heads", "minilm", "--text", TEXT, "--sort", "entropy", "--top", 2]
    narrow, wide = attnscope(*command).out, attnscope(*command, "--wide").out
    for r in (narrow, wide):
        assert all(len(re.sub(r"\x1b\[[\d;]*m", "", line)) <= 60 for line in r.splitlines())
    assert "effective" not in narrow
    assert all(name in wide for name in METRICS)


@pytest.mark.sweep
def test_stdout_has_only_the_result(attnscope, tmp_path, every_plan):
    plot, page = tmp_path / "heads.svg", tmp_path / "heads.html"
    command = ["heads", "minilm", "--text", TEXT, "--metrics", "entropy", "-f", "json"]
    r = attnscope(*command, "--plot", plot, "--page", page)
    assert json.loads(r.out)["schema"] == "attnscope.heads/1"
    planned, drew, wrote = r.err.splitlines()
    assert planned.startswith("attnscope: 13 tokens take ")
    assert re.fullmatch(rf"attnscope: drew {plot}, [\d.]+ KiB", drew)
    assert re.fullmatch(rf"attnscope: wrote 72 heads with their maps, [\d.]+ KiB, to {page}", wrote)


# Plots and pages


@pytest.mark.few(1)
@pytest.mark.parametrize("suffix", ["svg", "png", "pdf"])
def test_the_heads_are_drawn(attnscope, tmp_path, suffix):
    path = tmp_path / f"heads.{suffix}"
    command = ["heads", "minilm", "--text", TEXT, "--metrics", "entropy,next", "--sort", "next"]
    assert attnscope(*command, "--plot", path).exit_status == 0
    beginning = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[suffix]
    assert path.read_bytes().startswith(beginning)
    if suffix == "svg":
        assert all(f">{name}" in path.read_text() for name in ("next", "layer", "head"))
        assert ">entropy" not in path.read_text()


@pytest.mark.sweep
def test_a_page_has_the_numbers_and_of_a_short_text_the_maps(attnscope, measured, tmp_path):
    page = tmp_path / "heads.html"
    command = ["minilm", "--text", TEXT, "--metrics", "entropy,self", "--sort", "self"]
    r = attnscope("heads", *command, "--page", page)
    assert r.exit_status == 0
    found, data = measured(*command), data_in(page)
    [stack] = data["stacks"]
    assert data["metric"] == "self"
    assert [metric["name"] for metric in data["metrics"]] == ["entropy", "self"]
    assert len(stack["queries"]) == 13
    assert len(stack["heads"]) == 72
    for head in stack["heads"]:
        row = found["self", head["layer"], head["head"]]
        assert head["values"] == pytest.approx([row["entropy"], row["self"]], rel=1e-5)
        assert "weights" in head
    _, layer, head = max(found, key=lambda place: found[place]["self"])
    assert (data["first"]["layer"], data["first"]["head"]) == (layer, head)


@pytest.mark.sweep
def test_a_page_of_some_heads_has_their_maps_alone(attnscope, tmp_path):
    page = tmp_path / "heads.html"
    command = ["heads", "minilm", "--text", TEXT, "--layer", "2,4", "--head", "3-4", "--page", page]
    r = attnscope(*command)
    assert "wrote 4 heads with their maps" in r.err
    [stack] = data_in(page)["stacks"]
    places = [(head["layer"], head["head"]) for head in stack["heads"]]
    assert places == [(2, 3), (2, 4), (4, 3), (4, 4)]
    assert all("weights" in head for head in stack["heads"])


@pytest.mark.sweep
def test_a_page_of_several_stacks(attnscope, saved, tmp_path):
    page = tmp_path / "heads.html"
    command = ["heads", saved("bart"), "--text", SHORT, "--target", "a dog", "--page", page]
    r = attnscope(*command)
    assert "wrote 30 heads with their maps" in r.err
    stacks = data_in(page)["stacks"]
    assert [(stack["name"], len(stack["heads"])) for stack in stacks] == [
        ("encoder", 6),
        ("decoder", 12),
        ("cross", 12),
    ]
    assert attnscope(*command, "--force", "--stack", "cross").exit_status == 0
    assert [stack["name"] for stack in data_in(page)["stacks"]] == ["cross"]


@pytest.mark.sweep
def test_a_page_of_a_long_text_has_the_numbers_alone(attnscope, monkeypatch, tmp_path):
    from attnscope.model.heads import measure_heads

    monkeypatch.setattr(measure_heads, "IN_A_PAGE", 13 * 13 * 72 - 1)
    page = tmp_path / "heads.html"
    r = attnscope("heads", "minilm", "--text", TEXT, "--page", page)
    assert r.exit_status == 0
    assert "; without maps: they have 12,168 weights, and a page holds at most 12,167" in r.err
    [stack] = data_in(page)["stacks"]
    assert len(stack["heads"]) == 72
    assert not any("weights" in head for head in stack["heads"])
    monkeypatch.setattr(measure_heads, "IN_A_PAGE", 13 * 13 * 72)
    assert attnscope("heads", "minilm", "--text", TEXT, "--page", page, "--force").exit_status == 0
    assert all("weights" in head for head in data_in(page)["stacks"][0]["heads"])


@pytest.mark.sweep
def test_cross_attention_has_a_weight_for_each_token_of_both(attnscope, monkeypatch, saved, tmp_path):
    from attnscope.model.heads import measure_heads

    monkeypatch.setattr(measure_heads, "IN_A_PAGE", 0)
    command = ["heads", saved("bart"), "--text", SHORT, "--target", "a dog"]
    command += ["--page", tmp_path / "x.html"]
    n_source, n_target = 8, 4
    for stack, per_head in (("encoder", n_source**2), ("decoder", n_target**2), ("cross", 4 * 8)):
        r = attnscope(*command, "--stack", stack, "--layer", 0, "--head", 1, "--force")
        assert f"they have {per_head} weights, and a page holds at most 0" in r.err


def test_a_head_that_the_asked_layers_have_not_is_told(attnscope, saved):
    folder = saved("bart", encoder_layers=3, encoder_attention_heads=2, decoder_layers=1)
    r = attnscope("heads", folder, "--text", SHORT, "--target", "a dog", "--layer", 2, "--head", 3)
    assert (r.exit_status, r.out) == (2, "")
    assert "head 3" in r.err


@pytest.mark.sweep
def test_the_plan_is_for_the_longer_of_text_and_target(attnscope, saved, every_plan):
    for text, target in (("a dog", SHORT), (SHORT, "a dog")):
        r = attnscope("heads", saved("bart"), "--text", text, "--target", target)
        assert "attnscope: 8 tokens take " in r.err


@pytest.mark.sweep
def test_a_page_of_what_a_pipe_gives_once_has_its_maps(attnscope, tmp_path):
    end, beginning = os.pipe()
    with open(beginning, "w") as pipe:
        pipe.write(TEXT)
    with open(end):
        r = attnscope("heads", "minilm", "--file", f"/dev/fd/{end}", "--page", tmp_path / "heads.html")
    assert "wrote 72 heads with their maps" in r.err


@pytest.mark.sweep
def test_a_page_of_a_text_that_was_cut_has_the_numbers_alone(attnscope, tmp_path):
    page = tmp_path / "heads.html"
    r = attnscope("heads", "minilm", "--text", TEXT, "--truncate", "--max-length", 12, "--page", page)
    assert "; without maps: the text was cut with --max-length" in r.err
    assert not any("weights" in head for head in data_in(page)["stacks"][0]["heads"])


def test_a_page_of_a_model_that_runs_eager_says_where_its_maps_are(attnscope, saved, tmp_path):
    r = attnscope("heads", saved("deberta-v2"), "--text", SHORT, "--page", tmp_path / "heads.html")
    assert "without maps: attnscope model --page takes them from a model's eager attention" in r.err


@pytest.mark.sweep
@pytest.mark.parametrize(("option", "name"), [("--plot", "heads.svg"), ("--page", "heads.html")])
def test_a_file_that_is_there_is_replaced_on_request_alone(attnscope, tmp_path, option, name):
    path = tmp_path / name
    path.write_text("mine")
    command = ["heads", "minilm", "--text", TEXT, "--metrics", "entropy", option, path]
    r = attnscope(*command)
    assert (r.exit_status, r.out, path.read_text()) == (2, "", "mine")
    assert f"{path} already exists." in " ".join(r.err.split())
    assert attnscope(*command, "--force").exit_status == 0
    assert len(path.read_text()) > 1000


@pytest.mark.sweep
def test_what_fails_leaves_no_page_behind(attnscope, monkeypatch, tmp_path):
    from attnscope.model.heads import document as page

    monkeypatch.setattr(page, "page_html", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        attnscope("heads", "minilm", "--text", TEXT, "--page", tmp_path / "heads.html")
    assert list(tmp_path.iterdir()) == []


# Where it runs


def test_a_model_that_is_divided_among_devices_finds_the_same(attnscope, saved):
    command = ["heads", saved("llama"), "--text", SHORT, "-f", "csv"]
    whole, divided = attnscope(*command), attnscope(*command, "--device-map", "auto")
    assert divided.exit_status == 0, divided.err
    for ours, theirs in zip(csv_rows(whole), csv_rows(divided), strict=True):
        for name, value in ours.items():
            if value:
                assert float(theirs[name]) == pytest.approx(float(value), abs=1e-6)


def test_to_divide_a_model_takes_accelerate(attnscope, monkeypatch):
    from attnscope.model.run import load as loading

    found = loading.find_spec
    monkeypatch.setattr(
        loading, "find_spec", lambda name, *more: None if name == "accelerate" else found(name, *more)
    )
    r = attnscope("heads", "minilm", "--text", TEXT, "--device-map", "auto")
    assert (r.exit_status, r.out) == (2, "")
    assert "accelerate, which divides models among devices, is not installed." in r.err
    assert "try  pip install 'attnscope[accelerate]'" in r.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--text", TEXT], "torchrun divides a corpus among processes, but this is a single text."),
        (["--corpus", "-"], "standard input can only be read by one process, but there are several."),
        (["--corpus", "text.txt", "--device-map", "auto"], "--device-map divides one model among all GPUs"),
        (["--corpus", "text.txt", "--device", "cuda:1"], "--device cuda:1 is one device, but each process needs"),
        (["--corpus", "text.txt", "--device", "cuda"], "this machine has 0 GPUs, too few for process 2."),
    ],
)  # fmt: skip
def test_what_several_processes_cannot_share_is_refused(
    attnscope, monkeypatch, tmp_path, options, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(TEXT)
    if torch.cuda.is_available() and "cuda" in options:
        pytest.skip("there is a GPU")
    for name, value in {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    r = attnscope("heads", "minilm", *options)
    assert (r.exit_status, r.out) == (2, "")
    assert message in r.err


def test_processes_of_a_machine_share_its_memory(monkeypatch):
    from attnscope.base.process import devices as drawn
    from attnscope.base.process.budget import memory_budget
    from attnscope.base.process.memory import FreeMemory

    monkeypatch.setattr(drawn, "free_memory", lambda device: FreeMemory(1000))
    assert (memory_budget(None, "cpu"), memory_budget("300", "cpu")) == (800, 300)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert (memory_budget(None, "cpu"), memory_budget("300", "cpu")) == (200, 300)
    assert memory_budget(None, "cuda:1") == 800


# Mistakes


@pytest.mark.few(8)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "there is no input."),
        (["--text", "a", "--file", "x.txt"], "--text and --file cannot be combined: give one input."),
        (["--text", "a", "--target-field", "b"], "--target-field needs a corpus."),
        (["--text", "a", "--checkpoint", "x.npz"], "--checkpoint needs a corpus."),
        (["--corpus", "x.txt", "--target", "b"], "--target goes with a single text, and a corpus has many."),
        (["--text", "a", "--max-length", 9], "--max-length truncates a single text only with --truncate"),
        (["--text", "a", "--device", "cuda", "--device-map", "auto"], "--device and --device-map both set where"),
        (["--text", "a", "--device", "meta"], "--device meta computes no values, and metrics need values."),
        (["--text", "a", "--metrics", "entropy,foo"], "--metrics: there is no metric 'foo'."),
        (["--text", "a", "--sort", "Entropy"], "--sort: there is no metric 'Entropy'."),
        (["--text", "a", "--metrics", "self,next", "--sort", "same"], "--sort same is not among --metrics self,next."),
        (["--text", "a", "--layer", "x"], "--layer is 'x', but takes numbers from 0."),
        (["--text", "a", "--top", 0], "--top is 0, but takes numbers from 1."),
        (["--text", "a", "--stack", "both"], "--stack is 'both'."),
        (["--text", "a", "--device", "tpu"], "'tpu' is not a device."),
        (["--text", "a", "--memory", "much"], "--memory is 'much', which is not a size."),
        (["--text", ""], "--text is empty: there is nothing to measure."),
        (["--text", "a", "--target", ""], "--target is empty: there is nothing to measure."),
        (["--text", "a\udcffb"], "--text contains bytes that are not UTF-8."),
        (["--file", "empty.txt"], "--file empty.txt is empty: there is nothing to measure."),
        (["--file", "bytes.txt"], "bytes.txt is not UTF-8."),
        (["--file", "nul.txt"], "nul.txt has a NUL character, so it is not a text."),
        (["--file", "none.txt"], "there is no file none.txt."),
        (["--file", "."], ". is a folder."),
        (["--text", "\N{ZERO WIDTH SPACE}"], "--text has no tokens in minilm."),
        (["--text", LONG * 3], "--text is 602 tokens long, but the model takes at most 512."),
        (["--text", "a", "--target", "b"], "--target is for encoder-decoder models, and minilm (bert)"),
        (["--text", "a", "--page", "nowhere/x.html"], "there is no folder nowhere"),
        (["--corpus", "x.txt", "--checkpoint", "x.txt"], "x.txt ends in .txt"),
        (["--corpus", "x.txt", "--checkpoint", "nowhere/x.npz"], "there is no folder nowhere"),
    ],
)  # fmt: skip
def test_mistakes_are_told_in_a_line_and_nothing_is_written(
    attnscope, monkeypatch, tmp_path, options, message
):
    monkeypatch.chdir(tmp_path)
    contents = {"x.txt": b"a\n", "empty.txt": b" \n\n", "bytes.txt": b"\xff\xfe\x00", "nul.txt": b"a\0b"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    r = attnscope("heads", "minilm", *options)
    assert (r.exit_status, r.out) == (2, "")
    assert message in r.err.splitlines()[0]
    assert len(r.err.splitlines()) <= 3
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == contents


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--layer", "0-9"], "there is no layer 6 in minilm: it has layers 0 to 5."),
        (["--head", 12], "there is no head 12 in minilm: it has heads 0 to 11."),
        (["--stack", "cross"], "minilm runs no cross attention here, only self."),
    ],
)
def test_what_the_model_lacks_is_told(attnscope, monkeypatch, tmp_path, options, message):
    monkeypatch.chdir(tmp_path)
    command = ["heads", "minilm", "--text", TEXT, "--page", "x.html", "--plot", "x.png", *options]
    r = attnscope(*command)
    assert (r.exit_status, r.out) == (2, "")
    assert message in r.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--layer", "0,9"], "layer 9"),
        (["--head", 9], "head 9"),
        (["--stack", "encoder", "--layer", 2], "layer 2"),
        (["--stack", "self"], "self"),
    ],
)
def test_what_none_of_several_stacks_has_is_told(attnscope, saved, options, named):
    r = attnscope("heads", saved("bart"), "--text", SHORT, "--target", "a dog", *options, "-f", "csv")
    assert (r.exit_status, r.out) == (2, "")
    error = next(line for line in r.err.splitlines() if "error:" in line)
    assert named in error


def test_a_stack_that_runs_only_with_a_target_is_told(attnscope, saved):
    r = attnscope("heads", saved("bart"), "--text", SHORT, "--stack", "cross")
    assert (r.exit_status, r.out) == (2, "")
    assert "runs no cross attention here, only encoder." in r.err


@pytest.mark.few(1)
@pytest.mark.parametrize("long", ["--text", "--target"])
def test_neither_a_text_nor_a_target_is_cut_unasked(attnscope, saved, long):
    texts = {"--text": SHORT, "--target": SHORT} | {long: LONG}
    command = ["heads", saved("bart"), *(word for pair in texts.items() for word in pair), "-f", "json"]
    r = attnscope(*command)
    assert (r.exit_status, r.json["error"]["status"]) == (2, 2)
    assert f"{long} is 202 tokens long, but the model takes at most 16." in r.err
    r = attnscope(*command, "--truncate")
    assert r.exit_status == 0
    assert f"{long} was truncated from 202 tokens to 16." in r.json["notices"]


def test_a_length_without_room_for_a_text_is_refused(attnscope):
    """[CLS] and [SEP] take two."""
    r = attnscope("heads", "minilm", "--text", TEXT, "--truncate", "--max-length", 2)
    assert (r.exit_status, r.out) == (2, "")
    assert "--max-length" in r.err


def test_a_model_that_does_not_read_is_told(attnscope, tmp_path):
    save_seer("vit", tmp_path)
    r = attnscope("heads", tmp_path, "--text", TEXT)
    assert (r.exit_status, r.out) == (2, "")
    assert "(vit) does not read text." in r.err
    assert "--image" not in r.err  # which heads does not have


def test_numbers_that_are_not_finite_are_told_with_their_layer(attnscope, tmp_path):
    save_reader("bert", tmp_path)
    with changed_weights(tmp_path) as weights:
        weights["encoder.layer.1.attention.self.query.weight"][0, 0] = float("nan")
    r = attnscope("heads", tmp_path, "--text", SHORT)
    assert (r.exit_status, r.out) == (2, "")
    assert "is not finite in layer 1." in r.err


@pytest.mark.few(1)
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--weigh", "value"], "weighed by values: each weight is multiplied by the norm"),
        (["--without-sink"], "without sinks: weights to the first token and to special tokens are left"),
    ],
)
def test_every_format_says_which_weights_are_measured(attnscope, options, said, format):
    r = attnscope("heads", "minilm", "--text", TEXT, "--metrics", "largest", *options, "-f", format)
    assert said in " ".join((r.out + r.err).split())


def test_heads_are_weighed_by_values(attnscope):
    command = ["heads", "minilm", "--text", TEXT, "--metrics", "largest", "-f", "json"]
    weighed, plain = attnscope(*command, "--weigh", "value").json, attnscope(*command).json
    assert (weighed["weigh"], plain["weigh"], plain["without_sink"]) == ("value", None, False)
    assert [row["largest"] for row in weighed["heads"]] != [row["largest"] for row in plain["heads"]]


def test_heads_are_measured_without_sinks(attnscope, minilm):
    """The expected values are computed from transformers' eager maps."""
    command = ["heads", "minilm", "--text", TEXT, "--metrics", "largest,self,first,separator"]
    record = attnscope(*command, "--without-sink", "-f", "json").json
    assert record["without_sink"] is True
    _, maps = eager(minilm, TEXT)
    for row in record["heads"]:
        weights = maps[row["layer"]][0, row["head"]].double()[:, 1:-1]  # neither [CLS] nor [SEP]
        weights = weights / weights.sum(dim=-1, keepdim=True)
        assert row["largest"] == pytest.approx(weights.amax(dim=-1).mean().item(), abs=1e-4)
        own = weights.diagonal(-1)
        assert row["self"] == pytest.approx(own.mean().item(), abs=1e-4)
        assert (row["first"], row["separator"]) == (None, None)


def test_values_are_plain_numbers(attnscope):
    """The JSON contains no numpy or torch objects, and no NaN."""
    r = attnscope("heads", "minilm", "--text", "a", "-f", "json")
    assert "NaN" not in r.out
    assert all(isinstance(row["entropy"], float) for row in r.json["heads"])
    assert all(row["same"] is None for row in r.json["heads"])  # no token is there twice
    assert np.isfinite([row["entropy"] for row in r.json["heads"]]).all()


@pytest.mark.sweep
def test_tokens_and_ids_are_measured_as_the_text_that_has_them(attnscope):
    options = ["--metrics", "first,separator,same", "--format", "json"]
    as_text = attnscope("heads", "minilm", "--text", "The cat sat.", *options).json
    for option, given in (
        ("--ids", "101,1996,4937,2938,1012,102"),
        ("--tokens", "[CLS] the cat sat . [SEP]"),
    ):
        assert attnscope("heads", "minilm", option, given, *options).json == as_text


@pytest.mark.parametrize(("unknown", "told"), [(1, False), (2, True)])
def test_the_share_of_unknown_tokens_in_a_corpus_is_told(attnscope, saved, tmp_path, unknown, told):
    texts = ["zebra"] * unknown + ["cat"] * (150 - unknown)
    (tmp_path / "c.txt").write_text("\n".join(texts))
    command = ["heads", saved("bert"), "--corpus", tmp_path / "c.txt", "--metrics", "entropy"]
    notices = attnscope(*command, "-f", "json").json["notices"]
    share = f"{unknown / 150:.0%}"
    expected = f"{unknown} of 150 tokens in {tmp_path / 'c.txt'} ({share}) are [UNK]"
    assert notices == ([f"{expected}: not in the model's vocabulary."] if told else [])


def test_unknown_tokens_are_counted_over_an_interruption(attnscope, saved, tmp_path):
    (tmp_path / "c.txt").write_text("zebra\ncat\n")
    path = tmp_path / "run.npz"
    command = ["heads", saved("bert"), "--corpus", tmp_path / "c.txt", "--metrics", "entropy"]
    command += ["--checkpoint", path, "-f", "json"]
    first = attnscope(*command).json
    assert "1 of 2 tokens in" in first["notices"][0]
    assert attnscope(*command).json == first


def test_the_share_of_unknown_tokens_is_told(attnscope):
    r = attnscope("heads", "minilm", "--text", "the ☃ 😀", "--metrics", "first", "--format", "json")
    assert r.json["notices"] == [
        "2 of 3 tokens in --text (67%) are [UNK]: not in the model's vocabulary."
    ]


def test_a_model_without_maps_of_its_tokens_is_told(attnscope, saved):
    """LongT5's encoder returns weights by blocks."""
    r = attnscope("heads", saved("longt5"), "--text", "the cat sat on the mat . the dog ran")
    assert (r.exit_status, r.out) == (2, "")
    [error] = [line for line in r.err.splitlines() if "error:" in line]
    assert "(longt5) returns weights of the shape" in error


@pytest.mark.few(1)
@pytest.mark.parametrize("start", ["abc", -5, 10**6, True, 2**70])
@pytest.mark.parametrize("command", ["heads", "model"])
def test_a_decoder_that_starts_with_no_token_is_told(attnscope, tmp_path, command, start):
    save_reader("t5", tmp_path / "t5")
    config = json.loads((tmp_path / "t5" / "config.json").read_text())
    config["decoder_start_token_id"] = start
    (tmp_path / "t5" / "config.json").write_text(json.dumps(config))
    r = attnscope(command, tmp_path / "t5", "--text", "the cat sat", "--target", "a dog ran")
    assert (r.exit_status, r.out) == (2, "")
    [error] = [line for line in r.err.splitlines() if "error:" in line]
    assert "config.json" in error
    assert "decoder_start_token_id" in error
    assert attnscope(command, tmp_path / "t5", "--text", "the cat sat").exit_status == 0


@pytest.mark.few(1)
@pytest.mark.parametrize("family", ["t5", "bart"])
def test_a_decoder_whose_config_lacks_its_first_token_is_told(attnscope, tmp_path, family):
    save_reader(family, tmp_path / family)
    config = json.loads((tmp_path / family / "config.json").read_text())
    del config["decoder_start_token_id"]
    if family == "bart":
        config["decoder_start_token_id"] = None  # without a word it is 2
    (tmp_path / family / "config.json").write_text(json.dumps(config))
    corpus = tmp_path / "c.jsonl"
    corpus.write_text('{"text": "the cat sat", "to": "a dog"}\n')
    given = ["--corpus", corpus, "--target-field", "to"]
    r = attnscope("heads", tmp_path / family, *given)
    assert (r.exit_status, r.out) == (2, "")
    assert f"the config.json of {tmp_path / family} has no decoder_start_token_id" in " ".join(
        r.err.split()
    )
