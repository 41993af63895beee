"""Limits of one principal on a running server, and how a real client behaves at them."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import ScanCancelled, ServerBusy, TooManyScans, connect
from tests.support.monitoring import Scrape, free_port
from tests.support.secured import SecuredServer, TokenIssuer
from tests.support.server_process import ServerProcess
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MEBIBYTE = 1 << 20
ROWS, ROW_BYTES = 4000, 1000
LIST = "scankv.v1.TableService/ListTables"
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])


class LimitingServer(SecuredServer):
    """A server with tokens and a table of 4 MB."""

    def __init__(self, process: ServerProcess, issuer: TokenIssuer, metrics_port: int) -> None:
        super().__init__(process.url, issuer)
        self._metrics_port = metrics_port

    def refusals(self, limit: str) -> float:
        """Returns how many calls were refused because of a limit."""
        return Scrape(self._metrics_port).value("scankv_caller_limit_refusals_total", limit=limit) or 0

    def delay(self) -> float:
        """Returns for how many seconds streams were held back."""
        return Scrape(self._metrics_port).value("scankv_caller_limit_delay_seconds_total") or 0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LimitingServer]:
    directory = tmp_path_factory.mktemp("limits")
    issuer, port = TokenIssuer(directory / "tokens"), free_port()
    arguments = ("--tokens", str(issuer.path), "--metrics-port", str(port))
    with ServerProcess(directory / "data", *arguments) as process, LimitingServer(process, issuer, port) as server:
        asyncio.run(fill(server))
        yield server


async def fill(server: LimitingServer) -> None:
    async with connect(server.address, token=server.issuer.root) as client:
        table = await client.create_table("limits.rows", SCHEMA, primary_key=["k"], buckets=1)
        await table.upsert(pa.table({"k": range(ROWS), "v": ["x" * ROW_BYTES] * ROWS}, SCHEMA))


def test_a_call_beyond_the_rate_is_refused_with_the_time_to_try_again(server: LimitingServer) -> None:
    limited = server.caller("read:limits.*", principal="calls", limits={"requests_per_second": 2})
    other = server.caller("read:limits.*", principal="other")
    answers = [limited.refusal(LIST) for _ in range(20)]
    refused = [answer for answer in answers if answer is not None]
    assert 2 <= len(answers) - len(refused) <= 10
    assert {(answer.code, answer.reason) for answer in refused} == {("RESOURCE_EXHAUSTED", "SERVER_BUSY")}
    assert all(answer.retry_after is not None and 0 < answer.retry_after <= 0.5 for answer in refused)
    assert all(other.code(LIST) == "OK" for _ in range(20))
    assert server.refusals("requests") >= len(refused)


@pytest.mark.breadth
@pytest.mark.asyncio
async def test_a_client_keeps_to_the_rate_by_itself(server: LimitingServer) -> None:
    token = server.issuer.create("write:limits.*", principal="keeps", limits={"requests_per_second": 4})
    before, began = server.refusals("requests"), time.monotonic()
    async with connect(server.address, token=token) as client:
        table = await client.table("limits.rows")
        for number in range(16):
            row = await table.get(number)
            assert row is not None
            assert row["k"] == number
    # 17 calls, of which 4 are at once. A slow machine makes more than 4 a second, too.
    assert time.monotonic() - began >= 3
    assert server.refusals("requests") > before


@pytest.mark.asyncio
async def test_a_client_gives_up_at_its_timeout(server: LimitingServer) -> None:
    token = server.issuer.create("read:limits.*", principal="slow", limits={"requests_per_second": 0.01})
    async with connect(server.address, token=token, operation_timeout=1.0) as client:
        await client.tables()
        began = time.monotonic()
        with pytest.raises(ServerBusy, match=r"limit of 0\.01 requests a second") as caught:
            await client.tables()
        assert caught.value.retry_after is not None
        assert caught.value.retry_after > 50
        assert time.monotonic() - began < 10


@pytest.mark.asyncio
async def test_scans_beyond_the_limit_wait_for_others_to_end(server: LimitingServer) -> None:
    token = server.issuer.create("read:limits.*", principal="scans", limits={"scans": 1})
    async with connect(server.address, token=token) as client:
        table = await client.table("limits.rows")
        stream = table.changes().stream()
        async with stream:
            await anext(stream)
            with pytest.raises(TooManyScans, match="has 1 live scans and streams, its limit"):
                await scan_within(server, token, 1.0)
        found = await asyncio.gather(*(table.scan(columns=["k"]).to_arrow() for _ in range(5)))
        assert {each.num_rows for each in found} == {ROWS}
    assert server.refusals("scans") > 0


async def scan_within(server: LimitingServer, token: str, seconds: float) -> pa.Table:
    async with connect(server.address, token=token, operation_timeout=seconds) as client:
        return await (await client.table("limits.rows")).scan().to_arrow()


@pytest.mark.breadth
@pytest.mark.asyncio
async def test_a_scan_beyond_the_bytes_is_slowed_down_and_complete(server: LimitingServer) -> None:
    token = server.issuer.create("read:limits.*", principal="bytes", limits={"bytes_per_second": MEBIBYTE})
    before, began = server.delay(), time.monotonic()
    async with connect(server.address, token=token) as client:
        table = await client.table("limits.rows")
        assert (await table.scan().to_arrow()).num_rows == ROWS
    # About 4 MiB, of which a half is ahead of the rate.
    assert time.monotonic() - began >= 2.5
    assert server.delay() - before >= 2


@pytest.mark.breadth
@pytest.mark.asyncio
async def test_writes_beyond_the_bytes_are_refused_and_made_again(server: LimitingServer) -> None:
    token = server.issuer.create("write:limits.*", principal="writes", limits={"bytes_per_second": MEBIBYTE})
    rows = pa.table({"k": range(2000), "v": ["x" * ROW_BYTES] * 2000}, SCHEMA)
    before, began = server.refusals("bytes"), time.monotonic()
    async with connect(server.address, token=token) as client:
        table = await client.table("limits.rows")
        for _ in range(3):
            await table.upsert(rows)
    assert time.monotonic() - began >= 2
    assert server.refusals("bytes") > before


@pytest.mark.asyncio
async def test_an_operator_cancels_a_scan_that_is_held_back(server: LimitingServer) -> None:
    token = server.issuer.create("read:limits.*", principal="held", limits={"bytes_per_second": MEBIBYTE})
    async with (
        connect(server.address, token=server.issuer.root) as operator,
        connect(server.address, token=token) as client,
    ):
        scan = asyncio.create_task((await client.table("limits.rows")).scan().to_arrow())
        (live,) = await await_until(operator.live_scans, "a live scan")
        await operator.cancel_scan(live.scan_id)
        with pytest.raises(ScanCancelled):
            await scan


@pytest.mark.breadth
@pytest.mark.asyncio
async def test_without_tokens_all_clients_share_the_limits_of_the_settings(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--set", "max_caller_requests_per_second=5") as process:
        async with connect(process.url) as one, connect(process.url) as two:
            began = time.monotonic()
            for _ in range(8):
                await one.tables()
                await two.tables()
            assert time.monotonic() - began >= 1.5
