"""What is traced gets the sizes that were said, in every place where they stand; or one is told why not."""

import subprocess
import sys
from inspect import isfunction
from pathlib import Path

import numpy as np
import pytest
import torch

from attnscope.base.errors import AttnscopeError, OptionError, SizeError, SourceError
from attnscope.code.load.load import load
from attnscope.code.load.subject import read_subject

pytestmark = pytest.mark.usefixtures("on_command_line")

CODE = """
from dataclasses import dataclass
import torch
from torch import nn

class MultiHeadedAttention(nn.Module):
    def __init__(self, d_feat, n_head, dropout=0.1, max_len=64, bias: bool = True, n_layer=1):
        super().__init__()
        assert d_feat % n_head == 0
        self.n_head, self.max_len, self.dropout = n_head, max_len, dropout
        self.W_Q = nn.Linear(d_feat, d_feat, bias=bias)
        self.register_buffer("count", torch.arange(7))
        self.register_buffer("turn", torch.ones(2, dtype=torch.complex64))
    def forward(self, Q, K, V, mask=None):
        return self.W_Q(Q)
    def project(self, x):
        return self.W_Q(x)
    @staticmethod
    def scale(d_head):
        return d_head ** -0.5

class Plain:
    def __init__(self, n_head=5):
        self.n_head = n_head
    def __call__(self, x, /, *more, **named):
        return x, more, named

class Forward:
    def forward(self, x):
        return x

class Empty(nn.Module):
    def attend(self, x):
        return x
    @classmethod
    def of(cls, n_head):
        return cls(), n_head

@dataclass
class Config:
    d_feat: int
    n_head: int = 4
    inner: object = None

class Configured(nn.Module):
    def __init__(self, config, other=None):
        super().__init__()
        self.config, self.other = config, other
    def forward(self, x):
        return x

class Fails:
    def __init__(self, n_head):
        self.scale = nn.Linear(n_head, "wide")
    def __call__(self, x):
        return x

def sdpa(Q, K, V, mask=None, n_head=8, scale=None, *, causal=False):
    return V

instance = Plain(3)
module = nn.Linear(4, 5)
"""

HEADS = ["d_feat=200", "n_head=5"]
QKV = ["Q=n_batch:6,n_Q:32,d_feat", "K=n_batch,n_K:48,d_feat", "V=n_batch,n_K,d_feat"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("attn.py").write_text(CODE)
    yield
    sys.modules.pop("attn", None)


def made(name="MultiHeadedAttention", init=HEADS, inputs=QKV, where=(), call=None, dtype="float32"):
    return read_subject(load(f"attn.py:{name}"), list(init), list(inputs), list(where), call, dtype)


def refused(*args, **kwargs) -> AttnscopeError:
    with pytest.raises(AttnscopeError) as caught:
        made(*args, **kwargs)
    assert "\n" not in caught.value.message
    return caught.value


def shapes(built) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in built.kwargs.items()}


# Sizes


def test_sizes_stand_in_the_order_of_inputs_then_arguments_then_equations_then_numbers():
    inputs = [*QKV[1:], "Q=n_batch:6,n_Q:32,d_feat", "mask=3"]
    it = made(
        inputs=inputs,
        init=["n_head=5", "d_feat=200", "n_layer=0", "bias=True"],
        where=["d_feat=n_head*d_head"],
    )
    assert list(it.sizes.items()) == [
        ("n_batch", 6), ("n_K", 48), ("d_feat", 200), ("n_Q", 32), ("n_head", 5), ("d_head", 40), ("mask", 3),
    ]  # fmt: skip
    assert it.set_by_user == set(it.sizes)
    assert it.defaults == {"max_len": 64}
    assert it.axes == {
        "K": ("n_batch", "n_K", "d_feat"),
        "V": ("n_batch", "n_K", "d_feat"),
        "Q": ("n_batch", "n_Q", "d_feat"),
    }
    assert [equation.names for equation in it.where] == [["d_feat", "n_head", "d_head"]]


