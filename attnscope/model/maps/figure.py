"""Draw figures: a map with its tokens, a grid of maps, an image overlaid with weights."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import OptionError, no_such_part
from attnscope.base.text import described
from attnscope.document.figure import (
    CELL,
    COLOURS,
    GREY,
    MAX_INCHES,
    THIN,
    axes_at,
    check_matplotlib,
    draw_matrix,
    draw_scale,
    drawable,
    label_axis,
)
from attnscope.document.grid.pooling import (
    borders,
    chunks,
    first_tokens,
    left_out_text,
    pooling_text,
    positions,
    smaller_without,
)
from attnscope.document.result import named
from attnscope.model.maps.drawing import first_query, on_patches, query_text, weights_of, without
from attnscope.model.maps.record import of_query
from attnscope.model.maps.result import AttentionMap, AttentionMaps
from attnscope.model.run.tokens import Picture

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL = 1.4  # inches of a map in a grid
LARGEST_GRID = 14.0  # inches of all maps of a grid, side by side or below each other
LARGEST = 1000  # cells along an axis of a single map: fewer than pixels, so that all are visible
SPOTS = 128  # of a map in a grid, at most, along each axis
GAP = 0.08  # between two maps of a grid, in widths of a map
PICTURE = 5.0  # inches of one picture
VEIL_COLOUR = (0.97, 0.42, 0.0)
PALE = 0.2  # the darkest grey, and the distance of the lightest from white
VEIL = 0.8  # opacity of the overlay at the largest weight


def draw_maps(figure: Figure, maps: AttentionMaps, query: int | None) -> None:
    """Draw one map with its tokens, or a grid of layers × heads; of an image, it under the weights.

    `query` is the position of the only query to show. None: all; for a vision model, `first_query`.
    """
    queries = range(maps.first_query, maps.first_query + len(maps.query_tokens))
    if query is not None and query not in queries:
        raise no_such_part(query, queries, "the queries of these maps")
    if query is not None and maps.pooling is not None and query != maps.query:
        raise OptionError("these maps are pooled, and hold the row of no query but the one requested.")
    if maps.picture is not None:
        _draw_pictures(figure, maps, maps.picture, query)
        return
    if query is not None:
        maps = of_query(maps, query)
    if len(maps.maps) == 1:
        _draw_map(figure, maps, maps.maps[0])
    else:
        _draw_grid(figure, maps)


def plot(maps: AttentionMaps, axes: Axes | None, layer: int | None, head: int | None) -> Axes:
    """Draw maps as `AttentionMaps.plot` documents."""
    check_matplotlib()
    from matplotlib import pyplot
    from matplotlib.axes import Axes

    if axes is not None and not isinstance(axes, Axes):
        is_path = isinstance(axes, str | PathLike)
        raise OptionError(
            f"axes is {described(axes)}, but takes axes of matplotlib.",
            hint="save(…), which writes files" if is_path else "figure.subplots()",
        )
    one = maps.one
    if layer is not None or head is not None:
        layers, heads = ({getattr(each, axis) for each in maps} for axis in ("layer", "head"))
        if (layer is None and len(layers) > 1) or (head is None and len(heads) > 1):
            raise OptionError(f"one of layer and head names no single map of {len(maps)}.", hint="both")
        one = maps[min(layers) if layer is None else layer, min(heads) if head is None else head]
    if axes is not None:
        if one is None:
            raise OptionError(
                f"these axes hold one map, and there are {len(maps)}.", hint="layer=0, head=0"
            )
        top = _map_on(axes, maps, one, maps.maps)
        _say_scale(axes, top, maps)  # others may be drawn beside it
        return axes
    figure = pyplot.figure()
    if one is not None:
        _draw_map(figure, maps, one)
    else:
        _draw_grid(figure, maps)
    return figure.axes[0]


def _draw_map(figure: Figure, maps: AttentionMaps, map: AttentionMap) -> None:
    """Draw one map, with the tokens along both axes and the colour scale at the right."""
    rows, columns = map.attention.shape
    width, height = min(MAX_INCHES, CELL * columns), min(MAX_INCHES, CELL * rows)
    axes = _axes(figure, width, height)
    top = _map_on(axes, maps, map, [map])
    title = f"{drawable(named(maps.model, maps.stack))} · {maps.place_of(map)}"
    axes.set_title(title + _more_text(maps), parse_math=False, pad=10)
    _add_scale(figure, COLOURS, top, height, maps.kind.label)


def _map_on(
    axes: Axes, maps: AttentionMaps, map: AttentionMap, same_scale: Sequence[AttentionMap]
) -> float:
    """Draw one map with its tokens into axes of any size.

    Return the largest weight of the maps of the same scale, which has the darkest colour.
    """
    rows, columns = map.attention.shape
    dots = axes.get_window_extent()
    width, height = dots.width / axes.figure.dpi, dots.height / axes.figure.dpi
    cells = chunks(rows, LARGEST), chunks(columns, LARGEST)  # that a figure can show
    shown = _coloured(maps, map.attention, *cells)
    top = _top(shown if each is map else _coloured(maps, each.attention, *cells) for each in same_scale)
    sizes = len(cells[0][0]), len(cells[1][0])
    draw_matrix(axes, shown, _colours(), top, shape=(rows, columns), sizes=sizes)
    (queries, keys), places = first_tokens(maps), positions(maps)
    label_axis(axes, keys, places[1], width / columns, "x")
    label_axis(axes, queries, places[0], height / rows, "y")
    for position in borders(keys):
        axes.axvline(position - 0.5, color=GREY, linewidth=THIN)
    for position in borders(queries):
        axes.axhline(position - 0.5, color=GREY, linewidth=THIN)
    return top


def _say_scale(axes: Axes, top: float, maps: AttentionMaps) -> None:
    """Write below a map which weights, or other numbers, its colours stand for."""
    kind = f"{maps.kind.name}, " if maps.kind.meaning else ""
    axes.text(
        1, -0.02, f"{kind}colours from 0 to {top:.3g}", {"size": "small", "color": GREY},
        transform=axes.transAxes, ha="right", va="top",
    )  # fmt: skip


def _draw_grid(figure: Figure, maps: AttentionMaps) -> None:
    """Draw a grid of maps, a row for each layer and a column for each head, on one colour scale."""
    n_Q, n_K = len(maps.query_tokens), len(maps.key_tokens)
    rows, columns = (chunks(size, SPOTS) for size in maps.maps[0].attention.shape)
    panels = {(map.layer, map.head): _coloured(maps, map.attention, rows, columns) for map in maps.maps}
    axes, height = _panels(figure, panels, min(2.0, max(0.25, n_Q / n_K)), PANEL)
    title = f"{drawable(named(maps.model, maps.stack))} · {n_Q} queries downwards, {n_K} keys across"
    axes.set_title(title + _more_text(maps), parse_math=False, pad=10)
    _add_scale(figure, COLOURS, _top(panels.values()), height, maps.kind.label)


def _draw_pictures(figure: Figure, maps: AttentionMaps, picture: Picture, query: int | None) -> None:
    """Draw the image overlaid with the weights of one query, for each head.

    If `query` is None, it is that of `first_query`.
    """
    query = first_query(picture) if query is None else query
    weights = {
        (map.layer, map.head): on_patches(without(maps, weights_of(map.attention, query)), picture)
        for map in maps.maps
    }
    top = _top(weights.values())
    is_single = len(weights) == 1
    size = PICTURE if is_single else PANEL
    grey = _grey(picture, 1024 if is_single else 2 * SPOTS)
    panels = {place: _veiled(grey, each / top) for place, each in weights.items()}
    axes, height = _panels(figure, panels, grey.shape[0] / grey.shape[1], size)
    title = drawable(f"{named(maps.model, maps.stack)} · {query_text(maps.query_tokens, query)}")
    if is_single:
        title += f" · {maps.place_of(maps.maps[0])}"
        axes.set(xticks=[], yticks=[], xlabel="", ylabel="")
    axes.set_title(title + _more_text(maps), parse_math=False, pad=10)
    _add_scale(figure, _veil_colours(), top, height, maps.kind.label)


def _grey(picture: Picture, most: int) -> np.ndarray:
    """Return the image in pale grey, at most `most` pixels wide and high."""
    import numpy as np
    from PIL import Image

    image = Image.open(io.BytesIO(picture.png)).convert("L")
    image.thumbnail((most, most))
    return PALE + (1 - 2 * PALE) * np.asarray(image) / 255


def _veiled(grey: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Overlay an image with a colour whose opacity grows with each patch's share: `height width 3`."""
    import numpy as np

    height, width = grey.shape
    rows, columns = shares.shape
    thick = (
        VEIL
        * np.nan_to_num(shares)[np.arange(height) * rows // height][
            :, np.arange(width) * columns // width
        ]
    )
    return grey[..., None] * (1 - thick[..., None]) + np.array(VEIL_COLOUR) * thick[..., None]


