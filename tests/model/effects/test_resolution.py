"""Effects are differences: they are computed in more than 16 bits, or the rounding of these is measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch

import attnscope
from attnscope.base.errors import SizeError
from attnscope.base.process import devices
from attnscope.base.process.memory import FreeMemory
from attnscope.model.files.loaded import find_model
from attnscope.model.run.weights_fit import check_weights_fit
from tests.model.effects.oracles import Oracle, Question, asked, column
from tests.sweeps import swept

NARROW = {"bfloat16": torch.bfloat16, "float16": torch.float16}
CASES = [
    (family, name) for family in ("gpt2", "llama", "bert", "t5", "gemma2", "bloom") for name in NARROW
]
FEW = [("llama", "bfloat16"), ("gpt2", "float16")]
CORRUPT = [5, 9, 14, 20, 31, 27, 44]


def stored_in(family: str, dtype: str) -> tuple[torch.nn.Module, Oracle]:
    """A family's model with weights in 16 bits; and hooks on the same weights in float64."""
    of = Oracle(family)
    model = deepcopy(of.model).to(NARROW[dtype])
    of.model = deepcopy(model).double()
    return model, of


def each_head(of: Oracle, effect: Callable[..., float], question: Question) -> Any:
    """What hooks find of each head, in float64."""
    return pytest.approx({head: effect(question, head) for head in of.heads()}, abs=1e-4)


@pytest.mark.few(1)
@pytest.mark.parametrize(("family", "dtype"), swept(CASES, default=FEW))
def test_a_model_stored_in_16_bits_has_the_effects_of_its_weights_in_float64(family, dtype):
    model, of = stored_in(family, dtype)
    question, arguments = asked(family)
    table = attnscope.effects(model, **arguments, columns=["zero", "mean", "first order"])
    assert (table.dtype, table.resolution) == ("float32", {})
    assert any(f"stored in {dtype}, and the model ran in float32" in each for each in table.notices)
    assert column(table, "zero") == each_head(of, of.zero, question)
    assert column(table, "mean") == each_head(of, of.mean, question)
    assert column(table, "first order") == pytest.approx(of.first_order(question), abs=1e-4)
    assert {each.dtype for each in model.parameters()} == {NARROW[dtype]}


def test_so_has_a_folder_and_what_it_ran_in_is_recorded(tmp_path):
    model, of = stored_in("gpt2", "bfloat16")
    model.save_pretrained(tmp_path)
    question, arguments = asked("gpt2")
    table = attnscope.effects(str(tmp_path), **arguments, columns=["zero"])
    assert column(table, "zero") == each_head(of, of.zero, question)
    config = json.loads((tmp_path / "config.json").read_text())
    for name in ("dtype", "torch_dtype"):
        config.pop(name, None)
    (tmp_path / "config.json").write_text(json.dumps(config))
    again = attnscope.effects(str(tmp_path), **arguments, columns=["zero"])
    assert column(again, "zero") == column(table, "zero")
    assert (again.to_dict()["dtype"], again.to_dict()["resolution"]) == ("float32", {})


def test_so_has_a_model_of_which_a_part_has_16_bits():
    model, of = stored_in("llama", "bfloat16")
    model.lm_head.float()
    model.model.embed_tokens.float()  # as it is, the model cannot run
    question, arguments = asked("llama")
    table = attnscope.effects(model, **arguments, columns=["zero"])
    assert column(table, "zero") == each_head(of, of.zero, question)


@pytest.mark.parametrize(("family", "dtype"), swept(CASES, default=FEW))
def test_in_16_bits_no_effect_is_further_off_than_the_resolution(family, dtype):
    model, of = stored_in(family, dtype)
    question, arguments = asked(family)
    table = attnscope.effects(model, **arguments, columns=["zero"], dtype=dtype)
    size = table.resolution["zero"]
    errors = [abs(effect - of.zero(question, head)) for head, effect in column(table, "zero").items()]
    assert size / 30 < max(errors) <= size
    for row in table.rows:
        assert table.unresolved(row) == (["zero"] if abs(row.values["zero"]) <= size else [])


def test_effects_below_the_resolution_are_marked_in_every_format(tmp_path):
    model, _ = stored_in("llama", "bfloat16")
    with torch.no_grad():  # heads 2 and 3 of the last layer add almost nothing
        model.model.layers[1].self_attn.o_proj.weight[:, 16:32] *= 1e-3
    table = attnscope.effects(model, **asked("llama")[1], columns=["zero"], dtype="bfloat16")
    rows = {(row.layer, row.head): table.unresolved(row) for row in table.rows}
    assert rows[1, 2] == rows[1, 3] == ["zero"]
    marked = [each["unresolved"] for each in table.to_dict()["heads"]]
    assert marked == list(rows.values())
    assert table.to_pandas()["below_resolution"].tolist() == [", ".join(each) for each in marked]
    assert any(line.startswith("resolution in bfloat16, below which") for line in table.remarks)
    for name in ("effects.md", "effects.csv"):
        table.save(tmp_path / name)
        assert "zero" in (tmp_path / name).read_text().split("1,2,")[-1]
    by_position = attnscope.effects(
        model, **asked("llama")[1], columns=["zero"], dtype="bfloat16", each_position=True
    )
    frame = by_position.to_pandas()
    assert (frame["zero_resolved"] == (frame["zero"].abs() > by_position.resolution["zero"])).all()


def test_the_memory_of_a_copy_in_float32_is_planned(monkeypatch):
    model, _ = stored_in("llama", "bfloat16")
    n = sum(each.numel() for each in model.parameters())
    for free, dtype, fits in [
        (4 * n, "float32", True),
        (4 * n - 1, "float32", False),
        (0, "bfloat16", True),  # the copy shares the weights
        (0, None, True),
    ]:
        monkeypatch.setattr(devices, "free_memory", lambda device, free=free: FreeMemory(free))
        if fits:
            check_weights_fit(find_model(model), model.config, dtype, "cpu")
            continue
        with pytest.raises(SizeError, match=r"the weights of .* take") as error:
            check_weights_fit(find_model(model), model.config, dtype, "cpu")
        assert error.value.hint == 'a smaller model, or dtype="bfloat16"'
