"""`attnscope trace`: your own attention, line by line."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from attnscope.base.errors import Interrupted, OptionError, warn_unused
from attnscope.base.options import keywords, option
from attnscope.base.process import interrupt
from attnscope.base.process.streams import user_streams
from attnscope.base.spelling import spelled
from attnscope.base.text import printable_lines
from attnscope.cli.command import Command
from attnscope.cli.completion import completion
from attnscope.cli.options import expanded
from attnscope.cli.output import (
    Output,
    exit_status,
    print_notice,
    refuse_in_csv,
    shown_progress,
    stored_of_all,
    written_first,
)
from attnscope.code.compare.result import Comparison
from attnscope.code.trace.options import Arguments, Comments, Execution, Scope

if TYPE_CHECKING:
    from attnscope.document.result import Check
    from attnscope.observe.trace import Trace

EXAMPLES = {
    "attnscope trace attn.py:Attention --init d_model=64 --input x=2,T:9,d_model": (
        "every tensor of a class, and findings"
    ),
    "attnscope trace attn.py:attend --input q=2,5,8 --input k=2,7,8": "a function of two tensors",
    "attnscope trace attn.py:attend --input q=2,5,8 --input k=2,7,8 --check": (
        "its shape comments, compared with what ran"
    ),
    "attnscope trace attn.py:attend --input q=2,5,8 --input k=2,7,8 --annotate": (
        "a diff that adds shape comments"
    ),
    "attnscope trace torch.nn:Softmax --init dim=-1 --input 2,8": "a class of any installed package",
}


@dataclass(frozen=True)
class TraceOutput(Output):
    """The options of the output."""

    strict: bool = option("Exit with status 1 if there are findings.", default=False, common=True)
    verify: bool = option(
        "Compare with the textbook: sdpa, or mha with the same weights. See attnscope compare.",
        default=False,
        common=True,
    )


@expanded
def trace(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="file.py:Class, file.py:function or package.module:Class.",
            autocompletion=completion("targets"),
        ),
    ],
    arguments: Arguments,
    scope: Scope,
    comments: Comments,
    execution: Execution,
    output: TraceOutput,
) -> int:
    """Run `attnscope trace` and return its exit status."""
    execution = replace(execution, dtype=execution.dtype or "float32", device=execution.device or "cpu")
    _check_output(output, comments, execution, source=scope.source)
    from attnscope.code.trace.inspect import inspect

    interrupted = False
    with shown_progress() as progress, user_streams():
        if output.verify and not arguments.inputs:
            from attnscope.code.compare.compare import fitting_inputs

            inputs = fitting_inputs(
                target,
                init=arguments.init,
                where=arguments.where,
                call=arguments.call,
                dtype=execution.dtype,
                seed=execution.seed,
            )
            arguments = replace(arguments, inputs=inputs)
        try:
            result = inspect(
                target,
                **keywords(arguments, scope, execution),
                stats=output.stats,
                keep=output.keep,
                progress=progress,
            )
        except Interrupted as error:
            result, interrupted = error.trace, True
    for notice in result.notices:
        print_notice(notice)
    if interrupted:  # the partial trace is shown, and no file is written
        if not comments.annotate:
            _show(result, replace(output, save=None, force=False))
        return interrupt.STATUS
    if comments.annotate:
        _show_annotation(result, comments.annotate, write=comments.write)
        return 2 if result.tracing_error is not None else 0
    if comments.check:
        from attnscope.code.trace.comments.trace_comments import check_comments

        for notice in check_comments(result).notices:
            print_notice(notice)
    if output.verify and result.crash is None:
        result.checks = [_verified(target, arguments, execution)]
    _show(result, output)
    if result.exit is not None:
        if result.exit.text is not None:
            print(printable_lines(result.exit.text), file=sys.stderr)
        return result.exit.status
    if result.tracing_error is not None:
        return 2
    failed = result.crash is not None or (output.strict and bool(result.findings))
    return 1 if failed else exit_status(result.checks)


def _check_output(
    output: TraceOutput, comments: Comments, execution: Execution, *, source: bool
) -> None:
    """Raise an AttnscopeError if the requested output is impossible."""
    need_values = {"stats": output.stats, "show": output.show, "save": output.save}
    values = [spelled(option) for option, value in need_values.items() if value]
    if values and execution.device == "meta":
        raise OptionError(
            f"{values[0]} needs values, and meta tensors have none.",
            hint=f"leave out {values[0]}, or choose --device cpu",
        )
    if output.verify and (execution.device != "cpu" or execution.train):
        option = "--train" if execution.train else f"--device {execution.device}"
        raise OptionError(f"--verify compares on the CPU, in evaluation, and not with {option}.")
    if comments.write and not comments.annotate:
        raise OptionError("--write is for --annotate.", hint="--annotate --write")
    more = {"source": source, "check": comments.check, "verify": output.verify}
    refuse_in_csv(output.format, more)
    output.check([execution.dtype or "float32"])
    warn_unused([(comments.annotate is not None and output.wide, "wide", "a diff has no columns")])


def _verified(target: str, arguments: Arguments, execution: Execution) -> Check:
    """Compare the code with the reference that fits, and return the result as a check."""
    from attnscope.code.compare.compare import compare

    with shown_progress() as progress, user_streams():
        result = compare(
            target,
            **keywords(arguments),
            dtype=execution.dtype,
            seed=execution.seed,
            draw=execution.draw,
            progress=progress,
        )
    assert isinstance(result, Comparison)  # of code
    return result.check


def _show(trace: Trace, output: Output) -> None:
    shapes = {step.name: (step.shape, step.dims) for step in trace.steps}
    output.check_selections(shapes, f"the steps of {trace.title}")
    shown = output.shown_of(trace)
    tensors = stored_of_all(trace.steps) if output.save is not None else {}
    with written_first(lambda: output.write(tensors)):
        output.print(trace, shown)


def _show_annotation(trace: Trace, style: Literal["comments", "jaxtyping"], *, write: bool) -> None:
    """Print the diff that adds the axes to the file, or write the file."""
    from attnscope.code.trace.comments.trace_comments import annotate

    annotation = annotate(trace, style)
    if annotation.old == annotation.new:
        print_notice(f"{annotation.name} says all of it already")
    elif write:
        annotation.write()
        changed = annotation.changed_lines
        where = "at the end of" if style == "comments" else "into"
        print_notice(f"wrote the axes {where} {changed} line{'s' * (changed != 1)} of {annotation.name}")
    else:
        text = annotation.diff  # exact, for `patch`, unless it is shown on a terminal
        print(printable_lines(text) if sys.stdout.isatty() else text, end="")
        print_notice(f"{annotation.name} is unchanged: --write applies the diff")
    if style == "jaxtyping" and annotation.old != annotation.new and find_spec("jaxtyping") is None:
        print_notice(
            "jaxtyping, which the file then imports, is not installed here: pip install jaxtyping"
        )


STYLES = ("comments", "jaxtyping")


class TraceCommand(Command):
    """The command, whose --annotate may stand without a value: comments are meant."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse arguments."""
        words = list(args)
        for i, word in enumerate(args):
            if word == "--annotate":
                style = next((each for each in args[i + 1 : i + 2] if each in STYLES), None)
                words[i : i + 1 + (style is not None)] = [f"--annotate={style or STYLES[0]}"]
                break
        return super().parse_args(ctx, words)


COMMAND_CLASS = TraceCommand
