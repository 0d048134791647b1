"""Public methods of every result, and the classes of the textbook, that get hostile values.

Each value is refused by an error of attnscope, or the result is right; whole numbers of numpy are numbers.
"""

from __future__ import annotations

import io
import random
import resource
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from inspect import Parameter, getattr_static, isfunction, signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import attnscope
from attnscope.base.errors import AttnscopeError
from attnscope.document.result import Part
from tests.document.every_result import effects_at_positions, every_result, head
from tests.torture.cases import seeded

pytestmark = [pytest.mark.torture, pytest.mark.slow]

CASES = 500
MOST_BYTES = 1536 * 2**20
SEED = 8_071_001


class Odd:
    """An object that compares and hashes as it likes."""

    def __eq__(self, other: object) -> Any:
        return np.array([True, False])

    __hash__ = None  # type: ignore[assignment]


HOSTILE: list[Any] = [
    0, -1, 1, 2, 1.5, 0.0, float("nan"), float("inf"), -float("inf"), 10**30, -(2**70), True, False, None, 1j,
    "", "x", "no", "yes", "0", "all", "entropy", "W_Q", "scores", "sdpa", "\0", "\ud800", "\x1b[31m", "y" * 100_000,
    b"x", bytearray(b"x"), [], [0], [None], ["x"], (), (0, 0), (0, "x"), ("x", 0, 0), {}, {"x": 1}, {0}, slice(1), ...,
    np.int64(0), np.int64(1), np.float32(0.5), np.bool_(True), np.array(0), np.array([0, 1]), np.array(["x"]), np.array([object()]),
    np.full((2, 2), np.nan), torch.tensor(0), torch.ones(2), torch.ones(2, 3, 8), torch.ones(2, 3, 8, dtype=torch.complex64),
    torch.ones(2, 3, 8, device="meta"), torch.float32, torch.device("cpu"), Path("x"), Path("/"), Path("x.json"), object(), Odd(),
    int, len, ValueError("x"), (each for each in [1]), range(3), Odd,
]  # fmt: skip
"""Values that most parameters do not take."""

BUILT_BY_ATTNSCOPE = "__init__"
"""Results are not built by users."""


def results() -> dict[str, Any]:
    """One result of each kind, and parts of results that users index."""
    found = dict(every_result())
    found |= {"a head's weight": head().weights[0], "effects at positions": effects_at_positions()}
    for name, result in list(found.items()):
        rows = getattr(result, "rows", None)
        if rows and isinstance(rows[0], Part):
            found[f"a row of {name}"] = rows[0]
    return found


def methods_of(value: Any) -> dict[str, Callable[..., Any]]:
    """The public methods with parameters, by name."""
    found = {}
    for name in dir(type(value)):
        if name.startswith("_") and name != "__getitem__":
            continue
        method = getattr_static(type(value), name)
        if isfunction(method) and len(signature(method).parameters) > 1:
            found[name] = method
    return found


