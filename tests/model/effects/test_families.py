"""Effects of the heads of many families are what hooks on their modules of W_O, named by hand, find."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
import transformers

import attnscope
from attnscope.base.errors import ModelError, OptionError
from tests.model.effects.families import FAMILIES, build
from tests.model.effects.oracles import Oracle, Question, asked, column, question_of
from tests.sweeps import swept

CORRUPT = (5, 9, 14, 20, 31, 27, 44)

REASONS = {
    "does not call attention through transformers' registry, and .* returns no weights of its heads": """
        convbert, longformer, yoso
    """,
    "attends more than once": "diffllama, hrm_text",
}
"""Families that are refused, by the reason."""

NOT_ADDITIVE = {
    "a norm follows the sum": """
        bert, roberta, electra, xlm-roberta, camembert, ernie, data2vec-text, layoutlm, distilbert,
        mobilebert, nomic_bert, albert, deberta, deberta-v2, roformer, rembert, ibert, nystromformer,
        big_bird, mpnet, doge, mvp, bert decoder, bart decoder, opt post-norm, bart, marian,
        blenderbot-small, minimax, plbart, gemma3n_text
    """,
    "add(s|) to (a residual stream|what the prediction reads)": "xlm, openai-gpt",
    "what follows the last layer is not linear": """
        megatron-bert,
        modernbert-decoder, roberta-prelayernorm, xlm-roberta-xl, esm, modernbert
    """,
}
"""Families without direct effects, by the reason."""


def names_in(text: str) -> list[str]:
    return [" ".join(name.split()) for name in text.split(",")]


REFUSED, NO_DIRECT = (
    {name: why for why, names in reasons.items() for name in names_in(names)}
    for reasons in (REASONS, NOT_ADDITIVE)
)
MEASURED = [name for name in FAMILIES if name not in REFUSED]
FEW = ["gpt2", "llama", "bert", "t5", "bloom", "deberta"]
oracle = cache(Oracle)


def test_there_are_many_families_and_none_is_listed_that_is_not_there():
    assert len(MEASURED) >= 80
    assert {*REFUSED, *NO_DIRECT} <= {*FAMILIES}


@pytest.mark.few(1)
@pytest.mark.parametrize("family", swept(MEASURED, default=FEW))
def test_every_column_is_what_a_hook_on_w_o_finds(family):
    of, (question, arguments) = oracle(family), asked(family)
    table = attnscope.effects(of.model, **arguments, columns=["zero", "mean", "first order"])
    assert table.baseline == pytest.approx(of.metric(question), abs=1e-5)
    zero = {head: of.zero(question, head) for head in of.heads()}
    assert max(map(abs, zero.values())) > 0.05
    assert column(table, "zero") == pytest.approx(zero, abs=1e-5)
    mean = {head: of.mean(question, head) for head in of.heads()}
    assert column(table, "mean") == pytest.approx(mean, abs=1e-5)
    assert column(table, "first order") == pytest.approx(of.first_order(question), abs=1e-5)


@pytest.mark.parametrize(
    "family", swept("gpt2 llama bert t5 bloom deberta mistral jamba albert bart".split(), default=FEW)
)
def test_patching_a_head_restores_what_a_hook_on_w_o_does(family):
    of, (question, arguments) = oracle(family), asked(family)
    corrupt = replace(question, ids=CORRUPT)
    table = attnscope.effects(
        of.model, **arguments, corrupt=list(CORRUPT), columns=["patched", "first order"]
    )
    span = of.metric(question) - of.metric(corrupt)
    assert table.corrupted == pytest.approx(of.metric(corrupt), abs=1e-5)
    patched = {head: of.patched(question, corrupt, head) for head in of.heads()}
    tolerance = 1e-5 / min(1.0, abs(span))  # these are shares of a difference that may be small
    assert column(table, "patched") == pytest.approx(patched, abs=tolerance)
    estimated = {head: each / span for head, each in of.first_order(question, corrupt).items()}
    assert column(table, "first order") == pytest.approx(estimated, abs=tolerance)


@pytest.mark.parametrize("family", swept(REFUSED, default=["yoso", "diffllama"]))
def test_a_family_whose_heads_cannot_be_replaced_is_refused(family):
    with pytest.raises(ModelError, match=REFUSED[family]):
        attnscope.effects(oracle(family).model, **asked(family)[1])


@pytest.mark.parametrize("family", ["gptj", "falcon", "deberta", "mvp"])
def test_where_keys_cannot_be_hidden_blocks_alone_are_refused(family):
    """They compute attention without transformers' registry."""
    of, (question, arguments) = oracle(family), asked(family)
    table = attnscope.effects(of.model, **arguments, columns=["zero"])
    assert table.baseline == pytest.approx(of.metric(question), abs=1e-5)
    stack = "decoder" if FAMILIES[family].decodes else "self"
    with pytest.raises(
        ModelError, match="keys cannot be hidden from its queries: it has no column blocked"
    ):
        attnscope.effects(of.model, **arguments, block="0>last", stack=stack)


