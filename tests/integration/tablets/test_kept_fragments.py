"""A request of a transaction that tablets have refused leaves nothing that would refuse the next request."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from streaming_server.engine.merging.preparing import WriteKind
from streaming_server.engine.transactions.request_staging import StagedRequestId
from streaming_server.storage.transactions.staging import DELETE
from tests.support.clocks import FakeClocks, parts_of, serving
from tests.support.tables import ipc_stream

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from aio_client import Table, Transaction
    from streaming_server.server import Server

pytestmark = pytest.mark.asyncio

NAME = "game.t"
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())])


async def keep_fragment(server: Server, transaction: Transaction) -> None:
    """Stages a fragment whose request another tablet has refused, as if its worker could not discard it."""
    token, part, sequence = transaction.token, transaction.part, transaction.requests
    request_id = StagedRequestId(token=token, part=part, sequence=sequence, fragment="refused")
    tablet = parts_of(server, NAME)[1]
    keys = pa.RecordBatch.from_pydict({"k": range(50)}, schema=pa.schema([SCHEMA.field("k")]))
    buckets = tablet.state.codec.keys.buckets_of_rows(keys)
    own = keys.filter(pa.array([bucket in tablet.definition.own_buckets for bucket in buckets.tolist()]))
    data = ipc_stream(own.schema, own)
    await server._tables.transactions.staging.stage(request_id, tablet, DELETE, data, kind=WriteKind())


async def upsert(transaction: Transaction, table: Table) -> None:
    await transaction.upsert(table, [{"k": k, "v": 1} for k in range(50)])


async def delete_all(transaction: Transaction, table: Table) -> None:
    await transaction.delete_all(table)
    await transaction.upsert(table, [{"k": k, "v": 1} for k in range(50)])


async def read(transaction: Transaction, table: Table) -> None:
    assert (await transaction.get_for_update(table, list(range(50)))).num_rows == 50
    await transaction.upsert(table, [{"k": k, "v": 1} for k in range(50)])


@pytest.mark.parametrize("first", [upsert, delete_all, read])
async def test_a_request_is_staged_once_tablets_have_discarded_one_that_was_refused(
    tmp_path: Path, first: Callable[[Transaction, Table], Awaitable[None]]
) -> None:
    async with serving(tmp_path / "data", FakeClocks()) as (server, client):
        table = await client.create_table(NAME, SCHEMA, primary_key=["k"], buckets=4, tablets=2)
        await table.upsert([{"k": k, "v": 0} for k in range(50)])
        async with client.transaction() as transaction:
            await keep_fragment(server, transaction)
            await first(transaction, table)
        assert await table.count("v = 1") == 50
