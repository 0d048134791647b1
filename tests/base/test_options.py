"""A function that is written with groups of options takes each option as a keyword."""

from __future__ import annotations

from dataclasses import dataclass
from inspect import signature

import pytest

from attnscope.base.errors import OptionError
from attnscope.base.options import Distribution, check_kind, option, with_flags, with_keywords


@dataclass(frozen=True)
class Sizes:
    """Sizes."""

    nq: int | None = option("Queries.", shown="30", min=1)
    nk: int | None = option("Keys; as many as {nq}.")


@dataclass(frozen=True)
class Drawn:
    """Drawn inputs."""

    draw: Distribution | None = option("The distribution.")


@with_keywords
def plan(title: str, sizes: Sizes, *more: int, drawn: Drawn, progress: object = None) -> tuple:
    """Plan a run.

    Args:
        title: its title.

    Returns:
        What was given.
    """
    return title, sizes, more, drawn, progress


def test_each_option_is_a_keyword_with_its_default():
    assert str(signature(plan)) == (
        "(title: 'str', nq: 'int | None' = None, nk: 'int | None' = None, *more: 'int',"
        " draw: 'Distribution | None' = None, progress: 'object' = None) -> 'tuple'"
    )
    assert plan("a", nk=3) == ("a", Sizes(nk=3), (), Drawn(), None)
    assert plan("a", 1, 2, 3, draw="uniform", progress=4) == (
        "a",
        Sizes(1, 2),
        (3,),
        Drawn("uniform"),
        4,
    )


def test_the_docstring_has_the_sentences_of_the_options():
    assert plan.__doc__.splitlines()[2:8] == [
        "Args:",
        "    title: its title.",
        "    nq: Queries. None: 30.",
        "    nk: Keys; as many as nq.",
        "    draw: The distribution.",
        "",
    ]


@pytest.mark.parametrize("wrong", [{"nq": 1, "sizes": Sizes()}, {"n": 3}])
def test_another_keyword_is_none(wrong):
    with pytest.raises(TypeError):
        plan("a", **wrong)


def test_what_is_declared_is_known():
    declared = plan.declared
    assert (declared["nq"].annotation, declared["nq"].least) == ("int | None", 1)
    assert declared["draw"].names["Distribution"] is Distribution


@dataclass(frozen=True)
class Loaded:
    """A loaded model."""

    FOR = ("models",)

    tokenizer: object = option("Its tokenizer.", python_only=True)


def test_an_option_of_python_alone_has_no_flag_and_a_kind_of_argument():
    assert with_flags(Loaded) == []
    check_kind(["models"], [Loaded(3)])
    check_kind(["code"], [Loaded()])
    with pytest.raises(OptionError, match=r"tokenizer is for models, and f is code\."):
        check_kind(["code"], [Sizes(3), Loaded([3])], ", and f is code")
