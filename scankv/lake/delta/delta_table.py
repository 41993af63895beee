"""`DeltaLakeTable`: a published table as a Delta table, whose commits we write, each as one conditional put."""

from __future__ import annotations

import json
import re
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import quote, unquote

from scankv.lake.delta.deletion_vectors import DIRECTORY, read_vector, vector_path, write_vectors
from scankv.lake.delta.delta_log import LOG, DeltaLog, commit_path, complete_versions, identity, read_commit, read_log
from scankv.lake.delta.delta_stats import partition_values, statistics_json
from scankv.lake.delta.delta_types import delta_schema, has_times_without_zone, schema_json
from scankv.lake.lake_table import VIEW_TIME, DataFile, LakeState, LakeTable, LakeVersion
from scankv.lake.location import is_temporary, require_package
from scankv.lake.utf8_json import has_escaped_surrogates, is_beyond_plane_0, utf8_json
from scankv.lake.writer import DATA_FILE
from scankv.model.errors import LakeDamaged

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa
    from pyroaring import BitMap

    from scankv.lake.delta.delta_log import Action
    from scankv.lake.lake_table import LakeChange
    from scankv.lake.location import LakeLocation

_OURS: Final = re.compile(rf"{DATA_FILE.pattern}|{DIRECTORY}/deletion_vector_[0-9a-f-]{{36}}\.bin")
_CHECKPOINT_COMMITS: Final = 20
_VERSION: Final = "scankv.version"
"""The property with the number of our last commit, by which we notice that another program has changed files since."""

_LOG_TEXT: Final = "scankv.log_text"
_UTF8: Final = "utf-8"
"""The property that says that no text in the log has escapes that deltalake reads as another character."""

_NO_ZONE_FEATURE: Final = "timestampNtz"
_VECTORS_FEATURE: Final = "deletionVectors"
_OF_WRITER_VERSION_2: Final = {"appendOnly", "invariants"}
"""What a table has without naming it, until it names its features. Spark needs `invariants` for NOT NULL columns."""
_FEATURES: Final = {_NO_ZONE_FEATURE, _VECTORS_FEATURE, *_OF_WRITER_VERSION_2}
"""The table features with which we know how to write. Another program may have added others."""


