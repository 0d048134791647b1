"""Name the rule behind a mask, from its visible pairs alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from math import inf

from attnscope.base.units import counted
from attnscope.masks.planes import Plane, RangePlane
from attnscope.model.files.indices import enumerated


def pattern_of(plane: Plane) -> str | None:
    """Return the rule by which queries see keys, in words; None if it is none of these.

    Keys that no query sees, such as padding, are left out: the rule may show or hide them. So are
    queries that see no key.
    """
    if not plane.seen:
        return "no key is visible"
    found, hidden = _rule(plane), plane.n_unseen
    if found is None or not hidden:
        return found
    if found == "all keys":
        return f"all but {counted(hidden, 'key')}"
    return f"{found}; {counted(hidden, 'key')} hidden from all"


def _rule(plane: Plane) -> str | None:
    """Return the rule of the queries that see a key, for the keys that a query sees."""
    rows = _rows(plane)
    keys = range(plane.seen[0].start, plane.seen[-1].stop)
    if rows is None:
        return _sinks(plane, keys)
    if all(row.start == keys.start and row.stop == keys.stop for row in rows):
        return "all keys"
    found = _band(plane, rows)
    if found:
        return found
    for first in _places(plane):
        for rule in (_causal_documents, _prefix, _documents):
            found = rule(rows, first, keys)
            if found:
                return found + _place_text(plane, first)
    return _documents_of_other_sizes(rows) if plane.n_Q != plane.n_K else None


@dataclass(frozen=True)
class Row:
    """The keys that a query sees, `start` to `stop`.

    No query sees the keys between `earliest` and `start`, nor those between `stop` and `latest`; so
    what a rule says about them is not known. They are infinite if this is so for all keys on a side.
    """

    query: int
    start: int
    stop: int
    earliest: float
    latest: float

    def shows(self, start: float, stop: float) -> bool:
        """Check whether a rule that shows the keys `start` to `stop` shows these."""
        return self.earliest <= start <= self.start and self.stop <= stop <= self.latest


def _rows(plane: Plane) -> list[Row] | None:
    """Return a row for each query that sees keys; None if one sees no single range of them."""
    bounds = [0, *(bound for keys in plane.seen for bound in (keys.start, keys.stop)), plane.n_K]
    unseen = {start: stop for start, stop in zip(bounds[::2], bounds[1::2], strict=True) if start < stop}
    backwards = {stop: start for start, stop in unseen.items()}
    rows = []
    for query, ranges in enumerate(plane.rows()):
        if not ranges:
            continue
        if any(unseen.get(one.stop) != other.start for one, other in pairwise(ranges)):
            return None
        start, stop = ranges[0].start, ranges[-1].stop
        earliest, latest = backwards.get(start, start), unseen.get(stop, stop)
        rows.append(Row(query, start, stop, earliest or -inf, latest if latest < plane.n_K else inf))
    return rows


def _places(plane: Plane) -> list[int]:
    """Return the positions among the keys that the first query may have, the most usual first."""
    if isinstance(plane, RangePlane) and plane.first is not None:
        return [plane.first]
    return list(dict.fromkeys([plane.n_K - plane.n_Q, 0]))


def _place_text(plane: Plane, first: int) -> str:
    """Say at which keys the queries are, unless query 0 is at key 0 and there are as many of both."""
    if first == plane.n_K - plane.n_Q:
        return ", the last query at the last key" if first else ""
    if first <= 0:
        return f", {f'query {-first}' if first else 'the first query'} at the first key"
    return f", the first query at key {first}"


def _band(plane: Plane, rows: Sequence[Row]) -> str | None:
    """Name a mask in which each query sees one key fewer at its left, and one more at its right."""
    before = max(row.query - row.start for row in rows), min(row.query - row.earliest for row in rows)
    after = max(row.stop - row.query for row in rows), min(row.latest - row.query for row in rows)
    if before[0] > before[1] or after[0] > after[1]:
        return None
    left = inf if before[1] == inf else before[0]
    right = (inf if after[1] == inf else after[0]) - 1
    first = _first_of(plane, left, right)
    return _band_text(left + first, right - first) + _place_text(plane, first)


def _first_of(plane: Plane, left: float, right: float) -> int:
    """Return the position of the first query that makes a band a usual mask.

    If the first query is at key 0, it sees the keys from `left` before it to `right` after it.
    """

    def unusual(first: int) -> tuple[bool, bool, float]:
        """Rank a band by whether queries miss their own key, and by how far they see after it."""
        before, after = left + first, right - first
        return before < 0 or after < 0, after != 0, abs(before - after)

    places = _places(plane)
    usual = min(places, key=unusual)
    is_inside = 0 <= right <= plane.n_K - plane.n_Q and left + right >= 0
    is_open = len(places) > 1 and (left == inf or unusual(usual)[0])
    return int(right) if is_inside and is_open else usual


def _band_text(before: float, after: float) -> str:
    """Name the keys that each query sees: from so many before it to so many after it.

    >>> _band_text(2, 0), _band_text(2, 1)
    ('causal, at most 3 keys', '2 keys before each query and 1 after it')
    >>> _band_text(inf, -3), _band_text(-1, 2)
    ('keys 3 or more before each query', 'keys 1 to 2 after each query')
    """
    if after < 0 or before < 0:
        side, near, far = ("before", -after, before) if after < 0 else ("after", -before, after)
        if near == far:
            which = "key" if near == 1 else f"key {near}"
            return f"each query sees only the {which} {side} it"
        if (near, far) == (1, inf):
            return f"all keys {side} each query, without its own"
        return f"keys {near} {'or more' if far == inf else f'to {far}'} {side} each query"
    if after == 0 and before == inf:
        return "causal"
    if after == 0:
        return f"causal, at most {before + 1:,} keys" if before else "each query sees only its own key"
    if before == inf:
        return f"all keys before each query and {after} after it"
    width = counted(int(before), "key")
    return f"{width} before each query and {'all' if after == inf else after} after it"


def _causal_documents(rows: Sequence[Row], first: int, keys: range) -> str | None:
    """Name a mask that hides later keys, other documents, and perhaps keys beyond a window."""
    alone = [row.start for row in rows if row.start == row.query + first == row.stop - 1]
    starts = sorted({keys.start, *alone})
    lengths = [stop - start for start, stop in pairwise([*starts, keys.stop])]
    window = max(row.query + first - row.start + 1 for row in rows)
    is_narrow = window < max(lengths)
    following = iter([*starts[1:], inf])
    start, end = keys.start, next(following)
    for row in rows:
        position = row.query + first
        while position >= end:
            start, end = int(end), next(following)
        if not row.shows(max(start, position - window + 1) if is_narrow else start, position + 1):
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
    return f" within documents of {enumerated(map(str, lengths))} keys"


def _prefix(rows: Sequence[Row], first: int, keys: range) -> str | None:
    """Name a mask that is causal after a prefix, which all queries see."""
    prefix = rows[0].stop
    if not all(row.shows(keys.start, max(prefix, row.query + first + 1)) for row in rows):
        return None
    return f"causal after a prefix of {counted(prefix - keys.start, 'key')}"


def _documents(rows: Sequence[Row], first: int, keys: range) -> str | None:
    """Name a mask of documents, each of which sees all of itself: its queries are at its keys."""
    documents = _in_order(rows)
    if documents is None or not all(row.earliest <= row.query + first < row.latest for row in rows):
        return None
    return f"all keys{_parts([len(keys) for keys, _ in documents])}"


def _documents_of_other_sizes(rows: Sequence[Row]) -> str | None:
    """Name a mask of documents whose queries are not at their keys: those of another sequence."""
    documents = _in_order(rows)
    if documents is None or len(documents) > 6:
        return None
    pairs = [(str(len(keys)), str(n_query)) for keys, n_query in documents]
    keys, queries = map(enumerated, zip(*pairs, strict=True))
    return f"all keys within documents of {keys} keys, for {queries} queries"


def _in_order(rows: Sequence[Row]) -> list[tuple[range, int]] | None:
    """Return documents of keys, one after the other, each with the number of queries that see it."""
    seen = groupby(range(row.start, row.stop) for row in rows)
    documents = [(keys, len(list(same))) for keys, same in seen]
    is_apart = all(one.stop <= other.start for (one, _), (other, _) in pairwise(documents))
    return documents if is_apart and len(documents) > 1 else None


def _sinks(plane: Plane, keys: range) -> str | None:
    """Name a causal window beside which all queries see the first keys.

    Source: Xiao et al. 2023, "Efficient Streaming Language Models with Attention Sinks", section 3.2.
    """
    if len(plane.seen) > 1:
        return None
    rows = {query: row for query, row in enumerate(plane.rows()) if row}
    _, last = max(rows.items())
    sinks, window = last[0].stop, len(last[-1])
    for first in _places(plane):
        expected = {query: _with_sinks(query + first, keys.start, sinks, window) for query in rows}
        if rows == expected:
            text = f"causal, {window:,} keys and the first {sinks - keys.start}"
            return text + _place_text(plane, first)
    return None


def _with_sinks(position: int, start: int, stop: int, window: int) -> list[range]:
    """Return the keys of a query that sees those from `start` to `stop`, and a window of its own."""
    sinks = range(start, min(stop, position + 1))
    near = range(max(start, position - window + 1), position + 1)
    return [sinks, near] if sinks.stop < near.start else [range(start, position + 1)]
