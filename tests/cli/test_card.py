"""`attnscope card`, on the command line."""

import csv
import io
import json

import pytest
from safetensors.torch import save_file

from attnscope.model.card.anatomy import LayerCache
from attnscope.model.families.table import FAMILIES

LLAMA = {
    "model_type": "llama",
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "max_position_embeddings": 2048,
    "rope_theta": 500000.0,
    "dtype": "bfloat16",
}
PER_TOKEN = 3 * 2 * 2 * 10 * 2
MIXED = {
    **LLAMA,
    "model_type": "gemma3_text",
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 100,
    "rope_local_base_freq": 10000.0,
    "rope_theta": 1000000.0,
}


@pytest.fixture
def config(tmp_path):
    def write(fields):
        file = tmp_path / "config.json"
        file.write_text(json.dumps(fields))
        return file

    return write


def test_a_configuration_alone_has_its_anatomy_and_the_bytes_of_its_cache(attnscope, config):
    r = attnscope("card", config(LLAMA), "--context", "1k")
    assert (r.exit_status, r.err) == (0, "")
    assert "3 layers, d_feat 48" in r.out
    assert "llama · config.json · made for 2,048 tokens · bfloat16" in r.out
    assert "500,000" in r.out
    assert f"{PER_TOKEN} B a token, {PER_TOKEN} B".replace(f", {PER_TOKEN} B", ", 240.0 KiB") in r.out


def test_layers_of_several_kinds_have_a_strip_and_a_row_each(attnscope, config):
    r = attnscope("card", config(MIXED), "--context", 1000, "--batch", 3, "--dtype", "fp8")
    assert "▒█▒█\n▒ sliding, █ full\n" in r.out
    record = attnscope(
        "card", config(MIXED), "--context", 1000, "--batch", 3, "--dtype", "fp8", "--format", "json"
    ).json
    assert record["schema"] == "attnscope.card/1"
    assert [(each["kind"], each["layers"], each["window"], each["rope_theta"]) for each in record["kinds"]] == [
        ("sliding", [0, 2], 100, 10000.0),
        ("full", [1, 3], None, 1000000.0),
    ]  # fmt: skip
    assert [each["cache_bytes"] for each in record["kinds"]] == [2 * 40 * 100 * 3, 2 * 40 * 1000 * 3]
    held = {each["engine"]: each["n_bytes"] for each in record["reserved"]}
    assert held["transformers, dynamic"] == 2 * 40 * (99 + 1000) * 3


