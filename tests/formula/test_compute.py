"""`dry_run`, `compute` and `verify`: the commands `sdpa` and `mha` in Python."""

import numpy as np
import pytest
import torch

from attnscope import AttnscopeError, compute, dry_run, verify
from attnscope.base.errors import FileError, OptionError, OptionWarning, SizeError
from tests.sentences import without_sentences

SDPA = {"batch": 2, "nq": 4, "nk": 6, "dk": 8, "dv": 3}
MHA = {"batch": 2, "nq": 4, "d_feat": 8, "heads": 2}

PAIRS = [
    ("sdpa", {}),
    ("sdpa", SDPA | {"mask": "causal", "align": "bottom-right", "softcap": 2.0, "dtype": "bfloat16"}),
    ("sdpa", SDPA | {"heads": 2, "kv_heads": 1, "past": 3, "rope": True, "rope_theta": 100.0}),
    ("sdpa", SDPA | {"layout": "columns", "scale": 0.5, "seed": 3, "softmax_dtype": "float64"}),
    ("sdpa", SDPA | {"query": 2, "mask": ["lengths:0,4", "window:2"], "masked_rows": "zero"}),
    ("sdpa", SDPA | {"mask": "prefix:2", "mask_style": "additive", "mask_fill": -1e9}),
    ("mha", MHA),
    ("mha", MHA | {"train": True, "dropout": 0.5, "seed": 4, "scale_by": "d_feat"}),
    ("sdpa", SDPA | {"draw": "uniform", "past": 2}),
    ("mha", MHA | {"draw": "uniform", "seed": 2}),
    ("mha", MHA | {"nk": 6, "d_context": 5, "d_value": 7, "bias": False, "dtype": "float64"}),
    ("mha", MHA | {"kv_heads": 1, "rope": True, "past": 2, "mask": ["causal"], "scale": 0.25}),
]


def flags(options):
    """Return options as flags of the command line."""
    line = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if value is False:
            line.append(f"--no-{name}")
        elif value is True:
            line.append(flag)
        else:
            line += [part for each in np.atleast_1d(value).tolist() for part in (flag, each)]
    return line


@pytest.mark.few(3)
@pytest.mark.parametrize(("formula", "options"), PAIRS)
@pytest.mark.parametrize(
    "more", [{}, {"explain": True, "verify": True}, {"stats": True, "source": True}]
)
def test_a_computation_is_what_the_command_prints_as_json(attnscope, formula, options, more):
    printed = attnscope(formula, *flags(options | more), "--format", "json")
    computed = compute(formula, **options, **more).to_dict()
    assert without_sentences(computed) == without_sentences(printed.json)


@pytest.mark.parametrize(("formula", "options"), PAIRS)
@pytest.mark.parametrize("more", [{}, {"explain": True, "source": True}])
@pytest.mark.filterwarnings("ignore::attnscope.base.errors.OptionWarning")
def test_a_dry_run_is_what_the_command_prints_as_json(attnscope, formula, options, more):
    printed = attnscope(formula, *flags(options | more), "--dry-run", "--format", "json")
    planned = dry_run(formula, **options, **more).to_dict()
    assert without_sentences(planned) == without_sentences(printed.json)


@pytest.fixture
def qkv():
    rng = np.random.default_rng(0)
    return {"q": rng.random((2, 4, 8)), "k": rng.random((2, 6, 8)), "v": rng.random((2, 6, 3))}


def test_arrays_tensors_and_files_are_the_same_inputs(qkv, tmp_path):
    for name, array in qkv.items():
        np.save(tmp_path / f"{name}.npy", array)
    tensors = {name: torch.from_numpy(array) for name, array in qkv.items()}
    files = {name: tmp_path / f"{name}.npy" for name in qkv}
    lists = {name: array.tolist() for name, array in qkv.items()}
    outs = [compute("sdpa", keep=["out"], **each)["out"].tensor for each in (qkv, tensors, files, lists)]
    assert all(torch.equal(out, outs[0]) for out in outs)
    q, k, v = tensors.values()
    torch.testing.assert_close(outs[0], torch.nn.functional.scaled_dot_product_attention(q, k, v))


def test_a_trace_has_a_seed_only_where_something_was_drawn(qkv):
    assert compute("sdpa", **qkv).seed is None
    assert compute("sdpa", q=qkv["q"]).seed == 0
    assert compute("sdpa", q=qkv["q"], seed=3).seed == 3
    with pytest.warns(OptionWarning, match="seed has no effect: no random values are drawn"):
        compute("sdpa", **qkv, seed=3)


