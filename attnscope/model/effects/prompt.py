"""Read a prompt: the model's inputs, and the metric of what it predicts from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import torch

from attnscope.base.errors import ModelError, OptionError
from attnscope.base.spelling import spelled
from attnscope.base.text import shortened
from attnscope.model.effects.metric import Inputs, PredictionMetric, embeddings_of, predict
from attnscope.model.effects.options import Kind
from attnscope.model.files.checkpoint import Checkpoint
from attnscope.model.run.forward import shifted
from attnscope.model.run.load import as_model_error
from attnscope.model.run.text_file import checked_fields, read_json_lines
from attnscope.model.run.tokenize import Reading, encoded, max_tokens, tokens_of
from attnscope.model.run.tokens import Token, parse_positions

Answer = str | int | Sequence[int]

TOP = 5  #: how many of the model's likeliest answers are shown


class Task(Enum):
    """What a model predicts."""

    NEXT = "the next token"
    MASKED = "masked tokens"
    TARGET = "the decoder's next token"
    CLASS = "a class"
    EMBEDDING = "an embedding"


@dataclass(frozen=True)
class Request:
    """A prompt as a user gives it, beside the model's input."""

    #: answer, against, metric, position: as in `PromptOptions`
    answer: Answer | None = None
    against: Answer | None = None
    metric: str | None = None
    position: str | int | None = None
    name: str = ""  #: the name of the text in messages


@dataclass(frozen=True)
class MeasuredRun:
    """One sequence whose prediction has a metric."""

    inputs: Inputs
    metric: PredictionMetric
    sign: int = 1  #: 1, or −1 if its metric is subtracted from that of another sequence
    corrupted: Inputs | None = None


@dataclass
class MeasuredPrompt:
    """A prompt that is ready to run."""

    measurements: list[MeasuredRun]  #: one; two, if two answers of several tokens are compared
    meaning: str
    kind: Kind
    #: answer, against: the answers as text, or ""
    answer: str = ""
    against: str = ""
    #: source, target: the tokens of the model's input, and of the decoder's
    source: list[Token] = field(default_factory=list)
    target: list[Token] = field(default_factory=list)
    #: the tokens of the answer that the model reads behind its input
    continued: list[Token] = field(default_factory=list)
    #: the number of positions that stand before the answer, in the decoder if there is one
    n_shared: int = 0
    notices: list[str] = field(default_factory=list)

    def tokens_of(self, stack: str) -> list[Token]:
        """Return the tokens of a stack's queries, before the answer."""
        return self.target if stack in ("decoder", "cross") else self.source


def task_of(model: Any) -> Task:
    """Return what a model predicts."""
    adapted = model.get_base_model() if hasattr(model, "get_base_model") else model  # of peft
    name, config = type(adapted).__name__, model.config
    if name.endswith("ForSequenceClassification"):
        return Task.CLASS
    if getattr(config, "is_encoder_decoder", False):
        if model.get_output_embeddings() is not None:
            return Task.TARGET
        raise ModelError(
            f"the model is a {name}, which predicts no tokens.",
            hint="a checkpoint that was saved with its prediction head",
        )
    if "For" not in name and not name.endswith("LMHeadModel"):
        return Task.EMBEDDING
    if model.get_output_embeddings() is None:
        raise ModelError(
            f"the model is a {name}; effects are measured for language models, classifiers of"
            " sequences and models without a head."
        )
    masked = any(part in name for part in ("MaskedLM", "ForPreTraining", "WithLMHead"))
    return Task.MASKED if masked else Task.NEXT