@pytest.mark.few(2)
@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_the_figure_has_a_line_for_the_need_and_for_each_engine(attnscope, config, tmp_path, suffix):
    path = tmp_path / f"cache{suffix}"
    r = attnscope("card", config(MIXED), "--context", 1600, "--plot", path)
    assert (r.exit_status, r.out) == (0, attnscope("card", config(MIXED), "--context", 1600).out)
    assert r.err.startswith(f"attnscope: drew {path}, ")
    content = path.read_bytes()
    assert content.startswith({".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[suffix])
    if suffix == ".svg":
        words = [
            "needed",
            "transformers, static",
            "vLLM",
            "llama.cpp",
            "1,600",
            "tokens of each sequence",
        ]
        assert not [word for word in words if f">{word}</text>" not in content.decode()]
    again = attnscope("card", config(MIXED), "--plot", path)
    assert (again.exit_status, path.read_bytes()) == (2, content)
    assert attnscope("card", config(MIXED), "--plot", tmp_path / "x.gif").exit_status == 2


def test_the_lines_of_the_figure_are_what_is_needed_and_reserved(attnscope, config, tmp_path):
    from matplotlib.figure import Figure

    from attnscope import card, cards
    from attnscope.model.card.figure import draw_card

    def lines(result):
        figure = Figure()
        draw_card(figure, result)
        return {line.get_label(): line.get_xydata().tolist() for line in figure.axes[0].get_lines()}

    file = config(MIXED)
    drawn = lines(card(file, context=1600, batch=3))
    lengths = [25, 50, 100, 200, 400, 800, 1600]
    assert drawn["needed"] == [[n, 3 * 2 * 80 * (min(n, 100) + n)] for n in lengths]
    assert drawn["transformers, dynamic"] == [[n, 3 * 2 * 80 * (min(n, 99) + n)] for n in lengths]
    (tmp_path / "full.json").write_text(json.dumps(LLAMA))
    both = lines(cards([file, tmp_path / "full.json"], context=1600))
    assert both == {
        "config.json": [[n, 2 * 80 * (min(n, 100) + n)] for n in lengths],
        "full.json": [[n, PER_TOKEN * n] for n in lengths],
    }


def test_a_model_that_keeps_nothing_has_no_figure(attnscope, tmp_path):
    r = attnscope("card", "minilm", "--plot", tmp_path / "x.svg")
    assert r.exit_status == 2
    assert "no keys and values are kept" in r.err
    assert not (tmp_path / "x.svg").exists()


def test_the_curve_halves_the_context_and_bends_at_the_window(attnscope, config):
    r = attnscope("card", config(MIXED), "--context", 1600)
    record = attnscope("card", config(MIXED), "--context", 1600, "--format", "json").json
    lengths = [25, 50, 100, 200, 400, 800, 1600]
    assert [(each["n_tokens"], each["n_bytes"]) for each in record["curve"]] == [
        (n, 2 * 80 * (min(n, 100) + n)) for n in lengths
    ]
    bars = [line.count("█") for line in r.out.splitlines() if "KiB" in line and "█" in line]
    assert bars[-1] == 32
    assert bars == sorted(bars)


def test_csv_and_markdown_have_a_row_for_each_kind(attnscope, config):
    r = attnscope("card", config(MIXED), "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(r.out)))
    assert [(row["layers"], row["kind"], row["n_kv_head"]) for row in rows] == [
        ("0,2", "sliding", "2"),
        ("1,3", "full", "2"),
    ]
    assert "| 0, 2 " in attnscope("card", config(MIXED), "--format", "markdown").out


def test_a_memory_holds_the_weights_and_the_longest_context(attnscope, config, tmp_path):
    import torch

    config(LLAMA)
    save_file(
        {"model.layers.0.self_attn.q_proj.weight": torch.ones(60, 48)}, tmp_path / "model.safetensors"
    )
    size = 60 * 48 * 4
    record = attnscope(
        "card", tmp_path, "--memory", str(size + 7 * 2 * PER_TOKEN + 1), "--batch", 2, "--format", "json"
    ).json
    assert record["fit"] == {
        "memory": size + 14 * PER_TOKEN + 1,
        "weights": size,
        "context": 7,
        "batch": 0,
        "cache_only": False,
    }
    r = attnscope("card", tmp_path, "--memory", str(size + 14 * PER_TOKEN), "--batch", 2)
    assert "  2 sequences of at most 7 tokens\n  no sequence of 2,048 tokens\n" in r.out
    r = attnscope("card", tmp_path, "--memory", str(size + PER_TOKEN), "--batch", 2)
    assert "too little for 2 sequences of 1 token\n" in r.out
    r = attnscope("card", tmp_path, "--memory", "1k")
    assert "the weights do not fit" in r.out


def test_an_encoder_keeps_nothing(attnscope):
    r = attnscope("card", "minilm")
    assert (r.exit_status, r.err) == (0, "")
    assert "it keeps no keys and values for later tokens" in r.out
    assert "22.7 M" in r.out


def test_it_says_why_weights_are_not_counted(attnscope, config, tmp_path):
    config(LLAMA)
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02.")
    r = attnscope("card", tmp_path)
    assert "has its weights only as pickles, whose headers are not read: pytorch_model.bin" in r.out
    assert r.exit_status == 0
    assert "pickles" not in attnscope("card", tmp_path / "config.json").out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--context", "many"], "--context 'many' is not an amount."),
        (["--context", "0"], "--context 0 must be from 1 to 2^50."),
        (["--memory", "80Q"], "--memory '80Q' is not an amount."),
        (["--dtype", "int3"], "'int3' is not a dtype of keys and values."),
        (["--source", 5], "has no encoder, so --source does not apply."),
    ],
)
def test_a_mistake_gets_a_clear_line_and_exit_status_2(attnscope, config, arguments, message):
    r = attnscope("card", config(LLAMA), *arguments)
    assert (r.exit_status, r.out) == (2, "")
    assert r.err.startswith("attnscope: error: ")
    assert message in r.err


UNCOUNTED = LLAMA | {"model_type": "helium"}
"""Its parameters are not counted by config.json alone."""


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"quantization_config": {"quant_method": "hqq"}}, "quantization_config names hqq"),
        ({"dtype": None, "torch_dtype": None}, "config.json has no dtype"),
        ({"hidden_act": "newest"}, "transformers cannot build it: KeyError: "),
    ],
)
def test_what_fits_is_not_known_without_the_size_of_the_weights(attnscope, config, fields, why):
    r = attnscope("card", config(UNCOUNTED | fields), "--memory", "80G")
    assert (r.exit_status, r.err) == (0, "")
    text = r.out.replace("\n", " ")
    assert "what fits is not known, as the size of the weights is not (--weights)" in text
    assert why in text
    assert (
        attnscope("card", config(UNCOUNTED | fields), "--memory", "80G", "--format", "json").json["fit"]
        is None
    )


