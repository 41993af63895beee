"""The methods that refine a scan, shared by the asynchronous and the blocking scan."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal, Protocol, Self

from aio_client._input.arguments import is_text, items_of, names_of
from aio_client._input.awaitable import AwaitableOpener
from aio_client._input.key_bounds import range_between, range_of_prefix
from aio_client._scan.changes_builder import ChangesBuilder
from scankv.model.changes.log_positions import LogSpec, ScanSource
from scankv.model.errors import UsageError
from scankv.model.expressions import all_of, predicate_of
from scankv.model.set_fields import set_fields
from scankv.model.shown_uris import show_location
from scankv.model.tables.log_tables import require_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import pyarrow as pa

    from aio_client._input.key_bounds import Inclusive
    from aio_client._scan.shards import ScannedTable
    from scankv.model.expressions import Where
    from scankv.model.keys.key_range import KeyRange
    from scankv.model.scans.consistency import Consistency
    from scankv.model.scans.isolation import Isolation
    from scankv.model.scans.scan_spec import Resume, ScanSpec


_NUMBERS: Final = "bucket numbers"


class Pinned(Protocol):
    """Anything with the id of a pinned snapshot."""

    @property
    def id(self) -> str:
        """The id of the snapshot's lease."""


def snapshot_id_of(snapshot: str | Pinned, argument: str = "as_of") -> str:
    """Returns the snapshot id of an argument. Raises UsageError if it is neither a snapshot nor an id."""
    if isinstance(snapshot, AwaitableOpener):
        raise UsageError(snapshot.correction)
    snapshot_id = snapshot if isinstance(snapshot, str) else getattr(snapshot, "id", None)
    if not is_text(snapshot_id) or not snapshot_id:
        raise UsageError(f"{argument} must be a snapshot or its id, not {snapshot!r}")
    return snapshot_id


def _is_time(value: object) -> bool:
    """Returns whether a value is a time as text, which no id of a snapshot is."""
    try:
        return isinstance(value, str) and datetime.fromisoformat(value) is not None
    except ValueError:
        return False


