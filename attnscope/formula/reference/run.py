"""A finished run, brought to the common form that all references use."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

from attnscope.observe.trace import Trace

if TYPE_CHECKING:
    import numpy as np
    import torch

HIDES = -1e4
"""A mask that adds this or less hides the key: `HIDES` again, because references share no code."""


PART = 2**20
"""The number of scores processed at a time."""


@dataclass(frozen=True)
class VerifiedRun:
    """A trace of `sdpa` in any form, or of `mha`, with its tensors.

    Whatever the form, vectors are rows here, and there is a batch axis and a head axis: a run by
    columns is transposed, and one query is a run of n_Q = 1.

    Attributes:
        trace: the run.
        weights: the module's `state_dict`, for mha.
    """

    trace: Trace
    weights: dict[str, torch.Tensor]

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    @cached_property
    def _tensors(self) -> dict[str, torch.Tensor]:
        kept = [step for step in self.trace.steps if step.tensor is not None]
        return {step.name: step.tensor.detach() for step in kept}

    def option(self, name: str, default: Any = None) -> Any:
        """Return an option of the run; `default` if it was not used."""
        return self.trace.options.get(name, default)

    # What was run.

    @property
    def is_mha(self) -> bool:
        """Whether this is multi-head attention, with its own projections."""
        return self.trace.title == "mha"

    @property
    def projects(self) -> bool:
        """Whether Q, K and V are projections of the inputs."""
        return self.is_mha or "X" in self

    @property
    def query(self) -> int | None:
        """The index of the query, if only one was run."""
        return self.option("query")

    @property
    def n_head(self) -> int:
        """Heads of Q; 1 where there is no such axis."""
        return self.trace.sizes.get("n_head", 1)

    @property
    def n_kv_head(self) -> int:
        """Heads of K and V."""
        return self.trace.sizes.get("n_kv_head", self.n_head)

    @property
    def multiplied(self) -> tuple[str, str, str]:
        """The names of the factors of the product: rotated, with the past, but not yet repeated."""
        return (
            self._first("Q_rot", "Q_split", "Q"),
            self._first("K_all", "K_rot", "K_split", "K"),
            self._first("V_all", "V_split", "V"),
        )

    @property
    def weighted(self) -> str:
        """The name of the weighted values, before heads are merged."""
        return self._first("x_raw", "out")

    @property
    def final(self) -> str:
        """The name of the end result."""
        return self._first("x", "out_merged", "out")

    def _first(self, *names: str) -> str:
        return next(name for name in names if name in self)

    @cached_property
    def dtype(self) -> torch.dtype:
        """The dtype of the run."""
        return self._tensors[self.final].dtype

    @cached_property
    def softmax_dtype(self) -> torch.dtype:
        """The dtype of the softmax."""
        import torch

        return getattr(torch, self.option("softmax_dtype", str(self.dtype).removeprefix("torch.")))

    @property
    def dropout(self) -> float:
        """The fraction of weights that was dropped; 0 without dropout."""
        return self.option("dropout") if "attention_drop" in self else 0.0

    @property
    def n_past(self) -> int:
        """The keys of the past, and so the position of the first new key; the first of all is at 0."""
        return self.trace.sizes.get("n_past", 0)

    def first_query(self, batch: int) -> int:
        """Return the position of the first query of a sequence."""
        sizes = self.trace.sizes
        align = self.option("align", "bottom-right" if self.n_past else "top-left")
        if align == "lengths":
            lengths = [text for text in self.option("mask") if text.startswith("lengths:")]
            return min(int(text[8:].split(",")[batch]) for text in lengths) - sizes["n_Q"]
        places = {"bottom-right": sizes["n_K"] - sizes["n_Q"], "after-past": self.n_past}
        return places.get(align, 0)

    @property
    def starts(self) -> dict[str, list[int]]:
        """The positions of the first query and of the first new key in each sequence."""
        n_batch = self.trace.sizes.get("n_batch", 1)
        return {"Q": [self.first_query(batch) for batch in range(n_batch)], "K": [self.n_past] * n_batch}

    # Its tensors.

    def rows(self, name: str) -> torch.Tensor:
        """Return a tensor with vectors as rows; its other axes stay."""
        tensor = self._tensors[name]
        if self.query is not None and name == "out":
            return tensor.unsqueeze(-2)
        of_query = self.query is not None and name.startswith("attention")
        return tensor.mT if of_query or self.option("layout") == "columns" else tensor

    def heads(self, name: str) -> torch.Tensor:
        """Return a tensor as `n_batch n_head n d`; missing axes get size 1."""
        tensor = self.rows(name)
        if tensor.dim() == 3 and "n_head" not in self.trace.sizes:
            tensor = tensor.unsqueeze(1)
        return tensor[(None,) * (4 - tensor.dim())]

    def entering(self, name: str) -> torch.Tensor:
        """Return one of `multiplied` as `n_batch n_head n d`; of Q only the query that was run."""
        tensor = self.heads(name)
        if self.query is None or name[0] != "Q":
            return tensor
        return tensor[:, :, self.query : self.query + 1]

    def result(self, name: str) -> np.ndarray:
        """Return a result: `n_batch n_head n_Q d_V`, or `n_batch n_Q …` where heads are merged."""
        return array(self.rows(name) if name in ("x", "out_merged") else self.heads(name))

    def projection(self, name: str) -> tuple[np.ndarray, np.ndarray | float] | None:
        """Return the weights, `input × output`, and biases of the projection to Q, K, V or x (`O`)."""
        if name in "QKV" and not self.projects:
            return None
        if self.is_mha:
            bias = self.weights.get(f"W_{name}.bias")
            return array(self.weights[f"W_{name}.weight"]).T, 0.0 if bias is None else array(bias)
        if f"W_{name}" in self:
            return array(self.rows(f"W_{name}")), 0.0
        return None

    def source(self, name: str) -> np.ndarray:
        """Return the input of the projection to Q, K or V; without one, Q, K or V itself."""
        return array(self.rows("X" if "X" in self else name))

    # Its mask.

    @cached_property
    def mask(self) -> torch.Tensor | None:
        """The mask as `n_batch n_head n_Q n_K`; axes of size 1 broadcast."""
        if "mask" not in self:
            return None
        mask = self.heads("mask")
        if self.query is None or mask.size(-2) == 1:
            return mask
        return mask[..., self.query : self.query + 1, :]

    @cached_property
    def fill(self) -> float:
        """The score of a hidden key, rounded to the dtype of the scores, and then the softmax's."""
        import torch

        fill = torch.tensor(self.option("mask_fill", -inf), dtype=torch.float64)
        return float(fill.to(self.dtype).to(self.softmax_dtype))

    def mask_of(self, batch: int, head: int, queries: slice) -> np.ndarray | None:
        """Return the mask of some queries of one head, `n_Q n_K`, or `1 n_K` if all have the same."""
        if self.mask is None:
            return None
        mask = self.mask[batch if len(self.mask) > 1 else 0]
        mask = mask[head if len(mask) > 1 else 0]
        return array(mask[queries] if len(mask) > 1 else mask)

    @cached_property
    def fully_masked(self) -> np.ndarray:
        """True for queries that see no key: `n_batch n_head n_Q`."""
        import numpy as np
        import torch

        shape = self.heads("attention").shape[:-1]
        if self.mask is None:
            return np.broadcast_to(False, shape)
        if self.mask.dtype == torch.bool:
            return np.broadcast_to(array(~self.mask.any(dim=-1)), shape)
        return np.broadcast_to(array((self.mask <= HIDES).all(dim=-1)), shape)

    @cached_property
    def rounded_away(self) -> np.ndarray:
        """True for fully masked queries whose weights are dominated by rounding.

        An additive mask hides a key by a large number. Where it hides all keys, the softmax depends
        only on differences of scores, which were rounded at the magnitude of that number.
        """
        import numpy as np

        if self.mask is None or not self.mask.is_floating_point() or self.option("masked_rows"):
            return np.zeros_like(self.fully_masked)
        return self.fully_masked & array((self.mask > -inf).any(dim=-1))

    @cached_property
    def zeroed(self) -> np.ndarray:
        """True for fully masked queries whose weights are 0, independent of the mask's values."""
        import numpy as np

        if self.mask is None or self.option("masked_rows") != "zero":
            return np.zeros_like(self.fully_masked)
        finite = array((self.mask > -inf).any(dim=-1)) if self.mask.is_floating_point() else False
        return self.fully_masked & ~np.asarray(finite)

    @property
    def leaks(self) -> bool:
        """Whether keys hidden by a finite score may keep some weight beside visible ones."""
        return self.mask is not None and not self.mask.is_floating_point() and isfinite(self.fill)

    @cached_property
    def overflows(self) -> bool:
        """Whether any score is infinite before masking."""
        return any(part.isinf().any() for part in self.parts("scores"))

    @cached_property
    def sums(self) -> np.ndarray:
        """The sums of the rows of attention, `n_batch n_head n_Q 1`."""
        import torch

        sums = [part.sum(dim=-1, keepdim=True, dtype=torch.float64) for part in self.parts("attention")]
        return array(torch.cat(sums)).reshape(*self.heads("attention").shape[:-1], 1)

    def parts(self, name: str) -> Iterator[torch.Tensor]:
        """Yield the rows of scores or weights in blocks, to save memory."""
        heads = self.heads(name)
        step = max(1, PART // heads.size(-1))
        for of_sequence in heads:
            for of_head in of_sequence:
                yield from of_head.split(step)

    def kept(self, batch: int, head: int, queries: slice) -> np.ndarray | None:
        """Return True where a query's weight was not dropped: `n_Q n_K`; None without dropout."""
        if not self.dropout:
            return None
        before = self.heads(self._first("attention_filled", "attention"))[batch, head, queries]
        after = self.heads("attention_drop")[batch, head, queries]
        return array((after != 0) | (before == 0))


def array(tensor: torch.Tensor) -> np.ndarray:
    """Convert a tensor to float64, exactly, or to bool."""
    import torch

    tensor = tensor.detach().cpu()
    return (tensor if tensor.dtype == torch.bool else tensor.to(torch.float64)).numpy()
