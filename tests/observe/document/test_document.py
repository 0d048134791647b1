"""Tables, letter by letter, at several widths."""

import io
import re
from dataclasses import replace
from textwrap import dedent

import pytest
from rich.console import Console

from attnscope.document.result import Check, Finding, Stats
from attnscope.document.styles import CYAN, FINDING
from attnscope.document.terminal import print_document
from attnscope.observe import contracts
from attnscope.observe.contracts import Variant
from attnscope.observe.trace import Crash, Step, Trace
from tests.ansi import in_style

pytestmark = pytest.mark.usefixtures("on_command_line")


def printed(result, width=None, *, wide=False, color=False):
    """Return the output for a terminal of this width; None: for a pipe."""
    out = io.StringIO()
    terminal = {"force_terminal": True, "width": width} if width else {}
    console = Console(file=out, highlight=False, color_system="truecolor" if color else None, **terminal)
    print_document(result.document(), console, wide=wide)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


@pytest.fixture
def mha() -> Trace:
    sizes = {"n_batch": 128, "n_Q": 32, "n_K": 32, "d_feat": 200, "n_head": 5, "d_head": 40}
    plan = contracts.mha(sizes, variant=Variant(dropout=0.1))
    for step in plan.steps:
        step.why = None
    plan.options = {
        "scale": 40**-0.5,
        "scale_by": "d_head",
        "bias": False,
        "mode": "eval",
        "dropout": 0.1,
    }
    plan.device, plan.seed = "cpu", 0
    return plan


def test_eighty_columns_show_name_making_dims_shape_and_memory(mha):
    text = printed(mha, 80)
    assert text.startswith(
        dedent("""\
        mha
        n_batch 128 · n_Q 32 · n_K 32 · d_feat 200 · n_head 5 · d_head 40
        scale 1/√d_head = 0.1581 · no bias · eval mode · dropout 0.1 · float32 · cpu
        seed 0

        name            how              dims                       shape         memory
        ────────────────────────────────────────────────────────────────────────────────
        Q               input            n_batch n_Q d_feat         128×32×200   3.1 MiB
        K               input            n_batch n_K d_feat         128×32×200      same
        V               input            n_batch n_K d_feat         128×32×200      same
        Q_feat          self.W_Q(Q)      n_batch n_Q d_feat         128×32×200   3.1 MiB
        K_feat          self.W_K(K)      n_batch n_K d_feat         128×32×200   3.1 MiB
        V_feat          self.W_V(V)      n_batch n_K d_feat         128×32×200   3.1 MiB
        Q_split         Q_feat.view(…)   n_batch n_head n_Q d_head  128×5×32×40     view
                        .transpose(…)
        """)
    )
    assert text.endswith(
        dedent("""
        4 more columns: --wide

        largest: Q_feat, K_feat and 4 more, 3.1 MiB each, 29.4 MiB in all
        1.42 GFLOP in matrix products""")
    )


def test_wide_shows_every_column_whatever_the_width(mha):
    mha.steps = [replace(s, stats=Stats(-1.5, 0.25, 3, 1, 0, 0), line=7) for s in mha.steps]
    titles = "how dims shape dtype memory size FLOPs view line min mean max std NaN inf".split()
    for width in (50, 80, 160, 300):
        shown = re.findall(r"^name +(.*)$", printed(mha, width, wide=True), re.MULTILINE)
        assert " ".join(shown).split() == titles


@pytest.mark.few(4)
@pytest.mark.parametrize("width", [40, 60, 80, 120, None])
def test_what_is_left_out_is_counted(mha, width):
    mha.steps = [replace(s, stats=Stats(-1.5, 0.25, 3, 1, 0, 0), line=7) for s in mha.steps]
    (titles,) = re.findall(r"^name.*$", printed(mha, width), re.MULTILINE)
    all_titles = re.findall(r"^name +(.*)$", printed(mha, 200, wide=True), re.MULTILINE)
    n = len(" ".join(all_titles).split()) - len(titles.split()[1:])
    assert f"\n{n} more columns: --wide\n" in printed(mha, width)
    assert "--wide" not in printed(mha, width, wide=True)


