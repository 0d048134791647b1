"""`attnscope trace`, on the command line."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
import torch

CODE = Path(__file__).parents[1] / "code" / "trace" / "code"

TUTORIAL = [
    "trace", "tutorial_mha_right.py:MultiHeadedAttention", "--init", "d_feat=200", "--init", "n_head=5",
    "--input", "Q=n_batch:128,n_Q:32,d_feat", "--input", "K=n_batch,n_K:48,d_feat", "--input", "V=n_batch,n_K,d_feat",
]  # fmt: skip

MINE = """
import torch
from torch import nn


def attend(Q, K, V):
    scores = Q @ K.mT / Q.size(-1) ** 0.5
    attention = scores.softmax(-1)
    x = attention @ V
    return x


class Block(nn.Module):
    def __init__(self, d, n_layer=12, drop=0.5):
        super().__init__()
        self.lins = nn.ModuleList(nn.Linear(d, d) for _ in range(n_layer))
        self.drop = nn.Dropout(drop)

    def forward(self, x):
        for lin in self.lins:
            y = lin(x)
            x = attend(y, x, x)
        return x

    def once(self, x):
        y = self.drop(self.lins[0](x))
        return y


class Outer:
    class Inner:
        def __call__(self, x):
            y = x * 2
            return y


def noisy(x):
    print("hello from the code")
    y = x * 2
    return y


def looks(x):
    y = x * 2
    if y.sum() > 1e9:
        y = y + 1
    return y


def scaled(Q, K):
    scores = Q @ K.mT / 7.0
    attention = scores.softmax(-1)
    return attention
"""

QKV = [
    "--input",
    "Q=n_batch:2,n_Q:3,d:4",
    "--input",
    "K=n_batch,n_K:5,d",
    "--input",
    "V=n_batch,n_K,d_V:6",
]
BLOCK = ["--init", "d=4", "--input", "x=n_batch:2,n:3,d"]


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """Write a user's file in the folder that the command runs in."""
    path = tmp_path / "mine_to_trace.py"
    path.write_text(MINE.lstrip("\n"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return path


@pytest.fixture
def run(attnscope, mine):
    """Return a function that traces a part of that file: `run("attend", …)`."""
    return lambda name, *arguments: attnscope("trace", f"{mine.name}:{name}", *arguments)


def dims(r):
    return {step["name"]: " ".join(step["dims"] or ()) for step in r.json["steps"]}


def names(r):
    return [step["name"] for step in r.json["steps"]]


# The example.


def test_the_tutorials_axes_have_their_names(attnscope, monkeypatch):
    monkeypatch.chdir(CODE)
    r = attnscope(*TUTORIAL, "-f", "json")
    assert (r.exit_status, r.err) == (0, "")
    found = dims(r)
    assert found["Q_split"] == "n_batch n_head n_Q d_feat/n_head"
    assert found["K_split"] == "n_batch n_head n_K d_feat/n_head"
    assert found["scores"] == found["attention"] == "n_batch n_head n_Q n_K"
    assert found["x_rsh1"] == "n_batch n_Q n_head d_feat/n_head"
    assert found["x"] == "n_batch n_Q d_feat"
    assert r.json["sizes"] == {"n_batch": 128, "n_Q": 32, "d_feat": 200, "n_K": 48, "n_head": 5}
    assert r.json["options"] == {"where": ["d_feat is a multiple of n_head"]}
    assert (r.json["findings"], r.json["crash"]) == ([], None)
    assert r.json["file"] == "tutorial_mha_right.py"


@pytest.mark.sweep
def test_the_table_is_that_of_the_json(attnscope, monkeypatch):
    monkeypatch.chdir(CODE)
    lines = attnscope(*TUTORIAL).out.splitlines()
    steps = attnscope(*TUTORIAL, "-f", "json").json["steps"]
    assert lines[0] == "tutorial_mha_right.py:MultiHeadedAttention"
    assert lines[1] == "n_batch 128 · n_Q 32 · d_feat 200 · n_K 48 · n_head 5"
    assert lines[2] == "float32 · cpu · seed 0"
    assert lines[3].startswith("where d_feat is a multiple of n_head (line ")
    rows = [line.split() for line in lines if line[:4].strip().isdigit()]
    assert [(row[0], row[1]) for row in rows] == [(str(step["line"]), step["name"]) for step in steps]
    source = Path("tutorial_mha_right.py").read_text(encoding="utf-8").splitlines()
    for line, name in {(step["line"], step["name"]) for step in steps if "[" not in step["name"]}:
        assert name in source[line - 1]


# What is traced.


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("attend", QKV, ["Q", "K", "V", "scores", "attention", "x"]),
        ("Outer.Inner", ["--input", "x=n:3"], ["x", "y"]),
        ("Block", [*BLOCK, "--call", "once"], ["x", "y"]),
        ("Block", [*BLOCK, "--init", "n_layer=1", "--depth", "0"], ["x", "y", "x"]),
        ("attend", ["--input", "n_Q:3,d:4", "--input", "n_K:5,d", "--input", "n_K,d_V:6"], ["Q", "K", "V", "scores", "attention", "x"]),
    ],
)  # fmt: skip
def test_targets_of_all_kinds(run, name, arguments, expected):
    r = run(name, *arguments, "-f", "json")
    assert r.exit_status == 0, r.err
    assert names(r) == expected
    assert all(step["dims"] is not None for step in r.json["steps"])


