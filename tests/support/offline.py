"""Reads and changes a data directory that no server uses."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from scankv.model.keys.key_range import KeyRange
from streaming_server.clock import ServerClock
from streaming_server.engine.merging.outcome import merge_delete, merge_upsert, reads_old_rows
from streaming_server.engine.merging.prepared_rows import prepare
from streaming_server.storage.bucket.bucket import Bucket
from streaming_server.storage.changelog.offsets import count_of, epoch_of
from streaming_server.storage.changelog.records import RowKind
from streaming_server.storage.rocks.store_options import RocksResources
from streaming_server.storage.rows.index_codec import IndexCodec
from streaming_server.storage.rows.key_encoder import KeyEncoder
from streaming_server.storage.rows.row_codec import RowCodec
from streaming_server.storage.rows.table_codec import TableCodec
from streaming_server.storage.tables.catalog import Catalog
from streaming_server.storage.tables.data_directory import DataDirectory
from tests.support.tables import exact_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.engine.merging.prepared_rows import PreparedRows
    from streaming_server.storage.changelog.records import LogRecord

EVERYTHING = 2**62
_MEBIBYTE = 1 << 20


def resources() -> RocksResources:
    """Small resources for buckets opened by a test."""
    return RocksResources.of_sizes(block_cache_bytes=4 * _MEBIBYTE, write_buffer_bytes=64 * _MEBIBYTE)


class OfflineBucket:
    """A bucket that a test opens, writes and reads as the engine does, without a server.

    Attributes:
        bucket: The open bucket.
        codec: The codec of its table.
        indexes: The codecs of its table's indexes.
        resources: What the bucket uses.
    """

    def __init__(self, path: Path, definition: TableDefinition, clock: ServerClock | None = None) -> None:
        self.definition = definition
        self.codec = RowCodec(definition)
        self.keys = KeyEncoder(definition)
        path.parent.mkdir(parents=True, exist_ok=True)
        self.resources = resources()
        self.bucket = Bucket(
            path,
            f"bucket {path.name}",
            compression=definition.options.compression,
            resources=self.resources,
            clock=clock or ServerClock(),
            mark_seconds=definition.options.log_retention_seconds / 100,
        )
        self.indexes = [IndexCodec(definition, index) for index in definition.indexes]
        self.bucket.set_indexes([index.id for index in definition.indexes])

    def upsert(self, *rows: dict[str, Any]) -> None:
        """Applies one batch of rows. It is not durable before `sync`."""
        self.upsert_batch(pa.RecordBatch.from_pylist(list(rows), schema=self.codec.schema))

    def upsert_batch(self, batch: pa.RecordBatch) -> None:
        """Applies a batch of rows. It is not durable before `sync`."""
        for part in prepare(batch, TableCodec(self.codec, self.keys, {}, None), keys_only=False):
            old = self._old(part)
            deduplicate = self.definition.options.row_deduplicate
            self.bucket.apply(merge_upsert(old, part, row_deduplicate=deduplicate, indexes=self.indexes))

    def delete(self, *keys: dict[str, Any]) -> None:
        """Deletes rows in one batch. It is not durable before `sync`."""
        batch = pa.RecordBatch.from_pylist(list(keys), schema=self.definition.key_schema)
        for part in prepare(batch, TableCodec(self.codec, self.keys, {}, None), keys_only=True):
            old = self._old(part)
            self.bucket.apply(merge_delete(old, part, self.indexes))

    def _old(self, part: PreparedRows) -> list[bytes | None] | None:
        return self.bucket.get(part.keys.to_pylist()) if reads_old_rows(self.definition, self.indexes) else None

    def sync(self) -> None:
        """Makes all writes durable."""
        self.bucket.sync(self.bucket.state.log_offset)

    def rows(self) -> pa.Table:
        """Returns all rows, read as a scan reads them."""
        decoder = self.codec.decoder()
        cursor = self.bucket.cursor(self.codec, decoder, self.keys.codec)
        try:
            batches = list(iter(lambda: cursor.next_batch(8192, _MEBIBYTE), None))
        finally:
            cursor.close()
        return pa.Table.from_batches(batches, schema=decoder.schema)

    def entries(self) -> dict[bytes, bytes]:
        """Returns all index entries, read from the column family."""
        return dict(self.bucket._store.index.items())  # type: ignore[arg-type]  # its keys are bytes

    def expected_entries(self) -> dict[bytes, bytes]:
        """Returns the index entries that the rows should have."""
        entries: dict[bytes, bytes] = {}
        for batch in self.rows().to_batches():
            keys, _ = self.keys.encode(batch)
            for index in self.indexes:
                entry_keys, values = index.entries(batch, keys)
                entries.update(zip(entry_keys.to_pylist(), values.to_pylist(), strict=True))
        return entries

    def log(self) -> list[LogRecord]:
        """Returns all records of the changelog."""
        return list(records_of(self.bucket, self.definition))

    def changes(self) -> list[tuple[str, dict[str, Any]]]:
        """Returns all changes, each as the symbol of its kind and its row."""
        return [
            (RowKind(int(kind)).symbol, row)
            for record in self.log()
            for kind, row in zip(record.changes.kinds, record.changes.rows.to_pylist(), strict=True)
        ]


def records_of(bucket: Bucket, definition: TableDefinition) -> Iterator[LogRecord]:
    """Yields all records of a bucket's changelog, oldest first. Raises DataLoss if one is missing or damaged."""
    reader = bucket.log.reader(KeyRange(), definition)
    try:
        yield from iter(reader.read, None)
    finally:
        reader.close()


