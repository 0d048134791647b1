"""Select metrics and heads, and check the selection against the model."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from attnscope.base.errors import OptionError
from attnscope.base.spelling import spelled
from attnscope.base.text import nearest
from attnscope.model.heads.metrics import METRICS, RETRIEVAL
from attnscope.model.heads.statistics import Key
from attnscope.model.run.layers import check_selected


@dataclass(frozen=True)
class Selection:
    """The selected metrics and heads."""

    metrics: list[str]
    stack: str | None = None  #: the stack; None: all that run
    #: layers, heads: indices; None: all
    layers: list[int] | None = None
    heads: list[int] | None = None
    special: bool = True  #: whether tokens that the tokenizer added count as queries
    #: whether sinks are left out of the keys; the other weights are rescaled to sum to 1
    without_sink: bool = False
    #: `value`: weights are multiplied by the norms of values, and rescaled to sum to 1; or None
    weigh: str | None = None

    @property
    def n_pairs(self) -> int:
        """The number of metrics that need numbers of each pair of a query and a key."""
        return sum(METRICS[name].pair is not None for name in self.metrics)

    def without(self, names: Collection[str], sort: str | None) -> Selection:
        """Return the selection without metrics that need a tokenizer, where there is none."""
        by_name = self.metrics if len(self.metrics) < len(METRICS) else []
        chosen = [name for name in (*by_name, sort) if name in names]
        if chosen:
            raise OptionError(
                f"{chosen[0]} cannot be measured: the model has no tokenizer, which knows these tokens.",
                hint="tokenizer=AutoTokenizer.from_pretrained(…), or other metrics",
            )
        return replace(self, metrics=[name for name in self.metrics if name not in names])

    def check(self, model: str, n_layer: Mapping[str, int], n_head: Mapping[Key, int]) -> None:
        """Raise an AttnscopeError if the model has no such stack, layer or head."""
        selected = (self.stack, self.layers or [], self.heads or [])
        check_selected(model, *selected, n_layer=n_layer, n_head=n_head)

    def n_weights(self, n_head: Mapping[Key, int], n_source: int, n_target: int) -> int:
        """Return the number of weights in the maps of selected heads; the target is the decoder's."""
        n_target = n_target or n_source
        sizes = {"decoder": n_target * n_target, "cross": n_target * n_source}
        n_weight = 0
        for (stack, layer), n in n_head.items():
            if self.stack in (None, stack) and (self.layers is None or layer in self.layers):
                n_map = n if self.heads is None else sum(head < n for head in self.heads)
                n_weight += n_map * sizes.get(stack, n_source * n_source)
        return n_weight


def metric_names(
    metrics: str | Iterable[str] | None, sort: str | None = None, known: Collection[str] = METRICS
) -> list[str]:
    """Return the names of the selected metrics, in order, such as those in the text `entropy,self`."""
    names = list(known)
    if metrics is not None:
        parts = metrics.split(",") if isinstance(metrics, str) else metrics
        names = [name.strip() for name in parts]
        if not names:
            raise OptionError("metrics is an empty list.", hint="metrics=None for all")
    for option, name in [*(("metrics", name) for name in names), ("sort", sort)]:
        if name is not None and name not in known:
            near = nearest(name, known)
            hint = f"{option} {near}" if near else ", ".join(known)
            if name == RETRIEVAL:
                hint = f"{spelled(needle='FILE')}, for which it is measured"
            raise OptionError(f"{spelled(option)}: there is no metric {name!r}.", hint=hint)
    if sort is not None and sort not in names:
        listed = metrics if isinstance(metrics, str) else ",".join(names)
        raise OptionError(
            f"{spelled('sort', sort)} is not among {spelled('metrics', listed)}.",
            hint=spelled(metrics=f"{listed},{sort}"),
        )
    return list(dict.fromkeys(names))
