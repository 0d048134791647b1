"""The file of `heads --checkpoint`, changed or replaced: it counts as damaged, and is kept."""

import io
import json

import numpy as np
import pytest

pytestmark = [pytest.mark.torture, pytest.mark.slow]


def held(content: bytes) -> tuple[dict, dict]:
    """What a run's file says, and its arrays."""
    with np.load(io.BytesIO(content)) as stored:
        arrays = {name: stored[name] for name in stored.files}
    return json.loads(str(arrays.pop("about"))), arrays


def write(path, about, arrays):
    with path.open("wb") as file:
        np.savez(file, about=np.array(about if isinstance(about, str) else json.dumps(about)), **arrays)


def test_numbers_that_someone_changed_mean_damaged(cases, run_file):
    path, options, whole = run_file
    about, arrays = held(whole)
    for name in about:
        write(path, {**about, name: "x"}, arrays)
        cases.run(*options, "--format", "json", statuses=[2], what=f"{name} is x")
    for name in arrays:
        write(path, about, {**arrays, name: arrays[name] + 1})
        cases.run(*options, statuses=[2], what=f"one more in {name}")
    write(path, about, arrays)
    cases.run(*options, statuses=[2], what="a copy that numpy wrote")


@pytest.mark.parametrize(
    "about", ["", "[]", "null", "3", "{", '{"schema": "attnscope.run/1"}', "x" * 10_000, "\x1b[2J"]
)
def test_a_file_that_says_something_else_is_no_run(cases, run_file, about):
    path, options, whole = run_file
    write(path, about, held(whole)[1])
    cases.run(*options, statuses=[2], what=f"about is {about[:40]!r}")


def test_a_file_without_what_it_needs_is_no_run(cases, run_file):
    path, options, whole = run_file
    _, arrays = held(whole)
    for names in ([], ["about"], ["nope"], [*arrays][:1]):
        with path.open("wb") as file:
            np.savez(file, **{name: arrays.get(name, np.array(3)) for name in names})
        cases.run(*options, statuses=[2], what=f"it holds {names}")
    for content in (b"", b"PK", b"\x93NUMPY", b"{}", b"\x80\x04N."):
        path.write_bytes(content)
        cases.run(*options, statuses=[2], what=f"it is {content!r}")
