"""Secrets are planted everywhere a client or a server takes them, and searched for in everything that leaves either."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import os
import pickle
import subprocess
import sys
import traceback
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle

from aio_client import (
    Client,
    PermissionDenied,
    ScanKvError,
    StartFrom,
    StopAt,
    Tls,
    TokenEnv,
    TokenFile,
    Unauthenticated,
    UsageError,
    col,
    connect,
    sync,
)
from spark_bridge.options import ReadOptions
from spark_bridge.planning import plan_read
from spark_bridge.source import ScanKvDataSource
from streaming_server.access.token_file import create_token, revoke_tokens
from streaming_server.config import ServerConfig
from streaming_server.monitoring.json_log import JsonFormatter
from streaming_server.server import Server
from tests.support.certificates import Authority
from tests.support.monitoring import ask, free_port
from tests.support.server_process import ServerProcess
from tests.support.tls_server import TlsServer
from tests.support.traces import traced_process
from tests.support.waiting import await_until, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TABLE = "vault.rows"
FORBIDDEN = "vault.forbidden"
SCHEMA = pa.schema([pa.field("k", pa.string(), nullable=False), ("v", pa.string())])
ROW = "a-row-that-nobody-logs"
# Of neither kind of token that the server knows, and of no valid secret.
UNKNOWN = "skv_000000000000_Unkn0wnUnkn0wnUnkn0wnUnkn0wn"
WEB_TOKEN = "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJ3ZWJ0b2tlbiJ9.c2lnbmF0dXJlLXRoYXQtaXMtc2VjcmV0"
NEEDLE_CHARS = 10


class Secrets:
    """What must not appear, not even in part, and where it was searched for."""

    def __init__(self) -> None:
        self._needles: dict[str, str] = {}
        self.searched: list[str] = []

    def add_token(self, token: str) -> str:
        """Adds the secret part of a token. Returns the token."""
        # The secret of a token file's token may have further underscores.
        secret = token.split("_", 2)[2] if token.startswith("skv_") else token.rpartition(".")[2]
        assert len(secret) >= NEEDLE_CHARS
        for place in (0, len(secret) // 2, len(secret) - NEEDLE_CHARS):
            self._needles[secret[place : place + NEEDLE_CHARS]] = token[:8]
        return token

    def add_key(self, pem: bytes) -> None:
        """Adds a private key in PEM: its second line, because all keys of one kind share the first one's beginning."""
        self._needles[pem.decode().splitlines()[2][:NEEDLE_CHARS]] = "private key"

    def search(self, where: str, found: object) -> None:
        """Fails if a secret is in some text, or in bytes, or in the `repr`, `str` and format of an object."""
        if isinstance(found, bytes):
            text = found.decode("latin-1")
        elif isinstance(found, str):
            text = found
        else:
            text = f"{found!r} {found!s} {found}"
        assert text, f"nothing in {where}"
        for needle, secret in self._needles.items():
            assert needle not in text, f"{secret} is in {where}"
        self.searched.append(where)

    def search_error(self, where: str, error: BaseException) -> None:
        """Fails if a secret is in an error, its causes, notes and details, or a pickle of it."""
        self.search(where, "".join(traceback.format_exception(error)))
        self.search(where, f"{error!r} {error!s} {vars(error)}")
        if isinstance(error, ScanKvError):
            self.search(where, pickle.dumps(error))


@pytest.fixture
def secrets() -> Secrets:
    return Secrets()


async def error_of(call: Callable[[], Any]) -> ScanKvError:
    with pytest.raises(ScanKvError) as caught:
        await call()
    return caught.value


