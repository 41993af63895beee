"""The write-ahead log of a RocksDB directory: its files, and the writes in them.

The formats are those of RocksDB: `db/log_format.h` for the records of a file, `db/write_batch.cc` for a write, and
`db/dbformat.h` for the types of its entries.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Final

import google_crc32c

from scankv.model.errors import DataLoss

if TYPE_CHECKING:
    import mmap
    from collections.abc import Iterable, Iterator
    from pathlib import Path

ARCHIVE: Final = "archive"
"""The directory to which RocksDB moves files whose writes are all in SST files, if it is configured to keep them."""

SUFFIX: Final = ".log"

_BLOCK_BYTES: Final = 32_768
_SECTOR_BYTES: Final = 512
_RECORD_HEADER: Final = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
# RocksDB skips records of types from here on that it does not know.
_IGNORED: Final = 128
_WRITE_HEADER: Final = struct.Struct("<QI")

# How many strings an entry has, after the column family if its type names one.
_STRINGS: Final = {
    0x0: 1,  # deletion
    0x1: 2,  # value
    0x3: 1,  # a blob that is no entry of the database
    0x4: 1,  # deletion in a column family
    0x5: 2,  # value in a column family
    0xD: 0,  # no operation
    0xE: 2,  # deletion of a range in a column family
    0xF: 2,  # deletion of a range
}
_IN_FAMILY: Final = frozenset([0x4, 0x5, 0xE])
_PUT_IN_FAMILY: Final = 0x5


@dataclass(frozen=True, slots=True)
class LogFile:
    """One file of a write-ahead log.

    Attributes:
        number: Its number. Files with greater numbers have later writes.
        path: Where it is.
        size: Its bytes.
        is_archived: Whether RocksDB needs it no more.
    """

    number: int
    path: Path
    size: int
    is_archived: bool


@dataclass(frozen=True, slots=True)
class LoggedWrite:
    """One atomic write.

    Attributes:
        sequence: RocksDB's number of its first entry.
        entries: How many entries it has. The next write begins with the sum of both.
        end: Where its record ends in the file.
        content: The entries.
    """

    sequence: int
    entries: int
    end: int
    content: bytes

    @property
    def following(self) -> int:
        return self.sequence + self.entries


def find_log_files(store: Path) -> list[LogFile]:
    """Returns the files of the write-ahead log of a store, the oldest first. The store may be open."""
    found: dict[int, LogFile] = {}
    # In this order, because files move from the first place to the second.
    for directory, is_archived in ((store, False), (store / ARCHIVE, True)):
        for path in directory.glob(f"*{SUFFIX}"):
            try:
                found[int(path.stem)] = LogFile(int(path.stem), path, path.stat().st_size, is_archived)
            except (FileNotFoundError, ValueError):
                continue
    return [found[number] for number in sorted(found)]


def log_path(directory: Path, number: int) -> Path:
    """Returns the path of a file in a directory."""
    return directory / f"{number:06}{SUFFIX}"


def open_log_file(store: Path, number: int) -> BinaryIO:
    """Opens a file to be read, where it is now. Raises FileNotFoundError."""
    # In this order, because files move from the first place to the second.
    for directory in (store, store / ARCHIVE):
        with suppress(FileNotFoundError):
            return log_path(directory, number).open("rb")
    raise FileNotFoundError(f"{store} has no write-ahead log {number}")


def remove_kept_logs(store: Path, before: int | None = None) -> None:
    """Removes the files that the store needs no more; with `before`, only those with lower numbers."""
    for file in find_log_files(store):
        if file.is_archived and (before is None or file.number < before):
            file.path.unlink(missing_ok=True)


def remove_old_logs(stores: Iterable[Path], before_micros: int) -> None:
    """Removes files that stores no longer need, and that were last written before an instant."""
    for store in stores:
        for file in (store / ARCHIVE).glob(f"*{SUFFIX}"):
            with suppress(FileNotFoundError):
                if file.stat().st_mtime_ns < before_micros * 1000:
                    file.unlink()


def read_writes(content: bytes | mmap.mmap, location: str) -> Iterator[LoggedWrite]:
    """Yields the writes in the content of a file. A write that a crash has cut short at the end is left out.

    Rule: a write is cut short if the file ends in it, or if the file has only the beginning of one of its records, up
    to the end of a sector, and nothing but zeros after that. A power cut leaves zeros where the file system has stored
    the size of the file before its content.

    Raises:
        DataLoss: The file is damaged otherwise, or has another format.
    """
    at, parts = 0, list[bytes]()
    while True:
        left = _BLOCK_BYTES - at % _BLOCK_BYTES
        if left < _RECORD_HEADER.size:
            at += left
            continue
        if at + _RECORD_HEADER.size > len(content):
            return
        checksum, size, type_ = _RECORD_HEADER.unpack_from(content, at)
        end = at + _RECORD_HEADER.size + size
        if end > len(content):
            return
        record = content[at + _RECORD_HEADER.size : end]
        if checksum != _checksum(type_, record):
            if _is_cut_short(content, at, end):
                return
            raise DataLoss(f"the write-ahead log of {location} is damaged at byte {at:,}")
        if type_ < _IGNORED:
            if not _FULL <= type_ <= _LAST or bool(parts) != (type_ in (_MIDDLE, _LAST)):
                raise DataLoss(f"the write-ahead log of {location} has a record of type {type_} at byte {at:,}")
            parts.append(record)
            if type_ in (_FULL, _LAST):
                write, parts = b"".join(parts), []
                sequence, entries = _WRITE_HEADER.unpack_from(write)
                yield LoggedWrite(sequence, entries, end, write[_WRITE_HEADER.size :])
        at = end


def _checksum(type_: int, record: bytes) -> int:
    checksum = int(google_crc32c.extend(google_crc32c.value(bytes([type_])), record))
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _is_cut_short(content: bytes | mmap.mmap, start: int, end: int) -> bool:
    """Whether only a part of a damaged record was written: see `read_writes`."""
    kept = start + len(content[start:].rstrip(b"\0"))
    if kept == start:
        return True
    cut = -(-kept // _SECTOR_BYTES) * _SECTOR_BYTES
    # If not even its header was kept, its size is unknown.
    return cut < max(end, start + _RECORD_HEADER.size)


def ends_cut_short(store: Path) -> bool:
    """Whether the log of a closed store is undamaged, except that a crash has cut short its last write."""
    is_cut = False
    for file in find_log_files(store):
        if file.is_archived:
            continue
        content, end = file.path.read_bytes(), 0
        if is_cut and content.strip(b"\0"):
            return False  # A sync covers a file only after all earlier ones, but this one may have been synced.
        try:
            for write in read_writes(content, str(store)):
                end = write.end
        except DataLoss:
            return False
        is_cut = is_cut or bool(content[end:].strip(b"\0"))
    return is_cut


def find_put(write: LoggedWrite, family: int, key: bytes, location: str) -> bytes | None:
    """Returns the last value that a write puts under a key of a column family. None: it puts none.

    Raises:
        DataLoss: The write has another format.
    """
    content, at, value = write.content, 0, None
    try:
        while at < len(content):
            type_, at = content[at], at + 1
            of = 0
            if type_ in _IN_FAMILY:
                of, at = _read_number(content, at)
            strings = []
            for _ in range(_STRINGS[type_]):
                size, at = _read_number(content, at)
                strings.append((at, size))
                at += size
            if type_ == _PUT_IN_FAMILY and of == family:
                start, size = strings[0]
                if size == len(key) and content.startswith(key, start):
                    start, size = strings[1]
                    value = content[start : start + size]
    except (LookupError, IndexError) as error:
        raise DataLoss(f"the write-ahead log of {location} has an unknown entry: {error}") from error
    return value


def _read_number(content: bytes, at: int) -> tuple[int, int]:
    """Reads a number of a variable length, and returns it with where it ends."""
    number, shift = 0, 0
    while (byte := content[at]) >= 0x80:
        number |= (byte & 0x7F) << shift
        shift, at = shift + 7, at + 1
    return number | byte << shift, at + 1
