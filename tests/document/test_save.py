"""Every result in every format, with each of its optional parts absent."""

import io

import pytest
from rich.console import Console

from attnscope.base.errors import AttnscopeError
from attnscope.document.result import Display, Result
from attnscope.document.save import formats_of, save
from tests.document.every_result import every_result, without_a_part

PICTURES = (".png", ".svg", ".pdf")
"""Drawing is slow: only the SVG of whole results is drawn here; the tests of figures draw the others."""


def fails(action):
    """Return whether an action ends in an error for users; any other exception is a mistake of ours."""
    try:
        action()
    except AttnscopeError:
        return True
    return False


@pytest.mark.few(2)
@pytest.mark.parametrize("name", every_result())
def test_a_result_is_written_in_each_of_its_formats(name, tmp_path):
    result = every_result()[name]
    for suffix in set(formats_of(result)) - {".png", ".pdf"}:
        path = tmp_path / f"result{suffix}"
        if not fails(lambda path=path: save(result, path)):
            assert path.stat().st_size
        else:  # a trace that kept no tensors, two masks in one array, an audit without a picture
            assert suffix in (".npy", ".safetensors", ".npz", ".pt", *PICTURES)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", every_result())
def test_a_result_is_shown_in_every_format_without_any_part(name, tmp_path):
    for _, variant in without_a_part(every_result()[name]):
        assert variant._repr_html_()
        Console(file=io.StringIO(), width=100).print(variant)
        assert "\n" not in repr(variant)
        if isinstance(variant, Result):
            assert variant.to_dict()["schema"]
        for suffix in formats_of(variant):
            if suffix not in PICTURES:
                fails(lambda suffix=suffix, one=variant: save(one, tmp_path / f"result{suffix}"))


def test_whatever_a_notebook_shows_is_a_page():
    assert all(".html" in formats_of(result) for result in every_result().values())
    assert all(isinstance(result, Display) for result in every_result().values())


def test_errors_of_save_speak_of_keywords(tmp_path):
    result, path = every_result()["a head"], tmp_path / "head.safetensors"
    result.save(path)
    with pytest.raises(AttnscopeError, match="already") as caught:
        result.save(path)
    assert "force=True" in caught.value.hint
    assert "--" not in caught.value.hint
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(AttnscopeError, match="is a folder") as caught:
        result.save(tmp_path / "folder.npz")
    assert caught.value.hint == str(tmp_path / "folder.npz" / "tensors.safetensors")


def test_another_suffix_is_answered_with_those_that_there_are(tmp_path):
    with pytest.raises(AttnscopeError, match=r"Comparison cannot be written as \.png") as caught:
        every_result()["a comparison"].save(tmp_path / "result.png")
    names = caught.value.hint.replace(" or ", ", ").split(", ")
    assert [name.split("/")[-1] for name in names] == [
        *("result.html", "result.json", "result.csv", "result.md")
    ]
