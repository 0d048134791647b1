"""Measures how much the tests protect: changes product code at random, a place at a time, and looks which
changes no test notices.

    python -m tests.mutants --out before.json
    … change the tests, and the tests alone …
    python -m tests.mutants --out after.json --before before.json

The mutants depend on the seed and on the product code alone, so that the same ones are tried before and
after. First all tests run once, with a probe at each place that will be changed, which writes down the test
that comes by, also in processes that tests start. Then each mutant is tried with the tests that come by,
quick ones first. No file here is changed: probes and mutants live in copies.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
PACKAGE = "attnscope"

COMPARED = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
COMPUTED = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "*", ast.Pow: "*",
    ast.BitAnd: "|", ast.BitOr: "&",
}  # fmt: skip
AT_MOST = 1800
"""Seconds that a mutant's tests may take; then it runs for ever."""
PYTEST = [
    sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not torture", "--hypothesis-profile=thorough"
]  # fmt: skip
"""Runs all tests, also those that only CI runs."""
FAILED = re.compile(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", re.MULTILINE)
"""A test that failed, in pytest's report."""


@dataclass(frozen=True)
class Mutant:
    """A change of one place in the product code.

    Attributes:
        path: the file, from the root of the repository.
        line: where the change is, counted from 1.
        before, after: the code there, as Python writes it, before and after.
        start, end: the offsets in the file, in bytes, of what is replaced.
    """

    path: str
    line: int
    before: str
    after: str
    start: int
    end: int


def mutants_of(path: Path) -> Iterator[Mutant]:
    """All mutants of a file: comparisons, arithmetic, logic, numbers, truth, and statements that are left out."""
    source = path.read_text()
    content, tree = source.encode(), ast.parse(source)
    starts = [0]
    for line in content.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    skipped = _not_run(tree)
    name = str(path.relative_to(HERE))

    def mutant(node: ast.expr | ast.stmt, after: str) -> Mutant:
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        return Mutant(name, node.lineno, content[start:end].decode(), after, start, end)

    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            left, right = ast.unparse(node.left), ast.unparse(node.comparators[0])
            yield mutant(node, f"({left} {COMPARED[type(node.ops[0])]} {right})")
        elif isinstance(node, ast.BinOp) and type(node.op) in COMPUTED and not _is_text(node):
            yield mutant(
                node, f"({ast.unparse(node.left)} {COMPUTED[type(node.op)]} {ast.unparse(node.right)})"
            )
        elif isinstance(node, ast.BoolOp):
            other = ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
            yield mutant(node, f"({ast.unparse(other)})")
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield mutant(node, f"bool({ast.unparse(node.operand)})")
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
            yield mutant(node, str(not node.value))
        elif isinstance(node, ast.Constant) and isinstance(node.value, int):
            yield mutant(node, str(node.value + 1))
        elif isinstance(node, (ast.If, ast.IfExp)):
            yield mutant(node.test, f"(not ({ast.unparse(node.test)}))")
        elif isinstance(node, ast.Raise) or (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        ):
            yield mutant(node, "pass")


def _not_run(tree: ast.Module) -> set[ast.AST]:
    """The nodes that mutants spare: annotations, what only type checkers read, texts put together."""
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        parts: list[ast.AST | None] = []
        if isinstance(node, ast.arg):
            parts = [node.annotation]
        elif isinstance(node, ast.MatchValue):
            parts = [node]
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            parts = [node.returns, *node.decorator_list]
        elif isinstance(node, ast.AnnAssign):
            parts = [node.annotation]
        elif isinstance(node, (ast.JoinedStr, ast.Assert)) or (
            isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        ):
            parts = [node]
        for part in parts:
            if part is not None:
                skipped.update(ast.walk(part))
    return skipped


def _is_text(node: ast.BinOp) -> bool:
    """Whether an operation seems to put texts together, or types: `"a" + b`, `int | None`."""
    sides = [node.left, node.right]
    return any(
        isinstance(each, (ast.JoinedStr, ast.List, ast.Tuple))
        or (isinstance(each, ast.Constant) and not isinstance(each.value, (int, float)))
        for each in sides
    )


def draw(n: int, seed: int) -> list[Mutant]:
    """Draw mutants, each mutable place of the product code as likely as any other."""
    files = sorted((HERE / PACKAGE).rglob("*.py"))
    everything = [mutant for path in files for mutant in mutants_of(path)]
    return random.Random(seed).sample(everything, n)


# Which tests come by.

PROBE = """
import os

seen = set()


def hit(number):
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
    if (number, test) not in seen:
        seen.add((number, test))
        with open(os.path.join(os.environ["PROBES"], str(number)), "a") as file:
            file.write(test + "\\n")
"""


def visitors_of(mutants: list[Mutant]) -> tuple[list[list[str]], dict[str, float]]:
    """Run all tests once; return those that come by each mutant's place, and the seconds that tests take.

    A test that fails without a mutant tells nothing and is left out.
    """
    with tempfile.TemporaryDirectory() as folder:
        root, probes = _copy(Path(folder)), Path(folder) / "probes"
        probes.mkdir()
        (root / "_probe.py").write_text(PROBE)
        for path in {mutant.path for mutant in mutants}:
            _put_probes(root / path, {n: each for n, each in enumerate(mutants) if each.path == path})
        line = [*PYTEST, "-n", "auto", "--durations=0", "--durations-min=0.005"]
        environment = _environment(root) | {"PROBES": str(probes)}
        ended = subprocess.run(line, cwd=root, env=environment, stdout=subprocess.PIPE, text=True)
        failed = set(FAILED.findall(ended.stdout))
        print(ended.stdout.splitlines()[-1], *sorted(failed), sep="\n", flush=True)
        visitors = [
            sorted({*(probes / str(n)).read_text().splitlines()} - {""} - failed)
            if (probes / str(n)).exists()
            else []
            for n in range(len(mutants))
        ]
    return visitors, _durations(ended.stdout)


def _put_probes(path: Path, mutants: dict[int, Mutant]) -> None:
    """Put probes before statements and around expressions."""
    content = path.read_bytes()
    insertions = []
    for n, each in mutants.items():
        call = f'__import__("_probe").hit({n})'
        if each.after == "pass":
            insertions.append((each.start, 0, f"{call}; "))
        else:
            insertions += [(each.start, 1, f"({call} or ("), (each.end, -1, "))")]
    for place, _, text in sorted(insertions, reverse=True):
        content = content[:place] + text.encode() + content[place:]
    path.write_bytes(content)


def _durations(text: str) -> dict[str, float]:
    """The seconds of each test, of pytest's report."""
    seconds: dict[str, float] = defaultdict(float)
    for line in text.splitlines():
        found = re.match(r"([0-9.]+)s (?:call|setup|teardown) +(.*)", line)
        if found:
            seconds[found[2]] += float(found[1])
    return seconds


def _copy(folder: Path) -> Path:
    """A copy of the repository."""
    ignored = shutil.ignore_patterns(".venv", ".git", "__pycache__", ".*_cache")
    return shutil.copytree(HERE, folder / "copy", ignore=ignored)


def _environment(root: Path) -> dict[str, str]:
    """That of tests of a copy: what they import, and the processes that they start, is the copy's."""
    return os.environ | {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}


# Which mutants are noticed.


def try_mutant(mutant: Mutant, visitors: list[str], seconds: dict[str, float]) -> dict[str, object]:
    """Run the tests that come by a mutant, quick ones first, until one fails."""
    tests = sorted(visitors, key=lambda test: seconds.get(test, 0.0))
    if (
        not tests
    ):  # it runs when the file is imported: then any test may tell, those of its package first
        tests = [str(Path("tests", *Path(mutant.path).parts[1:-1])), "tests"]
        tests = [test for test in tests if (HERE / test).exists()]
    began, killer = time.monotonic(), ""
    with tempfile.TemporaryDirectory() as folder:
        root = _copy(Path(folder))
        content = (root / mutant.path).read_bytes()
        content = content[: mutant.start] + mutant.after.encode() + content[mutant.end :]
        (root / mutant.path).write_bytes(content)
        some, more = (1, 1) if not visitors else (40, 400)
        for start, stop in ((0, some), (some, more), (more, len(tests))):
            killer = killer or _first_failure(root, tests[start:stop])
    return {
        **asdict(mutant),
        "tests": len(visitors),
        "killed by": killer or None,
        "seconds": round(time.monotonic() - began),
    }


def _first_failure(root: Path, tests: list[str]) -> str:
    """The first of some tests that fails in a copy of the repository; empty if none does."""
    if not tests:
        return ""
    names = root.parent / "tests.txt"
    names.write_text("\n".join(tests))
    process = subprocess.Popen(
        [*PYTEST, "-x", "--tb=no", f"@{names}"],
        cwd=root,
        env=_environment(root),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        out, _ = process.communicate(timeout=AT_MOST)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return "it does not end"
    if process.returncode == 0:
        return ""
    failed = FAILED.search(out)
    return failed[1] if failed else f"pytest's exit status {process.returncode}"


def main() -> None:
    """Try mutants, and say which survive."""
    parser = argparse.ArgumentParser(description="Which changes of product code no test notices.")
    parser.add_argument(
        "--out", type=Path, required=True, help="a file for the mutants and who kills them"
    )
    parser.add_argument(
        "--before", type=Path, help="what --out has written before the tests were changed"
    )
    parser.add_argument(
        "--visits",
        type=Path,
        help="an earlier run's OUT.visits.json: the tests that come by each mutant",
    )
    parser.add_argument("--mutants", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    mutants = draw(options.mutants, options.seed)
    visits = options.visits or options.out.with_suffix(".visits.json")
    if options.visits is None:
        visits.write_text(json.dumps(visitors_of(mutants)))
    visitors, seconds = json.loads(visits.read_text())
    done: list[dict[str, object]] = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for result in pool.map(
            lambda mutant, tests: try_mutant(mutant, tests, seconds), mutants, visitors
        ):
            done.append(result)
            options.out.write_text(json.dumps(done, indent=1))
            verdict = f"killed by {result['killed by']}" if result["killed by"] else "SURVIVES"
            print(f"{_named(result)}: {verdict}", flush=True)
    print(f"{sum(bool(each['killed by']) for each in done)} of {len(done)} mutants are killed")
    if options.before:
        earlier = json.loads(options.before.read_text())
        pairs = zip(earlier, done, strict=True)
        lost = [old for old, new in pairs if old["killed by"] and not new["killed by"]]
        print(f"{len(lost)} were killed before, and are not now")
        for each in lost:
            print(f"  {_named(each)}, by {each['killed by']}")
        sys.exit(bool(lost))


def _named(mutant: dict[str, object]) -> str:
    return f"{mutant['path']}:{mutant['line']}: {mutant['before']!r} → {mutant['after']!r}"


if __name__ == "__main__":
    main()
