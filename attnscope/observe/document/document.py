"""The document of a trace: heading, summary, crash."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from attnscope.base.text import printable
from attnscope.base.units import bytes_text, flops_text, number_text
from attnscope.document.blocks import Block, Drawing, Findings, Heading, Notices, Only, Sentence, Table
from attnscope.document.columns import check_columns
from attnscope.document.html import rendered
from attnscope.document.pieces import pieces_of
from attnscope.document.result import named
from attnscope.document.styles import RED, WRONG, dims_pieces, shape_pieces
from attnscope.document.terminal import print_hanging
from attnscope.document.text import joined, shorten
from attnscope.observe.document.columns import TraceRows, columns_of
from attnscope.observe.document.numbers import Numbers
from attnscope.observe.document.source import SourceDrawing
from attnscope.observe.trace import Condition, Crash, Trace


def document(trace: Trace, *, numbers: bool) -> list[Block]:
    """Build a row for each tensor, a summary, and what is wrong.

    In HTML, the rows open, and the findings stand below them. HTML alone shows the notices, which
    commands print on stderr.
    """
    blocks: list[Block] = [
        heading(trace),
        Only(Table(columns_of(trace)), html=False),
        Only(TraceRows(trace), html=True),
        Sentence(summary(trace), "dim", " · ", apart=True),
        Only(Findings(trace.findings or []), html=False),
    ]
    blocks += [Sentence(trace.no_softmax, "dim")] if trace.no_softmax else []
    blocks += [CrashDrawing(trace.crash)] if trace.crash else []
    blocks += [Table(check_columns(trace.checks))] if trace.checks else []
    blocks.append(Only(Notices(trace.notices), html=True))
    blocks += [SourceDrawing(trace)] if trace.source else []
    return [*blocks, Numbers(trace)] if numbers else blocks


MOST_NAMES = 3  # of tensors that are equally large
LONGEST = 60  # characters of an expression


def heading(trace: Trace) -> Heading:
    """Build a title, and lines with the sizes, the options that determine the numbers, and conditions.

    A name that is only customary is marked. Conditions that were only assumed are shown on request.
    """
    marks = dict.fromkeys(trace.guessed, "?")
    sizes = " · ".join(f"{axis}{marks.get(axis, '')} {size}" for axis, size in trace.sizes.items())
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
    called = (printable(shorten(s.how, LONGEST) if s.name == "…" else s.name) for s in steps)
    size, names = bytes_text(steps[0].bytes), list(dict.fromkeys(called))
    amount = f"{size} each, {total} in all" if len(steps) > 1 else f"{size} of {total}"
    flops = sum(step.flops * step.times for step in trace.steps)
    return f"largest: {_listed(names)}, {amount} · {flops_text(flops)} in matrix products"


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


@dataclass(frozen=True)
class CrashDrawing(Drawing):
    """The expression that failed, its operands, and which axes do not match."""

    crash: Crash

    def print(self, console: Console, *, wide: bool = False) -> None:
        """Print them, the lines of a long sentence below each other."""
        for line in self._lines():
            print_hanging(console, line)

    def html(self) -> str:
        """Return them in the colours of the axes."""
        return rendered(HTML, lines=[pieces_of(line) for line in self._lines()])

    def markdown(self) -> list[str]:
        """Return them as a block of code."""
        return ["\n".join(["```", *(line.plain for line in self._lines()), "```"])]

    def _lines(self) -> list[Text]:
        crash = self.crash
        lines = [Text(f"✗ line {crash.line}: {printable(crash.expression)}", WRONG)]
        texts = [printable(operand.text) for operand in crash.operands]
        width = max(map(len, texts), default=0)
        for operand, text in zip(crash.operands, texts, strict=True):
            axes = joined(dims_pieces(operand.dims))
            shape = joined(shape_pieces(operand.dims, operand.shape), "×")
            lines.append(Text.assemble(f"    {text:{width}}  ", shape, "  ", axes))
        lines += [Text(f"    {printable(crash.disagreement)}", "bold")] if crash.disagreement else []
        return [*lines, Text(f"    {printable(crash.error)}", RED)]


HTML = """\
{% import "parts.html.j2" as parts %}
<pre class="crash">{% for line in lines %}{{ parts.pieces(line) }}
{% endfor %}</pre>
"""