async def use_everything(client: Client, secrets: Secrets) -> None:
    """Uses the objects of a client, and searches each."""
    async with AsyncExitStack() as stack:
        table = await client.table(TABLE)
        await table.upsert([{"k": ROW, "v": "x"}])
        where = (col("v") == "x") & (col("k") > "")
        scan = table.scan(where=where)
        snapshot = await stack.enter_async_context(table.snapshot(ttl=60))
        pinned = scan.as_of(snapshot)
        splits = await pinned.splits(2)
        stream = await stack.enter_async_context(pinned.stream())
        rows = [batch async for batch in stream]
        changes = table.changes(StartFrom.EARLIEST, StopAt.LATEST, consumer_id="sweep")
        followed = await stack.enter_async_context(changes.stream())
        rows += [batch async for batch in followed]
        await followed.commit()
        lock = await stack.enter_async_context(table.lock_columns(["v"], owner="sweep", ttl=60))
        await lock.release()
        writer = await stack.enter_async_context(table.writer(id="sweep"))
        await writer.upsert([{"k": "w", "v": "x"}])
        transaction = await stack.enter_async_context(client.transaction(id="sweep:1"))
        await transaction.upsert(table, [{"k": "t", "v": "x"}])
        watch = table.watch_top_n(1, order_by="v")
        top = await anext(watch)
        await watch.aclose()
        objects: dict[str, object] = {
            "client": client,
            "client config": client.config,
            "config as a dictionary": dataclasses.asdict(client.config),
            "table": table,
            "scan": scan,
            "scan spec": scan.spec,
            "explained scan": await scan.explain(),
            "explained pinned scan": await pinned.explain(),
            "snapshot": snapshot,
            "splits": splits,
            "stream": stream,
            "stream of changes": followed,
            "statistics of a stream": stream.stats(),
            "column lock": lock,
            "writer": writer,
            "transaction": transaction,
            "top": top,
            "live scans": await client.live_scans(),
            "snapshots": await client.snapshots(),
            "transactions": await client.transactions(),
            "consumers": await table.consumers(),
            "server statistics": await client.stats(),
            "table statistics": await table.stats(),
            "lazy frame": (await scan.to_polars(lazy=True)).explain(),
        }
        assert rows
    for name, each in objects.items():
        secrets.search(name, each)
    for name, each in (("scan spec", scan.spec), ("splits", [split.spec for split in splits])):
        secrets.search(f"pickle of {name}", pickle.dumps(each))


