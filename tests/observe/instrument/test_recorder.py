"""What is written down of each tensor: identity, cost, statistics, values."""

import gc
import weakref

import pytest
import torch

import attnscope
from attnscope import trace, trace_call
from attnscope.document.stats import stats_of


def test_views_copies_and_names_for_the_same_tensor_are_told_apart(module_of):
    module = module_of("""
        def target(x):
            view = x.view(3, 2)
            of_view = view.T
            copy = of_view.contiguous()
            same = copy.contiguous()
            alias = x
            return alias
    """)
    result = trace_call(module.target, torch.ones(2, 3))
    facts = {s.name: (s.view_of, s.same_as, s.contiguous, s.fresh_bytes) for s in result.steps}
    assert facts == {
        "x": (None, None, True, 0),
        "view": ("x", None, True, 0),
        "of_view": ("x", None, False, 0),
        "copy": (None, None, True, 24),
        "same": (None, "copy", True, 0),
        "alias": (None, "x", True, 0),
    }


def test_views_are_recognised_on_meta_too(module_of):
    module = module_of("""
        def target(x):
            view = x.view(-1)
            copy = x * 2
            return view
    """)
    result = trace_call(module.target, torch.ones(2, 3, device="meta"), stats=True)
    assert (result["view"].view_of, result["copy"].view_of, result.device) == ("x", None, "meta")
    assert result["copy"].fresh_bytes == 24
    assert result["copy"].stats is None


def test_memory_that_was_freed_and_used_again_is_no_view(module_of):
    module = module_of("""
        def target(x):
            for i in range(20):
                y = x + i
                z = y.sum()
            return z
    """)
    result = trace_call(module.target, torch.ones(1000))
    assert {(s.view_of, s.same_as) for s in result.steps if s.name == "y"} == {(None, None)}


def test_nothing_lives_longer_because_it_was_traced(module_of):
    module = module_of("""
        def target(x, seen):
            y = x * 2
            seen(y)
            y = None
            z = x + 1
            seen(None)
            return z
    """)
    seen = []

    def watch(tensor):
        gc.collect()
        seen.append(weakref.ref(tensor) if tensor is not None else seen[0]() is None)

    trace_call(module.target, torch.ones(3), watch)
    assert seen[1] is True


def test_flops_and_fresh_bytes_go_to_the_line_that_spent_them(module_of):
    module = module_of("""
        def product(a, b):
            p = a @ b
            return p

        def target(a, b):
            c = a @ b
            d = product(a, b) * 2
            if (a @ b).sum() > 1e9:
                pass
            e = c + d
            return e
    """)
    result = trace_call(module.target, torch.ones(2, 3), torch.ones(3, 4))
    spent = {s.name: (s.flops, s.fresh_bytes) for s in result.steps if s.how != "input"}
    flops = 2 * 2 * 3 * 4
    assert spent == {"c": (flops, 32), "p": (flops, 32), "d": (0, 32), "e": (0, 32)}


def test_the_cost_of_an_unnamed_call_goes_to_its_caller(module_of):
    module = module_of("""
        def lines(a, b):
            numbers = (a @ b).tolist()
            return len(numbers)

        def target(a, b):
            c = a * lines(a, b)
            return c
    """)
    result = trace_call(module.target, torch.ones(2, 3), torch.ones(3, 4))
    assert result["c"].flops == 48


def test_the_cost_of_what_was_abandoned_goes_to_the_expression_around_it(module_of):
    helpers = module_of("""
        def attempt(call):
            try:
                return call()
            except RuntimeError:
                return None
    """)
    module = module_of("""
        def target(a, b, attempt):
            c = attempt(lambda: (d := (a @ b).view(7, 7))) or a @ b
            e = a @ b
            return e
    """)
    result = trace_call(module.target, torch.ones(2, 3), torch.ones(3, 4), helpers.attempt)
    assert [(s.name, s.flops) for s in result.steps if s.how != "input"] == [("c", 96), ("e", 48)]


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_fused_attention_is_counted_like_its_two_products(module_of, device):
    module = module_of("""
        import torch.nn.functional as F

        def target(Q, K, V):
            out = F.scaled_dot_product_attention(Q, K, V)
            return out
    """)
    Q, K, V = torch.ones(2, 3, 4, 8), torch.ones(2, 3, 5, 8), torch.ones(2, 3, 5, 8)
    result = trace_call(module.target, Q.to(device), K.to(device), V.to(device))
    assert result["out"].flops == 2 * (2 * 3 * 4 * 5 * 8) * 2


def test_stats_are_of_the_moment_of_the_binding(module_of):
    module = module_of("""
        def target(x):
            y = x * 2
            y += 1
            return y
    """)
    x = torch.arange(4.0)
    result = trace_call(module.target, x, stats=True)
    bound, added = [step for step in result.steps if step.name == "y"]
    assert bound.stats == stats_of((x * 2).numpy())
    assert added.stats == stats_of((x * 2 + 1).numpy())
    assert added.same_as == "y"


