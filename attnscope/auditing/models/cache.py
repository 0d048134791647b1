"""Cache: a text in parts, with a key/value cache, gives what the whole text gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch

from attnscope.auditing.measure.difference import Rows, RunDifference, difference_unless_it_raises
from attnscope.auditing.models.probe import Probe, PropertyTest, verdict
from attnscope.auditing.result import NOT_APPLICABLE, Property

NAME = "cache"


def cache(probe: Probe) -> Property:
    """Read the first part of a text, then single tokens, then the rest, with each kind of cache."""
    subject = probe.subject
    if not subject.takes("past_key_values"):
        return Property(NAME, NOT_APPLICABLE, "its forward takes no past_key_values", "")
    if probe.causal is False:
        return Property(NAME, NOT_APPLICABLE, probe.causal_source, "")
    source = "its forward takes past_key_values"

    def variants() -> Iterator[PropertyTest]:
        for name, new in _kinds(probe).items():
            found = _compared(probe, name, new)
            text = f"{name}: position {found.position} differs from the same text in one pass"
            yield PropertyTest(name, found, f"a cache, {name}", text)

    def agreement(names: list[str]) -> str:
        return f"{', '.join(names)}: parts give what the whole text gives"

    return verdict(probe, NAME, source, variants(), agreement)


def _kinds(probe: Probe) -> dict[str, Callable[[], Any]]:
    """List what is tested, and how to make the cache for it; None: the model makes its own."""
    from transformers import DynamicCache, StaticCache

    config, n = probe.subject.config, probe.n

    def own() -> Any:
        """Leave it to the model, unless it makes none."""
        with_cache = probe.inputs(probe.ids[:, :2], use_cache=True)
        run = probe.once("cache", lambda: probe.subject.run(**with_cache))
        if run.output.get("past_key_values") is not None:
            return None
        return DynamicCache(config=config.get_text_config(decoder=True))

    kinds: dict[str, Callable[[], Any]] = {"single tokens": own, "several tokens": own}
    if probe.source is None and getattr(probe.subject.module, "_can_compile_fullgraph", False):
        kinds["static cache"] = lambda: StaticCache(config=config, max_cache_len=n + 3)
    if probe.source is None:
        kinds["cropped cache"] = own
    return kinds


def _compared(probe: Probe, name: str, new: Callable[[], Any]) -> RunDifference:
    """Compare a text in parts with the same in one pass."""

    def runs(exact: bool) -> tuple[Rows, Rows]:
        parts = _in_parts(probe, new(), exact, name)
        whole = probe.base(exact).rows()
        return {stage: whole[stage][: len(rows)] for stage, rows in parts.items()}, parts

    return difference_unless_it_raises(runs)


def _in_parts(probe: Probe, cache: Any, exact: bool, name: str) -> dict[str, torch.Tensor]:
    """Return the outputs of a text whose first half is read at once, and the rest in parts."""
    n = probe.n
    first = n // 2
    bounds = [0, first, first + 1, first + 2, first + 3, n]
    if name == "single tokens":
        bounds = bounds[:-1]
    elif name == "several tokens":
        bounds = [0, first, (first + n) // 2, n]
    collected: dict[str, list[torch.Tensor]] = {}
    for begin, end in pairwise(bounds):
        if name == "cropped cache" and begin == first + 3:
            cache.crop(first - begin)  # forget three tokens, and read them again
            begin = first
            collected = {stage: each[:1] for stage, each in collected.items()}
        inputs = probe.inputs(probe.ids[:, begin:end], use_cache=True)
        if cache is not None:
            inputs["past_key_values"] = cache
        if probe.subject.takes("position_ids"):
            inputs["position_ids"] = probe.positions(begin, end)
        run = probe.subject.run(exact=exact, **inputs)
        for stage, rows in run.rows().items():
            collected.setdefault(stage, []).append(rows)
        cache = run.output.get("past_key_values") or cache
        if cache is None:
            raise ValueError("it returns no cache")
    whole = {stage: torch.cat(each) for stage, each in collected.items()}
    return {stage: rows for stage, rows in whole.items() if len(rows) == bounds[-1]}
