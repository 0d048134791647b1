"""Rows of weights recorded while a model writes, beside the weights of one whole pass of eager attention."""

import copy
import gc
from itertools import cycle

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, LlamaConfig, LlamaForCausalLM

from attnscope.base.errors import ModelError, OptionError
from attnscope.model.files.loaded import find_model
from attnscope.model.run import written_rows
from attnscope.model.run.attention_hook import AttentionCall
from attnscope.model.run.written_rows import RecordedRows, RowRecorder, UnexplainedWeightsError, write
from tests.model.run.tiny import random_weights, tiny_config
from tests.sweeps import swept

N_PROMPT = 11
N = 6
FULL, WINDOW = "full_attention", "sliding_attention"
SELF = {
    "llama": {},
    "mistral": {"sliding_window": 5},
    "gemma2": {"sliding_window": 5, "attn_logit_softcapping": 1.5},
    "gemma3_text": {"sliding_window": 5, "layer_types": [WINDOW, FULL, WINDOW, WINDOW]},
    "gpt2": {},
    "gpt_oss": {"sliding_window": 5, "head_dim": 16, "intermediate_size": 32, "hidden_size": 64},
    "deepseek_v3": {"num_key_value_heads": 4, "head_dim": 8, "first_k_dense_replace": 1},
    "lfm2": {"layer_types": ["conv", FULL, "conv", FULL]},
    "qwen3_next": {},
}
WITH_DECODER = {"t5": {"decoder_start_token_id": 0}, "bart": {"decoder_start_token_id": 0}}
NOT_DISPATCHED = {"bloom": {}, "gptj": {"rotary_dim": 8}, "falcon": {}, "openai-gpt": {}}
"""The last one has no cache: it reads the whole text in each step."""

NOT_THE_TEXT = {"xlm": {}, "xlnet": {}, "deepseek_v4": {}}
STACKS = [(name, "self") for name in SELF]
STACKS += [(name, stack) for name in WITH_DECODER for stack in ("decoder", "cross")]
SIZES = SELF | WITH_DECODER | NOT_DISPATCHED | NOT_THE_TEXT | {"granite_swa": {}}


def a_model(name, **more):
    """A tiny model of a family that writes, and never ends by itself."""
    torch.manual_seed(0)
    config = tiny_config(name, **(SIZES[name] | more))
    auto = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    model = random_weights(auto.from_config(config), 0.2)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


def a_prompt():
    torch.manual_seed(1)
    ids = torch.randint(1, 50, (1, N_PROMPT))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def rows_of(model, stack="self", inputs=None, **options):
    """What a model wrote, and its rows: weights and their first key, by layer, head and query."""
    rows = {}

    def consume(part):
        assert part.weights.dtype == torch.float32
        assert part.weights.shape[:2] == (len(part.heads), len(part.queries))
        for head, of_head in zip(part.heads, part.weights, strict=True):
            for query, row in zip(part.queries, of_head, strict=True):
                assert (part.layer, head, query) not in rows
                rows[part.layer, head, query] = part.first_key, row.clone()

    inputs = a_prompt() if inputs is None else inputs
    text = {name: options.pop(name) for name in ("n", "answer") if name in options}
    recorded = RecordedRows(stack, **options)
    return write(find_model(model), model, inputs, consume, recorded, **text), rows


def whole_pass(model, ids, stack="self"):
    """The weights that eager attention returns of prompt and answer, by layer; and log-probabilities."""
    weights_by_name = model.state_dict()
    auto = AutoModelForCausalLM if stack == "self" else AutoModelForSeq2SeqLM
    config = copy.deepcopy(model.config)
    model = auto.from_config(config, attn_implementation="eager").eval()
    model.load_state_dict(weights_by_name)
    prompt = a_prompt()
    if stack == "self":
        inputs = {"input_ids": torch.cat([prompt["input_ids"], torch.tensor([ids])], 1)}
    else:
        inputs = {**prompt, "decoder_input_ids": torch.tensor([[0, *ids]])}
    with torch.no_grad():
        output = model(**inputs, output_attentions=True, use_cache=False)
    names = {"decoder": "decoder_attentions", "cross": "cross_attentions"}
    weights = getattr(output, names.get(stack, "attentions"))
    kinds = getattr(model.config, "layer_types", None) or [FULL] * len(weights)
    layers = [i for i, kind in enumerate(kinds) if kind in (FULL, WINDOW)]
    weights = [each for each in weights if each is not None]
    if len(weights) == len(kinds):
        weights = [weights[layer] for layer in layers]
    assert len(weights) == len(layers)
    return dict(zip(layers, weights, strict=True)), output.logits[0].log_softmax(-1)


