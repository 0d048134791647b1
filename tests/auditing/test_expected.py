"""A visibility that is stated by a rule, a function, a file or an array is what code and models have."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import attnscope
from attnscope.base.errors import OptionError, SizeError
from tests.auditing import planted

FILE, N, WIDTH = Path(__file__), 12, 4


def near(b, h, q, k):
    """Show patches whose row and column in a picture, four patches wide, are next to the query's."""
    return ((q // WIDTH - k // WIDTH).abs() <= 1) & ((q % WIDTH - k % WIDTH).abs() <= 1)


def near_by_loops() -> np.ndarray:
    rows = [[False] * N for _ in range(N)]
    for q in range(N):
        for k in range(N):
            rows[q][k] = abs(q // 4 - k // 4) <= 1 and abs(q % 4 - k % 4) <= 1
    return np.array(rows)


def attend(x: torch.Tensor, see: torch.Tensor) -> torch.Tensor:
    scores = (x @ x.mT / 8).masked_fill(~see, float("-inf"))
    return scores.softmax(-1) @ x


def patches(x: torch.Tensor) -> torch.Tensor:
    return attend(x, torch.tensor(near_by_loops()))


def residual(x: torch.Tensor) -> torch.Tensor:
    """Two layers, whose queries see their neighbours and not themselves."""
    see = torch.tensor(near_by_loops()) & ~torch.eye(N, dtype=torch.bool)
    x = x + attend(x, see)
    return x + attend(x, see)


def too_far(x: torch.Tensor) -> torch.Tensor:
    see = near_by_loops()
    see[3, 5] = True  # two columns away
    return attend(x, torch.tensor(see))


def too_near(x: torch.Tensor) -> torch.Tensor:
    see = near_by_loops()
    see[3, 7] = False
    return attend(x, torch.tensor(see))


def masked(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return attend(x, mask)


def expectation(kind: str, folder: Path):
    array = near_by_loops()
    np.save(folder / "near.npy", array)
    return {
        "function": near,
        "name": f"{FILE}:near",
        "returned": near_by_loops,
        "array": array,
        "named in a list": [f"{FILE}:near"],
        "tensor": torch.tensor(array),
        "file": str(folder / "near.npy"),
        "several": [f"window:{N}", str(folder / "near.npy")],
    }[kind]


def audited(code, expect) -> attnscope.Audit:
    return attnscope.audit(code, inputs={"x": f"B:2,T:{N},d:8"}, expect=expect)


@pytest.mark.few(4)
@pytest.mark.parametrize(
    "kind", ["function", "name", "named in a list", "returned", "array", "tensor", "file", "several"]
)
def test_a_window_of_two_axes_can_be_stated_in_every_way(kind, tmp_path):
    audit = audited(patches, expectation(kind, tmp_path))
    assert audit["expect"].status == "holds"
    assert not audit.broken


def same_size(n):
    return torch.tensor(near_by_loops())[:n, :n]


def test_a_guess_of_what_a_returned_mask_means_is_said():
    audit = audited(patches, same_size)
    assert audit["expect"].status == "holds"
    assert "of same_size, that True is visible is a guess" in " ".join(audit.notices)


def test_a_pair_too_many_is_found_with_its_line():
    found = audited(too_far, near)["expect"]
    assert found.status == "broken"
    assert found.found == "changing position 5 moves position 3; 1 such pairs"
    assert found.evidence.line.expression == "torch.tensor(see)"
    assert found.evidence.influence.wrong == [(3, 5)]
    assert found.evidence.influence.missing == []


def test_a_pair_that_is_missing_is_found():
    found = audited(too_near, near)["expect"]
    assert found.status == "broken"
    assert found.found == "changing position 7 does not move position 3; 1 such pairs"
    assert found.evidence.influence.missing == [(3, 7)]


def test_what_is_expected_of_each_layer_reaches_further_through_two():
    expect = near_by_loops() & ~np.eye(N, dtype=bool)
    audit = audited(residual, expect)
    assert audit["expect"].status == "holds"
    assert audit["expect"].found.endswith("through 2 layers")
    assert audited(patches, expect)["expect"].status == "holds", (
        "a position may have influence on itself"
    )
    assert audited(residual, np.eye(N, dtype=bool))["expect"].status == "broken"


def test_a_drawn_mask_of_pairs_shows_what_is_expected():
    inputs = {"x": f"B:2,T:{N},d:8", "mask": "T,T@bool"}
    audit = attnscope.audit(masked, inputs=inputs, expect=near)
    assert audit["expect"].status == "holds"


def test_a_broken_window_says_how_another_visibility_is_stated():
    audit = attnscope.audit(patches, inputs={"x": f"B:2,T:{N},d:8"}, window=2)
    assert audit["window"].status == "broken"
    assert any("expect" in each for each in audit.notices)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("expect", "layer", "words"),
    [
        ("causal", None, "exactly those expected"),
        (["causal", "window:7"], 0, "query 16 sees key 0 in layer 0, which is not expected"),
        (np.ones((17, 17), bool), 0, "does not see key"),
    ],
)
def test_every_layer_of_a_model_is_compared(expect, layer, words):
    found = attnscope.audit(planted.model("gpt2"), length=17, expect=expect)["expect"]
    assert found.status == ("holds" if layer is None else "broken")
    assert words in found.found
    if layer is not None:
        assert found.evidence.layer == layer
        assert found.evidence.influence.wrong or found.evidence.influence.missing


@pytest.mark.sweep
def test_the_layer_that_sees_another_key_is_named():
    def dead(seen: torch.Tensor) -> torch.Tensor:
        return seen & ((torch.arange(len(seen)) != 3) | torch.eye(len(seen), dtype=torch.bool))

    model = planted.with_mask(planted.model("llama"), 2, dead)
    found = attnscope.audit(model, expect="causal")["expect"]
    assert found.status == "broken"
    assert "query 4 does not see key 3 in layer 2" in found.found


def test_what_is_not_a_mask_cannot_be_expected(tmp_path):
    with pytest.raises(OptionError, match="cusal is not a mask"):
        audited(patches, "cusal")
    for module in (torch.nn.Linear, torch.nn.Linear(2, 3)):
        with pytest.raises(OptionError, match=r"^Linear is not a mask to expect"):
            audited(patches, module)
    with pytest.raises(OptionError, match=r"^attend is not a mask to expect: attend takes x, see"):
        audited(patches, attend)
    with pytest.raises(SizeError):
        audited(patches, np.ones((5, 5), bool))
    with pytest.raises(OptionError, match="differs between sequences or heads"):
        audited(patches, np.stack([np.ones((N, N), bool), np.eye(N, dtype=bool)])[:, None])
