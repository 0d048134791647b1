"""Names of axes in calls that cannot be repeated with other sizes.

A size alone says little: two axes of size 8 may be the heads and the batch. So an axis gets a name only
if the code itself says what it is:

- `B, T, C = x.size()`, `n = x.shape[1]`: the name is that of this axis of `x`.
- `x.view(B, T, self.n_head, C // self.n_head)`, `torch.zeros(T, T)`, `mask[:T, :T]`,
  `x.split(self.n_embd, dim=2)`: an argument is the name of the axis that it makes, and may be an
  expression of variables and attributes.
- `self.to_q = nn.Linear(dim, heads * dim_head)`, in the constructor: the sizes of the weight.
- `rearrange(x, "b n (h d) -> b h n d", h=h)`, `einsum("bid,bjd->bij", q, k)`: letters name what has no
  other name, and so do variables of the constructor that no attribute keeps.
- The user's names for the axes of an argument (`--dims`).

`Flow` follows the axes through all operators, from the tensor where one has a name to those that have
it from there, and back: if a layer's outputs are viewed as `n_head` by `C // n_head`, there are `C`.
So names stay apart although sizes are equal. What is left over is a number: an axis whose origin has
no name; or one whose name the code gives to several axes, as a function does that is called with
queries and with keys. Where an operator requires two axes to be equal, an axis without a name gets that
of the other, unless two axes of one tensor would become the same: that may be a coincidence, or the
mistake that is looked for.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias, TypeGuard

import torch

from attnscope.base.errors import class_attribute, is_a
from attnscope.observe.axes.constructors import UNKNOWN, kept_arguments, sizes_of_weights
from attnscope.observe.axes.expressions import Expression, Powers, combined, of_number, of_word
from attnscope.observe.axes.flow import ONE, Axes, Axis, Flow, Piece, has_unit, size_of, whole
from attnscope.observe.diagnose.crash import FailedTensor
from attnscope.observe.instrument import written_out
from attnscope.observe.instrument.code_swap import Relay
from attnscope.observe.instrument.rewrite import Place, RecordingSite, Target
from attnscope.observe.operator_names import REGROUPS
from attnscope.observe.trace import Step

BY_USER = -1
"""The depth of names that the user gives: above those of all code."""

NAMELESS = "_"
"""The placeholder for an axis without a name."""

CREATORS = {"zeros", "ones", "empty", "full", "rand", "randn", "arange"}
"""Functions whose arguments are the sizes of their result."""

OF_CONFIG = {"self", "cls", "config", "cfg", "conf", "args", "params", "hparams", "opt"}
"""Words that say nothing about which of several sizes an attribute is."""


@dataclass(frozen=True)
class ObservedTensor:
    """A tensor in an expression of the code: its axes."""

    axes: Axes

    @property
    def sizes(self) -> tuple[Expression | None, ...]:
        """The sizes of the axes as expressions; None for one that is not clear."""
        return tuple(None if has_unit(axis) else whole(axis) for axis in self.axes)


@dataclass(frozen=True)
class ObservedObject:
    """Any other object: the owner of attributes."""

    object: Any


Value: TypeAlias = "Expression | ObservedTensor | ObservedObject | tuple[Value | None, ...]"


@dataclass
class FunctionFrame:
    """A function that runs."""

    function: RecordingSite  #: where it begins
    depth: int  #: its depth in the stack of traced calls
    call: ast.expr | None  #: the expression that called it; None if unknown
    values: dict[str, Value | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Word:
    """A name that the code has for a size."""

    text: str
    value: Expression  #: the size
    depth: int  #: the depth of the function, or `BY_USER`
    is_spare: bool = False  #: whether it names only what has no other name, as letters of `einsum` do


class ObservedAxes:
    """Listens to a recording, and names the axes of its steps."""

    def __init__(self, dims: Mapping[str, Sequence[str]] | None = None) -> None:
        self.flow = Flow()
        self.dims = dims or {}  #: the user's names for the axes of arguments of the call
        self.words: list[Word] = []
        self.variables: set[str] = set()  # symbols of attributes and variables
        self.kept: dict[str, set[tuple[str, int]]] = defaultdict(set)  # attributes, by their arguments
        self._stated: list[tuple[Expression, Expression]] = []  # sizes that the code says are equal
        self._rows: list[tuple[Step, Axes]] = []
        self._parts: dict[Place, Axes] = {}
        self._frames: list[FunctionFrame] = []
        self._attributes: dict[tuple[str, int], Expression] = {}
        self._variables: dict[tuple[type, str, int], Expression] = {}  # of constructors
        self._modules: set[int] = set()
        self._inputs: dict[str, Axes] = {}

    # Called by the recorder.

    def enter(self, function: RecordingSite, caller: RecordingSite | None) -> None:
        """Begin a function, called in an expression of the caller."""
        call = _parsed(caller.how) if caller is not None else None
        self._frames.append(FunctionFrame(function, len(self._frames), call))

    def leave(self) -> None:
        """End a function."""
        self._frames.pop()

    def operator(self, func: Any, args: tuple, kwargs: dict, out: Any) -> None:
        """Follow axes through an ATen operator that has run."""
        self.flow.operator(func, args, kwargs, out)

    def value(self, site: RecordingSite, value: Any) -> None:
        """Learn from the value of an expression, which may be about to be bound."""
        frame = self._frames[-1]
        if site.how == "input" and site.targets:
            self._arguments(frame, site, value)
            return
        node = _parsed(site.how)
        if node is not None:
            for tensor, sizes in self._made(node, value, frame):
                splits = isinstance(node, ast.Call) and _last_word(node.func) in REGROUPS
                self._tie(tensor, sizes, splits=splits)
        if type(value) is torch.Tensor:
            self._parts[site.place] = self.flow.of(value)
        for target in site.targets:
            known = self._value_of(node, frame) if node is not None else None
            self._bind(target, value, known, frame)

    def row(self, step: Step, tensor: torch.Tensor) -> None:
        """Keep the axes of a tensor that was recorded."""
        self._rows.append((step, self.flow.of(tensor)))

    def stands_for(self, copy: torch.Tensor, tensor: torch.Tensor) -> None:
        """Learn that the axes of a tensor are those of another."""
        self.flow.set(copy, self.flow.of(tensor))

    # What the code says about sizes.

    def _arguments(self, frame: FunctionFrame, site: RecordingSite, values: Sequence[Any]) -> None:
        """Bind the arguments of a function; numbers are what the call says."""
        (targets,) = site.targets
        names = [name for name in targets if isinstance(name, str)] if isinstance(targets, tuple) else []
        for name, value in zip(names, values, strict=True):
            known = self._argument(frame, names, name) if type(value) is int else None
            self._bind(name, value, known, frame)
            if name == "self" and is_a(value, torch.nn.Module) and id(value) not in self._modules:
                self._modules.add(id(value))
                self._weights(value, frame)
            if frame.depth == 0 and is_a(value, torch.Tensor):
                self._inputs[name] = self.flow.of(value)
                self._input(self._inputs[name], self.dims.get(name, ()))

    def _input(self, axes: Axes, words: Sequence[str]) -> None:
        """Note that the axes of an argument of the call are free, and the user's names for them."""
        self.flow.inputs |= {word for axis in axes for word in whole(axis).words}
        for word, axis in zip(words, axes, strict=False) if len(words) == len(axes) else ():
            size, value = size_of(axis), whole(axis)
            known = next((each.value for each in self.words if each.text == word), None)
            if word == NAMELESS or (known is not None and not self.flow.has_size(known, size)):
                continue
            if known is not None:
                self.flow.equate(value, known)
            self._define(word, value, BY_USER)

    def names_of_inputs(self) -> dict[str, list[str | None]]:
        """Return the names that the code has for the axes of arguments; None for one without a name.

        Of arguments that are the same tensor, only the first has names: others may be other tensors.
        """
        names = self._names(spare=False)
        of_user = {word.text for word in self.words if word.depth == BY_USER}
        found: dict[str, list[str | None]] = {}
        named: list[Axes] = []
        for label, axes in self._inputs.items():
            texts = [names.get(self.flow.resolved(whole(axis))) for axis in axes]
            is_same = axes in named
            found[label] = [None if is_same or text in of_user else text for text in texts]
            named.append(axes)
        return found

    def name_inputs(self, dims: Mapping[str, Sequence[str]]) -> None:
        """Give the axes of arguments names, after the call."""
        for label, axes in self._inputs.items():
            self._input(axes, dims.get(label, ()))

    def _weights(self, module: torch.nn.Module, frame: FunctionFrame) -> None:
        """Learn the sizes of a module's weights from its constructor."""
        constructor = FunctionFrame(frame.function, frame.depth, None, {"self": ObservedObject(module)})
        for text, attribute_name in kept_arguments(module):
            value = Relay.attribute(module, attribute_name)
            if type(value) is int:
                self.kept[text.rpartition(".")[2]].add((attribute_name, value))

        def attribute(node: ast.Attribute) -> Expression | None:
            value = self._value_of(node, constructor)
            return value if isinstance(value, Expression) else None

        known: dict[str, Expression] = {}
        for weight, sizes in sizes_of_weights(module, attribute):
            if not is_a(weight, torch.Tensor) or weight.dim() != len(sizes):
                continue
            for axis, value in zip(self.flow.of(weight), sizes, strict=True):
                size = value and self._without_unknown(
                    value, size_of(axis), known, type(module), frame.depth
                )
                symbol = whole(axis).word
                if size is None or symbol is None or not self.flow.has_size(size, size_of(axis)):
                    continue
                if symbol not in self.flow.values and symbol not in self.flow.resolved(size).words:
                    self.flow.values[symbol] = size

    def _without_unknown(
        self, value: Expression, size: int, known: dict[str, Expression], owner: type, depth: int
    ) -> Expression | None:
        """Return a size of a constructor in symbols; None if it has two variables of unknown size.

        Args:
            known: the variables whose sizes are known; gets the one that follows from this size.
        """
        symbols = {word: known.get(word, of_word(word)) for word in value.words}
        unknown = [word for word in value.words if word.startswith(UNKNOWN) and word not in known]
        if len(unknown) > 1:
            return None
        for word in unknown:
            terms = [term for term in value.terms if word in dict(term[0])]
            if len(terms) != 1 or dict(terms[0][0])[word] != 1:
                return None  # a power of the variable
            whole = Expression(tuple(terms))
            rest = (value - whole).of(symbols).size(self.flow.sizes)
            number = (size - rest) / whole.of({**symbols, word: ONE}).size(self.flow.sizes)
            if number.denominator != 1 or number < 1:
                return None
            key = owner, word, int(number)
            if key not in self._variables:
                self._variables[key] = self.flow.symbol(int(number))
            symbols[word] = known[word] = self._variables[key]
            text = word.removeprefix(UNKNOWN).rpartition(".")[2]
            self._define(text, known[word], depth, is_spare=True)
        return value.of(symbols)

    def _argument(self, frame: FunctionFrame, names: Sequence[str], name: str) -> Value | None:
        """Return the value of an argument in the caller's expressions; None if it is not clear."""
        if frame.call is None or frame.depth == 0:
            return None
        caller = self._frames[frame.depth - 1]
        function = frame.function.how.rpartition(".")[2]
        values = [
            self._value_in_call(call, names, name, caller)
            for call in ast.walk(frame.call)
            if isinstance(call, ast.Call) and _last_word(call.func) == function
        ]
        return values[0] if values and all(value == values[0] for value in values) else None

    def _value_in_call(
        self, call: ast.Call, names: Sequence[str], name: str, caller: FunctionFrame
    ) -> Expression | None:
        """Return the value that a call has for an argument; None if that is not clear."""
        place = names.index(name) - (names[0] == "self" and isinstance(call.func, ast.Attribute))
        has_stars = any(isinstance(each, ast.Starred) for each in call.args[: place + 1])
        if has_stars or any(each.arg is None for each in call.keywords):
            return None
        value = self._value_of(_passed(call, place, name), caller)
        return self.flow.resolved(value) if isinstance(value, Expression) else None

    def _bind(self, target: Target, value: Any, known: Value | None, frame: FunctionFrame) -> None:
        """Bind a value to a name, or its elements to several names."""
        if isinstance(target, str):
            frame.values[target] = self._known(target, value, known, frame)
        elif isinstance(target, tuple) and _is_sequence(value) and len(value) == len(target):
            fits = isinstance(known, tuple) and len(known) == len(value)
            items: Sequence[Any] = known if fits else [None] * len(value)  # type: ignore[assignment]
            for each, element, item in zip(target, value, items, strict=True):
                self._bind(each, element, item, frame)

    def _known(self, name: str, value: Any, known: Value | None, frame: FunctionFrame) -> Value | None:
        """Determine what is known of a value that gets a name."""
        if type(value) is int:
            if not (isinstance(known, Expression) and known.words and self.flow.has_size(known, value)):
                known = self._variable(value)
            if value >= 0 and name != NAMELESS and name.isidentifier():
                is_own = frame.function.file == written_out.__file__  # and not the user's
                self._define(name, known, frame.depth, is_spare=is_own)
            return known
        if is_a(value, torch.Tensor):
            return ObservedTensor(self.flow.of(value))
        if _is_sequence(value):
            fits = isinstance(known, tuple) and len(known) == len(value)
            return known if fits and all(type(each) is int for each in value) else None
        return ObservedObject(value)

    def _variable(self, size: int) -> Expression:
        """Return a new symbol for a number that the code has a name for."""
        value = self.flow.symbol(size)
        self.variables |= value.words
        self.flow.named |= value.words
        return value

    def _define(self, text: str, value: Expression, depth: int, *, is_spare: bool = False) -> None:
        """Note that the code has a name for a size."""
        value = self.flow.resolved(value)
        self.words.append(Word(text, value, depth, is_spare))
        if value.word is not None and not is_spare:
            self.flow.named.add(value.word)

    def _tie(self, tensor: torch.Tensor, sizes: Sequence[Value | None], *, splits: bool) -> None:
        """Give the axes of a tensor the sizes that an expression says they have.

        If the expression splits axes, and one of the results happens to be 1, it is not clear which
        axis was split into it and its neighbours; then they have these sizes, and come from nowhere.
        """
        axes = list(self.flow.of(tensor))
        if len(sizes) != len(axes):
            return
        units = [size for size, axis in zip(sizes, axes, strict=True) if whole(axis) == ONE]
        is_clear = not splits or all(size == ONE for size in units)
        for i, (axis, value) in enumerate(zip(axes, sizes, strict=True)):
            size = size_of(axis)
            fits = isinstance(value, Expression) and self.flow.has_size(value, size)
            if is_clear and fits and not has_unit(axis):
                self.flow.equate(whole(axis), value)  # type: ignore[arg-type]
                self._stated.append((whole(axis), value))  # type: ignore[arg-type]
            same = fits and self.flow.resolved(whole(axis)) == self.flow.resolved(value)  # type: ignore[arg-type]
            if fits and not same and value.words:  # type: ignore[union-attr]
                axes[i] = (Piece(size, value),)  # type: ignore[arg-type]
            elif not is_clear and not same:
                axes[i] = (Piece(size, self.flow.symbol(size)),)
        self.flow.set(tensor, tuple(axes))

    # Expressions of the code.

    def _value_of(self, node: ast.expr | None, frame: FunctionFrame) -> Value | None:
        """Return the value of an expression of sizes, as far as it is known."""
        match node:
            case ast.Constant(value=int(number)) if type(number) is int:
                return of_number(number)
            case ast.Name(id=name):
                return frame.values.get(name)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(number))):
                return of_number(-number)
            case ast.Attribute(value=owner_node, attr=attribute):
                owner = self._value_of(owner_node, frame)
                if isinstance(owner, ObservedTensor):
                    return owner.sizes if attribute == "shape" else None
                if isinstance(owner, ObservedObject):
                    return self._attribute(owner.object, node, frame)
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                return self._values_of(elements, frame)
            case ast.BinOp():
                one, other = self._value_of(node.left, frame), self._value_of(node.right, frame)
                if isinstance(one, tuple) and isinstance(other, tuple):  # shapes
                    return one + other if isinstance(node.op, ast.Add) else None
                if isinstance(one, Expression) and isinstance(other, Expression):
                    return combined(node.op, one, other)
            case ast.Subscript(value=owner_node, slice=index):
                owner = self._value_of(owner_node, frame)
                return _item(owner, index) if isinstance(owner, tuple) else None
            case ast.Call():
                return self._called(node, frame)
        return None

    def _values_of(
        self, nodes: Sequence[ast.expr], frame: FunctionFrame
    ) -> tuple[Value | None, ...] | None:
        """Return the values of several expressions; None if one with a star is unknown."""
        result: list[Value | None] = []
        for node in nodes:
            value = self._value_of(node.value if isinstance(node, ast.Starred) else node, frame)
            if not isinstance(node, ast.Starred):
                result.append(value)
            elif isinstance(value, tuple):
                result += value
            else:
                return None
        return tuple(result)

    def _attribute(self, owner: Any, node: ast.Attribute, frame: FunctionFrame) -> Value | None:
        """Return the value of an object's attribute, without running the user's code."""
        value = Relay.attribute(owner, node.attr)
        if type(value) is int and value > 0:
            path = [word for word in ast.unparse(node).split(".") if word not in OF_CONFIG]
            key = ".".join(path), value
            if key not in self._attributes:
                self._attributes[key] = self._variable(value)
            self._define(node.attr, self._attributes[key], frame.depth)
            return self._attributes[key]
        if is_a(value, torch.Tensor):
            return ObservedTensor(self.flow.of(value))
        is_plain = value is None or any(is_a(value, kind) for kind in (int, float, str))
        return None if is_plain else ObservedObject(value)

    def _called(self, node: ast.Call, frame: FunctionFrame) -> Value | None:
        """Return `x.size()`, `x.size(0)`, `len(x)`, `int(…)`, `tuple(…)` or `list(…)`."""
        name = _last_word(node.func)
        if isinstance(node.func, ast.Attribute) and name == "size":
            owner = self._value_of(node.func.value, frame)
            index = [*node.args, *(each.value for each in node.keywords)]
            if isinstance(owner, ObservedTensor):
                return _item(owner.sizes, index[0]) if index else owner.sizes
        elif isinstance(node.func, ast.Name) and len(node.args) == 1 and not node.keywords:
            value = self._value_of(node.args[0], frame)
            if name == "len" and isinstance(value, ObservedTensor) and value.axes:
                return value.sizes[0]
            return value if name in ("int", "tuple", "list") else None
        return None

    # Expressions that say the sizes of their results.

    def _made(
        self, node: ast.expr, value: Any, frame: FunctionFrame
    ) -> Iterator[tuple[torch.Tensor, Sequence[Value | None]]]:
        """Yield tensors, with the sizes that the expression says their axes have; None: unknown."""
        if isinstance(node, ast.Subscript) and type(value) is torch.Tensor:
            yield value, self._sliced(node, value.dim(), frame)
        if not isinstance(node, ast.Call):
            return
        name, is_method = _last_word(node.func), isinstance(node.func, ast.Attribute)
        of_torch = is_method and isinstance(node.func.value, ast.Name) and node.func.value.id == "torch"  # type: ignore[attr-defined]
        if name == "split" and _is_sequence(value):
            yield from self._split(node, of_torch, value, frame)
        elif type(value) is not torch.Tensor:
            return
        elif name in ("rearrange", "repeat") and isinstance(_passed(node, 1), ast.Constant):
            yield value, self._pattern(node, value, frame)
        elif name == "einsum" and node.args and isinstance(node.args[0], ast.Constant):
            self._einsum(node.args[0].value, value, frame)
        elif name == "repeat_interleave" and is_method:
            yield value, self._repeated(node, of_torch, value, frame)
        elif is_method and name == "unflatten" and len(node.args) == 2:
            sizes = self._value_of(node.args[1], frame)
            place = node.args[0]
            if isinstance(sizes, tuple) and (index := _integer(place)) is not None:
                before = index if index >= 0 else value.dim() - len(sizes) + 1 + index
                after = value.dim() - before - len(sizes)
                yield value, [*[None] * before, *sizes, *[None] * after]
        elif (name in ("view", "reshape", "expand") and is_method) or (
            (name or "").removeprefix("new_") in CREATORS and (of_torch or name not in CREATORS)
        ):
            arguments = node.args[of_torch and name == "reshape" :]
            arguments = arguments[:1] if (name or "").endswith("full") else arguments
            sizes = self._values_of(arguments, frame)
            if sizes is not None and len(sizes) == 1 and isinstance(sizes[0], tuple):
                sizes = sizes[0]
            yield value, sizes or ()

    def _split(
        self, node: ast.Call, of_torch: bool, parts: Sequence[Any], frame: FunctionFrame
    ) -> Iterator[tuple[torch.Tensor, Sequence[Value | None]]]:
        """Yield the parts of a tensor; their sizes are one, or a list."""
        place = _integer(_passed(node, of_torch + 1, "dim") or ast.Constant(0))
        sizes = self._value_of(_passed(node, of_torch), frame)
        several = sizes if isinstance(sizes, tuple) else (sizes,) * len(parts)
        if place is None or len(several) != len(parts):
            return
        for part, size in zip(parts, several, strict=True):
            if type(part) is torch.Tensor:
                axes: list[Value | None] = [None] * part.dim()
                axes[place] = size
                yield part, axes

    def _repeated(
        self, node: ast.Call, of_torch: bool, value: torch.Tensor, frame: FunctionFrame
    ) -> list[Value | None]:
        """Return the sizes of `x.repeat_interleave(n, dim)`: the repeated axis is n times as long."""
        place = _integer(_passed(node, of_torch + 1, "dim"))
        times = self._value_of(_passed(node, of_torch, "repeats"), frame)
        sizes: list[Value | None] = [None] * value.dim()
        if place is None or not -value.dim() <= place < value.dim() or not isinstance(times, Expression):
            return sizes
        *before, last = self.flow.of(value)[place]  # the operators are those of an axis that is merged
        if before and self.flow.has_size(times, last.size):
            sizes[place] = self.flow.resolved(whole(tuple(before))) * times
        return sizes

    def _sliced(self, node: ast.Subscript, n_axes: int, frame: FunctionFrame) -> list[Value | None]:
        """Return the sizes of `x[:T, n : n + 1]`."""
        indices = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        owner = self._value_of(node.value, frame)
        left = [*owner.sizes] if isinstance(owner, ObservedTensor) else []  # of x from here on
        sizes: list[Value | None] = []
        for each in indices:
            if isinstance(each, ast.Slice):
                whole = left.pop(0) if left else None
                sizes.append(self._length(each, whole, frame))
            elif isinstance(each, ast.Constant) and each.value is None:
                sizes.append(None)
            elif isinstance(each, ast.Constant) and each.value is ...:
                n_after = sum(isinstance(e, ast.Slice) for e in indices[indices.index(each) :])
                sizes += [None] * (n_axes - len(sizes) - n_after)
                left = left[len(left) - n_after :]
            elif _integer(each) is None and not isinstance(self._value_of(each, frame), Expression):
                return []  # it may be a tensor
            else:
                left = left[1:]
        return [*sizes, *[None] * (n_axes - len(sizes))]

    def _length(
        self, part: ast.Slice, size: Expression | None, frame: FunctionFrame
    ) -> Expression | None:
        """Return the length of a slice of an axis of this size; None if it is not known."""
        low = self._value_of(part.lower, frame) if part.lower else of_number(0)
        high = self._value_of(part.upper, frame) if part.upper else size
        if part.step or not isinstance(low, Expression) or not isinstance(high, Expression):
            return None
        return high - low

    def _pattern(self, node: ast.Call, value: torch.Tensor, frame: FunctionFrame) -> list[Value | None]:
        """Return the sizes that a pattern of einops names, and their names as far as they are new."""
        text = str(node.args[1].value).partition("->")[2]  # type: ignore[attr-defined]
        axes = [each.strip("()").split() for each in re.findall(r"\([^()]*\)|[^\s()]+", text)]
        if ["..."] in axes:
            return []
        lengths = {each.arg: self._value_of(each.value, frame) for each in node.keywords}
        known = self.flow.of(value)
        is_clear = len(axes) == len(known) and ONE not in map(whole, known)
        for letters, axis in zip(axes, known, strict=False):
            is_clear = is_clear and len(letters) == len(axis)
        for size in lengths.values():
            is_clear = is_clear and not (isinstance(size, Expression) and self.flow.has_size(size, 1))
        if not is_clear:  # one that is 1 was split from another, or merged with it
            self.flow.set(value, tuple(self.flow.new(size_of(axis)) for axis in known))
            return []
        for letters, axis in zip(axes, known, strict=True):
            for letter, factor in zip(letters, axis, strict=True):
                size = lengths.get(letter)
                if isinstance(size, Expression) and self.flow.has_size(size, factor.size):
                    self.flow.equate(factor.value, size)
                elif letter.isidentifier():
                    self._define(letter, factor.value, frame.depth, is_spare=True)
        return [lengths.get(letters[0]) if len(letters) == 1 else None for letters in axes]

    def _einsum(self, equation: Any, value: torch.Tensor, frame: FunctionFrame) -> None:
        """Note the letters of an equation as names for the axes of its result."""
        axes = [*str(equation).partition("->")[2].replace(" ", "")]
        if len(axes) == value.dim() and all(each.isidentifier() for each in axes):
            for axis, known in zip(axes, self.flow.of(value), strict=True):
                if len(known) == 1:
                    self._define(axis, whole(known), frame.depth, is_spare=True)

    # Names.

    def values_of(self, name: str) -> set[Expression]:
        """Return the sizes for which the user or the code has this name, or keeps it under another."""
        values = {word.value for word in self.words if word.text == name}
        values |= {value for key, value in self._attributes.items() if key in self.kept[name]}
        return {self.flow.resolved(value) for value in values}

    def sizes_by_step(self) -> dict[int, list[Expression | None]]:
        """Return the sizes of the axes of each step, by its identity; None for one that is not clear."""
        self._use_requirements()
        required = [pair for pairs in self.flow.equal for each in pairs for pair in _sizes(*each)]
        for one, other in [*self._stated, *required]:
            self._join(one, other)
        return {id(step): list(map(self._size, axes)) for step, axes in self._rows}

    def _join(self, one: Expression, other: Expression) -> None:
        """Make two equal sizes one, although the code has names for both: `d` and `self.d_feat`.

        Unless two axes of one tensor, until now different, would be one: that may be a coincidence.
        """
        one, other = self.flow.resolved(one), self.flow.resolved(other)
        if one == other or len(one.terms) != 1 or len(other.terms) != 1:
            return
        ratio = one * other.inverse()
        ((powers, _),) = ratio.terms
        single = [word for word, power in powers if abs(power) == 1]
        if not single:
            return
        symbol = max(single, key=lambda word: int(word[1:]))
        value = self.flow.solved(ratio, symbol)
        if value is not None:
            self._set_unless_axes_meet(symbol, value)

    def _set_unless_axes_meet(self, symbol: str, value: Expression) -> None:
        """Note what a symbol is, unless two axes of one tensor, until now different, would be one."""
        resolved = self.flow.resolved

        def is_symbol_in(axes: Axes) -> bool:
            return any(symbol in resolved(whole(axis)).words for axis in axes)

        rows = list(filter(is_symbol_in, self._axes_of_rows))

        def counts() -> list[int]:
            return [len({resolved(whole(axis)) for axis in axes}) for axes in rows]

        before = counts()
        self.flow.values[symbol] = value
        if counts() != before:
            del self.flow.values[symbol]

    def sizes_of_part(self, part: FailedTensor) -> list[Expression | None] | None:
        """Return the sizes of the axes of an expression; None if they are unknown."""
        axes = self._parts.get(part.place)
        known = axes is not None and tuple(map(size_of, axes)) == part.shape
        return list(map(self._size, axes or ())) if known else None

    def name_axes(self) -> dict[str, int]:
        """Set the dims of all steps, if any axis has a name; return the sizes of these names."""
        self._use_requirements()
        names = self.names = self._names()
        dims = [tuple(self._text(axis) for axis in axes) for _, axes in self._rows]
        if any(not name.isdigit() for each in dims for name in each):
            for (step, _), each in zip(self._rows, dims, strict=True):
                step.dims = each
        used = (word for each in dims for name in each for word in re.findall(r"[^\W\d]\w*", name))
        sizes = {word: int(value.size(self.flow.sizes)) for value, word in names.items()}
        return {word: sizes[word] for word in dict.fromkeys(used)}

    def dims_of(self, part: FailedTensor) -> tuple[str, ...] | None:
        """Return the dims of an expression; of a name, those of its last row."""
        axes = self._parts.get(part.place)
        if axes is not None and tuple(map(size_of, axes)) == part.shape:
            return tuple(map(self._text, axes))
        for step, _ in reversed(self._rows):
            if (step.name, step.shape) == (part.text, part.shape):
                return step.dims
        return tuple(map(str, part.shape))

    def _names(self, *, spare: bool = True) -> dict[Expression, str]:
        """Return the names that stand for one size alone, preferring those of outer functions."""
        names: dict[Expression, str] = {}
        for is_spare in (False, True) if spare else (False,):
            values: dict[str, dict[Expression, int]] = defaultdict(dict)
            for word in sorted(self.words, key=lambda word: word.depth):
                value = self.flow.resolved(word.value)
                if word.is_spare == is_spare:
                    values[word.text].setdefault(value, word.depth)
            taken = {*names.values()}
            for text, each in values.items():
                outermost = [value for value, depth in each.items() if depth == min(each.values())]
                if len(outermost) == 1 and outermost[0].words and text not in taken:
                    (value,) = outermost
                    if not is_spare or _in_words(value, names) is None:
                        names.setdefault(value, text)
        return names

    def _use_requirements(self) -> None:
        """Learn from axes that an operator requires to be equal what those without a name are."""
        flow = self.flow
        self._axes_of_rows = {axes for _, axes in self._rows}
        names = self._names(spare=False)
        spare = {word.text for word in self.words if word.is_spare}
        lone = {
            value.word for value, text in names.items() if value.word is not None and text not in spare
        }
        flow.named = self.variables | lone
        for pairs in flow.equal:
            sizes = [pair for one, other in pairs for pair in _sizes(one, other)]
            sizes = [(flow.resolved(one), flow.resolved(other)) for one, other in sizes]
            sizes = [(one, other) for one, other in sizes if one != other]
            known = flow.named | flow.inputs  # or free
            unknown = all(other.word not in {None, *known} for _, other in sizes)
            for one, other in sizes:
                self._learn(one, other, may_repeat=unknown)

    def _learn(self, one: Expression, other: Expression, *, may_repeat: bool) -> None:
        """Learn from a requirement, unless two axes of one tensor, until now different, get one name."""
        values = self.flow.values
        learnt = len(values)
        self.flow.equate(one, other, join=True)
        if len(values) == learnt or may_repeat:
            return
        self._set_unless_axes_meet(*values.popitem())

    def _text(self, axis: Axis) -> str:
        """Return the name of an axis, or its size."""
        value = self._size(axis)
        return (value and _in_words(value, self.names)) or str(size_of(axis))

    def _size(self, axis: Axis) -> Expression | None:
        """Return the size of an axis; None if it is not clear."""
        pieces = [piece for piece in axis if piece.value != ONE] if len(axis) > 1 else axis
        if has_unit(tuple(pieces)):
            return None
        value = self.flow.resolved(whole(tuple(pieces)))
        return value if self.flow.has_size(value, size_of(axis)) else None


