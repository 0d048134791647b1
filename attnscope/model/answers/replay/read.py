"""Turn what a server returned into a prompt, and the ids of an answer that the model shall write."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import OptionError
from attnscope.base.spelling import spelled
from attnscope.base.text import shortened
from attnscope.base.units import counted
from attnscope.model.answers.prompt import Prompt, Segment
from attnscope.model.answers.replay.recorded import RecordedAnswer
from attnscope.model.answers.replay.response import (
    COUNT,
    RecordedToken,
    Response,
    ResponseFields,
    read_response,
)
from attnscope.model.answers.segments.of_messages import read_messages
from attnscope.model.answers.segments.of_text import read_text
from attnscope.model.run.load import load_tokenizer, tokenizer_of
from attnscope.model.run.read_inputs import check_ids
from attnscope.model.run.tokenize import batch_of, encoded, pieces_of, tokens_of

if TYPE_CHECKING:
    from attnscope.model.files.checkpoint import Checkpoint

EXACT = (
    'a request without "stream", with "return_token_ids": true (vLLM) or "logprobs": true (llama.cpp)'
)

UNUSED = ("chat_template", "chat_template_kwargs", "add_generation_prompt", "continue_final_message")
"""ResponseFields of a request that change how the chat template is applied, which are not used here."""

PLACEHOLDERS = ("image_token_id", "image_token_index", "video_token_id", "audio_token_id")
"""ResponseFields of a configuration with the ids of placeholders: of pictures, videos and recordings."""


def read_replay(
    checkpoint: Checkpoint,
    config: Any,
    replay: Any,
    prompt: Prompt | None,
    segments: Any = None,
    choice: int | None = None,
) -> tuple[Prompt, RecordedAnswer]:
    """Read an answer that an engine wrote, and its prompt, which the user may give instead."""
    response = read_response(replay, choice)
    prompt = _prompt(checkpoint, config, response, prompt, segments)
    ids, kind, notices = _ids(checkpoint, response)
    check_ids(checkpoint, config, ids, spelled("replay"))
    values, drift = _values(tokenizer_of(checkpoint), response, ids, kind)
    if drift is not None:
        notices.append(
            f"from token {drift} of the answer on, its tokens are others than the engine's, or those are"
            " not known: log-probabilities are not compared."
        )
    if response.n_prompt not in (None, len(prompt.tokens)):
        own = f"the engine read a prompt of {counted(response.n_prompt, 'token')}"
        notices.append(f"{own}, and this one has {len(prompt.tokens)}.")
        response.causes.insert(0, own)
    prompt.answer = ids
    prompt.notices += response.notices + notices
    return prompt, RecordedAnswer(response.engine, kind, values, drift, response.causes)


def _prompt(
    checkpoint: Checkpoint, config: Any, response: Response, prompt: Prompt | None, segments: Any
) -> Prompt:
    """Return the prompt that the user gives, or that of the file."""
    request, ids = response.request, response.prompt_ids
    requested = request.get("prompt")
    if isinstance(requested, list) and len(requested) == 1 and isinstance(requested[0], str | list):
        requested = requested[0]
    if isinstance(requested, list) and requested and all(type(each) is int for each in requested):
        ids = ids or ResponseFields(request, f"the request of {spelled('replay')}").items(
            "prompt", COUNT
        )
    has_own_prompt = prompt is not None
    if prompt is None and request.get("messages") is not None:
        chat = {key: request[key] for key in ("messages", "tools", "documents") if request.get(key)}
        prompt = read_messages(checkpoint, config, chat, segments)
        unused = [key for key in UNUSED if key in request and ids is None]
        prompt.notices += [f"{key} of the request is not used." for key in unused]
    elif prompt is None and isinstance(requested, str):
        prompt = read_text(
            checkpoint, config, requested, segments, name=f"the prompt of {spelled('replay')}"
        )
    if ids is None:
        if prompt is None:
            raise OptionError(
                f"the prompt is not in {spelled('replay')}.",
                hint=f"{spelled(text='…')} or {spelled(messages='FILE')} with it, or"
                ' {"request": {…}, "response": {…}}',
            )
        return prompt
    own = None if prompt is None else prompt.inputs["input_ids"][0].tolist()
    if prompt is not None and own == ids:
        return prompt
    if own is not None and has_own_prompt:
        at = next((i for i, (a, b) in enumerate(zip(own, ids, strict=False)) if a != b), None)
        where = f"from token {min(len(own), len(ids)) if at is None else at} on"
        raise OptionError(
            f"the prompt has other tokens than that of {spelled('replay')}, {where}.",
            hint="no other prompt than that of the file",
        )
    check_ids(checkpoint, config, ids, spelled("replay"))
    if any(getattr(config, name, None) in ids for name in PLACEHOLDERS):
        raise OptionError(
            f"the prompt of {spelled('replay')} has tokens of a picture, a video or a recording, but"
            " not it.",
            hint=f'{spelled(image="FILE", text="…")} with it, or "messages" with the picture in'
            " its request",
        )
    tokenizer = tokenizer_of(checkpoint)
    inputs = {"input_ids": batch_of(ids), "attention_mask": batch_of([1] * len(ids))}
    whole = [Segment("prompt", ((0, len(ids)),))]
    read = Prompt(inputs, tokens_of(tokenizer, ids), whole, tokenizer=tokenizer)
    if own is not None:
        read.notices.append("the engine read other tokens than the request has here: these are its own.")
    return read


def _ids(checkpoint: Checkpoint, response: Response) -> tuple[list[int], str, list[str]]:
    """Return the ids of the answer, where they are from, and notices."""
    numbers = [each.number for each in response.entries if each.number is not None]
    ids = response.ids or (numbers if len(numbers) == len(response.entries) else [])
    own = tokenizer_of(checkpoint)
    if ids and _are_complete(own, response, ids):
        return ids, "exact", _notices_of_other_text(own, response, ids)
    tokenizer = load_tokenizer(checkpoint)
    why = f"the file has the ids of {counted(len(ids), 'token')}, which do not spell it"
    if not ids:
        found, why = _ids_of_pieces(tokenizer, response)
        if found:
            return found, "pieces", _notices_of_other_text(tokenizer, response, found)
    if response.hidden or not response.text:
        raise OptionError(
            f"the answer of {spelled('replay')} has reasoning or calls of tools, which are not in"
            " its text.",
            hint=EXACT,
        )
    text = response.text.rstrip("\ufffd") or response.text  # a character that is cut off
    ids = _continuation(tokenizer, text)
    notices = [f"the text of {spelled('replay')} was tokenized again: {why}."]
    wrote = response.n_token or len(response.entries)
    if wrote and wrote - len(ids) not in (0, 1):  # one is the end of the text
        notices.append(f"the engine wrote {counted(wrote, 'token')}, and its text has {len(ids)} here.")
    return ids, "retokenised", notices


def _continuation(tokenizer: Any, text: str) -> list[int]:
    """Tokenize a text that continues another: sentencepiece puts a blank before the first word."""
    for before in ("", "\n"):
        ids = list(encoded(tokenizer, {"text": before + text}, add_special_tokens=False)["input_ids"])
        pieces = pieces_of(tokenizer, ids)
        for i in range(len(ids) if before else 1):
            if b"".join(pieces[i:]) == text.encode():
                return ids[i:]
    return list(encoded(tokenizer, {"text": text}, add_special_tokens=False)["input_ids"])


def _are_complete(tokenizer: Any, response: Response, ids: list[int]) -> bool:
    """Check whether these are the ids of all tokens: as many as the engine wrote, or with all the text.

    The end of the text, which a stream leaves out, may be missing.
    """
    if response.engine == "vLLM" or response.n_token == len(ids):
        return True
    if tokenizer is None:
        return response.n_token is None
    written = _spelled(tokenizer, ids, pieces_of(tokenizer, ids))
    return not response.hidden and written.startswith(response.text.strip(" \ufffd").encode())


def _notices_of_other_text(tokenizer: Any, response: Response, ids: list[int]) -> list[str]:
    """Say so if the tokens that are replayed do not spell the text of the answer.

    A server may cut the text before a word that stops it, and keeps reasoning apart from it: so the text
    has to be a part of what the tokens spell.
    """
    text = response.text.strip(" \ufffd")
    if tokenizer is None or not text:
        return []
    written = _spelled(tokenizer, ids, pieces_of(tokenizer, ids))
    if text.encode() in written:
        return []
    theirs = shortened(repr(written.decode(errors="replace")), 60)
    return [
        f"the tokens of {spelled('replay')} spell {theirs}, and its text is"
        f" {shortened(repr(text), 60)}: the tokens are what is written here."
    ]


def _spelled(tokenizer: Any, ids: list[int], pieces: list[bytes]) -> bytes:
    """Return the text of tokens without special ones, and without blanks around it."""
    special = set(tokenizer.all_special_ids)
    return b"".join(p for p, number in zip(pieces, ids, strict=True) if number not in special).strip(
        b" "
    )


def _ids_of_pieces(tokenizer: Any, response: Response) -> tuple[list[int], str]:
    """Return the ids of the tokens with the bytes of each piece; empty, and why they are not known."""
    while response.entries and response.entries[-1].piece == b"":  # what ends a text has none itself
        response.entries.pop()
    pieces = [each.piece for each in response.entries if each.piece is not None]
    if not pieces or len(pieces) < len(response.entries):
        return [], "the file has no ids of tokens"
    known: dict[bytes, list[int]] = defaultdict(list)
    for number, piece in enumerate(pieces_of(tokenizer, list(range(len(tokenizer))))):
        known[piece].append(number)
    blanks = any("▁" in each for each in tokenizer.get_vocab())  # a text's first is often left out
    ids = []
    for i, piece in enumerate(pieces):
        found = known.get(piece, []) + (known.get(b" " + piece, []) if blanks and not i else [])
        if len(found) != 1:
            many = f"{len(found)} tokens are" if found else "no token is"
            return [], f"{many} {piece.decode(errors='replace')!r}, which is its token {i}"
        ids += found
    spells = _spelled(tokenizer, ids, pieces) == response.text.encode().strip(b" ")
    if spells == response.hidden:  # which are tokens, too
        return [], "its tokens do not spell the text"
    return ids, ""


def _values(
    tokenizer: Any, response: Response, ids: list[int], kind: str
) -> tuple[list[float | None], int | None]:
    """Return what the engine recorded of each token, and the first that is another than the engine's."""
    entries, places = response.entries, [*range(len(ids))]
    pieces = None if tokenizer is None else pieces_of(tokenizer, ids)
    if response.engine == "llama.cpp" and pieces is not None:
        places = _ends_of_characters(pieces)

    def same(entry: RecordedToken, place: int) -> bool:
        if entry.number is not None:
            return entry.number == ids[place]
        if kind == "exact" or entry.piece is None or pieces is None:
            return kind == "exact"
        return entry.piece == pieces[place] or (not place and entry.piece == pieces[0].lstrip(b" "))

    placed = [*zip(entries, places, strict=False)]
    drift = next((place for entry, place in placed if not same(entry, place)), None)
    if 0 < len(entries) < len(places) and drift is None and kind != "exact":
        drift = places[len(entries)]
    cut = response.engine == "llama.cpp" and len(entries) < len(places)  # before a word that stops it
    if entries and kind == "exact" and (drift is not None or not (cut or len(entries) == len(places))):
        raise OptionError(
            f"{spelled('replay')} has {counted(len(ids), 'id')} and {len(entries)}"
            " log-probabilities: which belongs to which is not known.",
            hint="a whole response",
        )
    values: list[float | None] = [None] * len(ids)
    for entry, place in placed:
        if drift is None or place < drift:
            values[place] = entry.log_probability
    return values, drift


def _ends_of_characters(pieces: list[bytes]) -> list[int]:
    r"""Return the places of the pieces that end a character, rather than begin one or go on.

    >>> _ends_of_characters([b"a", b"\xc3", b"\xa9", b"\xf0\x9f"])
    [0, 2]
    """
    decoder = getincrementaldecoder("utf-8")("replace")
    ends = []
    for i, piece in enumerate(pieces):
        decoder.decode(piece)
        if not decoder.getstate()[0]:
            ends.append(i)
    return ends
