"""What each layer's queries see is what transformers' own weights and kernels say."""

from itertools import product

import pytest
import torch
from torch.nn.attention import flex_attention as flex
from transformers import LlamaConfig, LlamaModel, masking_utils
from transformers.integrations import flex_attention as integration
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from attnscope.model.masks.seen_keys import observe_masks
from attnscope.model.masks.visible import MaskArguments, arguments_of, measured_keys, visible_keys
from attnscope.model.run.attention_hook import KernelCall
from attnscope.model.run.load import set_attention
from tests.model.masks import flash
from tests.model.run.families import FAMILIES, LLAMA, build, inputs_of
from tests.sweeps import swept

MORE = {
    "mistral": {"sliding_window": 3},
    "gemma3_text": {"sliding_window": 3, "layer_types": ["sliding_attention", "full_attention"]},
    "gpt_oss": {"sliding_window": 4, "num_local_experts": 4, "num_experts_per_tok": 2},
    "llama4_text": {
        **LLAMA,
        "attention_chunk_size": 3,
        "num_local_experts": 2,
        "intermediate_size_mlp": 20,
        "no_rope_layers": [1, 0],
    },
}
WEIGHTS = {"decoder": "decoder_attentions", "cross": "cross_attentions", "encoder": "encoder_attentions"}


@pytest.fixture(autouse=True)
def _llama4(monkeypatch):
    monkeypatch.setitem(FAMILIES, "llama4_text", {})


def padded(model, side):
    """Two sequences of 7 and of 5 tokens; for a decoder, of 6 and 6."""
    ids = torch.randint(3, 50, (2, 7), generator=torch.Generator().manual_seed(2))
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    inputs = {"input_ids": ids, "attention_mask": mask if side == "right" else mask.flip(1)}
    return inputs | ({"decoder_input_ids": ids[:, :6]} if model.config.is_encoder_decoder else {})


def masks_of(model, inputs, **options):
    with torch.no_grad():
        return observe_masks(model, lambda: model(**inputs), **options)


def same_where_something_is_seen(seen, reference):
    """Whether masks agree; the weights of a query that sees nothing may be anything."""
    some = seen.any(-1, keepdim=True)
    return bool((some & (seen != reference)).sum() == 0)


@pytest.mark.few(15)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(
    ("family", "kernel"),
    [
        *product("bert gpt2 mistral gemma3_text llama4_text t5 bart".split(), ["eager", "sdpa"]),
        ("gpt_oss", "eager"),
    ],
)
def test_a_key_is_seen_exactly_if_eager_attention_gives_it_a_weight(family, kernel, side):
    model = build(family, "eager", **MORE.get(family, {})).float()
    inputs = padded(model, side)
    with torch.no_grad():
        output = model(**inputs, output_attentions=True)
    set_attention(model, kernel)
    masks = masks_of(model, inputs)
    stacks = {"encoder", "decoder", "cross"} if model.config.is_encoder_decoder else {"self"}
    assert {each.stack for each in masks} == stacks
    for each in masks:
        weights = output[WEIGHTS.get(each.stack, "attentions")][each.layer]
        assert each.kernel == kernel
        assert each.visible.shape == (2, 1, *weights.shape[-2:])
        assert same_where_something_is_seen(each.visible, weights > 0), each


@pytest.mark.parametrize("family", swept(sorted({*FAMILIES, "llama4_text"}), ["bert", "mistral", "t5"]))
def test_a_kernel_itself_says_the_same(family):
    model = build(family, "eager", **MORE.get(family, {})).float()
    inputs = {
        name: tensor.float() if tensor.is_floating_point() else tensor
        for name, tensor in inputs_of(model).items()
    }
    if "input_ids" in inputs and "pixel_values" not in inputs and family != "xlm":
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        inputs["attention_mask"][1, :2] = 0

    def run():
        pixels = inputs.get("pixel_values")
        if hasattr(model, "get_image_features") and pixels is not None:
            return model.get_image_features(pixel_values=pixels)
        return model(**inputs)

    for kernel in ("eager", "sdpa"):
        if kernel == "sdpa" and not model._supports_sdpa:
            continue
        set_attention(model, kernel)
        with torch.no_grad():
            decoded, measured = (observe_masks(model, run, measures=each) for each in (False, True))
        for each, other in zip(decoded, measured, strict=True):
            assert (each.measured, other.measured, each.kernel) == (False, True, kernel)
            assert same_where_something_is_seen(each.visible, other.visible), (kernel, each.path)


