"""Load a model with a LoRA adapter merged into its weights, without PEFT."""

from __future__ import annotations

from attnscope.checkpoints.adapter import AdaptedWeights, Adapter
from attnscope.checkpoints.checkpoint import Checkpoint
from attnscope.checkpoints.loaded import LoadedModel
from attnscope.checkpoints.tensors import Tensors
from attnscope.models.load import device_of, load_config, load_model, tokenizer_of
from attnscope.models.weights_fit import check_weights_fit


def load_adapted(
    checkpoint: Checkpoint, adapter: Adapter, *, dtype: str | None, device: str
) -> LoadedModel:
    """Load a model, merge an adapter, and return it with its tokenizer.

    A model that the user has loaded is not changed: its merged weights are new parameters of a copy.

    Args:
        checkpoint: the model.
        adapter: the adapter.
        dtype, device: as in `load_model`; merged weights are rounded to the model's dtype.

    Raises:
        ModelError: the model cannot be loaded, or the adapter does not belong to it.
        SizeError: its weights do not fit into memory.
    """
    import torch

    config, device = load_config(checkpoint), device_of(checkpoint, device)
    check_weights_fit(checkpoint, config, dtype, device)
    model = load_model(checkpoint, config, dtype=dtype, device=device)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    turns = any(type(module).__name__ == "Conv1D" for module in model.modules())
    merged = AdaptedWeights(Tensors(parameters), adapter, turns)
    for name in [*merged.modules, *merged.replaced]:
        values, _ = merged.read(name)
        old = parameters[name]
        new = torch.from_numpy(values[:].copy()).to(old.device, old.dtype)
        place, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(place), attribute, torch.nn.Parameter(new, requires_grad=False))
    image_processor = checkpoint.image_processor if isinstance(checkpoint, LoadedModel) else None
    tokenizer = tokenizer_of(checkpoint)
    return LoadedModel(checkpoint.name, None, model, tokenizer, image_processor)
