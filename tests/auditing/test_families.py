"""Audits of every family that the tests build, and of random sizes: what is right holds, in every dtype."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

import attnscope
from tests.auditing import planted
from tests.model.run.families import FAMILIES, VIT
from tests.model.run.tiny import random_weights

LONGER = dict.fromkeys(
    ("max_position_embeddings", "n_positions", "max_seq_len", "max_target_positions"), 128
)
WINDOWS = ("mistral", "gemma2", "gemma3_text", "gpt_oss", "phi3", "starcoder2")

READ = [
    family
    for family, sizes in FAMILIES.items()
    if sizes is not VIT and not {"vision_config", "conv_dim", "image_size"} & set(sizes)
]
"""The families that read text alone."""

LEARNED = "learned positions count the padding on the left, and no position_ids can be passed"
BROKEN = {
    "bart": {"padding": LEARNED},
    "mbart": {"padding": LEARNED},
    "marian": {"padding": LEARNED},
    "whisper": {"padding": LEARNED},
    "jamba": {"cache": "its Mamba layers take one token after the first part, and ignore the others"},
    "mobilebert": {"padding": "its embedding of three tokens sees the first padding token"},
}
"""What is broken in transformers itself, and why."""


def build(family: str, dtype: torch.dtype = torch.float32, **more: Any) -> Any:
    sizes = FAMILIES[family] | more
    sizes |= {name: size for name, size in LONGER.items() if name in sizes}
    config = AutoConfig.for_model(family.split()[0], **sizes)
    torch.manual_seed(0)
    try:
        model = AutoModelForCausalLM.from_config(config)
    except ValueError:
        model = AutoModel.from_config(config)
    return random_weights(model, 0.2).to(dtype)


@pytest.mark.sweep
@pytest.mark.parametrize("family", READ)
def test_each_verdict_of_a_family_is_right(family):
    audit = attnscope.audit(build(family, **({"sliding_window": 8} if family in WINDOWS else {})))
    assert {each.name for each in audit.broken} == set(BROKEN.get(family, {}))
    assert audit.n_forward <= 45
    held = {each.name for each in audit.properties if each.status == "holds"}
    assert held & {"causal", "bidirectional"}
    assert "batch" in held


DRAWN = ("llama", "qwen3", "mistral", "gpt2", "gpt_neox", "bert", "gemma3_text")


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(15))
def test_random_correct_models_give_no_alarm(seed):
    drawing = random.Random(seed)
    family = DRAWN[seed % len(DRAWN)]
    sizes: dict[str, Any] = {}
    if family in ("mistral", "gemma3_text"):
        sizes["sliding_window"] = drawing.choice([3, 8, 16, 17])
    dtype = drawing.choice([torch.float32, torch.bfloat16, torch.float64])
    model = planted.model(family, dtype, **sizes)
    scale = drawing.choice([0.02, 0.1, 0.3])
    torch.manual_seed(seed)
    random_weights(model, scale)
    audit = attnscope.audit(model, length=drawing.choice([17, 23, 61, 64]), seed=seed)
    assert not audit.broken
