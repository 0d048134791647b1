"""Source texts in files of their own, to be traced by the command."""

from pathlib import Path
from textwrap import dedent

CODE = Path(__file__).parents[1] / "code" / "trace" / "code"
"""The corpus."""

HEAD = """\
import math
import torch
import torch.nn.functional as F
from torch import einsum, nn
"""


def written(folder, source):
    """Write source text, below some imports, into a file of its own."""
    path = folder / f"source_{len(list(folder.iterdir()))}.py"
    path.write_text(HEAD + dedent(source).lstrip("\n"), encoding="utf-8")
    return path


def options(init="", inputs=""):
    """Return the options `--init` and `--input` of texts, each a list or separated by blanks."""
    several = {"--init": init, "--input": inputs}
    texts = {name: each.split() if isinstance(each, str) else each for name, each in several.items()}
    return [part for name, each in texts.items() for text in each for part in (name, text)]
