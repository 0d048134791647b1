"""What `sdpa` and `mha` take of memory, beside their estimate. Run: python -m tests.benchmarks.memory [--all]

Each command runs in a process of its own, at 4,000 queries and 4,000 keys: first on some tokens, so that all
is imported, then as it is. Its peak is the largest that the process was meanwhile, less what it was before
(Linux: proc(5), VmHWM and clear_refs). The estimate is what attnscope compares with the free memory before
it runs. Without --all, each option alone is measured, and what was once underestimated; with it, options are
combined so that each pair occurs. It judges nothing: these are figures for docs/benchmarks.md.
"""

import argparse
import contextlib
import io
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

N = 4000
SMALL = 40

FACTORS = {
    "sdpa": {
        "dtype": ["", "--dtype bfloat16", "--dtype float16", "--dtype float64"],
        "softmax": ["", "--softmax-dtype float64", "--softmax-dtype float32"],
        "mask": [
            *("", "--mask causal", "--mask causal --mask window:50,50", "--mask prefix:9"),
            *("--mask causal --mask-style additive", "--mask lengths:7", "--mask FILES/mask.npy"),
        ],
        "rows": ["", "--masked-rows zero", "--masked-rows nan"],
        "form": [
            *("", "--heads 2", "--heads 4 --kv-heads 2", "--layout columns", "--query 3", "--batch 2"),
            "--x FILES/x.npy --wq FILES/w.npy --wk FILES/w.npy --wv FILES/w.npy",
        ],
        "positions": ["", "--rope", "--past 100"],
        "cap": ["", "--softcap 30"],
        "proof": ["", "--verify"],
        "values": [
            *("", "--stats", "--numbers", "--save FILES/out.safetensors --force"),
            *("--show attention[0,0]", "--save FILES/out.pt --force"),
        ],
        "widths": ["", "--dk 512 --dv 512"],
    },
    "mha": {
        "dtype": ["", "--dtype bfloat16", "--dtype float64"],
        "softmax": ["", "--softmax-dtype float64"],
        "mask": ["", "--mask causal", "--mask causal --mask-style additive"],
        "rows": ["", "--masked-rows zero"],
        "form": ["--heads 2", "--heads 4 --kv-heads 2", "--heads 2 --nk 4000 --d-context 64"],
        "positions": ["", "--rope", "--past 100"],
        "cap": ["", "--softcap 30"],
        "dropout": ["", "--train --dropout 0.2"],
        "proof": ["", "--verify"],
        "values": ["", "--stats", "--numbers", "--save FILES/out.safetensors --force"],
    },
}
REPORTED = [
    "--verify",
    "--dtype bfloat16 --verify",
    "--softmax-dtype float64",
    "--mask causal --masked-rows zero --verify",
]


def possible(choice: dict[str, str]) -> bool:
    """Whether attnscope takes these options together."""
    columns, query = "columns" in choice["form"], "query" in choice["form"]
    if choice.get("rows") and not choice["mask"]:
        return False
    if columns and choice["positions"] == "--rope":
        return False
    if "--x" in choice["form"] and (choice["positions"] == "--past 100" or choice.get("widths")):
        return False
    if "mask.npy" in choice["mask"] and choice["positions"] == "--past 100":
        return False
    if "lengths" in choice["mask"] and "--batch 2" in choice["form"]:
        return False
    if query and "--show" in choice["values"]:
        return False
    return not ("--dk" in choice.get("widths", "") and "--heads 4" in choice["form"])


def combined(factors: dict[str, list[str]]) -> list[str]:
    """Options so that each pair of values occurs that is possible; greedy, seeded."""
    drawn = random.Random(0)
    names = list(factors)
    left = {
        ((a, x), (b, y))
        for i, a in enumerate(names)
        for b in names[i + 1 :]
        for x in factors[a]
        for y in factors[b]
    }
    rows, tries = [], 0
    while left and tries < 30:
        best, gain = None, 0
        for _ in range(150):
            choice = {name: drawn.choice(values) for name, values in factors.items()}
            (a, x), (b, y) = drawn.choice(sorted(left))
            choice |= {a: x, b: y}
            if possible(choice):
                pairs = pairs_of(choice, names) & left
                if len(pairs) > gain:
                    best, gain = choice, len(pairs)
        if best is None:
            tries += 1
            continue
        left -= pairs_of(best, names)
        rows.append(" ".join(filter(None, best.values())))
    return rows


