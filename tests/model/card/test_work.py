"""FLOPs and bytes, beside PyTorch's own counter of FLOPs and loops that count."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnscope.model.card.anatomy import Indexer, LayerAnatomy, LayerCache, ModelAnatomy
from attnscope.model.card.checkpoint_tensors import count_weights
from attnscope.model.card.from_config import anatomy_of
from attnscope.model.card.result import PartCount, WeightsCount
from attnscope.model.card.work import Device, prefill_flops, seen_pairs, token_flops, work_of
from attnscope.model.files.headers import read_headers
from attnscope.model.files.model_files import find_model_files
from tests.model.card.small_configs import LATENT, MIXED, SMALL

MODELS = [
    {"model_type": "llama"},
    {"model_type": "mistral", "sliding_window": 5, "head_dim": 10},
    {"model_type": "gemma3_text", "head_dim": 10, "sliding_window": 5, "layer_types": MIXED},
    {"model_type": "gpt_oss", "head_dim": 10, "sliding_window": 5, "layer_types": MIXED},
    {"model_type": "deepseek_v3", "num_key_value_heads": 6, **LATENT},
]


def counted(config, n_tokens, auto="AutoModelForCausalLM", at_once=False):
    """Return a tiny model, and PyTorch's FLOPs of each operator in its attention and in all of it."""
    import transformers
    from torch.utils.flop_counter import FlopCounterMode

    config = transformers.AutoConfig.for_model(**config, attn_implementation="eager")
    model = getattr(transformers, auto).from_config(config).eval()
    tokens = torch.zeros(1, n_tokens, dtype=torch.long)
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        if at_once:
            model(tokens)
        else:
            cache = transformers.DynamicCache(config=config)
            for i in range(n_tokens):
                model(tokens[:, i : i + 1], past_key_values=cache)
    products = [
        flops
        for module, operators in counter.get_flop_counts().items()
        for operator, flops in operators.items()
        if module.endswith((".self_attn", ".attention.self")) and str(operator) == "aten.bmm"
    ]
    weights = sum(
        flops
        for operator, flops in counter.get_flop_counts()["Global"].items()
        if str(operator) in ("aten.mm", "aten.addmm")
    )
    return model, sum(products), weights


@pytest.mark.few(2)
@pytest.mark.parametrize("own", MODELS, ids=lambda own: own["model_type"])
@pytest.mark.parametrize("n_tokens", [4, 7])
def test_prefill_has_the_flops_that_pytorch_counts_token_by_token(own, n_tokens):
    _, products, _ = counted(SMALL | own, n_tokens)
    layers = anatomy_of(SMALL | own).layers
    assert sum(prefill_flops(each, n_tokens, 0) for each in layers) == products > 0


@pytest.mark.few(1)
@pytest.mark.parametrize("own", MODELS[:4], ids=lambda own: own["model_type"])
def test_one_token_has_the_flops_that_pytorch_counts_for_it(own):
    (_, longer, _), (_, shorter, _) = counted(SMALL | own, 7), counted(SMALL | own, 6)
    assert sum(token_flops(each, 7, 0) for each in anatomy_of(SMALL | own).layers) == longer - shorter


def test_an_encoder_sees_all_tokens(tmp_path):
    config = SMALL | {"model_type": "bert", "max_position_embeddings": 16, "num_hidden_layers": 2}
    model, products, weights = counted(config, 7, "AutoModel", at_once=True)
    model.save_pretrained(tmp_path)
    layer = LayerAnatomy("full", 6, 6, 4, 4)
    files = find_model_files(tmp_path)
    work = work_of(
        ModelAnatomy("bert", 2, 24, (layer, layer)),
        7,
        3,
        0,
        2,
        weights=count_weights(read_headers(files), files.config()),
    )
    assert work.prefill.attention == 3 * products
    assert work.token is work.bytes_moved is work.dominates_from is None
    vectors = sum(
        each.numel()
        for name, each in model.named_parameters()
        if each.ndim == 1 and not name.startswith("embeddings.")
    )
    pooler = model.pooler.dense.weight.numel()  # which reads one token, but counts for each
    assert work.prefill.rest == 3 * (weights + 6 * 2 * pooler + 7 * 2 * vectors)


