"""Fixtures of the tests of tables with tablets: a server of one process, and one of two workers, and their clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aio_client import sync
from tests.support.server_process import ServerProcess
from tests.support.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def settings() -> tuple[str, ...]:
    """Further arguments of the command that starts `server`. Modules that need some override this."""
    return ()


@pytest.fixture(
    scope="module",
    params=[pytest.param(1, id="one_process", marks=pytest.mark.breadth), pytest.param(2, id="two_workers")],
)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, settings: tuple[str, ...]
) -> Iterator[ServerProcess]:
    """A server of so many workers, for all tests of a module; each uses names of its own."""
    data = tmp_path_factory.mktemp("tablets") / "data"
    with ServerProcess(data, "--workers", str(request.param), *settings) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[sync.Client]:
    with sync.connect(server.url) as client:
        yield client


@pytest.fixture(scope="module")
def wire(server: ServerProcess) -> Iterator[Wire]:
    with Wire(server.url) as wire:
        yield wire
