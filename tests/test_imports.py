"""Commands that must be instant import nothing heavy. Each case runs in a process of its own."""

import json
import subprocess
import sys

import numpy as np
import pytest

HEAVY = {"torch", "transformers", "numpy", "matplotlib", "pydantic", "huggingface_hub"}


def loaded_by(code: str) -> set[str]:
    """Return the heavy modules that are loaded after `code` has run."""
    script = f"import sys\n{code}\nprint(*({HEAVY!r} & set(sys.modules)), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stderr.splitlines()[-1].split())


def command(*arguments: str) -> str:
    return f"from attnscope.cli.app import main\nmain({list(arguments)!r})"


@pytest.mark.few(11)
@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["sdpa", "--help"],
        ["mha", "--help"],
        ["bert", "--help"],
        ["model", "--help"],
        ["scaling", "--help"],
        ["trace", "--help"],
        ["run", "--help"],
        ["heads", "--help"],
        ["sdpa", "--dry-run"],
        ["mha", "--dry-run", "--nq", "1000000", "--d-feat", "8192", "--heads", "64"],
        ["mha", "--dry-run", "--train", "--wide", "--format", "json"],
        ["sdpa", "--dry-run", "--format", "csv"],
        [
            "sdpa",
            "--dry-run",
            "--mask",
            "causal",
            "--mask",
            "lengths:1,2,3",
            "--rope",
            "--past",
            "3",
            "--source",
            "--explain",
        ],
        ["mha", "--dry-run", "--kv-heads", "1", "--mask", "window:3", "--source", "--explain"],
        ["example", "--help"],
        ["example", "--query", "9"],
        ["sdpa", "--dry-run", "--format", "markdown"],
        ["sdpa", "--nv", "40"],
        ["mha", "--heads", "7"],
        ["mask", "--help"],
        ["mask", "causal", "window:4", "--nq", "40"],
        ["mask", "lengths:3,5", "--format", "json"],
        ["mask", "casual"],
        ["scaling", "--dk", "1,x"],
        ["scaling", "--nq", "0"],
        ["example", "--q", "1 2; 3 4"],
        ["sdpa", "--causal"],
        ["bert", "--page"],
        ["bert", "--query", "cat"],
        ["run", "tests/cli/watched.py", "--lr", "3"],
        ["run", "--watch", "Attention", "tests/cli/watched.py"],
    ],
)
def test_help_dry_runs_and_mistakes_import_nothing_heavy(arguments):
    assert loaded_by(command(*arguments)) == set()


def test_a_dry_run_reads_the_sizes_of_files_without_torch(tmp_path):
    np.savez(tmp_path / "x.npz", Q=np.zeros((2, 3, 4)), mask=np.ones((3, 50), dtype=bool))
    path = str(tmp_path / "x.npz")
    assert loaded_by(command("sdpa", "--dry-run", "--q", path, "--mask", path)) == {"numpy"}


def test_the_list_of_commands_imports_no_command_and_no_option():
    script = "import sys\nfrom attnscope.cli.app import main\nmain(['--help'])\n"
    script += (
        "print(*(name for name in sys.modules if name.startswith('attnscope.cli.')), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = sorted(done.stderr.split())
    assert loaded == ["attnscope.cli.app", "attnscope.cli.command", "attnscope.cli.help"]


def test_importing_the_library_imports_nothing_heavy():
    assert loaded_by("import attnscope; attnscope.AttnscopeError") == set()


def test_showing_a_dry_run_imports_nothing_heavy():
    shown = "repr(trace); trace._repr_html_(); import rich; rich.print(trace, file=sys.stderr)"
    assert loaded_by(f"import attnscope; trace = attnscope.dry_run('sdpa'); {shown}") == set()


def test_reading_a_head_imports_neither_torch_nor_transformers():
    assert loaded_by(command("bert", "--show", "W_Q")) == {"numpy"}


def test_a_dry_run_of_a_layer_imports_neither_torch_nor_transformers():
    script = command("mha", "--dry-run", "--weights", "minilm", "--layer", "3")
    assert loaded_by(script) == {"numpy"}


def test_saving_a_head_as_safetensors_imports_neither_torch_nor_transformers(tmp_path):
    path = tmp_path / "head.safetensors"
    assert loaded_by(command("bert", "--save", str(path))) == {"numpy"}
    assert path.exists()


@pytest.mark.parametrize(
    "fields",
    [
        {"model_type": "mine"},
        {"model_type": "llava", "text_config": {"hidden_size": 64, "num_hidden_layers": 2}},
        {"architectures": ["MineForCausalLM"], "text_config": {"hidden_size": 64}},
    ],
)
def test_a_card_of_a_type_that_is_not_known_imports_nothing_heavy(tmp_path, fields):
    (tmp_path / "config.json").write_text(json.dumps(fields))
    assert loaded_by(command("card", str(tmp_path))) == set()


def test_a_real_run_imports_torch_but_not_its_compiler_nor_transformers():
    """This also shows that these tests can fail."""
    assert loaded_by(command("sdpa")) == {"torch", "numpy"}
    script = f"import sys\n{command('sdpa')}\nassert 'torch._dynamo' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
