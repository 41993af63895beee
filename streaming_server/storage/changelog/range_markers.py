"""Range markers: records of the changelog that name a key range, instead of the changes of its rows.

A marker takes one offset. It says what has happened to the rows whose keys are in its range: they were inserted or
replaced, and none was deleted; or, with the reason `RANGE_DELETED`, all of them were deleted. A reader of changes that
meets a marker reads the rows of the range again, after it has dropped its own rows of a deleted range, or fails with
`RangeNotTracked`. No reader may pass over a marker: it would miss changes.

    header of a record, with format 3 and count 1 · reason u8 · length of start u32 · length of end u32 · start · end

All integers are little-endian. The end is excluded. A marker of a deleted range has format 4, so that a server that
does not know deleted ranges refuses it. Without an end, its range reaches to the last key of the bucket.

A marker whose reason is a change of the option `changelog` has an empty range: no row changed without a change in the
changelog. In place of start and end, it has the values of the option before and after. The changes after it are
recorded in another way, so a reader that cannot read them fails here.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from scankv.model.errors import DataLoss, RangeNotTracked
from scankv.model.keys.key_range import KeyRange
from streaming_server.storage.changelog.offsets import make_offset
from streaming_server.storage.changelog.records import (
    DELETION_FORMAT,
    MARKER_FORMAT,
    NO_ORIGIN,
    ChangeOrigin,
    decode_header,
    encode_header,
    record_key,
    refuse_newer_record,
)

_RANGE: Final = struct.Struct("<BII")


class MarkerReason(IntEnum):
    """Why the changes of a range are not in the changelog."""

    UNTRACKED_WRITE = 1
    CHANGELOG_OPTION = 2
    RANGE_DELETED = 3


@dataclass(frozen=True, slots=True)
class RangeMarker:
    """A key range of one bucket in which rows were inserted or replaced, or all rows were deleted. Immutable.

    Attributes:
        start: The least key of the range.
        end: The key after the greatest one of the range. None, possible only for a deleted range: up to the last key of
            the bucket.
        reason: Why the changes are not in the changelog.
        origin: The writer of the rows.
        changelogs: The values of the option `changelog` before and after the marker, if that is the reason.
    """

    start: bytes
    end: bytes | None
    reason: MarkerReason = MarkerReason.UNTRACKED_WRITE
    origin: ChangeOrigin = NO_ORIGIN
    changelogs: tuple[str, str] | None = None

    @classmethod
    def between(cls, least: bytes, greatest: bytes) -> RangeMarker:
        """Returns the marker of the range from one key to another, both of which are in it."""
        return cls(least, greatest + b"\0")

    @classmethod
    def of_deletion(cls, keys: KeyRange) -> RangeMarker:
        """Returns the marker of the deletion of all rows in a range, which is not empty."""
        return cls(keys.start or b"", keys.end, MarkerReason.RANGE_DELETED)

    @classmethod
    def of_changelogs(cls, before: str, after: str) -> RangeMarker:
        """Returns the marker of a change of the option `changelog`."""
        return cls(b"", b"", MarkerReason.CHANGELOG_OPTION, changelogs=(before, after))

    def __len__(self) -> int:
        """The number of log offsets that the marker takes."""
        return 1

    @property
    def extremes(self) -> list[bytes]:
        """The least and the greatest key, of a range that `between` has made."""
        assert self.end is not None
        return [self.start, self.end[:-1]]

    @property
    def is_deletion(self) -> bool:
        """Whether all rows of the range were deleted."""
        return self.reason is MarkerReason.RANGE_DELETED

    @property
    def keys(self) -> KeyRange:
        """The range of keys."""
        return KeyRange(self.start, self.end)


@dataclass(frozen=True, slots=True)
class MarkerRecord:
    """A range marker in the changelog.

    Attributes:
        offset: The offset of the marker. The next record has the next offset.
        epoch: The epoch of the bucket in which it was written.
        schema_id: The version of the table's schema at that time.
        commit_micros: The commit time of the rows, in microseconds since 1970 UTC.
        marker: The range.
    """

    offset: int
    epoch: int
    schema_id: int
    commit_micros: int
    marker: RangeMarker


class MarkerReached(RangeNotTracked):
    """The next record of the changelog is a range marker.

    `ChangeLog.read` raises it, so a reader that does not catch it fails rather than miss changes.

    Attributes:
        record: The marker.
    """

    record: MarkerRecord

    @classmethod
    def at(cls, record: MarkerRecord, location: str) -> MarkerReached:
        """Returns the error for a marker in the bucket that is named `location` in errors."""
        changelogs = record.marker.changelogs
        if record.marker.is_deletion:
            error = cls(
                f"{location}: all rows of a key range were deleted at offset {record.offset}, and the changelog has no "
                "change for each of them: read the rows of the table again; mirrors, and streams that read with "
                'untracked="rescan" and a listener for cleared ranges, continue, and so do Spark queries with '
                "untracked=rescan and deleted_ranges=skip, and `scankv tail --untracked rescan --format json`",
                offset=record.offset,
            )
        elif changelogs is None:
            error = cls(
                f"{location}: the changes at offset {record.offset} are not in the changelog, because rows were "
                "written with track_changes=False: read the rows of the table again, or ask the stream for them with "
                '"rescan"',
                offset=record.offset,
            )
        else:
            before, after = changelogs
            error = cls(
                f'{location}: the table option "changelog" was changed from "{before}" to "{after}" at offset '
                f"{record.offset}, so that updates from there on come without the row before them: start again with "
                'all rows, or after this offset; a reader that needs no "-U" can ask the stream for "rescan"',
                offset=record.offset,
                changelog=after,
            )
        error.record = record
        return error


def encode_marker(
    marker: RangeMarker, *, epoch: int, count: int, schema_id: int, commit_micros: int
) -> tuple[bytes, bytes]:
    """Encodes a marker, which is change number `count` of its bucket, as a record: key and value."""
    format_ = DELETION_FORMAT if marker.is_deletion else MARKER_FORMAT
    header = encode_header(format_, epoch, schema_id, commit_micros, len(marker), marker.origin)
    keys = marker.start, marker.end or b""
    first, second = keys if marker.changelogs is None else map(str.encode, marker.changelogs)
    body = _RANGE.pack(marker.reason, len(first), len(second)) + first + second
    return record_key(make_offset(epoch, count)), header + body


def decode_marker(key: bytes, value: bytes) -> MarkerRecord:
    """Decodes a marker from its stored key and value.

    Raises:
        NewerFormat: The record has an unknown format or flag.
        DataLoss: The record is damaged, or is no marker.
    """
    header = decode_header(key, value)
    refuse_newer_record(header.offset, header.format, value[1])
    body = value[header.length :]
    try:
        reason, *lengths = _RANGE.unpack_from(body)
        start, end = body[_RANGE.size :][: lengths[0]], body[_RANGE.size :][lengths[0] :]
        if not header.is_marker or header.count != 1 or lengths != [len(start), len(end)]:
            raise ValueError("not a range marker")
        is_deletion = reason == MarkerReason.RANGE_DELETED
        if is_deletion is not (header.format == DELETION_FORMAT):
            raise ValueError("another format than that of its reason")
        if reason == MarkerReason.CHANGELOG_OPTION:
            marker = RangeMarker.of_changelogs(start.decode(), end.decode())
        elif start >= end and not (is_deletion and not end):
            raise ValueError("an empty range")
        else:
            marker = RangeMarker(start, end or None, MarkerReason(reason), header.origin)
    except (struct.error, ValueError) as error:
        raise DataLoss(f"the range marker at offset {header.offset} of the changelog is damaged") from error
    return MarkerRecord(header.offset, header.epoch, header.schema_id, header.commit_micros, marker)
