"""A side that is the textbook: `sdpa` or `mha`, with the inputs and weights of the other side."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import torch
from torch import nn

from attnscope.attention.masks import causal
from attnscope.attention.mha import MultiHeadAttention
from attnscope.attention.sdpa import sdpa
from attnscope.base.errors import OptionError, SizeError
from attnscope.base.spelling import spelled
from attnscope.code.pairs.implementation import Side, tensors_of
from attnscope.code.pairs.pairing import PADDING, matched, role_of
from attnscope.observe.operators.anatomy import Anatomy
from attnscope.observe.operators.projections import NOT_POSITIONS, axis_of_positions, operand_of

NAMES = ("Q", "K", "V", "mask")


def sdpa_side(
    side: Side, anatomy: Anatomy | None, same: dict[str, str], options: dict[str, Any]
) -> Side:
    """Return scaled dot-product attention on the inputs of the other side."""
    has_columns = options.pop("layout", "rows") == "columns"
    if anatomy is not None and (names := [name for name in "QKV" if name in anatomy.projections]):
        raise OptionError(
            f"{side.title} projects {', '.join(names)} with weights, and sdpa has none.",
            hint="compare it with mha" if len(names) == len("QKV") else "compare it with other code",
        )
    tensors = tensors_of(side)
    pairs = matched(NAMES, list(tensors), same, "sdpa")
    missing = [name for name in NAMES[:3] if name not in pairs]
    if missing:
        raise OptionError(
            f"no input of {side.title} is known to be {', '.join(missing)} of sdpa: it has"
            f" {', '.join(tensors)}.",
            hint=spelled(same=f"{missing[0]}={next(iter(tensors), 'x')}"),
        )
    inputs = {name: tensors[pairs[name]] for name in NAMES[:3]}
    if has_columns:
        axis = -1
    elif anatomy is None:
        axis = -2
    elif all(_are_columns(anatomy, name) for name in ("Q", "K")):
        raise SizeError(
            f"the vectors of {side.title} are columns of its inputs, and those of sdpa are rows.",
            hint=f"if that is meant: {spelled(layout='columns')}",
        )
    else:
        axis = _axis(side, anatomy, pairs["Q"], inputs["Q"], "sdpa")
    options |= _split(anatomy, inputs) if anatomy is not None and axis == -2 else {}
    Q, K = (inputs[name].transpose(axis, -2) for name in ("Q", "K"))
    n_lead = Q.ndim - 2 + ("n_head" in options)
    inputs |= _masks(side, pairs.get("mask"), Q, K, n_lead, _offset(options, Q, K))
    if has_columns and "mask" in inputs and "mask" in pairs:  # as that of the scores, n_K n_Q
        inputs["mask"] = inputs["mask"].mT

    def reference(
        Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        if axis == -2:
            return sdpa(Q, K, V, mask, **options)
        Q, K, V = (each.transpose(axis, -2) for each in (Q, K, V))
        return sdpa(Q, K, V, mask, **options).transpose(axis, -2)

    return Side("sdpa", reference, inputs)


def _are_columns(anatomy: Anatomy, name: str) -> bool:
    """Check whether neighbours in an input are positions of Q or K, rather than features."""
    elements = anatomy.origins.get(name)
    if elements is None or min(elements.shape[1:]) < 2:
        return False
    return bool((elements[:, 1:] - elements[:, :-1] == 1).all())


def mha_side(side: Side, anatomy: Anatomy, same: dict[str, str], options: dict[str, Any]) -> Side:
    """Return multi-head attention of the sizes of the other side, on what its projections receive."""
    if options.pop("layout", "rows") == "columns":
        raise OptionError(
            f"{spelled('layout', 'columns')} is for functions beside sdpa, and mha has rows."
        )
    missing = [name for name in "QKV" if name not in anatomy.projections]
    if missing:
        raise OptionError(
            f"no projection was found before {', '.join(missing)} of {side.title}: it is not multi-head"
            " attention.",
            hint="compare it with sdpa" if len(missing) == len("QKV") else "compare it with other code",
        )
    mixed = [name for name, each in anatomy.projections.items() if not each.is_all]
    if mixed:
        raise OptionError(
            f"{', '.join(mixed)} of {side.title} {'holds' if len(mixed) == 1 else 'hold'} what no"
            " projection of its input gives, like a cache or a prefix: it is not multi-head attention.",
            hint="compare it with other code",
        )
    pairs = matched(NAMES, list(tensors_of(side)), same, "mha")
    inputs, notices = _operands(side, anatomy, pairs, set(same) | set(same.values()))
    for name, each in inputs.items():
        if each.ndim not in (2, 3):
            shape = "×".join(map(str, each.shape))
            raise SizeError(
                f"mha takes {name} as n_batch n d_feat, and that of {side.title} is {shape}."
            )
    name = pairs.get("Q", "")
    axis = _axis(side, anatomy, name, inputs["Q"], "mha") if inputs["Q"].ndim == 3 else -2
    if axis != -2:
        notices.append(f"{side.title} attends along axis 0 of its inputs, and so does mha here")
    Q, K = (inputs[name].transpose(axis, -2) for name in ("Q", "K"))
    Q, K = (each if each.ndim == 3 else each[None] for each in (Q, K))
    inputs |= _masks(side, pairs.get("mask"), Q, K, 2, _offset(options, Q, K))
    module = _module(side, anatomy, inputs, axis, options)
    if isinstance(module.W_O, nn.Identity):
        notices.append(f"{side.title} has no projection after attention, and so mha has none here")
    return Side("mha", module, inputs, module=module, notices=notices)


class Arranged(MultiHeadAttention):
    """Multi-head attention of inputs with other axes: `n d_feat`, or `n n_batch d_feat`."""

    #: The axis of the positions, from the end.
    axis: int

    def forward(  # type: ignore[override]
        self, Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Attend; see `MultiHeadAttention`."""
        if Q.ndim == 2:
            return super().forward(Q[None], K[None], V[None], mask)[0]
        Q, K, V = (each.transpose(self.axis, -2) for each in (Q, K, V))
        return super().forward(Q, K, V, mask).transpose(self.axis, -2)


