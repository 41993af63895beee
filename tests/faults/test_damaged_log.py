"""A bucket with a damaged, truncated or missing write-ahead log is refused or has every acknowledged row."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from aio_client import DataLoss as ClientDataLoss
from aio_client import sync
from scankv.model.errors import DataLoss
from streaming_server.storage.tables.catalog import Catalog
from streaming_server.storage.tables.data_directory import DataDirectory
from tests.support.dying_writer import DEFINITION, write_and_die
from tests.support.offline import bucket_path, check_bucket, opened
from tests.support.prepared import flip
from tests.support.server_process import ServerProcess
from tests.support.tables import SCORES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WRITES = 5

Rows = dict[str, int]


def acknowledged() -> Rows:
    """Returns the rows to which `writes` leads."""
    rows = {f"player {n}": n for n in range(WRITES)}
    return rows | {"again": WRITES - 1}


def writes() -> list[tuple[Any, ...]]:
    """Returns writes to one bucket, each followed by a sync."""
    steps: list[tuple[Any, ...]] = []
    for n in range(WRITES):
        rows = [{"player": f"player {n}", "score": n}, {"player": "again", "score": n}, {"player": "gone", "score": n}]
        steps += [("upsert", rows), ("delete", [{"player": "gone"}]), ("sync",)]
    return steps


@pytest.fixture(scope="module")
def died(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Creates a bucket whose writer died, so that all rows are only in the write-ahead log."""
    path = tmp_path_factory.mktemp("died") / "0000"
    write_and_die(path, *writes())
    assert not list(path.glob("*.sst"))
    return path


def log_of(path: Path) -> Path:
    (log,) = (file for file in path.glob("*.log") if file.stat().st_size)
    return log


