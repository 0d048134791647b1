"""The user's own tensors, on the command line."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

RNG = np.random.default_rng(0)


def drawn(*shape, dtype="float32"):
    return RNG.standard_normal(shape).astype(dtype)


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Return a function that writes arrays as NAME.npy into the folder that the command runs in."""
    monkeypatch.chdir(tmp_path)

    def write(**arrays):
        for name, array in arrays.items():
            np.save(f"{name}.npy", array)
        return {name: torch.from_numpy(np.asarray(array)) for name, array in arrays.items()}

    return write


def ran(attnscope, *arguments):
    """Return the tensors of a run, and its JSON."""
    r = attnscope(*arguments, "--save", "out.safetensors", "--force", "--format", "json")
    assert r.exit_status == 0, r.err
    return load_file("out.safetensors"), r.json


QKV = ["--q", "q.npy", "--k", "k.npy", "--v", "v.npy"]


@pytest.mark.parametrize("lead", [(), (2,), (2, 4)])
def test_sizes_and_dtype_come_from_the_files(attnscope, files, lead):
    t = files(
        q=drawn(*lead, 3, 8, dtype="float64"),
        k=drawn(*lead, 5, 8, dtype="float64"),
        v=drawn(*lead, 5, 6, dtype="float64"),
    )
    tensors, document = ran(attnscope, "sdpa", *QKV)
    expected = F.scaled_dot_product_attention(t["q"], t["k"], t["v"])
    torch.testing.assert_close(tensors["out"], expected, rtol=0, atol=1e-12)
    names = ("n_batch", "n_head")[: len(lead)]
    sizes = {**dict(zip(names, lead, strict=True)), "n_Q": 3, "n_K": 5, "d_K": 8, "d_V": 6}
    assert document["sizes"] == sizes
    assert (document["dtype"], document["seed"]) == ("float64", None)


def test_three_axes_with_heads_are_split_and_merged(attnscope, files):
    t = files(q=drawn(2, 3, 24), k=drawn(2, 5, 8), v=drawn(2, 5, 4))
    tensors, document = ran(attnscope, "sdpa", *QKV, "--heads", 6, "--kv-heads", 2)
    Q, K, V = (
        t[n].unflatten(-1, (h, -1)).transpose(1, 2) for n, h in zip("qkv", (6, 2, 2), strict=True)
    )
    expected = F.scaled_dot_product_attention(Q, K, V, enable_gqa=True).transpose(1, 2).flatten(2)
    torch.testing.assert_close(tensors["out_merged"], expected, rtol=0, atol=1e-5)
    names = "Q K V Q_split K_split V_split K_shared V_shared scores attention out out_merged"
    assert [step["name"] for step in document["steps"]] == names.split()
    assert document["steps"][0]["dims"] == ["n_batch", "n_Q", "n_head·d_K"]


def test_four_axes_bring_their_heads_with_them(attnscope, files):
    t = files(q=drawn(2, 6, 3, 4), k=drawn(2, 2, 5, 4), v=drawn(2, 2, 5, 7))
    tensors, document = ran(attnscope, "sdpa", *QKV)
    expected = F.scaled_dot_product_attention(t["q"], t["k"], t["v"], enable_gqa=True)
    torch.testing.assert_close(tensors["out"], expected, rtol=0, atol=1e-5)
    assert (document["sizes"]["n_head"], document["sizes"]["n_kv_head"]) == (6, 2)


def test_what_no_file_gives_is_drawn_to_fit(attnscope, files):
    files(k=drawn(4, 7, 16))
    _, document = ran(attnscope, "sdpa", "--k", "k.npy", "--dv", 3)
    assert document["sizes"] == {"n_batch": 4, "n_Q": 30, "n_K": 7, "d_K": 16, "d_V": 3}
    assert document["seed"] == 0


@pytest.mark.few(1)
@pytest.mark.parametrize("suffix", ["npz", "pt", "safetensors"])
def test_a_saved_run_can_be_run_again(attnscope, tmp_path, monkeypatch, suffix):
    monkeypatch.chdir(tmp_path)
    path = f"saved.{suffix}"
    assert attnscope("sdpa", "--save", path, "--past", 4).exit_status == 0
    files = [part for name in ("q", "k", "v", "past-k", "past-v") for part in (f"--{name}", path)]
    first, _ = ran(attnscope, "sdpa", "--past", 4)
    again, _ = ran(attnscope, "sdpa", *files)
    assert first.keys() == again.keys()
    assert all(torch.equal(first[name], again[name]) for name in first)
    named, _ = ran(
        attnscope,
        "sdpa",
        "--q",
        f"{path}:K",
        "--k",
        f"{path}:K",
        "--v",
        f"{path}:V",
    )
    assert torch.equal(named["Q"], first["K"])


