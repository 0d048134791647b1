"""Compares attnscope's own attention, given a checkpoint's weights, with the model itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from attnscope.errors import ModelError, first_line
from attnscope.models.checkpoint import Checkpoint
from attnscope.models.layouts import PARTS, Located, locate
from attnscope.models.weights import Weights, open_weights
from attnscope.results import Check, HeadWeights
from attnscope.values import numbers

if TYPE_CHECKING:
    import torch

TEXTS = ("The cat sat on the mat because it was tired.", "Attention is all you need.")
"""What the model reads while it is compared: two lengths, so that padding is masked."""

TOLERANCE = 1e-9
"""Both sides compute in float64, where rounding stays far below, and mistakes far above."""


def verify_head(checkpoint: Checkpoint, weights_of_head: HeadWeights) -> list[Check]:
    """Run one layer twice on the model's real hidden states: as transformers, and as attnscope.

    attnscope's `MultiHeadAttention` gets the weights and biases that were read from the
    checkpoint's bytes, and the hidden states that reach the layer in the model. Its Q, K and
    V projections, attention and output are compared with the model's own (transformers,
    eager), and the head's eight slices with what the model's modules make of the same head.

    Args:
        checkpoint: the model.
        weights_of_head: the layer and the head, as `read_head` returned them.

    Raises:
        ModelError: the checkpoint cannot be read, transformers cannot run it, or it is a decoder.
    """
    import torch

    from attnscope.attention.mha import MultiHeadAttention
    from attnscope.tracing import trace_call

    weights = open_weights(checkpoint)
    located = locate(weights.names, checkpoint.name)
    layer = weights_of_head.layer
    theirs = _run_model(checkpoint, located, layer)

    n_head, d_feat = weights_of_head.n_head, weights_of_head.d_feat
    bias = any(slice_.name == "b_Q" for slice_ in weights_of_head.weights)
    mha = MultiHeadAttention(d_feat=d_feat, n_head=n_head, bias=bias, dtype=torch.float64).eval()
    mha.load_state_dict(_state(weights, located, layer))
    x, mask = theirs["input"], theirs["mask"]
    with torch.no_grad():
        ours = trace_call(mha, x, x, x, mask, keep=True)

    names = ("Q_feat", "K_feat", "V_feat", "attention", "x_rsh2", "x")
    checks = [_check(name, ours[name].tensor, theirs[name]) for name in names]
    return checks + _check_slices(weights_of_head, theirs)


def _run_model(checkpoint: Checkpoint, located: Located, layer: int) -> dict[str, Any]:
    """What the model computes in one layer's attention, under attnscope's names."""
    import torch
    from transformers import AutoModel
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if checkpoint.config().get("is_decoder"):
        raise ModelError(
            f"{checkpoint.name} is a decoder, which masks what comes later: --verify is for encoders.",
            hint="leave out --verify",
        )
    with _told_as_the_models_fault(checkpoint):
        model = AutoModel.from_pretrained(
            checkpoint.source, attn_implementation="eager", dtype=torch.float64
        ).eval()
    seen: dict[str, Any] = {}
    for part, name in zip(PARTS, ("Q_feat", "K_feat", "V_feat", "x"), strict=True):

        def remember(_: Any, inputs: Any, output: Any, name: str = name) -> None:
            seen[name] = output
            seen["input" if name == "Q_feat" else f"input of {name}"] = inputs[0]

        with _told_as_the_models_fault(checkpoint):
            model.get_submodule(located.module(part, layer)).register_forward_hook(remember)

    batch = _tokens(checkpoint, model.config.vocab_size)
    with torch.no_grad(), _told_as_the_models_fault(checkpoint):
        outputs = model(**batch, output_attentions=True)
        seen["attention"] = outputs.attentions[layer]
        seen["x_rsh2"] = seen["input of x"]
        seen["mask"] = batch["attention_mask"].bool()[:, None, None, :]
        seen["W_O"] = model.get_submodule(located.module("O", layer))
    return seen


@contextmanager
def _told_as_the_models_fault(checkpoint: Checkpoint) -> Iterator[None]:
    """What transformers cannot load or run is the checkpoint's fault, whatever it raises."""
    try:
        yield
    except Exception as error:
        reason = first_line(error).rstrip(".")
        raise ModelError(
            f"transformers cannot run {checkpoint.name}, so there is nothing to compare with: {reason}."
        ) from error


def _tokens(checkpoint: Checkpoint, n_vocab: int) -> dict[str, torch.Tensor]:
    """Two texts of different lengths; where there is no tokenizer, as many drawn tokens."""
    import torch
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(checkpoint.source)
        batch = dict(tokenizer(list(TEXTS), padding=True, return_tensors="pt"))
        ids = batch["input_ids"]
        if len(ids.unique()) > len(TEXTS[1].split()) and int(ids.max()) < n_vocab:
            return batch
    except (OSError, ValueError, KeyError):
        pass  # no tokenizer, or none that knows the words, as above: then any tokens will do
    drawn = torch.randint(n_vocab, (2, 12), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(drawn)
    mask[1, 7:] = 0
    return {"input_ids": drawn, "attention_mask": mask}


def _state(weights: Weights, located: Located, layer: int) -> dict[str, torch.Tensor]:
    """The layer's weights, read from the checkpoint's bytes, as our module names them."""
    import torch

    state = {}
    names = set(weights.names)
    for part in PARTS:
        for kind in ("weight", "bias"):
            tensor = located.tensor(part, layer, kind)
            if tensor in names:
                values = numbers(*weights.read(tensor))
                state[f"W_{part}.{kind}"] = torch.tensor(values, dtype=torch.float64)
    return state


def _check_slices(weights_of_head: HeadWeights, theirs: dict[str, Any]) -> list[Check]:
    """Each slice, applied by itself, against the same head in the model's own tensors."""
    import torch

    slices = {
        s.name: torch.tensor(numbers(s.array, s.dtype), dtype=torch.float64)
        for s in weights_of_head.weights
    }
    d_head, head = weights_of_head.d_head, weights_of_head.head
    columns = slice(head * d_head, (head + 1) * d_head)
    checks = []
    with torch.no_grad():
        for part in ("Q", "K", "V"):
            made = theirs["input"] @ slices[f"W_{part}"].mT + slices.get(f"b_{part}", 0)
            checks.append(_check(f"W_{part}, b_{part}", made, theirs[f"{part}_feat"][..., columns]))
        # What this head alone adds to the output: the model's own W_O, the other heads silent.
        alone = torch.zeros_like(theirs["x_rsh2"])
        alone[..., columns] = theirs["x_rsh2"][..., columns]
        made = alone[..., columns] @ slices["W_O"].mT + slices.get("b_O", 0)
        checks.append(_check("W_O, b_O", made, theirs["W_O"](alone)))
    return checks


def _check(name: str, ours: torch.Tensor, theirs: torch.Tensor) -> Check:
    difference = float((ours - theirs).abs().max())
    return Check(name, difference, TOLERANCE, ok=difference <= TOLERANCE)
