"""What an observed model hands to its attention explains its own maps, in every family."""

from itertools import cycle

import pytest
import torch

from attnscope.attention.observed import observed
from attnscope.model.run.attention_hook import AttentionCall, observing
from attnscope.model.run.layers import stack_of
from tests.model.run.families import ASKED, BERT, LLAMA, T5, build
from tests.sweeps import swept

TEXT = sorted(set(ASKED) - {"whisper", "wav2vec2", "hubert", "vit", "deit", "beit", "dinov2", "dinov3_vit"}
              - {"clip", "metaclip_2", "siglip", "gemma3"})  # fmt: skip
MORE = {
    "mistral": {"sliding_window": 3},
    "gemma2": {"sliding_window": 3, "attn_logit_softcapping": 1.5},
    "gemma3_text": {"sliding_window": 3},
    "gpt_oss": {"sliding_window": 3, "num_local_experts": 4, "num_experts_per_tok": 2},
    "modernbert": {"local_attention": 4, "global_attn_every_n_layers": 2},
}
"""What makes a family's attention its own: windows, caps, sinks."""

ATTENTIONS = {
    "self": "attentions",
    "encoder": "encoder_attentions",
    "decoder": "decoder_attentions",
    "cross": "cross_attentions",
}


def padded(model, side="right"):
    """Two sequences of 7 and of 4 tokens."""
    drawing = torch.Generator().manual_seed(2)
    ids = torch.randint(3, 50, (2, 7), generator=drawing)
    mask = torch.ones_like(ids)
    mask[1, 4:] = 0
    given = {"input_ids": ids, "attention_mask": mask if side == "right" else mask.flip(1)}
    if model.config.is_encoder_decoder:
        given["decoder_input_ids"] = torch.randint(3, 50, (2, 5), generator=drawing)
    return given


def of_family(family, attention):
    return build(family, attention, **MORE.get(family, {})).float()


def watch(model, **given) -> tuple[list[AttentionCall], torch.Tensor]:
    calls: list[AttentionCall] = []
    with torch.no_grad(), observing(model, calls.append):
        output = model(**given)
    return calls, output[0]


def default_attention(model_class):
    return "sdpa" if model_class._supports_sdpa else "eager"


FIRST = ["bert", "gpt2", "llama", "t5"]
OTHERS = [family for family in TEXT if family not in FIRST]
SIDES = list(zip([*FIRST, *OTHERS], cycle(["right", "left", "left", "right"]), strict=False))


@pytest.mark.parametrize(("family", "side"), swept(SIDES, SIDES[:4]))
def test_maps_equal_the_models_own(family, side):
    eager = of_family(family, "eager")
    model = of_family(family, default_attention(type(eager)))
    given = padded(model, side)
    with torch.no_grad():
        theirs = eager(**given, output_attentions=True)
        unobserved = model(**given)[0]
    calls, output = watch(model, **given)
    assert torch.equal(output.nan_to_num(), unobserved.nan_to_num())
    own = {}
    for call in calls:
        _, attention = observed(**call.arguments(list(range(call.n_head))))
        own.setdefault(stack_of(call.path, model.config, cross=call.cross), []).append(attention)
    assert own
    real = given["attention_mask"].bool()
    for stack, maps in own.items():
        returned = [each for each in theirs[ATTENTIONS[stack]] if each is not None]
        assert len(maps) == len(returned)
        for ours, other in zip(maps, returned, strict=True):
            assert ours.shape == other.shape
            if stack in ("self", "encoder"):  # what a padded query looks at is nobody's business
                ours, other = ours.transpose(1, 2)[real], other.transpose(1, 2)[real]
            assert (ours - other).abs().max() <= 1e-5


def test_variants_are_seen():
    gemma = of_family("gemma2", "eager")
    calls, _ = watch(gemma, **padded(gemma))
    assert {call.softcap for call in calls} == {1.5}
    sinking = of_family("gpt_oss", "eager")
    calls, _ = watch(sinking, **padded(sinking))
    assert calls[0].sinks.shape == (LLAMA["num_attention_heads"],)
    _, attention = observed(**calls[0].arguments([0, 3]))
    assert attention.sum(-1).max() < 1
    calls, _ = watch(t5 := of_family("t5", "sdpa"), **padded(t5))
    assert calls[0].position_bias.shape[1] == T5["num_heads"]
    assert calls[0].scale == 1.0
    window = of_family("mistral", "sdpa")
    calls, _ = watch(window, **padded(window))
    _, attention = observed(**calls[0].arguments([0]))
    assert torch.equal(attention[0, 0] > 0, torch.ones(7, 7).tril().triu(-2).bool())


def test_keys_are_those_of_the_group():
    model = of_family("llama", "sdpa")
    calls, _ = watch(model, **padded(model))
    assert (calls[1].n_head, calls[1].n_kv_head) == (6, 2)
    arguments = calls[1].arguments([1, 3, 5])
    assert torch.equal(arguments["K"], calls[1].key[:, [0, 1, 1]])
    assert torch.equal(arguments["Q"], calls[1].query[:, [1, 3, 5]])


def test_what_is_collected_is_what_the_model_collected():
    for family in ("bert", "llama", "gemma2", "gpt_oss", "t5"):
        model = of_family(family, default_attention(type(of_family(family, "eager"))))
        calls, _ = watch(model, **{k: v[:1] for k, v in padded(model).items()})
        for call in calls:
            collected, _ = observed(**call.arguments())
            assert torch.allclose(collected, call.output.flatten(2), atol=1e-5)


def test_the_registry_is_left_as_it_was():
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    before = dict(ALL_ATTENTION_FUNCTIONS)
    model = of_family("bert", "sdpa")
    with pytest.raises(KeyError), observing(model, lambda call: None):
        raise KeyError("something")
    assert dict(ALL_ATTENTION_FUNCTIONS) == before
    calls = []
    with observing(model, calls.append):
        of_family("bert", "sdpa")(input_ids=torch.ones(1, 3, dtype=torch.long))
    assert calls == []  # another model, meanwhile, is nobody's business
    assert BERT["num_hidden_layers"] == len(watch(model, **padded(model))[0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_dtypes_are_computed_in_float32(dtype):
    model = of_family("llama", "sdpa").to(dtype)
    calls, _ = watch(model, **padded(model))
    _, attention = observed(**calls[0].arguments([0]))
    assert attention.dtype == torch.float32
    assert (attention.sum(-1) - 1).abs().max() < 1e-6
