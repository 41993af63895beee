"""Records of append-only files: a small JSON head and a binary payload, with a checksum over both.

A head may name its format in the field `format`. A head without that field has format 1, the only one so far.
"""

from __future__ import annotations

import json
import os
import struct
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import google_crc32c

from streaming_server.storage.files.disk_space import translate_disk_errors
from streaming_server.storage.files.formats import check_format

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_FRAME: Final = struct.Struct("<4sIII")
_MAGIC: Final = b"SKVF"
_FORMAT: Final = 1
_READ_BYTES: Final = 1 << 20


def encode_frame(head: dict[str, Any], payload: bytes = b"") -> bytes:
    """Encodes a record as it is stored."""
    body = json.dumps(head, separators=(",", ":")).encode()
    checksum = google_crc32c.extend(google_crc32c.value(body), payload)
    return b"".join((_FRAME.pack(_MAGIC, len(body), len(payload), checksum), body, payload))


def read_frames(path: Path) -> Iterator[tuple[dict[str, Any], bytes, int]]:
    """Yields the head, the payload and the end position of each record, up to the first torn or damaged one.

    Memory: one record. A missing file has no records.

    Raises:
        NewerFormat: A newer ScanKV has written a record.
    """
    if not path.exists():
        return
    with path.open("rb", buffering=_READ_BYTES) as file:
        left, end = os.fstat(file.fileno()).st_size, 0
        while (frame := read_frame(file, path, left - end)) is not None:
            end += frame[2]
            yield frame[0], frame[1], end


def read_frame(file: BinaryIO, path: Path, left: int) -> tuple[dict[str, Any], bytes, int] | None:
    """Reads the record at the position of a file, and returns its head, its payload and its size in bytes.

    None: it is torn or damaged.

    Args:
        file: The file.
        path: Its path, for the error.
        left: How many bytes the file has from its position on.

    Raises:
        NewerFormat: A newer ScanKV has written the record.
    """
    if left < _FRAME.size or len(start := file.read(_FRAME.size)) < _FRAME.size:
        return None
    magic, head_bytes, payload_bytes, checksum = _FRAME.unpack(start)
    size = _FRAME.size + head_bytes + payload_bytes
    if magic != _MAGIC or size > left:
        return None
    head, payload = file.read(head_bytes), file.read(payload_bytes)
    if google_crc32c.extend(google_crc32c.value(head), payload) != checksum:
        return None
    fields = json.loads(head)
    # The checksum has shown that the record is not torn, so it must not be cut off.
    check_format(f"a record of {path}", fields.pop("format", _FORMAT), _FORMAT)
    return fields, payload, size


def write_at(path: Path, data: bytes, offset: int, *, sync: bool) -> None:
    """Writes to a file at an offset, and creates the file when it does not exist.

    With `sync`, the contents of the file are durable when this returns, but not its name: see `sync_directory`.

    Raises:
        DiskFull: The disk has no space left.
        OSError: Anything else.
    """
    with translate_disk_errors(path.parent):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            view = memoryview(data)
            while view:
                written = os.pwrite(fd, view, offset)
                view, offset = view[written:], offset + written
            if sync:
                os.fsync(fd)
        finally:
            os.close(fd)
