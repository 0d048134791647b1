"""Options of `attnscope trace` and `attnscope run`: keywords of `inspect` and `trace_script`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from attnscope.base.options import DEVICES, DRAW, DTYPES, Distribution, Texts, option
from attnscope.base.units import UNITS_OF_BYTES

if TYPE_CHECKING:
    from attnscope.observe.trace import Trace

Dims = Sequence[str] | Mapping[str, str]
"""The names of the axes of arguments: `["x=B,T,C"]`, or `{"x": "B T C"}`."""

CODE, COMMENTS, RUN, PROGRAM, OUTPUT = "Your code", "Shape comments", "Run", "Your program", "Output"


@dataclass(frozen=True)
class Arguments:
    """The arguments of the code."""

    PANEL = CODE

    init: Texts | None = option(
        "Argument of the class: a literal, an expression of sizes (d_ff=4*d_model), or"
        " module:Class(name=value, …).",
        metavar="NAME=VALUE",
        common=True,
        type=list[str] | None,
    )
    inputs: Texts | None = option(
        "Argument of the call: its axes (x=n_batch:2,n:10,d_model), a literal (mask=None), or another"
        " input (k=q). After axes, @dtype, @FILE, or <N for whole numbers below N. Without NAME=, by"
        " position.",
        "--input",
        metavar="NAME=SPEC",
        common=True,
        type=list[str] | None,
    )
    where: Sequence[str] | None = option(
        "A size that follows from others: d_head=d_feat/n_head.",
        metavar="NAME=EXPRESSION",
        common=True,
        type=list[str] | None,
    )
    call: str | None = option("Method to trace.", metavar="METHOD", shown="forward", common=True)


@dataclass(frozen=True)
class Scope:
    """The lines to record."""

    PANEL = CODE

    follow: Sequence[str] | None = option(
        "Trace the code of this module or package, too; or the steps inside"
        " torch.nn.functional.scaled_dot_product_attention.",
        metavar="MODULE",
        common=True,
        type=list[str] | None,
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
        "Print the code that ran; with the axes and shape of each line's result.",
        default=False,
        panel=OUTPUT,
        common=True,
    )


@dataclass(frozen=True)
class Execution:
    """The dtype, device, seed and mode of a run."""

    PANEL = RUN

    dtype: str | None = option(
        "float64, float32, float16 or bfloat16.", shown="float32", common=True, values=DTYPES
    )
    device: str | None = option(
        "cpu, cuda, cuda:1, mps, xpu, or meta; meta: shapes without values.",
        shown="cpu",
        common=True,
        values=(*DEVICES, "meta"),
    )
    seed: int | None = option("Seed of the random values.", shown="0")
    draw: Distribution | None = option(DRAW, shown="normal")
    train: bool | None = option(
        "Run modules in training mode.", "--train/--eval", shown="eval", common=True
    )
    search: bool = option(
        "Run with other sizes, too, to name the axes.", "--search/--no-search", default=True
    )
    memory: str | int | None = option(
        f"Memory limit of a run with other sizes: 2G, 500M ({UNITS_OF_BYTES}).",
        metavar="SIZE",
        type=str | None,
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
        excludes={
            name: (
                f"{{annotate}} prints a diff and nothing else, and cannot be combined with {{{name}}}",
                f"leave out {{annotate}}; or leave out {{{name}}}",
            )
            for name in ("check", "source", "stats", "show", "save", "verify", "format", "strict")
        },
    )
    write: bool = option("Write the changes of {annotate} to the file.", default=False, common=True)
    check: bool = option(
        "Compare shapes in comments with what ran; also those in docstrings, jaxtyping annotations and"
        " einops patterns; exit with status 1 if one is wrong.",
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
    dims: Dims | None = option(
        "Names for the axes of an argument: x=B,T,C. Derived axes keep them.",
        metavar="NAME=AXES",
        panel=CODE,
        type=list[str] | None,
    )


# What Python alone has.


@dataclass(frozen=True)
class KeptTensors:
    """What is kept of the tensors of a call, and the names of its axes."""

    axes: Mapping[str, str | Sequence[str]] | None = option(
        'The names of the axes of `args` and `kwargs`, by the parameter: `{"q": "B L D"}`.',
        shown="the usual names",
    )
    stats: bool = option("Whether to compute six statistics of the values of each step.", default=False)
    keep: bool | Collection[str] = option(
        "Names whose tensors are kept with their steps, or True for all; in a loop, those of the last"
        " iteration.",
        default=False,
    )


@dataclass(frozen=True)
class Delivery:
    """What happens to the traces of a program, and to the process."""

    recorded: Callable[[list[Trace]], None] | None = option(
        "Receives the traces as soon as all are complete, while the program continues; or, if there are"
        " fewer, when it ends."
    )
    note: Callable[[str, str | None], None] | None = option(
        "Receives a message, and a hint or None, if traces are missing."
    )
    restore: bool = option(
        "Whether to restore `sys.argv`, `sys.path`, `__main__` and `os._exit` after the program. Not for"
        " a process that ends with it: its threads and exit handlers still run.",
        default=True,
    )
