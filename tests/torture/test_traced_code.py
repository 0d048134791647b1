"""Code that ends, fails or changes things in the middle of a trace: its own text and status, and never our traceback."""

import pytest

from tests.torture.cases import run_process

pytestmark = [pytest.mark.torture, pytest.mark.slow]

FAILURES = {
    "an exception without words": "raise ValueError",
    "an exception with escapes": "raise ValueError('\\x1b[31mred\\x1b[0m\\x07\\nsecond line\\u202e')",
    "an exception with surrogates": "raise ValueError('\\udcff\\ud800')",
    "an exception whose __str__ fails": "raise type('E', (ValueError,), {'__str__': lambda self: 1 / 0})()",
    "an exception whose metaclass raises": "class M(type):\n        def __getattribute__(cls, name):\n            raise ValueError(name)\n    class E(ValueError, metaclass=M):\n        pass\n    raise E('x')",
    "an exception whose __getattribute__ raises": "class E(ValueError):\n        def __getattribute__(self, name):\n            raise KeyError(name)\n    raise E('x')",
    "an exception whose __str__ gives no text": "raise type('E', (ValueError,), {'__str__': lambda self: 3})()",
    "an exception whose __repr__ fails": "raise type('E', (ValueError,), {'__repr__': lambda self: 1 / 0})('x')",
    "an exception whose __str__ ends the process": "raise type('E', (ValueError,), {'__str__': lambda self: exit(3)})()",
    "an exception with a very long text": "raise ValueError('x' * 10**6)",
    "an exception whose name is strange": "raise type('\\x1b[31m\\n', (ValueError,), {})('x')",
    "a group of exceptions": "raise ExceptionGroup('several', [ValueError('a'), KeyError('b')])",
    "a chain of exceptions": "try:\n        1 / 0\n    except ZeroDivisionError as e:\n        raise KeyError('k') from e",
    "a BaseException": "raise BaseException('base')",
    "GeneratorExit": "raise GeneratorExit",
    "StopIteration": "raise StopIteration(3)",
    "MemoryError": "raise MemoryError",
    "RecursionError": "attend(x)",
    "OSError": "raise OSError(28, 'No space left on device', '\\x1b[31m')",
    "BrokenPipeError": "raise BrokenPipeError(32, 'Broken pipe')",
    "a failing assertion": "assert x.shape == (7, 7), x",
    "a missing name": "nope = missing + 1",
    "a missing attribute": "y = x.nope",
    "an unpacking": "a, b, c = x",
    "a vector against a matrix": "y = x[0] @ x[0].mT",
    "sizes that do not fit": "y = x @ x",
    "sizes that do not fit, of many axes": "y = x.reshape(1, 1, 1, 2, 3) @ x.reshape(1, 1, 1, 1, 1, 2, 3)",
    "a view of wrong size": "y = x.view(7, 7)",
    "an index beyond": "y = x[5]",
    "a dtype that does not fit": "y = x @ x.mT.long()",
    "an allocation beyond memory": "y = torch.empty(2**40, 2**20)",
    "a negative size": "y = torch.empty(-3)",
    "a division by zero": "y = 1 / (x.shape[0] - 2)",
    "numpy's error": "import numpy as np\n    y = np.linalg.inv(np.zeros((2, 2)))",
}
"""The body of a function, which raises."""

