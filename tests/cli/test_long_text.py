"""`attnscope model --file` and `--pool`, on the command line."""

import csv
import io
import re
from dataclasses import replace

import numpy as np
import pytest

from attnscope.base.process.budget import parse_size
from attnscope.model.maps import memory as map_memory
from tests.model.run.readers import WORDS, save_reader


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    save_reader("llama", folder, max_position_embeddings=700)
    return folder


@pytest.fixture
def file(tmp_path):
    """Write a file of 299 words: 301 tokens, two of which share a cell."""
    path = tmp_path / "long.txt"
    path.write_text(" ".join(np.random.default_rng(0).choice(WORDS[5:], 299)), encoding="utf-8")
    return path


def pooled(weights, kind):
    """Pool a map to cells of 2 × 2 weights; a last odd row or column has its own cells."""
    weights = np.array(weights)
    starts = range(0, len(weights), 2)
    return np.array([[getattr(np, kind)(weights[i : i + 2, j : j + 2]) for j in starts] for i in starts])


def test_a_file_is_read_whole_as_one_text(attnscope, llama, tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes("\ufeffthe cat\n\nsat on\tthe mat".encode())
    one = attnscope("model", llama, "--file", path, "-f", "json")
    assert one.json == attnscope("model", llama, "--text", "the cat sat on the mat", "-f", "json").json
    assert one.json["pooling"] is None


@pytest.mark.sweep
def test_beside_a_file_stands_what_stands_beside_a_text(attnscope, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("The cat sat.")
    r = attnscope("bert", "--file", path, "--pair", "It was tired.", "-f", "json")
    assert r.json["key_segments"] == [0] * 6 + [1] * 5
    path.write_text("tired " * 600)
    command = ["bert", "--file", path, "-f", "json"]
    assert (
        f"--file {path} is 602 tokens long, but the model takes at most 512." in attnscope(*command).err
    )
    cut = attnscope(*command, "--truncate").json
    assert cut["notices"] == [f"--file {path} was truncated from 602 tokens to 512."]


def test_a_target_stands_beside_a_file(attnscope, tmp_path):
    save_reader("t5", tmp_path / "t5")
    (tmp_path / "text.txt").write_text("the cat sat on")
    command = [
        "model",
        tmp_path / "t5",
        "--file",
        tmp_path / "text.txt",
        "--target",
        "a dog",
        "-f",
        "json",
    ]
    whole = attnscope(*command).json
    assert (whole["stack"], len(whole["query_tokens"]), len(whole["key_tokens"])) == ("cross", 4, 6)
    r = attnscope(*command, "--pool", "max")
    assert np.allclose(r.json["attention"], whole["attention"], atol=1e-6)
    assert r.json["pooling"] == {"shown": "max", "queries": [1] * 4, "keys": [1] * 6}


@pytest.mark.few(1)
@pytest.mark.parametrize("shown", ["max", "mean"])
def test_pooled_maps_are_pooled_whole_maps(attnscope, llama, file, shown):
    command = ["model", llama, "--file", file, "--layer", "all", "--head", "0,3", "-f", "json"]
    whole = attnscope(*command).json
    r = attnscope(*command, "--pool", shown)
    assert (r.exit_status, r.json["schema"]) == (0, "attnscope.maps/1")
    assert r.err == ""
    assert r.json["query_tokens"] == whole["query_tokens"]
    assert r.json["pooling"] == {"shown": shown, "queries": [2] * 150 + [1], "keys": [2] * 150 + [1]}
    for each, own in zip(r.json["maps"], whole["maps"], strict=True):
        assert (each["layer"], each["head"]) == (own["layer"], own["head"])
        assert each["attention"] == each[shown]
        for kind in ("max", "mean"):
            assert abs(np.array(each[kind]) - pooled(own["attention"], kind)).max() <= 1e-6


@pytest.mark.sweep
def test_maps_that_are_too_large_are_pooled_without_being_asked(attnscope, llama, file, monkeypatch):
    monkeypatch.setattr(map_memory, "WHOLE", 4 * 301 * 301)
    r = attnscope("model", llama, "--file", file)
    assert r.err == "attnscope: whole maps would take 353.9 KiB: they are pooled\n"
    heading = "301 queries · 301 keys · 151 × 151 cells: the largest of 2 × 2 weights each"
    assert r.out.splitlines()[1] == heading
    monkeypatch.setattr(map_memory, "WHOLE", 4 * 301 * 301 + 1)
    assert "pooled" not in attnscope("model", llama, "--file", file).err


def test_eight_thousand_tokens_are_too_many_for_a_whole_map():
    assert 4 * 8192**2 >= map_memory.WHOLE > 4 * 8191**2


@pytest.mark.sweep
def test_memory_is_kept_to(attnscope, llama, file, every_plan):
    r = attnscope("model", llama, "--file", file, "--pool", "max", "--memory", "1M")
    assert r.exit_status == 2
    assert "a shorter text; or more --memory, if available" in r.err
    least = parse_size(re.search("needs at least (.*?iB)", r.err)[1])
    more = f"{int(1.1 * least) + 301 * 301 * 8}"  # and what is kept
    blocks = attnscope("model", llama, "--file", file, "--pool", "max", "--memory", more)
    assert blocks.exit_status == 0
    assert "for 64 queries' weights at once" not in blocks.err
    whole = attnscope("model", llama, "--file", file, "--pool", "max")
    assert "for 64 queries' weights at once" in whole.err
    assert blocks.out == whole.out


def test_less_memory_than_whole_maps_take_pools_them(attnscope, llama, file):
    r = attnscope("model", llama, "--file", file, "--layer", "all", "--head", "all", "--memory", "4M")
    assert r.err.startswith("attnscope: whole maps would take 4.1 MiB: they are pooled")


def test_more_memory_than_there_is_is_told(attnscope, llama, file):
    r = attnscope("model", llama, "--file", file, "--pool", "max", "--memory", "900T")
    assert "--memory 900T is more than the free memory: cpu has" in r.err


@pytest.mark.sweep
def test_a_query_of_a_pooled_map_is_whole_in_every_format(attnscope, llama, file):
    command = ["model", llama, "--file", file, "--layer", 1, "--head", 2]
    row = attnscope(*command, "-f", "json").json["attention"][77]
    of_query = [*command, "--pool", "max", "--query", 77]
    record = attnscope(*of_query, "-f", "json").json
    assert np.allclose(record["attention"], [row], atol=1e-6)
    assert (record["first_query"], record["pooling"]) == (77, None)
    lines = list(csv.DictReader(io.StringIO(attnscope(*of_query, "-f", "csv").out)))
    assert np.allclose([float(line["attention"]) for line in lines], row, atol=1e-6)
    text = attnscope(*of_query).out
    assert "query 77 " in text
    assert "78–300: 0" in text
    assert f"{row[77]:.4f}" in text
    r = attnscope(*command, "--pool", "max", "--query", 301)
    assert "there is no query 301: queries are 0 to 300." in r.err


@pytest.mark.sweep
def test_strongest_keys_of_a_pooled_map_are_those_of_the_whole_map(attnscope, llama, file):
    command = ["model", llama, "--file", file, "--layer", 1, "--head", 2, "--top", 4]
    whole, own = (attnscope(*command, *more, "-f", "json").json for more in ([], ["--pool", "max"]))
    assert len(own["strongest"]) == 301
    for ours, theirs in zip(own["strongest"], whole["strongest"], strict=True):
        assert [each["attention"] for each in ours] == pytest.approx(
            [each["attention"] for each in theirs], abs=1e-6
        )
    tables = [attnscope(*command, *more).out for more in ([], ["--pool", "max"])]
    assert tables[0].splitlines()[:5] == tables[1].splitlines()[:5]


@pytest.mark.sweep
def test_pooled_maps_are_saved_with_all_that_is_known(attnscope, llama, file, tmp_path, read_tensors):
    command = ["model", llama, "--file", file, "--pool", "mean"]
    one, all_ = tmp_path / "one.npz", tmp_path / "all.safetensors"
    r = attnscope(*command, "--save", one, "--query", 5, "--show", "max[3,:2]", "-f", "json")
    saved = read_tensors(one)
    assert set(saved) == {"attention", "mean", "max", "row", "queries_of_cells", "keys_of_cells"}
    assert saved["attention"].equal(saved["mean"])
    assert saved["row"].shape == (301,)
    assert saved["keys_of_cells"].tolist()[-2:] == [[298, 300], [300, 301]]
    assert r.json["shown"]["values"] == pytest.approx(saved["max"][3, :2].tolist())
    attnscope(*command, "--head", "0-1", "--save", all_)
    names = [f"layer0.head{head}{kind}" for head in (0, 1) for kind in ("", ".mean", ".max")]
    assert set(read_tensors(all_)) == {*names, "queries_of_cells", "keys_of_cells"}
    wrong = attnscope(*command, "--show", "row")
    assert "there is no 'row' in this pooled map." in wrong.err


@pytest.mark.few(1)
@pytest.mark.parametrize("suffix", ["npz", "safetensors", "pt"])
def test_maps_that_are_too_large_for_memory_are_saved_whole(
    attnscope, llama, file, tmp_path, read_tensors, monkeypatch, suffix
):
    command = ["model", llama, "--file", file, "--layer", "all", "--head", "0,3"]
    whole, streamed = tmp_path / "whole.npz", tmp_path / f"streamed.{suffix}"
    attnscope(*command, "--save", whole)
    monkeypatch.setattr(map_memory, "WHOLE", 1000)
    r = attnscope(*command, "--save", streamed)
    assert r.exit_status == 0, r.err
    assert "they are pooled, and written whole by --save" in r.err.splitlines()[0]
    assert r.err.splitlines()[-1].endswith(f"to {streamed}: whole maps of 301 × 301 weights")
    assert "151 × 151 cells" in r.out, "what the terminal shows is pooled"
    ours, theirs = read_tensors(streamed), read_tensors(whole)
    assert list(ours) == list(theirs) == [f"layer{i}.head{j}" for i in (0, 1) for j in (0, 3)]
    for name in theirs:
        assert ours[name].shape == (301, 301)
        assert abs(ours[name] - theirs[name]).max() <= 1e-6


@pytest.mark.sweep
def test_blocks_of_queries_make_the_same_file(attnscope, llama, file, tmp_path, monkeypatch):
    from attnscope.model.run import memory_plan as plan

    monkeypatch.setattr(map_memory, "WHOLE", 1000)
    command = ["model", llama, "--file", file, "--layer", 1, "--head", 2, "--save"]
    attnscope(*command, tmp_path / "one.safetensors")
    monkeypatch.setitem(plan.LARGEST_BLOCK, "cpu", 2**19)
    assert "for 32 queries' weights at once" in attnscope(*command, tmp_path / "many.safetensors").err
    one, many = ((tmp_path / f"{name}.safetensors").read_bytes() for name in ("one", "many"))
    assert len(one) == len(many)
    weights = [np.frombuffer(each[-4 * 301 * 301 :], "<f4") for each in (one, many)]
    assert np.allclose(*weights, atol=1e-6)
    assert weights[1].reshape(301, 301).sum(axis=1) == pytest.approx(np.ones(301), abs=1e-5)


def test_whole_maps_of_generated_tokens_are_saved(
    attnscope, llama, file, tmp_path, read_tensors, monkeypatch
):
    command = ["model", llama, "--file", file, "--generate", 3, "--save"]
    attnscope(*command, tmp_path / "whole.npz")
    monkeypatch.setattr(map_memory, "WHOLE", 1000)
    r = attnscope(*command, tmp_path / "streamed.npz")
    assert r.exit_status == 0, r.err
    whole, streamed = (read_tensors(tmp_path / f"{name}.npz") for name in ("whole", "streamed"))
    assert whole["attention"].shape == streamed["attention"].shape
    assert abs(whole["attention"] - streamed["attention"]).max() <= 1e-6


@pytest.mark.sweep
def test_a_file_of_maps_has_another_shape_only_on_request_and_says_so(
    attnscope, llama, file, tmp_path, read_tensors
):
    from safetensors import safe_open

    path = tmp_path / "pooled.safetensors"
    r = attnscope("model", llama, "--file", file, "--pool", "mean", "--save", path)
    assert read_tensors(path)["attention"].shape == (151, 151)
    assert (
        f"--pool mean: the maps in {path} are pooled, 151 × 151 cells of 301 × 301 weights; without"
        " --pool, or with --pool none, they are whole"
    ) in r.err
    with safe_open(path, "np") as opened:
        assert opened.metadata() == {"pooling": "mean", "weights": "301 × 301"}


@pytest.mark.sweep
def test_no_pooling_makes_whole_maps_of_any_size(attnscope, llama, file, tmp_path, monkeypatch):
    command = ["model", llama, "--file", file]
    formats = ("json", "csv", "markdown", "table")
    small = {each: attnscope(*command, "-f", each).out for each in formats}
    monkeypatch.setattr(map_memory, "WHOLE", 1000)
    for each in formats:
        r = attnscope(*command, "--pool", "none", "-f", each)
        assert (r.exit_status, r.out) == (0, small[each])
        assert "pooled" not in r.err
    page = tmp_path / "page.html"
    assert attnscope(*command, "--pool", "none", "--page", page).exit_status == 0
    assert "pooled to" not in page.read_text(encoding="utf-8")


@pytest.mark.sweep
def test_a_page_of_whole_maps_that_no_browser_draws_is_refused_before_the_model_runs(
    attnscope, llama, file, tmp_path, monkeypatch
):
    from attnscope.document.page import page as pages
    from attnscope.model.run import load as loading

    monkeypatch.setattr(pages, "MAX_CANVAS", 300)
    page = tmp_path / "page.html"
    command = ["model", llama, "--file", file, "--page", page]
    with monkeypatch.context() as unloaded:
        unloaded.setattr(loading, "load_model", None)
        r = attnscope(*command, "--pool", "none")
    assert r.exit_status == 2
    assert r.err.splitlines() == [
        "attnscope: error: a page shows maps of at most 300 queries and keys, the largest that browsers can"
        " draw, but these have 301.",
        "  try  --pool max, or no --pool, for pooled maps",
    ]
    assert not page.exists()
    assert attnscope(*command, "--pool", "max").exit_status == 0


def test_whole_maps_need_no_memory_where_only_a_file_needs_them(
    attnscope, llama, file, tmp_path, read_tensors, monkeypatch
):
    monkeypatch.setattr(map_memory, "WHOLE", 1000)
    monkeypatch.setattr(map_memory, "memory_budget", lambda asked, device: 2**26)
    monkeypatch.setattr(map_memory, "bytes_of_whole", lambda *_: 2**27)
    command = ["model", llama, "--file", file, "--pool", "none", "--save", tmp_path / "whole.npz"]
    r = attnscope(*command)
    assert "151 × 151 cells" in r.out
    assert read_tensors(tmp_path / "whole.npz")["attention"].shape == (301, 301)
    r = attnscope(*command, "--force", "-f", "json", "--memory", "50M")
    assert (r.exit_status, r.json["error"]["status"]) == (2, 2)
    assert "whole maps and what is computed from them take 128.0 MiB, but --memory is 50M." in r.err


def test_a_run_that_fails_leaves_no_file_of_whole_maps(attnscope, llama, file, tmp_path, monkeypatch):
    monkeypatch.setattr(map_memory, "WHOLE", 1000)
    folder = tmp_path / "empty"
    folder.mkdir()
    command = ["model", llama, "--file", file, "--save", folder / "whole.npz"]
    assert "there is no query 400: queries are 0 to 300." in attnscope(*command, "--query", 400).err
    assert attnscope(*command, "--head", 9).exit_status == 2
    monkeypatch.setattr("attnscope.model.maps.matrix_file.disk_usage", lambda path: Usage(1000))
    r = attnscope(*command)
    assert (r.exit_status, r.out) == (2, "")
    assert f"{folder / 'whole.npz'} takes 707.8 KiB while it is written, but its disk has" in r.err
    assert list(folder.iterdir()) == []


class Usage:
    """The free space of a disk."""

    def __init__(self, free):
        self.free = free


@pytest.mark.sweep
def test_pooled_maps_are_drawn_and_on_a_page(attnscope, llama, file, tmp_path):
    plot, page = tmp_path / "x.svg", tmp_path / "x.html"
    r = attnscope(
        "model", llama, "--file", file, "--pool", "max", "--query", 9, "--plot", plot, "--page", page
    )
    assert r.exit_status == 0, r.err
    assert "wrote 12 heads" in r.err
    assert r'"text":"8\u20139 ' in page.read_text(encoding="utf-8")
    assert '"query":4' in page.read_text(encoding="utf-8")
    assert "keys" in plot.read_text(encoding="utf-8")


def test_generated_tokens_are_the_rows_of_a_pooled_map(attnscope, llama, file):
    command = ["model", llama, "--file", file, "--generate", 3, "-f", "json"]
    whole, own = (attnscope(*command, *more).json for more in ([], ["--pool", "max"]))
    assert own["query_tokens"] == whole["query_tokens"]
    assert own["first_query"] == whole["first_query"] == 301
    assert own["pooling"]["queries"] == [1] * len(whole["query_tokens"])
    largest = [[max(row[j : j + 2]) for j in range(0, len(row), 2)] for row in whole["attention"]]
    assert np.allclose(own["attention"], largest, atol=1e-6)


@pytest.mark.sweep
def test_verify_compares_pooled_maps(attnscope, llama, file, monkeypatch):
    command = [
        "model",
        llama,
        "--file",
        file,
        "--layer",
        "all",
        "--pool",
        "mean",
        "--verify",
        "-f",
        "json",
    ]
    r = attnscope(*command)
    [check] = r.json["checks"]
    assert (check["name"], check["ok"], r.exit_status) == (
        "2 pooled maps = those of the model's own eager attention",
        True,
        0,
    )
    from attnscope.model.maps.pooled import CellPooler

    right = CellPooler.add
    monkeypatch.setattr(
        CellPooler,
        "add",
        lambda self, block: right(self, replace(block, attention=block.attention.roll(1, dims=-1))),
    )
    r = attnscope(*command)
    assert (r.json["checks"][0]["ok"], r.exit_status) == (False, 1)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (
            "--steps",
            "the steps of a layer are whole tensors of queries and keys, and these maps take 353.9 KiB.",
        ),
        ("--verify", "--verify needs whole maps of the model's own eager attention, and these"),
    ],
)
def test_what_takes_whole_maps_is_refused_where_they_are_too_large(
    attnscope, llama, file, monkeypatch, option, message
):
    monkeypatch.setattr(map_memory, "WHOLE", 1000)
    r = attnscope("model", llama, "--file", file, option)
    assert (r.exit_status, r.out) == (2, "")
    assert message in r.err


