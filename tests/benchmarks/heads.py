"""What measuring every head costs, beside the passes without it, and what it takes beside its plan.

Run: python -m tests.benchmarks.heads [--long] [--plan [--layers N]]

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

Last, the command itself reads a text of so many tokens in a process of its own: what the process takes
while it measures, beside what it had when that began, and what the plan said (Linux alone).
"""

import argparse
import gc
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from attnscope.attention.blocks import of_weights
from attnscope.base.units import bytes_text
from attnscope.model.files.checkpoint import Checkpoint
from attnscope.model.heads.batches import Encoded, TextBatch
from attnscope.model.heads.measurer import HeadMeasurer, run
from attnscope.model.heads.metrics import METRICS, AxisTokens, WeightRows
from attnscope.model.heads.statistics import Accumulator
from attnscope.model.run.memory_plan import needs_of, plan_run
from tests.model.run.readers import WORDS, save_tokenizer

LENGTHS = (512, 1024, 2048, 4096, 8192)
COMPARED = 2048
PLANNED = (2048, 8192, 32768)
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


def batch_of(n: int) -> TextBatch:
    ids = torch.randint(3, SHAPE["vocab_size"], (1, n), generator=torch.Generator().manual_seed(1))
    none = torch.zeros(1, n, dtype=torch.bool)
    first = torch.arange(n)[None] == 0
    side = AxisTokens(ids.int(), ~none, none, none, ids % 10 == 0, first)
    return TextBatch({"input_ids": ids}, side, None, [Encoded({"input_ids": ids[0].tolist()}, None, n)])


def plain(model: LlamaForCausalLM, batch: TextBatch) -> None:
    with torch.no_grad():
        model(batch.inputs["input_ids"])


def layers(model: LlamaForCausalLM, batch: TextBatch) -> None:
    run(model, batch)


def measurer_of(model: LlamaForCausalLM, n: int) -> HeadMeasurer:
    plan = plan_run("the model", needs_of(model.config, 4, 1, n), MEMORY, "cpu")
    options = {"block_bytes": plan.block, "keep": plan.keep}
    return HeadMeasurer(Checkpoint("the model", None), model, list(METRICS), **options)


def heads(model: LlamaForCausalLM, batch: TextBatch) -> Accumulator:
    return measurer_of(model, len(batch.texts[0].inputs["input_ids"])).measure(batch)


def eager(model: LlamaForCausalLM, batch: TextBatch) -> Accumulator:
    """The same metrics of the maps of all layers, which `output_attentions` returns."""
    measurer, accumulator = measurer_of(model, len(batch.texts[0].inputs["input_ids"])), Accumulator()
    with torch.no_grad():
        maps = model(batch.inputs["input_ids"], output_attentions=True).attentions
    for layer, attention in enumerate(maps):
        rows: WeightRows = measurer._rows("self", batch.source, batch.source)
        rows.add(of_weights(attention))
        measurer._add(accumulator, ("self", layer), rows)
    return accumulator


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
    took, size = of_a_process("--alone", way, str(n))
    return took, size


def in_a_command(folder: Path, n: int) -> tuple[int, int]:
    """Bytes that the plan of `attnscope heads` tells, and that it takes while it measures; in this process."""
    from attnscope.cli.app import main
    from attnscope.model.run import memory_plan as plan

    told: dict[str, int] = {}
    measure, plan_it = HeadMeasurer.measure, plan.plan_run

    def planned(*given: Any, **options: Any) -> plan.MemoryPlan:
        of_run = plan_it(*given, **options)
        told["plan"] = of_run.total
        return of_run

    def measured(self: HeadMeasurer, batch: TextBatch) -> Accumulator:
        gc.collect()
        forget_the_largest()
        before = largest()
        accumulator = measure(self, batch)
        told["taken"] = largest() - before
        return accumulator

    HeadMeasurer.measure, plan.plan_run = measured, planned  # type: ignore[method-assign]
    text = folder / f"{n}.txt"
    words = random.Random(1).choices(WORDS[5:], k=n - 2)
    text.write_text(" ".join(words))
    assert main(["heads", str(folder), "--file", str(text), "--format", "csv"]) == 0
    return told["plan"], told["taken"]


def print_planned(lengths: Sequence[int], n_layer: int) -> None:
    """What the plan says, and what is taken."""
    print(
        f"\n{n_layer} layers\n\n| tokens | planned | taken | taken / planned |\n|--:|--:|--:|--:|",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as name:
        config = LlamaConfig(
            **{**SHAPE, "num_hidden_layers": n_layer, "max_position_embeddings": PLANNED[-1]}
        )
        LlamaForCausalLM(config).save_pretrained(name)
        save_tokenizer(Path(name))
        for n in lengths:
            planned, taken = of_a_process("--command", name, str(n))
            sizes = f"{bytes_text(planned)} | {bytes_text(taken)}"
            print(f"| {n:,} | {sizes} | {taken / planned:.2f} |", flush=True)


def of_a_process(*arguments: str) -> Any:
    """The last line of what this script prints in a process of its own."""
    command = [sys.executable, "-m", "tests.benchmarks.heads", *arguments]
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(out.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description="What measuring every head costs.")
    parser.add_argument(
        "--long", action="store_true", help="8,192 tokens too: some minutes; of the plan 32,768: an hour"
    )
    parser.add_argument("--plan", action="store_true", help="only what is planned, and what is taken")
    parser.add_argument("--layers", type=int, default=SHAPE["num_hidden_layers"], help="of --plan")
    parser.add_argument("--alone", nargs=2, metavar=("WAY", "N"), help=argparse.SUPPRESS)
    parser.add_argument("--command", nargs=2, metavar=("MODEL", "N"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.command:
        print(json.dumps(in_a_command(Path(given.command[0]), int(given.command[1]))))
        return
    lengths = PLANNED if given.long else PLANNED[:-1]
    if given.plan:
        print_planned(lengths, given.layers)
        return
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
    print_planned(lengths, given.layers)


if __name__ == "__main__":
    main()
