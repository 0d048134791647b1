"""Shape comments: written from what ran and changing nothing else, and checked against it."""

import ast
import io
import os
import shutil
import stat
import subprocess
import tokenize

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnscope.base.errors import FileError, SourceError
from attnscope.code.trace.comments.annotate import annotate_file, annotate_source, diff, write
from attnscope.code.trace.comments.check import check_source
from attnscope.code.trace.comments.parse import shape_comments
from attnscope.observe.axes.expressions import parse_expression
from attnscope.observe.trace import Step

SIZES = {"n_batch": 128, "n_head": 5, "n_Q": 32, "n_K": 50, "d_feat": 200}
Q = ("n_batch", "n_Q", "d_feat")
SPLIT = ("n_batch", "n_head", "n_Q", "d_feat/n_head")
SCORES = ("n_batch", "n_head", "n_Q", "n_K")


def step(name, line, *dims, how="f(x)", shape=None, **more) -> Step:
    """A step with these dims, and the sizes that they have."""
    sizes = tuple(int(parse_expression(dim).size(SIZES)) for dim in dims) if shape is None else shape
    return Step(name, None if None in dims else dims, sizes, "float32", how, 0, line=line, **more)


def lies(text: str, *steps: Step, sizes=SIZES) -> list[str]:
    return [lie.message for lie in check_source(text, steps, sizes=sizes).lies]


# Writing.


