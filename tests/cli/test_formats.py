"""Every option works in every format, or a line says why it does not: none is ignored.

`LINES` has a small run of each command, and for each of its options a value that changes the run. With
the option, what is printed or written in a format must differ from what it is without; or else a notice
or an error names the option, or `SAME` says why the same is right.
"""

import contextlib
import io
import json
import os
import re
import shlex
import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from attnscope.cli.app import Commands, main
from tests.hints import options_of
from tests.model.answers.writers import MESSAGES, writer
from tests.model.run.readers import changed_weights, save_picture, save_reader, save_seer

PRINTED = ("table", "markdown", "csv", "json")
WRITTEN = {"page": "out.html", "plot": "out.svg", "save": "out.safetensors"}

LINES = {
    "sdpa --batch 2 --nq 3 --nk 4 --dk 4 --dv 5 --stats": """
        --batch 3
        --nq 5
        --nk 5
        --nv 5                      | --nk 5
        --dk 6
        --dv 3
        --heads 2
        --kv-heads 1                | --heads 2
        --past 2
        --q q.npy
        --k k.npy
        --v v.npy
        --past-k past_k.npy
        --past-v past_v.npy
        --x x.npy                   | --wq wq.npy --wk wk.npy --wv wv.npy
        --wq wq.npy                 | --x x.npy --wk wk.npy --wv wv.npy
        --wk wk.npy                 | --x x.npy --wq wq.npy --wv wv.npy
        --wv wv.npy                 | --x x.npy --wq wq.npy --wk wk.npy
        --mask causal
        --mask-style additive       | --mask ones.npy
        --mask-fill -5              | --mask causal
        --align bottom-right        | --mask causal
        --masked-rows zero          | --mask lengths:0,2
        --scale 0.3
        --softcap 5
        --rope
        --rope-theta 20             | --rope
        --softmax-dtype float64
        --layout columns            | --q q.npy and without --nq 3 --nk 4 --dk 4 --dv 5
        --query 1
        --seed 1
        --draw uniform
        --dtype float64
        --device meta
        --verify
        --explain
        --source
        --wide
        --stats                     | without --stats
        --show attention
        --numbers
        --dry-run                   | without --stats
    """,
    "mha --batch 2 --nq 3 --d-feat 8 --heads 2 --stats": """
        --batch 3
        --nq 5
        --nk 5
        --d-feat 12
        --heads 4
        --kv-heads 1
        --past 2
        --d-head 6
        --d-value 6
        --d-context 6               | --nk 5
        --x x8.npy
        --q x8.npy                  | --k x8.npy
        --k x8.npy                  | --q x8.npy
        --v x8.npy                  | --q x8.npy --k x8.npy
        --past-k past_k4.npy        | --past-v past_v2.npy
        --past-v past_v2.npy        | --past-k past_k4.npy
        --weights {bert}            | without --d-feat 8 --heads 2 and --layer 0
        --layer 1                   | without --d-feat 8 --heads 2 and --weights {bert}
        --stack decoder             | without --d-feat 8 --heads 2 and --weights {bart} --layer 0
        --wq w8.npy
        --wk w8.npy
        --wv w8.npy
        --wo w8.npy
        --bq b8.npy
        --bk b8.npy
        --bv b8.npy
        --bo b8.npy
        --mask causal
        --mask-style additive       | --mask ones33.npy
        --mask-fill -5              | --mask causal
        --align bottom-right        | --mask causal --nk 5
        --masked-rows zero          | --mask lengths:0,2
        --scale 0.3
        --scale-by d_feat
        --softcap 5
        --rope
        --rope-theta 20             | --rope
        --softmax-dtype float64
        --no-bias
        --dropout 0.5               | --train
        --train
        --seed 1
        --draw uniform
        --dtype float64
        --device meta
        --verify
        --explain
        --source
        --wide
        --stats                     | without --stats
        --show attention
        --numbers
        --dry-run                   | without --stats
    """,
    "example": """
        --x [[1,0,0,1],[0,1,1,0]]
        --wq [[1,0,0],[0,1,0],[1,0,1],[1,1,1]]
        --wk [[1,0,0],[0,1,0],[1,0,1],[1,1,1]]
        --wv [[1,0,0],[0,1,0],[1,0,1],[1,1,1]]
        --q [[2,0],[0,1]]           | --k [[1,2],[3,4]] --v [[1,2],[3,4]]
        --k [[2,0],[0,1]]           | --q [[1,2],[3,4]] --v [[1,2],[3,4]]
        --v [[2,0],[0,1]]           | --q [[1,2],[3,4]] --k [[1,2],[3,4]]
        --mask causal
        --scale 1
        --layout columns
        --query 1
        --no-explain
    """,
    "scaling --dk 4,8 --nq 3 --nk 4 --batch 2": """
        --dk 4,16
        --batch 3
        --nq 5
        --nk 5
        --seed 1
        --draw uniform
        --dtype float64
        --no-bars
    """,
    "trace code.py:attend --input q=B:2,n_Q:3,d:4 --input k=B,n_K:5,d --input v=B,n_K,d_V:8 --stats": """
        --input scale=0.3
        --where d_V=2*d
        --follow helper
        --depth 0                   | --follow helper
        --subexpressions
        --source
        --annotate                  | without --stats
        --write                     | without --stats and --annotate
        --check
        --dtype float64
        --device meta               | without --stats
        --seed 1
        --draw uniform
        --no-search
        --wide
        --stats                     | without --stats
        --show scores
        --verify
    """,
    "trace code.py:attend --input q=B:2,n_Q:4,d:4 --input k=B,n_K:4,d --input v=B,n_K,d_V:4": """
        --memory 1
    """,
    "trace code.py:wrong --input q=B:2,n_Q:3,d:8 --input k=B,n_K:5,d --input v=B,n_K,d_V:6": """
        --strict
    """,
    "trace code.py:Heads --input x=B:2,T:5,24 --stats": """
        --init h=4
        --call other
        --train
    """,
    "compare code.py:attend sdpa": """
        --input scale=0.3
        --draw uniform
        --backward
        --causal
        --align bottom-right        | --causal
        --past 2                    | --causal
        --layout columns            | without code.py:attend and code.py:columns
        --scale 0.3
        --rope
        --rope-theta 20             | --rope
        --softcap 5
        --dtype float64
        --seed 1
        --wide
    """,
    "compare code.py:attend sdpa --input q=B:2,n_Q:3,d:4 --input k=B,n_K:5,d --input v=B,n_K,d_V": """
        --where d_V=2*d
    """,
    "compare code.py:attend code.py:renamed": """
        --same q=second --same k=first
    """,
    "compare code.py:Heads mha --input x=B:2,T:5,24": """
        --init h=4
        --call other
        --map q.weight=W_K.weight
    """,
    "compare code.py:built code.py:tuned --input x=B:2,T:5,24": """
        --weights same
    """,
    "compare code.py:Heads {bert} --init h=3": """
        --layer 1
        --text "the cat"            | --layer 0
        --ids 5,6,7                 | --layer 0
        --tokens "the cat"          | --layer 0
    """,
    "compare {bert} {tuned} --layer all": """
        --layer 1
        --head 1
        --text "the cat sat"
        --adapter {lora}            | without {tuned}
        --sort QK
        --reverse                   | --sort QK
        --top 2
        --wide
    """,
    "audit {llama} --length 6": """
        --causal
        --bidirectional
        --window 3
        --chunk 3
        --prefix 2
        --sinks 1                   | --window 3
        --padding
        --packed
        --batch
        --cache
        --kernels
        --coverage
        --expect causal
        --text "the cat sat"        | without --length 6
        --length 7
        --thorough                  | --window 3
        --dtype float64
        --device cuda
        --seed 1
        --wide
    """,
    "audit code.py:attend --input q=B:2,T:5,d:4 --input k=B,T,d --input v=B,T,d --causal": """
        --init h=4                  | code.py:Heads --input x=B:2,T:5,24 and without code.py:attend --input q=B:2,T:5,d:4 --input k=B,T,d --input v=B,T,d
        --input scale=0.3
        --where d_V=d               | --input v=B,T,d_V and without --input v=B,T,d
        --call other                | code.py:Causal --input x=B:2,T:5,24 and without code.py:attend --input q=B:2,T:5,d:4 --input k=B,T,d --input v=B,T,d
        --positions v
        --mask-input shown          | code.py:given --input shown=T,T and without code.py:attend
    """,
    "weights {bert}": """
        --layer 1
        --head 1
        --circuits
        --verify
        --wide
        --show W_Q[0,:2]
    """,
    "weights {bart}": """
        --stack decoder
    """,
    'maps {bert} --text "the cat sat on the mat"': """
        --layer 1
        --head 1
        --text "a dog"              | without --text "the cat sat on the mat"
        --file text.txt             | without --text "the cat sat on the mat"
        --ids 5,6,7                 | without --text "the cat sat on the mat"
        --tokens "the cat"          | without --text "the cat sat on the mat"
        --pair "a dog"
        --truncate                  | --file long.txt and without --text "the cat sat on the mat"
        --query 1
        --top 2
        --weigh value
        --rollout
        --without-sink              | --top 2
        --pool mean
        --steps
        --verify
        --dtype bfloat16
        --device cuda
        --memory 1
        --wide                      | --top 2
        --stats                     | --steps
        --show attention[1]
    """,
    'maps {bart} --text "the cat"': """
        --stack decoder
        --target "a dog"
    """,
    "maps {vit} --image red.png": """
        --image red.png
        --layer 1
        --query 1
    """,
    'maps {writer} --text "the cat sat"': """
        --generate 3
    """,
    'answer {writer} --text "the cat sat" --generate 3': """
        --by segment
        --generate 4                | without --generate 3
    """,
    'answer {writer} --text "the cat sat" --generate 3 --by segment': """
        --text "a dog"              | without --text "the cat sat"
        --file text.txt             | without --text "the cat sat"
        --truncate                  | --file long.txt and without --text "the cat sat"
        --stack decoder
        --device cuda
        --layer 1
        --head 1
        --query -1
        --without-sink
        --pool max
        --messages chat.json        | without --text "the cat sat"
        --segments a=0-3
        --rows reading
        --rows segments
        --verify
        --dtype bfloat16
        --wide
        --show weights
    """,
    'heads {bert} --text "the cat sat on the mat"': """
        --text "a dog"              | without --text "the cat sat on the mat"
        --file text.txt             | without --text "the cat sat on the mat"
        --ids 5,6,7                 | without --text "the cat sat on the mat"
        --tokens "the cat"          | without --text "the cat sat on the mat"
        --corpus c.txt              | without --text "the cat sat on the mat"
        --max-length 4              | --truncate
        --truncate                  | --max-length 4
        --no-special
        --without-sink
        --weigh value
        --metrics entropy,self
        --sort self
        --reverse                   | --sort self
        --top 2                     | --sort self
        --layer 1
        --head 1
        --dtype float64
        --device cuda
        --device-map auto
        --memory 1
        --wide
    """,
    "heads {bert} --corpus c.jsonl": """
        --field other
        --batch-tokens 4
        --checkpoint run.npz
        --max-length 4
    """,
    "heads {bart} --corpus c.jsonl": """
        --target-field other
        --stack decoder
    """,
    'heads {bart} --text "the cat"': """
        --target "a dog"
    """,
    "heads {writer} --needle needles.jsonl": """
        --needle other.jsonl        | without --needle needles.jsonl
        --generate 2
    """,
    'effects {llama} --text "the cat sat on the mat"': """
        --text "a dog ran"          | without --text "the cat sat on the mat"
        --file text.txt             | without --text "the cat sat on the mat"
        --corpus c.jsonl            | without --text "the cat sat on the mat"
        --ids 5,6,7                 | without --text "the cat sat on the mat"
        --tokens "the cat"          | without --text "the cat sat on the mat"
        --corrupt "a dog ran on the mat" | --answer dog
        --truncate                  | --file long.txt and without --text "the cat sat on the mat"
        --answer dog
        --against cat               | --answer dog
        --metric log-probability    | --answer dog
        --position 2                | --answer dog
        --columns zero
        --at last
        --each-position
        --block 0-1>last
        --sort zero
        --reverse                   | --sort zero
        --top 2                     | --sort zero
        --layer 1
        --head 1
        --dtype float64
        --device cuda
        --memory 1
        --wide
    """,
    'effects {bart} --text "the cat" --target "a dog"': """
        --target "a cat"            | without --target "a dog"
        --stack decoder
    """,
    "card {llama}": """
        --context 8
        --batch 2
        --dtype bfloat16
        --dtype-k bfloat16
        --dtype-v bfloat16
        --memory 2G
        --cache-memory 2G
        --weights 1G                | --memory 2G
        --weights-dtype float16     | --memory 2G
        --tensor-parallel 2
        --engine-step 64            | without {llama} and {mistral}
        --flops 10T                 | --bandwidth 1TB
        --bandwidth 1TB             | --flops 10T
        --verify
        --wide
    """,
    "card {bart}": """
        --source 5
    """,
    "card odd.json": """
        --like llama
    """,
    "mask causal --nq 4": """
        --nq 5
        --nk 6
        --past 2
        --batch 2
        --heads 2
        --window 2
        --align bottom-right        | --nk 6
        --block 2
        --cell 2
        --wide
    """,
    "mask code.py:near --nq 4": """
        --init d=1                  | without code.py:near and code.py:make_near
    """,
    "mask code.py:earlier --nq 4": """
        --hides 1
    """,
    "mask code.py:attend --input q=B:2,T:5,d:4 --input k=B,T,d --input v=B,T,d --input mask=T,T": """
        --input q=B:2,T:6,d:4       | without --input q=B:2,T:5,d:4
    """,
    "mask code.py:Causal --input x=B:2,T:5,24": """
        --call other
    """,
    'mask {llama} --text "the cat sat"': """
        --text "a dog"
        --packed                    | --text "a dog"
        --file text.txt             | without --text "the cat sat"
        --ids 5,6,7                 | without --text "the cat sat"
        --tokens "the cat"          | without --text "the cat sat"
        --truncate                  | --file long.txt and without --text "the cat sat"
        --layer 1
        --kernel eager
        --verify
        --dtype float64             | --kernel eager
        --device cuda
    """,
    'mask {bert} --text "the cat sat"': """
        --pair "a dog"
    """,
    'mask {bart} --text "the cat"': """
        --target "a dog"
        --stack decoder             | --target "a dog"
    """,
    "mask {vit} --image red.png": """
        --image red.png             | without --image red.png
    """,
}
"""For each small run, its options: `OPTION | CONTEXT`, and words of the run that the context removes."""

