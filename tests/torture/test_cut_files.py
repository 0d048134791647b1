"""Files that end too soon, at every byte of what says what is in them: each is refused in one line."""

import pytest

from tests.torture.files import copy_links, corpora, header, tensor_files

pytestmark = [pytest.mark.torture, pytest.mark.slow]

TENSORS = tensor_files()
PARTS, TRIED = 4, 2
"""Of all places where a file can be cut, each fourth beginning with the first, and with the second."""


def arguments(name: str, number: int) -> list[object]:
    """A command that reads a file of tensors, in turn another."""
    line = (
        ["sdpa", "--q", name]
        if name == "Q.npy"
        else ["sdpa", "--q", f"{name}:Q", "--k", f"{name}:K", "--v", f"{name}:V"]
    )
    return [
        [*line, "--dry-run", "--format", "json"],
        [*line, "--format", "json"],
        ["mha", "--weights", name],
        ["sdpa", "--nq", 3, "--nk", 5, "--batch", 1, "--mask", name, "--dry-run"],
    ][number % 4]


@pytest.mark.parametrize("part", range(TRIED))
@pytest.mark.parametrize("name", TENSORS)
def test_a_file_of_tensors_that_was_cut_is_refused(cases, name, part):
    whole, path = TENSORS[name], cases.folder / name
    for number, end in enumerate(header(name, whole)[part::PARTS]):
        path.write_bytes(whole[:end])
        cases.run(
            *arguments(name, number + part),
            statuses=[2],
            what=f"{name} cut to {end} of {len(whole)} bytes",
        )


def of_model(folder, number):
    """A command that reads a model, in turn another."""
    return [
        ["model", folder, "--format", "json"],
        ["model", folder, "--text", "the cat sat", "--format", "json"],
        ["heads", folder, "--text", "the cat sat", "--format", "json"],
    ][number % 3]


@pytest.mark.parametrize("part", range(TRIED))
@pytest.mark.parametrize(("family", "step"), [("bert", 1), ("llama", 5)])
def test_a_config_that_was_cut_is_refused(cases, model_folder, family, step, part):
    folder = copy_links(model_folder(family), cases.folder / "model", but="config.json")
    whole = (model_folder(family) / "config.json").read_bytes().rstrip()
    for number, end in enumerate(range(part, len(whole), PARTS * step)):
        (folder / "config.json").write_bytes(whole[:end])
        cases.run(*of_model(folder, number + part), statuses=[2], what=f"config.json cut to {end} bytes")


@pytest.mark.parametrize("part", range(TRIED))
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_tokenizer_that_was_cut_is_refused(cases, model_folder, name, part):
    folder = copy_links(model_folder("bert"), cases.folder / "model", but=name)
    whole = (model_folder("bert") / name).read_bytes().rstrip()
    step = PARTS * (6 if len(whole) > 1000 else 1)  # most of it is a list of words
    for number, end in enumerate(range(part, len(whole), step)):
        (folder / name).write_bytes(whole[:end])
        cases.run(
            *of_model(folder, 1 + (number + part) % 2), statuses=[2], what=f"{name} cut to {end} bytes"
        )


@pytest.mark.parametrize("part", range(TRIED))
def test_weights_that_were_cut_are_refused(cases, model_folder, part):
    folder = copy_links(model_folder("llama"), cases.folder / "model", but="model.safetensors")
    whole = (model_folder("llama") / "model.safetensors").read_bytes()
    places = header("model.safetensors", whole)
    ends = [*places[:12], *places[12::8], len(whole) - 1, (len(places) + len(whole)) // 2]
    for number, end in enumerate(ends[part::PARTS]):
        (folder / "model.safetensors").write_bytes(whole[:end])
        cases.run(
            *of_model(folder, number + part), statuses=[2], what=f"model.safetensors cut to {end} bytes"
        )


@pytest.mark.parametrize("part", range(TRIED))
def test_an_index_of_shards_that_was_cut_is_refused(cases, model_folder, sharded, part):
    folder = copy_links(sharded, cases.folder / "model", but="model.safetensors.index.json")
    whole = (sharded / "model.safetensors.index.json").read_bytes().rstrip()
    ends = [*range(40), *range(40, len(whole), 9)]
    for number, end in enumerate(ends[part::PARTS]):
        (folder / "model.safetensors.index.json").write_bytes(whole[:end])
        cases.run(*of_model(folder, number + part), statuses=[2], what=f"index cut to {end} bytes")


@pytest.mark.parametrize("part", range(TRIED))
def test_a_pickle_of_weights_that_was_cut_is_refused(cases, pickled, part):
    folder = copy_links(pickled, cases.folder / "model", but="pytorch_model.bin")
    whole = (pickled / "pytorch_model.bin").read_bytes()
    ends = [*range(64), *range(64, 4000, 97), *range(len(whole) - 400, len(whole), 9)]
    for number, end in enumerate(ends[part::PARTS]):
        (folder / "pytorch_model.bin").write_bytes(whole[:end])
        cases.run(
            *of_model(folder, number + part), statuses=[2], what=f"pytorch_model.bin cut to {end} bytes"
        )


@pytest.mark.parametrize("part", range(TRIED))
def test_a_run_that_was_cut_is_refused_and_kept(cases, model_folder, run_file, part):
    path, options, whole = run_file
    ends = [*range(64), *range(64, len(whole) - 900, 41), *range(len(whole) - 900, len(whole), 5)]
    for end in ends[part::PARTS]:
        path.write_bytes(whole[:end])
        cases.run(
            *options,
            "--format",
            "json",
            statuses=[2],
            what=f"run.npz cut to {end} of {len(whole)} bytes",
        )


@pytest.mark.parametrize("name", [name for name in corpora() if name.endswith(".gz")])
def test_a_compressed_corpus_that_was_cut_is_refused(cases, model_folder, name):
    whole, path = corpora()[name], cases.folder / name
    for end in range(0, len(whole), 2):
        path.write_bytes(whole[:end])
        cases.run(
            "heads",
            model_folder("bert"),
            "--corpus",
            name,
            "--format",
            "json",
            statuses=[2],
            what=f"{name} cut to {end} of {len(whole)} bytes",
        )


@pytest.mark.parametrize("name", [name for name in corpora() if not name.endswith(".gz")])
def test_a_corpus_that_was_cut_is_read_as_far_as_it_goes(cases, model_folder, name):
    whole, path = corpora()[name], cases.folder / name
    for end in range(0, len(whole), 8):
        path.write_bytes(whole[:end])
        cases.run(
            "heads",
            model_folder("bert"),
            "--corpus",
            name,
            "--format",
            "json",
            statuses=[0, 2],
            what=f"{name} cut to {end} of {len(whole)} bytes",
        )
