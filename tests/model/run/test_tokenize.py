"""What a model is given to read: tokens as they decode, segments, patches."""

import os

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, ByT5Tokenizer, PreTrainedTokenizerFast

from attnscope.base.errors import FileError, ModelError, OptionError
from attnscope.model.files.checkpoint import Checkpoint, find_checkpoint
from attnscope.model.run.forward import generate_tokens
from attnscope.model.run.load import load_config, load_model
from attnscope.model.run.read_inputs import read_ids
from attnscope.model.run.tokenize import (
    check_reads,
    max_tokens,
    notices_of_unknown,
    other_tokens,
    patches,
    read_image,
    read_text,
    tokens_of,
)
from attnscope.model.run.tokens import Picture
from tests.model.run.readers import save_picture, save_reader, save_seer

LINES = ["the cat sat on the mat", "the dog sat", "überall é\n\tcat"] * 20


def byte_level():
    """As GPT-2 and Llama 3 cut texts: a space is the letter Ġ."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(LINES, trainers.BpeTrainer(vocab_size=290, initial_alphabet=alphabet))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def sentencepiece():
    """As T5 and Llama 2 cut texts: a space is the letter ▁."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(
        LINES, trainers.UnigramTrainer(vocab_size=60, unk_token="<unk>", special_tokens=["<unk>"])
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


