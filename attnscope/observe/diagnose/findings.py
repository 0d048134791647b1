"""Likely mistakes in attention, found from the operators of a run.

Each tensor that comes from a matrix product or a softmax has a recorded origin, which follows
it through views, masks, scalings and casts until it is used: the output of a product that enters
a softmax is scores; the output of a softmax that enters a product is attention.
"""

from __future__ import annotations

import linecache
import math
import re
import sys
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import product
from typing import Any, NamedTuple

import torch

from attnscope.attention.mask_rules import HIDES
from attnscope.document.result import Finding
from attnscope.observe.axes.from_other_sizes import Inferred, SizedRun, regroupings
from attnscope.observe.axes.symbols import Symbols
from attnscope.observe.diagnose.fully_masked import FullyMasked, flat
from attnscope.observe.instrument.failure import Shape
from attnscope.observe.instrument.rewrite import Place
from attnscope.observe.operator_names import ATEN_PRODUCTS, ATEN_SAME, ATEN_SOFTMAXES, ATEN_VIEWS
from attnscope.observe.torch_internals.dispatch import has_values, is_derivative, unseen
from attnscope.observe.trace import Step
from attnscope.units import bytes_text

LARGE = 64 * 2**20
"""The minimal size of a silent copy that is reported, in bytes."""

Line = tuple[str, int]
"""A file and a line number."""


class Triangle(NamedTuple):
    """The part of a matrix that `tril` or `triu` has set to zero.

    Attributes:
        is_upper: whether it is the part above the diagonal.
        diagonal: the last, or first, diagonal that is kept.
        shape: the rows and columns of the matrix.
        line: where it was set to zero.
    """

    is_upper: bool
    diagonal: int
    shape: tuple[int, int]
    line: Line

    def of(self, tensor: torch.Tensor, rows_and_columns: tuple[MergedAxis, ...]) -> torch.Tensor | None:
        """Return these elements of a tensor of such matrices; None if it has others."""
        places = [axis.place for axis in rows_and_columns]
        if tuple(tensor.shape[place] for place in places) != self.shape:
            return None
        is_zero = torch.ones(self.shape, dtype=torch.bool, device=tensor.device)
        is_zero = is_zero.triu(self.diagonal + 1) if self.is_upper else is_zero.tril(self.diagonal - 1)
        return tensor.movedim(places, (-2, -1))[..., is_zero]


class MergedAxis(NamedTuple):
    """An axis of a tensor that views may have merged with others.

    Attributes:
        place: the index of the tensor's axis that contains it.
        size: its size.
        behind: the number of elements behind it within that axis: 1, unless axes were merged behind it.
    """

    place: int
    size: int
    behind: int = 1


@dataclass(frozen=True)
class TensorOrigin:
    """The origin of a tensor.

    Attributes:
        factor: the product of the numbers that have scaled it since its projection; None if unknown.
        width: the size of the axis that its product summed over; None if it comes from no product of
            activations.
        pair: its axes of queries and of keys, if it comes from a product of activations.
        weight: whether it is a parameter of a module, or a product of some.
        repeated: whether an axis of it was expanded, as that of heads is before their projections.
        widths: other sizes that its product may be said to sum over, because (q·W)·k is q·(W·k). Of a
            factor: the sizes of its last axis before each head was multiplied by a matrix.
        sums_to_one: the axis of the softmax that it comes from.
        softmax_dim: that axis where the softmax ran, counted from the last, which is -1.
        log: whether it is the logarithm of a softmax.
        dropped: whether dropout or a mixture of heads has been applied since.
        masked: whether a mask has been applied.
        changed: the line that has changed single elements since.
        zeroed: the scores that are zero where a mask belongs.
        noise: whether it is the random mask of dropout.
        line: the line of the softmax.
        scaled: the line that multiplied it by a number.
        shifted: whether its rows were shifted by a view and a slice, and not viewed again.
    """

    factor: float | None = 1.0
    width: int | None = None
    pair: tuple[MergedAxis, ...] = ()
    weight: bool = False
    repeated: bool = False
    widths: tuple[int, ...] = ()
    sums_to_one: MergedAxis | None = None
    softmax_dim: int = -1
    log: bool = False
    dropped: bool = False
    masked: bool = False
    changed: Line | None = None
    zeroed: Triangle | None = None
    noise: bool = False
    line: Line | None = None
    scaled: Line | None = None
    shifted: bool = False


PLAIN = TensorOrigin()
WEIGHT = TensorOrigin(weight=True)
UNKNOWN = TensorOrigin(factor=None)

FUSED = re.compile(r"_scaled_dot_product_\w*attention\w*|_fused_sdp_choice")
MASKS = {"masked_fill", "where", "add", "sub"}
COPIES = {"clone", "copy_", "contiguous", "_to_copy"}
EMPTY = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
FACTORY = re.compile(r"new_|\w+_like$")  # they depend on the shape of their input
UNCHANGED = ATEN_SAME | ATEN_VIEWS
UNCHANGED |= {"permute", "transpose", "t", "unsqueeze", "expand", "select", "slice"}


