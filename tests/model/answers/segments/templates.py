"""Chat templates in the manner of published ones, each with the same format as plain Python.

The Python says what each piece of the prompt is: a list of (segment, text). It is written from the
published formats, and shares nothing with what finds segments.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Pieces = list[tuple[str, str]]

CHATML = """\
{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}\
{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

LLAMA_2 = """\
{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}{% set system = messages[0]['content'] %}\
{% else %}{% set rest = messages %}{% set system = false %}{% endif %}\
{% for message in rest %}\
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}\
{% if loop.index0 == 0 and system != false %}\
{% set content = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + message['content'] %}\
{% else %}{% set content = message['content'] %}{% endif %}\
{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}\
{% else %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"""

LLAMA_3 = """\
{% for message in messages %}\
{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' %}\
{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"""

ZEPHYR = """\
{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\\n'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}"""

GEMMA = """\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}\
{% for message in messages %}\
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}\
{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}\
{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}\
{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}"""

QWEN_3 = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "# Tools\\n\\nYou may call one or more functions.\\n<tools>" }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\\n</tools>\\n<tool_call>\\n{\\"name\\": <function-name>}\\n</tool_call><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0].role == 'system' %}{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{%- endif %}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}{%- set content = message.content %}{%- else %}{%- set content = '' %}{%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}{{- '\\n' }}{%- endif %}
                {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
                {{- '<tool_call>\\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}{{- tool_call.arguments }}{%- else %}{{- tool_call.arguments | tojson }}{%- endif %}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' }}{{- content }}{{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

DEEPSEEK_R1 = """\
{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}\
{% set ns = namespace(system_prompt='') %}\
{%- for message in messages %}{%- if message['role'] == 'system' %}{% set ns.system_prompt = message['content'] %}{%- endif %}{%- endfor %}\
{{bos_token}}{{ns.system_prompt}}\
{%- for message in messages %}\
{%- if message['role'] == 'user' %}{{'<｜User｜>' + message['content']}}{%- endif %}\
{%- if message['role'] == 'assistant' and message['content'] is not none %}\
{% set content = message['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}\
{{'<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>'}}{%- endif %}\
{%- endfor -%}{% if add_generation_prompt %}{{'<｜Assistant｜><think>\\n'}}{% endif %}"""

MISTRAL = """\
{%- if messages[0]["role"] == "system" %}{%- set system_message = messages[0]["content"] %}{%- set loop_messages = messages[1:] %}\
{%- else %}{%- set loop_messages = messages %}{%- endif %}\
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}\
{{- bos_token }}\
{%- for message in loop_messages %}\
{%- if message["role"] == "user" %}\
{%- if tools is not none and (message == user_messages[-1]) %}\
{{- "[AVAILABLE_TOOLS] [" }}{%- for tool in tools %}{%- set tool = tool.function %}{{- '{"type": "function", "function": {' }}\
{%- for key, val in tool.items() if key != "return" %}\
{%- if val is string %}{{- '"' + key + '": "' + val + '"' }}{%- else %}{{- '"' + key + '": ' + val|tojson }}{%- endif %}\
{%- if not loop.last %}{{- ", " }}{%- endif %}{%- endfor %}{{- "}}" }}\
{%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}{%- endfor %}{{- "[/AVAILABLE_TOOLS]" }}{%- endif %}\
{%- if loop.last and system_message is defined %}{{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}\
{%- else %}{{- "[INST] " + message["content"] + "[/INST]" }}{%- endif %}\
{%- elif message.tool_calls is defined and message.tool_calls is not none %}\
{{- "[TOOL_CALLS] [" }}{%- for tool_call in message.tool_calls %}{%- set out = tool_call.function|tojson %}{{- out[:-1] }}\
{%- if not tool_call.id is defined or tool_call.id|length != 9 %}{{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}{%- endif %}\
{{- ', "id": "' + tool_call.id + '"}' }}{%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" + eos_token }}{%- endif %}{%- endfor %}\
{%- elif message["role"] == "assistant" %}{{- " " + message["content"] + eos_token }}\
{%- elif message["role"] == "tool" %}\
{{- '[TOOL_RESULTS] {"content": ' + message.content|tojson + ", " }}{{- '"call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}\
{%- endif %}{%- endfor %}"""

COMMAND_R = """\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}\
{% else %}{% set loop_messages = messages %}{% set system_message = 'Answer well.' %}{% endif %}\
{{ '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>' + '# Safety\\nBe safe.\\n' + system_message + '<|END_OF_TURN_TOKEN|>'}}\
{% for message in loop_messages %}{% set content = message['content'] %}\
{% if message['role'] == 'user' %}{{ '<|START_OF_TURN_TOKEN|><|USER_TOKEN|>' + content.strip() + '<|END_OF_TURN_TOKEN|>' }}\
{% elif message['role'] == 'assistant' %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>'  + content.strip() + '<|END_OF_TURN_TOKEN|>' }}{% endif %}{% endfor %}\
{{ '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|><results>'}}\
{% for document in documents or [] %}{{ '\\nDocument: ' }}{{ loop.index0 }}
{% for key, value in document.items() %}{{ key }}: {{value}}
{% endfor %}{% endfor %}\
{{ '</results><|END_OF_TURN_TOKEN|>' }}{% if add_generation_prompt %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{% endif %}"""

BOS, EOS = "<s>", "</s>"


@dataclass(frozen=True)
class Chat:
    """A chat, with the segment of each message."""

    messages: list[dict[str, Any]]
    names: list[str]
    tools: list[Any] | None = None
    documents: list[dict[str, str]] | None = None

    def __iter__(self) -> Iterator[tuple[str, str, str]]:
        for name, message in zip(self.names, self.messages, strict=True):
            yield name, message["role"], message.get("content", "")


def chatml(chat: Chat) -> Pieces:
    pieces = []
    for name, role, content in chat:
        pieces += [("", f"<|im_start|>{role}\n"), (name, content), ("", "<|im_end|>\n")]
    return [*pieces, ("", "<|im_start|>assistant\n")]


def merged_system(chat: Chat, first: Callable[[str], Pieces]) -> Iterator[tuple[str, str, Pieces]]:
    """Each message but the system's, with what precedes it: the system's in the first one."""
    rest = list(chat)
    before: Pieces = []
    if rest[0][1] == "system":
        before = [(name if name else "", text) for name, text in first(rest[0][2])]
        rest = rest[1:]
    for i, (name, role, content) in enumerate(rest):
        yield name, role, [*(before if i == 0 else []), (name, content)]


def stripped(pieces: Pieces) -> Pieces:
    """Pieces whose joined text is stripped."""
    pieces = list(pieces)
    while pieces and not pieces[0][1].strip():
        pieces.pop(0)
    while pieces and not pieces[-1][1].strip():
        pieces.pop()
    if pieces:
        pieces[0] = (pieces[0][0], pieces[0][1].lstrip())
        pieces[-1] = (pieces[-1][0], pieces[-1][1].rstrip())
    return pieces


def llama_2(chat: Chat) -> Pieces:
    pieces: Pieces = []

    def system(content: str) -> Pieces:
        return [("", "<<SYS>>\n"), ("system", content), ("", "\n<</SYS>>\n\n")]

    for _, role, inner in merged_system(chat, system):
        if role == "user":
            pieces += [("", f"{BOS}[INST] "), *stripped(inner), ("", " [/INST]")]
        else:
            pieces += [("", " "), *stripped(inner), ("", f" {EOS}")]
    return pieces


def llama_3(chat: Chat) -> Pieces:
    pieces: Pieces = [("", BOS)]
    for name, role, content in chat:
        head = f"<|start_header_id|>{role}<|end_header_id|>\n\n"
        pieces += [("", head), (name, content.strip()), ("", "<|eot_id|>")]
    return [*pieces, ("", "<|start_header_id|>assistant<|end_header_id|>\n\n")]


def zephyr(chat: Chat) -> Pieces:
    pieces: Pieces = []
    for name, role, content in chat:
        pieces += [("", f"<|{role}|>\n"), (name, content), ("", f"{EOS}\n")]
    return [*pieces, ("", "<|assistant|>\n")]


def gemma(chat: Chat) -> Pieces:
    pieces: Pieces = [("", BOS)]
    for name, role, content in chat:
        role = {"assistant": "model"}.get(role, role)
        pieces += [("", f"<start_of_turn>{role}\n"), (name, content.strip()), ("", "<end_of_turn>\n")]
    return [*pieces, ("", "<start_of_turn>model\n")]


def qwen_3(chat: Chat) -> Pieces:
    """For chats in which the assistant thinks in no message, or that end with the user's."""
    pieces: Pieces = []
    messages = list(chat)
    if chat.tools:
        pieces = [("", "<|im_start|>system\n")]
        if messages[0][1] == "system":
            pieces += [("system", messages[0][2]), ("", "\n\n")]
        pieces += [("", "# Tools\n\nYou may call one or more functions.\n<tools>\n")]
        pieces += [("tools", "\n".join(json.dumps(tool, ensure_ascii=False) for tool in chat.tools))]
        pieces += [("", '\n</tools>\n<tool_call>\n{"name": <function-name>}\n</tool_call><|im_end|>\n')]
        messages = messages[1:] if messages[0][1] == "system" else messages
    roles = [role for _, role, _ in messages]
    for i, (name, role, content) in enumerate(messages):
        if role == "tool":
            if i == 0 or roles[i - 1] != "tool":
                pieces += [("", "<|im_start|>user")]
            pieces += [("", "\n<tool_response>\n"), (name, content), ("", "\n</tool_response>")]
            if i + 1 == len(roles) or roles[i + 1] != "tool":
                pieces += [("", "<|im_end|>\n")]
            continue
        if role == "assistant" and "</think>" in content:
            content = content.split("</think>")[-1].lstrip("\n")
        pieces += [("", f"<|im_start|>{role}\n"), (name, content), ("", "<|im_end|>\n")]
    return [*pieces, ("", "<|im_start|>assistant\n")]


def deepseek_r1(chat: Chat) -> Pieces:
    pieces: Pieces = [("", BOS), *[(n, c) for n, role, c in chat if role == "system"]]
    for name, role, content in chat:
        if role == "user":
            pieces += [("", "<｜User｜>"), (name, content)]
        elif role == "assistant":
            content = content.split("</think>")[-1]
            pieces += [("", "<｜Assistant｜>"), (name, content), ("", "<｜end▁of▁sentence｜>")]
    return [*pieces, ("", "<｜Assistant｜><think>\n")]


def mistral(chat: Chat) -> Pieces:
    """For chats that end with the user's message."""
    pieces: Pieces = [("", BOS)]
    messages = list(chat)
    system = messages.pop(0)[2] if messages[0][1] == "system" else None
    for i, (name, role, content) in enumerate(messages):
        last = i == len(messages) - 1
        if role == "user":
            if chat.tools and last:
                pieces += [
                    ("", "[AVAILABLE_TOOLS] "),
                    ("tools", json.dumps(chat.tools, ensure_ascii=False)),
                    ("", "[/AVAILABLE_TOOLS]"),
                ]
            pieces += [("", "[INST] ")]
            if system is not None and last:
                pieces += [("system", system), ("", "\n\n")]
            pieces += [(name, content), ("", "[/INST]")]
        else:
            pieces += [("", " "), (name, content), ("", EOS)]
    return pieces


def command_r(chat: Chat) -> Pieces:
    turn, end = "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>"
    messages = list(chat)
    system = ("", "Answer well.")
    if messages[0][1] == "system":
        system = ("system", messages.pop(0)[2])
    pieces: Pieces = [("", f"{BOS}{turn}<|SYSTEM_TOKEN|># Safety\nBe safe.\n"), system, ("", end)]
    for name, role, content in messages:
        mark = {"user": "<|USER_TOKEN|>", "assistant": "<|CHATBOT_TOKEN|>"}[role]
        pieces += [("", turn + mark), (name, content.strip()), ("", end)]
    pieces += [("", f"{turn}<|SYSTEM_TOKEN|><results>")]
    for n, document in enumerate(chat.documents or []):
        pieces += [("", f"\nDocument: {n}\n")]
        (k1, v1), (k2, v2) = document.items()
        pieces += [("", f"{k1}: "), (f"document {n + 1}", f"{v1}\n{k2}: {v2}"), ("", "\n")]
    return [*pieces, ("", f"</results>{end}{turn}<|CHATBOT_TOKEN|>")]


FORMATS: dict[str, tuple[str, Callable[[Chat], Pieces]]] = {
    "chatml": (CHATML, chatml),
    "llama 2": (LLAMA_2, llama_2),
    "llama 3": (LLAMA_3, llama_3),
    "zephyr": (ZEPHYR, zephyr),
    "gemma": (GEMMA, gemma),
    "qwen 3": (QWEN_3, qwen_3),
    "deepseek r1": (DEEPSEEK_R1, deepseek_r1),
    "mistral": (MISTRAL, mistral),
    "command r": (COMMAND_R, command_r),
}
