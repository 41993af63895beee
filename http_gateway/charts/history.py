"""What did each table do in the last 15 minutes? Keeps samples in bounded memory. Pure: the time is an argument."""

from __future__ import annotations

import math
from array import array
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from http_gateway.charts.counted import GAP, Counted, Point, point_of

if TYPE_CHECKING:
    from scankv.v1 import admin_pb2

SAMPLE_SECONDS: Final = 5.0
"""The time between two samples."""

SHOWN_SECONDS: Final = 900.0
"""For how long they are shown."""

MAX_SAMPLES: Final = 181
"""The most samples: 15 minutes have 180 intervals."""

MAX_TABLES: Final = 1000
"""The most tables. Each takes up to 30 KB, if it is used all the time."""

_LONGEST_STEP: Final = 2.5 * SAMPLE_SECONDS
"""The longest time between two samples that still gives a rate. A longer one is a gap."""

_MEAN_SECONDS: Final = 60.0
_SERVER: Final = ""  # stands for all tables together where tables have names


class Rates(NamedTuple):
    """The mean rates of a table within the last minute, in rows a second."""

    rows_written: float
    rows_read: float


@dataclass(slots=True)
class _Process:
    """What is known of a process of the server.

    Attributes:
        incarnation: Its start.
        at: When it has answered last.
        tables: The counters of its tables then.
    """

    incarnation: str
    at: float
    tables: dict[str, Counted] = field(default_factory=dict)


class _Sample(NamedTuple):
    """When a sample was taken, and whether tables without a point in it did nothing. Otherwise, it is a gap."""

    number: int
    at: float
    is_known: bool


@dataclass(frozen=True, slots=True)
class _Growths:
    """What one sample shows of each table.

    Attributes:
        known: The growth at each process.
        unknown: The tables whose growth is not known at some process. A dict, for its order.
    """

    known: dict[str, list[Counted]] = field(default_factory=dict)
    unknown: dict[str, None] = field(default_factory=dict)


