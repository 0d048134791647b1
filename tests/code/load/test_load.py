"""What a user names is imported as Python would import it, and nothing is written beside it."""

import dataclasses
import os
import pickle
import sys
from pathlib import Path

import pytest

from attnscope.base.errors import AttnscopeError, FileError, SourceError
from attnscope.code.load.load import FORM, load

ATTENTION = """
from dataclasses import dataclass

WIDTH = 40

@dataclass
class Shape:
    n_head: int = 5

class Attention:
    class Inner:
        pass
    def forward(self, x):
        return x
    @staticmethod
    def scale(d_head):
        return d_head ** -0.5
    @classmethod
    def small(cls):
        return cls()

def sdpa(Q, K, V):
    return V

if __name__ == "__main__":
    raise SystemExit("ran as a script")
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A folder to be in; what is imported from it is forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    Path("my_attn.py").write_text(ATTENTION)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


def refused(text) -> AttnscopeError:
    with pytest.raises(AttnscopeError) as caught:
        load(text)
    assert "\n" not in caught.value.message
    return caught.value


@pytest.mark.parametrize("place", ["my_attn.py", "./my_attn.py", "my_attn"])
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Attention", type),
        ("Attention.Inner", type),
        ("sdpa", type(load)),
        ("Attention.scale", type(load)),
    ],
)
def test_a_file_or_a_module_gives_what_is_named_in_it(place, name, kind):
    loaded = load(f"{place}:{name}")
    assert loaded.name == name
    assert isinstance(loaded.object, kind)
    assert loaded.object.__qualname__ == name
    assert loaded.module is sys.modules["my_attn"]


def test_what_is_loaded_is_as_python_imports_it():
    assert load("my_attn.py:sdpa").object.__code__.co_filename == os.path.abspath("my_attn.py")
    assert type(load("my_attn.py:Attention.small").object()).__name__ == "Attention"
    assert load("collections.abc:Mapping.get").object.__name__ == "get"
    assert load("my_attn.py:Shape").object is load("./my_attn.py:Shape").object


def test_classes_of_a_file_can_be_pickled_and_compared():
    shape = load("my_attn.py:Shape").object(n_head=7)
    assert dataclasses.is_dataclass(shape)
    assert pickle.loads(pickle.dumps(shape)) == shape


def test_nothing_is_written_beside_the_file(here):
    Path("helper.py").write_text("n_head = 5")
    Path("my_attn.py").write_text("import helper\nclass Attention: pass")
    Path("bad.py").write_text("1 / 0")
    load("my_attn.py:Attention")
    refused("bad.py:Attention")
    assert sorted(path.name for path in here.rglob("*")) == ["bad.py", "helper.py", "my_attn.py"]
    assert sys.dont_write_bytecode is False
    assert "bad" not in sys.modules


def test_a_file_may_import_its_neighbours_when_it_is_called():
    Path("sub").mkdir()
    Path("sub/neighbour.py").write_text("n_head = 7")
    Path("sub/late.py").write_text("def heads():\n    import neighbour\n    return neighbour.n_head")
    assert load("sub/late.py:heads").object() == 7


def test_a_file_of_a_package_may_import_relatively():
    Path("outer/inner").mkdir(parents=True)
    Path("outer/__init__.py").write_text("n_head = 5")
    Path("outer/inner/__init__.py").write_text("")
    Path("outer/inner/attn.py").write_text("from .. import n_head\nclass Attention:\n    heads = n_head")
    loaded = load("outer/inner/attn.py:Attention")
    assert loaded.object.heads == 5
    assert loaded.module.__name__ == "outer.inner.attn"


@pytest.mark.parametrize("stem", ["json", "queue", "pytest", "attnscope"])
def test_a_file_does_not_take_the_place_of_another_module(stem):
    before = sys.modules.get(stem)
    Path(f"{stem}.py").write_text("class Attention: pass")
    loaded = load(f"{stem}.py:Attention")
    assert loaded.object.__name__ == "Attention"
    assert loaded.module is sys.modules[loaded.object.__module__]
    assert loaded.module is not before
    assert sys.modules.get(stem) is before
    assert load(f"{stem}.py:Attention").object is loaded.object


@pytest.mark.parametrize("package", ["", "pkg"])
def test_two_files_of_one_name_each_import_their_own_parts(package):
    for folder, size in [("a", 3), ("b", 4)]:
        Path(folder, package).mkdir(parents=True)
        code = f"class Attention:\n    heads = {size}"
        if package:
            Path(folder, "pkg/__init__.py").write_text("")
            Path(folder, "pkg/sizes.py").write_text(f"n_head = {size}")
            code = "from .sizes import n_head\nclass Attention:\n    heads = n_head"
        Path(folder, package, "attn.py").write_text(code)
    places = [os.path.join(folder, package, "attn.py") for folder in "ab"]
    assert [load(f"{place}:Attention").object.heads for place in places] == [3, 4]


@pytest.mark.parametrize(
    ("text", "kind", "message", "hint"),
    [
        ("my_attn.py", SourceError, "my_attn.py is a file: name the class or function in it as well.", "my_attn.py:Attention"),
        ("my_attn.py:", SourceError, "my_attn.py is a file: name the class or function in it as well.", "my_attn.py:Attention"),
        ("Attention", SourceError, "'Attention' does not name a class or function.", FORM),
        (":Attention", SourceError, "'Attention' does not name a class or function.", FORM),
        ("my_atn.py:Attention", FileError, "there is no file my_atn.py.", "my_attn.py, which exists"),
        ("else/where.py:Attention", FileError, "there is no file else/where.py.", None),
        ("notes.txt:Attention", FileError, "notes.txt is not a .py file.", FORM),
        ("folder/:Attention", FileError, "folder is a folder.", FORM),
        ("my_atn:Attention", SourceError, "there is no module my_atn, here or among the installed packages.", "my_attn.py"),
        ("no.such.module:Attention", SourceError, "there is no module no, here or among the installed packages.", FORM),
        ("json.such:Attention", SourceError, "there is no module json.such, here or among the installed packages.", FORM),
        ("my-attn:Attention", SourceError, "'my-attn' is neither a .py file nor the name of a module.", FORM),
        ("my_attn.py:Attenton", SourceError, "my_attn.py has no Attenton: it defines Shape, Attention, sdpa.", "my_attn.py:Attention"),
        ("my_attn.py:x", SourceError, "my_attn.py has no x: it defines Shape, Attention, sdpa.", "my_attn.py:NAME"),
        ("my_attn.py:Attention.Iner", SourceError, "Attention has no Iner: it defines Inner, forward, scale, small.", "my_attn.py:Attention.Inner"),
        ("my_attn.py:WIDTH", SourceError, "WIDTH in my_attn.py is of type int: neither a class nor a function.", "my_attn.py:NAME"),
        ("collections:OrderedDct", SourceError, "collections has no OrderedDct: it defines ", "collections:OrderedDict"),
    ],
)  # fmt: skip
def test_what_cannot_be_loaded_is_told(text, kind, message, hint):
    Path("notes.txt").write_text("nothing")
    Path("folder").mkdir()
    error = refused(text)
    assert type(error) is kind
    assert error.message.startswith(message)
    assert error.hint == hint


def test_several_classes_with_a_forward_are_all_named_in_the_hint():
    Path("two.py").write_text(
        "class A:\n    def forward(self): ...\nclass B(A):\n    def forward(self): ..."
    )
    assert refused("two.py").hint == "two.py:NAME, such as A, B"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("x = 1\nclass A(nn.Module): pass", "NameError: name 'nn' is not defined (line 2 of bad.py: class A(nn.Module): pass)"),
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module' (line 1 of bad.py: import no_such_module)"),
        ("def f(:\n    pass", "SyntaxError: invalid syntax (line 1 of bad.py: def f(:)"),
        ("def f():\n    raise ValueError('7 is odd\\nvery')\nf()", "ValueError: 7 is odd (line 2 of bad.py: raise ValueError('7 is odd\\nvery'))"),
        ("import json\n\njson.loads('')", "JSONDecodeError: Expecting value: line 1 column 1 (char 0) (line 3 of bad.py: json.loads(''))"),
        ("import sys\nsys.exit(4)", "SystemExit: 4 (line 2 of bad.py: sys.exit(4))"),
        ("assert 5 == 7", "AssertionError (line 1 of bad.py: assert 5 == 7)"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("place", ["bad.py", "bad"])
def test_an_import_that_raises_is_told_with_its_line(place, code, message):
    Path("bad.py").write_text(code)
    error = refused(f"{place}:A")
    assert type(error) is SourceError
    assert error.message == f"importing {place} raises {message}."
    assert type(error.__cause__).__name__ == message.split(":")[0].split(" ")[0]