def assert_rows_are_eager_s(model, text, rows, stack="self", *, reading=False, of_prompt=False):
    weights, log_probabilities = whole_pass(model, text.ids, stack)
    first = N_PROMPT if stack == "self" else 1
    assert text.first == first
    queries = [*range(first - (not reading), first - (not reading) + len(text.ids))]
    queries = [*range(queries[0]), *queries] if of_prompt else queries
    n_head = {layer: each.shape[1] for layer, each in weights.items()}
    expected = {(layer, head, q) for layer in n_head for head in range(n_head[layer]) for q in queries}
    assert {key for key in rows if key[2] in queries} == expected
    for (layer, head, query), (first_key, row) in rows.items():
        if query not in queries:  # that of the token that ends the text
            continue
        eager = weights[layer][0, head, query]
        mine = torch.zeros_like(eager)
        mine[first_key : first_key + len(row)] = row
        torch.testing.assert_close(mine, eager, atol=1e-6, rtol=0)
    known = log_probabilities[first - 1 : first - 1 + len(text.ids)]
    torch.testing.assert_close(
        torch.tensor(text.log_probabilities),
        known[range(len(text.ids)), text.ids],
        atol=1e-4,
        rtol=0,
    )


ANSWER = [5, 7, 5, 9, 30, 7]
WRITES = {"freely": {"n": N}, "eager": {"n": N, "eager": True}, "an answer": {"answer": ANSWER}}
CASES = [
    (*of_stack, how, (i + j) % 2 == 1)
    for i, of_stack in enumerate(STACKS)
    for j, how in enumerate(WRITES)
]
"""Each stack in each way; every other one with the rows of the queries that read a token."""


@pytest.mark.few(6)
@pytest.mark.parametrize(("name", "stack", "how", "reading"), CASES)
def test_rows_are_those_of_a_whole_eager_pass(name, stack, how, reading):
    model = a_model(name)
    if how == "an answer":  # which the model is made to write, whatever it would rather write
        model.generation_config.eos_token_id = [7, 9]
        model.generation_config.update(repetition_penalty=1.5, no_repeat_ngram_size=1)
    text, rows = rows_of(model, stack, reading=reading, **WRITES[how])
    assert len(text.ids) == N
    assert how != "an answer" or text.ids == ANSWER
    assert_rows_are_eager_s(model, text, rows, stack, reading=reading)


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("name", "at_once"),
    zip(SELF, cycle([30 * N_PROMPT, 1, written_rows.AT_ONCE]), strict=False),
)
def test_rows_of_the_prompt_are_those_of_a_whole_eager_pass(name, at_once, monkeypatch):
    """A few rows at a time, or one, or all."""
    monkeypatch.setattr(written_rows, "AT_ONCE", at_once)
    model = a_model(name)
    text, rows = rows_of(model, n=N, reading=True, of_prompt=True)
    assert_rows_are_eager_s(model, text, rows, reading=True, of_prompt=True)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("name", "window"),
    [("gemma3_text", 14), ("gpt_oss", 12)]
    + [("mistral", window) for window in range(N_PROMPT - 1, N_PROMPT + N + 2)],
)
def test_a_text_may_outgrow_a_window_while_it_is_written(name, window):
    model = a_model(name, sliding_window=window)
    text, rows = rows_of(model, n=N)
    assert_rows_are_eager_s(model, text, rows)


