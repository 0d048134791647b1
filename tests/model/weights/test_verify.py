"""Verification holds where it should, and fails where something is wrong."""

import dataclasses
import json

import pytest
import torch

from attnscope.base.errors import ModelError
from attnscope.model.families.table import family_of
from attnscope.model.files.checkpoint import Checkpoint, find_checkpoint
from attnscope.model.files.layouts import find_stacks
from attnscope.model.files.tensors import open_weights
from attnscope.model.weights.head_weights import read_head
from attnscope.model.weights.verify import verify_head
from tests.model.run.families import FAMILIES, save
from tests.sweeps import swept


@pytest.mark.parametrize("layer", swept(range(6), [0, 5]))
def test_every_layer_of_the_bundled_model_holds(layer):
    checks = verify_head(find_checkpoint("minilm"), read_head("minilm", layer=layer, head=layer * 2))
    assert [check.name for check in checks] == [
        "Q_feat", "K_feat", "V_feat", "attention", "x_rsh2", "x",
        "W_Q, b_Q", "W_K, b_K", "W_V, b_V", "W_O, b_O",
        f"the layer's head {layer * 2}",
    ]  # fmt: skip
    assert all(check.ok for check in checks)
    assert all(check.max_abs_diff < 1e-12 for check in checks[:-1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_model_without_a_tokenizer_is_verified_on_drawn_tokens(small_bert, dtype):
    folder, _ = small_bert(dtype=dtype, masked_lm=True)
    checkpoint = Checkpoint("small", folder)
    assert all(check.ok for check in verify_head(checkpoint, read_head(checkpoint, layer=1, head=2)))


def test_a_pickle_is_verified(small_bert, as_pickle):
    folder, _ = small_bert()
    checkpoint = Checkpoint("small", as_pickle(folder))
    assert all(check.ok for check in verify_head(checkpoint, read_head(checkpoint)))


def test_a_wrong_slice_fails_its_own_check_only(small_bert):
    folder, _ = small_bert()
    checkpoint = Checkpoint("small", folder)
    head = read_head(checkpoint, head=1)
    head.weights[1] = dataclasses.replace(head.weights[1], array=head.weights[1].array * 1.001)
    failed = [check.name for check in verify_head(checkpoint, head) if not check.ok]
    assert failed == ["W_K, b_K"]


@pytest.mark.parametrize(
    ("key", "value"),
    [("model_type", "nonsense"), ("hidden_size", 24), ("num_hidden_layers", 1), ("vocab_size", 3)],
)
def test_a_model_that_transformers_cannot_run_is_told(small_bert, key, value):
    folder, _ = small_bert()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, key: value}))
    checkpoint = Checkpoint("small", folder)
    told = (
        r"transformers cannot (run small: |read the config\.json of small: )|its config\.json requires"
    )
    with pytest.raises(ModelError, match=told):
        verify_head(checkpoint, read_head(checkpoint, layer=1))


def test_of_a_decoder_only_the_slices_are_compared_because_it_masks_what_comes_later(small_bert):
    folder, _ = small_bert()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "is_decoder": True}))
    checkpoint = Checkpoint("small", folder)
    checks = verify_head(checkpoint, read_head(checkpoint))
    assert [check.name for check in checks[:-1]] == ["W_Q, b_Q", "W_K, b_K", "W_V, b_V", "W_O, b_O"]
    assert all(check.ok for check in checks)


@pytest.mark.few(7)
@pytest.mark.parametrize(
    "family",
    swept(
        [family for family in FAMILIES if family != "bert decoder"],
        "bert albert gpt2 gpt_neox llama phi3 t5 bart whisper vit clip gemma3 falcon bloom".split(),
    ),
)
def test_every_family_holds_in_every_stack(tmp_path, family):
    save(family, tmp_path)
    checkpoint = Checkpoint(family, tmp_path)
    weights = open_weights(checkpoint)
    for stack in find_stacks(weights.names, checkpoint.config(), family):
        head = read_head(checkpoint, layer=max(stack.numbers), head=2, stack=stack.name)
        checks = verify_head(checkpoint, head)
        assert all(check.ok for check in checks), stack.name
        plain = 6 if family_of(family).plain else 0
        assert len(checks) == plain + 5
        slices = [check.name for check in checks[plain:-1]]
        assert [name for each in slices for name in each.split(", ")] == sorted(
            (piece.name for piece in head.weights), key=lambda name: ("QKVO".index(name[-1]), name)
        )


