"""A side that is the user's code: a class or function, with inputs given, or the usual ones."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from inspect import Parameter
from typing import Any

from attnscope.errors import AttnscopeError, OptionError, SizeError, SourceError
from attnscope.implementations.implementation import Side, described, tensors_of
from attnscope.implementations.options import Pairing, by_name
from attnscope.implementations.parameters import role_of
from attnscope.implementations.position_embeddings import add_position_embeddings
from attnscope.user_code.examples import HEADS, WIDTH
from attnscope.user_code.load import Loaded, load_target, title_of
from attnscope.user_code.signatures import VARIADIC, Callee, callee, signature_of
from attnscope.user_code.subject import Texts, read_subject


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
    return _fitting(loaded, title, pairing, shared)[1]


def fitting_inputs(target: Any, pairing: Pairing) -> Texts:
    """Return the inputs of a class or function that options name; without any, usual ones that fit.

    Args:
        target: the class or function, or its name.
        pairing: the options.

    Raises:
        AttnscopeError: it cannot be built, or the usual inputs do not fit.
    """
    return _fitting(load_target(target), title_of(target), pairing, ())[0]


def _fitting(
    loaded: Loaded, title: str, pairing: Pairing, shared: Collection[str]
) -> tuple[Texts, Side]:
    """Return inputs that fit, and the side with them; arguments as in `code_side`."""
    if pairing.inputs:
        return pairing.inputs, _with_shared(built_side(loaded, title, pairing), shared)
    failure: AttnscopeError | None = None
    columns = pairing.options.get("layout") == "columns"
    for usual in usual_inputs(callee(loaded, pairing.call), pairing.init, columns=columns):
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
            if isinstance(error.__cause__, SystemExit):  # whatever the inputs
                raise
            failure = failure or error
            continue
        return usual, side
    if failure is None:
        return (), built_side(loaded, title, pairing)
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
        cast = {id(each): _cast(each, pairing.dtype) for each in objects.values()}
        objects = {name: cast[id(each)] for name, each in objects.items()}
        inputs = {name: "None" if name in objects else each for name, each in inputs.items()}
    subject = read_subject(loaded, pairing.init, inputs, pairing.where, pairing.call, pairing.dtype)
    with described(title, (SystemExit,)):
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
    random = {id(each) for each in built.drawn}
    drawn = [name for name, each in values.items() if id(each) in random and name not in objects]
    side = Side(title, built.callable, values | objects, positional, module, subject.axes, drawn=drawn)
    if built.module is None and module is not None and loaded.object is not module:
        side = side.with_own_module()  # a method of a module that exists, which is not copied
    add_position_embeddings(side)
    side.initialise(pairing.seed)
    return side


INDICES = re.compile(r"(^|_)(pos|positions?)(_|$)", re.I)
"""Names of inputs that count the positions."""


def count_positions(side: Side) -> Side:
    """Let whole numbers that stand for positions, and were drawn, count 0, 1, 2, …, in place.

    A reference counts so, and takes no positions.
    """
    import torch

    for name, tensor in tensors_of(side).items():
        is_whole = not tensor.is_floating_point() and tensor.dtype != torch.bool
        if name in side.drawn and INDICES.search(name) and is_whole and tensor.dim():
            count = torch.arange(tensor.shape[-1], dtype=tensor.dtype)
            side.inputs[name] = count.expand(tensor.shape).clone()
            side.notices.append(f"{name} counts 0, 1, 2, …")
    return side


def _cast(value: Any, dtype: str) -> Any:
    """Return a given tensor in the dtype of the run, if it holds real numbers; others as they are."""
    import torch

    is_real = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.to(getattr(torch, dtype)) if is_real else value


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


def usual_inputs(target: Callee, init: Texts, *, columns: bool = False) -> Iterator[list[str]]:
    """Yield the inputs that attention usually has, with another size for every axis if possible.

    Args:
        target: the code.
        init: the arguments of its constructor.
        columns: whether the vectors of a function's inputs are columns, and not rows.
    """
    parameters = target.signature.parameters.values() if target.signature is not None else ()
    required = [
        each.name for each in parameters if each.default is Parameter.empty and each.kind not in VARIADIC
    ]
    roles = {name: role_of(name) for name in required}
    if not required or None in roles.values() or "mask" in roles.values():
        return
    module = _module_of(target.target)
    if target.owner is not None or module is not None:
        for width in _widths(init) if module is None else _widths_of(module):
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
            if columns:
                axes = {name: ",".join(reversed(each.split(","))) for name, each in axes.items()}
            yield [f"{name}={lead}{axes[str(role)]}" for name, role in roles.items()]


NUMBER = re.compile(r"(\w+) *= *(\d+)")
"""An argument that is a number, in the text of another: `n_embd=60` in `config=my:Config(n_embd=60)`."""


def _widths(init: Texts) -> list[str]:
    """List the widths that the input may have, the likeliest first.

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


def _widths_of(module: Any) -> list[str]:
    """List the widths that the inputs of an existing module may have, the likeliest first.

    That is the width of the first matrix that it has, as a projection stores it, or of another.
    """
    matrices = [each for each in module.parameters() if each.ndim == 2]
    stored = [each.shape[1] for each in matrices]
    others = [each.shape[0] for each in matrices]
    return [f"d_feat:{width}" for width in dict.fromkeys([*stored, *others, 64])]


def _fields(value: Any) -> list[tuple[str, int]]:
    """Return the whole numbers among the fields of an object, such as a configuration."""
    fields = vars(value) if hasattr(value, "__dict__") else {}
    return [(name, each) for name, each in fields.items() if type(each) is int]
