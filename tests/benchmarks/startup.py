"""How long people wait, beside what they would wait for anyway. Run: python -m tests.benchmarks.startup

Each command is run in turn with its yardstick, A B A B …, as whole processes. What counts is the ratio
of each pair, so that a machine whose speed drifts slows both sides alike; the median is printed, with
the least and the greatest. It judges nothing: these are figures for docs/benchmarks.md.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from attnscope.model.files.checkpoint import find_checkpoint

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
CODE = Path(__file__).parents[1] / "code" / "trace" / "code"
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


def write_headers(folder: Path, n_layer: int = 126, n_file: int = 191) -> Path:
    """Write the configuration of Llama 3.1 405B and its headers, in files whose weights are holes."""
    d_feat, d_mlp, vocabulary, d_kv = 16384, 53248, 128256, 1024
    sizes = {"self_attn.q_proj": (d_feat, d_feat), "self_attn.o_proj": (d_feat, d_feat)}
    sizes |= {f"self_attn.{name}_proj": (d_kv, d_feat) for name in "kv"}
    sizes |= {"mlp.gate_proj": (d_mlp, d_feat), "mlp.up_proj": (d_mlp, d_feat)}
    sizes |= {"mlp.down_proj": (d_feat, d_mlp), "input_layernorm": (d_feat,)}
    sizes |= {"post_attention_layernorm": (d_feat,)}
    tensors = [
        (f"model.layers.{i}.{name}.weight", size) for i in range(n_layer) for name, size in sizes.items()
    ]
    tensors += [(f"{name}.weight", (vocabulary, d_feat)) for name in ("model.embed_tokens", "lm_head")]
    for i in range(n_file):
        entries, end = {}, 0
        for name, size in tensors[i::n_file]:
            start, end = end, end + 2 * math.prod(size)
            entries[name] = {"dtype": "BF16", "shape": size, "data_offsets": [start, end]}
        header = json.dumps(entries).encode()
        with (folder / f"model-{i + 1:05}-of-{n_file:05}.safetensors").open("wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            file.truncate(8 + len(header) + end)
    files = {
        name: f"model-{i % n_file + 1:05}-of-{n_file:05}.safetensors"
        for i, (name, _) in enumerate(tensors)
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    config = {"model_type": "llama", "hidden_size": d_feat, "num_hidden_layers": n_layer}
    config |= {"num_attention_heads": 128, "num_key_value_heads": 8, "dtype": "bfloat16"}
    config |= {"max_position_embeddings": 131072, "rope_theta": 500000.0}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


LLAMA_405B = write_headers(Path(tempfile.mkdtemp()))

CASES = [
    ("attnscope --help", [*ATTNSCOPE, "--help"], "import torch", TORCH),
    ("attnscope mha --dry-run", [*ATTNSCOPE, *DRY_RUN], "import torch", TORCH),
    ("attnscope sdpa", [*ATTNSCOPE, "sdpa"], "import torch", TORCH),
    ("attnscope mha", [*ATTNSCOPE, "mha"], "import torch", TORCH),
    (
        "attnscope card, 405B in 191 files",
        [*ATTNSCOPE, "card", str(LLAMA_405B)],
        "attnscope --help",
        [*ATTNSCOPE, "--help"],
    ),
    (
        "attnscope card, its config.json",
        [*ATTNSCOPE, "card", str(LLAMA_405B / "config.json")],
        "attnscope --help",
        [*ATTNSCOPE, "--help"],
    ),
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
