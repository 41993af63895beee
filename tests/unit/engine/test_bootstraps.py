"""Bootstraps: repeated and wrong calls, parts that do not count, aborts, expiry and stops."""

from __future__ import annotations

import asyncio
import errno
import os
import pathlib
import shutil
import threading
from contextlib import AsyncExitStack, asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import pytest_asyncio

from scankv.model.errors import (
    BootstrapDiffers,
    BootstrapLost,
    DataLoss,
    DiskFailed,
    DiskFull,
    DuplicateKeys,
    InvalidKey,
    InvalidRequest,
    RequestTooLarge,
    SchemaMismatch,
    ServerDraining,
    TableExists,
    TooManyBootstraps,
)
from streaming_server.config import ServerConfig
from streaming_server.engine.bootstrap.bucket_build import BucketBuild
from streaming_server.engine.tables.tables import Tables
from streaming_server.storage.bootstrap.staged_runs import BootstrapRequest
from tests.support.clocks import HOUR, FakeClocks
from tests.support.tables import ipc_stream
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.asyncio

NAME = "test.t"
SCHEMA = pa.schema([pa.field("k", pa.string(), nullable=False), ("v", pa.int64())])


@pytest.fixture
def clocks() -> FakeClocks:
    return FakeClocks()


@pytest_asyncio.fixture
async def tables(tmp_path: Path, clocks: FakeClocks) -> AsyncIterator[Tables]:
    tables = Tables(ServerConfig(data=tmp_path, block_cache_bytes=1 << 20, storage_threads=2), clocks=clocks)
    await tables.recover()
    try:
        yield tables
    finally:
        await tables.close()


async def begin(tables: Tables, schema: pa.Schema = SCHEMA, **options: str) -> str:
    definition = tables.rules.define(NAME, schema, primary_key=["k"], bucket_key=[], options=options, buckets=2)
    return await tables.begin_bootstrap(definition)


def rows(first: int, count: int, value: int = 0) -> bytes:
    keys = [f"{key:06}" for key in range(first, first + count)]
    return ipc_stream(SCHEMA, pa.record_batch([pa.array(keys), pa.array([value] * count)], schema=SCHEMA))


async def stage(tables: Tables, id_: str, part: str, sequence: int, data: bytes) -> int:
    return await tables.bootstraps.stage(id_, NAME, BootstrapRequest(part, sequence), data)


async def values(tables: Tables) -> list[int]:
    keys = pa.schema([SCHEMA.field("k")])
    sought = ipc_stream(keys, pa.record_batch([pa.array([f"{key:06}" for key in range(100)])], schema=keys))
    batch, _, _ = await tables.table(NAME).reads.lookup(sought, None)
    found: list[int] = batch.column("v").drop_null().to_pylist()
    return found


def left(tables: Tables) -> list[str]:
    directory = tables._directory
    return [path.name for root in (directory.trash, directory.bootstraps) for path in root.glob("*")]


async def test_a_repeated_request_is_staged_once_and_a_later_one_is_refused(tables: Tables) -> None:
    id_ = await begin(tables)
    assert await stage(tables, id_, "one", 0, rows(0, 10)) == 10
    assert await stage(tables, id_, "one", 0, rows(0, 10)) == 10
    with pytest.raises(InvalidRequest, match="sequence must be 1, the next one of its part, not 2"):
        await stage(tables, id_, "one", 2, rows(10, 10))
    made = await tables.bootstraps.commit(id_, NAME, {"one": 1}, 60)
    assert (made.is_done, made.staged_rows, made.merged_rows, made.rows) == (True, 10, 10, 10)
    assert await tables.bootstraps.commit(id_, NAME, {"one": 1}, 60) is made
    assert await values(tables) == [0] * 10


