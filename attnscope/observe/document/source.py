"""The code that ran, with the dims and shape of every tensor beside the line that computed it."""

from __future__ import annotations

import ast
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache

from rich.cells import cell_len
from rich.console import Console
from rich.style import Style
from rich.syntax import ANSISyntaxTheme, Syntax, SyntaxTheme
from rich.text import Text

from attnscope.base.text import printable, printable_lines
from attnscope.document.blocks import Drawing
from attnscope.document.html import rendered
from attnscope.document.pieces import pieces_of
from attnscope.document.styles import BLUE, CYAN, GREEN, MAGENTA, ORANGE, dims_pieces, shape_pieces
from attnscope.document.text import joined
from attnscope.observe.trace import Source, Step, Trace

GAP = 3  # between the code and the notes at its right
DEEPER = 4  # columns by which notes below a line are indented further than the line
SHAPE_COMMENT = re.compile(r"\s*#\s*(?:[\w, ]+: *)?[\[(][^\[\]()]*[\])]\s*$")
FEW = 8  # the least length of the pieces of a broken line


@dataclass
class CodeLine:
    """One line of code."""

    number: int  #: its number in the file
    text: str  #: its text, with unprintable characters escaped; for a docstring, only its indentation
    docstring: bool = False  #: whether it represents a whole docstring
    idle: bool = False  #: whether the call in it did nothing, such as dropout in eval mode
    steps: list[Step] = field(default_factory=list)  #: the tensors that it computes

    @property
    def indent(self) -> int:
        """Its indentation in columns."""
        return len(self.text) - len(self.text.lstrip())

    @property
    def width(self) -> int:
        """Its width in columns of a terminal; a wide character takes two, a combining one none."""
        return cell_len(self.text)


@dataclass(frozen=True)
class SourceDrawing(Drawing):
    """The code that a trace ran, with dims and shapes at the right of each line.

    Calls that did nothing are dim.
    """

    #: a trace with `source`; steps are matched to lines by name, and by `line` if it is known
    trace: Trace

    def print(self, console: Console, *, wide: bool = False) -> None:
        """Print it; dims and shapes below the lines, if the terminal is too narrow."""
        for source, lines in annotated(self.trace):
            console.print()
            if "." in source.function:  # else its first line contains the name
                console.print(Text(printable(source.function), "dim"), soft_wrap=True)
            for text in source_lines(source, lines, console.width if console.is_terminal else None):
                console.print(text, soft_wrap=True)

    def html(self) -> str:
        """Return it in the colours of a terminal, in a box for each function."""
        functions = [
            [pieces_of(line) for line in source_lines(source, lines, None)]
            for source, lines in annotated(self.trace)
        ]
        return rendered(HTML, functions=functions)

    def markdown(self) -> list[str]:
        """Return a block of code for each function, with comments at the right."""
        return [_block(lines) for _, lines in annotated(self.trace)]


HTML = """\
{% import "parts.html.j2" as parts %}
{% for function in functions %}
<pre class="source">{% for line in function %}{{ parts.pieces(line) }}
{% endfor %}</pre>
{% endfor %}
"""


def annotated(trace: Trace) -> Iterator[tuple[Source, list[CodeLine]]]:
    """Yield each function that a trace ran, and its lines with the tensors that they compute."""
    functions = [_Function(source) for source in trace.source or []]
    current = 0
    for step in trace.steps:
        later = range(current, len(functions))
        earlier = range(current) if trace.file is not None else ()  # a call has returned to its caller
        for i in (*later, *earlier):
            is_in_its_file = trace.file is None or functions[i].source.file == step.file
            if is_in_its_file and functions[i].take(step):
                current = i
                break
    known: dict[str, Step] = {}
    for function in functions:
        function.add_arguments(known)
        known |= {step.name: step for line in function.lines for step in line.steps}
        function.mark_idle(trace.steps)
        function.remove_shape_comments()
        yield function.source, function.lines


