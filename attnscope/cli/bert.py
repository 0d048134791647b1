"""`attnscope bert`: `attnscope model` with a BERT where no model is named."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import typer

from attnscope.cli.model import model as of_model

Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="MODEL",
        help="minilm (bundled), a folder, or a hub name; bert-base-uncased where minilm is not"
        " installed.",
    ),
]


def bert(model: Any = None, **given: Any) -> int:
    """One attention head of a BERT: its weights; with --text, what it looks at."""
    return of_model(model, **given)


# Typer reads signatures: bert's is model's, with its argument turned into an option.
_first, *_others = inspect.signature(of_model, eval_str=True).parameters.values()
bert.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [_first.replace(annotation=Model, default=None), *_others]
)
