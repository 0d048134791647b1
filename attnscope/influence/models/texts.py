"""The texts that a model reads in an audit: given or random, and the same with some tokens changed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


class Texts:
    """Draw token ids that are words: neither padding nor special.

    Args:
        config: the model's configuration, which has the size of the vocabulary.
        special: further ids to avoid, such as those of the tokenizer.
        seed: of all draws.
    """

    def __init__(self, config: Any, special: Iterable[int] = (), seed: int = 0) -> None:
        text = config.get_text_config()
        n_vocab = int(text.vocab_size)
        avoided = {int(each) for each in special if each is not None} | {0}
        for part in (config, text):
            for name, value in vars(part).items():
                if name.endswith(("_token_id", "_token_index")):
                    avoided |= set(value if isinstance(value, list) else [value]) - {None}
        pool = [each for each in range(n_vocab) if each not in avoided]
        self.pool = torch.tensor(pool or range(n_vocab))
        pads = [getattr(text, name, None) for name in ("pad_token_id", "eos_token_id")]
        self.pad = next((each for each in pads if isinstance(each, int) and 0 <= each < n_vocab), 0)
        self.generator = torch.Generator().manual_seed(seed)

    def drawn(self, n: int) -> torch.Tensor:
        """Return random ids: `1 n`."""
        return self.pool[torch.randint(len(self.pool), (1, n), generator=self.generator)]

    def changed(self, ids: torch.Tensor, positions: slice | int) -> torch.Tensor:
        """Return ids that differ at every one of some positions, and at no other."""
        result = ids.clone()
        part = slice(positions, positions + 1) if isinstance(positions, int) else positions
        old = result[:, part]
        index = torch.randint(len(self.pool), old.shape, generator=self.generator)
        new = self.pool[index]
        result[:, part] = torch.where(new == old, self.pool[(index + 1) % len(self.pool)], new)
        return result
