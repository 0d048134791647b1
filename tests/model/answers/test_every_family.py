"""Answers of every family that writes, in float32 and in 16 bits: their own eager attention agrees."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
)

import attnscope
from attnscope.base.errors import ModelError
from tests.model.run.readers import WORDS, save_tokenizer
from tests.model.run.tiny import tiny_config
from tests.sweeps import swept

MLA = {"num_key_value_heads": 4, "head_dim": 8}
SIZES = {
    **dict.fromkeys("axk1 axk2 deepseek_v3 deepseek_v32 glm4_moe_lite".split(), MLA),
    **dict.fromkeys("glm_moe_dsa minicpm3 youtu".split(), MLA),
    "gptj": {"rotary_dim": 8},
    "codegen": {"rotary_dim": 8},
    "deepseek_v2": MLA | {"num_experts_per_tok": 2},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "marian": {"decoder_start_token_id": 1},
}
"""What a family's small configuration needs beside sizes."""

NOT_SMALL = """
    audioflamingo3 bamba blt cohere_compass_text dbrx dots1 dots3_note dots3_note_text gemma3n gemma3n_text
    gemma4 gemma4_assistant gemma4_text gemma4_unified gemma4_unified_assistant gemma4_unified_text glmasr
    gpt_neo granite_speech granite_speech_plus granitemoehybrid hunyuan_v1_dense hunyuan_v1_moe lfm2_moe
    longcat_flash mamba2 ministral musicflamingo musicgen musicgen_melody nemo_speechlm nemotron qwen2_audio
    qwen3_asr qwen4_exp qwen4_exp_text reformer vibevoice_asr voxtral voxtral_realtime zamba zamba2 zaya
    bailing_hybrid kimi_linear stablelm xmod encoder-decoder emu3 mllama trocr
""".split()
"""Families whose small configuration is none, or has no attention, or writes only within another model."""

REFUSED = {
    "returns (a part of its|scores rather than) weights": "cpmant prophetnet t5gemma2",
    "so not every key is a token": "deepseek_v4",
    "it adds tokens of its own": "xlm xlnet",
    "attends more than once in one step": "diffllama hrm_text",
    "has no attention": "falcon_mamba mamba rwkv xlstm",
    "takes audio": "whisper",
}
WHY = {name: why for why, names in REFUSED.items() for name in names.split()}
CAUSAL, TRANSLATES = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
FAMILIES = sorted({*CAUSAL, *TRANSLATES} - {*NOT_SMALL})
IN_16_BITS = {*FAMILIES[::3], "granite_swa", "bloom"} - {"inkling2_text"}
"""Every third family; transformers cannot run inkling2_text in 16 bits."""
TEXT = " ".join(word for word in WORDS if word.isalpha())


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder)
    return AutoTokenizer.from_pretrained(folder)


def writer(family):
    """A small model with random weights that never ends by itself."""
    torch.manual_seed(0)
    config = tiny_config(family, **SIZES.get(family, {}))
    if family in CAUSAL and not config.is_encoder_decoder and hasattr(config, "is_decoder"):
        config.is_decoder = True
    translates = family in TRANSLATES and config.is_encoder_decoder
    auto = AutoModelForSeq2SeqLM if translates else AutoModelForCausalLM
    model = auto.from_config(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3 if parameter.dim() > 1 else 0.1)
    settings = model.generation_config
    settings.eos_token_id, settings.pad_token_id, settings.repetition_penalty = None, 0, 2.0
    if config.is_encoder_decoder:
        settings.decoder_start_token_id = 1
    return model


@pytest.mark.parametrize("family", swept(FAMILIES, default=["granite_swa", "bloom", "xlnet"]))
def test_the_rows_of_a_family_are_those_of_its_eager_attention_or_it_is_refused(family, tokenizer):
    model = writer(family)
    options = {"tokenizer": tokenizer, "generate": 3, "verify": True}
    if not model.config.is_encoder_decoder:
        options["rows"] = "segments"
    if family in WHY:
        with pytest.raises(ModelError, match=WHY[family]):
            attnscope.answer(model, TEXT, **options)
        return
    answer = attnscope.answer(model, TEXT, **options)
    [check] = answer.checks
    of_eager = any("from its own eager attention" in notice for notice in answer.notices)
    assert (check.ok, "eager attention" in check.note) == ((None, True) if of_eager else (True, False))
    assert (answer.weights >= 0).all()
    assert (answer.weights.sum(1) <= 1 + 1e-5).all()
    if family in IN_16_BITS:
        narrow = attnscope.answer(model.bfloat16(), TEXT, **options)
        assert narrow.checks[0].ok is check.ok
        assert len(narrow.written) == len(answer.written)
        assert np.isfinite(narrow.weights).all()
