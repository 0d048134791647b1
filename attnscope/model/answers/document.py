"""An answer in words, as tables, and as records: JSON, CSV and pandas."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from attnscope.base.units import MISSING, counted, few, listed, numbers_text, percent
from attnscope.document.columns import Column
from attnscope.document.grid.axes import KEY, QUERY, isolated, label, token_style
from attnscope.document.json import number, plain
from attnscope.document.result import named
from attnscope.model.answers.heat import (
    bars,
    even_shares,
    picture_shares,
    positions,
    row_shares,
    segment_shares,
    shares,
    strongest_keys,
    strongest_patches,
)
from attnscope.model.answers.prompt import PatchedPicture, Segment
from attnscope.model.answers.result import Answer

if TYPE_CHECKING:
    import numpy as np

    from attnscope.model.answers.replay.recorded import RecordedAnswer


# What is said.


def heading(answer: Answer) -> list[str]:
    """Return a title, and lines about the rows and about the keys that colours leave out."""
    n = len(answer.written)
    rows = "the row of the token at position t is that of "
    rows += "query t − 1, which wrote it" if writes(answer) else "its own query"
    if answer.segment_rows is not None:
        rows = "a token's row is that of its own query, a segment's the mean of its tokens' rows"
    lines = [
        f"{named(answer.model, answer.stack)} · {pooling(answer)}",
        f"{counted(n, 'token')} written, from position {answer.first} · {rows}",
    ]
    lines += [left_out] if (left_out := left_out_text(answer)) else []
    names_row = answer.query is not None and (answer.by_segment or not answer.pictures)
    return [*lines, f"alone: {row_text(answer)}"] if names_row else lines


def writes(answer: Answer) -> bool:
    """Check whether each row is that of the query that wrote its token."""
    return answer.queries[0] < answer.first


def pooling(answer: Answer) -> str:
    """Say which layers and heads are pooled, and how."""
    texts = [
        _selected(answer.layers, answer.n_layer, "layer"),
        _selected(answer.heads, answer.n_head, "head"),
    ]
    if len(answer.layers) == len(answer.heads) == 1:
        return ", ".join(texts)
    return f"{answer.pool} over {' and '.join(texts)}".replace(" and all ", " and ")


def _selected(indices: list[int], n: int, what: str) -> str:
    if len(indices) == n:
        return f"{what} {indices[0]}" if n == 1 else f"all {n} {what}s"
    return f"{what}{'' if len(indices) == 1 else 's'} {numbers_text(indices)} of {n}"


def left_out_text(answer: Answer) -> str:
    """Say which keys colours leave out, and how much of the weight they take; empty: none."""
    if not answer.sinks:
        return ""
    patches = {i for picture in answer.pictures for i in positions(picture.patches)}
    others = [i for i in answer.sinks if i not in patches]
    sinks = [i for i in answer.sinks if i in patches]
    parts = [f"{label(answer.tokens[i].text)} {i}" for i in others]
    texts = [_taken(answer, few(parts), others)] if others else []
    if sinks:
        patch = counted(1, "patch") if len(sinks) == 1 else f"{len(sinks)} patches"
        texts.append(_taken(answer, f"{patch} that every row reads", sinks))
    return f"left out of the colours: {', '.join(texts)}"


def _taken(answer: Answer, what: str, keys: list[int]) -> str:
    """Name keys, and the share of the weight that they take on average."""
    taken = row_shares(answer)[:, keys].sum(1).mean()
    return f"{what} ({share_text(float(taken))} of the weight)"


def lost_parts(answer: Answer) -> list[str]:
    """Say which part of each picture no patch covers."""
    return [
        f"{picture.name}: no patch covers {percent(picture.lost)} of it, which the model did not see."
        for picture in answer.pictures
        if picture.lost > 0
    ]


def row_text(answer: Answer) -> str:
    """Name the row that is shown alone, or the mean over all."""
    if answer.query is not None:
        token = label(answer.written[answer.query].text)
        return f"{answer.first + answer.query} {token} · the row of query {answer.queries[answer.query]}"
    n = len(answer.written)
    return f"{label(answer.written[0].text)}" if n == 1 else f"all {n} tokens on average"


def recorded_text(answer: Answer, recorded: RecordedAnswer) -> str:
    """Say whether the log-probabilities of an engine are the model's, and where they part."""
    source = {
        "exact": "ids of its file",
        "pieces": "ids of its tokens' bytes",
        "retokenised": "ids of its text, tokenized again",
    }[recorded.ids]
    engine = "a server" if recorded.engine == "OpenAI-compatible" else recorded.engine
    begin = f"Written by {engine} ({source})"
    there = {i: each for i, each in enumerate(recorded.log_probabilities) if each is not None}
    row = recorded.parts_at
    if not there:
        return f"{begin}: the file has no log-probabilities of these tokens."
    if row is None:
        largest = max(abs(each - recorded.here[i]) for i, each in there.items())
        bound = max(recorded.tolerances[i] for i in there)
        agree = f"log-probabilities of {counted(len(there), 'token')} agree within {largest:.2g}"
        return f"{begin}: {agree}; rounding explains {bound:.2g}."
    token = f"{answer.first + row} {label(answer.written[row].text)}"
    found = f"{there[row]:.4f} there and {recorded.here[row]:.4f} here"
    most = f"rounding explains {recorded.tolerances[row]:.2g}"
    causes = f" Possible causes: {'; '.join(recorded.causes)}." if recorded.causes else ""
    return f"{begin}: log-probabilities part at token {token}, {found}; {most}.{causes}"


