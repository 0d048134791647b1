"""Find which heads of cross-attention follow a recording, and when each token was said.

Times are those of transformers: dynamic time warping over the heads that align, on weights that are
standardised over tokens and smoothed by a median filter, by its own functions.

Source: Radford et al. 2022, "Robust Speech Recognition via Large-Scale Weak Supervision", and
https://github.com/openai/whisper, `whisper/timing.py`; `_extract_token_timestamps` of transformers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import ModelError, OptionError
from attnscope.model.answers.audio.listen import FrameTimes, Heard, read_again
from attnscope.model.files.checkpoint import Checkpoint
from attnscope.model.run.tokenize import tokens_of
from attnscope.model.run.written_rows import RecordedRows, WrittenRows

if TYPE_CHECKING:
    import numpy as np
    import torch

NEAR = 0.1  #: the seconds before and after a token's strongest frame that count as near it

MOST_HEADS = 10
"""The most measured heads that times are taken from: OpenAI names 5 (base.en) to 23 (large-v2)."""

FEW_TOKENS = 4
"""With fewer tokens, whether a head follows them is not measured: chance would order them, too."""


@dataclass(frozen=True)
class AligningHead:
    """How well a head of cross-attention follows a recording."""

    layer: int
    head: int
    #: Spearman's rank correlation of the tokens' order with the times of their strongest frames, from −1
    #: to 1; 0 if all have the same
    monotone: float
    peaked: float  #: the mean share of a token's weights that is within 0.1 s of its strongest frame
    named: bool = False  #: whether the model's own generation config names it in `alignment_heads`

    @property
    def score(self) -> float:
        """The product of both, 0 for heads that go backwards: 1 for a head that follows exactly."""
        return max(0.0, self.monotone) * self.peaked


@dataclass(frozen=True)
class TimedWord:
    """A word of the answer, and when it was said."""

    text: str  #: the word, with a leading space if it has one
    tokens: tuple[int, int]  #: the first and the end (exclusive) of its tokens in the answer
    #: first, end: seconds from the beginning of the recording; None: not known, as for the end of the
    #: last word
    first: float
    end: float | None


@dataclass
class SpeechAlignment:
    """When the tokens of an answer were said, and the heads that know."""

    heads: list[AligningHead]  #: all heads of cross-attention, those that follow best first
    used: list[tuple[int, int]]  #: the layers and heads that times are taken from
    #: `named`: the model's generation config names them; `measured`: they follow best; `selected` by the
    #: user
    origin: str
    #: of each token of the answer, as transformers computes them: that of the last is a copy of the one
    #: before, since no row reads it
    seconds: list[float]
    words: list[TimedWord]
    notices: list[str] = field(default_factory=list)


def align(
    checkpoint: Checkpoint, model: Any, heard: Heard, heads: list[tuple[int, int]] | None = None
) -> SpeechAlignment:
    """Measure how well heads follow a recording, and find when each token of the answer was said.

    The model reads its answer once more, all tokens at once, so nothing is kept but a few numbers of
    each head, and the rows of those that times are taken from.

    Args:
        heads: layers and heads that times are taken from; None: those that the model's generation config
            names in `alignment_heads`, or else those that follow best.
    """
    import torch

    ids = heard.prompt.answer or []
    alignment_heads = getattr(model.generation_config, "alignment_heads", None) or []
    named = [(int(layer), int(head)) for layer, head in alignment_heads]
    last = heard.n_start + len(ids) - 2  # of the queries
    found: list[AligningHead] = []
    of_layer: list[torch.Tensor] = []  # the rows of the layer that runs, which come some at a time

    def follow(rows: WrittenRows) -> None:
        of_layer.append(rows.weights.cpu().clone())
        if rows.queries[-1] < last:
            return
        weights = torch.cat(of_layer, 1)[:, heard.n_start :].double().numpy()
        of_layer.clear()
        for head, of_head in zip(rows.heads, weights, strict=True):
            is_named = (rows.layer, head) in named
            found.append(AligningHead(rows.layer, head, *followed(of_head, heard.times), is_named))

    read_again(checkpoint, model, heard, follow, RecordedRows("cross"), first=0)
    found.sort(key=lambda each: -each.score)
    known = {(each.layer, each.head) for each in found}
    if missing := [each for each in heads or named if each not in known]:
        layer, head = missing[0]
        raise OptionError(f"{checkpoint.name} has no head {head} in layer {layer} of cross-attention.")
    used, origin = heads or named, "selected" if heads else "named"
    if not used:
        origin = "measured"
        used = [
            (each.layer, each.head) for each in found[:MOST_HEADS] if each.score > found[0].score / 2
        ]
    if not used:
        raise ModelError(
            f"no head of {checkpoint.name} follows {heard.recording.name}, so when its words were said"
            " is not known.",
            hint=f"a recording with {FEW_TOKENS} words or more" if len(ids) <= FEW_TOKENS else None,
        )
    kept: dict[tuple[int, int], list[torch.Tensor]] = {each: [] for each in used}

    def keep(rows: WrittenRows) -> None:
        for head, of_head in zip(rows.heads, rows.weights, strict=True):
            if (rows.layer, head) in kept:
                kept[rows.layer, head].append(of_head.cpu().clone())

    rows = RecordedRows("cross", {layer for layer, _ in used}, {head for _, head in used})
    read_again(checkpoint, model, heard, keep, rows, first=0)
    weights = torch.stack([torch.cat(kept[each]) for each in used])[None]  # [1, n_head, n_Q, n_K]
    seconds = token_seconds(model, weights, heard.n_start, heard.times)
    return SpeechAlignment(found, used, origin, seconds, _words(heard, seconds))


def followed(weights: np.ndarray, times: FrameTimes) -> tuple[float, float]:
    """Return how well a head's rows, `n_row n_frame`, follow a recording: `monotone` and `peaked`."""
    import numpy as np

    if len(weights) < FEW_TOKENS:
        return 0.0, 0.0
    strongest = weights[:, : times.n_sound].argmax(axis=1)
    near = int(NEAR / times.step + 1e-6)
    sums = np.concatenate([np.zeros((len(weights), 1)), weights.cumsum(axis=1)], axis=1)
    i = np.arange(len(weights))
    before, after = np.maximum(strongest - near, 0), np.minimum(strongest + near + 1, times.n_frame)
    peaked = float((sums[i, after] - sums[i, before]).mean())
    if strongest.min() == strongest.max():
        return 0.0, peaked
    in_order = np.sort(strongest)  # frames that are equal share the mean of their ranks
    ranks = np.searchsorted(in_order, strongest) + np.searchsorted(in_order, strongest, "right")
    return float(np.corrcoef(i, ranks)[0, 1]), peaked