SAME: dict[tuple[str, str, str], str] = {
    (
        "sdpa mha",
        "save",
        "--verify --explain --source --wide --show --numbers",
    ): "tensors are whole; this prints",
    ("sdpa mha trace", "save", "--stats"): "tensors are whole; this prints",
    (
        "trace",
        "save",
        "--source --check --no-search --wide --show --verify --where",
    ): "tensors are whole; this prints",
    ("trace", "csv", "--where --device"): "a condition and a device are no columns",
    ("trace", "*", "--memory"): "this code's names are known without runs at other sizes",
    ("trace compare", "table markdown csv json", "--seed"): "no number of the result depends on it",
    ("compare heads effects", "plot", "--top --reverse"): "a figure is a grid of all heads",
    (
        "compare heads effects",
        "page",
        "--top --sort --reverse",
    ): "a page has all heads, and sorts them itself",
    (
        "*",
        "table markdown page plot save",
        "--wide",
    ): "the terminal is wide enough, and a picture has no columns",
    ("mask", "save", "--block --cell"): "a file has every pair; blocks and cells are printed",
    ("mask", "plot", "--block"): "a figure has cells, and no blocks",
    ("card", "plot", "--verify --engine-step"): "a figure has what is needed, and no engine's rule",
    ("scaling", "*", "--no-bars"): "bars are drawn below a table alone, and a notice says so",
    (
        "audit",
        "plot",
        "--mask-input --causal --dtype --seed --where",
    ): "a figure has the influence that was measured, without padding",
    (
        "audit",
        "*",
        "--padding --packed --batch --cache --kernels --coverage",
    ): "a model promises these by itself; tests/auditing has those that do not",
    ("audit", "csv", "--thorough"): "the number of passes is no column",
    ("heads", "*", "--batch-tokens --device-map"): "how a model runs is no part of its result",
    (
        "heads effects maps answer",
        "table markdown page",
        "--dtype",
    ): "no digit that is shown depends on it",
    ("mask", "plot save", "--verify --kernel --dtype --batch"): "the pairs are the same; this prints",
    ("sdpa", "*", "--nv"): "it is as many as keys, or an error",
    ("heads", "*", "--checkpoint"): "the progress of a run is no part of its result",
    (
        "weights maps answer",
        "save",
        "--circuits --verify --show --query --top --without-sink --stats",
    ): "tensors are whole; this prints",
    ("answer", "csv page plot save", "--by"): "they have the segments of each token anyway",
    (
        "maps answer",
        "page plot",
        "--top --verify --steps --stats --show",
    ): "this prints below the heads that the picture has",
    ("mha", "save", "--k --v"): "the same values as those of --q, in this run",
}
"""Where an option changes nothing that a format has: commands, formats and options, and the reason."""

