"""What a hint suggests: an option that is meant, and an example of its value."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Mapping, Sequence

from attnscope.base.errors import OptionError
from attnscope.base.spelling import quoted
from attnscope.base.text import alternatives, nearest

SYNONYMS = {
    "--batch": "batch-size",
    "--nq": "seq-len length tokens",
    "--d-feat": "d-model embed-dim hidden-size",
    "--heads": "num-heads n-head n-heads",
    "--head": "heads",
    "--layer": "layers",
    "--mask causal": "causal is-causal",
    "--mask window:{value}": "window window-size",
    "--text": "prompt input sentence",
    "--generate": "max-new-tokens",
    "--init {name}={value}": "num-heads embed-dim d-model hidden-size",
    "--device cuda": "cuda gpu",
}
"""Our options, and common names of what they are; a command's first one counts.

`{name}` and `{value}` stand for the name and the value that the user wrote.
"""

EXAMPLES = {
    "--mask-fill": "-1e9",
    "--scale": "0.125",
    "--softcap": "50",
    "--show": '"attention[0]"',
    "--save": "tensors.npz",
    "--plot": "figure.svg",
    "--to": "trace.txt",
    "--where": "d_head=d_feat/n_head",
    "--call": "forward",
    "--follow": "mypackage",
    "--depth": "1",
    "--dims": "x=B,T,C",
    "--memory": "2G",
    "--engine-step": "2048",
    "--model": "minilm",
    "--file": "text.txt",
    "--ids": "101,2023,102",
    "--tokens": '"the cat"',
    "--pair": '"It slept."',
    "--target": '"Die Katze saß."',
    "--image": "cat.png",
    "--target-field": "translation",
    "--max-length": "512",
    "--positions": "T",
    "--metrics": "entropy,previous",
    "--device-map": "auto",
    "--checkpoint": "progress.npz",
}
"""An example of a value for options whose declaration has none."""

OF_METAVARS = {"MATRIX": "[[1,2],[3,4]]", "I": "0", "TEXT": '"The cat sat."'}


Flags = Mapping[str, bool]
"""The options of a command, and whether each takes a value."""


def option_for(word: str, value: str | None, flags: Flags, *, near: bool = True) -> str | None:
    """Return the option that a word means, with the value that follows the word; None if there is none.

    >>> option_for("is-causal", None, {"--mask": True}), option_for("num_heads", "4", {"--heads": True})
    ('--mask causal', '--heads 4')

    Args:
        word: the option that a user wrote, without hyphens at its beginning.
        value: the word after it; None if it looks like an option.
        flags: the options of the command.
        near: whether a name that is only similar counts.
    """
    names = {
        name: ours
        for ours, synonyms in reversed(SYNONYMS.items())
        if ours.split()[0] in flags
        for name in synonyms.split()
    }
    own = {flag.lstrip("-"): flag for flag in flags}
    name = word.replace("_", "-").lower()
    found = own.get(name) or names.get(name)
    if found is None and near:
        similar = nearest(word, own)
        found = own[similar] if similar else names.get(nearest(word, names) or "")
    if found is None:
        return None
    takes_value = flags.get(found, False) and value is not None
    text = found.format(name=word.replace("-", "_"), value=value or "…")
    return f"{text} {quoted(value)}" if takes_value and value is not None else text


def no_such_option(
    flag: str, value: str | None, command: str | None, commands: Mapping[str, Flags]
) -> tuple[str, str]:
    """Return the message and the hint for an option that a command does not have.

    The hint is an option of this command, or else the commands that have the option.

    Args:
        flag: the option.
        value: the word after it; None if it looks like an option.
        command: the name of the command; None if there is none.
        commands: the options of every command.
    """
    word, own = flag.lstrip("-"), commands.get(command or "", {})
    message = f"{command or 'attnscope'} has no option {flag}"
    others = [name for name, flags in commands.items() if name != command and flag in flags]
    ours = option_for(word, value, own, near=not others)
    if ours:
        return f"{message}.", ours
    if others:
        have = "has" if len(others) == 1 else "have"
        others.sort(key=lambda name: -len({*own} & {*commands[name]}))  # the most similar one first
        rest = "--help" if command else f"{flag} {value or '…'}"
        return f"{message}; {alternatives(others, 'and')} {have} it.", f"attnscope {others[0]} {rest}"
    for name, flags in commands.items():
        if theirs := option_for(word, value, flags, near=False):
            missing = " …" if flags.get(theirs, False) else ""
            return f"{message}.", f"attnscope {name} {theirs}{missing}"
    return f"{message}.", f"attnscope {command} --help-all" if command else "attnscope --help"


def after_script(flag: str, words: Sequence[str]) -> str | None:
    """Return a command line in which an option of a script follows the script; None if it has none.

    >>> after_script("--lr", ["--lr", "3", "train.py", "-v"])
    'train.py --lr 3 -v'
    """
    script = next((i for i, word in enumerate(words) if word.endswith(".py")), None)
    first = next((i for i, word in enumerate(words) if word.partition("=")[0] == flag), None)
    if script is None or first is None or script < first:
        return None
    alone = "=" in words[first] or words[first + 1].startswith("-") or first + 1 == script
    end = first + 1 if alone else first + 2
    line = [*words[:first], *words[end : script + 1], *words[first:end], *words[script + 1 :]]
    return " ".join(map(quoted, line))


def value_after(flag: str, words: Sequence[str]) -> str | None:
    """Return the word that follows an option, or the text after its equals sign."""
    for word, following in zip(words, [*words[1:], "-"], strict=True):
        if word == flag:
            return None if following.startswith("-") else following
        if word.startswith(f"{flag}="):
            return word.removeprefix(f"{flag}=")
    return None


def option_for_words(words: str, target: str, flags: Flags) -> str | None:
    """Return the option that superfluous words mean, with its value.

    Args:
        words: the superfluous words.
        target: the first word after the command.
        flags: the options of the command.
    """
    if "--input" in flags and re.search("[=,]", words):
        return " ".join(f"--input {quoted(word)}" for word in words.split())
    if "--input" in flags and target.endswith(".py"):
        return f"attnscope trace {target}:{words}"
    first, *others = re.split(r"[ =]", words, maxsplit=1)
    option = option_for(first, "".join(others) or None, flags, near=False)
    if option is None or flags.get(option, False):  # it lacks a value
        text = f"{target} {words}" if re.fullmatch(r"[A-Z]\w*|\w{1,2}", target) else words
        return f'--text "{text}"' if "--text" in flags else None
    return option


def no_such_command(words: Sequence[str], commands: Mapping[str, Sequence[str]]) -> OptionError:
    """Return the error for a word that is not a command.

    Args:
        words: the command line, which begins with the word.
        commands: by the name of a command, words for which it is suggested.
    """
    word = words[0]
    message, line = f"there is no command {word!r}.", " ".join(map(quoted, words))
    if re.search(r"\.py:|^[\w.]+:\w", word):
        return OptionError(message, hint=f"attnscope trace {line}")
    if word.endswith(".py"):
        return OptionError(message, hint=f"attnscope run --watch {likely_target(words)} {line}")
    if word == "minilm" or "/" in word or os.path.isdir(word):
        reads = {"--text", "--file", "--ids", "--image"}.intersection(words)
        return OptionError(message, hint=f"attnscope {'maps' if reads else 'weights'} {line}")
    near = nearest(word, commands)
    topic = nearest(word, [each for about in commands.values() for each in about])
    names = [near] if near else [name for name, about in commands.items() if topic in about]
    if len(names) == 1:
        return OptionError(message, hint=" ".join(["attnscope", *names, *map(quoted, words[1:])]))
    hint = alternatives(f"attnscope {name}" for name in names) or "attnscope --help"
    return OptionError(message, hint=hint)


def likely_target(words: Sequence[str]) -> str:
    """Return the class that one most likely wants to trace in a program, as `file.py:NAME`.

    It is a class with a `forward` in the script, or in a file beside the script that it imports; one
    that is called something with "att", if there is any. Nothing runs.

    Args:
        words: a command line with the script, or with `-m` and the name of a module.
    """
    script = next((word for word in words if word.endswith(".py")), None)
    if script is None and "-m" in words[:-1]:
        script = words[words.index("-m") + 1].replace(".", os.sep) + ".py"
    files = [script] if script else []
    for node in ast.walk(_parsed(script)) if script else ():
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        modules += [each.name for each in node.names] if isinstance(node, ast.Import) else []
        folder = os.path.dirname(script or "")
        files += [os.path.join(folder, f"{module.replace('.', os.sep)}.py") for module in modules]
    found = [f"{file}:{name}" for file in files for name in classes_with_forward(file)]
    attentions = [each for each in found if "att" in each.rpartition(":")[2].lower()]
    return next(iter(attentions or found), "FILE.py:CLASS")


def classes_with_forward(file: str) -> list[str]:
    """Return the classes of a file that have a `forward`; nothing runs."""
    return [
        node.name
        for node in _parsed(file).body
        if isinstance(node, ast.ClassDef)
        and any(isinstance(part, ast.FunctionDef) and part.name == "forward" for part in node.body)
    ]


def names_in(file: str) -> list[str]:
    """Return the public classes and functions of a file; nothing runs."""
    kinds = ast.ClassDef | ast.FunctionDef
    names = [node.name for node in _parsed(file).body if isinstance(node, kinds)]
    return [name for name in names if not name.startswith("_")]


def _parsed(file: str) -> ast.Module:
    try:
        with open(file, "rb") as source:
            return ast.parse(source.read())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return ast.Module([], [])


def example_of(
    flag: str,
    lines: Iterable[str],
    *,
    choices: Sequence[str] = (),
    values: Sequence[str] = (),
    default: str = "",
    metavar: str | None = None,
) -> str:
    """Return an option with an example of its value.

    >>> example_of("--nq", ["attnscope sdpa --nq 30 --nk 50"]), example_of("--heads", [], default="5")
    ('--nq 30', '--heads 5')

    Args:
        flag: the option.
        lines: command lines, which may have it.
        choices: all values that it takes, if they are few.
        values: some values that it takes.
        default: its default, or a sentence about it.
        metavar: the placeholder of its value.
    """
    if choices:
        return f"{flag} {alternatives(choices)}"
    for line in lines:
        if found := re.search(rf'{flag}[ =]("[^"]*"|\S+)', line):
            return f"{flag} {found[1]}"
    number = re.match(r"-?\d+(?:[.,]\d+)*", default)
    value = EXAMPLES.get(flag) or next((each for each in values if not each.endswith(":")), None)
    value = value or OF_METAVARS.get(metavar or "") or (number and number[0])
    if value is None and (metavar or "").startswith("FILE"):
        value = f"{flag.strip('-')}.npy"
    return f"{flag} {value or 2}"
