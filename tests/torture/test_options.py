"""Options drawn at random from those that each command has: it is done, or refused in one line."""

import numpy as np
import pytest
import typer

from attnscope.cli.app import app
from tests.torture.cases import seeded
from tests.torture.files import tensor_files

pytestmark = [pytest.mark.torture, pytest.mark.slow]

COMMANDS = typer.main.get_command(app).commands
PER_TEST, TESTS = 10, 4
"""How many command lines are drawn in a test, and for each command."""

WORDS = [
    "",
    "x",
    "0",
    "-1",
    "all",
    "\x1b[31m",
    "two\nlines",
    "=1",
    "a:b:c",
    "語",
    "x" * 500,
    "..",
    "nan",
    "None",
    "--help",
]
FILES = [
    "Q.npy", "K.npy", "V.npy", "all.npz", "all.npz:Q", "all.safetensors:K", "all.pt", "all.pt:V", "old.pth", "W.npy", "mask.npy",
    "additive.npy", "nan.npy", "ints.npy", "scalar.npy", "none.npy", "missing.npy", "all.npz:nope", "folder", "text.txt", "bad.npz", "",
]  # fmt: skip
WHOLE = [
    0,
    1,
    2,
    3,
    4,
    5,
    7,
    -1,
    -3,
    10**12,
    10**18,
    2**63,
    -(2**63),
    10**30,
    "1.5",
    "x",
    "",
    "0x10",
    "1_000",
    "٣",
]
REAL = [
    "0.5",
    "1",
    "0",
    "-1",
    "-0.0",
    "1e308",
    "1e-320",
    "nan",
    "inf",
    "-inf",
    "-1e9",
    "1e999",
    "x",
    "",
    "1,5",
]
NUMBERS = [
    "0",
    "1",
    "0-1",
    "all",
    "0,1",
    "0,0",
    "5",
    "-1",
    "1-0",
    "99999",
    "999999",
    "0-99999",
    "x",
    "",
    "0-",
    ",",
    "all,0",
]
DTYPES = [
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "float32",
    "int8",
    "complex64",
    "float8_e4m3fn",
    "torch.float32",
    "FLOAT32",
    "",
    "x",
]
DEVICES = [
    "cpu",
    "cpu",
    "meta",
    "cuda",
    "cuda:1",
    "mps",
    "xpu",
    "cpu:0",
    "cpu:7",
    "meta:0",
    "CPU",
    "cuda:-1",
    "cuda:x",
    "vulkan",
    "",
    "x",
]
SHOWS = ["attention", "attention[0]", "attention[0,1]", "attention[:1]", "Q[0,:2]", "W_Q[0,:5]", "scores[0,0]", "x", "attention[99]", "attention[-1]",
         "attention[::0]", "attention[::-1]", "attention[", "[0]", "attention[]", "attention[0,0,0,0,0]", "attention[...]", "attention[None]", "attention[10**30]", "", "Q.T"]  # fmt: skip
MASKS = ["causal", "window:1", "window:0", "window:1,2", "window:-1", "prefix:1", "prefix:99", "lengths:1,2", "lengths:3", "lengths:0,0", "lengths:",
         "window", "nope", "nope:3", "", "causal:3", "mask.npy", "additive.npy", "Q.npy", "missing.npy", "window:99999999999999999999", "window:1,", "window:,0", "window:,", "chunk:2", "chunk:0"]  # fmt: skip
MEMORY = [
    "2G",
    "500M",
    "1M",
    "1",
    "0",
    "-1G",
    "2X",
    "1e3G",
    "1.5G",
    "",
    "G",
    "999999999999T",
    "50%",
    " 2G ",
]
METRICS = [
    "entropy",
    "self,previous",
    "distance",
    "induction,same",
    "nope",
    "",
    ",",
    "entropy,entropy",
    "entropy,",
    "ENTROPY",
    "largest",
]
TARGETS = ["out.npz", "out.safetensors", "out.pt", "out.txt", "out.md", "out", "out.png", "out.svg", "out.html", "out.json", "there.npz", "there.svg", "there.html", "there.txt",
           "folder", "missing/out.npz", "missing/out.html", "", "folder/out.npz", "folder/out.html", "./out.svg"]  # fmt: skip
