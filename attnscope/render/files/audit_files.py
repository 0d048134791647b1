"""Write audits: as a figure, or as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attnscope.files import write_file
from attnscope.render.influence import subjects
from attnscope.render.page.document import document
from attnscope.render.page.page import check_page
from attnscope.results.audit import Audit


def save_page(result: Audit, path: Path, *, force: bool = False) -> int:
    """Write a page of an audit; return its size in bytes.

    Raises:
        FileError: it cannot be written; nothing is left of it then.
    """
    check_page(path, name="audit.html", force=force)
    content = audit_page(result).encode()
    write_file(path, content, force=force)
    return len(content)


def audit_page(result: Audit) -> str:
    """Return a page with the properties and pictures, which says what the cell at the pointer is."""
    from attnscope.render.notebook.html import html
    from attnscope.render.notebook.influence import data_of

    data: list[Any] = [None if each is None else data_of(each) for _, each in subjects(result)]
    return document(f"{result.name} · audit", html(result), script="influence.js", data=data)
