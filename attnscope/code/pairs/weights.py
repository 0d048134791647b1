"""Copies the weights of one side to the other: which part of which tensor is W_Q, W_K, W_V, W_O."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import nn

from attnscope.base.errors import OptionError
from attnscope.base.spelling import spelled
from attnscope.code.pairs.pairing import WeightCopy
from attnscope.observe.operator_names import CONTRACTIONS
from attnscope.observe.operators.anatomy import Anatomy, Projection, leaf
from attnscope.observe.operators.chain import calls_before
from attnscope.observe.operators.follow import followed
from attnscope.observe.operators.products import product_of
from attnscope.observe.operators.projections import operand_of
from attnscope.observe.operators.tape import Tape


@dataclass(frozen=True)
class Slot:
    """A weight inside a parameter."""

    #: `W_Q` or `b_Q`, and so on.
    role: str
    parameter: str
    #: The flat index of each element: `out in`, or `out` for a bias.
    elements: torch.Tensor
    #: Which part of the parameter it is: `rows 0–767`.
    words: str


def slots_of(anatomy: Anatomy, module: nn.Module) -> dict[str, Slot]:
    """Return the weights and biases of the projections, and of norms of heads, by role."""
    found: list[Slot] = []
    for name, projection in anatomy.projections.items():
        found += _slots(name, projection, anatomy.tape, module)
    for name in "QKV":
        found += _norms(name, anatomy, module)
    slots = {slot.role: slot for slot in (*found, *_norm_before(anatomy, module))}
    used = {value.weight for value in anatomy.tape.values}
    return _with_idle(slots, {name: each for name, each in _tensors(module).items() if name not in used})


def _with_idle(slots: dict[str, Slot], idle: Mapping[str, torch.Tensor]) -> dict[str, Slot]:
    """Return the slots, with weights that were meant where one is used twice by mistake.

    In `k = self.query(x)`, the weight of Q is that of K, too, and `key.weight` is idle.
    """
    result = dict(slots)
    for role, slot in slots.items():
        letter = role[-1].lower()
        twins = [each for each in slots.values() if each.role != role and each.role[0] == role[0]]
        twins = [each for each in twins if each.parameter == slot.parameter]
        if not any(torch.equal(each.elements, slot.elements) for each in twins):
            continue
        own = [
            name
            for name, each in idle.items()
            if each.numel() == slot.elements.numel()
            and set(re.findall(r"[a-z]+", name.lower())) & _words_for(letter)
        ]
        if len(own) == 1:
            result[role] = replace(slot, parameter=own[0])
    return result


def _words_for(letter: str) -> set[str]:
    """Return the words that stand for Q, K or V in names of parameters."""
    long = {"q": ("query", "queries"), "k": ("key", "keys"), "v": ("value", "values")}
    return {letter, f"w{letter}", f"{letter}s", f"{letter}proj", *long.get(letter, ())}


def _norms(name: str, anatomy: Anatomy, module: nn.Module) -> Iterator[Slot]:
    """Yield the weights of norms of Q, K or V in a head, between the split and the product."""
    if f"{name}_split" not in anatomy.roles:
        return
    way = anatomy.way(f"{name}_split", name)
    width = anatomy.roles[name].tensor.shape[-1]
    known = _tensors(module)
    weights = (leaf(each) for value in way[1:] for each in value.parents)
    names = (each.weight for each in weights if each is not None and each.weight is not None)
    kept = [each for each in dict.fromkeys(names) if each in known and known[each].numel() == width]
    for i, parameter in enumerate(kept):
        yield Slot(f"norm_{name}" + "'" * i, parameter, torch.arange(width), "")


def _norm_before(anatomy: Anatomy, module: nn.Module) -> Iterator[Slot]:
    """Yield the weights of the norm of what Q is projected from, if there is one."""
    if "Q" not in anatomy.projections:
        return
    operand = operand_of(anatomy.projections["Q"]).value
    known, width = _tensors(module), operand.tensor.shape[-1]
    calls = calls_before(operand, through=lambda call: call.name not in CONTRACTIONS)
    found = (leaf(each) for call in calls for each in call.parents)
    names = dict.fromkeys(each.weight for each in found if each is not None and each.weight is not None)
    kept = [each for each in names if each in known and known[each].shape == (width,)]
    biases = [each for each in kept if re.search(r"bias|beta|shift", each.rpartition(".")[2])]
    for role, of_kind in (("b", biases), ("W", [each for each in kept if each not in biases])):
        if len(of_kind) == 1:
            yield Slot(f"norm_{role}", of_kind[0], torch.arange(width), "")


def _slots(name: str, projection: Projection, tape: Tape, module: nn.Module) -> Iterator[Slot]:
    weight = projection.weight
    matrix = _matrix(projection, tape)
    owner = module.get_submodule((weight.weight or "").rpartition(".")[0])
    if isinstance(owner, nn.Linear) and matrix.shape[0] == matrix.shape[1]:  # stored as `out in`
        matrix = torch.arange(weight.tensor.numel()).reshape(weight.tensor.shape)
    elements = matrix[projection.features]
    yield Slot(f"W_{name}", weight.weight or "", elements, _words(elements, weight.tensor.shape))
    whole = leaf(projection.bias) if projection.bias is not None else None
    if projection.bias is not None and whole is not None and whole.weight is not None:
        elements = followed(tape, whole)[projection.bias].long().reshape(-1)[projection.features]
        yield Slot(f"b_{name}", whole.weight, elements, _words(elements, whole.tensor.shape))


def _matrix(projection: Projection, tape: Tape) -> torch.Tensor:
    """Return the flat index of a weight's elements as `out in`."""
    call = projection.call
    places = followed(tape, projection.weight)
    used = next(each for each in reversed(call.parents) if each in places)
    at = places[used].long()
    if call.name == "einsum" and (product := product_of(call)) is not None:
        product = product if product.second.value is used else product.swapped()
        at = product.second_of(at)[0]
    elif call.name != "linear":
        at = at.mT
    return at.reshape(-1, at.shape[-1])


