"""Rewritten functions compute what they computed, and report what they bind. This runs under every Python."""

import importlib.util
import linecache
import sys
from itertools import count

import pytest

from attnscope.observe.instrument.code_swap import Relay, lent
from attnscope.observe.instrument.rewrite import rewrite

_NUMBERS = count()

PROGRAMS = {
    "names": "def f(x):\n    y = x + 1\n    a, *b = [y, x, 3]\n    return a, b\n",
    "comprehensions": "def f(x):\n    y = [i * x for i in range(3) if i]\n    return {k: [v for v in y] for k in y}, {i for i in y}\n",
    "nested comprehensions": "def f(x):\n    return [[i + j + x for j in range(i)] for i in range(3)], sum(i for i in range(x))\n",
    "a walrus in a comprehension": "def f(x):\n    y = [z := i + x for i in range(3)]\n    return y, z\n",
    "closures": "def f(x):\n    def g(y):\n        nonlocal x\n        x += y\n        return x\n    return g(2), x, (lambda t=x: t * 2)()\n",
    "try": "def f(x):\n    try:\n        y = 1 / (x - 3)\n    except ZeroDivisionError as error:\n        y = str(error)\n    finally:\n        z = y\n    return z\n",
    "loops": "def f(x):\n    y = 0\n    for i in range(x):\n        if i == 1:\n            continue\n        y += i\n    else:\n        y *= 2\n    while y > 5:\n        y -= 1\n    return y\n",
    "match": "def f(x):\n    match [x, {'a': x}]:\n        case [int() as y, {'a': z, **rest}] if y:\n            return y, z, rest\n",
    "f-strings": "def f(x):\n    y = f'{x!r:>{x}} {x + 1=} {[i for i in range(x)]}'\n    return y\n",
    "classes": "def f(x):\n    class A:\n        size = x\n        @property\n        def y(self):\n            made = self.size * 2\n            return made\n    return A().y\n",
    "generators": "def f(x):\n    def g():\n        got = yield x\n        yield from [got, x]\n    it = g()\n    return next(it), it.send(5), list(it)\n",
    "with": "import io\ndef f(x):\n    with io.StringIO(str(x)) as a, io.StringIO('b') as b:\n        y = a.read() + b.read()\n    return y\n",
    "coroutines": "import asyncio\ndef f(x):\n    async def g():\n        y = [i async for i in h()]\n        return y\n    async def h():\n        for i in range(x):\n            yield await asyncio.sleep(0, i)\n    return asyncio.run(g())\n",
}  # fmt: skip
if sys.version_info >= (3, 12):
    PROGRAMS["type parameters"] = "def f[T: int](x: T) -> T:\n    type Pair = tuple[T, T]\n    y = x + 1\n    return y\n"  # fmt: skip
    PROGRAMS["nested quotes"] = "def f(x):\n    y = f'{'a' * x}{f'{x + 1}'}'\n    return y\n"
if sys.version_info >= (3, 14):
    PROGRAMS["template strings"] = "def f(x):\n    y = t'{x} of {x + 1}'\n    return y.values\n"
    PROGRAMS["late annotations"] = "def f(x):\n    def g(y: Unknown) -> Unknown:\n        z = y\n        return z\n    return g(x)\n"  # fmt: skip


class Listener:
    """A recorder that notes what is bound."""

    def __init__(self, sites):
        self.sites, self.bound_names, self.entered = sites, [], []

    def enter(self, site):
        self.entered.append(self.sites[site].how)

    def leave(self):
        self.entered.append("left")

    def begin(self, site):
        return 1

    def end(self, site, mark, value):
        self.bound_names += [target for target in self.sites[site].targets if isinstance(target, str)]
        return value

    def bound(self, site, value):
        return value

    def part(self, site, value):
        return value


@pytest.fixture
def module_of_source(tmp_path):
    def make(source):
        path = tmp_path / f"plain_{next(_NUMBERS)}.py"
        path.write_text(source, encoding="utf-8")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        linecache.checkcache(str(path))
        return module

    return make


@pytest.mark.parametrize("parts", [False, True], ids=["names", "subexpressions"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_rewritten_function_computes_the_same(module_of_source, name, parts):
    module = module_of_source(PROGRAMS[name])
    expected = module.f(3)
    code = rewrite([module.__file__], parts=parts)
    relay, listener = Relay(), Listener(code.sites)
    relay.attach(listener)
    original = module.f.__code__
    with lent(code, relay, [*vars(module).values()]):
        assert module.f.__code__ is not original  # it was found to be what its source says
        assert module.f(3) == expected
    assert module.f.__code__ is original
    assert (listener.entered[0], listener.entered[-1]) == ("f", "left")
    if "y = " in PROGRAMS[name].split("return")[0] and name not in ("coroutines", "classes"):
        assert "y" in listener.bound_names