def token_seconds(model: Any, weights: Any, n_start: int, times: FrameTimes) -> list[float]:
    """Return when each token was said, by transformers' own function.

    The rows of the heads that align, `1 n_head n_Q n_frame`, are those of the `n_start` tokens that the
    decoder begins with, and of all tokens of the answer but the last.
    """
    import torch
    from transformers.generation.utils import GenerateEncoderDecoderOutput
    from transformers.models.whisper.generation_whisper import WhisperGenerationMixin

    of_sound = weights[..., n_start:, : times.n_sound]
    if of_sound.shape[2] and not bool((of_sound.std(dim=2, unbiased=False) > 0).all()):
        raise ModelError(
            "some frames have the same weights for all tokens, so transformers cannot align these tokens"
            " with the recording.",
            hint="more words; or a shorter recording",
        )
    width = getattr(model.config, "median_filter_width", 7)
    of_model: Any = SimpleNamespace(config=SimpleNamespace(decoder_layers=1, median_filter_width=width))
    n_token = weights.shape[2] + 1
    sequences: Any = torch.zeros(1, n_token, dtype=torch.long)
    output = GenerateEncoderDecoderOutput(sequences=sequences, cross_attentions=((weights,),))
    seconds = WhisperGenerationMixin._extract_token_timestamps(
        of_model,
        output,
        [(0, i) for i in range(weights.shape[1])],
        time_precision=times.step,
        num_frames=2 * times.n_sound,  # which it halves, as Whisper's second convolution does
        num_input_ids=n_start,
    )
    return [round(times.first + each, 6) for each in seconds[0, n_start:].tolist()]


def _words(heard: Heard, seconds: list[float]) -> list[TimedWord]:
    """Join tokens to words, without special ones; Whisper's tokenizer knows its languages' words."""
    tokenizer, ids = heard.prompt.tokenizer, heard.prompt.answer or []
    tokens = tokens_of(tokenizer, ids)
    special = (
        set() if tokenizer is None else set(tokenizer.all_special_ids)
    )  # Whisper's unknown one, too
    said = [i for i, number in enumerate(ids) if number not in special]
    words: list[tuple[str, list[int]]] = []
    if hasattr(tokenizer, "_decode_with_timestamps"):
        from transformers.models.whisper.tokenization_whisper import _combine_tokens_into_words

        texts, _, places = _combine_tokens_into_words(
            tokenizer, [ids[i] for i in said], _language(heard)
        )
        words = [(text, [said[i] for i in of]) for text, of in zip(texts, places, strict=True) if of]
    else:
        for i in said:
            if words and tokenizer is not None and not tokens[i].text.startswith(" "):
                text, places = words[-1]
                words[-1] = (text + tokens[i].text, [*places, i])
            else:
                words.append((tokens[i].text, [i]))
    return [
        TimedWord(
            text,
            (of[0], of[-1] + 1),
            seconds[of[0]],
            seconds[of[-1] + 1] if of[-1] + 1 < len(seconds) else None,
        )
        for text, of in words
    ]


def _language(heard: Heard) -> str | None:
    """Return the language that the decoder began with, as Whisper's tokenizer names it; or None."""
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    start = heard.prompt.inputs["decoder_input_ids"][0].tolist()
    marks = heard.prompt.tokenizer.convert_ids_to_tokens(start)
    codes = [str(mark).strip("<|>") for mark in marks]
    return next((LANGUAGES[code] for code in codes if code in LANGUAGES), None)