def test_the_size_of_the_weights_can_be_given(attnscope, config):
    file = config(LLAMA | WEIGHTS)
    known = attnscope("card", file, "--memory", "1M", "--format", "json").json
    n = sum(each["n_parameter"] for each in known["weights"]["dtypes"])
    assert known["fit"]["weights"] == 2 * n
    wide = attnscope(
        "card", file, "--memory", "1M", "--weights-dtype", "float32", "--format", "json"
    ).json
    assert (wide["fit"]["weights"], wide["weights"]["dtypes"][0]["n_bytes"]) == (4 * n, 4 * n)
    given = attnscope("card", file, "--memory", "1M", "--weights", "12345", "--format", "json").json
    assert (given["fit"]["weights"], given["weights"]["dtypes"][0]["n_bytes"]) == (12345, 12345)
    # also where the parameters are not counted
    fields = UNCOUNTED | {"hidden_act": "newest"}
    given = attnscope(
        "card", config(fields), "--memory", "1M", "--weights", "12345", "--format", "json"
    ).json
    assert (given["fit"]["weights"], given["weights"]) == (12345, None)
    assert given["fit"]["context"] == (2**20 - 12345) // PER_TOKEN


def test_a_memory_of_caches_alone_holds_no_weights(attnscope, config):
    r = attnscope("card", config(LLAMA), "--cache-memory", str(7 * PER_TOKEN + 1))
    assert (
        f"in {7 * PER_TOKEN / 1024:.1f} KiB of keys and values, fit:\n  1 sequence of at most 7 tokens"
        in r.out
    )


def test_one_device_of_several_keeps_its_share(attnscope, config):
    r = attnscope("card", config(LLAMA), "--tensor-parallel", 6, "--context", "1k")
    assert (
        f"{PER_TOKEN // 2} B a token, 120.0 KiB needed for 1 sequence of 1,024 tokens, on each" in r.out
    )
    file = config(LLAMA | WEIGHTS)
    fits = [
        attnscope("card", file, "--memory", "1M", "--tensor-parallel", n, "--format", "json").json["fit"]
        for n in (1, 2)
    ]
    assert fits[1]["weights"] == -(-fits[0]["weights"] // 2)


def test_the_dtype_that_a_checkpoint_asks_for_is_the_default_and_says_so(attnscope, config):
    scheme = {"num_bits": 8, "type": "float"}
    fields = LLAMA | {"quantization_config": {"quant_method": "fp8", "kv_cache_scheme": scheme}}
    r = attnscope("card", config(fields))
    assert (
        f"keys and values in fp8 (quantization_config.kv_cache_scheme; --dtype): {PER_TOKEN // 2} B"
        in r.out
    )
    r = attnscope("card", config(fields), "--dtype", "float32")
    assert f"keys and values in float32: {2 * PER_TOKEN} B" in r.out
    record = attnscope("card", config(LLAMA), "--format", "json").json
    assert (record["cache_dtype"], record["cache_dtype_from"]) == ("bfloat16", "config.json")


def test_keys_and_values_of_llama_cpp_may_have_two_dtypes(attnscope, config):
    wide = config(LLAMA | {"head_dim": 32})
    r = attnscope("card", wide, "--dtype-k", "q8_0", "--dtype-v", "q4_0", "--format", "json").json
    assert r["cache_dtype"] == "q8_0 (K) and q4_0 (V)"
    assert r["kinds"][0]["bytes_per_token"] == 3 * 2 * 32 * (34 + 18) // 32
    assert [each["engine"] for each in r["reserved"]] == ["llama.cpp"]


def test_the_step_of_an_engine_is_kept_beside_windows(attnscope, config):
    steps = {}
    for step in (2048, 8192):
        r = attnscope(
            "card", config(MIXED), "--context", 20000, "--engine-step", step, "--format", "json"
        )
        steps[step] = {each["engine"]: each["n_bytes"] for each in r.json["reserved"]}
    assert steps[2048]["vLLM"] < steps[8192]["vLLM"]
    assert steps[2048]["llama.cpp"] < steps[8192]["llama.cpp"]
    assert steps[2048]["vLLM, not hybrid"] == steps[8192]["vLLM, not hybrid"]
    r = attnscope("card", config(LLAMA), "--engine-step", 2048)
    assert "--engine-step changes nothing: no layer has a window" in r.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--memory", "1G", "--cache-memory", "1G"), "they exclude each other"),
        (("--weights", "1G", "--weights-dtype", "fp8"), "both say the size of the weights"),
        (("--weights-dtype", "q8_0"), "'q8_0' is not a dtype of weights"),
        (("--dtype-k", "q8_0"), "--dtype-k needs --dtype-v"),
        (("--dtype-v", "q7"), "'q7' is not a dtype of keys and values"),
        (("--dtype", "fp8", "--dtype-k", "fp8", "--dtype-v", "fp8"), "--dtype is idle"),
        (("--tensor-parallel", "4"), "4 devices cannot share 6 heads"),
        (("--tensor-parallel", "2", "--flops", "1T", "--bandwidth", "1T"), "those of one device"),
        (("--tensor-parallel", "0"), "--tensor-parallel"),
    ],
)
def test_options_that_exclude_each_other_are_refused(attnscope, config, arguments, message):
    r = attnscope("card", config(LLAMA), *arguments)
    assert (r.exit_status, r.out) == (2, "")
    assert message in r.err


