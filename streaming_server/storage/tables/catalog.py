"""The table definitions on disk. After a crash, a table is either complete or absent."""

from __future__ import annotations

import logging
import shutil
import uuid
from copy import copy
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from scankv.model.errors import DataLoss, NewerFormat, ScanKvError, TableExists, TableNotFound, did_you_mean
from scankv.model.names import TableName, table_of, tablet_name, tablet_number
from scankv.model.tables.schema import TableDefinition, incarnation_of
from streaming_server.storage.files.checked_json import (
    read_checked_json,
    sync_directories,
    sync_directory,
    write_checked_json,
)
from streaming_server.storage.files.disk_space import translate_disk_errors
from streaming_server.storage.tables.placement import ALONE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from streaming_server.storage.tables.data_directory import DataDirectory
    from streaming_server.storage.tables.placement import Placement

_FILE = "table.json"
_EARLIER: Final = "earlier"

_log: Final = logging.getLogger(__name__)


class Catalog:
    """The definitions of all tables, in memory and on disk. Threads may change different tables at once.

    Every change is durable when its method returns.

    Rule: a damaged table never keeps the server from serving the others. Its users get the reason, and it can be
    dropped.

    Args:
        directory: The data directory.
        placement: Which tables belong to this process. The catalog has no others.

    Attributes:
        has_tablets: Whether a table with tablets has existed since the start.
        versions: By incarnation, all definitions that the file of a table had at the start, oldest first. Lacks tables
            whose current definition does not say when it was changed.
    """

    def __init__(self, directory: DataDirectory, placement: Placement = ALONE) -> None:
        """Reads all definitions. Logs the ones that cannot be read, and marks their tables as unusable."""
        self._directory = directory
        self._placement = placement
        self._tables: dict[str, TableDefinition] = {}
        self._unusable: dict[str, DataLoss] = {}
        self.has_tablets = False
        self.versions: dict[str, list[TableDefinition]] = {}
        for file in sorted(directory.tables.glob(f"*/*/{_FILE}")):
            name = f"{file.parent.parent.name}.{file.parent.name}"
            try:
                *earlier, definition = _read_versions(file)
                self._tables |= self._own_parts(definition)
                if definition.changed_micros and definition.name in self._tables:
                    self.versions[definition.incarnation] = [*earlier, definition]
            except DataLoss as error:
                if placement.owns(name):
                    self.mark_unusable(name, error.message, error)

    def _own_parts(self, definition: TableDefinition) -> dict[str, TableDefinition]:
        """Returns the definitions of a table and its tablets that belong to this process, by name."""
        self.has_tablets |= definition.is_divided
        return {each.name: each for each in definition.parts if self._placement.owns(each.name)}

    def mark_unusable(self, name: str, why: str, error: Exception | None = None) -> None:
        """Makes a table unusable until the server is started again, because it is damaged or has a newer format."""
        self._tables.pop(name, None)
        if isinstance(error, NewerFormat):
            _log.error("table %s cannot be used: %s", name, error.message)
            self._unusable[name] = NewerFormat(f"table {name} cannot be used: {error.message}", table=name)
            return
        _log.error("DATA_LOSS: table %s cannot be used: %s", name, why)
        self._unusable[name] = DataLoss(
            f"table {name} cannot be used: {why}; restore it from a copy and restart the server, or drop the table",
            table=name,
        )

    def is_usable(self, name: str) -> bool:
        """Whether a table can be used, or does not exist. False: it can only be dropped."""
        return name not in self._unusable

    @property
    def unusable(self) -> dict[str, str]:
        """Why tables cannot be used and what to do, by name."""
        return {name: error.message for name, error in self._unusable.items()}

    def __len__(self) -> int:
        return len(self._tables)

    def names(self) -> list[str]:
        """Returns the names of all tables, ascending."""
        return sorted(self._tables)

    def get(self, name: str, is_visible: Callable[[str], bool] | None = None) -> TableDefinition:
        """Returns the definition of a table.

        Args:
            name: The table.
            is_visible: Whether a table may be suggested. None: all may.

        Raises:
            TableNotFound: No table has this name. The message suggests similar names.
            DataLoss: The table cannot be used.
            InvalidRequest: No table can have this name.
        """
        definition = self._tables.get(name)
        if name in self._unusable:
            raise copy(self._unusable[name])
        if definition is None:
            TableName.parse(table_of(name))
            # A worker process does not know the tables of others, so the name that was meant may be missing here.
            known = [each for each in self._tables if tablet_number(each) is None] if self._placement.is_alone else []
            similar = did_you_mean(name, known if is_visible is None else filter(is_visible, known))
            raise TableNotFound(f'table "{name}" does not exist{similar}', table=name)
        return definition

    def find(self, name: str) -> TableDefinition | None:
        """Returns the definition of a table of this process that can be used. None: no such table exists here."""
        return self._tables.get(name)

    def knows(self, name: str) -> bool:
        """Whether this process knows a table or a tablet."""
        return name in self._tables or name in self._unusable

    def is_divided(self, name: str) -> bool:
        """Whether a table of the server has tablets. Blocks briefly.

        Reads the file of another process's table if the file is new. A table that does not exist, or whose file is
        damaged, counts as one without tablets, because its owner reports the error.
        """
        known = self._tables.get(name) or self._tables.get(tablet_name(name, 0))
        if known is not None:
            return known.tablets > 1
        try:
            file = self.path(name) / _FILE
            return _definition_in(file, file.stat().st_mtime_ns).tablets > 1
        except (OSError, ScanKvError):
            return False

    def current(self, name: str) -> TableDefinition:
        """Returns the definition of a table of the server, even if it belongs to another process. Blocks briefly.

        Raises:
            TableNotFound, DataLoss, InvalidRequest: As `get`.
        """
        file = self.path(name) / _FILE
        if self._placement.owns(name) or not file.exists():
            return self.get(name)
        return _definition_in(file, file.stat().st_mtime_ns)

    def path(self, name: str) -> Path:
        """Returns the directory of a table or a tablet. The directory of a table contains its tablets."""
        parsed, tablet = TableName.parse(table_of(name)), tablet_number(name)
        path = self._directory.tables / parsed.database / parsed.table
        return path if tablet is None else path_of_tablet(path, tablet)

    def create(self, definition: TableDefinition) -> None:
        """Adds a table. Raises TableExists, DataLoss when an unusable table has the name, or DiskFull."""
        draft = self.draft(definition)
        with translate_disk_errors(self._directory.path):
            for path in (draft, *(path_of_tablet(draft, each) for each in _tablets_of(definition))):
                (path / "buckets").mkdir(parents=True, exist_ok=True)
        self.place(definition)

    def draft(self, definition: TableDefinition) -> Path:
        """Returns where the directory of a table is made before `place`. After a crash, the next start removes it."""
        return self._directory.draft(definition.incarnation)

    def has(self, name: str, incarnation: str) -> bool:
        """Whether a table has a name and an incarnation, and can be used."""
        return name in self._tables and self._tables[name].incarnation == incarnation

    def has_elsewhere(self, name: str, incarnation: str) -> bool:
        """Whether a table or a tablet of another process has an incarnation. Blocks briefly, like `is_divided`."""
        file = self.path(table_of(name)) / _FILE
        try:
            found = _definition_in(file, file.stat().st_mtime_ns)
            return found.incarnation == incarnation_of(incarnation)
        except FileNotFoundError:
            return False
        except (OSError, ScanKvError):
            return True  # Whether it was dropped is unknown.

    def check_free(self, name: str) -> None:
        """Raises TableExists if a table has a name, or DataLoss if an unusable one has it."""
        assert self._placement.owns(name), "another worker process owns the table"
        if name in self._unusable:
            raise copy(self._unusable[name])
        if name in self._tables:
            raise TableExists(f'table "{name}" exists already', table=name)

    def place(self, definition: TableDefinition, draft: Path | None = None) -> None:
        """Adds the table of a draft, which has everything but the definition. As `create`; removes it on failure.

        The contents of its files are durable; this makes their names durable.

        Args:
            definition: The table.
            draft: Its directory. None: see `draft`.
        """
        draft = draft or self.draft(definition)
        try:
            self.check_free(definition.name)
            if self._mark_of_earlier(definition.name).exists():
                definition = replace(definition, has_predecessor=True)
            with translate_disk_errors(self._directory.path):
                sync_directories(draft)
                write_checked_json(draft / _FILE, definition.to_json())
                path = self.path(definition.name)
                path.parent.mkdir(exist_ok=True)
                sync_directory(self._directory.tables)
                # A start on a failing disk continues without this.
                sync_directory(self._directory.path)
                if path.exists():
                    # A directory without a definition is no table.
                    path.rename(self._directory.trash / f"left-{definition.incarnation}")
                draft.rename(path)
                sync_directory(path.parent)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        self._tables[definition.name] = definition
        self.has_tablets |= definition.is_divided

    def replace(self, definition: TableDefinition, earlier: Sequence[TableDefinition] = ()) -> None:
        """Changes the definition of an existing table.

        Args:
            definition: The new definition.
            earlier: Definitions that the table has had before, which the file keeps, oldest first.
        """
        kept = {_EARLIER: [each.to_json() for each in earlier]} if earlier else {}
        write_checked_json(self.path(definition.name) / _FILE, {**definition.to_json(), **kept})
        self._tables[definition.name] = definition

    def reload(self, name: str) -> tuple[list[TableDefinition], list[TableDefinition]]:
        """Reads the definition of a table that another process has created, altered or dropped.

        Returns:
            The own tablets of the table as they were before, and as they are now.
        """
        file = self.path(name) / _FILE
        known = list(self._tables.values())  # A copy: another thread may add a table.
        before = [each for each in known if each.tablet is not None and table_of(each.name) == name]
        parts = self._own_parts(_read(file)) if file.exists() else {}
        now = [each for each in parts.values() if each.tablet is not None]
        for each in before:
            del self._tables[each.name]
        self._tables |= {each.name: each for each in now}
        return before, now

    def drop(self, name: str) -> Path:
        """Removes a table and moves its directory to the trash. Pass the result to `discard` once nothing uses it."""
        if self.is_usable(name):
            self.get(name)
        path = self.path(name)
        dropped = self._directory.trash / f"dropped-{uuid.uuid4().hex}"
        with translate_disk_errors(self._directory.path):
            self._mark_of_earlier(name).touch(mode=0o600)
            path.rename(dropped)
            # Even if the sync fails, the files are gone from where the table was.
            self._tables.pop(name, None)
            self._unusable.pop(name, None)
            sync_directory(path.parent)
        return dropped

    def _mark_of_earlier(self, name: str) -> Path:
        """Returns the empty file that shows that a table of this name was dropped."""
        path = self.path(name)
        return path.with_name(f"{path.name}.dropped")

    @staticmethod
    def discard(dropped: Path) -> None:
        """Deletes the directory of a dropped table. After a crash, the next start deletes the rest."""
        shutil.rmtree(dropped, ignore_errors=True)


