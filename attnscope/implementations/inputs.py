"""The inputs that the caller gives as tensors: by position, by name, or one alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from attnscope.errors import OptionError
from attnscope.implementations.code import parameter_names
from attnscope.units import counted
from attnscope.user_code.load import load_target, title_of
from attnscope.user_code.signatures import callee
from attnscope.user_code.subject import Texts


def name_of(side: Any) -> str:
    """Name a side as the user does: by what is written, or by the name of a function or class."""
    return str(side) if isinstance(side, Path) else title_of(side)


def inputs_by_name(target: Any, inputs: Any, call: str | None = None) -> Texts:
    """Return inputs by the parameters that take them; specifications alone are returned as they are.

    Args:
        target: the code that is called.
        inputs: a tensor, several by position or by name, or specifications.
        call: the method to call; None: `forward`.

    Raises:
        OptionError: there are more tensors than parameters.
    """
    if isinstance(inputs, Mapping):
        return {name: _as_tensor(each) for name, each in inputs.items()}
    values = [inputs] if isinstance(inputs, str) or is_array(inputs) else list(inputs)
    if all(isinstance(each, str) for each in values):
        return values
    names = parameter_names(callee(load_target(target), call))
    if len(values) > len(names):
        raise OptionError(
            f"{title_of(target)} takes {counted(len(names), 'input')} by position"
            f" ({', '.join(names)}), and there are {len(values)}.",
        )
    return {name: _as_tensor(each) for name, each in zip(names, values, strict=False)}


def is_array(value: Any) -> bool:
    """Check whether a value is a tensor or an array of numbers."""
    return hasattr(value, "dtype") and hasattr(value, "shape")


def _as_tensor(value: Any) -> Any:
    return torch.as_tensor(value) if is_array(value) and not isinstance(value, torch.Tensor) else value
