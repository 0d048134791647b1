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
from functools import cache, lru_cache, partial
from itertools import chain, product
from typing import Any, NamedTuple

import torch

from attnscope.attention.mask_rules import HIDES
from attnscope.base.units import bytes_text
from attnscope.document.result import Finding
from attnscope.observe.axes.from_other_sizes import Inferred, SizedRun, regroupings
from attnscope.observe.axes.symbols import Symbols
from attnscope.observe.by_tensor import ByTensor
from attnscope.observe.diagnose.crash import Shape
from attnscope.observe.diagnose.fully_masked import FullyMasked, flat
from attnscope.observe.diagnose.groups import GroupedSoftmaxes, Line
from attnscope.observe.instrument.rewrite import Place
from attnscope.observe.operator_names import (
    ATEN_MOVES,
    ATEN_PRODUCTS,
    ATEN_SAME,
    ATEN_SOFTMAXES,
    ATEN_VIEWS,
    axes_after,
)
from attnscope.observe.torch_internals.dispatch import has_values, is_derivative, unseen
from attnscope.observe.trace import Step

LARGE = 64 * 2**20
"""The minimal size of a silent copy that is reported, in bytes."""


class MergedAxis(NamedTuple):
    """An axis of a tensor that views may have merged with others."""

    place: int  #: the index of the tensor's axis that contains it
    size: int  #: its size
    #: the number of elements behind it within that axis: 1, unless axes were merged behind it
    behind: int = 1
    #: whether a view divided an axis of queries or keys into it and others. It may count heads instead,
    #: as where one product takes the queries of several heads together.
    is_part: bool = False


class NotHidden(NamedTuple):
    """The scores that a mask sets to zero, or nearly, which hides no key: exp(0) is 1."""

    places: torch.Tensor  #: where: n_Q n_K in the last axes
    fill: float  #: what it sets them to
    line: Line  #: the line that does so

    def of(self, tensor: torch.Tensor, pair: tuple[MergedAxis, ...]) -> torch.Tensor | None:
        """Return these elements of a tensor with other axes; None if they are not found in it."""
        moved = _with_pair_last(tensor, pair)
        if moved is None or moved.shape[-len(pair) :] != self.places.shape[-len(pair) :]:
            return None
        if moved.numel() == self.places.numel():
            return moved[self.places.reshape(moved.shape)]
        return None


@dataclass(frozen=True)
class TensorOrigin:
    """The origin of a tensor."""

    #: the product of the numbers that have scaled it since its projection; None if unknown
    factor: float | None = 1.0
    #: the size of the axis that its product summed over; None if it comes from no product of
    #: activations
    width: int | None = None
    #: its axes of queries and of keys, if it comes from a product of activations: two, unless a view
    #: divided one
    pair: tuple[MergedAxis, ...] = ()
    weight: bool = False  #: whether it is a parameter of a module, or a product of some
    #: whether an axis of it was expanded, as that of heads is before their projections
    repeated: bool = False
    #: other sizes that its product may be said to sum over, because (q·W)·k is q·(W·k). Of a factor: the
    #: sizes of its last axis before each head was multiplied by a matrix.
    widths: tuple[int, ...] = ()
    sums_to_one: MergedAxis | None = None  #: the axis of the softmax that it comes from
    softmax_dim: int = -1  #: that axis where the softmax ran, counted from the last, which is -1
    log: bool = False  #: whether it is the logarithm of a softmax
    dropped: bool = False  #: whether dropout or a mixture of heads has been applied since
    masked: bool = False  #: whether a mask has been applied
    changed: Line | None = None  #: the line that has changed single elements since
    not_hidden: NotHidden | None = None  #: the scores that are zero where a mask belongs
    noise: bool = False  #: whether it is the random mask of dropout
    line: Line | None = None  #: the line of the softmax
    scaled: Line | None = None  #: the line that multiplied it by a number
    shifted: bool = False  #: whether its rows were shifted by a view and a slice, and not viewed again


