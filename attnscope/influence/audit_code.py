"""Audit code: which properties it has, by how positions of its output move with those of its input."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from attnscope.comparison.sides.parameters import role_of
from attnscope.influence.code import Code
from attnscope.influence.measure.moved import EXACT, relative
from attnscope.influence.measure.promises import Promise
from attnscope.results.audit import (
    BROKEN,
    HOLDS,
    NOT_APPLICABLE,
    UNDECIDED,
    Audit,
    Evidence,
    Influence,
    Property,
)


def audit_code(code: Code, promise: Promise, names: Mapping[str, bool]) -> Audit:
    """Test properties by name, each with whether an option asks for it."""
    tests: dict[str, Callable[[bool], Property]] = {
        "causal": lambda requested: _causal(code, promise, requested),
        "bidirectional": lambda requested: _bidirectional(code, promise, requested),
        "window": lambda requested: _window(code, promise, requested),
        "coverage": lambda requested: _coverage(code, promise, requested),
        "padding": lambda requested: _padding(code, requested),
        "batch": lambda requested: _batch(code, requested),
    }
    properties = [tests[name](requested) for name, requested in names.items() if name in tests]
    kind = "class" if code.side.module is not None else "function"
    influences = [code.influence()]
    return Audit(code.title, kind, "float64", code.n, code.n_runs, properties, influences=influences)


def _wrong(
    code: Code, name: str, source: str, influence: Influence, pairs: list[tuple[int, int]],
    requested: bool, prefix: str = "",
) -> Property:  # fmt: skip
    """Return that a property is broken by pairs of positions, with the line where it begins."""
    assert influence.promised is not None
    query, key = max(pairs, key=lambda pair: influence.measured[pair[0]][pair[1]])
    still = [row for row, one in pairs if one == key]
    evidence = Evidence(
        f"position {key}",
        query,
        influence.measured[query][key],
        0.0,
        line=code.leak(key, still),
        influence=influence,
    )
    text = f"{prefix}changing position {key} moves position {query}; {len(pairs)} such pairs"
    return Property(name, BROKEN, source, text, evidence, requested)


def _causal(code: Code, promise: Promise, requested: bool) -> Property:
    if not promise.causal:
        return Property("causal", NOT_APPLICABLE, "--causal tests it", "", requested=requested)
    full = promise.without_limit()

    def later() -> tuple[Influence, list[tuple[int, int]]]:
        influence = code.influence(full)
        return influence, influence.wrong

    influence, pairs = later()
    if pairs:
        return _wrong(code, "causal", promise.source, influence, pairs, requested)
    with code.in_training() as differs:
        influence, pairs = later() if differs else (influence, [])
        if pairs:
            return _wrong(code, "causal", promise.source, influence, pairs, requested, "in training, ")
    text = f"changing each of {code.n} positions moves none before it"
    return Property("causal", HOLDS, promise.source, text, requested=requested)


def _bidirectional(code: Code, promise: Promise, requested: bool) -> Property:
    name = "bidirectional"
    if promise.causal or not requested:
        why = "--causal excludes it" if promise.causal else "--bidirectional tests it"
        return Property(name, NOT_APPLICABLE, why, "", requested=requested)
    influence = code.influence(promise)
    measured = torch.tensor(influence.measured)
    for side, part in (("later", measured.triu(1)), ("earlier", measured.tril(-1))):
        if not bool(part.any()):
            text = f"no position moves when {side} positions change"
            evidence = Evidence(f"{side} positions", 0, 0.0, 0.0, influence=influence)
            return Property(name, BROKEN, "--bidirectional", text, evidence, requested)
    text = "positions move when earlier or later ones change"
    return Property(name, HOLDS, "--bidirectional", text, requested=requested)


def _window(code: Code, promise: Promise, requested: bool) -> Property:
    if promise.limit is None:
        return Property(
            "window", NOT_APPLICABLE, "--window or --chunk tests it", "", requested=requested
        )
    reach = _reach(code, promise)
    if reach.limit is not None and reach.limit >= code.n:
        why = f"{code.n} positions do not reach beyond {reach.limit}"
        return Property("window", UNDECIDED, promise.source, why, requested=requested)
    influence = code.influence(reach)
    pairs = [(query, key) for query, key in influence.wrong if not promise.causal or key <= query]
    if pairs:
        return _wrong(code, "window", promise.source, influence, pairs, requested)
    text = f"changing each of {code.n} positions moves none outside"
    if code.depth > 1:
        text += f" of {reach.limit} through {code.depth} layers"
    return Property("window", HOLDS, promise.source, text, requested=requested)


def _reach(code: Code, promise: Promise) -> Promise:
    """Return what is visible through all layers: W − 1 positions further for each."""
    if promise.window is None or code.depth == 1:
        return promise
    window = promise.window + (code.depth - 1) * (promise.window - 1)
    return Promise(promise.source, promise.causal, window, promise.chunk, promise.prefix, promise.sinks)


def _coverage(code: Code, promise: Promise, requested: bool) -> Property:
    influence = code.influence(_reach(code, promise))
    assert influence.promised is not None
    missing = [
        (query, key)
        for query, row in enumerate(influence.promised)
        for key, visible in enumerate(row)
        if visible and influence.measured[query][key] == 0
    ]
    if missing and not (requested or promise.limit is not None):
        return Property("coverage", NOT_APPLICABLE, "--coverage or --window tests it", "")
    if missing:
        query, key = missing[0]
        text = f"changing position {key} does not move position {query}; {len(missing)} such pairs"
        evidence = Evidence(f"position {key}", query, 0.0, 0.0, influence=influence)
        return Property("coverage", BROKEN, promise.source, text, evidence, requested)
    text = f"each of {code.n} positions moves every one that it should"
    return Property("coverage", HOLDS, promise.source, text, requested=requested)


def _batch(code: Code, requested: bool) -> Property:
    source = "the first axis is the batch"
    inputs, output = code.side.inputs, code.output()
    names = [name for name, axis in code.batch.items() if inputs[name].shape[axis] > 1]
    sizes = {inputs[name].shape[0] for name in names}
    if len(sizes) != 1 or output.dim() < 3 or output.shape[0] not in sizes:
        why = "inputs and output have no batch of two or more sequences"
        return Property("batch", NOT_APPLICABLE, why, "", requested=requested)
    changed = {name: code.other(inputs[name], 0, [1]) for name in names if role_of(name) != "mask"}
    gap = float(relative(output[:1].flatten(1), code.output(changed)[:1].flatten(1)).max())
    if gap > EXACT:
        text = "exchanging sequence 1 moves sequence 0"
        evidence = Evidence("sequence 1", 0, gap, 0.0)
        return Property("batch", BROKEN, source, text, evidence, requested)
    text = "exchanging the other sequence moves nothing"
    return Property("batch", HOLDS, source, text, requested=requested)


def _padding(code: Code, requested: bool) -> Property:
    masks = [name for name in code.axes if role_of(name) == "mask"]
    if not masks or not requested:
        why = "no input is a mask" if not masks else "--padding tests it"
        status = UNDECIDED if requested else NOT_APPLICABLE
        return Property("padding", status, why, "", requested=requested)
    name, n_pad = masks[0], 3
    mask, real = code.side.inputs[name], range(code.n - n_pad)
    if mask.shape[-1] != code.n:
        why = f"the last axis of {name} has {mask.shape[-1]} elements, and there are {code.n} positions"
        return Property("padding", UNDECIDED, why, "", requested=requested)
    padded = list(range(code.n - n_pad, code.n))
    for meaning, visible, hidden in _meanings(mask):
        values = torch.full_like(mask, visible)
        values[..., padded] = hidden
        before = code.rows({name: values})
        after = code.rows(code.changed(padded) | {name: values})
        if bool((relative(before, after)[list(real)] <= EXACT).all()):
            text = f"changing {n_pad} positions that {name} hides ({meaning}) moves no other"
            return Property("padding", HOLDS, f"{name} hides positions", text, requested=requested)
    text = f"changing positions that {name} hides moves others, whether True means real or padding"
    evidence = Evidence(f"{n_pad} padded positions", 0, 0.0, 0.0)
    return Property("padding", BROKEN, f"{name} hides positions", text, evidence, requested)


def _meanings(mask: torch.Tensor) -> list[tuple[str, Any, Any]]:
    """Return what a mask may mean, with the values of visible and of hidden positions."""
    if mask.is_floating_point():
        return [("added", 0.0, float("-inf")), ("1 is real", 1.0, 0.0), ("1 is padding", 0.0, 1.0)]
    return [("True is real", 1, 0), ("True is padding", 0, 1)]
