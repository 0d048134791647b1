"""Run a model, or the part of it that the inputs need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from attnscope.model.run.layers import has_towers

if TYPE_CHECKING:
    import torch


class ModelInputs(Protocol):
    """The inputs of a model: one text or several."""

    @property
    def inputs(self) -> dict[str, Any]:
        """The model's arguments, on its device."""

    @property
    def target(self) -> object:
        """The input of the decoder in an encoder-decoder model; empty or None: it does not run."""


def run(model: Any, reading: ModelInputs, *, logits: bool = True, **options: Any) -> Any:
    """Run a model, or the part of it that the inputs need, and return its output.

    Args:
        logits: whether to compute logits: for a long text, they are the largest tensor.
    """
    import torch

    inputs = reading.inputs | options
    call = model
    if "pixel_values" in inputs and hasattr(model, "get_image_features"):
        call = model.get_image_features
    elif has_towers(model.config) and hasattr(model, "get_text_features"):
        call = model.get_text_features
    elif model.config.is_encoder_decoder and not reading.target:
        call = model.get_encoder()
    elif not logits:
        call = model.base_model
    with torch.no_grad():
        return call(**inputs, return_dict=True)


def main_output(output: Any) -> torch.Tensor:
    """Return a model's logits, or else its last hidden states."""
    names = [name for name in ("logits", "last_hidden_state", "pooler_output") if name in output]
    return output[names[0]] if names else next(iter(output.values()))
