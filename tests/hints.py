"""Pastes hints: reads what a hint says to write, and changes the mistaken command line as a user would.

A hint is a whole command (`attnscope …`), options to add or to replace (`--nq 3`, with what follows in
words: `--dtype float32, to convert it`), options to leave out (`leave out --pool`), or a sentence. Several
are joined by `or` or `;`. Placeholders (`FILE`, `N`, `…`) are for the user to fill in: then only the
options are looked up.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain

from typer.core import TyperOption

from attnscope.base.text import printable
from attnscope.cli.app import Commands

ERROR, TRY = "attnscope: error: ", "  try  "
PLACEHOLDER = re.compile(r"…|\b[A-Z]{1,}(?![a-z_])\b")
MISUSED = re.compile(
    r"has no option|needs a value\.|takes no value\.|, but takes (a whole number|a number|numbers from)"
    r"|does not expect|there is no command"
)
"""What the parser says of a command line that is not one. What is missing in a line is another mistake."""


REPEATED = ("--input", "--init", "--where", "--map", "--same")
"""Options that are written once for each name."""


@dataclass(frozen=True)
class Said:
    """A mistake as stderr shows it.

    Attributes:
        message: its line.
        hint: the line below, or None.
    """

    message: str
    hint: str | None


def said(err: str) -> Said | None:
    """Read a mistake and its hint from stderr; None: there is no mistake."""
    lines = err.splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=False):
        if line.startswith(ERROR):
            hint = following.removeprefix(TRY) if following.startswith(TRY) else None
            return Said(line.removeprefix(ERROR), hint)
    return None


@cache
def options_of(command: str) -> dict[str, TyperOption]:
    """The options of a command by every flag."""
    options = [each for each in Commands()[command].params if isinstance(each, TyperOption)]
    return {flag: each for each in options for flag in (*each.opts, *each.secondary_opts)}


def parts_of(hint: str) -> list[str]:
    """Split a hint into what it proposes: at `;` and `or`, but not inside quotes."""
    quoted = re.split(r"""("[^"]*"|'[^']*')""", hint)
    joined = "".join(
        part if i % 2 else re.sub(r"(,|;)? or |; ", "\0", part) for i, part in enumerate(quoted)
    )
    return [part.strip() for part in joined.split("\0") if part.strip()]


def words_of(text: str) -> list[str] | None:
    """Split a text as a shell does; None: it is not for a shell."""
    try:
        return shlex.split(text)
    except ValueError:
        return None


def pasted(words: list[str], mistake: Said) -> Iterator[tuple[str, list[list[str]]]]:
    """Yield each part of a hint that can be pasted, and the command lines that a user would then try.

    Args:
        words: the mistaken command line.
        mistake: what it said.
    """
    command = next((each for each in words if each in Commands()), None)
    for part in parts_of(mistake.hint or ""):
        if PLACEHOLDER.search(part.replace("attnscope", "")):
            continue
        if part.startswith("attnscope "):
            line = words_of(re.split(r", (?!or )", part)[0])
            if line is not None:
                yield part, [line[1:]]
        elif command is None:
            continue
        elif left_out := re.match(r"(?:leave out|without|no) (--[\w-]+)", part):
            if left_out[1] in options_of(command):
                yield part, [without(words, command, left_out[1])]
        elif one := re.fullmatch(r"(--.*) (?:without|with no) (--[\w-]+)", part):
            if one[2] in options_of(command):
                rest = without(words, command, one[2])
                yield part, [replaced(rest, command, options_in(one[1], command))]
        elif part.startswith("--"):
            options = options_in(part, command)
            rest = without_what_is_wrong(words, mistake.message)
            if options:
                moved = without_values(
                    rest, command, {value for _, *values in options for value in values}
                )
                yield (
                    part,
                    [
                        replaced(rest, command, options),
                        [*rest, *chain(*options)],
                        replaced(moved, command, options),
                    ],
                )


def options_in(part: str, command: str) -> list[list[str]]:
    """Read the options at the beginning of a text, each with its value, up to the first other word."""
    words, options = words_of(part) or [], []
    while words and words[0].startswith("--"):
        flag, equals, value = words.pop(0).partition("=")
        is_last = flag.endswith((",", ":"))
        flag = flag.rstrip(",:")
        option = options_of(command).get(flag)
        if option is None:
            return []
        if option.is_flag or equals:
            options.append([f"{flag}{equals}{value}"])
        elif words and not is_last:
            value = words.pop(0)
            is_last = value.endswith((",", ":"))
            options.append([flag, value.rstrip(",") if is_last else value])
        else:
            return options
        if is_last:
            break
    return options


def without_what_is_wrong(words: list[str], message: str) -> list[str]:
    """Return a command line without the words that a message says are none of it."""
    if unexpected := re.search(r"does not expect '(.*)'\.", message):
        return [word for word in words if f" {word} " not in f" {unexpected[1]} "]
    if (valueless := re.match(r"(--[\w-]+) needs a value\.", message)) and words[-1] == valueless[1]:
        return words[:-1]
    if no_option := re.search(r"has no option (\S+?)[.;]", f"{message};"):
        at = next(
            (i for i, word in enumerate(words) if word.partition("=")[0] == no_option[1]), len(words)
        )
        takes_next = bool(words[at + 1 :]) and not words[at + 1].startswith("-") and "=" not in words[at]
        return [*words[:at], *words[at + 1 + takes_next :]]
    if repeated := re.match("|".join(REPEATED), message):
        return [word for word, is_wrong in _marked(words, repeated[0], message) if not is_wrong]
    return words


