"""Tests of pages on a machine without a browser."""

from types import SimpleNamespace

import pytest

from tests.browser.chromium import NONE, path_of_chromium, print_skipped


@pytest.fixture
def no_chromium(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CHROMIUM", raising=False)
    monkeypatch.delenv("CI", raising=False)


def test_without_a_browser_a_test_is_skipped(no_chromium):
    with pytest.raises(pytest.skip.Exception, match="no chromium on the PATH"):
        path_of_chromium()


def test_in_ci_it_fails(no_chromium, monkeypatch):
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no chromium on the PATH"):
        path_of_chromium()


def test_a_browser_may_be_named(no_chromium, monkeypatch):
    monkeypatch.setenv("CHROMIUM", "/opt/chrome")
    assert path_of_chromium() == "/opt/chrome"


@pytest.mark.parametrize(
    ("reasons", "printed"), [([NONE, NONE, "only root mounts disks"], [f"2 tests of pages were skipped: {NONE}"]), ([], [])]
)  # fmt: skip
def test_a_line_says_how_many_were_skipped(reasons, printed):
    lines = []
    skipped = [SimpleNamespace(longrepr=("test_page.py", 1, f"Skipped: {each}")) for each in reasons]
    print_skipped(SimpleNamespace(stats={"skipped": skipped}, write_line=lines.append))
    assert lines == printed