def _module(
    side: Side, anatomy: Anatomy, inputs: Mapping[str, torch.Tensor], axis: int, options: dict[str, Any]
) -> MultiHeadAttention:
    """Return multi-head attention with projections of the sizes of the other side's."""
    projections, dtype = anatomy.projections, inputs["Q"].dtype
    d_head, d_V = (anatomy.roles[name].tensor.shape[-1] for name in ("Q", "V"))
    n_features = {name: each.features.numel() for name, each in projections.items()}
    n_head = n_features["Q"] // d_head
    is_arranged = axis != -2 or inputs["Q"].ndim == 2
    module = (Arranged if is_arranged else MultiHeadAttention)(
        d_feat=inputs["Q"].shape[-1],
        n_head=n_head,
        d_head=d_head,
        n_kv_head=n_features["K"] // d_head,
        d_V=d_V,
        dtype=dtype,
        **options,
    )
    if isinstance(module, Arranged):
        module.axis = axis
    widths = {name: inputs[name].shape[-1] for name in "QKV"} | {"O": n_head * d_V}
    for name, width in widths.items():
        known = projections.get(name)
        if known is not None:
            has_bias = known.bias is not None
            projection: nn.Module = nn.Linear(width, n_features[name], bias=has_bias, dtype=dtype)
        else:  # W_O, which the code does not have; or does not call
            idle = _idle(side, anatomy, width)
            projection = (
                nn.Identity() if idle is None else nn.Linear(width, idle, bias=False, dtype=dtype)
            )
        setattr(module, f"W_{name}", projection)
    return module.eval()


def _idle(side: Side, anatomy: Anatomy, width: int) -> int | None:
    """Return the number of rows of a weight that the code does not use, and that fits a width."""
    used = {each.weight for each in anatomy.tape.values}
    idle = [each for name, each in side.parameters.items() if name not in used and each.ndim == 2]
    return next((each.shape[0] for each in idle if each.shape[1] == width), None)


