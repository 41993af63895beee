"""The memory limit of control groups of both versions, and the settings that follow it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from streaming_server.config import RANGES, SHARES_OF_MEMORY, ServerConfig, load_config
from streaming_server.storage.files.file_limit import max_open_buckets
from streaming_server.storage.files.memory_limit import memory_limit

MEBIBYTE = 1 << 20
MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": "1000000\n"}, 1_000_000),
        ("0::/a\n", {"a/memory.max": "2000000\n", "memory.max": "3000000\n"}, 2_000_000),
        ("0::/\n", {"memory.max": "3000000\n"}, 3_000_000),
        ("0::/\n", {}, MACHINE),
        ("5:cpu,cpuacct:/x\n4:memory:/x\n0::/\n", {"memory/x/memory.limit_in_bytes": "4000000\n"}, 4_000_000),
        ("4:memory:/docker/1\n", {"memory/memory.limit_in_bytes": "5000000\n"}, 5_000_000),
        ("4:memory:/\n", {"memory/memory.limit_in_bytes": "9223372036854771712\n"}, MACHINE),
    ],
)
def test_the_least_limit_of_the_groups_counts(tmp_path: Path, own: str, files: dict[str, str], expected: int) -> None:
    write(tmp_path / "cgroup", own)
    for name, text in files.items():
        write(tmp_path / "sys" / name, text)
    assert memory_limit(tmp_path / "sys", tmp_path / "cgroup") == expected


def test_a_system_without_control_groups_has_the_memory_of_the_machine(tmp_path: Path) -> None:
    assert memory_limit(tmp_path, tmp_path / "none") == MACHINE


def test_defaults_are_fitted_to_little_memory_and_given_settings_are_kept() -> None:
    usual = ServerConfig(data=Path("x"))
    assert load_config({"data": "x"}, memory_bytes=64 << 30) == replace(usual, block_cache_bytes=4 << 30)
    for limit in (1024 * MEBIBYTE, 2048 * MEBIBYTE, 4096 * MEBIBYTE):
        assert load_config({"data": "x"}, memory_bytes=limit).memory_budget <= limit
    small = load_config({"data": "x", "block_cache_bytes": 500 * MEBIBYTE}, memory_bytes=512 * MEBIBYTE)
    assert small.block_cache_bytes == 500 * MEBIBYTE
    for name in SHARES_OF_MEMORY:
        assert RANGES[name][0] <= getattr(small, name)
    assert small.max_unread_answer_bytes < usual.max_unread_answer_bytes
    assert small.max_live_scans < usual.max_live_scans


@pytest.mark.parametrize(("limit", "kept"), [(10, 1), (2000, 100), (20_000, 256), (40_000, 500), (1 << 20, 1024)])
def test_many_buckets_stay_open_only_if_each_can_keep_its_files_open(limit: int, kept: int) -> None:
    assert max_open_buckets(1024, limit) == kept
    assert max_open_buckets(5, limit) == min(5, kept)