@contextmanager
def limited() -> Iterator[None]:
    """Let an error take no more memory than is allowed."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MOST_BYTES, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def end_of(call: Callable[[], Any]) -> str:
    """How a call ends: `refused`, `accepted`, or what it raised inside."""
    try:
        with limited(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            call()
    except AttnscopeError as error:
        text = str(error)
        if not text.strip() or len(text) > 2000 or "Traceback" in text:
            return f"an error says {text[:200]!r}"
        return "refused"
    except BaseException as error:
        return f"{type(error).__name__}: {str(error)[:150]}"
    return "accepted"


def drawn_arguments(drawing: random.Random, parameters: list[Parameter]) -> dict[str, Any]:
    """Hostile values for all parameters that need one, and for some of the others."""
    return {
        each.name: drawing.choice(HOSTILE)
        for each in parameters
        if each.default is Parameter.empty or drawing.random() < 0.5
    }


@pytest.fixture
def there(tmp_path, monkeypatch):
    """A folder with files, which stay what they are."""
    monkeypatch.chdir(tmp_path)
    for suffix in ("json", "csv", "html", "npz", "svg"):
        (tmp_path / f"there.{suffix}").write_bytes(b"as it was")
    return tmp_path


@pytest.mark.parametrize("part", range(2))
def test_methods_of_results_refuse_what_they_cannot_mean(there, part):
    drawing, found, counts, faults = seeded(SEED + part), results(), Counter(), []
    calls = [(name, result, method) for name, result in found.items() for method in methods_of(result)]
    assert {method for *_, method in calls} >= {"save", "ranked", "__getitem__", "of_layer", "at_places"}
    for number in range(CASES):
        name, result, method = drawing.choice(calls)
        _, *parameters = signature(methods_of(result)[method]).parameters.values()
        parameters = [each for each in parameters if each.kind is not Parameter.VAR_KEYWORD]
        given = drawn_arguments(drawing, parameters)
        positional = (
            parameters[0].kind is Parameter.POSITIONAL_OR_KEYWORD and parameters[0].name in given
        )
        first = [given.pop(parameters[0].name)] if positional else []
        end = end_of(lambda r=result, m=method, f=first, g=given: getattr(r, m)(*f, **g))
        counts[end if end in ("refused", "accepted") else "inside"] += 1
        if end not in ("refused", "accepted"):
            faults.append(f"{part}.{number} {name}.{method}({first!r:.200}, {given!r:.200}): {end}")
        for each in there.iterdir():
            if each.name.startswith("there"):
                assert each.read_bytes() == b"as it was"
    assert not faults, "\n".join(faults[:40]) + f"\n{counts}"
    assert counts["accepted"] > 10
    assert counts["refused"] > 100


@pytest.mark.parametrize("suffix", ["json", "csv", "html", "npz", "svg"])
def test_only_a_real_bool_replaces_a_file(there, suffix):
    for result in results().values():
        for force in ("no", "yes", 1, [], {}, 1.0, None, np.int64(1), torch.ones(1), Odd()):
            if hasattr(result, "save"):
                end = end_of(lambda r=result, f=force: r.save(f"there.{suffix}", force=f))
                assert end == "refused", (type(result), force, end)
                assert (there / f"there.{suffix}").read_bytes() == b"as it was"


SAVED: dict[str, list[Any]] = {
    "path": ["x.json", "x.html", "x.svg", "x.png", "x.npz", "x.safetensors", "x.csv", "x.JSON", "x.NPZ", "x", ".json", "/", ".", "..", "a/b.json",
             "there.json/x.json", "x" * 100_000, "x" * 100_000 + ".json", "x" * 300 + ".svg", "a\0b.json", "\ud800.json", Path("y.md"), *HOSTILE],
    "dpi": [1, 50, 0, -1, 10**6, np.int64(40), *HOSTILE], "query": HOSTILE, "metrics": HOSTILE, "nope": HOSTILE, "force": HOSTILE,
}  # fmt: skip


def test_save_writes_a_whole_file_or_says_why_not(there):
    drawing, faults = seeded(SEED + 7), []
    found = {name: each for name, each in results().items() if hasattr(each, "save")}
    for number in range(CASES):
        name = drawing.choice(list(found))
        path = drawing.choice(SAVED["path"])
        more = {
            each: drawing.choice(SAVED[each])
            for each in drawing.sample(
                ["dpi", "query", "metrics", "nope", "force"], drawing.choice([0, 0, 1])
            )
        }
        end = end_of(lambda n=name, p=path, m=more: found[n].save(p, **m))
        if end not in ("refused", "accepted") or (end == "accepted" and "nope" in more):
            faults.append(f"{number} {name}.save({path!r:.100}, {more!r:.100}): {end}")
        for each in there.iterdir():
            if each.name.startswith("there"):
                if more.get("force") is not True:
                    assert each.read_bytes() == b"as it was"
            elif each.is_file():
                each.unlink()
    assert not faults, "\n".join(faults[:40])


MODULE = {"d_feat": 8, "n_head": 2}


def test_the_classes_of_the_textbook_refuse_what_they_cannot_mean():
    drawing, faults = seeded(SEED + 11), []
    kinds = signature(attnscope.MultiHeadAttention.__init__).parameters
    _, *parameters = kinds.values()
    for number in range(CASES):
        names = drawing.sample([each.name for each in parameters], drawing.choice([1, 1, 2, 3]))
        options = MODULE | {name: drawing.choice(HOSTILE) for name in names}
        end = end_of(lambda o=options: attnscope.MultiHeadAttention(**o))
        if end not in ("refused", "accepted"):
            faults.append(f"{number} MultiHeadAttention({options!r:.200}): {end}")
    assert not faults, "\n".join(faults[:40])


def test_calls_of_the_formula_refuse_what_they_cannot_mean():
    drawing, faults = seeded(SEED + 13), []
    module, x = attnscope.MultiHeadAttention(**MODULE), torch.ones(2, 3, 8)
    for number in range(CASES):
        function = drawing.choice([attnscope.sdpa, module])
        names = ["Q", "K", "V", "mask", "K_past", "V_past", "lengths"]
        if function is attnscope.sdpa:
            names += [*signature(attnscope.sdpa).parameters][6:]
        options = {"Q": x, "K": x, "V": x}
        options |= {
            name: drawing.choice(HOSTILE) for name in drawing.sample(names, drawing.choice([1, 1, 2]))
        }
        end = end_of(lambda f=function, o=options: f(**o))
        if end not in ("refused", "accepted"):
            faults.append(f"{number} {function!r:.30}({options!r:.200}): {end}")
    assert not faults, "\n".join(faults[:40])
