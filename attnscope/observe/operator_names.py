"""Names of operators by what they do: ATen's, those of torch's functions, and those that source has.

Code calls torch's functions, which a tape lists; each runs some operators of ATen, which a dispatch mode
receives: `matmul` becomes `mm`, `bmm` or `mv`.
"""

from __future__ import annotations

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
