"""What a layer promises: which keys each query may see, and what says so."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True)
class Promise:
    """The keys that each query of a layer sees; every one of them, unless attention is sparse.

    Attributes:
        source: what says so.
        causal: whether later positions are hidden.
        window: how many keys a query sees at most in each direction, its own included; None: all.
        chunk: the length of chunks, outside of which nothing is seen; None: no chunks.
        prefix: how many first positions every query sees.
        sinks: how many first positions remain visible outside of the window.
    """

    source: str
    causal: bool
    window: int | None = None
    chunk: int | None = None
    prefix: int = 0
    sinks: int = 0

    def visible(self, n: int) -> torch.Tensor:
        """Return which keys are visible from which queries: `n_Q n_K`, as many of both."""
        q, k = torch.arange(n)[:, None], torch.arange(n)
        seen = torch.ones(n, n, dtype=torch.bool)
        if self.window is not None:
            seen &= ((q - k).abs() < self.window) | (k < self.sinks)
        if self.chunk is not None:
            seen &= q // self.chunk == k // self.chunk
        if self.causal:
            seen &= k <= q
        return seen | (k < self.prefix)

    @property
    def limit(self) -> int | None:
        """The distance, in positions, beyond which nothing is seen; None: there is none."""
        limits = [each for each in (self.window, self.chunk) if each is not None]
        return min(limits) if limits else None

    def without_limit(self) -> Promise:
        """Return the promise of a layer that sees the whole text."""
        return replace(self, window=None, chunk=None, sinks=0)
