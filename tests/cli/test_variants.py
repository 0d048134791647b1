"""The variants, their proof and their explanation, on the command line."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from attnscope import compute


def saved(attnscope, tmp_path, *arguments):
    path = tmp_path / "run.safetensors"
    r = attnscope(*arguments, "--save", path, "--force", "--format", "json")
    assert r.exit_status == 0, r.err
    return load_file(path), r.json


def names(document):
    return [step["name"] for step in document["steps"]]


def test_a_stage_that_does_not_apply_has_no_row(attnscope):
    arguments = ["sdpa", "--heads", 4, "--dry-run", "-f", "json"]
    plain = "Q K V scores attention out".split()
    assert names(attnscope(*arguments).json) == plain
    assert names(attnscope(*arguments, "--kv-heads", 4).json) == plain
    everything = [
        "--kv-heads",
        2,
        "--past",
        3,
        "--rope",
        "--softcap",
        5,
        "--mask",
        "causal",
        "--masked-rows",
        "zero",
    ]
    assert (
        names(attnscope(*arguments, *everything).json)
        == (
            "Q K V mask K_past V_past cos sin Q_rot K_rot K_all V_all K_shared V_shared"
            " scores scores_capped scores_masked attention attention_filled out"
        ).split()
    )


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("past", "align", "offset"),
    [
        ([], [], 0),
        (["--past", 3], [], 6),
        ([], ["--align", "bottom-right"], 3),
        (["--past", 3], ["--align", "top-left"], 0),
        (["--past", 3], ["--align", "after-past"], 3),
        ([], ["--align", "after-past"], 0),
    ],
)
def test_causal_is_aligned_as_pytorch_does_unless_told_otherwise(
    attnscope, tmp_path, past, align, offset
):
    tensors, document = saved(
        attnscope, tmp_path, "sdpa", "--nq", 4, "--nk", 7, "--mask", "causal", *past, *align
    )
    n_K = 7 + (3 if past else 0)
    assert torch.equal(tensors["mask"], torch.ones(4, n_K).tril(offset).bool())
    default = "bottom-right" if past else "top-left"
    assert document["options"]["align"] == (align[1] if align else default)


def test_a_causal_run_is_pytorchs_is_causal(attnscope, tmp_path):
    t, _ = saved(attnscope, tmp_path, "sdpa", "--nq", 9, "--nk", 5, "--mask", "causal")
    expected = F.scaled_dot_product_attention(t["Q"], t["K"], t["V"], is_causal=True)
    torch.testing.assert_close(t["out"], expected, rtol=0, atol=1e-5)


def test_decoding_with_a_past_gives_the_last_row_of_the_whole(attnscope, tmp_path, monkeypatch):
    """This proves that positions, past and mask fit together."""
    monkeypatch.chdir(tmp_path)
    whole, _ = saved(
        attnscope,
        tmp_path,
        "sdpa",
        "--heads",
        2,
        "--nq",
        6,
        "--nk",
        6,
        "--dk",
        8,
        "--rope",
        "--mask",
        "causal",
    )
    np.save("q.npy", whole["Q"][:, :, 4:])
    np.save("k.npy", whole["K"][:, :, 4:])
    np.save("v.npy", whole["V"][:, :, 4:])
    np.save("past_k.npy", whole["K_rot"][:, :, :4])
    np.save("past_v.npy", whole["V"][:, :, :4])
    files = [
        "--q",
        "q.npy",
        "--k",
        "k.npy",
        "--v",
        "v.npy",
        "--past-k",
        "past_k.npy",
        "--past-v",
        "past_v.npy",
    ]
    decoded, _ = saved(attnscope, tmp_path, "sdpa", *files, "--rope", "--mask", "causal")
    torch.testing.assert_close(decoded["out"], whole["out"][:, :, 4:], rtol=0, atol=1e-5)


@pytest.mark.few(2)
@pytest.mark.parametrize("n_kv_head", [4, 2])
@pytest.mark.parametrize(("past", "query"), [(0, []), (3, ["--query", 1])])
@pytest.mark.parametrize("mask", ["causal", "window:2,0"])
def test_a_static_cache_gives_the_last_rows_of_each_sequence_alone(
    attnscope, tmp_path, monkeypatch, n_kv_head, past, query, mask
):
    """This proves that positions and masks are right for each sequence."""
    monkeypatch.chdir(tmp_path)
    rng, lengths, n_Q, n_K = np.random.default_rng(0), [5, 9, 2], 2, 10
    drawn = {"q": (3, 4, n_Q, 6), "k": (3, n_kv_head, n_K, 6), "v": (3, n_kv_head, n_K, 7)}
    drawn = {name: torch.from_numpy(rng.standard_normal(shape)) for name, shape in drawn.items()}
    alone = []
    for b, length in enumerate(lengths):
        Q = torch.zeros(1, 4, length, 6, dtype=torch.float64)
        Q[0, :, length - n_Q :] = drawn["q"][b]
        of_one = {"q": Q, **{name: drawn[name][b : b + 1, :, :length] for name in "kv"}}
        alone.append(compute("sdpa", **of_one, rope=True, mask=["causal", mask], keep=True))
    whole = torch.cat([trace["out"].tensor[:, :, -n_Q:] for trace in alone])

    K_rot = compute("sdpa", **drawn, rope=True, keep=True)["K_rot"].tensor
    files = {"q": drawn["q"], "k": drawn["k"][:, :, past:], "v": drawn["v"][:, :, past:]}
    if past:  # keys of the past are at 0 to 2, and new ones are turned by the program
        files |= {"past_k": K_rot[:, :, :past], "past_v": drawn["v"][:, :, :past]}
    for name, tensor in files.items():
        np.save(f"{name}.npy", tensor.numpy())
    arguments = [part for name in files for part in (f"--{name.replace('_', '-')}", f"{name}.npy")]
    options = ["--rope", "--mask", mask, "--mask", "lengths:5,9,2", "--align", "lengths"]
    tensors, _ = saved(attnscope, tmp_path, "sdpa", *arguments, *options, *query, "--verify")
    expected = whole[:, :, 1] if query else whole
    torch.testing.assert_close(tensors["out"], expected, rtol=0, atol=1e-12)


def test_a_mask_of_one_axis_is_that_of_every_query(attnscope, tmp_path):
    mask = np.array([True, False, True, True, False])
    np.save(tmp_path / "m.npy", mask)
    np.save(tmp_path / "whole.npy", np.broadcast_to(mask, (3, 5)))
    options = [
        "--nq",
        3,
        "--batch",
        2,
        "--mask",
        "lengths:5,3",
        "--mask",
        "window:,0",
        "--align",
        "lengths",
    ]
    for form in ([], ["--query", 1], ["--layout", "columns"]):
        arguments = ["sdpa", *options, *form, "--verify"]
        one, _ = saved(attnscope, tmp_path, *arguments, "--mask", tmp_path / "m.npy", "--nk", 5)
        whole = np.load(tmp_path / "whole.npy")
        np.save(tmp_path / "upright.npy", whole.T if "columns" in form else whole)
        other, _ = saved(attnscope, tmp_path, *arguments, "--mask", tmp_path / "upright.npy")
        assert torch.equal(one["out"], other["out"])


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("arguments", "fate"),
    [
        ([], "the softmax of a row of -inf is 0/0, which is NaN"),
        (
            ["--mask-fill", "-1e9"],
            "every score in them is -1e+09, so the softmax gives all keys the same weight",
        ),
        (["--mask-style", "additive", "--mask-fill", "-1e9"], "-1e+09 is added to every score in them"),
        (["--masked-rows", "zero"], "they attend to nothing, and their result is 0"),
        (["--masked-rows", "uniform"], "they attend to all keys equally"),
        (["--masked-rows", "nan"], "they are NaN (--masked-rows nan)"),
    ],
)
@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_rows_that_see_no_key_are_counted_and_explained(attnscope, arguments, fate, dry):
    r = attnscope("sdpa", "--mask", "lengths:50,0,7", *arguments, *dry)
    (notice,) = [line for line in r.out.splitlines() if line.startswith("!")]
    assert notice.startswith(f"! 30 of 90 rows of the scores are fully masked: {fate}")


def test_rows_that_a_file_hides_are_counted_too(attnscope, tmp_path):
    mask = np.zeros((30, 50), dtype="float32")
    mask[[3, 8]] = -np.inf
    np.save(tmp_path / "m.npy", mask)
    out = attnscope("sdpa", "--mask", tmp_path / "m.npy", "--heads", 2).out
    assert "! 12 of 180 rows of the scores are fully masked: the softmax of a row of -inf is 0/0" in out
    one = attnscope("sdpa", "--mask", tmp_path / "m.npy", "--query", 8).out
    assert "! 3 of 3 rows of the scores are fully masked" in one
    assert "!" not in attnscope("sdpa", "--mask", tmp_path / "m.npy", "--query", 7).out


def test_a_prefix_that_causal_hides_again_is_told(attnscope):
    assert (
        "! causal hides the keys that prefix makes visible"
        in attnscope("sdpa", "--mask", "causal", "--mask", "prefix:3").out
    )
    assert "!" not in attnscope("sdpa", "--mask", "prefix:3").out


def test_the_softmax_runs_in_the_precision_that_is_stated(attnscope, tmp_path):
    t, document = saved(attnscope, tmp_path, "sdpa", "--dtype", "float16", "--softmax-dtype", "float64")
    assert document["options"]["softmax_dtype"] == "float64"
    assert torch.equal(t["attention"], t["scores"].double().softmax(-1).half())
    assert "softmax in bfloat16" in attnscope("sdpa", "--dtype", "bfloat16").out


def test_columns_are_the_rows_transposed(attnscope, tmp_path):
    options = ["sdpa", "--mask", "causal", "--heads", 4, "--kv-heads", 2, "--softcap", 3, "--past", 2]
    rows, _ = saved(attnscope, tmp_path, *options)
    columns, document = saved(attnscope, tmp_path, *options, "--layout", "columns")
    assert rows.keys() == columns.keys()
    for name, tensor in rows.items():
        torch.testing.assert_close(columns[name], tensor.mT, rtol=0, atol=1e-5)
    assert document["title"] == "sdpa by columns"


def test_one_query_is_its_row_of_the_whole(attnscope, tmp_path):
    options = ["sdpa", "--mask", "window:3", "--heads", 4, "--kv-heads", 1, "--rope"]
    rows, _ = saved(attnscope, tmp_path, *options)
    one, _ = saved(attnscope, tmp_path, *options, "--query", 7)
    torch.testing.assert_close(one["attention"][..., 0], rows["attention"][..., 7, :], rtol=0, atol=1e-5)
    torch.testing.assert_close(one["out"], rows["out"][..., 7, :], rtol=0, atol=1e-5)
    torch.testing.assert_close(one["terms"].sum(-2), one["out"])


@pytest.mark.few(1)
@pytest.mark.parametrize("command", ["sdpa", "mha"])
def test_verify_adds_rows_and_all_hold(attnscope, command):
    r = attnscope(command, "--verify", "--format", "json")
    assert r.exit_status == 0
    assert [check["name"] for check in r.json["checks"]] == [
        "F.scaled_dot_product_attention", "nn.MultiheadAttention", "naive loop", "rows of attention",
    ]  # fmt: skip
    assert all(check["ok"] for check in r.json["checks"])


def test_a_check_that_fails_is_exit_status_1(attnscope, monkeypatch):
    from attnscope.attention import sdpa as textbook

    monkeypatch.setattr(textbook, "softmax", lambda scores, dtype: scores.softmax(-1, dtype) * 1.01)
    r = attnscope("sdpa", "--verify")
    assert r.exit_status == 1
    assert "FAILS" in r.out


def test_what_a_reference_cannot_express_is_said(attnscope):
    checks = attnscope("sdpa", "--softcap", 3, "--verify", "-f", "json").json["checks"]
    assert [check["ok"] for check in checks] == [None, None, True, True]
    assert checks[0]["note"] == "cannot express a soft cap, which it does not have"


@pytest.mark.parametrize("command", ["sdpa", "mha"])
def test_explain_says_under_each_row_what_it_is_with_this_runs_numbers(attnscope, command):
    r = attnscope(command, "--nq", 7, "--explain", "--format", "json")
    assert all(step["why"] for step in r.json["steps"])
    scores = next(step["why"] for step in r.json["steps"] if step["name"] == "scores")
    assert "so K is transposed" in scores
    assert (
        "7×128 times 128×50 gives 7×50" if command == "sdpa" else "7×40 times 40×7 gives 7×7"
    ) in scores
    assert all(step["why"] is None for step in attnscope(command, "-f", "json").json["steps"])
    lines = attnscope(command, "--nq", 7, "--explain").out.splitlines()
    place = next(i for i, line in enumerate(lines) if line.startswith("scores "))
    assert lines[place + 1].strip() == scores


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_source_shows_the_code_with_the_shape_of_each_line(attnscope, dry):
    out = attnscope("sdpa", "--nq", 7, "--source", *dry).out
    (line,) = [line for line in out.splitlines() if "scores = Q_rot @ K_shared.mT * scale" in line]
    assert line.endswith("n_batch n_Q n_K  3×7×50")
    (idle,) = [line for line in out.splitlines() if "scores_capped = capped(" in line]
    assert idle.endswith("capped(scores, softcap)")
    assert (
        attnscope("mha", "--source", "-f", "json", *dry)
        .json["source"][0]["function"]
        .endswith("MultiHeadAttention.forward")
    )


def test_a_dry_run_with_source_knows_the_lines_of_the_real_run(attnscope):
    for arguments in (["sdpa", "--mask", "causal", "--rope", "--past", 2], ["mha", "--kv-heads", 1]):
        real = attnscope(*arguments, "--source", "-f", "json").json
        dry = attnscope(*arguments, "--source", "--dry-run", "-f", "json").json
        lines = [(step["name"], step["line"]) for step in dry["steps"] if step["how"] != "input"]
        assert lines == [
            (step["name"], step["line"]) for step in real["steps"] if step["how"] != "input"
        ]


def test_numbers_are_every_tensors_values(attnscope, tmp_path):
    path = tmp_path / "run.npz"
    r = attnscope("sdpa", "--numbers", "--format", "json", "--save", path)
    tensors = np.load(path)
    for shown in r.json["values"]:
        np.testing.assert_array_equal(np.array(shown["values"], dtype="float32"), tensors[shown["name"]])
    assert [shown["name"] for shown in r.json["values"]] == list(tensors)


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (
            ["--rope", "--rope-theta", "0"],
            "the rotary base is 0, but it must be above 0.",
            "--rope-theta 10000",
        ),
        (["--softcap", "0"], "the soft cap is 0, but it must be above 0.", "--softcap 50"),
        (["--softcap", "-1"], "the soft cap is -1, but it must be above 0.", "--softcap 50"),
        (["--scale", "nan"], "the scale is nan, but it must be finite.", "--scale 0.125"),
        (
            ["--softmax-dtype", "int8"],
            "'int8' is not a dtype that a softmax runs in.",
            "--softmax-dtype float64, float32, float16, bfloat16",
        ),
        (["--kv-heads", 0], "n_kv_head is 0, but a size is a whole number from 1 up.", None),
        (
            ["--mask", "causal", "--mask-fill", "-1e9", "--dtype", "float16"],
            "-1e+09 is out of the range of float16: its lowest number is -65504.",
            "--mask-fill -inf, or -65504",
        ),
        (
            ["--mask", "banana"],
            "'banana' is not a mask.",
            "--mask causal, window:W, window:L,R, chunk:C, prefix:P, lengths:N,N,…, none, or a FILE",
        ),
        (
            ["--rope", "--align", "lengths"],
            "--align lengths puts the queries at the end of each sequence's keys, but no mask says how many"
            " keys each sequence has.",
            "--mask lengths:N,N,… --align lengths",
        ),
        (
            "--batch 2 --nq 3 --nk 5 --mask causal --mask lengths:5,6 --align lengths".split(),
            "a length of 6 is more than there are keys: n_K is 5.",
            None,
        ),
        (
            ["--format", "csv", "--verify"],
            "csv holds one table, and --verify prints more.",
            "--format json",
        ),
        (
            ["--dry-run", "--verify"],
            "--verify needs values, and a dry run has none.",
            "leave out --verify, or leave out --dry-run",
        ),
        (
            ["--device", "meta", "--numbers"],
            "--numbers needs values, and meta has none.",
            "leave out --numbers, or choose --device cpu",
        ),
    ],
)
@pytest.mark.parametrize("command", ["sdpa", "mha"])
def test_a_mistake_gets_a_clear_line(attnscope, command, arguments, message, hint):
    r = attnscope(command, *arguments)
    assert (r.exit_status, r.out) == (2, "")
    assert r.err == f"attnscope: error: {message}\n" + (f"  try  {hint}\n" if hint else "")


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (
            ["sdpa", "--rope", "--dk", 5],
            "d_K is 5, but rotary positions rotate pairs of numbers: it must be even.",
            "--dk 6, or no --rope",
        ),
        (
            ["mha", "--rope", "--d-feat", 15, "--heads", 3],
            "d_head is 5, but rotary positions rotate pairs of numbers: it must be even.",
            "--d-feat 18, --d-head 6, or no --rope",
        ),
        (
            ["mha", "--heads", 8, "--kv-heads", 3],
            "n_head is 8 and n_kv_head is 3: every key head must serve equally many query heads, but 8 / 3 leaves 2.",
            "--kv-heads 2 or --kv-heads 4, the divisors of 8 nearest to 3",
        ),
        (
            ["mha", "--rope", "--d-feat", 16, "--heads", 3, "--d-head", 5],
            "d_head is 5, but rotary positions rotate pairs of numbers: it must be even.",
            "--d-head 6, or no --rope",
        ),
        (
            ["mha", "--scale", 1, "--scale-by", "d_feat"],
            "--scale and --scale-by both set the scale.",
            "one of the two",
        ),
        (["sdpa", "--query", 30], "there is no query 30: n_Q is 30, so queries are 0 to 29.", None),
        (
            ["sdpa", "--query", 1, "--layout", "columns"],
            "--query shows vectors, and --layout a matrix.",
            "one of the two",
        ),
        (
            ["sdpa", "--rope", "--layout", "columns"],
            "--layout columns shows the bare formula, and --rope rotates Q and K before it.",
            "--rope with --layout rows",
        ),
    ],
)
def test_options_that_do_not_go_together_are_refused(attnscope, arguments, message, hint):
    for dry in ([], ["--dry-run"]):
        r = attnscope(*arguments, *dry)
        assert (r.exit_status, r.out) == (2, "")
        assert r.err == f"attnscope: error: {message}\n" + (f"  try  {hint}\n" if hint else "")


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("value", "options", "status", "notes"),
    [
        (np.nan, [], 0, {"rows of attention": "cannot express rows that are NaN in the loop too: their inputs are not finite"}),
        (np.inf, ["--mask", "lengths:4"], 0, {
            "F.scaled_dot_product_attention": "cannot express NaN or infinity behind a mask: it adds the mask to the scores, which leaves them in place",
            "naive loop": "",
        }),
        (1e39, ["--dtype", "float64"], 0, {"naive loop": ""}),
        (3e38, [], 1, {"naive loop": "12 of 12 numbers are NaN or infinite, but should not be; float32 overflows above 3.40282e+38"}),
    ],
)  # fmt: skip
def test_numbers_that_are_none_are_told_from_mistakes(
    attnscope, tmp_path, value, options, status, notes
):
    """The last of five keys is not finite, or makes the scores so."""
    K = np.ones((1, 5, 4))
    K[0, 4] = value
    np.save(
        tmp_path / "q.npy",
        np.full((1, 3, 4), 9, dtype="float64" if options[:1] == ["--dtype"] else "float32"),
    )
    np.save(tmp_path / "k.npy", K.astype("float64" if options[:1] == ["--dtype"] else "float32"))
    files = ["--q", tmp_path / "q.npy", "--k", tmp_path / "k.npy", "--dtype", "float32", "--dv", 4]
    r = attnscope("sdpa", *files, *options, "--verify", "--format", "json")
    assert r.exit_status == status, r.out
    said = {check["name"]: check["note"] for check in r.json["checks"]}
    assert {name: said[name] for name in notes} == notes