@pytest.mark.parametrize(
    ("before", "steps", "after"),
    [
        ("y = f(x)\n", [step("y", 1, *Q)], "y = f(x)  # [n_batch, n_Q, d_feat]\n"),
        ("y = f(x)\n", [step("y", 1)], "y = f(x)  # []\n"),
        ("y = f(x)\n", [step("y", 1, None, shape=(3,))], "y = f(x)\n"),
        ("y = f(x)\n", [step("z", 1, *Q)], "y = f(x)\n"),
        ("y = f(x)\n", [step("y", 9, *Q)], "y = f(x)\n"),
        ("y = f(\n    x,\n)\n", [step("y", 1, "n_Q", "n_K")], "y = f(\n    x,\n)  # [n_Q, n_K]\n"),
        ("y = f(x) + \\\n    x\n", [step("y", 1, "n_Q", "n_K")], "y = f(x) + \\\n    x  # [n_Q, n_K]\n"),
        ("y = x; \\\nz = 1\n", [step("y", 1, "n_Q")], "y = x; \\\nz = 1  # y: [n_Q]\n"),
        ('y = f("#", """\n# [a, b]\n""")\n', [step("y", 1, "n_Q")], 'y = f("#", """\n# [a, b]\n""")  # [n_Q]\n'),
        ("y = f(x); z = g(y)\n", [step("y", 1, "n_Q"), step("z", 1, "n_K")], "y = f(x); z = g(y)  # y: [n_Q], z: [n_K]\n"),
        ("y = z = f(x)\n", [step("z", 1, "n_Q"), step("y", 1, "n_Q")], "y = z = f(x)  # y: [n_Q], z: [n_Q]\n"),
        ("y, _ = f(x)\n", [step("y", 1, "n_Q")], "y, _ = f(x)  # y: [n_Q]\n"),
        ("(a, b), *c = f(x)\n", [step("b", 1, "n_Q"), step("c[0]", 1, "n_K")], "(a, b), *c = f(x)  # b: [n_Q], c[0]: [n_K]\n"),
        ("self.y = f(x)\n", [step("self.y", 1, "n_Q")], "self.y = f(x)  # [n_Q]\n"),
        ("x[0] = f(x)\n", [step("x[0]", 1, "n_Q")], "x[0] = f(x)  # [n_Q]\n"),
        ("d['a'] = f(x)\n", [step("d['a']", 1, "n_Q")], "d['a'] = f(x)  # [n_Q]\n"),
        ("y += 1\n", [step("y", 1, "n_Q")], "y += 1  # [n_Q]\n"),
        ("if x: y = z\n", [step("y", 1, "n_Q")], "if x: y = z  # [n_Q]\n"),
        ("if (y := f(x)):\n    pass\n", [step("y", 1, "n_Q")], "if (y := f(x)):  # [n_Q]\n    pass\n"),
        ("for y in x:\n    pass\n", [step("y", 1, "n_Q", how="in x")], "for y in x:  # [n_Q]\n    pass\n"),
        ("with f(x) as y:\n    pass\n", [step("y", 1, "n_Q")], "with f(x) as y:  # [n_Q]\n    pass\n"),
        ("y: Tensor = f(x)\n", [step("y", 1, "n_Q")], "y: Tensor = f(x)  # [n_Q]\n"),
        ("def f(x):\n    return x + 1\n", [step("x", 1, "n_Q", how="input"), step("return", 2, "n_Q")], "def f(x):\n    return x + 1  # [n_Q]\n"),
        ("def f(x): return x + 1\n", [step("x", 1, "n_K", how="input"), step("return", 1, "n_Q")], "def f(x): return x + 1  # [n_Q]\n"),
        ("def f(x):\n    return (\n        x + 1\n    )\n", [step("return", 3, "n_Q")], "def f(x):\n    return (\n        x + 1\n    )  # [n_Q]\n"),
        ("def f(x):\n    return x, x + 1\n", [step("return[1]", 2, "n_Q")], "def f(x):\n    return x, x + 1  # return[1]: [n_Q]\n"),
        ("@d\n@e(x)\ndef f(x):\n    y = x\n", [step("y", 4, "n_Q")], "@d\n@e(x)\ndef f(x):\n    y = x  # [n_Q]\n"),
        ("y = input\n", [step("y", 1, "n_Q", how="input")], "y = input  # [n_Q]\n"),
        ("p = f(x)\n", [step("p[0]", 1, "n_Q"), step("p[1]", 1, "n_K")], "p = f(x)  # p[0]: [n_Q], p[1]: [n_K]\n"),
        ("p = f(x)\n", [step(f"p[{i}]", 1, "n_Q") for i in range(12)], "p = f(x)  # p[i]: [n_Q]\n"),
        ("shape = f(x)\n", [step("shape", 1, "3")], "shape = f(x)  # shape: [3]\n"),
        ("x[y[0], f(1)] = 1\n", [step("x[y[0], f(1)]", 1, "3")], "x[y[0], f(1)] = 1  # x[y[0], f(1)]: [3]\n"),
        ("x['#'] = 1\n", [step("x['#']", 1, "n_Q")], "x['#'] = 1\n"),
        ("y = f(x)\n", [step("y", 1, "3")], "y = f(x)  # y: [3]\n"),
    ],
)  # fmt: skip
def test_every_binding_gets_its_axes_at_the_end_of_its_line(before, steps, after):
    assert annotate_source(before, steps) == after
    assert annotate_source(after, steps) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("# [n_batch, n_Q, d_feat]", "# [n_batch, n_Q, d_feat]"),
        ("#[n_batch,n_Q,d_feat]", "#[n_batch,n_Q,d_feat]"),
        ("# (n_batch, n_Q, d_feat) the queries", "# (n_batch, n_Q, d_feat) the queries"),
        ("# y: [n_batch, n_Q, d_feat]", "# y: [n_batch, n_Q, d_feat]"),
        ("# [n_batch, n_K, d_feat]", "# [n_batch, n_Q, d_feat]"),
        ("# [B, T] the queries", "# [n_batch, n_Q, d_feat] the queries"),
        ("# [B, T], the queries", "# [n_batch, n_Q, d_feat], the queries"),
        ("#  (B, T)", "#  [n_batch, n_Q, d_feat]"),
        ("# y: [B, T]", "# [n_batch, n_Q, d_feat]"),
        ("# [B, T] or [T]", "# [n_batch, n_Q, d_feat]"),
        ("# [n_Q]", "# [n_batch, n_Q, d_feat]"),
        ("# the queries", "# [n_batch, n_Q, d_feat] the queries"),
        ("# the queries  # [B, T]", "# the queries  # [n_batch, n_Q, d_feat]"),
        ("# [B, T]  # noqa: E501", "# [n_batch, n_Q, d_feat]  # noqa: E501"),
        ("# [B, T] the queries # more", "# [n_batch, n_Q, d_feat] the queries # more"),
        ("# x: [B, T]", "# y: [n_batch, n_Q, d_feat], x: [B, T]"),
        ("# -> (B, T)", "# [n_batch, n_Q, d_feat]"),
        ("# (B, T) x (T, C) -> (B, C)", "# [n_batch, n_Q, d_feat]"),
        ("# y: B x T", "# [n_batch, n_Q, d_feat]"),
        ("# (B, T), (B, C)", "# [n_batch, n_Q, d_feat] (B, T), (B, C)"),
        ("# [1]", "# [n_batch, n_Q, d_feat] [1]"),
        ("# (optional)", "# [n_batch, n_Q, d_feat] (optional)"),
        ("# (Vaswani, 2017)", "# [n_batch, n_Q, d_feat] (Vaswani, 2017)"),
        ("# (y, z) of a pair", "# [n_batch, n_Q, d_feat] (y, z) of a pair"),
        ("# (i, j)", "# [n_batch, n_Q, d_feat] (i, j)"),
        ("# -> the head", "# [n_batch, n_Q, d_feat]: -> the head"),
        ("# or [B, T]", "# [n_batch, n_Q, d_feat]: or [B, T]"),
        ("# x (of f)", "# [n_batch, n_Q, d_feat]: x (of f)"),
        ("#: the queries", "#: [n_batch, n_Q, d_feat] the queries"),
        ("# noqa: E501 # the queries", "# noqa: E501 # [n_batch, n_Q, d_feat] the queries"),
        ("# the queries  # type: ignore", "# [n_batch, n_Q, d_feat] the queries  # type: ignore"),
        ("# pragma: no cover", "# pragma: no cover  # [n_batch, n_Q, d_feat]"),
        ("# (B x L x D)", "# [n_batch, n_Q, d_feat]"),
        ("# type: ignore[x]", "# type: ignore[x]  # [n_batch, n_Q, d_feat]"),
        ("# noqa: E501", "# noqa: E501  # [n_batch, n_Q, d_feat]"),
        ("#", "# [n_batch, n_Q, d_feat]"),
    ],
)  # fmt: skip
def test_a_comment_made_like_ours_is_renewed_and_any_other_is_kept(before, after):
    steps = [step("y", 1, *Q)]
    assert annotate_source(f"y = f(x)  {before}\n", steps) == f"y = f(x)  {after}\n"
    assert annotate_source(f"y = f(x)  {after}\n", steps) == f"y = f(x)  {after}\n"


