"""Masks as users write them: `causal`, `window:4`, `lengths:12,30`, a file, or several together."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from attnscope.attention.positions import Align, offset_of
from attnscope.base.errors import OptionError, SizeError
from attnscope.base.spelling import spelled
from attnscope.base.tensor_files import (
    FORMATS,
    in_memory,
    is_matrix_text,
    open_tensor,
    rows_in,
    tensor_of,
)
from attnscope.base.text import nearest

if TYPE_CHECKING:
    import torch

    from attnscope.base.tensor_files import TensorFile

KINDS = {
    "causal": "causal",
    "window": "window:W, window:L,R, window:L, or window:,R",
    "chunk": "chunk:C",
    "prefix": "prefix:P",
    "lengths": "lengths:N,N,…",
}
"""The syntax of each kind of mask."""
SYNTAX = "causal, window:W, window:L,R, chunk:C, prefix:P, lengths:N,N,…, none, or a FILE"
FARTHEST = 10**18
"""A window or chunk of this width is as wide as any sequence; torch computes with no larger ones."""
LEAST = {"float16": -65504.0}
"""The smallest number of a dtype, if a fill may be below it."""
HIDES = -1e4
"""A mask that adds this or less hides the key: the softmax gives it a weight of 0."""


@dataclass(frozen=True)
class Masks:
    """All masks of a run; a query sees the keys that every mask allows.

    Attributes:
        texts: each mask as the user wrote it.
        causal: a query sees itself and earlier keys.
        windows: the numbers of keys that a query sees (before it, after it); infinite if open.
        chunks: the numbers of positions in a chunk, of which a query sees only its own.
        prefixes: the number of first keys that every query sees; it also sees earlier ones.
        lengths: for each sequence, the number of keys that are not padding.
        files: masks from files, or from memory.
        style: `bool` or `additive`: a mask of True and False, or of numbers to add.
        fill: the score of a hidden key.
        align: the alignment of queries and keys.
        rows: the weights of queries that see no key: `nan`, `uniform`, `zero`, or None for those
            that follow from the fill.
        columns: whether the last two axes of masks from files are n_K n_Q.
    """

    texts: tuple[str, ...] = ()
    causal: bool = False
    windows: tuple[tuple[float, float], ...] = ()
    chunks: tuple[int, ...] = ()
    prefixes: tuple[int, ...] = ()
    lengths: tuple[tuple[int, ...], ...] = ()
    files: tuple[TensorFile, ...] = ()
    style: str = "bool"
    fill: float = -inf
    align: Align = "top-left"
    rows: str | None = None
    columns: bool = False

    def __bool__(self) -> bool:
        return bool(self.texts)

    @property
    def positional(self) -> bool:
        """Whether the masks depend on the alignment of queries and keys."""
        return self.causal or bool(self.windows or self.chunks or self.prefixes)

    @property
    def ends(self) -> tuple[int, ...] | None:
        """For each sequence, the number of keys that no mask declares as padding; None: unknown."""
        return tuple(map(min, zip(*self.lengths, strict=True))) if self.lengths else None

    @property
    def fills(self) -> bool:
        """Whether the fill is used: additive masks from files contain their own numbers."""
        added = [file for file in self.files if self.style == "additive" and file.dtype != "bool"]
        return self.positional or bool(self.lengths) or len(added) < len(self.files)

    def applied(
        self,
        *,
        align: str,
        dtype: str,
        style: str | None = None,
        fill: float = -inf,
        rows: str | None = None,
        columns: bool = False,
    ) -> Masks:
        """Return the same masks with these settings.

        Args:
            align: the alignment of queries and keys.
            dtype: the dtype of the scores.
            style: `bool` or `additive`; None: that of the files, else bool.
            fill: the score of a hidden key.
            rows, columns: as in the class.

        Raises:
            OptionError: the fill hides nothing, or is outside the range of the dtype.
            FileError: a file cannot be read.
        """
        _check_fill(fill, dtype)
        styles = [style_of(file) for file in self.files] if style is None else [style]
        style = "additive" if "additive" in styles else "bool"
        rows = None if rows is None else str(rows)
        return replace(
            self, style=style, fill=fill, align=cast("Align", align), rows=rows, columns=columns
        )

    def filled_with(self, fill: float) -> Masks:
        """Return the same masks with another score for hidden keys."""
        return replace(self, fill=fill)

    def in_softmax(self, dtype: str, softmax_dtype: str) -> Masks:
        """Return the same masks with the fill that the softmax receives in its own dtype.

        Args:
            dtype: the dtype of the scores.
            softmax_dtype: the dtype in which the softmax is computed.
        """
        overflow = -65408.0 if dtype == "bfloat16" else -65520.0  # rounded to -65536 or less
        overflows = softmax_dtype == "float16" and self.fill <= overflow
        return self.filled_with(-inf) if overflows else self

    def dims(self, sizes: Mapping[str, int]) -> str | None:
        """Return the axes of the combined mask: those of the scores, and 1 where it broadcasts.

        Raises:
            SizeError: a mask does not fit the scores.
        """
        if not self:
            return None
        self._check(sizes)
        parts = [fitted(file, sizes, columns=self.columns) for file in self.files]
        parts += [["n_Q", "n_K"]] if self.positional else []
        if self.lengths:
            lead = [axis for axis in ("n_batch", "n_head") if axis in sizes]
            parts.append([*lead[:1], *["1" for _ in lead[1:]], "1", "n_K"])
        longest = max(map(len, parts))
        padded = [["1"] * (longest - len(part)) + part for part in parts]
        return " ".join(next((a for a in axes if a != "1"), "1") for axes in zip(*padded, strict=True))

    def build(self, sizes: Mapping[str, int], dtype: str, device: str) -> torch.Tensor:
        """Return the combined mask, with the axes of `dims`.

        Args:
            sizes: as in `dims`.
            dtype: the dtype of an additive mask.
            device: the device of the result.
        """
        import torch

        from attnscope.attention import masks

        n_Q, n_K = sizes["n_Q"], sizes["n_K"]
        offset = self._offset(sizes)
        kinds = [masks.causal(n_Q, n_K, offset=offset)] if self.causal else []
        kinds += [masks.window(n_Q, n_K, *each, offset=offset) for each in self.windows]
        kinds += [masks.chunk(n_Q, n_K, each, offset=offset) for each in self.chunks]
        kinds += [masks.prefix(n_Q, n_K, each, offset=offset) for each in self.prefixes]
        kinds += [masks.lengths(each, n_K) for each in self.lengths]
        if "n_head" in sizes:
            kinds = [kind[:, None] if kind.dim() == 3 else kind for kind in kinds]
        added = torch.zeros(())
        for file in self.files:
            axes = fitted(file, sizes, columns=self.columns)
            values = file.load()
            values = values.mT if self.columns and values.dim() > 1 else values
            values = values.reshape([1 if axis == "1" else sizes[axis] for axis in axes])
            if self.style == "bool" or values.dtype == torch.bool:
                kinds.append(values != 0)
            else:
                added = added + values.to(getattr(torch, dtype))
        shape = [1 if axis == "1" else sizes[axis] for axis in (self.dims(sizes) or "").split()]
        allowed = torch.ones(shape, dtype=torch.bool)
        for kind in kinds:
            allowed = allowed & kind.reshape(kind.shape[-len(shape) :])
        if self.style == "additive":
            added = added.to(getattr(torch, dtype)).expand(shape)
            allowed = torch.where(allowed, added, masks.additive(allowed, self.fill, added.dtype))
        return allowed.contiguous().to(device)

    def rows_without_keys(self, sizes: Mapping[str, int], query: int | None = None) -> int | None:
        """Return the number of rows of the scores that see no key; None if it depends on a file.

        Every kind of mask allows one contiguous range of keys, which contains the query's own position
        if there is such a key. So the queries that see a key have contiguous positions: some before
        the first key, some behind the last one.

        Args:
            sizes: the sizes of the run.
            query: count only the rows of this query.
        """
        if self.files:
            return None
        n_Q, n_K, n_batch = sizes["n_Q"], sizes["n_K"], sizes.get("n_batch", 1)
        offset = self._offset(sizes)
        firsts = [offset] * n_batch if isinstance(offset, int) else offset
        before = min((left for left, _ in self.windows), default=inf)
        after = min([right for _, right in self.windows] + [0] * self.causal, default=inf)
        least = 0 if self.chunks or 0 in self.prefixes else -after
        seeing = 0
        for first, end in zip(firsts, self.ends or [n_K] * n_batch, strict=True):
            if end == 0:
                continue
            most = min([_last_of(end - 1, chunk) for chunk in self.chunks] + [end - 1 + before])
            low = first if query is None else first + query
            high = first + n_Q - 1 if query is None else low
            seeing += max(0, int(min(high, most) - max(low, least)) + 1)
        n_rows = n_Q if query is None else 1
        return (n_batch * n_rows - seeing) * sizes.get("n_head", 1)

    def _offset(self, sizes: Mapping[str, int]) -> int | tuple[int, ...]:
        """Return the position of the first query, or of the first query of each sequence."""
        n_Q, n_K, n_past = sizes["n_Q"], sizes["n_K"], sizes.get("n_past", 0)
        return offset_of(n_Q, n_K, align=self.align, n_past=n_past, lengths=self.ends)

    def _check(self, sizes: Mapping[str, int]) -> None:
        n_batch, n_K = sizes.get("n_batch", 1), sizes["n_K"]
        for each in self.lengths:
            if len(each) != n_batch:
                raise SizeError(
                    f"{len(each)} lengths ({','.join(map(str, each))}) are given for {n_batch}"
                    " sequences.",
                    hint=f"{spelled(mask='lengths')}: with {n_batch} numbers"
                    + (f", or {spelled(batch=len(each))}" if "n_batch" in sizes else ""),
                )
            if max(each) > n_K:
                raise SizeError(f"a length of {max(each)} is more than there are keys: n_K is {n_K}.")
        for length in self.prefixes:
            if length > n_K:
                raise SizeError(f"a prefix of {length} is more than there are keys: n_K is {n_K}.")
        self._offset(sizes)  # the queries may be aligned at lengths, and there may be none


def names_rule(text: str) -> bool:
    """Check whether a text is a rule or names a file of a mask, and neither a model nor a function.

    >>> names_rule("window:4"), names_rule("mask.npy"), names_rule("mine.py:mask")
    (True, True, False)
    """
    kind, colon, _ = text.partition(":")
    if text in {*KINDS, "none"} or (colon and kind in KINDS) or is_matrix_text(text):
        return True
    file = text.rpartition(":")[0]
    return Path(text).suffix in FORMATS or (bool(colon) and Path(file).suffix in FORMATS)


def names_function(text: str) -> bool:
    """Check whether a text names a function that may be a mask: `file.py:NAME` or `package.module:NAME`.

    >>> names_function("mine.py:mask"), names_function("package.masks:mask"), names_function("gpt2")
    (True, True, False)
    """
    return re.fullmatch(r".*\.py(:.*)?|[\w.]+:[\w.]+", text) is not None


def parse_masks(masks: Any) -> Masks:
    """Parse one mask or several.

    Args:
        masks: one or several, each `causal`, `window:W`, `window:L,R`, `chunk:C`, `prefix:P`,
            `lengths:N,N,…`, a file, a numpy array or a torch tensor; None, `none`: no mask.

    Raises:
        OptionError: a kind of mask is unknown, or its numbers are invalid.
        FileError: a file cannot be read.
    """
    if masks is None:
        return Masks()
    several = masks if isinstance(masks, list | tuple) else [masks]
    if not several:
        raise OptionError("mask is an empty list.", hint="mask=None for no mask")
    if any(isinstance(each, str) and each == "none" for each in several):
        if len(several) > 1:
            raise OptionError(
                f"{spelled('mask', 'none')} excludes the other {len(several) - 1} of {len(several)}"
                " masks.",
                hint=f"{spelled(mask='none')} alone, or the others without it",
            )
        return Masks()
    kinds = [_parsed(each) for each in several]
    return Masks(
        texts=tuple(text for each in kinds for text in each.texts),
        causal=any(each.causal for each in kinds),
        windows=tuple(window for each in kinds for window in each.windows),
        chunks=tuple(chunk for each in kinds for chunk in each.chunks),
        prefixes=tuple(prefix for each in kinds for prefix in each.prefixes),
        lengths=tuple(lengths for each in kinds for lengths in each.lengths),
        files=tuple(file for each in kinds for file in each.files),
    )


def _parsed(mask: Any) -> Masks:
    if isinstance(mask, os.PathLike):
        mask = os.fspath(mask)
    if not isinstance(mask, str):
        tensor = in_memory("mask", mask, "the argument mask")
        return Masks(("×".join(map(str, tensor.shape)),), files=(tensor,))
    if is_matrix_text(mask):
        return Masks((mask,), files=(tensor_of("mask", mask, "the argument mask"),))
    several = re.split(r",\s*(?=[a-z])", mask)
    if len(several) > 1 and {each.partition(":")[0] for each in several} <= set(KINDS):
        hint = spelled(mask=several)
        raise OptionError(
            f"{mask!r} is {len(several)} masks, and each needs a {spelled('mask')}.", hint=hint
        )
    kind, colon, rest = mask.partition(":")
    numbers = tuple(int(n) for n in rest.split(",")) if re.fullmatch(r"\d+(,\d+)*", rest) else ()
    if kind not in KINDS:
        if not (colon or "." in mask or os.sep in mask):
            raise OptionError(f"{mask!r} is not a mask.", hint=_hint(kind, rows_in(mask)))
        return Masks((mask,), files=(open_tensor("mask", mask),))
    if kind == "causal" and not colon:
        return Masks((mask,), causal=True)
    if kind == "window" and (sides := _sides(rest)):
        return Masks((mask,), windows=(sides,))
    if kind == "chunk" and len(numbers) == 1 and numbers[0]:
        return Masks((mask,), chunks=(min(numbers[0], FARTHEST),))
    if kind == "prefix" and len(numbers) == 1:
        return Masks((mask,), prefixes=numbers)
    if kind == "lengths" and numbers:
        return Masks((mask,), lengths=(numbers,))
    raise OptionError(f"{mask!r} is not a mask.", hint=_hint(kind))


def _sides(text: str) -> tuple[float, float] | None:
    """Return the widths of a window, before and after the query; None if the text is not a window.

    >>> _sides("2"), _sides("2,1"), _sides("2,"), _sides(",0")
    ((2, 2), (2, 1), (2, inf), (inf, 0))
    """
    found = re.fullmatch(r"(\d*)(,?)(\d*)", text)
    if found is None or not (found[1] or found[3]):
        return None
    left, right = (min(int(width), FARTHEST) if width else inf for width in (found[1], found[3]))
    return (left, right) if found[2] else (left, left)


def _hint(kind: str, rows: str | None = None) -> str:
    """Return the option with the mask that is meant, as numbers or by its syntax, or else with all."""
    first, *others = (rows or KINDS.get(nearest(kind, KINDS) or "", SYNTAX)).split(", ")
    return ", ".join([spelled(mask=first), *others])


def _last_of(last: int, chunk: int) -> int:
    """Return the last position of the chunk with the position `last`.

    >>> _last_of(5, 4), _last_of(7, 4)
    (7, 7)
    """
    return (last // chunk + 1) * chunk - 1


def _check_fill(fill: float, dtype: str) -> None:
    if not fill <= HIDES:
        raise OptionError(
            f"a mask fill of {fill:g} does not hide keys.",
            hint=f"{spelled(mask_fill='-inf')}, or -1e9",
        )
    least = LEAST.get(dtype, -inf)
    if -inf < fill < least:
        raise OptionError(
            f"{fill:g} is out of the range of {dtype}: its lowest number is {least:g}.",
            hint=f"{spelled(mask_fill='-inf')}, or {least:g}",
        )


def style_of(file: TensorFile) -> str:
    """Return the style of a mask from a file: `bool`, or `additive` if it is added to the scores.

    Booleans and whole numbers are True where a query may attend; so are floats that are all 0 or
    1, with at least one 1. Other floats are added.
    """
    if not file.dtype.startswith(("float", "bfloat")):
        return "bool"
    values = file.load()
    zeros_and_ones = bool(((values == 0) | (values == 1)).all()) and bool((values == 1).any())
    return "bool" if zeros_and_ones else "additive"


def mask_axes(file: TensorFile, sizes: Mapping[str, int | None], *, columns: bool = False) -> list[str]:
    """Return the axes of a mask from a file: `n_K`, `n_Q n_K` or `n_batch n_head n_Q n_K`.

    Three are `n_batch n_Q n_K`, or `n_head n_Q n_K` where only the number of heads fits.

    Raises:
        SizeError: it has none of these numbers of axes.
    """
    scores = ["n_K", "n_Q"] if columns else ["n_Q", "n_K"]
    axes = {1: ["n_K"], 2: scores, 3: ["n_batch", *scores], 4: ["n_batch", "n_head", *scores]}
    if len(file.shape) not in axes:
        raise SizeError(
            f"mask in {file} is {'×'.join(map(str, file.shape)) or 'a scalar'}, and a mask has 1 to 4"
            " axes.",
            hint=", or ".join(" ".join(each) for each in axes.values()),
        )
    of_heads = len(file.shape) == 3 and file.shape[0] not in (1, sizes.get("n_batch"))
    if of_heads and file.shape[0] == sizes.get("n_head"):
        return ["n_head", *scores]
    return axes[len(file.shape)]


def fitted(file: TensorFile, sizes: Mapping[str, int], *, columns: bool = False) -> list[str]:
    """Return the axes of a mask from a file, aligned with those of the scores by rows.

    Args:
        file: with the axes of `mask_axes`; all but n_K may be 1.
        sizes: the sizes of the scores' axes.
        columns: whether the last two axes are n_K n_Q.

    Raises:
        SizeError: the mask does not fit the scores.
    """
    shape, dims = file.shape, mask_axes(file, sizes, columns=columns)
    shown = "×".join(map(str, shape))
    for place, (axis, size) in enumerate(zip(dims, shape, strict=True)):
        expected = sizes.get(axis, 1)
        if size != expected and (size != 1 or axis == "n_K"):
            hint = None
            if shape == (sizes.get("n_batch"), sizes["n_K"]):
                one, line = (f"{shape[1]}×1", "column") if columns else (f"1×{shape[1]}", "row")
                hint = f"{shape[0]}×1×{one}, if each sequence has a {line} of its own for all queries"
            raise SizeError(
                f"mask in {file} has {axis} {size} (axis {place} of {shown}), but the scores have"
                f" {axis} {expected}.",
                hint=hint,
            )
    score_axes = [axis for axis in ("n_batch", "n_head", "n_Q", "n_K") if axis in sizes]
    mask_sizes = dict(zip(dims, shape, strict=True))
    aligned = [axis if mask_sizes.get(axis, 1) != 1 or sizes[axis] == 1 else "1" for axis in score_axes]
    return aligned if len(shape) > 2 else aligned[-2:]