def test_a_name_gets_its_size_from_any_place():
    assert (
        made(init=["d_feat=200", "n_head=5"], inputs=["x=n:3,max_len"], call="project").sizes["max_len"]
        == 64
    )
    it = made("sdpa", [], ["Q=n:3,d", "K=n,d", "V=m,d:4", "scale=7", "mask=n,m@bool"], ["m=2*scale"])
    assert it.sizes == {"n": 3, "d": 4, "m": 14, "scale": 7}


def test_a_default_gives_a_size_where_nobody_says_one():
    it = made("sdpa", [], ["Q=n_head,3", "K=None", "V=5,"])
    assert it.sizes == {"n_head": 8}
    assert it.set_by_user == set()
    assert it.axes["Q"] == ("n_head", 3)
    assert it.axes["V"] == (5,)


@pytest.mark.parametrize(
    ("inputs", "objects"),
    [
        (["Q=n:3,d:4", "K=Q", "V=Q"], "aaa"),
        (["Q=n:3,d:4", "K=Q", "V=K"], "aaa"),
        (["V=K", "K=m:5,d", "Q=n:3,d:4"], "abb"),
        (["n:3,d:4", "Q", "V=K"], "aaa"),
        (["Q=n:3,d:4", "K=n,d", "V=K", "mask=Q"], "abba"),
        (["Q=(n:3; d:4)", "K=Q", "V=5,"], "aab"),
        (["Q=torch.nn:ReLU()", "K=Q", "V=5,"], "aab"),
    ],
)
def test_an_input_may_be_the_object_that_another_is(inputs, objects):
    it = made("sdpa", [], inputs)
    for built in (it.build(), it.build({**it.sizes, "n": 7})):
        values = dict(zip(["Q", "K", "V"], built.args, strict=False)) | built.kwargs
        ordered = [values[name] for name in ("Q", "K", "V", "mask") if name in values]
        first = [next(i for i, other in enumerate(ordered) if other is each) for each in ordered]
        assert first == [objects.index(letter) for letter in objects]


def test_the_name_of_a_size_is_an_axis_even_if_an_input_has_that_name_too():
    axis = made("sdpa", [], ["Q=K:3,d:4", "K=K,d", "V=K"])
    assert [tuple(value.shape) for value in axis.build().kwargs.values()] == [(3, 4), (3, 4), (3,)]
    number = made("sdpa", [], ["Q=5,", "K=6,", "V=n_head", "n_head=3"])
    assert number.build().kwargs["V"].shape == (3,)
    equation = made("sdpa", [], ["Q=5,d:4", "K=6,", "V=K"], ["K=2*d"])
    assert equation.build().kwargs["V"].shape == (8,)


def test_equations_are_solved_in_any_order():
    it = made("sdpa", [], ["Q=a:3,d", "K=None", "V=5,"], ["d=c*2", "c=b*5", "b=7*a"])
    assert it.sizes == {"a": 3, "d": 210, "c": 105, "b": 21}


def test_arguments_of_one_name_that_differ_are_no_sizes():
    both = ["config=attn.py:Config(d_feat=6, n_head=2)", "other=attn.py:Config(d_feat=6, n_head=3)"]
    assert made("Configured", both, ["x=n:5,d_feat"]).sizes == {"n": 5, "d_feat": 6}
    error = refused("Configured", both, ["x=n:5,n_head"])
    assert (
        error.message == "--init other says that n_head is 3, but --init config says that n_head is 2."
    )


