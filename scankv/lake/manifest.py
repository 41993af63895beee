"""The list of the data files of one version, as a JSON file: for formats that do not store what a publisher needs."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from scankv.lake.lake_table import DataFile
from scankv.lake.utf8_json import utf8_json
from scankv.model.types.types import format_type

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from scankv.lake.lake_table import LakeChange


@dataclass(frozen=True, slots=True)
class RemovedFile:
    """A data file that does not belong to the table any more. Immutable.

    Attributes:
        path: The file.
        removed_at_millis: When it was removed, by the clock of the publisher, in milliseconds since 1970.
    """

    path: str
    removed_at_millis: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeManifest:
    """A version of a table. Immutable.

    Attributes:
        properties: What `LakeState.to_properties` returns.
        columns: For each column of the table its name, its type as `scankv create` takes it, and whether it can be
            null. A data file may lack columns, which are null then, and may have others, which do not count.
        files: The data files.
        removed: Files that were removed a short time ago, which readers of earlier versions may still need.
    """

    properties: Mapping[str, str]
    columns: Sequence[Mapping[str, Any]]
    files: Sequence[DataFile]
    removed: Sequence[RemovedFile] = field(default=())

    def to_json(self) -> bytes:
        """Returns the content of the file."""
        content = {
            "properties": dict(self.properties),
            "columns": [dict(column) for column in self.columns],
            "files": [
                {"path": file.path, "rows": file.rows, "size_bytes": file.size_bytes, "tags": file.to_tags()}
                for file in self.files
            ],
            "removed": [{"path": each.path, "removed_at_millis": each.removed_at_millis} for each in self.removed],
        }
        return utf8_json(content, indent=1).encode()

    @classmethod
    def of_json(cls, content: bytes) -> Self:
        """Reads the content of the file. Raises ValueError if it is damaged."""
        try:
            found = json.loads(content)
            files = [
                DataFile.of_tags(each["tags"], path=each["path"], rows=each["rows"], size_bytes=each["size_bytes"])
                for each in found["files"]
            ]
            removed = [RemovedFile(each["path"], each["removed_at_millis"]) for each in found["removed"]]
            complete = [file for file in files if file is not None]
            if len(complete) < len(files):
                raise ValueError("a file lacks its tags")
            return cls(properties=found["properties"], columns=found["columns"], files=complete, removed=removed)
        except (KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error


def manifest_after(
    files: Sequence[DataFile], removed: Sequence[RemovedFile], change: LakeChange, now_millis: int
) -> LakeManifest:
    """Returns the manifest of the version after a change.

    Args:
        files: The data files of the version before.
        removed: The files that were removed before, and are to be remembered.
        change: The change.
        now_millis: The time, in milliseconds since 1970.
    """
    gone = {file.path for file in (files if change.is_full else change.removed)}
    return LakeManifest(
        properties=change.state.to_properties(),
        columns=_columns(change.schema),
        files=[*(file for file in files if file.path not in gone), *change.added],
        removed=[*removed, *(RemovedFile(path, now_millis) for path in sorted(gone))],
    )


def _columns(schema: pa.Schema) -> list[dict[str, Any]]:
    return [{"name": each.name, "type": format_type(each.type), "nullable": each.nullable} for each in schema]
