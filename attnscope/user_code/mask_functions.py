"""Masks that are functions: torch's `mask_mod` and `score_mod`, from a file or from memory."""

from __future__ import annotations

import linecache
import traceback
from collections.abc import Mapping, Sequence
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.errors import OptionError, SourceError, is_out_of_memory

if TYPE_CHECKING:
    import torch

    from attnscope.user_code.load import Loaded

MASK_MOD, SCORE_MOD = 4, 5
"""The numbers of positional parameters: `b, h, q_idx, kv_idx`, and before them `score`."""

AT_ONCE = 2**24
"""The pairs that are computed together: a function makes whole numbers of them, of 8 bytes each."""


def function_of(
    subject: Any, init: Sequence[str] | Mapping[str, Any] | None, sizes: Mapping[str, int]
) -> tuple[Any, str]:
    """Return a `mask_mod` or `score_mod`, and its name.

    A function with other parameters makes one: it is called with `init`.

    Args:
        subject: the function, or `file.py:NAME` or `package.module:NAME`.
        init: its arguments, as `NAME=VALUE` or by name, if it makes the function.
        sizes: sizes that these may name: `window=n_K//2`.

    Raises:
        SourceError: there is no such function, or it raises an exception.
        OptionError: its arguments are missing or wrong.
    """
    from attnscope.user_code.construct import make_value
    from attnscope.user_code.load import load_target
    from attnscope.user_code.specs import Construction, read_init, value_of

    loaded = load_target(subject)
    name = loaded.name
    if isinstance(init, Mapping):
        arguments = tuple((key, value_of(value)) for key, value in init.items())
    else:
        arguments = tuple(read_init(text) for text in init or ())
    if not arguments and is_mask_function(loaded.object):
        return loaded.object, name
    _check_arguments(loaded, [key for key, _ in arguments])
    made = make_value(Construction(loaded, arguments), None, sizes, wrap_errors=True)
    if not callable(made) or not is_mask_function(made):
        what = f"a {type(made).__name__}" if not callable(made) else f"a function of {_parameters(made)}"
        raise OptionError(
            f"{name} returns {what}, but a mask is a function of b, h, q_idx and kv_idx.",
            hint="a mask_mod as of torch's flex_attention",
        )
    values = ", ".join(f"{key}={getattr(value, 'value', '…')!r}" for key, value in arguments)
    return made, f"{name}({values})"


def is_mask_function(function: Any) -> bool:
    """Check whether a function has the parameters of a `mask_mod`, or of a `score_mod`."""
    return _positional(function) in (MASK_MOD, SCORE_MOD)


def _positional(function: Any) -> int | None:
    """Return the number of parameters that must be given by position; None if it is unknown."""
    try:
        parameters = signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    kinds = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    return sum(each.kind in kinds and each.default is Parameter.empty for each in parameters)


def _parameters(function: Any) -> str:
    """List the names of a function's parameters."""
    try:
        return ", ".join(signature(function).parameters) or "no parameters"
    except (TypeError, ValueError):
        return "unknown parameters"


def _check_arguments(loaded: Loaded, names: Sequence[str]) -> None:
    """Raise an OptionError unless a function that makes a mask can be called with these arguments."""
    try:
        parameters = signature(loaded.object).parameters
    except (TypeError, ValueError):
        return
    accepts_any = any(each.kind is Parameter.VAR_KEYWORD for each in parameters.values())
    unknown = [name for name in names if name not in parameters and not accepts_any]
    needed = [
        name
        for name, each in parameters.items()
        if each.default is Parameter.empty
        and each.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
        and name not in names
    ]
    takes = f"{loaded.name} takes {', '.join(parameters) or 'no arguments'}"
    if unknown:
        raise OptionError(f"{takes}, and not {unknown[0]}.", hint=f"--init {(needed or ['NAME'])[0]}=…")
    if needed:
        raise OptionError(
            f"{takes}: a mask is a function of b, h, q_idx and kv_idx, or makes one from --init.",
            hint=f"def mask(b, h, q_idx, kv_idx); or {_each('--init', needed)}; or, if it computes"
            f" attention, {_each('--input', needed)}",
        )


def _each(flag: str, names: Sequence[str]) -> str:
    """Return an option for each argument."""
    return " ".join(f"{flag} {name}=…" for name in names)


def visible_by_function(function: Any, name: str, sizes: Mapping[str, int]) -> torch.Tensor:
    """Return True where a `mask_mod` is, or a `score_mod` does not return -inf.

    It is called as `flex_attention` does: under `torch.vmap`, with tensors of no axes.

    Args:
        function: the function.
        name: its name in messages.
        sizes: `n_batch`, `n_head`, `n_Q` and `n_K`.

    Raises:
        SourceError: it raises an exception.
        OptionError: it does not return booleans.
    """
    import torch
    from torch.nn.attention.flex_attention import create_mask

    n_batch, n_head, n_Q, n_K = (sizes[axis] for axis in ("n_batch", "n_head", "n_Q", "n_K"))
    is_score = _positional(function) == SCORE_MOD
    step = max(1, AT_ONCE // (n_batch * n_head * n_K))
    parts = []
    for first in range(0, n_Q, step):
        rows = min(step, n_Q - first)
        moved = _moved_score(function, first) if is_score else _moved(function, first)
        try:
            parts.append(create_mask(moved, n_batch, n_head, rows, n_K, device="cpu"))
        except Exception as error:
            if is_out_of_memory(error):
                raise
            raise _failure(function, name, error) from error
    visible = torch.cat(parts, 2)
    if visible.dtype != torch.bool:
        dtype = str(visible.dtype).removeprefix("torch.")
        raise OptionError(
            f"{name} returns {dtype}, but a mask_mod returns bool: True where a query may attend.",
            hint="a comparison, such as q_idx >= kv_idx",
        )
    return visible


def _moved(function: Any, first: int) -> Any:
    """Return a `mask_mod` whose queries are counted from another one on."""

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return function(b, h, q_idx + first, kv_idx)

    return mask_mod


def _moved_score(function: Any, first: int) -> Any:
    """Return a `score_mod` whose queries are counted from another one on."""

    def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return function(score, b, h, q_idx + first, kv_idx)

    return score_mod


def _place_of(error: Exception) -> tuple[str, int]:
    """Return the file and line of the user's code, or of torch's, that an exception comes from last."""
    own = [each for each in traceback.extract_tb(error.__traceback__) if "/torch/" not in each.filename]
    return own[-1].filename, own[-1].lineno or 0


def _failure(function: Any, name: str, error: Exception) -> SourceError:
    """Return the error for an exception of the user's function."""
    from attnscope.user_code.load import describe

    file = getattr(getattr(function, "__code__", None), "co_filename", None)
    description = describe(error, Path(file).parent if file and Path(file).is_file() else None)
    hint = None
    if "data-dependent control flow" in str(error):
        hint = "&, | and torch.where in place of and, or and if: q_idx and kv_idx are tensors"
    elif "vmap" in str(error):
        line = linecache.getline(*_place_of(error))
        call = next((each for each in (".item()", ".tolist()", "int(", "float(") if each in line), None)
        without = f", without {call + ')' * call.endswith('(')}" if call else ""
        hint = f"the tensor itself{without}: b, h, q_idx and kv_idx are tensors, and may index others"
    return SourceError(f"{name} raises {description}.", hint=hint)
