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
from dataclasses import dataclass, field
from typing import Any

from attnscope.errors import FileError, OptionError, first_line
from attnscope.models.text_file import whole_text
from attnscope.text import described, shortened

SHAPE = "the JSON of /v1/completions, /v1/chat/completions or llama.cpp's /completion"
AFTER_SAMPLING = (
    "the probabilities of --replay are those after sampling, not the model's: they are not compared."
)
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
    """A token, or the last of several that are one character, as a list of log-probabilities has it.

    Attributes:
        number: its id; None: not known.
        piece: its bytes, or those of all of the character; None: not known.
        log_probability: None: not known.
    """

    number: int | None
    piece: bytes | None
    log_probability: float | None


@dataclass
class Response:
    """What a server returned.

    Attributes:
        engine: the format: `vLLM`, `llama.cpp` or `OpenAI-compatible`.
        text: the answer.
        ids: the ids of its tokens; None: not known.
        entries: those of its list of log-probabilities; empty: the file has none.
        n_token: how many tokens the engine wrote; None: not known.
        n_prompt: how many it read; None: not known.
        prompt_ids: the ids of the prompt; None: not known.
        request: the request; empty: not known.
        hidden: whether the model also wrote what is not in the text: reasoning, or calls of tools.
        causes: why log-probabilities may be others than the model's.
        notices: sentences for the reader.
    """

    engine: str
    text: str
    ids: list[int] | None = None
    entries: list[RecordedToken] = field(default_factory=list)
    n_token: int | None = None
    n_prompt: int | None = None
    prompt_ids: list[int] | None = None
    request: dict[str, Any] = field(default_factory=dict)
    hidden: bool = False
    causes: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)


def read_response(replay: Any) -> Response:
    """Read a response, or a request with its response.

    Args:
        replay: a file, `-` for standard input, or its content as a dict. `{"request": {…},
            "response": {…}}` holds the prompt, too.

    Raises:
        FileError: the file cannot be read, or is not JSON.
        OptionError: it is not a server's response, or has no answer.
    """
    name = "replay" if isinstance(replay, dict) else f"--replay {shortened(replay)}"
    content = replay if isinstance(replay, dict) else _content(str(replay), name)
    request: Any = {}
    if isinstance(content, dict) and "response" in content:
        request, content = content.get("request") or {}, content["response"]
    if not isinstance(content, dict) or not isinstance(request, dict):
        raise OptionError(f"{name} is {described(content)}, not a response.", hint=SHAPE)
    if content.get("error") and not {"choices", "content"} & {*content}:
        raise OptionError(f"{name} is an error of the server: {_error_of(content)}.")
    try:
        if isinstance(content.get("choices"), list):
            response = _of_choices(content, name)
        elif isinstance(content.get("content"), str):
            response = _of_llama_cpp(content)
        else:
            raise OptionError(f"{name} has neither choices nor a content.", hint=SHAPE)
        response.n_prompt, response.n_token = _counts(content)
    except OptionError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = first_line(error).rstrip(".")
        raise OptionError(
            f"{name} has another shape than a server's response: {what}.", hint=SHAPE
        ) from error
    response.request = request
    if content.get("error"):
        response.notices.append(f"{name} ends with an error of the server: {_error_of(content)}.")
    _check(response, name)
    known = all(each.log_probability is not None for each in response.entries)
    if response.entries and known and (content.get("timings") or {}).get("draft_n_accepted"):
        response.notices.append(DRAFTED)
        response.entries = []
    model = str(content.get("model") or "").rpartition("/")[2]
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
            return _joined([json.loads(line) for line in lines if line != "[DONE]"], name)
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileError(
            f"{name} is not JSON, or is cut off: {first_line(error).rstrip('.')}.", hint=SHAPE
        ) from error


def _joined(chunks: list[Any], name: str) -> dict[str, Any]:
    """Join the chunks of a stream: texts and lists of the first choice are appended to each other."""
    whole: dict[str, Any] = {}
    for chunk in chunks:
        if not isinstance(chunk, dict):
            raise OptionError(f"{name} has {described(chunk)} in its stream.", hint=SHAPE)
        choices = chunk.get("choices") or []
        if any(each.get("index", 0) for each in choices):
            raise OptionError(f"{name} is a stream of several choices.", hint='"n": 1')
        _append(whole, {key: value for key, value in chunk.items() if key != "choices"})
        for choice in choices:
            plain = {key: value for key, value in choice.items() if key not in ("delta", "index")}
            plain |= {"message": choice["delta"]} if "delta" in choice else {}
            _append(whole.setdefault("choices", [{}])[0], plain)
    return whole


GROWS = (
    *("text", "content", "reasoning", "reasoning_content", "tool_calls", "tokens", "token_ids"),
    *("token_logprobs", "completion_probabilities"),
)
"""The fields to which each chunk of a stream appends."""


def _append(whole: dict[str, Any], part: dict[str, Any]) -> None:
    for key, value in part.items():
        if isinstance(value, dict) and isinstance(whole.get(key), dict):
            _append(whole[key], value)
        elif key in GROWS and whole.get(key) is not None and value is not None:
            whole[key] = whole[key] + value
        elif value is not None:
            whole[key] = value