class DeltaLakeTable(LakeTable):
    """A published table as a Delta table. See `LakeTable`.

    A commit is one JSON file of the log, which is created only if no file has its name. `deltalake` itself would commit
    again after the version of another publisher, and cannot write deletion vectors.
    """

    format: ClassVar[str] = "delta"
    can_mask: ClassVar[bool] = True

    def __init__(self, location: LakeLocation, keep_seconds: float) -> None:
        super().__init__(location, keep_seconds)
        require_package("deltalake")

    def file_schema(self, schema: pa.Schema, primary_key: Sequence[str], partition_by: Sequence[str]) -> pa.Schema:
        """Returns the columns with the types of Delta Lake."""
        return delta_schema(schema)

    def load(self) -> LakeVersion | None:
        """Reads the latest version from the log."""
        log = read_log(self.location)
        return None if log is None else self._version_of(log)

    def versions(self) -> Sequence[int]:
        """Returns the commits of the log, from the first one that can be read with all before it."""
        return complete_versions(self.location)

    def view_time(self, version: int) -> str | None:
        """Reads the instant from the commit."""
        infos = [info for action in read_commit(self.location, version) if (info := action.get("commitInfo"))]
        return infos[0].get(VIEW_TIME) if infos else None

    def load_version(self, version: int) -> LakeVersion:
        """Reads the log up to a commit."""
        log = read_log(self.location, version)
        if log is None or log.version != version:
            raise LakeDamaged(f"the Delta table in {self.location} has no version {version:,}: choose another one")
        return self._version_of(log)

    def paths_of(self, file: DataFile) -> list[str]:
        """Returns a file and its deletion vector."""
        return _paths_of(file.stored)

    def _version_of(self, log: DeltaLog) -> LakeVersion:
        unknown = set(log.protocol.get("writerFeatures") or ()) - _FEATURES
        if unknown:
            raise LakeDamaged(
                f"the Delta table in {self.location} has the table feature {min(unknown)}, with which ScanKV cannot "
                "write: choose another location, or remove the table there and publish again"
            )
        properties = log.metadata.get("configuration") or {}
        state = LakeState.of_properties(properties, str(self.location))
        files = [_data_file(add) for add in log.adds.values()]
        known = tuple(file for file in files if file is not None)
        foreign = len(known) < len(files) or log.files_version > self._own_version(properties)
        column = misread_partition_column(properties, (add["partitionValues"] for add in log.adds.values()))
        misread = (
            None
            if column is None
            else (
                f'an earlier release has published values of partition column "{column}" that readers take for other '
                "values"
            )
        )
        return LakeVersion(version=log.version, state=state, files=known, foreign=foreign, misread=misread, stored=log)

    def _own_version(self, properties: Mapping[str, str]) -> int:
        try:
            return int(properties.get(_VERSION, -1))
        except (TypeError, ValueError) as error:
            raise LakeDamaged(
                f"the Delta table in {self.location} cannot be read: its property {_VERSION} must be a whole number; "
                "restore its log, or remove the table and publish again"
            ) from error

    def commit(self, base: LakeVersion | None, change: LakeChange) -> int:
        """Creates the file of the next commit, unless it exists."""
        log = DeltaLog() if base is None else base.stored
        millis = int(time.time() * 1000)
        version = log.version + 1
        lines = [utf8_json(action) for action in self._actions(log, change, millis)]
        self.location.create_if_absent(commit_path(version), "\n".join(lines).encode())
        if version - log.checkpoint >= _CHECKPOINT_COMMITS:
            self._write_checkpoint(version)
        return version

    def masked_positions(self, file: DataFile) -> BitMap:
        """Reads the deletion vector of a file."""
        return read_vector(self.location, file.stored["deletionVector"])

    def expire(self, orphan_seconds: float) -> int:
        """Deletes data files and deletion vectors that no version of the last `keep_seconds` has."""
        log = read_log(self.location)
        if log is None:
            return 0
        now = time.time()
        recent = [
            each
            for each in log.removes.values()
            if now - (each.get("deletionTimestamp") or 0) / 1000 < self.keep_seconds
        ]
        kept = {path for each in (*log.adds.values(), *recent) for path in _paths_of(each)}
        deleted = 0
        for stored in (each for directory in ("", DIRECTORY, LOG) for each in self.location.list(directory)):
            is_old = stored.changed_at is not None and now - stored.changed_at.timestamp() >= orphan_seconds
            is_ours = _OURS.fullmatch(stored.path) or is_temporary(stored.path)
            if is_old and is_ours and stored.path not in kept:
                self.location.delete(stored.path)
                deleted += 1
        return deleted

    def _write_checkpoint(self, version: int) -> None:
        """Writes a checkpoint, so that readers need not read all commits. Without it, they are slower."""
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        with suppress(DeltaError, OSError):
            options = self.location.object_store_options("aws_")
            DeltaTable(self.location.root_uri, version=version, storage_options=options).create_checkpoint()

    def _actions(self, log: DeltaLog, change: LakeChange, millis: int) -> list[Action]:
        removed = list(log.adds.values()) if change.is_full else [file.stored for file in change.removed]
        gone = {identity(add) for add in (*removed, *(each.file.stored for each in change.masked))}
        kept = [add for add in log.adds.values() if identity(add) not in gone]
        vectors = write_vectors(self.location, [each.positions for each in change.masked])
        properties = change.state.to_properties()
        protocol = _protocol(log.protocol, change)
        return [
            {
                "commitInfo": {
                    "timestamp": millis,
                    "operation": "WRITE",
                    "operationParameters": {"mode": "Overwrite"},
                    "engineInfo": "ScanKV",
                    **properties,
                }
            },
            *([] if protocol == log.protocol else [{"protocol": protocol}]),
            {"metaData": self._metadata(log, change, properties, millis)},
            *({"remove": _remove(add, millis)} for add in removed),
            *({"remove": _remove(each.file.stored, millis)} for each in change.masked),
            *({"add": _corrected(add)} for add in kept if has_escaped_surrogates(add.get("stats") or "")),
            *({"add": _mask(each.file.stored, vector)} for each, vector in zip(change.masked, vectors, strict=True)),
            *({"add": _add(file, change, millis)} for file in change.added),
        ]

    def _metadata(self, log: DeltaLog, change: LakeChange, properties: dict[str, str], millis: int) -> Action:
        features = _protocol(log.protocol, change).get("writerFeatures", ())
        kept = f"interval {int(self.keep_seconds)} seconds"
        return {
            # The commit that creates the table names it.
            "id": log.metadata.get("id", change.state.commit_id),
            "name": change.state.table,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": utf8_json(schema_json(change.schema)),
            "partitionColumns": list(change.state.partition_by),
            "configuration": {
                "delta.deletedFileRetentionDuration": kept,
                "delta.logRetentionDuration": kept,
                **({"delta.enableDeletionVectors": "true"} if _VECTORS_FEATURE in features else {}),
                **properties,
                _VERSION: str(log.version + 1),
                _LOG_TEXT: _UTF8,
            },
            "createdTime": log.metadata.get("createdTime", millis),
        }


