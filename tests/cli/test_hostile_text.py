"""Text from data never controls the terminal: neither names, settings, tokens, messages nor code.

Every command is given names and texts with escape sequences, newlines and overrides of the direction
of writing. Only newlines of our own, and the styles of a coloured console, may come out.
"""

import json
import random
import re
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.model.run.readers import WORDS, save_reader

FORMATS = ("table", "csv", "markdown", "json")
STYLE = re.compile(r"\x1b\[[0-9;]*m")


def hostile(seed: int, letters: str = "smuggled") -> str:
    """Return a name with every control sequence of terminals, in some order."""
    draw = random.Random(seed)
    parts = [
        *("\x1b[31m", "\x1b]0;title\x07", "\x9b2J", "\x08", "\x7f", "\r", "\t", "\x85", "\x0c"),
        *("\u202e", "\u2066", "\u200f", "\u2028", "\u2029", "\ufeff", "[red]", "[/]", ":smile:"),
        "\n!injected",
    ]
    draw.shuffle(parts)
    return letters + "".join(parts)


def for_a_path(name: str) -> str:
    return name.replace("/", "|")


def assert_harmless(text: str, *, coloured: bool = False) -> None:
    if coloured:
        text = STYLE.sub("", text)
    bad = {each for each in text if not (each.isprintable() or each in "\n\u200c\u200d")}
    assert not {ascii(each) for each in bad}
    assert "\n!injected" not in text


@pytest.fixture(params=["plain", "coloured"])
def show(request, attnscope, monkeypatch):
    """Return a function that runs a command line, and asserts that its output is harmless."""
    coloured = request.param == "coloured"
    if coloured:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments, status=0, name=True):
        ran = attnscope(*arguments)
        assert ran.exit_status == status, ran.err
        assert_harmless(ran.out, coloured=coloured)
        assert_harmless(ran.err, coloured=coloured)
        if name:
            assert re.search("smuggled|injected|:smile:", ran.out + ran.err)  # it is shown
        return ran

    return run


@pytest.fixture
def tensors(tmp_path):
    """Write a file of tensors with hostile names, in a folder with a hostile name."""
    folder = tmp_path / for_a_path(hostile(1))
    folder.mkdir()
    names = [hostile(seed) for seed in range(2)]
    file = folder / f"{for_a_path(hostile(2))}.safetensors"
    save_file({name: torch.randn(4, 8) for name in names}, file)
    return file, names


@pytest.mark.few(3)
@pytest.mark.parametrize("format", FORMATS)
def test_names_in_a_file_of_tensors(show, tensors, format):
    file, names = tensors
    ran = show("sdpa", "--q", f"{file}:{names[0]}", "--format", format, name=False)
    if format == "json":
        json.loads(ran.out)
    show("sdpa", "--q", file, "--format", format, status=2)
    show("sdpa", "--q", f"{file}:other{hostile(5)}", status=2)
    show("mha", "--weights", file, "--format", format, status=2)
    show("mha", "--wq", f"{file}:{names[1]}", "--format", format, status=2, name=False)


@pytest.mark.few(4)
@pytest.mark.parametrize("suffix", [".npy", ".npz", ".pt", ".safetensors", ".json", ""])
def test_names_of_files(show, tmp_path, suffix):
    file = tmp_path / (for_a_path(hostile(3)) + suffix)
    show("sdpa", "--q", file, status=2)
    show("sdpa", "--mask", f"file:{file}", status=2)
    show("mha", "--weights", file, status=2)
    file.write_bytes(b"\x1b[31m\n!smuggled")
    show("sdpa", "--q", file, status=2)
    show("sdpa", "--nq", "4", "--save", file, status=2)
    show("model", file, status=2)
    show("bert", "--text", "a dog", "--plot", file, status=2)
    show("trace", f"{file}:f", status=2)
    show("run", "--watch", f"{file}x:f", file, status=2)


@pytest.mark.few(2)
@pytest.mark.parametrize("file", ["q.npz", "q.pt"])
def test_names_that_are_saved(show, tmp_path, file):
    file = tmp_path / for_a_path(hostile(4)) / file
    file.parent.mkdir()
    show("sdpa", "--nq", 4, "--nk", 4, "--save", file)


