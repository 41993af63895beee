"""Streams of changes of tables with tablets: the same changes as of any other table, in one stream."""

from __future__ import annotations

import datetime as dt
import threading
import uuid
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import ScanKvError, StartFrom, StopAt, TableNotFound, TableRecreated, sync
from tests.model.replayed_table import ReplayedTable
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.timeout(120)

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())])
BUCKETS = 7
TABLETS = 3
KEYS = 200


@pytest.fixture(scope="module")
def settings() -> tuple[str, ...]:
    return ("--set", "follow_heartbeat_seconds=0.2")


def create(client: sync.Client, tablets: int = TABLETS) -> sync.Table:
    name = f"test.t{uuid.uuid4().hex}"
    return client.create_table(name, SCHEMA, primary_key=["k"], buckets=BUCKETS, tablets=tablets)


def rows(keys: Sequence[int], v: int = 0) -> list[dict[str, Any]]:
    return [{"k": key, "v": v} for key in keys]


def write(table: sync.Table) -> None:
    """Writes new rows, updates and deletes."""
    table.upsert(rows(range(KEYS)))
    table.upsert(rows(range(0, KEYS, 3), v=1))
    table.delete(pa.table({"k": list(range(0, KEYS, 5))}))
    for key in range(9):
        table.upsert(rows([key], v=key + 2))


def both(client: sync.Client) -> list[sync.Table]:
    """Returns a table without tablets and one with tablets, with the same rows and changes."""
    tables = [create(client, 1), create(client)]
    for each in tables:
        write(each)
    return tables


def in_order(changes: pa.Table) -> list[dict[str, Any]]:
    """Returns changes without their times, in the order of their buckets and offsets."""
    kinds = {kind: number for number, kind in enumerate(("-U", "-D", "+U", "+I"))}
    found = changes.drop_columns(["_commit_timestamp"]).to_pylist()
    return sorted(
        found,
        key=lambda row: (
            row["_bucket"],
            -1 if row["_log_offset"] is None else row["_log_offset"],
            kinds[row["_change_type"]],
            row.get("k", 0),
        ),
    )


def outcome(scan: sync.Scan, table: sync.Table) -> object:
    """Returns the changes of a scan, or its error without the name of the table."""
    try:
        return in_order(scan.to_arrow())
    except ScanKvError as error:
        return type(error), error.message.replace(table.name, "TABLE")


