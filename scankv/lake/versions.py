"""Finds the version of a published table to read: the latest one, or that of an instant."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Final

from scankv.lake.formats import find_lake_table
from scankv.model.errors import LakeDamaged, LakeUnavailable, LakeVersionNotFound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scankv.lake.lake_table import LakeTable, LakeVersion

_MOST_SEARCHES: Final = 10


def open_version(uri: str, table: str, as_of: datetime | int | None = None) -> tuple[LakeTable, LakeVersion]:
    """Opens a version of a published table, to be read as rows of the table.

    Args:
        uri: Where the table is published, in any format.
        table: The table, as `database.table`.
        as_of: As for `find_version`. None: the latest version, whose files are not looked for.

    Raises:
        LakeVersionNotFound: No such version exists, or some of its files were deleted.
        LakeDamaged: Another table was published there, or the version cannot be read.
        LakeUnavailable: The location does not answer.
        UsageError: The location cannot be used.
    """
    lake = find_lake_table(uri)
    version = lake.load() if as_of is None else find_version(lake, as_of)
    if version is None:
        raise _nothing_published(lake)
    if version.state.table != table:
        raise LakeDamaged(
            f"{lake.location} was published from table {version.state.table}, not from {table}: give the location of "
            f"{table}"
        )
    if version.state.content != "rows":
        raise LakeDamaged(
            f"{lake.location} has the changes of table {table}, not its rows: give the location of its rows"
        )
    if version.foreign:
        raise LakeDamaged(
            f"another program has changed the files in {lake.location}: publish again, which writes all rows"
        )
    if any(column.id < 1 for columns in version.state.schemas.values() for column in columns):
        raise LakeDamaged(
            f"the table had no changelog when version {version.version:,} in {lake.location} was published, so which "
            'columns the version has is not known: set the option "changelog", and publish again'
        )
    return lake, version


def find_version(lake: LakeTable, as_of: datetime | int) -> LakeVersion:
    """Returns a version whose files all exist.

    The instants of versions grow with their numbers, as long as the clock of the server is not set back. So a few of
    them are read, however many versions exist. Versions that other programs have made are passed over.

    Args:
        lake: The published table.
        as_of: The number of the version, or a time: the last version whose instant is not after it.

    Raises:
        LakeVersionNotFound: No such version exists, or some of its files were deleted.
        LakeDamaged: The version cannot be read.
        LakeUnavailable: The location does not answer, or versions expire as fast as they are read.
    """
    for _ in range(_MOST_SEARCHES):
        versions = _Versions(lake)
        try:
            return versions.find(as_of)
        except LakeDamaged:
            # A version that has expired during the search is no damage: it is searched for among the others.
            if set(versions.numbers) <= set(lake.versions()):
                raise
    raise LakeUnavailable(
        f"the versions in {lake.location} expire while they are read: publish with a longer --keep-for"
    )


@dataclass(frozen=True)
class _Versions:
    """The versions of a published table."""

    lake: LakeTable

    def find(self, as_of: datetime | int) -> LakeVersion:
        """See `find_version`."""
        if not self.numbers:
            raise _nothing_published(self.lake)
        if isinstance(as_of, datetime):
            later = bisect_right(range(len(self.numbers)), as_of, key=self._time_at)
            own = self._own_before(later - 1)
            if own is None:
                raise self._not_found(f"no version is as old as {_text(as_of)}")
            number = self.numbers[own]
        else:
            number = as_of
            if number not in self.numbers:
                raise self._not_found(f"no version {number:,} exists")
        version = self.lake.load_version(number)
        if not self._has_files(version):
            raise self._not_found(f"version {number:,} has expired: some of its files were deleted")
        return version

    @cached_property
    def numbers(self) -> Sequence[int]:
        """The numbers of all versions, ascending."""
        return self.lake.versions()

    def _own_before(self, place: int) -> int | None:
        """Returns the place of the last version until `place` that ScanKV has made. None: no version is that old."""
        while place >= 0:
            if self.lake.view_time(self.numbers[place]) is not None:
                return place
            place -= 1
        return None

    def _time_at(self, place: int) -> datetime:
        """Returns the instant of a version; of one that another program has made, that of our version before it."""
        own = self._own_before(place)
        text = None if own is None else self.lake.view_time(self.numbers[own])
        return datetime.min.replace(tzinfo=UTC) if text is None else datetime.fromisoformat(text)

    def _has_files(self, version: LakeVersion) -> bool:
        needed = {path for file in version.files for path in self.lake.paths_of(file)}
        directories = {path.rpartition("/")[0] for path in needed}
        return needed <= {stored.path for each in directories for stored in self.lake.location.list(each)}

    def _not_found(self, what: str) -> LakeVersionNotFound:
        """Returns the error, which names the versions that can be read: all after those whose files were deleted."""
        here = f"{what} in {self.lake.location}"
        first = bisect_left(self.numbers, 1, key=lambda number: self._has_files(self.lake.load_version(number)))
        if first == len(self.numbers):
            return LakeVersionNotFound(f"{here}, and no other version can be read: publish with --full")
        oldest, newest = _text(self._time_at(first)), _text(self._time_at(len(self.numbers) - 1))
        return LakeVersionNotFound(
            f"{here}: choose one from version {self.numbers[first]:,}, as of {oldest}, to version "
            f"{self.numbers[-1]:,}, as of {newest}",
            oldest=oldest,
            newest=newest,
        )


def _nothing_published(lake: LakeTable) -> LakeVersionNotFound:
    return LakeVersionNotFound(
        f"nothing was published in {lake.location}: give the location to which scankv publish writes the table"
    )


def _text(time: datetime) -> str:
    return time.astimezone(UTC).isoformat()
