"""The masks of a user's attention code: which keys each query sees in one call of it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from types import ModuleType
from typing import Any

import torch

from attnscope.base.errors import SourceError
from attnscope.base.options import Texts, inputs_of
from attnscope.base.process.files import cell_of
from attnscope.base.process.random_state import kept_global_random_state
from attnscope.code.load.load import load_target
from attnscope.code.pairs.code import code_side, fitting_inputs, inputs_by_name
from attnscope.code.pairs.implementation import Side, tensors_of
from attnscope.code.pairs.pairing import Pairing
from attnscope.masks.hidden import UndecidedError, visible_keys
from attnscope.masks.options import CodeOptions
from attnscope.masks.result import AttentionMasks
from attnscope.masks.summary import mask_of_tensor
from attnscope.observe.operators.anatomy import Anatomy
from attnscope.observe.operators.place import SourceExpression, is_library
from attnscope.observe.operators.projections import tokens
from attnscope.observe.operators.roles import attentions_of

HINT = "audit, which measures which positions influence which in any code"


def masks_of_code(
    subject: Any, args: Sequence[Any], code: CodeOptions, init: Texts | None, block: tuple[int, int]
) -> AttentionMasks:
    """Call code once, and return the mask of each attention that it computes; see `attnscope.mask`."""
    inputs = inputs_of(args, code.inputs)
    loaded = load_target(subject)
    named_inputs = inputs_by_name(subject, () if inputs is None else inputs, code.call)
    notices = []
    with kept_global_random_state():
        pairing = Pairing(
            init or (), named_inputs, call=code.call, dtype=_dtype_of(loaded.object, named_inputs)
        )
        if not named_inputs:
            usual = fitting_inputs(subject, pairing)
            pairing = replace(pairing, inputs=usual)
            if usual:
                notices.append(f"the inputs are drawn: {' '.join(usual)}")
        side = _own(code_side(loaded, loaded.name, pairing))
        run = side.run(pairing.seed)
    found, others = attentions_of(run.tape, run.output)
    failures: dict[str, str] = {}
    names = _names(side, found, loaded.module)
    masks = []
    for name, anatomy in zip(names, found, strict=True):
        try:
            keys = visible_keys(anatomy)
        except UndecidedError as error:
            failures[name] = str(error)
            continue
        visible = _by_sequence(anatomy, keys.visible.cpu())
        if bool((visible == visible[:, :1]).all()):  # heads count only if their masks differ
            visible = visible[:, :1]
        masks.append(mask_of_tensor(visible, block, name=name))
        notices += [f"{name}: {note}" if len(found) > 1 else note for note in keys.notes]
    softmaxes = {
        _name("", value.place, loaded.module) or "a softmax": why for value, why in others.items()
    }
    if not masks:
        reasons = [*failures.items(), *softmaxes.items()]
        where, why = next(iter(reasons), ("", "it multiplies no softmax of scores by values"))
        place = f"{where}: " if where else ""
        raise SourceError(
            f"which keys queries see in {loaded.name} is not known: {place}{why}.", hint=HINT
        )
    notices += [f"{name}: which keys queries see is not known: {why}" for name, why in failures.items()]
    notices += [f"{name}: left out, because {why}" for name, why in softmaxes.items()]
    return AttentionMasks(loaded.name, None, masks, notices=notices)


def _dtype_of(target: Any, inputs: Texts) -> str:
    """Return the dtype of a module, or of the tensors that a function is called with."""
    tensors: list[Any] = []
    if isinstance(target, torch.nn.Module):
        tensors += target.parameters()
    elif isinstance(inputs, dict):
        tensors += inputs.values()
    dtypes = (
        each.dtype for each in tensors if isinstance(each, torch.Tensor) and each.is_floating_point()
    )
    return str(next(dtypes, torch.float32)).removeprefix("torch.")


def _own(side: Side) -> Side:
    """Return a copy without dropout, which leaves the caller's module and tensors as they are."""
    own = side.with_own_module()
    if own.module is not None:
        own.module.eval()
    copies = {name: each.detach().clone() for name, each in tensors_of(own).items()}
    return replace(own, inputs=own.inputs | copies)


def _by_sequence(anatomy: Anatomy, visible: torch.Tensor) -> torch.Tensor:
    """Return a mask as `n_batch n_head n_Q n_K`.

    Heads of one sequence have queries from the same tokens. If queries come from no projection, the
    shape of the scores tells sequences from heads.

    `visible` is `lead n_Q n_K`.
    """
    n_lead = len(visible)
    known = tokens(anatomy, "Q") if "Q" in anatomy.projections else None
    if known is not None:
        rows = known[1][:, :, 0]
        _, sequence = rows.unique(dim=0, return_inverse=True)
        counts = sequence.bincount()
        if bool((counts == counts[0]).all()):
            order = sequence.argsort(stable=True)
            return visible[order].reshape(len(counts), -1, *visible.shape[1:])
    value = anatomy.roles["x_raw"].value if anatomy.raw is None else anatomy.raw
    lead = value.tensor.shape[:-2]
    n_batch = lead[0] if len(lead) > 1 and lead.numel() == n_lead else n_lead
    return visible.reshape(n_batch, -1, *visible.shape[1:])


def _names(side: Side, found: Sequence[Anatomy], module: ModuleType) -> list[str]:
    """Return a name for each attention: the path of its module, and the line."""
    names = []
    for anatomy in found:
        call = anatomy.fused
        place = anatomy.roles["attention"].value.place if call is None else call.place
        names.append(_name(_path(side, anatomy), place, module))
    counts, numbers = Counter(names), Counter[str]()
    for i, name in enumerate(names):
        numbers[name] += 1
        if counts[name] > 1:
            names[i] = f"{name or 'attention'}, time {numbers[name]}"
    return names


def _name(path: str, place: SourceExpression | None, module: ModuleType) -> str:
    """Name an attention by its path and its line, with the file if it is another one than the module's.

    It is empty if neither is known.
    """
    if place is None or not place.line or is_library(place.file):
        return path
    own = getattr(module, "__file__", None)
    is_other = own is not None and os.path.abspath(own) != os.path.abspath(place.file)
    file = f" of {os.path.basename(place.file)}" if is_other else ""
    return ", ".join(filter(None, [path, cell_of(place.file), f"line {place.line}{file}"]))


def _path(side: Side, anatomy: Anatomy) -> str:
    """Return the path of the module that holds the projections of Q, K and V; empty if it is unknown."""
    weights = [each.weight.weight for name, each in anatomy.projections.items() if name in "QKV"]
    owners = [weight.split(".")[:-1] for weight in weights if weight]
    levels = takewhile(lambda level: len(set(level)) == 1, zip(*owners, strict=False))
    path = [level[0] for level in levels]
    if side.module is not None and isinstance(
        side.module.get_submodule(".".join(path)), torch.nn.Linear
    ):
        path = path[:-1]
    return ".".join(path)
