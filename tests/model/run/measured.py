"""Small checkpoints whose heads are measured, and what a loop finds of the same heads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import sqrt
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from attnscope.model.files.checkpoint import Checkpoint
from attnscope.model.heads.batches import Reader, TextBatch
from attnscope.model.heads.measurer import HeadMeasurer
from attnscope.model.heads.metrics import METRICS
from attnscope.model.heads.result import HeadRow
from attnscope.model.heads.statistics import Accumulator
from attnscope.model.run.load import load_config, load_model, load_tokenizer
from tests.model.run.naive_metrics import Numbers, naive_mean, naive_metrics
from tests.model.run.readers import save_reader

TEXTS = [
    "the cat sat on the mat because it was tired .",
    "a dog ran . the dog sat . the dog ran",
    "the cat",
    ". . a mat",
]
TARGETS = ["a dog ran on the mat .", "the cat . the cat", "it was", "a"]
DECODERS = "gpt2 gpt_neox llama mistral gemma2 gpt_oss qwen3 lfm2 bloom gptj mpt".split()
MORE = {
    "modernbert": {"local_attention": 4, "global_attn_every_n_layers": 2},
    "gpt_oss": {
        "intermediate_size": 32
    },  # its experts' kernels for narrow dtypes take multiples of 16 bytes
}

Head = tuple[str, int, int]
"""A stack, a layer, a head."""


class Family:
    """A checkpoint of a family, and what a loop finds of its heads."""

    def __init__(self, name: str, folder: Path, **more: Any) -> None:
        save_reader(name, folder, **{**MORE.get(name, {}), **more})
        self.name, self.checkpoint = name, Checkpoint(name, folder)
        self.config = load_config(self.checkpoint)
        self.targets = TARGETS if self.config.is_encoder_decoder else None

    def model(self, **options: Any) -> Any:
        return load_model(self.checkpoint, load_config(self.checkpoint), **options)

    def measurer(self, *, dtype: str | None = None, **options: Any) -> tuple[HeadMeasurer, TextBatch]:
        """What measures its heads, and all the texts in one batch; it is probed with the longest."""
        model = self.model(dtype=dtype)
        reader = Reader(model, load_tokenizer(self.checkpoint))
        texts = reader.read(TEXTS, self.targets)
        [batch] = reader.batches(texts, 1000)
        measurer = HeadMeasurer(self.checkpoint, model, list(METRICS), **options)
        measurer.probe(reader.batch([max(texts, key=lambda text: text.n_tokens)]))
        return measurer, batch

    def heads(self, **options: Any) -> dict[Head, HeadRow]:
        """What attnscope measures of each head."""
        return rows_of(*self.measurer(**options))

    def expected(
        self, *, without_sink: bool = False, weigh: bool = False, **options: Any
    ) -> dict[Head, list[tuple[list[int], Numbers]]]:
        """For each head and each text: the queries' tokens, and every metric of every query."""
        measure = naive_metrics_without_sinks if without_sink else naive_metrics
        model = self.model(attention="eager", **options)
        found: dict[Head, list[tuple[list[int], Numbers]]] = {}
        for i, text in enumerate(TEXTS):
            source = ids_of(self.checkpoint, text)
            target = (
                None
                if self.targets is None
                else decoder_reads(model, ids_of(self.checkpoint, self.targets[i]))
            )
            given = {"input_ids": [source], "attention_mask": [[1] * len(source)]}
            given |= {} if target is None else {"decoder_input_ids": [target]}
            tensors = {name: torch.tensor(ids) for name, ids in given.items()}
            with torch.no_grad(), values_of(model) as values:
                output = model(**tensors, output_attentions=True, return_dict=True)
            for stack, layer, maps in maps_of(output, self.config):
                queries = target if stack in ("decoder", "cross") else source
                keys = target if stack == "decoder" else source
                sees = self.sight(stack, layer)
                for head, rows in enumerate(maps.tolist()):
                    assert all(  # the rule is the model's
                        (a > 0) == sees(i, j) for i, row in enumerate(rows) for j, a in enumerate(row)
                    )
                    if weigh:
                        rows = weighed(rows, naive_norms(model, values, stack, layer, head, len(maps)))
                    told = (
                        queries,
                        measure(rows, queries, keys, sees, cross=stack == "cross", **KINDS),
                    )
                    found.setdefault((stack, layer, head), []).append(told)
        return found

    def sight(self, stack: str, layer: int) -> Callable[[int, int], bool]:
        """Whether query i sees key j."""
        causal = stack == "decoder" or self.name in DECODERS
        kinds = getattr(self.config, "layer_types", None) or ["sliding_attention"] * 2
        slides = stack == "self" and kinds[layer % len(kinds)] == "sliding_attention"
        window = getattr(self.config, "sliding_window", None) if slides else None
        if window is None:
            return lambda i, j: j <= i or not causal
        if causal:
            return lambda i, j: 0 <= i - j < window
        return lambda i, j: abs(i - j) <= window


KINDS = {"separators": [3], "punctuation": [14]}
SPECIAL = [0, 2, 3]
"""The numbers of tokens in the tokenizer of eighteen words: [SEP], the point; [PAD], [CLS] and [SEP]."""


