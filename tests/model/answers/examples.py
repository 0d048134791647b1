"""Answers made by hand, without a model."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from PIL import Image

from attnscope.model.answers.prompt import Patch, PatchedPicture, Segment
from attnscope.model.answers.result import Answer
from attnscope.model.run.tokens import Token

SIZE = (192, 144)


def landscape(width: int, height: int) -> Image.Image:
    """Return a picture of a sun over hills: dark and light parts, and edges to recognise."""
    y, x = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    image = np.stack([120 + 90 * (1 - y), 150 + 60 * (1 - y), 230 - 40 * y], -1)
    hill = y > 0.62 + 0.12 * np.sin(6 * x)
    image[hill] = np.array([40, 110, 50]) + 60 * (1 - y[hill])[:, None]
    sun = ((x - 0.72) * width) ** 2 + ((y - 0.3) * height) ** 2 < (0.13 * height) ** 2
    image[sun] = [250, 220, 60]
    return Image.fromarray(image.clip(0, 255).astype(np.uint8))


def grid(
    first: int, rows: int, columns: int, box: tuple[float, float, float, float], part: str = "whole"
) -> tuple[Patch, ...]:
    """Return patches that divide a box into equal cells, row by row."""
    left, top, right, bottom = box
    width, height = (right - left) / columns, (bottom - top) / rows
    return tuple(
        Patch(
            first + row * columns + column,
            (
                left + column * width,
                top + row * height,
                left + (column + 1) * width,
                top + (row + 1) * height,
            ),
            part,
        )
        for row in range(rows)
        for column in range(columns)
    )


def rows_of(n_prompt: int, n_row: int, seed: int = 3, *, crosses: bool = False) -> np.ndarray:
    """Draw rows of weights that sum to 1 over the keys that each query sees; the first key is a sink."""
    rng = np.random.default_rng(seed)
    n_K = n_prompt if crosses else n_prompt + n_row
    weights = rng.random((n_row, n_K)) ** 4
    weights[:, 0] = weights.sum(1) * 0.3
    if not crosses:
        for row in range(n_row):
            weights[row, n_prompt + row :] = 0
    return (weights / weights.sum(1, keepdims=True)).astype(np.float32)


def made(
    prompt: list[str],
    words: list[str],
    segments: list[Segment],
    weights: np.ndarray,
    *,
    n_layer: int = 3,
    n_head: int = 4,
    **more: Any,
) -> Answer:
    """Return an answer whose sums differ between heads around those of its weights."""
    stack = more.pop("stack", "self")
    written = [Token(word, generated=True) for word in words]
    crosses = stack == "cross"
    first = 1 if crosses else len(prompt)
    sums = np.stack([weights[:, segment.positions].sum(1) for segment in segments], 1)
    factors = 1 + 0.5 * np.sin(np.arange(n_layer * n_head * len(segments)))
    of_heads = factors.reshape(n_layer, n_head, 1, -1) * sums
    tokens = [Token(text, special=text.startswith("<")) for text in prompt]
    return Answer(
        model="a model",
        stack=stack,
        n_layer=n_layer,
        n_head=n_head,
        tokens=tokens if crosses else [*tokens, *written],
        written=written,
        first=first,
        queries=[first + row - 1 for row in range(len(words))],
        layers=list(range(n_layer)),
        heads=list(range(n_head)),
        weights=weights,
        sums=of_heads.clip(0, 1).astype(np.float32),
        segments=segments,
        **{"pool": "mean", "sinks": [0], "ids": list(range(100, 100 + len(words))), **more},
    )


def towards(weights: np.ndarray, row: int, picture: PatchedPicture, x: float, y: float) -> None:
    """Move half of a row's weight to the patches around a place of a picture, in pixels."""
    near = np.zeros(weights.shape[1], dtype=np.float32)
    size = max(picture.image.size)
    for patch in picture.patches:
        left, top, right, bottom = patch.box
        far = ((left + right) / 2 - x) ** 2 + ((top + bottom) / 2 - y) ** 2
        near[patch.position] = np.exp(-far / (0.08 * size) ** 2)
    weights[row] = weights[row] * 0.5 + 0.5 * near / near.sum()


WORDS = [" The", " sun", " is", " above", " a", " green", " hill", ",", " under", " blue", " sky", "."]


