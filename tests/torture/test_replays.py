"""What servers never returned: each file is replayed as it now says, or refused in one line."""

import json

import pytest

from tests.model.answers.writers import CHAT
from tests.torture.cases import seeded
from tests.torture.files import copy_links
from tests.torture.hostile_json import hostile

pytestmark = [pytest.mark.torture, pytest.mark.slow]

IDS = [7, 8, 9]
WORDS = ["cat", "sat", "on"]
ENTRIES = [
    {"id": i, "token": word, "bytes": list(word.encode()), "logprob": -0.5, "top_logprobs": []}
    for i, word in zip(IDS, WORDS, strict=True)
]
CHOICE = {
    "index": 0,
    "text": "cat sat on",
    "logprobs": {"tokens": WORDS, "token_logprobs": [-0.5, -1.5, -2]},
    "token_ids": IDS,
    "prompt_token_ids": [2, 6, 3],
}
MESSAGE = {"role": "assistant", "content": "cat sat on", "reasoning_content": None, "tool_calls": None}
RESPONSES = [
    {"model": "m", "choices": [CHOICE, {**CHOICE, "index": 1}], "usage": {"prompt_tokens": 3, "completion_tokens": 3}},
    {"choices": [{"index": 0, "message": MESSAGE, "logprobs": {"content": ENTRIES}}], "timings": {"prompt_n": 3, "predicted_n": 3, "cache_n": 0}},
    {"content": "cat sat on", "tokens": IDS, "completion_probabilities": ENTRIES, "tokens_evaluated": 3, "tokens_predicted": 3, "generation_settings": {"lora": [{"scale": 0}]}},
    {"content": "cat sat", "completion_probabilities": [{"content": "cat", "probs": [{"tok_str": "cat", "prob": 0.5}]}]},
]  # fmt: skip
REQUESTS = [
    {"prompt": "the cat", "temperature": 0},
    {"prompt": [2, 6, 3]},
    {"messages": [{"role": "user", "content": "the cat"}], "tools": [{"function": {"name": "now"}}]},
]


@pytest.fixture(scope="module")
def writer(model_folder, tmp_path_factory):
    """A model with a chat template."""
    folder = copy_links(model_folder("llama"), tmp_path_factory.mktemp("saved") / "writer")
    (folder / "chat_template.jinja").write_text(CHAT)
    return folder


@pytest.mark.parametrize("part", range(5))
def test_a_response_that_no_server_returns_is_replayed_or_refused(cases, writer, part):
    path = cases.folder / "replay.json"
    for number in range(80):
        drawing = seeded(f"replay {part} {number}")
        response = drawing.choice(RESPONSES)
        document = {"request": drawing.choice(REQUESTS), "response": response}
        path.write_text(hostile(document, drawing), encoding="utf-8")
        choice = ["--choice", drawing.choice([0, 1, 7])] if drawing.random() < 0.2 else []
        line = ["model", writer, "--replay", path.name, *choice, "--format", "json"]
        cases.run(*line, statuses=[0, 2], what=f"part {part}, change {number}")


@pytest.mark.parametrize("part", range(2))
def test_a_stream_that_no_server_sends_is_replayed_or_refused(cases, writer, part):
    path = cases.folder / "stream.txt"
    for number in range(50):
        drawing = seeded(f"stream {part} {number}")
        chunks = [
            {"choices": [{"index": 0, "delta": {"content": word}, "logprobs": {"content": [entry]}}]}
            for word, entry in zip(WORDS, ENTRIES, strict=True)
        ]
        nth = drawing.randrange(3)
        lines = [json.dumps(each) for each in chunks]
        lines[nth] = hostile(chunks[nth], drawing)
        path.write_text("".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"]), encoding="utf-8")
        line = ["model", writer, "--replay", path.name, "--text", "the cat", "--format", "json"]
        cases.run(*line, statuses=[0, 2], what=f"part {part}, stream {number}")
