"""In Python, errors, warnings and results speak of keywords; on the command line of flags."""

import atexit
import pickle
import re
import sys
import warnings
from inspect import signature

import pytest
import torch

import attnscope as library
from attnscope.base.errors import AttnscopeError, OptionError, OptionWarning
from attnscope.base.keywords import in_keywords

PARAMETERS = {
    "heads": "Indices",
    "causal": "bool",
    "bidirectional": "bool",
    "bias": "bool | None",
    "window": "int | None",
    "init": "Texts | None",
    "inputs": "Texts | None",
    "dtype": "str | None",
    "ids": "str | Sequence[int] | None",
    "text": "str | None",
    "masked_rows": "str",
    "layers": "Indices",
}


@pytest.mark.parametrize(
    ("flags", "keywords"),
    [
        ("--causal, --bidirectional or --window N", "causal=True, bidirectional=True or window=N"),
        ("--head 11", "heads=11"),
        ("--head 3, 0-3, 0,2 or all", 'heads=3, "0-3", "0,2" or "all"'),
        ("--input x=2,10,64", 'inputs={"x": "2,10,64"}'),
        ("--init d=8 --init h=2 --input x=B:2,T,d", 'init={"d": 8, "h": 2}, inputs={"x": "B:2,T,d"}'),
        ("--init batch_first=True", 'init={"batch_first": True}'),
        ("--dtype float32, float16", 'dtype="float32", "float16"'),
        ("--ids 101,2023,102", "ids=[101, 2023, 102]"),
        ('--text "The cat sat."', 'text="The cat sat."'),
        ("leave out --no-bias", "leave out bias=False"),
        ("attnscope heads x --head 3; or --head 3", "attnscope heads x --head 3; or heads=3"),
        ("another dtype, or pip install --user x", "another dtype, or pip install --user x"),
    ],
)
def test_a_hint_is_what_to_write_in_python(flags, keywords):
    assert in_keywords(flags, PARAMETERS, is_hint=True) == keywords


@pytest.mark.parametrize(
    ("flags", "keywords"),
    [
        ("--causal and --bidirectional exclude each other.", "causal and bidirectional exclude each other."),
        ("f needs a, which --input does not give.", "f needs a, which inputs does not give."),
        ("--input x says that T is 5", 'inputs["x"] says that T is 5'),
        ("--window is 0", "window is 0"),
        ("they are NaN (--masked-rows nan), and so", 'they are NaN (masked_rows="nan"), and so'),
        ("--causal", "causal=True"),
        ("--window 4", "window=4"),
        ("--layer 2 is a layer of a model", "layers=2 is a layer of a model"),
        ("--layer all --head 0 are several.", 'layers="all", heads=0 are several.'),
        ("--layer 0 --head all are several.", 'layers=0, heads="all" are several.'),
        ("--layer 0-3 --head 1,2 are several.", 'layers="0-3", heads="1,2" are several.'),
        ("vLLM with --disable-hybrid-kv-cache-manager", "vLLM with --disable-hybrid-kv-cache-manager"),
        ("a--b and --", "a--b and --"),
    ],
)  # fmt: skip
def test_a_sentence_names_keywords(flags, keywords):
    assert in_keywords(flags, PARAMETERS) == keywords


def test_an_error_speaks_of_keywords_and_the_command_of_flags(attnscope):
    with pytest.raises(OptionError) as caught:
        library.audit("minilm", causal=True, bidirectional=True)
    assert str(caught.value).startswith("causal and bidirectional exclude each other.")
    failed = attnscope("audit", "minilm", "--causal", "--bidirectional")
    assert failed.exit_status == 2
    assert "--causal and --bidirectional exclude each other." in failed.err


def test_a_warning_speaks_of_keywords_and_the_command_of_flags(attnscope):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        library.dry_run("sdpa", mask_fill=-1.0)
    assert [str(each.message) for each in caught if each.category is OptionWarning] == [
        "mask_fill has no effect: there is no mask (mask)"
    ]
    assert "--mask-fill has no effect" in attnscope("sdpa", "--dry-run", "--mask-fill", "-1").err


