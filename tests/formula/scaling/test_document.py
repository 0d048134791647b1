"""The table, the bars and the sentences of `scaling`, letter by letter, at several widths."""

import csv
import io
import json
import re
from dataclasses import replace
from textwrap import dedent

import pytest
from rich.cells import cell_len
from rich.console import Console

from attnscope.document.csv import csv_table
from attnscope.document.json import json_text
from attnscope.document.markdown import markdown_document
from attnscope.document.styles import GREEN, RED
from attnscope.document.terminal import print_document
from attnscope.formula.scaling.measure import findings_of
from attnscope.formula.scaling.result import Scaling, ScalingRow
from tests.ansi import in_style

SIZES = {"n_batch": 64, "n_Q": 32, "n_K": 16}
ROWS = [
    ScalingRow(1, False, 1.04, 2.404, 0.2, 0.25, 0.26),
    ScalingRow(1, True, 1.04, 2.404, 0.2, 0.25, 0.26),
    ScalingRow(64, False, 64.26, 0.51, 0.8125, 0.1875, 0.2),
    ScalingRow(64, True, 1.0, 2.35, 0.22, 0.26, 0.27),
    ScalingRow(1024, False, 1023.51, 0.0021, 0.95, 0.000258, 0.07),
    ScalingRow(1024, True, 0.99, 2.351, 0.21, 0.27, 0.28),
]
NUMBERS = re.compile(r"\d+(?:\.\d+)?(?:e-\d+)?")


def scaling(rows=ROWS, **options):
    result = Scaling(**{"sizes": SIZES, "dtype": "float32", "seed": 7, "rows": rows} | options)
    result.findings = findings_of(result)
    return result


def printed(result, width=None, *, plot=True, color=False):
    """Return the output for a terminal of this width; None: for a pipe."""
    out = io.StringIO()
    terminal = {"force_terminal": True, "width": width} if width else {}
    console = Console(file=out, highlight=False, color_system="truecolor" if color else None, **terminal)
    print_document(result.document(bars=plot), console)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def sentences(*rows, **options):
    return [finding.message for finding in scaling(list(rows), **options).findings]


def test_eighty_columns_show_all_numbers_side_by_side_with_bars_and_sentences_below():
    assert printed(scaling(), 80) == dedent("""\
        scaling
        n_batch 64 · n_Q 32 · n_K 16
        scores with and without the scale 1/√d_K · float32 · seed 7

              ── variance ─  ── entropy ──  ─ largest weight ─  ── gradient ─
         d_K  without  with  without  with      without   with  without  with
        ─────────────────────────────────────────────────────────────────────
           1      1.0   1.0     2.40  2.40        0.200  0.200     0.25  0.25
          64     64.3   1.0     0.51  2.35        0.812  0.220     0.19  0.26
        1024   1023.5   1.0   0.0021  2.35        0.950  0.210  0.00026  0.27

        variance: of all scores
        entropy (nats, at most ln n_K = 2.77), largest weight: mean of the rows
        gradient: norm of ∂attention/∂scores of a row, median of the rows

         d_K           0─────────────────largest weight─────────────────1
           1  without  ██████████                                          0.200
              with     ██████████                                          0.200
          64  without  ████████████████████████████████████████▋           0.812
              with     ███████████                                         0.220
        1024  without  ███████████████████████████████████████████████▌    0.950
              with     ██████████▌                                         0.210

        Without the scale, at d_K 1024, the variance of the scores is 1023.5 and the
        largest weight 0.950: the softmax is nearly one-hot, and almost no gradient
        passes through it (0.00026).
        With the scale they are 1.0, 0.210 and 0.27, much as at d_K 1 (1.0, 0.200 and
        0.25).""")


@pytest.mark.parametrize("width", [40, 50, 60, 72, 80, 100, 120, 160, 200])
def test_no_line_is_wider_than_the_terminal_and_no_number_is_cut(width):
    text = printed(scaling(), width)
    assert max(map(cell_len, text.splitlines())) <= width
    assert "…" not in text
    assert set(NUMBERS.findall(printed(scaling(), 200))) == set(NUMBERS.findall(text))


def test_sixty_columns_show_the_gradient_in_a_table_of_its_own():
    heads = [line for line in printed(scaling(), 60).splitlines() if line.endswith("with")]
    assert heads == [
        " d_K  without  with  without  with      without   with",
        " d_K  without  with",
    ]


def test_a_pipe_is_never_cut_nor_wrapped():
    text = printed(scaling())
    assert "\x1b" not in text
    assert "largest weight: mean of the rows\n" in text
    assert [finding.message for finding in scaling().findings] == text.splitlines()[-2:]


def test_bars_can_be_left_out():
    assert "█" in printed(scaling(), 80)
    text = printed(scaling(), 80, plot=False)
    assert "█" not in text
    assert "of the rows\n\nWithout the scale" in text


def test_colours_tell_both_apart_and_are_left_out_without_colour():
    text = printed(scaling(), 80, color=True)
    assert any("██████████" in piece for piece in in_style(text, RED))
    assert any("██████████" in piece for piece in in_style(text, GREEN))
    assert "\x1b[3" not in printed(scaling(), 80)