def test_what_nobody_knows_any_more_is_kept_in_a_comment_on_several_names():
    text = "a, b = f(x)  # a: [B, T], b: [T, B]\n"
    assert annotate_source(text, [step("a", 1, "n_Q")]) == "a, b = f(x)  # a: [n_Q], b: [T, B]\n"


def test_shapes_without_names_are_each_name_s_in_turn():
    steps = [step("a", 1, "n_Q", "n_K"), step("b", 1, "n_K", "n_Q")]
    right = "a, b = f(x)  # (n_Q, n_K), (n_K, n_Q)\n"
    assert annotate_source(right, steps) == right
    wrong = "a, b = f(x)  # (n_K, n_Q), (n_K, n_Q) both\n"
    assert annotate_source(wrong, steps) == "a, b = f(x)  # a: [n_Q, n_K], b: [n_K, n_Q] both\n"


def test_a_line_that_makes_two_shapes_says_both_and_one_that_makes_more_is_left_alone():
    steps = [step("y", 1, "n_Q", "n_K"), step("y", 1, "n_K", "n_Q"), step("y", 1, "n_Q", "n_K")]
    both = "y = f(x)  # [n_Q, n_K] or [n_K, n_Q]\n"
    assert annotate_source("y = f(x)\n", steps) == annotate_source(both, steps) == both
    assert annotate_source("y = f(x)\n", [*steps, step("y", 1, "n_Q")]) == "y = f(x)\n"


def test_steps_of_other_files_are_left_out():
    steps = [step("y", 1, "n_Q", file="/a.py"), step("z", 2, "n_K", file="/b.py"), step("w", 3, "n_Q")]
    text = "y = 1\nz = 2\nw = 3\n"
    assert annotate_source(text, steps, file="/a.py") == "y = 1  # [n_Q]\nz = 2\nw = 3  # [n_Q]\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"y = 1\r\nz = 2\r\n", b"y = 1  # [n_Q]\r\nz = 2  # [n_K]\r\n"),
        (b"y = 1\r\nz = 2\n", b"y = 1  # [n_Q]\r\nz = 2  # [n_K]\n"),
        (b"y = 1\rz = 2\r", b"y = 1  # [n_Q]\rz = 2  # [n_K]\r"),
        (b"y = 1\nz = 2", b"y = 1  # [n_Q]\nz = 2  # [n_K]"),
        (b"y\t=\t1 \t\nz = 2\n\n\n", b"y\t=\t1 \t  # [n_Q]\nz = 2  # [n_K]\n\n\n"),
        (b"\x0cy = 1\nz = '\x0c'\n\x0c\n", b"\x0cy = 1  # [n_Q]\nz = '\x0c'  # [n_K]\n\x0c\n"),
        (b"\xef\xbb\xbfy = 1\nz = 2\n", b"\xef\xbb\xbfy = 1  # [n_Q]\nz = 2  # [n_K]\n"),
        ("y = 'ä\x85\u2028'\nz = '…'  # ü\n".encode(), "y = 'ä\x85\u2028'  # [n_Q]\nz = '…'  # [n_K] ü\n".encode()),
    ],
    ids=["crlf", "mixed", "cr", "no newline", "tabs", "form feed", "bom", "other ends of lines"],
)  # fmt: skip
def test_nothing_else_of_a_file_changes(tmp_path, before, after):
    path, steps = tmp_path / "m.py", [step("y", 1, "n_Q"), step("z", 2, "n_K")]
    path.write_bytes(before)
    assert annotate_file(path, steps) == (before, after)
    assert path.read_bytes() == before
    path.write_bytes(after)
    assert annotate_file(path, steps) == (after, after)


