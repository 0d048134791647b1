"""Audit a model: which properties it promises, and whether they hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache as cache_result
from functools import partial
from typing import Any

import torch

from attnscope.auditing.expected import (
    StatedMask,
    causality,
    image_blocks,
    mask_of_options,
    read_stated_mask,
)
from attnscope.auditing.measure.difference import FAILURES
from attnscope.auditing.measure.finite import first_not_finite_module
from attnscope.auditing.models.cache import cache
from attnscope.auditing.models.causal import causal
from attnscope.auditing.models.kernels import kernels
from attnscope.auditing.models.probe import Probe
from attnscope.auditing.models.sequences import batch, packed, padding
from attnscope.auditing.models.subject import OUTPUT, AuditedModel, Texts
from attnscope.auditing.models.visible import as_stated, bidirectional, coverage, influences, window
from attnscope.auditing.options import AuditRun, ModelInput, Properties
from attnscope.auditing.result import BROKEN, HOLDS, UNDECIDED, Audit, Property
from attnscope.base.errors import ModelError, OptionError, first_line
from attnscope.base.options import check_conflicts
from attnscope.base.process.devices import check_device, check_device_name
from attnscope.base.process.progress import Progress, stage
from attnscope.base.spelling import spelled
from attnscope.base.units import counted
from attnscope.code.pairs.implementation import same
from attnscope.model.run.load import as_model_error, tokenizer_of
from attnscope.model.run.open import open_model
from attnscope.model.run.tokenize import max_tokens, read_text

LEAST = 4
"""The number of tokens of the shortest text: one before and one after a change, in each half."""

LENGTHS = (61, 53, 43, 37, 29, 23, 17, 13, 11, 7)
"""The numbers of tokens of a random text, the first that fits: no size of a model is such a prime."""


def audit_model(
    model: Any,
    args: Sequence[Any],
    input: ModelInput,
    properties: Properties,
    run: AuditRun,
    progress: Progress,
) -> Audit:
    """Test the properties of a model that reads text; see `attnscope.audit`."""
    if args:
        if input.text is not None or len(args) > 1 or not isinstance(args[0], str):
            raise OptionError("a model reads one text, or random tokens.", hint='text="…"')
        input = replace(input, text=args[0])
        check_conflicts([input])
    check_device_name(run.device)
    check_device(run.device)
    stated = read_stated_mask(properties.expect)
    options: dict[str, Any] = {"dtype": run.dtype, "tokenizer": input.tokenizer, "progress": progress}
    with open_model(model, run.device, **options) as opened, as_model_error(opened.checkpoint):
        checkpoint = opened.checkpoint
        with opened.loading():
            loaded = opened.load()
        config = opened.config
        if getattr(config.get_text_config(), "vocab_size", None) is None or hasattr(
            config, "vision_config"
        ):
            raise ModelError(
                f"{checkpoint.name} is a {type(loaded).__name__}, and only models that read text alone"
                " are audited."
            )
        ids, tokens = None, []
        if input.text is not None:
            reading = read_text(checkpoint, config, input.text)
            ids, tokens = reading.inputs["input_ids"], [each.text for each in reading.source]
        own = tokenizer_of(checkpoint)
        special = list(own.all_special_ids) if own is not None else []
        texts = Texts(loaded.config, special, run.seed or 0)
        probe = probe_of(
            checkpoint.name, loaded, texts, properties, input.length, ids, tokens, thorough=run.thorough
        )
        return _audit(probe, properties.requested, stated, tokens, progress)


def probe_of(
    name: str,
    module: Any,
    texts: Texts,
    properties: Properties,
    length: int | None = None,
    ids: torch.Tensor | None = None,
    tokens: list[str] | None = None,
    *,
    thorough: bool = False,
) -> Probe:
    """Prepare a model and its text; without ids, a random one."""
    is_causal, source = causality(module)
    if properties.causal or properties.bidirectional:
        is_causal = properties.causal
        source = spelled(causal=True) if is_causal else spelled(bidirectional=True)
    most = max_tokens(module.config) or max(LENGTHS[0], length or 0)
    if length is not None and length > most:
        raise OptionError(
            f"{name} takes at most {most} tokens, and {spelled('length')} is {length}.",
            hint=spelled(length=most),
        )
    n = length or next((each for each in LENGTHS if each + 3 <= most), most)
    text = texts.drawn(n) if ids is None else ids
    n = text.shape[1]
    if n < LEAST:
        raise OptionError(
            f"the text has {counted(n, 'token')}, and an audit needs {LEAST} or more.",
            hint=spelled(length=61),
        )
    subject = AuditedModel(name, module, n)
    encoder = None
    if subject.is_encoder_decoder:
        encoder = texts.drawn(n + 3) if ids is None else text
        text = texts.drawn(n)
    own = tokens if ids is not None and encoder is None else None
    widths = (properties.window, properties.chunk, properties.prefix, properties.sinks)
    of_options = replace(mask_of_options(properties, "options"), causal=bool(is_causal))
    stated = of_options if any(each is not None for each in widths) else None
    return Probe(subject, texts, text, encoder, is_causal, source, stated, own, thorough)


AT_EDGES = ("causal", "window", "coverage", "cache")
"""Properties that may break at some lengths alone: models pass other masks to short texts."""


def _at_edges(probe: Probe, found: Property, requested: Mapping[str, bool]) -> Property:
    """Test a property that holds again, at lengths around the edges of windows and chunks."""
    tested = AT_EDGES if probe.thorough else AT_EDGES[:1]
    if found.status != HOLDS or found.name not in tested:
        return found
    edges = probe.edges()
    for n in edges if probe.thorough else edges[:1]:
        again = tests_of(probe.of_length(n), requested)[found.name]()
        if again.status == BROKEN or (again.status == UNDECIDED and found.name == AT_EDGES[0]):
            return replace(again, found=f"with {n} tokens, {again.found}")
    return found


def _audit(
    probe: Probe,
    requested: Mapping[str, bool],
    stated: StatedMask | None,
    tokens: list[str],
    progress: Progress,
) -> Audit:
    """Test every property, those that options ask for or not."""
    subject = probe.subject
    once, again = probe.base(exact=False).rows(), subject.run(**probe.inputs()).rows()
    if any(not same(once[each], again[each]) for each in once):
        raise ModelError(f"{subject.name} cannot be audited: two runs on the same text differ.")
    why = first_not_finite_module(subject, probe.inputs(), once[OUTPUT])
    tests = tests_of(probe, requested)
    if stated is not None:
        tests["expect"] = partial(as_stated, probe, stated.source, stated.visible(probe.n))
    found = []
    for name, test in tests.items():
        if why:
            each = Property(name, UNDECIDED, "only what is finite shows influence", why)
        else:
            with stage(progress, f"{name} …"):
                try:
                    each = _at_edges(probe, test(), requested)
                except FAILURES as error:
                    problem = f"a test raises {type(error).__name__}: {first_line(error)}"
                    each = Property(name, UNDECIDED, problem, "")
        found.append(replace(each, requested=requested[name]))
    measured = []
    with suppress(*FAILURES):  # of models whose masks cannot be measured
        measured = influences(probe)
    return Audit(
        subject.name,
        type(subject.module).__name__,
        str(subject.module.dtype).removeprefix("torch."),
        probe.n,
        round(subject.n_forward, 1),
        found,
        tokens,
        notices=[note] if (note := image_blocks(subject.config)) else [],
        influences=measured,
    )


def tests_of(probe: Probe, requested: Mapping[str, bool]) -> dict[str, Callable[[], Property]]:
    """Return the test of each property by its name, in the order of the table."""
    of_batch = cache_result(lambda: batch(probe))
    return {
        "causal": lambda: causal(probe, lambda: of_batch().status == HOLDS),
        "bidirectional": lambda: bidirectional(probe),
        "window": lambda: window(probe),
        "coverage": lambda: coverage(probe),
        "padding": lambda: padding(probe),
        "packed": lambda: packed(probe, requested["packed"]),
        "batch": of_batch,
        "cache": lambda: cache(probe),
        "kernels": lambda: kernels(probe),
    }