def test_a_result_speaks_of_keywords_and_the_record_of_the_command_of_flags(attnscope, tmp_path):
    (tmp_path / "m.py").write_text("def f(x):\n    return x.cumsum(1)\n")
    options = {"inputs": ["x=B:2,T:5,d:3"], "causal": True}
    audit = library.audit(f"{tmp_path}/m.py:f", **options)
    assert audit["causal"].source == "causal=True"
    printed = attnscope("audit", f"{tmp_path}/m.py:f", "--input", "x=B:2,T:5,d:3", "--causal").out
    assert "--causal" in printed


def test_what_the_user_wrote_stays_as_it_is():
    with pytest.raises(AttnscopeError) as caught:
        library.audit("--causal.py:f", causal=True)
    assert "--causal.py" in caught.value.message


def test_public_functions_keep_their_names_signatures_and_documentation():
    from attnscope.model.card.card import card

    assert signature(library.card) == signature(card)
    assert (library.card.__name__, library.card.__doc__) == (card.__name__, card.__doc__)
    assert pickle.loads(pickle.dumps(library.card)) is library.card


def test_tensors_that_are_no_results_are_returned_as_they_are():
    assert library.sdpa(*torch.ones(3, 2, 4)).shape == (2, 4)


# In IPython.


@pytest.fixture
def shell(tmp_path, monkeypatch):
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setattr(sys, "displayhook", sys.displayhook)
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    made = InteractiveShell(config=config, user_ns={})
    yield made
    made.atexit_operations()
    atexit.unregister(made.atexit_operations)


def lines_of(shell, capsys, cell):
    shell.run_cell(cell, silent=False)
    return [line for line in capsys.readouterr().out.splitlines() if line.strip()]


def test_an_error_is_its_message_alone_in_ipython(shell, capsys):
    cell = "import attnscope; attnscope.audit('minilm', causal=True, bidirectional=True)"
    assert lines_of(shell, capsys, cell) == ["OptionError: causal and bidirectional exclude each other."]
    assert lines_of(shell, capsys, "attnscope.compute('sdpa', dtype='fp16')")[-2:] == [
        "OptionError: 'fp16' is not a dtype that attention runs in.",
        'try  dtype="float16"',
    ]


def test_an_error_that_the_code_of_the_user_raises_keeps_its_frames(shell, capsys):
    lines = lines_of(shell, capsys, "def mine():\n    raise ValueError('mine')\nmine()")
    assert any("raise ValueError" in line for line in lines)
    assert lines[-1] == "ValueError: mine"


CELL = """
import attnscope

def formula(q, k, v):
    scores = q @ k.mT / 2
    return scores.softmax(-1) @ v


def fails(x):
    return x.item()

comparison = attnscope.compare(formula, 'sdpa')
trace = attnscope.inspect(formula, *__import__('torch').ones(3, 2, 4, 8))
"""


@pytest.mark.sweep
def test_code_of_a_cell_is_named_by_its_cell_and_line(shell, monkeypatch):
    from attnscope.code.compare.document import place

    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    done = shell.run_cell(CELL, store_history=True)
    assert done.success
    found = shell.user_ns
    cell = f"Cell In[{done.execution_count}]"
    assert place(found["comparison"]["scores"].b).startswith(f"{cell}, line 4  scores = q @ k.mT")
    with pytest.raises(AttnscopeError, match=re.escape(f"(line 9 of {cell}: ")):
        library.audit(found["fails"], inputs=["x=B:2,T:5,d:4"], causal=True)
    assert found["trace"].file == cell
    with pytest.raises(
        AttnscopeError, match="the code of formula is in a cell of a notebook, not in a file"
    ):
        library.annotate(found["trace"])


def test_code_of_a_file_is_named_by_its_file(tmp_path):
    from attnscope.base.process.files import place_text, shown_path

    assert place_text("model.py", 7) == "model.py:7"
    assert shown_path(str(tmp_path / "model.py"), tmp_path) == "model.py"