TEXTS = [
    "the cat sat",
    "a dog ran",
    "the cat sat on the mat because it was tired .",
    "",
    " ",
    "the " * 40,
    "nope nope",
    "\x1b[31m",
    "\udcff",
    "\0",
    "語 👩‍👩‍👧",
    "@Q.npy",
]
TEXT_FILES = ["text.txt", "empty.txt", "bytes.txt", "missing.txt", "folder", "Q.npy", ""]
CORPORA = [
    "c.txt",
    "c.jsonl",
    "c.txt.gz",
    "c.jsonl.gz",
    "empty.txt",
    "bytes.txt",
    "text.txt",
    "missing.jsonl",
    "folder",
    "Q.npy",
    "bad.jsonl",
    "-",
    "",
]
INPUTS = [
    "x=n:2,d:3",
    "x=n:2,d:3",
    "n:2,d:3",
    "x=2,3",
    "x=n:2,d:3@float16",
    "x=n:2,d:3<5",
    "x=@Q.npy",
    "x=n,d@Q.npy",
    "x=None",
    "x=[1,2]",
    "y=n:2",
    "x=n:0,d:3",
    "x=",
    "x=n:2,d",
]
TRACED = """\
from torch import nn


def near(b, h, q_idx, kv_idx):
    return abs(q_idx - kv_idx) < 3


def make_near(d):
    return lambda b, h, q_idx, kv_idx: abs(q_idx - kv_idx) < d


def attend(x):
    scores = x @ x.mT  # n n
    attention = scores.softmax(-1)
    return attention @ x


class Layer(nn.Module):
    def __init__(self, d=3, drop=0.1):
        super().__init__()
        self.lin = nn.Linear(d, d)
        self.drop = nn.Dropout(drop)

    def forward(self, x):
        q = self.lin(x)
        return attend(self.drop(q))

    def once(self, x):
        y = x * 2
        return y
"""

VALUES = {
    **dict.fromkeys("dtype softmax_dtype".split(), DTYPES),
    **dict.fromkeys("layer head".split(), NUMBERS),
    **dict.fromkeys("save plot page checkpoint".split(), TARGETS),
    "to": ["out.txt", "out.md", "out", "there.txt", "folder", "missing/out.txt", "", "./out.txt"],
    **dict.fromkeys("text pair target".split(), TEXTS),
    **dict.fromkeys("q k v past_k past_v x wq wk wv wo bq bk bv bo weights".split(), FILES),
    "device": DEVICES, "show": SHOWS, "mask": MASKS, "memory": MEMORY, "metrics": METRICS, "sort": METRICS, "file": TEXT_FILES, "corpus": CORPORA,
    "input": INPUTS, "init": ["d=3", "d=4", "drop=0", "d=x", "nope=3", "d", "=", "d=torch.nn:Linear(3, 3)", "d=10**9", "d=-1", "d=[1"],
    "where": ["d_head=d/n", "e=d*2", "e=d/0", "e=nope", "n=d", "e=d**d**d", "e=", "=d", "e=d//2", "e=__import__('os')", "e=(d", "e=1.5*d"],
    "call": ["forward", "once", "nope", "__init__", "", "lin", "train", "_apply"], "follow": ["traced", "torch.nn.functional", "nope", "", "torch", "..", "traced.attend"],
    "dims": ["x=B,T", "x=_,_", "x=B", "x=B,B", "nope=B", "x=", "x", "x=B,T,C", "x=\x1b[31m,T"], "module": ["traced", "nope", "", "..", "os.path", "program"],
    "image": ["picture.png", "text.txt", "missing.png", "folder", "Q.npy", "empty.txt"], "ids": ["1,2,3", "2 5 6 3", "", "1", "-1", "99", "10**3", "x", "1,,2", "9" * 30],
    "tokens": ["the cat", "the", "", "nope", "[CLS] the [SEP]", "\x1b[31m"], "field": ["text", "n", "nope", ""], "target_field": ["text", "n", "nope", ""],
    "device_map": ["auto", "nope", ""], "batch_tokens": ["1", "16", "4096", "0", "-1", str(10**18), "x"], "max_length": ["1", "2", "4", "16", "0", "-1", str(10**18), "x"],
    "generate": ["1", "2", "3", "0", "-1", "x"], "calls": ["1", "2", "0", "-1", str(10**18), "x"], "dk": None,
    "length": ["4", "7", "16", "0", "-1", "x", "9" * 30], "positions": ["n", "d", "nope", ""],
    "kernel": ["eager", "sdpa", "flex_attention", "flash_attention_2", "nope", ""],
    "block": ["128", "2", "2,3", "0", "-1", "x", "", ",", "1,2,3", "9" * 30],
    "watch": ["traced.py:attend", "traced.py:Layer", "traced:attend", "nope.py:x", "traced.py:nope", "traced.py:", "", "\x1b[31m:x"],
}  # fmt: skip
"""What is tried as value of an option of this name; of others, what suits their type."""

SMALL = {
    "sdpa": ["--batch", 1, "--nq", 3, "--nk", 5, "--dk", 4, "--dv", 2],
    "mha": ["--batch", 2, "--nq", 3, "--d-feat", 8, "--heads", 2],
    "scaling": ["--batch", 2, "--nq", 3, "--nk", 4, "--dk", "1,4"],
}
"""Sizes that a command takes a moment for; some lines begin with them."""