async def test_a_request_whose_call_is_cancelled_and_repeated_is_staged_once(tables: Tables) -> None:
    id_ = await begin(tables)
    for number in range(20):
        data = rows(number * 10_000, 10_000)
        call = asyncio.create_task(stage(tables, id_, "one", number, data))
        for _ in range(1 + number % 5):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])
        assert await stage(tables, id_, "one", number, data) == 10_000
    made = await tables.bootstraps.commit(id_, NAME, {"one": 20}, 60)
    assert (made.staged_rows, made.rows) == (200_000, 200_000)


async def test_only_the_parts_of_the_commit_count(tables: Tables) -> None:
    id_ = await begin(tables)
    for attempt in range(3):
        await stage(tables, id_, f"task 1, attempt {attempt}", 0, rows(0, 5, attempt))
    await stage(tables, id_, "task 2", 0, rows(5, 5, 7))
    with pytest.raises(InvalidRequest, match='part "task 2" has 1 requests, not 2: commit once all of them are'):
        await tables.bootstraps.commit(id_, NAME, {"task 2": 2}, 60)
    made = await tables.bootstraps.commit(id_, NAME, {"task 1, attempt 1": 1, "task 2": 1}, 60)
    assert (made.staged_rows, made.rows) == (10, 10)
    assert await values(tables) == [1] * 5 + [7] * 5


async def test_a_part_without_requests_adds_no_rows(tables: Tables) -> None:
    id_ = await begin(tables)
    await stage(tables, id_, "one", 0, rows(0, 5))
    made = await tables.bootstraps.commit(id_, NAME, {"unknown": 0, "one": 1}, 60)
    assert (made.staged_rows, made.rows) == (5, 5)


async def test_a_commit_that_takes_longer_continues(tables: Tables) -> None:
    id_ = await begin(tables)
    await stage(tables, id_, "one", 0, rows(0, 50))
    made = await tables.bootstraps.commit(id_, NAME, {"one": 1}, 0)
    assert (made.is_done, made.rows) == (False, 0)
    with pytest.raises(BootstrapLost):
        await stage(tables, id_, "one", 1, rows(50, 50))
    assert (await tables.bootstraps.commit(id_, NAME, {"one": 1}, 60)).rows == 50


async def test_calls_for_another_table_or_after_the_abort_find_no_bootstrap(tables: Tables) -> None:
    id_ = await begin(tables)
    await tables.bootstraps.abort(id_, "test.other")
    with pytest.raises(BootstrapLost, match=r"bootstrap of the table test\.other is no longer open"):
        await tables.bootstraps.stage(id_, "test.other", BootstrapRequest("one", 0), rows(0, 1))
    await stage(tables, id_, "one", 0, rows(0, 1))
    assert left(tables) != []
    await tables.bootstraps.abort(id_, NAME)
    await tables.bootstraps.abort(id_, NAME)
    assert left(tables) == []
    with pytest.raises(BootstrapLost):
        await tables.bootstraps.commit(id_, NAME, {"one": 1}, 60)


async def test_an_abort_during_the_commit_leaves_nothing_or_the_table(tables: Tables) -> None:
    id_ = await begin(tables)
    await stage(tables, id_, "one", 0, rows(0, 100))
    await tables.bootstraps.commit(id_, NAME, {"one": 1}, 0)
    await tables.bootstraps.abort(id_, NAME)
    assert left(tables) == []
    assert tables.definitions() == []


async def test_an_abort_whose_call_is_cancelled_removes_what_was_staged(tables: Tables) -> None:
    id_ = await begin(tables)
    staging = asyncio.create_task(stage(tables, id_, "one", 0, rows(0, 100_000)))
    await asyncio.sleep(0)
    ending = asyncio.create_task(tables.bootstraps.abort(id_, NAME))
    await asyncio.sleep(0)
    ending.cancel()
    await asyncio.wait([staging, ending])
    await tables.bootstraps.close()
    assert left(tables) == []


