"""Checkpoints whose heads do what is planted in them: weights built by hand, one number at a time.

A token's embedding says which token it is and where it stands, as two codes with a single one each. What
is written into the residual stream is written twice, with both signs: so its mean is 0, and its size is
known, and layer norms do nothing but scale.
"""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel

from tests.model.run.readers import WORDS, save_tokenizer

N_TOKEN, N_POSITION, D_HEAD, N_HEAD = len(WORDS), 24, 48, 4
TOKEN = range(N_TOKEN)
PLACE = range(N_TOKEN, N_TOKEN + N_POSITION)
BEFORE = range(N_TOKEN + N_POSITION, 2 * N_TOKEN + N_POSITION)
"""Where in the residual stream is said which token it is, where it stands, and which one is before it."""

D_FEAT = N_HEAD * D_HEAD
HALF = D_FEAT // 2
SHARP = 60.0
"""The score of what a head looks at; of all else it is 0 or less."""

GPT = {("self", 0): ["previous", "first", "same", "self"], ("self", 1): ["induction", None, None, None]}
BERT = {("self", 0): ["next", "previous", "separator", "punctuation"]}
"""What is planted in each layer's heads; None: they look at everything equally."""


class Head:
    """Matrices from codes to a head's queries and keys: `D_HEAD HALF`, and biases of `D_HEAD`."""

    def __init__(self) -> None:
        self.W_Q, self.W_K, self.W_V = (torch.zeros(D_HEAD, HALF) for _ in range(3))
        self.b_Q = torch.zeros(D_HEAD)
        self.used = 0

    def match(self, queries: range, keys: range, score: float = SHARP, shift: int = 0) -> None:
        """Give a score where the query's code, moved on by `shift`, is the key's."""
        for k in range(len(keys)):
            if 0 <= k - shift < len(queries):
                self.W_Q[self.used + k, queries[k - shift]] = score
                self.W_K[self.used + k, keys[k]] = 1
        self.used += len(keys)

    def look_at(self, keys: list[int], score: float = SHARP) -> None:
        """Give a score to keys with one of these codes, whoever asks."""
        self.b_Q[self.used] = score
        self.W_K[self.used, keys] = 1
        self.used += 1


def planted(what: str | None) -> Head:
    """A head that looks at one thing."""
    head = Head()
    if what in ("previous", "self", "next"):
        head.match(PLACE, PLACE, shift={"previous": -1, "self": 0, "next": 1}[what])
    if what == "previous":
        head.W_V[range(N_TOKEN), TOKEN] = 1  # and carries what it finds
    if what == "first":
        head.look_at([PLACE[0]])
    if what == "same":  # elsewhere: what stands here is taken away
        head.match(TOKEN, TOKEN)
        head.match(PLACE, PLACE, score=-2 * SHARP)
    if what == "induction":  # not the first token: nothing was before it
        head.match(TOKEN, BEFORE)
        head.look_at([PLACE[0]], score=-2 * SHARP)
    if what in ("separator", "punctuation"):
        head.look_at([WORDS.index("[SEP]" if what == "separator" else ".")])
    assert head.used <= D_HEAD
    return head


def signed(codes: torch.Tensor) -> torch.Tensor:
    """Codes written with both signs, along the last axis."""
    return torch.cat([codes, -codes], dim=-1)


def size(n_codes: int) -> float:
    """What a layer norm divides by, where so many codes have been written."""
    return (2 * n_codes / D_FEAT) ** 0.5


def read(codes: torch.Tensor, n_codes: int) -> torch.Tensor:
    """What reads codes out of a normed residual stream."""
    return torch.cat([codes, torch.zeros_like(codes)], dim=-1) * size(n_codes)


def projections(heads: list[Head], n_codes: int) -> tuple[torch.Tensor, ...]:
    """W_Q, W_K and W_V of a layer, `D_FEAT D_FEAT`, and b_Q; the scale 1/√d_head is made up for."""
    W_Q, W_K, W_V = (
        torch.cat([read(getattr(head, name), n_codes) for head in heads])
        for name in ("W_Q", "W_K", "W_V")
    )
    return D_HEAD**0.5 * W_Q, W_K, W_V, D_HEAD**0.5 * torch.cat([head.b_Q for head in heads])


def embed(words: torch.nn.Embedding, places: torch.nn.Embedding) -> None:
    """Write which token it is, and where it stands."""
    words.weight[:N_TOKEN] = signed(torch.eye(HALF)[list(TOKEN)])
    places.weight[:N_POSITION] = signed(torch.eye(HALF)[list(PLACE)])


def save_gpt2(folder: Path) -> None:
    """Two layers: the second finds what came after a copy, by what the first wrote down."""
    config = GPT2Config(
        vocab_size=N_TOKEN, n_positions=N_POSITION, n_embd=D_FEAT, n_layer=2, n_head=N_HEAD, n_inner=8
    )
    model = quiet(GPT2LMHeadModel(config))
    embed(model.transformer.wte, model.transformer.wpe)
    for layer, (block, names) in enumerate(zip(model.transformer.h, GPT.values(), strict=True)):
        W_Q, W_K, W_V, b_Q = projections([planted(name) for name in names], n_codes=2 + layer)
        block.attn.c_attn.weight.copy_(torch.cat([W_Q, W_K, W_V]).T)
        block.attn.c_attn.bias[:D_FEAT] = b_Q
    written = torch.eye(HALF)[list(BEFORE)]
    model.transformer.h[0].attn.c_proj.weight[:N_TOKEN] = signed(written)  # of head 0
    model.save_pretrained(folder)
    save_tokenizer(folder)


def save_bert(folder: Path) -> None:
    """One layer, whose heads see all tokens."""
    config = BertConfig(
        vocab_size=N_TOKEN,
        max_position_embeddings=N_POSITION,
        hidden_size=D_FEAT,
        num_hidden_layers=1,
        num_attention_heads=N_HEAD,
        intermediate_size=8,
    )
    model = quiet(BertModel(config))
    embed(model.embeddings.word_embeddings, model.embeddings.position_embeddings)
    own = model.encoder.layer[0].attention.self
    W_Q, W_K, W_V, b_Q = projections([planted(name) for name in BERT["self", 0]], n_codes=2)
    for module, weight in ((own.query, W_Q), (own.key, W_K), (own.value, W_V)):
        module.weight.copy_(weight)
    own.query.bias.copy_(b_Q)
    model.save_pretrained(folder)
    save_tokenizer(folder)


def quiet(model: torch.nn.Module) -> torch.nn.Module:
    """A model that does nothing yet: all weights are 0, and layer norms only norm."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(False)
        norm = "ln_" in name or "LayerNorm" in name
        parameter.fill_(1.0 if norm and name.endswith("weight") else 0.0)
    return model
