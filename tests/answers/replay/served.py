"""Tiny LLaMAs whose answers a real server wrote, with log-probabilities, and its files."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from typing import Any

import torch
from answers.segments.tokenizers_of import tokenizer_of
from answers.writers import CHAT
from transformers import LlamaConfig, LlamaForCausalLM


@cache
def served(kind: str) -> tuple[Any, Any]:
    """A model of two layers in float32, and its tokenizer: `merges` or `sentencepiece`."""
    tokenizer = deepcopy(tokenizer_of(kind))
    tokenizer.chat_template = "{{ bos_token }}" + CHAT  # which llama.cpp would add otherwise
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
    )
    model = LlamaForCausalLM(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model, tokenizer
