"""Metrics of heads: small functions of the weights that queries give to their keys.

A metric is a mean over queries: each query has a number, or NaN if the metric is not defined for it.
The weight of a kind of key is defined for queries that can see such a key, so causal models and windows
need no rules of their own. Below, a_ij is the weight that query i gives to key j; a row sums to 1, or
to less where a sink takes a part.

A metric is an entry of METRICS, with its formula and source, and a test. The sums over keys that it
needs are accumulated block by block, for all queries of a layer; the metric is computed from these.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from attnscope.model.run.blockwise import Store

if TYPE_CHECKING:
    import torch

    from attnscope.attention.blocks import Block


@dataclass(frozen=True)
class AxisTokens:
    """The tokens on one side of a batch's attention: those of its queries, or of its keys."""

    ids: torch.Tensor  #: `n_batch n`, token ids; -1 for padding
    real: torch.Tensor  #: `n_batch n`, False for padding
    special: torch.Tensor  #: `n_batch n`, tokens that the tokenizer added
    separator: torch.Tensor  #: `n_batch n`, special tokens that end a text: `[SEP]`, `</s>`
    punctuation: torch.Tensor  #: `n_batch n`, tokens of nothing but punctuation
    #: `n_batch n`, the first token and special ones, according to `attention_sinks.sink_keys`
    sink: torch.Tensor

    @property
    def beginning(self) -> torch.Tensor:
        """The position of the first token that is not padding: `n_batch 1 1 1`."""
        return self.real.int().argmax(dim=-1)[:, None, None, None]

    def first(self, n: int) -> AxisTokens:
        """Return the first `n` tokens of the first sequence."""
        return AxisTokens(**{name: tensor[:1, :n] for name, tensor in vars(self).items()})

    def to(self, device: torch.device) -> AxisTokens:
        """Move all tensors to another device."""
        return AxisTokens(**{name: tensor.to(device) for name, tensor in vars(self).items()})


