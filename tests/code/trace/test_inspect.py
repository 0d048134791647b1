"""`attnscope.inspect`: what `attnscope trace` does, in Python, and for modules that exist already."""

import json
import os
import random
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import attnscope
from attnscope.base.errors import AttnscopeError, Interrupted, OptionError, SizeError
from attnscope.cli.app import main

CODE = Path(__file__).parent / "code"
TUTORIAL = f"{CODE}/tutorial_mha.py:MultiHeadedAttention"
OF_TUTORIAL = {
    "init": {"d_feat": 20, "n_head": 5},
    "inputs": {"Q": "n_batch:3,n_Q:8,d_feat", "K": "n_batch,n_K:8,d_feat", "V": "n_batch,n_K,d_feat"},
}

MINE = """
import os, sys
import torch
from torch import nn


def attend(Q, K, V, mask=None):
    scores = Q @ K.mT / Q.size(-1) ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -1e9)
    attention = scores.softmax(-1)
    x = attention @ V
    return x


def looped(x, n_turn=3):
    for i in range(n_turn):
        y = x + i
    return y


def fails(x, w):
    y = x @ w
    return y


def leaves(x):
    y = x * 2
    sys.exit("that is all")


def leaves_at_once(x):
    y = x * 2
    os._exit(7)


def is_interrupted(x):
    y = x * 2
    raise KeyboardInterrupt


class Block(nn.Module):
    def __init__(self, d=4):
        super().__init__()
        self.lin = nn.Linear(d, d)
        self.drop = nn.Dropout(0.5)
        self.norm = nn.BatchNorm1d(d)
        self.seen = []
        self.last = None

    def forward(self, x):
        y = self.drop(self.lin(x))
        z = self.norm(y.flatten(0, 1)).view(x.shape)
        self.seen.append(y)
        self.last = z
        return z

    def half(self, x):
        h = self.lin(x) / 2
        return h
"""


@pytest.fixture
def mine(module_of):
    return module_of(MINE)


def dims(trace):
    return {step.name: " ".join(step.dims) for step in trace.steps if step.dims is not None}


@pytest.fixture(scope="module")
def tutorial():
    """The class that divides by √d_feat, as somebody has it in a notebook."""
    sys.path.insert(0, str(CODE))
    try:
        from tutorial_mha import MultiHeadedAttention
    finally:
        sys.path.remove(str(CODE))
    torch.manual_seed(0)
    return MultiHeadedAttention(d_feat=20, n_head=5)


def assert_named(trace):
    """Check that nothing is found, and that no axis is a number."""
    assert not trace.findings
    assert trace.crash is None
    assert not [step for step in trace.steps if any(axis.isdigit() for axis in step.dims)]


