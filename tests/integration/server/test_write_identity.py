"""Writes with an identity, over the wire: applied once with the same answer, or refused with a reason."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import grpc
import pyarrow as pa
import pytest

from scankv.model.limits import MESSAGE_BYTES
from scankv.v1 import lock_pb2, lookup_pb2, table_pb2, write_pb2
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until
from tests.support.wire import Wire, refusal, refusal_of

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])


@pytest.fixture
def table(wire: Wire, name: str) -> str:
    """Makes a table in whose changelog each application of a write is a change."""
    create(wire, name, buckets=2)
    return name


def create(wire: Wire, name: str, buckets: int) -> None:
    request = table_pb2.CreateTableRequest(
        name=name,
        arrow_schema=SCHEMA.serialize().to_pybytes(),
        primary_key=["k"],
        buckets=buckets,
        options={"row_deduplicate": "false"},
    )
    wire.tables.CreateTable(request)


def ipc(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def upsert(
    table: str,
    sequence: int,
    value: int,
    *,
    keys: range = range(10),
    writer: str = "w",
    epoch: int = 0,
    acked_below: int = 0,
    age_millis: int = 0,
) -> write_pb2.UpsertRequest:
    rows = pa.RecordBatch.from_pydict({"k": list(keys), "v": [value] * len(keys)}, schema=SCHEMA)
    return write_pb2.UpsertRequest(
        table=table,
        rows=ipc(rows),
        writer=write_pb2.WriterIdentity(
            id=writer, epoch=epoch, sequence=sequence, acked_below=acked_below, sent_millis_ago=age_millis
        ),
    )


def changes(wire: Wire, table: str) -> int:
    """Returns how many changes the table has had."""
    response = wire.tables.GetTable(table_pb2.GetTableRequest(name=table, statistics=True))
    return sum(bucket.log_offset for bucket in response.buckets)


def value_of(wire: Wire, table: str, key: int = 0) -> int:
    keys = pa.RecordBatch.from_pydict({"k": [key]}, schema=SCHEMA.empty_table().select(["k"]).schema)
    response = wire.lookups.Lookup(lookup_pb2.LookupRequest(table=table, keys=ipc(keys)))
    value: int = pa.ipc.open_stream(response.rows).read_all()["v"][0].as_py()
    return value


def test_a_repeated_request_has_no_effect_and_the_first_answer(wire: Wire, table: str) -> None:
    first = wire.writes.Upsert(upsert(table, 0, 1))
    assert (first.rows, sum(first.log_offsets.values())) == (10, 10)
    wire.writes.Upsert(upsert(table, 1, 2))
    for _ in range(2):
        assert wire.writes.Upsert(upsert(table, 0, 1)) == first
    assert (changes(wire, table), value_of(wire, table)) == (30, 2)
    # With another writer, or without one, it is another request.
    wire.writes.Upsert(upsert(table, 0, 3, writer="other"))
    wire.writes.Upsert(write_pb2.UpsertRequest(table=table, rows=upsert(table, 0, 4).rows))
    assert (changes(wire, table), value_of(wire, table)) == (70, 4)


def test_a_delete_is_repeated_as_safely(wire: Wire, table: str) -> None:
    wire.writes.Upsert(upsert(table, 0, 1))
    keys = ipc(pa.RecordBatch.from_pydict({"k": list(range(10))}))
    request = write_pb2.DeleteRequest(table=table, keys=keys, writer=write_pb2.WriterIdentity(id="w", sequence=1))
    first = wire.writes.Delete(request)
    wire.writes.Upsert(upsert(table, 2, 2))
    assert wire.writes.Delete(request) == first
    assert changes(wire, table) == 30
    # A request that changed nothing is recorded as well.
    nothing = write_pb2.DeleteRequest(
        table=table,
        keys=ipc(pa.RecordBatch.from_pydict({"k": [77]})),
        writer=write_pb2.WriterIdentity(id="w", sequence=3),
    )
    first = wire.writes.Delete(nothing)
    wire.writes.Upsert(upsert(table, 4, 1, keys=range(77, 78)))
    assert wire.writes.Delete(nothing) == first
    assert value_of(wire, table, 77) == 1


def test_a_request_that_comes_twice_at_once_is_applied_once(wire: Wire, table: str) -> None:
    # With several WriteBatches, so that the two requests alternate.
    request = upsert(table, 0, 1, keys=range(60_000))
    # On a busy machine, requests without an announced size may claim too much for one connection.
    announced = ((MESSAGE_BYTES, str(request.ByteSize())),)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: wire.writes.Upsert(request, metadata=announced), range(4)))
    assert all(answer == answers[0] for answer in answers)
    assert changes(wire, table) == 60_000


def test_a_request_is_refused_when_it_is_too_old_to_tell(wire: Wire, table: str) -> None:
    for sequence in range(20):
        wire.writes.Upsert(upsert(table, sequence, sequence))
    refused = refusal(wire.writes.Upsert, upsert(table, 3, 3))
    assert (refused.code, refused.reason) == ("FAILED_PRECONDITION", "WRITER_EXPIRED")
    assert refused.details["sequence"] == "3"
    assert (changes(wire, table), value_of(wire, table)) == (10 + 19 * 20, 19)
    # Gaps are allowed, and a number within the window is new.
    wire.writes.Upsert(upsert(table, 100, 100))
    wire.writes.Upsert(upsert(table, 60, 60))
    assert value_of(wire, table) == 60


def test_a_request_that_was_given_up_is_not_applied_behind_a_later_one(wire: Wire, table: str) -> None:
    late = upsert(table, 5, 5)
    wire.writes.Upsert(upsert(table, 6, 6, acked_below=6))
    assert refusal(wire.writes.Upsert, late).reason == "WRITER_EXPIRED"
    assert value_of(wire, table) == 6
    # In a bucket without a write of the later request, the earlier one is applied.
    [bucket] = wire.writes.Upsert(upsert(table, 8, 8, keys=range(1), acked_below=8)).log_offsets
    others = [key for key in range(10) if bucket not in wire.writes.Upsert(_one(table, key)).log_offsets]
    wire.writes.Upsert(upsert(table, 7, 7, keys=range(others[0], others[0] + 1)))
    assert value_of(wire, table, others[0]) == 7


def _one(table: str, key: int) -> write_pb2.UpsertRequest:
    return write_pb2.UpsertRequest(table=table, rows=upsert(table, 0, 0, keys=range(key, key + 1)).rows)


def test_opening_a_writer_fences_the_epochs_before(wire: Wire, table: str) -> None:
    opened = wire.writes.OpenWriter(write_pb2.OpenWriterRequest(table=table, id="w"))
    assert (opened.epoch, opened.next_sequence) == (1, 0)
    wire.writes.Upsert(upsert(table, 7, 1, epoch=1))
    again = wire.writes.OpenWriter(write_pb2.OpenWriterRequest(table=table, id="w"))
    assert (again.epoch, again.next_sequence) == (2, 8)
    for request in (upsert(table, 7, 1, epoch=1), upsert(table, 8, 2, epoch=1), upsert(table, 9, 2)):
        refused = refusal(wire.writes.Upsert, request)
        assert (refused.code, refused.reason) == ("FAILED_PRECONDITION", "WRITER_FENCED")
        assert refused.details["epoch"] == "2"
    wire.writes.Upsert(upsert(table, 8, 3, epoch=2))
    assert value_of(wire, table) == 3


def test_an_epoch_that_nobody_was_given_is_refused_and_takes_none_from_who_opens_the_writer(
    wire: Wire, table: str
) -> None:
    wire.writes.OpenWriter(write_pb2.OpenWriterRequest(table=table, id="w"))
    for epoch in (2, 2**32 - 1):
        refused = refusal(wire.writes.Upsert, upsert(table, 0, 1, epoch=epoch))
        assert (refused.code, refused.reason) == ("FAILED_PRECONDITION", "WRITER_EXPIRED")
    assert changes(wire, table) == 0
    opened = wire.writes.OpenWriter(write_pb2.OpenWriterRequest(table=table, id="w"))
    assert (opened.epoch, opened.next_sequence) == (2, 0)
    wire.writes.Upsert(upsert(table, 0, 1, epoch=2))


def test_a_delete_of_key_columns_alone_deletes_no_rows_and_passes_no_lock(wire: Wire, table: str) -> None:
    wire.writes.Upsert(upsert(table, 0, 1))
    before = changes(wire, table)
    wire.locks.LockColumns(lock_pb2.LockColumnsRequest(table=table, columns=["v"], owner="other"))
    keys = ipc(pa.RecordBatch.from_pydict({"k": [1]}, schema=pa.schema([SCHEMA.field("k")])))
    for columns in (["k"], ["k", "k"]):
        refused = refusal(wire.writes.Delete, write_pb2.DeleteRequest(table=table, keys=keys, columns=columns))
        assert (refused.code, refused.reason) == ("INVALID_ARGUMENT", "INVALID_REQUEST")
    assert changes(wire, table) == before


def test_a_repeated_request_is_answered_whatever_would_refuse_it_now(wire: Wire, table: str) -> None:
    before = wire.writes.Upsert(upsert(table, 0, 1))
    request = upsert(table, 1, 2)
    request.unchanged_since.by_bucket.update(before.log_offsets)
    first = wire.writes.Upsert(request)
    # Its own change is not a conflict, and a later lock does not affect it.
    wire.locks.LockColumns(lock_pb2.LockColumnsRequest(table=table, columns=["v"], owner="other"))
    assert wire.writes.Upsert(request) == first
    assert refusal(wire.writes.Upsert, upsert(table, 2, 3)).reason == "COLUMN_LOCKED"
    assert (changes(wire, table), value_of(wire, table)) == (30, 2)


@pytest.mark.parametrize(
    "writer",
    [
        write_pb2.WriterIdentity(),
        write_pb2.WriterIdentity(id="a/b"),
        write_pb2.WriterIdentity(id=".."),
        write_pb2.WriterIdentity(id="a" * 129),
        write_pb2.WriterIdentity(id="w", sequence=2**63),
        write_pb2.WriterIdentity(id="w", sequence=1, acked_below=2),
    ],
)
def test_an_identity_that_is_none_is_refused(wire: Wire, table: str, writer: write_pb2.WriterIdentity) -> None:
    request = write_pb2.UpsertRequest(table=table, rows=upsert(table, 0, 1).rows, writer=writer)
    assert refusal(wire.writes.Upsert, request).reason == "INVALID_REQUEST"
    opening = write_pb2.OpenWriterRequest(table=table, id=writer.id)
    if writer.id != "w":
        assert refusal(wire.writes.OpenWriter, opening).reason == "INVALID_REQUEST"
    assert changes(wire, table) == 0


def test_an_undo_says_of_which_table_its_offsets_are(wire: Wire, table: str) -> None:
    wire.writes.OpenWriter(write_pb2.OpenWriterRequest(table=table, id="job"))
    request = write_pb2.UndoRequest(table=table, writer="job")
    request.log_offsets.by_bucket[0] = 0
    refused = refusal(wire.writes.Undo, request)
    assert (refused.code, refused.reason) == ("INVALID_ARGUMENT", "INVALID_REQUEST")
    request.log_offsets.table_incarnation = "another"
    refused = refusal(wire.writes.Undo, request)
    assert (refused.code, refused.reason) == ("FAILED_PRECONDITION", "TABLE_RECREATED")
    request.log_offsets.table_incarnation = ""
    request.any_incarnation = True
    known = wire.writes.Undo(request).table_incarnation
    request.any_incarnation, request.log_offsets.table_incarnation = False, known
    assert wire.writes.Undo(request).table_incarnation == known


@pytest.mark.breadth
def test_a_writer_is_forgotten_in_time_and_then_refused_for_what_is_old(tmp_path: Path) -> None:
    settings = ("--set", "writer_ttl_seconds=1", "--set", "log_maintenance_seconds=0.05")
    with ServerProcess(tmp_path / "data", *settings) as server, Wire(server.url) as wire:
        create(wire, "a.b", buckets=1)
        opened = wire.writes.OpenWriter(write_pb2.OpenWriterRequest(table="a.b", id="named"))
        wire.writes.Upsert(upsert("a.b", 0, 1, writer="named", epoch=opened.epoch))
        wire.writes.Upsert(upsert("a.b", 0, 1))
        # Repeating a request does not extend how long its writer is remembered.
        wait_until(lambda: _is_refused(wire, upsert("a.b", 0, 1, writer="named", epoch=1)), "expired", timeout=60)
        # An old request of a client may have been applied; a new one cannot have been.
        wait_until(lambda: _is_refused(wire, upsert("a.b", 0, 1, age_millis=1000)), "expired", timeout=60)
        wire.writes.Upsert(upsert("a.b", 1, 3))
        assert value_of(wire, "a.b") == 3
        again = wire.writes.OpenWriter(write_pb2.OpenWriterRequest(table="a.b", id="named"))
        wire.writes.Upsert(upsert("a.b", again.next_sequence, 4, writer="named", epoch=again.epoch))
        assert value_of(wire, "a.b") == 4


def _is_refused(wire: Wire, request: write_pb2.UpsertRequest) -> bool:
    try:
        wire.writes.Upsert(request)
    except grpc.RpcError as error:
        return refusal_of(error).reason == "WRITER_EXPIRED"
    return False
