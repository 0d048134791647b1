"""Names and texts that a terminal, a table, a page or a picture would obey: they are shown escaped, and files stay well-formed."""

import csv
import io
import json
import os
import random

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from tests.torture.files import copy_links
from tests.torture.whole import why_not_whole

pytestmark = [pytest.mark.torture, pytest.mark.slow]

NAMES = {
    "red": "\x1b[31mred\x1b[0m",
    "clear the screen": "\x1b[2J\x1b[H",
    "title": "\x1b]0;owned\x07",
    "link": "\x1b]8;;http://x.invalid\x1b\\x\x1b]8;;\x1b\\",
    "C1": "\x9b31m\x85\x90",
    "newline": "two\nlines",
    "forged": "x\nattnscope: error: forged",
    "carriage": "hidden\rshown",
    "backspaces": "abc\b\b\bxyz",
    "tab": "a\tb",
    "null": "a\0b",
    "delete": "a\x7fb",
    "bidi": "\u202eabc\u202c\u2066x\u2069",
    "separators": "a\u2028b\u2029c",
    "zero width": "a\u200bb\u200cc\ufeff",
    "combining": "e" + "\u0301" * 50,
    "wide": "語" * 40,
    "emoji": "👩‍👩‍👧‍👦🏳️‍🌈",
    "markup": "[bold red]x[/bold red][/]",
    "html": "</script><script>alert(1)</script><!--",
    "xml": "]]>&<x y='\"'>",
    "markdown": "| a | `b` | **c** | <b>",
    "csv": "=1+1",
    "csv tab": "\t=cmd|' /C calc'!A0",
    "csv at": "@SUM(1)",
    "csv comma": 'a,"b",\n"c',
    "format": "{0} %s $x \\n",
    "empty": "",
    "space": " ",
    "long": "x" * 3000,
    "dots": "../../etc/passwd",
    "colon": "a:b:c",
    "brackets": "Q[0]",
    "math": "$\\frac{1}{0}$ ^_{}",
    "surrogate": "\udcff\udc80",
}
FORMATS = ("table", "json", "csv", "markdown")
FORMULA = tuple("=+-@\t\r")


def shown(cases, *arguments, statuses=(0,), what="", **options):
    """Run a command in each format; cells that a spreadsheet would execute are faults."""
    for form in FORMATS:
        ended = cases.run(
            *arguments,
            "--format",
            form,
            statuses=[*statuses, 2] if form == "csv" else statuses,
            what=what,
            **options,
        )
        if form == "csv" and ended.status == 0:
            cells = [cell for row in csv.reader(io.StringIO(ended.out)) for cell in row]
            bad = [cell for cell in cells if cell.startswith(FORMULA) and not is_number(cell)]
            if bad:
                cases.note(
                    [f"a spreadsheet executes {bad[0]!r}"],
                    [str(word) for word in arguments],
                    ended,
                    what,
                )


def is_number(cell):
    try:
        float(cell)
    except ValueError:
        return False
    return True


def possible(name, *, file=False):
    """Whether a name may be one of a file, or in a JSON document."""
    return not (
        file and (not name.strip() or "\0" in name or "/" in name or len(os.fsencode(name)) > 240)
    )


@pytest.mark.parametrize("what", NAMES)
def test_tensors_of_strange_names(cases, what):
    name = NAMES[what]
    rng = np.random.default_rng(0)
    arrays = {key: rng.random((1, 3, 4), "float32") for key in (name, name + "2", "Q")}
    if what != "surrogate":
        save_file(arrays, "t.safetensors")
        cases.run("sdpa", "--q", "t.safetensors:nope", "--nk", 3, statuses=[2], what=what)
        cases.run("mha", "--weights", "t.safetensors", statuses=[2], what=what)
        cases.run(
            "sdpa",
            "--q",
            f"t.safetensors:{name}",
            "--nk",
            3,
            "--format",
            "json",
            statuses=[0, 2],
            what=what,
        )
    torch.save({key: torch.from_numpy(value) for key, value in arrays.items()}, "t.pt")
    cases.run("sdpa", "--q", "t.pt:nope", "--nk", 3, statuses=[2], what=what)
    cases.run("sdpa", "--q", f"t.pt:{name}", "--nk", 3, statuses=[0, 2], what=what)
    if possible(name, file=True) and what != "surrogate":
        np.savez("t.npz", **arrays)
        cases.run("mha", "--weights", "t.npz", statuses=[2], what=what)
        cases.run("sdpa", "--mask", f"t.npz:{name}", statuses=[0, 2], what=what)


