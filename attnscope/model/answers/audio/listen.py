"""Let a model write down a recording, and return what it read and wrote as a prompt with its answer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from typing import Any

from attnscope.base.errors import ModelError
from attnscope.base.units import counted
from attnscope.model.answers.audio.recording import Sound, read_recording
from attnscope.model.answers.prompt import Prompt, Segment
from attnscope.model.files.checkpoint import Checkpoint
from attnscope.model.run.attention_hook import observing
from attnscope.model.run.load import as_model_error, class_of, load_processor, switched_attention
from attnscope.model.run.tokenize import AUDIO_INPUTS, batch_of
from attnscope.model.run.tokens import Token
from attnscope.model.run.written_rows import (
    RecordedRows,
    RowRecorder,
    WrittenRows,
    WrittenText,
)


@dataclass
class Heard:
    """A recording that a model has written down."""

    #: the model's arguments, with the decoder's beginning, such as Whisper's tokens of language and
    #: task; a token for each frame of the encoder; the segments `sound` and `padding`; and the ids of
    #: the answer
    prompt: Prompt
    times: FrameTimes
    recording: Sound
    encoded: Any = None

    @property
    def n_start(self) -> int:
        """The number of tokens that the decoder begins with."""
        return int(self.prompt.inputs["decoder_input_ids"].shape[1])


def check_hears(checkpoint: Checkpoint, config: Any) -> None:
    """Raise a ModelError unless a model reads sound with an encoder and writes with a decoder."""
    with as_model_error(checkpoint):
        main_input = class_of(config).main_input_name
    if main_input not in AUDIO_INPUTS:
        raise ModelError(
            f"{checkpoint.name} ({config.model_type}) does not read recordings.",
            hint="an encoder-decoder model that does, such as openai/whisper-tiny",
        )
    if not config.is_encoder_decoder:
        raise ModelError(
            f"{checkpoint.name} ({config.model_type}) has no decoder that writes what it hears.",
            hint="an encoder-decoder model, such as openai/whisper-tiny",
        )


def listen(
    checkpoint: Checkpoint, model: Any, audio: Any, n: int | None = None, *, truncate: bool = False
) -> Heard:
    """Let a model write down a recording, greedily, with its own `generate`.

    So the decoder begins as it does there: Whisper detects the language, unless its generation config
    names one, and does not write time stamps; and without `n`, its length is limited as there.
    """
    import torch

    check_hears(checkpoint, model.config)
    processor = load_processor(checkpoint)
    extractor = getattr(processor, "feature_extractor", processor)
    tokenizer = getattr(processor, "tokenizer", None) or getattr(checkpoint, "tokenizer", None)
    _check_bands(checkpoint, model.config, extractor)
    most = getattr(extractor, "n_samples", None)
    limits: dict[str, Any] = {"most": most, "truncate": truncate, "model": checkpoint.name}
    recording = read_recording(audio, extractor.sampling_rate, **limits)
    notices = list(recording.notices)
    with as_model_error(checkpoint):
        features = extractor(
            recording.samples,
            sampling_rate=recording.rate,
            return_tensors="pt",
            return_attention_mask=True,
        )
        inputs = _accepted(model, dict(features))
        inputs = {name: each.to(model.device) for name, each in inputs.items()}
        main = model.main_input_name
        inputs[main] = inputs[main].to(model.dtype)
        with torch.no_grad():
            encoded = model.get_encoder()(**_accepted(model.get_encoder(), inputs))
        n_frame = encoded.last_hidden_state.shape[1]
        times = frame_times(checkpoint.name, model, extractor, inputs, n_frame, len(recording.samples))
        start, ids = _generated(model, inputs, n)
    if not ids:
        raise ModelError(f"{checkpoint.name} wrote nothing down of {recording.name}.")
    frames = [Token(f"{times.seconds(i):.2f} s") for i in range(times.n_frame)]
    segments = [Segment("sound", ((0, times.n_sound),))]
    if times.n_sound < times.n_frame:
        segments.append(Segment("padding", ((times.n_sound, times.n_frame),)))
    inputs["decoder_input_ids"] = batch_of(start).to(model.device)
    prompt = Prompt(inputs, frames, segments, answer=ids, tokenizer=tokenizer, notices=notices)
    return Heard(prompt, times, recording, encoded)


def _check_bands(checkpoint: Checkpoint, config: Any, extractor: Any) -> None:
    """Raise a ModelError if a feature extractor makes other features than the model reads."""
    n_band = getattr(extractor, "feature_size", None)
    for name in ("num_mel_bins", "input_feat_per_channel"):
        reads = getattr(config, name, None)
        if isinstance(reads, int) and isinstance(n_band, int) and n_band != reads:
            raise ModelError(
                f"the feature extractor of {checkpoint.name} makes {counted(n_band, 'band')}, but its"
                f" config.json has {name} {reads}.",
                hint="the preprocessor_config.json that the model was saved with",
            )


def _generated(model: Any, inputs: dict[str, Any], n: int | None) -> tuple[list[int], list[int]]:
    """Return the ids that the decoder begins with, and those that the model writes.

    A forward pass without cached keys begins the decoder; the last one counts, since a model may run to
    find the language first.
    """
    import torch
    from transformers.models.whisper.generation_whisper import WhisperGenerationMixin

    start: list[int] = []
    fed: list[int] = []

    def before(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        ids, cache = kwargs["decoder_input_ids"][0].tolist(), kwargs.get("past_key_values")
        if cache is None or cache.get_seq_length() == 0:
            start[:], fed[:] = ids, []
        else:
            fed.extend(ids[-1:])

    options: dict[str, Any] = {} if n is None else {"max_new_tokens": n}
    if isinstance(model, WhisperGenerationMixin):
        options["return_timestamps"] = False
    model.config.use_cache = True
    with torch.no_grad(), model.register_forward_pre_hook(before, with_kwargs=True):
        written = model.generate(**inputs, **options, do_sample=False, num_beams=1)[0].tolist()
    whole = [*start, *fed]
    ids = written[len(start) :] if written[: len(whole)] == whole else written
    return start, ids


def read_again(
    checkpoint: Checkpoint,
    model: Any,
    heard: Heard,
    consume: Callable[[WrittenRows], None],
    rows: RecordedRows,
    first: int,
) -> WrittenText:
    """Let a model read what it wrote down, all tokens at once, and record rows of weights.

    They are those with which it wrote, but for rounding: a decoder does not see later tokens. The rows,
    from query `first` on, are passed to `consume`, each layer and head once; if they are `reading`, the
    last token is read, too, which has written nothing.
    """
    import torch

    inputs, answer = dict(heard.prompt.inputs), heard.prompt.answer or []
    start = inputs["decoder_input_ids"]
    inputs["encoder_outputs"] = heard.encoded
    del inputs[model.main_input_name]
    given = start.new_tensor([answer if rows.reading else answer[:-1]])
    inputs["decoder_input_ids"] = torch.cat([start, given], dim=1)
    name = checkpoint.name
    recorder = RowRecorder(name, model, rows, first, consume)
    recorder.begin_step(None)
    with ExitStack() as hooks, torch.no_grad():
        hooks.enter_context(as_model_error(checkpoint))
        if rows.eager:
            hooks.enter_context(switched_attention(model, "eager"))
        hooks.enter_context(observing(model, recorder.see))
        output = model(**inputs, use_cache=False, **({"output_attentions": True} if rows.eager else {}))
        if rows.eager:
            recorder.see_returned(output)
        recorder.finish()
    written = output.logits[0, heard.n_start - 1 :].float().log_softmax(-1)
    known = [float(row[number]) for row, number in zip(written, answer, strict=False)]
    return WrittenText(answer, heard.n_start, known, recorder.n_layer, recorder.n_head)


def _accepted(module: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    """Select the arguments that a module's `forward` has by name."""
    from inspect import signature

    names = signature(module.forward).parameters
    return {name: value for name, value in inputs.items() if name in names}