class WeightRows:
    """Sums over each query's row of weights in one layer, accumulated block by block.

    Args:
        positions: the single keys whose weights are needed: names in POSITIONS.
        pairs: the numbers of pairs of a query and a key that are needed: names in PAIRS.
        like: rows of another layer with the same mask, positions and pairs, whose counts of visible keys
            are used.
        store: memory for numbers of pairs, shared by all layers.
        norms: the norms of the keys' values, `n_batch n_head n_K`, by which weights are multiplied
            before they are rescaled to sum to 1; None: they are not.

    Attributes:
        entropy: H_i, `n_batch n_head n_Q`.
        largest: max_j a_ij, the same.
        total: Σ_j a_ij, the same.
        n_visible: the number of visible keys that are not padding, `n_batch n_head n_Q`; or 1 for heads.
    """

    def __init__(
        self,
        query_side: AxisTokens,
        key_side: AxisTokens,
        positions: Collection[str] = (),
        pairs: Collection[str] = (),
        like: WeightRows | None = None,
        store: Store | None = None,
        *,
        without_sink: bool = False,
        norms: torch.Tensor | None = None,
    ) -> None:
        self.query_side, self.key_side, self._like = query_side, key_side, like
        self._without_sink, self._norms = without_sink, norms
        self._positions, self._pairs = list(positions), list(pairs)
        self._sums: dict[str, torch.Tensor] = {}
        self._store = store or Store()
        self._key_positions: torch.Tensor | None = None if like is None else like._key_positions
        self._kept_numbers: dict[tuple[range, range], torch.Tensor] = (
            {} if like is None else like._kept_numbers
        )

    def add(self, block: Block) -> None:
        """Accumulate the sums of the next queries.

        Weights that are rescaled are changed in place.
        """
        if self._rescaled:
            block = self._rescale(block)
        tokens = TokenBlock(block, self.query_side, self.key_side)
        key_indices, numbers = self._key_indices(tokens), self._pair_numbers(tokens)
        sums = {"entropy": block.entropy, "largest": block.largest, "total": block.total}
        summands = {"": block.attention}
        if self._like is None:
            summands[" visible"] = tokens.visible
            sums["visible"] = tokens.visible.sum(dim=-1)
        for what, summand in summands.items():
            if key_indices is not None:
                sums[f"at{what}"] = key_indices.of(summand)
            if numbers is not None:
                sums[f"pairs{what}"] = _weighted_sums(summand, numbers)
        for name, part in sums.items():
            self._buffer(name, part)[:, :, block.queries.start : block.queries.stop] = part

    @property
    def _rescaled(self) -> bool:
        """Whether other weights than the model's are measured, each row rescaled to sum to 1."""
        return self._without_sink or self._norms is not None

    def _rescale(self, block: Block) -> Block:
        """Return a block weighed by the norms of values, without the keys that are sinks."""
        from attnscope.attention.blocks import weighed_keys, without_keys

        n_batch, n_head, n_rows, n_keys = block.attention.shape
        most = n_batch * n_head * n_rows * self.key_side.ids.shape[1]
        buffer, _ = self._store.buffer((n_batch * n_head * n_rows * n_keys,), most, block.attention)
        if self._norms is not None:
            block = weighed_keys(block, self._norms, buffer)
        return without_keys(block, self.key_side.sink, buffer) if self._without_sink else block

    @property
    def counts(self) -> torch.Tensor:
        """True for queries that have weights to measure, `n_batch n_head n_Q`; or 1 for heads."""
        import torch

        if self._rescaled:
            return self.total > 0
        return torch.ones(1, 1, 1, dtype=torch.bool, device=self.total.device)

    def _buffer(self, name: str, part: torch.Tensor) -> torch.Tensor:
        """Return the tensor of a sum for all queries, allocated at the first block."""
        if name not in self._sums:
            n_batch, n_head, _, *sizes = part.shape
            self._sums[name] = part.new_empty(n_batch, n_head, self.query_side.ids.shape[1], *sizes)
        return self._sums[name]

    def _key_indices(self, tokens: TokenBlock) -> KeyIndices | None:
        """Return the indices of the needed single keys in a block; None if none is needed."""
        import torch

        if not self._positions:
            return None
        if self._key_positions is None:  # `n_batch 1 n_Q n_position`
            n_batch, n_Q = self.query_side.ids.shape
            i = torch.arange(n_Q, device=self.query_side.ids.device)[:, None]
            each = [POSITIONS[name](i, self.key_side) for name in self._positions]
            self._key_positions = torch.cat([index.expand(n_batch, 1, n_Q, 1) for index in each], dim=-1)
        queries, keys = tokens.block.queries, tokens.block.keys
        index = self._key_positions[:, :, queries.start : queries.stop] - keys.start
        near = index.clamp(0, len(keys) - 1)
        return KeyIndices(near, near != index)

    def _pair_numbers(self, tokens: TokenBlock) -> torch.Tensor | None:
        """Return the numbers of the pairs in a block: `n_batch queries n_pair keys`."""
        which = (tokens.block.queries, tokens.block.keys)
        if not self._pairs or which in self._kept_numbers:
            return self._kept_numbers.get(which)
        n_batch, _, n_rows, n_keys = tokens.block.attention.shape
        shape = (n_batch, n_rows, len(self._pairs), n_keys)
        most = n_batch * n_rows * len(self._pairs) * self.key_side.ids.shape[1]
        attention, keep = tokens.block.attention, self._like is None
        numbers, kept = self._store.buffer(shape, most, attention, keep=keep)
        for k, name in enumerate(self._pairs):
            numbers[:, :, k] = _as_numbers(PAIRS[name](tokens))[:, 0]
        if kept:
            self._kept_numbers[which] = numbers
        return numbers

    @property
    def entropy(self) -> torch.Tensor:
        return self._sum("entropy")

    @property
    def largest(self) -> torch.Tensor:
        return self._sum("largest")

    @property
    def total(self) -> torch.Tensor:
        return self._sum("total")

    @property
    def n_visible(self) -> torch.Tensor:
        return self._sum("visible")

    @property
    def i(self) -> torch.Tensor:
        """The positions of the queries: `n_Q`."""
        import torch

        return torch.arange(self.entropy.shape[-1], device=self.entropy.device)

    def weight_at(self, position: str) -> torch.Tensor:
        """Return a_ij of one key j for each query, `n_batch n_head n_Q`; NaN where it is not visible."""
        k = self._positions.index(position)
        return _where(self._sum("at visible")[..., k] > 0, self._sum("at")[..., k])

    def weighted_sum(self, pair: str) -> torch.Tensor:
        """Return Σ_j a_ij x_ij, where x_ij is one of PAIRS: `n_batch n_head n_Q`."""
        return self._sum("pairs")[..., self._pairs.index(pair)]

    def weight_of(self, pair: str) -> torch.Tensor:
        """Return the same for a kind of key; NaN for queries that see none."""
        n = self._sum("pairs visible")[..., self._pairs.index(pair)]
        return _where(n > 0, self.weighted_sum(pair))

    def _sum(self, name: str) -> torch.Tensor:
        """Return a sum for all queries; counts of visible keys may be those of `like`."""
        of = self if name in self._sums or self._like is None else self._like
        return of._sums[name]


