"""Tiny LLaMAs whose answers a real server wrote, with log-probabilities, and its files."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from typing import Any

from tests.model.answers.segments.tokenizers_of import tokenizer_of
from tests.model.answers.writers import CHAT, tiny_llama


@cache
def served(kind: str) -> tuple[Any, Any]:
    """A model of two layers in float32, and its tokenizer: `merges` or `sentencepiece`."""
    tokenizer = deepcopy(tokenizer_of(kind))
    tokenizer.chat_template = "{{ bos_token }}" + CHAT  # which llama.cpp would add otherwise
    return tiny_llama(tokenizer, 2, seed=5), tokenizer
