"""Read one head's weights, and compare them with a run of the model: `attnscope.head_weights`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attnscope.base.errors import ModelError
from attnscope.base.process.progress import Progress, silent, stage
from attnscope.base.suggestions import quoted
from attnscope.model.files.checkpoint import Checkpoint, find_checkpoint
from attnscope.model.files.gguf_model import GgufModel, find_gguf, is_gguf
from attnscope.model.files.loaded import find_model
from attnscope.model.files.result import HeadWeights
from attnscope.model.files.tensors import FILES
from attnscope.model.weights.read_head import read_head


def head_weights(
    model: Any = None,
    layer: int | None = None,
    head: int = 0,
    *,
    stack: str | None = None,
    circuits: bool = False,
    verify: bool = False,
    progress: Progress = silent,
) -> HeadWeights:
    """Read one head's part of W_Q, W_K, W_V, W_O and of their biases, as `attnscope bert` shows it.

    From files, the bytes of one layer are read, without torch or transformers. From a loaded model, its
    current weights are read.

    For example::

        head = attnscope.head_weights("minilm", layer=0, head=3)
        head["W_Q"].array  # d_head d_feat, numpy
        head.to_pandas()
        head.save("head.safetensors")

    Args:
        model: `minilm`, a folder, a hub name, a GGUF file, another file of weights beside its
            config.json, or a model that transformers has loaded; None: `minilm` where it is installed,
            else `bert-base-uncased`.
        layer: the layer's index, from 0; None: the first with attention.
        head: a query head's index, from 0; its W_K and W_V are those of its key/value head.
        stack: the stack of layers: `encoder`, `decoder` or `cross`, `text` or `vision`; None: the first.
        circuits: compute the singular values of W_Qᵀ·W_K and of W_O·W_V, too.
        verify: run the model in float64, and compare the weights with its computation.
        progress: called with the progress of the work.

    Returns:
        The slices and their statistics; W_Q, W_K and W_V are `d_head d_feat`, W_O is `d_feat d_head`,
        b_Q, b_K and b_V are `d_head`, b_O is `d_feat`. Checks and circuits if requested, else None.

    Raises:
        ModelError: no such model, stack, layer or head, or its files cannot be read.
        OptionError: `model` is an object that transformers has not loaded.
    """
    checkpoint = find_weights(model)
    result = read_head(checkpoint, layer=layer, head=head, stack=stack)
    if circuits and result.latent is not None:
        raise ModelError(
            f"layer {result.layer} of {checkpoint.name} has latent attention: a norm follows the"
            " latents, so QK and OV are not products of weights alone."
        )
    if verify and isinstance(checkpoint, GgufModel):
        raise ModelError(
            f"{checkpoint.name} is a GGUF file, and --verify runs the model with transformers.",
            hint=f"attnscope compare {quoted(checkpoint.name)} FOLDER, with the model it was"
            " converted from",
        )
    if verify:
        from attnscope.base.process.devices import kept_random_state
        from attnscope.base.process.memory import check_imports
        from attnscope.base.process.verbosity import kept_verbosity
        from attnscope.model.weights.verify import verify_head

        check_imports(transformers=True)
        doing = f"running {checkpoint.name} with transformers …"
        with stage(progress, doing), kept_verbosity(), kept_random_state("cpu"):
            result.checks = verify_head(checkpoint, result)
    if circuits:
        from attnscope.model.weights.circuits import ROTATED, rotates
        from attnscope.model.weights.circuits import circuits as circuits_of

        result.circuits = circuits_of(result)
        if rotates(checkpoint.config(), result):
            result.notices.append(ROTATED)
    return result


def find_weights(model: Any) -> Checkpoint:
    """Find a model, also by a GGUF file, or a file of weights with its config.json beside it."""
    if is_gguf(model):
        return find_gguf(model)
    if isinstance(model, (str, Path)) and Path(model).name in FILES:
        path = Path(model).expanduser()
        if path.with_name("config.json").is_file():
            found = find_checkpoint(path.parent)
            return found if found.first_file(*FILES) == path else find_model(model)
    return find_model(model)
