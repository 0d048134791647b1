"""Read a chat: messages, tools and documents, from a file or as Python lists."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from attnscope.base.errors import FileError, OptionError, first_line
from attnscope.base.spelling import spelled
from attnscope.base.text import described, shortened
from attnscope.model.run.pictures import open_picture
from attnscope.model.run.text_file import whole_text

UNREAD = {"role", "type", "id", "tool_call_id", "image", "video", "audio", "url", "path", "base64"}
"""Keys whose texts say what something is, or where it is: a model does not read these texts."""

PICTURES = ("image", "image_url", "video")  #: the types of parts of a message without text

SAID = ("content", "reasoning_content", "reasoning", "thinking")
"""What a message says: its other keys hold calls of tools, and names."""

RESERVED = ("answer", "template", "special", "text", "other", "sink")  #: Names that other segments have

OF_CHAT = ("tools", "document", "picture", "video")
"""Names of segments in a chat, some of them with numbers."""

DEEPEST = 50  #: the most lists and objects that may be in each other: schemas of tools have ten

Keys = tuple[str | int, ...]


@dataclass(frozen=True)
class ChatText:
    """A text somewhere in a chat."""

    path: Keys  #: keys and indices that lead to it: `("messages", 0, "content")`
    text: str = field(repr=False)
    owner: str  #: the name of the segment that it belongs to: `user 2`, `tools`
    #: whether it is what a message or a document says, and not, say, the name of a tool
    says: bool = False


@dataclass
class Chat:
    """What a chat template renders."""

    #: `{"role": …, "content": …}`; a content is a text, or a list of parts
    messages: list[dict[str, Any]]
    tools: list[Any] | None = None
    documents: list[Any] | None = None

    @property
    def names(self) -> list[str]:
        """The segment of each message: its role, with a number if several messages have it.

        A role that is the name of another segment, such as `answer`, is called `role answer`.
        """
        roles = [message["role"] for message in self.messages]
        return numbered([f"role {each}" if each in (*RESERVED, *OF_CHAT) else each for each in roles])

    def sources(self) -> list[ChatText]:
        """Return all texts in it, in the order of the chat."""
        found = []
        for i, (name, message) in enumerate(zip(self.names, self.messages, strict=True)):
            for path, text in _texts(message, ("messages", i)):
                found.append(ChatText(path, text, name, says=path[2] in SAID))
        for path, text in _texts(self.tools or [], ("tools",)):
            found.append(ChatText(path, text, "tools"))
        for path, text in _texts(self.documents or [], ("documents",)):
            found.append(ChatText(path, text, f"document {int(path[1]) + 1}", says=True))
        return found

    def replaced(self, texts: dict[Keys, str]) -> Chat:
        """Return a chat with other texts at some paths."""
        parts = {"messages": self.messages, "tools": self.tools, "documents": self.documents}
        return Chat(**_replaced(parts, (), texts))

    def in_parts(self) -> Chat:
        """Return the same chat with the content of each message as a list of parts."""
        messages = [
            {**each, "content": [{"type": "text", "text": each["content"]}]}
            if isinstance(each.get("content"), str)
            else each
            for each in self.messages
        ]
        return Chat(messages, self.tools, self.documents)

    @property
    def pictures(self) -> list[dict[str, Any]]:
        """The parts of its messages that are pictures or videos, in their order."""
        return [
            part
            for message in self.messages
            if isinstance(message.get("content"), list)
            for part in message["content"]
            if part.get("type") in PICTURES
        ]


def numbered(names: list[str]) -> list[str]:
    """Number names that occur several times.

    >>> numbered(["system", "user", "assistant", "user"])
    ['system', 'user 1', 'assistant', 'user 2']
    """
    counts: dict[str, int] = {}
    result = []
    for name in names:
        counts[name] = counts.get(name, 0) + 1
        result.append(f"{name} {counts[name]}" if names.count(name) > 1 else name)
    return result


def _texts(node: Any, path: Keys) -> Iterator[tuple[Keys, str]]:
    if isinstance(node, str):
        yield path, node
    elif isinstance(node, dict):
        for key, value in node.items():
            if key not in UNREAD:
                yield from _texts(value, (*path, key))
    elif isinstance(node, list):
        for i, value in enumerate(node):
            yield from _texts(value, (*path, i))


def _replaced(node: Any, path: Keys, texts: dict[Keys, str]) -> Any:
    if isinstance(node, dict):
        return {key: _replaced(value, (*path, key), texts) for key, value in node.items()}
    if isinstance(node, list):
        return [_replaced(value, (*path, i), texts) for i, value in enumerate(node)]
    return texts.get(path, node)


def source_of(part: dict[str, Any]) -> Any:
    """Return the file, or the image of pillow, that a part of a message names.

    That is `{"type": "image", "image": FILE}`, or `path` or `url` in place of `image`; as OpenAI has it,
    `{"type": "image_url", "image_url": {"url": …}}`. A URL is `file:` or `data:`.
    """
    kind = part["type"]
    names = (kind, "image", "video", "path", "url")
    value = next((part[name] for name in names if part.get(name) is not None), None)
    value = value.get("url") if isinstance(value, dict) else value
    if not isinstance(value, str):
        if value is None or isinstance(value, (int, float, list, dict)):
            raise OptionError(
                f"a part of the type {kind} names no file: {described(part)}.",
                hint=f'{{"type": "{kind}", "path": "FILE"}}',
            )
        return value
    if value.startswith("data:"):
        return _decoded(value)
    if re.match(r"https?:", value):
        raise OptionError(
            f"{shortened(value, 60)} is on the network, and pictures are read from files.",
            hint="the file, downloaded",
        )
    return Path(unquote(value.removeprefix("file://"))) if value.startswith("file:") else Path(value)


def _decoded(url: str) -> Any:
    """Return the picture in a `data:` URL (RFC 2397)."""
    from base64 import b64decode

    about, _, data = url.partition(",")
    name = shortened(url, 40)
    try:
        if not about.endswith(";base64"):
            raise ValueError("it is not in base64")
        content = b64decode(data, validate=True)
    except ValueError as error:
        raise OptionError(f"{name} is not a picture: {first_line(error)}.") from error
    return open_picture(content, name)


SHAPE = '[{"role": "user", "content": "…"}], or {"messages": […], "tools": […], "documents": […]}'


def read_chat(messages: Any) -> Chat:
    """Read a file of JSON, `-`, a list of messages, or a dict of `messages`, `tools` and `documents`."""
    name = "messages"
    if isinstance(messages, (str, Path)):
        name = spelled("messages", shortened(messages))
        try:
            messages = json.loads(whole_text(str(messages)))
        except (ValueError, RecursionError) as error:
            raise FileError(f"{name} is not JSON: {first_line(error)}.", hint=SHAPE) from error
    if isinstance(messages, dict) and "messages" not in messages and "role" in messages:
        messages = [messages]
    if _depth(messages) > DEEPEST:
        raise OptionError(
            f"{name} has lists and objects in each other, more than {DEEPEST} of them.", hint=SHAPE
        )
    chat = messages if isinstance(messages, dict) else {"messages": messages}
    found: dict[str, Any] = {key: chat.get(key) for key in ("messages", "tools", "documents")}
    for key, value in found.items():
        if value is None and key != "messages":
            continue
        if key == "messages" and isinstance(value, (list, tuple)) and not value:
            raise OptionError(f"{name} is an empty list.", hint=SHAPE)
        if not isinstance(value, (list, tuple)):
            what = "has no list of messages" if value is None else f"has {key} {described(value)}"
            raise OptionError(f"{name} {what}.", hint=SHAPE)
    for number, message in enumerate(found["messages"], 1):
        _check(message, f"message {number} of {name}")
    for number, document in enumerate(found["documents"] or [], 1):
        if not isinstance(document, (dict, str)):
            raise OptionError(
                f"document {number} of {name} is {described(document)}.",
                hint='{"title": "…", "text": "…"}',
            )
    plain = [{k: v for k, v in each.items() if v is not None} for each in found["messages"]]
    return Chat(plain, list(found["tools"] or []) or None, list(found["documents"] or []) or None)


def _depth(value: Any) -> int:
    """Return how many lists and objects are in each other, counted to one more than `DEEPEST`."""
    depth, level = 0, [value]
    while level and depth <= DEEPEST:
        level = [each for each in level if isinstance(each, (dict, list, tuple))]
        level = [one for each in level for one in (each.values() if isinstance(each, dict) else each)]
        depth += 1
    return depth


def _check(message: Any, name: str) -> None:
    """Raise an OptionError unless a message has a role, and a content or calls of tools."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise OptionError(f"{name} has no role: it is {described(message)}.", hint=SHAPE)
    content = message.get("content")
    if content is None and not message.get("tool_calls"):
        raise OptionError(f"{name} ({shortened(message['role'])}) has no content.", hint=SHAPE)
    parts = content if isinstance(content, list) else []
    if not isinstance(content, (str, list, type(None))):
        raise OptionError(f"{name} has the content {described(content)}.", hint='"content": "…"')
    if not isinstance(calls := message.get("tool_calls") or [], (list, tuple)):
        raise OptionError(f"{name} has the tool_calls {described(calls)}, not a list.", hint=SHAPE)
    for part in parts:
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise OptionError(
                f"{name} has a part without a type: {described(part)}.",
                hint='{"type": "text", "text": "…"}',
            )
        if part["type"] == "text" and not isinstance(part.get("text"), str):
            raise OptionError(
                f"{name} has a part whose text is {described(part.get('text'))}.",
                hint='{"type": "text", "text": "…"}',
            )
