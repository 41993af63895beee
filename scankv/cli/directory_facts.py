"""What `doctor` reads about a data directory and its disk. A file for the measurement is removed at once."""

from __future__ import annotations

import os
import pwd
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Final

from scankv.model.errors import ScanKvError
from streaming_server.clock import SystemClocks
from streaming_server.storage.tables.clock_file import ClockFile
from streaming_server.storage.tables.data_directory import read_format, refuse_foreign

_BLOCK: Final = 4096
_MOST_SYNCS: Final = 200
_SYNC_SECONDS: Final = 1.0
_STREAM_BLOCK: Final = 1 << 20
_STREAM_BLOCKS: Final = 32
_STREAM_SECONDS: Final = 1.0
_SPARE_BYTES: Final = 1 << 30
_FORMAT_FILE: Final = "scankv.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """The mounted file system that a directory is on.

    Attributes:
        kind: Its type, as in `ext4`.
        source: What is mounted, as in `/dev/sda1` or `server:/export`.
        options: The options of the mount and of the file system.
    """

    kind: str
    source: str
    options: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSpeed:
    """What was measured with a file in the directory.

    Attributes:
        sync_seconds: The duration of each sync after 4 KiB were appended, ascending.
        bytes_per_second: The rate of writing 32 MiB, with a sync at the end. None: too little space is free.
    """

    sync_seconds: tuple[float, ...]
    bytes_per_second: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryFacts:
    """The state of a data directory and its disk.

    Attributes:
        path: The directory.
        measured: The directory itself, or the closest one above it that exists.
        owner_id: The user who owns `measured`. None: it cannot be read.
        owner: The name of that user.
        mode: The permissions of `measured`.
        is_writable: Whether this user may create files in `measured`.
        format: The format of the directory; None if it is new.
        problem: Why a server would refuse the directory. None: it would not.
        server_pid: The process of the server that uses the directory. None: no process does, as far as can be seen.
        mount: Its file system.
        disk_bytes: The size of the disk.
        free_bytes: What this user may still write.
        free_files: How many files can still be created. None: unknown, or the file system has no fixed number.
        speed: What was measured. None: nothing could be written.
        clock_lag_seconds: By how much the wall clock is behind the last commit, which may be negative. None: the
            directory has no commit time, or it cannot be read.
    """

    path: Path
    measured: Path
    owner_id: int | None
    owner: str
    mode: int
    is_writable: bool
    format: int | None
    problem: str | None
    server_pid: int | None
    mount: Mount | None
    disk_bytes: int | None
    free_bytes: int | None
    free_files: int | None
    speed: DiskSpeed | None
    clock_lag_seconds: float | None

    @property
    def exists(self) -> bool:
        """Whether the directory itself exists."""
        return self.measured == self.path


def read_directory(path: Path) -> DirectoryFacts:
    """Reads the facts of a data directory, and measures its disk for up to three seconds."""
    path = Path(os.path.abspath(path))  # resolve() would name the target of a link, which the user has not given.
    # `Path.is_dir` raises an error for what this user may not see.
    measured = next((each for each in (path, *path.parents) if os.path.isdir(each)), Path("/"))
    owner_id, mode = None, 0
    with suppress(OSError):
        status = measured.stat()
        owner_id, mode = status.st_uid, status.st_mode & 0o777
    disk_bytes = free_bytes = free_files = None
    with suppress(OSError):
        disk = os.statvfs(measured)
        disk_bytes, free_bytes = disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize
        free_files = disk.f_favail if disk.f_files else None
    form, problem = _read_format(path)
    is_writable = os.access(measured, os.R_OK | os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids)
    return DirectoryFacts(
        path=path,
        measured=measured,
        owner_id=owner_id,
        owner="" if owner_id is None else _name_of(owner_id),
        mode=mode,
        is_writable=is_writable,
        format=form,
        problem=problem,
        server_pid=_lock_holder(path / "LOCK"),
        mount=_read_mount(measured),
        disk_bytes=disk_bytes,
        free_bytes=free_bytes,
        free_files=free_files,
        speed=measure_disk(measured, free_bytes or 0) if is_writable else None,
        clock_lag_seconds=_read_clock_lag(path),
    )


def _read_clock_lag(path: Path) -> float | None:
    with suppress(OSError, ScanKvError):
        stored = ClockFile(path).read(is_new=True)
        if stored is not None:
            return (stored.commit - SystemClocks().wall_nanos()) / 1e9
    return None


def _read_format(path: Path) -> tuple[int | None, str | None]:
    """Returns the format of a directory, and why a server would refuse it."""
    try:
        if not path.exists():
            return None, None
        if not path.is_dir():
            return None, f"{path} is not a directory: give an empty or a new one as data directory"
        refuse_foreign(path)
        return (read_format(path) if (path / _FORMAT_FILE).exists() else None), None
    except ScanKvError as error:
        return None, error.message
    except OSError as error:
        return None, f"the data directory {path} cannot be used: {error.strerror}"


def _name_of(user_id: int) -> str:
    try:
        return pwd.getpwuid(user_id).pw_name
    except KeyError:
        return str(user_id)


def _lock_holder(lock: Path) -> int | None:
    """Returns which process has locked a file. The lock is not tried: a server that starts would find it taken."""
    with suppress(OSError, ValueError):
        status = lock.stat()
        return find_lock(Path("/proc/locks").read_text(), status.st_dev, status.st_ino)
    return None


def find_lock(locks: str, device: int, inode: int) -> int | None:
    """Returns the process that has a file locked by flock(2), from the text of `/proc/locks`."""
    name = f"{os.major(device):02x}:{os.minor(device):02x}:{inode}"
    found = re.search(rf"^\d+: FLOCK +ADVISORY +WRITE (\d+) {name} ", locks, re.MULTILINE)
    return int(found[1]) if found else None


def _read_mount(directory: Path) -> Mount | None:
    with suppress(OSError):
        return find_mount(directory.resolve(), Path("/proc/self/mountinfo").read_text())
    return None


def find_mount(directory: Path, mounts: str) -> Mount | None:
    """Returns the file system of a directory, from the text of `/proc/self/mountinfo` (proc_pid_mountinfo(5))."""
    best: tuple[int, Mount] | None = None
    for line in mounts.splitlines():
        before, dash, after = line.partition(" - ")
        fields, rest = before.split(" "), after.split(" ")
        if not dash or len(fields) < 6 or len(rest) < 3:
            continue
        point = Path(_unescape(fields[4]))
        # Of two mounts at one place, the later one hides the other.
        if directory.is_relative_to(point) and (best is None or len(point.parts) >= best[0]):
            options = frozenset([*fields[5].split(","), *rest[2].split(",")])
            best = len(point.parts), Mount(kind=rest[0], source=_unescape(rest[1]), options=options)
    return None if best is None else best[1]


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def measure_disk(directory: Path, free_bytes: int, clock: Callable[[], float] = time.perf_counter) -> DiskSpeed | None:
    """Measures appends with a sync, as the log of a bucket makes them, and then one large write.

    Uses a file with a name: file systems may skip the log for a file without one, so its syncs would look too fast.

    Returns:
        The figures. None: the file could not be written.
    """
    try:
        with NamedTemporaryFile(dir=directory, prefix=".scankv-doctor-", buffering=0) as file:
            syncs = _time_syncs(file.fileno(), clock)
            return DiskSpeed(
                sync_seconds=tuple(sorted(syncs)),
                bytes_per_second=_time_stream(file.fileno(), clock) if free_bytes > _SPARE_BYTES else None,
            )
    except OSError:
        return None


def _time_syncs(file: int, clock: Callable[[], float]) -> list[float]:
    block = os.urandom(_BLOCK)
    syncs: list[float] = []
    start = now = clock()
    while not syncs or (len(syncs) < _MOST_SYNCS and now - start < _SYNC_SECONDS):
        os.write(file, block)
        before = clock()
        os.fdatasync(file)
        now = clock()
        syncs.append(now - before)
    return syncs


def _time_stream(file: int, clock: Callable[[], float]) -> float:
    block = os.urandom(_STREAM_BLOCK)
    start = now = clock()
    written = 0
    while written < _STREAM_BLOCKS * _STREAM_BLOCK and now - start < _STREAM_SECONDS:
        written += os.write(file, block)
        now = clock()
    os.fdatasync(file)
    return written / max(clock() - start, 1e-9)