# Tables.


def text_column(
    title: str, key: str, texts: Iterable[str], style: str = "", *, raw: Any = (), **more: Any
) -> Column:
    """Return a column of plain texts; `more` as in `Column`."""
    return Column(title, key, [[(text, style)] for text in texts], list(raw), **more)


def _share_column(title: str, of_rows: np.ndarray) -> Column:
    return text_column(title, title, map(share_text, of_rows.tolist()), right=True)


def token_columns(answer: Answer) -> list[Column]:
    """Return the columns of the answer's tokens: each one's query, and the shares of what it reads."""
    columns = place_columns(answer)
    of_pictures, of_segments = picture_shares(answer), shares(answer)
    names = [picture.name for picture in answer.pictures]
    columns += [_share_column(name, of_pictures[:, i]) for i, name in enumerate(names)]
    if names:
        patches = [_patch_text(answer, found) for found in strongest_patches(answer)]
        columns.append(text_column("strongest patch", "strongest_patch", patches))
    else:
        cells = [_key_cell(answer, row, key) for row, key in enumerate(strongest_keys(answer))]
        columns.insert(2, Column("reads most", "reads_most", cells, []))
    own = [i for i, segment in enumerate(answer.segments) if segment.name in names]
    around = of_segments[:, own].sum(1) - of_pictures.sum(1)  # breaks of rows, what begins and ends them
    if len(own) == len(names) and (around > 1e-6).any():
        columns.append(_share_column("around patches", around))
    for i, segment in enumerate(answer.segments):
        if segment.n_token and i not in own:
            columns.append(_share_column(segment.name, of_segments[:, i]))
    return columns


def bar_columns(answer: Answer) -> list[Column]:
    """Return the columns of the numbers behind bars: of tokens, or of segments."""
    if answer.segment_rows is None:
        return token_columns(answer)
    known, of_rows = bars(answer)
    segments = [answer.segments[i] for i in known]
    return [
        *_size_columns(segments, essential=True),
        *(_share_column(answer.segments[i].name, of_rows[:, i]) for i in known),
    ]


def _size_columns(segments: list[Segment], **more: Any) -> list[Column]:
    """Return the columns of segments' names and sizes."""
    names, sizes = [each.name for each in segments], [f"{each.n_token:,}" for each in segments]
    return [
        text_column("segment", "segment", names, "bold", lead=True, **more),
        text_column("tokens", "n_token", sizes, right=True),
    ]


def place_columns(answer: Answer) -> list[Column]:
    """Return the columns that identify a token: positions of query and token, text, log-probability."""
    places = range(answer.first, answer.first + len(answer.written))
    digits = len(str(places[-1]))
    queries = [[(str(query).rjust(digits), QUERY)] for query in answer.queries]
    if writes(answer):
        for cell, place in zip(queries, places, strict=True):
            cell += [("→", "dim"), (str(place).rjust(digits), "")]
    texts = [[(isolated(label(token.text)), token_style(token))] for token in answer.written]
    columns = [
        Column("position", "position", queries, [], lead=True, essential=True),
        Column("", "token", texts, [], lead=True, essential=True),
    ]
    if answer.log_probabilities is not None:
        if answer.recorded is not None:
            there = [
                [(MISSING, "dim") if each is None else (f"{each:.2f}", "")]
                for each in answer.recorded.log_probabilities
            ]
            columns.append(Column("log p there", "log_probability_there", there, [], right=True))
        title = "log p" if answer.recorded is None else "here"
        here = [f"{each:.2f}" for each in answer.log_probabilities]
        columns.append(text_column(title, "log_probability", here, right=True))
    return columns


