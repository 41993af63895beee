"""Adopts the columnar bases that an earlier server built, before the first read that can use them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from scankv.model.errors import DataLoss, ScanKvError
from streaming_server.engine.bucket.holds import CURRENT_HOLD
from streaming_server.engine.columnar.base_replay import BaseReplay
from streaming_server.engine.tasks.executor import all_ended
from streaming_server.scan.columnar.delta import Delta
from streaming_server.storage.changelog.offsets import count_of
from streaming_server.storage.columnar.columnar_base import newest_base, remove_bases

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from streaming_server.engine.bucket.live_bucket import LiveBucket
    from streaming_server.engine.bucket.table_state import TableState
    from streaming_server.storage.bucket.bucket_state import BucketState

_MAX_CHANGED_SHARE: Final = 0.25
"""Reads wait for a base if the changes since it are at most this share of its rows. Reading a change from the changelog
takes about twice as long as reading a row from RocksDB, so a read that waits is still faster than without the base."""

_FEW_CHANGES: Final = 4096
"""Reads wait for so many changes in any case: they are read in a few milliseconds."""

_log: Final = logging.getLogger(__name__)


async def adopt_bases(table: TableState, buckets: Sequence[LiveBucket], *, however_long: bool = False) -> None:
    """Makes bases on disk usable, in buckets in which the server has not looked for one yet. Opens those that have one.

    Call it before the mutexes are held, and before the choice whether a read uses bases. A base that cannot be adopted
    never fails the read: its bucket is read from RocksDB.

    Args:
        table: The table.
        buckets: The buckets to read.
        however_long: Whether to wait also for bases with so many changes since that RocksDB is faster. Otherwise, the
            maintenance of bases adopts them in the background.
    """
    if table.definition.options.columnar_base == "off":
        return
    new = [
        live
        for live in buckets
        if not live.columnar.is_adopted and (however_long or not live.columnar.has_many_changes)
    ]
    if not new:
        return
    with_bases = await table.executor.run(_buckets_with_bases, table)
    for live in new:
        # The others are not opened, which would take 10 to 20 ms for each.
        live.columnar.is_adopted = live.columnar.is_adopted or live.number not in with_bases
    await all_ended(_try_to_adopt(table, live, however_long) for live in new if not live.columnar.is_adopted)


def _buckets_with_bases(table: TableState) -> frozenset[int]:
    """Returns the buckets that have a directory of bases. Blocks."""
    try:
        return frozenset(int(path.name) for path in _all_bases_directory(table).iterdir())
    except FileNotFoundError:
        return frozenset()


async def _try_to_adopt(table: TableState, live: LiveBucket, however_long: bool) -> None:
    try:
        await adopt_base(table, live, however_long=however_long)
    except (ScanKvError, OSError) as error:
        # If the bucket cannot be opened, the read that follows reports the error.
        if live.columnar.is_adopted:
            _log.warning("the columnar base of %s is not read: %s", live.location, error)
    except Exception:
        _log.exception("the columnar base of %s is not read", live.location)


async def adopt_base(table: TableState, live: LiveBucket, *, however_long: bool = True) -> None:
    """Adopts the newest base of a bucket, and completes it from the changelog. Removes bases that cannot be completed.

    Concurrent calls wait for the first one. A call that was cancelled, or could not open the bucket, is repeated by the
    next one; any other failure is final until the server restarts.

    Args:
        table: The table.
        live: The bucket.
        however_long: As in `adopt_bases`.

    Raises:
        DataLoss: The bucket is damaged.
        ScanKvError: The bucket cannot be opened.
        OSError: The files cannot be read.
    """
    slot = live.columnar
    if CURRENT_HOLD.get() is not None:
        return  # The hold has the mutex. Its bases were adopted before.
    async with slot.adoption:
        if slot.is_adopted:
            return
        if not await table.executor.run(bases_directory(table, live).is_dir):
            # There is no reason to open the bucket, or to count it as used.
            slot.is_adopted = True
            return
        async with live.mutex:
            state = (await live.open()).state
        try:
            if not await _adopt(table, live, state, however_long):
                return
        except ScanKvError as error:
            slot.is_adopted = isinstance(error, DataLoss)
            raise
        except Exception:
            slot.is_adopted = True
            raise
        slot.is_adopted = True


def bases_directory(table: TableState, live: LiveBucket) -> Path:
    """Returns the directory of the bases of a bucket."""
    return _all_bases_directory(table) / f"{live.number:04}"


def _all_bases_directory(table: TableState) -> Path:
    return table.path / "bases"


def remove_all_bases(directory: Path) -> None:
    """Removes the bases of a bucket. Blocks."""
    remove_bases(directory, but=None)


async def _adopt(table: TableState, live: LiveBucket, state: BucketState, however_long: bool) -> bool:
    """Returns False if the base has too many changes to wait for it."""
    directory, record = bases_directory(table, live), live.columnar.record
    base = await table.executor.run(newest_base, directory, live.location)
    if base is None:
        return True
    info, definition = base.info, table.definition
    if (info.incarnation, info.bucket) == (definition.incarnation, live.number):
        changes = state.count - count_of(info.log_offset)
        live.columnar.has_many_changes = changes > max(_FEW_CHANGES, _MAX_CHANGED_SHARE * info.rows)
        if live.columnar.has_many_changes and not however_long:
            record.waits = "the many changes since the base on disk are being read from the changelog"
            return False
        replay = BaseReplay(table, live, base, Delta(info.log_offset))
        if await replay.run():
            return True
        record.lost = "the base on disk could not be completed from the changelog"
    await table.executor.run(remove_all_bases, directory)
    return True
