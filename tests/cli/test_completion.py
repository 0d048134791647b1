"""The completion of a shell: its own protocol, in a process of its own, without heavy imports."""

import json
import os
import subprocess
import sys

import pytest

from attnscope.cli import app
from attnscope.model.heads.metrics import METRICS

HEAVY = ("torch", "transformers", "numpy", "huggingface_hub")
SCRIPT = f"""
import sys
sys.argv = ["attnscope"]
try:
    from attnscope.__main__ import entry
    entry()
finally:
    assert not {set(HEAVY)!r} & set(sys.modules)
"""


@pytest.fixture
def complete(tmp_path, monkeypatch):
    """Return a function that completes the last word of a line, as bash asks for it."""
    monkeypatch.chdir(tmp_path)

    def completed(line, **more):
        words = line.split(" ")
        asked = {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}
        asked |= {"_ATTNSCOPE_COMPLETE": "complete_bash", "HF_HOME": str(tmp_path / "hf")}
        command = [sys.executable, "-c", SCRIPT]
        env = {**os.environ, **asked, **more}
        env.pop("HF_HUB_CACHE", None)
        r = subprocess.run(command, env=env, capture_output=True, text=True)
        assert (r.returncode, r.stderr) == (0, "")
        return r.stdout.split()

    return completed


def model_folder(folder, layers=2, heads=3):
    folder.mkdir(parents=True)
    config = {"num_hidden_layers": layers, "num_attention_heads": heads}
    (folder / "config.json").write_text(json.dumps(config))


def test_commands_and_options_are_completed(complete):
    assert complete("attnscope ") == list(app.COMMANDS)
    assert complete("attnscope m") == ["mha", "maps", "mask"]
    assert complete("attnscope --ver") == ["--version"]
    assert complete("attnscope sdpa --mask") == [
        "--mask",
        "--mask-style",
        "--mask-fill",
        "--masked-rows",
    ]


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("sdpa --mask c", ["causal", "chunk:"]),
        ("sdpa --dtype bf", ["bfloat16"]),
        ("trace a.py:f --device m", ["mps", "meta"]),
        ("sdpa --layout ", ["rows", "columns"]),
        ("mha --format j", ["json"]),
        ("heads minilm --sort in", ["induction"]),
        ("heads minilm --metrics self,ind", ["self,induction"]),
        ("bert --layer ", list("012345")),
        ("model minilm --head 1", ["1", "10", "11"]),
        ("sdpa --q ", []),  # the shell completes names of files
    ],
)
def test_values_are_completed(complete, line, values):
    assert complete(f"attnscope {line}") == values


@pytest.mark.sweep
def test_models_are_the_bundled_one_cached_ones_and_folders(complete, tmp_path):
    model_folder(tmp_path / "mine", layers=3)
    (tmp_path / "other").mkdir()
    model_folder(tmp_path / "hf" / "hub" / "models--google--tiny" / "snapshots" / "abc", heads=2)
    assert complete("attnscope model ") == ["minilm", "google/tiny", "mine"]
    assert complete("attnscope bert --model mi") == ["minilm", "mine"]
    assert complete(f"attnscope heads {tmp_path}/m") == [f"{tmp_path}/mine"]
    assert complete("attnscope model mine --layer ") == ["0", "1", "2"]
    assert complete("attnscope model google/tiny --head ") == ["0", "1"]
    assert complete("attnscope model nowhere --layer ") == []


def test_the_metrics_that_are_completed_are_those_that_exist(complete):
    assert complete("attnscope heads minilm --sort ") == list(METRICS)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_printed(monkeypatch, shell, capfd):
    monkeypatch.setattr("typer.completion._get_shell_name", lambda: shell)
    with pytest.raises(SystemExit):
        app.main(["--show-completion"])
    assert "_ATTNSCOPE_COMPLETE=complete_" in capfd.readouterr().out


def test_the_classes_and_functions_of_a_file_are_completed(complete):
    with open("attn.py", "w") as file:
        file.write("import torch\nclass Attention: ...\ndef attend(): ...\ndef _private(): ...\n")
    # bash splits words at colons, so the other shells' protocol is asked
    for line, names in (
        ("attnscope trace attn.py:", ["attn.py:Attention", "attn.py:attend"]),
        ("attnscope trace attn.py:at", ["attn.py:attend"]),
        ("attnscope run --watch attn.py:A", ["attn.py:Attention"]),
        ("attnscope trace none.py:", []),
        ("attnscope trace at", []),  # the shell completes names of files
    ):
        fish = {"_TYPER_COMPLETE_FISH_ACTION": "get-args", "_TYPER_COMPLETE_ARGS": line}
        assert complete(line, _ATTNSCOPE_COMPLETE="complete_fish", **fish) == names
