"""Writes to tables with tablets: writers, conditions, column locks and undo, as for any other table."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import TYPE_CHECKING, Any

import grpc
import pyarrow as pa
import pytest

from aio_client import ColumnLocked, InvalidRequest, LockLost, ScanKvError, TableNotFound, WriteConflict, sync
from scankv.model.rows.row_values import RowValues
from scankv.v1 import scan_pb2, table_pb2, transaction_pb2, write_pb2
from tests.support.tables import ipc_stream
from tests.support.wire import Wire, refusal, refusal_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aio_client import LogOffsets
    from aio_client.sync import Client, Table
    from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.timeout(120)

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("a", pa.int64()), ("b", pa.int64())])
KEY_SCHEMA = pa.schema([SCHEMA.field("k")])
KEYS = range(30)
NUMBERS = count()


def pair_of(client: Client) -> list[Table]:
    """Creates a table without tablets, and one with tablets, with the same rows."""
    name = f"writes.t{next(NUMBERS)}"
    tables = [
        client.create_table(f"{name}_{tablets}", SCHEMA, primary_key=["k"], buckets=6, tablets=tablets)
        for tablets in (1, 3)
    ]
    for table in tables:
        table.upsert(rows_of(KEYS, 0))
    return tables


def rows_of(keys: range | list[int], a: int) -> list[dict[str, int]]:
    return [{"k": k, "a": a, "b": 0} for k in keys]


def values_in(table: Table) -> dict[int, int]:
    return dict(sorted((row["k"], row["a"]) for row in table.scan().to_pylist()))


def outcome_of(operation: Any) -> Any:  # whatever it returns
    """Returns the result of an operation, or the type of its error."""
    try:
        return operation()
    except ScanKvError as error:
        return type(error).__name__


def alike(client: Client, operations: Callable[[Table], Iterator[Any]]) -> None:
    """Checks that operations have the same results with and without tablets."""
    without, with_tablets = (list(operations(table)) for table in pair_of(client))
    assert with_tablets == without


@pytest.mark.breadth
def test_a_write_of_unchanged_keys_is_written_completely_or_not_at_all(client: Client) -> None:
    def operations(table: Table) -> Iterator[Any]:
        version = table.upsert(rows_of(KEYS, 1)).log_offsets
        yield table.upsert(rows_of(KEYS, 2), if_version=version).rows
        for key in KEYS[:8]:
            before = table.upsert(rows_of(KEYS, 3)).log_offsets
            table.upsert(rows_of([key], 4))
            with pytest.raises(WriteConflict, match=f"of {table.name}: "):
                table.upsert(rows_of(KEYS, 5), if_version=before)
            with pytest.raises(WriteConflict):
                table.delete(list(KEYS), if_version=before)
            yield values_in(table)
            others = [each for each in KEYS if each != key]
            yield table.upsert(rows_of(others, 6), if_version=before).rows
            yield values_in(table)

    alike(client, operations)


@pytest.mark.breadth
def test_of_several_writers_that_read_the_same_version_one_writes(client: Client) -> None:
    for table in pair_of(client):
        version = table.upsert(rows_of(KEYS, 1)).log_offsets

        def write(value: int, table: Table = table, version: LogOffsets = version) -> Any:
            return outcome_of(lambda: table.upsert(rows_of(KEYS, value), if_version=version).rows)

        with ThreadPoolExecutor(4) as pool:
            outcomes = list(pool.map(write, range(10, 14)))
        assert sorted(map(str, outcomes)) == sorted([str(len(KEYS)), *["WriteConflict"] * 3])
        (value,) = set(values_in(table).values())
        assert outcomes[value - 10] == len(KEYS)


def test_a_column_lock_holds_for_all_tablets(client: Client) -> None:
    def operations(table: Table) -> Iterator[Any]:
        with table.lock_columns(["a"], owner="job", ttl=600) as lock:
            writes: list[Callable[[], object]] = [
                lambda: table.upsert(rows_of(KEYS, 1)),
                lambda: table.upsert([{"k": 5, "a": 1}], columns=["k", "a"]),
                lambda: table.delete(list(KEYS)),
                lambda: table.delete([7]),
            ]
            for write in writes:
                with pytest.raises(ColumnLocked, match=f'"job" has locked a of {table.name}, '):
                    write()
            transaction = client.transaction()
            with pytest.raises(ColumnLocked):
                transaction.upsert(table, rows_of(KEYS, 2))
            transaction.abort()
            yield values_in(table)
            yield table.upsert([{"k": k, "b": 1} for k in KEYS], columns=["k", "b"]).rows
            yield table.upsert(rows_of(KEYS, 3), locks=[lock]).rows
            yield [(each.columns, each.owner) for each in client.column_locks(table.name)]
            with pytest.raises(ColumnLocked), table.lock_columns(["a", "b"], owner="other"):
                pass
        with pytest.raises(LockLost):
            table.upsert(rows_of(KEYS, 4), locks=[lock])
        yield values_in(table)
        yield client.column_locks(table.name)

    alike(client, operations)


def test_a_lock_that_begins_before_the_commit_refuses_the_transaction(client: Client) -> None:
    for table in pair_of(client):
        transaction = client.transaction()
        transaction.upsert(table, rows_of(KEYS, 1))
        with table.lock_columns(["a"], owner="job", ttl=600), pytest.raises(ColumnLocked):
            transaction.commit()
        transaction.commit()
        assert set(values_in(table).values()) == {1}


def test_a_writer_is_undone_at_all_tablets(client: Client) -> None:
    def operations(table: Table) -> Iterator[Any]:
        before = table.upsert(rows_of(KEYS, 1)).log_offsets
        with table.writer("w") as writer:
            writer.upsert(rows_of(range(20, 60), 2))
            writer.delete([3, 4, 5])
        table.upsert(rows_of([21, 22], 9))
        undone = table.undo("w", before)
        yield undone.restored, undone.deleted, undone.conflicts, sorted(undone.log_offsets)
        yield values_in(table)
        again = table.undo("w", before)
        yield again.restored, again.deleted, again.conflicts
        yield values_in(table)

    alike(client, operations)


def identity(sequence: int, **fields: Any) -> write_pb2.WriterIdentity:
    return write_pb2.WriterIdentity(id="w", sequence=sequence, **fields)


def upsert_of(table: Table, value: int, writer: write_pb2.WriterIdentity | None, **fields: Any) -> Any:
    rows = ipc_stream(SCHEMA, pa.RecordBatch.from_pylist(rows_of(KEYS, value), SCHEMA))
    return write_pb2.UpsertRequest(table=table.name, rows=rows, writer=writer, **fields)


def test_a_repeated_request_has_the_first_answer_whatever_happened_since(client: Client, wire: Wire) -> None:
    for table in pair_of(client):
        first = wire.writes.Upsert(upsert_of(table, 1, identity(0)))
        wire.writes.Upsert(upsert_of(table, 2, identity(1)))
        with table.lock_columns(["a"], owner="job", ttl=600):
            assert wire.writes.Upsert(upsert_of(table, 1, identity(0, sent_millis_ago=10))) == first
            refused = refusal(wire.writes.Upsert, upsert_of(table, 3, identity(2)))
            assert refused.reason == "COLUMN_LOCKED"
        for sequence in range(3, 30):
            wire.writes.Upsert(upsert_of(table, sequence, identity(sequence)))
        refused = refusal(wire.writes.Upsert, upsert_of(table, 1, identity(0, sent_millis_ago=20)))
        assert (refused.code, refused.reason) == ("FAILED_PRECONDITION", "WRITER_EXPIRED")
        assert set(values_in(table).values()) == {29}


def test_a_writer_that_is_opened_again_fences_earlier_ones_everywhere(client: Client, wire: Wire) -> None:
    for table in pair_of(client):
        request = write_pb2.OpenWriterRequest(table=table.name, id="w")
        first = wire.writes.OpenWriter(request)
        wire.writes.Upsert(upsert_of(table, 1, identity(5, epoch=first.epoch)))
        second = wire.writes.OpenWriter(request)
        assert (second.epoch > first.epoch, second.next_sequence) == (True, 6)
        refused = refusal(wire.writes.Upsert, upsert_of(table, 2, identity(6, epoch=first.epoch)))
        assert refused.reason == "WRITER_FENCED"
        wire.writes.Upsert(upsert_of(table, 3, identity(6, epoch=second.epoch)))
        assert set(values_in(table).values()) == {3}


@pytest.mark.breadth
def test_writes_and_openings_at_once_write_all_of_a_request_or_nothing(client: Client, wire: Wire) -> None:
    for table in pair_of(client):
        request = write_pb2.OpenWriterRequest(table=table.name, id="w")

        def write(value: int, table: Table = table, request: Any = request) -> str:
            epoch = wire.writes.OpenWriter(request).epoch
            try:
                wire.writes.Upsert(upsert_of(table, value, identity(value, epoch=epoch)))
            except grpc.RpcError as error:
                return refusal_of(error).reason
            return "written"

        with ThreadPoolExecutor(4) as pool:
            found = set(pool.map(write, range(1, 30)))
        assert {"written"} <= found <= {"written", "WRITER_FENCED", "WRITER_EXPIRED"}
        assert len(set(values_in(table).values())) == 1


def test_independent_rows_fail_by_themselves(client: Client, wire: Wire) -> None:
    answers = []
    for table in pair_of(client):
        incarnation = wire.tables.GetTable(table_pb2.GetTableRequest(name=table.name)).table.incarnation
        rows = [RowValues(1, SCHEMA.types).encode([k, 7, 7]) for k in KEYS]
        rows[4], rows[11] = b"", rows[11][:-1]
        answer = wire.writes.Upsert(
            write_pb2.UpsertRequest(
                table=table.name, encoded_rows=rows, table_incarnation=incarnation, independent=True
            )
        )
        failed = sorted(
            (list(each.rows), each.status.count(b"row 4") + each.status.count(b"row 11")) for each in answer.failures
        )
        answers.append((answer.rows, failed, sorted(answer.log_offsets), values_in(table)))
        refused = refusal(
            wire.writes.Upsert,
            write_pb2.UpsertRequest(table=table.name, encoded_rows=rows, table_incarnation=incarnation),
        )
        assert "row 4" in refused.message
    assert answers[0] == answers[1]
    assert answers[0][0] == len(KEYS) - 2


def test_what_only_workers_may_ask_is_refused(client: Client, wire: Wire) -> None:
    for table in pair_of(client):
        refused = refusal(wire.writes.Upsert, upsert_of(table, 5, None, only_checks=True))
        assert refused.reason == InvalidRequest.reason
        assert set(values_in(table).values()) == {0}
        for asked in ({"least_epoch": 1}, {"least_epoch": 2}, {"only_looks": True}, {"owner": "others"}):
            request = write_pb2.OpenWriterRequest(table=table.name, id="w", **asked)
            assert refusal(wire.writes.OpenWriter, request).reason == InvalidRequest.reason
        assert wire.writes.OpenWriter(write_pb2.OpenWriterRequest(table=table.name, id="w")).epoch == 1


def test_clients_send_only_plain_writes_to_a_tablet(server: ServerProcess) -> None:
    with Wire(server.url) as wire, sync.connect(server.url) as client:
        client.create_table("sent.rows", SCHEMA, primary_key=["k"], buckets=4, tablets=2)
        name = "sent.rows#0"
        for request in (
            write_pb2.UpsertRequest(table=name, admitted=True),
            write_pb2.UpsertRequest(table=name, only_checks=True),
            write_pb2.UpsertRequest(table=name, transaction=write_pb2.StagedAs(token="t", part="p")),
            write_pb2.UpsertRequest(table=name, unchanged_since=scan_pb2.LogOffsets()),
        ):
            with pytest.raises(grpc.RpcError, match="can be sent to a tablet"):
                wire.writes.Upsert(request)


@pytest.mark.breadth
def test_a_write_of_many_rows_is_in_one_table_if_its_table_is_created_again_meanwhile(
    server: ServerProcess, client: Client
) -> None:
    name, many = f"writes.t{next(NUMBERS)}", pa.table({"k": range(2000), "a": [1] * 2000, "b": [0] * 2000})

    def create() -> Table:
        return client.create_table(name, SCHEMA, primary_key=["k"], buckets=6, tablets=3)

    def write(table: Table) -> str | None:
        try:
            return table.upsert(many.cast(SCHEMA)).log_offsets.table_incarnation
        except TableNotFound:
            return None

    table = create()
    with sync.connect(server.url) as other, ThreadPoolExecutor(1) as thread:
        for _ in range(8):
            writing = thread.submit(write, other.table(name))
            client.drop_table(name)
            table = create()
            incarnation = writing.result()
            assert table.count() == (2000 if incarnation == table.incarnation else 0) or incarnation is None


def test_a_staged_write_for_an_earlier_table_is_refused(server: ServerProcess, client: Client) -> None:
    with Wire(server.url) as wire:
        for table in pair_of(client):
            begin = transaction_pb2.BeginTransactionRequest(
                attempt="a", conflict_mode=transaction_pb2.CONFLICT_MODE_ABORT
            )
            begun = wire.transactions.BeginTransaction(begin)
            rows = ipc_stream(SCHEMA, pa.record_batch({"k": [1], "a": [7], "b": [7]}, SCHEMA))
            keys = ipc_stream(KEY_SCHEMA, pa.record_batch({"k": [2]}, KEY_SCHEMA))
            fields: dict[str, Any] = {"table": table.name, "table_incarnation": "0" * 32}
            staged = write_pb2.StagedAs(token=begun.token, part="p")
            upsert = write_pb2.UpsertRequest(rows=rows, transaction=staged, **fields)
            delete = write_pb2.DeleteRequest(keys=keys, transaction=staged, **fields)
            assert refusal(wire.writes.Upsert, upsert).reason == "TABLE_RECREATED"
            assert refusal(wire.writes.Delete, delete).reason == "TABLE_RECREATED"
            upsert.table_incarnation = table.log_offsets().table_incarnation
            assert wire.writes.Upsert(upsert).rows == 1
            wire.transactions.CommitTransaction(transaction_pb2.CommitTransactionRequest(token=begun.token))
            assert values_in(table) == {k: 7 if k == 1 else 0 for k in KEYS}