async def test_a_call_that_waits_for_a_commit_learns_of_the_abort(tables: Tables) -> None:
    id_ = await begin(tables)
    await stage(tables, id_, "one", 0, rows(0, 100_000))
    waiting = asyncio.create_task(tables.bootstraps.commit(id_, NAME, {"one": 1}, 60))
    await asyncio.sleep(0)
    await tables.bootstraps.abort(id_, NAME)
    with pytest.raises(BootstrapLost):
        await waiting


async def test_a_failed_commit_keeps_no_rows_in_memory(tables: Tables) -> None:
    id_ = await begin(tables)
    for number in range(2):
        await stage(tables, id_, "one", number, rows(0, 100_000))
    before = pa.total_allocated_bytes()
    with pytest.raises(DuplicateKeys):
        await tables.bootstraps.commit(id_, NAME, {"one": 2}, 60)
    assert pa.total_allocated_bytes() < before + 100_000
    with pytest.raises(DuplicateKeys):
        await tables.bootstraps.commit(id_, NAME, {"one": 2}, 60)


async def test_a_part_whose_rows_are_refused_is_forgotten(tables: Tables) -> None:
    id_ = await begin(tables)
    for number in range(3):
        with pytest.raises(InvalidRequest):
            await stage(tables, id_, f"part {number}", 0, b"no rows")
    assert tables.bootstraps.get(id_, NAME).staged == {}


async def test_a_bootstrap_without_calls_expires_after_a_day(tables: Tables, clocks: FakeClocks) -> None:
    tables.bootstraps.start()
    id_ = await begin(tables)
    clocks.pass_time(12 * HOUR)
    await stage(tables, id_, "one", 0, rows(0, 1))
    clocks.pass_time(12 * HOUR + 1)
    await tables.bootstraps._end_expired()
    await stage(tables, id_, "one", 1, rows(1, 1))
    clocks.pass_time(24 * HOUR + 1)
    await tables.bootstraps._end_expired()
    assert left(tables) == []
    with pytest.raises(BootstrapLost):
        await stage(tables, id_, "one", 2, rows(2, 1))


async def test_a_bootstrap_has_the_time_to_live_that_its_client_asks_for(tables: Tables, clocks: FakeClocks) -> None:
    definition = tables.rules.define(NAME, SCHEMA, primary_key=["k"], bucket_key=[], options={})
    with pytest.raises(InvalidRequest, match=r"must be between 1 and 604,800 seconds \(7 days\), not 0.5"):
        await tables.begin_bootstrap(definition, ttl=0.5)
    id_ = await tables.begin_bootstrap(definition, ttl=10 * HOUR)
    clocks.pass_time(9 * HOUR)
    await tables.bootstraps._end_expired()
    assert await stage(tables, id_, "one", 0, rows(0, 1)) == 1


async def test_a_bootstrap_does_not_expire_during_a_call_that_waits_for_its_commit(
    tables: Tables, clocks: FakeClocks
) -> None:
    definition = tables.rules.define(NAME, SCHEMA, primary_key=["k"], bucket_key=[], options={})
    id_ = await tables.begin_bootstrap(definition, ttl=1.0)
    await stage(tables, id_, "one", 0, rows(0, 10_000))
    waiting = asyncio.create_task(tables.bootstraps.commit(id_, NAME, {"one": 1}, 60))
    await asyncio.sleep(0)
    clocks.pass_time(59)
    await tables.bootstraps._end_expired()
    assert (await waiting).rows == 10_000


