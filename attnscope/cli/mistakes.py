"""What a mistake on the command line says, and what it suggests in its place."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from typer.core import TyperArgument, TyperOption
from typer.exceptions import TyperException

from attnscope.base.spelling import quoted
from attnscope.base.suggestions import (
    after_script,
    example_of,
    likely_target,
    no_such_option,
    option_for_words,
    value_after,
)
from attnscope.base.text import alternatives, nearest
from attnscope.cli.command import ALL, Command


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
    words = list(arguments[arguments.index(name) + 1 :] if name else arguments)
    if kind == "NoSuchOption":
        # the command may be one that the help does not list
        known = dict.fromkeys([*commands, *([name] if name else [])])
        flags = {each: commands[each].takes_value for each in known}
        if name == "run" and (line := after_script(flag, words)):
            watch = "" if "--watch" in words else f"--watch {likely_target(words)} "
            return f"run has no option {flag}.", f"{path} {watch}{line}, if it is the script's"
        return no_such_option(flag, value_after(flag, arguments), name, flags)
    if command is None or name is None:
        return error.format_message(), f"{path} --help"
    if kind == "BadOptionUsage":
        needs = "requires" in text
        message = f"{flag} needs a value." if needs else f"{flag} takes no value."
        return message, f"{_example(command, flag)}, or {path} {ALL}" if needs else flag
    if kind == "MissingParameter" and isinstance(parameter, TyperOption | TyperArgument):
        is_option = isinstance(parameter, TyperOption)
        missing = parameter.opts[0] if is_option else parameter.human_readable_name
        return f"{missing} is missing.", " ".join([path, *_completed(command, name, words)])
    if kind == "BadParameter" and isinstance(parameter, TyperOption):
        return _bad_value(parameter, text, _example(command, parameter.opts[0]))
    extra = re.search(r"unexpected extra argument.*? \((.*)\)", text)
    if extra:
        hint = option_for_words(extra[1], words[0], command.takes_value)
        example = next(each for each in command.examples if each != path)
        hint = hint or f"{example}, or {path} --help"
        return f"{name} does not expect {extra[1]!r}.", hint
    return error.format_message(), f"{path} --help"


def _completed(command: Command, name: str, words: list[str]) -> list[str]:
    """Return the words after a command, with what is missing before them, as a shell takes them."""
    example = shlex.split(next(iter(command.examples)))[2:]
    if not words:
        return [quoted(each) for each in example]
    first = example[:1]
    if name == "run":
        first = ["--watch"] if ".py:" in words[0] else ["--watch", likely_target(words)]
    return [quoted(each) for each in (*first, *words)]


def _bad_value(option: TyperOption, text: str, example: str) -> tuple[str, str]:
    """Say what an option's value is, and what values it takes."""
    flag = max(option.opts, key=len)
    value, _, problem = text.partition(" is not ")
    choices = [str(getattr(each, "value", each)) for each in getattr(option.type, "choices", ())]
    if choices:
        near = nearest(value.strip("'"), choices)
        return f"{flag} is {value}.", f"{flag} {near or alternatives(choices)}"
    least = re.fullmatch(r"in the range x>=(\d+)\.", problem)
    kinds = {"a valid int": "a whole number", "a valid float": "a number"}
    kind = kinds.get(problem.rstrip(".").removesuffix(" range"))
    takes = f"numbers from {least[1]}" if least else kind
    if kind == "a whole number" and re.fullmatch(r"'\d+\.0*'|'\d+e\d'", value):
        example = f"{flag} {int(float(value[1:-1]))}"
    return (f"{flag} is {value}, but takes {takes}." if takes else f"{flag}: {text}"), example


def _example(command: Command, flag: str) -> str:
    """Return an option with an example of its value."""
    option = next(each for each in command.params if flag in (*each.opts, *each.secondary_opts))
    declared = command.flags.get(option.name or "")
    values = declared.values if declared and not isinstance(declared.values, str) else ()
    return example_of(
        max(option.opts, key=len),
        command.examples,
        choices=[str(getattr(each, "value", each)) for each in getattr(option.type, "choices", ())],
        values=values,
        default=str(declared.shown if declared and declared.shown else option.default),
        metavar=option.metavar,
    )
