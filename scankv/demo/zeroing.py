"""The writer that changes rows while they are being streamed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from scankv.demo.flights import SCHEMA

if TYPE_CHECKING:
    from aio_client import Table

_ROWS_PER_UPDATE: Final = 100
_SEED: Final = 2013


class Zeroing:
    """Sets `distance` to 0 in random rows until the caller sets `stop`.

    Attributes:
        acknowledged: How many rows were updated.
        first: Set when the first update is acknowledged.
        stop: Set by the caller to end the updates.
    """

    def __init__(self, table: Table, rows: pa.Table) -> None:
        self.acknowledged: int = 0
        self.first: asyncio.Event = asyncio.Event()
        self.stop: asyncio.Event = asyncio.Event()
        self._table = table
        self._rows = rows.take(np.random.default_rng(_SEED).permutation(rows.num_rows))

    async def run(self) -> None:
        """Updates the rows in random order, many per request, until all rows are updated or `stop` is set."""
        position = SCHEMA.get_field_index("distance")
        while self.acknowledged < self._rows.num_rows and not self.stop.is_set():
            rows = self._rows.slice(self.acknowledged, _ROWS_PER_UPDATE)
            zeros = pa.array(np.zeros(rows.num_rows, np.int64))
            await self._table.upsert(rows.set_column(position, SCHEMA.field(position), zeros))
            self.acknowledged += rows.num_rows
            self.first.set()

    def updated_rows(self) -> pa.Table:
        """Returns the rows that were updated, as they were before."""
        return self._rows.slice(0, self.acknowledged)
