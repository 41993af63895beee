"""Adopts the columnar bases that an earlier server built, before the first read that can use them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from scankv.model.errors import DataLoss, ScanKvError
from streaming_server.engine.columnar.base_replay import BaseReplay
from streaming_server.engine.tasks.executor import all_ended
from streaming_server.scan.columnar.delta import Delta
from streaming_server.storage.columnar.columnar_base import newest_base, remove_bases

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from streaming_server.engine.bucket.live_bucket import LiveBucket
    from streaming_server.engine.bucket.table_state import TableState

_log: Final = logging.getLogger(__name__)


async def adopt_bases(table: TableState, buckets: Sequence[LiveBucket]) -> None:
    """Makes the bases on disk usable, for buckets in which the server has not looked for one yet. Opens these buckets.

    Call it before the mutexes are held, and before the choice whether a read uses bases. Afterwards it returns without
    waiting. A base that cannot be adopted never fails the read: its bucket is read from RocksDB.
    """
    if table.definition.options.columnar_base == "off":
        return
    new = [live for live in buckets if not live.columnar.is_adopted]
    if new:
        await all_ended(_try_to_adopt(table, live) for live in new)


async def _try_to_adopt(table: TableState, live: LiveBucket) -> None:
    try:
        await adopt_base(table, live)
    except (ScanKvError, OSError) as error:
        # If the bucket cannot be opened, the read that follows reports the error.
        if live.columnar.is_adopted:
            _log.warning("the columnar base of %s is not read: %s", live.location, error)
    except Exception:
        _log.exception("the columnar base of %s is not read", live.location)


async def adopt_base(table: TableState, live: LiveBucket) -> None:
    """Adopts the newest base of a bucket, and completes it from the changelog. Removes bases that cannot be completed.

    Concurrent calls wait for the first one. A call that was cancelled, or could not open the bucket, is repeated by the
    next one; any other failure is final until the server restarts.

    Raises:
        DataLoss: The bucket is damaged.
        ScanKvError: The bucket cannot be opened.
        OSError: The files cannot be read.
    """
    slot = live.columnar
    async with slot.adoption:
        if slot.is_adopted:
            return
        async with live.mutex:
            await live.open()
        try:
            await _adopt(table, live)
        except ScanKvError as error:
            slot.is_adopted = isinstance(error, DataLoss)
            raise
        except Exception:
            slot.is_adopted = True
            raise
        slot.is_adopted = True


def bases_directory(table: TableState, live: LiveBucket) -> Path:
    """Returns the directory of the bases of a bucket."""
    return table.path / "bases" / f"{live.number:04}"


def remove_all_bases(directory: Path) -> None:
    """Removes the bases of a bucket. Blocks."""
    remove_bases(directory, but=None)


async def _adopt(table: TableState, live: LiveBucket) -> None:
    directory, record = bases_directory(table, live), live.columnar.record
    base = await table.executor.run(newest_base, directory, live.location)
    if base is None:
        return
    info, definition = base.info, table.definition
    if (info.incarnation, info.bucket) == (definition.incarnation, live.number):
        replay = BaseReplay(table, live, base, Delta(info.log_offset, table.base_delta_bytes))
        if await replay.run():
            record.adopt(info.disk_bytes, info.cut_millis)
            return
        record.lost = "the base on disk could not be completed from the changelog"
    await table.executor.run(remove_all_bases, directory)
