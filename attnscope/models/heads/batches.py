"""Texts as batches of tokens: as many of nearly the same length as are read at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from attnscope.attention_sinks import sink_keys
from attnscope.errors import OptionError
from attnscope.models.heads.metrics import Side
from attnscope.models.running.tokenize import count_unknown, encoded, room, tokens_of

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Encoded:
    """A text as a model reads it.

    Attributes:
        inputs: `input_ids` and its like: a number for each token.
        target: the tokens of the decoder beside an encoder, if it reads any.
        length, target_length: how many tokens text and target have; more than there are, if it was cut.
        unknown: how many of its tokens the vocabulary does not have, and among how many.
    """

    inputs: dict[str, list[int]]
    target: list[int] | None
    length: int
    target_length: int = 0
    unknown: tuple[int, int] = (0, 0)

    @property
    def cut(self) -> bool:
        """Whether the text was longer than the model takes, or its target."""
        return self.length > len(self.inputs["input_ids"]) or self.target_length > len(self.target or ())

    @property
    def n_tokens(self) -> int:
        """How many there are, the decoder's too."""
        return len(self.inputs["input_ids"]) + len(self.target or ())


@dataclass(frozen=True)
class Batch:
    """Several texts that a model reads at once, the shorter ones padded at the right.

    Attributes:
        inputs: what the model is called with, `n_batch n` each.
        source: the tokens that it reads.
        target: those of its decoder beside an encoder, if it reads any.
        texts: what it was made of.
    """

    inputs: dict[str, torch.Tensor]
    source: Side
    target: Side | None
    texts: Sequence[Encoded]

    @property
    def longest(self) -> int:
        """How many tokens its texts have, or their targets, if these are longer; padding included."""
        sides = [self.source] if self.target is None else [self.source, self.target]
        return max(side.ids.shape[1] for side in sides)

    def to(self, device: torch.device) -> Batch:
        """The same with its inputs on another device."""
        return replace(self, inputs={name: each.to(device) for name, each in self.inputs.items()})

    def first(self, n: int) -> Batch:
        """The beginning of its first text: `n` tokens at most."""
        inputs = {name: tensor[:1, :n] for name, tensor in self.inputs.items()}
        source, target = self.source.first(n), self.target and self.target.first(n)
        return Batch(inputs, source, target, self.texts[:1])


