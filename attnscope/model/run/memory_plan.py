"""Plan the memory of a run before it starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attnscope.base.errors import SizeError
from attnscope.base.process.progress import notify
from attnscope.base.spelling import spelled
from attnscope.base.units import bytes_text
from attnscope.model.run.blockwise import rounded_rows
from attnscope.model.run.layers import values_of
from attnscope.model.run.value_norms import AT_ONCE

LARGEST_BLOCK = {"cpu": 20 * 2**20, "cuda": 512 * 2**20}
"""The bytes of a block of weights beyond which it gets no faster: on a CPU, the size of its caches."""

MOST_ROWS = 64
"""The most queries in a block on a CPU: more of them share keys that few of them see, if causal."""

KEPT = 48 * 2**20
"""The most bytes of numbers of pairs that are kept: those of some 2,000 tokens."""

LITTLE = 64 * 2**20
"""A plan that takes less than these bytes, and has room for a whole block, is not reported."""

N_METRIC = 13
"""The number of metrics of heads that a run measures at most."""

NUMBERS_OF_A_METRIC = 3
"""The numbers held for each query and metric: the sum over its keys, its value, whether it counts."""


@dataclass(frozen=True)
class Needs:
    """The memory that a run needs beside the weights of its model, in bytes."""

    #: n_batch, n_tokens: the number of texts in a batch, and the length of the longest.
    n_batch: int
    n_tokens: int
    activations: int
    #: masks and position biases that the model itself builds for each query and key.
    masks: int
    kept: int
    #: the weights of one query, and the scores that they are computed from.
    of_weights: int
    #: the same, and the numbers of each pair of it and a key.
    of_a_query: int
    #: the numbers of all pairs of a query and a key, which further layers can use again.
    of_pairs: int

    @property
    def fixed(self) -> int:
        """The part that does not depend on the number of queries in a block."""
        return self.activations + self.masks + self.kept

    @property
    def least(self) -> int:
        """The memory of the run with one query in a block."""
        return self.fixed + self.of_a_query


@dataclass(frozen=True)
class MemoryPlan:
    """The memory of a run beside the weights of its model, in bytes."""

    needs: Needs
    #: the number of queries in a block, which is overwritten by the next one.
    rows: int
    #: the part of the numbers of pairs that is kept for further layers.
    keep: int = 0

    @property
    def block(self) -> int:
        """The weights of a block of queries, and the scores that they are computed from."""
        return self.rows * self.needs.of_weights

    @property
    def at_once(self) -> int:
        """The same, and the numbers of each pair of a query in the block and a key."""
        return self.rows * self.needs.of_a_query

    @property
    def total(self) -> int:
        """The sum of all parts."""
        return self.needs.fixed + self.keep + self.at_once

    def report(self) -> None:
        """Report the plan, unless it takes little."""
        if self.total >= LITTLE or self.rows < min(self.needs.n_tokens, MOST_ROWS):
            notify(str(self))

    def __str__(self) -> str:
        needs = self.needs
        parts = [f"{bytes_text(self.at_once)} for {self.rows} queries' weights at once"]
        parts.append(f"{bytes_text(needs.activations)} for the layers' activations")
        if needs.masks:
            parts.append(f"{bytes_text(needs.masks)} for the model's own masks")
        if self.keep:
            parts.append(f"{bytes_text(self.keep)} for masks of token pairs")
        if needs.kept:
            parts.append(f"{bytes_text(needs.kept)} for maps")
        tokens = tokens_text(needs.n_batch, needs.n_tokens)
        return f"{tokens} take {bytes_text(self.total)}: {', '.join(parts)}"


def plan_run(name: str, needs: Needs, memory: int, device: str, hint: str | None = None) -> MemoryPlan:
    """Divide the memory of a run among its parts."""
    left = memory - needs.fixed
    if left < needs.of_a_query:
        raise SizeError(
            f"{name} needs at least {bytes_text(needs.least)} for"
            f" {tokens_text(needs.n_batch, needs.n_tokens)} besides its weights, but its limit is"
            f" {bytes_text(memory)}.",
            hint=hint
            or (
                f"a shorter text: {spelled(truncate=True, max_length='N')}; or more"
                f" {spelled('memory')}, if available"
            ),
        )
    on_gpu = device.startswith("cuda")
    largest = LARGEST_BLOCK["cuda" if on_gpu else "cpu"]
    rows = min(left // needs.of_a_query, largest // needs.of_weights)
    rows = rounded_rows(rows if on_gpu else min(rows, MOST_ROWS), needs.n_tokens)
    return MemoryPlan(needs, rows, keep=min(KEPT, needs.of_pairs, left - rows * needs.of_a_query))


@dataclass(frozen=True)
class Measured:
    """What a room measures of a run, and keeps in memory."""

    kept: int = 0  #: bytes
    pairs: int = 0  #: numbers of each pair of a query and a key
    rescaled: bool = False  #: whether weights are changed and each row rescaled before they are measured
    weighed: bool = False  #: whether weights are multiplied by norms of values
    padded: bool | None = None  #: whether some texts are padded; None: if there are several


def needs_of(
    config: Any, dtype_bytes: int, n_batch: int, n_tokens: int, measured: Measured = Measured()
) -> Needs:
    """Estimate the memory that a run needs.

    Activations are estimated from the widths in the configuration, for a single layer, since each layer
    reuses the memory of the one before.

    Args:
        n_batch, n_tokens: the number of texts in a batch, and the length of the longest.
    """
    sizes, pairs = _Sizes.of(config), measured.pairs
    padded = n_batch > 1 if measured.padded is None else measured.padded
    n = n_batch * n_tokens
    single = max(dtype_bytes, 4)
    of_heads = 3 * sizes.n_head * sizes.d_head + 4 * sizes.n_kv_head * sizes.d_head
    of_layer = dtype_bytes * (4 * sizes.d_feat + max(4 * sizes.d_ff, of_heads))
    metrics = NUMBERS_OF_A_METRIC * 8 * N_METRIC * sizes.n_head
    activations = n * (of_layer + single * 2 * sizes.n_kv_head * sizes.d_head + metrics)
    if (
        measured.weighed
    ):  # the norms, v_j W_O of some keys at once, and copies of what enters and leaves W_O
        at_once = min(AT_ONCE, n * sizes.d_feat)
        activations += single * (n * (sizes.n_head + 3 * sizes.n_head * sizes.d_head) + 2 * at_once)
    masks = n * n_tokens * _mask_bytes(config, padded)
    if sizes.biases:  # for each head; then once more, added to the mask of each text
        masks += single * n_tokens**2 * (sizes.biases + n_batch * (sizes.biases + 1))
    of_weights = 2 * single * n_batch * sizes.n_head * n_tokens
    of_a_pair = pairs + 2 if pairs else 0  # the numbers, and temporary tensors
    if pairs and n_batch > 1:  # transposed weights, for one product with all pairs
        of_a_pair += sizes.n_head
    if measured.rescaled:  # the entropy's term of each weight
        of_a_pair += sizes.n_head
    return Needs(
        *(n_batch, n_tokens, activations, masks, measured.kept, of_weights),
        of_a_query=of_weights + single * n * of_a_pair,
        of_pairs=single * pairs * n * n_tokens,
    )


def tokens_text(n_batch: int, n_tokens: int) -> str:
    """Describe the size of a batch: `4,096 tokens`, `8 × 512 tokens`."""
    return f"{f'{n_batch:,} × ' if n_batch > 1 else ''}{n_tokens:,} tokens"


@dataclass(frozen=True)
class _Sizes:
    """The largest widths of a model's layers, read from its configuration."""

    d_feat: int
    d_ff: int
    n_head: int
    n_kv_head: int
    d_head: int
    biases: int

    @classmethod
    def of(cls, config: Any) -> _Sizes:
        text = config.get_text_config()

        def size(*names: str) -> int:
            found = [value for name in names for value in values_of(text, name)]
            return max((each for each in found if isinstance(each, int)), default=0)

        d_feat = size("hidden_size", "d_model") or 1024
        n_head = size("num_attention_heads", "decoder_attention_heads", "num_heads") or 16
        d_ff = size("intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "d_ff", "n_inner")
        experts = size("num_local_experts" if text.model_type == "gpt_oss" else "num_experts_per_tok")
        d_ff += d_ff * experts * 3 // 2  # in gpt-oss, all experts compute
        n_kv_head = size("num_key_value_heads") or n_head
        d_head = size("head_dim", "d_kv") or d_feat // n_head
        biases = n_head if hasattr(text, "relative_attention_num_buckets") else 0
        return cls(d_feat, d_ff or 4 * d_feat, n_head, n_kv_head, d_head, biases)


def _mask_bytes(config: Any, padded: bool) -> int:
    """Return the bytes of a model's mask for each query and key; 0 if it builds none."""
    text = config.get_text_config()
    if config._attn_implementation == "eager":
        return 8  # numbers, and temporary ones
    has_window = any(values_of(text, "sliding_window") + values_of(text, "local_attention"))
    return 2 if has_window or padded else 0
