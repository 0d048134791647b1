"""Writing jaxtyping's annotations for the arguments and results of functions that ran.

    def split(self, x):

becomes, where x was [n_batch, n, d_feat] and the result [n_batch, n_head, n, d_head],

    def split(self, x: Float[Tensor, "n_batch n d_feat"]) -> Float[Tensor, "n_batch n_head n d_head"]:

Source: https://docs.kidger.site/jaxtyping/api/array/
"""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from attnscope.errors import SourceError
from attnscope.observe.axes.expressions import Expression, parse_expression
from attnscope.observe.trace import Step
from attnscope.tracing.comments.history import Call, History
from attnscope.tracing.comments.places import Binding, Code, Function, arguments_of

MOST_SHAPES = 2
"""Shapes of an argument or of a line in several calls; with more, nothing is written."""

_KINDS = {
    "float": "Float",
    "bfloat": "Float",
    "complex": "Complex",
    "bool": "Bool",
    "int": "Int",
    "uint": "UInt",
}
"""jaxtyping's types of the dtypes whose names begin so."""


@dataclass(frozen=True)
class _Hint:
    """What an annotation is to say: a dtype, and one or several shapes in jaxtyping's notation."""

    dtype: str
    shapes: tuple[str, ...]


@dataclass
class _Names:
    """The names under which a file knows torch's tensor and jaxtyping's types, and what it lacks.

    Attributes:
        tensor: the name of torch's tensor.
        types: the types that are imported by name.
        module: the name of jaxtyping, if that is imported instead.
        taken: other names in the file.
        missing: the types to import by name.
        imports: other imports to add.
    """

    tensor: str
    types: set[str]
    module: str | None
    taken: set[str]
    missing: set[str] = field(default_factory=set)
    imports: set[str] = field(default_factory=set)

    def written(self, hint: _Hint) -> str:
        """Return an annotation, and note what has to be imported for it."""
        kind = _KINDS.get(re.sub(r"\d.*", "", hint.dtype), "Shaped")
        if kind not in self.types:
            if self.module is None and kind in self.taken:
                self.imports.add("import jaxtyping")
                kind = f"jaxtyping.{kind}"
            elif self.module is None:
                self.missing.add(kind)
            else:
                kind = f"{self.module}.{kind}"
        if self.tensor == "Tensor":
            self.imports.add("from torch import Tensor")
        elif self.tensor == "torch.Tensor":
            self.imports.add("import torch")
        return " | ".join(f'{kind}[{self.tensor}, "{shape}"]' for shape in hint.shapes)


@dataclass(frozen=True)
class _Edit:
    """A piece of text to replace; empty if `start` is `end`."""

    start: int
    end: int
    text: str


