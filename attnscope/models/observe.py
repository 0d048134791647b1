"""Sees what a model hands to its attention: the true queries, keys, values, mask and scale.

transformers' models call attention through a registry (`AttentionInterface`) by a name, `sdpa` or
`eager`. While a model is observed, these names lead to a function that does what the model's own
does, with the very arguments that it got, and lets somebody look. The names stay the model's own: so
masks are made as always, and a model that asks what its attention is called takes its usual path.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    Attend = Callable[..., tuple[torch.Tensor, torch.Tensor | None]]


@dataclass(frozen=True)
class Call:
    """What one layer hands to its attention, and what it gets.

    Attributes:
        path: the module's name in the model.
        query: `n_batch n_head n_Q d_K`, with positions turned where they are rotary.
        key: `n_batch n_kv_head n_K d_K`.
        value: `n_batch n_kv_head n_K d_V`.
        mask: added to the scores; broadcasts to `n_batch n_head n_Q n_K`. None: nothing is hidden.
        scale: what the dot products are multiplied with.
        softcap: what the scores are soft-capped at.
        position_bias: added to the scores; broadcasts to `n_batch n_head n_Q n_K`.
        sinks: a score for each head, `n_head`, beside the keys'.
        cross: whether the keys are of another sequence than the queries.
        output: what the model's own attention returned, `n_batch n_Q n_head d_V`.
        weights: the weights that it returned beside it, `n_batch n_head n_Q n_K`, if it is eager.
    """

    path: str
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    scale: float
    softcap: float | None
    position_bias: torch.Tensor | None
    sinks: torch.Tensor | None
    cross: bool
    output: torch.Tensor
    weights: torch.Tensor | None

    @property
    def n_head(self) -> int:
        """How many heads the queries have."""
        return self.query.shape[1]

    @property
    def n_kv_head(self) -> int:
        """How many heads keys and values have."""
        return self.key.shape[1]

    def arguments(self, heads: list[int] | None = None) -> dict[str, Any]:
        """The arguments of `attnscope.attention.observed`.

        They are float32 at least: a model's own kernels round less than its dtype would.

        Args:
            heads: only these query heads, each with its own copy of the key head that it reads.
                None: all of them, with key heads as they are.
        """
        import torch

        dtype = torch.promote_types(self.query.dtype, torch.float32)
        sinks = None if self.sinks is None else self.sinks.flatten()
        own = slice(None) if heads is None else heads
        kv = own if heads is None else [head // (self.n_head // self.n_kv_head) for head in heads]

        def part(x: torch.Tensor | None) -> torch.Tensor | None:
            """The same heads of a mask or a bias, which may be one for all."""
            return x if x is None or x.dim() < 3 or x.shape[-3] == 1 else x[..., own, :, :]

        return {
            "Q": self.query[:, own].to(dtype),
            "K": self.key[:, kv].to(dtype),
            "V": self.value[:, kv].to(dtype),
            "mask": part(self.mask),
            "position_bias": part(self.position_bias),
            "sinks": None if sinks is None else sinks[own],
            "scale": self.scale,
            "softcap": self.softcap,
        }


@contextmanager
def observing(model: torch.nn.Module, see: Callable[[Call], None]) -> Iterator[None]:
    """Let somebody see every call of attention that a model makes through the registry.

    The registry is the process's: one model is observed at a time.

    Args:
        model: as transformers loads it.
        see: called with each, in the order in which the model makes them. What it raises is raised.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    paths = {id(module): path for path, module in model.named_modules()}
    failures: list[Exception] = []

    def watch(name: str) -> Attend:
        def attend(
            module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **given: Any
        ) -> Any:
            own = sdpa_attention_forward if name == "sdpa" else _eager_of(module)
            returned = own(module, query, key, value, attention_mask, **given)
            if id(module) in paths:
                path, fused = paths[id(module)], name == "sdpa"
                try:
                    handed = (query, key, value, attention_mask)
                    see(_call(path, module, *handed, given, returned, fused=fused))
                except Exception as error:
                    failures.append(error)
                    raise
            return returned

        return attend

    try:
        for name in ("sdpa", "eager"):
            ALL_ATTENTION_FUNCTIONS[name] = watch(name)
        yield
    except Exception:
        if failures:  # a failure of who looks is not the model's, whatever it was told as
            raise failures[0] from None
        raise
    finally:
        for name in ("sdpa", "eager"):
            del ALL_ATTENTION_FUNCTIONS[name]


def _eager_of(module: torch.nn.Module) -> Attend:
    """The eager attention of the file that a module is written in."""
    file = vars(sys.modules[type(module).__module__])
    names = [name for name in file if name.endswith("eager_attention_forward")]
    return file[min(names, key=len)]


def _call(
    path: str,
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    given: dict[str, Any],
    returned: tuple[torch.Tensor, torch.Tensor | None],
    *,
    fused: bool,
) -> Call:
    """Put together what was handed over in the words of transformers."""
    scale = given.get("scaling")
    if scale is None:
        scale = query.shape[-1] ** -0.5
    causal = given.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    n_Q, n_K = query.shape[-2], key.shape[-2]
    if fused and mask is None and causal and n_Q > 1:
        mask = _causal(n_Q, n_K, query.device)
    return Call(
        path=path,
        query=query,
        key=key,
        value=value,
        mask=_additive(mask, query.dtype),
        scale=scale,
        softcap=given.get("softcap"),
        position_bias=given.get("position_bias"),
        sinks=given.get("s_aux", given.get("sinks")),
        cross=is_cross(path, module),
        output=returned[0],
        weights=returned[1],
    )


def _causal(n_Q: int, n_K: int, device: torch.device) -> torch.Tensor:
    """What `is_causal` means to the fused attention: queries and keys begin together."""
    import torch

    return torch.ones(n_Q, n_K, dtype=torch.bool, device=device).tril()


def _additive(mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """A mask as eager attention adds it: the lowest number of its dtype where a key is hidden."""
    import torch

    if mask is None or mask.dtype != torch.bool:
        return mask
    lowest = torch.finfo(dtype).min
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, lowest)


def is_cross(path: str, module: Any) -> bool:
    """Whether a module's keys are of another sequence than its queries, as far as names tell."""
    named = re.search(r"cross|encoder_attn|encdecattention", path.lower())
    return bool(named) or getattr(module, "is_cross_attention", False)
