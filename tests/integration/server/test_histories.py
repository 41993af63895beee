"""Every kind of position, used after every way in which a table can go back in time.

A position that is early is taken before a backup, and before the changes that are damaged. A late one is taken at the
end. Then the table goes back, and gets other changes until its changelog is as long as it was before.
"""

from __future__ import annotations

import shutil
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest

from aio_client import (
    ConsumerNotFound,
    DataLoss,
    InvalidResumeToken,
    LogOffsets,
    PositionOutOfRange,
    Resume,
    ScanKvError,
    SnapshotLost,
    StartFrom,
    StopAt,
    TableRecreated,
    WriterFenced,
    agg,
    connect,
)
from aio_client.mirror import mirror
from scankv.lake.formats import open_lake_table
from scankv.lake.publisher import PublishOptions, publish
from streaming_server.engine.backups.offline_check import OfflineCheck
from streaming_server.engine.backups.restore import restore_all, restore_tables
from streaming_server.engine.backups.restore_plan import plan_backup
from streaming_server.storage.backup.backup_manifest import find_backup, read_manifest
from streaming_server.storage.backup.backup_store import BackupStore
from streaming_server.storage.changelog.offsets import count_of
from streaming_server.storage.transactions.transaction_log import TransactionLog
from tests.support.prepared import flip
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from aio_client import Client, Scan, Table, Writer

    Refusals = dict[str, type[ScanKvError]]

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
NAME: Final = "a.t"
ROWS: Final = 30
"""The rows before the early positions, and those between them and the late ones."""

pytestmark = [pytest.mark.asyncio, pytest.mark.one_process, pytest.mark.whole_tables]


@dataclass
class Positions:
    """All positions that were taken at one moment.

    Attributes:
        label: `early` or `late`.
        rows: The rows of the table then.
        scanned: The least key of its bucket, after which `scan_token` resumes.
        pinned: The rows of the snapshot.
    """

    label: str
    rows: dict[int, int]
    offsets: LogOffsets
    version: bytes
    scan_token: bytes
    scanned: int
    changes_token: bytes
    snapshot: str
    pinned: dict[int, int]
    mirror: Any
    writer: Writer
    lake: str


async def rows_of(scan: Scan) -> dict[int, int]:
    return {row["k"]: row["v"] for row in await scan.to_pylist()}


async def take(
    client: Client, table: Table, label: str, first: int, tmp_path: Path, writers: AsyncExitStack
) -> Positions:
    """Takes a position of every kind. Writes rows from the number `first` on before those that are not pinned."""
    # Pinning leaves the write-ahead log empty, so it comes first.
    lake = str(tmp_path / f"lake-{label}")
    await publish(client, NAME, open_lake_table(lake), PublishOptions(file_rows=50))
    snapshot, pinned = await table.snapshot(ttl=3600), await rows_of(table.scan())
    await fill(table, first, ROWS)
    async with table.scan().with_chunk(rows=1).stream() as stream:
        scanned = (await anext(aiter(stream)))["k"][0].as_py()
        scan_token = stream.resume_token
    async with table.changes(StartFrom.FULL, StopAt.LATEST).with_consumer_id(label).stream() as stream:
        async for _ in stream:
            pass
        changes_token = stream.resume_token
        await stream.commit()
    async with mirror(table) as copied:
        state = copied.state()
    writer = await table.writer(id=f"w-{label}").__aenter__()
    writers.push_async_callback(end, writer)
    await writer.upsert([{"k": 9001, "v": 0}])
    await writer.flush()
    async with client.transaction(id=f"job-{label}:1") as transaction:
        await transaction.upsert(table, [{"k": 9002, "v": 0}])
    async with table.scan().stream() as stream:
        rows = {row["k"]: row["v"] async for batch in stream for row in batch.to_pylist()}
        offsets, version = stream.log_offsets, stream.version
    assert scan_token is not None
    assert changes_token is not None
    return Positions(
        label, rows, offsets, version, scan_token, scanned, changes_token, snapshot.id, pinned, state, writer, lake
    )


async def end(writer: Writer) -> None:
    with suppress(WriterFenced):
        await writer.__aexit__(None, None, None)


async def changed(scan: Scan, rows: dict[int, int], table: Table) -> None:
    """Applies changes to the rows of their beginning, and compares the result with the table."""
    found = dict(rows)
    for change in await scan.to_pylist():
        if change["_change_type"] in ("+I", "+U"):
            found[change["k"]] = change["v"]
        else:
            found.pop(change["k"], None)
    assert found == await rows_of(table.scan())


# What each kind of position is used for. A use that returns has had the correct result.


async def start(client: Client, table: Table, at: Positions) -> None:
    await changed(table.changes(StartFrom.offsets(at.offsets), StopAt.LATEST), at.rows, table)