PLAIN = TensorOrigin()
WEIGHT = TensorOrigin(weight=True)
UNKNOWN = TensorOrigin(factor=None)

FUSED = re.compile(r"_scaled_dot_product_\w*attention\w*|_fused_sdp_choice")
NEARLY_ZERO = 1e-3
"""The largest fill of a mask that is called nearly zero: its exp is 1 up to a thousandth."""

MASKS = {"masked_fill", "where", "index_put", "add", "sub"}
COMPARISONS = {"lt", "le", "gt", "ge"}
COPIES = {"clone", "copy_", "contiguous", "_to_copy"}
EMPTY = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
FACTORY = re.compile(r"new_|\w+_like$")  # they depend on the shape of their input
UNCHANGED = {*ATEN_SAME, *ATEN_VIEWS, *ATEN_MOVES, "slice"}


class Watcher:
    """Receives every operator and every row of one run, and collects findings."""

    def __init__(self, files: Collection[str]) -> None:
        self.files = files  #: the files whose lines findings name
        #: the random inputs, and what was computed from them without a matrix product
        self._drawn = ByTensor[bool]()
        self._findings: list[Finding] = []
        self._fully_masked = FullyMasked()
        self._groups = GroupedSoftmaxes()
        self._with_masked_rows: set[Line | None] = set()  # softmaxes with fully masked rows
        self._unnormalized: dict[Line, list[Finding]] = {}
        self._summed: set[Line] = set()  # lines whose rows of attention were summed, to divide by
        self.amounts: dict[tuple, float] = {}  # each scale and its width, by line
        self.views: dict[tuple, tuple[tuple[int, ...], tuple[int, ...]]] = {}  # those that regroup axes
        self.has_nan = False
        self.saw_softmax = self.saw_not_finite = False
        self._origins = ByTensor[TensorOrigin]()
        self._bounds = ByTensor[float]()  # of absolute values, from above
        self._empty = ByTensor[bool]()  # uninitialized tensors
        self._overwritten = False  # in-place operators ran: origins of masks may be out of date
        self._inverted: set[Line | None] = set()  # softmaxes whose results were multiplied by each other
        self.shifts: set[Line] = set()  # the lines of regrouped views that shift rows
        self._regrouped = ByTensor[tuple]()  # the keys of views
        self._slices = ByTensor[weakref.ref[torch.Tensor]]()  # what they are slices of

    # Called by the recorder.

    def operator(self, func: Any, args: tuple, kwargs: dict, out: Any) -> None:
        """Update the origins after an ATen operator."""
        name, rule, mutable = _known(func)
        if mutable:
            self._bounds.clear()
            self._overwritten = True
        follows = self._drawn and name not in ATEN_PRODUCTS and not FACTORY.match(name)
        if follows and isinstance(out, torch.Tensor) and any(map(self._drawn.get, flat(args))):
            self._drawn[out] = True
        if name in COPIES:
            self._copied(name, args, out)
        elif name in EMPTY:
            self._empty[out] = True
        if is_derivative():  # mistakes are made in the forward pass
            return
        if self._fully_masked.rows and not FACTORY.match(name):
            self._fully_masked.follow(func, args, kwargs, out)
        self._groups.operator(name.rstrip("_"), args, kwargs, out, self._line)
        if rule is not None:
            rule(self, args, kwargs, out)
            self._bound_result(name, args, out)

    @property
    def findings(self) -> list[Finding]:
        """What was found, without what the code handles later."""
        lines = [line for line in self._unnormalized if line not in self._summed]
        unnormalized = [each for line in lines for each in self._unnormalized[line]]
        of_groups = [Finding(message, line[1] or None) for message, line in self._groups.mistakes]
        found = [*self._findings, *self._fully_masked.findings, *unnormalized, *of_groups]
        return list(dict.fromkeys(found))

    @property
    def notices(self) -> list[str]:
        """What else was seen."""
        return self._groups.notices

    def row(self, step: Step, tensor: torch.Tensor) -> None:
        """Report the first named tensor that contains NaN or inf."""
        self._groups.row(step.name, step.line, tensor)
        if self.has_nan or step.view_of or step.same_as or not has_values(tensor):
            return
        if not tensor.is_floating_point() or tensor.element_size() == 1 or not tensor.numel():
            return
        if self._empty.get(tensor) or self._bound(tensor, look=True) is not None:
            return
        with unseen():
            nan, inf = int(tensor.isnan().sum()), int((tensor == math.inf).sum())
        if nan or inf:
            self.saw_not_finite = True
            what = " and ".join(f"{n} {word}" for n, word in ((nan, "NaN"), (inf, "inf")) if n)
            is_input = step.how == "input"
            has = f"the input {step.name} has" if is_input else f"{step.name} is the first tensor with"
            message = f"{has} {what} among its {tensor.numel()} values"
            if not self._fully_masked.add_consequence(tensor, Finding(message, step.line)):
                self.has_nan = True
                self._find(message, (step.file or "", step.line or 0))

    def draws(self, tensors: Iterable[torch.Tensor]) -> None:
        """Mark inputs as random: if a mask is, what it hides counts as no mistake."""
        for each in tensors:
            self._drawn[each] = True

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
            self._bounds[out] = bound

    def _bound(self, tensor: Any, *, look: bool = False) -> float | None:
        """Return an upper bound of a tensor's absolute values; None if unknown or not finite.

        Args:
            look: whether to read its values; those of parameters are always read.
        """
        known = self._bounds.get(tensor)
        if known is not None or not isinstance(tensor, torch.Tensor if look else torch.nn.Parameter):
            return known
        bound = _largest(tensor) if has_values(tensor) and tensor.numel() else None
        if bound is not None:
            self._bounds[tensor] = bound
        return bound

    # Notes.

    def _origin(self, tensor: Any) -> TensorOrigin:
        known = self._origins.get(tensor)
        return known or (WEIGHT if isinstance(tensor, torch.nn.Parameter) else PLAIN)

    def _set(self, tensor: Any, origin: TensorOrigin) -> None:
        if isinstance(tensor, torch.Tensor) and (origin is not PLAIN or self._origins.get(tensor)):
            self._origins[tensor] = origin

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
            added: whether something was added to the product, which may be a mask.
        """
        left, right = self._origin(a), self._origin(b)
        rows, columns = a.dim() - 1, max(b.dim() - 2, 0)  # the axes that are summed over
        both_ways = (left, rows, right), (right, columns, left)
        mixed = [one for one, axis, other in both_ways if _mixes(one, axis, other)]
        factor = _times(left.factor, right.factor)
        if mixed:
            self._set(out, _mixture(mixed[0], factor) if len(mixed) == 1 else UNKNOWN)
        elif left.weight or right.weight:  # a projection
            both = left.weight and right.weight
            known = both or (left.factor, right.factor) == (1.0, 1.0)
            widths = _reassociated(a, left, right)
            self._set(out, TensorOrigin(factor if known else None, weight=both, widths=widths))
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

    def convolution(self, x: torch.Tensor, kernel: torch.Tensor, strides: list[int], out: Any) -> None:
        """Handle a convolution: with a kernel of size 1, it multiplies axis 1 by a matrix."""
        one, other = self._origin(x), self._origin(kernel)
        is_product = set(kernel.shape[2:]) <= {1} and set(strides) <= {1} and x.dim() == kernel.dim()
        if is_product and _mixes(one, 1, other):
            self._set(out, _mixture(one, _times(one.factor, other.factor)))

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
        place, size = origin.sums_to_one[:2]
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
        if origin.not_hidden is None or not has_values(weights):
            return
        with unseen():
            part = origin.not_hidden.of(weights, origin.pair)
            count = 0 if part is None else int((part > 0).sum())
        if count:
            fill = origin.not_hidden.fill
            self._find(
                f"{count} weights are not zero although this line sets their scores to"
                f" {fill or 'zero'}: it hides no key, because exp({fill:g}) is 1. Fill these scores with"
                " -inf before the softmax",
                origin.not_hidden.line,
            )

    def softmax(self, x: torch.Tensor, dim: int, out: torch.Tensor, *, log: bool = False) -> None:
        """Handle a softmax or log-softmax, whose input may be scores."""
        self.saw_softmax = True
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
            if count and self._drawn.get(x):
                self.has_nan = True  # which that causes
            elif count:
                message = (
                    f"{count} of {is_masked.numel()} rows of the scores are fully masked: no key is"
                    " visible to them, so their attention weights are meaningless"
                )
                self._fully_masked.add(out, is_masked.unsqueeze(axis), Finding(message, line[1] or None))
        weights = TensorOrigin(
            sums_to_one=MergedAxis(axis, x.shape[axis] if x.dim() else 1),
            softmax_dim=axis - max(x.dim(), 1),
            pair=origin.pair,
            line=line,
            log=log,
            not_hidden=origin.not_hidden if _is_still_zero(x, origin) else None,
        )
        self._set(out, weights)

    def fused(self, args: tuple, kwargs: dict, out: Any) -> None:
        """Handle a fused operator, which computes scores and attention."""
        self.saw_softmax = True
        query, key = args[0], args[1]
        for mask in (kwargs.get("attn_mask"), *args[3:4]):
            if isinstance(mask, torch.Tensor):
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
        drawn = self._drawn.get(mask)
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
        repeats = (n > 1 and not step for step, n in zip(source.stride(), source.shape, strict=True))
        why = "is an expanded view, which takes no memory" if any(repeats) else "is not contiguous"
        self._find(f"this copies {bytes_text(size)}: its input {why}. The copy may be intended", line)

    # Propagation of origins.

    def keeps(self, x: Any, out: Any) -> None:
        """Handle an operator that keeps values and axes."""
        self._set(out, self._origin(x))

    def moves(self, x: Any, out: Any, axes: list[int]) -> None:
        """Handle permuted axes: output axis i is input axis `axes[i]`, or new if that is -1."""
        places = {old: new for new, old in enumerate(axes)}

        def moved(axis: MergedAxis) -> MergedAxis | None:
            place = places.get(axis.place)
            return None if place is None else axis._replace(place=place)

        self._set(out, _with_axes(self._origin(x), moved))

    def viewed(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """Handle a view: an axis is identified by the number of elements behind it.

        Parameters may be regrouped: they learn what their elements mean.
        """
        origin = self._origin(x)
        before, after = tuple(x.shape), tuple(out.shape)
        if not (origin.shifted or origin.weight) and before != after and _regroups(before, after):
            line = self._line()
            turn = sum(where == line for where, _ in self.views)
            self.views[line, turn] = before, after
            self._regrouped[out] = line, turn
        kept = _with_axes(origin, lambda axis: _moved(axis, before, after))
        kept = replace(kept, shifted=False) if origin.shifted else kept
        if len(kept.pair) < len(origin.pair):
            parts = [_moved_or_divided(axis, before, after) for axis in origin.pair]
            is_lost = not all(parts) or (kept.sums_to_one is None and origin.sums_to_one is not None)
            kept = PLAIN if is_lost else replace(kept, pair=tuple(chain.from_iterable(parts)))
        self._set(out, kept)

    def cut(self, x: torch.Tensor, out: torch.Tensor, axis: int) -> None:
        """Handle a slice; cutting one row off a regrouped view is the usual trick to shift rows.

        The next view, which regroups the rest, is a part of the trick.
        """
        self._slices[out] = weakref.ref(x)
        origin, key = self._origin(x), self._regrouped.get(x)
        if key is not None and out.shape[axis] == x.shape[axis] - 1:
            self.views.pop(key, None)
            self.shifts.add(key[0])
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
            is_changed = origin.sums_to_one is not None and not origin.dropped and number != 1
            changed = origin.changed or (self._line() if is_changed else None)
            self._set(out, replace(origin, factor=factor, changed=changed, scaled=self._line()))
            return
        other = self._origin(y)
        if other.noise or origin.noise:
            kept = origin if other.noise else other
            self._set(out, replace(kept, dropped=True) if kept.sums_to_one is not None else kept)
        elif origin.sums_to_one is not None or other.sums_to_one is not None:
            first = origin if origin.sums_to_one is not None else other
            weights = replace(first, changed=first.changed or self._line())
            self._set(out, PLAIN if divided else weights)  # if it is, probably renormalized
        elif origin.pair and (not_hidden := self._times_zero(x, y, origin)) is not None:
            self._set(out, replace(origin, not_hidden=not_hidden))
        else:  # by a norm or by positions: the factor is unknown
            known = origin.factor not in (None, 1.0) or other.factor not in (None, 1.0)
            self._set(out, TensorOrigin(factor=None) if known or divided else PLAIN)

    def masked(self, name: str, args: tuple, out: Any) -> None:
        """Handle a mask that is added or filled in."""
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        origins = [self._origin(tensor) for tensor in tensors]
        attention = [origin for origin in origins if origin.sums_to_one is not None]
        scores = [origin for origin in origins if origin.width is not None]
        if len(attention) == len(tensors) > 1:  # a sum of maps, or their difference
            is_same_axis = len({origin.sums_to_one for origin in attention}) == 1
            mixed = replace(attention[0], changed=None, dropped=True)
            self._set(out, mixed if is_same_axis else UNKNOWN)
        elif attention:
            self._set(out, replace(attention[0], changed=attention[0].changed or self._line()))
        elif scores:
            agree = len({(origin.factor, origin.width) for origin in scores}) == 1
            factor = scores[0].factor if agree else None
            widths = scores[0].widths
            if agree and len(scores) == 2:  # one product, over the axes of both: [q, q']·[k, k']
                own = [(origin.width or 0, *origin.widths) for origin in scores]
                widths = (*widths, *scores[1].widths, *(one + other for one, other in product(*own)))
            not_hidden = self._filled_with_zero(name, args, out, scores[0]) or scores[0].not_hidden
            masked = replace(scores[0], factor=factor, masked=True, widths=widths, not_hidden=not_hidden)
            self._set(out, masked)
        else:
            self._set(out, TensorOrigin(factor=_common(origin.factor for origin in origins)))

    def triangle(self, args: tuple, kwargs: dict, out: torch.Tensor, *, is_upper: bool) -> None:
        """Handle `tril`, or `triu`, which sets to zero what is above, or below, a diagonal."""
        x = args[0]
        origin, line = self._origin(x), self._line()
        if origin.sums_to_one is not None:
            self._set(out, replace(origin, changed=origin.changed or line))
            return
        diagonal = args[1] if len(args) > 1 else kwargs.get("diagonal", 0)
        with unseen():
            ones = torch.ones_like(x[..., :, :], dtype=torch.bool)
            hidden = ones.triu(diagonal + 1) if is_upper else ones.tril(diagonal - 1)
        not_hidden = self._not_hidden(x, hidden, 0.0, origin)
        self._set(out, replace(origin, not_hidden=not_hidden) if not_hidden else PLAIN)

    # Masks that set scores to zero.

    def _filled_with_zero(
        self, name: str, args: tuple, out: torch.Tensor, origin: TensorOrigin
    ) -> NotHidden | None:
        """Return the scores that a mask fills with zero, or nearly; None if it does not."""
        is_where, is_assigned = name == "where", name == "index_put" and len(args[1]) == 1
        if is_where:  # either branch may be the scores
            fill = _number(args[2] if self._origin(args[1]) is origin else args[1])
        elif name == "masked_fill" or is_assigned:
            fill = _number(args[2])
        else:
            return None
        mask = args[0] if is_where else args[1][0] if is_assigned else args[1]
        is_mask = self._is_mask(mask) and mask.dtype == torch.bool
        if fill is None or abs(fill) > NEARLY_ZERO or not is_mask:
            return None
        if is_where and self._origin(args[1]) is origin:
            with unseen():
                mask = ~mask
        return self._not_hidden(out, mask, fill, origin)

    def _is_mask(self, mask: torch.Tensor) -> bool:
        """Check whether a tensor can be a mask: not a function of the scores, and not dropout."""
        origin = self._origin(mask)
        from_scores = origin.factor is None or origin.width is not None or origin.sums_to_one is not None
        return not from_scores and not origin.noise and has_values(mask)

    def _times_zero(self, x: torch.Tensor, mask: Any, origin: TensorOrigin) -> NotHidden | None:
        """Return the scores that a mask of zeros and ones multiplies by zero; None if it is none."""
        if not isinstance(mask, torch.Tensor) or not self._is_mask(mask):
            return None
        with unseen():
            hidden = mask == 0
            if not bool((hidden | (mask == 1)).all()):
                return None
        return self._not_hidden(x, hidden, 0.0, origin)

    def _not_hidden(
        self, scores: torch.Tensor, hidden: torch.Tensor, fill: float, origin: TensorOrigin
    ) -> NotHidden | None:
        """Return the scores to hide of queries that have others; None if there are none."""
        if origin.width is None or not has_values(hidden):
            return None
        with unseen():
            places = _with_pair_last(hidden.expand(scores.shape), origin.pair)
            if places is None:
                return None
            places = places & ~places.all(dim=-1, keepdim=True)  # rows of padding see nothing
            return NotHidden(places, fill, self._line()) if bool(places.any()) else None

    def joined(self, parts: list[torch.Tensor], out: torch.Tensor, axis: int) -> None:
        """Handle a concatenation, such as of the parts of a query with and without positions."""
        origins = [self._origin(part) for part in parts]
        widths = next((origin.widths for origin in origins if origin.widths), None)
        if widths is None:
            return
        if axis % out.dim() == out.dim() - 1:
            pairs = zip(origins, parts, strict=True)
            choices = [origin.widths or (part.shape[-1],) for origin, part in pairs]
            widths = tuple(map(sum, product(*choices)))
        self._set(out, TensorOrigin(_common(origin.factor for origin in origins), widths=widths))

    def filled(self, part: torch.Tensor, source: torch.Tensor) -> None:
        """Handle a copy into a part of a tensor, of which nothing is known after it."""
        if not self._origin(source).widths:
            return
        whole: torch.Tensor | None = part
        while whole is not None:
            self._set(whole, UNKNOWN)
            of = self._slices.get(whole)
            whole = None if of is None else of()

    def summed(self, x: Any) -> None:
        """Handle a sum: that of a row of attention is probably what it, or its output, is divided by."""
        origin = self._origin(x)
        if origin.sums_to_one is not None and origin.changed is not None:
            self._summed.add(origin.changed)

    def compared(self, args: tuple, out: Any) -> None:
        """Handle a comparison: that of scores is a function of them, such as a ReLU, and not a mask."""
        if any(self._origin(arg) is not PLAIN for arg in args if isinstance(arg, torch.Tensor)):
            self._set(out, UNKNOWN)

    def exponential(self, x: Any, out: Any) -> None:
        """Handle exp, which turns the logarithm of attention into attention."""
        origin = self._origin(x)
        self._set(out, replace(origin, log=False) if origin.log else PLAIN)

    def dropped(self, x: Any, out: Any) -> None:
        """Handle dropout."""
        origin = self._origin(x)
        self._set(out[0] if isinstance(out, tuple) else out, replace(origin, dropped=True))


def _is_still_zero(x: torch.Tensor, origin: TensorOrigin) -> bool:
    """Check whether the scores that were set to zero are still as near to it."""
    if origin.not_hidden is None or not has_values(x):
        return False
    with unseen():
        part = origin.not_hidden.of(x, origin.pair)
        if part is None or not part.numel():
            return False
        return bool((part.abs() <= abs(origin.not_hidden.fill)).all()) and bool(x.any())


def _common(factors: Iterable[float | None]) -> float | None:
    """Return the factor of all tensors; None if they have several."""
    several = {*factors}
    return several.pop() if len(several) == 1 else None


def _with_pair_last(tensor: torch.Tensor, pair: tuple[MergedAxis, ...]) -> torch.Tensor | None:
    """Move the axes of queries and of keys to the end; None if they are not axes of their own.

    Parts of a divided axis are divided again where views have merged them.
    """
    if len(pair) < 2:
        return None
    if any(axis.is_part for axis in pair):
        tensor, pair = _unmerged(tensor, pair)
    if any(tensor.shape[axis.place] != axis.size for axis in pair):
        return None
    return tensor.movedim([axis.place for axis in pair], tuple(range(-len(pair), 0)))


def _unmerged(
    tensor: torch.Tensor, pair: tuple[MergedAxis, ...]
) -> tuple[torch.Tensor, tuple[MergedAxis, ...]]:
    """Divide the axes of a tensor such that each axis of a pair is one of its own."""
    shape: list[int] = []
    new: dict[MergedAxis, MergedAxis] = {}
    for place, size in enumerate(tensor.shape):
        own = [axis for axis in pair if axis.place == place]
        for axis in sorted(own, key=lambda axis: -axis.behind):
            outer = size // (axis.size * axis.behind)
            new[axis] = axis._replace(place=len(shape) + 1, behind=1)
            shape += [outer, axis.size]
            size = axis.behind
        shape.append(size)
    return tensor.reshape(shape), tuple(new[axis] for axis in pair)


def _reassociated(a: torch.Tensor, left: TensorOrigin, right: TensorOrigin) -> tuple[int, ...]:
    """Return the other sizes that a product may be said to sum over, or that its last axis had before.

    A matrix that each head of a factor is multiplied by may be the other factor's, as in latent
    attention whose projections were absorbed (DeepSeek-AI 2024, "DeepSeek-V2", section 2.1.2).
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


