"""The page of an answer: its words, the pictures and the prompt that each of them reads.

Everything is in the page: pictures as JPEG or PNG, weights packed as in pages of maps. Like these, it
makes no network requests, and its policy allows one script and one style by their hashes.
"""

from __future__ import annotations

import io
from base64 import b64encode
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import SizeError
from attnscope.base.spelling import spelled
from attnscope.base.text import printable
from attnscope.base.units import counted, numbers_text
from attnscope.document.grid.axes import label
from attnscope.document.html import rendered
from attnscope.document.page import packing
from attnscope.document.page.page import file_of, json_in_html, model_name, policy_hash, without_comments
from attnscope.document.page.protocols import PageHead
from attnscope.model.answers.audio.shown import recording_picture, ticks
from attnscope.model.answers.document import (
    heading,
    left_out_text,
    lost_parts,
    row_text,
    segment_columns,
    writes,
)
from attnscope.model.answers.drawing import segment_styles
from attnscope.model.answers.figure import SEGMENT_COLOURS
from attnscope.model.answers.heat import bars, even_shares, positions
from attnscope.model.answers.prompt import PatchedPicture
from attnscope.model.answers.result import Answer
from attnscope.model.run.tokens import Token

if TYPE_CHECKING:
    import numpy as np

SIDE = 1024  #: the most pixels of a picture's longer side
ALL_PIXELS = 12 * SIDE * SIDE  #: the most pixels of all pictures: of many, each is smaller
MOST_KEYS = 65_536  #: the most keys that packed weights can have

MOST_OF_LAYERS = 2**23
"""The most weights of single layers on a page, about 12 MB: of more layers, some are left out."""


@dataclass
class _Rows:
    """The rows of a layer, or of all, to be packed."""

    layer: int
    attention: np.ndarray
    head: int = 0
    kv_head: int = 0


def answer_page(answer: Answer, *, side: int = SIDE, most_of_layers: int = MOST_OF_LAYERS) -> str:
    """Return a self-contained HTML document that shows what each word of an answer reads."""
    from markupsafe import Markup

    n_row, n_K = answer.weights.shape
    if n_K > MOST_KEYS:
        raise SizeError(
            f"a page shows at most {MOST_KEYS:,} keys, but this answer read {n_K:,}.",
            hint=f"{spelled(by='segment')}, for sums",
        )
    layers = _shown_layers(answer, most_of_layers)
    rows: list[PageHead] = [_Rows(-1, _shares(answer, answer.weights))]
    rows += [_Rows(answer.layers[i], _shares(answer, answer.of_layers[i])) for i in layers]  # type: ignore[index]
    fine = [answer.weights.size <= packing.FINE_TO, len(layers) * n_row * n_K <= packing.FINE_TO]
    packed = packing.pack(rows[:1], fine=fine[0]) + packing.pack(rows[1:], fine=fine[1])
    script = without_comments(
        file_of("attnscope.document.page", "weights.js") + "\n" + file_of(str(__package__), "page.js")
    )
    style = without_comments(
        file_of("attnscope.document.page", "page.css") + "\n" + file_of(str(__package__), "page.css")
    )
    title, about = heading(answer)[:2]
    name = model_name(answer.model)
    html = rendered(
        file_of(str(__package__), "page.html.j2"),
        title=printable(f"{name} · what the answer reads"),
        facts=[printable(part) for part in title.removeprefix(answer.model).split(" · ")[1:]],
        about=about,
        left_out=left_out_text(answer),
        answer=answer,
        pictured=bool(_pictures(answer)),
        columns=[column.printable() for column in segment_columns(answer.alone())],
        of_row="on average" if answer.query is None else f"of {printable(row_text(answer))}",
        notices=[
            printable(text.replace(answer.model, name))
            for text in [*lost_parts(answer), *answer.notices, *_layer_notices(answer, layers)]
        ],
        weights=[Markup(each.text) for each in packed],
        largest_error=max(each.largest_error for each in packed),
        data=Markup(json_in_html(_data(answer, layers, fine, side))),
        script=Markup(script),
        style=Markup(style),
        script_hash=policy_hash(script),
        style_hash=policy_hash(style),
    )
    return html.encode("utf-8", "replace").decode("utf-8")  # lone surrogates of names have no UTF-8


STRIP = (1600, 96)  #: Width and height of the spectrum of a recording, in pixels


def _pictures(answer: Answer) -> list[PatchedPicture]:
    """Return the pictures of an answer; of a recording, its spectrum with a patch for each frame."""
    if answer.recording is None or answer.times is None or find_spec("PIL") is None:
        return answer.pictures
    return [recording_picture(answer.recording, answer.times, *STRIP)]


def _recording_data(answer: Answer) -> dict[str, Any] | None:
    """Return what the script shows of a recording beside its spectrum; None: there is none."""
    if answer.recording is None:
        return None
    seconds = answer.recording.seconds
    said = None if answer.alignment is None else answer.alignment.seconds
    return {"seconds": seconds, "ticks": ticks(seconds, 12), "said": said}