def _words(elements: torch.Tensor, shape: tuple[int, ...]) -> str:
    """Describe which part of a parameter some elements are.

    Elements are flat indices: `out in`, or `out` for a bias.
    """
    width = shape[-1]
    if elements.ndim == 1:
        used, kind, is_transposed = elements, "elements", False
    else:
        is_transposed = elements.shape[1] > 1 and int(elements[0, 1] - elements[0, 0]) != 1
        used = elements[:, 0] % width if is_transposed else elements[:, 0] // width
        kind = "columns" if is_transposed else "rows"
    whole = elements.numel() == prod(shape)
    first, last = int(used.min()), int(used.max())
    if whole:
        return "transposed" if is_transposed else ""
    if last - first + 1 == used.numel():
        return f"{kind} {first}–{last}"
    return f"{used.numel()} {kind} between {first} and {last}"


def copy_weights(
    of_a: nn.Module,
    of_b: nn.Module,
    anatomies: Callable[[], tuple[Anatomy, Anatomy]],
    stated: Mapping[str, str],
    titles: tuple[str, str],
) -> list[WeightCopy]:
    """Copy the weights of one module into another, and return what went where.

    Weights of one name and shape are copied as they are if both modules have the same ones; otherwise
    the projections are copied by role, and others by name, or by a shape that only one has. Anatomies
    are asked for only where roles are needed. `stated` has parameters of b by those of a, or the other
    way round.
    """
    ours, theirs = _tensors(of_a), _tensors(of_b)
    done: list[WeightCopy] = []
    used: set[str] = set()
    by_role: dict[str, str] = {}
    for name, other in stated.items():
        first, second = (name, other) if name in ours and other in theirs else (other, name)
        if first in ours and second in theirs:
            _copy_whole(ours, theirs, first, second, titles)
            done.append(WeightCopy(None, first, "", second, "", tuple(theirs[second].shape)))
            used.add(second)
        elif any(map(ROLE.fullmatch, (name, other))) and {name, other} & {*ours, *theirs}:
            by_role[name] = other
        else:
            raise OptionError(
                f"{spelled('map', f'{name}={other}')}: {titles[0]} has {', '.join(ours)};"
                f" {titles[1]} has {', '.join(theirs)}."
            )
    shapes_a, shapes_b = ({name: each.shape for name, each in own.items()} for own in (ours, theirs))
    if shapes_a == shapes_b:
        for name in ours:
            if name not in used:
                theirs[name].data.copy_(ours[name])
                done.append(WeightCopy(None, name, "", name, "", tuple(ours[name].shape)))
        return done
    if used == set(theirs):
        return done
    a, b = anatomies()
    slots = slots_of(a, of_a) | _stated_slots(by_role, ours)
    slots_of_b = slots_of(b, of_b) | _stated_slots(by_role, theirs)
    done += _by_role(slots, slots_of_b, ours, theirs, used, titles)
    copied = {each.a for each in done} | {
        each.parameter for role, each in slots.items() if f"W_{role[-1]}" in slots_of_b
    }
    idle = set(theirs) - {value.weight for value in b.tape.values}  # the code does not use them
    left = {name: each for name, each in ours.items() if name not in copied}
    filled = {each.b for each in done} | used | idle
    free = {name: each for name, each in theirs.items() if name not in filled}
    kinds = {name: _kind(of_a, name) for name in left}, {name: _kind(of_b, name) for name in free}
    done += _others(left, free, kinds, titles)
    _check_left(
        _Left.of(a, slots, slots_of_b, ours, {each.a for each in done}, titles[0]),
        _Left.of(b, slots_of_b, slots, theirs, {each.b for each in done} | used, titles[1]),
    )
    return done


