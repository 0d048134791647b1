"""What heads look at, in Python: the same as the command line's, for names and for loaded models."""

from __future__ import annotations

import json
import logging
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from transformers import AutoConfig, AutoImageProcessor, AutoModel, AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from attnscope import attention_maps, attention_steps
from attnscope.base.errors import FileError, ModelError, OptionError, OptionWarning
from tests.model.run.readers import save_picture, save_reader, save_seer
from tests.sentences import without_sentences

TEXT = "the cat sat on the mat"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Small checkpoints of several families, made when they are first asked for."""
    made = {}

    def folder(family: str) -> Path:
        if family not in made:
            made[family] = tmp_path_factory.mktemp("models") / family
            save = save_seer if family == "vit" else save_reader
            save(family, made[family])
        return made[family]

    return folder


@pytest.fixture(scope="module")
def loaded(folders):
    """A family's model and its tokenizer, as a user of transformers has them."""

    def load(family="bert", kind=AutoModel, **options):
        folder = folders(family)
        return kind.from_pretrained(folder, **options), AutoTokenizer.from_pretrained(folder)

    return load


def flags(options: dict) -> list[str]:
    """Keywords as the command line has them."""
    written = []
    for name, value in options.items():
        flag = {"layers": "--layer", "heads": "--head"}.get(name, "--" + name.replace("_", "-"))
        if value is True:
            written.append(flag)
        else:
            text = ",".join(map(str, value)) if isinstance(value, list | range) else str(value)
            written += [flag, text]
    return written


# As the command line


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("bert", {"text": TEXT, "pair": "a dog ran", "layers": 1, "heads": "all", "verify": True}),
        ("bert", {"text": TEXT, "layers": range(2), "heads": [0, 2], "without_sink": True}),
        ("bert", {"text": TEXT, "layers": 1, "query": 2}),
        ("bert", {"text": TEXT, "top": 3, "without_sink": True}),
        ("bert", {"text": TEXT, "pool": "mean", "query": 1}),
        ("bert", {"ids": [2, 5, 6, 3], "dtype": "float64"}),
        ("gpt2", {"text": "the cat", "generate": 3, "layers": "all"}),
        ("t5", {"text": TEXT, "target": "a dog ran", "heads": "0-1"}),
    ],
    ids=str,
)
def test_the_record_is_the_one_of_the_command_line(attnscope, folders, family, options):
    folder = folders(family)
    printed = attnscope("model", folder, *flags(options), "--format", "json").json
    recorded = json.loads(json.dumps(attention_maps(folder, **options).to_dict()))
    assert without_sentences(recorded) == without_sentences(printed)


def test_a_picture_is_seen_from_a_file_and_from_pillow(attnscope, folders, tmp_path):
    from PIL import Image

    path = save_picture(tmp_path / "x.png")
    printed = attnscope("model", folders("vit"), "--image", path, "--format", "json").json
    assert attention_maps(folders("vit"), image=path).to_dict() == printed
    with Image.open(path) as picture:
        assert attention_maps(folders("vit"), image=picture).to_dict() == printed


def test_the_steps_are_those_of_the_command_line(attnscope, folders):
    trace = attention_steps(folders("bert"), TEXT, layer=1, stats=True, verify=True)
    command = ["model", folders("bert"), "--text", TEXT, "--steps", "--layer", 1, "--stats", "--verify"]
    assert trace.to_dict() == attnscope(*command, "--format", "json").json


def test_steps_keep_the_tensors_that_are_named(folders):
    trace = attention_steps(folders("bert"), TEXT, keep=["scores"])
    assert trace["scores"].tensor.shape == trace["scores"].shape
    assert trace["Q"].tensor is None


# A loaded model


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("family", "attention", "options"),
    [
        ("bert", "eager", {"layers": "all", "heads": "all", "verify": True}),
        ("bert", "sdpa", {"pool": "max"}),
        ("llama", "sdpa", {"layers": 1, "generate": 2}),
        ("t5", "eager", {"target": "a dog"}),
    ],
    ids=str,
)
def test_a_loaded_model_has_the_maps_of_its_folder(folders, loaded, family, attention, options):
    kind = AutoModelForCausalLM if family == "llama" else AutoModel
    model, tokenizer = loaded(family, kind, attn_implementation=attention)
    ours = attention_maps(model, TEXT, tokenizer=tokenizer, **options).to_dict()
    theirs = attention_maps(folders(family), TEXT, **options).to_dict()
    for of_map in (ours, theirs):
        of_map["weights"] = [of_map.pop(key) for key in ("attention", "maps") if key in of_map]
    assert ours["query_tokens"] == theirs["query_tokens"]
    largest = [np.array(_numbers(each["weights"])) for each in (ours, theirs)]
    assert np.allclose(*largest, atol=1e-6)


