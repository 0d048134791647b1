"""`attnscope example`, on the command line; its numbers are computed here with numpy alone."""

import json
from io import StringIO

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

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


MATRIX = "  try  [[1, 0], [0, 1]]: a list of rows, all of the same length"
LISTS = '  try  "[[1,2],[3,4]]", or a file that ends in .npy, .npz, .pt, .pth, .safetensors'
"""Hints about texts."""


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
        (columns, "out, transposed, equals out by rows"),
        (one, "out equals row 0 of out by rows"),
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
    assert form["checks"][0]["name"] == f"out equals row {query} of out by rows"


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
    assert "| out, transposed, equals out by rows |" in r.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--query", 4], "there is no query 4: n_Q is 4, so queries are 0 to 3."),
        (["--query", -1], "there is no query -1: n_Q is 4, so queries are 0 to 3."),
        (["--format", "csv"], "csv holds one table, and the example has many."),
    ],
)
def test_a_mistake_gets_a_clear_line(example, arguments, message):
    r = example(*arguments)
    assert (r.exit_status, r.out) == (2, "")
    assert r.err.splitlines()[0] == f"attnscope: error: {message}"


def test_every_number_is_printed_once_and_all_of_it_fits_in_100_lines(attnscope):
    out = attnscope("example").out
    assert out.count("7.5056  10.9697") == 1
    assert "3.9492  3.9924" not in out  # out by columns
    assert "= W_Q @ X" in out
    assert "\nthe same numbers as above; --layout columns prints them in this form\n" in out
    assert "terms  n_K d_V  4×3  = attention * V" in out
    assert "  k0   7.5056\n" not in out  # the scores of one query, which are a row
    assert "10.9697  16.1658  7.5056" in attnscope("example", "--layout", "columns").out
    assert "  k0   7.5056\n" in attnscope("example", "--query", 0).out


def test_in_80_columns_it_has_less_than_100_lines_and_matrices_stand_side_by_side(monkeypatch):
    from rich.console import Console

    from attnscope import worked_example
    from attnscope.document.terminal import print_document

    example = worked_example()
    for width, together in [(80, True), (60, False)]:
        console = Console(width=width, force_terminal=True, color_system=None, file=StringIO())
        print_document(example.document(), console)
        lines = console.file.getvalue().splitlines()
        assert max(map(len, lines)) <= width
        assert (
            "W_Q  d_feat d_K  4×3    W_K  d_feat d_K  4×3    W_V  d_feat d_V  4×3" in lines
        ) == together
        assert len(lines) < (100 if together else 130)


OWN = {
    "x": [[1, 2], [0, -1], [0.5, 0]],
    "wq": [[1], [2]],
    "wk": [[0], [1]],
    "wv": [[1, 0, 2], [0, 1, 0]],
}


def flags(matrices):
    return [part for name, rows in matrices.items() for part in (f"--{name}", json.dumps(rows))]


@pytest.mark.parametrize("layout", ["rows", "columns", "query"])
def test_numbers_may_be_the_users_own(attnscope, layout):
    X, *weights = (np.array(rows, dtype=float) for rows in OWN.values())
    Q, K, V = (X @ W for W in weights)
    powers = np.exp(Q @ K.T)
    out = powers / powers.sum(axis=1, keepdims=True) @ V
    own = {name: np.array(rows).T.tolist() for name, rows in OWN.items()} if layout == "columns" else OWN
    form = ["--query", 1] if layout == "query" else ["--layout", layout]
    (document,) = attnscope("example", *flags(own), *form, "--format", "json").json["forms"]
    expected = {"rows": out, "columns": out.T, "query": out[1]}[layout]
    np.testing.assert_allclose(values(document)["out"], expected, rtol=0, atol=1e-12)
    assert all(check["ok"] for check in document["checks"])


def test_negative_numbers_and_another_scale_are_worked_out_by_hand(attnscope):
    r = attnscope("example", *flags(OWN), "--scale", 0.5, "--query", 1)
    assert "q1 and k0: (-2)·2 = -4, and (-4)·0.5 = -2.0000" in r.out
    assert "Σ_j softmax_j(k_j·q·scale) v_j" in r.out


def test_queries_keys_and_values_may_be_given_themselves(attnscope):
    own = {"q": [[1, 0]], "k": [[1, 0], [0, 1], [1, 1]], "v": [[1], [2], [3]]}
    rows, *_ = attnscope("example", *flags(own), "--format", "json").json["forms"]
    assert rows["sizes"] == {"n_Q": 1, "n_K": 3, "d_K": 2, "d_V": 1}
    assert [step["name"] for step in rows["steps"]] == ["Q", "K", "V", "scores", "attention", "out"]


