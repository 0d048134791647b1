"""Masks that are functions: torch's `mask_mod` and `score_mod`, from a file or from memory."""

from __future__ import annotations

import linecache
import traceback
from collections.abc import Mapping, Sequence
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import OptionError, SourceError, is_out_of_memory
from attnscope.base.spelling import spelled
from attnscope.code.load.signatures import VARIADIC

if TYPE_CHECKING:
    import torch

    from attnscope.code.load.load import Loaded

MASK_MOD, SCORE_MOD = 4, 5
"""The numbers of positional parameters: `b, h, q_idx, kv_idx`, and before them `score`."""

N_AXES = 4
"""The most axes of a mask: `n_batch n_head n_Q n_K`."""

AT_ONCE = 2**24
"""The pairs that are computed together: a function makes whole numbers of them, of 8 bytes each."""


def function_of(
    subject: Any, init: Sequence[str] | Mapping[str, Any] | None, sizes: Mapping[str, int]
) -> tuple[Any, str]:
    """Return a `mask_mod` or `score_mod`, or the mask that a function returns; and its name.

    A function with other parameters makes one: it is called with `init`, or with the number of queries
    if that is all that it takes.

    `sizes` has `n_Q`, and sizes that the arguments may name: `window=n_K//2`.
    """
    from attnscope.code.load.construct import make_value
    from attnscope.code.load.load import load_target
    from attnscope.code.load.specs import Construction, read_init, value_of

    loaded = load_target(subject)
    name = loaded.name
    if isinstance(init, Mapping):
        arguments = tuple((key, value_of(value)) for key, value in init.items())
    else:
        arguments = tuple(read_init(text) for text in init or ())
    if not arguments and is_mask_function(loaded.object):
        return loaded.object, name
    if not arguments and (of_size := _of_size(loaded, sizes)) is not None:
        return of_size, name
    _check_arguments(loaded, [key for key, _ in arguments])
    made = make_value(Construction(loaded, arguments), None, sizes, wrap_errors=True)
    if (tensor := _as_mask(made)) is not None:
        return tensor, _called(name, arguments)
    if not callable(made) or not is_mask_function(made):
        what = f"a {type(made).__name__}"
        if callable(made):
            known = _parameters(made)
            names = "unknown parameters" if known is None else ", ".join(known) or "no parameters"
            what = f"a function of {names}"
        raise OptionError(
            f"{name} returns {what}, but a mask is a function of b, h, q_idx and kv_idx, or a tensor.",
            hint="a mask_mod as of torch's flex_attention",
        )
    return made, _called(name, arguments)


def _called(name: str, arguments: Sequence[tuple[str, Any]]) -> str:
    """Return a call in words: `sliding(window=4)`."""
    values = ", ".join(f"{key}={getattr(value, 'value', '…')!r}" for key, value in arguments)
    return f"{name}({values})"


def _of_size(loaded: Loaded, sizes: Mapping[str, int]) -> torch.Tensor | None:
    """Return the mask that a function of one size returns; None if it returns none."""
    from attnscope.code.load.construct import make_value
    from attnscope.code.load.specs import Construction, value_of

    needed, n = _needed(loaded, ()), sizes["n_Q"]
    if len(needed) != 1:
        return None
    try:
        made = make_value(
            Construction(loaded, ((needed[0], value_of(n)),)), None, sizes, wrap_errors=True
        )
    except SourceError:
        return None
    mask = _as_mask(made)
    return mask if mask is not None and mask.shape[-2:] == (n, n) else None


def _as_mask(value: Any) -> torch.Tensor | None:
    """Return an array or tensor of one to four axes as a tensor; None for anything else."""
    import torch

    is_mask = hasattr(value, "dtype") and hasattr(value, "shape") and 0 < len(value.shape) <= N_AXES
    return torch.as_tensor(value).detach().cpu() if is_mask else None


def is_mask_function(function: Any) -> bool:
    """Check whether a function has the parameters of a `mask_mod`, or of a `score_mod`."""
    return _n_positional(function) in (MASK_MOD, SCORE_MOD)


