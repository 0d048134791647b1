"""The attributes of attention maps, and of metrics of heads, that a page shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from attnscope.document.grid.pooling import TokenGrid
from attnscope.document.result import Check

if TYPE_CHECKING:
    import numpy as np


class PageHead(Protocol):
    """The map of one head, such as `AttentionMap`."""

    layer: int
    head: int
    kv_head: int
    attention: np.ndarray


class PagePicture(Protocol):
    """The image that a vision model attended to."""

    @property
    def rows(self) -> int: ...
    @property
    def columns(self) -> int: ...
    @property
    def first(self) -> int: ...
    @property
    def png(self) -> bytes: ...


class PageStack(TokenGrid, Protocol):
    """The maps of one stack of layers, such as `AttentionMaps`."""

    model: str
    stack: str
    n_layer: int
    n_head: int
    n_kv_head: int
    checks: list[Check] | None
    notices: list[str]

    @property
    def of_heads(self) -> bool: ...
    @property
    def label(self) -> str: ...
    @property
    def meaning(self) -> str: ...
    @property
    def unit(self) -> float | None: ...
    @property
    def maps(self) -> Sequence[PageHead]: ...
    @property
    def picture(self) -> PagePicture | None: ...


class PageRow(Protocol):
    """The metrics of one head, such as `HeadRow`."""

    @property
    def stack(self) -> str: ...
    @property
    def layer(self) -> int: ...
    @property
    def head(self) -> int: ...
    @property
    def values(self) -> Mapping[str, float | None]: ...
    @property
    def errors(self) -> Mapping[str, float | None]: ...


class PageMetrics(Protocol):
    """The metrics of heads, such as `HeadTable`."""

    metrics: dict[str, str]
    layers: dict[str, tuple[int, int]]
    notices: list[str]

    @property
    def title(self) -> str: ...
    @property
    def models(self) -> list[str]: ...
    @property
    def rows(self) -> Sequence[PageRow]: ...
    @property
    def has_errors(self) -> bool: ...
    @property
    def page_source(self) -> str: ...
    @property
    def powers(self) -> bool: ...
    @property
    def signed(self) -> bool: ...
    @property
    def what(self) -> str: ...
    @property
    def without(self) -> str: ...
    def drawn(self, row: Any, metric: str, /) -> float | None: ...
