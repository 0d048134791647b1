"""Find which text of a chat each character of the rendered prompt comes from.

A chat template is a program, which may drop, merge, trim, reorder and escape texts. So it is run
again with tags in place of the texts' characters: code points of Unicode's private planes, each of
which stands for one character of one text. What the template writes cannot contain a tag, so a tag in
its output shows which character was copied there. A rendering with tags counts only if it is the prompt
itself once its tags are replaced by their characters: otherwise the template looked into a text, and
did something else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import groupby, pairwise, product, takewhile
from typing import Any

from attnscope.base.errors import ModelError
from attnscope.base.spelling import spelled
from attnscope.base.text import shortened
from attnscope.model.answers.segments.chat import SAID, Chat, ChatText, Keys

Render = Callable[[Chat], str]

TAGS = [chr(code) for plane in (0xF0000, 0x100000) for code in range(plane, plane + 0xFFFE)]
"""Unicode's private planes: The Unicode Standard, section 23.5."""

ESCAPED = {'"', "\\", "\x7f", *map(chr, range(32))}
"""What JSON does not write as it is: RFC 8259, section 7."""


@dataclass
class Provenance:
    """Where the characters of a prompt come from."""

    text: str
    sources: list[ChatText]
    #: for each character, the index of its text in `sources`; -1: the template wrote it
    source: list[int]
    #: for each character, its index in that text; -1: it has none, as it belongs to an escape, or to
    #: JSON around the text
    offset: list[int]
    #: for each text, the characters whose fate tags show
    tagged: list[list[int]] = field(default_factory=list)

    def owners(self) -> list[str | None]:
        """Return the name of the segment of each character; None: the template wrote it."""
        names = [each.owner for each in self.sources]
        return [names[i] if i >= 0 else None for i in self.source]

    def fill(self, first: int, end: int, source: int, offset: int | None = None) -> None:
        """Let a range of characters come from a text, from its `offset` on if they are in it."""
        for k in range(first, end):
            self.source[k] = source
            self.offset[k] = -1 if offset is None else offset + k - first

    def lost(self, source: int) -> int:
        """Count the characters of a text that the template left out."""
        places = {k for i, k in zip(self.source, self.offset, strict=True) if i == source}
        return len(set(self.tagged[source]) - places)


def trace_chat(chat: Chat, render: Render, literals: list[str], name: str) -> Provenance:
    """Find where the characters of a rendered chat come from.

    Tagged characters are known. Those between two neighbours of one text belong to it if they read as
    they do there, as they are or escaped. At the ends of a text, what was not tagged, such as blanks, is
    left out in a further rendering: what is then missing came from the text. A template may look for
    `literals`.
    """
    text, sources = render(chat), chat.sources()
    found = Provenance(text, sources, [-1] * len(text), [-1] * len(text))
    _find_tagged(found, chat, render, literals, name)
    _fill_between(found)
    for i in {each: None for each in found.source if each >= 0}:
        for end in ("head", "tail"):
            _fill_end(found, i, end == "head", chat, render, name)
    _fill_objects(found, chat)
    for n in range(len(chat.messages)):
        _fill_message(found, chat, n, render)
    return found


THOUGHTS = re.compile(r"(<think>|\[THINK\])\s*((</think>|\[/THINK\])\s*)?$")
"""What a template may write before an answer, and a model too: marks of thoughts around nothing."""


def _fill_message(found: Provenance, chat: Chat, n: int, render: Render) -> None:
    """Fill all that stands between the marks that a template puts around a message.

    So thoughts and calls of tools belong to the message with what the template writes around them,
    however they were given: apart, or in its content. And so do blanks, if they are all of a content.
    The marks are what stands around a letter in place of all that the message says.
    """
    message = chat.messages[n]
    content = message.get("content")
    is_blank = isinstance(content, str) and content and content.isspace()
    thinks = isinstance(content, str) and message["role"] == "assistant"
    if not is_blank and not thinks and not message.keys() - {"role", "content"}:
        return
    letter = next(tag for tag in TAGS if tag not in found.text)
    messages = [*chat.messages]
    messages[n] = {"role": message["role"], "content": letter}
    plain = _rendered(render, Chat(messages, chat.tools, chat.documents))
    before, there, behind = plain.partition(letter)
    if not there or letter in behind or not found.text.endswith(behind):
        return
    common = takewhile(lambda pair: pair[0] == pair[1], zip(before, found.text, strict=False))
    marks = THOUGHTS.sub("", "".join(letter for letter, _ in common))
    if marks.rstrip() != THOUGHTS.sub("", before).rstrip():
        return
    own = {i for i, each in enumerate(found.sources) if each.path[:2] == ("messages", n)}
    _fill_free(found, len(marks), len(found.text) - len(behind), own)


