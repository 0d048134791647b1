"""Every kind of binding is recorded, once, with its name and expression; and nothing else changes."""

import linecache
import threading
import traceback

import pytest
import torch

from attnscope import trace, trace_call
from attnscope.base.errors import SourceError


def rows(result):
    return [(step.name, step.how) for step in result.steps if step.how != "input"]


# A body -> the names and expressions that it records.
BINDINGS = {
    "assignment": ("y = x * 2", "y: x * 2"),
    "two targets": ("a = b = x * 2", "a: x * 2 | b: x * 2"),
    "annotated": ("y: torch.Tensor = x * 2", "y: x * 2"),
    "annotation alone": ("y: torch.Tensor", ""),
    "augmented": ("x += 1", "x: x += 1"),
    "augmented subscript": ("x[0] += 1", "x[0]: x[0] += 1"),
    "walrus": ("if (y := x * 2).sum() > -1e9:\n    z = y + 1", "y: x * 2 | z: y + 1"),
    "walrus in a comprehension": ("z = [last := x + i for i in range(2)][0]", "last: x + i | last: x + i | z: [last := x + i for i in range(2)][0]"),
    "tuple": ("a, b = x * 2, x", "a: x * 2, x | b: x * 2, x"),
    "unpacked tensor": ("a, b = x", "a: x | b: x"),
    "unpacked iterator": ("a, b = iter(x)", "a: iter(x) | b: iter(x)"),
    "nested tuple": ("(a, [b, c]), d = (x, (x, x)), 7", " | ".join(f"{n}: (x, (x, x)), 7" for n in "abc")),
    "starred": ("a, *rest, z = x, x, x, x", " | ".join(f"{name}: x, x, x, x" for name in ("a", "rest[0]", "rest[1]", "z"))),
    "starred first": ("*rest, z = x, x", "rest[0]: x, x | z: x, x"),
    "attribute": ("box.y = x * 2", "box.y: x * 2"),
    "subscript": ("cache['k'] = x * 2", "cache['k']: x * 2"),
    "attribute in a tuple": ("box.y, b = x, x", "box.y: x | b: x"),
    "list of tensors": ("parts = [x, x, 3]", "parts[0]: x | parts[1]: x"),
    "dict of tensors": ("d = {'k': x, 'n': 3}", "d['k']: x"),
    "for": ("for row in x:\n    y = row", "row: in x | y: row | row: in x | y: row"),
    "for with a tuple": ("for i, row in enumerate(x): pass", "row: in enumerate(x) | row: in enumerate(x)"),
    "with": ("with manager(x) as y:\n    pass", "yield: x * 2 | y: manager(x)"),
    "while": ("n = 0\nwhile n < 2:\n    n += 1\n    x = x + n", "x: x + n | x: x + n"),
    "not a tensor": ("n = 3\ns = 'text'\nf = lambda t: t", ""),
    "rebinding": ("x = x.view(-1)\nx = x.contiguous()", "x: x.view(-1) | x: x.contiguous()"),
    "several lines": ("y = (\n    x\n    * 2\n)", "y: x * 2"),
    "non-ascii": ("größe = x * 2; y = größe + 1", "größe: x * 2 | y: größe + 1"),
    "caught exception": ("try:\n    y = x.view(7, 7)\nexcept RuntimeError:\n    y = x * 2", "y: x * 2"),
    "caught exception in an augmented assignment": ("try:\n    x += torch.ones(9)\nexcept RuntimeError:\n    y = x * 2", "y: x * 2"),
    "match": ("match 3:\n    case 3:\n        y = x * 2", "y: x * 2"),
    "conditional expression": ("y = x * 2 if True else x", "y: x * 2 if True else x"),
    "nested function": ("def twice(t):\n    u = t * 2\n    return u\ny = twice(x)", "u: t * 2 | y: twice(x)"),
    "closure": ("k = x + 1\ndef inner():\n    nonlocal k\n    k = k * 2\n    return k\ny = inner()", "k: x + 1 | k: k * 2 | y: inner()"),
    "generator": ("def rows():\n    for row in x:\n        yield row\ny = sum(rows())", "row: in x | row: in x | y: sum(rows())"),
    "class in a function": ("class Local:\n    a = x * 2\ny = Local.a", "y: Local.a"),
    "same-file helper": ("y = helper(x)", "half: x / 2 | return: half + 1 | y: helper(x)"),
}  # fmt: skip


