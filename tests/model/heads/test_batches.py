"""Texts become batches: every token once, padding nowhere, and what a decoder reads as transformers has it."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import cache
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from attnscope.base.errors import OptionError
from attnscope.model.files.checkpoint import Checkpoint
from attnscope.model.heads.batches import Encoded, Reader, TextBatch, is_punctuation
from attnscope.model.run.load import load_config, load_model
from tests.model.run.readers import WORDS, save_reader

CLS, SEP, POINT = WORDS.index("[CLS]"), WORDS.index("[SEP]"), WORDS.index(".")
TEXTS = ["the cat sat on the mat .", "a dog", "it was . tired"]


@pytest.fixture(scope="module")
def reader_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Reader]:
    """Makes a reader for a family: `reader_of("bert", longest=5)`."""

    @cache
    def loaded(family: str) -> tuple[Any, Any]:
        folder = tmp_path_factory.mktemp(family)
        save_reader(family, folder)
        checkpoint = Checkpoint(family, folder)
        return load_model(checkpoint, load_config(checkpoint)), AutoTokenizer.from_pretrained(folder)

    return lambda family="bert", longest=None: Reader(*loaded(family), longest)


def encoded(n: int, n_target: int | None = None) -> Encoded:
    """A text of n tokens, and of so many for the decoder."""
    return Encoded({"input_ids": [5] * n}, None if n_target is None else [6] * n_target, n)


lengths = st.lists(st.integers(1, 40), min_size=1, max_size=40)


@given(lengths=lengths, tokens=st.integers(1, 200))
def test_every_text_is_in_one_batch_and_batches_stay_below_the_budget(reader_of, lengths, tokens):
    texts = [encoded(n) for n in lengths]
    batches = list(reader_of().batches(texts, tokens))
    assert sorted(id(text) for batch in batches for text in batch.texts) == sorted(map(id, texts))
    read = [text.n_tokens for batch in batches for text in batch.texts]
    assert read == sorted(lengths)  # neighbours in length are padded least
    for batch in batches:
        assert batch.inputs["input_ids"].numel() <= tokens or len(batch.texts) == 1
        assert int(batch.source.real.sum()) == sum(text.n_tokens for text in batch.texts)


@given(lengths=lengths, targets=lengths, tokens=st.integers(1, 200))
def test_what_a_decoder_reads_is_part_of_the_budget_and_so_is_its_padding(
    reader_of, lengths, targets, tokens
):
    texts = [encoded(n, m) for n, m in zip(lengths, targets, strict=False)]
    for batch in reader_of("bart").batches(texts, tokens):
        read = batch.inputs["input_ids"].numel() + batch.inputs["decoder_input_ids"].numel()
        assert read <= tokens or len(batch.texts) == 1


@given(lengths=lengths, tokens=st.integers(1, 200))
def test_a_batch_is_not_smaller_than_it_has_to_be(reader_of, lengths, tokens):
    batches = list(reader_of().batches([encoded(n) for n in lengths], tokens))
    for one, after in pairwise(batches):
        assert (len(one.texts) + 1) * after.texts[0].n_tokens > tokens


def test_texts_of_one_length_stay_in_their_order(reader_of):
    texts = [encoded(3) for _ in range(7)]
    read = [text for batch in reader_of().batches(texts, 6) for text in batch.texts]
    assert list(map(id, read)) == list(map(id, texts))


def test_shorter_texts_are_padded_at_the_right(reader_of):
    reader = reader_of()
    batch = reader.batch(reader.read(TEXTS))
    ids = AutoTokenizer.from_pretrained(reader.tokenizer.name_or_path)(TEXTS)["input_ids"]
    for i, of_text in enumerate(ids):
        n, more = len(of_text), 9 - len(of_text)
        assert batch.inputs["input_ids"][i].tolist() == of_text + [reader.tokenizer.pad_token_id] * more
        assert batch.inputs["attention_mask"][i].tolist() == [1] * n + [0] * more
        assert batch.source.ids[i].tolist() == of_text + [-1] * more
        assert batch.source.real[i].tolist() == [True] * n + [False] * more
    assert batch.inputs["input_ids"].dtype == torch.long
    assert batch.target is None


def test_what_else_a_model_reads_of_a_token_is_padded_too(reader_of):
    names = ("input_ids", "token_type_ids")
    of_texts = ([5, 6], [0, 1]), ([5], [1])
    texts = [Encoded(dict(zip(names, each, strict=True)), None, 2) for each in of_texts]
    batch = reader_of().batch(texts)
    assert list(batch.inputs) == [*names, "attention_mask"]
    assert batch.inputs["token_type_ids"].tolist() == [[0, 1], [1, 0]]


def test_a_batch_is_what_transformers_pads_itself(reader_of):
    reader = reader_of("roberta")
    ours = reader.batch(reader.read(TEXTS)).inputs
    theirs = reader.tokenizer(TEXTS, padding=True, return_tensors="pt")
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert torch.equal(ours[name], tensor)


def test_kinds_of_tokens_are_known_and_padding_is_of_none(reader_of):
    reader = reader_of()
    source = reader.batch(reader.read(["the [MASK] . [UNK] zebra", "cat"])).source
    words = "[CLS] the [MASK] . [UNK] [UNK] [SEP]".split()
    assert [WORDS[i] for i in source.ids[0].tolist()] == words
    assert source.special[0].tolist() == [word in ("[CLS]", "[SEP]") for word in words]
    assert source.separator[0].tolist() == [word == "[SEP]" for word in words]
    assert source.punctuation[0].tolist() == [word == "." for word in words]
    assert source.separator[1].tolist() == [False, False, True, False, False, False, False]
    for kind in (source.special, source.separator, source.punctuation):
        assert not kind[~source.real].any()


def test_padding_that_was_read_is_a_token_and_that_which_was_added_is_none(reader_of):
    """T5's decoder begins with [PAD]."""
    reader = reader_of("t5")
    target = reader.batch(reader.read(TEXTS[:2], TEXTS[:2])).target
    assert target.ids[:, 0].tolist() == [0, 0]
    assert target.real[:, 0].all()
    assert target.special[:, 0].all()
    assert target.ids[1].tolist()[-1] == -1