def _mixes(origin: TensorOrigin, axis: int, other: TensorOrigin) -> bool:
    """Check whether a sum over an axis mixes the heads of scores or attention, or the like.

    Args:
        other: the origin of what they are multiplied by. A weight mixes heads, as in talking heads
            (Shazeer et al. 2020, arXiv:2003.02436), even if the softmax ran over them.
    """
    own = [each for each in origin.pair if not each.is_part]
    own += [origin.sums_to_one] if origin.sums_to_one and not other.weight else []
    return bool(origin.pair) and all(each.place != axis for each in own)


def _mixture(origin: TensorOrigin, factor: float | None) -> TensorOrigin:
    """Return the origin of scores or attention after their heads are mixed."""
    dropped = origin.dropped or origin.sums_to_one is not None
    return replace(origin, factor=factor, dropped=dropped)


def _with_axes(origin: TensorOrigin, move: Callable[[MergedAxis], MergedAxis | None]) -> TensorOrigin:
    """Move the axes of an origin; those that are lost are left out."""
    if origin.sums_to_one is None and not origin.pair:
        return origin
    moved = [place for axis in origin.pair if (place := move(axis)) is not None]
    return replace(
        origin, pair=tuple(moved), sums_to_one=origin.sums_to_one and move(origin.sums_to_one)
    )