# Mistakes.


@pytest.mark.few(20)
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere.py:f"], "there is no file nowhere.py."),
        (["mine_to_trac.py:attend"], "mine_to_trace.py, which exists"),
        (["mine_to_trace.py:atend"], "mine_to_trace.py has no atend"),
        (["mine_to_trace.py:atend"], "mine_to_trace.py:attend"),
        (["mine_to_trace.py"], "name the class or function in it as well"),
        (["no_such_module:f"], "there is no module no_such_module"),
        (["mine_to_trace.py:attend", *QKV[:4]], "V"),
        (["mine_to_trace.py:attend", "--input", "Q=n,d:4", *QKV[2:]], "n"),
        (["mine_to_trace.py:attend", *QKV, "--input", "W=n:3"], "W"),
        (["mine_to_trace.py:attend", *QKV, "--input", "Q=n:3"], "--input gives Q 2 times"),
        (["mine_to_trace.py:attend", *QKV, "--init", "d=4"], "nothing is constructed"),
        (["mine_to_trace.py:Block", "--input", "x=n:3,4"], "d"),
        (["mine_to_trace.py:Block", *BLOCK, "--init", "width=4"], "width"),
        (["mine_to_trace.py:Block", *BLOCK, "--init", "drop=7"], "Block(d=4, drop=7) raises ValueError: dropout"),
        (["mine_to_trace.py:Block", *BLOCK, "--init", "drop=yes"], "--init drop: yes is neither a Python value"),
        (["mine_to_trace.py:Block", *BLOCK, "--call", "twice"], "twice"),
        (["mine_to_trace.py:attend", *QKV, "--dtype", "float31"], "'float31' is not a dtype"),
        (["mine_to_trace.py:attend", *QKV, "--device", "tpu9"], "tpu9"),
        (["mine_to_trace.py:attend", *QKV, "--write"], "--write is for --annotate."),
        (["mine_to_trace.py:attend", *QKV, "--annotate", "--check"], "--annotate prints a diff and nothing else"),
        (["mine_to_trace.py:attend", *QKV, "--annotate", "-f", "json"], "cannot be combined with --format"),
        (["mine_to_trace.py:attend", *QKV, "--stats", "--device", "meta"], "--stats needs values, and meta tensors have none."),
        (["mine_to_trace.py:attend", *QKV, "-f", "csv", "--source"], "csv holds one table"),
        (["mine_to_trace.py:attend", *QKV, "--show", "score"], "scores"),
        (["mine_to_trace.py:attend", *QKV, "--follow", "nowhere"], "there is no module nowhere to follow"),
        (["mine_to_trace.py:attend", *QKV, "--follow", ""], "--follow '' is not the name of a module."),
        (["mine_to_trace.py:attend", *QKV, "--follow", ".."], "--follow '..' is not the name of a module."),
        (["mine_to_trace.py:attend", *QKV, "--where", "d_V=d*d"], "d_V"),
        (["mine_to_trace.py:attend", *QKV, "--depth", "-1"], "--depth"),
    ],
)  # fmt: skip
def test_a_mistake_gets_a_clear_line_and_exit_status_2(attnscope, mine, arguments, said):
    r = attnscope("trace", *arguments)
    assert r.exit_status == 2
    assert r.out == "" or list(r.json) == ["schema", "error"]
    assert r.err.startswith("attnscope: error: ")
    assert said in r.err
    assert len(r.err.splitlines()) <= 2
    assert "Traceback" not in r.err


