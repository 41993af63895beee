"""What did each table do in the last 15 minutes? Keeps samples in bounded memory. Pure: the time is an argument."""

from __future__ import annotations

import math
from array import array
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from http_gateway.charts.counted import GAP, Counted, Point, point_of

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping

    from scankv.v1 import admin_pb2

SAMPLE_SECONDS: Final = 5.0
"""The time between two samples."""

SHOWN_SECONDS: Final = 900.0
"""For how long they are shown."""

MAX_SAMPLES: Final = 181
"""The most samples: 15 minutes have 180 intervals."""

MAX_TABLES: Final = 1000
"""The most tables. Each takes about 10 KB."""

_LONGEST_STEP: Final = 2.5
"""How many times the usual time may lie between two samples that still give a rate. A longer time is a gap."""

_MEAN_SECONDS: Final = 60.0
_KEPT_SAMPLES: Final = 24  # how long a table stays that somebody has looked at
_SERVER: Final = ""  # stands for all tables together where tables have names
_FIELDS: Final = len(Point._fields)
_WRITTEN, _READ = Point._fields.index("rows_written"), Point._fields.index("rows_read")
_EMPTY: Final = array("f", GAP * MAX_SAMPLES)


class Rates(NamedTuple):
    """The mean rates of a table within the last minute, in rows a second."""

    rows_written: float
    rows_read: float


@dataclass(slots=True)
class _Process:
    """What is known of a process of the server.

    Attributes:
        incarnation: Its start.
        read_at: When its last answer was made, in microseconds by its clock.
        tables: The counters of its tables then.
    """

    incarnation: str
    read_at: int
    tables: dict[str, Counted] = field(default_factory=dict)


class _Series:
    """The points of one table: a ring with the fields of one sample after those of another.

    Attributes:
        incarnation: Of the table. Empty: not known yet.
        used: The number of the last sample in which the table was used.
        rows: The sum of the rates of rows written and read in all points.
    """

    def __init__(self) -> None:
        self.incarnation = ""
        self.used = 0
        self.rows = 0.0
        self._values = _EMPTY[:]

    def set(self, slot: int, point: Point) -> None:
        """Replaces the oldest point, which is in the slot."""
        self.rows -= self._rows(slot)
        self._values[slot * _FIELDS : (slot + 1) * _FIELDS] = array("f", point)
        self.rows += self._rows(slot)

    def get(self, slot: int) -> Point:
        return Point(*self._values[slot * _FIELDS : (slot + 1) * _FIELDS])

    def _rows(self, slot: int) -> float:
        rows = self._values[slot * _FIELDS + _WRITTEN] + self._values[slot * _FIELDS + _READ]
        return 0.0 if math.isnan(rows) else rows


@dataclass(frozen=True, slots=True)
class _Growths:
    """What one sample shows of each table.

    Attributes:
        known: The growth at each process. The most recently used tables come first.
        unknown: The tables whose growth is not known at some process. A dict, for its order.
        incarnations: Of the tables.
    """

    known: dict[str, list[Counted]] = field(default_factory=dict)
    unknown: dict[str, None] = field(default_factory=dict)
    incarnations: dict[str, str] = field(default_factory=dict)


