"""Which facts about a host are in order for a server, and what to change otherwise. Reads nothing itself.

Rule: what could not be read is `unknown`, never `ok`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from typing import Final

from scankv.cli.directory_checks import check_directory, check_disk_speed, check_file_system, check_free_space
from scankv.cli.findings import Finding, HostCheck, mebibytes
from scankv.cli.host_facts import HostFacts, InstalledPackage
from scankv.model.installing import command_to_install
from streaming_server.addresses import is_loopback
from streaming_server.config import PROCESS_BYTES, SHARES_OF_MEMORY, ServerConfig
from streaming_server.storage.files.file_limit import files_needed

_RECOMMENDED_FILES: Final = 65_536
_FEWEST_FILES: Final = 1024
_LARGEST_SWAPPINESS: Final = 10
_LARGEST_STEP_SECONDS: Final = 0.01
"""A time service adjusts the clock by at most half a millisecond in a second."""


def examine(facts: HostFacts, config: ServerConfig, refusal: str | None = None) -> list[Finding]:
    """Returns a finding for each property of a host.

    Args:
        facts: The host.
        config: The settings of the server.
        refusal: Why a server with these settings does not listen where other machines can reach it. None: it would.
    """
    findings = [finding for check in _CHECKS for finding in check(facts, config)]
    return [*findings, _check_protection(config, refusal)]


def _check_protection(config: ServerConfig, refusal: str | None) -> Finding:
    check = HostCheck("protection", "without TLS and tokens, anyone who can reach the server can do anything")
    advice = "give --tls-certificate, --tls-key and --tokens, or --host 127.0.0.1"
    if refusal is not None:
        return check.fail(refusal, advice)
    if config.missing_protection:
        return check.warn(f"{config.host} is open to other machines, with {config.missing_protection}", advice)
    if is_loopback(config.host):
        return check.ok(f"{config.host} cannot be reached from other machines")
    return check.ok(f"{config.host} has TLS and tokens")


def _check_open_files(facts: HostFacts, config: ServerConfig) -> Iterator[Finding]:
    check = HostCheck(
        "open files",
        "an open bucket takes up to 20 files and a connection one; without spare ones, calls get ServerBusy",
    )
    needed = files_needed(config.max_open_buckets, config.max_connections)
    limit = facts.open_file_limit
    if limit is None:
        yield check.unknown("the limit cannot be read", "ulimit -Hn")
        return
    found = f"{'no limit' if limit >= sys.maxsize else f'a limit of {limit:,}'}, the settings need {needed:,}"
    advice = (
        f"systemd: LimitNOFILE={max(needed, _RECOMMENDED_FILES)}; shell: ulimit -n {max(needed, _RECOMMENDED_FILES)}; "
        f"or fewer buckets and connections: --set max_open_buckets=N --set max_connections=N"
    )
    if limit >= needed:
        yield check.ok(found)
    else:
        yield (check.warn if limit >= _FEWEST_FILES else check.fail)(found, advice)


def _check_memory(facts: HostFacts, config: ServerConfig) -> Iterator[Finding]:
    check = HostCheck("memory", "the kernel kills a server that exceeds its limit; acknowledged writes survive")
    limit, budget = facts.memory_limit, config.memory_budget
    if limit is None:
        yield check.unknown("the limit cannot be read", "free -m; systemctl show -p MemoryMax scankv")
        return
    found = f"a limit of {mebibytes(limit)}, the settings allow {mebibytes(budget)}"
    advice = (
        f"raise the limit to {mebibytes(budget * 3 // 2)} (systemd: MemoryMax={budget * 3 // 2 >> 20}M), or lower "
        f"{', '.join(SHARES_OF_MEMORY)} or max_live_scans with --set"
    )
    if limit < PROCESS_BYTES:
        yield check.fail(f"{found}, a server without load takes {mebibytes(PROCESS_BYTES)}", advice)
    elif limit < budget:
        yield check.warn(found, advice)
    else:
        yield check.ok(found)


def _check_swap(facts: HostFacts, _: ServerConfig) -> Iterator[Finding]:
    check = HostCheck("swap", "the event loop stands still while memory comes back from a disk, and all calls wait")
    if facts.swap_bytes is None:
        yield check.unknown("/proc/swaps cannot be read", "swapon --show")
    elif facts.swap_bytes == 0:
        yield check.ok("none")
    elif facts.swappiness is None:
        yield check.unknown(f"{mebibytes(facts.swap_bytes)}, vm.swappiness cannot be read", "sysctl vm.swappiness")
    else:
        found = f"{mebibytes(facts.swap_bytes)}, vm.swappiness = {facts.swappiness}"
        if facts.swappiness <= _LARGEST_SWAPPINESS:
            yield check.ok(found)
        else:
            yield check.warn(found, "sysctl -w vm.swappiness=1; systemd: MemorySwapMax=0")


def _check_huge_pages(facts: HostFacts, _: ServerConfig) -> Iterator[Finding]:
    check = HostCheck(
        "huge pages", "with huge pages everywhere, freed memory stays with the process, and a write may wait for pages"
    )
    setting = "/sys/kernel/mm/transparent_hugepage/enabled"
    if facts.huge_pages is None:
        yield check.unknown(f"{setting} cannot be read", f"cat {setting}")
    elif facts.huge_pages == "always":
        yield check.warn("always", f"echo madvise > {setting}")
    else:
        yield check.ok(facts.huge_pages)


def _check_cpus(facts: HostFacts, _: ServerConfig) -> Iterator[Finding]:
    check = HostCheck(
        "cores", "one core runs the event loop, and others sync, compact and build columnar bases beside it"
    )
    if facts.cpus is None:
        yield check.unknown("their number cannot be read", "nproc; systemctl show -p CPUQuotaPerSecUSec scankv")
    elif facts.cpus < 2:
        yield check.warn(f"{facts.cpus:g}", "allow at least two: systemd CPUQuota=200%, containers --cpus=2")
    else:
        yield check.ok(f"{facts.cpus:g}")


def _check_clock(facts: HostFacts, config: ServerConfig) -> Iterator[Finding]:
    check = HostCheck(
        "time service", "timestamps of commits, rows that expire and tokens follow the wall clock; nothing else does"
    )
    synchronized = facts.clock_is_synchronized
    if synchronized is None:
        yield check.unknown("the kernel does not say", "timedatectl show -p NTPSynchronized")
    elif synchronized:
        yield check.ok("the kernel says that the clock is synchronized")
    else:
        yield check.warn(
            "the kernel says that the clock is not synchronized",
            "systemctl enable --now chrony (or systemd-timesyncd), then wait for it: chronyc waitsync",
        )
    check = HostCheck(
        "clock", "the server does not follow a clock that jumps, and starts at times in doubt are refused"
    )
    step = facts.clock_step_seconds
    lag = None if facts.directory is None else facts.directory.clock_lag_seconds
    if lag is not None and lag > config.max_clock_step_seconds:
        yield check.warn(
            f"it is {lag:,.0f} s behind the last commit in the data directory",
            "set the clock before you start the server: chronyc makestep",
        )
    elif step is None:
        yield check.unknown("it was not watched", "run this command again")
    elif abs(step) > _LARGEST_STEP_SECONDS:
        yield check.warn(
            f"it moved by {step * 1000:+.1f} ms while it was watched",
            "find what sets the clock: journalctl -u chrony -u systemd-timesyncd; allow one time service only",
        )
    else:
        yield check.ok("it agrees with monotonic time")


def _check_system(facts: HostFacts, _: ServerConfig) -> Iterator[Finding]:
    check = HostCheck("allocator", "the server returns freed memory to the system with functions that only glibc has")
    system = f"Linux {facts.kernel or 'unknown'}, {facts.libc or 'an unknown C library'}"
    if facts.libc is None:
        yield check.unknown(system, "ldd --version")
    elif not facts.libc.startswith("glibc"):
        yield check.warn(system, "run the server on a distribution with glibc")
    elif facts.preloaded:
        yield check.warn(f"{system}, LD_PRELOAD={facts.preloaded}", "unset LD_PRELOAD for the server")
    else:
        yield check.ok(system)
    check = HostCheck("user", "an attacker who breaks into the server gets the rights of its user")
    if facts.user_id == 0:
        yield check.warn("root", "run the server, and this command, as a user of its own: useradd --system scankv")
    else:
        yield check.ok(f"user id {facts.user_id}")


def _check_packages(facts: HostFacts, _: ServerConfig) -> Iterator[Finding]:
    check = HostCheck("packages", "a server is tested with these versions only")
    advice = command_to_install("server")
    if facts.packages is None:
        yield check.unknown("the distribution scankv has no metadata", advice)
        return
    wrong = [package for package in facts.packages if package.version is None or not fits(package)]
    if wrong:
        texts = (f"{each.name} {each.version or 'is missing'}, needed: {each.needed}" for each in wrong)
        yield check.fail("; ".join(texts), advice)
    else:
        versions = {each.name: each.version for each in facts.packages}
        yield check.ok(", ".join(f"{name} {version}" for name, version in sorted(versions.items())))


def fits(package: InstalledPackage) -> bool:
    """Whether the installed version of a package is one of those that are needed.

    Compares numbers only, as the bounds of this distribution have no others.
    """
    compare = {
        ">=": lambda order: order >= 0,
        "<=": lambda order: order <= 0,
        "==": lambda order: order == 0,
        "!=": lambda order: order != 0,
        ">": lambda order: order > 0,
        "<": lambda order: order < 0,
    }
    for bound in filter(None, package.needed.split(",")):
        operator = re.match(r"[<>=!]+", bound.strip())
        if operator is None or operator[0] not in compare:
            return False
        one, other = _numbers(package.version or ""), _numbers(bound.strip()[operator.end() :])
        if not compare[operator[0]]((one > other) - (one < other)):
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    release = re.match(r"\d+(\.\d+)*", version)
    numbers = [int(each) for each in release[0].split(".")] if release else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _check_ports(facts: HostFacts, config: ServerConfig) -> Iterator[Finding]:
    check = HostCheck("port", "without its port, a server does not start")
    server = None if facts.directory is None else facts.directory.server_pid
    for port in facts.ports:
        if port.problem is None:
            yield check.ok(f"{port.address} is free")
        elif server is not None and port.is_taken:
            yield check.ok(f"{port.address} is in use, and so is the data directory, by process {server}")
        else:
            yield check.fail(
                f"{port.address}: {port.problem}",
                f"find who uses it: ss -ltnp 'sport = :{port.address.rpartition(':')[2]}'; or give another one: "
                f"--{port.setting.replace('_', '-')}",
            )
    if not config.port:
        yield check.ok("the system picks a free one")


_CHECKS: Final[tuple[Callable[[HostFacts, ServerConfig], Iterator[Finding]], ...]] = (
    _check_packages,
    _check_system,
    _check_cpus,
    _check_memory,
    _check_swap,
    _check_huge_pages,
    _check_open_files,
    _check_clock,
    _check_ports,
    lambda facts, config: check_directory(facts.directory, facts.user_id),
    lambda facts, config: check_file_system(facts.directory),
    lambda facts, config: check_free_space(facts.directory, config.min_free_bytes),
    lambda facts, config: check_disk_speed(facts.directory),
)
