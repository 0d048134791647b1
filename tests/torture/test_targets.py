"""Whatever a file is to be written to: it is there whole, or all is as it was and one line says why."""

import os
import stat
import subprocess
import threading
from contextlib import contextmanager

import pytest

from tests.torture.whole import why_not_whole, why_not_whole_bytes

pytestmark = [pytest.mark.torture, pytest.mark.slow]

SDPA = ["sdpa", "--batch", 1, "--nq", 2, "--nk", 3, "--dk", 4, "--dv", 2]
TEXT = ["--text", "the cat sat"]
ATTEND = """\
def attend(x):
    scores = x @ x.mT
    return scores.softmax(-1)
"""
PROGRAM = "import torch\nfrom traced import attend\n\nprint(attend(torch.ones(2, 3)).shape)\n"
TRACE = ["trace", "traced.py:attend", "--input", "x=n:2,d:3"]
RUN = ["run", "--watch", "traced.py:attend"]

WRITERS = {
    "sdpa --save .npz": (SDPA, "--save", ".npz"),
    "sdpa --save .safetensors": (SDPA, "--save", ".safetensors"),
    "sdpa --save .pt": (SDPA, "--save", ".pt"),
    "mha --save .npz": (["mha", "--batch", 1, "--nq", 2, "--d-feat", 4, "--heads", 2], "--save", ".npz"),
    "trace --save .pt": (TRACE, "--save", ".pt"),
    "model --save .safetensors": (["model", "llama"], "--save", ".safetensors"),
    "model --text --save .npz": (["model", "llama", *TEXT], "--save", ".npz"),
    "model --plot .png": (["model", "bert", *TEXT], "--plot", ".png"),
    "model --plot .svg": (["model", "bert", *TEXT], "--plot", ".svg"),
    "model --plot .pdf": (["model", "bert", *TEXT], "--plot", ".pdf"),
    "model --page": (["model", "bert", *TEXT], "--page", ".html"),
    "heads --plot .svg": (["heads", "bert", *TEXT], "--plot", ".svg"),
    "heads --page": (["heads", "bert", *TEXT], "--page", ".html"),
    "run --to table": (RUN, "--to", ".txt"),
    "run --to json": ([*RUN, "--format", "json"], "--to", ".json"),
    "heads --checkpoint": (["heads", "bert", "--corpus", "c.txt"], "--checkpoint", ".npz"),
}
"""A command that writes a file, its option, and how the file's name ends."""


@pytest.fixture
def write(cases, model_folder):
    """Runs a command that writes a file: `write("sdpa --save .npz", target, statuses=[0])`."""
    (cases.folder / "traced.py").write_text(ATTEND)
    (cases.folder / "program.py").write_text(PROGRAM)
    (cases.folder / "c.txt").write_text("the cat sat\na dog ran\n")

    def run(writer, target, *more, statuses, **options):
        command, option, _ = WRITERS[writer]
        command = [model_folder(word) if word in ("bert", "llama") else word for word in command]
        program = ["program.py"] if command[0] == "run" else []
        more = [word for word in more if word != "--force" or option != "--checkpoint"]
        return cases.run(
            *command, option, target, *more, *program,
            statuses=statuses, noisy=command[0] == "run", **options,
        )  # fmt: skip

    return run


@pytest.fixture(params=WRITERS)
def writer(request):
    return request.param


@pytest.fixture
def suffix(writer):
    return WRITERS[writer][2]


def is_checkpoint(writer):
    return writer.endswith("--checkpoint")


@contextmanager
def readers_of(path):
    """Reads what is written to a pipe, so that who writes does not wait; the bytes, at the end."""
    read = []
    keep = os.open(path, os.O_RDWR | os.O_NONBLOCK)  # so that the reader may begin before the writer
    reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    done = threading.Event()

    def go():
        while True:
            try:
                piece = os.read(reading, 65536)
            except BlockingIOError:
                piece = b""
            read.append(piece)
            if not piece:
                if done.is_set():
                    return
                done.wait(0.01)

    thread = threading.Thread(target=go)
    thread.start()
    try:
        yield read
    finally:
        done.set()
        thread.join()
        os.close(keep)
        os.close(reading)


