"""SKILL.md says what is true: its calls run, and their records have the keys that it names."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from attnscope.base.text import shortened
from attnscope.cli.app import COMMANDS
from tests.docs_examples import ROOT, calls_of_skill, write_files
from tests.model.answers.writers import MESSAGES, writer

SKILL = (ROOT / "attnscope/SKILL.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Save a model that answers chats, and one whose weights differ."""
    folder = tmp_path_factory.mktemp("models")
    model, tokenizer = writer()
    model.save_pretrained(folder / "llama")
    tokenizer.save_pretrained(folder / "llama")
    tokenizer.save_pretrained(folder / "tuned")
    weights = {
        name: each + 0.01 if "q_proj" in name else each for name, each in model.state_dict().items()
    }
    model.save_pretrained(folder / "tuned", state_dict=weights)
    return folder


@pytest.fixture
def folder(models, tmp_path, monkeypatch):
    """Go to a folder with what the calls need."""
    monkeypatch.chdir(tmp_path)
    write_files(SKILL)
    (tmp_path / "chat.json").write_text(json.dumps(MESSAGES))
    for name in ("llama", "tuned"):
        (tmp_path / name).symlink_to(models / name)


def has(record, path):
    """Whether a record has the key of a path such as `steps[].name`, in every entry of its lists."""
    if not path:
        return True
    first, _, rest = path.partition(".")
    if first.removesuffix("[]") not in record:
        return False
    found = record[first.removesuffix("[]")]
    if not first.endswith("[]"):
        return has(found, rest)
    return bool(found) and all(has(each, rest) for each in found)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("call", "keys"), [each[1:] for each in calls_of_skill()], ids=lambda each: shortened(each, 40)
)
def test_a_call_runs_and_its_record_has_the_named_keys(attnscope, folder, call, keys):
    program, *words = shlex.split(call)
    if words[0] == "run":  # the end of a program is that of its process
        process = subprocess.run([sys.executable, "-m", program, *words], capture_output=True, text=True)
        status, text = process.returncode, Path("trace.json").read_text()
    else:
        ran = attnscope(*words)
        status, text = ran.exit_status, ran.out
    record = json.loads(text)
    assert status == (1 if words[0] == "audit" or "./tuned" in words else 0), record
    assert record["schema"].startswith("attnscope.")
    missing = [path for path in re.findall("`(.*?)`", keys) if not has(record, path)]
    assert not missing, (missing, list(record))


def test_every_command_has_a_call():
    called = {shlex.split(call)[1] for _, call, _ in calls_of_skill()}
    others = {"bert": "is model with a default", "example": "for people", "scaling": "for people"}
    assert called | set(others) == set(COMMANDS)


def test_it_is_short_and_the_command_prints_it_without_torch(attnscope):
    assert len(SKILL.splitlines()) <= 150
    assert attnscope("--skill").out == SKILL
    code = "import sys; from attnscope.cli.app import main; main(['--skill'])"
    code += "; assert not {'torch', 'numpy', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_every_schema_and_status_that_it_names_is_documented():
    records = (ROOT / "docs/records.md").read_text(encoding="utf-8")
    for schema in re.findall(r"attnscope\.\w+/1", SKILL):
        assert f"`{schema}`" in records or schema in records
    rows = re.findall(r"^\| (\d+) \|", SKILL, re.MULTILINE)
    assert set(rows) <= set(re.findall(r"^\| (\d+) \|", records, re.MULTILINE))
