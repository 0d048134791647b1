"""Read a chat, rendered by the model's chat template, with a segment for each message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnscope.base.errors import ModelError, OptionError, first_line, is_out_of_memory
from attnscope.base.spelling import spelled
from attnscope.base.text import described
from attnscope.base.units import percent
from attnscope.model.answers.prompt import Prompt
from attnscope.model.answers.segments.chat import Chat, read_chat, source_of
from attnscope.model.answers.segments.of_text import (
    encode_with_ranges,
    find_stretches,
    notices_without_tokens,
    read_definitions,
    segments_of,
)
from attnscope.model.answers.segments.provenance import Provenance, Render, literals_of, trace_chat
from attnscope.model.run.load import load_processor, load_tokenizer
from attnscope.model.run.tokenize import (
    batch_of,
    max_tokens,
    notices_of_cut,
    notices_of_unknown,
    tokens_of,
)

if TYPE_CHECKING:
    from attnscope.model.files.checkpoint import Checkpoint


def read_messages(
    checkpoint: Checkpoint,
    config: Any,
    messages: Any,
    segments: Any = None,
    *,
    fps: float | None = None,
) -> Prompt:
    """Render a chat as the model reads it before it writes, and find each message in it.

    Segments are named by roles, `user`, or `user 1`, `user 2` if there are several; `document 1`; and
    `tools`; those that the user defines are parts of messages. What the template itself writes is the
    segment `template`. The template, that of the processor if there is one, is run with a prompt for the
    model's answer. A token on a border belongs to the segment of most of its characters, the first of
    two with equally many.
    """
    chat = read_chat(messages)
    if fps is not None and all(part["type"] != "video" for part in chat.pictures):
        raise OptionError(
            f"{spelled('fps')} is that of a video, and the messages have none.",
            hint=f"no {spelled('fps')}",
        )
    if chat.pictures:
        return _read_pictures(checkpoint, config, chat, segments, fps)
    tokenizer = templated = load_tokenizer(checkpoint)
    if not tokenizer.chat_template and hasattr(config, "vision_config"):
        templated = load_processor(checkpoint)  # which may have the template alone
    found, notices = render_chat(chat, templated, checkpoint.name)
    result, ranges = encode_with_ranges(tokenizer, found.text, checkpoint.name, special=False)
    ids = list(result["input_ids"])
    shorter = "fewer messages, or shorter ones"
    notices_of_cut(spelled("messages"), len(ids), max_tokens(config), truncate=False, hint=shorter)
    owners, more = owners_of_chat(found, segments)
    parts, without = segments_of(owners, ranges, "template")
    notices += more + notices_without_tokens(without)
    notices += notices_of_unknown(tokenizer, ids, spelled("messages"))
    inputs = {name: batch_of(result[name]) for name in tokenizer.model_input_names if name in result}
    return Prompt(inputs, tokens_of(tokenizer, ids), parts, tokenizer=tokenizer, notices=notices)


def _read_pictures(
    checkpoint: Checkpoint, config: Any, chat: Chat, segments: Any, fps: float | None
) -> Prompt:
    """Read a chat with pictures in its messages; raise as `read_messages` and `join`."""
    from attnscope.model.answers.segments.of_pictures import Written, read_pictures

    sources: dict[str, list[Any]] = {"picture": [], "video": []}
    for part in chat.pictures:
        sources["video" if part["type"] == "video" else "picture"].append(source_of(part))

    def write(processor: Any) -> Written:
        found, notices = render_chat(chat, processor, checkpoint.name)
        owners, more = owners_of_chat(found, segments)
        return found.text, owners, notices + more

    return read_pictures(checkpoint, config, sources["picture"], sources["video"], write, fps=fps)


def render_chat(chat: Chat, templated: Any, name: str) -> tuple[Provenance, list[str]]:
    """Render a chat by the template of a tokenizer or processor, and find where characters come from.

    Return notices of what the template drops, too.
    """
    template = getattr(templated, "chat_template", None)
    if template is None and getattr(templated, "tokenizer", None) is not None:
        templated = templated.tokenizer
        template = templated.chat_template
    if not template:
        raise ModelError(
            f"{name} has no chat template, which says how a chat becomes a text.",
            hint=f"{spelled(text='…')}, with the marks that the model was trained on",
        )
    templates = [*template.values()] if isinstance(template, dict) else [template]
    if not all(isinstance(each, str) for each in templates):
        raise ModelError(
            f"the chat template of {name} is {described(template)}, not a text.",
            hint=f"{spelled(text='…')}, with the marks that the model was trained on",
        )
    options: dict[str, Any] = {}
    if isinstance(template, dict):
        which = "rag" if chat.documents and "rag" in template else "default"
        which = "tool_use" if chat.tools and "tool_use" in template else which
        if which not in template:
            raise ModelError(
                f"{name} has the chat templates {', '.join(template)}, but none for this chat."
            )
        template = options["chat_template"] = template[which]

    def render(other: Chat) -> str:
        try:
            return templated.apply_chat_template(
                other.messages,
                tools=other.tools,
                documents=other.documents,
                add_generation_prompt=True,
                tokenize=False,
                **options,
            )
        except Exception as error:  # a template can raise anything
            if is_out_of_memory(error):
                raise
            raise ModelError(
                f"the chat template of {name} refuses the messages: {first_line(error).rstrip('.')}."
            ) from error

    in_parts = chat.in_parts()
    if _unread(chat, render) and not _unread(in_parts, render):
        chat = in_parts
    lists = [each["content"] for each in chat.messages if isinstance(each.get("content"), list)]
    text = render(chat) if lists else ""
    if any(str(content) in text for content in lists):
        raise ModelError(
            f"the chat template of {name} takes contents that are texts: it writes a list of parts as"
            " Python does.",
            hint='"content": "…"',
        )
    tokenizer = getattr(templated, "tokenizer", templated)
    literals = literals_of(template) + list(getattr(tokenizer, "all_special_tokens", []))
    found = trace_chat(chat, render, literals, name)
    return found, _notices_of_dropped(chat, found, render)


def _unread(chat: Chat, render: Render) -> bool:
    """Check whether a template fails, or writes nothing of a message whose content is a text.

    The templates of models that read pictures may expect lists of parts, and nothing else.
    """
    try:
        text = render(chat)
        return any(
            render(chat.replaced({source.path: ""})) == text
            for source in chat.sources()
            if source.says and source.path[0] == "messages" and source.text.strip()
        )
    except ModelError:
        return True


def _without_calls(chat: Chat, found: Provenance, render: Render) -> dict[str, int]:
    """Return the messages whose calls of tools the template leaves out: names, and numbers from 1."""
    left_out = {}
    for n, (name, message) in enumerate(zip(chat.names, chat.messages, strict=True)):
        if message.get("tool_calls"):
            rest = {"content": "", **message}
            del rest["tool_calls"]
            others = [*chat.messages[:n], rest, *chat.messages[n + 1 :]]
            try:
                if render(Chat(others, chat.tools, chat.documents)) == found.text:
                    left_out[name] = n + 1
            except ModelError:  # which reads them, since it misses them
                pass
    return left_out


def _notices_of_dropped(chat: Chat, found: Provenance, render: Render) -> list[str]:
    """Name what the template leaves out."""
    there = {found.sources[i].owner for i in found.source if i >= 0}
    without_calls = _without_calls(chat, found, render)
    notices = [
        f"the chat template leaves out the tool calls of message {number}."
        for number in without_calls.values()
    ]
    says: dict[str, list[int]] = {name: [] for name in chat.names}
    for i, source in enumerate(found.sources):
        if source.says:
            says.setdefault(source.owner, []).append(i)
    for name, of_name in says.items():
        texts = "".join(found.sources[i].text for i in of_name)
        lost = sum(found.lost(i) for i in of_name)
        if name not in there and name in without_calls:
            continue
        if name not in there:
            empty = "is empty" if not texts.strip() else "is left out by the chat template"
            notices.append(f"{name} {empty}: it has no tokens.")
        elif lost:
            share = percent(lost / sum(len(found.tagged[i]) for i in of_name))
            notices.append(f"the chat template leaves out {share} of the text of {name}.")
    if chat.tools and "tools" not in there:
        notices.append("tools are left out by the chat template: they have no tokens.")
    if chat.messages[-1]["role"] == "assistant":
        notices.append("the last message is the assistant's: the model writes another one after it.")
    return notices


def owners_of_chat(found: Provenance, segments: Any) -> tuple[list[str], list[str]]:
    """Return the name of the segment of each character of a rendered chat, and notices."""
    owners = [owner or "template" for owner in found.owners()]
    if segments is None:
        return owners, []
    contents = [i for i, source in enumerate(found.sources) if source.says]
    of_chat = {source.owner for source in found.sources}
    stretches = find_stretches(
        read_definitions(segments), [found.sources[i].text for i in contents], "the messages"
    )
    for part in stretches:
        if part.name in of_chat:
            raise OptionError(
                f"{spelled('segments')} has the name {part.name!r}, which a message has.",
                hint="another name",
            )
    notices = []
    for part in stretches:
        inside = [
            k
            for k, (i, offset) in enumerate(zip(found.source, found.offset, strict=True))
            if i == contents[part.nth] and part.first <= offset < part.end
        ]
        if not inside:
            notices.append(f"{part.name} is left out by the chat template: it has no tokens.")
        elif inside:
            for k in range(inside[0], inside[-1] + 1):  # with the escapes in it
                if found.source[k] == contents[part.nth]:
                    owners[k] = part.name
    return owners, notices
