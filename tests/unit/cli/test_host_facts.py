"""How `scankv doctor` reads what the kernel writes, and measures a disk."""

from __future__ import annotations

import fcntl
import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from scankv.cli.directory_facts import find_lock, find_mount, measure_disk, read_directory
from scankv.cli.host_facts import (
    clock_step,
    find_packages,
    read_clocks,
    read_cpus,
    read_host,
    read_huge_pages,
    read_swap,
    try_port,
)
from streaming_server.clock import ServerClock, SystemClocks
from streaming_server.storage.files.checked_json import write_checked_json
from streaming_server.storage.tables.clock_file import ClockFile
from streaming_server.storage.tables.data_directory import NEWEST_FORMAT, DataDirectory

MOUNTS = r"""21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro
30 21 0:30 / /mnt rw - tmpfs tmpfs rw
31 30 0:31 /export /mnt/with\040space rw,nosuid shared:2 master:1 - nfs4 server:/export rw,vers=4.2
32 21 8:2 / /var ro - xfs /dev/sda2 ro
33 21 8:3 / /var rw - btrfs /dev/sda3 rw,nobarrier
broken line
"""


@pytest.mark.parametrize(
    ("directory", "kind"),
    [
        ("/", "ext4"),
        ("/mntx", "ext4"),
        ("/mnt/a", "tmpfs"),
        ("/mnt/with space/b", "nfs4"),
        ("/var/lib", "btrfs"),
    ],
)
def test_the_file_system_of_a_directory_is_the_innermost_and_latest_mount(directory: str, kind: str) -> None:
    mount = find_mount(Path(directory), MOUNTS)
    assert mount is not None
    assert mount.kind == kind


def test_the_options_of_the_mount_and_of_the_file_system_count() -> None:
    mount = find_mount(Path("/mnt/with space"), MOUNTS)
    assert mount is not None
    assert mount.options == {"rw", "nosuid", "vers=4.2"}
    assert mount.source == "server:/export"
    assert find_mount(Path("/x"), "") is None


def test_the_process_that_has_locked_a_directory_is_found_without_taking_the_lock(tmp_path: Path) -> None:
    assert read_directory(tmp_path).server_pid is None
    directory = DataDirectory(tmp_path / "data")
    try:
        facts = read_directory(tmp_path / "data")
        assert facts.server_pid == os.getpid()
        assert facts.format == NEWEST_FORMAT
        assert facts.problem is None
    finally:
        directory.close()
    assert read_directory(tmp_path / "data").server_pid is None
    with (tmp_path / "data" / "LOCK").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_locks_of_other_files_do_not_count() -> None:
    locks = "1: POSIX  ADVISORY  WRITE 5 08:01:77 0 EOF\n2: FLOCK  ADVISORY  WRITE 6 08:01:777 0 EOF\n"
    device = os.makedev(8, 1)
    assert find_lock(locks, device, 77) is None
    assert find_lock(locks, device, 777) == 6


def test_a_directory_is_left_as_it_was(tmp_path: Path) -> None:
    facts = read_directory(tmp_path / "new" / "data")
    assert not facts.exists
    assert facts.measured == tmp_path
    assert facts.speed is not None
    assert facts.speed.sync_seconds == tuple(sorted(facts.speed.sync_seconds))
    assert list(tmp_path.iterdir()) == []


def test_a_directory_of_another_program_and_a_file_are_problems(tmp_path: Path) -> None:
    (tmp_path / "letter").touch()
    assert "is not a ScanKV data directory" in (read_directory(tmp_path).problem or "")
    assert "is not a directory" in (read_directory(tmp_path / "letter").problem or "")
    assert [path.name for path in tmp_path.iterdir()] == ["letter"]


def test_a_newer_format_is_a_problem(tmp_path: Path) -> None:
    write_checked_json(tmp_path / "scankv.json", {"format": NEWEST_FORMAT + 1})
    assert "newer" in (read_directory(tmp_path).problem or "")


