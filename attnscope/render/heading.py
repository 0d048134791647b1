"""The heading above a table and the summary below it."""

from __future__ import annotations

from attnscope.document.result import named
from attnscope.document.text import shorten
from attnscope.observe.trace import Condition, Step, Trace
from attnscope.text import printable
from attnscope.units import bytes_text, flops_text, number_text

MOST_NAMES = 3  # of tensors that are equally large
LONGEST = 60  # characters of an expression


def heading(result: Trace, *, wide: bool = False) -> list[str]:
    """Return a title, and lines with the sizes, the options that determine the numbers, and conditions.

    Args:
        result: a trace.
        wide: whether to list the conditions that were only assumed, too.
    """
    sizes = " · ".join(f"{axis} {size}" for axis, size in result.sizes.items())
    parts = [*_options(result), result.dtype or "", result.device or ""]
    parts += [f"seed {result.seed}"] if result.seed is not None else []
    ran = result.device is not None or not result.steps
    title = result.title if ran else f"{result.title}  (dry run: nothing was computed)"
    lines = [title, sizes, " · ".join(part for part in parts if part)]
    lines += [_in_words(each) for each in result.conditions or [] if each.required or wide]
    return [line for line in lines if line]


def _in_words(condition: Condition) -> str:
    """Describe a condition on sizes, and where the code rejects others."""
    if not condition.required:
        return f"assumed: {condition.text}"
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
