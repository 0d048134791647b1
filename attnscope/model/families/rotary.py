"""Which features of a head are rotated together by rotary positions: Su et al. 2021, "RoFormer".

Each pair of features has an angle of its own for each distance between a query and a key. So a head's
scores depend on W_Q and W_K pair by pair, and not on W_Qᵀ·W_K alone.
"""

from __future__ import annotations

from typing import Any

from attnscope.model.families.fields import families
from attnscope.model.families.table import family_of
from attnscope.model.files.config import Config, configs_of_stack, layer_kinds, rope_settings
from attnscope.model.files.heads import Heads

Pairs = list[tuple[int, int]]
"""The features of a head that are rotated together, in the order of their frequencies."""

STATES_ROTATION = frozenset(
    "rope_parameters rope_theta rope_scaling rotary_emb_base rotary_dim rotary_pct global_rope_theta"
    " partial_rotary_factor".split()
)
"""Fields that only configurations of models with rotary positions have."""


def rotary_pairs(heads: Heads, layer: int, d_head: int) -> Pairs | None:
    """Return the pairs of features that a layer rotates; none if it has no rotary positions.

    Returns:
        None if attnscope does not know.
    """
    config = _config_of(heads)
    family = family_of(config.get("model_type"))
    if heads.stack.layout.cross or not _rotates_layer(heads, config, layer):
        return []
    states = bool(STATES_ROTATION & config.keys()) or "rope_parameters" in _defaults(config)
    if not states and not family.rotates:
        known = family.formula is not None or config.get("model_type") in families()
        return [] if known else None
    settings = rotary_settings(heads, layer)
    n_feature = config.get("rotary_dim", _defaults(config).get("rotary_dim"))
    share = settings.get("partial_rotary_factor", config.get("rotary_pct"))
    if isinstance(share, int | float) and 0 < share <= 1:
        if settings.get("rope_type") == "proportional":  # of Gemma 4: some pairs of the whole halves
            return _pairs(d_head, family.rotates)[: int(share * d_head // 2)]
        n_feature = int(d_head * share)
    if type(n_feature) is not int or not 0 < n_feature <= d_head:
        n_feature = d_head
    return _pairs(n_feature - n_feature % 2, family.rotates)


def rotary_settings(heads: Heads, layer: int, *, stated: bool = False) -> Config:
    """Return what config.json says of a layer's rotary positions.

    Args:
        stated: whether to leave out the defaults of the model's class.
    """
    config = _config_of(heads)
    kind = layer_kinds(heads.config, heads.stack.name).get(layer, "full_attention")
    of_class = {} if stated else rope_settings(_defaults(config), kind)
    of_file = rope_settings(config, kind)
    share = config.get("partial_rotary_factor")  # which may stand beside rope_parameters
    own = {name: value for name, value in of_file.items() if value is not None}
    return of_class | ({} if share is None else {"partial_rotary_factor": share}) | own


def _config_of(heads: Heads) -> Config:
    """Return the fields of a stack, with the type of the whole model if its part names none."""
    config = configs_of_stack(heads.config, heads.stack.name)[0]
    return {"model_type": heads.config.get("model_type")} | config


def _defaults(config: Config) -> dict[str, Any]:
    return families().get(str(config.get("model_type")), {}).get("defaults", {})


def _rotates_layer(heads: Heads, config: Config, layer: int) -> bool:
    """Check whether a layer of a model with rotary positions has them."""
    family = family_of(config.get("model_type"))
    without = config.get("no_rope_layers")
    if isinstance(without, list) and len(without) > layer and not without[layer]:
        return False
    if config.get("alibi") or family.rotates == "none":
        return False
    if family.rotates_if is not None and config.get(family.rotates_if[0]) != family.rotates_if[1]:
        return False
    kind = layer_kinds(heads.config, heads.stack.name).get(layer)
    return not (family.rotates_windows_alone and kind == "full_attention")


def _pairs(n_feature: int, order: str) -> Pairs:
    """Return the pairs of so many features: neighbours, or as Llama has them, of the two halves."""
    n_pair = n_feature // 2
    if order == "neighbours":
        return [(2 * i, 2 * i + 1) for i in range(n_pair)]
    return [(i, i + n_pair) for i in range(n_pair)]
