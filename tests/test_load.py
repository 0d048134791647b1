"""`attnscope.load` reads what `save` has written."""

import json

import numpy as np
import pytest
from safetensors import safe_open

import attnscope
from attnscope.base.errors import FileError
from attnscope.model.run.tokens import Token
from tests.document.every_result import every_result, head, maps
from tests.model.heads.head_tables import head_table

NAMES = [
    name
    for name, result in every_result().items()
    if type(result).__name__
    in ("Trace", "HeadWeights", "AttentionMaps", "HeadTable", "HeadEffects", "HeadDifferences", "AttentionMasks", "Scaling", "Audit", "Comparison", "Card", "Cards")
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_record_is_read_as_the_result_that_it_was_of(name, tmp_path):
    result, path = every_result()[name], tmp_path / "result.json"
    result.save(path)
    loaded = attnscope.load(path)
    assert type(loaded) is type(result)
    assert loaded.to_dict() == result.to_dict()
    if "ranked" not in name:  # a record holds the heads that are shown
        assert repr(loaded) == repr(result)
    assert loaded._repr_html_()


def test_maps_of_a_file_of_tensors_have_their_tokens_model_and_exact_weights(tmp_path):
    for heads in (1, 3):
        written = maps(heads=heads)
        written.key_tokens[0] = Token("[CLS]", special=True)
        path = tmp_path / f"{heads}.safetensors"
        written.save(path)
        with safe_open(path, "numpy") as file:
            assert file.metadata().keys() == {"attnscope.maps"}  # a part of the format
        loaded = attnscope.load(path)
        assert loaded == written
        assert loaded.to_dict() == written.to_dict()
        np.testing.assert_array_equal(loaded[0, heads - 1].attention, written[0, heads - 1].attention)


def test_masks_of_all_shapes_come_back_with_every_pair(tmp_path):
    holes = np.array([[True, False, True, False, False], [False, True, True, False, True]])
    for subject, sizes in (
        ("causal", {"nq": 3, "nk": 5, "window": 2}),
        (holes, {}),
        ("lengths:0,4", {"nq": 3, "nk": 5}),
    ):
        written = attnscope.mask(subject, **sizes)
        written.save(tmp_path / "mask.json", force=True)
        loaded = attnscope.load(tmp_path / "mask.json")
        np.testing.assert_array_equal(loaded.masks[0].visible, written.masks[0].visible)
        assert loaded._repr_html_() == written._repr_html_()
        assert loaded.masks[0].pattern == written.masks[0].pattern


def test_numbers_that_are_not_finite_come_back(tmp_path):
    table = head_table()
    table.rows[0].values["entropy"] = float("inf")
    table.save(tmp_path / "table.json")
    assert attnscope.load(tmp_path / "table.json").rows[0].entropy == float("inf")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", "{}", "has the schema None, which is not read back"),
        ("a.json", "[1]", "has the schema None"),
        ("a.json", "no", "is not a record"),
        (
            "a.json",
            json.dumps({"schema": "attnscope.card/1"}),
            "is not a whole record of attnscope.card/1",
        ),
        (
            "a.json",
            json.dumps({"schema": "attnscope.card/2"}),
            "attnscope.card/2, which is not read back",
        ),
        ("a.json", "[" * 10**5, "is not a record"),
        ("a.json", json.dumps({"schema": "attnscope.heads/1", "heads": 3}), "is not a whole record"),
        ("a.json", json.dumps({"schema": "attnscope.mask/1", "masks": [{}]}), "is not a whole record"),
        ("a.json", json.dumps({"schema": "attnscope.example/1", "forms": []}), "which is not read back"),
        ("a.safetensors", "no", "cannot be read"),
        ("a.csv", "no", "a.csv is not a record, which is JSON"),
        ("a.npz", "no", "a.npz is not a record, which is JSON"),
    ],
)
def test_other_files_are_one_clear_line(name, content, message, tmp_path):
    (tmp_path / name).write_text(content)
    with pytest.raises(FileError, match=message):
        attnscope.load(tmp_path / name)
    with pytest.raises(FileError, match="there is no file"):
        attnscope.load(tmp_path / "other.json")
    with pytest.raises(FileError, match=r"is a folder\."):
        attnscope.load(tmp_path)


def test_tensors_that_are_no_maps_are_told(tmp_path):
    head().save(tmp_path / "head.safetensors")
    with pytest.raises(FileError, match="has no metadata of attention maps"):
        attnscope.load(tmp_path / "head.safetensors")
