"""What layers of linear attention, state spaces and convolutions keep instead of keys and values.

The sizes are those of the caches of transformers' modules.
"""

from __future__ import annotations

from math import ceil

from attnscope.model.card.anatomy import LayerAnatomy, LayerCache
from attnscope.model.families.fields import Fields, undecided


def state_of(fields: Fields, kind: str) -> LayerAnatomy:
    """Return a layer of linear attention, a state space or a convolution."""
    for field, read in STATES.items():
        if fields.has(field):
            return read(fields)
    raise undecided("layer_types", kind, "a kind of layer whose states attnscope knows")


def _layer(
    kind: str,
    numbers: int,
    numbers_float32: int = 0,
    n_head: int | None = None,
    recurrence: int | None = None,
    newest: int = 0,
) -> LayerAnatomy:
    """Return a layer by what it keeps, whatever the length of the text is: see `LayerCache`."""
    cache = LayerCache(constant=numbers, constant_float32=numbers_float32, newest=newest)
    return LayerAnatomy(kind, n_head=n_head, cache=cache, recurrence=recurrence)


def _delta(fields: Fields) -> LayerAnatomy:
    """Gated DeltaNet (arXiv:2412.06464): a matrix d_K × d_V a head, and a convolution of Q, K, V.

    A step reads the matrix by K, writes to it, and reads it by Q: three products.
    """
    n_key, d_key = fields.count("linear_num_key_heads"), fields.count("linear_key_head_dim")
    n_value, d_value = fields.count("linear_num_value_heads"), fields.count("linear_value_head_dim")
    channels = 2 * n_key * d_key + n_value * d_value
    convolution = channels * fields.count("linear_conv_kernel_dim")
    matrices = n_value * d_key * d_value
    return _layer("linear", convolution, matrices, n_value, convolution + 3 * matrices, channels)


def _kimi_delta(fields: Fields) -> LayerAnatomy:
    """Kimi Delta Attention (arXiv:2510.26692): a matrix d_head × d_head a head, and a convolution."""
    n_head, d_head = fields.count("linear_num_heads"), fields.count("linear_head_dim")
    convolution = 3 * n_head * d_head * fields.count("linear_conv_kernel_dim")
    matrices = n_head * d_head * d_head
    newest = 3 * n_head * d_head
    return _layer("linear", convolution, matrices, n_head, convolution + 3 * matrices, newest)


def _lightning(fields: Fields) -> LayerAnatomy:
    """Lightning attention of MiniMax-01 (arXiv:2501.08313): a matrix d_head × d_head a head."""
    n_head = fields.count("num_attention_heads")
    is_given = fields.get("head_dim") is not None
    d_head = fields.count("head_dim") if is_given else fields.count("hidden_size") // n_head
    matrices = n_head * d_head * d_head
    return _layer("linear", matrices, n_head=n_head, recurrence=2 * matrices)


def _mamba_2(fields: Fields) -> LayerAnatomy:
    """Mamba-2 (arXiv:2405.21060): d_head × d_state numbers a head, and the convolution of x, B and C.

    A step adds x · B to the state and reads it by C: two products.
    """

    def one_of(*names: str) -> int:
        return fields.count(next((name for name in names if fields.has(name)), names[0]))

    n_head = one_of("mamba_num_heads", "mamba_n_heads", "n_mamba_heads", "num_heads")
    d_state = one_of("ssm_state_size", "mamba_d_state", "state_size")
    n_group = one_of("n_groups", "mamba_n_groups", "mamba_ngroups")
    kernel = one_of("conv_kernel", "mamba_d_conv")
    d_head = _d_of_head(fields, n_head)
    channels = n_head * d_head + 2 * n_group * d_state
    convolution, states = channels * kernel, n_head * d_head * d_state
    return _layer("state space", convolution, states, n_head, convolution + 2 * states, channels)


def _d_of_head(fields: Fields, n_head: int) -> int:
    for name in ("mamba_head_dim", "mamba_d_head", "mamba_headdim", "head_dim"):
        value = fields.get(name) if fields.has(name) else None
        if isinstance(value, int) and not isinstance(value, bool):
            return fields.count(name)
    return fields.count("hidden_size") * fields.count("mamba_expand") // n_head


