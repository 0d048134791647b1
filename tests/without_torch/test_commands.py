"""Commands that answer without torch: help, dry runs, a head's weights. They run under every Python."""

import json
import struct

import numpy as np
import pytest

from attnscope.cli.app import COMMANDS
from attnscope.model.files.checkpoint import find_checkpoint


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)], ids=" ".join)
def test_help_is_shown(attnscope, command):
    r = attnscope(*command, "--help")
    assert (r.exit_status, r.err) == (0, "")
    assert "Usage: attnscope" in r.out


def test_a_dry_run_has_the_shapes_of_every_step(attnscope):
    steps = attnscope("sdpa", "--dry-run", "--nq", 30, "--nk", 50, "-f", "json").json["steps"]
    assert {step["name"]: step["shape"] for step in steps} == {
        "Q": [3, 30, 128], "K": [3, 50, 128], "V": [3, 50, 256], "scores": [3, 30, 50],
        "attention": [3, 30, 50], "out": [3, 30, 256],
    }  # fmt: skip
    r = attnscope("mha", "--dry-run", "--kv-heads", 1, "--mask", "window:3", "--source", "--explain")
    assert (r.exit_status, "def forward" in r.out) == (0, True)


def test_a_mistake_is_told_in_a_line(attnscope):
    r = attnscope("mha", "--dry-run", "--heads", 7)
    assert (r.exit_status, r.out) == (2, "")
    assert r.err.startswith("attnscope: error: ")


def test_the_weights_of_a_head_are_the_rows_of_the_file(attnscope):
    r = attnscope("bert", "--layer", 0, "--head", 2, "-f", "json")
    assert r.exit_status == 0
    by_name = {each["name"]: each for each in r.json["weights"]}
    folder = find_checkpoint("minilm").folder
    content = (folder / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    key = next(key for key in header if key.endswith("layer.0.attention.self.query.weight"))
    begin, end = (8 + length + offset for offset in header[key]["data_offsets"])
    assert header[key]["dtype"] == "F32"
    rows = np.frombuffer(content[begin:end], np.float32).reshape(header[key]["shape"])[64:96]
    assert by_name["W_Q"]["stats"]["mean"] == pytest.approx(float(rows.mean()), abs=1e-6)
