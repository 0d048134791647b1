"""A model's card: the anatomy of its attention, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass, field

from attnscope.base.text import shortened
from attnscope.base.units import bytes_text, count_text, counted, flops_text, listed
from attnscope.document.result import Finding, Part, Result


@dataclass(frozen=True, repr=False)
class LayerKind(Part):
    """Layers that are alike.

    Attributes:
        layers: their indices, from 0.
        kind: `full`, `sliding`, `latent`, …, as in `attnscope.model.card.anatomy.LayerAnatomy`.
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

    @property
    def summary(self) -> str:
        """What it is, on one line, without its class."""
        return f"{counted(len(self.layers), 'layer')}, {self.kind}, {bytes_text(self.cache_bytes)}"


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

    @property
    def summary(self) -> str:
        """What it is, on one line, without its class."""
        return f"{self.engine}: {bytes_text(self.n_bytes)}"


class NoRuleError(Exception):
    """What an engine reserves for a model is not known here; with the reason, as a clause."""


@dataclass(frozen=True, repr=False)
class Fit(Part):
    """What fits into a memory, beside the weights.

    Attributes:
        memory: its bytes.
        weights: the bytes of the weights as they are stored, of one device; 0 beside caches alone.
        context: the longest context of each sequence of the batch, in tokens; None: no limit, as what is
            kept does not grow; 0: none fits.
        batch: the most sequences at the context; 0: none fits.
        cache_only: whether the memory has keys and values alone.
    """

    memory: int
    weights: int
    context: int | None
    batch: int
    cache_only: bool = False

    @property
    def summary(self) -> str:
        """What it is, on one line, without its class."""
        return f"{bytes_text(self.memory)}: context {self.context}, batch {self.batch}"


@dataclass(frozen=True, repr=False)
class Draft(Part):
    """Draft layers, which predict further tokens; nothing else on a card contains what they take.

    Attributes:
        n_layer: how many there are.
        field: of config.json, which says so.
        kind: of their attention; None: it is not known.
        bytes_per_token: what they keep for one more token; None: it is not known.
        cache_bytes: what they need at the context, for all sequences; None: it is not known.
        n_parameter: of their weights, copies of others included; None: they are not known.
        n_bytes: that store these; None: they are not known.
    """

    n_layer: int
    field: str
    kind: str | None = None
    bytes_per_token: int | None = None
    cache_bytes: int | None = None
    n_parameter: int | None = None
    n_bytes: int | None = None

    @property
    def summary(self) -> str:
        """What it is, on one line, without its class."""
        kind = "" if self.kind is None else f"{self.kind} "
        return f"{counted(self.n_layer, kind + 'layer')}, {self.field}"


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

    @property
    def summary(self) -> str:
        """What it is, on one line, without its class."""
        return f"{counted(self.n_tokens, 'token')}: {bytes_text(self.n_bytes)}"


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
    def summary(self) -> str:
        """What it is, on one line, without its class."""
        verdict = "equal" if self.ok else f"{self.formula:,} is not {self.held:,}"
        return f"{self.kind}, {counted(self.n_tokens, 'token')}: {verdict}"

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
    def summary(self) -> str:
        """What it is, on one line, without its class."""
        verdict = "equal" if self.ok else f"{self.formula:,} is not {self.built:,}"
        return f"parameters of {self.part}: {verdict}"

    @property
    def ok(self) -> bool:
        """Whether they are equal."""
        return self.formula == self.built


@dataclass(frozen=True, repr=False)
class PartCount(Part):
    """The size of one part of a model.

    Attributes:
        name: for attention `W_Q`, `W_K`, `W_V`, `W_O`, `norms`, `biases`, `latents`, …; for the rest
            `embedding`, `output`, `experts`, `other`, …; for a kind of storage its dtype.
        n_parameter: the number of parameters. Numbers that only describe how others are stored, such as
            scales, are none.
        n_bytes: what stores them, scales and the like included; None: not known.
    """

    name: str
    n_parameter: int
    n_bytes: int | None

    @property
    def summary(self) -> str:
        """What it is, on one line, without its class."""
        stored = bytes_text(self.n_bytes) if self.n_bytes is not None else ""
        amount = f"{count_text(self.n_parameter) or 0} parameters"
        return f"{shortened(self.name)}: {listed([amount, stored])}"


