"""The fields of a config.json under transformers' common names, with the defaults of its model type; and
the kinds of layers that they describe.

A configuration on the hub often leaves out what is a default of its class. `families.json` has these
defaults, and `wholes.json` the types of parts, so that transformers, which takes seconds to import, is
needed only for fields that a class derives from others.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from attnscope.base.errors import ModelError
from attnscope.base.text import shortened
from attnscope.model.families.table import family_of
from attnscope.model.files.config import Config, text_part


class DerivedFieldError(Exception):
    """A field is missing, and its class derives it from others."""


class Fields:
    """The fields of the part of a configuration that describes a decoder.

    Args:
        config: the content of config.json.
        in_file: the part of it that the file itself contains, if transformers completed it.

    Attributes:
        model_type: the type of that part.
        family: what is known about it: its `names` of fields, their `defaults`, which of them are
            `derived` from others, the `class` of its models, the modules that its attention `has`, and
            the switches of such modules that it `ignores`; None: nothing.
        taken: the fields that were read and that the file does not say, with the defaults of the class.
    """

    def __init__(self, config: Config, in_file: Config | None = None) -> None:
        self.config = text_part(config)
        self.in_file = self.config if in_file is None else in_file
        self.taken: dict[str, Any] = {}
        self.model_type = str(self.config.get("model_type"))
        self.family: dict[str, Any] | None = families().get(self.model_type)
        self._names: dict[str, str] = (self.family or {}).get("names", {})
        self._defaults: dict[str, Any] = (self.family or {}).get("defaults", {})

    def with_own(self, own: Config) -> Fields:
        """Return these fields with others instead of some, which a layer has for its own."""
        renamed = {self._names.get(name, name): own[name] for name in own}
        fields = Fields(self.config | renamed, self.in_file | renamed)
        fields.taken = self.taken
        return fields

    def has(self, name: str) -> bool:
        """Check whether the configuration or its class has a field."""
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

    def says(self, name: str) -> bool:
        """Check whether the configuration itself has a field."""
        return self._own_name(name) is not None

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
        if own is None and name in self.derived:
            raise DerivedFieldError(name)
        value = self._defaults.get(name) if own is None else self.config[own]
        class_name = self._names.get(name, name)
        if name not in self.derived and not {name, class_name} & self.in_file.keys():
            self.taken[class_name] = value
        return value

    def count(self, name: str, least: int = 1) -> int:
        """Return a field that is a whole number."""
        value = self.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**40:
            raise undecided(self._names.get(name, name), value, f"a whole number of at least {least}")
        return value


def undecided(field: str, value: Any, expected: str) -> ModelError:
    """Return the error that a field of config.json is missing or wrong."""
    return ModelError(
        f"{field} of config.json is {shortened(repr(value))}, but must be {expected}.",
        hint="the config.json that transformers saves, with every field",
    )


# The kinds of layers.

LEGACY = {
    "attention": "full_attention",
    "deepseek_sparse_attention": "indexed_attention",
    "mamba": "linear_attention",
}
"""What earlier versions of transformers called kinds of layers."""


def kinds_of(fields: Fields, n_layer: int) -> list[str]:
    """Return the kind of each layer, as transformers names them.

    Raises:
        DerivedFieldError: only transformers' own class can derive them.
    """
    for name in ("layer_types", "layers_block_type"):
        kinds = fields.config.get(name)
        if kinds is not None:
            if not isinstance(kinds, list) or len(kinds) != n_layer:
                raise undecided(name, kinds, f"a list of {n_layer} kinds")
            return [LEGACY.get(str(kind), str(kind)) for kind in kinds]
    if (kind := family_of(fields.model_type).kind) is not None:
        return [kind] * n_layer
    if fields.model_type == "gpt_neo":
        return [f"{kind}_attention" for kind in _gpt_neo(fields, n_layer)]
    if fields.model_type == "jamba" and "attn_layer_period" in fields.config:
        period, offset = fields.count("attn_layer_period"), fields.count("attn_layer_offset", 0)
        kinds = [index % period == offset for index in range(n_layer)]
        return ["full_attention" if attends else "linear_attention" for attends in kinds]
    if "layer_types" in fields.derived:
        return _by_rule(fields, n_layer)
    if fields.has("layers_block_type"):
        raise DerivedFieldError("layers_block_type")
    if fields.has("sliding_window") and fields.get("sliding_window") is not None:
        return ["sliding_attention"] * n_layer
    if fields.has("attention_chunk_size") and fields.get("attention_chunk_size") is not None:
        return ["chunked_attention"] * n_layer
    return ["full_attention"] * n_layer


def _by_rule(fields: Fields, n_layer: int) -> list[str]:
    """Return the kinds of layers that a class derives, for configurations without `layer_types`.

    Raises:
        DerivedFieldError: only transformers' own class can derive them.
    """
    family = family_of(fields.model_type)
    if fields.config.get("use_sliding_window") is False and family.window_is_optional:
        return ["full_attention"] * n_layer
    if family.period is None:
        raise DerivedFieldError("layer_types")
    period = fields.config.get(family.period_field, family.period)
    if isinstance(period, bool) or not isinstance(period, int) or period < 1:
        raise undecided(family.period_field, period, "a whole number of at least 1")
    return [family.other_kind if (index + 1) % period else "full_attention" for index in range(n_layer)]


def _gpt_neo(fields: Fields, n_layer: int) -> list[str]:
    """Return `global` or `local` for each layer, from kinds and how often they are repeated."""
    value = fields.config.get("attention_layers")
    if value is None:
        value = unfold(fields.config.get("attention_types"), most=n_layer)
    if value is None:
        raise DerivedFieldError("attention_types")
    if len(value) != n_layer or set(value) - {"global", "local"}:
        raise undecided("attention_types", value, f"global or local for each of {n_layer} layers")
    return list(value)


def unfold(attention_types: Any, most: int) -> list[Any] | None:
    """Unfold kinds of layers and how often they are repeated, such as `[[["global", "local"], 12]]`.

    Args:
        most: where there are more layers, the list ends soon after these.

    Returns:
        the kind of each layer; None if the field is not of this form.
    """
    unfolded: list[Any] = []
    try:
        for kinds, count in attention_types:
            unfolded += kinds * max(0, min(count, most + 1))
            if len(unfolded) > most:
                break
    except (TypeError, ValueError):
        return None
    return unfolded


# What is known about model types.


@cache
def families() -> dict[str, dict[str, Any]]:
    """Read what is known about each model type."""
    return _table("families.json")


@cache
def wholes() -> dict[str, dict[str, Any]]:
    """Read what is known about model types with a part for text.

    `parts`: for each, the type that its part has if the file names none. `classes`: the type of each
    class of such models.
    """
    return _table("wholes.json")


def _table(name: str) -> dict[str, dict[str, Any]]:
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    result: dict[str, dict[str, Any]] = json.loads(text)
    return result
