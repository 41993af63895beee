"""What `doctor` reads about the host: limits, memory, clock, packages. Nothing here judges or changes it.

A fact that the system does not report is None.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import re
import resource
import socket
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final, TypeVar

from scankv.cli.directory_facts import DirectoryFacts, read_directory
from streaming_server.addresses import address_of
from streaming_server.clock import MachineClocks, SystemClocks
from streaming_server.storage.files.control_groups import CONTROL_GROUPS, OWN_GROUPS, group_directories
from streaming_server.storage.files.memory_limit import memory_limit

T = TypeVar("T")

_UNSYNCHRONIZED: Final = 0x40  # STA_UNSYNC of <sys/timex.h>
_LONG_BITS: Final = 64
_WATCH_SECONDS: Final = 0.25
_REQUIREMENT: Final = re.compile(r"([\w.-]+)(?:\[[^]]*\])?\s*([^;]*?)\s*(?:;\s*extra\s*==\s*['\"](\w+)['\"])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledPackage:
    """A package that the server needs.

    Attributes:
        name: Its name on the package index.
        needed: The versions that the server works with, as in `<27,>=26`.
        version: The version that is installed. None: it is not installed.
    """

    name: str
    needed: str
    version: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedPort:
    """A port on which the server is to listen.

    Attributes:
        setting: The setting that names it.
        address: Its address, as in `127.0.0.1:7070`.
        problem: Why the port cannot be listened on, as the system says it. None: it can.
        is_taken: Whether the problem is that another process listens there.
    """

    setting: str
    address: str
    problem: str | None
    is_taken: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """The state of a host, as far as a server depends on it.

    Attributes:
        open_file_limit: The most files that a process of this user may open; the server raises its own limit to it.
        memory_limit: The memory of the machine or its control groups, in bytes.
        cpus: How many cores this process may use, by affinity and the quota of its control groups.
        swap_bytes: The size of all swap areas.
        swappiness: The setting of the kernel, 0 to 200.
        huge_pages: When the kernel backs memory with huge pages by itself: `always`, `madvise` or `never`.
        clock_is_synchronized: Whether the kernel says that a time service adjusts the wall clock.
        clock_step_seconds: By how much the wall clock moved against monotonic time while the host was inspected.
        user_id: The user who runs this process.
        kernel: The version of the kernel.
        libc: The C library and its version, as in `glibc 2.36`.
        preloaded: The libraries that are loaded into every process, which may replace the allocator.
        packages: What the extra `server` needs. None: the distribution has no metadata.
        ports: Where the server is to listen.
        directory: The data directory. None: no directory was given.
    """

    open_file_limit: int | None
    memory_limit: int | None
    cpus: float | None
    swap_bytes: int | None
    swappiness: int | None
    huge_pages: str | None
    clock_is_synchronized: bool | None
    clock_step_seconds: float | None
    user_id: int
    kernel: str | None
    libc: str | None
    preloaded: str
    packages: tuple[InstalledPackage, ...] | None
    ports: tuple[WantedPort, ...]
    directory: DirectoryFacts | None


def read_host(directory: Path | None, ports: Iterable[tuple[str, str, int]]) -> HostFacts:
    """Reads the facts of this host. Takes up to three seconds, because it writes to the disk.

    Args:
        directory: The data directory; it need not exist. None: skip what depends on it.
        ports: The setting, host and number of each port to try. Port 0 is left out.
    """
    clocks = SystemClocks()
    before = read_clocks(clocks)
    found = None if directory is None else read_directory(directory)
    # The measurement of the disk usually takes longer.
    time.sleep(max(0.0, _WATCH_SECONDS - (clocks.uptime_nanos() - before[0]) / 1e9))
    return HostFacts(
        open_file_limit=_open_file_limit(),
        memory_limit=memory_limit(),
        cpus=read_cpus(),
        swap_bytes=_or_none(read_swap, Path("/proc/swaps")),
        swappiness=_or_none(lambda path: int(path.read_text()), Path("/proc/sys/vm/swappiness")),
        huge_pages=_or_none(read_huge_pages, Path("/sys/kernel/mm/transparent_hugepage/enabled")),
        clock_is_synchronized=_clock_is_synchronized(),
        clock_step_seconds=clock_step(before, read_clocks(clocks)),
        user_id=os.geteuid(),
        kernel=platform.release() or None,
        libc=" ".join(platform.libc_ver()).strip() or None,
        preloaded=os.environ.get("LD_PRELOAD", ""),
        packages=_packages(),
        ports=tuple(try_port(setting, host, port) for setting, host, port in ports if port),
        directory=found,
    )


def _or_none(read: Callable[[Path], T], path: Path) -> T | None:
    """Returns what a file of the kernel says. None: the kernel does not have it, or writes it otherwise."""
    with suppress(OSError, ValueError, IndexError):
        return read(path)
    return None


def _open_file_limit() -> int:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


def read_cpus(control_groups: Path = CONTROL_GROUPS, own_groups: Path = OWN_GROUPS) -> float | None:
    """Returns how many cores this process may use at once: by its affinity, and by the quotas of its groups."""
    # macOS has no affinity.
    affinity = getattr(os, "sched_getaffinity", None)
    limits: list[float] = [len(affinity(0))] if affinity is not None else []
    for version, group in group_directories("cpu", control_groups, own_groups):
        with suppress(OSError, ValueError):
            if version == 2:
                quota, period = (group / "cpu.max").read_text().split()
            else:
                quota = (group / "cpu.cfs_quota_us").read_text()
                period = (group / "cpu.cfs_period_us").read_text()
            if quota != "max" and int(quota) > 0:
                limits.append(int(quota) / int(period))
    return min(limits, default=None)


def read_swap(table: Path) -> int:
    """Returns the bytes of all swap areas in a file as `/proc/swaps`."""
    return sum(int(line.split()[-3]) for line in table.read_text().splitlines()[1:]) * 1024


def read_huge_pages(setting: Path) -> str:
    """Returns the chosen value in a file as `always [madvise] never`."""
    return setting.read_text().split("[")[1].split("]")[0]


class _Timex(ctypes.Structure):
    """`struct timex` up to the status, and enough space for the rest; adjtimex(2)."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_long * 64),
    )


