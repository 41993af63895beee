"""Compares calls for one row and for few rows with a call that does nothing."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

from benchmarks.bench import Figure, Result, ResultTable
from benchmarks.few_rows_caller import AGGREGATE, APPEND, GET, NOTHING, TRANSACTION, UPSERT, CallCost, FewRowsCaller
from benchmarks.measure import Spread, progress
from benchmarks.server import BenchmarkServer
from benchmarks.workers import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks.bench import Bench

_MOST_ROWS: Final = 100_000
_SLICES: Final = 4
_MILLIS: Final = 1000.0
_AGAINST: Final = "sequential calls that do nothing (the health check)"


class _Work(NamedTuple):
    """A kind of calls, by how many concurrent callers, and for how many seconds in one slice of a round."""

    kind: str
    callers: int
    seconds: float

    def __str__(self) -> str:
        return self.kind if self.callers == 1 else f"{self.kind}, {self.callers} callers"


_NOTHING: Final = _Work(NOTHING, 1, 0.2)
_GET, _GET_64, _GET_256 = _Work(GET, 1, 0.15), _Work(GET, 64, 0.25), _Work(GET, 256, 0.25)
_UPSERT, _UPSERT_64 = _Work(UPSERT, 1, 0.2), _Work(UPSERT, 64, 0.25)
_APPEND, _APPEND_64 = _Work(APPEND, 1, 0.2), _Work(APPEND, 64, 0.25)
_AGGREGATE, _TRANSACTION = _Work(AGGREGATE, 1, 0.25), _Work(TRANSACTION, 1, 0.25)
_ALL: Final = (_NOTHING, _GET, _GET_64, _GET_256, _UPSERT, _UPSERT_64, _APPEND, _APPEND_64, _AGGREGATE, _TRANSACTION)


class FewRowsRounds:
    """The costs of all kinds of work, round by round. The value of a round is the median of its slices."""

    def __init__(self, rounds: Sequence[Sequence[Mapping[_Work, CallCost]]]) -> None:
        self._rounds = rounds

    def spread(self, work: _Work, value: Callable[[CallCost], float]) -> Spread:
        """Returns the spread of a value of one kind of work."""
        return Spread.of(median(value(costs[work]) for costs in slices) for slices in self._rounds)

    def ratios(self, work: _Work, value: Callable[[CallCost], float], reference: _Work = _NOTHING) -> Spread:
        """Returns the spread of the ratios to the same value of other calls in the same slice."""
        return Spread.of(
            median(value(costs[work]) / value(costs[reference]) for costs in slices) for slices in self._rounds
        )

    def latency(self, work: _Work) -> Spread:
        """Returns the spread of the median latency as a multiple of that of a call that does nothing."""
        return self.ratios(work, lambda cost: cost.latency)

    def cpu(self, work: _Work) -> Spread:
        """Returns the spread of the processor time of a call as a multiple of that of a call that does nothing."""
        return self.ratios(work, lambda cost: cost.cpu_per_call)

    def rate(self, work: _Work) -> Spread:
        """Returns the spread of the calls per second as a multiple of those of sequential calls that do nothing."""
        return self.ratios(work, lambda cost: cost.rate)


def run(bench: Bench) -> Result:
    """Makes all kinds of calls in turn, in short slices."""
    rows = min(bench.rows, _MOST_ROWS)
    with (
        BenchmarkServer(bench.directory / "few-rows") as server,
        Worker(FewRowsCaller, server.url, server.pid, rows) as caller,
    ):
        found = FewRowsRounds(_measure_rounds(caller, bench.runs))
    return Result(
        figures=_figures(found),
        tables=[
            _cost_table("Few rows, milliseconds of latency", found, lambda cost: _MILLIS * cost.latency),
            _cost_table(
                "Few rows, milliseconds of processor time per call", found, lambda cost: _MILLIS * cost.cpu_per_call
            ),
            _cost_table("Few rows, calls per second", found, lambda cost: cost.rate),
        ],
        notes=[
            f"Few rows: one client with one connection. A run has {_SLICES} slices. In each slice, every kind of call "
            "is made in turn for a fraction of a second. The value of a run is the median of its slices, and a latency "
            "is the median of the calls of a slice. Processor time is that of client and server, including what the "
            "server does in the background.",
            f"Gets and one-row upserts are of random keys among {rows:,} rows of T4, in one bucket. An upsert takes a "
            "dictionary and always changes a value. Appends are of the same rows, to a table without a key. The 40 "
            "rows are a list of dictionaries with random keys among 4,000 rows in 4 buckets of an aggregate table "
            "(last_value, sum, count, max) with indexes on two columns, which change in every row. All writes are "
            "durable when the call returns.",
        ],
    )


def _measure_rounds(caller: Worker[FewRowsCaller], runs: int) -> list[list[dict[_Work, CallCost]]]:
    """Returns the costs of each slice of each round. The first round does not count and is left out."""
    rounds = []
    for number in range(-1, runs):
        slices = [
            {work: caller.call(FewRowsCaller.measure, work.kind, work.seconds, work.callers) for work in _ALL}
            for _ in range(_SLICES)
        ]
        if number >= 0:
            rounds.append(slices)
            for work in _ALL:
                cpu = median(_MILLIS * costs[work].cpu_per_call for costs in slices)
                rate = median(costs[work].rate for costs in slices)
                progress(f"  run {number + 1} of {runs}: {work!s:<40} {cpu:>8.3f} ms CPU {rate:>10,.0f} calls/s")
    return rounds


def _figures(found: FewRowsRounds) -> list[Figure]:
    def times(
        name: str, work: str, spread: Spread, *, at_most: float | None = None, at_least: float | None = None
    ) -> Figure:
        return Figure(
            name=name,
            work=work,
            against=_AGAINST,
            unit="times",
            spread=spread,
            at_most=at_most,
            at_least=at_least,
        )

    upsert, rows_40 = "durable upsert of one row, one after another", "40 rows into an aggregate table with two indexes"
    return [
        times("get_latency", "`get`, one after another: latency", found.latency(_GET), at_most=1.5),
        times("get_cpu", "the same: processor time of both sides", found.cpu(_GET), at_most=1.5),
        times("gets_64", "gets per second, 64 callers", found.rate(_GET_64), at_least=15),
        times("gets_256", "gets per second, 256 callers", found.rate(_GET_256), at_least=15),
        times("upsert_latency", f"{upsert}: latency", found.latency(_UPSERT)),
        times("upsert_cpu", "the same: processor time of both sides", found.cpu(_UPSERT), at_most=3),
        times("upserts_64", "durable upserts of one row per second, 64 callers", found.rate(_UPSERT_64), at_least=6),
        *(
            Figure(
                name=name,
                work=f"durable appends of one row per second to a table without a key, {callers}",
                against="as many upserts",
                unit="ratio",
                spread=found.ratios(work, lambda cost: cost.rate, reference),
                at_least=1,
            )
            for name, callers, work, reference in (
                ("append_vs_upsert_1", "one after another", _APPEND, _UPSERT),
                ("append_vs_upsert_64", "64 callers", _APPEND_64, _UPSERT_64),
            )
        ),
        times("aggregate_40_cpu", f"{rows_40}: processor time of both sides", found.cpu(_AGGREGATE), at_most=6),
        times("transaction_40_cpu", "the same in a transaction", found.cpu(_TRANSACTION), at_most=12),
    ]


def _cost_table(title: str, found: FewRowsRounds, value: Callable[[CallCost], float]) -> ResultTable:
    spreads = {str(work): found.spread(work, value) for work in _ALL}
    return ResultTable(
        title,
        ("work", "median", "least", "greatest"),
        [(name, spread.median, spread.least, spread.greatest) for name, spread in spreads.items()],
    )
