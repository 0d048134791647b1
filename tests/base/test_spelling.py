"""A message names an option as the user has it: flags on the command line, keywords in Python."""

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
from attnscope.base.spelling import (
    FLAGS,
    Flags,
    Keywords,
    either,
    in_fields,
    spelled,
    spelled_any,
    unnamed,
    use_notation,
)
from attnscope.cli.app import PURPOSES, Commands

AUDIT = ("heads", "layers", "causal", "bias", "inputs", "init", "window", "text", "ids", "dtype")


@pytest.mark.parametrize(
    ("call", "flags", "keywords"),
    [
        (lambda: spelled("heads"), "--head", "heads"),
        (lambda: spelled("heads", 11), "--head 11", "heads=11"),
        (lambda: spelled(heads="0-3"), "--head 0-3", 'heads="0-3"'),
        (lambda: spelled(layers=0, heads="all"), "--layer 0 --head all", 'layers=0, heads="all"'),
        (lambda: spelled("causal"), "--causal", "causal"),
        (lambda: spelled(causal=True), "--causal", "causal=True"),
        (lambda: spelled(bias=False), "--no-bias", "bias=False"),
        (lambda: spelled(window="N"), "--window N", "window=N"),
        (lambda: spelled("inputs", "x"), "--input x", 'inputs["x"]'),
        (lambda: spelled(inputs="x=2,10"), "--input x=2,10", 'inputs={"x": "2,10"}'),
        (lambda: spelled(init=["d=8", "h=True"]), "--init d=8 --init h=True", 'init={"d": 8, "h": True}'),
        (lambda: spelled(inputs="ids=B,T<9"), '--input "ids=B,T<9"', 'inputs={"ids": "B,T<9"}'),
        (lambda: spelled("inputs", "ids=B,T<9"), "--input ids=B,T<9", 'inputs={"ids": "B,T<9"}'),
        (lambda: spelled(text="…"), '--text "…"', 'text="…"'),
        (lambda: spelled(text="a cat", window=...), '--text "a cat" --window …', 'text="a cat", window=…'),
        (lambda: spelled(text=["a", "b"]), '--text "a" --text "b"', 'text=["a", "b"]'),
        (lambda: spelled(ids=[101, 102]), "--ids 101,102", "ids=[101, 102]"),
        (lambda: spelled_any("dtype", ["a", "b", "c"]), "--dtype a, b or c", 'dtype="a", "b" or "c"'),
        (lambda: spelled_any("dtype", ["a", "b"], ", "), "--dtype a, b", 'dtype="a", "b"'),
        (lambda: either(command_line="--wide", python="to_pandas()"), "--wide", "to_pandas()"),
    ],
)  # fmt: skip
def test_an_option_is_a_flag_on_the_command_line_and_a_keyword_in_python(call, flags, keywords):
    with use_notation(Flags()):
        assert call() == flags
    assert call() == keywords
    with use_notation(Keywords(lambda: AUDIT)):
        assert call() == keywords


@pytest.mark.parametrize(
    ("names", "option", "keyword"),
    [(["layer"], "layers", "layer"), (["n_head"], "heads", "n_head"), (["texts"], "text", "texts"),
     (["widths"], "dk", "widths"), (["axes"], "dims", "axes"), ([], "heads", "heads")],
)  # fmt: skip
def test_a_function_that_has_another_name_of_an_option_says_that(names, option, keyword):
    with use_notation(Keywords(lambda: names)):
        assert spelled(option) == keyword


@pytest.mark.parametrize(
    ("command", "option", "flag"),
    [("sdpa", "heads", "--heads"), ("maps", "heads", "--head"), ("weights", "layers", "--layer"),
     ("scaling", "dk", "--dk"), ("run", "dims", "--dims"), ("heads", "text", "--text"), ("card", "page", "--page")],
)  # fmt: skip
def test_a_command_says_its_own_flags(command, option, flag):
    with use_notation(Flags(lambda: Commands()[command].flags_by_option)):
        assert spelled(option) == flag


def test_a_switch_that_is_off_has_the_flag_that_its_command_declares():
    with use_notation(Flags(lambda: Commands()["mha"].flags_by_option)):
        assert spelled(train=False) == "--eval"
        assert spelled(bias=False) == "--no-bias"


def test_options_that_no_command_is_asked_about_have_the_flags_of_those_that_declare_them():
    declared = {}
    for name in PURPOSES:
        for option, (flag, *_) in Commands()[name].flags_by_option.items():
            declared.setdefault(option, set()).add(flag)
    of_ours = {
        option: flags for option, flags in declared.items() if option not in ("module", "help_all")
    }
    with use_notation(Flags()):
        assert {option for option, flags in of_ours.items() if spelled(option) not in flags} == set()
    assert not [option for option, flag in FLAGS.items() if flag == f"--{option}"]


def test_a_notation_may_write_some_options_otherwise():
    with unnamed("mask"):
        assert spelled(mask="causal", window=2) == "causal, window=2"
    with in_fields(["answer"]):
        assert (spelled("answer"), spelled(answer="…"), spelled("top")) == (
            "answer",
            '"answer": "…"',
            "top",
        )


def test_an_error_names_keywords_and_the_command_of_flags(attnscope):
    with pytest.raises(OptionError) as caught:
        library.audit("minilm", causal=True, bidirectional=True)
    assert str(caught.value).startswith("causal and bidirectional exclude each other.")
    failed = attnscope("audit", "minilm", "--causal", "--bidirectional")
    assert failed.exit_status == 2
    assert "--causal and --bidirectional exclude each other." in failed.err


def test_a_warning_names_keywords_and_the_command_of_flags(attnscope):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        library.dry_run("sdpa", mask_fill=-1.0)
    assert [str(each.message) for each in caught if each.category is OptionWarning] == [
        "mask_fill has no effect: there is no mask (mask)"
    ]
    assert "--mask-fill has no effect" in attnscope("sdpa", "--dry-run", "--mask-fill", "-1").err


def test_a_result_names_keywords_and_the_record_of_the_command_of_flags(attnscope, tmp_path):
    (tmp_path / "m.py").write_text("def f(x):\n    return x.cumsum(1)\n")
    options = {"inputs": ["x=B:2,T:5,d:3"], "causal": True}
    audit = library.audit(f"{tmp_path}/m.py:f", **options)
    assert audit["causal"].source == "causal=True"
    printed = attnscope("audit", f"{tmp_path}/m.py:f", "--input", "x=B:2,T:5,d:3", "--causal").out
    assert "--causal" in printed


def test_a_function_that_a_program_calls_names_keywords_although_a_command_runs_the_program():
    with use_notation(Flags()), pytest.raises(OptionError, match=r"^causal and bidirectional exclude"):
        library.audit("minilm", causal=True, bidirectional=True)


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
