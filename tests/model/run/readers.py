"""Small checkpoints that read and see: random weights, with a tokenizer or an image processor beside them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    ViTImageProcessor,
)

from tests.model.run.families import FAMILIES
from tests.model.run.tiny import random_weights

WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] the cat sat on mat because it was tired . a dog ran".split()

MORE: dict[str, dict[str, Any]] = {
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "gpt_oss": {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "hidden_size": 32,
        "sliding_window": 3,
    },
    "gemma2": {"sliding_window": 3, "attn_logit_softcapping": 1.5},
    "mistral": {"sliding_window": 3},
    "t5": {"decoder_start_token_id": 0},
}
"""What some families are tried with, beside their sizes."""

OTHERS: dict[str, dict[str, Any]] = {
    "mamba": {"vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 2},
    "xlnet": {"vocab_size": 50, "d_model": 24, "n_layer": 3, "n_head": 6, "d_inner": 37},
    "longformer": {**FAMILIES["bert"], "attention_window": 4, "pad_token_id": 0},
    "granite_swa": FAMILIES["llama"],
    "longt5": {**FAMILIES["t5"], "local_radius": 4, "decoder_start_token_id": 0},
    "rwkv": {"vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 2, "context_length": 64},
    "yolos": {**FAMILIES["vit"], "image_size": [8, 8], "num_detection_tokens": 3},
    "bigbird_pegasus": {**FAMILIES["bart"], "attention_type": "original_full"},
    "afmoe": {
        **FAMILIES["llama"],
        "num_experts": 2,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 8,
        "num_dense_layers": 1,
    },
}
"""Families whose weights attnscope does not read: no attention, or attention of their own kind."""

WRITERS = {"afmoe", "gpt2", "llama", "mistral", "gemma2", "gpt_oss", "lfm2", "granite_swa", "rwkv"}
TRANSLATORS = {"t5", "longt5", "bart", "bigbird_pegasus"}


def save_reader(family: str, folder: Path, kind: Any = None, **more: Any) -> PreTrainedModel:
    """Save a model of a family, with a tokenizer of eighteen words.

    Args:
        family, more: its type, and what it is tried with.
        folder: where.
        kind: one of transformers' auto classes; the usual one of the family, if none is named.
    """
    torch.manual_seed(0)
    sizes = {**FAMILIES, **OTHERS}[family]
    config = AutoConfig.for_model(family, **{**sizes, **MORE.get(family, {}), **more})
    usual = AutoModelForCausalLM if family in WRITERS else AutoModel
    usual = AutoModelForSeq2SeqLM if family in TRANSLATORS else usual
    model = random_weights((kind or usual).from_config(config))
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return model


@contextmanager
def changed_weights(folder: Path) -> Iterator[dict[str, torch.Tensor]]:
    """The weights of a saved model, by name; what is changed in them is saved."""
    path = folder / "model.safetensors"
    weights = load_file(path)
    yield weights
    save_file(weights, path, metadata={"format": "pt"})


def save_tokenizer(folder: Path, *, special: bool = True) -> None:
    """A tokenizer that knows eighteen words, and puts [CLS] and [SEP] around texts and pairs, or not."""
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if special:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
        )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    ).save_pretrained(folder)


def save_seer(family: str, folder: Path, kind: Any = None, **more: Any) -> PreTrainedModel:
    """Save a model that looks at pictures of 8 × 8 pixels, in patches of 4 × 4."""
    model = save_reader(family, folder, kind, **more)
    ViTImageProcessor(size={"height": 8, "width": 8}).save_pretrained(folder)
    return model


def save_picture(path: Path) -> Path:
    """A picture, wider than high, red from left to right."""
    pixels = np.zeros((30, 50, 3), "uint8")
    pixels[..., 0] = np.linspace(0, 255, 50)
    Image.fromarray(pixels).save(path)
    return path
