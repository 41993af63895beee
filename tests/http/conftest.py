"""Fixtures of the tests of HTTP: gateways in processes of their own, before real servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import sync
from tests.support.browser import open_browser
from tests.support.console import BusyConsole, open_busy_console
from tests.support.gateway import GatewayProcess
from tests.support.secured import TokenIssuer
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

    from selenium.webdriver import Chrome

SCORES = pa.schema([pa.field("player", pa.string(), nullable=False), pa.field("score", pa.int64())])


@pytest.fixture(scope="session")
def gateway(shared_server: ServerProcess) -> Iterator[GatewayProcess]:
    """A gateway of the server that all tests share."""
    with GatewayProcess(shared_server.url) as gateway:
        yield gateway


@pytest.fixture(scope="session")
def client(shared_server: ServerProcess) -> Iterator[sync.Client]:
    with sync.connect(shared_server.url) as client:
        yield client


@pytest.fixture(scope="session")
def scores(client: sync.Client) -> sync.Table:
    """A table of 100 players: `p00` has the score 0, and so on. No test writes to it."""
    table = client.create_table("http.scores", SCORES, primary_key=["player"])
    table.upsert([{"player": f"p{number:02}", "score": number} for number in range(100)])
    return table


class TokenGateway(GatewayProcess):
    """A gateway of a server that asks for tokens. `issuer` makes them, and `client` is an admin."""

    def __init__(self, url: str, issuer: TokenIssuer, client: sync.Client) -> None:
        super().__init__(url)
        self.url = url
        self.issuer = issuer
        self.client = client


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenGateway]:
    """A gateway of a server that asks for tokens, with the tables `game.scores` and `other.scores`."""
    directory = tmp_path_factory.mktemp("secured")
    issuer = TokenIssuer(directory / "tokens")
    with (
        ServerProcess(directory / "data", "--tokens", str(issuer.path)) as server,
        sync.connect(server.url, token=issuer.root) as client,
        TokenGateway(server.url, issuer, client) as gateway,
    ):
        for name in ("game.scores", "other.scores"):
            client.create_table(name, SCORES, primary_key=["player"]).upsert([{"player": "ann", "score": 31}])
        fill_wide(client, "game.wide")
        yield gateway


@pytest.fixture(scope="session")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BusyConsole]:
    """A console that has something to show in every part of every page."""
    with open_busy_console(tmp_path_factory.mktemp("busy")) as console:
        yield console


@pytest.fixture(scope="module")
def browser() -> Iterator[Chrome]:
    with open_browser() as browser:
        yield browser


@pytest.fixture(scope="session")
def wide(client: sync.Client) -> sync.Table:
    """A table of some 40 MB, more than the buffers between a server and a reader. No test writes to it."""
    return fill_wide(client, "http.wide")


def fill_wide(client: sync.Client, name: str) -> sync.Table:
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False), ("text", pa.string())])
    table = client.create_table(name, schema, primary_key=["k"])
    table.upsert(pa.table({"k": range(40_000), "text": [f"{number:01000}" for number in range(40_000)]}, schema))
    return table
