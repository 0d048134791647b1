"""What the tests of one model have in common: texts, promises, weights, and a verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from attnscope.auditing.expected import WINDOWS, ExpectedMask, mask_of_config, unread_window
from attnscope.auditing.measure.difference import FAILURES, RunDifference, equality
from attnscope.auditing.models.subject import AuditedModel, ModelRun, Texts, audited_ids, layer_of
from attnscope.auditing.result import BROKEN, HOLDS, UNDECIDED, Evidence, Influence, Property
from attnscope.model.masks.seen_keys import observe_masks
from attnscope.model.run.tokenize import first_position, max_tokens


@dataclass
class LayerMask:
    """Which keys the queries of one attention module give weight to."""

    path: str  #: the module's name
    layer: int
    expected: ExpectedMask | None  #: the mask that its layer should have; None: nothing is known
    visible: torch.Tensor  #: `n_Q n_K`, in any head
    received: torch.Tensor  #: the mask that reached it, likewise; None if none did

    def expected_keys(self, n: int) -> torch.Tensor:
        """Build the keys of `n` that should have weight: `n n`; all that have, if that is left open."""
        if self.expected is None or self.expected.least is not None:
            return self.visible[:n, :n]
        return self.expected.visible(n)

    def influence(
        self, of: str, tokens: list[str] | None, expected: torch.Tensor | None = None
    ) -> Influence:
        """Show the keys with weight, beside the mask, and what is expected."""
        should = None if expected is None else expected.tolist()
        weights = self.visible.double().tolist()
        return Influence(f"weights of {of}", weights, should, self.received.tolist(), tokens)


@dataclass
class Probe:
    """A model with the texts that it reads in an audit."""

    subject: AuditedModel
    texts: Texts
    ids: torch.Tensor  #: the text, `1 n`; of an encoder-decoder model, the decoder's
    source: torch.Tensor | None  #: the encoder's text, or None
    causal: bool | None  #: whether the model is causal; None: nothing says so
    causal_source: str  #: what says so
    stated: ExpectedMask | None = None  #: the mask that options describe; None: they describe none
    tokens: list[str] | None = None  #: the tokens of `ids`; None: they are random
    thorough: bool = False  #: whether to take more positions and lengths
    _runs: dict[Any, ModelRun] = field(default_factory=dict)

    @property
    def n(self) -> int:
        """The number of positions."""
        return self.ids.shape[1]

    def inputs(self, ids: torch.Tensor | None = None, **more: Any) -> dict[str, Any]:
        """Return the model's arguments for a text; None: the probe's own."""
        ids = self.ids if ids is None else ids
        device = self.subject.module.device
        inputs: dict[str, Any] = {"input_ids": ids.to(device)}
        if self.source is not None:
            source = self.source.expand(len(ids), -1)
            inputs = {"input_ids": source.to(device), "decoder_input_ids": ids.to(device)}
        if self.subject.takes("use_cache"):
            inputs["use_cache"] = False
        return inputs | more

    def positions(self, begin: int, end: int) -> torch.Tensor:
        """Return the position ids of a text from one position to another: `1 n`.

        Those of some families begin after that of padding.
        """
        first = first_position(self.subject.config)
        return torch.arange(begin + first, end + first, device=self.subject.module.device)[None]

    def base(self, exact: bool) -> ModelRun:
        """Return the run on the text itself, which all properties share."""
        return self.once(exact, lambda: self.subject.run(exact=exact, **self.inputs()))

    def once(self, key: Any, run: Callable[[], ModelRun]) -> ModelRun:
        """Return a run that several tests share."""
        if key not in self._runs:
            self._runs[key] = run()
        return self._runs[key]

    def expected_mask(self, layer: int | None) -> ExpectedMask | None:
        """Return the mask that a layer should have: by options, or else by the configuration."""
        if self.stated is not None:
            return self.stated
        config = self.subject.config
        text = config.get_text_config(decoder=True if config.is_encoder_decoder else None)
        if config.is_encoder_decoder and text is config:
            return ExpectedMask("full attention", bool(self.causal))
        return mask_of_config(text, layer, bool(self.causal))

    @property
    def expected_masks(self) -> list[ExpectedMask | None]:
        """The masks that layers should have, each index once; None: a layer of another kind."""
        return [self.expected_mask(layer) for layer in set(self.subject.layers.values())]

    @property
    def limits(self) -> set[int]:
        """The widths of windows and chunks."""
        limits = {each.limit for each in self.expected_masks if each is not None}
        return {limit for limit in limits if limit is not None}

    @property
    def unread_window(self) -> str | None:
        """What states a window whose width is unknown here, or None."""
        if self.stated is not None:
            return None
        config = self.subject.config.get_text_config()
        kinds = enumerate(getattr(config, "layer_types", None) or [])
        unread = (
            f"layer_types[{layer}]={kind!r}"
            for layer, kind in kinds
            if any(word in str(kind) for word in WINDOWS) and self.expected_mask(layer) is None
        )
        return unread_window(config) or next(unread, None)

    @cached_property
    def layer_masks(self) -> list[LayerMask]:
        """The keys that each layer's queries give weight to, and the mask that its kernel received."""
        return self.layer_masks_with(self.inputs())

    def layer_masks_with(self, inputs: dict[str, Any]) -> list[LayerMask]:
        """Measure `layer_masks` with other arguments of the model, for the first sequence."""
        visible, received = (self._masks(inputs, measures=measures) for measures in (True, False))
        return [
            LayerMask(path, layer, self.expected_mask(layer), each, received[path, layer])
            for (path, layer), each in visible.items()
        ]

    def _masks(self, inputs: dict[str, Any], *, measures: bool) -> dict[tuple[str, int], torch.Tensor]:
        """Return the visible keys of each self-attention, in any head: `n_Q n_K`."""
        found = observe_masks(self.subject.module, lambda: self.subject.run(**inputs), measures=measures)
        n = audited_ids(inputs).shape[1]
        stacks = ("decoder",) if self.source is not None else ("self", "text", "decoder")
        return {
            (each.path, each.layer): each.visible[0].any(0)
            for each in found
            if each.stack in stacks and each.visible.shape[-2:] == (n, n)
        }

    def with_weights(
        self,
        evidence: Evidence,
        inputs: dict[str, Any],
        of: str,
        expected: Callable[[LayerMask], torch.Tensor],
    ) -> Evidence:
        """Add to the evidence which keys have weight in its layer, if they are not those expected.

        `inputs` are those of the run that differs, whose first sequence is shown; `of` says what is
        particular about it, and `expected` returns which keys should have weight there: `n_Q n_K`.
        """
        with suppress(*FAILURES):  # of models whose masks cannot be measured
            for each in self.layer_masks_with(inputs):
                keys = expected(each)
                if each.layer == evidence.layer and not torch.equal(each.visible, keys):
                    influence = each.influence(f"layer {each.layer}, {of}", None, keys)
                    return replace(evidence, influence=influence)
        return evidence

    def selects(self, mask: LayerMask) -> bool:
        """Check whether a module gives weight to other keys in another text."""
        others = [
            self._masks(self.inputs(self.texts.drawn(self.n)), measures=True)[mask.path, mask.layer]
            for _ in range(2)
        ]
        return not all(torch.equal(mask.visible, each) for each in others)

    def edges(self) -> list[int]:
        """Return the lengths around the edges of windows and chunks that the model takes."""
        most = max_tokens(self.subject.config) or 4 * self.n
        lengths = {limit + more for limit in self.limits for more in (-1, 0, 1)}
        lengths |= {2 * limit for limit in self.limits}
        return sorted(n for n in lengths if 4 <= n <= min(most, 4 * self.n) and n != self.n)

    def of_length(self, n: int) -> Probe:
        """Return a probe of the same model with a random text of another length."""
        source = None if self.source is None else self.texts.drawn(n + 3)
        ids = self.texts.drawn(n)
        return replace(self, ids=ids, source=source, tokens=None, thorough=False, _runs={})

    def evidence(self, found: RunDifference, changed: str, cause: slice | None = None) -> Evidence:
        """Return the evidence of a difference, with the first layer whose output differs.

        If `cause` is given, the positions that were changed and must not influence what differs, it has
        the influence within the layer and the line where it begins, too.
        """
        stage = found.stage
        index = self.subject.layers.get(stage.rstrip("'"))
        evidence = Evidence(changed, found.position, found.amount, found.rounding, index, stage)
        layer = None if cause is None else layer_of(self.subject, stage, self.inputs)
        if layer is None or cause is None:
            return evidence
        expected = self.expected_mask(index)
        visible = None if expected is None else expected.visible(self.n)
        received = next((each.received for each in self.layer_masks if each.layer == index), None)
        influence = layer.influence(
            f"influence in layer {index}",
            promised=None if visible is None else visible.tolist(),
            received=None if received is None else received.tolist(),
            tokens=self.tokens,
        )
        evidence = replace(evidence, influence=influence)
        promised, moved = influence.promised or [], {query for query, _ in influence.wrong}
        still = [query for query in moved if not any(promised[query][cause])]
        if not still:
            return evidence
        shorter = layer_of(self.subject, stage, lambda: self.inputs(self.ids[:, :-1]))
        return layer.leak(cause, still, shorter, visible).added_to(evidence)


