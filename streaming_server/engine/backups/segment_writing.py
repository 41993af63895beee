"""How a segment of the archive is stored: first copies of what is new in the logs, then the record of the segment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Final

import xxhash

from streaming_server.engine.backups.archived_so_far import ArchivedUpTo
from streaming_server.storage.backup.archive_segment import ArchiveGap, ArchiveSegment, BucketSegment, LogPiece
from streaming_server.storage.backup.backup_store import BackupStore, archived_name, instant_id
from streaming_server.storage.rocks.write_ahead_log import open_log_file
from streaming_server.storage.tables.consumers import ConsumerDirectory, ConsumerRecord

if TYPE_CHECKING:
    from pathlib import Path

    from streaming_server.engine.backups.archived_so_far import ArchivedSoFar, Place
    from streaming_server.engine.backups.kept_logs import KeptLogs
    from streaming_server.engine.backups.segment_capture import CapturedLog, SegmentCapture

_PIECE_BYTES: Final = 4 << 20
_DATA_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """What was stored.

    Attributes:
        segment: The segment. None: nothing was written.
        positions: Up to where each bucket is archived.
        consumers: When the consumers of tables were changed last.
    """

    segment: ArchiveSegment | None
    positions: dict[Place, ArchivedUpTo]
    consumers: dict[str, int]


class _Gap(Exception):
    """A bucket no longer has writes that were not archived."""


def store_segment(
    store: BackupStore, kept: KeptLogs, archived: ArchivedSoFar, capture: SegmentCapture
) -> StoredSegment:
    """Stores a segment, if anything was written. Blocks.

    Adds to `capture.gaps` what the buckets no longer have.
    """
    data = _DataWriter(store, instant_id(capture.micros))
    buckets: dict[str, dict[int, BucketSegment]] = {}
    positions = dict(archived.positions)
    for place, log in capture.files.items():
        try:
            pieces = _copy(data, kept, place, log, archived.positions.get(place))
        except (_Gap, FileNotFoundError) as error:
            capture.gaps[place[0]] = ArchiveGap(capture.micros, f"bucket {place[1]} no longer has them ({error})")
            positions.pop(place, None)
            continue
        if pieces:
            segment = BucketSegment(families=log.families, pieces=tuple(pieces))
            buckets.setdefault(place[0], {})[place[1]] = segment
            positions[place] = ArchivedUpTo(pieces[-1].log, pieces[-1].end)
    data.flush()
    changed, consumers = _changed_consumers(archived, capture.tables)
    committed = [each.to_json() for each in capture.committed]
    is_lacking = (capture.left_out, capture.gaps) != (archived.left_out, archived.gaps)
    has_news = buckets or changed or committed or capture.changes or is_lacking
    if archived.previous and not has_news:
        return StoredSegment(None, positions, changed)
    stored = ArchiveSegment(
        segment_id=data.segment_id,
        previous=archived.previous,
        since_micros=archived.since_micros,
        gap_micros=archived.gap_micros,
        micros=capture.micros,
        ended_micros=capture.ended_micros,
        times=capture.times,
        changes=tuple(capture.changes),
        consumers=consumers,
        committed=tuple(committed),
        buckets=buckets,
        left_out=capture.left_out,
        gaps=capture.gaps,
    )
    store.write_segment(data.segment_id, stored.to_json())
    return StoredSegment(stored, positions, changed)


def _copy(
    data: _DataWriter, kept: KeptLogs, place: Place, captured: CapturedLog, position: ArchivedUpTo | None
) -> list[LogPiece]:
    """Copies what the write-ahead log of a bucket has beyond what is archived."""
    files = captured.files
    if position is not None and files:
        files = tuple((log, size) for log, size in files if log >= position.log)
        if not files:
            raise _Gap(f"its write-ahead log has started over at {captured.files[0][0]}, after {position.log}")
        if files[0][0] != position.log or files[0][1] < position.end:
            raise _Gap(f"its write-ahead log {position.log} was removed")
    pieces: list[LogPiece] = []
    for log, size in files:
        start = position.end if position is not None and log == position.log else 0
        with _open_log(kept, captured.path, place, log) as file:
            file.seek(start)
            while start < size:
                content = file.read(min(_PIECE_BYTES, size - start))
                if not content:
                    raise _Gap(f"its write-ahead log {log} has become shorter")
                pieces.append(data.add(log, start, content))
                start += len(content)
    return pieces


def _open_log(kept: KeptLogs, path: Path, place: Place, number: int) -> BinaryIO:
    try:
        return open_log_file(path, number)
    except FileNotFoundError:
        # The table was dropped in the meantime.
        return kept.open(place, number)


def _changed_consumers(
    archived: ArchivedSoFar, tables: dict[str, Path]
) -> tuple[dict[str, int], dict[str, tuple[ConsumerRecord, ...]]]:
    """Returns when the consumers of tables were changed, and the consumers, if that was not seen before."""
    changed: dict[str, int] = {}
    consumers: dict[str, tuple[ConsumerRecord, ...]] = {}
    for incarnation, path in tables.items():
        try:
            at = (path / "consumers").stat().st_mtime_ns
        except FileNotFoundError:
            continue
        if archived.consumers.get(incarnation) != at:
            changed[incarnation] = at
            records = (record for _, record in ConsumerDirectory(path).read())
            consumers[incarnation] = tuple(each for each in records if isinstance(each, ConsumerRecord))
    return changed, consumers


class _DataWriter:
    """Puts the data of a segment into a few objects."""

    def __init__(self, store: BackupStore, segment_id: str) -> None:
        self._store = store
        self.segment_id = segment_id
        self._number = 1
        self._contents: list[bytes] = []
        self._size = 0

    def add(self, log: int, start: int, content: bytes) -> LogPiece:
        """Adds a part of a file of a write-ahead log."""
        if self._size + len(content) > _DATA_BYTES:
            self.flush()
        piece = LogPiece(
            log=log,
            start=start,
            size=len(content),
            data=archived_name(self.segment_id, self._number),
            offset=self._size,
            checksum=xxhash.xxh3_128_hexdigest(content),
        )
        self._contents.append(content)
        self._size += len(content)
        return piece

    def flush(self) -> None:
        """Stores what was added."""
        if self._contents:
            self._store.put_archived(archived_name(self.segment_id, self._number), b"".join(self._contents))
            self._number += 1
            self._contents, self._size = [], 0
