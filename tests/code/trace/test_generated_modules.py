"""Attention modules as Hypothesis draws them: every axis is named as it was constructed, and nothing is found."""

from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, note

import attnscope
from attnscope.observe.axes.expressions import parse_expression
from tests.code.trace.generated_modules import Module, modules
from tests.profiles import examples

NUMBERS = count()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("generated")


@given(modules())
@examples(15, 40)
@pytest.mark.sweep
def test_views_products_and_equations(folder, module):
    check(module, folder)


@given(modules(einops=True))
@examples(15, 40)
@pytest.mark.sweep
def test_einops(folder, module):
    pytest.importorskip("einops")
    check(module, folder)


def check(module: Module, folder: Path) -> None:
    path = folder / f"attention_{next(NUMBERS)}.py"
    path.write_text(module.source, encoding="utf-8")
    trace = attnscope.inspect(f"{path}:Attention", init=module.init, inputs=module.inputs)
    named = [(step.name, step.dims) for step in trace.steps if step.inside is None]
    note(f"{module.source}\n{module.init} {module.inputs}\n" + "\n".join(map(str, named)))
    assert trace.crash is None
    required = set(trace.options.get("where", []))
    if module.checks:  # otherwise sizes that are no multiples are rounded down, and have no name
        assert parsed(named) == parsed(module.rows)
        assert required == module.conditions
    assert required <= module.conditions
    assert trace.findings == []


def parsed(rows):
    """Rows whose dims are expressions, in which the order of factors does not matter."""
    return [(name, [parse_expression(dim) for dim in dims]) for name, dims in rows]