def test_archives_whose_members_have_hostile_names(show, tmp_path):
    np.savez(tmp_path / "q.npz", **{hostile(6).replace("\x00", ""): np.ones((3, 4)), "b": np.ones(3)})
    torch.save({hostile(7): torch.ones(3, 4), "b": torch.ones(3)}, tmp_path / "q.pt")
    torch.save({hostile(7): "text", "b": hostile(8)}, tmp_path / "r.pt")
    for name in ("q.npz", "q.pt"):
        show("sdpa", "--q", tmp_path / name, status=2)
        show("mha", "--weights", tmp_path / name, status=2)
    show("sdpa", "--q", f"{tmp_path / 'r.pt'}:{hostile(7)}", status=2)


@pytest.mark.few(16)
@pytest.mark.parametrize(
    "arguments",
    [
        ("sdpa", "--nq", hostile(9)),
        ("sdpa", "--mask", hostile(9)),
        ("sdpa", "--scale", hostile(9)),
        ("sdpa", "--dtype", hostile(9)),
        ("sdpa", "--device", hostile(9)),
        ("sdpa", "--format", hostile(9)),
        ("sdpa", "--show", hostile(9)),
        ("mha", "--softmax-dtype", hostile(9)),
        ("scaling", "--dk", hostile(9)),
        ("trace", hostile(9)),
        ("trace", "torch.nn:" + hostile(9)),
        ("trace", "torch.nn:Linear", "--init", hostile(9)),
        ("trace", "torch.nn:Identity", "--input", hostile(9)),
        ("trace", "torch.nn:Identity", "--input", "input=n:3", "--where", hostile(9)),
        ("run", "--watch", hostile(9), __file__),
        ("model", hostile(9)),
        ("heads", hostile(9), "--text", "x"),
        ("heads", "minilm", "--metrics", hostile(9), "--text", "x"),
        ("bert", "--stack", hostile(9), "--text", "x"),
        ("bert", "--layer", hostile(9), "--text", "x"),
        (hostile(9),),
        ("sdpa", "--" + hostile(9)),
        ("sdpa", hostile(9)),
    ],
    ids=lambda arguments: " ".join(arguments).split("smuggled")[0],
)
def test_arguments(show, arguments):
    show(*(argument.replace("\x00", "") for argument in arguments), status=2)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """Save a model whose folder and tokens have hostile names."""
    folder = tmp_path_factory.mktemp("saved") / for_a_path(hostile(10))
    save_reader("bert", folder)
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    words = {f"{word}": number for word, number in tokenizer["model"]["vocab"].items()}
    words = {
        hostile(number) if word in ("cat", "dog") else word: number for word, number in words.items()
    }
    tokenizer["model"]["vocab"] = words
    tokenizer["pre_tokenizer"] = {
        "type": "Split",
        "pattern": {"String": " "},
        "behavior": "Removed",
        "invert": False,
    }
    path.write_text(json.dumps(tokenizer))
    return folder


HOSTILE_TEXT = f"the {hostile(WORDS.index('cat'))} sat on {hostile(WORDS.index('dog'))}"


@pytest.mark.few(4)
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    "more",
    [
        (),
        ("--top", 3),
        ("--query", 2),
        ("--layer", 0, "--head", "0-1"),
        ("--steps",),
    ],
    ids=lambda more: " ".join(map(str, more)),
)
def test_tokens(show, checkpoint, format, more):
    text = HOSTILE_TEXT.replace("\x00", "")
    ran = show("model", checkpoint, "--text", text, "--format", format, *more, name=format != "csv")
    if format == "json":
        tokens = json.loads(ran.out).get("key_tokens", [])
        assert (
            not tokens or hostile(WORDS.index("cat")).replace("\x00", "") in tokens or "[UNK]" in tokens
        )


