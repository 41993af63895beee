"""Works on a Paimon table on request. A script for an interpreter that has pypaimon; imports nothing of ScanKV.

    python paimon_process.py WAREHOUSE BUCKETS

It reads requests as lines of JSON, and answers each with a line: the rows or calls, and the seconds. It uses
pypaimon_rust for reads if that is installed.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from typing import Any

import pyarrow as pa

_TABLE = "bench.t4"
_LOAD_ROWS = 100_000


class PaimonTable:
    """A primary-key table of pypaimon."""

    def __init__(self, warehouse: str, buckets: str) -> None:
        from pypaimon import CatalogFactory  # type: ignore[import-not-found,unused-ignore]  # may be missing

        self._catalog = CatalogFactory.create({"warehouse": warehouse})
        self._catalog.create_database("bench", True)
        self._buckets = buckets
        self._table: Any = None

    def load(self, path: str) -> tuple[int, float]:
        """Creates the table and writes the rows of an Arrow file in one commit."""
        from pypaimon import Schema

        with pa.memory_map(path) as file:
            rows = pa.ipc.open_file(file).read_all()
            options = {"bucket": self._buckets}
            schema = Schema.from_pyarrow_schema(rows.schema, primary_keys=["id"], options=options)
            self._catalog.drop_table(_TABLE, True)
            self._catalog.create_table(_TABLE, schema, False)
            table = self._catalog.get_table(_TABLE)
            has_rust = importlib.util.find_spec("pypaimon_rust") is not None
            self._table = table.copy({"read.native.enabled": str(has_rust).lower()})
            started = time.perf_counter()
            builder = table.new_batch_write_builder()
            write, commit = builder.new_write(), builder.new_commit()
            for start in range(0, rows.num_rows, _LOAD_ROWS):
                write.write_arrow(rows.slice(start, _LOAD_ROWS))
            commit.commit(write.prepare_commit())
            write.close()
            commit.close()
            return rows.num_rows, time.perf_counter() - started

    def read(self, columns: list[str] | None, below: float | None) -> tuple[int, float]:
        """Reads some columns of the rows that match `amount < below`."""
        started = time.perf_counter()
        builder = self._table.new_read_builder()
        if below is not None:
            builder = builder.with_filter(builder.new_predicate_builder().less_than("amount", below))
        if columns is not None:
            builder = builder.with_projection(columns)
        return self._count(builder), time.perf_counter() - started

    def get(self, keys: list[int]) -> tuple[int, float]:
        """Reads rows by their keys, one after the other."""
        started, found = time.perf_counter(), 0
        for key in keys:
            builder = self._table.new_read_builder()
            found += self._count(builder.with_filter(builder.new_predicate_builder().equal("id", key)))
        return found, time.perf_counter() - started

    def _count(self, builder: Any) -> int:  # noqa: ANN401  # from a package that may be missing
        splits = builder.new_scan().plan().splits()
        return sum(batch.num_rows for batch in builder.new_read().to_arrow_batch_reader(splits))


def main(warehouse: str, buckets: str) -> None:
    """Answers requests until the input ends."""
    table = PaimonTable(warehouse, buckets)
    answers, sys.stdout = sys.stdout, sys.stderr  # pypaimon may print
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        answers.write(json.dumps(getattr(table, name)(*arguments)) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
