"""Flash attention as its documentation defines it, query by query, for transformers' code around it."""

import torch
from transformers import modeling_flash_attention_utils as around


def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1)):
    """`n_batch n head d`: the last query is at the last key; a window has both ends, -1 being none."""
    return torch.stack(
        [sequence(*each, softmax_scale, causal, window_size) for each in zip(q, k, v, strict=True)]
    )


def flash_attn_varlen_func(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
    dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1),
):  # fmt: skip
    """`n head d`: the sequences stand one behind the other."""
    out = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=v.dtype)
    for i in range(len(cu_seqlens_q) - 1):
        of_q, of_k = (slice(int(cu[i]), int(cu[i + 1])) for cu in (cu_seqlens_q, cu_seqlens_k))
        out[of_q] = sequence(q[of_q], k[of_k], v[of_k], softmax_scale, causal, window_size)
    return out


def sequence(q, k, v, scale, causal, window):
    n_Q, n_K, group = len(q), len(k), q.shape[1] // k.shape[1]
    out = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=v.dtype)
    for i in range(n_Q):
        place = i + n_K - n_Q
        last = place if causal else n_K - 1 if window[1] < 0 else place + window[1]
        first = 0 if window[0] < 0 else place - window[0]
        seen = range(max(first, 0), min(last, n_K - 1) + 1)
        for head in range(q.shape[1]):
            if len(seen):
                scores = torch.stack([q[i, head] @ k[j, head // group] for j in seen]) * scale
                out[i, head] = scores.softmax(0) @ torch.stack([v[j, head // group] for j in seen])
    return out


def install(monkeypatch) -> None:
    """Let transformers call these."""
    functions = (flash_attn_func, flash_attn_varlen_func, None, around._pad_input, around._unpad_input)
    processed = around._lazy_define_process_function(flash_attn_varlen_func)
    monkeypatch.setattr(around, "lazy_import_flash_attention", lambda *_: (functions, (processed, dict)))
