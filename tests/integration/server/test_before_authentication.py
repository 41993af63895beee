"""What callers without a token can take from others: no memory, and few connections for a short time."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pyarrow as pa
import pytest
from grpc_health.v1 import health_pb2

from aio_client import StartFrom, Unavailable, connect, sync
from scankv.model.limits import MESSAGE_BYTES
from scankv.v1 import scan_pb2
from tests.support import http2
from tests.support.flooding_process import KINDS
from tests.support.forked import ForkedProcess
from tests.support.gateway import GatewayProcess, HttpCaller
from tests.support.http2 import Http2Connection, begin_call, frame, send_message
from tests.support.monitoring import free_port
from tests.support.processes import resident_bytes
from tests.support.secured import SecuredServer, TokenCaller, TokenIssuer
from tests.support.server_process import ServerProcess
from tests.support.waiting import await_until, in_time, wait_until
from tests.support.wire import Wire, refusal_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scankv.v1 import admin_pb2

pytestmark = pytest.mark.one_process  # each process has its own connections

CHECK = "/grpc.health.v1.Health/Check"
STATS = "scankv.v1.AdminService/Stats"
LIST = "/scankv.v1.TableService/ListTables"
CONNECTIONS = 60
ROWS = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])
KEYS = pa.schema([pa.field("k", pa.int64(), nullable=False)])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredServer]:
    directory = tmp_path_factory.mktemp("before")
    issuer = TokenIssuer(directory / "tokens")
    settings = [
        argument
        for setting in (
            f"max_connections={CONNECTIONS}",
            "max_unauthenticated_connections=20",
            "request_receive_seconds=2",
        )
        for argument in ("--set", setting)
    ]
    with (
        ServerProcess(directory / "data", "--tokens", str(issuer.path), *settings) as process,
        SecuredServer(process.url, issuer) as server,
    ):
        yield server


def stats(server: SecuredServer) -> admin_pb2.StatsResponse:
    answer: admin_pb2.StatsResponse = server.root(STATS)
    return answer


@pytest.mark.breadth
@pytest.mark.parametrize("has_body", [False, True], ids=["no message", "31 MB"])
def test_health_calls_that_are_late_or_large_end_their_connection_and_claim_no_memory_of_other_calls(
    server: SecuredServer, *, has_body: bool
) -> None:
    claimed = set[int]()
    with ExitStack() as stack:
        connections = [stack.enter_context(Http2Connection(server.address)) for _ in range(8)]
        for connection in connections:
            with suppress(OSError):  # The server may have ended it while it sends.
                connection.send(begin_call(1, CHECK))
                if has_body:
                    connection.send(send_message(1, bytes(31_000_000)))
            claimed.add(stats(server).request_bytes_in_flight)
        for connection in connections:
            list(connection.frames())  # until the server closes it
            claimed.add(stats(server).request_bytes_in_flight)
    assert claimed == {0}
    assert stats(server).refused_requests == 0


def test_a_large_message_of_a_health_call_ends_its_connection_unless_that_has_had_a_token(
    server: SecuredServer,
) -> None:
    files = stats(server).open_files
    large = send_message(3, health_pb2.HealthCheckRequest(service="x" * 60_000).SerializeToString())
    with Http2Connection(server.address) as connection:
        connection.send(begin_call(3, CHECK) + large)
        list(connection.frames())  # until the server closes it
    wait_until(lambda: stats(server).open_files <= files, "descriptors closed")
    channel: Any = server.channel
    with pytest.raises(grpc.RpcError) as refused:
        channel.unary_unary(CHECK)(health_pb2.HealthCheckRequest(service="x" * 60_000).SerializeToString(), timeout=30)
    assert refusal_of(refused.value).reason == "REQUEST_TOO_LARGE"


@pytest.mark.breadth
def test_connections_without_a_token_end_and_others_connect_meanwhile(server: SecuredServer) -> None:
    files = stats(server).open_files
    metadata = dict(server.root.metadata)
    with ExitStack() as stack, Http2Connection(server.address) as known:
        known.send(begin_call(1, LIST, metadata) + send_message(1, b""))
        assert is_answered(known, 1)
        flood = [stack.enter_context(Http2Connection(server.address)) for _ in range(CONNECTIONS + 20)]
        checks_health = stack.enter_context(Http2Connection(server.address))

        def is_ended() -> bool:
            try:
                for number in range(10):
                    checks_health.send(begin_call(2 * number + 1, CHECK) + send_message(2 * number + 1, b""))
            except OSError:
                return True
            return False

        wait_until(partial(connects, server), "another client connected")
        wait_until(is_ended, "the connection with health calls only ended")
        for each in flood:
            list(each.frames())  # until the server closes it
        wait_until(lambda: stats(server).open_files <= files + 2, "descriptors closed")
        known.send(begin_call(3, LIST, metadata) + send_message(3, b""))
        assert is_answered(known, 3)


def test_a_message_that_has_not_arrived_claims_more_once_it_is_larger_than_announced(server: SecuredServer) -> None:
    liar = server.caller("read:*", principal="liar")
    with Http2Connection(server.address) as connection:
        connection.send(frame(http2.SETTINGS, http2.ACK, 0))
        connection.send(begin_call(1, LIST, dict(liar.metadata) | {MESSAGE_BYTES: "70000"}))
        wait_until(lambda: stats(server).request_bytes_in_flight == 70_000, "what is announced claimed")
        connection.send(send_message(1, bytes(60_000), size=31_000_000))
        windows, sent, granted = window_updates(connection, 1), 60_005, 65_536
        while sent < 4_000_000:
            while granted - sent < 16_384:
                granted += next(windows)
            connection.send(frame(http2.DATA, 0, 1, bytes(16_384)))
            sent += 16_384
        wait_until(lambda: stats(server).request_bytes_in_flight > 32 << 20, "the largest message claimed")
    wait_until(lambda: stats(server).request_bytes_in_flight == 0, "no memory claimed")
    assert liar.code("scankv.v1.TableService/ListTables") == "OK"


def window_updates(connection: Http2Connection, stream: int) -> Iterator[int]:
    """Yields by how many bytes the server widens the window of a stream."""
    for each in connection.frames():
        if each.kind == http2.WINDOW_UPDATE and each.stream == stream:
            yield int.from_bytes(each.payload, "big")


@pytest.mark.breadth
def test_a_caller_at_its_limit_keeps_its_connection(server: SecuredServer) -> None:
    limited = server.caller("read:*", principal="limited", limits={"requests_per_second": 1})
    wait_until(lambda: limited.refusal("scankv.v1.TableService/ListTables"), "the caller is at its limit")
    metadata = dict(limited.metadata)
    with Http2Connection(server.address) as known, Http2Connection(server.address) as silent:
        known.send(begin_call(1, LIST, metadata) + send_message(1, b""))
        assert any(each.stream == 1 for each in known.frames())
        list(silent.frames())  # until the server closes it
        known.send(begin_call(3, LIST, metadata) + send_message(3, b""))
        assert any(each.stream == 3 for each in known.frames())


@pytest.mark.parametrize("has_token", [False, True], ids=["no token", "token"])
def test_each_of_many_small_calls_is_refused_and_holds_nothing(server: SecuredServer, *, has_token: bool) -> None:
    limited = server.issuer.create("read:*", principal="many", limits={"requests_per_second": 1})
    caller = TokenCaller(server.channel, limited if has_token else None)
    before, began = stats(server), time.monotonic()
    with ThreadPoolExecutor(8) as threads:
        codes = Counter(threads.map(lambda _: caller.code("scankv.v1.TableService/ListTables"), range(400)))
    allowed = 2 + time.monotonic() - began if has_token else 0
    assert codes.pop("OK", 0) <= allowed
    assert list(codes) == ["RESOURCE_EXHAUSTED" if has_token else "UNAUTHENTICATED"]
    after = stats(server)
    assert after.request_bytes_in_flight == 0
    assert after.open_files <= before.open_files + 2


@pytest.mark.breadth
def test_each_of_many_small_requests_without_a_token_is_refused_and_holds_nothing(server: SecuredServer) -> None:
    with GatewayProcess(server.address) as gateway:
        caller = HttpCaller(gateway.port)
        assert caller.get("/v1/tables").status == 401
        before, files = open_files(gateway.process.pid), stats(server).open_files
        with ThreadPoolExecutor(8) as threads:
            statuses = Counter(threads.map(lambda _: caller.get("/v1/tables").status, range(200)))
        assert statuses == {401: 200}
        wait_until(lambda: open_files(gateway.process.pid) <= before + 2, "descriptors of the gateway closed")
        wait_until(lambda: stats(server).open_files <= files + 2, "descriptors closed")
        assert stats(server).request_bytes_in_flight == 0


@pytest.mark.soak  # How often a client connects depends on the processor time that the flood leaves.
def test_clients_connect_while_one_address_opens_its_connections_again_at_once(tmp_path: Path) -> None:
    issuer = TokenIssuer(tmp_path / "tokens")
    settings = ("--tokens", str(issuer.path), "--set", "max_connections=200")
    with (
        ServerProcess(tmp_path / "data", *settings) as process,
        SecuredServer(process.url, issuer) as server,
        ForkedProcess[bytes](
            (sys.executable, "-m", "tests.support.flooding_process", "reopened connections", process.url, "")
        ) as attacker,
    ):
        try:
            files = stats(server).open_files  # over a connection that has had a call from now on
            wait_until(lambda: stats(server).open_files > files + 150, "the flood took the connections")
            tries = list[bool]()

            def is_decided() -> bool:
                tries.append(connects_at_once(server))
                return sum(tries) == 8 or len(tries) == 100

            wait_until(is_decided, "8 clients connected, or 92 did not")
            assert sum(tries) == 8
        finally:
            attacker.kill()


@pytest.mark.breadth
@pytest.mark.asyncio
async def test_a_stream_continues_over_another_connection_once_its_connection_is_too_old(tmp_path: Path) -> None:
    settings = ("--set", "max_connection_age_seconds=4", "--set", "follow_heartbeat_seconds=0.2")
    with ServerProcess(tmp_path / "data", *settings) as server, Wire(server.url) as wire:
        async with connect(server.url) as client, connect(server.url) as observer:
            table = await client.create_table("before.aged", KEYS, primary_key=["k"], buckets=1)
            stream = table.changes(StartFrom.LATEST).stream()
            first = asyncio.create_task(first_rows(stream))

            async def connections() -> set[str]:
                return {each.peer for each in await observer.live_scans()}

            await await_until(connections, "the stream opened")
            (before,) = await connections()
            request = scan_pb2.ScanKvRequest(table=table.name, log=scan_pb2.Changelog(latest=scan_pb2.LogLatest()))
            with pytest.raises(grpc.RpcError) as ended:
                await asyncio.to_thread(list, wire.scans.ScanKv(request, timeout=60))
            assert (refusal_of(ended.value).reason, refusal_of(ended.value).retry_after) == ("UNAVAILABLE", 0.1)

            async def is_resumed() -> bool:
                return not await connections() & {before, ""}

            await await_until(is_resumed, "the stream ended")
            await await_until(connections, "the stream continued over another connection")
            await table.upsert([{"k": 7}])
            assert await first == [7]
            await stream.aclose()


async def first_rows(stream: Any) -> list[int]:
    """Returns the keys of the first rows of a stream of changes."""
    async for rows in stream:
        if rows.num_rows:
            keys: list[int] = rows.column("k").to_pylist()
            return keys
    raise AssertionError("the stream has ended")


@pytest.mark.soak
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("kind", "has_token"),
    # With a token, connections are not ended, so none is opened again.
    [
        (kind, has_token)
        for kind in KINDS
        for has_token in (False, True)
        if not has_token or kind != "reopened connections"
    ],
)
def test_a_flood_leaves_others_their_speed_and_the_server_its_memory(
    tmp_path: Path, kind: str, has_token: bool
) -> None:
    issuer = TokenIssuer(tmp_path / "tokens")
    # Callers with a token are kept in their limits, which an operator sets.
    limits = {"requests_per_second": 100, "bytes_per_second": 10_000_000}
    token = issuer.create("read:*", principal="attacker", limits=limits) if has_token else ""
    # An operator who lets callers have connections with a token leaves some to others.
    most = 400 if has_token else 200
    settings = ("--tokens", str(issuer.path), "--set", f"max_connections={most}", "--set", "request_receive_seconds=5")
    http_port = free_port()
    with (
        ServerProcess(tmp_path / "data", *settings, "--http-port", str(http_port)) as server,
        sync.connect(server.url, token=issuer.root) as client,
    ):
        table = client.create_table("before.flood", ROWS, primary_key=["k"])
        rows = pa.table({"k": range(10_000), "v": ["x" * 50] * 10_000}, schema=ROWS)
        write_seconds(table, rows)
        idle, files, pid = p99_seconds(table), client.stats().open_files, server.process.pid
        wait_until(partial(answers_http, http_port, issuer.root), "the gateway answers")
        gateway = gateway_of(pid)
        memory, gateway_memory, gateway_files = resident_bytes(pid), resident_bytes(gateway), open_files(gateway)
        address = f"127.0.0.1:{http_port}" if kind.startswith("http") else server.url
        command = (sys.executable, "-m", "tests.support.flooding_process", kind, address, token)
        with ForkedProcess[bytes](command) as attacker:
            try:
                refused = calls_of(client)
                if kind.startswith("http"):
                    wait_until(lambda: open_files(gateway) > gateway_files, "the flood began")
                elif "connections" not in kind:
                    wait_until(lambda: calls_of(client) > refused, "the flood began")
                # Each has several tries, since the machine may be busy with something else. Below 20 ms, what counts
                # is when the operating system gives the server a processor, which attacker and client use, too.
                in_time(lambda: p99_seconds(table), max(5 * idle, 0.02), tries=5)
                in_time(lambda: write_seconds(table, rows), 3.0, tries=5)
            finally:
                attacker.kill()
        wait_until(lambda: client.stats().open_files <= files + 5, "descriptors closed")
        wait_until(lambda: client.stats().request_bytes_in_flight == 0, "no memory claimed")
        wait_until(lambda: open_files(gateway) <= gateway_files + 5, "descriptors of the gateway closed")
        wait_until(lambda: resident_bytes(pid) < memory + (200 << 20), "memory returned")
        wait_until(lambda: resident_bytes(gateway) < gateway_memory + (100 << 20), "memory of the gateway returned")
        assert "Traceback" not in server.log


def answers_http(port: int, token: str) -> bool:
    """Whether the gateway answers a call of the server."""
    with suppress(OSError):
        return HttpCaller(port, token).get("/v1/tables").status == 200
    return False


def gateway_of(pid: int) -> int:
    """Returns the process of a server's gateway."""
    started = [each for task in Path(f"/proc/{pid}/task").iterdir() for each in (task / "children").read_text().split()]
    (gateway,) = [int(each) for each in started if b"http_gateway" in Path(f"/proc/{each}/cmdline").read_bytes()]
    return gateway