async def test_a_bootstrap_that_cannot_begin_leaves_nothing(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as patch:
        patch.setattr(pathlib.Path, "touch", fail)
        with pytest.raises(DiskFull):
            await begin(tables)
    assert left(tables) == []


async def test_a_hundred_bootstraps_may_be_open(tables: Tables) -> None:
    ids = [await begin(tables) for _ in range(100)]
    with pytest.raises(TooManyBootstraps, match="has 100 open bootstraps, the limit"):
        await begin(tables)
    await tables.bootstraps.commit(ids[0], NAME, {}, 60)
    definition = tables.rules.define("test.other", SCHEMA, primary_key=["k"], bucket_key=[], options={})
    await tables.begin_bootstrap(definition)


async def test_a_commit_leaves_the_reserve_of_the_disk_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = Tables(ServerConfig(data=tmp_path, block_cache_bytes=1 << 20, storage_threads=2, min_free_bytes=1 << 20))
    await tables.recover()
    id_ = await begin(tables)
    await stage(tables, id_, "one", 0, rows(0, 10))
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(total=1 << 40, free=1000))
        with pytest.raises(DiskFull, match="keeps 1,048,576 bytes free"):
            await tables.bootstraps.commit(id_, NAME, {"one": 1}, 60)
    assert left(tables) == []
    await tables.close()


@asynccontextmanager
async def opened(data: Path, clocks: FakeClocks | None = None) -> AsyncIterator[Tables]:
    """Opens a data directory, as each start of a server does."""
    tables = Tables(ServerConfig(data=data, block_cache_bytes=1 << 20, storage_threads=2), clocks=clocks)
    await tables.recover()
    try:
        yield tables
    finally:
        await tables.close()


async def begin_named(tables: Tables, source: str = "a source", **terms: Any) -> str:
    definition = tables.rules.define(NAME, SCHEMA, primary_key=["k"], bucket_key=[], options={}, buckets=2)
    return await tables.begin_bootstrap(definition, source=source, **terms)


async def test_after_a_restart_a_repeated_commit_finds_the_table(tmp_path: Path) -> None:
    async with opened(tmp_path) as tables:
        id_ = await begin(tables)
        await stage(tables, id_, "one", 0, rows(0, 10))
        await tables.bootstraps.commit(id_, NAME, {"one": 1}, 60)
        assert await tables.rows_of_bootstrap(id_, NAME) is None
        assert left(tables) == []
    async with opened(tmp_path) as tables:
        assert await tables.rows_of_bootstrap(id_, NAME) == 10
        assert await tables.rows_of_bootstrap("0" * 32, NAME) is None
        assert await tables.rows_of_bootstrap(id_, "test.other") is None


async def test_staged_rows_survive_restarts_with_their_digests(tmp_path: Path) -> None:
    async with opened(tmp_path) as tables:
        id_ = await begin_named(tables)
        await tables.bootstraps.stage(id_, NAME, BootstrapRequest("one", 0), rows(0, 10), b"first")
    async with opened(tmp_path) as tables:
        assert await begin_named(tables) == id_
        found = tables.bootstraps.get(id_, NAME)
        assert [(each.rows, each.digest) for each in found.staged["one"]] == [(10, b"first")]
        assert (found.staged_rows, found.is_committing) == (10, False)
        await tables.bootstraps.stage(id_, NAME, BootstrapRequest("one", 1), rows(10, 10), b"second")
    async with opened(tmp_path) as tables:
        made = await tables.bootstraps.commit(id_, NAME, {"one": 2}, 60)
        assert (made.staged_rows, made.merged_rows, made.rows) == (20, 20, 20)
        assert await values(tables) == [0] * 20


