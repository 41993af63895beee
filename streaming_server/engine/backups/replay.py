"""Takes a bucket of a restored table forward from its backup to an instant, by the write-ahead log in the archive.

RocksDB itself replays the log, so the bucket gets exactly what it had: rows, hidden values, changelog, index entries.
The log is cut before the first commit after the instant.
"""

from __future__ import annotations

import mmap
import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scankv.model.errors import DataLoss, ScanKvError
from streaming_server.storage.bucket.bucket_state import STATE_KEY, BucketState, load_state
from streaming_server.storage.rocks.store import META, RocksStore
from streaming_server.storage.rocks.store_files import create_empty, families_of
from streaming_server.storage.rocks.write_ahead_log import find_log_files, find_put, log_path, read_writes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.storage.backup.archive_segment import LogPiece
    from streaming_server.storage.rocks.store_options import RocksResources
    from streaming_server.storage.rocks.write_ahead_log import LogFile, LoggedWrite


class CannotReplay(ScanKvError):
    """The archive lacks what is needed to take a table forward."""

    code = "FAILED_PRECONDITION"
    reason = "CANNOT_REPLAY"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedLog:
    """What the archive has of the write-ahead log of a bucket.

    Attributes:
        families: The names of the column families of its store. The index is the number of the family.
        pieces: The parts of its files, in the order in which they were archived.
        doubtful: By file, from where on it may have commits after the instant.
    """

    families: tuple[str, ...]
    pieces: tuple[LogPiece, ...]
    doubtful: Mapping[int, int]


class LogReplay:
    """Prepares the log of one bucket, which RocksDB then replays when it opens the bucket. Its methods block.

    Args:
        path: The directory of the bucket, as it is in the backup. Missing: the backup lacks the bucket.
        location: The name of the bucket in errors.
        definition: The definition of the table at the instant.
        micros: The instant, in microseconds since 1970 UTC.
        resources: For opening the bucket.
    """

    def __init__(
        self, path: Path, location: str, definition: TableDefinition, micros: int, resources: RocksResources
    ) -> None:
        self._path = path
        self._location = location
        self._definition = definition
        self._micros = micros
        self._resources = resources

    def prepare(self, log: ArchivedLog, before: BucketState | None, read: Callable[[LogPiece], bytes]) -> int:
        """Writes the files of the log up to the instant.

        Args:
            log: The log.
            before: The state in the backup. None: the backup lacks the bucket.
            read: Reads a part of the log.

        Returns:
            RocksDB's number of the last write that the bucket will have.

        Raises:
            CannotReplay: The archive lacks writes after the backup.
            DataLoss: The bucket or its log is damaged.
        """
        sequence = 0
        if before is None:
            create_empty(self._path, log.families, self._resources)
        else:
            sequence = self._check_backup(before)
        for piece in log.pieces:
            self._write(piece, read)
        return self._cut(sequence, log.doubtful)

    def _check_backup(self, before: BucketState) -> int:
        # For reading only, because RocksDB would otherwise begin a new file, whose number the archive may have.
        compression = self._definition.options.compression
        store = RocksStore(
            self._path, self._location, compression=compression, resources=self._resources, read_only=True
        )
        try:
            check_state(load_state(store), before, self._location)
            return store.sequence
        finally:
            store.close()

    def _write(self, piece: LogPiece, read: Callable[[LogPiece], bytes]) -> None:
        path = log_path(self._path, piece.log)
        size = path.stat().st_size if path.exists() else 0
        # The backup has all writes of a file whose beginning is missing. `_cut` verifies that.
        if piece.start <= size < piece.end:
            with path.open("ab") as file:
                file.write(read(piece)[size - piece.start :])

    def _cut(self, sequence: int, doubtful: Mapping[int, int]) -> int:
        """Ends the log before the first write after the instant, and returns the number of the last write."""
        family, following, has_begun = families_of(self._path).index(META), sequence + 1, False
        files = find_log_files(self._path)
        for number, file in enumerate(files):
            end = 0
            with _mapped(file) as content:
                for write in read_writes(content, self._location):
                    if not has_begun and write.following <= following:
                        end = write.end  # The backup has it.
                        continue
                    if write.sequence != following:
                        raise CannotReplay(f"the archive lacks writes to {self._location} after the backup")
                    if write.end > doubtful.get(file.number, file.size) and self._is_later(write, family):
                        _end_log(file, end, files[number + 1 :])
                        return following - 1
                    following, end, has_begun = write.following, write.end, True
            # Without a last write that a power cut has left incomplete: RocksDB would take it for damage.
            _end_log(file, end, ())
        return following - 1

    def _is_later(self, write: LoggedWrite, family: int) -> bool:
        """Whether a write is a commit after the instant, or follows a later definition of the table."""
        stored = find_put(write, family, STATE_KEY, self._location)
        if stored is None:
            return False
        state, drop = BucketState.from_bytes(stored), self._definition.last_drop
        return (
            state.commit_micros > self._micros
            or state.last_drop > (0 if drop is None else drop.number)
            or len(state.changelog_starts) > len(self._definition.earlier_changelogs)
            or max(state.indexes, default=0) > self._definition.last_index_id
        )


def check_state(state: BucketState, expected: BucketState, location: str) -> None:
    """Raises DataLoss if a bucket is not as the manifest of its backup says."""
    if (state.count, state.rows) != (expected.count, expected.rows):
        raise DataLoss(f"{location} differs from the manifest of the backup: it has {state.count:,} changes")


@contextmanager
def _mapped(file: LogFile) -> Iterator[mmap.mmap | bytes]:
    if not file.size:
        yield b""
        return
    with file.path.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
        yield content


def _end_log(file: LogFile, size: int, later: Iterable[LogFile]) -> None:
    """Ends a file, durably, and removes later ones."""
    with file.path.open("r+b") as opened:
        opened.truncate(size)
        os.fsync(opened.fileno())
    for each in later:
        each.path.unlink()