def misread_partition_column(
    properties: Mapping[str, str], partitions: Iterable[Mapping[str, str | None]]
) -> str | None:
    """Returns a partition column of a published table with a value that readers take for another. None: none has one.

    Checkpoints of a log with escaped characters have the wrong values, so the values do not show whether they are
    right: U+10BB7 may have been U+20BB7.
    """
    if VIEW_TIME not in properties or properties.get(_LOG_TEXT) == _UTF8:
        return None
    pairs = (pair for values in partitions for pair in values.items())
    return next((name for name, value in pairs if is_beyond_plane_0(value)), None)


def _protocol(before: Action, change: LakeChange) -> Action:
    """Returns the protocol of a table: the oldest one that is enough, and never an older one than before."""
    features = set(before.get("writerFeatures", ()))
    if has_times_without_zone(change.schema):
        features.add(_NO_ZONE_FEATURE)
    if change.masked:
        features.add(_VECTORS_FEATURE)
    if not features:
        return before or {"minReaderVersion": 1, "minWriterVersion": 2}
    features |= _OF_WRITER_VERSION_2
    readers = sorted(features & {_NO_ZONE_FEATURE, _VECTORS_FEATURE})
    return {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": readers, "writerFeatures": sorted(features)}


def _data_file(add: Action) -> DataFile | None:
    try:
        rows = json.loads(add["stats"])["numRecords"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return None
    vector = add.get("deletionVector")
    return DataFile.of_tags(
        add.get("tags") or {},
        path=unquote(add["path"]),
        rows=rows,
        size_bytes=add["size"],
        masked_rows=vector["cardinality"] if vector else 0,
        stored=add,
    )


def _add(file: DataFile, change: LakeChange, millis: int) -> dict[str, Any]:
    return {
        "path": quote(file.path),
        "partitionValues": partition_values(file, change.state.partition_by),
        "size": file.size_bytes,
        "modificationTime": millis,
        "dataChange": True,
        "stats": statistics_json(file, change.schema),
        "tags": file.to_tags(),
    }


def _corrected(add: Action) -> dict[str, Any]:
    """Returns a file that an earlier release has published, with bounds that all readers understand."""
    return {**add, "dataChange": False, "stats": utf8_json(json.loads(add["stats"]))}


def _mask(add: Action, vector: dict[str, Any]) -> dict[str, Any]:
    """Returns a file with another deletion vector. Its bounds may be those of masked rows."""
    statistics = json.loads(add["stats"]) | {"tightBounds": False}
    return {**add, "stats": utf8_json(statistics), "deletionVector": vector}


def _paths_of(file: Action) -> list[str]:
    """Returns the files of a location that a file of the log consists of."""
    vector = file.get("deletionVector")
    path = vector_path(vector) if vector else None
    return [unquote(file["path"]), *([] if path is None else [path])]


def _remove(add: Action, millis: int) -> dict[str, Any]:
    return {
        "path": add["path"],
        "deletionTimestamp": millis,
        "dataChange": True,
        "extendedFileMetadata": True,
        "partitionValues": add.get("partitionValues", {}),
        "size": add["size"],
        **({"deletionVector": add["deletionVector"]} if add.get("deletionVector") else {}),
    }
