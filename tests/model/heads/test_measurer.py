"""Metrics of all heads, against a loop over the weights that transformers' own eager attention returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product

import pytest
import torch

from attnscope.attention.blocks import BlockedAttention
from attnscope.base.errors import ModelError
from attnscope.model.heads.batches import Reader, TextBatch
from attnscope.model.heads.measurer import HeadMeasurer, run
from attnscope.model.heads.metrics import METRICS
from attnscope.model.heads.statistics import Accumulator
from attnscope.model.run import attention_hook as observe
from attnscope.model.run.attention_hook import AttentionInputs, attending
from attnscope.model.run.blockwise import Blockwise
from attnscope.model.run.load import load_tokenizer
from tests.model.run.measured import KINDS, TEXTS, Family, Head, assert_equal, rows_in, rows_of
from tests.model.run.naive_metrics import naive_metrics
from tests.model.run.readers import changed_weights
from tests.sweeps import swept

LENGTH = 13
"""Of the longest text: its words, [CLS] and [SEP]."""

SEEN = "bert roberta albert modernbert gpt2 gpt_neox llama mistral gemma2 gpt_oss qwen3 lfm2".split()
TWO_STACKS = "t5 bart marian".split()
EAGER = "bigbird_pegasus deberta-v2 bloom gptj mpt xlm".split()
"""Families that do not call attention through transformers' registry: they are measured on what they return."""
SOME = "bert gpt2 gemma2 gpt_oss t5".split()
"""What is bidirectional, causal, in windows and groups, with sinks, in two stacks."""


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Family]:
    """Makes each family once."""
    return cache(lambda name: Family(name, tmp_path_factory.mktemp(name)))


@pytest.fixture(scope="module")
def expected(families: Callable[[str], Family]) -> Callable[[str], dict]:
    """Loops over each family once."""
    return cache(lambda name: families(name).expected())


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "family", swept([*SEEN, *TWO_STACKS, *EAGER], [*SOME, "lfm2", "bloom", "deberta-v2"])
)
def test_metrics_equal_a_loop_over_eager_maps(families, expected, family):
    measurer, batch = families(family).measurer(block_bytes=8000)
    assert batch.source.ids.shape == (4, LENGTH)
    own = f"{family} does not call attention through transformers' registry"
    assert measurer.why_eager == (own if family in EAGER else None)
    assert_equal(rows_of(measurer, batch), expected(family))


BLOCKS = {1: {1}, 8000: {6, 1}, 2**24: {LENGTH}}
"""The sizes of the blocks that so many bytes make."""


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("family", "block_bytes"),
    swept(
        product("bert mistral gemma2 gpt_oss".split(), BLOCKS),
        [("bert", 2**24), ("mistral", 8000), ("gpt_oss", 1)],
    ),
)
def test_the_size_of_a_block_does_not_matter(families, expected, monkeypatch, family, block_bytes):
    rows = BLOCKS[block_bytes]
    measurer, batch = families(family).measurer(block_bytes=block_bytes)
    sizes, block = set(), BlockedAttention.block

    def spy(self, queries, memory):
        sizes.add(len(queries))
        return block(self, queries, memory)

    monkeypatch.setattr(BlockedAttention, "block", spy)
    assert_equal(rows_of(measurer, batch), expected(family))
    assert sizes == rows or (len(rows) > 1 and 1 < max(sizes) < LENGTH)


def test_sequences_in_batches_of_their_own_add_up_to_the_same(families, expected):
    family = families("llama")
    measurer, batch = family.measurer()
    reader = Reader(measurer.model, load_tokenizer(family.checkpoint))
    accumulator = Accumulator()
    for text in batch.texts:
        accumulator.merge(measurer.measure(reader.batch([text])))
    n_tokens = sum(len(text.inputs["input_ids"]) for text in batch.texts)
    assert (accumulator.sequences, accumulator.tokens) == (4, n_tokens)
    assert_equal(rows_in(measurer, accumulator), expected("llama"))


@pytest.mark.few(1)
@pytest.mark.parametrize("family", ["gpt2", "bart", "bloom"])
def test_queries_that_the_tokenizer_added_can_be_left_out(families, expected, family):
    assert_equal(families(family).heads(special=False), expected(family), special=False)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "family", swept("bert mistral gpt_oss bart bloom".split(), ["mistral", "gpt_oss", "bart"])
)
def test_what_goes_to_other_keys_than_sinks_is_measured_as_if_they_were_all(families, family):
    ours = families(family).heads(without_sink=True, block_bytes=8000)
    assert_equal(ours, families(family).expected(without_sink=True))
    for head, row in ours.items():
        known = {name: value for name, value in row.values.items() if value is not None}
        assert not known.keys() & {"first", "separator"}, head
        assert known["entropy"] >= 0