# Formats.


def test_all_formats_hold_the_same_rows(run):
    r = run("attend", *QKV, "-f", "json")
    steps = r.json["steps"]
    assert len(r.out.strip().splitlines()) > 1
    rows = list(csv.DictReader(io.StringIO(run("attend", *QKV, "-f", "csv").out)))
    assert [(row["name"], row["dims"], row["shape"], row["line"]) for row in rows] == [
        (s["name"], " ".join(s["dims"]), " ".join(map(str, s["shape"])), str(s["line"])) for s in steps
    ]
    table = [line for line in run("attend", *QKV, "-f", "markdown").out.splitlines() if line[:1] == "|"]
    assert [line.split(" | ")[1] for line in table[2:]] == [step["name"] for step in steps]


def test_stats_are_those_of_the_tensors(run, tmp_path, read_tensors):
    path = tmp_path / "values.safetensors"
    r = run("attend", *QKV, "--stats", "--save", path, "-f", "json")
    tensors = read_tensors(path)
    assert f"wrote {len(tensors)} tensors" in r.err
    for step in r.json["steps"]:
        values = tensors[step["name"]].double()
        assert step["stats"]["mean"] == pytest.approx(values.mean().item(), rel=1e-5, abs=1e-8)
        assert step["stats"]["max"] == pytest.approx(values.max().item(), rel=1e-5)
    torch.testing.assert_close(
        tensors["x"],
        torch.nn.functional.scaled_dot_product_attention(tensors["Q"], tensors["K"], tensors["V"]),
    )


@pytest.mark.few(1)
@pytest.mark.parametrize("suffix", ["npz", "pt", "safetensors"])
def test_tensors_are_saved_once_unless_forced(run, tmp_path, read_tensors, suffix):
    path = tmp_path / f"values.{suffix}"
    assert run("attend", *QKV, "--save", path).exit_status == 0
    assert sorted(read_tensors(path)) == ["K", "Q", "V", "attention", "scores", "x"]
    assert run("attend", *QKV, "--save", path).exit_status == 2
    assert run("attend", *QKV, "--save", path, "--force").exit_status == 0


@pytest.mark.sweep
def test_a_tensor_is_shown(run):
    r = run("attend", *QKV, "--show", "attention[0]", "-f", "json")
    assert r.json["shown"]["shape"] == [3, 5]
    values = torch.tensor(r.json["shown"]["values"])
    torch.testing.assert_close(values.sum(-1), torch.ones(3))
    assert "attention[0]" in run("attend", *QKV, "--show", "attention[0]").out


@pytest.mark.sweep
def test_the_source_is_shown_with_its_shapes(run):
    r = run("Block", *BLOCK, "--init", "n_layer=1", "--source")
    assert "scores = Q @ K.mT / Q.size(-1) ** 0.5" in r.out
    assert "def forward(self, x):" in r.out
    record = run("Block", *BLOCK, "--init", "n_layer=1", "--source", "-f", "json").json
    assert {source["function"] for source in record["source"]} == {"Block.forward", "attend"}
    markdown = run("attend", *QKV, "--source", "-f", "markdown")
    assert "scores = Q @ K.mT" in markdown.out


# What is run.


@pytest.mark.sweep
def test_training_drops_and_evaluation_does_not(run, tmp_path, read_tensors):
    dropped = {}
    for mode in ("--train", "--eval"):
        path = tmp_path / f"{mode}.pt"
        run("Block", *BLOCK, "--call", "once", mode, "--save", path)
        dropped[mode] = (read_tensors(path)["y"] == 0).any().item()
    assert dropped == {"--train": True, "--eval": False}


def test_inputs_are_drawn_uniformly_from_0_to_1(run):
    def stats(*more):
        document = run("attend", *QKV, "--stats", "--no-search", *more, "-f", "json").json
        return document["steps"][0]["stats"], document["options"].get("draw")

    uniform, option = stats("--draw", "uniform")
    assert (0 <= uniform["min"] < uniform["max"] < 1, option) == (True, "uniform")
    assert stats("--draw", "normal") == stats()
    assert stats()[0]["min"] < 0


