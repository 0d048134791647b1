"""Read what a server returned: its text, tokens and log-probabilities, in several formats.

- OpenAI's `/v1/completions`: `choices[0].text`, and `logprobs` with `tokens` and `token_logprobs`.
- OpenAI's `/v1/chat/completions`: `choices[0].message.content`, and `logprobs.content`, a list of
  `token`, `logprob` and `bytes`.
- vLLM has both. With `return_token_ids` (pull request 22587, August 2025), `token_ids` and
  `prompt_token_ids` are there, too; with `return_tokens_as_token_ids`, tokens are `token_id:123`.
- llama.cpp's `/completion`: `content`, with `return_tokens` the ids in `tokens`, and
  `completion_probabilities`, a list of `id`, `token`, `bytes` and `logprob`; with
  `post_sampling_probs`, of `prob`. Before December 2024 (its pull request 10783), a list of `content`
  and `probs`, of `tok_str` and `prob`. Its other two have `logprobs.content`, with an `id` of each.

llama.cpp waits until a character is whole: its list has an entry only for each token that ends one, with
the bytes of all since the last (`process_token` in its tools/server/server-context.cpp). A stream has no
ids of the others.

A stream of `data: {…}` lines is joined.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Any, Generic, TypeVar

from attnscope.base.errors import FileError, OptionError, first_line
from attnscope.base.spelling import spelled
from attnscope.base.text import described, shortened
from attnscope.base.units import counted, few
from attnscope.model.run.text_file import whole_text

DRAFTED = "a stream of llama.cpp leaves out tokens of a draft: log-probabilities are not compared."
UNLIKELY = -9999.0
"""What OpenAI and vLLM write for a log-probability that is not known; llama.cpp's is lower yet."""

QUANTIZED = re.compile(
    r"(?<![a-z\d])(i?q[1-8](_\w+)?|[nm][vx]fp4|fp8|int[48]|[48]-?bit|w[48]a\d+|awq|gptq)(?![a-z\d])",
    re.I,
)
"""What names of models say of quantized weights."""


@dataclass
class RecordedToken:
    """A token, or the last of several that are one character, as a list of log-probabilities has it."""

    number: int | None  #: its id; None: not known
    piece: bytes | None  #: its bytes, or those of all of the character; None: not known
    log_probability: float | None


@dataclass
class Response:
    """What a server returned."""

    engine: str  #: the format: `vLLM`, `llama.cpp` or `OpenAI-compatible`
    text: str
    ids: list[int] | None = None
    #: those of its list of log-probabilities; empty: the file has none
    entries: list[RecordedToken] = field(default_factory=list)
    n_token: int | None = None  #: how many tokens the engine wrote; None: not known
    n_prompt: int | None = None  #: how many it read; None: not known
    prompt_ids: list[int] | None = None
    request: dict[str, Any] = field(default_factory=dict)
    #: whether the model also wrote what is not in the text: reasoning, or calls of tools
    hidden: bool = False
    #: why log-probabilities may be others than the model's
    causes: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)


def read_response(replay: Any, choice: int | None = None) -> Response:
    """Read a file, `-`, or its content as a dict: a response, or `{"request": {…}, "response": {…}}`."""
    name = "replay" if isinstance(replay, dict) else spelled("replay", shortened(replay))
    try:
        return _response(replay, choice, name)
    except RecursionError as error:
        raise OptionError(f"{name} is nested too deeply for a response.", hint=SHAPE) from error


def _response(replay: Any, choice: int | None, name: str) -> Response:
    """Read a response of a name; raise as `read_response`, and a RecursionError for what is too deep."""
    whole = replay if isinstance(replay, dict) else _content(str(replay), name)
    request: Any = {}
    if isinstance(whole, dict) and "response" in whole:
        request, whole = whole.get("request") or {}, whole["response"]
    if not isinstance(whole, dict) or not isinstance(request, dict):
        wrong = request if isinstance(whole, dict) else whole
        what = "has a request that is" if isinstance(whole, dict) else "is"
        raise OptionError(f"{name} {what} {described(wrong)}, not a response.", hint=SHAPE)
    content = ResponseFields(whole, name)
    if whole.get("error") and not {"choices", "content"} & {*whole}:
        raise OptionError(f"{name} is an error of the server: {_error_of(whole)}.")
    if whole.get("choices") is not None:
        response = _of_choices(content, choice)
    elif whole.get("content") is not None:
        response = _of_llama_cpp(content)
        if choice:
            raise OptionError(f"{name} has one answer, and no choices.", hint=f"no {spelled('choice')}")
    else:
        raise OptionError(f"{name} has neither choices nor a content.", hint=SHAPE)
    response.n_prompt, response.n_token = _counts(content)
    response.request = request
    if whole.get("error"):
        response.notices.append(f"{name} ends with an error of the server: {_error_of(whole)}.")
    _check(response, name)
    known = all(each.log_probability is not None for each in response.entries)
    drafted = content.object("timings").read("draft_n_accepted", COUNT)
    if response.entries and known and drafted:
        response.notices.append(DRAFTED)
        response.entries = []
    model = str(whole.get("model") or "").rpartition("/")[2]
    if QUANTIZED.search(model):
        response.causes.append(f"the engine ran {shortened(model)}, whose weights are quantized")
    if response.engine != "llama.cpp":  # which reports those before sampling
        response.causes += _causes(request)
    return response