def test_a_text_whose_queries_see_no_other_key_has_no_metrics_without_sinks(families):
    family = families("llama")
    measurer, _ = family.measurer(without_sink=True)
    reader = Reader(measurer.model, load_tokenizer(family.checkpoint))
    [text] = reader.read(["the"])
    only = replace(text, inputs={name: ids[1:2] for name, ids in text.inputs.items()}, length=1)
    for row in rows_of(measurer, reader.batch([only])).values():
        assert set(row.values.values()) == {None}


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("family", "without_sink"), [("bert", False), ("mistral", True), ("bart", True)]
)
def test_weights_weighed_by_values_equal_a_loop_over_keys_and_features(families, family, without_sink):
    options = {"without_sink": without_sink}
    ours = families(family).heads(weigh="value", block_bytes=8000, **options)
    theirs = families(family).expected(weigh=True, **options)
    assert_equal(ours, theirs)
    unweighed = families(family).heads(**options)
    assert any(abs(row["entropy"] - unweighed[head]["entropy"]) > 0.01 for head, row in ours.items())


@pytest.fixture
def points(tmp_path):
    """A BERT with a planted head and an idle one in layer 0.

    Head 0 attends to the point, whose value is 0 there; in head 1, all values are 0.
    """
    family = Family("bert", tmp_path)
    [point] = KINDS["punctuation"]
    with changed_weights(tmp_path) as weights:
        weights["embeddings.position_embeddings.weight"][:] = 0
        norm = [weights[f"embeddings.LayerNorm.{name}"] for name in ("weight", "bias")]
        embedded = weights["embeddings.word_embeddings.weight"]
        embedded = embedded + weights["embeddings.token_type_embeddings.weight"][0]
        embedded = torch.nn.functional.layer_norm(
            embedded, embedded.shape[-1:], *norm, family.config.layer_norm_eps
        )
        x, others = embedded[point], embedded.mean(0)
        d_K = len(x) // family.config.num_attention_heads
        of = {
            (name, part): weights[f"encoder.layer.0.attention.self.{name}.{part}"]
            for name, part in product(("query", "key", "value"), ("weight", "bias"))
        }
        for name in ("query", "key"):
            of[name, "weight"][:d_K], of[name, "bias"][:d_K] = 0, 0
        of["query", "bias"][0] = 6 * d_K**0.5  # the point's score is that of others on average, plus 6
        of["key", "weight"][0] = (x - others) / ((x - others) @ (x - others))
        of["value", "bias"][: 2 * d_K] = 0
        W_V = of["value", "weight"]
        W_V[:d_K] -= (W_V[:d_K] @ x)[:, None] * x / (x @ x)
        W_V[d_K : 2 * d_K] = 0
    return family


def test_a_key_whose_value_is_zero_has_no_share_however_large_its_weight(points):
    attended, added = points.heads()["self", 0, 0], points.heads(weigh="value")["self", 0, 0]
    assert attended["punctuation"] > 0.8
    assert added["punctuation"] == pytest.approx(0, abs=1e-4)
    assert added["largest"] < 1
    assert_equal({("self", 0, 0): added}, {("self", 0, 0): points.expected(weigh=True)["self", 0, 0]})


def test_queries_whose_keys_all_have_a_value_of_zero_do_not_count(points):
    assert set(points.heads(weigh="value")["self", 0, 1].values.values()) == {None}
    assert None not in points.heads(weigh="value")["self", 0, 2].values.values()


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        ("bloom", "does not call attention through transformers' registry. So the values"),
        ("qwen3_next", "a gate or a norm stands between"),
    ],
)
def test_a_model_whose_values_are_unknown_is_not_weighed(families, family, reason):
    with pytest.raises(ModelError, match=reason) as raised:
        families(family).heads(weigh="value")
    assert raised.value.hint == "without weigh, the weights themselves"


@pytest.mark.few(1)
@pytest.mark.parametrize("family", ["bart", "bigbird_pegasus"])
def test_layers_and_stacks_can_be_chosen(families, expected, family):
    every = expected(family)
    chosen = families(family).heads(layers=[1], stack="cross")
    assert_equal(chosen, {head: told for head, told in every.items() if head[:2] == ("cross", 1)})
    assert len(chosen) == 4
    chosen = families(family).heads(layers=[0, 2])
    assert_equal(chosen, {head: told for head, told in every.items() if head[1] in (0, 2)})