def naive_metrics_without_sinks(
    rows: list[list[float]],
    queries: list[int],
    keys: list[int],
    sees: Callable[[int, int], bool],
    **options: Any,
) -> Numbers:
    """The same of the weights that go to keys that are neither the first nor special."""
    others = [j for j, key in enumerate(keys) if j > 0 and key not in SPECIAL]
    left = [sum(row[j] for j in others) for row in rows]
    shares = [
        [a / rest if j in others and rest else 0.0 for j, a in enumerate(row)]
        for row, rest in zip(rows, left, strict=True)
    ]
    found = naive_metrics(shares, queries, keys, lambda i, j: j in others and sees(i, j), **options)
    return {
        name: [number if rest else None for number, rest in zip(numbers, left, strict=True)]
        for name, numbers in found.items()
    }


PROJECTIONS = {"value": "output.dense", "v_proj": "o_proj out_proj"}
"""The names that modules of W_V have, and those of W_O."""


@contextmanager
def values_of(model: torch.nn.Module) -> Iterator[dict[str, torch.Tensor]]:
    """What each module of W_V puts out in a run on one text, `n_K n_kv_head·d_V`, by its name."""
    found: dict[str, torch.Tensor] = {}
    hooks = [
        module.register_forward_hook(lambda module, given, out, name=name: found.update({name: out[0]}))
        for name, module in model.named_modules()
        if name.rpartition(".")[2] in PROJECTIONS
    ]
    yield found
    for hook in hooks:
        hook.remove()


def naive_norms(
    model: torch.nn.Module,
    values: dict[str, torch.Tensor],
    stack: str,
    layer: int,
    head: int,
    n_head: int,
) -> list[float]:
    """‖v_j W_O^h‖ of each key of one head, one number of the product after the other."""
    [(name, V)] = [
        (name, V)
        for name, V in values.items()
        if f".{layer}." in name
        and ("encoder_attn" in name) == (stack == "cross")
        and (stack not in ("encoder", "decoder") or f"{stack}.layers" in name)
    ]
    attends, _, last = name.rpartition(".")
    attends = attends.removesuffix(".self")
    [W_O] = [
        model.get_parameter(f"{attends}.{each}.weight")
        for each in PROJECTIONS[last].split()
        if f"{attends}.{each}" in dict(model.named_modules())
    ]
    d_V = W_O.shape[1] // n_head
    shared = head * d_V * V.shape[1] // W_O.shape[1] // d_V * d_V
    rows = W_O[:, head * d_V : (head + 1) * d_V].tolist()
    return [
        sqrt(sum(sum(w * x for w, x in zip(row, v, strict=True)) ** 2 for row in rows))
        for v in V[:, shared : shared + d_V].tolist()
    ]


def weighed(rows: list[list[float]], norms: list[float]) -> list[list[float]]:
    """Weights times the norms of values, as shares of the sum of each row."""
    products = [[a * norm for a, norm in zip(row, norms, strict=True)] for row in rows]
    return [[each / (sum(row) or 1) for each in row] for row in products]


def ids_of(checkpoint: Checkpoint, text: str) -> list[int]:
    return AutoTokenizer.from_pretrained(checkpoint.folder)(text)["input_ids"]


def decoder_reads(model: Any, labels: list[int]) -> list[int]:
    """Moved to the right, behind the token that starts."""
    return [model.config.decoder_start_token_id, *labels[:-1]]


def maps_of(output: Any, config: Any) -> Iterator[tuple[str, int, torch.Tensor]]:
    """Stack, layer and weights, `n_head n_Q n_K`, of the one text that was read."""
    stacks = {"self": "attentions", "encoder": "encoder_attentions"}
    stacks |= {"decoder": "decoder_attentions", "cross": "cross_attentions"}
    kinds = getattr(config, "layer_types", None) or []
    attends = [layer for layer, kind in enumerate(kinds) if kind != "conv"]
    for stack, name in stacks.items():
        maps = getattr(output, name, None) or []
        for number, of_layer in enumerate(maps):
            yield stack, attends[number] if attends else number, of_layer[0]


def rows_of(measurer: HeadMeasurer, batch: TextBatch) -> dict[Head, HeadRow]:
    return rows_in(measurer, measurer.measure(batch))


def rows_in(measurer: HeadMeasurer, accumulator: Accumulator) -> dict[Head, HeadRow]:
    of_stack = {stack: measurer.of_stack(stack) for stack in accumulator.layers}
    return {(row.stack, row.layer, row.head): row for row in accumulator.rows(list(METRICS), of_stack)}


def assert_equal(
    ours: dict[Head, HeadRow],
    theirs: dict[Head, list[tuple[list[int], Numbers]]],
    *,
    special: bool = True,
    tolerance: float = 1e-5,
) -> None:
    """Means and errors of all metrics of all heads are the same."""
    assert ours.keys() == theirs.keys()
    for head, row in ours.items():
        assert list(row.values) == list(METRICS)
        for name, value in row.values.items():
            sequences = [
                [
                    number
                    for query, number in zip(
                        queries, numbers.get(name, [None] * len(queries)), strict=True
                    )
                    if special or query not in SPECIAL
                ]
                for queries, numbers in theirs[head]
            ]
            mean, error = naive_mean(sequences)
            assert value == near(mean, tolerance), (head, name, value, mean)
            assert row.errors[name] == near(error, tolerance), (head, name, row.errors[name], error)


def near(number: float | None, tolerance: float) -> Any:
    return None if number is None else pytest.approx(number, rel=tolerance, abs=tolerance)
