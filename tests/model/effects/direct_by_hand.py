"""What each part of a model adds to a logit through the residual stream alone, worked out by hand.

The stream before the final norm is a sum of vectors: embeddings, and for each layer, its heads'
z_h W_O^h, the bias of W_O and what the MLP returns. A norm that follows multiplies each of them by the
same numbers. The modules on the way are named for each family.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from tests.model.effects.oracles import Head, Oracle, Question

Vector = torch.Tensor
Map = Callable[[Vector], Vector]
"""A linear map of vectors, `… d_feat`."""


@dataclass(frozen=True)
class Norm:
    """A norm.

    Attributes:
        path: the module.
        centred: whether the mean is subtracted.
        one: what is added to its weight.
        epsilon: what is added to the variance.
    """

    path: str
    centred: bool = False
    one: float = 0.0
    epsilon: float = 1e-6

    def frozen(self, model: Any, x: Vector) -> Map:
        """The norm's linear part, with the scale that it has for one vector."""
        weight = model.get_submodule(self.path).weight + self.one
        middle = x - x.mean() if self.centred else x
        scale = 1 / (middle.square().mean() + self.epsilon).sqrt()
        return lambda part: (
            (part - part.mean(-1, keepdim=True) if self.centred else part) * scale * weight
        )

    def bias(self, model: Any) -> Vector | None:
        return getattr(model.get_submodule(self.path), "bias", None)


@dataclass(frozen=True)
class Stream:
    """The residual stream of a family, by the names of its modules.

    Attributes:
        embeddings: modules whose outputs are added first.
        mlp: the module of a layer's MLP.
        norm: the final norm.
        head: the module of W_U.
        n_layer: the number of layers.
        factor: by which what a block returns is multiplied.
        embedding_factor, logits_factor: the same of embeddings and logits.
        after_attention, after_mlp: norms of what a block returns.
    """

    embeddings: tuple[str, ...]
    mlp: str
    norm: Norm
    head: str = "lm_head"
    n_layer: int = 2
    factor: float = 1.0
    embedding_factor: float = 1.0
    logits_factor: float = 1.0
    after_attention: Norm | None = None
    after_mlp: Norm | None = None


def of_llama(norm: str = "norm", *after: str, **of_norm: Any) -> Stream:
    """The stream of Llama, and of what followed it.

    Args:
        norm: the final norm.
        after: the norms of what attention and the MLP return, if they have some.
        of_norm: as in `Norm`, of all of these.
    """
    norms = [Norm(f"model.layers.{{}}.{name}", **of_norm) for name in after]
    names = dict(zip(("after_attention", "after_mlp"), norms, strict=False))
    final = Norm(f"model.{norm}", **of_norm)
    return Stream(("model.embed_tokens",), "model.layers.{}.mlp", final, **names)


AFTER = ("post_attention_layernorm", "post_feedforward_layernorm")
CENTRED: dict[str, Any] = {"centred": True, "epsilon": 1e-5}
PLAIN, GEMMA = of_llama(), of_llama("norm", *AFTER, one=1.0)
COHERE = replace(of_llama(**CENTRED), logits_factor=0.0625)
GPT_2 = Stream(
    ("transformer.wte", "transformer.wpe"), "transformer.h.{}.mlp", Norm("transformer.ln_f", **CENTRED)
)
GPT_NEOX = Stream(
    ("gpt_neox.embed_in",), "gpt_neox.layers.{}.mlp", Norm("gpt_neox.final_layer_norm", **CENTRED)
)
STREAMS = {
    "gpt2": GPT_2,
    "gpt_bigcode": GPT_2,
    "llama": PLAIN,
    "gemma2": GEMMA,
    "gemma3_text": GEMMA,
    "gpt_neox": GPT_NEOX,
    "gpt_neox serial": GPT_NEOX,
    "granite": replace(PLAIN, factor=0.3, embedding_factor=2.0, logits_factor=1 / 1.5),
    "opt": Stream(
        ("model.decoder.embed_tokens", "model.decoder.embed_positions"),
        "model.decoder.layers.{}.fc2",
        Norm("model.decoder.final_layer_norm", **CENTRED),
    ),
    "phi": of_llama("final_layernorm", **CENTRED),
    "t5": Stream(
        ("decoder.embed_tokens",),
        "decoder.block.{}.layer.2.DenseReluDense",
        Norm("decoder.final_layer_norm"),
        n_layer=4,
        logits_factor=20**-0.5,  # √d_feat, where embeddings and W_U are the same
    ),
    "cohere": COHERE,
    "cohere2": COHERE,
    **dict.fromkeys("mistral qwen2 qwen3 smollm3 seed_oss cwm hunyuan_v1_dense arcee".split(), PLAIN),
    **dict.fromkeys("qwen3_moe deepseek_v3".split(), PLAIN),
    **dict.fromkeys("mixtral phi3 gpt_oss".split(), of_llama(epsilon=1e-5)),
    "gemma": of_llama(one=1.0),
    **dict.fromkeys("olmo2 exaone4".split(), of_llama("norm", *AFTER, epsilon=1e-5)),
    "glm4": of_llama("norm", "post_self_attn_layernorm", "post_mlp_layernorm", epsilon=1.5625e-07),
    "stablelm": of_llama(**CENTRED),
    "nemotron": of_llama(one=1.0, **CENTRED),
}
"""By the family."""