def hint_source(text: str, steps: Iterable[Step]) -> str:
    """Add annotations to the arguments and results of the functions that ran, with their imports.

    Only annotations that say nothing more than `Tensor` are replaced.

    Args:
        text: the source of the whole file.
        steps: the steps of the run in this file, in order of execution.

    Raises:
        SourceError: the text is not Python, or would not be the same program.
    """
    mark, text = ("\ufeff", text[1:]) if text.startswith("\ufeff") else ("", text)
    code = Code(text)
    history = History(code, steps)
    names = _names_in(code.tree)
    edits = [edit for function in code.functions for edit in _hints(function, code, history, names)]
    if not edits:
        return mark + text
    edits += _imports(code, names)
    for edit in sorted(edits, key=lambda edit: edit.start, reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
    if _without_hints(Code(text).tree) != _without_hints(code.tree):
        raise SourceError("adding annotations would change the program; the file was not changed.")
    return mark + text


# A function's annotations.


def _hints(function: Function, code: Code, history: History, names: _Names) -> Iterator[_Edit]:
    bound: set[str] = set()  # the axes that earlier arguments have named
    by_position = {each.position: each for each in code.bindings_of(function) if each.argument}
    signature = function.node.args
    defaults = _defaults(signature)
    for argument in arguments_of(signature):
        binding = by_position.get((argument.lineno, argument.col_offset))
        if binding is None or argument in (signature.vararg, signature.kwarg):
            continue
        runs = [run.step for run in history.runs_of[binding]]
        if any(step.name != argument.arg for step in runs):  # a tuple or dictionary of tensors
            continue
        hint = _hint(runs, bound)
        if hint is None:
            continue
        yield from _argument_edits(argument, defaults.get(argument), hint, code, names)
        if len(hint.shapes) == 1 and argument not in defaults:
            bound |= {dim for dim in runs[0].dims or () if dim.isidentifier()}
    yield from _result_edits(function, code, history, names, bound)


def _argument_edits(
    argument: ast.arg, default: ast.expr | None, hint: _Hint, code: Code, names: _Names
) -> Iterator[_Edit]:
    if argument.annotation is not None:
        yield from _replaced(argument.annotation, hint, code, names)
        return
    end = _end(argument, code)
    text = f": {names.written(hint)}"
    if isinstance(default, ast.Constant) and default.value is None:
        text += " | None"
    start = _start(default, code) if default is not None else end
    is_next = code.text[end:start].strip() == "="
    yield _Edit(end, start, f"{text} = ") if is_next else _Edit(end, end, text)


def _result_edits(
    function: Function, code: Code, history: History, names: _Names, bound: set[str]
) -> Iterator[_Edit]:
    """Annotate the result of a function with one `return`, at its end, whose values are all tensors."""
    node = function.node
    returns = [each for each in _own_nodes(node) if isinstance(each, ast.Return)]
    suspends = any(isinstance(each, ast.Yield | ast.YieldFrom) for each in _own_nodes(node))
    if suspends or len(returns) != 1 or returns[0] is not node.body[-1] or returns[0].value is None:
        return
    value = returns[0].value
    values = value.elts if isinstance(value, ast.Tuple) else [value]
    found = [_hint(_results(each, function, code, history), bound) for each in values]
    hints = [hint for hint in found if hint is not None]
    if not hints or len(hints) != len(found):
        return
    if node.returns is None:
        texts = [names.written(hint) for hint in hints]
        text = f"tuple[{', '.join(texts)}]" if isinstance(value, ast.Tuple) else texts[0]
        colon = _colon(node, code)
        yield _Edit(colon, colon, f" -> {text}")
        return
    elements = [node.returns]
    if isinstance(value, ast.Tuple):
        inside = node.returns.slice if isinstance(node.returns, ast.Subscript) else None
        elements = inside.elts if isinstance(inside, ast.Tuple) else []
    if len(elements) == len(hints):
        for element, hint in zip(elements, hints, strict=True):
            yield from _replaced(element, hint, code, names)


def _replaced(annotation: ast.expr, hint: _Hint, code: Code, names: _Names) -> Iterator[_Edit]:
    for node in _plain_tensors(annotation):
        yield _Edit(_start(node, code), _end(node, code), names.written(hint))


def _results(value: ast.expr, function: Function, code: Code, history: History) -> list[Step]:
    """Return the steps of a returned value in all calls; none if it is not known in each of them."""
    calls: dict[Call, list[Step]] = {}
    for run in history.order:
        if run.call.function is function:
            calls.setdefault(run.call, []).append(run.step)
    found = []
    for steps in calls.values():
        if isinstance(value, ast.Name):
            values = [step for step in steps if re.match(rf"{value.id}(\[|$)", step.name)]
        else:
            position = (value.lineno, value.col_offset)
            values = [step for step in steps if _is_at(code.binding_of(step), position)]
        binding = code.binding_of(values[-1]) if values else None
        if binding is None or values[-1].name != binding.name:  # an element of a list, say
            return []
        found.append(values[-1])
    return found


def _is_at(binding: Binding | None, position: tuple[int, int]) -> bool:
    return binding is not None and binding.position == position and binding.name.startswith("return")


def _hint(steps: list[Step], bound: set[str]) -> _Hint | None:
    """Build the hint for a value that was these tensors in all calls; None if it would be unclear."""
    shapes = list(dict.fromkeys(step.dims for step in steps))
    dtypes = {step.dtype for step in steps}
    texts = [_axes(dims, bound) if dims is not None else None for dims in shapes]
    known = tuple(text for text in texts if text is not None)
    if not texts or len(known) != len(texts) or len(texts) > MOST_SHAPES or len(dtypes) > 1:
        return None
    return _Hint(dtypes.pop(), known)


def _axes(dims: tuple[str, ...], bound: set[str]) -> str | None:
    """Return axes in jaxtyping's notation; those of earlier arguments may be computed with."""
    texts = []
    for dim in dims:
        axis = parse_expression(dim)
        if axis is None:
            return None
        is_known = axis.words <= bound
        texts.append(dim if axis.word or not axis.words else _computed(axis) if is_known else _word(dim))
    text = " ".join(texts)
    return f" {text}" if text.isidentifier() else text  # else linters take it for a name


def _computed(axis: Expression) -> str:
    """Return an expression in Python: `2*n_head*d`, `d_feat//n_head`."""
    return str(axis).replace("·", "*").replace("/", "//")


def _word(dim: str) -> str:
    """Return a word for an axis that cannot be computed: `d_feat_per_n_head`."""
    spoken = {"·": "_", "*": "_", "//": "_per_", "/": "_per_", "+": "_plus_", "-": "_minus_"}
    for sign, word in spoken.items():
        dim = dim.replace(sign, word)
    word = re.sub(r"\W", "", dim)
    return word if word.isidentifier() else f"n_{word}"


# The source.


def _start(node: ast.expr | ast.arg, code: Code) -> int:
    return code.offset(node.lineno, node.col_offset)


def _end(node: ast.expr | ast.arg, code: Code) -> int:
    return code.offset(node.end_lineno or node.lineno, node.end_col_offset or 0)


def _defaults(signature: ast.arguments) -> dict[ast.arg, ast.expr]:
    positional = [*signature.posonlyargs, *signature.args]
    defaults = dict(zip(reversed(positional), reversed(signature.defaults), strict=False))
    keywords = zip(signature.kwonlyargs, signature.kw_defaults, strict=True)
    return defaults | {argument: value for argument, value in keywords if value is not None}


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes in a function, without those of functions and classes in it."""
    for child in ast.iter_child_nodes(function):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield from _own_nodes(child)


def _plain_tensors(annotation: ast.expr) -> Iterator[ast.expr]:
    """Yield the parts of an annotation that say `Tensor` and nothing more, also in a union with None."""
    if isinstance(annotation, ast.BinOp):
        yield from _plain_tensors(annotation.left)
        yield from _plain_tensors(annotation.right)
    elif isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value).endswith("Optional"):
        yield from _plain_tensors(annotation.slice)
    elif ast.unparse(annotation).strip("'\"") in ("Tensor", "torch.Tensor"):
        yield annotation


def _colon(function: ast.FunctionDef | ast.AsyncFunctionDef, code: Code) -> int:
    """Return the place of the colon that ends a function's signature."""
    lines = code.lines[function.lineno - 1 :]
    depth = 0
    for token in tokenize.generate_tokens(iter([*lines, ""]).__next__):
        depth += (token.string in "([{") - (token.string in ")]}") if token.type == tokenize.OP else 0
        if token.string == ":" and depth == 0:
            break
    line, column = token.start
    return code.offset(function.lineno + line - 1) + column


def _names_in(tree: ast.Module) -> _Names:
    """Find the names under which a module has imported torch's tensor and jaxtyping's types."""
    origins: dict[str, str] = {}  # of the names that are imported
    for node in tree.body:
        if isinstance(node, ast.Import):
            origins |= {each.asname or each.name: each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            origins |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
    names = {origin: name for name, origin in origins.items()}
    types = {name for name, origin in origins.items() if origin == f"jaxtyping.{name}"}
    taken = _all_names(tree) - types
    if "torch.Tensor" in names:
        tensor = names["torch.Tensor"]
    elif "torch" in names or "Tensor" in taken:
        tensor = f"{names.get('torch', 'torch')}.Tensor"
    else:
        tensor = "Tensor"
    return _Names(tensor, types, names.get("jaxtyping"), taken)


def _all_names(tree: ast.Module) -> set[str]:
    """Return the names that occur in a module."""
    found = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.alias):
            found.add(node.asname or node.name)
    return found


def _imports(code: Code, names: _Names) -> list[_Edit]:
    """Return the imports that are missing, after the last import at the beginning of the module."""
    present = {ast.unparse(each) for each in code.tree.body}
    present |= {f"from torch import {name}" for name in _imported_from_torch(code.tree)}
    lines = sorted(names.imports - present)
    if names.missing:
        lines.append(f"from jaxtyping import {', '.join(sorted(names.missing))}")
    if not lines:
        return []
    after = 0
    for i, node in enumerate(code.tree.body):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            break
        is_docstring = i == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.Import | ast.ImportFrom) or is_docstring:
            place = code.place_of(node.end_lineno)
            after = place.last if place is not None else after
    if after == 0:
        first = code.tree.body[0]
        lines_before = [first.lineno, *(d.lineno for d in getattr(first, "decorator_list", []))]
        after = min(lines_before) - 1
    start = code.offset(after + 1)
    end_of_line = "\r\n" if code.text[:start].endswith("\r\n") else "\n"
    return [_Edit(start, start, "".join(line + end_of_line for line in lines))]


def _imported_from_torch(tree: ast.Module) -> set[str]:
    imports = [each for each in tree.body if isinstance(each, ast.ImportFrom) and each.module == "torch"]
    return {alias.name for each in imports for alias in each.names if alias.asname is None}


def _without_hints(tree: ast.Module) -> str:
    """Return a module's syntax without annotations of functions and imports of their names."""
    tree = ast.parse(ast.unparse(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
    added = re.compile(
        r"import torch|from torch import Tensor|import jaxtyping|from jaxtyping import .*"
    )
    tree.body = [each for each in tree.body if not added.fullmatch(ast.unparse(each))]
    return ast.dump(tree)
