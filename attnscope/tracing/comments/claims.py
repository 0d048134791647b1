"""What a source file says about shapes, and what each statement is about.

Statements stand in comments, in docstrings, in jaxtyping's annotations and in the patterns of einops.
"""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum

from attnscope.tracing.comments.annotations import annotated_shapes
from attnscope.tracing.comments.docstrings import RETURNED, entries_of
from attnscope.tracing.comments.parse import (
    INDICES,
    Claim,
    ShapeComment,
    shape_comments,
    shape_like,
)
from attnscope.tracing.comments.patterns import patterns_in
from attnscope.tracing.comments.places import Binding, Code, Comment, Function, arguments_of


class Medium(Enum):
    """Where a statement about shapes stands."""

    COMMENT = "comment"
    DOCSTRING = "docstring"
    ANNOTATION = "annotation"
    PATTERN = "pattern"


@dataclass(frozen=True)
class Subject:
    """The subject of a claim: a name, and the bindings that it may refer to.

    Attributes:
        line: the line of the claim.
        name: the name; `return` for a returned value.
        bindings: the bindings.
        last: whether the claim is only about the last run in each call: the returned value.
        medium: where the claim stands.
        operand: of a pattern, the name that it is applied to, and the claim about that.
    """

    line: int
    name: str
    bindings: tuple[Binding, ...]
    last: bool = False
    medium: Medium = Medium.COMMENT
    operand: tuple[str, Claim] | None = None


@dataclass
class Claims:
    """The claims of a file with their subjects, and the lines of what only resembles a claim."""

    claims: list[tuple[Claim, Subject]] = field(default_factory=list)
    unread: set[int] = field(default_factory=set)


def claims_of(code: Code, known: Container[str], tensors: Container[str]) -> Claims:
    """Collect the claims that a file makes about shapes.

    Args:
        code: the file.
        known: words that are axes.
        tensors: the names of tensors. A list of them is not a shape: `# (q, k)`.
    """
    found = Claims()
    _read_comments(code, known, tensors, found)
    for function in code.functions:
        _read_docstring(function, code, known, found)
        _read_annotations(function, code, found)
    by_position = {binding.position: binding for place in code.places for binding in place.bindings}
    for node in ast.walk(code.tree):
        if isinstance(node, ast.AnnAssign):  # x: Float[Tensor, "b n d"] = …
            bound = by_position.get((node.target.lineno, node.target.col_offset))
            _read_annotation(node.annotation, node.lineno, bound, found)
    for pattern in patterns_in(code.tree):
        bindings = [by_position[each] for each in pattern.positions if each in by_position]
        for binding in bindings:
            operand = (pattern.operand, pattern.before) if pattern.operand is not None else None
            subject = Subject(
                pattern.line, binding.name, (binding,), medium=Medium.PATTERN, operand=operand
            )
            found.claims.append((pattern.after, subject))
    found.claims.sort(key=lambda each: each[1].line)
    return found


# Comments.


def _read_comments(code: Code, known: Container[str], tensors: Container[str], found: Claims) -> None:
    scopes = {function: code.bindings_of(function) for function in (None, *code.functions)}
    alone = {comment.line for comment in code.comments if comment.alone}
    for comment in code.comments:
        scope = scopes[code.function_at(comment)]
        claims = list(_claims_in(comment, code, known, scope, alone))
        read = [each for each in claims if not is_prose(each[0], known, tensors)]
        found.claims += read
        if not claims and shape_like(comment.text, known):
            found.unread.add(comment.line)


def is_prose(claim: Claim, known: Container[str], tensors: Container[str]) -> bool:
    """Check whether a list without a name is one of tensors or of indices: `(q, k)`, `(i, j)`.

    Args:
        claim: the claim.
        known: words that are axes.
        tensors: the names of tensors.
    """
    for shape in claim.shapes if not claim.names else ():
        unknown = {word for word in shape.words if word not in known}
        is_list_of_indices = unknown and unknown == shape.words and unknown <= INDICES
        if is_list_of_indices or any(word in tensors for word in unknown):
            return True
    return False


