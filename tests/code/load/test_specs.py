"""What is written on the command line is read as a user means it, or refused in one clear line."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from attnscope.base.errors import AttnscopeError, FileError, OptionError, SizeError
from attnscope.code.load.agreement import read_where
from attnscope.code.load.construct import make_value
from attnscope.code.load.specs import (
    AxisSpec,
    Computed,
    Construction,
    InputTuple,
    Plain,
    TensorSpec,
    nested,
    numbers_in,
    read_init,
    read_input,
)

pytestmark = pytest.mark.usefixtures("on_command_line")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    np.save("q.npy", np.zeros((3, 4)))
    np.savez("both.npz", Q=np.zeros((3, 4)), K=np.zeros((5, 4)))
    Path("conf.py").write_text("class Config:\n    def __init__(self, *args, **kwargs): pass\n")
    yield
    sys.modules.pop("conf", None)


def refused(read, text) -> AttnscopeError:
    with pytest.raises(AttnscopeError) as caught:
        read(text)
    assert "\n" not in caught.value.message
    return caught.value


N, D = AxisSpec("n", None), AxisSpec("d", 4)


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        # tensors
        ("Q=n_batch:128,n_Q:32,d_feat", "Q", TensorSpec((AxisSpec("n_batch", 128), AxisSpec("n_Q", 32), AxisSpec("d_feat", None)))),
        ("n,d:4", None, TensorSpec((N, D))),
        ("Q = n , d : 4 ", "Q", TensorSpec((N, D))),
        ("5,6", None, TensorSpec((AxisSpec(None, 5), AxisSpec(None, 6)))),
        ("5", None, TensorSpec((AxisSpec(None, 5),))),
        ("x=5,", "x", TensorSpec((AxisSpec(None, 5),))),
        ("x=5,6", "x", TensorSpec((AxisSpec(None, 5), AxisSpec(None, 6)))),
        ("x=n", "x", TensorSpec((N,))),
        ("x=n,d:4@float16", "x", TensorSpec((N, D), "float16")),
        ("mask=n,n@bool", "mask", TensorSpec((N, N), "bool")),
        ("x=()@float32", "x", TensorSpec((), "float32")),
        ("x=( )@bfloat16", "x", TensorSpec((), "bfloat16")),
        ("ids=n,d:4<vocab", "ids", TensorSpec((N, D), "int64", "vocab")),
        ("ids=n<1000", "ids", TensorSpec((N,), "int64", 1000)),
        ("ids=n<256@uint8", "ids", TensorSpec((N,), "uint8", 256)),
        ("ids=n@int32<vocab", "ids", TensorSpec((N,), "int32", "vocab")),
        ("ids=()<7", "ids", TensorSpec((), "int64", 7)),
        # tuples
        ("cos_sin=(n,d:4; n)", "cos_sin", InputTuple((TensorSpec((N, D)), TensorSpec((N,))))),
        ("one=(n;)", "one", InputTuple((TensorSpec((N,)),))),
        ("x=(n@bool; None; 5)", "x", InputTuple((TensorSpec((N,), "bool"), Plain(None), Plain(5)))),
        ("x=((n;d:4);(n;))", "x", InputTuple((InputTuple((TensorSpec((N,)), TensorSpec((D,)))), InputTuple((TensorSpec((N,)),))))),
        # complex numbers
        ("turns=n,d:4@complex64", "turns", TensorSpec((N, D), "complex64")),
        ("z=()@complex128", "z", TensorSpec((), "complex128")),
        # values
        ("mask=None", "mask", Plain(None)),
        ("None", None, Plain(None)),
        ("causal=True", "causal", Plain(True)),
        ("n_head=5", "n_head", Plain(5)),
        ("scale=0.5", "scale", Plain(0.5)),
        ("shift=-3", "shift", Plain(-3)),
        ("mode='a,b'", "mode", Plain("a,b")),
        ("shape=(2,3)", "shape", Plain((2, 3))),
        ("past=()", "past", Plain(())),
        ("sizes=[2, 3]", "sizes", Plain([2, 3])),
    ],
)  # fmt: skip
def test_inputs_are_read_as_they_are_meant(text, name, value):
    read_name, read = read_input(text)
    assert (read_name, read) == (name, value)
    assert not isinstance(value, Plain) or type(read.value) is type(value.value)


@pytest.mark.parametrize(
    ("text", "kind", "message", "hint"),
    [
        ("Q=n,,d", OptionError, "--input Q: nothing is not an axis.", "names, sizes or both, separated by commas: --input Q=n:2,d:3"),
        ("Q=n d", OptionError, "--input Q: n d is not an axis.", "--input Q=n,d"),
        ("Q=2x3", OptionError, "--input Q: 2x3 is not an axis.", "--input Q=2,3, or with names --input Q=n:2,d:3"),
        ("2 x 3 x 4", OptionError, "--input input: 2 x 3 x 4 is not an axis.", "--input 2,3,4, or with names --input n_head:2,n:3,d:4"),
        ("Q=n:2x3", OptionError, "--input Q: n:2x3 is not an axis.", "--input Q=n:2,3"),
        ("Q=gelu?", OptionError, "--input Q: gelu? is not an axis.", "names, sizes or both, separated by commas: --input Q=n:2,d:3; a string is quoted: --input \"Q='gelu?'\""),
        ("Q=n:3.5", OptionError, "--input Q: n:3.5 is not an axis.", "names, sizes or both"),
        ("Q=n:d", OptionError, "--input Q: n:d is not an axis.", "names, sizes or both"),
        ("Q=n*", OptionError, "--input Q: n* is not an axis.", "names, sizes or both"),
        ("Q=n:0", SizeError, "n is 0, but a size is a whole number from 1 up.", None),
        ("Q=n,-4", SizeError, "axis 1 of Q is -4, but a size is a whole number from 1 up.", None),
        ("Q=n:9223372036854775808", SizeError, "n has 19 digits, but a size fits into 64 bits.", None),
        ("Q=", OptionError, "--input Q: nothing names no axes.", "--input Q=n:48,d:64 for a matrix, --input Q=()@float32 for a scalar"),
        ("Q=@float32", OptionError, "--input Q: @float32 names no axes.", "--input Q=n:48"),
        ("Q=n@flaot32", OptionError, "--input Q: flaot32 is neither a dtype nor a file.", "--input Q=n@float32, or a file that ends in .npy"),
        ("Q=n@", OptionError, "--input Q: nothing is neither a dtype nor a file.", "--input Q=n@float32"),
        ("Q=n@none.npy", FileError, "there is no file none.npy.", None),
        ("Q=n,d@q.npy<5", FileError, "there is no file q.npy<5.", None),
        ("Q=n,d<5@q.npy", OptionError, "--input Q: the values come from q.npy, and are not drawn below 5.", "--input Q=n,d@q.npy"),
        ("ids=n@int64", OptionError, "--input ids: random values of int64 need an upper bound.", "--input ids=n@int64<100"),
        ("ids=n@float16<5", OptionError, "--input ids: float16 is not an integer dtype, so its values cannot be drawn below 5.", "--input ids=n<5, or with @ one of uint8"),
        ("ids=n@bool<2", OptionError, "--input ids: bool is not an integer dtype, so its values cannot be drawn below 2.", "--input ids=n<2"),
        ("z=n@complex64<5", OptionError, "--input z: complex64 is not an integer dtype, so its values cannot be drawn below 5.", "--input z=n<5"),
        ("z=n@complex", OptionError, "--input z: complex is neither a dtype nor a file.", "--input z=n@complex64, or a file"),
        ("ids=n<257@uint8", OptionError, "--input ids: not all whole numbers below 257 fit into uint8.", "--input ids=n@int64<257"),
        ("ids=n<", OptionError, "--input ids: nothing is neither a whole number nor the name of a size.", "--input ids=n<100"),
        ("ids=n<0", SizeError, "the upper bound of ids is 0, but a size is a whole number from 1 up.", None),
        ("Q=(n,d)", OptionError, "--input Q: (n,d) is neither a tensor's axes, which need no parentheses, nor a tuple", '--input Q=n,d, or --input "Q=(n,d;)"'),
        ("Q=(n,d", OptionError, "--input Q: (n,d is neither", "--input Q=n,d"),
        ("Q=(n; d:0)", SizeError, "d is 0", None),
        ("Q=(n; n d)", OptionError, "--input Q[1]: n d is not an axis.", "n,d"),
    ],
)  # fmt: skip
def test_inputs_that_cannot_be_read_are_told(text, kind, message, hint):
    error = refused(read_input, text)
    assert type(error) is kind
    assert error.message.startswith(message)
    if hint is None:
        assert error.hint is None
    else:  # values may be in quotes, for the shell
        assert error.hint.replace('"', "").startswith(hint.replace('"', ""))


@pytest.mark.parametrize(
    ("text", "axes", "shape"),
    [
        ("Q=@q.npy", None, (3, 4)),
        ("Q=n,d:4@q.npy", (N, D), (3, 4)),
        ("Q=@both.npz", None, (3, 4)),
        ("Q=@both.npz:K", None, (5, 4)),
        ("Q=n,4@both.npz:K", (N, AxisSpec(None, 4)), (5, 4)),
    ],
)
def test_tensors_are_found_in_files(text, axes, shape):
    _, tensor = read_input(text)
    assert tensor.axes == axes
    assert tensor.file.shape == shape


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_tensors_are_read_from_files(dtype):
    z = torch.arange(6).view(2, 3).to(dtype) * (1 - 2j)
    np.save("z.npy", z.numpy())
    np.savez("z.npz", z=z.numpy())
    torch.save({"z": z.mT.contiguous().mT, "turned": z.conj()}, "z.pt")
    names = ["z.npy", "z.npz", "z.pt", "z.pt:turned"]
    if dtype == torch.complex64:
        save_file({"z": z}, "z.safetensors")
        names.append("z.safetensors")
    for name in names:
        file = read_input(f"z=@{name}")[1].file
        assert (file.shape, file.dtype) == ((2, 3), str(dtype).removeprefix("torch."))
        assert torch.equal(file.load(), z.conj() if "turned" in name else z)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("n=5", 5), ("p=0.0", 0.0), ("whole=2.0", 2.0), ("act='gelu'", "gelu"), ("bias=False", False),
        ("n=None", None), ("dims=[2, 3]", [2, 3]), ("x=-1", -1), ("text='a:b(c)'", "a:b(c)"),     ],
)  # fmt: skip
def test_values_are_python_literals(text, value):
    name, read = read_init(text)
    assert name == text.split("=")[0]
    assert read == Plain(value)
    assert type(read.value) is type(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("n=2*d", (2 * 5)),
        ("n=(d + e)//2", 6),
        ("n=2*d-1", 9),
        ("n=3*4", 12),
        ("n={'a': d, 'b': [e, 4], 5: (d*e, 'x')}", {"a": 5, "b": [7, 4], 5: (35, "x")}),
        ("n=[conf.py:Config, d]", None),
        ("n=conf.py:Config(d, [e], size=d*e)", None),
        ("n=builtins:dict(d=2*d, each=[e, {'e': e - 1}], text='d')", {"d": 10, "each": [7, {"e": 6}], "text": "d"}),
    ],
)  # fmt: skip
def test_values_may_be_computed_from_sizes(text, value):
    name, read = read_init(text)
    computed = [each for _, each in nested(name, read) if isinstance(each, Computed)]
    assert {word for each in computed for word in each.value.words} <= {"d", "e"}
    made = make_value(read, name, {"d": 5, "e": 7}, wrap_errors=True)
    assert value is None or (made, type(made)) == (value, type(value))


def test_the_items_of_a_dictionary_are_sizes():
    _, read = read_init("config={'d': 5, 'inner': [{'e': 7, 'on': True}], 'f': 0, 'x y': 3, 4: 4}")
    assert dict(numbers_in("config", read)) == {"d": 5, "e": 7}
    original = make_value(read, "config", {}, wrap_errors=True)
    assert original == {"d": 5, "inner": [{"e": 7, "on": True}], "f": 0, "x y": 3, 4: 4}
    other = make_value(read, "config", {"d": 11, "e": 13}, wrap_errors=True)
    assert other == {"d": 11, "inner": [{"e": 13, "on": True}], "f": 0, "x y": 3, 4: 4}


def test_constructions_have_literals_and_constructions_as_arguments():
    name, made = read_init(
        "config=conf.py:Config(7, text='a, (b', inner=conf:Config(n_head=5,), act=math:sqrt)"
    )
    assert name == "config"
    assert made.target.name == "Config"
    (_, seven), text, (inner_name, inner), (_, act) = made.arguments
    assert (seven, text, inner_name) == (Plain(7), ("text", Plain("a, (b")), "inner")
    assert isinstance(inner, Construction)
    assert inner.arguments == (("n_head", Plain(5)),)
    assert act.target.name == "sqrt"
    assert act.arguments is None


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("act=gelu.new", "--init act: gelu.new is not a Python value.", "--init \"act='gelu.new'\""),
        ("bias=false", "--init bias: false is not a Python value.", "--init bias=False"),
        ("n=3+", "--init n: 3+ is not a Python value.", "--init n=VALUE"),
        ("n=", "--init n: nothing is not a Python value.", "--init n=VALUE"),
        ("5", "--init 5 does not name an argument.", "--init NAME=5"),
        ("config=conf.py:Config(act=x.y)", "--init config: x.y is not a Python value.", "act='x.y'"),
        ("config=conf.py:Config(x.y)", "--init config: x.y is not a Python value.", "'x.y'"),
        ('config={"causal": true}', "--init config: true is not a Python value.", "causal=True"),
        (
            "config={n_head: 4, d}",
            "--init config: n_head: 4 is not an item of a dictionary.",
            '{"NAME": VALUE}',
        ),
        ('config={"d": d, e}', "--init config: e is not an item of a dictionary.", '{"NAME": VALUE}'),
        ("config=conf.py:Confg(n=5)", "conf.py has no Confg: it defines Config.", "conf.py:Config"),
    ],
)
def test_values_that_cannot_be_read_are_told(text, message, hint):
    error = refused(read_init, text)
    assert (error.message, error.hint) == (message, hint)


@pytest.mark.parametrize(
    ("text", "sizes", "found"),
    [
        ("d_feat=n_head*d_head", {"n_head": 5, "d_head": 7}, ("d_feat", 35)),
        ("d_feat = n_head · d_head", {"n_head": 5, "d_feat": 35}, ("d_head", 7)),
        ("d_head=d_feat/n_head", {"n_head": 5, "d_feat": 35}, ("d_head", 7)),
        ("d_head=d_feat/n_head", {"n_head": 5, "d_head": 7}, ("d_feat", 35)),
        ("d_head=d_feat/n_head", {"d_head": 7, "d_feat": 35}, ("n_head", 5)),
        ("d_qkv=3*d_feat", {"d_feat": 11}, ("d_qkv", 33)),
        ("d=a*4/b/3", {"a": 9, "d": 2}, ("b", 6)),
        ("d=a*b", {"a": 3}, None),
        ("d=a*a", {"d": 9}, None),
        ("d=a*b", {"a": 3, "b": 5, "d": 15}, None),
        ("P=2*L-1", {"L": 7}, ("P", 13)),
        ("P=2*L-1", {"P": 13}, ("L", 7)),
        ("n_K=n_past+n_new", {"n_K": 23, "n_past": 20}, ("n_new", 3)),
        ("n_new=n_K-n_past", {"n_new": 3, "n_past": 20}, ("n_K", 23)),
        ("n=h*w+1", {"n": 25, "h": 4}, ("w", 6)),
        ("n=N/window+1", {"n": 5, "N": 16}, ("window", 4)),
        ("d=n_head*(d_rot+d_plain)", {"n_head": 3, "d_rot": 4, "d_plain": 6}, ("d", 30)),
        ("d=n_head*(d_rot+d_plain)", {"n_head": 3, "d": 30, "d_plain": 6}, ("d_rot", 4)),
        ("d=n_head*(d_rot+d_plain)", {"d": 30, "d_rot": 4, "d_plain": 6}, None),  # n_head occurs twice
    ],
)
def test_an_equation_gives_the_size_of_the_one_name_that_has_none(text, sizes, found):
    assert read_where(text).solve(sizes) == found


@pytest.mark.parametrize(
    ("text", "sizes", "message"),
    [
        ("d=a*b", {"a": 5, "b": 41, "d": 200}, "--where d=a*b does not hold: d is 200, and a*b is 5*41 = 205."),
        ("d=a/b", {"a": 200, "b": 7, "d": 28}, "--where d=a/b does not hold: d is 28, and a/b is 200/7 = 28.57."),
        ("d=a", {"a": 5, "d": 7}, "--where d=a does not hold: d is 7, and a is 5."),
        ("d=a/b", {"a": 200, "b": 7}, "--where d=a/b: a is 200, b is 7, and so d would be 28.57, which is not a whole number."),
        ("d=a*b", {"d": 200, "b": 7}, "--where d=a*b: d is 200, b is 7, and so a would be 28.57, which is not a whole number."),
        ("d=a*b", {"a": 2**40, "b": 2**40}, "d has 25 digits, but a size fits into 64 bits."),
    ],
)  # fmt: skip
def test_an_equation_that_sizes_contradict_is_told(text, sizes, message):
    with pytest.raises(SizeError) as caught:
        read_where(text).solve(sizes)
    assert caught.value.message == message


@pytest.mark.parametrize(
    "text", ["d_feat", "d=", "d=a+", "d=(a*b", "d=a**b", "d=a*-2", "5=a", "d=a*2.5", "d==a", "d=a="]
)
def test_what_is_no_equation_is_told(text):
    error = refused(read_where, text)
    assert type(error) is OptionError
    form = "NAME=EXPRESSION, with names and numbers joined by * / + -"
    assert error.message == f"--where {text} is not of the form {form}."
    assert error.hint == '--where "d_feat=n_head*d_head", or --where "n_distance=2*n-1"'
