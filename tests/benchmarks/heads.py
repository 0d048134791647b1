"""What measuring every head costs, beside the passes without it. Run: python tests/benchmarks/heads.py [--long]

A model of Llama's shape with random weights (30 layers, 9 heads on 3 key heads, 64 wide, 49,152 tokens in its
vocabulary) reads random tokens. Four ways to run it, each in a process of its own:

plain    the model, fused attention, logits and all: what `model(input_ids)` costs
layers   the same without the logits, which no head needs
heads    attnscope measures all metrics of all heads, block by block
eager    `output_attentions`, and the same metrics of the maps that come back

Time is that of the pass alone; plain, layers and heads are run in turn in one process, and ratios are taken
round by round. Memory is the process's largest during the pass, weights and libraries included, but not what
it took to make the model (Linux; elsewhere the largest since it began). It judges nothing: these are figures
for docs/benchmarks.md.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from attnscope.attention.blocks import of_weights
from attnscope.models.batches import Batch, Encoded
from attnscope.models.checkpoint import Checkpoint
from attnscope.models.metrics import METRICS, Rows, Side
from attnscope.models.plan import plan_run
from attnscope.models.survey import Survey, run
from attnscope.models.tally import Tally
from attnscope.units import bytes_text

LENGTHS = (512, 1024, 2048, 4096, 8192)
COMPARED = 2048
ROUNDS = 5
MEMORY = 2**34
SHAPE = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}


def model_of(attention: str) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(**SHAPE, attn_implementation=attention, use_cache=False)
    with torch.device("cpu"):
        return LlamaForCausalLM(config).eval()


def batch_of(n: int) -> Batch:
    ids = torch.randint(3, SHAPE["vocab_size"], (1, n), generator=torch.Generator().manual_seed(1))
    none = torch.zeros(1, n, dtype=torch.bool)
    side = Side(ids.int(), ~none, none, none, ids % 10 == 0)
    return Batch({"input_ids": ids}, side, None, [Encoded({"input_ids": ids[0].tolist()}, None, n)])


def plain(model: LlamaForCausalLM, batch: Batch) -> None:
    with torch.no_grad():
        model(batch.inputs["input_ids"])


def layers(model: LlamaForCausalLM, batch: Batch) -> None:
    run(model, batch)


def survey_of(model: LlamaForCausalLM, n: int) -> Survey:
    plan = plan_run("the model", model.config, 4, 1, n, MEMORY, "cpu")
    options = {"block_bytes": plan.block, "keep": plan.keep}
    return Survey(Checkpoint("the model", None), model, list(METRICS), **options)


def heads(model: LlamaForCausalLM, batch: Batch) -> Tally:
    return survey_of(model, len(batch.texts[0].inputs["input_ids"])).measure(batch)


def eager(model: LlamaForCausalLM, batch: Batch) -> Tally:
    """The same metrics of the maps of all layers, which `output_attentions` returns."""
    survey, tally = survey_of(model, len(batch.texts[0].inputs["input_ids"])), Tally()
    with torch.no_grad():
        maps = model(batch.inputs["input_ids"], output_attentions=True).attentions
    for layer, attention in enumerate(maps):
        rows: Rows = survey._rows("self", batch.source, batch.source)
        rows.add(of_weights(attention))
        survey._add(tally, ("self", layer), rows)
    return tally


WAYS: dict[str, Callable] = {"plain": plain, "layers": layers, "heads": heads, "eager": eager}


def seconds(way: Callable[[], object]) -> float:
    began = time.perf_counter()
    way()
    return time.perf_counter() - began


def in_turn(n: int) -> dict[str, list[float]]:
    """Seconds of each way but the eager one, round by round."""
    model, batch = model_of("sdpa"), batch_of(n)
    ways = {name: partial(WAYS[name], model, batch) for name in ("plain", "layers", "heads")}
    for way in ways.values():
        way()
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            found[name].append(seconds(way))
    return found


def alone(way: str, n: int) -> tuple[float, int]:
    """Seconds of one way, and the bytes that its process takes at most; in this process."""
    model, batch = model_of("eager" if way == "eager" else "sdpa"), batch_of(n)
    WAYS[way](model, batch_of(64))
    forget_the_largest()
    took = seconds(partial(WAYS[way], model, batch))
    return took, largest()


def forget_the_largest() -> None:
    """Have Linux count a process's largest size from now on (proc(5): /proc/pid/clear_refs)."""
    if sys.platform == "linux":
        Path("/proc/self/clear_refs").write_text("5")


def largest() -> int:
    """How many bytes this process has taken at most."""
    if sys.platform == "linux":
        [line] = [
            each
            for each in Path("/proc/self/status").read_text().splitlines()
            if each.startswith("VmHWM:")
        ]
        return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def in_a_process(way: str, n: int) -> tuple[float, int]:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--alone", way, str(n)]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    took, size = json.loads(out.splitlines()[-1])
    return took, size


def main() -> None:
    parser = argparse.ArgumentParser(description="What measuring every head costs.")
    parser.add_argument("--long", action="store_true", help="8,192 tokens too: some minutes")
    parser.add_argument("--alone", nargs=2, metavar=("WAY", "N"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.alone:
        print(json.dumps(alone(given.alone[0], int(given.alone[1]))))
        return
    print(
        f"{COMPARED:,} tokens, {ROUNDS} rounds in turn\n\n| | seconds | memory | heads beside it |\n|:--|--:|--:|--:|"
    )
    found = in_turn(COMPARED)
    memory = {name: in_a_process(name, COMPARED) for name in WAYS}
    for name in WAYS:
        size = memory[name][1]
        ratio = f"{memory['heads'][1] / size:.2f} of the memory"
        if name == "heads":
            print(f"| heads | {statistics.median(found[name]):.2f} | {bytes_text(size)} | |")
        elif name in found:
            pairs = [ours / theirs for ours, theirs in zip(found["heads"], found[name], strict=True)]
            spread = f"{statistics.median(pairs):.2f} ({min(pairs):.2f} – {max(pairs):.2f}) of the time"
            print(
                f"| {name} | {statistics.median(found[name]):.2f} | {bytes_text(size)} | {spread}, {ratio} |"
            )
        else:
            took = memory[name][0]
            spread = f"{memory['heads'][0] / took:.2f} of the time"
            print(f"| {name} | {took:.2f} | {bytes_text(size)} | {spread}, {ratio} |")
    print("\n| tokens | layers | heads | layers, memory | heads, memory | eager maps alone |")
    print("|--:|--:|--:|--:|--:|--:|")
    for n in LENGTHS if given.long else LENGTHS[:-1]:
        of_layers, of_heads = in_a_process("layers", n), in_a_process("heads", n)
        maps = 4 * n * n * SHAPE["num_hidden_layers"] * SHAPE["num_attention_heads"]
        times = [f"{took:.1f} s" for took, _ in (of_layers, of_heads)]
        sizes = [bytes_text(size) for _, size in (of_layers, of_heads)]
        print(f"| {n:,} | {' | '.join(times + sizes)} | {bytes_text(maps)} |", flush=True)


if __name__ == "__main__":
    main()
