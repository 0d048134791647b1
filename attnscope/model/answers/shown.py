"""What is shown of an answer, in blocks."""

from __future__ import annotations

from dataclasses import dataclass

from attnscope.base.errors import SizeError
from attnscope.document.blocks import Block, Drawing, Heading, Notices, Only, Plot, Sentence, Table
from attnscope.document.columns import check_columns
from attnscope.document.page.document import frame
from attnscope.document.page.page import model_name
from attnscope.model.answers.audio.shown import SecondsDrawing, head_columns, origin, word_columns
from attnscope.model.answers.document import (
    heading,
    lost_parts,
    recorded_text,
    segment_columns,
    token_columns,
)
from attnscope.model.answers.drawing import PictureDrawing, SegmentBars
from attnscope.model.answers.figure import draw
from attnscope.model.answers.page import answer_page
from attnscope.model.answers.result import Answer

NOTEBOOK_SIDE, NOTEBOOK_WEIGHTS = 640, 2**20
"""In a notebook: the most pixels of a picture's side, and the most weights of single layers."""


def document(answer: Answer) -> list[Block]:
    """Build the blocks of an answer: the picture under its weights, or bars of segments, and tables.

    A notebook shows the interactive page instead.
    """
    title, *about = heading(answer)
    blocks: list[Block] = [Heading(title, about)]
    shown = answer.alone()
    if answer.by_segment:
        blocks += [Table(segment_columns(shown)), SegmentBars(shown)]
    else:
        blocks += [PictureDrawing(shown)] if answer.pictures else []
        blocks.append(Table(token_columns(shown)))
    if answer.times is not None:
        blocks.append(SecondsDrawing(shown, answer.times))
    if answer.alignment is not None:
        blocks += [
            Table(word_columns(answer.alignment)),
            Table(head_columns(answer.alignment)),
            Sentence(origin(answer.alignment)),
        ]
    if answer.recorded is not None:
        blocks.append(Sentence(recorded_text(answer, answer.recorded)))
    blocks.append(Notices([*lost_parts(answer), *answer.notices]))
    if answer.checks:
        blocks.append(Table(check_columns(answer.checks)))
    return [
        *(Only(block, html=False) for block in blocks),
        Only(AnswerFrame(answer), html=True),
        Plot(lambda figure: draw(figure, answer)),
    ]


@dataclass(frozen=True)
class AnswerFrame(Drawing):
    """The interactive page in a frame, small enough for the file of a notebook, which stores it."""

    answer: Answer

    def html(self) -> str:
        """Return the frame; for an answer that is too long for a page, a sentence about it."""
        from markupsafe import escape

        try:
            page = answer_page(self.answer, side=NOTEBOOK_SIDE, most_of_layers=NOTEBOOK_WEIGHTS)
        except SizeError as error:
            return f'<p class="soft">{escape(error.message)}</p>'
        return frame(page, f"{model_name(self.answer.model)}: what the answer reads")
