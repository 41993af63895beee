"""What has changed between two answers of a process? Counters become rates, and latencies quantiles. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import zip_longest
from operator import sub
from typing import TYPE_CHECKING, Final, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from scankv.v1 import admin_pb2

_SLOW_SHARE: Final = 0.99
_NAN: Final = math.nan


class Point(NamedTuple):
    """What happened in the time before a sample. NaN: not known.

    Attributes:
        rows_written: A second.
        writes: Calls that write, a second.
        write_median: The median of their latencies, in seconds. NaN without calls, as the next one.
        write_slow: 99 of 100 calls took at most so long.
        rows_read: A second.
        reads: Lookups and queries, a second.
        read_median: As of writes.
        read_slow: As of writes.
        streams: The live scans at the time of the sample.
        disk_bytes: The size of the files.
    """

    rows_written: float = 0.0
    writes: float = 0.0
    write_median: float = _NAN
    write_slow: float = _NAN
    rows_read: float = 0.0
    reads: float = 0.0
    read_median: float = _NAN
    read_slow: float = _NAN
    streams: float = 0.0
    disk_bytes: float = _NAN


GAP: Final = Point(*[_NAN] * len(Point._fields))


@dataclass(frozen=True, slots=True)
class Counted:
    """The counters of a table at one process, or how much they have grown a second.

    Attributes:
        began_at: When they were 0, in microseconds by the clock of the process.
    """

    rows_written: float = 0
    writes: float = 0
    write_classes: Sequence[int] = ()
    rows_read: float = 0
    reads: float = 0
    read_classes: Sequence[int] = ()
    disk_bytes: int | None = None
    scans: frozenset[int] = frozenset()
    began_at: int = 0

    @classmethod
    def of(cls, message: admin_pb2.ActivityCounters) -> Self:
        """Copies a message, of which a part would keep all of it in memory."""
        return cls(
            message.rows_written,
            message.writes.calls,
            tuple(message.writes.classes),
            message.rows_read,
            message.reads.calls,
            tuple(message.reads.classes),
            message.disk_bytes if message.HasField("disk_bytes") else None,
            frozenset(message.live_scans),
            message.began_at_micros,
        )

    def growth_since(self, before: Counted | None, read_at: int, seconds: float) -> Counted | None:
        """Returns the growth a second since an earlier answer of the process. None: it is not known.

        Args:
            before: The counters of the earlier answer. None: it did not have them.
            read_at: When the earlier answer was made, in microseconds by the clock of the process.
            seconds: The time since then.
        """
        if before is None or before.began_at != self.began_at:
            if self.began_at < read_at:
                return None
            before = _NOTHING
        return Counted(
            (self.rows_written - before.rows_written) / seconds,
            (self.writes - before.writes) / seconds,
            _classes_since(self.write_classes, before.write_classes),
            (self.rows_read - before.rows_read) / seconds,
            (self.reads - before.reads) / seconds,
            _classes_since(self.read_classes, before.read_classes),
            self.disk_bytes,
            self.scans,
        )


_NOTHING: Final = Counted()


def point_of(growths: Sequence[Counted], disk_bytes: float, bounds: Sequence[float]) -> Point:
    """Returns the point of a table from its growths at all processes.

    Args:
        growths: The growths.
        disk_bytes: The size of the files at all processes.
        bounds: The upper bounds of the classes of latencies but the last.
    """
    writes, reads = _add(each.write_classes for each in growths), _add(each.read_classes for each in growths)
    return Point(
        sum(each.rows_written for each in growths),
        sum(each.writes for each in growths),
        quantile(writes, bounds, 0.5),
        quantile(writes, bounds, _SLOW_SHARE),
        sum(each.rows_read for each in growths),
        sum(each.reads for each in growths),
        quantile(reads, bounds, 0.5),
        quantile(reads, bounds, _SLOW_SHARE),
        len(frozenset[int]().union(*(each.scans for each in growths))),
        disk_bytes,
    )


def quantile(classes: Sequence[int], bounds: Sequence[float], share: float) -> float:
    """Returns the value that a share of the observations does not exceed, as precisely as classes allow. NaN: none."""
    total = sum(classes)
    if not total or not bounds:
        return _NAN
    left, low = share * total, 0.0
    for count, high in zip(classes, bounds, strict=False):
        if count and left <= count:
            return low + (high - low) * left / count
        left, low = left - count, high
    return bounds[-1]


def _classes_since(now: Sequence[int], before: Sequence[int]) -> Sequence[int]:
    if now == before:
        return ()
    return tuple(map(sub, now, before)) if before else now


def _add(classes: Iterable[Sequence[int]]) -> Sequence[int]:
    some = [each for each in classes if each]
    return some[0] if len(some) == 1 else [sum(counts) for counts in zip_longest(*some, fillvalue=0)]
