"""A real server, its model, and the positions that were handed out."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from aio_client.sync import connect
from tests.model.checker.model import KEY, CheckerColumn, CheckerTable, ModelView, Position
from tests.model.checker.passing_time import passing
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Self

    from aio_client.sync import Client, Table

TYPES: Final = {"int": pa.int64(), "text": pa.string(), "float": pa.float64()}
DATABASE: Final = "checker"
_TIMEOUT: Final = 60.0
SLACK_SECONDS: Final = 60
"""Longer than any step takes."""

_SETTINGS: Final = ("--set", "archive_every_seconds=0")


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
    """

    kind: str
    table: int
    name: str
    value: Any
    position: Position = field(default_factory=dict)
    view: ModelView | None = None


@dataclass(frozen=True)
class Backup:
    """What a backup has.

    Attributes:
        id: The id of the backup.
        tables: The models of its tables.
        consumed: What the consumers had committed, by their name in `CheckerWorld.kept`.
    """

    id: str
    tables: dict[str, CheckerTable]
    consumed: dict[str, Position]


class CheckerWorld:
    """A server over a directory of its own, and what it must answer.

    Args:
        directory: An existing directory.

    Attributes:
        tables: The model of each table, by name.
        kept: What clients keep, by a name that steps use.
        backups: The backups, by a name that steps use.
        location: Where they are.
        closing: What to close before the server ends.
        took_effect: The names of the operations that took effect on each table, by its number.
        covered: The pairs of operations that took effect on one table, in this order.
    """

    def __init__(self, directory: Path) -> None:
        self.tables: dict[str, CheckerTable] = {}
        self.kept: dict[str, Kept] = {}
        self.backups: dict[str, Backup] = {}
        self.location = directory / "backups"
        self._ahead = 0
        self._ahead_file = directory / "ahead"
        self.took_effect: dict[int, set[str]] = {}
        self.covered: set[tuple[str, str]] = set()
        self.closing = ExitStack()
        self._directory = directory
        self._numbers = 0

    def __enter__(self) -> Self:
        self.let_pass(0)
        self.server = self._serve(self._directory / "data", 0)
        self.client: Client = connect(self.server.url, operation_timeout=_TIMEOUT)
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.close()
        self.client.close()
        self.server.kill()

    def _serve(self, data: Path, port: int) -> ServerProcess:
        location = ("--backup-location", str(self.location))
        return ServerProcess(data, *_SETTINGS, *location, port=port, wrapper=passing(self._ahead_file))

    def let_pass(self, seconds: int) -> None:
        """Lets time pass for the server."""
        self._ahead += seconds
        # Renamed, so that the server reads all of it.
        written = self._ahead_file.with_suffix(".new")
        written.write_text(str(self._ahead))
        written.rename(self._ahead_file)

    def now(self) -> float:
        """Returns the time of the server, in seconds."""
        return time.monotonic() + self._ahead

    def tick(self) -> None:
        """Removes from the models what has expired by now. Lets some time pass if that is not certain of some row."""
        while True:
            certain = [table.expire(self.now(), SLACK_SECONDS) for table in self.tables.values()]
            if all(certain):
                return
            self.let_pass(SLACK_SECONDS)

    def new_directory(self) -> Path:
        """Returns a path for a data directory that does not exist yet."""
        return self._directory / f"data-{self.next_number()}"

    def serve_again(self, data: Path) -> None:
        """Serves another directory at the address of the server, which has ended."""
        self.server = self._serve(data, int(self.server.url.rpartition(":")[2]))
        self.client.wait_ready()

    def next_number(self) -> int:
        """Returns a number that nothing else in this world has."""
        self._numbers += 1
        return self._numbers

    def table(self, name: str) -> Table:
        """Opens a table."""
        return self.client.table(name)

    def record(self, operation: str, *tables: CheckerTable) -> None:
        """Records that an operation took effect on tables. Without tables, on all."""
        for table in tables or self.tables.values():
            before = self.took_effect.setdefault(table.number, set())
            self.covered |= {(each, operation) for each in before}
            before.add(operation)

    def schema(self, columns: tuple[CheckerColumn, ...]) -> pa.Schema:
        """Returns the Arrow schema of a table with these columns."""
        key = pa.field(KEY, pa.int64(), nullable=False)
        return pa.schema([key, *(pa.field(column.name, TYPES[column.kind]) for column in columns)])

    def check(self, name: str) -> None:
        """Compares all rows of a table with the model."""
        found, expected = by_key(self.table(name).scan().to_pylist()), self.tables[name].view().shown()
        assert found == expected, differences(found, expected)


def by_key(rows: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Returns rows by key, after checking that no key occurs twice."""
    found = {row[KEY]: row for row in rows}
    assert len(found) == len(rows), f"keys occur twice: {[row[KEY] for row in rows]}"
    return found


def differences(found: dict[int, Any], expected: dict[int, Any]) -> str:
    """Returns the keys of which something else was found than expected, and both."""
    keys = [key for key in sorted({*found, *expected}) if found.get(key) != expected.get(key)]
    lines = [f"  key {key}: found {found.get(key)}, expected {expected.get(key)}" for key in keys[:5]]
    return "\n".join([f"{len(keys)} keys differ:", *lines])