class PromptReader:
    """Read prompts of one model."""

    def __init__(self, checkpoint: Checkpoint, model: Any, tokenizer: Any) -> None:
        self.checkpoint, self.model, self.tokenizer = checkpoint, model, tokenizer
        self.task = task_of(model)

    def read(self, reading: Reading, request: Request, corrupted: Reading | None) -> MeasuredPrompt:
        """Build the measurements of one prompt."""
        kind = _kind_of(request.metric)
        readers = {
            Task.NEXT: self._next,
            Task.MASKED: self._masked,
            Task.TARGET: self._target,
            Task.CLASS: self._class,
            Task.EMBEDDING: self._embedding,
        }
        with torch.no_grad(), as_model_error(self.checkpoint):
            prompt = readers[self.task](reading, request, kind)
        prompt.source, prompt.notices = reading.source, reading.notices + prompt.notices
        if self.task is not Task.TARGET:
            prompt.n_shared = len(reading.source)
            read = prompt.measurements[0].inputs["input_ids"][0, prompt.n_shared :].tolist()
            prompt.continued = tokens_of(self.tokenizer, read)
        if corrupted is not None:
            self._corrupt(prompt, reading, corrupted, request.name)
        return prompt

    # Language models.

    def _next(self, reading: Reading, request: Request, kind: Kind | None) -> MeasuredPrompt:
        """Measure the next token, or the loss of the text."""
        ids = reading.inputs["input_ids"][0].tolist()
        if kind is Kind.LOSS or (kind is None and request.answer is None and request.position is None):
            _refuse_answer(request, Kind.LOSS)
            if len(ids) < 2:
                raise OptionError(
                    f"{request.name} is one token long, so no token of it is predicted.",
                    hint=spelled(answer="…"),
                )
            positions = list(range(len(ids) - 1))
            metric = PredictionMetric(Kind.LOSS, positions, tuple(ids[1:]))
            return MeasuredPrompt([MeasuredRun(reading.inputs, metric)], metric.meaning, Kind.LOSS)
        [position] = self._positions(request, reading.source, [len(ids) - 1])
        last = position == len(ids) - 1

        def teacher_forced(answer: list[int]) -> tuple[Inputs, list[int]]:
            """Return inputs with all tokens of an answer but the last, and where they are predicted."""
            if len(answer) == 1:
                return reading.inputs, [position]
            if not last:
                raise OptionError(
                    f"the answer is {len(answer)} tokens, which follow the whole text only.",
                    hint=f"an answer of one token, or no {spelled('position')}",
                )
            most = max_tokens(self.model.config)
            if most is not None and len(ids) + len(answer) - 1 > most:
                raise OptionError(
                    f"the text and the answer are {len(ids) + len(answer) - 1} tokens, and the model"
                    f" takes {most}.",
                    hint="a shorter text",
                )
            places = list(range(position, position + len(answer)))
            return _longer(reading.inputs, answer[:-1]), places

        return self._answered(
            request, kind, reading.inputs, [position], teacher_forced, ids if last else None
        )

    def _masked(self, reading: Reading, request: Request, kind: Kind | None) -> MeasuredPrompt:
        """Measure the tokens at the masks."""
        if kind is Kind.LOSS:
            raise OptionError(
                f"{spelled('metric', 'loss')} is for models that predict the next token.",
                hint=spelled(answer="…"),
            )
        ids = reading.inputs["input_ids"][0].tolist()
        mask = getattr(self.tokenizer, "mask_token_id", None)
        masks = [i for i, number in enumerate(ids) if number == mask]
        name = getattr(self.tokenizer, "mask_token", None)
        if request.position is None and not masks:
            missing = (
                f"has no {name}" if name else "is token ids, and which of them is masked is unknown"
            )
            raise OptionError(
                f"{request.name} {missing}; the model predicts masked tokens.",
                hint=f"a text with {name}" if name else spelled(position="N"),
            )
        places = self._positions(request, reading.source, masks)

        def teacher_forced(answer: list[int]) -> tuple[Inputs, list[int]]:
            """Return the inputs as they are, and the masks."""
            if len(answer) != len(places):
                raise OptionError(
                    f"the answer is {len(answer)} tokens, and {request.name} has {len(places)} masked.",
                    hint=f"{len(answer)} × {name or 'a mask'}, or an answer of {len(places)}",
                )
            return reading.inputs, places

        if request.answer is None and len(places) > 1:
            raise OptionError(
                f"{request.name} has {len(places)} masked tokens, and there is no answer.",
                hint=f"{spelled(answer='…')}; or {spelled(position='N')}",
            )
        return self._answered(request, kind, reading.inputs, places, teacher_forced)

    def _target(self, reading: Reading, request: Request, kind: Kind | None) -> MeasuredPrompt:
        """Measure the decoder's next token, or the loss of its target."""
        labels = list(reading.labels)
        if request.position is not None:
            raise OptionError(
                f"{spelled('position')} is for models without a decoder; the decoder's last position"
                " is measured."
            )
        if request.answer is None and not labels:
            raise OptionError(
                f"there is nothing to predict: no {spelled('answer')}, and no {spelled('target')}.",
                hint=spelled(target="…"),
            )

        start: Any = getattr(self.model.config, "decoder_start_token_id", None)

        def decoded(labels: list[int], *, ends: bool = False) -> Inputs:
            """Return inputs whose decoder predicts some labels, which end the text or not.

            Some families put the last label of a text first, so they shift only whole texts.
            """
            whole = ends or start is None
            read = shifted(self.model, labels) if whole else [start, *labels[:-1]]
            numbers = torch.tensor([read], device=self.model.device)
            return reading.inputs | {"decoder_input_ids": numbers}

        if request.answer is None and kind in (None, Kind.LOSS):
            _refuse_answer(request, Kind.LOSS)
            inputs = decoded(labels, ends=True)
            metric = PredictionMetric(Kind.LOSS, list(range(len(labels))), tuple(labels))
            prompt = MeasuredPrompt([MeasuredRun(inputs, metric)], metric.meaning, Kind.LOSS)
        else:
            special = set(getattr(self.tokenizer, "all_special_ids", []))
            while labels and labels[-1] in special:  # the end of the text comes after the answer
                labels.pop()

            def teacher_forced(answer: list[int]) -> tuple[Inputs, list[int]]:
                """Return inputs whose decoder reads the target, and all tokens of an answer but one."""
                return decoded(labels + answer), list(range(len(labels), len(labels) + len(answer)))

            begin = decoded([*labels, 0])
            prompt = self._answered(request, kind, begin, [len(labels)], teacher_forced)
        read = prompt.measurements[0].inputs["decoder_input_ids"][0].tolist()
        prompt.target, prompt.n_shared = tokens_of(self.tokenizer, read), 1 + len(labels)
        return prompt

    def _answered(
        self,
        request: Request,
        kind: Kind | None,
        inputs: Inputs,
        places: list[int],
        teacher_forced: Any,
        context: list[int] | None = None,
    ) -> MeasuredPrompt:
        """Measure an answer, or the likeliest one, possibly against another.

        Args:
            places: the positions at which the answer's first token is predicted.
            teacher_forced: returns for an answer the arguments, and where it is predicted.
            context: the token ids before the answer, if it continues a text.
        """
        if request.answer is None:
            best = int(predict(self.model, inputs, PredictionMetric(Kind.LOGIT, places))[0, 0].argmax())
            answer = [best]
        else:
            answer = self._ids(request.answer, "answer", context)
        others = None if request.against is None else self._ids(request.against, "against", context)
        single = len(answer) == 1 and (others is None or len(others) == 1)
        if kind is None:
            kind = Kind.LOGIT if single else Kind.LOG_PROBABILITY
        if kind is Kind.LOGIT and not single:
            n = max(len(answer), len(others or []))
            raise OptionError(
                f"the logit is that of one token, and the answer is {n}.",
                hint=f"{spelled(metric='log-probability')}, which is summed over them",
            )
        if kind not in (Kind.LOGIT, Kind.LOG_PROBABILITY):
            raise OptionError(
                f"{spelled('metric', kind)} does not go with an answer of this model.",
                hint=f"{spelled(metric='logit')} or log-probability",
            )
        if others == answer:
            raise OptionError(
                f"{spelled('answer')} and {spelled('against')} are the same tokens.",
                hint=f"another {spelled('against')}",
            )
        forced, positions = teacher_forced(answer)
        metric = PredictionMetric(kind, positions, tuple(answer))
        if single and others is not None:
            metric = replace(metric, against=others[0])
        measurements = [MeasuredRun(forced, metric)]
        meaning = metric.meaning
        if not single and others is not None:
            forced, positions = teacher_forced(others)
            other = PredictionMetric(kind, positions, tuple(others))
            measurements.append(MeasuredRun(forced, other, sign=-1))
            meaning += ", minus that of the other answer"
        prompt = MeasuredPrompt(measurements, meaning, kind)
        prompt.answer, prompt.against = self._shown(answer), self._shown(others or [])
        for name, ids in ((spelled("answer"), answer), (spelled("against"), others or [])):
            if len(ids) > 1:
                parts = " ".join(repr(token.text) for token in tokens_of(self.tokenizer, ids))
                prompt.notices.append(f"{name} is {len(ids)} tokens: {parts}.")
        return prompt

    # Other models.

    def _class(self, reading: Reading, request: Request, kind: Kind | None) -> MeasuredPrompt:
        """Measure the logit of a class."""
        if kind not in (None, Kind.LOGIT):
            raise OptionError(
                f"{spelled('metric', kind)} is not for classifiers.", hint=spelled(metric="logit")
            )
        if request.position is not None:
            raise OptionError(f"{spelled('position')} is for language models; this is a classifier.")
        names = {int(index): name for index, name in self.model.config.id2label.items()}
        logits = predict(self.model, reading.inputs, PredictionMetric(Kind.LOGIT))[0]

        def index_of(answer: Answer, option: str) -> int:
            folded = {name.lower(): index for index, name in names.items()}
            text = str(answer).strip()
            found = int(text) if text.isdigit() else folded.get(text.lower())
            if found is None or found >= len(logits):
                raise OptionError(
                    f"{spelled(option, repr(text))} is not a class.",
                    hint=", ".join(list(names.values())[:8]),
                )
            return found

        answer = int(logits.argmax()) if request.answer is None else index_of(request.answer, "answer")
        against = None if request.against is None else index_of(request.against, "against")
        metric = PredictionMetric(Kind.LOGIT, None, (answer,), against)
        prompt = MeasuredPrompt([MeasuredRun(reading.inputs, metric)], metric.meaning, Kind.LOGIT)
        prompt.answer = names.get(answer, str(answer))
        prompt.against = "" if against is None else names.get(against, str(against))
        return prompt

    def _embedding(self, reading: Reading, request: Request, kind: Kind | None) -> MeasuredPrompt:
        """Measure the similarity to another text, or the distance from the embedding itself."""
        if request.position is not None or kind not in (None, Kind.SIMILARITY, Kind.DISTANCE):
            raise OptionError(
                f"{self.checkpoint.name} is a {type(self.model).__name__}, which predicts no tokens.",
                hint=f"{spelled(answer='another text')}, whose embedding it is compared with",
            )
        if request.answer is None and request.against is not None:
            raise OptionError(
                f"{spelled('against')} needs an {spelled('answer')}.", hint=spelled(answer="…")
            )
        default = Kind.DISTANCE if request.answer is None else Kind.SIMILARITY
        if kind is not None and kind is not default:
            raise OptionError(
                f"{spelled('metric', kind)} {'needs' if kind is Kind.SIMILARITY else 'takes no'}"
                f" {spelled('answer')}."
            )

        def embedding_of(answer: Answer | None, option: str) -> torch.Tensor | None:
            if answer is None:
                return None
            ids = self._ids(answer, option, None, special=True)
            numbers = torch.tensor([ids], device=self.model.device)
            inputs = {"input_ids": numbers, "attention_mask": torch.ones_like(numbers)}
            return embeddings_of(self.model, inputs)[0]

        answer = embedding_of(request.answer, "answer")
        if answer is None:
            answer = embeddings_of(self.model, reading.inputs)[0]
        against = embedding_of(request.against, "against")
        metric = PredictionMetric(default, None, embedding=answer, against_embedding=against)
        prompt = MeasuredPrompt([MeasuredRun(reading.inputs, metric)], metric.meaning, default)
        prompt.answer = str(request.answer or "")
        prompt.against = str(request.against or "")
        if request.answer is None:
            prompt.notices.append(
                f"{self.checkpoint.name} is a {type(self.model).__name__}, which predicts no tokens: the"
                " metric is how far its embedding moves, the mean of its last hidden states."
            )
        return prompt

    # What prompts share.

    def _positions(self, request: Request, tokens: Sequence[Token], default: list[int]) -> list[int]:
        """Return the positions whose predictions are measured: the requested one, or the default."""
        if request.position is None:
            return default
        found = parse_positions(str(request.position), tokens, "position")
        if len(found) != 1:
            raise OptionError(
                f"{spelled('position', request.position)} is {len(found)} positions, not one."
            )
        return found

    def _ids(
        self, answer: Answer, option: str, context: list[int] | None, *, special: bool = False
    ) -> list[int]:
        """Return the token ids of an answer, as it is tokenized after the context."""
        if isinstance(answer, int):
            ids = [answer]
        elif not isinstance(answer, str):
            ids = [int(number) for number in answer]
        elif self.tokenizer is None:
            parts = answer.replace(",", " ").split()
            if not parts or not all(part.isdigit() for part in parts):
                named = spelled(option, repr(shortened(answer)))
                raise OptionError(
                    f"{named} is a text, and the model has no tokenizer.",
                    hint=f"{spelled(option)} with token ids",
                )
            ids = [int(part) for part in parts]
        elif special:
            ids = encoded(self.tokenizer, {"text": [answer]}, verbose=False)["input_ids"][0]
        else:
            ids = self._continued(answer, context)
        if not ids:
            raise OptionError(f"{spelled(option)} is empty.", hint=spelled(**{option: " word"}))
        n_token = self.model.config.get_text_config().vocab_size
        if max(ids) >= n_token or min(ids) < 0:
            raise OptionError(
                f"{spelled(option)}: there is no token {max(ids)}; the model has {n_token}."
            )
        return ids

    def _continued(self, answer: str, context: list[int] | None) -> list[int]:
        """Return the tokens that an answer adds to a text, without special ones.

        A tokenizer may treat the beginning of a text otherwise than its middle, so the text is
        tokenized with the answer; if that changes the text's own tokens, the answer is taken alone.
        """
        alone = encoded(self.tokenizer, {"text": [answer]}, add_special_tokens=False, verbose=False)
        if context is None:
            return alone["input_ids"][0]
        text = self.tokenizer.decode(context, skip_special_tokens=True)
        options = {"add_special_tokens": False, "verbose": False}
        before, whole = encoded(self.tokenizer, {"text": [text, text + answer]}, **options)["input_ids"]
        return whole[len(before) :] if whole[: len(before)] == before else alone["input_ids"][0]

    def top_of(self, prompt: MeasuredPrompt, prediction: torch.Tensor) -> list[tuple[str, float]]:
        """Return the likeliest answers, with their probabilities, from what the metric reads."""
        if prompt.kind not in (Kind.LOGIT, Kind.LOG_PROBABILITY):
            return []
        logits = prediction[0].float() if prediction.dim() == 2 else prediction[0, 0].float()
        shares, ids = logits.softmax(0).topk(min(TOP, len(logits)))
        if self.task is Task.CLASS:
            names = {int(index): name for index, name in self.model.config.id2label.items()}
            texts = [names.get(index, str(index)) for index in ids.tolist()]
        else:
            texts = [token.text for token in tokens_of(self.tokenizer, ids.tolist())]
        return list(zip(texts, shares.tolist(), strict=True)) if len(logits) > 1 else []

    def _shown(self, ids: list[int]) -> str:
        """Return the text of an answer's tokens."""
        return "".join(token.text for token in tokens_of(self.tokenizer, ids))

    def _corrupt(self, prompt: MeasuredPrompt, reading: Reading, corrupted: Reading, name: str) -> None:
        """Give each measurement its corrupted inputs."""
        clean, other = reading.inputs["input_ids"], corrupted.inputs["input_ids"]
        if clean.shape != other.shape:
            raise OptionError(
                f"{name} is {clean.shape[1]} tokens and {spelled('corrupt')} is {other.shape[1]}:"
                " each head's output at a position is put into the other run, so both must be"
                " equally long.",
                hint="words of as many tokens",
            )
        if torch.equal(clean, other):
            raise OptionError(f"{spelled('corrupt')} is the same tokens as {name}.", hint="another text")
        measurements = []
        for each in prompt.measurements:
            n = clean.shape[1]
            added = each.inputs["input_ids"][:, n:]
            inputs = dict(each.inputs)
            inputs |= {key: corrupted.inputs[key] for key in corrupted.inputs if key in inputs}
            if added.shape[1]:
                inputs = _longer(inputs, added[0].tolist())
            measurements.append(replace(each, corrupted=inputs))
        prompt.measurements = measurements


