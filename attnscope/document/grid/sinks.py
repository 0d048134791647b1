"""Attention sinks: keys that many heads attend to when they attend to nothing in particular."""

from __future__ import annotations

from collections.abc import Iterable


def sink_keys(special: Iterable[bool]) -> list[bool]:
    """Mark the keys of a sequence that are sinks: the first token and all special tokens.

    Special tokens are `[CLS]`, `[SEP]`, `<s>`, `</s>` and the like, at any position; `[UNK]` and
    `[MASK]` stand for words, so they are not.

    >>> sink_keys([True, False, False, True]), sink_keys([False, False])
    ([True, False, False, True], [True, False])

    Args:
        special: whether each key is a special token (`Token.special`), in order, without padding.

    Source: Xiao et al. 2023, "Efficient Streaming Language Models with Attention Sinks", section 3.1
        (the first token); Clark et al. 2019, "What Does BERT Look At?", section 3.2 (separators).
    """
    return [position == 0 or is_special for position, is_special in enumerate(special)]


def sink_positions(special: Iterable[bool]) -> list[int]:
    """Return the positions of the keys that are sinks, according to `sink_keys`.

    >>> sink_positions([True, False, False, True])
    [0, 3]
    """
    return [position for position, is_sink in enumerate(sink_keys(special)) if is_sink]
