"""What the first argument of `mask` is: a model, a rule, a function that makes a mask, or code."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

from attnscope.attention.mask_rules import KINDS, names_function, names_rule
from attnscope.base.errors import OptionError
from attnscope.base.spelling import spelled
from attnscope.base.tensor_files import FORMATS
from attnscope.base.text import nearest
from attnscope.model.files.checkpoint import Checkpoint
from attnscope.model.masks.options import ModelMaskOptions

Kind = Literal["models", "rules", "functions", "code"]


def kind_of(subject: Any) -> Kind:
    """Classify a subject: as a model, a rule, a function that makes a mask, or a module or class."""
    if isinstance(subject, list | tuple):
        if not subject:
            raise OptionError("there is no mask.", hint=subjects())
        if other := [each for each in subject if kind_of(each) != "rules"]:
            raise OptionError(
                f"several masks are rules, and {named(other[0])} is not one.",
                hint="causal window:4, or a FILE",
            )
        return "rules"
    if isinstance(subject, str):
        if not subject.strip():
            raise OptionError("the name of the mask is empty.", hint=subjects())
        if names_rule(subject):
            return "rules"
        return "functions" if names_function(subject) else "models"
    if isinstance(subject, os.PathLike):
        return "rules" if Path(subject).suffix in FORMATS else "models"
    if hasattr(subject, "mask_mod") or (callable(subject) and not hasattr(subject, "state_dict")):
        return "functions"
    if isinstance(subject, Checkpoint) or hasattr(subject, "save_pretrained"):
        return "models"
    if hasattr(subject, "state_dict"):
        return "code"
    if hasattr(subject, "shape"):
        return "rules"
    raise OptionError(f"{named(subject)} is neither a mask nor a model.", hint=f"an array; {subjects()}")


def is_class(subject: Any) -> bool:
    """Check whether a function, or what a text names, is a class or a module, and so makes no mask."""
    from attnscope.code.load.load import load_target

    if hasattr(subject, "mask_mod"):
        return False
    found = load_target(subject).object if isinstance(subject, str) else subject
    return hasattr(found, "state_dict")


def named(subject: Any) -> str:
    """Name a subject in a message."""
    if isinstance(subject, list | tuple):
        return " ".join(map(named, subject))
    if isinstance(subject, type):
        return f"the class {subject.__name__}"
    return str(subject) if isinstance(subject, str | os.PathLike) else f"this {type(subject).__name__}"


def check_spelling(subject: Any, inputs: ModelMaskOptions) -> None:
    """Raise an OptionError for a model that has no input, does not exist, and is spelled like a rule."""
    if not isinstance(subject, str) or inputs.names or os.path.exists(subject):
        return
    place, colon, rest = subject.partition(":")
    if near := nearest(place, KINDS):
        raise OptionError(
            f"{subject!r} is neither a rule nor a model with an input.", hint=f"{near}{colon}{rest}"
        )


def subjects() -> str:
    """Return the hint that says what has masks."""
    return f"causal, or another rule; file.py:NAME of a mask_mod; or a model with {spelled('text')}"