def _operands(
    side: Side, anatomy: Anatomy, pairs: Mapping[str, str], stated: set[str]
) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Find the tensors from which Q, K and V are projected, and describe those that are not inputs.

    An input that the code normalises first, for example, is taken as it is then. But if the code
    projects something else than the input whose name says what it is, that is its mistake. About the
    parameters in `stated`, the user has said what they are.
    """
    tensors = tensors_of(side)
    inputs, places = dict[str, torch.Tensor](), dict[str, str]()
    for name in "QKV":
        operand, expected = operand_of(anatomy.projections[name]), pairs.get(name)
        is_known = expected in stated or (expected and role_of(expected) in (name, "context"))
        if operand.input is not None and (expected is None or not is_known):
            inputs[name] = tensors[operand.input]
        elif operand.input is None and (not is_known or expected in operand.sources):
            inputs[name] = operand.value.tensor
            places[str(operand)] = ""
        else:
            inputs[name] = tensors[str(expected)]
    notices = [f"mha gets {place}, from which {side.title} computes Q, K or V" for place in places]
    return inputs, notices


def _axis(side: Side, anatomy: Anatomy, name: str, Q: torch.Tensor, title: str) -> int:
    """Return the axis of positions in the inputs, from the end.

    Any other than the last but one must be meant, as the names of axes say, or `batch_first`: it may
    be a mistake.
    """
    axis = axis_of_positions(anatomy) or -2
    axes = side.axes.get(name) or ()
    is_meant = len(axes) >= 2 and bool(NOT_POSITIONS.search(str(axes[-2])))
    if axis == -2 or is_meant or getattr(side.module, "batch_first", True) is False:
        return axis
    shape = (
        tensors_of(side)[name].shape if name in side.inputs else anatomy.roles["Q"].value.tensor.shape
    )
    i = len(shape) + axis
    names = ["n_Q", "n_batch"] if len(shape) == 3 else ["n_batch", "n_Q", "n_head"]
    named = [f"{each}:{size}" for each, size in zip(names, shape, strict=False)]
    example = f"{name}={','.join([*named, str(shape[-1])])}"
    is_input = tensors_of(side).get(name) is Q
    hints = [f"if that is meant, name the axes: {spelled(inputs=example)}"] if is_input else []
    if side.has_batch_second:
        hints.insert(0, f"batch_first=True where {side.title} is built")
    raise SizeError(
        f"{side.title} attends along axis {i} of its inputs ({shape[i]} positions), and {title} along"
        f" axis {len(shape) - 2} ({shape[-2]}).",
        hint="; ".join(hints) or None,
    )


def _split(anatomy: Anatomy, inputs: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Return into how many heads the code splits Q and K, if it does."""
    lead = inputs["Q"].shape[:-2]
    d_head = anatomy.roles["Q"].tensor.shape[-1]
    n_head, rest = divmod(anatomy.roles["Q"].tensor.shape[0], prod(lead))
    if len(lead) != 1 or rest or n_head == 1 or inputs["Q"].shape[-1] != n_head * d_head:
        return {}
    return {"n_head": n_head, "n_kv_head": inputs["K"].shape[-1] // d_head}


def _offset(options: dict[str, Any], Q: torch.Tensor, K: torch.Tensor) -> int | None:
    """Take what says where queries are from the options; return the key of query 0, if causal.

    Rotary positions are given their alignment.
    """
    past, align = options.pop("past", None), options.pop("align", "top-left")
    n_Q, n_K = Q.shape[-2], K.shape[-2]
    offset: int = past if past is not None else n_K - n_Q if align == "bottom-right" else 0
    if "rope_theta" in options:
        if offset not in (0, n_K - n_Q):
            raise SizeError(
                f"with {spelled('past', past)}, rotary positions need {past} more keys than queries:"
                f" n_Q is {n_Q}, and n_K is {n_K}.",
                hint=spelled(past=max(0, n_K - n_Q)),
            )
        options["align"] = "bottom-right" if offset else "top-left"
    return offset if options.pop("causal", False) else None


def _masks(
    side: Side, name: str | None, Q: torch.Tensor, K: torch.Tensor, n_lead: int, offset: int | None
) -> dict[str, torch.Tensor]:
    """Return the mask, which the reference adds to scores of `n_lead` axes, n_Q and n_K.

    The mask is causal if `offset`, the key of query 0, is known.
    """
    n_batch, n_Q, n_K = Q.shape[0], Q.shape[-2], K.shape[-2]
    if offset is not None:
        return {"mask": causal(n_Q, n_K, offset=offset)}
    if name is None:
        return {}
    mask = tensors_of(side)[name]
    if mask.dtype != torch.bool and bool(((mask == 0) | (mask == 1)).all()) and bool((mask == 1).any()):
        mask = mask.bool()  # 1 where a query may attend
    if mask.dtype == torch.bool and (name in PADDING or isinstance(side.module, nn.MultiheadAttention)):
        mask = ~mask  # True where a key is hidden, as in torch's modules
    if mask.shape == (n_batch, n_K) != (n_Q, n_K) and n_lead:  # of the keys of each sequence
        mask = mask.reshape(n_batch, *[1] * n_lead, n_K)
    elif mask.ndim == 3 and n_lead == 2:  # of each sequence, or of each head of each
        is_of_heads = mask.shape[0] not in (1, n_batch) and mask.shape[0] % n_batch == 0
        mask = mask.unflatten(0, (n_batch, -1)) if is_of_heads else mask.unsqueeze(1)
    return {"mask": mask}
