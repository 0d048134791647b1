"""Headers of every tensor of a checkpoint, here and on a hub whose requests and bytes are counted."""

import json
import subprocess
import sys
from collections import Counter
from threading import Barrier

import huggingface_hub
import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import save_file

from attnscope.base.errors import AttnscopeError, ModelError
from attnscope.model.files import headers, ranges
from attnscope.model.files.headers import read_headers
from attnscope.model.files.model_files import find_model_files
from tests.model.run.hub import local_hub, serving

NAME = "someone/model"


def headers_of(model, **options):
    return read_headers(find_model_files(model), **options)


def refused(model) -> ModelError:
    with pytest.raises(AttnscopeError) as caught:
        headers_of(model)
    assert len(caught.value.message.splitlines()) == 1
    return caught.value


def shards(folder, sizes, *, index=True, config=True, entries=1):
    """Write a sharded model: one shard for each size, whose tensors have that many numbers."""
    folder.mkdir(exist_ok=True)
    names = [f"model-{i + 1:05}-of-{len(sizes):05}.safetensors" for i in range(len(sizes))]
    weight_map = {}
    for i, (name, size) in enumerate(zip(names, sizes, strict=True)):
        tensors = {f"layers.{i}.w.{j}": torch.ones(2, size) for j in range(entries)}
        save_file(tensors, folder / name)
        weight_map |= dict.fromkeys(tensors, name)
    if index:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    if config:
        (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return folder


@pytest.fixture
def hub(monkeypatch, tmp_path):
    monkeypatch.setattr(ranges, "PAUSES", (0.01, 0.01))
    with local_hub(monkeypatch, tmp_path / "cache") as hub:
        yield hub


def test_a_folder_of_shards_is_read(tmp_path):
    found = headers_of(shards(tmp_path / "m", [3, 4, 5]))
    assert [tensor.shape for tensor in found.tensors] == [(2, 3), (2, 4), (2, 5)]
    assert [tensor.name for tensor in found.tensors] == [f"layers.{i}.w.0" for i in range(3)]
    assert (found.format, found.n_file, found.n_bytes) == ("safetensors", 3, 2 * 4 * (3 + 4 + 5))


def test_the_bundled_model_and_its_files_have_the_same_header(minilm):
    found = headers_of("minilm")
    assert found.n_bytes == (minilm / "model.safetensors").stat().st_size - 8 - header_size(minilm)
    assert (
        headers_of(minilm).tensors == headers_of(minilm / "model.safetensors").tensors == found.tensors
    )


def requests_of(hub):
    """What was requested of the model; huggingface_hub asks for other things once in a process."""
    return [path for _, path in hub.requests if NAME in path]


def header_size(folder):
    return int.from_bytes((folder / "model.safetensors").read_bytes()[:8], "little")


def test_two_requests_a_shard_are_enough_and_the_bytes_are_few(hub, tmp_path):
    hub.folders[NAME] = folder = shards(tmp_path / "m", [1000] * 7, entries=300)
    save_file({"long": torch.ones(10**7)}, min(folder.glob("*.safetensors")))  # 40 MB
    found = headers_of(NAME)
    assert found.tensors == headers_of(folder).tensors
    weights = [sent for sent in hub.sent if sent.path.endswith(".safetensors")]
    counts = Counter(sent.path for sent in weights)
    assert len(counts) == 7
    assert max(counts.values()) <= 2
    assert sum(sent.n_bytes for sent in weights) < 7 * 300 * 1024
    others = [path for path in requests_of(hub) if not path.endswith(".safetensors")]
    assert others == [f"/api/models/{NAME}"]  # neither the index nor anything else


def test_a_long_header_takes_two_requests(hub, tmp_path):
    hub.folders[NAME] = folder = tmp_path / "m"
    folder.mkdir()
    save_file({f"{i}.{'w' * 200}": torch.ones(3) for i in range(3000)}, folder / "model.safetensors")
    assert len(headers_of(NAME).tensors) == 3000
    length = 8 + header_size(folder)
    assert [sent.n_bytes for sent in hub.sent] == [2**18, length - 2**18]


def test_progress_is_a_share_of_the_files(tmp_path):
    reports = []
    headers_of(shards(tmp_path / "m", [1] * 5), progress=lambda *report: reports.append(report))
    assert reports[0][0].startswith("reading headers of")
    assert reports[-2][1] == 1
    assert reports[-1] == (None,)


def test_files_on_a_hub_are_read_side_by_side(hub, tmp_path, monkeypatch):
    """No request is answered before three of them wait."""
    hub.folders[NAME] = folder = shards(tmp_path / "m", [3, 4, 5])
    three, send_file = Barrier(3, timeout=20), hub.send_file
    monkeypatch.setattr(hub, "send_file", lambda self, path: (three.wait(), send_file(self, path)))
    assert headers_of(NAME).tensors == headers_of(folder).tensors


@pytest.mark.parametrize("with_token", [True, False])
def test_a_private_model_needs_a_token(hub, tmp_path, monkeypatch, with_token):
    hub.folders[NAME] = folder = shards(tmp_path / "m", [3, 4])
    hub.tokens[NAME] = "hf_secret"
    if with_token:
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        assert headers_of(NAME).tensors == headers_of(folder).tensors
        return
    error = refused(NAME)
    assert error.message == f"there is no model {NAME}: neither a folder here nor on the hub."
    assert "for a private one: hf auth login, or HF_TOKEN" in error.hint


def test_a_gated_model_is_refused_in_one_line(hub, tmp_path):
    hub.folders[NAME] = shards(tmp_path / "m", [3, 4])
    hub.gated.add(NAME)
    error = refused(NAME)
    assert "is private or gated: the server answers 403" in error.message
    assert error.hint == "request access on its page on the hub, then hf auth login, or HF_TOKEN"
    with pytest.raises(ModelError, match=f"{NAME} is gated: the hub requires access"):
        find_model_files(NAME).config()


def test_a_token_stays_with_the_hub_when_files_are_elsewhere(hub, tmp_path, monkeypatch):
    hub.folders[NAME] = folder = shards(tmp_path / "m", [3, 4])
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with serving() as elsewhere:
        hub.cdn = elsewhere
        found = headers_of(NAME)
    assert found.tensors == headers_of(folder).tensors
    assert {sent.token for sent in hub.sent} == {None}
    assert len(hub.sent) == 2


def test_what_is_in_the_cache_needs_no_request(hub, tmp_path):
    hub.folders[NAME] = folder = shards(tmp_path / "m", [3, 4])
    for each in folder.iterdir():
        huggingface_hub.hf_hub_download(NAME, each.name)
    hub.requests.clear()
    assert headers_of(NAME).tensors == headers_of(folder).tensors
    assert not requests_of(hub)


def test_cached_shards_are_not_requested_again(hub, tmp_path):
    hub.folders[NAME] = folder = shards(tmp_path / "m", [3, 4])
    name = "model-00001-of-00002.safetensors"
    huggingface_hub.hf_hub_download(NAME, "config.json")
    huggingface_hub.hf_hub_download(NAME, name)
    hub.sent.clear()
    assert headers_of(NAME).tensors == headers_of(folder).tensors
    assert [sent.path for sent in hub.sent if name in sent.path] == []


def test_without_a_network_only_the_cache_is_read(hub, tmp_path, monkeypatch):
    hub.folders[NAME] = shards(tmp_path / "m", [3, 4])
    huggingface_hub.hf_hub_download(NAME, "config.json")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.requests.clear()
    error = refused(NAME)
    assert type(error).__name__ == "NoWeightsError"
    assert f"only the configuration of {NAME} is in the cache of the hub" in error.message
    assert "HF_HUB_OFFLINE forbids downloads" in error.message
    assert find_model_files(NAME).config() == {"model_type": "llama"}
    assert not requests_of(hub)


def test_a_server_that_ignores_ranges_sends_little_and_is_refused(hub, tmp_path):
    hub.folders[NAME] = folder = tmp_path / "m"
    folder.mkdir()
    save_file({"w": torch.ones(10**7)}, folder / "model.safetensors")
    hub.ranges = False
    error = refused(NAME)
    assert "the server answers 200 to a request for a range of bytes" in error.message
    assert hub.written[0] < 2 * 10**7  # of 4 · 10⁷


def test_a_busy_server_is_asked_again(hub, tmp_path):
    hub.folders[NAME] = folder = shards(tmp_path / "m", [3])
    hub.busy[:] = [503, 429]
    assert headers_of(NAME).tensors == headers_of(folder).tensors
    hub.busy[:] = [429] * 9
    assert "the server answers 429, too many requests" in refused(NAME).message


def test_a_missing_shard_is_named(tmp_path):
    folder = shards(tmp_path / "m", [3, 4, 5])
    (folder / "model-00002-of-00003.safetensors").unlink()
    error = refused(folder)
    assert "lacks 1 of 3 files that its index lists: model-00002-of-00003.safetensors" in error.message
    assert error.hint.endswith(f"without weights: {folder / 'config.json'}")


def test_a_tensor_in_two_files_is_refused(tmp_path):
    folder = shards(tmp_path / "m", [3, 4])
    first, second = sorted(folder.glob("*.safetensors"))
    second.write_bytes(first.read_bytes())
    assert "another file has layers.0.w.0, too" in refused(folder).message


def test_headers_of_many_files_have_one_limit(tmp_path, monkeypatch):
    folder = shards(tmp_path / "m", [3, 4, 5])
    length = int.from_bytes(min(folder.glob("*.safetensors")).read_bytes()[:8], "little")
    monkeypatch.setattr(headers, "LONGEST_HEADER", 3 * length)
    assert len(headers_of(folder).tensors) == 3
    monkeypatch.setattr(headers, "LONGEST_HEADER", 3 * length - 1)
    assert f"have {3 * length} bytes, more than {3 * length - 1}" in refused(folder).message


def test_the_headers_of_a_405b_model_need_no_torch(hub, tmp_path):
    """191 shards, as Llama 3.1 405B has; only huggingface_hub is imported for the requests."""
    hub.folders[NAME] = folder = shards(tmp_path / "m", [5] * 191, entries=6)
    assert len(headers_of(NAME).tensors) == 191 * 6
    assert len(requests_of(hub)) == 192
    assert sum(sent.n_bytes for sent in hub.sent) < 5 * 2**20
    code = (
        "import sys; from attnscope.model.files.headers import read_headers;"
        " from attnscope.model.files.model_files import find_model_files;"
        f" print(len(read_headers(find_model_files({str(folder)!r})).tensors));"
        " print([each for each in ('torch', 'numpy', 'transformers', 'huggingface_hub', 'safetensors')"
        " if each in sys.modules])"
    )
    r = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert r.stdout.split("\n")[:2] == ["1146", "[]"]
