"""Files with bytes changed: they are read as what they now say, or refused in one line."""

import pytest

from tests.torture.cases import seeded
from tests.torture.files import copy_links, corpora, flipped, header, tensor_files
from tests.torture.test_cut_files import arguments, of_model

pytestmark = [pytest.mark.torture, pytest.mark.slow]

TENSORS = tensor_files()


@pytest.mark.parametrize("name", TENSORS)
def test_a_file_of_tensors_with_changed_bytes_is_read_or_refused(cases, name):
    drawing = seeded(name)
    whole, path = TENSORS[name], cases.folder / name
    places = header(name, whole)
    for number in range(60):
        path.write_bytes(flipped(whole, drawing, places))
        cases.run(*arguments(name, number), statuses=[0, 2], what=f"{name}, change {number}")


@pytest.mark.parametrize(
    ("family", "name", "n"),
    [
        ("bert", "config.json", 60),
        ("llama", "config.json", 60),
        ("bert", "tokenizer.json", 50),
        ("bert", "tokenizer_config.json", 30),
        ("llama", "model.safetensors", 60),
        ("sharded", "model.safetensors.index.json", 40),
        ("pickled", "pytorch_model.bin", 60),
        ("vit", "preprocessor_config.json", 30),
    ],
)
def test_a_model_with_changed_bytes_is_read_or_refused(
    cases, model_folder, sharded, pickled, picture, family, name, n
):
    drawing = seeded(f"{family} {name}")
    original = {"sharded": sharded, "pickled": pickled}.get(family) or model_folder(family)
    whole = (original / name).read_bytes()
    folder = copy_links(original, cases.folder / "model", but=name)
    for number in range(n):
        (folder / name).write_bytes(flipped(whole, drawing, header(name, whole)))
        line = of_model(folder, number)
        if family == "vit":
            line = ["model", folder, "--image", picture, "--format", "json"]
        cases.run(*line, statuses=[0, 2], what=f"{name}, change {number}")


@pytest.mark.parametrize("name", corpora())
def test_a_corpus_with_changed_bytes_is_read_or_refused(cases, model_folder, name):
    drawing = seeded(name)
    whole, path = corpora()[name], cases.folder / name
    for number in range(30):
        path.write_bytes(flipped(whole, drawing, list(range(len(whole)))))
        cases.run(
            "heads",
            model_folder("bert"),
            "--corpus",
            name,
            "--format",
            "json",
            statuses=[0, 2],
            what=f"{name}, change {number}",
        )


def test_a_run_with_changed_bytes_is_refused_and_kept(cases, run_file):
    path, options, whole = run_file
    drawing = seeded("run")
    for number in range(100):
        content = flipped(whole, drawing, header("run.npz", whole))
        if content != whole:
            path.write_bytes(content)
            cases.run(*options, "--format", "json", statuses=[2], what=f"run.npz, change {number}")


@pytest.mark.parametrize("name", ["picture.png"])
def test_a_picture_with_changed_bytes_is_seen_or_refused(cases, model_folder, picture, name):
    drawing = seeded(name)
    whole, path = picture.read_bytes(), cases.folder / name
    for number in range(40):
        content = (
            whole[: drawing.randrange(len(whole))]
            if number % 2
            else flipped(whole, drawing, list(range(len(whole))))
        )
        path.write_bytes(content)
        cases.run(
            "model",
            model_folder("vit"),
            "--image",
            name,
            "--format",
            "json",
            statuses=[0, 2],
            what=f"picture, change {number}",
        )
