"""The tensors of one side by role, also after some of them were replaced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod

import torch

from attnscope.observe.operators.anatomy import Anatomy, Role
from attnscope.observe.operators.chain import way_between
from attnscope.observe.operators.follow import followed, places_in
from attnscope.observe.operators.tape import NotReplayableError, Value

LEADING = {"Q", "K", "V", "scores", "scores_masked", "attention", "attention_drop", "x_raw"}
LEADING |= {"state", "numerator", "denominator"}

ANCHORS = ("Q", "scores", "K", "V", "x_raw", "attention")
"""The tensors by whose numbers leads of both sides are recognised, the first that has the same."""

UNCHANGED = {"scores_masked": "scores", "attention_drop": "attention"}
"""Stages that may be missing: their result is then what they would receive."""


class RoleTensors:
    """The tensors of one side by role, in its own order of leads.

    `order` has for each lead of the other side the lead of this one; None: the same order.
    """

    def __init__(self, anatomy: Anatomy, order: torch.Tensor | None = None) -> None:
        self.anatomy = anatomy
        self.order = order
        self.inside: dict[str, torch.Tensor] = {}  # replaced tensors inside a fused kernel
        self.replaced: dict[Value, torch.Tensor] = {}
        self.values: dict[Value, torch.Tensor] = {}

    def role(self, name: str) -> Role:
        """Return a role; where a stage is missing, that of what it would have received."""
        roles = self.anatomy.roles
        return roles.get(name) or roles[UNCHANGED[name]]

    def tensor(self, name: str) -> torch.Tensor | None:
        """Return a role's tensor in the order of the other side's leads; None if there is none.

        Where a stage is missing, it is what that would have received.
        """
        own = self._own(name)
        if own is None:
            return self.tensor(UNCHANGED[name]) if name in UNCHANGED else None
        return self.ordered(own) if name in LEADING else own

    def __getitem__(self, name: str) -> torch.Tensor:
        """Return a role's tensor, which must be there."""
        tensor = self.tensor(name)
        if tensor is None:
            raise KeyError(name)
        return tensor

    def current(self, value: Value) -> torch.Tensor:
        """Return a tensor of the tape, as it is after what was replaced."""
        return self.values.get(value, value.tensor)

    def ordered(self, own: torch.Tensor) -> torch.Tensor:
        """Return a tensor whose leads are in the order of this side in that of the other side."""
        return own if self.order is None else own[self.order]

    def _own(self, name: str) -> torch.Tensor | None:
        if name in self.inside:
            return self.inside[name]
        role = self.anatomy.roles.get(name)
        if role is None:
            return None
        if role.elements is None:  # inside a fused kernel: computed from what precedes it
            return role.tensor if not (self.values or self.inside) else self._inside()[role.name]
        tensor = self.values.get(role.value)
        return role.tensor if tensor is None else role.of(tensor)

    def _inside(self) -> dict[str, torch.Tensor]:
        """Return the tensors inside a fused kernel."""
        from attnscope.observe.operators.fused import inside

        Q, K, V = (self._own(name) for name in ("Q", "K", "V"))
        call = self.anatomy.fused
        if call is None or Q is None or K is None or V is None:
            raise KeyError("Q, K, V")
        factors = [self.anatomy.roles[name].factor for name in ("Q", "K")]
        return inside(call, Q * factors[0], K * factors[1], V, self.inside)

    def replace(self, name: str, tensor: torch.Tensor) -> None:
        """Replace a role's tensor, and compute again what depends on it.

        A missing stage stands for what it would have received. The tensor has its leads in the order of
        the other side.
        """
        role = self.role(name)
        name = role.name
        if name == "denominator":  # heads may share one: then their quotients are replaced
            quotient = self["x_raw"] * (self[name] / tensor)[..., None]
            self.inside[name] = self.own_order(tensor)
            self.replace("x_raw", quotient)
            return
        if name in LEADING:
            tensor = self.own_order(tensor)
        if role.elements is None:
            self.inside[name] = tensor
            result = self.anatomy.roles["x_raw"]
            self.replaced[result.value] = result.replaced(self._inside()["x_raw"])
        else:
            self.replaced[role.value] = role.replaced(tensor, self.current(role.value))
        self.values = self.anatomy.tape.replayed(self.replaced)

    def corrected(self, values: Mapping[Value, torch.Tensor], role: str) -> torch.Tensor | None:
        """Return the tensor of a role if some values were others; None if what follows cannot run.

        Each new tensor has the shape that the value has on the tape.
        """
        other = RoleTensors(self.anatomy, self.order)
        other.inside, other.replaced = dict(self.inside), self.replaced | dict(values)
        try:
            other.values = self.anatomy.tape.replayed(other.replaced)
        except (NotReplayableError, RuntimeError):
            return None
        return other.tensor(role)

    def unrotated(self, name: str) -> torch.Tensor | None:
        """Return Q, K or V as it was split, in the arrangement in which it enters its product."""
        split, elements = self.anatomy.roles.get(f"{name}_split"), self.anatomy.origins.get(name)
        if split is None or elements is None:
            return self._joined_parts(name)
        return self.ordered(self.current(split.value).reshape(-1)[elements])

    def _joined_parts(self, name: str) -> torch.Tensor | None:
        """Return Q, K or V as several linear maps returned it; None if some features are of none."""
        joined: torch.Tensor | None = None
        for value, elements in self.anatomy.parts.get(name, ()):
            own = self.current(value).reshape(-1)[elements.clamp_min(0)]
            own = own.masked_fill(elements < 0, float("nan"))
            joined = own if joined is None else torch.where(joined.isnan(), own, joined)
        return None if joined is None or bool(joined.isnan().any()) else self.ordered(joined)

    def stages(self, name: str) -> Iterator[torch.Tensor]:
        """Yield the tensors between the split of Q, K or V and its product, arranged like that."""
        yield from map(self.arranged, self.stage_roles(name))

    def arranged(self, role: Role) -> torch.Tensor:
        """Return a tensor of the tape as a role arranges it, in the order of the other side's leads."""
        return self.ordered(self.current(role.value).reshape(-1)[role.elements])

    def own_order(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor with leads in the order of the other side in the order of this one."""
        if self.order is None:
            return tensor
        own = torch.empty_like(tensor)
        own[self.order] = tensor
        return own

    def first_change(self, name: str) -> torch.Tensor | None:
        """Return the first tensor after the projection that holds other numbers, as the code has it."""
        stages = list(self.stage_roles(name))
        for each in stages[1:]:
            if not torch.equal(each.of(each.value.tensor), stages[0].of(stages[0].value.tensor)):
                return each.value.tensor
        return None

    def exchanged(self, name: str) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield stages of Q, K or V, each with Q, K or V as if what precedes it came last.

        Where the code computes g(f(x)), a stage is f(x), and f(g(x)) stands beside it; g and f are run
        again from the tape. Stages for which that is not possible are left out.
        """
        result = self.anatomy.roles[name]
        for stage in self.stage_roles(name):
            split = replace(stage, value=self.anatomy.roles[f"{name}_split"].value)
            split.elements = self.anatomy.origins[name]
            last = self._run_between(stage, split.of(split.value.tensor), result)
            both = None if last is None else self._run_between(split, last, stage)
            if both is not None:
                yield self.ordered(stage.of(stage.value.tensor)), self.ordered(both)

    def _run_between(self, start: Role, tensor: torch.Tensor, end: Role) -> torch.Tensor | None:
        """Return one tensor of the tape if another had other values; None if what follows cannot run."""
        try:
            new = self.anatomy.tape.replayed({start.value: start.replaced(tensor)})
        except (NotReplayableError, RuntimeError):
            return None
        return end.of(new[end.value]) if end.value in new else None

    def stage_roles(self, name: str) -> Iterator[Role]:
        """Yield what holds all elements of Q, K or V between its split and its product."""
        split, elements = self.anatomy.roles.get(f"{name}_split"), self.anatomy.origins.get(name)
        if split is None or elements is None:
            return
        places = followed(self.anatomy.tape, split.value)
        axes = self.anatomy.roles[name].axes
        for value in way_between(split.value, self.anatomy.roles[name].value, places):
            place = places_in(places[value], split.value.tensor.numel())[elements]
            if bool((place >= 0).all()):
                yield Role.arranged(name, value, place, axes)

    def tensors(self) -> Mapping[str, torch.Tensor]:
        """Return all tensors by role."""
        return {name: self[name] for name in self.anatomy.roles}


def n_head_of(a: RoleTensors, b: RoleTensors) -> int | None:
    """Return the number of heads, if an input or output tells it apart from the number of sequences."""
    if "Q" not in a.anatomy.roles or "Q" not in b.anatomy.roles:
        return None
    known = [n for n in (_n_head(a.anatomy), _n_head(b.anatomy)) if n is not None]
    return max(known, default=None)  # a wrong split may look like one head


def _n_head(anatomy: Anatomy) -> int | None:
    """Return the number of heads of one side, if it is known.

    Heads are what splits the features: windows, rows and groups of tokens have all features. An input of
    four axes has its heads in an axis of its own, behind that of the sequences.
    """
    n_lead = anatomy.roles["Q"].tensor.shape[0]
    elements, split = anatomy.origins.get("Q"), anatomy.roles.get("Q_split")
    if elements is not None and split is not None:
        *axes, width = split.value.tensor.shape
        n_head = (elements % width).flatten(1).sort(1).values.unique(dim=0).shape[0]
        if n_head > 1 or len(axes) in (1, 2):
            return n_head
        own = []  # the axes of the source of which each lead has one entry
        for i, size in enumerate(axes):
            places = (elements // width // prod(axes[i + 1 :]) % size).flatten(1)
            own += [size] if bool((places == places[:, :1]).all()) else []
        return own[1] if len(own) == 2 and own[0] * own[1] == n_lead else None
    output = anatomy.output.tensor
    n_head, rest = divmod(n_lead, output.shape[0]) if output.ndim == 4 else (0, 0)
    return n_head if rest == 0 and n_head in output.shape[1:3] else None


def matching_leads(a: Mapping[str, torch.Tensor], b: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
    """Return for each lead position of a the one of b that holds the same numbers; None without leads.

    If no tensor has the same numbers on both sides, the leads keep their order. All tensors are `lead
    …`.
    """
    if "Q" not in a or "Q" not in b:
        return None
    n_lead = a["Q"].shape[0]
    unchanged = torch.arange(n_lead)
    if b["Q"].shape[0] != n_lead:
        return unchanged
    for anchor in ANCHORS:
        if anchor not in a or anchor not in b or a[anchor].shape != b[anchor].shape:
            continue
        similarity = _directions(a[anchor]) @ _directions(b[anchor]).T
        best, order = similarity.max(1)
        if bool((best > 1 - 1e-6).all()) and order.unique().numel() == n_lead:
            return order
    return unchanged


def _directions(tensor: torch.Tensor) -> torch.Tensor:
    """Return each lead's numbers as a vector of length one."""
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    flat = torch.nan_to_num(real.double(), posinf=0.0, neginf=0.0).flatten(1)
    return flat / flat.norm(dim=1, keepdim=True).clamp_min(1e-30)