def test_the_end_of_a_text_separates_where_there_is_no_separator(reader_of):
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=reader_of().tokenizer.backend_tokenizer,
        pad_token="[PAD]",
        eos_token="[SEP]",
        bos_token="[CLS]",
    )
    reader = Reader(reader_of().model, tokenizer)
    source = reader.batch(reader.read(["the cat"])).source
    assert source.separator[0].tolist() == [False, False, False, True]
    assert source.special[0].tolist() == [True, False, False, True]


def test_a_tokenizer_without_padding_pads_with_some_number(reader_of):
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=reader_of().tokenizer.backend_tokenizer)
    reader = Reader(reader_of().model, tokenizer)
    batch = reader.batch(reader.read(TEXTS))
    assert batch.inputs["input_ids"][1].tolist()[-1] == 0
    assert batch.inputs["attention_mask"].sum(dim=-1).tolist() == [9, 4, 6]
    assert batch.source.real.sum(dim=-1).tolist() == [9, 4, 6]


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        (".", True), (" ,", True), ("##)", True), ("...", True), ("。", True), ("—", True), ("¿", True),
        ("a.", False), (" ", False), ("", False), ("##", True), ("$", False), ("+", False), ("3", False),
    ],
)  # fmt: skip
def test_punctuation_is_what_unicode_says(text, is_one):
    assert is_punctuation(text) is is_one


def test_texts_are_cut_to_what_the_model_takes(reader_of):
    reader = reader_of()
    assert reader.limit == reader.model.config.max_position_embeddings == 16
    [short, long] = reader.read(["cat " * 14, "cat " * 15])
    assert (short.cut, short.length, len(short.inputs["input_ids"])) == (False, 16, 16)
    assert (long.cut, long.length, len(long.inputs["input_ids"])) == (True, 17, 16)
    assert (long.inputs["input_ids"][0], long.inputs["input_ids"][-1]) == (CLS, SEP)
    assert all(len(numbers) == 16 for numbers in long.inputs.values())
    reader.model(**reader.batch([short, long]).inputs)  # it does take them


@pytest.mark.parametrize(
    ("family", "longest", "limit"), [("bert", 5, 5), ("bert", 99, 16), ("t5", None, None)]
)
def test_texts_are_cut_to_what_is_asked_for(reader_of, family, longest, limit):
    reader = reader_of(family, longest)
    assert reader.limit == limit
    [text] = reader.read(["cat " * 40])
    assert len(text.inputs["input_ids"]) == (limit or 42)
    assert (text.cut, text.length) == (limit is not None, 42)


