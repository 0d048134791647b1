"""Answers that engines wrote, in files of their formats, beside log-probabilities of a whole pass."""

import io
import json
from base64 import b64encode
from copy import deepcopy
from math import exp

import numpy as np
import pytest
import torch
from transformers import T5Config, T5ForConditionalGeneration

import attnscope
from attnscope.base.errors import AttnscopeError
from attnscope.document.markdown import markdown_document
from attnscope.model.answers.replay.recorded import RecordedAnswer, compare
from attnscope.model.answers.replay.response import read_response
from attnscope.model.answers.segments.of_messages import read_messages
from attnscope.model.files.loaded import find_model
from attnscope.model.run.tokenize import pieces_of
from tests.model.answers.families import loaded, picture
from tests.model.answers.writers import MESSAGES, whole_pass, writer

LLAMA, TOKENIZER = writer()
TEXT, SAYS = "the cat sat .", "on the mat"


def recorded(prompt=TEXT, says=SAYS, special=True):
    """The ids of a prompt and an answer, and the answer's log-probabilities in one whole eager pass."""
    before = TOKENIZER(prompt, add_special_tokens=special, return_tensors="pt")
    ids = TOKENIZER(says, add_special_tokens=False)["input_ids"]
    _, scores = whole_pass(LLAMA, dict(before), ids)
    n = before["input_ids"].shape[1]
    values = [float(scores[n - 1 + i, number]) for i, number in enumerate(ids)]
    return before["input_ids"][0].tolist(), ids, values


def pieces(ids):
    return [piece.decode() for piece in pieces_of(TOKENIZER, ids)]


def vllm():
    prompt, ids, values = recorded()
    logprobs = {"tokens": pieces(ids), "token_logprobs": values}
    choice = {"index": 0, "text": SAYS, "logprobs": logprobs, "finish_reason": "length"}
    return {
        "object": "text_completion",
        "choices": [choice | {"token_ids": ids, "prompt_token_ids": prompt}],
    }


def completions():
    """The same without ids."""
    content = vllm()
    for key in ("token_ids", "prompt_token_ids"):
        del content["choices"][0][key]
    return content


def entries(ids, values):
    """A list of log-probabilities as llama.cpp and OpenAI's chats have it; the former with ids."""
    return [
        {
            "id": number,
            "token": piece,
            "bytes": list(piece.encode()),
            "logprob": value,
            "top_logprobs": [],
        }
        for number, piece, value in zip(ids, pieces(ids), values, strict=True)
    ]


def llama_cpp():
    _, ids, values = recorded()
    return {"content": SAYS, "tokens": ids, "completion_probabilities": entries(ids, values)}


def chat():
    """A chat without ids."""
    prompt = TOKENIZER.apply_chat_template(MESSAGES, add_generation_prompt=True, tokenize=False)
    _, ids, values = recorded(prompt, special=False)
    found = [{key: value for key, value in each.items() if key != "id"} for each in entries(ids, values)]
    message = {"role": "assistant", "content": SAYS}
    return {"choices": [{"index": 0, "message": message, "logprobs": {"content": found}}]}


def older_llama_cpp():
    _, ids, values = recorded()
    found = [
        {
            "content": piece,
            "probs": [{"tok_str": "?!", "prob": 0.5}, {"tok_str": piece, "prob": exp(value)}],
        }
        for piece, value in zip(pieces(ids), values, strict=True)
    ]
    return {"content": SAYS, "completion_probabilities": found}


def replay(content, text=None, **options):
    return attnscope.answer(LLAMA, text, replay=content, tokenizer=TOKENIZER, **options)


@pytest.mark.parametrize(
    ("content", "prompt", "ids"),
    [
        (vllm, {}, "exact"),
        (vllm, {"text": TEXT}, "exact"),
        (llama_cpp, {"text": TEXT}, "exact"),
        (completions, {"text": TEXT}, "pieces"),
        (chat, {"messages": MESSAGES}, "pieces"),
    ],
)
def test_an_answer_of_the_same_model_has_the_same_log_probabilities(content, prompt, ids):
    answer = replay(content(), **prompt)
    assert answer.recorded.ids == ids
    assert "".join(token.text for token in answer.written) == SAYS
    assert None not in answer.recorded.log_probabilities
    assert answer.recorded.parts_at is None
    assert max(answer.recorded.tolerances) < 1e-3  # so that agreement means something
    assert "agree within" in markdown_document(answer.document())


