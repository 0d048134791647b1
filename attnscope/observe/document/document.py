"""The document of a trace."""

from __future__ import annotations

from attnscope.document.blocks import Block, Findings, Notices, Only, Sentence, Table
from attnscope.document.columns import check_columns
from attnscope.observe.document.columns import columns_of
from attnscope.observe.document.crash import CrashDrawing
from attnscope.observe.document.heading import heading, summary
from attnscope.observe.document.numbers import Numbers
from attnscope.observe.document.rows import TraceRows
from attnscope.observe.document.source import SourceDrawing
from attnscope.observe.trace import Trace


def document(trace: Trace, *, numbers: bool) -> list[Block]:
    """Build a row for each tensor, a summary, and what is wrong.

    In HTML, the rows open, and the findings stand below them. HTML alone shows the notices, which
    commands print on stderr.

    Args:
        trace: the trace.
        numbers: whether the values of every tensor follow.
    """
    blocks: list[Block] = [
        heading(trace),
        Only(Table(columns_of(trace)), html=False),
        Only(TraceRows(trace), html=True),
        Sentence(summary(trace), "dim", " · ", apart=True),
        Only(Findings(trace.findings or []), html=False),
    ]
    blocks += [CrashDrawing(trace.crash)] if trace.crash else []
    blocks += [Table(check_columns(trace.checks))] if trace.checks else []
    blocks.append(Only(Notices(trace.notices), html=True))
    blocks += [SourceDrawing(trace)] if trace.source else []
    return [*blocks, Numbers(trace)] if numbers else blocks