@pytest.mark.parametrize("formula", ["sdpa", "mha"])
def test_uniform_inputs_are_those_of_torch_rand(formula):
    options = {"batch": 3, "nq": 4, "seed": 5}
    trace = compute(formula, **options, draw="uniform", keep=["Q"])
    torch.manual_seed(5)
    assert torch.equal(trace["Q"].tensor, torch.rand(trace["Q"].shape))
    assert trace.options["draw"] == "uniform"
    normal = compute(formula, **options, draw="normal", keep=["Q"])
    assert normal.to_dict() == compute(formula, **options).to_dict()
    torch.manual_seed(5)
    assert torch.equal(normal["Q"].tensor, torch.randn(normal["Q"].shape))


def test_a_distribution_without_drawn_inputs_has_no_effect(qkv):
    with pytest.warns(OptionWarning, match="draw has no effect: no input is drawn"):
        trace = compute("sdpa", **qkv, draw="uniform")
    assert "draw" not in trace.options
    with pytest.warns(OptionWarning, match="draw has no effect: no input is drawn"):
        trace = compute("mha", x=qkv["q"], heads=2, draw="uniform")
    assert trace.seed == 0  # of the weights
    with pytest.raises(OptionError, match="draw is 'gauss', but takes 'normal' or 'uniform'"):
        compute("sdpa", draw="gauss")


def test_inputs_lie_in_a_memory_of_their_own(qkv):
    tensor = torch.from_numpy(qkv["q"])
    trace = compute("sdpa", **(qkv | {"q": tensor}), keep=True)
    tensor.zero_()
    qkv["k"][:] = 0
    assert trace["Q"].tensor.all()
    assert trace["K"].tensor.all()


def test_turned_and_strided_arrays_are_taken_as_they_look():
    array = np.arange(24.0).reshape(4, 6).T[::2]
    trace = compute("sdpa", q=array, keep=["Q"])
    np.testing.assert_array_equal(trace["Q"].tensor, array)


def test_the_weights_of_a_module_make_its_result():
    torch.manual_seed(0)
    module = torch.nn.MultiheadAttention(8, 2, batch_first=True).double()
    x = torch.randn(2, 4, 8, dtype=torch.float64)
    trace = compute("mha", x=x, weights=module.state_dict(), heads=2, keep=["x"], verify=True)
    torch.testing.assert_close(trace["x"].tensor, module(x, x, x)[0].detach())
    assert all(check.ok for check in trace.checks)
    assert trace.seed is None


def test_only_what_is_asked_for_is_kept(qkv):
    mask = np.tri(4, 6)
    trace = compute("sdpa", **qkv, mask=mask, verify=True, keep=["attention"])
    assert [step.name for step in trace.steps if step.tensor is not None] == ["attention"]
    assert trace.options["mask"] == ["4×6"]
    assert all(step.tensor is None for step in compute("mha", **MHA, verify=True).steps)
    assert compute("mha", **MHA, verify=True).weights is None


@pytest.mark.few(3)
@pytest.mark.parametrize(("formula", "options"), PAIRS)
def test_verifying_later_says_what_verifying_at_once_says(formula, options):
    trace = compute(formula, **options, keep=True)
    assert verify(trace) is trace
    assert trace.checks == compute(formula, **options, verify=True).checks


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: dry_run("sdpa", **SDPA), "a dry run has no values"),
        (lambda: compute("sdpa", **SDPA, device="meta"), "meta tensors have no values"),
        (lambda: compute("sdpa", **SDPA, keep=["out", "K"]), "it did not keep Q, V, scores, attention"),
        (lambda: compute("mha", **MHA), "it did not keep Q, K, V, Q_feat"),
    ],
)
def test_a_trace_that_cannot_be_verified_says_why(make, why):
    with pytest.raises(OptionError, match=why):
        verify(make())


def test_a_trace_of_other_code_is_not_verified():
    import attnscope

    trace = attnscope.trace_call(attnscope.sdpa, *[torch.ones(2, 2)] * 3, keep=True)
    with pytest.raises(OptionError, match=r"attnscope\.compute did not create it"):
        verify(trace)


def test_torchs_random_state_stays_as_it_was():
    torch.manual_seed(7)
    before = torch.get_rng_state()
    compute("mha", **MHA, train=True, seed=3)
    with pytest.raises(AttnscopeError):
        compute("sdpa", **SDPA, keep=["nope"])
    assert torch.equal(torch.get_rng_state(), before)


def test_dtypes_and_devices_may_be_torchs_own():
    trace = compute("sdpa", **SDPA, dtype=torch.float64, device=torch.device("cpu"))
    assert (trace.dtype, trace.device) == ("float64", "cpu")


def test_progress_is_told_what_is_being_done():
    told = []
    compute("sdpa", **SDPA, verify=True, progress=told.append)
    assert told == ["running sdpa on cpu …", None, "comparing with references …", None]


