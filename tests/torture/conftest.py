"""What the torture suite needs: its models, and its cases."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.torture.cases import Cases
from tests.torture.counts import COUNTS


@pytest.fixture
def cases(request, tmp_path, monkeypatch):
    """The cases of a test, in a folder of their own. Its group is the name of its file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("COLUMNS", raising=False)
    return Cases(request.path.stem.removeprefix("test_"), tmp_path)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    """A family's checkpoint with random weights, made when it is first asked for, and never changed."""
    from tests.model.run.readers import save_reader, save_seer

    made = {}

    def folder(family: str) -> Path:
        if family not in made:
            made[family] = tmp_path_factory.mktemp("saved") / family
            (save_seer if family == "vit" else save_reader)(family, made[family])
        return made[family]

    return folder


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    """After a test, what its cases had wrong makes it fail; how they ended is reported."""
    cases = pyfuncitem.funcargs.get("cases")
    try:
        result = yield
        if cases is not None:
            cases.verdict()
        return result
    finally:
        if cases is not None:
            pyfuncitem.user_properties.append(
                (COUNTS, [cases.group, dict(cases.counts), len(cases.faults)])
            )


@pytest.fixture(scope="session")
def sharded(model_folder, tmp_path_factory):
    """A model whose weights lie in several files."""
    from transformers import AutoModel

    from tests.model.run.readers import save_tokenizer

    folder = tmp_path_factory.mktemp("saved") / "sharded"
    AutoModel.from_pretrained(model_folder("bert")).save_pretrained(folder, max_shard_size="20KB")
    save_tokenizer(folder)
    assert (folder / "model.safetensors.index.json").exists()
    return folder


@pytest.fixture(scope="session")
def pickled(model_folder, tmp_path_factory):
    """A model whose weights lie in a pickle."""
    from tests.torture.files import copy_links

    folder = copy_links(
        model_folder("bert"), tmp_path_factory.mktemp("saved") / "pickled", but="model.safetensors"
    )
    torch.save(load_file(model_folder("bert") / "model.safetensors"), folder / "pytorch_model.bin")
    return folder


@pytest.fixture
def run_file(cases, model_folder):
    """A run over a corpus that has ended: its file, the options that go on from it, and what it holds."""
    from tests.torture.cases import run_here
    from tests.torture.files import corpora

    (cases.folder / "c.txt").write_bytes(corpora()["c.txt"])
    path = cases.folder / "run.npz"
    options = ["heads", model_folder("bert"), "--corpus", "c.txt", "--checkpoint", "run.npz"]
    ended = run_here(options)
    assert ended.status == 0, ended
    return path, options, path.read_bytes()


@pytest.fixture(scope="session")
def picture(tmp_path_factory):
    """A picture to look at."""
    from tests.model.run.readers import save_picture

    return save_picture(tmp_path_factory.mktemp("pictures") / "picture.png")
