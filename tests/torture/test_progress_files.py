"""The file of `heads --checkpoint`, field by field of wrong type, range or shape: it counts as damaged, and is kept."""

import io
import json

import numpy as np
import pytest

pytestmark = [pytest.mark.torture, pytest.mark.slow]

WRONG = [None, True, -1, 2.5, 10**30, "x", "\x1b[31m\n", [], [1, 2, 3, 4, 5], {}, {"self": 3}]
FIELDS = (
    "schema settings lines offset skipped first_skipped share done why_eager sequences tokens cut empty layers"
    " heads measured"
).split()
RIGHT = {
    "done": {"True"},
    "why_eager": {"None", "'x'", "'\\x1b[31m\\n'"},
    "first_skipped": {"None", "[]"},
    "share": {"None"},
}
"""Of these values, those that a field may have: the run then goes on, or is of another corpus."""


def held(content: bytes) -> tuple[dict, dict]:
    """What a run's file says, and its arrays."""
    with np.load(io.BytesIO(content)) as stored:
        arrays = {name: stored[name] for name in stored.files}
    return json.loads(str(arrays.pop("about"))), arrays


def write(path, about, arrays):
    with path.open("wb") as file:
        np.savez(file, about=np.array(about if isinstance(about, str) else json.dumps(about)), **arrays)


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_of_wrong_kind_means_damaged(cases, run_file, name):
    path, options, whole = run_file
    about, arrays = held(whole)
    for value in WRONG:
        right = repr(value) in RIGHT.get(name, ())
        if value == about[name] or right:
            continue
        write(path, {**about, name: value}, arrays)
        cases.run(*options, "--format", "json", statuses=[2], what=f"{name} is {value!r}")


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_that_is_missing_means_damaged(cases, run_file, name):
    path, options, whole = run_file
    about, arrays = held(whole)
    write(path, {key: value for key, value in about.items() if key != name}, arrays)
    cases.run(*options, statuses=[2], what=f"no {name}")


NESTED = {
    "a layer more than the model has": lambda about: about["layers"].update(self=[3, 3]),
    "no layers": lambda about: about["layers"].update(self=[0, 0]),
    "layers in words": lambda about: about["layers"].update(self=["two", "three"]),
    "a stack of another name": lambda about: about.update(layers={"nope": [2, 3]}),
    "heads of no number": lambda about: about["heads"][0].__setitem__(2, -3),
    "heads in words": lambda about: about["heads"][0].__setitem__(2, "three"),
    "a layer in words": lambda about: about["heads"][0].__setitem__(1, "first"),
    "a layer twice": lambda about: about["measured"].append(about["measured"][0]),
    "a layer that was not measured": lambda about: about["measured"].append(["self", 7]),
    "a layer that was measured and is not told of": lambda about: about["measured"].pop(),
    "no layer measured": lambda about: about.update(measured=[]),
    "another set of heads": lambda about: about.update(heads=about["heads"][:1]),
    "the first line that was skipped, in words": lambda about: about.update(first_skipped=["one", 2]),
    "a skipped line before the first": lambda about: about.update(skipped=1, first_skipped=[-3, "is not UTF-8"]),
    "escapes in why a line was skipped": lambda about: about.update(skipped=1, first_skipped=[1, "is \x1b[2Jgone\n"]),
    "escapes in why it ran eager": lambda about: about.update(why_eager="because \x1b[2J\n"),
    "more skipped than lines": lambda about: about.update(skipped=10**6),
    "more texts than lines": lambda about: about.update(sequences=10**9),
    "more cut than texts": lambda about: about.update(cut=10**9),
    "fewer tokens than texts": lambda about: about.update(tokens=0),
    "no texts": lambda about: about.update(sequences=0),
    "an offset within a line": lambda about: about.update(offset=about["offset"] + 10**6, done=False),
    "lines that are not there": lambda about: about.update(lines=10**6, done=False),
    "a share of 7": lambda about: about.update(share=7),
    "NaN as share": lambda about: about.update(share=float("nan")),
    "not done": lambda about: about.update(done=0),
    "settings without a name": lambda about: about["settings"].pop("model"),
    "settings in a list": lambda about: about.update(settings=[]),
    "metrics of another name": lambda about: about["settings"].update(metrics=["nope"]),
    "weights as a number": lambda about: about["settings"].update(weights=3),
    "escapes among the settings": lambda about: about["settings"].update(corpus="\x1b[2J\n.txt"),
    "very long settings": lambda about: about["settings"].update(corpus="x" * 100_000),
}  # fmt: skip
EITHER = {
    "escapes in why a line was skipped", "escapes in why it ran eager", "lines that are not there", "not done",
    "a layer that was measured and is not told of", "another set of heads", "fewer tokens than texts",
    "a layer more than the model has",  # one that does not attend, as hybrids have
}  # fmt: skip
"""What nobody can tell from a run, or need not: it may go on."""


@pytest.mark.parametrize("what", NESTED)
def test_a_field_within_of_wrong_kind_means_damaged(cases, run_file, what):
    path, options, whole = run_file
    about, arrays = held(whole)
    NESTED[what](about)
    write(path, about, arrays)
    either = what in EITHER
    may_change = [path] if either else []
    cases.run(*options, statuses=[0, 2] if either else [2], may_change=may_change, what=what)


ARRAYS = {
    "an axis less": lambda a: a[0],
    "an axis more": lambda a: a[None],
    "no heads": lambda a: a[:0],
    "a head more": lambda a: np.concatenate([a, a[:1]]),
    "a metric less": lambda a: a[:, 1:],
    "five sums": lambda a: a[..., :5],
    "seven sums": lambda a: np.concatenate([a, a[..., :1]], -1),
    "one number": lambda a: np.array(1.0),
    "float32": lambda a: a.astype("float32"),
    "whole numbers": lambda a: a.astype("int64"),
    "complex numbers": lambda a: a.astype("complex128"),
    "words": lambda a: a.astype(str),
    "truths": lambda a: a.astype(bool),
    "NaN": lambda a: np.full_like(a, np.nan),
    "infinity": lambda a: np.full_like(a, np.inf),
    "negative sums": lambda a: -a - 1,
    "the other byte order": lambda a: a.astype(">f8"),
    "objects": lambda a: np.array([{}, None], dtype=object),
    "dates": lambda a: a.astype("datetime64[s]"),
    "transposed": lambda a: a.T,
    "in Fortran's order": np.asfortranarray,
}
SAME = {"in Fortran's order", "the other byte order"}
"""These hold the same numbers."""


@pytest.mark.parametrize("what", ARRAYS)
def test_sums_of_wrong_shape_or_kind_mean_damaged(cases, run_file, what):
    path, options, whole = run_file
    about, arrays = held(whole)
    name = sorted(arrays)[0]
    with np.errstate(all="ignore"):
        write(path, about, {**arrays, name: ARRAYS[what](arrays[name])})
    same = what in SAME
    cases.run(*options, statuses=[0, 2] if same else [2], may_change=[path] if same else [], what=what)


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