@contextmanager
def mounted(folder, options):
    """A small file system in memory, while it is needed."""
    folder.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "torture", str(folder)], capture_output=True, text=True
    )
    if mount.returncode:
        folder.rmdir()
        pytest.skip(f"nothing can be mounted here: {mount.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_new_file_is_whole(cases, write, writer, suffix):
    target = cases.folder / f"new{suffix}"
    write(writer, target, statuses=[0], may_change=[target])
    assert target.is_file()
    assert why_not_whole(target) is None


def test_a_file_that_is_there_stays_as_it_is(cases, write, writer, suffix):
    target = cases.folder / f"there{suffix}"
    target.write_text("as it was")
    write(writer, target, statuses=[2])
    write(writer, f"./{target.name}", statuses=[2])


def test_a_file_that_is_there_is_replaced_on_request(cases, write, writer, suffix):
    target = cases.folder / f"there{suffix}"
    target.write_text("as it was")
    target.chmod(0o640)
    if is_checkpoint(writer):  # a run goes on from its file, and this one is damaged
        write(writer, target, "--force", statuses=[2])
        return
    write(writer, target, "--force", statuses=[0], may_change=[target])
    assert target.read_bytes() != b"as it was"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_a_link_to_a_file_is_followed(cases, write, writer, suffix):
    target, link = cases.folder / f"there{suffix}", cases.folder / f"link{suffix}"
    target.write_text("as it was")
    link.symlink_to(target.name)
    write(writer, link, statuses=[2])
    if not is_checkpoint(writer):
        write(writer, link, "--force", statuses=[0], may_change=[target])


def test_a_link_to_no_file_makes_one(cases, write, writer, suffix):
    target, link = cases.folder / f"not_there{suffix}", cases.folder / f"link{suffix}"
    link.symlink_to(target.name)
    write(writer, link, statuses=[0], may_change=[target])
    assert target.is_file()


def test_links_in_a_circle_are_told(cases, write, writer, suffix):
    one, other, itself = (cases.folder / f"{name}{suffix}" for name in ("one", "other", "itself"))
    one.symlink_to(other.name)
    other.symlink_to(one.name)
    itself.symlink_to(itself.name)
    for more in ([], ["--force"]):
        write(writer, one, *more, statuses=[2])
        write(writer, itself, *more, statuses=[2])


def test_a_folder_is_told(cases, write, writer, suffix):
    folder, link = cases.folder / f"folder{suffix}", cases.folder / f"link{suffix}"
    folder.mkdir()
    (folder / "kept").write_text("as it was")
    link.symlink_to(folder.name)
    for target in (folder, link, f"{folder.name}/", ".", "..", "/"):
        write(writer, target, statuses=[2])
    write(writer, folder, "--force", statuses=[2])


def test_a_folder_that_is_not_there_is_told(cases, write, writer, suffix):
    (cases.folder / "file").write_text("no folder")
    (cases.folder / f"link{suffix}").symlink_to(f"nowhere/x{suffix}")
    for target in (
        f"nowhere/x{suffix}",
        f"file/x{suffix}",
        f"nowhere/../x{suffix}",
        f"link{suffix}",
        "/proc/nope" + suffix,
    ):
        write(writer, target, statuses=[2])


@pytest.mark.parametrize("length", [255, 256])
def test_a_long_name_is_written_or_told(cases, write, writer, suffix, length):
    target = cases.folder / ("x" * (length - len(suffix)) + suffix)
    right = [0] if length <= 255 else [2]
    write(writer, target, statuses=right, may_change=[target])
    if length <= 255:
        assert target.is_file()


def test_a_long_path_is_told(cases, write, writer, suffix):
    write(writer, "/".join(["x" * 200] * 30) + suffix, statuses=[2])
    write(writer, "ü" * 140 + suffix, statuses=[2])


def test_an_empty_name_is_told(cases, write, writer):
    write(writer, "", statuses=[2])
    write(
        writer,
        " ",
        statuses=[0, 2],
        may_change=[cases.folder / " "],
    )


def test_a_strange_name_is_written_as_it_is_and_told_escaped(cases, write, writer, suffix):
    for name in (
        "\x1b[31mred",
        "two\nlines",
        "\u202eright",
        "a b'\"$;",
        "-dash",
        "--force",
        "~",
        "%s{}",
        "[bold]x",
        "\udcff",
    ):
        target = cases.folder / f"{name}{suffix}"
        write(writer, f"./{name}{suffix}", statuses=[0], may_change=[target])
        assert os.path.exists(os.fsencode(target))
        write(
            writer,
            f"./{name}{suffix}",
            statuses=[0, 2] if is_checkpoint(writer) else [2],
            may_change=[target] if is_checkpoint(writer) else [],
        )


def test_a_suffix_without_a_format_is_told(cases, write, writer):
    any_name = WRITERS[writer][1] == "--to"
    for name in ("x", "x.", "x.docx", ".npz", "x.npz.bak", "x.\x1b[31m", "x." + "y" * 100):
        target = cases.folder / name
        write(writer, name, statuses=[0 if any_name else 2], may_change=[target] if any_name else [])


def test_a_pipe_gets_all_of_it_and_stays_a_pipe(cases, write, writer, suffix):
    pipe = cases.folder / f"pipe{suffix}"
    os.mkfifo(pipe)
    with readers_of(pipe) as read:
        write(writer, pipe, statuses=[2] if is_checkpoint(writer) else [0])
    if not is_checkpoint(writer):
        assert b"".join(read)
        assert why_not_whole_bytes(b"".join(read), suffix) is None


def test_a_device_is_written_to_and_stays_a_device(cases, write, writer, suffix):
    null, full, link = (cases.folder / f"{name}{suffix}" for name in ("null", "full", "link"))
    os.mknod(null, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.mknod(full, stat.S_IFCHR | 0o666, os.makedev(1, 7))
    link.symlink_to(null.name)
    for more in ([], ["--force"]):
        for target in (null, link):
            write(writer, target, *more, statuses=[2] if is_checkpoint(writer) else [0])
        write(writer, full, *more, statuses=[2])


def test_a_socket_is_told(cases, write, writer, suffix):
    import socket

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"socket{suffix}")
        for more in ([], ["--force"]):
            write(writer, f"socket{suffix}", *more, statuses=[2])


def test_a_full_disk_keeps_what_was_there(cases, write, writer, suffix):
    with mounted(cases.folder / "small", "size=4k,nr_inodes=16") as small:
        target = small / f"there{suffix}"
        target.write_bytes(b"x" * 4096)  # all there is
        if not is_checkpoint(writer):
            write(writer, target, "--force", statuses=[2])
        write(writer, small / f"new{suffix}", statuses=[2])
        write(writer, "small/new" + suffix, "--format", "json", statuses=[2])


def test_a_disk_without_room_for_another_file_is_told(cases, write, writer, suffix):
    with mounted(cases.folder / "few", "size=1m,nr_inodes=2") as few:
        (few / "one").touch()
        write(writer, few / f"new{suffix}", statuses=[2])


def test_a_disk_that_cannot_be_written_is_told(cases, write, writer, suffix):
    with mounted(cases.folder / "kept", "size=1m") as kept:
        (kept / f"there{suffix}").write_text("as it was")
        subprocess.run(["mount", "-o", "remount,ro", str(kept)], check=True)
        write(writer, kept / f"new{suffix}", statuses=[2])
        write(writer, kept / f"there{suffix}", "--force", statuses=[2])


# The file whose comments are written.

ANNOTATE = [*TRACE, "--annotate", "--write"]


def annotate(cases, place="traced.py", *, statuses, **options):
    target = f"{place}:attend"
    return cases.run("trace", target, *ANNOTATE[2:], statuses=statuses, **options)


def test_comments_are_written_through_links(cases):
    source, link = cases.folder / "traced.py", cases.folder / "link.py"
    source.write_text(ATTEND)
    source.chmod(0o750)
    link.symlink_to(source.name)
    annotate(cases, "link.py", statuses=[0], may_change=[source])
    assert "# [n, n]" in source.read_text()
    assert stat.S_IMODE(source.stat().st_mode) == 0o750


def test_comments_of_a_file_that_cannot_be_written_are_told(cases):
    with mounted(cases.folder / "kept", "size=1m") as kept:
        (kept / "traced.py").write_text(ATTEND)
        subprocess.run(["mount", "-o", "remount,ro", str(kept)], check=True)
        annotate(cases, "kept/traced.py", statuses=[2])
    with mounted(cases.folder / "small", "size=4k,nr_inodes=16") as small:
        (small / "traced.py").write_text(ATTEND)
        annotate(cases, "small/traced.py", statuses=[2])


def test_a_file_that_its_code_has_changed_is_kept(cases):
    source = cases.folder / "traced.py"
    source.write_text(
        "from pathlib import Path\n"
        + ATTEND.replace("    return", "    Path(__file__).write_text('mine = 1\\n')\n    return")
    )
    annotate(cases, statuses=[0, 2], theirs=[source])
    assert source.read_text() == "mine = 1\n"


@pytest.mark.parametrize(
    "name", ["traced\x1b[31m.py", "tra\nced.py", "traced.py ", "tra:ced.py", "x" * 251 + ".py"]
)
def test_comments_of_a_file_with_a_strange_name(cases, name):
    source = cases.folder / name
    source.write_text(ATTEND)
    annotate(cases, name, statuses=[0, 2], may_change=[source])


def test_missing_and_strange_files_of_code_are_told(cases):
    (cases.folder / "folder.py").mkdir()
    (cases.folder / "itself.py").symlink_to("itself.py")
    (cases.folder / "gone.py").symlink_to("nowhere.py")
    (cases.folder / "empty.py").touch()
    (cases.folder / "bytes.py").write_bytes(b"\xff\xfe\x00x = 1\n")
    (cases.folder / "null.py").write_bytes(b"x = 1\0\n")
    (cases.folder / "coding.py").write_bytes(b"# coding: nope\nx = 1\n")
    (cases.folder / "wrong.py").write_text("def attend(x:\n")
    os.mknod(cases.folder / "device.py", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    names = "folder itself gone empty bytes null coding wrong device missing".split()
    for name in names:
        annotate(cases, f"{name}.py", statuses=[2], noisy=False)
        cases.run("run", "--watch", f"{name}.py:attend", f"{name}.py", statuses=[0, 1, 2], noisy=True)
    for target in (
        "",
        ":",
        "x",
        "x:",
        ":y",
        "x:y:z",
        "\x1b[31m:x",
        "a" * 5000,
        "a/" * 3000 + "x.py:y",
        "torch.nn:Nope",
        "os:system.nope",
    ):
        cases.run("trace", target, statuses=[2], what="a target")
        cases.run("run", "--watch", target, "program.py", statuses=[2], what="a target")
