"""`bench`: measures a server with a table of its own."""

from __future__ import annotations

from dataclasses import asdict
from statistics import median
from typing import TYPE_CHECKING, Annotated

import typer

from scankv.cli.bench_run import FIRST_SCAN, THIRD_SCAN, BaseBuilds, BenchScale, Measurement, measure
from scankv.cli.options import Buckets, Json, Url
from scankv.cli.outcome import run_async
from scankv.cli.show import show_json, show_table, stderr_console

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def bench(
    rows: Annotated[
        int, typer.Option(min=1, max=100_000_000, metavar="N", help="Load and scan this many rows.")
    ] = 1_000_000,
    calls: Annotated[
        int, typer.Option(min=1, max=100_000, metavar="N", help="Make this many calls of each kind in a round.")
    ] = 500,
    in_flight: Annotated[
        int, typer.Option(min=1, max=1024, metavar="N", help="Make concurrent calls with this many callers.")
    ] = 64,
    rounds: Annotated[int, typer.Option(min=1, max=100, metavar="N", help="Measure everything this often.")] = 3,
    buckets: Buckets = None,
    json: Json = False,
    url: Url = None,
) -> None:
    """Measure how fast a server answers: calls that do nothing, reads and durable writes of one row, a load, scans.

    In each round, the command creates a table with a unique name in the database scankv_bench, and drops it at the end,
    also after Ctrl-C or an error. It touches no other table. Its load slows down other clients of the server.

    Each line has the median, the least and the greatest rate of the rounds. The last column is the number of calls or
    rows in the time of one call that does nothing, measured in the same round. Compare servers by this column, since it
    depends less on network and machine than the rates do.

    The first scan reads RocksDB, and asks the server to keep the rows in columns, too. The third begins when that is
    done. The last line says how long it took and how much faster the third scan is.
    """
    scale = BenchScale(rows=rows, calls=calls, in_flight=in_flight, rounds=rounds, buckets=buckets)
    console = stderr_console()
    if console.is_terminal:
        with console.status("measuring") as status:
            found, bases = run_async(measure(url, scale, report=status.update))
    else:
        found, bases = run_async(measure(url, scale))
    if json:
        show_json({**asdict(scale), "measurements": [_to_dict(each) for each in found], "bases": asdict(bases)})
    else:
        show_table(
            ["measured", "per second", "least", "greatest", "ms each", "in the time of a no-op call"],
            [_cells(each) for each in found],
        )
        typer.echo(_speedup(bases, {each.name: each for each in found}))


def _speedup(bases: BaseBuilds, found: Mapping[str, Measurement]) -> str:
    waited = [seconds for seconds in bases.seconds if seconds is not None]
    if len(waited) < len(bases.seconds):
        return f"The third scan read no columnar base: {bases.unused_reason}."
    ratios = [third / first for first, third in zip(found[FIRST_SCAN].rates, found[THIRD_SCAN].rates, strict=True)]
    return (
        f"Columnar bases were there {_spread(waited)} s after the first scan, and the third scan was "
        f"{_spread(ratios)} times as fast as the first."
    )


def _spread(values: Sequence[float]) -> str:
    return f"{median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def _to_dict(measurement: Measurement) -> dict[str, object]:
    return {
        "name": measurement.name,
        "unit": measurement.unit,
        "per_second": measurement.per_second,
        "least": min(measurement.rates),
        "greatest": max(measurement.rates),
        "per_no_op_call": measurement.per_no_op_call,
    }


def _cells(measurement: Measurement) -> list[object]:
    millis = f"{1000 / measurement.per_second:.3g}" if measurement.is_sequential else ""
    rates = measurement.per_second, min(measurement.rates), max(measurement.rates)
    unit = f"{measurement.name}, {measurement.unit}"
    return [unit, *map(round, rates), millis, f"{measurement.per_no_op_call:,.3g}"]