class Reader:
    """Makes batches of texts, for one model.

    Args:
        model: which reads them.
        tokenizer: its own.
        longest: texts are cut to so many tokens; None: to those that the model takes.

    Raises:
        OptionError: a text would have none.
    """

    def __init__(self, model: Any, tokenizer: Any, longest: int | None = None) -> None:
        self.model, self.tokenizer = model, tokenizer
        added = tokenizer.num_special_tokens_to_add()
        if longest is not None and longest <= added:
            raise OptionError(
                f"--max-length is {longest}, and the tokenizer adds {added} tokens to every text.",
                hint=f"--max-length {added + 1}, or more",
            )
        limits = [limit for limit in (room(model.config), longest) if limit is not None]
        self.limit = min(limits, default=None)
        self._kinds: dict[int, tuple[bool, bool, bool]] = {}

    def read(self, texts: Sequence[str], targets: Sequence[str] | None = None) -> list[Encoded]:
        """Tokens of texts; of those that have none, nothing.

        Args:
            texts: what the model reads.
            targets: what its decoder beside an encoder reads, one for each.
        """
        if not texts:
            return []
        encoding, lengths = self._encode(list(texts))
        read: list[Any] = [None] * len(texts)
        target_lengths = [0] * len(texts)
        if targets is not None:
            read, target_lengths = self._targets(list(targets))
        names = [name for name in self.tokenizer.model_input_names if name in encoding]
        made = []
        for i, target in enumerate(read):
            inputs = {name: encoding[name][i] for name in names}
            if not all(map(self._is_special, inputs["input_ids"])):
                unknown = count_unknown(self.tokenizer, [*inputs["input_ids"], *(target or [])])
                made.append(Encoded(inputs, target, lengths[i], target_lengths[i], unknown))
        return made

    def read_ids(self, ids: list[int], targets: Sequence[str] | None = None) -> Encoded:
        """What is given as token ids, with what the decoder beside an encoder reads, as texts."""
        target, target_length = None, 0
        if targets is not None:
            [target], [target_length] = self._targets(list(targets))
        return Encoded({"input_ids": ids[: self.limit]}, target, len(ids), target_length)

    def batches(self, texts: Sequence[Encoded], tokens: int) -> Iterator[Batch]:
        """Batches of texts, of neighbours in length; the shortest first.

        Args:
            texts: a window of a corpus.
            tokens: how many tokens a batch may have at most, padding included; one text may have more.
        """
        texts = sorted(texts, key=lambda text: text.n_tokens)
        batch: list[Encoded] = []
        for text in texts:
            if batch and (not self._pads or _padded_size([*batch, text]) > tokens):
                yield self.batch(batch)
                batch = []
            batch.append(text)
        if batch:
            yield self.batch(batch)

    def batch(self, texts: Sequence[Encoded]) -> Batch:
        """One batch of texts."""
        names = texts[0].inputs
        padding = {"input_ids": self._pad_id, "attention_mask": 0}
        inputs = {
            name: _padded([text.inputs[name] for text in texts], padding.get(name, 0)) for name in names
        }
        source = self._side([text.inputs["input_ids"] for text in texts])
        if len(texts) > 1:
            inputs["attention_mask"] = source.real.long()
        if texts[0].target is None:
            return Batch(inputs, source, None, texts)
        targets = [text.target or [] for text in texts]
        target = self._side(targets)
        inputs["decoder_input_ids"] = _padded(targets, self._pad_id)
        if len(texts) > 1:
            inputs["decoder_attention_mask"] = target.real.long()
        return Batch(inputs, source, target, texts)

    @property
    def _pad_id(self) -> int:
        """What stands where nothing is: hidden from all that is read."""
        return self.tokenizer.pad_token_id or 0

    @cached_property
    def _pads(self) -> bool:
        """Whether the model can be told what is padding."""
        from inspect import signature

        return "attention_mask" in signature(self.model.forward).parameters

    def _encode(self, texts: list[str], *, target: bool = False) -> tuple[Any, list[int]]:
        """The tokens of texts, no more than the model takes; and how many there would be."""
        given = {"text_target": texts} if target else {"text": texts}
        encoding = encoded(self.tokenizer, given, verbose=False)
        lengths = [len(ids) for ids in encoding["input_ids"]]
        if self.limit is None or max(lengths, default=0) <= self.limit:
            return encoding, lengths
        return self.tokenizer(**given, truncation=True, max_length=self.limit), lengths

    def _targets(self, texts: list[str]) -> tuple[list[Any], list[int]]:
        """What a decoder reads of these texts, moved to the right; and how many tokens they have."""
        from attnscope.models.running.decode import shifted

        encoding, lengths = self._encode(texts, target=True)
        return [shifted(self.model, ids) for ids in encoding["input_ids"]], lengths

    def _side(self, ids: list[list[int]]) -> Side:
        """What is known of these tokens."""
        import torch

        kinds = [[self._kind(number) for number in of_text] for of_text in ids]
        special, separator, punctuation = (
            _padded([[kind[k] for kind in of_text] for of_text in kinds], 0).bool() for k in range(3)
        )
        real = _padded([[1] * len(of_text) for of_text in ids], 0).bool()
        sink = _padded([sink_keys(kind[0] for kind in of_text) for of_text in kinds], 0).bool()
        of_ids = _padded(ids, -1).to(torch.int32)
        return Side(of_ids, real, special, separator, punctuation, sink)

    def _is_special(self, number: int) -> bool:
        return self._kind(number)[0]

    def _kind(self, number: int) -> tuple[bool, bool, bool]:
        """Whether a token is special, ends a text, and is of nothing but punctuation."""
        if number not in self._kinds:
            [token] = tokens_of(self.tokenizer, [number])
            ends = {self.tokenizer.sep_token_id, self.tokenizer.eos_token_id}
            punctuation = not token.special and is_punctuation(token.text)
            self._kinds[number] = (token.special, token.special and number in ends, punctuation)
        return self._kinds[number]


def _padded_size(texts: Sequence[Encoded]) -> int:
    """How many tokens a batch has, padding included."""
    longest = max(len(text.inputs["input_ids"]) for text in texts)
    return len(texts) * (longest + max(len(text.target or ()) for text in texts))


def is_punctuation(text: str) -> bool:
    """Whether a token is of nothing but punctuation.

    Source: the general category P of The Unicode Standard, section 4.5.

    >>> is_punctuation(" ,"), is_punctuation("##)"), is_punctuation("a."), is_punctuation(" ")
    (True, True, False, False)
    """
    from unicodedata import category

    letters = (text.removeprefix("##") or text).strip()
    return bool(letters) and all(category(letter).startswith("P") for letter in letters)


def _padded(rows: Sequence[Sequence[int]], padding: int) -> torch.Tensor:
    """Rows of unequal lengths as a tensor, filled up at the right."""
    import torch

    longest = max(map(len, rows))
    return torch.tensor([[*row, *[padding] * (longest - len(row))] for row in rows])
