"""What a source file says about shapes, and what each statement is about.

Statements stand in comments, in docstrings, in jaxtyping's annotations and in the patterns of einops.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Container, Iterator
from dataclasses import dataclass, replace
from enum import Enum

from attnscope.code.trace.comments.notations import annotated_shapes, patterns_in
from attnscope.code.trace.comments.parse import (
    INDICES,
    Claim,
    Shape,
    ShapeComment,
    shape_comments,
    shape_like,
    shapes_in_prose,
)
from attnscope.code.trace.comments.places import Binding, Code, Comment, Function, arguments_of


class Medium(Enum):
    """Where a statement about shapes stands."""

    COMMENT = "comment"
    DOCSTRING = "docstring"
    ANNOTATION = "annotation"
    PATTERN = "pattern"


@dataclass(frozen=True)
class Subject:
    """The subject of a claim: a name, and the bindings that it may refer to."""

    line: int
    name: str  #: the name; `return` for a returned value
    bindings: tuple[Binding, ...]
    last: bool = False  #: whether the claim is only about the last run in each call: the returned value
    medium: Medium = Medium.COMMENT
    #: of a pattern, the name that it is applied to, and the claim about that
    operand: tuple[str, Claim] | None = None


class Claims:
    """The claims of a file with their subjects, and the lines of what only resembles a claim.

    `known` are words that are axes. A list of names of `tensors` is not a shape: `# (q, k)`.
    """

    def __init__(self, code: Code, known: Container[str], tensors: Container[str]) -> None:
        self.code, self.known = code, known
        self.claims: list[tuple[Claim, Subject]] = []
        self.unread: set[int] = set()
        self._read_comments(tensors)
        for function in code.functions:
            self._read_docstring(function)
            self._read_annotations(function)
        by_position = {binding.position: binding for place in code.places for binding in place.bindings}
        for node in ast.walk(code.tree):
            if isinstance(node, ast.AnnAssign):  # x: Float[Tensor, "b n d"] = …
                bound = by_position.get((node.target.lineno, node.target.col_offset))
                self._read_annotation(node.annotation, node.lineno, bound)
        for pattern in patterns_in(code.tree):
            operand = (pattern.operand, pattern.before) if pattern.operand is not None else None
            for binding in (by_position[each] for each in pattern.positions if each in by_position):
                subject = Subject(
                    pattern.line, binding.name, (binding,), medium=Medium.PATTERN, operand=operand
                )
                self.claims.append((pattern.after, subject))
        self.claims.sort(key=lambda each: each[1].line)

    def _read_comments(self, tensors: Container[str]) -> None:
        scopes = {function: self.code.bindings_of(function) for function in (None, *self.code.functions)}
        alone = {comment.line for comment in self.code.comments if comment.alone}
        for comment in self.code.comments:
            scope = scopes[self.code.function_at(comment)]
            claims = list(self._claims_in(comment, scope, alone))
            self.claims += [each for each in claims if not is_prose(each[0], self.known, tensors)]
            if not claims and shape_like(comment.text, self.known):
                self.unread.add(comment.line)

    def _claims_in(
        self, comment: Comment, scope: list[Binding], alone: set[int]
    ) -> Iterator[tuple[Claim, Subject]]:
        for part in shape_comments(comment.text, self.known, {binding.name for binding in scope}):
            if not part.claims[0].names:
                yield from _unnamed(part, comment, scope)
            for claim in part.claims:
                for name in claim.names:
                    bound = [b for b in scope if name == b.name or name.startswith(f"{b.name}[")]
                    binding = self._named(comment, bound, alone)
                    if binding is not None:
                        yield claim, Subject(comment.line, name, (binding,))

    def _named(self, comment: Comment, bound: list[Binding], alone: set[int]) -> Binding | None:
        """Return the bindings of a name that a comment refers to.

        For a comment after code, this is a binding on its line. For one alone on its line, it is a
        binding directly below (below a block of several comments, in as many statements), or else the
        nearest above.
        """
        above = [binding for binding in bound if binding.position[0] <= comment.line]
        if not comment.alone:
            here = [binding for binding in bound if binding.place is comment.place]
            return next(reversed(here or above), None)
        first = last = comment.line
        while first - 1 in alone:
            first -= 1
        while last + 1 in alone:
            last += 1
        following = [place for place in self.code.places if place.first > last][: last - first + 1]
        directly = [binding for binding in bound if binding.place in following]
        below = [binding for binding in bound if binding.position[0] > comment.line]
        return next(iter([*directly, *reversed(above), *below]), None)

    def _read_docstring(self, function: Function) -> None:
        scope = self.code.bindings_of(function)
        arguments = {each.name: each for each in scope if each.argument}
        bound = {each.name: each for each in scope if not each.argument}
        for entry in entries_of(function, self.code, {*arguments, *bound}):
            claim, is_unclear = entry.claim(self.known)
            if is_unclear:
                self.unread.add(entry.line)
            if claim is None or is_unclear:
                continue
            if entry.names == (RETURNED,):
                subjects = results_of(entry.line, scope, Medium.DOCSTRING)
                if len(subjects) == 1:
                    self.claims += [(claim, subject) for subject in subjects[0]]
                else:
                    self.unread.add(entry.line)
                continue
            for name in entry.names:
                binding = arguments.get(name) or bound[name]
                subject = Subject(
                    entry.line, name, (binding,), last=not binding.argument, medium=Medium.DOCSTRING
                )
                self.claims.append((claim, subject))

    def _read_annotations(self, function: Function) -> None:
        scope = self.code.bindings_of(function)
        arguments = {each.position: each for each in scope if each.argument}
        for argument in arguments_of(function.node.args):
            binding = arguments.get((argument.lineno, argument.col_offset))
            if argument.annotation is not None:
                self._read_annotation(argument.annotation, argument.lineno, binding)
        if function.node.returns is not None:
            line = function.node.returns.lineno
            types, claims = annotated_shapes(function.node.returns)
            results = results_of(line, scope, Medium.ANNOTATION)
            if types and (None in claims or len(claims) != len(results)):
                self.unread.add(line)
                return
            for claim, subjects in zip(claims if types else [], results, strict=False):
                self.claims += [(claim, subject) for subject in subjects if claim is not None]

    def _read_annotation(self, annotation: ast.expr, line: int, binding: Binding | None) -> None:
        """Read the annotation of one name; nothing, if no code that can run binds it."""
        types, claims = annotated_shapes(annotation) if binding is not None else ([], [])
        if binding is not None and len(claims) == 1 and claims[0] is not None:
            subject = Subject(line, binding.name, (binding,), medium=Medium.ANNOTATION)
            self.claims.append((claims[0], subject))
        elif types:
            self.unread.add(line)


def is_prose(claim: Claim, known: Container[str], tensors: Container[str]) -> bool:
    """Check whether a list without a name is one of tensors or of indices: `(q, k)`, `(i, j)`."""
    for shape in claim.shapes if not claim.names else ():
        unknown = {word for word in shape.words if word not in known}
        is_list_of_indices = unknown and unknown == shape.words and unknown <= INDICES
        if is_list_of_indices or any(word in tensors for word in unknown):
            return True
    return False


def _unnamed(
    part: ShapeComment, comment: Comment, scope: list[Binding]
) -> Iterator[tuple[Claim, Subject]]:
    """Yield claims without names with their subjects: all bindings of the line, or one per claim."""
    bindings = [] if comment.alone else _ending(comment)
    if len(part.claims) == 1 and bindings:
        names = ", ".join(dict.fromkeys(binding.name for binding in bindings))
        yield part.claims[0], _returned(Subject(comment.line, names, tuple(bindings)), scope)
    elif len(part.claims) == len(bindings):
        for claim, binding in zip(part.claims, bindings, strict=True):
            yield claim, _returned(Subject(comment.line, binding.name, (binding,)), scope)


def _ending(comment: Comment) -> list[Binding]:
    """Return the bindings that end on a comment's line."""
    place = comment.place
    if place is None:
        return []
    ending = [binding for binding in place.bindings if binding.end == comment.line != place.first]
    if place.comment is not comment or (ending and not place.binds):
        return ending
    return [binding for binding in place.binds if binding.end in (None, comment.line)] or place.binds