OF_MASKS = {"a rule": ["Masks by a rule"], "a function": [], "a model": ["Input of a model"]}
"""The options of `mask` that suit its subject, by their heading in the help."""


@pytest.fixture
def files(cases):
    """Files of all kinds that options name."""
    folder = cases.folder
    for name, content in tensor_files().items():
        (folder / name).write_bytes(content)
    rng = np.random.default_rng(0)
    arrays = {
        "K": rng.random((1, 5, 4), "float32"), "V": rng.random((1, 5, 2), "float32"), "W": rng.random((4, 4)), "mask": rng.random((3, 5)) < 0.7,
        "additive": np.where(rng.random((3, 5)) < 0.5, 0.0, -np.inf), "nan": np.full((1, 3, 4), np.nan, "float32"), "ints": np.arange(12).reshape(1, 3, 4),
        "scalar": np.array(3.0), "none": np.zeros((1, 0, 4), "float32"),
    }  # fmt: skip
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    from tests.torture.files import corpora

    for name, content in corpora().items():
        (folder / name).write_bytes(content)
    for name, content in {
        "text.txt": b"the cat sat", "empty.txt": b"", "bytes.txt": b"\xff\xfe\x00the", "bad.npz": b"PK\x03\x04nope", "bad.jsonl": b'{"text": 3}\nnope\n[]\n',
        "there.npz": b"as it was", "there.svg": b"as it was", "there.html": b"as it was", "there.txt": b"as it was", "traced.py": TRACED.encode(),
        "program.py": b"import torch\nfrom traced import Layer, attend\n\nif __name__ == '__main__':\n    print(attend(torch.ones(2, 3)).shape)\n    Layer()(torch.ones(2, 3))\n",
    }.items():  # fmt: skip
        (folder / name).write_bytes(content)
    (folder / "folder").mkdir()
    return folder


