"""The masks of a model: its layers grouped, its tokens named, and its kernels asked."""

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

import attnscope
from attnscope import AttnscopeError
from attnscope.model.files.checkpoint import find_checkpoint
from tests.model.masks import flash
from tests.model.run.families import FAMILIES, LLAMA, build

TEXTS = ["The cat sat on the mat.", "Hi there."]


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(find_checkpoint("minilm").folder)


def texts_of(rows):
    return [[token.text for token in row] for row in rows]


def small(family, kernel="sdpa", **more):
    """A model that reads the ids of minilm's tokenizer."""
    return build(family, kernel, vocab_size=30522, max_position_embeddings=64, **more).float()


def test_a_batch_has_the_padding_and_the_tokens_that_ran(tokenizer):
    result = attnscope.mask("minilm", TEXTS, verify=True)
    [mask] = result.masks
    encoding = tokenizer(TEXTS, padding=True, return_tensors="pt")
    tokens = [tokenizer.convert_ids_to_tokens(ids) for ids in encoding["input_ids"].tolist()]
    assert texts_of(mask.query_tokens) == texts_of(mask.key_tokens) == tokens
    real = encoding["attention_mask"].bool()
    assert (mask.visible == real[:, None, None].expand(2, 1, 9, 9).numpy()).all()
    assert (mask.layers, mask.n_layer, mask.kernel) == (list(range(6)), 6, "sdpa")
    assert mask.patterns == ["all keys", "all but 4 keys"]
    assert [(check.name, check.ok) for check in result.checks] == [("sdpa itself", True)]
    assert result.of_layer(3) is mask
    with pytest.raises(KeyError):
        result.of_layer(6)


def test_layers_that_see_the_same_are_one_and_kinds_are_named(tokenizer):
    kinds = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]
    more = {"num_hidden_layers": 4, "layer_types": kinds, "sliding_window": 3}
    model = small("gemma3_text", **more)
    result = attnscope.mask(model, TEXTS[0], tokenizer=tokenizer, verify=True)
    sliding, full = result.masks
    assert (sliding.layers, sliding.kinds) == ([0, 1, 3], ["sliding_attention, window 3"])
    assert (full.layers, full.kinds) == ([2], ["full_attention"])
    assert (sliding.pattern, full.pattern) == ("causal, at most 3 keys", "causal")
    assert all(check.ok for check in result.checks)
    [short] = attnscope.mask(model, ids=[5, 6, 7], tokenizer=tokenizer).masks
    assert short.kinds == ["sliding_attention, window 3", "full_attention"]
    [second] = attnscope.mask(model, TEXTS[0], tokenizer=tokenizer, layer=2).masks
    assert second.layers == [2]


def test_results_are_tables_and_files(tmp_path, tokenizer):
    model = small("gemma3_text", sliding_window=3, layer_types=["sliding_attention", "full_attention"])
    result = attnscope.mask(model, TEXTS[0], tokenizer=tokenizer)
    table = result.to_pandas()
    assert table["layers"].tolist() == ["0", "1"]
    assert table["n_visible"].tolist() == [each.n_visible for each in result.masks]
    result.save(tmp_path / "masks.npz")
    with np.load(tmp_path / "masks.npz") as arrays:
        assert {name: array.shape for name, array in arrays.items()} == {
            "self.layer0": (1, 1, 9, 9),
            "self.layer1": (1, 1, 9, 9),
        }
        assert (arrays["self.layer0"] == result.masks[0].visible).all()
    with pytest.raises(AttnscopeError, match="holds one array, and there are 2 masks"):
        result.save(tmp_path / "masks.npy")
    with pytest.raises(AttnscopeError, match=r"cannot be written as \.txt"):
        result.save(tmp_path / "masks.txt")


def test_texts_of_one_length_share_a_picture_and_are_counted_twice(tokenizer):
    model = small("llama")
    [mask] = attnscope.mask(model, ["The cat sat.", "A dog ran."], tokenizer=tokenizer).masks
    assert mask.received == "no mask, is_causal True"
    assert [plane.places for plane in mask.planes] == [[(0, 0), (1, 0)]]
    assert (mask.visible == torch.ones(2, 1, 6, 6).tril().bool().numpy()).all()
    assert mask.n_visible == 2 * 21


def test_packed_texts_are_told_apart_by_a_causal_model_and_not_by_minilm(tokenizer):
    """transformers makes a mask of documents from positions only where it makes a causal one."""
    model = small("llama")
    [packed] = attnscope.mask(model, TEXTS, packed=True, tokenizer=tokenizer).masks
    lengths = [len(tokenizer(text)["input_ids"]) for text in TEXTS]
    assert packed.pattern == f"causal within documents of {lengths[0]} and {lengths[1]} keys"
    [leaking] = attnscope.mask("minilm", TEXTS, packed=True).masks
    assert leaking.pattern == "all keys"
    [of_flash] = attnscope.mask("minilm", TEXTS, packed=True, kernel="flash_attention_2").masks
    assert of_flash.pattern == f"all keys within documents of {lengths[0]} and {lengths[1]} keys"


@pytest.mark.parametrize("kernel", ["eager", "flex_attention", "flash_attention_2", "flash_attention_3"])
def test_other_kernels_would_see_the_same(kernel, tokenizer):
    model = small("mistral", sliding_window=4)
    before = model.config._attn_implementation
    result = attnscope.mask(model, TEXTS, kernel=kernel, tokenizer=tokenizer)
    [mask] = result.masks
    [own] = attnscope.mask(model, TEXTS, tokenizer=tokenizer).masks
    seeing = own.visible.any(-1, keepdims=True)
    assert (mask.kernel, own.kernel) == (kernel, "sdpa")
    padded = mask.visible.any(-1, keepdims=True)  # flash kernels leave out queries that are padding
    assert ((mask.visible == own.visible) | ~seeing | ~padded).all()
    told = f"{kernel} was not called: this is what it would see of its arguments."
    assert (told in result.notices) == (kernel != "eager")
    assert model.config._attn_implementation == before


