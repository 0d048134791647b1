"""A command, and its help: the common options with examples, or all options."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from typer._click.exceptions import BadOptionUsage
from typer.core import TyperArgument, TyperCommand, TyperOption

from attnscope.base.options import Flag
from attnscope.base.spelling import Flags, use_notation

if TYPE_CHECKING:
    from attnscope.cli.help import HelpLine

MAX_OPTIONS = 20
"""The number of options that `--help` lists at most."""
N_EXAMPLES = 3
"""The number of examples that it shows at most."""
A_LINE, A_NAME = 54, 12
"""Characters of a help on one line of 80 columns, and of one that is no more than a name."""
ALL = "--help-all"


class Command(TyperCommand):
    """A command whose `--help` lists its common options, and `--help-all` all of them.

    Attributes:
        flags: the declarations of its options by parameter.
        examples: command lines, each with what it shows.
    """

    flags: Mapping[str, Flag] = {}
    examples: Mapping[str, str] = {}

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.params.append(help_all("List all options."))

    @property
    def takes_value(self) -> dict[str, bool]:
        """The flags of the options, and whether each takes a value."""
        return {
            flag: not each.is_flag
            for each in self.params
            if isinstance(each, TyperOption)
            for flag in (*each.opts, *each.secondary_opts)
        }

    @property
    def flags_by_option(self) -> dict[str, tuple[str, ...]]:
        """The flags of each option, the one that switches it off last."""
        return {
            each.name or "": (each.opts[0], *each.secondary_opts)
            for each in self.params
            if isinstance(each, TyperOption)
        }

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse arguments; while a shell completes a value, without the option that it belongs to."""
        if not ctx.resilient_parsing:
            self._check_values(args)
        elif args and args[-1].startswith("-"):
            args = args[:-1]
        with use_notation(Flags(lambda: self.flags_by_option)):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command, whose messages name its flags."""
        with use_notation(Flags(lambda: self.flags_by_option)):
            return super().invoke(ctx)

    def _check_values(self, args: list[str]) -> None:
        """Raise an error if an option stands where the value of another one is missing."""
        takes_value = self.takes_value
        for word, following in pairwise(args):
            if word == "--":
                break
            is_option = following == "--" or following.partition("=")[0] in takes_value
            if takes_value.get(word) and is_option:
                raise BadOptionUsage(word, f"Option {word!r} requires an argument.")

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help with the common options."""
        every = [each for each in self.params[:-1] if isinstance(each, TyperOption)]
        common = [each for each in every if self.lists(each)]
        n_more = len(every) - len(common)
        more = f"{n_more} more options: {ctx.command_path} {ALL}" if n_more else None
        arguments = [each for each in self.params if isinstance(each, TyperArgument)]
        show(self, ctx, sections_of(ctx, [*arguments, *common], short=True), more, n_examples=N_EXAMPLES)

    def print_all(self, ctx: Any) -> None:
        """Print the help with all options."""
        show(self, ctx, sections_of(ctx, self.get_params(ctx)))

    def lists(self, option: TyperOption) -> bool:
        """Whether `--help` lists an option: a common one, or any if there are few."""
        flag = self.flags.get(option.name or "")
        if sum(isinstance(each, TyperOption) for each in self.params) <= MAX_OPTIONS + 1:
            return True
        if flag is None:
            return option.required
        return flag.common if isinstance(flag.common, bool) else self.name in flag.common


def sections_of(
    ctx: Any, parameters: Iterable[Any], *, short: bool = False
) -> dict[str, list[HelpLine]]:
    """Return the lines of the help about parameters, by heading; general options come last.

    Args:
        ctx: the context of the command.
        parameters: its arguments and options.
        short: whether only the first clause about each option is shown.
    """
    from attnscope.cli.help import HelpLine

    sections: dict[str, list[HelpLine]] = defaultdict(list)
    for each in parameters:
        is_option = isinstance(each, TyperOption)
        heading = each.rich_help_panel or ("Options" if is_option else "Arguments")
        name = each.make_metavar(ctx)
        value = "" if not is_option or each.is_flag else name
        flags = [", ".join(sorted(each.opts, key=len, reverse=True)), *each.secondary_opts]
        names = "/".join(flags) if is_option else name
        default = each._extract_default_help_str(ctx=ctx) if each.show_default is True else None
        if isinstance(each.show_default, str):
            default = each.show_default
        elif default is not None:
            default = each._get_default_string(ctx=ctx, show_default_is_str=False, default_value=default)
        note = f"default: {default}" if default else "required" if is_option and each.required else ""
        text = each.help or ""
        text = first_clause(text, note) if short and is_option else text
        sections[heading].append(HelpLine(names, text, value, note))
    last = [heading for heading in ("Output", "Options") if heading in sections]
    return sections | {heading: sections.pop(heading) for heading in last}


def first_clause(text: str, note: str = "") -> str:
    """Return the beginning of a help, which says enough for a list; all of it, if a line has room.

    >>> first_clause("Heads (n_head; a divisor of d_feat). In each layer, as many as there are.")
    'Heads (n_head; a divisor of d_feat).'
    >>> first_clause("Dtype of the keys and values: float64, float32, bfloat16, float16, int8 or q4_0.")
    'Dtype of the keys and values.'
    """
    depth = 0
    for i, character in enumerate(text if len(f"{text} [{note}]") > A_LINE else ""):
        depth += (character == "(") - (character == ")")
        ends = character == ";" or text[i : i + 2] == ". " or (text[i : i + 2] == ": " and i > A_NAME)
        if depth == 0 and ends:
            return f"{text[:i]}."
    return text


def help_all(text: str) -> TyperOption:
    """Return the option that prints the whole help."""

    def print_all(ctx: Any, _: Any, requested: bool) -> None:
        if requested and not ctx.resilient_parsing:
            ctx.command.print_all(ctx)
            ctx.exit()

    return TyperOption(
        param_decls=[ALL],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=print_all,
        help=text,
    )


def show(
    command: Any,
    ctx: Any,
    sections: Mapping[str, list[HelpLine]],
    more: str | None = None,
    n_examples: int | None = None,
) -> None:
    """Print the help of a command, or of all commands."""
    from attnscope.cli.help import Help, print_help
    from attnscope.document.console import Terminal

    pieces = [piece.strip("{}") for piece in command.collect_usage_pieces(ctx)]
    usage = " ".join([ctx.command_path, *pieces])
    examples = dict(list(getattr(command, "examples", {}).items())[:n_examples])
    print_help(Help(usage, command.help or "", sections, examples, more), Terminal())