def value(drawing, option):
    """A value for an option: one that is right for its kind, or one that is not."""
    known = VALUES.get(option.name)
    if drawing.random() < 0.06 and option.name != "to":  # any word names a file there
        return drawing.choice(WORDS)
    if known is not None:
        return drawing.choice(known[: max(4, len(known) // 2)] if drawing.random() < 0.6 else known)
    choices = getattr(option.type, "choices", None)
    if choices:
        return drawing.choice([*choices, *choices, "nope", "", choices[0].upper()])
    if option.type.name == "integer":
        return drawing.choice(WHOLE[:7] if drawing.random() < 0.7 else WHOLE)
    if option.type.name == "float":
        return drawing.choice(REAL[:4] if drawing.random() < 0.7 else REAL)
    return drawing.choice(WORDS)


def of_compare(drawing, options, models):
    """The two sides of `compare`, and perhaps their input; any option."""
    codes = ["traced.py:attend", "traced.py:Layer", "traced:Layer", models[0]]
    line = [drawing.choice(codes)]
    line += [drawing.choice([*codes, "sdpa", "mha", "sdpa", "mha"])] if drawing.random() < 0.9 else []
    line += ["--input", drawing.choice(VALUES["input"][:5])] if drawing.random() < 0.5 else []
    return line, options


def of_mask(drawing, options, models):
    """What the command `mask` shows, and mostly only the options that suit it."""
    kind = drawing.choice(["a rule", "a rule", "a function", "a model"])
    rules = MASKS[:8] if drawing.random() < 0.7 else MASKS
    subject = {
        "a rule": drawing.choices(rules, k=drawing.choice([1, 2])),
        "a function": drawing.choice([["traced.py:near"], ["traced.py:make_near", "--init", "d=3"]]),
        "a model": [drawing.choice(models[:3]), "--text", drawing.choice(TEXTS[:6])],
    }[kind]
    headings = (*OF_MASKS[kind], "View", "Output")
    suitable = [each for each in options if each.rich_help_panel in headings]
    return subject, suitable if drawing.random() < 0.8 else options


OF_AUDITS = {
    "a model": ["--text", "--length"],
    "code": ["--init", "--input", "--where", "--call", "--positions"],
}
"""The options of `audit` that are for models, and for code."""


def of_audit(drawing, options, models):
    """What `audit` tests, and mostly only the options that suit it."""
    kind = drawing.choice(list(OF_AUDITS))
    line = [drawing.choice(models[:3])]
    if kind == "code":
        line = [drawing.choice(["traced.py:attend", "traced.py:Layer"]), "--input", "x=n:2,d:3"]
        line += [drawing.choice(["--causal", "--bidirectional", "--window"])]
        line += ["2"] if line[-1] == "--window" else []
    others = {flag for name, flags in OF_AUDITS.items() if name != kind for flag in flags}
    suitable = [each for each in options if not others & set(each.opts)]
    return line, suitable if drawing.random() < 0.8 else options


SUBJECTS = {"compare": of_compare, "mask": of_mask, "audit": of_audit}
"""What draws the arguments of a command, and the options that it may have."""


def drawn(drawing, name, models, picture):
    """A command line: the command, what it needs, and up to seven of its options."""
    command = COMMANDS[name]
    options = [
        option
        for option in command.params
        if option.param_type_name == "option" and option.name not in ("help", "help_all")
    ]
    line = [name]
    if name in ("model", "heads"):
        line += [drawing.choice(models)]
    if name == "bert":
        line += ["--model", models[0]]
    if name == "mha" and drawing.random() < 0.4:
        line += ["--weights", drawing.choice([*models, "minilm"]), "--layer", drawing.choice("01")]
    if name == "trace":
        line += [drawing.choice(["traced.py:attend", "traced.py:Layer", "traced:Layer"])]
        line += ["--input", drawing.choice(VALUES["input"][:5])] if drawing.random() < 0.8 else []
    if name in SUBJECTS:
        subject, options = SUBJECTS[name](drawing, options, models)
        line += subject
    if name in SMALL:
        line += SMALL[name]
    if name in ("model", "bert", "heads") and drawing.random() < 0.7:
        line += ["--text", drawing.choice(TEXTS[:3])]
    if name == "run":
        line += ["--watch", drawing.choice(VALUES["watch"][:3])]
    for option in drawing.sample(options, drawing.randrange(min(8, len(options)))):
        word = drawing.choice([*option.opts, *option.secondary_opts])
        if option.is_flag:
            line += [word]
        elif option.name == "image" and drawing.random() < 0.7:
            line += [word, picture]
        else:
            line += [word, value(drawing, option)]
    record = drawing.random() < 0.5
    if record:
        line += ["--format", "json"]
    if name == "run":
        line += ["program.py"]
    if drawing.random() < 0.02:
        line.insert(
            drawing.randrange(1, len(line) + 1),
            drawing.choice(["--nope", "extra", "--", "-", "-x", "--help", ""]),
        )
    return line, record


@pytest.mark.parametrize("part", range(TESTS))
@pytest.mark.parametrize("name", COMMANDS)
def test_drawn_options_are_done_or_refused(cases, files, model_folder, picture, name, part):
    drawing = seeded(f"{name} {part}")
    models = [model_folder(family) for family in ("bert", "llama", "bart", "vit")]
    may = [
        files / target for target in TARGETS if target and "missing" not in target and target != "folder"
    ]
    for number in range(PER_TEST if name not in ("example", "scaling") else PER_TEST // 2):
        line, record = drawn(drawing, name, models, picture)
        json_alone = (
            record
            and line[-2:] == ["--format", "json"]
            and "--annotate" not in line
            and not {"--help", "--"} & set(line)
        )
        forced = "--force" in line
        cases.run(
            *line, record=json_alone, noisy=name == "run", what=f"{part}.{number}",
            may_change=[path for path in may if forced or not path.name.startswith("there")] + ([files / "traced.py"] if "--write" in line else []),
        )  # fmt: skip
        for path in may:
            if path.exists() and not path.name.startswith("there"):
                path.unlink()
        for name_there in ("there.npz", "there.svg", "there.html", "there.txt"):
            (files / name_there).write_bytes(b"as it was")
        (files / "traced.py").write_text(TRACED)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_told_alone_and_twice_and_without_a_value(cases, files, model_folder, name):
    drawing = seeded(name)
    needed = {"model": [model_folder("bert")], "heads": [model_folder("bert"), "--text", "the cat"], "trace": ["traced.py:attend", "--input", "x=n:2,d:3"], "compare": ["traced.py:attend", "sdpa", "--input", "x=n:2,d:3"],
              "audit": [model_folder("bert")],
              "run": ["--watch", "traced.py:attend"], "bert": ["--model", model_folder("bert")]}.get(name, SMALL.get(name, []))  # fmt: skip
    program = ["program.py"] if name == "run" else []
    may = [files / target for target in TARGETS if "out" in target and "missing" not in target]
    for option in COMMANDS[name].params:
        if option.param_type_name != "option" or option.name in ("help", "help_all"):
            continue
        word = option.opts[0]
        noisy = name == "run"
        if option.is_flag:
            cases.run(name, *needed, word, word, *program, noisy=noisy, what=word)
            cases.run(name, *needed, f"{word}=1", *program, noisy=noisy, what=word)
        else:
            cases.run(name, *needed, word, noisy=noisy, what=f"{word} without a value")
            one, other = value(drawing, option), value(drawing, option)
            cases.run(
                name, *needed, word, one, word, other, *program, noisy=noisy, what=word, may_change=may
            )
            cases.run(name, *needed, f"{word}=", *program, noisy=noisy, what=f"{word}=")
        for path in may:
            path.unlink(missing_ok=True)