@pytest.mark.parametrize(
    ("encoding", "shape"),
    [("latin-1", "[n_batch·n_head]"), ("ascii", "[n_batch*n_head]"), ("utf-8", "[n_batch·n_head]")],
)
def test_a_file_keeps_its_encoding(tmp_path, encoding, shape):
    letter = "a" if encoding == "ascii" else "ä"
    before = f"# coding: {encoding}\ny = '{letter}'\n".encode(encoding)
    after = f"# coding: {encoding}\ny = '{letter}'  # {shape}\n".encode(encoding)
    (tmp_path / "m.py").write_bytes(before)
    assert annotate_file(tmp_path / "m.py", [step("y", 2, "n_batch·n_head")]) == (before, after)
    (tmp_path / "m.py").write_bytes(after)
    assert annotate_file(tmp_path / "m.py", [step("y", 2, "n_batch·n_head")]) == (after, after)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"y = = 1\n", "this is not Python: line 1: invalid syntax"),
        (b"y = '\xff'\n", "cannot read"),
        (b"# coding: nonsense\n", "unknown encoding"),
        (b"# coding: ascii\ny = 1\n", "ascii has no θ"),
        (b"y = 1\0\n", "this is not Python"),
    ],
)
def test_a_file_that_is_no_source_is_refused(tmp_path, content, message):
    (tmp_path / "m.py").write_bytes(content)
    with pytest.raises(SourceError, match=message):
        annotate_file(tmp_path / "m.py", [step("y", 2, "θ", shape=(3,))])


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(FileError, match="No such file"):
        annotate_file(tmp_path / "m.py", [])


LINES = st.sampled_from(
    [
        "a = f(x)", "a = f(\n{i}    x,\n{i})", "a, b = f(x)", "a = b = f('#')", "a += 1", "a = x; b = y", "pass",
        "a = '''# [x, y]\n'''", "a = b + \\\n{i}  c", "if x: a = y", "# a: [n_Q, n_K]", "", "a = x  # the values",
        "a = x  # [B, T] of a", "a = x # a: [3], b", "b = x\t# (B, T) -> (T,)", "if (a := b):\n{i}    b = a", "a = x  ",
        "for a in b:\n{i}    a = b\n{i}else:\n{i}    b = a", "a = f'{{a}}#'", "a = x #", "a = 'ü…'  #[n_Q] # ü", "\x0c",
        "a = x # coding: 3", "a = x \\\n", "with x as a, y as b: pass", "a = (x # [B, T]\n{i})",
    ]
)  # fmt: skip
DIM = st.sampled_from(["n_Q", "n_K", "d_feat/n_head", "3·d_feat", "3", "n_past+n_new", "2·n_Q-1", "_"])
STEP = st.builds(
    lambda name, line, dims: Step(name, dims, (), "float32", "f(x)", 0, line=line),
    st.sampled_from(["a", "b", "a[0]", "a[1]"]),
    st.integers(1, 30),
    st.none() | st.lists(DIM, max_size=3).map(tuple),
)


@pytest.mark.sweep
@settings(max_examples=400)
@given(
    st.lists(LINES, min_size=1, max_size=8),
    st.lists(STEP, max_size=20),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.booleans(),
)
def test_annotating_adds_comments_alone_and_none_a_second_time(lines, steps, end, in_function):
    indent = "    " * in_function
    body = "\n".join(indent + line.format(i=indent) if "{" in line else indent + line for line in lines)
    text = ("def f(x):\n" * in_function + body + "\n" + indent + "pass").replace("\n", end)
    try:
        ast.parse(text)
    except SyntaxError:
        return  # a backslash before nothing
    new = annotate_source(text, steps)
    assert ast.dump(ast.parse(new)) == ast.dump(ast.parse(text))
    assert without_comments(new) == without_comments(text)
    assert annotate_source(new, steps) == new
    before, after = io.StringIO(text, newline=""), io.StringIO(new, newline="")
    for old_line, new_line in zip(before, after, strict=True):
        bare = old_line.rstrip("\r\n")
        if "[" not in bare and "(B" not in bare:  # else a comment may have been renewed
            assert new_line.endswith(old_line[len(bare) :])
            rest = iter(new_line)
            assert all(letter in rest for letter in bare.rstrip())  # all of it is there, in this order
    check_source(new, steps, sizes=SIZES)


