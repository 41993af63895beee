"""The writes of one table: upserts and deletes, from a request's bytes to durable rows."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from scankv.model.changes.log_offsets import check_offsets_of
from scankv.model.errors import (
    InvalidKey,
    InvalidRequest,
    RequestTooLarge,
    ScanKvError,
    TableRecreated,
    TooManyWriters,
)
from scankv.model.limits import MAX_ENCODED_ROWS, MAX_KEY_BYTES
from scankv.model.names import table_of
from scankv.model.tables.columns import CHANGE_TYPE
from streaming_server.access.owners import new_owner, share_refusal
from streaming_server.engine.bucket.locking import lock_buckets
from streaming_server.engine.bucket.request_rows import read_request
from streaming_server.engine.merging.appended_rows import append_few, prepare_append, turn_of
from streaming_server.engine.merging.merger import Merger
from streaming_server.engine.merging.prepared_rows import prepare
from streaming_server.engine.merging.preparing import (
    CHANGE_TYPE_FIELD,
    MERGE,
    current_columns,
    current_kind,
    current_rows,
    prepare_delete,
    prepare_upsert,
    request_schema,
)
from streaming_server.engine.merging.reading_few import group_few, group_independent, replaces_rows
from streaming_server.engine.tasks.executor import all_ended
from streaming_server.engine.writes.found_writer import FoundWriter
from streaming_server.engine.writes.writing import NO_PRECONDITIONS, WriteOperation, WriteScope
from streaming_server.storage.changelog.records import RowKind
from streaming_server.storage.rows.conversion import converted_names
from streaming_server.storage.rows.key_encoder import rows_by_bucket

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.engine.bucket.live_bucket import LiveBucket
    from streaming_server.engine.bucket.table_state import TableState
    from streaming_server.engine.functions.installed import Installed
    from streaming_server.engine.merging.few_rows import BucketRows
    from streaming_server.engine.merging.preparing import WriteKind
    from streaming_server.engine.writes.column_locks import TableColumnLocks
    from streaming_server.engine.writes.writing import WritePreconditions
    from streaming_server.storage.bucket.writer_states import WriteIdentity, WriterStates
    from streaming_server.storage.rows.single_rows import Values
    from streaming_server.storage.rows.table_codec import TableCodec


_MAX_EPOCH: Final = 2**32 - 1
"""The last epoch of a writer, which is stored in four bytes."""

_SHORT_ROW: Final = MAX_KEY_BYTES // 4
"""Rows of so many bytes have entries in every index, and a bucket key: each byte takes at most two there, and a column
32 more."""


_QUICK_ROWS: Final = 64
"""The most encoded rows that are read on the event loop, which takes a millisecond."""

_QUICK_BYTES: Final = 256 * 1024
"""The most bytes of these rows."""


class FewWritten(NamedTuple):
    """What became of rows that were written one by one.

    Attributes:
        buckets: The bucket of each row.
        offsets: For every bucket that was written, the offset of the first change after the write.
        errors: Why independent rows were refused, by their numbers.
    """

    buckets: list[int]
    offsets: dict[int, int]
    errors: dict[int, ScanKvError]


class TableWrites:
    """Writes to one table. Bound to the server's event loop.

    Args:
        table: The table.
        locks: The locks on its columns.
        installed: The aggregators that other packages provide.
    """

    def __init__(self, table: TableState, locks: TableColumnLocks, installed: Installed) -> None:
        self._table = table
        self._installed = installed
        self._merger: Merger | None = None
        self.locks = locks

    @property
    def merger(self) -> Merger:
        """The merger of the current definition. Raises InvalidRequest if the server lacks one of its functions."""
        codec = self._table.codec
        if self._merger is None or self._merger.codec is not codec:
            self._merger = Merger.of(codec, self._installed)
        return self._merger

    async def upsert(
        self, data: bytes, schema_id: int, preconditions: WritePreconditions = NO_PRECONDITIONS, kind: WriteKind = MERGE
    ) -> tuple[int, dict[int, int]]:
        """Writes the rows of an Arrow IPC stream that have a schema version of the table (0: the current one).

        Once all rows are durable, returns the number of rows, and the next log offset of each written bucket.
        The data is checked completely before anything is written. Whether a merge has a result is known only when it
        is computed, for up to 8,192 keys of a bucket at a time.

        Raises:
            SchemaMismatch, InvalidKey, InvalidRequest, RequestTooLarge: The rows are refused; names the column and row.
            WriterFenced, WriterExpired, TooManyWriters, ColumnLocked, WriteConflict, PositionExpired,
            PositionOutOfRange: A precondition does not hold: see `WriteOperation`.
            DiskFull: Less than the reserve of disk space is free, or the disk is full.
            DataLoss: A bucket is damaged.
        """
        self._table.reserve.check(len(data))
        preconditions.check_history(self._table.definition)
        check = self.check_upsert(data, schema_id, kind, preconditions.identity)
        schema_id = schema_id or self._table.definition.schema.id
        return await self._write(*await self._table.executor.run(check), preconditions, kind, schema_id)

    async def delete(
        self,
        data: bytes,
        preconditions: WritePreconditions = NO_PRECONDITIONS,
        kind: WriteKind = MERGE,
        schema_id: int = 0,
    ) -> tuple[int, dict[int, int]]:
        """Deletes the rows, or columns of the rows, whose keys are in an Arrow IPC stream; otherwise as `upsert`."""
        preconditions.check_history(self._table.definition)
        check = self.check_delete(data, kind, schema_id)
        schema_id = schema_id or self._table.definition.schema.id
        return await self._write(*await self._table.executor.run(check), preconditions, kind, schema_id)

    async def write_few(
        self, data: Sequence[bytes], preconditions: WritePreconditions, *, deletes: bool, independent: bool
    ) -> FewWritten:
        """Writes few encoded rows, or deletes the rows of few encoded keys, in the order given.

        Returns what became of each, once all that was written is durable.

        Args:
            data: The rows or keys.
            preconditions: The preconditions of the request.
            deletes: Whether they are keys.
            independent: Whether each is written for itself, so that a refused row does not affect the others.

        Raises:
            RequestTooLarge: There are too many.
            InvalidRequest: Rows of this table are not written one by one.
            ScanKvError: As for `upsert`, unless the rows are independent.
        """
        if len(data) > MAX_ENCODED_ROWS:
            raise RequestTooLarge(
                f"the request has {len(data):,} encoded rows; the limit is {MAX_ENCODED_ROWS:,}: send Arrow data"
            )
        if not deletes:
            self._table.reserve.check(sum(map(len, data)))
        # One codec for all of it: the table may be altered while a thread reads the rows.
        codec = self._table.codec
        read = partial(self._read_few, data, codec, deletes=deletes, checks_entries=not independent)
        is_quick = len(data) <= _QUICK_ROWS and sum(map(len, data)) <= _QUICK_BYTES
        rows, errors = read() if is_quick else await self._table.executor.run(read)
        scope = WriteScope(
            table=self._table,
            merger=lambda: self.merger,
            admit=partial(self.locks.admit, None, preconditions.column_locks),
        )
        if errors and not independent:
            raise errors[min(errors)]
        parts: Sequence[BucketRows]
        if not codec.definition.has_key:
            turn = _turn_of(b"".join(data), preconditions.identity)
            parts, places = append_few([(number, values) for number, _, values in rows], codec, turn)
        elif independent:
            parts, places = group_independent(rows, codec, deletes=deletes)
        else:
            parts, places = group_few(((key, values) for _, key, values in rows), codec, deletes=deletes), {}
        buckets = [0] * len(data)
        for number, key, _ in rows:
            buckets[number] = places[number][0] if number in places else codec.keys.bucket_of(key)
        if not independent:
            return FewWritten(buckets, await WriteOperation(parts, preconditions, scope).run(), {})
        written = await WriteOperation(parts, preconditions, scope, independent=True).run_separately()
        for number, (bucket, place) in places.items():
            refusal = written.refusals.get((bucket, place))
            if bucket in written.errors:
                errors[number] = written.errors[bucket]
            elif refusal is not None:
                errors[number] = _renumber(refusal, number)
        return FewWritten(buckets, written.offsets, errors)

    def check_few(self, data: Sequence[bytes], *, deletes: bool) -> None:
        """Raises the error of the first of few encoded rows or keys that cannot be written. Blocks."""
        _, errors = self._read_few(data, self._table.codec, deletes=deletes, checks_entries=True)
        if errors:
            raise errors[min(errors)]

    @staticmethod
    def _read_few(
        data: Sequence[bytes], codec: TableCodec, *, deletes: bool, checks_entries: bool
    ) -> tuple[list[tuple[int, bytes, Values]], dict[int, ScanKvError]]:
        """Returns the rows with their numbers and encoded keys, and the errors of those that cannot be read.

        With `checks_entries`, rows that replace others must have entries in all indexes. Rows to append must have a
        bucket.
        """
        single, definition = codec.single, codec.definition
        if deletes:
            definition.require_key("its rows are not deleted by a key")
        if single is None:
            raise InvalidRequest(
                f"rows of table {definition.name} are not written one by one: send Arrow data", option="encoded_rows"
            )
        if deletes and definition.options.deletes != "allow":
            raise InvalidRequest(
                f"table {definition.name} does not delete every row: send the keys as Arrow data",
                option="encoded_keys",
            )
        checks_long = not definition.has_key or (
            checks_entries and bool(codec.indexes) and not deletes and replaces_rows(definition)
        )
        errors: dict[int, ScanKvError] = {}
        rows: list[tuple[int, bytes, Values]] = []
        for number, each in enumerate(data):
            try:
                key, values = (each, single.read_key(each, number)) if deletes else single.read(each, number)
                if checks_long and len(each) > _SHORT_ROW:
                    _check_long(single.to_batch([values]), codec, number)
            except ScanKvError as error:
                errors[number] = error
            else:
                rows.append((number, key, values))
        return rows, errors

    def check_upsert(
        self, data: bytes, schema_id: int, kind: WriteKind, identity: WriteIdentity | None = None
    ) -> Callable[[], tuple[int, Sequence[BucketRows]]]:
        """Returns a function that checks an upsert in a thread, and returns its number of rows and the rows by bucket.

        To a table without a primary key, the rows are appended. Where it has no bucket key, `identity`, or else the
        data, decides which bucket gets them.

        Raises:
            TableRecreated: The table has no such schema version, so the client knows an earlier incarnation.
            NoPrimaryKey: The table has none, and the write needs one.
        """
        merger, definition = self.merger, self._table.definition
        _check_schema_id(definition, schema_id)
        if not definition.has_key:
            return partial(_check_append, data, self._table.codec, schema_id, kind, identity)

        def check() -> tuple[int, Sequence[BucketRows]]:
            asked = request_schema(definition, schema_id, kind)
            batch = read_request(data, asked, CHANGE_TYPE_FIELD)
            types = batch.column(len(asked)) if batch.num_columns > len(asked) else None
            if types is not None and not kind.tracks_changes:
                raise InvalidRequest(
                    f"a write without tracking of changes cannot have the column {CHANGE_TYPE}, because it deletes "
                    "nothing: leave it out, or track the changes",
                    column=CHANGE_TYPE,
                )
            rows = current_rows(batch.select(range(len(asked))), definition, schema_id, kind)
            parts = prepare_upsert(rows, merger, current_kind(definition, schema_id, kind), types)
            # Without changes, their order is free, and in key order the ranges of the steps are small and disjoint.
            return batch.num_rows, parts if kind.tracks_changes else [part.by_key() for part in parts]

        return check

    def check_delete(
        self, data: bytes, kind: WriteKind, schema_id: int = 0
    ) -> Callable[[], tuple[int, Sequence[BucketRows]]]:
        """Like `check_upsert`, for a delete. `schema_id` is the version of the names of columns. 0: it is not known."""
        codec = self._table.codec
        codec.definition.require_key("its rows are neither found nor deleted by a key")
        _check_schema_id(codec.definition, schema_id)
        reused = codec.definition.reused_names(kind.columns) if schema_id == 0 else ()
        if reused:
            # Rule: a client of version 0.1 may mean the other column, and its request does not say so.
            raise InvalidRequest(
                f'column "{reused[0][0]}" cannot be deleted by name, because the name meant another column before: '
                "update the client, or write nulls to it with upsert(..., columns=...)",
                column=reused[0][0],
            )

        def check() -> tuple[int, Sequence[BucketRows]]:
            batch = read_request(data, codec.definition.key_schema)
            current = current_kind(codec.definition, schema_id, kind)
            asked = schema_id or codec.definition.schema.id
            are_dropped = len(converted_names(kind.columns, codec.definition, asked)) < len(kind.columns)
            return batch.num_rows, prepare_delete(batch, codec, current, are_dropped=are_dropped)

        return check

    def request_keys(self, data: bytes, schema_id: int, *, upsert: bool) -> list[tuple[int, pa.Array]]:
        """Returns the encoded keys of a checked upsert of complete rows or of a delete, by bucket, each once. Blocks.

        Raises:
            InvalidRequest: As when it was checked.
        """
        codec = self._table.codec
        if upsert:
            asked = request_schema(codec.definition, schema_id, MERGE)
            batch = read_request(data, asked, CHANGE_TYPE_FIELD)
            # Without change types all rows are upserts, so the rows need not be encoded.
            if batch.num_columns == len(asked):
                encoded, buckets = codec.keys.encode(codec.keys.canonicalize(batch))
                return [(number, encoded.take(pa.array(rows)).unique()) for number, rows in rows_by_bucket(buckets)]
        check = self.check_upsert(data, schema_id, MERGE) if upsert else self.check_delete(data, MERGE)
        return [(part.bucket, part.key_array) for part in check()[1]]

    async def find_writer(self, writer: str, *, may_be_new: bool = False) -> FoundWriter:
        """Returns what the buckets know of a writer, without opening it.

        Args:
            writer: The writer.
            may_be_new: Whether to check that each bucket that does not know it may open it.

        Raises:
            TooManyWriters: A bucket may not open it as a new one.
            PermissionDenied: The writer belongs to another principal.
            DataLoss: A bucket is damaged.
        """
        async with lock_buckets([*self._table.buckets]) as opened:
            known = [await live.run(bucket.writers.get, writer) for live, bucket in opened]
            for (live, bucket), state in zip(opened, known, strict=True):
                if may_be_new and state is None:
                    await live.run(bucket.writers.ensure_capacity, writer)
                    await _check_share(live, bucket.writers, writer)
        return FoundWriter.of(writer, known, self._table.definition)

    async def open_writer(self, writer: str, least_epoch: int = 0, owner: str | None = None) -> tuple[int, int]:
        """Begins a new epoch of a writer, of at least `least_epoch`, in every bucket, durably.

        Returns the epoch and the next sequence number.

        Args:
            writer: The writer.
            least_epoch: The least epoch.
            owner: For a tablet that knows no owner of the writer: its principal, as in `WriterState`. Other tablets may
                know the writer, so a tablet decides nothing about it.

        Raises:
            TooManyWriters: The writer is new, and the table or the principal has reached its limit of writers.
            PermissionDenied: The writer belongs to another principal.
            InvalidRequest: No greater epoch exists.
            DataLoss: A bucket is damaged.
        """
        buckets, definition = [*self._table.buckets], self._table.definition
        async with lock_buckets(buckets) as opened:
            known = [await live.run(bucket.writers.get, writer) for live, bucket in opened]
            found = FoundWriter.of(writer, known, definition)
            if definition.tablet is None:
                owner = found.owner_after_opening
            elif found.owner is not None:
                owner = found.owner
            for (live, bucket), state in zip(opened, known, strict=True):
                if state is None:
                    await live.run(bucket.writers.ensure_capacity, writer)
                    # A tablet may have forgotten a writer that others know: then its epoch is a later one.
                    if not found.epoch and least_epoch <= 1:
                        await _check_share(live, bucket.writers, writer)
            epoch = max(least_epoch, 1 + found.epoch)
            if epoch > _MAX_EPOCH:
                raise InvalidRequest(f'the writer "{writer}" has used up its epochs: open a writer with another id')
            for live, bucket in opened:
                await live.run(bucket.open_writer, writer, epoch, found.next_sequence, owner)
        await all_ended(live.wait_written() for live in buckets)
        return epoch, found.next_sequence

    async def assign_writers(self, before: str, principal: str) -> frozenset[str]:
        """Gives the writers that belong to a principal (empty: to nobody) to another one, durably.

        Returns their ids. Raises DataLoss if a bucket is damaged.
        """
        buckets, given = [*self._table.buckets], set[str]()
        async with lock_buckets(buckets) as opened:
            for live, bucket in opened:
                given.update(await live.run(bucket.writers.assign, before, principal))
        await all_ended(live.wait_written() for live in buckets)
        return frozenset(given)

    async def _write(
        self,
        rows: int,
        parts: Sequence[BucketRows],
        preconditions: WritePreconditions,
        kind: WriteKind,
        schema_id: int,
    ) -> tuple[int, dict[int, int]]:
        """Writes checked rows. `schema_id` is the version of the names of columns in `kind`."""
        definition = self._table.definition
        if preconditions.unchanged_since is not None:
            definition.require_key("a write cannot depend on whether its keys have changed")
            check_offsets_of(definition, preconditions.unchanged_since.table_incarnation)
        scope = WriteScope(
            table=self._table,
            merger=lambda: self.merger if kind.tracks_changes else self.merger.without_tracking(),
            # The columns may get other names before the write is admitted.
            admit=lambda: self.locks.admit(
                current_columns(self._table.definition, schema_id, kind.columns), preconditions.column_locks
            ),
        )
        return rows, await WriteOperation(parts, preconditions, scope).run()


async def _check_share(live: LiveBucket, writers: WriterStates, writer: str) -> None:
    """Raises TooManyWriters if the principal that would own a new writer has as many as it may in a bucket.

    Looks for expired writers first. Hold the bucket's mutex.
    """
    refusal = _share_refusal(writers, live.table)
    if refusal is not None and writers.is_sweep_due(refuses=True):
        await live.run(writers.sweep)
        refusal = _share_refusal(writers, live.table)
    if refusal is not None:
        raise TooManyWriters(refusal, writer=writer)


def _share_refusal(writers: WriterStates, table: str) -> str | None:
    limits, mine = writers.limits, writers.opened_by(new_owner())
    what = f"writers in a bucket of {table_of(table)}"
    remedy = "open one of them again instead"
    return share_refusal(what, mine, writers.known, limits.max_writers, limits.share, [table], remedy=remedy)


def _check_append(
    data: bytes, codec: TableCodec, schema_id: int, kind: WriteKind, identity: WriteIdentity | None
) -> tuple[int, Sequence[BucketRows]]:
    """Checks rows to append, and returns their number, and the rows by bucket. Blocks. See `check_upsert`."""
    definition = codec.definition
    for is_asked, consequence in (
        (bool(kind.columns), "rows are appended with all of their columns: leave `columns` out"),
        (kind.overwrite, 'rows are appended, and replace no others: leave the mode "overwrite" out'),
        (not kind.tracks_changes, "its changelog is its storage, so changes are tracked: leave track_changes out"),
    ):
        if is_asked:
            definition.require_key(consequence)
    asked = request_schema(definition, schema_id, kind)
    batch = read_request(data, asked, CHANGE_TYPE_FIELD)
    if batch.num_columns > len(asked):
        is_other = pc.not_equal(batch.column(len(asked)), RowKind.INSERT.symbol)
        if pc.any(is_other).as_py():
            row = pc.index(is_other, True).as_py()
            definition.require_key(
                f"row {row} must have +I in {CHANGE_TYPE}, or leave the column out: rows are appended"
            )
    rows = current_rows(batch.select(range(len(asked))), definition, schema_id, kind)
    return batch.num_rows, prepare_append(rows, codec, _turn_of(data, identity))


def _turn_of(data: bytes, identity: WriteIdentity | None) -> int:
    return turn_of(data) if identity is None else turn_of(data, identity.writer, identity.sequence)


def _check_schema_id(definition: TableDefinition, schema_id: int) -> None:
    # The version is not still to come: the owner of a tablet that is behind refuses the write before this.
    if schema_id > definition.schema.id:
        raise TableRecreated(
            f"table {definition.name} has no schema version {schema_id}, so it was restored, or dropped and created "
            "again: open it again",
            table=definition.name,
        )


def _renumber(error: ScanKvError, number: int) -> ScanKvError:
    """Returns the error of a row that was written alone with the number of the row in its request."""
    if "row" not in error.details:
        return error
    renumbered = type(error)(error.message.replace("row 0:", f"row {number}:", 1))
    renumbered.details.update(error.details, row=str(number))
    return renumbered


def _check_long(row: pa.RecordBatch, codec: TableCodec, number: int) -> None:
    """Raises an error if a row, which has this number in its request, is too long for an index or for the bucket key.

    Raises:
        RequestTooLarge: Its columns of an index are too long.
        InvalidKey: Its bucket key is too long.
    """
    try:
        if codec.definition.has_key:
            prepare(row, codec, keys_only=False)
        else:
            prepare_append(row, codec, turn=0)
    except (RequestTooLarge, InvalidKey) as error:
        raise _renumber(error, number) from error
