"""Small causal models of five families with four layers, and the usual mistakes, planted into one of them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

from tests.model.run.tiny import random_weights

SIZES = {
    "vocab_size": 50,
    "hidden_size": 36,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 28,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": SIZES,
    "qwen3": SIZES,
    "mistral": SIZES | {"sliding_window": 8},
    "gpt2": {"vocab_size": 50, "n_embd": 36, "n_layer": 4, "n_head": 6, "n_positions": 128},
    "gpt_neox": SIZES | {"num_key_value_heads": 6},
    "bert": SIZES,
    "gemma3_text": SIZES
    | {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"] * 2},
}


def model(family: str, dtype: torch.dtype = torch.float32, **more: Any) -> Any:
    """A family's language model with random weights."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **FAMILIES[family] | more)
    build = AutoModelForMaskedLM if family == "bert" else AutoModelForCausalLM
    return random_weights(build.from_config(config), 0.2).to(dtype)


def layers(built: Any) -> nn.ModuleList:
    """Its layers."""
    return next(each for each in built.modules() if isinstance(each, nn.ModuleList) and len(each) == 4)


def attention(layer: Any) -> Any:
    """The attention of a layer."""
    return next(each for each in layer.children() if "Attention" in type(each).__name__)


class After(nn.Module):
    """A layer, and something wrong that happens to its output."""

    def __init__(self, layer: nn.Module, wrong: nn.Module) -> None:
        super().__init__()
        self.layer, self.wrong = layer, wrong

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("layer"), name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        out = self.layer(*args, **kwargs)
        if isinstance(out, tuple):
            return (self.wrong(out[0]), *out[1:])
        return self.wrong(out)


class Mean(nn.Module):
    """The mean over the sequence."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.mean(1, keepdim=True)
        return x + 0.1 * mean


class LookAhead(nn.Module):
    """A convolution that sees the next position."""

    def __init__(self, d: int = 36) -> None:
        super().__init__()
        self.conv = nn.Conv1d(d, d, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0.1 * self.conv(x.transpose(1, 2)).transpose(1, 2)


class Normed(nn.Module):
    """A batch norm over rows and positions."""

    def __init__(self, d: int = 36) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(d)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x.transpose(1, 2)).transpose(1, 2)


def insert(built: Any, index: int, wrong: nn.Module) -> Any:
    """Let something wrong happen after a layer."""
    own = layers(built)
    own[index] = After(own[index], wrong.to(built.dtype).eval())
    return built


def patched(module: nn.Module, change: Any) -> None:
    """Let a module's forward get other arguments: `change` maps `args, kwargs` to others."""
    kind = type(module)

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = change(args, kwargs)
        return kind.forward(self, *args, **kwargs)

    module.__class__ = type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})


def without_mask(built: Any, index: int) -> Any:
    """Drop the mask of one layer."""
    own = attention(layers(built)[index])
    own.is_causal = False
    patched(own, lambda args, kwargs: (args, kwargs | {"attention_mask": None}))
    return built


def with_mask(built: Any, index: int, changed: Any) -> Any:
    """Change the mask of one layer: `changed` maps `n_Q n_K` booleans to others."""

    def change(args: Any, kwargs: Any) -> Any:
        x = args[0] if args else kwargs["hidden_states"]
        n = x.shape[1]
        seen = changed(torch.ones(n, n, dtype=torch.bool).tril())
        return args, kwargs | {"attention_mask": seen.expand(len(x), 1, n, n)}

    patched(attention(layers(built)[index]), change)
    return built


@contextmanager
def window_ignored(family: str, kernel: str) -> Any:
    """Let one kernel of a family get a mask without its window."""
    import importlib

    from transformers import masking_utils

    module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    original = masking_utils.create_sliding_window_causal_mask

    def ignored(config: Any, *args: Any, **kwargs: Any) -> Any:
        full = config._attn_implementation == kernel
        function = masking_utils.create_causal_mask if full else original
        return function(config, *args, **kwargs)

    with patch.object(module, "create_sliding_window_causal_mask", ignored):
        yield


def padding_of_one_head(built: Any, index: int) -> Any:
    """Apply the mask of one layer to its first head only."""

    def change(args: Any, kwargs: Any) -> Any:
        mask = kwargs.get("attention_mask", args[1] if len(args) > 1 else None)
        if mask is None:
            return args, kwargs
        heads = mask.expand(-1, 6, -1, -1).clone()
        heads[:, 1:] = True if mask.dtype == torch.bool else 0
        return args[:1], kwargs | {"attention_mask": heads}

    own = attention(layers(built)[index])
    patched(getattr(own, "self", own), change)
    return built


def own_positions(built: Any) -> Any:
    """Count positions from 0 in every call, whatever padding, packed texts or the cache say."""

    def change(args: Any, kwargs: Any) -> Any:
        ids = args[0] if args else kwargs["input_ids"]
        return args, kwargs | {"position_ids": torch.arange(ids.shape[1])[None]}

    patched(built.base_model, change)
    return built


def rows_not_blocked(built: Any) -> Any:
    """Let packed texts attend to each other: positions begin again, and the mask does not know."""

    def change(args: Any, kwargs: Any) -> Any:
        ids = args[0] if args else kwargs["input_ids"]
        if kwargs.get("attention_mask") is None:
            kwargs = kwargs | {"attention_mask": torch.ones_like(ids)}
        return args, kwargs

    patched(built.base_model, change)
    return built
