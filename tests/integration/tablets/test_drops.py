"""What reads a table with tablets when the table is dropped learns that it was, as with any other table."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import grpc
import pyarrow as pa
import pytest

from aio_client import StartFrom, TableNotFound, sync
from scankv.v1 import scan_pb2
from tests.support.waiting import wait_until
from tests.support.wire import Wire, refusal_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.timeout(120)

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])
ROWS = 3000
"""About 15 MB, which no connection has room for."""
SLOW = " AND ".join(f"v <> 'y{number}'" for number in range(900))


@pytest.fixture(params=[1, 3])
def table(client: sync.Client, request: pytest.FixtureRequest) -> sync.Table:
    name = f"drops.t{uuid.uuid4().hex}"
    table = client.create_table(name, SCHEMA, primary_key=["k"], buckets=6, tablets=request.param)
    table.upsert(pa.table({"k": range(ROWS), "v": [f"{key:x}".zfill(5000) for key in range(ROWS)]}, SCHEMA))
    return table


def scan(table: sync.Table) -> sync.Scan:
    return table.scan()


def ordered(table: sync.Table) -> sync.Scan:
    return table.scan().ordered()


def pinned(table: sync.Table) -> sync.Scan:
    return table.scan().as_of(table.snapshot())


def changes(table: sync.Table) -> sync.Scan:
    return table.changes(StartFrom.FULL)


@pytest.mark.represented_by("two_workers-3-scan", "two_workers-3-pinned")
@pytest.mark.parametrize("read", [scan, ordered, pinned, changes])
def test_a_stream_ends_because_its_table_was_dropped(
    client: sync.Client, table: sync.Table, read: Callable[[sync.Table], sync.Scan]
) -> None:
    with read(table).with_chunk(rows=10).stream() as stream:
        next(stream)
        client.drop_table(table.name)
        with pytest.raises(TableNotFound, match=f'^table "{table.name}" was dropped$'):
            list(stream)


@pytest.mark.represented_by("two_workers-1-asked0", "two_workers-3-asked0", "two_workers-3-asked1")
@pytest.mark.parametrize("asked", [{}, {"ordered": True}])
def test_a_call_ends_because_its_table_was_dropped(
    server: ServerProcess, client: sync.Client, table: sync.Table, asked: dict[str, Any]
) -> None:
    with Wire(server.url) as wire:
        call = wire.scans.ScanKv(scan_pb2.ScanKvRequest(table=table.name, **asked))
        next(call)
        client.drop_table(table.name)
        with pytest.raises(grpc.RpcError) as error:
            list(call)
    found = refusal_of(error.value)
    assert (found.reason, found.message) == ("TABLE_NOT_FOUND", f'table "{table.name}" was dropped')


@pytest.mark.represented_by("two_workers-1")
def test_a_query_ends_because_its_table_was_dropped(client: sync.Client, table: sync.Table) -> None:
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(table.count, SLOW)
        wait_until(lambda: [each for each in client.live_scans() if each.table == table.name], "the query reads")
        client.drop_table(table.name)
        with pytest.raises(TableNotFound, match=f'^table "{table.name}" was dropped$'):
            asking.result(60)
