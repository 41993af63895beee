"""Every write that RocksDB has made is read from its write-ahead log, and of an incomplete file the first ones."""

from __future__ import annotations

import itertools
import os
import struct
from pathlib import Path
from random import Random
from typing import Any

import google_crc32c
import pytest

from scankv.model.errors import DataLoss
from streaming_server.storage.rocks.store import META, RocksStore
from streaming_server.storage.rocks.store_files import create_empty, families_of
from streaming_server.storage.rocks.store_options import RocksResources
from streaming_server.storage.rocks.write_ahead_log import (
    ARCHIVE,
    LoggedWrite,
    ends_cut_short,
    find_log_files,
    find_put,
    log_path,
    open_log_file,
    read_writes,
    remove_kept_logs,
    remove_old_logs,
)

KEY = b"state"


@pytest.fixture
def resources() -> RocksResources:
    return RocksResources.of_sizes(block_cache_bytes=1 << 20, write_buffer_bytes=256 << 20, keeps_logs=True)


def write_some(path: Path, resources: RocksResources, *, flushes: bool) -> list[tuple[int, int]]:
    """Makes random writes, the state in each of them its number. Returns the first sequence and entries of each."""
    store, random, made = RocksStore(path, "store", compression="lz4", resources=resources), Random(7), []
    for number in range(60):
        batch, first = store.batch(), store.sequence + 1
        # Rows that look like the entry to be found, and some that are longer than RocksDB's blocks of 32 KiB.
        batch.put_rows([KEY, b"k%d" % number], [b"row", random.randbytes(random.choice([0, 10, 5000, 40_000, 90_000]))])
        batch.delete_rows([b"gone"])
        batch.delete_row_range(b"x", b"y")
        batch.put_meta(KEY, b"early")
        batch.put_meta(b"stat", b"other")
        batch.put_log(b"%08d" % number, b"change")
        batch.put_meta(KEY, b"%d" % number)
        store.write(batch)
        made.append((first, store.sequence - first + 1))
        if flushes and number % 20 == 19:
            store.flush()
    store.sync()
    store.close()
    return made


def read_all(path: Path) -> list[LoggedWrite]:
    return [write for file in find_log_files(path) for write in read_writes(file.path.read_bytes(), "store")]


def test_every_write_is_read_with_its_sequence_and_its_state(tmp_path: Path, resources: RocksResources) -> None:
    made = write_some(tmp_path / "a", resources, flushes=True)
    assert [file.is_archived for file in find_log_files(tmp_path / "a")][:3] == [True] * 3
    writes, family = read_all(tmp_path / "a"), families_of(tmp_path / "a").index(META)
    assert [(write.sequence, write.entries) for write in writes] == made
    assert [find_put(write, family, KEY, "store") for write in writes] == [b"%d" % number for number in range(60)]
    assert find_put(writes[0], family, b"unknown", "store") is None


def test_a_file_that_is_cut_has_the_complete_writes_before(tmp_path: Path, resources: RocksResources) -> None:
    write_some(tmp_path / "a", resources, flushes=False)
    content = find_log_files(tmp_path / "a")[0].path.read_bytes()
    writes = list(read_writes(content, "store"))
    for size in [0, *range(1, len(content), 4999), *(write.end - 1 for write in writes), len(content)]:
        assert list(read_writes(content[:size], "store")) == [write for write in writes if write.end <= size]


def test_another_format_is_an_error(tmp_path: Path, resources: RocksResources) -> None:
    write_some(tmp_path / "a", resources, flushes=False)
    content = bytearray(find_log_files(tmp_path / "a")[0].path.read_bytes())
    content[6] = 9
    (size,) = struct.unpack_from("<H", content, 4)
    checksum = google_crc32c.value(bytes(content[6 : 7 + size]))
    struct.pack_into("<I", content, 0, ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF)
    with pytest.raises(DataLoss, match="type 9"):
        list(read_writes(bytes(content), "store"))
    with pytest.raises(DataLoss, match="unknown entry"):
        find_put(LoggedWrite(1, 1, 0, b"\x77"), 0, KEY, "store")
    with pytest.raises(DataLoss, match="unknown entry"):
        find_put(LoggedWrite(1, 1, 0, b"\x05"), 0, KEY, "store")


def test_rocksdb_replays_the_files_in_an_empty_store(tmp_path: Path, resources: RocksResources) -> None:
    made = write_some(tmp_path / "a", resources, flushes=True)
    create_empty(tmp_path / "b", families_of(tmp_path / "a"), resources)
    for file in find_log_files(tmp_path / "a"):
        log_path(tmp_path / "b", file.number).write_bytes(file.path.read_bytes())
    store = RocksStore(tmp_path / "b", "store", compression="lz4", resources=resources)
    assert store.sequence == sum(made[-1]) - 1
    assert store.meta.get(KEY) == b"59"
    assert sum(len(keys) for keys, _ in store.read_rows(100)) == 61
    store.close()


