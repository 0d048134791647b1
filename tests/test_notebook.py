"""`%%attnscope` in IPython: the cell runs as without it, and the attention that it calls is traced."""

import atexit
import re
import sys
from textwrap import dedent

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

import attnscope
from attnscope.code.trace.result import ProgramRun
from attnscope.observe.trace import Trace

DEFINITION = """
import torch
from torch import nn

class Attention(nn.Module):
    def forward(self, q, k, v):
        scores = q @ k.mT / 2
        weights = scores.softmax(-1)
        return weights @ v

attention = Attention()
q, k, v = torch.ones(2, 3, 4), torch.ones(2, 5, 4), torch.ones(2, 5, 6)
"""


class Shell:
    """An IPython that has loaded the extension."""

    def __init__(self) -> None:
        config = Config()
        config.HistoryManager.enabled = False
        self.shell = InteractiveShell(config=config, user_ns={})
        self.run("%load_ext attnscope")
        self.run(DEFINITION)

    def run(self, source):
        """Run a cell, and return what IPython knows of it."""
        return self.shell.run_cell(dedent(source).lstrip("\n"), store_history=True)

    @property
    def value(self):
        return self.shell.user_ns["_"]


@pytest.fixture
def shell(tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setattr(sys, "displayhook", sys.displayhook)
    made = Shell()
    yield made
    made.shell.atexit_operations()
    atexit.unregister(made.shell.atexit_operations)


def names(trace):
    return [step.name for step in trace.steps]


def test_the_trace_is_the_value_of_the_cell(shell):
    done = shell.run("%%attnscope --watch Attention --dims q=B,T,C\nattention(q, k, v)")
    assert done.success
    assert names(shell.value) == ["q", "k", "v", "scores", "weights", "return"]
    assert shell.value["scores"].dims[:2] == ("B", "T")
    assert shell.shell.user_ns["Out"][done.execution_count] is shell.value


def test_the_attention_of_the_notebook_is_found_without_its_name(shell):
    shell.run("%%attnscope\nattention(q, k, v)")
    assert shell.value.title == "Attention"


def test_an_instance_may_be_named(shell):
    shell.run("%%attnscope --watch attention\nattention(q, k, v)")
    assert "weights" in names(shell.value)


def test_a_cell_may_define_what_it_calls(shell):
    shell.run("""
        %%attnscope --watch attend
        def attend(q, k, v):
            again = (q @ k.mT).softmax(-1)
            return again @ v
        attend(q, k, v)
        """)
    assert names(shell.value) == ["q", "k", "v", "again", "return"]
    assert shell.value["again"].line == 3  # as the cell's own lines are counted


def test_a_new_definition_in_the_cell_replaces_the_old_one(shell):
    shell.run("""
        %%attnscope
        class Attention(Attention):
            def forward(self, q, k, v):
                new = (q @ k.mT).softmax(-1)
                return new @ v
        Attention()(q, k, v)
        """)
    assert names(shell.value) == ["q", "k", "v", "new", "return"]


@pytest.mark.sweep
def test_of_several_the_one_that_the_cell_calls_is_traced(shell):
    shell.run("""
        def attend(q, k, v):
            other = (q @ k.mT).softmax(-1)
            return other @ v

        def averaged(q, k, v):
            return attend(q, k, v).softmax(0)
        """)
    shell.run("%%attnscope\nattend(q, k, v)")
    assert (shell.value.title, names(shell.value)[3]) == ("attend", "other")
    shell.run("%%attnscope\nattention(q, k, v)")
    assert shell.value.title == "Attention"
    shell.run("%%attnscope\naveraged(q, k, v)")
    assert shell.value.title == "averaged"
    assert "other" in names(shell.value)  # what it calls has rows, too


def test_the_attention_inside_a_model_is_found(shell, tmp_path, monkeypatch):
    (tmp_path / "own_model.py").write_text(
        dedent(DEFINITION) + "model = nn.ModuleDict({'attention': attention})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    shell.run("del Attention, attention\nfrom own_model import model")
    shell.run("%%attnscope\nmodel['attention'](q, k, v)")
    assert shell.value.title == "Attention"


@pytest.mark.sweep
def test_the_attention_of_models_of_transformers_is_found(shell):
    shell.run("""
        from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM

        sizes = dict(hidden_size=24, num_attention_heads=4, num_hidden_layers=2, vocab_size=50, intermediate_size=40)
        bert = BertModel(BertConfig(**sizes))
        llama = LlamaForCausalLM(LlamaConfig(**sizes, num_key_value_heads=2))
        ids = torch.arange(7)[None]
        """)
    for model, title in (("bert", "BertSelfAttention"), ("llama", "LlamaAttention")):
        shell.run(f"%%attnscope\nresult = {model}(ids)")
        assert shell.value.title == title
        assert shell.value["hidden_states"].shape == (1, 7, 24)
    assert shell.value["query_states"].shape == (1, 4, 7, 6)
    shell.run("%%attnscope --calls 2\nresult = bert(ids)")
    assert len(shell.value.traces) == 2  # one for each layer


def test_the_attention_inside_an_attribute_is_found(shell):
    shell.run("""
        class Pipeline:
            def __init__(self, model):
                self.model = nn.ModuleList([model])

        pipeline = Pipeline(attention)
        del attention, Attention
        """)
    shell.run("%%attnscope\npipeline.model[0](q, k, v)")
    assert shell.value.title == "Attention"


def test_attention_that_the_cell_compiles_is_said_to_be_compiled(shell, capsys):
    shell.run("%%attnscope\ntorch.compile(attention, backend='eager')(q, k, v)")
    assert "Attention is compiled by torch.compile: it was not traced" in capsys.readouterr().err
    torch._dynamo.reset()


def test_a_prompt_waits_for_the_rest_of_the_cell(shell):
    def check(text):
        return shell.shell.input_transformer_manager.check_complete(text)[0]

    assert check("%%attnscope") == "incomplete"
    assert check("%%attnscope\nattention(q, k, v)") == "incomplete"
    assert check("%%attnscope\nattention(q, k, v)\n\n") == "complete"


def test_several_calls_make_several_traces(shell):
    shell.run("%%attnscope --watch Attention --calls 2\nfor i in range(3): attention(q, k, v)")
    assert isinstance(shell.value, ProgramRun)
    assert [trace.options["call"] for trace in shell.value.traces] == [1, 2]


def test_the_options_are_those_of_run(shell):
    shell.run("""
        %%attnscope --watch Attention --dims q=B,T,C --depth 0 --subexpressions --stats --source
        attention(q, k, v)
        """)
    trace = shell.value
    assert trace["q"].dims == ("B", "T", "C")
    assert trace["scores"].stats is not None
    assert "…" in names(trace)
    assert trace.source[0].text.lstrip().startswith("def forward")


def test_a_file_or_a_module_may_be_named(shell, tmp_path, monkeypatch):
    (tmp_path / "own_attention.py").write_text(dedent(DEFINITION))
    monkeypatch.syspath_prepend(tmp_path)
    shell.run("""
        %%attnscope --watch own_attention:Attention
        import own_attention
        own_attention.attention(q, k, v)
        """)
    assert "weights" in names(shell.value)


# The cell runs as without the magic.


def test_what_the_cell_prints_and_returns_is_as_without(shell, capsys):
    cell = "print('before')\nout = attention(q, k, v)\nout.shape"
    shell.run(cell)
    plain = capsys.readouterr().out
    shell.run(f"%%attnscope\n{cell}")
    shown = capsys.readouterr().out
    assert plain.replace("Out[3]", "Out[4]") in shown
    assert isinstance(shell.value, Trace)


def test_an_exception_is_raised_as_without(shell, capsys):
    cell = "\n\nattention(q, v, k)"
    plain = shell.run(f"#{cell}")
    without = capsys.readouterr().out
    traced = shell.run(f"%%attnscope{cell}")
    shown = capsys.readouterr().out
    assert type(traced.error_in_exec) is type(plain.error_in_exec)
    assert not {"magic.py", "recorder.py", "_ops.py"} & set(re.findall(r"\w+\.py", shown))
    assert without.strip().splitlines()[-1] in shown
    assert shown.count("Expected size") == without.count("Expected size")
    assert shell.value.crash.expression == "q @ k.mT"


def test_a_semicolon_hides_the_value_of_the_cell_and_not_the_trace(shell, capsys):
    shell.run("%%attnscope\nattention(q, k, v);")
    shown = capsys.readouterr().out
    assert "tensor(" not in shown
    assert shown == f"{shell.value!r}\n"
    assert isinstance(shell.value, Trace)


def test_a_cell_may_await(shell):
    done = shell.run("%%attnscope\nimport asyncio\nawait asyncio.sleep(0)\nattention(q, k, v)")
    assert done.success
    assert isinstance(shell.value, Trace)


def test_code_is_as_before_after_the_cell(shell):
    code = shell.shell.user_ns["Attention"].forward.__code__
    shell.run("%%attnscope\nattention(q, k, v)")
    assert shell.shell.user_ns["Attention"].forward.__code__ is code
    before = shell.value
    shell.run("attention(q, k, v)")
    assert shell.value is not before


def test_random_numbers_and_gradients_are_as_without(shell):
    drawn = "torch.manual_seed(3); x = torch.rand(2, 3, 4, requires_grad=True)"
    cell = f"{drawn}\nattention(x, k, v).sum().backward()\nseen = x.grad, torch.rand(1)"
    shell.run(cell)
    plain = shell.shell.user_ns["seen"]
    shell.run(f"%%attnscope\n{cell}")
    assert all(map(torch.equal, plain, shell.shell.user_ns["seen"]))


# Mistakes are one line.


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        ("--wacth Attention", "%%attnscope has no option --wacth.", "--watch"),
        ("Attention", "'Attention' is not an option.", "--watch Attention"),
        ("attention(q,k,v)", "'attention(q,k,v)' is not an option.", "%%attnscope as the first line"),
        ("--to trace.txt", "--to does not apply in a cell.", "_.save(FILE) in the next cell"),
        ("--watch", "argument --watch: expected one argument.", None),
        ("--calls x", "argument --calls: invalid number value: 'x'.", None),
        ("--calls 0", "argument --calls: 0 is not at least 1.", None),
        ("--dims x", "--dims x does not name axes.", "--dims x=B,T,C"),
        ("--watch 'x", "the options cannot be read: No closing quotation.", None),
        ("--watch torch.add", "cannot trace add: it is compiled", "trace the Python function"),
        ("--watch nowhere.py:Attention", "there is no file nowhere.py", None),
    ],
)
def test_a_mistake_is_one_line_and_the_cell_does_not_run(shell, capsys, line, message, hint):
    done = shell.run(f"%%attnscope {line}\nran = 1")
    captured = capsys.readouterr()
    assert not done.success
    assert "ran" not in shell.shell.user_ns
    shown = captured.err + captured.out
    assert f"UsageError: {message}" in shown
    assert "Traceback" not in shown
    assert (f"  try  {hint}" in shown) if hint else True


