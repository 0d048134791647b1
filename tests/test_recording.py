"""Recordings of what users see: two of the same code are equal, and a difference is shown."""

import shutil
from dataclasses import replace

import pytest

from tests import recording
from tests.document.every_result import head

PAGE = """\
```console
$ attnscope sdpa --dry-run --nq 3
$ attnscope mha --dry-run --nq 3 --save mha.npz
```
"""
SDPA = "commands/docs/page.md/00 attnscope sdpa --dry-run --nq 3"


@pytest.fixture(scope="module")
def two_recordings(tmp_path_factory):
    """Record a result and a page twice."""
    folders = [tmp_path_factory.mktemp("recording") / name for name in ("old", "new")]
    for folder in folders:
        recording.record_results({"a head": head()}, folder, pictures=False)
        recording.record_commands({"docs/page.md": PAGE}, folder)
    return folders


@pytest.mark.sweep
def test_two_recordings_of_the_same_code_are_equal(two_recordings, capsys):
    assert recording.main(["compare", *map(str, two_recordings)]) == 0
    assert capsys.readouterr().out == "no difference\n"


@pytest.mark.sweep
def test_what_differs_is_shown_item_by_item(two_recordings, tmp_path, capsys):
    old, new = two_recordings[0], tmp_path / "new"
    shutil.copytree(old, new)
    (new / SDPA / "json.txt").unlink()
    changed = {"a head": replace(head(), model="another model")}
    recording.record_results(changed, new, parts=False, pictures=False)
    assert recording.main(["compare", str(old), str(new)]) == 1
    out = capsys.readouterr().out
    assert "+++ new/results/a head/terminal 80.txt" in out
    assert "another model" in out
    assert f"--- old/{SDPA}/json.txt" in out
    assert "without circuits" not in out
    assert out.endswith(" items differ\n")


@pytest.mark.sweep
def test_a_recording_has_all_that_users_see(two_recordings):
    folder = two_recordings[0]
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*.txt")}
    views = "terminal 60, terminal 80, terminal 120, repr, notebook, json, csv, md, html"
    assert {f"results/a head/{view}.txt" for view in views.split(", ")} <= files
    assert "results/a head/without circuits/terminal 80.txt" in files
    assert {
        f"{SDPA}/{view}.txt" for view in ("terminal 60", "terminal 120", "json", "markdown")
    } <= files
    assert "\x1b[" in (folder / "results/a head/terminal 80.txt").read_text(encoding="utf-8")
    assert "exit status 0" in (folder / SDPA / "terminal 80.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("in /tmp/x/my.py", "in FOLDER/my.py"),
        ("<object at 0x7f655d25ea00>", "<object at ADDRESS>"),
        ("mask 0x1F", "mask 0x1F"),
        ("<b>1</b><i>2</i>", "<b>1</b>\n<i>2</i>"),
    ],
)
def test_what_differs_from_run_to_run_is_left_out(text, expected):
    assert recording.normalised(text, "/tmp/x") == expected
