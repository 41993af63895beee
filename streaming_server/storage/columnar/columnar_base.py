"""A columnar base: all rows of a bucket at one log offset, in key order, in Arrow files that are mapped into memory.

<table>/bases/<bucket>/<name>/rows.arrow     the rows, an Arrow IPC file that anything that knows Arrow can read
<table>/bases/<bucket>/<name>/keys.arrow     their encoded keys, in the same batches
<table>/bases/<bucket>/<name>/zones.arrow    least and greatest value of columns, a row for each batch
<table>/bases/<bucket>/<name>/manifest.json  what it is of, and where in the files each message lies, with its checksum
<table>/bases/<bucket>/<name>.tmp            a base in the making, or one that is being removed

Arrow takes offsets in its messages as they are, and reads outside of them, or ends the process, when they are damaged.
So every byte of the three files is covered by a checksum of the manifest, and no message is shown to Arrow before it
was compared. The footers of the files are for others: places and schema are in the manifest.

RocksDB has the same rows. A base that is damaged or lost costs the time to build it, nothing else.
"""

from __future__ import annotations

import base64
import logging
import re
import shutil
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from scankv.model.errors import DataLoss
from streaming_server.storage.columnar.mapped_file import FileBlock, MappedFile
from streaming_server.storage.files.checked_json import read_checked_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

ROWS_FILE: Final = "rows.arrow"
KEYS_FILE: Final = "keys.arrow"
ZONES_FILE: Final = "zones.arrow"
MANIFEST_FILE: Final = "manifest.json"
KEYS_SCHEMA: Final = pa.schema([pa.field("key", pa.binary(), nullable=False)])
UNFINISHED: Final = ".tmp"
"""The end of the names of directories that are not, or no longer, a base."""

_FORMAT: Final = 2
_NAME: Final = re.compile(r"([0-9a-f]{16})(\.tmp)?")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseInfo:
    """What a base is of.

    Attributes:
        name: Its directory's; the name of a newer base of the bucket is greater, and none is ever used again.
        incarnation: The table's, which no other table has.
        bucket: The bucket.
        schema_id: The version of the table's schema that the rows have.
        log_offset: The offset of the first change that is not in it.
        cut_millis: When it was begun, which is when its bucket had that offset, in milliseconds since 1970 UTC.
        rows: Rows in it.
        disk_bytes: Bytes of its files.
    """

    name: str
    incarnation: str
    bucket: int
    schema_id: int
    log_offset: int
    cut_millis: int
    rows: int
    disk_bytes: int


@dataclass(frozen=True, slots=True)
class Zone:
    """What the values of one column in one batch lie between.

    Attributes:
        least: The least value that is neither null nor NaN. None: there is no such value.
        greatest: The greatest of them.
        nulls: How many values are null.
        has_nan: Whether any is NaN.
    """

    least: pa.Scalar | None
    greatest: pa.Scalar | None
    nulls: int
    has_nan: bool


