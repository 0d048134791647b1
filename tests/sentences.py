"""Records of Python and of the command line: equal but for words, keywords in one and flags in the other."""

from typing import Any


def without_sentences(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record with the number of its findings and notices instead of them."""
    return {
        key: len(each) if key in ("findings", "notices") and each else each
        for key, each in record.items()
    }