def without_comments(text: str) -> list[str]:
    plain = "".join(line.rstrip("\r\n") + "\n" for line in io.StringIO(text, newline=""))
    tokens = tokenize.generate_tokens(io.StringIO(plain).readline)
    return [token.string for token in tokens if token.type not in (tokenize.COMMENT, tokenize.NL)]


# Files.

NUMBERS = b"".join(b"%d\n" % i for i in range(40))


@pytest.mark.skipif(shutil.which("diff") is None, reason="there is no diff")
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"a\nb\n", b"a\nc\n"),
        (b"a\nb", b"a\nc"),
        (b"a\r\nb\r\n", b"a\r\nc\r\n"),
        (b"a\nb", b"a\nb\n"),
        (NUMBERS, NUMBERS.replace(b"7\n", b"7 # x\n")),
        ("ä\n".encode(), "ä  # ·\n".encode()),
        (b"a\x0cb\n", b"a\x0cc\n"),
    ],
)
def test_a_diff_is_what_diff_shows(tmp_path, old, new):
    for name, content in (("old", old), ("new", new)):
        (tmp_path / name).write_bytes(content)
    labels = ["--label", "m.py", "--label", "m.py"]
    shown = subprocess.run(["diff", "-u", *labels, "old", "new"], cwd=tmp_path, capture_output=True)
    assert diff(old, new, "m.py").encode() == shown.stdout


def test_no_diff_is_nothing():
    assert diff(b"a", b"a", "m.py") == ""


def test_a_diff_reads_a_file_in_its_own_encoding():
    old, new = (
        "# coding: latin-1\nä\n".encode("latin-1"),
        "# coding: latin-1\nä  # ·\n".encode("latin-1"),
    )
    assert diff(old, new, "m.py").splitlines()[-2:] == ["-ä", "+ä  # ·"]


def test_a_file_is_written_whole_with_its_rights_and_through_links(tmp_path):
    real, link = tmp_path / "folder" / "m.py", tmp_path / "link.py"
    real.parent.mkdir()
    real.write_bytes(b"old")
    real.chmod(0o754)
    link.symlink_to(real)
    write(link, b"old", b"new")
    assert real.read_bytes() == b"new"
    assert stat.S_IMODE(real.stat().st_mode) == 0o754
    assert link.is_symlink()
    assert os.listdir(real.parent) == ["m.py"]


def test_a_file_that_has_changed_meanwhile_is_left_alone(tmp_path):
    path = tmp_path / "m.py"
    path.write_bytes(b"other")
    with pytest.raises(FileError, match="has changed since it was read"):
        write(path, b"old", b"new")
    assert path.read_bytes() == b"other"


def test_two_shapes_of_which_the_first_looks_like_a_reference_are_written_once():
    steps = [Step("a", dims, (), "float32", "f(x)", 0, line=1) for dims in [("3",), ()]]
    assert annotate_source("a = f(x)\n", steps) == "a = f(x)  # a: [3] or []\n"
    assert annotate_source("a = f(x)  # a: [3] or []\n", steps) == "a = f(x)  # a: [3] or []\n"


