"""Fields of small models, which tests run: of any family, of mixed layers, of latent attention."""

SMALL = {
    "vocab_size": 11,
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 12,
    "shared_expert_intermediate_size": 16,
}
MIXED = ["sliding_attention", "full_attention"] * 2
LATENT = {
    "q_lora_rank": 9,
    "kv_lora_rank": 14,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 7,
    "v_head_dim": 5,
    "n_group": 1,
    "topk_group": 1,
}
