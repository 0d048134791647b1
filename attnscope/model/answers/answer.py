"""Let a model answer, and collect what it reads while it writes: `attnscope.answer`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import ModelError, OptionError, warn_unused
from attnscope.base.options import with_keywords
from attnscope.base.process.progress import Progress, silent, stage
from attnscope.base.spelling import spelled, spelled_any
from attnscope.document.result import Check
from attnscope.model.answers.options import TOKENS, AnswerRequest
from attnscope.model.answers.prompt import Prompt, Segment, spans_of, with_sink
from attnscope.model.answers.result import Answer
from attnscope.model.files.loaded import find_model
from attnscope.model.run.tokens import Token, query_position

if TYPE_CHECKING:
    from attnscope.model.answers.audio.listen import Heard
    from attnscope.model.answers.replay.recorded import RecordedAnswer
    from attnscope.model.answers.sums import RowSums
    from attnscope.model.files.checkpoint import Checkpoint
    from attnscope.model.run.open import OpenedModel
    from attnscope.model.run.written_rows import WrittenText

LARGEST = 2**24  #: The most weights of single layers that are kept for a page: 64 MiB of float32


@with_keywords
def answer(
    model: Any = None,
    text: str | None = None,
    *,
    request: AnswerRequest,
    page: bool = False,
    tokenizer: Any = None,
    processor: Any = None,
    progress: Progress = silent,
) -> Answer:
    """Let a model answer, and return what it reads while it writes, as `attnscope answer` shows it.

    For example::

        answer = attnscope.answer("llava-hf/llava-1.5-7b-hf", "What is on the sofa?", image="cat.jpg")
        answer.weights  # n_row n_K: a row for each token of the answer
        answer.save("answer.html")
        attnscope.answer(model, messages=chat, tokenizer=tokenizer, by="segment", generate=200)

    The model writes greedily; with `replay`, it is made to write the tokens that the server returned.
    The prompt is `text`, `file`, `messages` or `audio`. An image is a file or an image of pillow; a
    video a file, an array, `n_frame height width 3`, or a list of frames, `video=[[frame, …]]`; several
    are a list. A recording is a file, or samples and their rate, `(samples, 16000)`. `messages` is a
    file or `[{"role": …, "content": …}, …]`, `replay` a file or its content; `segments` may also be by
    name: ranges of characters, or texts that occur once.

    The row of a token at position t is that of query t − 1, which wrote it (`rows="writing"`), or of
    query t (`"reading"`). With `rows="segments"`, which implies `by="segment"`, `segment_rows` has the
    mean of each segment's own rows, prompt included, and tokens have the rows of `"reading"`.

    Args:
        model: `minilm`, a folder, a hub name, or a model that transformers has loaded.
        text: the prompt; a question about the pictures, if there are some.
        page: collect each layer's weights, too, which a page shows.
        tokenizer, processor: those of a loaded model, which stays on its own device, unless `device` is
            not `cpu`.
        progress: called with the progress of the work.

    Returns:
        The tokens of the answer, a row of pooled weights for each, and for each head their sums over
        segments.

    Raises:
        OptionError: options contradict each other, or the model does not support them.
        ModelError: there is no such model, layer or head; its attention cannot be observed; or where
            its patches are is not known.
        FileError: a file cannot be read.
    """
    request = replace(request, text=text, page=page)
    request.check()
    return _answer(request, find_model(model, tokenizer, processor=processor), progress)


@dataclass(frozen=True)
class _Run:
    """A model that is ready to write, and what it reads."""

    request: AnswerRequest
    checkpoint: Checkpoint
    model: Any  #: as `OpenedModel.load` returned it
    prompt: Prompt
    stack: str  #: the stack of layers whose rows are shown
    heard: Heard | None = None  #: the recording that it has written down already, if it reads one
    recorded: RecordedAnswer | None = None  #: what an engine recorded of the answer, if it wrote it

    @property
    def crosses(self) -> bool:
        """Whether the keys are what an encoder read."""
        return self.stack == "cross"

    @property
    def start(self) -> list[int]:
        """The ids with which a decoder begins."""
        given = self.prompt.inputs.get("decoder_input_ids")
        if given is not None:
            return list(given[0].tolist())
        settings = self.model.generation_config
        start = settings.decoder_start_token_id
        return [settings.bos_token_id if start is None else start]

    @property
    def first(self) -> int:
        """The position of the first token of the answer."""
        return len(self.start if self.model.config.is_encoder_decoder else self.prompt.tokens)

    @property
    def n_write(self) -> int:
        """The most tokens to write."""
        answer = self.prompt.answer
        return self.request.generate or TOKENS if answer is None else len(answer)

    @property
    def n_key(self) -> int:
        """The largest number of keys."""
        return len(self.prompt.tokens) if self.crosses else self.first + self.n_write + 1

    @property
    def segments(self) -> list[Segment]:
        """The segments of all keys: those of the prompt, what is in none of them, and the answer."""
        answer = Segment("answer", ((self.first, self.n_key),))
        if self.stack == "decoder":
            return [Segment("start", ((0, self.first),)), answer]
        segments = self.prompt.segments
        if self.request.without_sink and not self.crosses:
            segments = with_sink(segments)
        covered = {i for segment in segments for i in segment.positions}
        others = spans_of([i for i in range(len(self.prompt.tokens)) if i not in covered])
        segments = [*segments, *([Segment("other", others)] if others else [])]
        return segments if self.crosses else [*segments, answer]


def _answer(request: AnswerRequest, checkpoint: Checkpoint, progress: Progress) -> Answer:
    """Load a model, let it write, and collect its rows."""
    from attnscope.model.run.open import open_model

    opening = open_model(checkpoint, request.device, dtype=request.dtype, progress=progress)
    with opening as opened:
        run = _load(request, opened)
        with stage(progress, f"running {opened.name} …"):
            return _collect(run, progress)


def _load(request: AnswerRequest, opened: OpenedModel) -> _Run:
    """Read the prompt, and load the model."""
    from attnscope.model.answers.audio.listen import check_hears, listen
    from attnscope.model.run.layers import check_numbers
    from attnscope.model.run.tokenize import Reading

    recorded, checkpoint = None, opened.checkpoint
    with opened.loading():
        config = opened.config
        opened.check_device()
        check_numbers(
            opened.name,
            config,
            Reading({}),
            request.layer_numbers or [],
            request.head_numbers or [],
        )
        if request.audio is not None:
            check_hears(checkpoint, config)
            prompt = Prompt({}, [])
        elif request.replay is None:
            prompt = _read(request, checkpoint, config)
        else:
            prompt, recorded = _replayed(request, checkpoint, config)
        opened.check_weights_fit()
        model = opened.load(generates=True)
        prompt.inputs = {
            name: value.to(opened.device) if hasattr(value, "to") else value
            for name, value in prompt.inputs.items()
        }
    stack = _stack(request, checkpoint, opened.config)
    if request.audio is None:
        return _Run(request, checkpoint, model, prompt, stack, recorded=recorded)
    with stage(opened.progress, f"{opened.name} listens …"):
        heard = listen(checkpoint, model, request.audio, request.generate, truncate=request.truncate)
    return _Run(request, checkpoint, model, heard.prompt, stack, heard)


def _replayed(
    request: AnswerRequest, checkpoint: Checkpoint, config: Any
) -> tuple[Prompt, RecordedAnswer]:
    """Build the prompt that the options name, or that of the file, with the answer of an engine."""
    from attnscope.model.answers.replay.read import read_replay

    named = any(each is not None for each in (request.text, request.file, request.messages))
    prompt = _read(request, checkpoint, config) if named else None
    return read_replay(checkpoint, config, request.replay, prompt, request.segments, request.choice)


def _read(request: AnswerRequest, checkpoint: Checkpoint, config: Any) -> Prompt:
    """Build the prompt that the options name."""
    from attnscope.model.answers.segments.of_messages import read_messages
    from attnscope.model.answers.segments.of_pictures import read_pictures_and_text
    from attnscope.model.answers.segments.of_text import read_text
    from attnscope.model.run.text_file import text_of_file
    from attnscope.model.run.tokenize import check_reads, max_tokens

    if not (request.pictures or request.videos):  # those are checked where they are read
        check_reads(checkpoint, config, "text")
    if request.messages is not None:
        return read_messages(checkpoint, config, request.messages, request.segments, fps=request.fps)
    text, name = request.text or "", None
    if request.file is not None:
        text = text_of_file(Path(request.file), max_tokens(config), truncate=request.truncate)
        name = spelled("file", request.file)
    if request.pictures or request.videos:
        return read_pictures_and_text(
            checkpoint,
            config,
            request.pictures,
            text,
            request.segments,
            grid=request.grid,
            videos=request.videos,
            fps=request.fps,
        )
    truncate = request.truncate
    return read_text(checkpoint, config, text, request.segments, name=name, truncate=truncate)


def _stack(request: AnswerRequest, checkpoint: Checkpoint, config: Any) -> str:
    """Return the stack whose rows are shown.

    Raises:
        OptionError: it does not write.
    """
    from attnscope.model.run.layers import has_towers

    if config.is_encoder_decoder:
        writes = ["cross", "decoder"]
    else:
        writes = ["text" if has_towers(config) else "self"]
    if request.stack not in (None, *writes):
        raise OptionError(
            f"{spelled('stack', request.stack)} of {checkpoint.name} does not write.",
            hint=spelled_any("stack", writes, " or "),
        )
    if request.of_segments and config.is_encoder_decoder:
        raise OptionError(
            f"{checkpoint.name} reads the prompt with its encoder, whose tokens are not keys of the"
            f" answer's rows: {spelled('rows', 'segments')} is for models that write what they read.",
            hint=spelled(by="segment"),
        )
    because = "the decoder's first token is a segment of its own anyway, and cross-attention has none"
    warn_unused([(request.without_sink and config.is_encoder_decoder, "without_sink", because)])
    return request.stack or writes[0]


def _collect(run: _Run, progress: Progress) -> Answer:
    """Let the model write, and return the rows that are shown."""
    import torch

    from attnscope.model.answers.audio.alignment import align
    from attnscope.model.answers.replay.recorded import compare
    from attnscope.model.answers.sums import sink_patches
    from attnscope.model.run.tokenize import tokens_of
    from attnscope.model.run.written_rows import UnexplainedWeightsError

    request, prompt, notices, eager = run.request, run.prompt, list(run.prompt.notices), False
    try:
        sums, text = _write(run, progress)
    except UnexplainedWeightsError as error:
        eager = True
        _check_eager_fits(run)
        notices.append(f"{str(error).rstrip('.')}. These rows are from its own eager attention.")
        sums, text = _write(run, progress, eager=True)
    if not text.ids:
        raise ModelError(
            f"{run.checkpoint.name} wrote nothing but the end of the text, which no query reads.",
            hint=spelled(rows="writing"),
        )
    n_row = len(text.ids)
    n_K = len(prompt.tokens) if run.crosses else text.first + n_row
    weights, of_segments, of_layers = sums.numbers(n_row, n_K)
    written = tokens_of(prompt.tokenizer, text.ids, generated=True)
    own = [] if run.crosses else written
    if run.stack == "decoder":
        own = [*tokens_of(prompt.tokenizer, run.start), *written]
    answer = Answer(
        model=run.checkpoint.name,
        stack=run.stack,
        n_layer=text.n_layer,
        n_head=max(text.n_head.values()),
        tokens=own if run.stack == "decoder" else [*prompt.tokens, *own],
        written=written,
        ids=text.ids,
        first=text.first,
        queries=[text.first + row - request.before for row in range(n_row)],
        layers=sorted({layer for layer, _ in sums.sums}),
        heads=sorted({head for _, head in sums.sums}),
        pool=request.pooling,
        weights=weights,
        sums=of_segments,
        segments=[_within(segment, n_K) for segment in run.segments],
        pictures=[] if run.stack == "decoder" else prompt.pictures,
        log_probabilities=text.log_probabilities,
        of_layers=of_layers,
        by_segment=request.by is not None or request.of_segments,
        notices=notices,
        recorded=run.recorded,
        segment_rows=None if sums.segment_rows is None else sums.segment_rows.numbers(),
    )
    if run.recorded is not None:
        eps, n_vocab = torch.finfo(run.model.dtype).eps, run.model.config.get_text_config().vocab_size
        compare(run.recorded, text.log_probabilities, text.largest_logits, eps, n_vocab)
    patches = [patch.position for picture in answer.pictures for patch in picture.patches]
    answer.sinks = [] if run.crosses else [0, *sink_patches(weights, patches)]
    if run.heard is not None:
        if run.crosses:
            answer.times, answer.recording = run.heard.times, run.heard.recording
        try:
            answer.alignment = align(run.checkpoint, run.model, run.heard)
        except ModelError as error:
            notices.append(error.message)
    answer.query = _row(request.query, answer)
    if request.verify:
        answer.checks = [_verified(run, answer, progress, eager=eager)]
    return answer


def _check_eager_fits(run: _Run) -> None:
    """Raise a SizeError if the whole weights that eager attention returns do not fit into memory."""
    from attnscope.base.process.devices import check_memory
    from attnscope.model.run.layers import counts
    from attnscope.model.run.tokenize import Reading

    n_layer, n_head = counts(run.model.config, Reading({}))
    n_token = len(run.prompt.tokens)
    size = (n_layer or 1) * (n_head or 1) * n_token**2 * max(4, run.model.dtype.itemsize)
    check_memory(size, str(run.model.device), "a shorter prompt: it runs with eager attention")


def _row(query: int | str | None, answer: Answer) -> int | None:
    """Return the row of a token of the answer, given by its position or its text.

    Raises:
        OptionError: there is no such token, or several.
    """
    first, end = answer.first, answer.first + len(answer.written)
    hint = spelled(query=first)
    position = query_position(query, [Token("")] * first + answer.written, hint)
    if position is not None and not first <= position < end:
        raise OptionError(
            f"there is no token {position} in the answer: its tokens are {first} to {end - 1}.",
            hint=hint,
        )
    return None if position is None else position - first


def _within(segment: Segment, n_K: int) -> Segment:
    """Return a segment without positions that were not written."""
    spans = [(first, min(end, n_K)) for first, end in segment.spans]
    return replace(segment, spans=tuple((first, end) for first, end in spans if first < end))


def _write(
    run: _Run, progress: Progress, *, answer: list[int] | None = None, eager: bool = False
) -> tuple[RowSums, WrittenText]:
    """Let the model write once, or the ids of an answer, and sum its rows."""
    from attnscope.model.answers.audio.listen import read_again
    from attnscope.model.answers.sums import RowSums
    from attnscope.model.run.written_rows import RecordedRows, check_length, write

    request, n, n_K = run.request, run.n_write, run.n_key
    first_query = run.first - request.before
    config = run.model.config
    if run.heard is None:
        check_length(run.checkpoint.name, config, run.first, n, has_answer=run.prompt.answer is not None)
    n_layer = getattr(config.get_text_config(), "num_hidden_layers", 1)
    sums = RowSums(
        first_query,
        n + 1,
        n_K,
        run.segments,
        request.pooling,
        of_layers=request.page and n_layer * n * n_K <= LARGEST,
        of_segments=request.of_segments,
    )
    rows = RecordedRows(
        run.stack,
        request.layer_numbers,
        request.head_numbers,
        reading=request.reads,
        of_prompt=request.of_segments,
        eager=eager,
    )
    if run.heard is not None:
        return sums, read_again(run.checkpoint, run.model, run.heard, sums.add, rows, first_query)
    text = write(
        run.checkpoint,
        run.model,
        run.prompt.inputs,
        sums.add,
        rows,
        n=n,
        answer=run.prompt.answer if answer is None else answer,
        progress=lambda done: progress(f"{run.checkpoint.name} writes {done} …"),
    )
    return sums, text


ROWS = "rows = those of the model's own eager attention"  #: The name of a check


def _verified(run: _Run, answer: Answer, progress: Progress, *, eager: bool) -> Check:
    """Compare the rows with those of the model's own eager attention, which writes the same tokens.

    Rows that are from `eager` attention are not compared.
    """
    import numpy as np

    from attnscope.model.run.validate import NotWeightsError, eager_tolerance

    if eager:
        note = "not compared: these rows are from its eager attention"
        return Check(ROWS, None, None, None, note=note)
    try:
        sums, _ = _write(run, progress, answer=answer.ids, eager=True)
    except NotWeightsError:
        note = "not compared: its eager attention does not return weights"
        return Check(ROWS, None, None, None, note=note)
    weights, of_segments, _ = sums.numbers(len(answer.ids), answer.weights.shape[1])
    pairs = [(weights, answer.weights), (of_segments, answer.sums)]
    if sums.segment_rows is not None and answer.segment_rows is not None:
        pairs.append((sums.segment_rows.numbers(), answer.segment_rows))
    difference = max(float(np.nanmax(np.abs(one - other))) for one, other in pairs)
    return Check.within(ROWS, difference, *eager_tolerance(run.model.dtype))