@pytest.fixture
def own_code() -> Trace:
    """Return a trace of a user's file, with values."""
    stats = Stats(-1.5, 0.25, 3, 1, 0, 0)
    steps = [
        Step("x", ("n_batch", "n_Q", "d_feat"), (2, 32, 200), "float32", "input", 51200, line=9),
        Step(
            *("scores", ("n_batch", "num_attention_heads", "n_Q", "n_K"), (2, 5, 32, 32), "float32"),
            *("q @ k.transpose(-2, -1) * scale", 40960),
            line=12,
        ),
    ]
    return Trace("a.py:f", steps=[replace(s, stats=stats) for s in steps], device="cpu", file="a.py")


@pytest.mark.few(3)
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("width", [50, 55, 70, 80, 100, 140, 200])
def test_no_line_is_wider_than_the_terminal_and_no_sentence_is_cut(mha, own_code, checked, width, wide):
    sizes = {"n_batch": 128, "n_Q": 32, "n_K": 32, "d_feat": 200, "n_head": 5, "d_context": 100}
    plan = contracts.mha(sizes, variant=Variant(mask="n_Q n_K", softcap=50, dropout=0.1))
    mha.steps = [replace(s, stats=Stats(-1.5, 0.25, 3, 1e-7, 0, 2), line=7) for s in mha.steps]
    for trace in (mha, own_code, checked, plan):
        text = printed(trace, width, wide=wide)
        assert max(map(len, text.splitlines())) <= width
        words = " ".join(text.split())
        assert all((step.why or "") in words for step in trace.steps)
        assert all(check.note in words for check in trace.checks or [])
    assert {"name", "dims", "shape"} <= set(printed(own_code, width).splitlines()[3].split())


def test_axes_go_on_in_the_next_line_where_a_row_has_no_room(own_code):
    assert printed(own_code, 45).splitlines()[3:-2] == [
        "name    dims                     shape",
        "──────────────────────────────────────────",
        "x       n_batch n_Q d_feat       2×32×200",
        "scores  n_batch                  2×5×32×32",
        "        num_attention_heads n_Q",
        "        n_K",
        "11 more columns: --wide",
        "",
    ]


def test_lines_above_the_table_end_after_a_part(mha):
    assert printed(mha, 60).splitlines()[1:5] == [
        "n_batch 128 · n_Q 32 · n_K 32 · d_feat 200 · n_head 5",
        "d_head 40",
        "scale 1/√d_head = 0.1581 · no bias · eval mode · dropout 0.1",
        "float32 · cpu · seed 0",
    ]


def tensors(*rows):
    """Return a trace with steps that have these names, bytes and expressions."""
    steps = [Step(name, ("a",), (n,), "int8", how, n) for name, n, how in rows]
    return Trace("t", steps=steps, device="cpu")


def summary_of(trace):
    return printed(trace, 100).splitlines()[-1].removesuffix(" · 0 FLOP in matrix products")


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([("Q", 9, "input"), ("x", 5, "Q")], "x, 5 B of 14 B"),  # none of the inputs
        (
            [("Q", 9, "input"), ("x", 5, "Q"), ("y", 4, "x"), ("z", 5, "y")],
            "x and z, 5 B each, 23 B in all",
        ),
        ([(name, 5, "f()") for name in "abac"], "a, b and c, 5 B each, 20 B in all"),
        ([(name, 5, "f()") for name in "abcd"], "a, b and 2 more, 5 B each, 20 B in all"),
        ([("Q", 9, "input"), ("…", 5, "Q.mT")], "Q.mT, 5 B of 14 B"),  # its expression, without a name
    ],
)
def test_the_largest_of_the_computed_tensors_are_named(rows, expected):
    assert summary_of(tensors(*rows)) == f"largest: {expected}"


def test_a_view_is_not_the_largest_but_the_argument_of_a_call_may_be():
    trace = tensors(("Q", 9, "input"), ("x", 9, "Q"))
    trace.steps[1].view_of = "Q"
    assert summary_of(trace) == "largest: Q, 9 B of 9 B"
    trace = tensors(("Q", 9, "input"), ("x", 5, "input"))
    trace.steps[1].depth = 1
    assert summary_of(trace) == "largest: x, 5 B of 14 B"


