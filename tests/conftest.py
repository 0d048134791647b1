"""Shared fixtures: the command line as a function, and the real bundled model."""

from __future__ import annotations

import gc
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FunctionType
from weakref import WeakSet

import numpy as np
import pytest
import torch
import torch._dynamo
import transformers
from hypothesis import settings
from rich.color import ColorSystem
from rich.style import Style
from safetensors.torch import load_file

from attnscope.model.files.checkpoint import find_checkpoint
from attnscope.observe.axes import budget
from tests import (
    profiles,  # noqa: F401 - registers Hypothesis's profiles
    torchvision_operators,  # noqa: F401 - before transformers imports torchvision
)
from tests.browser.chromium import print_skipped
from tests.model.run.tiny import random_weights
from tests.plain_fixtures import attnscope, module_of  # noqa: F401 - fixtures
from tests.sampled import pytest_collection_modifyitems  # noqa: F401 - a hook
from tests.torture.counts import print_counts

# Workers that share the cores compute with one thread each, as do the processes that they start.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))

# A shell's background jobs ignore Ctrl-C, and so would the commands that the tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.load_profile("few")  # unless --hypothesis-profile names another

# How busy the machine is decides no test: the search for the names of axes has time to end.
budget.SECONDS *= 3


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--paste-hints", action="store_true", help="paste the hints of mistakes, which must help"
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    print_counts(terminalreporter)
    print_skipped(terminalreporter)


gc.disable()  # until all tests are collected: what they import is no garbage

FROZEN_FUNCTIONS: WeakSet[FunctionType] = WeakSet()
imported_when_frozen, file_when_frozen = 0, Path()


def freeze() -> None:
    """Freeze the objects that are there, so that no trace looks through them.

    A trace looks through all objects for the functions that it watches: those of torch, of libraries
    and of thousands of tests are hundreds of thousands. What it traces is found in the modules of its
    files; a test that traces a function of torch asks for the fixture `with_torch`.
    """
    global imported_when_frozen
    gc.collect()
    FROZEN_FUNCTIONS.update(each for each in gc.get_objects() if type(each) is FunctionType)
    gc.freeze()
    imported_when_frozen = len(sys.modules)


def pytest_collection_finish() -> None:
    freeze()
    gc.enable()
    frozen = gc.get_freeze_count()
    gc.get_freeze_count = lambda: frozen  # Python counts them one by one


@pytest.hookimpl(tryfirst=True)  # before fixtures
def pytest_runtest_setup(item: pytest.Item) -> None:
    global file_when_frozen
    if item.path != file_when_frozen or len(sys.modules) > imported_when_frozen + 20:
        file_when_frozen = item.path
        freeze()  # what the tests before have made and imported


make_ansi_codes = Style._make_ansi_codes


def _make_ansi_codes(style: Style, system: ColorSystem) -> str:
    """Return the codes of a style for a terminal's colours.

    Rich keeps those of the first terminal, though a test may print to terminals with other colours.
    """
    style._ansi = None
    codes = make_ansi_codes(style, system)
    style._ansi = None
    return codes


Style._make_ansi_codes = _make_ansi_codes

SEERS = ("vit", "clip", "deit", "dinov2", "yolos")
"""Families of vision models."""


@pytest.fixture
def read_tensors() -> Callable[[Path], dict[str, torch.Tensor]]:
    """Return a function that reads a file of tensors with its format's own library."""

    def read(path: Path) -> dict[str, torch.Tensor]:
        if path.suffix == ".safetensors":
            return load_file(path)
        if path.suffix == ".npz":
            return {name: torch.from_numpy(array) for name, array in np.load(path).items()}
        return torch.load(path, weights_only=True)

    return read


@pytest.fixture
def with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace may watch the functions of torch too."""
    objects = gc.get_objects
    monkeypatch.setattr(gc, "get_objects", lambda: [*objects(), *FROZEN_FUNCTIONS])


@pytest.fixture(scope="session")
def minilm() -> Path:
    """Return the folder of the bundled model; never skip, because half of the tests need it."""
    folder = find_checkpoint("minilm").folder
    assert folder is not None
    return folder


# Checkpoints to read: small ones with random weights.

SIZES = {
    "vocab_size": 50,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "max_position_embeddings": 16,
}


@pytest.fixture
def small_bert(tmp_path: Path) -> Callable[..., tuple[Path, transformers.PreTrainedModel]]:
    """Return a function that saves a BERT of 2 layers and 3 heads: `small_bert(dtype=torch.float16)`."""

    def make(*, dtype=torch.float32, masked_lm=False, name="bert", **saving) -> tuple:
        torch.manual_seed(0)
        kind = transformers.BertForMaskedLM if masked_lm else transformers.BertModel
        model = random_weights(kind(transformers.BertConfig(**SIZES)), 0.2).to(dtype)
        folder = tmp_path / name
        model.save_pretrained(folder, **saving)
        return folder, model

    return make


@pytest.fixture
def as_pickle() -> Callable[[Path], Path]:
    """Return a function that converts a saved folder to one with a `pytorch_model.bin`."""

    def turn(folder: Path) -> Path:
        from safetensors.torch import load_file

        torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
        return folder

    return turn


# What may be written to, beside files. A test has its own of each, and touches no other.


@pytest.fixture
def read_pipe() -> Callable[[Path], Callable[[], bytes]]:
    """Create a pipe with a reader; return a function that returns everything written to it."""

    def make(path: Path) -> Callable[[], bytes]:
        os.mkfifo(path)
        content: list[bytes] = []
        thread = threading.Thread(target=lambda: content.append(path.read_bytes()), daemon=True)
        thread.start()

        def all_of_it() -> bytes:
            thread.join(timeout=60)
            return content[0]

        return all_of_it

    return make


@pytest.fixture
def make_device() -> Callable[[Path, str], Path]:
    """Return a function that creates a device that behaves like /dev/null or /dev/full."""

    def make(path: Path, kind: str) -> Path:
        try:
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, {"null": 3, "full": 7}[kind]))
        except PermissionError:
            pytest.skip("only root makes devices")
        return path

    return make


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a folder on a full disk."""
    with mounted(tmp_path / "full", "size=16k") as folder:
        with (folder / "all").open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(1024))
        yield folder


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """Return a folder on a read-only disk, with the file `x.npz` in it."""
    with mounted(tmp_path / "read-only", "size=16k") as folder:
        (folder / "x.npz").write_text("precious")
        subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
        yield folder


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    """Mount a small disk in memory."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only root mounts disks")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return a function that returns a family's random checkpoint, created when first used."""
    from tests.model.run.readers import save_reader, save_seer

    made = {}

    def folder(family, **more):
        key = (family, *sorted(more.items()))
        if key not in made:
            made[key] = tmp_path_factory.mktemp("saved") / family
            save = save_seer if family in SEERS else save_reader
            save(family, made[key], **more)
        return made[key]

    return folder


@pytest.fixture
def every_plan(monkeypatch):
    """Report plans however little memory they take."""
    from attnscope.model.run import memory_plan

    monkeypatch.setattr(memory_plan, "LITTLE", 0)


@pytest.fixture
def on_command_line():
    """Let messages name options as the command line does."""
    from attnscope.base.spelling import Flags, use_notation

    with use_notation(Flags()):
        yield
