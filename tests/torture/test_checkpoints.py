"""Checkpoints whose settings and weights are wrong, field by field: shown, or refused in one line."""

import json
import random

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.torture.cases import seeded
from tests.torture.files import copy_links

pytestmark = [pytest.mark.torture, pytest.mark.slow]

WRONG = [
    None,
    True,
    -1,
    0,
    1,
    2.5,
    10**6,
    10**30,
    "",
    "x",
    "\x1b[31mred\x1b[0m\n2",
    [],
    [1, None],
    {},
    {"a": [0]},
]
"""What stands in place of a setting."""

CONFIGS = {
    "bert": [
        "model_type", "architectures", "hidden_size", "num_attention_heads", "num_hidden_layers", "vocab_size",
        "max_position_embeddings", "type_vocab_size", "intermediate_size", "hidden_act", "is_decoder", "dtype",
        "layer_norm_eps", "pad_token_id", "add_cross_attention", "transformers_version",
    ],
    "llama": [
        "num_key_value_heads", "head_dim", "rope_parameters", "attention_bias", "sliding_window", "layer_types",
        "hidden_size", "num_attention_heads", "num_hidden_layers", "rms_norm_eps",
    ],
    "bart": ["decoder_layers", "encoder_attention_heads", "d_model", "decoder_start_token_id", "is_encoder_decoder"],
    "vit": ["image_size", "patch_size", "num_channels"],
}  # fmt: skip
"""The settings that are tried in each family."""


def lines(folder, family, picture):
    """Commands that read a model."""
    if family == "vit":
        return [["model", folder], ["model", folder, "--image", picture]]
    more = ["--target", "a dog"] if family == "bart" else []
    return [
        ["model", folder],
        ["model", folder, "--text", "the cat sat", *more],
        ["model", folder, "--text", "the cat sat", *more, "--verify"],
        ["heads", folder, "--text", "the cat sat", *more],
        ["model", folder, "--layer", "1", "--verify"],
        ["model", folder, "--text", "the cat sat", *more, "--steps"],
    ]


@pytest.mark.parametrize(
    ("family", "name"), [(family, name) for family, names in CONFIGS.items() for name in names]
)
def test_a_wrong_setting_is_told(cases, model_folder, picture, family, name):
    drawing = seeded(f"{family} {name}")
    original = model_folder(family)
    folder = copy_links(original, cases.folder / "model", but="config.json")
    config = json.loads((original / "config.json").read_text())
    line = drawing.choice([0, 1, 2, 3])
    for value in WRONG:
        (folder / "config.json").write_text(json.dumps({**config, name: value}))
        line += 1
        every = lines(folder, family, picture)
        cases.run(
            *every[line % len(every)], "--format", "json",
            what=f"{name} is {json.dumps(value)}",
        )  # fmt: skip


@pytest.mark.parametrize("part", range(4))
def test_a_missing_setting_is_told(cases, model_folder, picture, part):
    for family in list(CONFIGS)[part::4]:
        original = model_folder(family)
        folder = copy_links(original, cases.folder / family, but="config.json")
        config = json.loads((original / "config.json").read_text())
        for number, name in enumerate(config):
            (folder / "config.json").write_text(
                json.dumps({key: config[key] for key in config if key != name})
            )
            every = lines(folder, family, picture)
            cases.run(*every[number % len(every)], "--format", "json", what=f"{family} without {name}")


def damages(weights: dict[str, torch.Tensor], drawing: random.Random):
    """What may be wrong with weights: what it is, and the weights."""
    names = sorted(name for name in weights if weights[name].dim() == 2)
    for kind in (
        "gone",
        "flat",
        "one row less",
        "one column more",
        "no rows",
        "three axes",
        "int64",
        "float8",
        "NaN",
        "complex",
    ):
        for name in drawing.sample(names, 4):
            tensor, changed = weights[name], dict(weights)
            if kind == "gone":
                del changed[name]
            else:
                changed[name] = {
                    "flat": lambda t: t.flatten(),
                    "one row less": lambda t: t[1:].clone(),
                    "one column more": lambda t: torch.nn.functional.pad(t, (0, 1)),
                    "no rows": lambda t: t[:0].clone(),
                    "three axes": lambda t: t[None].clone(),
                    "int64": lambda t: t.long(),
                    "float8": lambda t: t.to(torch.float8_e4m3fn),
                    "NaN": lambda t: torch.full_like(t, torch.nan),
                    "complex": lambda t: t.to(torch.complex64),
                }[kind](tensor)
            yield f"{name}: {kind}", changed


