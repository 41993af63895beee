"""Opens the files of a bucket: for reading and writing, or for reading only where they cannot be written."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from scankv.model.errors import DataLoss, DiskFailed, DiskFull, ScanKvError
from scankv.model.keys.key_range import KeyRange
from streaming_server.storage.bucket.bucket import Bucket
from streaming_server.storage.bucket.writer_states import DEFAULT_WRITER_LIMITS
from streaming_server.storage.changelog.offsets import count_of
from streaming_server.storage.files.disk_space import disk_full
from streaming_server.storage.files.file_limit import check_files_left
from streaming_server.storage.rocks.store_files import is_complete

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.clock import ServerClock
    from streaming_server.storage.bucket.bucket_state import BucketState
    from streaming_server.storage.bucket.writer_states import WriterLimits
    from streaming_server.storage.rocks.store_options import RocksResources

_log: Final = logging.getLogger(__name__)


class BucketOpener:
    """Opens the files of one bucket, and applies the retention holds on its changelog. Its methods run in threads.

    Attributes:
        path: The bucket's directory.
        location: The name of the bucket in errors.

    Args:
        path: The bucket's directory.
        location: The name of the bucket in errors.
        compression: The table's compression.
        resources: Shared by all buckets of the process.
        clock: The server's clock.
        mark_seconds: Returns how precisely the ages of changes must be known, in seconds.
        indexes: Returns the ids of the table's current indexes.
        retention_holds: Returns the retention holds on the changelog: offset by owner.
        writer_limits: The limits of the bucket's writers.
        definition: Returns the table's current definition.
    """

    def __init__(
        self,
        path: Path,
        location: str,
        *,
        compression: str,
        resources: RocksResources,
        clock: ServerClock,
        mark_seconds: Callable[[], float],
        indexes: Callable[[], Collection[int]],
        definition: Callable[[], TableDefinition],
        retention_holds: Callable[[], Mapping[str, int]] = dict,
        writer_limits: WriterLimits = DEFAULT_WRITER_LIMITS,
    ) -> None:
        self.path = path
        self.location = location
        self._compression = compression
        self._resources = resources
        self._clock = clock
        self._mark_seconds = mark_seconds
        self._indexes = indexes
        self._definition = definition
        self._retention_holds = retention_holds
        self._writer_limits = writer_limits
        self._held_at_opening: frozenset[str] = frozenset()

    def open(self) -> Bucket:
        """Opens the bucket, for reading only where the disk is full or cannot be written.

        Raises:
            DataLoss: The bucket is damaged.
            DiskFull, DiskFailed: The bucket cannot be created, or cannot be read either.
            ScanKvError: The files cannot be opened.
        """
        check_files_left(self.location)
        try:
            bucket = self._open()
        except (DiskFull, DiskFailed) as error:
            if not is_complete(self.path):
                raise  # The bucket could not be created, so it has nothing to read.
            _log.warning("%s can only be read: %s", self.location, error.message)
            bucket = self._open(read_only=error)
        self._held_at_opening = self._take_holds(bucket)
        return bucket

    def reopen(self, before: Bucket, *, has_space: bool, can_be_read: bool) -> Bucket | None:
        """Opens a bucket again after a failed write or sync. It takes over the retention holds.

        Args:
            before: The bucket that failed. It is abandoned, unless it is for reading only.
            has_space: Whether the disk has space to write. Without it, the bucket is opened for reading only.
            can_be_read: Whether `before` can still be read.

        Returns:
            None if the bucket still cannot be written, and `before` can still be read.

        Raises:
            DataLoss: The bucket is damaged, or has lost writes that were not durable.
        """
        if not before.is_read_only:
            # The new store needs RocksDB's lock.
            before.abandon()
        bucket: Bucket | None = None
        why = before.refusal or disk_full(self.path)
        if has_space:
            try:
                bucket = self._open(after=before.state)
            except DataLoss:
                raise
            except ScanKvError as error:
                _log.warning("%s still cannot be written: %s [%s]", self.location, error.message, error.__cause__)
                why = before.refusal or error
        if bucket is None:
            if can_be_read:
                return None
            bucket = self._open(read_only=why, after=before.state)
        if bucket.sequence < before.sequence:
            bucket.close()
            raise DataLoss(
                f"{self.location} has lost writes that were not durable, because a sync failed: restart the server, "
                "which then serves what was durable"
            )
        before.hand_holds_to(bucket)
        return bucket

    def renew_holds(self, bucket: Bucket) -> None:
        """Applies the changes of retention holds that were made while a thread was opening the bucket.

        The calls that changed them found no open bucket. Rule: a hold that has ended retains nothing, and a hold that
        was taken retains every change from its offset on.
        """
        for owner in self._held_at_opening - self._take_holds(bucket):
            bucket.log.holds.release(owner)

    def has_followed(self, bucket: Bucket) -> bool:
        """Whether a bucket records changes as the table now wants it, and has followed the last drop of partitions."""
        definition = self._definition()
        drop = definition.last_drop
        if drop is None and not definition.earlier_changelogs:
            return True
        state = bucket.state
        is_followed = drop is None or state.last_drop == drop.number
        return is_followed and len(state.changelog_starts) == len(definition.earlier_changelogs)

    def has_other_changelog(self, bucket: Bucket) -> bool:
        """Whether a bucket that can be written does not record changes as the table now wants it."""
        return len(bucket.state.changelog_starts) != len(self._definition().earlier_changelogs) and bucket.is_writable

    def set_changelog(self, bucket: Bucket) -> None:
        """Makes a bucket record changes as the table wants it: see `Bucket.set_changelog`."""
        definition = self._definition()
        bucket.set_changelog(definition.changelogs, definition.schema.id)

    def has_dropped_partitions(self, bucket: Bucket) -> bool:
        """Whether a bucket that can be written has not followed the last drop of partitions of the table."""
        drop = self._definition().last_drop
        return drop is not None and bucket.state.last_drop != drop.number and bucket.is_writable

    def drop_partitions(self, bucket: Bucket) -> list[KeyRange]:
        """Makes a bucket follow the last drop of partitions: see `Bucket.follow_drop`. Returns their key ranges."""
        definition = self._definition()
        assert definition.last_drop is not None
        bucket.follow_drop(definition.last_drop, definition)
        return [KeyRange.under(prefix) for prefix in definition.last_drop.prefixes]

    @property
    def hold_owners(self) -> set[str]:
        """The owners whose retention holds are taken again when the bucket is opened."""
        return {*self._retention_holds()}

    def _open(self, *, read_only: ScanKvError | None = None, after: BucketState | None = None) -> Bucket:
        bucket = Bucket(
            self.path,
            self.location,
            compression=self._compression,
            resources=self._resources,
            clock=self._clock,
            writer_limits=self._writer_limits,
            read_only=read_only,
            state_at_close=after,
            mark_seconds=self._mark_seconds(),
        )
        try:
            bucket.set_indexes(self._indexes())
        except BaseException:
            bucket.close()
            raise
        return bucket

    def _take_holds(self, bucket: Bucket) -> frozenset[str]:
        holds = self._retention_holds()
        for owner, offset in holds.items():
            # An owner whose changes are gone has lost its hold, and finds that out when it reads.
            if count_of(offset) >= bucket.state.log_first:
                bucket.log.holds.hold(owner, offset)
        return frozenset(holds)
