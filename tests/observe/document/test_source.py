"""The code that ran, with the tensors of each line beside it, letter by letter."""

import ast
import inspect
import io
import re
from dataclasses import replace
from textwrap import dedent

import pytest
import torch
from rich.cells import cell_len
from rich.console import Console

from attnscope.attention.mha import MultiHeadAttention
from attnscope.attention.projection import project
from attnscope.attention.sdpa import sdpa
from attnscope.document.styles import CYAN
from attnscope.observe import contracts
from attnscope.observe.calls import trace_call
from attnscope.observe.document.source import SourceDrawing, annotated
from attnscope.observe.trace import Source, Step, Trace
from tests.ansi import in_style


def source_of(function) -> Source:
    lines, number = inspect.getsourcelines(function)
    return Source(function.__qualname__, number, "".join(lines))


def traced(function, *args, **kwargs) -> Trace:
    trace = trace_call(function, *args, **kwargs)
    trace.source = [source_of(function)]
    return trace


def printed(trace, width=None, *, color=False):
    """Return the output for a terminal of this width; None: for a pipe."""
    out = io.StringIO()
    terminal = {"force_terminal": True, "width": width} if width else {}
    console = Console(file=out, color_system="truecolor" if color else None, **terminal)
    SourceDrawing(trace).print(console)
    return out.getvalue()


def source_text(trace) -> str:
    return "\n\n".join(SourceDrawing(trace).markdown())


def made(trace) -> dict[str, list[str]]:
    """Return the names of the steps of each line of code that computes any."""
    lines = [line for _, lines in annotated(trace) for line in lines]
    return {line.text.strip(): [step.name for step in line.steps] for line in lines if line.steps}


@pytest.fixture(scope="module")
def rotary() -> Trace:
    Q, K, V = torch.ones(3, 4), torch.ones(5, 4), torch.ones(5, 6)
    return traced(sdpa, Q, K, V, torch.ones(3, 5, dtype=torch.bool), rope_theta=1e4)


@pytest.fixture(scope="module")
def projected() -> Trace:
    """Return a trace of two functions in different files, whose line numbers overlap."""
    X, W_Q, W_K, W_V = torch.ones(5, 8), torch.ones(8, 4), torch.ones(8, 4), torch.ones(8, 6)
    first = traced(project, X, W_Q, W_K, W_V)
    second = traced(sdpa, *project(X, W_Q, W_K, W_V))
    steps = first.steps + [step for step in second.steps if step.how != "input"]
    return Trace("sdpa", steps=steps, source=first.source + second.source)


@pytest.fixture(scope="module")
def mha() -> Trace:
    x = torch.ones(128, 32, 200)
    attention = MultiHeadAttention(d_feat=200, n_head=5).eval()
    trace = trace_call(attention, x, x, x)
    trace.source = [source_of(MultiHeadAttention.forward)]
    return trace


def small(a, b=None):
    """Two lines

    that nobody wants to see.
    """
    c = (
        a
        @ a.mT
    )  # fmt: skip
    d, e = c.chunk(2)
    _f = max(1, 2)
    return d * e


@pytest.fixture
def tiny() -> Trace:
    """Return a trace of `small`, as if it began at line 98 of its file."""
    trace = traced(small, torch.ones(4, 3))
    moved = 98 - trace.source[0].line
    trace.source = [replace(trace.source[0], line=98)]
    for step in trace.steps:
        step.line += moved
        step.dims = {"a": ("n_Q", "d_K"), "c": ("n_Q", "n_K")}.get(step.name)
    return trace


def test_what_a_line_makes_stands_at_its_right(tiny):
    assert printed(tiny) == dedent("""
         98  def small(a, b=None):   n_Q d_K  4×3
         99      …
        103      c = (               n_Q n_K  4×4
        104          a
        105          @ a.mT
        106      )  # fmt: skip
        107      d, e = c.chunk(2)   d  2×4
                                     e  2×4
        108      _f = max(1, 2)
        109      return d * e        2×4
        """)


