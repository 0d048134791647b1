"""Limits on memory, read from folders that stand for /proc and /sys."""

import resource
import subprocess
import sys

import pytest

from attnscope.base.errors import SizeError
from attnscope.base.process import memory
from attnscope.base.process.devices import check_memory
from attnscope.base.process.memory import FreeMemory, check_imports, free_host_memory

MIB = 2**20
GIB = 2**30
V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = (
    "31 23 0:28 / /sys/fs/cgroup ro - tmpfs tmpfs rw,mode=755\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
    "35 31 0:32 {root} /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n"
)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with 8 GiB free and files that a test writes; no resource limits."""
    import psutil

    monkeypatch.setattr(memory, "ROOT", tmp_path)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": 8 * GIB})())
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (resource.RLIM_INFINITY,) * 2)
    monkeypatch.setitem(sys.modules, "torch", sys.modules.get("torch"))

    def files(texts):
        for name, text in texts.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(str(text))

    return files


def limited(monkeypatch, kind, limit):
    monkeypatch.setattr(
        resource,
        "getrlimit",
        lambda which: (limit if which == kind else resource.RLIM_INFINITY, resource.RLIM_INFINITY),
    )


def test_free_memory_is_the_limit_where_there_is_no_other(machine):
    assert free_host_memory() == FreeMemory(8 * GIB)
    assert free_host_memory().describe("cpu") == "cpu has 8.0 GiB free"


def test_a_group_of_version_2_leaves_what_it_does_not_use(machine):
    machine({"proc/self/cgroup": "0::/user.slice/job\n", "proc/self/mountinfo": V2})
    group = "sys/fs/cgroup/user.slice/job"
    machine({f"{group}/memory.max": 2 * GIB, f"{group}/memory.current": 500 * MIB})
    assert free_host_memory() == FreeMemory(2 * GIB - 500 * MIB, "the cgroup's limit of 2.0 GiB")
    with pytest.raises(
        SizeError, match=r"needs at least 4\.0 GiB, but the cgroup's limit of 2\.0 GiB leaves 1\.5"
    ):
        check_memory(4 * GIB, "cpu")


def test_files_that_may_be_dropped_from_memory_count_as_free(machine):
    machine({"proc/self/cgroup": "0::/job\n", "proc/self/mountinfo": V2})
    group = "sys/fs/cgroup/job"
    machine({f"{group}/memory.max": 2 * GIB, f"{group}/memory.current": 1900 * MIB})
    machine({f"{group}/memory.stat": f"anon 5\ninactive_anon 77\ninactive_file {900 * MIB}\nslab 1\n"})
    assert free_host_memory().n_bytes == 2 * GIB - 1000 * MIB


def test_a_group_that_the_kernel_slows_down_is_limited_there(machine):
    machine({"proc/self/cgroup": "0::/job\n", "proc/self/mountinfo": V2})
    group = "sys/fs/cgroup/job"
    machine({f"{group}/memory.max": "max", f"{group}/memory.high": GIB, f"{group}/memory.current": 0})
    assert free_host_memory() == FreeMemory(GIB, "the cgroup's limit of 1.0 GiB")


def test_the_tightest_of_a_group_and_those_around_it_counts(machine):
    machine({"proc/self/cgroup": "0::/a/b/c\n", "proc/self/mountinfo": V2})
    for group, limit, used in [("a", 3 * GIB, 2 * GIB), ("a/b", "max", GIB), ("a/b/c", 2 * GIB, 100)]:
        machine(
            {
                f"sys/fs/cgroup/{group}/memory.max": limit,
                f"sys/fs/cgroup/{group}/memory.current": used,
            }
        )
    assert free_host_memory() == FreeMemory(GIB, "the cgroup's limit of 3.0 GiB")


@pytest.mark.parametrize(
    ("path", "root", "folder"),
    [
        ("/job", "/", "memory/job"),  # a machine
        ("/docker/4f", "/docker/4f", "memory"),  # a container that sees its own group alone
        ("/", "/", "memory"),  # a container with a namespace of its own
        ("/../other", "/", "memory"),  # one that was moved out of its namespace
    ],
)
def test_a_group_of_version_1_is_found_wherever_it_is_mounted(machine, path, root, folder):
    machine({"proc/self/cgroup": f"9:cpu:/\n4:memory:{path}\n0::/\n"})
    machine({"proc/self/mountinfo": V1.format(root=root)})
    group = f"sys/fs/cgroup/{folder}"
    machine({f"{group}/memory.limit_in_bytes": GIB, f"{group}/memory.usage_in_bytes": 600 * MIB})
    machine({f"{group}/memory.stat": f"inactive_file 1\ntotal_inactive_file {100 * MIB}\n"})
    assert free_host_memory() == FreeMemory(GIB - 500 * MIB, "the cgroup's limit of 1.0 GiB")


def test_a_group_of_version_1_without_a_limit_is_none(machine):
    machine({"proc/self/cgroup": "4:memory:/\n", "proc/self/mountinfo": V1.format(root="/")})
    group = "sys/fs/cgroup/memory"
    machine({f"{group}/memory.limit_in_bytes": 2**63 - 4096, f"{group}/memory.usage_in_bytes": GIB})
    assert free_host_memory() == FreeMemory(8 * GIB)


def test_a_group_that_is_full_leaves_nothing(machine):
    machine({"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": V2})
    machine({"sys/fs/cgroup/memory.max": GIB, "sys/fs/cgroup/memory.current": 2 * GIB})
    assert free_host_memory().n_bytes == 0


def test_blanks_in_the_place_of_a_mount_are_read(machine):
    mount = "30 23 0:26 / /sys/fs/c\\040group rw - cgroup2 none rw\n"
    machine({"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": mount})
    machine({"sys/fs/c group/memory.max": GIB, "sys/fs/c group/memory.current": 0})
    assert free_host_memory().n_bytes == GIB


@pytest.mark.parametrize(("kind", "option", "field"), [("AS", "-v", "VmSize"), ("DATA", "-d", "VmData")])
def test_ulimit_leaves_what_is_not_in_use(machine, monkeypatch, kind, option, field):
    machine({"proc/self/status": f"Name:\tpython\n{field}:\t  {1024 * 1024} kB\nVmRSS:\t  7 kB\n"})
    limited(monkeypatch, getattr(resource, f"RLIMIT_{kind}"), 3 * GIB)
    assert free_host_memory() == FreeMemory(2 * GIB, f"`ulimit {option}` of 3.0 GiB")
    assert free_host_memory().describe("cpu") == f"`ulimit {option}` of 3.0 GiB leaves 2.0 GiB"


def test_importing_torch_takes_its_part_before_it_is_imported(machine, monkeypatch):
    monkeypatch.delitem(sys.modules, "torch")
    assert free_host_memory().n_bytes == 8 * GIB - memory.RESIDENT
    limited(monkeypatch, resource.RLIMIT_AS, 4 * GIB)
    assert 2 * GIB < free_host_memory().n_bytes < 4 * GIB - memory.ADDRESSES


def test_too_little_address_space_to_import_torch_is_refused(machine, monkeypatch):
    limited(monkeypatch, resource.RLIMIT_AS, 200 * MIB)
    check_imports()  # it is there already
    monkeypatch.delitem(sys.modules, "torch")
    with pytest.raises(SizeError, match=r"`ulimit -v` of 200\.0 MiB is too little to import PyTorch"):
        check_imports()


@pytest.mark.few(1)
@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not enforce ulimit -v")
@pytest.mark.parametrize(("command", "mib"), [(["sdpa"], 400), (["bert", "--text", "a"], 1000)])
def test_commands_say_that_ulimit_leaves_too_little(command, mib):
    limit = mib * MIB
    r = subprocess.run(
        [sys.executable, "-m", "attnscope", *command],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        capture_output=True,
        text=True,
    )
    assert (r.returncode, r.stdout) == (2, "")
    assert r.stderr.startswith("attnscope: error: `ulimit -v` of ")
    assert "is too little to import PyTorch" in r.stderr
    assert r.stderr.count("\n") == 2
