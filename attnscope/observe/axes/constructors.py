"""The sizes of a module's weights, in the words of its constructor.

`self.to_q = nn.Linear(dim, heads * dim_head)` says that the weight has `heads·dim_head` rows and `dim`
columns. The constructor is read, and not run: it ran before the trace began.
"""

from __future__ import annotations

import ast
import linecache
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from types import FunctionType
from typing import TYPE_CHECKING, Any, cast

from attnscope.observe.axes.expressions import Expression, combined, of_number, of_word
from attnscope.observe.instrument.code_swap import Relay
from attnscope.observe.operators.place import parsed

if TYPE_CHECKING:
    import torch

UNKNOWN = "?"
"""What stands before the text of a variable whose value was not kept."""

Attribute = Callable[[ast.Attribute], Expression | None]
"""Returns the size that an attribute is, such as `self.config.n_head`; None if it is none."""

ARGUMENTS = {
    "Linear": ("out_features", "in_features"),
    "Embedding": ("num_embeddings", "embedding_dim"),
    "Norm": ("normalized_shape",),
}
"""The arguments that are the sizes of a layer's weight, by the end of the layer's name."""

ORDER = {
    "Linear": ("in_features", "out_features"),
    "Embedding": ("num_embeddings", "embedding_dim"),
    "Norm": ("normalized_shape",),
}
"""The first arguments of these layers."""


def sizes_of_weights(
    owner: torch.nn.Module, attribute: Attribute
) -> Iterator[tuple[Any, list[Expression | None]]]:
    """Yield the weights of a module's own layers, with the sizes of their axes.

    Variables of the constructor that no attribute keeps are words that begin with `?`.
    """
    for constructor in _constructors(owner):
        assignments = list(_assignments(constructor))
        variables = _Variables(constructor, assignments, attribute)
        for target, value in assignments:
            name = _own_attribute(target)
            if name is not None:
                for weight, sizes in _layers(Relay.attribute(owner, name), value):
                    yield weight, [None if size is None else variables.size(size) for size in sizes]


def kept_arguments(owner: torch.nn.Module) -> Iterator[tuple[str, str]]:
    """Yield the variables that attributes of a module keep: `self.h = n_head`, as `n_head` and `h`."""
    for constructor in _constructors(owner):
        for target, value in _assignments(constructor):
            name = _own_attribute(target)
            if name is not None and isinstance(value, ast.Name | ast.Attribute):
                yield ast.unparse(value), name


def _constructors(owner: torch.nn.Module) -> Iterator[ast.FunctionDef]:
    """Yield the constructors of a module's class and of those that it inherits from."""
    for each in type(owner).__mro__:
        function = vars(each).get("__init__")
        constructor = _tree_of(function) if type(function) is FunctionType else None
        if constructor is not None:
            yield constructor


class _Variables:
    """The variables of a constructor."""

    def __init__(
        self,
        constructor: ast.FunctionDef,
        assignments: Sequence[tuple[ast.expr, ast.expr]],
        attribute: Attribute,
    ) -> None:
        self.attribute = attribute  #: returns the size that an attribute of the module is
        self.kept: dict[str, ast.Attribute] = {}  # the attributes that have the values of variables
        stored = [
            node.id
            for node in ast.walk(constructor)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        ]
        arguments = [each.arg for each in ast.walk(constructor.args) if isinstance(each, ast.arg)]
        self.known: dict[str, Expression | None] = {
            name: None for name, count in Counter([*stored, *arguments]).items() if count > 1
        }
        for target, value in assignments:
            if _own_attribute(target) is not None and isinstance(value, ast.Name | ast.Attribute):
                self.kept.setdefault(ast.unparse(value), cast(ast.Attribute, target))
        for target, value in assignments:
            if isinstance(target, ast.Name) and target.id not in self.known:
                size = self.size(value)
                if size is not None:
                    self.known[target.id] = size

    def size(self, node: ast.expr) -> Expression | None:
        """Return an expression of sizes; None if it is something else."""
        match node:
            case ast.Constant(value=int(number)) if type(number) is int:
                return of_number(number)
            case ast.Name() | ast.Attribute():
                return self._variable(node)
            case ast.Call(func=ast.Name(id="int"), args=[argument]):
                return self.size(argument)
            case ast.BinOp():
                return combined(node.op, self.size(node.left), self.size(node.right))
        return None

    def _variable(self, node: ast.Name | ast.Attribute) -> Expression | None:
        """Return the size of a variable, or of an attribute of one; a new word if it is unknown."""
        text = ast.unparse(node)
        if text in self.kept and (size := self.attribute(self.kept[text])) is not None:
            return size
        root, _, rest = text.partition(".")
        if root == "self" and isinstance(node, ast.Attribute):
            return self.attribute(node)
        if root in self.kept and rest:  # config.n_head, where self.config is config
            inner = ast.parse(f"{ast.unparse(self.kept[root])}.{rest}", mode="eval").body
            return self.attribute(inner) if isinstance(inner, ast.Attribute) else None
        is_name = all(word.isidentifier() for word in text.split("."))
        return self.known.get(text, of_word(UNKNOWN + text)) if is_name else None


@lru_cache(maxsize=256)
def _tree_of(function: FunctionType) -> ast.FunctionDef | None:
    """Return the syntax tree of a constructor; None if its source is not available."""
    code = function.__code__
    try:
        tree = parsed("".join(linecache.getlines(code.co_filename)))
    except (SyntaxError, ValueError, RecursionError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            if first == code.co_firstlineno:
                return node
    return None


def _assignments(constructor: ast.FunctionDef) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the assignments that always run, those of tuples element by element."""
    for statement in constructor.body:
        if isinstance(statement, ast.AnnAssign) and statement.value is not None:
            yield statement.target, statement.value
        if not isinstance(statement, ast.Assign):
            continue
        for target in statement.targets:
            if isinstance(target, ast.Tuple) and isinstance(statement.value, ast.Tuple):
                yield from zip(target.elts, statement.value.elts, strict=False)
            elif isinstance(target, ast.Tuple):
                yield from ((each, statement.value) for each in target.elts)
            else:
                yield target, statement.value


def _own_attribute(node: ast.expr) -> str | None:
    """Return the name in `self.name`."""
    of_self = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    return node.attr if of_self and node.value.id == "self" else None  # type: ignore[attr-defined]


def _layers(module: Any, value: ast.expr) -> Iterator[tuple[Any, Sequence[ast.expr | None]]]:
    """Yield the weights of layers made in an expression, with the expressions of their sizes."""
    calls: dict[str, list[ast.Call]] = {}
    for node in ast.walk(value):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            calls.setdefault(name, []).append(node)
    for name, each in calls.items():
        kind = next((kind for kind in ARGUMENTS if name.endswith(kind)), None)
        layers = [layer for layer in _modules(module) if type(layer).__name__ == name]
        each.sort(key=lambda call: (call.lineno, call.col_offset))
        made = each * len(layers) if len({ast.unparse(call) for call in each}) == 1 else each
        if kind is None or len(made[: len(layers)]) != len(layers):
            continue
        for layer, call in zip(layers, made, strict=False):
            arguments = dict(zip(ORDER[kind], call.args, strict=False))
            arguments |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
            if not any(isinstance(argument, ast.Starred) for argument in call.args):
                yield Relay.attribute(layer, "weight"), [arguments.get(word) for word in ARGUMENTS[kind]]


def _modules(module: Any) -> Iterator[Any]:
    """Yield a module and all modules in it."""
    children = Relay.attribute(module, "_modules")
    if isinstance(children, dict):
        yield module
        for child in children.values():
            yield from _modules(child)
