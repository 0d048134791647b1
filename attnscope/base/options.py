"""Options that the command line and the library share.

Options that belong together are the fields of a small frozen dataclass, each declared with `option`. A
public function is written with these groups, and `with_keywords` gives it a keyword for each option; a
command takes the same groups, which `attnscope.cli.options` expands into flags. So each option has one
name, one default and one sentence of help.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, is_dataclass
from enum import StrEnum
from functools import wraps
from inspect import BoundArguments, Parameter, Signature, cleandoc, signature
from textwrap import fill
from typing import Any, TypeGuard, TypeVar, get_args, get_origin

from attnscope.base.dtypes import FLOATS
from attnscope.base.errors import OptionError
from attnscope.base.spelling import FLAGS, flag_of, spelled, spelled_any
from attnscope.base.text import alternatives

Choice = TypeVar("Choice", bound=StrEnum)


Texts = Sequence[str] | Mapping[str, Any]
"""Specifications as `NAME=VALUE`; or by name, as texts or objects."""
Inputs = Any
"""Tensors, texts `NAME=AXES`, or either by name."""


class Distribution(StrEnum):
    """The distribution of drawn inputs: standard normal, or uniform in [0, 1)."""

    NORMAL = "normal"
    UNIFORM = "uniform"


class Alignment(StrEnum):
    """The alignment of queries and keys."""

    TOP_LEFT = "top-left"
    BOTTOM_RIGHT = "bottom-right"
    AFTER_PAST = "after-past"
    LENGTHS = "lengths"


class VectorLayout(StrEnum):
    """The orientation of vectors."""

    ROWS = "rows"
    COLUMNS = "columns"


DRAW = "Distribution of drawn inputs: normal (torch.randn), or uniform in [0, 1) (torch.rand)."
"""The help of `--draw`."""


@dataclass(frozen=True)
class Flag:
    """The appearance of an option on the command line.

    Attributes:
        help: a sentence on its effect. `{nk}` in it names another option: `--nk` on the command line,
            `nk` in Python.
        names: the flags; default: the field's name with hyphens, such as `--d-feat` for `d_feat`.
        panel: the heading of its group in the help.
        shown: the default as the help shows it, if it differs from the field's; True: the field's
            own, even if that is False.
        metavar: the placeholder of its value in the help; default: according to the type.
        min: the smallest number allowed.
        parser: converts the text to the value.
        type: the type of its value on the command line, if the library takes others, too.
        common: whether `--help` lists it, and not only `--help-all`: in each command, or in these.
        values: values that the shell completes: texts, or a kind in `attnscope.cli.completion`.
        python_only: whether it is a keyword without a flag, such as a loaded tokenizer.
        only_for: the kinds of the first argument that it is for, such as `models`; default: those in
            `FOR` of its group, or all. `check_kind` refuses it for others.
        needs: other options that it needs, each with what the error says after its name:
            `{"window": "is for positions outside of a window"}`.
        excludes: other options that cannot be set beside it, each with what the error says, in which
            `{text}` names an option, or that and a hint, which may name some, too; empty: that both
            exclude each other.
    """

    help: str
    names: tuple[str, ...] = ()
    panel: str | None = None
    shown: str | bool | None = None
    metavar: str | None = None
    min: int | None = None
    parser: Callable[[str], Any] | None = None
    type: Any = None
    common: bool | Sequence[str] = False
    values: Sequence[str] | str = ()
    python_only: bool = False
    only_for: Collection[str] = ()
    needs: Mapping[str, str] = field(default_factory=dict)
    excludes: Mapping[str, str | tuple[str, str]] = field(default_factory=dict)


DTYPES = tuple(FLOATS)
DEVICES = ("cpu", "cuda", "cuda:1", "mps", "xpu")
"""Values that the shell completes."""


def option(help: str, *names: str, default: Any = None, **more: Any) -> Any:
    """Declare a field of a dataclass as an option; `more` as in `Flag`."""
    return field(default=default, metadata={"flag": Flag(help, names, **more)})


def inputs_of_calls(help: str) -> Any:
    """Declare `--input`, an argument of the calls of code; without it, the usual inputs are drawn."""
    about: dict[str, Any] = {"metavar": "NAME=SPEC", "shown": "the usual ones", "common": True}
    return option(help, "--input", type=list[str] | None, **about)


def inputs_of(args: Sequence[Any], inputs: Inputs) -> Inputs:
    """Return the inputs of code, which are given by position or by name.

    Raises:
        OptionError: they are given twice.
    """
    if args and inputs is not None:
        raise OptionError("the inputs are given twice, by position and as inputs.")
    return args or inputs


def alignment_of_queries() -> Any:
    """Declare `--align`, where the queries are among the keys."""
    return option(
        "Position of the queries among the keys: top-left, bottom-right, after-past (from the first new"
        " key on) or lengths (the last keys of each sequence, with {mask} lengths:…).",
        shown="bottom-right with {past}, else top-left",
    )


def one_of(kind: type[Choice], name: str, value: str | None) -> Choice | None:
    """Return the choice that an option names by a text; None stays None.

    Raises:
        OptionError: there is no such choice.
    """
    try:
        return None if value is None else kind(value)
    except ValueError as error:
        choices = spelled_any(name, kind, " or ")
        raise OptionError(f"{spelled(name)} is {value!r}.", hint=choices) from error


def is_code(target: Any) -> bool:
    """Check whether an argument is code, or its name: a class, function or module, but not a model.

    >>> is_code("mine.py:Attention"), is_code("gpt2")
    (True, False)
    """
    if isinstance(target, str):
        return ":" in target or target.endswith(".py")
    return callable(target) and not hasattr(target, "save_pretrained")


def refuse(options: Mapping[str, Any], why: str) -> None:
    """Raise an OptionError if an option is set.

    Args:
        options: the options by name; None and False are not set.
        why: the reason, such as `is for models`.
    """
    for name, value in options.items():
        if value is not None and value is not False:
            raise OptionError(f"{spelled(name)} {why}.")


def is_set(group: Any, option: Field[Any]) -> bool:
    """Check whether an option is not as it is by default; an empty list or dictionary sets nothing."""
    value, default = getattr(group, option.name), option.default
    if isinstance(value, list | tuple | dict) and not value:
        return False
    return type(value) is not type(default) or value != default


def check_kind(kinds: Collection[str], groups: Iterable[Any], because: str = "") -> None:
    """Raise an OptionError if an option is set that is for other kinds of the first argument.

    Args:
        kinds: the kinds of the argument, in the words of `FOR` and `only_for`: `code`.
        groups: the options. Those without kinds are for all.
        because: what follows in the sentence: `, and both are models`.

    >>> @dataclass(frozen=True)
    ... class Reading:
    ...     FOR = ("models",)
    ...     text: str | None = option("A text.")
    ...     seed: int | None = option("A seed.", only_for=("models", "code"))
    >>> check_kind(["code"], [Reading(seed=1)])
    >>> check_kind(["code"], [Reading(text="Hi")], ", and mine.py:f is code")
    Traceback (most recent call last):
    attnscope.base.errors.OptionError: text is for models, and mine.py:f is code.
    """
    for group in groups:
        for each in _options(group):
            allowed = each.metadata["flag"].only_for or getattr(group, "FOR", kinds)
            if is_set(group, each) and not set(allowed) & set(kinds):
                words = alternatives(allowed, "and")
                raise OptionError(f"{spelled(each.name)} is for {words}{because}.")


def check_conflicts(groups: Iterable[Any]) -> None:
    """Raise an OptionError if an option is set beside one that it excludes, or without one it needs.

    Functions under `with_keywords`, and commands, call it for all of their groups.

    >>> @dataclass(frozen=True)
    ... class Mask:
    ...     causal: bool = option("Hide later keys.", default=False, excludes={"window": ""})
    ...     window: int | None = option("Keys to see.")
    ...     sinks: int | None = option(
    ...         "First keys.", needs={"window": "is for keys outside of a window"}
    ...     )
    >>> check_conflicts([Mask(causal=True, window=3)])
    Traceback (most recent call last):
    attnscope.base.errors.OptionError: causal and window exclude each other.
    >>> check_conflicts([Mask(sinks=3)])
    Traceback (most recent call last):
    attnscope.base.errors.OptionError: sinks is for keys outside of a window.
    try  window=N
    """
    found = [(each, is_set(group, each)) for group in groups for each in _options(group)]
    names = {each.name for each, _ in found}
    present = {each.name for each, present in found if present}
    for each, is_present in found:
        flag: Flag = each.metadata["flag"]
        if not is_present:
            continue
        for name, why in flag.excludes.items():
            if name in present:
                text, hint = why if isinstance(why, tuple) else (why, None)
                text = text or f"{{{each.name}}} and {{{name}}} exclude each other"
                hint = hint and _with_names(hint, spelled)
                raise OptionError(_with_names(text, spelled) + ".", hint=hint)
        for name, why in flag.needs.items():
            if name in names - present:
                needed = next(other for other, _ in found if other.name == name)
                raise OptionError(f"{spelled(each.name)} {why}.", hint=_example(needed))


def _example(option: Field[Any]) -> str:
    """Return an option as a hint has it: `--window N`."""
    kind = str(option.type)
    if "bool" in kind:
        return spelled(**{option.name: True})
    placeholder = "N" if "int" in kind else "X" if "float" in kind else option.name.upper()
    return spelled(**{option.name: option.metadata["flag"].metavar or placeholder})


def with_flags(group: Any) -> list[Field[Any]]:
    """Return the options of a group that the command line has."""
    return [each for each in _options(group) if not each.metadata["flag"].python_only]


def flag_names(option: Field[Any]) -> tuple[str, ...]:
    """Return the flags of an option: those that it declares, or that of its name."""
    return option.metadata["flag"].names or (flag_of(option.name),)


def keywords(*groups: Any) -> dict[str, Any]:
    """Return the options of groups as keywords for the function that takes them."""
    return {each.name: getattr(group, each.name) for group in groups for each in fields(group)}


# Groups of options as keywords of a function.

WIDTH = 95
"""The columns of a docstring's lines."""


