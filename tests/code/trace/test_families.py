"""The attention of model families, as transformers has it: it is right, so nothing is found, and its axes have names."""

from dataclasses import dataclass, field

import pytest

from tests.sweeps import swept

TRANSFORMERS = pytest.importorskip("transformers")

HIDDEN = "hidden_states=n_batch:2,n:5,{width}"
MASK = "attention_mask=n_batch,1,n,n"  # to be added
PADDING = "attention_mask=n_batch,1,1,n"
CONTEXT_MASK = "attention_mask=n_batch,1,1,m"
ROTARY = "position_embeddings=(n_batch,n,{width}; n_batch,n,{width})"

SPLIT = "n_batch num_attention_heads n hidden_size/num_attention_heads"
WEIGHTS = "n_batch num_attention_heads n n"
ROTATED = "n_batch num_attention_heads n head_dim"
SHARED = "n_batch num_key_value_heads n head_dim"


@dataclass
class Family:
    """An attention module, what it is given, and what is then true.

    Attributes:
        module, name: where the class is, below `transformers.models`.
        config: its configuration's class, and what that is given.
        inputs: what `--input` says.
        dims: the axes of the last row of each of these names.
        init: what `--init` says, besides the configuration.
        rows: how many there are at least.
    """

    module: str
    name: str
    config: tuple[str, str]
    inputs: list[str]
    dims: dict[str, str]
    init: list[str] = field(default_factory=list)
    rows: int = 15

    def arguments(self, attention: str | None = None) -> list[str]:
        """The command line: with an implementation of attention that the configuration chooses, if one is named."""
        kind, given = self.config
        if attention is None:
            config = f"transformers:{kind}({given})"
        else:
            model = getattr(TRANSFORMERS, kind).model_type
            config = f"transformers:AutoConfig.for_model('{model}', {given}, attn_implementation='{attention}')"
        line = [f"transformers.models.{self.module}.modeling_{self.module}:{self.name}"]
        line += [part for text in (f"config={config}", *self.init) for part in ("--init", text)]
        return line + [part for text in self.inputs for part in ("--input", text)]


def encoder(module, name, config, *, inputs=(PADDING,), **more):
    """Heads split off one width, named as BERT has them."""
    given = "hidden_size=48, num_attention_heads=4"
    dims = {"query": SPLIT, "key": SPLIT, "attn_weights": WEIGHTS}
    first = HIDDEN.format(width="hidden_size")
    return Family(module, name, (config, given), [first, *inputs], dims, **more)


def decoder(module, name, config, *, given="", head_dim=True, **more):
    """Grouped heads and rotary positions, as Llama has them."""
    sizes = "hidden_size=64, num_attention_heads=4, num_key_value_heads=2"
    sizes += (", head_dim=16" if head_dim else "") + given
    inputs = [HIDDEN.format(width="hidden_size"), ROTARY.format(width="head_dim:16"), MASK]
    of_head = {"query": ROTATED, "k_embed": SHARED, "key_states": ROTATED, "attn_weights": WEIGHTS}
    more = {"init": ["layer_idx=0"], "rows": 45, "dims": of_head, **more}
    return Family(module, name, (config, sizes), inputs, **more)


def seq2seq(module, name, config, *, cross=False, layer=True):
    """Widths that are arguments of the module itself, as BART has them."""
    keys = "m" if cross else "n"
    inputs = [HIDDEN.format(width="embed_dim")]
    inputs += ["key_value_states=n_batch,m:7,embed_dim", CONTEXT_MASK] if cross else [MASK]
    dims = {
        "query": "n_batch num_heads n embed_dim/num_heads",
        "key": f"n_batch num_heads {keys} embed_dim/num_heads",
        "attn_weights": f"n_batch num_heads n {keys}",
    }
    init = ["embed_dim=48", "num_heads=4", *(["layer_idx=0"] if layer else [])]
    return Family(module, name, config, inputs, dims, init)


