"""Draft layers, which predict further tokens: multi-token prediction (arXiv:2412.19437, section 2.2).

They have keys and values and weights of their own, which engines keep only if drafting is switched on.
"""

from __future__ import annotations

from attnscope.checkpoints.config import Config, text_part
from attnscope.model_card.anatomy import LayerAnatomy, ModelAnatomy

FIELDS = (
    "num_nextn_predict_layers",
    "mtp_num_hidden_layers",
    "num_mtp_modules",
    "mtp_num_layers",
    "num_mtp_layers",
)
"""The fields of config.json that say how many there are."""

LIKE_OTHERS = frozenset(
    {
        "deepseek_v3",
        "deepseek_v32",
        "ernie4_5_moe",
        "glm4_moe",
        "glm_moe_dsa",
        "longcat_flash",
        "mimo",
        "qwen3_5_moe_text",
        "qwen3_5_text",
        "qwen3_next",
    }
)
"""The model types whose draft layers have the attention of their other layers; where these differ, full
attention, and an indexer: deepseek_mtp.py, glm4_moe_mtp.py, mimo_mtp.py, qwen3_5_mtp.py, … of vLLM."""

ATTENTION_AND_EXPERTS = (["attention", "moe"], ["full_attention", "moe"], "*E")
"""What a draft layer of Nemotron-H is made of: `mtp_layers_block_type`, or, in older files,
`mtp_hybrid_override_pattern` (nemotron_h_mtp.py of vLLM)."""


def number_of_drafts(config: Config) -> tuple[int, str]:
    """Count the draft layers of a configuration, and name the field that says so."""
    text = text_part(config)
    for name in FIELDS:
        count = text.get(name)
        if type(count) is int and 0 < count < 1000:
            return count, name
    return 0, ""


def draft_layer(config: Config, anatomy: ModelAnatomy, named: str | None = None) -> LayerAnatomy | None:
    """Return the attention of a draft layer; None: it is not known.

    Args:
        config: the content of config.json.
        anatomy: of its other layers.
        named: the type that the file names, where it is read as another.
    """
    text, model_types = text_part(config), {anatomy.model_type, named}
    blocks = text.get("mtp_layers_block_type", text.get("mtp_hybrid_override_pattern"))
    of_nemotron = "nemotron_h" in model_types and blocks in ATTENTION_AND_EXPERTS
    if not model_types & LIKE_OTHERS and not of_nemotron:
        return None
    return max(anatomy.layers, key=lambda layer: layer.cache.per_token)
