"""`%load_ext attnscope`, then `%%attnscope`: trace the attention that a cell of a notebook calls.

The cell itself runs as if the magic were not there: its first line is replaced by the line magic, which
begins the recording, and IPython runs the other lines as usual. So what the cell prints, returns and
raises, and the numbers of its lines, stay the same, and it may await.
"""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, get_type_hints

from attnscope.base.errors import AttnscopeError, OptionError
from attnscope.base.options import Flag, flag_names, on_command_line
from attnscope.base.spelling import Flags, spelled, use_notation
from attnscope.base.text import printable, shortened
from attnscope.code.trace.options import Scope, WatchedCalls

if TYPE_CHECKING:
    from argparse import ArgumentParser

    from attnscope.code.trace.live_calls import LiveCalls

NAME = "attnscope"
ELSEWHERE = {
    "--to": "_.save(FILE) in the next cell",
    "--force": "_.save(FILE, force=True) in the next cell",
    "--format": "_.to_dict() or _.to_pandas() in the next cell",
    "--wide": "click a row, or _.to_pandas() in the next cell",
    "--strict": "assert not _.findings in the next cell",
    "-m": "attnscope run -m MODULE in a terminal",
}
"""Options of `attnscope run` that a cell has no use for, and what to do instead."""


def load_ipython_extension(shell: Any) -> None:
    """Add the magic to IPython: `%load_ext attnscope`."""
    shell.register_magic_function(Magic(shell), "line", NAME)
    shell.register_magic_function(_is_a_cell_magic, "cell", NAME)
    shell.input_transformers_cleanup.insert(0, _as_line_magic)
    shell.ast_transformers.append(Definitions())


def unload_ipython_extension(shell: Any) -> None:
    """Remove the magic: `%unload_ext attnscope`."""
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop(NAME, None)
    shell.input_transformers_cleanup.remove(_as_line_magic)
    shell.ast_transformers[:] = [
        each for each in shell.ast_transformers if type(each) is not Definitions
    ]


def _as_line_magic(lines: list[str]) -> list[str]:
    """Replace `%%attnscope` in the first line of a cell by `%attnscope`."""
    first = lines[0] if lines else ""
    is_ours = first.split(" ")[0].rstrip() == f"%%{NAME}"
    return [first[1:], *lines[1:]] if is_ours else lines


_as_line_magic.has_side_effects = True  # type: ignore[attr-defined]  # a prompt asks for the whole cell


def _is_a_cell_magic(line: str, cell: str) -> None:
    """Trace the attention that this cell calls; `%%attnscope --help` lists the options."""
    raise OptionError(f"%%{NAME} must be the first line of the cell.")


class Definitions(ast.NodeTransformer):
    """Reports each class and function that a traced cell defines: it may be what is traced."""

    def visit_Module(self, tree: ast.Module) -> ast.Module:
        """Insert a call after each definition."""
        if not tree.body or f"run_line_magic('{NAME}'" not in ast.unparse(tree.body[0]):
            return tree
        body: list[ast.stmt] = []
        for statement in tree.body:
            body.append(statement)
            if isinstance(statement, ast.ClassDef | ast.FunctionDef):
                call = ast.parse(f"__import__('{__name__}', fromlist=['_']).defined()").body[0]
                for node in ast.walk(call):
                    ast.copy_location(node, statement)
                body.append(ast.fix_missing_locations(call))
        tree.body = body
        return tree


_current: Cell | None = None


def defined() -> None:
    """Take note of a new definition in the cell that runs."""
    if _current is not None:
        _current.calls.defined(_current.shell.user_ns)