async def test_a_bootstrap_without_a_named_source_survives_a_restart_but_is_not_found_by_its_table(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as tables:
        id_ = await begin(tables)
        await stage(tables, id_, "one", 0, rows(0, 10))
    async with opened(tmp_path) as tables:
        assert await begin_named(tables) != id_
        assert (await tables.bootstraps.commit(id_, NAME, {"one": 1}, 60)).rows == 10


async def test_a_stop_interrupts_a_commit_and_the_next_process_continues_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_finishing, may_finish = threading.Event(), threading.Event()
    finish, finished = BucketBuild.finish, []

    def slow(build: BucketBuild, micros: int) -> None:
        is_finishing.set()
        assert may_finish.wait(60)
        finish(build, micros)
        finished.append(build.files.rows)

    monkeypatch.setattr(BucketBuild, "finish", slow)
    async with opened(tmp_path) as tables:
        id_ = await begin_named(tables)
        await stage(tables, id_, "one", 0, rows(0, 100, 1))
        await stage(tables, id_, "left out", 0, rows(0, 100, 2))
        committing = asyncio.create_task(tables.bootstraps.commit(id_, NAME, {"one": 1}, 60))
        await asyncio.to_thread(is_finishing.wait, 60)
        closing = asyncio.create_task(tables.bootstraps.close())
        await asyncio.sleep(0)
        may_finish.set()
        await closing
        with pytest.raises(ServerDraining):
            await committing
        with pytest.raises(ServerDraining):
            await stage(tables, id_, "one", 1, rows(100, 1))
    before = len(finished)
    async with opened(tmp_path) as tables:
        assert tables.bootstraps.get(id_, NAME).is_committing
        with pytest.raises(BootstrapLost):
            await stage(tables, id_, "one", 1, rows(100, 1))
        assert (await tables.bootstraps.commit(id_, NAME, {}, 60)).rows == sum(finished) == 100
        assert len(finished) == 2, f"{before} buckets were complete, and are not made again"
        assert await values(tables) == [1] * 100


async def test_a_resumed_bootstrap_must_be_the_same(tables: Tables) -> None:
    id_ = await begin_named(tables)
    await stage(tables, id_, "one", 0, rows(0, 10))
    with pytest.raises(BootstrapDiffers, match="this one reads another source, not a source: resume it as it was, or"):
        await begin_named(tables, "another source")
    changed: list[dict[str, Any]] = [{"overwrite": True}, {"merges_duplicates": True}]
    for terms in changed:
        with pytest.raises(BootstrapDiffers, match="has another mode, or another treatment of rows"):
            await begin_named(tables, **terms)
    definition = tables.rules.define(NAME, SCHEMA, primary_key=["k"], bucket_key=[], options={}, buckets=3)
    with pytest.raises(BootstrapDiffers, match="this one has another definition"):
        await tables.begin_bootstrap(definition, source="a source")
    with pytest.raises(BootstrapDiffers, match="is staged with other rows"):
        await tables.bootstraps.stage(id_, NAME, BootstrapRequest("one", 0), rows(0, 10), b"other")
    assert await begin_named(tables, ttl=10 * HOUR) == id_
    assert tables.bootstraps.get(id_, NAME).staged_rows == 10


async def test_from_scratch_discards_what_is_staged(tables: Tables) -> None:
    id_ = await begin_named(tables)
    await stage(tables, id_, "one", 0, rows(0, 10))
    other = await begin_named(tables, "another source", from_scratch=True)
    assert left(tables) == [other]
    with pytest.raises(BootstrapLost):
        await stage(tables, id_, "one", 1, rows(10, 10))
    assert tables.bootstraps.get(other, NAME).staged_rows == 0


async def test_two_begins_at_once_get_the_same_bootstrap(tables: Tables) -> None:
    assert len(set(await asyncio.gather(*(begin_named(tables) for _ in range(5))))) == 1


@pytest.mark.parametrize("restart", [False, True])
async def test_a_client_that_missed_the_end_finds_the_table_until_it_says_that_it_knows(
    tmp_path: Path, restart: bool
) -> None:
    async with AsyncExitStack() as stack:
        tables = await stack.enter_async_context(opened(tmp_path))
        id_ = await begin_named(tables)
        await stage(tables, id_, "one", 0, rows(0, 10))
        await tables.bootstraps.commit(id_, NAME, {"one": 1}, 60)
        if restart:
            await stack.aclose()
            tables = await stack.enter_async_context(opened(tmp_path))
        assert await begin_named(tables) == id_
        assert tables.bootstraps.get(id_, NAME).is_committing
        with pytest.raises(TableExists):
            await begin_named(tables, from_scratch=True)
        await tables.bootstraps.abort(id_, NAME)
        assert left(tables) == []
        with pytest.raises(TableExists):
            await begin_named(tables)
        assert await tables.rows_of_bootstrap(id_, NAME) == 10


async def test_a_table_that_was_dropped_is_bootstrapped_again(tables: Tables) -> None:
    id_ = await begin_named(tables)
    await tables.bootstraps.commit(id_, NAME, {}, 60)
    await tables.drop(NAME)
    other = await begin_named(tables)
    assert other != id_
    await stage(tables, other, "one", 0, rows(0, 10))
    assert (await tables.bootstraps.commit(other, NAME, {"one": 1}, 60)).rows == 10


async def test_a_failed_commit_can_be_begun_again(tables: Tables) -> None:
    id_ = await begin_named(tables)
    for number in range(2):
        await stage(tables, id_, "one", number, rows(0, 10))
    with pytest.raises(DuplicateKeys):
        await tables.bootstraps.commit(id_, NAME, {"one": 2}, 60)
    other = await begin_named(tables)
    assert other != id_
    assert left(tables) == [other]


async def test_time_without_a_server_does_not_count_for_the_time_to_live(tmp_path: Path, clocks: FakeClocks) -> None:
    async with opened(tmp_path, clocks) as tables:
        id_ = await begin_named(tables)
        clocks.pass_time(10 * HOUR)
        await stage(tables, id_, "one", 0, rows(0, 10))
        clocks.pass_time(20 * HOUR)
    clocks.reboot(100 * HOUR)
    async with opened(tmp_path, clocks) as tables:
        clocks.pass_time(3 * HOUR)
        await tables.bootstraps._end_expired()
        assert left(tables) == [id_]
        clocks.pass_time(2 * HOUR)
        await tables.bootstraps._end_expired()
        assert left(tables) == []


async def test_a_bootstrap_whose_terms_are_damaged_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path) as tables:
        id_ = await begin_named(tables)
    for path in (tmp_path / "bootstraps").glob("*/bootstrap.json"):
        path.write_bytes(path.read_bytes().replace(b"a source", b"a_source"))
    async with opened(tmp_path) as tables:
        assert "a bootstrap is left out" in caplog.text
        assert await begin_named(tables) != id_


