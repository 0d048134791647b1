"""Write down what TransformerLens finds of the same small models: `transformer_lens.json`.

    python -m venv /tmp/lens && /tmp/lens/bin/pip install -c constraints.txt transformer_lens==4.3.0 .
    HF_HUB_OFFLINE=1 /tmp/lens/bin/python -m tests.model.effects.record_transformer_lens

Nothing of attnscope runs here. The models are those of `families.build`: whoever builds them gets the
same weights. Where TransformerLens refuses a column, its reason is written down instead.
"""

from __future__ import annotations

import json
import re
import tempfile
import warnings
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from tests.model.effects.families import FAMILIES, build, words

RECORD = Path(__file__).with_name("transformer_lens.json")
IDS, CORRUPT = [5, 9, 3, 20, 31, 7, 44], [5, 9, 14, 20, 31, 27, 44]
ANSWER, AGAINST = 17, 23
LENSED = (
    "gpt2 gpt_bigcode gpt_neox opt phi phi3 llama mistral qwen2 qwen3 gemma gemma2 gemma3_text olmo "
    "olmo2 cohere granite stablelm mixtral gpt_oss qwen3_next qwen3_5_text afmoe bitnet deepseek_v3 "
    "falcon jamba lfm2 bert"
).split()
"""The families that are recorded."""

Numbers = list[list[float]]
"""Of each layer that attends, each head."""


def bridge(name: str, **processing: bool) -> Any:
    """A family's small model as TransformerLens runs it."""
    from transformer_lens.model_bridge import TransformerBridge

    model = build(name)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        words().save_pretrained(folder)
        lens = TransformerBridge.boot_transformers(
            folder, hf_model=model, dtype=FAMILIES[name].dtype, device="cpu"
        )
    lens.enable_compatibility_mode(disable_warnings=True, **processing)
    return lens