def _returned(subject: Subject, scope: list[Binding]) -> Subject:
    """Return the subject unchanged, except for `return y`: the nearest binding of `y` above."""
    if len(subject.bindings) != 1 or subject.bindings[0].returns is None:
        return subject
    name, position = subject.bindings[0].returns, subject.bindings[0].position
    above = [binding for binding in scope if binding.name == name and binding.position < position]
    return replace(subject, name=name, bindings=tuple(above[-1:]), last=True)


def results_of(line: int, scope: list[Binding], medium: Medium) -> list[list[Subject]]:
    """Return, for the returned value or for each element of a returned tuple, what is returned."""
    returned: dict[str, list[Subject]] = {}
    for binding in scope:
        if binding.name == "return" or binding.name.startswith("return["):
            subject = _returned(Subject(line, binding.name, (binding,), medium=medium), scope)
            returned.setdefault(binding.name, []).append(subject)
    return [] if "return" in returned and len(returned) > 1 else list(returned.values())


RETURNED = ""
"""The name of the entry about the returned value."""

_FIELD = re.compile(r"[:@](?:param|parameter|arg|argument|type)\s+(?:[^:]*\s)?\*{0,2}(\w+)\s*:")
_RETURN_FIELD = re.compile(r"[:@]r(?:eturns?|type)\s*:")
_HEADER = re.compile(r"(?:Returns?|Outputs?)\s*:?\s*$|Returns?\s*:")
_NAMES = re.compile(r"(?:[-*•]\s+)?\*{0,2}(\w+(?:\s*,\s*\w+)*)\s*(\((?:[^()]|\([^()]*\))*\))?\s*:(?!:)")