def byte_fallback():
    """As Llama 2 and Gemma cut what they do not know: sentencepiece's byte tokens."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a"]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


@pytest.mark.parametrize("make", [byte_level, sentencepiece])
def test_tokens_put_together_are_the_text(make):
    tokenizer = make()
    text = "the cat sat on the mat"
    tokens = tokens_of(tokenizer, tokenizer(text)["input_ids"])
    assert "".join(token.text for token in tokens).strip() == text
    assert any(token.text.startswith(" ") for token in tokens)
    assert not any("Ġ" in token.text or "▁" in token.text for token in tokens)


@pytest.mark.parametrize("make", [byte_level, byte_fallback, ByT5Tokenizer])
@pytest.mark.parametrize("text", ["漢字", "a😀 é", "€"])
def test_a_character_of_several_tokens_is_shown_by_the_last_and_marked(make, text):
    tokenizer = make()
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    texts = [token.text for token in tokens_of(tokenizer, ids)]
    assert len(texts) > len(text)
    assert "".join(texts).replace("⋯", "").strip() == text
    assert all(any(character in shown for shown in texts) for character in text)
    unfinished = [place for place, shown in enumerate(texts) if shown.endswith("⋯")]
    assert unfinished
    assert all("⋯" in texts[place + 1] for place in unfinished)


def test_bytes_that_are_no_character_are_escaped():
    tokenizer = byte_level()
    first, *_ = tokenizer("漢")["input_ids"]
    assert [token.text for token in tokens_of(tokenizer, [first])] == [r"\xe6"]


def test_a_character_may_begin_in_the_text_and_end_in_what_is_written(tmp_path):
    tokenizer = byte_level()
    ids = tokenizer("漢")["input_ids"]
    save_reader("gpt2", tmp_path, vocab_size=len(tokenizer))
    tokenizer.save_pretrained(tmp_path)
    checkpoint = Checkpoint("small", tmp_path)
    config = load_config(checkpoint)
    reading = read_ids(checkpoint, config, ids[:1])
    model = load_model(checkpoint, config, generates=True)
    model.generate = lambda **given: torch.tensor([ids])
    generate_tokens(checkpoint, model, reading, 2)
    assert [(token.text, token.generated) for token in reading.source] == [
        ("⋯", False), ("⋯", True), ("⋯漢", True),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the xylophone sat qux", "2 of 4 tokens in text (50%) are [UNK]"),
        ("xylophone", "1 of 1 token in text (100%) is [UNK]"),
        ("the cat sat", None),
    ],
)
def test_unknown_tokens_are_counted(tmp_path, text, expected):
    save_reader("bert", tmp_path)
    checkpoint = Checkpoint("small", tmp_path)
    reading = read_text(checkpoint, load_config(checkpoint), text)
    said = "" if expected is None else f"{expected}: not in the model's vocabulary."
    assert reading.notices == [said] * bool(said)


def test_a_tokenizer_whose_unknown_token_ends_texts_says_nothing_of_unknown_tokens():
    tokenizer = byte_level()
    tokenizer.add_special_tokens({"unk_token": "<|end|>", "eos_token": "<|end|>"})
    assert notices_of_unknown(tokenizer, tokenizer("a<|end|>")["input_ids"], "--text") == []


def test_words_that_go_on_are_marked_in_berts_way():
    checkpoint = find_checkpoint("minilm")
    reading = read_text(checkpoint, load_config(checkpoint), "Unbelievably tokenised.")
    texts = [token.text for token in reading.source]
    assert texts[0] == "[CLS]"
    assert any(text.startswith("##") for text in texts)
    assert [token.special for token in reading.source] == [True, *[False] * (len(texts) - 2), True]


def test_an_id_beyond_the_tokenizer_is_its_number():
    tokenizer = AutoTokenizer.from_pretrained(find_checkpoint("minilm").folder)
    assert tokens_of(tokenizer, [40000])[0].text == "<40000>"


def test_a_pair_has_two_segments_and_what_stands_between_belongs_to_the_first(tmp_path):
    save_reader("bert", tmp_path)
    checkpoint = Checkpoint("small", tmp_path)
    reading = read_text(checkpoint, load_config(checkpoint), "the cat", pair="a dog ran")
    assert [token.segment for token in reading.source] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert set(reading.inputs) <= {"input_ids", "token_type_ids", "attention_mask"}


def test_a_pair_has_two_segments_where_the_tokenizer_does_not_tell(tmp_path):
    save_reader("t5", tmp_path, vocab_size=400)
    (tmp_path / "tokenizer.json").unlink()
    ByT5Tokenizer().save_pretrained(tmp_path)
    checkpoint = Checkpoint("small", tmp_path)
    reading = read_text(checkpoint, load_config(checkpoint), "cat", pair="dogs")
    assert [token.text for token in reading.source] == [*"cat", "</s>", *"dogs", "</s>"]
    assert [token.segment for token in reading.source] == [0, 0, 0, 0, 1, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("family", "more", "expected"),
    [
        ("bert", {"max_position_embeddings": 16}, 16),
        ("roberta", {"max_position_embeddings": 18, "pad_token_id": 1}, 16),
        ("gpt2", {"n_positions": 16}, 16),
        ("t5", {}, None),
    ],
)
def test_a_model_takes_as_many_tokens_as_it_has_positions(tmp_path, family, more, expected):
    model = save_reader(family, tmp_path, **more)
    assert max_tokens(model.config) == expected
    if expected is None:
        return
    ids = torch.full((1, expected), 5)
    model(input_ids=ids)
    with pytest.raises((IndexError, RuntimeError)):
        model(input_ids=torch.full((1, expected + 1), 5))
    checkpoint = Checkpoint("small", tmp_path)
    words = "cat " * expected
    with pytest.raises(
        OptionError,
        match=f"text is {expected + 2} tokens long, but the model takes at most {expected}",
    ):
        read_text(checkpoint, model.config, words)
    assert len(read_text(checkpoint, model.config, words, truncate=True).source) == expected


def test_a_picture_is_shown_as_the_model_gets_it(tmp_path):
    from io import BytesIO

    from PIL import Image

    save_seer("vit", tmp_path)
    checkpoint = Checkpoint("small", tmp_path)
    reading = read_image(checkpoint, load_config(checkpoint), save_picture(tmp_path / "p.png"))
    seen = Image.open(BytesIO(reading.picture.png))
    assert seen.size == (8, 8)
    red = [seen.getpixel((x, 4))[0] for x in range(8)]
    assert red == sorted(red)
    assert red[-1] - red[0] > 150
    assert (reading.picture.rows, reading.picture.columns) == (2, 2)


def test_patches_are_read_as_one_reads():
    picture = Picture(2, 3, 0, b"")
    assert [token.text for token in patches(picture, 8, 2)] == [
        "[CLS]", "[1]", "0,0", "0,1", "0,2", "1,0", "1,1", "1,2",
    ]  # fmt: skip
    with pytest.raises(ModelError, match="makes 4 tokens from 2 × 3 patches"):
        patches(picture, 4, 2)


def test_tokens_that_are_not_patches_are_explained_where_the_configuration_does():
    from transformers import SwinConfig, YolosConfig

    swin = other_tokens(SwinConfig(window_size=3), 36)
    with pytest.raises(ModelError, match="6 patches, as it attends within windows of 3 × 3 patches:"):
        patches(Picture(6, 6, 0, b""), 9, 2, swin)
    with pytest.raises(ModelError, match="makes 8 tokens from 6 × 6 patches: image"):
        patches(Picture(6, 6, 0, b""), 8, 2, swin)
    yolos = other_tokens(YolosConfig(num_detection_tokens=5), 36)
    with pytest.raises(ModelError, match="as 5 tokens of detections follow the patches"):
        patches(Picture(6, 6, 0, b""), 42, 2, yolos)
    assert len(patches(Picture(6, 6, 0, b""), 37, 2, yolos)) == 37


class Stored:
    """A checkpoint of which only the name is needed."""

    name = "mine"


@pytest.mark.parametrize(
    ("config", "reads"),
    [
        (transformers.VideoMAEConfig(), "videos"),
        (transformers.VJEPA2Config(), "videos"),
        (transformers.BrosConfig(), "a text with a box for each token (bbox)"),
        (transformers.TimeSeriesTransformerConfig(prediction_length=3), "time series (past_values)"),
        (transformers.DecisionTransformerConfig(), "states, actions and returns"),
        (transformers.OneFormerConfig(use_pretrained_backbone=False), "a picture and a task"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.model_type,
)
@pytest.mark.parametrize("what", ["text", "image"])
def test_a_model_that_reads_something_else_is_refused_with_what_it_reads(config, reads, what):
    with pytest.raises(ModelError) as caught:
        check_reads(Stored(), config, what)
    said = f"mine ({config.model_type}) reads {reads}, but attnscope gives models texts and pictures."
    assert (caught.value.message, caught.value.hint) == (said, None)


def test_models_of_texts_and_of_pictures_are_not_refused():
    for config, what in [
        (transformers.LayoutLMConfig(), "text"),
        (transformers.ViTConfig(), "image"),
        (transformers.SwinConfig(), "image"),
    ]:
        check_reads(Stored(), config, what)


def test_a_named_pipe_is_no_picture(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    save_seer("vit", tmp_path / "vit")
    checkpoint = Checkpoint("small", tmp_path / "vit")
    with pytest.raises(FileError, match=r"pipe\.png is not a regular file"):
        read_image(checkpoint, load_config(checkpoint), tmp_path / "pipe.png")


def test_a_picture_whose_processor_cuts_the_patches_is_put_together_again(tmp_path):
    """SigLIP 2; the reference is transformers' eager attention, with the padding behind the patches."""
    from io import BytesIO

    from PIL import Image

    import attnscope

    torch.manual_seed(0)
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "num_patches": 16}
    config = transformers.Siglip2VisionConfig(**sizes, intermediate_size=37, patch_size=4)
    transformers.Siglip2VisionModel(config).save_pretrained(tmp_path)
    processor = transformers.Siglip2ImageProcessorPil(patch_size=4, max_num_patches=16)
    processor.save_pretrained(tmp_path)
    path = save_picture(tmp_path / "p.png")
    checkpoint = Checkpoint("small", tmp_path)
    picture = read_image(checkpoint, load_config(checkpoint), path).picture
    seen = np.asarray(Image.open(BytesIO(picture.png)))
    assert (picture.rows, picture.columns, seen.shape) == (3, 5, (12, 20, 3))
    assert np.array_equal(seen, Image.open(path).resize((20, 12), Image.Resampling.BILINEAR))
    model = transformers.Siglip2VisionModel.from_pretrained(tmp_path, attn_implementation="eager")
    inputs = processor(images=Image.open(path), return_tensors="pt")
    assert inputs["pixel_attention_mask"].tolist() == [[1] * 15 + [0]]
    wanted = model(**inputs, output_attentions=True).attentions[1][0, 2, :15, :15]
    maps = attnscope.attention_maps(str(tmp_path), image=path, layers=1, heads=2)
    assert np.allclose(maps[1, 2].attention, wanted.detach(), atol=1e-6)