STRANGE = {
    "a property that raises": "class P:\n        @property\n        def y(self):\n            raise ValueError('property')\n    p = P()\n    y = getattr(p, 'y', None) if False else x",
    "an object whose everything raises": "class P:\n        def __getattribute__(self, name):\n            raise ValueError(name)\n    p = P()\n    q = [p, p]\n    y = x * 2",
    "an object whose __class__ lies": "class P:\n        __class__ = torch.Tensor\n    p = P()\n    y = x * 2",
    "an object whose __eq__ and __bool__ raise": "class P:\n        def __eq__(self, other): raise ValueError\n        def __bool__(self): raise ValueError\n        __hash__ = None\n    p = P()\n    q = (p, p)\n    y = x * 2",
    "an object whose __len__ is huge": "class P(list):\n        def __len__(self): return 10**18\n    p = P()\n    y = x * 2",
    "a tensor's subclass whose shape raises": "class T(torch.Tensor):\n        @property\n        def shape(self):\n            raise ValueError('shape')\n    t = x.as_subclass(T)\n    y = x * 2",
    "a tensor's subclass that refuses all": "class T(torch.Tensor):\n        @classmethod\n        def __torch_function__(cls, *a, **k):\n            raise ValueError('refused')\n    y = x * 2",
    "a metaclass that raises": "class M(type):\n        def __getattribute__(cls, name):\n            raise ValueError(name)\n    class P(metaclass=M):\n        __slots__ = ['t']\n        def __iter__(self):\n            return iter([x, x])\n    a, b = p = P()\n    p.t = x\n    d = {p: x}\n    y = p.t + 1",
    "a tensor's subclass with bad attributes": "def bad(self, *a, **k):\n        raise ValueError\n    class T(torch.Tensor):\n        shape = dtype = device = is_nested = property(bad)\n        detach = clone = numel = __repr__ = bad\n    t = x.as_subclass(T)\n    y = torch.mul(t, 2)",
    "a tensor's subclass that runs no operator": "class T(torch.Tensor):\n        @classmethod\n        def __torch_dispatch__(cls, *a, **k):\n            raise ValueError('refused')\n    t = torch.Tensor._make_wrapper_subclass(T, x.shape, dtype=x.dtype)\n    y = x * 2",
    "a generator": "y = sum(row for row in x)",
    "a generator that is left": "def g():\n        try:\n            yield x\n        finally:\n            z = x * 3\n    y = next(g())",
    "a coroutine": "import asyncio\n    async def f():\n        y = x * 2\n        return y\n    y = asyncio.run(f())",
    "a thread": "import threading\n    def f():\n        z = x * 3\n    t = threading.Thread(target=f)\n    t.start(); t.join()\n    y = x * 2",
    "a thread that fails": "import threading\n    def f():\n        raise SystemExit(3)\n    t = threading.Thread(target=f)\n    t.start(); t.join()\n    y = x * 2",
    "recursion of 100": "y = x if x.sum() > 90 else attend(x + 1)",
    "stdout is closed": "import sys\n    sys.stdout.close()\n    y = x * 2",
    "stdout is replaced": "import io, sys\n    sys.stdout = io.StringIO()\n    print('hidden')\n    y = x * 2",
    "stdout is None": "import sys\n    sys.stdout = None\n    y = x * 2",
    "stdout is deleted": "import sys\n    del sys.stdout\n    y = x * 2",
    "stderr is closed": "import sys\n    sys.stderr.close()\n    y = x * 2",
    "stderr is replaced": "import io, sys\n    sys.stderr = io.StringIO()\n    y = x * 2",
    "stdout raises": "import sys\n    class S:\n        def write(self, text): raise ValueError('no')\n        def flush(self): raise ValueError('no')\n    sys.stdout = S()\n    y = x * 2",
    "print is replaced": "import builtins\n    p = builtins.print\n    builtins.print = lambda *a, **k: None\n    y = x * 2\n    builtins.print = p",
    "the folder is left": "import os, tempfile\n    os.chdir('/')\n    y = x * 2",
    "the folder is removed": "import os, tempfile\n    d = tempfile.mkdtemp(); os.chdir(d); os.rmdir(d)\n    y = x * 2",
    "argv is emptied": "import sys\n    sys.argv.clear()\n    y = x * 2",
    "modules are emptied": "import sys\n    kept = dict(sys.modules)\n    sys.modules.pop('json', None); sys.modules.pop('rich.table', None)\n    y = x * 2",
    "its own file is removed": "import os\n    os.path.exists(__file__) and os.remove(__file__)\n    y = x * 2",
    "the default dtype is another": "torch.set_default_dtype(torch.float16)\n    y = x * 2",
    "the default device is meta": "torch.set_default_device('meta')\n    y = x * 2\n    torch.set_default_device('cpu')",
    "warnings are errors": "import warnings\n    warnings.simplefilter('error')\n    y = x * 2",
    "a trace function is set": "import sys\n    sys.settrace(lambda *a: None)\n    y = x * 2",
    "the recursion limit is low": "import sys\n    sys.setrecursionlimit(150)\n    y = x * 2",
    "a signal's handler is set": "import signal\n    signal.signal(signal.SIGINT, signal.SIG_IGN)\n    y = x * 2",
    "no axes": "y = x.sum()",
    "no elements": "y = x[:0]",
    "thirty axes": "y = x.reshape([1] * 28 + [2, 3])",
    "NaN and infinity": "y = x * float('nan'); z = x / 0",
    "complex numbers": "y = torch.fft.fft(x)",
    "a sparse tensor": "y = x.to_sparse()",
    "a nested tensor": "y = torch.nested.nested_tensor([x[0], x[1, :2]])",
    "a quantized tensor": "y = torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)",
    "a meta tensor": "y = x.to('meta')",
    "names of many letters": "α_β = x * 2; 名前 = α_β + 1; y = 名前",
    "a name of 5000 letters": "" + "a" * 5000 + " = x * 2\n    y = x",
    "a line of 20000 letters": "y = x" + " + 1" * 5000,
    "a string of escapes": "y = x * len('\x1b[31m\x07')",
    "lambdas": "y = (lambda t: (lambda u: u * 2)(t))(x)",
    "exec": "exec('z = 3'); y = x * 2",
    "a class in it": "class A:\n        def __init__(self): self.y = x * 2\n    y = A().y",
    "match": "match x.shape:\n        case (a, b): y = x * 2\n        case _: y = x",
    "walrus": "y = (z := x * 2) + 1",
    "star": "a, *b = x; y = x",
    "del": "y = x * 2; z = y; del y",
    "global": "global G\n    G = x * 2; y = G",
    "inplace": "y = x.clone(); y += 1; y[0] = 7; y.t_(); y.resize_(1)",
    "no return": "pass",
    "an iterator that never ends, cut": "import itertools\n    y = [x for _ in itertools.islice(itertools.count(), 300)][0]",
}
"""The body of a function that does something strange and goes on."""