def one_picture(side: int = 24, **more: Any) -> Answer:
    """Return an answer of 12 words about one picture of side × side patches; two patches are sinks."""
    image = landscape(*SIZE)
    picture = PatchedPicture("picture 1", image, grid(5, side, side, (0, 0, *SIZE)))
    n = side * side
    prompt = ["<s>", "USER", ":", " <image>", "\n", *["<image>"] * n, " What", " is", " here", "?"]
    weights = rows_of(len(prompt), len(WORDS))
    for row, (x, y) in {1: (138, 43), 5: (60, 120), 6: (40, 110), 10: (40, 20)}.items():
        towards(weights, row, picture, x, y)
    sinks = [5 + n // 3, 5 + n // 2 + side // 3]
    weights[:, sinks] = 0.06
    weights /= weights.sum(1, keepdims=True)
    segments = [
        Segment("other", ((0, 5),)),
        Segment("picture 1", ((5, 5 + n),)),
        Segment("user", ((5 + n, len(prompt)),)),
        Segment("answer", ((len(prompt), len(prompt) + len(WORDS)),)),
    ]
    probabilities = (-np.linspace(0.01, 2.5, len(WORDS))).tolist()
    known: dict[str, Any] = {
        "pictures": [picture],
        "sinks": [0, *sinks],
        "log_probabilities": probabilities,
    }
    return made(prompt, WORDS, segments, weights, **(known | more))


def two_pictures(**more: Any) -> Answer:
    """Return an answer about a wide picture with two tiles and a whole, and a tall one, partly cropped."""
    wide, tall = landscape(200, 100), landscape(90, 120)
    tiles = [
        *grid(2, 6, 6, (0, 0, 100, 100), "tile 1, 1"),
        *grid(38, 6, 6, (100, 0, 200, 100), "tile 1, 2"),
        *grid(74, 6, 6, (0, 0, 200, 100), "whole"),
    ]
    pictures = [
        PatchedPicture("picture 1", wide, tuple(tiles)),
        PatchedPicture("picture 2", tall, grid(112, 5, 5, (0, 15, 90, 105)), 0.25),
    ]
    prompt = ["<s>", " <1>", *["<image>"] * 108, " <2>", " and", *["<image>"] * 25, " Compare", "."]
    words = [" One", " is", " wide", ",", " one", " is", " tall"]
    weights = rows_of(len(prompt), len(words), 5)
    towards(weights, 2, pictures[0], 160, 50)
    towards(weights, 6, pictures[1], 45, 60)
    segments = [
        Segment("other", ((0, 2), (110, 112))),
        Segment("picture 1", ((2, 110),)),
        Segment("picture 2", ((112, 137),)),
        Segment("user", ((137, 139),)),
        Segment("answer", ((139, 146),)),
    ]
    return made(prompt, words, segments, weights, **({"pictures": pictures} | more))


CHAT = {
    "system": "You answer in one short sentence .",
    "document 1": "The library opens at nine and closes at six on weekdays .",
    "document 2": "On Saturdays the reading room is open from ten to two ; on Sundays it is closed .",
    "document 3": "Loans last four weeks .",
    "user": "When can I read there on Saturday ?",
}


def chat(words: str = "From ten to two , in the reading room .", **more: Any) -> Answer:
    """Return an answer from a chat with documents, without pictures."""
    prompt, segments = ["<s>"], [Segment("other", ((0, 1),))]
    for name, text in CHAT.items():
        tokens = [f" {word}" for word in text.split()]
        segments.append(Segment(name, ((len(prompt), len(prompt) + len(tokens)),)))
        prompt += tokens
    written = [f" {word}" for word in words.split()]
    segments.append(Segment("answer", ((len(prompt), len(prompt) + len(written)),)))
    weights = rows_of(len(prompt), len(written), 7)
    start, end = segments[3].spans[0]
    weights[:4, start:end] *= 9
    weights /= weights.sum(1, keepdims=True)
    return made(prompt, written, segments, weights, **({"by_segment": True} | more))


def rows_of_segments(**more: Any) -> Answer:
    """Return the same chat with rows of segments, each of which reads those up to it."""
    answer = chat(**more)
    n = len(answer.segments)
    drawn = np.random.default_rng(13).random((len(answer.layers), len(answer.heads), n, n))
    visible = np.tril(drawn)
    answer.segment_rows = (visible / visible.sum(3, keepdims=True)).astype(np.float32)
    return answer


def long(n_prompt: int = 8000, n_row: int = 200, **more: Any) -> Answer:
    """Return 200 words written after 8,000 tokens in 20 documents."""
    prompt = ["<s>", *[f" w{i % 977}" for i in range(n_prompt - 1)]]
    ends = np.linspace(1, n_prompt, 21).astype(int).tolist()
    spans = pairwise(ends)
    segments = [Segment("other", ((0, 1),))]
    segments += [Segment(f"document {i + 1}", (span,)) for i, span in enumerate(spans)]
    segments.append(Segment("answer", ((n_prompt, n_prompt + n_row),)))
    words = [f" word{i}" for i in range(n_row)]
    return made(prompt, words, segments, rows_of(n_prompt, n_row, 11), **({"by_segment": True} | more))


def one_head(**more: Any) -> Answer:
    """Return an answer of one layer's one head, with one word."""
    segments = [Segment("text", ((0, 4),)), Segment("answer", ((4, 5),))]
    prompt = ["<s>", " one", " two", " three"]
    return made(prompt, [" four"], segments, rows_of(4, 1), n_layer=1, n_head=1, **more)


def cross(**more: Any) -> Answer:
    """Return an answer of a decoder that reads what an encoder read."""
    prompt = [" Übersetze", ":", " ein", " kleines", " Haus", "</s>"]
    segments = [Segment("text", ((0, 5),)), Segment("other", ((5, 6),))]
    weights = rows_of(6, 3, crosses=True)
    return made(prompt, [" a", " small", " house"], segments, weights, stack="cross", **more)


def with_layers(answer: Answer) -> Answer:
    """Add weights of each layer, whose mean is that of the answer: in layers, keys change places."""
    n = len(answer.layers)
    factors = 1 + 0.5 * np.sin(np.arange(n)[:, None] + np.arange(answer.weights.shape[1]))
    factors /= factors.mean(0)
    of_layers = answer.weights * factors[:, None, :]
    answer.of_layers = (of_layers / of_layers.sum(2, keepdims=True)).astype(np.float32)
    return answer


def every_answer() -> dict[str, Answer]:
    """Return an answer of every kind, by a name for it."""
    return {
        "one picture": one_picture(6),
        "one word of a picture": one_picture(6, query=1),
        "a picture by segment": one_picture(6, by_segment=True),
        "two pictures": two_pictures(),
        "a chat": chat(),
        "segments of a chat": rows_of_segments(),
        "a chat without sums": chat(by_segment=False),
        "one head": one_head(),
        "cross": cross(),
        "maxima": one_picture(6, pool="max", query=6),
    }