@pytest.mark.few(1)
@pytest.mark.parametrize("tied", [True, False])
def test_the_rest_has_the_flops_of_all_matrices_and_two_for_each_number_of_a_norm(tied, tmp_path):
    config = SMALL | {"model_type": "llama", "tie_word_embeddings": tied}
    model, _, weights = counted(config, 5)
    model.save_pretrained(tmp_path)
    files = find_model_files(tmp_path)
    counts = count_weights(read_headers(files), files.config())
    work = work_of(anatomy_of(config), 5, 3, 0, 2, weights=counts)
    norms = sum(each.numel() for each in model.parameters() if each.ndim == 1)
    assert work.prefill.rest == 3 * (weights + 5 * 2 * norms)
    assert work.token.rest * 5 == work.prefill.rest


@given(n_tokens=st.integers(0, 40), window=st.none() | st.integers(1, 45), chunked=st.booleans())
@settings(deadline=None)
def test_the_pairs_are_those_of_a_mask(n_tokens, window, chunked):
    query, key = torch.arange(n_tokens)[:, None], torch.arange(n_tokens)
    seen = key <= query
    if window and chunked:
        seen = seen & (key // window == query // window)
    elif window:
        seen = seen & (query - key < window)
    kind = "chunked" if chunked and window else "sliding" if window else "full"
    assert seen_pairs(kind, window, n_tokens) == seen.sum()


def test_latents_of_one_token_are_not_expanded():
    layer = anatomy_of(SMALL | MODELS[-1]).layers[0]
    n_head, n_token, rank, rotary = 6, 9, 14, 4
    assert token_flops(layer, n_token, 0) == 2 * n_head * n_token * (rank + rotary + rank)


def test_an_indexer_scores_all_keys_and_attention_takes_those_it_chose():
    layer = LayerAnatomy(
        "sparse", 3, 3, 7, 5, d_K_latent=11, d_V_latent=9, indexer=Indexer(2, 13, n_chosen=4)
    )
    steps = [2 * (2 * 13 * seen + 3 * (11 + 9) * min(seen, 4)) for seen in range(1, 8)]
    assert [token_flops(layer, seen, 0) for seen in range(1, 8)] == steps
    assert prefill_flops(layer, 7, 0) == sum(steps)


def test_the_delta_rule_takes_three_products_and_its_convolution():
    n_key, d_key, n_value, d_value, kernel = 2, 5, 4, 7, 3
    config = SMALL | {
        "model_type": "qwen3_next",
        "head_dim": 8,
        "layer_types": ["linear_attention"] * 4,
        "linear_num_key_heads": n_key,
        "linear_key_head_dim": d_key,
        "linear_num_value_heads": n_value,
        "linear_value_head_dim": d_value,
        "linear_conv_kernel_dim": kernel,
    }
    n_product = sum(kernel for _ in range(2 * n_key * d_key + n_value * d_value))
    for _ in range(n_value):
        for _ in range(d_key):
            for _ in range(d_value):
                n_product += 3  # memory += S k; S += k v; out += S q
    assert token_flops(anatomy_of(config).layers[0], 9, 0) == 2 * n_product
    assert prefill_flops(anatomy_of(config).layers[0], 9, 0) == 9 * 2 * n_product


def weights_of(n_attention, n_mlp, n_expert=0, n_active=None):
    rest = (PartCount("embedding", 1000, 2000), PartCount("output", 100, 200))
    rest += (PartCount("other", n_mlp, 2 * n_mlp),)
    if n_expert:
        rest += (PartCount("experts", n_expert, 2 * n_expert),)
    return WeightsCount((PartCount("W_Q", n_attention, 2 * n_attention),), rest, (), "headers", n_active)


def decoder(*layers):
    return ModelAnatomy("tiny", len(layers), 24, layers)


FULL = LayerAnatomy("full", 6, 3, 7, 5, cache=LayerCache(3 * (7 + 5)))
SLIDING = LayerAnatomy("sliding", 6, 3, 7, 5, window=4, cache=LayerCache(3 * (7 + 5), 4, 3))


@pytest.mark.parametrize("layers", [(FULL,), (FULL, SLIDING), (SLIDING,)])
def test_attention_dominates_from_the_first_length_at_which_it_takes_more(layers):
    weights = weights_of(300, 700, n_active=1100)
    found = work_of(decoder(*layers), 9, 1, 0, 2, weights=weights).dominates_from
    by_trial = (n for n in range(1, 100) if sum(token_flops(each, n, 0) for each in layers) > 2 * 1100)
    assert found == next(by_trial, None)


def test_a_step_reads_the_weights_once_and_all_caches():
    work = work_of(decoder(FULL), 9, 3, 555, 2, weights=weights_of(300, 700, n_active=1100))
    assert work.bytes_moved == 2 * 1100 + 555
    assert work.intensity == work.token.total / work.bytes_moved


@pytest.mark.parametrize(("batch", "n_read"), [(1, 200), (3, 600), (4, 800), (9, 800)])
def test_each_sequence_reads_experts_of_its_own(batch, n_read):
    weights = weights_of(300, 700, n_expert=800, n_active=1100 + 200)
    work = work_of(decoder(FULL), 9, batch, 0, 2, weights=weights)
    assert work.bytes_moved == 2 * (1100 + n_read)
    assert work.token.rest == batch * 2 * (1100 + 200)


@pytest.mark.parametrize(("flops", "limit"), [(1, "compute"), (10**9, "bandwidth")])
def test_the_slower_of_memory_and_compute_bounds_a_token(flops, limit):
    weights = weights_of(300, 700, n_active=1100)
    work = work_of(decoder(FULL), 9, 1, 100, 2, weights=weights, device=Device(flops, 10))
    slower = work.token.total / flops if limit == "compute" else (2 * 1100 + 100) / 10
    assert (work.limit, work.seconds) == (limit, slower)


def test_maps_are_as_large_as_the_weights_that_eager_attention_returns():
    import transformers

    config = SMALL | {"model_type": "llama"}
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(**config, attn_implementation="eager")
    )
    maps = model(torch.zeros(2, 7, dtype=torch.long), output_attentions=True).attentions
    work = work_of(anatomy_of(config), 7, 2, 0, 4)
    assert work.maps_bytes == sum(each.nbytes for each in maps)
    assert (work.block, work.block_bytes) == (7, maps[0].nbytes)
    longer = work_of(anatomy_of(config), 1000, 2, 0, 4)
    assert (longer.block, longer.block_bytes) == (128, 2 * 6 * 128 * 1000 * 4)


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (LayerAnatomy("sparse", 3, 3, 7, 5, cache=LayerCache(2)), "how many keys an indexer chooses"),
        (LayerAnatomy("linear", cache=LayerCache(constant=2)), "recurrent layers"),
        (LayerAnatomy("full + state space", 3, 3, 7, 5, cache=LayerCache(2)), "recurrent layers"),
        (LayerAnatomy("full", None, None, 7, 5, cache=LayerCache(2)), "how many heads of what width"),
    ],
)
def test_what_is_not_known_is_said(layer, words):
    work = work_of(decoder(FULL, layer), 9, 1, 0, 2, weights=weights_of(300, 700, n_active=1100))
    assert work.prefill.attention is work.prefill.total is work.dominates_from is work.intensity is None
    assert work.prefill.rest == 9 * 2 * 1100
    assert words in work.notices[0]
    assert (work.maps_bytes is None) == (layer.kind == "full")


def test_weights_of_an_encoder_and_a_decoder_are_not_counted_as_one():
    cross = LayerAnatomy("cross", 6, 6, 4, 4, cache=LayerCache(per_source_token=48))
    anatomy = ModelAnatomy("t5", 1, 24, (FULL,), (cross,))
    work = work_of(anatomy, 9, 1, 0, 2, n_source=5, weights=weights_of(300, 700, n_active=1100))
    assert work.prefill.attention == prefill_flops(FULL, 9, 0) + 9 * 5 * 2 * 6 * (4 + 4)
    assert work.prefill.rest is work.bytes_moved is None
    assert "only the encoder's tokens" in work.notices[0]
