"""Name the rule behind a mask, from its visible pairs alone."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from attnscope.results.planes import MatrixPlane, Plane
from attnscope.units import counted


def pattern_of(plane: Plane) -> str | None:
    """Return the rule by which queries see keys, in words; None if it is none of these.

    Queries and keys that nothing is visible of, such as padding, are left out first.
    """
    if plane.n_visible == 0:
        return "no key is visible"
    found, hidden = _rule(plane), plane.n_unseen
    if found is None or not hidden:
        return found
    if found == "all keys":
        return f"all but {counted(hidden, 'key')}"
    return f"{found}; {counted(hidden, 'key')} hidden from all"


def _rule(plane: Plane) -> str | None:
    """Return the rule of the queries and keys that something is visible of."""
    n_K = plane.n_K - plane.n_unseen
    first, rows = _seen(plane)
    if any(len(row) > 1 for row in rows.values()):
        return _sinks(list(rows.values()), n_K)
    ranges = [row[0] for row in rows.values()]
    if all(keys == range(n_K) for keys in ranges):
        return "all keys"
    square = plane.n_Q == plane.n_K
    for rule in (_causal, _prefix, _window):
        for where, offset in {
            ", the last query at the last key": plane.n_K - plane.n_Q - first,
            ", the first query at the first key": -first,
        }.items():
            found = rule([(query + offset, keys[0]) for query, keys in rows.items()], n_K)
            if found:
                return found if square else found + where
    return _documents(ranges)


def _seen(plane: Plane) -> tuple[int, dict[int, list[range]]]:
    """Return the rows of queries that see keys, by query, counting only keys that are seen.

    Before them, return the number of unseen keys before the first that is seen.
    """
    rows = {query: row for query, row in enumerate(plane.rows()) if row}
    first = min(row[0].start for row in rows.values())
    if plane.n_unseen and isinstance(plane, MatrixPlane):
        seen = plane.matrix[:, plane.matrix.any(0)]
        kept = MatrixPlane(plane.places, plane.n_Q, seen.shape[1], seen)
        return first, {query: row for query, row in enumerate(kept.rows()) if row}
    moved = {
        query: [range(each.start - first, each.stop - first) for each in row]
        for query, row in rows.items()
    }
    return first, moved


Pairs = Sequence[tuple[int, range]]
"""The position of each query, as a key's, and the keys that it sees."""


def _causal(pairs: Pairs, n_K: int) -> str | None:
    """Name a mask that hides later keys, and perhaps other documents, and keys beyond a window."""
    if any(keys.stop != min(position + 1, n_K) for position, keys in pairs):
        return None
    window = max(len(keys) for _, keys in pairs)
    if window == 1:
        return "each query sees only its own key"
    alone = [position for position, keys in pairs if keys == range(position, position + 1)]
    starts = sorted({0, *alone})
    lengths = [stop - start for start, stop in pairwise([*starts, n_K])]
    is_narrow = window < max(lengths)
    start, following = 0, iter([*starts[1:], n_K])
    end = next(following)
    for position, keys in pairs:
        while position >= end and end < n_K:
            start, end = end, next(following)
        if keys.start != (max(start, position - window + 1) if is_narrow else start):
            return None
    return f"causal{_parts(lengths)}" + (f", at most {counted(window, 'key')}" if is_narrow else "")


def _parts(lengths: Sequence[int]) -> str:
    """Say within which parts queries see keys."""
    if len(lengths) < 2:
        return ""
    first, *others = lengths
    are_equal = all(length == first for length in others[:-1]) and others[-1] <= first
    if are_equal and lengths.count(first) > 1:
        return f" within chunks of {counted(first, 'key')}"
    if len(lengths) > 6:
        return f" within {len(lengths)} documents"
    return f" within documents of {', '.join(map(str, lengths[:-1]))} and {lengths[-1]} keys"


def _prefix(pairs: Pairs, n_K: int) -> str | None:
    """Name a mask that is causal after a prefix, which all queries see."""
    prefix = pairs[0][1].stop
    if any(keys != range(max(prefix, min(position + 1, n_K))) for position, keys in pairs):
        return None
    return f"causal after a prefix of {counted(prefix, 'key')}"


def _window(pairs: Pairs, n_K: int) -> str | None:
    """Name a window around each query."""
    before = max(position - keys.start for position, keys in pairs)
    after = max(keys.stop - 1 - position for position, keys in pairs)
    for position, keys in pairs:
        if keys != range(max(0, position - before), min(n_K, position + after + 1)):
            return None
    if before >= pairs[-1][0]:
        return f"all keys before each query and {after} after it"
    if after >= n_K - 1 - pairs[0][0]:
        return f"{counted(before, 'key')} before each query and all after it"
    return f"{counted(before, 'key')} before each query and {after} after it"


def _documents(ranges: Sequence[range]) -> str | None:
    """Name a mask of documents, each of which sees all of itself."""
    documents = list(dict.fromkeys(ranges))
    bounds = [0, *(keys.stop for keys in documents)]
    if documents != [range(*each) for each in pairwise(bounds)]:
        return None
    return f"all keys{_parts([len(keys) for keys in documents])}"


def _sinks(rows: Sequence[Sequence[range]], n_K: int) -> str | None:
    """Name a causal window beside which all queries see the first keys.

    Source: Xiao et al. 2023, "Efficient Streaming Language Models with Attention Sinks", section 3.2.
    """
    positions = range(n_K - len(rows), n_K)
    sinks, window = rows[-1][0].stop, len(rows[-1][-1])
    for row, position in zip(rows, positions, strict=True):
        sunk, near = range(min(sinks, position + 1)), range(max(0, position - window + 1), position + 1)
        expected = [sunk, near] if sunk.stop < near.start else [range(position + 1)]
        if list(row) != expected:
            return None
    return f"causal, {window} keys and the first {sinks}"
