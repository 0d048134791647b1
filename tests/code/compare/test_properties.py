"""Sizes of all kinds, also equal ones and 1: correct attention is equal, and a mistake is never missed."""

import importlib.util
import sys

import pytest
import torch
from hypothesis import HealthCheck, assume, given
from hypothesis import strategies as st

from attnscope import compare
from tests.code.compare.code.habits import SOURCE
from tests.code.compare.code.styles import STYLES, source
from tests.profiles import examples

sizes = st.integers(1, 4)
DTYPES = ["float64", "float32", "bfloat16"]
SCALES = ["scale of d_feat", "no scale"]


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    """Return a function that returns the module of a source, by its name."""
    folder, known = tmp_path_factory.mktemp("code"), {}

    def imported(name, text):
        if name not in known:
            path = folder / f"code{len(known)}.py"
            path.write_text(text)
            spec = importlib.util.spec_from_file_location(path.stem, path)
            known[name] = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(known[name])
        return known[name]

    yield imported
    for each in known.values():
        sys.modules.pop(each.__name__)


def drawn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.sweep
@given(
    pair=st.tuples(*[st.sampled_from(list(STYLES))] * 2),
    n_batch=sizes, n_Q=sizes, n_more=st.integers(0, 3), n_kv_head=st.integers(1, 3),
    groups=st.integers(1, 3), half=sizes, dtype=st.sampled_from(DTYPES),
)  # fmt: skip
@examples(5, 100, ignoring=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_correct_attention_of_any_size_is_equal(
    modules, pair, n_batch, n_Q, n_more, n_kv_head, groups, half, dtype
):
    n_head = n_kv_head * groups
    d_feat = n_head * 2 * half
    init = {"d_feat": d_feat, "n_head": n_head, "n_kv_head": n_kv_head}
    inputs = {"x": drawn(n_batch, n_Q, d_feat), "y": drawn(n_batch, n_Q + n_more, d_feat)}
    sides = [modules(each, source(each)).Attention for each in pair]
    result = compare(*sides, init=init, inputs=inputs, dtype=dtype, backward=dtype == "float64")
    assert (result.status, result.divergences) == ("equal", [])
    assert {each.status for each in result.gradients or ()} <= {"equal"}


@pytest.mark.sweep
@given(
    name=st.sampled_from(["Plain", "NormBefore", "ResidualAndNormAfter", "WithoutProjection", "Block"]),
    n_batch=sizes, n=sizes, n_head=sizes, d_head=sizes, dtype=st.sampled_from(DTYPES),
)  # fmt: skip
@examples(5, 100, ignoring=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_correct_attention_of_any_size_equals_mha(modules, name, n_batch, n, n_head, d_head, dtype):
    d_feat = n_head * d_head
    side = getattr(modules("habits", SOURCE), name)
    inputs = {"x": drawn(n_batch, n, d_feat)}
    result = compare(side, "mha", init={"d": d_feat, "h": n_head}, inputs=inputs, dtype=dtype)
    assert (result.status, result.divergences) == ("equal", [])


@pytest.mark.sweep
@given(
    style=st.sampled_from(list(STYLES)), mistake=st.sampled_from(SCALES),
    n_batch=sizes, n=st.integers(2, 5), n_head=sizes, half=sizes,
)  # fmt: skip
@examples(8, 100, ignoring=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_another_scale_is_named_at_any_size(modules, style, mistake, n_batch, n, n_head, half):
    d_feat, d_head = n_head * 2 * half, 2 * half
    assume(mistake == "no scale" or n_head > 1)
    right, wrong = modules(style, source(style)), modules((style, mistake), source(style, mistake))
    init = {"d_feat": d_feat, "n_head": n_head, "n_kv_head": n_head}
    inputs = {"x": drawn(n_batch, n, d_feat), "y": drawn(n_batch, n, d_feat)}
    result = compare(right.Attention, wrong.Attention, init=init, inputs=inputs)
    expected = "scale missing" if mistake == "no scale" else "another scale"
    if mistake != "no scale" and d_feat == d_head**2:  # 1/√d_feat is 1/d_head, as if scaled twice
        expected = "scaled twice"
    assert [(each.role, each.cause) for each in result.divergences] == [("scores", expected)]