ROLE = re.compile(r"[Wb]_[QKVO]")
"""A role that `--map` may name in place of a parameter."""


def _stated_slots(by_role: Mapping[str, str], tensors: Mapping[str, torch.Tensor]) -> dict[str, Slot]:
    """Return the whole parameters of one side that the user says have a role."""
    pairs = [pair for each in by_role.items() for pair in (each, each[::-1])]
    return {
        role: Slot(role, name, torch.arange(tensors[name].numel()).reshape(tensors[name].shape), "")
        for name, role in pairs
        if name in tensors
    }


@dataclass(frozen=True)
class _Left:
    """The weights of one side that have no counterpart, though they change the output."""

    title: str
    #: Their number of elements by name.
    matrices: dict[str, int]
    #: Likewise of the roles, such as `W_K`, that only this side is known to have.
    roles: dict[str, int]

    @classmethod
    def of(
        cls,
        anatomy: Anatomy,
        own: Mapping[str, Slot],
        others: Mapping[str, Slot],
        tensors: Mapping[str, torch.Tensor],
        matched: set[str],
        title: str,
    ) -> _Left:
        """Find them."""
        calls = calls_before(anatomy.output, through=lambda _: True)
        used = {each.weight for call in calls for each in call.parents}
        free = {name: each for name, each in tensors.items() if name in used and name not in matched}
        known = {each.parameter for each in own.values()}
        matrices = {name: each.numel() for name, each in free.items() if each.ndim > 1 and each.any()}
        roles = {
            role: each.elements.numel()
            for role, each in own.items()
            if role.startswith("W_") and role not in others and each.parameter in free
        }
        return cls(title, {name: n for name, n in matrices.items() if name not in known}, roles)


def _check_left(*sides: _Left) -> None:
    """Check that no weight without a counterpart may be one that the other side has, too."""
    for one, other in (sides, sides[::-1]):
        for name, n in (one.roles | one.matrices).items():
            near = [each for each, size in other.matrices.items() if size == n]
            if near:
                which, verb = ("which of", " is") if len(near) > 1 else ("is", "")
                raise OptionError(
                    f"{one.title} and {other.title} are not comparable: {which} {', '.join(near)} of"
                    f" {other.title}{verb} {name} of {one.title}?",
                    hint=spelled(map=f"{near[0]}={name}"),
                )


def _kind(module: nn.Module, name: str) -> str:
    """Return `norm` or the class of the module that a parameter belongs to; empty if it is the whole."""
    owner = name.rpartition(".")[0]
    kind = type(module.get_submodule(owner)).__name__ if owner else ""
    return "norm" if "norm" in kind.lower() else kind


def _tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    return dict(module.named_parameters())


