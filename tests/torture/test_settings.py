"""Settings files that are wrong in several places at once, or damaged as files: told in one line, or of no matter."""

import json
import math
import random
from pathlib import Path

import pytest

from tests.model.run.tiny import save_tiny
from tests.torture.cases import seeded
from tests.torture.files import copy_links

pytestmark = [pytest.mark.torture, pytest.mark.slow]

ANY = [
    *(None, True, False, -1, 0, 1, 3, 0.5, -2.5, 10**9, 2**63, 10**30, 1e308, math.nan, math.inf),
    *("", "x", "12", "NaN", "eager", "../..", "\x1b]0;x\x07", "x" * 3000),
    *([], [0], [1, None], ["a", {}], {}, {"a": [0]}, {"model_type": "bert"}),
]
"""What may stand in place of any setting."""

FAMILIES = ["bert", "llama", "bart", "vit", "t5", "gpt2", "gpt_oss", "modernbert", "clip", "lfm2"]
LATENT = "deepseek_v3"


def near(value, drawing: random.Random):
    """Something like a setting: another size, another type, or one like it in a list."""
    if isinstance(value, bool):
        return drawing.choice([not value, int(value), str(value)])
    if isinstance(value, int | float):
        return drawing.choice(
            [value + 1, value - 1, value * 2, value // 2, -value, float(value), str(value), [value]]
        )
    if isinstance(value, str):
        return drawing.choice([value.upper(), value + "x", value[:-1], [value], {value: value}, 0])
    if isinstance(value, list) and value:
        return drawing.choice([value[1:], value + value, value[::-1], value[0], [*value, None]])
    if isinstance(value, dict) and value:
        name = drawing.choice(sorted(value))
        return {**value, name: drawing.choice([near(value[name], drawing), drawing.choice(ANY)])}
    return drawing.choice(ANY)


def mutated(settings: dict, drawing: random.Random) -> tuple[dict, str]:
    """Settings with one to three of them changed or gone; and what is special about them."""
    changed, told = dict(settings), []
    for name in drawing.sample(sorted(settings), min(len(settings), drawing.choice([1, 1, 2, 3]))):
        how = drawing.random()
        if how < 0.15:
            del changed[name]
            told.append(f"no {name}")
            continue
        changed[name] = near(settings[name], drawing) if how < 0.6 else drawing.choice(ANY)
        told.append(f"{name} is {json.dumps(changed[name])[:80]}")
    return changed, ", ".join(told)


def commands(folder: Path, family: str, picture: Path) -> list[list[object]]:
    """What reads a model: its weights, a text or a picture, and every head."""
    if family == "vit":
        return [
            ["model", folder, "--verify"],
            ["model", folder, "--image", picture],
            ["model", folder, "--image", picture, "--layer", "all", "--head", "all", "--verify"],
        ]
    more = ["--target", "a dog"] if family in ("bart", "t5") else []
    text = ["--text", "the cat sat", *more]
    own: list[list[object]] = [
        ["model", folder, "--layer", "1", "--head", "1", "--circuits"],
        ["model", folder, "--verify"],
        ["model", folder, *text],
        ["model", folder, *text, "--verify", "--layer", "all", "--head", "all"],
        ["heads", folder, *text],
        ["heads", folder, *text, "--max-length", "5", "--truncate", "--metrics", "entropy"],
    ]
    if family == "bert":
        own += [["bert", "--model", folder, "--text", "the cat sat"], ["bert", folder, "--verify"]]
    if family in ("llama", "gpt2", "gpt_oss", "bart", "t5"):
        own += [["model", folder, "--text", "the cat sat", "--generate", "2"]]
    return own


@pytest.fixture(scope="module")
def latent_folder(tmp_path_factory):
    """A checkpoint with latent attention."""
    folder = tmp_path_factory.mktemp("saved") / LATENT
    save_tiny(LATENT, folder)
    return folder


@pytest.mark.parametrize("family", [*FAMILIES, LATENT])
def test_settings_that_are_wrong_together_are_told(cases, model_folder, latent_folder, picture, family):
    drawing = seeded(family)
    original = latent_folder if family == LATENT else model_folder(family)
    folder = copy_links(original, cases.folder / "model", but="config.json")
    config = json.loads((original / "config.json").read_text())
    every = commands(folder, family, picture)
    for number in range(34):
        changed, told = mutated(config, drawing)
        (folder / "config.json").write_text(json.dumps(changed))
        cases.run(*every[number % len(every)], "--format", "json", what=told)


def damaged(content: bytes, drawing: random.Random):
    """A file of JSON that is cut, empty, of another type, or has its numbers and names spoilt."""
    yield "nothing", b""
    yield "a NUL", b"\0" * 64
    yield "no UTF-8", b"\xff\xfe" + content
    yield "a mark before", b"\xef\xbb\xbf" + content
    for _ in range(3):
        at = drawing.randrange(1, max(len(content), 2))
        yield f"cut at {at}", content[:at]
    for other in (b"null", b"[]", b"0", b'"x"', b"{}", b"NaN", b"[" * 5000, b'{"a":' * 3000):
        yield repr(other[:12]), other
    settings = json.loads(content)
    for _ in range(14):
        changed, told = mutated(settings, drawing)
        yield told, json.dumps(changed).encode()


FILES = {
    "tokenizer.json": "bert",
    "tokenizer_config.json": "llama",
    "generation_config.json": "bart",
    "special_tokens_map.json": "bert",
    "preprocessor_config.json": "vit",
    "added_tokens.json": "gpt2",
}
"""The files beside config.json, and in which family's folder they are damaged."""


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_of_settings_is_told(cases, model_folder, picture, name):
    family, drawing = FILES[name], seeded(name)
    original = model_folder(family)
    folder = copy_links(original, cases.folder / "model", but=name)
    stored = original / name
    content = {
        "special_tokens_map.json": b'{"unk_token": "[UNK]", "cls_token": {"content": "[CLS]", "lstrip": false}}',
        "added_tokens.json": b'{"zebra": 18, "lion": 19}',
        "generation_config.json": b'{"max_length": 20, "num_beams": 1, "eos_token_id": 2, "do_sample": false}',
    }.get(name) or stored.read_bytes()
    every = commands(folder, family, picture)
    reads = [line for line in every if {"--text", "--image"} & set(map(str, line))]
    for number, (told, spoilt) in enumerate(damaged(content, drawing)):
        (folder / name).write_bytes(spoilt)
        line = reads[number % len(reads)]
        cases.run(*line, "--format", "json", what=f"{name}: {told}")
