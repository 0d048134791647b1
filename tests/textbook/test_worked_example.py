"""`worked_example`: the command `example` in Python."""

import numpy as np
import pytest
import torch

from attnscope import worked_example
from attnscope.errors import FileError, OptionError, SizeError


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
    with pytest.raises(SizeError, match="there is no query 4: n_Q is 4, so they are 0 to 3"):
        worked_example(query=4)
    with pytest.raises(OptionError, match="--layout is 'nope'"):
        worked_example("nope")


def test_it_is_a_table_and_a_file(tmp_path, attnscope):
    pytest.importorskip("pandas")
    example = worked_example()
    table = example.to_pandas()
    assert list(table.loc["columns"]["name"])[-3:] == ["scores", "attention", "out"]
    example.save(tmp_path / "example.md")
    printed = attnscope("example", "--format", "markdown").out
    assert (tmp_path / "example.md").read_text() == printed
    with pytest.raises(FileError, match=r"WorkedExample cannot be written as \.npz"):
        example.save(tmp_path / "example.npz")