@pytest.mark.parametrize(
    ("wrong", "message", "hint"),
    [
        ({"inputs": [*QKV[:2], "V=n_batch,n_K:40,d_feat"]}, "--input V says that n_K is 40, but --input K says that n_K is 48.", None),
        ({"inputs": [*QKV[:2], "V=n_batch,n_K,d_feat:80"]}, "--init d_feat says that d_feat is 200, but --input V says that d_feat is 80.", None),
        ({"inputs": ["x=n:3,n:4"], "call": "project"}, "--input x says that n is 4, but --input x says that n is 3.", None),
        ({"inputs": [*QKV, "mask=n_Q,max_len:9"]}, "MultiHeadedAttention has max_len 64 by default, but --input mask says that max_len is 9.", "--init max_len=9"),
        ({"inputs": [QKV[0], "K=n_batch,n_K,7,d:3", QKV[2]]}, "the axis n_K of K has no size.", "--input K=n_batch,n_K:48,7,d:3"),
        ({"inputs": ["5,d"], "call": "project"}, "the axis d of x has no size.", "--input 5,d:48"),
        ({"inputs": ["x=(n:5; n,d)"], "call": "project"}, "the axis d of x[1] has no size.", "--input x=(…n,d:48…)"),
        ({"inputs": ["x=5<vocab"], "call": "project"}, "x: vocab, the upper bound of its values, has no size.", "a number: --input x=…<100"),
        ({"where": ["d_feat=n_head*d_K/n_V"]}, "--where d_feat=n_head*d_K/n_V: d_K and n_V have no size.", "an equation gives the size of one name, which must occur in it once"),
        ({"where": ["d=2*d"]}, "--where d=2*d: d follows from itself, and has no size.", "what it follows from, such as --where d=2*m"),
        ({"where": ["n_head=d*d"]}, "--where n_head=d*d: d has no size.", "an equation gives the size of one name, which must occur in it once"),
        ({"where": ["d_feat=n_head*n_Q"]}, "--where d_feat=n_head*n_Q does not hold: d_feat is 200, and n_head*n_Q is 5*32 = 160.", None),
        ({"where": ["n_Q=d_feat/d_head"]}, "--where n_Q=d_feat/d_head: n_Q is 32, d_feat is 200, and so d_head would be 6.25, which is not a whole number.", None),
        ({"inputs": [*QKV[:2], "V=n_batch,n_K@v.npy"]}, "V in v.npy has n_batch 3 (axis 0 of 3×4), but --input Q says that n_batch is 6.", None),
        ({"inputs": [*QKV[:2], "V=n_batch,n_K,d_feat@v.npy"]}, "V in v.npy is 3×4, but --input V names 3 axes: n_batch n_K d_feat.", None),
        ({"inputs": [*QKV[:2], "V=3,5@v.npy"]}, "V in v.npy has size 4 on axis 1 of 3×4, but --input V says 5.", None),
        ({"name": "sdpa", "init": [], "inputs": ["Q=5,", "K=V", "V=K"]}, "the axis V of K has no size.", "--input K=V:48"),
        ({"inputs": [*QKV[:2], "V=a,b@empty.npy"]}, "V in empty.npy is 3×0: it has no elements.", None),
    ],
)  # fmt: skip
def test_sizes_that_disagree_or_are_missing_are_told(wrong, message, hint):
    np.save("v.npy", np.zeros((3, 4)))
    np.save("empty.npy", np.zeros((3, 0)))
    error = refused(**wrong)
    assert type(error) is SizeError
    said = error.hint and error.hint.replace('"', "")  # values may be in quotes, for the shell
    assert (error.message, said) == (message, hint and hint.replace('"', ""))


def test_numbers_are_computed_from_sizes_of_any_place():
    it = made(
        "Configured",
        ["config=attn.py:Config(d, n_head=2*n, inner=[max_len, {'e': e}])", "other={'e': 7}"],
        ["x=n:5,d:6"],
        ["max_len=d/3"],
    )
    assert it.sizes == {"n": 5, "d": 6, "max_len": 2, "e": 7}
    config = it.build().module.config
    assert (config.d_feat, config.n_head, config.inner) == (6, 10, [2, {"e": 7}])
    config = it.build({"n": 11, "d": 13, "max_len": 17, "e": 19}).module.config
    assert (config.d_feat, config.n_head, config.inner) == (13, 22, [17, {"e": 19}])


def test_what_is_not_whole_at_other_sizes_raises_there():
    it = made("Configured", ["config=attn.py:Config(d//2)"], ["x=n:5,d:6"])
    assert it.build({"d": 8}).module.config.d_feat == 4
    with pytest.raises(SizeError, match="which is not a whole number: d is 7"):
        it.build({"d": 7})


# Arguments

MHA = "MultiHeadedAttention(d_feat, n_head, dropout=0.1, max_len=64, bias=True, n_layer=1)"
FORWARD = "forward(Q, K, V, mask=None)"


