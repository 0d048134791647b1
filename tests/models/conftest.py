"""Checkpoints to read: small ones with random weights, in every form that a checkpoint has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, BertModel, PreTrainedModel

SIZES = {
    "vocab_size": 50,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "max_position_embeddings": 16,
}


@pytest.fixture
def small_bert(tmp_path: Path) -> Callable[..., tuple[Path, PreTrainedModel]]:
    """Makes a BERT of 2 layers and 3 heads and saves it: `small_bert(dtype=torch.float16)`."""

    def make(*, dtype=torch.float32, masked_lm=False, name="bert", **saving) -> tuple:
        torch.manual_seed(0)
        model = (BertForMaskedLM if masked_lm else BertModel)(BertConfig(**SIZES)).eval()
        for parameter in model.parameters():  # so that no bias is zero
            torch.nn.init.normal_(parameter, std=0.2)
        model = model.to(dtype)
        folder = tmp_path / name
        model.save_pretrained(folder, **saving)
        return folder, model

    return make


@pytest.fixture
def as_pickle() -> Callable[[Path], Path]:
    """Turns a saved folder into one with a `pytorch_model.bin`."""

    def turn(folder: Path) -> Path:
        from safetensors.torch import load_file

        torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
        return folder

    return turn
