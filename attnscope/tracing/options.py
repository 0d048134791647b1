"""Options of `attnscope trace` and `attnscope run`: keywords of `inspect` and `trace_script`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from attnscope.options import DRAW, Distribution, option

CODE, COMMENTS, RUN, PROGRAM = "Your code", "Shape comments", "Run", "Your program"


@dataclass(frozen=True)
class Arguments:
    """The arguments of the code."""

    PANEL = CODE

    init: list[str] | None = option(
        "An argument of the class: a Python literal, module:Class(name=value, …), or an expression of"
        " sizes: d_ff=4*d_model.",
        metavar="NAME=VALUE",
    )
    inputs: list[str] | None = option(
        "An argument of the call: axes as name:size, name or a number, and then @dtype, <high"
        " (whole numbers below it) or @FILE: Q=n_batch:128,n_Q:32,d_feat; or any literal: mask=None;"
        " or another input: K=Q. Without NAME=, by its place.",
        "--input",
        metavar="NAME=SPEC",
    )
    where: list[str] | None = option(
        "What is true of the sizes, and a name for it: d_head=d_feat/n_head.", metavar="NAME=EXPRESSION"
    )
    call: str | None = option("The method that is traced.", metavar="METHOD", shown="forward")


@dataclass(frozen=True)
class Scope:
    """The lines to record."""

    PANEL = CODE

    follow: list[str] | None = option(
        "Show the lines of this module too; of a package, those of all its modules.", metavar="MODULE"
    )
    depth: int | None = option(
        "Fold calls deeper than this: 0 shows the target's own lines.", metavar="N", shown="all", min=0
    )
    subexpressions: bool = option(
        "A row also for what has no name, in the middle of an expression.", default=False
    )


@dataclass(frozen=True)
class Execution:
    """The dtype, device, seed and mode of a run."""

    PANEL = RUN

    dtype: str = option("float64, float32, float16 or bfloat16.", default="float32")
    device: str = option("cpu, cuda, cuda:1, mps, xpu, or meta (shapes without values).", default="cpu")
    seed: int | None = option("What random values are drawn with.", shown="0")
    draw: Distribution | None = option(DRAW, shown="normal")
    train: bool = option("The module's mode.", "--train/--eval", default=False)
    search: bool = option(
        "Run with other sizes too, which names the axes.", "--search/--no-search", default=True
    )
    memory: str | None = option(
        "How much a run with other sizes may take: 2G, 500M.",
        metavar="SIZE",
        shown="4 times the first run, at least 1G",
    )


@dataclass(frozen=True)
class Comments:
    """The treatment of the shape comments in the file."""

    PANEL = COMMENTS

    annotate: Literal["comments", "jaxtyping"] | None = option(
        "Show a diff that adds the axes to the comment at the end of each line; =jaxtyping: to the"
        " arguments and results of the functions that ran, as annotations.",
        metavar="[=comments|jaxtyping]",
    )
    write: bool = option("Let --annotate change the file.", default=False)
    check: bool = option(
        "Compare what the file says about shapes with what ran: in comments, docstrings, annotations of"
        " jaxtyping and patterns of einops; exit 1 if anything is not true.",
        default=False,
    )


@dataclass(frozen=True)
class WatchedCalls:
    """The calls in a program to trace."""

    PANEL = PROGRAM

    module: str | None = option(
        "Run a module in place of a script, as python -m does.", "-m", metavar="MODULE"
    )
    calls: int = option(
        "How many calls of it to trace: the first N.", "--calls", default=1, metavar="N", min=1
    )
    dims: list[str] | None = option(
        "Names for the axes of an argument of the call: x=B,T,C. Axes that come from these get"
        " them too.",
        metavar="NAME=AXES",
        panel=CODE,
    )
