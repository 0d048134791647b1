"""The tensors of one side by role, also after some of them were replaced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch

from attnscope.observe.operators.anatomy import Anatomy, Role
from attnscope.observe.operators.chain import way_between
from attnscope.observe.operators.follow import followed, places_in
from attnscope.observe.operators.tape import NotReplayableError, Value

LEADING = {"Q", "K", "V", "scores", "scores_masked", "attention", "attention_drop", "x_raw"}

ANCHORS = ("Q", "scores", "K", "V", "x_raw", "attention")
"""The tensors by whose numbers leads of both sides are recognised, the first that has the same."""

UNCHANGED = {"scores_masked": "scores", "attention_drop": "attention"}
"""Stages that may be missing: their result is then what they would receive."""


class RoleTensors:
    """The tensors of one side by role, in its own order of leads.

    Args:
        anatomy: the roles.
        order: for each lead of the other side, the lead of this one; None: the same order.
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
        """Return a role's tensor in the order of the other side's leads; None if there is none."""
        own = self._own(name)
        return own if own is None or name not in LEADING else self._ordered(own)

    def _ordered(self, own: torch.Tensor) -> torch.Tensor:
        return own if self.order is None else own[self.order]

    def _own(self, name: str) -> torch.Tensor | None:
        if name in self.inside:
            return self.inside[name]
        role = self.anatomy.roles.get(name)
        if role is None:
            return None
        if role.elements is None:
            return self._recomputed(role)
        tensor = self.values.get(role.value)
        return role.tensor if tensor is None else role.of(tensor)

    def _recomputed(self, role: Role) -> torch.Tensor:
        """Return a tensor inside a fused kernel, computed from what precedes it."""
        return role.tensor if not (self.values or self.inside) else self._inside()[role.name]

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

        Args:
            name: the role; a missing stage stands for what it would have received.
            tensor: in the order of the other side's leads.

        Raises:
            NotReplayableError: what follows cannot run again.
        """
        role = self.role(name)
        name = role.name
        if self.order is not None and name in LEADING:
            own = torch.empty_like(tensor)
            own[self.order] = tensor
            tensor = own
        if role.elements is None:
            self.inside[name] = tensor
            result = self.anatomy.roles["x_raw"]
            self.replaced[result.value] = result.replaced(self._inside()["x_raw"])
        else:
            current = self.values.get(role.value, role.value.tensor)
            self.replaced[role.value] = role.replaced(tensor, current)
        self.values = self.anatomy.tape.replayed(self.replaced)

    def unrotated(self, name: str) -> torch.Tensor | None:
        """Return Q, K or V as it was split, in the arrangement in which it enters its product.

        Args:
            name: `Q`, `K` or `V`.
        """
        split, elements = self.anatomy.roles.get(f"{name}_split"), self.anatomy.origins.get(name)
        if split is None or elements is None:
            return None
        return self._ordered(self.values.get(split.value, split.value.tensor).reshape(-1)[elements])

    def stages(self, name: str) -> Iterator[torch.Tensor]:
        """Yield the tensors between the split of Q, K or V and its product, arranged like that.

        Args:
            name: `Q`, `K` or `V`.
        """
        for stage in self._stages(name):
            yield self._ordered(
                self.values.get(stage.value, stage.value.tensor).reshape(-1)[stage.elements]
            )

    def first_change(self, name: str) -> torch.Tensor | None:
        """Return the first tensor after the projection that holds other numbers, as the code has it.

        Args:
            name: `Q`, `K` or `V`.
        """
        stages = list(self._stages(name))
        for each in stages[1:]:
            if not torch.equal(each.of(each.value.tensor), stages[0].of(stages[0].value.tensor)):
                return each.value.tensor
        return None

    def exchanged(self, name: str) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield stages of Q, K or V, each with Q, K or V as if what precedes it came last.

        Where the code computes g(f(x)), a stage is f(x), and f(g(x)) stands beside it; g and f are run
        again from the tape. Stages for which that is not possible are left out.

        Args:
            name: `Q`, `K` or `V`.
        """
        result = self.anatomy.roles[name]
        for stage in self._stages(name):
            split = replace(stage, value=self.anatomy.roles[f"{name}_split"].value)
            split.elements = self.anatomy.origins[name]
            last = self._run_between(stage, split.of(split.value.tensor), result)
            both = None if last is None else self._run_between(split, last, stage)
            if both is not None:
                yield self._ordered(stage.of(stage.value.tensor)), self._ordered(both)

    def _run_between(self, start: Role, tensor: torch.Tensor, end: Role) -> torch.Tensor | None:
        """Return one tensor of the tape if another had other values; None if what follows cannot run."""
        try:
            new = self.anatomy.tape.replayed({start.value: start.replaced(tensor)})
        except (NotReplayableError, RuntimeError):
            return None
        return end.of(new[end.value]) if end.value in new else None

    def _stages(self, name: str) -> Iterator[Role]:
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
        found = {name: self.tensor(name) for name in self.anatomy.roles}
        return {name: tensor for name, tensor in found.items() if tensor is not None}


def n_head_of(a: RoleTensors, b: RoleTensors) -> int | None:
    """Return the number of heads, if an input or output tells it apart from the number of sequences."""
    return _n_head(a.anatomy) or _n_head(b.anatomy)


def _n_head(anatomy: Anatomy) -> int | None:
    """Return the number of heads of one side, if it is known.

    Heads of one sequence come from the same tokens of an input `n_batch n d`, in any order of its axes.
    """
    n_lead = anatomy.roles["Q"].tensor.shape[0]
    elements, split = anatomy.origins.get("Q"), anatomy.roles.get("Q_split")
    if elements is not None and split is not None:
        tokens = elements[:, 0, 0] // split.value.tensor.shape[-1]
        n_head = n_lead // tokens.unique().numel()
        if n_head > 1 or split.value.tensor.ndim in (2, 3):
            return n_head
    output = anatomy.output.tensor
    n_head, rest = divmod(n_lead, output.shape[0]) if output.ndim == 4 else (0, 0)
    return n_head if rest == 0 and n_head in output.shape[1:3] else None


def matching_leads(a: Mapping[str, torch.Tensor], b: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return for each lead position of a the one of b that holds the same numbers.

    If no tensor has the same numbers on both sides, the leads keep their order.

    Args:
        a, b: tensors by role, `lead …`.
    """
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