def test_help_lists_the_options(shell, capsys):
    shell.run("%%attnscope --help\n")
    shown = capsys.readouterr().out
    assert {
        "--watch",
        "--calls",
        "--dims",
        "--follow",
        "--depth",
        "--subexpressions",
        "--stats",
        "--source",
    } <= set(re.findall(r"--\w+", shown))
    assert "Depth of calls to show" in shown


def test_a_definition_that_cannot_be_traced_is_a_note(shell, capsys):
    done = shell.run("""
        %%attnscope --watch attend
        def attend(q):
            yield q.softmax(-1)
        ran = next(attend(q)).shape
        """)
    assert done.success
    note = "attnscope: note: cannot trace attend: it is a generator"
    assert note in capsys.readouterr().err
    assert shell.shell.user_ns["ran"] == (2, 3, 4)


def test_what_is_not_called_or_not_there_is_a_note(shell, capsys):
    shell.run("%%attnscope\n1 + 1")
    assert (
        "attnscope: note: no attention was called: neither torch's own, nor" in capsys.readouterr().err
    )
    shell.run("%%attnscope --watch Nothing\n1 + 1")
    assert "attnscope: note: Nothing was not traced: it is not defined" in capsys.readouterr().err
    assert shell.value == 2


def test_the_extension_can_be_unloaded(shell):
    shell.run("%unload_ext attnscope")
    assert not shell.run("%%attnscope\n1").success


