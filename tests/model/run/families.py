"""Small models of every family, built from their configurations, with random weights: no parameter is zero."""

from __future__ import annotations

import inspect
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoConfig,
    AutoModel,
    BlipVisionModel,
    PreTrainedModel,
)
from transformers.masking_utils import sdpa_mask
from transformers.utils import logging

logging.set_verbosity_error()
logging.disable_progress_bar()

N_BATCH, N_TOKENS, N_TARGET, N_FRAMES = 2, 7, 5, 24

BERT = {
    "vocab_size": 50,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "max_position_embeddings": 16,
}
LLAMA = {
    "vocab_size": 50,
    "hidden_size": 36,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 28,
    "max_position_embeddings": 16,
    "pad_token_id": 0,
}
NARROW = {**LLAMA, "hidden_size": 48}  # where heads have to make up the width
GPT = {"vocab_size": 50, "n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 16}
BART = {
    "vocab_size": 50,
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 20,
    "decoder_ffn_dim": 28,
    "max_position_embeddings": 16,
    "pad_token_id": 0,
    "decoder_start_token_id": 1,
}
T5 = {
    "vocab_size": 50,
    "d_model": 20,
    "d_kv": 8,
    "num_heads": 3,
    "num_layers": 2,
    "num_decoder_layers": 4,
    "d_ff": 28,
}
VIT = {
    "hidden_size": 20,
    "num_hidden_layers": 3,
    "num_attention_heads": 5,
    "intermediate_size": 28,
    "image_size": 8,
    "patch_size": 4,
}
TOWERS = {"text_config": BERT, "vision_config": VIT, "projection_dim": 9}
SOUND = {
    **BERT,
    "conv_dim": [8],
    "conv_kernel": [40],
    "conv_stride": [400],
    "num_feat_extract_layers": 1,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
}

ASKED: dict[str, dict[str, Any]] = {
    **dict.fromkeys("bert roberta electra xlm-roberta camembert ernie".split(), BERT),
    "albert": {**BERT, "num_hidden_layers": 5, "num_hidden_groups": 2, "embedding_size": 7},
    "distilbert": {"vocab_size": 50, "dim": 24, "n_layers": 2, "n_heads": 3, "hidden_dim": 20},
    "mobilebert": {**BERT, "intra_bottleneck_size": 12, "num_feedforward_networks": 2},
    "modernbert": {**BERT, "pad_token_id": 0},
    "bert decoder": {**BERT, "is_decoder": True, "add_cross_attention": True},
    "gpt2": GPT,
    "gpt_bigcode": GPT,
    "gpt_bigcode multi-head": {**GPT, "multi_query": False},
    "gpt_neox": BERT,
    "opt": {**BERT, "ffn_dim": 20, "word_embed_proj_dim": 24},
    **dict.fromkeys("llama mistral qwen2 qwen3 gemma gemma2 gemma3_text gpt_oss olmo2".split(), LLAMA),
    **dict.fromkeys("olmo mixtral smollm3 cohere granite".split(), LLAMA),
    **dict.fromkeys("stablelm starcoder2 phi lfm2 jamba".split(), NARROW),
    "lfm2": {**NARROW, "num_hidden_layers": 4, "layer_types": ["conv", "full_attention"] * 2},
    "jamba": {
        **NARROW,
        "num_hidden_layers": 4,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "mamba_d_state": 4,
        "num_experts": 2,
        "use_mamba_kernels": False,
    },
    "phi3": {key: size for key, size in NARROW.items() if key != "head_dim"},
    **dict.fromkeys("t5 mt5".split(), T5),
    **dict.fromkeys("bart mbart marian m2m_100".split(), BART),
    "whisper": {
        **BART,
        "num_mel_bins": 10,
        "max_source_positions": N_FRAMES // 2,
        "max_target_positions": 16,
    },
    **dict.fromkeys("vit deit beit dinov2 dinov3_vit".split(), VIT),
    **dict.fromkeys("clip metaclip_2".split(), TOWERS),
    "siglip": {"text_config": BERT, "vision_config": {**VIT, "hidden_size": 40, "projection_size": 24}},
    "gemma3": {"text_config": LLAMA, "vision_config": VIT, "mm_tokens_per_image": 4},
    **dict.fromkeys("wav2vec2 hubert".split(), SOUND),
}
"""Families that call attention through transformers' registry."""

CHANGED: dict[str, dict[str, Any]] = {
    **dict.fromkeys("mpnet deberta-v2 roformer rembert".split(), BERT),
    "xlm": {"vocab_size": 50, "emb_dim": 24, "n_layers": 2, "n_heads": 3, "max_position_embeddings": 16},
    "gptj": {**GPT, "rotary_dim": 4},
    "gpt_neo": {
        **BERT,
        "num_layers": 2,
        "num_heads": 3,
        "attention_types": [[["global", "local"], 1]],
    },
    "bloom": {"vocab_size": 50, "hidden_size": 24, "n_layer": 2, "n_head": 3},
    "falcon": {**BERT, "num_attention_heads": 6, "num_kv_heads": 2, "new_decoder_architecture": True},
    "falcon multi-query": BERT,
    "falcon multi-head": {**BERT, "multi_query": False},
    "mpt": {"vocab_size": 50, "d_model": 24, "n_layers": 2, "n_heads": 3, "max_seq_len": 16},
    "persimmon": {**BERT, "hidden_size": 48},
    "blip_vision_model": VIT,
    "qwen3_next": {
        **LLAMA,
        "num_hidden_layers": 4,
        "linear_key_head_dim": 4,
        "linear_value_head_dim": 4,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 8,
        "shared_expert_intermediate_size": 8,
    },
}
"""Families that do not, or whose attention is not to be seen there whole: their weights are changed to see
what follows."""

FAMILIES = {**ASKED, **CHANGED}


def build(family: str, attention: str = "eager", **more: Any) -> PreTrainedModel:
    """A family's bare model in float64."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(family.split()[0], **{**FAMILIES[family], **more})
    if family == "blip_vision_model":
        model = BlipVisionModel(config)
    else:
        model = AutoModel.from_config(config, attn_implementation=attention)
    model = model.double().eval()
    if model._can_set_experts_implementation():
        model.set_experts_implementation("eager")  # the others do not know float64
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, std=0.2)
        if any(
            word in name for word in ("q_norm", "k_norm", "q_layernorm", "k_layernorm")
        ):  # so that directions stay what they are
            centred = "gemma" in family or family == "qwen3_next"  # these multiply with 1 + weight
            torch.nn.init.constant_(parameter, 0.0 if centred else 1.0)
    return model


def save(family: str, folder: Path) -> PreTrainedModel:
    """Build a family's model and save it; what was saved."""
    model = build(family)
    model.save_pretrained(folder)
    return model


def inputs_of(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Something to read, to look at or to hear, without padding."""
    drawing = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 50, (N_BATCH, N_TOKENS), generator=drawing)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(N_BATCH, *shape, generator=drawing, dtype=torch.float64)

    given = {
        "input_ids": ids,
        "decoder_input_ids": ids[:, :N_TARGET],
        "pixel_values": drawn(3, 8, 8),
        "input_features": drawn(10, N_FRAMES),
        "input_values": drawn(4000),
    }
    if getattr(model.config, "add_cross_attention", False):
        given["encoder_hidden_states"] = drawn(N_FRAMES, 24)
    takes = inspect.signature(model.forward).parameters
    return {name: value for name, value in given.items() if name in takes}


CALLS: list[tuple[Any, ...]] = []
"""Who attended in the run that is watched: module, query, key, value, and what it got."""


def attend(module: torch.nn.Module, query: Any, key: Any, value: Any, mask: Any, **_: Any) -> Any:
    """Some attention: what comes out of it matters less than what goes in."""
    group = query.shape[1] // key.shape[1]
    keys, values = (x.repeat_interleave(group, dim=1) for x in (key, value))
    x = F.scaled_dot_product_attention(query, keys, values, mask).transpose(1, 2).contiguous()
    CALLS.append((module, query, key, value, x))
    return x, None


def register() -> None:
    """Let models look up `attend` as `watched`; of two copies of this module, this one's."""
    AttentionInterface.register("watched", attend)
    AttentionMaskInterface.register("watched", sdpa_mask)


register()


class Watched:
    """What goes into every module of a model and comes out, and what attention is given, in one run.

    Attributes:
        inputs, outputs: of each module that has one tensor in and one out, by its name: of each call.
        order: the modules that attended, one after the other.
        asked: what each module that attends gave to transformers' registry: query, key, value, and what it got.
    """

    def __init__(self, model: PreTrainedModel, **options: Any) -> None:
        names = {module: name for name, module in model.named_modules()}
        self.inputs, self.outputs = defaultdict(list), defaultdict(list)
        self.asked = defaultdict(list)

        def look(module: torch.nn.Module, inputs: Any, output: Any) -> None:
            if inputs and isinstance(output, torch.Tensor):
                self.inputs[names[module]].append(inputs[0])
                self.outputs[names[module]].append(output)

        hooks = [module.register_forward_hook(look) for module in names]
        CALLS.clear()
        register()
        with torch.no_grad():
            self.result = self.run(model, **options)
        for hook in hooks:
            hook.remove()
        self.order = [names[module] for module, *_ in CALLS]
        for module, *seen in CALLS:
            self.asked[names[module]].append(seen)

    def run(self, model: PreTrainedModel, **options: Any) -> Any:
        """Run a model; where it sees and reads, the one and then the other."""
        batch = inputs_of(model)
        if hasattr(model, "get_image_features"):
            model.get_image_features(pixel_values=batch.pop("pixel_values"))
            if hasattr(model, "get_text_features"):
                return model.get_text_features(**batch)
        return model(**batch, **options)