class Magic:
    """The line magic `%attnscope`, which traces the rest of its cell."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell

    def __call__(self, line: str) -> None:
        """Trace the attention that the rest of this cell calls.

        The options are those of `attnscope run`. The trace is displayed, and is the cell's value: `_`.
        With `--help`, the options are printed, and nothing is traced.
        """
        global _current
        if {"-h", "--help"} & set(line.split()):
            print(_parser().format_help(), end="")
            return
        try:
            with use_notation(Flags()):
                _current = Cell(self.shell, line)
        except AttnscopeError as error:
            from IPython.core.error import UsageError  # which IPython shows as one line

            hint = f"\n  try  {printable(error.hint)}" if error.hint else ""
            raise UsageError(f"{printable(error.message)}{hint}") from None


class Cell:
    """The recording of a cell."""

    def __init__(self, shell: Any, line: str) -> None:
        from attnscope.code.trace.live_calls import LiveCalls

        self.shell = shell
        self.calls: LiveCalls = LiveCalls(*parse(line), on_note=_note)
        try:
            self.calls.begin(shell.user_ns)
        except AttnscopeError:
            self.calls.sessions.close()
            raise
        shell.events.register("post_run_cell", self.end)

    @use_notation(Flags())
    def end(self, result: Any) -> None:
        """Show the traces after the cell has run."""
        global _current
        _current = None
        self.shell.events.unregister("post_run_cell", self.end)
        run = self.calls.close()
        if run.traces:
            self._show(run if run.calls > 1 else run.traces[0], result.execution_count)

    def _show(self, value: Any, number: int | None) -> None:
        """Display a value, and make it that of the cell with this number: `_`, `Out[number]`."""
        if "text/html" in self.shell.display_formatter.active_types:
            from IPython.display import display

            display(value)
        else:  # a terminal
            import rich

            rich.print(value)
        hook, current = self.shell.displayhook, self.shell.execution_count
        if (
            number is not None
        ):  # older IPythons count on before this callback, and newer ones before the cell
            self.shell.execution_count -= hook.prompt_count - number
        try:
            hook.update_user_ns(value)
        finally:
            self.shell.execution_count = current


def _note(message: str, hint: str | None) -> None:
    """Print a message that is not a trace, as the command does."""
    print(f"attnscope: note: {printable(message)}", file=sys.stderr)
    if hint:
        print(f"  try  {printable(hint)}", file=sys.stderr)


def parse(line: str) -> tuple[str | None, WatchedCalls, Scope, bool]:
    """Parse the options of a cell, which have the names that they have in `attnscope run`.

    Return the target, the calls, the lines, and whether statistics are computed.

    >>> watch, watched, scope, stats = parse("--watch Attention --calls 2")
    >>> watch, watched.calls, watched.from_call
    ('Attention', 2, 1)
    """
    import shlex

    try:
        words = shlex.split(line)
    except ValueError as error:
        raise OptionError(f"the options cannot be read: {error}.") from None
    parser = _parser()
    parsed, rest = parser.parse_known_args(words)
    if rest:
        raise _unknown(rest[0], list(parser._option_string_actions))
    options = vars(parsed)
    watched, scope = (
        {each.name: options[each.name] for each in fields(group) if each.name in options}
        for group in (WatchedCalls, Scope)
    )
    return options["watch"], WatchedCalls(**watched), Scope(**scope), options["stats"]


def _unknown(word: str, known: list[str]) -> OptionError:
    """Return the error for a word that is not an option of a cell."""
    name = word.partition("=")[0]
    if name in ELSEWHERE:
        return OptionError(f"{name} does not apply in a cell.", hint=ELSEWHERE[name])
    if not name.startswith("-"):
        hint = spelled(watch=shortened(word))
        if not re.fullmatch(r"[\w./:\\-]+", word):  # no name, but code
            hint = f"%%{NAME} as the first line of the cell, and the code below it"
        return OptionError(f"{shortened(word)!r} is not an option.", hint=hint)
    near = get_close_matches(name, known, n=1)
    return OptionError(
        f"%%{NAME} has no option {shortened(name)}.", hint=near[0] if near else ", ".join(known)
    )


def _parser() -> ArgumentParser:
    """Return a parser with the options of `attnscope run` that concern the traced calls."""
    from argparse import ArgumentParser

    class Parser(ArgumentParser):
        def error(self, message: str) -> Any:
            raise OptionError(f"{message}.")

    parser = Parser(
        prog=f"%%{NAME}",
        add_help=False,
        allow_abbrev=False,
        description="Trace the attention that this cell calls. The trace is shown below the cell, and is"
        " _ in the next one.",
    )
    parser.add_argument(
        "--watch",
        metavar="NAME",
        help="Class, function or module of this notebook, or FILE.py:NAME. Without it, the first"
        " attention that the cell calls is traced.",
    )
    for group in (WatchedCalls, Scope):
        hints = get_type_hints(group)
        for each in fields(group):
            flag: Flag = each.metadata["flag"]
            name, hint = flag_names(each)[0], flag.type or hints[each.name]
            if name in ELSEWHERE:
                continue
            help = on_command_line(flag.help, hint).replace("%", "%%")
            about: dict[str, Any] = {"dest": each.name, "help": help}
            if hint is bool:
                parser.add_argument(name, action="store_true", **about)
                continue
            about["metavar"] = flag.metavar or "N"
            if hint in (int, int | None):
                parser.add_argument(name, type=_at_least(flag.min), default=each.default, **about)
            else:
                parser.add_argument(name, action="append", **about)
    parser.add_argument(
        "--stats",
        action="store_true",
        help="Statistics of each tensor: min, mean, max, std, NaN and infinities.",
    )
    return parser


def _at_least(least: int | None) -> Any:
    """Return a function that reads a whole number."""
    from argparse import ArgumentTypeError

    def number(text: str) -> int:
        value = int(text)
        if least is not None and value < least:
            raise ArgumentTypeError(f"{text} is not at least {least}")
        return value

    return number
