"""Weights under the names that different libraries use."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from transformers import BertConfig, LlamaConfig
from transformers.models.bert.modeling_bert import BertSelfAttention
from transformers.models.llama.modeling_llama import LlamaAttention

from attnscope.attention.mha import MultiHeadAttention
from attnscope.base.errors import FileError
from attnscope.base.tensor_files import open_tensor
from attnscope.formula.inputs.projections import open_projections


def opened(tmp_path, state):
    path = tmp_path / "w.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, path)
    return {name: file.load() for name, file in open_projections(path, {}).items()}


def test_our_own_modules_state_is_found(tmp_path):
    mha = MultiHeadAttention(d_feat=6, n_head=2)
    found = opened(tmp_path, mha.state_dict())
    assert set(found) == {f"{kind}_{part}" for kind in "Wb" for part in "QKVO"}
    for part in "QKVO":
        assert torch.equal(found[f"W_{part}"], getattr(mha, f"W_{part}").weight)
        assert torch.equal(found[f"b_{part}"], getattr(mha, f"W_{part}").bias)


def test_what_pytorch_stacks_is_taken_apart(tmp_path):
    theirs = nn.MultiheadAttention(6, 2)
    found = opened(tmp_path, theirs.state_dict())
    assert torch.equal(torch.cat([found[f"W_{part}"] for part in "QKV"]), theirs.in_proj_weight)
    assert torch.equal(torch.cat([found[f"b_{part}"] for part in "QKV"]), theirs.in_proj_bias)
    assert torch.equal(found["W_O"], theirs.out_proj.weight)


def test_the_names_of_llama_and_bert_are_known(tmp_path):
    llama = LlamaAttention(LlamaConfig(hidden_size=8, num_attention_heads=2, num_key_value_heads=1), 0)
    found = opened(tmp_path, llama.state_dict())
    assert torch.equal(found["W_K"], llama.k_proj.weight)
    assert torch.equal(found["W_O"], llama.o_proj.weight)
    bert = BertSelfAttention(BertConfig(hidden_size=8, num_attention_heads=2))
    found = opened(tmp_path, bert.state_dict())
    assert torch.equal(found["b_V"], bert.value.bias)


def test_a_weight_given_by_itself_replaces_the_files(tmp_path):
    save_file({"W_Q": torch.zeros(2, 2), "W_K": torch.zeros(2, 2)}, tmp_path / "w.safetensors")
    np.save(tmp_path / "q.npy", np.ones((2, 2)))
    own = {"W_Q": open_tensor("W_Q", str(tmp_path / "q.npy"))}
    found = open_projections(tmp_path / "w.safetensors", own)
    assert found["W_Q"].load().tolist() == [[1, 1], [1, 1]]
    assert found["W_K"].load().tolist() == [[0, 0], [0, 0]]
    assert open_projections(None, own) is own


def test_a_file_without_known_names_is_refused(tmp_path):
    save_file({"apple": torch.zeros(2)}, tmp_path / "w.safetensors")
    with pytest.raises(FileError, match="has no weights with names that attnscope knows: it has apple"):
        open_projections(tmp_path / "w.safetensors", {})
