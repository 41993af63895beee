"""Versions work together: clients and servers of different versions, and upgrades of data directories and back."""

from __future__ import annotations

import asyncio
import sys
import tarfile
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from aio_client import TlsHandshakeFailed, UpgradeNotConfirmed, connect, sync
from scankv.model.errors import InvalidRequest, UsageError
from streaming_server.storage.files.checked_json import write_checked_json
from streaming_server.storage.tables.data_directory import NEWEST_FORMAT, OLDEST_FORMAT, REFUSALS_FORMAT, read_format
from tests.support import common_calls
from tests.support.earlier_version import WHEELS, EarlierServer, run_python, unpack
from tests.support.fixture_data import FIXTURES
from tests.support.forked import run_forked
from tests.support.secured import TokenIssuer
from tests.support.server_process import ServerProcess
from tests.support.tls_server import TlsServer

pytestmark = pytest.mark.timeout(180)  # several processes import everything

COMMON_CALLS = Path(common_calls.__file__)


@pytest.fixture(scope="module", params=WHEELS, ids=[path.parent.name for path in WHEELS])
def earlier(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the directory of the packages of a released version."""
    return unpack(request.param, tmp_path_factory.mktemp("packages"))


@pytest.mark.breadth
def test_an_earlier_client_uses_this_server(earlier: Path, tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        out = run_python(earlier, COMMON_CALLS.read_text(), server.url)
    assert out.strip() == str(earlier / "scankv")


@pytest.mark.breadth
def test_this_client_uses_an_earlier_server(earlier: Path, tmp_path: Path) -> None:
    with EarlierServer(earlier, tmp_path / "data") as server:
        common_calls.use_everything(server.url)
        assert server.stop() == 0


COUNT = """
import sys
from scankv import sync
with sync.connect(sys.argv[1]) as client:
    try:
        client.table("game.scores").count()
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_an_earlier_client_is_refused_for_its_missing_token(earlier: Path, tmp_path: Path) -> None:
    tokens = TokenIssuer(tmp_path / "tokens")
    with ServerProcess(tmp_path / "data", "--tokens", str(tokens.path)) as server:
        said = run_python(earlier, COUNT, server.url)
    assert "the call has no valid token: name a file with one in SCANKV_TOKEN_FILE" in said


def test_an_earlier_client_gets_no_connection_with_tls(earlier: Path, tmp_path: Path) -> None:
    with TlsServer(tmp_path) as server:
        said = run_python(earlier, COUNT, server.process.url)
    assert said.startswith("Unavailable")
    assert "Socket closed" in said


@pytest.mark.breadth
def test_a_token_goes_to_an_earlier_server_on_loopback_only(earlier: Path, tmp_path: Path) -> None:
    with EarlierServer(earlier, tmp_path / "data") as server:
        port = server.url.rpartition(":")[2]
        with sync.connect(server.url, token="skv_0_secret") as client:
            client.create_table("game.scores", common_calls.SCHEMA, primary_key=["id"])
            assert client.table("game.scores").count() == 0
        with pytest.raises(UsageError, match=r"must not be sent to 192\.0\.2\.1") as caught:
            sync.connect(f"scankv://192.0.2.1:{port}", token="skv_0_secret")
        assert "secret" not in str(caught.value)
        with sync.connect(f"scankvs://127.0.0.1:{port}", token="skv_0_secret") as client:
            with pytest.raises(TlsHandshakeFailed, match="it does not use TLS"):
                client.table("game.scores")


@pytest.mark.breadth
def test_a_directory_goes_to_this_version_and_back(earlier: Path, tmp_path: Path) -> None:
    archive = FIXTURES / version_of(earlier) / "data.tar.gz"
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    data = tmp_path / "data"
    before = read_format(data)
    with ServerProcess(data) as server, sync.connect(server.url) as client:
        asyncio.run(write_concurrently(server.url))
        rows = client.table("fixture.plain").count()
    assert read_format(data) == before
    with EarlierServer(earlier, data) as old, sync.connect(old.url) as client:
        plain = client.table("fixture.plain")
        assert plain.count() == rows
        row = plain.get({"id": 5000})
        assert row is not None
        assert row["name"] == "of a shared request"
        plain.upsert([{"id": 6000, "name": "of the earlier version", "score": 1}])
        assert all(bucket.is_consistent for bucket in client.check_table("fixture.plain"))
    with ServerProcess(data) as server, sync.connect(server.url) as client:
        assert client.table("fixture.plain").count() == rows + 1


async def write_concurrently(url: str) -> None:
    """Writes rows in concurrent calls, of which some are refused."""
    async with connect(url) as client:
        plain = await client.table("fixture.plain")
        rows: list[dict[str, object]] = [{"id": 5000 + n, "name": "of a shared request", "score": n} for n in range(30)]
        bad: list[dict[str, object]] = [{"id": None, "name": "no key", "score": 1}] * 3
        results = await asyncio.gather(*(plain.upsert([row]) for row in [*rows, *bad]), return_exceptions=True)
        assert [isinstance(each, InvalidRequest) for each in results] == [False] * 30 + [True] * 3


def version_of(earlier: Path) -> str:
    (metadata,) = earlier.glob("*.dist-info/METADATA")
    return next(line for line in metadata.read_text().splitlines() if line.startswith("Version: ")).split()[1]


@pytest.mark.breadth
def test_a_confirmed_upgrade_keeps_the_earlier_version_out(earlier: Path, tmp_path: Path) -> None:
    with EarlierServer(earlier, tmp_path / "data") as old, sync.connect(old.url) as client:
        client.create_table("fixture.plain", common_calls.SCHEMA, primary_key=["id"])
    shown = upgrade(tmp_path / "data")
    assert f"has format {OLDEST_FORMAT}; this version of ScanKV has format {NEWEST_FORMAT}" in shown
    assert read_format(tmp_path / "data") == OLDEST_FORMAT
    with ServerProcess(tmp_path / "data"):
        with pytest.raises(AssertionError, match="in use by the server"):
            upgrade(tmp_path / "data", "--confirm")
    upgrade(tmp_path / "data", "--confirm")
    assert read_format(tmp_path / "data") == NEWEST_FORMAT
    assert "nothing to confirm" in upgrade(tmp_path / "data", "--confirm")
    with pytest.raises(AssertionError, match=f"has format {NEWEST_FORMAT}"):
        EarlierServer(earlier, tmp_path / "data")
    with ServerProcess(tmp_path / "data") as server:
        asyncio.run(write_concurrently(server.url))


def test_a_server_does_not_start_on_a_newer_directory(tmp_path: Path) -> None:
    write_checked_json(tmp_path / "scankv.json", {"format": NEWEST_FORMAT + 1})
    before = (tmp_path / "scankv.json").read_bytes()
    done = run_forked(sys.executable, "-m", "scankv", "serve", "--data", str(tmp_path), "--port", "0")
    assert done.returncode == 1
    assert b"newer ScanKV" in done.stderr
    assert b"upgrade the server" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["scankv.json"]
    assert (tmp_path / "scankv.json").read_bytes() == before


@pytest.mark.one_process  # Several workers need a later format.
def test_an_earlier_directory_takes_nothing_that_needs_a_later_format(tmp_path: Path) -> None:
    write_checked_json(tmp_path / "scankv.json", {"format": REFUSALS_FORMAT})
    schema = pa.schema([pa.field(name, pa.int64(), nullable=False) for name in ("id", "day")])
    rows = pa.table({"id": [1, 2], "day": [1, 2]}, schema)
    with ServerProcess(tmp_path) as server, sync.connect(server.url) as client:
        create, alter = partial(client.create_table, "t.new", schema), partial(client.alter_table, "t.plain")
        plain = client.create_table("t.plain", schema, primary_key=["id"])
        unlogged = client.create_table("t.unlogged", schema, primary_key=["id"], changelog="none")
        for table in (plain, unlogged):
            table.upsert(rows)
        third = "need format 3 of the data directory, which has format 2"
        for needed, act in (
            (third, lambda: plain.upsert(rows, track_changes=False)),
            (third, lambda: client.bootstrap("t.new", rows, primary_key=["id"])),
            ("scankv upgrade", lambda: create(primary_key=["id"], changelog="input")),
            ("scankv upgrade", lambda: alter(changelog="upsert")),
            ("log_retention_seconds=0", lambda: alter(log_retention_seconds=0)),
            ("tables without a primary key need format 5", lambda: create(primary_key=[])),
            ("tables whose rows expire need format 5", lambda: create(primary_key=["id"], ttl_seconds=60)),
            ("tables whose rows expire need format 5", lambda: alter(ttl_seconds=60)),
            ("partitioned tables need format 5", lambda: create(primary_key=["day", "id"], partition_by=["day"])),
            ("deletes without tracking of changes need format 5", lambda: unlogged.truncate(track_changes=False)),
        ):
            with pytest.raises(UpgradeNotConfirmed, match=needed):
                act()
        assert [table.name for table in client.tables()] == ["t.plain", "t.unlogged"]
        assert (client.table("t.plain").options, plain.count()) == ({}, 2)
        # Key by key, as ranges cannot be stored.
        assert unlogged.delete(where="day = 1").rows == unlogged.truncate().rows == 1


def upgrade(data: Path, *options: str) -> str:
    """Runs `scankv upgrade`. Returns its output. Its failure is an AssertionError."""
    done = run_forked(sys.executable, "-m", "scankv", "upgrade", str(data), *options)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()
