import numpy as np
import pytest
import torch

from attnscope.base.arrays import from_tensor, numbers
from attnscope.document.result import Stats
from attnscope.document.stats import stats_of


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_a_tensors_numbers_are_exact(dtype):
    tensor = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    stored, name = from_tensor(tensor)
    assert name == str(dtype).removeprefix("torch.")
    assert numbers(stored, name).tolist() == tensor.double().tolist()


def test_bfloat16_keeps_its_bits_even_if_not_contiguous():
    tensor = torch.arange(12, dtype=torch.bfloat16).view(3, 4).T
    stored, name = from_tensor(tensor)
    assert stored.dtype == np.uint16
    assert numbers(stored, name).tolist() == tensor.tolist()


def test_stats_are_those_of_the_finite_values():
    stats = stats_of(np.array([[1.0, np.nan, 4.0], [np.inf, -np.inf, 7.0]]))
    assert stats == Stats(min=1.0, mean=4.0, max=7.0, std=pytest.approx(6**0.5), nan=1, inf=2)


def test_stats_equal_torchs():
    x = torch.randn(50, 60, generator=torch.Generator().manual_seed(0))
    stats = stats_of(x.numpy())
    assert stats.mean == pytest.approx(float(x.double().mean()), abs=1e-12)
    assert stats.std == pytest.approx(float(x.double().std(correction=0)), abs=1e-12)
    assert (stats.min, stats.max) == (float(x.min()), float(x.max()))


def test_nothing_finite_has_no_stats_but_counts():
    assert stats_of(np.array([np.nan, np.inf])) == Stats(None, None, None, None, nan=1, inf=1)


def test_booleans_have_stats():
    assert stats_of(np.array([True, False, True, True])).mean == 0.75


def test_stats_of_many_values_are_those_of_the_whole(monkeypatch):
    x = np.random.default_rng(0).normal(size=1000)
    x[::97] = np.nan
    whole = stats_of(x)
    monkeypatch.setattr("attnscope.base.arrays.CHUNK", 7)
    parts = stats_of(x)
    assert (parts.min, parts.max, parts.nan, parts.inf) == (whole.min, whole.max, whole.nan, whole.inf)
    assert (parts.mean, parts.std) == pytest.approx((np.nanmean(x), np.nanstd(x)), abs=1e-12)