@pytest.mark.parametrize("name", swept(NOT_DISPATCHED, default=["bloom", "openai-gpt"]))
def test_attention_outside_the_registry_is_read_from_what_the_model_returns(name):
    model = a_model(name)
    with pytest.raises(UnexplainedWeightsError, match="does not call attention through"):
        rows_of(model, n=N)
    for reading in (False, True):
        text, rows = rows_of(model, n=N, reading=reading, eager=True)
        assert text.n_layer == 4
        assert_rows_are_eager_s(model, text, rows, reading=reading)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("xlm", "reads 12 tokens where the text has 11: it adds tokens of its own"),
        ("xlnet", "reads 12 tokens where the text has 11: it adds tokens of its own"),
        ("deepseek_v4", "has 13 keys where the text has 11 tokens, so not every key is a token"),
    ],
)
def test_a_model_whose_rows_are_not_those_of_the_text_is_refused(name, message):
    for eager in (False, True):
        with pytest.raises(ModelError, match=message) as error:
            rows_of(a_model(name), n=N, eager=eager)
        assert not isinstance(error.value, UnexplainedWeightsError)


def test_weights_from_before_the_sink_are_multiplied_by_what_it_leaves():
    """Granite with sliding windows returns rows that sum to 1, of which its sinks take a part."""
    model = a_model("granite_swa")
    text, rows = rows_of(model, n=N, of_prompt=True, reading=True)
    _, of_eager = rows_of(model, n=N, of_prompt=True, reading=True, eager=True)
    weights, _ = whole_pass(model, text.ids)
    for (layer, head, query), (_, of_row) in rows.items():
        eager = of_eager[layer, head, query][1]
        row, later = of_row[: len(eager)], of_row[len(eager) :]
        assert not later.any()
        torch.testing.assert_close(row, eager, atol=1e-6, rtol=0)
        if query < N_PROMPT + N:
            whole = weights[layer][0, head, query, : len(row)]
            assert whole.sum() == pytest.approx(1, abs=1e-5)
            assert row.sum() < 1
            torch.testing.assert_close(row / row.sum(), whole, atol=1e-6, rtol=0)


@pytest.mark.few(2)
@pytest.mark.parametrize(("name", "penalty"), zip(SELF, cycle([None, 1.7]), strict=False))
def test_a_model_writes_what_it_writes_without_a_recorder(name, penalty):
    model = a_model(name)
    model.generation_config.repetition_penalty = penalty
    plain = model.generate(**a_prompt(), max_new_tokens=N, do_sample=False)
    text, rows = rows_of(model, n=N)
    assert text.ids == plain[0, N_PROMPT:].tolist()
    assert_rows_are_eager_s(model, text, rows)


def test_sampling_of_a_generation_config_is_not_used():
    model = a_model("llama")
    plain = model.generate(**a_prompt(), max_new_tokens=N, do_sample=False)
    model.generation_config.update(do_sample=True, temperature=5.0, top_k=40, num_beams=3)
    assert rows_of(model, n=N)[0].ids == plain[0, N_PROMPT:].tolist()


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "settings",
    [
        {"return_dict_in_generate": True, "output_scores": True},
        {"cache_implementation": "static"},
        {"num_return_sequences": 2, "do_sample": True},
        {"prompt_lookup_num_tokens": 2},
        {"prefill_chunk_size": 4},
        {"max_length": 3},
        {"output_attentions": True, "return_dict_in_generate": True},
    ],
    ids=lambda settings: " ".join(f"{key}={value}" for key, value in settings.items()),
)
def test_settings_of_a_generation_config_change_no_row(settings):
    model = a_model("llama")
    ids = rows_of(model, n=N)[0].ids
    model.generation_config.update(**settings)
    text, rows = rows_of(model, n=N)
    assert text.ids == ids
    assert_rows_are_eager_s(model, text, rows)


@pytest.mark.parametrize("reading", [False, True])
def test_a_text_that_ends_early_has_a_row_for_each_token_that_was_written(reading):
    model = a_model("llama")
    ids = rows_of(model, n=N)[0].ids
    end = next(i for i in range(2, N) if ids[i] not in ids[:i])
    model.generation_config.eos_token_id = ids[end]
    text, rows = rows_of(model, n=N, reading=reading)
    assert text.ids == ids[: end + (not reading)]
    assert_rows_are_eager_s(model, text, rows, reading=reading)