@pytest.mark.few(6)
@pytest.mark.parametrize("kind", BINDINGS)
def test_each_kind_of_binding_is_recorded_once(kind, module_of):
    body, expected = BINDINGS[kind]
    indented = "\n".join("    " + line for line in body.splitlines())
    source = f"""
import contextlib, torch

def helper(x):
    half = x / 2
    return half + 1

@contextlib.contextmanager
def manager(x):
    yield x * 2

class Box:
    pass

def target(x, box, cache):
    "A docstring."
{indented}
    return None
"""
    module = module_of(source)
    result = trace_call(module.target, torch.ones(2, 3), module.Box(), {})
    assert " | ".join(f"{name}: {how}" for name, how in rows(result)) == expected


def test_arguments_are_recorded_however_they_are_declared(module_of):
    module = module_of("""
        def target(a, /, b, *rest, c, d=None, **others):
            return a
    """)
    one = torch.ones(1)
    result = trace_call(module.target, one, one + 1, one + 2, one + 3, c=one + 4, e=one + 5)
    assert [step.name for step in result.steps] == ["a", "b", "rest[0]", "rest[1]", "c", "others['e']"]


def test_returned_expressions_are_recorded_and_returned_names_are_not(module_of):
    module = module_of("""
        def one(x):
            return x * 2

        def several(x):
            y = x + 1
            return y, x * 2, None

        def early(x):
            if x.sum() > 0:
                return x
            y = x * 2
            return y
    """)
    x = torch.ones(2)
    assert rows(trace_call(module.one, x)) == [("return", "x * 2")]
    assert rows(trace_call(module.several, x)) == [("y", "x + 1"), ("return[1]", "x * 2")]
    assert rows(trace_call(module.early, x)) == []


def test_submodules_of_the_same_file_are_recorded_one_call_deeper(module_of):
    module = module_of("""
        from torch import nn

        class Inner(nn.Module):
            def forward(self, x):
                doubled = x * 2
                return doubled

        class Outer(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = Inner()

            def forward(self, x):
                y = self.inner(x)
                return super().__repr__() and y + 1
    """)
    result = trace_call(module.Outer(), torch.ones(2))
    assert [(s.name, s.depth) for s in result.steps] == [
        ("x", 0), ("x", 1), ("doubled", 1), ("y", 0), ("return", 0)]  # fmt: skip
    assert result["y"].same_as == "doubled"


def test_private_names_decorators_properties_and_static_methods_work(module_of):
    module = module_of("""
        import functools, torch

        def twice(function):
            @functools.wraps(function)
            def wrapper(*args):
                return function(*args) * 2
            return wrapper

        class Target:
            def __init__(self):
                self.__hidden = torch.ones(2)

            @property
            def hidden(self):
                value = self.__hidden + 1
                return value

            @staticmethod
            def plus(x):
                plussed = x + 1
                return plussed

            @twice
            def __call__(self, x):
                y = self.hidden + self.plus(x)
                return y
    """)
    target = module.Target()
    result = trace_call(target, torch.ones(2))
    assert [name for name, _ in rows(result)] == ["value", "plussed", "y"]
    assert target(torch.ones(2)).tolist() == [8.0, 8.0]


