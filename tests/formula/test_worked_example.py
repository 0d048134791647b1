"""`worked_example`: the command `example` in Python."""

import numpy as np
import pytest
import torch

from attnscope import worked_example
from attnscope.base.errors import FileError, OptionError, SizeError
from attnscope.base.spelling import Flags, use_notation


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({}, []),
        ({"layout": "columns", "query": 1}, ["--layout", "columns", "--query", 1]),
        ({"query": 3, "explain": False}, ["--query", 3, "--no-explain"]),
    ],
)
def test_the_example_is_what_the_command_prints_as_json(attnscope, options, line):
    assert worked_example(**options).to_dict() == attnscope("example", *line, "--format", "json").json


def test_forms_are_had_by_name_with_their_tensors():
    example = worked_example()
    assert list(example.forms) == ["rows", "columns", "query"]
    assert torch.equal(example["columns"]["out"].tensor.mT, example["rows"]["out"].tensor)
    np.testing.assert_array_equal(example["rows"]["V"].tensor[0], [3, 5, 3])
    with pytest.raises(KeyError):
        worked_example(layout="rows")["query"]


def test_what_there_is_not_is_refused():
    with pytest.raises(SizeError, match="there is no query 4: n_Q is 4, so queries are 0 to 3"):
        worked_example(query=4)
    with pytest.raises(OptionError, match="layout is 'nope'"):
        worked_example("nope")


@pytest.mark.sweep
def test_matrices_may_be_lists_arrays_tensors_texts_and_files(tmp_path):
    rows = [[1, 0], [0.5, -1], [2, 2]]
    np.save(tmp_path / "x.npy", np.array(rows))
    weights = {name: [[1, 2], [3, 4]] for name in ("wq", "wk", "wv")}
    kinds = [rows, np.array(rows), torch.tensor(rows), "[[1, 0], [.5, -1], [2, 2]]", tmp_path / "x.npy"]
    examples = [worked_example(x=kind, **weights) for kind in kinds]
    assert all(example.to_dict() == examples[0].to_dict() for example in examples)
    np.testing.assert_array_equal(examples[0]["rows"]["Q"].tensor, np.array(rows) @ [[1, 2], [3, 4]])
    assert all(check.ok for trace in examples[0].forms.values() for check in trace.checks or [])


def test_the_forms_of_large_numbers_agree_within_rounding():
    rng = np.random.default_rng(0)
    x, *weights = (rng.uniform(-1e6, 1e6, shape) for shape in [(12, 12)] * 4)
    example = worked_example(x=x, wq=weights[0], wk=weights[1], wv=weights[2], mask="causal")
    assert all(check.ok for trace in example.forms.values() for check in trace.checks or [])


def test_a_query_that_sees_no_key_has_no_number_to_work_out():
    example = worked_example(mask=np.zeros((4, 4), dtype=bool))
    assert example["rows"]["out"].tensor.isnan().all()
    assert "q0 and k0: e^" not in example["rows"]["attention"].why


@pytest.mark.parametrize(
    ("matrices", "error", "message"),
    [
        (
            {"x": [[1, 2], [3]]},
            OptionError,
            "the argument x has rows of different lengths: row 0 has 2, row 1",
        ),
        (
            {"wv": [[float("nan")] * 3] * 4},
            OptionError,
            "W_V in the argument wv has nan in row 0, column 0",
        ),
        (
            {"wk": np.ones((3, 3))},
            SizeError,
            "W_K in the argument wk has d_feat 3 .* but X in the example",
        ),
        (
            {"x": torch.ones(1, 4, 4)},
            SizeError,
            "X in the argument x is 1×4×4, and the example takes matrices",
        ),
        ({"x": [["1", "a"]]}, OptionError, "the argument x is stored as str"),
    ],
)
def test_a_mistake_in_a_matrix_is_refused_with_its_values(matrices, error, message):
    with pytest.raises(error, match=message):
        worked_example(**matrices)


def test_it_is_a_table_and_a_file(tmp_path, attnscope):
    pytest.importorskip("pandas")
    example = worked_example()
    table = example.to_pandas()
    assert list(table.loc["columns"]["name"])[-3:] == ["scores", "attention", "out"]
    with use_notation(Flags()):
        example.save(tmp_path / "example.md")
    printed = attnscope("example", "--format", "markdown").out
    assert (tmp_path / "example.md").read_text() == printed
    with pytest.raises(FileError, match=r"WorkedExample cannot be written as \.npz"):
        example.save(tmp_path / "example.npz")
