"""`attnscope sdpa`, on the command line."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from safetensors.torch import load_file

from tests.profiles import examples


def test_the_first_example_shows_every_tensor(attnscope):
    r = attnscope("sdpa", "--nq", 30, "--nk", 50)
    assert r.exit_status == 0
    assert r.err == ""
    rows = [line.split()[0] for line in r.out.splitlines()[6:-3]]
    assert rows == ["Q", "K", "V", "scores", "attention", "out"]
    assert "n_batch 3 · n_Q 30 · n_K 50 · d_K 128 · d_V 256" in r.out
    assert "scale 1/√d_K = 0.08839 · softmax in float32 · float32 · cpu · seed 0" in r.out


@pytest.mark.few(2)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("heads", [[], ["--heads", "4"]])
def test_the_output_equals_pytorchs(attnscope, tmp_path, dtype, heads):
    path = tmp_path / "x.safetensors"
    r = attnscope("sdpa", "--dtype", dtype, "--save", path, *heads)
    assert r.exit_status == 0
    assert "wrote 6 tensors" in r.err
    tensors = load_file(path)
    expected = F.scaled_dot_product_attention(tensors["Q"], tensors["K"], tensors["V"])
    tolerance = {"float64": 1e-12, "float32": 1e-5}[dtype]
    torch.testing.assert_close(tensors["out"], expected, rtol=0, atol=tolerance)
    torch.testing.assert_close(
        tensors["attention"].sum(-1), torch.ones(expected.shape[:-1]).to(expected)
    )


@pytest.mark.sweep
@given(data=st.data())
@examples(6, 40, ignoring=[HealthCheck.function_scoped_fixture])
def test_a_dry_run_shows_the_rows_of_the_real_run(assert_same_rows, data):
    sizes = st.integers(1, 12)
    arguments = []
    for option in ("--batch", "--nq", "--nk", "--dk", "--dv", "--heads"):
        if data.draw(st.booleans(), label=option):
            arguments += [option, data.draw(sizes, label=option)]
    arguments += ["--dtype", data.draw(st.sampled_from(["float64", "float32", "float16", "bfloat16"]))]
    arguments += ["--device", data.draw(st.sampled_from(["cpu", "meta"]))]
    assert_same_rows("sdpa", arguments)


def test_uniform_inputs_lie_in_0_to_1_and_the_heading_says_so(attnscope):
    r = attnscope("sdpa", "--draw", "uniform", "--seed", 2)
    assert "· inputs uniform in [0, 1) · float32 · cpu · seed 2\n" in r.out
    steps = attnscope("sdpa", "--draw", "uniform", "--stats", "--format", "json").json["steps"]
    assert all(0 <= step["stats"]["min"] < 0.001 for step in steps[:3])
    assert all(0.999 < step["stats"]["max"] < 1 for step in steps[:3])


def test_the_seed_decides_the_values(attnscope):
    def out(seed):
        return attnscope("sdpa", "--seed", seed, "--show", "out[0]").out

    assert out(1) == out(1)
    assert out(1).replace("seed 1", "") != out(2).replace("seed 2", "")


@pytest.mark.parametrize("suffix", ["safetensors", "npz", "pt"])
def test_save_writes_every_tensor_by_name(attnscope, tmp_path, read_tensors, suffix):
    path = tmp_path / f"x.{suffix}"
    assert attnscope("sdpa", "--save", path, "--seed", 3).exit_status == 0
    tensors = read_tensors(path)
    assert sorted(tensors) == sorted(["Q", "K", "V", "scores", "attention", "out"])
    torch.manual_seed(3)
    assert torch.equal(tensors["Q"], torch.randn(3, 30, 128))


def test_show_prints_values_below_the_table(attnscope):
    r = attnscope("sdpa", "--nq", 2, "--nk", 3, "--show", "attention[0]", "--seed", 1)
    lines = r.out.splitlines()
    place = lines.index("attention[0]  n_Q n_K  2×3  float32")
    rows = [[float(x) for x in line.strip(" []").split()] for line in lines[place + 1 :]]
    assert [sum(row) for row in rows] == pytest.approx([1, 1], abs=3e-4)


def test_shown_values_are_in_the_json_in_full(attnscope, tmp_path):
    r = attnscope("sdpa", "--show", "out[1,2,:4]", "--format", "json", "--save", tmp_path / "x.pt")
    shown = r.json["shown"]
    assert (shown["name"], shown["dims"], shown["shape"]) == ("out[1,2,:4]", ["d_V"], [4])
    saved = torch.load(tmp_path / "x.pt", weights_only=True)
    assert shown["values"] == pytest.approx(saved["out"][1, 2, :4].tolist(), abs=0)


def test_stats_are_of_the_saved_values(attnscope, tmp_path):
    r = attnscope("sdpa", "--stats", "--format", "json", "--save", tmp_path / "x.npz")
    saved = np.load(tmp_path / "x.npz")
    for step in r.json["steps"]:
        values = saved[step["name"]].astype(np.float64)
        assert step["stats"]["mean"] == pytest.approx(values.mean(), abs=1e-12)
        assert step["stats"]["std"] == pytest.approx(values.std(), abs=1e-9)
        assert (step["stats"]["min"], step["stats"]["max"]) == (values.min(), values.max())
        assert (step["stats"]["nan"], step["stats"]["inf"]) == (0, 0)


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (
            ["--nv", 40],
            "n_V is 40, but n_K is 50: every key needs exactly one value.",
            "attnscope sdpa --nq 30 --nk 50",
        ),
        (["--nq", 0], "n_Q is 0, but a size is a whole number from 1 up.", None),
        (["--dk", -3], "d_K is -3, but a size is a whole number from 1 up.", None),
        (["--batch", 0], "n_batch is 0, but a size is a whole number from 1 up.", None),
        (["--heads", 0], "n_head is 0, but a size is a whole number from 1 up.", None),
        (
            ["--nq", "abc"],
            "--nq is 'abc', but takes a whole number.",
            "--nq 30",
        ),
        (
            ["--dtype", "int8"],
            "'int8' is not a dtype that attention runs in.",
            "--dtype float64, float32, float16, bfloat16",
        ),
        (
            ["--device", "banana"],
            "'banana' is not a device.",
            "--device cpu, cuda, cuda:1 (and so on), mps, xpu or meta",
        ),
        (
            ["--show", "nope"],
            "there is no 'nope' in the steps of sdpa.",
            "one of Q, K, V, scores, attention, out",
        ),
        (["--show", "Q[3]"], "'Q[3]': index 3 of n_batch is out of range: it has 3, 0 to 2.", None),
        (
            ["--dry-run", "--stats"],
            "--stats needs values, and a dry run has none.",
            "leave out --stats, or leave out --dry-run",
        ),
        (
            ["--device", "meta", "--show", "Q"],
            "--show needs values, and meta has none.",
            "leave out --show, or choose --device cpu",
        ),
        (
            ["--format", "csv", "--show", "Q"],
            "csv holds one table, and --show prints values beside it.",
            "--format json, or --save values.npz",
        ),
        (["--bogus"], "sdpa has no option --bogus.", "attnscope sdpa --help-all"),
    ],
)
def test_a_mistake_gets_a_clear_line_and_exit_status_2(attnscope, arguments, message, hint):
    r = attnscope("sdpa", *arguments)
    assert r.exit_status == 2
    assert r.out == ""
    expected = f"attnscope: error: {message}\n" + (f"  try  {hint}\n" if hint else "")
    assert r.err == expected


def test_sizes_that_do_not_fit_into_memory_are_refused_at_once(attnscope, tmp_path):
    r = attnscope("sdpa", "--nq", 10**7, "--nk", 10**7, "--save", tmp_path / "x.npz")
    assert r.exit_status == 2
    assert "attnscope: error: this run needs at least 2.1 PiB, but cpu has" in r.err
    assert "--dry-run" in r.err
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there_is_kept_without_force(attnscope, tmp_path):
    path = tmp_path / "x.npz"
    path.write_text("precious")
    r = attnscope("sdpa", "--save", path)
    assert (r.exit_status, r.out, path.read_text()) == (2, "", "precious")
    assert "already exists" in r.err
    assert attnscope("sdpa", "--save", path, "--force").exit_status == 0
    assert list(np.load(path)) == ["Q", "K", "V", "scores", "attention", "out"]


def test_a_folder_that_is_not_there_is_told_before_the_run(attnscope, tmp_path):
    r = attnscope("sdpa", "--save", tmp_path / "nowhere" / "x.npz")
    assert (r.exit_status, r.out) == (2, "")
    assert "there is no folder" in r.err