@contextmanager
def opened(path: Path, definition: TableDefinition, clock: ServerClock | None = None) -> Iterator[OfflineBucket]:
    """Opens an `OfflineBucket` for the block."""
    offline = OfflineBucket(path, definition, clock)
    try:
        yield offline
    finally:
        offline.bucket.close()


def bucket_path(data_dir: Path, table: str, bucket: int) -> Path:
    """Returns the path of a bucket in a data directory. Those of a table with tablets are in the tablets."""
    database, name = table.split(".")
    directory, bucket_name = data_dir / "tables" / database / name, f"{bucket:04}"
    in_tablet = next(directory.glob(f"tablets/*/buckets/{bucket_name}"), None)
    return in_tablet or directory / "buckets" / bucket_name


def definition_in(data_dir: Path, table: str) -> TableDefinition:
    """Returns the definition of a table of a stopped server."""
    directory = DataDirectory(data_dir)
    try:
        return Catalog(directory).get(table)
    finally:
        directory.close()


@contextmanager
def offline_table(data_dir: Path, table: str) -> Iterator[list[OfflineBucket]]:
    """Opens all buckets of a table of a stopped server."""
    definition = definition_in(data_dir, table)
    with ExitStack() as stack:
        yield [
            stack.enter_context(opened(bucket_path(data_dir, table, number), definition))
            for number in range(definition.buckets)
        ]


def replayed(offline: OfflineBucket) -> list[tuple[Any, ...]]:
    """Returns the rows to which the bucket's complete changelog leads; see `replayed_to`."""
    return replayed_to(offline, EVERYTHING)


def replayed_to(offline: OfflineBucket, offset: int) -> list[tuple[Any, ...]]:
    """Returns the rows to which the changes below an offset lead, by encoded key, and checks each change.

    `+I` requires an absent key, `-U` and `-D` exactly the current row, and `+U` must follow the `-U` of its key.
    Without before-images, changes are `+U` with a row and `-D` with a key, whatever the previous state was.
    """
    before_images = offline.definition.options.before_images
    state: dict[bytes, tuple[Any, ...]] = {}
    updating: bytes | None = None
    for record in offline.log():
        if record.offset >= offset:
            break
        # Maintenance merges small records of the changelog, so the offset may lie inside a record.
        count = min(len(record.changes), offset - record.offset)
        rows = widened(record.changes.rows.slice(0, count), offline.codec.schema)
        encoded, _ = offline.keys.encode(rows)
        for kind, key, row in zip(record.changes.kinds[:count], encoded.to_pylist(), exact_rows(rows), strict=True):
            if not before_images:
                assert kind in (RowKind.UPDATE_AFTER, RowKind.DELETE)
                state.pop(key, None)
                state |= {key: row} if kind == RowKind.UPDATE_AFTER else {}
                continue
            assert (updating is not None) == (kind == RowKind.UPDATE_AFTER), "+U without its -U"
            if kind == RowKind.INSERT:
                assert key not in state, "+I of a row that exists"
                state[key] = row
            elif kind == RowKind.UPDATE_AFTER:
                assert updating == key, "+U of another key than its -U"
                state[key] = row
            else:
                assert state[key] == row, "the before-image differs from the row"
                del state[key]
            updating = key if kind == RowKind.UPDATE_BEFORE else None
    assert updating is None, "-U without its +U"
    return [state[key] for key in sorted(state)]


def widened(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Returns the batch with nulls in the columns that it lacks."""
    columns = [
        batch.column(f.name) if f.name in batch.schema.names else pa.nulls(batch.num_rows, f.type) for f in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def check_log(records: Iterable[LogRecord]) -> None:
    """Checks that offsets have no gap within an epoch, counts have none, and epochs and commit times never decrease."""
    count, epoch, micros = 0, 0, 0
    for record in records:
        assert count_of(record.offset) == count, f"offset {record.offset} where change {count} belongs"
        assert epoch_of(record.offset) == record.epoch >= epoch
        times = record.commit_micros.tolist()
        assert times == sorted(times)
        assert times[0] >= micros
        assert len(record.changes) > 0
        count, epoch, micros = count + len(record.changes), record.epoch, times[-1]


def check_entries(offline: OfflineBucket) -> None:
    """Checks that ready indexes have exactly the entries of the rows, and other indexes have no wrong entries."""
    found, expected = offline.entries(), offline.expected_entries() if offline.indexes else {}
    for index in offline.indexes:
        there = {key: value for key, value in found.items() if key in index.all_entries}
        wanted = {key: value for key, value in expected.items() if key in index.all_entries}
        if index.index.id in offline.bucket.state.ready_indexes:
            assert there == wanted, f"the entries of index {index.index} differ from the rows"
        else:
            assert there.items() <= wanted.items(), f"index {index.index} has entries of rows that do not exist"
    assert found.keys() == {key for key in found if any(key in index.all_entries for index in offline.indexes)}


def check_bucket(offline: OfflineBucket) -> pa.Table:
    """Checks that changelog and indexes of a bucket are sound and lead to exactly its rows, and returns the rows."""
    records = offline.log()
    check_log(records)
    rows = offline.rows()
    found = exact_rows(rows)
    state = offline.bucket.state
    assert state.rows in ({len(found)} if offline.definition.options.before_images else {len(found), None})
    if offline.definition.options.changelog != "none":
        assert replayed(offline) == found, "the rows differ from the replayed changelog"
        assert state.count == sum(len(record.changes) for record in records)
    else:
        assert records == []
        assert state.log_first == state.log_rewritten == state.count
    check_entries(offline)
    return rows