def test_llama_cpp_reported_probabilities_after_sampling_once():
    answer = replay(older_llama_cpp(), TEXT)
    assert answer.recorded.ids == "pieces"
    assert answer.ids == recorded()[1]
    assert answer.recorded.log_probabilities == [None] * len(answer.ids)


def test_the_request_holds_the_prompt():
    asked = {"request": {"messages": MESSAGES, "temperature": 0}, "response": chat()}
    answer = replay(asked)
    assert [segment.name for segment in answer.segments][:1] == ["template"]
    assert answer.ids == replay(chat(), messages=MESSAGES).ids
    assert answer.recorded.parts_at is None


def test_an_answer_without_log_probabilities_is_tokenized_again_or_has_its_last_token():
    answer = replay({"choices": [{"text": SAYS, "logprobs": None}]}, TEXT)
    assert answer.recorded.ids == "retokenised"
    assert answer.recorded.log_probabilities == [None] * len(answer.ids)
    assert "has no log-probabilities" in markdown_document(answer.document())
    ids = [*recorded()[1], TOKENIZER.eos_token_id]
    assert replay(changed(vllm(), token_ids=ids, logprobs=None)).ids == ids


@pytest.mark.parametrize("change", [0.9, -0.9])
def test_the_first_log_probability_that_differs_is_named(change):
    content = vllm()
    values = content["choices"][0]["logprobs"]["token_logprobs"]
    values[5] += change
    values[7] += change
    answer = replay({"request": {"temperature": 0.7}, "response": content})
    assert answer.recorded.parts_at == 5
    record = answer.to_dict()["recorded"]
    assert record["parts_at"] == answer.first + 5
    assert record["causes"] == ["temperature is 0.7"]
    assert "Possible causes: temperature is 0.7." in markdown_document(answer.document())


def test_another_token_than_the_engine_wrote_is_found():
    content = vllm()
    ids = content["choices"][0]["token_ids"]
    ids[4] = ids[4] + 1
    assert replay(content).recorded.parts_at == 4


def test_unknown_pieces_are_tokenized_again_and_compared_until_they_drift():
    content = completions()
    tokens, values = content["choices"][0]["logprobs"].values()
    tokens[3:5] = ["".join(tokens[3:5])]  # a token of two bytes, which this vocabulary does not have
    del values[4]
    answer = replay(content, TEXT)
    assert (answer.recorded.ids, answer.recorded.drift) == ("retokenised", 3)
    assert [each is None for each in answer.recorded.log_probabilities] == [False] * 3 + [True] * 7
    assert any("from token 3 of the answer on" in each for each in answer.notices)
    assert any("which is its token 3" in each for each in answer.notices)


def test_a_stream_is_joined(tmp_path):
    whole = vllm()["choices"][0]
    lines = []
    for i, number in enumerate(whole["token_ids"]):
        part = {key: [value[i]] for key, value in whole["logprobs"].items()}
        choice = {"index": 0, "text": part["tokens"][0], "logprobs": part, "token_ids": [number]}
        choice |= {} if i else {"prompt_token_ids": whole["prompt_token_ids"]}
        lines.append(f"data: {json.dumps({'choices': [choice]})}\n\n")
    file = tmp_path / "stream.txt"
    file.write_text("".join([*lines, "data: [DONE]\n"]))
    answer = replay(file)
    assert answer.ids == whole["token_ids"]
    assert answer.recorded.parts_at is None


def changed(content, **values):
    content = deepcopy(content)
    content["choices"][0] |= values
    return content


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ({"a": 1}, "^replay has neither choices nor a content"),
        (
            {"choices": [{"message": {"content": [{"text": SAYS}]}}]},
            "another shape than a server's response: choices\\[0\\].message.content is .*, not a text",
        ),
        ({"error": {"message": "no such model"}}, "an error of the server: no such model"),
        ({"choices": [{"text": ""}]}, "empty answer"),
        (changed(vllm(), token_ids=[9999] * 10), "there is no token 9999"),
        (changed(vllm(), token_ids=[7]), "1 id and 10 log-probabilities"),
        (completions(), "the prompt is not in replay"),
        ({"request": {"prompt": TEXT, "echo": True}, "response": vllm()}, "repeats the prompt"),
    ],
)
def test_a_file_that_holds_no_answer_is_refused(content, error):
    with pytest.raises(AttnscopeError, match=error):
        replay(content)


def test_a_file_that_is_cut_off_is_refused(tmp_path):
    file = tmp_path / "cut.json"
    file.write_text(json.dumps(vllm())[:-40])
    with pytest.raises(AttnscopeError, match="is not JSON, or is cut off"):
        replay(file)


