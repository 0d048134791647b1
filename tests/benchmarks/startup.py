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
import tempfile
import time
from pathlib import Path

from attnscope.checkpoints.checkpoint import find_checkpoint

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
CODE = Path(__file__).parent.parent / "tracing" / "code"
TRACE = f"""
trace {CODE / "tutorial_mha.py"}:MultiHeadedAttention --init d_feat=200 --init n_head=5
--input Q=n_batch:128,n_Q:32,d_feat --input K=n_batch,n_K:48,d_feat --input V=n_batch,n_K,d_feat
""".split()
FORWARD = [
    sys.executable,
    "-c",
    f"""
import sys
import torch
sys.path.insert(0, {str(CODE)!r})
from tutorial_mha import MultiHeadedAttention
Q, K = torch.randn(128, 32, 200), torch.randn(128, 48, 200)
MultiHeadedAttention(d_feat=200, n_head=5).eval()(Q, K, K)
""",
]
LLAMA_70B = f"""
trace {CODE / "grouped.py"}:GroupedQueryAttention --device meta
--init hidden_size=8192 --init num_heads=64 --init num_key_value_heads=8
--input hidden_states=n_batch:1,n:8192,hidden_size
""".split()
TEXT = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text(encoding="utf-8")
PASS = [
    sys.executable,
    "-c",
    f"""
import torch
from transformers import AutoModel, AutoTokenizer
folder = {str(find_checkpoint("minilm").folder)!r}
tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
with torch.no_grad():
    model(**tokenizer({TEXT!r}, return_tensors="pt", truncation=True, max_length=512))
""",
]
READ = ["bert", "--text", TEXT, "--truncate"]
PAGE = ["--page", str(Path(tempfile.mkdtemp()) / "page.html"), "--force"]
DRY_RUN = ["mha", "--dry-run", "--nq", "1000000", "--d-feat", "8192", "--heads", "64"]

CASES = [
    ("attnscope --help", [*ATTNSCOPE, "--help"], "import torch", TORCH),
    ("attnscope mha --dry-run", [*ATTNSCOPE, *DRY_RUN], "import torch", TORCH),
    ("attnscope sdpa", [*ATTNSCOPE, "sdpa"], "import torch", TORCH),
    ("attnscope mha", [*ATTNSCOPE, "mha"], "import torch", TORCH),
    ("attnscope trace", [*ATTNSCOPE, *TRACE], "import torch, one forward", FORWARD),
    ("attnscope trace, 8k of Llama-70B", [*ATTNSCOPE, *LLAMA_70B], "import torch", TORCH),
    (
        "attnscope bert --layer 0 --head 0",
        [*ATTNSCOPE, "bert", "--layer", "0", "--head", "0"],
        "BertModel.from_pretrained, then slicing",
        TUTORIAL,
    ),
    ("attnscope bert --text, 512 tokens", [*ATTNSCOPE, *READ], "load, one plain pass", PASS),
    ("attnscope bert --page, 512 tokens", [*ATTNSCOPE, *READ, *PAGE], "load, one plain pass", PASS),
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
    parser.add_argument("--only", default="", help="cases with this in their name")
    arguments = parser.parse_args()
    runs = arguments.runs
    print("| A | B | A | B | time A/B (least – greatest) | memory A/B |")
    print("|:--|:--|--:|--:|--:|--:|")
    for name, command, yardstick_name, yardstick in CASES:
        if arguments.only not in name:
            continue
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