def test_what_is_not_measured_is_still_known(families):
    measurer, batch = families("bart").measurer(layers=[1], stack="cross")
    accumulator = measurer.measure(batch)
    assert accumulator.layers == {"encoder": (2, 3), "decoder": (3, 4), "cross": (3, 4)}
    assert measurer.n_layer == {"encoder": 2, "decoder": 3, "cross": 3}
    assert measurer.heads == accumulator.heads == {
        **{("encoder", layer): 3 for layer in range(2)},
        **{(stack, layer): 4 for stack in ("decoder", "cross") for layer in range(3)},
    }  # fmt: skip


def test_layers_without_attention_keep_their_number(families):
    measurer, batch = families("lfm2").measurer()
    assert measurer.heads == {("self", 1): 6, ("self", 3): 6}
    assert measurer.measure(batch).layers == {"self": (4, 6)}


def test_only_the_metrics_that_are_asked_for_are_measured(families):
    family = families("bart")
    measurer, batch = family.measurer()
    every = rows_of(measurer, batch)
    measurer.metrics = ["largest", "induction", "same"]
    assert list(measurer.of_stack("cross")) == ["largest", "same"]
    for head, row in rows_of(measurer, batch).items():
        for name in METRICS:
            wanted = name in measurer.metrics
            assert row.values[name] == (every[head].values[name] if wanted else None)


@pytest.mark.few(3)
@pytest.mark.parametrize("family", swept([*SEEN, *TWO_STACKS], SOME))
def test_the_model_computes_what_it_always_does(families, family):
    """What is hidden from all, a query of padding, may be anything; nobody looks at it."""
    measurer, batch = families(family).measurer()
    blockwise, seen = Blockwise(8000), []

    def attend(inputs: AttentionInputs) -> torch.Tensor:
        return blockwise.attend(inputs, seen.append)

    own = run(measurer.model, batch)[0]
    with attending(measurer.model, attend):
        ours = run(measurer.model, batch)[0]
    assert seen
    real = (batch.target or batch.source).real
    largest = float(own[real].abs().max())
    torch.testing.assert_close(ours[real], own[real], rtol=1e-5, atol=1e-5 * max(1, largest))


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("family", "dtype"),
    swept(
        [("llama", "float16"), ("gemma2", "bfloat16"), ("gpt_oss", "bfloat16"), ("t5", "bfloat16")],
        [("llama", "float16"), ("gpt_oss", "bfloat16"), ("t5", "bfloat16")],
    ),
)
def test_narrow_dtypes_are_measured_in_float32(families, family, dtype):
    """The reference is what the layers of this very run hand over, exactly, computed in float64.

    A model's own narrow eager attention rounds its scores, and every later layer reads what was
    rounded: it would be near, and prove less.
    """
    made = families(family)
    measurer, batch = made.measurer(dtype=dtype, block_bytes=8000)
    assert measurer.why_eager is None
    assert str(measurer.model.dtype) == f"torch.{dtype}"
    captured: list[AttentionInputs] = []
    attend = measurer.blockwise.attend

    def spy(given, see):
        captured.append(given)
        return attend(given, see)

    measurer.blockwise.attend = spy
    rows = rows_of(measurer, batch)
    assert_equal(rows, loop_over(captured, batch, made))


