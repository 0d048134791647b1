"""What an audit costs, beside one forward pass of the same model on as many tokens.

Run: python -m tests.benchmarks.audit [--length 61] [--repeats 3]

Models have the sizes of published ones, and random weights. Audit and forward pass alternate in one
process, after one of each that does not count; both are medians. `passes` is what the audit itself counts;
each layer that is run again counts as its part of a pass, and passes in float64 as one. The ratio is above it
because float64 takes longer, and because the outputs of all layers are kept and compared.
"""

import argparse
import time
from statistics import median

import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)
from transformers.utils import logging

import attnscope

MODELS = {
    "MiniLM (6 layers, d_feat 384)": lambda: BertForMaskedLM(
        BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
    ),
    "GPT-2 (12 layers, d_feat 768)": lambda: GPT2LMHeadModel(GPT2Config()),
    "Llama's kind (16 layers, d_feat 1,024)": lambda: LlamaForCausalLM(
        LlamaConfig(
            vocab_size=32000,
            hidden_size=1024,
            num_hidden_layers=16,
            num_attention_heads=16,
            num_key_value_heads=4,
            intermediate_size=2816,
        )
    ),
}


def seconds(run) -> float:
    """The seconds that a call takes."""
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def measure(model: PreTrainedModel, n_tokens: int, repeats: int) -> tuple[float, float, float]:
    """The seconds of a forward pass and of an audit, and the passes that the audit counts."""
    ids = torch.randint(5, 1000, (1, n_tokens))

    def forward() -> None:
        with torch.no_grad():
            model(ids, use_cache=False)

    audits: list[attnscope.Audit] = []

    def audit() -> None:
        audits.append(attnscope.audit(model, length=n_tokens))

    pairs = [(seconds(forward), seconds(audit)) for _ in range(repeats + 1)][1:]
    assert not audits[-1].broken
    return median(one for one, _ in pairs), median(other for _, other in pairs), audits[-1].n_forward


def main() -> None:
    """Print a row for each model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=61)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    logging.set_verbosity_error()
    print("| model | forward pass | audit | ratio | passes |\n|---|---|---|---|---|")
    for name, build in MODELS.items():
        torch.manual_seed(0)
        model = build().eval()
        forward, audit, passes = measure(model, arguments.length, arguments.repeats)
        print(
            f"| {name} | {forward * 1e3:.0f} ms | {audit:.1f} s | {audit / forward:.0f} × | {passes:g} |"
        )


if __name__ == "__main__":
    main()