@dataclass(frozen=True)
class KeyIndices:
    """The indices of single keys among those of a block, the same in all layers with the same mask."""

    index: torch.Tensor  #: `n_batch 1 queries n_position`
    outside: torch.Tensor  #: True where the key is not in the block; then `index` is that of another key

    def of(self, numbers: torch.Tensor) -> torch.Tensor:
        """Select from `n_batch n_head queries keys`: `n_batch n_head queries n_position`."""
        index = self.index.expand(-1, numbers.shape[1], -1, -1)
        return numbers.gather(-1, index).masked_fill_(self.outside, 0)


@dataclass(frozen=True)
class TokenBlock:
    """A block of weights with the tokens of its queries and keys."""

    block: Block
    query_side: AxisTokens
    key_side: AxisTokens

    @property
    def offset(self) -> int:
        """The index, among the keys of the block, of the key at the position of its first query."""
        return self.block.queries.start - self.block.keys.start

    @cached_property
    def visible(self) -> torch.Tensor:
        """1 for visible keys that are not padding: `n_batch n_head queries keys`, or 1 for heads."""
        visible = self.block.visible & self.of_keys(self.key_side.real)
        visible = visible.expand(-1, -1, len(self.block.queries), -1)
        return _as_numbers(visible).to(self.block.attention.dtype)

    def of_keys(self, of_each: torch.Tensor) -> torch.Tensor:
        """Select these keys from a property of all tokens, `n_batch n_K`: `n_batch 1 1 keys`."""
        return of_each[:, None, None, self.block.keys.start : self.block.keys.stop]

    def of_queries(self, of_each: torch.Tensor) -> torch.Tensor:
        """Select these queries from a property of all tokens, `n_batch n_Q`: `n_batch 1 queries 1`."""
        return of_each[:, None, self.block.queries.start : self.block.queries.stop, None]


