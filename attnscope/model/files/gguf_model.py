"""A GGUF file in place of a checkpoint: the configuration that its metadata describe.

Sources: the metadata's keys, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; what becomes of
W_Q and W_K, `modify_tensors` of each model in `conversion/` of llama.cpp.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnscope.base.errors import ModelError, no_such_file
from attnscope.base.text import printable, shortened
from attnscope.model.families.table import architecture_of
from attnscope.model.files.checkpoint import WithoutFiles
from attnscope.model.files.gguf_header import Gguf, open_gguf
from attnscope.model.files.layouts import check_attends
from attnscope.model.files.model_files import QUANTISED, find_model_files

SUFFIX = ".gguf"
MOST_HEADS = 10**5


@dataclass(frozen=True)
class GgufModel(WithoutFiles):
    """A GGUF file. Its heads are read as those of a checkpoint, but no model can be run from it.

    Attributes:
        name: the name that the user gave.
    """

    #: The header of the file, or of all parts of a split one.
    gguf: Gguf = field(kw_only=True, repr=False, compare=False)

    @property
    def architecture(self) -> str:
        """The name of the architecture in llama.cpp, such as `llama`."""
        found = self.gguf.metadata.get("general.architecture")
        if not isinstance(found, str):
            raise ModelError(f"{self.name} is damaged: it has no general.architecture.")
        check_attends(found, self.name)
        if architecture_of(found).rows is None:
            raise ModelError(
                f"{self.name} has the architecture {printable(shortened(found))}, whose heads attnscope"
                " does not read from GGUF.",
                hint="the model that it was converted from; or llama, qwen2, gemma3, gpt2, bert, …",
            )
        return found

    @property
    def n_head(self) -> int:
        """The number of query heads of a layer."""
        key = f"{self.architecture}.attention.head_count"
        value = self.gguf.metadata.get(key)
        counts = sorted(set(value) - {0}) if isinstance(value, list) else [value]
        if len(counts) > 1:
            raise ModelError(
                f"{self.name} has layers with {counts[0]} and with {counts[-1]} heads ({key}), but"
                " attnscope reads models with the same number in each.",
            )
        if not counts or type(counts[0]) is not int or not 0 < counts[0] <= MOST_HEADS:
            shown = "missing" if value is None else printable(shortened(repr(value)))
            raise ModelError(f"{self.name} is damaged: {key} is {shown}.")
        return counts[0]

    def config(self) -> dict[str, Any]:
        """Describe the attention as config.json does, by the names of its fields."""
        prefix, metadata = f"{self.architecture}.", self.gguf.metadata
        config: dict[str, Any] = {"model_type": self.architecture, "num_attention_heads": self.n_head}
        for name, key in (
            ("num_hidden_layers", "block_count"),
            ("num_key_value_heads", "attention.head_count_kv"),
            ("head_dim", "attention.key_length"),
        ):
            if type(value := metadata.get(prefix + key)) is int:
                config[name] = value
        return config | self._rotary_settings()

    def _rotary_settings(self) -> dict[str, Any]:
        """Describe the rotary positions as config.json does."""
        prefix, metadata = f"{self.architecture}.rope.", self.gguf.metadata
        settings: dict[str, Any] = {}
        if type(n_feature := metadata.get(f"{prefix}dimension_count")) is int:
            settings["rotary_dim"] = n_feature
        if isinstance(theta := metadata.get(f"{prefix}freq_base"), float):
            settings["rope_theta"] = theta
        scaling = metadata.get(f"{prefix}scaling.type")
        if isinstance(scaling, str) and scaling != "none":
            settings["rope_scaling"] = {"rope_type": scaling}
            if isinstance(factor := metadata.get(f"{prefix}scaling.factor"), float):
                settings["rope_scaling"]["factor"] = factor
        return settings


def is_gguf(model: Any) -> bool:
    """Check whether an argument names a GGUF file: by its suffix, or as `owner/name:Q4_K_M`."""
    if not isinstance(model, str | Path) or os.path.isdir(model):
        return False
    return str(model).endswith(SUFFIX) or QUANTISED.fullmatch(str(model)) is not None


def find_gguf(model: str | Path) -> GgufModel:
    """Open a GGUF file; any part of a split one.

    Args:
        model: a path, or a file on the hub, `owner/name/file.gguf` or `owner/name:Q4_K_M`.
    """
    path = Path(os.path.expanduser(model))
    if os.path.isfile(path):  # Path.is_file raises for a name that is too long
        return GgufModel(str(model), None, gguf=open_gguf(path))
    on_hub = QUANTISED.fullmatch(str(model)) or len(str(model).split("/")) > 2
    if os.path.isdir(path.parent) or not on_hub:
        raise no_such_file(path)
    (file,) = find_model_files(model).weights()
    return GgufModel(str(model), None, gguf=open_gguf(file))
