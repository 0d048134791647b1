"""Tokenize texts, and batch those of similar length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import OptionError
from attnscope.base.spelling import spelled
from attnscope.document.grid.sinks import sink_keys
from attnscope.model.heads.metrics import AxisTokens
from attnscope.model.run.tokenize import count_unknown, encoded, max_tokens, tokens_of

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Encoded:
    """A tokenized text."""

    inputs: dict[str, list[int]]  #: `input_ids` and the like: a number for each token
    target: list[int] | None  #: the token ids of the decoder of an encoder-decoder model, if any
    #: length, target_length: the numbers of tokens of text and target before truncation
    length: int
    target_length: int = 0
    #: the number of unknown tokens, and of all tokens except special ones
    unknown: tuple[int, int] = (0, 0)

    @property
    def cut(self) -> bool:
        """Whether the text or its target was truncated."""
        return self.length > len(self.inputs["input_ids"]) or self.target_length > len(self.target or ())

    @property
    def n_tokens(self) -> int:
        """The number of tokens, including the decoder's."""
        return len(self.inputs["input_ids"]) + len(self.target or ())


@dataclass(frozen=True)
class TextBatch:
    """A batch of texts, the shorter ones padded at the right."""

    inputs: dict[str, torch.Tensor]  #: the arguments of the model, `n_batch n` each
    source: AxisTokens  #: the tokens of the model, or of its encoder
    target: AxisTokens | None  #: the tokens of the decoder of an encoder-decoder model, if any
    texts: Sequence[Encoded]

    @property
    def longest(self) -> int:
        """The length of the texts, or of their targets if these are longer, including padding."""
        sides = [self.source] if self.target is None else [self.source, self.target]
        return max(side.ids.shape[1] for side in sides)

    def to(self, device: torch.device) -> TextBatch:
        """Move the inputs to another device."""
        return replace(self, inputs={name: each.to(device) for name, each in self.inputs.items()})

    def first(self, n: int) -> TextBatch:
        """Return the beginning of the first text: at most `n` tokens."""
        inputs = {name: tensor[:1, :n] for name, tensor in self.inputs.items()}
        source, target = self.source.first(n), self.target and self.target.first(n)
        return TextBatch(inputs, source, target, self.texts[:1])