def _find_tagged(found: Provenance, chat: Chat, render: Render, literals: list[str], name: str) -> None:
    """Find the characters that tags show: of all texts at once, or else of each alone."""
    used = set(found.text).union(*(each.text for each in found.sources))
    tags = [tag for tag in TAGS if tag not in used]
    everything = [_without_literals(each.text, [], set()) for each in found.sources]
    some = [_without_literals(each.text, literals, ESCAPED) for each in found.sources]
    if _run(found, chat, render, everything, tags):
        found.tagged = everything
        return
    found.tagged = [[] for _ in found.sources]
    for i, source in enumerate(found.sources):
        for kept in (everything, some):
            if everything[i] and not kept[i] and source.says:
                raise ModelError(
                    f"the chat template of {name} looks into the text of {source.owner}, which is"
                    f" {shortened(repr(source.text), 40)}: where it is in the prompt is not known.",
                    hint="the messages without it",
                )
            alone = [kept[i] if j == i else [] for j in range(len(kept))]
            if _run(found, chat, render, alone, tags):
                found.tagged[i] = kept[i]
                break
        else:
            if source.says:
                regex = spelled(segments="'NAME=/REGEX/'")
                raise ModelError(
                    f"the chat template of {name} rewrites the text of {source.owner},"
                    f" {shortened(repr(source.text), 40)}, so where it is in the prompt is not known.",
                    hint=f"{spelled('text')} with the prompt itself, and {regex}",
                )


def _without_literals(text: str, literals: list[str], others: set[str]) -> list[int]:
    """Return the characters of a text that are neither blanks nor among others, and in no literal."""
    left = {k for k, letter in enumerate(text) if not letter.isspace() and letter not in others}
    for literal in literals:
        for match in re.finditer(f"(?={re.escape(literal)})", text):
            left.difference_update(range(match.start(), match.start() + len(literal)))
    return sorted(left)


def _run(found: Provenance, chat: Chat, render: Render, kept: list[list[int]], tags: list[str]) -> bool:
    """Render with tags in place of some characters; note what they show if this is the prompt.

    With more characters than tags, the chat is rendered several times.
    """
    wanted = [(i, k) for i, of_text in enumerate(kept) for k in of_text]
    places: dict[int, tuple[int, int]] = {}
    for first in range(0, len(wanted), len(tags)):
        meaning = dict(zip(tags, wanted[first : first + len(tags)], strict=False))
        letters = {i: [*found.sources[i].text] for i in {i for i, _ in meaning.values()}}
        for tag, (i, k) in meaning.items():
            letters[i][k] = tag
        texts = {found.sources[i].path: "".join(each) for i, each in letters.items()}
        tagged = _rendered(render, chat.replaced(texts))
        if len(tagged) != len(found.text):
            return False
        for position, (letter, real) in enumerate(zip(tagged, found.text, strict=True)):
            if letter != real:
                i, k = meaning.get(letter, (-1, -1))
                if i < 0 or found.sources[i].text[k] != real:
                    return False
                places[position] = (i, k)
    for position, (i, k) in places.items():
        found.fill(position, position + 1, i, k)
    return True


def literals_of(template: str) -> list[str]:
    r"""Return the strings in a template's expressions, which it may look for in texts.

    >>> literals_of("<s>{% if '</think>' in m %}{{ m.split('\\n') }}{% endif %}")
    ['</think>', '\n']

    A string may go on in the next line, as that of SmolLM2 does.

    >>> literals_of("{{ '<|im_start|>system\n' }}")
    ['<|im_start|>system\n']
    """
    import jinja2

    try:
        tokens = [*jinja2.Environment().lexer.tokenize(template)]
    except jinja2.TemplateError:
        return []
    strings = dict.fromkeys(token.value for token in tokens if token.type == "string")
    return [text for text in strings if text]


def _forms(text: str) -> list[str]:
    """Return what a template may write for a text: as it is, or as it is in JSON or in Python."""
    forms = [text, *(json.dumps(text, ensure_ascii=each)[1:-1] for each in (False, True))]
    return [*dict.fromkeys([*forms, repr(text)[1:-1]])]


def _fill_between(found: Provenance) -> None:
    """Fill what is between two neighbours of one text, if it reads as it does there."""
    known = [position for position, each in enumerate(found.source) if each >= 0]
    for last, position in pairwise(known):
        if position == last + 1 or found.source[last] != found.source[position]:
            continue
        source, first = found.source[last], found.offset[last] + 1
        missing = found.sources[source].text[first : found.offset[position]]
        there = found.text[last + 1 : position]
        if missing and (there in _forms(missing) or (missing + there).isspace()):
            found.fill(last + 1, position, source, first if there == missing else None)