ENDS = {
    "sys.exit('text')": ("import sys; sys.exit('told by the code')", 1, "told by the code"),
    "sys.exit(3)": ("import sys; sys.exit(3)", 3, ""),
    "sys.exit()": ("import sys; sys.exit()", 0, ""),
    "sys.exit(None)": ("import sys; sys.exit(None)", 0, ""),
    "sys.exit(0)": ("import sys; sys.exit(0)", 0, ""),
    "sys.exit(256 + 7)": ("import sys; sys.exit(263)", 7, ""),
    "sys.exit(-1)": ("import sys; sys.exit(-1)", 255, ""),
    "sys.exit((1, 2))": ("import sys; sys.exit((1, 2))", 1, "(1, 2)"),
    "exit(4)": ("exit(4)", 4, ""),
    "raise SystemExit": ("raise SystemExit", 0, ""),
    "os._exit(5)": ("import os; os._exit(5)", 5, ""),
    "os.kill SIGTERM": ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -15, ""),
    "os.kill SIGKILL": ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -9, ""),
    "os.abort": ("import os; os.abort()", -6, ""),
    "KeyboardInterrupt": ("raise KeyboardInterrupt", 130, ""),
    "atexit": (
        "import atexit; atexit.register(lambda: print('at the end', flush=True)); import sys; sys.exit(6)",
        6,
        "",
    ),
    "fork": ("import os; pid = os.fork(); pid or os._exit(0); os.waitpid(pid, 0)", 0, ""),
}
"""Code that ends the process: the status, and what it says on stderr."""

FORMATS = [["--format", name] for name in ("json", "table", "markdown", "csv")]


def write(cases, body):
    """A file with a function of this body, and a program that calls it."""
    (cases.folder / "traced.py").write_text(
        f"import torch\n\n\ndef attend(x):\n    {body}\n    return x\n",
        encoding="utf-8",
        errors="surrogatepass",
    )
    (cases.folder / "program.py").write_text(
        "import torch\nfrom traced import attend\n\nattend(torch.ones(2, 3))\nprint('done')\n"
    )


TRACE = ["trace", "traced.py:attend", "--input", "x=n:2,d:3"]
RUN = ["run", "--watch", "traced.py:attend"]


@pytest.mark.parametrize("what", FAILURES)
def test_code_that_fails_is_shown_as_far_as_it_came(cases, what):
    write(cases, FAILURES[what])
    for more in (
        FORMATS[0],
        FORMATS[1],
        ["--source", "--subexpressions"],
        ["--device", "meta", *FORMATS[0]],
    ):
        quiet = "exit" not in FAILURES[what]
        cases.run(
            *TRACE,
            *more,
            statuses=[0, 1, 2] if "meta" in more or not quiet else [1],
            noisy=False,
            what=what,
        )
    cases.run(*TRACE, "--annotate", statuses=[1, 2], what=what)
    cases.run(*RUN, *FORMATS[len(what) % 4], "program.py", statuses=[1, 3, 130], noisy=True, what=what)