def _clock_is_synchronized() -> bool | None:
    # The layout of the structure on 32 bits depends on the C library.
    if sys.platform != "linux" or ctypes.sizeof(ctypes.c_long) * 8 != _LONG_BITS:
        return None
    adjtimex = getattr(ctypes.CDLL(None), "adjtimex", None)
    clock = _Timex()  # With modes = 0, the call only reads.
    if adjtimex is None or adjtimex(ctypes.byref(clock)) < 0:
        return None
    return not clock.status & _UNSYNCHRONIZED


def read_clocks(clocks: MachineClocks) -> tuple[int, int]:
    """Returns uptime and wall clock at about the same instant, in nanoseconds: the closest of several tries."""
    tries = []
    for _ in range(5):
        before, wall, after = clocks.uptime_nanos(), clocks.wall_nanos(), clocks.uptime_nanos()
        tries.append((after - before, (before + after) // 2, wall))
    return min(tries)[1:]


def clock_step(before: tuple[int, int], after: tuple[int, int]) -> float:
    """Returns by how many seconds the wall clock moved forward against uptime between two readings."""
    return ((after[1] - before[1]) - (after[0] - before[0])) / 1e9


def _packages() -> tuple[InstalledPackage, ...] | None:
    try:
        requirements = metadata.requires("scankv")
    except metadata.PackageNotFoundError:
        return None
    return None if requirements is None else tuple(find_packages(requirements, _version_of))


def _version_of(name: str) -> str | None:
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(name)
    return None


def find_packages(requirements: Iterable[str], version_of: Callable[[str], str | None]) -> Iterable[InstalledPackage]:
    """Yields the packages of a bare install and of the extra `server`, each requirement by itself."""
    for requirement in requirements:
        found = _REQUIREMENT.fullmatch(requirement)
        if found is not None and found[3] in (None, "server"):
            yield InstalledPackage(name=found[1], needed=found[2], version=version_of(found[1]))


def try_port(setting: str, host: str, port: int) -> WantedPort:
    """Tries whether a server can listen on a port. Nothing listens there afterwards."""
    problem, is_taken = None, False
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as listener:
            # As gRPC does, so that connections that have ended do not count.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
    except OSError as error:
        problem, is_taken = error.strerror or str(error), error.errno == errno.EADDRINUSE
    return WantedPort(setting=setting, address=address_of(host, port), problem=problem, is_taken=is_taken)