def _marked(words: list[str], flag: str, message: str) -> Iterator[tuple[str, bool]]:
    """Yield each word, and whether it is a flag or a value of it that a message speaks of."""
    left = list(words)
    while left:
        word = left.pop(0)
        own, equals, value = word.partition("=")
        if own != flag:
            yield word, False
        elif equals or not left:
            yield word, not value.strip() or printable(value.strip()) in message
        else:
            value = left.pop(0)
            is_wrong = not value.strip() or printable(value.strip()) in message
            yield from ((word, is_wrong), (value, is_wrong))


def without_values(words: list[str], command: str, values: Collection[str]) -> list[str]:
    """Return a command line without values that belong to another option, and without their flags."""
    kept: list[str] = []
    for word in words:
        if printable(word) not in values:
            kept.append(word)
        elif kept and (option := options_of(command).get(kept[-1])) and not option.is_flag:
            kept.pop()
    return kept


def without(words: list[str], command: str, flag: str) -> list[str]:
    """Return a command line without an option and its value."""
    option, left = options_of(command)[flag], list(words)
    kept = []
    while left:
        word = left.pop(0)
        if word.partition("=")[0] not in (*option.opts, *option.secondary_opts):
            kept.append(word)
        elif not option.is_flag and "=" not in word and left and left[0] not in options_of(command):
            left.pop(0)
    return kept


def replaced(words: list[str], command: str, options: list[list[str]]) -> list[str]:
    """Return a command line with options in the place of those that it has; of `--input`, the same name's."""
    for flag, *values in options:
        plain = flag.partition("=")[0]
        if plain in REPEATED and values:
            name = values[0].partition("=")[0]
            at = [
                i
                for i, word in enumerate(words[1:], 1)
                if words[i - 1] == plain and word.partition("=")[0] == name
            ]
            words = [word for i, word in enumerate(words) if i not in at and i + 1 not in at]
        else:
            words = without(words, command, plain)
    script = words.index("--") if "--" in words else len(words)
    return [*words[:script], *chain(*options), *words[script:]]


def unknown_flags(words: list[str], hint: str) -> list[str]:
    """The flags in a hint that neither its command nor any command that it names has."""
    command = next((each for each in words if each in Commands()), None)
    unknown = []
    for part in parts_of(hint):
        if re.search(r"\b(pip|torchrun|ffmpeg|iconv|python)\b", part):
            continue
        named = re.match(r"attnscope ([a-z]+)", part)
        own = named[1] if named and named[1] in Commands() else command
        of_us = re.split(r"\.py\b", part)[0] if own == "run" else part
        flags = re.findall(r"(?<![\w/.-])(--[a-z][a-z-]*)", of_us)
        known = options_of(own) if own else {}
        unknown += [flag for flag in flags if flag not in (*known, "--help", "--help-all")]
    return unknown


def same_mistake(one: str, other: str) -> bool:
    """Whether two messages say the same, perhaps of another number."""
    return re.sub(r"\d+", "#", one) == re.sub(r"\d+", "#", other)


def faults_of_hint(words: list[str], err: str, run: Callable[[list[str]], str]) -> Iterator[str]:
    """Yield what is wrong with the hint of a mistake.

    Args:
        words: the mistaken command line.
        err: what it wrote on stderr.
        run: runs another command line, and returns its stderr.
    """
    mistake = said(err)
    if mistake is None or mistake.hint is None:
        return
    unknown = unknown_flags(words, mistake.hint)
    if unknown:
        yield f"{', '.join(unknown)} is no option: {mistake.message} TRY {mistake.hint}"
    for part, lines in pasted(words, mistake):
        answers = [said(run(line)) for line in lines]
        if all(each and is_no_better(each.message, mistake.message, part, words) for each in answers):
            yield f"{part!r} does not help: {mistake.message} TRY {mistake.hint} THEN {answers[0]}"


def is_no_better(new: str, old: str, part: str, words: Collection[str]) -> bool:
    """Whether what a part of a hint leads to is the same mistake, or no command line because of the hint.

    What stood in the command line before (`words`) is another mistake of the user.
    """
    if same_mistake(new, old):
        return True
    named = re.findall(r"--[a-z][a-z-]*|'[^']+'", new)
    written = {word.rstrip(",") for word in words_of(part) or []} - {*words}
    return MISUSED.search(new) is not None and any(each.strip("'") in written for each in named)


# In Python.

FLAG = re.compile(r"(?<![\w/.-])--[a-z][a-z-]*(?![\w.])")
OTHER_PROGRAMS = re.compile(r"\b(attnscope|torchrun|pip|ffmpeg|vLLM|llama\.cpp|SGLang)\b[^;]*")
QUOTED = re.compile(r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')""")


def faults_in_python(parameters: Collection[str], message: str, hint: str | None) -> Iterator[str]:
    """Yield why a message and its hint cannot be written in Python, in a call of a function.

    Args:
        parameters: the names of its parameters.
        message, hint: what an error says.
    """
    for text in (message, hint or ""):
        of_us = QUOTED.sub("", OTHER_PROGRAMS.sub("", text))
        if flags := FLAG.findall(of_us):
            yield f"{flags[0]} is no keyword: {text}"
    plain = QUOTED.sub('""', OTHER_PROGRAMS.sub("", hint or ""))
    for keyword in re.findall(r"(?<![\w.\"(\[-])([a-z]\w*)=(?!=)", plain):
        if keyword not in parameters:
            yield f"{keyword} is no parameter: {hint}"