def _veil_colours() -> Any:
    """Return the colour map of a middle grey under the overlay."""
    import numpy as np
    from matplotlib.colors import ListedColormap

    return ListedColormap(_veiled(np.full((1, 256), 0.5), np.linspace(0, 1, 256)[None])[0])


def _panels(
    figure: Figure, panels: Mapping[tuple[int, int], np.ndarray], ratio: float, size: float
) -> tuple[Axes, float]:
    """Draw panels by layer and head in one system of axes; return it, and its height in inches.

    Panels are weights, or colours. `ratio` is the height of one divided by its width, which is at most
    `size` inches.
    """
    from matplotlib.patches import Rectangle

    layers, heads = (sorted(set(numbers)) for numbers in zip(*panels, strict=True))
    size = min(size, LARGEST_GRID / len(heads), LARGEST_GRID / len(layers) / ratio)
    step = 1 + GAP
    width, height = (len(heads) * step - GAP) * size, (len(layers) * step - GAP) * size * ratio
    axes = _axes(figure, width, height)
    top = _top(panels.values())
    for (layer, head), panel in panels.items():
        x, y = heads.index(head) * step, layers.index(layer) * step
        extent = (x, x + 1, y + 1, y)
        axes.imshow(panel, _colours(), vmin=0, vmax=top, extent=extent, aspect="auto")
        axes.add_patch(
            Rectangle((x, y), 1, 1, fill=False, edgecolor="0.6", linewidth=0.4, clip_on=False)
        )
    axes.set(xlim=(0, len(heads) * step - GAP), ylim=(len(layers) * step - GAP, 0))
    axes.set_xticks([i * step + 0.5 for i in range(len(heads))], [str(head) for head in heads])
    axes.set_yticks([i * step + 0.5 for i in range(len(layers))], [str(layer) for layer in layers])
    axes.tick_params(length=0, top=True, labeltop=True, labelbottom=False)
    axes.xaxis.set_label_position("top")
    axes.set(xlabel="head", ylabel="layer")
    axes.spines[:].set_visible(False)
    return axes, height


