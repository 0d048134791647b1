"""How long people wait, beside what they would wait for anyway. Run: python tests/benchmarks/startup.py

Each command is run in turn with its yardstick, A B A B …, as whole processes. What counts is the ratio
of each pair, so that a machine whose speed drifts slows both sides alike; the median is printed, with
the least and the greatest. It judges nothing: these are figures for docs/benchmarks.md.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from attnscope.models.checkpoint import find_checkpoint

ATTNSCOPE = [str(Path(sys.executable).parent / "attnscope")]
TORCH = [sys.executable, "-c", "import torch"]
TUTORIAL = [
    sys.executable,
    "-c",
    f"""
from transformers import BertModel
model = BertModel.from_pretrained({str(find_checkpoint("minilm").folder)!r})
attention, n = model.encoder.layer[0].attention, 32
print(attention.self.query.weight[:n], attention.self.key.weight[:n], attention.self.value.weight[:n])
print(attention.output.dense.weight[:, :n])
""",
]
DRY_RUN = ["mha", "--dry-run", "--nq", "1000000", "--d-feat", "8192", "--heads", "64"]

CASES = [
    ("attnscope --help", [*ATTNSCOPE, "--help"], "import torch", TORCH),
    ("attnscope mha --dry-run", [*ATTNSCOPE, *DRY_RUN], "import torch", TORCH),
    ("attnscope sdpa", [*ATTNSCOPE, "sdpa"], "import torch", TORCH),
    ("attnscope mha", [*ATTNSCOPE, "mha"], "import torch", TORCH),
    (
        "attnscope bert --layer 0 --head 0",
        [*ATTNSCOPE, "bert", "--layer", "0", "--head", "0"],
        "BertModel.from_pretrained, then slicing",
        TUTORIAL,
    ),
]


def measure(command: list[str]) -> tuple[float, float]:
    """Seconds on the clock, and MiB of memory at the peak, of one process."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command} ended with {process.returncode}")
    return time.perf_counter() - began, usage.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description="Start-up, as ratios.")
    parser.add_argument("--runs", type=int, default=9, help="counted pairs of each case")
    runs = parser.parse_args().runs
    print("| A | B | A | B | time A/B (least – greatest) | memory A/B |")
    print("|:--|:--|--:|--:|--:|--:|")
    for name, command, yardstick_name, yardstick in CASES:
        measure(command), measure(yardstick)  # warm the disk's cache
        pairs = [(measure(command), measure(yardstick)) for _ in range(runs)]
        ratios = [a[0] / b[0] for a, b in pairs]
        memory = [a[1] / b[1] for a, b in pairs]
        seconds = [statistics.median(pair[i][0] for pair in pairs) for i in (0, 1)]
        print(
            f"| `{name}` | `{yardstick_name}` | {seconds[0]:.2f} s | {seconds[1]:.2f} s"
            f" | **{statistics.median(ratios):.3f}** ({min(ratios):.3f} – {max(ratios):.3f})"
            f" | {statistics.median(memory):.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