@pytest.mark.parametrize("what", [name for name in NAMES if possible(NAMES[name], file=True)])
def test_files_of_strange_names(cases, model_folder, what):
    name = NAMES[what]
    np.save(f"{name}.npy", np.ones((1, 3, 4), "float32"))
    (cases.folder / name).mkdir()
    shown(cases, "sdpa", "--q", f"./{name}.npy", "--nk", 3, what=what)
    for line in (
        ["sdpa", "--q", f"./{name}.nope"], ["sdpa", "--q", f"./{name}.npy:x"], ["sdpa", "--k", f"./{name}"],
        ["mha", "--weights", f"./{name}.npy"], ["sdpa", "--mask", f"./{name}.pt"], ["sdpa", "--save", f"./{name}.nope"],
        ["model", f"./{name}"], ["model", name], ["heads", f"./{name}", "--text", "x"], ["bert", "--model", name],
        ["model", model_folder("bert"), "--file", f"./{name}.txt"], ["heads", model_folder("bert"), "--corpus", f"./{name}.jsonl"],
        ["model", model_folder("vit"), "--image", f"./{name}.npy"], ["trace", f"./{name}.py:x"], ["trace", f"{name}:x"],
        ["run", "--watch", f"./{name}.py:x", f"./{name}.py"], ["run", "--watch", "x.py:x", f"./{name}.py"],
        ["heads", model_folder("bert"), "--corpus", f"./{name}.npy"], ["model", model_folder("bert"), "--file", f"./{name}"],
    ):  # fmt: skip
        cases.run(*line, statuses=[2], what=what)
    folder = copy_links(model_folder("llama"), cases.folder / name / "model")
    read = [2] if what == "surrogate" else [0]  # tokenizers opens only names that are UTF-8
    page, plot = cases.folder / "page.html", cases.folder / "plot.svg"
    cases.run(
        "model",
        folder,
        "--text",
        "the cat sat",
        "--page",
        page,
        "--plot",
        plot,
        "--force",
        may_change=[page, plot],
        statuses=read,
        what=what,
    )
    cases.run(
        "heads",
        folder,
        "--text",
        "the cat sat",
        "--page",
        page,
        "--force",
        may_change=[page],
        statuses=read,
        what=what,
    )
    shown(cases, "model", folder, what=what)
    shown(cases, "model", folder, "--text", "the cat sat", statuses=read, what=what)
    shown(cases, "heads", folder, "--text", "the cat sat", statuses=read, what=what)


@pytest.mark.parametrize("what", [name for name in NAMES if name not in ("null", "surrogate")])
def test_options_of_strange_values(cases, model_folder, what):
    name = NAMES[what]
    for line in (
        ["sdpa", "--dtype", name], ["sdpa", "--device", name], ["sdpa", "--show", name], ["sdpa", "--mask", name], ["sdpa", "--nq", name],
        ["sdpa", "--layout", name], ["sdpa", "--scale", name], ["sdpa", "--softmax-dtype", name], ["sdpa", f"--{name}"], [name], ["sdpa", name],
        ["scaling", "--dk", name], ["example", "--layout", name], ["model", model_folder("bert"), "--layer", name],
        ["model", model_folder("bert"), "--text", "x", "--memory", name], ["model", model_folder("bert"), "--text", "x", "--show", name],
        ["heads", model_folder("bert"), "--text", "x", "--metrics", name], ["heads", model_folder("bert"), "--text", "x", "--sort", name],
        ["heads", model_folder("bert"), "--text", "x", "--device-map", name], ["heads", model_folder("bert"), "--text", "x", "--stack", name],
        ["run", "--watch", name, "x.py"], ["run", "--watch", "a.py:x", "--dims", name, "x.py"], ["trace", name], ["bert", "--head", name],
    ):  # fmt: skip
        cases.run(
            *line,
            statuses=[0, 2] if not name.strip() or what == "brackets" else [2],
            what=what,
            noisy=False,
        )


