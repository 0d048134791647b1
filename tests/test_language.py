"""What users read is plain English: phrases that were replaced do not return.

The strings and docstrings of the package, the page's template and scripts, and the documentation are
searched. A phrase stands with what to say instead.
"""

import ast
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
INSTEAD = {
    r"cannot be had|not to be had": "is not available; could not be allocated",
    r"\banew\b": "again; restart",
    r"\bthe making\b": "the expression; how it is computed",
    r"\basked of\b|asks of (its|sizes|each)": "required of",
    r"multiplied over|summed away": "contracted over",
    r"multiplied with": "multiplied by",
    r"\blearnt\b": "learned",
    r"\blets see\b": "shows",
    r"there is none of": "there is no",
    r"\bwhose business\b": "what is responsible for",
    r"\bnothing is told\b": "no message is printed",
    r"\bas it lies\b|lies on disk": "as stored",
    r"\bwhat asks\b": "queries",
    r"what is compared with": "keys",
    r"(?<!there\s)\b(is|are) no (?!such|longer|more|less|wider|faster|other|better|worse)": "is not a; has no",
    r"exists? already\b": "already exists",
    r"\bnone below 0\b": "non-negative",
    r"looks? at values": "depends on values",
    r"\bhard choice\b": "nearly one-hot",
    r"has no meaning": "does not apply",
    r"r[au]ns? untraced": "is not traced",
    r"axes of 1 stand for all": "axes of size 1 are broadcast",
    r"\bunobserved\b": "without the hook",
    r"you may not write": "no permission to write",
    r"\bnot to be (seen|found)\b": "cannot be observed; not found",
    r"in place and name|by its place\b": "by position",
    r"how widely it looks|how far it looks": "how spread its attention is; how far it reaches",
    r"what is made of (it|them)\b": "what is computed from",
    r"are each something to": "cannot be combined",
}
"""Patterns of phrases, each with what to say instead."""
PACKAGE = sorted((ROOT / "attnscope").rglob("*.py"))
PAGE = sorted(each for each in (ROOT / "attnscope").rglob("*") if each.suffix in (".js", ".j2", ".html"))
DOCS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("llms.txt")])
NOTEBOOKS = sorted((ROOT / "docs").rglob("*.ipynb"))


def strings_of(path: Path) -> list[tuple[int, str]]:
    """The strings of a Python file, docstrings included, with their lines."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found, inner = [], set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            inner |= {id(part) for part in node.values}
            parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
            found.append((node.lineno, "".join(map(str, parts))))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            found.append((node.lineno, node.value))
    return found


def texts_of(path: Path) -> list[tuple[int, str]]:
    """What users read of a file, with lines; a notebook without its outputs."""
    if path.suffix == ".py":
        return strings_of(path)
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        return [(i, "".join(cell["source"])) for i, cell in enumerate(json.loads(text)["cells"])]
    return [(1, text)]


def found_in(texts: list[tuple[int, str]]) -> list[str]:
    """The phrases in texts that are to be replaced, each with its line and what to say instead."""
    return [
        f"{line + text[: match.start()].count(chr(10))}: {match[0]!r}: say {instead!r}"
        for line, text in texts
        for phrase, instead in INSTEAD.items()
        for match in re.finditer(phrase.replace(" ", r"\s+"), text, re.IGNORECASE)
    ]


@pytest.mark.parametrize(
    "files", [PACKAGE, PAGE, DOCS, NOTEBOOKS], ids="package page docs notebooks".split()
)
def test_no_phrase_returns(files):
    found = [f"{path.relative_to(ROOT)}:{each}" for path in files for each in found_in(texts_of(path))]
    assert not found, "\n".join(found)


def test_phrases_are_found_in_strings_and_docstrings_and_across_lines(tmp_path):
    path = tmp_path / "x.py"
    path.write_text(
        'def f(n):\n    """Start\n    anew."""\n    return f"{n} is no " "axis"\nx = "made " "anew"\n'
    )
    assert sorted(found_in(texts_of(path))) == [
        "3: 'anew': say 'again; restart'",
        "4: 'is no ': say 'is not a; has no'",
        "5: 'anew': say 'again; restart'",
    ]


def test_phrases_that_are_fine_are_not_found():
    fine = "there is no folder x; it is no longer a file; it has no axis; the file already exists"
    assert found_in([(1, fine)]) == []
