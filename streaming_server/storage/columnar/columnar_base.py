"""A columnar base: all rows of a bucket at one log offset, in key order, in Arrow files that are mapped into memory.

<table>/bases/<bucket>/<name>/rows.arrow     the rows, as an Arrow IPC file that every Arrow library can read
<table>/bases/<bucket>/<name>/keys.arrow     the encoded keys of the rows, in the same batches; if rows have it, also
                                             the time of their last write
<table>/bases/<bucket>/<name>/zones.arrow    zone maps: the least and greatest values of columns, one row for each batch
<table>/bases/<bucket>/<name>/manifest.json  what the base contains, and the offset and checksum of each message
<table>/bases/<bucket>/<name>.tmp            a base that is being written or removed

Arrow trusts the offsets in its messages. Damaged offsets make it read out of bounds or crash the process. So the
manifest has checksums that cover every byte of the three files, and each message is verified before Arrow sees it. The
footers of the files are for other programs: the server takes offsets and schema from the manifest.

RocksDB has the same rows, so a base that is damaged or lost costs only the time to build it again.
"""

from __future__ import annotations

import base64
import logging
import re
import shutil
from bisect import bisect_left
from copy import copy
from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from scankv.model.errors import DataLoss, NewerFormat
from scankv.model.tables.expiry import WRITE_TIME
from streaming_server.storage.columnar.mapped_file import FileBlock, MappedFile
from streaming_server.storage.files.checked_json import read_checked_json
from streaming_server.storage.files.formats import check_format, locate

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from scankv.model.keys.key_range import KeyRange

ROWS_FILE: Final = "rows.arrow"
KEYS_FILE: Final = "keys.arrow"
ZONES_FILE: Final = "zones.arrow"
MANIFEST_FILE: Final = "manifest.json"
KEYS_SCHEMA: Final = pa.schema([pa.field("key", pa.binary(), nullable=False)])
TIMED_KEYS_SCHEMA: Final = KEYS_SCHEMA.append(pa.field("written", WRITE_TIME))
"""Keys with the time of each row's last write. `rows.arrow` lacks it, so that its batches can be sent as they are."""
UNFINISHED: Final = ".tmp"
"""The suffix of directories that are not yet, or no longer, a base."""

_FORMAT: Final = 2
_TIMED_FORMAT: Final = 3
"""The format of bases with the time of the last write of each row."""
_NAME: Final = re.compile(r"([0-9a-f]{16})(\.tmp)?")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseInfo:
    """What a base contains.

    Attributes:
        name: The name of its directory. A newer base of the bucket has a greater name, and names are never reused.
        incarnation: The incarnation of the table.
        bucket: The number of the bucket.
        schema_id: The version of the table's schema that the rows have.
        log_offset: The offset of the first change that is not in the base.
        cut_millis: When the bucket had this offset and the build began, in milliseconds since 1970 UTC.
        rows: The number of rows.
        disk_bytes: Bytes of the files.
        time_restarts: `BucketState.time_restarts` at that offset. None: the base lacks the time of the last write.
    """

    name: str
    incarnation: str
    bucket: int
    schema_id: int
    log_offset: int
    cut_millis: int
    rows: int
    disk_bytes: int
    time_restarts: int | None


@dataclass(frozen=True, slots=True)
class Zone:
    """The bounds of the values of one column in one batch.

    Attributes:
        least: The least value that is neither null nor NaN. None: no such value exists.
        greatest: The greatest such value.
        nulls: The number of nulls.
        has_nan: Whether any value is NaN.
    """

    least: pa.Scalar | None
    greatest: pa.Scalar | None
    nulls: int
    has_nan: bool


