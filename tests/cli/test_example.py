"""`attnscope example`, on the command line; its numbers are computed here with numpy alone."""

import numpy as np
import pytest

X = np.array([[1, 1, 1, 0], [1, 2, 1, 0], [0, 1, 0, 1], [0, 1, 1, 0]])
W_Q = np.array([[1, 0, 1], [1, 1, 1], [0, 0, 1], [1, 0, 0]])
W_K = np.array([[1, 0, 0], [1, 1, 1], [1, 0, 1], [0, 1, 0]])
W_V = np.array([[1, 2, 0], [1, 3, 1], [1, 0, 2], [1, 1, 0]])
Q, K, V = X @ W_Q, X @ W_K, X @ W_V
SCORES = Q @ K.T / np.sqrt(3)
WEIGHTS = np.exp(SCORES) / np.exp(SCORES).sum(axis=1, keepdims=True)
OUT = WEIGHTS @ V
STEPS = {"X": X, "W_Q": W_Q, "W_K": W_K, "W_V": W_V, "Q": Q, "K": K, "V": V}
STEPS |= {"scores": SCORES, "attention": WEIGHTS, "out": OUT}


@pytest.fixture(scope="module")
def runs() -> dict:
    """Return the runs of this file, by their arguments."""
    return {}


@pytest.fixture
def example(attnscope, runs):
    """Return a function that runs `attnscope example`, once per arguments for all tests of this file."""

    def run(*arguments):
        if arguments not in runs:
            runs[arguments] = attnscope("example", *arguments)
        return runs[arguments]

    return run


def values(form):
    return {each["name"]: np.array(each["values"]) for each in form["values"]}


def test_the_first_row_of_the_result_is_the_known_one(example):
    r = example()
    assert (r.exit_status, r.err) == (0, "")
    assert np.allclose(OUT[0], [3.9492, 7.8588, 3.9577], atol=5e-5)
    assert "q0  3.9492  7.8588  3.9577" in r.out


def test_every_number_of_every_form_is_right(example):
    rows, columns, one = example("--format", "json").json["forms"]
    for name, expected in STEPS.items():
        np.testing.assert_allclose(values(rows)[name], expected, rtol=0, atol=1e-12)
        np.testing.assert_allclose(values(columns)[name], expected.T, rtol=0, atol=1e-12)
    vectors = values(one)
    np.testing.assert_allclose(vectors["q"][:, 0], Q[0])
    np.testing.assert_allclose(vectors["scores"][:, 0], SCORES[0], rtol=0, atol=1e-12)
    np.testing.assert_allclose(vectors["terms"], WEIGHTS[0][:, None] * V, rtol=0, atol=1e-12)
    np.testing.assert_allclose(vectors["out"], OUT[0], rtol=0, atol=1e-12)


def test_the_forms_are_held_against_each_other(example):
    rows, columns, one = example("--format", "json").json["forms"]
    assert rows["checks"] == []
    for form, name in (
        (columns, "out, transposed, is out by rows"),
        (one, "out is row 0 of out by rows"),
    ):
        (check,) = form["checks"]
        assert (check["name"], check["ok"]) == (name, True)
        assert check["max_abs_diff"] <= 1e-12


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("arguments", "titles"),
    [
        ([], ["by rows", "by columns", "query 0"]),
        (["--layout", "rows"], ["by rows"]),
        (["--layout", "columns"], ["by columns"]),
        (["--query", 2], ["query 2"]),
        (["--layout", "columns", "--query", 1], ["by columns", "query 1"]),
    ],
)
def test_each_form_can_be_had_alone(example, arguments, titles):
    forms = example(*arguments, "--format", "json").json["forms"]
    assert [form["title"][: len(title)] for form, title in zip(forms, titles, strict=True)] == titles


@pytest.mark.few(2)
@pytest.mark.parametrize("query", range(4))
def test_one_query_is_a_row_of_the_whole(example, query):
    (form,) = example("--query", query, "--format", "json").json["forms"]
    np.testing.assert_allclose(values(form)["out"], OUT[query], rtol=0, atol=1e-12)
    assert form["checks"][0]["name"] == f"out is row {query} of out by rows"


@pytest.mark.few(1)
@pytest.mark.parametrize("form", [["--layout", "rows"], ["--layout", "columns"], ["--query", 0]])
def test_one_number_of_each_step_is_worked_out_by_hand(example, form):
    out = example(*form).out
    assert "q0 and k0: 2·3 + 1·1 + 3·2 = 13, and 13 / √3 = 7.5056" in out
    assert "e^7.5056 / (e^7.5056 + e^10.9697 + e^4.0415 + e^6.3509) = 0.0300" in out
    assert "The first number of q0: 0.0300·3 + 0.9596·4 + 0.0009·2 + 0.0095·2 = 3.9492" in out


def test_it_can_be_had_without_words(example):
    r = example("--no-explain", "--format", "json")
    assert all(step["why"] is None for form in r.json["forms"] for step in form["steps"])
    assert "by hand" not in example("--no-explain").out


def test_markdown_holds_the_same_numbers(example):
    r = example("--format", "markdown")
    assert r.out.startswith("## by rows")
    assert "3.9492  7.8588  3.9577" in r.out
    assert "| out, transposed, is out by rows |" in r.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--query", 4], "there is no query 4: n_Q is 4, so they are 0 to 3."),
        (["--query", -1], "there is no query -1: n_Q is 4, so they are 0 to 3."),
        (["--format", "csv"], "csv holds one table, and the example has many."),
    ],
)
def test_a_mistake_gets_a_clear_line(example, arguments, message):
    r = example(*arguments)
    assert (r.exit_status, r.out) == (2, "")
    assert r.err.splitlines()[0] == f"attnscope: error: {message}"
