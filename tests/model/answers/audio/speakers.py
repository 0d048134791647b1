"""Tiny models that write down what they hear, with random or planted weights, and sounds for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers import (
    MoonshineConfig,
    MoonshineForConditionalGeneration,
    Speech2TextConfig,
    Speech2TextFeatureExtractor,
    Speech2TextForConditionalGeneration,
    Wav2Vec2FeatureExtractor,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)

from tests.model.run.tiny import random_weights

RATE = 16000
START, EOS, ENGLISH, FRENCH, TRANSCRIBE, TRANSLATE, NO_TIMES = range(50, 57)

WHISPER: dict[str, Any] = {
    "vocab_size": 60,
    "num_mel_bins": 20,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 28,
    "max_source_positions": 100,
    "max_target_positions": 40,
    "decoder_start_token_id": START,
    "bos_token_id": EOS,
    "eos_token_id": EOS,
    "pad_token_id": EOS,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
}


def sound(seconds: float, seed: int = 0, rate: int = RATE) -> np.ndarray:
    """A signal like speech: syllables of a few tones, with noise."""
    generator = np.random.default_rng(seed)
    t = np.arange(round(seconds * rate)) / rate
    tones = sum(
        np.sin(2 * np.pi * pitch * t + generator.normal()) / (i + 1)
        for i, pitch in enumerate([110, 450, 1300, 2400])
    )
    syllables = np.clip(np.sin(2 * np.pi * 4 * t), 0, None)
    return (0.2 * tones * syllables + 0.01 * generator.normal(size=len(t))).astype(np.float32)


def whisper(seed: int = 0, **config: Any) -> tuple[Any, Any]:
    """A Whisper that hears two seconds at once, with languages and tasks, and its feature extractor."""
    torch.manual_seed(seed)
    model = random_weights(WhisperForConditionalGeneration(WhisperConfig(**WHISPER | config)), 0.2)
    settings = model.generation_config
    settings.lang_to_id = {"<|en|>": ENGLISH, "<|fr|>": FRENCH}
    settings.task_to_id = {"transcribe": TRANSCRIBE, "translate": TRANSLATE}
    settings.is_multilingual, settings.no_timestamps_token_id = True, NO_TIMES
    return model, WhisperFeatureExtractor(feature_size=20, chunk_length=2)


def speech_to_text(seed: int = 0) -> tuple[Any, Any]:
    """Speech2Text: features of 10 ms, two convolutions of stride 2."""
    config = Speech2TextConfig(
        vocab_size=60,
        input_feat_per_channel=20,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=24,
        decoder_ffn_dim=28,
        conv_channels=24,
        max_source_positions=200,
        max_target_positions=40,
    )
    torch.manual_seed(seed)
    model = random_weights(Speech2TextForConditionalGeneration(config), 0.2)
    return model, Speech2TextFeatureExtractor(feature_size=20, num_mel_bins=20)


def moonshine(seed: int = 0) -> tuple[Any, Any]:
    """Moonshine: samples, three convolutions without padding."""
    config = MoonshineConfig(
        vocab_size=60,
        hidden_size=32,
        intermediate_size=24,
        encoder_num_hidden_layers=2,
        decoder_num_hidden_layers=2,
        encoder_num_attention_heads=4,
        decoder_num_attention_heads=4,
        max_position_embeddings=64,
    )
    torch.manual_seed(seed)
    model = random_weights(MoonshineForConditionalGeneration(config), 0.2)
    return model, Wav2Vec2FeatureExtractor(
        feature_size=1, return_attention_mask=True, do_normalize=False
    )


FAMILIES = {"whisper": whisper, "speech_to_text": speech_to_text, "moonshine": moonshine}

WIDTH = 8
"""The frames of each token in the planted model."""

PLANTED = (1, 2)
"""The layer and the head that follow the sound there."""


def follower() -> tuple[Any, Any]:
    """A Whisper of which one head reads, for token k, the frames 8 k to 8 k + 7; it writes token 0."""
    n_frame, n_position, n_head = 100, 40, 4
    half = n_frame + n_position + 20
    model, extractor = whisper(d_model=2 * half, decoder_attention_heads=n_head)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(False).fill_(float("layer_norm.weight" in name))
    codes = torch.eye(half)
    signed = torch.cat([codes, -codes], 1)
    model.model.encoder.embed_positions.weight[:] = signed[:n_frame]
    model.model.decoder.embed_positions.weight[:] = signed[n_frame : n_frame + n_position]
    layer, head = PLANTED
    attention = model.model.decoder.layers[layer].encoder_attn
    first, n_start = head * (2 * half // n_head), 4
    for token in range(n_frame // WIDTH):
        attention.q_proj.weight[first + token, n_frame + n_start + token] = 10
        frames = range(WIDTH * token, WIDTH * (token + 1))
        attention.k_proj.weight[first + token, list(frames)] = 1
    model.generation_config.language, model.generation_config.task = "en", None
    return model, extractor
