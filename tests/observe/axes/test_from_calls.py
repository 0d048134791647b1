"""Several calls name axes that change as those of an argument do."""

import pytest

from attnscope.observe.axes.from_calls import name_by_changes
from attnscope.observe.trace import Step


def step(name, dims, shape, how="…", depth=0):
    return Step(name, tuple(dims.split()), shape, "float32", how, 4, line=3, depth=depth)


def calls(lengths, y_lengths, *, y="5"):
    """Calls of `f(x, y)` with x `B T 8`, y `B 5`, and a result of `B` and of the size of T."""
    return [
        [
            step("x", "B T 8", (2, n, 8), "input"),
            step("y", f"B {m if y.isdigit() else y}", (2, m), "input"),
            step("hidden", f"2 {n}", (2, n)),
            step("fixed", f"{8}", (8,)),
        ]
        for n, m in zip(lengths, y_lengths, strict=True)
    ]


def named(lengths, y_lengths, **options):
    traced = calls(lengths, y_lengths, **options)
    name_by_changes(traced)
    assert len({each[2].dims for each in traced}) == 1 or all(d.isdigit() for d in traced[0][2].dims)
    return " ".join(traced[0][2].dims)


@pytest.mark.parametrize(
    ("lengths", "y_lengths", "options", "dims"),
    [
        ([7, 12], [5, 5], {}, "2 T"),
        ([7, 7], [5, 5], {}, "2 7"),  # it did not change
        ([7], [5], {}, "2 7"),  # one call
        ([7, 12], [7, 12], {}, "2 7"),  # y is as long, and has no name
        ([7, 12], [7, 12], {"y": "S"}, "2 7"),  # it may be S
        ([7, 12], [7, 13], {"y": "S"}, "2 T"),
    ],
)
def test_an_axis_is_named_that_changes_with_one_axis_of_an_argument(lengths, y_lengths, options, dims):
    assert named(lengths, y_lengths, **options) == dims


def test_calls_of_other_shapes_are_compared_as_far_as_they_agree():
    first, other = calls([7, 12], [5, 5])
    other[2] = step("hidden", "2 12 1", (2, 12, 1))
    name_by_changes([first, [*other[:3], step("more", "12", (12,))]])
    assert first[2].dims == ("2", "7")
    name_by_changes([])


def test_a_program_calls_a_function_twice(tmp_path, monkeypatch):
    import sys

    import attnscope

    monkeypatch.chdir(tmp_path)
    (tmp_path / "hides.py").write_text(
        "import torch\n\n\ndef f(x):\n    B, T, C = x.shape\n    y = torch.linalg.pinv(x)\n    return y\n"
    )
    (tmp_path / "twice.py").write_text(
        "import torch\nfrom hides import f\n\nfor n in (5, 9):\n    f(torch.randn(2, n, 3))\n"
    )
    run = attnscope.trace_script("twice.py", watch="hides.py:f", calls=2)
    sys.modules.pop("hides", None)
    assert [trace["y"].dims for trace in run.traces] == [("2", "3", "T")] * 2
