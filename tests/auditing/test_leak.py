"""The line of a leak is the one whose correction alone removes it; right code beside it has no leak."""

from __future__ import annotations

import inspect
import random
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

import attnscope
from attnscope.auditing.code import runs
from attnscope.auditing.document import evidence_lines
from attnscope.auditing.measure import finite, leak
from attnscope.base.errors import SourceError
from tests.auditing import code_with_leaks
from tests.sweeps import swept

LINES = Path(__file__).read_text(encoding="utf-8").splitlines()


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(LINES, 1) if line.strip().startswith(text))


def marked(cls: type) -> list[int]:
    """Return the lines of a class of `code_with_leaks` that are its mistake."""
    lines = Path(code_with_leaks.__file__).read_text(encoding="utf-8").splitlines()
    own, first = inspect.getsourcelines(cls)
    comments = [number for number, line in enumerate(lines, 1) if line.endswith(f"# {cls.__name__}")]
    return comments + [first + i for i, line in enumerate(own) if line.rstrip().endswith("# LINE")]


LEAKY = {
    name: cls
    for name, cls in vars(code_with_leaks).items()
    if inspect.isclass(cls) and name not in ("Twin", "Base")
}
UNKNOWN = ("NormOverTime", "Flip", "TwoLeaks")
"""Those that the correction of one line does not mend."""


CAUSES = {
    "Triu2": "with the mask that is expected in its place, nothing moves that should not",
    "Buffer": "future is the mask: with the mask that is expected in its place",
    "Attribute": "plain is the mask: with the mask",
    "Missing": "nothing hides scores before it: with the expected mask",
    "After": "it hides weights, after their sum over all keys",
    "Inverted": "the mask is as expected, and the keys that it hides keep weight",
    "SoftmaxAxis": "with a softmax along the other axis, nothing moves that should not",
    "Pooling": "what it reads moves as it should, and its result does not",
}
"""What the correction of a line shows."""


@pytest.mark.parametrize("name", swept(LEAKY, ["Triu2", "Buffer", "Missing", "Pooling", "TwoLeaks"]))
def test_the_line_of_a_leak_is_right_or_none_is_named(name):
    inputs = {"x": f"B:2,T:{8 if name == 'Windowed' else 9},d:12"}
    right = attnscope.audit(LEAKY[name], init={"right": True}, inputs=inputs, causal=True)
    assert right["causal"].status == "holds"
    found = attnscope.audit(LEAKY[name], inputs=inputs, causal=True)["causal"]
    assert found.status == "broken"
    if name in UNKNOWN:
        assert found.evidence.line is None
        assert found.evidence.no_line == "its line is not known: no correction of one line removes it"
    else:
        lines = marked(code_with_leaks.Triu2 if name == "TwoLayers" else LEAKY[name])
        assert [found.evidence.line.line] == lines
        assert found.evidence.cause.startswith(CAUSES.get(name, ""))
        assert found.evidence.cause in evidence_lines(found)


def test_a_mask_that_is_given_is_named():
    def code(x, mask):
        return (x @ x.mT).masked_fill(~mask, float("-inf")).softmax(-1) @ x

    given = {"x": "B:2,T:9,d:12", "mask": torch.ones(9, 9).tril(1).bool()}
    evidence = attnscope.audit(code, inputs=given, causal=True)["causal"].evidence
    assert evidence.cause.startswith("mask is the mask: with the mask that is expected in its place")


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"window": 3}, "near ="),
        ({"expect": "window:2"}, "near ="),
        ({"causal": True}, "near ="),
    ],
)
def test_the_mask_of_a_window_is_named(options, line):
    def code(x):
        i = torch.arange(x.shape[1])
        near = (i[:, None] - i).abs() < 5
        return (x @ x.mT).masked_fill(~near, float("-inf")).softmax(-1) @ x

    audit = attnscope.audit(code, inputs={"x": "B:2,T:9,d:12"}, **options)
    [broken] = [each for each in audit.broken if each.name in (*options, "causal")]
    assert broken.evidence.line.line == line_of(line)


