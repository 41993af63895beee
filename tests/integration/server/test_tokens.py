"""Tokens of a running server: revoked and expired ones, streams that end, and secrets that appear nowhere."""

from __future__ import annotations

import itertools
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pyarrow as pa
import pytest

from aio_client import sync
from scankv.model.rows.row_values import RowValues
from scankv.v1 import lookup_pb2, scan_pb2
from tests.support import http2
from tests.support.command_line import CommandLine
from tests.support.http2 import Http2Connection, begin_call, send_message
from tests.support.secured import SecuredServer, TokenCaller, TokenIssuer
from tests.support.server_process import ServerProcess
from tests.support.tables import ipc_stream
from tests.support.waiting import wait_until
from tests.support.wire import refusal_of

if TYPE_CHECKING:
    from collections.abc import Iterator

LIST = "scankv.v1.TableService/ListTables"
STATS = "scankv.v1.AdminService/Stats"
SCAN = "scankv.v1.ScanService/ScanKv"
# The file is looked at every second.
NOTICED_SECONDS = 10.0

KEY = pa.schema([pa.field("k", pa.int64(), nullable=False)])


class TokenServer(SecuredServer):
    """A server with its process."""

    def __init__(self, process: ServerProcess, issuer: TokenIssuer) -> None:
        super().__init__(process.url, issuer)
        self.process = process

    def create_table(self) -> str:
        name = f"tokens.t{uuid.uuid4().hex}"
        schema = pa.schema([pa.field("k", pa.int64(), nullable=False)])
        self.root(
            "scankv.v1.TableService/CreateTable",
            name=name,
            arrow_schema=schema.serialize().to_pybytes(),
            primary_key=["k"],
            buckets=1,
        )
        return name


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenServer]:
    directory = tmp_path_factory.mktemp("tokens")
    issuer = TokenIssuer(directory / "tokens")
    with (
        ServerProcess(
            directory / "data", "--tokens", str(issuer.path), "--set", "follow_heartbeat_seconds=0.2"
        ) as process,
        TokenServer(process, issuer) as server,
    ):
        yield server


def follow(caller: TokenCaller, table: str) -> Any:
    """Starts a stream of changes, and returns it after its header."""
    call = caller.stream(SCAN, scan_pb2.ScanKvRequest(table=table, log=scan_pb2.Changelog(latest=scan_pb2.LogLatest())))
    assert next(call).HasField("header")
    return call


def ending_of(call: Any) -> tuple[str, str]:
    """Reads a stream to its end. Returns the reason and the message of its error."""
    with pytest.raises(grpc.RpcError) as caught:
        for _ in call:
            pass
    refused = refusal_of(caught.value)
    return refused.reason, refused.message


def test_a_revoked_token_is_refused_and_its_stream_ends_while_others_continue(server: TokenServer) -> None:
    table = server.create_table()
    token = server.issuer.create("read:tokens.*")
    caller, other = TokenCaller(server.channel, token), server.caller("read:tokens.*")
    stream, kept = follow(caller, table), follow(other, table)
    began = time.monotonic()
    server.issuer.revoke(token)
    reason, message = ending_of(stream)
    assert time.monotonic() - began < NOTICED_SECONDS
    assert reason == "UNAUTHENTICATED"
    assert "revoked" not in message
    assert caller.code(LIST) == "UNAUTHENTICATED"
    assert next(kept).HasField("heartbeat")
    kept.cancel()


@pytest.mark.breadth
def test_a_stream_ends_when_its_token_expires(server: TokenServer) -> None:
    table = server.create_table()
    expires = datetime.now(UTC) + timedelta(seconds=3)
    caller = server.caller("read:tokens.*", expires=expires)
    assert ending_of(follow(caller, table))[0] == "UNAUTHENTICATED"
    assert datetime.now(UTC) >= expires.replace(microsecond=0)
    assert caller.code(LIST) == "UNAUTHENTICATED"


def test_a_stream_ends_when_its_token_no_longer_grants_its_table(server: TokenServer) -> None:
    table = server.create_table()
    caller = server.caller("read:tokens.*", principal="demoted")
    stream = follow(caller, table)
    text = server.issuer.path.read_text().splitlines(keepends=True)
    changed = [line.replace("read:tokens.*", "read:none.*") if "demoted" in line else line for line in text]
    server.issuer.path.write_text("".join(changed))
    reason, message = ending_of(stream)
    assert reason == "PERMISSION_DENIED"
    assert table in message


@pytest.mark.parametrize("scheme", ["bearer ", "BEARER "])
def test_the_scheme_is_known_in_any_case(server: TokenServer, scheme: str) -> None:
    assert TokenCaller(server.channel, server.issuer.root, scheme).code(LIST) == "OK"


@pytest.mark.parametrize("scheme", ["", "Basic ", "Bearer", "Bearer  "])
def test_another_scheme_is_refused(server: TokenServer, scheme: str) -> None:
    assert TokenCaller(server.channel, server.issuer.root, scheme).code(LIST) == "UNAUTHENTICATED"


def test_two_tokens_in_one_call_are_refused(server: TokenServer) -> None:
    caller = TokenCaller(server.channel, server.issuer.root)
    caller.metadata *= 2
    assert caller.code(LIST) == "UNAUTHENTICATED"


def test_no_token_is_in_the_log_or_the_data_directory(server: TokenServer) -> None:
    token = server.issuer.create("read:tokens.*")
    secret = token.split("_", 2)[2]
    for presented in (token, f"{token}x", f"x{token}"):
        TokenCaller(server.channel, presented).code(LIST)
    assert "the token is unknown" in server.process.log
    assert secret not in server.process.log
    for file in Path(server.process.data_dir).rglob("*"):
        if file.is_file():
            assert secret.encode() not in file.read_bytes(), file


