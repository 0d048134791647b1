"""What is measured of a head: small functions of what its queries give to their keys.

Each is a mean over queries: for every query a number, and NaN where the question does not make sense
for it. To ask how much goes to a kind of key makes sense for a query that can see such a key: so causal
models and windows need no rules of their own. Below, a_ij is the weight that query i gives to key j;
a row sums to 1, or to less where a sink takes a part.

A metric is a function here, with its name in METRICS, and a test. What it asks of the weights is
gathered block by block, for all queries of a layer; a metric works on what was gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from attnscope.models.running.buffers import Store

if TYPE_CHECKING:
    import torch

    from attnscope.attention.blocks import Block


@dataclass(frozen=True)
class Side:
    """The tokens of a batch that look, or are looked at.

    Attributes:
        ids: `n_batch n`, the tokenizer's numbers; -1 for padding.
        real: `n_batch n`, False for padding.
        special: `n_batch n`, what the tokenizer added.
        separator: `n_batch n`, special tokens that end a text: `[SEP]`, `</s>`.
        punctuation: `n_batch n`, tokens of nothing but punctuation.
        sink: `n_batch n`, the first token and special ones, as `sinks.sink_keys` has them.
    """

    ids: torch.Tensor
    real: torch.Tensor
    special: torch.Tensor
    separator: torch.Tensor
    punctuation: torch.Tensor
    sink: torch.Tensor

    @property
    def beginning(self) -> torch.Tensor:
        """The position of the first token that is no padding: `n_batch 1 1 1`."""
        return self.real.int().argmax(dim=-1)[:, None, None, None]

    def first(self, n: int) -> Side:
        """The first `n` tokens of the first sequence."""
        return Side(**{name: tensor[:1, :n] for name, tensor in vars(self).items()})

    def to(self, device: torch.device) -> Side:
        """The same on another device."""
        return Side(**{name: tensor.to(device) for name, tensor in vars(self).items()})


class WeightRows:
    """What the queries of a layer give to their keys, gathered block by block.

    Args:
        asking: the side of the queries.
        seen: the side of the keys; in self-attention the same.
        positions: the single keys that are asked about: some of POSITIONS.
        pairs: what is asked of every query and every key together: some of PAIRS.
        like: rows of another layer with the same mask and the same questions: there it was gathered
            already who sees what.
        store: memory for what is asked of pairs, which all layers share.
        without_sink: whether weights are those to other keys than sinks, which then sum to 1.

    Attributes:
        entropy: H_i, `n_batch n_head n_Q`.
        largest: max_j a_ij, the same.
        total: Σ_j a_ij, the same.
        n_visible: how many keys a query sees that are no padding, `n_batch n_head n_Q`; or 1 for heads.
    """

    def __init__(
        self,
        asking: Side,
        seen: Side,
        positions: Collection[str] = (),
        pairs: Collection[str] = (),
        like: WeightRows | None = None,
        store: Store | None = None,
        *,
        without_sink: bool = False,
    ) -> None:
        self.asking, self.seen, self._like = asking, seen, like
        self._without_sink = without_sink
        self._positions, self._pairs = list(positions), list(pairs)
        self._gathered: dict[str, torch.Tensor] = {}
        self._store = store or Store()
        self._index: torch.Tensor | None = None if like is None else like._index
        self._numbers: dict[tuple[range, range], torch.Tensor] = {} if like is None else like._numbers

    def add(self, block: Block) -> None:
        """Gather what is asked of the next queries.

        Without sinks, the block's weights are changed where they are.
        """
        if self._without_sink:
            block = self._without_sinks(block)
        spot = Spot(block, self.asking, self.seen)
        places, numbers = self._places_in(spot), self._numbers_in(spot)
        gathered = {"entropy": block.entropy, "largest": block.largest, "total": block.total}
        if places is not None:
            gathered["at"] = places.of(block.attention)
        if numbers is not None:
            gathered["pairs"] = _over(block.attention, numbers)
        if self._like is None:
            gathered |= spot.sight(places, numbers)
        for name, part in gathered.items():
            self._of_all_queries(name, part)[:, :, block.queries.start : block.queries.stop] = part

    def _without_sinks(self, block: Block) -> Block:
        """A block without the keys that are sinks."""
        from attnscope.attention.blocks import without_keys

        n_batch, n_head, n_rows, n_keys = block.attention.shape
        most = n_batch * n_head * n_rows * self.seen.ids.shape[1]
        room = self._store.room((n_batch * n_head * n_rows * n_keys,), most, block.attention)
        return without_keys(block, self.seen.sink, room.numbers)

    @property
    def counts(self) -> torch.Tensor:
        """Which queries have weights to be measured, `n_batch n_head n_Q`; or 1 for heads."""
        import torch

        if self._without_sink:
            return self.total > 0
        return torch.ones(1, 1, 1, dtype=torch.bool, device=self.total.device)

    def _of_all_queries(self, name: str, part: torch.Tensor) -> torch.Tensor:
        """Where something is gathered: room for all queries, taken when the first of them come."""
        if name not in self._gathered:
            n_batch, n_head, _, *kinds = part.shape
            self._gathered[name] = part.new_empty(n_batch, n_head, self.asking.ids.shape[1], *kinds)
        return self._gathered[name]

    def _places_in(self, spot: Spot) -> Places | None:
        """Where the keys that are asked about are in a block."""
        if not self._positions:
            return None
        if self._index is None:
            self._index = self._positions_of_keys()
        return spot.places(self._index)

    def _positions_of_keys(self) -> torch.Tensor:
        """The positions of the single keys that are asked about: `n_batch 1 n_Q n_position`."""
        import torch

        n_batch, n_Q = self.asking.ids.shape
        i = torch.arange(n_Q, device=self.asking.ids.device)[:, None]
        each = [POSITIONS[name](i, self.seen) for name in self._positions]
        return torch.cat([index.expand(n_batch, 1, n_Q, 1) for index in each], dim=-1)

    def _numbers_in(self, spot: Spot) -> torch.Tensor | None:
        """What is asked of the pairs in a block: `n_batch queries n_pair keys`."""
        which = (spot.block.queries, spot.block.keys)
        if not self._pairs or which in self._numbers:
            return self._numbers.get(which)
        n_batch, _, n_rows, n_keys = spot.block.attention.shape
        shape = (n_batch, n_rows, len(self._pairs), n_keys)
        most = n_batch * n_rows * len(self._pairs) * self.seen.ids.shape[1]
        room = self._store.room(shape, most, spot.block.attention, keep=self._like is None)
        for k, name in enumerate(self._pairs):
            room.numbers[:, :, k] = _as_numbers(PAIRS[name](spot))[:, 0]
        if room.kept:
            self._numbers[which] = room.numbers
        return room.numbers

    @property
    def entropy(self) -> torch.Tensor:
        return self._whole("entropy")

    @property
    def largest(self) -> torch.Tensor:
        return self._whole("largest")

    @property
    def total(self) -> torch.Tensor:
        return self._whole("total")

    @property
    def n_visible(self) -> torch.Tensor:
        return self._whole("visible")

    @property
    def i(self) -> torch.Tensor:
        """The positions of the queries: `n_Q`."""
        import torch

        return torch.arange(self.entropy.shape[-1], device=self.entropy.device)

    def at(self, position: str) -> torch.Tensor:
        """a_ij of one key j for each query, `n_batch n_head n_Q`; NaN where it cannot see that."""
        k = self._positions.index(position)
        return _where(self._whole("at visible")[..., k] > 0, self._whole("at")[..., k])

    def over(self, pair: str) -> torch.Tensor:
        """Σ_j a_ij x_ij, where x_ij is one of PAIRS: `n_batch n_head n_Q`."""
        return self._whole("pairs")[..., self._pairs.index(pair)]

    def given_to(self, pair: str) -> torch.Tensor:
        """The same of a kind of keys; NaN for queries that see none."""
        n = self._whole("pairs visible")[..., self._pairs.index(pair)]
        return _where(n > 0, self.over(pair))

    def _whole(self, name: str) -> torch.Tensor:
        """What was gathered of all queries."""
        of = self if name in self._gathered or self._like is None else self._like
        return of._gathered[name]


@dataclass(frozen=True)
class Places:
    """Where single keys are among those of a block: the same in all layers that see the same.

    Attributes:
        index: where, `n_batch 1 queries n_position`.
        outside: whether the block does not have it; then `index` is another's.
    """

    index: torch.Tensor
    outside: torch.Tensor

    def of(self, numbers: torch.Tensor) -> torch.Tensor:
        """Their numbers, of `n_batch n_head queries keys`: `n_batch n_head queries n_position`."""
        index = self.index.expand(-1, numbers.shape[1], -1, -1)
        return numbers.gather(-1, index).masked_fill_(self.outside, 0)


@dataclass(frozen=True)
class Spot:
    """A block of weights, and whose they are.

    Attributes:
        block: the weights, and who sees whom.
        asking, seen: the sides of queries and keys.
    """

    block: Block
    asking: Side
    seen: Side

    @cached_property
    def i(self) -> torch.Tensor:
        """The positions of the queries, `queries 1`."""
        return _positions(self.block.queries, self.block.attention)[:, None]

    @cached_property
    def j(self) -> torch.Tensor:
        """The positions of the keys, `1 keys`."""
        return _positions(self.block.keys, self.block.attention)[None]

    @property
    def offset(self) -> int:
        """How far right of the first key the first query's own key is."""
        return self.block.queries.start - self.block.keys.start

    @cached_property
    def visible(self) -> torch.Tensor:
        """Whether a query sees a key that is a token: `n_batch n_head queries keys`, or 1 for heads."""
        visible = self.block.visible & self.of_keys(self.seen.real)
        return visible.expand(-1, -1, len(self.block.queries), -1)

    def of_keys(self, of_each: torch.Tensor) -> torch.Tensor:
        """What is known of each token, `n_batch n_K`, for these keys: `n_batch 1 1 keys`."""
        return of_each[:, None, None, self.block.keys.start : self.block.keys.stop]

    def of_queries(self, of_each: torch.Tensor) -> torch.Tensor:
        """What is known of each token, `n_batch n_Q`, for these queries: `n_batch 1 queries 1`."""
        return of_each[:, None, self.block.queries.start : self.block.queries.stop, None]

    def places(self, index: torch.Tensor) -> Places:
        """Where single keys are among these.

        Args:
            index: their positions, of all queries: `n_batch 1 n_Q n_position`.
        """
        keys, queries = self.block.keys, self.block.queries
        index = index[:, :, queries.start : queries.stop] - keys.start
        near = index.clamp(0, len(keys) - 1)
        return Places(near, near != index)

    def sight(self, places: Places | None, numbers: torch.Tensor | None) -> dict[str, torch.Tensor]:
        """How many keys a query sees that are tokens: all of them, and those that are asked about.

        Args:
            places: where single keys are.
            numbers: x_ij of each kind, `n_batch queries n_pair keys`.

        Returns:
            `n_batch n_head queries` of all; and of each kind, `n_batch n_head queries n_kind`; or 1 for
            heads, where nothing differs.
        """
        n = _as_numbers(self.visible).to(self.block.attention.dtype)
        seen = {"visible": n.sum(dim=-1)}
        if places is not None:
            seen["at visible"] = places.of(n)
        if numbers is not None:
            seen["pairs visible"] = _over(n, numbers)
        return seen