def _tablets_of(definition: TableDefinition) -> range:
    return range(definition.tablets) if definition.tablets > 1 else range(0)


def path_of_tablet(table: Path, number: int) -> Path:
    """Returns the directory of a tablet in that of its table."""
    return table / "tablets" / str(number)


def divide(table: Path, definition: TableDefinition) -> None:
    """Moves the buckets of a draft with the buckets of all tablets to the directories of the tablets.

    Does the rest if a crash has interrupted that.
    """
    for number, tablet in enumerate(definition.all_tablets):
        target = path_of_tablet(table, number) / "buckets"
        target.mkdir(parents=True, exist_ok=True)
        for bucket in tablet.own_buckets:
            for path in (table / "buckets").glob(f"{bucket:04}*"):
                path.rename(target / path.name)


def table_directory(tablet: Path) -> Path:
    """Returns the directory of the table that a tablet is a part of."""
    return tablet.parent.parent


@lru_cache(maxsize=1024)
def _definition_in(file: Path, _changed: int) -> TableDefinition:
    return _read(file)


def _read(file: Path) -> TableDefinition:
    return _read_versions(file)[-1]


def _read_versions(file: Path) -> list[TableDefinition]:
    """Returns the definitions that a file has: earlier ones, and the current one last."""
    content = read_checked_json(file)
    try:
        definition = TableDefinition.from_json(content)
        earlier = [TableDefinition.from_json(each) for each in content.get(_EARLIER, ())]
    except (ValueError, LookupError, TypeError, pa.ArrowException, ScanKvError) as error:
        raise DataLoss(f"the table definition {file} cannot be read: {error}") from error
    if definition.name != f"{file.parent.parent.name}.{file.parent.name}":
        raise DataLoss(f"the table definition {file} defines the table {definition.name}, whose file lies elsewhere")
    return [*earlier, definition]
