"""Audit a model: which properties it promises, and whether they hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from attnscope.errors import ModelError, OptionError, first_line
from attnscope.influence.measure.moved import FAILURES
from attnscope.influence.models.probe import Probe
from attnscope.influence.models.promised import causality
from attnscope.influence.models.subject import Subject
from attnscope.influence.models.texts import Texts
from attnscope.influence.properties.batch import batch
from attnscope.influence.properties.cache import cache
from attnscope.influence.properties.causal import causal
from attnscope.influence.properties.kernels import kernels
from attnscope.influence.properties.packed import packed, support
from attnscope.influence.properties.padding import padding
from attnscope.influence.properties.visible import bidirectional, coverage, influences, window
from attnscope.models.running.tokenize import max_tokens
from attnscope.process.progress import Progress, stage
from attnscope.results.audit import BROKEN, HOLDS, UNDECIDED, Audit, Property
from attnscope.units import counted

LEAST = 4
"""The number of tokens of the shortest text: one before and one after a change, in each half."""

LENGTHS = (61, 53, 43, 37, 29, 23, 17, 13, 11, 7)
"""The numbers of tokens of a random text, the first that fits: no size of a model is such a prime."""


def properties_of(probe: Probe) -> dict[str, Callable[[bool], Property]]:
    """Return the tests of all properties by name."""
    sides, why = padded_sides(probe)
    return {
        "causal": lambda requested: causal(probe, requested),
        "bidirectional": lambda requested: bidirectional(probe, requested),
        "window": lambda requested: window(probe, requested),
        "coverage": lambda requested: coverage(probe, requested),
        "padding": lambda requested: padding(probe, sides, why, requested),
        "packed": lambda requested: packed(probe, *support(probe), requested),
        "batch": lambda requested: batch(probe, requested),
        "cache": lambda requested: cache(probe, requested),
        "kernels": lambda requested: kernels(probe, requested),
    }


def padded_sides(probe: Probe) -> tuple[list[str], str]:
    """Return the sides on which a model's texts are padded, and what says so."""
    if probe.causal and probe.source is None:
        return ["left", "right"], "generation pads on the left, training on the right"
    return ["right"], "encoders are padded on the right"


def probe_of(
    module: Any,
    name: str,
    ids: torch.Tensor | None,
    special: list[int],
    *,
    tokens: list[str],
    length: int | None,
    causal: bool | None,
    limits: Mapping[str, int],
    thorough: bool,
    seed: int,
) -> Probe:
    """Prepare a model and its text; without ids, a random one."""
    texts = Texts(module.config, special, seed)
    is_causal, source = causality(module)
    if causal is not None:
        is_causal, source = causal, "--causal" if causal else "--bidirectional"
    most = max_tokens(module.config) or max(LENGTHS[0], length or 0)
    if length is not None and length > most:
        raise OptionError(
            f"{name} takes at most {most} tokens, and --length is {length}.", hint=f"--length {most}"
        )
    n = length or next((each for each in LENGTHS if each + 3 <= most), most)
    text = texts.drawn(n) if ids is None else ids
    n = text.shape[1]
    if n < LEAST:
        raise OptionError(
            f"the text has {counted(n, 'token')}, and an audit needs {LEAST} or more.",
            hint="--length 61",
        )
    subject = Subject(name, module, n)
    encoder = None
    if subject.is_encoder_decoder:
        encoder = texts.drawn(n + 3) if ids is None else text
        text = texts.drawn(n)
    own = tokens if ids is not None and encoder is None else None
    return Probe(subject, texts, text, encoder, is_causal, source, dict(limits), own, thorough)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors are equal, NaN at the same places included."""
    return torch.equal(one.nan_to_num(), other.nan_to_num())


AT_EDGES = ("causal", "window", "coverage", "cache")
"""Properties that may break at some lengths alone: models pass other masks to short texts."""


def _at_edges(probe: Probe, found: Property) -> Property:
    """Test a property that holds again, at lengths around the edges of windows and chunks."""
    tested = AT_EDGES if probe.thorough else AT_EDGES[:1]
    if found.status != HOLDS or found.name not in tested:
        return found
    edges = probe.edges()
    for n in edges if probe.thorough else edges[:1]:
        again = properties_of(probe.of_length(n))[found.name](found.requested)
        if again.status == BROKEN:
            return replace(again, found=f"with {n} tokens, {again.found}")
    return found


def audit_probe(probe: Probe, names: Mapping[str, bool], tokens: list[str], progress: Progress) -> Audit:
    """Test properties by name, each with whether an option asks for it."""
    once, again = probe.base(exact=False).rows(), probe.subject.run(**probe.inputs()).rows()
    if any(not _same(once[each], again[each]) for each in once):
        raise ModelError(f"{probe.subject.name} cannot be audited: two runs on the same text differ.")
    tests = properties_of(probe)
    found = []
    for name, requested in names.items():
        with stage(progress, f"{name} …"):
            try:
                found.append(_at_edges(probe, tests[name](requested)))
            except FAILURES as error:
                why = f"a test raises {type(error).__name__}: {first_line(error)}"
                found.append(Property(name, UNDECIDED, why, "", requested=requested))
    measured = []
    with suppress(*FAILURES):  # of models whose masks cannot be measured
        measured = influences(probe)
    module = probe.subject.module
    return Audit(
        probe.subject.name,
        type(module).__name__,
        str(module.dtype).removeprefix("torch."),
        probe.n,
        round(probe.subject.n_forward, 1),
        found,
        tokens,
        influences=measured,
    )