def _positions(axis: range, like: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.arange(axis.start, axis.stop, device=like.device, dtype=torch.int32)


def _over(weights: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Σ_j a_ij x_ij of each kind, in one product.

    Args:
        weights: a_ij, `n_batch n_head queries keys`.
        numbers: x_ij, `n_batch queries n_pair keys`.

    Returns:
        `n_batch n_head queries n_pair`.
    """
    return (weights.transpose(1, 2) @ numbers.mT).transpose(1, 2)


def _as_numbers(kinds: torch.Tensor) -> torch.Tensor:
    """True and False as 1 and 0, without a copy: so they are converted several times faster."""
    import torch

    return kinds.view(torch.uint8) if kinds.dtype == torch.bool else kinds


def _where(counts: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Values where they count, and NaN elsewhere."""
    return values.masked_fill(~counts, float("nan"))


def same_token(spot: Spot) -> torch.Tensor:
    """Whether key j is the same token as query i."""
    return spot.of_queries(spot.asking.ids) == spot.of_keys(spot.seen.ids)


def same_elsewhere(spot: Spot) -> torch.Tensor:
    """Whether key j is the same token as query i, at another position of the same sequence."""
    same = same_token(spot)
    same.diagonal(spot.offset, dim1=-2, dim2=-1).fill_(False)
    return same


def after_copy(spot: Spot) -> torch.Tensor:
    """Whether key j, before query i, comes after a copy of it."""
    before = spot.seen.ids.roll(1, dims=-1)
    before[:, 0] = -1  # nothing is before the first, and padding is no token
    copies = spot.of_queries(spot.asking.ids) == spot.of_keys(before)
    return copies.tril_(spot.offset - 1)


def steps_apart(spot: Spot) -> torch.Tensor:
    """|i − j|."""
    return (spot.j.to(spot.block.attention.dtype) - spot.i).abs_()[None, None]


POSITIONS: dict[str, Callable[[torch.Tensor, Side], torch.Tensor]] = {
    "self": lambda i, seen: i,
    "previous": lambda i, seen: i - 1,
    "next": lambda i, seen: i + 1,
    "first": lambda i, seen: seen.beginning,
}
"""Single keys that are asked about: their positions, broadcasting to `n_batch 1 n_Q 1`.

They depend on the positions of the queries, i, `n_Q 1`, and on the side of the keys.
"""

PAIRS: dict[str, Callable[[Spot], torch.Tensor]] = {
    "separator": lambda spot: spot.of_keys(spot.seen.separator),
    "punctuation": lambda spot: spot.of_keys(spot.seen.punctuation),
    "same": same_elsewhere,
    "same of source": same_token,
    "induction": after_copy,
    "distance": steps_apart,
}
"""What is asked of every query and key together: broadcasts to `n_batch 1 queries keys`."""


def entropy(rows: WeightRows) -> torch.Tensor:
    """How widely it looks, in nats.

    H_i = −Σ_j a_ij ln a_ij (Shannon 1948, "A Mathematical Theory of Communication", section 6).
    """
    return rows.entropy


def entropy_share(rows: WeightRows) -> torch.Tensor:
    """Its entropy, of the largest that is possible.

    H_i / (p_i ln(n_i / p_i)), where query i gives p_i to the n_i keys that it can see: H_i / ln n_i,
    where no sink takes a part. Not for queries that see only one.
    """
    n, p = rows.n_visible, rows.total
    return _where(n > 1, rows.entropy / (p * (n.log() - p.log())))


def to_self(rows: WeightRows) -> torch.Tensor:
    """Attention to the token itself.

    a_ii (Kovaleva et al. 2019, "Revealing the Dark Secrets of BERT", section 4.1: diagonal).
    """
    return rows.at("self")


def to_previous(rows: WeightRows) -> torch.Tensor:
    """Attention to the token before.

    a_i,i−1 (Clark et al. 2019, "What Does BERT Look At?", section 3.1).
    """
    return rows.at("previous")


def to_next(rows: WeightRows) -> torch.Tensor:
    """Attention to the token after.

    a_i,i+1 (Clark et al. 2019, section 3.1).
    """
    return rows.at("next")


def to_first(rows: WeightRows) -> torch.Tensor:
    """Attention to the first token.

    a_i0, of queries that are not that token (Xiao et al. 2023, "Efficient Streaming Language Models with
    Attention Sinks", section 3.1). With padding at the left, it is the first that is none.
    """
    is_first = rows.i == rows.seen.beginning.squeeze(-1)  # [n_batch, 1, n_Q]
    return _where(~is_first, rows.at("first"))


def to_first_of_source(rows: WeightRows) -> torch.Tensor:
    """Attention to the first token.

    The same for queries of another sequence, of which none is that token.
    """
    return rows.at("first")


def to_separators(rows: WeightRows) -> torch.Tensor:
    """Attention to separators, such as [SEP] and </s>.

    Σ_j a_ij over separators j (Clark et al. 2019, section 3.2).
    """
    return rows.given_to("separator")


def to_punctuation(rows: WeightRows) -> torch.Tensor:
    """Attention to punctuation.

    Σ_j a_ij over tokens j of punctuation alone (Clark et al. 2019, section 3.2: periods and commas).
    """
    return rows.given_to("punctuation")


def to_same(rows: WeightRows) -> torch.Tensor:
    """Attention to the same token elsewhere.

    Σ_j a_ij over j ≠ i whose token is that of i (Wang et al. 2022, "Interpretability in the Wild",
    section 3.1: duplicate token heads).
    """
    return rows.given_to("same")


def to_same_in_source(rows: WeightRows) -> torch.Tensor:
    """Attention to the same token.

    Σ_j a_ij over all j whose token is that of i, where they are of different sequences.
    """
    return rows.given_to("same of source")


def induction(rows: WeightRows) -> torch.Tensor:
    """Attention to what came after the same token before.

    Σ_j a_ij over j < i whose preceding token, j − 1, is that of i (Olsson et al. 2022, "In-context
    Learning and Induction Heads": prefix matching).
    """
    return rows.given_to("induction")


def distance(rows: WeightRows) -> torch.Tensor:
    """How far it looks, in tokens.

    Σ_j a_ij |i − j| (Vig and Belinkov 2019, "Analyzing the Structure of Attention in a Transformer
    Language Model", section 4.3).
    """
    return rows.over("distance")


def largest(rows: WeightRows) -> torch.Tensor:
    """The largest weight of a query.

    max_j a_ij (Voita et al. 2019, "Analyzing Multi-Head Self-Attention", section 4: confidence).
    """
    return rows.largest


def effective(rows: WeightRows) -> torch.Tensor:
    """How many keys it looks at: so many equal weights have this entropy.

    exp H_i, the perplexity of the row.
    """
    return rows.entropy.exp()


@dataclass(frozen=True)
class Metric:
    """A metric: `of` what was gathered, for each head and query, `n_batch n_head n_Q`; NaN: not counted.

    Attributes:
        of: the function.
        position, pair: what it asks, of POSITIONS or of PAIRS.
    """

    of: Callable[[WeightRows], torch.Tensor]
    position: str | None = None
    pair: str | None = None


METRICS = {
    "entropy": Metric(entropy),
    "entropy_share": Metric(entropy_share),
    "self": Metric(to_self, position="self"),
    "previous": Metric(to_previous, position="previous"),
    "next": Metric(to_next, position="next"),
    "first": Metric(to_first, position="first"),
    "separator": Metric(to_separators, pair="separator"),
    "punctuation": Metric(to_punctuation, pair="punctuation"),
    "same": Metric(to_same, pair="same"),
    "induction": Metric(induction, pair="induction"),
    "distance": Metric(distance, pair="distance"),
    "largest": Metric(largest),
    "effective": Metric(effective),
}
"""The metrics of attention within a sequence, by the names that users give them."""

CROSS = {
    **{name: METRICS[name] for name in ("entropy", "entropy_share")},
    "first": Metric(to_first_of_source, position="first"),
    **{name: METRICS[name] for name in ("separator", "punctuation")},
    "same": Metric(to_same_in_source, pair="same of source"),
    **{name: METRICS[name] for name in ("largest", "effective")},
}
"""Those of attention to another sequence: a query has no neighbours there."""


def metrics_of(stack: str, names: Iterable[str]) -> dict[str, Metric]:
    """Those metrics of these names that make sense for a stack, by name."""
    metrics = CROSS if stack == "cross" else METRICS
    return {name: metrics[name] for name in names if name in metrics}


def meaning(name: str) -> str:
    """What a metric says, in a few words."""
    return (METRICS[name].of.__doc__ or "").split("\n")[0].rstrip(".")
