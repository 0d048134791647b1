"""Hints work when they are pasted: what they say to write parses, and does not lead to the same mistake.

Mistakes are collected from results, those of the documentation and of the tests. Those of the torture suite are
pasted where they run, in `torture/cases.py`.
"""

import shlex
import warnings
from itertools import combinations
from shutil import copytree

import pytest

import attnscope as library
from attnscope.base.arguments import declared_of
from tests.cli import test_mistakes
from tests.docs_examples import PAGES, examples_of, write_files
from tests.hints import faults_in_python, faults_of_hint, options_in, parts_of, pasted, said

OF_DOCS = [
    (page, command.partition(" | ")[0].partition(" > ")[0])
    for page in PAGES
    for command, shown in examples_of(page.read_text(encoding="utf-8"))
    if "attnscope: error:" in shown
]
OF_TESTS = sorted(
    {
        row[0]
        for test in vars(test_mistakes).values()
        for mark in getattr(test, "pytestmark", [])
        if mark.name == "parametrize"
        for row in mark.args[1]
        if isinstance(row, tuple) and isinstance(row[0], str)
    }
)
MORE = [
    'model minilm --text "the cat" --steps --head 3',
    'model minilm --text "the cat" --steps --query 0',
    'model minilm --text "the cat" --layer all --query 0',
    'model minilm --text "the cat" --rollout --head 1',
    "run --lr 3 x.py -v",
    "mask minilm",
    "heads minilm --text a --sort nope",
    "heads minilm --text a --reverse --top 0",
    "sdpa --mask-fill x --mask causal",
    "sdpa --align lengths",
    "sdpa --heads 4 --kv-heads 3",
    "mha --d-feat 10 --heads 3",
    "mha --rope --d-feat 6 --heads 2",
    "card minilm --bandwidth 1TB",
    "card minilm --dtype fp4",
    "audit minilm --window 0",
    "audit minilm --causal --bidirectional",
    "effects minilm --text a --answer b --metric nope",
    "compare minilm",
]


@pytest.fixture
def run(attnscope):
    """Return a function that runs a command line, and returns its stderr."""
    return lambda words: attnscope(*words).err


@pytest.mark.parametrize(("page", "command"), OF_DOCS, ids=str)
def test_a_hint_of_the_documentation_works_when_it_is_pasted(run, tmp_path, monkeypatch, page, command):
    monkeypatch.chdir(tmp_path)
    write_files(page.read_text(encoding="utf-8"))
    words = shlex.split(command)[1:]
    assert not list(faults_of_hint(words, run(words), run))


@pytest.mark.few(2)
@pytest.mark.parametrize("line", [*OF_TESTS, *MORE])
def test_a_hint_works_when_it_is_pasted(run, tmp_path, monkeypatch, line):
    monkeypatch.chdir(tmp_path)
    words = shlex.split(line)
    err = run(words)
    assert said(err), "it is no mistake"
    assert not list(faults_of_hint(words, err, run))


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("hint", "faults"),
    [
        ("--nq 3", 0),
        ("--nq x", 1),  # the same mistake
        ("--nope 3", 1),  # no option
        ("attnscope sdpa --nq y", 1),
        ("--nq 3, or --nq x", 1),  # one of two
        ("another size", 0),
        ("leave out --nq", 0),
        ("leave out --nk", 1),
    ],
)
def test_a_hint_that_does_not_help_is_found(run, hint, faults):
    line = ["sdpa", "--nq", "x", "--nk", "4"]
    assert said(run(line)).message == "--nq is 'x', but takes a whole number."
    err = f"attnscope: error: --nq is 'x', but takes a whole number.\n  try  {hint}\n"
    assert len(list(faults_of_hint(line, err, run))) == faults


def test_hints_are_read_as_users_read_them():
    assert parts_of('--text "a or b", or attnscope heads; --head 3 or 4') == [
        '--text "a or b"',
        "attnscope heads",
        "--head 3",
        "4",
    ]
    assert options_in("--dtype float32, to convert it", "sdpa") == [["--dtype", "float32"]]
    assert options_in("--truncate --max-length 3", "heads") == [["--truncate"], ["--max-length", "3"]]
    lines = [
        each
        for _, each in pasted(
            ["sdpa", "--n-q", "3"], said("attnscope: error: sdpa has no option --n-q.\n  try  --nq 3\n")
        )
    ]
    assert lines[0][0] == ["sdpa", "--nq", "3"]


