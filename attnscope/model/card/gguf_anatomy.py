"""The anatomy of a model's attention by the header of its GGUF file: metadata and tensors.

Source: the keys are those of https://github.com/ggml-org/ggml/blob/master/docs/gguf.md and of
`gguf.constants.Keys`; what the header leaves open is as llama.cpp has it (src/llama-hparams.cpp).
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

from attnscope.base.errors import ModelError
from attnscope.base.text import printable, shortened
from attnscope.model.card.anatomy import LayerAnatomy, LayerCache, ModelAnatomy
from attnscope.model.card.llama_cpp import Windows, find_windows
from attnscope.model.families.table import architecture_of
from attnscope.model.files.headers import Headers

LARGEST = 10**9
MOST_LAYERS = 10**4


class _Metadata:
    """The metadata of a file, read by keys without the architecture."""

    def __init__(self, headers: Headers) -> None:
        self.name, self.all = headers.name, headers.metadata
        arch = self.all.get("general.architecture")
        if not isinstance(arch, str) or not arch:
            raise ModelError(f"{self.name} does not say its architecture (general.architecture).")
        self.arch = arch
        self.n_layer = self.size("block_count")
        if not 1 <= self.n_layer <= MOST_LAYERS:
            raise self.damaged("block_count")

    def value(self, key: str) -> Any:
        """Return a value; None if there is none."""
        return self.all.get(f"{self.arch}.{key}")

    def size(self, key: str, default: int | None = None) -> int:
        """Return a size."""
        found = self.value(key)
        found = default if found is None else found
        if type(found) is not int or not 0 <= found <= LARGEST:
            raise self.damaged(key)
        return found

    def sizes(self, key: str, default: list[int] | None = None) -> list[int]:
        """Return a size for each layer: the file has one for each, or one for all."""
        found = self.value(key)
        if found is None and default is not None:
            return default
        sizes = found if isinstance(found, list) else [found] * self.n_layer
        if len(sizes) < self.n_layer or any(type(n) is not int or not 0 <= n <= LARGEST for n in sizes):
            raise self.damaged(key)
        return sizes

    def number(self, key: str) -> float | None:
        """Return a number; None if there is none."""
        found = self.value(key)
        return float(found) if type(found) in (int, float) else None

    def damaged(self, key: str) -> ModelError:
        """Return the error for a value that cannot be right."""
        found = self.value(key)
        shown = "missing" if found is None else printable(shortened(repr(found)))
        return ModelError(f"{self.name} does not describe its attention: {self.arch}.{key} is {shown}.")


def anatomy_of_gguf(headers: Headers) -> ModelAnatomy:
    """Return the anatomy of a model's attention by the header of its GGUF file."""
    data = _Metadata(headers)
    names: dict[int, set[str]] = defaultdict(set)  # of the tensors of each layer
    for tensor in headers.tensors:
        if found := re.fullmatch(r"blk\.(\d{1,6})\.(.*?)(\.weight)?", tensor.name):
            names[int(found[1])].add(found[2])
    if any(each.name.startswith(("dec.", "enc.")) for each in headers.tensors):
        raise ModelError(
            f"{data.name} has an encoder or a decoder ({data.arch}): attnscope reads GGUF files of"
            " decoders alone.",
            hint="the folder or the name on the hub that it was made from",
        )
    n_draft = data.size("nextn_predict_layers", 0)
    n_layer = data.n_layer - n_draft if 0 < n_draft < data.n_layer else data.n_layer
    windows = find_windows(data.arch, data.value, n_layer)
    layers = tuple(_layer(data, i, names[i], windows, n_layer) for i in range(n_layer))
    longest = data.value("context_length")
    return ModelAnatomy(
        model_type=data.arch,
        n_layer=n_layer,
        d_feat=data.size("embedding_length"),
        layers=layers,
        longest=longest if type(longest) is int and longest > 0 else None,
        uncertain=(windows.uncertain,) if windows.uncertain else (),
        is_gguf=True,
    )


