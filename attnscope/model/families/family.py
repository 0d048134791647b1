"""What can be known of a model type, and of an architecture of llama.cpp; `table.py` has the rows."""

from __future__ import annotations

from typing import Any, NamedTuple


class Formula(NamedTuple):
    """The attention between the projections that model types have in common."""

    causal: bool = False  #: masked causally; other families are, if config.json says `is_decoder`
    rotary: bool = False  #: whether Q and K have rotary positions
    #: Which layers see only a window of keys: `all`, those of a kind that `layer_types` (`kinds`) or
    #: `attention_types` (`local`) names, or none.
    windows: str = ""
    scale: float | None = None  #: the factor of the scores, if config.json does not set it
    #: The fields of config.json that it depends on; for one that is missing, the default of transformers
    #: is used.
    fields: tuple[str, ...] = ()
    missing: str = ""  #: what it computes in addition, which no field mentions


class Experts(NamedTuple):
    """The experts of a family. Fields are those of config.json."""

    width: str = "moe_intermediate_size"  #: the field with the width of one
    #: The field with the width of an expert for all tokens, or with the number of experts of that kind,
    #: each as wide as the others; empty: there is none.
    shared: str = ""
    shared_gate: bool = False  #: whether that expert has a gate
    router: int = (
        0  #: the vectors of the router for each expert besides its weights: biases, corrections
    )
    biases: bool = False
    dense: str = ""  #: the field with the number of first layers that have no experts


class Spec(NamedTuple):
    """What the layers of a family consist of besides attention's matrices."""

    norms: int = 2  #: in a layer outside of attention
    norm_size: int = 1  #: the vectors of a norm: 1 weights, 2 weights and biases, 0 neither
    head_norms: str = (
        ""  #: the widths of norms of queries and keys: a `head`, `all` heads; empty: no norms
    )
    normed: str = ""  #: the field that says whether it has these norms; empty: it has them
    qkv_bias: bool | str = False  #: whether the matrices have biases; or the field that says so
    o_bias: bool | str = False  #: likewise
    sinks: bool = False  #: whether each head has a sink
    gated: bool = True  #: whether the feed-forward network has a gate
    mlp_bias: bool | str = False  #: whether it has biases; or the field that says so
    width: str = "intermediate_size"  #: the field with its width
    four: bool = False  #: whether it is 4 · d_feat wide if that field is missing
    tied: bool = False  #: whether the output is the embedding, if config.json does not say it
    positions: str = ""  #: the field with the number of learned positions; empty: there are none
    experts: Experts | None = None


class DraftSpec(NamedTuple):
    """What a draft layer has beside a layer like the last, and a matrix that joins two vectors."""

    norms: int = 3
    copies: int = 0  #: copies of the embedding, of the output included


class States(NamedTuple):
    """How vLLM keeps the states of a model.

    Source: `MambaSpec.max_memory_usage_bytes`, `get_mamba_state_dtype_from_config` of its class, and the
    classes of model_executor/models/config.py.
    """

    #: How many blocks a sequence takes, with prefix caching: two, and one for checkpoints of Mamba-2.
    blocks: int
    dtype: str | None = None  #: of recurrences; None: that of the model. Convolutions have the latter
    field: str | None = None  #: of config.json, which decides instead


class Family(NamedTuple):
    """What is known of a model type."""

    #: What its attention computes between the projections; None: that is not known.
    formula: Formula | None = None
    #: Whether that is softmax(Q·Kᵀ/√d_head)·V with a padding mask, without position bias, soft cap,
    #: rotary positions or normalisation.
    plain: bool = False
    #: Whether it has attention; others mix tokens by a recurrence, a transform or a convolution.
    attends: bool = True
    encoder: bool = False  #: keeps no keys and values, unless config.json says `is_decoder`
    undecided: str = ""  #: why its cache is not read from config.json; empty: it is
    kind: str | None = None  #: of all its layers; None: that follows from its fields
    #: Every so many layers, one sees all keys, if config.json does not say otherwise; None: there is no
    #: such rule.
    period: int | None = None
    period_field: str = "sliding_window_pattern"  #: the field that says otherwise
    other_kind: str = "sliding_attention"  #: the kind of the other layers
    window_is_optional: bool = False  #: whether layers slide only if `use_sliding_window` says so
    #: The field, and its value, with which queries and keys are rotated; None: they always are.
    rotates_if: tuple[str, Any] | None = None
    #: Which features of a head are rotated together: `neighbours` or `halves`; `none`: it has no rotary
    #: positions; empty: `halves`, if its configuration has fields of rotary positions.
    rotates: str = ""
    rotates_windows_alone: bool = False  #: whether its layers that see all keys have no positions
    axes: int = 1  #: of its positions, even if its configuration does not say so
    #: Whether position ids begin after that of padding, which leaves rows of their table unused.
    positions_after_padding: bool = False
    needs: str = ""  #: what it cannot do without, beside a text
    #: Whether it computes with values after attention, too: heads that share values may all change.
    values_again: bool = False
    layout: str = ""  #: the row of `LAYOUTS` that is its alone: others use these names for other things
    no_heads: str = ""  #: why its heads are no slices of the matrices, whose names are those of others
    #: What its layers consist of, for counting parameters by config.json; None: they are not counted so.
    parameters: Spec | None = None
    #: What its draft layers have, if all its checkpoints have the same: of GLM-4.5, some have copies.
    draft: DraftSpec | None = None
    #: Whether draft layers have the attention of its other layers; where these differ, full attention,
    #: and an indexer: deepseek_mtp.py, glm4_moe_mtp.py, mimo_mtp.py, qwen3_5_mtp.py, … of vLLM.
    drafts_alike: bool = False
    vllm_states: States | None = None
    #: Whether vLLM needs the window in all layers or in none: `max_window_layers` in models/qwen2.py.
    vllm_one_window: bool = False
    engines_index: bool = False  #: whether what engines keep for its indexer was compared


class WindowRule(NamedTuple):
    """What llama.cpp knows of the windows of an architecture."""

    period: int | None  #: every which layer has no window; None: the file says which
    size: int = 0  #: the window's size if the file does not say it; 0: without it there is none
    fixed: bool = False  #: whether the size holds whatever the file says
    first: bool = False  #: whether the layer without a window is the first of its period, not the last
    kind: str = "sliding"  #: of the windows
    n_layer: int | None = None  #: the rule holds only for models with so many layers; None: for all
    listed: bool = True  #: whether files converted from config.json list the layers with a window


class Architecture(NamedTuple):
    """What is known of an architecture of llama.cpp."""

    #: The model types that llama.cpp runs as it: what `ModelBase.register` says of their classes; None:
    #: the one of its name.
    types: str | None = None
    #: The order of the rows of W_Q and W_K in files; None: it is not known.
    rows: str | None = None
    windows: WindowRule | None = None
    linear: bool = False  #: whether its recurrent layers are linear attention, not state spaces
    #: The rotary base of layers with a window, where files omit it and it is not that of the others.
    theta_of_windows: float | None = None
    #: The layer from which on keys and values of earlier layers are used, where files do not say it.
    first_shared: int | None = None
