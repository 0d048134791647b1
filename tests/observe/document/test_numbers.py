"""Every number of every step, letter by letter."""

import io
import json
from dataclasses import replace
from textwrap import dedent

import numpy as np
import pytest
import torch
from rich.console import Console

from attnscope.document.styles import BLUE, CYAN, ORANGE, WRONG
from attnscope.document.values import Shown
from attnscope.observe.document.numbers import numbers_record, numbers_text, print_numbers
from attnscope.observe.trace import Step, Trace
from tests.ansi import in_style


def result(*tensors, sizes=None, **more) -> tuple[Trace, dict[str, Shown]]:
    """Return a trace of tensors, each a name, its dims and its numbers; and their values."""
    steps, values = [], {}
    for name, dims, numbers in tensors:
        array = np.asarray(numbers)
        axes = tuple(dims.split()) if dims is not None else None
        how = "Q @ K.mT * scale" if name == "scores" else "input"
        steps.append(Step(name, axes, array.shape, str(array.dtype), how, array.nbytes))
        values[name] = Shown(name, axes, str(array.dtype), array)
    return Trace("t", sizes=sizes or {}, steps=[replace(step, **more) for step in steps]), values


def printed(trace, values, width=None, *, color=False):
    """Return the output for a terminal of this width; None: for a pipe."""
    out = io.StringIO()
    terminal = {"force_terminal": True, "width": width} if width else {}
    console = Console(file=out, highlight=False, color_system="truecolor" if color else None, **terminal)
    print_numbers(trace, values, console)
    return out.getvalue()


def rows(name, dims, numbers, width=None, **more) -> str:
    """Return the rows of one tensor, without its headline."""
    lines = printed(*result((name, dims, numbers), **more), width).splitlines()[2:]
    assert all(line.startswith("  ") for line in lines)
    return "\n".join(line[2:] for line in lines) + "\n"


def test_a_step_is_its_headline_its_sentence_and_its_numbers():
    trace, values = result(("scores", "n_Q n_K", [[0.5, -1.25, 0], [10.0, 2, 3]]))
    trace.steps[0].why = "every query times every key"
    assert printed(trace, values, 80) == dedent("""
        scores  n_Q n_K  2×3  = Q @ K.mT * scale
          every query times every key
                   k0       k1      k2
          q0   0.5000  -1.2500       0
          q1  10.0000   2.0000  3.0000
        """)


def test_steps_follow_each_other_with_a_line_between():
    trace, values = result(("Q", "n_Q d_K", [[1, 2]]), ("s", "", 7))
    assert printed(trace, values) == dedent("""
        Q  n_Q d_K  1×2  input
          q0  1  2

        s  scalar  input
          7
        """)


def test_markdown_has_a_block_for_each_step():
    trace, values = result(("Q", "n_Q d_K", [[1, 2]]), ("scores", None, [0.5]), why="because")
    assert numbers_text(trace, values) == dedent("""\
        **Q** · n_Q d_K · 1×2 · `input`

        because

        ```
        q0  1  2
        ```

        **scores** · 1 · `Q @ K.mT * scale`

        because

        ```
        0.5000
        ```""")


def test_the_record_holds_all_values():
    trace, values = result(("Q", "n_Q d_K", np.full((20, 30), np.nan)), ("s", "", 7))
    for step in trace.steps:
        step.tensor = torch.as_tensor(values[step.name].array)
    first, second = json.loads(json.dumps(numbers_record(trace), allow_nan=False))
    assert (first["name"], first["dims"], first["shape"]) == ("Q", ["n_Q", "d_K"], [20, 30])
    assert first["values"] == [["NaN"] * 30] * 20
    assert second["values"] == 7


