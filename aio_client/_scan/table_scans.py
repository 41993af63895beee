"""Starting to read a table: scans, snapshots, changes, and the current log offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aio_client._input.arguments import names_of
from aio_client._integrations.blocking_stream import open_blocking_stream
from aio_client._scan.scan import Scan
from aio_client._scan.shards import ScannedTable
from aio_client._scan.snapshot import SnapshotOpener, adopt_named_snapshot
from aio_client._table.handle import TableMethods
from scankv.model.changes.log_positions import ScanSource, StartFrom
from scankv.model.errors import UsageError
from scankv.model.scans.scan_spec import ScanSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aio_client._integrations.arrow_dataset import TableDataset
    from aio_client._scan.scan_builder import Pinned
    from aio_client._scan.snapshot import Snapshot
    from scankv.model.changes.log_offsets import LogOffsets
    from scankv.model.changes.log_positions import StopAt
    from scankv.model.expressions import Where


class ScanMethods(TableMethods):
    """Reads many rows of a table: as of now, as of a snapshot, or as they change."""

    def scan(
        self, columns: Sequence[str] | None = None, *, where: Where | None = None, limit: int | None = None
    ) -> Scan:
        """Returns a scan of the table, which its methods refine and start.

        Args:
            columns: The columns to return, in this order. Default: all. Empty: rows without columns.
            where: Which rows to return, as for `Scan.where`. Default: all rows.
            limit: The most rows to return, over all buckets together. Default: no limit.

        Raises:
            UsageError: The limit is negative, a column is named twice, or `where` cannot be parsed. Whether the columns
                exist is checked when the scan starts.
            SchemaMismatch: `where` is text, and names a column that does not exist or compares it with a value of
                another type. The message says where in the text.
        """
        names = None if columns is None else names_of(columns, "columns")
        shape = self._handle.shape
        spec = ScanSpec(shape.name, columns=names, where=self._handle.parse_where(where), limit=limit)
        description = shape.description
        table = ScannedTable(
            shape.key_schema, description.buckets, tuple(description.bucket_key), max(1, description.tablets)
        )
        return Scan(self._handle.transport, spec, table)

    def dataset(self, *, as_of: Pinned | str | None = None) -> TableDataset:
        """Returns the table as a `pyarrow.dataset.Dataset`, which DuckDB and others read like a local table.

            con = duckdb.connect()
            con.register("scores", table.dataset())
            query = con.sql("select league, sum(score) from scores where score > 10 group by league")
            rows = await asyncio.to_thread(query.to_arrow_table)

        Nothing is read before a query. The server sends the columns of the query, of the rows for which its filter is
        true: see `TableDataset.scanner`. Each scan of a query has a view of its own; with `as_of`, all of them read the
        same rows. A query blocks, over connections of its own.

        Args:
            as_of: A snapshot of the table, or its id. Default: as of now, for every scan.

        Raises:
            UsageError: `as_of` is neither a snapshot nor an id.
        """
        from aio_client._integrations.arrow_dataset import TableDataset

        scan = self.scan().unordered() if as_of is None else self.scan().as_of(as_of)
        config = scan._transport.config
        return TableDataset(self._handle.shape.schema, scan, lambda spec: open_blocking_stream(config, spec))

    def snapshot(
        self,
        ttl: float = 600,
        *,
        same_view_as: Pinned | str | None = None,
        id: str | None = None,
        name: str | None = None,
        principal: str | None = None,
    ) -> SnapshotOpener:
        """Pins the table as of now, all buckets at one instant, so that any number of scans read the same rows.

            async with table.snapshot(ttl=600) as snap:
                rows = await table.scan().as_of(snap).to_arrow()

        `async with` renews the snapshot after every third of its time to live, and releases it at the end. After `snap
        = await table.snapshot()`, the caller renews and releases it. Pinning a table that has not changed since its
        last pin costs next to nothing. The call is repeated within the operation timeout if its answer is lost, if the
        server restarts, or if it would have delayed writers for too long. If the call fails in the end, a snapshot that
        it has taken expires by itself.

        Args:
            ttl: Seconds after which the snapshot expires unless it is renewed, 1 to 604,800.
            same_view_as: A snapshot of this table, or its id, whose view to pin instead of the current view.
            id: The id of a snapshot that several independent readers share. The first call with an id takes the
                snapshot, and later calls with the same id get the same view. An id is never reused after its snapshot
                has ended. The end of `async with` does not release a shared snapshot: it expires when no reader has
                renewed it for its time to live, which later calls never shorten. A server that cannot keep another
                snapshot ends shared snapshots that were not renewed for a minute. 1 to 64 of `A-Z a-z 0-9 _ -`.
                Default: a new id.
            name: A name by which `adopt_snapshot` finds the snapshot, for example after a restart of its job. No two
                snapshots of a table have the same name at the same time; when a snapshot ends, its name is free again.
                1 to 128 of `A-Z a-z 0-9 . _ -`. Default: no name.
            principal: The principal to whom a new snapshot belongs. Only an admin of the table may name another
                principal than that of its token. Default: the principal of the token.

        Returns:
            An object for `async with` or `await`, which takes a `Snapshot` each time.

        Raises:
            TableNotFound: The table was dropped.
            SnapshotExists: The table already has a snapshot with this name.
            SnapshotLost: The snapshot of `same_view_as`, or the one with this `id`, has ended.
            InvalidRequest: `id` belongs to a snapshot of another table, or has characters that are not allowed.
            TooManySnapshots: The server has as many snapshots, or keeps as many bytes on disk for them, as it allows.
            SnapshotNotTaken: Every attempt would have delayed writers for too long.
            PermissionDenied: `principal` is another one than that of the token, which has no role admin for the table.
            UsageError: `ttl` is out of range, `name` has other characters, or both `id` and `name` are given.
        """
        return SnapshotOpener(self._handle.transport, self._handle.name, ttl, same_view_as, id, name, principal)

    async def adopt_snapshot(self, name: str, ttl: float | None = None) -> Snapshot:
        """Returns the snapshot of this table that has a name, and starts its time to live again.

        A job that takes its snapshot by name finds it after a restart:

            try:
                snapshot = await table.snapshot(name="nightly", ttl=3600)
            except SnapshotExists:
                snapshot = await table.adopt_snapshot("nightly")

        `client.adopt_snapshot` does the same for an id.

        Args:
            name: The name that `snapshot` was given.
            ttl: A new time to live in seconds, 1 to 604,800. Default: as before.

        Raises:
            SnapshotLost: No snapshot of the table has this name: it was released, has expired, or was never taken.
            TableNotFound: The table was dropped.
            UsageError: `ttl` is out of range, or `name` has characters that no name has.
        """
        return await adopt_named_snapshot(self._handle.transport, self._handle.name, name, ttl)

    def changes(
        self,
        start: StartFrom = StartFrom.FULL,
        stop: StopAt | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
        consumer_id: str | None = None,
        must_exist: bool = False,
        principal: str | None = None,
        shard: tuple[int, int] | None = None,
        clamp: bool = False,
    ) -> Scan:
        """Returns a scan of the changes of the table, each with its row kind, which its methods refine and start.

            async for changes in table.changes().stream():
                ...

        The short form of `scan().with_source(ScanSource.LOG).start_from(start).stop_at(stop).with_row_kind()`.

        Args:
            start: Where the changes start, as for `Scan.start_from`. Default: with all rows of the table, followed by
                every later change.
            stop: Where the changes end, as for `Scan.stop_at`. Default: never.
            columns: The columns of the table to return, after the columns of the change. Default: all.
            where: Which rows to follow: a row that begins to match is `+I`, a row that ceases to match is `-D`.
                Default: all rows.
            consumer_id: The consumer whose position the server stores, as for `Scan.with_consumer_id`. Default: none.
            must_exist: Whether that consumer must exist already, as for `Scan.with_consumer_id`.
            principal: The principal to whom a new consumer belongs, as for `Scan.with_consumer_id`.
            shard: `(i, n)` for shard `i` of `n` of the buckets, as for `Scan.with_shard`. Default: all buckets.
            clamp: Whether to start at the nearest change that exists if `start` does not, as for `Scan.start_from`.

        Raises:
            UsageError: An argument is invalid.
            SchemaMismatch: `where` is text and does not fit the table.
        """
        changes = self.scan(columns, where=where).with_source(ScanSource.LOG).start_from(start, clamp=clamp)
        changes = changes.stop_at(stop).with_row_kind()
        if consumer_id is not None:
            changes = changes.with_consumer_id(consumer_id, must_exist=must_exist, principal=principal)
        elif must_exist:
            raise UsageError("must_exist is for a consumer: give its consumer_id", option="must_exist")
        elif principal is not None:
            raise UsageError("principal is for a consumer: give its consumer_id", option="principal")
        if shard is not None:
            if not isinstance(shard, tuple) or len(shard) != 2:
                raise UsageError(f"shard must be (i, n) for shard i of n, counted from 0, not {shard!r}")
            changes = changes.with_shard(*shard)
        return changes

    async def log_offsets(self) -> LogOffsets:
        """Returns the end of the changelog of every bucket, at one instant, as the checkpoint of a job.

        All changes before these offsets are durable.

        Raises:
            TooManyScans: The server had as many live scans as it allows, for the whole operation timeout.
            DataLoss: A bucket is damaged.
        """
        async with self.scan([], limit=0).stream() as stream:
            return stream.log_offsets
