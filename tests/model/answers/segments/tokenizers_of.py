"""Tokenizers of three kinds: a token for each byte, byte-level BPE with merges, and sentencepiece's."""

from __future__ import annotations

from functools import cache

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from attnscope.model.answers.prompt import Prompt

SPECIAL = ["<pad>", "<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>", "<|eot_id|>"]
NAMES = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
CORPUS = [
    "the cat sat on the mat . the dog ran .\n\nuser\n system\n assistant\n",
    '{"name": "weather", "city": "Berlin"}\n\n\n[1] one [2] two',
]


@cache
def tokenizer_of(kind: str) -> PreTrainedTokenizerFast:
    """A tokenizer: `bytes`, `merges` or `sentencepiece`."""
    if kind == "sentencepiece":
        whole = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
        whole.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
        whole.decoder = decoders.Sequence(
            [
                decoders.Replace("▁", " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(" ", 1, 0),
            ]
        )
        fallback = [f"<0x{byte:02X}>" for byte in range(256)]
        trainer = trainers.BpeTrainer(
            vocab_size=450, special_tokens=SPECIAL + fallback, show_progress=False
        )
        whole.train_from_iterator(CORPUS * 4, trainer)
        vocabulary = whole.get_vocab()  # bytes are plain entries, and no special tokens
        plain = Tokenizer.from_str(whole.to_str())
        import json

        state = json.loads(plain.to_str())
        state["added_tokens"] = [t for t in state["added_tokens"] if t["content"] not in fallback]
        assert all(each in vocabulary for each in fallback)
        whole = Tokenizer.from_str(json.dumps(state))
    else:
        whole = Tokenizer(models.BPE())
        whole.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        whole.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=len(SPECIAL) + 256 + (80 if kind == "merges" else 0),
            special_tokens=SPECIAL,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        whole.train_from_iterator(CORPUS * 4, trainer)
    whole.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=whole, **NAMES)


def text_of(prompt: Prompt, name: str) -> str:
    """The text of a segment."""
    [segment] = [each for each in prompt.segments if each.name == name]
    ids = prompt.inputs["input_ids"][0].tolist()
    return prompt.tokenizer.decode([ids[i] for i in segment.positions])
