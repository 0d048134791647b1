"""Public functions that get one wrong value at a time: each is refused by an error that names the argument."""

import datetime
import io
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from decimal import Decimal
from fractions import Fraction
from inspect import Parameter, signature
from pathlib import Path

import numpy as np
import pytest
import torch

import attnscope

pytestmark = [pytest.mark.torture, pytest.mark.slow]


def attend(x):
    return (x @ x.mT / x.shape[-1] ** 0.5).softmax(-1) @ x


def attend_to(Q, K, V):
    return (Q @ K.mT / Q.shape[-1] ** 0.5).softmax(-1) @ V


CALLS = {
    "attention_maps": lambda **k: attnscope.attention_maps(**{"model": "minilm", "text": "A cat."} | k),
    "attention_steps": lambda **k: attnscope.attention_steps(**{"model": "minilm", "text": "A cat."} | k),
    "audit": lambda **k: attnscope.audit(attend, **{"inputs": {"x": "B:2,T:5,d:6"}, "bidirectional": True} | k),
    "card": lambda **k: attnscope.card(**{"model": "minilm"} | k),
    "cards": lambda **k: attnscope.cards("minilm", **{"context": 9} | k),
    "compare": lambda **k: attnscope.compare(attend_to, "sdpa", **k),
    "compare_checkpoints": lambda **k: attnscope.compare_checkpoints("minilm", "minilm", **k),
    "compare_maps": lambda **k: attnscope.compare_maps("minilm", "minilm", **{"text": "A cat."} | k),
    "compute": lambda **k: attnscope.compute("mha", **{"d_feat": 12, "heads": 3, "batch": 2, "nq": 4} | k),
    "dry_run": lambda **k: attnscope.dry_run("sdpa", **k),
    "head_weights": lambda **k: attnscope.head_weights(**{"model": "minilm", "layer": 1} | k),
    "inspect": lambda **k: attnscope.inspect(attend, **{"inputs": {"x": "B:2,T:5,d:6"}} | k),
    "mask": lambda **k: attnscope.mask("causal", **{"nq": 5} | k),
    "measure_heads": lambda **k: attnscope.measure_heads("minilm", **{"texts": "A cat."} | k),
    "measure_scaling": lambda **k: attnscope.measure_scaling(**{"widths": [4, 8]} | k),
    "read_head": lambda **k: attnscope.read_head(**{"model": "minilm", "layer": 1} | k),
    "worked_example": lambda **k: attnscope.worked_example(**k),
}  # fmt: skip
"""A right call of each public function, to which one wrong keyword is added."""

NOT_TRIED = {
    "progress",
    "reserve",
    "formula",
    "target",
    "subject",
    "a",
    "b",
    "tokenizer",
    "image_processor",
}
"""What a caller passes as an object of any class, or what the call needs."""

STRANGE = {
    "a set": {1.5},
    "a complex number": 1 + 2j,
    "bytes": b"\x00\xff",
    "a bytearray": bytearray(b"x"),
    "a slice": slice(1, 2),
    "Ellipsis": ...,
    "a type": dict,
    "a date": datetime.datetime(2026, 1, 1),
    "a fraction": Fraction(1, 3),
    "a decimal": Decimal("1.5"),
    "an exception": ValueError("x"),
    "a nested list": [[None]],
    "a tuple of None": (None,),
    "a mapping of a list": {"x": [object()]},
    "a module": torch.nn.Identity(),
    "a matrix of NaN": np.full((2, 3), np.nan),
    "a complex tensor": torch.ones(2, dtype=torch.complex64),
    "an array of objects": np.array([object(), None]),
    "a generator": None,  # made anew in each call
    "a text with NUL": "\0",
    "a long text": "y" * 3000,
}
"""Values of kinds that no argument takes, except those that take anything of that kind."""

TAKES = {
    "a matrix of NaN": {"Inputs"},
    "a fraction": {"float"},
    "a decimal": {"float"},
    "a text with NUL": {"str", "Texts"}, "a long text": {"str", "Texts", "Path", "Sources"},
    "a set": {"Sources"}, "a generator": {"Sources", "Texts", "list[str]", "Collection[str]", "Indices"},
    "a mapping of a list": {"Texts", "Mapping[str, Any]", "Sources"},
}  # fmt: skip


def ends(call, /, **wrong):
    """Return how a call ends: `refused`, `accepted`, or what it raised inside."""
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            call(**wrong)
    except attnscope.AttnscopeError:
        return "refused"
    except Exception as error:
        named = isinstance(error, TypeError | ValueError) and any(name in str(error) for name in wrong)
        return "refused" if named else f"{type(error).__name__}: {error}"
    return "accepted"


@pytest.mark.parametrize("function", CALLS)
def test_no_wrong_value_ends_inside_or_is_accepted_where_it_cannot_be_meant(
    function, tmp_path, monkeypatch, record_property
):
    monkeypatch.chdir(tmp_path)
    call, counts, faults = CALLS[function], Counter(), []
    assert ends(call) == "accepted"
    for name, parameter in signature(getattr(attnscope, function)).parameters.items():
        if name in NOT_TRIED or parameter.kind is Parameter.VAR_KEYWORD:
            continue
        kinds = set(str(parameter.annotation).replace(" | ", "|").split("|"))
        for what, value in STRANGE.items():
            end = ends(call, **{name: (each for each in [1.5]) if what == "a generator" else value})
            counts[end if end in ("refused", "accepted") else "inside"] += 1
            may = "Any" in kinds or kinds & TAKES.get(what, set())
            if end != "refused" and not (may and end == "accepted"):
                faults.append(f"{name}={what}: {end[:120]}")
    record_property("library", {"function": function, **counts})
    assert not faults, "\n".join(faults)
    assert sum(counts.values()) >= 20
    assert not list(Path(tmp_path).iterdir())
