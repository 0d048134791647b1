"""What comparing two checkpoints costs: seconds, memory, and bytes read from the disk.

Run: python -m tests.benchmarks.checkpoints [--layers 1 2 4] [--dtype bfloat16]

Two checkpoints of the shape of Llama-70B (d_feat 8,192, 64 heads on 8 key/value heads, d_head 128), with
random attention weights that differ in every value, and MLPs that nobody should read (holes in the
files). Each comparison runs in a process of its own, after the files were evicted from the page cache.

Each uses one core: other processes that share the cores make several threads of a BLAS wait for each other.
Memory is the process's largest resident set beyond what it had before the comparison, mapped pages of the
files included. Bytes read are those that the disk delivered (proc(5): /proc/pid/io, Linux). It judges
nothing: these are figures for docs/benchmarks.md.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from math import prod
from pathlib import Path

import numpy as np

from attnscope import compare_checkpoints
from attnscope.base.units import bytes_text

SHAPE = {"hidden_size": 8192, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128}
ATTENTION = {
    "self_attn.q_proj": (8192, 8192),
    "self_attn.k_proj": (1024, 8192),
    "self_attn.v_proj": (1024, 8192),
    "self_attn.o_proj": (8192, 8192),
}
MLP = {"mlp.gate_proj": (28672, 8192), "mlp.up_proj": (28672, 8192), "mlp.down_proj": (8192, 28672)}
BYTES = {"bfloat16": ("BF16", 2), "float32": ("F32", 4)}


def write(folder: Path, n_layer: int, dtype: str, seed: int) -> int:
    """Write a checkpoint; return the bytes of its attention weights."""
    folder.mkdir()
    config = {"model_type": "llama", "num_hidden_layers": n_layer, **SHAPE}
    (folder / "config.json").write_text(json.dumps(config))
    kind, itemsize = BYTES[dtype]
    header, offset = {}, 0
    for layer in range(n_layer):
        for module, shape in {**ATTENTION, **MLP}.items():
            end = offset + prod(shape) * itemsize
            name = f"model.layers.{layer}.{module}.weight"
            header[name] = {"dtype": kind, "shape": shape, "data_offsets": [offset, end]}
            offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    rng = np.random.default_rng(seed)
    written = 0
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + offset)
        for name, entry in header.items():
            if "self_attn" not in name:
                continue
            file.seek(8 + len(text) + entry["data_offsets"][0])
            for _ in range(entry["shape"][0] // 1024):
                values = rng.standard_normal((1024, entry["shape"][1]), np.float32)
                file.write((values.view(np.uint32) >> 16).astype(np.uint16) if itemsize == 2 else values)
            written += entry["data_offsets"][1] - entry["data_offsets"][0]
        file.flush()
        os.fsync(file.fileno())
    return written


def evict(folder: Path) -> None:
    """Remove a checkpoint's files from the page cache."""
    with (folder / "model.safetensors").open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_from_disk() -> int:
    """Return the bytes that the disk has delivered to this process."""
    path = Path("/proc/self/io")
    if not path.exists():
        return 0
    fields = dict(line.split(": ") for line in path.read_text().splitlines())
    return int(fields["read_bytes"])


def measure(a: Path, b: Path) -> dict[str, float]:
    """Compare two checkpoints in this process."""
    compare_checkpoints("minilm", "minilm", layers=0)  # imports
    np.linalg.qr(np.ones((300, 200)))
    before, read = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, read_from_disk()
    began = time.perf_counter()
    table = compare_checkpoints(a, b)
    took = time.perf_counter() - began
    assert len(table.changed) == len(table.rows)
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"seconds": took, "memory": largest - before, "read": read_from_disk() - read}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--dtype", choices=BYTES, default="bfloat16")
    parser.add_argument("--alone", type=Path, nargs=2)
    options = parser.parse_args()
    if options.alone:
        print(json.dumps(measure(*options.alone)))
        return
    print("| layers | attention weights of both | whole files | time | memory | read from the disk |")
    print("|--:|--:|--:|--:|--:|--:|")
    for n_layer in options.layers:
        with tempfile.TemporaryDirectory() as folder:
            places = [Path(folder) / name for name in ("a", "b")]
            size = sum(write(place, n_layer, options.dtype, i) for i, place in enumerate(places))
            whole = sum((place / "model.safetensors").stat().st_size for place in places)
            for place in places:
                evict(place)
            command = [sys.executable, __file__, "--alone", *map(str, places)]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            run = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
            found = json.loads(run.stdout)
        texts = [bytes_text(each) for each in (size, whole)]
        texts += [f"{found['seconds']:.1f} s", bytes_text(found["memory"]), bytes_text(found["read"])]
        print("|", n_layer, "|", " | ".join(texts), "|", flush=True)


if __name__ == "__main__":
    main()