def _layer(data: _Metadata, i: int, names: set[str], windows: Windows, n_layer: int) -> LayerAnatomy:
    """Return the anatomy of a layer."""
    constant = _state(data, names)
    n_head = data.sizes("attention.head_count", [0] * data.n_layer)[i]
    n_kv_head = data.sizes("attention.head_count_kv", [n_head] * data.n_layer)[i]
    if not _attends(names) or not n_head or not n_kv_head:
        if not constant:
            return LayerAnatomy("none")
        return LayerAnatomy(_recurrence(data, names), cache=LayerCache(constant_float32=constant))
    extras = _extras(data, names)
    if "attn_kv_a_mqa" in names:
        return _latent(data, n_head, extras)
    window = windows.size if windows.layers[i] else None
    swa = "_swa" if window and data.value("attention.key_length_swa") else ""
    default = data.size("embedding_length") // n_head
    d_K = data.size(f"attention.key_length{swa}", default)
    d_V = data.size(f"attention.value_length{swa}", default)
    n_shared = data.value("attention.shared_kv_layers")
    first_shared = architecture_of(data.arch).first_shared or n_layer
    if type(n_shared) is int and 0 < n_shared < n_layer:
        first_shared = n_layer - n_shared
    kept = 0 if data.value("attention.causal") is False else n_kv_head * (d_K + d_V)
    cache = LayerCache(kept, window, window and window - 1, constant_float32=constant)
    kind = windows.kind if window else "full"
    kind = f"{kind} + {_recurrence(data, names)}" if constant else kind
    return LayerAnatomy(
        kind="shared" if i >= first_shared else kind,
        n_head=n_head,
        n_kv_head=n_kv_head,
        d_K=d_K,
        d_V=d_V,
        window=window,
        rope_theta=_theta(data, window is not None),
        rope_scaling=_scaling(data),
        extras=extras,
        cache=LayerCache() if i >= first_shared else cache,
    )


def _attends(names: set[str]) -> bool:
    """Check whether a layer has keys; the fused matrix of a layer without W_O is linear attention's."""
    fused = "attn_qkv" in names and "attn_output" in names
    return fused or not names.isdisjoint(("attn_k", "attn_kv_a_mqa", "attn_k_b"))


def _latent(data: _Metadata, n_head: int, extras: tuple[str, ...]) -> LayerAnatomy:
    """Return the anatomy of a layer of DeepSeek's latent attention.

    Newer files describe what llama.cpp caches, one head of latents, and have the heads' own widths under
    other keys.
    """
    mla = "_mla" if data.value("attention.key_length_mla") else ""
    latent, rotary = data.size("attention.kv_lora_rank"), data.size("rope.dimension_count")
    indexer = data.size("attention.indexer.key_length", 0) if "indexer" in extras else 0
    return LayerAnatomy(
        kind="sparse" if indexer else "latent",
        n_head=n_head,
        n_kv_head=n_head,
        d_K=data.size(f"attention.key_length{mla}"),
        d_V=data.size(f"attention.value_length{mla}"),
        rope_theta=_theta(data, False),
        rope_scaling=_scaling(data),
        extras=(*extras, f"latent of {latent} + {rotary}"),
        cache=LayerCache(latent + rotary + indexer),
        d_K_latent=latent + rotary,
        d_V_latent=latent,
    )


def _recurrence(data: _Metadata, names: set[str]) -> str:
    """Return the kind of a layer that keeps a state."""
    if any(name.startswith("shortconv.") for name in names):
        return "convolution"
    return "linear" if architecture_of(data.arch).linear else "state space"


def _state(data: _Metadata, names: set[str]) -> int:
    """Count the numbers that a layer's recurrence keeps: `n_embd_r` and `n_embd_s` of llama.cpp."""
    if any(name.startswith("time_mix_") for name in names):
        width = data.size("embedding_length")
        return width * (data.size("token_shift_count", 2) + data.size("wkv.head_size"))
    if any(name.startswith("shortconv.") for name in names):
        return data.size("embedding_length") * (data.size("shortconv.l_cache") - 1)
    if not any(name.startswith("ssm_") for name in names):
        return 0
    if data.value("kda.head_dim"):
        d_head, n_head = data.size("kda.head_dim"), max(data.sizes("attention.head_count"))
        return n_head * d_head * (3 * (data.size("ssm.conv_kernel") - 1) + d_head)
    d_inner, d_state = data.size("ssm.inner_size"), data.size("ssm.state_size")
    channels = d_inner + 2 * data.size("ssm.group_count", 0) * d_state
    return max(0, data.size("ssm.conv_kernel") - 1) * channels + d_state * d_inner


def _extras(data: _Metadata, names: set[str]) -> tuple[str, ...]:
    """List what a layer's attention computes beside its formula."""
    cap = data.number("attn_logit_softcapping")
    biases = {f"attn_{part}.bias" for part in ("q", "k", "v", "qkv", "output")}
    found = {
        "q/k norm": "attn_q_norm" in names,
        f"soft cap {cap or 0:g}": bool(cap),
        "sinks": "attn_sinks" in names,
        "biases": not names.isdisjoint(biases),
        "indexer": any(name.startswith("indexer") for name in names),
    }
    return tuple(extra for extra, there in found.items() if there)


def _theta(data: _Metadata, windowed: bool) -> float | None:
    """Return the base of rotary positions; None if the file has none."""
    theta = data.number("rope.freq_base")
    if not windowed:
        return theta
    return data.number("rope.freq_base_swa") or architecture_of(data.arch).theta_of_windows or theta


def _scaling(data: _Metadata) -> str | None:
    kind, factor = data.value("rope.scaling.type"), data.number("rope.scaling.factor")
    if not isinstance(kind, str) or kind == "none":
        return None
    return f"{printable(shortened(kind))} {factor:g}" if factor else printable(shortened(kind))
