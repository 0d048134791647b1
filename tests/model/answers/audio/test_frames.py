"""When a frame of the encoder is: its receptive field, found with gradients, is centred there."""

import pytest
import torch

from attnscope.base.errors import ModelError
from attnscope.model.answers.audio.listen import frame_times, samples_per_feature
from tests.model.answers.audio.speakers import FAMILIES, RATE, sound


def inputs_of(model, extractor, seconds=1.3):
    features = extractor(sound(seconds), sampling_rate=RATE, return_tensors="pt")
    return {model.main_input_name: features[model.main_input_name]}


def times_of(name, model, extractor, inputs):
    with torch.no_grad():
        n_frame = model.get_encoder()(**inputs).last_hidden_state.shape[1]
    return frame_times(name, model, extractor, inputs, n_frame, round(1.3 * RATE))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_frame_is_centred_on_what_its_convolutions_read(family):
    model, extractor = FAMILIES[family]()
    inputs = inputs_of(model, extractor)
    times = times_of(family, model, extractor, inputs)
    encoder, seen = model.get_encoder(), []
    convolutions = [each for each in encoder.modules() if isinstance(each, torch.nn.Conv1d)]
    convolutions[-1].register_forward_hook(lambda module, args, output: seen.append(output))
    if family == "moonshine":
        encoder.groupnorm = torch.nn.Identity()  # over all time
    main = inputs[model.main_input_name].clone().requires_grad_()
    encoder(main)
    assert seen[0].shape[-1] == times.n_frame
    frame = 11
    seen[0][0, :, frame].sum().backward()
    gradient = main.grad[0]
    if family == "speech_to_text":
        gradient = gradient.T
    reads = gradient.reshape(-1, gradient.shape[-1]).abs().sum(0).nonzero()[:, 0]
    centre = float(reads.min() + reads.max()) / 2
    unit = 1 if family == "moonshine" else samples_per_feature(extractor)
    assert times.seconds(frame) == pytest.approx(centre * unit / RATE)


def test_whisper_has_a_frame_every_20_ms_and_the_others_as_their_strides():
    steps = {}
    for family, make in FAMILIES.items():
        model, extractor = make()
        inputs = inputs_of(model, extractor)
        steps[family] = times_of(family, model, extractor, inputs)
    assert {family: each.step for family, each in steps.items()} == pytest.approx(
        {"whisper": 0.02, "speech_to_text": 0.04, "moonshine": 0.024}
    )
    assert (steps["whisper"].n_frame, steps["whisper"].n_sound) == (100, 65)


def test_frames_that_strides_do_not_explain_are_refused():
    model, extractor = FAMILIES["speech_to_text"]()
    inputs = inputs_of(model, extractor)
    model.get_encoder().conv.conv_layers[0].stride = (1,)
    model.get_encoder().conv.conv_layers[0].register_forward_hook(
        lambda module, args, output: output[..., ::3]
    )
    with pytest.raises(ModelError, match="which second a frame is of is not known"):
        times_of("it", model, extractor, inputs)