def test_kinds_of_layers_are_named_as_the_model_names_them():
    kinds = {
        family: [(each.kind, each.window) for each in masks_of(model, padded(model, "right"))]
        for family, model in ((each, build(each, "eager", **MORE[each])) for each in MORE)
    }
    assert kinds == {
        "mistral": [("sliding_attention", 3)] * 2,
        "gemma3_text": [("sliding_attention", 3), ("full_attention", None)],
        "gpt_oss": [("sliding_attention", 4), ("full_attention", None)],
        "llama4_text": [("chunked_attention", None), ("full_attention", None)],
    }


def test_a_boolean_mask_hides_nothing_from_eager_attention_which_adds_it():
    model = build("llama", "eager").float()
    inputs = {"input_ids": padded(model, "left")["input_ids"]}
    mask = torch.ones(2, 1, 7, 7, dtype=torch.bool).tril()
    of_eager = masks_of(model, inputs | {"attention_mask": mask})
    set_attention(model, "sdpa")
    of_sdpa = masks_of(model, inputs | {"attention_mask": mask})
    assert of_eager[0].received == of_sdpa[0].received == "a bool mask 2×1×7×7"
    assert of_eager[0].visible.all()
    assert torch.equal(of_sdpa[0].visible, mask)
    set_attention(model, "eager")
    with torch.no_grad():
        weights = model(**inputs, attention_mask=mask, output_attentions=True).attentions
    assert (weights[0] > 0).all()


def test_one_query_without_a_mask_sees_all_cached_keys_and_several_begin_at_the_first():
    """transformers' rule for `is_causal`; several queries after a cache always come with a mask."""
    model = build("llama", "sdpa").float()
    ids = padded(model, "left")["input_ids"]
    with torch.no_grad():
        cache = model(input_ids=ids[:, :4], use_cache=True).past_key_values
        one = masks_of(model, {"input_ids": ids[:, 4:5], "past_key_values": cache})
        more = masks_of(model, {"input_ids": ids[:, 5:], "past_key_values": cache})
    assert one[0].visible.shape == (2, 1, 1, 5)
    assert one[0].received == "no mask, is_causal True"
    assert one[0].visible.all()
    assert torch.equal(more[0].visible[0, 0], torch.ones(2, 7, dtype=torch.bool).tril(5))


def test_a_kernel_of_the_user_is_asked_itself():
    """It leaves out the mask, and nothing that it receives says so."""

    def careless(module, query, key, value, mask, **_):
        group = query.shape[1] // key.shape[1]
        keys, values = (x.repeat_interleave(group, 1) for x in (key, value))
        x = torch.nn.functional.scaled_dot_product_attention(query, keys, values)
        return x.transpose(1, 2), None

    model = build("llama", "sdpa").float()
    inputs = padded(model, "right")
    before = dict(ALL_ATTENTION_FUNCTIONS._global_mapping)
    try:
        ALL_ATTENTION_FUNCTIONS.register("careless", careless)
        set_attention(model, "careless")
        [first, _] = masks_of(model, inputs)
    finally:
        ALL_ATTENTION_FUNCTIONS._global_mapping.clear()
        ALL_ATTENTION_FUNCTIONS._global_mapping.update(before)
    assert (first.kernel, first.measured) == ("careless", True)
    assert first.visible.all()