@dataclass(frozen=True)
class FrameTimes:
    """When the frames of an encoder are, which are the keys of cross-attention."""

    step: float  #: the seconds from one frame to the next
    first: float  #: the second that the first frame is centred at
    n_frame: int  #: the number of frames, padding included
    n_sound: int  #: the number of those with sound; padding follows

    def seconds(self, frame: int) -> float:
        """The second that a frame is centred at."""
        return self.first + self.step * frame


def frame_times(
    name: str, model: Any, extractor: Any, inputs: dict[str, Any], n_frame: int, n_sample: int
) -> FrameTimes:
    """Find when the frames of a model's encoder are.

    The feature extractor moves by a number of samples from one of its frames to the next, which is
    measured; the convolutions before the encoder's layers move by their strides. The number of frames
    that the encoder puts out has to agree. The samples are those without padding.
    """
    import torch

    main = inputs[model.main_input_name]
    hop = 1 if model.main_input_name == "input_values" else samples_per_feature(extractor)
    convolutions = [each for each in model.get_encoder().modules() if isinstance(each, torch.nn.Conv1d)]
    last = max((i for i, each in enumerate(convolutions) if each.stride[0] > 1), default=-1)
    stride, centre = 1, 0.0
    for each in convolutions[: last + 1]:
        padding = each.padding[0] if isinstance(each.padding, tuple) else 0
        centre += ((each.kernel_size[0] - 1) / 2 - padding) * stride
        stride *= each.stride[0]
    n_feature = prod(main.shape[1:])
    if model.main_input_name != "input_values":
        n_feature = _n_feature(main, extractor)
    if abs(n_frame - n_feature / stride) > 2 + centre / stride:
        raise ModelError(
            f"the encoder of {name} puts out {n_frame:,} frames for {n_feature:,} at its input, and its"
            f" convolutions explain {n_feature // stride:,}: which second a frame is of is not known."
        )
    rate = extractor.sampling_rate
    n_sound = min(n_frame, max(1, -(-n_sample // hop) // stride))
    return FrameTimes(hop * stride / rate, hop * centre / rate, n_frame, n_sound)


def samples_per_feature(extractor: Any) -> int:
    """Measure how many samples a feature extractor moves on from one frame to the next.

    Source: its lengths for one and for three seconds of noise, which the edges change equally.
    """
    import numpy as np

    rate = extractor.sampling_rate
    generator = np.random.default_rng(0)
    lengths = []
    for n_second in (1, 3):
        noise = generator.normal(0, 0.1, n_second * rate).astype(np.float32)
        options = {"padding": "do_not_pad", "truncation": False, "sampling_rate": rate}
        features = extractor(noise, **options, return_tensors="np")
        lengths.append(_n_feature(next(iter(features.values())), extractor))
    return round(2 * rate / (lengths[1] - lengths[0]))


def _n_feature(features: Any, extractor: Any) -> int:
    """Return the number of frames: of two axes, the one that is not that of the mel bands."""
    n_band = extractor.feature_size
    sizes = list(features.shape[1:])
    if n_band in sizes:
        sizes.reverse() if sizes[0] != n_band else None
        return int(sizes[1])
    raise ModelError(
        f"the features of a {type(extractor).__name__} are {' × '.join(map(str, sizes))}, and none of"
        f" these axes has its {n_band} bands."
    )
