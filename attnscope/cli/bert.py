"""`attnscope bert`: `attnscope model` with a BERT as the default model."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import typer

from attnscope.base.errors import OptionError
from attnscope.base.spelling import quoted
from attnscope.cli.completion import completion
from attnscope.cli.model import EXAMPLES as OF_MODEL
from attnscope.cli.model import model as of_model

EXAMPLES = {
    command.replace("model minilm", "bert"): what
    for command, what in OF_MODEL.items()
    if "minilm" in command
}

Named = Annotated[
    str | None,
    typer.Argument(
        metavar="[MODEL]",
        help="minilm (bundled), a folder, a hub name, or a .gguf file (its weights);"
        " bert-base-uncased where minilm is not installed.",
        show_default=False,
        autocompletion=completion("models"),
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model", metavar="MODEL", help="The same, as an option.", autocompletion=completion("models")
    ),
]


def bert(named: str | None = None, model: str | None = None, **options: Any) -> int:
    """Run `attnscope bert` and return its exit status."""
    if named is not None and model is not None:
        raise OptionError(
            f"MODEL is {named}, and --model {model}: give only one.",
            hint=f"attnscope bert {quoted(named)}",
        )
    return of_model(model=named if model is None else model, **options)


# Typer reads signatures. This one is model's, but MODEL may be left out or passed as an option.
_first, *_others = inspect.signature(of_model, eval_str=True).parameters.values()
bert.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [
        _first.replace(name="named", annotation=Named, default=None),
        _first.replace(annotation=Model, default=None),
        *_others,
    ]
)
bert.flags = of_model.flags  # type: ignore[attr-defined]