@dataclass(frozen=True)
class Entry:
    """What a docstring says about an argument, or about the returned value."""

    line: int  #: its first line in the file
    names: tuple[str, ...]  #: the arguments; names of returned values; or `RETURNED`
    text: str

    def claim(self, known: Container[str]) -> tuple[Claim | None, bool]:
        """Return the shapes that it claims, one of which is to be true, and whether some are unclear."""
        shapes, unclear = shapes_in_prose(self.text, known)
        loose = [
            Shape(each.text, each.axes, each.entries, frozenset(range(len(each.axes))))
            for each in shapes
        ]
        return (Claim(self.names, tuple(loose)) if loose else None), unclear


def entries_of(function: Function, code: Code, names: Collection[str]) -> Iterator[Entry]:
    """Yield the entries of a function's docstring."""
    lines = _docstring_lines(function, code)
    begun: list[tuple[int, int, tuple[str, ...], list[str]]] = []  # line, indentation, names, text
    for number, line in lines:
        indent, text = len(line) - len(line.lstrip()), line.strip()
        found = _entry_start(text, names)
        if found is not None:
            begun.append((number, indent, found[0], [found[1]]))
        elif begun:
            _, outer, about, so_far = begun[-1]
            is_rule = bool(re.fullmatch(r"-{3,}", text))
            is_block = about == (RETURNED,) and "".join(so_far).strip("- ") == ""
            if is_rule or (text and (indent > outer or is_block)):
                so_far.append(text)
            elif text or not is_block:
                begun.append((number, -1, (), []))  # the end of the entry
    for number, _, about, texts in begun:
        if about:
            yield Entry(number, about, " ".join(texts).replace("---", "").strip())


def _entry_start(text: str, names: Collection[str]) -> tuple[tuple[str, ...], str] | None:
    """Read the names that an entry is about, if a line begins one, and the rest of the line."""
    for pattern in (_RETURN_FIELD, _HEADER):
        if match := pattern.match(text):
            return (RETURNED,), text[match.end() :]
    if match := _FIELD.match(text):
        return ((match[1],), text[match.end() :]) if match[1] in names else ((), "")
    if match := _NAMES.match(text):
        about = tuple(name.strip() for name in match[1].split(","))
        if set(about) <= set(names):
            return about, f"{(match[2] or '').strip('()')} {text[match.end() :]}"
    return None


def _docstring_lines(function: Function, code: Code) -> list[tuple[int, str]]:
    """Return the numbered lines of a docstring as they stand in the file, without its quotes."""
    if ast.get_docstring(function.node, clean=False) is None:
        return []
    node = function.node.body[0]
    first, last = node.lineno, node.end_lineno or node.lineno
    lines = [line.rstrip("\r\n").expandtabs() for line in code.lines[first - 1 : last]]
    lines[-1] = re.sub(r"(\"\"\"|'''|\"|')[^\"']*$", "", lines[-1])
    lines[0] = re.sub(r"^(\s*)[rRuU]?(\"\"\"|'''|\"|')", r"\1", lines[0])
    return list(enumerate(lines, start=first))