def test_what_is_taken_afterwards_counts_as_needed_memory():
    plans = []

    def reserve(plan):
        plans.append(plan)
        return 2**60

    with pytest.raises(SizeError, match=r"this run needs at least 1\.0 EiB"):
        compute("sdpa", **SDPA, reserve=reserve)
    assert [step.name for step in plans[0].steps] == ["Q", "K", "V", "scores", "attention", "out"]


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"nq": 0}, SizeError, "n_Q is 0, but a size is a whole number from 1 up."),
        ({"nq": 2.5}, OptionError, "nq is 2.5, but takes whole numbers."),
        ({"nv": 7, "nk": 6}, SizeError, "n_V is 7, but n_K is 6"),
        ({"q": np.ones((2, 3)), "nq": 5}, SizeError, "Q in the argument q has n_Q 2 (axis 0 of 2×3)"),
        ({"q": [[1, 2], [3]]}, OptionError, "the argument q has rows of different lengths"),
        ({"q": np.array([["a"]])}, OptionError, "the argument q is stored as str32"),
        ({"q": "nope.npy"}, FileError, "there is no file nope.npy."),
        ({"mask": np.ones((3, 3)), "nq": 3, "nk": 4}, SizeError, "mask in the argument mask has n_K 3"),
        (
            {"mask_style": "both", "mask": "causal"},
            OptionError,
            "mask_style is 'both', but takes 'bool' or 'additive'.",
        ),
        ({"layout": "diagonal"}, OptionError, "layout is 'diagonal', but takes 'rows' or 'columns'."),
        ({"keep": ["nope"]}, OptionError, "there is no 'nope' in the steps of sdpa."),
        (
            {"device": "meta", "stats": True},
            OptionError,
            "stats needs values, and meta tensors have none.",
        ),
        ({"device": "gpu"}, OptionError, "'gpu' is not a device."),
        ({"d_feat": 3}, TypeError, "sdpa has no option 'd_feat'"),
        ({"d_k": 3}, TypeError, "sdpa has no option 'd_k': did you mean 'dk'?"),
    ],
)
def test_a_mistake_is_an_error_that_says_what_disagrees(options, kind, message):
    with pytest.raises(kind) as raised:
        compute("sdpa", **options)
    assert message in str(raised.value)


def test_weights_that_are_none_are_refused():
    with pytest.raises(OptionError, match="weights is a Linear, not a file or a mapping"):
        compute("mha", weights=torch.nn.Linear(2, 2))
    with pytest.raises(FileError, match="the argument weights has no weights with names"):
        compute("mha", weights={"a": np.ones(3)})


def test_there_are_two_formulas():
    with pytest.raises(OptionError, match="formula is 'gqa', but takes 'sdpa' or 'mha'"):
        dry_run("gqa")


def test_a_trace_is_saved_as_its_tensors_and_as_its_records(tmp_path, attnscope, read_tensors):
    trace = compute("sdpa", **SDPA, keep=True)
    for suffix in ("npz", "json", "csv", "md"):
        trace.save(tmp_path / f"trace.{suffix}")
    assert torch.equal(read_tensors(tmp_path / "trace.npz")["out"], trace["out"].tensor)
    for suffix, format in (("json", "json"), ("csv", "csv"), ("md", "markdown")):
        printed = attnscope("sdpa", *flags(SDPA), "--format", format).out
        assert (tmp_path / f"trace.{suffix}").read_text() == printed


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("fill", "dtype", "softmax_dtype", "is_nan"),
    [
        (-65504.0, "bfloat16", "float16", True),  # bfloat16 rounds it to -65536
        (-1e9, "float32", "float16", True),
        (-65504.0, "float32", "float16", False),
        (-1e9, "float16", "float32", None),  # refused: float16 has no such number
        (-1e9, "float32", None, False),
    ],
)
def test_a_mask_fill_that_overflows_in_the_softmax_gives_nan(fill, dtype, softmax_dtype, is_nan):
    options = {"nq": 2, "nk": 3, "batch": 1, "mask": "lengths:0", "mask_fill": fill, "dtype": dtype}
    options["softmax_dtype"] = softmax_dtype
    if is_nan is None:
        with pytest.raises(OptionError, match="out of the range of float16"):
            compute("sdpa", **options)
        return
    trace = compute("sdpa", verify=True, keep=["out"], **options)
    assert bool(trace["out"].tensor.isnan().all()) == is_nan
    for each in (trace, dry_run("sdpa", **options)):
        assert ("which is NaN" in each.findings[0].message) == is_nan
    [loop] = [check for check in trace.checks if check.name == "naive loop"]
    assert loop.ok
