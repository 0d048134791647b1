"""Results as pandas tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnscope.errors import OptionError
from attnscope.render.columns import Column, columns_of
from attnscope.results.audit import Audit
from attnscope.results.card import Card
from attnscope.results.cards import Cards
from attnscope.results.comparison import Comparison
from attnscope.results.example import WorkedExample
from attnscope.results.heads import HeadMetrics
from attnscope.results.maps import AttentionMaps
from attnscope.results.masks import AttentionMasks
from attnscope.results.scaling import Scaling
from attnscope.results.weights import HeadWeights

if TYPE_CHECKING:
    import pandas


def frame(result: Any) -> pandas.DataFrame:
    """Return a table with a row for each line of the result's CSV, in plain numbers.

    Raises:
        OptionError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise OptionError(
            "to_pandas() needs pandas, which is not installed.", hint="pip install pandas"
        ) from error
    if isinstance(result, AttentionMaps) and not (result.top and result.one):
        return _maps_frame(result)
    if isinstance(result, WorkedExample):
        return pandas.concat(
            {name: frame(trace) for name, trace in result.forms.items()}, names=["form"]
        )
    return pandas.DataFrame({column.key: column.raw for column in _columns(result) if column.raw})


def _columns(result: Any) -> list[Column]:
    if isinstance(result, AttentionMaps):
        from attnscope.render.strongest import top_columns

        return top_columns(result) or []
    if isinstance(result, HeadWeights) and result.circuits is not None:
        from attnscope.render.circuits import circuit_columns

        return circuit_columns(result.circuits, result.d_head)
    if isinstance(result, HeadMetrics):
        from attnscope.render.ranking import head_columns, shown

        return head_columns(result, shown(result), result.sort)
    if isinstance(result, Scaling):
        from attnscope.render.scaling import columns

        return columns(result)
    if isinstance(result, Comparison):
        from attnscope.render import comparison

        return comparison.columns(result)
    if isinstance(result, Audit):
        from attnscope.render import audit

        return audit.columns(result)
    if isinstance(result, Cards):
        from attnscope.render import cards

        return cards.columns(result)
    if isinstance(result, Card):
        from attnscope.render import card

        return card.columns(result)
    if isinstance(result, AttentionMasks):
        from attnscope.render import masks

        return masks.columns(result)
    return columns_of(result)


def _maps_frame(maps: AttentionMaps) -> pandas.DataFrame:
    """Return a row for each head, query and key; for pooled maps, a row for each cell."""
    import io

    import pandas

    from attnscope.render.records.maps import weights_csv

    text = "\n".join(weights_csv(maps))
    return pandas.read_csv(io.StringIO(text), keep_default_na=False, na_values={"attention": ["NaN"]})
