"""Writing shape comments into a source file, leaving all other bytes unchanged."""

from __future__ import annotations

import ast
import difflib
import io
import os
import re
import tokenize
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeAlias

from attnscope.base.errors import FileError, SourceError
from attnscope.base.process.files import whole_file
from attnscope.code.trace.comments.claims import is_prose
from attnscope.code.trace.comments.parse import ANY, Claim, ShapeComment, shape_comments, text_spans
from attnscope.code.trace.comments.places import Binding, Code, Place
from attnscope.code.trace.comments.type_hints import MOST_SHAPES, hint_source
from attnscope.observe.axes.expressions import parse_expression
from attnscope.observe.trace import Step

MOST_ELEMENTS = 4  # elements of a list whose shapes are all written even if they are equal

Dims: TypeAlias = tuple[str, ...]
Style: TypeAlias = Literal["comments", "jaxtyping"]


def annotate_source(
    text: str, steps: Iterable[Step], *, file: str | None = None, keep: Collection[int] = ()
) -> str:
    r"""Add comments with the axes of the tensors that each line binds to the text of a source file.

    Steps without dims, and those of other files, are ignored. Comments on the lines `keep` may stay.

    >>> step = Step("y", ("n_Q", "d_K"), (3, 4), "float32", "f(x)", 48, line=1)
    >>> annotate_source("y = f(x)  # the queries\n", [step])
    'y = f(x)  # [n_Q, d_K] the queries\n'
    """
    mark, text = ("\ufeff", text[1:]) if text.startswith("\ufeff") else ("", text)
    code = Code(text)
    lines = list(code.lines)
    dims_of = _dims_by_binding(code, of_file(steps, file))
    known = axis_words(
        dims for by_name in dims_of.values() for each in by_name.values() for dims in each
    )
    tensors = {name for by_name in dims_of.values() for name in by_name}
    for place in code.places:
        shapes = _shapes(place, dims_of)
        if shapes and place.last not in keep:
            line = lines[place.last - 1]
            bare = line.rstrip("\r\n")
            start = place.comment.column if place.comment else len(bare)
            comment = _comment(place, shapes, bare[start:], known, tensors)
            lines[place.last - 1] = bare[:start] + comment + line[len(bare) :]
    new = "".join(lines)
    if ast.dump(Code(new).tree) != ast.dump(code.tree):
        raise SourceError("adding comments would change the program; the file was not changed.")
    return mark + new


def annotate_file(
    path: str | Path, steps: Iterable[Step], *, keep: Collection[int] = (), style: Style = "comments"
) -> tuple[bytes, bytes]:
    """Return the text of a source file without and with its tensors' axes; nothing is written.

    Where the file's encoding has no `·`, products are written with `*`.

    Comments on the lines `keep` may stay as they are.
    """
    old = _read(Path(path))
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(old).readline)
        text = old.decode(encoding)
    except (SyntaxError, UnicodeDecodeError) as error:
        raise SourceError(f"cannot read {path}: {error}.") from error
    if text.encode(encoding) != old:
        raise SourceError(
            f"cannot edit {path}: its encoding, {encoding}, can write the same text in several ways."
        )
    file_steps = of_file(steps, str(path))
    try:
        "·".encode(encoding)
    except UnicodeEncodeError:
        file_steps = [
            replace(step, dims=step.dims and tuple(dim.replace("·", "*") for dim in step.dims))
            for step in file_steps
        ]
    if style == "jaxtyping":
        new = hint_source(text, file_steps)
    else:
        new = annotate_source(text, file_steps, file=str(path), keep=keep)
    try:
        return old, new.encode(encoding)
    except UnicodeEncodeError as error:
        letter = error.object[error.start]
        raise SourceError(
            f"cannot write the axis names into {path}: {encoding} has no {letter}.",
            hint="save the file as UTF-8",
        ) from error


def diff(old: bytes, new: bytes, path: str) -> str:
    """Return the changes in a file in the format of `diff -u`; empty if there are none."""
    texts = [_for_reading(old), _for_reading(new)]
    before, after = [list(io.StringIO(text, newline="\n")) for text in texts]
    rows = difflib.unified_diff(before, after, path, path)
    return "".join(
        row if row.endswith("\n") else f"{row}\n\\ No newline at end of file\n" for row in rows
    )


def write(path: str | Path, old: bytes, new: bytes) -> None:
    """Rewrite a file completely or not at all, keeping its permissions."""
    _check_unchanged(Path(path), old)
    if not os.access(path, os.W_OK):
        raise FileError(f"no permission to write {path}.")
    with whole_file(Path(path), force=True) as unfinished:
        unfinished.write_bytes(new)
        _check_unchanged(Path(path), old)


def of_file(steps: Iterable[Step], file: str | None) -> list[Step]:
    """Return the steps of a file, and those without a file; not those that only name others."""
    path = os.path.realpath(file) if file is not None else None
    return [
        step
        for step in steps
        if step.members is None
        and (step.file is None or step.file == file or os.path.realpath(step.file) == path)
    ]


def axis_words(dims: Iterable[Dims]) -> set[str]:
    """Return the words in the names of axes."""
    expressions = [parse_expression(dim) for each in set(dims) for dim in each]
    return {word for expression in expressions if expression is not None for word in expression.words}


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}.") from error


def _check_unchanged(path: Path, old: bytes) -> None:
    if _read(path) != old:
        raise FileError(f"{path} has changed since it was read; it was not written.", hint="try again")


