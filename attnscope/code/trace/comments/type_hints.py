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
from typing import NamedTuple

from attnscope.base.errors import SourceError
from attnscope.code.trace.comments.places import Call, Code, Function, History, arguments_of
from attnscope.observe.axes.expressions import parse_expression
from attnscope.observe.trace import Step

MOST_SHAPES = 2
"""Shapes of an argument or of a line in several calls; with more, nothing is written."""

_KINDS = {
    "bfloat": "Float",
    "bool": "Bool",
    "complex": "Complex",
    "float": "Float",
    "int": "Int",
    "uint": "UInt",
}
"""jaxtyping's types of the dtypes whose names begin so."""


class _Hint(NamedTuple):
    """What an annotation is to say: a dtype, and one or several shapes in jaxtyping's notation."""

    dtype: str
    shapes: tuple[str, ...]


class _Edit(NamedTuple):
    """A piece of text to replace; empty if `start` is `end`."""

    start: int
    end: int
    text: str


def hint_source(text: str, steps: Iterable[Step]) -> str:
    """Add annotations to the arguments and results of the functions that ran, with their imports.

    Only annotations that say nothing more than `Tensor` are replaced.
    """
    mark, text = ("\ufeff", text[1:]) if text.startswith("\ufeff") else ("", text)
    code = Code(text)
    hints = _Hints(code, History(code, steps))
    edits = [edit for function in code.functions for edit in hints.of_function(function)]
    if not edits:
        return mark + text
    edits += hints.of_imports()
    for start, end, new in sorted(edits, key=lambda edit: edit.start, reverse=True):
        text = text[:start] + new + text[end:]
    if _without_hints(Code(text).tree) != _without_hints(code.tree):
        raise SourceError("adding annotations would change the program; the file was not changed.")
    return mark + text


