"""A competitor: pypaimon over local files. A script for an interpreter that has pypaimon; imports nothing of ScanKV.

    python paimon.py WAREHOUSE ROWS.arrow CHANGED.arrow RUNS

It writes a primary-key table with one bucket, reads it, writes the changed rows, and reads the merged table. If
pypaimon_rust is installed, that reads the merged table, since the Python reader merges row by row. The script prints
the rows and seconds of every run as JSON.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from typing import Any

import pyarrow as pa


def main(warehouse: str, rows_path: str, changed_path: str, runs: int) -> None:
    """Measures and prints the result."""
    from pypaimon import CatalogFactory, Schema  # type: ignore[import-not-found,unused-ignore]  # may be missing

    rows = _read_file(rows_path)
    catalog = CatalogFactory.create({"warehouse": warehouse})
    catalog.create_database("bench", True)
    schema = Schema.from_pyarrow_schema(rows.schema, primary_keys=["id"], options={"bucket": "1"})
    catalog.create_table("bench.t4", schema, False)
    table = catalog.get_table("bench.t4")
    _write(table, rows)
    found = {"unmerged": [_read(table) for _ in range(runs + 1)][1:]}
    _write(table, _read_file(changed_path))
    has_rust = importlib.util.find_spec("pypaimon_rust") is not None
    merging = table.copy({"read.native.enabled": str(has_rust).lower()})
    found["merged, Rust" if has_rust else "merged"] = [_read(merging) for _ in range(runs + 1)][1:]
    sys.stdout.write(json.dumps(found) + "\n")


def _read_file(path: str) -> pa.Table:
    with pa.ipc.open_file(path) as file:
        return file.read_all()


def _write(table: Any, rows: pa.Table) -> None:  # noqa: ANN401  # from a package that may be missing
    builder = table.new_batch_write_builder()
    write, commit = builder.new_write(), builder.new_commit()
    write.write_arrow(rows)
    commit.commit(write.prepare_commit())
    write.close()
    commit.close()


def _read(table: Any) -> tuple[int, float]:  # noqa: ANN401  # from a package that may be missing
    started = time.perf_counter()
    builder = table.new_read_builder()
    splits = builder.new_scan().plan().splits()
    rows = sum(batch.num_rows for batch in builder.new_read().to_arrow_batch_reader(splits))
    return rows, time.perf_counter() - started


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
