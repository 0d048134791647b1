"""Options of `attnscope trace` and `attnscope run`: keywords of `inspect` and `trace_script`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from attnscope.base.options import DEVICES, DRAW, DTYPES, Distribution, option

CODE, COMMENTS, RUN, PROGRAM, OUTPUT = "Your code", "Shape comments", "Run", "Your program", "Output"


@dataclass(frozen=True)
class Arguments:
    """The arguments of the code."""

    PANEL = CODE

    init: list[str] | None = option(
        "Argument of the class: a literal, an expression of sizes (d_ff=4*d_model), or"
        " module:Class(name=value, …).",
        metavar="NAME=VALUE",
        common=True,
    )
    inputs: list[str] | None = option(
        "Argument of the call: its axes (x=n_batch:2,n:10,d_model), a literal (mask=None), or another"
        " input (k=q). After axes, @dtype, @FILE, or <N for whole numbers below N. Without NAME=, by"
        " position.",
        "--input",
        metavar="NAME=SPEC",
        common=True,
    )
    where: list[str] | None = option(
        "A size that follows from others: d_head=d_feat/n_head.",
        metavar="NAME=EXPRESSION",
        common=True,
    )
    call: str | None = option("Method to trace.", metavar="METHOD", shown="forward", common=True)


@dataclass(frozen=True)
class Scope:
    """The lines to record."""

    PANEL = CODE

    follow: list[str] | None = option(
        "Trace the code of this module or package, too, or the steps inside"
        " torch.nn.functional.scaled_dot_product_attention.",
        metavar="MODULE",
        common=True,
    )
    depth: int | None = option(
        "Depth of calls to show: 0 shows only the lines of the target.",
        metavar="N",
        shown="all",
        min=0,
        common=True,
    )
    subexpressions: bool = option("Add rows for subexpressions, which have no name.", default=False)
    source: bool = option(
        "Print the code that ran, with the axes and shape of each line's result.",
        default=False,
        panel=OUTPUT,
        common=True,
    )


@dataclass(frozen=True)
class Execution:
    """The dtype, device, seed and mode of a run."""

    PANEL = RUN

    dtype: str = option(
        "float64, float32, float16 or bfloat16.", default="float32", common=True, values=DTYPES
    )
    device: str = option(
        "cpu, cuda, cuda:1, mps, xpu, or meta (shapes without values).",
        default="cpu",
        common=True,
        values=(*DEVICES, "meta"),
    )
    seed: int | None = option("Seed of the random values.", shown="0")
    draw: Distribution | None = option(DRAW, shown="normal")
    train: bool = option("Mode of the module.", "--train/--eval", default=False, common=True)
    search: bool = option(
        "Run with other sizes, too, to name the axes.", "--search/--no-search", default=True
    )
    memory: str | None = option(
        "Memory limit of a run with other sizes: 2G, 500M.",
        metavar="SIZE",
        shown="4 × the first run, at least 1G",
    )


@dataclass(frozen=True)
class Comments:
    """The treatment of the shape comments in the file."""

    PANEL = COMMENTS

    annotate: Literal["comments", "jaxtyping"] | None = option(
        "Print a diff that adds the axes to each line as a comment; with =jaxtyping, to each function"
        " as annotations.",
        metavar="[=STYLE]",
        common=True,
    )
    write: bool = option("Write the changes of --annotate to the file.", default=False, common=True)
    check: bool = option(
        "Compare the shapes in comments, docstrings, jaxtyping annotations and einops patterns with"
        " what ran; exit with status 1 if one is wrong.",
        default=False,
        common=True,
    )


@dataclass(frozen=True)
class WatchedCalls:
    """The calls in a program to trace."""

    PANEL = PROGRAM

    module: str | None = option(
        "Run a module instead of a script, as python -m.", "-m", metavar="MODULE"
    )
    calls: int = option("Number of calls to trace.", "--calls", default=1, metavar="N", min=1)
    from_call: int = option("The first call to trace.", "--from-call", default=1, metavar="N", min=1)
    until_not_finite: bool = option(
        "Pass over calls in which all tensors are finite: the first that has NaN or inf is traced.",
        default=False,
    )
    dims: list[str] | None = option(
        "Names for the axes of an argument: x=B,T,C. Derived axes keep them.",
        metavar="NAME=AXES",
        panel=CODE,
    )