class Watcher:
    """Receives every operator and every row of one run, and collects findings.

    Args:
        files: the files whose lines findings name.

    Attributes:
        drawn: the random inputs, and what was computed from them without a matrix product, by id.
    """

    def __init__(self, files: Collection[str]) -> None:
        self.files = files
        self.drawn: dict[int, weakref.ref[torch.Tensor]] = {}
        self._findings: list[Finding] = []
        self._fully_masked = FullyMasked()
        self._with_masked_rows: set[Line | None] = set()  # softmaxes with fully masked rows
        self._unnormalized: dict[Line, list[Finding]] = {}
        self._summed: set[Line] = set()  # lines whose rows of attention were summed, to divide by
        self.amounts: dict[tuple, float] = {}  # each scale and its width, by line
        self.views: dict[tuple, tuple[tuple[int, ...], tuple[int, ...]]] = {}  # those that regroup axes
        self.has_nan = False
        self._origins: dict[int, tuple[weakref.ref[torch.Tensor], TensorOrigin]] = {}
        self._bounds: dict[
            int, tuple[weakref.ref[torch.Tensor], float]
        ] = {}  # upper bounds of absolute values
        self._empty: dict[int, weakref.ref[torch.Tensor]] = {}  # uninitialized tensors
        self._overwritten = False  # in-place operators ran: origins of masks may be out of date
        self._inverted: set[Line | None] = set()  # softmaxes whose results were multiplied by each other
        self.shifts: set[Line] = set()  # the lines of regrouped views that shift rows
        self._regrouped: dict[int, tuple[weakref.ref[torch.Tensor], tuple]] = {}  # the keys of views
        self._slices: dict[int, tuple[weakref.ref[torch.Tensor], weakref.ref[torch.Tensor]]] = {}

    # Called by the recorder.

    def operator(self, func: Any, args: tuple, kwargs: dict, out: Any) -> None:
        """Update the origins after an ATen operator."""
        name, rule, mutable = _known(func)
        if mutable:
            self._bounds.clear()
            self._overwritten = True
        if self.drawn and name not in ATEN_PRODUCTS and not FACTORY.match(name):
            self._depends(args, out)
        if name in COPIES:
            self._copied(name, args, out)
        elif name in EMPTY:
            self._empty[id(out)] = weakref.ref(out)
        if is_derivative():  # mistakes are made in the forward pass
            return
        if self._fully_masked.rows and not FACTORY.match(name):
            self._fully_masked.follow(func, args, kwargs, out)
        if rule is not None:
            rule(self, args, kwargs, out)
            self._bound_result(name, args, out)

    @property
    def findings(self) -> list[Finding]:
        """What was found, without what the code handles later."""
        lines = [line for line in self._unnormalized if line not in self._summed]
        unnormalized = [each for line in lines for each in self._unnormalized[line]]
        return list(dict.fromkeys([*self._findings, *self._fully_masked.findings, *unnormalized]))

    def row(self, step: Step, tensor: torch.Tensor) -> None:
        """Report the first named tensor that contains NaN or inf."""
        if self.has_nan or step.view_of or step.same_as or not has_values(tensor):
            return
        if not tensor.is_floating_point() or tensor.element_size() == 1 or not tensor.numel():
            return
        empty = self._empty.get(id(tensor))
        if (empty is not None and empty() is tensor) or self._bound(tensor, look=True) is not None:
            return
        with unseen():
            nan, inf = int(tensor.isnan().sum()), int((tensor == math.inf).sum())
        if nan or inf:
            what = " and ".join(f"{n} {word}" for n, word in ((nan, "NaN"), (inf, "inf")) if n)
            is_input = step.how == "input"
            has = f"the input {step.name} has" if is_input else f"{step.name} is the first tensor with"
            message = f"{has} {what} among its {tensor.numel()} values"
            if not self._fully_masked.add_consequence(tensor, Finding(message, step.line)):
                self.has_nan = True
                self._find(message, (step.file or "", step.line or 0))

    # Random inputs: what a mask hides is no mistake if its values are random.

    def draws(self, tensors: Iterable[torch.Tensor]) -> None:
        """Mark inputs as random."""
        self.drawn.update((id(each), weakref.ref(each)) for each in tensors)

    def _depends(self, args: tuple, out: Any) -> None:
        """Mark an operator's output as random if one of its inputs is."""
        if isinstance(out, torch.Tensor) and any(map(self._is_drawn, flat(args))):
            self.drawn[id(out)] = weakref.ref(out)

    def _is_drawn(self, value: Any) -> bool:
        known = self.drawn.get(id(value)) if isinstance(value, torch.Tensor) else None
        return known is not None and known() is value

    # Bounds: results of small numbers are finite, and their values need not be read.

    def _bound_result(self, name: str, args: tuple, out: Any) -> None:
        """Record a bound of an operator's output, if its inputs are bounded."""
        if not isinstance(out, torch.Tensor) or not out.is_floating_point():
            return
        bound: float | None = None
        if name in ATEN_PRODUCTS:
            one, other = ATEN_PRODUCTS[name]
            factors = [self._bound(args[i]) for i in (one, other)]
            added = self._bound(args[0]) if one else 0.0
            if None not in (*factors, added):
                bound = args[one].shape[-1] * math.prod(factors) + added  # type: ignore[arg-type]
        elif name in ATEN_SOFTMAXES:
            bound = self._bound(args[0]) and 1.0
        elif name in UNCHANGED:
            bound = self._bound(args[0])
        elif name in ("mul", "div") and isinstance(args[1], int | float) and args[1]:
            before = self._bound(args[0])
            number = abs(args[1])
            bound = before and (before * number if name == "mul" else before / number)
        if bound is not None and bound < torch.finfo(out.dtype).max / 2:
            self._bounds[id(out)] = weakref.ref(out), bound

    def _bound(self, tensor: Any, *, look: bool = False) -> float | None:
        """Return an upper bound of a tensor's absolute values; None if unknown or not finite.

        Args:
            tensor: the tensor.
            look: whether to read its values; those of parameters are always read.
        """
        if not isinstance(tensor, torch.Tensor):
            return None
        known = self._bounds.get(id(tensor))
        if known is not None and known[0]() is tensor:
            return known[1]
        if not look and not isinstance(tensor, torch.nn.Parameter):
            return None
        if not has_values(tensor) or not tensor.numel():
            return None
        bound = _largest(tensor)
        if bound is None:
            return None
        self._bounds[id(tensor)] = weakref.ref(tensor), bound
        return bound

    # Notes.

    def _origin(self, tensor: Any) -> TensorOrigin:
        known = self._origins.get(id(tensor))
        if known is not None and known[0]() is tensor:
            return known[1]
        return WEIGHT if isinstance(tensor, torch.nn.Parameter) else PLAIN

    def _set(self, tensor: Any, origin: TensorOrigin) -> None:
        if isinstance(tensor, torch.Tensor) and (origin is not PLAIN or id(tensor) in self._origins):
            self._origins[id(tensor)] = weakref.ref(tensor), origin

    def _line(self) -> Line:
        """Return the source line that is running."""
        frame = sys._getframe(2)
        while frame is not None and frame.f_code.co_filename not in self.files:
            frame = frame.f_back  # type: ignore[assignment]
        return (frame.f_code.co_filename, frame.f_lineno) if frame is not None else ("", 0)

    def _find(self, message: str, line: Line) -> None:
        finding = Finding(message, line[1] or None)
        if finding not in self._findings:
            self._findings.append(finding)

    # Products compute scores, and apply attention to values.

    def product(self, a: torch.Tensor, b: torch.Tensor, out: Any, *, added: bool = False) -> None:
        """Handle a matrix product, over the last axis of `a` and the last but one of `b`.

        Args:
            a, b: the factors.
            out: the product.
            added: whether something was added to the product, which may be a mask.
        """
        left, right = self._origin(a), self._origin(b)
        rows, columns = a.dim() - 1, max(b.dim() - 2, 0)  # the axes that are summed over
        mixed = [n for n, axis in ((left, rows), (right, columns)) if _mixes(n, axis)]
        factor = _times(left.factor, right.factor)
        if mixed:
            dropped = mixed[0].dropped or mixed[0].sums_to_one is not None
            origin = replace(mixed[0], factor=factor, dropped=dropped)
            self._set(out, origin if len(mixed) == 1 else UNKNOWN)
        elif left.weight or right.weight:  # a projection
            is_plain = (left.factor, right.factor) == (1.0, 1.0)
            both = left.weight and right.weight
            widths = _reassociated(a, left, right)
            self._set(
                out, TensorOrigin(factor if both or is_plain else None, weight=both, widths=widths)
            )
        elif left.sums_to_one is not None and right.sums_to_one is not None:
            self._inverted |= {left.line, right.line}
        elif left.sums_to_one is not None or right.sums_to_one is not None:
            self._used(a, left, rows)
            self._used(b, right, columns)
        else:
            last = [MergedAxis(place, size) for place, size in enumerate(out.shape)][-2:]
            origin = TensorOrigin(
                factor=factor,
                width=a.shape[-1],
                pair=tuple(last) if len(last) == 2 else (),
                masked=added,
                scaled=left.scaled or right.scaled,
                widths=_reassociated(a, left, right),
            )
            self._set(out, origin)

    def _used(self, weights: torch.Tensor, origin: TensorOrigin, axis: int) -> None:
        """Check attention that is multiplied by values, summing over one of its axes.

        The softmax of a projection, as in linear attention, is not checked; nor is attention that is
        multiplied by attention, as in its pseudo-inverse.
        """
        if origin.sums_to_one is None or origin.log or all(axis != each.place for each in origin.pair):
            return
        if origin.line in self._inverted:
            return
        self._visible(weights, origin)
        place, size, _ = origin.sums_to_one
        is_part = weights.shape[place] != size
        if place != axis:
            normalized = (
                origin.softmax_dim if is_part else place - weights.dim()
            )  # a part of a merged axis
            self._find(
                f"the softmax normalizes axis {normalized} (size {size}), but line"
                f" {self._line()[1]} contracts over axis"
                f" {axis - weights.dim()} (size {weights.shape[axis]}): the weights of one query do not"
                " sum to one. Is the dim of the softmax right?",
                origin.line or self._line(),
            )
        elif origin.changed and not origin.dropped and not is_part and has_values(weights):
            with unseen():
                sums = weights.sum(dim=axis, dtype=torch.float32)
                if origin.line in self._with_masked_rows:
                    sums = torch.where(sums == 0, 1, sums)  # a query that sees no key
                far = int(((sums - 1).abs() > 1e-2).sum())
                low, high = (float(sums.min()), float(sums.max())) if far else (1.0, 1.0)
            if far:
                least, most = f"{low:.3g}", f"{high:.3g}"
                sums_to = f" (sums: {least})" if least == most else f" (sums: {least} to {most})"
                message = (
                    f"{far} of {sums.numel()} rows of attention do not sum to one{sums_to}: this"
                    " line changes them after the softmax. Apply masks before the softmax"
                )
                found = Finding(message, origin.changed[1] or None)
                self._unnormalized.setdefault(origin.changed, []).append(found)

    def _visible(self, weights: torch.Tensor, origin: TensorOrigin) -> None:
        """Check that keys have no weight whose scores were set to zero as if that hid them."""
        if origin.zeroed is None or not has_values(weights):
            return
        with unseen():
            hidden = origin.zeroed.of(weights, origin.pair)
            count = 0 if hidden is None else int((hidden > 0).sum())
        if count:
            self._find(
                f"{count} weights are not zero although this line sets their scores to zero: it hides no"
                " key, because exp(0) is 1. Fill these scores with -inf before the softmax",
                origin.zeroed.line,
            )

    def softmax(self, x: torch.Tensor, dim: int, out: torch.Tensor, *, log: bool = False) -> None:
        """Handle a softmax or log-softmax, whose input may be scores."""
        origin, line = self._origin(x), self._line()
        axis = dim % max(x.dim(), 1)
        if origin.width is not None:
            self._scaled(origin, origin.scaled or line)
        masked = origin.masked or origin.width is None or self._overwritten  # or may be masked
        if masked and has_values(x) and x.numel():
            with unseen():
                is_masked = x.amax(dim=axis) <= HIDES
                count = int(is_masked.sum()) if bool(is_masked.any()) else 0
            if count:
                self._with_masked_rows.add(line)
            if count and self._is_drawn(x):
                self.has_nan = True  # which that causes
            elif count:
                message = (
                    f"{count} of {is_masked.numel()} rows of the scores are fully masked: no key is"
                    " visible to them, so their attention weights are meaningless"
                )
                self._fully_masked.add(out, is_masked.unsqueeze(axis), Finding(message, line[1] or None))
        over = MergedAxis(axis, x.shape[axis] if x.dim() else 1)
        dim_from_end = axis - max(x.dim(), 1)
        self._set(
            out,
            TensorOrigin(
                sums_to_one=over,
                softmax_dim=dim_from_end,
                pair=origin.pair,
                line=line,
                log=log,
                zeroed=origin.zeroed if self._is_zeroed(x, origin) else None,
            ),
        )

    @staticmethod
    def _is_zeroed(x: torch.Tensor, origin: TensorOrigin) -> bool:
        """Check whether the scores that were set to zero are still zero."""
        if origin.zeroed is None or not has_values(x):
            return False
        with unseen():
            part = origin.zeroed.of(x, origin.pair)
            return part is not None and not bool(part.any()) and bool(x.any())

    def fused(self, args: tuple, kwargs: dict, out: Any) -> None:
        """Handle a fused operator, which computes scores and attention."""
        query, key = args[0], args[1]
        masks = [
            each for each in (kwargs.get("attn_mask"), *args[3:4]) if isinstance(each, torch.Tensor)
        ]
        for mask in masks:
            self._check_mask(mask, out[0] if isinstance(out, tuple) else out)
        origin, other = self._origin(query), self._origin(key)
        scale = kwargs.get("scale")
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        factor = _times(scale, _times(origin.factor, other.factor))
        scaled = origin.scaled or other.scaled or self._line()
        widths = (*origin.widths, *other.widths)
        self._scaled(TensorOrigin(factor=factor, width=query.shape[-1], widths=widths), scaled)

    def _check_mask(self, mask: torch.Tensor, out: torch.Tensor) -> None:
        """Check that a mask that a fused operator adds to the scores leaves each query a key."""
        if not has_values(mask) or not mask.is_floating_point() or not mask.numel():
            return
        drawn = self._is_drawn(mask)
        for axis, stride in enumerate(mask.stride()[:-1]):
            mask = mask if stride else mask.narrow(axis, 0, 1)  # an expanded axis repeats its rows
        with unseen():
            rows = mask.amax(dim=-1, keepdim=True) <= HIDES
            count = int(rows.sum())
            is_zero = bool(((out == 0) | ~rows).all())
        if count and drawn:
            self.has_nan = True  # which that causes
        elif count:
            what = "the kernel returns 0 for them" if is_zero else "their attention is meaningless"
            message = (
                f"{count} of {rows.numel()} rows of the mask are fully masked: no key is visible to"
                f" them, so {what}"
            )
            self._fully_masked.add(out, rows, Finding(message, self._line()[1] or None))

    def _scaled(self, origin: TensorOrigin, line: Line) -> None:
        if origin.factor not in (None, 0.0, 1.0):
            turn = sum(1 for kind, where, _ in self.amounts if (kind, where) == ("scale", line))
            self.amounts["scale", line, turn] = origin.factor or 0.0
            self.amounts["width", line, turn] = origin.width or 0
            if any(_is_scale_of(width, origin.factor) for width in origin.widths):
                self.amounts["reassociated", line, turn] = 1.0

    # Copies.

    def _copied(self, name: str, args: tuple, out: Any) -> None:
        source = args[1] if name == "copy_" else args[0]
        if not isinstance(out, torch.Tensor) or not isinstance(source, torch.Tensor):
            return
        size = out.numel() * out.element_size()
        if size < LARGE or name == "copy_" or (name == "_to_copy" and source.dtype != out.dtype):
            return
        line = self._line()
        if ".clone(" in linecache.getline(*line):  # an explicit copy
            return
        expanded = any(
            stride == 0 and n > 1 for stride, n in zip(source.stride(), source.shape, strict=True)
        )
        why = "is an expanded view, which takes no memory" if expanded else "is not contiguous"
        self._find(f"this copies {bytes_text(size)}: its input {why}. The copy may be intended", line)

    # Propagation of origins.

    def keeps(self, x: Any, out: Any) -> None:
        """Handle an operator that keeps values and axes."""
        self._set(out, self._origin(x))

    def moves(self, x: Any, out: Any, axes: list[int]) -> None:
        """Handle permuted axes: output axis i is input axis `axes[i]`, or new if that is -1."""
        places = {old: new for new, old in enumerate(axes)}
        self._set(out, _with_axes(self._origin(x), lambda axis: _at(axis, places.get(axis.place))))

    def viewed(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """Handle a view: an axis is identified by the number of elements behind it.

        Parameters may be regrouped: they learn what their elements mean.
        """
        origin = self._origin(x)
        on_purpose = origin.shifted or origin.weight
        if not on_purpose and x.shape != out.shape and _regroups(tuple(x.shape), tuple(out.shape)):
            line = self._line()
            turn = sum(where == line for where, _ in self.views)
            self.views[line, turn] = tuple(x.shape), tuple(out.shape)
            self._regrouped[id(out)] = weakref.ref(out), (line, turn)
        before, after = tuple(x.shape), tuple(out.shape)
        kept = _with_axes(origin, lambda axis: _moved(axis, before, after))
        kept = replace(kept, shifted=False) if origin.shifted else kept
        self._set(out, kept if len(kept.pair) == len(origin.pair) else PLAIN)

    def cut(self, x: torch.Tensor, out: torch.Tensor, axis: int) -> None:
        """Handle a slice; cutting one row off a regrouped view is the usual trick to shift rows.

        The next view, which regroups the rest, is a part of the trick.
        """
        self._slices[id(out)] = weakref.ref(out), weakref.ref(x)
        origin = self._origin(x)
        known = self._regrouped.get(id(x))
        if known is not None and known[0]() is x and out.shape[axis] == x.shape[axis] - 1:
            self.views.pop(known[1], None)
            self.shifts.add(known[1][0])
            origin = replace(origin, shifted=True)
        self._set(out, origin)

    def times(self, x: Any, y: Any, out: Any, *, divided: bool = False) -> None:
        """Handle a multiplication or division by a number or a tensor."""
        if not isinstance(x, torch.Tensor):
            x, y = y, x
        origin = self._origin(x)
        number = _number(y)
        if number is not None:
            factor = origin.factor
            if factor is not None:
                factor = (factor / number if divided else factor * number) if number else 0.0
            changed = origin.changed
            if origin.sums_to_one is not None and not origin.dropped and number != 1:
                changed = changed or self._line()
            self._set(out, replace(origin, factor=factor, changed=changed, scaled=self._line()))
            return
        other = self._origin(y)
        if other.noise or origin.noise:
            kept = origin if other.noise else other
            self._set(out, replace(kept, dropped=True) if kept.sums_to_one is not None else kept)
        elif origin.sums_to_one is not None or other.sums_to_one is not None:
            first = origin if origin.sums_to_one is not None else other
            if divided:  # probably renormalized
                self._set(out, PLAIN)
            else:
                self._set(out, replace(first, changed=first.changed or self._line()))
        else:  # by a norm or by positions: the factor is unknown
            known = origin.factor not in (None, 1.0) or other.factor not in (None, 1.0)
            self._set(out, TensorOrigin(factor=None) if known or divided else PLAIN)

    def masked(self, args: tuple, out: Any) -> None:
        """Handle a mask that is added or filled in."""
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        origins = [self._origin(tensor) for tensor in tensors]
        attention = [origin for origin in origins if origin.sums_to_one is not None]
        scores = [origin for origin in origins if origin.width is not None]
        if attention:
            self._set(out, replace(attention[0], changed=attention[0].changed or self._line()))
        elif scores:
            agree = len({(origin.factor, origin.width) for origin in scores}) == 1
            factor = scores[0].factor if agree else None
            widths = scores[0].widths
            if agree and len(scores) == 2:  # one product, over the axes of both: [q, q']·[k, k']
                own = [(origin.width or 0, *origin.widths) for origin in scores]
                widths = (*widths, *scores[1].widths, *(one + other for one, other in product(*own)))
            self._set(out, replace(scores[0], factor=factor, masked=True, widths=widths))
        else:
            factors = {origin.factor for origin in origins}
            self._set(
                out,
                TensorOrigin(factor=factors.pop()) if len(factors) == 1 else TensorOrigin(factor=None),
            )

    def triangle(self, args: tuple, kwargs: dict, out: torch.Tensor, *, is_upper: bool) -> None:
        """Handle `tril`, or `triu`, which sets to zero what is above, or below, a diagonal."""
        x = args[0]
        origin, line = self._origin(x), self._line()
        if origin.sums_to_one is not None:
            self._set(out, replace(origin, changed=origin.changed or line))
            return
        last = (x.dim() - 2, x.dim() - 1)
        is_plain = tuple(axis.place for axis in origin.pair) == last and origin.width is not None
        if not is_plain or any(axis.behind != 1 for axis in origin.pair):
            self._set(out, PLAIN)
            return
        diagonal = args[1] if len(args) > 1 else kwargs.get("diagonal", 0)
        zeroed = Triangle(is_upper, diagonal, (x.shape[-2], x.shape[-1]), line)
        self._set(out, replace(origin, zeroed=zeroed))

    def joined(self, parts: list[torch.Tensor], out: torch.Tensor, axis: int) -> None:
        """Handle a concatenation, such as of the parts of a query with and without positions."""
        origins = [self._origin(part) for part in parts]
        if not any(origin.widths for origin in origins):
            return
        factors = {origin.factor for origin in origins}
        widths = next(origin.widths for origin in origins if origin.widths)
        if axis % out.dim() == out.dim() - 1:
            choices = [
                origin.widths or (part.shape[-1],) for origin, part in zip(origins, parts, strict=True)
            ]
            widths = tuple(map(sum, product(*choices)))
        factor = factors.pop() if len(factors) == 1 else None
        self._set(out, TensorOrigin(factor, widths=widths))

    def filled(self, part: torch.Tensor, source: torch.Tensor) -> None:
        """Handle a copy into a part of a tensor, of which nothing is known after it."""
        if not self._origin(source).widths:
            return
        whole: torch.Tensor | None = part
        while whole is not None:
            self._set(whole, UNKNOWN)
            known, of = self._slices.get(id(whole), (None, None))
            whole = of() if known is not None and of is not None and known() is whole else None

    def summed(self, x: Any) -> None:
        """Handle a sum: that of a row of attention is probably what it, or its output, is divided by."""
        origin = self._origin(x)
        if origin.sums_to_one is not None and origin.changed is not None:
            self._summed.add(origin.changed)

    def exponential(self, x: Any, out: Any) -> None:
        """Handle exp, which turns the logarithm of attention into attention."""
        origin = self._origin(x)
        self._set(out, replace(origin, log=False) if origin.log else PLAIN)

    def dropped(self, x: Any, out: Any) -> None:
        """Handle dropout."""
        origin = self._origin(x)
        self._set(out[0] if isinstance(out, tuple) else out, replace(origin, dropped=True))


def _reassociated(a: torch.Tensor, left: TensorOrigin, right: TensorOrigin) -> tuple[int, ...]:
    """Return the other sizes that a product may be said to sum over, or that its last axis had before.

    A matrix that each head of a factor is multiplied by may be the other factor's, as in latent
    attention whose projections were absorbed (DeepSeek-AI 2024, "DeepSeek-V2", section 2.1.2).

    Args:
        a: the left factor of the product.
        left, right: the origins of its factors.
    """
    is_of_heads = a.dim() == 3 and a.shape[0] > 1 and not (right if left.weight else left).repeated
    if (left.weight and right.weight) or (is_of_heads and not (left.widths or right.widths)):
        return (a.shape[-1],)
    if left.weight or right.weight:
        return left.widths if left.weight else right.widths
    return (*left.widths, *right.widths)


def _is_scale_of(width: float, scale: float | None) -> bool:
    """Check whether a scale is 1/√ of a width."""
    return bool(scale) and abs(1 / scale**2 / width - 1) < 1e-2  # type: ignore[operator]


@lru_cache(maxsize=256)
def _regroups(before: tuple[int, ...], after: tuple[int, ...]) -> bool:
    """Check whether a view splits several axes and merges them in another way."""
    return any(len(old) > 1 and len(new) > 1 for old, new in regroupings(before, after))


def _largest(tensor: torch.Tensor) -> float | None:
    """Return an upper bound of a tensor's absolute values: its norm, which is fast, or its maximum.

    Return None if some values are not finite.
    """
    with unseen():
        if tensor.is_contiguous() and tensor.dtype in (torch.float32, torch.float64):
            values = tensor.view(-1)
            square = torch.dot(values, values).item()
            if math.isfinite(square):
                return math.sqrt(square)
        low, high = map(float, torch.aminmax(tensor))
    return max(-low, high) if math.isfinite(low) and math.isfinite(high) else None


def _mixes(origin: TensorOrigin, axis: int) -> bool:
    """Check whether a sum over an axis mixes the heads of scores or attention, or the like."""
    own = [*origin.pair, *([origin.sums_to_one] if origin.sums_to_one else [])]
    return bool(origin.pair) and all(each.place != axis for each in own)


def _with_axes(origin: TensorOrigin, move: Callable[[MergedAxis], MergedAxis | None]) -> TensorOrigin:
    """Move the axes of an origin; those that are lost are left out."""
    if origin.sums_to_one is None and not origin.pair:
        return origin
    moved = [place for axis in origin.pair if (place := move(axis)) is not None]
    return replace(
        origin, pair=tuple(moved), sums_to_one=origin.sums_to_one and move(origin.sums_to_one)
    )


def _at(axis: MergedAxis, place: int | None) -> MergedAxis | None:
    return None if place is None else axis._replace(place=place)


def _moved(axis: MergedAxis, before: tuple[int, ...], after: tuple[int, ...]) -> MergedAxis | None:
    """Return an axis after a view, found by the number of elements behind it; None if it is divided."""
    behind = math.prod(before[axis.place + 1 :]) * axis.behind
    found = []
    for index, size in enumerate(after):
        inner, rest = divmod(behind, max(math.prod(after[index + 1 :]), 1))
        if rest == 0 and inner and inner * axis.size <= size and size % (inner * axis.size) == 0:
            found.append(MergedAxis(index, axis.size, inner))
    alone = [each for each in found if each.behind == 1 and after[each.place] == each.size]
    # Of several axes of size 1, the one at the same distance from the end.
    from_end = len(before) - axis.place
    return min(alone or found, key=lambda a: abs(len(after) - a.place - from_end), default=None)


Rule = Callable[[Watcher, tuple, dict, Any], None]


@cache
def _known(func: Any) -> tuple[str, Rule | None, bool]:
    """Return an operator's name, its rule for origins, and whether it writes in place."""
    name: str = func._overloadpacket.__name__
    in_place = name.endswith("_") and name[0] != "_"
    return name, _rule(name.rstrip("_") if in_place else name), func._schema.is_mutable


def _rule(name: str) -> Rule | None:
    """Return the rule that propagates origins through an operator; None if it ends them."""
    if name in ATEN_PRODUCTS:
        one, other = ATEN_PRODUCTS[name]
        added = name == "baddbmm"
        return lambda w, args, kwargs, out: w.product(args[one], args[other], out, added=added)
    if FUSED.fullmatch(name):
        return None if "choice" in name else lambda w, args, kwargs, out: w.fused(args, kwargs, out)
    return _RULES.get(name)


def _permuted(w: Watcher, args: tuple, kwargs: dict, out: Any) -> None:
    w.moves(args[0], out, [axis % args[0].dim() for axis in args[1]])


def _transposed(w: Watcher, args: tuple, kwargs: dict, out: Any) -> None:
    axes = list(range(args[0].dim()))
    if axes:
        one, other = (args[1], args[2]) if len(args) > 2 else (0, -1)
        axes[one], axes[other] = axes[other], axes[one]
    w.moves(args[0], out, axes)


def _unsqueezed(w: Watcher, args: tuple, kwargs: dict, out: Any) -> None:
    axes = list(range(args[0].dim()))
    axes.insert(args[1] % (len(axes) + 1), -1)
    w.moves(args[0], out, axes)


def _expanded(w: Watcher, args: tuple, kwargs: dict, out: Any) -> None:
    new = out.dim() - args[0].dim()
    w.moves(args[0], out, [-1] * new + list(range(args[0].dim())))
    if out.numel() > args[0].numel():
        w._set(out, replace(w._origin(out), repeated=True))


def _selected(w: Watcher, args: tuple, kwargs: dict, out: Any) -> None:
    axis = args[1] % args[0].dim()
    w.moves(args[0], out, [each for each in range(args[0].dim()) if each != axis])


def _sliced(w: Watcher, args: tuple, kwargs: dict, out: Any) -> None:
    axis = (args[1] if len(args) > 1 else 0) % args[0].dim()
    over = w._origin(args[0]).sums_to_one
    if over is None or over.place != axis or out.shape == args[0].shape:
        w.cut(args[0], out, axis)  # otherwise a part of each row, as when a sink is cut off


def _divided(w: Watcher, args: tuple, kwargs: dict, out: Any) -> None:
    """Handle a split: each piece is a slice."""
    axis = (args[2] if len(args) > 2 else kwargs.get("dim", 0)) % args[0].dim()
    for piece in out:
        over = w._origin(args[0]).sums_to_one
        if over is None or over.place != axis:
            w.keeps(args[0], piece)


_RULES: dict[str, Rule] = {
    **dict.fromkeys(ATEN_SOFTMAXES, lambda w, args, kwargs, out: w.softmax(args[0], args[1], out)),
    **dict.fromkeys(ATEN_SAME, lambda w, args, kwargs, out: w.keeps(args[0], out)),
    **dict.fromkeys(ATEN_VIEWS, lambda w, args, kwargs, out: w.viewed(args[0], out)),
    **dict.fromkeys(MASKS, lambda w, args, kwargs, out: w.masked(args, out)),
    "permute": _permuted,
    "transpose": _transposed,
    "t": _transposed,
    "unsqueeze": _unsqueezed,
    "expand": _expanded,
    "select": _selected,
    "slice": _sliced,
    **dict.fromkeys(("split", "split_with_sizes"), _divided),
    "cat": lambda w, args, kwargs, out: w.joined(
        args[0], out, args[1] if len(args) > 1 else kwargs.get("dim", 0)
    ),
    "copy": lambda w, args, kwargs, out: w.filled(args[0], args[1]),
    "mul": lambda w, args, kwargs, out: w.times(args[0], args[1], out),
    "div": lambda w, args, kwargs, out: w.times(args[0], args[1], out, divided=True),
    "_log_softmax": lambda w, args, kwargs, out: w.softmax(args[0], args[1], out, log=True),
    "exp": lambda w, args, kwargs, out: w.exponential(args[0], out),
    "sum": lambda w, args, kwargs, out: w.summed(args[0]),
    "tril": lambda w, args, kwargs, out: w.triangle(args, kwargs, out, is_upper=True),
    "triu": lambda w, args, kwargs, out: w.triangle(args, kwargs, out, is_upper=False),
    "tanh": lambda w, args, kwargs, out: w.keeps(args[0], out),
    "native_dropout": lambda w, args, kwargs, out: w.dropped(args[0], out),
    "bernoulli": lambda w, args, kwargs, out: w._set(out, TensorOrigin(noise=True)),
}


def _times(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one * other


def _number(value: Any) -> float | None:
    """Return the value of a number or of a constant scalar tensor; else None."""
    if isinstance(value, torch.Tensor):
        constant = not value.dim() and value.is_floating_point() and not value.requires_grad
        if not constant or not has_values(value):
            return None
        with unseen():
            return float(value)
    return float(value) if isinstance(value, int | float) else None


def findings_of_one_run(
    steps: list[Step], parts: dict[Place, Shape], watcher: Watcher, sizes: Mapping[str, int]
) -> list[Finding]:
    """Return all findings that need only one run, sorted by line.

    Args:
        steps: the steps of the run.
        parts: the last shapes of its expressions.
        watcher: the watcher of the run.
        sizes: the known sizes, by name.
    """
    names = Symbols({name: (size,) for name, size in sizes.items()})
    inferred = Inferred(names, [SizedRun(steps, parts, watcher.amounts)], complete=False)
    findings = [*scale_findings(inferred), *watcher.findings]
    return sorted(findings, key=lambda finding: finding.line or 0)


# The scale, once the sizes have names.


def scale_findings(inferred: Inferred) -> list[Finding]:
    """Find scores whose scale is not 1/√(the width that the product sums over).

    No scale at all (T5 has none) is a choice, and so is a multiple that is the same at all sizes, unless
    it is 1/√ of another axis' size, a power of the width, or a number in that line. A size that is not
    the axis of a tensor exists only for the scale (Gemma's query_pre_attn_scalar).

    Args:
        inferred: the inferred sizes, with the scales in each run.
    """
    findings = []
    for key in [key for key in inferred.runs[0].amounts if key[0] == "scale"]:
        amounts = zip(inferred.amounts(key), inferred.amounts(("width", *key[1:])), strict=True)
        scale_and_width = [pair if None not in pair else None for pair in amounts]
        scale, width = scale_and_width[0]  # type: ignore[misc]
        if _is_scale_of(width, scale) or ("reassociated", *key[1:]) in inferred.runs[0].amounts:  # type: ignore[arg-type]
            continue
        contracted = inferred.symbols.explain([pair and round(pair[1] or 0) for pair in scale_and_width])
        what = _origin(inferred, scale_and_width, contracted, linecache.getline(*key[1]))
        if what is None:
            continue
        is_width = f"an axis of {width:g}" if contracted == f"{width:g}" else f"{contracted} = {width:g}"
        message = (
            f"the scores are scaled by {scale:.4g}, which is {what}; but their product contracts over"
            f" {is_width}, and 1/√{width:g} is {width**-0.5:.4g}"  # type: ignore[operator]
        )
        finding = Finding(message, key[1][1])
        if finding not in findings:
            findings.append(finding)
    return findings


def _origin(inferred: Inferred, pairs: list[Any], contracted: str, text: str) -> str | None:
    """Describe how a scale was computed, if that is probably a mistake; else return None."""
    scale, width = pairs[0]
    known = [pair for pair in pairs if pair is not None]
    radicand = round(scale**-2)  # 1/√ of this; after a single run, an existing size is most likely
    if len(known) == 1 and radicand in _sizes(inferred) and abs(scale**-2 / radicand - 1) < 1e-3:
        return f"1/√{radicand}"
    if all(abs(scale * width - 1) < 1e-3 for scale, width in known):
        return f"1/{width:g}, without the square root"
    if all(abs(scale**2 / width - 1) < 1e-3 for scale, width in known):
        return f"√{width:g} instead of 1/√{width:g}"
    radicands = [pair and round(pair[0] ** -2) for pair in pairs]  # the scale is 1/√ of these
    whole = all(abs(scale**-2 / max(round(scale**-2), 1) - 1) < 1e-3 for scale, _ in known)
    if whole and radicands[0] > 1:
        name = inferred.symbols.explain(radicands)
        is_axis = radicands[0] in _sizes(inferred)
        if not name[0].isdigit() and name != contracted and is_axis:
            name = name if name.isidentifier() else f"({name})"
            return f"1/√{name} = 1/√{radicands[0]}"
    numbers = [float(n) for n in re.findall(r"(?<![\w.])\d+(?:\.\d*)?(?:e-?\d+)?", text)]
    candidates = (scale, 1 / scale, scale**2, scale**-2)
    if any(n > 0 and n != 1 and abs(n / each - 1) < 1e-3 for n in numbers for each in candidates):
        return "a number written in this line"
    return None


def _sizes(inferred: Inferred) -> set[int]:
    return {size for step in inferred.runs[0].steps for size in step.shape}