def test_on_meta_shapes_alone_are_told(run):
    r = run(
        "attend", "--device", "meta", "--input", "Q=n_Q:1000000,d:64", "--input", "K=n_K:2000000,d",
        "--input", "V=n_K,d_V:32", "-f", "json",
    )  # fmt: skip
    assert (r.exit_status, r.json["device"]) == (0, "meta")
    assert dims(r)["scores"] == "n_Q n_K"
    assert r.json["steps"][3]["shape"] == [1000000, 2000000]


def test_code_that_looks_at_values_is_run_on_the_cpu(run):
    r = run("looks", "--input", "x=n:5,d:3", "--device", "meta", "-f", "json")
    assert r.exit_status == 0
    assert (
        r.err
        == "attnscope: the code depends on values, which meta tensors do not have: it ran on the CPU\n"
    )
    assert r.json["device"] == "cpu"
    assert dims(r) == {"x": "n d", "y": "n d"}
    assert r.json["notices"] == [r.err.removeprefix("attnscope: ").strip()]


def test_findings_fail_only_where_that_is_asked_for(run):
    given = ["--input", "Q=n_Q:3,d:4", "--input", "K=n_K:5,d"]
    line = MINE.lstrip("\n").splitlines().index("    scores = Q @ K.mT / 7.0") + 1
    for more, exit_status in ([], 0), (["--strict"], 1):
        r = run("scaled", *given, *more)
        assert r.exit_status == exit_status
        assert f"! line {line}: the scores are scaled by 0.1429" in r.out
    assert run("attend", *QKV, "--strict").exit_status == 0


# The user's code is left in peace.


def test_what_the_code_prints_goes_to_stderr(run):
    r = run("noisy", "--input", "x=n:3", "-f", "json")
    assert json.loads(r.out)["schema"] == "attnscope.trace/1"
    assert r.err == "hello from the code\n"  # once, however often it is run


@pytest.mark.sweep
def test_nothing_is_left_beside_the_file(mine):
    before = mine.stat()
    command = ["trace", f"{mine.name}:attend", *QKV]
    result = subprocess.run(
        [sys.executable, "-c", "from attnscope.cli.app import main; raise SystemExit(main())", *command],
        capture_output=True, text=True, cwd=mine.parent, timeout=120,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert [path.name for path in mine.parent.iterdir()] == [mine.name]
    assert mine.stat().st_mtime_ns == before.st_mtime_ns


# Comments.


def test_a_diff_changes_nothing(run, mine):
    before = mine.read_bytes()
    r = run("attend", *QKV, "--annotate")
    assert r.exit_status == 0
    assert mine.read_bytes() == before
    assert "+    scores = Q @ K.mT / Q.size(-1) ** 0.5  # [n_batch, n_Q, n_K]" in r.out.splitlines()
    assert r.err == "attnscope: mine_to_trace.py is unchanged: --write applies the diff\n"


def test_what_is_written_is_at_the_ends_of_lines(run, mine):
    before = mine.read_text(encoding="utf-8").splitlines()
    r = run("attend", *QKV, "--annotate", "--write")
    assert (r.exit_status, r.out) == (0, "")
    after = mine.read_text(encoding="utf-8").splitlines()
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert [new.removeprefix(old) for old, new in changed] == [
        "  # [n_batch, n_Q, n_K]", "  # [n_batch, n_Q, n_K]", "  # [n_batch, n_Q, d_V]",
    ]  # fmt: skip
    assert r.err == "attnscope: wrote the axes at the end of 3 lines of mine_to_trace.py\n"


@pytest.mark.sweep
def test_the_diff_is_one_that_patch_applies(run, mine):
    (mine.parent / "change.diff").write_text(run("attend", *QKV, "--annotate").out, encoding="utf-8")
    run("attend", *QKV, "--annotate", "--write")
    written = mine.read_bytes()
    mine.write_text(MINE.lstrip("\n"), encoding="utf-8")
    subprocess.run(["git", "apply", "-p0", "change.diff"], cwd=mine.parent, check=True)
    assert mine.read_bytes() == written


COMMENTED = """
def attend(Q, K, V):
    scores = Q @ K.mT / Q.size(-1) ** 0.5  # {scores}
    attention = scores.softmax(-1)
    x = attention @ V  # [n_batch, n_Q, d_V]
    return x
"""


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("comment", "exit_status", "note"),
    [
        ("[n_batch, n_Q, n_K]", 0, "2 true"),
        ("[n_batch, n_K, n_Q]", 1, "1 true, 1 not true"),
        ("[n_batch, n_Q]", 1, "1 true, 1 not true"),
        ("scaled by the root", 0, "1 true"),
    ],
)
def test_comments_are_compared_with_what_ran(attnscope, mine, comment, exit_status, note):
    path = mine.with_name("commented_to_trace.py")
    path.write_text(dedent(COMMENTED).lstrip("\n").format(scores=comment), encoding="utf-8")
    r = attnscope("trace", f"{path.name}:attend", *QKV, "--check", "-f", "json")
    assert r.exit_status == exit_status, r.err
    (check,) = r.json["checks"]
    assert (check["name"], check["ok"], check["note"]) == ("shape comments", exit_status == 0, note)
    lies = [finding for finding in r.json["findings"] if "comment" in finding["message"]]
    assert [lie["line"] for lie in lies] == ([2] if exit_status else [])