def falcon(given, key):
    inputs = [
        HIDDEN.format(width="hidden_size"),
        "alibi=None",
        MASK,
        ROTARY.format(width="d_head:12"),
    ]
    dims = {
        "query_layer": "n_batch num_attention_heads n d_head",
        "key_layer": key,
        "attention_scores": WEIGHTS,
    }
    sizes = f"hidden_size=48, num_attention_heads=4, alibi=False, {given}"
    return Family("falcon", "FalconAttention", ("FalconConfig", sizes), inputs, dims, ["layer_idx=0"])


GPT2 = ("GPT2Config", "n_embd=48, n_head=4")
T5 = ("T5Config", "d_model=48, d_kv=8, num_heads=4")
GPTJ_SIZES = "n_embd=64, n_head=4, rotary_dim=8, n_positions=64"

FAMILIES = {
    # One width, split into heads.
    "BERT": encoder("bert", "BertSelfAttention", "BertConfig"),
    "RoBERTa": encoder("roberta", "RobertaSelfAttention", "RobertaConfig"),
    "ELECTRA": encoder("electra", "ElectraSelfAttention", "ElectraConfig"),
    "ALBERT": encoder("albert", "AlbertAttention", "AlbertConfig"),
    "ViT": encoder("vit", "ViTAttention", "ViTConfig", inputs=()),
    "CLIP": encoder("clip", "CLIPAttention", "CLIPVisionConfig", inputs=()),
    "SigLIP": encoder("siglip", "SiglipAttention", "SiglipVisionConfig", inputs=()),
    "OPT": encoder("opt", "OPTAttention", "OPTConfig", inputs=[MASK], init=["layer_idx=0"]),
    "DistilBERT": Family(
        "distilbert",
        "DistilBertSelfAttention",
        ("DistilBertConfig", "dim=48, n_heads=4"),
        [HIDDEN.format(width="dim"), PADDING],
        {"query": "n_batch n_heads n dim/n_heads", "attn_weights": "n_batch n_heads n n"},
    ),
    "MPNet": Family(
        "mpnet",
        "MPNetSelfAttention",
        ("MPNetConfig", "hidden_size=48, num_attention_heads=4"),
        [HIDDEN.format(width="hidden_size"), PADDING],
        {"q": SPLIT, "k": SPLIT, "attention_scores": WEIGHTS},
    ),
    "BigBird": Family(
        "big_bird",
        "BigBirdSelfAttention",
        ("BigBirdConfig", "hidden_size=48, num_attention_heads=4"),
        [HIDDEN.format(width="hidden_size"), PADDING],
        {"query_layer": SPLIT, "attention_scores": WEIGHTS},
    ),
    "DeBERTa-v2": Family(
        "deberta_v2",
        "DisentangledSelfAttention",
        (
            "DebertaV2Config",
            "hidden_size=48, num_attention_heads=4, relative_attention=True,"
            " pos_att_type=['c2p', 'p2c'], max_relative_positions=8",
        ),
        [
            HIDDEN.format(width="hidden_size"),
            "attention_mask=n_batch,1,n,n@bool",
            "rel_embeddings=n_pos:16,hidden_size",
        ],
        {"attention_scores": WEIGHTS, "attention_probs": WEIGHTS},
        rows=60,
    ),
    "Swin": Family(
        "swin",
        "SwinAttention",
        ("SwinConfig", "embed_dim=48"),
        ["hidden_states=n_windows:6,n:16,hidden_size"],
        {
            "query": "n_windows num_attention_heads n hidden_size/num_attention_heads",
            "attn_weights": "n_windows num_attention_heads n n",
        },
        ["hidden_size=48", "num_attention_heads=4", "window_size=4"],
    ),
    # Queries, keys and values from one projection.
    "GPT-2": Family(
        "gpt2",
        "GPT2Attention",
        GPT2,
        [HIDDEN.format(width="n_embd"), MASK],
        {"query": "n_batch n_head n n_embd/n_head", "attn_weights": "n_batch n_head n n"},
        ["layer_idx=0"],
    ),
    "GPT-Neo": Family(
        "gpt_neo",
        "GPTNeoSelfAttention",
        ("GPTNeoConfig", "hidden_size=48, num_heads=4, max_position_embeddings=32"),
        [HIDDEN.format(width="hidden_size")],
        {"query": "n_batch num_heads n hidden_size/num_heads", "attn_weights": "n_batch num_heads n n"},
        ["attention_type='global'"],
    ),
    "GPT-NeoX": Family(
        "gpt_neox",
        "GPTNeoXAttention",
        ("GPTNeoXConfig", "hidden_size=48, num_attention_heads=4"),
        [
            HIDDEN.format(width="hidden_size"),
            "attention_mask=None",
            ROTARY.format(width="d_rot:12"),
        ],
        {"query": SPLIT, "attn_weights": WEIGHTS},
        ["layer_idx=0"],
        rows=40,
    ),
    "BLOOM": Family(
        "bloom",
        "BloomAttention",
        ("BloomConfig", "hidden_size=48, n_head=4"),
        [
            HIDDEN.format(width="hidden_size"),
            "residual=n_batch,n,hidden_size",
            "alibi=n_batch_head:8,1,n",
            MASK,
        ],
        {"attn_weights": "n_batch n_head n n", "attention_probs": "n_batch n_head n n"},
        ["layer_idx=0"],
        rows=30,
    ),
    "MPT": Family(
        "mpt",
        "MptAttention",
        ("MptConfig", "d_model=48, n_heads=4"),
        [
            HIDDEN.format(width="d_model"),
            "position_bias=n_heads,1,n",
            "attention_mask=n_batch,1,n,n@bool",
        ],
        {"query_states": "n_batch n_heads n d_model/n_heads", "attention_scores": "n_batch n_heads n n"},
        ["layer_idx=0"],
    ),
    "Falcon": falcon(
        "multi_query=False, new_decoder_architecture=False", "n_batch num_attention_heads n d_head"
    ),
    "Falcon, one head of keys": falcon(
        "multi_query=True, new_decoder_architecture=False", "n_batch 1 n d_head"
    ),
    "Falcon, groups": falcon(
        "num_kv_heads=2, new_decoder_architecture=True", "n_batch num_attention_heads n d_head"
    ),
    "GPT-J": Family(
        "gptj",
        "GPTJAttention",
        ("GPTJConfig", GPTJ_SIZES),
        [HIDDEN.format(width="n_embd"), MASK, "position_ids=n_batch,n<n"],
        {"q_rot": "n_batch n n_head rotary_dim", "attn_weights": "n_batch n_head n n"},
        ["layer_idx=0"],
        rows=70,
    ),
    "CodeGen": Family(
        "codegen",
        "CodeGenAttention",
        ("CodeGenConfig", GPTJ_SIZES),
        [HIDDEN.format(width="n_embd"), MASK, "position_ids=n_batch,n<n"],
        {"q_rot": "n_batch n n_head rotary_dim", "attn_weights": "n_batch n_head n n"},
        ["layer_idx=0"],
        rows=70,
    ),
    # Grouped heads and rotary positions.
    "Llama": decoder("llama", "LlamaAttention", "LlamaConfig"),
    "Mistral": decoder("mistral", "MistralAttention", "MistralConfig"),
    "Mixtral": decoder("mixtral", "MixtralAttention", "MixtralConfig"),
    "Qwen2": decoder("qwen2", "Qwen2Attention", "Qwen2Config", head_dim=False),
    "Qwen3": decoder("qwen3", "Qwen3Attention", "Qwen3Config"),
    "Gemma": decoder("gemma", "GemmaAttention", "GemmaConfig"),
    "Gemma 2": decoder("gemma2", "Gemma2Attention", "Gemma2Config", given=", query_pre_attn_scalar=16"),
    "Gemma 2, its own scale": decoder(
        "gemma2", "Gemma2Attention", "Gemma2Config", given=", query_pre_attn_scalar=24"
    ),
    "Gemma 3": decoder(
        "gemma3", "Gemma3Attention", "Gemma3TextConfig", given=", query_pre_attn_scalar=16"
    ),
    "OLMo 2": decoder("olmo2", "Olmo2Attention", "Olmo2Config", head_dim=False),
    "Cohere": decoder("cohere", "CohereAttention", "CohereConfig", head_dim=False),
    "Phi-3": decoder(  # positions may rotate a part of each head, so that they say nothing of its width
        "phi3",
        "Phi3Attention",
        "Phi3Config",
        given=", pad_token_id=0",
        head_dim=False,
        dims={"query": SPLIT, "key_states": SPLIT, "attn_weights": WEIGHTS},
    ),
    "Phi": Family(  # the code runs only where a head is twice as wide as d_rot, so that no size names it
        "phi",
        "PhiAttention",
        ("PhiConfig", "hidden_size=64, num_attention_heads=4, num_key_value_heads=2"),
        [HIDDEN.format(width="hidden_size"), ROTARY.format(width="d_rot:8"), MASK],
        {
            "query": "n_batch num_attention_heads n 16",
            "q_embed": "n_batch num_attention_heads n 8",
            "attn_weights": WEIGHTS,
        },
        ["layer_idx=0"],
        rows=50,
    ),
    "gpt-oss": Family(
        "gpt_oss",
        "GptOssAttention",
        ("GptOssConfig", "hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=16"),
        [HIDDEN.format(width="hidden_size"), ROTARY.format(width="d_half:8"), MASK],
        {
            "query": ROTATED,
            "k_embed": SHARED,
            "probs": "n_batch num_attention_heads n n+1",  # with a sink
            "scores": WEIGHTS,
        },
        ["layer_idx=0"],
        rows=55,
    ),
    "DeepSeek-V3": Family(
        "deepseek_v3",
        "DeepseekV3Attention",
        (
            "DeepseekV3Config",
            "hidden_size=64, num_attention_heads=4, num_key_value_heads=4, q_lora_rank=24,"
            " kv_lora_rank=20, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=10",
        ),
        [HIDDEN.format(width="hidden_size"), ROTARY.format(width="qk_rope_head_dim"), MASK],
        {
            "query": "n_batch num_attention_heads n qk_rope_head_dim+qk_nope_head_dim",
            "k_embed": "n_batch 1 n qk_rope_head_dim",
            "value": "n_batch num_attention_heads n v_head_dim",
            "attn_weights": WEIGHTS,
        },
        ["layer_idx=0"],
        rows=60,
    ),
    # Encoders and decoders, with attention to another sequence.
    "BART": seq2seq("bart", "BartAttention", ("BartConfig", "d_model=48")),
    "BART, cross": seq2seq("bart", "BartAttention", ("BartConfig", "d_model=48"), cross=True),
    "Whisper": seq2seq("whisper", "WhisperAttention", ("WhisperConfig", "d_model=48")),
    "M2M-100": seq2seq("m2m_100", "M2M100Attention", ("M2M100Config", "d_model=48")),
    "wav2vec 2": seq2seq(
        "wav2vec2", "Wav2Vec2Attention", ("Wav2Vec2Config", "hidden_size=48"), layer=False
    ),
    "BERT, cross": Family(
        "bert",
        "BertCrossAttention",
        ("BertConfig", "hidden_size=48, num_attention_heads=4"),
        [
            HIDDEN.format(width="hidden_size"),
            "encoder_hidden_states=n_batch,m:7,hidden_size",
            CONTEXT_MASK,
        ],
        {
            "query": SPLIT,
            "key": "n_batch num_attention_heads m hidden_size/num_attention_heads",
            "attn_weights": "n_batch num_attention_heads n m",
        },
    ),
    "GPT-2, cross": Family(
        "gpt2",
        "GPT2Attention",
        GPT2,
        [
            HIDDEN.format(width="n_embd"),
            "encoder_hidden_states=n_batch,m:7,n_embd",
            f"encoder_{CONTEXT_MASK}",
        ],
        {"key": "n_batch n_head m n_embd/n_head", "attn_weights": "n_batch n_head n m"},
        ["is_cross_attention=True", "layer_idx=0"],
    ),
    "T5": Family(
        "t5",
        "T5Attention",
        T5,
        [HIDDEN.format(width="d_model"), "mask=n_batch,1,1,n"],
        {"query": "n_batch num_heads n d_kv", "attn_weights": "n_batch num_heads n n"},
        ["has_relative_attention_bias=True", "layer_idx=0"],
        rows=30,
    ),
    "T5, cross": Family(
        "t5",
        "T5Attention",
        T5,
        [HIDDEN.format(width="d_model"), "mask=n_batch,1,1,m", "key_value_states=n_batch,m:7,d_model"],
        {"key": "n_batch num_heads m d_kv", "attn_weights": "n_batch num_heads n m"},
        ["layer_idx=0"],
    ),
    "XLNet": Family(
        "xlnet",
        "XLNetRelativeAttention",
        ("XLNetConfig", "d_model=48, n_head=4"),
        [
            *("h=n:5,n_batch:2,d_model", "g=None", "attn_mask_h=None", "attn_mask_g=None"),
            *("r=n_pos:10,n_batch,d_model", "seg_mat=None"),
        ],
        {"q_head": "n n_batch n_head d_model/n_head", "attn_score": "n_batch n_head n n"},
        rows=30,
    ),
}