def test_a_directory_that_this_user_may_not_see_is_a_problem(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    (hidden / "data").mkdir(parents=True)
    hidden.chmod(0)
    user = os.geteuid()
    try:
        if user == 0:
            os.seteuid(65_534)
        facts = read_directory(hidden / "data")
    finally:
        os.seteuid(user)
        hidden.chmod(0o700)
    assert "Permission denied" in (facts.problem or "")
    assert facts.speed is None
    assert not facts.exists


def test_a_wall_clock_before_the_last_commit_is_noticed(tmp_path: Path) -> None:
    assert read_directory(tmp_path).clock_lag_seconds is None
    times = ServerClock().store()
    ClockFile(tmp_path).write(replace(times, commit=times.commit + 1000 * 10**9))
    lag = read_directory(tmp_path).clock_lag_seconds
    assert lag is not None
    assert 900 < lag <= 1000


def test_a_slow_disk_is_measured_for_two_seconds_at_most(tmp_path: Path) -> None:
    ticks = iter(range(1000))
    speed = measure_disk(tmp_path, 2 << 30, lambda: next(ticks) / 2)
    assert speed is not None
    assert 1 <= len(speed.sync_seconds) <= 2
    assert next(ticks) < 12


def test_a_full_disk_is_not_filled_further(tmp_path: Path) -> None:
    speed = measure_disk(tmp_path, 1 << 20)
    assert speed is not None
    assert speed.bytes_per_second is None
    assert measure_disk(tmp_path / "missing", 1 << 40) is None


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "50000 100000\n"}, 0.5),
        ("5:cpu,cpuacct:/x\n", {"cpu/x/cpu.cfs_quota_us": "20000\n", "cpu/x/cpu.cfs_period_us": "100000\n"}, 0.2),
        ("5:cpu:/x\n", {"cpu/x/cpu.cfs_quota_us": "-1\n"}, len(os.sched_getaffinity(0))),
        ("", {}, len(os.sched_getaffinity(0))),
    ],
)
def test_the_least_quota_of_the_groups_counts(tmp_path: Path, own: str, files: dict[str, str], expected: float) -> None:
    (tmp_path / "cgroup").write_text(own)
    for name, text in files.items():
        (tmp_path / "sys" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "sys" / name).write_text(text)
    assert read_cpus(tmp_path / "sys", tmp_path / "cgroup") == expected


def test_files_of_the_kernel_are_read(tmp_path: Path) -> None:
    swaps, pages = tmp_path / "swaps", tmp_path / "enabled"
    swaps.write_text("Filename Type Size Used Priority\n/dev/sda5 partition 1024 0 -2\n/a\\040b file 2048 5 -3\n")
    pages.write_text("always [madvise] never\n")
    assert read_swap(swaps) == 3 << 20
    assert read_huge_pages(pages) == "madvise"


def test_a_step_of_the_wall_clock_is_seen_beside_the_time_that_has_passed() -> None:
    second = 1_000_000_000
    assert clock_step((5 * second, 100 * second), (6 * second, 101 * second)) == 0
    assert clock_step((5 * second, 100 * second), (6 * second, 98 * second)) == -3
    before, after = (read_clocks(SystemClocks()) for _ in range(2))
    assert before[0] <= after[0]


def test_only_requirements_of_a_server_count() -> None:
    requirements = [
        "grpcio<2,>=1.85.1",
        "pyarrow<27,>=26; extra == 'server'",
        "pandas<4,>=2.2.2; extra == 'demo'",
        'psycopg[binary]<4,>=3.2; extra == "server"',
    ]
    found = list(find_packages(requirements, {"grpcio": "1.86"}.get))
    assert [(each.name, each.needed, each.version) for each in found] == [
        ("grpcio", "<2,>=1.85.1", "1.86"),
        ("pyarrow", "<27,>=26", None),
        ("psycopg", "<4,>=3.2", None),
    ]


def test_a_taken_port_and_a_foreign_address_are_problems() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        number = listener.getsockname()[1]
        taken = try_port("port", "127.0.0.1", number)
        assert (taken.problem, taken.is_taken) == ("Address already in use", True)
    assert try_port("port", "127.0.0.1", number).problem is None
    assert try_port("port", "192.0.2.1", number).problem == "Cannot assign requested address"


def test_everything_on_this_host_can_be_read(tmp_path: Path) -> None:
    facts = read_host(tmp_path, [("port", "127.0.0.1", 0)])
    assert facts.ports == ()
    assert facts.directory is not None
    assert facts.directory.is_writable
    assert facts.memory_limit
    assert facts.cpus
    assert facts.clock_is_synchronized is not None
    assert facts.packages is not None
    assert {"rocksdict", "pyarrow"} <= {package.name for package in facts.packages}
    assert facts.clock_step_seconds is not None
