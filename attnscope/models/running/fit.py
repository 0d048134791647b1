"""Check that a model's weights fit into memory, with what is made beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnscope.errors import SizeError
from attnscope.units import bytes_text

if TYPE_CHECKING:
    from attnscope.checkpoints.find import Checkpoint


def dtype_of(config: Any, dtype: str | None) -> str:
    """What a model is to run in: the dtype that is asked for; else what its configuration says."""
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
    """Raise a SizeError if a model's weights, and what is made beside them, have no room together.

    It is told before the weights are loaded.

    Args:
        checkpoint: the model; of one whose files are not here yet, nothing is known.
        config: its configuration.
        dtype: what it is to run in; None: what its configuration says.
        device: where.
        beside: how many bytes are taken beside them.
        what: what these bytes are.
        hint: what makes them fewer.
    """
    from attnscope.checkpoints.tensors import bytes_of_weights
    from attnscope.contracts import DTYPES
    from attnscope.process.devices import room_of

    runs_in = dtype_of(config, dtype)
    needed, room = bytes_of_weights(checkpoint, DTYPES.get(runs_in)), room_of(device)
    if needed is None or room is None or needed + beside <= room.free:
        return
    more = f" and {what} {bytes_text(beside)}" if beside else ""
    hints = ["a smaller model"]
    if runs_in not in ("bfloat16", "float16"):
        hints.append("--dtype bfloat16")
    if hint is not None and needed <= room.free:
        hints = [hint]
    raise SizeError(
        f"the weights of {checkpoint.name} take {bytes_text(needed)}{more}, and {room.on(device)}.",
        hint=", or ".join(hints),
    )
