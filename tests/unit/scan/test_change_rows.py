"""Changes as the rows of a stream, with and without a predicate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from scankv.model.changes.change_columns import CHANGE_FIELDS, ChangeColumns
from scankv.model.errors import SchemaMismatch
from scankv.model.expressions import col
from streaming_server.scan.changes.change_rows import ChangeRows
from streaming_server.scan.chunk_source import Chunk
from streaming_server.storage.changelog.records import Changes, LogRecord, RowKind
from tests.support.tables import define

if TYPE_CHECKING:
    from scankv.model.expressions import Predicate
    from scankv.model.tables.schema import TableDefinition

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())])
FIRST = define(SCHEMA)
# Without rows before changes: `v` is null only for deleted rows.
STRICT = define(pa.schema([SCHEMA[0], SCHEMA[1].with_nullable(False)]), changelog="upsert")
INSERT, BEFORE, AFTER, DELETE = RowKind

Change = tuple[RowKind, Any, Any]


def record(changes: list[Change], offset: int = 0, definition: TableDefinition = FIRST, micros: int = 7) -> LogRecord:
    kinds, *columns = zip(*changes, strict=True)
    rows = pa.record_batch([list(column) for column in columns], schema=definition.schema.arrow)
    times = np.full(len(kinds), micros, np.int64)
    return LogRecord(offset, 0, definition.schema.id, times, Changes(np.array(kinds, np.uint8), rows))


def batch_of(chunk: Chunk) -> pa.RecordBatch:
    """Returns a chunk as a reader receives it."""
    assert chunk.changes is not None
    columns = ChangeColumns.from_bytes(chunk.changes.to_bytes(), chunk.batch.num_rows).arrays(chunk.bucket)
    schema = pa.schema([*CHANGE_FIELDS, *chunk.batch.schema])
    batch = pa.RecordBatch.from_arrays([*columns, *chunk.batch.columns], schema=schema)
    batch.validate(full=True)
    return batch


def told(batch: pa.RecordBatch) -> list[tuple[str, Any, Any]]:
    return list(zip(*(batch.column(name).to_pylist() for name in ("_change_type", "k", "v")), strict=True))


def test_rows_of_the_table_go_out_as_the_message_that_they_lie_in_unless_other_columns_are_wanted() -> None:
    rows = pa.record_batch([[1], [2]], schema=SCHEMA)
    found = Chunk(0, rows, rows.serialize())
    assert ChangeRows(FIRST, None, None).chunk_of_rows(found).message is found.message
    other = ChangeRows(FIRST, ("v",), None).chunk_of_rows(found)
    assert (other.message, other.batch.schema.names) == (None, ["v"])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([(INSERT, 1, 1), (INSERT, 2, -1), (INSERT, 3, None)], [("+I", 1, 1)]),
        ([(DELETE, 1, 1), (DELETE, 2, -1)], [("-D", 1, 1)]),
        ([(BEFORE, 1, 1), (AFTER, 1, 2)], [("-U", 1, 1), ("+U", 1, 2)]),
        ([(BEFORE, 1, -1), (AFTER, 1, 2)], [("+I", 1, 2)]),
        ([(BEFORE, 1, 1), (AFTER, 1, -2)], [("-D", 1, 1)]),
        ([(BEFORE, 1, None), (AFTER, 1, -2)], []),
        # Halves of an update, whose other half is before the start or after the end.
        ([(AFTER, 1, 1), (BEFORE, 2, 1)], [("+I", 1, 1), ("-D", 2, 1)]),
        ([(AFTER, 1, -1), (BEFORE, 2, None)], []),
        ([(BEFORE, 1, -1), (AFTER, 1, -2), (BEFORE, 2, 1), (AFTER, 2, 3)], [("-U", 2, 1), ("+U", 2, 3)]),
    ],
)
def test_a_row_that_begins_to_match_is_inserted_and_one_that_ceases_to_is_deleted(
    changes: list[Change], expected: list[tuple[str, int, int]]
) -> None:
    rows = ChangeRows(FIRST, None, col("v") > 0)
    assert rows.selective
    batch = batch_of(rows.chunk_of_records([record(changes)], 0, FIRST))
    assert told(batch) == expected
    kept = [place for place, (_, key, v) in enumerate(changes) if (key, v) in {(k, v) for _, k, v in expected}]
    assert batch.column("_log_offset").to_pylist() == kept


def test_a_column_or_a_predicate_that_does_not_fit_is_refused_at_the_opening() -> None:
    with pytest.raises(SchemaMismatch):
        ChangeRows(FIRST, ("nothing",), None)
    with pytest.raises(SchemaMismatch):
        ChangeRows(FIRST, None, col("more") == "x")


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (None, [("+U", 1, 5), ("-D", 1, None), ("+U", 2, -3), ("+U", 3, 4)]),
        (col("k") >= 2, [("+U", 2, -3), ("+U", 3, 4)]),
        (col("v") > 0, [("+U", 1, 5), ("-D", 1, None), ("-D", 2, None), ("+U", 3, 4)]),
        # Deleted rows are deletions, even if null would match.
        (col("v").is_null(), [("-D", 1, None), ("-D", 1, None), ("-D", 2, None), ("-D", 3, None)]),
        ((col("k") == 3) & (col("v") > 0), [("-D", 1, None), ("-D", 1, None), ("-D", 2, None), ("+U", 3, 4)]),
    ],
)
def test_without_rows_before_what_does_not_match_is_deleted_unless_the_key_tells(
    where: Predicate | None, expected: list[tuple[str, Any, Any]]
) -> None:
    rows = ChangeRows(STRICT, None, where)
    assert [field.nullable for field in rows.schema][-2:] == [False, True]
    kinds = np.array([AFTER, DELETE, AFTER, AFTER], np.uint8)
    stored = pa.record_batch([[1, 1, 2, 3], [5, None, -3, 4]], schema=STRICT.change_schema_at(1))
    times = np.full(4, 7, np.int64)
    batch = batch_of(rows.chunk_of_records([LogRecord(0, 0, 1, times, Changes(kinds, stored))], 0, STRICT))
    assert batch.schema.equals(rows.schema)
    assert told(batch) == expected
    assert batch.column("_log_offset").to_pylist() == ([2, 3] if len(expected) == 2 else [0, 1, 2, 3])
    assert batch_of(rows.chunk_of_rows(Chunk(0, stored.slice(0, 1)))).schema.equals(rows.schema)
