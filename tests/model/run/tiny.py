"""A small model of any family that transformers knows: its usual configuration, with small sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModel, PretrainedConfig, PreTrainedModel
from transformers.utils import logging

logging.set_verbosity_error()
logging.disable_progress_bar()

SIZES: dict[str, int] = {
    **dict.fromkeys("vocab_size text_vocab_size".split(), 50),
    **dict.fromkeys("hidden_size d_model n_embd dim emb_dim word_embed_proj_dim embed_dim".split(), 48),
    **dict.fromkeys("embedding_size proj_dim projection_dim".split(), 48),
    **dict.fromkeys("num_hidden_layers n_layer n_layers num_layers encoder_layers".split(), 4),
    **dict.fromkeys("num_encoder_layers num_decoder_layers decoder_layers".split(), 4),
    **dict.fromkeys("num_attention_heads n_head n_heads num_heads encoder_attention_heads".split(), 4),
    **dict.fromkeys("decoder_attention_heads num_encoder_attention_heads".split(), 4),
    **dict.fromkeys("num_decoder_attention_heads".split(), 4),
    **dict.fromkeys("num_key_value_heads num_kv_heads n_head_kv".split(), 2),
    **dict.fromkeys("head_dim d_kv".split(), 12),
    **dict.fromkeys(
        "intermediate_size n_inner d_ff d_inner hidden_dim encoder_ffn_dim ffn_dim".split(), 40
    ),
    **dict.fromkeys("decoder_ffn_dim moe_intermediate_size shared_expert_intermediate_size".split(), 40),
    **dict.fromkeys("max_position_embeddings n_positions max_seq_len max_source_positions".split(), 128),
    **dict.fromkeys("num_experts num_local_experts n_routed_experts".split(), 4),
    **dict.fromkeys("num_experts_per_tok moe_topk top_k".split(), 2),
    **dict.fromkeys("n_group topk_group n_shared_experts num_groups_of_experts".split(), 1),
    **dict.fromkeys("q_lora_rank kv_lora_rank".split(), 16),
    **dict.fromkeys("qk_nope_head_dim v_head_dim".split(), 12),
    **dict.fromkeys("qk_rope_head_dim".split(), 8),
    **dict.fromkeys("linear_num_key_heads linear_num_value_heads".split(), 4),
    **dict.fromkeys("linear_key_head_dim linear_value_head_dim".split(), 12),
    **dict.fromkeys("image_size".split(), 32),
    **dict.fromkeys("patch_size".split(), 8),
    **dict.fromkeys("bos_token_id eos_token_id pad_token_id".split(), 0),
}
"""What a size is, under each of the names that configurations have for it."""


def tiny_config(model_type: str, **sizes: Any) -> PretrainedConfig:
    """The configuration of a family, with every size that has a known name made small.

    Args:
        model_type: as transformers calls it.
        sizes: what is to be otherwise.
    """
    return CONFIG_MAPPING[model_type](**(_small(CONFIG_MAPPING[model_type]()) | sizes))


def _small(config: PretrainedConfig) -> dict[str, Any]:
    sizes: dict[str, Any] = {}
    for name, value in config.to_dict().items():
        part = getattr(config, name, None)
        if isinstance(part, PretrainedConfig):
            sizes[name] = {"model_type": part.model_type, **_small(part)}
        elif name in SIZES and (type(value) is int or (value is None and name == "pad_token_id")):
            sizes[name] = min(value or 0, SIZES[name]) if name.endswith("token_id") else SIZES[name]
    return sizes


def random_weights(model: Any, std: float = 0.3) -> Any:
    """Draw all parameters of a model, so that no bias is 0 and no gain is 1; the model."""
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=std)
    return model.eval()


def tiny_model(model_type: str, **sizes: Any) -> PreTrainedModel:
    """A family's small bare model with random weights; arguments as in `tiny_config`."""
    torch.manual_seed(0)
    return random_weights(AutoModel.from_config(tiny_config(model_type, **sizes)))


def save_tiny(model_type: str, folder: Path, **sizes: Any) -> PreTrainedModel:
    """Save a family's small bare model with random weights, and a tokenizer of eighteen words.

    Args:
        model_type, sizes: as in `tiny_config`.
        folder: where.
    """
    from tests.model.run.readers import save_tokenizer

    model = tiny_model(model_type, **sizes)
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return model