class _Function:
    """A function's source, and the lines that bind names."""

    def __init__(self, source: Source) -> None:
        self.source = source
        node = _parsed(source)
        self.def_line = node.lineno
        self.arguments = {argument.arg: argument.lineno for argument in _arguments(node)}
        self.bindings = [
            each
            for each in ast.walk(node)
            if isinstance(each, ast.Assign | ast.AnnAssign | ast.AugAssign)
        ]
        self.lines = [
            CodeLine(number, text)
            for number, text in enumerate(_printable(source).split("\n"), start=source.line)
        ]
        if ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            first, last = docstring.lineno - source.line, (docstring.end_lineno or 0) - source.line
            placeholder = self.lines[first]
            placeholder.text, placeholder.docstring = " " * placeholder.indent, True
            del self.lines[first + 1 : last + 1]
        self.by_number = {line.number: line for line in self.lines}

    def take(self, step: Step) -> bool:
        """Add a step to its line, and return whether this function has that line.

        A step that only names others is not added.
        """
        if step.inside is not None:
            return True
        line = self.by_number.get(self._place(step) or 0)
        if line is None or step.members is not None:
            return line is not None
        alike = [(s.name, s.dims, s.shape) for s in line.steps]
        if (step.name, step.dims, step.shape) not in alike:  # a loop computes it repeatedly
            line.steps.append(step)
        return True

    def _place(self, step: Step) -> int | None:
        name = _first_word(step.name)
        if step.line is None:  # a dry run
            if step.how == "input":
                return self.arguments.get(name)
            binding = (b.lineno for b in self.bindings if name in _bound(b))
            return next(binding, None)
        if step.line == self.def_line and name in self.arguments:
            return self.arguments[name]
        line = self.by_number.get(step.line)
        here = line is not None and (name == "return" or name in _words(line.text))
        return step.line if here else None

    def add_arguments(self, known: dict[str, Step]) -> None:
        """Add tensors that were computed before to the lines of arguments with their names."""
        taken = {_first_word(step.name) for line in self.lines for step in line.steps}
        for name, number in self.arguments.items():
            if name in known and name not in taken:
                self.by_number[number].steps.append(known[name])

    def remove_shape_comments(self) -> None:
        """Remove the code's own shape comments, which the notes at the right replace."""
        for line in self.lines:
            if line.steps or line.idle:
                line.text = SHAPE_COMMENT.sub("", line.text)

    def mark_idle(self, steps: Iterable[Step]) -> None:
        """Mark calls whose results are neither steps nor used in the expression of a step.

        Steps' expressions do not name the result of a stage that did nothing: they name its argument.
        """
        if not any(line.steps for line in self.lines):
            return
        used = {word for step in steps for word in _words(step.how)}
        for binding in self.bindings:
            names = _bound(binding)
            makes_steps = bool(self.by_number[binding.lineno].steps)
            if makes_steps or names & used or not (names and isinstance(binding.value, ast.Call)):
                continue
            for number in range(binding.lineno, (binding.end_lineno or binding.lineno) + 1):
                self.by_number[number].idle = True


def _printable(source: Source) -> str:
    """Return the text of a function as it is shown, with spaces for tabs."""
    return printable_lines(source.text.rstrip("\n"))


def _parsed(source: Source) -> ast.FunctionDef | ast.AsyncFunctionDef:
    """Parse a function, with the line numbers of its file."""
    indented = source.text[:1].isspace()  # a method
    tree = ast.parse("if True:\n" + source.text if indented else source.text)
    ast.increment_lineno(tree, source.line - 1 - indented)
    return next(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))


def _arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    arguments = node.args
    single = [each for each in (arguments.vararg, arguments.kwarg) if each is not None]
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *single]


def _bound(node: ast.AST) -> set[str]:
    """Return the names that a statement binds."""
    names = [each for each in ast.walk(node) if isinstance(each, ast.Name)]
    return {each.id for each in names if isinstance(each.ctx, ast.Store)}


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text)


def _first_word(name: str) -> str:
    """Return the variable of an expression: `x` of `x[0]`."""
    return next(iter(_words(name)), name)


# For people.


def source_lines(source: Source, lines: list[CodeLine], width: int | None) -> Iterator[Text]:
    """Yield the lines of a function as `annotated` returns it, with its notes.

    Args:
        width: the width of the terminal; None: as wide as necessary.
    """
    coloured = _coloured(_printable(source))
    digits = len(str(lines[-1].number))
    room = width and max(width - digits - len("  "), 2 * FEW)
    notes = _notes(lines)
    place = _place_of_notes(lines, notes, room)
    for line, makes in zip(lines, notes, strict=True):
        code = coloured[line.number - source.line][: len(line.text)]
        if line.docstring or line.idle:
            code = Text(line.text + "…" * line.docstring, "dim")
        code.rstrip()
        for i, row in enumerate(_rows(line, code, makes, place, room)):
            numbered = Text.assemble((f"{'' if i else line.number:>{digits}}  ", "dim"), row)
            numbered.rstrip()
            yield numbered


