"""What a published table is, and the interface that each open format implements."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Self, TypeAlias

from scankv.lake.utf8_json import utf8_json
from scankv.model.changes.log_offsets import LogOffsets
from scankv.model.errors import LakeDamaged, ScanKvError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa
    from pyarrow import parquet
    from pyroaring import BitMap

    from scankv.lake.location import LakeLocation

_PREFIX: Final = "scankv."
VIEW_TIME: Final = _PREFIX + "view_time"
"""The property with the instant of a version."""

Content: TypeAlias = Literal["rows", "changes"]
"""What a published table shows: the rows of a table, or its changes with their row kinds and log offsets."""

FIELD_ID: Final = b"PARQUET:field_id"
"""The metadata of a field with its id, which pyarrow stores in Parquet files."""

FORMAT_VERSION: Final = "1"
"""The form of the properties and tags. A reader refuses others."""


@dataclass(frozen=True, slots=True)
class LakeColumn:
    """A column of a published table. Immutable.

    Attributes:
        id: Its permanent id: a column that is renamed keeps it, and no other column gets it.
        name: Its name.
        type: The type that the data files have, as Arrow prints it.
    """

    id: int
    name: str
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A Parquet file with rows of one bucket, in ascending order of their encoded keys. Immutable.

    Attributes:
        path: The file, relative to the location of the table.
        bucket: The bucket.
        rows: How many rows the file contains, masked ones too.
        size_bytes: Its size.
        first_key: The encoded key of the first row. In a table without a primary key: the log offset of the row, as
            eight bytes, big-endian.
        last_key: The encoded key of the last row.
        schema_id: The schema version of the table when the file was written.
        partition_id: Identifies the partition of the rows. Empty: the table is not partitioned.
        masked_rows: How many of the rows do not belong to the table any more, although the file contains them.
        partition: The values of the partition columns as Python values, in their order. Only of a file that was just
            written.
        footer: What Parquet knows about the columns. Only of a file that was just written.
        nan_columns: The float columns that contain NaN, which the statistics in `footer` leave out.
        stored: What the format stores about the file. Only of a file that was loaded; opaque.
    """

    path: str
    bucket: int
    rows: int
    size_bytes: int
    first_key: bytes
    last_key: bytes
    schema_id: int
    partition_id: str = ""
    masked_rows: int = 0
    partition: tuple[object, ...] = field(default=(), compare=False)
    footer: parquet.FileMetaData | None = field(default=None, compare=False, repr=False)
    nan_columns: frozenset[str] = field(default=frozenset(), compare=False, repr=False)
    stored: Any = field(default=None, compare=False, repr=False)

    def to_tags(self) -> dict[str, str]:
        """Returns what a format stores beside the path, the size and the rows of a file."""
        return {
            _PREFIX + "bucket": str(self.bucket),
            _PREFIX + "first_key": self.first_key.hex(),
            _PREFIX + "last_key": self.last_key.hex(),
            _PREFIX + "schema_id": str(self.schema_id),
            _PREFIX + "partition_id": self.partition_id,
        }

    @classmethod
    def of_tags(
        cls,
        tags: Mapping[str, str],
        *,
        path: str,
        rows: int,
        size_bytes: int,
        masked_rows: int = 0,
        stored: object = None,
    ) -> Self | None:
        """Reads a file from its tags. None: another program has written it."""
        try:
            return cls(
                path=path,
                bucket=int(tags[_PREFIX + "bucket"]),
                rows=rows,
                size_bytes=size_bytes,
                first_key=bytes.fromhex(tags[_PREFIX + "first_key"]),
                last_key=bytes.fromhex(tags[_PREFIX + "last_key"]),
                schema_id=int(tags[_PREFIX + "schema_id"]),
                partition_id=tags[_PREFIX + "partition_id"],
                masked_rows=masked_rows,
                stored=stored,
            )
        except (KeyError, ValueError):
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeState:
    """Which rows of which table a version shows. Immutable.

    Attributes:
        table: The table, as `database.table`.
        content: What the version shows.
        log_offsets: For each bucket, the offset of the first change that the version does not show, with the
            incarnation of the table.
        view_time: The instant of the version by the server's clock, in UTC, as ISO 8601.
        schema_id: The schema version of the table at that instant.
        expiry: The options of the table by which its rows expire, as text.
        partition_by: The partition columns; none if the table has none, or was published without them.
        schemas: The columns of the data files, by the schema version with which they were written.
        commit_id: Identifies the commit: no other commit has it.
    """

    table: str
    content: Content
    log_offsets: LogOffsets
    view_time: str
    schema_id: int
    expiry: str
    partition_by: tuple[str, ...]
    schemas: Mapping[int, Sequence[LakeColumn]]
    commit_id: str

    @property
    def columns(self) -> Sequence[LakeColumn]:
        """The columns of the version."""
        return self.schemas[self.schema_id]

    def to_properties(self) -> dict[str, str]:
        """Returns the properties that each version has. Readers may use `scankv.log_offsets` and `scankv.view_time`."""
        schemas = {
            str(schema_id): [[column.id, column.name, column.type] for column in columns]
            for schema_id, columns in self.schemas.items()
        }
        return {
            _PREFIX + "format": FORMAT_VERSION,
            _PREFIX + "table": self.table,
            _PREFIX + "content": self.content,
            _PREFIX + "log_offsets": self.log_offsets.to_json(),
            VIEW_TIME: self.view_time,
            _PREFIX + "schema_id": str(self.schema_id),
            _PREFIX + "expiry": self.expiry,
            _PREFIX + "partition_by": utf8_json(self.partition_by),
            _PREFIX + "schemas": utf8_json(schemas),
            _PREFIX + "commit_id": self.commit_id,
        }

    @classmethod
    def of_properties(cls, properties: Mapping[str, str], where: str) -> Self:
        """Reads the properties of a version.

        Args:
            properties: All properties of the version.
            where: The location, for errors.

        Raises:
            LakeDamaged: ScanKV has not written the version, or a later release of ScanKV has.
        """
        found = properties.get(_PREFIX + "format")
        if found is None:
            raise LakeDamaged(f"{where} has a table that ScanKV has not published: choose another location")
        if found != FORMAT_VERSION:
            raise LakeDamaged(
                f'{where} was published in form "{found}" by another release of ScanKV; this release knows '
                f'"{FORMAT_VERSION}": use a release that knows it, or another location'
            )
        try:
            schemas = json.loads(properties[_PREFIX + "schemas"])
            return cls(
                table=properties[_PREFIX + "table"],
                content="rows" if properties[_PREFIX + "content"] == "rows" else "changes",
                log_offsets=LogOffsets.from_json(properties[_PREFIX + "log_offsets"]),
                view_time=properties[VIEW_TIME],
                schema_id=int(properties[_PREFIX + "schema_id"]),
                expiry=properties[_PREFIX + "expiry"],
                partition_by=tuple(json.loads(properties[_PREFIX + "partition_by"])),
                schemas={int(key): tuple(LakeColumn(*each) for each in schemas[key]) for key in schemas},
                commit_id=properties[_PREFIX + "commit_id"],
            )
        except (KeyError, ValueError, TypeError, AttributeError, RecursionError, ScanKvError) as error:
            raise LakeDamaged(
                f"the properties of the table in {where} cannot be read ({type(error).__name__}: {error}): choose "
                "another location, or remove the table there and publish again"
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeVersion:
    """A version of a published table. Immutable.

    Attributes:
        version: The number that the format gives it, which grows with each commit.
        state: Which rows it shows.
        files: Its data files.
        foreign: Whether another program has changed the data files since, so that they do not show what `state` says.
        misread: Why readers of the format misread some of its values until all rows are written again. None: they
            do not.
        stored: What the format needs to commit after it; opaque.
    """

    version: int
    state: LakeState
    files: tuple[DataFile, ...]
    foreign: bool = False
    misread: str | None = None
    stored: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class MaskedFile:
    """A data file that remains in the table without some of its rows. Immutable.

    Attributes:
        file: The file, as it was loaded.
        positions: The positions in the file, from 0, of all rows that do not belong to the table, also of those that
            were masked before.
    """

    file: DataFile
    positions: BitMap


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeChange:
    """What a commit changes. Immutable.

    Attributes:
        state: Which rows the table shows then.
        schema: Its columns, as `LakeTable.file_schema` returns them.
        primary_key: The names of the key columns, in key order. Empty: rows are only appended.
        removed: Data files of the version before that do not belong to the table any more. A full publish removes all
            files of that version, also those of other programs.
        added: New data files, which are complete and durable.
        is_full: Whether the commit replaces all rows.
        masked: Data files of the version before that remain, with rows that do not belong to the table any more. Only
            if the format `can_mask`.
    """

    state: LakeState
    schema: pa.Schema
    primary_key: Sequence[str]
    removed: Sequence[DataFile]
    added: Sequence[DataFile]
    is_full: bool
    masked: Sequence[MaskedFile] = ()


class LakeTable(ABC):
    """A published table in one open format. Its methods block, and one thread at a time may call them.

    Nothing else knows the format. A version that `load` returns has everything that the next pass needs, so a publisher
    keeps no state of its own: what was committed last is always read from the table.

    Attributes:
        format: The name of the format.
        can_mask: Whether single rows of a data file can be masked.
        has_field_ids: Whether readers find columns in data files by their ids, not by their names.
        location: Where the table is. Data files are written there before they are committed.
        keep_seconds: How long data files remain after the commit that removed them, for readers of earlier versions.
    """

    format: ClassVar[str]
    can_mask: ClassVar[bool] = False
    has_field_ids: ClassVar[bool] = False

    def __init__(self, location: LakeLocation, keep_seconds: float) -> None:
        self.location = location
        self.keep_seconds = keep_seconds

    @abstractmethod
    def file_schema(self, schema: pa.Schema, primary_key: Sequence[str], partition_by: Sequence[str]) -> pa.Schema:
        """Returns the columns that the format shows for the columns of a table, in their order.

        The data files have exactly these columns, with these types. Partition columns are among them: not every reader
        takes their values from elsewhere.

        Args:
            schema: The columns of the table, with their permanent ids in the metadata (`FIELD_ID`).
            primary_key: The key columns.
            partition_by: The partition columns.

        Raises:
            UsageError: The format cannot hold a column. The message names the column, and says what to do.
        """

    @abstractmethod
    def load(self) -> LakeVersion | None:
        """Reads the latest version. None: nothing has been published yet.

        Raises:
            LakeDamaged: The location has a table that cannot be read, or that ScanKV has not published.
            LakeUnavailable: The location does not answer.
        """

    @abstractmethod
    def versions(self) -> Sequence[int]:
        """Returns the numbers of the versions that the format still lists, ascending. Their files may be deleted.

        Raises the errors of `load`.
        """

    @abstractmethod
    def view_time(self, version: int) -> str | None:
        """Returns the `LakeState.view_time` of a listed version. None: another program has made the version.

        Raises the errors of `load`.
        """

    @abstractmethod
    def load_version(self, version: int) -> LakeVersion:
        """Reads a listed version. Raises the errors of `load`."""

    def paths_of(self, file: DataFile) -> list[str]:
        """Returns the stored files of which a data file that was loaded consists."""
        return [file.path]

    def masked_positions(self, file: DataFile) -> BitMap:
        """Returns the positions of the masked rows of a loaded file; no positions in a format that cannot mask rows."""
        from pyroaring import BitMap

        return BitMap()

    @abstractmethod
    def commit(self, base: LakeVersion | None, change: LakeChange) -> int:
        """Commits the version after `base`, or the first one, in one step that every reader sees completely or not.

        It never commits after another version than `base`, and never repeats a commit by itself.

        Returns:
            The number of the version.

        Raises:
            LakeConflict: Another commit came first. Nothing was committed.
            LakeUnavailable: The location does not answer. Whether the commit succeeded may be unknown: `load` says.
        """

    @abstractmethod
    def expire(self, orphan_seconds: float) -> int:
        """Deletes data files that only old versions need, and files that interrupted publishers have left.

        Args:
            orphan_seconds: How old a data file of ScanKV must be that no version has, because another publisher may be
                about to commit it. Files of other programs are never deleted.

        Returns:
            How many files were deleted.

        Raises:
            LakeUnavailable: The location does not answer.
        """
