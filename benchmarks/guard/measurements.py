"""Measures the guarded ratios: the processor time of ScanKV and that of a reference, in turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import pyarrow as pa
import pyarrow.compute as pc

from aio_client.sync import connect
from benchmarks import t4
from benchmarks.few_rows_caller import (
    AGGREGATE,
    GET,
    LOOKUP,
    NOTHING,
    TRANSACTION,
    UPSERT,
    CallCost,
    FewRowsCaller,
)
from benchmarks.growth.reads import COLUMNS, N, measure_one_column, measure_queue, measure_top_by_key
from benchmarks.growth.writes import FEW_CONNECTIONS, NARROW, WIDE, measure_columns, measure_connections
from benchmarks.guard.bounds import GuardedRatio
from benchmarks.measure import CpuRounds, Spread
from benchmarks.readers.changes import ChangesReader
from benchmarks.readers.loop import LoopReader
from benchmarks.server import BenchmarkServer
from benchmarks.store import Store
from benchmarks.workers import Worker
from benchmarks.workloads.base_tables import create_filled_table, wait_for_base
from benchmarks.workloads.bases import BaseReader
from benchmarks.workloads.upsert import UpsertWriter, WriteBatchWriter
from scankv.model.limits import DEFAULT_CHUNK_ROWS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from benchmarks.measure import Timing

_FEW_ROWS: Final = 20_000
_FEW_ROWS_ROUNDS: Final = 9
_NOTHING_SECONDS: Final = 0.07
_SCANNED_ROWS: Final = 300_000
_WRITTEN_ROWS: Final = 100_000
_TOP_N_CALLS: Final = 10
_COPIES: Final = 10
_BASE_SCANS: Final = 3
_CONNECTIONS: Final = 512
_WIDE_ROWS: Final = 5_000
_WRITTEN_VALUES: Final = 400_000
_TOP_N_ROWS: Final = 100_000
_QUEUE_DELETES: Final = 40_000
_NOTHING: Final = "a unary call that does nothing"
_LOOP: Final = "an in-process loop over the same rows in RocksDB"


@dataclass(frozen=True, slots=True)
class RatioGroup:
    """Ratios that are measured together.

    Attributes:
        ratios: The ratios.
        measure: Measures all of them in the given, empty directory.
    """

    ratios: Sequence[GuardedRatio]
    measure: Callable[[Path], dict[str, Spread]]


class ArrowInMemory:
    """Does with pyarrow, on rows of T4 in memory, what a query of a columnar base does at best."""

    def __init__(self, rows: int) -> None:
        self._rows = t4.rows(0, rows)
        self._chunks = pa.Table.from_batches([self._rows]).to_batches(DEFAULT_CHUNK_ROWS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def select_top_n(self, times: int) -> int:
        """Selects the top-N repeatedly. Returns `times`."""
        for _ in range(times):
            chosen = pc.select_k_unstable(self._rows, N, sort_keys=[("amount", "descending")])
            self._rows.take(chosen)
        return times

    def copy(self, times: int) -> int:
        """Writes all rows as an IPC stream and reads them, repeatedly. Returns the number of rows."""
        rows = 0
        for _ in range(times):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, self._rows.schema) as writer:
                for chunk in self._chunks:
                    writer.write_batch(chunk)
            with pa.ipc.open_stream(sink.getvalue()) as reader:
                for chunk in reader:
                    chunk.validate()
                    rows += chunk.num_rows
        return rows


_CALLERS: Final = {
    "get": (GET, 1, 0.15),
    "gets_64": (GET, 64, 0.15),
    "lookup_1000": (LOOKUP, 1, 0.15),
    "upsert": (UPSERT, 1, 0.2),
    "upserts_64": (UPSERT, 64, 0.2),
    "aggregate_40": (AGGREGATE, 1, 0.2),
    "transaction_40": (TRANSACTION, 1, 0.2),
}
"""By ratio: the kind of call, the number of concurrent callers, and the seconds in a round."""


def _measure_few_rows(directory: Path) -> dict[str, Spread]:
    with (
        BenchmarkServer(directory / "data") as server,
        Worker(FewRowsCaller, server.url, server.pid, _FEW_ROWS) as caller,
    ):

        def measure(kind: str, callers: int, seconds: float) -> float:
            cost: CallCost = caller.call(FewRowsCaller.measure, kind, seconds, callers)
            return cost.cpu_per_call

        rounds: list[dict[str, float]] = []
        for _ in range(1 + _FEW_ROWS_ROUNDS):
            # Each kind of call between two references, since other load on the machine changes within a round.
            before, found = measure(NOTHING, 1, _NOTHING_SECONDS), {}
            for name, work in _CALLERS.items():
                cost, after = measure(*work), measure(NOTHING, 1, _NOTHING_SECONDS)
                found[name] = cost / ((before + after) / 2)
                before = after
            rounds.append(found)
    return {name: Spread.of(found[name] for found in rounds[1:]) for name in _CALLERS}


def _measure_scans(directory: Path) -> dict[str, Spread]:
    store = Store(directory, _SCANNED_ROWS)
    with (
        Worker(LoopReader, store.copy("loop")) as loop,
        BenchmarkServer(store.data) as server,
        Worker(ChangesReader, server.url) as reader,
    ):
        both = (server.pid, reader.pid)
        cpu = CpuRounds(
            11,
            {
                "loop": ([loop.pid], lambda: _checked(loop.call(LoopReader.read))),
                "scan": (both, lambda: _checked(reader.call(ChangesReader.read))),
                "changes": (both, lambda: _checked(reader.call(ChangesReader.read_log))),
            },
        )
    return {name: cpu.ratios(name, "loop") for name in ("scan", "changes")}


def _measure_bases(directory: Path) -> dict[str, Spread]:
    asked = 0

    def top_n() -> float:
        nonlocal asked
        for _ in range(_TOP_N_CALLS):
            # The numbers differ, so that the result cache never answers.
            asked += 1
            reader.call(BaseReader.top_n, N + asked)
        return _TOP_N_CALLS

    def scan() -> float:
        return sum(_checked(reader.call(BaseReader.read_by, "columnar")) for _ in range(_BASE_SCANS))

    with (
        BenchmarkServer(directory / "data", base_min_rows=_SCANNED_ROWS) as server,
        connect(server.url) as client,
        Worker(BaseReader, server.url) as reader,
        Worker(ArrowInMemory, _SCANNED_ROWS) as arrow,
    ):
        table = create_filled_table(client, _SCANNED_ROWS)
        wait_for_base(table)
        reader.call(BaseReader.open)
        both = (server.pid, reader.pid)
        cpu = CpuRounds(
            11,
            {
                "select": ([arrow.pid], lambda: arrow.call(ArrowInMemory.select_top_n, _TOP_N_CALLS)),
                "base_top_n": (both, top_n),
                "copy": ([arrow.pid], lambda: arrow.call(ArrowInMemory.copy, _COPIES)),
                "base_scan": (both, scan),
            },
        )
    return {"base_scan": cpu.ratios("base_scan", "copy"), "base_top_n": cpu.ratios("base_top_n", "select")}


def _measure_bulk_upserts(directory: Path) -> dict[str, Spread]:
    with (
        BenchmarkServer(directory / "data") as server,
        Worker(UpsertWriter, server.url, _WRITTEN_ROWS) as upsert,
        Worker(WriteBatchWriter, directory / "write-batch", _WRITTEN_ROWS) as write_batch,
    ):
        both = (server.pid, upsert.pid)
        cpu = CpuRounds(
            7,
            {
                "write_batch": ([write_batch.pid], lambda: write_batch.call(WriteBatchWriter.write).rows),
                "bulk_upsert": (both, lambda: upsert.call(UpsertWriter.write, "full").rows),
            },
        )
    return {"bulk_upsert": cpu.ratios("bulk_upsert", "write_batch")}


def _checked(timing: Timing) -> float:
    return timing.check_rows(_SCANNED_ROWS).rows


def _ratio(name: str, work: str, against: str, tolerance: float = 1.7) -> GuardedRatio:
    return GuardedRatio(name=name, work=work, against=against, tolerance=tolerance)


def _growth(name: str, work: str, against: str, measure: Callable[[Path], Spread]) -> RatioGroup:
    return RatioGroup([_ratio(name, work, against)], lambda directory: {name: measure(directory)})


GROUPS: Final = (
    RatioGroup(
        [
            _ratio("get", "`get`", _NOTHING),
            _ratio("gets_64", "one of the gets of 64 concurrent callers", _NOTHING),
            _ratio("lookup_1000", "`lookup` of 1,000 keys", _NOTHING),
            _ratio("upsert", "durable upsert of one row", _NOTHING),
            _ratio("upserts_64", "one of the durable upserts of 64 concurrent callers", _NOTHING),
            _ratio("aggregate_40", "upsert of 40 rows into an aggregate table with two indexes", _NOTHING),
            _ratio("transaction_40", "the same in a transaction", _NOTHING),
        ],
        _measure_few_rows,
    ),
    RatioGroup(
        [
            _ratio("scan", "full scan over gRPC, for each row", _LOOP, 1.6),
            _ratio("changes", "bounded read of all changes, for each change", _LOOP),
        ],
        _measure_scans,
    ),
    RatioGroup(
        [
            _ratio("base_scan", "full scan of a columnar base", "an Arrow IPC stream of the same rows in memory"),
            _ratio("base_top_n", "top-N from a columnar base", "`pyarrow.compute.select_k_unstable` of the same rows"),
        ],
        _measure_bases,
    ),
    RatioGroup(
        [
            _ratio(
                "bulk_upsert", "durable upsert of 100,000 new rows", "a `WriteBatch` of the same rows in-process", 1.6
            )
        ],
        _measure_bulk_upserts,
    ),
    _growth(
        "growth_connections",
        f"upsert of one row from each of {_CONNECTIONS} connections",
        f"from each of {FEW_CONNECTIONS} connections",
        lambda directory: measure_connections(directory, _CONNECTIONS, _CONNECTIONS, 5),
    ),
    _growth(
        "growth_columns",
        f"upsert of rows of {WIDE} columns, for each value",
        f"of rows of {NARROW} columns",
        lambda directory: measure_columns(directory, _WRITTEN_VALUES, 5),
    ),
    _growth(
        "growth_one_column",
        f"scan of one of {COLUMNS} columns over gRPC, for each row",
        _LOOP,
        lambda directory: measure_one_column(directory, _WIDE_ROWS, 11),
    ),
    _growth(
        "growth_top_by_key",
        f"top-{N} of {_TOP_N_ROWS:,} rows by the key",
        "by an index",
        lambda directory: measure_top_by_key(directory, _TOP_N_ROWS, 11),
    ),
    _growth(
        "growth_queue",
        f"slowest polls of the first rows of a queue in {_QUEUE_DELETES:,} deletes",
        "the first polls",
        lambda directory: measure_queue(directory, _QUEUE_DELETES, 4),
    ),
)
"""All guarded ratios."""
