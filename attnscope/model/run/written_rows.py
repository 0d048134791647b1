"""Record which keys a model reads while it writes: the row of weights that wrote each token.

A token at position t is written by the query at position t − 1: the last query of the prompt writes the
first token. While the model generates, a hook keeps that query of each layer and the output of its
attention, which take little memory. Rows of weights are computed from them when all is written, with the
keys that are in the model's cache anyway. Where a layer's keys are not kept, such as behind a sliding
window, the row is computed at once. So the n × n weights of the prompt are not needed. If the rows of
its own tokens are recorded, too, they are computed while it is read, a block of queries at a time.

As everywhere, rows are checked: multiplied by the values, they have to give what the model's own
attention put out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from attnscope.base.arrays import largest_difference
from attnscope.base.errors import ModelError, OptionError
from attnscope.base.spelling import spelled
from attnscope.base.units import counted
from attnscope.model.files.checkpoint import Checkpoint
from attnscope.model.files.indices import check_indices
from attnscope.model.run.attention_hook import AttentionCall, observing
from attnscope.model.run.blockwise import blocked, memory_for, rounded_rows
from attnscope.model.run.layers import layer_of, stack_of
from attnscope.model.run.load import as_model_error, switched_attention
from attnscope.model.run.tokenize import max_tokens
from attnscope.model.run.validate import check_rows, output_tolerance, tolerance, weights_of

if TYPE_CHECKING:
    import torch

AT_ONCE = 2**22
"""The number of elements of memory in which weights are computed: 16 MiB of float32."""

PLAIN: dict[str, Any] = {
    "do_sample": False,
    "num_beams": 1,
    "num_return_sequences": 1,
    "use_cache": True,
    "cache_implementation": None,
    "prefill_chunk_size": None,
    "prompt_lookup_num_tokens": None,
    "return_dict_in_generate": False,
    "output_scores": False,
    "output_logits": False,
    "output_hidden_states": False,
}
"""What a generation config cannot change: one greedy text, one forward pass for each of its tokens."""


class UnexplainedWeightsError(ModelError):
    """Captured queries, keys and values do not reproduce the output of a model's attention."""


@dataclass(frozen=True)
class RecordedRows:
    """The rows that are recorded."""

    stack: str
    #: layers, heads: their indices; None: all.
    layers: Collection[int] | None = None
    heads: Collection[int] | None = None
    #: whether the row of a token is that of its own query, which reads it, instead of the row that wrote
    #: it. The token that ends a text is not read, so it is left out.
    reading: bool = False
    #: whether the rows of the prompt's tokens are recorded, too: of their own queries.
    of_prompt: bool = False
    #: whether they are the weights that the model's own eager attention returns. In a model that returns
    #: them at the end, those of all layers are in memory at once.
    eager: bool = False

    def heads_of(self, n_head: int) -> list[int]:
        """Return the recorded heads of a layer with so many."""
        return [head for head in range(n_head) if self.heads is None or head in self.heads]


@dataclass(frozen=True)
class WrittenRows:
    """Weights of some heads of one layer."""

    layer: int
    heads: list[int]
    queries: list[int]
    #: the position of the first key; those before it have no weight.
    first_key: int
    #: `n_head n_Q n_K` in float32, after the softmax. The next rows may reuse its memory.
    weights: torch.Tensor


@dataclass
class WrittenText:
    """What a model wrote."""

    ids: list[int]
    first: int
    #: of each, natural logarithm, before penalties of the generation.
    log_probabilities: list[float]
    n_layer: int
    #: the number of heads of each layer whose attention ran, by index.
    n_head: dict[int, int]
    #: for each token, the largest size of a finite logit that it was chosen by.
    largest_logits: list[float] = field(default_factory=list)


