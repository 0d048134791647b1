"""Any combination of options runs, verifies and agrees with its dry run, or is refused in one line."""

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given
from hypothesis import strategies as st

from tests.profiles import examples

size = st.integers(1, 6)
DTYPES = ["float64", "float32", "float16", "bfloat16"]


@pytest.fixture
def mask_files(tmp_path, monkeypatch):
    """Write masks of several shapes and styles, for scores of 2 × 2 × 4 × 6."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    np.save("one.npy", rng.random(6) < 0.8)
    np.save("two.npy", rng.random((4, 6)) < 0.7)
    np.save("three.npy", (rng.random((2, 4, 6)) < 0.7).astype(int))
    np.save("four.npy", np.where(rng.random((2, 1, 1, 6)) < 0.7, 0.0, -np.inf).astype("float32"))
    np.save("bias.npy", rng.standard_normal((4, 6)).astype("float32"))
    np.save("blind.npy", np.where([[True] * 6, [False] * 6, [True] * 6, [False] * 6], 0.0, -1e9))


@st.composite
def shared_options(draw, n_batch, n_Q, n_K, *, files=False):
    """Draw options that both commands have; a few are invalid, alone or in combination.

    Args:
        draw: given by hypothesis.
        n_batch: sequences.
        n_Q: queries.
        n_K: keys, those of the past among them.
        files: whether the scores are such that the files' masks fit.
    """
    wrong = draw(st.integers(0, 9), label="wrong") == 0
    number = st.integers(0, n_K + wrong)
    kinds = [
        st.just("causal"),
        st.builds("window:{}".format, number),
        st.builds("window:{},{}".format, number, number),
        st.builds("window:{},".format, number),
        st.builds("window:,{}".format, number),
        st.builds("chunk:{}".format, st.integers(1 - wrong, n_K)),
        st.builds("prefix:{}".format, number),
        lengths_of(number, n_batch),
    ]
    if files or wrong:
        names = ["one.npy", "two.npy", "three.npy", "four.npy", "bias.npy", "blind.npy"]
        kinds += [st.sampled_from(names)] * 2
    masks = draw(st.lists(st.one_of(kinds), max_size=2), label="masks")
    at_lengths = (wrong or n_Q <= n_K) and draw(st.integers(0, 2), label="at lengths") == 0
    if at_lengths and n_Q <= n_K:
        masks = [mask for mask in masks if wrong or not mask.startswith("lengths")]
        masks += [draw(lengths_of(st.integers(n_Q, n_K), n_batch), label="lengths")]
    rope = draw(st.booleans(), label="rope")
    dtype = draw(st.sampled_from(DTYPES), label="dtype")
    optional = {
        "--scale": [0.5, 0.0, -1.0],
        "--softcap": [0.5, 30.0],
        "--softmax-dtype": DTYPES,
    }
    if rope or wrong:
        optional |= {"--rope-theta": [100.0]}
    if masks or wrong:
        fills = ["-inf", "-30000", *(["-1e9"] if dtype != "float16" or wrong else [])]
        added = any(mask in ("four.npy", "bias.npy", "blind.npy") for mask in masks)
        optional |= {"--masked-rows": ["nan", "uniform", "zero"], "--mask-style": ["bool", "additive"]}
        optional |= {} if added and not wrong else {"--mask-fill": fills}
    arguments = [part for mask in masks for part in ("--mask", mask)]
    if at_lengths:
        arguments += ["--align", "lengths"]
    elif rope or wrong or any(mask[:6] in ("causal", "window", "chunk:", "prefix") for mask in masks):
        optional |= {"--align": ["top-left", "bottom-right", "after-past"]}
    arguments += ["--rope"] if rope else []
    for option, values in optional.items():
        if draw(st.integers(0, 2), label=option) == 0:
            arguments += [option, draw(st.sampled_from(values))]
    distribution = draw(st.sampled_from([[], ["--draw", "uniform"]]), label="draw")
    return [*arguments, *distribution, "--dtype", dtype, "--seed", draw(st.integers(0, 99))]


def lengths_of(number, n_batch):
    """Return a strategy for the mask with a length for each sequence."""
    several = st.lists(number, min_size=n_batch, max_size=n_batch)
    return several.map(lambda lengths: "lengths:" + ",".join(map(str, lengths)))


def check(attnscope, command, arguments):
    """Check that a combination is verified and equals its dry run, or that both refuse it in the same line."""
    real = attnscope(command, *arguments, "--verify", "--explain", "--format", "json")
    dry = attnscope(command, *arguments, "--dry-run", "--explain", "--format", "json")
    event("refused" if real.exit_status == 2 else "ran")
    assert dry.exit_status == (2 if real.exit_status == 2 else 0)
    if real.exit_status == 2:
        error, of_dry = (
            [line for line in r.err.splitlines() if "has no effect: " not in line] for r in (real, dry)
        )
        assert error[0].startswith("attnscope: error: ")
        assert len(error) <= 2
        assert (real.json, of_dry) == (dry.json, error)
        assert real.json["error"]["message"] == error[0].removeprefix("attnscope: error: ")
        return
    assert real.exit_status == 0, (real.out, real.err)
    document, planned = real.json, dry.json
    naive = next(c for c in document["checks"] if c["name"].startswith("naive loop"))
    assert naive["ok"] or "the mask is so large that rounding decides" in naive["note"]
    assert all(c["ok"] is not False for c in document["checks"])
    for step in document["steps"]:
        assert step["why"]
        step["fresh_bytes"] = step["line"] = step["strides"] = None
    assert document["steps"] == planned["steps"]
    document["options"].pop("draw", None)  # nothing is drawn in a dry run
    for key in ("title", "sizes", "options", "dtype"):
        assert document[key] == planned[key]
    if ".npy" not in str(arguments):
        assert document["findings"] == planned["findings"]


slow = examples(6, 150, ignoring=[HealthCheck.function_scoped_fixture])


@given(data=st.data())
@slow
def test_sdpa_verifies_whatever_is_combined(attnscope, mask_files, data):
    n_batch, n_Q, n_K = data.draw(st.just((2, 4, 6)) | st.tuples(size, size, size), label="sizes")
    n_past = data.draw(st.integers(0, n_K - 1), label="past")
    arguments = [
        "--batch",
        n_batch,
        "--nq",
        n_Q,
        "--nk",
        n_K - n_past,
        "--dv",
        data.draw(size, label="dv"),
    ]
    arguments += ["--past", n_past] if n_past else []
    arguments += ["--dk", data.draw(st.sampled_from([2, 4, 4, 5]), label="dk")]
    arguments += data.draw(
        st.sampled_from([[], ["--heads", 2], ["--heads", 4, "--kv-heads", 2]]), label="heads"
    )
    columns = data.draw(st.integers(0, 3), label="columns") == 0
    fit = (n_batch, n_Q, n_K) == (2, 4, 6) and not columns
    options = data.draw(shared_options(n_batch, n_Q, n_K, files=fit), label="options")
    form = data.draw(st.sampled_from([[], ["--query", data.draw(st.integers(0, n_Q - 1))]]))
    form = ["--layout", "columns"] if columns and "--rope" not in options else form
    check(attnscope, "sdpa", arguments + form + options)


@given(data=st.data())
@slow
def test_mha_verifies_whatever_is_combined(attnscope, mask_files, data):
    cross = data.draw(st.booleans(), label="cross")
    n_batch, n_Q, n_K = data.draw(st.just((2, 4, 6)) | st.tuples(size, size, size), label="sizes")
    n_past = data.draw(st.integers(0, n_K - 1), label="past") if cross else max(n_K - n_Q, 0)
    heads = data.draw(st.sampled_from([1, 2, 4]), label="heads")
    arguments = ["--batch", n_batch, "--nq", n_Q, "--heads", heads]
    arguments += ["--d-feat", heads * data.draw(st.sampled_from([2, 4, 4, 3]), label="d_head")]
    arguments += ["--past", n_past] if n_past else []
    arguments += ["--nk", n_K - n_past] if cross else []
    arguments += (
        ["--d-context", data.draw(size)] if cross and data.draw(st.booleans(), label="context") else []
    )
    arguments += data.draw(
        st.sampled_from([[], ["--kv-heads", 1], ["--kv-heads", heads]]), label="kv-heads"
    )
    drawn = {"--d-value": size, "--dropout": st.sampled_from([0.0, 0.5, 1.0])}
    drawn["--d-head"] = st.sampled_from([2, 6])
    for option, values in drawn.items():
        if data.draw(st.booleans(), label=option):
            arguments += [option, data.draw(values)]
    arguments += data.draw(st.sampled_from([["--bias"], ["--no-bias"], []]))
    arguments += data.draw(st.sampled_from([["--train"], ["--eval"], []]))
    keys = n_K if cross else n_Q + n_past
    options = data.draw(
        shared_options(n_batch, n_Q, keys, files=(n_batch, n_Q, keys) == (2, 4, 6)), label="options"
    )
    if "--scale" not in options:
        arguments += data.draw(st.sampled_from([[], ["--scale-by", "d_feat"]]))
    check(attnscope, "mha", arguments + options)


@given(data=st.data())
@slow
def test_files_verify_whatever_axes_they_have(attnscope, mask_files, data):
    """Tensors of 2, 3 or 4 axes, split or not, or embeddings with their projections; not all fit."""
    n_axes = data.draw(st.sampled_from([2, 3, 4]), label="axes")
    n_batch = data.draw(st.sampled_from([1, 2]), label="n_batch")
    n_head, n_kv_head = data.draw(st.sampled_from([(1, 1), (2, 1), (4, 2), (4, 3)]), label="heads")
    split = n_axes == 3 and data.draw(st.booleans(), label="split")
    wide = (n_head, n_kv_head) if split else (1, 1)
    n_K = data.draw(st.just(6) | size, label="n_K")
    lead = {2: (), 3: (n_batch,), 4: (n_batch, n_head)}[n_axes]
    kv_lead = {2: (), 3: (n_batch,), 4: (n_batch, n_kv_head)}[n_axes]
    rng = np.random.default_rng(data.draw(st.integers(0, 99), label="values"))
    dtype = data.draw(st.sampled_from(["float64", "float32", "float16"]), label="dtype")
    arguments = ["--heads", n_head, "--kv-heads", n_kv_head] if split else []
    if n_axes < 4 and data.draw(st.booleans(), label="embeddings"):
        shapes = {
            "x": (*lead, n_K, 5),
            "wq": (5, 4 * wide[0]),
            "wk": (5, 4 * wide[1]),
            "wv": (5, 3 * wide[1]),
        }
    else:
        shapes = {
            "q": (*lead, 4, 4 * wide[0]),
            "k": (*kv_lead, n_K, 4 * wide[1]),
            "v": (*kv_lead, n_K, 3 * wide[1]),
        }
        given_names = data.draw(st.sampled_from([["q", "k", "v"], ["q"], ["k", "v"]]), label="given")
        shapes = {name: shapes[name] for name in given_names}
    form = data.draw(st.sampled_from([[], [], ["--layout", "columns"], ["--query", 0]]))
    columns = "columns" in form
    for name, shape in shapes.items():
        array = rng.standard_normal(shape).astype(dtype)
        np.save(f"{name}.npy", array.swapaxes(-1, -2) if columns else array)
        arguments += [f"--{name}", f"{name}.npy"]
    fit = (n_batch, n_K) == (2, 6) and n_axes > 2 and "x" not in shapes and not columns
    options = data.draw(
        shared_options(n_batch, n_K if "x" in shapes else 4, n_K, files=fit), label="options"
    )
    check(attnscope, "sdpa", arguments + form + options)
