"""What `scankv doctor` says about hosts: each fact out of order has a verdict, a reason and an advice."""

from __future__ import annotations

import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet

from scankv.cli.directory_facts import DirectoryFacts, DiskSpeed, Mount
from scankv.cli.findings import Finding, HostVerdict
from scankv.cli.host_checks import examine, fits
from scankv.cli.host_facts import HostFacts, InstalledPackage, WantedPort
from scankv.model.installing import command_to_install
from streaming_server.config import ServerConfig

GIB = 1 << 30
CONFIG = ServerConfig(data=Path("/data"))
DIRECTORY = DirectoryFacts(
    path=Path("/data"),
    measured=Path("/data"),
    owner_id=998,
    owner="scankv",
    mode=0o700,
    is_writable=True,
    format=5,
    problem=None,
    server_pid=None,
    mount=Mount(kind="ext4", source="/dev/sda1", options=frozenset(["rw", "relatime"])),
    disk_bytes=500 * GIB,
    free_bytes=400 * GIB,
    free_files=10_000_000,
    speed=DiskSpeed(sync_seconds=(0.0005, 0.001, 0.004), bytes_per_second=500e6),
    clock_lag_seconds=-3600.0,
)
HOST = HostFacts(
    open_file_limit=65_536,
    memory_limit=8 * GIB,
    cpus=4.0,
    swap_bytes=0,
    swappiness=60,
    huge_pages="madvise",
    clock_is_synchronized=True,
    clock_step_seconds=0.00001,
    user_id=998,
    kernel="6.1.0",
    libc="glibc 2.36",
    preloaded="",
    packages=(InstalledPackage(name="rocksdict", needed="<0.4,>=0.3.29", version="0.3.29"),),
    ports=(WantedPort(setting="port", address="127.0.0.1:7070", problem=None),),
    directory=DIRECTORY,
)


def findings_of(facts: HostFacts, config: ServerConfig = CONFIG) -> dict[str, Finding]:
    found = examine(facts, config)
    assert len({finding.check for finding in found}) == len(found)
    return {finding.check: finding for finding in found}


def on_disk(**changes: Any) -> HostFacts:
    return replace(HOST, directory=replace(DIRECTORY, **changes))


def mounted(kind: str, *options: str) -> HostFacts:
    return on_disk(mount=Mount(kind=kind, source="x", options=frozenset(["rw", *options])))


def slow(seconds: float, rate: float | None = 500e6) -> HostFacts:
    return on_disk(speed=DiskSpeed(sync_seconds=(seconds,) * 3, bytes_per_second=rate))


def port(problem: str, *, is_taken: bool) -> WantedPort:
    return WantedPort(setting="port", address="127.0.0.1:7070", problem=problem, is_taken=is_taken)


def package(version: str | None) -> tuple[InstalledPackage]:
    return (InstalledPackage(name="rocksdict", needed="<0.4,>=0.3.29", version=version),)


OK, WARN, FAIL, UNKNOWN = HostVerdict

