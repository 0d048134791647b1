"""Gather the options of one call of `attnscope.attention_maps`, and check that they go together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import OptionError, warn_unused
from attnscope.base.spelling import spelled
from attnscope.model.maps.options import HeadOptions, MapParts, MapRun, ShownOptions
from attnscope.model.run.options import ReadOptions

if TYPE_CHECKING:
    from attnscope.model.maps.capture import HeadSelection


@dataclass(frozen=True)
class MapRequest:
    """The options of one run: inputs, heads, display, device and memory."""

    inputs: ReadOptions
    heads: HeadOptions
    display: ShownOptions
    parts: MapParts
    run: MapRun

    @property
    def file(self) -> Path | None:
        """The file for whole maps."""
        return None if self.parts.save is None else Path(self.parts.save)

    @property
    def saves_whole(self) -> bool:
        """Whether whole maps are saved: a file has pooled ones only on request."""
        return self.parts.save is not None and not self.display.pools

    @property
    def keeps_weights(self) -> bool:
        """Whether the weights themselves are needed beside numbers computed from them."""
        return self.display.weigh is not None and (self.parts.page or self.parts.verify)

    def check(self) -> None:
        """Raise an AttnscopeError for mistakes that need no model to be known; warn of idle options."""
        from attnscope.base.process.budget import parse_size
        from attnscope.base.process.devices import check_device_name

        if self.run.memory is not None:
            parse_size(self.run.memory)
        for fails, message, hint in self._conflicts():
            if fails:
                raise OptionError(message, hint=hint)
        of_texts: dict[str, Any] = {"truncate": self.inputs.truncate, "pool": self.display.pool}
        of_texts |= {"memory": self.run.memory}
        if self.inputs.image is not None:
            warn_unused((value, name, "the input is a picture") for name, value in of_texts.items())
        check_device_name(self.run.device)
        if self.file is not None:
            from attnscope.document.tensor_file import check_target

            check_target(self.file, force=self.parts.force, dtypes=[])

    def _conflicts(self) -> Iterator[tuple[object, str, str | None]]:
        """Yield for each contradiction of values whether it holds, the error, and a hint."""
        inputs, names = self.inputs, self.inputs.names
        yield not names, "there is no input.", "a text, ids, tokens, a file or an image"
        message = f"{' and '.join(map(spelled, names))} cannot be combined: give one input."
        yield len(names) > 1, message, " or ".join(map(spelled, names))
        for name in ("pair", "target", "generate"):
            message = f"{spelled(name)} applies to texts, and {spelled('image')} is a picture."
            is_set = inputs.image is not None and getattr(inputs, name) is not None
            yield is_set, message, spelled(**{"text": "…", name: ...})
        ids = next((name for name in ("ids", "tokens") if name in names), None)
        no_text = f"and {spelled(ids or 'ids')} is not a text"
        message = f"{spelled('pair')} is the second of two texts, {no_text}."
        yield ids and inputs.pair is not None, message, spelled(text="…", pair="…")
        view, heads, rollout, steps = self.display, self.heads, self.display.rollout, self.parts.steps
        for name in ("top", "query"):
            value = getattr(view, name)
            message = f"{spelled(name)} is for one head, and {heads} are several."
            several = value is not None and not heads.one_head
            yield several, message, spelled(**{"layers": 0, "heads": 0, name: value})
        message = f"{spelled('steps')} shows whole tensors, and {spelled('pool')} shows pooled maps."
        yield steps and view.pools, message, "one of the two"
        message = (
            f"{spelled('steps')} are those of one layer, and {spelled('layers')} is {heads.layers}."
        )
        yield steps and not heads.one_layer, message, spelled(steps=True, layers=0)
        message = (
            f"{spelled('steps')} are those of all heads of a layer, and {spelled('heads')} is"
            f" {heads.heads}."
        )
        yield steps and heads.heads is not None, message, f"leave out {spelled('heads')}"
        message = (
            f"{spelled('rollout')} takes the mean over all heads, and {spelled('heads')} is"
            f" {heads.heads}."
        )
        yield rollout and heads.heads is not None, message, f"leave out {spelled('heads')}"
        message = (
            f"{spelled('rollout')} multiplies whole maps, and {spelled('pool', view.pool)} pools them."
        )
        yield rollout and view.pools, message, f"{spelled(rollout=True)} without {spelled('pool')}"
        message = (
            f"{spelled('rollout')} multiplies maps among the same tokens, and the queries and keys"
            f" of {spelled('stack', 'cross')} are tokens of two sequences."
        )
        yield (
            rollout and heads.stack == "cross",
            message,
            f"{spelled(stack='encoder')}, or {spelled(stack='decoder')}",
        )
        message = f"{spelled('device', 'meta')} computes no values, and attention maps need values."
        yield self.run.device.startswith("meta"), message, spelled(device="cpu")

    def selection(self, stack: str) -> HeadSelection:
        """Return the heads of a stack to collect; a page of a single selected head needs all."""
        from attnscope.model.maps.capture import HeadSelection

        if self.parts.page and self.display.rollout:
            return HeadSelection(stack, rollout=True)
        if not self.parts.page:
            return self.shown_selection(stack)
        if self.heads.one_head:
            return HeadSelection(self.heads.stack)
        return replace(self.shown_selection(stack), stack=self.heads.stack)

    def shown_selection(self, stack: str) -> HeadSelection:
        """Return the heads that are shown."""
        from attnscope.model.maps.capture import HeadSelection

        if self.display.rollout:
            numbers = None if self.heads.layers is None else self.heads.layer_numbers
            return HeadSelection(stack, numbers, rollout=True)
        layers = "first" if self.heads.layers is None else self.heads.layer_numbers
        return HeadSelection(stack, layers, self.heads.head_numbers)  # type: ignore[arg-type]
