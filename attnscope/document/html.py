"""Documents as HTML, for notebooks and for pages."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

from attnscope.base.text import printable
from attnscope.document.blocks import Block, Drawing, Table, shown_in
from attnscope.document.columns import Column, shown_columns
from attnscope.document.pieces import classes

if TYPE_CHECKING:
    from jinja2 import Environment


def html_document(blocks: Iterable[Block]) -> str:
    """Return a document as HTML without its style. Everything that comes from data is escaped."""
    named = [
        ("Drawing" if isinstance(block, Drawing) else type(block).__name__, block)
        for block in shown_in(blocks, html=True)
    ]
    return environment().get_template("document.html.j2").render(blocks=named)


def _tables(table: Table) -> list[list[Column]]:
    """Return the columns of a table in one part, or in two: each begins with the first column."""
    columns = shown_columns(table.columns)
    second = [each for each in columns if each.key in table.second]
    first = [each for each in columns if each.key not in table.second]
    return [first, [*first[:1], *second]] if second else [first]


def rendered(template: str, **values: Any) -> str:
    """Return the HTML of a template, whose values are escaped."""
    return environment().from_string(template).render(**values)


def styled_document(blocks: Iterable[Block]) -> str:
    """Return a document with the style sheet of all documents, as a fragment for a notebook."""
    from importlib.resources import files

    style = files(__package__).joinpath("document.css").read_text(encoding="utf-8")
    return (
        environment().get_template("output.html.j2").render(style=style, content=html_document(blocks))
    )


@cache
def environment() -> Environment:
    """Return the environment of the templates, whose values are escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("attnscope.document"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "classes": classes,
        "printable": printable,
        "shown": shown_columns,
        "tables": _tables,
    }
    return environment
