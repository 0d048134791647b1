"""A model that its user has loaded, where otherwise a checkpoint's files would be."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnscope.checkpoints.find import Checkpoint, find_checkpoint
from attnscope.errors import OptionError, class_name


@dataclass(frozen=True)
class LoadedModel(Checkpoint):
    """A model in memory. Whatever takes a checkpoint takes it too; it has no files.

    Attributes:
        name: where it was loaded from, if it says so; else its class.
        module: the model, as transformers loads it.
        tokenizer: what makes its tokens, if its user has it.
        image_processor: what cuts pictures for it, if its user has it.
    """

    module: Any = field(default=None, repr=False, compare=False)
    tokenizer: Any = field(default=None, repr=False, compare=False)
    image_processor: Any = field(default=None, repr=False, compare=False)

    def file(self, filename: str) -> Path | None:
        """None: it has no files."""
        return None

    def has(self, *filenames: str) -> bool:
        """False: it has no files."""
        return False

    def first_file(self, *filenames: str) -> Path | None:
        """None: it has no files."""
        return None

    def config(self) -> dict[str, Any]:
        """The model's configuration, as its config.json would have it."""
        return self.module.config.to_dict()


def find_model(model: Any = None, tokenizer: Any = None, image_processor: Any = None) -> Checkpoint:
    """Find the model that a user means: by its name, in a folder, or the one that is loaded already.

    Args:
        model: what `find_checkpoint` takes, a `Checkpoint`, or a model that transformers has loaded.
        tokenizer, image_processor: a loaded model's; what is found by its name brings its own.

    Raises:
        ModelError: there is no such model.
        OptionError: the model is none that transformers loads, or a name comes with a tokenizer.
    """
    if model is None or isinstance(model, (str, Path, Checkpoint)):
        for name, value in (("tokenizer", tokenizer), ("image_processor", image_processor)):
            if value is not None:
                raise OptionError(
                    f"{name}= goes with a model that is loaded, and this one is found by its name.",
                    hint=f"the loaded model, with {name}=; or the name alone",
                )
        return model if isinstance(model, Checkpoint) else find_checkpoint(model)
    module = getattr(model, "_orig_mod", model)  # what torch.compile was given
    if not all(hasattr(module, name) for name in ("config", "named_modules", "state_dict")):
        raise OptionError(
            "a model is a name, a folder, or a model that transformers has loaded, and this is a"
            f" {class_name(model)}.",
            hint="AutoModel.from_pretrained(…)",
        )
    name = getattr(module.config, "_name_or_path", None) or class_name(module)
    return LoadedModel(str(name), None, module, tokenizer, image_processor)