def _kind_of(metric: str | None) -> Kind | None:
    """Return the kind that a name means."""
    if metric is None:
        return None
    try:
        return Kind(metric)
    except ValueError as error:
        raise OptionError(f"there is no metric {metric!r}.", hint=", ".join(Kind)) from error


def _refuse_answer(request: Request, kind: Kind) -> None:
    """Raise an OptionError if there is an answer, which the kind of metric does not take."""
    for flag, value in ((spelled("answer"), request.answer), (spelled("against"), request.against)):
        if value is not None:
            raise OptionError(
                f"{spelled('metric', kind)} is measured on the text itself, without {flag}.",
                hint=spelled(metric="log-probability"),
            )


def _longer(inputs: Inputs, more: list[int]) -> Inputs:
    """Append token ids to a sequence's inputs."""
    ids = inputs["input_ids"]
    added = torch.tensor([more], device=ids.device)
    result = dict(inputs)
    result["input_ids"] = torch.cat([ids, added], 1)
    for name in set(inputs) & {"attention_mask", "token_type_ids"}:
        last = inputs[name][:, -1:].expand(-1, len(more))
        result[name] = torch.cat(
            [inputs[name], torch.ones_like(last) if name == "attention_mask" else last], 1
        )
    return result


# Prompts of a file.