@pytest.mark.parametrize("what", STRANGE)
def test_strange_code_is_traced_or_refused(cases, what):
    write(cases, STRANGE[what])
    source = (cases.folder / "traced.py").read_bytes()
    for more in (
        FORMATS[0],
        ["--stats", *FORMATS[1]],
        ["--save", "saved.npz", "--force"],
        ["--subexpressions", "--source"],
        ["--annotate"],
        ["--check"],
    ):
        hidden = "stdout" in what or "stderr" in what
        cases.run(
            *TRACE,
            *more,
            statuses=[0, 1, 2],
            what=what,
            record=more == FORMATS[0] and not hidden,
            may_change=[cases.folder / "saved.npz"],
            theirs=[cases.folder / "traced.py"],
            noisy="thread that fails" in what,
        )
        (cases.folder / "traced.py").write_bytes(source)
    line = [*RUN, *FORMATS[len(what) % 4], "program.py"]
    of_its_own = what == "stderr is closed"  # a command keeps another for itself when its process begins
    cases.run(
        *line,
        statuses=[0, 1],
        noisy=True,
        what=what,
        within=(lambda: run_process(line)) if of_its_own else None,
        theirs=[cases.folder / "traced.py"],
    )


@pytest.mark.parametrize("what", ENDS)
def test_code_that_ends_the_process_ends_with_its_own_status_and_words(cases, what):
    """In processes of their own."""
    body, status, words = ENDS[what]
    write(cases, body)
    for line in ([*TRACE, *FORMATS[0]], [*RUN, "program.py"]):
        ended = cases.run(
            *line,
            statuses=[status],
            noisy=True,
            record=False,
            what=what,
            within=lambda line=line: run_process(line),
        )
        if words not in ended.err:
            cases.note([f"stderr does not say {words!r}"], line, ended, what)
        if "was not called" in ended.err:
            cases.note(["it says that what was called was not called"], line, ended, what)


MODULES = {
    "that fails when it is imported": "raise ValueError('\\x1b[31mat import')",
    "that ends when it is imported": "import sys\nsys.exit('at import')",
    "that is no Python": "def attend(x:\n",
    "with a tab among spaces": "def attend(x):\n\tif x:\n        return x\n",
    "of another encoding": "# coding: latin-1\n# \xe9\ndef attend(x):\n    return x\n",
    "that imports what is not there": "import nowhere_to_be_found",
    "that imports itself": "import traced\n\n\ndef attend(x):\n    return x\n",
    "that has no such name": "x = 1",
    "whose target is a number": "attend = 3",
    "whose target is a built-in": "attend = len",
    "whose target is a lambda": "attend = lambda x: x * 2",
    "whose target is a partial": "import functools\nattend = functools.partial(max, 1)",
    "whose target is a generator": "def attend(x):\n    yield x\n",
    "whose target is a coroutine": "async def attend(x):\n    return x\n",
    "whose target is a class without forward": "class attend:\n    pass\n",
    "whose target raises when it is made": "class attend:\n    def __init__(self):\n        raise ValueError('\\x1b[31mmade')\n    def forward(self, x):\n        return x\n",
    "whose target needs more": "def attend(x, y, z):\n    return x\n",
    "whose target takes anything": "def attend(*a, **k):\n    y = a[0] * 2\n    return y\n",
    "whose target has strange defaults": "class D:\n    def __repr__(self): return '\\x1b[31m\\n'\ndef attend(x, y=D()):\n    return x\n",
    "whose target's signature raises": "class attend:\n    __signature__ = 3\n    def forward(self, x):\n        return x\n",
    "with __getattr__": "def __getattr__(name):\n    raise RuntimeError(name)\n",
    "with a metaclass that raises": "class M(type):\n    def __call__(cls, *a): raise ValueError('meta')\nclass attend(metaclass=M):\n    def forward(self, x): return x\n",
    "that replaces stdout": "import io, sys\nsys.stdout = io.StringIO()\ndef attend(x):\n    y = x * 2\n    return y\n",
    "that closes stdout": "import sys\nsys.stdout.close()\ndef attend(x):\n    y = x * 2\n    return y\n",
    "that decorates": "def d(f):\n    return lambda *a: f(*a)\n@d\ndef attend(x):\n    y = x * 2\n    return y\n",
    "of ten thousand lines": "def attend(x):\n" + "    y = x * 2\n" * 10_000 + "    return y\n",
    "with a very deep expression": "def attend(x):\n    return " + "(" * 90 + "x" + ")" * 90 + "\n",
    "with a too deep expression": "def attend(x):\n    return " + "-" * 9000 + "x\n",
}  # fmt: skip


