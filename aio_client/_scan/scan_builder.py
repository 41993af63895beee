"""The refinements of a scan, shared by the asynchronous and the blocking one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NoReturn, Protocol, Self

from aio_client._input.arguments import is_text, items_of, names_of
from aio_client._input.awaitable import Opener
from aio_client._input.key_bounds import range_between, range_of_prefix
from aio_client._scan.changes_builder import ChangesBuilder
from scankv.model.errors import UsageError
from scankv.model.expressions import all_of, predicate_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import pyarrow as pa

    from aio_client._input.key_bounds import Inclusive
    from aio_client._scan.shards import ScannedTable
    from scankv.model.expressions import Where
    from scankv.model.keys.key_range import KeyRange
    from scankv.model.scans.scan_spec import Resume, ScanSpec


_NUMBERS: Final = "numbers of buckets"


class Pinned(Protocol):
    """Anything that names a pinned snapshot."""

    @property
    def id(self) -> str:
        """The id of its lease."""


def snapshot_id_of(snapshot: str | Pinned) -> str:
    """The id of what was given as `at`. Raises UsageError where it is neither a snapshot nor an id."""
    if isinstance(snapshot, Opener):
        raise UsageError(snapshot.forgotten)
    snapshot_id = snapshot if isinstance(snapshot, str) else getattr(snapshot, "id", None)
    if not is_text(snapshot_id) or not snapshot_id:
        raise UsageError(f"at takes a snapshot or its id, not {snapshot!r}")
    return snapshot_id


class ScanBuilder(ChangesBuilder):
    """The refinements of a scan, each of which returns a copy; shared by the asynchronous and the blocking scan.

    The scan itself never changes: a call whose result is dropped, `scan.limit(10)` as a statement, has no effect.
    """

    __slots__ = ("_spec", "_table")

    def __init__(self, spec: ScanSpec, table: ScannedTable | None) -> None:
        self._spec = spec
        self._table = table

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._spec}>"

    @property
    def spec(self) -> ScanSpec:
        """What is scanned, without the client: picklable; `client.scan(spec)` makes it a scan again, also elsewhere."""
        return self._spec

    @property
    def key_schema(self) -> pa.Schema | None:
        """The key columns in key order; None where the scan was made of a spec alone, and does not know them."""
        return None if self._table is None else self._table.key_schema

    @property
    def of_table(self) -> ScannedTable | None:
        """What the scan knows of its table; None where it was made of a spec alone."""
        return self._table

    def select(self, *columns: str | Iterable[str]) -> Self:
        """Returns these columns only, in this order: `select("a", "b")` or `select(["a", "b"])`.

        `select([])` returns rows without columns, which costs the server nothing to decode.
        """
        if not columns:
            raise UsageError("select takes the names of the columns to return; [] for rows without columns")
        return self._with(columns=tuple(name for given in columns for name in names_of(given, "select")))

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
            start: A value of the first key column, a tuple of values of the leading ones, or a dictionary of those:
                `{"player": "ann", "day": 3}`. None: from the first key.
            end: The same. None: to the last key.
            inclusive: Whether keys that are equal to `start` (`left`) or `end` (`right`) are in it.

        Raises:
            UsageError: The start is behind the end; or the scan was not made by `table.scan()`, and does not know the
                types of the key.
            InvalidKey: A value is null, or not one of its key column.
        """
        return self._within(range_between(start, end, inclusive, self._key("key_range")))

    def prefix(self, value: object) -> Self:
        """Reads only keys that begin with this, and that what was asked before allows as well.

        Args:
            value: A value of the first key column, a tuple of values of the leading ones, or a dictionary of those:
                `prefix({"player": "ann"})`. Of the last of them, where it is text or bytes, it is the beginning:
                `prefix("an")` has ann and anton, `prefix(("ann", "2024-"))` of ann those of the year.

        Raises:
            UsageError: The scan was not made by `table.scan()`, and does not know the types of the key.
            InvalidKey: A value is null, or not one of its key column.
        """
        return self._within(range_of_prefix(value, self._key("prefix")))

    def ordered(self) -> Self:
        """Returns all rows in key order over all buckets, descending with `reverse`; the server merges them.

        Without it the rows of each bucket are in order, one bucket after another, which is faster.
        """
        return self._with(ordered=True)

    def with_buckets(self, *buckets: int | Iterable[int]) -> Self:
        """Reads these buckets only, and of them those that what was asked before allows as well.

        `with_buckets(0, 2)` or `with_buckets([0, 2])`.
        """
        whole = [[given] if isinstance(given, int) else items_of(given, "with_buckets", _NUMBERS) for given in buckets]
        numbers = [number for given in whole for number in given]
        if not numbers:
            raise UsageError("with_buckets takes the numbers of the buckets to read")
        return self._of_buckets(numbers)

    def with_shard(self, index: int, count: int) -> Self:
        """Reads one of `count` shares of the buckets: those whose number leaves `index` when divided by `count`.

        All shares together read every row, and every change, once; all changes of a key are in one share, in order. Of
        more shares than there are buckets the last ones are empty: their streams have a schema and no rows, and end
        where the others do, so one of changes without an end stays open.

        Args:
            index: Which one, 0 to `count - 1`.
            count: How many there are, at least 1.

        Raises:
            UsageError: There is no such share; or the scan was not made of a table, and does not know its buckets.
        """
        return self._of_buckets(self._all_buckets("with_shard").shard(index, count))

    def with_bucket_filter(self, keeps: Callable[[int], object]) -> Self:
        """Reads only buckets for whose number a function gives something true; it is called now, once for each.

        Raises:
            UsageError: The scan was not made of a table, and does not know its buckets.
        """
        return self._of_buckets(self._all_buckets("with_bucket_filter").filtered(keeps))

    def with_chunk(self, *, rows: int | None = None, bytes: int | None = None) -> Self:
        """Bounds the batches that come back; whichever is reached first ends one. A batch has at least one row.

        Args:
            rows: The most rows of a batch, 1 to 65,536. Default: the server's, 8,192, and 16,384 of changes.
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

    def read_path(self, read_path: Literal["auto", "rocksdb", "columnar"]) -> Self:
        """Chooses what the rows are read from. The rows and their order are the same for all choices.

        Args:
            read_path: `"rocksdb"` reads RocksDB row by row. `"columnar"` reads the columnar base of each bucket and its
                delta, which is many times faster; it needs a table with the option `columnar_base`. `"auto"`, the
                default, lets the server choose; `explain` says what it chooses and why. A pinned snapshot has the bases
                that existed when it was taken.

        Raises:
            UsageError: `read_path` is none of these.
        """
        return self._with(read_path=read_path)

    def if_changed_since(self, version: bytes | None) -> Self:
        """Returns rows only when something of the table has changed since an earlier answer about the same buckets.

            async with scan.if_changed_since(version).stream() as stream:
                if not stream.unchanged:
                    rows = [rows async for rows in stream]
                    version = stream.version

        When nothing has changed, the server answers from memory, there are no rows, and only `stream.unchanged` tells
        that from a table without rows: so read it with `stream`.

        Args:
            version: `stream.version` of an earlier scan, or that of a `Versioned` answer or a `TopN`. None lifts the
                condition, as for `resume_from`.

        Raises:
            UsageError: It is no version, or the scan goes on from a resume token.
        """
        return self._with(if_changed_since=version)

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

    def _check_has_rows(self, method: str) -> None:
        """Raises UsageError where the result could not tell that nothing has changed from that there are no rows."""
        if self._spec.if_changed_since is not None:
            raise UsageError(f"{method} would take an unchanged table for an empty one: read the scan with stream()")

    def _check_ends(self, method: str) -> None:
        """Raises UsageError where the result could never be complete, or cannot be understood."""
        self._readable()
        log = self._spec.log
        if log is not None and log.stop is None and self._spec.limit is None:
            raise UsageError(
                f"{method} would wait for ever, because these changes have no end: say where they end, as with "
                "stop_at(StopAt.LATEST), or read them with stream()"
            )

    def _within(self, keys: KeyRange) -> Self:
        return self._with(key_range=keys if self._spec.key_range is None else keys & self._spec.key_range)

    def _of_buckets(self, numbers: Sequence[int]) -> Self:
        chosen = self._spec.buckets
        if self._table is not None and (chosen is not None or not numbers):
            return self._with(buckets=self._table.within(numbers, chosen))
        # What the table does not have is found when the scan starts.
        return self._with(buckets=tuple(number for number in numbers if chosen is None or number in chosen))

    def _known(self, method: str, what: str, field: str) -> ScannedTable:
        if self._table is None:
            raise UsageError(
                f"{method} {what}, which a scan made of a spec does not know: start from table.scan(), or set {field} "
                "of the spec"
            )
        return self._table

    def _key(self, method: str) -> pa.Schema:
        return self._known(method, "takes values of the key, and needs its types", "the encoded key_range").key_schema

    def _all_buckets(self, method: str) -> ScannedTable:
        return self._known(method, "needs the number of the table's buckets", "the buckets")