@dataclass(frozen=True, repr=False)
class WeightsCount(Part):
    """The sizes of a model's parts.

    Attributes:
        attention: the parts of attention that the model has.
        rest: the other parts that it has.
        dtypes: the same parameters by how they are stored, such as `BF16` or `4 bits in I32`.
        source: `headers`; `configuration`; or `transformers`, whose model has no values.
        n_active: parameters that take part in the computation of one token of text: all but input
            embeddings, towers, draft layers and the experts that are not chosen; None: not known.
        uncertain: a sentence for each thing that could not be decided, and why.
    """

    attention: tuple[PartCount, ...]
    rest: tuple[PartCount, ...]
    dtypes: tuple[PartCount, ...]
    source: str
    n_active: int | None = None
    uncertain: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """What it is, on one line, without its class."""
        attention = f"{count_text(self.n_attention) or 0} of attention"
        stored = bytes_text(self.n_bytes) if self.n_bytes is not None else ""
        return listed([f"{count_text(self.n_parameter) or 0} parameters", attention, stored])

    @property
    def n_parameter(self) -> int:
        """The number of parameters of the model."""
        return sum(part.n_parameter for part in (*self.attention, *self.rest))

    @property
    def n_attention(self) -> int:
        """The number of parameters of attention."""
        return sum(part.n_parameter for part in self.attention)

    @property
    def n_bytes(self) -> int | None:
        """The bytes of all parts; None: those of one part are not known."""
        sizes = [part.n_bytes for part in (*self.attention, *self.rest)]
        return None if None in sizes else sum(size for size in sizes if size is not None)


@dataclass(frozen=True, repr=False)
class Flops(Part):
    """The FLOPs of all sequences; a multiply and an add are two.

    Attributes:
        attention: of Q · Kᵀ and attention · V, of an indexer, and of the states of recurrences; None:
            not known.
        rest: of all weights, W_Q, W_K, W_V and W_O among them: two for each active parameter and token;
            None: not known.
    """

    attention: int | None
    rest: int | None

    @property
    def summary(self) -> str:
        """What it is, on one line, without its class."""
        parts = {"attention": self.attention, "rest": self.rest}
        return listed([f"{name} {flops_text(n)}" for name, n in parts.items() if n is not None])

    @property
    def total(self) -> int | None:
        """The sum; None if one part is not known."""
        return None if self.attention is None or self.rest is None else self.attention + self.rest


@dataclass(frozen=True, repr=False)
class Work(Part):
    """The work of a model at a context.

    Attributes:
        prefill: of reading all tokens of the context at once.
        token: of one more token of each sequence, which sees the whole context, itself included; None:
            an encoder generates none.
        dominates_from: the length, in tokens, from which one token's attention takes more FLOPs than the
            rest; None: never, or not known.
        bytes_moved: for one more token of each sequence: the active weights once, and the keys and
            values of all sequences; None: not known.
        limit: what bounds one more token: `bandwidth` or `compute`; None: no device was named.
        seconds: the least time of one more token of each sequence by that limit.
        maps_bytes: of the attention maps of all layers, whole, n_Q × n_K for each head; None: not known.
        block_bytes: of a block of queries of the largest layer, all heads and keys; None: not known.
        block: the queries of that block.
        notices: a sentence for each thing that is not known, and why.
    """

    prefill: Flops
    token: Flops | None
    dominates_from: int | None
    bytes_moved: int | None
    limit: str | None
    seconds: float | None
    maps_bytes: int | None
    block_bytes: int | None
    block: int
    notices: list[str] = field(default_factory=list)

    @property
    def summary(self) -> str:
        """What it is, on one line, without its class."""
        token = f"one token {self.token.summary}" if self.token else ""
        moved = f"{bytes_text(self.bytes_moved)} moved" if self.bytes_moved is not None else ""
        return listed([f"prefill {self.prefill.summary}", token, moved])

    @property
    def intensity(self) -> float | None:
        """The FLOPs for each byte moved, for one more token; None: not known."""
        total = self.token.total if self.token else None
        return total / self.bytes_moved if total is not None and self.bytes_moved else None


BY_OPTION = "--dtype"
"""What `cache_dtype_from` is if the user says the dtype, in Python as well: it is data."""


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
        cache_dtype_from: where that is said: a field of the checkpoint, `config.json`, `--dtype`; or
            `assumed`.
        n_device: the devices that share the heads; caches are those of one of them.
        kinds: the kinds of layers, in model order.
        reserved: what engines reserve.
        draft: draft layers beside; None: there are none.
        unreserved: why other engines have no row, by their names.
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

    schema = "card"

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
    cache_dtype_from: str = "config.json"
    n_device: int = 1
    draft: Draft | None = None
    unreserved: dict[str, str] = field(default_factory=dict)
    curve: list[CurvePoint] = field(default_factory=list)
    fit: Fit | None = None
    work: Work | None = None
    checks: list[CacheCheck] | None = None
    parameter_checks: list[ParameterCheck] | None = None
    findings: list[Finding] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    @property
    def summary(self) -> str:
        """What it is, on one line, without its class."""
        sizes = f"{bytes_text(self.cache_bytes)} of keys and values at {counted(self.context, 'token')}"
        return f"{shortened(self.name)}: {counted(self.n_layer, 'layer')}, {sizes}"

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