def _moved(axis: MergedAxis, before: tuple[int, ...], after: tuple[int, ...]) -> MergedAxis | None:
    """Return an axis after a view, found by the number of elements behind it; None if it is divided."""
    behind = math.prod(before[axis.place + 1 :]) * axis.behind
    found = []
    for index, size in enumerate(after):
        inner, rest = divmod(behind, max(math.prod(after[index + 1 :]), 1))
        if rest == 0 and inner and inner * axis.size <= size and size % (inner * axis.size) == 0:
            found.append(axis._replace(place=index, behind=inner))
    alone = [each for each in found if each.behind == 1 and after[each.place] == each.size]
    # Of several axes of size 1, the one at the same distance from the end.
    from_end = len(before) - axis.place
    return min(alone or found, key=lambda a: abs(len(after) - a.place - from_end), default=None)


def _moved_or_divided(
    axis: MergedAxis, before: tuple[int, ...], after: tuple[int, ...]
) -> tuple[MergedAxis, ...]:
    """Return an axis after a view, or the axes into which it divides it; none if it is lost."""
    moved = _moved(axis, before, after)
    if moved is not None:
        return (moved,)
    behind = math.prod(before[axis.place + 1 :]) * axis.behind
    ends = [math.prod(after[index:]) for index in range(len(after) + 1)]
    if behind not in ends or behind * axis.size not in ends:
        return ()
    places = range(ends.index(behind * axis.size), ends.index(behind))
    return tuple(MergedAxis(place, after[place], is_part=True) for place in places if after[place] > 1)


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