def _error_of(content: dict[str, Any]) -> str:
    """Return the message of an error."""
    error = content["error"]
    return shortened(error.get("message", error) if isinstance(error, dict) else error).rstrip(".")


def _check(response: Response, name: str) -> None:
    """Raise an OptionError unless there is an answer, and no prompt before it."""
    if response.request.get("echo"):
        raise _echo(name)
    if not (response.text or response.hidden or response.ids or response.entries):
        raise OptionError(f"{name} has an empty answer: there is no token to show.")


def _echo(name: str) -> OptionError:
    return OptionError(f"{name} repeats the prompt in the answer.", hint='a request without "echo"')


def _content(path: str, name: str) -> Any:
    """Read a file of JSON, or a stream of `data:` lines."""
    text = whole_text(path)
    lines = [line[5:].strip() for line in text.split("\n") if line.startswith("data:")]
    try:
        if lines and not text.lstrip().startswith("{"):
            chunks = [json.loads(line) for line in lines if line != "[DONE]"]
        else:
            return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileError(
            f"{name} is not JSON, or is cut off: {first_line(error).rstrip('.')}.", hint=SHAPE
        ) from error
    return _joined(chunks, name)


def _joined(chunks: list[Any], name: str) -> dict[str, Any]:
    """Join the chunks of a stream: texts and lists of each choice are appended to each other."""
    whole: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    for nth, chunk in enumerate(chunks):
        if not isinstance(chunk, dict):
            raise OptionError(f"{name} has {described(chunk)} in its stream.", hint=SHAPE)
        part = ResponseFields(chunk, name, f"part {nth + 1} of its stream: ")
        of_all = {key: value for key, value in chunk.items() if key != "choices"}
        _append(whole, ResponseFields(of_all, name, part.path))
        for choice in part.objects("choices"):
            index = choice.read("index", COUNT) or 0
            plain = {key: value for key, value in choice.values.items() if key != "delta"}
            plain |= {"message": choice.values["delta"]} if "delta" in choice.values else {}
            _append(choices.setdefault(index, {}), ResponseFields(plain, name, choice.path))
    return whole | ({"choices": [choices[i] for i in sorted(choices)]} if choices else {})


GROWS = (
    *("text", "content", "reasoning", "reasoning_content", "tool_calls", "tokens", "token_ids"),
    *("token_logprobs", "completion_probabilities"),
)
"""The fields to which each chunk of a stream appends."""


def _append(whole: dict[str, Any], part: ResponseFields) -> None:
    """Append a chunk of a stream to what came before."""
    for key, value in part.values.items():
        before = whole.get(key)
        if isinstance(value, dict):
            nested = before if isinstance(before, dict) else {}
            _append(nested, part.object(key))
            whole[key] = nested
        elif key in GROWS and before is not None and value is not None:
            if isinstance(before, list) and isinstance(value, list):
                before.extend(value)
            elif isinstance(before, str) and isinstance(value, str):
                whole[key] = before + value
            else:
                raise part.wrong(f"{key} is {described(value)} after {described(before)}")
        elif value is not None:
            whole[key] = list(value) if isinstance(value, list) else value


def _chosen(choices: list[ResponseFields], choice: int | None, name: str) -> ResponseFields:
    """Return the choice with an index; None: the first."""
    if not choices:
        raise OptionError(f"{name} has no choices: there is no answer in it.")
    if choice is None:
        return choices[0]
    indices = [each.read("index", COUNT) for each in choices]
    known = [i if index is None else index for i, index in enumerate(indices)]
    if choice not in known:
        raise OptionError(
            f"{name} has no choice {choice}: it has {few(list(map(str, known)))}.",
            hint=spelled(choice=known[0]),
        )
    return choices[known.index(choice)]