def _in_words(value: Expression, names: Mapping[Expression, str]) -> str | None:
    """Return an expression in terms of names; None if one of its symbols has none."""
    if value in names:
        return names[value]
    words = {symbol: names.get(of_word(symbol)) for symbol in value.words}
    if not words or None in words.values():
        return None
    named = value.of({symbol: of_word(str(word)) for symbol, word in words.items()})
    terms = [(_counts_first(powers), number) for powers, number in named.terms]
    return str(Expression(tuple(sorted(terms, key=lambda term: not term[0]))))


def _counts_first(powers: Powers) -> Powers:
    """Return factors with counts before widths, as in `n_head·d_head`."""
    return tuple(sorted(powers, key=lambda each: each[0].startswith("d_") or each[0].endswith("_dim")))


def _sizes(one: Axis, other: Axis) -> list[tuple[Expression, Expression]]:
    """Return pairs of sizes that are equal if two axes are: factor by factor if they agree."""
    if [piece.size for piece in one] == [piece.size for piece in other]:
        return [(a.value, b.value) for a, b in zip(one, other, strict=True)]
    return [(whole(one), whole(other))]


def _is_sequence(value: object) -> TypeGuard[tuple[Any, ...] | list[Any]]:
    """Check whether a value is a tuple or list whose elements can be read without running user code."""
    return class_attribute(value, "__iter__") in (tuple.__iter__, list.__iter__)


