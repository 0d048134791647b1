"""Code shared by the tests of several commands."""

import pytest


@pytest.fixture
def assert_same_rows(attnscope):
    """Return a function that asserts that a command's dry run shows the rows of its real run."""

    def check(command, arguments):
        """Return the JSON of both runs, without fields that the contract does not cover."""
        real = attnscope(command, *arguments, "--format", "json").json
        dry = attnscope(command, *arguments, "--dry-run", "--format", "json").json
        for step in real["steps"] + dry["steps"]:
            del step["fresh_bytes"], step["line"], step["strides"]
        for key in ("device", "seed"):
            assert dry.pop(key) is None
            del real[key]
        assert real == dry
        wide = ["--format", "markdown"]
        shown = [
            attnscope(command, *arguments, *more, *wide).out.splitlines() for more in ([], ["--dry-run"])
        ]
        tables = [[line for line in lines if line.startswith("|")] for lines in shown]
        assert tables[0] == tables[1]

    return check