@dataclass(frozen=True, slots=True)
class BatchEntry:
    """One batch of rows: the number of rows, and the encoded keys of the first and the last row."""

    rows: int
    first_key: bytes
    last_key: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseManifest:
    """The manifest of a base.

    Attributes:
        name: See `BaseInfo`, as for the fields up to `rows`, and for `time_restarts`.
        schema: The schema of the rows.
        batches: The batches in key order.
        files: The blocks of each file, by name. They cover the file: its head, its messages, and its tail.
    """

    name: str
    incarnation: str
    bucket: int
    schema_id: int
    log_offset: int
    cut_millis: int
    rows: int
    schema: pa.Schema
    batches: Sequence[BatchEntry]
    files: Mapping[str, Sequence[FileBlock]]
    time_restarts: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the manifest as JSON values."""
        is_timed = self.time_restarts is not None
        return {
            "format": _TIMED_FORMAT if is_timed else _FORMAT,
            **({"time_restarts": self.time_restarts} if is_timed else {}),
            "name": self.name,
            "incarnation": self.incarnation,
            "bucket": self.bucket,
            "schema_id": self.schema_id,
            "log_offset": self.log_offset,
            "cut_millis": self.cut_millis,
            "rows": self.rows,
            "schema": base64.b64encode(self.schema.serialize()).decode(),
            "batches": [[one.rows, one.first_key.hex(), one.last_key.hex()] for one in self.batches],
            "files": {name: [list(astuple(block)) for block in blocks] for name, blocks in self.files.items()},
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> BaseManifest:
        """Reads the result of `to_json`. Raises KeyError, TypeError or ValueError for anything else."""
        check_format("the manifest of a columnar base", values["format"], _TIMED_FORMAT)
        if values["format"] < _FORMAT:
            raise ValueError(f"it has format {values['format']}, not {_FORMAT} or {_TIMED_FORMAT}")
        return cls(
            name=values["name"],
            incarnation=values["incarnation"],
            bucket=values["bucket"],
            schema_id=values["schema_id"],
            log_offset=values["log_offset"],
            cut_millis=values["cut_millis"],
            rows=values["rows"],
            schema=pa.ipc.read_schema(pa.py_buffer(base64.b64decode(values["schema"], validate=True))),
            batches=[
                BatchEntry(rows, bytes.fromhex(first), bytes.fromhex(last)) for rows, first, last in values["batches"]
            ],
            files={name: [FileBlock(*block) for block in blocks] for name, blocks in values["files"].items()},
            time_restarts=values["time_restarts"] if values["format"] == _TIMED_FORMAT else None,
        )


class _BatchPart(NamedTuple):
    """Consecutive rows of a batch in the files, with the encoded keys of the first and the last of them."""

    batch: int
    first: int
    rows: int
    first_key: bytes
    last_key: bytes


class ColumnarBase:
    """A columnar base, mapped into memory. Immutable and thread-safe.

    Batches and messages are views of the mapped files. They stay valid while they are referenced, even after the base
    was dropped or its files were removed. The first access to a message verifies its checksum, which reads it from disk
    unless the system has read it ahead: each access makes the system read the next messages.

    Attributes:
        path: The directory of the base when it was opened.
        info: What the base contains.
        schema: The schema of the rows.
        first_keys: The encoded key of the first row of each batch, ascending.
        last_keys: The encoded key of the last row of each batch, ascending.
    """

    def __init__(self, path: Path, location: str, manifest: BaseManifest) -> None:
        self.path = path
        self.schema = manifest.schema
        self.first_keys: Sequence[bytes]
        self.last_keys: Sequence[bytes]
        self._counts = [batch.rows for batch in manifest.batches]
        self._keys_schema = KEYS_SCHEMA if manifest.time_restarts is None else TIMED_KEYS_SCHEMA
        self._rows = MappedFile(path / ROWS_FILE, location, manifest.files[ROWS_FILE])
        self._keys = MappedFile(path / KEYS_FILE, location, manifest.files[KEYS_FILE])
        zones = MappedFile(path / ZONES_FILE, location, manifest.files[ZONES_FILE])
        if not len(self._rows) == len(self._keys) == len(self._counts) or sum(self._counts) != manifest.rows:
            raise DataLoss(f"{location}: the manifest of the columnar base {path} contradicts itself")
        self._zones = _zones_in(zones)
        self.info = BaseInfo(
            name=manifest.name,
            incarnation=manifest.incarnation,
            bucket=manifest.bucket,
            schema_id=manifest.schema_id,
            log_offset=manifest.log_offset,
            cut_millis=manifest.cut_millis,
            rows=manifest.rows,
            disk_bytes=(path / MANIFEST_FILE).stat().st_size + self._rows.size + self._keys.size + zones.size,
            time_restarts=manifest.time_restarts,
        )
        self._parts: Sequence[_BatchPart]
        self._use(
            [
                _BatchPart(number, 0, batch.rows, batch.first_key, batch.last_key)
                for number, batch in enumerate(manifest.batches)
            ]
        )

    @classmethod
    def open(cls, path: Path, location: str) -> ColumnarBase:
        """Opens the base in a directory. Reads the manifest and the zone maps, but no rows.

        Args:
            path: The directory.
            location: The name of the bucket in errors.

        Raises:
            DataLoss: The base is incomplete. Damage of rows and keys is found when they are read.
        """
        manifest = _read_manifest(path, location)
        try:
            return cls(path, location, manifest)
        except (OSError, ValueError, LookupError, TypeError, pa.ArrowException) as error:
            raise DataLoss(f"{location}: the columnar base {path} cannot be read: {error}") from error

    def without(self, ranges: Iterable[KeyRange]) -> ColumnarBase:
        """Returns the base without the rows in some ranges of keys, over the same files.

        Raises:
            DataLoss: The keys at an end of a range are damaged.
        """
        other = copy(self)
        for keys in ranges:
            other._use(other._parts_without(keys.start or b"", keys.end))
        return other

    def _parts_without(self, start: bytes, end: bytes | None) -> list[_BatchPart]:
        low = bisect_left(self.last_keys, start)
        high = len(self) if end is None else bisect_left(self.first_keys, end)
        rest = [*self._parts[:low]]
        if low < high:
            # Only the first and the last batch may have rows outside the range.
            before = self._count_below(low, start)
            if before:
                part = self._parts[low]
                rest.append(
                    _BatchPart(part.batch, part.first, before, part.first_key, self.keys(low)[before - 1].as_py())
                )
            part = self._parts[high - 1]
            after = part.rows if end is None else self._count_below(high - 1, end)
            if after < part.rows:
                key = self.keys(high - 1)[after].as_py()
                rest.append(_BatchPart(part.batch, part.first + after, part.rows - after, key, part.last_key))
        return [*rest, *self._parts[max(low, high) :]]

    def _count_below(self, number: int, key: bytes) -> int:
        """Returns the number of rows of a batch with a lower key."""
        if key <= self.first_keys[number]:
            return 0
        if key > self.last_keys[number]:
            return self.rows_in(number)
        return int(pc.search_sorted(self.keys(number), pa.scalar(key, pa.binary())).as_py())

    def _use(self, parts: Sequence[_BatchPart]) -> None:
        self._parts = parts
        self.first_keys = [part.first_key for part in parts]
        self.last_keys = [part.last_key for part in parts]
        self.info = replace(self.info, rows=sum(part.rows for part in parts))

    @property
    def file_rows(self) -> int:
        """How many rows the files have. Those of deleted ranges are not in the base."""
        return sum(self._counts)

    def __len__(self) -> int:
        """Returns the number of batches, of which some may be parts of those in the files."""
        return len(self._parts)

    def rows_in(self, number: int) -> int:
        """Returns the number of rows of a batch."""
        return self._parts[number].rows

    def bytes_in(self, number: int) -> int:
        """Returns the bytes of the IPC message of a batch."""
        return self._rows.bytes_in(self._parts[number].batch)

    def batch(self, number: int) -> pa.RecordBatch:
        """Returns the rows of a batch, without a copy. Raises DataLoss when they are damaged."""
        part = self._parts[number]
        return self._rows.batch(part.batch, self.schema, self._counts[part.batch]).slice(part.first, part.rows)

    def keys(self, number: int) -> pa.BinaryArray:
        """Returns the encoded keys of a batch's rows, ascending, without a copy. Raises DataLoss for damage."""
        return self._key_columns(number).column(0)

    def write_times(self, number: int) -> pa.TimestampArray:
        """Returns the times of the last write of a batch's rows, as `keys`. Only if the base has them."""
        return self._key_columns(number).column(1)

    def _key_columns(self, number: int) -> pa.RecordBatch:
        part = self._parts[number]
        return self._keys.batch(part.batch, self._keys_schema, self._counts[part.batch]).slice(part.first, part.rows)

    def has_message(self, number: int) -> bool:
        """Whether a batch is a complete batch of the files, for `message` and `crc32c`."""
        part = self._parts[number]
        return part.rows == self._counts[part.batch]

    def message(self, number: int) -> pa.Buffer:
        """Returns the rows of a batch as by `RecordBatch.serialize`, without a copy. Raises DataLoss for damage."""
        return self._rows.message(self._parts[number].batch)

    def crc32c(self, number: int) -> int:
        """Returns the CRC32C of `message`."""
        return self._rows.crc32c(self._parts[number].batch)

    def zone(self, number: int, column: str) -> Zone | None:
        """Returns bounds of the values of a column in a batch. None: the base has none for the column.

        The bounds of a part of a batch are those of the batch in the files.
        """
        values = self._zones.get(column)
        zone = None if values is None else values[self._parts[number].batch]
        if zone is None or not zone.is_valid:
            return None
        least, greatest = zone["least"], zone["greatest"]
        if not least.is_valid:
            least = greatest = None
        return Zone(least, greatest, zone["nulls"].as_py(), zone["has_nan"].as_py())


