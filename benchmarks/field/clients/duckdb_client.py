"""DuckDB over one Parquet file, in the process of the client."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import t4
from benchmarks.field.clients.field_client import (
    BELOW,
    LOAD_ROWS,
    PROJECTED,
    TOP,
    FieldClient,
    check_found,
    import_library,
    time_calls,
)
from benchmarks.measure import Timing

if TYPE_CHECKING:
    from collections.abc import Mapping

_NO_UPDATES = "Parquet files are not updated"


class DuckDbClient(FieldClient):
    """Reads Arrow batches. A load writes the file with pyarrow and syncs it."""

    CANNOT: ClassVar[Mapping[str, str]] = {
        "call_nothing": "has no server",
        "get_concurrently": "one connection runs one query at a time",
        "write": _NO_UPDATES,
        "write_concurrently": _NO_UPDATES,
        "change": _NO_UPDATES,
    }

    def open(self) -> None:
        self.file = Path(self.address) / "t4.parquet"
        self.duckdb = self.stack.enter_context(import_library("duckdb").connect())

    def load(self) -> Timing:
        batches = t4.batches(self.rows, LOAD_ROWS)
        with self.file.open("wb") as file:
            with pq.ParquetWriter(file, t4.SCHEMA) as writer:
                timing = self.load_batches(batches, writer.write_batch)
                started = time.perf_counter()
            file.flush()
            os.fsync(file.fileno())
        return Timing(self.rows, timing.seconds + time.perf_counter() - started)

    def scan(self) -> Timing:
        return self._read("*").check_rows(self.rows)

    def project(self) -> Timing:
        return self._read(", ".join(PROJECTED)).check_rows(self.rows)

    def select(self) -> Timing:
        found = self._read("*", f"WHERE amount < {BELOW}").check_rows(self.expected_selected())
        return Timing(self.rows, found.seconds)

    def count(self, seed: int) -> Timing:
        query = f"SELECT count(*) FROM '{self.file}' WHERE amount < ?"
        return self.time_count(seed, lambda below: self.duckdb.execute(query, [below]).fetchone()[0])

    def get(self, calls: int, seed: int) -> Timing:
        query = f"SELECT * FROM '{self.file}' WHERE id = ?"
        return time_calls(
            self.ids(calls, seed), lambda key: check_found(self.duckdb.execute(query, [key]).fetchone(), key)
        )

    def index(self) -> None:
        """Builds none: Parquet has no indexes."""

    def top_n(self, calls: int) -> Timing:
        query = f"SELECT * FROM '{self.file}' ORDER BY amount DESC LIMIT {TOP}"
        return time_calls(range(calls), lambda _: self.duckdb.execute(query).fetchall())

    def _read(self, columns: str, where: str = "") -> Timing:
        started, rows = time.perf_counter(), 0
        reader: pa.RecordBatchReader = self.duckdb.sql(f"SELECT {columns} FROM '{self.file}' {where}").to_arrow_reader()
        for batch in reader:
            rows += batch.num_rows
        return Timing(rows, time.perf_counter() - started)
