"""What `attnscope.answer` costs, beside plain generation of the same text.

Run: python -m tests.benchmarks.written [--tokens 8192] [--generate 200] [--repeats 5] [--only text]

text      a model of Llama's shape with random weights (8 layers, 12 heads on 4 key heads, 768 wide) reads a
          prompt of so many tokens, one for each byte, and writes; the prompt is divided into 20 segments
picture   a model of LLaVA's shape with random weights (a tower of 12 layers, 576 patches; the same text
          layers) reads a picture and a question, and writes 20 tokens

Plain generation and answers alternate in one process, after one of each that does not count, and ratios are
taken pair by pair; both attend with torch's `scaled_dot_product_attention`. Memory is that of one run in a
process of its own, at its peak: of the whole process, and without what it had before, which is libraries and
weights (Linux). It judges nothing: these are figures for docs/benchmarks.md.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers
from transformers.utils import logging

import attnscope
from attnscope.base.units import bytes_text
from tests.model.answers.families import SPECIAL, picture, processor_with, tokenizer
from tests.model.answers.segments.tokenizers_of import tokenizer_of

N_SEGMENT = 20
N_OF_PICTURE = 20
TEXT: dict[str, Any] = {
    "vocab_size": 400,
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 8,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "max_position_embeddings": 2**15,
    "eos_token_id": None,
    "pad_token_id": 0,
}
TOWER = {
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "image_size": 336,
    "patch_size": 14,
}

Way = Callable[[], list[int]]
"""Writes a text, and returns its ids."""


def ways_of_text(n_tokens: int, n: int) -> dict[str, Way]:
    """Plain generation and an answer, of a prompt."""
    reader = tokenizer_of("bytes")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**{**TEXT, "vocab_size": len(reader)})
    model = transformers.LlamaForCausalLM(config)
    text = ("the cat sat on the mat . the dog ran . " * n_tokens)[: n_tokens - 1]
    ends = [i * len(text) // N_SEGMENT for i in range(N_SEGMENT + 1)]
    segments = {f"part {i + 1}": [(ends[i], ends[i + 1])] for i in range(N_SEGMENT)}
    inputs = partial(reader, text, return_tensors="pt")
    assert inputs()["input_ids"].shape == (1, n_tokens)
    return ways(model, inputs, n, text, tokenizer=reader, by="segment", segments=segments)


def ways_of_picture(n: int) -> dict[str, Way]:
    """Plain generation and an answer, of a picture and a question."""
    torch.manual_seed(0)
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**TOWER),
        text_config=transformers.LlamaConfig(**TEXT),
        image_token_index=SPECIAL.index("<image>"),
    )
    images = transformers.CLIPImageProcessor(
        size={"shortest_edge": 336}, crop_size={"height": 336, "width": 336}
    )
    processor = processor_with(
        "LlavaProcessor",
        images,
        tokenizer(image_token="<image>"),
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )
    model, photo = transformers.LlavaForConditionalGeneration(config), picture(640, 480)
    text = "what is in the picture ?"

    def inputs() -> Any:
        return processor(images=photo, text=f"<image>{text}", return_tensors="pt")

    return ways(model, inputs, n, text, image=photo, processor=processor)


def ways(model: Any, inputs: Callable[[], Any], n: int, text: str, **options: Any) -> dict[str, Way]:
    """The same text written by transformers, and by attnscope, which records what is read.

    Args:
        model: writes it.
        inputs: tokenizes the prompt, and reads its picture.
        n: how many tokens are written.
        text, options: of `attnscope.answer`.
    """
    model.eval()
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = None, 0

    def plain() -> list[int]:
        prompt = inputs()
        written = model.generate(**prompt, max_new_tokens=n, do_sample=False)
        return written[0, prompt["input_ids"].shape[1] :].tolist()

    return {
        "plain": plain,
        "answer": lambda: attnscope.answer(model, text, generate=n, **options).ids,
    }


def ways_of(which: str, n_tokens: int, n: int) -> dict[str, Way]:
    return ways_of_text(n_tokens, n) if which == "text" else ways_of_picture(N_OF_PICTURE)


def in_turn(which: str, n_tokens: int, n: int, repeats: int) -> dict[str, list[float]]:
    """The seconds of both ways, pair by pair."""
    both = ways_of(which, n_tokens, n)
    written = {name: way() for name, way in both.items()}
    assert written["plain"] == written["answer"]
    found: dict[str, list[float]] = {name: [] for name in both}
    for i in range(repeats):
        for name in sorted(both, reverse=i % 2 == 0):
            began = time.perf_counter()
            both[name]()
            found[name].append(time.perf_counter() - began)
    return found


def of_process(field: str) -> int:
    """A size of this process, in bytes, as proc(5) names it."""
    text = Path("/proc/self/status").read_text()
    [line] = [each for each in text.splitlines() if each.startswith(f"{field}:")]
    return int(line.split()[1]) * 1024


def peak(which: str, way: str, n_tokens: int, n: int) -> tuple[int, int]:
    """The peak of one way in this process, and what the process had before."""
    ways_of(which, 64, 4)[way]()  # what is imported and allocated once
    run = ways_of(which, n_tokens, n)[way]
    before = of_process("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    run()
    return of_process("VmHWM"), before


def in_a_process(*arguments: object) -> tuple[int, int]:
    """The same in a process of its own."""
    command = [sys.executable, "-m", "tests.benchmarks.written", "--peak", *map(str, arguments)]
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    whole, before = json.loads(out.splitlines()[-1])
    return whole, before


def main() -> None:
    """Print a row for each prompt."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--generate", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", choices=["text", "picture"])
    parser.add_argument(
        "--peak", nargs=4, metavar=("PROMPT", "WAY", "TOKENS", "N"), help=argparse.SUPPRESS
    )
    given = parser.parse_args()
    logging.set_verbosity_error()
    if given.peak:
        which, way, n_tokens, n = given.peak
        print(json.dumps(peak(which, way, int(n_tokens), int(n))))
        return
    print("| prompt | plain | answer | time (least – greatest) | memory | memory without weights |")
    print("|:--|--:|--:|--:|--:|--:|")
    for which in ["text", "picture"] if given.only is None else [given.only]:
        found = in_turn(which, given.tokens, given.generate, given.repeats)
        pairs = [ours / theirs for ours, theirs in zip(found["answer"], found["plain"], strict=True)]
        sizes = {way: in_a_process(which, way, given.tokens, given.generate) for way in found}
        (plain, plain_before), (answer, before) = sizes["plain"], sizes["answer"]
        prompt = f"{given.tokens:,} tokens, {given.generate} written"
        cells = [
            prompt if which == "text" else f"a picture, {N_OF_PICTURE} written",
            f"{median(found['plain']):.1f} s",
            f"{median(found['answer']):.1f} s",
            f"**{median(pairs):.2f}** ({min(pairs):.2f} – {max(pairs):.2f})",
            f"**{answer / plain:.2f}** ({bytes_text(answer)}, {bytes_text(plain)})",
            f"{(answer - before) / (plain - plain_before):.2f}",
        ]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