def test_a_file_that_cannot_be_replaced_is_left_alone(tmp_path, monkeypatch):
    path = tmp_path / "m.py"
    path.write_bytes(b"old")

    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(FileError, match="No space left on device"):
        write(path, b"old", b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["m.py"]


# Reading comments.


@pytest.mark.parametrize(
    ("comment", "expected"),
    [
        ("# [n_batch, n_head, n_Q, d_head]", [("", "[n_batch, n_head, n_Q, d_head]")]),
        ("#[B,T]", [("", "[B,T]")]),
        ("# (B, T, C)", [("", "(B, T, C)")]),
        ("# (B, T, C) or so", [("", "(B, T, C)")]),
        ("# (B, T, C): the queries", [("", "(B, T, C)")]),
        ("# (B, T, C) - the queries", [("", "(B, T, C)")]),
        ("# (B, T, C).", [("", "(B, T, C)")]),
        ("# -> (B, T, C)", [("", "(B, T, C)")]),
        ("# shape: (B, T, C)", [("", "(B, T, C)")]),
        ("# (B, nh, T, hs) x (B, nh, hs, T) -> (B, nh, T, T)", [("", "(B, nh, T, T)")]),
        ("# (B, T) @ (T, C) → (B, C)", [("", "(B, C)")]),
        ("# (B, T, C) -> (B, nh, T, hs) -> (B, T, C)", [("", "(B, T, C)")]),
        ("# (3, 30, 128)", [("", "(3, 30, 128)")]),
        ("# (..., T, d)", [("", "(..., T, d)")]),
        ("# […, 2*d, d_feat//n_head, n_head·d_head]", [("", "[…, 2*d, d_feat//n_head, n_head·d_head]")]),
        ("# (B, _, ?, -1)", [("", "(B, _, ?, -1)")]),
        ("# (B, (T + 1) // 2)", [("", "(B, (T + 1) // 2)")]),
        ("# [T]", [("", "[T]")]),
        ("# (T,)", [("", "(T,)")]),
        ("# [n_Q]", [("", "[n_Q]")]),
        ("# []", [("", "[]")]),
        ("# [B, T] or [T, B]", [("", "[B, T] or [T, B]")]),
        ("# (B, T), (T, B)", [("", "(B, T)"), ("", "(T, B)")]),
        ("# the queries  # [B, T]", [("", "[B, T]")]),
        ("# Q_split: [B, T] the queries", [("Q_split", "[B, T]")]),
        ("# a: [B, T], b: [T] or [B]", [("a", "[B, T]"), ("b", "[T] or [B]")]),
        ("# q, k: (B, T)", [("q", "(B, T)"), ("k", "(B, T)")]),
        ("# self.attn: [B, T]", [("self.attn", "[B, T]")]),
        ("# parts[0]: [3]", [("parts[0]", "[3]")]),
        ("# d['a b']: [3]", [("d['a b']", "[3]")]),
        ("# x: B x T x C", [("x", "B x T x C")]),
        ("# x: B T C", [("x", "B T C")]),
        ("# x: (B, T) -> (T, B)", [("x", "(T, B)")]),
        ("# Größe: [B, θ]", [("Größe", "[B, θ]")]),
    ],
)
def test_a_comment_on_shapes_is_understood(comment, expected):
    found = [
        (name, c.text)
        for part in shape_comments(comment)
        for c in part.claims
        for name in c.names or ("",)
    ]
    assert found == expected


@pytest.mark.parametrize(
    "comment",
    [
        "#", "# TODO (x)", "# TODO (B, T)", "# (see the paper)", "# [see the paper]", "# [1]", "# (1)", "# (a)", "# (x)",
        "# (optional)", "# [unused]", "# (Vaswani, 2017)", "# (Vaswani et al., 2017)", "# noqa: E501", "# noqa: E501, W291",
        "# type: ignore[x]", "# type: (B, T) -> C", "# type: (int, int)", "# fmt: skip", "# B T C", "# B x T x C",
        "# the shape is (B, T, C)", "# (B, T) x (T, C)", "# (B, T) * 3", "# (B, T) -> three of them", "# (B, T)[0]",
        "# [B, T].view(x)", "# (B, T", "# (B, T]", "# B, T)", "# (B,, T)", "# (B, T:)", "# [x for x in y]", "# [a=1, b]",
        "# (..., T, ...)", "# x: the queries", "# x: (optional)", "# x: a long story", "# x: see below", "# x: 3",
        "# see: https://example.org/(a,b)", "# -> the queries", "# (and/or)", "# (B, T ; C)", "# ('B', 'T')", "# f(B, T)",
        "# (" + "(" * 5000, "# (" + "(" * 40 + ", B)", "# [T/0, B]", "# !python", "# x[: (B, T)", "# (B, " + "T*" * 99 + "T)",
    ],
)  # fmt: skip
def test_a_comment_on_something_else_is_not_misread(comment):
    assert shape_comments(comment) == []


def test_a_single_word_in_parentheses_is_an_axis_if_it_is_known():
    assert shape_comments("# (queries)") == []
    assert shape_comments("# (queries)", {"queries"}) != []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("d_feat/n_head", "d_feat // n_head"),
        ("n_head·d_head", "d_head * n_head"),
        ("n_head * (d_feat / n_head)", "d_feat"),
        ("n_past+n_new", "n_new + n_past"),
        ("2*(a + b) - a", "a + 2·b"),
        ("a*a/a", "a"),
        ("4*d/2", "2*d"),
    ],
)
def test_equal_axes_are_found_to_be_equal(one, other):
    assert parse_expression(one) == parse_expression(other) is not None


@pytest.mark.parametrize(
    ("one", "other"), [("a", "b"), ("a/b", "b/a"), ("a", "2*a"), ("a*b", "a+b"), ("a", "a*a")]
)
def test_other_axes_are_not(one, other):
    assert parse_expression(one) != parse_expression(other)


# Checking.


@pytest.mark.parametrize(
    "comment",
    [
        "[n_batch, n_head, n_Q, d_feat/n_head]", "(n_batch, n_head, n_Q, d_feat // n_head)", "(B, nh, T, hs)",
        "-> (B, nh, T, hs)", "(128, 5, 32, 40)", "(..., n_Q, _)", "[n_batch, ..., hs]", "(B, ?, -1, hs)", "y: B x nh x T x hs",
        "y: [n_batch, n_head, n_Q, 200/n_head]", "[n_batch, ..., n_head, n_Q, 40]", "[n_Q] or [n_batch, n_head, n_Q, d]",
        "(128, nh, T, 40)",
    ],
)  # fmt: skip
def test_a_true_comment_is_true(comment):
    result = check_source(f"y = f(x)  # {comment}\n", [step("y", 1, *SPLIT)], sizes=SIZES)
    assert (result.true, result.lies, result.unknown) == (1, [], [])


