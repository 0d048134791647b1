"""The application: its commands, and the only place where errors are reported."""

from __future__ import annotations

import errno
import gc
import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException

import attnscope
from attnscope.base.errors import (
    AttnscopeError,
    OptionError,
    OptionWarning,
    class_name,
    is_out_of_memory,
    safe_str,
)
from attnscope.base.process import interrupt, streams
from attnscope.base.process.error_record import expect_record, json_is_requested, print_error_record
from attnscope.base.process.launch import is_first, launched
from attnscope.base.process.script_words import options_first
from attnscope.base.spelling import Flags, use_notation
from attnscope.base.text import printable, shortened, without_long_echoes
from attnscope.cli.command import Command, help_all, sections_of, show


class ExitStatus(IntEnum):
    """The exit statuses of commands."""

    DONE = 0
    CHECK_FAILED = 1
    BAD_INPUT = 2
    INTERRUPTED = interrupt.STATUS
    PIPE_CLOSED = 141


NOT_WRITTEN = {errno.ENOSPC: None, errno.EIO: None, errno.EBADF: "stdout is closed"}
"""Errors of writing a result that are reported on one line; the text replaces an obscure message."""

COMMANDS = {
    "sdpa": "Scaled dot-product attention, softmax(Q·Kᵀ/√d_K)·V:"
    " every tensor from Q, K, V to the output.",
    "mha": "Multi-head attention: every tensor of the projections, the heads and the output.",
    "example": "The formula worked out with small integers: by rows, by columns, and for one query.",
    "scaling": "Why scores are divided by √d_K: the softmax with and without the scale.",
    "trace": "Your own code: every tensor that it names, and what looks wrong.",
    "compare": "Your own attention beside another: which tensor differs first, and why?",
    "audit": "A model, or your own attention: which positions can influence which, and is that right?",
    "run": "Your own program: the first calls of an attention module, with their real inputs.",
    "bert": "One head of a BERT: its weights, or what it attends to in a --text.",
    "weights": "One head of any model: its part of W_Q, W_K, W_V and W_O, without torch.",
    "maps": "One head of any model, or all: what it attends to in a --text or an --image.",
    "answer": "Any model that writes: which parts of its prompt it reads while it answers.",
    "heads": "Every head of a model in numbers: what it attends to, how widely and how far.",
    "effects": "Every head of a model: what it does to the prediction.",
    "card": "A model before it is downloaded: its attention, layer by layer, and what that costs.",
    "mask": "Masks: which keys each query sees, in a model's layers, by a rule, or by a function.",
}
"""What each command shows, in the order of the help."""

UNLISTED = {"model": "One head of any model: weights, maps and answer in one command."}
"""What commands show that the help does not list."""

PURPOSES = COMMANDS | UNLISTED
"""What each command shows, listed or not."""

IN_PYTHON = {
    "sdpa": "compute and attnscope.dry_run",
    "mha": "compute and attnscope.dry_run",
    "example": "worked_example",
    "scaling": "measure_scaling",
    "trace": "inspect; attnscope.trace(module, x) is the same; without x it traces a call of yours",
    "compare": "compare",
    "audit": "audit",
    "run": "trace_script",
    "bert": "head_weights and attnscope.attention_maps",
    "weights": "head_weights",
    "maps": "attention_maps and attnscope.attention_steps",
    "answer": "answer",
    "model": "head_weights, attnscope.attention_maps and attnscope.answer",
    "heads": "measure_heads",
    "effects": "effects",
    "card": "card",
    "mask": "mask",
}
"""The function that does the same as a command."""

KEYWORDS = {
    "sdpa": ("attention", "attn", "softmax", "dot-product"),
    "mha": ("attention", "attn", "multihead", "multi-head-attention", "self-attention"),
    "example": ("demo", "tutorial", "worked-example"),
    "scaling": ("scale", "sqrt"),
    "trace": ("attention", "attn", "inspect", "debug", "shapes", "code"),
    "compare": ("diff", "difference", "verify", "reference", "equal", "divergence"),
    "audit": ("causal", "leak", "causality", "influence", "lookahead", "cache"),
    "run": ("exec", "python", "script", "program", "watch"),
    "bert": (),
    "weights": ("checkpoint", "matrix", "matrices", "weight"),
    "maps": ("map", "heatmap", "llama", "gpt", "vit", "rollout", "attend"),
    "answer": ("generate", "chat", "segments", "response", "vlm"),
    "heads": ("metrics", "entropy"),
    "effects": ("ablation", "ablate", "patching", "attribution", "importance", "knockout"),
    "card": ("cost", "memory", "size", "parameters", "kv-cache", "flops", "anatomy"),
    "mask": ("masking", "mask-mod", "blocks", "sparsity", "padding"),
}
"""Words for which a hint suggests a command."""