def test_the_kernel_of_a_loaded_model_is_called(monkeypatch, tokenizer):
    flash.install(monkeypatch)
    model = small("mistral", "eager", sliding_window=4)
    for module in model.modules():
        if hasattr(module, "config"):
            module.config._attn_implementation = "flash_attention_2"
    result = attnscope.mask(model, TEXTS[0], tokenizer=tokenizer, verify=True)
    [mask] = result.masks
    assert (mask.kernel, mask.pattern) == ("flash_attention_2", "causal, at most 4 keys")
    assert mask.received == "no mask, is_causal True, sliding_window 4"
    assert [check.ok for check in result.checks] == [True]


def test_a_mask_that_a_kernel_does_not_follow_fails_the_check(tokenizer):
    """The model of this test drops the mask on its way to the kernel of its second layer."""
    model = small("bert")
    original = torch.nn.functional.scaled_dot_product_attention
    calls = []

    def careless(*tensors, attn_mask=None, **options):
        calls.append(attn_mask)
        return original(*tensors, attn_mask=None if len(calls) % 2 == 0 else attn_mask, **options)

    torch.nn.functional.scaled_dot_product_attention = careless
    try:
        result = attnscope.mask(model, TEXTS, tokenizer=tokenizer, verify=True)
    finally:
        torch.nn.functional.scaled_dot_product_attention = original
    [check] = result.checks
    assert (check.name, check.ok) == ("sdpa itself", False)


def test_encoder_and_decoder_have_masks_of_their_own(tokenizer):
    model = small("t5")
    model.config.decoder_start_token_id = 0
    result = attnscope.mask(model, TEXTS[0], target=TEXTS[1], tokenizer=tokenizer)
    found = {each.stack: (each.pattern, each.n_Q, each.n_K, len(each.layers)) for each in result.masks}
    n = len(tokenizer(TEXTS[0])["input_ids"])
    m = len(tokenizer(TEXTS[1])["input_ids"])
    assert found == {
        "encoder": ("all keys", n, n, 2),
        "decoder": ("causal", m, m, 4),
        "cross": ("all keys", m, n, 4),
    }
    cross = result.of_layer(0, "cross")
    assert texts_of(cross.key_tokens) == [tokenizer.convert_ids_to_tokens(tokenizer(TEXTS[0]).input_ids)]
    assert (
        texts_of(cross.query_tokens)[0][1:] == tokenizer.tokenize(TEXTS[1], add_special_tokens=True)[:-1]
    )
    [encoder] = attnscope.mask(model, TEXTS[0], tokenizer=tokenizer).masks
    assert encoder.stack == "encoder"


def test_a_model_that_computes_attention_itself_shows_its_weights(tokenizer):
    model = small("bloom", "eager")
    result = attnscope.mask(model, TEXTS[0], tokenizer=tokenizer)
    [mask] = result.masks
    assert (mask.kernel, mask.pattern, mask.layers) == ("own code", "causal", [0, 1])
    assert "does not call attention through transformers' registry" in result.notices[0]


def test_vision_models_have_patches_for_tokens(tmp_path):
    from PIL import Image
    from transformers import ViTImageProcessorPil

    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    processor = ViTImageProcessorPil(size={"height": 8, "width": 8})
    [mask] = attnscope.mask(
        build("vit").float(), image=tmp_path / "a.png", image_processor=processor
    ).masks
    assert texts_of(mask.query_tokens) == [["[CLS]", "0,0", "0,1", "1,0", "1,1"]]
    assert mask.pattern == "all keys"


MISTAKES = [
    ({"layer": 7}, "there is no layer 7 in minilm: it has layers 0 to 5"),
    ({"stack": "decoder"}, "minilm runs no decoder attention for this input: it has self"),
    ({"kernel": "fast"}, "there is no kernel 'fast'"),
    ({"kernel": "flex_attention", "verify": True}, "flex_attention is not called here"),
    ({"target": "x"}, "target is for encoder-decoder models"),
    ({"device": "gpu"}, "'gpu' is not a device"),
    ({"text": ["a", ""]}, "text is empty"),
]


@pytest.mark.few(2)
@pytest.mark.parametrize(("options", "message"), MISTAKES, ids=lambda value: str(value)[:40])
def test_mistakes_name_the_model(options, message):
    with pytest.raises(AttnscopeError) as caught:
        attnscope.mask("minilm", **({"text": "a"} | options))
    assert message in caught.value.message


def test_a_kernel_that_a_model_does_not_support_is_refused(tokenizer):
    with pytest.raises(AttnscopeError, match="GptOssModel, which does not support sdpa"):
        attnscope.mask(small("gpt_oss", "eager"), "hi", tokenizer=tokenizer, kernel="sdpa")


def test_a_loaded_model_stays_as_it_is(tokenizer):
    model = AutoModel.from_pretrained(find_checkpoint("minilm").folder, attn_implementation="eager")
    model.train()
    attnscope.mask(model, TEXTS, tokenizer=tokenizer, kernel="sdpa")
    assert model.training
    assert model.config._attn_implementation == "eager"
    assert LLAMA["num_hidden_layers"] == FAMILIES["llama"]["num_hidden_layers"] == 2