def _axes_moved(name: str, w: Watcher, args: tuple, kwargs: dict, out: Any) -> None:
    w.moves(args[0], out, axes_after(name, args, args[0].dim(), out.dim()))
    if name == "expand" and out.numel() > args[0].numel():
        w._set(out, replace(w._origin(out), repeated=True))


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


def _masked(name: str, w: Watcher, args: tuple, kwargs: dict, out: Any) -> None:
    w.masked(name, args, out)


_RULES: dict[str, Rule] = {
    **dict.fromkeys(ATEN_SOFTMAXES, lambda w, args, kwargs, out: w.softmax(args[0], args[1], out)),
    **dict.fromkeys(
        (*ATEN_SAME, "nan_to_num", "tanh"), lambda w, args, kwargs, out: w.keeps(args[0], out)
    ),
    **dict.fromkeys(ATEN_VIEWS, lambda w, args, kwargs, out: w.viewed(args[0], out)),
    **{name: partial(_masked, name) for name in MASKS},
    **{name: partial(_axes_moved, name) for name in ATEN_MOVES},
    "slice": _sliced,
    **dict.fromkeys(("split", "split_with_sizes"), _divided),
    "cat": lambda w, args, kwargs, out: w.joined(
        args[0], out, args[1] if len(args) > 1 else kwargs.get("dim", 0)
    ),
    "copy": lambda w, args, kwargs, out: w.filled(args[0], args[1]),
    "convolution": lambda w, args, kwargs, out: w.convolution(args[0], args[1], args[3], out),
    "mul": lambda w, args, kwargs, out: w.times(args[0], args[1], out),
    "div": lambda w, args, kwargs, out: w.times(args[0], args[1], out, divided=True),
    "_log_softmax": lambda w, args, kwargs, out: w.softmax(args[0], args[1], out, log=True),
    **dict.fromkeys(COMPARISONS, lambda w, args, kwargs, out: w.compared(args, out)),
    "exp": lambda w, args, kwargs, out: w.exponential(args[0], out),
    "sum": lambda w, args, kwargs, out: w.summed(args[0]),
    "tril": lambda w, args, kwargs, out: w.triangle(args, kwargs, out, is_upper=True),
    "triu": lambda w, args, kwargs, out: w.triangle(args, kwargs, out, is_upper=False),
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
    """Return all findings that need only one run, sorted by line."""
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