WITH_VALUES = [
    *("BERT", "DeBERTa-v2", "Swin", "GPT-2", "BLOOM", "MPT", "Falcon", "GPT-J", "Qwen3"),
    *("Gemma 2", "Phi", "DeepSeek-V3", "T5", "BART, cross"),
]
"""Not all: some have parameters that only a whole model initializes, and that are any numbers here."""


def last(steps, name):
    """The axes of the last row of a name."""
    return " ".join([step["dims"] for step in steps if step["name"] == name][-1])


def check(ran):
    """What is right runs, and nothing is found."""
    assert ran.exit_status == 0, ran.err
    assert "Traceback" not in ran.err
    traced = ran.json
    assert traced["crash"] is None
    assert traced["findings"] == []
    return traced["steps"]


@pytest.mark.few(1)
@pytest.mark.parametrize("name", swept(FAMILIES, ["DeBERTa-v2", "Llama"]))
def test_a_family_has_its_axes_named_and_no_findings(attnscope, name):
    family = FAMILIES[name]
    device = "cpu" if name in WITH_VALUES else "meta"
    ran = attnscope("trace", *family.arguments(), "--device", device, "--format", "json")
    steps = check(ran)
    assert len(steps) >= family.rows
    assert {row: last(steps, row) for row in family.dims} == family.dims
    assert "no other sizes" not in ran.err