def test_a_prompt_with_other_tokens_than_the_file_is_refused():
    with pytest.raises(AttnscopeError, match="other tokens than that of replay, from token 5 on"):
        replay(vllm(), "the mat sat .")


def several(tmp_path):
    """A file of two choices that a server returned at once, and one of the same as a stream."""
    first, second = vllm()["choices"][0], vllm()["choices"][0]
    for key in ("token_ids", "prompt_token_ids"):
        del second[key]
    second |= {"index": 1, "text": "on the", "logprobs": None}
    whole, stream = tmp_path / "whole.json", tmp_path / "stream.txt"
    whole.write_text(json.dumps({"choices": [first, second]}))
    parts = [{"index": i, "text": text[k]} for k in range(6) for i, text in ((1, "on the"), (0, SAYS))]
    stream.write_text("".join(f"data: {json.dumps({'choices': [each]})}\n" for each in parts))
    return whole, stream


@pytest.mark.parametrize("nth", [0, 1])
def test_one_of_several_choices_is_read(tmp_path, nth):
    file = several(tmp_path)[nth]
    texts = [SAYS if nth == 0 else SAYS[:6], "on the"]
    for choice, text in [(None, texts[0]), (0, texts[0]), (1, texts[1])]:
        response = read_response(file, choice)
        assert response.text == text
        assert any("2 choices: this is the first" in each for each in response.notices) == (
            choice is None
        )
    with pytest.raises(AttnscopeError, match="has no choice 2: it has 0, 1"):
        read_response(file, 2)
    answer = replay(file, TEXT, choice=1)
    assert "".join(token.text for token in answer.written) == texts[1]


def test_a_choice_needs_a_response_with_choices():
    with pytest.raises(AttnscopeError, match="has one answer, and no choices"):
        replay(llama_cpp(), TEXT, choice=1)
    with pytest.raises(AttnscopeError, match="choice is one of replay, and there is none"):
        attnscope.answer(LLAMA, TEXT, tokenizer=TOKENIZER, choice=0)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"timings": 5}, "timings is 5, not an object"),
        ({"usage": {"completion_tokens": float("inf")}}, "usage.completion_tokens is inf, not a number"),
        ({"choices": [5]}, r"choices\[0\] is 5, not an object"),
        ({"choices": [{"logprobs": None}]}, r"choices\[0\].text is not there"),
        (
            {"choices": [{"text": SAYS, "token_ids": [True]}]},
            r"choices\[0\].token_ids\[0\] is True, not a number",
        ),
    ],
)
def test_a_field_of_another_type_is_named(changes, error):
    with pytest.raises(AttnscopeError, match=f"another shape than a server's response: {error}"):
        read_response(vllm() | changes)


@pytest.mark.parametrize(
    ("entry", "error"),
    [
        ({"logprob": 0.5}, "logprob is 0.5, not a log-probability, which is 0 or less"),
        ({"logprob": float("inf")}, "logprob is inf, not a log-probability"),
        ({"logprob": 10**400}, "logprob is 10+…0+, not a log-probability"),
        ({"bytes": 1_000_000_000}, "bytes is 1000000000, not a list"),
        ({"bytes": [300]}, r"bytes\[0\] is 300, not a byte"),
        ({"id": -1}, "id is -1, not a number"),
    ],
)
def test_an_entry_that_no_server_writes_is_named(entry, error):
    content = chat()
    content["choices"][0]["logprobs"]["content"][3] |= entry
    with pytest.raises(AttnscopeError, match=r"logprobs.content\[3\]\." + error):
        read_response(content)


@pytest.mark.parametrize(
    ("chunks", "error"),
    [
        ([5], "has 5 in its stream"),
        ([{"choices": [{"delta": {"content": each}}]} for each in ("a", 5)], "content is 5 after 'a'"),
        ([{"choices": [{"index": "a"}]}], "index is 'a', not a number"),
    ],
)
def test_a_stream_of_another_shape_is_refused(tmp_path, chunks, error):
    file = tmp_path / "stream.txt"
    file.write_text("".join(f"data: {json.dumps(chunk)}\n" for chunk in chunks))
    with pytest.raises(AttnscopeError, match=error):
        read_response(file)


def test_a_file_that_is_nested_too_deeply_is_refused(tmp_path):
    file = tmp_path / "deep.txt"
    for n in (300, 900, 100_000):
        file.write_text('data: {"a": ' + '{"a": ' * n + "1" + "}" * n + "}\n")
        with pytest.raises(AttnscopeError, match=r"has neither choices|nested too deeply|not JSON"):
            read_response(file)


