"""Every text of a corpus is in one window, wherever it is stored and wherever one goes on reading."""

import gzip
import hashlib
import io
import json
import os
import random
import re
import sys
import tracemalloc
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnscope.base.errors import AttnscopeError, FileError, OptionError
from attnscope.model.heads import corpus as module
from attnscope.model.heads.corpus import (
    MAX_LINE_BYTES,
    STRETCH,
    WINDOW,
    Corpus,
    CorpusWindow,
    Position,
    open_corpus,
)
from tests.sweeps import swept

PLAIN = ["x.txt", "x.txt.gz", "-"]
BEGINNING = Position()
JSON = ["x.jsonl", "x.ndjson", "x.jsonl.gz", "x.ndjson.gz", "-"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> Path:
    """Change to a folder, because users name files relative to the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@contextmanager
def stored(name: str, data: bytes):
    """A corpus is in a file of this name, or comes in through standard input."""
    if name == "-":
        with patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(data))):
            yield
        return
    Path(name).write_bytes(gzip.compress(data, mtime=0) if name.endswith(".gz") else data)
    yield


def windows_of(name: str, data: bytes, start: Position = BEGINNING, **fields) -> list[CorpusWindow]:
    with stored(name, data):
        return list(open_corpus(name, **fields).windows(start))


def texts_of(windows: list[CorpusWindow]) -> list[tuple]:
    return [(text.line, text.text, text.target) for window in windows for text in window.texts]


def skipped_of(name: str, data: bytes, **fields) -> tuple[int, str] | None:
    """The first line that is skipped, of one window."""
    [window] = windows_of(name, data, **fields)
    return window.first_skipped


def refused(name: str, **fields) -> AttnscopeError:
    with pytest.raises(AttnscopeError) as caught:
        list(open_corpus(name, **fields).windows())
    assert "\n" not in caught.value.message
    return caught.value


def random_lines() -> bytes:
    drawn = random.Random(0)
    return b"".join(drawn.randbytes(500).hex().encode() + b"\n" for _ in range(1000))


# What is read


@pytest.mark.parametrize("name", PLAIN)
def test_each_line_is_a_text(name):
    data = " one\r\ntwö 2\nthree\u2028still\x85three\r, and on".encode()
    [window] = windows_of(name, data)
    expected = [(1, " one", None), (2, "twö 2", None), (3, "three\u2028still\x85three\r, and on", None)]
    assert texts_of([window]) == expected
    assert (window.lines, window.offset, window.skipped) == (3, len(data), 0)


@pytest.mark.parametrize("name", JSON)
def test_each_object_has_a_text_and_may_have_a_target(name):
    lines = [{"text": "a\nb", "body": "B", "de": "D"}, {"de": "d", "id": 7, "text": "é", "body": "b"}]
    data = b"\n".join(json.dumps(line).encode() for line in lines)
    both = windows_of(name, data, field="body", target_field="de")
    assert texts_of(both) == [(1, "B", "D"), (2, "b", "d")]
    assert texts_of(windows_of(name, data, field="text")) == [(1, "a\nb", None), (2, "é", None)]
    assert texts_of(windows_of(name, data, target_field="de")) == [(1, "a\nb", "D"), (2, "é", "d")]
    if name != "-":
        assert texts_of(windows_of(name, data)) == texts_of(windows_of(name, data, field="text"))


def test_standard_input_is_plain_lines_where_no_field_is_asked_for():
    assert texts_of(windows_of("-", b'{"text": "a"}\n')) == [(1, '{"text": "a"}', None)]


@pytest.mark.parametrize("name", ["X.TXT", "X.Txt.GZ"])
def test_suffixes_may_be_written_in_capitals(name):
    Path(name).write_bytes(gzip.compress(b"a") if name.endswith("GZ") else b"a")
    assert texts_of(list(open_corpus(name).windows())) == [(1, "a", None)]


def test_numbers_of_any_length_may_stand_beside_a_text():
    line = b'{"id": ' + b"7" * 10_000 + b', "nan": NaN, "text": "a"}'
    assert texts_of(windows_of("x.jsonl", line)) == [(1, "a", None)]


def test_a_pipe_that_is_closed_early_is_the_end():
    reader, writer = os.pipe()
    os.write(writer, b"one\ntw")
    os.close(writer)
    with open(reader, encoding="utf-8") as pipe, patch.object(sys, "stdin", pipe):
        [window] = open_corpus("-").windows()
    assert texts_of([window]) == [(1, "one", None), (2, "tw", None)]
    assert window.share is None


def test_what_is_empty_has_no_window():
    assert all(windows_of(name, b"") == [] for name in PLAIN)


def test_a_gzip_file_may_be_several_behind_each_other():
    Path("x.txt.gz").write_bytes(gzip.compress(b"a\nb") + gzip.compress(b"b\nc"))
    texts = texts_of(list(open_corpus("x.txt.gz").windows()))
    assert texts == [(1, "a", None), (2, "bb", None), (3, "c", None)]


# What is left out


@pytest.mark.parametrize("name", ["x.txt", "x.jsonl.gz"])
def test_blank_lines_and_blank_texts_are_passed_over_and_not_counted(name):
    blank = b"\xef\xbb\xbf\n\n \t\r\n\xc2\xa0\n"
    if name not in PLAIN:
        blank += b'{"text": ""}\n{"text": " \\n"}\n'
    [window] = windows_of(name, blank)
    assert (window.texts, window.lines, window.offset) == ([], blank.count(b"\n"), len(blank))
    assert (window.skipped, window.first_skipped) == (0, None)


def test_a_pair_is_passed_over_if_either_is_blank():
    data = b'{"text": "a", "de": " "}\n{"text": "", "de": "b"}\n{"text": "c", "de": "d"}'
    [window] = windows_of("x.jsonl", data, target_field="de")
    assert texts_of([window]) == [(3, "c", "d")]
    assert window.skipped == 0


@pytest.mark.parametrize("name", ["x.txt", "x.jsonl"])
def test_a_byte_order_mark_is_dropped_at_the_beginning_alone(name):
    line = b"a" if name == "x.txt" else b'{"text": "a"}'
    mark = b"\xef\xbb\xbf"
    windows = windows_of(name, mark + line + b"\n" + mark + line)
    if name == "x.txt":
        assert texts_of(windows) == [(1, "a", None), (2, "\ufeffa", None)]
    else:
        assert texts_of(windows) == [(1, "a", None)]
        assert windows[0].first_skipped[0] == 2


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"caf\xe9", "is not UTF-8"),
        (b"\xed\xa0\x80", "is not UTF-8"),
        (b"a\0b", "has a NUL character"),
    ],
)
@pytest.mark.parametrize("name", ["x.txt.gz", "-"])
def test_a_line_that_is_no_text_is_skipped_and_counted(name, line, why):
    [window] = windows_of(name, b"a\n\n" + line + b"\r\nb\n" + line)
    assert texts_of([window]) == [(1, "a", None), (4, "b", None)]
    assert (window.skipped, window.first_skipped, window.lines) == (2, (3, why), 5)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'{"text": "caf\xe9"}', "is not UTF-8"),
        (b'{"text": "a\\u0000"}', "has a NUL character"),
        (b'{"text": "a"', "is not JSON: Expecting ',' delimiter, column 13"),
        (b"[" * 1_000_000, "is nested too deeply for JSON"),
        (b'["text"]', "is not a JSON object but an array"),
        (b"5", "is not a JSON object but a number"),
        (b"null", "is not a JSON object but null"),
        (b'{"body": "a", "id": 7}', "has no field 'text'; it has 'body', 'id'"),
        (
            json.dumps(dict.fromkeys(["\x1b[31m", "k" * 99, *"cdefgh"])).encode(),
            f"has no field 'text'; it has '\\x1b[31m', '{'k' * 12}...{'k' * 13}', 'c', 'd', 'e', 'f', …",
        ),
        (b'{"text": ["a"]}', "has an array in field 'text'"),
        (b'{"text": 5}', "has a number in field 'text'"),
        (b'{"text": true}', "has true or false in field 'text'"),
        (b'{"text": null}', "has null in field 'text'"),
        (b'{"text": "\\ud83d"}', "has half of a surrogate pair in field 'text'"),
    ],
)
def test_a_line_of_json_that_has_no_text_is_skipped_and_counted(line, why):
    good = b'{"text": "\\ud83d\\ude00"}\n'
    [window] = windows_of("x.jsonl", good + line + b"\n" + good + line + b"\n")
    assert texts_of([window]) == [(1, "\U0001f600", None), (3, "\U0001f600", None)]
    assert (window.skipped, window.first_skipped, window.lines) == (2, (2, why), 4)


def test_what_is_wrong_with_a_target_is_told_as_of_a_text():
    def why(target: str) -> str:
        return skipped_of("x.jsonl", b'{"text": "a"%s}' % target.encode(), target_field="de")[1]

    assert why("") == "has no field 'de'; it has 'text'"
    assert why(', "de": 5') == "has a number in field 'de'"
    assert why(', "de": "\\udfff"') == "has half of a surrogate pair in field 'de'"
    assert why(', "de": "\\u0000"') == "has a NUL character"


# Lines that are long


@pytest.mark.parametrize("ending", [b"", b"\n", b"\nlast"])
@pytest.mark.parametrize("name", ["x.txt", "-"])
def test_the_longest_line_is_read_and_a_longer_one_is_skipped(name, ending):
    with patch.object(module, "MAX_LINE_BYTES", 20), patch.object(module, "PIECE", 7):
        fits = b"a" * (20 - len(ending[:1]))
        last = [(3, "last", None)] if ending == b"\nlast" else []
        texts = [(1, "b", None), (2, fits.decode(), None), *last]
        assert texts_of(windows_of(name, b"b\n" + fits + ending)) == texts
        for more in (1, 7, 50):
            [window] = windows_of(name, b"b\n" + fits + b"a" * more + ending)
            assert texts_of([window]) == [(1, "b", None), *last]
            assert (window.skipped, window.first_skipped) == (1, (2, "is longer than 20 B"))
            assert (window.lines, window.offset) == (2 + len(last), 2 + len(fits) + more + len(ending))


@pytest.mark.sweep
@pytest.mark.parametrize("name", swept(PLAIN, ["x.txt.gz"]))
def test_a_line_of_any_length_takes_little_memory(name):
    length = 8 * MAX_LINE_BYTES
    path = Path("x.txt")
    with path.open("wb") as file:  # its middle is a hole, which is read as zeros
        file.write(b"first\n")
        file.seek(length)
        file.write(b"\nlast\n")
    if name == "x.txt.gz":
        with path.open("rb") as file, gzip.open(name, "wb", compresslevel=1) as packed:
            while piece := file.read(2**20):
                packed.write(piece)
    with path.open(encoding="utf-8") as pipe, patch.object(sys, "stdin", pipe):
        tracemalloc.start()
        windows = list(open_corpus(name).windows())
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert texts_of(windows) == [(1, "first", None), (3, "last", None)]
    assert sum(window.skipped for window in windows) == 1
    assert peak < 3 * MAX_LINE_BYTES


# Windows


LETTERS = st.characters(codec="utf-8", exclude_characters="\0\n\r\ufeff")
SIZES = st.sampled_from([0, 1, 12])
LINE_ENDS = st.sampled_from([b"\n", b"\r\n"])


def readable(text: str) -> bool:
    return bool(text.strip())


@st.composite
def plain_corpora(draw) -> tuple[bytes, list[tuple], int]:
    """Bytes of lines, the texts in them, and how many lines are none."""
    bad = st.sampled_from([b"\xff", b"a\0", b"a" * 801])
    lines = draw(
        st.lists(st.one_of(st.text(LETTERS, max_size=60), bad), min_size=draw(SIZES), max_size=30)
    )
    raw = [line if isinstance(line, bytes) else line.encode() for line in lines]
    texts = [(n, line, None) for n, line in enumerate(lines, 1) if isinstance(line, str)]
    return (
        _joined(draw, raw),
        [each for each in texts if readable(each[1])],
        sum(isinstance(line, bytes) for line in lines),
    )


@st.composite
def json_corpora(draw) -> tuple[bytes, list[tuple], int]:
    """As `plain_corpora`; texts have targets."""
    text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=30)
    bad = st.sampled_from([b"\xff", b"{", b"7", b'{"text": "a"}', b'{"text": 5, "de": ""}', b" " * 801])
    lines = draw(st.lists(st.one_of(st.tuples(text, text), bad), min_size=draw(SIZES), max_size=30))
    raw = []
    for line in lines:
        if isinstance(line, tuple):
            fields = {"id": 7, "text": line[0], "de": line[1]}
            line = json.dumps(fields, ensure_ascii=draw(st.booleans())).encode()
        raw.append(line)
    texts = [(n, *line) for n, line in enumerate(lines, 1) if isinstance(line, tuple)]
    return (
        _joined(draw, raw),
        [each for each in texts if readable(each[1]) and readable(each[2])],
        sum(isinstance(line, bytes) for line in lines),
    )


def _joined(draw, lines: list[bytes]) -> bytes:
    data = b"".join(line + draw(LINE_ENDS) for line in lines)
    if lines and lines[-1] and draw(st.booleans()):
        data = data.removesuffix(b"\n").removesuffix(b"\r")
    return draw(st.sampled_from([b"", b"\xef\xbb\xbf"])) * bool(lines) + data


CORPORA = st.one_of(
    st.tuples(st.sampled_from(PLAIN), plain_corpora(), st.just({})),
    st.tuples(st.sampled_from(JSON), json_corpora(), st.just({"field": "text", "target_field": "de"})),
)
# An object of 60 characters that are escaped, 12 bytes each, is shorter than MAX_LINE_BYTES.
SMALL = {"WINDOW": 64, "STRETCH": 400, "MAX_LINE_BYTES": 800, "PIECE": 16}


@given(CORPORA)
def test_windows_hold_every_text_once_and_count_what_is_none(drawn):
    name, (data, texts, bad), fields = drawn
    with patch.multiple(module, **SMALL):
        windows = windows_of(name, data, **fields)
    assert texts_of(windows) == texts
    assert sum(window.skipped for window in windows) == bad
    assert all(bool(window.skipped) == bool(window.first_skipped) for window in windows)
    if windows:
        n_lines = data.count(b"\n") + (not data.endswith(b"\n"))
        assert windows[-1].end == Position(n_lines, len(data))


@given(CORPORA)
def test_whoever_goes_on_at_a_windows_end_gets_the_rest(drawn):
    name, (data, *_), fields = drawn
    with patch.multiple(module, **SMALL):
        windows = windows_of(name, data, **fields)
        for n, window in enumerate(windows, 1):
            assert windows_of(name, data, window.end, **fields) == windows[n:]


@given(CORPORA)
def test_windows_end_where_they_are_full(drawn):
    name, (data, *_), fields = drawn
    with patch.multiple(module, **SMALL):
        windows = windows_of(name, data, **fields)
    begin = 0
    for window in windows:
        sizes = [len((text.text + (text.target or "")).encode()) for text in window.texts]
        last = data[begin : window.offset].splitlines(keepends=True)[-1:]
        full = sum(sizes) >= 64 or window.offset - begin >= 400
        assert full or window is windows[-1]
        assert sum(sizes[:-1]) < 64
        assert window.offset - len(b"".join(last)) - begin < 400
        begin = window.offset


@given(plain_corpora())
def test_windows_are_the_same_wherever_a_corpus_is_stored(drawn):
    with patch.multiple(module, **SMALL):
        first, *others = [windows_of(name, drawn[0]) for name in PLAIN]
    assert others == [first, first]


def test_a_window_is_64_kib_of_text():
    line = b"0123456789abcde\n"
    windows = windows_of("x.txt", line * 10_000)
    assert [len(window.texts) for window in windows] == [4370, 4370, 1260]
    assert 4369 * 15 < WINDOW <= 4370 * 15
    ends = [window.end for window in windows]
    assert ends == [Position(n, 16 * n) for n in (4370, 8740, 10_000)]


@pytest.mark.sweep
def test_a_window_ends_after_a_mebibyte_even_if_it_has_no_text():
    windows = windows_of("x.txt", b"\xff\n" * 600_000 + b"a\n")
    assert [len(window.texts) for window in windows] == [0, 1]
    assert [window.skipped for window in windows] == [STRETCH // 2, 600_000 - STRETCH // 2]
    assert [window.first_skipped[0] for window in windows] == [1, STRETCH // 2 + 1]


@pytest.mark.parametrize("name", PLAIN)
def test_a_corpus_that_ends_before_the_place_to_go_on_at_is_refused(name):
    with pytest.raises(FileError) as caught:
        windows_of(name, b"abc\n", start=Position(2, 14))
    whose = "standard input" if name == "-" else name
    assert caught.value.message == f"{whose} ends 10 B before the position at which to resume."
    assert windows_of(name, b"abc\n", start=Position(1, 4)) == []


# How much has been read, and of what


@pytest.mark.parametrize("name", ["x.txt", "x.txt.gz"])
def test_a_window_says_how_much_of_the_file_has_been_read(name):
    data = random_lines()
    windows = windows_of(name, data)
    assert len(windows) > 10
    shares = [window.share for window in windows]
    near = 0.05 if name == "x.txt" else 0.3  # gzip reads ahead
    assert shares == pytest.approx([window.offset / len(data) for window in windows], abs=near)
    assert shares == sorted(shares)
    assert len(set(shares)) > 2
    assert shares[-1] == 1


def test_the_identity_of_a_file_is_its_name_size_and_beginning(here):
    name, data = "x.txt.gz", random.Random(0).randbytes(100_000).replace(b"\n", b"")
    with stored(name, data):
        raw = Path(name).read_bytes()
        identity = open_corpus(str(here / name)).identity()
    assert identity == {
        "name": name,
        "size": len(raw),
        "sha256": hashlib.sha256(raw[:65536]).hexdigest(),
        "field": None,
        "target_field": None,
    }
    assert json.loads(json.dumps(identity)) == identity


def test_the_fields_that_are_read_belong_to_the_identity():
    def fields(name: str, **given) -> tuple:
        with stored(name, b""):
            identity = open_corpus(name, **given).identity()
        return identity["field"], identity["target_field"]

    assert fields("x.jsonl") == fields("x.jsonl", field="text") == ("text", None)
    assert fields("x.jsonl", field="a", target_field="b") == ("a", "b")
    assert fields("-") == (None, None)
    assert fields("-", target_field="b") == ("text", "b")
    identity = open_corpus("-", field="a").identity()
    assert identity == {"name": "-", "size": None, "sha256": None, "field": "a", "target_field": None}


# What is refused


@pytest.mark.parametrize(
    ("name", "fields", "kind", "message", "hint"),
    [
        ("gone.txt", {}, FileError, "there is no file gone.txt.", None),
        ("folder.txt", {}, FileError, "folder.txt is a folder.", 'corpus="folder.txt/FILE"'),
        ("pipe.txt", {}, FileError, "pipe.txt is not a regular file.", "- reads standard input"),
        ("loop.txt", {}, FileError, "cannot read loop.txt: Too many levels of symbolic links.", None),
        ("a.csv", {}, FileError, "a.csv ends in .csv, which is not a format for texts.", ".txt (a"),
        ("a.b.csv.gz", {}, FileError, "a.b.csv.gz ends in .csv.gz, which", "or one of them with .gz"),
        ("a", {}, FileError, "a ends in no suffix, which", ".txt"),
        (
            "a.txt",
            {"field": "text"},
            OptionError,
            "field names a field of objects, and the lines of a.txt are plain text.",
            "a file that ends in .jsonl or .ndjson",
        ),
        (
            "a.txt.gz",
            {},
            FileError,
            "a.txt.gz is damaged, or not a gzip file: Not a gzipped file",
            "again",
        ),
    ],
)
def test_what_cannot_be_read_is_refused(name, fields, kind, message, hint):
    Path("folder.txt").mkdir()
    os.mkfifo("pipe.txt")
    Path("loop.txt").symlink_to("loop.txt")
    for plain in ("a", "a.csv", "a.json", "a.b.csv.gz", "a.gz", "a.txt", "a.txt.gz"):
        Path(plain).write_bytes(b"text\n")
    error = refused(name, **fields)
    assert type(error) is kind
    assert error.message.startswith(message)
    assert (error.hint is None) if hint is None else (hint in error.hint)


def test_a_file_that_may_not_be_read_is_refused_when_it_is_opened(monkeypatch):
    Path("x.txt").write_bytes(b"a")

    def forbidden(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", forbidden)  # whoever runs the tests may read everything
    with pytest.raises(FileError, match=re.escape("cannot read x.txt: Permission denied.")):
        open_corpus("x.txt")


def test_standard_input_that_is_closed_is_refused():
    with patch.object(sys, "stdin", None):
        assert refused("-").message == "standard input is closed."


@pytest.mark.parametrize("damage", ["cut", "changed", "block", "checksum"])
def test_a_damaged_gzip_file_is_told_after_what_could_be_read(damage):
    whole = windows_of("x.txt.gz", random_lines())
    raw = bytearray(Path("x.txt.gz").read_bytes())
    middle = len(raw) // 2
    if damage == "cut":
        raw = raw[:middle]
    elif damage == "changed":
        raw[middle : middle + 64] = b"\xff" * 64
    elif damage == "block":
        raw += raw[:10] + b"\x07"  # another header, and a kind of block that there is not
    else:
        raw[-8] ^= 1
    Path("x.txt.gz").write_bytes(raw)
    read = []
    with pytest.raises(FileError) as caught:
        read.extend(open_corpus("x.txt.gz").windows())  # keeps those that come before the error
    assert read[:3] == whole[:3]
    said = rf"x\.txt\.gz is damaged after line {read[-1].lines}: .+\.$"
    assert re.match(said, caught.value.message)
    assert caught.value.hint == "compress it again: it may have been cut short"


def test_a_corpus_is_closed_when_its_reader_stops():
    Path("x.txt").write_bytes(b"a\n" * 100_000)
    windows = open_corpus("x.txt").windows()
    frame = windows.gi_frame
    next(windows)
    stream = frame.f_locals["stream"]
    windows.close()
    assert stream.closed


def test_standard_input_is_left_open():
    with stored("-", b"a\n"):
        list(Corpus(None, None, None).windows())
        assert not sys.stdin.buffer.closed