def test_layers_and_heads_are_selected():
    model = a_model("llama")
    _, every = rows_of(model, n=N)
    text, rows = rows_of(model, n=N, layers=[1, 3], heads=[2])
    assert {key[:2] for key in rows} == {(1, 2), (3, 2)}
    assert len(rows) == 2 * N
    for key, (first_key, row) in rows.items():
        assert first_key == every[key][0]
        torch.testing.assert_close(row, every[key][1])
    assert (text.n_layer, text.n_head) == (4, dict.fromkeys(range(4), 4))


@pytest.mark.parametrize(("name", "eager"), [("llama", False), ("llama", True), ("bloom", True)])
@pytest.mark.parametrize(
    ("selected", "message"), [({"layers": [4]}, "layer 4"), ({"heads": [4]}, "head 4")]
)
def test_layers_and_heads_that_are_not_there_are_refused(name, eager, selected, message):
    with pytest.raises((ModelError, OptionError), match=message):
        rows_of(a_model(name), n=2, eager=eager, **selected)


def test_a_text_that_exceeds_the_model_s_limit_is_refused_before_it_runs():
    model = a_model("llama", max_position_embeddings=16)
    assert len(rows_of(model, n=5)[0].ids) == 5
    with pytest.raises(OptionError, match=r"11 tokens and 6 more make 17, and .* takes 16") as error:
        rows_of(model, n=6)
    assert error.value.hint == "generate=5"


def test_pending_rows_hold_no_keys():
    """What waits until all is written is a query and an output a token: no keys, values or masks."""
    model, held, original = a_model("llama"), [], RowRecorder.finish

    def finish(recorder):
        for layer in recorder._pending.values():
            for _, call in layer:
                tensors = [x for x in vars(call).values() if isinstance(x, torch.Tensor)]
                held.append(sum(x.untyped_storage().nbytes() for x in tensors))
        original(recorder)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RowRecorder, "finish", finish)
        rows_of(model, n=N)
    config = model.config
    assert held == [2 * config.num_attention_heads * config.head_dim * 4] * (4 * N)


def test_nothing_of_a_text_is_alive_afterwards():
    model = a_model("llama")
    rows_of(model, n=2)
    gc.collect()
    before = {id(each) for each in gc.get_objects() if isinstance(each, torch.Tensor)}
    rows_of(model, n=N)
    gc.collect()
    left = [each for each in gc.get_objects() if isinstance(each, (torch.Tensor, AttentionCall))]
    assert [each.shape for each in left if id(each) not in before and each.numel() > 64] == []


@pytest.mark.parametrize("eager", [False, True])
def test_hooks_attention_and_random_state_are_as_before(eager):
    model = a_model("mistral")
    kind, inputs = model.config._attn_implementation, a_prompt()
    state = torch.get_rng_state()
    rows_of(model, inputs=inputs, n=2, eager=eager)
    with pytest.raises(ModelError):
        rows_of(model, inputs=inputs, n=2, eager=eager, layers=[9])
    hooks = [
        hook
        for each in model.modules()
        for hook in (*each._forward_hooks.values(), *each._forward_pre_hooks.values())
    ]
    assert not any(hook.__module__.startswith("attnscope") for hook in hooks)
    assert model.config._attn_implementation == kind
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.sweep
def test_rows_of_many_equal_tokens_need_no_eager_attention():
    """Rounding of a sum of equal terms goes in one direction, further than in other texts."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 768, "intermediate_size": 64, "num_attention_heads": 12}
    config = LlamaConfig(
        **sizes, vocab_size=400, num_hidden_layers=1, num_key_value_heads=4, pad_token_id=0
    )
    config.max_position_embeddings = 2**14
    model = LlamaForCausalLM(config).eval()
    ids = torch.full((1, 8191), 70)
    sums = []
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    write(
        find_model(model),
        model,
        inputs,
        lambda rows: sums.append(rows.weights.sum(-1)),
        RecordedRows("self"),
        n=2,
    )
    assert torch.cat([each.flatten() for each in sums]).allclose(torch.ones(24), atol=1e-5)
