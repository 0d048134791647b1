"""A plain prompt with segments, in tokens."""

from transformers import LlamaConfig

from attnscope.model.answers.segments.of_text import read_text
from attnscope.model.files.loaded import LoadedModel
from tests.model.answers.segments.tokenizers_of import text_of, tokenizer_of

TEXT = "Read: [1] the cat sat.\n[2] the dog ran é.\n\nWho ran?"


def read(segments=None, kind="bytes", config=None, **options):
    config = config or LlamaConfig()
    tokenizer = tokenizer_of(kind)
    return read_text(LoadedModel("tiny", None, tokenizer=tokenizer), config, TEXT, segments, **options)


def test_without_definitions_the_text_is_one_segment():
    prompt = read()
    assert [each.name for each in prompt.segments] == ["special", "text"]
    assert prompt.segments[0].spans == ((0, 1),)
    assert text_of(prompt, "text") == TEXT
    assert prompt.notices == []


def test_segments_and_the_rest_of_the_text_are_all_of_it():
    prompt = read("doc=[1],[2]")
    assert text_of(prompt, "doc 1") == "[1] the cat sat.\n"
    assert text_of(prompt, "doc 2") == "[2] the dog ran é."
    assert text_of(prompt, "text") == "Read: \n\nWho ran?"
    positions = sorted(i for each in prompt.segments for i in each.positions)
    assert positions == [*range(len(prompt.tokens))]


def test_a_truncated_text_keeps_its_segments():
    prompt = read("doc=[1],[2]", config=LlamaConfig(max_position_embeddings=12), truncate=True)
    assert [each.name for each in prompt.segments] == ["special", "text", "doc 1"]
    assert sum(each.n_token for each in prompt.segments) == len(prompt.tokens) == 12