@pytest.mark.breadth
def test_streams_of_every_start_and_stop_have_the_same_changes(client: sync.Client) -> None:
    def streams(table: sync.Table) -> Iterator[sync.Scan]:
        ends = table.log_offsets()
        middle = {bucket: at // 2 for bucket, at in ends.items()}
        beyond = {bucket: at + 5 for bucket, at in ends.items()}
        past, future = dt.datetime(2001, 1, 1, tzinfo=dt.UTC), dt.datetime(2200, 1, 1, tzinfo=dt.UTC)
        for start in (
            StartFrom.FULL,
            StartFrom.EARLIEST,
            StartFrom.LATEST,
            StartFrom.last(5),
            StartFrom.last(50_000),
            StartFrom.offsets(middle),
            StartFrom.offsets(beyond),
            StartFrom.offsets({0: 0}),
            StartFrom.offsets({**middle, 99: 0}),
            StartFrom.timestamp(past),
            StartFrom.timestamp(future),
        ):
            yield table.changes(start, StopAt.LATEST)
            yield table.changes(start, StopAt.offsets(ends), clamp=True)
        yield table.changes(StartFrom.EARLIEST, StopAt.offsets(middle))
        yield table.changes(StartFrom.EARLIEST, StopAt.offsets({0: 0}))
        yield table.changes(StartFrom.EARLIEST, StopAt.timestamp(past))
        for shard in ((0, 2), (1, 2), (0, 7), (6, 7), (8, 9)):
            yield table.changes(StartFrom.FULL, StopAt.LATEST, shard=shard)
        yield table.changes(StartFrom.EARLIEST, StopAt.LATEST, where="v > 0")
        yield table.changes(StartFrom.EARLIEST, StopAt.LATEST, columns=["v"])
        yield table.changes(StartFrom.FULL, StopAt.LATEST, columns=["missing"])
        yield table.changes(StartFrom.FULL, StopAt.LATEST).with_buckets(99)
        yield table.changes(StartFrom.EARLIEST, StopAt.LATEST).with_catch_up("net", lag_threshold=1)

    whole, divided = both(client)
    for number, (one, other) in enumerate(zip(streams(whole), streams(divided), strict=True)):
        assert outcome(other, divided) == outcome(one, whole), number


@pytest.mark.breadth
def test_a_limited_stream_continues_exactly_wherever_it_is_cut(client: sync.Client) -> None:
    _, table = both(client)
    everything = in_order(table.changes(StartFrom.EARLIEST, StopAt.LATEST).to_arrow())
    for limit in (1, 37, 100, len(everything), len(everything) + 10):
        found = table.changes(StartFrom.EARLIEST, StopAt.LATEST).limit(limit).with_chunk(rows=13).to_arrow()
        assert len(found) == min(limit, len(everything))
    scan, parts = table.changes(StartFrom.EARLIEST, StopAt.LATEST).with_chunk(rows=7), []
    while True:
        with scan.stream() as stream:
            batch = next(stream, None)
            if batch is None:
                break
            parts.append(batch)
            assert stream.resume_token is not None
            assert len(stream.resume_token) <= 64 * 1024
            scan = scan.resume_from(stream.resume_token)
    assert len(parts) > TABLETS
    assert in_order(pa.Table.from_batches(parts)) == everything


@pytest.mark.breadth
def test_a_full_start_continues_among_its_rows_while_rows_change(client: sync.Client) -> None:
    table = create(client)
    write(table)
    replay, scan = ReplayedTable({}, selective=True), table.changes().with_chunk(rows=11)
    phases, turn = [], 0
    while "changes" not in phases:
        with scan.stream() as stream:
            replay.play(next(stream))
            phases.append(stream.phase)
            assert stream.resume_token is not None
            scan = scan.resume_from(stream.resume_token)
        turn += 1
        table.upsert(rows([turn, KEYS - turn, KEYS + turn], v=turn))
        table.delete(pa.table({"k": [turn + 20]}))
    assert phases.count("rows") > TABLETS
    with scan.stop_at(StopAt.LATEST).stream() as stream:
        for batch in stream:
            replay.play(batch)
    assert replay.table == {row["k"]: row for row in table.scan().to_pylist()}


def test_the_rows_of_a_full_start_are_of_one_instant(client: sync.Client, server: ServerProcess) -> None:
    table, is_over = create(client), threading.Event()
    table.upsert(rows([0]))
    written = 0

    def keep_writing() -> None:
        nonlocal written
        with sync.connect(server.url) as other:
            mine = other.table(table.name)
            while not is_over.is_set():
                mine.upsert(rows([written + 1]))
                written += 1

    writer = threading.Thread(target=keep_writing)
    writer.start()
    try:
        for _ in range(8):
            before = written
            with table.changes().with_chunk(rows=50).stream() as stream:
                found, offsets = [], dict(stream.log_offsets)
                for batch in stream:
                    if stream.phase == "changes":
                        break
                    found += batch["k"].to_pylist()
            # Each row is written once the row before it is acknowledged, in another tablet or in the same one.
            assert sorted(found) == list(range(len(found)))
            assert len(found) > before
            assert sum(offsets.values()) == len(found)
    finally:
        is_over.set()
        writer.join()


def test_one_header_precedes_the_first_changes_with_new_columns(client: sync.Client) -> None:
    table = create(client)
    table.upsert(rows(range(KEYS)))
    with table.changes(StartFrom.EARLIEST).with_chunk(rows=5).stream() as stream:
        found = [next(stream)]
        client.alter_table(table.name, add_columns=pa.schema([("w", pa.int64())]))
        table.upsert([{"k": key, "v": 1, "w": key} for key in range(KEYS)])
        while sum(len(each) for each in found) < 3 * KEYS:
            found.append(next(stream))
    names = ["w" in each.schema.names for each in found]
    first = names.index(True)
    assert not any(names[:first])
    assert all(names[first:])
    updates = {row["k"]: row for each in found[first:] for row in each.to_pylist() if row["_change_type"] == "+U"}
    assert [updates[key]["w"] for key in range(KEYS)] == list(range(KEYS))


def test_an_idle_stream_says_up_to_when_it_has_everything(client: sync.Client) -> None:
    table = create(client)
    table.upsert(rows(range(KEYS)))
    with table.changes(StartFrom.LATEST).stream() as stream:
        offsets = dict(stream.log_offsets)
        heard: list[dt.datetime | None] = []
        stream.on_heartbeat(lambda: heard.append(stream.watermark))
        writer = threading.Thread(target=_write_after, args=(heard, table))
        writer.start()
        batch = next(stream)
        writer.join()
    assert len(batch) == 1
    assert sum(offsets.values()) == KEYS
    marks = [each for each in heard if each is not None]
    assert marks == sorted(marks)
    assert len(marks) >= 2


def _write_after(heard: list[dt.datetime | None], table: sync.Table) -> None:
    wait_until(lambda: sum(each is not None for each in heard) >= 2, "two watermarks came")
    table.upsert(rows([KEYS + 1]))


def test_a_stream_ends_when_its_table_is_dropped(client: sync.Client, server: ServerProcess) -> None:
    table = create(client)
    table.upsert(rows(range(KEYS)))
    offsets = table.log_offsets()
    with table.changes(StartFrom.EARLIEST).stream() as stream:
        next(stream)
        with sync.connect(server.url) as other:
            other.drop_table(table.name)
        with pytest.raises(TableNotFound):
            for _ in stream:
                pass
    client.create_table(table.name, SCHEMA, primary_key=["k"], buckets=BUCKETS, tablets=TABLETS)
    with pytest.raises(TableRecreated):
        client.table(table.name).changes(StartFrom.offsets(offsets), StopAt.LATEST).to_arrow()