@pytest.mark.few(1)
@pytest.mark.parametrize("mask", ["causal", "[[1,0,0,0],[1,1,0,0],[1,1,1,0],[1,1,1,1]]"])
def test_a_mask_hides_keys_in_every_form(attnscope, mask):
    r = attnscope("example", "--mask", mask)
    assert (r.exit_status, r.err) == (0, "")
    assert "q0 and k0: e^7.5056 / (e^7.5056) = 1.0000" in r.out
    rows, columns, one = attnscope("example", "--mask", mask, "--format", "json").json["forms"]
    assert values(rows)["attention"][0].tolist() == [1, 0, 0, 0]
    assert values(columns)["attention"][:, 0].tolist() == [1, 0, 0, 0]
    assert values(one)["attention"][:, 0].tolist() == [1, 0, 0, 0]


def test_by_columns_a_mask_is_keys_by_queries(attnscope):
    mask = "[[1,1],[0,1]]"
    own = flags({"q": [[1, 2]], "k": [[3, 4]], "v": [[5, 6]]})
    (columns,) = attnscope("example", *own, "--mask", mask, "--layout", "columns", "-f", "json").json[
        "forms"
    ]
    assert values(columns)["attention"][:, 0].tolist() == [1, 0]


@pytest.mark.parametrize("name", ["x.npy", "x.npz", "x.pt", "x.safetensors"])
def test_matrices_are_read_from_files(attnscope, tmp_path, name):
    array = np.arange(8.0).reshape(2, 4) / 8
    path = tmp_path / name
    save = {
        ".npy": lambda: np.save(path, array),
        ".npz": lambda: np.savez(path, X=array, other=array),
        ".pt": lambda: torch.save(torch.from_numpy(array), path),
        ".safetensors": lambda: save_file({"X": torch.from_numpy(array)}, path),
    }
    save[path.suffix]()
    rows, *_ = attnscope("example", "--x", path, "--format", "json").json["forms"]
    np.testing.assert_array_equal(values(rows)["X"], array)
    np.testing.assert_array_equal(values(rows)["Q"], array @ W_Q)


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (
            ["--x", "[[1,2],[3]]"],
            ["X has rows of different lengths: row 0 has 2, row 1 has 1.", MATRIX],
        ),
        (["--x", "[[1,a]]"], ["X is [[1,a]], and not numbers in rows.", MATRIX]),
        (["--x", "[]"], ["X is [], and not numbers in rows.", MATRIX]),
        (
            ["--x", "[[1,2,3]]"],
            [
                "W_Q in the example has d_feat 4 (axis 0 of 4×3), but X in [[1,2,3]] has d_feat 3"
                " (axis 1 of 1×3).",
                "  try  --wq, --wk, --wv too: without them, the example's own are used",
            ],
        ),
        (
            ["--x", "[[1,2,1e400,4]]"],
            [
                "X in [[1,2,1e400,4]] has inf in row 0, column 2, and the example takes numbers from"
                " -1e+06 to 1e+06.",
                "  try  attnscope sdpa --x … --numbers",
            ],
        ),
        (
            ["--wq", json.dumps([[0] * 13] * 4)],
            [
                "W_Q in [[0, 0, 0, 0, 0, 0, … 0, 0, 0, 0, 0, 0]] is 4×13, and the example shows every number:"
                " it takes at most 12 rows and 12 columns.",
                "  try  attnscope sdpa --wq … --numbers",
            ],
        ),
        (
            ["--v", "[1,2]"],
            ["V in [1,2] is 2, and the example takes matrices.", "  try  two axes, as [[1, 0], [0, 1]]"],
        ),
        (
            ["--q", "[[1]]", "--v", "[[1]]"],
            [
                "Q, K and V belong together, and there is no --k.",
                '  try  --k "[[1,2],[3,4]]"',
            ],
        ),
        (
            ["--q", "[[1]]", "--x", "[[1]]"],
            [
                "--x gives the embeddings that Q, K and V are projected from, but --q gives Q directly.",
                "  try  one of --x and --q",
            ],
        ),
        (
            ["--q", "1 2; 3 4"],
            ["Q is '1 2; 3 4', which is neither a file nor a matrix.", '  try  "[[1,2],[3,4]]"'],
        ),
        (
            ["--q", "[[1 2]\n [3 4.5]]"],
            ["Q is [[1 2]\\n [3 4.5]], and not numbers in rows.", '  try  "[[1,2],[3,4.5]]"'],
        ),
        (["--q", "1 2; x 4"], ["Q is '1 2; x 4', which is neither a file nor a matrix.", LISTS]),
        (["--mask", "1 0; 1 1"], ["'1 0; 1 1' is not a mask.", '  try  --mask "[[1,0],[1,1]]"']),
        (
            ["--mask", "[[1,0],[1,1]]"],
            ["mask in [[1,0],[1,1]] has n_Q 2 (axis 0 of 2×2), but the scores have n_Q 4."],
        ),
    ],
)
def test_a_mistake_in_a_matrix_gets_one_line_with_values(attnscope, arguments, lines):
    r = attnscope("example", *arguments)
    assert (r.exit_status, r.out) == (2, "")
    assert r.err.splitlines() == [f"attnscope: error: {lines[0]}", *lines[1:]]