def test_kept_tensors_keep_their_values_when_they_are_overwritten(module_of):
    module = module_of("""
        import torch

        def target(x):
            y = x * 2
            row = y[0]
            y += 1
            y[1] = 7
            torch.mul(x, 5, out=y)
            return y
    """)
    x = torch.arange(4.0).view(2, 2)
    result = trace_call(module.target, x, keep=True)
    bound, added = [step for step in result.steps if step.name.startswith("y")]
    assert bound.tensor.tolist() == [[0, 2], [4, 6]]
    assert result["row"].tensor.tolist() == [0, 2]
    assert added.tensor.tolist() == [[1, 3], [5, 7]]


@pytest.mark.parametrize("keep", [["zy"], "zy"])
def test_only_the_names_asked_for_are_kept(module_of, keep):
    module = module_of("""
        def target(x):
            y = x * 2
            zy = y + 1
            return zy
    """)
    result = trace_call(module.target, torch.ones(2), keep=keep)
    assert [step.name for step in result.steps if step.tensor is not None] == ["zy"]


def test_calls_outside_the_target_are_not_recorded(module_of):
    module = module_of("""
        def helper(x):
            h = x * 2
            return h

        def target(x):
            y = helper(x)
            return y
    """)
    x = torch.ones(2)
    with trace(module.target) as result:
        module.helper(x)
        module.target(x)
        module.helper(x)
        module.target(x)
    assert [step.name for step in result.steps] == ["x", "x", "h", "y"]


def test_recursion_is_recorded_at_its_depth(module_of):
    module = module_of("""
        def target(x, n):
            y = x + n
            return target(y, n - 1) if n else y
    """)
    result = trace_call(module.target, torch.ones(2), 2)
    assert [s.depth for s in result.steps if s.name == "y"] == [0, 1, 2]


def test_tensors_without_strides_are_recorded(module_of):
    module = module_of("""
        def target(x):
            s = x.to_sparse()
            return s
    """)
    step = trace_call(module.target, torch.eye(3))["s"]
    assert (step.shape, step.view_of, step.contiguous) == ((3, 3), None, False)


def test_flops_equal_torchs_own_counter(module_of):
    from torch.utils.flop_counter import FlopCounterMode

    module = module_of("""
        import torch.nn.functional as F

        def target(x, w):
            a = F.linear(x, w)
            b = a @ x.mT
            c = F.conv1d(b, x[:, :, :3])
            return c
    """)
    x, w = torch.ones(4, 4, 8), torch.ones(8, 8)
    with FlopCounterMode(display=False) as counter:
        module.target(x, w)
    result = trace_call(module.target, x, w)
    assert sum(step.flops for step in result.steps) == counter.get_total_flops() > 0


def test_tensors_inside_of_vmap_are_recorded_without_memory(module_of):
    module = module_of("""
        import torch

        def square(x):
            y = x * x
            return y

        def target(x):
            z = torch.func.vmap(square)(x)
            return z
    """)
    result = trace_call(module.target, torch.ones(3, 2), stats=True)
    assert [step.name for step in result.steps] == ["x", "x", "y", "z"]
    assert result["z"].stats.mean == 1


@pytest.mark.parametrize(
    "made", ["x.to(torch.float8_e4m3fn)", "x.to_sparse()", "torch.complex(x, x)", "x.to(torch.uint8)"]
)
def test_stats_of_what_has_no_plain_real_numbers_are_left_out(module_of, made):
    module = module_of(f"import torch\n\ndef target(x):\n    y = {made}\n    return y\n")
    step = trace_call(module.target, torch.ones(2), stats=True)["y"]
    assert (step.stats is None) == ("uint8" not in made)


def test_looking_at_objects_runs_no_code_of_theirs(module_of):
    module = module_of("""
        import torch

        class Classless:
            @property
            def __class__(self):
                raise RuntimeError("asked for its class")

        class Secretive(torch.Tensor):
            @property
            def shape(self):
                raise RuntimeError("asked for its shape")
            dtype = device = is_nested = shape
            def size(self, *axes):
                raise RuntimeError("asked for its size")
            numel = stride = is_contiguous = size

        class Hostile(torch.Tensor):
            @classmethod
            def __torch_function__(cls, func, types, args=(), kwargs=None):
                raise RuntimeError(f"asked for {func}")

        def target(x):
            classless = Classless()
            secretive = x.as_subclass(Secretive)
            hostile = x.as_subclass(Hostile)
            y = x + 1
            return y
    """)
    result = trace_call(module.target, torch.ones(2, 3))
    assert result.tracing_error is None
    assert [step.name for step in result.steps] == ["x", "secretive", "hostile", "y"]
    assert {(step.shape, step.dtype) for step in result.steps} == {((2, 3), "float32")}


