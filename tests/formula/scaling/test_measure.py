"""`measure_scaling`: the command `scaling` in Python."""

import pytest
import torch

from attnscope import measure_scaling
from attnscope.base.errors import OptionError, SizeError
from tests.sentences import without_sentences

FEW = {"batch": 2, "nq": 5, "nk": 6}
LINE = ["--batch", 2, "--nq", 5, "--nk", 6]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (FEW, LINE),
        (FEW | {"seed": 3, "dtype": "bfloat16"}, [*LINE, "--seed", 3, "--dtype", "bfloat16"]),
        ({"batch": 2, "nk": 1}, ["--batch", 2, "--nk", 1]),
        (FEW | {"draw": "uniform"}, [*LINE, "--draw", "uniform"]),
    ],
)
def test_the_measurements_are_what_the_command_prints_as_json(attnscope, options, line):
    printed = attnscope("scaling", "--dk", "16,1,16", *line, "--format", "json").json
    for widths in ([16, 1, 16], "16, 1,16"):
        measured = measure_scaling(widths, **options).to_dict()
        assert without_sentences(measured) == without_sentences(printed)


def test_a_measurement_is_had_by_its_width_and_scale():
    scaling = measure_scaling([1, 64], **FEW)
    assert scaling[64, True] == scaling.rows[3]
    with pytest.raises(KeyError):
        scaling[2, True]


def test_uniform_queries_and_keys_have_scores_with_the_variance_of_their_products():
    """The variance of a product of two independent values that are uniform in [0, 1) is 1/9 - 1/16."""
    scaling = measure_scaling([64], draw="uniform")
    assert scaling.draw == "uniform"
    assert repr(scaling) == "Scaling(d_K 64: with and without 1/√d_K, uniform, float32, seed 0)"
    assert scaling[64, True].variance == pytest.approx(1 / 9 - 1 / 16, rel=0.1)
    assert measure_scaling([64]).draw == "normal"


def test_torchs_random_state_stays_as_it_was():
    torch.manual_seed(7)
    before = torch.get_rng_state()
    measure_scaling([4], **FEW, seed=3)
    assert torch.equal(torch.get_rng_state(), before)


def test_mistakes_are_errors():
    with pytest.raises(OptionError, match="there is no width"):
        measure_scaling([])
    with pytest.raises(OptionError, match="'x' is not a width"):
        measure_scaling("1,x")
    with pytest.raises(SizeError, match="d_K is 0"):
        measure_scaling([0])


def test_it_is_saved_as_the_command_prints_it(tmp_path, attnscope):
    scaling = measure_scaling([1, 4], **FEW)
    for suffix, format in (("json", "json"), ("csv", "csv"), ("md", "markdown")):
        scaling.save(tmp_path / f"scaling.{suffix}")
        printed = attnscope("scaling", "--dk", "1,4", *LINE, "--format", format).out
        assert (tmp_path / f"scaling.{suffix}").read_text() == printed
