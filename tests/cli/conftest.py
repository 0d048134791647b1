"""What the tests of several commands share."""

import pytest

SEERS = ("vit", "clip", "deit", "dinov2", "yolos")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A family's checkpoint with random weights, made when it is first asked for."""
    from models.readers import save_reader, save_seer

    made = {}

    def folder(family, **more):
        key = (family, *sorted(more.items()))
        if key not in made:
            made[key] = tmp_path_factory.mktemp("saved") / family
            save = save_seer if family in SEERS else save_reader
            save(family, made[key], **more)
        return made[key]

    return folder


@pytest.fixture
def assert_same_rows(attnscope):
    """Asserts that a command's dry run shows the rows of its real run."""

    def check(command, arguments):
        """The JSON of both runs, but for what the contract cannot know."""
        real = attnscope(command, *arguments, "--format", "json").json
        dry = attnscope(command, *arguments, "--dry-run", "--format", "json").json
        for step in real["steps"] + dry["steps"]:
            del step["fresh_bytes"], step["line"], step["strides"]
        for key in ("device", "seed"):
            assert dry.pop(key) is None
            del real[key]
        assert real == dry
        wide = ["--format", "markdown"]
        shown = [
            attnscope(command, *arguments, *more, *wide).out.splitlines() for more in ([], ["--dry-run"])
        ]
        tables = [[line for line in lines if line.startswith("|")] for lines in shown]
        assert tables[0] == tables[1]

    return check