def test_narrow_terminals_show_it_below(tiny):
    assert printed(tiny, 32) == dedent("""
         98  def small(a, b=None):
                 → n_Q d_K  4×3
         99      …
        103      c = (
                     → n_Q n_K  4×4
        104          a
        105          @ a.mT
        106      )  # fmt: skip
        107      d, e = c.chunk(2)
                     → d  2×4
                     → e  2×4
        108      _f = max(1, 2)
        109      return d * e
                     → 2×4
        """)


def test_markdown_is_a_block_with_comments(tiny):
    assert source_text(tiny) == dedent("""\
        ```python
        def small(a, b=None):  # n_Q d_K  4×3
            ...
            c = (              # n_Q n_K  4×4
                a
                @ a.mT
            )  # fmt: skip
            d, e = c.chunk(2)  # d  2×4 · e  2×4
            _f = max(1, 2)
            return d * e       # 2×4
        ```""")


def test_markdown_is_python_still(rotary, projected):
    for trace in (rotary, projected):
        blocks = re.findall(r"```python\n(.*?)```", source_text(trace), re.DOTALL)
        assert len(blocks) == len(trace.source)
        for block, source in zip(blocks, trace.source, strict=True):
            theirs, ours = ast.parse(source.text).body[0], ast.parse(block).body[0]
            assert ast.dump(ast.Module(theirs.body[1:], [])) == ast.dump(ast.Module(ours.body[1:], []))
            assert ast.dump(theirs.args) == ast.dump(ours.args)


def test_inputs_stand_at_their_arguments(rotary):
    lines = made(rotary)
    assert lines["Q: torch.Tensor,"] == ["Q"]
    assert lines["mask: torch.Tensor | None = None,"] == ["mask"]
    assert "K_past: torch.Tensor | None = None," not in lines


def test_every_step_stands_at_a_line_that_names_it(rotary, mha):
    for trace in (rotary, mha):
        lines = made(trace)
        assert [name for names in lines.values() for name in names] == [s.name for s in trace.steps]
        for text, names in lines.items():
            assert all(re.search(rf"\b{name}\b", text) for name in names)


def test_overlapping_files_are_told_apart(projected):
    (_, first), (_, second) = annotated(projected)
    assert {line.number for line in first} & {line.number for line in second}
    names = [[step.name for line in lines for step in line.steps] for lines in (first, second)]
    assert names == [
        ["X", "W_Q", "W_K", "W_V", "Q", "K", "V"],
        ["Q", "K", "V", "scores", "attention", "out"],
    ]
    assert made(projected)["Q = X @ W_Q"] == ["Q"]


def test_what_ran_later_is_not_looked_for_in_what_ran_before():
    first = Source("f", 1, "def f(x):\n    y = x + 1\n    return y\n")
    second = Source("g", 1, "def g(y, mask):\n    y = y * mask\n    return y\n")
    places = [("x", 1, 2), ("y", 2, 3), ("mask", 1, 4), ("y", 2, 5)]
    steps = [Step(name, None, (size,), "float32", "…", 4, line=line) for name, line, size in places]
    found = [
        [step.shape[0] for line in lines if line.number == 2 for step in line.steps]
        for _, lines in annotated(Trace("t", steps=steps, source=[first, second]))
    ]
    assert found == [[3], [5]]


def test_a_caller_goes_on_after_its_calls():
    caller = Source("f", 1, "def f(x):\n    y = g(x)\n    z = g(y)\n    return z\n")
    callee = Source("g", 5, "def g(a):\n    return a + 1\n")
    places = [("x", 1), ("a", 5), ("return", 6), ("y", 2), ("a", 5), ("return", 6), ("z", 3)]
    steps = [
        Step(name, None, (i,), "float32", "…", 4, line=line) for i, (name, line) in enumerate(places)
    ]
    trace = Trace("f", steps=steps, source=[caller, callee], file="f.py")
    assert made(trace) == {
        "def f(x):": ["x"],
        "y = g(x)": ["y"],
        "z = g(y)": ["z"],
        "def g(a):": ["a", "a"],
        "return a + 1": ["return", "return"],
    }


