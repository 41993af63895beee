"""Computes the figures of a stream while it runs."""

from __future__ import annotations

import pyarrow as pa

from scankv.demo.flights import Figures
from scankv.model import lazy_compute as pc


class Tally:
    """Counts and sums chunks of flights, without keeping the chunks.

    Attributes:
        rows: Flights so far.
        distance: Their miles.
        zeros: How many of them have 0 miles.
    """

    def __init__(self) -> None:
        self.rows: int = 0
        self.distance: int = 0
        self.zeros: int = 0
        self._carriers: list[pa.Table] = []

    def add(self, rows: pa.RecordBatch) -> None:
        """Counts the flights of one chunk, which has at least one."""
        distance = rows.column("distance")
        self.rows += rows.num_rows
        self.distance += pc.sum(distance).as_py()
        self.zeros += pc.sum(pc.equal(distance, 0)).as_py()
        by_carrier = pa.Table.from_batches([rows]).group_by("carrier")
        self._carriers.append(by_carrier.aggregate([("distance", "count"), ("distance", "sum")]))

    def figures(self) -> Figures:
        """Returns the figures of all flights counted so far, at least one."""
        by_carrier = pa.concat_tables(self._carriers).group_by("carrier")
        total = by_carrier.aggregate([("distance_count", "sum"), ("distance_sum", "sum")])
        names, flights, miles = (
            total.column(name).to_pylist() for name in ("carrier", "distance_count_sum", "distance_sum_sum")
        )
        return Figures(self.rows, self.distance, dict(zip(names, zip(flights, miles, strict=True), strict=True)))
