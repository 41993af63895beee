"""Several blocking clients: what a closed client leaves behind causes no errors in the others."""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import StartFrom, UsageError, connect, sync
from aio_client._transport.poller import ignore_stray_events

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess


def test_closing_a_client_with_calls_under_way_leaves_no_traceback_in_another(
    shared_server: ServerProcess, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    over = threading.Event()

    def call(client: sync.Client) -> None:
        with suppress(UsageError):
            while not over.is_set():
                client.transactions()

    with ExitStack() as stack, caplog.at_level(logging.ERROR, "asyncio"):
        others = [stack.enter_context(sync.connect(shared_server.url)) for _ in range(2)]
        threads = [threading.Thread(target=call, args=(other,)) for other in others]
        others[0].create_table(name, pa.schema([("k", pa.int64())]), primary_key=["k"])
        for thread in threads:
            thread.start()
        try:
            for _ in range(10):
                client = sync.connect(shared_server.url)
                table = client.table(name)
                for _ in range(5):
                    table.changes(StartFrom.EARLIEST).stream().__enter__()
                busy = [threading.Thread(target=call, args=(client,)) for _ in range(3)]
                for thread in busy:
                    thread.start()
                client.close()
                for thread in busy:
                    thread.join()
        finally:
            over.set()
            for thread in threads:
                thread.join()
    assert [record.getMessage() for record in caplog.records] == []


def _stray(error: Exception) -> dict[str, Any]:
    return {"message": "Exception in callback PollerCompletionQueue._handle_events(<_Un...>)()", "exception": error}


@pytest.mark.parametrize(
    ("context", "is_told"),
    [
        (_stray(RuntimeError("Event loop is closed")), False),
        (_stray(BlockingIOError(11, "Resource temporarily unavailable")), False),
        (_stray(RuntimeError("another")), True),
        (_stray(ValueError("another")), True),
        ({"message": "Exception in callback mine()", "exception": RuntimeError("Event loop is closed")}, True),
        ({"message": "without an exception"}, True),
    ],
)
@pytest.mark.asyncio
async def test_all_else_is_told_as_ever(
    context: dict[str, Any], is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    ignore_stray_events(asyncio.get_running_loop())
    with caplog.at_level(logging.ERROR, "asyncio"):
        asyncio.get_running_loop().call_exception_handler(context)
    assert bool(caplog.records) == is_told


@pytest.mark.asyncio
async def test_a_handler_of_the_loop_s_owner_stays(shared_server: ServerProcess) -> None:
    told: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    handler = lambda _, context: told.append(context)  # noqa: E731
    loop.set_exception_handler(handler)
    async with connect(shared_server.url) as client:
        await client.tables()
        assert loop.get_exception_handler() is handler