def test_texts_cannot_be_cut_to_nothing(reader_of):
    """Of [CLS] and [SEP] alone there is nothing to measure."""
    with pytest.raises(OptionError, match="max_length is 2, but the tokenizer adds 2"):
        reader_of(longest=2)


def test_texts_without_tokens_are_left_out_with_their_targets(reader_of):
    reader = reader_of("bart")
    texts = reader.read(["the cat", "", " ", "a dog"], ["one", "two", "three", "a"])
    assert [text.inputs["input_ids"][1] for text in texts] == [WORDS.index("the"), WORDS.index("a")]
    assert texts[1].target[2] == WORDS.index("a")
    assert reader_of().read(["", "   "]) == []


@pytest.mark.parametrize("family", ["bart", "t5", "bigbird_pegasus"])
def test_targets_are_moved_to_the_right_as_transformers_does(reader_of, family):
    """What a model makes of labels itself is what it reads beside them."""
    reader = reader_of(family)
    targets = ["a dog ran on the mat", "it was"]
    texts = reader.read(["the cat", "the cat sat"], targets)
    seen: list[torch.Tensor] = []
    decoder = reader.model.get_decoder()
    hook = decoder.register_forward_pre_hook(
        lambda _, args, given: seen.append(given["input_ids"]), with_kwargs=True
    )
    for text, target in zip(texts, targets, strict=True):
        labels = reader.tokenizer(text_target=target, return_tensors="pt")["input_ids"]
        inputs = torch.tensor([text.inputs["input_ids"]])
        if type(reader.model).__name__.endswith("Model"):  # without a head it has no labels
            start = reader.model.config.decoder_start_token_id
            assert text.target == [start, *labels[0, :-1].tolist()]
        else:
            with torch.no_grad():
                reader.model(input_ids=inputs, labels=labels)
            assert text.target == seen.pop()[0].tolist()
    hook.remove()


def test_targets_are_padded_and_hidden_like_texts(reader_of):
    reader = reader_of("bart")
    texts = reader.read(["the cat", "the cat sat"], ["a dog ran", "it"])
    batch = reader.batch(texts)
    assert [text.n_tokens for text in texts] == [4 + 5, 5 + 3]
    assert batch.inputs["decoder_input_ids"].tolist() == [texts[0].target, [*texts[1].target, 0, 0]]
    assert batch.inputs["decoder_attention_mask"].tolist() == [[1] * 5, [1, 1, 1, 0, 0]]
    assert batch.target.real.tolist() == [[True] * 5, [True, True, True, False, False]]
    assert batch.target.ids.tolist() == [texts[0].target, [*texts[1].target, -1, -1]]
    assert batch.source.ids.shape == (2, 5)


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_a_target_without_tokens_is_the_token_that_starts(reader_of, family):
    """Where a tokenizer adds none of its own, an empty target has no labels."""
    from tokenizers import processors

    reader = reader_of(family)
    backend = deepcopy(reader.tokenizer.backend_tokenizer)
    backend.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
    reader = Reader(reader.model, PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]"))
    [text] = reader.read(["the cat"], [""])
    assert text.target in ([reader.model.config.decoder_start_token_id], [])
    batch = reader.batch([text])
    assert batch.inputs["decoder_input_ids"].dtype == torch.long


def test_a_model_that_cannot_be_told_of_padding_reads_one_text_after_the_other(reader_of):
    class Model:
        config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(max_position_embeddings=None))

        def forward(self, input_ids):
            raise AssertionError

    reader = Reader(Model(), reader_of().tokenizer)
    batches = list(reader.batches([encoded(3), encoded(3), encoded(2)], 1000))
    assert [len(batch.texts) for batch in batches] == [1, 1, 1]
    assert all("attention_mask" not in batch.inputs for batch in batches)


def test_the_beginning_of_a_batch_is_of_its_first_text(reader_of):
    reader = reader_of("bart")
    batch = reader.batch(reader.read(TEXTS, TEXTS))
    few = batch.first(3)
    assert isinstance(few, TextBatch)
    assert few.texts == batch.texts[:1]
    assert {tuple(tensor.shape) for tensor in few.inputs.values()} == {(1, 3)}
    assert few.source.ids.tolist() == batch.source.ids[:1, :3].tolist()
    assert few.target.ids.tolist() == batch.target.ids[:1, :3].tolist()
    assert reader_of().batch([encoded(2)]).first(9).source.ids.shape == (1, 2)
