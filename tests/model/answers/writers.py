"""A tiny LLaMA that answers texts and chats, and the weights of one whole pass of eager attention."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from tests.model.answers.segments.tokenizers_of import tokenizer_of
from tests.model.run.tiny import random_weights

CHAT = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MESSAGES = [
    {"role": "system", "content": "the mat ."},
    {"role": "user", "content": "who sat on the mat ?"},
]


def tiny_llama(tokenizer: Any, n_layer: int, seed: int, **more: Any) -> LlamaForCausalLM:
    """A LLaMA with grouped-query attention and random weights."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=40,
        num_hidden_layers=n_layer,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        **more,
    )
    return random_weights(LlamaForCausalLM(config))


@cache
def writer() -> tuple[LlamaForCausalLM, PreTrainedTokenizerBase]:
    """A model of three layers with grouped-query attention, and its tokenizer of bytes, with a chat."""
    tokenizer = deepcopy(tokenizer_of("bytes"))
    tokenizer.chat_template = CHAT
    model = tiny_llama(tokenizer, 3, seed=3, eos_token_id=None)
    model.generation_config.pad_token_id = 0
    model.generation_config.repetition_penalty = 3.0  # so that no token is written twice
    return model, tokenizer


def whole_pass(model: Any, inputs: dict[str, Any], ids: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """The weights that eager attention returns of a prompt and its answer, and log-probabilities.

    Args:
        model: as transformers loads it.
        inputs: the prompt.
        ids: the answer's.

    Returns:
        `n_layer n_head n_K n_K`, NaN in layers without weights, and `n_K n_vocab`.
    """
    eager = type(model)._from_config(deepcopy(model.config), attn_implementation="eager").eval()
    eager.load_state_dict(model.state_dict())
    answer = torch.tensor([ids])
    longer = {name: inputs[name] for name in inputs if name != "input_ids"}
    longer["input_ids"] = torch.cat([inputs["input_ids"], answer], 1)
    prefix = model.config.model_type == "paligemma"  # 1: what follows it, and is causal
    for name, value in [
        ("attention_mask", 1),
        ("mm_token_type_ids", 0),
        ("token_type_ids", int(prefix)),
    ]:
        if name in longer:
            longer[name] = torch.cat([longer[name], torch.full_like(answer, value)], 1)
    with torch.no_grad():
        output = eager(**longer, output_attentions=True, use_cache=False)
    returned = iter(torch.stack(output.attentions)[:, 0])
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or ["full_attention"]
    if "linear_attention" in kinds:  # which has no weights
        shape = output.attentions[0].shape[1:]
        weights = [
            torch.full(shape, torch.nan) if "linear" in each else next(returned) for each in kinds
        ]
    else:
        weights = list(returned)
    return torch.stack(weights), output.logits[0].log_softmax(-1)