def test_what_is_yielded_is_recorded_like_what_is_returned(module_of):
    module = module_of("""
        import asyncio

        def blocks(x):
            for row in x.unbind():
                yield row * 2
            yield row
            yield row + 1, row, row - 1
            got = yield (row / 2)
            yield
            yield from (row, row)
            return row

        async def later(x):
            yield x * 3

        async def last(x):
            return [each async for each in later(x)]

        def target(x):
            out = list(blocks(x))
            end = asyncio.run(last(x))
            return out, end
    """)
    x = torch.arange(6.0).view(2, 3)
    result = trace_call(module.target, x)
    found = [(step.name, step.how) for step in result.steps if step.name.startswith("yield")]
    assert found == [
        ("yield", "row * 2"), ("yield", "row * 2"), ("yield[0]", "row + 1"), ("yield[2]", "row - 1"),
        ("yield", "row / 2"), ("yield", "x * 3"),
    ]  # fmt: skip
    out, end = module.target(x)
    assert [type(each) for each in out] == [torch.Tensor] * 3 + [tuple, torch.Tensor, type(None)] + [torch.Tensor] * 2  # fmt: skip
    assert torch.equal(end[0], x * 3)


def test_subscripts_with_calls_are_evaluated_once(module_of):
    module = module_of("""
        def target(x, index):
            x[index()] = x[0] * 2
            x[index()] += 1
            return x
    """)
    calls = []
    trace_call(module.target, torch.ones(3), lambda: calls.append(1) or 1)
    assert len(calls) == 2


def test_an_endless_iterator_is_unpacked_no_further_than_its_error(module_of):
    module = module_of("""
        import itertools

        def target(x):
            a, b = itertools.repeat(x)
    """)
    with pytest.raises(ValueError, match="too many values to unpack"):
        trace_call(module.target, torch.ones(2))


def test_tracebacks_point_at_the_same_lines_and_columns(module_of):
    module = module_of("""
        def target(x):
            y = x * 2
            z = x.sum() + (y
                 .view(7, 7))
            return z
    """)

    def where(call):
        with pytest.raises(RuntimeError) as caught:
            call()
        frames = [f for f in traceback.extract_tb(caught.tb) if f.filename == module.__file__]
        return [(f.lineno, f.end_lineno, f.colno, f.end_colno, f.name) for f in frames]

    x = torch.ones(2)
    assert where(lambda: trace_call(module.target, x)) == where(lambda: module.target(x))


def test_traces_may_be_nested(module_of):
    module = module_of("""
        def target(x, inside):
            y = x * 2
            inside()
            z = y + 1
            return z
    """)
    x, inner = torch.ones(2), []
    outer = trace_call(
        module.target, x, lambda: inner.append(trace_call(module.target, x, lambda: None))
    )
    assert [step.name for step in inner[0].steps] == ["x", "y", "z"]
    assert [step.name for step in outer.steps] == [*"xyxyzz"]  # the inner call is its own
    assert module.target(x, lambda: None).tolist() == [3, 3]


def test_what_outlives_its_trace_goes_on_to_work(module_of):
    module = module_of("""
        def target(x):
            def later():
                y = x * 2
                return y

            def rows():
                for i in range(3):
                    z = x + i
                    yield z

            started = rows()
            next(started)
            return later, started
    """)
    returned = []
    with trace(module.target) as result:
        returned = module.target(torch.ones(2))
    steps = len(result.steps)
    later, started = returned
    assert later().tolist() == [2, 2]
    assert [z.tolist() for z in started] == [[2, 2], [3, 3]]
    assert len(result.steps) == steps


def test_other_threads_run_undisturbed_and_unrecorded(module_of):
    module = module_of("""
        def target(x, meanwhile):
            y = x * 2
            meanwhile()
            z = y + 1
            return z
    """)
    out = []

    def in_a_thread():
        call = lambda: out.append(module.target(torch.ones(3), lambda: None))  # noqa: E731
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()

    result = trace_call(module.target, torch.ones(2), in_a_thread)
    assert [(step.name, step.shape) for step in result.steps] == [("x", (2,)), ("y", (2,)), ("z", (2,))]
    assert out[0].tolist() == [3, 3, 3]


