"""Tables with indexes on disk, without a server, for scans with and without an index."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from scankv.model.keys.key_range import KeyRange
from streaming_server.scan.chunk_source import View, total_rows
from streaming_server.scan.execution.open_scan import OpenedScan, open_scan
from streaming_server.scan.rows.index_choice import plan_reads
from streaming_server.scan.rows.index_lookup import open_lookup
from streaming_server.scan.rows.locked_view import LockedView, complete_indexes
from streaming_server.storage.rows.row_codec import RowCodec
from streaming_server.storage.rows.table_codec import TableCodec
from tests.support.offline import opened
from tests.support.tables import define

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from scankv.model.errors import ScanKvError
    from streaming_server.scan.read_plan import ReadPlan
    from streaming_server.scan.row_reader import RowReader
    from streaming_server.scan.rows.index_lookup import IndexLookup
    from tests.support.offline import OfflineBucket

_ALL_KEYS = KeyRange()
SCHEMA = pa.schema(
    [
        pa.field("k", pa.int16(), nullable=False),
        pa.field("l", pa.string(), nullable=False),
        ("league", pa.string()),
        ("number", pa.int64()),
        ("real", pa.float64()),
        ("small", pa.float32()),
        ("money", pa.decimal128(9, 2)),
        ("flag", pa.bool_()),
        pa.field("name", pa.string(), nullable=False),
        ("at", pa.timestamp("ns")),
        ("items", pa.list_(pa.int64())),
    ]
)
INDEXES = [
    ["number"],
    ["real"],
    ["league", "number"],
    ["league", "small", "name"],
    ["flag", "name"],
    ["money"],
    ["at"],
    ["league", "k"],
    ["small"],
]
VALUES: dict[str, list[Any]] = {
    "league": [None, "", "x", "x\0", "xy", "y"],
    "number": [None, -(2**63), -1, 0, 1, 2, 3, 2**63 - 1],
    "real": [None, float("-inf"), -2.5, -0.0, 0.0, 1.5, float("inf"), float("nan")],
    "small": [None, float("-inf"), -0.0, 0.0, 0.5, 0.10000000149011612, float("nan")],
    "flag": [None, False, True],
    "name": ["", "a", "a\0", "ab", "b", "ü"],
    "at": [None, -1, 0, 1, 2**40],
    "items": [None, [1], [2, 3]],
}


def random_rows(count: int, seed: int) -> pa.RecordBatch:
    """Returns rows with few distinct values per column: nulls, NaN, both zeros, texts with zero bytes, many ties."""
    rng = random.Random(seed)
    places = list(range(count))
    arrays = [
        pa.array([place // 3 - 20 for place in places], pa.int16()),
        pa.array([["", "x", "x\0"][place % 3] for place in places], pa.string()),
    ]
    for field in list(SCHEMA)[2:]:
        if pa.types.is_decimal(field.type):
            cents = [rng.choice([None, -99999, -1, 0, 250]) for _ in places]
            arrays.append(pa.array(cents, pa.decimal128(9, 0)).view(field.type))
            continue
        values = [rng.choice(VALUES[field.name]) for _ in places]
        arrays.append(pa.array(values, field.type, from_pandas=False))
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


class IndexedTable:
    """The open buckets of one table.

    Attributes:
        rows: All rows that were written.
        buckets: The buckets, by number.
    """

    def __init__(self, buckets: dict[int, OfflineBucket], rows: pa.RecordBatch) -> None:
        self.rows = rows
        self.buckets = buckets
        self.definition = buckets[0].definition
        self.codec = RowCodec(self.definition)
        self.keys = buckets[0].keys.codec
        states = {number: offline.bucket.state for number, offline in buckets.items()}
        self.view = View(
            {number: state.log_offset for number, state in states.items()},
            time.time_ns() // 1000,
            total_rows(state.rows for state in states.values()),
        )

    def locked_view(self) -> LockedView:
        """Returns a locked view of all buckets."""
        filled = {number: one.bucket for number, one in self.buckets.items() if one.bucket.state.rows}
        ready = [bucket.state.ready_indexes for bucket in filled.values()]
        return LockedView(
            codec=self.codec,
            keys=self.keys,
            view=self.view,
            buckets=filled,
            indexes=complete_indexes(self.buckets[0].indexes, ready),
            on_error=in_bucket,
        )

    def begin_lookup(self, plan: ReadPlan) -> IndexLookup | None:
        """Begins the lookup for a scan. None: no index can be used."""
        reader, choices = plan_reads(plan, TableCodec.of(self.definition))
        return open_lookup(plan, reader, choices, self.locked_view(), based=())

    def open(self, plan: ReadPlan, reader: RowReader) -> OpenedScan:
        """Opens a scan as of now."""
        bucket_of = {number: one.bucket for number, one in self.buckets.items()}.__getitem__
        return open_scan(plan, self.definition, reader, self.view, "", bucket_of, in_bucket)

    def opened(self, plan: ReadPlan, *, indexed: bool) -> tuple[OpenedScan, RowReader]:
        """Opens a scan, and returns it with its row reader."""
        reader, _ = plan_reads(plan, TableCodec.of(self.definition))
        if indexed and (lookup := self.begin_lookup(plan)) is not None:
            asyncio.run(lookup.read())
            reader = lookup.reader if lookup.is_chosen else reader
        return self.open(plan, reader), reader


def upsert(buckets: Mapping[int, OfflineBucket], rows: pa.RecordBatch) -> None:
    """Writes rows to their buckets."""
    _, numbers = buckets[0].keys.encode(rows)
    for number, bucket in buckets.items():
        part = rows.filter(pa.array(numbers == number))
        if part.num_rows:
            bucket.upsert_batch(part)


def in_bucket(number: int, error: ScanKvError) -> ScanKvError:
    """Adds the bucket to an error, as the engine does."""
    error.details.setdefault("bucket", str(number))
    return error


@contextmanager
def indexed_table(
    path: Path, rows: pa.RecordBatch, *, buckets: int, indexes: Sequence[Sequence[str]] = INDEXES, **options: str
) -> Iterator[IndexedTable]:
    """Creates a table of random rows with the key (k, l), or k alone, and index entries in table files."""
    key = [name for name in ("k", "l") if name in rows.schema.names]
    definition = define(rows.schema, *key, buckets=buckets, **options).add_indexes(indexes)
    with ExitStack() as stack:
        offline = {number: stack.enter_context(opened(path / f"{number:04}", definition)) for number in range(buckets)}
        upsert(offline, rows)
        for bucket in offline.values():
            bucket.bucket.flush()
        yield IndexedTable(offline, rows)