@pytest.mark.sweep
def test_comments_that_were_written_are_true(run):
    for name, given in {"attend": QKV, "Block": [*BLOCK, "--init", "n_layer=2"]}.items():
        run(name, *given, "--annotate", "--write")
    assert run("attend", *QKV, "--check").exit_status == 0
    assert "FAILS" not in run("attend", *QKV, "--check").out


@pytest.mark.sweep
def test_a_file_without_comments_cannot_be_checked(run):
    r = run("attend", *QKV, "--check", "-f", "json")
    assert (r.exit_status, r.json["checks"][0]["ok"]) == (0, None)
    assert r.json["checks"][0]["note"] == "there are none"


def test_a_module_to_follow_that_fails_is_told(run, tmp_path):
    (tmp_path / "fails_when_followed.py").write_text("raise ValueError('no')\n")
    r = run(
        "attend",
        "--input",
        "Q=n:2,d:3",
        "--input",
        "K=n,d",
        "--input",
        "V=n,d",
        "--follow",
        "fails_when_followed",
    )
    assert r.exit_status == 2
    assert "importing fails_when_followed, which --follow names, raises ValueError: no" in r.err


@pytest.mark.sweep
def test_code_may_remove_the_folder_it_runs_in(attnscope, tmp_path, monkeypatch):
    here = tmp_path / "here"
    code = "import os\n\n\ndef f(x):\n    os.path.exists(HERE) and os.rmdir(HERE)\n    y = x * 2\n    return y\n"
    (tmp_path / "removes.py").write_text(f"HERE = {str(here)!r}\n{code}")
    here.mkdir()
    monkeypatch.chdir(here)
    r = attnscope("trace", f"{tmp_path}/removes.py:f", "--input", "x=n:2", "--format", "json")
    assert (r.exit_status, r.json["steps"][-1]["name"]) == (0, "y")


@pytest.mark.sweep
def test_code_may_remove_its_own_file(attnscope, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = "import os\n\n\ndef f(x):\n    os.path.exists(__file__) and os.remove(__file__)\n    y = x * 2  # n\n    return y\n"
    for option in ("--check", "--annotate"):
        (tmp_path / "removes_itself.py").write_text(code)
        r = attnscope("trace", "removes_itself.py:f", "--input", "x=n:2", option)
        assert r.exit_status == 2
        assert r.err.startswith("attnscope: error: cannot read ")


# Many names.


def many(n):
    """Return inputs with two named axes each."""
    pairs = [f"a{i}:{i % 7 + 2},a{i + 1}:{i % 5 + 2}" for i in range(0, n, 2)]
    return [part for pair in pairs for part in ("--input", pair)]


@pytest.mark.sweep
def test_three_hundred_axes_have_their_names(attnscope, tmp_path):
    (tmp_path / "code.py").write_text("def f(*xs):\n    for x in xs:\n        y = x.mT\n    return y\n")
    r = attnscope("trace", f"{tmp_path}/code.py:f", *many(300), "--format", "json")
    assert r.exit_status == 0
    assert r.json["steps"][0]["dims"] == ["a0", "a1"]
    assert r.json["steps"][-1]["dims"] == ["a299", "a298"]


def test_where_too_many_axes_depend_on_each_other_that_is_told(attnscope, tmp_path):
    (tmp_path / "code.py").write_text("def f(*xs):\n    y = xs[0] + xs[35]\n    return y\n")
    r = attnscope("trace", f"{tmp_path}/code.py:f", *many(300))
    assert r.exit_status == 0
    assert "few axes could be named: 300 sizes have names, too many to find out" in r.err
