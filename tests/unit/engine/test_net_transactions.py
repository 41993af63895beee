"""The changes of a transaction are net, one for each key, as for a single request, with one commit time."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scankv.model.tables.merge_functions import ColumnAggregate
from scankv.model.tables.merge_spec import MergeSpec
from streaming_server.engine.merging.preparing import MERGE, WriteKind
from streaming_server.engine.transactions import net_rows, roll_forward
from streaming_server.engine.transactions.open_transaction import OpenTransaction, TransactionOptions
from streaming_server.engine.transactions.repeated_keys import RepeatedKeys
from streaming_server.engine.transactions.request_staging import StagedRequestId
from streaming_server.storage.transactions.staging import DELETE, UPSERT
from tests.support.offline import records_of
from tests.support.snapshots import tables_in
from tests.support.tables import ipc_stream

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from streaming_server.engine.table.live_table import LiveTable
    from streaming_server.engine.tables.tables import Tables
    from streaming_server.storage.transactions.decisions import CommittedTransaction

    Request = tuple[LiveTable, str, list[dict[str, Any]], WriteKind]

pytestmark = pytest.mark.asyncio

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64()), ("w", pa.int64())])
TYPED = SCHEMA.append(pa.field("_change_type", pa.string(), nullable=False))


def upsert(table: LiveTable, *rows: dict[str, Any], columns: Sequence[str] = ()) -> Request:
    return table, UPSERT, list(rows), WriteKind(columns=tuple(columns))


def delete(table: LiveTable, *keys: int) -> Request:
    return table, DELETE, [{"k": key} for key in keys], MERGE


def data_of(rows: list[dict[str, Any]], action: str, columns: Sequence[str]) -> bytes:
    names = ["k"] if action == DELETE else list(columns) or SCHEMA.names
    if any("_change_type" in row for row in rows):
        names.append("_change_type")
    schema = pa.schema([TYPED.field(name) for name in names])
    return ipc_stream(schema, pa.RecordBatch.from_pylist(rows, schema))


async def new_table(
    tables: Tables, name: str, *, buckets: int = 2, merging: MergeSpec | None = None, **options: str
) -> LiveTable:
    await tables.create(
        name, SCHEMA, primary_key=["k"], bucket_key=[], buckets=buckets, options=options, merging=merging
    )
    return tables.table(name)


async def commit(tables: Tables, *requests: Request) -> CommittedTransaction:
    begun = await tables.transactions.begin(
        TransactionOptions(id="", attempt=os.urandom(8).hex(), finds_conflicts=False, ttl=60)
    )
    assert isinstance(begun, OpenTransaction)
    for number, (table, action, rows, kind) in enumerate(requests):
        place = StagedRequestId(token=begun.token, part="main", sequence=number)
        data = data_of(rows, action, kind.columns)
        await tables.transactions.staging.stage(place, table, action, data, kind=kind)
    return await tables.transactions.commit(begun.token, "", ())


async def changes_of(table: LiveTable) -> list[tuple[str, tuple[Any, ...]]]:
    """Returns all changes of a table, bucket by bucket."""
    return [
        ("+I -U +U -D".split()[kind], tuple(row.values()))
        for live in table.buckets
        for record in records_of(await live.open(), table.definition)
        for kind, row in zip(record.changes.kinds.tolist(), record.changes.rows.to_pylist(), strict=True)
    ]


async def times_of(table: LiveTable) -> list[int]:
    return [
        micros
        for live in table.buckets
        for record in records_of(await live.open(), table.definition)
        for micros in record.commit_micros.tolist()
    ]


async def test_the_changes_of_a_transaction_are_one_for_each_key(tmp_path: Path) -> None:
    async with tables_in(tmp_path / "data") as tables:
        table = await new_table(tables, "test.plain")
        await commit(tables, upsert(table, {"k": 0, "v": 7}))
        three = [upsert(table, {"k": 1, "v": value}) for value in range(3)]
        await commit(tables, *three, upsert(table, {"k": 2, "v": 1}), delete(table, 0, 2, 3), upsert(table, {"k": 9}))
        found = await changes_of(table)
        expected = [("+I", (0, 7, None)), ("+I", (1, 2, None)), ("-D", (0, 7, None)), ("+I", (9, None, None))]
        assert sorted(found) == sorted(expected)
        await commit(tables, upsert(table, {"k": 1, "v": 5}), delete(table, 1), upsert(table, {"k": 1, "v": 2}))
        assert sorted(await changes_of(table)) == sorted(expected), "as it was before"


async def test_merged_rows_of_a_transaction_are_one_change_with_the_columns_that_were_written(tmp_path: Path) -> None:
    async with tables_in(tmp_path / "data") as tables:
        partial = await new_table(tables, "test.partial", merge_engine="partial_update", delete_behavior="allow")
        sums = await new_table(
            tables,
            "test.sums",
            merging=MergeSpec(aggregates=(ColumnAggregate("v", "sum"), ColumnAggregate("w", "sum"))),
            merge_engine="aggregate",
        )
        await commit(
            tables,
            upsert(partial, {"k": 1, "v": 1}, {"k": 2, "v": 1}, columns=["k", "v"]),
            upsert(sums, {"k": 1, "v": 5, "w": 1}, {"k": 2, "v": 7, "w": 1}),
            upsert(partial, {"k": 1, "w": 2}, {"k": 3, "w": 2}, columns=["k", "w"]),
            upsert(
                sums, {"k": 1, "v": 6, "w": 0, "_change_type": "+I"}, {"k": 2, "v": 3, "w": 1, "_change_type": "-U"}
            ),
            delete(partial, 3),
        )
        assert sorted(await changes_of(partial)) == [("+I", (1, 1, 2)), ("+I", (2, 1, None))]
        assert sorted(await changes_of(sums)) == [("+I", (1, 11, 1)), ("+I", (2, 4, 0))]


async def test_a_transaction_has_one_time_in_all_of_its_buckets_and_no_stop_or_start_splits_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roll_forward, "step_rows", lambda *_: 3)
    monkeypatch.setattr(net_rows, "step_rows", lambda *_: 3)
    async with tables_in(tmp_path / "data") as tables:
        plain = await new_table(tables, "test.plain", buckets=3)
        merged = await new_table(tables, "test.merged", merge_engine="partial_update", delete_behavior="allow")
        rows = [{"k": key, "v": key, "w": 0} for key in range(40)]
        first = await commit(tables, upsert(plain, *({**row, "v": -1} for row in rows)))
        assert set(await times_of(plain)) == {first.micros}
        # One bucket is ahead of the clock, as after the clock was set back.
        bucket = await plain.buckets[1].open()
        ahead = time.time_ns() // 1000 + 3_600_000_000
        monkeypatch.setattr(bucket, "commit_time", lambda: ahead)
        committed = await commit(
            tables, upsert(plain, *rows), upsert(merged, *rows), upsert(plain, *rows[20:]), delete(merged, 1, 2)
        )
        assert committed.micros == ahead
        assert set(await times_of(merged)) == {ahead}
        times = set(await times_of(plain))
        assert times == {first.micros, ahead}
        for live in plain.buckets:
            log = (await live.open()).log
            for micros in times:
                before = log.offset_at(micros, plain.definition)
                behind = log.offset_at(micros + 1, plain.definition)
                read = (
                    log.read(before, behind, plain.definition, max_changes=10_000, max_bytes=1 << 30)
                    if behind > before
                    else []
                )
                assert {each for record in read for each in record.commit_micros.tolist()} <= {micros}
        assert (await plain.reads.count(None))[0] == 40


@given(requests=st.lists(st.sets(st.binary(max_size=3), min_size=1), min_size=1, max_size=6))
async def test_repeated_keys_are_told_by_the_last_request_that_has_them(requests: list[set[bytes]]) -> None:
    repeated = RepeatedKeys()
    for number, keys in enumerate(requests):
        repeated.add(number, pa.array(list(keys), pa.binary()))
    repeated.close()
    assert repeated.keys == len(set().union(*requests))
    for number, keys in enumerate(requests):
        given_keys = list(keys)
        mask = repeated.last(number, pa.array(given_keys, pa.binary()))
        later = set().union(*requests[number + 1 :])
        expected = [key not in later for key in given_keys]
        assert (np.ones(len(keys), np.bool_) if mask is None else mask).tolist() == expected