def _for_reading(source: bytes) -> str:
    """Decode a file to show it; one that is not valid text is read as Latin-1."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
        return source.decode("utf-8" if encoding == "utf-8-sig" else encoding)
    except (SyntaxError, UnicodeDecodeError):
        return source.decode("latin-1")


# The content of the comments.


def _dims_by_binding(code: Code, steps: Iterable[Step]) -> dict[Binding, dict[str, list[Dims]]]:
    """Return the dims of each binding's tensors in all runs, by the tensors' names."""
    dims_of: dict[Binding, dict[str, list[Dims]]] = {}
    for step in steps:
        binding = code.binding_of(step)
        if binding is None or binding.argument or step.dims is None:
            continue
        if all(dim != ANY and parse_expression(dim) for dim in step.dims) and "#" not in step.name:
            runs = dims_of.setdefault(binding, {}).setdefault(step.name, [])
            if step.dims not in runs:
                runs.append(step.dims)
    return dims_of


def _shapes(place: Place, dims_of: dict[Binding, dict[str, list[Dims]]]) -> dict[str, list[Dims]]:
    """Return the shapes to write at the end of a place, by name."""
    shapes: dict[str, list[Dims]] = {}
    for binding in place.binds:
        by_name = dims_of.get(binding, {})
        runs = next(iter(by_name.values()), [])
        if len(by_name) > MOST_ELEMENTS and all(each == runs for each in by_name.values()):
            by_name = {f"{binding.name}[i]": runs}
        for name, each in by_name.items():
            known = shapes.setdefault(name, [])
            known += [dims for dims in each if dims not in known]
    return shapes if all(len(each) <= MOST_SHAPES for each in shapes.values()) else {}


def _comment(
    place: Place, shapes: dict[str, list[Dims]], existing: str, known: set[str], tensors: set[str]
) -> str:
    """Return the comment of a place: the existing one, with the shapes in it."""
    names = list(dict.fromkeys(binding.name for binding in place.binds))

    def parts_of(comment: str) -> list[ShapeComment]:
        parts = shape_comments(comment, known, {*names, *shapes})
        return [part for part in parts if not any(is_prose(c, known, tensors) for c in part.claims)]

    parts = parts_of(existing)
    if any(_claims(part, shapes, names) for part in parts):
        return existing
    texts = {name: " or ".join(f"[{', '.join(dims)}]" for dims in each) for name, each in shapes.items()}
    ours = [part for part in parts if _is_about(part, names)]
    if ours:
        return existing[: ours[-1].start] + _renewed(ours[-1], texts, names) + existing[ours[-1].end :]
    is_named = any(claim.names for part in parts for claim in part.claims)
    new = _joined(texts, names, is_named=is_named)
    for start, end in text_spans(existing):
        if start == end:
            return f"{existing[:start].rstrip()} {new}{existing[end:]}"
        if not _PRAGMA.match(existing, start):
            for separator in (", ",) if is_named else (" ", ": "):
                merged = f"{existing[:start]}{new}{separator}{existing[start:]}"
                if any(_claims(part, shapes, names) for part in parts_of(merged)):
                    return merged
    return f"{existing}  # {new}"


_PRAGMA = re.compile(
    r"type:|noqa|nosec|fmt:|isort:|yapf:|flake8:|ruff:|mypy:|pyright:|pylint:|pyre-|pragma|coding[:=]|-\*-|!"
)
"""The beginning of a comment for a tool, which reads it only if nothing stands before it."""


def _renewed(part: ShapeComment, texts: dict[str, str], names: list[str]) -> str:
    """Return the shapes for the place of a comment's own, which keeps what it says about other names."""
    known = {_owner(name, names) for name in texts}
    others = {
        name: claim.text
        for claim in part.claims
        for name in claim.names
        if _owner(name, names) not in known
    }
    return _joined(texts | others, names)


def _joined(texts: dict[str, str], names: list[str], *, is_named: bool = False) -> str:
    """Return shapes as one text, with names if there are several, or if it would look like `[1]`."""
    firsts = [text.partition(" or ")[0] for text in texts.values()]
    is_named = is_named or any(text.strip("[]").isdecimal() for text in firsts)
    if len(names) == 1 and names == list(texts) and not is_named:
        return texts[names[0]]
    return ", ".join(f"{name}: {text}" for name, text in texts.items())


# The content of existing comments.


def _owner(name: str, names: list[str]) -> str | None:
    """Return the bound name that a comment's name belongs to, such as `parts` for `parts[0]`."""
    owners = [each for each in names if name == each or name.startswith(f"{each}[")]
    return max(owners, key=len, default=None)


def _is_about(part: ShapeComment, names: list[str]) -> bool:
    """Check whether a comment claims shapes of names that its place binds, and may be renewed."""
    claimed_names = [name for claim in part.claims for name in claim.names]
    if not claimed_names:
        return len(part.claims) in (1, len(names))
    return any(_owner(name, names) is not None for name in claimed_names)


def _claims(part: ShapeComment, shapes: dict[str, list[Dims]], names: list[str]) -> bool:
    """Check whether a comment claims these shapes already, in any notation."""
    for name, each in shapes.items():
        claim = _claim_for(part, name, names)
        expected = {tuple(parse_expression(dim) for dim in dims) for dims in each}
        if claim is None or {shape.axes for shape in claim.shapes} != expected:
            return False
    return True


def _claim_for(part: ShapeComment, name: str, names: list[str]) -> Claim | None:
    """Return a comment's claims about a name."""
    if part.claims[0].names:
        return next((claim for claim in part.claims if name in claim.names), None)
    owner = _owner(name, names)
    i = names.index(owner) if len(part.claims) > 1 and owner is not None else 0
    return part.claims[i]
