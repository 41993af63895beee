"""A server and its gateway whose console has something to show in every part of every page."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from aio_client import StartFrom, sync
from tests.support.gateway import GatewayProcess
from tests.support.secured import TokenIssuer
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from selenium.webdriver import Chrome

_SCHEMA = pa.schema(
    [pa.field("player", pa.string(), nullable=False), pa.field("score", pa.int64()), pa.field("note", pa.string())]
)
_SETTINGS = ("slow_request_seconds=0.000001", "base_min_rows=1", "base_maintenance_seconds=0.05")


class BusyConsole:
    """A gateway of a server that asks for tokens, with the table `game.scores` and all that is listed.

    Attributes:
        gateway: The gateway.
        client: An admin.
        token: The admin's token.
        base: Where the console is.
        session: Where the pages of the session are that `log_in` has begun.
    """

    def __init__(self, gateway: GatewayProcess, client: sync.Client, token: str) -> None:
        self.gateway = gateway
        self.client = client
        self.token = token
        self.base = f"http://127.0.0.1:{gateway.port}"
        self.session = self.base

    def log_in(self, browser: Chrome) -> None:
        """Logs the admin in."""
        self.session = log_in_browser(browser, self.base, self.token)

    def url(self, path: str) -> str:
        """Returns the address of a page of the session, or of the login."""
        return (self.base if path == "/login" else self.session) + path

    @contextmanager
    def live_scan(self) -> Iterator[sync.ScanStream]:
        """Begins a scan of `game.wide`, which does not end by itself."""
        with self.client.table("game.wide").scan().with_chunk(rows=100).stream() as stream:
            next(stream)
            yield stream


@contextmanager
def open_busy_console(directory: Path) -> Iterator[BusyConsole]:
    """Starts the server and the gateway."""
    issuer = TokenIssuer(directory / "tokens")
    settings: list[str] = [word for each in _SETTINGS for word in ("--set", each)]
    data = directory / "data"
    _leave_a_damaged_table(data)
    with (
        ServerProcess(data, "--tokens", str(issuer.path), *settings) as server,
        sync.connect(server.url, token=issuer.root) as client,
        GatewayProcess(server.url) as gateway,
        ExitStack() as stack,
    ):
        _fill(client, stack)
        yield BusyConsole(gateway, client, issuer.root)


def _leave_a_damaged_table(data: Path) -> None:
    with ServerProcess(data) as server, sync.connect(server.url) as client:
        client.create_table("game.damaged", _SCHEMA, primary_key=["player"])
    (data / "tables" / "game" / "damaged" / "table.json").write_bytes(b"x")


def _fill(client: sync.Client, stack: ExitStack) -> None:
    scores = client.create_table(
        "game.scores", _SCHEMA, primary_key=["player"], buckets=2, indexes=["score"], columnar_base="eager"
    )
    client.alter_table("game.scores", column_comments={"score": "What the player has won."})
    scores.upsert([{"player": f"p{number:02}", "score": number, "note": None} for number in range(50)])
    wait_until(lambda: any(each.bases == 2 for each in client.stats().bases), "columnar bases")
    scores.snapshot(ttl=3600, name="nightly")
    with scores.changes(StartFrom.EARLIEST, consumer_id="job").stream() as stream:
        next(stream)
        stream.commit()
    transaction = client.transaction(id="job:1", ttl=3600)
    stack.callback(transaction.abort)
    transaction.upsert(scores, [{"player": "p00", "score": 1}])
    scores.lock_columns(["note"], owner="job-1", ttl=3600)
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False), ("text", pa.string())])
    rows = pa.table({"k": range(40_000), "text": [f"{number:01000}" for number in range(40_000)]}, schema)
    client.create_table("game.wide", schema, primary_key=["k"], columnar_base="off").upsert(rows)


def log_in_browser(browser: Chrome, base: str, token: str) -> str:
    """Logs in; returns where the pages of the session are, without a slash at the end."""
    browser.get(f"{base}/login")
    browser.find_element(By.ID, "token").send_keys(token, Keys.ENTER)
    wait_until(lambda: browser.title == "Tables - ScanKV", "the login")
    return browser.current_url.rstrip("/")
