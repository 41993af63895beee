"""A real server, its model, and the positions that were handed out."""

from __future__ import annotations

import atexit
import random
import shutil
import socket
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from aio_client.sync import connect
from streaming_server.storage.backup.backup_store import BackupStore
from tests.model.checker.model import KEY, PART, CheckerColumn, CheckerTable, ModelView, Position, exact
from tests.model.checker.operation import CLOCK_START
from tests.model.checker.pairs import Coverage
from tests.model.checker.passing_time import passing
from tests.support.bases import ALL_THE_TIME
from tests.support.failing_disk import FailingDisk, compile_library
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from aio_client.sync import Client, Table
    from tests.support.recording_disk import RecordingDisk

TYPES: Final = {
    "int": pa.int64(),
    "text": pa.string(),
    "float": pa.float64(),
    "int8": pa.int8(),
    "int32": pa.int32(),
    "float32": pa.float32(),
    "time": pa.timestamp("us", "UTC"),
}
DATABASE: Final = "checker"
_TIMEOUT: Final = 60.0
SLACK_SECONDS: Final = 60
"""Longer than any step takes."""

MOST_WORKERS: Final = 3
_MANY: Final = 5
"""More rows than the server of `passing` takes for few."""

_SETTINGS: Final = ("--set", "archive_every_seconds=0.3", *ALL_THE_TIME)


@dataclass
class Kept:
    """Something that a client keeps, and uses later.

    Attributes:
        kind: What it is.
        table: The number of its table.
        name: The name of its table when it was taken.
        value: What the client keeps.
        position: What a reader that continues from it has seen.
        view: What a reader that uses it sees.
        earlier: The positions before, from which a consumer may continue after a restore.
        is_lost: Whether the position is in changes that were lost.
        taken: Where and when it was taken: see `CheckerWorld.moment`.
    """

    kind: str
    table: int
    name: str
    value: Any
    position: Position = field(default_factory=dict)
    view: ModelView | None = None
    earlier: list[Position] = field(default_factory=list)
    is_lost: bool = False
    taken: tuple[str, float] = ("", 0.0)


@dataclass(frozen=True)
class Backup:
    """What a backup has, or the archive as of an instant.

    Attributes:
        tables: The models of its tables.
        consumers: The consumers, by their name in `CheckerWorld.kept`.
        id: The id of the backup.
        micros: The instant, by the clock of the server.
    """

    tables: dict[str, CheckerTable]
    consumers: dict[str, Kept]
    id: str = ""
    micros: int = 0


class CheckerWorld:
    """A server over a directory of its own, and what it must answer.

    Args:
        directory: An existing directory.

    Attributes:
        tables: The model of each table, by name.
        kept: What clients keep, by a name that steps use.
        backups: The backups and archived instants, by a name that steps use.
        store: Where they are.
        ended_workers: How many faults may each have ended a worker process.
        archives: Whether it is known that the server archives what is written.
        workers: How many processes the server has when it is started again by `serve_again`.
        disk: What records the changes of the data directory. None: nothing does.
        failing_disk: What makes changes of the data directory fail, unless they are recorded.
        closing: What to close before the server ends.
        ahead_file: What the clocks of the server follow: see `passing`.
        coverage: What operations had effects on.
        records: How many operations took effect.
    """

    def __init__(self, directory: Path) -> None:
        self.tables: dict[str, CheckerTable] = {}
        self.kept: dict[str, Kept] = {}
        self.backups: dict[str, Backup] = {}
        self.workers = 1
        self.ended_workers = 0
        self.archives = False
        self.disk: RecordingDisk | None = None
        self._began = time.monotonic()
        self._ahead = 0
        self._wall_ahead = int(CLOCK_START.timestamp() - time.time())
        self.ahead_file = directory / "ahead"
        self.coverage = Coverage()
        self.closing = ExitStack()
        self.failing_disk = FailingDisk(directory, failing_library())
        self.failing_disk.root.mkdir()
        self.store = BackupStore(str(self.failing_disk.root / "backups"))
        self.records = 0
        self._numbers = 0

    def __enter__(self) -> Self:
        self.let_pass(0)
        self.server = self._serve(self.new_directory(), _free_ports())
        self.client: Client = connect(self.server.url, operation_timeout=_TIMEOUT)
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.close()
        self.client.close()
        self.server.kill()

    def _serve(self, data: Path, port: int) -> ServerProcess:
        settings = (*_SETTINGS, "--backup-location", self.store.location, "--workers", str(self.workers))
        wrapper = (self.disk or self.failing_disk).wrapper
        return ServerProcess(data, *settings, port=port, wrapper=(*wrapper, *passing(self.ahead_file)))

    def let_pass(self, seconds: int) -> None:
        """Lets time pass for the server."""
        self._ahead += seconds
        # Renamed, so that the server reads all of it.
        written = self.ahead_file.with_suffix(".new")
        written.write_text(f"{self._ahead} {self._wall_ahead}")
        written.rename(self.ahead_file)

    def jump(self, seconds: int) -> None:
        """Sets the wall clock of the server forward or back."""
        self._wall_ahead += seconds
        self.let_pass(0)

    def now(self) -> float:
        """Returns the time of the server, in seconds since `CLOCK_START`."""
        return time.monotonic() - self._began + self._ahead

    def moment(self) -> tuple[str, float]:
        """Returns where the server keeps its files, and its time. Other workers divide the files again."""
        return f"{self.server.data_dir}, {self.workers}", self.now()

    def tick(self) -> None:
        """Removes from the models what has expired by now. Lets some time pass if that is not certain of some row."""
        while True:
            certain = [table.expire(self.now(), SLACK_SECONDS) for table in self.tables.values()]
            if all(certain):
                return
            self.let_pass(SLACK_SECONDS)

    def new_directory(self) -> Path:
        """Returns a path for a data directory that does not exist yet."""
        return self.failing_disk.root / str(self.next_number())

    def now_micros(self) -> int:
        """Returns the time of the server, in microseconds since 1970 UTC."""
        return time.time_ns() // 1000 + (self._ahead + self._wall_ahead) * 1_000_000

    def serve_again(self, data: Path | None = None) -> None:
        """Serves a directory at the address of the server, which has ended. None: the directory that it had."""
        if data is not None:
            self.archives = False
        self.server = self._serve(data or self.server.data_dir, int(self.server.url.rpartition(":")[2]))
        self.client.wait_ready()

    def next_number(self) -> int:
        """Returns a number that nothing else in this world has."""
        self._numbers += 1
        return self._numbers

    def table(self, name: str) -> Table:
        """Opens a table."""
        return self.client.table(name)

    def record(self, effect: str, *tables: CheckerTable) -> None:
        """Records an effect on tables. Without tables, on all."""
        self.records += 1
        for table in tables or self.tables.values():
            self.coverage.add(effect, table)

    def renumber(self, table: CheckerTable) -> int:
        """Makes a table a new one with the same contents, and returns its number."""
        before, table.number = table.number, self.next_number()
        self.coverage.renumber(before, table)
        return table.number

    def schema(self, columns: tuple[CheckerColumn, ...], key: tuple[str, ...] = (KEY,)) -> pa.Schema:
        """Returns the Arrow schema of a table with these columns."""
        part = [pa.field(PART, pa.string(), nullable=False)] if PART in key else []
        return pa.schema(
            [
                *part,
                pa.field(KEY, pa.int64(), nullable=False),
                *(pa.field(column.name, TYPES[column.kind]) for column in columns),
            ]
        )

    def check(self, name: str) -> None:
        """Compares all rows of a table with the model."""
        found, expected = by_key(self.table(name).scan().to_pylist()), self.tables[name].view().shown()
        compare(found, expected)