def test_verify_compares_each_kind_at_three_lengths_and_has_an_exit_status(
    attnscope, config, monkeypatch
):
    r = attnscope("card", config(MIXED), "--verify", "--format", "json")
    assert r.exit_status == 0
    assert {(each["kind"], each["n_tokens"]) for each in r.json["checks"]} == {
        (kind, n) for kind in ("sliding", "full") for n in (6, 8, 11)
    }
    assert all(each["formula"] == each["held"] > 0 for each in r.json["checks"])
    monkeypatch.setattr(LayerCache, "nbytes", lambda self, n_tokens, itemsize, n_source=0: 7)
    r = attnscope("card", config(MIXED), "--verify")
    assert r.exit_status == 1
    assert "✗ different" in r.out


WHOLE = {**LLAMA, "vocab_size": 70, "intermediate_size": 50, "tie_word_embeddings": False}


def test_verify_compares_the_parameters_with_a_model_without_values(attnscope, config, monkeypatch):
    layer = 48 * (60 + 20 + 20) + 60 * 48
    r = attnscope("card", config(WHOLE), "--verify", "--format", "json")
    counts = {each["part"]: (each["formula"], each["built"]) for each in r.json["parameter_checks"]}
    total = 3 * (layer + 3 * 48 * 50 + 2 * 48) + 2 * 48 * 70 + 48
    assert counts == {"attention": (3 * layer, 3 * layer), "all": (total, total)}
    llama = FAMILIES["llama"]
    monkeypatch.setitem(FAMILIES, "llama", llama._replace(parameters=llama.parameters._replace(norms=3)))
    r = attnscope("card", config(WHOLE), "--verify")
    assert r.exit_status == 1
    verdicts = [line.split()[:3] for line in r.out.splitlines() if line[:1] in ("✓", "✗")]
    assert verdicts[-2:] == [["✓", "equal", "attention"], ["✗", "different", "all"]]


def test_parameters_that_config_json_does_not_say_are_not_compared(attnscope, config):
    r = attnscope("card", config(UNCOUNTED), "--verify", "--format", "json")
    assert (r.exit_status, r.json["parameter_checks"]) == (0, [])
    assert any(each.startswith("parameters are not compared: ") for each in r.json["notices"])


WEIGHTS = {"intermediate_size": 20, "vocab_size": 11, "tie_word_embeddings": False}


def test_the_work_is_that_of_attention_and_of_the_weights(attnscope, config):
    r = attnscope("card", config(LLAMA | WEIGHTS), "--context", 1000, "--batch", 3, "--format", "json")
    pair = 3 * 2 * 6 * (10 + 10)  # layers, FLOPs, heads, d_K and d_V
    matrices = 3 * (2 * 48 * 60 + 2 * 48 * 20 + 3 * 48 * 20) + 48 * 11
    norms = 7 * 48
    work = r.json["work"]
    assert work["token"] == {"attention": 3 * 1000 * pair, "rest": 3 * 2 * (matrices + norms)}
    assert work["prefill"]["attention"] == 3 * pair * 1000 * 1001 // 2
    assert work["dominates_from"] == 2 * (matrices + norms) // pair + 1
    assert work["bytes_moved"] == 2 * (matrices + norms) + 3 * 1000 * PER_TOKEN
    assert work["maps_bytes"] == 3 * 3 * 6 * 1000 * 1000 * 2


