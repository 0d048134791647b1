"""Realistic tables of heads: most values are small, and a few are large."""

import io
from math import exp, log

import numpy as np
from rich.console import Console

from attnscope.model.heads.result import HeadRow, HeadTable

MEANINGS = {
    "entropy": "of a row of weights, in nats",
    "self": "weight on the query's own token",
    "first": "weight on the first token",
    "induction": "weight on what followed the same token before",
    "distance": "between a query and what it looks at, in tokens",
    "effective": "keys that share the weight: exp of the entropy",
}
NOT_OF_CROSS = {"self", "induction", "distance"}


def head_table(layers=None, *, sequences=1, tokens=1313, metrics=tuple(MEANINGS), **more):
    """Return a table of heads with random values, the same at each call."""
    random = np.random.default_rng(0)
    layers = {"self": (6, 12)} if layers is None else layers
    longest = log(tokens / sequences)
    rows = []
    for stack, (n_layer, n_head) in layers.items():
        for place in np.ndindex(n_layer, n_head):
            entropy = random.uniform(0.1, longest)
            drawn = {name: float(random.beta(0.3, 4)) for name in MEANINGS}
            drawn |= {"entropy": float(entropy), "effective": exp(entropy)}
            drawn["distance"] = float(random.gamma(2, 9))
            values = {
                name: None if stack == "cross" and name in NOT_OF_CROSS else drawn[name]
                for name in metrics
            }
            errors = {
                name: None if value is None or sequences == 1 else value * 0.03
                for name, value in values.items()
            }
            rows.append(HeadRow(stack, *place, values, errors))
    return HeadTable("tiny", {m: MEANINGS[m] for m in metrics}, sequences, tokens, layers, rows, **more)


def of_values(values, *, metric="self", sequences=1, errors=None):
    """Return a table of one metric: `values` by layer and head, None where no query counts."""
    rows = [
        HeadRow("self", layer, head, {metric: value}, {metric: errors and errors[layer][head]})
        for layer, heads in enumerate(values)
        for head, value in enumerate(heads)
    ]
    layers = {"self": (len(values), len(values[0]))}
    return HeadTable("tiny", {metric: MEANINGS[metric]}, sequences, 90, layers, rows)


def printed(print_it, *arguments, width=80, terminal=True, colours=None, encoding="utf-8", **options):
    """Return the lines that a view prints on a console: `print_it(table, console, …)`."""
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="\n")
    console = Console(file=file, width=width, force_terminal=terminal, color_system=colours)
    table, *others = arguments
    print_it(table, console, *others, **options)
    file.flush()
    return file.buffer.getvalue().decode(encoding).splitlines()
