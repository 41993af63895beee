"""A real client and stream read exactly what the script of a `ScriptedServer` contains."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pyarrow as pa
import pytest

from aio_client import (
    Client,
    ClientConfig,
    DataLoss,
    DeadlineExceeded,
    InvalidRequest,
    ProtocolViolation,
    ScanInterrupted,
    ScanKvError,
    TableNotFound,
    TooManyScans,
    Unavailable,
    UsageError,
)
from aio_client.testing import ScriptedServer, Step
from scankv.model.scans.scan_spec import Resume, ScanSpec

pytestmark = pytest.mark.asyncio

NAME = "game.scores"
SCHEMA = pa.schema([pa.field("player", pa.string(), nullable=False), ("score", pa.int64())])
QUICK = ClientConfig(url="scripted:1", attempt_timeout=0.5, next_chunk_timeout=0.5)


def rows(first: int, count: int = 3) -> pa.RecordBatch:
    return pa.record_batch([[f"p{i}" for i in range(first, first + count)], range(first, first + count)], schema=SCHEMA)


def scripted(*attempts: Any) -> ScriptedServer:
    return ScriptedServer(NAME, SCHEMA, *attempts)


async def read_all(client: Client, spec: ScanSpec | None = None) -> pa.Table:
    return await client.scan(spec or ScanSpec(NAME)).to_arrow()


async def test_a_script_of_batches_is_a_whole_scan() -> None:
    server = scripted([rows(0), Step.HEARTBEAT, rows(3)])
    async with server.client() as client:
        table = await client.table(NAME)
        assert (table.schema, table.primary_key) == (SCHEMA, ["player"])
        async with table.scan().limit(10).stream() as stream:
            assert [batch async for batch in stream] == [rows(0), rows(3)]
        statistics = stream.stats()
    assert (statistics.rows_returned, statistics.chunks, statistics.attempts) == (6, 2, 1)
    assert [(request.table, request.limit) for request in server.requests] == [(NAME, 10)]
    assert len(set(server.tokens)) == 3
    assert (server.open_scans, server.attempts_left) == (0, 0)


async def test_an_empty_script_is_an_empty_table() -> None:
    async with scripted([]).client() as client:
        assert await read_all(client) == SCHEMA.empty_table()


async def test_only_the_columns_that_were_asked_for_come() -> None:
    async with scripted([rows(0)], [rows(0)], [rows(0)]).client() as client:
        assert (await read_all(client, ScanSpec(NAME, columns=("score",)))).column_names == ["score"]
        assert (await read_all(client, ScanSpec(NAME, columns=()))).num_rows == 3
        with pytest.raises(InvalidRequest, match='no column "scores"; did you mean "score"'):
            await read_all(client, ScanSpec(NAME, columns=("scores",)))


async def test_each_scan_gets_the_next_script() -> None:
    server = scripted([rows(0)], [DataLoss("bucket 0 is damaged")], [rows(3)])
    async with server.client() as client:
        assert (await read_all(client)).num_rows == 3
        with pytest.raises(DataLoss, match="bucket 0 is damaged"):
            await read_all(client)
        assert (await read_all(client)).num_rows == 3
        assert server.attempts_left == 0
        with pytest.raises(UsageError, match="has 3 attempts"):
            await read_all(client)


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ([rows(0), Unavailable("the connection broke")], ScanInterrupted),
        ([rows(0), DataLoss("damaged")], DataLoss),
        ([rows(0), Step.STALL], DeadlineExceeded),
        ([rows(0), Step.END_WITHOUT_TRAILER], ProtocolViolation),
        ([rows(0), Step.WRONG_TOTALS], ProtocolViolation),
        ([rows(0), Step.WRONG_CHECKSUM], ProtocolViolation),
    ],
)
async def test_a_scan_fails_as_the_script_says_with_the_token_of_what_came(
    script: list[Any], error: type[ScanKvError]
) -> None:
    server = scripted(script)
    async with server.client(QUICK) as client:
        stream = client.scan(ScanSpec(NAME)).stream()
        assert await anext(stream) == rows(0)
        with pytest.raises(error) as caught:
            await anext(stream)
        assert caught.value.resume_token == server.tokens[0]
        assert server.open_scans == 0


@pytest.mark.parametrize("script", [[Step.STALL], [Step.HEADER, Step.STALL]])
async def test_a_script_stalls_before_and_behind_its_header(script: list[Step]) -> None:
    server = scripted(script)
    async with server.client(QUICK) as client:
        stream = client.scan(ScanSpec(NAME)).stream()
        if Step.HEADER in script:
            async with stream:
                assert stream.schema == SCHEMA
                with pytest.raises(DeadlineExceeded):
                    await anext(stream)
        else:
            with pytest.raises(DeadlineExceeded):
                await stream.__aenter__()
        assert server.open_scans == 0


@pytest.mark.parametrize("source", [{"resume": Resume.LATEST}, {"snapshot_id": "pin-1"}])
async def test_a_scan_is_resumed_with_the_token_of_the_rows_it_got(source: dict[str, Any]) -> None:
    server = scripted([rows(0), rows(3), Unavailable("cut")], [Step.HEARTBEAT, Unavailable("cut")], [rows(6)])
    async with server.client() as client, client.scan(ScanSpec(NAME, **source)).stream() as stream:
        assert [batch async for batch in stream] == [rows(0), rows(3), rows(6)]
    assert [request.resume_token for request in server.requests] == [b"", server.tokens[1], server.tokens[2]]
    assert [each.rows for each in stream.resumptions] == [6, 6]
    assert stream.stats().attempts == 3


async def test_a_scan_that_is_refused_is_tried_again() -> None:
    server = scripted(*[[TooManyScans("256 scans are running", retry_after=0.001)]] * 3, [rows(0)])
    async with server.client() as client:
        assert (await read_all(client)).num_rows == 3


@pytest.mark.parametrize("how", ["aclose", "break", "cancel", "client"])
async def test_a_scan_that_is_given_up_is_not_open_any_more(how: str) -> None:
    server = scripted([rows(0), rows(3), Step.STALL])
    async with server.client() as client:
        stream = client.scan(ScanSpec(NAME)).stream()
        assert await anext(stream) == rows(0)
        assert server.open_scans == 1
        if how == "aclose":
            await stream.aclose()
        elif how == "break":
            del stream
            gc.collect()
        elif how == "cancel":
            assert await anext(stream) == rows(3)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(stream), 0.01)
        else:
            await client.aclose()
            with pytest.raises(UsageError):
                await anext(stream)
        assert server.open_scans == 0


async def test_a_stall_ends_when_the_stream_is_closed_by_another_task() -> None:
    server = scripted([rows(0), Step.STALL])
    async with server.client() as client:
        stream = client.scan(ScanSpec(NAME)).stream()
        await anext(stream)
        reading = asyncio.create_task(anext(stream))
        await asyncio.sleep(0)
        await stream.aclose()
        with pytest.raises(UsageError):
            await asyncio.wait_for(reading, 60)


async def test_what_is_not_in_the_script_is_refused() -> None:
    server = scripted([rows(0)])
    async with server.client() as client:
        await client.wait_ready()
        with pytest.raises(TableNotFound, match=r"game\.others"):
            await client.table("game.others")
        with pytest.raises(TableNotFound, match=r"game\.others"):
            await read_all(client, ScanSpec("game.others"))
        with pytest.raises(UsageError, match=r"not tables\.ListTables"):
            await client.tables()
        with pytest.raises(UsageError, match=r"not lookups\.Count"):
            await (await client.table(NAME)).count()
    with pytest.raises(UsageError, match="closed"):
        await client.table(NAME)
    with pytest.raises(UsageError, match="closed"):
        await read_all(client)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ([rows(0).select(["score"])], "a batch of a script must have rows of"),
        ([rows(0, 0)], "a batch of a script must have rows of"),
        (["rows"], "record batches, ScanKvErrors and Steps, not 'rows'"),
        ([ValueError("no error of ours")], "not ValueError"),
        ([Unavailable("cut"), rows(0)], "nothing can follow Unavailable"),
        ([Step.STALL, rows(0)], "nothing can follow <Step.STALL"),
    ],
)
async def test_a_script_that_cannot_be_played_is_refused(script: list[Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        scripted(script)


async def test_an_error_of_a_script_is_the_same_when_it_is_played_again() -> None:
    error = DataLoss("damaged", bucket=3)
    server = scripted([rows(0), error], [error])
    async with server.client() as client:
        for _ in range(2):
            with pytest.raises(DataLoss) as caught:
                await read_all(client)
            assert caught.value.details == {"bucket": "3"}
    assert error.resume_token is None
    assert error.__traceback__ is None