async def test_damaged_staged_rows_fail_the_commit(tmp_path: Path) -> None:
    async with opened(tmp_path) as tables:
        id_ = await begin_named(tables)
        for number in range(2):
            await stage(tables, id_, "one", number, rows(number * 50, 50, 0x5A5A5A5A))
    file = tmp_path / "bootstraps" / id_ / "staged"
    file.write_bytes(file.read_bytes().replace(b"\x5a\x5a\x5a\x5a", b"\x5a\x5b\x5a\x5a", 1))
    async with opened(tmp_path) as tables:
        with pytest.raises(DataLoss, match=r"the staged rows in .* are damaged: begin the bootstrap again"):
            await tables.bootstraps.commit(id_, NAME, {"one": 2}, 60)
        assert left(tables) == []


async def test_a_source_is_named_by_printable_text(tables: Tables) -> None:
    for source in ("x" * 1001, "a\nb"):
        with pytest.raises(InvalidRequest, match="must have at most 1,000 printable characters"):
            await begin_named(tables, source)


async def test_staged_rows_count_as_staging_in_the_disk_use(tables: Tables) -> None:
    id_ = await begin(tables)
    before = await tables._disk_use.measure()
    await stage(tables, id_, "one", 0, rows(0, 100_000))
    after = await tables._disk_use.measure()
    assert after.staging - before.staging > 1_000_000
    assert after.other == before.other


