"""Audit code: which properties it has, by how positions of its output change with those of its input."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from attnscope.attention import masks
from attnscope.auditing.code.code import AuditedCode, code_of
from attnscope.auditing.code.layout import is_number
from attnscope.auditing.code.masks import PAIRS, Mask, stated_masks
from attnscope.auditing.code.parts import (
    alone,
    lengths_of,
    parameters_of,
    texts_of,
    with_cache,
    without_texts,
)
from attnscope.auditing.code.runs import CodeOutput
from attnscope.auditing.expected import ExpectedMask, StatedMask, mask_of_options, read_stated_mask
from attnscope.auditing.measure.difference import relative
from attnscope.auditing.measure.leak import Cause, too_large
from attnscope.auditing.options import AuditRun, CodeInput, Properties
from attnscope.auditing.result import (
    BROKEN,
    HOLDS,
    MEASURED,
    NOT_APPLICABLE,
    UNDECIDED,
    Audit,
    Evidence,
    Influence,
    Property,
)
from attnscope.base.errors import OptionError, SizeError
from attnscope.base.options import inputs_of
from attnscope.base.process.random_state import kept_global_random_state
from attnscope.base.spelling import spelled
from attnscope.base.units import counted, few
from attnscope.code.load.load import load_target
from attnscope.code.pairs.code import inputs_by_name
from attnscope.code.pairs.pairing import Pairing
from attnscope.code.pairs.rounding import EXACT
from attnscope.model.files.indices import enumerated

OF_MODELS = {"kernels": "code runs with the kernel that it calls"}
"""Why some properties of models are not tested in code."""

NEED_MIXING = ("bidirectional", "coverage", "cache")
"""Properties that ask that positions move others."""


def audit_code(
    target: Any, args: Sequence[Any], inputs: CodeInput, properties: Properties, run: AuditRun
) -> Audit:
    """Test the properties of code; see `attnscope.audit`."""
    called_with = inputs_of(args, inputs.inputs)
    if properties.prefix and not (properties.causal or properties.window or properties.chunk):
        raise OptionError(
            f"{spelled('prefix')} is for first positions that are seen beside a causal mask or a"
            " window.",
            hint=spelled(causal=True, prefix="N"),
        )
    stated = read_stated_mask(properties.expect)
    values = inputs_by_name(target, () if called_with is None else called_with, inputs.call)
    pairing = Pairing(
        inputs.init or (), values, list(inputs.where or ()), inputs.call, seed=run.seed or 0
    )
    names = [inputs.mask_input] if isinstance(inputs.mask_input, str) else inputs.mask_input or ()
    loaded = load_target(target)
    options = {name for name, is_requested in properties.requested.items() if is_requested}
    switches = [spelled(**{each: True}) for each in ("causal", "bidirectional") if each in options]
    source = ", ".join([*switches, *([spelled("window")] if "window" in options else [])])
    with kept_global_random_state():
        code = code_of(
            loaded, pairing, inputs.positions, stated_masks(names), run.dtype,
            may_differ=options <= {"batch", "padding", "kernels"} and bool(options),
        )  # fmt: skip
        result = _audit(code, mask_of_options(properties, source), properties.requested, stated)
    if run.thorough:
        result.notices.append(
            f"{spelled('thorough')} changes nothing: of code, every position is changed anyway"
        )
    return result


def _audit(
    code: AuditedCode, expected: ExpectedMask, requested: dict[str, bool], stated: StatedMask | None
) -> Audit:
    """Test every property, those that options ask for or not."""
    if code.is_square:
        code = replace(code, judged=(stated or expected).visible(code.n))
    tests: dict[str, Callable[[AuditedCode], Property]] = {
        "causal": partial(_causal, expected=expected),
        "bidirectional": partial(
            _bidirectional, expected=expected, requested=requested["bidirectional"]
        ),
        "window": partial(_window, expected=expected),
        "coverage": partial(_coverage, expected=expected, options=requested),
        "padding": lambda code: _padding(code.showing(expected), requested["padding"]),
        "batch": _batch,
    }
    if requested["packed"]:
        tests["packed"] = _packed
    if requested["cache"]:
        tests["cache"] = with_cache
    if stated is not None:
        tests["expect"] = partial(_stated, stated=stated)
    properties = [
        replace(_of_outputs(code, tests[name], name in NEED_MIXING), requested=is_requested)
        for name, is_requested in requested.items()
        if name in tests
    ]
    properties += [
        Property(name, UNDECIDED, "of models", why, requested=True)
        for name, why in OF_MODELS.items()
        if requested[name]
    ]
    if not any(requested.values()) and code.is_square:
        properties.insert(0, _measured(code))
    notices = list(code.notices)
    is_broken = any(each.name == "window" and each.status == BROKEN for each in properties)
    if is_broken and stated is None and not expected.causal:
        notices.append(
            f"{spelled('expect', 'MASK')} states a visibility that is not a window of one axis"
        )
    kind = "class" if code.module is not None else "function"
    notices += stated.notes if stated is not None else []
    notices += [f"not audited: {each}" for each in code.left_out]
    shown = code.showing(expected)
    influences = [shown.of(i).influence() for i, each in enumerate(code.outputs) if not each.is_of_pairs]
    dtype = str(code.runs.dtype).removeprefix("torch.")
    return Audit(
        code.title, kind, dtype, code.n, code.runs.count, properties,
        notices=notices, influences=influences, left_out=code.left_out,
        outputs=[each.name for each in code.outputs] if code.has_several else [],
    )  # fmt: skip


def _measured(code: AuditedCode) -> Property:
    """Say which positions move which, if nothing says which should."""
    texts = []
    for i, output in enumerate(code.outputs):
        one = code.of(i)
        if not output.is_of_pairs:
            where = f"in {output.name}, " if code.has_several else ""
            texts.append(where + (one.not_finite() or influence_in_words(one.measured > 0)))
    why = (
        f"no option says what should hold: {spelled('causal')}, {spelled('bidirectional')},"
        f" {spelled('window', 'N')} or {spelled('expect', 'MASK')} does"
    )
    return Property("influence", MEASURED, why, "; ".join(texts))


def influence_in_words(moves: torch.Tensor) -> str:
    """Name what positions move: themselves, later or earlier ones, all, or those near them.

    `moves`, `n_Q n_K`, is True where a position, a row, moves if another changes, a column.

    >>> influence_in_words(torch.ones(5, 5).tril().bool())
    'each position moves itself and later ones: causal'
    >>> influence_in_words(torch.ones(5, 5).bool())
    'each position moves every one: bidirectional'
    """
    if not bool(moves.any()):
        return "no position moves any"
    n = len(moves)
    distances = [q - k for q, k in moves.nonzero().tolist()]
    after, before = max(*distances, 0), -min(*distances, 0)
    if not torch.equal(moves, masks.window(n, n, after, before)):
        return _unusual(moves)
    widths = [("all" if width == n - 1 else f"the next {width}") for width in (after, before)]
    match (after > 0, before > 0):
        case (False, False):
            return "each position moves itself alone"
        case (True, False):
            window = "" if after == n - 1 else f", a window of {after + 1}"
            which = "later ones" if after == n - 1 else widths[0]
            return f"each position moves itself and {which}: causal{window}"
        case (False, True):
            return f"each position moves itself and {widths[1]} before it"
    if after == before == n - 1:
        return "each position moves every one: bidirectional"
    return f"each position moves itself, {widths[1]} before it and {widths[0]} after it"


def _unusual(moves: torch.Tensor) -> str:
    """Name the sides on which positions move others, if these are not all that are near."""
    n_pair = counted(int(moves.sum()), "pair")
    others = moves & ~torch.eye(len(moves), dtype=torch.bool)
    sides = {"later": bool(others.tril().any()), "earlier": bool(others.triu().any())}
    names = " and ".join(name for name, is_moved in sides.items() if is_moved)
    kind = ": causal" if not sides["earlier"] else ""
    return f"positions move {names} ones, in {n_pair} of {moves.numel():,}{kind}"


def _of_outputs(
    code: AuditedCode, test: Callable[[AuditedCode], Property], needs_mixing: bool
) -> Property:
    """Test a property in each output, and return the worst verdict, which names its outputs.

    A test may need that positions move others, which a cache of keys need not do: then outputs beside
    the likeliest count if some positions move others in them.
    """
    found: list[tuple[CodeOutput, Property]] = []
    for i, output in enumerate(code.outputs):
        one = code.of(i)
        if needs_mixing and i and (output.is_of_pairs or not one.mixes()):
            continue
        each = test(one)
        found.append((output, _without_evidence(each, why) if (why := one.not_finite()) else each))
    order = (BROKEN, UNDECIDED, HOLDS, NOT_APPLICABLE)
    worst = min((each.status for _, each in found), key=order.index)
    named = [(output.name, each) for output, each in found if each.status == worst]
    (name, first), *others = named
    if not code.has_several or worst == NOT_APPLICABLE:
        return first
    if worst == HOLDS:
        return replace(first, found=f"{first.found}, in {few([name for name, _ in named])}")
    more = f"; and in {few([name for name, _ in others])}" if others else ""
    return replace(first, found=f"in {name}, {first.found}{more}")


def _holds(code: AuditedCode, name: str, source: str, text: str, visible: torch.Tensor) -> Property:
    """Judge that a property holds, unless something moves by so little that rounding may be why."""
    if doubt := code.doubt(visible):
        return Property(name, UNDECIDED, source, doubt)
    return Property(name, HOLDS, source, text)


def _without_evidence(found: Property, why: str) -> Property:
    """Judge that a property is undecided, unless something moved: NaN and infinity show nothing."""
    moved = found.evidence is not None and found.evidence.amount > 0
    if found.status == NOT_APPLICABLE or moved:
        return found
    return replace(found, status=UNDECIDED, found=why, evidence=None)


def _wrong(
    code: AuditedCode, name: str, source: str, influence: Influence, pairs: list[tuple[int, int]],
    allowed: torch.Tensor, prefix: str = "", padding: Collection[int] = (),
) -> Property:  # fmt: skip
    """Judge that a property is broken by pairs of positions, and find the line that causes it.

    Queries that see no key in this input show nothing: a softmax spreads them over hidden keys. Those of
    the padding must not matter.
    """
    query, key = max(pairs, key=lambda pair: influence.measured[pair[0]][pair[1]])
    try:
        rows, alone = code.fully_masked()
    except SizeError:
        why = f"{prefix}position {key} moves position {query}, maybe as that one sees no key"
        return Property(name, UNDECIDED, source, f"{why}: {too_large()}")
    rows -= set(padding)
    seeing = [pair for pair in pairs if not rows or (alone and pair[0] not in rows)]
    if not seeing:
        which = ", ".join(map(str, sorted(rows)))
        queries = f"query {which} sees" if len(rows) == 1 else f"queries {which} see"
        why = f"{prefix}{queries} no key in this input"
        return Property(name, UNDECIDED, source, why)
    query, key = max(seeing, key=lambda pair: influence.measured[pair[0]][pair[1]])
    keys = dict.fromkeys((key, seeing[0][1], seeing[-1][1]))
    still = {each: set((~allowed[:, each]).nonzero().flatten().tolist()) - rows for each in keys}
    evidence = code.leak(still).added_to(
        Evidence(
            f"position {key}",
            query,
            influence.measured[query][key],
            code.rounding,
            influence=influence,
        )
    )
    text = f"{prefix}changing position {key} moves position {query}; {len(seeing)} such pairs"
    return Property(name, BROKEN, source, text, evidence)


def _causal(code: AuditedCode, expected: ExpectedMask) -> Property:
    if not expected.causal:
        return Property("causal", NOT_APPLICABLE, f"{spelled('causal')} tests it", "")
    full = expected.without_limit()
    code = code.showing(full)
    visible = full.visible(code.n)
    influence = code.influence(visible & (code.measured > 0))  # what is missing is for coverage
    if influence.wrong:
        return _wrong(code, "causal", expected.source, influence, influence.wrong, visible)
    with code.in_training() as training:
        if training is not None:
            influence = training.influence(visible & (training.measured > 0))
            if influence.wrong:
                pairs, when = influence.wrong, "in training, "
                return _wrong(training, "causal", expected.source, influence, pairs, visible, when)
    text = f"changing each of {code.n} positions moves none before it"
    return _holds(code, "causal", expected.source, text, visible)


def _bidirectional(code: AuditedCode, expected: ExpectedMask, requested: bool) -> Property:
    name = "bidirectional"
    if expected.causal or not requested:
        why = (
            f"{spelled('causal')} excludes it"
            if expected.causal
            else f"{spelled('bidirectional')} tests it"
        )
        return Property(name, NOT_APPLICABLE, why, "")
    code, source = code.showing(expected), spelled(bidirectional=True)
    influence = code.influence(expected.visible(code.n))
    for side, part in (("later", code.amounts.triu(1)), ("earlier", code.amounts.tril(-1))):
        if not bool(part.any()):
            text = f"no position moves when {side} positions change"
            evidence = Evidence(f"{side} positions", 0, 0.0, 0.0, influence=influence)
            return Property(name, BROKEN, source, text, evidence)
    text = "positions move when earlier or later ones change"
    return Property(name, HOLDS, source, text)


def _window(code: AuditedCode, expected: ExpectedMask) -> Property:
    if expected.limit is None:
        return Property(
            "window", NOT_APPLICABLE, f"{spelled('window')} or {spelled('chunk')} tests it", ""
        )
    reach = _reach(code, expected)
    if reach.limit is not None and reach.limit >= code.n:
        why = f"{code.n} positions do not reach beyond {reach.limit}"
        return Property("window", UNDECIDED, expected.source, why)
    depth, code = code.depth, code.showing(expected)
    influence = code.influence(reach.visible(code.n))
    pairs = [(query, key) for query, key in influence.wrong if not expected.causal or key <= query]
    if pairs:
        allowed = reach.visible(code.n)
        return _wrong(code, "window", expected.source, influence, pairs, allowed)
    text = f"changing each of {code.n} positions moves none outside"
    if depth > 1 and expected.window is not None:
        text += f" of {reach.limit} through {depth} layers"
    return _holds(code, "window", expected.source, text, reach.visible(code.n))


def _reach(code: AuditedCode, expected: ExpectedMask) -> ExpectedMask:
    """Widen a window to the keys visible through all layers: W − 1 positions further for each."""
    if expected.window is None or code.depth == 1:
        return expected
    window = expected.window + (code.depth - 1) * (expected.window - 1)
    return replace(expected, window=window)


def _coverage(code: AuditedCode, expected: ExpectedMask, options: dict[str, bool]) -> Property:
    requested = options["coverage"]
    if not (expected.causal or options["bidirectional"]):
        why = (
            f"{spelled('causal')} or {spelled('bidirectional')} says whether later positions"
            " should be seen"
        )
        return Property("coverage", UNDECIDED if requested else NOT_APPLICABLE, why, "")
    code = code.showing(expected)
    visible = _reach(code, expected).visible(code.n)
    influence = code.influence(visible)
    source = f"{expected.source}, {spelled('coverage')}" if requested else expected.source
    found = _missing(code, "coverage", source, visible, influence)
    if found is not None and not (requested or expected.limit is not None):
        text = f"only {spelled('coverage')} asks for it: {found.found}"
        return Property("coverage", NOT_APPLICABLE, text, "")
    if found is not None:
        return found
    text = f"each of {code.n} positions moves every one that it should"
    return Property("coverage", HOLDS, source, text)


def _missing(
    code: AuditedCode, name: str, source: str, visible: torch.Tensor, influence: Influence
) -> Property | None:
    """Judge whether a property is broken by missing influence; None if it is not."""
    missing = (visible & (code.amounts == 0)).nonzero().tolist()
    if missing:
        query, key = missing[0]
        text = f"changing position {key} does not move position {query}; {len(missing)} such pairs"
        evidence = Evidence(f"position {key}", query, 0.0, 0.0, influence=influence)
        return Property(name, BROKEN, source, text, evidence)
    faint = (visible & (code.measured == 0)).nonzero().tolist() if code.runs.is_exact else []
    if faint:
        query, key = faint[0]
        why = f"changing position {key} moves position {query} less than rounding might"
        return Property(name, UNDECIDED, source, why)
    return None


def _stated(code: AuditedCode, stated: StatedMask) -> Property:
    """Look for influence that is not expected, through all layers, and for what is missing.

    A position may always have influence on itself, because residuals carry it on.
    """
    visible, depth = stated.visible(code.n), code.depth
    code = code.showing(stated)
    required = _through(visible, depth)
    allowed = _through(visible | torch.eye(code.n, dtype=torch.bool), depth)
    influence = code.influence(required | (allowed & (code.measured > 0)))
    if influence.wrong:
        return _wrong(code, "expect", stated.source, influence, influence.wrong, allowed)
    found = _missing(code, "expect", stated.source, required, influence)
    if found is not None:
        return found
    text = "each position moves those that are expected, and no others"
    if depth > 1:
        text += f", through {depth} layers"
    return _holds(code, "expect", stated.source, text, allowed)


def _through(visible: torch.Tensor, depth: int) -> torch.Tensor:
    """Compute the keys visible through several layers: `n n`."""
    return torch.linalg.matrix_power(visible.double(), depth) > 0


def _batch(code: AuditedCode) -> Property:
    inputs, output, axes = code.inputs, code.output(), code.layout.axes
    masked = {each.name for each in code.masks}
    batches = {name: code.batch_axis(name) for name in axes if name not in masked}
    axis = batches[code.changing.names[0]]
    if axis is None:
        why = "no axis before that of the positions, and none is called B"
        return Property("batch", NOT_APPLICABLE, why, "")
    size = output.shape[axis] if output.dim() > axis != code.layout.out_axis else 1
    names = [name for name, own in batches.items() if own == axis]
    names = [name for name in names if inputs[name].shape[axis] == size > 1]
    if not set(names) & set(code.changing.names) or output.dim() < 3:
        why = "inputs and output have no batch of two or more sequences"
        return Property("batch", NOT_APPLICABLE, why, "")
    source = "the first axis is the batch" if axis == 0 else f"axis {axis} is the batch"
    masks = [each for each in code.masks if each.has_sequences(axis, size)]
    for kept in (0, size - 1):
        moved = [i for i in range(size) if i != kept]
        which = f"sequence {moved[0]}" if size == 2 else "the other sequences"
        exchanged = {name: code.other(inputs[name], axis, moved) for name in names}
        hidden = {each.name: each.hidden_in(inputs[each.name], axis, moved) for each in masks}
        for does, changed in (("exchanging", exchanged), ("masking keys of", hidden)):
            rows = [each.select(axis, kept)[None].flatten(1) for each in (output, code.output(changed))]
            gap = float(relative(*rows).max())
            text = f"{does} {which} moves sequence {kept}"
            if gap > code.runs.rounding:
                cause = Cause(why="its line is not known: it may be that of the mask, or of its use")
                if changed is exchanged:
                    cause = code.batch_leak(axis, changed, kept)
                evidence = cause.added_to(Evidence(which, kept, gap, code.rounding))
                return Property("batch", BROKEN, source, text, evidence)
            if gap > 0 and not code.runs.is_exact:
                text += f" by {gap:.1g}, which may be rounding"
                return Property("batch", UNDECIDED, source, text)
    text = f"exchanging the other sequence{'s' * (size > 2)}"
    text += (
        ", or masking keys of it," if masks and size == 2 else ", or masking keys of them," * bool(masks)
    )
    return Property("batch", HOLDS, source, f"{text} moves nothing")


def _packed(code: AuditedCode) -> Property:
    """Look for influence between texts in one row."""
    marked = texts_of(code)
    if marked is None:
        return Property("packed", UNDECIDED, spelled(packed=True), without_texts(code))
    name, texts = marked
    source, lengths = f"{name} marks texts", lengths_of(texts)
    if len(lengths) < 2:
        return Property("packed", UNDECIDED, source, f"{name} marks one text of {lengths[0]} positions")
    allowed = texts[:, None] == texts
    code = replace(code, judged=allowed if code.judged is None else code.judged & allowed)
    influence = code.influence(allowed & (code.measured > 0))
    if influence.wrong:
        return _wrong(code, "packed", source, influence, influence.wrong, allowed)
    text = f"texts of {enumerated(map(str, lengths))} positions move nothing of each other"
    match alone(code, name, texts):
        case True:
            text += ", and each is what it is in a row of its own"
        case False:
            text += "; but one is not what it is in a row of its own: its positions shift, maybe"
    return _holds(code, "packed", source, text, allowed)


def _padding(code: AuditedCode, requested: bool) -> Property:
    if not code.masks or not requested:
        why = f"{spelled('padding')} tests it" if code.masks else "no input is a mask"
        status = UNDECIDED if requested else NOT_APPLICABLE
        hint = f": {_mask_hint(code)}" if requested else ""
        return Property("padding", status, why + hint, "")
    done = []
    for mask in code.masks:
        source = f"{mask.name} hides positions"
        if why := _misread(code, mask):
            return Property("padding", UNDECIDED, source, why)
        sides = {side: _padded(code, mask, side, keys) for side, keys in mask.sides().items()}
        wrong = [each for each in sides.values() if each is not None]
        right = " and ".join(side for side, each in sides.items() if each is None)
        if wrong:
            worst = min(wrong, key=lambda each: (BROKEN, UNDECIDED).index(each.status))
            if not right or worst.status == UNDECIDED:
                return worst
            more = f"on the {right} it holds, and the code may be made for padding there alone"
            return replace(worst, found=f"{worst.found}; {more}")
        done.append(
            f"{right}: changing positions that {mask.name} hides ({mask.meaning.text}) moves no other"
            + _beside_alone(code, mask)
        )
    names = ", ".join(each.name for each in code.masks)
    return Property("padding", HOLDS, f"{names} hides positions", "; ".join(done))


def _beside_alone(code: AuditedCode, mask: Mask) -> str:
    """Say on which sides padding changes real positions, though what is in it does not.

    Positions that are learned, and counted from the first on, are others with padding on the left.
    """
    hidden = replace(code, changing=mask.group)
    compared, other = [], []
    for side, keys in mask.sides().items():
        alone = None if code.out.is_of_pairs or mask.kind == PAIRS else hidden.without(keys)
        if alone is None:
            continue
        padded = code.with_inputs({mask.name: mask.hiding(keys)}).before
        rows = padded[mask.real_rows(keys, code.layout.n)]
        gap = float(relative(rows, alone).max()) if rows.shape == alone.shape else float("inf")
        compared.append(side)
        other += [side] * (gap > max(code.runs.rounding, EXACT))
    if other:
        where = f"with padding on the {' and '.join(other)}"
        return f"; but {where}, real ones are not what they are without it: their positions shift, maybe"
    return ", and real ones are what they are without padding" if compared else ""


def _misread(code: AuditedCode, mask: Mask) -> str:
    """Explain why the value of a mask of ones and zeros that hides is not known; empty: it is known."""
    values, name = code.inputs[mask.name], mask.name
    is_binary = bool(((values == 0) | (values == 1)).all() and (values == 1).any())
    is_added = mask.hides and mask.meaning.hidden < 0
    if mask.is_stated or name in code.runs.side.drawn or not (is_added and is_binary):
        return ""
    contained = "is 1 everywhere" if bool((values == 1).all()) else "has ones and zeros"
    return (
        f"{name} {contained}, and of 0, 1 and −∞, only −∞ hides:"
        f" {spelled('mask_input', f'{name}=0')} or {spelled('mask_input', f'{name}=-inf')} says"
        " which should"
    )


def _mask_hint(code: AuditedCode) -> str:
    """Return in words what gives the code a mask: a parameter that is called so, or an input by name."""
    names = [name for name in parameters_of(code) if "mask" in name.lower()]
    masks = [name for name in names if name not in code.inputs]
    if not masks:
        return f"{spelled(mask_input='NAME')} says which hides positions"
    mask = next((name for name in masks if "pad" in name), masks[0])
    options = []
    for name in code.changing.names:
        axis, batch = code.layout.axes[name], code.batch_axis(name)
        labels = {axis: "T:", batch: "B:"}
        sizes = [f"{labels.get(i, '')}{size}" for i, size in enumerate(code.inputs[name].shape)]
        if name in code.runs.side.drawn and is_number(code.inputs[name]):
            options.append(f"{name}={','.join(sizes)}")
    return f"{spelled(inputs=[*options, f'{mask}=B,T@bool'])} gives one"


def _padded(code: AuditedCode, mask: Mask, side: str, keys: Collection[int]) -> Property | None:
    """Judge whether changing positions of the padding moves others; None if it does not."""
    hidden = replace(code.with_inputs({mask.name: mask.hiding(keys)}), changing=mask.group)
    hidden.judged, hidden.is_mask_known = None, False
    if code.judged is not None and len(code.judged) == hidden.n:
        real = torch.tensor([key not in keys for key in range(hidden.n)])
        hidden.judged = code.judged & real
        hidden.is_mask_known = bool(code.judged.all())  # else two masks hide, each its own
    rows = mask.real_rows(keys, code.layout.n)
    wrong = torch.zeros_like(hidden.amounts, dtype=torch.bool)
    wrong[torch.tensor(rows)[:, None], torch.tensor(list(keys))] = True
    source = f"{mask.name} hides positions"
    influence = hidden.influence((hidden.measured > 0) & ~wrong)
    if not influence.wrong:
        why = hidden.not_finite(rows) or hidden.doubt(~wrong)
        found = f"padding on the {side}: {why}"
        return Property("padding", UNDECIDED, source, found) if why else None
    prefix = f"padding on the {side}, which {mask.name} hides ({mask.meaning.text}): "
    if not mask.is_known:
        prefix = f"padding on the {side}, whatever the values of {mask.name} mean: "
    padding = set(range(code.layout.n)) - set(rows)
    return _wrong(hidden, "padding", source, influence, influence.wrong, ~wrong, prefix, padding)
