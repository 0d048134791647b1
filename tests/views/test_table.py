"""Tables as people see them, letter by letter, at several widths."""

import io
import re
from textwrap import dedent

import pytest
from rich.console import Console

from attnscope import contracts
from attnscope.results import Check, Finding, Stats, Step, Trace
from attnscope.views.table import print_table


def printed(result, width=None, *, wide=False, color=False):
    """What a terminal of that width shows; piped, without one."""
    out = io.StringIO()
    terminal = {"force_terminal": True, "width": width} if width else {}
    console = Console(file=out, highlight=False, color_system="truecolor" if color else None, **terminal)
    print_table(result, console, wide=wide)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


@pytest.fixture
def mha() -> Trace:
    sizes = {"n_batch": 128, "n_Q": 32, "n_K": 32, "d_feat": 200, "n_head": 5, "d_head": 40}
    plan = contracts.mha(sizes, dropout=True)
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
        scale 1/√d_head = 0.1581 · no bias · eval mode · dropout 0.1 · float32 · cpu ·
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
    assert text.endswith("\nlargest: Q, 3.1 MiB of 29.4 MiB · 1.42 GFLOP in matrix products")


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("width", [50, 60, 72, 80, 100, 120, 160, 200])
def test_no_line_is_wider_than_the_terminal(mha, width, wide):
    mha.steps = [
        Step(**{**vars(s), "stats": Stats(-1.5, 0.25, 3, 1e-7, 0, 2), "line": 7}) for s in mha.steps
    ]
    lines = printed(mha, width, wide=wide).splitlines()
    assert max(map(len, lines)) <= width


def test_wide_shows_every_column_whatever_the_width(mha):
    mha.steps = [
        Step(**{**vars(s), "stats": Stats(-1.5, 0.25, 3, 1, 0, 0), "line": 7}) for s in mha.steps
    ]
    titles = "how dims shape dtype memory size fresh FLOPs view line min mean max std NaN inf".split()
    for width in (50, 80, 160, 300):
        shown = re.findall(r"^name +(.*)$", printed(mha, width, wide=True), re.MULTILINE)
        assert " ".join(shown).split() == titles


def test_a_pipe_is_never_cut(mha):
    text = printed(mha)
    assert "Q_feat.view(n_batch, n_Q, n_head, d_head).transpose(1, 2)" in text
    assert "view of Q_feat, not contiguous" in text
    assert (
        "scale 1/√d_head = 0.1581 · no bias · eval mode · dropout 0.1 · float32 · cpu · seed 0\n" in text
    )


def test_colours_follow_the_axes_and_are_left_out_without_colour(mha):
    assert "\x1b[36mn_Q" in printed(mha, 200, color=True)
    assert "\x1b[36m32" in printed(mha, 200, color=True)
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