@pytest.mark.parametrize(
    ("comment", "reason"),
    [
        ("[n_batch, n_Q, n_head, d_head]", "axis 1 is n_head, not n_Q"),
        ("(B, T, C)", "it has 4 axes, not 3"),
        ("(B, T, C, ..., d, e)", "it has 4 axes, not 5 or more"),
        ("(B, n_Q, nh, hs)", "axis 1 is n_head, not n_Q"),
        ("(B, T, T, hs)", "axis 2 is n_Q, but T is n_head on line 1"),
        ("(128, 32, 5, 40)", "axis 1 is n_head = 5, not 32"),
        ("(..., n_K, hs)", "axis 2 is n_Q, not n_K"),
        ("(..., 2*n_Q, hs)", "axis 2 is n_Q = 32, not 2*n_Q = 64"),
        ("(B, nh, T, d_feat)", "axis 3 is d_feat/n_head, not d_feat"),
        ("(B, nh, T, T*nh)", "axis 3 is d_feat/n_head, not T*nh"),
        ("[n_Q] or [n_batch, n_K, n_Q, d]", "axis 1 is n_head, not n_K"),
    ],
)
def test_a_comment_that_lies_is_told_so(comment, reason):
    (lie,) = check_source(f"y = f(x)  # {comment}\n", [step("y", 1, *SPLIT)], sizes=SIZES).lies
    assert (lie.line, lie.name, lie.said) == (1, "y", comment)
    assert lie.ran == "[n_batch, n_head, n_Q, d_feat/n_head] = [128, 5, 32, 40]"
    assert lie.message == (
        f"line 1: the comment says y is {comment},"
        f" but it is [n_batch, n_head, n_Q, d_feat/n_head] (128×5×32×40): {reason}."
    )


def test_where_nobody_could_explain_an_axis_its_size_decides():
    unknown = step("y", 1, "n_batch", "32", "n_Q")
    assert lies("y = f(x)  # (n_batch, n_Q, n_Q)\n", unknown) == []
    assert lies("y = f(x)  # (n_batch, n_K, n_Q)\n", unknown) == [
        "line 1: the comment says y is (n_batch, n_K, n_Q), but it is [n_batch, 32, n_Q] (128×32×32):"
        " axis 1 is 32, not n_K = 50."
    ]
    nameless = step("y", 1, None, shape=(128, 32))
    assert lies("y = f(x)  # (n_batch, T)\n", nameless) == []
    assert lies("y = f(x)  # (n_Q, T)\n", nameless) == [
        "line 1: the comment says y is (n_Q, T), but it is [128, 32]: axis 0 is 128, not n_Q = 32."
    ]
    assert lies("y = f(x)  # []\n", nameless) == [
        "line 1: the comment says y is [], but it is [128, 32]: it has 2 axes, not 0."
    ]


def test_a_word_stands_for_the_same_axis_throughout_a_function():
    text = (
        "def f(x):\n    a = g(x)  # (B, T)\n    b = h(x)  # (T, B)\n\ndef h(x):\n    c = x  # (T, B)\n"
    )
    steps = [
        step("a", 2, "n_batch", "n_Q"),
        step("c", 6, "n_Q", "n_batch"),
        step("b", 3, "n_batch", "n_Q"),
    ]
    assert lies(text, *steps) == [
        "line 3: the comment says b is (T, B), but it is [n_batch, n_Q] (128×32):"
        " axis 0 is n_batch, but T is n_Q on line 2."
    ]


def test_a_word_may_stand_for_something_else_when_the_function_is_called_again():
    text = "def f(x, y):\n    a = x  # (B, T)\n    return a + 1  # (B, T)\n"
    steps = []
    for axis in ("n_Q", "n_K", "n_Q"):
        steps += [step(name, 1, "n_batch", axis, how="input", depth=1) for name in ("x", "y")]
        steps += [step("a", 2, "n_batch", axis, depth=1), step("return", 3, "n_batch", axis, depth=1)]
    assert lies(text, *steps) == []
    steps[-1] = step("return", 3, "n_batch", "n_K", depth=1)
    assert lies(text, *steps) == [
        "line 3: the comment says the return value is (B, T), but in run 3 of 3 it is [n_batch, n_K] (128×50):"
        " axis 1 is n_K, but T is n_Q on line 2."
    ]