def test_rows_of_the_largest_are_bold():
    console = {"width": 100, "color": True}
    lines = printed(tensors(("Q", 9, "input"), ("x", 5, "Q"), ("y", 4, "x")), **console).splitlines()
    bold = [line for line in lines[1:] if "\x1b[1" in line]
    assert len(bold) == 1
    assert "\x1b[1mx" in bold[0]


def test_a_finding_goes_on_below_its_beginning(mha):
    mha.findings = [Finding("this looks wrong, and it is said at some length", line=12)]
    assert printed(mha, 40).endswith("\n! line 12: this looks wrong, and it is\n  said at some length")
    assert in_style(printed(mha, 80, color=True), FINDING)[-2:] == ["! ", "line 12: "]


def test_a_pipe_is_never_cut(mha):
    text = printed(mha)
    assert "Q_feat.view(n_batch, n_Q, n_head, d_head).transpose(1, 2)" in text
    assert "view of Q_feat, not contiguous" in text
    assert (
        "scale 1/√d_head = 0.1581 · no bias · eval mode · dropout 0.1 · float32 · cpu · seed 0\n" in text
    )


def test_colours_follow_the_axes_and_are_left_out_without_colour(mha):
    assert {"n_Q", "32"} <= set(in_style(printed(mha, 200, color=True), CYAN))
    assert "\x1b[3" not in printed(mha, 200)


def test_a_dry_run_says_that_nothing_was_computed(mha):
    assert "dry run" not in printed(mha, 80)
    mha.device = None
    assert printed(mha, 80).startswith("mha  (dry run: nothing was computed)\n")


def test_findings_and_checks_stand_below(mha):
    mha.findings = [Finding("this looks wrong", line=12), Finding("and this")]
    mha.checks = [Check("naive loop", 2.5e-7, 1e-5, True), Check("x", float("nan"), 1e-5, False)]
    text = printed(mha, 80)
    assert "! line 12: this looks wrong\n! and this\n" in text
    assert "naive loop             2.5e-07      1e-05  holds" in text
    assert "x                          nan      1e-05  FAILS" in text


def test_names_from_code_are_not_taken_for_markup():
    trace = Trace(
        "[bold]t[/]", steps=[Step("x['[red]']", None, (), "float32", "y[0][/]", 4)], device="cpu"
    )
    text = printed(trace, 100)
    assert "[bold]t[/]" in text
    assert "x['[red]']" in text
    assert "y[0][/]" in text
    assert "scalar" in text


def test_a_trace_without_steps_is_shown():
    assert "no tensor was named" in printed(Trace("t", device="cpu"), 80)


# Sentences under the rows.


@pytest.fixture
def explained() -> Trace:
    """Return a trace with two explained steps and one without an explanation."""
    plan = contracts.sdpa({"n_Q": 3, "n_K": 5, "d_K": 4, "d_V": 6})
    plan.steps = [plan["Q"], replace(plan["K"], why=None), plan["out"]]
    plan.device = "cpu"
    return plan


def test_a_sentence_stands_under_its_row(explained):
    assert printed(explained, 60).endswith(
        dedent("""\

        name  how            dims     shape  memory  FLOPs
        ──────────────────────────────────────────────────
        Q     input          n_Q d_K  3×4      48 B
          queries: 3 vectors of 4 numbers
        K     input          n_K d_K  5×4      80 B
        out   attention @ V  n_Q d_V  3×6      72 B    180
          each query's weighted mean of the values: 3×5 weights
          times 5×6 values, contracted over n_K: a row of 6 numbers
          for each query
        2 more columns: --wide

        largest: out, 72 B of 200 B · 180 FLOP in matrix products""")
    )


def test_a_sentence_is_said_once(explained):
    explained.steps.insert(1, replace(explained["Q"], name="K_feat"))
    assert printed(explained, 60).count("3 vectors of 4 numbers") == 1
    assert re.search(r"^K_feat.*\n  as Q\n", printed(explained, 60), re.MULTILINE)
    assert explained["K_feat"].why == explained["Q"].why


def test_a_sentence_is_one_line_in_a_pipe(explained):
    assert f"\n  {explained['out'].why}\n" in printed(explained)


def test_a_sentence_is_no_wider_than_the_table_or_what_reads_well(explained):
    lines = printed(explained, 200).splitlines()
    assert 60 < max(len(line) for line in lines if line.startswith("  ")) <= 80