@pytest.mark.parametrize("what", MODULES)
def test_a_strange_module_is_traced_or_refused(cases, what):
    (cases.folder / "traced.py").write_bytes(
        MODULES[what].encode("latin-1" if "latin-1" in MODULES[what] else "utf-8")
    )
    (cases.folder / "program.py").write_text(
        "import torch\nfrom traced import attend\n\nattend(torch.ones(2, 3))\n"
    )
    hidden = "stdout" in what
    for more in (FORMATS[0], ["--annotate"], ["--source"]):
        cases.run(*TRACE, *more, statuses=[0, 1, 2], what=what, record=more == FORMATS[0] and not hidden)
    cases.run(*RUN, "program.py", statuses=[0, 1, 2], noisy=True, what=what)
    cases.run(*RUN, "-m", "traced", statuses=[0, 1, 2], noisy=True, what=what)


@pytest.mark.parametrize("n", [30, 100, 300])
def test_many_named_axes_are_shown(cases, n):
    """A tensor of one element in each of the axes would be too deep for torch: many tensors have them."""
    parameters = ", ".join(f"x{i}" for i in range(n))
    (cases.folder / "traced.py").write_text(
        f"def attend({parameters}):\n    y = x0 * 2\n    z = x{n - 1} + 1\n    return y, z\n"
    )
    inputs = [word for i in range(n) for word in ("--input", f"x{i}=a{i}:{i + 2}")]
    cases.run("trace", "traced.py:attend", *inputs, *FORMATS[0], statuses=[0], what=f"{n} axes")
    where = [word for i in range(1, n) for word in ("--where", f"a{i}=a{i - 1}+1")]
    cases.run(
        "trace",
        "traced.py:attend",
        *inputs,
        *where,
        *FORMATS[0],
        statuses=[0, 2],
        what=f"{n} axes, {n - 1} facts",
    )
    cases.run("trace", "traced.py:attend", *inputs, "--annotate", statuses=[0], what=f"{n} axes")


SPECS = [
    "", "=", "x", "x=", "=3", "x=,", "x=n", "x=n:", "x=:3", "x=n:0", "x=n:-1", "x=n:2,d:3@", "x=n:2,d:3@nope", "x=n:2,d:3@int64",
    "x=n:2,d:3@bool", "x=n:2,d:3@complex64", "x=n:2,d:3<5", "x=n:2,d:3<0", "x=n:2,d:3<-1", "x=n:2,d:3<x", "x=2,3", "x=n:2,n:3",
    "x=n:99999999999999999999,d:3", "x=n:1000000,d:1000000", "x=@nope.npz", "x=@.", "x=@/", "x=None", "x=[1, 2", "x='a'", "x={}",
    "x=lambda: 3", "x=__import__('os')", "x=n:2,d:3 y=3", "y=n:2", "x=n:2,d:3\n", "x=\x1b[31m:2", "x=n:2,d:\x1b[31m", "x=" + "n:1," * 40 + "n:1",
    "x=" + "a" * 5000, "x=(((((((((((((((((((((", "x=n:1e3", "x=n:٣", "x=n:2,d:3@float8_e4m3fn", "x=n/0:2", "x=10**10**10", "0=3", "x=torch:ones(2, 3)",
    "x=torch.nn:Linear(3, 3)", "x=os:system('true')", "x=builtins:exit()",
]  # fmt: skip


@pytest.mark.parametrize("option", ["--input", "--init", "--where", "--call", "--follow"])
def test_a_strange_argument_is_told(cases, option):
    write(cases, "y = x * 2")
    for spec in SPECS:
        more = [] if option == "--input" else ["--input", "x=n:2,d:3"]
        status = [0, 1, 2]
        cases.run(
            "trace",
            "traced.py:attend",
            *more,
            option,
            spec,
            *FORMATS[0],
            statuses=status,
            what=f"{option} {spec[:60]!r}",
            noisy="exit" in spec,
            record=None if "exit" not in spec else False,
        )