class _Hints:
    """Finds the annotations of a file's functions, in its names for torch's and jaxtyping's types."""

    def __init__(self, code: Code, history: History) -> None:
        self.code, self.history = code, history
        self.missing: set[str] = set()  # the types to import by name
        self.imports: set[str] = set()  # other imports to add
        origins: dict[str, str] = {}  # of the names that are imported
        for node in code.tree.body:
            if isinstance(node, ast.Import):
                origins |= {each.asname or each.name: each.name for each in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                origins |= {
                    each.asname or each.name: f"{node.module}.{each.name}" for each in node.names
                }
        names = {origin: name for name, origin in origins.items()}
        self.module = names.get("jaxtyping")
        self.types = {name for name, origin in origins.items() if origin == f"jaxtyping.{name}"}
        self.taken = _all_names(code.tree) - self.types
        if "torch.Tensor" in names:
            self.tensor = names["torch.Tensor"]
        elif "torch" in names or "Tensor" in self.taken:
            self.tensor = f"{names.get('torch', 'torch')}.Tensor"
        else:
            self.tensor = "Tensor"

    def of_function(self, function: Function) -> Iterator[_Edit]:
        """Yield the annotations of a function's arguments and of its result."""
        bound: set[str] = set()  # the axes that earlier arguments have named
        bindings = self.code.bindings_of(function)
        by_position = {each.position: each for each in bindings if each.argument}
        signature = function.node.args
        positional = [*signature.posonlyargs, *signature.args]
        defaults = dict(zip(reversed(positional), reversed(signature.defaults), strict=False))
        keywords = zip(signature.kwonlyargs, signature.kw_defaults, strict=True)
        defaults |= {argument: value for argument, value in keywords if value is not None}
        for argument in arguments_of(signature):
            binding = by_position.get((argument.lineno, argument.col_offset))
            if binding is None or argument in (signature.vararg, signature.kwarg):
                continue
            runs = [run.step for run in self.history.runs_of[binding]]
            if any(step.name != argument.arg for step in runs):  # a tuple or dictionary of tensors
                continue
            hint = _hint(runs, bound)
            if hint is None:
                continue
            yield from self._of_argument(argument, defaults.get(argument), hint)
            if len(hint.shapes) == 1 and argument not in defaults:
                bound |= {dim for dim in runs[0].dims or () if dim.isidentifier()}
        yield from self._of_result(function, bound)

    def _of_argument(self, argument: ast.arg, default: ast.expr | None, hint: _Hint) -> Iterator[_Edit]:
        if argument.annotation is not None:
            yield from self._replaced(argument.annotation, hint)
            return
        end = self._end(argument)
        text = f": {self._written(hint)}"
        if isinstance(default, ast.Constant) and default.value is None:
            text += " | None"
        start = self._start(default) if default is not None else end
        is_next = self.code.text[end:start].strip() == "="
        yield _Edit(end, start, f"{text} = ") if is_next else _Edit(end, end, text)

    def _of_result(self, function: Function, bound: set[str]) -> Iterator[_Edit]:
        """Annotate the result of a function with one `return`, at its end, of tensors alone."""
        node = function.node
        own = list(_own_nodes(node))
        returns = [each for each in own if isinstance(each, ast.Return)]
        suspends = any(isinstance(each, ast.Yield | ast.YieldFrom) for each in own)
        value = returns[0].value if len(returns) == 1 else None
        if suspends or value is None or returns[0] is not node.body[-1]:
            return
        values = value.elts if isinstance(value, ast.Tuple) else [value]
        found = [_hint(self._steps_of(each, function), bound) for each in values]
        hints = [hint for hint in found if hint is not None]
        if not hints or len(hints) != len(found):
            return
        if node.returns is None:
            texts = [self._written(hint) for hint in hints]
            text = f"tuple[{', '.join(texts)}]" if isinstance(value, ast.Tuple) else texts[0]
            colon = self._colon(node)
            yield _Edit(colon, colon, f" -> {text}")
            return
        elements = [node.returns]
        if isinstance(value, ast.Tuple):
            inside = node.returns.slice if isinstance(node.returns, ast.Subscript) else None
            elements = inside.elts if isinstance(inside, ast.Tuple) else []
        if len(elements) == len(hints):
            for element, hint in zip(elements, hints, strict=True):
                yield from self._replaced(element, hint)

    def _replaced(self, annotation: ast.expr, hint: _Hint) -> Iterator[_Edit]:
        for node in _plain_tensors(annotation):
            yield _Edit(self._start(node), self._end(node), self._written(hint))

    def _written(self, hint: _Hint) -> str:
        """Return an annotation, and note what has to be imported for it."""
        kind = _KINDS.get(re.sub(r"\d.*", "", hint.dtype), "Shaped")
        if kind not in self.types:
            if self.module is not None:
                kind = f"{self.module}.{kind}"
            elif kind in self.taken:
                self.imports.add("import jaxtyping")
                kind = f"jaxtyping.{kind}"
            else:
                self.missing.add(kind)
        if self.tensor == "Tensor":
            self.imports.add("from torch import Tensor")
        elif self.tensor == "torch.Tensor":
            self.imports.add("import torch")
        return " | ".join(f'{kind}[{self.tensor}, "{shape}"]' for shape in hint.shapes)

    def of_imports(self) -> list[_Edit]:
        """Return the imports that are missing, after the last import at the beginning of the module."""
        body = self.code.tree.body
        present = {ast.unparse(each) for each in body}
        for each in body:
            if isinstance(each, ast.ImportFrom) and each.module == "torch":
                present |= {f"from torch import {a.name}" for a in each.names if a.asname is None}
        lines = sorted(self.imports - present)
        if self.missing:
            lines.append(f"from jaxtyping import {', '.join(sorted(self.missing))}")
        if not lines:
            return []
        after = 0
        for i, node in enumerate(body):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                break
            is_docstring = i == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            if isinstance(node, ast.Import | ast.ImportFrom) or is_docstring:
                place = self.code.place_of(node.end_lineno)
                after = place.last if place is not None else after
        if after == 0:
            decorators = getattr(body[0], "decorator_list", [])
            after = min(each.lineno for each in (body[0], *decorators)) - 1
        start = self.code.offset(after + 1)
        end_of_line = "\r\n" if self.code.text[:start].endswith("\r\n") else "\n"
        return [_Edit(start, start, "".join(line + end_of_line for line in lines))]

    def _steps_of(self, value: ast.expr, function: Function) -> list[Step]:
        """Return the steps of a returned value in all calls; none if it is not known in each of them."""
        calls: dict[Call, list[Step]] = {}
        for run in self.history.order:
            if run.call.function is function:
                calls.setdefault(run.call, []).append(run.step)
        found = []
        for steps in calls.values():
            if isinstance(value, ast.Name):
                values = [step for step in steps if re.match(rf"{value.id}(\[|$)", step.name)]
            else:
                bound = ((step, self.code.binding_of(step)) for step in steps)
                values = [
                    step
                    for step, binding in bound
                    if binding is not None
                    and binding.position == (value.lineno, value.col_offset)
                    and binding.name.startswith("return")
                ]
            binding = self.code.binding_of(values[-1]) if values else None
            if binding is None or values[-1].name != binding.name:  # an element of a list, say
                return []
            found.append(values[-1])
        return found

    def _start(self, node: ast.expr | ast.arg) -> int:
        return self.code.offset(node.lineno, node.col_offset)

    def _end(self, node: ast.expr | ast.arg) -> int:
        return self.code.offset(node.end_lineno or node.lineno, node.end_col_offset or 0)

    def _colon(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
        """Return the place of the colon that ends a function's signature."""
        lines = self.code.lines[function.lineno - 1 :]
        depth = 0
        for token in tokenize.generate_tokens(iter([*lines, ""]).__next__):
            if token.type == tokenize.OP:
                depth += (token.string in "([{") - (token.string in ")]}")
            if token.string == ":" and depth == 0:
                break
        line, column = token.start
        return self.code.offset(function.lineno + line - 1) + column


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
        if axis.word or not axis.words:
            texts.append(dim)
        elif axis.words <= bound:  # in Python: `2*n_head*d`, `d_feat//n_head`
            texts.append(str(axis).replace("·", "*").replace("/", "//"))
        else:
            texts.append(_word(dim))
    text = " ".join(texts)
    return f" {text}" if text.isidentifier() else text  # else linters take it for a name


def _word(dim: str) -> str:
    """Return a word for an axis that cannot be computed: `d_feat_per_n_head`."""
    spoken = {"·": "_", "*": "_", "//": "_per_", "/": "_per_", "+": "_plus_", "-": "_minus_"}
    for sign, word in spoken.items():
        dim = dim.replace(sign, word)
    word = re.sub(r"\W", "", dim)
    return word if word.isidentifier() else f"n_{word}"


# The source.


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


def _all_names(tree: ast.Module) -> set[str]:
    """Return the names that occur in a module."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.alias):
            found.add(node.asname or node.name)
    return found


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
