"""The memory that this process may still take, and what limits it.

Free memory is one limit. Control groups (containers, systemd, batch systems) and resource limits
(`ulimit`) may leave less. Linux publishes them in files that no widely used library reads (psutil
only reports the memory of the machine).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from attnscope.base.errors import OptionError, SizeError
from attnscope.base.units import bytes_text

ROOT = Path("/")
"""The folder that contains /proc and /sys; tests replace it."""

UNLIMITED = 2**60
"""Larger limits mean "no limit": version 1 of control groups writes 2⁶³ rounded down to pages."""

RESIDENT = 160 * 2**20
"""Bytes of memory that importing torch takes beside its mapped files, measured."""

ADDRESSES = 256 * 2**20
"""Bytes of address space that importing torch takes beside its libraries, measured."""

ADDRESSES_OF_TRANSFORMERS = 448 * 2**20
"""Bytes that importing transformers and loading a small model take in addition, measured."""

ADDRESSES_OF_A_CORE = 40 * 2**20
"""Bytes that importing torch takes per core: a thread's stack, and its buffer for matrix products."""


@dataclass(frozen=True)
class FreeMemory:
    """The memory that one limit leaves.

    Attributes:
        n_bytes: the free bytes.
        limit: the limit, such as `the cgroup's limit of 2.0 GiB`; None: the device's free memory.
    """

    n_bytes: int
    limit: str | None = None

    def describe(self, device: str) -> str:
        """Describe it in words: `cpu has 2.0 GiB free`, or the limit and what it leaves."""
        if self.limit is None:
            return f"{device} has {bytes_text(self.n_bytes)} free"
        return f"{self.limit} leaves {bytes_text(self.n_bytes)}"


def free_host_memory() -> FreeMemory:
    """Return the tightest of all limits on the host's memory.

    If torch has not been imported yet, the memory that its import will take is already subtracted.
    """
    import psutil

    importing = 0 if "torch" in sys.modules else RESIDENT
    limits = [FreeMemory(int(psutil.virtual_memory().available) - importing)]
    limits += [FreeMemory(each.n_bytes - importing, each.limit) for each in _memory_of_cgroups()]
    limits += _memory_of_ulimits()
    tightest = min(limits, key=lambda memory: memory.n_bytes)
    return FreeMemory(max(tightest.n_bytes, 0), tightest.limit)


def check_imports(*, transformers: bool = False) -> None:
    """Check that torch can be imported: where `ulimit` leaves too little memory, it would crash.

    Args:
        transformers: whether transformers is imported and loads a model, too.

    Raises:
        SizeError: there is too little memory.
        OptionError: Python has removed the docstrings that transformers reads.
    """
    if transformers and sys.flags.optimize >= 2:
        raise OptionError(
            "transformers reads docstrings, which python -OO and PYTHONOPTIMIZE=2 remove.",
            hint="PYTHONOPTIMIZE=1",
        )
    for memory in _memory_of_ulimits():
        more = ADDRESSES_OF_TRANSFORMERS if transformers and "transformers" not in sys.modules else 0
        if memory.n_bytes < more:
            libraries = (
                "PyTorch and transformers, which take" if transformers else "PyTorch, which takes"
            )
            needed = bytes_text(_taken_by_imports(memory.limit or "") + more)
            raise SizeError(
                f"{memory.limit} is too little to import {libraries} about {needed}.",
                hint="ulimit -v unlimited; a cgroup limits what is used, not what is reserved",
            )


def return_freed_memory() -> None:
    """Make the C library (glibc) return blocks of 1 MiB or more to the system when they are freed.

    By default it raises that threshold up to 32 MiB and keeps smaller blocks for reuse; where the next
    blocks are larger, a process takes 50 % more than it uses. Source: mallopt(3), M_MMAP_THRESHOLD.
    """
    import ctypes
    from contextlib import suppress

    with suppress(OSError, AttributeError, TypeError):  # another C library, another system
        ctypes.CDLL(None).mallopt(-3, 2**20)


# Control groups.
# Source: Linux, Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst; cgroups(7).


@dataclass(frozen=True)
class _Version:
    """The file names and the field of `memory.stat` of one version of control groups."""

    limits: tuple[str, ...]
    usage: str
    reclaimable: str


