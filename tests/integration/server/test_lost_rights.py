"""Callers who lose their rights in the middle of something: nothing they began continues, or outlives its lease."""

from __future__ import annotations

import uuid
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import grpc
import pyarrow as pa
import pytest

from aio_client import ColumnLocked, PermissionDenied, StartFrom, StopAt, Unauthenticated, connect
from tests.support.secured import TokenCaller, TokenIssuer
from tests.support.server_process import ServerProcess
from tests.support.streams import read_all
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from aio_client import Client, Scan, Table

pytestmark = pytest.mark.asyncio

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])
LEASE_SECONDS = 2.0
# A scan of this table is still live while its reader does not read.
LARGE = pa.table({"k": range(15_000), "v": ["x" * 1000] * 15_000}, SCHEMA)

# What is left of the grant `write:TABLE`, and the error of later calls. None: the token is revoked.
LOSSES: dict[str, tuple[str | None, type[Unauthenticated | PermissionDenied]]] = {
    "revoked": (None, Unauthenticated),
    "reads only": ("read:{table}", PermissionDenied),
    "another table": ("write:{table}2", PermissionDenied),
}
losing = pytest.mark.parametrize("loss", LOSSES)
losing_to_read = pytest.mark.parametrize("loss", ["revoked", "another table"])


class Scene:
    """A table, a caller who may write to it and can lose this right, and an administrator.

    Attributes:
        table: The table of the caller.
        client: The client of the caller.
        seen_by_root: The table of the administrator.
        root: The client of the administrator.
        error: What calls of the caller raise after the loss.
    """

    def __init__(self, issuer: TokenIssuer, channel: grpc.Channel, token: str, loss: str, table: Table, seen: Table):
        self.table, self.seen_by_root = table, seen
        left, self.error = LOSSES[loss]
        self._grant = None if left is None else left.format(table=table.name)
        self._issuer, self._token = issuer, token
        self._probe = TokenCaller(channel, token)
        self.client: Client
        self.root: Client

    async def lose(self) -> None:
        """Takes the right from the caller, and waits until the server has noticed."""
        if self._grant is None:
            self._issuer.revoke(self._token)
        else:
            self._issuer.regrant(self._token, self._grant)
        code = self.error.code

        async def is_refused() -> bool:
            return self._probe.code("scankv.v1.WriteService/OpenWriter", table=self.table.name, id="probe") == code

        await await_until(is_refused, "refused")

    async def nothing_is_held(self) -> None:
        """Waits until no lease keeps anything of the table."""

        async def is_free() -> bool:
            held = [each.retention_holder for each in await self.seen_by_root.stats()]
            locks, snapshots = await self.root.column_locks(), await self.root.snapshots()
            live, transactions = await self.root.live_scans(), await self.root.transactions()
            return not [*filter(None, held), *locks, *snapshots, *live, *transactions]

        await await_until(is_free, "free")


class Stage:
    """A server that asks for tokens."""

    def __init__(self, process: ServerProcess, issuer: TokenIssuer, channel: grpc.Channel) -> None:
        self._process, self._issuer, self._channel = process, issuer, channel

    @asynccontextmanager
    async def scene(self, loss: str, rows: pa.Table | None = None) -> AsyncIterator[Scene]:
        """Makes a table with rows and a caller who may write to it."""
        name = f"lost.t{uuid.uuid4().hex}"
        token = self._issuer.create(f"write:{name}")
        url = self._process.url
        async with connect(url, token=self._issuer.root) as root, connect(url, token=token) as client:
            seen = await root.create_table(name, SCHEMA, primary_key=["k"], buckets=1)
            if rows is not None:
                await seen.upsert(rows)
            scene = Scene(self._issuer, self._channel, token, loss, await client.table(name), seen)
            scene.client, scene.root = client, root
            yield scene


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    directory = tmp_path_factory.mktemp("lost")
    issuer = TokenIssuer(directory / "tokens")
    settings = ["--tokens", str(issuer.path), "--set", "follow_heartbeat_seconds=0.2"]
    with (
        ServerProcess(directory / "data", *settings) as process,
        grpc.insecure_channel(process.url, [("grpc.use_local_subchannel_pool", 1)]) as channel,
    ):
        yield Stage(process, issuer, channel)


def row(k: int, v: str = "x") -> list[dict[str, object]]:
    return [{"k": k, "v": v}]


@pytest.mark.breadth
@losing
async def test_a_transaction_is_not_committed_and_ends_with_its_time_to_live(stage: Stage, loss: str) -> None:
    async with stage.scene(loss) as scene:
        transaction = await scene.client.transaction(ttl=LEASE_SECONDS, conflict="abort")
        await transaction.upsert(scene.table, row(1))
        await scene.seen_by_root.upsert(row(9))
        assert [each.retention_holder for each in await scene.seen_by_root.stats()] != [None]
        await scene.lose()
        with pytest.raises(scene.error):
            await transaction.upsert(scene.table, row(2))
        with pytest.raises(scene.error):
            await transaction.get_for_update(scene.table, [1])
        with pytest.raises(scene.error):
            await transaction.lookup(scene.table, [1])
        with pytest.raises(scene.error):
            await transaction.commit()
        with pytest.raises(scene.error):
            await transaction.abort()
        await scene.nothing_is_held()
        assert (await scene.seen_by_root.scan().to_arrow())["k"].to_pylist() == [9]