class History:
    """The last 15 minutes of the tables that a caller may read, and of the server if the caller may read all of them.

    Memory is bounded: `MAX_SAMPLES` samples of the `max_tables` tables that were used most recently. A table takes
    memory only for samples in which something happened.

    Args:
        max_tables: The most tables.
    """

    def __init__(self, max_tables: int = MAX_TABLES) -> None:
        self._max_tables = max_tables
        self._number = 0
        self._samples: deque[_Sample] = deque(maxlen=MAX_SAMPLES)
        # The numbers of samples, with their points, which are compact because there may be many.
        self._points: OrderedDict[str, deque[tuple[int, array[float]]]] = OrderedDict()
        self._processes: dict[int, _Process] = {}
        self._has_forgotten = False

    @property
    def names(self) -> list[str]:
        """The tables that are known, in any order."""
        return [name for name in self._points if name != _SERVER]

    @property
    def began_at(self) -> float | None:
        """The time of the oldest sample. None: there is none."""
        return self._samples[0].at if self._samples else None

    @property
    def has_server(self) -> bool:
        """Whether a sample has shown the server."""
        return _SERVER in self._points

    def add(self, now: float, answer: admin_pb2.ActivityResponse) -> None:
        """Adds a sample.

        Rule: the first answer of a process has all its tables. Later ones may leave out tables that have not changed
        since all processes have answered.
        """
        self._number += 1
        growths = _Growths()
        for worker in answer.missing_workers:
            if (missing := self._processes.get(worker)) is not None:
                growths.unknown.update(dict.fromkeys(missing.tables))
        steady = [self._add_process(now, process, growths) for process in answer.processes]
        self._samples.append(_Sample(self._number, now, any(steady)))
        bounds = next((tuple(each.latency_bounds) for each in answer.processes), ())
        for name in growths.unknown:
            points = self._touch(name)
            if any(steady):
                points.append((self._number, array("d", GAP)))
        for name in growths.known.keys() - growths.unknown.keys():
            point = point_of(growths.known[name], self._disk_bytes(name), bounds)
            self._touch(name).append((self._number, array("d", point)))
        self._forget_beyond_limit()

    def _add_process(self, now: float, process: admin_pb2.ProcessActivity, growths: _Growths) -> bool:
        """Adds the answer of one process. Returns whether it has answered shortly before, too."""
        known = self._processes.get(process.worker)
        # The most recently changed tables come first, and are to be forgotten last.
        named = {each.table: Counted.of(each.counters) for each in reversed(process.tables)}
        if process.HasField("server"):
            named[_SERVER] = Counted.of(process.server)
        if known is None or known.incarnation != process.incarnation:
            growths.unknown.update(dict.fromkeys([*(() if known is None else known.tables), *named]))
            self._processes[process.worker] = _Process(process.incarnation, now, named)
            return False
        seconds, known.at = now - known.at, now
        if not 0 < seconds <= _LONGEST_STEP:
            growths.unknown.update(dict.fromkeys([*known.tables, *named]))
            known.tables |= named
            return False
        for name, counted in named.items():
            before = known.tables.get(name, None if self._has_forgotten else Counted())
            growth = None if before is None else counted.growth_since(before, seconds)
            if growth is None:
                growths.unknown[name] = None
            else:
                growths.known.setdefault(name, []).append(growth)
        known.tables |= named
        return True

    def _disk_bytes(self, name: str) -> float:
        found = [each.tables[name].disk_bytes for each in self._processes.values() if name in each.tables]
        sizes = [each for each in found if each is not None]
        return float(sum(sizes)) if sizes else math.nan

    def _touch(self, name: str) -> deque[tuple[int, array[float]]]:
        """Returns the points of a table, which is the one that was used most recently now."""
        points = self._points.setdefault(name, deque(maxlen=MAX_SAMPLES))
        self._points.move_to_end(name)
        return points

    def _forget_beyond_limit(self) -> None:
        if _SERVER in self._points:
            self._points.move_to_end(_SERVER)
        while len(self._points) > self._max_tables + self.has_server:
            name, _ = self._points.popitem(last=False)
            self._has_forgotten = True
            for process in self._processes.values():
                process.tables.pop(name, None)

    def of_table(self, name: str) -> list[tuple[float, Point]]:
        """Returns the points of a table, each with its time, oldest first. Empty: nothing is known of the table.

        Ask only for a table that the caller may read.
        """
        return self._read(name) if name and name in self._points else []

    def of_server(self) -> list[tuple[float, Point]]:
        """Returns the points of the server, as `of_table`. Ask only for a caller who may read every table."""
        return self._read(_SERVER) if self.has_server else []

    def _read(self, name: str) -> list[tuple[float, Point]]:
        by_number = {number: Point(*values) for number, values in self._points.get(name, ())}
        found, disk = list[tuple[float, Point]](), self._disk_before(name)
        for sample in self._samples:
            point = by_number.get(sample.number)
            if point is None:
                point = Point(disk_bytes=disk) if sample.is_known else GAP
            elif not math.isnan(point.disk_bytes):
                disk = point.disk_bytes
            found.append((sample.at, point))
        return found

    def _disk_before(self, name: str) -> float:
        """Returns the size of a table before the first point that is shown, or at any time if none is."""
        first, disk = self._samples[0].number if self._samples else 0, math.nan
        for number, values in self._points.get(name, ()):
            size = Point(*values).disk_bytes
            if number >= first and not math.isnan(size):
                return disk
            disk = disk if math.isnan(size) else size
        return self._disk_bytes(name)

    def rates_of(self, name: str, now: float) -> Rates | None:
        """Returns the mean rates of a table within the last minute. None: they are not known.

        Ask only for a table that the caller may read.
        """
        if name not in self._points and self._has_forgotten:
            return None
        recent = [point for at, point in self._read(name) if now - at <= _MEAN_SECONDS]
        recent = [point for point in recent if not math.isnan(point.rows_written)]
        if not recent:
            return None
        return Rates(
            sum(point.rows_written for point in recent) / len(recent),
            sum(point.rows_read for point in recent) / len(recent),
        )

    def rows_of(self, name: str) -> float:
        """Returns a number that is larger the more rows of a table were written and read. 0: none, or not known."""
        first = self._samples[0].number if self._samples else 0
        points = (Point(*values) for number, values in self._points.get(name, ()) if number >= first)
        return sum(point.rows_written + point.rows_read for point in points if not math.isnan(point.rows_written))
