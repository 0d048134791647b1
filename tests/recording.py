"""Records what users see, so that a change of the code can prove that they see no difference.

    git worktree add /tmp/before main
    (cd /tmp/before && python -m tests.recording record /tmp/old)
    python -m tests.recording record /tmp/new
    python -m tests.recording compare /tmp/old /tmp/new

A recording holds each result of `document/every_result.py`, with and without its optional parts, as a terminal
of 60, 80 and 120 columns shows it, with its colours, as `repr`, as a notebook shows it, and in the formats of
its files, except tensors and pixels; and every command of the documentation, in terminals of 60, 80 and 120
columns, and in the formats that a pipe may ask for. `compare` prints what differs, and exits with 1 if anything does.
"""

from __future__ import annotations

import argparse
import difflib
import io
import os
import re
import shlex
import sys
import tempfile
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console

from attnscope.base.errors import AttnscopeError
from tests.docs_examples import FILE_SIZE, PAGES, ROOT, colourful_output_of, examples_of, write_files

WIDTHS = (60, 80, 120)
FORMATS = ("json", "csv", "markdown")
TEXTS, PICTURES = (".json", ".csv", ".md", ".html"), (".svg",)
"""The formats of files that are compared. Pictures take longest."""
WRITES = re.compile(r"\s(--(save|plot|page|to|annotate|csv|output|whole)\b|-o\b|> )")
"""Commands that write files run once: they do not replace them."""
LONG = 2000
"""The characters that are shown of a line that differs."""


def normalised(text: str, folder: str = "") -> str:
    """Return a text without what differs from run to run: folders, addresses, sizes of pages, versions, times.

    Tags stand on lines of their own, so that a difference in a page is a line and not all of it.
    """
    for path, name in ((folder, "FOLDER"), (str(ROOT), "ROOT"), (sys.prefix, "PREFIX")):
        text = text.replace(path, name) if path else text
    for package in ("attnscope", "torch", "transformers", "matplotlib"):
        text = re.sub(rf"(?<![\d.]){re.escape(version(package))}(?![\d.]\d)", "VERSION", text)
    text = re.sub(r"\b0x[0-9a-f]{6,}\b", "ADDRESS", text)
    text = re.sub(r"\b[\d.]+ (ms|s|seconds)\b", r"TIME \1", text)
    return FILE_SIZE.sub("a file", text).replace("><", ">\n<")


# Results.


def views_of(
    result: Any, widths: Collection[int], suffixes: Collection[str]
) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield the ways in which users see a result: a name for each, and a function that returns a text."""
    for width in widths:
        yield f"terminal {width}", lambda width=width: in_terminal(result, width)
    yield "repr", lambda: repr(result)
    yield "notebook", result._repr_html_
    for suffix in suffixes if hasattr(result, "save") else ():
        yield suffix.removeprefix("."), lambda suffix=suffix: in_file(result, suffix)


def in_terminal(result: Any, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system="truecolor")
    console.print(result)
    return console.file.getvalue()


def in_file(result: Any, suffix: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"result{suffix}")
        result.save(path)
        return normalised(path.read_text(encoding="utf-8"), folder)


def record_results(
    results: dict[str, Any], folder: Path, *, parts: bool = True, pictures: bool = True
) -> None:
    """Record results in all formats; without an optional part, at 80 columns, and in no picture."""
    from tests.document.every_result import without_a_part

    for name, result in results.items():
        variants = [("", result), *(without_a_part(result) if parts else ())]
        for variant, one in variants:
            widths, suffixes = (
                ((80,), TEXTS) if variant else (WIDTHS, (*TEXTS, *(PICTURES if pictures else ())))
            )
            for view, text_of in views_of(one, widths, suffixes):
                try:
                    text = text_of()
                except AttnscopeError as error:
                    text = f"{type(error).__name__}: {error}\n{error.hint or ''}"
                except Exception as error:  # an impossible result has no view; it is recorded, too
                    text = f"{type(error).__name__}: {error}"
                write(folder / "results" / name / variant / view, normalised(text))


# Commands.


@contextmanager
def in_empty_folder() -> Iterator[str]:
    """Work in an empty folder for a while, with the same folders and settings each time."""
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield os.path.realpath(folder)
        finally:
            os.chdir(here)


def record_commands(pages: dict[str, str], folder: Path) -> None:
    """Record the commands of pages, in their order, each page in a folder of its own."""
    for page, text in pages.items():
        print(page, file=sys.stderr)
        with in_empty_folder() as own:
            write_files(text)
            for number, (command, _) in enumerate(examples_of(text)):
                name = re.sub(r"[^ =:.,\w-]+", "_", command)[:100]
                where = folder / "commands" / page / f"{number:02} {name}"
                for view, printed in outputs_of(command.partition(" | ")[0]):
                    write(where / view, normalised(printed, own))


def outputs_of(command: str) -> Iterator[tuple[str, str]]:
    """Yield what a command prints: a name for where, and its exit status, stdout and stderr."""
    command, *hidden = command.split(" > /dev/null")
    writes = hidden or WRITES.search(command) or command.startswith("python ")
    for width in (80,) if writes else WIDTHS:
        yield f"terminal {width}", printed_by(command, width)
    if not writes and not {"-f", "--format"} & set(shlex.split(command)):
        for name in FORMATS:
            yield name, printed_by(f"{command} --format {name}", None)


def printed_by(command: str, columns: int | None) -> str:
    try:
        exit_status, out, err = colourful_output_of(command, columns)
    except Exception as error:  # a mistake of ours, which must not end the recording
        return f"{type(error).__name__}: {error}"
    return f"exit status {exit_status}\n{out}\n-- stderr\n{err}"


# Files of a recording.


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_name(f"{path.name}.txt").write_text(text, encoding="utf-8", errors="surrogateescape")


def record(folder: Path) -> None:
    """Record everything."""
    from tests.document.every_result import complete_results, every_result

    warnings.simplefilter("ignore")
    record_results(every_result(), folder)
    record_results(complete_results(), folder, parts=False)
    pages = {str(each.relative_to(ROOT)): each.read_text(encoding="utf-8") for each in PAGES}
    record_commands(pages, folder)


def compare(old: Path, new: Path) -> Iterator[str]:
    """Yield what differs between two recordings, an item after the other, as a unified diff."""
    texts = [
        {str(path.relative_to(each)): path.read_text(encoding="utf-8") for path in each.rglob("*.txt")}
        for each in (old, new)
    ]
    for name in sorted({*texts[0], *texts[1]}):
        before, after = (each.get(name, "") for each in texts)
        if before != after:
            lines = (each.replace("\x1b", "␛").split("\n") for each in (before, after))
            changed = difflib.unified_diff(*lines, f"old/{name}", f"new/{name}", lineterm="")
            yield "\n".join(line[:LONG] for line in changed)


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Record what users see, and compare two recordings.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("record").add_argument("folder", type=Path)
    comparing = commands.add_parser("compare")
    comparing.add_argument("old", type=Path)
    comparing.add_argument("new", type=Path)
    options = parser.parse_args(words)
    if options.command == "record":
        if options.folder.exists():
            parser.error(f"{options.folder} already exists")
        record(options.folder)
        return 0
    for folder in (options.old, options.new):
        if not folder.is_dir():
            parser.error(f"there is no recording {folder}")
    n = 0
    for n, text in enumerate(compare(options.old, options.new), 1):  # noqa: B007 - counts them
        print(text)
    print(f"{n} items differ" if n else "no difference")
    return int(n > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
