"""The formula of each family's cache is what transformers' own cache holds, number by number."""

from __future__ import annotations

import pytest
from cost.verified_families import FAMILIES, NOT_RUN, PAGE, checks, page

from attnscope.cost.from_config import UNKNOWN
from attnscope.errors import ModelError


@pytest.mark.parametrize(
    "family",
    [
        "llama",
        "gemma3n",
        "gpt_oss",
        "deepseek_v3",
        "qwen3_next",
        "deepseek_v4",
        "jamba",
        "t5",
        "whisper",
    ],
)
def test_the_cache_of_a_family_is_what_the_formula_says(family: str) -> None:
    found = checks(family)
    assert found
    assert [each for each in found if not each.ok] == []


@pytest.mark.sweep
@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_is_as_the_formula_says_or_is_listed_with_a_reason(family: str) -> None:
    try:
        found = checks(family)
    except ModelError as error:
        if family not in NOT_RUN and "the cache of model type" not in error.message:
            raise
    else:
        assert family not in NOT_RUN
        assert [each for each in found if not each.ok] == []


def test_a_formula_that_is_wrong_does_not_hold(monkeypatch) -> None:
    from attnscope.cost.anatomy import LayerCache

    right = LayerCache.nbytes
    monkeypatch.setattr(LayerCache, "nbytes", lambda self, n, *sizes: right(self, n + 1, *sizes))
    assert not any(each.ok for each in checks("llama"))


def test_a_family_that_is_unknown_has_a_reason() -> None:
    assert all(UNKNOWN.values())
    with pytest.raises(ModelError, match="it keeps hashes and buckets"):
        checks("reformer")


def test_every_family_of_transformers_is_on_the_page() -> None:
    listed = [row.split(" | ")[0][2:] for row in PAGE.read_text(encoding="utf-8").splitlines() if row]
    assert [each for each in listed if each in FAMILIES] == FAMILIES


@pytest.mark.sweep
def test_the_page_of_families_says_what_is_found() -> None:
    assert PAGE.read_text(encoding="utf-8") == page()