def llama(kernel, **more):
    torch.manual_seed(0)
    model = LlamaModel(LlamaConfig(**{**LLAMA, "num_hidden_layers": 1, **more})).eval()
    set_attention(model, kernel)
    return model


@pytest.mark.few(12)
@pytest.mark.parametrize("window", [None, 3, 7])
@pytest.mark.parametrize(
    ("padding", "packed"),
    [(None, "no"), ("left", "no"), ("right", "no"), (None, "position_ids"), (None, "lengths")],
)
def test_flags_of_flash_kernels_are_read_as_transformers_reads_them(
    window, padding, packed, monkeypatch
):
    flash.install(monkeypatch)
    model = build("mistral", "eager", sliding_window=window, num_hidden_layers=1).float()
    set_attention(model, "flash_attention_2")
    inputs = padded(model, padding or "right")
    if padding is None:
        inputs["attention_mask"] = None
    positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3]])
    if packed != "no":
        inputs |= {"input_ids": inputs["input_ids"][:1], "position_ids": positions, "use_cache": False}
    if packed == "lengths":
        ends = torch.tensor([0, 2, 7], dtype=torch.int32)
        names = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": 5, "max_length_k": 5}
        inputs |= names
    [decoded] = masks_of(model, inputs)
    [measured] = masks_of(model, inputs, measures=True)
    assert torch.equal(decoded.visible, measured.visible[:, :1])
    assert torch.equal(measured.visible[:, :1].expand_as(measured.visible), measured.visible)
    if packed == "lengths":
        assert not decoded.visible[0, 0, 2:, :2].any()
        assert "2 packed sequences" in decoded.received


def test_flash_kernels_see_both_directions_without_the_flag(monkeypatch):
    flash.install(monkeypatch)
    model = build("bert", "eager").float()
    set_attention(model, "flash_attention_2")
    inputs = padded(model, "left")
    for decoded, measured in zip(
        masks_of(model, inputs), masks_of(model, inputs, measures=True), strict=True
    ):
        assert torch.equal(decoded.visible.expand_as(measured.visible), measured.visible)
        assert decoded.received == "a bool mask 2×7, is_causal False"


def test_a_kernel_that_cannot_run_here_is_seen_if_it_is_not_called():
    model = llama("flash_attention_3")
    inputs = padded(model, "left")
    [mask] = masks_of(model, inputs, computes=False)
    set_attention(model, "sdpa")
    [of_sdpa] = masks_of(model, inputs)
    assert mask.kernel == "flash_attention_3"
    assert same_where_something_is_seen(mask.visible, of_sdpa.visible)


@pytest.mark.few(1)
@pytest.mark.parametrize("family", ["gemma3_text", "bert"])
def test_block_masks_of_flex_attention_are_read_pair_by_pair(family, monkeypatch):
    """Oracle: torch's `flex_attention`, which transformers would compile first."""

    def uncompiled(*arguments, _compile=False, **options):
        return flex.create_block_mask(*arguments, **options)

    monkeypatch.setattr(masking_utils, "create_block_mask", uncompiled)
    monkeypatch.setattr(
        integration,
        "compile_friendly_flex_attention",
        lambda *tensors, training, **options: flex.flex_attention(*tensors, **options),
    )
    model = build(family, "eager", **MORE.get(family, {})).float()
    set_attention(model, "flex_attention")
    inputs = padded(model, "left")
    decoded = masks_of(model, inputs)
    for each, measured in zip(decoded, masks_of(model, inputs, measures=True), strict=True):
        assert each.received == "a BlockMask 2×1×7×7 of blocks 128×128"
        assert torch.equal(each.visible.expand_as(measured.visible), measured.visible)


