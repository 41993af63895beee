"""Creates and updates tables with columnar bases, and waits for the bases."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from benchmarks import t4
from benchmarks.measure import progress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aio_client import BaseStats
    from aio_client.sync import Client, Table

TEXT_TABLE: Final = "bench.t4_text"
"""T4 with the key (name, id), so that rows are ordered by a string."""

_LOAD_ROWS: Final = 100_000
_WRITTEN_ROWS: Final = 10_000
_BUILT_WITHIN: Final = 300.0
_POLL_SECONDS: Final = 0.05


def create_filled_table(client: Client, rows: int, name: str = t4.TABLE, columnar_base: str = "auto") -> Table:
    """Creates a table with the rows of T4."""
    key = ("name", "id") if name == TEXT_TABLE else t4.PRIMARY_KEY
    table = client.create_table(name, t4.SCHEMA, primary_key=key, buckets=t4.BUCKETS, columnar_base=columnar_base)
    progress(f"loading {rows:,} rows of T4 into {name} through the client")
    for batch in t4.batches(rows, _LOAD_ROWS):
        table.upsert(batch)
    return table


def request_base(table: Table) -> None:
    """Begins a scan, since with `columnar_base=auto` the server builds bases only for tables that are scanned."""
    with table.scan().stream() as stream:
        next(stream)


def base_of(table: Table) -> BaseStats:
    """Returns the statistics of the base of a table's only bucket."""
    (bucket,) = table.stats()
    assert bucket.base is not None
    return bucket.base


def wait_for_base(table: Table, builds: int = 1) -> BaseStats:
    """Waits until the base of a table's only bucket is usable and has been built `builds` times."""
    progress("waiting for the base")
    request_base(table)
    deadline = time.monotonic() + _BUILT_WITHIN
    while (base := base_of(table)).unused_reason is not None or base.builds < builds:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the server has built no base within {_BUILT_WITHIN:g} s: {base.unused_reason}")
        time.sleep(_POLL_SECONDS)
    return base


def updates(rows: int, count: int, seed: int, batch_rows: int = _WRITTEN_ROWS) -> Iterator[pa.RecordBatch]:
    """Yields `count` random rows of T4 with new amounts."""
    all_rows = t4.rows(0, rows)
    chosen = np.sort(np.random.default_rng(seed).choice(rows, count, replace=False))
    for start in range(0, count, batch_rows):
        part = chosen[start : start + batch_rows]
        # The amounts differ by seed, since an update that changes nothing is not an update.
        amounts = pa.array(-part.astype(np.float64) - 1 / (1 + seed))
        yield all_rows.take(pa.array(part)).set_column(2, t4.SCHEMA.field(2), amounts)
