"""What is known of tensors that are not kept alive."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    import torch

Known = TypeVar("Known")


class ByTensor(Generic[Known]):
    """Values by the tensor that they belong to: by the object, whatever it is equal to."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[torch.Tensor], Known]] = {}

    def __bool__(self) -> bool:
        return bool(self._known)

    def __setitem__(self, tensor: torch.Tensor, value: Known) -> None:
        self._known[id(tensor)] = weakref.ref(tensor), value

    def get(self, tensor: Any) -> Known | None:
        """Return the value of a tensor; None if it has none, or the object is not a tensor."""
        known = self._known.get(id(tensor))
        return known[1] if known is not None and known[0]() is tensor else None

    def clear(self) -> None:
        """Forget all values."""
        self._known.clear()