def test_the_end_of_a_text_without_ids_has_an_empty_piece():
    content = completions()
    found = content["choices"][0]["logprobs"]
    found["tokens"].append("")
    found["token_logprobs"].append(-0.25)
    answer = replay(content, TEXT)
    assert (answer.recorded.ids, answer.ids) == ("pieces", recorded()[1])
    assert answer.recorded.parts_at is None


def test_tokens_that_spell_another_text_are_said_to_be_followed():
    content = vllm()
    assert not replay(content).notices
    content["choices"][0]["text"] = "the dog"
    [notice] = replay(content).notices
    assert notice == (
        f"the tokens of replay spell {SAYS!r}, and its text is 'the dog': the tokens are what is written"
        " here."
    )


def test_an_answer_longer_than_the_memory_is_refused_before_it_is_summed():
    content = changed(vllm(), token_ids=recorded()[1] * 20_000, logprobs=None)
    with pytest.raises(AttnscopeError, match=r"and [A-Za-z]+ takes 256"):
        replay(content)


def test_an_engine_in_16_bits_is_named_as_a_cause():
    recorded = RecordedAnswer("vLLM", "exact", [-1.0, -2.01], causes=[])
    compare(recorded, [-1.0, -2.0], [3.0, 3.0], 2**-23, 300)
    assert recorded.parts_at == 1
    assert recorded.causes == [
        "the engine computed in 16 bits or fewer, and rounding to bfloat16 explains it"
    ]
    recorded = RecordedAnswer("vLLM", "exact", [-1.0, -4.0], causes=[])
    compare(recorded, [-1.0, -2.0], [3.0, 3.0], 2**-23, 300)
    assert recorded.parts_at == 1
    assert not recorded.causes


def test_calls_of_tools_without_their_tokens_are_refused():
    message = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "weather"}}]}
    with pytest.raises(AttnscopeError, match="has reasoning or calls of tools"):
        replay({"choices": [{"message": message}]}, messages=MESSAGES)


def test_log_probabilities_that_a_server_does_not_know_are_not_compared():
    content = vllm()
    unknown = [-9999.0, float("-inf"), -(10**400)]
    content["choices"][0]["logprobs"]["token_logprobs"][2:5] = unknown
    values = replay(content).recorded.log_probabilities
    assert [i for i, each in enumerate(values) if each is None] == [2, 3, 4]
    assert replay(content).recorded.parts_at is None


def test_tokens_that_are_not_whole_characters_are_tokenized_again():
    _, ids, values = recorded(says="é.")
    lossy = [{"token": "\ufffd", "bytes": [239, 191, 189], "logprob": value} for value in values[:2]]
    entries = [*lossy, {"token": ".", "bytes": [46], "logprob": values[2]}]
    content = {"choices": [{"text": "é.", "logprobs": {"content": entries}}]}
    answer = replay({"request": {"prompt": [TEXT]}, "response": content})
    assert (answer.ids, answer.recorded.ids, answer.recorded.drift) == (ids, "retokenised", 0)


def test_a_stream_that_breaks_off_says_so(tmp_path):
    file = tmp_path / "stream.txt"
    chunk = {"choices": [{"index": 0, "text": SAYS, "token_ids": recorded()[1]}]}
    lines = [chunk, {"error": {"message": "out of memory"}}]
    file.write_text("".join(f"data: {json.dumps(line)}\n\n" for line in lines))
    notices = replay(file, TEXT).notices
    assert any("ends with an error of the server: out of memory." in each for each in notices)


@pytest.mark.parametrize("options", [{"rows": "reading"}, {"rows": "segments"}, {}])
def test_rows_of_a_recorded_answer_are_those_of_its_tokens(options):
    answer = replay(vllm(), TEXT, verify=True, **options)
    assert answer.recorded.parts_at is None
    assert all(check.ok for check in answer.checks)