class History:
    """The last 15 minutes of the tables that a caller may read, and of the server if the caller may read all of them.

    Memory is bounded. A further table takes the place of the one that was not used for the longest time. If all are in
    use, it has no history, unless somebody looks at it.

    Args:
        max_tables: The most tables.
        sample_seconds: The usual time between two samples.
    """

    def __init__(self, max_tables: int = MAX_TABLES, sample_seconds: float = SAMPLE_SECONDS) -> None:
        self._max_tables = max_tables
        self._longest_step = _LONGEST_STEP * sample_seconds
        self._number = 0
        self._times: deque[float] = deque(maxlen=MAX_SAMPLES)
        self._series: dict[str, _Series] = {}
        self._processes: dict[int, _Process] = {}
        self._kept_until: dict[str, int] = {}
        # The numbers of the last samples in which a table that is left out had done nothing, and in which tables were
        # left out although they were used.
        self._known_at = self._full_at = -MAX_SAMPLES

    @property
    def names(self) -> list[str]:
        """The tables that are known, those with the most rows written and read first."""
        rows = {name: series.rows for name, series in self._series.items() if name != _SERVER}
        return sorted(rows, key=lambda name: (-rows[name], name))

    @property
    def is_full(self) -> bool:
        """Whether there were too many tables for each to have a history."""
        return self._number - self._full_at < MAX_SAMPLES

    @property
    def read_at_micros(self) -> Mapping[str, int]:
        """When the last answer of each process was made, by incarnation: what the next request sends back."""
        return {each.incarnation: each.read_at for each in self._processes.values()}

    def keep(self, name: str) -> None:
        """Has a table get a history, and keep it, because somebody looks at it."""
        if name in self._kept_until or len(self._kept_until) < self._max_tables // 2:
            self._kept_until[name] = self._number + _KEPT_SAMPLES

    def add(self, now: float, answer: admin_pb2.ActivityResponse) -> None:
        """Adds a sample, as `add_in_steps`."""
        for _ in self.add_in_steps(now, answer):
            pass

    def add_in_steps(self, now: float, answer: admin_pb2.ActivityResponse) -> Iterator[None]:
        """Adds a sample, in steps of some microseconds. It is there after the last step.

        Rule: the first answer of a process has all its tables. Later ones may leave out tables that have not changed
        since the answer before.
        """
        growths, is_steady = _Growths(), False
        present = {*answer.missing_workers, *(process.worker for process in answer.processes)}
        self._processes = {worker: each for worker, each in self._processes.items() if worker in present}
        for worker in answer.missing_workers:
            if (missing := self._processes.get(worker)) is not None:
                growths.unknown.update(dict.fromkeys(missing.tables))
        for process in answer.processes:
            is_steady |= yield from self._add_process(process, growths)
        bounds = next((tuple(each.latency_bounds) for each in answer.processes), ())
        points = dict.fromkeys(growths.unknown, GAP)
        for name, known in growths.known.items():
            if name not in points:
                points[name] = point_of(known, self._disk_bytes(name), bounds)
            yield
        self._commit(now, points, growths.incarnations, is_steady=is_steady)

    def _add_process(self, process: admin_pb2.ProcessActivity, growths: _Growths) -> Generator[None, None, bool]:
        """Adds the answer of one process. Returns whether it has answered shortly before, too."""
        known = self._processes.get(process.worker)
        named = dict[str, Counted]()
        if process.HasField("server"):
            named[_SERVER] = Counted.of(process.server)
        for each in process.tables:
            named[each.table] = Counted.of(each.counters)
            if each.incarnation:
                growths.incarnations[each.table] = each.incarnation
            yield
        if known is None or known.incarnation != process.incarnation:
            growths.unknown.update(dict.fromkeys([*named, *(() if known is None else known.tables)]))
            self._processes[process.worker] = _Process(process.incarnation, process.read_at_micros, named)
            return False
        read_at, known.read_at = known.read_at, process.read_at_micros
        seconds = (known.read_at - read_at) / 1_000_000
        is_steady = 0 < seconds <= self._longest_step
        if not is_steady:
            growths.unknown.update(dict.fromkeys([*named, *known.tables]))
        for name, counted in named.items() if is_steady else ():
            growth = counted.growth_since(known.tables.get(name), read_at, seconds)
            if growth is None:
                growths.unknown[name] = None
            else:
                growths.known.setdefault(name, []).append(growth)
            yield
        known.tables |= named
        return is_steady

    def _commit(
        self, now: float, points: Mapping[str, Point], incarnations: Mapping[str, str], *, is_steady: bool
    ) -> None:
        """Adds a point to every table: what is in `points`, or otherwise that nothing was done."""
        self._number += 1
        self._times.append(now)
        self._kept_until = {name: until for name, until in self._kept_until.items() if until >= self._number}
        for name in points:
            if name in self._series or self._make_room(name, points):
                series = self._series.setdefault(name, _Series())
                series.used = self._number
                incarnation = incarnations.get(name, series.incarnation)
                if series.incarnation not in ("", incarnation):
                    # The table was dropped, and another one has its name now.
                    series = self._series[name] = _Series()
                    series.used = self._number
                series.incarnation = incarnation
        if is_steady:
            self._known_at = self._number
        slot = self._number % MAX_SAMPLES
        for name, series in self._series.items():
            point = points.get(name)
            if point is None:
                point = Point(disk_bytes=self._disk_bytes(name)) if is_steady else GAP
            series.set(slot, point)
        for process in self._processes.values():
            process.tables = {name: each for name, each in process.tables.items() if name in self._series}

    def _make_room(self, name: str, points: Mapping[str, Point]) -> bool:
        """Returns whether a further table may have a history, after the least recently used one has lost its own."""
        if name == _SERVER or len(self._series) - (_SERVER in self._series) < self._max_tables:
            return True
        is_kept = name in self._kept_until
        others = [each for each in self._series if each and each not in self._kept_until]
        if not is_kept:
            others = [each for each in others if each not in points]
        if not others:
            self._full_at = self._number
            return False
        del self._series[min(others, key=lambda each: (self._series[each].used, self._series[each].rows))]
        return True

    def _disk_bytes(self, name: str) -> float:
        """Returns the size of a table at all processes. NaN: one that knows the table does not know its size."""
        sizes = [each.tables[name].disk_bytes for each in self._processes.values() if name in each.tables]
        known = [size for size in sizes if size is not None]
        return float(sum(known)) if known and len(known) == len(sizes) else math.nan

    def of_table(self, name: str) -> list[tuple[float, Point]]:
        """Returns the points of a table, each with its time, oldest first. Empty: nothing is known of the table.

        Ask only for a table that the caller may read.
        """
        return self._read(name, MAX_SAMPLES) if name else []

    def of_server(self) -> list[tuple[float, Point]]:
        """Returns the points of the server, as `of_table`. Ask only for a caller who may read every table."""
        return self._read(_SERVER, MAX_SAMPLES)

    def _read(self, name: str, most: int) -> list[tuple[float, Point]]:
        series, count = self._series.get(name), min(most, len(self._times))
        if series is None:
            return []
        times = [self._times[-ago] for ago in range(count, 0, -1)]
        first = self._number - count + 1
        return [(at, series.get((first + number) % MAX_SAMPLES)) for number, at in enumerate(times)]

    def rates_of(self, name: str, now: float) -> Rates | None:
        """Returns the mean rates of a table within the last minute. None: they are not known.

        Ask only for a table that the caller may read.
        """
        recent = 1
        while recent < len(self._times) and now - self._times[-recent - 1] <= _MEAN_SECONDS:
            recent += 1
        points = [point for at, point in self._read(name, recent) if now - at <= _MEAN_SECONDS]
        known = [point for point in points if not math.isnan(point.rows_written)]
        if name not in self._series and not self.is_full and self._number - self._known_at < recent:
            return Rates(0.0, 0.0)
        if not known:
            return None
        return Rates(
            sum(point.rows_written for point in known) / len(known),
            sum(point.rows_read for point in known) / len(known),
        )

    def rows_of(self, name: str) -> float:
        """Returns a number that is larger the more rows of a table were written and read. 0: none, or not known."""
        series = self._series.get(name)
        return 0.0 if series is None else series.rows
