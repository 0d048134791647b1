"""What a mistake on the command line says, and what it suggests in its place."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from typer.core import TyperArgument, TyperOption
from typer.exceptions import TyperException

from attnscope.cli.command import ALL, Command
from attnscope.errors import OptionError
from attnscope.text import alternatives, nearest


def no_such_command(word: str, keywords: Mapping[str, Iterable[str]]) -> OptionError:
    """Return the error for a word that is not a command.

    Args:
        word: the first word of the command line.
        keywords: the commands, each with words for what it is about.
    """
    message = f"there is no command {word!r}."
    if re.search(r"\.py:|^[\w.]+:\w", word):
        return OptionError(message, hint=f"attnscope trace {word}")
    if word.endswith(".py"):
        hint = f"attnscope trace {word}:NAME, or attnscope run --watch … {word}"
        return OptionError(message, hint=hint)
    if word == "minilm" or "/" in word or os.path.isdir(word):
        return OptionError(message, hint=f"attnscope model {word}")
    near = nearest(word, keywords)
    about = nearest(word, [each for words in keywords.values() for each in words])
    names = [near] if near else [name for name, words in keywords.items() if about in [*words]]
    hint = alternatives(f"attnscope {name}" for name in names) or "attnscope --help"
    return OptionError(message, hint=hint)


def explained(
    error: TyperException, arguments: Sequence[str], commands: Mapping[str, Command]
) -> tuple[str, str]:
    """Return the message and the hint for a mistake that Typer found.

    Args:
        error: the mistake.
        arguments: the command line.
        commands: every command by name.
    """
    name = next((each for each in arguments if each in commands), None)
    command = commands[name] if name else None
    path = f"attnscope {name}" if name else "attnscope"
    flag, parameter = getattr(error, "option_name", ""), getattr(error, "param", None)
    kind, text = type(error).__name__, str(error)
    if kind == "NoSuchOption":
        return _no_such_option(flag, name, commands)
    if kind == "BadOptionUsage":
        verb = "needs a" if "requires" in text else "takes no"
        return f"{flag} {verb} value.", _help(command, flag, path)
    if kind == "MissingParameter" and isinstance(parameter, TyperOption | TyperArgument):
        option = isinstance(parameter, TyperOption)
        missing = parameter.opts[0] if option else parameter.human_readable_name
        return f"{missing} is missing.", next(iter(command.examples), path) if command else path
    if kind == "BadParameter" and isinstance(parameter, TyperOption):
        return _bad_value(parameter, text, _help(command, parameter.opts[0], path))
    extra = re.search(r"unexpected extra argument.*? \((.*)\)", text)
    if extra:
        reads = command is not None and "--text" in _options(command)
        hint = '--text "…" for a text' if reads else f"{path} --help"
        return f"{name} does not expect {extra[1]!r}.", hint
    return error.format_message(), f"{path} --help"


def _no_such_option(flag: str, name: str | None, commands: Mapping[str, Command]) -> tuple[str, str]:
    """Suggest an option of this command, or else the commands that have the option."""
    others = [each for each in commands if each != name and flag in _options(commands[each])]
    own = _options(commands[name]) if name else {}
    names = {each.lstrip("-"): each for each in own}
    names = {also: each for each, declared in own.items() for also in declared} | names
    message = f"{name or 'attnscope'} has no option {flag}"
    near = nearest(flag.lstrip("-"), names)
    if near and not (others and flag.lstrip("-") not in names):
        return f"{message}.", names[near]
    if others:
        have = "has" if len(others) == 1 else "have"
        return f"{message}; {alternatives(others, 'and')} {have} it.", f"attnscope {others[0]} --help"
    return f"{message}.", f"attnscope {name} {ALL}" if name else "attnscope --help"


def _options(command: Command) -> dict[str, Sequence[str]]:
    """Return the flags of a command, each with its names in other programs."""
    return {
        flag: command.flags[each.name or ""].also if each.name in command.flags else ()
        for each in command.params
        if isinstance(each, TyperOption)
        for flag in (*each.opts, *each.secondary_opts)
    }


def _bad_value(option: TyperOption, text: str, hint: str) -> tuple[str, str]:
    """Say what an option's value is, and what values it takes."""
    flag = max(option.opts, key=len)
    value, _, problem = text.partition(" is not ")
    choices = [str(getattr(each, "value", each)) for each in getattr(option.type, "choices", ())]
    if choices:
        near = nearest(value.strip("'"), choices)
        return f"{flag} is {value}.", f"{flag} {near or alternatives(choices)}"
    least = re.fullmatch(r"in the range x>=(\d+)\.", problem)
    takes = {"a valid int.": "whole numbers", "a valid float.": "numbers"}.get(problem)
    takes = f"numbers from {least[1]}" if least else takes
    return (f"{flag} is {value}, but takes {takes}." if takes else f"{flag}: {text}"), hint


def _help(command: Command | None, option: Any, path: str) -> str:
    """Return the command that prints the help with an option."""
    for each in command.params if command else ():
        if isinstance(each, TyperOption) and option in (*each.opts, *each.secondary_opts):
            return f"{path} {'--help' if command and command.lists(each) else ALL}"
    return f"{path} --help"