def test_the_commands_create_list_and_revoke(server: TokenServer) -> None:
    scankv = CommandLine(server.address)
    file = str(server.issuer.path)
    token = scankv("tokens", "create", "cli", "--tokens", file, "--grant", "read:tokens.*").stdout.decode().strip()
    caller = TokenCaller(server.channel, token)
    assert caller.code(LIST) == "OK"
    listed = scankv("tokens", "list", "--tokens", file).stdout.decode()
    assert token.split("_")[1] in listed
    assert token.split("_", 2)[2] not in listed
    scankv("tokens", "revoke", token.split("_")[1], "--tokens", file)
    wait_until(lambda: caller.code(LIST) == "UNAUTHENTICATED", "refused", timeout=NOTICED_SECONDS)
    said = scankv.fails("tokens", "revoke", token, "--tokens", file)
    assert "has no token with the id" in said
    assert token not in said


def test_a_token_that_is_revoked_while_its_message_arrives_is_refused(server: TokenServer) -> None:
    table, token = server.create_table(), server.issuer.create("write:*")
    caller, metadata = TokenCaller(server.channel, token), {"authorization": f"Bearer {token}"}
    request = lookup_pb2.CountRequest(table=table).SerializeToString()
    with Http2Connection(server.address) as connection:
        count = "/scankv.v1.LookupService/Count"
        connection.send(begin_call(1, count, metadata))
        connection.send(begin_call(3, count, metadata) + send_message(3, request))
        # Then the first call has begun, too.
        assert ends_with(connection, 3, b"0")
        server.issuer.revoke(token)
        wait_until(lambda: caller.code(LIST) == "UNAUTHENTICATED", "revoked", timeout=NOTICED_SECONDS)
        connection.send(send_message(1, request))
        assert ends_with(connection, 1, b"16")


def ends_with(connection: Http2Connection, stream: int, status: bytes) -> bool:
    """Waits for the end of a call, and returns whether it has a status."""
    ends = (each for each in connection.frames() if each.kind == http2.HEADERS and each.flags & http2.END_STREAM)
    payload = next(each.payload for each in ends if each.stream == stream)
    # HPACK sends a name in plain text once, and later its number.
    return bytes([len(status)]) + status in payload


def test_a_query_that_waits_while_its_token_is_revoked_gets_no_answer(server: TokenServer) -> None:
    table, token = server.create_table(), server.issuer.create("read:*")
    caller, query = TokenCaller(server.channel, token), "scankv.v1.LookupService/TopN"
    request = lookup_pb2.TopNRequest(table=table, by="k", n=1)
    request.if_changed_since = caller(query, request).version
    request.wait_millis = 30_000
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(caller.refusal, query, request)
        wait_until(lambda: server.root(STATS).waiting_calls, "waiting")
        server.issuer.revoke(token)
        wait_until(lambda: caller.code(LIST) == "UNAUTHENTICATED", "revoked", timeout=NOTICED_SECONDS)
        write(server.root, table, 1)
        refused = waiting.result()
    assert refused is not None
    assert refused.reason == "UNAUTHENTICATED"


def write(caller: TokenCaller, table: str, *keys: int) -> str:
    """Writes rows with some keys. Returns the reason of the refusal, or nothing."""
    rows = pa.RecordBatch.from_pydict({"k": keys}, schema=KEY)
    refused = caller.refusal("scankv.v1.WriteService/Upsert", table=table, rows=ipc_stream(KEY, rows))
    return "" if refused is None else refused.reason


@pytest.mark.timeout(120)
def test_writes_that_share_a_step_are_authorised_one_by_one(server: TokenServer) -> None:
    """Writes of one row share steps and syncs, even if different callers send them."""
    table, other = server.create_table(), server.create_table()
    definition = server.root("scankv.v1.TableService/GetTable", name=table).table
    revoked = server.issuer.create(f"write:{table}")
    callers = {
        "writes": server.caller(f"write:{table}"),
        "reads": server.caller(f"read:{table}", f"write:{other}"),
        "revoked": TokenCaller(server.channel, revoked),
        "unknown": TokenCaller(server.channel, "skv_0000_unknown"),
    }
    expected = {"writes": {""}, "reads": {"PERMISSION_DENIED"}, "unknown": {"UNAUTHENTICATED"}}
    codec = RowValues(definition.schema_id, [pa.int64()])
    outcomes: dict[str, dict[int, str]] = {name: {} for name in callers}
    number = itertools.count()

    def write_rows(name: str) -> None:
        for _ in range(100):
            k = next(number)
            refused = callers[name].refusal(
                "scankv.v1.WriteService/Upsert",
                table=table,
                encoded_rows=[codec.encode([k])],
                schema_id=definition.schema_id,
                table_incarnation=definition.incarnation,
            )
            outcomes[name][k] = "" if refused is None else refused.reason
            if name == "revoked" and len(outcomes[name]) == 30:
                server.issuer.revoke(revoked)
            if name == "revoked" and len(outcomes[name]) >= 30:
                wait_until(lambda: callers[name].code(LIST) == "UNAUTHENTICATED", "revoked", timeout=NOTICED_SECONDS)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(write_rows, [*callers] * 2))
    for name, reasons in expected.items():
        assert set(outcomes[name].values()) == reasons, name
    assert set(outcomes["revoked"].values()) == {"", "UNAUTHENTICATED"}
    with sync.connect(server.address, token=server.issuer.root) as client:
        found = set(client.table(table).scan().to_arrow()["k"].to_pylist())
    assert found == {k for each in outcomes.values() for k, reason in each.items() if not reason}
