"""The isolation of reads as callers choose it: every read has it, and what does not go with it is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import InvalidResumeToken, StartFrom, StopAt, UsageError
from aio_client._scan.protocol import scan_request
from scankv.model.scans.isolation import ISOLATIONS
from scankv.v1 import lookup_pb2, scan_pb2
from streaming_server.services.isolation import reads_latest

if TYPE_CHECKING:
    from collections.abc import Callable

    from aio_client import Client, Table
    from scankv.model.scans.isolation import Isolation

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
LATEST = scan_pb2.ISOLATION_READ_LATEST
ROWS = [{"k": k, "v": k * 10} for k in range(5)]


async def new_table(client: Client, name: str) -> Table:
    table = await client.create_table(name, SCHEMA, primary_key=["k"], indexes=["v"])
    await table.upsert(ROWS)
    return table


@pytest.mark.asyncio
@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_every_read_takes_the_isolation(client: Client, name: str, isolation: Isolation) -> None:
    table = await new_table(client, name)
    assert await table.get(3, isolation=isolation) == ROWS[3]
    assert (await table.lookup([3, 9, 1], isolation=isolation)).to_pylist() == [ROWS[3], ROWS[1]]
    versioned = await table.lookup([3], with_version=True, isolation=isolation)
    await table.upsert([ROWS[3]], if_version=versioned.log_offsets)
    assert (await table.lookup(pa.array(range(200)), isolation=isolation)).num_rows == 5
    assert await table.count(isolation=isolation) == 5
    assert await table.count("v > 10", isolation=isolation) == 3
    sums = await table.aggregate({"v": "sum"}, isolation=isolation)
    assert sums.to_pylist() == [{"v_sum": 100}]
    assert (await table.top_n(1, order_by="v", isolation=isolation)).to_pylist() == [ROWS[4]]
    scan = table.scan(where="k > 1").isolation(isolation).ordered()
    assert await scan.to_pylist() == ROWS[2:]
    changes = table.changes(StartFrom.FULL, StopAt.LATEST).isolation(isolation)
    assert sorted(row["k"] for row in await changes.to_pylist()) == [0, 1, 2, 3, 4]
    assert (await scan.explain()).buckets


@pytest.mark.asyncio
async def test_tokens_belong_to_their_isolation(client: Client, name: str) -> None:
    table = await new_table(client, name)
    for scan in (table.scan(), table.changes(StartFrom.FULL, StopAt.LATEST)):
        tokens = {}
        for isolation in ISOLATIONS:
            async with scan.isolation(isolation).stream() as stream:
                await anext(stream)
                tokens[isolation] = stream.resume_token or b""
            await scan.isolation(isolation).resume_from(tokens[isolation]).to_arrow()
        for isolation, other in (ISOLATIONS, reversed(ISOLATIONS)):
            with pytest.raises(InvalidResumeToken, match="another query"):
                await scan.isolation(isolation).resume_from(tokens[other]).to_arrow()


@pytest.mark.asyncio
async def test_what_needs_durable_rows_is_refused_before_any_call(client: Client, name: str) -> None:
    table = await new_table(client, name)
    latest = table.scan().isolation("read_latest")
    changes = table.changes(StartFrom.LATEST)
    wrong: Any = "serializable"
    refusals: list[tuple[Callable[[], object], str]] = [
        (lambda: table.scan().isolation(wrong), "isolation must be 'read_committed' or 'read_latest'"),
        (lambda: latest.as_of("some-id"), "not for a snapshot"),
        (lambda: latest.if_changed_since(b"x" * 16), "only durable contents have a version"),
        (lambda: changes.with_consumer_id("job").isolation("read_latest"), "not for consumers"),
    ]
    for refused, message in refusals:
        with pytest.raises(UsageError, match=message):
            refused()
    for call in (table.get(1, isolation=wrong), table.lookup([1], isolation=wrong), table.count(isolation=wrong)):
        with pytest.raises(UsageError, match="isolation must be"):
            await call
    with pytest.raises(UsageError, match="not for a snapshot"):
        await table.count(as_of="some-id", isolation="read_latest")
    # The default goes to servers that do not know the field.
    assert scan_request(table.scan().spec).isolation == scan_pb2.ISOLATION_UNSPECIFIED


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (scan_pb2.ScanKvRequest(isolation=7), "must be a value of Isolation, not 7"),  # type: ignore[arg-type]
        (
            scan_pb2.ScanKvRequest(snapshot=scan_pb2.PinnedSnapshot(snapshot_id="a"), isolation=LATEST),
            "a snapshot cannot",
        ),
        (lookup_pb2.TopNRequest(if_changed_since=b"a", isolation=LATEST), "only durable contents have a version"),
        (scan_pb2.ScanKvRequest(log=scan_pb2.Changelog(consumer_id="a"), isolation=LATEST), "a stream with a consumer"),
    ],
)
def test_the_server_refuses_the_same(request_: Any, message: str) -> None:
    with pytest.raises(Exception, match=message):
        reads_latest(request_)
