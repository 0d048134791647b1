"""Chats, and the templates that render them: each is shown, or refused in one line."""

import json

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from tests.model.answers.segments.templates import FORMATS
from tests.model.answers.segments.tokenizers_of import tokenizer_of
from tests.torture.cases import seeded
from tests.torture.files import copy_links
from tests.torture.hostile_json import VALUES, hostile

pytestmark = [pytest.mark.torture, pytest.mark.slow]

CALL = {"id": "123456789", "type": "function", "function": {"name": "now", "arguments": {"a": [1, "x"]}}}
CHAT = {
    "messages": [
        {"role": "system", "content": "the mat ."},
        {"role": "user", "content": [{"type": "text", "text": "the cat"}]},
        {"role": "assistant", "content": "", "tool_calls": [CALL], "reasoning_content": "a dog"},
        {"role": "tool", "content": "sat", "tool_call_id": "123456789"},
        {"role": "user", "content": "the dog"},
    ],
    "tools": [{"type": "function", "function": {"name": "now", "description": "the time", "parameters": {}}}],
    "documents": [{"title": "a", "text": "the cat sat"}],
}  # fmt: skip


PLAIN = {
    "messages": [
        {"role": "user", "content": "the cat"},
        {"role": "assistant", "content": "<think>\na dog\n</think>\n\n sat\n"},
        {"role": "user", "content": " the dog \n"},
    ],
    "documents": CHAT["documents"],
}


@pytest.fixture(scope="module")
def writer(tmp_path_factory):
    """A model with a tokenizer of bytes, whose texts may be long."""
    folder, tokenizer = tmp_path_factory.mktemp("saved") / "writer", tokenizer_of("bytes")
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("part", range(5))
def test_a_chat_is_shown_or_refused(cases, writer, part):
    folder = copy_links(writer, cases.folder / "writer")
    kinds, path = list(FORMATS), cases.folder / "chat.json"
    for number in range(60):
        drawing = seeded(f"chat {part} {number}")
        (folder / "chat_template.jinja").write_text(FORMATS[drawing.choice(kinds)][0])
        path.write_text(hostile(drawing.choice([CHAT, PLAIN, PLAIN]), drawing), encoding="utf-8")
        line = ["model", folder, "--messages", path.name, "--by", "segment", "--generate", 1]
        cases.run(*line, "--format", "json", statuses=[0, 2], what=f"part {part}, chat {number}")


@pytest.mark.parametrize("part", range(4))
def test_a_changed_template_renders_or_is_refused(cases, writer, part):
    folder = copy_links(writer, cases.folder / "writer", but="tokenizer_config.json")
    settings = json.loads((writer / "tokenizer_config.json").read_text())
    path = cases.folder / "chat.json"
    path.write_text(json.dumps(PLAIN))
    for number in range(50):
        drawing = seeded(f"template {part} {number}")
        template = drawing.choice(list(FORMATS.values()))[0]
        for _ in range(drawing.choice([1, 2, 3])):
            at, n = drawing.randrange(len(template)), drawing.randrange(6)
            words = [
                "",
                "{{",
                "}}",
                "{%",
                "%}",
                "|",
                "0",
                "[",
                "messages",
                "loop.last",
                "'",
                " ** ",
                "x.y",
            ]
            template = template[:at] + drawing.choice(words) + template[at + n :]
        if drawing.random() < 0.3:
            template = drawing.choice(
                [*VALUES, {"default": drawing.choice(VALUES)}, [{"name": "default", "template": 5}]]
            )
        text = json.dumps({**settings, "chat_template": template})
        (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
        line = ["model", folder, "--messages", path.name, "--generate", 1, "--format", "json"]
        cases.run(*line, statuses=[0, 2], what=f"part {part}, template {number}")
