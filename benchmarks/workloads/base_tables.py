"""Tables with columnar bases for benchmarks: made, waited for, and written to again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from benchmarks import t4
from benchmarks.measure import progress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aio_client import BaseStatistics
    from aio_client.sync import Client, Table

TEXT_TABLE: Final = "bench.t4_text"
"""T4 with the key (name, id), so that keys are strings and rows are in the order of them."""

_LOAD_ROWS: Final = 100_000
_WRITTEN_ROWS: Final = 10_000
_BUILT_WITHIN: Final = 300.0
_POLL_SECONDS: Final = 0.05


def filled_table(client: Client, rows: int, name: str = t4.TABLE, columnar_base: str = "auto") -> Table:
    """A table with the rows of T4."""
    key = ("name", "id") if name == TEXT_TABLE else t4.PRIMARY_KEY
    table = client.create_table(name, t4.SCHEMA, primary_key=key, buckets=t4.BUCKETS, columnar_base=columnar_base)
    progress(f"loading {rows:,} rows of T4 into {name} through the client")
    for batch in t4.batches(rows, _LOAD_ROWS):
        table.upsert(batch)
    return table


def ask_for_base(table: Table) -> None:
    """Begins a scan: with `auto`, bases are for tables that are scanned."""
    with table.scan().stream() as stream:
        next(stream)


def base_of(table: Table) -> BaseStatistics:
    """The base of its only bucket."""
    (bucket,) = table.statistics()
    assert bucket.base is not None
    return bucket.base


def wait_for_base(table: Table, builds: int = 1) -> BaseStatistics:
    """The base of a table's only bucket, once it is there and so many were built."""
    progress("waiting for the base")
    ask_for_base(table)
    deadline = time.monotonic() + _BUILT_WITHIN
    while (base := base_of(table)).unused_reason is not None or base.builds < builds:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the server does not build a base: {base.unused_reason}")
        time.sleep(_POLL_SECONDS)
    return base


def updates(rows: int, count: int, seed: int, batch_rows: int = _WRITTEN_ROWS) -> Iterator[pa.RecordBatch]:
    """So many of the rows, chosen at random, with other amounts."""
    all_rows = t4.rows(0, rows)
    chosen = np.sort(np.random.default_rng(seed).choice(rows, count, replace=False))
    for start in range(0, count, batch_rows):
        part = chosen[start : start + batch_rows]
        # Another one for each seed, since an update that changes nothing is none.
        amounts = pa.array(-part.astype(np.float64) - 1 / (1 + seed))
        yield all_rows.take(pa.array(part)).set_column(2, t4.SCHEMA.field(2), amounts)