def _shares(answer: Answer, weights: np.ndarray) -> np.ndarray:
    """Return rows of weights; of maxima, as shares of each row's sum."""
    import numpy as np

    if answer.pool != "max":
        return weights
    return weights / np.maximum(weights.sum(1, keepdims=True), 1e-30)


def _shown_layers(answer: Answer, most: int) -> list[int]:
    """Choose the layers of a page, by their places in `of_layers`: all, or as many as fit, evenly."""
    if answer.of_layers is None or len(answer.layers) < 2:
        return []
    n, each = len(answer.layers), answer.of_layers[0].size
    fit = most // each
    if fit >= n:
        return list(range(n))
    return sorted({round(i * (n - 1) / (fit - 1)) for i in range(fit)}) if fit > 1 else []


def _layer_notices(answer: Answer, shown: list[int]) -> list[str]:
    """Say which layers a page leaves out."""
    n = len(answer.layers)
    if n < 2 or len(shown) == n:
        return []
    if answer.of_layers is None:
        return ["The weights of single layers, which were not collected, are not in this page."]
    if not shown:
        return ["The weights of single layers are not in this page, to keep it small."]
    kept = numbers_text(answer.layers[i] for i in shown)
    return [f"Of single layers, this page has {len(shown)} of {counted(n, 'layer')}: {kept}."]


def _data(answer: Answer, layers: list[int], fine: list[bool], side: int) -> dict[str, Any]:
    """Return the script's data, without weights."""
    shown = [segment for segment in answer.segments if segment.n_token]
    colours = segment_styles([segment.name for segment in shown], SEGMENT_COLOURS)
    columns = [i for i, segment in enumerate(answer.segments) if segment.n_token]
    probabilities, segment_rows = answer.log_probabilities, None
    if answer.segment_rows is not None:
        known, of_rows = bars(answer)
        segment_rows = [[float(f"{each:.6g}") for each in row] for row in of_rows[:, known].tolist()]
    pictures = _pictures(answer)
    n_pixel, side = ALL_PIXELS // max(1, len(pictures)), max(side, STRIP[0] * (answer.times is not None))
    return {
        "coding": [
            {
                "cells": packing.CELLS,
                "notANumber": packing.NOT_A_NUMBER,
                "lowFrom": 1 if is_fine else packing.COARSE_TO,
            }
            for is_fine in fine
        ],
        "tokens": [_token_text(token) for token in answer.tokens],
        "special": [i for i, token in enumerate(answer.tokens) if token.special],
        "generatedFrom": None if answer.stack == "cross" else answer.first,
        "words": [_token_text(token) for token in answer.written],
        "first": answer.first,
        "queries": answer.queries,
        "writes": writes(answer),
        "logs": None if probabilities is None else [float(f"{each:.4g}") for each in probabilities],
        "segments": [
            {"name": printable(segment.name), "spans": segment.spans, "colour": colour}
            for segment, colour in zip(shown, colours, strict=True)
        ],
        "even": [[float(f"{each:.6g}") for each in row] for row in even_shares(answer)[:, columns]],
        "pictures": [_picture_data(picture, side, n_pixel) for picture in pictures],
        "recording": _recording_data(answer) if pictures else None,
        "sinks": answer.sinks,
        "segmentRows": segment_rows,
        "layers": [None, *(answer.layers[i] for i in layers)],
        "row": answer.query,
    }


def _token_text(token: Token) -> str:
    """Return a token's text on one line, with the space before it."""
    return " " * (len(token.text) > 1 and token.text[0] == " ") + label(token.text)


def _picture_data(picture: PatchedPicture, side: int, n_pixel: int) -> dict[str, Any]:
    """Return a picture, as small as necessary, with its patches."""
    width, height = picture.image.size
    parts = list(dict.fromkeys(patch.part for patch in picture.patches))
    return {
        "name": printable(picture.name),
        "width": width,
        "height": height,
        "url": _url(picture, side, n_pixel),
        "positions": positions(picture.patches),
        "boxes": [[round(edge, 3) for edge in patch.box] for patch in picture.patches],
        "parts": [printable(part) for part in parts],
        "partOf": [parts.index(patch.part) for patch in picture.patches],
    }


def _url(picture: PatchedPicture, side: int, n_pixel: int) -> str:
    """Return a picture as a data URL: the smaller of PNG and JPEG if it is tiny, else JPEG."""
    image = picture.image.convert("RGB")
    scale = min(1.0, side / max(image.size), (n_pixel / (image.width * image.height)) ** 0.5)
    if scale < 1:
        image = image.resize((max(1, round(image.width * scale)), max(1, round(image.height * scale))))
    jpeg, png = io.BytesIO(), io.BytesIO()
    image.save(jpeg, "JPEG", quality=85)
    if max(image.size) <= 256:
        image.save(png, "PNG", optimize=True)
    kind, content = ("jpeg", jpeg.getvalue())
    if png.getvalue() and len(png.getvalue()) < 2 * len(content):
        kind, content = "png", png.getvalue()
    return f"data:image/{kind};base64,{b64encode(content).decode('ascii')}"