def test_an_answer_about_a_picture_is_replayed():
    model, processor = loaded("qwen2_vl")
    image = io.BytesIO()
    picture(50, 37).save(image, "PNG")
    url = f"data:image/png;base64,{b64encode(image.getvalue()).decode()}"
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "what is?"}]
    prompt = read_messages(
        find_model(model, processor=processor), model.config, [{"role": "user", "content": parts}]
    )
    ids = processor.tokenizer("a cat", add_special_tokens=False)["input_ids"]
    _, scores = whole_pass(model, prompt.inputs, ids)
    n = len(prompt.tokens)
    values = [float(scores[n - 1 + i, number]) for i, number in enumerate(ids)]
    entries = [{"token": "?", "id": a, "logprob": b} for a, b in zip(ids, values, strict=True)]
    choice = {"message": {"content": "a cat"}, "logprobs": {"content": entries}}
    response = {"choices": [choice], "usage": {"prompt_tokens": n, "completion_tokens": len(ids)}}
    both = {"request": {"messages": [{"role": "user", "content": parts}]}, "response": response}
    answer = attnscope.answer(model, replay=both, processor=processor)
    assert (answer.ids, len(answer.pictures)) == (ids, 1)
    assert answer.recorded.parts_at is None
    choice |= {"prompt_token_ids": prompt.inputs["input_ids"][0].tolist(), "token_ids": ids}
    with pytest.raises(AttnscopeError, match="has tokens of a picture, a video or a recording"):
        attnscope.answer(model, replay=response, processor=processor)


def test_an_answer_of_an_encoder_decoder_is_replayed():
    torch.manual_seed(0)
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 8, "num_layers": 2, "num_heads": 2}
    config = T5Config(vocab_size=len(TOKENIZER), decoder_start_token_id=0, **sizes)
    model = T5ForConditionalGeneration(config).eval()
    ids = TOKENIZER(SAYS, add_special_tokens=False)["input_ids"]
    before = TOKENIZER(TEXT, return_tensors="pt")
    with torch.no_grad():
        labels = torch.tensor([ids])
        logits = model(input_ids=before["input_ids"], labels=labels).logits[0].log_softmax(-1)
    values = [float(logits[i, number]) for i, number in enumerate(ids)]
    content = changed(vllm(), token_ids=ids, prompt_token_ids=None)
    content["choices"][0]["logprobs"]["token_logprobs"] = values
    answer = attnscope.answer(model, TEXT, replay=content, tokenizer=TOKENIZER)
    assert (answer.stack, answer.ids) == ("cross", ids)
    assert answer.recorded.parts_at is None


def test_tokens_of_a_draft_have_no_log_probabilities():
    """llama-server writes 0 and an empty list for them, and leaves them out of a stream."""
    content = llama_cpp()
    content["completion_probabilities"][4]["logprob"] = 0.0
    content |= {"timings": {"draft_n": 8, "draft_n_accepted": 1}, "tokens_predicted": 10}
    answer = replay(content, TEXT)
    assert [i for i, each in enumerate(answer.recorded.log_probabilities) if each is None] == [4]
    assert answer.recorded.parts_at is None
    del content["completion_probabilities"][4]
    answer = replay(content, TEXT)
    assert answer.recorded.log_probabilities == [None] * len(answer.ids)
    assert any("leaves out tokens of a draft" in each for each in answer.notices)


@pytest.mark.parametrize(
    ("name", "quantized"),
    [
        ("models/SmolLM2-135M-Instruct.Q4_1.gguf", True),
        ("qwen2.5-0.5b-instruct-q4_k_m.gguf", True),
        ("Qwen/Qwen3-0.6B-FP8", True),
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", True),
        ("RedHatAI/Llama-3.2-1B-Instruct-quantized.w8a8", True),
        ("Qwen/Qwen3-0.6B", False),
        ("gpt-4o", False),
    ],
)
def test_quantized_weights_of_the_engine_are_named_as_a_cause(name, quantized):
    response = read_response(vllm() | {"model": name})
    causes = [f"the engine ran {name.rpartition('/')[2]}, whose weights are quantized"]
    assert response.causes == (causes if quantized else [])


def test_probabilities_that_llama_cpp_adds_one_by_one_explain_a_difference():
    logits = np.random.default_rng(0).normal(0, 1, 49152).astype(np.float32)
    logits[0] = 18.0  # beside whose probability most others are lost
    added = np.cumsum(np.exp(logits - logits[0]), dtype=np.float32)[-1]
    exact = np.exp(logits.astype(np.float64) - 18).sum()
    there, here = -float(np.log(added)), -float(np.log(exact))
    assert abs(there - here) > 2e-4
    for engine, parts_at in [("llama.cpp", None), ("OpenAI-compatible", None), ("vLLM", 0)]:
        recorded = RecordedAnswer(engine, "exact", [there])
        compare(recorded, [here], [18.0], 2**-23, len(logits))
        assert recorded.parts_at == parts_at
