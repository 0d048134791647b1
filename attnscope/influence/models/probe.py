"""What the tests of one model have in common: its texts, what it promises, and its weights."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from attnscope.influence.measure.moved import FAILURES, Moved
from attnscope.influence.measure.promises import Promise
from attnscope.influence.models.promised import promise_of
from attnscope.influence.models.replay import layer_of
from attnscope.influence.models.subject import Run, Subject
from attnscope.influence.models.texts import Texts
from attnscope.models.masks.observed import observe_masks
from attnscope.models.running.tokenize import first_position, max_tokens
from attnscope.results.audit import Evidence, Influence


@dataclass
class Seen:
    """Which keys the queries of one attention module give weight to.

    Attributes:
        path: the module's name.
        layer: the index of its layer.
        promise: what its layer promises; None: nothing is known.
        visible: `n_Q n_K`, in any head.
        received: the mask that reached it, likewise; None if none did.
    """

    path: str
    layer: int
    promise: Promise | None
    visible: torch.Tensor
    received: torch.Tensor

    def promised(self, n: int) -> torch.Tensor:
        """Return which keys of `n` should have weight: `n n`; all that have, if nothing is promised."""
        return self.visible[:n, :n] if self.promise is None else self.promise.visible(n)

    def influence(
        self, of: str, tokens: list[str] | None, promised: torch.Tensor | None = None
    ) -> Influence:
        """Return which keys have weight, beside the mask, and what is promised.

        Args:
            of: the layers.
            tokens: the tokens of the text; None: it is random.
            promised: `n_Q n_K`, which keys should have weight; None: nothing says so.
        """
        should = None if promised is None else promised.tolist()
        weights = self.visible.double().tolist()
        return Influence(f"weights of {of}", weights, should, self.received.tolist(), tokens)


@dataclass
class Probe:
    """A model with the texts that it reads in an audit.

    Attributes:
        subject: the model.
        texts: draws texts.
        ids: the text, `1 n`; of an encoder-decoder model, the decoder's.
        tokens: the tokens of `ids`; None: they are random.
        source: the encoder's text, or None.
        causal: whether the model is causal; None: nothing says so.
        causal_source: what says so.
        requested: promises that options make: `window`, `chunk`, `prefix`, `sinks`.
        thorough: whether to take more positions and lengths.
    """

    subject: Subject
    texts: Texts
    ids: torch.Tensor
    source: torch.Tensor | None
    causal: bool | None
    causal_source: str
    requested: dict[str, int] = field(default_factory=dict)
    tokens: list[str] | None = None
    thorough: bool = False
    _runs: dict[Any, Run] = field(default_factory=dict)

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

    def base(self, exact: bool) -> Run:
        """Return the run on the text itself, which all properties share."""
        return self.once(exact, lambda: self.subject.run(exact=exact, **self.inputs()))

    def once(self, key: Any, run: Callable[[], Run]) -> Run:
        """Return a run that several tests share."""
        if key not in self._runs:
            self._runs[key] = run()
        return self._runs[key]

    def promise(self, layer: int | None) -> Promise | None:
        """Return what a layer promises: by options, or else by the configuration."""
        causal = bool(self.causal)
        if self.requested:
            return Promise("options", causal, **self.requested)
        config = self.subject.config
        if config.is_encoder_decoder:
            return Promise("full attention", causal)
        return promise_of(config.get_text_config(), layer, causal)

    @property
    def promises(self) -> list[Promise | None]:
        """What the layers promise, each index once; None: a layer of another kind."""
        return [self.promise(layer) for layer in set(self.subject.layers.values())]

    @property
    def limits(self) -> set[int]:
        """The widths of windows and chunks."""
        limits = {each.limit for each in self.promises if each is not None}
        return {limit for limit in limits if limit is not None}

    @cached_property
    def seen(self) -> list[Seen]:
        """The keys that each layer's queries give weight to, and the mask that its kernel received."""
        return self.seen_with(self.inputs())

    def seen_with(self, inputs: dict[str, Any]) -> list[Seen]:
        """Return what `seen` is with other arguments of the model, for the first sequence."""
        visible, received = (self._masks(inputs, measures=measures) for measures in (True, False))
        return [
            Seen(path, layer, self.promise(layer), each, received[path, layer])
            for (path, layer), each in visible.items()
        ]

    def _masks(self, inputs: dict[str, Any], *, measures: bool) -> dict[tuple[str, int], torch.Tensor]:
        """Return the visible keys of each self-attention, in any head: `n_Q n_K`."""
        found = observe_masks(self.subject.module, lambda: self.subject.run(**inputs), measures=measures)
        n = inputs["input_ids" if self.source is None else "decoder_input_ids"].shape[1]
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
        expected: Callable[[Seen], torch.Tensor],
    ) -> Evidence:
        """Add to the evidence which keys have weight in its layer, if they are not those expected.

        Args:
            evidence: the evidence.
            inputs: the arguments of the model in the run that differs, whose first sequence is shown.
            of: what is particular about that run, in words.
            expected: returns which keys should have weight there: `n_Q n_K`.
        """
        with suppress(*FAILURES):  # of models whose masks cannot be measured
            for each in self.seen_with(inputs):
                promised = expected(each)
                if each.layer == evidence.layer and not torch.equal(each.visible, promised):
                    influence = each.influence(f"layer {each.layer}, {of}", None, promised)
                    return replace(evidence, influence=influence)
        return evidence

    def selects(self, seen: Seen) -> bool:
        """Return whether a module gives weight to other keys in another text."""
        others = [
            self._masks(self.inputs(self.texts.drawn(self.n)), measures=True)[seen.path, seen.layer]
            for _ in range(2)
        ]
        return not all(torch.equal(seen.visible, each) for each in others)

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

    def in_training(self) -> Probe:
        """Return the same probe without its runs, for other statistics of batch norms."""
        return replace(self, _runs={})

    def evidence(self, found: Moved, changed: str, cause: slice | int | None = None) -> Evidence:
        """Return the evidence of what moved, with the first layer whose output did.

        Args:
            found: what moved.
            changed: what was changed, in words.
            cause: the positions that were changed, and which must not influence what moved: then with
                the influence within the layer, and the line where it begins. None: without.
        """
        stage = found.stage
        index = self.subject.layers.get(stage.rstrip("'"))
        layer = None if cause is None else layer_of(self.subject, stage, self.inputs)
        influence, line = None, None
        if layer is not None and cause is not None:
            promise = self.promise(index)
            received = next((each.received for each in self.seen if each.layer == index), None)
            influence = layer.influence(
                f"influence in layer {index}",
                promised=None if promise is None else promise.visible(self.n).tolist(),
                received=None if received is None else received.tolist(),
                tokens=self.tokens,
            )
            still = self._still(influence, cause)
            line = layer.leak(cause, still) if still else None
        return Evidence(
            changed, found.position, found.amount, found.rounding, index, stage, line, influence
        )

    @staticmethod
    def _still(influence: Influence, cause: slice | int) -> list[int]:
        """Return the positions that a change must not move, but that the layer does move."""
        wrong = influence.wrong
        n = len(influence.measured)
        causes = set(range(n)[cause]) if isinstance(cause, slice) else {cause}
        promised = influence.promised or []
        return [
            query
            for query in {query for query, _ in wrong}
            if not any(promised[query][key] for key in causes)
        ]
