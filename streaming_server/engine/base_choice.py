"""Which buckets of a live table a scan reads out of their columnar bases."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from streaming_server.scan.base_view import Via, choose
from streaming_server.scan.opening import NO_BASES
from table_model.errors import DataLoss, InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from streaming_server.engine.live_bucket import LiveBucket
    from streaming_server.scan.base_view import BaseView
    from streaming_server.scan.opening import ReadPlan
    from streaming_server.scan.row_reader import RowReader
    from streaming_server.storage.bucket import Bucket
    from table_model.errors import ScanKvError

_log: Final = logging.getLogger(__name__)


def bases_of(plan: ReadPlan, reader: RowReader, opened: Sequence[tuple[LiveBucket, Bucket]]) -> Mapping[int, BaseView]:
    """The buckets that are read out of their bases, as of now; the others are read row by row. Hold their mutexes.

    Raises:
        InvalidRequest: Bases are asked for, and there is one missing, or the scan cannot be read so.
    """
    choice = choose(plan, reader)
    if plan.via is Via.BASE and not choice.possible:
        raise InvalidRequest(f'this cannot be read via "base": {choice.reason}; leave `via` out')
    if not choice.base:
        return NO_BASES
    bases = {live.number: view for live, _ in opened if (view := live.base_view()) is not None}
    if plan.via is Via.BASE:
        _check_all(opened, bases)
    return bases


def via_of(plan: ReadPlan, reader: RowReader, through_index: bool, chosen: Sequence[LiveBucket]) -> tuple[Via, str]:
    """What `bases_of` would choose now, and why, in words. Takes no mutex."""
    if through_index:
        return Via.ITERATOR, "single keys are looked up"
    choice = choose(plan, reader)
    if not choice.base:
        return Via.ITERATOR, choice.reason
    there = sum(live.has_base for live in chosen)
    if not there:
        return Via.ITERATOR, "no bucket has a columnar base"
    some = "" if there == len(chosen) else f"; {len(chosen) - there} of {len(chosen)} buckets have no base"
    return Via.BASE, choice.reason + some


def note_damaged_base(live: LiveBucket, name: str, error: ScanKvError) -> ScanKvError:
    """The same error, with the bucket in its details; the base of this name is read no more, and built again."""
    if isinstance(error, DataLoss):
        _log.error("a columnar base is read no more, and built again: %s", error.message)
        if live.base is not None and live.base.info.name == name:
            live.forget_base()
        error = DataLoss(f"{error.message}; no row is lost: scan again, and the rows are read from RocksDB")
    error.details.setdefault("table", live.table)
    error.details.setdefault("bucket", str(live.number))
    return error


def _check_all(opened: Sequence[tuple[LiveBucket, Bucket]], bases: Mapping[int, BaseView]) -> None:
    missing = [live.number for live, bucket in opened if live.number not in bases and bucket.state.rows != 0]
    if missing:
        raise InvalidRequest(
            f'bucket {missing[0]} cannot be read via "base": it has none yet, too much was written since, or '
            "readers keep too many of its states; leave `via` out, or create the table with columnar_base",
            bucket=missing[0],
        )
