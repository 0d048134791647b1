"""The features that positions rotate together: a rotation within each pair changes nothing that a model computes."""

from __future__ import annotations

import copy

import pytest
import torch

from attnscope.model.families.rotary import rotary_pairs
from attnscope.model.files.heads import heads_of
from attnscope.model.files.layouts import find_stacks
from attnscope.model.files.loaded import LoadedModel
from attnscope.model.files.tensors import open_weights
from tests.model.run.families import ASKED, CHANGED, Watched, build
from tests.model.run.tiny import tiny_model
from tests.sweeps import swept

ROTATED = """
    apertus arcee cohere cohere2 ernie4_5 exaone4 falcon gemma gemma2 gemma3_text glm glm4 gpt_oss gptj
    granite helium llama llama4_text mistral modernbert olmo olmo2 phi phi3 qwen2 qwen3 roformer smollm3
    starcoder2
""".split()
"""Families whose queries and keys are rotated by position."""


def model_of(family):
    """A family's small model in float64; gains of the norms of Q and K are equal, so that these commute."""
    model = build(family) if family in ASKED | CHANGED else tiny_model(family).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if any(word in name for word in ("q_norm", "k_norm", "q_layernorm", "k_layernorm")):
                parameter.fill_(0.7 if name.endswith("weight") else 0.0)
    return model


def stacks_of(model):
    """The stacks of self-attention of a model that is loaded."""
    loaded = LoadedModel("model", None, model)
    config, tensors = loaded.config(), open_weights(loaded)
    stacks = find_stacks(tensors.names, config, "model")
    return [heads_of("model", config, tensors, each) for each in stacks if not each.layout.cross]


def with_rotated_basis(model, pairs_of):
    """Return a copy of a model with W_Q, W_K and their biases of each head in another basis.

    Args:
        model: of transformers.
        pairs_of: the pairs of features to rotate, by a head's width and the pairs that attnscope knows.
    """
    changed = copy.deepcopy(model)
    values, done = changed.state_dict(), {}
    torch.manual_seed(1)
    for heads in stacks_of(model):
        for layer in heads.stack.numbers:
            own = heads.layer(layer)
            pairs = pairs_of(own.d_head, rotary_pairs(heads, layer, own.d_head))
            group = heads.n_head // own.n_kv_head
            for head in range(heads.n_head):
                if head % group == 0:
                    angles = torch.rand(len(pairs), dtype=torch.float64) * 3
                for each in own.weights(head):
                    if each.name[-1] not in "QK" or each.name == "W_KR":
                        continue
                    key = each.tensor, each.start
                    if key in done:
                        continue
                    done[key] = True
                    rows = values[each.tensor].T if each.transposed else values[each.tensor]
                    rows = rows[each.start : each.stop]
                    before = rows.clone()
                    for (i, j), angle in zip(pairs, angles, strict=True):
                        rows[i] = before[i] * angle.cos() - before[j] * angle.sin()
                        rows[j] = before[i] * angle.sin() + before[j] * angle.cos()
    return changed


def output_of(model):
    torch.manual_seed(2)
    result = Watched(model).result
    return torch.cat([each.flatten() for each in result.values() if isinstance(each, torch.Tensor)])


def known(d_head, pairs):
    return pairs


def neighbours_or_halves(d_head, pairs):
    """The other convention."""
    n = len(pairs)
    are_halves = (0, n) in pairs
    return [(2 * i, 2 * i + 1) if are_halves else (i, i + n) for i in range(n)]


@pytest.mark.parametrize("family", swept(ROTATED, ["cohere2", "glm4", "llama", "smollm3"]))
def test_a_rotation_within_pairs_changes_nothing_and_within_others_does(family):
    model = model_of(family)
    expected = output_of(model)
    same = output_of(with_rotated_basis(model, known))
    other = output_of(with_rotated_basis(model, neighbours_or_halves))
    error = float((same - expected).abs().max())  # some compute the softmax in float32
    assert error < 1e-6
    assert float((other - expected).abs().max()) > 50 * error
