"""Finding the files of a model: a folder, one file, a repository on the hub."""

import json

import pytest

from attnscope.base.errors import AttnscopeError, ModelError
from attnscope.model.files.model_files import QUANTISED, NoWeightsError, find_model_files


def folder_of(folder, *names):
    folder.mkdir(exist_ok=True)
    for name in names:
        content = json.dumps({"model_type": "llama"}) if name.endswith("config.json") else ""
        (folder / name).write_text(content)
    return folder


def chosen(model):
    return [each.name.rsplit("/", 1)[-1] for each in find_model_files(model).weights()]


def refused(model) -> AttnscopeError:
    with pytest.raises(AttnscopeError) as caught:
        find_model_files(model).weights()
    return caught.value


PARTS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize(
    ("names", "files"),
    [
        (("model.safetensors",), ["model.safetensors"]),
        (("model.safetensors", "model.gguf", "pytorch_model.bin"), ["model.safetensors"]),
        (("model.safetensors", INDEX, *PARTS), ["model.safetensors"]),
        ((INDEX, *PARTS), [*PARTS]),
        ((INDEX, *PARTS, "consolidated.safetensors"), [*PARTS]),
        (PARTS, [*PARTS]),
        (("consolidated.safetensors",), ["consolidated.safetensors"]),
        (("x-q4.gguf",), ["x-q4.gguf"]),
        (("x-q4.gguf", "mmproj-x.gguf"), ["x-q4.gguf"]),
        (("x-00001-of-00002.gguf", "x-00002-of-00002.gguf"), ["x-00001-of-00002.gguf"]),
    ],
)
def test_weights_are_chosen_as_transformers_does(tmp_path, names, files):
    assert chosen(folder_of(tmp_path / "m", "config.json", *names)) == files


def test_an_index_decides_where_names_do_not(tmp_path):
    folder = folder_of(
        tmp_path / "m", *PARTS, *(f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3))
    )
    weight_map = {f"w{i}": f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)}
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    assert chosen(folder) == sorted(weight_map.values())
    assert chosen(folder / INDEX) == sorted(weight_map.values())


@pytest.mark.parametrize(
    "weight_map",
    [None, [], {}, {"w": 1}, {"w": []}, {"w": "/etc/passwd"}, {"w": "../x"}, {"w": "", "v": PARTS[0]}],
)
def test_a_damaged_index_is_refused(tmp_path, weight_map):
    folder = folder_of(tmp_path / "m")
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    assert "is damaged: its weight_map does not name files" in refused(folder).message


def test_several_sets_of_weights_are_listed(tmp_path):
    folder = folder_of(tmp_path / "m", *(f"x-Q{i}_K.gguf" for i in range(2, 8)))
    error = refused(folder)
    assert (
        "has 6 sets of weights: x-Q2_K.gguf, x-Q3_K.gguf, x-Q4_K.gguf, x-Q5_K.gguf, …" in error.message
    )
    assert error.hint == f"one of them: {folder}/x-Q2_K.gguf or {folder}/x-Q3_K.gguf"
    assert chosen(folder / "x-Q5_K.gguf") == ["x-Q5_K.gguf"]


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (("config.json",), "has no weights: neither safetensors nor GGUF"),
        (("pytorch_model.bin",), "only as pickles, whose headers are not read: pytorch_model.bin"),
    ],
)
def test_a_model_without_headers_is_told(tmp_path, names, problem):
    error = refused(folder_of(tmp_path / "m", *names))
    assert type(error) is NoWeightsError
    assert problem in error.message


def test_a_configuration_is_a_model_without_weights(tmp_path):
    folder = folder_of(tmp_path / "m", "config.json", "model.safetensors")
    (folder / "other.json").write_text(json.dumps({"model_type": "bert"}))
    assert find_model_files(folder / "config.json").config() == {"model_type": "llama"}
    assert find_model_files(folder / "other.json").config() == {"model_type": "bert"}
    assert find_model_files(folder / "model.safetensors").config() == {"model_type": "llama"}
    assert type(refused(folder / "config.json")) is NoWeightsError
    assert find_model_files(folder_of(tmp_path / "n", "x.gguf")).config() is None


def test_a_file_of_another_kind_is_refused(tmp_path):
    path = folder_of(tmp_path / "m", "notes.txt") / "notes.txt"
    error = refused(path)
    assert "is neither a configuration nor a file of weights with a header" in error.message
    assert error.hint.endswith(f".json, or its folder, {path.parent}")


def test_a_file_in_a_repository_is_named_by_its_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = find_model_files("owner/name/Q4_K/x-00001-of-00002.gguf")
    assert (found.place.name, found.place.folder) == ("owner/name", None)
    assert found.file == "Q4_K/x-00001-of-00002.gguf"
    for name in (
        "./owner/name/x.gguf",
        "/owner/name/x.gguf",
        "owner/name/../x.gguf",
        "x.gguf/y",
        "a/b/c",
    ):
        if name != "x.gguf/y":
            with pytest.raises(ModelError):
                find_model_files(name)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bartowski/m-GGUF:Q4_K_M", "Q4_K_M"),
        ("a/b:iq2_xxs", "iq2_xxs"),
        ("a/b:UD-Q4_K_XL", "UD-Q4_K_XL"),
        ("a/b:BF16", "BF16"),
        ("a/b.py:attention", None),
        ("src/code.py:Q4Attention", None),
        ("b:Q4_0", None),
        ("a/b/c:Q4_0", None),
        ("./a/b:Q4_0", None),
    ],
)
def test_a_quantisation_is_told_from_code(name, expected):
    found = QUANTISED.fullmatch(name)
    assert (found and found[2]) == expected
