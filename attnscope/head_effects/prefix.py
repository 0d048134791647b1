"""Keep the keys and values of a prefix, which a change behind it leaves as they are.

In a causal model, what is changed from position p on changes nothing before p. So further runs read the
keys and values of the prefix from a cache, and compute the positions from p on.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch

from attnscope.head_effects.metric import Inputs


class PrefixCache:
    """The keys and values of all positions but the last.

    Args:
        model: a model that generates text.
        inputs: its arguments, one sequence.

    Attributes:
        n: the number of positions of the sequence.
    """

    def __init__(self, model: Any, inputs: Inputs) -> None:
        self.inputs, self.n = inputs, inputs["input_ids"].shape[1]
        before = {name: each[:, : self.n - 1] for name, each in inputs.items()}
        with torch.no_grad():
            output = model(**before, use_cache=True, return_dict=True)
        self.cache = output.past_key_values

    def inputs_from(self, first: int, n_row: int) -> dict[str, Any]:
        """Return the arguments of a run of several sequences from a position on.

        Args:
            first: the position.
            n_row: the number of sequences.

        Raises:
            Exception: the cache cannot be cut there, as one of a sliding window.
        """
        cache = deepcopy(self.cache)
        if first < self.n - 1:
            cache.crop(first - (self.n - 1))  # so many are removed
        cache.batch_repeat_interleave(n_row)
        inputs: dict[str, Any] = {
            name: (each if name == "attention_mask" else each[:, first:]).expand(n_row, -1)
            for name, each in self.inputs.items()
        }
        return inputs | {"past_key_values": cache, "use_cache": True}

    @property
    def n_bytes(self) -> int:
        """The bytes of the keys and values."""
        layers = getattr(self.cache, "layers", [])
        tensors = [getattr(layer, name, None) for layer in layers for name in ("keys", "values")]
        return sum(each.nbytes for each in tensors if isinstance(each, torch.Tensor))