@dataclass(frozen=True, slots=True)
class BatchEntry:
    """One batch of rows: how many, and the encoded keys of the first and the last one."""

    rows: int
    first_key: bytes
    last_key: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseManifest:
    """What the manifest of a base says.

    Attributes:
        name: As in `BaseInfo`, like those up to `rows`.
        schema: The rows' schema.
        batches: The batches in key order.
        files: By name, a file's blocks, which cover it: what comes before its messages, these, and what comes behind.
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

    def to_json(self) -> dict[str, Any]:
        """The manifest as JSON values."""
        return {
            "format": _FORMAT,
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
        """Reads what `to_json` made. Raises KeyError, TypeError or ValueError for anything else."""
        if values["format"] != _FORMAT:
            raise ValueError(f"it has format {values['format']}, not {_FORMAT}")
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
        )


class ColumnarBase:
    """A base, mapped into memory. Immutable; use it from any thread.

    What it gives are views of the map, which live as long as anybody has them, also when the base is closed or its
    files are removed. Each message is compared with its checksum when it is first asked for, which reads it from disk,
    unless it was read ahead: asking for a batch has the system read the next ones.

    Attributes:
        path: Where it lay when it was opened.
        info: What it is of.
        schema: The schema of the rows.
        first_keys: The encoded key of the first row of each batch, ascending.
        last_keys: The encoded key of the last row of each batch, ascending.
    """

    def __init__(self, path: Path, location: str, manifest: BaseManifest) -> None:
        self.path = path
        self.schema = manifest.schema
        self.first_keys: Sequence[bytes] = [batch.first_key for batch in manifest.batches]
        self.last_keys: Sequence[bytes] = [batch.last_key for batch in manifest.batches]
        self._counts = [batch.rows for batch in manifest.batches]
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
        )

    @classmethod
    def open(cls, path: Path, location: str) -> ColumnarBase:
        """Opens the base in a directory. Reads its manifest and zones, but no rows.

        Args:
            path: The directory.
            location: What errors call the bucket.

        Raises:
            DataLoss: It is not whole. Damage of rows and keys shows when they are asked for.
        """
        manifest = _read_manifest(path, location)
        try:
            return cls(path, location, manifest)
        except (OSError, ValueError, LookupError, TypeError, pa.ArrowException) as error:
            raise DataLoss(f"{location}: the columnar base {path} cannot be read: {error}") from error

    def __len__(self) -> int:
        """How many batches it has."""
        return len(self._counts)

    def rows_in(self, number: int) -> int:
        """How many rows a batch has."""
        return self._counts[number]

    def bytes_in(self, number: int) -> int:
        """How many bytes the rows of a batch have as an IPC message."""
        return self._rows.bytes_in(number)

    def batch(self, number: int) -> pa.RecordBatch:
        """The rows of a batch; nothing is copied. Raises DataLoss when they are damaged."""
        return self._rows.batch(number, self.schema, self._counts[number])

    def keys(self, number: int) -> pa.BinaryArray:
        """The encoded keys of the rows of a batch, ascending; nothing is copied. Raises DataLoss for damage."""
        return self._keys.batch(number, KEYS_SCHEMA, self._counts[number]).column(0)

    def message(self, number: int) -> pa.Buffer:
        """The rows of a batch as `RecordBatch.serialize` gives them; nothing is copied. Raises DataLoss for damage."""
        return self._rows.message(number)

    def crc32c(self, number: int) -> int:
        """The CRC32C of `message`."""
        return self._rows.crc32c(number)

    def zone(self, number: int, column: str) -> Zone | None:
        """What the values of a column in a batch lie between; None: that is not kept."""
        values = self._zones.get(column)
        zone = None if values is None else values[number]
        if zone is None or not zone.is_valid:
            return None
        least, greatest = zone["least"], zone["greatest"]
        if not least.is_valid:
            least = greatest = None
        return Zone(least, greatest, zone["nulls"].as_py(), zone["has_nan"].as_py())


def newest_base(directory: Path, location: str) -> ColumnarBase | None:
    """Opens the newest base of a bucket that is whole, and removes the others, and what a crash left.

    For a start, when nobody builds one. Blocks.

    Args:
        directory: That of the bucket's bases; there may be none.
        location: What errors call the bucket.
    """
    found: ColumnarBase | None = None
    for name in reversed([name for name in list_base_names(directory) if not name.endswith(UNFINISHED)]):
        try:
            found = ColumnarBase.open(directory / name, location)
            break
        except DataLoss as error:
            _log.error("a columnar base is removed, and will be built again: %s", error)
    remove_bases(directory, but=None if found is None else found.info.name)
    return found


def remove_bases(directory: Path, *, but: str | None) -> None:
    """Removes the bases of a bucket, whole or not, all but one. Who has one mapped keeps it. Blocks.

    What cannot be removed stays, with a line in the log, until the next time.

    Args:
        directory: That of the bucket's bases; there may be none.
        but: The name of the base that stays. None: none does.
    """
    for name in list_base_names(directory):
        if name == but:
            continue
        path = gone = directory / name
        try:
            if path.suffix != UNFINISHED:
                # At one stroke, so that a crash does not leave half of it under a name that promises a whole one.
                gone = path.with_suffix(UNFINISHED)
                path.rename(gone)
            shutil.rmtree(gone)
        except OSError as error:
            _log.warning("%s cannot be removed: %s", gone, error)


def list_base_names(directory: Path) -> list[str]:
    """The names of the bases in a directory by age, the oldest first, unfinished ones among them; nothing else."""
    if not directory.is_dir():
        return []
    return sorted(path.name for path in directory.iterdir() if _NAME.fullmatch(path.name))


def _read_manifest(path: Path, location: str) -> BaseManifest:
    try:
        manifest = BaseManifest.from_json(read_checked_json(path / MANIFEST_FILE))
        if manifest.name != path.name:
            raise ValueError(f"it is the manifest of the base {manifest.name}")
    except (DataLoss, ValueError, LookupError, TypeError, pa.ArrowException) as error:
        raise DataLoss(f"{location}: the manifest of the columnar base {path} cannot be read: {error}") from error
    return manifest


def _zones_in(file: MappedFile) -> dict[str, pa.StructArray]:
    table = pa.ipc.open_file(file.verified_copy()).read_all()
    return {name: table.column(name).combine_chunks() for name in table.schema.names}