def open_files(pid: int) -> int:
    """Returns how many files a process has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def p99_seconds(table: sync.Table) -> float:
    """Looks rows up for two seconds, and returns how long the slowest hundredth takes at least."""
    seconds, ends = list[float](), time.perf_counter() + 2
    while (began := time.perf_counter()) < ends:
        assert table.get(7) is not None
        seconds.append(time.perf_counter() - began)
    return sorted(seconds)[len(seconds) * 99 // 100]


def write_seconds(table: sync.Table, rows: pa.Table) -> float:
    """Writes 600 kB, and returns how long it took."""
    began = time.perf_counter()
    table.upsert(rows)
    return time.perf_counter() - began


def calls_of(client: sync.Client) -> int:
    """Returns how many calls have begun, also of health, without those of this client."""
    text = client.metrics()
    names = ("Health/", "FindOffsets", "ListTables", "Count")
    samples = [
        line for line in text.splitlines() if line.startswith("scankv_calls_running{") or "_seconds_count{" in line
    ]
    return sum(int(float(line.rpartition(" ")[2])) for line in samples if any(name in line for name in names))


def connects(server: SecuredServer) -> bool:
    """Whether a new client can make a call."""
    with sync.connect(server.address, token=server.issuer.root) as client, suppress(Unavailable):
        return client.tables() == []
    return False


def connects_at_once(server: SecuredServer) -> bool:
    """Whether a new connection gets an answer without another try."""
    with suppress(OSError), Http2Connection(server.address) as connection:
        connection.send(begin_call(1, LIST, dict(server.root.metadata)) + send_message(1, b""))
        return is_answered(connection, 1)
    return False


def is_answered(connection: Http2Connection, stream: int) -> bool:
    """Reads until a call has an answer. Returns False if the server closes the connection before."""
    return any(each.kind == http2.DATA and each.stream == stream for each in connection.frames())
