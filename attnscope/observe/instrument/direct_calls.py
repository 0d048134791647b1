"""torch's own attention as Python code, whose calls can be traced like those of other functions."""

from __future__ import annotations

import sys
from typing import Any

from attnscope.observe.operator_names import MHA, SDPA


def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Call torch's function."""
    from torch.nn import functional

    options: dict[str, Any] = {"scale": scale, "enable_gqa": enable_gqa}
    return functional.scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, **options
    )


def multi_head_attention_forward(
    query: Any, key: Any, value: Any, *arguments: Any, **options: Any
) -> Any:
    """Call torch's function."""
    from torch.nn import functional

    return functional.multi_head_attention_forward(query, key, value, *arguments, **options)


def traceable(target: Any) -> Any:
    """Return Python code that calls a function of torch, if it is one that computes attention."""
    functional = sys.modules.get("torch.nn.functional")
    for name in (SDPA, MHA) if functional is not None else ():
        if target is getattr(functional, name):
            return globals()[name]
    return target
