"""A side that is the user's code: a class or function, with inputs given, or the usual ones."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from inspect import Parameter
from typing import Any

from attnscope.comparison.sides.pairing import Pairing, by_name
from attnscope.comparison.sides.parameters import role_of
from attnscope.comparison.sides.side import Side, tensors_of
from attnscope.errors import AttnscopeError, OptionError, SizeError, SourceError
from attnscope.tracing.target.examples import HEADS, WIDTH
from attnscope.tracing.target.load import Loaded
from attnscope.tracing.target.signatures import VARIADIC, Callee, callee, signature_of
from attnscope.tracing.target.subject import Texts, read_subject


def code_side(loaded: Loaded, title: str, pairing: Pairing, *, shared: Collection[str] = ()) -> Side:
    """Build a class or function, and draw its inputs; without any, the usual ones are tried.

    Args:
        loaded: the class or function.
        title: its name in messages.
        pairing: the options, with the constructor's arguments and inputs of this side.
        shared: which of `Q`, `K` and `V` get one tensor, because the other side takes only one.

    Raises:
        AttnscopeError: it cannot be built, or the usual inputs do not fit.
    """
    if pairing.inputs:
        return _with_shared(built_side(loaded, title, pairing), shared)
    failure: AttnscopeError | None = None
    for usual in usual_inputs(callee(loaded, pairing.call), pairing.init):
        try:
            side = _with_shared(built_side(loaded, title, replace(pairing, inputs=usual)), shared)
        except SizeError as error:
            failure = failure or error
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                side.run(pairing.seed)
        except SourceError as error:
            failure = failure or error
            continue
        return side
    if failure is None:
        return built_side(loaded, title, pairing)
    raise OptionError(
        f"the usual inputs do not fit {title}: {failure.message}",
        hint="--input NAME=AXES for each input",
    )


def _with_shared(side: Side, roles: Collection[str]) -> Side:
    """Give the inputs of some roles one tensor, that of the first.

    Raises:
        SizeError: their shapes differ.
    """
    names = [name for name in tensors_of(side) if role_of(name) in roles]
    for name in names[1:]:
        first, other = side.inputs[names[0]], side.inputs[name]
        if first.shape != other.shape:
            shapes = ["×".join(map(str, each.shape)) for each in (first, other)]
            raise SizeError(
                f"{names[0]} and {name} of {side.title} are {shapes[0]} and {shapes[1]}; the other side"
                " takes one tensor for both.",
                hint=f"--input {name}={names[0]}",
            )
        side.inputs[name] = first
    return side


def built_side(loaded: Loaded, title: str, pairing: Pairing) -> Side:
    """Build a class or function with the inputs that the options name."""
    inputs, objects = pairing.inputs, dict[str, Any]()
    if isinstance(inputs, Mapping):  # tensors and the like are passed as they are
        objects = {name: each for name, each in inputs.items() if not isinstance(each, str)}
        inputs = {name: "None" if name in objects else each for name, each in inputs.items()}
    subject = read_subject(loaded, pairing.init, inputs, pairing.where, pairing.call, pairing.dtype)
    built = subject.build(seed=pairing.seed)
    args, values = iter(built.args), {}
    positional = []
    for each in subject.inputs:
        if each.name is None:
            positional.append(each.label)
            values[each.label] = next(args)
        else:
            values[each.label] = built.kwargs[each.name]
    module = built.module or _module_of(built.callable)
    side = Side(title, built.callable, values | objects, positional, module, subject.axes)
    side.initialise(pairing.seed)
    return side


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
    if target.owner is not None:
        for width in _widths(init):
            for lead in ("n_batch:2,", ""):
                for n_K in ("n_K:7", "n_Q"):
                    n = {"Q": "n_Q:5", "x": "n_Q:5"}
                    yield [
                        f"{name}={lead}{n.get(str(role), n_K)},{width}" for name, role in roles.items()
                    ]
        return
    for lead in ("n_batch:2,n_head:3,", "n_batch:2,", ""):
        for n_K, d_V in (("n_K:7", "d_V:6"), ("n_K:7", "d_head"), ("n_Q", "d_head")):
            axes = {
                "Q": "n_Q:5,d_head:8",
                "x": "n_Q:5,d_head:8",
                "K": f"{n_K},d_head:8",
                "context": f"{n_K},d_head:8",
                "V": f"{n_K},{d_V}",
            }
            yield [f"{name}={lead}{axes[str(role)]}" for name, role in roles.items()]


NUMBER = re.compile(r"(\w+) *= *(\d+)")
"""An argument that is a number, in the text of another: `n_embd=60` in `config=my:Config(n_embd=60)`."""


def _widths(init: Texts) -> list[str]:
    """Return what may be the width of the input, the likeliest first.

    These are the constructor's arguments and the fields of a configuration that are called like a
    width, from the largest on; then other numbers but those of heads; then any width.
    """
    items = by_name(init)
    sizes = {name: (name, int(str(each))) for name, each in items.items() if str(each).isdigit()}
    for value in items.values():
        fields = NUMBER.findall(value) if isinstance(value, str) else _fields(value)
        sizes = {name: (str(size), int(size)) for name, size in fields} | sizes
    sizes = {name: each for name, each in sizes.items() if each[1] > 1 and not HEADS.search(name)}
    ranked = sorted(sizes, key=lambda name: (not WIDTH.search(name), -sizes[name][1]))
    return list(dict.fromkeys([*(sizes[name][0] for name in ranked), "d_feat:64"]))


def _fields(value: Any) -> list[tuple[str, int]]:
    """Return the whole numbers among the fields of an object, such as a configuration."""
    fields = vars(value) if hasattr(value, "__dict__") else {}
    return [(name, each) for name, each in fields.items() if type(each) is int]