@pytest.mark.parametrize("family", ["bert", "llama", "bart"])
def test_wrong_weights_are_told(cases, model_folder, picture, family):
    original = model_folder(family)
    folder = copy_links(original, cases.folder / "model", but="model.safetensors")
    weights, drawing = load_file(original / "model.safetensors"), seeded(family)
    for number, (what, changed) in enumerate(damages(weights, drawing)):
        save_file(changed, folder / "model.safetensors", metadata={"format": "pt"})
        every = lines(folder, family, picture)
        cases.run(*every[number % len(every)], "--format", "json", what=what)


TOKENIZERS = {
    "an empty vocabulary": lambda t: t["model"].update(vocab={}),
    "numbers beyond the model": lambda t: t["model"].update(vocab={w: 1000 + i for i, w in enumerate(t["model"]["vocab"])}),
    "negative numbers": lambda t: t["model"].update(vocab={w: -i for i, w in enumerate(t["model"]["vocab"])}),
    "text as numbers": lambda t: t["model"].update(vocab={w: str(i) for i, w in enumerate(t["model"]["vocab"])}),
    "no model": lambda t: t.pop("model"),
    "another kind": lambda t: t["model"].update(type="Nope"),
    "no unknown token": lambda t: t["model"].update(unk_token="nowhere"),
    "a truncation of 1": lambda t: t.update(truncation={"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0}),
    "a truncation of 0": lambda t: t.update(truncation={"direction": "Right", "max_length": 0, "strategy": "LongestFirst", "stride": 5}),
    "padding to 64": lambda t: t.update(padding={"strategy": {"Fixed": 64}, "direction": "Left", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}),
    "special tokens with escapes": lambda t: t["added_tokens"][2].update(content="\x1b[2J\n"),
    "no splitting": lambda t: t.update(pre_tokenizer=None),
    "no template": lambda t: t.update(post_processor=None),
    "a decoder of bytes": lambda t: t.update(decoder={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}),
    "a list": lambda t: t.clear(),
}  # fmt: skip


@pytest.mark.parametrize("what", TOKENIZERS)
def test_a_wrong_tokenizer_is_told(cases, model_folder, picture, what):
    original = model_folder("bert")
    folder = copy_links(original, cases.folder / "model", but="tokenizer.json")
    tokenizer = json.loads((original / "tokenizer.json").read_text())
    TOKENIZERS[what](tokenizer)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    for line in lines(folder, "bert", picture)[1:4]:
        cases.run(*line, "--format", "json", what=what)
    cases.run("model", folder, "--text", "the cat sat", "--pair", "a dog", what=what)


def test_an_index_that_names_strange_shards_is_told(cases, sharded, picture):
    folder = copy_links(sharded, cases.folder / "model", but="model.safetensors.index.json")
    index = json.loads((sharded / "model.safetensors.index.json").read_text())
    first = next(iter(index["weight_map"]))
    for value in (None, 1, "", ".", "..", "/etc/passwd", "../../x.safetensors", "nope.safetensors", "\x1b[31m.safetensors",
                  "config.json", "x" * 300, [], {}, "model.safetensors.index.json"):  # fmt: skip
        index["weight_map"][first] = value
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        for line in lines(folder, "bert", picture)[:4:3]:
            cases.run(*line, "--format", "json", what=f"{first} is in {value!r}")
    for value in (None, 1, [], {}, "x"):
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": value}))
        for line in lines(folder, "bert", picture)[:4:3]:
            cases.run(*line, "--format", "json", what=f"weight_map is {value!r}")