def test_loading_the_library_does_not_import_ipython():
    import subprocess

    code = "import sys, attnscope; attnscope.load_ipython_extension; print('IPython' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_the_magic_knows_every_option_of_run():
    from inspect import signature

    from attnscope.cli.run import run
    from attnscope.notebook import ELSEWHERE, _parser

    flags = set()
    for each in signature(run).parameters.values():
        info = each.annotation.__metadata__[0]
        if each.name != "program":
            names = [info.default, *info.param_decls]
            flags.add(next((name for name in names if str(name).startswith("--")), info.default))
    assert flags == {*_parser()._option_string_actions} | {*ELSEWHERE}
    assert attnscope.load_ipython_extension


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("call", "title"),
    [
        ("y, w = mha(x, x, x)", "MultiheadAttention"),
        ("y = layer(x)", "TransformerEncoderLayer"),
        ("y = nn.functional.scaled_dot_product_attention(x, x, x)", "scaled_dot_product_attention"),
        ("y = nn.MultiheadAttention(8, 2)(x, x, x)[0]", "MultiheadAttention"),
    ],
)
def test_torchs_own_attention_is_attention(shell, call, title):
    shell.run("""
        import torch
        from torch import nn
        mha, layer = nn.MultiheadAttention(8, 2), nn.TransformerEncoderLayer(8, 2, 16)
        x = torch.randn(5, 3, 8)
        """)
    assert shell.run(f"%%attnscope\n{call}").success
    trace = shell.value
    assert trace.title == title
    names = [step.name for step in trace.steps]
    assert {"scores", "attention"} <= {*names}
    assert trace.saw_softmax
