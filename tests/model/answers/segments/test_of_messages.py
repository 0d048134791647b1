"""Each message of a chat is found in what real chat templates make of it."""

import io
import json
import sys
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from transformers import LlamaConfig

from attnscope.base.errors import FileError, ModelError, OptionError
from attnscope.model.answers.segments.chat import read_chat
from attnscope.model.answers.segments.of_messages import read_messages, render_chat
from attnscope.model.files.loaded import LoadedModel
from tests.model.answers.segments.templates import FORMATS, Chat
from tests.model.answers.segments.tokenizers_of import text_of, tokenizer_of
from tests.sweeps import swept

CONFIG = LlamaConfig(max_position_embeddings=4096)


def tiny(tokenizer):
    return LoadedModel("tiny", None, tokenizer=tokenizer)


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Get the weather in a city: météo",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "its name"}},
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "now", "description": "now", "parameters": {}}},
]
DOCUMENTS = [{"title": "Cats", "text": "Cats sat.\nThey ran."}, {"title": "user", "text": "Dogs: {}"}]


def message(role, content):
    return {"role": role, "content": content}


def chat_of(system, *turns, tools=None, documents=None):
    """A chat of a system's message, unless it is None, and turns of the user and the assistant."""
    messages = [] if system is None else [message("system", system)]
    names = [each["role"] for each in messages]
    n_user = (len(turns) + 1) // 2
    for i, content in enumerate(turns):
        role = "assistant" if i % 2 else "user"
        messages.append(message(role, content))
        several = (len(turns) // 2 if i % 2 else n_user) > 1
        names.append(f"{role} {i // 2 + 1}" if several else role)
    return Chat(messages, names, tools, documents)


CHATS = [
    chat_of(None, "hello"),
    chat_of("Be kind.", "hello"),
    chat_of("Be kind.", "hello \n", " hello", "\nhello\n\n"),
    chat_of("user", "user", "assistant", "system", "user", "user"),
    chat_of("x", "a", "<think>\nwell, a\n</think>\n\nanswer", "a"),
    chat_of("sys", "<|im_end|>\n", "</s>[/INST]", "<<SYS>>\nsys\n<</SYS>>\n\n"),
    chat_of("Ünïcödé 漢字 🎉", 'He said "yes"\\n', "é", "e\u0301 \u202e \U000f0000"),
    chat_of("tools", "use them", tools=TOOLS),
    chat_of(None, "use them", "weather", "now", tools=TOOLS),
    chat_of("read", "Cats", documents=DOCUMENTS),
]


def fitting(chat, kind):
    """The chat without what a template of this kind does not take."""
    if kind == "gemma" and chat.messages[0]["role"] == "system":
        chat = replace(chat, messages=chat.messages[1:], names=chat.names[1:])
    if kind not in ("qwen 3", "mistral"):
        chat = replace(chat, tools=None)
    return chat if kind == "command r" else replace(chat, documents=None)


def rendered(chat, kind):
    """What attnscope finds, and what the format says: the segment of each character."""
    tokenizer = tokenizer_of("bytes")
    template, pieces_of = FORMATS[kind]
    tokenizer.chat_template = template
    found, _ = render_chat(read_chat(as_dict(chat)), tokenizer, "tiny")
    pieces = [(name or "", text) for name, text in pieces_of(chat)]
    assert found.text == "".join(text for _, text in pieces), "the two formats differ"
    return found, runs([name or "" for name in found.owners()], found.text), runs_of_pieces(pieces)


def as_dict(chat):
    return {"messages": chat.messages, "tools": chat.tools, "documents": chat.documents}


def runs_of_pieces(pieces):
    owners = [name for name, text in pieces for _ in text]
    return runs(owners, "".join(text for _, text in pieces))


def runs(owners, text):
    """Neighbouring characters of one segment, joined: (segment, text)."""
    at, result = 0, []
    for name, run in groupby(owners):
        n = len([*run])
        result.append((name, text[at : at + n]))
        at += n
    return result


@pytest.mark.few(6)
@pytest.mark.parametrize("kind", FORMATS)
def test_each_character_of_a_rendered_chat_is_of_the_right_message(kind):
    for chat in CHATS:
        _, found, expected = rendered(fitting(chat, kind), kind)
        assert found == expected, chat


MARKS = [
    *("<|im_start|>", "<|im_end|>", "<|eot_id|>", "[INST]", "[/INST]", "<<SYS>>", "</s>", "<s>"),
    *("user", "system", "assistant", "content", "role", "<|user|>", "<end_of_turn>", "model"),
    *("<think>", "\n</think>\n\n", "<｜User｜>", '"', "\\", "{{ bos_token }}", "{", "'"),
]
BLANKS = st.text(alphabet=" \n\t\r\u3000", max_size=3)
CONTENTS = st.lists(
    st.one_of(st.sampled_from(MARKS), st.text(max_size=8), BLANKS), min_size=0, max_size=5
).map("".join)


@st.composite
def chats(draw):
    """Chats whose contents have marks, blanks and all of Unicode, and often contain one another."""
    contents = [draw(CONTENTS)]
    for _ in range(draw(st.sampled_from([1, 3, 5]))):
        other = draw(st.sampled_from(contents))
        more = draw(st.one_of(st.none(), CONTENTS))
        contents.append(draw(CONTENTS) if more is None else other + more)
    return chat_of(draw(st.sampled_from([None, contents[0]])), *contents[1:])


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", swept(FORMATS, ["deepseek r1", "llama 2", "mistral"]))
@given(chat=chats())
@example(chat=chat_of("", "a\n", "", "a"))
@example(chat=chat_of("a", "ba", "aba", "a"))
@example(chat=chat_of("</think>", "a", "b</think>c", "a"))
def test_any_contents_are_found_or_refused(kind, chat):
    """Only what a template looks for may be refused: the mark at which thoughts end."""
    chat = fitting(chat, kind)
    thinks = any("</think>" in each["content"] for each in chat.messages if each["role"] == "assistant")
    expected_error = "looks into the text of assistant" if thinks else "no error"
    with suppress_error(expected_error):
        _, found, expected = rendered(chat, kind)
        assert found == expected


@contextmanager
def suppress_error(says):
    """Let a ModelError pass that says this."""
    try:
        yield
    except ModelError as error:
        if says not in error.message:
            raise


@pytest.mark.few(6)
@pytest.mark.parametrize("tokens", ["bytes", "merges", "sentencepiece"])
@pytest.mark.parametrize("kind", ["chatml", "llama 2", "qwen 3"])
def test_a_token_is_of_the_segment_of_most_of_its_characters(kind, tokens):
    """Compared with one token after the other, decoded."""
    tokenizer = tokenizer_of(tokens)
    template, pieces_of = FORMATS[kind]
    tokenizer.chat_template = template
    for chat in CHATS[:9]:
        chat = fitting(chat, kind)
        prompt = read_messages(tiny(tokenizer), CONFIG, as_dict(chat))
        pieces = pieces_of(chat)
        characters = [(name or "template") for name, text in pieces for _ in text]
        text = "".join(text for _, text in pieces)
        ids = prompt.inputs["input_ids"][0].tolist()
        names = {i: each.name for each in prompt.segments for i in each.positions}
        assert sorted(names) == [*range(len(ids))]
        letters = [i for i, letter in enumerate(text) for _ in letter.encode()]
        at = 0
        for position, (number, piece) in enumerate(
            zip(ids, tokenizer.convert_ids_to_tokens(ids), strict=True)
        ):
            n = n_bytes(tokenizer, number, piece)
            after = position == 0 or ids[position - 1] in tokenizer.added_tokens_decoder
            if tokens == "sentencepiece" and after and piece.startswith("▁"):
                n -= 1  # the blank that sentencepiece puts before each text
            inside = [characters[i] for i in dict.fromkeys(letters[at : at + n])]
            if inside:
                most = max(inside.count(name) for name in inside)
                first = next(name for name in inside if inside.count(name) == most)
                assert names[position] == first, (position, piece, inside)
            at += n
        assert at == len(letters)


def n_bytes(tokenizer, number, piece):
    """How many bytes of the text a token is."""
    if number in tokenizer.added_tokens_decoder:
        return len(piece.encode())
    if piece.startswith("<0x") and len(piece) == 6:
        return 1
    if "▁" in piece or not tokenizer.decode([number]):
        return len(piece.replace("▁", " ").encode())
    alphabet = tokenizer.backend_tokenizer.pre_tokenizer is not None  # a letter of a token is a byte
    return len(piece) if alphabet else len(piece.encode())


def test_the_model_reads_what_transformers_renders():
    tokenizer = tokenizer_of("merges")
    tokenizer.chat_template = FORMATS["llama 3"][0]
    chat = CHATS[2]
    prompt = read_messages(tiny(tokenizer), CONFIG, chat.messages)
    expected = tokenizer.apply_chat_template(
        chat.messages, add_generation_prompt=True, return_dict=True, return_tensors="pt"
    )
    assert set(prompt.inputs) == set(expected)
    assert all(prompt.inputs[name].equal(expected[name]) for name in expected)
    assert len(prompt.tokens) == expected["input_ids"].shape[1]


def read(messages, template=FORMATS["chatml"][0], kind="bytes", **options):
    tokenizer = tokenizer_of(kind)
    tokenizer.chat_template = template
    return read_messages(tiny(tokenizer), CONFIG, messages, **options)


def test_calls_of_tools_and_their_results_are_segments_of_the_assistant_and_of_tools():
    call = {"type": "function", "function": {"name": "now", "arguments": {"zone": 'a "b"', "n": 3}}}
    messages = [
        message("user", "When?"),
        {"role": "assistant", "content": "Wait.", "tool_calls": [call]},
        message("tool", "noon"),
        message("tool", '{"x": "noon"}'),
        message("user", "noon"),
    ]
    prompt = read({"messages": messages, "tools": TOOLS}, FORMATS["qwen 3"][0])
    names = [each.name for each in prompt.segments]
    assert names == [*("template", "tools", "user 1", "assistant", "tool 1", "tool 2", "user 2")]
    assert text_of(prompt, "tools") == "\n".join(json.dumps(t, ensure_ascii=False) for t in TOOLS)
    written = f"Wait.\n<tool_call>\n{json.dumps(call['function'])}\n</tool_call>"
    assert text_of(prompt, "assistant") == written
    assert text_of(prompt, "tool 1") == "noon"
    assert text_of(prompt, "tool 2") == '{"x": "noon"}'
    assert text_of(prompt, "user 2") == "noon"
    everything = "".join(text_of(prompt, name) for name in names)
    assert len(everything) == len(prompt.tokenizer.decode(prompt.inputs["input_ids"][0]))


def test_results_of_tools_are_found_where_they_are_escaped():
    messages = [
        message("user", "When?"),
        {
            "role": "assistant",
            "tool_calls": [{"id": "123456789", "function": {"name": "now", "arguments": {"a": "x"}}}],
        },
        {"role": "tool", "tool_call_id": "123456789", "content": 'it is\n"noon"'},
    ]
    prompt = read(messages, FORMATS["mistral"][0])
    assert text_of(prompt, "tool") == r"it is\n\"noon\""
    call = '{"name": "now", "arguments": {"a": "x"}, "id": "123456789"}'
    assert text_of(prompt, "assistant") == f"[TOOL_CALLS] [{call}]"


def test_kept_thoughts_are_of_the_assistant():
    written = "<think>\nb\nc\n</think>\n\na"
    messages = [message("user", "a"), message("assistant", written)]
    prompt = read(messages, FORMATS["qwen 3"][0])
    assert text_of(prompt, "assistant") == written
    assert "the last message is the assistant's" in prompt.notices[-1]
    apart = [message("user", "a"), {**message("assistant", "a"), "reasoning_content": "b\nc"}]
    prompt = read(apart, FORMATS["qwen 3"][0])
    assert text_of(prompt, "assistant") == written


@pytest.mark.parametrize("kind", ["qwen 3", "mistral"])
@pytest.mark.parametrize("content", [None, "", "Wait."])
def test_calls_of_tools_are_the_same_segment_however_they_are_given(kind, content):
    """As an object, as JSON in a text, or, where the template keeps it, in the content itself."""
    arguments = {"zone": "x", "n": 3}
    given = [arguments] if kind == "mistral" else [arguments, json.dumps(arguments)]
    found = []
    for each in given:
        call = {"id": "123456789", "type": "function", "function": {"name": "now", "arguments": each}}
        assistant = {"role": "assistant", "content": content, "tool_calls": [call]}
        prompt = read([message("user", "When?"), assistant], FORMATS[kind][0])
        found.append((text_of(prompt, "assistant"), segments_of(prompt)))
    if kind == "qwen 3" and content:
        prompt = read([message("user", "When?"), message("assistant", found[0][0])], FORMATS[kind][0])
        found.append((text_of(prompt, "assistant"), segments_of(prompt)))
    assert all(each == found[0] for each in found)
    assert found[0][0].endswith(("</tool_call>", "}]"))


def segments_of(prompt):
    return [(each.name, each.spans) for each in prompt.segments]


def test_a_content_of_blanks_has_its_tokens():
    prompt = read([message("user", "   "), message("user", "")], FORMATS["chatml"][0])
    assert text_of(prompt, "user 1") == "   "
    assert prompt.notices == ["user 2 is empty: it has no tokens."]


def test_calls_of_tools_that_the_template_drops_give_a_notice():
    call = {"type": "function", "function": {"name": "now", "arguments": {}}}
    messages = [
        message("user", "When?"),
        {"role": "assistant", "content": "", "tool_calls": [call]},
        message("user", "a"),
    ]
    assert read(messages, FORMATS["chatml"][0]).notices == [
        "the chat template leaves out the tool calls of message 2."
    ]
    messages[1]["content"] = "Wait."
    prompt = read(messages, FORMATS["chatml"][0])
    assert text_of(prompt, "assistant") == "Wait."
    assert prompt.notices == ["the chat template leaves out the tool calls of message 2."]
    assert read(messages, FORMATS["qwen 3"][0]).notices == []


def test_a_role_with_the_name_of_another_segment_is_called_a_role():
    messages = [message(role, "a") for role in ("answer", "template", "tools", "user", "document")]
    names = read_chat(messages).names
    assert names == ["role answer", "role template", "role tools", "user", "role document"]


def test_messages_that_are_nested_too_deeply_are_refused(tmp_path):
    for n in (60, 400, 100_000):
        path = tmp_path / "chat.json"
        path.write_text('[{"role": "user", "content": "a", "x": ' + "[" * n + "]" * n + "}]")
        with pytest.raises((OptionError, FileError), match=r"in each other|is not JSON"):
            read_chat(path)


@pytest.mark.parametrize("template", [5, ["a"], {"default": 5}])
def test_a_template_that_is_not_a_text_is_refused(template):
    with pytest.raises(ModelError, match=r"the chat template of tiny is .*, not a text"):
        read([message("user", "a")], template)


def test_a_message_that_the_template_drops_gives_a_notice():
    messages = [message("user", "a"), message("tool", "b"), message("user", " ")]
    prompt = read(messages, FORMATS["zephyr"][0])
    assert prompt.notices == ["tool is left out by the chat template: it has no tokens."]
    assert [each.name for each in prompt.segments] == ["template", "user 1", "user 2"]


def test_what_the_template_leaves_out_of_a_message_is_counted():
    prompt = read(CHATS[4].messages, FORMATS["qwen 3"][0])
    assert prompt.notices == ["the chat template leaves out 50.0 % of the text of assistant."]
    cut = "{% for m in messages %}{{ m.content[:5] }}w{% endfor %}"
    prompt = read([message("user", "abcdewfghi")], cut)
    assert text_of(prompt, "user") == "abcde"
    assert prompt.notices == ["the chat template leaves out 50.0 % of the text of user."]


def test_tools_that_the_template_does_not_use_give_a_notice():
    prompt = read({"messages": [message("user", "a")], "tools": TOOLS, "documents": DOCUMENTS})
    assert prompt.notices == [
        "document 1 is left out by the chat template: it has no tokens.",
        "document 2 is left out by the chat template: it has no tokens.",
        "tools are left out by the chat template: they have no tokens.",
    ]


def test_messages_that_the_template_reorders_or_repeats_are_found():
    template = "{% for m in messages[::-1] %}<{{ m.content }}>{% endfor %}{{ messages[0].content }}"
    prompt = read([message("user", "ab"), message("assistant", "ab")], template)
    assert {each.name: each.spans for each in prompt.segments} == {
        "template": ((0, 1), (3, 5), (7, 8)),
        "assistant": ((1, 3),),
        "user": ((5, 7), (8, 10)),
    }


@pytest.mark.parametrize("how", ["upper", "title", "urlencode"])
def test_a_template_that_rewrites_a_message_is_refused(how):
    with pytest.raises(ModelError, match="rewrites the text of user, 'xay a', so where") as caught:
        read([message("user", "xay a")], f"{{{{ messages[0].content | {how} }}}}")
    assert caught.value.hint.startswith("text with")


def test_a_template_that_only_counts_a_message_shows_none_of_it():
    prompt = read([message("user", "a b")], "{{ messages[0].content | length }}a b")
    assert [each.name for each in prompt.segments] == ["template"]
    assert prompt.notices == ["user is left out by the chat template: it has no tokens."]


def test_a_mark_that_may_be_of_the_template_or_of_the_text_is_refused():
    template = "{% if 'END' in messages[0].content %}{{ messages[0].content }}{% else %}{{ messages[0].content }} was cut{% endif %}"
    with pytest.raises(ModelError, match="looks into the text of user: whether 'END' beside it"):
        read([message("user", "helloEND")], template)


def test_refusals_of_templates_are_one_line():
    with pytest.raises(ModelError, match=r"of tiny refuses the messages: System role not supported\.$"):
        read([message("system", "a"), message("user", "b")], FORMATS["gemma"][0])
    with pytest.raises(ModelError, match="refuses the messages: Conversation roles must alternate"):
        read([message("user", "a"), message("user", "b")], FORMATS["llama 2"][0])
    with pytest.raises(ModelError, match="tiny has no chat template"):
        read([message("user", "a")], None)
    with pytest.raises(ModelError, match="takes contents that are texts"):
        read(
            [message("user", [{"type": "text", "text": "a"}])],
            FORMATS["chatml"][0].replace("+ message['content'] +", "~ message['content'] ~"),
        )


def test_too_many_tokens_are_refused():
    with pytest.raises(
        OptionError, match=r"messages is 5\d+ tokens long, but the model takes at most 4096"
    ):
        read([message("user", "a" * 5000)])


@pytest.mark.sweep
def test_more_characters_than_there_are_tags_are_found():
    """Unicode has 131,068 private code points in its last two planes."""
    first, second = "abc " * 40_000, "cab " * 1000
    tokenizer = tokenizer_of("bytes")
    tokenizer.chat_template = FORMATS["chatml"][0]
    found, _ = render_chat(
        read_chat([message("user", first), message("assistant", second), message("user", first)]),
        tokenizer,
        "tiny",
    )
    owners = found.owners()
    assert [owners.count(name) for name in ("user 1", "assistant", "user 2")] == [160_000, 4000, 160_000]


def test_parts_of_messages_can_be_segments():
    messages = [
        message("system", "Use [1] and [2]."),
        message("user", "Documents:\n[1:] cats \n[2:] dogs\n\nWhich? "),
    ]
    prompt = read(messages, segments="doc=[1:],[2:]; question=/W.*\\?/")
    assert text_of(prompt, "doc 1") == "[1:] cats \n"
    assert text_of(prompt, "doc 2") == "[2:] dogs"
    assert text_of(prompt, "question") == "Which?"
    assert text_of(prompt, "user") == "Documents:\n\n\n "
    assert text_of(prompt, "system") == "Use [1] and [2]."
    with pytest.raises(OptionError, match="has ranges of characters, but there are 2 messages"):
        read(messages, segments="x=0-3")
    assert text_of(read(messages[:1], segments="x=0-3"), "x") == "Use"
    with pytest.raises(OptionError, match="has the name 'user', which a message has"):
        read(messages, segments={"user": "cats"})


def test_a_part_of_a_message_that_the_template_drops_gives_a_notice():
    prompt = read(
        CHATS[4].messages, FORMATS["qwen 3"][0], segments={"thought": "well", "last": "answer"}
    )
    assert "thought is left out by the chat template: it has no tokens." in prompt.notices
    assert text_of(prompt, "last") == "answer"


def test_a_segment_without_a_token_of_its_own_gives_a_notice():
    prompt = read([message("user", "cat the")], kind="merges", segments="x=5-6")
    assert prompt.notices == [
        "x has no token: it was cut off, or is less than half of each of its tokens."
    ]
    assert text_of(prompt, "user") == "cat the"


def test_a_chat_is_read_from_a_file_and_from_standard_input(tmp_path, monkeypatch):
    chat = {"messages": CHATS[1].messages, "tools": None}
    (tmp_path / "chat.json").write_text(json.dumps(chat), encoding="utf-8-sig")
    monkeypatch.setattr(
        sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(CHATS[1].messages).encode()))
    )
    first, second = read(tmp_path / "chat.json"), read("-")
    third = read(CHATS[1].messages)
    assert first.segments == second.segments == third.segments
    assert [each.name for each in first.segments] == ["template", "system", "user"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "is not JSON"),
        ("[]", r"is an empty list"),
        ("3", "has messages 3"),
        ('{"tools": []}', "has no list of messages"),
        ('[{"content": "a"}]', "message 1 of .* has no role"),
        ('[{"role": "user"}]', r"message 1 of .* \(user\) has no content"),
        ('[{"role": "user", "content": 3}]', "has the content 3"),
        ('[{"role": "user", "content": [{"type": "text"}]}]', "a part whose text is None"),
        ('[{"role": "user", "content": "a", "tool_calls": 5}]', "has the tool_calls 5, not a list"),
        ('[{"role": "user", "content": [3]}]', "has a part without a type: 3"),
        ('{"messages": [{"role": "user", "content": "a"}], "documents": [3]}', "document 1 of .* is 3"),
    ],
)
def test_files_that_are_no_chats_are_one_line(content, says, tmp_path):
    (tmp_path / "chat.json").write_text(content)
    with pytest.raises((FileError, OptionError), match=says):
        read(tmp_path / "chat.json")


def test_a_missing_file_and_one_that_is_not_utf_8(tmp_path):
    with pytest.raises(FileError, match="there is no file"):
        read(tmp_path / "none.json")
    (tmp_path / "chat.json").write_bytes(b'[{"role": "user", "content": "\xff"}]')
    with pytest.raises(FileError, match="is not UTF-8"):
        read(tmp_path / "chat.json")