def test_tensors_may_be_texts(attnscope, files):
    arguments = ["--q", "[[1, 0.5]]", "--k", "[[1, 0], [0, 1]]", "--v", "[[1], [2]]"]
    tensors, document = ran(attnscope, "sdpa", *arguments, "--mask", "[[True, False]]")
    assert (document["dtype"], tensors["Q"].tolist(), tensors["out"].tolist()) == (
        "float32",
        [[1, 0.5]],
        [[1]],
    )
    dry = attnscope("sdpa", *arguments, "--dry-run", "--format", "json").json
    assert dry["sizes"] == document["sizes"]


def test_dtype_converts_what_the_files_hold(attnscope, files):
    t = files(
        q=np.arange(6).reshape(2, 3), k=drawn(4, 3, dtype="float64"), v=drawn(4, 3, dtype="float16")
    )
    tensors, document = ran(attnscope, "sdpa", *QKV, "--dtype", "float32")
    assert document["dtype"] == "float32"
    assert torch.equal(tensors["Q"], t["q"].float())


MASKS = {
    "none": None,
    "bool": RNG.random((3, 5)) < 0.7,
    "of each sequence": RNG.random((2, 1, 1, 5)) < 0.7,
    "additive": drawn(3, 5),
    "one row": np.array([[True, False, True, True, False]]),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("past", [0, 2])
@pytest.mark.parametrize("mask", MASKS)
def test_by_columns_the_vectors_of_files_and_of_masks_are_columns(attnscope, files, mask, past):
    arrays = {"q": drawn(2, 4, 3, 8), "k": drawn(2, 4, 5 - past, 8), "v": drawn(2, 4, 5 - past, 6)}
    arrays |= {"past_k": drawn(2, 4, past, 8), "past_v": drawn(2, 4, past, 6)} if past else {}
    arguments = [part for name in arrays for part in (f"--{name.replace('_', '-')}", f"{name}.npy")]
    if MASKS[mask] is not None:
        arrays["mask"] = MASKS[mask]
        arguments += ["--mask", "mask.npy"]
    files(**arrays)
    rows, by_rows = ran(attnscope, "sdpa", *arguments)
    files(**{name: array.swapaxes(-1, -2) for name, array in arrays.items()})
    columns, by_columns = ran(attnscope, "sdpa", *arguments, "--layout", "columns", "--verify")
    assert by_columns["sizes"] == by_rows["sizes"]
    assert all(torch.equal(columns[name].mT, rows[name]) for name in ("Q", "K", "V"))
    torch.testing.assert_close(columns["out"].mT, rows["out"], rtol=0, atol=1e-5)


def test_what_a_run_by_columns_saves_another_can_take(attnscope, files):
    first, _ = ran(attnscope, "sdpa", "--nq", 3, "--nk", 4, "--dk", 5, "--layout", "columns")
    arguments = [part for name in "qkv" for part in (f"--{name}", "out.safetensors")]
    again, document = ran(attnscope, "sdpa", *arguments, "--layout", "columns")
    assert document["seed"] is None
    assert torch.equal(again["out"], first["out"])
    rows, _ = ran(attnscope, "sdpa", "--nq", 3, "--nk", 4, "--dk", 5)
    assert torch.equal(rows["Q"], first["Q"].mT)


@pytest.mark.parametrize(
    ("shapes", "lines"),
    [
        (
            {"q": (3, 8), "k": (5, 8)},
            [
                "K in k.npy has d_K 5 (axis 0 of 5×8), but Q in q.npy has d_K 3 (axis 0 of 3×8).",
                "  try  by columns, K is d_K n_K",
            ],
        ),
        (
            {"q": (8, 3), "k": (8, 5), "mask": (3, 5)},
            ["mask in mask.npy has n_K 3 (axis 0 of 3×5), but the scores have n_K 5."],
        ),
        (
            {"q": (2, 8, 3), "k": (2, 8, 5), "mask": (2, 5)},
            [
                "mask in mask.npy has n_K 2 (axis 0 of 2×5), but the scores have n_K 5.",
                "  try  2×1×5×1, if each sequence has a column of its own for all queries",
            ],
        ),
    ],
)
def test_rows_instead_of_columns_are_refused_with_their_axes(attnscope, files, shapes, lines):
    files(**{name: np.ones(shape) for name, shape in shapes.items()})
    arguments = [part for name in shapes for part in (f"--{name}", f"{name}.npy")]
    r = attnscope("sdpa", *arguments, "--layout", "columns")
    assert (r.exit_status, r.err.splitlines()) == (2, [f"attnscope: error: {lines[0]}", *lines[1:]])


def test_embeddings_are_projected(attnscope, files):
    t = files(x=drawn(2, 5, 7), wq=drawn(7, 4), wk=drawn(7, 4), wv=drawn(7, 6))
    arguments = ["--x", "x.npy", "--wq", "wq.npy", "--wk", "wk.npy", "--wv", "wv.npy"]
    tensors, document = ran(attnscope, "sdpa", *arguments)
    Q, K, V = (t["x"] @ t[w] for w in ("wq", "wk", "wv"))
    torch.testing.assert_close(
        tensors["out"], F.scaled_dot_product_attention(Q, K, V), rtol=0, atol=1e-5
    )
    assert [s["name"] for s in document["steps"]] == "X W_Q W_K W_V Q K V scores attention out".split()
    one, _ = ran(attnscope, "sdpa", *arguments, "--query", 3)
    torch.testing.assert_close(one["out"], tensors["out"][:, 3], rtol=0, atol=1e-5)
    files(**{name: tensor.mT for name, tensor in t.items()})
    columns, document = ran(attnscope, "sdpa", *arguments, "--layout", "columns")
    torch.testing.assert_close(columns["out"], tensors["out"].mT, rtol=0, atol=1e-5)
    assert document["steps"][4]["how"] == "W_Q @ X"


def test_embeddings_with_heads_are_split_after_their_projection(attnscope, files):
    t = files(x=drawn(2, 5, 7), wq=drawn(7, 12), wk=drawn(7, 6), wv=drawn(7, 4))
    arguments = ["--x", "x.npy", "--wq", "wq.npy", "--wk", "wk.npy", "--wv", "wv.npy"]
    tensors, _ = ran(attnscope, "sdpa", *arguments, "--heads", 4, "--kv-heads", 2)
    Q, K, V = (
        (t["x"] @ t[w]).unflatten(-1, (h, -1)).transpose(1, 2)
        for w, h in (("wq", 4), ("wk", 2), ("wv", 2))
    )
    expected = F.scaled_dot_product_attention(Q, K, V, enable_gqa=True).transpose(1, 2).flatten(2)
    torch.testing.assert_close(tensors["out_merged"], expected, rtol=0, atol=1e-5)


def pytorchs(d_feat=12, n_head=3, **options):
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(d_feat, n_head, batch_first=True, **options)
    for bias in [p for p in theirs.parameters() if p.dim() == 1]:
        nn.init.normal_(bias)
    return theirs


def test_mha_takes_all_of_pytorchs_own_weights_from_one_file(attnscope, files):
    t = files(x=drawn(2, 5, 12))
    theirs = pytorchs()
    save_file(theirs.state_dict(), "theirs.safetensors")
    tensors, document = ran(
        attnscope, "mha", "--x", "x.npy", "--weights", "theirs.safetensors", "--heads", 3
    )
    expected, _ = theirs(t["x"], t["x"], t["x"])
    torch.testing.assert_close(tensors["x"], expected, rtol=0, atol=1e-5)
    assert (document["options"]["bias"], document["options"]["attention"], document["seed"]) == (
        True,
        "self",
        None,
    )


def test_mha_attends_across_to_a_source_of_another_width(attnscope, files):
    t = files(q=drawn(2, 5, 12), k=drawn(2, 7, 9))
    theirs = pytorchs(kdim=9, vdim=9, bias=False)
    names = {
        "wq": "q_proj_weight",
        "wk": "k_proj_weight",
        "wv": "v_proj_weight",
        "wo": "out_proj.weight",
    }
    save_file(theirs.state_dict(), "w.safetensors")
    weights = [part for flag, name in names.items() for part in (f"--{flag}", f"w.safetensors:{name}")]
    tensors, document = ran(attnscope, "mha", "--q", "q.npy", "--k", "k.npy", *weights, "--heads", 3)
    expected, _ = theirs(t["q"], t["k"], t["k"])
    torch.testing.assert_close(tensors["x"], expected, rtol=0, atol=1e-5)
    assert document["sizes"]["d_context"] == 9
    assert document["options"]["bias"] is False


def test_a_values_source_of_its_own_is_not_k(attnscope, files):
    t = files(q=drawn(2, 5, 12), k=drawn(2, 7, 12), v=drawn(2, 7, 12))
    theirs = pytorchs()
    save_file(theirs.state_dict(), "theirs.safetensors")
    tensors, _ = ran(attnscope, "mha", *QKV, "--weights", "theirs.safetensors", "--heads", 3)
    expected, _ = theirs(t["q"], t["k"], t["v"])
    torch.testing.assert_close(tensors["x"], expected, rtol=0, atol=1e-5)


def test_grouped_heads_and_the_values_width_follow_from_the_weights(attnscope, files):
    files(wk=drawn(4, 12), wv=drawn(6, 12), wo=drawn(12, 18))
    _, document = ran(
        attnscope, "mha", "--wk", "wk.npy", "--wv", "wv.npy", "--wo", "wo.npy", "--heads", 6
    )
    sizes = document["sizes"]
    assert [sizes[axis] for axis in ("d_feat", "n_head", "n_kv_head", "d_head", "d_V")] == [
        12,
        6,
        2,
        2,
        3,
    ]


def test_two_axes_are_one_sequence_to_mha(attnscope, files):
    files(x=drawn(5, 10))
    _, document = ran(attnscope, "mha", "--x", "x.npy")
    assert document["sizes"]["n_batch"] == 1


def test_a_bias_that_is_not_given_is_zero_where_weights_are(attnscope, files):
    files(bo=np.ones(10, dtype="float32"))
    arguments = ["mha", "--d-feat", 10, "--bo", "bo.npy", "--batch", 1]
    tensors, _ = ran(attnscope, *arguments)
    x = torch.zeros(1, 32, 10)
    np.save("x.npy", x.numpy())
    tensors, _ = ran(attnscope, "mha", "--x", "x.npy", "--bo", "bo.npy")
    assert torch.equal(tensors["x"], torch.ones(1, 32, 10))


def test_a_mask_alone_gives_the_sizes(attnscope, files):
    files(m=np.tri(7, 9, 2, dtype=bool))
    _, document = ran(attnscope, "sdpa", "--mask", "m.npy")
    assert (document["sizes"]["n_Q"], document["sizes"]["n_K"]) == (7, 9)


def mismatch(message, hint=None, **shapes):
    return pytest.param(shapes, message, hint, id=message)


@pytest.mark.parametrize(
    ("shapes", "message", "hint"),
    [
        mismatch(
            "K in k.npy has d_K 64 (axis 2 of 3×50×64), but Q in q.npy has d_K 128 (axis 2 of 3×30×128).",
            q=(3, 30, 128), k=(3, 50, 64), v=(3, 50, 8),
        ),
        mismatch(
            "V in v.npy has n_K 40 (axis 1 of 3×40×8), but K in k.npy has n_K 50 (axis 1 of 3×50×4).",
            "V has one value for each key of K",
            q=(3, 30, 4), k=(3, 50, 4), v=(3, 40, 8),
        ),
        mismatch(
            "K in k.npy has n_batch 2 (axis 0 of 2×5×4), but Q in q.npy has n_batch 3 (axis 0 of 3×5×4).",
            q=(3, 5, 4), k=(2, 5, 4), v=(3, 5, 4),
        ),
        mismatch(
            "K in k.npy has 2 axes (5×4), but Q in q.npy has 3 (3×5×4).",
            q=(3, 5, 4), k=(5, 4), v=(5, 4),
        ),
        mismatch(
            "Q in q.npy is 4, but attention takes 2, 3 or 4 axes.",
            "n d, or n_batch n d, or n_batch n_head n d",
            q=(4,), k=(5, 4), v=(5, 4),
        ),
        mismatch("Q in q.npy is 0×4: it has no elements.", q=(0, 4), k=(5, 4), v=(5, 4)),
        mismatch(
            "n_head is 4 and n_kv_head is 3: every key head must serve equally many query heads, but 4 / 3 leaves 1.",
            "--kv-heads 2 or --kv-heads 4, the divisors of 4 nearest to 3",
            q=(1, 4, 5, 4), k=(1, 3, 5, 4), v=(1, 3, 5, 4),
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_files_that_do_not_fit_each_other_say_which_axis_of_which(
    attnscope, files, shapes, message, hint, dry
):
    files(**{name: np.zeros(shape, dtype="float32") for name, shape in shapes.items()})
    r = attnscope("sdpa", *QKV, *dry)
    assert (r.exit_status, r.out) == (2, "")
    assert r.err == f"attnscope: error: {message}\n" + (f"  try  {hint}\n" if hint else "")


WEIGHTS = "  try  weights in nn.Linear's layout: output × input\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sdpa", *QKV, "--nk", 7], "K in k.npy has n_K 4 (axis 1 of 2×4×8), but --nk says that n_K is 7."),
        (["sdpa", "--q", "q.npy", "--dk", 9], "Q in q.npy has d_K 8 (axis 2 of 2×4×8), but --dk says that d_K is 9."),
        (["sdpa", "--q", "q.npy", "--heads", 3], "Q in q.npy is 8 wide (axis 2 of 2×4×8), but --heads says that n_head is 3: 8 / 3 leaves 2."),
        (["sdpa", "--q", "two.npy", "--heads", 2], "Q in two.npy is 4×8, and heads are split off three axes."),
        (["sdpa", "--q", "q.npy", "--k", "half.npy"], "Q in q.npy is float32, but K in half.npy is float16."),
        (["sdpa", "--q", "whole.npy"], "Q in whole.npy is int64, and attention runs in float64, float32, float16, bfloat16."),
        (["sdpa", "--x", "q.npy"], "--x gives embeddings, but --wq is missing, which projects them to Q."),
        (["sdpa", "--wq", "two.npy"], "--wq projects embeddings, but --x is missing."),
        (["sdpa", "--x", "q.npy", "--q", "q.npy"], "--x gives the embeddings that Q, K and V are projected from, but --q gives Q directly."),
        (["sdpa", "--past-k", "q.npy"], "--past-k without --past-v: every key of the past needs its value."),
        (["sdpa", "--kv-heads", 2], "--kv-heads 2 shares keys among query heads, but there are no heads."),
        (["mha", "--v", "q.npy"], "--v gives values for keys, but --k is missing."),
        (["mha", "--x", "four.npy"], "X in four.npy is 2×2×4×8, but mha splits the heads itself."),
        (["mha", "--x", "q.npy"], "d_feat is 8, which does not divide into 5 heads: 8 / 5 leaves 3."),
        (["mha", "--x", "q.npy", "--heads", 2, "--wq", "two.npy"], "W_Q in two.npy has d_feat 4 (axis 0 of 4×8), but X in q.npy has d_feat 8 (axis 2 of 2×4×8)."),
        (["mha", "--d-feat", 8, "--heads", 2, "--wo", "two.npy"], "W_O in two.npy has d_feat 4 (axis 0 of 4×8), but --d-feat says that d_feat is 8."),
        (["mha", "--wq", "square.npy", "--heads", 2, "--bk", "q.npy"], "b_K in q.npy is 2×4×8, but needs 1 axis: n_kv_head·d_head."),
        (["mha", "--no-bias", "--d-feat", 4, "--heads", 2, "--bq", "four_wide.npy"], "--no-bias contradicts four_wide.npy, which gives b_Q."),
        (["sdpa", "--q", "gone.npy"], "there is no file gone.npy."),
    ],
)  # fmt: skip
def test_files_that_do_not_fit_are_refused_in_one_line(attnscope, files, arguments, message):
    files(
        q=np.zeros((2, 4, 8), "float32"), two=np.zeros((4, 8), "float32"), four=np.zeros((2, 2, 4, 8), "float32"),
        half=np.zeros((2, 4, 8), "float16"), whole=np.zeros((4, 8), "int64"), square=np.zeros((8, 8), "float32"),
        four_wide=np.zeros(4, "float32"), k=np.zeros((2, 4, 8), "float32"), v=np.zeros((2, 4, 8), "float32"),
    )  # fmt: skip
    r = attnscope(*arguments)
    assert (r.exit_status, r.out) == (2, "")
    assert r.err.splitlines()[0] == f"attnscope: error: {message}"
    assert len(r.err.splitlines()) <= 2


def test_a_weights_file_without_known_names_lists_what_it_has(attnscope, files):
    files()
    np.savez("w.npz", apple=np.zeros(3), pear=np.zeros(4))
    r = attnscope("mha", "--weights", "w.npz")
    assert r.exit_status == 2
    assert r.err.splitlines()[0] == (
        "attnscope: error: w.npz has no weights with names that attnscope knows: it has apple, pear."
    )


def test_a_malicious_pickle_does_not_run(attnscope, files, tmp_path):
    files()

    class Malice:
        def __reduce__(self):
            return (open, (str(tmp_path / "owned"), "w"))

    torch.save({"Q": Malice()}, "bad.pt")
    np.save("bad.npy", np.array([Malice()], dtype=object), allow_pickle=True)
    for path in ("bad.pt", "bad.npy"):
        for option in (["--q", path], ["--mask", path]):
            r = attnscope("sdpa", *option)
            assert (r.exit_status, r.out) == (2, "")
            assert "nothing in it was run" in r.err
    assert not (tmp_path / "owned").exists()