def _claims_in(
    comment: Comment, code: Code, known: Container[str], scope: list[Binding], alone: set[int]
) -> Iterator[tuple[Claim, Subject]]:
    for part in shape_comments(comment.text, known, {binding.name for binding in scope}):
        if not part.claims[0].names:
            yield from _unnamed(part, comment, scope)
        for claim in part.claims:
            for name in claim.names:
                bound = [b for b in scope if name == b.name or name.startswith(f"{b.name}[")]
                binding = _named(code, comment, bound, alone)
                if binding is not None:
                    yield claim, Subject(comment.line, name, (binding,))


def _named(code: Code, comment: Comment, bound: list[Binding], alone: set[int]) -> Binding | None:
    """Return the bindings of a name that a comment refers to.

    For a comment after code, this is a binding on its line. For one alone on its line, it is a binding
    directly below (below a block of several comments, in as many statements), or else the nearest above.
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
    following = [place for place in code.places if place.first > last][: last - first + 1]
    directly = [binding for binding in bound if binding.place in following]
    below = [binding for binding in bound if binding.position[0] > comment.line]
    return next(iter([*directly, *reversed(above), *below]), None)


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


# Docstrings and annotations.


def _read_docstring(function: Function, code: Code, known: Container[str], found: Claims) -> None:
    scope = code.bindings_of(function)
    arguments = {each.name: each for each in scope if each.argument}
    bound = {each.name: each for each in scope if not each.argument}
    for entry in entries_of(function, code, {*arguments, *bound}):
        claim, is_unclear = entry.claim(known)
        if is_unclear:
            found.unread.add(entry.line)
        if claim is None or is_unclear:
            continue
        if entry.names == (RETURNED,):
            subjects = results_of(entry.line, scope, Medium.DOCSTRING)
            if len(subjects) == 1:
                found.claims += [(claim, subject) for subject in subjects[0]]
            else:
                found.unread.add(entry.line)
            continue
        for name in entry.names:
            binding = arguments.get(name) or bound[name]
            subject = Subject(
                entry.line, name, (binding,), last=not binding.argument, medium=Medium.DOCSTRING
            )
            found.claims.append((claim, subject))


def _read_annotations(function: Function, code: Code, found: Claims) -> None:
    scope = code.bindings_of(function)
    arguments = {each.position: each for each in scope if each.argument}
    for argument in arguments_of(function.node.args):
        binding = arguments.get((argument.lineno, argument.col_offset))
        if argument.annotation is not None:
            _read_annotation(argument.annotation, argument.lineno, binding, found)
    if function.node.returns is not None:
        line = function.node.returns.lineno
        types, claims = annotated_shapes(function.node.returns)
        results = results_of(line, scope, Medium.ANNOTATION)
        if types and (None in claims or len(claims) != len(results)):
            found.unread.add(line)
            return
        for claim, subjects in zip(claims if types else [], results, strict=False):
            found.claims += [(claim, subject) for subject in subjects if claim is not None]


def _read_annotation(annotation: ast.expr, line: int, binding: Binding | None, found: Claims) -> None:
    """Read the annotation of one name; nothing, if no code that can run binds it."""
    types, claims = annotated_shapes(annotation) if binding is not None else ([], [])
    if binding is not None and len(claims) == 1 and claims[0] is not None:
        subject = Subject(line, binding.name, (binding,), medium=Medium.ANNOTATION)
        found.claims.append((claims[0], subject))
    elif types:
        found.unread.add(line)


def results_of(line: int, scope: list[Binding], medium: Medium) -> list[list[Subject]]:
    """Return, for the returned value or for each element of a returned tuple, what is returned."""
    returned: dict[str, list[Subject]] = {}
    for binding in scope:
        if binding.name == "return" or binding.name.startswith("return["):
            subject = _returned(Subject(line, binding.name, (binding,), medium=medium), scope)
            returned.setdefault(binding.name, []).append(subject)
    return [] if "return" in returned and len(returned) > 1 else list(returned.values())