def loop_over(captured: list[AttentionInputs], batch: TextBatch, family: Family) -> dict[Head, list]:
    """What a loop finds in the queries and keys of a batch."""
    found: dict[Head, list] = {}
    numbers = {"encoder": 0, "decoder": 0, "cross": 0, "self": 0}
    for call in captured:
        stack = "self"
        if family.config.is_encoder_decoder:
            stack = "cross" if call.cross else "decoder" if "decoder" in call.path else "encoder"
        layer, numbers[stack] = numbers[stack], numbers[stack] + 1
        asking = batch.target if stack in ("decoder", "cross") else batch.source
        seen = batch.target if stack == "decoder" else batch.source
        group = call.n_head // call.n_kv_head
        for b in range(len(TEXTS)):
            queries = asking.ids[b][asking.real[b]].tolist()
            keys = seen.ids[b][seen.real[b]].tolist()
            sees = family.sight(stack, layer)
            hidden = torch.tensor(
                [[not sees(i, j) for j in range(len(keys))] for i in range(len(queries))]
            )
            for head in range(call.n_head):
                Q = call.query[b, head, : len(queries)].double()
                K = call.key[b, head // group, : len(keys)].double()
                scores = Q @ K.T * call.scale
                if call.softcap is not None:
                    scores = call.softcap * torch.tanh(scores / call.softcap)
                if call.position_bias is not None:
                    bias = call.position_bias.double()
                    scores = scores + bias[b % len(bias), head, : len(queries), : len(keys)].clamp(
                        min=-1e9
                    )
                scores = scores.masked_fill(hidden, -torch.inf)
                sink = -torch.inf if call.sinks is None else float(call.sinks.flatten()[head])
                sinks = torch.full((len(queries), 1), sink).double()
                rows = torch.cat([scores, sinks], dim=1).softmax(dim=1)[:, :-1].tolist()
                told = naive_metrics(rows, queries, keys, sees, cross=stack == "cross", **KINDS)
                found.setdefault((stack, layer, head), []).append((queries, told))
    return found


@pytest.mark.few(1)
@pytest.mark.parametrize("family", ["llama", "gpt_oss"])
def test_bfloat16_is_near_what_float32_finds(families, family):
    single, narrow = (families(family).heads(dtype=dtype) for dtype in ("float32", "bfloat16"))
    for head, row in narrow.items():
        for name in ("self", "previous", "first", "separator", "induction", "largest", "entropy_share"):
            assert row.values[name] == pytest.approx(single[head].values[name], abs=0.03)


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_float64_is_measured_in_float64(families, family):
    """Of families whose own eager attention takes its softmax in float64 too."""
    made = families(family)
    assert_equal(made.heads(dtype="float64"), made.expected(dtype="float64"), tolerance=1e-10)


@pytest.mark.few(1)
@pytest.mark.parametrize(("family", "wrong"), [("gemma2", float("inf")), ("bloom", float("nan"))])
def test_attention_that_is_not_finite_is_told_with_its_layer(tmp_path, family, wrong):
    made = Family(family, tmp_path)
    model = made.model()
    weights = [each for name, each in model.named_parameters() if ".1." in name and is_of_query(name)]
    with torch.no_grad():
        weights[0][:3] = wrong
    model.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=f"the attention of {family} is not finite in layer 1"):
        made.heads()


def is_of_query(name: str) -> bool:
    return name.endswith(("q_proj.weight", "query_key_value.weight"))


def test_a_model_that_runs_eager_is_held_once_and_without_a_past(families):
    made = families("bloom")
    model = made.model()
    reader = Reader(model, load_tokenizer(made.checkpoint))
    measurer = HeadMeasurer(made.checkpoint, model, ["entropy"])
    measurer.probe(reader.batch(reader.read(["the cat sat"])))
    assert measurer.model is not model
    assert sum(each.numel() for each in model.parameters()) == 0
    assert measurer.model.config.use_cache is False
    assert reader.read(["the cat sat"])  # of which only the configuration is asked


def test_values_that_do_not_fit_into_float16_are_told_with_what_to_do(families):
    measurer, batch = families("llama").measurer(dtype="float16")
    with torch.no_grad():
        measurer.model.base_model.layers[1].self_attn.v_proj.weight.mul_(60000)
    with pytest.raises(ModelError, match="not finite in layer 1") as raised:
        measurer.measure(batch)
    assert raised.value.hint == 'dtype="float32"'


def test_a_model_is_believed_only_where_the_same_comes_of_it(families, expected, monkeypatch):
    """What a layer hands over has to explain what its attention returns; else, the model runs eager."""
    right = observe.attention_inputs
    sharper = lambda *given, **more: replace(right(*given, **more), scale=0.5)  # noqa: E731
    monkeypatch.setattr(observe, "attention_inputs", sharper)
    measurer, batch = families("llama").measurer()
    assert (
        "the captured inputs of llama's attention do not reproduce its output: in layer 1"
        in measurer.why_eager
    )
    assert measurer.model.config._attn_implementation == "eager"
    assert_equal(rows_of(measurer, batch), expected("llama"))


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        ("mamba", "which returns no attention weights"),
        ("longformer", r"longformer \(longformer\) attends within a window around each token"),
    ],
)
def test_a_model_without_maps_of_all_tokens_is_refused(tmp_path, family, reason):
    with pytest.raises(ModelError, match=reason):
        Family(family, tmp_path).measurer()


def test_a_model_that_attends_to_other_tokens_than_it_was_given_is_refused(families):
    measurer, batch = families("llama").measurer()
    told = "llama attends from 4 × 13 queries to 13 keys, but there are 1 × 5 and 5 tokens"
    with pytest.raises(ModelError, match=told):
        measurer.measure(replace(batch, source=batch.source.first(5)))


def test_the_text_tower_of_two_is_measured(tmp_path):
    measurer, batch = Family("clip", tmp_path, text_config={**CLIP_TEXT}).measurer()
    assert measurer.n_layer == {"text": 2}
    assert {head for _, _, head in rows_of(measurer, batch)} == {0, 1, 2}


CLIP_TEXT = {
    "vocab_size": 50,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "max_position_embeddings": 16,
    "eos_token_id": 3,
}