def test_a_function_of_one_line_is_annotated():
    trace = Trace(
        "f",
        steps=[Step("y", ("n_Q",), (2,), "float32", "x + 1", 8, line=1)],
        source=[Source("f", 1, "def f(x): y = x + 1; return y\n")],
    )
    assert printed(trace) == "\n1  def f(x): y = x + 1; return y   n_Q  2\n"


def test_notes_move_to_the_left_before_they_are_broken(mha):
    assert "\n          → n_batch n_head n_Q d_head  128×5×32×40\n" in printed(mha, 50)


def test_what_one_function_makes_stands_at_the_arguments_of_the_next(projected):
    assert made(projected)["V: torch.Tensor,"] == ["V"]


def idle(trace) -> list[str]:
    return [
        line.text.split(" =")[0].strip() for _, lines in annotated(trace) for line in lines if line.idle
    ]


def test_stages_that_did_nothing_are_dim(rotary, projected, mha, tiny):
    assert idle(rotary) == [
        "Q_split", "K_split", "V_split", "K_all", "V_all", "K_shared", "V_shared", "scores_capped",
        "attention_filled", "out_merged",
    ]  # fmt: skip
    assert idle(projected) == [
        "Q_split", "K_split", "V_split", "positions, Q_at, K_at", "cos, sin", "Q_rot", "K_rot", "K_all",
        "V_all", "K_shared", "V_shared", "scores_capped", "scores_masked", "attention_filled",
        "out_merged",
    ]  # fmt: skip
    assert "n_batch, n_Q, _" not in idle(mha)
    assert "attention_drop" in idle(mha)
    assert "\x1b[2m    _f = max(1, 2)\x1b[0m" in printed(tiny, 80, color=True)


def test_code_without_any_step_is_not_dim():
    assert idle(Trace("small", source=[source_of(small)])) == []


def test_a_dry_run_finds_its_lines_by_name(rotary):
    plan = contracts.sdpa(
        {"n_Q": 3, "n_K": 5, "d_K": 4, "d_V": 6},
        variant=contracts.Variant(mask="n_Q n_K", rope_theta=1e4),
    )
    plan.source = rotary.source
    assert made(plan) == made(rotary)
    assert idle(plan) == idle(rotary)


def test_what_a_loop_makes_again_and_again_stands_there_once(tiny):
    tiny.steps += [replace(step) for step in tiny.steps]
    assert made(tiny)["d, e = c.chunk(2)"] == ["d", "e"]


def test_steps_of_other_functions_are_left_out(tiny):
    tiny.steps.append(Step("other", None, (1,), "float32", "x", 4, line=104))
    tiny.steps.append(Step("c", None, (1,), "float32", "x", 4, line=1))
    assert [name for names in made(tiny).values() for name in names] == ["a", "c", "d", "e", "return"]


def test_docstrings_are_left_out_and_methods_named(mha):
    text = printed(mha)
    assert text.startswith("\nMultiHeadAttention.forward\n")
    assert "Args" not in text
    code = [re.sub(r"^ *\d+ {2}", "", line) for line in text.splitlines()]
    assert "        …" in code
    assert "        return x" in code


@pytest.mark.few(3)
@pytest.mark.parametrize("width", [50, 60, 80, 120, 200])
def test_no_line_is_wider_than_the_terminal_and_nothing_is_lost(rotary, projected, mha, width):
    for trace in (rotary, projected, mha):
        text = printed(trace, width)
        assert max(map(len, text.splitlines())) <= width
        whole = "".join(text.split())
        for _, lines in annotated(trace):
            for line in lines:
                parts = line.text.split() if width < 120 else ["".join(line.text.split())]
                assert all(part in whole for part in parts)
                for step in line.steps:
                    assert "".join(step.dims or ()) + "×".join(map(str, step.shape)) in whole


