"""Pictures with changed bytes, and models that read them: each is shown, or refused in one line."""

import io
import json
import shutil

import pytest
from PIL import Image

from tests.model.answers.families import loaded, picture
from tests.torture.cases import seeded
from tests.torture.files import copy_links, flipped
from tests.torture.hostile_json import hostile

pytestmark = [pytest.mark.torture, pytest.mark.slow]

KINDS = {"png": {}, "jpeg": {"exif": b"Exif\0\0II*\0\x08\0\0\0\1\0\x12\1\3\0\1\0\0\0\6\0\0\0\0\0\0\0"}, "gif": {}, "tiff": {}, "webp": {}, "bmp": {}}  # fmt: skip


def files():
    """A picture of every kind, and one of 16 bits."""
    made = {}
    for kind, options in KINDS.items():
        content = io.BytesIO()
        picture(50, 37).save(content, kind, **options)
        made[kind] = content.getvalue()
    content = io.BytesIO()
    Image.new("I;16", (20, 10), 40_000).save(content, "png")
    return {**made, "16 bits": content.getvalue()}


FILES = files()


@pytest.fixture(scope="module")
def looker(tmp_path_factory):
    """A tiny LLaVA."""
    folder = tmp_path_factory.mktemp("saved") / "looker"
    for each in loaded("llava"):
        each.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("part", range(4))
def test_a_changed_picture_is_shown_or_refused(cases, looker, model_folder, part):
    path = cases.folder / "picture"
    for number in range(100):
        drawing = seeded(f"picture {part} {number}")
        whole = drawing.choice(list(FILES.values()))
        if drawing.random() < 0.25:
            path.write_bytes(whole[: drawing.randrange(len(whole))])
        else:
            path.write_bytes(flipped(whole, drawing, list(range(min(120, len(whole))))))
        line = ["model", model_folder("vit"), "--image", path.name]
        if number % 3 == 0:
            line = ["model", looker, "--image", path.name, "--text", "what is", "--generate", 1]
        cases.run(*line, "--format", "json", statuses=[0, 2], what=f"part {part}, picture {number}")


@pytest.mark.parametrize("name", ["config.json", "processor_config.json"])
def test_changed_settings_of_a_model_that_reads_pictures_are_read_or_refused(cases, looker, name):
    whole = json.loads((looker / name).read_text())
    (cases.folder / "a.png").write_bytes(FILES["png"])
    folder = copy_links(looker, cases.folder / "model", but=name)
    for number in range(50):
        drawing = seeded(f"looker {name} {number}")
        (folder / name).write_text(hostile(whole, drawing), encoding="utf-8")
        line = ["model", folder, "--image", "a.png", "--text", "what is", "--generate", 1]
        cases.run(*line, "--format", "json", statuses=[0, 2], what=f"{name}, change {number}")
    shutil.rmtree(folder)
