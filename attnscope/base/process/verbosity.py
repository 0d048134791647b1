"""What transformers says by itself while attnscope uses it: warnings and progress bars."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def silence_transformers() -> None:
    """Turn off transformers' warnings and progress bars: attnscope reports what matters itself."""
    with warnings.catch_warnings():  # that progress bars in notebooks need ipywidgets
        warnings.filterwarnings("ignore", "IProgress not found")
        from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


@contextmanager
def kept_verbosity() -> Iterator[None]:
    """Restore transformers' settings of warnings and progress bars afterwards.

    It is not imported for this: if it has not been imported before, its defaults are restored.
    """
    logging: Any = sys.modules.get("transformers.utils.logging")
    level = logging.get_verbosity() if logging else None
    bars = logging.is_progress_bar_enabled() if logging else True
    try:
        yield
    finally:
        logging = sys.modules.get("transformers.utils.logging")
        if logging:
            logging.set_verbosity(logging.WARNING if level is None else level)
            (logging.enable_progress_bar if bars else logging.disable_progress_bar)()


@contextmanager
def silent_transformers() -> Iterator[None]:
    """Turn off transformers' warnings and progress bars for a while."""
    with kept_verbosity():
        silence_transformers()
        yield
