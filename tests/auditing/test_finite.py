"""What is not finite is no evidence: neither of influence, nor of its absence."""

from __future__ import annotations

import pytest
import torch

import attnscope
from attnscope.auditing.document import evidence_lines
from tests.auditing import planted


def visible(x: torch.Tensor, shift: int = 0) -> torch.Tensor:
    return torch.ones(x.shape[1], x.shape[1]).tril(shift).bool()


def attend(x: torch.Tensor, see: torch.Tensor) -> torch.Tensor:
    scores = (x @ x.mT).masked_fill(~see, float("-inf"))
    return scores.softmax(-1) @ x


def causal(x: torch.Tensor) -> torch.Tensor:
    return attend(x, visible(x))


def times_nan(x: torch.Tensor) -> torch.Tensor:
    return causal(x) * float("nan")


def plus_infinity(x: torch.Tensor) -> torch.Tensor:
    return causal(x) + float("inf")


def leak_into_nan(x: torch.Tensor) -> torch.Tensor:
    see = visible(x)
    see[1, 4] = True
    return attend(x, see).index_fill(1, torch.tensor([1]), float("nan"))


def no_key(x: torch.Tensor) -> torch.Tensor:
    see = visible(x)
    see[0] = False
    return attend(x, see)


def leak_beside_nan(x: torch.Tensor) -> torch.Tensor:
    return attend(x, visible(x, 1)).index_fill(1, torch.tensor([5]), float("nan"))


class NanWeight(torch.nn.Module):
    """A module whose weight is NaN."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = torch.nn.Parameter(torch.full((8,), float("nan")))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scaled = x * self.gain
        return causal(scaled)


def audited(code):
    return attnscope.audit(code, inputs={"x": "B:2,T:11,d:8"}, causal=True, coverage=True)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("code", "words"),
    [
        (times_nan, ["NaN at every position", 'causal(x) * float("nan")']),
        (plus_infinity, ["infinite at every position", 'causal(x) + float("inf")']),
        (leak_into_nan, ["NaN at position 1", "index_fill"]),
        (no_key, ["NaN at position 0", "query 0 sees no key", "scores.softmax(-1)"]),
        (NanWeight, ["NaN at every position", "gain is not finite", "x * self.gain"]),
    ],
)
def test_code_with_an_output_that_is_not_finite_is_undecided(code, words):
    audit = audited(code)
    found = audit["causal"]
    assert found.status == audit["coverage"].status == audit["batch"].status == "undecided"
    assert all(each in found.found for each in words)
    assert found in audit.undecided


def test_what_is_finite_holds():
    audit = audited(causal)
    assert audit["causal"].status == audit["coverage"].status == audit["batch"].status == "holds"


def test_a_leak_between_finite_positions_is_found_beside_nan():
    audit = audited(leak_beside_nan)
    assert audit["causal"].status == "broken"
    assert audit["batch"].status == "undecided"


def imaginary_leak(x: torch.Tensor) -> torch.Tensor:
    return torch.complex(causal(x), attend(x, visible(x, 1)))


def complex_causal(x: torch.Tensor) -> torch.Tensor:
    return torch.complex(causal(x), 2 * causal(x))


@pytest.mark.parametrize(("code", "status"), [(imaginary_leak, "broken"), (complex_causal, "holds")])
@pytest.mark.filterwarnings("error")
def test_imaginary_parts_of_outputs_are_compared(code, status):
    audit = audited(code)
    assert audit["causal"].status == status
    if status == "broken":
        assert audit["causal"].evidence.line.expression.endswith(".tril(shift)")


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "bert"])
def test_a_model_with_nan_is_undecided_and_named_is_the_weight(family):
    model = planted.model(family)
    name, weight = list(model.named_parameters())[5]
    with torch.no_grad():
        weight[0] = float("nan")
    audit = attnscope.audit(model)
    assert {each.status for each in audit.properties} == {"undecided"}
    assert f"{name} is not finite" in audit["batch"].found
    assert audit.undecided == audit.properties, "nothing was decided, so that this is no success"


def test_a_module_that_makes_nan_of_numbers_is_named():
    class Root(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sqrt()

    audit = attnscope.audit(planted.insert(planted.model("llama"), 2, Root()))
    assert audit["causal"].status == "undecided"
    assert "first in model.layers.2.wrong" in audit["causal"].found


def faint(x: torch.Tensor) -> torch.Tensor:
    """Weights of keys other than the query's own, which are as small as rounding."""
    n = x.shape[1]
    weights = torch.full((n, n), 1e-13, dtype=x.dtype).tril(-1) + torch.eye(n, dtype=x.dtype)
    return weights @ x


def nothing(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@pytest.mark.parametrize(("code", "status"), [(faint, "undecided"), (nothing, "broken")])
def test_influence_as_small_as_rounding_is_not_taken_for_none(code, status):
    assert audited(code)["coverage"].status == status


def undefined_if_the_last_changes(x: torch.Tensor) -> torch.Tensor:
    """Divide by zero if the last position is another than usual."""
    last = x[:, -1:].sum(-1, keepdim=True)
    usual = USUAL.setdefault("last", last.clone())
    return causal(x) / (last == usual).to(x)


USUAL: dict[str, torch.Tensor] = {}


def test_what_becomes_infinite_has_moved():
    broken = audited(undefined_if_the_last_changes)["causal"]
    assert broken.status == "broken"
    assert {key for _, key in broken.evidence.influence.wrong} == {10}
    assert any("finite before the change or after it" in line for line in evidence_lines(broken))
