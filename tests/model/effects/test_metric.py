"""Effects on every metric, at some positions and on several prompts are what hooks on W_O find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModel,
    AutoTokenizer,
    BertForSequenceClassification,
    BertModel,
    GPT2ForSequenceClassification,
)

import attnscope
from attnscope.document.blocks import Table
from tests.model.effects.families import build, words
from tests.model.effects.oracles import Head, Oracle, Question, column, question_of

oracle = cache(Oracle)
IDS, OTHER = question_of("gpt2").ids, (4, 8, 15, 16, 23, 42)
ASKED = {"ids": list(IDS), "answer": 17, "against": 23}


def text_of(ids: tuple[int, ...]) -> str:
    return " ".join(f"w{number}" for number in ids)


def each_head(of: Oracle, measure: Callable[[Head], float]) -> dict[Head, float]:
    """What is measured of each head, to compare a column with."""
    return pytest.approx({head: measure(head) for head in of.heads()}, abs=1e-6)


def assert_effects(table: attnscope.HeadEffects, of: Oracle, question: Question) -> None:
    """Compare the baseline and all columns without a corrupted text with hooks."""
    estimates = of.first_order(question)
    assert table.baseline == pytest.approx(of.metric(question), abs=1e-6)
    assert column(table, "zero") == each_head(of, lambda head: of.zero(question, head))
    assert column(table, "mean") == each_head(of, lambda head: of.mean(question, head))
    assert column(table, "first order") == each_head(of, lambda head: estimates[head])


# Metrics.


LOG = "log-probability"


@pytest.mark.parametrize(
    ("arguments", "question"),
    [
        ({}, question_of("gpt2", metric="loss")),  # of the text
        ({"answer": 17}, replace(question_of("gpt2"), against=None)),
        ({"answer": 17, "metric": LOG}, Question(IDS, (17,), metric=LOG)),
        # An answer of several tokens is read while it is predicted.
        ({"answer": [17, 40, 11]}, Question((*IDS, 17, 40), (17, 40, 11), metric=LOG)),
        ({**ASKED, "position": 4}, replace(question_of("gpt2"), position=4)),
    ],
)
def test_effects_on_each_metric_are_those_of_hooks(arguments, question):
    table = attnscope.effects(oracle("gpt2").model, **{"ids": list(IDS), **arguments})
    assert_effects(table, oracle("gpt2"), question)


def test_two_answers_of_several_tokens_are_measured_one_by_one():
    of = oracle("gpt2")
    one = Question((*IDS, 17), (17, 40), metric="log-probability")
    other = Question((*IDS, 23, 2), (23, 2, 9), metric="log-probability")
    table = attnscope.effects(of.model, ids=list(IDS), answer=[17, 40], against=[23, 2, 9])
    assert table.baseline == pytest.approx(of.metric(one) - of.metric(other))
    for name, measure in (("zero", of.zero), ("mean", of.mean)):
        expected = each_head(of, lambda head, measure=measure: measure(one, head) - measure(other, head))
        assert column(table, name) == expected


class OfClasses(Question):
    """A question about the class of a text."""

    def of(self, logits: torch.Tensor) -> torch.Tensor:
        return logits[0, self.answer[0]] - logits[0, self.against]


@pytest.mark.parametrize(
    ("family", "model"),
    [("bert", BertForSequenceClassification), ("gpt2", GPT2ForSequenceClassification)],
)
def test_the_metric_of_a_classifier_is_the_logit_of_a_class(family, model):
    of = Oracle(family, kind=model, num_labels=4, pad_token_id=0)
    table = attnscope.effects(of.model, ids=list(IDS), answer="2", against="1")
    assert_effects(table, of, OfClasses(IDS, (2,), 1))


@pytest.mark.sweep
def test_without_an_answer_a_decoder_has_the_loss_of_its_text():
    of, target = oracle("t5"), (12, 33, 8)

    class OfTarget(Question):
        def of(self, logits: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(logits[0], torch.tensor(target))

    table = attnscope.effects(of.model, text_of(IDS), target=text_of(target), tokenizer=words())
    assert_effects(table, of, OfTarget(IDS, read=(0, *target[:-1])))


def similarity_to(other: torch.Tensor) -> Question:
    """A question about the cosine of the mean of a text's states and another."""

    class OfEmbeddings(Question):
        def of(self, states: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.cosine_similarity(states[0].mean(0), other, dim=0)

    return OfEmbeddings(IDS)


def test_a_model_without_a_head_has_the_similarity_of_two_embeddings():
    of = Oracle("bert", kind=BertModel)
    question = similarity_to(of.logits(Question(OTHER))[0].mean(0))
    assert_effects(attnscope.effects(of.model, ids=list(IDS), answer=list(OTHER)), of, question)


def test_without_an_answer_it_is_how_far_the_embedding_moves():
    of = Oracle("bert", kind=BertModel)
    question = similarity_to(of.logits(Question(IDS))[0].mean(0))
    table = attnscope.effects(of.model, ids=list(IDS))
    assert table.baseline == pytest.approx(0, abs=1e-9)
    assert column(table, "zero") == each_head(of, lambda head: -of.zero(question, head))
    assert column(table, "mean") == each_head(of, lambda head: -of.mean(question, head))


# Positions, heads, prompts.


def at_positions(of: Oracle, question: Question, head: Head, places: list[int], other: str) -> float:
    """The metric's change when a head is zero, or its mean, at some positions."""
    z = of.z(of.outputs(question)[0], head).clone()
    z[places] = torch.zeros_like(z[0]) if other == "zero" else z.mean(0)
    return of.change(question, head, z)


@pytest.mark.few(3)
@pytest.mark.parametrize("at", [[2], [0, 5], [6]])
@pytest.mark.parametrize("other", ["zero", "mean"])
def test_a_head_is_replaced_at_some_positions_only(at, other):
    of, question = oracle("llama"), question_of("llama")
    table = attnscope.effects(of.model, **ASKED, at=at, columns=[other])
    assert column(table, other) == each_head(
        of, lambda head: at_positions(of, question, head, at, other)
    )


def test_a_head_is_patched_at_some_positions_only():
    of, question = oracle("llama"), question_of("llama")
    corrupt = replace(question, ids=(5, 9, 14, 20, 31, 27, 44))
    span = of.metric(question) - of.metric(corrupt)
    z, other = of.outputs(question)[0], of.outputs(corrupt)[0]

    def share(head: Head) -> float:
        mixed = of.z(other, head).clone()
        mixed[[2, 5]] = of.z(z, head)[[2, 5]]
        return of.change(corrupt, head, mixed) / span

    ids = list(corrupt.ids)
    table = attnscope.effects(of.model, **ASKED, corrupt=ids, at=[2, 5], columns=["patched"])
    assert column(table, "patched") == each_head(of, share)


@pytest.mark.sweep
def test_each_position_has_its_own_effect():
    of, question = oracle("gpt2"), question_of("gpt2")
    columns = ["zero", "mean", "first order"]
    table = attnscope.effects(of.model, **ASKED, columns=columns, each_position=True)
    z, gradient = of.outputs(question, gradient=True)
    for number, row in enumerate(table.rows):
        head = (row.stack, row.layer, row.head)
        for name in ("zero", "mean"):
            expected = [at_positions(of, question, head, [place], name) for place in range(len(IDS))]
            assert list(table.positions[name][number]) == pytest.approx(expected)
        estimates = -(of.z(z, head) * of.z(gradient, head)).sum(-1)
        assert list(table.positions["first order"][number]) == pytest.approx(estimates.tolist())


def test_the_heads_of_each_stack_have_their_own_rows():
    of, answer = oracle("bart"), (12, 33, 8)
    table = attnscope.effects(of.model, ids=list(IDS), answer=list(answer), layers=[1], heads=[2])
    assert [(row.stack, row.layer, row.head) for row in table.rows] == [
        (stack, 1, 2) for stack in ("encoder", "decoder", "cross")
    ]
    question = Question(IDS, answer, read=(1, 12, 33), metric="log-probability")
    for stack in of.family.stacks:
        effect = table[stack, 1, 2].values["zero"]
        assert effect == pytest.approx(of.zero(question, (stack, 1, 2)), abs=1e-6)


@pytest.mark.sweep
def test_a_decoder_reads_its_own_text_before_the_answer():
    of = oracle("t5")
    question = Question(IDS, (17,), 23, read=(0, 12, 33, 8))
    table = attnscope.effects(
        of.model, text_of(IDS), target="w12 w33 w8", answer="w17", against="w23", tokenizer=words()
    )
    assert_effects(table, of, question)


def test_effects_on_several_prompts_are_means():
    of = oracle("gpt2")
    questions = [question_of("gpt2"), Question(OTHER, (3,), 30)]
    prompts = [
        {"text": text_of(each.ids), "answer": f"w{each.answer[0]}", "against": f"w{each.against}"}
        for each in questions
    ]
    table = attnscope.effects(of.model, prompts, tokenizer=words())
    outputs = [of.outputs(each)[0] for each in questions]

    def without(head: Head) -> float:
        return sum(of.zero(each, head) for each in questions) / 2

    def with_mean(head: Head) -> float:
        """A head's mean is that over all positions of all prompts."""
        mean = torch.cat([of.z(each, head) for each in outputs]).mean(0)
        return sum(of.change(each, head, mean) for each in questions) / 2

    assert column(table, "zero") == each_head(of, without)
    assert column(table, "mean") == each_head(of, with_mean)


# The run.


def test_little_memory_changes_no_number():
    of, question = oracle("mixtral"), question_of("mixtral")
    table = attnscope.effects(of.model, **ASKED, columns=["zero"], memory="100K")  # a head at a time
    assert column(table, "zero") == each_head(of, lambda head: of.zero(question, head))


def test_a_model_in_training_is_run_without_dropout_and_stays_in_training():
    of, question = Oracle("gpt2", resid_pdrop=0.5), question_of("gpt2")
    expected = each_head(of, lambda head: of.zero(question, head))
    of.model.train()
    assert column(attnscope.effects(of.model, **ASKED, columns=["zero"]), "zero") == expected
    assert of.model.training


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_estimates_do_not_depend_on_whether_gradients_are_on(context):
    of = oracle("gpt2")
    with context():
        table = attnscope.effects(of.model, **ASKED, columns=["first order"])
    assert column(table, "first order") == pytest.approx(of.first_order(question_of("gpt2")))


def test_a_model_with_an_adapter_is_measured_with_it():
    of, question = Oracle("llama"), question_of("llama")
    before = of.metric_with(question, {})
    torch.manual_seed(0)
    adapter = LoraConfig(r=2, target_modules=["q_proj", "v_proj", "o_proj"], init_lora_weights=False)
    adapted = get_peft_model(of.model, adapter).double().eval()  # within of.model
    assert abs(of.metric(question) - before) > 0.1
    assert_effects(attnscope.effects(adapted, **ASKED), of, question)


def test_nothing_stays_in_the_model():
    of = Oracle("gemma2")
    of.model.requires_grad_(True)
    before = {name: each.clone() for name, each in of.model.state_dict().items()}
    attnscope.effects(of.model, **ASKED)
    for module in of.model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    for name, parameter in of.model.named_parameters():
        assert parameter.grad is None
        assert torch.equal(parameter, before[name])


# A trained model.


def test_effects_on_the_bundled_model_are_those_of_hooks(minilm):
    """It is a BERT without a head, in float32; its tokenizer adds [CLS] and [SEP]."""
    model = AutoModel.from_pretrained(minilm).eval()
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    d_head, head = 32, 7
    output = model.encoder.layer[4].attention.output.dense

    def embedding(text: str) -> torch.Tensor:
        with torch.no_grad():
            return model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0)

    def similarity() -> float:
        return float(torch.nn.functional.cosine_similarity(embedding("The cat sat."), other, dim=0))

    def remove(module: torch.nn.Module, arguments: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        z = arguments[0].clone()
        z[..., head * d_head : (head + 1) * d_head] = 0
        return (z,)

    other = embedding("A dog ran.")
    before = similarity()
    with output.register_forward_pre_hook(remove):
        after = similarity()
    assert abs(after - before) > 1e-4
    table = attnscope.effects("minilm", "The cat sat.", answer="A dog ran.", layers=4, heads=head)
    assert table.baseline == pytest.approx(before, abs=1e-5)
    assert table[4, head].values["zero"] == pytest.approx(after - before, abs=1e-5)


def test_a_distance_begins_at_0_and_its_headline_has_no_rounding():
    table = attnscope.effects("minilm", "The cat sat on the [MASK].", layers=5, columns=["zero"])
    headline = "metric: 1 − cosine of the embedding without a head and with all heads, which is 0"
    assert table.remarks[0] == headline
    assert abs(table.baseline) < 1e-6


def test_with_top_the_weaker_mlps_are_summed():
    model = build("llama", num_hidden_layers=6)
    table = attnscope.effects(model, ids=[5, 9, 3, 20], answer=17, against=23, columns=["direct"], top=2)
    [parts] = [each for each in table.document() if isinstance(each, Table)]
    names, values = (column.raw for column in parts.columns)
    mlps = {name: table.direct.parts[name] for name in table.direct.parts if name.startswith("MLP ")}
    strongest = sorted(mlps, key=lambda name: -abs(mlps[name]))[:2]
    assert [*names[:2], *names[-2:]] == ["all heads", "embeddings", "4 other MLPs", "biases"]
    assert set(names[2:-2]) == set(strongest)
    assert sum(values) == pytest.approx(table.direct.value, abs=1e-6)
    decimals = {len(cell[0][0].partition(".")[2]) for cell in parts.columns[1].cells}
    assert len(decimals) == 1
    assert len([each for each in table.to_dict()["direct"]["parts"] if each.startswith("MLP")]) == 6
