"""The fields of a config.json under transformers' common names, with the defaults of its model type.

A configuration on the hub often leaves out what is a default of its class. `families.json` has these
defaults, so that transformers, which takes seconds to import, is needed only for fields that a class
derives from others.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any

from attnscope.errors import ModelError
from attnscope.text import printable, shortened

Config = dict[str, Any]

PARTS_OF_TEXT = (
    "text_config",
    "llm_config",
    "language_config",
    "decoder",
    "decoder_config",
    "text_model",
)
"""Where configurations of several towers describe the one that reads text."""


class DerivedFieldError(Exception):
    """A field is missing, and its class derives it from others."""


class Fields:
    """The fields of the part of a configuration that describes a decoder.

    Args:
        config: the content of config.json.

    Attributes:
        model_type: the type of that part.
        family: what is known about it: its `names` of fields, their `defaults`, which of them are
            `derived` from others, the `class` of its models, the modules that its attention `has`, and
            the switches of such modules that it `ignores`; None: nothing.
    """

    def __init__(self, config: Config) -> None:
        self.config = text_part(config)
        self.model_type = str(self.config.get("model_type"))
        self.family: dict[str, Any] | None = families().get(self.model_type)
        self._names: dict[str, str] = (self.family or {}).get("names", {})
        self._defaults: dict[str, Any] = (self.family or {}).get("defaults", {})

    def with_own(self, own: Config) -> Fields:
        """Return these fields with others instead of some, which a layer has for its own."""
        return Fields(self.config | {self._names.get(name, name): own[name] for name in own})

    def has(self, name: str) -> bool:
        """Return whether the configuration or its class has a field."""
        return self._own_name(name) is not None or name in self._defaults or name in self.derived

    @property
    def derived(self) -> list[str]:
        """The fields whose defaults depend on other fields."""
        derived: list[str] = (self.family or {}).get("derived", [])
        return derived

    def with_defaults(self) -> Config:
        """Return the configuration with the defaults of its class for what it leaves out."""
        return {
            self._names.get(name, name): value for name, value in self._defaults.items()
        } | self.config

    def _own_name(self, name: str) -> str | None:
        """Return the name under which the configuration itself has a field."""
        own = self._names.get(name, name)
        return next((each for each in (own, name) if each in self.config), None)

    def get(self, name: str) -> Any:
        """Return a field, or its default; None if there is none.

        Raises:
            DerivedFieldError: it is missing, and its default depends on other fields.
        """
        own = self._own_name(name)
        if own is not None:
            return self.config[own]
        if name in self.derived:
            raise DerivedFieldError(name)
        return self._defaults.get(name)

    def count(self, name: str, least: int = 1) -> int:
        """Return a field that is a whole number.

        Raises:
            ModelError: it is missing, or something else.
        """
        value = self.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**40:
            raise undecided(self._names.get(name, name), value, f"a whole number of at least {least}")
        return value


def text_part(config: Config) -> Config:
    """Return the part of a configuration that describes the decoder of text: perhaps itself."""
    for name in PARTS_OF_TEXT:
        part = config.get(name)
        if isinstance(part, dict) and "model_type" in part:
            return text_part(part)
    return config


def with_known_type(config: Config) -> tuple[Config, tuple[str, ...]]:
    """Return a configuration whose model type is known, and a sentence if that is not its own.

    Configurations of earlier versions of transformers have the fields of a text beside those of images,
    where later ones have a part for each. Authors of models name types of their own, but may name a
    class of transformers in `architectures`; of several types with one class, the shortest is meant.
    """
    model_type, known = config.get("model_type"), families()
    if not isinstance(model_type, str) or model_type in known or text_part(config) is not config:
        return config, ()
    if f"{model_type}_text" in known:
        whole = {
            name: value
            for name, value in config.items()
            if name in ("model_type", "architectures")
            or (name.endswith("_config") and isinstance(value, dict))
        }
        text = {name: value for name, value in config.items() if name not in whole}
        return whole | {"text_config": text | {"model_type": f"{model_type}_text"}}, ()
    named = config.get("architectures")
    classes = [each for each in named if isinstance(each, str)] if isinstance(named, list) else []
    found = min(
        (each for each, family in known.items() if family["class"] in classes), key=len, default=None
    )
    if found is None:
        return config, ()
    why = f"it is read as {found}, whose class its architectures name"
    return config | {"model_type": found}, (
        f"its model type {printable(shortened(repr(model_type)))} is not known: {why}",
    )


def completed(config: Config) -> Config | None:
    """Return a configuration with the defaults of transformers; None if it does not know these."""
    try:
        complete = decoder_config(config)
        fields: Config = complete.to_dict()
    except Exception:  # an unknown type, or sizes that it rejects
        return None
    return fields | computed_kinds(complete)


def decoder_config(config: Config) -> Any:
    """Return transformers' configuration of the decoder of text; errors are those of its class."""
    from transformers import AutoConfig

    complete = AutoConfig.for_model(**config)
    if complete.is_encoder_decoder:  # whose fields `get_text_config` would rename
        return complete
    return complete.get_text_config(decoder=True)


def computed_kinds(config: Any) -> Config:
    """Return the `layer_types` that some classes compute whenever they are read, beside their fields."""
    kinds = getattr(config, "layer_types", None)
    return {} if kinds is None else {"layer_types": list(kinds)}


def dtype_of(config: Config) -> str | None:
    """Return the dtype that a configuration names, without its prefix `torch.`; None: it names none."""
    dtype = config.get("dtype", config.get("torch_dtype"))
    return dtype.removeprefix("torch.") if isinstance(dtype, str) else None


def undecided(field: str, value: Any, expected: str) -> ModelError:
    """Return the error that a field of config.json is missing or wrong."""
    return ModelError(
        f"{field} of config.json is {shortened(repr(value))}, but must be {expected}.",
        hint="the config.json that transformers saves, with every field",
    )


@cache
def families() -> dict[str, dict[str, Any]]:
    """Return what is known about each model type."""
    text = resources.files("attnscope.cost").joinpath("families.json").read_text(encoding="utf-8")
    result: dict[str, dict[str, Any]] = json.loads(text)
    return result
