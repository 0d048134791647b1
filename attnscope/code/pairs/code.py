"""A side that is the user's code: a class or function, with inputs given, or the usual ones."""

from __future__ import annotations

import inspect
import re
import sys
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from inspect import Parameter
from pathlib import Path
from typing import Any

import torch

from attnscope.base.errors import AttnscopeError, OptionError, SizeError, SourceError
from attnscope.base.options import Texts
from attnscope.base.spelling import spelled
from attnscope.base.units import counted
from attnscope.code.load.examples import HEADS, WIDTH
from attnscope.code.load.load import Loaded, load_target, title_of
from attnscope.code.load.signatures import VARIADIC, Callee, callee, module_of, signature_of
from attnscope.code.load.subject import read_subject
from attnscope.code.pairs.implementation import Side, described, tensors_of
from attnscope.code.pairs.pairing import Pairing, by_name, role_of


def code_side(loaded: Loaded, title: str, pairing: Pairing, *, shared: Collection[str] = ()) -> Side:
    """Build a class or function, and draw its inputs; without any, the usual ones are tried.

    `shared` says which of `Q`, `K` and `V` get one tensor, because the other side takes only one.
    """
    return _fitting(loaded, title, pairing, shared)[1]


def fitting_inputs(target: Any, pairing: Pairing) -> Texts:
    """Return the inputs of a class or function that options name; without any, usual ones that fit."""
    return _fitting(load_target(target), title_of(target), pairing, ())[0]


def _fitting(
    loaded: Loaded, title: str, pairing: Pairing, shared: Collection[str]
) -> tuple[Texts, Side]:
    """Return inputs that fit, and the side with them; arguments as in `code_side`.

    The inputs that options name stay as they are; others of Q, K and V are the usual ones.
    """
    called = callee(loaded, pairing.call)
    stated = by_name(pairing.inputs)
    if stated and not _is_incomplete(called, stated):
        return pairing.inputs, _with_shared(built_side(loaded, title, pairing), shared)
    failure: AttnscopeError | None = None
    columns = pairing.options.get("layout") == "columns"
    for inputs in usual_inputs(called, pairing.init, columns=columns):
        usual: Texts = {**_beside(by_name(inputs), stated), **stated} if stated else inputs
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
        hint=f"{spelled(inputs='NAME=AXES')} for each input",
    )


