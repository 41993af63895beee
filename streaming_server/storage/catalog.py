"""The table definitions on disk: made, changed and dropped so that a crash leaves a table whole or absent."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pyarrow as pa

from streaming_server.storage.checked_json import read_checked_json, sync_directory, write_checked_json
from table_model.errors import DataLoss, ScanKvError, TableExists, TableNotFound, did_you_mean
from table_model.names import TableName
from table_model.schema import TableDefinition

if TYPE_CHECKING:
    from pathlib import Path

    from streaming_server.storage.data_directory import DataDirectory

_FILE = "table.json"


class Catalog:
    """The definitions of all tables, in memory and on disk. Use it from one thread.

    Every change is durable when its method returns.
    """

    def __init__(self, directory: DataDirectory) -> None:
        """Reads the definitions. Raises DataLoss, naming the file, for one that cannot be read."""
        self._directory = directory
        self._tables: dict[str, TableDefinition] = {}
        for file in sorted(directory.tables.glob(f"*/*/{_FILE}")):
            definition = _read(file)
            self._tables[definition.name] = definition

    def __len__(self) -> int:
        return len(self._tables)

    def names(self) -> list[str]:
        """The names of all tables, ascending."""
        return sorted(self._tables)

    def get(self, name: str) -> TableDefinition:
        """The definition of a table. Raises TableNotFound, naming the near ones, or InvalidRequest for no such name."""
        definition = self._tables.get(name)
        if definition is None:
            TableName.parse(name)
            raise TableNotFound(f'table "{name}" does not exist{did_you_mean(name, self._tables)}', table=name)
        return definition

    def path(self, name: str) -> Path:
        """The directory of a table."""
        parsed = TableName.parse(name)
        return self._directory.tables / parsed.database / parsed.table

    def create(self, definition: TableDefinition) -> None:
        """Adds a table. Raises TableExists."""
        if definition.name in self._tables:
            raise TableExists(f'table "{definition.name}" exists already', table=definition.name)
        draft = self._directory.trash / f"new-{definition.incarnation}"
        (draft / "buckets").mkdir(parents=True)
        write_checked_json(draft / _FILE, definition.to_json())
        path = self.path(definition.name)
        path.parent.mkdir(exist_ok=True)
        sync_directory(self._directory.tables)
        if path.exists():
            # No definition, so no table.
            path.rename(self._directory.trash / f"left-{definition.incarnation}")
        draft.rename(path)
        sync_directory(path.parent)
        self._tables[definition.name] = definition

    def replace(self, definition: TableDefinition) -> None:
        """Changes the definition of a table that exists."""
        write_checked_json(self.path(definition.name) / _FILE, definition.to_json())
        self._tables[definition.name] = definition

    def drop(self, name: str) -> Path:
        """Removes a table; returns its directory, moved away, for `discard` once nothing uses it any more."""
        definition = self.get(name)
        path = self.path(name)
        dropped = self._directory.trash / f"dropped-{definition.incarnation}"
        path.rename(dropped)
        sync_directory(path.parent)
        del self._tables[name]
        return dropped

    @staticmethod
    def discard(dropped: Path) -> None:
        """Deletes the directory of a dropped table. What a crash leaves of it goes at the next start."""
        shutil.rmtree(dropped, ignore_errors=True)


def _read(file: Path) -> TableDefinition:
    content = read_checked_json(file)
    try:
        definition = TableDefinition.from_json(content)
    except (ValueError, LookupError, TypeError, pa.ArrowException, ScanKvError) as error:
        raise DataLoss(f"the table definition {file} cannot be read: {error}") from error
    if definition.name != f"{file.parent.parent.name}.{file.parent.name}":
        raise DataLoss(f"the table definition {file} is of {definition.name}, which belongs elsewhere")
    return definition
