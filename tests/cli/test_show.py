"""`--show`, once and several times, in every command that has it."""

import pytest

CODE = "def code(x):\n    scores = x @ x.mT\n    attention = scores.softmax(-1)\n    return attention\n"

COMMANDS = {
    "sdpa": (["sdpa", "--batch", 1, "--nq", 2, "--nk", 3], "attention[0]", "scores[0]"),
    "sdpa --query": (["sdpa", "--batch", 1, "--query", 1, "--nk", 3], "attention[0]", "scores"),
    "mha": (["mha", "--batch", 1, "--nq", 2, "--d-feat", 4, "--heads", 2], "Q[0,:2]", "attention"),
    "trace": (["trace", "code.py:code", "--input", "x=n:3,d:4"], "scores[0]", "attention"),
    "bert": (["bert"], "W_Q[0,:5]", "b_Q[:5]"),
    "bert --text": (["bert", "--text", "a cat"], "attention[0]", "attention[-1]"),
    "model --steps": (
        ["model", "minilm", "--text", "a cat", "--steps"],
        "scores[0,0]",
        "attention[0,1]",
    ),
}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    (tmp_path / "code.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)


@pytest.mark.few(1)
@pytest.mark.parametrize("command", COMMANDS)
def test_every_show_is_shown_in_the_order_in_which_they_were_asked_for(attnscope, command):
    arguments, one, other = COMMANDS[command]
    alone = [attnscope(*arguments, "--show", each, "-f", "json").json for each in (one, other)]
    both = attnscope(*arguments, "--show", one, "--show", other, "-f", "json").json
    assert [each["shown"]["name"] for each in alone] == [one, other]
    assert both["shown_all"] == [each["shown"] for each in alone]
    assert both["shown"] == alone[1]["shown"]  # as before there was more than one
    assert all("shown_all" not in each for each in alone)
    assert both.keys() - {"shown_all"} == alone[0].keys()


@pytest.mark.few(2)
@pytest.mark.parametrize("format", ["table", "markdown"])
@pytest.mark.parametrize("command", ["sdpa", "trace", "bert", "bert --text"])
def test_every_show_is_printed_below_the_result(attnscope, command, format):
    arguments, one, other = COMMANDS[command]
    out = attnscope(*arguments, "--show", one, "--show", other, "-f", format).out
    lines = out.splitlines()
    first, second = (
        next(i for i, line in enumerate(lines) if line.startswith(f"{each}  ")) for each in (one, other)
    )
    assert first < second
    single = attnscope(*arguments, "--show", other, "-f", format).out.splitlines()
    assert lines[second:] == single[-len(lines[second:]) :]


@pytest.mark.few(1)
@pytest.mark.parametrize("command", ["sdpa", "trace", "bert", "bert --text", "model --steps"])
def test_a_mistake_names_the_selection_that_it_is_in(attnscope, command):
    arguments, one, _ = COMMANDS[command]
    r = attnscope(*arguments, "--show", one, "--show", "sores")
    assert (r.exit_status, r.out) == (2, "")
    assert "there is no 'sores' in " in r.err
    wrong = one.partition("[")[0] + "[99999]"
    r = attnscope(*arguments, "--show", one, "--show", wrong, "--show", one)
    assert r.exit_status == 2
    assert f"'{wrong}': index 99999" in r.err
    r = attnscope(*arguments, "--show", one, "--show", "Q[")
    assert r.exit_status == 2
    assert "'Q[' is not a name with an index." in r.err


def test_a_dry_run_has_no_values_to_show(attnscope):
    r = attnscope("sdpa", "--dry-run", "--show", "Q", "--show", "K")
    assert (r.exit_status, r.out) == (2, "")
    assert "--show needs values, and a dry run has none." in r.err