@pytest.mark.breadth
@losing_to_read
async def test_a_snapshot_is_not_renewed_or_read_and_ends_with_its_lease(stage: Stage, loss: str) -> None:
    async with stage.scene(loss, LARGE.slice(0, 10)) as scene:
        # The block renews the lease for as long as it may.
        async with scene.table.snapshot(ttl=LEASE_SECONDS) as snapshot:
            assert len(await scene.table.scan().as_of(snapshot).to_arrow()) == 10
            await scene.lose()
            with pytest.raises(scene.error):
                await snapshot.renew()
            with pytest.raises(scene.error):
                await scene.table.scan().as_of(snapshot).to_arrow()
            with pytest.raises(scene.error):
                await scene.table.scan().as_of(snapshot).splits(4)
            with pytest.raises(scene.error):
                await scene.client.adopt_snapshot(snapshot.id)
            await scene.nothing_is_held()


@pytest.mark.breadth
@losing_to_read
async def test_a_pinned_scan_that_is_not_read_is_freed_and_its_reader_is_told(stage: Stage, loss: str) -> None:
    async with stage.scene(loss, LARGE) as scene:
        snapshot = await scene.table.snapshot(ttl=LEASE_SECONDS)
        async with scene.table.scan().as_of(snapshot).stream() as stream:
            await anext(stream)
            assert [each.table for each in await scene.root.live_scans()] == [scene.table.name]
            await scene.lose()
            # The iterators are freed and the lease ends, although the reader takes nothing.
            await scene.nothing_is_held()
            with pytest.raises(scene.error):
                await read_all(stream)


@losing_to_read
async def test_a_stream_of_changes_ends_and_cannot_be_resumed(stage: Stage, loss: str) -> None:
    async with stage.scene(loss) as scene, scene.table.changes(StartFrom.EARLIEST).stream() as stream:
        await scene.seen_by_root.upsert(row(1))
        assert (await anext(stream))["k"].to_pylist() == [1]
        token = stream.resume_token
        assert token is not None
        await scene.lose()
        await scene.seen_by_root.upsert(row(2))
        with pytest.raises(scene.error):
            await read_all(stream)
        with pytest.raises(scene.error):
            await scene.table.changes(StartFrom.EARLIEST, StopAt.LATEST).resume_from(token).to_arrow()
        await scene.nothing_is_held()


@losing_to_read
async def test_a_consumer_commits_nothing_more_and_others_continue_where_it_was(stage: Stage, loss: str) -> None:
    def upto_now(table: Table) -> Scan:
        return table.changes(StartFrom.EARLIEST, StopAt.LATEST, consumer_id="c")

    async with stage.scene(loss) as scene:
        async with scene.table.changes(StartFrom.EARLIEST, consumer_id="c").stream() as stream:
            await scene.seen_by_root.upsert(row(1))
            await anext(stream)
            await stream.commit()
            await scene.seen_by_root.upsert(row(2))
            await anext(stream)
            await scene.lose()
            with pytest.raises(scene.error):
                await stream.commit()

            async def has_ended() -> bool:
                (consumer,) = await scene.seen_by_root.consumers()
                return not consumer.live

            await await_until(has_ended, "without a stream")
            with pytest.raises(scene.error):
                await read_all(stream)
        assert (await upto_now(scene.seen_by_root).to_arrow())["k"].to_pylist() == [2]
        await scene.seen_by_root.delete_consumer("c")
        await scene.nothing_is_held()


@pytest.mark.breadth
@losing
async def test_a_column_lock_is_not_renewed_and_ends_with_its_lease(stage: Stage, loss: str) -> None:
    async with stage.scene(loss) as scene:
        async with scene.table.lock_columns(["v"], owner="job", ttl=LEASE_SECONDS) as lock:
            await scene.table.upsert(row(1), locks=[lock])
            await scene.lose()
            with pytest.raises(scene.error):
                await lock.renew()
            with pytest.raises(scene.error):
                await scene.table.upsert(row(2), locks=[lock])
            with pytest.raises(scene.error):
                await scene.table.lock_columns(["v"], owner="job", take_over=True)

            async def can_write() -> bool:
                try:
                    await scene.seen_by_root.upsert(row(3))
                except ColumnLocked:
                    return False
                return True

            await await_until(can_write, "unlocked")
        assert (await scene.seen_by_root.scan().to_arrow())["k"].sort().to_pylist() == [1, 3]
        await scene.nothing_is_held()


@losing
async def test_a_writer_loses_what_it_had_not_sent_and_says_so(stage: Stage, loss: str) -> None:
    async def run(scene: Scene) -> None:
        async with scene.table.writer(id="job") as writer:
            await writer.upsert(row(1))
            await writer.flush()
            await scene.lose()
            await writer.upsert(row(2))

    async with stage.scene(loss) as scene:
        with pytest.raises(scene.error):
            await run(scene)
        assert (await scene.seen_by_root.scan().to_arrow())["k"].to_pylist() == [1]
        async with scene.seen_by_root.writer(id="job") as writer:
            await writer.upsert(row(3))
        assert await scene.seen_by_root.count() == 2
