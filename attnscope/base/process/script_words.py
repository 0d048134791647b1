"""A command line that contains the command line of a script."""

from __future__ import annotations

AFTER_SCRIPT = ("--watch", "--calls")
"""The options with which attnscope's options may start after the script's arguments."""


def options_first(words: list[str], takes_value: dict[str, bool]) -> list[str]:
    """Sort the words of a command line: attnscope's options, `--`, the script and its arguments.

    Args:
        words: the words in their original order.
        takes_value: attnscope's options, and whether each takes the next word as its value.

    >>> takes_value = {"--watch": True, "--calls": True, "--wide": False, "-m": True}
    >>> " ".join(options_first("train.py --wide 3 --watch m.py:A --wide".split(), takes_value))
    '--watch m.py:A --wide -- train.py --wide 3'
    >>> " ".join(options_first("--watch m.py:A train.py -- --calls 3".split(), takes_value))
    '--watch m.py:A -- train.py --calls 3'
    """
    left, flags = list(words), []
    of_script: list[str] = []  # without a module's name, which is the value of -m
    is_module = rest_is_script = False
    while left and left[0].startswith("-") and left[0] != "-" and not is_module:
        word = left.pop(0)
        if word == "--":
            rest_is_script = True
            break
        flags.append(word)
        is_module = word[:2] == "-m"
        if takes_value.get(word) and left:
            flags.append(left.pop(0))
    if not is_module and left:
        of_script.append(left.pop(0))
    before = len(of_script)
    watching = False
    while left and not rest_is_script:
        word = left.pop(0)
        option, has_value, _ = word.partition("=")
        watching = watching or option in AFTER_SCRIPT
        if word == "--":
            rest_is_script = True
            of_script += [word] if len(of_script) > before else []
        elif watching and option in takes_value and option != "-m":
            flags.append(word)
            if takes_value[option] and not has_value and left:
                flags.append(left.pop(0))
        else:
            of_script.append(word)
    return [*flags, "--", *of_script, *left]