def _axes(figure: Figure, width: float, height: float) -> Axes:
    """Add axes of a size in inches; labels around them enlarge the figure when it is saved."""
    figure.set_size_inches(width, height)
    return figure.add_axes((0, 0, 1, 1))


def _add_scale(figure: Figure, colours: Any, top: float, height: float, label: str) -> None:
    """Add a colour bar for the weights, or for numbers with another label, at the right of the axes."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    width, _ = figure.get_size_inches()
    scale = axes_at(figure, width + 0.15, 0, 0.12, max(1.0, min(height, 3.0)))
    draw_scale(scale, ScalarMappable(Normalize(0, top), colours), label=label)


def _more_text(maps: AttentionMaps) -> str:
    """Return lines for below a title: how the maps are pooled, and which keys are left out."""
    parts = [pooling_text(maps)] if maps.pooling is not None else []
    parts += [f"{left_out_text(maps)} (grey)"] if maps.left_out else []
    parts += [maps.kind.name] if maps.kind.meaning else []
    return "".join(f"\n{part}" for part in parts)


def _coloured(
    maps: AttentionMaps, attention: np.ndarray, rows: Sequence[range], columns: Sequence[range]
) -> np.ndarray:
    """Pool a map; columns that are left out become NaN, which is drawn in grey."""
    cells, left_out = smaller_without(maps, attention, rows, columns)
    cells[:, left_out] = float("nan")
    return cells


def _colours() -> Any:
    """Return the colour map of weights, with grey for NaN."""
    from matplotlib import colormaps

    return colormaps[COLOURS].with_extremes(bad="0.88")


def _top(weights: Iterable[np.ndarray]) -> float:
    """Return the largest weight; 1 if all are 0."""
    import numpy as np

    return max(float(np.nan_to_num(each).max(initial=0)) for each in weights) or 1.0
