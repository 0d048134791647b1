"""The rotary positions that attention of transformers receives from the model around it."""

from __future__ import annotations

import inspect
import sys

import torch

from attnscope.implementations.implementation import Side, tensors_of

NAME = "position_embeddings"


def add_position_embeddings(side: Side) -> None:
    """Add the cosines and sines that a module takes as `position_embeddings`, if they are not given.

    The module's file has one class of rotary positions, which is built from the module's configuration.

    Args:
        side: code with its other inputs; those of positions are added to it, and a notice says so.
    """
    module, config = side.module, getattr(side.module, "config", None)
    if module is None or config is None or side.inputs.get(NAME) is not None:
        return
    if side.callable is not module or NAME not in inspect.signature(module.forward).parameters:
        return
    file = sys.modules[type(module).__module__]
    classes = [
        each
        for name, each in vars(file).items()
        if name.endswith("RotaryEmbedding") and getattr(each, "__module__", "") == file.__name__
    ]
    states = [each for each in tensors_of(side).values() if each.is_floating_point() and each.ndim == 3]
    if len(classes) != 1 or not states:
        return
    positions = torch.arange(states[0].shape[1])[None]
    with torch.no_grad():
        side.inputs[NAME] = classes[0](config)(states[0], positions)
    side.notices.append(f"{side.title} gets {NAME} of {classes[0].__name__}, for positions from 0")