def _n_positional(function: Any) -> int:
    """Return the number of parameters that must be given by position."""
    kinds = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    parameters = (_parameters(function) or {}).values()
    return sum(each.kind in kinds and each.default is Parameter.empty for each in parameters)


def _parameters(function: Any) -> Mapping[str, Parameter] | None:
    """Return a function's parameters by name; None if Python does not know them."""
    try:
        return signature(function).parameters
    except (TypeError, ValueError):
        return None


def _check_arguments(loaded: Loaded, names: Sequence[str]) -> None:
    """Raise an OptionError unless a function that makes a mask can be called with these arguments."""
    parameters = _parameters(loaded.object)
    if parameters is None:
        return
    accepts_any = any(each.kind is Parameter.VAR_KEYWORD for each in parameters.values())
    unknown = [name for name in names if name not in parameters and not accepts_any]
    needed = _needed(loaded, names)
    takes = f"{loaded.name} takes {', '.join(parameters) or 'no arguments'}"
    if unknown:
        raise OptionError(
            f"{takes}, and not {unknown[0]}.", hint=spelled(init=f"{(needed or ['NAME'])[0]}=…")
        )
    if needed:
        values = [f"{name}=…" for name in needed]
        raise OptionError(
            f"{takes}: a mask is a function of b, h, q_idx and kv_idx, or makes one from"
            f" {spelled('init')}.",
            hint=f"def mask(b, h, q_idx, kv_idx); or {spelled(init=values)}; or, if it computes"
            f" attention, {spelled(inputs=values)}",
        )


def _needed(loaded: Loaded, names: Sequence[str]) -> list[str]:
    """List the parameters of a function that must be given, without some; none if they are unknown."""
    return [
        name
        for name, each in (_parameters(loaded.object) or {}).items()
        if each.default is Parameter.empty and each.kind not in VARIADIC and name not in names
    ]


def visible_by_function(function: Any, name: str, sizes: Mapping[str, int]) -> torch.Tensor:
    """Return True where a `mask_mod` is, or a `score_mod` does not return -inf.

    It is called as `flex_attention` does: under `torch.vmap`, with tensors of no axes.
    """
    import torch
    from torch.nn.attention.flex_attention import create_mask

    n_batch, n_head, n_Q, n_K = (sizes[axis] for axis in ("n_batch", "n_head", "n_Q", "n_K"))
    is_score = _n_positional(function) == SCORE_MOD
    step = max(1, AT_ONCE // (n_batch * n_head * n_K))
    parts = []
    for first in range(0, n_Q, step):
        rows = min(step, n_Q - first)
        moved = _moved(function, first, is_score=is_score)
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


def _moved(function: Any, first: int, *, is_score: bool) -> Any:
    """Return a `mask_mod` or `score_mod` whose queries are counted from another one on."""

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return function(b, h, q_idx + first, kv_idx)

    def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return function(score, b, h, q_idx + first, kv_idx)

    return score_mod if is_score else mask_mod


def _failure(function: Any, name: str, error: Exception) -> SourceError:
    """Return the error for an exception of the user's function."""
    from attnscope.base.tracebacks import describe

    file = getattr(getattr(function, "__code__", None), "co_filename", None)
    description = describe(error, Path(file).parent if file and Path(file).is_file() else None)
    hint = None
    if "data-dependent control flow" in str(error):
        hint = "&, | and torch.where in place of and, or and if: q_idx and kv_idx are tensors"
    elif "vmap" in str(error):
        frames = traceback.extract_tb(error.__traceback__)
        last = [frame for frame in frames if "/torch/" not in frame.filename][-1]
        line = linecache.getline(last.filename, last.lineno or 0)
        call = next((each for each in (".item()", ".tolist()", "int(", "float(") if each in line), None)
        without = f", without {call + ')' * call.endswith('(')}" if call else ""
        hint = f"the tensor itself{without}: b, h, q_idx and kv_idx are tensors, and may index others"
    return SourceError(f"{name} raises {description}.", hint=hint)
