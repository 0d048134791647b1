"""Names of operators by what they do: ATen's, those of torch's functions, and those that source has.

Code calls torch's functions, which a tape lists; each runs some operators of ATen, which a dispatch mode
receives: `matmul` becomes `mm`, `bmm` or `mv`.
"""

from __future__ import annotations

from collections.abc import Collection

# ATen.

ATEN_PRODUCTS = {
    "mm": (0, 1), "bmm": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2), "mv": (0, 1), "dot": (0, 1),
}  # fmt: skip
"""Products, and the positions of their two factors in the arguments."""

ATEN_SOFTMAXES = {"_softmax", "_safe_softmax"}

ATEN_VIEWS = {"view", "_unsafe_view", "reshape", "_reshape_alias"}
"""What regroups axes without moving an element."""

ATEN_SAME = {"clone", "detach", "alias", "_to_copy", "contiguous", "lift_fresh", "_conj", "positive"}
"""What returns its argument, or a copy: the same values in the same places."""

ATEN_MOVES = ("permute", "transpose", "t", "unsqueeze", "expand", "select")
"""What moves, adds or drops whole axes."""


def axes_after(name: str, args: tuple, n_before: int, n_after: int) -> list[int]:
    """Return which axis of its argument each axis of a result is, after one of `ATEN_MOVES`; -1 if new.

    >>> axes_after("transpose", ("x", -1, -2), 3, 3), axes_after("unsqueeze", ("x", 0), 2, 3)
    ([0, 2, 1], [-1, 0, 1])
    """
    axes = list(range(n_before))
    if name == "permute":
        return [axis % n_before for axis in args[1]]
    if name in ("transpose", "t") and n_before > 1:
        one, other = args[1:3] if len(args) > 2 else (0, 1)
        axes[one], axes[other] = axes[other], axes[one]
    elif name == "unsqueeze":
        axes.insert(args[1] % (n_before + 1), -1)
    elif name == "expand":
        axes = [-1] * (n_after - n_before) + axes
    elif name == "select":
        del axes[args[1]]
    return axes


# torch's functions, and methods of tensors.

MATRIX_PRODUCTS = {"matmul", "bmm", "mm", "baddbmm"}
"""Products of the last two axes."""

PRODUCTS = {*MATRIX_PRODUCTS, "einsum"}
"""Products of two tensors, whose axes the call names or implies."""

CONTRACTIONS = {*PRODUCTS, "linear", "addmm"}
"""These, and what multiplies by a weight and adds a bias."""

SOFTMAXES = {"softmax", "log_softmax"}
"""Both hide the same keys, but only the first returns weights."""

REGROUPS = {"view", "reshape", "unflatten"}
"""Methods that split and merge axes."""

PRODUCTS_IN_SOURCE = {*ATEN_PRODUCTS, "matmul", "__matmul__"}
"""What can fail because two widths differ: ATen's products are functions of torch, too."""


SDPA, FLEX, MHA = "scaled_dot_product_attention", "flex_attention", "multi_head_attention_forward"

PLACES = {SDPA: f"torch.nn.functional.{SDPA}", FLEX: f"torch.nn.attention.flex_attention.{FLEX}"}
"""Functions whose Q, K, V and output the caller has: their steps get rows only if they are followed."""

NATIVE = ("native_multi_head_attention", "transformer_encoder_layer_fwd")
"""Functions that compute multi-head attention in one kernel, without gradients: torch's "fast path"."""


def is_followed(name: str, follow: Collection[str]) -> bool:
    """Check whether the steps inside a function get rows; those of multi-head attention always do."""
    place = PLACES.get(name)
    return place is None or any(f"{place}.".startswith(f"{each}.") for each in follow)
