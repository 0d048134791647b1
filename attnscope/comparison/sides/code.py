"""A side that is the user's code: a class or function, with inputs given, or the usual ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from inspect import Parameter
from typing import Any

from attnscope.comparison.sides.parameters import role_of
from attnscope.comparison.sides.side import Side
from attnscope.errors import AttnscopeError, OptionError, SourceError
from attnscope.tracing.target.examples import HEADS, WIDTH
from attnscope.tracing.target.load import Loaded, load
from attnscope.tracing.target.signatures import VARIADIC, Callee, callee, signature_of
from attnscope.tracing.target.subject import Texts, read_subject


def code_side(
    target: str | Loaded,
    title: str,
    init: Texts,
    inputs: Texts,
    where: Sequence[str],
    call: str | None,
    dtype: str,
    seed: int,
) -> Side:
    """Build the class or function that a text names, and draw its inputs.

    Args:
        target: `file.py:NAME` or `package.module:NAME`, or what it names.
        title: its name in messages.
        init, inputs, where, call: as in `attnscope.inspect`; without inputs, the usual ones are tried.
        dtype: the dtype of weights and inputs.
        seed: the seed of both.

    Raises:
        AttnscopeError: it cannot be loaded or built, or the usual inputs do not fit.
    """
    loaded = load(target) if isinstance(target, str) else target
    if inputs:
        return _built(loaded, title, init, inputs, where, call, dtype, seed)
    failure: AttnscopeError | None = None
    for usual in usual_inputs(callee(loaded, call), init):
        try:
            side = _built(loaded, title, init, usual, where, call, dtype, seed)
            side.run(seed)
        except SourceError as error:
            failure = failure or error
            continue
        return side
    if failure is None:
        return _built(loaded, title, init, (), where, call, dtype, seed)
    raise OptionError(
        f"the usual inputs do not fit {title}: {failure.message}",
        hint="--input NAME=AXES for each input",
    )


def _built(
    loaded: Loaded,
    title: str,
    init: Texts,
    inputs: Texts,
    where: Sequence[str],
    call: str | None,
    dtype: str,
    seed: int,
) -> Side:
    objects: dict[str, Any] = {}
    if isinstance(inputs, Mapping):  # tensors and the like are passed as they are
        objects = {name: each for name, each in inputs.items() if not isinstance(each, str)}
        inputs = {name: "None" if name in objects else each for name, each in inputs.items()}
    subject = read_subject(loaded, init, inputs, where, call, dtype)
    built = subject.build(seed=seed)
    args, values = iter(built.args), {}
    positional = []
    for each in subject.inputs:
        if each.name is None:
            positional.append(each.label)
            values[each.label] = next(args)
        else:
            values[each.label] = built.kwargs[each.name]
    module = built.module or _module_of(built.callable)
    return Side(title, built.callable, values | objects, positional, module)


def _module_of(called: Any) -> Any:
    """Return the module that is called, or whose method is; None if there is none."""
    import torch

    owner = getattr(called, "__self__", called)
    return owner if isinstance(owner, torch.nn.Module) else None


def constructor_names(target: Any) -> list[str] | None:
    """Return the parameters of a class's constructor; None if it takes any, or is a function."""
    owner = callee(target, None).owner if isinstance(target, Loaded) else target
    signature = signature_of(owner) if owner is not None else None
    if signature is None:
        return [] if owner is None else None
    parameters = signature.parameters.values()
    return (
        None if any(each.kind in VARIADIC for each in parameters) else [each.name for each in parameters]
    )


def parameter_names(target: Callee) -> list[str]:
    """Return the parameters of a call."""
    parameters = target.signature.parameters.values() if target.signature is not None else ()
    return [each.name for each in parameters if each.kind not in VARIADIC]


def usual_inputs(target: Callee, init: Texts) -> Iterator[list[str]]:
    """Yield the inputs that attention usually has, with another size for every axis if possible."""
    parameters = target.signature.parameters.values() if target.signature is not None else ()
    required = [
        each.name for each in parameters if each.default is Parameter.empty and each.kind not in VARIADIC
    ]
    roles = {name: role_of(name) for name in required}
    if not required or None in roles.values() or "mask" in roles.values():
        return
    width = _width(init)
    if target.owner is not None:
        for n_K in ("n_K:7", "n_Q"):
            yield [
                f"{name}=n_batch:2,{n_K if role in ('K', 'V') else 'n_Q:5'},{width}"
                for name, role in roles.items()
            ]
        return
    for lead in ("n_batch:2,n_head:3,", "n_batch:2,", ""):
        for n_K, d_V in (("n_K:7", "d_V:6"), ("n_K:7", "d_head"), ("n_Q", "d_head")):
            axes = {
                "Q": "n_Q:5,d_head:8",
                "x": "n_Q:5,d_head:8",
                "K": f"{n_K},d_head:8",
                "V": f"{n_K},{d_V}",
            }
            yield [f"{name}={lead}{axes[str(role)]}" for name, role in roles.items()]


def _width(init: Texts) -> str:
    """Return the name of the constructor's argument that is the width of the input, or a width."""
    if isinstance(init, Mapping):
        values = {name: str(each) for name, each in init.items()}
    else:
        values = dict(each.split("=", 1) for each in init if "=" in each)
    names = [name for name, value in values.items() if WIDTH.search(name) and not HEADS.search(name)]
    names = [name for name in names if values[name].isdigit()]
    return max(names, key=lambda name: int(values[name])) if names else "d_feat:64"
