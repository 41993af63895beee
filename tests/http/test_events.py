"""Server-sent events: what they contain, what they cost, and how they continue."""

from __future__ import annotations

import json
import time
import uuid
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import sync
from tests.support.gateway import GatewayProcess, target
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aio_client.sync import Client, Table
    from tests.http.conftest import TokenGateway

SCORES = pa.schema([pa.field("player", pa.string(), nullable=False), pa.field("score", pa.int64())])


class EventReader:
    """Reads one stream of events."""

    def __init__(self, response: Any) -> None:
        self._response = response

    def next(self) -> dict[str, str]:
        """Returns the fields of the next event that is no heartbeat. Comments are skipped."""
        while (fields := self.next_of_any_kind()).get("event") == "alive":
            pass
        return fields

    def next_of_any_kind(self) -> dict[str, str]:
        """Returns the fields of the next event. Comments are skipped."""
        fields: dict[str, str] = {}
        while True:
            line = self._response.readline().decode()
            assert line, "the stream has ended"
            if line == "\n" and "data" in fields:
                return fields
            name, _, value = line.rstrip("\n").partition(": ")
            fields[name] = value

    def rows(self) -> list[dict[str, Any]]:
        """Returns the rows of the next event."""
        found: list[dict[str, Any]] = json.loads(self.next()["data"])["rows"]
        return found


@contextmanager
def events(
    gateway: GatewayProcess, path: str, headers: dict[str, str] | None = None, **query: Any
) -> Iterator[EventReader]:
    connection = gateway.connection()
    try:
        connection.request("GET", target(path, **query), headers=gateway.headers(headers))
        response = connection.getresponse()
        assert (response.status, response.getheader("content-type")) == (200, "text/event-stream; charset=utf-8")
        yield EventReader(response)
    finally:
        connection.close()


@pytest.fixture
def table(client: Client) -> Table:
    table = client.create_table(f"http.t{uuid.uuid4().hex}", SCORES, primary_key=["player"])
    table.upsert([{"player": "ann", "score": 31}, {"player": "bob", "score": 27}])
    return table


def test_an_event_has_the_first_rows_now_and_when_they_differ(gateway: GatewayProcess, table: Table) -> None:
    with events(gateway, f"/v1/tables/{table.name}/watch/top", order_by="score", limit=1, every=0.1) as reader:
        assert reader.rows() == [{"player": "ann", "score": 31}]
        table.upsert([{"player": "eve", "score": 1}])
        table.upsert([{"player": "bob", "score": 40}])
        assert reader.rows() == [{"player": "bob", "score": 40}]


def test_an_event_has_the_rows_of_some_keys(gateway: GatewayProcess, table: Table) -> None:
    with events(gateway, f"/v1/tables/{table.name}/watch/rows", key=["bob", "eve"], every=0.1) as reader:
        assert reader.rows() == [{"player": "bob", "score": 27}]
        table.upsert([{"player": "ann", "score": 1}])
        table.upsert([{"player": "eve", "score": 2}])
        assert reader.rows() == [{"player": "bob", "score": 27}, {"player": "eve", "score": 2}]


def test_an_event_has_the_number_of_rows(gateway: GatewayProcess, table: Table) -> None:
    with events(gateway, f"/v1/tables/{table.name}/watch/count", where="score > 30", every=0.1) as reader:
        assert json.loads(reader.next()["data"])["count"] == 1
        table.upsert([{"player": "bob", "score": 40}])
        assert json.loads(reader.next()["data"])["count"] == 2


@pytest.mark.parametrize("kind", ["top", "rows", "count"])
def test_watching_an_unchanged_table_costs_the_server_no_read(
    gateway: GatewayProcess, client: Client, table: Table, kind: str
) -> None:
    query: dict[str, Any] = {"top": {"order_by": "score"}, "rows": {"key": "ann"}, "count": {"where": "score > 1"}}[
        kind
    ]
    with events(gateway, f"/v1/tables/{table.name}/watch/{kind}", every=0.1, **query) as reader:
        reader.next()
        before = client.stats()
        wait_until(
            lambda: (
                (client.stats().unchanged_results > before.unchanged_results + 3)
                or (kind != "count" and client.stats().waiting_calls > 0)
            ),
            "a question that the server answers from memory, or that waits",
        )
        after = client.stats()
        assert (after.rows_scanned, after.computed_results) == (before.rows_scanned, before.computed_results)


def test_a_reader_that_comes_back_gets_an_event_only_if_the_table_has_changed(
    gateway: GatewayProcess, table: Table
) -> None:
    path = f"/v1/tables/{table.name}/watch/top"
    query: dict[str, Any] = {"order_by": "score", "limit": 1, "every": 0.1}
    with events(gateway, path, **query) as reader:
        last = reader.next()["id"]
    with events(gateway, path, {"Last-Event-ID": last}, **query) as reader:
        assert reader.next_of_any_kind()["event"] == "alive"
        table.upsert([{"player": "bob", "score": 99}])
        assert reader.rows() == [{"player": "bob", "score": 99}]
    for other in ("nonsense", "00", last):
        with events(gateway, path, {"Last-Event-ID": other}, **query) as reader:
            assert reader.rows() == [{"player": "bob", "score": 99}]


