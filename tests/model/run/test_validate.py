"""What is shown as attention weights are weights: none is negative, and each row sums to 1."""

import inspect

import pytest
import torch
from transformers import CONFIG_MAPPING, MODEL_MAPPING, AutoModel

from attnscope.base.errors import ModelError
from attnscope.model.files.checkpoint import Checkpoint
from attnscope.model.maps.capture import HeadSelection
from attnscope.model.maps.collect import collect_maps
from attnscope.model.run.load import load_config, load_model
from attnscope.model.run.tokenize import Reading, check_reads
from attnscope.model.run.tokens import Picture, Token
from attnscope.model.run.validate import NotWeightsError, check_rows
from tests.model.run.tiny import save_tiny, tiny_config
from tests.model.run.without_maps import WITHOUT_MAPS


def weights(*, n_head=3, n_Q=5, n_K=7, dtype=torch.float32):
    drawing = torch.Generator().manual_seed(0)
    return (torch.randn(2, n_head, n_Q, n_K, generator=drawing) * 4).softmax(-1).to(dtype)


def check(attention, **more):
    check_rows(attention, "some", "SomeModel", 1, **more)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("n_K", [1, 7, 3000])
def test_weights_pass_in_every_dtype(dtype, n_K):
    check(weights(n_K=n_K, dtype=dtype))
    check(torch.full((1, 2, 3, n_K), 1 / n_K, dtype=dtype))


def test_scores_are_refused_with_what_their_rows_sum_to():
    with pytest.raises(
        NotWeightsError, match=r"some is a SomeModel, which returns scores rather than we"
    ) as e:
        check(torch.tensor([[[[2.0, 2.42]]]]))
    assert "in layer 1, rows sum to 4.42" in str(e.value)


def test_one_negative_weight_is_enough():
    attention = weights()
    attention[1, 2, 3, :2] += torch.tensor([-1.0, 1.0])
    with pytest.raises(NotWeightsError, match="scores rather than weights"):
        check(attention)


def test_less_than_1_is_explained_by_sinks_alone():
    check(weights() * 0.9, sinks=True)
    with pytest.raises(NotWeightsError, match=r"returns a part of its weights .* sum to 0\.9"):
        check(weights() * 0.9)
    with pytest.raises(NotWeightsError):
        check(weights() * 1.1, sinks=True)


def test_a_row_without_any_key_is_no_mistake():
    attention = weights()
    attention[0, 1, 2] = 0
    check(attention)
    check(weights(n_K=0))


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused(wrong):
    attention = weights(dtype=torch.float16)
    attention[0, 1, 2, 3] = wrong
    with pytest.raises(
        ModelError, match="the attention of some is not finite in layer 1 of its cross"
    ) as e:
        check(attention, stack="cross")
    assert e.value.hint == 'dtype="float32"'


def test_what_padding_looks_at_does_not_count():
    attention = weights()
    attention[1, :, 3:] = 7
    real = torch.ones(2, 5, dtype=torch.bool)
    with pytest.raises(NotWeightsError):
        check(attention, real=real)
    real[1, 3:] = False
    check(attention, real=real)


LARGEST = 15_000_000
"""How many parameters a small model may have: some families keep a size under a name of their own."""


class NoMapsError(Exception):
    """Why a family has no maps to look at."""


def maps_of(model_type, folder):
    """A family's small model, and the stacks of maps that it has of a text or a picture."""
    try:
        config = tiny_config(model_type)
        if type(config) not in MODEL_MAPPING:
            raise NoMapsError("has no model of its own")
        with torch.device("meta"):
            built = AutoModel.from_config(config)
    except NoMapsError:
        raise
    except Exception as error:  # other sizes than the small ones would be needed, or another library
        raise NoMapsError("cannot be built small") from error
    if built.main_input_name not in ("input_ids", "pixel_values"):
        raise NoMapsError("takes neither tokens nor pictures")
    if sum(each.numel() for each in built.parameters()) > LARGEST:
        raise NoMapsError("stays large")
    save_tiny(model_type, folder)
    checkpoint = Checkpoint(model_type, folder)
    try:
        config = load_config(checkpoint)
        model = load_model(checkpoint, config)
        reading = something_for(model)
        check_reads(checkpoint, config, "image" if reading.picture else "text")
        return model, collect_maps(checkpoint, model, reading, HeadSelection()).stacks
    except ModelError as error:
        raise NoMapsError("is refused") from error


def assert_rows_sum_to_1(model_type, folder):
    model, stacks = maps_of(model_type, folder)
    # A sink is no key: what it takes is missing.
    sinks = {name for name, _ in model.named_parameters() if "sink" in name}
    assert any(maps.maps for maps in stacks)
    for maps in stacks:
        for each in maps.maps:
            sums = each.attention.sum(-1)
            assert each.attention.min() >= 0
            assert sums.max() <= 1 + 1e-4
            assert sinks or sums.min() >= 1 - 1e-4


@pytest.mark.few(3)
@pytest.mark.parametrize("model_type", ["bert", "gpt2", "gpt_oss", "llama", "t5", "vit"])
def test_rows_of_a_familys_maps_sum_to_1(model_type, tmp_path):
    assert_rows_sum_to_1(model_type, tmp_path)


@pytest.mark.sweep
@pytest.mark.parametrize("model_type", sorted(set(CONFIG_MAPPING) - set(WITHOUT_MAPS)))
def test_no_family_has_maps_whose_rows_do_not_sum_to_1(model_type, tmp_path):
    """Every family of transformers that can be built small, and that reads texts or sees pictures."""
    assert_rows_sum_to_1(model_type, tmp_path)


@pytest.mark.sweep
def test_families_without_maps_have_none_for_the_reason_that_is_listed(tmp_path):
    """So each family of transformers is either looked at or listed; a new one is looked at."""
    found = {}
    for model_type in WITHOUT_MAPS:
        try:
            maps_of(model_type, tmp_path / model_type)
            found[model_type] = "has maps"
        except NoMapsError as why:
            found[model_type] = str(why)
    assert found == WITHOUT_MAPS


def something_for(model) -> Reading:
    """Seven tokens, and five for a decoder; or a picture of sixteen patches."""
    towers = hasattr(model.config, "text_config") and hasattr(model.config, "vision_config")
    if model.main_input_name == "pixel_values" and not towers:
        pixels = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(1))
        return Reading({"pixel_values": pixels}, picture=Picture(4, 4, 0, b""), most_added=6)
    ids = torch.randint(3, 49, (1, 7), generator=torch.Generator().manual_seed(1))
    tokens = [Token(str(i)) for i in range(7)]
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if model.config.is_encoder_decoder:
        given["decoder_input_ids"] = ids[:, :5]
    taken = inspect.signature(model.forward).parameters
    reading = Reading({name: each for name, each in given.items() if name in taken}, source=tokens)
    reading.target = tokens[:5] if "decoder_input_ids" in reading.inputs else []
    return reading