@dataclass(frozen=True)
class PropertyTest:
    """One way to test a property."""

    name: str  #: such as the name of a kernel
    found: RunDifference
    changed: str  #: what was changed, in words
    difference: str  #: the sentence if something moved
    cause: slice | None = None  #: the positions that were changed, which must not move others
    #: adds to the evidence which keys have weight then; None: nothing is added
    weights: Callable[[Evidence], Evidence] | None = None


def verdict(
    probe: Probe,
    name: str,
    source: str,
    variants: Iterable[PropertyTest],
    agreement: Callable[[list[str]], str],
    *,
    needs_all: bool = False,
) -> Property:
    """Judge that a property is broken if it is in one way, and holds if it does in one, or in all.

    Each variant is computed when the one before it has not moved; `agreement` returns the sentence if
    nothing moved, for the names of those that could be decided.
    """
    done, left_out, amounts = [], [], []
    for each in variants:
        if each.found.status == "different":
            evidence = probe.evidence(each.found, each.changed, each.cause)
            if each.weights is not None:
                evidence = each.weights(evidence)
            return Property(name, BROKEN, source, each.difference, evidence)
        if each.found.status == "undecided":
            left_out.append(": ".join(filter(None, [each.name, each.found.why])))
        else:
            done.append(each.name)
            amounts.append(each.found.amount)
    if needs_all and left_out:
        return Property(name, UNDECIDED, source, left_out[0])
    if not done:
        return Property(name, UNDECIDED, source, "; ".join(left_out))
    text = f"{agreement(done)}, {equality(max(amounts))}"
    if left_out:
        text += f"; undecided: {'; '.join(left_out)}"
    return Property(name, HOLDS, source, text)
