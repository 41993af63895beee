"""Turns a comparison into tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from benchmarks.bench import Result, ResultTable
from benchmarks.field.competitors.scankv import ScanKv
from benchmarks.field.operations import OPERATIONS
from benchmarks.measure import Spread, paired_ratios

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from benchmarks.field.comparison import FieldComparison, Measured
    from benchmarks.field.competitors.competitor import Competitor
    from benchmarks.field.operations import FieldOperation

_REFERENCE: Final = ScanKv.NAME
_NOT_INSTALLED: Final = "not installed"
_MILLIS: Final = 1000.0

NOT_MEASURED: Final = (
    "A network: everything runs on one machine over loopback, and clients and servers share its cores.",
    "Disk reads: the files are in the page cache.",
    "Replication and failover, which ScanKV does not have. Access control and encryption, which are off.",
    "Other shapes of data: T4 has four narrow columns without nulls.",
    "The full scan of a Fluss server (FIP-17): it needs Fluss 1.0, which is not released.",
    "A quiet machine: others may have used it at the same time. Trust ratios rather than rates, and only ratios with a "
    "narrow range.",
)

_NOTES: Final = (
    "All systems hold the same rows and run at the same time. They take turns within every round, so a busy moment "
    "affects all of them. Ratios are medians over the rounds, each within one round.",
    "Every client is a Python process of its own. It checks that each result is complete. Sequential calls use the "
    "fastest client that each system offers for them: the asynchronous client of ScanKV, blocking clients elsewhere. "
    "Concurrent callers are tasks of one event loop; with Redis and PostgreSQL, each has a connection of its own.",
    "The result of a read is what the client hands out: Arrow batches from ScanKV, ADBC, DuckDB and Flight, Python "
    "objects from psycopg and Redis.",
    "Processor time is that of all processes of the client and the server, in steps of 10 ms. It includes making the "
    "rows of a load, which the rates do not include.",
    "Loads and one-row writes run without an index. Then an index on `amount` is built, for the top-N and the changes. "
    "Redis reads a sorted set, and then the rows.",
    "A change is timed from the start of a one-row write until a listener in the same process has the new row: a "
    "stream of changes (ScanKV), `XREAD` of a stream that the writing transaction extends (Redis), `LISTEN` with a "
    "trigger that sends the row as JSON (PostgreSQL).",
    "Memory is the proportional set size of all processes. Disk includes logs; ScanKV keeps a full changelog. The log "
    "of PostgreSQL is preallocated and recycled, so it takes more than its contents.",
)


def to_result(
    found: Sequence[FieldComparison], chosen: Sequence[type[Competitor]], missing: Mapping[str, str]
) -> Result:
    """Returns the tables.

    Args:
        found: The comparisons, the main one first.
        chosen: All systems that were asked for.
        missing: Why some of them could not be measured, by name.
    """
    main, *others = found
    tables = [_systems_table(chosen, missing)]
    tables += [
        _operation_table(operation, main.measured[operation.method], chosen, missing) for operation in OPERATIONS
    ]
    tables.append(_footprint_table(main, chosen, missing))
    tables += _callers_tables(main)
    tables += _growth_tables(
        "rows", [main, *(each for each in others if each.scale.rows != main.scale.rows)], lambda each: each.scale.rows
    )
    tables += _growth_tables(
        "buckets",
        [main, *(each for each in others if each.scale.buckets != main.scale.buckets)],
        lambda each: each.scale.buckets,
    )
    return Result(tables=tables, notes=_NOTES)


def _systems_table(chosen: Sequence[type[Competitor]], missing: Mapping[str, str]) -> ResultTable:
    rows = []
    for system in chosen:
        version = f"{_NOT_INSTALLED}: {missing[system.NAME]}" if system.NAME in missing else system.versions()
        rows.append((system.NAME, version, system.DURABILITY, system.SETUP))
    return ResultTable("Systems", ("system", "versions", "durability", "setup"), rows)


def _operation_table(
    operation: FieldOperation,
    measured: Mapping[str, Measured],
    chosen: Sequence[type[Competitor]],
    missing: Mapping[str, str],
) -> ResultTable:
    rows: list[Sequence[str | float]] = []
    for system in chosen:
        name = system.NAME
        if name in missing:
            rows.append((name, _NOT_INSTALLED, *[""] * 5))
        elif name not in measured:
            rows.append((name, f"none: {system.CLIENT.CANNOT[operation.method]}", *[""] * 5))
        else:
            rows.append((name, *_cells(name, measured, operation.unit)))
    columns = (
        operation.unit,
        "median",
        "range",
        "ms each",
        "ScanKV's rate / this rate",
        "client CPU, us",
        "server CPU, us",
    )
    return ResultTable(operation.title, columns, rows)


def _cells(name: str, measured: Mapping[str, Measured], unit: str) -> Iterator[str | float]:
    one = measured[name]
    rates = Spread.of(one.rates)
    yield rates.median
    yield f"{rates.least:,.0f} to {rates.greatest:,.0f}"
    yield "" if unit == "rows/s" else _MILLIS / rates.median
    if name == _REFERENCE or _REFERENCE not in measured:
        yield ""
    else:
        ratio = paired_ratios(measured[_REFERENCE].rates, one.rates)
        yield f"{ratio.median:.2g} ({ratio.least:.2g} to {ratio.greatest:.2g})"
    yield Spread.of(one.client_micros).median
    yield Spread.of(one.server_micros).median


def _footprint_table(
    main: FieldComparison, chosen: Sequence[type[Competitor]], missing: Mapping[str, str]
) -> ResultTable:
    rows: list[Sequence[str | float]] = []
    for system in chosen:
        if system.NAME in missing:
            rows.append((system.NAME, _NOT_INSTALLED, *[""] * 4))
        else:
            each = main.footprints[system.NAME]
            rows.append((system.NAME, each.client, each.server, each.server_at_end, each.disk, each.disk_at_end))
    columns = (
        "MiB",
        "client after the load",
        "server after the load",
        "server at the end",
        "disk after the loads",
        "disk at the end",
    )
    return ResultTable("Memory and disk", columns, rows)


def _callers_tables(main: FieldComparison) -> Iterator[ResultTable]:
    for operation in OPERATIONS:
        by_callers = main.by_callers.get(operation.method)
        if by_callers:
            all_counts = {**by_callers, main.scale.callers: main.measured[operation.method]}
            yield _pivot(f"{operation.title}, by the number of callers", operation, "callers", all_counts)


def _growth_tables(
    what: str, comparisons: Sequence[FieldComparison], number_of: Callable[[FieldComparison], int]
) -> Iterator[ResultTable]:
    if len(comparisons) < 2:
        return
    for operation in OPERATIONS:
        by_number = {
            number_of(each): each.measured[operation.method]
            for each in comparisons
            if operation.method in each.measured
        }
        if len(by_number) == len(comparisons):
            yield _pivot(f"{operation.title}, by the number of {what}", operation, what, by_number)


def _pivot(
    title: str, operation: FieldOperation, what: str, found: Mapping[int, Mapping[str, Measured]]
) -> ResultTable:
    """Returns a table of the median rates, with a row for each system and a column for each number."""
    numbers = sorted(found)
    names = dict.fromkeys(name for number in numbers for name in found[number])
    rows = [
        (name, *(Spread.of(found[n][name].rates).median if name in found[n] else "" for n in numbers)) for name in names
    ]
    return ResultTable(title, (f"{operation.unit}, {what}:", *(f"{number:,}" for number in numbers)), rows)