def _fill_end(found: Provenance, i: int, head: bool, chat: Chat, render: Render, name: str) -> None:
    """Fill what was not tagged before the first, or after the last, known character of a text.

    It is compared piece by piece: a run of blanks, a run of others. A piece that reads in the prompt as
    it does in the text is left out in a further rendering.
    """
    source, tagged = found.sources[i], set(found.tagged[i])
    while True:
        places = [position for position, each in enumerate(found.source) if each == i]
        at = places[0] if head else places[-1] + 1  # what is before, or after
        k = found.offset[places[0]] if head else found.offset[places[-1]] + 1
        rest = [*range(k - 1, -1, -1)] if head else [*range(k, len(source.text))]
        free = takewhile(lambda each: each not in tagged, rest)
        runs = [[*run] for _, run in groupby(free, lambda each: source.text[each].isspace())]
        piece = runs[0] if runs else []
        wanted = _reads(found, source.text, piece, at, head)
        if not wanted:
            return
        others = set(wanted)
        without = "".join(letter for n, letter in enumerate(source.text) if n not in others)
        seen = _rendered(render, chat.replaced({source.path: without}))
        count = len(found.text) - len(seen)
        first = at - count if head else at
        part = "".join(source.text[each] for each in sorted(wanted))
        gone = found.text[first : first + count] if count >= 0 else ""
        same = seen == found.text[:first] + found.text[first + count :]
        if not (same and count >= 0 and (count <= len(part) or gone in _forms(part))):
            if not source.says:
                return
            raise ModelError(
                f"the chat template of {name} looks into the text of {source.owner}: whether"
                f" {shortened(repr(part), 40)} beside it is of the text or of the template is not"
                " known.",
                hint="the message without it",
            )
        begin = k - count if head else k
        found.fill(
            first, first + count, i, begin if source.text[begin : begin + count] == gone else None
        )
        if count < len(part) or gone != part or len(wanted) < len(piece):
            return


def _reads(found: Provenance, text: str, piece: list[int], at: int, head: bool) -> list[int]:
    """Return the indices of a piece of a text that reads in the prompt as it does in the text."""
    letters = "".join(text[each] for each in sorted(piece))
    around = found.text[:at] if head else found.text[at:]
    if not letters:
        return []
    if any(around.endswith(form) if head else around.startswith(form) for form in _forms(letters)):
        return piece
    if not letters.isspace():
        return []
    pairs = zip(piece, reversed(around) if head else around, strict=False)
    return [each for each, _ in takewhile(lambda pair: text[pair[0]] == pair[1], pairs)]


def _rendered(render: Render, chat: Chat) -> str:
    try:
        return render(chat)
    except ModelError:
        return ""  # which is no prompt


def _fill_objects(found: Provenance, chat: Chat) -> None:
    """Fill what is around known texts: the JSON of tools, of calls of tools and of documents.

    Everything from the first known character of tools, a call or a document to the last is filled, too.
    """
    objects: list[tuple[Keys, Any]] = [(("tools",), chat.tools)]
    objects += [(("documents", n), each) for n, each in enumerate(chat.documents or [])]
    for n, message in enumerate(chat.messages):
        for key, value in message.items():
            if key not in SAID:
                parts = enumerate(value) if isinstance(value, list) else []
                objects += [(("messages", n, key, i), each) for i, each in parts]
    for path, value in objects:
        of_object = {i for i, each in enumerate(found.sources) if each.path[: len(path)] == path}
        known = [position for position, i in enumerate(found.source) if i in of_object]
        if known and isinstance(value, (dict, list)):
            _fill_free(found, known[0], known[-1] + 1, of_object)
            for first, end in _written(value, found.text, known):
                _fill_free(found, first, end, of_object)


def _fill_free(found: Provenance, first: int, end: int, sources: set[int]) -> None:
    """Fill what the template wrote in a range, unless another text than these is in it."""
    inside = {i for i in found.source[first:end] if i >= 0}
    if sources and inside <= sources:
        for k in range(first, end):
            if found.source[k] < 0:
                found.fill(k, k + 1, min(inside or sources))


def _written(value: Any, text: str, known: list[int]) -> Iterator[tuple[int, int]]:
    """Find where a prompt has a value, or else its parts, as JSON around known characters."""
    places = []
    for form in dict.fromkeys(_dumps(value)):
        for match in re.finditer(re.escape(form), text):
            if any(match.start() <= position < match.end() for position in known):
                places.append((match.start(), match.end()))
    yield from places
    if not places:
        for part in value.values() if isinstance(value, dict) else value:
            if isinstance(part, (dict, list)):
                yield from _written(part, text, known)


def _dumps(value: Any) -> Iterator[str]:
    layouts = product((None, 2, 4), (None, (",", ":")), (False, True), (False, True))
    for indent, separators, sort_keys, ascii in layouts:
        options: dict[str, Any] = {"indent": indent, "separators": separators}
        try:
            yield json.dumps(value, **options, sort_keys=sort_keys, ensure_ascii=ascii)
        except (TypeError, ValueError):
            return
    yield repr(value)
