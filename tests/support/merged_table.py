"""A table in memory that is merged by the server's code, without a server: one bucket with encoded rows."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from scankv.model.errors import RequestTooLarge
from scankv.model.rows.row_values import NotExactError
from scankv.model.tables.merge_functions import aggregate_of
from scankv.model.tables.merge_spec import MergeSpec, SequenceGroup
from scankv.model.tables.schema import TableDefinition
from streaming_server.engine.merging.few_rows import FewRows, merge_few
from streaming_server.engine.merging.merger import Merger
from streaming_server.engine.merging.outcome import reads_old_rows
from streaming_server.engine.merging.preparing import MERGE, WriteKind, prepare_delete, prepare_upsert, request_schema
from streaming_server.storage.changelog.records import RowKind
from streaming_server.storage.rows.index_codec import IndexCodec
from streaming_server.storage.rows.key_encoder import KeyEncoder
from streaming_server.storage.rows.row_codec import RowCodec
from streaming_server.storage.rows.table_codec import TableCodec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scankv.model.tables.agg import Aggregator
    from streaming_server.engine.merging.few_rows import BucketRows
    from streaming_server.storage.bucket.bucket_change import BucketChange


def merging_table(
    schema: pa.Schema,
    *,
    aggregates: Mapping[str, Aggregator] | None = None,
    version_column: str | None = None,
    sequence: Sequence[str] = (),
    groups: Sequence[tuple[Sequence[str], Sequence[str]]] = (),
    indexes: Sequence[Sequence[str]] = (),
    **options: str,
) -> TableDefinition:
    """Returns a definition whose key is the first column."""
    spec = MergeSpec(
        version_column=version_column,
        sequence_columns=tuple(sequence),
        sequence_groups=tuple(SequenceGroup(tuple(by), tuple(columns)) for by, columns in groups),
        aggregates=tuple(
            aggregate_of(column, each.function, dict(each.parameters)) for column, each in (aggregates or {}).items()
        ),
    )
    return TableDefinition.create(
        "test.table",
        schema,
        schema.names[:1],
        buckets=1,
        options=options,
        indexes=indexes,
        merging=spec,
        incarnation="0" * 32,
        created_millis=0,
    )


def assert_same_change(one: BucketChange, other: BucketChange) -> None:
    """Asserts that two changes of a bucket are equal to the bit."""
    assert one.put_keys.to_pylist() == other.put_keys.to_pylist()
    assert one.put_values.to_pylist() == other.put_values.to_pylist()
    assert one.delete_keys.to_pylist() == other.delete_keys.to_pylist()
    assert (one.rows_added, one.schema_id, one.count) == (other.rows_added, other.schema_id, other.count)
    assert (one.longest_row, one.longest_deleted_key) == (other.longest_row, other.longest_deleted_key)
    for mine, others in zip(one.entries, other.entries, strict=True):
        assert mine.index == others.index
        assert mine.put_keys.to_pylist() == others.put_keys.to_pylist()
        assert mine.put_values.to_pylist() == others.put_values.to_pylist()
        assert mine.delete_keys.to_pylist() == others.delete_keys.to_pylist()
    if one.changes is None or other.changes is None:
        assert one.changes is other.changes
        return
    assert one.changes.kinds.tolist() == other.changes.kinds.tolist()
    assert one.changes.rows.schema == other.changes.rows.schema
    for mine, others in zip(one.changes.rows.columns, other.changes.rows.columns, strict=True):
        assert mine.null_count == others.null_count
        if pa.types.is_nested(mine.type) or pa.types.is_floating(mine.type):
            # By their text, so that NaN equals itself, and -0.0 differs from 0.0.
            assert str(mine.to_pylist()) == str(others.to_pylist())
        else:
            # Python does not have all times.
            assert mine.equals(others)


class MergedTable:
    """The rows, index entries and changelog of a bucket.

    Attributes:
        stored: The rows by encoded key.
        entries: The index entries.
        log: Change types and rows.
        puts: How many rows were put.
        merged_few: How many requests were merged without columns.
        counted: How many changes the requests were, recorded or not.
        entry_writes: How many entries the last request has put and deleted in each index.
    """

    def __init__(self, definition: TableDefinition) -> None:
        self.stored: dict[bytes, bytes] = {}
        self.entries: dict[bytes, bytes] = {}
        self.log: list[tuple[str, dict[str, Any]]] = []
        self.puts = self.merged_few = self.counted = 0
        self.entry_writes: list[tuple[int, int]] = []
        self.use(definition)

    def use(self, definition: TableDefinition) -> None:
        """Switches to a newer definition."""
        self.definition, self.codec, self.keys = definition, RowCodec(definition), KeyEncoder(definition)
        self.merger = Merger.of(TableCodec.of(definition), {})
        self.indexes = [IndexCodec(definition, index) for index in definition.indexes]

    def write(
        self,
        rows: Sequence[Mapping[str, Any]],
        kinds: Sequence[str] | None = None,
        columns: Sequence[str] = (),
        *,
        overwrite: bool = False,
    ) -> None:
        """Applies one upsert request. What a row lacks is null. `columns` contains the key."""
        kind = WriteKind(columns=tuple(columns), overwrite=overwrite)
        schema = request_schema(self.definition, 0, kind)
        arrays = [pa.array([row.get(field.name) for row in rows], field.type) for field in schema]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        types = None if kinds is None else pa.array(kinds, pa.string())
        for part in prepare_upsert(batch, self.merger, kind, types):
            self._apply(part)

    def delete(self, keys: Sequence[Any], columns: Sequence[str] = (), *, overwrite: bool = False) -> None:
        """Applies one request that deletes rows or some of their columns."""
        batch = pa.RecordBatch.from_pylist(
            [{self.keys.names[0]: key} for key in keys], schema=self.definition.key_schema
        )
        kind = MERGE if not columns and not overwrite else WriteKind(columns=tuple(columns), overwrite=overwrite)
        for part in prepare_delete(batch, self.merger.codec, kind):
            self._apply(part)

    def has_rows_among(self, keys: list[bytes]) -> bool:
        """See `StoredRows`."""
        return any(min(keys) <= key <= max(keys) for key in self.stored)

    def rows(self) -> dict[Any, dict[str, Any]]:
        """Returns the rows by key."""
        values = pa.array([self.stored[key] for key in sorted(self.stored)], pa.binary())
        batch = self.codec.decoder().decode(values)
        batch.validate(full=True)
        return {row[self.keys.names[0]]: row for row in batch.to_pylist()}

    def _apply(self, part: BucketRows) -> None:
        if isinstance(part, FewRows):
            try:
                self._apply_few(part)
            except NotExactError:
                self._apply(part.prepare())
            return
        self._apply_change(self.merger.merge(self, part))

    def _apply_few(self, part: FewRows) -> None:
        """Applies few rows. Their change must be that of the same rows in columns."""
        if self.merger.engines.row_merge is None:
            raise NotExactError
        old = self.get(list(part.keys)) if reads_old_rows(self.definition, self.indexes) else None
        change = merge_few(old, part, self.merger.engines.row_merge, self.merger.codec)
        self.merged_few += 1
        assert_same_change(change, self.merger.merge(self, part.prepare()))
        self._apply_change(change)

    def _apply_change(self, change: BucketChange) -> None:
        if change.changes is not None:
            change.changes.rows.validate(full=True)
            kinds = [RowKind(int(kind)).symbol for kind in change.changes.kinds]
            self.log += zip(kinds, change.changes.rows.to_pylist(), strict=True)
        self.counted += change.count
        put = dict(zip(change.put_keys.to_pylist(), change.put_values.to_pylist(), strict=True))
        before = len(self.stored)
        self.stored |= put
        self.puts += len(put)
        for key in change.delete_keys.to_pylist():
            # Without the old rows, deletes do not know which rows exist.
            self.stored.pop(key, None)
        assert change.rows_added in (None, len(self.stored) - before)
        for entries in change.entries:
            for key in entries.delete_keys.to_pylist():
                del self.entries[key]
            for key, value in zip(entries.put_keys.to_pylist(), entries.put_values.to_pylist(), strict=True):
                assert self.entries.get(key) != value, "an entry is put that is there"
                self.entries[key] = value
        self.entry_writes = [(len(entries.put_keys), len(entries.delete_keys)) for entries in change.entries]

    def expected_entries(self) -> dict[bytes, bytes]:
        """Returns the entries computed from the rows, without those of rows that are too long for an entry."""
        expected: dict[bytes, bytes] = {}
        for key, row in self.stored.items():
            batch = self.codec.decoder().decode(pa.array([row], pa.binary()))
            for index in self.indexes:
                with suppress(RequestTooLarge):
                    keys, values = index.entries(batch, pa.array([key], pa.binary()))
                    expected |= zip(keys.to_pylist(), values.to_pylist(), strict=True)
        return expected

    def get(self, keys: list[bytes]) -> list[bytes | None]:
        """Returns the stored rows of some encoded keys."""
        return [self.stored.get(key) for key in keys]


def replayed(log: Sequence[tuple[str, dict[str, Any]]], key: str) -> dict[Any, dict[str, Any]]:
    """Replays the full changelog, checks that each change fits the previous state, and returns the rows."""
    rows: dict[Any, dict[str, Any]] = {}
    for kind, row in log:
        if kind == "+I":
            assert row[key] not in rows
        else:
            assert row[key] in rows
        if kind in ("-U", "-D"):
            assert repr(rows.pop(row[key])) == repr(row)
            # The row after the update follows at once and differs.
            rows |= {row[key]: row} if kind == "-U" else {}
        else:
            rows[row[key]] = row
    return rows
