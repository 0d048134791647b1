"""A small histogram as SVG."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope.units import number_text

if TYPE_CHECKING:
    import numpy as np
    from markupsafe import Markup

BINS, HEIGHT = 48, 16


def histogram(values: np.ndarray | None) -> Markup:
    """Return the histogram of an array's finite values, from the smallest to the largest.

    A line marks 0, if it is between them.
    """
    import numpy as np
    from markupsafe import Markup

    finite = np.array([]) if values is None else values[np.isfinite(values)].astype("float64")
    if not finite.size:
        return Markup("")
    counts, edges = np.histogram(finite, bins=BINS)
    low, high = float(edges[0]), float(edges[-1])
    heights = np.ceil(counts / counts.max() * HEIGHT).astype(int)
    bars = "".join(f"M{i} {HEIGHT}v-{height}h1V{HEIGHT}z" for i, height in enumerate(heights) if height)
    zero = (
        f'<path class="zero" d="M{-low / (high - low) * BINS:.1f} 0V{HEIGHT}"/>'
        if low < 0 < high
        else ""
    )
    title = f"{number_text(low)} to {number_text(high)}, {BINS} bins"
    return Markup(
        f'<svg class="histogram" viewBox="0 0 {BINS} {HEIGHT}" preserveAspectRatio="none" role="img">'
        f'<title>{title}</title>{zero}<path d="{bars}"/></svg>'
    )