@dataclass(frozen=True)
class Declared:
    """What is declared about an argument.

    Attributes:
        annotation: its kinds, such as `int | None`.
        names: what names in the annotation stand for.
        least: the least number that it takes; None: any.
    """

    annotation: str
    names: Mapping[str, Any]
    least: int | None


def declarations(group: type) -> dict[str, Declared]:
    """Return what a group declares about each of its options."""
    return {
        each.name: Declared(str(each.type), _names_of(group, each.name), each.metadata["flag"].min)
        for each in _options(group)
    }


def _options(group: Any) -> list[Field[Any]]:
    return [each for each in fields(group) if "flag" in each.metadata]


def _names_of(group: type, option: str) -> Mapping[str, Any]:
    """Return what names stand for in the annotation of an option: in the module that declares it."""
    home = next(each for each in group.__mro__ if option in vars(each).get("__annotations__", ()))
    return vars(sys.modules[home.__module__])


def with_keywords(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of groups of options as one that takes each option as a keyword.

    Its signature and the `Args:` of its docstring have all options, `declared` what is declared about
    each, and `grouped` is the function itself. An option that is also a parameter of its own has the
    place, the kinds and the sentence of that one.

    >>> @dataclass(frozen=True)
    ... class Sizes:
    ...     nq: int | None = option("Queries.")
    >>> def plan(title: str, *, sizes: Sizes) -> int:
    ...     return sizes.nq * 2
    >>> with_keywords(plan)("of two", nq=2)
    4
    """
    grouped = signature(function)
    own, names = grouped.parameters, function.__globals__
    kinds = {name: names.get(each.annotation) for name, each in own.items()}
    groups = {name: kind for name, kind in kinds.items() if _is_group(kind)}
    flat = Signature(list(_parameters(own, groups)), return_annotation=grouped.return_annotation)

    @wraps(function)
    def call(*args: Any, **arguments: Any) -> Any:
        values_by_name = flat.bind(*args, **arguments).arguments
        values = {name: value for name, value in values_by_name.items() if name in own}
        for name, group in groups.items():
            of_group = {each.name for each in _options(group)} & values_by_name.keys()
            values[name] = group(**{each: values_by_name[each] for each in of_group})
        check_conflicts(values[name] for name in groups)
        bound = BoundArguments(grouped, {name: values[name] for name in own if name in values})
        return function(*bound.args, **bound.kwargs)

    described: Any = call
    described.__signature__ = flat
    further = [each for name in groups for each in _further(own, groups, name)]
    described.__doc__ = _with_arguments(cleandoc(function.__doc__ or ""), further)
    declared = {name: each for kind in groups.values() for name, each in declarations(kind).items()}
    described.declared = {each.name: declared[each.name] for each in further}
    described.grouped = function
    return call


def _is_group(named: Any) -> TypeGuard[type]:
    return isinstance(named, type) and is_dataclass(named) and bool(_options(named))


def _parameters(own: Mapping[str, Parameter], groups: Mapping[str, type]) -> Iterator[Parameter]:
    """Yield the parameters of a function, and one for each option in the place of its group."""
    for name, parameter in own.items():
        if name not in groups:
            yield parameter
            continue
        for each in _further(own, groups, name):
            yield Parameter(each.name, parameter.kind, default=each.default, annotation=str(each.type))


def _further(own: Collection[str], groups: Mapping[str, type], name: str) -> list[Field[Any]]:
    """Return the options of a group that are not among the function's own parameters."""
    return [each for each in _options(groups[name]) if each.name in groups or each.name not in own]


def _with_arguments(doc: str, options: Iterable[Field[Any]]) -> str:
    """Return a docstring whose `Args:` has the sentences of options, too."""
    lines = [
        fill(
            f"{each.name}: {_sentence(each)}",
            WIDTH,
            initial_indent="    ",
            subsequent_indent="        ",
            break_on_hyphens=False,
        )
        for each in options
    ]
    before, heading, after = doc.partition("Args:\n")
    own, blank, rest = after.partition("\n\n")
    if not heading:
        return doc
    return "\n".join([f"{before}{heading}{own}", *lines]) + blank + rest


def _sentence(option: Field[Any]) -> str:
    """Return what Python says of an option: its help, and what None means."""
    flag: Flag = option.metadata["flag"]
    is_none = option.default is None and isinstance(flag.shown, str)
    return in_python(flag.help + (f" None: {flag.shown}." if is_none else ""))


def _with_names(text: str, called: Callable[[str], str]) -> str:
    """Fill in options where a text has their names in braces: `{nk}`."""
    return re.sub(r"\{([a-z]\w*)\}", lambda name: called(name[1]), text)


def in_python(help: str) -> str:
    """Return the help of an option as Python says it.

    >>> in_python("As many as {nk}.")
    'As many as nk.'
    """
    return _with_names(help, str)


def on_command_line(help: str, kind: Any) -> str:
    """Return the help of an option as the command line says it, where its value has a type.

    >>> on_command_line("As many as {d_head}.", int), on_command_line("A mask.", list[str] | None)
    ('As many as --d-head.', 'A mask. Repeatable.')
    """
    is_list = any(get_origin(each) is list for each in (kind, *get_args(kind)))
    text = _with_names(help, lambda name: FLAGS.get(name) or flag_of(name))
    return f"{text} Repeatable." if is_list else text