@pytest.mark.parametrize("what", [name for name in NAMES if name != "surrogate"])
def test_texts_and_tokens_of_strange_characters(cases, model_folder, what):
    """The text itself, and the words of a tokenizer."""
    name = NAMES[what]
    folder = copy_links(model_folder("bert"), cases.folder / "model", but="tokenizer.json")
    tokenizer = json.loads((model_folder("bert") / "tokenizer.json").read_text())
    words = tokenizer["model"]["vocab"]
    words[name or "the"] = words.pop("the")
    tokenizer["pre_tokenizer"] = {
        "type": "Split",
        "pattern": {"String": "|"},
        "behavior": "Removed",
        "invert": False,
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    text = f"{name}|cat|{name}" if name.strip() else "the|cat"
    page, plot, save = cases.folder / "page.html", cases.folder / "plot.svg", cases.folder / "map.npz"
    shown(cases, "model", folder, "--text", text, statuses=[0, 2], what=what)
    shown(cases, "model", folder, "--text", text, "--top", 2, statuses=[0, 2], what=what)
    shown(cases, "model", folder, "--text", text, "--query", 1, statuses=[0, 2], what=what)
    cases.run("model", folder, "--text", text, "--plot", plot, "--page", page, "--save", save, "--force",
              may_change=[page, plot, save], statuses=[0, 2], what=what)  # fmt: skip
    cases.run(
        "model",
        folder,
        "--text",
        text,
        "--plot",
        "x.pdf",
        "--force",
        may_change=[cases.folder / "x.pdf"],
        statuses=[0, 2],
        what=what,
    )
    cases.run(
        "heads",
        folder,
        "--text",
        text,
        "--page",
        page,
        "--force",
        may_change=[page],
        statuses=[0, 2],
        what=what,
    )
    (cases.folder / "c.jsonl").write_text(
        json.dumps({"text": text, name: name}) + "\n" + json.dumps({name: text})
    )
    shown(cases, "heads", folder, "--corpus", "c.jsonl", statuses=[0, 2], what=what)
    cases.run("heads", folder, "--corpus", "c.jsonl", "--field", name, statuses=[0, 2], what=what)


@pytest.mark.parametrize("what", [name for name in NAMES if name != "surrogate"])
def test_settings_of_strange_words(cases, model_folder, what):
    name = NAMES[what]
    folder = copy_links(model_folder("bert"), cases.folder / "model", but="config.json")
    config = json.loads((model_folder("bert") / "config.json").read_text())
    for field in (
        "model_type",
        "architectures",
        "hidden_act",
        "torch_dtype",
        "dtype",
        "auto_map",
        "_attn_implementation",
        "transformers_version",
        "_name_or_path",
        "position_embedding_type",
        "name_or_path",
    ):
        value = (
            [name] if field == "architectures" else {"AutoModel": name} if field == "auto_map" else name
        )
        (folder / "config.json").write_text(json.dumps({**config, field: value}))
        more = [[], ["--text", "the cat"], ["--verify"]][len(field) % 3]
        cases.run("model", folder, *more, "--format", "json", statuses=[0, 2], what=f"{what} as {field}")
    (folder / "config.json").write_text(json.dumps({**config, name: name}))
    cases.run(
        "heads",
        folder,
        "--text",
        "the cat",
        "--format",
        "json",
        statuses=[0, 2],
        what=f"{what} as a name and a value",
    )


@pytest.mark.parametrize("what", [name for name in NAMES if name not in ("surrogate", "null", "empty")])
def test_axes_and_code_of_strange_words(cases, what):
    name = NAMES[what]
    (cases.folder / "traced.py").write_text(
        f"NAME = {name!r}\n\n\ndef attend(x):\n    box = {{NAME: x * 2}}\n    box[{name!r}] = x + 1\n    y = box[NAME]\n    raise ValueError(NAME)\n    return y\n",
        encoding="utf-8",
        errors="surrogatepass",
    )
    shown(cases, "trace", "traced.py:attend", "--input", "x=n:2,d:3", statuses=[1], what=what)
    (cases.folder / "program.py").write_text("import torch, traced\ntraced.attend(torch.ones(2, 3))\n")
    cases.run(
        "run",
        "--watch",
        "traced.py:attend",
        "--to",
        "t.txt",
        "program.py",
        statuses=[1],
        noisy=True,
        may_change=[cases.folder / "t.txt"],
        what=what,
    )
    said = (cases.folder / "t.txt").read_text() if (cases.folder / "t.txt").exists() else ""
    if any(bad in said for bad in ("\x1b", "\x07", "\u202e", "\x9b")):
        cases.faults.append(f"{what}: run --to writes control characters")
    for spec in (f"x={name}:2,d:3", f"{name}=n:2", f"x=n:2@{name}", f"x='{name}'"):
        cases.run("trace", "traced.py:attend", "--input", spec, statuses=[0, 1, 2], what=what)


def test_drawn_names_leave_pictures_well_formed(cases, model_folder):
    """Characters drawn at random, also such as XML has no place for."""
    drawing = random.Random(0)
    for number in range(40):
        name = "".join(
            chr(
                drawing.choice(
                    [
                        drawing.randrange(1, 0x100),
                        drawing.randrange(0x2000, 0x2070),
                        drawing.randrange(0x10000, 0x10FFFF),
                        0xFFFE,
                        0xFFFF,
                        0xFDD0,
                    ]
                )
            )
            for _ in range(6)
        ).replace("/", "")
        plot, page = cases.folder / f"{number}.svg", cases.folder / f"{number}.html"
        folder = copy_links(model_folder("bert"), cases.folder / f"{number} {name}")
        cases.run(
            "model",
            folder,
            "--text",
            "the cat sat",
            "--plot",
            plot,
            "--page",
            page,
            statuses=[0],
            may_change=[plot, page],
            what=f"a folder called {name!r}",
        )
        assert not plot.exists() or why_not_whole(plot) is None