def _with_shared(side: Side, roles: Collection[str]) -> Side:
    """Give the inputs of some roles one tensor, that of the first."""
    names = [name for name in tensors_of(side) if role_of(name) in roles]
    for name in names[1:]:
        first, other = side.inputs[names[0]], side.inputs[name]
        if first.shape != other.shape:
            shapes = ["×".join(map(str, each.shape)) for each in (first, other)]
            raise SizeError(
                f"{names[0]} and {name} of {side.title} are {shapes[0]} and {shapes[1]}; the other side"
                " takes one tensor for both.",
                hint=spelled(inputs=f"{name}={names[0]}"),
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
    subject = read_subject(
        loaded, pairing.init, inputs, pairing.where, pairing.call, pairing.dtype, pairing.draw
    )
    with described(title, (SystemExit,)):
        built = subject.build(seed=pairing.seed)
    args = iter(built.args)
    positional = [each.label for each in subject.inputs if each.name is None]
    values = {
        each.label: next(args) if each.name is None else built.kwargs[each.name]
        for each in subject.inputs
    }
    module = built.module or module_of(built.callable)
    random = {id(each) for each in built.drawn}
    drawn = [name for name, each in values.items() if id(each) in random and name not in objects]
    axes = {  # a name that is customary alone says nothing of what the code does with the axis
        label: axes and tuple("" if axis in subject.guessed else axis for axis in axes)
        for label, axes in subject.axes.items()
    }
    side = Side(title, built.callable, values | objects, positional, module, axes, drawn=drawn)
    if built.module is None and module is not None and loaded.object is not module:
        side = side.with_own_module()  # a method of a module that exists, which is not copied
    _add_position_embeddings(side)
    side.initialise(pairing.seed)
    return side


POSITIONS = "position_embeddings"


def _add_position_embeddings(side: Side) -> None:
    """Add the cosines and sines that a module takes as `position_embeddings`, if they are not given.

    The module's file has one class of rotary positions, which is built from the module's configuration.
    """
    module, config = side.module, getattr(side.module, "config", None)
    if module is None or config is None or side.inputs.get(POSITIONS) is not None:
        return
    if side.callable is not module or POSITIONS not in inspect.signature(module.forward).parameters:
        return
    file = sys.modules[type(module).__module__]
    classes = [
        each
        for name, each in vars(file).items()
        if name.endswith("RotaryEmbedding") and getattr(each, "__module__", "") == file.__name__
    ]
    states = [each for each in tensors_of(side).values() if each.is_floating_point() and each.ndim == 3]
    if len(classes) != 1 or not states:
        return
    positions = torch.arange(states[0].shape[1])[None]
    with torch.no_grad():
        side.inputs[POSITIONS] = classes[0](config)(states[0], positions)
    side.notices.append(f"{side.title} gets {POSITIONS} of {classes[0].__name__}, for positions from 0")


INDICES = re.compile(r"(^|_)(pos|positions?)(_|$)", re.I)
"""Names of inputs that count the positions."""


def count_positions(side: Side) -> Side:
    """Let whole numbers that stand for positions, and were drawn, count 0, 1, 2, …, in place.

    A reference counts so, and takes no positions.
    """
    for name, tensor in tensors_of(side).items():
        is_whole = not tensor.is_floating_point() and tensor.dtype != torch.bool
        if name in side.drawn and INDICES.search(name) and is_whole and tensor.dim():
            count = torch.arange(tensor.shape[-1], dtype=tensor.dtype)
            side.inputs[name] = count.expand(tensor.shape).clone()
            side.notices.append(f"{name} counts 0, 1, 2, …")
    return side


def _cast(value: Any, dtype: str) -> Any:
    """Return a given tensor in the dtype of the run, if it holds real numbers; others as they are."""
    is_real = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.to(getattr(torch, dtype)) if is_real else value


def constructor_names(target: Loaded, call: str | None) -> list[str] | None:
    """Return the parameters of a class's constructor; None if it takes any, or is a function."""
    owner = callee(target, call).owner
    signature = signature_of(owner) if owner is not None else None
    if signature is None:
        return [] if owner is None else None
    parameters = signature.parameters
    is_open = any(each.kind in VARIADIC for each in parameters.values())
    return None if is_open else list(parameters)


def parameter_names(target: Callee) -> list[str]:
    """Return the parameters of a call."""
    return [each.name for each in _parameters(target)]


def _parameters(target: Callee) -> list[Parameter]:
    parameters = target.signature.parameters.values() if target.signature is not None else ()
    return [each for each in parameters if each.kind not in VARIADIC]


def usual_inputs(target: Callee, init: Texts, *, columns: bool = False) -> Iterator[list[str]]:
    """Yield the inputs that attention usually has, with another size for every axis if possible.

    If `columns`, the vectors of a function's inputs are columns, and not rows.
    """
    roles = {name: role_of(name) for name in _required(target)}
    if not roles or None in roles.values() or "mask" in roles.values():
        return
    module = module_of(target.target)
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


def _is_incomplete(target: Callee, stated: Mapping[str, Any]) -> bool:
    """Check whether inputs by name leave out some of Q, K and V, of which the usual ones are known."""
    names = parameter_names(target)
    known = [each for each in _required(target) if role_of(each) not in (None, "mask")]
    return all(each in names for each in stated) and any(each not in stated for each in known)


def _required(target: Callee) -> list[str]:
    """Return the parameters of a call that have no default."""
    return [each.name for each in _parameters(target) if each.default is Parameter.empty]


OF_KEYS = ("K", "V", "context")
"""The roles of inputs that have a position for each key."""


def _beside(usual: Mapping[str, str], stated: Mapping[str, Any]) -> dict[str, str]:
    """Return the usual inputs whose names are not stated, with axes that fit to those that are.

    Q, K and V have the same width and leading axes. The last axes of a mask are queries and keys.
    """
    texts = ",".join(each for each in stated.values() if isinstance(each, str))
    n = {"Q": "n_Q:5", "K": "n_K:7"}  # the axis of queries, and of keys
    axes = {name: _axes_of(each) for name, each in stated.items()}
    masks = [each for name, each in axes.items() if role_of(name) == "mask"]
    vectors = {name: each for name, each in axes.items() if name in usual and len(each) > 1}
    for axis, of in [(mask[-1], "K") for mask in masks] + [
        (mask[-2], "Q") for mask in masks if mask[1:]
    ]:
        if axis != "1":
            n[of] = axis if axis.isdigit() or f"{axis}:" in texts else f"{axis}:{n[of][-1]}"
    for name, each in vectors.items():
        n["K" if role_of(name) in OF_KEYS else "Q"] = each[-2]
    if n["Q"] == "7" and n["K"] == "n_K:7":
        n["K"] = "n_K:9"
    result = {}
    for name in (each for each in usual if each not in stated):
        *lead, position, width = usual[name].split(",")
        if vectors:
            *lead, _, width = next(iter(vectors.values()))
        of_keys = role_of(name) in OF_KEYS and position != "n_Q"
        result[name] = ",".join([*lead, n["K" if of_keys else "Q"], width])
    return result


def axis_of_keys(inputs: Mapping[str, Any]) -> tuple[str, int]:
    """Return the name and the size of the axis of keys in inputs; an empty name if it has none."""
    ranked = sorted(inputs, key=lambda name: role_of(name) not in OF_KEYS)
    axes = [_axes_of(inputs[name]) for name in ranked if role_of(name) not in (None, "mask")]
    name = axes[0][-2] if axes and len(axes[0]) > 1 else ""
    texts = ",".join(each for each in inputs.values() if isinstance(each, str))
    size = re.search(rf"\b{re.escape(name)}:(\d+)", texts) if name else None
    return (name, int(size[1])) if size else ("", 0)


def _axes_of(value: Any) -> list[str]:
    """Return the axes of a specification, names without sizes; or the sizes of a tensor."""
    if not isinstance(value, str):
        return [str(size) for size in getattr(value, "shape", ())]
    parts = re.split(r"[@<]", value)[0].split(",")
    return [part.strip().partition(":")[0] for part in parts]


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
        own = vars(value).items() if hasattr(value, "__dict__") else ()  # as of a configuration
        numbers = [(name, each) for name, each in own if type(each) is int]
        fields = NUMBER.findall(value) if isinstance(value, str) else numbers
        sizes = {name: (str(size), int(size)) for name, size in fields} | sizes
    sizes = {name: each for name, each in sizes.items() if each[1] > 1 and not HEADS.search(name)}
    ranked = sorted(sizes, key=lambda name: (not WIDTH.search(name), -sizes[name][1]))
    other = "d:64" if "d_feat" in items else "d_feat:64"  # a size of its own
    return list(dict.fromkeys([*(sizes[name][0] for name in ranked), other]))


def _widths_of(module: Any) -> list[str]:
    """List the widths that the inputs of an existing module may have, the likeliest first.

    That is the width of the first matrix that it has, as a projection stores it, or of another.
    """
    matrices = [each for each in module.parameters() if each.ndim == 2]
    stored = [each.shape[1] for each in matrices]
    others = [each.shape[0] for each in matrices]
    return [f"d_feat:{width}" for width in dict.fromkeys([*stored, *others, 64])]


def name_of(side: Any) -> str:
    """Name a side as the user does: by what is written, or by the name of a function or class."""
    return str(side) if isinstance(side, Path) else title_of(side)


def inputs_by_name(target: Any, inputs: Any, call: str | None = None) -> Texts:
    """Return inputs by the parameters that take them; specifications alone are returned as they are."""
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
