"""A command line with the command line of a script in it."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

OURS = ("--watch", "--calls")
"""Options that are ours wherever they stand, unless `--` says that they are not."""


class ScriptCommand(TyperCommand):
    """`[OPTIONS] SCRIPT [ARGS]…`, where options may stand after the script's arguments too.

    Before SCRIPT, options are ours. After it, all is the script's, up to a `--watch` or `--calls`:
    from there on, what is an option of ours is ours. A `--` before the script's first argument
    says that all of them are the script's.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As Typer's, with what is the script's behind a `--`."""
        takes_value = {
            flag: not getattr(parameter, "is_flag", False)
            for parameter in self.params
            if parameter.param_type_name == "option"
            for flag in (*parameter.opts, *parameter.secondary_opts)
        }
        return super().parse_args(ctx, ours_first(args, takes_value))


def ours_first(words: list[str], takes_value: dict[str, bool]) -> list[str]:
    """The words of a command line, sorted: our options, `--`, the script and its arguments.

    Args:
        words: as they were written.
        takes_value: our options, and whether a word that follows belongs to them.

    >>> takes_value = {"--watch": True, "--calls": True, "--wide": False, "-m": True}
    >>> " ".join(ours_first("train.py --wide 3 --watch m.py:A --wide".split(), takes_value))
    '--watch m.py:A --wide -- train.py --wide 3'
    >>> " ".join(ours_first("--watch m.py:A train.py -- --calls 3".split(), takes_value))
    '--watch m.py:A -- train.py --calls 3'
    """
    left, ours = list(words), []
    of_script: list[str] = []  # a module's name is our option's value
    is_module = all_theirs = False
    while left and left[0].startswith("-") and left[0] != "-" and not is_module:
        word = left.pop(0)
        if word == "--":
            all_theirs = True
            break
        ours.append(word)
        is_module = word[:2] == "-m"
        if takes_value.get(word) and left:
            ours.append(left.pop(0))
    if not is_module and left:
        of_script.append(left.pop(0))
    before = len(of_script)
    watching = False
    while left and not all_theirs:
        word = left.pop(0)
        option, has_value, _ = word.partition("=")
        watching = watching or option in OURS
        if word == "--":
            all_theirs = True
            of_script += [word] if len(of_script) > before else []
        elif watching and option in takes_value and option != "-m":
            ours.append(word)
            if takes_value[option] and not has_value and left:
                ours.append(left.pop(0))
        else:
            of_script.append(word)
    return [*ours, "--", *of_script, *left]
