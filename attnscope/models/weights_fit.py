"""Check that a model's weights fit into memory, together with what is computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnscope.errors import SizeError
from attnscope.units import bytes_text

if TYPE_CHECKING:
    from attnscope.checkpoints.checkpoint import Checkpoint


def dtype_of(config: Any, dtype: str | None) -> str:
    """Return the dtype that a model runs in: the one requested, else that of its configuration."""
    return dtype or str(getattr(config, "dtype", None)).removeprefix("torch.")


def check_weights_fit(
    checkpoint: Checkpoint,
    config: Any,
    dtype: str | None,
    device: str,
    *,
    beside: int = 0,
    what: str = "maps",
    hint: str | None = None,
) -> None:
    """Raise a SizeError if a model's weights and what is computed do not fit together.

    The check runs before the weights are loaded.

    Args:
        checkpoint: the model; nothing is checked if its files are not downloaded yet.
        config: its configuration.
        dtype: the dtype that it will run in; None: that of its configuration.
        device: the device that it will run on.
        beside: the bytes needed in addition to the weights.
        what: what these bytes are for.
        hint: how to reduce them.
    """
    from attnscope.checkpoints.tensors import bytes_of_weights
    from attnscope.dtypes import FLOATS
    from attnscope.process.devices import free_memory

    runs_in = dtype_of(config, dtype)
    needed, free = bytes_of_weights(checkpoint, FLOATS.get(runs_in)), free_memory(device)
    if needed is None or free is None or needed + beside <= free.n_bytes:
        return
    more = f" and {what} {bytes_text(beside)}" if beside else ""
    hints = ["a smaller model"]
    if runs_in not in ("bfloat16", "float16"):
        hints.append("--dtype bfloat16")
    if hint is not None and needed <= free.n_bytes:
        hints = [hint]
    weights = f"the weights of {checkpoint.name} take {bytes_text(needed)}"
    raise SizeError(
        f"{weights}{more}, but {free.describe(device)}.",
        hint=", or ".join(hints),
    )
