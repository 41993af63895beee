"""Reads the log of a Delta table: the latest checkpoint, and the commits after it.

The form of the log: https://github.com/delta-io/delta/blob/master/PROTOCOL.md
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyarrow import parquet

from scankv.lake.lake_table import VIEW_TIME
from scankv.lake.utf8_json import has_escaped_surrogates, is_misread_if_escaped
from scankv.model.errors import LakeDamaged

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scankv.lake.location import LakeLocation

LOG: Final = "_delta_log"
_COMMIT: Final = re.compile(r"(\d{20})\.json")
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\.parquet")
_ACTIONS: Final = ("protocol", "metaData", "add", "remove")
_MAPS: Final = ("partitionValues", "tags", "configuration", "options")

_TEXT_MAPS: Final = ("partitionValues", "tags", "configuration")

_FIELDS: Final[dict[str, tuple[type, ...]]] = {
    "path": (str,),
    "size": (int,),
    "deletionTimestamp": (int,),
    "stats": (str,),
    "tags": (dict,),
    "partitionValues": (dict,),
    "configuration": (dict,),
    "deletionVector": (dict,),
    "storageType": (str,),
    "pathOrInlineDv": (str,),
    "offset": (int,),
    "sizeInBytes": (int,),
    "cardinality": (int,),
    "readerFeatures": (list,),
    "writerFeatures": (list,),
}
"""The fields that we read, with their types. Each may also be missing or null, unless it is in `_REQUIRED`."""

_REQUIRED: Final = {
    "add": ("path", "size", "partitionValues"),
    "remove": ("path",),
    "deletionVector": ("storageType", "pathOrInlineDv", "sizeInBytes", "cardinality"),
}

Action = dict[str, Any]


def commit_path(version: int) -> str:
    """Returns the file of a commit."""
    return f"{LOG}/{version:020}.json"


def identity(file: Action) -> tuple[str, str]:
    """Identifies a file together with its deletion vector: with another vector, it is another file of the log."""
    vector = file.get("deletionVector") or {}
    return file["path"], f"{vector.get('storageType')}{vector.get('pathOrInlineDv')}@{vector.get('offset')}"


@dataclass(slots=True)
class DeltaLog:
    """What the log says as of a version.

    Attributes:
        version: The latest commit; -1 before the first one.
        checkpoint: The version of the checkpoint from which the log was read; -1: none.
        protocol: The versions and features that a reader and a writer must know.
        metadata: The schema, the partition columns and the properties of the table.
        adds: The files of the table, by their identity.
        removes: Files that were removed, by their identity. Checkpoints leave out old ones.
        files_version: The latest commit that has added or removed files; at most this one.
    """

    version: int = -1
    checkpoint: int = -1
    protocol: Action = field(default_factory=dict)
    metadata: Action = field(default_factory=dict)
    adds: dict[tuple[str, str], Action] = field(default_factory=dict)
    removes: dict[tuple[str, str], Action] = field(default_factory=dict)
    files_version: int = -1

    def apply(self, version: int, actions: Iterable[Action]) -> None:
        """Applies the actions of the next commit, or of a checkpoint."""
        found = list(actions)
        self.version = version
        if any("add" in action or "remove" in action for action in found):
            self.files_version = version
        for action in found:
            if remove := action.get("remove"):
                self.adds.pop(identity(remove), None)
                self.removes[identity(remove)] = remove
            if add := action.get("add"):
                self.removes.pop(identity(add), None)
                self.adds[identity(add)] = add
            self.protocol = action.get("protocol") or self.protocol
            self.metadata = action.get("metaData") or self.metadata


def complete_versions(location: LakeLocation) -> list[int]:
    """Returns the commits that can be read with all commits before them, ascending. Raises the errors of `read_log`."""
    commits, checkpoints = _list_log(location)
    first = 0 if 0 in commits else min(checkpoints, default=0)
    return [version for version in commits if version >= first]


def read_log(location: LakeLocation, version: int | None = None) -> DeltaLog | None:
    """Reads the log of the table at a location. None: it has no log.

    Args:
        location: The location.
        version: The last commit to read. None: all.

    Raises:
        LakeDamaged: A commit is missing or cannot be read.
        LakeUnavailable: The location does not answer.
    """
    commits, checkpoints = _list_log(location)
    if version is not None:
        commits, checkpoints = ([each for each in found if each <= version] for found in (commits, checkpoints))
    if not commits and not checkpoints:
        return None
    log = DeltaLog()
    if checkpoints:
        log.checkpoint = max(checkpoints)
        log.apply(log.checkpoint, _read_checkpoint(location, log.checkpoint))
    for commit in commits:
        if commit <= log.version:
            continue
        if commit != log.version + 1:
            raise _damaged(location, f"{commit_path(log.version + 1)} is missing")
        log.apply(commit, read_commit(location, commit))
    if not log.metadata or not log.protocol:
        raise _damaged(location, "no commit has the metadata of the table")
    return log


def _list_log(location: LakeLocation) -> tuple[list[int], list[int]]:
    """Returns the commits and the checkpoints, ascending."""
    names = sorted(stored.path.rpartition("/")[2] for stored in location.list(LOG))
    commits = [int(match[1]) for name in names if (match := _COMMIT.fullmatch(name))]
    return commits, [int(match[1]) for name in names if (match := _CHECKPOINT.fullmatch(name))]


def read_commit(location: LakeLocation, version: int) -> list[Action]:
    """Returns the actions of a commit. Raises the errors of `read_log`."""
    path = commit_path(version)
    content = location.read(path)
    try:
        if content is None:
            raise ValueError("it is gone")
        return _checked([json.loads(line) for line in content.splitlines() if line.strip()])
    except (ValueError, RecursionError) as error:
        raise _damaged(location, f"{path}: {error}") from error


def escaped_partition_value(location: LakeLocation, version: int) -> tuple[str, str] | None:
    """Returns a partition column and its value that deltalake takes for another, because the log has escapes.

    See `utf8_json` for such escapes. Only commits since the latest checkpoint have them. None: no file of the version
    has such a value.

    Args:
        location: The location.
        version: The last commit to read.

    Raises:
        LakeDamaged: A commit cannot be read.
        LakeUnavailable: The location does not answer.
    """
    commits, checkpoints = _list_log(location)
    checkpoint = max((each for each in checkpoints if each <= version), default=-1)
    found: dict[str, tuple[str, str]] = {}
    for commit in (each for each in commits if checkpoint < each <= version):
        has_escapes = has_escaped_surrogates((location.read(commit_path(commit)) or b"").decode(errors="replace"))
        if not found and not has_escapes:
            continue
        for action in read_commit(location, commit):
            file = action.get("add") or action.get("remove") or {}
            found.pop(file.get("path", ""), None)
            if has_escapes and "add" in action:
                for name, value in file.get("partitionValues", {}).items():
                    if is_misread_if_escaped(value):
                        found[file["path"]] = (name, value)
    return next(iter(found.values()), None)


def _read_checkpoint(location: LakeLocation, version: int) -> list[Action]:
    path = f"{LOG}/{version:020}.checkpoint.parquet"
    content = location.read(path)
    try:
        if content is None:
            raise ValueError("it is gone")
        table = parquet.read_table(pa.BufferReader(content), columns=list(_ACTIONS))
        table.validate(full=True)
        rows = table.to_pylist()
        return _checked(
            [
                {
                    name: _with_maps(action) if isinstance(action, dict) else action
                    for name, action in row.items()
                    if action is not None
                }
                for row in rows
            ]
        )
    except (ValueError, TypeError, OSError, MemoryError, pa.ArrowException) as error:
        raise _damaged(location, f"{path}: {error}") from error


def _checked(actions: list[Any]) -> list[Action]:
    """Returns the actions of a commit or a checkpoint. Raises ValueError if they have not the form that we read."""
    if not all(isinstance(action, dict) for action in actions):
        raise ValueError("a line is not an object")
    for action in actions:
        for name in _ACTIONS:
            _check_fields(name, action.get(name))
        _check_info(action.get("commitInfo"))
    return actions


def _with_maps(action: Action) -> Action:
    """Returns an action of a checkpoint as a commit has it: maps are dictionaries, and what is null is left out."""
    found = {}
    for name, value in action.items():
        if isinstance(value, dict):
            found[name] = _with_maps(value)
        elif value is not None:
            found[name] = dict(value) if name in _MAPS else value
    return found


def _check_fields(name: str, value: object) -> None:
    """Raises ValueError, with the name of the field, if an object of the log has not the form that we read."""
    if value is None:
        return
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be an object, not {value!r:.40}")
    for field_name in _REQUIRED.get(name, ()):
        if value.get(field_name) is None:
            raise ValueError(f"{name} lacks {field_name}")
    for field_name, types in _FIELDS.items():
        found = value.get(field_name)
        if found is not None and type(found) not in types:
            raise ValueError(f"{field_name} of {name} must be of type {types[0].__name__}, not {found!r:.40}")
        if isinstance(found, list) and not all(isinstance(each, str) for each in found):
            raise ValueError(f"{field_name} of {name} must have texts only, not {found!r:.40}")
        if field_name in _TEXT_MAPS and found and not all(_is_text_or_null(each) for each in found.values()):
            raise ValueError(f"{field_name} of {name} must have texts only, not {found!r:.40}")
    _check_fields("deletionVector", value.get("deletionVector"))


def _check_info(info: object) -> None:
    """Raises ValueError if what a commit says of itself has not the form that we read."""
    if info is not None and not isinstance(info, dict):
        raise ValueError(f"commitInfo must be an object, not {info!r:.40}")
    # Programs put whatever their users want to record beside it, also under the names of fields of other actions.
    if info and not _is_text_or_null(info.get(VIEW_TIME)):
        raise ValueError(f"{VIEW_TIME} of commitInfo must be of type str, not {info[VIEW_TIME]!r:.40}")


def _is_text_or_null(value: object) -> bool:
    return value is None or isinstance(value, str)


def _damaged(location: LakeLocation, what: str) -> LakeDamaged:
    return LakeDamaged(
        f"the Delta table in {location} cannot be read: {what}; restore the file, or remove the table and publish again"
    )