def test_results_gradients_and_random_numbers_are_those_of_the_untraced_run(module_of):
    module = module_of("""
        import torch
        from torch import nn

        class Target(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(4, 4)

            def forward(self, x):
                y = self.linear(x)
                y = nn.functional.dropout(y, 0.5)
                y[0] *= 3
                a, b = y.chunk(2, dim=-1)
                z = torch.cat([b, a], -1).softmax(-1) @ self.linear.weight
                return z
    """)
    torch.manual_seed(0)
    target, x = module.Target(), torch.randn(3, 4)

    def run(call):
        torch.manual_seed(1)
        target.zero_grad()
        out = call()
        out.square().sum().backward()
        return out, target.linear.weight.grad.clone(), torch.rand(1)

    def traced():
        with trace(target, stats=True, keep=True):
            return target(x)

    for plain, ours in zip(run(lambda: target(x)), run(traced), strict=True):
        assert torch.equal(plain, ours)


def test_code_without_source_is_refused():
    namespace = {}
    exec("def target(x):\n    y = x\n    return y", namespace)
    with pytest.raises(SourceError, match="cannot read the source of <string>"):
        trace_call(namespace["target"], torch.ones(2))


def test_a_source_that_has_changed_since_it_was_imported_is_refused(module_of):
    module = module_of("def target(x):\n    y = x\n    return y\n")
    with open(module.__file__, "w") as file:
        file.write("# moved down\n\n\ndef target(x):\n    y = x\n    return y\n")
    linecache.checkcache(module.__file__)
    with pytest.raises(SourceError, match="has changed since it was imported"):
        trace_call(module.target, torch.ones(2))


def test_what_is_awaited_or_yielded_is_recorded_after_it(module_of):
    module = module_of("""
        import asyncio

        async def sub(x):
            await asyncio.sleep(0)
            return x

        async def accumulate(x):
            total = x * 0
            total += await sub(x)
            last: object = await sub(x)
            a, b = await asyncio.gather(sub(x), sub(x))
            if (seen := await sub(x)) is not None:
                return await sub(total)

        def sends(x):
            got = yield x
            x += yield x
            yield x + got

        async def both(x):
            return await asyncio.gather(accumulate(x), accumulate(x + 1))

        def target(x):
            first, second = asyncio.run(both(x))
            sent = sends(x * 1)
            next(sent)
            sent.send(x)
            y = (x @ x) + sent.send(x)
            return y, first, second
    """)
    x = torch.ones(4, 4)
    result = trace_call(module.target, x)
    names = [step.name for step in result.steps]
    assert names.count("total") == 4
    assert [names.count(name) for name in ("last", "a", "b", "got", "y")] == [2, 2, 2, 1, 1]
    assert result["y"].flops == 2 * 4**3
    out, first, second = module.target(x)
    assert torch.equal(first, x)
    assert torch.equal(second, x + 1)
    assert torch.equal(out, x @ x + 3 * x)


def test_unpacking_means_what_it_meant(module_of):
    module = module_of("""
        def target(x):
            (a, b), c = map(lambda t: t, [x, x]), x
            pair = lo, hi = x
            return a, b, c, pair
    """)
    x = torch.ones(2, 3)
    returned = []
    with trace(module.target) as result:
        returned = module.target(x)
    assert returned[3] is x
    assert [name for name, _ in rows(result)] == ["c", "pair"]


def test_methods_under_a_condition_are_recorded(module_of):
    module = module_of("""
        class Target:
            if True:
                def __call__(self, x):
                    y = x * 2
                    return y
    """)
    assert [step.name for step in trace_call(module.Target(), torch.ones(2)).steps] == ["x", "y"]


@pytest.mark.usefixtures("with_torch")
def test_a_class_is_no_call():
    with pytest.raises(SourceError, match="calling Linear creates an instance"):
        trace_call(torch.nn.Linear, 2, 3)
