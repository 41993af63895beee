"""A rival: pypaimon over local files. Run as a script, by an interpreter that has it; needs nothing of this project.

    python paimon.py WAREHOUSE ROWS.arrow CHANGED.arrow RUNS

It writes a primary-key table of one bucket, reads it, writes the changed rows, and reads it again, merged: with
pypaimon_rust where that is there, since the other reader merges row by row. It prints, as JSON, the rows and seconds of
every run by what was read.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from typing import Any

import pyarrow as pa


def main(warehouse: str, rows_path: str, changed_path: str, runs: int) -> None:
    """Measures, and prints what was found."""
    from pypaimon import CatalogFactory, Schema  # type: ignore[import-not-found,unused-ignore]  # it may be missing

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


def _write(table: Any, rows: pa.Table) -> None:  # noqa: ANN401  # of a package that may be missing
    builder = table.new_batch_write_builder()
    write, commit = builder.new_write(), builder.new_commit()
    write.write_arrow(rows)
    commit.commit(write.prepare_commit())
    write.close()
    commit.close()


def _read(table: Any) -> tuple[int, float]:  # noqa: ANN401  # the same
    started = time.perf_counter()
    builder = table.new_read_builder()
    splits = builder.new_scan().plan().splits()
    rows = sum(batch.num_rows for batch in builder.new_read().to_arrow_batch_reader(splits))
    return rows, time.perf_counter() - started


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