def segment_columns(answer: Answer) -> list[Column]:
    """Return the columns of the segments: size, share of the weight, and the head that reads it most."""
    shown = [i for i, segment in enumerate(answer.segments) if segment.n_token]
    segments = [answer.segments[i] for i in shown]
    of_rows, even = shares(answer).mean(0)[shown], even_shares(answer).mean(0)[shown]
    columns = [
        *_size_columns(segments),
        _share_column("weight", of_rows),
        text_column("per key, even = 1", "per_key", map(_times, of_rows, even), right=True),
    ]
    if len(answer.layers) * len(answer.heads) > 1:
        best = [strongest_head(answer, i) for i in shown]
        cells = [
            [(f"{each[0]}·{each[1]}", ""), (share_text(each[2]), "dim")] if each else [(MISSING, "dim")]
            for each in best
        ]
        columns.append(Column("strongest layer·head", "strongest", cells, []))
    return columns


def _times(share: float, even: float) -> str:
    """Say how many times as much as even attention a share is."""
    if not even:
        return MISSING
    return f"{share / even:.2f} ×" if share / even < 10 else f"{share / even:.0f} ×"


def strongest_head(answer: Answer, segment: int) -> tuple[int, int, float] | None:
    """Return layer and head that give a segment the largest share of their weight, and that share.

    None: no head gives it any weight.
    """
    import numpy as np

    known = np.isfinite(answer.sums[..., segment])
    means = np.nan_to_num(answer.sums[..., segment]).sum(2) / np.maximum(known.sum(2), 1)
    layer, head = np.unravel_index(means.argmax(), means.shape)
    best = float(means[layer, head])
    return (answer.layers[layer], answer.heads[head], best) if best > 0 else None


def share_text(share: float) -> str:
    """Format a share; what is 1 but for rounding in float32 is 100 %."""
    return percent(1.0 if 1 - 1e-6 < share < 1 + 1e-6 else share)


def _patch_text(answer: Answer, found: tuple[PatchedPicture, Any] | None) -> str:
    """Say where a patch is: its box in pixels, its part, and which picture, if there are several."""
    if found is None:
        return MISSING
    picture, patch = found
    left, top, right, bottom = (int(edge + 0.5) for edge in patch.box)
    several = len(answer.pictures) > 1
    part = patch.part if len({each.part for each in picture.patches}) > 1 else ""
    return listed([picture.name if several else "", f"x {left}–{right} y {top}–{bottom}", part])


def _key_cell(answer: Answer, row: int, key: int | None) -> list[tuple[str, str]]:
    """Return a key that a row reads, with its weight."""
    if key is None:
        return [(MISSING, "dim")]
    token = answer.tokens[key]
    weight = f"{float(answer.weights[row, key]):.2f}"
    return [(str(key), KEY), (isolated(label(token.text)), token_style(token)), (weight, "dim")]


# Records.


FACTS = ("model", "stack", "n_layer", "n_head", "layers", "heads", "pool")


def record(answer: Answer) -> dict[str, Any]:
    """Return `attnscope.answer/1`.

    Weights are those of segments and of patches; all weights, by key, are in the tensors that
    `--save` writes.
    """
    known, rows = answer.log_probabilities, answer.segment_rows
    return {
        "schema": f"attnscope.{answer.schema}/1",
        **{name: getattr(answer, name) for name in FACTS},
        "query": None if answer.query is None else answer.first + answer.query,
        "tokens": [token.text for token in answer.tokens],
        "written": [
            {
                "token": token.text,
                "id": answer.ids[row] if answer.ids else None,
                "position": answer.first + row,
                "query": answer.queries[row],
                "log_probability": None if known is None else number(known[row]),
            }
            for row, token in enumerate(answer.written)
        ],
        "segments": [
            {"name": each.name, "n_token": each.n_token, "spans": [list(span) for span in each.spans]}
            for each in answer.segments
        ],
        "shares": _numbers(shares(answer).astype("float32")),
        "sums": _head_records(answer, answer.sums, "sums") if answer.by_segment else None,
        "segment_shares": None if rows is None else _numbers(segment_shares(answer).astype("float32")),
        "segment_rows": None if rows is None else _head_records(answer, rows, "rows"),
        "pictures": [_picture_record(answer, picture) for picture in answer.pictures],
        "sinks": answer.sinks,
        "recorded": None if answer.recorded is None else _recorded_record(answer, answer.recorded),
        "times": plain(answer.times),
        "alignment": plain(answer.alignment),
        "checks": plain(answer.checks or []),
        "notices": answer.notices,
    }