async def test_wrong_rows_are_refused_and_the_bootstrap_continues(tables: Tables) -> None:
    id_ = await begin(tables)
    wrong = pa.schema([("k", pa.int64())])
    with pytest.raises(SchemaMismatch):
        await stage(tables, id_, "one", 0, ipc_stream(wrong, pa.record_batch({"k": [1]})))
    with pytest.raises(InvalidRequest):
        await stage(tables, id_, "one", 0, b"no rows")
    long = pa.record_batch([pa.array(["x" * 20_000]), pa.array([1])], schema=SCHEMA)
    with pytest.raises(InvalidKey, match="limit"):
        await stage(tables, id_, "one", 0, ipc_stream(SCHEMA, long))
    await stage(tables, id_, "one", 0, rows(0, 3))
    assert (await tables.bootstraps.commit(id_, NAME, {"one": 1}, 60)).rows == 3


async def test_after_a_request_that_cannot_be_synced_nothing_can_be_staged_or_committed(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.EIO, "the disk is broken")

    id_ = await begin(tables)
    await stage(tables, id_, "one", 0, rows(0, 3))
    await tables.bootstraps.get(id_, NAME)._join_sync()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        await stage(tables, id_, "one", 1, rows(3, 3))
        for _ in range(2):
            with pytest.raises(DiskFailed):
                await stage(tables, id_, "one", 2, rows(6, 3))
    with pytest.raises(DiskFailed):
        await tables.bootstraps.commit(id_, NAME, {"one": 2}, 60)
    await tables.bootstraps.abort(id_, NAME)
    assert left(tables) == []


async def test_a_request_that_was_lost_in_a_crash_of_the_machine_is_reported(tmp_path: Path) -> None:
    async with opened(tmp_path) as tables:
        id_ = await begin_named(tables)
        for number in range(2):
            await stage(tables, id_, "one", number, rows(number * 10, 10))
    file = tmp_path / "bootstraps" / id_ / "staged"
    os.truncate(file, file.stat().st_size - 100)
    async with opened(tmp_path) as tables:
        with pytest.raises(
            BootstrapLost, match=r'request 1 of part "one" .* was lost when the machine of the server crash'
        ):
            await stage(tables, id_, "one", 2, rows(20, 10))
        with pytest.raises(BootstrapLost, match="run the bootstrap again, and it continues"):
            await tables.bootstraps.commit(id_, NAME, {"one": 2}, 60)
        assert await begin_named(tables) == id_
        assert len(tables.bootstraps.get(id_, NAME).staged["one"]) == 1


async def test_indexes_are_built_before_any_client_uses_the_table(tables: Tables) -> None:
    definition = tables.rules.define(
        NAME, SCHEMA, primary_key=["k"], bucket_key=[], options={}, indexes=[["v"]], buckets=2
    )
    id_ = await tables.begin_bootstrap(definition)
    await stage(tables, id_, "one", 0, rows(0, 100))
    await tables.bootstraps.commit(id_, NAME, {"one": 1}, 60)
    buckets = tables.table(NAME).buckets

    async def are_ready() -> bool:
        return all(live.open_bucket is not None and live.open_bucket.state.ready_indexes for live in buckets)

    await await_until(are_ready, "the index was built in every bucket")
    for live in buckets:
        findings = await (await tables.table(NAME).open_check(live.number)).run()
        assert [(index.ready, index.entries) for index in findings.indexes] == [(True, findings.rows)]


async def test_a_row_that_an_index_cannot_have_fails_the_commit(tables: Tables) -> None:
    schema = pa.schema([pa.field("k", pa.string(), nullable=False), ("t", pa.string())])
    definition = tables.rules.define(
        NAME, schema, primary_key=["k"], bucket_key=[], options={}, indexes=[["t"]], buckets=1
    )
    id_ = await tables.begin_bootstrap(definition)
    long = pa.record_batch([pa.array(["a"]), pa.array(["x" * 20_000])], schema=schema)
    await stage(tables, id_, "one", 0, ipc_stream(schema, long))
    for _ in range(2):
        with pytest.raises(RequestTooLarge):
            await tables.bootstraps.commit(id_, NAME, {"one": 1}, 60)
    assert left(tables) == []
    assert tables.definitions() == []