class RowRecorder:
    """Records the rows of queries while a model runs forward, step by step.

    Args:
        consume: called with rows, of each layer and head once for each query.
    """

    def __init__(
        self,
        name: str,
        model: Any,
        rows: RecordedRows,
        first_query: int,
        consume: Callable[[WrittenRows], None],
    ) -> None:
        self.name, self.model, self.rows, self.first_query = name, model, rows, first_query
        self.stack, self.consume = rows.stack, consume
        self.n_layer, self.n_head = 0, {}  # type: int, dict[int, int]
        self.cache: Any = None
        self._memory: torch.Tensor | None = None
        self._position = self._done = 0  # of the first query of this step, and of the first new one
        self._in_step: dict[int, int] = {}  # the number of queries, by layers that ran in this step
        self._pending: dict[int, list[tuple[int, AttentionCall]]] = {}  # by layer, query and call

    def begin_step(self, cache: Any, first: int = 0) -> None:
        """Begin the next forward pass of the model.

        Args:
            cache: the model's cache of keys and values; None: it has none.
            first: the position of its first query; 0 in each step of a model that reads the whole text
                again.
        """
        self._done, self._position = self.end, first
        self._in_step, self.cache = {}, cache

    @property
    def end(self) -> int:
        """The position after the last query of this step."""
        return self._position + next(iter(self._in_step.values()), 0)

    def see(self, call: AttentionCall) -> None:
        """Record the rows of one layer's attention."""
        config = self.model.config
        if stack_of(call.path, config, cross=call.cross) != self.stack:
            return
        known = [(self.stack, each) for each in self._in_step]
        layer, self.n_layer = layer_of(self.model, self.stack, call.path, known)
        if layer in self._in_step or call.query.shape[0] != 1:
            why = "more than once" if layer in self._in_step else "in several sequences"
            raise UnexplainedWeightsError(f"layer {layer} of {self.name} attends {why} in one step.")
        n_Q = call.query.shape[2]
        queries = self._begin_layer(layer, call.n_head, n_Q, call.key.shape[2])
        if not queries:
            return
        if self.rows.eager:
            if call.weights is None:
                kind = type(self.model).__name__
                raise ModelError(f"{self.name} ({kind}) returns no weights of its eager attention.")
            weights = _beside_sinks(call)[:, n_Q - len(queries) :]
            self._pass_on(weights, layer, queries, sinks=call.sinks is not None)
            return
        last = _last_row(call)
        if len(queries) == 1 and self._is_kept(last, layer, queries[0]):
            none = call.key.new_empty(0)
            waiting = replace(last, key=none, value=none, mask=None)
            self._pending.setdefault(layer, []).append((queries[0], waiting))
        else:
            self._compute(call, layer, queries)

    def see_returned(self, output: Any) -> None:
        """Record the rows of the weights that a model returned for all layers of this step.

        Args:
            output: the model's output; ignored if the layers' attention was seen in this step.
        """
        import torch

        if self._in_step:
            return
        key = {"decoder": "decoder_attentions", "cross": "cross_attentions"}.get(
            self.stack, "attentions"
        )
        returned = output.get(key) or ()
        self.n_layer = len(returned)
        for layer, weights in enumerate(returned):
            if not isinstance(weights, torch.Tensor) or weights.dim() != 4:
                kind = type(self.model).__name__
                raise ModelError(f"{self.name} ({kind}) returns no attention weights of layer {layer}.")
            _, n_head, n_Q, n_K = weights.shape
            queries = self._begin_layer(layer, n_head, n_Q, n_K)
            if queries:
                self._pass_on(weights[0, :, n_Q - len(queries) :], layer, queries)

    def _begin_layer(self, layer: int, n_head: int, n_Q: int, n_K: int) -> list[int]:
        """Note the sizes of a layer, and return the positions of its queries that are recorded.

        Args:
            n_head, n_Q, n_K: the numbers of its heads, queries and keys.
        """
        self._in_step[layer], self.n_head[layer] = n_Q, n_head
        if self.stack != "cross" and n_K > self.end:
            raise ModelError(
                f"layer {layer} of {self.name} has {counted(n_K, 'key')} where the text has"
                f" {counted(self.end, 'token')}, so not every key is a token."
            )
        if self.rows.layers is not None and layer not in self.rows.layers:
            return []
        return list(range(max(self.first_query, self._done), self.end))

    def _first_key(self, n_K: int) -> int:
        """Return the position of the first of so many keys of a layer: a window has the last ones."""
        return 0 if self.stack == "cross" else self.end - n_K

    def finish(self) -> None:
        """Compute all rows that are pending; check that the model has the recorded layers and heads."""
        import torch

        for layer, pending in self._pending.items():
            queries, calls = zip(*pending, strict=True)
            kept = self._kept(layer, cross=calls[0].cross)
            n_K, device = kept.keys.shape[2], kept.keys.device
            visible = torch.arange(n_K, device=device) <= torch.tensor(queries, device=device)[:, None]
            joined = replace(
                calls[0],
                query=torch.cat([call.query for call in calls], 2),
                key=kept.keys,
                value=kept.values,
                output=torch.cat([call.output for call in calls], 1),
                mask=None if calls[0].cross else visible,
            )
            self._compute(joined, layer, list(queries))
        self._pending.clear()
        if not self.n_head:
            raise UnexplainedWeightsError(
                f"{self.name} does not call attention through transformers' registry."
            )
        check_indices(
            self.name,
            [self.stack],
            self.rows.layers or [],
            self.rows.heads or [],
            n_layer={self.stack: self.n_layer},
            n_head={(self.stack, layer): n for layer, n in self.n_head.items()},
        )

    def _is_kept(self, call: AttentionCall, layer: int, query: int) -> bool:
        """Check whether the row can be computed later: the cache keeps its keys, and all are visible."""
        import torch

        if call.position_bias is not None or (call.sinks is not None and call.sinks.dim() > 1):
            return False
        if not call.cross and call.key.shape[2] != query + 1:
            return False
        of_layer = self._kept(layer, cross=call.cross)
        if getattr(of_layer, "is_sliding", False):  # a longer text will slide past the first keys
            return False
        kept = getattr(of_layer, "keys", None)
        if not isinstance(kept, torch.Tensor) or kept.data_ptr() != call.key.data_ptr():
            return False
        mask = call.mask
        return mask is None or bool((mask if mask.dtype == torch.bool else mask >= 0).all())

    def _kept(self, layer: int, *, cross: bool) -> Any:
        """Return the cache's keys and values of a layer; None: it has none."""
        cache = self.cache
        if hasattr(cache, "self_attention_cache"):
            cache = cache.cross_attention_cache if cross else cache.self_attention_cache
        layers = getattr(cache, "layers", ())
        return layers[layer] if layer < len(layers) else None

    def _compute(self, call: AttentionCall, layer: int, queries: list[int]) -> None:
        """Compute and pass on the last rows of a layer, some at a time."""
        heads = self.rows.heads_of(call.n_head)
        if not heads:  # which is an error, once the numbers of all layers are known
            return
        if len(heads) < call.n_head:
            call = call.of_heads(heads)
        attention, margin = blocked(call), output_tolerance(call)
        of_a_query, skipped = attention.numbers_of_a_query, attention.n_Q - len(queries)
        at_once = rounded_rows(AT_ONCE // of_a_query, len(queries))
        self._memory = memory_for(self._memory, at_once * of_a_query, attention.K)
        for start in range(skipped, attention.n_Q, at_once):
            rows = range(start, min(start + at_once, attention.n_Q))
            block, collected = attention.block(rows, self._memory)
            output = call.output[:, rows.start : rows.stop].to(collected)
            difference = largest_difference(collected.transpose(1, 2), output)
            if not difference <= margin:
                raise UnexplainedWeightsError(
                    f"the captured inputs of {self.name}'s attention do not reproduce its output:"
                    f" in layer {layer} they differ by {difference:.2g}."
                )
            of_rows = queries[rows.start - skipped : rows.stop - skipped]
            first_key = self._first_key(attention.n_K) + block.keys.start
            weights = block.attention[0].float()
            self.consume(WrittenRows(layer, heads, of_rows, first_key, weights))

    def _pass_on(
        self, weights: torch.Tensor, layer: int, queries: list[int], *, sinks: bool = False
    ) -> None:
        """Check and pass on rows that the model returned, of the heads that are recorded.

        Args:
            weights: of all heads, `n_head n_Q n_K`.
        """
        check_rows(weights, self.name, type(self.model).__name__, layer, self.stack, sinks=sinks)
        heads = self.rows.heads_of(len(weights))
        first_key = self._first_key(weights.shape[2])
        self.consume(WrittenRows(layer, heads, queries, first_key, weights[heads].float()))


def _last_row(call: AttentionCall) -> AttentionCall:
    """Return a call restricted to its last query, which holds no others in memory."""
    n_Q = call.query.shape[2]

    def last(x: torch.Tensor | None) -> torch.Tensor | None:
        """Select the row of what broadcasts to the scores."""
        return x if x is None or x.dim() < 2 or x.shape[-2] != n_Q else x[..., -1:, :]

    return replace(
        call,
        query=call.query[:, :, -1:].clone(),
        output=call.output[:, -1:].clone(),
        mask=last(call.mask),
        causal=False,  # it sees all keys
        position_bias=last(call.position_bias),
        sinks=last(call.sinks),
        weights=None,
    )


def _beside_sinks(call: AttentionCall) -> torch.Tensor:
    """Return the weights of eager attention, `n_head n_Q n_K`, without what sinks take.

    Some models, such as Granite with sliding windows, return the weights from before the sink takes its
    part, which sum to 1: they are multiplied by what the sink leaves.
    """
    assert call.weights is not None
    weights = call.weights[0]
    if call.sinks is None or not bool(((weights.float().sum(-1) - 1).abs() <= tolerance(weights)).all()):
        return weights
    left, _, _ = weights_of(call, list(range(call.n_head)))
    return weights * left.sum(-1, keepdim=True).to(weights)


def check_length(name: str, config: Any, n_prompt: int, n_write: int, *, has_answer: bool) -> None:
    """Raise an OptionError if a prompt and what follows are longer than a model takes."""
    most = max_tokens(config)
    if most is not None and n_prompt + n_write > most:
        may_write = most > n_prompt and not has_answer
        raise OptionError(
            f"{n_prompt:,} tokens and {n_write:,} more make {n_prompt + n_write:,}, and {name} takes"
            f" {most:,}.",
            hint=spelled(generate=most - n_prompt) if may_write else "a shorter text",
        )


def write(
    checkpoint: Checkpoint,
    model: Any,
    inputs: dict[str, Any],
    consume: Callable[[WrittenRows], None],
    rows: RecordedRows,
    *,
    n: int | None = None,
    answer: list[int] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> WrittenText:
    """Let a model write, greedily, and record the rows of weights that wrote each token.

    Args:
        consume: called with the rows: each layer, head and query once, in any order.
        n: the most tokens to write; fewer, if the text ends earlier.
        answer: the ids of a given text, which the model is made to write; instead of `n`.
    """
    import torch
    from transformers import LogitsProcessor, LogitsProcessorList

    name = checkpoint.name
    of_decoder = model.config.is_encoder_decoder
    begins = inputs.get("decoder_input_ids" if of_decoder else "input_ids")
    n_prompt = 1 if begins is None else begins.shape[1]
    n_write = n or 1 if answer is None else len(answer)
    check_length(name, model.config, n_prompt, n_write, has_answer=answer is not None)
    first_query = 0 if rows.of_prompt else n_prompt - (not rows.reading)
    recorder = RowRecorder(name, model, rows, first_query, consume)
    log_probabilities: list[float] = []
    largest_logits: list[float] = []
    logits: list[torch.Tensor] = []

    def score(token: int) -> None:
        """Add the log-probability of a token that was written, from the logits of the step before."""
        scores = logits.pop().float()
        log_probabilities.append(float(scores.log_softmax(-1)[token]))
        largest_logits.append(float(scores[scores.isfinite()].abs().max()))

    def before(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        ids = kwargs["decoder_input_ids" if of_decoder else "input_ids"]
        if logits:
            score(int(ids[0, -1]))
            progress(f"token {len(log_probabilities)} of {n_write}")
        n_text = n_prompt + len(log_probabilities)
        if ids.shape[1] > n_text:
            raise ModelError(
                f"{name} reads {ids.shape[1]} tokens where the text has {n_text}: it adds tokens"
                " of its own, so its rows are not those of the text."
            )
        recorder.begin_step(kwargs.get("past_key_values"), n_text - ids.shape[1])

    def after(_: Any, args: tuple[Any, ...], output: Any) -> None:
        logits.append(output.logits[0, -1])
        if rows.eager:
            recorder.see_returned(output)

    class Given(LogitsProcessor):
        """Leave the next token of the given answer as the only possible one."""

        def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            assert answer is not None
            token = answer[min(len(log_probabilities), n_write - 1)]
            only = torch.tensor([token], device=scores.device)
            return torch.full_like(scores, -torch.inf).index_fill(1, only, 0)

    options: dict[str, Any] = {**PLAIN, "max_new_tokens": n_write + rows.reading}
    options["output_attentions"] = rows.eager
    if answer is not None:
        options |= {"logits_processor": LogitsProcessorList([Given()]), "eos_token_id": -1}
    model.config.use_cache = model.config.get_text_config().use_cache = True
    with ExitStack() as hooks, torch.no_grad():
        hooks.callback(model.register_forward_pre_hook(before, with_kwargs=True).remove)
        hooks.callback(model.register_forward_hook(after).remove)
        hooks.enter_context(as_model_error(checkpoint))
        if rows.eager:
            hooks.enter_context(switched_attention(model, "eager"))
        hooks.enter_context(observing(model, recorder.see))
        written = model.generate(**inputs, **options)
        ids = written[0, n_prompt:].tolist()
        score(ids[-1])
        recorder.finish()
    if rows.reading:  # the last token was written, and no query has read it
        del ids[-1], log_probabilities[-1], largest_logits[-1]
    return WrittenText(
        ids, n_prompt, log_probabilities, recorder.n_layer, recorder.n_head, largest_logits
    )
