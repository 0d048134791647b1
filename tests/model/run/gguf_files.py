"""GGUF files of transformers' models, written with llama.cpp's package as its converter writes them.

Source: `modify_tensors` in `conversion/` of llama.cpp: llama.py, gpt2.py, bloom.py, gpt_neox.py, falcon.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import torch
from gguf.constants import GGMLQuantizationType
from torch import Tensor

PERMUTED = "llama arcee smollm3 mistral3 granite granitemoe olmo".split()
PREFIXES = ("", "model.", "transformer.", "gpt_neox.")
"""What a bare model's names lack, compared with those of the model with a head."""


def write_gguf(
    model: Any, arch: str, path: Path, *, kind: str = "F32", **options: Any
) -> dict[str, Any]:
    """Write the attention of a model; return the stored arrays of its tensors.

    Args:
        model: a model of transformers.
        arch: its name in llama.cpp.
        path: where.
        kind: ggml's type of matrices, which the package can quantise; vectors are F32.
        options: of `gguf.GGUFWriter`.
    """
    config = model.config.get_text_config()
    writer = gguf.GGUFWriter(path, arch, **options)
    n_layer, n_head = config.num_hidden_layers, config.num_attention_heads
    counts = [getattr(config, name, None) for name in ("num_key_value_heads", "num_kv_heads")]
    n_kv_head = 1 if getattr(config, "multi_query", False) else next(filter(None, counts), n_head)
    writer.add_block_count(n_layer)
    writer.add_head_count(n_head)
    writer.add_head_count_kv(n_kv_head)
    if getattr(config, "head_dim", None):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    rope = getattr(config, "rope_parameters", None) or {}
    if (share := rope.get("partial_rotary_factor", 1)) < 1:
        d_head = getattr(config, "head_dim", None) or config.hidden_size // n_head
        writer.add_rope_dimension_count(int(share * d_head))
    writer.add_embedding_length(config.hidden_size)
    writer.add_vocab_size(config.vocab_size)
    for value, add in (
        (getattr(config, "intermediate_size", None), writer.add_feed_forward_length),
        (getattr(config, "max_position_embeddings", None), writer.add_context_length),
    ):
        if value:
            add(value)
    number = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}[arch]
    names = gguf.get_tensor_name_map(number, n_layer)
    stored: dict[str, Any] = {}
    for name, value in model.state_dict().items():
        found = (names.get_name(each + name, try_suffixes=(".weight", ".bias")) for each in PREFIXES)
        converted = next((each for each in found if each), None)
        if converted is None or ".attn_" not in converted:
            continue
        value = _converted(arch, converted, value, n_head, n_kv_head)
        array = value.contiguous().float().numpy()
        own = GGMLQuantizationType[kind if array.ndim == 2 else "F32"]
        stored[converted] = gguf.quants.quantize(array, own)
        writer.add_tensor(converted, stored[converted], raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return stored


def _converted(arch: str, name: str, value: Tensor, n_head: int, n_kv_head: int) -> Tensor:
    """A tensor as the converter stores it."""
    part = name.split(".")[2]
    if arch in PERMUTED and part in ("attn_q", "attn_k"):
        heads = n_head if part == "attn_q" else n_kv_head
        halves = value.reshape(heads, 2, len(value) // heads // 2, *value.shape[1:])
        return halves.swapaxes(1, 2).reshape(value.shape)
    if arch == "gpt2" and value.ndim == 2:
        return value.T
    if arch in ("bloom", "gptneox", "falcon") and part == "attn_qkv":
        group = n_head // n_kv_head
        grouped = value.reshape(n_kv_head, group + 2, -1, *value.shape[1:])
        parts = grouped[:, :group], grouped[:, group], grouped[:, group + 1]
        return torch.cat([each.reshape(-1, *value.shape[1:]) for each in parts])
    return value
