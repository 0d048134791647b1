"""Words about options for people who call the library: keywords, where the command line has flags.

Messages are written once, in the words of the command line. `in_keywords` says the same to those who
call a function: `--head 11` is `heads=11`, and `--input x=2,10,64` is `inputs={"x": "2,10,64"}`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache, partial, wraps
from typing import Any

from attnscope.base.arguments import declared_of
from attnscope.base.errors import AttnscopeError, warnings_in

RENAMED = {"dk": "widths", "dims": "axes"}
"""Keywords that are not named like their flags, where a function has them."""

FLAG = re.compile(r"(?<![\w/.-])--(?P<name>[a-z][a-z0-9]*(?:-[a-z0-9]+)*)(?![\w/-]|\.\w)")
VALUE = re.compile(r"[ =](\"[^\"]*\"|'[^']*'|[^\s;()]+)")
COMMAND = re.compile(r"\b(?:attnscope|torchrun|pip) [^;]*")
"""A command in a hint, which stays as a shell takes it."""

NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?")
PLACEHOLDER = re.compile(r"[A-Z]{1,8}|…")
ALTERNATIVES = re.compile(r"((?:, (?!--)[\w.,-]+)*)( or ((?!--)[\w.,-]+))?$")
VERBS = {"does", "do", "is", "are", "gives", "and", "or", "for", "which", "with", "names", "has"}
"""Words that follow a flag in a sentence and are not its value."""

PROSE = frozenset(
    {"title", "notices", "notes", "message", "note", "source", "found", "explanation", "uncounted"}
)
"""The fields of results that are sentences of ours."""


def speaking(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a public function whose errors, warnings and results speak of its keywords."""

    @cache
    def parameters() -> dict[str, str]:
        return {name: each.annotation for name, each in declared_of(function).items()}

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with warnings_in(lambda text: in_keywords(text, parameters())):
            try:
                result = function(*args, **kwargs)
            except AttnscopeError as error:
                reword_error(error, parameters())
                raise
        return reworded(result, partial(in_keywords, parameters=parameters()))

    call.__module__ = "attnscope"
    return call


def in_keywords(text: str, parameters: Mapping[str, str], *, is_hint: bool = False) -> str:
    """Replace flags by the keywords of a function; other flags, and those in commands, stay.

    Args:
        text: a message.
        parameters: the function's parameters, and the annotation of each.
        is_hint: whether the text is what to write, and not a sentence about it.

    >>> in_keywords("--head 11 or --no-bias", {"heads": "Indices", "bias": "bool"}, is_hint=True)
    'heads=11 or bias=False'
    >>> in_keywords("--causal and --window exclude each other.", {"causal": "bool", "window": "int"})
    'causal and window exclude each other.'
    """
    parts: list[str] = []
    end = 0
    for command in COMMAND.finditer(text):
        parts += [_replaced(text[end : command.start()], parameters, is_hint), command[0]]
        end = command.end()
    return "".join([*parts, _replaced(text[end:], parameters, is_hint)])


def _replaced(text: str, parameters: Mapping[str, str], is_hint: bool) -> str:
    """Replace the flags in a text without commands."""
    parts: list[str] = []
    named: set[str] = set()
    end = 0
    for flag in FLAG.finditer(text):
        if flag.start() < end:
            continue
        keyword, is_off = _keyword(flag["name"], parameters)
        if keyword is None:
            continue
        follows = bool(parts) and "=" in parts[-1] and text[end : flag.start()] == " "
        is_value = is_hint or follows or _is_alone(text, flag)
        word, stop = _assignment(text, flag.end(), keyword, parameters[keyword], is_off, is_value)
        between = text[end : flag.start()]
        if keyword in named and between == " " and word.startswith(f"{keyword}={{"):
            parts[-1] = f"{parts[-1][:-1]}, {word.removeprefix(keyword + '={')}"  # one more of init=…
        else:
            joint = ", " if between == " " and parts and "=" in parts[-1] else between
            parts += [joint, word]
        named.add(keyword)
        end = stop
    return "".join([*parts, text[end:]])


def _keyword(name: str, parameters: Mapping[str, str]) -> tuple[str | None, bool]:
    """Return the keyword for a flag, and whether the flag switches it off; None: there is none."""
    plain = name.replace("-", "_")
    for keyword in (plain, f"{plain}s", RENAMED.get(name)):
        if keyword in parameters:
            return keyword, False
    off = plain.removeprefix("no_")
    return (off, True) if off != plain and off in parameters else (None, False)


