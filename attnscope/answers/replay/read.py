"""Turn what a server returned into a prompt, and the ids of an answer that the model shall write."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from attnscope.answers.prompt import Prompt, Segment
from attnscope.answers.replay.recorded import RecordedAnswer
from attnscope.answers.replay.response import Response, read_response
from attnscope.answers.segments.of_messages import read_messages
from attnscope.answers.segments.of_text import read_text
from attnscope.errors import OptionError
from attnscope.models.load import load_tokenizer, tokenizer_of
from attnscope.models.token_ids import check_ids
from attnscope.models.token_pieces import pieces_of
from attnscope.models.tokenize import batch_of, encoded, tokens_of

if TYPE_CHECKING:
    from attnscope.checkpoints.checkpoint import Checkpoint

EXACT = 'a request with "return_token_ids": true (vLLM) or "return_tokens": true (llama.cpp)'


def read_replay(
    checkpoint: Checkpoint, config: Any, replay: Any, prompt: Prompt | None, segments: Any = None
) -> tuple[Prompt, RecordedAnswer]:
    """Read an answer that an engine wrote, and its prompt.

    Args:
        checkpoint: the model.
        config: its configuration.
        replay: as in `read_response`.
        prompt: the prompt that the user gives; None: that of the file.
        segments: named parts of the file's prompt.

    Returns:
        The prompt, with the answer's ids; and what the engine recorded of them.

    Raises:
        FileError: the file cannot be read.
        OptionError: it holds no answer or no prompt, or ids that the model does not have.
        ModelError: the model has no tokenizer, and the file has no ids.
    """
    response = read_response(replay)
    prompt = _prompt(checkpoint, config, response, prompt, segments)
    recorded, notices = _recorded(checkpoint, response)
    ids, kind = recorded
    check_ids(checkpoint, config, ids, "--replay")
    values = response.log_probabilities or [None] * len(ids)
    drift = None
    if kind == "retokenised":
        drift = _drift(pieces_of(load_tokenizer(checkpoint), ids), response.pieces)
        if drift is not None or response.pieces is None:
            kept = values[: drift or 0]
            values = kept + [None] * (len(ids) - len(kept))
        if drift is not None:
            notices.append(
                f"from token {drift} of the answer on, its tokens are others than the engine's: their"
                " log-probabilities are not compared."
            )
    prompt.answer = ids
    prompt.notices += response.notices + notices
    return prompt, RecordedAnswer(response.engine, kind, values, drift, response.causes)


def _prompt(
    checkpoint: Checkpoint, config: Any, response: Response, prompt: Prompt | None, segments: Any
) -> Prompt:
    """Return the prompt that the user gives, or that of the file."""
    request, ids = response.request, response.prompt_ids
    asked = request.get("prompt")
    if isinstance(asked, list) and asked and all(isinstance(each, int) for each in asked):
        ids = ids or asked
    given = prompt is not None
    if prompt is None and request.get("messages") is not None:
        chat = {key: request[key] for key in ("messages", "tools", "documents") if request.get(key)}
        prompt = read_messages(checkpoint, config, chat, segments)
        if request.get("chat_template_kwargs") and ids is None:
            prompt.notices.append("chat_template_kwargs of the request are not used.")
    elif prompt is None and isinstance(asked, str):
        prompt = read_text(checkpoint, config, asked, segments, name="the prompt of --replay")
    if ids is None:
        if prompt is None:
            raise OptionError(
                "the prompt is not in --replay.",
                hint='--text "…" or --messages FILE with it, or {"request": {…}, "response": {…}}',
            )
        return prompt
    own = None if prompt is None else prompt.inputs["input_ids"][0].tolist()
    if prompt is not None and own == ids:
        return prompt
    if own is not None and given:
        at = next((i for i, (a, b) in enumerate(zip(own, ids, strict=False)) if a != b), None)
        where = f"from token {min(len(own), len(ids)) if at is None else at} on"
        raise OptionError(
            f"the prompt has other tokens than that of --replay, {where}.",
            hint="no other prompt than that of the file",
        )
    check_ids(checkpoint, config, ids, "--replay")
    tokenizer = tokenizer_of(checkpoint)
    inputs = {"input_ids": batch_of(ids), "attention_mask": batch_of([1] * len(ids))}
    whole = [Segment("prompt", ((0, len(ids)),))]
    read = Prompt(inputs, tokens_of(tokenizer, ids), whole, tokenizer=tokenizer)
    if own is not None:
        read.notices.append("the engine read other tokens than the request has here: these are its own.")
    return read


def _recorded(checkpoint: Checkpoint, response: Response) -> tuple[tuple[list[int], str], list[str]]:
    """Return the ids of the answer and where they are from, and notices."""
    if response.ids is not None:
        return (response.ids, "exact"), []
    tokenizer, why = load_tokenizer(checkpoint), "the file has no ids of tokens"
    if response.pieces is not None:
        ids, why = _ids_of_pieces(tokenizer, response)
        if ids is not None:
            return (ids, "pieces"), []
    if response.hidden or not response.text:
        raise OptionError(
            "the answer of --replay has reasoning or calls of tools, which are not in its text.",
            hint=EXACT,
        )
    ids = list(encoded(tokenizer, {"text": response.text}, add_special_tokens=False)["input_ids"])
    return (ids, "retokenised"), [f"the text of --replay was tokenized again: {why}."]


def _ids_of_pieces(tokenizer: Any, response: Response) -> tuple[list[int] | None, str]:
    """Return the ids of the tokens with the bytes of each piece; None, and why they are not known."""
    pieces = response.pieces or []
    known: dict[bytes, list[int]] = defaultdict(list)
    for number, piece in enumerate(pieces_of(tokenizer, list(range(len(tokenizer))))):
        known[piece].append(number)
    blanks = any("▁" in each for each in tokenizer.get_vocab())  # a text's first is often left out
    special = set(tokenizer.all_special_ids)
    ids = []
    for i, piece in enumerate(pieces):
        found = known.get(piece, []) + (known.get(b" " + piece, []) if blanks and not i else [])
        if len(found) != 1:
            many = f"{len(found)} tokens are" if found else "no token is"
            return None, f"{many} {piece.decode(errors='replace')!r}, which is its token {i}"
        ids += found
    spelled = b"".join(p for p, number in zip(pieces, ids, strict=True) if number not in special)
    if not response.hidden and spelled.strip(b" ") != response.text.encode().strip(b" "):
        return None, "its tokens do not spell the text"
    return ids, ""


def _drift(own: list[bytes], pieces: list[bytes] | None) -> int | None:
    """Return the first token that differs; None: there is none, or the pieces are not known."""
    if pieces is None or own == pieces:
        return None
    pairs = zip(own, pieces, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(own), len(pieces)))