ANSWER = ("text", "number", "token ids")
FIELDS = {
    "text": ("text",),
    "ids": ("token ids", "text"),
    "answer": ANSWER,
    "against": ANSWER,
    "corrupt": ("text", "token ids"),
    "target": ("text",),
}
"""The fields of a prompt, and what each may be."""

EXAMPLE = '{"text": "…", "answer": " …", "against": " …"}'


def read_prompts(source: str | Iterable[Mapping[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """Return the prompts of a `.jsonl` file, `-` or an iterable, with a name of each for messages."""
    if isinstance(source, str):
        lines = read_json_lines(source, EXAMPLE)
    else:
        lines = [(f"prompt {number}", each) for number, each in enumerate(source, 1)]
    if not lines:
        raise OptionError(f"{source if isinstance(source, str) else 'text'} has no prompts.")
    return [(name, _checked(name, value)) for name, value in lines]


def _checked(name: str, found: Any) -> dict[str, Any]:
    """Return the fields of a prompt: of an object, a text, or a list of token ids."""
    if isinstance(found, str):
        found = {"text": found}
    elif isinstance(found, list | tuple):
        found = {"ids": found}
    prompt = checked_fields(found, name, FIELDS, EXAMPLE)
    inputs = [field for field in ("text", "ids") if field in prompt]
    if len(inputs) != 1:
        has = "both text and ids" if inputs else "neither text nor ids"
        raise OptionError(f"{name} has {has}.", hint=EXAMPLE)
    return prompt
