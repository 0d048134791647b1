"""The mask of a rule of the textbook, or of a function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from attnscope.attention.mask_rules import Masks, mask_axes, parse_masks
from attnscope.attention.positions import offset_of
from attnscope.base.errors import OptionError, SizeError, warn_unused
from attnscope.base.options import refuse
from attnscope.base.sizes import check_sizes
from attnscope.base.spelling import spelled, unnamed
from attnscope.base.units import bytes_text
from attnscope.masks.options import RuleOptions
from attnscope.masks.planes import Plane, RangePlane, planes_of_matrix
from attnscope.masks.result import AttentionMasks
from attnscope.masks.summary import mask_of_planes

N_Q = 16
"""The number of queries, if nothing else says it."""

MOST_RULES = 2**24
"""The most queries of a rule, whose keys are computed one by one."""


def masks_of_rule(subject: Any, options: RuleOptions, block: tuple[int, int]) -> AttentionMasks:
    """Return the mask of one rule or several."""
    rules = list(subject) if isinstance(subject, list | tuple) else [subject]
    texts = [str(each) if isinstance(each, str) else None for each in rules]
    if options.window is not None:
        rules.append(f"window:{options.window - 1}")
        texts.append(spelled("window", options.window))
    with unnamed("mask"):
        parsed = parse_masks(rules)
        align = options.align or ("bottom-right" if options.past else "top-left")
        masks = parsed.applied(align=align, dtype="float32")
        sizes = _sizes(options, masks)
        if masks.files:
            _check_memory(sizes)
        elif sizes["n_Q"] * sizes["n_batch"] > MOST_RULES:
            raise SizeError(
                f"{sizes['n_Q'] * sizes['n_batch']:,} queries are too many to list their keys.",
                hint=f"at most {MOST_RULES:,}",
            )
        planes = planes_of_masks(masks, sizes)
    title = " and ".join(text or own for text, own in zip_longest(texts, parsed.texts, fillvalue=""))
    result = _result(title, planes, sizes, block)
    _warn_of_heads(options, result)
    for file in masks.files:
        shape = "×".join(map(str, file.shape))
        is_open = options.batch is None and len(file.shape) == 3 and file.shape[0] > 1
        if is_open and mask_axes(file, sizes)[0] == "n_batch":
            result.notices.append(
                f"the first axis of {shape} is taken for sequences;"
                f" {spelled('heads', file.shape[0])} takes it for heads"
            )
    return result


def masks_of_function(subject: Any, options: RuleOptions, block: tuple[int, int]) -> AttentionMasks:
    """Return the mask of a function, or of a `BlockMask`."""
    from attnscope.code.load.mask_functions import function_of, visible_by_function

    if hasattr(subject, "mask_mod"):
        return _of_block_mask(subject, options, block)
    for option in ("window", "align"):
        if getattr(options, option) is not None:
            raise OptionError(
                f"{spelled(option)} is for rules, and this is a function.", hint=spelled(init="window=4")
            )
    sizes = _sizes(options, Masks())
    _check_memory(sizes)
    function, name = function_of(subject, options.init, sizes)
    if hasattr(function, "shape"):
        return _of_tensor(function, name, options, block)
    refuse({"hides": options.hides}, "is for a function that returns a mask of zeros and ones")
    visible = visible_by_function(function, name, sizes)
    result = _result(name, planes_of_matrix(visible, sizes), sizes, block)
    _warn_of_heads(options, result)
    return result


def _warn_of_heads(options: RuleOptions, result: AttentionMasks) -> None:
    """Warn if heads are requested that all have the same mask, of which one is shown."""
    is_shared = result.masks[0].n_head == 1
    warn_unused([((options.heads or 1) > 1 and is_shared, "heads", "all heads share the mask")])


def _of_tensor(mask: Any, name: str, options: RuleOptions, block: tuple[int, int]) -> AttentionMasks:
    """Return the mask that a function returned as a tensor."""
    from attnscope.attention.mask_values import read_mask

    read = read_mask(mask, name, options.hides)
    result = masks_of_rule(read.visible, replace(options, init=None), block)
    result.title = name
    if read.why and read.hides is not None:
        result.notices.append(f"{read.why}: {spelled('hides', 1 - read.hides)} says otherwise")
    return result


def _of_block_mask(subject: Any, options: RuleOptions, block: tuple[int, int]) -> AttentionMasks:
    """Return the mask of a `BlockMask`, which has sizes of its own."""
    from attnscope.model.masks.visible import MaskArguments, visible_keys

    n_batch, n_head, n_Q, n_K = subject.shape
    sizes = {"n_batch": n_batch, "n_head": n_head, "n_Q": n_Q, "n_K": n_K}
    if any(value is not None for name, value in vars(options).items() if name != "init"):
        raise OptionError("a BlockMask has sizes of its own.", hint="its mask_mod, for other sizes")
    _check_memory(sizes)
    device = subject.kv_num_blocks.device
    arguments = MaskArguments("flex_attention", n_batch, n_head, n_Q, n_K, subject, device=device)
    visible = visible_keys(arguments)
    assert visible is not None
    sizes["n_head"] = visible.shape[1]
    return _result("BlockMask", planes_of_matrix(visible.cpu(), sizes), sizes, block)


def _sizes(options: RuleOptions, masks: Masks) -> dict[str, int]:
    """Return the sizes of a mask: from options, from files and lengths, or by default."""
    file = max(masks.files, key=lambda file: len(file.shape), default=None)
    n_past = options.past or 0
    counts = {"n_batch": options.batch, "n_head": options.heads}
    of_files = {} if file is None else dict(zip(mask_axes(file, counts), file.shape, strict=True))
    n_Q = options.nq or of_files.get("n_Q") or N_Q
    n_new = options.nk or of_files.get("n_K", n_past + n_Q) - n_past
    lengths = max(map(len, masks.lengths), default=1)
    of_options = {"n_Q": options.nq, "n_K": options.nk, "n_past": options.past or None}
    of_options |= {"n_batch": options.batch, "n_head": options.heads}
    check_sizes({axis: size for axis, size in of_options.items() if size is not None})
    sizes = {
        "n_batch": options.batch or of_files.get("n_batch") or lengths,
        "n_head": options.heads or of_files.get("n_head") or 1,
        "n_Q": n_Q,
        "n_K": n_past + max(n_new, 1),
    }
    return sizes | ({"n_past": n_past} if n_past else {})


def _check_memory(sizes: Mapping[str, int]) -> None:
    """Raise a SizeError if a mask with a value for each pair does not fit into memory."""
    from math import prod

    from attnscope.base.process.devices import free_memory

    n_pairs = prod(sizes[axis] for axis in ("n_batch", "n_head", "n_Q", "n_K"))
    needed, free = 3 * n_pairs, free_memory("cpu")  # boolean, and copies of parts
    if free is not None and needed > free.n_bytes:
        raise SizeError(
            f"this mask has {n_pairs:,} pairs, which take {bytes_text(needed)}, but"
            f" {free.describe('cpu')}.",
            hint="fewer queries; a rule such as window:4 needs no memory for pairs",
        )


def _result(
    title: str, planes: list[Plane], sizes: dict[str, int], block: tuple[int, int]
) -> AttentionMasks:
    """Return the result for one mask; heads count only if their masks differ."""
    heads = {head for plane in planes for _, head in plane.places}
    sizes = sizes | {"n_head": len(heads)}
    return AttentionMasks(title, None, [mask_of_planes(planes, sizes, block)])


def planes_of_masks(masks: Masks, sizes: Mapping[str, int]) -> list[Plane]:
    """Return the keys that queries see; without files, neither torch nor numpy is needed.

    The sizes include `n_past` if there is one.
    """
    masks.dims(sizes)  # checks the sizes
    if masks.files:
        from attnscope.attention.masks import hidden

        return planes_of_matrix(~hidden(masks.build(sizes, "float32", "cpu")), sizes)
    n_Q, n_K, n_batch = sizes["n_Q"], sizes["n_K"], sizes["n_batch"]
    n_past, ends = sizes.get("n_past", 0), masks.ends or (n_K,) * n_batch
    first = offset_of(n_Q, n_K, align=masks.align, n_past=n_past, lengths=masks.ends)
    firsts = (first,) * n_batch if isinstance(first, int) else first
    places: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for sequence, which in enumerate(zip(firsts, ends, strict=True)):
        places.setdefault(which, []).append((sequence, 0))
    return [
        RangePlane(
            sequences,
            n_Q,
            n_K,
            [_range(masks, place, end) for place in range(first, first + n_Q)],
            first,
        )
        for (first, end), sequences in places.items()
    ]


def _range(masks: Masks, position: int, end: int) -> range:
    """Return the keys that a query sees of the first `end`: every kind of mask allows one range."""
    start: float = max([0, *(position - left for left, _ in masks.windows)])
    stop: float = min([end, *(position + right + 1 for _, right in masks.windows)])
    for chunk in masks.chunks:
        first = position // chunk * chunk
        start, stop = max(start, first), min(stop, first + chunk)
    if masks.causal:
        stop = min(stop, position + 1)
    for prefix in masks.prefixes:
        stop = min(stop, max(position + 1, prefix))
    return range(int(start), int(max(start, stop)))