def test_a_comment_must_be_true_of_every_run():
    steps = [step("y", 1, "n_Q", "n_K"), step("y", 1, "n_Q", "n_K", times=3), step("y", 1, "n_Q", "n_Q")]
    assert lies("y = f(x)  # [n_Q, n_K]\n", *steps) == [
        "line 1: the comment says y is [n_Q, n_K], but in run 5 of 5 it is [n_Q, n_Q] (32×32): axis 1 is n_Q, not n_K."
    ]
    assert lies("y = f(x)  # [n_Q, n_K] or [n_Q, n_Q]\n", *steps) == []


PLACES = """def f(x):  # x: [n_batch, n_Q]
    # y: [n_Q]
    y = g(x)
    # z: [n_K]
    # w: [n_head]
    z = g(y)
    w = g(y)
    y = y + 1
    # y: [n_batch]
    return y  # [n_batch]

# y: [n_K]
y = 1
"""
PLACED = [
    step("x", 1, "n_batch", "n_Q", how="input"), step("y", 3, "n_Q"), step("z", 6, "n_K"), step("w", 7, "n_head"),
    step("y", 8, "n_batch"),
]  # fmt: skip


def test_a_comment_with_a_name_finds_its_binding():
    result = check_source(PLACES, PLACED, sizes=SIZES)
    assert (result.true, result.lies) == (6, [])
    assert [(unknown.line, unknown.name) for unknown in result.unknown] == [(12, "y")]
    for line in (1, 2, 4, 5, 9, 10):
        lines = PLACES.split("\n")
        lines[line - 1] = lines[line - 1].split("[")[0] + "[d_feat]"
        assert [lie.line for lie in check_source("\n".join(lines), PLACED, sizes=SIZES).lies] == [line]


@pytest.mark.parametrize(
    ("text", "true", "steps"),
    [
        ("def f(\n    a,  # (B, T)\n    b,  # (T, B)\n):\n    pass\n", 2, [step("a", 1, "n_Q", "n_K", how="input"), step("b", 1, "n_K", "n_Q", how="input")]),
        ("def f(x):\n    y = g(\n        a,  # (B, T, C)\n    )  # (B, T)\n", 1, [step("y", 2, "n_Q", "n_K")]),
        ("def f(x):\n    return (\n        x + 1,  # (B, T)\n        x.mT  # (T, B)\n    )\n", 2, [step("return[0]", 2, "n_Q", "n_K"), step("return[1]", 2, "n_K", "n_Q")]),
        ("def f(x):\n    y = x\n    if x:\n        z = y\n    else:\n        # y: [n_Q]\n        pass\n    # y: [n_Q]\n", 2, [step("y", 2, "n_Q")]),
        ("def f(x):\n    y = x\n    def g():\n        y = 1\n    # y: [n_Q]\n", 1, [step("y", 2, "n_Q")]),
        ("a, b = f(x)  # (B, T), (T, B)\n", 2, [step("a", 1, "n_Q", "n_K"), step("b", 1, "n_K", "n_Q")]),
        ("p = f(x)  # p[0]: [n_Q], p[1]: [n_K]\n", 2, [step("p[0]", 1, "n_Q"), step("p[1]", 1, "n_K")]),
        ("p = f(x)  # p[i]: [n_Q, B]\n# p: (n_Q, B)\n", 2, [step("p[0]", 1, "n_Q", "n_K"), step("p[1]", 1, "n_Q", "n_K")]),
        ("for h in x:  # (B, T)\n    y = h\n    # h: [n_Q, n_K]\n", 2, [step("h", 1, "n_Q", "n_K")]),
    ],
)  # fmt: skip
def test_comments_stand_in_many_places(text, true, steps):
    result = check_source(text, steps, sizes=SIZES)
    assert (result.true, result.lies, result.unknown) == (true, [], [])


@pytest.mark.parametrize(
    "text",
    [
        "f(x)  # (B, T)\n", "# (B, T)\ny = 1\n", "y = 1  # z: (B, T)\n", "# z: [B]\ny = 1\n", "def f(x):  # (B, T)\n    pass\n",
        "a, b = x  # (B, T), (T, B), (B, B)\n", "", "# y: [B]",
    ],
)  # fmt: skip
def test_a_comment_that_belongs_to_nothing_is_ignored(text):
    result = check_source(text, [step("y", 2, "n_Q")], sizes=SIZES)
    assert (result.true, result.lies, result.unknown) == (0, [], [])


def test_a_comment_on_what_did_not_run_is_reported_and_no_lie():
    (unknown,) = check_source("y = f(x)  # (B, T)\n", [], sizes=SIZES).unknown
    assert unknown.message == "line 1: the comment says y is (B, T), but no tensor was created there."
