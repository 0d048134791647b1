"""Code that is called in parts, with a cache; and code that gets several texts in one row."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch

from attnscope.auditing.code.code import TEXT_IDS, TEXT_LIMITS, AuditedCode
from attnscope.auditing.code.masks import LENGTHS, PAIRS
from attnscope.auditing.code.runs import copied, named_tensors, parts_of
from attnscope.auditing.measure.difference import relative
from attnscope.auditing.result import BROKEN, HOLDS, UNDECIDED, Evidence, Property
from attnscope.base.errors import SourceError
from attnscope.base.spelling import spelled
from attnscope.code.load.signatures import signature_of
from attnscope.code.pairs.code import INDICES
from attnscope.code.pairs.implementation import tensors_of
from attnscope.code.pairs.rounding import EXACT

PAST = re.compile(r"(^|_)(past|cache)($|_)", re.I)
"""Names of parameters that take what an earlier call returned."""

OF_MODULE = ("use_cache", "start_pos")
"""Parameters of modules that keep a cache in themselves."""


def parameters_of(code: AuditedCode) -> list[str]:
    """Return the names of the parameters of the code."""
    called = code.runs.side.callable
    signature = signature_of(getattr(called, "forward", called))
    return [] if signature is None else list(signature.parameters)


def with_cache(code: AuditedCode) -> Property:
    """Test whether the second half, with what the first returned or left, is as in the whole."""
    names = parameters_of(code)
    past = next((name for name in names if PAST.search(name) and name != "use_cache"), None)
    keeps = [name for name in names if name in OF_MODULE and code.runs.side.module is not None]
    if past is None and not keeps:
        why = "the code has no parameter that takes what an earlier call returned, such as past"
        return Property("cache", UNDECIDED, spelled(cache=True), why)
    if bool(code.measured.triu(1).any()):
        why = "positions move earlier ones, so that a text in parts is another"
        return Property("cache", UNDECIDED, f"{past or keeps[0]} takes a cache", why)
    if past is None:
        return _with_kept(code, keeps[0], {})
    cut = code.n // 2
    more = {"use_cache": True} if "use_cache" in names else {}
    failure, found = "", list[tuple[float, int, str]]()
    try:
        out = code.runs.call(part_of(code, range(cut)) | {past: None} | more)
    except SourceError:  # it needs a cache from the first call on
        out = None
    for label, cache in () if out is None else _caches(out, code.out.name):
        try:
            rest = code.runs.call(part_of(code, range(cut, code.n)) | {past: cache} | more)
        except SourceError as error:
            failure = failure or f": {error.message}"
            continue
        both = torch.cat([_rows(code, out), _rows(code, rest)])
        if both.shape == code.before.shape:
            gaps = relative(code.before, both)
            found.append((float(gaps.max()), int(gaps.argmax()), label))
    if not found:
        return _with_kept(code, past, more, failure)
    gap, position, label = min(found)
    source = f"{past} takes {label} of the call before"
    return _judged(code, source, f"with {past} = {label} of the first {cut} positions", gap, position)


def _with_kept(code: AuditedCode, name: str, more: dict[str, Any], failure: str = "") -> Property:
    """Test it with a cache that the code updates in place: an argument, or one that its module keeps.

    `name` is the parameter that takes the cache; or `use_cache` or `start_pos`, of a module that keeps
    its cache in itself. `failure` says why no cache that a call returns was taken, and begins with a
    colon.
    """
    cut = code.n // 2
    values = {
        each: code.other(code.inputs[each], code.layout.axes[each], list(range(cut)))
        for each in code.changing.names
    }
    others, found = code.with_inputs(values), list[tuple[float, int, str]]()
    for label, start in _kept_caches(code, name, more):
        try:
            both, of_others = (_in_parts(each, start()) for each in (code, others))
        except SourceError:
            continue
        if both.shape != code.before.shape or both.shape != of_others.shape:
            continue
        if float(relative(both[cut:], of_others[cut:]).max()) > max(code.runs.rounding, EXACT):
            gaps = relative(code.before, both)
            found.append((float(gaps.max()), int(gaps.argmax()), label))
    if found:
        gap, position, label = min(found)
        text = f"with {label} that the first {cut} positions filled"
        return _judged(code, f"the code updates {label} in place", text, gap, position)
    if name in OF_MODULE:
        why = f"with {name}, the first positions move none of a later call: its module keeps no cache"
        return Property("cache", UNDECIDED, f"{name} takes a cache", why)
    why = f"{name} takes nothing of what a call returns{failure}"
    if not failure:
        why += ", and fills no empty dict or list that it reads; Python can give it an empty cache"
    return Property("cache", UNDECIDED, f"{name} takes a cache", why)


Call = Callable[[dict[str, Any], int], Any]
"""Calls code with inputs of some positions, and the number of positions before them."""


def _kept_caches(
    code: AuditedCode, name: str, more: dict[str, Any]
) -> Iterator[tuple[str, Callable[[], Call]]]:
    """Yield caches that the code may update in place, with their names; each starts empty."""
    runs = code.runs

    def in_itself() -> Call:
        own = replace(runs, side=runs.side.with_own_module())
        return lambda part, before: own.call(part | {name: before if name == "start_pos" else True})

    if name in OF_MODULE:
        yield "the cache of its module", in_itself
        return
    given = code.inputs.get(name)
    empty = [("a dict", {}), ("a list", [])] if given is None else [(f"the given {name}", given)]
    transformers = sys.modules.get("transformers")
    if given is None and transformers is not None:
        empty.append(("a DynamicCache", transformers.DynamicCache()))
    for label, value in empty:

        def in_argument(value: Any = value) -> Call:
            cache = deepcopy(value)
            return lambda part, _: runs.call(copied(part) | {name: cache} | more, copy=False)

        yield label, in_argument


def _in_parts(code: AuditedCode, call: Call) -> torch.Tensor:
    """Return the output of two calls by position: of the first half, and of the second."""
    cut = code.n // 2
    bounds = (range(cut), range(cut, code.n))
    return torch.cat([_rows(code, call(part_of(code, each), each.start)) for each in bounds])


def _judged(code: AuditedCode, source: str, text: str, gap: float, position: int) -> Property:
    """Judge whether a text in two parts is the whole, from the largest difference and its position."""
    if gap <= max(code.runs.rounding, EXACT):
        return Property("cache", HOLDS, source, f"{text}, the others are those of the whole")
    cut = code.n // 2
    evidence = Evidence(f"positions from {cut} on in a call of their own", position, gap, code.rounding)
    return Property("cache", BROKEN, source, f"{text}, position {position} is another one", evidence)


def part_of(code: AuditedCode, positions: range) -> dict[str, Any]:
    """Return the inputs of some positions; masks show the keys of all up to the last."""
    inputs, axes = dict(code.inputs), code.layout.axes
    masks = {each.name: each for each in code.masks}
    first, length = positions.start, len(positions)
    for name, tensor in tensors_of(code.runs.side).items():
        if name in masks:
            mask = masks[name]
            if mask.kind == LENGTHS:
                inputs[name] = torch.full_like(tensor, positions.stop)
                continue
            inputs[name] = inputs[name].narrow(mask.axes[-1], 0, positions.stop)
            if mask.kind == PAIRS:
                inputs[name] = inputs[name].narrow(mask.axes[0], first, length)
        elif name in code.changing.names or (INDICES.search(name) and tensor.shape[-1] == code.n):
            inputs[name] = inputs[name].narrow(axes.get(name, -1), first, length)
    return inputs


def _rows(code: AuditedCode, out: Any) -> torch.Tensor:
    """Return the output by position, wherever it is if a call returns more than before."""
    tensors = dict(named_tensors(out))
    tensor = tensors.get(code.out.name)
    return code.out.by_position(next(iter(tensors.values())) if tensor is None else tensor).detach()


def _caches(out: Any, main: str) -> Iterator[tuple[str, Any]]:
    """Yield what a call returns beside its output, with names: each part, and all of them."""
    parts = [(name, part) for name, part in parts_of(out) if name != main and part is not None]
    others = [(name, part) for name, part in parts if not main.startswith(name)]
    if others and "output[0]" in dict(others):
        others = others[1:]  # what becomes the output once a cache is returned
    yield from others
    if len(others) > 1:
        yield "what is returned beside the output", tuple(part for _, part in others)


def texts_of(code: AuditedCode) -> tuple[str, torch.Tensor] | None:
    """Return the input that marks texts, and the text at each position; None: there is none."""
    for name, tensor in tensors_of(code.runs.side).items():
        values = code.inputs[name]
        if TEXT_LIMITS.search(name) and tensor.dim() == 1:
            return name, torch.bucketize(torch.arange(code.n), values.long(), right=True)
        if TEXT_IDS.search(name) and tensor.shape[-1] == code.n:
            return name, values.reshape(-1, code.n)[0]
    return None


def lengths_of(texts: torch.Tensor) -> Sequence[int]:
    """Return how many positions each text has."""
    return texts.unique_consecutive(return_counts=True)[1].tolist()


def without_texts(code: AuditedCode) -> str:
    """Say what would mark texts in the inputs of the code."""
    for name in parameters_of(code):
        if TEXT_LIMITS.search(name):
            return f"{spelled(inputs=f'{name}=3<{code.n + 1}')} says where two texts begin and end"
        if TEXT_IDS.search(name):
            return f"{spelled(inputs=f'{name}=B,T<2')} says of which text each position is"
    return "the code has no input that says where texts begin, such as cu_seqlens"


def alone(code: AuditedCode, name: str, texts: torch.Tensor) -> bool | None:
    """Check whether each text is what it is in a row of its own; None if it cannot be run so."""
    before = code.before
    for text in texts.unique().tolist():
        own = texts == text
        values: Mapping[str, torch.Tensor] = {}
        if TEXT_LIMITS.search(name):
            values = {name: torch.tensor([0, int(own.sum())]).to(code.inputs[name])}
        others = (~own).nonzero().flatten().tolist()
        rows = code.with_inputs(values).without(others)
        if rows is None or rows.shape != before[own].shape:
            return None
        if float(relative(before[own], rows).max()) > max(code.runs.rounding, EXACT):
            return False
    return True
