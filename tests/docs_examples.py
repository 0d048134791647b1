"""The examples of the documentation: commands with what they print.

They stand in blocks that begin with ```console and a line `$ attnscope …` or `$ python FILE`. Those of a page are
run one after the other in one empty folder, in a terminal of 100 columns, without its colours.
After a command, `> /dev/null` hides what it prints on stdout, and `| head -5` or another filter of the
shell shortens it; what it prints on stderr follows. A block of Python that begins with a comment such as `# my_attn.py` is a file in that folder.

    python -m tests.docs_examples [docs/audit.md …]     writes what they print into every page, or
                                                        into those that are named, and llms.txt
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

from attnscope.cli.app import main

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
BLOCK = re.compile(r"^```console\n(\$ (?:attnscope|python) [\s\S]*?)^```$", re.MULTILINE)
COMMAND = re.compile(
    r"^\$ ((?:attnscope|python) .*)\n((?:(?!\$ (?:attnscope|python) ).*\n)*)", re.MULTILINE
)
FILE = re.compile(r"^```python\n(# (\w+\.py)\n[\s\S]*?)^```$", re.MULTILINE)
COLOUR = re.compile(r"\x1b\[[\d;]*m")
DIFFERENCE = re.compile(r"\b\d(\.\d+)?e-\d\d\b")
"""How far two results differ is the processor's business: such numbers are not compared."""
OWN_LINE = re.compile(r"(attnscope/\S+\.py):\d+")
FILE_SIZE = re.compile(r"\b[\d.]+ [KM]iB(?=, to )")
"""The sizes of written pages are not compared either, because they contain attnscope's own code."""

AS_JSON = (
    "One call for each question, with a JSON record on stdout; `attnscope --skill` prints the keys to read,"
    " exit statuses and errors:"
)
"""The line of llms.txt above its calls."""


def examples_of(text: str) -> list[tuple[str, str]]:
    """The commands of a page, each with what it prints there."""
    return [example for block in BLOCK.findall(text) for example in COMMAND.findall(block)]


def write_files(text: str) -> None:
    """Write the files that a page shows into the current folder."""
    for source, name in FILE.findall(text):
        Path(name).write_text(source, encoding="utf-8")


def colourful_output_of(command: str, columns: int | None = 100) -> tuple[int, str, str]:
    """The exit status of a command, and what it prints on stdout and stderr.

    Args:
        command: the command line.
        columns: the width of the terminal, which has all colours; None: stdout is a pipe.
    """
    out, err = io.StringIO(), io.StringIO()
    program, *arguments = shlex.split(command)
    before = set(sys.modules)
    terminal = {"FORCE_COLOR": "1", "COLORTERM": "truecolor", "COLUMNS": str(columns)}
    with (
        mock.patch.dict(os.environ, terminal if columns is not None else {}),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        if program == "python":
            runpy.run_path(arguments[0])
            exit_status = 0
        else:
            exit_status = main(arguments)
    for name in set(sys.modules) - before:  # the next command is another process
        if str(getattr(sys.modules[name], "__file__", None)).startswith(os.getcwd()):
            del sys.modules[name]
    return exit_status, out.getvalue(), err.getvalue()


def output_of(command: str) -> tuple[int, str]:
    """The exit status of a command, and what a user sees of it: stdout, and then stderr."""
    command, hidden, _ = command.partition(" > /dev/null")
    command, piped, text_filter = command.partition(" | ")
    exit_status, out, err = colourful_output_of(command, None if piped else 100)
    printed = "" if hidden else COLOUR.sub("", out)
    if piped:
        printed = subprocess.run(
            text_filter, input=printed, shell=True, text=True, capture_output=True, check=True
        ).stdout
    lines = (printed + COLOUR.sub("", err)).splitlines()
    return exit_status, "".join(line.rstrip() + "\n" for line in lines)


def comparable(text: str) -> str:
    """What an example must print on every machine: its words and numbers, whatever their spacing.

    Columns are as wide as the numbers in them, and so are rules. The lines of attnscope's own files
    move with every edit.
    """
    text = FILE_SIZE.sub("a file", DIFFERENCE.sub("≈0", text))
    return re.sub(r"[ ─]+", " ", OWN_LINE.sub(r"\1", text))


def rewrite(page: Path) -> None:
    """Run a page's examples, and write what they print into it."""

    def run(command: re.Match[str]) -> str:
        return f"$ {command[1]}\n{output_of(command[1])[1]}"

    def run_all(block: re.Match[str]) -> str:
        return f"```console\n{COMMAND.sub(run, block[1])}```"

    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        text = page.read_text(encoding="utf-8")
        write_files(text)
        page.write_text(BLOCK.sub(run_all, text), encoding="utf-8")
        os.chdir(here)


def llms_txt() -> str:
    """The documentation for language models, in the format of llmstxt.org: every page, with a line on it.

    The lines are those of the start page, and those of the table of variants. Before them there is a call
    for each question, as in SKILL.md.
    """
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    title, summary = index.split("\n\n")[:2]
    lists = index[index.index("## ") :].replace("](", "](docs/")
    table = (ROOT / "docs/learn/variants/index.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\[.*\])\((.*)\) \| .* \| (.*) \|$", table, re.MULTILINE)
    variants = [f"- {name}(docs/learn/variants/{path}): {effect}\n" for name, path, effect in rows]
    calls = [f"- {question} `{call}`\n" for question, call, _ in calls_of_skill()]
    summary = f"{title}\n\n> {' '.join(summary.split())}\n\n{AS_JSON}\n\n{''.join(calls)}"
    return f"{summary}\n{lists}\n## Variants\n\n{''.join(variants)}"


def calls_of_skill() -> list[tuple[str, str, str]]:
    """The questions of SKILL.md, each with its call and the line of keys of its record."""
    skill = (ROOT / "attnscope/SKILL.md").read_text(encoding="utf-8")
    return re.findall(r"^(.+)\n`(attnscope .+)`\n→ (.+)$", skill, re.MULTILINE)


if __name__ == "__main__":
    (ROOT / "llms.txt").write_text(llms_txt(), encoding="utf-8")
    for path in [Path(name).resolve() for name in sys.argv[1:]] or PAGES:
        if path.name != "commands.md":
            print(path.relative_to(ROOT), file=sys.stderr)
            rewrite(path)
