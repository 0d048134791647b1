"""A loaded model in place of a checkpoint's files."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnscope.base.errors import OptionError, class_name
from attnscope.model.files.checkpoint import Checkpoint, WithoutFiles, find_checkpoint


@dataclass(frozen=True)
class LoadedModel(WithoutFiles):
    """A model in memory. It can be used wherever a checkpoint can, but has no files.

    Attributes:
        name: the name or path it was loaded from, if known; else the name of its class.
    """

    module: Any = field(default=None, repr=False, compare=False)  #: the model, as transformers loads it
    #: Those that the user passed; the processor is of texts and pictures, or of recordings.
    tokenizer: Any = field(default=None, repr=False, compare=False)
    image_processor: Any = field(default=None, repr=False, compare=False)
    processor: Any = field(default=None, repr=False, compare=False)

    def config(self) -> dict[str, Any]:
        """Return the model's configuration, as its config.json would contain it."""
        return self.module.config.to_dict()


def find_model(
    model: Any = None, tokenizer: Any = None, image_processor: Any = None, processor: Any = None
) -> Checkpoint:
    """Find a model by its name or folder, or wrap one that is already loaded.

    Args:
        model: any argument of `find_checkpoint`, a `Checkpoint`, or a model loaded with transformers.
        tokenizer, image_processor, processor: those of a loaded model; a model found by name has its
            own. A processor has a tokenizer.
    """
    if model is None or isinstance(model, (str, Path, Checkpoint)):
        processors = {"tokenizer": tokenizer, "image_processor": image_processor, "processor": processor}
        for name, value in processors.items():
            if value is not None:
                raise OptionError(
                    f"{name}= is for a loaded model, but this one is given by name.",
                    hint=f"the loaded model, with {name}=; or the name alone",
                )
        return model if isinstance(model, Checkpoint) else find_checkpoint(model)
    module = getattr(model, "_orig_mod", model)  # the model inside the wrapper of torch.compile
    if not all(hasattr(module, name) for name in ("config", "named_modules", "state_dict")):
        raise OptionError(
            "a model is a name, a folder, or a loaded transformers model, but this is a"
            f" {class_name(model)}.",
            hint="AutoModel.from_pretrained(…)",
        )
    name = getattr(module.config, "_name_or_path", None) or class_name(module)
    tokenizer = getattr(processor, "tokenizer", None) if tokenizer is None else tokenizer
    return LoadedModel(str(name), None, module, tokenizer, image_processor, processor)
