"""`attnscope scaling`: why scores are divided by √d_K."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from attnscope.cli import options
from attnscope.cli.options import OUTPUT, RUN, SIZES, Format
from attnscope.errors import OptionError

if TYPE_CHECKING:
    from attnscope.results.scaling import Scaling


def scaling(
    dk: Annotated[
        str,
        typer.Option(
            "--dk",
            metavar="N,N,…",
            help="d_K: widths of a key, and of a query, to compare.",
            rich_help_panel=SIZES,
        ),
    ] = "1,4,16,64,256,1024",
    batch: Annotated[
        int, typer.Option("--batch", help="n_batch: independent draws.", rich_help_panel=SIZES)
    ] = 64,
    nq: Annotated[int, typer.Option("--nq", help="n_Q: queries.", rich_help_panel=SIZES)] = 64,
    nk: Annotated[int, typer.Option("--nk", help="n_K: keys.", rich_help_panel=SIZES)] = 64,
    seed: options.Seed = None,
    dtype: Annotated[
        str,
        typer.Option(
            "--dtype",
            help="float64, float32, float16 or bfloat16; measured in float64.",
            rich_help_panel=RUN,
        ),
    ] = "float32",
    plot: Annotated[
        bool | None,
        typer.Option(
            "--plot/--no-plot",
            help="Draw bars below the table.",
            show_default="plot",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    format: options.OutputFormat = Format.TABLE,
) -> int:
    """Why scores are divided by √d_K: what the softmax makes of them with the scale, and without."""
    from attnscope.cli.output import progress
    from attnscope.errors import warn_idle
    from attnscope.process.devices import check_memory, check_seed
    from attnscope.process.memory import check_imports

    sizes = {"n_batch": batch, "n_Q": nq, "n_K": nk}
    widths = parse_widths(dk)
    seed = seed or 0
    check_seed(seed)
    option = "--plot" if plot else "--no-plot"
    no_bars = plot is not None and format is not Format.TABLE
    warn_idle([(no_bars, option, f"bars are drawn below a table, not in {format}")])
    needed = max(_bytes_needed(sizes, d_K, dtype) for d_K in widths)
    check_memory(needed, "cpu", hint="a smaller --dk, --batch, --nq or --nk")
    check_imports()
    with progress("measuring scores …"):
        result = _measured(sizes, widths, dtype, seed)
    _print(result, format, plot is not False)
    return 0


def parse_widths(text: str) -> list[int]:
    """The widths of `--dk`: `1, 16` is `[1, 16]`.

    Raises:
        OptionError: it is not a list of whole numbers.
    """
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if not re.fullmatch(r"-?[0-9]{1,18}", part):
            raise OptionError(
                f"{part!r} is not a width: --dk takes whole numbers of at most 18 digits, and commas.",
                hint="--dk 1,16,256",
            )
    return [int(part) for part in parts]


def _bytes_needed(sizes: Mapping[str, int], d_K: int, dtype: str) -> int:
    """The memory that measuring takes at its peak, a lower bound: that of attention with narrow values.

    Raises:
        SizeError, OptionError: there is no attention of such sizes, or in such a dtype.
    """
    from attnscope import contracts

    return contracts.bytes_needed(contracts.sdpa({**sizes, "d_K": d_K, "d_V": 1}, dtype=dtype))


def _measured(sizes: dict[str, int], widths: list[int], dtype: str, seed: int) -> Scaling:
    from attnscope.attention.scaling import measure
    from attnscope.process.devices import draw
    from attnscope.render.terminal.scaling import findings
    from attnscope.results.scaling import Scaling, ScalingRow

    n_batch, n_Q, n_K = sizes.values()
    rows: dict[int, list[ScalingRow]] = {}
    for d_K in widths:
        if d_K not in rows:
            shapes = (n_batch, n_Q, d_K), (n_batch, n_K, d_K)
            Q, K = draw(*shapes, dtype=dtype, device="cpu", seed=seed)
            scales = {False: 1.0, True: d_K**-0.5}
            rows[d_K] = [
                ScalingRow(d_K, scaled, *measure(Q, K, scale)) for scaled, scale in scales.items()
            ]
    result = Scaling(sizes, dtype, seed, [row for d_K in widths for row in rows[d_K]])
    result.findings = findings(result)
    return result


def _print(result: Scaling, format: Format, plot: bool) -> None:
    from attnscope.cli.output import put, stdout
    from attnscope.render.records import records, scaling

    if format is Format.JSON:
        print(records.json_text(records.record(result)))
    elif format is Format.CSV:
        put(scaling.csv_text(result))
    elif format is Format.MARKDOWN:
        put(scaling.markdown_text(result))
    else:
        from attnscope.render.terminal.scaling import print_scaling

        print_scaling(result, stdout(), plot=plot)
