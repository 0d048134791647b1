"""What the effects of all heads cost, beside a run of the model for each head, as one writes it by hand.

Run: python -m tests.benchmarks.effects [--tokens 32 256] [--rounds 3] [--dtype float64]

The model has the shape of GPT-2 (12 layers, 12 heads, d_feat 768) and random weights. In each round, all ways
run one after the other in one process; ratios are taken within a round.

loop         for each head, a forward pass with a hook on W_O that sets the head's part of its input to 0
zero         attnscope.effects(columns="zero"), with everything that the call does
zero at last the same, of the last query's output alone
pass         one forward pass
first order  attnscope.effects(columns="first order"), likewise
"""

import argparse
import time
from statistics import median

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import attnscope

ANSWER, AGAINST = 11, 17


def seconds(run) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def loop(model: GPT2LMHeadModel, ids: torch.Tensor) -> dict[tuple[int, int], float]:
    """The difference of two logits without each head."""
    d_head = model.config.n_embd // model.config.n_head
    values = {}
    for layer in range(model.config.n_layer):
        for head in range(model.config.n_head):

            def without(module, arguments, head=head):
                z = arguments[0].clone()
                z[..., head * d_head : (head + 1) * d_head] = 0
                return (z,)

            handle = model.transformer.h[layer].attn.c_proj.register_forward_pre_hook(without)
            with torch.no_grad():
                logits = model(ids, use_cache=False).logits[0, -1]
            handle.remove()
            values[layer, head] = float(logits[ANSWER] - logits[AGAINST])
    return values


def measure(model: GPT2LMHeadModel, n: int, rounds: int) -> None:
    """Print the ratios of some rounds, and the largest difference between the two ways."""
    ids = torch.randint(3, 50_000, (1, n), generator=torch.Generator().manual_seed(1))
    arguments = {"ids": ids[0].tolist(), "answer": ANSWER, "against": AGAINST}

    def forward() -> None:
        with torch.no_grad():
            model(ids, use_cache=False)

    ways = {
        "loop": lambda: loop(model, ids),
        "zero": lambda: attnscope.effects(model, **arguments, columns="zero"),
        "zero at last": lambda: attnscope.effects(model, **arguments, columns="zero", at="last"),
        "pass": forward,
        "first order": lambda: attnscope.effects(model, **arguments, columns="first order"),
    }
    for way in ("zero", "pass", "first order"):
        ways[way]()
    taken = [{name: seconds(way) for name, way in ways.items()} for _ in range(rounds)]
    for name, other in (("zero", "loop"), ("zero at last", "loop"), ("first order", "pass")):
        ratios = [each[name] / each[other] for each in taken]
        shown = f"{median(ratios):.3f} ({min(ratios):.3f} - {max(ratios):.3f})"
        print(f"{n:5} tokens  {name} / {other}: {shown}", flush=True)
    table, hooked = ways["zero"](), loop(model, ids)
    off = max(abs(table.baseline + row["zero"] - hooked[row.layer, row.head]) for row in table.rows)
    print(f"{n:5} tokens  largest difference to the loop: {off:.2g}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=[32, 256])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="float32")
    options = parser.parse_args()
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config()).to(getattr(torch, options.dtype)).eval()
    for n in options.tokens:
        measure(model, n, options.rounds)


if __name__ == "__main__":
    main()