@pytest.mark.few(1)
@pytest.mark.parametrize("name", swept(["BERT", "GPT-2", "Llama", "gpt-oss", "BART, cross"], ["Llama"]))
def test_fused_attention(attnscope, name):
    """What the configuration chooses is in another module, and can be followed there."""
    line = ["trace", *FAMILIES[name].arguments("sdpa"), "--device", "meta", "--format", "json"]
    plain = check(attnscope(*line))
    followed = check(attnscope(*line, "--follow", "transformers.integrations.sdpa_attention"))
    inside = [step for step in followed if "sdpa_attention" in (step["file"] or "")]
    own = [step for step in plain if step["inside"] is None]  # the kernel's output is a row of its own
    assert len(plain) == len(own) + 1
    assert len(followed) == len(own) + len(inside)
    assert any("scaled_dot_product_attention" in step["how"] for step in inside)
    assert not any(axis in "23456789" for step in followed for axis in step["dims"])


@pytest.mark.sweep
def test_the_modules_own_lines(attnscope):
    line = ["trace", *FAMILIES["Llama"].arguments(), "--device", "meta", "--format", "json"]
    every, own = check(attnscope(*line)), check(attnscope(*line, "--depth", 0))
    assert len(own) < len(every)
    assert {step["depth"] for step in own} == {0}
    assert sum(step["flops"] or 0 for step in own) == sum(step["flops"] or 0 for step in every)