_VERSIONS = {
    "cgroup2": _Version(("memory.max", "memory.high"), "memory.current", "inactive_file"),
    "cgroup": _Version(("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file"),
}


def _memory_of_cgroups() -> Iterator[FreeMemory]:
    """Yield what the process's control group and its ancestors leave.

    `memory.high` counts as a limit: beyond it the kernel throttles a process to a near standstill.
    The page cache that can be reclaimed counts as free.
    """
    for kind, mounted, group in _groups():
        for folder in (group, *group.parents):
            yield from _memory_of_group(folder, _VERSIONS[kind])
            if folder == mounted:
                break


def _memory_of_group(folder: Path, version: _Version) -> Iterator[FreeMemory]:
    usage = _number(folder / version.usage)
    if usage is None:
        return
    stat = _text(folder / "memory.stat")
    reclaimable = re.search(rf"^{version.reclaimable} (\d+)$", stat, re.MULTILINE)
    used = usage - int(reclaimable[1] if reclaimable else 0)
    for name in version.limits:
        limit = _number(folder / name)
        if limit is not None and limit < UNLIMITED:
            yield FreeMemory(limit - used, f"the cgroup's limit of {bytes_text(limit)}")


def _groups() -> Iterator[tuple[str, Path, Path]]:
    """Yield each hierarchy that may limit memory: its kind, mount point, and the process's group."""
    paths = {}  # by kind
    for line in _text(ROOT / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            paths["cgroup2"] = path
        elif "memory" in controllers.split(","):
            paths["cgroup"] = path
    for line in _text(ROOT / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        fields, (kind, _, options) = before.split(), after.split()[:3]
        if kind not in paths or (kind == "cgroup" and "memory" not in options.split(",")):
            continue
        root, mounted = fields[3], ROOT / _unescaped(fields[4]).lstrip("/")
        # A container may see only its own group, mounted in place of the whole hierarchy.
        path = paths[kind]
        below = path.removeprefix(root) if root != "/" and path.startswith(root) else path
        group = mounted / below.lstrip("/")
        yield kind, mounted, group if ".." not in group.parts and group.is_dir() else mounted


def _unescaped(path: str) -> str:
    """Replace the octal escapes of blanks and the like in a path of mountinfo."""
    return re.sub(r"\\([0-7]{3})", lambda escape: chr(int(escape[1], 8)), path)


# Resource limits.


def _memory_of_ulimits() -> list[FreeMemory]:
    """Compute the memory that `ulimit -v` and `ulimit -d` leave after importing torch."""
    if sys.platform == "win32":
        return []
    import resource

    fields = {"-v": (resource.RLIMIT_AS, "VmSize"), "-d": (resource.RLIMIT_DATA, "VmData")}
    left = []
    for option, (kind, field) in fields.items():
        limit, _ = resource.getrlimit(kind)
        if not 0 <= limit < UNLIMITED:  # RLIM_INFINITY is negative in Python
            continue
        used = re.search(rf"^{field}:\s+(\d+) kB$", _text(ROOT / "proc/self/status"), re.MULTILINE)
        name = f"`ulimit {option}` of {bytes_text(limit)}"
        left.append(
            FreeMemory(limit - int(used[1] if used else 0) * 1024 - _taken_by_imports(name), name)
        )
    return left


def _taken_by_imports(limit: str) -> int:
    """Return the bytes that importing torch will take of a resource limit; 0 once it is imported."""
    if "torch" in sys.modules:
        return 0
    return ADDRESSES + _libraries() if "-v" in limit else RESIDENT


@cache
def _libraries() -> int:
    """Return the address space of torch's libraries and threads, in bytes, without importing torch."""
    from importlib.util import find_spec
    from os import cpu_count

    spec = find_spec("torch")
    folders = (spec and spec.submodule_search_locations) or []
    files = [file for folder in folders for file in (Path(folder) / "lib").glob("*.so*")]
    return sum(file.stat().st_size for file in files) + ADDRESSES_OF_A_CORE * (cpu_count() or 1)


# The kernel's files.


def _text(path: Path) -> str:
    """Return a file's text; empty if there is no such file, as on other systems."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    """Return the number in a file; None if it holds none, as with `max`."""
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None