def _coloured(code: str) -> list[Text]:
    """Return lines of code in colours, character by character as they were."""
    highlighted = Syntax("", "python", theme=_theme()).highlight(code)
    whole = highlighted if highlighted.plain.rstrip("\n") == code else Text(code)
    whole.style = ""  # the terminal's own background
    return list(whole.split("\n", allow_blank=True))


@cache
def _theme() -> SyntaxTheme:
    """Return the colours of code, which are those of the axes, too."""
    from pygments.token import Comment, Keyword, Name, Number, Operator, String

    styles = {
        Comment: "dim",
        Keyword: BLUE,
        Operator.Word: MAGENTA,
        Name.Builtin: CYAN,
        Name.Class: f"underline {GREEN}",
        Name.Decorator: f"bold {MAGENTA}",
        Name.Exception: CYAN,
        Name.Function: GREEN,
        Number: BLUE,
        String: ORANGE,
    }
    return ANSISyntaxTheme({token: Style.parse(style) for token, style in styles.items()})


def _rows(
    line: CodeLine, code: Text, notes: list[Text], place: int | None, room: int | None
) -> Iterator[Text]:
    """Yield a line of code with the first note beside it, if it fits, and the others below."""
    if notes and place is not None and line.width <= place:
        free = " " * (place + GAP - code.cell_len)
        code, notes = Text.assemble(code, free, notes[0]), notes[1:]
    deeper = line.indent + DEEPER
    yield from _broken(code, deeper, room)
    for note in notes:
        if place is None:
            note = Text.assemble(("→ ", "dim"), note)
        under = deeper if place is None else place + GAP
        if room is not None:
            under = max(0, min(under, room - note.cell_len))
        yield from _broken(Text(" " * under) + note, under, room)


def _notes(lines: list[CodeLine]) -> list[list[Text]]:
    """Return the notes of each line: dims and shape of its tensors, with names if there are several."""
    alone = _widest_dims(line.steps[0] for line in lines if len(line.steps) == 1)
    notes = []
    for line in lines:
        several = len(line.steps) > 1
        name_width = max((len(step.name) for step in line.steps), default=0) if several else 0
        dims_width = _widest_dims(line.steps) if several else alone
        notes.append([_note(step, name_width, dims_width) for step in line.steps])
    return notes


def _widest_dims(steps: Iterable[Step]) -> int:
    return max((joined(dims_pieces(step.dims)).cell_len for step in steps), default=0)


def _note(step: Step, name_width: int, dims_width: int) -> Text:
    note, dims = Text(), joined(dims_pieces(step.dims))
    if name_width:
        note.append(f"{step.name:{name_width}}  ", "bold")
    if dims:
        note.append_text(dims).append(" " * (dims_width - dims.cell_len + 2))
    return note.append_text(joined(shape_pieces(step.dims, step.shape), "×"))


def _place_of_notes(lines: list[CodeLine], notes: list[list[Text]], width: int | None) -> int | None:
    """Return the column after which notes are aligned; None: they do not fit, and go below the lines."""
    widths = [line.width for line in lines if line.steps]
    if not widths:
        return None
    if width is None:
        return max(widths)
    room = width - GAP - max(note.cell_len for each in notes for note in each)
    fitting = [each for each in widths if each <= room]
    return max(fitting) if len(fitting) * 2 > len(widths) else None


def _broken(code: Text, indent: int, width: int | None) -> list[Text]:
    """Break a line at spaces into pieces of at most `width` columns, all but the first indented."""
    if width is None or code.cell_len <= width:
        return [code]
    indent = min(indent, max(0, width - FEW))
    start = len(code.plain) - len(code.plain.lstrip())
    most = bisect_right(range(len(code.plain)), width, key=lambda n: cell_len(code.plain[:n])) - 1
    space = code.plain.rfind(" ", start + FEW, most + 1)
    end = space if space > 0 else max(most, indent + 1)
    first, rest = code.divide([end])
    rest = rest[1:] if space > 0 else rest
    return [first, *_broken(Text(" " * indent) + rest, indent, width)]


# For Markdown.


def _block(lines: list[CodeLine]) -> str:
    place = max((line.width for line in lines if line.steps), default=0)
    rows = []
    for line, notes in zip(lines, _notes(lines), strict=True):
        code = line.text + "..." * line.docstring
        comment = " · ".join(note.plain for note in notes)
        space = " " * (place - cell_len(code))
        rows.append(f"{code}{space}  # {comment}" if comment else code)
    return "```python\n" + "\n".join(rows) + "\n```"
