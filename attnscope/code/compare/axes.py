"""The names and sizes of the axes of compared tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from attnscope.code.compare.divergence.find_divergences import Examination
from attnscope.code.compare.divergence.first_difference import TensorDifference, unraveled
from attnscope.code.compare.divergence.state import n_head_of
from attnscope.code.compare.result import ComparedTensor
from attnscope.code.pairs.implementation import Side, tensors_of
from attnscope.observe.operators.anatomy import Role
from attnscope.observe.operators.projections import has_sequence_for_each_input, tied_axis


def sizes_of(examination: Examination) -> dict[str, int]:
    """Return the sizes of the axes by name."""
    state = examination.a
    if "Q" not in state.anatomy.roles:
        rows = (state[name].shape[0] for name in ("edge_attention", "x_raw"))
        return dict(zip(("n_edge", "n_node"), rows, strict=True))
    Q, K, V = (state[name] for name in "QKV")
    n_lead, n_Q, n_K = *Q.shape[:2], K.shape[1]
    n_head = n_head_of(examination.a, examination.b)
    sizes = {"n_head": n_head} if n_head else {"lead": n_lead}
    tied = tied_axis(state.anatomy)
    if n_head:
        n_sequence = n_lead // n_head
        if tied is not None:
            n_sequence = _sequences(examination, "Q", n_head).unique().numel()
        if _sequences_name(examination, n_sequence) == "n_batch":
            sizes = {"n_batch": n_sequence, **sizes}
    name, n_tied = tied or ("", 1)
    d_head = Q.shape[-1] // n_tied
    sizes |= {"n_Q": n_Q, "n_K": n_K, "d_head": d_head}
    sizes |= {name: n_tied} if name and not name.isdigit() else {}
    return sizes | ({"d_V": V.shape[-1]} if V.shape[-1] != d_head else {})


def _sequences(examination: Examination, role: str, n_head: int) -> torch.Tensor:
    """Number the sequences of each lead of a tensor; those with the same elements have one number.

    Rows that share one map have the same queries, and other values.
    """
    state = examination.a
    elements = state.role(role).elements
    n_lead = state[role].shape[0]
    if elements is None:
        return torch.arange(n_lead // n_head)
    elements = state.ordered(elements)
    return elements.reshape(n_lead // n_head, -1).unique(dim=0, return_inverse=True)[1]


def _sequences_name(examination: Examination, n_sequence: int) -> str:
    """Return the name of the axis of sequences: its size, if the inputs have another batch."""
    sides = examination.a.anatomy, examination.b.anatomy
    is_batch = any(has_sequence_for_each_input(each, n_sequence) for each in sides)
    return "n_batch" if is_batch else str(n_sequence)


def axes_of(
    examination: Examination, role: str, tensor: torch.Tensor, n_head: int | None
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the names and sizes of a tensor's axes, heads apart from sequences if these are known.

    The name of an axis is its size where it is not known what it counts.
    """
    own = examination.a.role(role)
    dims, shape = own.axes, tuple(tensor.shape)
    if dims[0] == "tokens" and "Q" in examination.a.anatomy.roles:
        return _axes_of_tokens(examination, own, n_head)
    if n_head is None:
        return _axes_of_code(examination, own) or (dims, shape)
    n_sequence = examination.a["Q"].shape[0] // n_head
    first = _sequences_name(examination, n_sequence)
    if dims[0] == "lead" and (tied := tied_axis(examination.a.anatomy)) is not None:
        n_sequence = _sequences(examination, role, n_head).unique().numel()
        first = _sequences_name(examination, n_sequence)
        dims = tuple(f"{tied[0]}·d_head" if each == "d_head" else each for each in dims)
    if dims[0] == "heads" and shape[0] % n_sequence == 0:
        heads = "n_head" if shape[0] == n_sequence * n_head else "n_kv_head"
        return (first, heads, *dims[1:]), (n_sequence, shape[0] // n_sequence, *shape[1:])
    if dims[0] == "lead":
        return (first, "n_head", *dims[1:]), (n_sequence, n_head, *shape[1:])
    return dims, shape


def _axes_of_code(examination: Examination, own: Role) -> tuple[tuple[str, ...], tuple[int, ...]] | None:
    """Return the axes that the code has in place of the leads; None if it has them in another order."""
    value = own.value.flat_indices
    if own.elements is None or own.elements.ndim != 3 or own.elements.numel() != value.numel():
        return None
    elements = examination.a.ordered(own.elements)
    is_same = torch.equal(elements.reshape(-1), value.reshape(-1))
    if not is_same or value.shape[-2:] != elements.shape[-2:]:
        return None
    return (*map(str, value.shape[:-2]), *own.axes[1:]), tuple(value.shape)


def _axes_of_tokens(
    examination: Examination, own: Role, n_head: int | None
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the names and sizes of the axes of a tensor that was arranged as `tokens features`.

    They are those of the code where it has the tokens sequence by sequence, too.
    """
    n_token, width = own.tensor.shape
    code = tuple(own.value.tensor.shape[:-1])
    Q, K = (examination.a[name] for name in "QK")
    n_lead, n_Q, n_K = *Q.shape[:2], K.shape[1]
    n, size = ("n_Q", n_Q) if own.name[0] in "Qxo" else ("n_K", n_K)
    n_sequence = n_lead // n_head if n_head else n_token // size
    if len(code) < 2:
        return own.axes, (n_token, width)
    first = _sequences_name(examination, n_sequence) if n_head else "n_batch"
    if own.name == "output" and code == (size, n_sequence) != (n_sequence, size):
        return (n, first, "d_feat"), (*code, width)
    if own.elements is not None and not bool((own.elements[:, 0].diff() > 0).all()):
        code = n_sequence, n_token // n_sequence  # the code has them in another order
    if code == (n_sequence, size):
        return (first, n, "d_feat"), (*code, width)
    names = [str(each) for each in code]
    if code[-1] == size:
        names[-1] = n
    has_heads = len(code) > 2 and width == examination.a["V"].shape[-1]
    return (*names, "d_V" if has_heads else "d_feat"), (*code, width)


def place_of(
    examination: Examination, role: str, found: TensorDifference, n_head: int | None
) -> tuple[int, ...]:
    """Return where a difference is largest; leads with the same elements count once."""
    is_lead = examination.a.role(role).axes[0] == "lead"
    if not (found.index and n_head and is_lead) or tied_axis(examination.a.anatomy) is None:
        return found.index
    lead, *others = found.index
    sequence = int(_sequences(examination, role, n_head)[lead // n_head])
    return sequence * n_head + lead % n_head, *others


def index_of(place: tuple[int, ...], dims: tuple[str, ...], shape: tuple[int, ...]) -> dict[str, int]:
    """Locate the largest difference, by axis; an axis without a name is called `axis_0`."""
    if not place:
        return {}
    names = (f"axis_{i}" if dim.isdigit() else dim for i, dim in enumerate(dims))
    first, *others = place
    n_counted = len(shape) - len(others)  # the axes that the first one counts
    return dict(zip(names, (*unraveled(first, shape[:n_counted]), *others), strict=False))


def with_stated_names(tensor: ComparedTensor, sides: Sequence[Side]) -> ComparedTensor:
    """Name the axes of a tensor that have no name like those of inputs with their sizes, if one is."""
    names: dict[int, set[str]] = {}
    for side in sides:
        for name, value in tensors_of(side).items():
            axes = side.axes.get(name) or ()
            for axis, size in zip(axes, value.shape, strict=False):
                names.setdefault(size, set()).update([axis] if axis and isinstance(axis, str) else [])
    dims, index = [*tensor.dims], dict(tensor.index)
    for i, (dim, size) in enumerate(zip(tensor.dims, tensor.shape, strict=True)):
        [name, *others] = sorted(names.get(size, ())) or [dim]
        if (dim.isdigit() or dim == f"axis_{i}") and not others and name not in dims:
            dims[i] = name
            index = {name if each == f"axis_{i}" else each: at for each, at in index.items()}
    return replace(tensor, dims=tuple(dims), index=index)
