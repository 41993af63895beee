"""Reads published tables with programs that know nothing of ScanKV."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aio_client import Table


def read_delta(uri: str, version: int | None = None) -> pa.Table:
    """Returns all rows of a version of a Delta table, by default of the latest, as DataFusion reads them."""
    query = QueryBuilder().register("published", DeltaTable(uri, version=version)).execute("SELECT * FROM published")
    return pa.table(query)


def read_with_polars(uri: str) -> pa.Table:
    """Returns all rows of the latest version of a Delta table, as Polars reads them."""
    return polars.scan_delta(uri).collect().to_arrow()


def sorted_rows(rows: pa.Table, key: Sequence[str]) -> list[dict[str, Any]]:
    """Returns rows as dictionaries, in the order of their keys."""
    return sorted(rows.to_pylist(), key=lambda row: tuple(row[name] for name in key))


async def live_rows(table: Table) -> list[dict[str, Any]]:
    """Returns the current rows of a table, in the order of their keys."""
    return sorted_rows(await table.scan().to_arrow(), table.primary_key)