def _of_choices(content: ResponseFields, number: int | None) -> Response:
    """Read a response of `/v1/completions` or `/v1/chat/completions`."""
    name, choices = content.name, content.objects("choices")
    choice = _chosen(choices, number, name)
    message, found = choice.object("message"), choice.object("logprobs")
    is_chat = choice.values.get("message") is not None
    text = message.read("content", TEXT) or "" if is_chat else choice.read("text", TEXT)
    if text is None:
        raise choice.wrong("text is not there, and neither is a message")
    response = Response("OpenAI-compatible", text)
    others = ("reasoning", "reasoning_content", "tool_calls", "function_call")
    response.hidden = any(message.values.get(key) for key in others)
    entries = found.objects("content")  # llama.cpp has these without a chat, too
    _read_entries(response, entries)
    if found.values.get("tokens"):
        _read_lists(response, found)
    prompt = choice.items("prompt_token_ids", COUNT) or content.items("prompt_token_ids", COUNT)
    response.ids = choice.items("token_ids", COUNT) or None
    response.prompt_ids = prompt or None
    fingerprint = str(content.values.get("system_fingerprint"))
    vllm = fingerprint.startswith("vllm") or "prompt_logprobs" in {*choice.values, *content.values}
    if response.ids or prompt or vllm:
        response.engine = "vLLM"
    elif any("id" in each.values for each in entries) or "timings" in content.values:
        response.engine = "llama.cpp"
    if len(choices) > 1 and number is None:
        response.notices.append(
            f"{name} has {len(choices)} choices: this is the first ({spelled('choice')})."
        )
    return response


def _read_lists(response: Response, found: ResponseFields) -> None:
    """Read tokens and their log-probabilities from two lists, as `/v1/completions` has them."""
    tokens, values = found.items("tokens", TEXT), found.read("token_logprobs", LIST) or []
    if len(tokens) != len(values):
        raise OptionError(
            f"{found.name} has {counted(len(tokens), 'token')}, but log-probabilities of"
            f" {len(values):,}."
        )
    if len(values) > 1 and values[0] is None and None not in values[1:]:
        raise _echo(found.name)
    pairs = [{"token": a, "logprob": b} for a, b in zip(tokens, values, strict=True)]
    response.entries = []
    _read_entries(response, ResponseFields({"tokens": pairs}, found.name, found.path).objects("tokens"))


def _of_llama_cpp(content: ResponseFields) -> Response:
    """Read a response of llama.cpp's `/completion`."""
    response = Response("llama.cpp", content.read("content", TEXT) or "")
    entries = []
    for each in content.objects("completion_probabilities"):
        if "probs" in each.values:  # the older format
            token = each.read("content", TEXT)
            probabilities = {
                one.read("tok_str", TEXT): one.values.get("prob") for one in each.objects("probs")
            }
            each = ResponseFields(
                {"token": token, "prob": probabilities.get(token)}, each.name, each.path
            )
        entries.append(each)
    _read_entries(response, entries)
    response.ids = content.items("tokens", COUNT) or None
    if any(each.values.get("scale") for each in content.object("generation_settings").objects("lora")):
        response.causes.append("the engine ran with a LoRA")
    return response


def _counts(content: ResponseFields) -> tuple[int | None, int | None]:
    """Return how many tokens the engine read and wrote; None: not known."""
    usage, timings = content.object("usage"), content.object("timings")
    n_prompt, n_token = content.read("tokens_evaluated", COUNT), content.read("tokens_predicted", COUNT)
    n_prompt = usage.read("prompt_tokens", COUNT) if n_prompt is None else n_prompt
    n_token = usage.read("completion_tokens", COUNT) if n_token is None else n_token
    if n_token is None and (n_token := timings.read("predicted_n", COUNT)) is not None:
        n_prompt = timings.read("prompt_n", COUNT)  # in a stream of llama.cpp's chat
        n_prompt = None if n_prompt is None else n_prompt + (timings.read("cache_n", COUNT) or 0)
    is_one = len(content.objects("choices")) <= 1
    return n_prompt, n_token if is_one else None  # that of all choices


def _read_entries(response: Response, found: list[ResponseFields]) -> None:
    """Read a list of tokens with their log-probabilities, in OpenAI's format or llama.cpp's."""
    for each in found:
        token = each.read("token", TEXT)
        if token is None:
            raise each.wrong("token is not there")
        named = re.fullmatch(r"token_id:(\d{1,15})", token, re.ASCII)
        numbers = each.items("bytes", BYTE)
        piece = bytes(numbers) if each.values.get("bytes") is not None else token.encode()
        lossy = "\ufffd" in piece.decode(errors="ignore") or token.startswith("bytes:")
        value = each.read("logprob", LOG_PROBABILITY)
        drafted = (
            value == 0 and each.values.get("top_logprobs") == []
        )  # llama.cpp does not compute these
        response.entries.append(
            RecordedToken(
                int(named[1]) if named else each.read("id", COUNT),
                None if lossy or named else piece,
                None if value is None or value <= UNLIKELY or drafted else value,
            )
        )
    if any("prob" in each.values for each in found):
        response.notices.append(
            f"the probabilities of {spelled('replay')} are those after sampling, not the model's: they"
            " are not compared."
        )