async def start_without_incarnation(client: Client, table: Table, at: Positions) -> None:
    await changed(table.changes(StartFrom.offsets(dict(at.offsets)), StopAt.LATEST), at.rows, table)


async def stop(client: Client, table: Table, at: Positions) -> None:
    found = await table.changes(StartFrom.EARLIEST, StopAt.offsets(at.offsets)).to_pylist()
    assert {each["k"] for each in found} == at.rows.keys()


async def precondition(client: Client, table: Table, at: Positions) -> None:
    first = 9010 if at.label == "early" else 9020
    await table.upsert([{"k": key, "v": 0} for key in range(first, first + 10)], if_version=at.offsets)


async def version(client: Client, table: Table, at: Positions) -> None:
    same = await table.count_if_changed(at.version) is None
    assert same == (await rows_of(table.scan()) == at.rows)


async def scan_token(client: Client, table: Table, at: Positions) -> None:
    rows = await rows_of(table.scan().resume(Resume.LATEST).resume_from(at.scan_token))
    assert rows == {k: v for k, v in (await rows_of(table.scan())).items() if k > at.scanned}


async def changes_token(client: Client, table: Table, at: Positions) -> None:
    scan = table.changes(StartFrom.FULL, StopAt.LATEST).resume_from(at.changes_token)
    await changed(scan, at.rows, table)


async def consumer(client: Client, table: Table, at: Positions) -> None:
    scan = table.changes(StartFrom.FULL, StopAt.LATEST).with_consumer_id(at.label, must_exist=True)
    await changed(scan, at.rows, table)


async def writer(client: Client, table: Table, at: Positions) -> None:
    await at.writer.upsert([{"k": 9003, "v": 7}])
    assert (await at.writer.flush()).rows == 1
    assert await table.get(9003) == {"k": 9003, "v": 7}


async def undo(client: Client, table: Table, at: Positions) -> None:
    assert (await table.undo(f"w-{at.label}", at.offsets)).restored == 0


async def snapshot(client: Client, table: Table, at: Positions) -> None:
    assert await rows_of(table.scan().as_of(at.snapshot)) == at.pinned


async def mirror_state(client: Client, table: Table, at: Positions) -> None:
    async with mirror(table, state=at.mirror) as copied:
        await copied.wait_for(await table.log_offsets())
        found = {row["k"]: row["v"] for row in copied.to_arrow().to_pylist()}
    assert found == await rows_of(table.scan())


async def publication(client: Client, table: Table, at: Positions) -> None:
    """Reads the published rows with the fresh ones, then publishes again: never rows that the table has lost."""
    assert await rows_of(table.scan().read_path("lake", at.lake)) == await rows_of(table.scan())
    await publish(client, NAME, open_lake_table(at.lake), PublishOptions(file_rows=50))
    assert await rows_of(table.scan().read_path("lake", at.lake)) == await rows_of(table.scan())


async def published_start(client: Client, table: Table, at: Positions) -> None:
    await changed(table.changes(StartFrom.lake(at.lake), StopAt.LATEST), {}, table)


async def transaction(client: Client, table: Table, at: Positions) -> None:
    """Commits a transaction again. Its row is there afterwards, unless a recovery has lost it after the commit."""
    async with client.transaction(id=f"job-{at.label}:1") as again:
        is_known = again.result is not None
        if not is_known:
            await again.upsert(table, [{"k": 9002, "v": 0}])
    is_lost = is_known and await table.get(9001) is None
    assert await table.get(9002) == (None if is_lost else {"k": 9002, "v": 0})


USES: Final[dict[str, Callable[[Client, Table, Positions], Awaitable[None]]]] = {
    "version": version,
    "start": start,
    "start without incarnation": start_without_incarnation,
    "stop": stop,
    "precondition": precondition,
    "scan token": scan_token,
    "changes token": changes_token,
    "consumer": consumer,
    "writer": writer,
    "undo": undo,
    "snapshot": snapshot,
    "mirror": mirror_state,
    "start of a publication": published_start,
    "publication": publication,
    "transaction": transaction,
}


# The ways back. Each is called with the server killed, and leaves a directory that it can be started with.


async def restore(server: ServerProcess, tmp_path: Path) -> None:
    store = BackupStore(str(tmp_path / "backups"))
    plan = plan_backup(read_manifest(store, find_backup(store, "latest")))
    restore_all(store, plan, tmp_path / "restored")
    server.data_dir = tmp_path / "restored"


async def restore_table(server: ServerProcess, tmp_path: Path) -> None:
    """Restores the table into the directory of the server, without which it has been moved away."""
    shutil.rmtree(server.data_dir / "tables" / "a" / "t")
    store = BackupStore(str(tmp_path / "backups"))
    plan = plan_backup(read_manifest(store, find_backup(store, "latest")))
    restore_tables(store, plan, server.data_dir, {NAME: NAME})


