"""What is measured, and of which heads: read from what a user names, and checked against the model."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from attnscope.checkpoints.indices import check_indices
from attnscope.errors import OptionError
from attnscope.models.heads.metrics import METRICS
from attnscope.models.heads.statistics import Key


@dataclass(frozen=True)
class Selection:
    """The metrics that are measured, and the heads that they are measured of.

    Attributes:
        metrics: their names, in order.
        stack: whose layers; None: those of all stacks that run.
        layers, heads: their numbers; None: all.
        special: whether queries count that the tokenizer added.
        without_sink: whether the weights are those to other keys than sinks, which then sum to 1.
    """

    metrics: list[str]
    stack: str | None = None
    layers: list[int] | None = None
    heads: list[int] | None = None
    special: bool = True
    without_sink: bool = False

    @property
    def n_pairs(self) -> int:
        """How many of the metrics are about pairs of a query and a key."""
        return sum(METRICS[name].pair is not None for name in self.metrics)

    def check(self, model: str, n_layer: Mapping[str, int], n_head: Mapping[Key, int]) -> None:
        """Raise an AttnscopeError if the model has no such stack, layer or head.

        Args:
            model: what to call it.
            n_layer: how many layers each stack has that ran.
            n_head: how many heads each layer has, by stack and number.
        """
        stacks: Collection[str] = [self.stack] if self.stack else list(n_layer)
        for stack in stacks:
            if not any(own == stack for own, _ in n_head):
                raise OptionError(
                    f"{model} runs no {stack} attention here: only {', '.join(n_layer)}.",
                    hint=f"--stack {next(iter(n_layer))}",
                )
        layers, heads = self.layers or [], self.heads or []
        check_indices(model, stacks, layers, heads, n_layer=n_layer, n_head=n_head)

    def n_weights(self, n_head: Mapping[Key, int], n_source: int, n_target: int) -> int:
        """How many weights the maps of these heads have.

        Args:
            n_head: how many heads each layer has, by stack and number.
            n_source, n_target: how many tokens the model reads, and its decoder beside an encoder.
        """
        n_target = n_target or n_source
        sizes = {"decoder": n_target * n_target, "cross": n_target * n_source}
        n_weight = 0
        for (stack, layer), n in n_head.items():
            if self.stack in (None, stack) and (self.layers is None or layer in self.layers):
                own = n if self.heads is None else sum(head < n for head in self.heads)
                n_weight += own * sizes.get(stack, n_source * n_source)
        return n_weight


def metric_names(metrics: str | Iterable[str] | None, sort: str | None = None) -> list[str]:
    """Return the metrics that a user names, in order; all where none is named.

    Args:
        metrics: their names, or a text that lists them: `entropy,self`.
        sort: the one that heads are ranked by, if they are.

    Raises:
        OptionError: there is no such metric, or it is not among those that are measured.
    """
    names = list(METRICS)
    if metrics is not None:
        several = metrics.split(",") if isinstance(metrics, str) else metrics
        names = [name.strip() for name in several]
    for option, name in [*(("--metrics", name) for name in names), ("--sort", sort)]:
        if name is not None and name not in METRICS:
            raise OptionError(f"{option}: there is no metric {name!r}.", hint=", ".join(METRICS))
    if sort is not None and sort not in names:
        told = metrics if isinstance(metrics, str) else ",".join(names)
        raise OptionError(
            f"--sort {sort} is not among --metrics {told}.", hint=f"--metrics {told},{sort}"
        )
    return list(dict.fromkeys(names))