# In Python.

CALLS = {
    "attention_maps": lambda **k: library.attention_maps("minilm", **{"text": "A cat."} | k),
    "compute": lambda **k: library.compute("mha", **{"d_feat": 12, "heads": 3, "batch": 2, "nq": 4} | k),
    "head_weights": lambda **k: library.head_weights("minilm", **k),
    "mask": lambda **k: library.mask("causal", **{"nq": 5} | k),
    "measure_scaling": lambda **k: library.measure_scaling([4, 8], **k),
    "worked_example": lambda **k: library.worked_example(**k),
}
WRONG = {
    "attention_maps": {
        "layers": "all", "heads": "all", "query": 0, "top": 0, "steps": True, "stats": True, "weigh": "x", "rollout": True,
        "pool": "mean", "target": "a", "generate": 0, "stack": "x", "device": "meta", "dtype": "fp16", "memory": 99, "pair": "a",
    },
    "compute": {
        "heads": 5, "kv_heads": 2, "mask": "x", "mask_fill": 1.0, "align": "lengths", "rope_theta": -1.0, "dtype": "fp16",
        "nk": 3, "past": 2, "layer": 0, "weights": "x", "dropout": 2.0, "softcap": -1.0, "stack": "x",
    },
    "head_weights": {"layer": 99, "head": 99, "stack": "x"},
    "mask": {"align": "lengths", "window": 0, "text": "a", "layers": 0, "block": "x", "cell": 0, "kernel": "x", "inputs": "x=T"},
    "measure_scaling": {"dtype": "fp16", "draw": "x", "nq": 0},
    "worked_example": {"query": 9, "q": "x", "mask": "x", "layout": "x"},
}  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize("function", CALLS)
def test_messages_and_hints_of_functions_can_be_written_in_python(function):
    """Each wrong value alone, and each two together: they have conflicts of their own."""
    names = declared_of(getattr(library, function))
    values = WRONG[function]
    calls = [{name: values[name] for name in each} for n in (1, 2) for each in combinations(values, n)]
    errors, faults = 0, []
    for arguments in calls:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                CALLS[function](**arguments)
        except library.AttnscopeError as error:
            errors += 1
            faults += faults_in_python(names, error.message, error.hint)
    assert errors > len(values) / 2
    assert not faults


def test_a_hint_that_python_cannot_have_is_found():
    assert list(faults_in_python({"steps"}, "x.", 'steps=True --show "a"')) == [
        '--show is no keyword: steps=True --show "a"'
    ]
    assert list(faults_in_python({"steps"}, "x.", "stepz=True")) == ["stepz is no parameter: stepz=True"]
    assert not list(faults_in_python({"heads"}, "x.", 'attnscope heads x --head 3; heads="all"'))


@pytest.mark.parametrize(("layers", "heads"), [("all", None), (0, "all"), ("0-1", [0, 3])])
def test_a_selection_of_heads_is_named_as_python_writes_it(layers, heads):
    with pytest.raises(library.AttnscopeError) as caught:
        library.attention_maps("minilm", "A cat.", query=0, layers=layers, heads=heads)
    selection = caught.value.message.removeprefix("query is for one head, and ").removesuffix(
        " are several."
    )
    assert set(eval(f"dict({selection})")) == {"layers", "heads"}


def test_a_printed_hint_does_not_redirect(attnscope, tmp_path):
    """In bash, `--input ids=B,T@int64<100` would read a file that is called 100."""
    code = tmp_path / "code.py"
    code.write_text("def look(table, ids):\n    return table[ids]\n")
    r = attnscope("trace", f"{code}:look", "--input", "table=9,4", "--input", "ids=B:2,T:3@int64")
    assert said(r.err).hint == '--input "ids=B:2,T:3@int64<100"'


def test_a_folder_with_a_space_is_quoted_in_a_hint(attnscope, saved, tmp_path):
    folder = tmp_path / "my models" / "mamba"
    copytree(saved("mamba"), folder)
    for command in (["model", folder, "--text", "the cat"], ["bert", folder, "--model", "minilm"]):
        hint = said(attnscope(*command).err).hint
        if folder.name in hint:
            assert f'"{folder}"' in hint
    assert f'"{folder}"' in hint
