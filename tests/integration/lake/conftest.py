"""Fixtures of the tests of published tables."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from aio_client import connect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from aio_client import Client
    from tests.support.server_process import ServerProcess


@pytest_asyncio.fixture
async def client(shared_server: ServerProcess) -> AsyncIterator[Client]:
    async with connect(shared_server.url) as client:
        yield client


@pytest.fixture
def name() -> str:
    """The name of a table that no other test has."""
    return f"lake.t{uuid.uuid4().hex}"


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """Where to publish."""
    return str(tmp_path / "published")
