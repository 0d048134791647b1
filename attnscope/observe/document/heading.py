"""The heading above a trace's table and the summary below it."""

from __future__ import annotations

from attnscope.document.blocks import Heading
from attnscope.document.result import named
from attnscope.document.text import shorten
from attnscope.observe.trace import Condition, Step, Trace
from attnscope.text import printable
from attnscope.units import bytes_text, flops_text, number_text

MOST_NAMES = 3  # of tensors that are equally large
LONGEST = 60  # characters of an expression


def heading(trace: Trace) -> Heading:
    """Build a title, and lines with the sizes, the options that determine the numbers, and conditions.

    Conditions that were only assumed are shown on request.
    """
    sizes = " · ".join(f"{axis} {size}" for axis, size in trace.sizes.items())
    parts = [*_options(trace), trace.dtype or "", trace.device or ""]
    parts += [f"seed {trace.seed}"] if trace.seed is not None else []
    ran = trace.device is not None or not trace.steps
    title = trace.title if ran else f"{trace.title}  (dry run: nothing was computed)"
    about = [sizes, " · ".join(part for part in parts if part)]
    conditions = trace.conditions or []
    about += [_in_words(each) for each in conditions if each.required]
    assumed = [f"assumed: {each.text}" for each in conditions if not each.required]
    return Heading(title, [line for line in about if line], assumed)


def _in_words(condition: Condition) -> str:
    """Describe a condition on sizes, and where the code rejects others."""
    place = f"{condition.file or 'line'}{':' if condition.file else ' '}{condition.line}"
    expression = f": {shorten(condition.expression, LONGEST)}" if condition.expression else ""
    return f"where {condition.text}" + (f" ({place}{expression})" if condition.line else "")


PHRASES = {
    "softmax_dtype": "softmax in {}",
    "mask": "mask {}",
    "mask_style": "{}",
    "mask_fill": "fill {}",
    "align": "aligned {}",
    "masked_rows": "rows without keys {}",
    "rope_theta": "rope theta {}",
    "layout": "by {}",
    "attention": "{} attention",
    "where": "where {}",
    "mode": "{} mode",
    "draw": "inputs {} in [0, 1)",
}
"""Phrases for options; other options are shown as name and value."""


def _options(trace: Trace) -> list[str]:
    options = dict(trace.options)
    by_code = {each.text for each in trace.conditions or []}
    if stated := [text for text in options.pop("where", []) if text not in by_code]:
        options["where"] = stated
    parts = []
    if "layer" in options:
        name = named(printable(options.pop("model")), options.pop("stack", "self"))
        parts.append(f"layer {options.pop('layer')} of {name}")
    if "scale" in options:
        scale = options.pop("scale")
        by = options.pop("scale_by", None)
        parts.append(f"scale {f'1/√{by} = ' if by else ''}{number_text(scale)}")
    for name, value in options.items():
        if isinstance(value, bool):
            parts.append(name if value else f"no {name}")
            continue
        text = " & ".join(value) if isinstance(value, list) else value
        text = f"{text:g}" if isinstance(text, float) else text
        parts.append(PHRASES.get(name, f"{name} {{}}").format(text))
    return parts


def summary(trace: Trace) -> str:
    """Return a line with the largest computed tensors, the memory of all, and the products' cost."""
    steps = trace.largest
    if not steps:
        return "no tensor was named"
    total = bytes_text(sum(step.bytes * step.times for step in trace.steps if step.owns_memory))
    size, names = bytes_text(steps[0].bytes), list(dict.fromkeys(map(_called, steps)))
    amount = f"{size} each, {total} in all" if len(steps) > 1 else f"{size} of {total}"
    flops = sum(step.flops * step.times for step in trace.steps)
    return f"largest: {_listed(names)}, {amount} · {flops_text(flops)} in matrix products"


def _called(step: Step) -> str:
    """Return the name of a step, or its expression if it has none."""
    return printable(shorten(step.how, LONGEST) if step.name == "…" else step.name)


def _listed(names: list[str]) -> str:
    """List names; of many, the first.

    >>> _listed(["scores", "attention"]), _listed(["Q", "K", "V", "x_raw", "x"])
    ('scores and attention', 'Q, K and 3 more')
    """
    if len(names) > MOST_NAMES:
        *names, last = [*names[: MOST_NAMES - 1], f"{len(names) - MOST_NAMES + 1} more"]
    else:
        *names, last = names
    return f"{', '.join(names)} and {last}" if names else last