class Right(nn.Module):
    """Causal attention whose heads are merged as they should be; `shift` moves its mask."""

    def __init__(self, d: int, h: int, shift: int = 1) -> None:
        super().__init__()
        self.h, self.shift = h, shift
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def merge(self, heads: torch.Tensor) -> torch.Tensor:
        return heads.transpose(1, 2).flatten(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, T, _ = x.shape
        q, k, v = (y.view(B, T, self.h, -1).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        future = torch.ones(T, T).triu(self.shift).bool()
        scores = (q @ k.mT).masked_fill(future, float("-inf"))
        weights = scores.softmax(-1)
        heads = weights @ v
        merged = self.merge(heads)
        return self.out(merged)


class Mixed(Right):
    """The heads are not moved back."""

    def merge(self, heads: torch.Tensor) -> torch.Tensor:
        B, h, T, d_head = heads.shape
        return heads.reshape(B, T, h * d_head)


class Folded(Right):
    """Heads and positions share an axis, which is right, and are then divided wrongly."""

    def merge(self, heads: torch.Tensor) -> torch.Tensor:
        B, h, T, d_head = heads.shape
        rows = heads.reshape(B, h * T, d_head)
        return rows.reshape(B, T, h * d_head).clone()


class OneHead(Right):
    """Only the last head sees one position too many."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, T, _ = x.shape
        q, k, v = (y.view(B, T, self.h, -1).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        future = torch.ones(self.h, T, T).triu(1).bool()
        future[-1] = torch.ones(T, T).triu(2).bool()
        narrow = (q @ k.mT).masked_fill(future, float("-inf")).softmax(-1)
        return self.out(self.merge(narrow @ v))


@pytest.mark.few(3)
@pytest.mark.parametrize("h", [6, 9], ids=["6 heads", "as many heads as positions"])
@pytest.mark.parametrize(
    ("code", "line"),
    [
        (Mixed, "return heads.reshape(B, T, h * d_head)"),
        (Folded, "return rows.reshape(B, T, h * d_head)"),
        (OneHead, "future[-1] = torch.ones"),
    ],
)
def test_the_line_is_where_positions_are_mixed(code, line, h):
    audit = attnscope.audit(code, init={"d": 36, "h": h}, inputs={"x": "B:2,T:9,d"}, causal=True)
    assert audit["causal"].status == "broken"
    assert audit["causal"].evidence.line.line == line_of(line)


@pytest.mark.parametrize("h", [6, 9])
def test_a_wrong_mask_is_named_where_it_is_made(h):
    init = {"d": 36, "h": h, "shift": 2}
    audit = attnscope.audit(Right, init=init, inputs={"x": "B:2,T:9,d"}, causal=True)
    assert audit["causal"].evidence.line.expression == "torch.ones(T, T).triu(self.shift)"
    init["shift"] = 1
    audit = attnscope.audit(Right, init=init, inputs={"x": "B:2,T:9,d"}, causal=True)
    assert audit["causal"].status == "holds"


class Convolved(nn.Module):
    """A causal convolution: `late` positions of its padding are at the end instead of the beginning."""

    def __init__(self, d: int, late: int = 0) -> None:
        super().__init__()
        self.late, self.conv = late, nn.Conv1d(d, d, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        padded = functional.pad(x.mT, (2 - self.late, self.late))
        mixed = self.conv(padded)
        return mixed.mT + x


class Trimmed(Convolved):
    """Padded on both sides, and cut to length: at the end, which is right, or at the beginning."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        padded = functional.pad(x.mT, (2, 2))
        longer = self.conv(padded)
        cut = longer[..., self.late : self.late + x.shape[1]]
        return cut.mT + x


class ByHand(nn.Module):
    """Attention without projections, whose softmax is written out; `shift` moves its mask."""

    def __init__(self, shift: int = 1) -> None:
        super().__init__()
        self.shift = shift

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        T = x.shape[1]
        scores = x @ x.mT
        later = torch.ones(T, T).triu(self.shift).bool()
        exponentials = scores.exp().masked_fill(later, 0.0)
        total = exponentials.sum(-1, keepdim=True)
        return exponentials / total @ x


class Shifted(ByHand):
    """The largest score of the row, future keys included, is subtracted, which is right."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        T = x.shape[1]
        raw = x @ x.mT
        largest = raw.amax(-1, keepdim=True)
        past = torch.ones(T, T).tril(self.shift - 1)
        masses = (raw - largest).exp() * past
        normaliser = masses.sum(-1, keepdim=True)
        return masses / normaliser @ x


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("code", "init", "line"),
    [
        (Convolved, {"d": 4, "late": 1}, "mixed = self.conv(padded)"),
        (Trimmed, {"d": 4, "late": 1}, "cut = longer[...,"),
        (ByHand, {"shift": 2}, "later = torch.ones(T, T).triu(self.shift)"),
        (Shifted, {"shift": 2}, "past = torch.ones(T, T).tril(self.shift - 1)"),
    ],
)
def test_what_only_prepares_the_mixing_is_not_the_line(code, init, line):
    audit = attnscope.audit(code, init=init, inputs={"x": "B:2,T:9,d:4"}, causal=True)
    assert audit["causal"].status == "broken"
    assert audit["causal"].evidence.line.line == line_of(line)
    right = {name: {"late": 0, "shift": 1}.get(name, value) for name, value in init.items()}
    audit = attnscope.audit(code, init=right, inputs={"x": "B:2,T:9,d:4"}, causal=True)
    assert audit["causal"].status == "holds"


def test_a_run_that_is_too_large_for_a_tape_keeps_its_verdict(monkeypatch):
    monkeypatch.setattr(leak, "LIMIT", 1000)
    init = {"d": 36, "h": 6, "shift": 2}
    audit = attnscope.audit(Right, init=init, inputs={"x": "B:2,T:9,d"}, causal=True)
    evidence = audit["causal"].evidence
    assert (audit["causal"].status, evidence.line) == ("broken", None)
    assert evidence.no_line == (
        "its line is not known: the tensors of a run take more than 1000 B; smaller sizes show it"
    )
    assert evidence.no_line in evidence_lines(audit["causal"])
    init["shift"] = 1
    audit = attnscope.audit(Right, init=init, inputs={"x": "B:2,T:9,d"}, causal=True)
    assert audit["causal"].status == "holds"


class Hidden(Right):
    """No query sees a key, so all weights are NaN."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + torch.full((1,), float("-inf")).softmax(-1)


class Drawn(Right):
    """Python draws a number in each run."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + random.random()


def test_code_that_is_too_large_for_any_tape_is_audited_without_one(monkeypatch):
    for module in (leak, runs, finite):
        monkeypatch.setattr(module, "LIMIT", 1000)
    given = {"inputs": {"x": "B:2,T:9,d"}, "causal": True}
    found = attnscope.audit(Right, init={"d": 36, "h": 6, "shift": 2}, **given)["causal"]
    assert found.status == "undecided"
    assert "moves position 0, maybe as that one sees no key: the tensors" in found.found
    assert attnscope.audit(Right, init={"d": 36, "h": 6}, **given)["causal"].status == "holds"
    found = attnscope.audit(Hidden, init={"d": 36, "h": 6}, **given)["causal"]
    assert found.status == "undecided"
    assert "where it arises is not known: the tensors of a run take more than 1000 B" in found.found
    with pytest.raises(SourceError, match=r"two runs on the same input differ\.(\n|$)"):
        attnscope.audit(Drawn, init={"d": 36, "h": 6}, **given)
