"""What is to be scanned, as an immutable value that can be refined, started, and collected."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, Self

import pyarrow as pa

from aio_client._explanation import explain
from aio_client._key_bounds import range_between, range_of_prefix
from aio_client._optional import import_optional, to_pylist
from aio_client._protocol import scan_request
from aio_client._snapshot import splits
from aio_client._stream import ScanStream
from table_model.errors import UsageError
from table_model.expressions import all_of, predicate_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pandas as pd
    import polars as pl

    from aio_client import sync
    from aio_client._explanation import ScanExplanation
    from aio_client._key_bounds import Inclusive
    from aio_client._transport import Transport
    from table_model.expressions import Where
    from table_model.key_range import KeyRange
    from table_model.scan_spec import Resume, ScanSpec


class Pinned(Protocol):
    """Anything that names a pinned snapshot."""

    @property
    def id(self) -> str:
        """The id of its lease."""


def snapshot_id_of(snapshot: str | Pinned) -> str:
    """The id of what was given as `at`. Raises UsageError where it is neither a snapshot nor an id."""
    snapshot_id = snapshot if isinstance(snapshot, str) else getattr(snapshot, "id", None)
    if not isinstance(snapshot_id, str) or not snapshot_id:
        raise UsageError(f"at takes a snapshot or its id, not {snapshot!r}")
    return snapshot_id


class ScanBuilder(ABC):
    """The refinements of a scan, each of which returns a copy; shared by the asynchronous and the blocking scan."""

    __slots__ = ("_key_schema", "_spec")

    def __init__(self, spec: ScanSpec, key_schema: pa.Schema | None) -> None:
        self._spec = spec
        self._key_schema = key_schema

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._spec}>"

    @property
    def spec(self) -> ScanSpec:
        """What is scanned, without the client: picklable; `client.scan(spec)` makes it a scan again, also elsewhere."""
        return self._spec

    @property
    def key_schema(self) -> pa.Schema | None:
        """The key columns in key order; None where the scan was made of a spec alone, and does not know them."""
        return self._key_schema

    def select(self, *columns: str | Iterable[str]) -> Self:
        """Returns these columns only, in this order: `select("a", "b")` or `select(["a", "b"])`.

        `select([])` returns rows without columns, which costs the server nothing to decode.
        """
        if not columns:
            raise UsageError("select takes the names of the columns to return; [] for rows without columns")
        names = [name for given in columns for name in ([given] if isinstance(given, str) else given)]
        return self._with(columns=tuple(names))

    def where(self, where: Where) -> Self:
        """Returns only rows for which this is true, and for which what was asked before is true as well.

        Nulls as in SQL: a comparison with null is unknown, and a row is returned where the whole is true. What it says
        of the key bounds what the server reads.

        Args:
            where: A predicate such as `(col("score") > 100) & col("player").is_in(["ann", "bob"])`, a boolean
                column as `col("active")`, text such as `"score > 100 AND player IN ('ann', 'bob')"`, or a
                `pyarrow.compute.Expression`.

        Raises:
            UsageError: It is none of these, or cannot be read. Columns and types are checked when the scan starts.
        """
        predicate = predicate_of(where)
        return self._with(where=predicate if self._spec.where is None else all_of([self._spec.where, predicate]))

    def limit(self, rows: int | None) -> Self:
        """Returns at most so many rows over all buckets together: the first by key of each bucket, of any buckets.

        With `ordered` they are the first by key of all.

        Args:
            rows: 0 or more; None lifts the limit.
        """
        return self._with(limit=rows)

    def offset(self, rows: int) -> NoReturn:
        """Is refused, always: the server would read the rows that are left out, once for every page.

        Go on behind the last row instead: with `resume_from(stream.resume_token)`, or with
        `ordered().key_range(start=last_key, inclusive="right")`, which the server finds at once.
        """
        raise UsageError(
            f"a scan has no offset: to leave out {rows!r} rows, the server would read them all, every time; go on "
            "behind the last row with resume_from(stream.resume_token), or with ordered() and "
            'key_range(start=last_key, inclusive="right")'
        )

    def key_range(self, start: object = None, end: object = None, *, inclusive: Inclusive = "both") -> Self:
        """Reads only keys from `start` to `end`, and those that what was asked before allows as well.

        `key_range(100, 200)`; where the key has several columns, `key_range(("ann", 3), ("ann", 7))` or by leading ones
        `key_range("ann", "bob")`, which has all keys of ann and bob. A text is compared as a whole: for those that
        begin with one, see `prefix`. What is read begins at the start, and ends at the end: nothing is skipped.

        Args:
            start: A value of the first key column, or a tuple of values of the leading ones. None: from the first key.
            end: The same. None: to the last key.
            inclusive: Whether keys that are equal to `start` (`left`) or `end` (`right`) are in it.

        Raises:
            UsageError: The start is behind the end; or the scan was not made by `table.scan()`, and does not know the
                types of the key.
            InvalidKey: A value is null, or not one of its key column.
        """
        return self._within(range_between(start, end, inclusive, self._known_key_schema("key_range")))

    def prefix(self, value: object) -> Self:
        """Reads only keys that begin with this, and that what was asked before allows as well.

        Args:
            value: A value of the first key column, or a tuple of values of the leading ones. Of the last of them, where
                it is text or bytes, it is the beginning: `prefix("an")` has ann and anton, `prefix(("ann", "2024-"))`
                of ann those of the year.

        Raises:
            UsageError: The scan was not made by `table.scan()`, and does not know the types of the key.
            InvalidKey: A value is null, or not one of its key column.
        """
        return self._within(range_of_prefix(value, self._known_key_schema("prefix")))

    def ordered(self) -> Self:
        """Returns all rows in key order over all buckets, descending with `reverse`; the server merges them.

        Without it the rows of each bucket are in order, one bucket after another, which is faster.
        """
        return self._with(ordered=True)

    def with_buckets(self, *buckets: int | Iterable[int]) -> Self:
        """Reads these buckets only: `with_buckets(0, 2)` or `with_buckets([0, 2])`."""
        if not buckets:
            raise UsageError("with_buckets takes the numbers of the buckets to read")
        numbers = [number for given in buckets for number in ([given] if isinstance(given, int) else given)]
        return self._with(buckets=tuple(numbers))

    def with_chunk(self, *, rows: int | None = None, bytes: int | None = None) -> Self:
        """Bounds the batches that come back; whichever is reached first ends one. A batch has at least one row.

        Args:
            rows: The most rows of a batch, 1 to 65,536. Default: the server's, 8,192.
            bytes: The most bytes of stored rows in a batch, 1 KiB to 16 MiB, of which a server makes use of up to
                2 MiB. Default: the server's, 1 MiB.
        """
        return self._with(chunk_rows=rows, chunk_bytes=bytes)

    def at(self, snapshot: str | Pinned) -> Self:
        """Reads a pinned snapshot: all buckets as of its pin, however often it is read.

        Args:
            snapshot: The snapshot, or its id, which may come from another process.
        """
        return self._with(snapshot_id=snapshot_id_of(snapshot))

    def reverse(self) -> Self:
        """Returns the rows of each bucket in descending key order; the other way round when called again."""
        return self._with(reverse=not self._spec.reverse)

    def resume(self, resume: Resume) -> Self:
        """Chooses what happens when the scan is cut, as by a restart of the server.

        Without it, a scan of a pinned snapshot goes on by itself, which is exact, and one of the live table raises.
        With `Resume.LATEST` the latter goes on, too, with a fresh view: `stream.resumptions` says where and from which
        log offsets to which. With `Resume.NEVER` both raise.
        """
        return self._with(resume=resume)

    def resume_from(self, token: bytes) -> Self:
        """Goes on behind the rows that an earlier run of this same scan returned, in any process.

        Over a pinned snapshot that is exactly the rest. Over the live table the rest comes from a fresh view, as with
        `Resume.LATEST`, and the first of `stream.resumptions` says so.

        Args:
            token: `stream.resume_token` or `error.resume_token`; the scan must have the same table, snapshot, columns,
                limit, buckets, keys and order.
        """
        if not isinstance(token, bytes):  # None, too: going on from nowhere would be the whole scan
            raise UsageError(f"a resume token is bytes, as a stream or an error gave it, not a {type(token).__name__}")
        return self._with(resume_token=token)

    def _within(self, keys: KeyRange) -> Self:
        return self._with(key_range=keys if self._spec.key_range is None else keys & self._spec.key_range)

    def _known_key_schema(self, method: str) -> pa.Schema:
        if self._key_schema is None:
            raise UsageError(
                f"{method} takes values of the key, whose types a scan made of a spec does not know: start from "
                "table.scan(), or set the encoded key_range of the spec"
            )
        return self._key_schema

    @abstractmethod
    def _with(self, **changes: Any) -> Self:  # noqa: ANN401  # fields of ScanSpec, which validates them
        """A copy with other fields of its spec."""


class Scan(ScanBuilder):
    """A scan of one table that has not started. Immutable; start it as often as you like, each time with a new view.

    Made by `table.scan()` or `client.scan(spec)`. Not picklable: send `spec`.
    """

    __slots__ = ("_transport",)

    def __init__(self, transport: Transport, spec: ScanSpec, key_schema: pa.Schema | None = None) -> None:
        """Called by `Table.scan` and `Client.scan`.

        Args:
            transport: The client's connection.
            spec: What is scanned.
            key_schema: The key columns in key order, where they are known.
        """
        super().__init__(spec, key_schema)
        self._transport = transport

    def stream(self) -> ScanStream:
        """The rows as they come, in bounded memory: `async for rows in scan.stream()`, each a `pa.RecordBatch`."""
        return ScanStream(self._transport, self._spec)

    def stream_sync(self) -> sync.ScanStream:
        """The rows as they come, for code that blocks: `for rows in scan.stream_sync()`.

        Opens a connection of its own in a thread of its own, which end with the stream. In a coroutine it blocks the
        event loop; use `stream` there.
        """
        from aio_client._sync_stream import stream_once

        return stream_once(self._transport.config, self._spec)

    async def splits(self, n: int) -> list[Scan]:
        """Cuts a scan of a pinned snapshot into parts of about equally many rows, which give each row once together.

        Each part is a range of keys over all buckets of the scan. The first call for a view has the server read all its
        keys; equal calls give equal parts.

        Args:
            n: How many parts, 1 to 1024.

        Returns:
            `n` scans in ascending key order; where there are fewer keys, some of them are empty. Their `spec` can be
            sent to other processes.

        Raises:
            UsageError: The scan is not of a snapshot, has a limit or a resume token, or `n` is out of its range.
            SnapshotLost: The snapshot's lease has ended.
            DataLoss: The snapshot is damaged.
        """
        return [Scan(self._transport, spec, self._key_schema) for spec in await splits(self._transport, self._spec, n)]

    async def explain(self) -> ScanExplanation:
        """How the server would answer the scan: which buckets and keys it would read, and what it would decode of them.

        Nothing is read. `print(await scan.explain())` shows it. Explained from its beginning, also with a resume token.

        Raises:
            SchemaMismatch: A column does not exist, or a value of `where` is not of its column's type.
            TableNotFound, InvalidRequest, SnapshotLost: As when the scan starts.
        """
        return await explain(self._transport, scan_request(self._spec))

    async def to_arrow(self) -> pa.Table:
        """All rows as one table in memory; with the schema, also when there are none."""
        async with self.stream() as stream:
            batches = [rows async for rows in stream]
        return pa.Table.from_batches(batches, schema=stream.schema)

    async def to_pandas(self) -> pd.DataFrame:
        """All rows as a pandas DataFrame. Needs pandas."""
        import_optional("pandas")
        return (await self.to_arrow()).to_pandas()

    async def to_polars(self) -> pl.DataFrame:
        """All rows as a Polars DataFrame. Needs polars."""
        polars = import_optional("polars")
        frame: pl.DataFrame = polars.from_arrow(await self.to_arrow())
        return frame

    async def to_pylist(self) -> list[dict[str, Any]]:
        """All rows as dictionaries. Nanosecond times that no Python type holds need pandas."""
        return to_pylist(await self.to_arrow())

    def _with(self, **changes: Any) -> Self:  # noqa: ANN401  # fields of ScanSpec, which validates them
        return type(self)(self._transport, replace(self._spec, **changes), self._key_schema)