def test_a_device_bounds_one_more_token(attnscope, config):
    device = ("--flops", "1T", "--bandwidth", "1.5MB")
    r = attnscope("card", config(LLAMA | WEIGHTS), "--context", "1k", *device)
    assert "bound by bandwidth: at least 2" in r.out
    assert "prefill of 1,024 tokens" in r.out
    assert "one more token" in r.out


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("--dtype", each) for each in ("int2", "2bit", "KIVI", "quantized", "hqq")),
        ("--dtype-k", "int4"),
    ],
)
def test_a_cache_of_groups_and_recent_tokens_is_refused_with_the_reason(attnscope, option, value):
    r = attnscope("card", "minilm", option, value)
    assert (r.exit_status, r.out) == (2, "")
    assert f"'{value}' is not a dtype of keys and values: a cache such as KIVI's, or" in r.err
    assert f"  try  {option} q4_0, the fewest bits that are counted" in r.err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--flops", "1T"), "what bounds a token needs both --flops and --bandwidth"),
        (("--flops", "fast", "--bandwidth", "1T"), "--flops 'fast' is not an amount"),
        (("--flops", "1T", "--bandwidth", "0"), "--bandwidth 0 must be from 1 to 2^50"),
    ],
)
def test_a_device_that_makes_no_sense_is_refused(attnscope, config, options, words):
    r = attnscope("card", config(LLAMA), *options)
    assert r.exit_status == 2
    assert words in r.err


def test_a_memory_holds_the_weights_that_config_json_describes(attnscope, config):
    r = attnscope("card", config(LLAMA | WEIGHTS), "--memory", "1M", "--format", "json")
    fit = r.json["fit"]
    assert r.json["weights"]["source"] == "configuration"
    assert fit["context"] == (2**20 - fit["weights"]) // PER_TOKEN


def test_without_the_sizes_of_the_weights_their_flops_are_not_told(attnscope, config):
    r = attnscope("card", config(UNCOUNTED), "--context", 1000)
    assert "moves" not in r.out
    row = next(line for line in r.out.splitlines() if line.startswith("one more token"))
    assert row.split()[-1] == "–"


@pytest.fixture
def two(tmp_path):
    for name, fields in {"small": LLAMA | WEIGHTS, "mixed": MIXED}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(
            json.dumps(fields | {"max_position_embeddings": 900})
        )
    longer = LLAMA | WEIGHTS | {"max_position_embeddings": 2000}
    (tmp_path / "small" / "config.json").write_text(json.dumps(longer))
    return tmp_path / "small", tmp_path / "mixed"


