"""Masks as users write them: `causal`, `window:4`, `lengths:12,30`, a file, or several together."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any, cast

from attnscope.attention.positions import Align, offset_of
from attnscope.errors import OptionError, SizeError
from attnscope.tensor_files import in_memory, is_matrix_text, open_tensor, rows_in, tensor_of
from attnscope.text import nearest

if TYPE_CHECKING:
    import torch

    from attnscope.tensor_files import TensorFile

KINDS = ("causal", "window", "prefix", "lengths")
SYNTAX = "causal, window:W, window:L,R, prefix:P, lengths:N,N,…, or a FILE"
LEAST = {"float16": -65504.0}
"""The smallest number of a dtype, if a fill may be below it."""
HIDES = -1e4
"""A mask that adds this or less hides the key; same value as in `attnscope.attention.masks`."""


@dataclass(frozen=True)
class Masks:
    """All masks of a run; a query sees the keys that every mask allows.

    Attributes:
        texts: each mask as the user wrote it.
        causal: a query sees itself and earlier keys.
        windows: the numbers of keys that a query sees (before it, after it).
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
    windows: tuple[tuple[int, int], ...] = ()
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
        return self.causal or bool(self.windows) or bool(self.prefixes)

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
        offset = offset_of(n_Q, n_K, align=self.align)
        kinds = [masks.causal(n_Q, n_K, offset=offset)] if self.causal else []
        kinds += [masks.window(n_Q, n_K, *each, offset=offset) for each in self.windows]
        kinds += [masks.prefix(n_Q, n_K, each, offset=offset) for each in self.prefixes]
        for each in self.lengths:
            padding = masks.lengths(each, n_K)
            kinds.append(padding[:, None] if "n_head" in sizes else padding)
        added = torch.zeros(())
        for file in self.files:
            axes = fitted(file, sizes, columns=self.columns)
            values = file.load().mT if self.columns else file.load()
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

        Every kind of mask allows one contiguous range of keys, so a query sees none if the latest
        start is after the earliest end.

        Args:
            sizes: the sizes of the run.
            query: count only the rows of this query.
        """
        if self.files:
            return None
        n_Q, n_K, n_batch = sizes["n_Q"], sizes["n_K"], sizes.get("n_batch", 1)
        first = offset_of(n_Q, n_K, align=self.align)
        places = range(first, first + n_Q) if query is None else range(first + query, first + query + 1)
        before = min((left for left, _ in self.windows), default=n_Q + n_K)
        after = min([right for _, right in self.windows] + [0] * self.causal, default=n_Q + n_K)
        least = max(
            [-after] + [0 for length in self.prefixes if length == 0]
        )  # earlier queries see nothing
        seeing = 0
        for sequence in range(n_batch):
            ends = [n_K, *(each[sequence] for each in self.lengths)]
            last = min(ends) - 1
            if last >= 0:
                low, high = max(places.start, least), min(places.stop - 1, last + before)
                seeing += max(0, high - low + 1)
        return (n_batch * len(places) - seeing) * sizes.get("n_head", 1)

    def _check(self, sizes: Mapping[str, int]) -> None:
        n_batch, n_K = sizes.get("n_batch", 1), sizes["n_K"]
        for each in self.lengths:
            if len(each) != n_batch:
                raise SizeError(
                    f"{len(each)} lengths ({','.join(map(str, each))}) are given for {n_batch}"
                    " sequences.",
                    hint=f"--mask lengths: with {n_batch} numbers"
                    + (f", or --batch {len(each)}" if "n_batch" in sizes else ""),
                )
            if max(each) > n_K:
                raise SizeError(f"a length of {max(each)} is more than there are keys: n_K is {n_K}.")
        for length in self.prefixes:
            if length > n_K:
                raise SizeError(f"a prefix of {length} is more than there are keys: n_K is {n_K}.")


def parse_masks(masks: Any) -> Masks:
    """Parse one mask or several.

    Args:
        masks: one or several, each `causal`, `window:W`, `window:L,R`, `prefix:P`, `lengths:N,N,…`, a
            file, a numpy array or a torch tensor; None: no mask.

    Raises:
        OptionError: a kind of mask is unknown, or its numbers are invalid.
        FileError: a file cannot be read.
    """
    if masks is None:
        return Masks()
    several = masks if isinstance(masks, list | tuple) else [masks]
    kinds = [_parsed(each) for each in several]
    return Masks(
        texts=tuple(text for each in kinds for text in each.texts),
        causal=any(each.causal for each in kinds),
        windows=tuple(window for each in kinds for window in each.windows),
        prefixes=tuple(prefix for each in kinds for prefix in each.prefixes),
        lengths=tuple(lengths for each in kinds for lengths in each.lengths),
        files=tuple(file for each in kinds for file in each.files),
    )


def _parsed(mask: Any) -> Masks:
    """Parse one mask."""
    if isinstance(mask, os.PathLike):
        mask = os.fspath(mask)
    if not isinstance(mask, str):
        tensor = in_memory("mask", mask, "the argument mask")
        return Masks(("×".join(map(str, tensor.shape)),), files=(tensor,))
    if is_matrix_text(mask):
        return Masks((mask,), files=(tensor_of("mask", mask, "the argument mask"),))
    several = re.split(r",\s*(?=[a-z])", mask)
    if len(several) > 1 and {each.partition(":")[0] for each in several} <= {*KINDS}:
        hint = " ".join(f"--mask {each}" for each in several)
        raise OptionError(f"{mask!r} is {len(several)} masks, and each needs a --mask.", hint=hint)
    kind, colon, rest = mask.partition(":")
    numbers = tuple(int(n) for n in rest.split(",")) if re.fullmatch(r"\d+(,\d+)*", rest) else ()
    if kind not in KINDS:
        if not (colon or "." in mask or os.sep in mask):
            raise OptionError(f"{mask!r} is not a mask.", hint=f"--mask {rows_in(mask) or _hint(kind)}")
        return Masks((mask,), files=(open_tensor("mask", mask),))
    if kind == "causal" and not colon:
        return Masks((mask,), causal=True)
    if kind == "window" and len(numbers) in (1, 2):
        return Masks((mask,), windows=((numbers[0], numbers[-1]),))
    if kind == "prefix" and len(numbers) == 1:
        return Masks((mask,), prefixes=numbers)
    if kind == "lengths" and numbers:
        return Masks((mask,), lengths=(numbers,))
    raise OptionError(f"{mask!r} is not a mask.", hint=f"--mask {_hint(kind)}")


def _hint(kind: str) -> str:
    """Return the syntax of the mask that is meant, or else of all."""
    syntax = {
        "causal": "causal",
        "window": "window:W or window:L,R",
        "prefix": "prefix:P",
        "lengths": "lengths:N,N,…",
    }
    return syntax.get(nearest(kind, syntax) or "", SYNTAX)


def _check_fill(fill: float, dtype: str) -> None:
    if not fill <= HIDES:
        raise OptionError(
            f"a mask fill of {fill:g} does not hide keys.",
            hint="--mask-fill -inf, or -1e9",
        )
    least = LEAST.get(dtype, -inf)
    if -inf < fill < least:
        raise OptionError(
            f"{fill:g} is out of the range of {dtype}: its lowest number is {least:g}.",
            hint=f"--mask-fill -inf, or {least:g}",
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


def fitted(file: TensorFile, sizes: Mapping[str, int], *, columns: bool = False) -> list[str]:
    """Return the axes of a mask from a file, aligned with those of the scores by rows.

    Args:
        file: `n_Q n_K`, `n_batch n_Q n_K` or `n_batch n_head n_Q n_K`; all but n_K may be 1.
        sizes: the sizes of the scores' axes.
        columns: whether the last two axes are n_K n_Q.

    Raises:
        SizeError: the mask does not fit the scores.
    """
    scores = ["n_K", "n_Q"] if columns else ["n_Q", "n_K"]
    axes = {2: scores, 3: ["n_batch", *scores], 4: ["n_batch", "n_head", *scores]}
    shape, dims = file.shape, axes.get(len(file.shape))
    shown = "×".join(map(str, shape)) or "a scalar"
    if dims is None:
        raise SizeError(
            f"mask in {file} is {shown}, and a mask has 2, 3 or 4 axes.",
            hint=", or ".join(" ".join(each) for each in axes.values()),
        )
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
