"""The settings that checkpoints are published with give the numbers of tokens that papers state.

No model is built: a configuration and a processor suffice.
"""

from __future__ import annotations

import pytest

from attnscope.model.answers.pictures.read import encode
from tests.model.answers.families import (
    gemma3,
    idefics,
    internvl,
    llava,
    llava_next,
    llava_onevision,
    mistral3,
    paligemma,
    picture,
    pixtral,
    qwen,
)
from tests.sweeps import swept

CASES = {
    # Liu et al. 2024, "Improved Baselines with Visual Instruction Tuning": 336 pixels, 576 tokens
    "llava 1.5": (lambda: llava(336, 14), (640, 480), 576, (80, 0, 100, 20)),
    # 5 × 576 = 2880 without ends of rows, for 672 × 672
    "llava 1.6": (lambda: llava_next(336, 14), (672, 672), 576 + 48 * 48, (0, 0, 14, 14)),
    "llava 1.6, wide": (lambda: llava_next(336, 14), (640, 480), 576 + 36 * 48, None),
    # 729 tokens for the whole, and at most those of 9 tiles, `anyres_max_9`
    "onevision": (lambda: llava_onevision(384, 14, None, 729), (2304, 2304), 729 * 10, (0, 0, 28, 28)),
    "onevision, small": (
        lambda: llava_onevision(384, 14, None, 729),
        (384, 384),
        2 * 729,
        (0, 0, 14, 14),
    ),
    # Wang et al. 2024, "Qwen2-VL": 224 × 224 pixels are 66 tokens with both marks
    "qwen2-vl": (lambda: qwen("Qwen2VL", patch=14, size=None), (224, 224), 64, (0, 0, 28, 28)),
    "qwen2.5-vl": (lambda: qwen("Qwen2_5_VL", patch=14, size=None), (640, 480), 23 * 17, None),
    "qwen3-vl": (lambda: qwen("Qwen3VL", patch=16, size=None), (1024, 768), 32 * 24, (0, 0, 32, 32)),
    # Gemma Team 2025, "Gemma 3 Technical Report": 896 × 896 pixels, 256 tokens
    "gemma 3": (lambda: gemma3(896, 14, 256), (640, 480), 256, (0, 0, 40, 30)),
    # Beyer et al. 2024, "PaliGemma": patches of 14 × 14 of 224, 448 and 896 pixels
    "paligemma 224": (lambda: paligemma(224, 14), (640, 480), 256, (0, 0, 40, 30)),
    "paligemma 448": (lambda: paligemma(448, 14), (640, 480), 1024, (0, 0, 20, 15)),
    "paligemma 896": (lambda: paligemma(896, 14), (640, 480), 4096, (0, 0, 10, 7.5)),
    # Idefics3 in transformers: tiles of 364 × 364 pixels, `image_seq_len` 169
    "idefics3": (
        lambda: idefics("Idefics3", 364, 14, 2, 4 * 364, 169),
        (1456, 1092),
        (4 * 3 + 1) * 169,
        (0, 0, 28, 28),
    ),
    # Marafioti et al. 2025, "SmolVLM": tiles of 384 pixels, 9 patches of 14 × 14 a token; SmolVLM 256M:
    # tiles of 512 pixels, 16 patches of 16 × 16
    "smolvlm 2b": (
        lambda: idefics("SmolVLM", 384, 14, 3, 4 * 384, 81),
        (1536, 1152),
        (4 * 3 + 1) * 81,
        (0, 0, 42, 42),
    ),
    "smolvlm 256m": (
        lambda: idefics("SmolVLM", 512, 16, 4, 4 * 512, 64),
        (640, 480),
        (4 * 3 + 1) * 64,
        (0, 0, 20, 20),
    ),
    # Chen et al. 2024, "How Far Are We to GPT-4V?": tiles of 448 × 448 pixels, 256 tokens each
    "internvl": (lambda: internvl(448, 14, 12, 256), (896, 448), 3 * 256, (0, 0, 28, 28)),
    # Agrawal et al. 2024, "Pixtral 12B": patches of 16 × 16 pixels, up to 1024 × 1024
    "pixtral 12b": (lambda: pixtral(1024, 16), (1024, 1024), 64 * 64, (0, 0, 16, 16)),
    "mistral small 3.1": (lambda: mistral3(1540, 14), (1540, 1540), 55 * 55, (0, 0, 28, 28)),
}


@pytest.mark.parametrize("name", swept(CASES, ["llava 1.5", "qwen2-vl", "smolvlm 2b"]))
def test_published_settings_give_the_published_number_of_tokens(name):
    build, size, n_token, first = CASES[name]
    config, processor = build()
    config.get_text_config().max_position_embeddings = 2**17
    text = f"{processor.image_token}what is?"
    if config.model_type.startswith("qwen"):
        text = f"<|vision_start|>{processor.image_token}<|vision_end|>what is?"
    [found] = encode(processor, config, text, [picture(*size)]).pictures
    patches = found.patches
    assert len(patches) == n_token
    if first is not None:
        finest = min(patches, key=lambda patch: (patch.box[2] - patch.box[0], patch.position))
        assert finest.box == pytest.approx(first)