class SearchesLog(logging.Handler):
    """Keeps every record of every logger of the process, as text and as JSON."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s").format(record)
        self.lines += [text, JsonFormatter().format(record), repr(vars(record))]


@pytest.mark.asyncio
@pytest.mark.timeout(120)
async def test_no_secret_leaves_a_client_or_a_server(
    tmp_path: Path, secrets: Secrets, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, tokens, audit = Authority(tmp_path), tmp_path / "tokens", tmp_path / "audit.log"
    certificate, key = authority.issue("server", "localhost")
    own_certificate, own_key = authority.issue("client")
    secrets.add_key(key.read_bytes())
    secrets.add_key(own_key.read_bytes())

    def create(*grants: str) -> str:
        return secrets.add_token(create_token(tokens, "sweeper", grants, now=datetime.now(UTC))[1])

    root, reader, revoked = create("admin:*"), create(f"read:{TABLE}"), create("admin:*")
    revoke_tokens(tokens, [revoked.split("_")[1]], now=datetime.now(UTC))
    for token in (UNKNOWN, WEB_TOKEN):
        secrets.add_token(token)
    config = ServerConfig(
        data=tmp_path / "data",
        port=0,
        tokens=str(tokens),
        tls_certificate=str(certificate),
        tls_key=str(key),
        tls_client_ca=str(authority.path),
        audit_log=str(audit),
        metrics_port=free_port(),
        slow_request_seconds=1e-6,
    )
    tls = Tls(ca=authority.path, certificate=own_certificate, key=own_key)
    in_memory = Tls(ca=authority.path, certificate=own_certificate.read_bytes(), key=own_key.read_bytes())
    profile = tmp_path / "scankv" / "config.toml"
    profile.parent.mkdir()
    (tmp_path / "root-token").write_text(root)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("SWEPT_TOKEN", root)
    log = SearchesLog()
    logger, level = logging.getLogger(), logging.getLogger().level
    logger.addHandler(log)
    logger.setLevel(logging.DEBUG)
    try:
        with traced_process() as spans:
            async with Server(config) as server:
                url = f"scankvs://localhost:{server.address.rpartition(':')[2]}"
                profile.write_text(
                    f'[profiles.swept]\nurl = "{url}"\ntoken = "{root}"\ntls_ca = "{authority.path}"\n'
                    f'tls_certificate = "{own_certificate}"\ntls_key = "{own_key}"\n'
                )
                profile.chmod(0o600)
                async with connect(url, token=root, tls=tls) as client:
                    for name in (TABLE, FORBIDDEN):
                        await client.create_table(name, SCHEMA, primary_key=["k"], buckets=2, indexes=["v"])

                async def fetch() -> str:
                    return root

                given: dict[str, dict[str, Any]] = {
                    "text": {"token": root, "tls": in_memory},
                    "file": {"token": TokenFile(tmp_path / "root-token"), "tls": tls},
                    "variable": {"token": TokenEnv("SWEPT_TOKEN"), "tls": tls},
                    "function": {"token": fetch, "tls": tls},
                    "profile": {"profile": "swept"},
                }
                for kind, how in given.items():
                    address = None if kind == "profile" else url
                    opener = connect(address, **how)
                    secrets.search(f"connect with a token as {kind}", opener)
                    async with opener as client:
                        await use_everything(client, secrets)
                        secrets.search("token", client.config.token)
                        secrets.search("tls", client.config.tls)
                        search_pickle(secrets, kind, client.config)
                    await asyncio.to_thread(use_blocking_client, secrets, address, how)
                # What Spark pickles and shows.
                options = {"url": url, "token_file": str(tmp_path / "root-token"), "tls_ca": str(authority.path)}
                options |= {"tls_certificate": str(own_certificate), "tls_key": str(own_key), "table": TABLE}
                await asyncio.to_thread(search_spark, secrets, options)
                # Errors.
                for token in (UNKNOWN, WEB_TOKEN, revoked, f"{root}x"):
                    secrets.add_token(token)
                    async with connect(url, token=token, tls=tls) as client:
                        for call in (client.tables, lambda client=client: client.table(TABLE)):
                            error = await error_of(call)
                            assert isinstance(error, Unauthenticated)
                            secrets.search_error("Unauthenticated", error)
                async with connect(url, token=reader, tls=tls) as client:
                    table = await client.table(TABLE)
                    denied: list[Callable[[], Any]] = [client.stats]
                    denied += [lambda: client.table(FORBIDDEN), lambda: table.delete([ROW])]
                    for make in denied:
                        error = await error_of(make)
                        assert isinstance(error, PermissionDenied)
                        secrets.search_error("PermissionDenied", error)
                for wrong in ({"tls": True}, {"tls": Tls(ca=own_certificate)}, {"tls": None}):
                    plain = url.replace("scankvs://", "") if wrong["tls"] is None else url
                    async with connect(plain, token=root, operation_timeout=1, **wrong) as client:
                        secrets.search_error("error of TLS", await error_of(client.tables))
                misuses: list[Any] = [f"{root}\n{root}", TokenFile(own_key), root.encode()]
                for misuse in misuses:
                    with pytest.raises(UsageError) as misused:
                        await connect(url, token=misuse)
                    secrets.search_error("UsageError", misused.value)

                # What the server shows.
                metrics = (await asyncio.to_thread(ask, config.metrics_port, "/metrics")).body

                async def has_calls() -> bool:
                    return "PermissionDenied" in audit.read_text() or "PERMISSION_DENIED" in audit.read_text()

                await await_until(has_calls, "written")
        secrets.search("metrics", metrics)
        assert b"scankv_" in metrics
        secrets.search("spans", spans.text())
        assert "LookupService" in spans.text() or "ScanService" in spans.text()
    finally:
        logger.removeHandler(log)
        logger.setLevel(level)
    text = audit.read_text()
    secrets.search("audit log", text)
    lines = [json.loads(line) for line in text.splitlines()]
    assert {"sweeper", None} <= {line.get("principal") for line in lines}
    for private in (ROW, "writer.tokens", "skv_"):
        assert private not in text
    everything = "\n".join(log.lines)
    secrets.search("log", everything)
    assert "slow call of" in everything
    assert "the token is unknown" in everything
    assert "request_id" in everything
    for file in [*(tmp_path / "data").rglob("*"), tokens]:
        if file.is_file() and file.stat().st_size:
            secrets.search(f"file {file}", file.read_bytes())
    assert len(set(secrets.searched)) > 40


def search_pickle(secrets: Secrets, kind: str, config: object) -> None:
    """Searches the pickle of a configuration. One with a secret by value has none."""
    if kind in ("text", "function"):
        with pytest.raises(UsageError, match="is not pickled") as refused:
            pickle.dumps(config)
        secrets.search_error(f"refusal to pickle a {kind}", refused.value)
    else:
        secrets.search(f"pickle of a config with a {kind}", pickle.dumps(config))


def use_blocking_client(secrets: Secrets, url: str | None, how: dict[str, Any]) -> None:
    with sync.connect(url, **how) as client:
        table = client.table(TABLE)
        objects: Sequence[object] = [client, client.config, table, table.scan(), table.scan().to_polars(lazy=True)]
        with table.scan().stream() as stream, table.snapshot(ttl=60) as snapshot, client.transaction() as transaction:
            for each in (*objects, stream, snapshot, transaction):
                secrets.search(f"blocking {type(each).__name__}", each)


def search_spark(secrets: Secrets, options: dict[str, str]) -> None:
    """Searches what Spark pickles for its workers, and shows in its plans."""
    read = ReadOptions.parse(options)
    source = ScanKvDataSource(options)
    plan = plan_read(read)
    reader = source.reader(plan.schema)
    shipped = {"options": read, "data source": source, "plan": plan, "reader": reader, "parts": reader.partitions()}
    for name, each in shipped.items():
        secrets.search(f"Spark's {name}", each)
        secrets.search(f"pickle of Spark's {name}", cloudpickle.dumps(each))  # type: ignore[no-untyped-call]


def test_no_secret_is_in_the_arguments_or_the_environment_of_a_process(tmp_path: Path, secrets: Secrets) -> None:
    environment = ("env", f"XDG_CONFIG_HOME={tmp_path}")  # Which makes it a process of its own instead of a forked one.
    with TlsServer(tmp_path) as server:
        secrets.add_token(server.root)
        secrets.add_key((tmp_path / "server.key").read_bytes())
        profile, file = tmp_path / "scankv" / "config.toml", tmp_path / "token"
        profile.parent.mkdir()
        file.write_text(server.root)
        profile.write_text(
            f'[profiles.swept]\nurl = "{server.url}"\ntoken = "{server.root}"\ntls_ca = "{server.authority.path}"\n'
        )
        profile.chmod(0o600)
        with sync.connect(server.url, token=server.root, tls=Tls(ca=server.authority.path)) as client:
            client.create_table(TABLE, SCHEMA, primary_key=["k"])
            with (
                ServerProcess(
                    tmp_path / "another", "--tokens", str(tmp_path / "tokens"), wrapper=environment
                ) as another,
                subprocess.Popen(
                    [*environment, sys.executable, "-m", "scankv", "--profile", "swept", "tail", TABLE],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                ) as tail,
            ):
                try:
                    wait_until(client.live_scans, "following")
                    for pid in (another.process.pid, tail.pid):
                        for name in ("cmdline", "environ"):
                            secrets.search(f"{name} of {pid}", read_proc(pid, name))
                    assert "--tokens" in read_proc(another.process.pid, "cmdline")
                    assert "--profile" in read_proc(tail.pid, "cmdline")
                finally:
                    tail.kill()


def read_proc(pid: int, name: str) -> str:
    return Path("/proc", str(pid), name).read_bytes().decode(errors="replace").replace("\0", os.linesep)