PENALTIES = {"presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1, "repeat_penalty": 1}
"""Penalties, and their values without an effect."""


def _causes(settings: dict[str, Any]) -> list[str]:
    """Name what changes log-probabilities, if the server reports them after it was applied.

    vLLM reports those before, unless its `--logprobs-mode` is one of `processed_*`.
    """
    causes = []
    if settings.get("temperature") not in (None, 0, 1):
        causes.append(f"temperature is {described(settings['temperature'])}")
    causes += [
        f"{name} is {described(settings[name])}"
        for name, idle in PENALTIES.items()
        if settings.get(name) not in (None, idle)
    ]
    return [*causes, *(["logit_bias is set"] if settings.get("logit_bias") else [])]


SHAPE = "the JSON of /v1/completions, /v1/chat/completions or llama.cpp's /completion"

LARGEST = 2**53  #: Counts and ids are below it: RFC 8259, section 6

ROUNDED = 1e-3
"""How much more than 0 a log-probability may be by rounding: that of a token without an alternative."""

T = TypeVar("T")


@dataclass(frozen=True)
class FieldKind(Generic[T]):
    """What a value may be."""

    name: str
    read: Callable[[Any], T | None]  #: returns the value; None: it is of another kind


def _text(value: Any) -> str | None:
    """Return a text; JSON can spell lone surrogates, which no text of UTF-8 has."""
    return (
        value if isinstance(value, str) and not any("\ud800" <= c <= "\udfff" for c in value) else None
    )


def _count(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < LARGEST:
        return None
    return int(value) if value == int(value) else None


def _log_probability(value: Any) -> float | None:
    """Return the logarithm of a probability; of integers beyond a float's range, −∞."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or value != value
        or value > ROUNDED
    ):
        return None
    return float(value) if value > -LARGEST else -inf


TEXT = FieldKind("a text", _text)
COUNT = FieldKind("a number from 0", _count)
BYTE = FieldKind("a byte", lambda value: n if (n := _count(value)) is not None and n < 256 else None)
LOG_PROBABILITY = FieldKind("a log-probability, which is 0 or less", _log_probability)
OBJECT: FieldKind[dict[str, Any]] = FieldKind(
    "an object", lambda value: value if isinstance(value, dict) else None
)
LIST: FieldKind[list[Any]] = FieldKind(
    "a list", lambda value: value if isinstance(value, list) else None
)


@dataclass(frozen=True)
class ResponseFields:
    """An object of JSON. What is null is not there."""

    values: dict[str, Any] = field(repr=False)
    name: str  #: that of the file, in messages
    path: str = ""  #: where it is in the file, such as `choices[0].`

    def read(self, key: str, kind: FieldKind[T]) -> T | None:
        """Return a field; None: it is not there. Raise an OptionError if it is of another kind."""
        value = self.values.get(key)
        return None if value is None else self._checked(key, value, kind)

    def items(self, key: str, kind: FieldKind[T]) -> list[T]:
        """Return the items of a list, each of a kind; none if it is not there."""
        values = self.read(key, LIST)
        return [self._checked(f"{key}[{i}]", each, kind) for i, each in enumerate(values or [])]

    def object(self, key: str) -> ResponseFields:
        """Return an object in it; an empty one if it is not there."""
        return ResponseFields(self.read(key, OBJECT) or {}, self.name, f"{self.path}{key}.")

    def objects(self, key: str) -> list[ResponseFields]:
        """Return the objects of a list in it."""
        return [
            ResponseFields(each, self.name, f"{self.path}{key}[{i}].")
            for i, each in enumerate(self.items(key, OBJECT))
        ]

    def wrong(self, what: str) -> OptionError:
        """Return the error for what no server writes."""
        return OptionError(
            f"{self.name} has another shape than a server's response: {self.path}{what}.", hint=SHAPE
        )

    def _checked(self, key: str, value: Any, kind: FieldKind[T]) -> T:
        found = kind.read(value)
        if found is None:
            raise self.wrong(f"{key} is {described(value)}, not {kind.name}")
        return found