@cache
def failing_library() -> Path:
    """Returns the library that makes changes of a server's disk fail. It exists until this process ends."""
    directory = Path(tempfile.mkdtemp(prefix="scankv-failing-"))
    atexit.register(shutil.rmtree, directory)
    return compile_library(directory)


def write_rows(opened: Table, rows: list[dict[str, Any]]) -> None:
    """Upserts rows, or appends them to a table without a key: many as Arrow data, which the server merges by column."""
    names = [name for name in opened.schema.names if name in rows[0]]
    is_arrow = len(rows) >= _MANY and all(row.keys() == {*names} for row in rows)
    schema = pa.schema([opened.schema.field(name) for name in names])
    written: Any = pa.Table.from_pylist(rows, schema) if is_arrow else rows
    (opened.upsert if opened.primary_key else opened.append)(written)


def _free_ports() -> int:
    """Returns a free port before free ones, which workers may get. The system gives them to no other process."""
    while True:
        port = random.randrange(10_000, 30_000)
        with suppress(OSError), ExitStack() as probes:
            for number in range(port, port + MOST_WORKERS + 1):
                probes.enter_context(socket.socket()).bind(("127.0.0.1", number))
            return port


def by_key(rows: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Returns rows by key, after checking that no key occurs twice."""
    found = {row[KEY]: row for row in rows}
    assert len(found) == len(rows), f"keys occur twice: {[row[KEY] for row in rows]}"
    return found


def changes_by_key(rows: list[dict[str, Any]]) -> dict[int, list[tuple[str, dict[str, Any]]]]:
    """Returns changes by key, each as the symbol of its row kind and the row."""
    found = defaultdict[int, list[tuple[str, dict[str, Any]]]](list)
    for row in rows:
        shown = {name: value for name, value in row.items() if not name.startswith("_")}
        found[row[KEY]].append((row["_change_type"], shown))
    return found


def compare(found: Mapping[Any, Any], expected: Mapping[Any, Any]) -> None:
    """Checks that what was found of each key is what was expected."""
    assert exact(dict(found)) == exact(dict(expected)), differences(found, expected)


def differences(found: Mapping[Any, Any], expected: Mapping[Any, Any]) -> str:
    """Returns the keys of which something else was found than expected, and both."""
    keys = [key for key in sorted({*found, *expected}) if exact(found.get(key)) != exact(expected.get(key))]
    lines = [f"  key {key}: found {found.get(key)}, expected {expected.get(key)}" for key in keys[:5]]
    return "\n".join([f"{len(keys)} keys differ:", *lines])