def copied(died: Path, to: Path) -> Path:
    """Copies the bucket with its durable watermark, to be damaged."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(died.parent, to)
    return to / died.name


def outcome(path: Path) -> str:
    """Opens a bucket. Returns `refused`, or `whole` if it has all acknowledged rows and its changelog agrees."""
    try:
        with opened(path, DEFINITION) as bucket:
            found = check_bucket(bucket)
    except DataLoss as error:
        return "refused" if "bucket 0000" in error.message else error.message
    rows = dict(zip(found.column("player").to_pylist(), found.column("score").to_pylist(), strict=True))
    rows.pop("gone", None)
    assert rows == acknowledged(), "fewer or older rows without an error"
    return "whole"


def test_an_undamaged_log_has_everything(died: Path, tmp_path: Path) -> None:
    assert outcome(copied(died, tmp_path / "copy")) == "whole"


@pytest.mark.parametrize("step", [49, pytest.param(1, marks=pytest.mark.soak)])
def test_a_flipped_byte_anywhere_in_the_log_loses_nothing_silently(died: Path, tmp_path: Path, step: int) -> None:
    size = log_of(died).stat().st_size
    outcomes = []
    for number, position in enumerate(range(0, size, step)):
        bits = (0x01, 0x80, 0xFF)[number % 3]
        path = copied(died, tmp_path / "copy")
        flip(log_of(path), position, bits)
        try:
            outcomes.append(outcome(path))
        except AssertionError as error:
            error.add_note(f"byte {position} of {size} flipped by {bits:#x}")
            raise
    assert outcomes.count("refused") > 0.9 * len(outcomes)


def test_a_flipped_byte_in_any_record_length_loses_nothing_silently(died: Path, tmp_path: Path) -> None:
    """A record is checksum u32, length u16, type u8 and data. A wrong length hides all records after it."""
    data = log_of(died).read_bytes()
    place, positions = 0, []
    while place + 7 <= len(data) and (length := int.from_bytes(data[place + 4 : place + 6], "little")):
        positions += [place + 4, place + 5, place + 6]
        place += 7 + length
    assert len(positions) >= 3 * WRITES
    for position in positions:
        for bits in (0x01, 0x80):
            path = copied(died, tmp_path / "copy")
            flip(log_of(path), position, bits)
            outcome(path)


@pytest.mark.breadth
def test_a_truncated_log_loses_nothing_silently(died: Path, tmp_path: Path) -> None:
    size = log_of(died).stat().st_size
    for length in [*range(0, size, 199), *range(size - 12, size)]:
        path = copied(died, tmp_path / "copy")
        with log_of(path).open("r+b") as log:
            log.truncate(length)
        assert outcome(path) == "refused", f"cut to {length} of {size} bytes"


def test_zeros_in_place_of_the_log_lose_nothing_silently(died: Path, tmp_path: Path) -> None:
    """A file system may return zeros for blocks that never reached the disk."""
    size = log_of(died).stat().st_size
    for start in range(0, size, 211):
        path = copied(died, tmp_path / "copy")
        log = log_of(path)
        log.write_bytes(log.read_bytes()[:start] + bytes(size - start))
        assert outcome(path) == "refused", f"zeros from {start} of {size} bytes"


def _delete_log(path: Path) -> None:
    log_of(path).unlink()


def _delete_everything(path: Path) -> None:
    shutil.rmtree(path)


def _delete(name: str) -> Callable[[Path], None]:
    def delete(path: Path) -> None:
        for file in path.glob(name):
            file.unlink()

    return delete


LOSSES: dict[str, Callable[[Path], None]] = {
    "the log": _delete_log,
    "the whole bucket": _delete_everything,
    "CURRENT": _delete("CURRENT"),
    "the manifest": _delete("MANIFEST*"),
    "CURRENT and the manifest": lambda path: (_delete("CURRENT")(path), _delete("MANIFEST*")(path)) and None,
}


@pytest.mark.parametrize("loss", LOSSES)
def test_a_missing_file_loses_nothing_silently(died: Path, tmp_path: Path, loss: str) -> None:
    path = copied(died, tmp_path / "copy")
    LOSSES[loss](path)
    assert outcome(path) == "refused"


@pytest.mark.parametrize("name", ["CURRENT", "MANIFEST-*", "OPTIONS-*", "IDENTITY", "rocksdict-config.json"])
def test_a_damaged_or_empty_file_beside_the_log_loses_nothing_silently(died: Path, tmp_path: Path, name: str) -> None:
    (file,) = sorted(died.glob(name))[-1:]
    size = file.stat().st_size
    for position in [*range(0, size, max(size // 8, 1)), None]:
        path = copied(died, tmp_path / "copy")
        if position is None:
            (path / file.name).write_bytes(b"")
        else:
            flip(path / file.name, position)
        outcome(path)


def test_a_missing_or_damaged_durable_watermark_loses_nothing_silently(died: Path, tmp_path: Path) -> None:
    path = copied(died, tmp_path / "copy")
    flip(path.with_suffix(".durable"), 9)
    assert outcome(path) == "refused"
    path = copied(died, tmp_path / "copy")
    path.with_suffix(".durable").unlink()
    outcome(path)


def test_a_server_names_the_bucket_with_the_damaged_log_and_serves_the_others(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with ServerProcess(data) as server, sync.connect(server.url) as client:
        client.create_table("test.logged", SCORES, primary_key=["player"], buckets=3)
        other = client.create_table("test.other", SCORES, primary_key=["player"], buckets=1)
        other.upsert([{"player": "ann", "score": 1}])
        table = client.table("test.logged")
        for n in range(60):
            table.upsert([{"player": f"player {n}", "score": n}])
        rows = [bucket.rows or 0 for bucket in table.stats()]
        server.kill()
    log = log_of(bucket_path(data, "test.logged", 1))
    flip(log, log.stat().st_size // 2)

    with ServerProcess(data) as server, sync.connect(server.url) as client:
        assert client.table("test.other").scan().to_arrow().num_rows == 1
        assert "DATA_LOSS" not in server.log
        table = client.table("test.logged")
        assert table.scan().with_buckets(0, 2).to_arrow().num_rows == rows[0] + rows[2]
        attempts: list[Callable[[], object]] = [
            lambda: table.scan().to_arrow(),
            lambda: table.scan().with_buckets(1).to_arrow(),
            table.count,
            lambda: table.upsert([{"player": f"player {n}", "score": -1} for n in range(60)]),
            lambda: table.lookup([f"player {n}" for n in range(60)]),
            lambda: table.delete([f"player {n}" for n in range(60)]),
        ]
        for attempt in attempts:
            with pytest.raises(ClientDataLoss) as caught:
                attempt()
            assert (caught.value.details["table"], caught.value.details["bucket"]) == ("test.logged", "1")
        assert "DATA_LOSS in bucket 1 of test.logged" in server.log
        assert client.stats().damaged_buckets == ("test.logged/1",)
        statistics = table.stats()
        assert [bool(bucket.damage) for bucket in statistics] == [False, True, False]
        assert (statistics[0].rows, statistics[2].rows) == (rows[0], rows[2])
        assert server.stop() == 0
    with ServerProcess(data) as server, sync.connect(server.url) as client:
        with pytest.raises(ClientDataLoss):
            client.table("test.logged").scan().to_arrow()


def test_a_damaged_definition_keeps_no_other_table_from_being_served(tmp_path: Path) -> None:
    data = tmp_path / "data"
    directory = DataDirectory(data)
    Catalog(directory).create(DEFINITION)
    directory.close()
    file = data / "tables" / "test" / "table" / "table.json"
    flip(file, file.stat().st_size // 2)
    with ServerProcess(data) as server, sync.connect(server.url) as client:
        client.create_table("test.other", DEFINITION.schema.arrow, primary_key=DEFINITION.primary_key)
        with pytest.raises(ClientDataLoss, match=r"table test\.table cannot be used: .*table\.json"):
            client.table("test.table")
        client.drop_table("test.table")