def _of_choices(content: dict[str, Any], name: str) -> Response:
    """Read a response of `/v1/completions` or `/v1/chat/completions`."""
    choices = content["choices"]
    if not choices:
        raise OptionError(f"{name} has no choices: there is no answer in it.")
    choice = choices[0]
    message, found = choice.get("message"), choice.get("logprobs") or {}
    text = choice["text"] if message is None else message.get("content") or ""
    if not isinstance(text, str):
        raise TypeError(f"its text is {described(text)}")
    response = Response("OpenAI-compatible", text)
    if message is not None:
        others = ("reasoning", "reasoning_content", "tool_calls", "function_call")
        response.hidden = any(message.get(key) for key in others)
    entries = found.get("content") or []  # llama.cpp has these without a chat, too
    if found.get("tokens"):
        tokens, values = found["tokens"], found["token_logprobs"]
        if len(tokens) != len(values):
            raise OptionError(f"{name} has {len(tokens)} tokens and {len(values)} log-probabilities.")
        if len(values) > 1 and values[0] is None and None not in values[1:]:
            raise _echo(name)
        entries = [{"token": a, "logprob": b} for a, b in zip(tokens, values, strict=True)]
    _read_entries(response, entries)
    prompt = choice.get("prompt_token_ids") or content.get("prompt_token_ids")
    response.ids = _ids(choice["token_ids"]) if choice.get("token_ids") else None
    response.prompt_ids = _ids(prompt) if prompt else None
    fingerprint = str(content.get("system_fingerprint"))
    vllm = fingerprint.startswith("vllm") or "prompt_logprobs" in {*choice, *content}
    if response.ids or prompt or vllm:
        response.engine = "vLLM"
    elif any("id" in each for each in entries) or "timings" in content:
        response.engine = "llama.cpp"
    if len(choices) > 1:
        response.notices.append(f"{name} has {len(choices)} choices: this is the first.")
    return response


def _of_llama_cpp(content: dict[str, Any]) -> Response:
    """Read a response of llama.cpp's `/completion`."""
    response = Response("llama.cpp", content["content"])
    entries = []
    for each in content.get("completion_probabilities") or []:
        if "probs" in each:  # the older format
            own = [one["prob"] for one in each["probs"] if one["tok_str"] == each["content"]]
            each = {"token": each["content"], "prob": own[0] if own else None}
        entries.append(each)
    _read_entries(response, entries)
    response.ids = _ids(content["tokens"]) if content.get("tokens") else None
    settings = content.get("generation_settings") or {}
    if any(each.get("scale") for each in settings.get("lora") or []):
        response.causes.append("the engine ran with a LoRA")
    return response


def _counts(content: dict[str, Any]) -> tuple[int | None, int | None]:
    """Return how many tokens the engine read and wrote; None: not known."""
    usage, timings = content.get("usage") or {}, content.get("timings") or {}
    n_prompt = content.get("tokens_evaluated", usage.get("prompt_tokens"))
    n_token = content.get("tokens_predicted", usage.get("completion_tokens"))
    if timings and n_token is None:  # a stream of llama.cpp's chat
        n_prompt, n_token = timings["prompt_n"] + timings.get("cache_n", 0), timings["predicted_n"]
    [n_prompt, n_token] = [None if each is None else int(each) for each in (n_prompt, n_token)]
    return n_prompt, None if len(content.get("choices") or []) > 1 else n_token  # that of all choices


def _read_entries(response: Response, found: list[dict[str, Any]]) -> None:
    """Read a list of tokens with their log-probabilities, in OpenAI's format or llama.cpp's."""
    for each in found:
        token, numbers = each["token"], each.get("bytes")
        prefix, _, digits = token.partition(":")
        named = prefix == "token_id" and digits.isdigit()
        piece = token.encode() if numbers is None else bytes(numbers)
        lossy = "\ufffd" in piece.decode(errors="ignore") or token.startswith("bytes:")
        value = each.get("logprob")
        drafted = value == 0 and each.get("top_logprobs") == []  # llama.cpp does not compute these
        response.entries.append(
            RecordedToken(
                int(digits) if named else each.get("id"),
                None if lossy or named else piece,
                None if value is None or value <= UNLIKELY or drafted else float(value),
            )
        )
    if any("prob" in each for each in found):
        response.notices.append(AFTER_SAMPLING)


def _ids(values: Any) -> list[int]:
    """Return ids; raise a ValueError if they are none."""
    wrong = [each for each in values if isinstance(each, bool) or not isinstance(each, int) or each < 0]
    if wrong:
        raise ValueError(f"{described(wrong[0])} among ids of tokens")
    return list(values)


PENALTIES = {
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "repetition_penalty": 1,
    "repeat_penalty": 1,
}
"""Penalties, and their values without an effect."""


def _causes(settings: dict[str, Any]) -> list[str]:
    """Name what changes log-probabilities, if the server reports them after it was applied.

    vLLM reports those before, unless its `--logprobs-mode` is one of `processed_*`.
    """
    causes = []
    if settings.get("temperature") not in (None, 0, 1):
        causes.append(f"temperature is {settings['temperature']}")
    causes += [
        f"{name} is {settings[name]}"
        for name, idle in PENALTIES.items()
        if settings.get(name) not in (None, idle)
    ]
    return [*causes, *(["logit_bias is set"] if settings.get("logit_bias") else [])]