RETURNS = """
from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field

import torch
from torch import nn

@dataclass
class Output:
    out: torch.Tensor
    weights: torch.Tensor
    name: str = "x"

Pair = namedtuple("Pair", ["out", "weights"])

class Attention(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def forward(self, x):
        scores = x @ x.mT
        attention = scores.softmax(-1)
        out = attention @ x
        return RESULTS[self.kind](out, attention)

def collect(*parts):
    return parts

RESULTS = {
    "dict": lambda out, w: {"out": out, "weights": w, "n": 3},
    "ordered": lambda out, w: OrderedDict(out=out, weights=w),
    "tuple": lambda out, w: collect(out, w, None),
    "list": lambda out, w: [out, w],
    "nested": lambda out, w: {"out": out, "cache": [(w, out), {"w": w}]},
    "dataclass": lambda out, w: Output(out, w),
    "named": lambda out, w: Pair(out, w),
    "one": lambda out, w: [out],
    "new": lambda out, w: {"out": out, "weights": w * 2},
    "tensor": lambda out, w: out,
    "nothing": lambda out, w: {},
}
"""

OUT, WEIGHTS = {"out": "out"}, {"weights": "attention"}


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("kind", "members"),
    [
        ("dict", {**OUT, **WEIGHTS}),
        ("ordered", {**OUT, **WEIGHTS}),
        ("list", {"0": "out", "1": "attention"}),
        ("nested", {**OUT, "cache.0.0": "attention", "cache.0.1": "out", "cache.1.w": "attention"}),
        ("dataclass", {**OUT, **WEIGHTS}),
        ("named", {"0": "out", "1": "attention"}),
    ],
)
@pytest.mark.parametrize("depth", [0, None])
def test_a_returned_collection_of_tensors_that_have_rows_is_one_row(module_of, kind, members, depth):
    attention = module_of(RETURNS).Attention(kind)
    with attnscope.trace(attention, depth=depth) as result:
        attention(torch.ones(3, 4))
    *_, last = result.steps
    assert [step.name for step in result.steps] == ["x", "scores", "attention", "out", "return"]
    assert (last.members, last.shape, last.bytes, last.dims) == (members, (), 0, None)
    assert last.line is not None
    made = attnscope.inspect(
        module_of(RETURNS).Attention, init={"kind": f"'{kind}'"}, inputs=["n:3,d:4"]
    )
    assert [" ".join(step.dims) for step in made.steps[:-1]] == ["n d", "n n", "n n", "n d"]
    assert (made.steps[-1].members, made.steps[-1].dims) == (members, None)
    assert not made.findings


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("one", [("return[0]", "out")]),
        ("new", [("return['out']", "out"), ("return['weights']", None)]),
        ("tensor", [("return", "out")]),
        ("nothing", []),
    ],
)
def test_other_results_have_a_row_for_each_tensor(module_of, kind, expected):
    attention = module_of(RETURNS).Attention(kind)
    with attnscope.trace(attention) as result:
        attention(torch.ones(3, 4))
    assert [(step.name, step.same_as) for step in result.steps[4:]] == expected
    assert all(step.members is None for step in result.steps)


def test_tensors_that_have_rows_are_one_row_beside_others(module_of):
    module = module_of("""
        def target(x):
            scores = x @ x.mT
            attention = scores.softmax(-1)
            out = attention @ x
            return {"scores": scores, "attention": attention, "out": out, "sum": out.sum()}

        def caller(x):
            result = target(x)
            return result["out"]
    """)
    result = attnscope.trace_call(module.target, torch.ones(3, 4))
    assert [step.name for step in result.steps[4:]] == ["return['sum']", "return"]
    assert result["return"].members == {"scores": "scores", "attention": "attention", "out": "out"}
    called = attnscope.trace_call(module.caller, torch.ones(3, 4))
    assert called["result"].members["sum"] == "return['sum']"
    assert called["return"].same_as == "out"


def test_what_a_returned_collection_cost_is_its_row_s(module_of):
    module = module_of("""
        def target(x):
            y = x * 2
            keep = y
            return [y, keep] if (x @ x).sum() > 0 else [x, x]
    """)
    result = attnscope.trace_call(module.target, torch.ones(4, 4))
    assert [(step.name, step.flops) for step in result.steps] == [("x", 0), ("y", 0), ("keep", 0), ("return", 128)]  # fmt: skip
    assert result["return"].members == {"0": "y", "1": "y"}


def test_a_tuple_without_a_cost_shows_each_element(module_of):
    module = module_of("""
        def target(x, w):
            q, k = x.T, w.T
            k, q = q, k
            q, (k, v) = x @ w, (x, w)
            return q
    """)
    trace = trace_call(module.target, torch.ones(3, 4), torch.ones(4, 5))
    whole = "x @ w, (x, w)"
    assert [(step.name, step.how, step.flops) for step in trace.steps[2:]] == [
        ("q", "x.T", 0), ("k", "w.T", 0), ("k", "q", 0), ("q", "k", 0),
        ("q", whole, 120), ("k", whole, 0), ("v", whole, 0),  # the first has the cost of all
    ]  # fmt: skip