def test_bars_are_as_long_as_the_weights():
    def bar(share):
        rows = [replace(row, largest_weight=share) for row in ROWS[:2]]
        (line,) = re.findall(r"^ +1  without  (.*)  \S+$", printed(scaling(rows), 80), re.MULTILINE)
        return line.rstrip()

    assert bar(1.0) == bar(1.0 + 1e-12) == "█" * 50
    assert bar(0.5) == "█" * 25
    assert bar(0.51) == "█" * 25 + "▌"
    assert bar(1e-9) == "▏"
    assert bar(float("nan")) == ""


def test_csv_markdown_and_json_hold_the_same_rows():
    result = scaling()
    document = json.loads(json_text(result.to_dict()))
    assert document["schema"] == "attnscope.scaling/1"
    assert list(document)[1:] == ["sizes", "dtype", "seed", "rows", "findings", "draw"]
    assert list(document["rows"][0]) == [
        "d_K", "scaled", "variance", "entropy", "largest_weight", "gradient_norm", "gradient_norm_mean",
    ]  # fmt: skip
    rows = list(csv.DictReader(io.StringIO(csv_table(result.table()))))
    assert [{key: str(value) for key, value in row.items()} for row in document["rows"]] == rows
    lines = [line for line in markdown_document(result.document()).splitlines() if line.startswith("|")]
    assert lines[0] == "| d_K | scale | variance | entropy | largest weight | gradient |"
    assert lines[2] == "| 1 | without | 1.0 | 2.40 | 0.200 | 0.25 |"
    assert lines[-1] == "| 1024 | with | 1.0 | 2.35 | 0.210 | 0.27 |"
    assert len(lines) == 2 + len(rows)


def test_markdown_says_what_was_run_and_what_it_shows():
    lines = markdown_document(scaling().document()).splitlines()
    assert lines[:3] == ["**scaling**", "", "n_batch 64 · n_Q 32 · n_K 16"]
    assert lines[-3].startswith("- Without the scale, at d_K 1024,")
    assert lines[-1].startswith("- With the scale they are")


def test_a_number_that_json_lacks_is_a_string():
    rows = [replace(row, variance=float("inf")) for row in ROWS[:2]]
    assert json.loads(json_text(scaling(rows).to_dict()))["rows"][0]["variance"] == "Infinity"


def test_the_widest_is_told_and_compared_with_the_narrowest_whatever_their_order():
    assert sentences(*ROWS[4:], *ROWS[:2], *ROWS[4:]) == sentences(*ROWS[:2], *ROWS[4:])


def test_one_width_is_compared_with_nothing():
    assert sentences(*ROWS[2:4]) == [
        "Without the scale, at d_K 64, the variance of the scores is 64.3 and the largest weight 0.812:"
        " one key has most of a row's weight, and less gradient passes through it than with the scale (0.19).",
        "With the scale they are 1.0, 0.220 and 0.26.",
    ]


def test_what_differs_is_not_called_much_the_same():
    rows = [*ROWS[:4], replace(ROWS[4]), replace(ROWS[5], largest_weight=0.3)]
    assert sentences(*rows)[1] == (
        "With the scale they are 1.0, 0.300 and 0.27, and at d_K 1 1.0, 0.200 and 0.25."
    )
    between = [*ROWS[:2], ROWS[2], replace(ROWS[3], largest_weight=0.3), *ROWS[4:]]
    assert "much as" not in sentences(*between)[1]
    assert "much as" in sentences(*ROWS)[1]


@pytest.mark.parametrize(
    ("largest", "gradient", "said"),
    [
        (0.9, 0.027, "the softmax is nearly one-hot, and almost no gradient passes through it (0.03)."),
        (0.9, 0.0271, "the softmax is nearly one-hot, and less gradient passes through it"),
        (0.89, 0.1, "one key has most of a row's weight, and less gradient passes through it"),
        (0.5, 0.1, "several keys share a row's weight, and less gradient passes through it"),
        (0.5, 0.3, "several keys share a row's weight, and more gradient passes through it"),
        (0.5, 0.27, "and as much gradient passes through it as with the scale (0.27)."),
    ],
)
def test_sentences_say_no_more_than_the_numbers(largest, gradient, said):
    without = replace(ROWS[4], largest_weight=largest, gradient_norm=gradient)
    assert said in sentences(*ROWS[:2], without, ROWS[5])[0]


def test_a_width_of_one_shows_nothing_and_says_so():
    assert sentences(*ROWS[:2]) == [
        "At d_K 1 the scale is 1/√1 = 1 and changes nothing. Use wider keys, such as widths=[1, 64, 1024], to see what it does."
    ]


def test_one_key_shows_nothing_and_says_so():
    (said,) = sentences(*ROWS, sizes={**SIZES, "n_K": 1})
    assert said.startswith("There is only one key, so its weight is 1 whatever its score is")


def test_scores_that_overflow_are_told():
    rows = [replace(row, variance=float("nan")) for row in ROWS]
    (said,) = sentences(*rows, dtype="float16")
    assert (
        said
        == "Some scores exceed the range of float16, so what is computed from them is NaN or infinite."
    )
    assert max(map(cell_len, printed(scaling(rows), 60).splitlines())) <= 60