def test_sentences_are_dim_and_slanted(explained):
    assert "\x1b[2;3m  queries: 3 vectors of 4 numbers" in printed(explained, 80, color=True)


def test_split_tables_have_their_sentences_under_the_first(explained):
    explained.steps = [replace(s, stats=Stats(-1.5, 0.25, 3, 1, 0, 0)) for s in explained.steps]
    text = printed(explained, 50, wide=True)
    assert text.count("\nQ ") > 1
    assert text.count("queries: ") == 1
    assert "queries: " in text[: text.rindex("\nQ ")]


# Checks that cannot be made.


@pytest.fixture
def checked() -> Trace:
    note = "F.scaled_dot_product_attention has no soft cap (as of PyTorch 2.9), so it cannot be asked"
    checks = [
        Check("PyTorch", None, None, None, note),
        Check("loop in float64", 2.5e-7, 1e-5, True),
    ]
    return Trace("t", device="cpu", checks=checks)


def test_a_note_stands_beside_its_check_where_there_is_room(checked):
    rows = printed(checked, 160).splitlines()[-4:]
    note = checked.checks[0].note
    assert rows == [
        "check            largest difference  tolerance  verdict    note",
        "─" * (59 + len(note)),
        f"PyTorch                           –          –  undecided  {note}",
        "loop in float64             2.5e-07      1e-05  holds",
    ]
    assert printed(checked).splitlines()[-4:] == rows


def test_a_note_stands_below_its_check_where_there_is_none(checked):
    assert printed(checked, 60).endswith(
        dedent("""\
        check            largest difference  tolerance  verdict
        ─────────────────────────────────────────────────────────
        PyTorch                           –          –  undecided
          F.scaled_dot_product_attention has no soft cap (as of
          PyTorch 2.9), so it cannot be asked
        loop in float64             2.5e-07      1e-05  holds""")
    )


def test_a_title_is_broken_before_a_column_is_left_out(checked):
    assert printed(checked, 50).splitlines()[5:9] == [
        "check               largest  tolerance  verdict",
        "                 difference",
        "─────────────────────────────────────────────────",
        "PyTorch                   –          –  undecided",
    ]


def test_columns_that_have_room_are_not_broken_by_wide():
    step = Step("x", None, (2,), "float32", "a + " * 20 + "b", 8)
    assert step.how in printed(Trace("t", steps=[step], device="cpu"), 200, wide=True)


def test_the_dtype_of_a_mask_alone_takes_no_column():
    mask = Step("mask", None, (2,), "bool", "input", 2)
    rows = [mask, Step("x", None, (2,), "float32", "input", 8)]
    assert "dtype" not in printed(Trace("t", steps=rows, device="cpu"), 200)
    rows.append(Step("y", None, (2,), "float64", "x", 16))
    assert "dtype" in printed(Trace("t", steps=rows, device="cpu"), 200)


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_a_row_that_names_others_fits_every_width(width):
    members = {str(i): f"intermediate_{i}" for i in range(12)} | {"weights": "attention"}
    rows = [
        Step("attention", ("n_Q", "n_K"), (3, 4), "float32", "f(x)", 48, line=1),
        Step("return", None, (), "float32", "g(x)", 0, members=members, line=2),
    ]
    text = printed(Trace("t", steps=rows, device="cpu", file="t.py"), width)
    *_, last = (line for line in text.splitlines() if "return" in line)
    assert "13 tensors" in last
    assert max(map(len, text.splitlines())) <= width
    if width > 60:
        assert "intermediate_0," in last
    wide = printed(Trace("t", steps=rows, device="cpu", file="t.py"))
    assert "intermediate_0, intermediate_1, " in wide
    assert "weights=attention" in wide
    assert "float32" not in wide


def test_what_a_crash_says_keeps_its_margin():
    crash = Crash("a.py", 7, "q @ k", [], "axis 2 of q and axis 1 of k disagree", "RuntimeError: sizes")
    lines = printed(Trace("attend", crash=crash), 30).splitlines()
    assert lines[-4:] == [
        "✗ line 7: q @ k",
        "    axis 2 of q and axis 1 of",
        "    k disagree",
        "    RuntimeError: sizes",
    ]
