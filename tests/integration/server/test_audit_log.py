"""The audit log of a running server: what has a line, and what no line has."""

from __future__ import annotations

import base64
import json
import os
import uuid
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import InvalidOption, PermissionDenied, Tls, Unauthenticated, col, connect, sync
from streaming_server.services.audit import MAX_UNAUTHENTICATED
from tests.support.monitoring import Scrape, free_port
from tests.support.secured import SecuredServer, TokenCaller, TokenIssuer, code_before_message
from tests.support.server_process import ServerProcess
from tests.support.small_disk import small_disk
from tests.support.tls_server import TlsServer
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aio_client import Client, Table

SCHEMA = pa.schema([pa.field("k", pa.string(), nullable=False), ("v", pa.string())])
DROP = "scankv.v1.TableService/DropTable"
FOLLOW = "scankv.v1.TabletService/FollowTable"
LIST = "scankv.v1.TableService/ListTables"
SECRETS = ("secret-key", "secret-value", "secret-predicate", "secret-staged")


class AuditedServer(SecuredServer):
    """A server with tokens and an audit log."""

    def __init__(self, process: ServerProcess, issuer: TokenIssuer, path: Path) -> None:
        super().__init__(process.url, issuer)
        self.process = process
        self.path = path
        self.read = 0

    def new_lines(self, count: int) -> list[dict[str, Any]]:
        """Returns the next lines of the audit log, once there are as many. Fails if there are more."""
        wait_until(lambda: len(self._lines()) >= self.read + count, "written")
        new = self._lines()[self.read :]
        assert len(new) == count, new
        self.read += count
        return new

    def skip_lines(self) -> None:
        """Lets the next lines begin after a call that is made now."""
        mark = f"mark.{uuid.uuid4().hex}"
        self.root.code(DROP, name=mark)
        wait_until(lambda: mark in self.path.read_text(), "written")
        self.read = len(self._lines())

    def _lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_text().splitlines(keepends=True) if line.endswith("\n")]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AuditedServer]:
    directory = tmp_path_factory.mktemp("audit")
    issuer, path = TokenIssuer(directory / "tokens"), directory / "audit.log"
    arguments = ("--tokens", str(issuer.path), "--audit-log", str(path), "--log-format", "json")
    with (
        ServerProcess(directory / "data", *arguments) as process,
        AuditedServer(process, issuer, path) as server,
    ):
        yield server


@pytest.fixture
def server(running: AuditedServer) -> AuditedServer:
    running.skip_lines()
    return running


async def new_table(client: Client, name: str) -> Table:
    return await client.create_table(name, SCHEMA, primary_key=["k"], buckets=1)


@pytest.mark.asyncio
async def test_changes_have_a_line_with_who_what_and_the_outcome(server: AuditedServer) -> None:
    token = server.issuer.create("admin:audit.*", principal="etl")
    async with connect(server.address, token=token) as client:
        table = await new_table(client, "audit.changes")
        await table.upsert([{"k": "a", "v": "1"}])
        await table.upsert([{"k": str(number), "v": "1"} for number in range(500)])
        await table.delete(["a"])
        async with table.snapshot() as snapshot:
            snapshot_id = snapshot.id
        await table.get("a")
        await table.scan().to_arrow()
        await client.drop_table("audit.changes")
    created, one, many, deleted, pinned, released, dropped = server.new_lines(7)
    for line in (created, one, many, deleted, pinned, released, dropped):
        assert line["time"].endswith("Z")
        assert (line["principal"], line["token_id"]) == ("etl", token.split("_")[1])
        assert line["peer"].startswith(("ipv4:127.0.0.1:", "ipv6:"))
        assert line["tables"] == ["audit.changes"]
        assert (line["code"], line["error"]) == ("OK", None)
        assert 0 < line["seconds"] < 60
        assert line["request_bytes"] > 0
    assert [line["method"] for line in (created, one, many, deleted, pinned, released, dropped)] == [
        "TableService/CreateTable",
        "WriteService/Upsert",
        "WriteService/Upsert",
        "WriteService/Delete",
        "SnapshotService/PinSnapshot",
        "SnapshotService/ReleaseSnapshot",
        "TableService/DropTable",
    ]
    assert [line["rows"] for line in (one, many, deleted)] == [1, 500, 1]
    assert released["resources"] == {"snapshot_id": snapshot_id}


@pytest.mark.asyncio
async def test_the_options_that_a_call_changes_are_in_its_line_also_if_they_are_refused(server: AuditedServer) -> None:
    async with connect(server.address, token=server.issuer.root) as client:
        await new_table(client, "audit.options")
        server.skip_lines()
        await client.alter_table("audit.options", log_retention_bytes=10, columnar_base=None)
        with pytest.raises(InvalidOption):
            await client.alter_table("audit.options", compression="zstd")
    changed, refused = server.new_lines(2)
    assert changed["resources"] == {"options": "columnar_base=default, log_retention_bytes=10"}
    assert (changed["method"], changed["tables"], changed["code"]) == (
        "TableService/AlterTable",
        ["audit.options"],
        "OK",
    )
    assert (refused["resources"], refused["code"]) == ({"options": "compression=zstd"}, "INVALID_ARGUMENT")


