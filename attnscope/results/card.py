"""A model's card: the anatomy of its attention, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass, field

from attnscope.results.common import Finding, Part, Result
from attnscope.results.weights_count import WeightsCount
from attnscope.results.work import Work


@dataclass(frozen=True, repr=False)
class LayerKind(Part):
    """Layers that are alike.

    Attributes:
        layers: their indices, from 0.
        kind: `full`, `sliding`, `latent`, …, as in `attnscope.cost.anatomy.LayerAnatomy`.
        n_head, n_kv_head: the numbers of heads of queries and of keys; None: they have none.
        d_K, d_V: the widths of a head's keys and values; None: they have none.
        window: the most keys that a query sees, or the length of a chunk; None: all.
        rope_theta: the base of rotary positions; None: there are none.
        rope_scaling: how these are scaled; None: they are not.
        extras: what else belongs to them.
        bytes_per_token: what all these layers keep for one more token, while no window is full.
        cache_bytes: what they need at the context, for all sequences.
    """

    layers: list[int]
    kind: str
    n_head: int | None
    n_kv_head: int | None
    d_K: int | None  # noqa: N815 - the field's name
    d_V: int | None  # noqa: N815
    window: int | None
    rope_theta: float | None
    rope_scaling: str | None
    extras: list[str]
    bytes_per_token: int
    cache_bytes: int


@dataclass(frozen=True, repr=False)
class Reserve(Part):
    """What an engine reserves for the keys and values.

    Attributes:
        engine: its name.
        n_bytes: at the context, for all sequences.
        rule: how it is computed.
    """

    engine: str
    n_bytes: int
    rule: str


@dataclass(frozen=True, repr=False)
class Fit(Part):
    """What fits into a memory, beside the weights.

    Attributes:
        memory: its bytes.
        weights: the bytes of the weights as they are stored.
        context: the longest context of each sequence of the batch, in tokens; None: no limit, as what is
            kept does not grow; 0: none fits.
        batch: the most sequences at the context; 0: none fits.
    """

    memory: int
    weights: int
    context: int | None
    batch: int


@dataclass(frozen=True, repr=False)
class CurvePoint(Part):
    """What the keys and values need at one length.

    Attributes:
        n_tokens: the tokens of each sequence.
        n_bytes: for all sequences.
        reserved: what each engine reserves, by its name, for all sequences.
    """

    n_tokens: int
    n_bytes: int
    reserved: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, repr=False)
class CacheCheck(Part):
    """What the layers of one kind keep in a small model, by the formula and in transformers' own cache.

    Attributes:
        kind: the kind of layers.
        n_tokens: after how many tokens.
        formula: the bytes that the formula says.
        held: the bytes that the cache holds.
        dtype: of the small model: bfloat16, or float32 if its class does not run in bfloat16.
    """

    kind: str
    n_tokens: int
    formula: int
    held: int
    dtype: str

    @property
    def ok(self) -> bool:
        """Whether they are equal."""
        return self.formula == self.held


@dataclass(frozen=True, repr=False)
class ParameterCheck(Part):
    """The parameters of a part, by config.json and in transformers' model of that size, without values.

    Attributes:
        part: `attention`, or `all` of the model.
        formula: the parameters that are counted by config.json.
        built: those of the model that transformers builds from it on the meta device.
    """

    part: str
    formula: int
    built: int

    @property
    def ok(self) -> bool:
        """Whether they are equal."""
        return self.formula == self.built


@dataclass(repr=False)
class Card(Result):
    """A model's card.

    Attributes:
        name: the name of the model.
        model_type: by its config.json, or the architecture of a GGUF file.
        source: what the anatomy was read from.
        n_layer, d_feat: the number of layers, and the width of the model.
        longest: the most tokens that it was made for; None: it does not say.
        dtype: the dtype of its config.json; None: it does not say.
        context: the length of each sequence, in tokens.
        n_source: the number of tokens of the encoder, for each sequence; 0: there is no encoder.
        batch: the number of sequences.
        cache_dtype: the dtype of the keys and values.
        kinds: the kinds of layers, in model order.
        reserved: what engines reserve.
        weights: the parameters; None: they are not known.
        uncounted: why they are not known, in a sentence, which is a notice, too; None: they are.
        curve: what they need at shorter lengths, halved from one to the next, and at the context; empty
            if nothing is kept.
        fit: what fits into a memory; None: none was named.
        work: FLOPs, bytes moved and attention maps; None: not computed.
        checks: the formula beside transformers' own cache, in a small model; None: not requested.
        parameter_checks: the parameters that config.json says beside those of transformers' model; empty
            if they are not known from config.json; None: not requested.
        findings: where tensors contradict config.json, or the metadata of a GGUF file.
        notices: further sentences for the reader.
    """

    name: str
    model_type: str
    source: str
    n_layer: int
    d_feat: int
    longest: int | None
    dtype: str | None
    context: int
    n_source: int
    batch: int
    cache_dtype: str
    kinds: list[LayerKind]
    reserved: list[Reserve]
    weights: WeightsCount | None = None
    uncounted: str | None = None
    curve: list[CurvePoint] = field(default_factory=list)
    fit: Fit | None = None
    work: Work | None = None
    checks: list[CacheCheck] | None = None
    parameter_checks: list[ParameterCheck] | None = None
    findings: list[Finding] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    @property
    def differs(self) -> bool:
        """Whether a formula differs from what transformers has; False, too, if nothing was compared."""
        return not all(each.ok for each in (*(self.checks or ()), *(self.parameter_checks or ())))

    @property
    def bytes_per_token(self) -> int:
        """What all layers keep for one more token of one sequence, while no window is full."""
        return sum(each.bytes_per_token for each in self.kinds)

    @property
    def cache_bytes(self) -> int:
        """What all layers need at the context, for all sequences."""
        return sum(each.cache_bytes for each in self.kinds)