def test_neomme_holds_whose_heads_that_share_values_all_move(tmp_path):
    """Its attention takes the part along a token's own values out, after attention."""
    from transformers import NeoMMEConfig, NeoMMEModel

    sizes = {"hidden_size": 28, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 16}
    sizes |= {"num_key_value_heads": 2, "vocab_size": 50, "intermediate_size": 20, "pad_token_id": 0}
    kinds = ["sliding_attention", "full_attention"]
    config = NeoMMEConfig(**sizes, embedding_rank=8, embedding_dim=8, layer_types=kinds)
    torch.manual_seed(0)
    model = NeoMMEModel(config)
    for each in model.parameters():
        torch.nn.init.normal_(each, std=0.2)
    model.save_pretrained(tmp_path)
    checkpoint = Checkpoint("neomme", tmp_path)
    head = read_head(checkpoint, layer=1, head=2)
    module = model.layers[1].self_attn
    slices = {each.name: torch.tensor(each.array) for each in head.weights}
    assert torch.equal(slices["W_V"], module.v_proj.weight[16:32])
    assert torch.equal(slices["W_O"], module.output_projection.o_proj.weight[:, 32:48])
    assert all(check.ok for check in verify_head(checkpoint, head))
    other = read_head(checkpoint, layer=1, head=1)  # of the other group
    checks = verify_head(checkpoint, dataclasses.replace(head, weights=other.weights))
    assert not all(check.ok for check in checks)


@pytest.mark.parametrize("family", ["gpt2", "llama", "gpt_neox", "phi3", "t5", "qwen3_next"])
def test_another_heads_slices_fail(tmp_path, family):
    save(family, tmp_path)
    checkpoint = Checkpoint(family, tmp_path)
    layer = 3 if family == "qwen3_next" else 1
    head = read_head(checkpoint, layer=layer, head=0)
    other = read_head(checkpoint, layer=layer, head=head.n_head - 1)
    mistaken = dataclasses.replace(head, weights=other.weights)
    assert [check.ok for check in verify_head(checkpoint, mistaken)] == [False] * 5


def test_attention_that_attnscope_cannot_make_run_is_told(tmp_path):
    save("bert decoder", tmp_path)
    checkpoint = Checkpoint("decoder", tmp_path)
    with pytest.raises(
        ModelError, match=r"cannot verify decoder: BertModel did not use encoder\.layer\.0\.cross"
    ):
        verify_head(checkpoint, read_head(checkpoint, stack="cross"))


def test_weights_that_are_nan_fail_and_are_told_in_json(small_bert, attnscope):
    folder, model = small_bert()
    model.encoder.layer[0].attention.self.query.weight.data[0, 0] = float("nan")
    model.save_pretrained(folder)
    r = attnscope("bert", "--model", folder, "--verify", "--format", "json")
    assert r.exit_status == 1
    assert r.json["checks"][0]["max_abs_diff"] == "NaN"
    assert r.json["weights"][0]["stats"]["nan"] == 1


def test_a_wrong_number_of_heads_fails(small_bert):
    folder, _ = small_bert()
    checkpoint = Checkpoint("small", folder)
    head = dataclasses.replace(read_head(checkpoint), n_head=2)
    with pytest.raises(RuntimeError):  # the maps have another number of heads
        verify_head(checkpoint, head)


def test_slices_of_another_number_of_heads_do_not_hold(tmp_path):
    """What the modules make is the same, however it is cut: what the layer attends with is not."""
    save("llama", tmp_path)
    checkpoint = Checkpoint("llama", tmp_path)
    head = read_head(checkpoint)
    wide = [_twice_as_wide(each) for each in head.weights]
    mistaken = dataclasses.replace(head, n_head=3, n_kv_head=1, d_head=16, weights=wide)
    *slices, whole = verify_head(checkpoint, mistaken)
    assert all(check.ok for check in slices)
    assert whole.ok is False
    assert (
        "the layer attends with 6 query heads and 2 key heads, but the slices are those of 3 and 1"
        in whole.note
    )


def _twice_as_wide(weight):
    import numpy as np

    path = weight.array
    while path.base is not None and hasattr(path.base, "shape"):
        path = path.base
    stop = 2 * weight.stop
    own = np.asarray(path[:, :stop] if weight.axis == 1 else path[:stop])
    return dataclasses.replace(weight, stop=stop, array=own, head_shape=own.shape)


def test_slices_across_heads_do_not_hold(tmp_path):
    save("olmo2", tmp_path)  # whose norms are as wide as all heads together
    checkpoint = Checkpoint("olmo2", tmp_path)
    head = read_head(checkpoint, head=2)
    assert verify_head(checkpoint, head)[-1].ok
    moved = [
        dataclasses.replace(each, start=each.start + 4, stop=each.stop + 4) if each.axis == 0 else each
        for each in head.weights
    ]
    whole = verify_head(checkpoint, dataclasses.replace(head, weights=moved))[-1]
    assert whole.ok is False
    assert "its slices affect" in whole.note
    assert "queries of heads 2 and 3" in whole.note