async def recover(server: ServerProcess) -> None:
    """Recovers what is damaged, as `scankv check --offline --recover` does."""
    for is_damaged in (True, False):
        check = OfflineCheck(server.data_dir)
        try:
            problems = [part async for part in check.run() if part.problem]
            assert bool(problems) == is_damaged
            for part in problems:
                assert part.recover is not None
                part.recover()
        finally:
            check.close()


def bucket_of(server: ServerProcess) -> Path:
    table = server.data_dir / "tables" / "a" / "t"
    (bucket,) = [*table.glob("buckets/0000"), *table.glob("tablets/*/buckets/0000")]
    return bucket


async def lose_end(server: ServerProcess, tmp_path: Path) -> None:
    """Damages the write-ahead log, in which an epoch began."""
    logs = sorted(bucket_of(server).glob("*.log"))
    log = [each for each in logs if each.stat().st_size][-1]
    for position in range(12, 40):
        flip(log, position)
    await recover(server)


async def lose_bucket(server: ServerProcess, tmp_path: Path) -> None:
    shutil.rmtree(bucket_of(server))
    await recover(server)


async def lose_bucket_and_watermark(server: ServerProcess, tmp_path: Path) -> None:
    bucket_of(server).with_suffix(".durable").unlink()
    await lose_bucket(server, tmp_path)


async def restart(server: ServerProcess, tmp_path: Path) -> None:
    pass


async def drop_and_create(client: Client, tablets: int) -> None:
    await client.drop_table(NAME)
    await client.create_table(NAME, SCHEMA, primary_key=["k"], buckets=tablets, tablets=tablets)


_OTHER_HISTORY: Final[dict[str, type[ScanKvError]]] = {
    "start": TableRecreated,
    "start without incarnation": TableRecreated,
    "stop": TableRecreated,
    "precondition": TableRecreated,
    "scan token": InvalidResumeToken,
    "changes token": InvalidResumeToken,
    "consumer": TableRecreated,
    "writer": WriterFenced,
    "undo": TableRecreated,
    "snapshot": SnapshotLost,
    "mirror": InvalidResumeToken,
    "start of a publication": TableRecreated,
}
_LOST: Final[dict[str, type[ScanKvError]]] = {
    "start": PositionOutOfRange,
    "start without incarnation": PositionOutOfRange,
    "stop": PositionOutOfRange,
    "precondition": PositionOutOfRange,
    "changes token": PositionOutOfRange,
    "consumer": PositionOutOfRange,
    "writer": WriterFenced,
    "undo": PositionOutOfRange,
    "mirror": PositionOutOfRange,
    "start of a publication": PositionOutOfRange,
}
# The rows were published before the changes that are lost.
_LOST_AFTER_PUBLISHING: Final = {use: error for use, error in _LOST.items() if use != "start of a publication"}
_NOT_RESTORED: Final[dict[str, type[ScanKvError]]] = {**_OTHER_HISTORY, "consumer": ConsumerNotFound}

# For each way back: what does it, and the errors of early and of late positions. Uses without an error continue.
WAYS: Final[dict[str, tuple[Callable[[ServerProcess, Path], Awaitable[None]] | None, Refusals, Refusals]]] = {
    "restart": (restart, {}, {}),
    "restore": (restore, _OTHER_HISTORY, _NOT_RESTORED),
    "restore of the table": (restore_table, _OTHER_HISTORY, _NOT_RESTORED),
    "drop and creation": (None, _NOT_RESTORED, _NOT_RESTORED),
    "recovery without the end": (lose_end, {"writer": WriterFenced}, _LOST_AFTER_PUBLISHING),
    "recovery without a bucket": (lose_bucket, _LOST_AFTER_PUBLISHING, _LOST),
    "recovery without a bucket and its watermark": (lose_bucket_and_watermark, _OTHER_HISTORY, _OTHER_HISTORY),
}


async def fill(table: Table, first: int, count: int) -> None:
    """Writes rows, each in a change of its own."""
    for number in range(first, first + count):
        await table.upsert([{"k": number, "v": 1}])


@asynccontextmanager
async def positions(tmp_path: Path, tablets: int) -> AsyncIterator[tuple[ServerProcess, Client, Positions, Positions]]:
    """Takes all positions, early and late. Kills the server before the block, which has to start it again."""
    location = str(tmp_path / "backups")
    with ServerProcess(tmp_path / "data", "--backup-location", location) as server:
        async with connect(server.url) as client, AsyncExitStack() as writers:
            table = await client.create_table(NAME, SCHEMA, primary_key=["k"], buckets=tablets, tablets=tablets)
            early = await take(client, table, "early", 0, tmp_path, writers)
            await client.create_backup()
            server.kill()
            server.restart()
            late = await take(client, table, "late", 100, tmp_path, writers)
            server.kill()
            yield server, client, early, late