class Lens:
    """TransformerLens's view of a family's model.

    Args:
        name: the family.
    """

    def __init__(self, name: str) -> None:
        family = FAMILIES[name]
        self.name = name
        [(_, stack)] = family.stacks.items()
        self.layers, self.n_head = stack.layers, stack.n_head
        self.position = 3 if family.masked else -1
        self.clean, self.corrupt = torch.tensor([IDS]), torch.tensor([CORRUPT])
        self.model = bridge(name, no_processing=True)
        with torch.no_grad():
            self.baseline = float(self.metric(self.model(self.clean)))
            self.corrupted = float(self.metric(self.model(self.corrupt)))

    def metric(self, logits: torch.Tensor) -> torch.Tensor:
        """The difference of two logits, at the last position or at the masked one."""
        return logits[0, self.position, ANSWER] - logits[0, self.position, AGAINST]

    def of_heads(self, measure: Callable[[int, int], float]) -> Numbers:
        """A number for each layer that attends and each head."""
        return [[measure(layer, head) for head in range(self.n_head)] for layer in self.layers]

    def replaced(self, replace: Callable[[torch.Tensor], Any]) -> Numbers:
        """The change of the metric when a function of a head's z, `1 n_Q d_V`, replaces it."""

        def measure(layer: int, head: int) -> float:
            def change(z: torch.Tensor, hook: Any) -> torch.Tensor:
                if z.dim() != 4:
                    raise ValueError(f"hook_z has no axis of heads: {list(z.shape)}")
                z = z.clone()
                z[:, :, head] = replace(z[:, :, head])
                return z

            hooks = [(f"blocks.{layer}.attn.hook_z", change)]
            with torch.no_grad():
                logits = self.model.run_with_hooks(self.clean, fwd_hooks=hooks)
            return float(self.metric(logits)) - self.baseline

        return self.of_heads(measure)

    # The columns.

    def zero(self) -> Numbers:
        return self.replaced(torch.zeros_like)

    def mean(self) -> Numbers:
        return self.replaced(lambda z: z.mean(1, keepdim=True))

    def direct(self) -> Numbers:
        """Values' biases stay in the heads' outputs, where they are."""
        from transformer_lens.tools.analysis.direct_logit_attribution import direct_logit_attribution

        folded = bridge(self.name, fold_value_biases=False)
        found = direct_logit_attribution(
            folded, self.clean, ANSWER, AGAINST, unit="head", pos=self.position
        )
        numbers = dict(zip(found.labels, found.attribution.flatten().tolist(), strict=True))
        return self.of_heads(lambda layer, head: numbers[f"L{layer}H{head}"])

    def blocked(self) -> Numbers:
        """The change of the metric when the last query of a head may not read keys 0 to 2."""

        def measure(layer: int, head: int) -> float:
            def change(scores: torch.Tensor, hook: Any) -> torch.Tensor:
                scores = scores.clone()
                scores[:, head, -1, :3] = -torch.inf
                return scores

            hooks = [(f"blocks.{layer}.attn.hook_attn_scores", change)]
            with torch.no_grad():
                logits = self.model.run_with_hooks(self.clean, fwd_hooks=hooks)
            return float(self.metric(logits)) - self.baseline

        found = self.of_heads(measure)
        if not any(map(any, found)):
            raise ValueError("hook_attn_scores changes nothing")
        return found

    def patched(self) -> Numbers:
        """TransformerLens keeps the numbers in float32."""
        from transformer_lens import patching

        _, cache = self.model.run_with_cache(self.clean)
        if any(cache[f"blocks.{layer}.attn.hook_z"].dim() != 4 for layer in self.layers):
            raise ValueError("hook_z has no axis of heads")
        span = self.baseline - self.corrupted
        found = patching.get_act_patch_attn_head_out_all_pos(
            self.model, self.corrupt, cache, lambda logits: (self.metric(logits) - self.corrupted) / span
        )
        return self.of_heads(lambda layer, head: float(found[layer, head]))

    def first_order_patched(self) -> Numbers:
        """The estimate of `patched`, as a share of the same difference."""
        from transformer_lens.tools.analysis.attribution_patching import attribution_patch

        self.model.set_use_attn_result(True)
        found = attribution_patch(self.model, self.clean, self.corrupt, self.metric).node_scores
        span = self.baseline - self.corrupted

        def measure(layer: int, head: int) -> float:
            scores = [
                score
                for node, score in found.items()
                if (node.kind, node.layer, node.head) == ("attn_head_out", layer, head)
            ]
            assert len(scores) == len(IDS)  # at each position
            return sum(scores) / span

        return self.of_heads(measure)

    # Maps.

    def weighed(self) -> list[list[list[float]]]:
        """‖α_j v_j W_O‖ of each key j of the last query, for each head (Kobayashi et al. 2020)."""
        with torch.no_grad():
            _, cache = self.model.run_with_cache(self.clean)
        rows = []
        for layer, W_O in zip(self.layers, self.model.W_O, strict=True):
            v = cache[f"blocks.{layer}.attn.hook_v"]
            v = v if v.dim() == 4 else v.unflatten(-1, (-1, W_O.shape[1]))
            v = (v if v.shape[1] == len(IDS) else v.transpose(1, 2))[0]  # `n_K n_kv_head d_V`
            weights = cache[f"blocks.{layer}.attn.hook_pattern"][0, :, -1, : len(IDS)]
            group = self.n_head // v.shape[1]
            written = torch.stack([v[:, head // group] @ W_O[head] for head in range(self.n_head)])
            rows.append((weights[..., None] * written).norm(dim=-1).tolist())
        return rows


COLUMNS = {
    "zero": Lens.zero,
    "mean": Lens.mean,
    "direct": Lens.direct,
    "blocked": Lens.blocked,
    "patched": Lens.patched,
    "first order patched": Lens.first_order_patched,
}


def record_of(name: str) -> dict[str, Any]:
    """What TransformerLens finds of a family, and what it refuses."""
    refused: dict[str, str] = {}
    try:
        lens = Lens(name)
    except Exception as error:  # whatever it does not know
        return {"refused": {"all": reason_of(error)}}
    columns: dict[str, Numbers] = {}
    for column, measure in COLUMNS.items():
        try:
            columns[column] = [[float(f"{x:.9g}") for x in of_layer] for of_layer in measure(lens)]
        except Exception as error:
            refused[column] = reason_of(error)
    weighed = None
    try:
        weighed = [[[float(f"{x:.9g}") for x in row] for row in rows] for rows in lens.weighed()]
    except Exception as error:
        refused["weighed"] = reason_of(error)
    return {
        "layers": lens.layers,
        "baseline": lens.baseline,
        "corrupted": lens.corrupted,
        "columns": columns,
        "weighed": weighed,
        "refused": refused,
    }


def reason_of(error: Exception) -> str:
    """An exception on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def main() -> None:
    warnings.simplefilter("ignore")
    found = {}
    for name in LENSED:
        found[name] = record_of(name)
        print(name, list(found[name].get("columns", ())), found[name]["refused"])
    record = {
        "versions": {each: version(each) for each in ("transformer_lens", "transformers", "torch")},
        "ids": IDS,
        "corrupt": CORRUPT,
        "answer": ANSWER,
        "against": AGAINST,
        "families": found,
    }
    text = json.dumps(record, indent=1)
    RECORD.write_text(re.sub(r"\[[^][{}]*\]", lambda numbers: " ".join(numbers[0].split()), text) + "\n")


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
