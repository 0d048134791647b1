"""Verification holds where it should, and fails where something is wrong."""

import dataclasses

import pytest
import torch

from attnscope.models.checkpoint import Checkpoint, find_checkpoint
from attnscope.models.head import read_head
from attnscope.models.verify import verify_head


@pytest.mark.parametrize("layer", range(6))
def test_every_layer_of_the_bundled_model_holds(layer):
    checks = verify_head(find_checkpoint("minilm"), read_head("minilm", layer=layer, head=layer * 2))
    assert [check.name for check in checks] == [
        "Q_feat", "K_feat", "V_feat", "attention", "x_rsh2", "x",
        "W_Q, b_Q", "W_K, b_K", "W_V, b_V", "W_O, b_O",
    ]  # fmt: skip
    assert all(check.ok and check.max_abs_diff < 1e-12 for check in checks)


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


def test_a_wrong_number_of_heads_fails(small_bert):
    folder, _ = small_bert()
    checkpoint = Checkpoint("small", folder)
    head = dataclasses.replace(read_head(checkpoint), n_head=2)
    with pytest.raises(RuntimeError):  # the maps have another number of heads
        verify_head(checkpoint, head)