class ScanBuilder(ChangesBuilder):
    """The methods that refine a scan, shared by the asynchronous and the blocking scan. Each returns a copy.

    A scan never changes: a call whose result is dropped, such as `scan.limit(10)` as a statement, has no effect.
    """

    __slots__ = ("_spec", "_table")

    def __init__(self, spec: ScanSpec, table: ScannedTable | None) -> None:
        self._spec = spec
        self._table = table

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._spec}>"

    def _repr_html_(self) -> str:
        from aio_client._input.notebooks import html_table

        shown = set_fields(self._spec, lake=show_location)
        return html_table(f"{type(self).__name__} of {self._spec.table}", ("set", "to"), shown.items())

    @property
    def spec(self) -> ScanSpec:
        """What the scan reads, without the client. Picklable; `client.scan(spec)` makes it a scan again anywhere."""
        return self._spec

    @property
    def key_schema(self) -> pa.Schema | None:
        """The key columns in key order. None if the scan was made from a spec alone, which does not have them."""
        return None if self._table is None else self._table.key_schema

    @property
    def of_table(self) -> ScannedTable | None:
        """What the scan knows about its table. None if the scan was made from a spec alone."""
        return self._table

    def select(self, *columns: str | Iterable[str]) -> Self:
        """Returns only these columns, in this order: `select("a", "b")` or `select(["a", "b"])`.

        `select([])` returns rows without columns, so the server decodes nothing.

        Args:
            *columns: Names of columns, or iterables of names.

        Raises:
            UsageError: No argument was given, or one is not a name. Whether the columns exist is checked when the scan
                starts.
        """
        if not columns:
            raise UsageError("select takes the names of the columns to return; [] for rows without columns")
        return self._with(columns=tuple(name for given in columns for name in names_of(given, "select")))

    def where(self, where: Where) -> Self:
        """Returns only rows for which a predicate is true. Several calls are combined with AND.

        Nulls are treated as in SQL: a comparison with null is unknown, and only rows for which the predicate is true
        are returned. Conditions on the key limit what the server reads.

        Args:
            where: A predicate such as `(col("score") > 100) & col("player").is_in(["ann", "bob"])`, a boolean column
                such as `col("active")`, text such as `"score > 100 AND player IN ('ann', 'bob')"`, or a
                `pyarrow.compute.Expression`.

        Raises:
            UsageError: The predicate has another type, or cannot be parsed. Columns and types are checked when the scan
                starts.
        """
        predicate = predicate_of(where)
        return self._with(where=predicate if self._spec.where is None else all_of([self._spec.where, predicate]))

    def limit(self, rows: int | None) -> Self:
        """Returns at most this many rows over all buckets together.

        These are the first rows in key order of some buckets; with `ordered`, the first rows of the complete table.

        Args:
            rows: 0 or more. None removes the limit.

        Raises:
            UsageError: `rows` is negative or not a number.
        """
        return self._with(limit=rows)

    def key_range(self, start: object = None, end: object = None, *, inclusive: Inclusive = "both") -> Self:
        """Reads only the keys from `start` to `end`. Several calls are combined to the keys that all of them allow.

        `key_range(100, 200)`; if the key has several columns, `key_range(("ann", 3), ("ann", 7))`, or only leading
        columns: `key_range("ann", "bob")` has all keys of ann and bob. Texts are compared as complete values; `prefix`
        reads those that begin with a text. The server reads nothing outside the range.

        Args:
            start: A value of the first key column, a tuple of values of the leading key columns, or a dictionary of
                these: `{"player": "ann", "day": 3}`. None: from the first key.
            end: The same. None: to the last key.
            inclusive: Which bounds belong to the range: "both", "left" (`start`), "right" (`end`) or "neither".

        Raises:
            UsageError: `start` is greater than `end`. Or the scan was made from a spec, which does not have the types
                of the key; use `table.scan()`.
            InvalidKey: A value is null, or not of its key column's type.
        """
        return self._within(range_between(start, end, inclusive, self._key("key_range")))

    def prefix(self, value: object) -> Self:
        """Reads only the keys that begin with a value. Combined with other key ranges as `key_range` is.

        Args:
            value: A value of the first key column, a tuple of values of the leading key columns, or a dictionary of
                these: `prefix({"player": "ann"})`. If the last of them is text or bytes, the key's value only has to
                begin with it: `prefix("an")` has ann and anton, `prefix(("ann", "2024-"))` has ann's keys of that year.

        Raises:
            UsageError: The scan was made from a spec, which does not have the types of the key; use `table.scan()`.
            InvalidKey: A value is null, or not of its key column's type.
        """
        return self._within(range_of_prefix(value, self._key("prefix")))

    def ordered(self) -> Self:
        """Returns all rows in key order over all buckets, descending with `reverse`; the server merges the buckets.

        Without this method, the server reads the buckets one after another, each in key order, which is faster.

        Raises:
            NoPrimaryKey: The table has no primary key, and so no order over all buckets.
            UsageError: The scan is `unordered`.
        """
        if self._table is not None:
            require_key(self._spec.table, self._table.key_schema.names, "it has no order over all buckets")
        return self._with(ordered=True)

    def unordered(self) -> Self:
        """Allows the rows of several buckets to come in any order, which is faster for tables with tablets.

        The client then reads such a table from all of its owners at once, and not bucket by bucket. The rows of each
        bucket still come in key order. The stream has no `resume_token`, because it has no single place to continue
        at. So a scan keeps its order if it has a token or resumes with `Resume.LATEST`, and also if it has a `limit`
        or reads a snapshot.

        `to_arrow` and the like do this by themselves, because they can restore the order.

        Raises:
            UsageError: The scan is `ordered`, or reads the changelog.
        """
        return self._with(unordered=True)

    def with_buckets(self, *buckets: int | Iterable[int]) -> Self:
        """Reads only these buckets. Several calls are combined to the buckets that all of them name.

        `with_buckets(0, 2)` or `with_buckets([0, 2])`.

        Args:
            *buckets: Numbers of buckets, or iterables of numbers, from 0.

        Raises:
            UsageError: No argument was given, or one is not a bucket number. Whether the table has the buckets may be
                checked only when the scan starts.
        """
        lists = [[given] if isinstance(given, int) else items_of(given, "with_buckets", _NUMBERS) for given in buckets]
        numbers = [number for given in lists for number in given]
        if not numbers:
            raise UsageError("with_buckets takes the numbers of the buckets to read")
        return self._of_buckets(numbers)

    def with_shard(self, index: int, count: int) -> Self:
        """Reads one of `count` shards of the buckets: those whose number modulo `count` is `index`.

        All shards together read every row, and every change, once. All changes of a key are in one shard, in order. If
        there are more shards than buckets, the last shards are empty: their streams have a schema and no rows, and end
        when the others do, so a stream of changes without an end stays open.

        Args:
            index: Which shard, 0 to `count - 1`.
            count: How many shards, at least 1.

        Raises:
            UsageError: The shard does not exist. Or the scan was made from a spec, which does not know the buckets; use
                `table.scan()`.
        """
        return self._of_buckets(self._all_buckets("with_shard").shard(index, count))

    def with_bucket_filter(self, keeps: Callable[[int], object]) -> Self:
        """Reads only the buckets for whose numbers a function returns a true value.

        Args:
            keeps: Called at once, with each bucket number.

        Raises:
            UsageError: `keeps` is not callable. Or the scan was made from a spec, which does not know the buckets; use
                `table.scan()`.
        """
        return self._of_buckets(self._all_buckets("with_bucket_filter").filter_buckets(keeps))

    def with_chunk(self, *, rows: int | None = None, bytes: int | None = None) -> Self:
        """Bounds the size of the batches. The bound that is reached first ends a batch; a batch has at least one row.

        Args:
            rows: The most rows of a batch, 1 to 65,536. Default: the server's, 8,192 for rows and 16,384 for changes.
            bytes: The most bytes of stored rows in a batch, 1 KiB to 16 MiB; servers use at most 2 MiB, or
                eight times as many if the batch has at most an eighth of their bytes. Default: the server's, 1 MiB.

        Raises:
            UsageError: A number is out of range.
        """
        return self._with(chunk_rows=rows, chunk_bytes=bytes)

    def with_source(self, source: ScanSource, snapshot: str | Pinned | None = None) -> Self:
        """Chooses what the scan reads: the current rows, the rows of a pinned snapshot, or the changes.

        A stream of changes begins with the first change after the stream opens, unless `start_from` says otherwise.

        Args:
            source: `ScanSource.KV` (the default) for the rows as of the start of the scan, `ScanSource.SNAPSHOT` for
                the rows of `snapshot`, for which `as_of` is the short form, or `ScanSource.LOG` for the changes, for
                which `table.changes` is the short form.
            snapshot: The snapshot, or its id. Only with `ScanSource.SNAPSHOT`, which needs it.

        Raises:
            UsageError: `source` is not a `ScanSource`; a snapshot is missing, given for another source, or neither a
                snapshot nor an id; or the changes of a scan of a snapshot are asked for.
        """
        if source not in tuple(ScanSource):
            raise UsageError(f"source must be ScanSource.KV or ScanSource.SNAPSHOT or ScanSource.LOG, not {source!r}")
        if source == ScanSource.SNAPSHOT:
            if snapshot is None:
                raise UsageError("ScanSource.SNAPSHOT needs the snapshot to read, or its id", option="snapshot")
            return self._with(log=None, snapshot_id=snapshot_id_of(snapshot, "snapshot"))
        if snapshot is not None:
            raise UsageError(
                f"a snapshot is only for ScanSource.SNAPSHOT, not for ScanSource.{ScanSource(source).name}",
                option="snapshot",
            )
        return self._with(log=LogSpec()) if source == ScanSource.LOG else self._with(log=None, snapshot_id=None)

    def reverse(self) -> Self:
        """Returns the rows of each bucket in descending key order. A second call restores ascending order."""
        return self._with(reverse=not self._spec.reverse)

    def read_path(self, read_path: Literal["auto", "rocksdb", "columnar", "lake"], lake: str | None = None) -> Self:
        """Chooses what the rows are read from. The rows and their order are the same for all choices but `"lake"`.

        With `"lake"`, the client reads the files that `scankv publish` has written, and from the server only what has
        changed since: all as of one instant, that of the snapshot or of the start of the scan. The rows come bucket by
        bucket: first those of the files, in key order within each file, then those that have changed. So a `limit` may
        return other rows than without the lake.

        The server is read alone, as with `"auto"`, where the published table cannot be used: it does not exist or
        answer, is damaged, or shows another incarnation of the table; or what has changed since is not in the changelog
        any more, or is more than a quarter of the rows. So are tables whose rows expire, tables without a key or
        without rows in their changelog, and scans with `ordered` or `reverse`. `stream.lake_fallback` and `explain` say
        why. Needs the extra `lake`.

        Args:
            read_path: `"rocksdb"` reads RocksDB row by row. `"columnar"` reads the columnar base of each bucket and its
                delta, which is many times faster; it needs a table with the option `columnar_base`. `"auto"`, the
                default, lets the server choose; `explain` says what it chooses and why. A pinned snapshot has the bases
                that existed when it was taken.
            lake: With `"lake"`, where the table is published: a directory, or a URI such as `s3://bucket/scores`.

        Raises:
            UsageError: `read_path` has another value, or `lake` is missing or given for another one.
        """
        return self._with(read_path=read_path, lake=lake)

    def as_of(self, when: str | Pinned | datetime | int, *, changes_follow: bool = False) -> Self:
        """Reads the table as of a past instant: that of a pinned snapshot, or that of a published version.

        `scan.as_of(snapshot)` reads all buckets as of the snapshot's pin, every time the scan is started. It is the
        short form of `with_source(ScanSource.SNAPSHOT, snapshot)`.

        `scan.as_of(time).read_path("lake", uri)` reads an earlier version of the published table alone. The server
        describes the table, and sends no rows. So its changelog need not reach back, and rows that have expired or were
        dropped since are there. `stream.log_offsets` and `explain` name the version and its instant. The rows have the
        columns that the table has now: earlier rows have those that were renamed under their new names, and the default
        values of those that were added. `ordered` and `reverse` are not for such scans.

        Args:
            when: A snapshot, or its id, which may come from another process. Or a time with a time zone: the last
                published version whose instant is not after it. Or the number of a published version.
            changes_follow: Only with a snapshot: whether you go on with the changes from `snapshot.log_offsets`. If so,
                the rows contain those that had expired and whose `-D` the changelog will get, so that each `-D` finds
                its row. Matters only for tables whose rows expire.

        Raises:
            UsageError: `when` is of another type, or the scan cannot read as of it; or `changes_follow` is not a bool,
                or there is no snapshot. With a time or a number and without `read_path("lake", uri)`, the scan
                raises UsageError when it starts.
        """
        if isinstance(when, datetime | int) or _is_time(when):
            return self._with(as_of=when, changes_follow=changes_follow)
        return self._with(snapshot_id=snapshot_id_of(when), changes_follow=changes_follow)

    def isolation(self, isolation: Isolation) -> Self:
        """Chooses whether the scan waits until what it returns is durable.

        Both choices return every write that was acknowledged before, at one instant of all buckets, and nothing of
        transactions that are not committed.

        Args:
            isolation: `"read_committed"`, the default, returns durable rows only, and each transaction completely or
                not at all. It waits for the sync of the latest writes to disk, and while a committed transaction is
                being applied. `"read_latest"` returns what is applied at that moment, and waits for neither. A power
                failure may undo rows that it has returned, and it may return a part of a transaction. A stream of
                changes returns changes before they are durable. If a power failure undoes changes that a stream has
                returned, the stream cannot resume and raises `PositionOutOfRange`: begin with all rows again.
                `read_latest` is not for snapshots, consumers and `if_changed_since`, and its scans have no version.

        Raises:
            UsageError: `isolation` has another value, or does not go with what the scan reads.
        """
        return self._with(isolation=isolation)

    def consistency(self, consistency: Consistency) -> Self:
        """Chooses which rows of a table with tablets are of one instant. Without tablets, all of them are in any case.

        Args:
            consistency: `"table"`, the default: all rows. The server pauses the writers of all tablets until it has
                opened its view of each. `"owner"`: the rows of each worker process that owns tablets. The views of the
                workers are of different instants, all between the start of the scan and its first row, so rows that one
                transaction has written may be returned in part. It delays writers and the first row less, and fits
                exports, counts and dashboards. Everything else is the same: a key is returned once, and the log
                offsets belong to the view of each bucket. `owner` is not for snapshots, changes and
                `read_path("lake")`.

        Raises:
            UsageError: `consistency` has another value, or does not go with what the scan reads.
        """
        return self._with(consistency=consistency)

    def if_changed_since(self, version: bytes | None) -> Self:
        """Returns rows only if the table has changed since an earlier answer about the same buckets.

            async with scan.if_changed_since(version).stream() as stream:
                if not stream.unchanged:
                    rows = [rows async for rows in stream]
                    version = stream.version

        If nothing has changed, the server answers from memory and returns no rows. Only `stream.unchanged` tells this
        from a table without rows, so read the scan with `stream`.

        Args:
            version: `stream.version` of an earlier scan, or the version of a `Versioned` or a `TopN`. None removes the
                condition.

        Raises:
            UsageError: `version` is not a version, or the scan resumes from a token.
        """
        return self._with(if_changed_since=version)

    def resume(self, resume: Resume) -> Self:
        """Chooses what happens when the scan is interrupted, for example by a restart of the server.

        Args:
            resume: By default, a scan of a pinned snapshot or of the changelog resumes by itself, which is exact, and a
                scan of the live table raises. With `Resume.LATEST`, a scan of the live table resumes too, over a new
                view: `stream.resumptions` says where, and from which log offsets to which. With `Resume.NEVER`, every
                scan raises.

        Raises:
            UsageError: `resume` is not a `Resume`.
        """
        return self._with(resume=resume)

    def resume_from(self, token: bytes) -> Self:
        """Continues after the rows that an earlier run of the same scan returned, in any process.

        Over a pinned snapshot, the result is exactly the remaining rows. Over the live table, the remaining rows come
        from a new view, as with `Resume.LATEST`, and `stream.resumptions` begins with this resumption.

        Args:
            token: `stream.resume_token` or `error.resume_token`. The scan must have the same table, snapshot, columns,
                limit, buckets, keys and order as the one that returned it.

        Raises:
            UsageError: `token` is not bytes.
        """
        # None is refused, too: it would start the scan from the beginning.
        if not isinstance(token, bytes):
            raise UsageError(
                f"a resume token must be bytes, as a stream or an error gave it, not a {type(token).__name__}"
            )
        return self._with(resume_token=token)

    def _check_has_rows(self, method: str) -> None:
        """Raises UsageError for `if_changed_since`: the result could not tell an unchanged table from an empty one."""
        if self._spec.if_changed_since is not None:
            raise UsageError(
                f"{method} could not tell an unchanged table from an empty one: read the scan with stream()"
            )

    def _check_ends(self, method: str) -> None:
        """Raises UsageError if the result would never be complete, or its changes have no row kinds."""
        self._readable()
        log = self._spec.log
        if log is not None and log.stop is None and self._spec.limit is None:
            raise UsageError(
                f"{method} would never return, because these changes have no end: set one, as with "
                "stop_at(StopAt.LATEST), or read them with stream()"
            )

    def _within(self, keys: KeyRange) -> Self:
        return self._with(key_range=keys if self._spec.key_range is None else keys & self._spec.key_range)

    def _of_buckets(self, numbers: Sequence[int]) -> Self:
        chosen = self._spec.buckets
        if self._table is not None and (chosen is not None or not numbers):
            return self._with(buckets=self._table.within(numbers, chosen))
        # The server checks the buckets when the scan starts.
        return self._with(buckets=tuple(number for number in numbers if chosen is None or number in chosen))

    def _require_table(self, method: str, what: str, field: str) -> ScannedTable:
        if self._table is None:
            raise UsageError(
                f"{method} {what}, which a scan made from a spec does not have: use table.scan(), or set {field} "
                "of the spec"
            )
        return self._table

    def _key(self, method: str) -> pa.Schema:
        key = self._require_table(method, "needs the types of the key", "the encoded key_range").key_schema
        require_key(self._spec.table, key.names, f"{method} needs one: filter with where")
        return key

    def _all_buckets(self, method: str) -> ScannedTable:
        return self._require_table(method, "needs the number of the table's buckets", "the buckets")
