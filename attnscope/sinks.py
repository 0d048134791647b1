"""Which keys are sinks: those that many heads look at where they look at nothing in particular."""

from __future__ import annotations

from collections.abc import Iterable


def sink_keys(special: Iterable[bool]) -> list[bool]:
    """Whether each key of a sequence is a sink: the first token, and every special one.

    Special are `[CLS]`, `[SEP]`, `<s>`, `</s>` and their like, wherever they stand; `[UNK]` and `[MASK]`
    stand for words, and are none.

    >>> sink_keys([True, False, False, True]), sink_keys([False, False])
    ([True, False, False, True], [True, False])

    Args:
        special: of each key in order whether it is special (`Token.special`); without padding.

    Source: Xiao et al. 2023, "Efficient Streaming Language Models with Attention Sinks", section 3.1
        (the first token); Clark et al. 2019, "What Does BERT Look At?", section 3.2 (separators).
    """
    return [position == 0 or is_special for position, is_special in enumerate(special)]


def sink_positions(special: Iterable[bool]) -> list[int]:
    """The positions of the keys that are sinks, as `sink_keys` has them.

    >>> sink_positions([True, False, False, True])
    [0, 3]
    """
    return [position for position, is_sink in enumerate(sink_keys(special)) if is_sink]
