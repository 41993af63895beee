"""The history of charts: rates from counters, restarts, gaps, and bounded memory."""

from __future__ import annotations

import math
import random
from typing import Any

from http_gateway.charts.counted import quantile
from http_gateway.charts.history import MAX_SAMPLES, SAMPLE_SECONDS, History, Rates
from scankv.v1 import admin_pb2

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
        self.disk: dict[str, int] = {}

    def write(self, table: str, rows: int) -> None:
        """Writes rows with one call of 5 ms."""
        self.written[table] = self.written.get(table, 0) + rows

    def answer(self, *names: str) -> admin_pb2.ProcessActivity:
        """Returns its part of an answer: these tables, or all of them."""
        shown = names or tuple({**self.written, **self.scans, **self.disk})
        process = admin_pb2.ProcessActivity(
            worker=self.number, incarnation=self.incarnation, latency_bounds=BOUNDS, server=self._counters(*shown)
        )
        for name in shown:
            process.tables.add(table=name, counters=self._counters(name))
        return process

    def _counters(self, *names: str) -> admin_pb2.ActivityCounters:
        rows = sum(self.written.get(name, 0) for name in names)
        times = admin_pb2.CallTimes(calls=rows, seconds=rows * 0.005, classes=[0, rows, 0, 0])
        disk = sum(self.disk.get(name, 0) for name in names) if self.disk else None
        scans = sorted({scan for name in names for scan in self.scans.get(name, [])})
        return admin_pb2.ActivityCounters(rows_written=rows, writes=times, disk_bytes=disk, live_scans=scans)


def answer_of(*processes: admin_pb2.ProcessActivity, missing: tuple[int, ...] = ()) -> admin_pb2.ActivityResponse:
    return admin_pb2.ActivityResponse(processes=processes, missing_workers=missing)


def written(history: History, table: str = "a.t") -> list[float | None]:
    """Returns the rows written a second at each sample; None for a gap."""
    points = [point.rows_written for _, point in (history.of_table(table) if table else history.of_server())]
    return [None if math.isnan(rows) else rows for rows in points]


def test_counters_become_rates_a_second() -> None:
    history, worker = History(), CountingWorker()
    for number, rows in enumerate((70, 100, 0, 50)):
        worker.write("a.t", rows)
        history.add(5.0 * number, answer_of(worker.answer()))
    assert written(history) == [None, 20.0, 0.0, 10.0]
    assert written(history, "") == [None, 20.0, 0.0, 10.0]


def test_the_first_activity_of_a_table_is_drawn() -> None:
    history, worker = History(), CountingWorker()
    history.add(0, answer_of(worker.answer("a.other")))
    worker.write("a.t", 100)
    history.add(5, answer_of(worker.answer()))
    assert written(history) == [None, 20.0]


def test_a_table_that_is_left_out_has_done_nothing() -> None:
    history, worker = History(), CountingWorker()
    worker.write("a.t", 100)
    worker.disk["a.t"] = 4096
    history.add(0, answer_of(worker.answer()))
    history.add(5, answer_of(worker.answer("a.other")))
    assert written(history) == [None, 0.0]
    assert [point.disk_bytes for _, point in history.of_table("a.t")][1] == 4096
    assert math.isnan(history.of_table("a.t")[1][1].write_median)


def test_a_restart_is_a_gap_and_no_negative_or_giant_rate() -> None:
    history, worker = History(), CountingWorker()
    worker.write("a.t", 1_000_000)
    history.add(0, answer_of(worker.answer()))
    history.add(5, answer_of(worker.answer()))
    worker.start()
    worker.write("a.t", 50)
    history.add(10, answer_of(worker.answer()))
    worker.write("a.t", 50)
    worker.write("a.new", 10)
    history.add(15, answer_of(worker.answer()))
    assert written(history) == [None, 0.0, None, 10.0]
    assert written(history, "a.new")[-1] == 2.0


def test_a_time_without_samples_is_a_gap() -> None:
    history, worker = History(), CountingWorker()
    for at in (0, 5, 65, 70):
        worker.write("a.t", 50)
        history.add(at, answer_of(worker.answer()))
    assert written(history) == [None, 10.0, None, 10.0]


def test_a_missing_worker_is_a_gap_only_for_its_tables() -> None:
    history, first, second = History(), CountingWorker(0), CountingWorker(1)
    for number in range(4):
        first.write("a.first", 5)
        second.write("a.second", 10)
        is_missing = number == 2
        parts = [first.answer()] if is_missing else [first.answer(), second.answer()]
        history.add(5.0 * number, answer_of(*parts, missing=(1,) if is_missing else ()))
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
        history.add(5.0 * number, answer_of(first.answer(), second.answer()))
    point = history.of_table("a.t")[-1][1]
    assert (point.rows_written, point.streams, point.disk_bytes) == (20.0, 1, 2048)
    assert math.isclose(point.write_median, 0.001 + 0.009 / 2)


def test_counters_that_begin_again_without_a_restart_are_a_gap() -> None:
    history, worker = History(), CountingWorker()
    worker.write("a.t", 100)
    history.add(0, answer_of(worker.answer()))
    worker.written["a.t"] = 20
    history.add(5, answer_of(worker.answer(), worker.answer()))
    history.add(10, answer_of(worker.answer()))
    assert written(history)[-1] == 0.0
    assert all(rows is None or 0 <= rows < 100 for rows in written(history))


def test_samples_are_kept_for_fifteen_minutes() -> None:
    history, worker = History(), CountingWorker()
    for number in range(3 * MAX_SAMPLES):
        worker.write("a.t", 5)
        history.add(SAMPLE_SECONDS * number, answer_of(worker.answer()))
    points = history.of_table("a.t")
    assert len(points) == len(history.of_server()) == MAX_SAMPLES
    assert points[-1][0] - points[0][0] == 900
    assert set(written(history)) == {1.0}


def test_an_idle_table_keeps_its_size_forever() -> None:
    history, worker = History(), CountingWorker()
    worker.disk["a.t"] = 4096
    worker.write("a.t", 1)
    history.add(0, answer_of(worker.answer()))
    worker.write("a.t", 1)
    history.add(5, answer_of(worker.answer()))
    for number in range(2, 2 * MAX_SAMPLES):
        history.add(SAMPLE_SECONDS * number, answer_of(worker.answer("a.other")))
    assert {point.disk_bytes for _, point in history.of_table("a.t")} == {4096.0}


def test_the_tables_that_were_used_least_recently_are_forgotten() -> None:
    history, worker = History(max_tables=10), CountingWorker()
    history.add(0, answer_of(worker.answer("a.t0")))
    for number in range(1, 50):
        worker.write(f"a.t{number}", 5)
        history.add(5.0 * number, answer_of(worker.answer(f"a.t{number}")))
    assert sorted(history.names) == sorted(f"a.t{number}" for number in range(40, 50))
    # What was forgotten has no known start, so its next sample is a gap, and the one after that is not.
    for number in (50, 51):
        worker.write("a.t1", 5)
        history.add(5.0 * number, answer_of(worker.answer("a.t1")))
    assert written(history, "a.t1")[-2:] == [None, 1.0]
    assert history.rates_of("a.t3", 255) is None


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
            history.add(now, answer_of(*(worker.answer() for worker in there), missing=missing))
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
        history.add(5.0 * number, answer_of(worker.answer()))
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
