"""The documentation says what is so: links lead somewhere, examples print what they show."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from attnscope.cli import app

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
EXAMPLE = re.compile(r"^```console\n\$ (attnscope .*)\n([\s\S]*?)^```$", re.MULTILINE)
EXAMPLES = [
    pytest.param(page, command, expected, id=f"{page.name}: {command}")
    for page in PAGES
    if page.name != "cli.md"
    for command, expected in EXAMPLE.findall(page.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize(("page", "command", "expected"), EXAMPLES)
def test_examples_print_what_they_show(attnscope, monkeypatch, page, command, expected):
    """In a terminal of 100 columns, without its colours."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    r = attnscope(*shlex.split(command)[1:])
    assert r.exit_status == 0, r.err
    plain = re.sub(r"\x1b\[[\d;]*m", "", r.out)
    assert "".join(line.rstrip() + "\n" for line in plain.splitlines()) == expected


def test_the_three_commands_are_shown_in_the_readme():
    commands = [example.values[1] for example in EXAMPLES if example.values[0].name == "README.md"]
    assert "attnscope sdpa --nq 30 --nk 50" in commands
    assert "attnscope mha --d-feat 200 --heads 5" in commands
    assert "attnscope bert --layer 0 --head 0" in commands


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        linked = page.parent / path if path else page
        assert linked.exists(), f"{page.name} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in [heading.lower().replace(" ", "-") for heading in headings], target


def test_the_cli_reference_is_up_to_date():
    from typer.cli import app as typer_cli

    command = ["attnscope.cli.app", "utils", "docs", "--name", "attnscope"]
    generated = CliRunner().invoke(typer_cli, command).stdout.strip()
    written = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8").strip()
    assert written == generated, f"run: typer {shlex.join(command)} --output docs/cli.md"


def test_every_command_is_in_the_readme():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for command in app.app.registered_commands:
        assert f"`attnscope {command.callback.__name__}`" in readme


def test_the_python_example_of_the_readme_runs(capsys):
    (code,) = re.findall(
        r"^```python\n([\s\S]*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    exec(code, {})
    printed = capsys.readouterr().out
    assert "scores ('n_batch', 'n_head', 'n_Q', 'n_K') (128, 5, 32, 32)" in printed
    assert "encoder.layer.0.attention.self.query.weight (32, 384)" in printed


def test_every_key_of_a_record_is_documented():
    from dataclasses import fields

    from attnscope.results import Check, Finding, HeadWeights, Stats, Step, Trace, WeightSlice

    text = (ROOT / "docs" / "records.md").read_text(encoding="utf-8")
    for kind in (Trace, Step, Stats, Check, Finding, HeadWeights, WeightSlice):
        for field in fields(kind):
            if field.repr:
                assert f"`{field.name}`" in text, f"{kind.__name__}.{field.name}"