REMEDIES: Final[dict[str, str]] = {
    "consumer": "scankv consumers reset",
    "mirror": "create the mirror again",
    "writer": "open the writer again",
    "scan token": "start again",
}
"""What errors advise. All others say where to start."""


async def refusals(client: Client, at: Positions) -> dict[str, type[ScanKvError]]:
    """Uses all positions, and returns the errors."""
    table, found, lacking = await client.table(NAME), dict[str, type[ScanKvError]](), list[str]()
    for name, use in USES.items():
        try:
            await use(client, table, at)
        except ScanKvError as error:
            found[name] = type(error)
            if not isinstance(error, ConsumerNotFound | SnapshotLost):
                lacking += [error.message] if REMEDIES.get(name, "start") not in error.message else []
    assert not lacking
    return found


@pytest.mark.represented_by("recovery without a bucket and its watermark-1")
@pytest.mark.parametrize("tablets", [1, pytest.param(2, marks=pytest.mark.soak)])
@pytest.mark.parametrize("way", WAYS)
async def test_positions_continue_or_are_refused(tmp_path: Path, way: str, tablets: int) -> None:
    go_back, of_early, of_late = WAYS[way]
    async with positions(tmp_path, tablets) as (server, client, early, late):
        if go_back is not None:
            await go_back(server, tmp_path)
        server.restart()
        if go_back is None:
            await drop_and_create(client, tablets)
        table = await client.table(NAME)
        ends, reached = await table.log_offsets(), late.offsets
        await fill(table, 10_000, sum(map(count_of, reached.values())) - sum(map(count_of, ends.values())))
        assert await refusals(client, late) == of_late
        assert await refusals(client, early) == of_early
        if way in ("restore", "drop and creation") and tablets == 1:
            async with AsyncExitStack() as writers:
                current = await take(client, table, "current", 20_000, tmp_path, writers)
                assert await refusals(client, current) == {"start without incarnation": TableRecreated}


async def test_readers_of_other_buckets_continue_after_a_bucket_is_lost(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        async with connect(server.url) as client:
            table = await client.create_table(NAME, SCHEMA, primary_key=["k"], buckets=2)
            await fill(table, 0, ROWS)
            offsets = await table.log_offsets()
            server.kill()
            await lose_bucket(server, tmp_path)
            server.restart()
            table = await client.table(NAME)
            await fill(table, 100, ROWS)
            changes = table.changes(StartFrom.offsets(offsets), StopAt.LATEST)
            found = {each["k"] for each in await changes.with_buckets(1).to_pylist()}
            assert found == {row["k"] for row in await table.scan().with_buckets(1).to_pylist() if row["k"] >= 100}
            for scan in (changes, changes.with_buckets(0)):
                with pytest.raises(PositionOutOfRange, match="bucket 0"):
                    await scan.to_pylist()


async def test_a_new_incarnation_remembers_commits_and_waits_for_those_not_applied(
    tmp_path: Path,
) -> None:
    with ServerProcess(tmp_path / "data") as server:
        async with connect(server.url) as client:
            table = await client.create_table(
                NAME, SCHEMA, primary_key=["k"], buckets=2, merge_engine="aggregate", aggregators={"v": agg.sum()}
            )
            await fill(table, 0, ROWS)
            kept = (await table.scan().with_buckets(1).to_pylist())[0]["k"]
            for times in (1, 2):
                async with client.transaction(id="add") as transaction:
                    assert (transaction.result is None) == (times == 1)
                    if times == 1:
                        await transaction.upsert(table, [{"k": kept, "v": 10}])
            async with table.changes(StartFrom.EARLIEST, StopAt.LATEST).with_consumer_id("evidence").stream() as stream:
                async for _ in stream:
                    pass
                await stream.commit()
            incarnation = table.incarnation
            server.kill()
            file = bucket_of(server).parents[1] / "table.json"
            before = file.read_bytes()
            log = TransactionLog(server.data_dir / "transactions")
            log.append({"decided": {"token": "pending", "tables": {NAME: incarnation}}}, sync=True)
            log.close()
            with pytest.raises(DataLoss, match="transactions give-up"):
                await lose_bucket_and_watermark(server, tmp_path)
            assert file.read_bytes() == before
            log = TransactionLog(server.data_dir / "transactions")
            log.rewrite([record for record in log.records if "decided" not in record])
            log.close()
            await recover(server)
            server.restart()
            table = await client.table(NAME)
            assert table.incarnation != incarnation
            async with client.transaction(id="add") as transaction:
                assert transaction.result is not None
            assert await table.get(kept) == {"k": kept, "v": 11}