def _numbers(weights):
    if isinstance(weights, dict):
        return [_numbers(weights[key]) for key in sorted(weights) if key in ("attention", "mean", "max")]
    return [_numbers(each) for each in weights] if isinstance(weights, list) else weights


@pytest.mark.few(2)
@pytest.mark.parametrize("family", ["mpnet", "gpt_oss", "xlnet", "granite_swa"])
def test_a_loaded_model_of_any_kind_has_the_very_maps_of_its_folder(folders, family):
    """Of those too whose attention is only to be had from their own eager attention."""
    from attnscope.model.run.load import class_of

    folder = folders(family)
    model = class_of(AutoConfig.from_pretrained(folder)).from_pretrained(folder)
    options = {"layers": "all", "heads": "all", "verify": True}
    ours = attention_maps(model, TEXT, tokenizer=AutoTokenizer.from_pretrained(folder), **options)
    assert ours.to_dict() == attention_maps(folder, TEXT, **options).to_dict()


def test_a_loaded_model_reads_ids_without_a_tokenizer(loaded):
    model, _ = loaded()
    for ids in ([2, 5, 6, 3], torch.tensor([[2, 5, 6, 3]]), "2,5,6,3"):
        maps = attention_maps(model, ids=ids)
        assert [token.text for token in maps.key_tokens] == ["<2>", "<5>", "<6>", "<3>"]


def test_a_loaded_model_sees_with_its_image_processor(folders, tmp_path):
    path, folder = save_picture(tmp_path / "x.png"), folders("vit")
    model, processor = AutoModel.from_pretrained(folder), AutoImageProcessor.from_pretrained(folder)
    ours = attention_maps(model, image=path, image_processor=processor)
    assert np.array_equal(ours.maps[0].attention, attention_maps(folder, image=path).maps[0].attention)


def test_a_loaded_model_is_seen_with_the_weights_that_it_has_now(loaded):
    model, tokenizer = loaded()
    before = attention_maps(model, TEXT, tokenizer=tokenizer).maps[0].attention
    with torch.no_grad():
        model.encoder.layer[0].attention.self.query.weight.mul_(3)
    after = attention_maps(model, TEXT, tokenizer=tokenizer).maps[0].attention
    assert not np.allclose(before, after)


def test_hooks_of_a_loaded_model_change_what_is_seen(loaded):
    """A researcher who patches activations sees the patched attention."""
    model, tokenizer = loaded()
    before = attention_maps(model, TEXT, tokenizer=tokenizer)[0, 0].attention
    hook = model.embeddings.register_forward_hook(lambda *values: values[-1].flip(1))
    patched = attention_maps(model, TEXT, tokenizer=tokenizer)[0, 0].attention
    hook.remove()
    assert not np.allclose(before, patched)
    assert np.array_equal(before, attention_maps(model, TEXT, tokenizer=tokenizer)[0, 0].attention)


def state_of(model):
    """All that a run could change of a model, and of what it shares with others."""
    modules = {
        path: (
            module.training,
            sorted(vars(module)),
            {name: list(value) for name, value in vars(module).items() if name.endswith("_hooks")},
        )
        for path, module in model.named_modules()
    }
    tensors = {
        name: (id(tensor), tensor.dtype, tensor.device, tensor.requires_grad, tensor.clone())
        for name, tensor in model.state_dict(keep_vars=True).items()
    }
    return {
        "modules": modules,
        "tensors": {name: each[:4] for name, each in tensors.items()},
        "values": {name: each[4].detach().numpy().tobytes() for name, each in tensors.items()},
        "config": model.config.to_dict(),
        "attention": model.config._attn_implementation,
        "generation": model.generation_config.to_dict() if model.can_generate() else None,
        "random": torch.get_rng_state().numpy().tobytes(),
        "registry": dict(ALL_ATTENTION_FUNCTIONS._local_mapping),
        "default dtype": torch.get_default_dtype(),
        "gradients": torch.is_grad_enabled(),
    }


def check_unchanged(before, model):
    after = state_of(model)
    for name, value in before.items():
        assert after[name] == value, name


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("options", "attention", "training"),
    [
        ({"layers": "all", "heads": "all", "verify": True, "page": True}, "sdpa", True),
        ({"pool": "max", "page": True}, "eager", True),
        ({"generate": 2}, "sdpa", False),
        ({"steps": True}, "eager", True),
        ({"dtype": "float64"}, "sdpa", True),
    ],
    ids=str,
)
def test_a_loaded_model_is_left_as_it_was(loaded, options, attention, training):
    model, tokenizer = loaded("llama", AutoModelForCausalLM, attn_implementation=attention)
    model.train(training)
    model.model.layers[1].register_forward_hook(lambda *_: None)
    before = state_of(model)
    attention_maps(model, TEXT, tokenizer=tokenizer, **options)
    check_unchanged(before, model)


