"""Constructing the arguments of a run: objects, and random tensors, with the sizes of that run."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import SourceError
from attnscope.base.process import devices
from attnscope.base.tracebacks import describe
from attnscope.code.load.configurations import copy_of
from attnscope.code.load.specs import (
    CollectionSpec,
    Computed,
    Configuration,
    Construction,
    Plain,
    TensorSpec,
    Value,
    members_of,
    numbers_in,
)

if TYPE_CHECKING:
    import torch


def make_value(value: Value, name: str | None, sizes: Mapping[str, int], *, wrap_errors: bool) -> Any:
    """Construct an argument of a constructor, with the sizes of a run."""
    if isinstance(value, Plain):
        if name is not None and value.size is not None and name in sizes:
            return sizes[name]
        return copy_of(value.value, {})
    if isinstance(value, Computed):
        return value.size(sizes)
    if isinstance(value, Construction) and value.arguments is None:
        return value.target.object
    pairs = [
        (key, make_value(inner, key, sizes, wrap_errors=wrap_errors))
        for key, inner in members_of(value)
        if not isinstance(value, Configuration)
        or any(sizes.get(name, size) != size for name, size in numbers_in(key, inner))
    ]
    if isinstance(value, CollectionSpec):
        return dict(pairs) if value.kind is dict else value.kind(inner for _, inner in pairs)
    if isinstance(value, Configuration):
        return copy_of(value.value, dict(pairs))
    args = tuple(inner for key, inner in pairs if key is None)
    kwargs = {key: inner for key, inner in pairs if key is not None}
    return construct(value.target.object, args, kwargs, wrap_errors=wrap_errors)


@contextmanager
def _empty_as_zeros() -> Iterator[None]:
    """Initialize parameters that a constructor leaves uninitialized with zeros."""
    import torch

    from attnscope.observe.torch_internals.unnoticed import UnnoticedMode

    zeros = {
        torch.empty: torch.zeros,
        torch.empty_like: torch.zeros_like,
        torch.Tensor.new_empty: torch.Tensor.new_zeros,
    }

    class Zeros(UnnoticedMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            known = isinstance(func, Hashable) and (kwargs or {}).get("out") is None
            return (zeros.get(func, func) if known else func)(*args, **(kwargs or {}))

    with Zeros():
        yield


def construct(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, wrap_errors: bool) -> Any:
    """Call a constructor.

    `wrap_errors` turns its exceptions into a SourceError that names the user's line.
    """
    try:
        with _empty_as_zeros():
            return target(*args, **kwargs)
    except Exception as error:
        if not wrap_errors:
            raise
        file = getattr(sys.modules.get(getattr(target, "__module__", "")), "__file__", None)
        name = getattr(target, "__qualname__", type(target).__name__)
        description = describe(error, Path(file).parent if file else None)
        named = [f"{key}={_short(value)}" for key, value in kwargs.items()]
        shown = ", ".join([*map(_short, args), *named])
        raise SourceError(f"{name}({shown}) raises {description}.") from error


def _short(value: Any) -> str:
    """Return a value for a message: the repr of numbers and short texts, the type of anything else."""
    text = repr(value)
    return text if len(text) <= 30 and "\n" not in text else f"{type(value).__name__}(…)"


# Drawing


def shape_in(tensor: TensorSpec, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return a tensor's shape with the sizes of a run."""
    if tensor.axes is None:
        return tensor.file.shape if tensor.file else ()
    return tuple(sizes[axis.name] if axis.name else axis.size or 0 for axis in tensor.axes)


def draw(
    shape: tuple[int, ...],
    dtype: str,
    device: str,
    low: int,
    high: int | None,
    distribution: str | None = None,
) -> torch.Tensor:
    """Draw a tensor: numbers of a distribution, fair coins, or integers from `low` up, below `high`.

    Numbers are standard normal, or `uniform` in [0, 1); complex normal numbers have a variance of one.
    No row of two coins or more is all True or all False, because that would be a useless mask.
    """
    import torch

    kind = getattr(torch, dtype)
    if device == "meta":
        return torch.empty(shape, dtype=kind, device=device)
    if high is not None:
        return torch.randint(low, high, shape, dtype=kind, device=device)
    if kind != torch.bool:
        return devices.draw(shape, dtype=dtype, device=device, distribution=distribution)
    coins = torch.rand(shape, device=device) < 0.5
    if shape and shape[-1] > 1:
        coins[..., 0] ^= (coins == coins[..., :1]).all(-1)
    return coins


def draw_like(stored: torch.Tensor, shape: tuple[int, ...], device: str) -> torch.Tensor:
    """Draw a tensor with the dtype of another, and with its range if it contains integers."""
    import torch

    dtype = str(stored.dtype).removeprefix("torch.")
    is_number = stored.is_floating_point() or stored.is_complex()
    is_integer = not is_number and stored.dtype != torch.bool
    low, high = (int(stored.min()), int(stored.max()) + 1) if is_integer else (0, None)
    return draw(shape, dtype, device, low, high)