def pairs_of(choice: dict[str, str], names: list[str]) -> set:
    return {((a, choice[a]), (b, choice[b])) for i, a in enumerate(names) for b in names[i + 1 :]}


def alone(factors: dict[str, list[str]]) -> list[str]:
    """Each value of each factor, beside the first ones of the others."""
    first = {name: values[0] for name, values in factors.items()}
    rows = {" ".join(filter(None, first.values())): None}
    for name, values in factors.items():
        for value in values[1:]:
            choice = first | {name: value}
            if name == "rows":
                choice["mask"] = "--mask causal"
            rows[" ".join(filter(None, choice.values()))] = None
    return list(rows)


def arguments(command: str, options: str, n: int, files: Path) -> list[str]:
    """A command line of so many queries and keys."""
    words = options.replace("FILES", str(files)).split()
    sizes = [] if "--batch" in words else ["--batch", "1"]
    if "--x" not in words:
        sizes += ["--nq", str(n)]
    if "--nk" in words:
        words[words.index("--nk") + 1] = str(n)
    elif command == "sdpa" and "--x" not in words:
        sizes += ["--nk", str(n - (100 if n > 1000 else 4) if "--past" in words else n)]
    if "--past" in words and n < 1000:
        words[words.index("--past") + 1] = "4"
    return [command, *sizes, *words]


def write_files(n: int, files: Path) -> None:
    import numpy as np

    drawn = np.random.default_rng(0)
    files.mkdir(exist_ok=True)
    np.save(files / "x.npy", drawn.standard_normal((1, n, 64), dtype=np.float32))
    np.save(files / "w.npy", drawn.standard_normal((64, 128), dtype=np.float32))
    np.save(files / "mask.npy", drawn.random((n, n)) < 0.7)


def run(line: list[str]) -> int:
    """Run a command; returns what it estimated."""
    from attnscope.base.process import devices as drawn
    from attnscope.cli.app import main

    estimates = []
    check = drawn.check_memory
    drawn.check_memory = lambda needed, *more: estimates.append(needed)
    out, errors = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            status = main(line)
    finally:
        drawn.check_memory = check
    if status != 0:
        sys.exit(f"{' '.join(line)}: {status} {errors.getvalue()} {out.getvalue()[-2000:]}")
    return estimates[-1]


def of_process(field: str) -> int:
    """A size of this process, in bytes, as proc(5) names it."""
    text = Path("/proc/self/status").read_text()
    [line] = [each for each in text.splitlines() if each.startswith(f"{field}:")]
    return int(line.split()[1]) * 1024


def measure(command: str, options: str, files: Path) -> tuple[int, int]:
    """The peak and the estimate of a command, in this process."""
    write_files(SMALL, files / "small")
    run(arguments(command, options, SMALL, files / "small"))
    write_files(N, files / "large")
    before = of_process("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    estimate = run(arguments(command, options, N, files / "large"))
    return of_process("VmHWM") - before, estimate


def in_a_process(command: str, options: str) -> tuple[int, int]:
    out = subprocess.run(
        [sys.executable, __file__, "--measure", command, f" {options}"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    peak, estimate = json.loads(out.splitlines()[-1])
    return peak, estimate


def main() -> None:
    parser = argparse.ArgumentParser(description="Peaks of memory beside estimates.")
    parser.add_argument("--all", action="store_true", help="every pair of options: half an hour")
    parser.add_argument("--only", help="commands and options that contain this")
    parser.add_argument("--measure", nargs=2, metavar=("COMMAND", "OPTIONS"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(measure(*given.measure, Path(folder))))
        return
    ratios = []
    print("| command | peak | estimate | peak / estimate |\n|:--|--:|--:|--:|")
    for command, factors in FACTORS.items():
        rows = combined(factors) if given.all else [*alone(factors), *REPORTED * (command == "sdpa")]
        for options in rows:
            if given.only and given.only not in f"{command} {options}":
                continue
            peak, estimate = in_a_process(command, options)
            ratios.append(peak / estimate)
            sizes = f"{peak / 2**20:,.0f} MiB | {estimate / 2**20:,.0f} MiB"
            print(f"| `{command} {options}` | {sizes} | {ratios[-1]:.2f} |", flush=True)
    ratios.sort()
    middle = ratios[len(ratios) // 2]
    print(f"\n{len(ratios)} commands: {ratios[0]:.2f} to {ratios[-1]:.2f}, median {middle:.2f}")


if __name__ == "__main__":
    main()