def _is_alone(text: str, flag: re.Match[str]) -> bool:
    """Check whether a text, or what is in parentheses, is flags and values alone."""
    before, after = text[: flag.start()].rstrip(), text[flag.end() :]
    if re.match(r" (?!--)[\w.:,-]+ --", after) and after.split()[0] not in VERBS:
        return True
    inside = before.endswith("(") and re.match(r"( [\w.:,-]+)?\)", after)
    return bool(inside) or (not before and re.fullmatch(r"( [\w.:,-]+)?", after) is not None)


def _assignment(
    text: str, end: int, keyword: str, kind: str, is_off: bool, is_value: bool
) -> tuple[str, int]:
    """Write a flag and its value as a keyword, and find the place behind both.

    Args:
        text: the whole text.
        end: the place behind the flag.
        keyword: the keyword.
        kind: the annotation of its parameter.
        is_off: whether the flag means False.
        is_value: whether a word behind the flag is its value, as it is in a hint.
    """
    if is_off or set(kind.replace(" ", "").split("|")) <= {"bool", "None"}:
        return (f"{keyword}={not is_off}" if is_off or is_value else keyword), end
    found = VALUE.match(text, end)
    raw = found[1].rstrip(",.:") if found else ""
    if found is None or not raw or (raw in VERBS and text[end] == " "):
        return keyword, end
    stop = found.start(1) + len(raw)
    if keyword in ("init", "inputs") or (keyword == "mask_input" and "=" in raw):
        unquoted = raw[1:-1] if raw[0] == raw[-1] and raw[0] in "\"'" else raw
        name, equals, spec = unquoted.partition("=")
        if equals:
            return f"{keyword}={{{json.dumps(name)}: {_literal(spec, 'str')}}}", stop
        if not is_value and raw.isidentifier():
            return f"{keyword}[{json.dumps(raw)}]", stop
        return (f"{keyword}=[{_literal(raw, kind)}]", stop) if is_value else (keyword, end)
    looks_like_one = raw[0] in "\"'[" or NUMBER.fullmatch(raw) or PLACEHOLDER.fullmatch(raw)
    if not (is_value or looks_like_one):
        return keyword, end
    word = f"{keyword}={_literal(raw, kind)}"
    more = ALTERNATIVES.match(text, stop) if is_value and raw[0] != '"' else None
    if more is None:
        return word, stop
    others = re.split(r"(, | or )", more[0])[1:]
    literals = [_literal(each, kind) if i % 2 else each for i, each in enumerate(others)]
    return "".join([word, *literals]), more.end()


def _literal(raw: str, kind: str) -> str:
    """Return a value of the command line as Python writes it."""
    if (
        raw in ("True", "False", "None")
        or raw[0:1] in "\"'["
        or PLACEHOLDER.fullmatch(raw)
        or NUMBER.fullmatch(raw)
    ):
        return raw
    if "[int]" in kind and re.fullmatch(r"\d+(,\d+)+", raw):
        return f"[{raw.replace(',', ', ')}]"
    return json.dumps(raw, ensure_ascii=False)


def reword_error(error: AttnscopeError, parameters: Mapping[str, str]) -> None:
    """Let an error speak of keywords."""
    hint = None if error.hint is None else in_keywords(error.hint, parameters, is_hint=True)
    error.say(in_keywords(error.message, parameters), hint)


def reworded(result: Any, words: Callable[[str], str]) -> Any:
    """Return a result whose sentences are in other words; anything else is returned as it is."""
    if type(result) in (list, tuple) and result and is_dataclass(result[0]):
        parts = [reworded(each, words) for each in result]
        same = all(one is other for one, other in zip(parts, result, strict=True))
        return result if same else type(result)(parts)
    if not is_dataclass(result) or isinstance(result, type):
        return result
    changes = {}
    for each in fields(result):
        value = getattr(result, each.name)
        new = _prose(value, words) if each.name in PROSE else reworded(value, words)
        if new is not value:
            changes[each.name] = new
    if not changes:
        return result
    if result.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        return replace(result, **changes)
    for name, value in changes.items():
        setattr(result, name, value)
    return result


def _prose(value: Any, words: Callable[[str], str]) -> Any:
    """Return a sentence, or several, in other words."""
    if isinstance(value, str):
        return words(value) if "--" in value else value
    if isinstance(value, list | tuple):
        if any(isinstance(each, str) and "--" in each for each in value):
            return type(value)(map(words, value))
        return reworded(value, words)
    return value