def test_what_ran_stands_in_place_of_a_shape_comment(mha):
    assert "self.W_Q(Q)  # [n_batch, n_Q, n_head·d_head]" in mha.source[0].text
    shown = printed(mha)
    assert re.search(r"self\.W_Q\(Q\) +n_batch n_Q d_feat +128×32×200\n", shown)
    assert "  # [" not in shown


def test_the_code_and_the_axes_are_coloured(tiny):
    text = printed(tiny, 80, color=True)
    assert re.search("\x1b\\[[0-9;]+mdef\x1b", text)
    assert {"n_Q", "4"} <= set(in_style(text, CYAN))
    assert "\x1b[2m 98  " in text


def test_no_colour_is_that_of_a_theme(tiny):
    assert not re.search(r"\x1b\[(?:[1-4];)*[39][0-7]m", printed(tiny, color=True))


def test_code_is_not_taken_for_markup():
    source = Source("f", 1, "def f(x):\n    y = x['[red]']\n    return y\n")
    assert "y = x['[red]']" in printed(Trace("f", source=[source]), 80)


def test_a_trace_without_source_prints_nothing():
    assert printed(Trace("t"), 80) == source_text(Trace("t")) == ""


ODD_CODE = {
    "tabs": "\tdef f(x, K):\n\t\ty = x / K.size(-1) ** 0.5\t# [n_Q]\n\t\tz =\ty / K.size(-1) ** 0.5\n\t\treturn z\n",
    "tabs in the middle": "def f(x, K):\n    y\t=\tx\t/\tK.size(-1)\t** 0.5  # [n_Q]\n    z = y\t\t/ K.size(-1) ** 0.5\n    return z\n",
    "wide": 'def f(x, K):\n    注意, y = "注意力分数", x / K.size(-1) ** 0.5  # [n_Q]\n    z = g("注意", y) / K.size(-1) ** 0.5\n    return z\n',
    "combining": 'def f(x, K):\n    y = g("e\u0301e\u0301e\u0301", x) / K.size(-1) ** 0.5  # [n_Q]\n    z = g("o\u0308", y) / K.size(-1) ** 0.5\n    return z\n',
    "emoji": 'def f(x, K):\n    y = g("👩‍👩‍👧🙂", x) / K.size(-1) ** 0.5  # [n_Q]\n    z = g("🇩🇪", y) / K.size(-1) ** 0.5\n    return z\n',
    "escapes": 'def f(x, K):\n    y = g("\x1b[31m\u202e", x) / K.size(-1) ** 0.5  # [n_Q]\n    z = g("\x07", y) / K.size(-1) ** 0.5\n    return z\n',
}  # fmt: skip


@pytest.mark.parametrize("width", [None, 120, 64, 40])
@pytest.mark.parametrize("kind", ODD_CODE)
def test_no_line_loses_its_end_whatever_it_is_written_with(kind, width):
    steps = [
        Step(name, ("n_Q",), (3,), "float32", "…", 12, line=line) for name, line in [("y", 2), ("z", 3)]
    ]
    trace = Trace("f", steps=steps, source=[Source("f", 1, ODD_CODE[kind])])
    text = printed(trace, width)
    whole = "".join(text.split())
    assert whole.count("/K.size(-1)**0.5") == 2
    assert "#" not in whole
    rows = [row for row in text.splitlines() if row.endswith("n_Q  3")]
    assert len(rows) == 2
    assert len({cell_len(row) for row in rows}) == 1  # one below the other
    if width is not None:
        assert max(map(cell_len, text.splitlines())) <= width
    for row in source_text(trace).splitlines()[2:4]:
        assert row.replace("\t", " ").endswith("# n_Q  3")
        assert "/ K.size(-1) ** 0.5" in " ".join(row.split())
