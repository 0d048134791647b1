"""Which keys each query sees, in one sequence and head: as ranges of keys, or as a matrix.

Both count visible pairs in blocks of any size. Ranges need neither numpy nor memory for the pairs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

EMPTY, PARTIAL, FULL = 0, 1, 2
"""How much of a block is visible: nothing, some pairs, all of them."""

Run = tuple[int, int, int]
"""Neighbouring blocks of one kind in a row of blocks: the first, the one behind the last, the kind."""


@dataclass(frozen=True)
class Plane(ABC):
    """The keys that each query sees.

    Attributes:
        places: the sequences and heads that it holds for, as indices of both axes; the head is 0 if all
            heads share it.
        n_Q, n_K: the numbers of queries and keys.
    """

    places: Sequence[tuple[int, int]]
    n_Q: int  # noqa: N815 - the field's name
    n_K: int  # noqa: N815

    @abstractmethod
    def rows(self) -> Iterator[list[range]]:
        """Yield the keys that each query sees, as ranges in ascending order."""

    @abstractmethod
    def blocks(self, n_query: int, n_key: int) -> Iterator[list[Run]]:
        """Yield rows of blocks; blocks at the end may be smaller."""

    @property
    @abstractmethod
    def n_visible(self) -> int:
        """The number of visible pairs."""

    @property
    @abstractmethod
    def n_blind(self) -> int:
        """The number of queries that see no key."""

    @property
    def n_unseen(self) -> int:
        """The number of keys that no query sees."""
        return self.n_K - sum(map(len, self.seen))

    @property
    @abstractmethod
    def seen(self) -> list[range]:
        """The keys that any query sees, as ranges in ascending order that do not touch."""

    @abstractmethod
    def array(self) -> np.ndarray:
        """Return True where a query sees a key, `n_Q n_K`."""

    def grid(self, n_query: int, n_key: int) -> list[list[int]]:
        """List how much of each block is visible, by rows."""
        return [
            [kind for start, stop, kind in runs for _ in range(start, stop)]
            for runs in self.blocks(n_query, n_key)
        ]


@dataclass(frozen=True)
class RangePlane(Plane):
    """Queries that see one range of keys each."""

    ranges: Sequence[range] = field(default=(), repr=False)
    first: int | None = None  #: the key at whose position the first query is; None: it is not known

    def rows(self) -> Iterator[list[range]]:
        """Yield the keys that each query sees."""
        for keys in self.ranges:
            yield [keys] if keys else []

    @cached_property
    def n_visible(self) -> int:
        """The number of visible pairs."""
        return sum(map(len, self.ranges))

    @cached_property
    def n_blind(self) -> int:
        """The number of queries that see no key."""
        return sum(not keys for keys in self.ranges)

    @cached_property
    def seen(self) -> list[range]:
        """The keys that any query sees."""
        seen: list[range] = []
        for keys in sorted((each for each in self.ranges if each), key=lambda each: each.start):
            if seen and keys.start <= seen[-1].stop:
                seen[-1] = range(seen[-1].start, max(seen[-1].stop, keys.stop))
            else:
                seen.append(keys)
        return seen

    def blocks(self, n_query: int, n_key: int) -> Iterator[list[Run]]:
        """Yield rows of blocks: what changes from block to block are the ends of ranges."""
        n_block = -(-self.n_K // n_key)
        for first in range(0, self.n_Q, n_query):
            queries = self.ranges[first : first + n_query]
            touched: dict[int, int] = {0: 0, n_block: 0}  # changes of how many queries see a key
            covered: dict[int, int] = {}  # and of how many see all keys of a block
            for keys in queries:
                if keys:
                    _count(touched, keys.start // n_key, (keys.stop - 1) // n_key + 1)
                    last = n_block if keys.stop == self.n_K else keys.stop // n_key
                    _count(covered, -(-keys.start // n_key), last)
            yield _merged(touched, covered, len(queries))

    def array(self) -> np.ndarray:
        """Return True where a query sees a key, `n_Q n_K`."""
        import numpy as np

        ends = np.array([[keys.start, keys.stop] for keys in self.ranges], dtype=np.int64)
        k = np.arange(self.n_K)
        return (ends[:, :1] <= k) & (k < ends[:, 1:])


def _count(changes: dict[int, int], start: int, stop: int) -> None:
    """Count one more from a block on, and one less from another."""
    if start < stop:
        changes[start] = changes.get(start, 0) + 1
        changes[stop] = changes.get(stop, 0) - 1


def _merged(touched: dict[int, int], covered: dict[int, int], n: int) -> list[Run]:
    """Return the runs of a row of blocks from changes at some of its blocks, for `n` queries."""
    runs: list[Run] = []
    seen = whole = 0
    for start, stop in pairwise(sorted(touched.keys() | covered.keys())):
        seen += touched.get(start, 0)
        whole += covered.get(start, 0)
        kind = FULL if whole == n else PARTIAL if seen else EMPTY
        if runs and runs[-1][2] == kind:
            start = runs.pop()[0]
        runs.append((start, stop, kind))
    return runs


@dataclass(frozen=True)
class MatrixPlane(Plane):
    """Queries that see any keys."""

    #: True where a query sees a key, `n_Q n_K`, numpy
    matrix: Any = field(default=None, repr=False, compare=False)

    def rows(self) -> Iterator[list[range]]:
        """Yield the keys that each query sees."""
        return _ranges_of(self.matrix)

    @cached_property
    def n_visible(self) -> int:
        """The number of visible pairs."""
        return int(self.matrix.sum())

    @cached_property
    def n_blind(self) -> int:
        """The number of queries that see no key."""
        return int((~self.matrix.any(1)).sum())

    @cached_property
    def seen(self) -> list[range]:
        """The keys that any query sees."""
        return next(_ranges_of(self.matrix.any(0)[None]))

    def blocks(self, n_query: int, n_key: int) -> Iterator[list[Run]]:
        """Yield rows of blocks."""
        import numpy as np

        columns = np.arange(0, self.n_K, n_key)
        widths = np.diff(columns, append=self.n_K)
        for first in range(0, self.n_Q, n_query):
            queries = self.matrix[first : first + n_query]
            counts = np.add.reduceat(queries.sum(0), columns)
            kinds = np.where(counts == len(queries) * widths, FULL, np.where(counts, PARTIAL, EMPTY))
            yield list(_runs(kinds.tolist()))

    def array(self) -> np.ndarray:
        """Return True where a query sees a key, `n_Q n_K`."""
        return self.matrix


def planes_of_matrix(visible: Any, sizes: Mapping[str, int]) -> list[Plane]:
    """Return the distinct planes of a mask; sequences and heads that see the same share one.

    `visible` is a boolean torch tensor on the CPU that broadcasts to `n_batch n_head n_Q n_K`.
    """
    import numpy as np

    visible = visible.reshape((1,) * (4 - visible.dim()) + tuple(visible.shape))
    n_head = visible.shape[1]
    same_in_all = visible.shape[0] == 1 or visible.stride(0) == 0
    array = visible[:1].numpy() if same_in_all else visible.numpy()
    array = np.broadcast_to(array, (*array.shape[:2], sizes["n_Q"], sizes["n_K"]))
    groups: dict[bytes, list[tuple[int, int]]] = {}
    for sequence in range(len(array)):
        for head in range(n_head):
            key = np.packbits(array[sequence, head]).tobytes()
            groups.setdefault(key, []).append((sequence, head))
    n_copy = sizes["n_batch"] if same_in_all else 1
    return [
        MatrixPlane(
            [(copy + sequence, head) for copy in range(n_copy) for sequence, head in places],
            sizes["n_Q"],
            sizes["n_K"],
            array[places[0]],
        )
        for places in groups.values()
    ]


def _ranges_of(matrix: Any) -> Iterator[list[range]]:
    """Yield the indices at which each row of a matrix is True, as ranges."""
    import numpy as np

    changes = np.diff(matrix.astype(np.int8), axis=1, prepend=0, append=0)
    for row in changes:
        starts, stops = np.flatnonzero(row == 1).tolist(), np.flatnonzero(row == -1).tolist()
        yield list(map(range, starts, stops))


def _runs(kinds: Sequence[int]) -> Iterator[Run]:
    """Yield neighbours of one kind together."""
    start = 0
    for kind, equal in groupby(kinds):
        stop = start + len(list(equal))
        yield start, stop, kind
        start = stop