@dataclass(frozen=True)
class Direct:
    """What parts of a model add to a logit.

    Attributes:
        heads: by the head.
        parts: everything else: `embeddings`, `MLP 0` and so on, `biases`.
        logit: what they sum to, before a final soft cap.
    """

    heads: dict[Head, float]
    parts: dict[str, float]
    logit: float


class Watched:
    """What each named module reads and returns at one position, while the model runs."""

    def __init__(self, oracle: Oracle, question: Question, names: list[str]) -> None:
        self.read: dict[str, Vector] = {}
        self.returned: dict[str, Vector] = {}
        handles = [
            oracle.model.get_submodule(name).register_forward_hook(self._keep(name, question.position))
            for name in names
        ]
        with torch.no_grad():
            oracle.logits(question)
        for handle in handles:
            handle.remove()

    def _keep(self, name: str, position: int) -> Any:
        def keep(module: Any, arguments: tuple[Any, ...], output: Any) -> None:
            states = output[0] if isinstance(output, tuple) else output
            states = states.reshape(-1, states.shape[-1])  # of a single sequence
            self.returned[name] = states[position]
            if arguments and arguments[0].is_floating_point():
                self.read[name] = arguments[0].reshape(-1, arguments[0].shape[-1])[position]

        return keep


def direct_by_hand(oracle: Oracle, name: str, question: Question) -> Direct:
    """Multiply what each part writes into the residual stream by the way from there to the logit."""
    model, stream = oracle.model, STREAMS[name]
    layers = range(stream.n_layer)
    stacks = [each for each in oracle.family.stacks if each != "encoder"]
    projection = {
        (s, layer): oracle.stack(s).projection.format(layer) for s in stacks for layer in layers
    }
    mlps = [stream.mlp.format(layer) for layer in layers]
    after = [
        each.path.format(layer)
        for each in (stream.after_attention, stream.after_mlp)
        if each is not None
        for layer in layers
    ]
    seen = Watched(
        oracle,
        question,
        [*stream.embeddings, *projection.values(), *mlps, *after, stream.norm.path, stream.head],
    )
    final = stream.norm.frozen(model, seen.read[stream.norm.path])
    W_U = model.get_submodule(stream.head).weight * stream.logits_factor
    b_U = getattr(model.get_submodule(stream.head), "bias", None)
    answer = torch.zeros(len(W_U), dtype=W_U.dtype)
    answer[question.answer[0]] = 1
    if question.against is not None:
        answer[question.against] = -1

    def logit(written: Vector) -> Vector:
        return final(written) @ W_U.T @ answer

    def block(norm: Norm | None, layer: int) -> Map:
        """The way from what a block returns to the residual stream."""
        if norm is None:
            return lambda part: part * stream.factor
        norm = Norm(norm.path.format(layer), norm.centred, norm.one, norm.epsilon)
        return norm.frozen(model, seen.read[norm.path])

    heads: dict[Head, float] = {}
    parts = {
        "embeddings": float(
            logit(sum(seen.returned[each] for each in stream.embeddings) * stream.embedding_factor)
        )
    }
    biases = 0.0
    for (stack, layer), path in projection.items():
        module, z = model.get_submodule(path), seen.read[path]
        W_O = module.weight if type(module).__name__ == "Conv1D" else module.weight.T
        way = block(stream.after_attention, layer)
        for number in range(oracle.stack(stack).n_head):
            part = oracle.part((stack, layer, number), z)
            heads[stack, layer, number] = float(logit(way(z[part] @ W_O[part])))
        if getattr(module, "bias", None) is not None:
            biases += float(logit(way(module.bias)))
    for layer, path in enumerate(mlps):
        parts[f"MLP {layer}"] = float(logit(block(stream.after_mlp, layer)(seen.returned[path])))
    beta = stream.norm.bias(model)
    biases += 0.0 if beta is None else float(beta @ W_U.T @ answer)
    biases += 0.0 if b_U is None else float(b_U @ answer) * stream.logits_factor
    parts["biases"] = biases
    uncapped = seen.returned[stream.head] * stream.logits_factor
    if name == "t5":  # there, the states are scaled before W_U
        uncapped = seen.returned[stream.head]
    return Direct(heads, parts, float(uncapped @ answer))