def _item(values: tuple[Value | None, ...], index: ast.expr) -> Value | None:
    """Return `values[index]`, where the index is a number or a slice of numbers."""
    if isinstance(index, ast.Slice):
        low = _integer(index.lower) if index.lower is not None else 0
        high = _integer(index.upper) if index.upper is not None else len(values)
        return values[low:high] if None not in (low, high) and not index.step else None
    place = _integer(index)
    return values[place] if place is not None and -len(values) <= place < len(values) else None


def _integer(node: ast.expr | None) -> int | None:
    """Return the value of a number in the source."""
    match node:
        case ast.Constant(value=int(number)) if type(number) is int:
            return number
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(number))):
            return -number
    return None


def _passed(call: ast.Call, place: int, name: str | None = None) -> ast.expr | None:
    """Return the argument of a call that stands at a place or has a name; None if there is none."""
    by_name = (each.value for each in call.keywords if name is not None and each.arg == name)
    return next(by_name, call.args[place] if 0 <= place < len(call.args) else None)


def _last_word(node: ast.expr) -> str | None:
    """Return the last word of `a.b.name`."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


@lru_cache(maxsize=4096)
def _parsed(text: str) -> ast.expr | None:
    """Return the syntax tree of an expression; None if it is none."""
    try:
        return ast.parse(f"({text})", mode="eval").body  # with a star, too
    except (SyntaxError, ValueError, RecursionError):
        return None