class Commands(Mapping[str, Command]):
    """The commands by name; each is imported when it is first used."""

    def __init__(self) -> None:
        self._imported: dict[str, Command] = {}

    def __getitem__(self, name: str) -> Command:
        if name not in PURPOSES:
            raise KeyError(name)
        if name not in self._imported:
            module = import_module(f"attnscope.cli.{name}")
            alone = typer.Typer(add_completion=False)
            function = getattr(module, name)
            command_class = getattr(module, "COMMAND_CLASS", Command)
            purpose = PURPOSES[name]
            help = f"{purpose}\n\nIn Python: attnscope.{IN_PYTHON[name]}."
            register = alone.command(name, cls=command_class, help=help, short_help=purpose)
            register(function)
            command: Command = typer.main.get_command(alone)  # type: ignore[assignment]
            command.flags, command.examples = function.flags, module.EXAMPLES
            self._imported[name] = command
        return self._imported[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class CommandGroup(TyperGroup):
    """The group of all commands, `attnscope`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = Commands()  # type: ignore[assignment]
        self.params.append(help_all("Print the whole help of every command."))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the name, the command and its arguments; a mistake suggests a command."""
        if args[0] not in PURPOSES and not ctx.resilient_parsing:
            from attnscope.base.suggestions import no_such_command

            raise no_such_command(args, KEYWORDS)
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Complete a command without importing it, or an option."""
        from typer._click.shell_completion import CompletionItem

        items = [CompletionItem(name, help=text) for name, text in COMMANDS.items()]
        found = [each for each in items if each.value.startswith(incomplete)]
        return found or TyperCommand.shell_complete(self, ctx, incomplete)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """List the commands without importing them."""
        from attnscope.cli.help import HelpLine

        sections = {"Commands": [HelpLine(name, text) for name, text in COMMANDS.items()]}
        sections |= sections_of(ctx, self.get_params(ctx))
        show(self, ctx, sections, "Help with examples: attnscope COMMAND --help")

    def print_all(self, ctx: Any) -> None:
        """Print the list of commands, and the help of each with all options."""
        self.format_help(ctx, None)
        for name, command in self.commands.items():
            print(f"\n\n{'─' * 60}")
            command.print_all(type(ctx)(command, parent=ctx, info_name=name))  # type: ignore[attr-defined]


app = typer.Typer(
    cls=CommandGroup,
    help="See attention: the shape, origin, cost and values of every tensor between Q, K, V"
    " and the output.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


def _print_version(requested: bool) -> None:
    if requested:
        print(f"attnscope {attnscope.__version__}")
        raise typer.Exit


def _print_skill(requested: bool) -> None:
    if requested:
        print(Path(attnscope.__file__).with_name("SKILL.md").read_text(encoding="utf-8"), end="")
        raise typer.Exit


@app.callback()
def _attnscope(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            "-V",
            "-v",
            help="Print the version and exit.",
            callback=_print_version,
            is_eager=True,
        ),
    ] = False,
    skill: Annotated[
        bool,
        typer.Option(
            "--skill",
            help="Print SKILL.md, which tells programs and agents what to call, and exit.",
            callback=_print_skill,
            is_eager=True,
        ),
    ] = False,
) -> None:
    pass


@use_notation(Flags())
def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit status.

    A user's mistake is reported on stderr, in a line or two; with `--format json` also as a record on
    stdout, if that has no other. A bug of attnscope is a traceback.

    Args:
        arguments: the command line without the program's name; that of the process by default.
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    expect_record(sys.stdout if json_is_requested(_own_words(arguments)) else None)
    try:
        if any("\0" in argument for argument in arguments):  # impossible in a real command line
            raise OptionError("an argument contains a NUL character.")
        with _warnings_reported():
            result = app(args=arguments, prog_name="attnscope", standalone_mode=False)
        status = int(result or ExitStatus.DONE)
        if status == ExitStatus.INTERRUPTED and arguments[:1] != ["run"] and is_first():
            print(interrupt.LINE, file=sys.stderr)
            print_error_record("interrupted.", None, status)
        return status
    except AttnscopeError as error:
        _complain(error.message, error.hint, arguments)
    except TyperException as error:
        if error.format_message():  # a bare `attnscope` prints the help, without a message
            from attnscope.cli.mistakes import explained

            message, hint = explained(error, arguments, Commands())
            _complain(message, hint, arguments)
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):
            return ExitStatus.PIPE_CLOSED  # Typer exits if the reader stops, as in `attnscope … | head`
        raise
    except Exception as error:
        if "TORCH_LOGS" in os.environ and "Invalid log settings" in str(error):
            setting = shortened(repr(os.environ["TORCH_LOGS"]))
            _complain(f"torch refuses TORCH_LOGS={setting}.", "unset TORCH_LOGS", arguments)
        elif is_out_of_memory(error):
            _complain_of_memory(error, arguments)
        else:
            print_error_record(f"{class_name(error)}: {safe_str(error)}", None, ExitStatus.CHECK_FAILED)
            raise
    return ExitStatus.BAD_INPUT


def _own_words(arguments: list[str]) -> list[str]:
    """Return the words of a command line; of `run`, the script's follow a `--`."""
    if arguments[:1] != ["run"]:
        return arguments
    return options_first(arguments[1:], Commands()["run"].takes_value)


@contextmanager
def _warnings_reported() -> Iterator[None]:
    """Report the library's warnings about options without effect on stderr, in one process only."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", OptionWarning)
        show, shown = warnings.showwarning, set[str]()

        def showwarning(message: Warning | str, category: type[Warning], *rest: Any) -> None:
            if not issubclass(category, OptionWarning):
                if str(message) not in shown:  # libraries repeat theirs for every module and layer
                    shown.add(str(message))
                    show(message, category, *rest)
            elif is_first():
                from attnscope.cli.output import print_notice

                print_notice(str(message))

        warnings.showwarning = showwarning  # type: ignore[assignment]
        yield


def entry() -> int:
    """Run `main` in a process of its own, without a last garbage collection.

    A process that torchrun started with others ends immediately. The modules imported with a model keep
    the process group, and so gloo's threads, until the very end (`torch.distributed.nn.functional`, as
    a default argument); a thread that releases a tensor while Python shuts down aborts the process,
    whatever its exit status (https://github.com/pytorch/pytorch/issues/190489).
    """
    command = sys.argv[1] if len(sys.argv) > 1 else None
    streams.prepare(command)
    if command == "run":  # a user's program ends as it does without attnscope
        return main()
    try:
        status = main()
        sys.stdout.flush()
    except BrokenPipeError:
        os._exit(ExitStatus.PIPE_CLOSED)  # flushing again at exit would fail again
    except OSError as error:
        if error.errno not in NOT_WRITTEN:
            raise
        _complain(f"cannot write the result: {NOT_WRITTEN[error.errno] or error.strerror}.", None)
        os._exit(ExitStatus.BAD_INPUT)
    if command != "trace":  # a user's code may rely on the last garbage collection
        if launched():
            sys.stderr.flush()
            os._exit(status)
        gc.freeze()
    return status


def _complain(message: str, hint: str | None, arguments: Sequence[str] = ()) -> None:
    """Print a message and a hint on a line each, with long arguments shortened, and their record."""
    from rich.text import Text

    from attnscope.document.console import Terminal, print_message
    from attnscope.document.styles import WRONG

    message = without_long_echoes(message, arguments)
    hint = hint and without_long_echoes(hint, arguments)
    print_message(Text.assemble(("attnscope: error: ", WRONG), printable(message)))
    if hint:  # a command in it can be copied, because nothing is broken
        Terminal(stderr=True, soft_wrap=True).print(Text.assemble(("  try  ", "dim"), printable(hint)))
    print_error_record(message, hint, ExitStatus.BAD_INPUT)


def _complain_of_memory(error: Exception, arguments: Sequence[str]) -> None:
    """Report that memory ran out; if that fails too, with as little memory as possible."""
    try:
        from attnscope.base.process.progress import out_of_memory

        mistake = out_of_memory(error, " ".join(["attnscope", *arguments[:1], "ran out of memory"]))
        _complain(mistake.message, mistake.hint)
    except MemoryError:
        sys.stderr.write("attnscope: error: out of memory.\n")
