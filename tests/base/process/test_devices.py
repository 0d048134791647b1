import pytest
import torch

from attnscope.base.errors import OptionError, SizeError
from attnscope.base.process import devices as drawn
from attnscope.base.process.devices import (
    check_device,
    check_device_name,
    check_memory,
    check_seed,
    draw,
    seeded,
)
from attnscope.base.process.memory import FreeMemory


def test_the_same_seed_draws_the_same_values():
    def drawn_with(seed):
        with seeded(seed, "cpu"):
            return draw((2, 3), dtype="float32", device="cpu")

    assert torch.equal(drawn_with(7), drawn_with(7))
    assert not torch.equal(drawn_with(7), drawn_with(8))


def test_values_are_standard_normal_or_uniform_from_0_up_and_below_1():
    with seeded(0, "cpu"):
        uniform = draw((1000,), dtype="float32", device="cpu", distribution="uniform")
        normal = draw((1000,), dtype="float32", device="cpu", distribution="normal")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        assert torch.equal(uniform, torch.rand(1000))
        assert torch.equal(normal, torch.randn(1000))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("distribution", ["normal", "uniform"])
def test_tensors_have_the_requested_dtype_and_device(dtype, device, distribution):
    with seeded(0, device):
        tensor = draw((2, 3), dtype=dtype, device=device, distribution=distribution)
    assert (tensor.shape, tensor.dtype, tensor.device.type) == ((2, 3), getattr(torch, dtype), device)


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:1", "mps", "meta"])
def test_names_of_devices_are_known(device):
    check_device_name(device)


@pytest.mark.parametrize("device", ["banana", "cuda:", "cuda:x", "meta:0", "cpu:9", ""])
def test_other_names_are_refused(device):
    with pytest.raises(OptionError, match="is not a device"):
        check_device_name(device)


def test_a_device_that_is_not_here_is_refused():
    count = torch.cuda.device_count()
    with pytest.raises(OptionError, match=f"there is no device cuda:{count} here: .* sees {count}"):
        check_device(f"cuda:{count}")


def test_more_memory_than_is_free_is_refused(monkeypatch):
    monkeypatch.setattr(drawn, "free_memory", lambda device: FreeMemory(2048))
    check_memory(2048, "cpu")
    with pytest.raises(SizeError, match=r"needs at least 2\.0 KiB, but cpu has 2\.0 KiB free"):
        check_memory(2049, "cpu")


def test_meta_needs_next_to_no_memory():
    check_memory(10**18, "meta")


def test_even_meta_counts_bytes_in_64_bits():
    with pytest.raises(SizeError, match=r"meta has 8\.0 EiB free"):
        check_memory(10**19, "meta")


@pytest.mark.parametrize("seed", [0, -(2**63), 2**64 - 1])
def test_seeds_that_torch_takes_draw(seed):
    check_seed(seed)
    with seeded(seed, "cpu"):
        draw((2,), dtype="float32", device="cpu")


@pytest.mark.parametrize("seed", [2**64, -(2**63) - 1])
def test_other_seeds_are_refused(seed):
    with pytest.raises(OptionError, match="does not fit into 64 bits"):
        check_seed(seed)
    with pytest.raises((ValueError, RuntimeError, OverflowError)), seeded(seed, "cpu"):
        pass


def test_a_long_name_that_is_no_device_is_shortened():
    with pytest.raises(OptionError) as caught:
        check_device_name("y" * 3000)
    assert len(str(caught.value)) < 200