@pytest.mark.breadth
def test_a_reader_that_is_slow_gets_the_newest_rows(gateway: GatewayProcess, client: Client) -> None:
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False), ("text", pa.string())])
    table = client.create_table(f"http.t{uuid.uuid4().hex}", schema, primary_key=["k"])

    def write(round_: int) -> None:
        table.upsert([{"k": key, "text": f"{round_:04}" * 2500} for key in range(100)])  # a megabyte

    write(0)
    path = f"/v1/tables/{table.name}/watch/top"
    with events(gateway, path, order_by="k", limit=100, every=0.1) as slow:
        with events(gateway, path, order_by="k", limit=100, every=0.1) as quick:
            for round_ in range(1, 40):
                write(round_)
                while quick.rows()[0]["text"][:4] != f"{round_:04}":
                    pass
        seen: list[int] = []
        while not seen or seen[-1] != 39:
            seen.append(int(slow.rows()[0]["text"][:4]))
    assert seen == sorted(set(seen))
    assert len(seen) < 30, "what was not read in time must not have waited in memory"


@pytest.mark.breadth
def test_events_go_on_when_the_server_restarts(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server, GatewayProcess(server.url) as gateway:
        with sync.connect(server.url) as client:
            table = client.create_table("game.scores", SCORES, primary_key=["player"])
            table.upsert([{"player": "ann", "score": 31}])
        with events(gateway, "/v1/tables/game.scores/watch/top", order_by="score", every=0.1) as reader:
            assert reader.rows() == [{"player": "ann", "score": 31}]
            server.kill()
            server.restart()
            with sync.connect(server.url) as client:
                client.table("game.scores").upsert([{"player": "ann", "score": 32}])
            assert reader.rows() == [{"player": "ann", "score": 32}]


def test_a_dropped_table_ends_its_events_with_a_problem(gateway: GatewayProcess, client: Client, table: Table) -> None:
    with events(gateway, f"/v1/tables/{table.name}/watch/top", order_by="score", every=0.1) as reader:
        reader.next()
        client.drop_table(table.name)
        event = reader.next()
        assert event["event"] == "problem"
        assert json.loads(event["data"])["reason"] == "TABLE_NOT_FOUND"


@pytest.fixture(scope="module")
def quick(secured: TokenGateway) -> Iterator[GatewayProcess]:
    """A gateway whose streams have a heartbeat each second."""
    with GatewayProcess(secured.url, heartbeat_seconds=1.0) as gateway:
        yield gateway


STREAMS: dict[str, dict[str, Any]] = {"top": {"order_by": "score"}, "rows": {"key": "ann"}, "count": {}}


@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.breadth
def test_a_heartbeat_confirms_the_last_answer(secured: TokenGateway, quick: GatewayProcess, kind: str) -> None:
    headers = {"Authorization": f"Bearer {secured.issuer.create('read:*')}"}
    with events(quick, f"/v1/tables/game.scores/watch/{kind}", headers, every=60, **STREAMS[kind]) as reader:
        assert "event" not in reader.next_of_any_kind()
        for _ in range(2):
            beat = reader.next_of_any_kind()
            assert (beat["event"], beat["data"]) == ("alive", "{}")


@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("end", ["revoked", "expired", "without the grant"])
@pytest.mark.breadth
def test_a_stream_ends_with_its_token_while_no_row_changes(
    secured: TokenGateway, quick: GatewayProcess, kind: str, end: str
) -> None:
    expires = datetime.now(UTC) + timedelta(seconds=3) if end == "expired" else None
    token = secured.issuer.create("read:*", expires=expires)
    headers = {"Authorization": f"Bearer {token}"}
    # Nothing asks the server for rows in this time.
    with events(quick, f"/v1/tables/game.scores/watch/{kind}", headers, every=60, **STREAMS[kind]) as reader:
        reader.next()
        if end == "revoked":
            secured.issuer.revoke(token)
        if end == "without the grant":
            secured.issuer.regrant(token, "read:other.*")
        began = time.monotonic()
        event = reader.next()
        # Before anything else asks the server: the next long poll comes after half a minute.
        assert time.monotonic() - began < 15
        assert event["event"] == "problem"
        reason = "PERMISSION_DENIED" if end == "without the grant" else "UNAUTHENTICATED"
        assert json.loads(event["data"])["reason"] == reason


@pytest.mark.soak
def test_a_stream_says_that_the_server_does_not_answer(tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path / "data") as server,
        GatewayProcess(server.url, heartbeat_seconds=1.0) as gateway,
        sync.connect(server.url) as client,
    ):
        client.create_table("game.scores", SCORES, primary_key=["player"])
        with events(gateway, "/v1/tables/game.scores/watch/top", order_by="score") as reader:
            reader.next()
            server.kill()
            event = reader.next()
            assert (event["event"], json.loads(event["data"])["status"]) == ("away", 503)
            server.restart()
            while event["event"] == "away":
                event = reader.next_of_any_kind()
            assert event["event"] == "alive"