class Reader:
    """Tokenize and batch texts for a model; without a tokenizer, texts are ids, and none is special."""

    def __init__(self, model: Any, tokenizer: Any, longest: int | None = None) -> None:
        self.model, self.tokenizer = model, tokenizer
        added = 0 if tokenizer is None else tokenizer.num_special_tokens_to_add()
        if longest is not None and longest <= added:
            raise OptionError(
                f"{spelled('max_length')} is {longest}, but the tokenizer adds {added} tokens to"
                " every text.",
                hint=f"{spelled(max_length=added + 1)}, or more",
            )
        limits = [limit for limit in (max_tokens(model.config), longest) if limit is not None]
        self.limit = min(limits, default=None)
        self._kinds: dict[int, tuple[bool, bool, bool]] = {}

    def read(self, texts: Sequence[str], targets: Sequence[str] | None = None) -> list[Encoded]:
        """Tokenize texts, and leave out those without tokens."""
        if not texts:
            return []
        encoding, lengths = self._encode(list(texts))
        target_ids: list[Any] = [None] * len(texts)
        target_lengths = [0] * len(texts)
        if targets is not None:
            target_ids, target_lengths = self._targets(list(targets))
        names = [name for name in self.tokenizer.model_input_names if name in encoding]
        tokenized = []
        for i, target in enumerate(target_ids):
            inputs = {name: encoding[name][i] for name in names}
            if not all(self._kind(number)[0] for number in inputs["input_ids"]):
                unknown = count_unknown(self.tokenizer, [*inputs["input_ids"], *(target or [])])
                tokenized.append(Encoded(inputs, target, lengths[i], target_lengths[i], unknown))
        return tokenized

    def read_ids(self, ids: list[int], targets: Sequence[str] | None = None) -> Encoded:
        """Return token ids as an encoded text, and tokenize the decoder's target."""
        target, target_length = None, 0
        if targets is not None:
            [target], [target_length] = self._targets(list(targets))
        return Encoded({"input_ids": ids[: self.limit]}, target, len(ids), target_length)

    def batches(self, texts: Sequence[Encoded], tokens: int) -> Iterator[TextBatch]:
        """Yield batches of texts of similar length, the shortest first.

        A batch has at most so many tokens, including padding; a single text may have more.
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

    def batch(self, texts: Sequence[Encoded]) -> TextBatch:
        """Return a batch of texts."""
        names = texts[0].inputs
        padding = {"input_ids": self._pad_id, "attention_mask": 0}
        inputs = {
            name: _padded([text.inputs[name] for text in texts], padding.get(name, 0)) for name in names
        }
        source = self._side([text.inputs["input_ids"] for text in texts])
        if len(texts) > 1:
            inputs["attention_mask"] = source.real.long()
        if texts[0].target is None:
            return TextBatch(inputs, source, None, texts)
        targets = [text.target or [] for text in texts]
        target = self._side(targets)
        inputs["decoder_input_ids"] = _padded(targets, self._pad_id)
        if len(texts) > 1:
            inputs["decoder_attention_mask"] = target.real.long()
        return TextBatch(inputs, source, target, texts)

    @property
    def _pad_id(self) -> int:
        """The token id of padding, which is masked."""
        return 0 if self.tokenizer is None else self.tokenizer.pad_token_id or 0

    @cached_property
    def _pads(self) -> bool:
        """Whether the model takes a padding mask."""
        from inspect import signature

        return "attention_mask" in signature(self.model.forward).parameters

    def _encode(self, texts: list[str], *, target: bool = False) -> tuple[Any, list[int]]:
        """Tokenize texts up to the limit; return the encoding, and their lengths before truncation."""
        arguments = {"text_target": texts} if target else {"text": texts}
        encoding = encoded(self.tokenizer, arguments, verbose=False)
        lengths = [len(ids) for ids in encoding["input_ids"]]
        if self.limit is None or max(lengths, default=0) <= self.limit:
            return encoding, lengths
        return self.tokenizer(**arguments, truncation=True, max_length=self.limit), lengths

    def _targets(self, texts: list[str]) -> tuple[list[Any], list[int]]:
        """Return the decoder's input ids for targets, shifted right, and the targets' lengths."""
        from attnscope.model.run.forward import shifted

        encoding, lengths = self._encode(texts, target=True)
        return [shifted(self.model, ids) for ids in encoding["input_ids"]], lengths

    def _side(self, ids: list[list[int]]) -> AxisTokens:
        """Return the properties of tokens, padded."""
        import torch

        kinds = [[self._kind(number) for number in of_text] for of_text in ids]
        special, separator, punctuation = (
            _padded([[kind[k] for kind in of_text] for of_text in kinds], 0).bool() for k in range(3)
        )
        real = _padded([[1] * len(of_text) for of_text in ids], 0).bool()
        sink = _padded([sink_keys(kind[0] for kind in of_text) for of_text in kinds], 0).bool()
        of_ids = _padded(ids, -1).to(torch.int32)
        return AxisTokens(of_ids, real, special, separator, punctuation, sink)

    def _kind(self, number: int) -> tuple[bool, bool, bool]:
        """Classify a token: whether it is special, whether it ends a text, whether it is punctuation."""
        if self.tokenizer is None:
            return False, False, False
        if number not in self._kinds:
            [token] = tokens_of(self.tokenizer, [number])
            ends = {self.tokenizer.sep_token_id, self.tokenizer.eos_token_id}
            punctuation = not token.special and is_punctuation(token.text)
            self._kinds[number] = (token.special, token.special and number in ends, punctuation)
        return self._kinds[number]


def _padded_size(texts: Sequence[Encoded]) -> int:
    """Return the number of tokens of a batch, including padding."""
    longest = max(len(text.inputs["input_ids"]) for text in texts)
    return len(texts) * (longest + max(len(text.target or ()) for text in texts))


def is_punctuation(text: str) -> bool:
    """Check whether a token consists of punctuation only.

    Source: the general category P of The Unicode Standard, section 4.5.

    >>> is_punctuation(" ,"), is_punctuation("##)"), is_punctuation("a."), is_punctuation(" ")
    (True, True, False, False)
    """
    from unicodedata import category

    letters = (text.removeprefix("##") or text).strip()
    return bool(letters) and all(category(letter).startswith("P") for letter in letters)


def _padded(rows: Sequence[Sequence[int]], padding: int) -> torch.Tensor:
    """Pad rows of unequal lengths at the right, and return them as a tensor."""
    import torch

    longest = max(map(len, rows))
    return torch.tensor([[*row, *[padding] * (longest - len(row))] for row in rows])
