"""Whether a file that was written is whole: each kind is read again by a library of its own."""

from __future__ import annotations

import csv
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import torch
from PIL import Image

import attnscope

VOID = {
    "meta",
    "link",
    "br",
    "input",
    "hr",
    "img",
    "path",
    "rect",
    "line",
    "circle",
    "use",
    "stop",
    "polyline",
}
"""Elements of HTML, and of SVG in it, that nobody closes, or need not."""


PACKAGE = Path(attnscope.__file__).parent
SOURCES = [PACKAGE / "document/page/page.html.j2", PACKAGE / "document/page/document.py"]
SOURCES += PACKAGE.glob("document/templates/*.j2")
DRAWS = re.compile(r"rendered\(|<(svg|path|g|rect|details|span|table)\b")
SOURCES += [each for each in PACKAGE.rglob("*.py") if DRAWS.search(each.read_text(encoding="utf-8"))]
TEMPLATES = "\n".join(each.read_text(encoding="utf-8") for each in SOURCES)
ELEMENTS = {each.lower() for each in re.findall(r"<([a-z][A-Za-z0-9]*)", TEMPLATES)}
ATTRIBUTES = {each.lower() for each in re.findall(r'\s([a-zA-Z-]+)="', TEMPLATES)}
ATTRIBUTES |= {"hidden", "checked", "class"}
"""The elements of pages, and their attributes: data adds none."""


class Tags(HTMLParser):
    """Which elements are open, and which are none of the template's."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.foreign: list[str] = []  # what the page's template does not have

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.foreign += {tag} - ELEMENTS
        self.foreign += {name for name, _ in attrs} - ATTRIBUTES
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            while self.open.pop() != tag:
                pass


def why_not_whole(path: Path) -> str | None:
    """Why a file is not whole; None if it is, or is of a kind that nothing reads."""
    return why_not_whole_bytes(path.read_bytes(), path.suffix)


def why_not_whole_bytes(content: bytes, suffix: str) -> str | None:
    """The same of what a file holds; a suffix tells its kind."""
    try:
        check = CHECKS.get(suffix)
        if check is not None:
            check(content)
    except Exception as error:  # whatever its library raises
        return f"{type(error).__name__}: {error}"[:300]
    return None


def _npz(content: bytes) -> None:
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        for name in arrays.files:
            arrays[name]


def _safetensors(content: bytes) -> None:
    from safetensors.torch import load

    load(content)


def _pt(content: bytes) -> None:
    torch.load(io.BytesIO(content), weights_only=True)


def _image(content: bytes) -> None:
    with Image.open(io.BytesIO(content)) as image:
        image.load()


def _svg(content: bytes) -> None:
    ElementTree.fromstring(content)


def _pdf(content: bytes) -> None:
    assert content.startswith(b"%PDF-"), "it does not begin as a PDF"
    assert content.rstrip().endswith(b"%%EOF"), "it does not end as a PDF"
    start = int(re.findall(rb"startxref\s+(\d+)", content)[-1])
    assert content[start:].startswith(b"xref"), "its table of objects is not where it says"


def _html(content: bytes) -> None:
    text = content.decode()
    assert text.rstrip().endswith("</html>"), "it does not end as a page"
    parser = Tags()
    parser.feed(text)
    parser.close()
    assert not parser.open, f"these are open at its end: {parser.open}"
    assert not parser.foreign, f"these are not the template's: {parser.foreign}"


def _json(content: bytes) -> None:
    json.loads(content)


def _csv(content: bytes) -> None:
    rows = list(csv.reader(io.StringIO(content.decode())))
    assert len({len(row) for row in rows}) == 1, "its rows are not equally long"


def _python(content: bytes) -> None:
    compile(content, "traced.py", "exec")


CHECKS = {
    ".npz": _npz,
    ".safetensors": _safetensors,
    ".pt": _pt,
    ".png": _image,
    ".svg": _svg,
    ".pdf": _pdf,
    ".html": _html,
    ".json": _json,
    ".csv": _csv,
    ".py": _python,
}