@pytest.mark.parametrize(
    ("options", "attention"),
    [({"layers": "all"}, "sdpa"), ({"pool": "max"}, "eager"), ({"generate": 2}, "sdpa")],
    ids=str,
)
def test_a_loaded_model_is_left_as_it_was_after_a_failure_within_a_layer(loaded, options, attention):
    model, tokenizer = loaded("llama", AutoModelForCausalLM, attn_implementation=attention)
    model.train()

    def fail(*_):
        raise RuntimeError("in the middle of layer 1")

    model.model.layers[1].self_attn.o_proj.register_forward_pre_hook(fail)
    before = state_of(model)
    with pytest.raises(ModelError, match="in the middle of layer 1"):
        attention_maps(model, TEXT, tokenizer=tokenizer, **options)
    check_unchanged(before, model)


def test_a_loaded_model_is_left_as_it_was_after_a_failure_of_who_looks(loaded, monkeypatch):
    model, tokenizer = loaded()
    before = state_of(model)

    def fail(*_, **__):
        raise ZeroDivisionError

    monkeypatch.setattr("attnscope.model.maps.capture.weights_of", fail)
    with pytest.raises(ZeroDivisionError):
        attention_maps(model, TEXT, tokenizer=tokenizer)
    check_unchanged(before, model)


def test_a_users_own_attention_function_is_there_again(loaded):
    model, tokenizer = loaded()
    own = ALL_ATTENTION_FUNCTIONS["sdpa"]
    calls = []

    def counted(*values, **options):
        calls.append(values[0])
        return own(*values, **options)

    ALL_ATTENTION_FUNCTIONS["sdpa"] = counted
    try:
        attention_maps(model, TEXT, tokenizer=tokenizer)
        assert calls
        assert ALL_ATTENTION_FUNCTIONS["sdpa"] is counted
    finally:
        del ALL_ATTENTION_FUNCTIONS["sdpa"]


@pytest.mark.parametrize("fails", [False, True])
def test_transformers_warns_as_before(folders, fails):
    from transformers.utils import logging as of_transformers

    before = of_transformers.get_verbosity(), of_transformers.is_progress_bar_enabled()
    of_transformers.set_verbosity_info()
    of_transformers.enable_progress_bar()
    try:
        with pytest.raises(ModelError) if fails else nullcontext():
            attention_maps(folders("bert"), TEXT, layers=9 if fails else 0)
        assert of_transformers.get_verbosity() == of_transformers.INFO
        assert of_transformers.is_progress_bar_enabled()
    finally:
        of_transformers.set_verbosity(before[0])
        if not before[1]:
            of_transformers.disable_progress_bar()


# What comes of it


def test_a_map_is_found_by_its_layer_and_head(folders):
    maps = attention_maps(folders("bert"), TEXT, layers="all", heads="all")
    assert (maps[1, 2].layer, maps[1, 2].head) == (1, 2)
    with pytest.raises(KeyError, match="9"):
        maps[9, 0]


def test_what_was_not_asked_for_is_none(folders):
    maps = attention_maps(folders("bert"), TEXT, heads="all")
    assert repr(maps) == f"AttentionMaps({folders('bert')}: 3 heads, 8 queries × 8 keys)"
    asked = (maps.checks, maps.steps, maps.collected, maps.metrics, maps.whole_file)
    assert asked == (None, None, None, None, None)


