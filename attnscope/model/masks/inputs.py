"""Several texts for a model: padded to a batch, or packed into one row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from inspect import signature
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import OptionError
from attnscope.base.spelling import spelled
from attnscope.model.run.load import class_of, load_tokenizer
from attnscope.model.run.tokenize import Reading, first_position, patches, read_text, tokens_of
from attnscope.model.run.tokens import Picture, Token

if TYPE_CHECKING:
    from attnscope.model.files.checkpoint import Checkpoint


@dataclass
class MaskedBatch:
    """The inputs of a model, and the tokens of each row."""

    inputs: dict[str, Any]
    #: the tokens of each row of texts; of an image they are known when the model has run.
    sources: list[list[Token]]
    #: the tokens of the decoder in each row; empty: it does not run.
    target: list[list[Token]] = field(default_factory=list)
    picture: Picture | None = None
    most_added: int = 0
    notices: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, reading: Reading) -> MaskedBatch:
        """Return a batch of one text or image."""
        target = [reading.target] if reading.target else []
        rows = [] if reading.picture else [reading.source]
        return cls(reading.inputs, rows, target, reading.picture, reading.most_added, reading.notices)

    def tokens(self, stack: str, which: str, n: int) -> list[list[Token]] | None:
        """Return the tokens of a stack's queries (`Q`) or keys (`K`).

        Returns:
            A list for each row; None if there are not `n` of them: the model adds or merges some.
        """
        rows = self.sources
        if stack == "decoder" or (stack == "cross" and which == "Q"):
            rows = self.target
        elif self.picture is not None:
            first = n - self.picture.rows * self.picture.columns
            fits = 0 <= first <= self.most_added
            rows = [patches(self.picture, n, self.most_added)] if fits else []
        return rows if rows and all(len(row) == n for row in rows) else None


def read_texts(
    checkpoint: Checkpoint, config: Any, texts: Sequence[str], *, packed: bool, truncate: bool
) -> MaskedBatch:
    """Tokenize several texts.

    Args:
        packed: whether they share one row, where positions begin again with each text, and there is no
            `attention_mask`; otherwise shorter texts are padded, on the side that the tokenizer says.
    """
    tokenizer = load_tokenizer(checkpoint)
    readings = [
        read_text(checkpoint, config, text, truncate=truncate, tokenizer=tokenizer) for text in texts
    ]
    notices = list(dict.fromkeys(notice for reading in readings for notice in reading.notices))
    if packed:
        return _packed(checkpoint, config, readings, notices)
    lengths = [len(reading.source) for reading in readings]
    longest, pad = max(lengths), tokenizer.pad_token_id
    pad = pad if pad is not None else tokenizer.eos_token_id or 0
    left = tokenizer.padding_side == "left"
    padding = {"input_ids": pad}
    inputs = {
        name: _padded([each.inputs[name] for each in readings], padding.get(name, 0), longest, left=left)
        for name in readings[0].inputs
    }
    ones = [each.inputs["input_ids"].new_ones(1, len(each.source)) for each in readings]
    inputs["attention_mask"] = _padded(ones, 0, longest, left=left)
    [token] = tokens_of(tokenizer, [pad])
    sources = []
    for reading, length in zip(readings, lengths, strict=True):
        added = [Token(token.text, special=True)] * (longest - length)
        sources.append(added + reading.source if left else reading.source + added)
    return MaskedBatch(inputs, sources, notices=notices)


def _padded(rows: Sequence[Any], value: int, longest: int, *, left: bool) -> Any:
    """Pad tensors, `1 n` each, and return them as `n_batch longest`."""
    import torch

    added = [row.new_full((1, longest - row.shape[1]), value) for row in rows]
    pairs = zip(added, rows, strict=True) if left else zip(rows, added, strict=True)
    return torch.cat([torch.cat(pair, 1) for pair in pairs])


def _packed(
    checkpoint: Checkpoint, config: Any, readings: Sequence[Reading], notices: list[str]
) -> MaskedBatch:
    """Put texts into one row."""
    import torch

    parameters = signature(class_of(config).forward).parameters
    if "position_ids" not in parameters:
        raise OptionError(
            f"{checkpoint.name} ({config.model_type}) takes no position_ids, which tell packed texts"
            " apart.",
            hint=f"without {spelled(packed=True)}, for a batch",
        )
    names = [name for name in readings[0].inputs if name != "attention_mask"]
    inputs = {name: torch.cat([each.inputs[name] for each in readings], 1) for name in names}
    first = first_position(config)
    positions = [torch.arange(len(each.source)) + first for each in readings]
    inputs["position_ids"] = torch.cat(positions)[None]
    longest = sum(map(len, positions))
    notices = [
        *notices,
        f"packed: {len(readings)} texts share a row of {longest} tokens, without padding mask",
    ]
    return MaskedBatch(inputs, [[token for each in readings for token in each.source]], notices=notices)
