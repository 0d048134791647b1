"""The mask of a rule of the textbook, or of a function."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

from attnscope.attention.mask_rules import Masks, hints_without_flag, mask_axes, parse_masks
from attnscope.contracts.plan import check_sizes
from attnscope.errors import OptionError, SizeError
from attnscope.masks.options import RuleOptions
from attnscope.masks.planes import Plane, planes_of_matrix
from attnscope.masks.ranges import planes_of_masks
from attnscope.masks.result import AttentionMasks
from attnscope.masks.summary import mask_of_planes
from attnscope.units import bytes_text

N_Q = 16
"""The number of queries, if nothing else says it."""

MOST_RULES = 2**24
"""The most queries of a rule, whose keys are computed one by one."""


def masks_of_rule(subject: Any, options: RuleOptions, block: tuple[int, int]) -> AttentionMasks:
    """Return the mask of one rule or several.

    Raises:
        OptionError: a rule is wrong.
        SizeError: a mask does not fit the sizes.
        FileError: a file cannot be read.
    """
    rules = list(subject) if isinstance(subject, list | tuple) else [subject]
    texts = [str(each) if isinstance(each, str) else None for each in rules]
    if options.window is not None:
        rules.append(f"window:{options.window - 1}")
        texts.append(f"--window {options.window}")
    with hints_without_flag():
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
    for file in masks.files:
        shape = "×".join(map(str, file.shape))
        is_open = options.batch is None and len(file.shape) == 3 and file.shape[0] > 1
        if is_open and mask_axes(file, sizes)[0] == "n_batch":
            result.notices.append(
                f"the first axis of {shape} is taken for sequences; --heads {file.shape[0]} takes it for"
                " heads"
            )
    return result


def masks_of_function(subject: Any, options: RuleOptions, block: tuple[int, int]) -> AttentionMasks:
    """Return the mask of a function, or of a `BlockMask`.

    Raises:
        SourceError: the function cannot be loaded, or raises an exception.
        OptionError: its arguments are missing or wrong, or it does not return booleans.
        SizeError: the mask is too large.
    """
    from attnscope.user_code.mask_functions import function_of, visible_by_function

    if hasattr(subject, "mask_mod"):
        return _of_block_mask(subject, options, block)
    for option in ("window", "align"):
        if getattr(options, option) is not None:
            raise OptionError(
                f"--{option} is for rules, and this is a function.", hint="--init window=4"
            )
    sizes = _sizes(options, Masks())
    _check_memory(sizes)
    function, name = function_of(subject, options.init, sizes)
    visible = visible_by_function(function, name, sizes)
    return _result(name, planes_of_matrix(visible, sizes), sizes, block)


def _of_block_mask(subject: Any, options: RuleOptions, block: tuple[int, int]) -> AttentionMasks:
    """Return the mask of a `BlockMask`, which has sizes of its own."""
    from attnscope.models.masks.visible import MaskArguments, visible_keys

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
    of_options = {"n_Q": options.nq, "n_K": options.nk, "n_past": options.past}
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

    from attnscope.process.devices import free_memory

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