@pytest.mark.few(1)
@pytest.mark.parametrize("format", FORMATS)
def test_heads_of_a_corpus(show, checkpoint, tmp_path, format):
    corpus = tmp_path / for_a_path(hostile(12) + ".jsonl")
    lines = [{hostile(13): HOSTILE_TEXT}, {hostile(13): "the mat"}, {"x": hostile(14)}]
    corpus.write_text("\n".join(map(json.dumps, lines)))
    many = ("heads", checkpoint, "--corpus", corpus, "--format", format)
    show(*many, "--field", hostile(13), "--max-length", 16)
    show(*many, "--field", hostile(15), "--max-length", 16, status=2)
    show(
        "heads",
        checkpoint,
        "--text",
        HOSTILE_TEXT.replace("\x00", ""),
        "--format",
        format,
        name=format != "csv",
    )


@pytest.mark.few(4)
@pytest.mark.parametrize("format", FORMATS)
def test_weights_of_a_model(show, checkpoint, format):
    show("model", checkpoint, "--format", format, name=format != "csv")
    show("model", checkpoint, "--layer", 77, "--format", format, status=2, name=False)
    show("bert", "--model", checkpoint, "--head", 77, "--format", format, status=2, name=False)


@pytest.mark.few(4)
@pytest.mark.parametrize(
    "config",
    [
        {"model_type": hostile(16)},
        {"architectures": [hostile(17)]},
        {"architectures": [hostile(17)], "model_type": "bert"},
        {"hidden_act": hostile(18)},
        {"num_attention_heads": hostile(19)},
        {"torch_dtype": hostile(19), "dtype": hostile(20)},
        {"position_embedding_type": hostile(19)},
        {"auto_map": {"AutoModel": hostile(20)}, "model_type": hostile(20)},
    ],
    ids=lambda config: " ".join(config),
)
def test_settings(attnscope, checkpoint, tmp_path, config):
    folder = tmp_path / "m"
    shutil.copytree(checkpoint, folder)
    stored = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(stored | config))
    for arguments in (
        ("model", folder),
        ("model", folder, "--text", "the mat"),
        ("heads", folder, "--text", "the mat"),
    ):
        ran = attnscope(*arguments)
        assert ran.exit_status in (0, 2)
        assert_harmless(ran.out)
        assert_harmless(ran.err)


def test_names_of_a_checkpoints_tensors(attnscope, checkpoint, tmp_path):
    folder = tmp_path / "m"
    shutil.copytree(checkpoint, folder)
    weights = load_file(folder / "model.safetensors")
    renamed = {name.replace("encoder", hostile(21)): tensor for name, tensor in weights.items()}
    save_file(renamed, folder / "model.safetensors", metadata={hostile(22): hostile(23)})
    for arguments in (
        ("model", folder),
        ("model", folder, "--text", "the mat"),
        ("heads", folder, "--text", "the mat"),
    ):
        ran = attnscope(*arguments)
        assert ran.exit_status in (0, 2)
        assert_harmless(ran.out)
        assert_harmless(ran.err)


CODE = '''
def fine(x):
    """Docs \x1b[31m \u202e here."""
    label = "\x1b[32m \u2066 \x9b31m"\x0c
    y = x * len("\x1b[31m\u202e")  # a comment \x1b]0;title\x07
\ty2 = 0
    return y @ y.transpose(0, 1)


def fails(x):
    y = x + len("\x1b[31m")
    raise ValueError("said \x1b[31m \u202e\\n!injected\\r")
'''.replace("\ty2 = 0\n", "")


@pytest.mark.few(2)
@pytest.mark.parametrize("format", FORMATS)
def test_code(show, tmp_path, format, monkeypatch):
    file = tmp_path / "code.py"
    file.write_text(CODE)
    source = [] if format == "csv" else ["--source"]
    show("trace", f"{file}:fine", "--input", "x=n:3,d:4", "--format", format, *source, name=False)
    show("trace", f"{file}:fails", "--input", "x=n:3,d:4", "--format", format, status=1, name=False)


@pytest.mark.few(1)
def test_a_program_that_is_watched(show, tmp_path):
    file = tmp_path / "code.py"
    file.write_text(CODE + "\nimport torch\nfine(torch.ones(3, 4))\n")
    for format in FORMATS:
        source = [] if format in ("csv", "json") else ["--source"]
        show("run", "--watch", f"{file}:fine", *source, "--format", format, file, name=False)