@pytest.mark.parametrize(
    ("dims", "numbers", "text"),
    [  # how numbers are written
        ("a b", [[1.0, -20.0], [0.0, 300.0]], "1  -20\n0  300"),
        ("a b", [[1.0, -20.5], [0.0, 300.0]], "1.0000  -20.5000\n     0  300.0000"),
        ("a", [0.5, 1e-7, 0.0], "0.5000  0.0000  0"),  # not 0, but small
        ("a", [0.00123456, -1.5e-7, 0.0], "1.235e-03  -1.500e-07  0"),
        ("a", [0.5, -1e9, 123456.7, 1234567.0], "0.5000  -1e+09  123456.7000  1.235e+06"),
        ("a", [1.0, -1e9, np.finfo("float32").min], "1  -1e+09  -3.403e+38"),
        ("a", [2**53 + 1, -1, 0], "9007199254740993  -1  0"),
        # which rows and columns have names
        ("d_V", [1, 2, 3], "1  2  3"),
        ("n_K", [1, 2, 3], "k0  k1  k2\n 1   2   3"),
        ("n_K 1", [[1], [20], [3]], "k0   1\nk1  20\nk2   3"),
        ("n_K n_Q", [[1, 2], [3, 4]], "    q0  q1\nk0   1   2\nk1   3   4"),
        ("d_K n_Q", [[1, 2], [3, 4]], "q0  q1\n 1   2\n 3   4"),
        (None, [[1, 2], [3, 4]], "1  2\n3  4"),
        ("n_batch n_Q d_K", [[[1, 2]]], "q0  1  2"),
        ("n_new d_K", [[1], [2]], "k3  1\nk4  2"),
        ("n_past d_K", [[1], [2], [3]], "k0  1\nk1  2\nk2  3"),
        ("n_Q n_K", np.zeros((0, 3)), "no numbers"),
    ],
)
def test_numbers_are_written(dims, numbers, text):
    assert rows("x", dims, numbers, sizes={"n_past": 3, "n_new": 2}) == f"{text}\n"


def test_nan_and_infinities_are_seen():
    assert rows("x", "a b", [[np.nan, 1.0], [-np.inf, np.inf]]) == " NaN    1\n-inf  inf\n"
    text = printed(*result(("x", "a", [np.nan, -np.inf, 0.5])), 80, color=True)
    assert in_style(text, WRONG) == ["NaN"]
    assert in_style(text, ORANGE) == ["-inf"]


def test_booleans_are_marks():
    assert rows("mask", "n_Q n_K", [[True, False], [True, True]]) == dedent("""\
            k0  k1
        q0   ✓   ·
        q1   ✓   ✓
        """)


# How they are laid out.


def test_each_leading_index_has_a_matrix_in_the_same_columns():
    assert rows("scores", "n_batch n_head n_Q n_K", [[[[1, 2]], [[3, -400]]]]) == dedent("""\
        [0, 0]  k0    k1
        q0       1     2
        [0, 1]  k0    k1
        q0       3  -400
        """)


def test_only_the_corners_of_large_matrices_are_shown():
    text = rows("scores", "n_Q n_K", np.arange(3000).reshape(30, 100))
    assert text == dedent("""\
               k0    k1    k2    k3    k4    k5  …   k95   k96   k97   k98   k99
        q0      0     1     2     3     4     5  …    95    96    97    98    99
        q1    100   101   102   103   104   105  …   195   196   197   198   199
        q2    200   201   202   203   204   205  …   295   296   297   298   299
        q3    300   301   302   303   304   305  …   395   396   397   398   399
        q4    400   401   402   403   404   405  …   495   496   497   498   499
        q5    500   501   502   503   504   505  …   595   596   597   598   599
        ⋮       ⋮     ⋮     ⋮     ⋮     ⋮     ⋮  ⋱     ⋮     ⋮     ⋮     ⋮     ⋮
        q25  2500  2501  2502  2503  2504  2505  …  2595  2596  2597  2598  2599
        q26  2600  2601  2602  2603  2604  2605  …  2695  2696  2697  2698  2699
        q27  2700  2701  2702  2703  2704  2705  …  2795  2796  2797  2798  2799
        q28  2800  2801  2802  2803  2804  2805  …  2895  2896  2897  2898  2899
        q29  2900  2901  2902  2903  2904  2905  …  2995  2996  2997  2998  2999
        """)


def test_twelve_rows_and_columns_are_shown_whole():
    text = rows("x", "a b", np.arange(144).reshape(12, 12))
    assert "…" not in text
    assert text.split() == [str(i) for i in range(144)]