def test_blocks_that_a_block_mask_leaves_out_are_not_seen_and_full_ones_are_whatever_its_function_says():
    """torch: "full_kv_indices: blocks that do not need the mask_mod"."""

    def never(b, h, q, k):
        return q < 0

    def always(b, h, q, k):
        return q >= 0

    counts, columns = torch.tensor([[[1, 0, 1]]]), torch.tensor([[[1, 0], [0, 1], [0, 1]]])[None]
    blocks = flex.BlockMask.from_kv_blocks
    partial = blocks(counts, columns, None, None, BLOCK_SIZE=(2, 3), mask_mod=always, seq_lengths=(5, 4))
    nothing = torch.zeros_like(counts)
    full = blocks(
        nothing, columns, counts, columns, BLOCK_SIZE=(2, 3), mask_mod=never, seq_lengths=(5, 4)
    )
    expected = torch.tensor(
        [[0, 0, 0, 1], [0, 0, 0, 1], [0, 0, 0, 0], [0, 0, 0, 0], [1, 1, 1, 0]], dtype=torch.bool
    )
    for mask in (partial, full):
        seen = visible_keys(MaskArguments("flex_attention", 2, 6, 5, 4, mask))
        assert torch.equal(seen, expected.expand(2, 1, 5, 4))


class Module(torch.nn.Sequential):
    """What kernels look up in the module that attends."""

    is_causal, layer_idx = True, 0
    config = type("Config", (), {"_attn_implementation": "flash_attention_2"})


def called(name, function, n_Q, mask, **options):
    """A call of a kernel with 2 sequences, 3 heads and 5 keys."""
    drawing = torch.Generator().manual_seed(0)
    query = torch.randn(2, 3, n_Q, 4, generator=drawing)
    key, value = torch.randn(2, 2, 3, 5, 4, generator=drawing)
    return KernelCall(
        name,
        "path",
        Module(torch.nn.Linear(1, 1)),
        query,
        key,
        value,
        mask,
        {"scaling": 1.0, **options},
        function,
    )


def test_flex_attention_takes_an_added_mask_of_the_first_head_for_all(monkeypatch):
    monkeypatch.setattr(
        integration,
        "compile_friendly_flex_attention",
        lambda *tensors, training, **options: flex.flex_attention(*tensors, **options),
    )
    hidden = torch.rand(2, 3, 6, 5, generator=torch.Generator().manual_seed(1)) < 0.5
    mask = torch.zeros(2, 3, 6, 5).masked_fill(hidden, -1e9)
    call = called("flex_attention", integration.flex_attention_forward, 6, mask)
    seen = visible_keys(arguments_of(call))
    assert seen.shape == (2, 1, 6, 5)
    assert same_where_something_is_seen(seen, measured_keys(call))
    assert torch.equal(seen, ~hidden[:, :1])


@pytest.mark.parametrize("n_Q", [1, 2, 5])
@pytest.mark.parametrize("window", [None, 2])
def test_flash_kernels_after_a_cache(n_Q, window, monkeypatch):
    """A single query is kept even if it is padding; of several, the last of the mask are theirs."""
    from transformers.integrations.flash_attention import flash_attention_forward

    flash.install(monkeypatch)
    mask = torch.tensor([[1, 1, 1, 1, 0], [0, 0, 1, 1, 1]])
    call = called("flash_attention_2", flash_attention_forward, n_Q, mask, sliding_window=window)
    seen = visible_keys(arguments_of(call))
    assert torch.equal(seen.expand(2, 3, n_Q, 5), measured_keys(call))


def test_keys_that_are_not_numbers_do_not_hide_others_when_a_kernel_is_asked():
    def sdpa(module, query, key, value, mask, **_):
        return torch.nn.functional.scaled_dot_product_attention(query, key, value).transpose(1, 2), None

    call = called("mine", sdpa, 6, None)
    call.key[:, :, 2] = float("nan")
    assert measured_keys(call).all()


def test_attention_that_is_not_looked_up_in_the_registry_is_not_observed():
    model = build("bloom", "eager").float()
    assert masks_of(model, padded(model, "left")) == []
