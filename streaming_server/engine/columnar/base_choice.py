"""Chooses the buckets of a live table that a scan reads from their columnar bases."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from scankv.model.errors import DataLoss
from streaming_server.scan.columnar.base_view import bases_for, buckets_with_bases, choose_read_path
from streaming_server.scan.read_plan import ReadPath

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from scankv.model.errors import ScanKvError
    from streaming_server.engine.bucket.live_bucket import LiveBucket
    from streaming_server.scan.columnar.base_view import BaseView
    from streaming_server.scan.read_plan import ReadPlan
    from streaming_server.scan.row_reader import RowReader
    from streaming_server.storage.bucket.bucket import Bucket

_WHY_NONE: Final = (
    "it has none yet, or running scans keep too many of its states; leave `read_path` out, or set columnar_base=eager"
)
_log: Final = logging.getLogger(__name__)


def choose_bases(
    plan: ReadPlan, reader: RowReader, opened: Sequence[tuple[LiveBucket, Bucket]]
) -> Mapping[int, BaseView]:
    """Chooses the buckets to read from their bases, as of now. The others are read row by row. Hold their mutexes.

    Raises:
        InvalidRequest: The request demands bases, but one is missing, or the scan cannot be read from bases.
    """
    filled = {live.number: live for live, bucket in opened if bucket.state.rows != 0}

    def view_of(number: int) -> BaseView | None:
        return filled[number].columnar.view(however_long=plan.read_path is ReadPath.COLUMNAR)

    return bases_for(plan, reader, filled, view_of, _WHY_NONE)


def choose_live_read_path(plan: ReadPlan, reader: RowReader, chosen: Sequence[LiveBucket]) -> tuple[ReadPath, str]:
    """Returns what `choose_bases` would choose now, with a human-readable reason. Takes no mutex."""
    return choose_read_path(plan, reader, *_usable_bases(plan, chosen))


def live_buckets_with_bases(plan: ReadPlan, reader: RowReader, chosen: Sequence[LiveBucket]) -> Collection[int]:
    """Returns the buckets of which `choose_bases` would choose the base now. Takes no mutex."""
    return buckets_with_bases(plan, reader, *_usable_bases(plan, chosen))


def _usable_bases(plan: ReadPlan, chosen: Sequence[LiveBucket]) -> tuple[list[int], dict[int, str]]:
    """Returns the buckets that may have rows, and for those whose base cannot be read the human-readable reason."""
    filled = [live for live in chosen if live.state is None or live.state.rows != 0]
    is_demanded = plan.read_path is ReadPath.COLUMNAR
    unusable = {
        live.number: reason for live in filled if (reason := live.columnar.unusable_reason(however_long=is_demanded))
    }
    return [live.number for live in filled], unusable


def record_errors(
    buckets: Mapping[int, LiveBucket], bases: Mapping[int, BaseView]
) -> Callable[[int, ScanKvError], ScanKvError]:
    """Returns a function to which a source reports errors. It returns the error to raise, as `LiveBucket.record_error`.

    A damaged base is not damage of its bucket: scans stop reading the base, and it is built again. The function knows
    bases by name only, so that a source that may still report an error keeps no base open.
    """
    names = {number: view.base.info.name for number, view in bases.items()}

    def record_error(number: int, error: ScanKvError) -> ScanKvError:
        if number in names:
            return _record_damaged_base(buckets[number], names[number], error)
        return buckets[number].record_error(error)

    return record_error


def _record_damaged_base(live: LiveBucket, name: str, error: ScanKvError) -> ScanKvError:
    """Returns the error with the bucket in its details. If the base is damaged, scans stop reading it."""
    if isinstance(error, DataLoss):
        _log.error("a columnar base is no longer read, and is built again: %s", error.message)
        if live.columnar.base is not None and live.columnar.base.info.name == name:
            live.columnar.drop("it was damaged")
        error = DataLoss(f"{error.message}; no row is lost: scan again, and the rows are read from RocksDB")
    error.details.setdefault("table", live.table)
    error.details.setdefault("bucket", str(live.number))
    return error