def test_narrow_terminals_show_fewer_columns_of_all_matrices():
    numbers = np.arange(24.0).reshape(2, 1, 12) + 0.5
    assert rows("x", "n_head n_Q n_K", numbers, 40) == dedent("""\
        [0]       k0       k1  …      k11
        q0    0.5000   1.5000  …  11.5000
        [1]       k0       k1  …      k11
        q0   12.5000  13.5000  …  23.5000
        """)


def test_of_many_matrices_the_first_and_the_last_are_shown():
    text = rows("x", "n_batch n_head a b", np.arange(12).reshape(3, 4, 1, 1))
    assert text == "[0, 0]\n         0\n[0, 1]\n         1\n… 9 more\n[2, 3]\n        11\n"
    text = rows("x", "n_batch a b", np.arange(4).reshape(4, 1, 1))
    assert "more" not in text


def test_large_tensors_are_not_looked_at_as_a_whole():
    """It is a view of one number; a copy would take 8 TB."""
    huge = np.broadcast_to(np.float64(1), (1000, 1000, 1000, 1000))
    assert "… 999997 more" in rows("x", "a b c d", huge)


def test_what_is_the_same_tensor_is_said_to_be():
    trace, values = result(("Q", "n_Q d_K", [[1, 2]]), ("K", "n_K d_K", [[1, 2]]))
    trace.steps[1].same_as = "Q"
    assert printed(trace, values).endswith("\nK  n_K d_K  1×2  input\n  the same numbers as Q\n")
    values["K"].array[0, 0] = 9  # it was overwritten in between
    assert printed(trace, values).endswith("\nK  n_K d_K  1×2  input\n  k0  9  2\n")


def test_steps_without_values_are_left_out_and_the_last_of_a_name_is_shown():
    trace, values = result(("x", "a", [1]), ("y", "a", [2]), ("x", "a b", [[3]]))
    del values["y"]
    assert printed(trace, values) == "\nx  a b  1×1  input\n  3\n"


def test_parts_of_a_tensor_are_called_by_what_was_asked_for():
    trace, values = result(("Q", "n_Q d_K", [[1, 2]]))
    values["Q"] = Shown("Q[0]", ("d_K",), "int64", values["Q"].array[0])
    assert printed(trace, values) == "\nQ[0]  d_K  2  input\n  1  2\n"


@pytest.mark.few(1)
@pytest.mark.parametrize("width", [50, 60, 80, 120, 200])
def test_no_line_is_wider_than_the_terminal(width):
    rng = np.random.default_rng(0)
    trace, values = result(
        ("attention_with_a_long_name", "n_batch n_head n_Q n_K", rng.normal(size=(12, 64, 128, 128))),
        ("scores", "n_Q n_K", rng.normal(size=(30, 50)) * 1e-8),
        ("ids", "n_K", rng.integers(-(2**62), 2**62, size=40)),
        ("mask", "n_Q n_K", rng.normal(size=(5, 100)) > 0),
        why="a sentence of many words " * 20,
    )
    trace.steps[
        0
    ].how = "Q_feat.view(n_batch, n_Q, n_head, d_head).transpose(1, 2).contiguous() * self.scale"
    text = printed(trace, values, width)
    assert max(map(len, text.splitlines())) <= width
    assert "".join(trace.steps[0].how.split()) in "".join(text.split())


def test_a_pipe_is_as_wide_as_it_needs_to_be():
    trace, values = result(("ids", "n_K", np.arange(12) + 2**60), why="a sentence of many words " * 20)
    lines = printed(trace, values).splitlines()
    assert lines[2] == "  " + trace.steps[0].why
    assert len(lines[4].split()) == 12


def test_axes_are_coloured_and_names_dim():
    text = printed(*result(("Q", "n_batch n_Q d_K", np.ones((2, 3, 4)))), 80, color=True)
    assert {"n_batch", "1"} <= set(in_style(text, BLUE))
    assert "n_Q" in in_style(text, CYAN)
    assert "\x1b[1mQ\x1b[0m" in text
    assert "\x1b[2mq0\x1b[0m" in text
    assert "\x1b" not in printed(*result(("Q", "n_Q d_K", [[1, 2]])), 80).replace("\x1b[0m", "")


def test_names_are_not_taken_for_markup():
    assert "x['[red]']" in printed(*result(("x['[red]']", "a", [1])), 80)