@pytest.mark.sweep
def test_maps_are_saved_as_the_command_line_saves_them(attnscope, folders, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = {"layers": "all", "heads": "all"}
    command = ["model", folders("bert"), "--text", TEXT, *flags(options)]
    attnscope(*command, "--save", "a.safetensors", "--plot", "a.svg", "--page", "a.html")
    maps = attention_maps(folders("bert"), TEXT, **options, page=True)
    for suffix in (".safetensors", ".svg", ".html"):
        maps.save(f"b{suffix}")
        assert Path(f"a{suffix}").read_bytes() == Path(f"b{suffix}").read_bytes(), suffix
    for suffix, format in ((".json", "json"), (".csv", "csv"), (".md", "markdown")):
        maps.save(f"b{suffix}")
        assert Path(f"b{suffix}").read_text() == attnscope(*command, "--format", format).out, suffix
    with pytest.raises(FileError, match=r"b\.html"):
        maps.save("b.html")
    maps.save("b.html", force=True)


def test_a_page_of_one_head_has_the_others_too_if_they_were_collected(attnscope, folders, tmp_path):
    attnscope("model", folders("bert"), "--text", TEXT, "--head", 1, "--page", tmp_path / "a.html")
    maps = attention_maps(folders("bert"), TEXT, heads=1, page=True)
    maps.save(tmp_path / "b.html")
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
    attention_maps(folders("bert"), TEXT, heads=1).save(tmp_path / "c.html")
    assert len((tmp_path / "c.html").read_bytes()) < len((tmp_path / "b.html").read_bytes())


def test_pooled_maps_are_saved_with_what_is_known_of_them(folders, tmp_path):
    attention_maps(folders("bert"), TEXT, pool="mean").save(tmp_path / "x.safetensors")
    names = load_file(tmp_path / "x.safetensors").keys()
    assert {"attention", "mean", "max", "queries_of_cells", "keys_of_cells"} == set(names)


def test_a_table_has_a_row_for_each_weight(attnscope, folders):
    pandas = pytest.importorskip("pandas")
    import io

    frame = attention_maps(folders("bert"), TEXT, heads="all").to_pandas()
    csv = attnscope("model", folders("bert"), "--text", TEXT, "--head", "all", "--format", "csv").out
    pandas.testing.assert_frame_equal(frame, pandas.read_csv(io.StringIO(csv)))


# Long texts


def test_whole_maps_go_into_a_file_while_they_are_computed(folders, tmp_path, monkeypatch, caplog):
    whole = attention_maps(folders("bert"), TEXT, layers="all", heads="all")
    monkeypatch.setattr("attnscope.model.maps.memory.WHOLE", 0)
    path = tmp_path / "x.safetensors"
    with caplog.at_level(logging.INFO, logger="attnscope"):
        pooled = attention_maps(folders("bert"), TEXT, layers="all", heads="all", save=path)
    assert "they are pooled, and written whole by save" in caplog.text
    assert pooled.pooling is not None
    assert pooled.whole_file == path
    written = load_file(path)
    for each in whole.maps:
        assert np.allclose(written[f"layer{each.layer}.head{each.head}"], each.attention, atol=1e-6)


def test_maps_that_are_not_pooled_are_not_written_on_the_way(folders, tmp_path):
    maps = attention_maps(folders("bert"), TEXT, save=tmp_path / "x.npz")
    assert maps.whole_file is None
    assert not (tmp_path / "x.npz").exists()


def test_progress_is_told_and_ends(folders):
    told = []
    attention_maps(folders("bert"), TEXT, progress=told.append)
    name = folders("bert")
    assert told == [f"loading {name} …", None, f"running {name} on cpu …", None]


# Mistakes


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, OptionError, "there is no input"),
        ({"text": "a", "ids": [1]}, OptionError, "text and ids cannot be combined"),
        ({"text": "a", "layers": [0, 1], "steps": True}, OptionError, "steps are those of one layer"),
        ({"text": "a", "heads": "all", "top": 1}, OptionError, "top is for one head, and layers=0"),
        ({"text": "a", "layers": -1}, OptionError, "layers is -1, but takes numbers from 0"),
        ({"text": "a", "pool": "median"}, OptionError, "pool is 'median', but takes"),
        ({"text": "a", "device": "gpu"}, OptionError, "'gpu' is not a device"),
        ({"text": "a", "device": "meta"}, OptionError, 'device="meta" computes no values'),
        ({"text": "a", "stack": "decoder"}, OptionError, "has no stack decoder for this input"),
        ({"text": "a", "layers": 7}, ModelError, "there is no layer 7"),
        ({"ids": []}, OptionError, "ids is empty"),
        ({"ids": [1.5]}, OptionError, "ids is .1.5., but takes a text or several whole numbers"),
        ({"text": "a", "save": "x.txt"}, FileError, r"x\.txt"),
        ({"text": "a", "tokenizer": "x"}, OptionError, "tokenizer= is for a loaded model"),
    ],
    ids=str,
)
def test_mistakes_are_errors(folders, options, error, message):
    with pytest.raises(error, match=message):
        attention_maps(folders("bert"), **options)


def test_a_text_needs_a_tokenizer(loaded):
    model, _ = loaded()
    with pytest.raises(ModelError, match="was given without a tokenizer") as caught:
        attention_maps(model, TEXT)
    assert "tokenizer=" in caught.value.hint


def test_a_model_that_is_none_of_transformers_is_refused():
    with pytest.raises(OptionError, match="this is a Linear"):
        attention_maps(torch.nn.Linear(2, 2), TEXT)


def test_options_without_effect_are_warned_of(folders, tmp_path):
    with pytest.warns(OptionWarning, match="pool has no effect: the input is a picture"):
        attention_maps(folders("vit"), image=save_picture(tmp_path / "x.png"), pool="max")


def test_several_texts_are_answered_with_what_to_use():
    with pytest.raises(OptionError, match="those of one text, and here are 2") as caught:
        attention_maps("minilm", ["The cat sat.", "The dog ran."])
    assert "for text in texts" in caught.value.hint
    one = attention_maps("minilm", ["The cat sat."])
    assert one.to_dict() == attention_maps("minilm", "The cat sat.").to_dict()