def _weighted_sums(weights: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Return Σ_j a_ij x_ij of each kind, in one product: `n_batch n_head queries n_pair`.

    The weights a_ij are `n_batch n_head queries keys`, the numbers x_ij `n_batch queries n_pair keys`.
    """
    return (numbers @ weights.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)  # [·, queries, n_pair, n_head]


def _as_numbers(flags: torch.Tensor) -> torch.Tensor:
    """View True and False as 1 and 0 without a copy, which makes conversion several times faster."""
    import torch

    return flags.view(torch.uint8) if flags.dtype == torch.bool else flags


def _where(counts: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Replace values by NaN where `counts` is False."""
    return values.masked_fill(~counts, float("nan"))


def same_token(tokens: TokenBlock) -> torch.Tensor:
    """Mark each key j that is the same token as query i."""
    return tokens.of_queries(tokens.query_side.ids) == tokens.of_keys(tokens.key_side.ids)


def same_elsewhere(tokens: TokenBlock) -> torch.Tensor:
    """Mark each key j that is the same token as query i, at another position of the same sequence."""
    same = same_token(tokens)
    same.diagonal(tokens.offset, dim1=-2, dim2=-1).fill_(False)
    return same


def after_copy(tokens: TokenBlock) -> torch.Tensor:
    """Mark each key j that precedes query i, and follows a copy of its token."""
    before = tokens.key_side.ids.roll(1, dims=-1)
    before[:, 0] = -1  # no token precedes the first one, and padding is no token
    copies = tokens.of_queries(tokens.query_side.ids) == tokens.of_keys(before)
    return copies.tril_(tokens.offset - 1)


def steps_apart(tokens: TokenBlock) -> torch.Tensor:
    """Return |i − j|."""
    import torch

    queries, keys, like = tokens.block.queries, tokens.block.keys, tokens.block.attention
    i = torch.arange(queries.start, queries.stop, device=like.device, dtype=torch.int32)
    j = torch.arange(keys.start, keys.stop, device=like.device, dtype=like.dtype)
    return (j - i[:, None]).abs_()[None, None]


POSITIONS: dict[str, Callable[[torch.Tensor, AxisTokens], torch.Tensor]] = {
    "self": lambda i, key_side: i,
    "previous": lambda i, key_side: i - 1,
    "next": lambda i, key_side: i + 1,
    "first": lambda i, key_side: key_side.beginning,
}
"""Single keys: their positions, broadcasting to `n_batch 1 n_Q 1`.

They depend on the positions of the queries, i, `n_Q 1`, and on the tokens of the keys.
"""

PAIRS: dict[str, Callable[[TokenBlock], torch.Tensor]] = {
    "separator": lambda tokens: tokens.of_keys(tokens.key_side.separator),
    "punctuation": lambda tokens: tokens.of_keys(tokens.key_side.punctuation),
    "same": same_elsewhere,
    "same of source": same_token,
    "induction": after_copy,
    "distance": steps_apart,
}
"""Numbers of each pair of a query and a key, broadcasting to `n_batch 1 queries keys`."""


def retrieval(
    strongest: torch.Tensor, written: torch.Tensor, ids: torch.Tensor, needle: range
) -> torch.Tensor:
    """Share of the needle that the head copies.

    The number of written tokens t whose row has its strongest key, j = argmax_j a_t−1,j, in the needle,
    where j is the token that is written; divided by the number of the needle's tokens. The mean is over
    trials (Wu et al. 2024, "Retrieval Head Mechanistically Explains Long-Context Factuality", section 2;
    as in their code, a token that is copied twice counts twice). `strongest` is `n_head n_written`.
    """
    inside = (strongest >= needle.start) & (strongest < needle.stop)
    copied = ids[strongest.clamp(max=len(ids) - 1)] == written
    return (inside & copied).double().sum(-1) / len(needle)


RETRIEVAL = "retrieval"  #: the name of that metric, which is measured while a model writes: `--needle`


@dataclass(frozen=True)
class Metric:
    """A metric, and the sums that it needs."""

    meaning: str  #: in a few words
    #: the function of these sums: `n_batch n_head n_Q`; NaN: the query is not counted
    of: Callable[[WeightRows], torch.Tensor]
    position: str | None = None  #: the key in POSITIONS that it needs
    pair: str | None = None  #: the numbers in PAIRS that it needs


def _at(position: str, meaning: str) -> Metric:
    """Return the metric of the weight that each query gives to a single key."""
    return Metric(meaning, lambda rows: rows.weight_at(position), position=position)


def _to(pair: str, meaning: str) -> Metric:
    """Return the metric of the weight that each query gives to a kind of key."""
    return Metric(meaning, lambda rows: rows.weight_of(pair), pair=pair)


def entropy_share(rows: WeightRows) -> torch.Tensor:
    """Return H_i / (p_i ln(n_i / p_i)), where query i gives p_i to the n_i keys that it can see.

    That is H_i / ln n_i, where no sink takes a part. Not for queries that see only one.
    """
    n, p = rows.n_visible, rows.total
    return _where(n > 1, rows.entropy / (p * (n.log() - p.log())))


def to_first(rows: WeightRows) -> torch.Tensor:
    """Return a_i0, of queries that are not that token: the first that is not padding."""
    is_first = rows.i == rows.key_side.beginning.squeeze(-1)  # [n_batch, 1, n_Q]
    return _where(~is_first, rows.weight_at("first"))


METRICS = {
    # H_i = −Σ_j a_ij ln a_ij (Shannon 1948, "A Mathematical Theory of Communication", section 6)
    "entropy": Metric("Entropy of a query's weights, in nats", lambda rows: rows.entropy),
    "entropy_share": Metric("Entropy as a fraction of the largest possible entropy", entropy_share),
    # a_ii (Kovaleva et al. 2019, "Revealing the Dark Secrets of BERT", section 4.1: diagonal)
    "self": _at("self", "Attention to the token itself"),
    # a_i,i−1 and a_i,i+1 (Clark et al. 2019, "What Does BERT Look At?", section 3.1)
    "previous": _at("previous", "Attention to the previous token"),
    "next": _at("next", "Attention to the next token"),
    # Xiao et al. 2023, "Efficient Streaming Language Models with Attention Sinks", section 3.1
    "first": Metric("Attention to the first token", to_first, position="first"),
    # Σ_j a_ij over separators j (Clark et al. 2019, section 3.2)
    "separator": _to("separator", "Attention to separators, such as [SEP] and </s>"),
    # Σ_j a_ij over tokens j of punctuation alone (Clark et al. 2019, section 3.2: periods and commas)
    "punctuation": _to("punctuation", "Attention to punctuation"),
    # Σ_j a_ij over j ≠ i whose token is that of i (Wang et al. 2022, "Interpretability in the Wild",
    # section 3.1: duplicate token heads)
    "same": _to("same", "Attention to the same token elsewhere"),
    # Σ_j a_ij over j < i whose preceding token, j − 1, is that of i (Olsson et al. 2022, "In-context
    # Learning and Induction Heads": prefix matching)
    "induction": _to("induction", "Attention to the token that followed an earlier copy of the query"),
    # Σ_j a_ij |i − j| (Vig and Belinkov 2019, "Analyzing the Structure of Attention in a Transformer
    # Language Model", section 4.3)
    "distance": Metric(
        "Mean distance from query to key, in tokens",
        lambda rows: rows.weighted_sum("distance"),
        pair="distance",
    ),
    # max_j a_ij (Voita et al. 2019, "Analyzing Multi-Head Self-Attention", section 4: confidence)
    "largest": Metric("The largest weight of a query", lambda rows: rows.largest),
    # exp H_i, the perplexity of the row
    "effective": Metric(
        "Effective number of keys: that many equal weights have the same entropy",
        lambda rows: rows.entropy.exp(),
    ),
}
"""The metrics of attention within a sequence, by name."""

NEED_TOKENS = ("separator", "punctuation")
"""The metrics of which tokens there are, which only a tokenizer knows."""

_OF_CROSS = {
    "first": _at("first", "Attention to the first token"),  # of another sequence: no query is that token
    "same": _to("same of source", "Attention to the same token"),  # of all j
}
_NO_NEIGHBOURS = ("self", "previous", "next", "induction", "distance")

CROSS = {
    name: _OF_CROSS.get(name, metric) for name, metric in METRICS.items() if name not in _NO_NEIGHBOURS
}
"""The metrics of attention to another sequence, in which a query has no neighbours."""


def metrics_of(stack: str, names: Iterable[str]) -> dict[str, Metric]:
    """Return the metrics with these names that are defined for a stack, by name."""
    metrics = CROSS if stack == "cross" else METRICS
    return {name: metrics[name] for name in names if name in metrics}