def _recorded_record(answer: Answer, recorded: RecordedAnswer) -> dict[str, Any]:
    row = recorded.parts_at
    return {
        "engine": recorded.engine,
        "ids": recorded.ids,
        "log_probabilities": [
            None if each is None else number(each) for each in recorded.log_probabilities
        ],
        "tolerances": recorded.tolerances,
        "drift": None if recorded.drift is None else answer.first + recorded.drift,
        "parts_at": None if row is None else answer.first + row,
        "causes": recorded.causes,
    }


def _head_records(answer: Answer, of_heads: np.ndarray, name: str) -> list[dict[str, Any]]:
    """Return the numbers of each head, `n_row n_segment`."""
    return [
        {"layer": layer, "head": head, name: _numbers(of_heads[i, j])}
        for i, layer in enumerate(answer.layers)
        for j, head in enumerate(answer.heads)
    ]


def _picture_record(answer: Answer, picture: PatchedPicture) -> dict[str, Any]:
    """Return the patches of a picture, and the weights that each row gives them, `n_row n_patch`."""
    width, height = picture.image.size
    return {
        "name": picture.name,
        "width": width,
        "height": height,
        "lost": picture.lost,
        "positions": positions(picture.patches),
        "parts": [patch.part for patch in picture.patches],
        "boxes": [list(patch.box) for patch in picture.patches],
        "weights": _numbers(answer.weights[:, positions(picture.patches)]),
    }


def _numbers(array: np.ndarray) -> list[list[Any]]:
    """Return rows of float32 with the fewest digits that identify them; NaN as a string."""
    return [[number(float(each)) for each in row.astype(str).tolist()] for row in array]


def table(answer: Answer) -> list[Column]:
    """Return the columns of CSV and pandas.

    A row for each token and patch, with the patch's box and weight; without pictures, or by segment, a
    row for each token and segment, with its share of the weight; with rows of segments, a row for each
    two segments. With a query, the rows of its token alone.
    """
    segments: dict[str, list[Any]] = {
        "segment": [each.name for each in answer.segments],
        "n_token": [each.n_token for each in answer.segments],
    }
    if answer.segment_rows is not None:
        known, of_segments = bars(answer)
        segments = {key: [values[i] for i in known] for key, values in segments.items()}
        reading = {"query_segment": segments["segment"], "n_query": segments["n_token"]}
        return _of_pairs(reading, segments, "share", of_segments[:, known].astype("float32"))
    answer = answer.alone()
    of_rows: dict[str, list[Any]] = {
        "query": answer.queries,
        "position": list(range(answer.first, answer.first + len(answer.written))),
        "token": [token.text for token in answer.written],
    }
    if answer.log_probabilities is not None:
        of_rows["log_probability"] = list(answer.log_probabilities)
    if answer.recorded is not None:
        of_rows["log_probability_there"] = list(answer.recorded.log_probabilities)
    if answer.alignment is not None:
        of_rows["second"] = list(answer.alignment.seconds)
    if not answer.pictures or answer.by_segment:
        return _of_pairs(of_rows, segments, "share", shares(answer).astype("float32"))
    patches = [(picture.name, patch) for picture in answer.pictures for patch in picture.patches]
    places = [patch.position for _, patch in patches]
    keys: dict[str, list[Any]] = {
        "picture": [name for name, _ in patches],
        "part": [patch.part for _, patch in patches],
        "key": places,
    }
    for i, side in enumerate(("left", "top", "right", "bottom")):
        keys[side] = [patch.box[i] for _, patch in patches]
    return _of_pairs(of_rows, keys, "weight", answer.weights[:, places])


def _of_pairs(
    of_rows: dict[str, list[Any]], of_keys: dict[str, list[Any]], name: str, numbers: np.ndarray
) -> list[Column]:
    """Return columns of each pair of a row and a key, with their number, `n_row n_key`."""
    n_row, n_key = numbers.shape
    raw = {name: [each for each in values for _ in range(n_key)] for name, values in of_rows.items()}
    raw |= {name: values * n_row for name, values in of_keys.items()}
    raw[name] = [each for row in _numbers(numbers) for each in row]
    return [Column(name, name, [], values) for name, values in raw.items()]