def test_a_stream_whose_consumer_is_for_another_principal_has_a_line_and_others_have_none(
    server: AuditedServer,
) -> None:
    with sync.connect(server.address, token=server.issuer.root) as client:
        client.create_table("audit.owners", SCHEMA, primary_key=["k"], buckets=1)
    server.skip_lines()
    scan = "scankv.v1.ScanService/ScanKv"
    for consumer, principal in (("own", ""), ("own", "someone"), ("given", "etl")):
        log: dict[str, Any] = {"consumer_id": consumer, "earliest": {}, "consumer_principal": principal}
        server.root(scan, table="audit.owners", log=log)
    (line,) = server.new_lines(1)
    assert (line["method"], line["tables"]) == ("ScanService/ScanKv", ["audit.owners"])
    assert line["principal"] == "someone"
    assert line["resources"] == {"consumer_id": "given", "principal": "etl"}


@pytest.mark.asyncio
async def test_refused_and_failed_calls_have_a_line(server: AuditedServer) -> None:
    async with connect(server.address, token=server.issuer.root) as client:
        await new_table(client, "audit.refused")
    server.new_lines(1)
    reader = server.issuer.create("read:audit.*", principal="reader")
    async with connect(server.address, token=reader) as client:
        with pytest.raises(PermissionDenied):
            await (await client.table("audit.refused")).upsert([{"k": "a", "v": "b"}])
        with pytest.raises(PermissionDenied):
            await client.table("other.table")
    async with connect(server.address, token=f"{reader}x") as client:
        with pytest.raises(Unauthenticated):
            await client.tables()
    assert server.root.code(DROP, name="audit.none") == "NOT_FOUND"
    # A line is written after its call was answered, so lines of different calls may come in another order.
    lines = {each["method"]: each for each in server.new_lines(4)}
    write, read = lines["WriteService/Upsert"], lines["TableService/GetTable"]
    unknown, failed = lines["TableService/ListTables"], lines["TableService/DropTable"]
    assert (write["principal"], write["method"], write["tables"]) == (
        "reader",
        "WriteService/Upsert",
        ["audit.refused"],
    )
    assert (write["code"], write["error"]) == ("PERMISSION_DENIED", "PERMISSION_DENIED")
    assert (read["method"], read["tables"], read["code"]) == (
        "TableService/GetTable",
        ["other.table"],
        "PERMISSION_DENIED",
    )
    assert (unknown["principal"], unknown["token_id"], unknown["code"]) == (None, None, "UNAUTHENTICATED")
    assert (failed["code"], failed["error"], failed["tables"]) == ("NOT_FOUND", "TABLE_NOT_FOUND", ["audit.none"])


def test_refused_calls_between_processes_of_the_server_have_a_line(server: AuditedServer) -> None:
    root = server.root.metadata
    forged = (("scankv-of-server", "x" * 64),)
    assert code_before_message(server.channel, FOLLOW, forged) == "UNAUTHENTICATED"
    (unknown,) = server.new_lines(1)
    assert code_before_message(server.channel, FOLLOW, root) == "PERMISSION_DENIED"
    (known,) = server.new_lines(1)
    for line, principal in ((unknown, None), (known, "someone")):
        assert (line["method"], line["principal"]) == ("TabletService/FollowTable", principal)
        assert line["peer"].startswith("ipv4:127.0.0.1:")


@pytest.mark.asyncio
async def test_no_line_has_rows_keys_predicates_or_tokens(server: AuditedServer) -> None:
    token = server.issuer.create("admin:*", principal="careful")
    async with connect(server.address, token=token) as client:
        table = await new_table(client, "audit.secrets")
        await table.upsert([{"k": "secret-key", "v": "secret-value"}])
        await table.delete(["secret-key"])
        await table.scan(where=col("v") == "secret-predicate").to_arrow()
        async with await client.transaction() as transaction:
            await transaction.upsert(table, [{"k": "secret-staged", "v": "secret-value"}])
            (opened,) = await client.transactions()
        async with connect(server.address, token=server.issuer.create("read:none.*")) as other:
            with pytest.raises(PermissionDenied):
                await other.table("audit.secrets")
    server.skip_lines()
    text = server.path.read_text() + server.process.log
    assert '"method": "TransactionService/CommitTransaction", "tables": ["audit.secrets"]' in text
    for secret in (*SECRETS, token.split("_", 2)[2], opened.token):
        assert secret not in text
        assert base64.b64encode(secret.encode()).decode().rstrip("=") not in text


@pytest.mark.breadth
def test_a_flood_of_calls_without_a_token_takes_few_lines(server: AuditedServer) -> None:
    caller = TokenCaller(server.channel)
    for _ in range(MAX_UNAUTHENTICATED + 500):
        assert caller.code(LIST) == "UNAUTHENTICATED"
    assert server.root.code(DROP, name="audit.none") == "NOT_FOUND"
    wait_until(lambda: "audit.none" in server.path.read_text().splitlines()[-1], "written")
    # A minute may have ended in between.
    assert len(server.path.read_text().splitlines()) - server.read <= 2 * MAX_UNAUTHENTICATED


