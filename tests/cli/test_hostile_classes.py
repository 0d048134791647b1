"""Traced code whose classes raise when they are inspected: tracing does not disturb it."""

import json
import re
from textwrap import indent

import numpy as np
import pytest

META = """
class M(type):
    def __getattribute__(cls, name):
        raise ValueError(name)
"""

BAD = """
def bad(self, *rest, **more):
    raise ValueError("looked at")
"""

GOES_ON = {
    "a metaclass": META + "class P(metaclass=M):\n    pass\nq = [P(), P]\nd = {P(): x}\ny = x * 2",
    "a metaclass of what is unpacked": META
    + "class P(metaclass=M):\n    def __iter__(self):\n        return iter([x, x])\na, b = P()\ny = x * 2",
    "a metaclass of what has slots": META
    + "class P(metaclass=M):\n    __slots__ = ['t']\np = P()\np.t = x\np.t += 1\ny = x * 2",
    "a key": BAD + "class K:\n    __repr__ = bad\nd = {(K(), 1): x, 10**5000: x}\ny = x * 2",
    "an object's __class__": BAD
    + "class P:\n    __class__ = property(bad)\n    def __setitem__(self, i, value): pass\n"
    "    def __getitem__(self, i): return x\np = P()\np[0] += x\ny = x * 2",
    "a tensor's attributes": BAD
    + "class T(torch.Tensor):\n    shape = dtype = device = is_nested = property(bad)\n"
    "    __repr__ = detach = clone = numel = is_complex = bad\nt = x.as_subclass(T)\ny = torch.mul(t, 2)",
    "a tensor's __getattribute__": BAD
    + "class T(torch.Tensor):\n    __getattribute__ = bad\nt = torch.Tensor.as_subclass(x, T)\ny = x * 2",
    "a tensor's __torch_function__": BAD
    + "class T(torch.Tensor):\n    __torch_function__ = classmethod(bad)\n"
    "t = torch.Tensor._make_subclass(T, x)\ny = x * 2",
    "a tensor's __torch_dispatch__": BAD
    + "class T(torch.Tensor):\n    __torch_dispatch__ = classmethod(bad)\n"
    "t = torch.Tensor._make_wrapper_subclass(T, x.shape, dtype=x.dtype)\ny = x * 2",
}

RAISES = {
    "a metaclass": META + "class E(ValueError, metaclass=M):\n    pass\nraise E('said')",
    "__getattribute__": BAD + "class E(ValueError):\n    __getattribute__ = bad\nraise E('said')",
    "__class__": BAD + "class E(ValueError):\n    __class__ = property(bad)\nraise E('said')",
}

LINE = ["trace", "hostile.py:attend", "--input", "x=n:2,d:3"]


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Return a function that writes a function with this body into a file."""

    def written(body):
        monkeypatch.chdir(tmp_path)
        source = f"import torch\n\n\ndef attend(x):\n{indent(body.strip(), '    ')}\n    return y\n"
        (tmp_path / "hostile.py").write_text(source)

    return written


@pytest.mark.few(3)
@pytest.mark.parametrize("what", GOES_ON)
def test_classes_that_raise_when_looked_at_change_nothing(attnscope, write, what):
    write(GOES_ON[what])
    steps = {
        step["name"]: step for step in attnscope(*LINE, "--stats", "--format", "json").json["steps"]
    }
    assert steps["y"]["shape"] == [2, 3]
    assert steps["y"]["stats"] is not None
    shown = attnscope(*LINE, "--show", "y")
    assert shown.exit_status == 0
    assert not shown.err


@pytest.mark.few(1)
@pytest.mark.parametrize("what", RAISES)
def test_exceptions_that_raise_when_looked_at_are_told(attnscope, write, what):
    write("y = x * 2\n" + RAISES[what])
    failed = attnscope(*LINE, "--format", "json")
    assert failed.exit_status == 1
    assert re.fullmatch(r"(.*\.)?E: said", json.loads(failed.out)["crash"]["error"])


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "made", ["x.to_sparse()", "torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)", "x.to('meta')"]
)
def test_tensors_that_no_file_holds_are_told_and_the_others_written(attnscope, write, tmp_path, made):
    write(f"z = x * 2\ny = {made}")
    ended = attnscope(*LINE, "--save", "s.npz")
    assert "y is not written: the values of y cannot be read: " in ended.err
    with np.load(tmp_path / "s.npz") as file:
        assert {"x", "z"} <= set(file)
        assert "y" not in file
    refused = attnscope(*LINE, "--show", "y")
    assert refused.exit_status == 2
    assert refused.err.startswith("attnscope: error: the values of y cannot be read: ")