def test_several_models_have_a_row_each_at_the_longest_context_of_all(attnscope, two):
    r = attnscope("card", *two, "--batch", 2, "--format", "json")
    assert r.json["schema"] == "attnscope.cards/1"
    assert (r.json["names"], r.json["context"]) == (["small", "mixed"], 900)
    alone = [
        attnscope("card", each, "--batch", 2, "--context", 900, "--format", "json").json for each in two
    ]
    assert r.json["cards"] == [{k: v for k, v in each.items() if k != "schema"} for each in alone]
    rows = list(csv.DictReader(io.StringIO(attnscope("card", *two, "--format", "csv").out)))
    assert [row["layers"] for row in rows] == ["3 full", "2 sliding, 2 full"]
    assert [row["token_attention"] for row in rows] == [
        str(each["work"]["token"]["attention"] // 2) for each in alone
    ]
    table = attnscope("card", *two).out
    assert "2 models\n1 sequence of 900 tokens" in table
    assert "| small " in attnscope("card", *two, "--format", "markdown").out


def test_models_of_the_same_name_are_told_apart(attnscope, two):
    files = [each / "config.json" for each in two]
    assert attnscope("card", *files, "--format", "json").json["names"] == list(map(str, files))


def test_a_model_without_a_size_leaves_the_table_and_is_named(attnscope, two):
    fields = LLAMA | WEIGHTS | {"dtype": None}
    (two[1] / "config.json").write_text(json.dumps(fields))
    (two[0] / "config.json").write_text(json.dumps(LLAMA | WEIGHTS))
    r = attnscope("card", *two, "--memory", "1G", "--format", "json")
    fits = [each["fit"] for each in r.json["cards"]]
    assert fits[0]["context"] > 0
    assert fits[1] is None
    r = attnscope("card", *two, "--memory", "1G")
    assert r.exit_status == 0
    text = r.out.replace("\n", " ")
    assert f"{two[1].name}: the size of the weights is not known: config.json has no dtype" in text
    block = {"quant_method": "fp8", "weight_block_size": [16, 16]}
    (two[1] / "config.json").write_text(json.dumps(fields | {"quantization_config": block}))
    r = attnscope("card", two[1], "--memory", "1G", "--format", "json")
    (line,) = [each for each in r.json["notices"] if each.startswith("the size of the weights")]
    assert "config.json has no dtype for the " in line
    assert "parameters that are not quantised; the others take" in line
    assert line.endswith("(--weights)")
    r = attnscope("card", "minilm", two[0], "--memory", "1G")
    assert "minilm: it keeps no keys and values, so --memory does not apply" in r.out


def test_what_is_wrong_with_one_of_several_models_names_it(attnscope, two):
    r = attnscope("card", *two, "--source", 5)
    assert "none of the models has an encoder, so --source does not apply" in r.err


def test_a_notice_about_one_of_several_models_names_it(attnscope, two):
    r = attnscope("card", *two, "--context", 1500)
    assert "mixed: it was made for at most 900 tokens, and the context has 1,500" in r.out + r.err
    assert "small: it was made" not in r.out + r.err


def test_a_width_that_the_tensors_contradict_is_a_finding(attnscope, config, tmp_path):
    import torch

    sizes = {"q": (60, 48), "k": (20, 48), "v": (20, 48), "o": (48, 60)}
    layers = [f"model.layers.{i}" for i in range(3)]
    tensors = {
        f"{layer}.self_attn.{name}_proj.weight": torch.ones(size)
        for layer in layers
        for name, size in sizes.items()
    }
    tensors |= {f"{layer}.input_layernorm.weight": torch.ones(48) for layer in layers}
    save_file(tensors, tmp_path / "model.safetensors")
    config(LLAMA)
    assert attnscope("card", tmp_path, "--format", "json").json["findings"] == []
    config({**LLAMA, "head_dim": 12})
    sentence = (
        "by config.json, there are 2 key heads of 12, but W_K has 20 columns, not 24 (in layers 0–2)"
    )
    r = attnscope("card", tmp_path)
    assert f"! {sentence}" in r.out
    assert r.exit_status == 0
    findings = attnscope("card", tmp_path, "--format", "json").json["findings"]
    assert {"message": sentence, "line": None} in findings
    assert sentence in attnscope("card", tmp_path, "--format", "markdown").out
    assert "but W_K has 20 columns" in attnscope("card", tmp_path, "--format", "csv").err


VISION = {"depth": 2, "hidden_size": 32, "num_heads": 4, "out_hidden_size": 48}


def test_fields_of_a_text_beside_those_of_images_are_read(attnscope, config):
    """As Qwen2.5-VL's config.json has them, which is older than parts for text."""
    fields = {**LLAMA, "model_type": "qwen2_5_vl", "vision_config": VISION}
    del fields["head_dim"]
    r = attnscope("card", config(fields), "--format", "json")
    assert r.json["model_type"] == "qwen2_5_vl_text"
    [kind] = r.json["kinds"]
    assert (kind["n_head"], kind["n_kv_head"], kind["d_K"]) == (6, 2, 8)
    r = attnscope("card", config(fields), "--memory", "1T", "--format", "json")
    rest = {each["name"]: each["n_parameter"] for each in r.json["weights"]["rest"]}
    assert rest["towers"] > 0


def test_keys_and_values_of_images_are_counted_by_their_tokens(attnscope, config):
    fields = {**LLAMA, "model_type": "mllama_text_model", "cross_attention_layers": [1]}
    r = attnscope("card", config(fields), "--context", 100, "--format", "json")
    assert (
        "keys and values of images are not counted (--source: the tokens of images)" in r.json["notices"]
    )
    read = attnscope("card", config(fields), "--context", 100, "--source", 7, "--format", "json")
    assert not any("images" in each for each in read.json["notices"])
    bytes_of = {each["kind"]: each["cache_bytes"] for each in read.json["kinds"]}
    assert bytes_of["cross"] == 7 * 2 * 2 * 10 * 2  # tokens, heads, K and V, widths, bytes