# Direct effects.


def logit_asked(name: str) -> tuple[Question, dict[str, Any]]:
    """A question whose metric is a difference of logits."""
    question, arguments = question_of(name), asked(name)[1]
    if FAMILIES[name].decodes:
        question, arguments = replace(question, read=question.read[:1]), {**arguments, "answer": 17}
        arguments["against"] = 23
    return question, arguments


@pytest.mark.parametrize(
    "family", swept(MEASURED, default=["gpt2", "llama", "t5", "bloom", "bert", "modernbert"])
)
def test_direct_effects_of_all_parts_sum_to_the_logit_or_are_refused(family):
    of, (question, arguments) = oracle(family), logit_asked(family)
    if family in NO_DIRECT:
        with pytest.raises((ModelError, OptionError), match=NO_DIRECT[family]):
            attnscope.effects(of.model, **arguments, columns=["direct"])
        return
    table = attnscope.effects(of.model, **arguments, columns=["direct"])
    uncapped = of.uncapped(question)
    total = table.direct.heads + sum(table.direct.parts.values())
    assert total == pytest.approx(uncapped, abs=1e-4)
    assert table.direct.value == pytest.approx(uncapped, abs=1e-4)
    of_rows = [row.values["direct"] for row in table.rows if row.stack != "encoder"]
    assert sum(of_rows) == pytest.approx(table.direct.heads, abs=1e-6)


def test_a_norm_of_the_embeddings_counts_once_and_parameters_keep_their_gradients():
    model = build("bloom")  # as it is loaded: its parameters require gradients
    question = question_of("bloom")
    table = attnscope.effects(model, ids=list(question.ids), answer=17, columns=["direct"])
    with torch.no_grad():
        logit = float(model(**question.inputs()).logits[0, -1, 17])
    assert table.direct.heads + sum(table.direct.parts.values()) == pytest.approx(logit, abs=1e-6)
    assert all(each.requires_grad for each in model.parameters())


ACTIVATED = [name for name, why in NO_DIRECT.items() if why.startswith("what follows")]
"""Families with an activation between the last layer and the logits."""


@pytest.mark.few(1)
@pytest.mark.parametrize("family", swept(ACTIVATED, default=["modernbert"]))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_what_is_not_linear_is_refused_however_near_the_sum_is(family, dtype):
    model, drawing = build(family).to(dtype), torch.Generator().manual_seed(0)
    more = {"position": 3} if FAMILIES[family].masked else {}
    for _ in range(20):
        ids = torch.randint(3, 50, (7,), generator=drawing).tolist()
        with pytest.raises(ModelError, match=r"follows? the last layer.*linear"):
            attnscope.effects(model, ids=ids, answer=17, against=23, columns=["direct"], **more)


def test_weights_of_windows_are_refused_as_what_they_are():
    """Longformer's are `1 n_Q n_head n_window`, although its heads do stand side by side."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 6, "attention_window": 4}
    config = transformers.LongformerConfig(vocab_size=40, intermediate_size=37, pad_token_id=0, **sizes)
    model = transformers.LongformerForMaskedLM(config).eval()
    said = r"attention returns weights of 1×\d+×6×5, and not a map of each head: its heads cannot be"
    with pytest.raises(ModelError, match=said):
        attnscope.effects(model, ids=[5, 6, 7, 8, 9, 10, 11, 12, 13], position=4, answer=3)
