"""Lets torchvision be imported, where it is installed, before transformers imports it.

The operators of PyPI's torchvision do not load beside a torch without CUDA. Its Python code describes two
of them as soon as it is imported, which fails unless they exist. No processor calls them.
"""

from __future__ import annotations

import atexit

import torch

try:
    import torchvision  # noqa: F401
except ImportError:
    pass
except RuntimeError:
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    atexit.register(library._destroy)  # until then, they exist
