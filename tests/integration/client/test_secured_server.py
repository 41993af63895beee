"""Clients of a server with TLS and tokens: both clients, the command line, DuckDB and Polars."""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb
import polars as pl
import pyarrow as pa
import pytest

from aio_client import (
    DeadlineExceeded,
    Tls,
    TlsHandshakeFailed,
    TokenFile,
    Unauthenticated,
    Unavailable,
    connect,
    sync,
)
from tests.support.certificates import Authority
from tests.support.command_line import CommandLine
from tests.support.tls_server import TlsServer
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SCHEMA = pa.schema([pa.field("player", pa.string(), nullable=False), ("score", pa.int64())])
ROWS = pa.table({"player": ["ann", "bob"], "score": [31, 27]}, SCHEMA)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsServer]:
    """A server with TLS and tokens, and a table of two rows."""
    with TlsServer(tmp_path_factory.mktemp("tls")) as server:
        tls = Tls(ca=server.authority.path)
        with sync.connect(server.url, token=server.root, tls=tls) as client:
            client.create_table("game.scores", SCHEMA, primary_key=["player"]).upsert(ROWS)
        yield server


@pytest.fixture
def tls(server: TlsServer) -> Tls:
    return Tls(ca=server.authority.path)


@pytest.mark.asyncio
async def test_an_asynchronous_client_reads_and_writes(server: TlsServer, tls: Tls) -> None:
    async with connect(server.url, token=server.root, tls=tls) as client:
        await client.wait_ready(30)
        table = await client.table("game.scores")
        await table.upsert(ROWS)
        assert (await table.scan().to_arrow()).sort_by("player") == ROWS
        assert await table.count() == 2
        async with table.snapshot() as snapshot:
            assert (await table.scan().as_of(snapshot).to_arrow()).num_rows == 2


def test_a_blocking_client_and_its_readers_use_the_token(server: TlsServer, tls: Tls) -> None:
    with sync.connect(server.url, token=server.root, tls=tls) as client:
        scan = client.table("game.scores").scan()
        assert scan.to_arrow().sort_by("player") == ROWS
        found = duckdb.sql("select sum(score) from scan")
        assert found is not None
        assert found.fetchall() == [(58,)]
        frame = scan.to_polars(lazy=True)
        assert frame.filter(pl.col("score") > 30).collect()["player"].to_list() == ["ann"]


@pytest.mark.asyncio
async def test_a_lazy_frame_of_the_asynchronous_client_uses_the_token(server: TlsServer, tls: Tls) -> None:
    async with connect(server.url, token=server.root, tls=tls) as client:
        frame = await (await client.table("game.scores")).scan().to_polars(lazy=True)
        assert frame.collect().height == 2


@pytest.mark.asyncio
async def test_a_server_that_is_not_trusted_is_refused(server: TlsServer, tmp_path: Path) -> None:
    for settings in (True, Tls(ca=Authority(tmp_path).path)):
        async with connect(server.url, token=server.root, tls=settings) as client:
            with pytest.raises(TlsHandshakeFailed, match=r"not trusted|handshake failed"):
                await client.tables()
    address = server.url.removeprefix("scankvs://")
    async with connect(address, token=server.root, operation_timeout=0.5) as client:
        with pytest.raises(Unavailable, match="it may require TLS"):
            await client.tables()


@pytest.mark.asyncio
async def test_a_stream_survives_that_its_token_is_replaced(server: TlsServer, tls: Tls, tmp_path: Path) -> None:
    file = tmp_path / "token"
    first, second = server.create_token("read:game.*"), server.create_token("read:game.*")
    file.write_text(first)
    async with (
        connect(server.url, token=server.root, tls=tls) as writer,
        connect(server.url, token=TokenFile(file), tls=tls) as client,
    ):
        written = await writer.create_table("game.followed", SCHEMA, primary_key=["player"], buckets=1)
        await written.upsert(ROWS.slice(0, 1))
        async with (await client.table("game.followed")).changes().stream() as stream:
            assert (await anext(stream))["player"].to_pylist() == ["ann"]
            file.write_text(second)
            server.revoke_token(first)

            async def is_refused() -> bool:
                async with connect(server.url, token=first, tls=tls) as old:
                    try:
                        await old.tables()
                    except Unauthenticated:
                        return True
                    return False

            await await_until(is_refused, "the revoked token is refused")
            await written.upsert(ROWS.slice(1))
            assert (await anext(stream))["player"].to_pylist() == ["bob"]


@pytest.mark.breadth
@pytest.mark.asyncio
async def test_a_server_may_require_client_certificates(tmp_path: Path) -> None:
    with TlsServer(tmp_path, client_certificates=True) as server:
        certificate, key = server.authority.issue("client")
        with_certificate = Tls(ca=server.authority.path, certificate=certificate, key=key)
        async with connect(server.url, token=server.root, tls=with_certificate) as client:
            assert await client.tables() == []
        without = Tls(ca=server.authority.path)
        async with connect(server.url, token=server.root, tls=without, operation_timeout=0.5) as client:
            with pytest.raises(Unavailable, match="or a client certificate"):
                await client.tables()
            with pytest.raises(DeadlineExceeded, match="or a client certificate"):
                await client.wait_ready(3)


@pytest.fixture
def command_line(server: TlsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """The command line, with the profiles `prod` and `anonymous`, and another server in the environment."""
    for name in ("SCANKV_TOKEN", "SCANKV_TOKEN_FILE", "SCANKV_TLS_CA", "SCANKV_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "scankv").mkdir()
    file = tmp_path / "scankv" / "config.toml"
    file.write_text(
        f'[profiles.prod]\nurl = "{server.url}"\ntoken = "{server.root}"\ntls_ca = "{server.authority.path}"\n'
        f'[profiles.anonymous]\nurl = "{server.url}"\ntls_ca = "{server.authority.path}"\n'
    )
    file.chmod(0o600)
    return CommandLine("localhost:1")


def test_commands_connect_with_a_profile(command_line: CommandLine, server: TlsServer) -> None:
    assert command_line("--profile", "prod", "count", "game.scores").text.strip() == "2"
    assert "ann" in command_line("--profile", "prod", "scan", "game.scores").text
    assert "no ScanKV server answers at localhost:1" in command_line.fails("count", "game.scores")
    failed = command_line.fails("--profile", "anonymous", "count", "game.scores")
    assert "token" in failed
    assert server.root not in failed
    assert 'there is no profile "prd"' in command_line.fails("--profile", "prd", "tables")


def test_commands_take_the_profile_of_the_environment(
    server: TlsServer, command_line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCANKV_PROFILE", "prod")
    assert CommandLine(server.url)("count", "game.scores").text.strip() == "2"
    # The profile is for another server than the one in the environment.
    assert "no ScanKV server answers at localhost:1" in command_line.fails("count", "game.scores")
    assert "2" in command_line("count", "game.scores", "--url", server.url).text
