"""The monitoring port of a real server: metrics that agree with what was done, liveness, readiness, and the log."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.resources
import json
import re
import signal
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc
import pyarrow as pa
import pytest
import yaml

from aio_client import connect, sync
from scankv.v1 import scan_pb2
from streaming_server.config import ServerConfig
from streaming_server.monitoring.catalog import METRICS, STANDARD_METRICS
from streaming_server.monitoring.endpoint import Endpoint
from streaming_server.server import PortTaken, Server
from tests.support.monitoring import Answer, Scrape, ask, free_port
from tests.support.server_process import ServerProcess
from tests.support.waiting import await_until, wait_until
from tests.support.wire import Wire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from aio_client import Client, Table

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
ROWS = 60_000
MONITORING = importlib.resources.files("scankv.monitoring")


async def fill(client: Client, name: str, rows: int = ROWS) -> Table:
    """Makes a table whose 60,000 rows do not fit into the buffers between server and client."""
    table = await client.create_table(name, SCHEMA, primary_key=["k"], buckets=3, indexes=[["v"]])
    await table.upsert(pa.table({"k": range(rows), "v": [f"{k:0250}" for k in range(rows)]}))
    return table


@asynccontextmanager
async def serve(tmp_path: Path, **settings: Any) -> AsyncIterator[tuple[Client, int]]:
    port = free_port()
    async with (
        Server(ServerConfig(data=tmp_path / "data", port=0, metrics_port=port, **settings)) as server,
        connect(server.address) as client,
    ):
        yield client, port


async def scrape(port: int) -> Scrape:
    return await asyncio.to_thread(Scrape, port)


@pytest.fixture(scope="module")
def monitored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, int]]:
    port = free_port()
    settings = "--metrics-port", str(port), "--log-format", "json", "--set", "slow_request_seconds=0.000001"
    with ServerProcess(tmp_path_factory.mktemp("monitored") / "data", *settings) as server:
        yield server, port


@pytest.mark.asyncio
async def test_metrics_agree_with_the_work_that_was_done(tmp_path: Path) -> None:
    async with serve(tmp_path) as (client, port):
        table = await fill(client, "a.work", 1000)
        assert (await table.scan().to_arrow()).num_rows == 1000
        await table.delete([1, 2, 3])
        assert await table.count(where="v > ''") == 997
        assert await table.count(where="v > ''") == 997
        await client.create_table("a.late", SCHEMA, primary_key=["k"])
        found = await scrape(port)
        stats = await client.stats()
        for name, labels, value in (
            ("scankv_ready", {}, 1),
            ("scankv_tables", {}, 2),
            ("scankv_rows_written_total", {}, 1003),
            ("scankv_scan_rows_total", {}, stats.rows_scanned),
            ("scankv_scan_bytes_total", {}, stats.bytes_returned),
            ("scankv_query_results_total", {"source": "computed"}, 1),
            ("scankv_query_results_total", {"source": "cached"}, 1),
            ("scankv_scans_live", {}, 0),
            ("scankv_call_seconds_count", {"method": "WriteService/Upsert", "code": "OK"}, 1),
            ("scankv_call_seconds_count", {"method": "ScanService/ScanKv", "code": "OK"}, 1),
            ("scankv_calls_running", {"method": "ScanService/ScanKv"}, 0),
            ("scankv_table_rows", {"table": "a.work"}, 997),
            ("scankv_changelog_changes", {"table": "a.work"}, 1003),
            ("scankv_table_syncs_total", {"table": "a.work"}, stats.log_syncs),
            ("scankv_indexes", {"table": "a.work"}, 1),
            ("scankv_indexes_building", {"table": "a.work"}, 0),
            ("scankv_table_buckets_open", {"table": "a.work"}, 3),
            # Each bucket also syncs before its first write.
            ("scankv_storage_sync_seconds_count", {}, stats.log_syncs + 3),
        ):
            assert found.value(name, **labels) == value, (name, labels)
        assert (found.value("scankv_storage_write_seconds_count") or 0) >= 6
        assert (found.value("scankv_scan_chunk_seconds_count") or 0) >= 3
        assert (found.value("scankv_rocksdb_memtable_bytes") or 0) > 0
        assert (found.value("scankv_disk_free_bytes") or 0) > 0
        assert (found.value("scankv_disk_reserve_bytes") or 0) > 0


@pytest.mark.breadth
@pytest.mark.asyncio
async def test_metrics_show_scans_while_they_run_and_how_they_ended(tmp_path: Path) -> None:
    async with serve(tmp_path) as (client, port):
        table = await fill(client, "a.scanned")
        stream = table.scan().stream()
        await anext(stream)

        async def is_stalled() -> Scrape | None:
            found = await scrape(port)
            return found if found.value("scankv_scans_stalled") == 1 else None

        during = await await_until(is_stalled, "a stalled scan in the metrics")
        assert during is not None
        assert during.value("scankv_scans_live") == 1
        assert during.value("scankv_calls_running", method="ScanService/ScanKv") == 1
        assert (during.value("scankv_open_cursors") or 0) >= 1
        assert (during.value("scankv_scan_oldest_iterator_age_seconds") or 0) > 1
        (live,) = await client.live_scans()
        await client.cancel_scan(live.scan_id)
        await stream.aclose()
        other = table.scan().stream()
        await anext(other)
        await other.aclose()

        async def have_ended() -> Scrape | None:
            found = await scrape(port)
            return found if len(found.labels("scankv_scans_total")) == 2 else None

        after = await await_until(have_ended, "both scans ended")
        assert after is not None
        assert after.value("scankv_scans_total", kind="scan", outcome="cancelled") == 1
        assert after.value("scankv_scans_total", kind="scan", outcome="scan_cancelled") == 1


@pytest.mark.asyncio
async def test_consumers_and_retention_holds_are_in_the_metrics(tmp_path: Path) -> None:
    async with serve(tmp_path) as (client, port):
        table = await fill(client, "a.changed", 10)
        stream = table.changes(consumer_id="billing").stream()
        await anext(stream)
        await table.upsert(pa.table({"k": range(5), "v": ["x"] * 5}))
        found = await scrape(port)
        assert found.value("scankv_consumers", table="a.changed") == 1
        assert found.value("scankv_consumers_live", table="a.changed") == 1
        assert (found.value("scankv_consumer_lag_changes", table="a.changed") or 0) >= 5
        assert (found.value("scankv_retention_holds", table="a.changed") or 0) >= 1
        assert (found.value("scankv_retention_held_changes", table="a.changed") or 0) >= 5
        await stream.aclose()


@pytest.mark.asyncio
async def test_tables_beyond_the_limit_share_one_label(tmp_path: Path) -> None:
    async with serve(tmp_path, metrics_max_tables=1) as (client, port):
        for number in range(3):
            await fill(client, f"a.t{number}", 10 * (number + 1))
        found = await scrape(port)
        assert {labels["table"] for labels in found.labels("scankv_table_rows")} == {"a.t0", "other"}
        assert found.value("scankv_table_rows", table="a.t0") == 10
        assert found.value("scankv_table_rows", table="other") == 50


def test_every_metric_of_the_catalogue_is_in_a_scrape(monitored: tuple[ServerProcess, int]) -> None:
    found = Scrape(monitored[1])
    for metric in METRICS.values():
        assert (f"{metric.name}_count" if metric.kind == "histogram" else metric.name) in found.names
    assert (found.value("scankv_event_loop_turn_seconds_count") or 0) > 0
    assert STANDARD_METRICS.keys() <= found.names


def _metrics_in(text: str) -> set[str]:
    return set(re.findall(r"\b(?:scankv|process|python)_[a-z0-9_]+", text))


def test_the_dashboard_shows_only_metrics_that_exist(monitored: tuple[ServerProcess, int]) -> None:
    dashboard = json.loads(MONITORING.joinpath("grafana-dashboard.json").read_text())
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    names = Scrape(monitored[1]).names
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    for panel in panels:
        assert {"title", "gridPos", "datasource", "fieldConfig"} <= panel.keys()
        for target in panel["targets"]:
            found = _metrics_in(target["expr"])
            assert found, target
            assert found <= names, target


def test_the_alerts_watch_only_metrics_that_exist(monitored: tuple[ServerProcess, int]) -> None:
    names = Scrape(monitored[1]).names
    (group,) = yaml.safe_load(MONITORING.joinpath("alerts.yml").read_text())["groups"]
    assert len({rule["alert"] for rule in group["rules"]}) == len(group["rules"])
    for rule in group["rules"]:
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]
        assert rule["expr"].count("(") == rule["expr"].count(")")
        assert _metrics_in(rule["expr"]) <= names, rule


def test_the_port_answers_its_paths_only(monitored: tuple[ServerProcess, int]) -> None:
    port = monitored[1]
    assert ask(port, "/healthz") == Answer(200, b'{"alive": true}\n')
    assert ask(port, "/readyz?verbose").json == {"ready": True}
    assert ask(port, "/healthz", "HEAD") == Answer(200, b"")
    assert ask(port, "/other").status == 404
    assert ask(port, "/metrics", "POST").status == 405
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(b"GET /" + b"x" * 100_000)
        with contextlib.suppress(ConnectionError):
            assert connection.recv(1000) == b""
    assert ask(port, "/healthz").status == 200


def test_a_scrape_port_that_is_taken_is_a_typed_error(tmp_path: Path) -> None:
    async def run() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            config = ServerConfig(data=tmp_path / "data", port=0, metrics_port=taken.getsockname()[1])
            with pytest.raises(PortTaken, match="--metrics-port"):
                async with Server(config):
                    pass

    asyncio.run(run())


@pytest.mark.asyncio
async def test_a_server_that_starts_is_alive_and_not_ready() -> None:
    reason: str | None = "the server is starting"

    async def metrics() -> tuple[str, bytes]:
        raise AssertionError

    endpoint = Endpoint(metrics, lambda: reason)
    port = await endpoint.start("127.0.0.1", 0)
    assert (await asyncio.to_thread(ask, port, "/healthz")).status == 200
    answer = await asyncio.to_thread(ask, port, "/readyz")
    assert (answer.status, answer.json) == (503, {"ready": False, "reason": "the server is starting"})
    reason = None
    assert (await asyncio.to_thread(ask, port, "/readyz")).status == 200
    await endpoint.close()


def test_a_server_that_drains_is_alive_and_not_ready(tmp_path: Path) -> None:
    port = free_port()

    async def make(url: str) -> None:
        async with connect(url) as client:
            await fill(client, "a.drained")

    with ServerProcess(tmp_path / "data", "--metrics-port", str(port)) as server:
        asyncio.run(make(server.url))
        with Wire(server.url) as wire:
            scan = wire.scans.ScanKv(scan_pb2.ScanKvRequest(table="a.drained"), timeout=60)
            next(scan)
            assert ask(port, "/readyz").status == 200
            server.process.send_signal(signal.SIGTERM)
            drained = wait_until(lambda: _answer_if_not_ready(port), "not ready")
            assert drained is not None
            assert drained.json == {"ready": False, "reason": "the server is draining"}
            assert ask(port, "/healthz").status == 200
            assert Scrape(port).value("scankv_ready") == 0
            assert list(scan)[-1].HasField("trailer")
        assert server.process.wait(60) == 0
        assert "Traceback" not in server.log


def _answer_if_not_ready(port: int) -> Answer | None:
    answer = ask(port, "/readyz")
    return answer if answer.status == 503 else None


def _messages(server: ServerProcess) -> list[dict[str, Any]]:
    return [json.loads(line) for line in server.log.splitlines()]


def test_slow_calls_are_logged_as_json_with_their_ids_and_plan(monitored: tuple[ServerProcess, int]) -> None:
    server, _ = monitored

    async def both_scans_are_logged() -> bool:
        methods = [message["method"] for message in _messages(server) if message.get("table") == "a.slow"]
        return methods.count("ScanService/ScanKv") == 2

    async def work() -> None:
        async with connect(server.url) as client:
            table = await fill(client, "a.slow", 100)
            await table.scan(where="v = 'the-secret'").to_arrow()
            await table.count(where="v > 'the-secret' and k > 4711")
            async with table.snapshot() as snapshot:
                await table.scan(where="v = 'the-secret'").as_of(snapshot).to_arrow()
                # The plan is made after the call, from the snapshot.
                await await_until(both_scans_are_logged, "the slow scans in the log")

    asyncio.run(work())
    with Wire(server.url) as wire:
        for given in ("req-1", "not well-formed"):
            metadata = (("x-request-id", given),)
            list(wire.scans.ScanKv(scan_pb2.ScanKvRequest(table="a.slow"), timeout=60, metadata=metadata))
        with pytest.raises(grpc.RpcError):
            list(wire.scans.ScanKv(scan_pb2.ScanKvRequest(table="a.absent"), timeout=60))

    def slow() -> list[dict[str, Any]] | None:
        found = [message for message in _messages(server) if message.get("table", "").startswith("a.")]
        return found if any(message["table"] == "a.absent" for message in found) else None

    found = wait_until(slow, "the slow calls in the log")
    assert found is not None
    scans = [message for message in found if message["method"] == "ScanService/ScanKv" and message["code"] == "OK"]
    assert len(scans) == 4
    assert all(len(message["scan_id"]) == 32 for message in scans)
    live, _, first, second = scans
    assert all("buckets" in scan["plan"] for scan in scans)
    assert "index on v" in live["plan"]
    assert first["request_id"] == "req-1"
    assert re.fullmatch("[0-9a-f]{32}", second["request_id"])
    assert any(message["method"] == "LookupService/Count" and message["plan"] for message in found)
    assert any(message["method"] == "WriteService/Upsert" and not message["plan"] for message in found)
    assert [message["code"] for message in found if message["table"] == "a.absent"] == ["NOT_FOUND"]
    assert all({"time", "level", "logger", "message"} <= message.keys() for message in _messages(server))
    assert "the-secret" not in server.log
    assert "4711" not in server.log
    with sync.connect(server.url) as client:
        listed = client.slow_calls()
    assert len(listed) <= 100
    logged = {message["request_id"]: message for message in found}
    for call in (call for call in listed if call.request_id in logged):
        message = logged.pop(call.request_id)
        assert (call.method, call.table, call.code) == (message["method"], message["table"], message["code"])
        assert call.plan == message["plan"]
        assert abs(call.elapsed - message["seconds"]) < 0.002
    assert logged == {}
    assert [call.age for call in listed] == sorted(call.age for call in listed)
    assert "the-secret" not in repr(listed)
    assert "4711" not in repr(listed)


def test_a_server_remembers_a_bounded_number_of_slow_calls_with_bounded_texts(
    monitored: tuple[ServerProcess, int],
) -> None:
    server, _ = monitored
    long = f"a.{'x' * 20_000}"
    with sync.connect(server.url) as client, Wire(server.url) as wire:
        for _ in range(110):
            client.tables()
        with pytest.raises(grpc.RpcError):
            list(wire.scans.ScanKv(scan_pb2.ScanKvRequest(table=long), timeout=60))
        wait_until(lambda: long[:200] in [call.table for call in client.slow_calls()], "the slow call of the scan")
        assert len(client.slow_calls()) == 100
