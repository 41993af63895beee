"""The already-applied filter, against a model table that is read, interrupted and written step by step."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from streaming_server.scan.changes.already_applied import AlreadyAppliedFilter
from streaming_server.scan.changes.log_token import LaterView
from streaming_server.scan.chunk_source import ScanPosition
from streaming_server.storage.changelog.records import Changes, LogRecord, RowKind

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
KEYS, BUCKETS = 12, 2


def encoded(key: int) -> bytes:
    return key.to_bytes(8, "big")


def keys_of(rows: pa.RecordBatch) -> pa.Array:
    return pa.array([encoded(key) for key in rows.column("k").to_pylist()], pa.binary())


def bucket_of(key: int) -> int:
    return key % BUCKETS


class ChangingTable:
    """Rows and changes, and a full start that is read key by key."""

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}
        self.changes: dict[int, list[tuple[RowKind, int, int]]] = {bucket: [] for bucket in range(BUCKETS)}

    def put(self, key: int, value: int) -> None:
        changes = self.changes[bucket_of(key)]
        if key in self.rows:
            changes += [(RowKind.UPDATE_BEFORE, key, self.rows[key]), (RowKind.UPDATE_AFTER, key, value)]
        else:
            changes.append((RowKind.INSERT, key, value))
        self.rows[key] = value

    def delete(self, key: int) -> None:
        if key in self.rows:
            self.changes[bucket_of(key)].append((RowKind.DELETE, key, self.rows.pop(key)))

    def ends(self) -> dict[int, int]:
        return {bucket: len(changes) for bucket, changes in self.changes.items()}

    def record(self, bucket: int, start: int, end: int) -> LogRecord:
        kinds, keys, values = zip(*self.changes[bucket][start:end], strict=True)
        rows = pa.record_batch([list(keys), list(values)], schema=SCHEMA)
        return LogRecord(start, 0, 1, np.zeros(len(kinds), np.int64), Changes(np.array(kinds, np.uint8), rows))


STEPS = st.lists(st.tuples(st.sampled_from(["put", "put", "delete", "read", "cut"]), st.integers(0, KEYS - 1)))


@given(STEPS, STEPS, st.integers(1, 5))
def test_rows_of_many_views_and_the_changes_that_are_left_are_the_table(
    before: list[tuple[str, int]], during: list[tuple[str, int]], step: int
) -> None:
    table, replay = ChangingTable(), dict[int, int]()
    order = sorted(range(KEYS), key=lambda key: (bucket_of(key), key))

    def write(number: int, what: str, key: int) -> None:
        if what == "put":
            table.put(key, number)
        elif what == "delete":
            table.delete(key)

    for number, (what, key) in enumerate(before):
        write(number, what, key)
    starts, view, place = table.ends(), dict(table.rows), 0
    views: list[LaterView] = []
    for number, (what, key) in enumerate(during, start=len(before)):
        if what == "read" and place < KEYS:
            replay |= {key: view[key] for key in [order[place]] if key in view}
            place += 1
        elif what == "cut" and place:
            last = order[place - 1]
            views.append(LaterView(ScanPosition(bucket_of(last), encoded(last)), table.ends()))
            view = dict(table.rows)
        else:
            write(number, what, key)
    replay |= {key: view[key] for key in order[place:] if key in view}
    applied = AlreadyAppliedFilter(views, keys_of) if views else None
    for bucket, end in table.ends().items():
        for start in range(starts[bucket], end, step):
            record = table.record(bucket, start, min(start + step, end))
            places = None if applied is None else applied.new_changes([record], bucket)
            left = range(len(record.changes)) if places is None else places.tolist()
            for change in left:
                kind, key, value = table.changes[bucket][start + change]
                if kind is RowKind.INSERT:
                    assert key not in replay
                elif kind is not RowKind.UPDATE_AFTER:
                    assert replay.pop(key) == value
                if kind in (RowKind.INSERT, RowKind.UPDATE_AFTER):
                    replay[key] = value
    assert replay == table.rows


def test_behind_the_last_view_nothing_is_asked_of_the_keys() -> None:
    def refuse(_: pa.RecordBatch) -> pa.Array:
        raise AssertionError("the keys were encoded for nothing")

    table = ChangingTable()
    for value in range(4):
        table.put(0, value)
    applied = AlreadyAppliedFilter([LaterView(ScanPosition(0, encoded(0)), {0: 3, 1: 0})], refuse)
    assert applied.new_changes([table.record(0, 3, 5)], 0) is None