def test_files_that_are_kept_are_removed_on_request_or_without_the_setting(
    tmp_path: Path, resources: RocksResources
) -> None:
    write_some(tmp_path / "a", resources, flushes=True)
    first, second, *_ = find_log_files(tmp_path / "a")
    remove_kept_logs(tmp_path / "a", before=second.number)
    assert first.number not in [file.number for file in find_log_files(tmp_path / "a")]
    assert find_log_files(tmp_path / "a")[0] == second
    plain = RocksResources.of_sizes(block_cache_bytes=1 << 20, write_buffer_bytes=8 << 20)
    RocksStore(tmp_path / "a", "store", compression="lz4", resources=plain).close()
    assert not any(file.is_archived for file in find_log_files(tmp_path / "a"))


def test_a_file_of_the_next_second_is_kept(tmp_path: Path, resources: RocksResources) -> None:
    """By RocksDB's coarse clock, a file that was written right before may be of the future."""
    write_some(tmp_path / "a", resources, flushes=False)
    file, *_ = find_log_files(tmp_path / "a")
    later = file.path.stat().st_mtime + 10
    os.utime(file.path, (later, later))
    RocksStore(tmp_path / "a", "store", compression="lz4", resources=resources).close()
    kept = {each.number: each for each in find_log_files(tmp_path / "a")}
    assert (kept[file.number].size, kept[file.number].is_archived) == (file.size, True)


def test_files_that_are_old_and_not_needed_are_removed(tmp_path: Path, resources: RocksResources) -> None:
    write_some(tmp_path / "a", resources, flushes=True)
    old, young, *others = find_log_files(tmp_path / "a")
    os.utime(old.path, (1000, 1000))
    os.utime(others[-1].path, (1000, 1000))
    remove_old_logs([tmp_path / "a", tmp_path / "b"], 2000 * 1_000_000)
    assert not others[-1].is_archived
    assert [file.number for file in find_log_files(tmp_path / "a")] == [file.number for file in (young, *others)]


def test_a_file_that_moves_while_it_is_looked_for_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ARCHIVE).mkdir()
    log_path(tmp_path, 7).write_bytes(b"writes")
    open_now = Path.open

    def open_after_a_move(path: Path, *arguments: Any) -> Any:
        if path == log_path(tmp_path, 7):
            path.rename(log_path(tmp_path / ARCHIVE, 7))
        return open_now(path, *arguments)

    monkeypatch.setattr(Path, "open", open_after_a_move)
    with open_log_file(tmp_path, 7) as file:
        assert file.read() == b"writes"


def test_a_file_that_does_not_exist_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="has no write-ahead log 7"):
        open_log_file(tmp_path, 7)


def with_last_write_cut(content: bytes, writes: list[LoggedWrite], cut: int, zeros: int) -> tuple[bytes, int]:
    """Returns the content with zeros from the first end of a sector at or after a cut, and where the zeros begin."""
    start = writes[-2].end
    cut = -(-max(cut, start) // 512) * 512
    return content[:cut] + bytes(max(zeros, len(content) - cut)), cut


@pytest.mark.parametrize("zeros", [0, 5, 100_000])
@pytest.mark.represented_by("0")
def test_a_last_write_that_ends_in_zeros_is_left_out(tmp_path: Path, resources: RocksResources, zeros: int) -> None:
    write_some(tmp_path / "a", resources, flushes=False)
    content = find_log_files(tmp_path / "a")[0].path.read_bytes()
    writes = list(read_writes(content, "store"))
    for last in range(2, len(writes)):
        start, end = writes[last - 1].end, writes[last].end
        for cut in {start, *range(start, end, 6007), end - 600}:
            left, begin = with_last_write_cut(content[:end], writes[: last + 1], cut, zeros)
            if begin < end and content[begin:end].strip(b"\0"):
                assert list(read_writes(left, "store")) == writes[:last]


@pytest.mark.parametrize("follows", [b"", bytes(10_000)])
def test_a_write_that_differs_is_an_error_also_before_zeros(
    tmp_path: Path, resources: RocksResources, follows: bytes
) -> None:
    write_some(tmp_path / "a", resources, flushes=False)
    content = find_log_files(tmp_path / "a")[0].path.read_bytes()
    writes = list(read_writes(content, "store"))
    for before, write in itertools.pairwise(writes[:12]):
        for at in (before.end + 20, write.end - 1):
            damaged = bytearray(content[: write.end] + follows)
            damaged[at] ^= 1
            with pytest.raises(DataLoss, match="damaged"):
                list(read_writes(bytes(damaged), "store"))


def test_only_the_last_file_of_a_log_may_be_cut_short(tmp_path: Path, resources: RocksResources) -> None:
    write_some(tmp_path / "a", resources, flushes=False)
    (file,) = [each for each in find_log_files(tmp_path / "a") if each.size]
    content = file.path.read_bytes()
    writes = list(read_writes(content, "store"))
    store = tmp_path / "b"
    store.mkdir()
    log_path(store, 7).write_bytes(content)
    assert not ends_cut_short(store)
    last = next(number for number, write in enumerate(writes) if number > 5 and len(write.content) > 5000)
    left, _ = with_last_write_cut(content[: writes[last].end], writes[: last + 1], writes[last - 1].end + 600, 0)
    log_path(store, 7).write_bytes(left)
    assert ends_cut_short(store)
    log_path(store, 8).write_bytes(bytes(4096))
    assert ends_cut_short(store)
    log_path(store, 8).write_bytes(content[: writes[0].end])
    assert not ends_cut_short(store)
