"""A process that merges buckets of a bootstrap beside the server: what it makes, and how it may end."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from scankv.model.errors import DuplicateKeys, ServerDraining
from scankv.model.tables.merge_functions import aggregate_of
from scankv.model.tables.merge_spec import MergeSpec
from streaming_server.config import ServerConfig
from streaming_server.engine.bootstrap import bucket_builds
from streaming_server.engine.bootstrap.merge_process import MergeProcess
from streaming_server.engine.tables.tables import Tables
from streaming_server.storage.bootstrap.staged_runs import BootstrapRequest
from tests.support.tables import ipc_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from streaming_server.engine.bootstrap.bucket_build import BucketBuild

pytestmark = pytest.mark.asyncio

NAME = "test.t"
SCHEMA = pa.schema(
    [pa.field("k", pa.int64(), nullable=False), ("v", pa.int64()), pa.field("day", pa.string(), nullable=False)]
)
COUNT = 2000


class UsedProcesses(list[MergeProcess]):
    """The processes that have merged a bucket, and what is done to them before they do."""

    def __init__(self) -> None:
        self.before_merge: Callable[[MergeProcess], None] = lambda _: None

    @property
    def pids(self) -> set[int]:
        return {each._process.pid for each in self}


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> UsedProcesses:
    """Has bootstraps of any size use a process."""
    monkeypatch.setattr(bucket_builds, "_LARGE_BYTES", 1)
    processes, merge = UsedProcesses(), MergeProcess.merge

    def recorded(process: MergeProcess, build: BucketBuild) -> Iterator[None]:
        processes.append(process)
        processes.before_merge(process)
        return merge(process, build)

    monkeypatch.setattr(MergeProcess, "merge", recorded)
    return processes


async def opened(path: Path) -> Tables:
    tables = Tables(ServerConfig(data=path, block_cache_bytes=1 << 20, storage_threads=3))
    await tables.recover()
    return tables


def rows(value: int) -> bytes:
    keys = pa.array(range(COUNT), pa.int64())
    days = pa.array([f"day {key % 3}" for key in range(COUNT)])
    return ipc_stream(SCHEMA, pa.record_batch([keys, pa.array([value] * COUNT), days], schema=SCHEMA))


async def begin(tables: Tables, *, merges_duplicates: bool = True) -> str:
    definition = tables.rules.define(
        NAME,
        SCHEMA,
        primary_key=["day", "k"],
        bucket_key=[],
        options={"merge_engine": "aggregate"},
        merging=MergeSpec(aggregates=(aggregate_of("v", "sum"),)),
        buckets=4,
        partition_by=["day"],
    )
    id_ = await tables.begin_bootstrap(definition, merges_duplicates=merges_duplicates, source="a source")
    for number in range(3):
        request = BootstrapRequest("rows", number)
        assert await tables.bootstraps.stage(id_, NAME, request, rows(10**number)) == COUNT
    return id_


async def commit(tables: Tables, id_: str) -> None:
    """Commits, and checks what the table has."""
    made = await tables.bootstraps.commit(id_, NAME, {"rows": 3}, 60)
    assert (made.is_done, made.merged_rows, made.rows) == (True, 3 * COUNT, COUNT)
    keys = pa.schema([SCHEMA.field("k"), SCHEMA.field("day")])
    sought = pa.record_batch([[*range(COUNT)], [f"day {key % 3}" for key in range(COUNT)]], schema=keys)
    batch, _, _ = await tables.table(NAME).reads.lookup(ipc_stream(keys, sought), None)
    assert batch.column("v").to_pylist() == [111] * COUNT
    partitions = await tables.table(NAME).partitions.list_partitions()
    assert sorted(each.rows or 0 for each in partitions) == [666, 667, 667]


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.breadth
async def test_a_process_merges_some_of_the_buckets_and_ends(tmp_path: Path, used: UsedProcesses) -> None:
    tables = await opened(tmp_path)
    await commit(tables, await begin(tables))
    assert len(used.pids) == 1
    assert not any(map(is_running, used.pids))
    await tables.close()


async def test_few_rows_are_merged_without_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[MergeProcess] = []
    monkeypatch.setattr(bucket_builds, "MergeProcess", lambda: used.append(MergeProcess()))
    tables = await opened(tmp_path)
    await commit(tables, await begin(tables))
    assert used == []
    await tables.close()


@pytest.mark.parametrize("is_merging", [False, True])
async def test_what_a_killed_process_has_not_merged_the_server_merges(
    tmp_path: Path, used: UsedProcesses, caplog: pytest.LogCaptureFixture, is_merging: bool
) -> None:
    tables = await opened(tmp_path)
    id_ = await begin(tables)
    if is_merging:
        used.before_merge = lambda process: process._process.kill()
    else:
        process = tables.bootstraps.get(id_, NAME)._builds._process
        assert process is not None
        process._process.kill()
        process._process.wait()
    await commit(tables, id_)
    assert "the process that merges rows of test.t has ended, so the server merges all of them" in caplog.text
    await tables.close()


async def test_without_a_process_the_server_merges_all(
    tmp_path: Path, used: UsedProcesses, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "missing"))
    tables = await opened(tmp_path)
    await commit(tables, await begin(tables))
    assert "no process can be started to merge rows, so the server merges all of them" in caplog.text
    assert used == []
    await tables.close()


async def test_an_error_of_the_process_is_that_of_the_commit(tmp_path: Path, used: UsedProcesses) -> None:
    tables = await opened(tmp_path)
    id_ = await begin(tables, merges_duplicates=False)
    with pytest.raises(DuplicateKeys, match=r"several rows for the table test.t have the key day=day "):
        await tables.bootstraps.commit(id_, NAME, {"rows": 3}, 60)
    assert len(used.pids) == 1
    assert not any(map(is_running, used.pids))
    await tables.close()


@pytest.mark.soak
async def test_a_frozen_process_does_not_keep_the_server_from_ending(tmp_path: Path, used: UsedProcesses) -> None:
    is_frozen = asyncio.Event()
    loop = asyncio.get_running_loop()

    def freeze(process: MergeProcess) -> None:
        os.kill(process._process.pid, signal.SIGSTOP)
        loop.call_soon_threadsafe(is_frozen.set)

    used.before_merge = freeze
    tables = await opened(tmp_path)
    id_ = await begin(tables)
    committing = asyncio.create_task(tables.bootstraps.commit(id_, NAME, {"rows": 3}, 60))
    await is_frozen.wait()
    await tables.close()
    with pytest.raises(ServerDraining):
        await committing
    assert not any(map(is_running, used.pids))
    used.before_merge = lambda _: None
    tables = await opened(tmp_path)
    await commit(tables, id_)
    await tables.close()


async def test_a_bootstrap_that_is_aborted_ends_its_process(tmp_path: Path, used: UsedProcesses) -> None:
    tables = await opened(tmp_path)
    id_ = await begin(tables)
    process = tables.bootstraps.get(id_, NAME)._builds._process
    assert process is not None
    assert is_running(process._process.pid)
    await tables.bootstraps.abort(id_, NAME)
    assert not is_running(process._process.pid)
    await tables.close()


async def test_the_process_ends_with_its_server() -> None:
    process = MergeProcess()
    process._connection.close()
    assert await asyncio.to_thread(process._process.wait, 60) == 0
