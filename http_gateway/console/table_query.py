"""What does the form on the page of a table ask? One query, which is shown, counted or explained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import pyarrow as pa

from http_gateway.parameters import Choice, Parameter, Truth, WholeNumber

if TYPE_CHECKING:
    from aio_client import Scan, ScanExplanation, Table
    from http_gateway.parameters import Values

QUERY_PARAMETERS: Final = (
    Parameter(name="where", meaning="A predicate.", default=""),
    Parameter(name="order_by", meaning="A column.", default=""),
    Truth(name="descending", meaning="Whether the greatest values come first.", default=True),
    WholeNumber(name="limit", meaning="The most rows.", default=10, low=1, high=200),
    Choice(name="run", meaning="What to do.", words=("rows", "count", "explain")),
)

MOST_BYTES: Final = 2 * 1024 * 1024
"""A page reads no further rows of a scan once it has so many bytes."""

_CHUNK_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TableQuery:
    """The query of the form. Immutable.

    Rule: `explain` explains exactly what `rows` runs, so both start from the same scan, or from the same top-N.

    Attributes:
        where: The predicate. None: all rows.
        order_by: The column that orders the rows. Empty: the rows come in any order.
        descending: Whether the greatest values come first.
        limit: The most rows.
    """

    where: str | None
    order_by: str
    descending: bool
    limit: int

    @classmethod
    def of(cls, values: Values) -> Self:
        """Returns the query that the values of `QUERY_PARAMETERS` describe."""
        return cls(
            where=values["where"].strip() or None,
            order_by=values["order_by"],
            descending=values["descending"],
            limit=values["limit"],
        )

    async def rows(self, table: Table) -> tuple[pa.Table, bool]:
        """Returns the rows, and whether the last ones were left out because the first ones are large."""
        if self.order_by:
            return await table.top_n(**self._top_n), False
        batches, taken = list[pa.RecordBatch](), 0
        async with self._scan(table).with_chunk(bytes=_CHUNK_BYTES).stream() as stream:
            async for batch in stream:
                batches.append(batch)
                taken += batch.nbytes
                if taken >= MOST_BYTES:
                    break
        rows = pa.Table.from_batches(batches, schema=stream.schema)
        return rows, taken >= MOST_BYTES and rows.num_rows < self.limit

    async def explain(self, table: Table) -> ScanExplanation:
        """Returns how the server would find the rows."""
        if self.order_by:
            return await table.explain_top_n(**self._top_n)
        return await self._scan(table).explain()

    async def count(self, table: Table) -> int:
        """Returns how many rows match, whatever the limit."""
        return await table.count(self.where)

    @property
    def _top_n(self) -> dict[str, Any]:
        return {
            "limit": self.limit,
            "order_by": self.order_by,
            "where": self.where,
            "descending": self.descending,
        }

    def _scan(self, table: Table) -> Scan:
        scan = table.scan().limit(self.limit)
        return scan if self.where is None else scan.where(self.where)