OF_FILES = {"--plot", "--page", "--save", "--format", "--force"}
"""Options that say where to write, which `test_files.py` has."""

ELSEWHERE = {
    "answer": {"--audio", "--video", "--image", "--fps", "--replay", "--choice", "--grid"},
}
"""Options of answers that need a model of their own; `tests/model/answers` has them."""

CODE = """
import torch
from helper import weights_of
from torch import nn


def attend(q, k, v, mask=None, scale=0.5):
    scores = q @ k.mT * scale  # B n_Q n_K
    if mask is not None:
        scores = scores.masked_fill(mask == 0, float("-inf"))
    attention = weights_of(scores)
    return attention @ v


def other(q, k, v):
    return (q @ k.mT / q.size(-1) ** 0.5).softmax(-1) @ v


class Heads(nn.Module):
    def __init__(self, h=2):
        super().__init__()
        self.h = h
        self.q, self.k, self.v = (nn.Linear(24, 24) for _ in range(3))
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (self.h, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        attention = self.drop((q @ k.mT / q.size(-1) ** 0.5).softmax(-1))
        return (attention @ v).transpose(1, 2).flatten(2)

    def other(self, x):
        return self.forward(x) * 2


class Causal(Heads):
    def forward(self, x):
        return attend(x, x, x, mask=x.new_ones(x.size(1), x.size(1)).tril())

    def other(self, x):
        return attend(x, x, x)


def given(q, k, v, shown):
    return attend(q, k, v, shown)


built, tuned = Heads(), Heads()


def wrong(q, k, v):
    return (q @ k.mT / 4).softmax(-1) @ v


def renamed(first, second, v):
    return other(second, first, v)


def columns(q, k, v):
    return v @ (k.mT @ q / k.size(-2) ** 0.5).softmax(-2)


def near(b, h, q_idx, kv_idx):
    return abs(q_idx - kv_idx) < 2


def make_near(d=2):
    return lambda b, h, q_idx, kv_idx: abs(q_idx - kv_idx) < d


def earlier(n):
    return torch.ones(n, n).tril()
"""
HELPER = """
def weights_of(scores):
    shifted = scores - scores.amax(-1, keepdim=True)
    return shifted.softmax(-1)
"""
ODD = {
    "model_type": "odd",
    "hidden_size": 36,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "vocab_size": 50,
}
LORA = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["query"]}


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Write the files that the runs need."""
    return write_folder(tmp_path_factory.mktemp("formats"))


def write_folder(folder):
    random = np.random.default_rng(0)
    shapes = {
        "q": (2, 3, 4), "k": (2, 4, 4), "v": (2, 4, 5), "past_k": (2, 2, 4), "past_v": (2, 2, 5), "past_v2": (2, 2, 2, 4), "past_k4": (2, 2, 2, 4),
        "x": (2, 3, 6), "wq": (6, 4), "wk": (6, 4), "wv": (6, 5), "x8": (2, 3, 8), "w8": (8, 8), "b8": (8,),
    }  # fmt: skip
    for name, shape in shapes.items():
        np.save(folder / f"{name}.npy", random.standard_normal(shape).astype("float32"))
    np.save(folder / "ones.npy", np.tril(np.ones((3, 4), int)))
    np.save(folder / "ones33.npy", np.tril(np.ones((3, 3), int)))
    (folder / "code.py").write_text(CODE)
    (folder / "helper.py").write_text(HELPER)
    (folder / "text.txt").write_text("a dog sat")
    (folder / "long.txt").write_text("the cat sat " * 60)
    (folder / "c.txt").write_text("the cat sat\na dog ran on the mat\n")
    rows = [{"text": "the cat sat", "other": "a dog", "target": "a", "translation": "the cat"}] * 2
    (folder / "c.jsonl").write_text("\n".join(map(json.dumps, rows)))
    needle = {"text": "the cat sat on the mat .", "needle": "sat on", "answer": "sat on"}
    (folder / "needles.jsonl").write_text(json.dumps(needle))
    (folder / "other.jsonl").write_text(json.dumps(needle | {"needle": "the mat"}))
    (folder / "chat.json").write_text(json.dumps(MESSAGES))
    (folder / "odd.json").write_text(json.dumps(ODD))
    save_picture(folder / "red.png")
    for family in ("bert", "llama", "bart", "mistral"):
        save_reader(family, folder / family)
    save_seer("vit", folder / "vit")
    shutil.copytree(folder / "bert", folder / "tuned")
    query = "encoder.layer.0.attention.self.query"
    with changed_weights(folder / "tuned") as weights:
        weights[f"{query}.weight"] += torch.linspace(0.1, 0.3, 24)[:, None]
    model, tokenizer = writer()
    model.save_pretrained(folder / "writer")
    tokenizer.save_pretrained(folder / "writer")
    (folder / "lora").mkdir()
    (folder / "lora/adapter_config.json").write_text(json.dumps(LORA))
    parts = {"lora_A": torch.ones(2, 24), "lora_B": torch.full((24, 2), 0.1)}
    weights = {f"base_model.model.{query}.{name}.weight": part for name, part in parts.items()}
    save_file(weights, folder / "lora/adapter_model.safetensors")
    return folder


# Runs, with and without an option.


@dataclass(frozen=True)
class Case:
    """An option of a command, and the same run without it.

    Attributes:
        command: the name of the command.
        option: the option with its value, if it takes one.
        without: the command line without it.
    """

    command: str
    option: tuple[str, ...]
    without: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.command} {' '.join(self.option)}"


def case_of(line: str, run: str) -> Case:
    """Read a line of `LINES`."""
    option, _, context = line.partition("|")
    more, _, less = context.strip().rpartition("without ")
    more = more.strip().removesuffix("and")
    less, _, instead = less.partition(" and ") if "without " in context else ("", "", less)
    assert less in run, (less, run)
    words = run.replace(less, "", 1) if less else run
    (command, *_) = run.split()
    return Case(command, tuple(shlex.split(option)), tuple(shlex.split(f"{words} {more} {instead}")))


CASES = [
    case_of(line, run)
    for run, lines in LINES.items()
    for line in lines.strip().splitlines()
    if line.strip()
]


def formats_of(command: str) -> list[str]:
    """The formats that a command prints, and those of the files that it writes."""
    return [*PRINTED, *(name for name in WRITTEN if f"--{name}" in options_of(command))]


@dataclass(frozen=True)
class Ended:
    """What a run has shown: its exit status, its result in a format, and stderr."""

    status: int
    result: str
    err: str


@cache
def ended(words: tuple[str, ...], format: str) -> Ended:
    """Run a command line with a result in a format: what it prints, or the file that it writes."""
    path = Path(WRITTEN.get(format, ""))
    words = tuple(re.sub(r"^\{(\w+)\}$", r"\1", word) for word in words)
    target = [f"--{format}", str(path)] if format in WRITTEN else ["--format", format]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main([*words, *target])
    result = out.getvalue()
    if format in WRITTEN:
        result = path.read_bytes().decode("latin-1") if path.exists() else ""
        path.unlink(missing_ok=True)
    return Ended(status, result, err.getvalue())


def fits(word: str, words: str) -> bool:
    """Whether a word is one of several, or these are all."""
    return words == "*" or word in words.split()


def fault_of(case: Case, format: str) -> str | None:
    """Return why an option is neither obeyed nor refused in a format; None: it is one of them."""
    one, other = ended(case.without, format), ended((*case.without, *case.option), format)
    names = {*options_of(case.command)[case.option[0]].opts}
    if one.status == 2 and re.search(rf"(--|\b){format}\b|--format", one.err):
        return None  # no run of this kind has the format
    if one.status == 2 and (other.status != 2 or any(name in one.err for name in names)):
        return None  # it is what the run needs
    if one.status == 2:
        return f"the run without it ends with {one.status}: {one.err}"
    if (one.status, one.result) != (other.status, other.result) and other.status != 2:
        return None
    row = (case.command, format, case.option[0])
    if any(all(fits(*pair) for pair in zip(row, same, strict=True)) for same in SAME):
        return None
    told = [line for line in other.err.splitlines() if any(name in line for name in names)]
    if told and other.err != one.err:
        return None
    return f"it changes nothing, and stderr does not name it: {other.err}"


@pytest.fixture(scope="module")
def there(folder):
    """Run in the folder with the files, whose code an option may change."""
    here = Path.cwd()
    os.chdir(folder)
    yield folder
    os.chdir(here)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("case", "format"),
    [(case, format) for case in CASES for format in formats_of(case.command)],
    ids=str,
)
def test_an_option_is_obeyed_in_a_format_or_a_line_says_why_not(there, case, format):
    fault = fault_of(case, format)
    (there / "code.py").write_text(CODE)
    assert fault is None


@pytest.mark.few(4)
@pytest.mark.parametrize("command", Commands())
def test_every_option_has_a_run(command):
    """`bert` is `model` with a default, and `run` leaves its formats to the traces of `trace`."""
    options = (
        {each.opts[0] for each in options_of(command).values()} - OF_FILES - {"--help", "--help-all"}
    )
    if command == "bert":
        assert options - {"--model"} == {
            each.opts[0] for each in options_of("model").values()
        } - OF_FILES - {
            "--help",
            "--help-all",
        }
        return
    tried = {
        options_of(command)[case.option[0]].opts[0] for case in CASES if case.command == command
    } | ELSEWHERE.get(command, set())
    assert not options - tried if command != "run" else not tried


def test_an_option_that_is_ignored_is_found(there, monkeypatch):
    """The judge itself: `--wide` changes no JSON, and a notice says so; without the notice it is a fault."""
    case = case_of("--wide", "sdpa --nq 3 --nk 4")
    assert fault_of(case, "json") is None
    ended.cache_clear()
    monkeypatch.setattr("attnscope.cli.output.print_notice", lambda message: None)
    assert fault_of(case, "json").startswith("it changes nothing")
    ended.cache_clear()