def test_attention_that_is_not_seen_is_not_pooled(attnscope, tmp_path):
    save_reader("deberta-v2", tmp_path / "model")
    r = attnscope("model", tmp_path / "model", "--text", "the cat", "--pool", "max")
    assert r.exit_status == 2
    assert (
        "does not call attention through transformers' registry. Its maps come from its own eager attention"
        in r.err
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--file", "nowhere.txt"], "there is no file nowhere.txt."),
        (["--file", "."], ". is a folder."),
        (["--file", "latin.txt"], "latin.txt is not UTF-8."),
        (["--file", "empty.txt"], "--file empty.txt is empty: there is nothing to show."),
        (["--file", "x", "--text", "a"], "--text and --file cannot be combined: give one input."),
        (["--file", "x", "--circuits"], "--circuits is about a head's weights"),
        (["--text", "a", "--memory", "much"], "--memory is 'much', which is not a size."),
        (["--text", "a", "--pool", "max", "--steps"], "--steps shows whole tensors, and --pool shows pooled maps"),
        (["--text", "a", "--pool", "max", "--query", "0", "--head", "all"], "--query is for one head"),
    ],
)  # fmt: skip
def test_mistakes_are_told_in_a_line(attnscope, tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "latin.txt").write_bytes("Übung".encode("latin-1"))
    (tmp_path / "empty.txt").write_text(" \n")
    r = attnscope("bert", *options)
    assert (r.exit_status, r.out) == (2, "")
    assert message in r.err.splitlines()[0]
    assert len(r.err.splitlines()) <= 3


def test_what_takes_long_tells_a_terminal_how_far_it_is(attnscope, saved, monkeypatch, tmp_path):
    """The progress is reported for every block of queries."""
    from rich.status import Status

    told = []
    monkeypatch.setattr(Status, "update", lambda status, text, **options: told.append(text.plain))
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    folder = saved("llama")
    r = attnscope("model", folder, "--text", "the cat sat on the mat", "--pool", "max")
    assert r.exit_status == 0
    assert told
    assert all(re.fullmatch(r"running .*: layer \d+ of \d+, \d+% …", text) for text in told)
    assert told[-1].endswith("100% …")