def newest_base(directory: Path, location: str) -> ColumnarBase | None:
    """Opens the newest undamaged base of a bucket, and removes all others and the remains of a crash. Blocks.

    Returns None if no such base exists. Call it at the start of a server, while no build of a base runs.

    Args:
        directory: The directory of the bucket's bases, which may be missing.
        location: The name of the bucket in errors.
    """
    found: ColumnarBase | None = None
    for name in reversed([name for name in list_base_names(directory) if not name.endswith(UNFINISHED)]):
        try:
            found = ColumnarBase.open(directory / name, location)
            break
        except NewerFormat as error:
            # Rule: what a newer version has written is neither read nor removed.
            _log.error("a columnar base is not read: %s", error.message)
            return None
        except DataLoss as error:
            _log.error("a damaged columnar base is removed, and will be built again: %s", error)
    remove_bases(directory, but=None if found is None else found.info.name)
    return found


def remove_bases(directory: Path, *, but: str | None) -> None:
    """Removes all bases of a bucket but one, complete or not. Readers keep what they have mapped. Blocks.

    A base that cannot be removed is logged and stays until the next call.

    Args:
        directory: The directory of the bucket's bases, which may be missing.
        but: The name of the base to keep. None: remove all.
    """
    for name in list_base_names(directory):
        if name == but:
            continue
        path = gone = directory / name
        try:
            if path.suffix != UNFINISHED:
                # Renamed first, so that a crash leaves no incomplete base under the name of a complete one.
                gone = path.with_suffix(UNFINISHED)
                path.rename(gone)
            shutil.rmtree(gone)
        except OSError as error:
            _log.warning("%s cannot be removed: %s", gone, error)


def list_base_names(directory: Path) -> list[str]:
    """Returns the names of the bases in a directory, complete or not, the oldest first."""
    if not directory.is_dir():
        return []
    return sorted(path.name for path in directory.iterdir() if _NAME.fullmatch(path.name))


def _read_manifest(path: Path, location: str) -> BaseManifest:
    try:
        manifest = BaseManifest.from_json(read_checked_json(path / MANIFEST_FILE))
        if manifest.name != path.name:
            raise ValueError(f"it is the manifest of the base {manifest.name}")
    except NewerFormat as error:
        raise locate(error, f"{location}: {path}") from error
    except (DataLoss, ValueError, LookupError, TypeError, pa.ArrowException) as error:
        raise DataLoss(f"{location}: the manifest of the columnar base {path} cannot be read: {error}") from error
    return manifest


def _zones_in(file: MappedFile) -> dict[str, pa.StructArray]:
    table = pa.ipc.open_file(file.verified_copy()).read_all()
    return {name: table.column(name).combine_chunks() for name in table.schema.names}
