"""The console before the server of an earlier version, which does not know all calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import sync
from tests.support.earlier_version import WHEELS, EarlierServer, unpack
from tests.support.gateway import GatewayProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SCHEMA = pa.schema([pa.field("player", pa.string(), nullable=False), pa.field("score", pa.int64())])


@pytest.fixture(scope="module", params=WHEELS, ids=lambda wheel: wheel.parent.name)
def earlier(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway of this version before a server of an earlier one, which has a table and a snapshot of it."""
    directory: Path = tmp_path_factory.mktemp("earlier")
    packages = unpack(request.param, directory / "packages")
    with EarlierServer(packages, directory / "data") as server, sync.connect(server.url) as client:
        table = client.create_table("a.scores", SCHEMA, primary_key=["player"])
        table.upsert([{"player": "ann", "score": 31}])
        with table.snapshot(), GatewayProcess(server.url) as gateway:
            yield gateway


@pytest.mark.breadth
def test_the_page_of_the_server_shows_what_the_server_knows_and_names_the_rest(earlier: GatewayProcess) -> None:
    answer = earlier.get("/server")
    text = answer.body.decode()
    assert answer.status == 200
    assert "does not know the calls: slow calls. Upgrade" in text
    assert "Slow calls" not in text
    for shown in ("Longest loop turn", "<td>a.scores</td>", "Open transactions", "Column locks"):
        assert shown in text


@pytest.mark.breadth
@pytest.mark.parametrize("path", ["/", "/tables/a.scores", "/tables/a.scores?run=rows", "/scans", "/charts"])
def test_the_other_pages_are_complete(earlier: GatewayProcess, path: str) -> None:
    connection = earlier.connection()
    connection.request("GET", path)
    with connection.getresponse() as response:
        text = response.read().decode()
    connection.close()
    assert response.status == 200, text
    assert "does not know" not in text


@pytest.mark.breadth
def test_a_server_of_this_version_knows_all_calls(gateway: GatewayProcess) -> None:
    text = gateway.get("/server").body.decode()
    assert "does not know" not in text
    assert "Slow calls" in text


@pytest.mark.represented_by("0.1.0-/tables/a.scores?run=explain&order_by=score-upgrade it to see the explanation.")
@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/", "upgrade it to see the rows and sizes."),
        (
            "/tables/a.scores?run=explain&order_by=score",
            "upgrade it to see the explanation.",
        ),
    ],
)
def test_what_an_earlier_server_cannot_tell_is_named(earlier: GatewayProcess, path: str, text: str) -> None:
    connection = earlier.connection()
    connection.request("GET", path)
    with connection.getresponse() as response:
        assert text in response.read().decode()
    connection.close()
