"""Fixtures of the server's tests."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from aio_client import connect
from tests.support.server_process import ServerProcess
from tests.support.wire import Wire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from aio_client import Client


@pytest_asyncio.fixture
async def client(shared_server: ServerProcess) -> AsyncIterator[Client]:
    async with connect(shared_server.url) as client:
        yield client


@pytest.fixture
def wire(shared_server: ServerProcess) -> Iterator[Wire]:
    with Wire(shared_server.url) as wire:
        yield wire


@pytest.fixture(scope="module")
def divided(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with two workers, for all tests of a module; each uses names of its own."""
    with ServerProcess(tmp_path_factory.mktemp("workers") / "data", "--workers", "2") as server:
        yield server


@pytest.fixture
def name() -> str:
    """The name of a table that no other test has."""
    return f"server.t{uuid.uuid4().hex}"