# As the command.


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "options", "flags"),
    [
        ("attend", {"inputs": ["Q=n_batch:2,n_Q:3,d:4", "K=n_batch,n_K:5,d", "V=n_batch,n_K,d_V:6"]}, []),
        ("attend", {"inputs": ["n:3,d:4"] * 3, "stats": True, "seed": 5, "source": True}, ["--stats", "--seed", "5", "--source"]),
        ("attend", {"inputs": ["n:3,d:4"] * 3, "device": "meta", "subexpressions": True}, ["--device", "meta", "--subexpressions"]),
        ("looped", {"inputs": ["x=n:3"], "keep": ["y"]}, []),
        ("fails", {"inputs": ["x=n:3,d:4", "w=e:5,f:6"]}, []),
        ("Block", {"init": ["d=4"], "inputs": ["x=n_batch:2,n:3,d"], "depth": 0, "train": True, "dtype": "float64"}, ["--depth", "0", "--train", "--dtype", "float64"]),
        ("Block", {"init": ["d=4"], "inputs": ["x=n:3,d"], "call": "half", "follow": ["torch.nn.modules.linear"]}, ["--call", "half", "--follow", "torch.nn.modules.linear"]),
        ("leaves", {"inputs": ["x=n:3"]}, []),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("with_torch")
def test_it_returns_what_the_command_prints(mine, capsys, name, options, flags):
    target = f"{mine.__file__}:{name}"
    words = [word for text in options.get("init", []) for word in ("--init", text)]
    words += [word for text in options["inputs"] for word in ("--input", text)]
    main(["trace", target, *words, *flags, "--format", "json"])
    printed = json.loads(capsys.readouterr().out)
    assert json.loads(json.dumps(attnscope.inspect(target, **options).to_dict())) == printed


def test_a_class_is_as_good_as_its_name(mine):
    named = attnscope.inspect(f"{mine.__file__}:Block", init=["d=4"], inputs=["x=n_batch:2,n:3,d"])
    itself = attnscope.inspect(mine.Block, init={"d": 4}, inputs={"x": "n_batch:2,n:3,d"})
    assert itself.title == "Block"
    assert itself.to_dict() | {"title": ""} == named.to_dict() | {"title": ""}


# A module that exists.


def test_a_live_module_has_the_finding_and_the_dims_that_the_command_prints(tutorial):
    x = torch.randn(3, 8, 20)
    live, named = attnscope.inspect(tutorial, x, x, x), attnscope.inspect(TUTORIAL, **OF_TUTORIAL)
    assert (
        "1/√d_feat = 1/√20; but their product contracts over d_feat/n_head = 4"
        in live.findings[0].message
    )
    assert live.findings == named.findings
    assert [step.dims for step in live.steps] == [step.dims for step in named.steps]
    assert live.sizes == named.sizes


def test_the_axes_of_arguments_can_be_named(tutorial):
    x = torch.randn(3, 8, 20)
    axes = {"Q": "B L D", "K": ["B", "S", "D"], "V": "B S D"}
    trace = attnscope.inspect(tutorial, x, K=x, V=x, axes=axes)
    assert dims(trace)["scores"] == "B n_head L S"
    assert dims(trace)["x"] == "B L D"
    assert trace.sizes == {"B": 3, "L": 8, "D": 20, "S": 8, "n_head": 5}


def test_names_of_one_arguments_axes_hold_for_the_others_too(tutorial):
    x = torch.randn(3, 8, 20)
    trace = attnscope.inspect(tutorial, x, x, x, axes={"Q": "B L D"})
    found = dims(trace)
    assert (found["Q"], found["K"], found["V"]) == ("B L D", "B n_K D", "B n_K D")
    assert found["scores"] == "B n_head L n_K"
    [finding] = trace.findings
    assert "1/√D = 1/√20; but their product contracts over D/n_head = 4" in finding.message


def test_a_name_of_another_size_is_not_taken_over(mine):
    Q, K, V = torch.randn(2, 3, 4), torch.randn(2, 5, 4), torch.randn(2, 5, 6)
    trace = attnscope.inspect(mine.attend, Q, K, V, axes={"K": "B S D"})
    assert [dims(trace)[name] for name in ("Q", "K", "V", "scores")] == [
        "B n_Q D",
        "B S D",
        "B S d_V",
        "B n_Q S",
    ]


def test_the_values_are_those_of_the_call(tutorial):
    x = torch.randn(3, 8, 20)
    tutorial.eval()
    trace = attnscope.inspect(tutorial, x, x, x, keep=["x"])
    assert torch.equal(trace["x"].tensor, tutorial(x, x, x)["x"])
    assert trace["Q"].tensor is None


def test_a_live_function_with_tensors_has_dims_as_the_command_has(mine):
    Q, K, V = torch.randn(2, 3, 4), torch.randn(2, 5, 4), torch.randn(2, 5, 6)
    trace = attnscope.inspect(mine.attend, Q, K, V, mask=torch.ones(3, 5, dtype=torch.bool))
    found = dims(trace)
    assert found["scores"] == "n_batch n_Q n_K"
    assert (found["mask"], found["x"]) == ("n_Q n_K", "n_batch n_Q d_V")


def test_equal_lengths_that_nobody_named_are_no_finding(module_of):
    added = module_of("def target(q, k):\n    y = q + k\n    return y\n").target
    x = torch.randn(2, 3, 4)
    assert attnscope.inspect(added, x, x).findings == []
    named = attnscope.inspect(added, x, x, axes={"q": "B L D", "k": "B S D"})
    assert "only because" in named.findings[0].message


def test_a_bound_method_or_a_named_one_of_a_live_module(mine):
    block, x = mine.Block(), torch.randn(2, 3, 4)
    assert dims(attnscope.inspect(block.half, x))["h"] == "n_batch n d_feat"
    assert dims(attnscope.inspect(block, x, call="half"))["h"] == "n_batch n d_feat"


def test_equations_name_what_a_live_module_splits(tutorial):
    x = torch.randn(3, 8, 20)
    trace = attnscope.inspect(tutorial, x, x, x, where=["d_feat=n_head*d_head"])
    assert dims(trace)["Q_split"] == "n_batch n_head n_Q d_head"
    assert "contracts over d_head = 4," in trace.findings[0].message


@pytest.mark.sweep
@pytest.mark.usefixtures("with_torch")
def test_one_tensor_given_thrice_is_one_in_other_sizes_too():
    """This module asks whether `query is key`, and goes another way."""
    mha, x = torch.nn.MultiheadAttention(16, 4, batch_first=True), torch.randn(2, 7, 16)
    trace = attnscope.inspect(mha, x, x, x, depth=0)
    assert trace.steps[-1].dims == ("n_batch", "n_Q", "embed_dim")
    assert [(each.text, each.required) for each in trace.conditions] == [("n_Q = n_K", False)]


@pytest.mark.parametrize("train", [True, False])
def test_a_live_module_stays_as_it_is(mine, train):
    block, x = mine.Block().train(train), torch.randn(2, 3, 4)
    block(x).sum().backward()  # `last` and `seen` have gradients, which nothing copies
    block.lin.register_forward_hook(lambda *args: None)
    state = {name: value.clone() for name, value in block.state_dict().items()}
    grads = [each.grad.clone() for each in block.parameters()]
    weights, attributes, last = list(block.parameters()), list(vars(block)), block.last
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    drawn = [random.random(), np.random.rand(), torch.rand(1)]
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    attnscope.inspect(block, x)
    with pytest.raises(AttnscopeError):
        attnscope.inspect(block, x, follow=["nowhere_at_all"])
    assert [random.random(), np.random.rand(), torch.rand(1)] == drawn
    assert block.training is block.drop.training is train
    assert all(torch.equal(value, state[name]) for name, value in block.state_dict().items())
    assert all(map(torch.equal, grads, [each.grad for each in block.parameters()]))
    assert all(one is other for one, other in zip(weights, block.parameters(), strict=True))
    assert (list(vars(block)), len(block.seen), len(block.lin._forward_hooks)) == (attributes, 1, 1)
    assert block.last is last


def test_what_does_not_fit_a_live_module_is_told(mine):
    block, x = mine.Block(), torch.randn(2, 3, 4)
    with pytest.raises(OptionError, match="2 names for the 3 axes of x"):
        attnscope.inspect(block, x, axes={"x": "B L"})
    with pytest.raises(OptionError, match="no tensor y; it has x"):
        attnscope.inspect(block, x, axes={"y": "B L"})
    with pytest.raises(SizeError, match="B"):
        attnscope.inspect(block, x, axes={"x": "B B D"})
    with pytest.raises(OptionError, match="inputs does not apply"):
        attnscope.inspect(block, x, inputs=["x=3"])
    with pytest.raises(OptionError, match="dtype does not apply"):
        attnscope.inspect(block, x, dtype="float64")
    with pytest.raises(OptionError, match="specifications"):
        attnscope.inspect(mine.Block, x)
    with pytest.raises(OptionError, match="axes does not apply"):
        attnscope.inspect(mine.Block, inputs=["x=n:2,3,4"], axes={"x": "n 3 4"})
    with pytest.raises(OptionError, match="takes 1 positional argument, but gets 2"):
        attnscope.inspect(block, x, x)


# How the code ends.


def test_code_that_fails_has_a_crash_and_what_was_traced(mine):
    trace = attnscope.inspect(mine.fails, torch.ones(3, 4), torch.ones(5, 6))
    assert "x @ w" in trace.crash.expression
    assert [step.name for step in trace.steps] == ["x", "w"]


def test_code_that_leaves_python_says_how(mine):
    leave = os._exit
    trace = attnscope.inspect(mine.leaves, torch.ones(3))
    assert (trace.exit.status, trace.exit.text) == (1, "that is all")
    assert attnscope.inspect(mine.leaves_at_once, torch.ones(3)).exit.status == 7
    assert attnscope.inspect(mine.looped, torch.ones(3)).exit is None
    assert os._exit is leave


def test_an_interrupt_is_raised_with_what_was_traced(mine):
    with pytest.raises(Interrupted) as raised:
        attnscope.inspect(mine.is_interrupted, torch.ones(3))
    assert [step.name for step in raised.value.trace.steps] == ["x", "y"]


def test_of_a_loop_the_last_turns_tensor_is_kept(mine):
    trace = attnscope.inspect(mine.looped, torch.zeros(2), keep=True)
    assert trace["y"].times == 3
    assert torch.equal(trace["y"].tensor, torch.full((2,), 2.0))
    assert len(attnscope.inspect(mine.looped, torch.zeros(2), stats=True).steps) == 4


def test_progress_is_told_what_takes_a_while(mine):
    told = []
    attnscope.inspect(mine.looped, torch.zeros(2), progress=told.append)
    assert told[:5] == [
        *("importing looped …", None),
        *("running looped …", None),
        "running looped with other sizes …",
    ]
    assert told[5:7] == [f"running looped with other sizes: {n} …" for n in (1, 2)]
    assert told[-1] is None


def test_values_of_meta_tensors_are_refused(mine):
    with pytest.raises(OptionError, match="meta tensors have none"):
        attnscope.inspect(mine.looped, torch.zeros(2), device="meta", stats=True)
    trace = attnscope.inspect(mine.looped, torch.zeros(2), device="meta")
    assert trace.device == "meta"


@pytest.mark.few(1)
@pytest.mark.parametrize(("n", "width", "heads"), [(7, 48, 4), (4, 24, 2), (6, 48, 8)])
@pytest.mark.parametrize("turns", ["n,d_pair@complex64", "n,d_pair@turns.pt"])
def test_complex_rotary_positions_are_an_input(n, width, heads, turns, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pairs = width // heads // 2
    torch.save(torch.polar(torch.ones(n, pairs), torch.rand(n, pairs)), "turns.pt")
    trace = attnscope.inspect(
        f"{CODE}/rotary_complex.py:RotaryAttention",
        init={"width": width, "heads": heads},
        inputs={"x": f"b:2,n:{n},width", "freqs_cis": turns},
        where=["width=2*heads*d_pair"],
    )
    assert_named(trace)
    assert dims(trace)["turned"] == "b n heads d_pair"
    assert dims(trace)["scores"] == "b heads n n"
    assert trace["turned"].dtype == "complex64"


@pytest.mark.few(1)
@pytest.mark.parametrize(("width", "heads", "kv_heads"), [(48, 6, 2), (36, 6, 2), (96, 4, 2)])
def test_heads_of_pairs_stay_even_beside_groups_of_heads(width, heads, kv_heads):
    """An even width with an even number of heads has odd heads: what is needed is a multiple of 2·heads."""
    trace = attnscope.inspect(
        f"{CODE}/rotary_complex.py:GroupedRotaryAttention",
        init={"width": width, "heads": heads, "kv_heads": kv_heads},
        inputs={"x": "b:3,n:10,width"},
    )
    assert dims(trace)["rate"] == "width/heads/2"
    assert dims(trace)["k"] == "b n kv_heads width/heads"
    assert dims(trace)["shared"] == "b n heads width/heads"
    conditions = [each.text for each in trace.conditions]
    assert "width is a multiple of 2·heads" in conditions
    assert "heads is a multiple of kv_heads" in conditions


def test_one_tensor_may_be_several_inputs(mine):
    inputs = {"Q": "b:2,n:3,d:4", "K": "Q", "V": "K"}
    trace = attnscope.inspect(mine.attend, inputs=inputs)
    assert [step.same_as for step in trace.steps[:3]] == [None, "Q", "Q"]
    assert_named(trace)
    assert dims(trace)["scores"] == "b n n"


# Sizes inside of arguments.

CONFIGURED = f"{CODE}/configured.py"
SPLIT = {"q": "B n_head T n_embd/n_head", "k": "B n_head T n_embd/n_head", "scores": "B n_head T T", "out": "B T n_embd"}  # fmt: skip


@pytest.fixture
def configured(monkeypatch):
    monkeypatch.syspath_prepend(CODE)
    import configured

    return configured


@pytest.mark.few(1)
@pytest.mark.parametrize(("n_embd", "n_head", "T"), [(48, 4, 7), (24, 4, 12), (64, 8, 8)])
@pytest.mark.parametrize("kind", ["text", "dataclass", "namespace"])
def test_sizes_in_a_configuration_name_axes(configured, kind, n_embd, n_head, T):
    sizes = {"n_embd": n_embd, "n_head": n_head}
    config = {
        "text": f"{CONFIGURED}:Config(n_embd={n_embd}, n_head={n_head})",
        "dataclass": configured.Config(**sizes),
        "namespace": SimpleNamespace(**sizes, n_kv_head=n_head // 2, block_size=64, dropout=0.0),
    }[kind]
    before = repr(config)
    trace = attnscope.inspect(
        configured.Attention, init={"config": config}, inputs=[f"x=B:2,T:{T},n_embd"]
    )
    assert repr(config) == before
    assert_named(trace)
    shared = {"k": "B n_kv_head T n_embd/n_head"} if kind == "namespace" else {}
    found = {name: next(" ".join(s.dims) for s in trace.steps if s.name == name) for name in SPLIT}
    assert found == SPLIT | shared
    assert trace.sizes.keys() == {"B", "T", *sizes, *(["n_kv_head"] if shared else [])}


@pytest.mark.few(2)
@pytest.mark.parametrize("heads", [4, 6])
@pytest.mark.parametrize("is_text", [True, False])
def test_sizes_in_a_dictionary_name_axes(configured, heads, is_text):
    cfg = {"dim": 48, "heads": heads}
    trace = attnscope.inspect(
        configured.ByDict, init={"cfg": repr(cfg) if is_text else cfg}, inputs=["x=B:2,T:7,dim"]
    )
    assert cfg == {"dim": 48, "heads": heads}
    assert_named(trace)
    assert dims(trace)["q"] == "B heads T dim/heads"


@pytest.mark.parametrize("head_dim", [12, 10])
def test_sizes_of_modules_that_the_class_is_handed_vary(head_dim):
    def linear(*widths):
        return "torch.nn:Linear({}, {})".format(*widths)

    trace = attnscope.inspect(
        f"{CONFIGURED}:Handed",
        init={
            "embed_dim": 48,
            "heads": 4,
            "head_dim": head_dim,
            "q_proj": linear("embed_dim", "heads*head_dim"),
            "k_proj": linear("embed_dim", "kv_heads*head_dim"),
            "v_proj": linear("embed_dim", "kv_heads*head_dim"),
            "out_proj": linear("heads*head_dim", "embed_dim"),
        },
        inputs={"x": "B:2,T:7,embed_dim"},
        where=["heads=2*kv_heads"],
    )
    assert_named(trace)
    assert dims(trace)["q"] == "B heads T head_dim"
    assert next(" ".join(s.dims) for s in trace.steps if s.name == "k") == "B kv_heads T head_dim"
    assert dims(trace)["y"] == "B T embed_dim"


@pytest.mark.sweep
def test_a_size_that_cannot_vary_stays(configured):
    config = configured.Config(n_embd=48, n_head=4)

    class Needs48(configured.Attention):
        def __init__(self, config):
            super().__init__(SimpleNamespace(**vars(config) | {"block_size": 64}))
            assert config.n_embd == 48

    trace = attnscope.inspect(Needs48, init={"config": config}, inputs=["x=B:2,T:7,48"], depth=0)
    found = {step.name: " ".join(step.dims) for step in trace.steps}
    assert found["scores"] == "B n_head T T"
    assert found["out"] == "B T n_embd"
    assert not trace.findings


# Names of axes that the user does not name.


NAMED = """
import torch
from torch import nn


class RowAttention(nn.Module):

    def __init__(self, embed_dim=48, n_head=4):
        super().__init__()
        self.n_head = n_head
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim)

    def forward(self, x):
        rows, cols, batch, dim = x.size()
        q, k, v = self.qkv(x).view(rows, cols, batch, 3, self.n_head, -1).unbind(3)
        attn = torch.einsum("rinhd,rjnhd->hnij", q, k).softmax(-1)
        out = torch.einsum("hnij,rjnhd->rinhd", attn, v).reshape(rows, cols, batch, dim)
        return out


class SequenceFirst(nn.Module):

    def forward(self, query, key, value):
        tgt_len, bsz, embed_dim = query.size()
        attn = torch.bmm(query.transpose(0, 1), key.permute(1, 2, 0)).softmax(-1)
        out = torch.bmm(attn, value.transpose(0, 1)).transpose(0, 1)
        return out


class WithTable(nn.Module):

    def __init__(self, embed_dim=24, n=9, n_head=4):
        super().__init__()
        self.n_head = n_head
        self.bias = nn.Parameter(torch.zeros(n_head, n, n))
        self.q, self.k = nn.Linear(embed_dim, embed_dim), nn.Linear(embed_dim, embed_dim)

    def forward(self, query, key):
        if key.shape[0] != 2:
            raise ValueError("two sequences")
        q, k = self.q(query), self.k(key)
        q, k = (each.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for each in (q, k))
        attn = (q @ k.mT / q.shape[-1] ** 0.5 + self.bias).softmax(-1)
        return attn
"""


@pytest.fixture
def named_axes(module_of):
    return module_of(NAMED)


def test_the_names_of_the_code_win_over_the_usual_ones(named_axes):
    trace = attnscope.inspect(named_axes.RowAttention(), torch.randn(3, 7, 2, 48))
    found = dims(trace)
    assert (found["x"], found["out"]) == ("rows cols batch dim", "rows cols batch dim")
    assert found["q"] == "rows cols batch n_head dim/n_head"
    assert found["attn"] == "n_head batch cols cols"
    assert trace.guessed == []


def test_a_guess_is_marked_and_does_not_contradict_the_code(named_axes):
    inputs = torch.randn(5, 2, 48), torch.randn(7, 2, 48), torch.randn(7, 2, 24)
    trace = attnscope.inspect(named_axes.SequenceFirst(), *inputs)
    found = dims(trace)
    assert [found[name] for name in ("query", "key", "attn")] == [
        "tgt_len bsz embed_dim",
        "n_K bsz embed_dim",
        "bsz tgt_len n_K",
    ]
    assert trace.guessed == ["n_K", "d_feat"] == trace.to_dict()["guessed"]
    heading = trace.document()[0].about[0]
    assert heading == "tgt_len 5 · bsz 2 · embed_dim 48 · n_K? 7 · d_feat? 24"


def test_numbers_vary_as_tensors_do(named_axes):
    live = attnscope.inspect(named_axes.RowAttention(), torch.randn(3, 7, 2, 48))
    numbers = attnscope.inspect(
        f"{named_axes.__file__}:RowAttention", init=["embed_dim=48"], inputs=["x=3,7,2,48"]
    )
    assert dims(numbers)["q"] == dims(live)["q"]
    assert "dim = embed_dim" in [each.text for each in numbers.conditions]


def test_names_come_from_the_code_where_no_other_sizes_run(named_axes):
    trace = attnscope.inspect(named_axes.WithTable(), torch.randn(2, 9, 24), torch.randn(2, 9, 24))
    assert "no other sizes were found" in trace.notices[0]
    assert dims(trace)["q"] == "n_batch n_head n_Q d_feat/n_head"
    assert dims(trace)["attn"] == "n_batch n_head n_Q n_K"
    assert trace.guessed == ["n_batch", "n_Q", "d_feat", "n_K"]


@pytest.mark.parametrize("n_layers", [2, 3])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_as_many_sequences_as_layers_are_no_condition(n_layers):
    """Only a mask of these very sizes can be nested: padding that stands at the end of each sequence."""
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, n_layers).eval()
    padding = torch.zeros(n_layers, 5, dtype=torch.bool)
    padding[0, 3:] = True
    with torch.no_grad():
        trace = attnscope.inspect(encoder, torch.randn(n_layers, 5, 16), src_key_padding_mask=padding)
    assert trace.crash is None
    assert dims(trace)["src_key_padding_mask"] == "n_batch n"
    assert trace.conditions == []
