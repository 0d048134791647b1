"""`attnscope.answer` of a recording: rows over seconds, and the words' times."""

import json

import numpy as np
import pytest
import torch
from scipy.io import wavfile
from transformers import WhisperProcessor, WhisperTokenizer

from attnscope.base.errors import ModelError, OptionError
from attnscope.model.answers.answer import answer
from tests.model.answers.audio.speakers import (
    ENGLISH,
    FAMILIES,
    NO_TIMES,
    PLANTED,
    RATE,
    TRANSCRIBE,
    follower,
    sound,
    whisper,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The planted Whisper, which writes ` the`, with a processor, and a recording of two channels."""
    folder = tmp_path_factory.mktemp("whisper")
    model, extractor = follower()
    model.generation_config._from_model_config = False
    marks = (
        "<|startoftranscript|> <|endoftext|> <|en|> <|fr|> <|transcribe|> <|translate|> <|notimestamps|>"
    )
    words = ["Ġthe", *map(chr, range(33, 82)), *marks.split()]
    tokenizer = WhisperTokenizer(vocab={word: i for i, word in enumerate(words)}, merges=[])
    tokenizer.add_special_tokens({"additional_special_tokens": marks.split()})
    model.save_pretrained(folder)
    WhisperProcessor(extractor, tokenizer).save_pretrained(folder)
    samples = np.stack([sound(1.9, rate=22050)] * 2, 1) * 20000
    wavfile.write(folder / "a.wav", 22050, samples.astype("int16"))
    return folder


@pytest.mark.parametrize("rows", ["writing", "reading"])
@pytest.mark.parametrize("family", FAMILIES)
def test_rows_are_those_of_the_model_s_eager_cross_attention(family, rows):
    model, extractor = FAMILIES[family]()
    model.generation_config.language = "en"
    audio = (sound(1.3), RATE)
    result = answer(model, audio=audio, processor=extractor, generate=7, rows=rows, verify=True)
    assert result.checks[0].ok
    model.set_attn_implementation("eager")
    features = extractor(audio[0], sampling_rate=RATE, return_tensors="pt")
    main = {model.main_input_name: features[model.main_input_name]}
    start = [model.generation_config.decoder_start_token_id]
    if family == "whisper":
        start += [ENGLISH, TRANSCRIBE, NO_TIMES]
    assert result.first == len(start)
    ids = torch.tensor([start + result.ids])
    with torch.no_grad():
        output = model(**main, decoder_input_ids=ids, output_attentions=True, use_cache=False)
    whole = torch.stack(output.cross_attentions).mean((0, 2))[0]
    first = len(start) - (rows == "writing")
    np.testing.assert_allclose(result.weights, whole[first : first + len(result.ids)], atol=1e-6)
    known = output.logits[0, len(start) - 1 : -1].log_softmax(-1)[range(len(result.ids)), result.ids]
    np.testing.assert_allclose(result.log_probabilities, known, atol=1e-4)
    assert result.sinks == []
    assert result.tokens[1].text.endswith(" s")


def test_the_decoder_s_own_tokens_are_shown_too():
    model, extractor = whisper()
    options = {"processor": extractor, "generate": 7, "verify": True, "stack": "decoder"}
    result = answer(model, audio=(sound(1.3), RATE), **options)
    assert result.checks[0].ok
    assert [each.name for each in result.segments] == ["start", "answer"]
    assert result.weights.shape == (7, result.first + 7)
    assert np.triu(result.weights, result.first).max() == 0


def test_selected_layers_and_heads_are_shown():
    model, extractor = whisper()
    options = {"processor": extractor, "generate": 7, "verify": True, "layers": [1], "heads": [0, 2]}
    result = answer(model, audio=(sound(1.3), RATE), **options)
    assert result.checks[0].ok
    assert (result.layers, result.heads) == ([1], [0, 2])
    assert len(result.alignment.heads) == 12
    with pytest.raises(ModelError, match="layer 7"):
        answer(model, audio=(sound(1.3), RATE), processor=extractor, layers=7)


def test_the_command_shows_words_and_heads(attnscope, folder):
    r = attnscope("model", str(folder), "--audio", str(folder / "a.wav"), "--generate", "13", "--verify")
    assert r.exit_status == 0, r.err
    assert "2 channels were mixed to one." in r.err + r.out
    assert "resampled from 22,050 to 16,000" in r.err + r.out
    lines = [line.split() for line in r.out.splitlines()]
    words = [line for line in lines if line[:1] == ["the"] and len(line) == 3]
    assert words[:3] == [["the", "0.00", "0.16"], ["the", "0.16", "0.32"], ["the", "0.32", "0.48"]]
    assert words[-1] == ["the", "1.76", "–"]
    layer, head = PLANTED
    assert f"times are those of L{layer} H{head}, which follow the recording best" in r.out


def test_records_have_the_alignment(attnscope, folder):
    command = ("model", str(folder), "--audio", str(folder / "a.wav"), "--generate", "13", "--format")
    record = json.loads(attnscope(*command, "json").out)
    assert record["alignment"]["used"] == [list(PLANTED)]
    assert record["alignment"]["words"][1] == {
        "text": " the",
        "tokens": [1, 2],
        "first": 0.16,
        "end": 0.32,
    }
    assert record["alignment"]["heads"][0]["monotone"] == 1
    header, *rows = attnscope(*command, "csv").out.splitlines()
    assert header == "query,position,token,log_probability,second,segment,n_token,share"
    assert [float(row.split(",")[4]) for row in rows[::2]] == record["alignment"]["seconds"]


def test_figures_and_pages_are_written(attnscope, folder, tmp_path):
    files = ("--plot", f"{tmp_path}/a.png", "--page", f"{tmp_path}/a.html")
    r = attnscope("model", str(folder), "--audio", str(folder / "a.wav"), "--generate", "4", *files)
    assert r.exit_status == 0, r.err
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert "0.16 s" in (tmp_path / "a.html").read_text()
    assert "so when its words were said is not known" in r.out + r.err


def test_a_recording_is_the_only_prompt():
    model, extractor = whisper()
    with pytest.raises(OptionError, match="text and audio cannot be combined"):
        answer(model, "a", audio=(sound(1.0), RATE), processor=extractor)
    with pytest.raises(OptionError, match="segments does not go with audio"):
        answer(model, audio=(sound(1.0), RATE), processor=extractor, segments="a=[1]")
    with pytest.raises(ModelError, match="does not read recordings"):
        answer("minilm", audio=(sound(1.0), RATE))
    with pytest.raises(ModelError, match="was given without a processor"):
        answer(model, audio=(sound(1.0), RATE))
