"""The history of charts: rates from counters, restarts, gaps, and bounded memory."""

from __future__ import annotations

import math
import random
import time
import tracemalloc
from typing import TYPE_CHECKING, Any

from http_gateway.charts.counted import quantile
from http_gateway.charts.history import MAX_SAMPLES, SAMPLE_SECONDS, History, Rates
from scankv.v1 import admin_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

BOUNDS = (0.001, 0.01, 0.1)


class CountingWorker:
    """A process of a server, as its answers show it."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.start()

    def start(self) -> None:
        """Starts, or starts again."""
        self.incarnation = f"{random.random()}"
        self.written: dict[str, int] = {}
        self.scans: dict[str, list[int]] = {}
        self.disk: dict[str, int | None] = {}
        self.tables: dict[str, str] = {}
        self.read_at = 0
        self._began: dict[str, int] = {}

    def write(self, table: str, rows: int) -> None:
        """Writes rows with one call of 5 ms."""
        self._began.setdefault(table, self.read_at)
        self.written[table] = self.written.get(table, 0) + rows

    def drop(self, table: str, incarnation: str) -> None:
        """Drops a table, and creates it again."""
        self.written[table], self._began[table], self.tables[table] = 0, self.read_at, incarnation

    def answer(self, at: float, names: Sequence[str] = ()) -> admin_pb2.ProcessActivity:
        """Returns its part of an answer: these tables, or all of them."""
        everything = tuple({**self.written, **self.scans, **self.disk})
        began, self.read_at = self.read_at, int((at + 1000) * 1_000_000)
        process = admin_pb2.ProcessActivity(
            worker=self.number,
            incarnation=self.incarnation,
            latency_bounds=BOUNDS,
            server=self._counters(0, *everything),
            read_at_micros=self.read_at,
        )
        for name in names or everything:
            counters = self._counters(self._began.setdefault(name, began), name)
            process.tables.add(table=name, counters=counters, incarnation=self.tables.get(name, ""))
        return process

    def _counters(self, began: int, *names: str) -> admin_pb2.ActivityCounters:
        rows = sum(self.written.get(name, 0) for name in names)
        times = admin_pb2.CallTimes(calls=rows, seconds=rows * 0.005, classes=[0, rows, 0, 0])
        sizes = [self.disk.get(name) for name in names]
        scans = sorted({scan for name in names for scan in self.scans.get(name, [])})
        return admin_pb2.ActivityCounters(
            rows_written=rows,
            writes=times,
            disk_bytes=None if None in sizes else sum(filter(None, sizes)),
            live_scans=scans,
            began_at_micros=began,
        )


def add(
    history: History, at: float, *workers: CountingWorker, names: Sequence[str] = (), missing: tuple[int, ...] = ()
) -> None:
    """Adds a sample of workers. If there are names, they leave out all other tables."""
    processes = [worker.answer(at, names) for worker in workers]
    history.add(at, admin_pb2.ActivityResponse(processes=processes, missing_workers=missing))


def written(history: History, table: str = "a.t") -> list[float | None]:
    """Returns the rows written a second at each sample; None for a gap."""
    points = [point.rows_written for _, point in (history.of_table(table) if table else history.of_server())]
    return [None if math.isnan(rows) else rows for rows in points]


def test_counters_become_rates_a_second() -> None:
    history, worker = History(), CountingWorker()
    for number, rows in enumerate((70, 100, 0, 50)):
        worker.write("a.t", rows)
        add(history, 5.0 * number, worker)
    assert written(history) == [None, 20.0, 0.0, 10.0]
    assert written(history, "") == [None, 20.0, 0.0, 10.0]


def test_the_first_activity_of_a_table_is_drawn() -> None:
    history, worker = History(), CountingWorker()
    add(history, 0, worker, names=["a.other"])
    worker.write("a.t", 100)
    add(history, 5, worker)
    assert written(history) == [None, 20.0]


def test_a_table_that_is_left_out_has_done_nothing() -> None:
    history, worker = History(), CountingWorker()
    worker.write("a.t", 100)
    worker.disk["a.t"] = 4096
    add(history, 0, worker)
    add(history, 5, worker, names=["a.other"])
    assert written(history) == [None, 0.0]
    assert [point.disk_bytes for _, point in history.of_table("a.t")][1] == 4096
    assert math.isnan(history.of_table("a.t")[1][1].write_median)


def test_a_restart_is_a_gap_and_no_negative_or_giant_rate() -> None:
    history, worker = History(), CountingWorker()
    worker.write("a.t", 1_000_000)
    add(history, 0, worker)
    add(history, 5, worker)
    worker.start()
    worker.write("a.t", 50)
    add(history, 10, worker)
    worker.write("a.t", 50)
    worker.write("a.new", 10)
    add(history, 15, worker)
    assert written(history) == [None, 0.0, None, 10.0]
    assert written(history, "a.new")[-1] == 2.0


def test_a_time_without_samples_is_a_gap() -> None:
    history, worker = History(), CountingWorker()
    for at in (0, 5, 65, 70):
        worker.write("a.t", 50)
        add(history, at, worker)
    assert written(history) == [None, 10.0, None, 10.0]


def test_a_missing_worker_is_a_gap_only_for_its_tables() -> None:
    history, first, second = History(), CountingWorker(0), CountingWorker(1)
    for number in range(4):
        first.write("a.first", 5)
        second.write("a.second", 10)
        is_missing = number == 2
        if is_missing:
            add(history, 5.0 * number, first, missing=(1,))
        else:
            add(history, 5.0 * number, first, second)
    assert written(history, "a.first") == [None, 1.0, 1.0, 1.0]
    # The worker has answered again after 10 s, so the rate of these is known.
    assert written(history, "a.second") == [None, 2.0, None, 2.0]
    assert written(history, "")[1:] == [3.0, None, 3.0]


def test_a_table_of_two_workers_is_their_sum_and_its_scan_counts_once() -> None:
    history, first, second = History(), CountingWorker(0), CountingWorker(1)
    for number in range(2):
        for worker in (first, second):
            worker.write("a.t", 50)
            worker.scans["a.t"] = [7]
            worker.disk["a.t"] = 1024
        add(history, 5.0 * number, first, second)
    point = history.of_table("a.t")[-1][1]
    assert (point.rows_written, point.streams, point.disk_bytes) == (20.0, 1, 2048)
    assert math.isclose(point.write_median, 0.001 + 0.009 / 2, rel_tol=1e-6)


def test_a_table_that_is_created_again_has_no_earlier_history() -> None:
    history, worker = History(), CountingWorker()
    worker.tables["a.t"] = "first"
    for number in range(3):
        worker.write("a.t", 100)
        add(history, 5.0 * number, worker)
    worker.drop("a.t", "second")
    worker.write("a.t", 10)
    add(history, 15, worker)
    assert written(history) == [None, None, None, 2.0]
    assert history.rows_of("a.t") == 2.0


def test_counters_that_begin_again_without_a_restart_count_from_then_on() -> None:
    history, worker = History(), CountingWorker()
    worker.write("a.t", 100)
    add(history, 0, worker)
    worker.drop("a.t", "")
    worker.write("a.t", 20)
    add(history, 5, worker)
    assert written(history) == [None, 4.0]


def test_rights_that_are_widened_show_nothing_of_the_time_before() -> None:
    history, worker = History(), CountingWorker()
    worker.write("a.other", 5)
    worker.write("a.t", 1_000_000)
    for number in range(4):
        worker.write("a.t", 5)
        add(history, 5.0 * number, worker, names=["a.other"] if number < 2 else [])
    assert written(history) == [None, None, None, 1.0]


def test_a_slow_answer_loses_no_rows_and_gives_no_wrong_rate() -> None:
    history, worker = History(), CountingWorker()
    for at in (0.0, 5.0, 13.0, 15.0):
        worker.write("a.t", 80)
        worker_at = worker.answer(at)
        # Asked for every 5 s, whenever the answer is made.
        history.add(5.0 * len(history.of_server()), admin_pb2.ActivityResponse(processes=[worker_at]))
    assert written(history) == [None, 16.0, 10.0, 40.0]
    assert history.read_at_micros == {worker.incarnation: 1_015_000_000}


def test_workers_that_are_gone_have_no_size_and_an_unknown_size_makes_the_sum_unknown() -> None:
    history, workers = History(), [CountingWorker(number) for number in range(4)]
    for worker in workers:
        worker.disk["a.t"] = 1000
    add(history, 0, *workers)
    workers[0].start()
    workers[0].disk["a.t"] = 1000
    for number in range(1, 3):
        add(history, 5.0 * number, workers[0])
    assert history.of_table("a.t")[-1][1].disk_bytes == 1000
    assert history.of_server()[-1][1].disk_bytes == 1000
    workers[0].disk["a.t"] = None
    add(history, 15, workers[0])
    assert math.isnan(history.of_table("a.t")[-1][1].disk_bytes)


def test_samples_are_kept_for_fifteen_minutes() -> None:
    history, worker = History(), CountingWorker()
    for number in range(3 * MAX_SAMPLES):
        worker.write("a.t", 5)
        add(history, SAMPLE_SECONDS * number, worker)
    points = history.of_table("a.t")
    assert len(points) == len(history.of_server()) == MAX_SAMPLES
    assert points[-1][0] - points[0][0] == 900
    assert set(written(history)) == {1.0}


def test_an_idle_table_keeps_its_size_forever() -> None:
    history, worker = History(), CountingWorker()
    worker.disk["a.t"] = 4096
    worker.write("a.t", 1)
    add(history, 0, worker)
    worker.write("a.t", 1)
    add(history, 5, worker)
    for number in range(2, 2 * MAX_SAMPLES):
        add(history, SAMPLE_SECONDS * number, worker, names=["a.other"])
    assert {point.disk_bytes for _, point in history.of_table("a.t")} == {4096.0}


def test_the_tables_that_were_used_least_recently_are_forgotten() -> None:
    history, worker = History(max_tables=10), CountingWorker()
    add(history, 0, worker, names=["a.t0"])
    for number in range(1, 50):
        worker.write(f"a.t{number}", 5)
        add(history, 5.0 * number, worker, names=[f"a.t{number}"])
    assert sorted(history.names) == sorted(f"a.t{number}" for number in range(40, 50))
    # What was forgotten has no known start, so its next sample is a gap, and the one after that is not.
    for number in (50, 51):
        worker.write("a.t1", 5)
        add(history, 5.0 * number, worker, names=["a.t1"])
    assert written(history, "a.t1")[-2:] == [None, 1.0]
    assert not history.is_full


def test_a_table_beyond_the_limit_gets_a_history_once_somebody_looks_at_it() -> None:
    history, worker = History(max_tables=10), CountingWorker()

    def sample(number: int) -> None:
        for table in range(15):
            worker.write(f"a.t{table}", 5)
        add(history, 5.0 * number, worker)

    for number in range(5):
        sample(number)
    assert sorted(history.names) == sorted(f"a.t{table}" for table in range(10))
    assert history.is_full
    assert history.rates_of("a.t12", 20) is None
    assert written(history, "a.t3") == [None, 1.0, 1.0, 1.0, 1.0]
    history.keep("a.t12")
    for number in range(5, 7):
        sample(number)
    assert written(history, "a.t12")[-2:] == [None, 1.0]
    assert len(history.names) == 10


def test_a_page_of_a_thousand_used_tables_takes_milliseconds() -> None:
    history, worker = History(), CountingWorker()
    for number in range(3):
        for table in range(1000):
            worker.write(f"a.t{table:04}", table)
        add(history, 5.0 * number, worker)
    began = time.thread_time()
    busiest = [(name, history.rows_of(name)) for name in history.names]
    rates = [history.rates_of(name, 10.0) for name, _ in busiest[:20]]
    assert time.thread_time() - began < 0.05
    assert busiest[0][0] == "a.t0999"
    assert rates[0] is not None
    # The running sum is that of the points.
    for name, rows in busiest:
        points = [point.rows_written for _, point in history.of_table(name) if not math.isnan(point.rows_written)]
        assert math.isclose(rows, sum(points), abs_tol=1e-3), name


def test_a_thousand_tables_that_are_used_all_the_time_take_ten_kilobytes_each() -> None:
    history, worker = History(), CountingWorker()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(3):
            for table in range(1000):
                worker.write(f"a.t{table}", table)
            add(history, 5.0 * number, worker)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 1000 * 10 * 1024
    assert history.names[0] == "a.t999"


def test_any_sequence_gives_rates_between_zero_and_what_was_written() -> None:
    for seed in range(20):
        chance = random.Random(seed)
        history, workers, now = History(max_tables=5), [CountingWorker(0), CountingWorker(1)], 0.0
        for _ in range(150):
            now += chance.choice((5.0, 5.0, 5.0, 0.5, 60.0))
            for worker in workers:
                if chance.random() < 0.1:
                    worker.start()
                worker.write(f"a.t{chance.randrange(9)}", chance.randrange(100))
            there = [worker for worker in workers if chance.random() < 0.9]
            missing = tuple(worker.number for worker in workers if worker not in there)
            add(history, now, *there, missing=missing)
            assert len(history.names) <= 5
        for name in [*history.names, ""]:
            for rows in written(history, name):
                # At most what one worker has written in 150 samples, in the shortest time between two of them.
                assert rows is None or 0 <= rows <= 2 * 150 * 100 / 0.5, (seed, name)


def test_the_mean_rates_are_those_of_the_last_minute() -> None:
    history, worker = History(), CountingWorker()
    assert history.rates_of("a.t", 0) is None
    for number in range(40):
        worker.write("a.t", 500 if number < 20 else 50)
        add(history, 5.0 * number, worker)
    assert history.rates_of("a.t", 195) == Rates(10.0, 0.0)
    assert history.rates_of("a.unused", 195) == Rates(0.0, 0.0)
    assert history.rates_of("a.t", 400) is None


def test_quantiles_are_as_precise_as_classes() -> None:
    cases: list[tuple[list[int], float, Any]] = [
        ([10, 0, 0, 0], 0.5, 0.0005),
        ([0, 100, 0, 0], 0.99, 0.001 + 0.009 * 0.99),
        ([0, 0, 0, 7], 0.5, 0.1),
        ([99, 0, 1, 0], 0.5, 0.001 * 50 / 99),
    ]
    for classes, share, expected in cases:
        assert math.isclose(quantile(classes, BOUNDS, share), expected), classes
    assert math.isnan(quantile([0, 0, 0, 0], BOUNDS, 0.5))
    assert math.isnan(quantile([], (), 0.5))