def _mamba(fields: Fields) -> LayerAnatomy:
    """Mamba (arXiv:2312.00752): d_state numbers a channel, and the convolution."""
    if fields.has("mamba_expand"):
        channels = fields.count("hidden_size") * fields.count("mamba_expand")
        kernel, d_state = fields.count("mamba_d_conv"), fields.count("mamba_d_state")
    else:
        wide = "intermediate_size" in fields.config
        channels = (
            fields.count("intermediate_size")
            if wide
            else fields.count("hidden_size") * fields.count("expand")
        )
        kernel, d_state = fields.count("conv_kernel"), fields.count("state_size")
    convolution, states = channels * kernel, channels * d_state
    return _layer("state space", convolution, states, None, convolution + 2 * states, channels)


def _convolution(fields: Fields) -> LayerAnatomy:
    """The short convolutions of LFM2, which keep as many inputs as their kernel is long."""
    channels = fields.count("hidden_size")
    convolution = channels * fields.count("conv_L_cache")
    return _layer("convolution", convolution, recurrence=convolution, newest=channels)


def _short_convolutions(fields: Fields) -> LayerAnatomy:
    """The four short convolutions of Inkling: of K, V, and what attention and the MLP give."""
    heads = fields.count("num_key_value_heads") * fields.count("head_dim")
    channels = 2 * heads + 2 * fields.count("hidden_size")
    convolution = channels * fields.count("conv_kernel_size")
    return _layer("convolution", 0, convolution, recurrence=convolution)


def _compressed_convolution(fields: Fields) -> LayerAnatomy:
    """ZAYA's attention (arXiv:2510.04476): two convolutions of Q and K, and half of V one token late."""
    d_head, n_kv_head = fields.count("head_dim"), fields.count("num_key_value_heads")
    channels = (fields.count("num_attention_heads") + n_kv_head) * d_head
    past = fields.count("cca_time0") - 1 + fields.count("cca_time1") - 1
    return _layer("convolution", channels * past + n_kv_head * d_head // 2)


def _rwkv(fields: Fields) -> LayerAnatomy:
    """RWKV-4 (arXiv:2305.13048): the last inputs of two mixings; a sum, its weight, a maximum."""
    d_feat = fields.count("hidden_size")
    return _layer("linear", 2 * d_feat, 3 * d_feat)


def _mlstm(fields: Fields) -> LayerAnatomy:
    """The mLSTM of xLSTM (arXiv:2405.04517): a matrix d_K × d_V, a vector and a number a head."""
    n_head, d_feat = fields.count("num_heads"), fields.count("hidden_size")

    def d_head(share: str) -> int:
        width = d_feat * fields.get(share)
        return ceil(width / 64) * 64 // n_head

    d_K, d_V = d_head("qk_dim_factor"), d_head("v_dim_factor")
    matrices = n_head * d_K * d_V
    return _layer("linear", matrices + n_head * d_K + n_head, n_head=n_head, recurrence=2 * matrices)


def _rg_lru(fields: Fields) -> LayerAnatomy:
    """The RG-LRU of Griffin (arXiv:2402.19427): a number a channel in float32, and a convolution."""
    channels = fields.count("lru_width" if fields.get("lru_width") is not None else "hidden_size")
    kernel = fields.count("conv1d_width")
    return _layer("linear", channels * (kernel - 1), channels, recurrence=channels * (kernel + 1))


STATES = {
    "rescale_every": _rwkv,
    "qk_dim_factor": _mlstm,
    "conv1d_width": _rg_lru,
    "cca_time0": _compressed_convolution,
    "linear_num_heads": _kimi_delta,
    "linear_attn_alpha_factor": _lightning,
    "linear_num_key_heads": _delta,
    "mamba_num_heads": _mamba_2,
    "mamba_n_heads": _mamba_2,
    "mamba_ngroups": _mamba_2,
    "mamba_d_conv": _mamba,
    "conv_L_cache": _convolution,
    "conv_kernel_size": _short_convolutions,
    "num_heads": _mamba_2,
    "state_size": _mamba,
}
"""By a field that only configurations with such layers have: what reads them."""