CASES = [
    (replace(HOST, open_file_limit=20_000), "open files", WARN, "LimitNOFILE=65536"),
    (replace(HOST, open_file_limit=256), "open files", FAIL, "ulimit -n 65536"),
    (replace(HOST, memory_limit=2 * GIB), "memory", WARN, "MemoryMax=3492M"),
    (replace(HOST, memory_limit=100 << 20), "memory", FAIL, "max_live_scans"),
    (replace(HOST, swap_bytes=GIB), "swap", WARN, "sysctl -w vm.swappiness=1"),
    (replace(HOST, huge_pages="always"), "huge pages", WARN, "echo madvise"),
    (replace(HOST, cpus=0.5), "cores", WARN, "CPUQuota=200%"),
    (replace(HOST, clock_is_synchronized=False), "time service", WARN, "systemctl enable --now chrony"),
    (replace(HOST, clock_step_seconds=-3600.0), "clock", WARN, "journalctl"),
    (on_disk(clock_lag_seconds=301.0), "clock", WARN, "chronyc makestep"),
    (replace(HOST, libc="musl 1.2"), "allocator", WARN, "glibc"),
    (replace(HOST, preloaded="libjemalloc.so"), "allocator", WARN, "unset LD_PRELOAD"),
    (replace(HOST, user_id=0), "user", WARN, "useradd --system scankv"),
    (replace(HOST, packages=package(None)), "packages", FAIL, command_to_install("server")),
    (replace(HOST, packages=package("0.4.0")), "packages", FAIL, "pip install"),
    (replace(HOST, ports=(port("Address already in use", is_taken=True),)), "port", FAIL, "ss -ltnp 'sport = :7070'"),
    (replace(HOST, ports=(port("Permission denied", is_taken=False),)), "port", FAIL, "--port"),
    (on_disk(problem="the data directory has format 9"), "directory", FAIL, "scankv doctor"),
    (on_disk(is_writable=False), "directory", FAIL, "install -d -m 700 -o scankv /data"),
    (on_disk(owner_id=1000, owner="ann"), "directory", WARN, "sudo -u ann"),
    (on_disk(mode=0o755), "directory", WARN, "chmod 700 /data"),
    (mounted("tmpfs"), "file system", FAIL, "on a disk"),
    (mounted("overlay"), "file system", FAIL, "volume"),
    (mounted("nfs4"), "file system", FAIL, "disk of this machine"),
    (mounted("fuse.s3fs"), "file system", FAIL, "disk of this machine"),
    (mounted("ext4", "barrier=0"), "file system", FAIL, "remount,barrier=1"),
    (mounted("ext4", "ro"), "file system", FAIL, "remount,rw"),
    (mounted("newfs"), "file system", UNKNOWN, "ext4"),
    (on_disk(free_bytes=GIB // 2), "free space", FAIL, "enlarge the disk"),
    (on_disk(free_bytes=20 * GIB), "free space", WARN, "enlarge the disk"),
    (on_disk(free_files=10), "free files", WARN, "df -i /data"),
    (slow(0.05), "sync latency", WARN, "local SSD"),
    (slow(0.5), "sync latency", FAIL, "local SSD"),
    (slow(0.001, 1e6), "write rate", WARN, "iostat"),
    (slow(0.001, None), "write rate", UNKNOWN, "df /data"),
]


def test_a_good_host_has_nothing_to_change() -> None:
    assert {finding.verdict for finding in findings_of(HOST).values()} == {OK}
    assert all(finding.reason and not finding.advice for finding in findings_of(HOST).values())


@pytest.mark.parametrize(("facts", "check", "verdict", "advice"), CASES, ids=lambda value: str(value)[:30])
def test_a_fact_out_of_order_changes_its_verdict_only_and_says_what_to_do(
    facts: HostFacts, check: str, verdict: HostVerdict, advice: str
) -> None:
    found = findings_of(facts)
    assert found[check].verdict == verdict
    assert advice in found[check].advice
    assert found[check].reason
    # A directory of another user is no matter of the user.
    others = {name for name, each in found.items() if each.verdict != OK} - {check}
    assert others <= ({"directory"} if check == "user" else set())


def test_what_cannot_be_read_is_unknown_and_never_in_order() -> None:
    nothing: dict[str, Any] = {
        field.name: None for field in fields(HostFacts) if field.name not in {"user_id", "preloaded", "ports"}
    }
    found = findings_of(replace(HOST, **nothing))
    assert {name for name, finding in found.items() if finding.verdict == OK} == {"user", "port", "protection"}
    assert {finding.verdict for finding in found.values()} == {OK, UNKNOWN}
    assert all(finding.advice for finding in found.values() if finding.verdict == UNKNOWN)
    unread = on_disk(owner_id=None, mount=None, free_bytes=None, speed=None)
    names = {name for name, finding in findings_of(unread).items() if finding.verdict == UNKNOWN}
    assert names == {"directory", "file system", "free space", "sync latency", "write rate"}
    assert findings_of(replace(HOST, swap_bytes=GIB, swappiness=None))["swap"].verdict == UNKNOWN


def test_each_fact_of_the_host_is_judged() -> None:
    judged = "".join(str(finding) for finding in examine(HOST, CONFIG))
    for field in fields(HostFacts):
        changed = replace(HOST, **{field.name: () if field.name == "ports" else None})  # type: ignore[arg-type]
        if field.name not in {"user_id", "swappiness", "preloaded"}:
            assert "".join(str(finding) for finding in examine(changed, CONFIG)) != judged, field.name


def test_settings_that_need_less_make_a_small_host_good() -> None:
    small = replace(HOST, open_file_limit=2000)
    config = ServerConfig(data=Path("/data"), max_open_buckets=20, max_connections=100)
    assert findings_of(small)["open files"].verdict == WARN
    assert findings_of(small, config)["open files"].verdict == OK
    assert findings_of(on_disk(free_bytes=24 * GIB))["free space"].verdict == WARN
    assert (
        findings_of(on_disk(free_bytes=24 * GIB), replace(config, min_free_bytes=40 * GIB))["free space"].verdict
        == FAIL
    )
    assert findings_of(replace(HOST, open_file_limit=sys.maxsize))["open files"].found.startswith("no limit")


def test_the_port_of_a_server_that_runs_on_the_directory_is_in_order() -> None:
    taken = replace(on_disk(server_pid=12), ports=(port("Address already in use", is_taken=True),))
    assert findings_of(taken)["port"].verdict == OK
    assert "process 12 uses it" in findings_of(taken)["directory"].found


def test_an_open_address_is_reported_and_a_refused_one_fails() -> None:
    config = ServerConfig(data=Path("/data"), host="0.0.0.0", insecure=True)
    assert findings_of(HOST, config)["protection"].verdict == WARN
    protected = replace(config, insecure=False, tokens="t", tls_certificate="c", tls_key="k")
    assert findings_of(HOST, protected)["protection"].verdict == OK
    (found,) = (each for each in examine(HOST, config, "host = 0.0.0.0: ...") if each.check == "protection")
    assert found.verdict == FAIL


def test_a_new_directory_is_in_order_where_it_can_be_created() -> None:
    new = on_disk(path=Path("/data/new"), format=None)
    assert findings_of(new)["directory"].verdict == OK
    assert "can be created in /data" in findings_of(new)["directory"].found


numbers = st.lists(st.integers(0, 12), min_size=1, max_size=3).map(lambda parts: ".".join(map(str, parts)))
bounds = st.tuples(st.sampled_from([">=", "<=", "==", "!=", "<", ">"]), numbers).map("".join)


@given(numbers, st.lists(bounds, max_size=3))
def test_versions_are_compared_as_the_packaging_standard_says(version: str, needed: list[str]) -> None:
    package = InstalledPackage(name="x", needed=",".join(needed), version=version)
    assert fits(package) == SpecifierSet(package.needed).contains(version, prereleases=True)