@pytest.mark.parametrize(
    ("wrong", "kind", "message", "hint"),
    [
        ({"init": ["n_head=5"]}, OptionError, f"{MHA} needs d_feat, which --init does not give.", "--init d_feat=64 --input Q=n_batch:6,n_Q:32,d_feat --input K=n_batch,n_K:48,d_feat --input V=n_batch,n_K,d_feat"),
        ({"init": []}, OptionError, f"{MHA} needs d_feat and n_head, which --init does not give.", "--init d_feat=64 --init n_head=8 --input Q=n_batch:6,n_Q:32,d_feat --input K=n_batch,n_K:48,d_feat --input V=n_batch,n_K,d_feat"),
        ({"init": [*HEADS, "d_fear=5"]}, OptionError, f"{MHA} has no d_fear.", "--init d_feat=…"),
        ({"init": [*HEADS, "n_head=7"]}, OptionError, "--init gives n_head 2 times.", "--init n_head=… once"),
        ({"inputs": QKV[:2]}, OptionError, f"{FORWARD} needs V, which --input does not give.", "--input V=n_batch,n_K:48,d_feat"),
        ({"inputs": [*QKV[:2], "W=3"]}, OptionError, f"{FORWARD} has no W.", "--input V=…"),
        ({"inputs": [*QKV, "q_len=3"]}, OptionError, f"{FORWARD} has no q_len.", None),
        ({"inputs": ["5,6"] * 5}, OptionError, f"{FORWARD} takes 4 positional arguments, but --input gives 5.", None),
        ({"inputs": ["5,6", *QKV]}, OptionError, f"{FORWARD} gets Q twice from --input: by position and by name.", "a name in every --input"),
        ({"inputs": [*QKV, QKV[0]]}, OptionError, "--input gives Q 2 times.", "--input Q=… once"),
        ({"call": "projct"}, OptionError, "MultiHeadedAttention has no method projct; its methods are forward, project, scale.", "--call project"),
        ({"dtype": "int64"}, OptionError, "'int64' is not a dtype to run in.", "--dtype float64, float32, float16, bfloat16"),
        ({"name": "Empty", "init": []}, SourceError, "Empty has no forward and no __call__; its methods are attend, of.", "--call attend"),
        ({"name": "Config"}, SourceError, "Config has no forward and no __call__; its methods are none.", None),
        ({"name": "sdpa"}, OptionError, "sdpa is not a class: nothing is constructed, so --init does not apply.", "--input d_feat=…"),
        ({"name": "sdpa", "init": [], "call": "run"}, OptionError, "sdpa is not a class, so it has no method run to call.", "leave out --call"),
        ({"name": "sdpa", "init": [], "inputs": ["5,"]}, OptionError, "sdpa(Q, K, V, mask=None, n_head=8, scale=None, *, causal=False) needs K and V, which --input does not give.", "--input K=5 --input V=5"),
        ({"name": "Plain", "init": [], "inputs": ["more=5,"]}, OptionError, "__call__(x, /, *more, **named) needs x, which --input does not give.", "--input x=5"),
        ({"name": "Configured", "init": ["config=attn.py:Config(n_head=3)"]}, OptionError, "Config(d_feat, n_head=4, inner=None) needs d_feat, which --init config does not give.", "Config(d_feat=…)"),
        ({"name": "Configured", "init": ["config=attn.py:Config(3, attn.py:Config(4, d=5))"]}, OptionError, "Config(d_feat, n_head=4, inner=None) has no d.", None),
        ({"init": ["d_feat=200", "n_head=n_heads"]}, OptionError, "--init n_head: n_heads is neither a Python value nor the name of a size.", "--init \"n_head='n_heads'\""),
        ({"init": ["d_feat=200", "n_head=5", "dropout=gelu-new"]}, OptionError, "--init dropout: gelu-new is neither a Python value nor the name of a size.", "--init \"dropout='gelu-new'\""),
        ({"init": ["d_feat=200", "n_head=n_Q/d"]}, SizeError, "--init n_head: d in n_Q/d has no size.", "--where d=48, or the name of an axis or argument"),
        ({"init": ["d_feat=200", "n_head=n_K/5"]}, SizeError, "--init n_head: n_K/5 is 9.6, which is not a whole number: n_K is 48.", None),
        ({"init": ["d_feat=200", "n_head=5", "bias=attn.py:Config(act)"]}, OptionError, "--init bias: act is neither a Python value nor the name of a size.", "'act'"),
        ({"init": ["d_feat=200", "n_head=5", "bias={'d_feat': 100}"]}, SizeError, "--init bias says that d_feat is 100, but --init d_feat says that d_feat is 200.", None),
    ],
)  # fmt: skip
def test_arguments_that_are_missing_or_too_much_are_told_before_anything_runs(
    wrong, kind, message, hint
):
    error = refused(**wrong)
    assert type(error) is kind
    said = error.hint and error.hint.replace('"', "")  # values may be in quotes, for the shell
    assert (error.message, said) == (message, hint and hint.replace('"', ""))


