"""Fixtures of the client's tests against a real server."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from aio_client import connect, sync
from aio_client.testing import FaultProxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from aio_client import Client
    from tests.support.server_process import ServerProcess


@pytest_asyncio.fixture
async def client(shared_server: ServerProcess) -> AsyncIterator[Client]:
    async with connect(shared_server.url) as client:
        yield client


@pytest_asyncio.fixture
async def proxy(shared_server: ServerProcess) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(shared_server.url) as proxy:
        yield proxy


@pytest.fixture
def sync_client(shared_server: ServerProcess) -> Iterator[sync.Client]:
    with sync.connect(shared_server.url) as client:
        yield client


@pytest.fixture
def name() -> str:
    """The name of a table that no other test has."""
    return f"test.t{uuid.uuid4().hex}"