def test_lines_follow_a_rotation_and_are_complete_at_the_end(tmp_path: Path) -> None:
    issuer, path = TokenIssuer(tmp_path / "tokens"), tmp_path / "audit.log"
    with ServerProcess(tmp_path / "data", "--tokens", str(issuer.path), "--audit-log", str(path)) as process:
        with SecuredServer(process.url, issuer) as server:
            assert server.root.code(DROP, name="audit.first") == "NOT_FOUND"
            wait_until(lambda: "audit.first" in path.read_text(), "written")
            path.rename(tmp_path / "audit.log.1")
            for number in range(50):
                server.root.code(DROP, name=f"audit.t{number}")
        assert process.stop() == 0
    tables = [json.loads(line)["tables"] for line in path.read_text().splitlines()]
    assert tables == [[f"audit.t{number}"] for number in range(50)]


@pytest.mark.asyncio
async def test_calls_continue_while_the_disk_of_the_audit_log_is_full(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 256 * 1024) as disk:
        path = disk.path / "audit.log"
        with ServerProcess(tmp_path / "data", "--audit-log", str(path)) as process:
            async with connect(process.url) as client:
                with disk.full():
                    table = await new_table(client, "audit.full")
                    for number in range(50):
                        await table.upsert([{"k": str(number), "v": "x"}])
                    wait_until(lambda: "cannot be written: No space left" in process.log, "reported")
                wait_until(lambda: path.read_text().count("WriteService/Upsert") == 50, "written once there is space")
                lines = [json.loads(line) for line in path.read_text().splitlines()]
                # Without tokens, no caller is known by name.
                assert {line["principal"] for line in lines} == {None}


@pytest.mark.asyncio
async def test_a_line_names_the_certificate_of_the_client(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    with TlsServer(tmp_path, "--audit-log", str(path), client_certificates=True) as server:
        certificate, key = server.authority.issue("etl.example")
        tls = Tls(ca=server.authority.path, certificate=certificate, key=key)
        async with connect(server.url, token=server.root, tls=tls) as client:
            await new_table(client, "audit.tls")
        wait_until(lambda: path.read_text(), "written")
    assert json.loads(path.read_text().splitlines()[0])["tls_client"] == "etl.example"


@pytest.mark.one_process
def test_lines_are_counted_once_for_each_output(tmp_path: Path) -> None:
    issuer, port, path = TokenIssuer(tmp_path / "tokens"), free_port(), tmp_path / "audit.log"
    audit = ("--audit-log", str(path), "--set", "audit_output=stdout", "--metrics-port", str(port))
    with ServerProcess(tmp_path / "data", "--tokens", str(issuer.path), *audit) as process:
        with sync.connect(process.url, token=issuer.root) as client:
            client.create_table("audit.counted", SCHEMA, primary_key=["k"])

        def counts() -> list[float | None]:
            written = Scrape(port)
            return [written.value("scankv_audit_lines_total", output=each) for each in ("file", "stdout")]

        wait_until(lambda: counts() == [1, 1], "both lines are counted")
        assert len(path.read_text().splitlines()) == 1
        assert Scrape(port).value("scankv_audit_lines_lost_total", output="stdout") == 0


@pytest.mark.breadth
@pytest.mark.parametrize("workers", ["1", "2"])
def test_reads_have_lines_if_asked_for_also_on_standard_output(tmp_path: Path, workers: str) -> None:
    issuer, path = TokenIssuer(tmp_path / "tokens"), tmp_path / "audit.log"
    reader = issuer.create("read:*", principal="ann")
    settings = {"audit_reads": "true", "audit_output": "stdout", "workers": workers}
    flags = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    arguments = ("--tokens", str(issuer.path), "--audit-log", str(path), *flags)
    with ServerProcess(tmp_path / "data", *arguments) as process:
        with sync.connect(process.url, token=issuer.root) as client:
            table = client.create_table("audit.reads", SCHEMA, primary_key=["k"], buckets=1)
            table.upsert([{"k": "secret-key", "v": "secret-value"}])
        with sync.connect(process.url, token=reader) as client:
            table = client.table("audit.reads")
            table.get("secret-key")
            table.scan(where=col("v") == "secret-predicate").to_arrow()

        def lines() -> list[dict[str, Any]]:
            found = [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
            return [line for line in found if line["principal"] == "ann"]

        wait_until(lambda: {line["method"].partition("/")[0] for line in lines()} >= {"ScanService"}, "written")
        assert process.process.stdout is not None
        with open(os.dup(process.process.stdout.fileno())) as stdout:
            assert process.stop() == 0
            printed = stdout.read().splitlines()
    tables = {line["method"]: line["tables"] for line in lines()}
    assert [each for name, each in tables.items() if name.startswith("ScanService/")] == [["audit.reads"]]
    assert len(tables) >= 3
    assert sorted(printed) == sorted(path.read_text().splitlines())
    assert not any(secret in path.read_text() for secret in SECRETS)
