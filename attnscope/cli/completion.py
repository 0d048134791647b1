"""Values of options that a shell completes: models, their layers and heads, metrics, names in files.

Nothing here imports a heavy library or uses the network: a shell asks at each press of the Tab key.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from attnscope.base.errors import AttnscopeError
from attnscope.base.suggestions import names_in

MAX_NUMBERS = 200
"""The most numbers that are listed."""


def completion(values: Sequence[str] | str) -> Callable[..., list[str]] | None:
    """Return the function that completes an option's value; None: the shell completes names of files.

    Args:
        values: the values, or the name of one of `models`, `layers`, `heads`, `metrics`, `targets`.
    """

    def complete(ctx: Any, incomplete: str) -> list[str]:
        every = _values(values, ctx.params, incomplete) if isinstance(values, str) else values
        return [each for each in every if each.startswith(incomplete)]

    return complete if values else None


def _values(kind: str, parameters: dict[str, Any], incomplete: str) -> list[str]:
    if kind == "models":
        return model_names(incomplete)
    if kind == "targets":  # before the colon, the shell completes the file's name
        file, colon, _ = incomplete.partition(":")
        return [f"{file}:{name}" for name in names_in(file)] if colon else []
    if kind == "metrics":
        from attnscope.model.heads.metrics import METRICS

        before = incomplete.rpartition(",")[0]
        return [f"{before},{name}" if before else name for name in METRICS]
    layers, heads = n_layers_and_heads(parameters.get("named") or parameters.get("model"))
    return [str(n) for n in range(min(layers if kind == "layers" else heads, MAX_NUMBERS))]


LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
"""The names of these numbers in a `config.json`."""


def model_names(prefix: str = "") -> list[str]:
    """Return the models that begin with a prefix: the bundled one, cached ones of the hub, folders."""
    from attnscope.model.files.checkpoint import BUNDLED, BUNDLED_PACKAGE

    names = [BUNDLED] if find_spec(BUNDLED_PACKAGE) else []
    cached = sorted(each.name for each in _entries(_cache()) if each.name.startswith("models--"))
    names += [name.removeprefix("models--").replace("--", "/") for name in cached]
    parent = os.path.dirname(prefix)
    folders = sorted(os.path.join(parent, each.name) for each in _entries(Path(parent or ".")))
    names += [each for each in folders if os.path.isfile(os.path.join(each, "config.json"))]
    return [name for name in names if name.startswith(prefix)]


def n_layers_and_heads(model: str | None) -> tuple[int, int]:
    """Return the numbers of layers and of heads in a model's `config.json`; 0 if they are not known."""
    from attnscope.model.files.checkpoint import find_checkpoint

    try:
        checkpoint = find_checkpoint(model)
        folder = checkpoint.folder
        if folder is None:
            snapshots = _cache() / f"models--{checkpoint.name.replace('/', '--')}" / "snapshots"
            folder = next(iter(_entries(snapshots)))
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        found = [
            next((config[name] for name in names if name in config), 0) for names in (LAYERS, HEADS)
        ]
        layers, heads = (number if isinstance(number, int) else 0 for number in found)
    except (AttnscopeError, OSError, ValueError, AttributeError, StopIteration):
        return 0, 0
    return layers, heads


def _cache() -> Path:
    """Return the folder of the hub's cache: https://huggingface.co/docs/huggingface_hub/guides/manage-cache."""
    home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    folder = os.environ.get("HF_HUB_CACHE") or os.path.join(home, "hub")
    return Path(folder).expanduser()


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.expanduser().iterdir())
    except (OSError, RuntimeError):
        return []
