"""T4, the standard table of the benchmarks: one bucket, four columns, the same rows on every machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scankv.model.tables.schema import TableDefinition

if TYPE_CHECKING:
    from collections.abc import Iterator

TABLE: Final = "bench.t4"
BUCKETS: Final = 1
PRIMARY_KEY: Final = ("id",)
SCHEMA: Final = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("amount", pa.float64()),
        pa.field("ts", pa.timestamp("us")),
    ]
)

_FIRST_TS: Final = 1_700_000_000_000_000
_SPREAD, _PRIME = 2_654_435_761, 1_000_003


def definition() -> TableDefinition:
    """Returns the definition of the table, for writing it without a server."""
    return TableDefinition.create(
        TABLE, SCHEMA, primary_key=PRIMARY_KEY, buckets=BUCKETS, incarnation="", created_millis=0
    )


def rows(start: int, count: int) -> pa.RecordBatch:
    """Returns rows `start` to `start + count` (47 stored bytes each): ids ascend, names and amounts are scattered."""
    return rows_of(np.arange(start, start + count, dtype=np.int64))


def rows_of(ids: np.ndarray) -> pa.RecordBatch:
    """Returns the rows with these ids."""
    scattered = ids * _SPREAD % _PRIME
    names = pc.binary_join_element_wise("name", pa.array(scattered).cast(pa.string()), "-")
    ts = pa.array(_FIRST_TS + 1000 * ids).cast(pa.timestamp("us"))
    return pa.RecordBatch.from_arrays([pa.array(ids), names, pa.array(scattered / 100), ts], schema=SCHEMA)


def ts_literal(row: int) -> str:
    """Returns the `ts` of a row as a literal for a predicate. `ts` grows with `id`."""
    return f"TIMESTAMP '{str(np.datetime64(_FIRST_TS + 1000 * row, 'us')).replace('T', ' ')}'"


def batches(total: int, batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Yields the first `total` rows in batches of at most `batch_rows` rows."""
    for start in range(0, total, batch_rows):
        yield rows(start, min(batch_rows, total - start))