def _copy_whole(
    ours: Mapping[str, torch.Tensor],
    theirs: Mapping[str, torch.Tensor],
    first: str,
    second: str,
    titles: tuple[str, str],
) -> None:
    """Copy one parameter to another, transposed if only that fits."""
    source, target = ours[first], theirs[second]
    if source.shape != target.shape and source.ndim == 2 and source.mT.shape == target.shape:
        source = source.mT
    if source.shape != target.shape:
        shapes = ["×".join(map(str, each.shape)) for each in (source, target)]
        raise OptionError(
            f"{first} of {titles[0]} is {shapes[0]}, and {second} of {titles[1]} is {shapes[1]}.",
            hint=f"{spelled(map='NAME=NAME')}, with two weights of one shape",
        )
    target.data.copy_(source.data)


def _by_role(
    first: Mapping[str, Slot],
    second: Mapping[str, Slot],
    ours: Mapping[str, torch.Tensor],
    theirs: Mapping[str, torch.Tensor],
    used: set[str],
    titles: tuple[str, str],
) -> list[WeightCopy]:
    """Copy weights and biases by role; a bias that only b has becomes zero, and is added to `used`."""
    done = []
    zeroed = set[str]()
    for role, target in second.items():
        source = first.get(role)
        if target.parameter in used:
            continue
        flat = theirs[target.parameter].data.view(-1)
        if source is None:
            if role.startswith("b_") and f"W_{role[-1]}" in first:
                flat[target.elements.reshape(-1)] = 0
                zeroed.add(target.parameter)
            continue
        if source.elements.shape != target.elements.shape:
            shapes = ["×".join(map(str, each.elements.shape)) for each in (source, target)]
            raise OptionError(
                f"{role} is {shapes[0]} in {titles[0]} ({source.parameter}), and {shapes[1]}"
                f" in {titles[1]} ({target.parameter}).",
                hint=f"{spelled(map='NAME=NAME')}, or sizes that agree",
            )
        values = ours[source.parameter].data.reshape(-1)[source.elements.reshape(-1)]
        flat[target.elements.reshape(-1)] = values.to(flat.dtype)
        in_a, in_b = (source.parameter, source.words), (target.parameter, target.words)
        shape = tuple(target.elements.shape)
        done.append(WeightCopy(role, *in_a, *in_b, shape, source.elements, target.elements))
    used |= zeroed
    return done


def _others(
    left: Mapping[str, torch.Tensor],
    free: Mapping[str, torch.Tensor],
    kinds: tuple[Mapping[str, str], Mapping[str, str]],
    titles: tuple[str, str],
) -> list[WeightCopy]:
    """Copy the other weights: by name, or by a shape that only one on each side has.

    Kinds are of the modules that parameters belong to: a norm's weight is not a projection's bias.
    """
    done: list[WeightCopy] = []
    for name, target in free.items():
        shaped, rivals = (
            [
                other
                for other, tensor in tensors.items()
                if other not in taken
                and tensor.shape == target.shape
                and _may_be(of_other[other], kinds[1][name])
            ]
            for tensors, taken, of_other in (
                (left, {each.a for each in done}, kinds[0]),
                (free, {each.b for each in done}, kinds[1]),
            )
        )
        choice = [other for other in shaped if other == name]
        for n_parts in (2, 1):  # `norm.weight`, then `weight`
            if not choice:
                alike = [other for other in shaped if _ends_alike(other, name, n_parts)]
                same = [other for other in rivals if _ends_alike(other, name, n_parts)]
                choice = alike if len(alike) == len(same) == 1 else []
        if not choice and len(shaped) == len(rivals) == 1:
            choice = shaped
        if not choice and shaped:
            raise OptionError(
                f"{name} of {titles[1]} may be any of {', '.join(shaped)} of {titles[0]}: they have"
                " one shape.",
                hint=spelled(map=f"{name}={shaped[0]}"),
            )
        if choice:
            target.data.copy_(left[choice[0]].data)
            done.append(WeightCopy(None, choice[0], "", name, "", tuple(target.shape)))
    return done


def _may_be(kind: str, other: str) -> bool:
    """Check whether parameters of two kinds of modules may be the same: only norms are distinguished."""
    return not kind or not other or (kind == "norm") == (other == "norm")


def _ends_alike(name: str, other: str, n_parts: int) -> bool:
    """Check whether the last parts of two dotted names are the same."""
    return name.split(".")[-n_parts:] == other.split(".")[-n_parts:]
