"""This version reads every data directory of a released version, and one of its own."""

from __future__ import annotations

import shutil
import tarfile
from typing import TYPE_CHECKING

import pytest

from aio_client import StopAt, sync
from tests.support.fixture_data import FIXTURES, Record, make_data, players, read_everything
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.timeout(240)  # of the first test, which makes the data

RELEASED = sorted(FIXTURES.glob("*/data.tar.gz"))


@pytest.fixture(scope="module", params=[None, *RELEASED], ids=["this", *(path.parent.name for path in RELEASED)])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a directory with `data`, which no test changes, and `record`."""
    directory = tmp_path_factory.mktemp("fixture")
    archive: Path | None = request.param
    if archive is None:
        make_data(directory)
    else:
        with tarfile.open(archive) as packed:
            packed.extractall(directory, filter="data")
    return directory


@pytest.fixture
def record(directory: Path, request: pytest.FixtureRequest) -> Record:
    record = Record.load(directory / "record")
    if request.node.callspec.params["directory"] is not None:
        for fact in record.facts.values():
            if isinstance(fact, dict) and "options" in fact:
                # The default of this option was "off" then, and stays the value of these tables.
                fact["options"] = {"columnar_base": "off", **fact["options"]}
    return record


@pytest.fixture
def client(directory: Path, tmp_path: Path) -> Iterator[sync.Client]:
    """Connects to a server on a copy of the data."""
    shutil.copytree(directory / "data", tmp_path / "data")
    with ServerProcess(tmp_path / "data") as server, sync.connect(server.url) as client:
        yield client


def test_everything_that_was_written_is_read(client: sync.Client, record: Record) -> None:
    found = read_everything(client)
    assert found.rows.keys() >= record.rows.keys()
    for name, rows in record.rows.items():
        assert found.rows[name].schema.equals(rows.schema), name
        assert found.rows[name].to_pylist() == rows.to_pylist(), name
    assert {name: found.facts.get(name) for name in record.facts if name != "resume_token"} == {
        name: fact for name, fact in record.facts.items() if name != "resume_token"
    }


def test_every_table_is_whole_and_can_be_written(client: sync.Client) -> None:
    for table in client.tables():
        assert all(bucket.is_consistent for bucket in client.check_table(table.name)), table.name
    plain = client.table("fixture.plain")
    plain.upsert([{"id": 5, "name": "new", "score": 5}])
    assert plain.get({"id": 5}) == {"id": 5, "name": "new", "score": 5}


def test_what_was_under_way_continues(client: sync.Client, record: Record) -> None:
    plain = client.table("fixture.plain")
    (snapshot,) = client.snapshots()
    token = bytes.fromhex(record.facts["resume_token"])
    scan = plain.scan().as_of(snapshot).with_chunk(rows=50)
    rest = players(scan.resume_from(token).to_arrow())
    assert len(rest) == record.rows["plain.snapshot"].num_rows - 50
    assert rest.items() <= players(record.rows["plain.snapshot"]).items()

    consumed = plain.changes(stop=StopAt.LATEST, consumer_id="billing", must_exist=True).to_arrow()
    assert consumed.num_rows == record.facts["consumer"]["lag"]

    assert client.transaction(id="job:1").result is not None
    with plain.writer("loader") as writer:
        assert writer.epoch == 2