def test_torch_is_imported_by_the_users_code_or_not_at_all():
    Path("light.py").write_text("class Attention:\n    def __call__(self, x): return x\n")
    script = """
import sys
from attnscope.code.load.subject import read_subject
from attnscope.code.load.load import load
it = read_subject(load("light.py:Attention"), [], ["x=n:3,d:4"], ["d_feat=2*d"], None, "float32")
assert it.total_bytes() == 48 and it.sizes == {"n": 3, "d": 4, "d_feat": 8}
assert not {"torch", "numpy"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True)


# Building


def test_a_module_is_constructed_and_its_inputs_are_drawn():
    built = made().build()
    assert shapes(built) == {"Q": (6, 32, 200), "K": (6, 48, 200), "V": (6, 48, 200)}
    assert built.callable is built.module
    assert not built.module.training
    assert built.callable(*built.args, **built.kwargs).shape == (6, 32, 200)
    Q = built.kwargs["Q"]
    assert Q.dtype == torch.float32
    assert abs(Q.mean()) < 0.03
    assert abs(Q.std() - 1) < 0.03


def test_the_seed_says_what_is_drawn():
    one, same, other = (made().build(seed=seed) for seed in (3, 3, 4))
    assert torch.equal(one.kwargs["V"], same.kwargs["V"])
    assert torch.equal(one.module.W_Q.weight, same.module.W_Q.weight)
    assert not torch.equal(one.kwargs["V"], other.kwargs["V"])
    assert not torch.equal(one.module.W_Q.weight, other.module.W_Q.weight)


def test_other_sizes_reach_axes_arguments_and_defaults():
    it = made(inputs=[*QKV, "mask=n_Q,n_K@bool"])
    built = it.build({**it.sizes, "n_Q": 33, "d_feat": 210, "n_head": 7, "max_len": 9}, train=True)
    assert shapes(built) == {"Q": (6, 33, 210), "K": (6, 48, 210), "V": (6, 48, 210), "mask": (33, 48)}
    assert built.module.W_Q.weight.shape == (210, 210)
    assert (built.module.n_head, built.module.max_len, built.module.dropout) == (7, 9, 0.1)
    assert built.module.training
    assert it.build().module.max_len == 64


def test_other_sizes_reach_constructions():
    it = made(
        "Configured",
        ["config=attn.py:Config(d_feat=6, inner=attn.py:Config(10, n_head=2))"],
        ["x=n:5,d_feat"],
    )
    assert it.sizes == {"n": 5, "d_feat": 6, "n_head": 2}
    assert it.build().module.config.inner.n_head == 2
    other = it.build({"n_head": 3, "d_feat": 7}).module.config
    assert (other.d_feat, other.n_head, other.inner.n_head, other.inner.d_feat) == (7, 4, 3, 10)


def test_other_sizes_reach_the_defaults_of_a_function():
    it = made("sdpa", [], ["5,", "6,", "V=n:7,", "scale=3"])
    assert it.defaults == {"n_head": 8}
    assert it.build().kwargs.keys() == {"V", "scale"}
    built = it.build({"n_head": 11, "scale": 13})
    assert [tuple(value.shape) for value in built.args] == [(5,), (6,)]
    assert (built.kwargs["n_head"], built.kwargs["scale"]) == (11, 13)


def test_the_size_that_a_default_gives_is_passed_only_when_it_changes():
    it = made("sdpa", [], ["Q=n_head,3", "K=None", "V=5,"])
    assert "n_head" not in it.build(it.sizes).kwargs
    built = it.build({"n_head": 9})
    assert built.kwargs["n_head"] == 9
    assert built.kwargs["Q"].shape == (9, 3)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_floating_point_parameters_and_inputs_are_of_the_dtype(dtype):
    built = made(inputs=[QKV[0], "K=5@float64", QKV[2].replace("n_K", "n_K:4")], dtype=dtype).build()
    kind = getattr(torch, dtype)
    assert built.module.W_Q.weight.dtype == built.kwargs["Q"].dtype == kind
    assert built.kwargs["K"].dtype == torch.float64
    assert built.module.count.dtype == torch.int64
    assert built.module.turn.dtype == torch.complex64


def test_whole_numbers_are_drawn_below_a_number_or_a_size():
    it = made("sdpa", [], ["Q=1000<vocab", "K=1000<3@uint8", "V=vocab:7,"])
    built = it.build()
    assert set(built.kwargs["Q"].tolist()) == set(range(7))
    assert set(built.kwargs["K"].tolist()) == set(range(3))
    assert (built.kwargs["Q"].dtype, built.kwargs["K"].dtype) == (torch.int64, torch.uint8)
    assert set(it.build({"vocab": 2}).kwargs["Q"].tolist()) == {0, 1}


def test_each_row_of_coins_has_heads_and_tails():
    built = made("sdpa", [], ["Q=500,2@bool", "K=100,40@bool", "V=()@bool", "mask=9,1@bool"]).build()
    for name in "QK":
        coins = built.kwargs[name]
        assert coins.any(-1).all()
        assert not coins.all(-1).any()
    assert 0.4 < built.kwargs["K"].float().mean() < 0.6
    assert built.kwargs["V"].shape == ()
    assert built.kwargs["mask"].shape == (9, 1)


def test_files_are_given_as_they_are_until_their_axes_change():
    stored = np.arange(-5, 7).reshape(3, 4)
    np.save("q.npy", stored)
    it = made("sdpa", [], ["Q=n,d@q.npy", "K=@q.npy", "V=n,"])
    assert it.sizes == {"n": 3, "d": 4}
    assert it.axes == {"Q": ("n", "d"), "K": None, "V": ("n",)}
    for built in (it.build(), it.build({"n": 3})):
        assert built.kwargs["Q"].tolist() == built.kwargs["K"].tolist() == stored.tolist()
    other = it.build({"n": 100}).kwargs
    assert (other["Q"].shape, other["Q"].dtype) == ((100, 4), torch.int64)
    assert set(other["Q"].flatten().tolist()) == set(range(-5, 7))
    assert other["K"].tolist() == stored.tolist()


def test_tuples_are_built_of_their_members():
    it = made("sdpa", [], ["Q=(n:3,d:4; None; (d; n@bool))", "K=5", "V='x'"])
    assert it.axes == {"Q[0]": ("n", "d"), "Q[2][0]": ("d",), "Q[2][1]": ("n",)}
    first, nothing, (third, fourth) = it.build().kwargs["Q"]
    assert (first.shape, nothing, third.shape, fourth.dtype) == ((3, 4), None, (4,), torch.bool)
    assert (it.build().kwargs["K"], it.build().kwargs["V"]) == (5, "x")


def test_a_value_is_not_shared_between_runs():
    it = made("sdpa", [], ["Q=[1, 2]", "K=5", "V=6"])
    it.build().kwargs["Q"].append(3)
    assert it.build().kwargs["Q"] == [1, 2]


def test_the_bytes_of_the_inputs_are_known_before_they_are_drawn():
    np.save("v.npy", np.zeros((3, 5)))
    it = made(
        "sdpa", [], ["Q=n:3,d:4", "K=(n@bool; d@int32<5)", "V=n,5@v.npy", "mask=None"], dtype="float16"
    )
    assert it.total_bytes() == 2 * 12 + 3 + 16 + 8 * 15


def test_everything_is_on_the_device():
    built = made().build(device="meta")
    assert built.module.W_Q.weight.is_meta
    assert built.module.count.is_meta
    assert built.kwargs["Q"].is_meta
    assert made("sdpa", [], ["5,6@bool", "3<7", "V=4"]).build(device="meta").args[0].is_meta


# What is called


def test_a_method_is_called_where_one_is_named():
    for it in (
        made(inputs=["x=3,d_feat"], call="project"),
        made("MultiHeadedAttention.project", inputs=["x=3,d_feat"]),
    ):
        built = it.build()
        assert built.callable == built.module.project
        assert built.callable(**built.kwargs).shape == (3, 200)
        assert it.callee.function is type(built.module).project


def test_static_and_class_methods_are_called_as_they_are():
    for it in (
        made("MultiHeadedAttention.scale", [], ["d_head=4"]),
        made(inputs=["d_head=4"], call="scale"),
    ):
        built = it.build()
        assert built.callable(**built.kwargs) == 0.5
        assert isfunction(it.callee.function)
    built = made("Empty.of", [], ["n_head=3"]).build()
    assert built.callable(**built.kwargs)[1] == 3
    built = made("Empty", [], ["n_head=3"], call="of").build()
    assert built.callable(**built.kwargs)[1] == 3


def test_classes_without_torch_and_functions_are_called():
    built = made("Plain", ["n_head=7"], ["3,4", "5,", "mode='x'"]).build()
    x, more, named = built.callable(*built.args, **built.kwargs)
    assert (x.shape, more[0].shape, named, built.module) == ((3, 4), (5,), {"mode": "x"}, None)
    it = made("Plain", [], ["3,4", "5,"])
    assert it.axes == {"x": ("n", "d_feat"), "more[0]": (5,)}
    assert it.callee.function is it.loaded.object
    built = made("Forward", [], ["x=3,4"]).build()
    assert built.callable(**built.kwargs).shape == (3, 4)
    it = made("sdpa", [], ["3,", "4,", "5,"])
    assert it.build().callable is it.callee.function is it.loaded.object


def test_objects_that_can_be_called_are_called():
    built = made("instance", [], ["3,4"]).build()
    assert built.callable(*built.args)[0].shape == (3, 4)
    it = made("module", [], ["input=3,4"], dtype="float64")
    built = it.build()
    assert built.callable(**built.kwargs).shape == (3, 5)
    assert built.callable(**built.kwargs).dtype == torch.float64
    assert it.loaded.object.weight.dtype == torch.float32


def test_a_constructor_that_raises_is_told_with_the_users_line():
    with pytest.raises(SourceError) as caught:
        made(init=["d_feat=200", "n_head=7"]).build()
    assert caught.value.message == (
        "MultiHeadedAttention(d_feat=200, n_head=7) raises AssertionError"
        " (line 9 of attn.py: assert d_feat % n_head == 0)."
    )
    assert isinstance(caught.value.__cause__, AssertionError)
    with pytest.raises(
        SourceError, match=r"^Fails\(n_head=3\) raises TypeError: .* \(line 54 of attn.py: self.scale = "
    ) as caught:
        made("Fails", ["n_head=3"], ["x=4,"]).build()
    assert "\n" not in caught.value.message


def test_with_other_sizes_a_constructors_own_exception_is_raised():
    with pytest.raises(AssertionError):
        made().build({"n_head": 7})


def test_a_default_whose_repr_fails_does_not_hide_the_mistake():
    from inspect import signature

    from attnscope.code.load.signatures import check_arguments

    class Speechless:
        def __repr__(self):
            raise ValueError("no words")

    def attend(x, d=Speechless(), n=3):  # noqa: B008
        return x

    with pytest.raises(OptionError, match=r"attend\(x, d=…, n=3\) needs x"):
        check_arguments("attend", signature(attend), 0, [], "--input")
    check_arguments("attend", signature(attend), 0, ["x"], "--input")
